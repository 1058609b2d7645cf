//! A file elsewhere, and reading a range of it once. Attempts and their order are the business of `transfer`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::{GetOptions, ObjectStore};
use reqwest::header::{ETAG, HeaderMap, RANGE, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use url::Url;

use crate::error::SourceError;
use crate::options::Options;

/// A file elsewhere.
pub(crate) struct Remote {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Names the content: another content has another one.
    pub(crate) identity: String,
    /// SHA-256 in hexadecimal digits, if the source gives one.
    pub(crate) sha256: Option<String>,
    pub(crate) origin: Origin,
}

/// Where a file's bytes are.
pub(crate) enum Origin {
    /// A web server, or the Hub.
    Web { server: Arc<Server>, url: Url, etag: Option<String> },
    /// An object of a store.
    Object { store: Arc<dyn ObjectStore>, path: object_store::path::Path, etag: Option<String> },
}

/// Why an attempt brought nothing.
pub(crate) enum Failure {
    /// Another attempt may help, after a time that the other side may have named.
    Again { reason: String, after: Option<Duration> },
    /// No other attempt would.
    Final(SourceError),
}

impl Failure {
    pub(crate) fn again(reason: impl ToString) -> Self {
        Failure::Again { reason: reason.to_string(), after: None }
    }
}

/// The bytes of a range as they come.
pub(crate) type Stream = BoxStream<'static, Result<Bytes, String>>;

impl Remote {
    /// Reads a range.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Stream, Failure> {
        match &self.origin {
            Origin::Web { server, url, etag } => {
                let whole = range == (0..self.bytes);
                let mut request = server.get(url);
                if !whole {
                    request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
                }
                let response = server.send(request, &self.name).await?;
                if !whole && response.status() != StatusCode::PARTIAL_CONTENT {
                    return Err(Failure::again(
                        "the server gives whole files only, and files of this size come in parts",
                    ));
                }
                if etag.is_some() && header(response.headers(), ETAG.as_str()) != *etag {
                    return Err(Failure::again("the file was changed while it was downloaded"));
                }
                Ok(response.bytes_stream().map(|piece| piece.map_err(words)).boxed())
            }
            Origin::Object { store, path, etag } => {
                let options = GetOptions { range: Some(range.into()), if_match: etag.clone(), ..GetOptions::default() };
                let found = store.get_opts(path, options).await.map_err(|error| of_store(&self.name, &error))?;
                Ok(found.into_stream().map(|piece| piece.map_err(|error| error.to_string())).boxed())
            }
        }
    }
}

/// The failure that a store's error stands for.
pub(crate) fn of_store(what: &str, error: &object_store::Error) -> Failure {
    use object_store::Error;
    let denied = |status| {
        let hint = "set the credentials of the store, such as AWS_ACCESS_KEY_ID or a role";
        Failure::Final(SourceError::Denied { what: what.to_owned(), status, hint })
    };
    match error {
        Error::NotFound { .. } => Failure::Final(SourceError::Absent { what: what.to_owned() }),
        Error::PermissionDenied { .. } => denied(403),
        Error::Unauthenticated { .. } => denied(401),
        other => Failure::again(other),
    }
}

/// A web server, with the token that it is asked with.
pub(crate) struct Server {
    client: Client,
    token: Option<String>,
    hint: &'static str,
}

impl Server {
    pub(crate) fn new(options: &Options, token: Option<String>, hint: &'static str) -> Result<Arc<Self>, SourceError> {
        let client = Client::builder()
            .user_agent(concat!("foretype/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.patience)
            .build()
            .map_err(|error| SourceError::Transfer { what: "anything".to_owned(), reason: words(error) })?;
        Ok(Arc::new(Self { client, token, hint }))
    }

    pub(crate) fn get(&self, url: &Url) -> RequestBuilder {
        // The client drops the token where a redirect leads to another host.
        self.authorized(self.client.get(url.clone()))
    }

    pub(crate) fn head(&self, url: &Url) -> RequestBuilder {
        self.authorized(self.client.head(url.clone()))
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request; `what` is for errors.
    pub(crate) async fn send(&self, request: RequestBuilder, what: &str) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| Failure::again(words(error)))?;
        let status = response.status();
        match status.as_u16() {
            200 | 206 => Ok(response),
            401 | 403 => {
                let what = what.to_owned();
                Err(Failure::Final(SourceError::Denied { what, status: status.as_u16(), hint: self.hint }))
            }
            404 | 410 => Err(Failure::Final(SourceError::Absent { what: what.to_owned() })),
            408 | 425 | 429 | 500..=599 => {
                let seconds = header(response.headers(), RETRY_AFTER.as_str()).and_then(|value| value.parse().ok());
                let after = seconds.map(Duration::from_secs);
                Err(Failure::Again { reason: format!("the server answers {status}"), after })
            }
            _ => {
                let reason = format!("the server answers {status}");
                Err(Failure::Final(SourceError::Transfer { what: what.to_owned(), reason }))
            }
        }
    }
}

pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// An error with what it is due to, without the address, which may hold a signature.
pub(crate) fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
