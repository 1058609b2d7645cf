//! The Hugging Face Hub, with the cache, the token and the offline mode of its own tools.
//!
//! `HF_TOKEN` or the file `HF_TOKEN_PATH`; `HF_HUB_CACHE`, or `hub` in `HF_HOME`; `HF_HUB_OFFLINE`; `HF_ENDPOINT`.
//! What `huggingface_hub` has downloaded is found, and it finds what is downloaded here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::StreamExt;
use serde::Deserialize;
use url::Url;

use crate::choice::{self, WEIGHTS};
use crate::error::SourceError;
use crate::options::{Options, Progress};
use crate::origin::{Failure, Origin, Remote, Server, words};
use crate::source::{HubModel, is_name};
use crate::transfer::{ask, small, snapshot, write_error};

const ENDPOINT: &str = "https://huggingface.co";

/// Most bytes of a list of files.
const LIST_LIMIT_BYTES: usize = 16 << 20;

const HINT: &str = "it is private or gated: accept its terms on the Hub, and set HF_TOKEN to a token that may read it";

/// A revision, as the Hub describes it.
#[derive(Deserialize)]
struct Revision {
    sha: String,
    siblings: Vec<Sibling>,
}

/// One of its files.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Large>,
}

/// What is known of a file that lies outside the Hub's git.
#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

/// The folder of a model's files, downloaded as far as needed.
pub(crate) async fn fetch(
    model: &HubModel,
    options: &Options,
    progress: &dyn Progress,
) -> Result<PathBuf, SourceError> {
    let root = cache(options).join(format!("models--{}", model.id.replace('/', "--")));
    let name = format!("{}@{}", model.id, model.revision);
    if options.is_set("HF_HUB_OFFLINE") || options.is_set("TRANSFORMERS_OFFLINE") {
        return cached(&root, &model.revision).ok_or(SourceError::Offline(name));
    }
    let server = Server::new(options, token(options), HINT)?;
    let revision = match revision(model, &server, (options, progress)).await {
        Err(error @ SourceError::Transfer { .. }) => {
            let Some(folder) = cached(&root, &model.revision) else { return Err(error) };
            tracing::warn!(%error, "the Hub can't be asked for a newer revision; the one in the cache is used");
            return Ok(folder);
        }
        other => other?,
    };
    if !revision.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) || revision.sha.is_empty() {
        return Err(SourceError::Transfer { what: name, reason: "the Hub names no commit".to_owned() });
    }
    let files = files(model, &revision, &server, options)?.ok_or(SourceError::NoModel { from: name })?;
    let folder = snapshot(&root, &revision.sha, &files, (options, progress)).await?;
    if revision.sha != model.revision {
        let reference = root.join("refs").join(&model.revision);
        let parent = reference.parent().unwrap_or(&root);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&reference, &revision.sha))
            .map_err(write_error(&reference))?;
    }
    Ok(folder)
}

/// Asks what a revision has.
async fn revision(
    model: &HubModel,
    server: &Arc<Server>,
    asking: (&Options, &dyn Progress),
) -> Result<Revision, SourceError> {
    let what = format!("{}@{} on the Hub", model.id, model.revision);
    let mut url =
        address(asking.0, &format!("api/models/{}/revision/{}", model.id, model.revision.replace('/', "%2F")))?;
    url.set_query(Some("blobs=true"));
    let body = ask(&what, asking, || async {
        let response = server.send(server.get(&url), &what).await?;
        let mut pieces = response.bytes_stream();
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| Failure::again(words(error)))?);
            if body.len() > LIST_LIMIT_BYTES {
                return Err(Failure::again("the list of files is longer than 16 MiB"));
            }
        }
        Ok(body)
    })
    .await?;
    serde_json::from_slice(&body).map_err(|error| SourceError::Transfer { what, reason: error.to_string() })
}

/// The files that the model needs.
fn files(
    model: &HubModel,
    revision: &Revision,
    server: &Arc<Server>,
    options: &Options,
) -> Result<Option<Vec<Remote>>, SourceError> {
    let names: Vec<&str> = revision.siblings.iter().map(|file| file.rfilename.as_str()).collect();
    let Some(needed) = choice::needed(&names) else { return Ok(None) };
    let mut files = Vec::new();
    for file in revision.siblings.iter().filter(|file| needed.contains(&file.rfilename.as_str())) {
        let name = &file.rfilename;
        let (sha256, bytes) = match &file.lfs {
            Some(large) => (Some(large.sha256.clone()), Some(large.size)),
            None => (None, file.size),
        };
        let (Some(bytes), Some(identity)) = (bytes, sha256.clone().or_else(|| file.blob_id.clone())) else {
            let reason = "the Hub doesn't say how large it is".to_owned();
            return Err(SourceError::Transfer { what: name.clone(), reason });
        };
        if !is_name(&identity) {
            let reason = "the Hub gives it no usable identity".to_owned();
            return Err(SourceError::Transfer { what: name.clone(), reason });
        }
        let url = address(options, &format!("{}/resolve/{}/{name}", model.id, revision.sha))?;
        let origin = Origin::Web { server: Arc::clone(server), url, etag: None };
        files.push(Remote { name: name.clone(), bytes, identity, sha256, origin });
    }
    Ok(Some(files))
}

fn address(options: &Options, path: &str) -> Result<Url, SourceError> {
    let endpoint = options.variable("HF_ENDPOINT").unwrap_or(ENDPOINT);
    let wrong = || SourceError::Address { text: endpoint.to_owned(), reason: "HF_ENDPOINT should be https://HOST" };
    Url::parse(&format!("{}/{path}", endpoint.trim_end_matches('/'))).map_err(|_| wrong())
}

/// The folder of a revision that is in the cache as a whole.
fn cached(root: &Path, revision: &str) -> Option<PathBuf> {
    let commit = small(&root.join("refs").join(revision)).unwrap_or_else(|| revision.to_owned());
    let folder = root.join("snapshots").join(commit);
    let there = |name: &str| folder.join(name).exists();
    // Whether all shards are there is what a build finds out.
    let has_weights = WEIGHTS.iter().any(|(single, index, ..)| there(single) || there(index));
    (there(choice::MANIFEST) || there("config.json") && has_weights).then_some(folder)
}

/// Where the Hub's own tools keep what they download.
fn cache(options: &Options) -> PathBuf {
    match options.variable("HF_HUB_CACHE") {
        Some(folder) => folder.into(),
        None => home(options).join("hub"),
    }
}

fn home(options: &Options) -> PathBuf {
    if let Some(folder) = options.variable("HF_HOME") {
        return folder.into();
    }
    let base = options.variable("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| options.variable("HOME").map(|home| Path::new(home).join(".cache")));
    base.unwrap_or_else(|| options.cache.clone()).join("huggingface")
}

fn token(options: &Options) -> Option<String> {
    if let Some(token) = options.variable("HF_TOKEN") {
        return Some(token.trim().to_owned());
    }
    if options.is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    let path = options.variable("HF_TOKEN_PATH").map_or_else(|| home(options).join("token"), PathBuf::from);
    small(&path).filter(|token| !token.is_empty())
}
