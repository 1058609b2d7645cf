//! What `--model` names: a source elsewhere, or a path.

use url::Url;

use crate::error::SourceError;

/// A model that lies elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `org/name[@revision]` on the Hugging Face Hub.
    Hub(HubModel),
    /// `s3://`, `gs://` or `az://`: a folder of a store.
    Store(Url),
    /// `https://` or `http://`: a folder of a web server.
    Web(Url),
}

/// A model on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `org/name`
    pub id: String,
    /// A branch, tag or commit.
    pub revision: String,
}

impl Source {
    /// What a text names. `None` for the path of a folder; whoever asks has looked whether there is one.
    ///
    /// # Errors
    /// [`SourceError::Address`] for what can only be an address, and is wrong.
    pub fn parse(text: &str) -> Result<Option<Self>, SourceError> {
        let wrong = |reason| SourceError::Address { text: text.to_owned(), reason };
        if let Some((scheme, _)) = text.split_once("://") {
            let url = Url::parse(text).map_err(|_| wrong("it can't be read as a URL"))?;
            if url.host_str().is_none_or(str::is_empty) {
                return Err(wrong("it has no host or bucket"));
            }
            return match scheme {
                "s3" | "gs" | "az" => Ok(Some(Source::Store(url))),
                "https" | "http" if url.query().is_none() => Ok(Some(Source::Web(url))),
                "https" | "http" => Err(wrong("it has a query, and should be the folder that the files are in")),
                _ => Err(wrong("it should begin with s3://, gs://, az://, https:// or http://")),
            };
        }
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_id = id.split('/').count() == 2 && id.split('/').all(is_name);
        if !is_id {
            return Ok(None);
        }
        if !revision.split('/').all(is_name) {
            return Err(wrong("the revision behind @ should be a branch, a tag or a commit"));
        }
        Ok(Some(Source::Hub(HubModel { id: id.to_owned(), revision: revision.to_owned() })))
    }
}

/// Whether a part of a name is one that the Hub gives: it can't leave a folder either.
pub(crate) fn is_name(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !part.is_empty() && part.len() <= 200 && part.bytes().all(plain) && !part.starts_with(['.', '-'])
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Hub(model) => write!(f, "{}@{}", model.id, model.revision),
            Source::Store(url) | Source::Web(url) => write!(f, "{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_and_addresses_are_told_from_paths() {
        let hub = |text: &str| match Source::parse(text) {
            Ok(Some(Source::Hub(model))) => (model.id, model.revision),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(hub("HuggingFaceTB/SmolLM2-135M"), ("HuggingFaceTB/SmolLM2-135M".into(), "main".into()));
        assert_eq!(hub("a/b@v1.0").1, "v1.0");
        assert_eq!(hub("a/b@refs/pr/3").1, "refs/pr/3");
        for path in ["model", "./a/b", "../b", "a/b/c", "/opt/ml/model", "a/", "a/../b", "a b/c", "~/b"] {
            assert_eq!(Source::parse(path).expect(path), None, "{path}");
        }
        for address in ["s3://bucket/a/b", "gs://bucket", "az://container/a", "https://host/a/", "http://127.0.0.1:1/"]
        {
            assert!(Source::parse(address).expect(address).is_some(), "{address}");
        }
        for wrong in ["ftp://a/b", "s3://", "s3:///a", "https://h/a?b=c", "a/b@", "a/b@../c", "https://[::1/"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }
}
