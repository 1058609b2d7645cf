//! S3, Google Cloud Storage and Azure: a folder of objects. Credentials come from the stores' own variables.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, RetryConfig};
use sha2::{Digest, Sha256};
use url::Url;

use crate::choice;
use crate::error::SourceError;
use crate::options::{Options, Progress};
use crate::origin::{Origin, Remote, of_store};
use crate::transfer::{ask, snapshot};

/// The folder of a model's files, downloaded as far as needed.
pub(crate) async fn fetch(url: &Url, options: &Options, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
    let store = open(url, options)?;
    let wrong = |_| SourceError::Address { text: url.to_string(), reason: "its path has parts that no store has" };
    let prefix = Path::from_url_path(url.path()).map_err(wrong)?;
    let what = url.as_str();
    let listed: Vec<ObjectMeta> = ask(what, (options, progress), || async {
        let listed = store.list_with_delimiter(Some(&prefix)).await;
        Ok(listed.map_err(|error| of_store(what, &error))?.objects)
    })
    .await?;
    let names: Vec<&str> = listed.iter().filter_map(|object| object.location.filename()).collect();
    let needed = choice::needed(&names).ok_or_else(|| SourceError::NoModel { from: what.to_owned() })?;
    let mut files = Vec::new();
    for object in &listed {
        let Some(name) = object.location.filename().filter(|name| needed.contains(name)) else { continue };
        let etag = object.e_tag.clone();
        let changed = object.last_modified.to_string();
        files.push(Remote {
            name: name.to_owned(),
            bytes: object.size,
            identity: identity(&[name, &object.size.to_string(), etag.as_deref().unwrap_or(&changed)]),
            sha256: None,
            origin: Origin::Object { store: Arc::clone(&store), path: object.location.clone(), etag },
        });
    }
    let content: Vec<&str> = files.iter().map(|file| file.identity.as_str()).collect();
    snapshot(&options.cache.join(folder_name(url)), &identity(&content), &files, (options, progress)).await
}

/// The store of an address. Its own retries are off: `transfer` has them.
fn open(url: &Url, options: &Options) -> Result<Arc<dyn ObjectStore>, SourceError> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let (scheme, url) = (url.scheme(), url.as_str());
    let opened: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
        "s3" => {
            let builder = AmazonS3Builder::new().with_url(url).with_retry(retry);
            let known = known(options, "aws_").fold(builder, |builder, (key, value)| builder.with_config(key, value));
            known.build().map(|store| Arc::new(store) as _)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::new().with_url(url).with_retry(retry);
            let known =
                known(options, "google_").fold(builder, |builder, (key, value)| builder.with_config(key, value));
            known.build().map(|store| Arc::new(store) as _)
        }
        _ => {
            let builder = MicrosoftAzureBuilder::new().with_url(url).with_retry(retry);
            let known = known(options, "azure_").fold(builder, |builder, (key, value)| builder.with_config(key, value));
            known.build().map(|store| Arc::new(store) as _)
        }
    };
    opened.map_err(|error| SourceError::Transfer { what: url.to_string(), reason: error.to_string() })
}

/// What the variables whose names begin with `first` say of a store. Others, such as TOKEN, may mean anything.
fn known<K: FromStr>(options: &Options, first: &str) -> impl Iterator<Item = (K, String)> {
    let lower = options.variables.iter().map(|(name, value)| (name.to_lowercase(), value));
    let own = lower.filter(move |(name, value)| name.starts_with(first) && !value.is_empty());
    own.filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())))
}

/// A name for what has these properties.
pub(crate) fn identity(properties: &[&str]) -> String {
    let hash = Sha256::digest(properties.join("\n"));
    hash.iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of an address in the cache: its last part, as a name, and what makes it unique.
pub(crate) fn folder_name(url: &Url) -> String {
    let mut parts = url.path_segments().into_iter().flatten().filter(|part| !part.is_empty());
    let last = parts.next_back().or(url.host_str()).unwrap_or_default();
    let name: String = last.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(100).collect();
    format!("models--{}--{}", &identity(&[url.as_str()])[..16], name.trim_start_matches('.'))
}
