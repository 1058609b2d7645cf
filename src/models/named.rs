//! What `--model` names: a folder of this machine, or a model elsewhere that is downloaded first. A path that exists is
//! a folder, whatever else the text could mean.

use std::path::Path;

#[cfg(feature = "remote")]
use sources::{Options, Progress, Source, SourceError};

use super::folder::{self, IntakeError, ModelFolder};

/// The model that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A folder of this machine.
    Folder(ModelFolder),
    /// A model elsewhere.
    #[cfg(feature = "remote")]
    Elsewhere(Source),
}

/// Says what a text names, without a look at anything but this machine.
///
/// # Errors
/// There is neither such a folder nor such an address.
pub fn find(model: &Path) -> Result<Named, IntakeError> {
    if let Some(text) = model.to_str().filter(|_| !model.exists())
        && let Some(named) = elsewhere(text)?
    {
        return Ok(named);
    }
    folder::identify(model).map(Named::Folder)
}

#[cfg(feature = "remote")]
fn elsewhere(text: &str) -> Result<Option<Named>, IntakeError> {
    Ok(Source::parse(text)?.map(Named::Elsewhere))
}

#[cfg(not(feature = "remote"))]
fn elsewhere(text: &str) -> Result<Option<Named>, IntakeError> {
    let is_id = text.split('/').count() == 2 && !text.starts_with(['/', '.', '~']);
    if is_id || text.contains("://") { Err(IntakeError::NoDownloads(text.to_owned())) } else { Ok(None) }
}

/// The folder of a source's files, downloaded as far as needed. Those of stores and web servers are kept in the folder
/// `downloads` of the cache, those of the Hub in the cache of its own tools.
///
/// # Errors
/// The download failed.
#[cfg(feature = "remote")]
pub fn download(source: &Source, cache: &Path, progress: &dyn Progress) -> Result<ModelFolder, IntakeError> {
    tracing::info!(%source, "looking for the model's files");
    let fetched = sources::fetch(source, &Options::new(cache.join("downloads")), progress);
    let folder = fetched.map_err(|error| not_there(source, error))?;
    tracing::info!(folder = %folder.display(), "the model's files are here");
    folder::identify(&folder)
}

/// A mistyped path of a folder looks like a name of the Hub, so that its error names both.
#[cfg(feature = "remote")]
fn not_there(source: &Source, error: SourceError) -> IntakeError {
    let is_unknown = matches!(
        error,
        SourceError::Absent { .. }
            | SourceError::Denied { .. }
            | SourceError::Transfer { .. }
            | SourceError::Offline(_)
    );
    match source {
        Source::Hub(model) if is_unknown => IntakeError::NeitherFolderNorHub { id: model.id.clone(), error },
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_exists_is_no_address() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert!(matches!(find(folder.path()), Ok(Named::Folder(ModelFolder::Checkpoint(_)))));
        // Cargo runs tests in the folder of the crate.
        assert!(matches!(find(Path::new("src/models")), Err(IntakeError::Neither { .. })));
        assert!(matches!(find(Path::new("/nowhere/x")), Err(IntakeError::NoFolder(_))));
    }

    #[cfg(feature = "remote")]
    #[test]
    fn names_of_the_hub_and_addresses_lie_elsewhere() {
        for text in ["org/tiny", "org/tiny@v1", "s3://bucket/a", "https://host/a"] {
            assert!(matches!(find(Path::new(text)), Ok(Named::Elsewhere(_))), "{text}");
        }
        assert!(find(Path::new("ftp://host/a")).unwrap_err().to_string().contains("should begin with s3://"));
    }

    #[cfg(feature = "remote")]
    #[test]
    fn a_mistyped_folder_is_told_from_a_model_of_the_hub() {
        let source = Source::parse("models/dmeo").unwrap().unwrap();
        let error = not_there(&source, SourceError::Absent { what: "model models/dmeo@main".into() }).to_string();
        let expected = "there is no model models/dmeo@main; compare the name and the revision. There is no folder \
                        models/dmeo on this machine either";
        assert_eq!(error, expected);
        let full = SourceError::Disk { folder: "/x".into(), needed_mib: 2, free_mib: 1 };
        assert!(matches!(not_there(&source, full), IntakeError::Source(SourceError::Disk { .. })));
    }

    #[cfg(not(feature = "remote"))]
    #[test]
    fn a_build_without_downloads_says_so() {
        for text in ["org/tiny@v1", "s3://bucket/a"] {
            assert!(find(Path::new(text)).unwrap_err().to_string().contains("feature `remote`"), "{text}");
        }
    }
}
