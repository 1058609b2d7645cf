//! A folder of a web server. It can't be listed: the names that a model's files may have are asked for.

use std::path::PathBuf;
use std::sync::Arc;

use reqwest::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use serde::Deserialize;
use url::Url;

use crate::choice::{self, MANIFEST, WEIGHTS};
use crate::error::SourceError;
use crate::options::{Options, Progress};
use crate::origin::{Failure, Origin, Remote, Server, header};
use crate::source::is_name;
use crate::store::{folder_name, identity};
use crate::transfer::{ask, snapshot};

const HINT: &str = "name an address that needs no credentials, or copy the files first";

/// The names of files in a bundle's manifest, or in an index of shards.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    files: Vec<ListedFile>,
    #[serde(default)]
    weight_map: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ListedFile {
    path: String,
    sha256: Option<String>,
}

/// The folder of a model's files, downloaded as far as needed.
pub(crate) async fn fetch(url: &Url, options: &Options, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
    let mut base = url.clone();
    base.set_path(&format!("{}/", url.path().trim_end_matches('/')));
    let folder = Folder { base, server: Server::new(options, None, HINT)?, asking: (options, progress) };
    let files = folder.files().await?.ok_or_else(|| SourceError::NoModel { from: url.to_string() })?;
    let content: Vec<&str> = files.iter().map(|file| file.identity.as_str()).collect();
    snapshot(&options.cache.join(folder_name(url)), &identity(&content), &files, (options, progress)).await
}

/// A folder of a server.
struct Folder<'a> {
    base: Url,
    server: Arc<Server>,
    asking: (&'a Options, &'a dyn Progress),
}

impl Folder<'_> {
    /// The model's files, or `None` if there is no model.
    async fn files(&self) -> Result<Option<Vec<Remote>>, SourceError> {
        let mut files = Vec::new();
        if let Some(manifest) = self.find(MANIFEST, None).await? {
            files.push(manifest);
            for file in self.list(MANIFEST).await?.files {
                files.push(self.required(&file.path, file.sha256).await?);
            }
            return Ok(Some(files));
        }
        for name in choice::texts() {
            files.extend(self.find(name, None).await?);
        }
        for (single, index, ..) in WEIGHTS {
            if let Some(whole) = self.find(single, None).await? {
                files.push(whole);
            } else if let Some(found) = self.find(index, None).await? {
                files.push(found);
                let shards: std::collections::BTreeSet<String> =
                    self.list(index).await?.weight_map.into_values().collect();
                for shard in shards {
                    files.push(self.required(&shard, None).await?);
                }
            } else {
                continue;
            }
            return Ok(files.iter().any(|file| file.name == "config.json").then_some(files));
        }
        Ok(None)
    }

    async fn required(&self, name: &str, sha256: Option<String>) -> Result<Remote, SourceError> {
        if !is_name(name) {
            let reason = "a list of files names one outside its folder";
            return Err(SourceError::Address { text: name.to_owned(), reason });
        }
        let found = self.find(name, sha256).await?;
        found.ok_or_else(|| SourceError::Absent { what: format!("{}{name}", self.base) })
    }

    /// What the server says of a file, or `None` if it has none of that name.
    async fn find(&self, name: &str, sha256: Option<String>) -> Result<Option<Remote>, SourceError> {
        let url = self.url(name)?;
        let answer = ask(name, self.asking, || self.server.send_head(&url, name)).await?;
        let Some(headers) = answer else { return Ok(None) };
        let size = header(&headers, CONTENT_LENGTH.as_str()).and_then(|value| value.parse().ok());
        let Some(bytes) = size else {
            let reason = "the server doesn't say how large it is".to_owned();
            return Err(SourceError::Transfer { what: name.to_owned(), reason });
        };
        let (etag, changed) = (header(&headers, ETAG.as_str()), header(&headers, LAST_MODIFIED.as_str()));
        let version = etag.clone().or(changed).unwrap_or_default();
        Ok(Some(Remote {
            name: name.to_owned(),
            bytes,
            identity: identity(&[url.as_str(), &bytes.to_string(), &version]),
            sha256,
            origin: Origin::Web { server: Arc::clone(&self.server), url, etag },
        }))
    }

    /// Reads a small file that names others.
    async fn list(&self, name: &str) -> Result<Listed, SourceError> {
        let url = self.url(name)?;
        let body = ask(name, self.asking, || async {
            let response = self.server.send(self.server.get(&url), name).await?;
            response.bytes().await.map_err(|error| Failure::again(crate::origin::words(error)))
        })
        .await?;
        serde_json::from_slice(&body)
            .map_err(|error| SourceError::Transfer { what: name.to_owned(), reason: error.to_string() })
    }

    fn url(&self, name: &str) -> Result<Url, SourceError> {
        let wrong = |_| SourceError::Address { text: name.to_owned(), reason: "it is no name of a file" };
        self.base.join(name).map_err(wrong)
    }
}

impl Server {
    /// The headers of a file, or `None` if there is none.
    async fn send_head(&self, url: &Url, what: &str) -> Result<Option<reqwest::header::HeaderMap>, Failure> {
        match self.send(self.head(url), what).await {
            Ok(response) => Ok(Some(response.headers().clone())),
            Err(Failure::Final(SourceError::Absent { .. })) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}
