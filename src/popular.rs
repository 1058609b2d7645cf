//! Popular queries of a bundle, or of a file of people's.

use std::path::Path;

use bundle::extras::{self, ExtrasError, POPULAR_COUNTS_FILE, POPULAR_FILE, PopularFiles};
use completion::popular::{PopularError, PopularQueries};

/// Why popular queries can't be read.
#[derive(Debug, thiserror::Error)]
pub enum PopularFileError {
    /// A file of the bundle can't be read.
    #[error("{path} can't be read: {source}; build the bundle again")]
    Read {
        /// The file.
        path: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The files of the bundle are broken.
    #[error("{path}: {source}; build the bundle again")]
    Broken {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: PopularError,
    },
    /// A file of queries with their counts can't be used.
    #[error(transparent)]
    Source(#[from] ExtrasError),
}

/// Reads the popular queries of a bundle; `None` if it has none.
///
/// # Errors
/// If the files can't be read or don't belong together.
pub fn open(bundle: &Path) -> Result<Option<PopularQueries>, PopularFileError> {
    let map = bundle.join(POPULAR_FILE);
    if !map.exists() {
        return Ok(None);
    }
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| PopularFileError::Read { path: path.display().to_string(), source })
    };
    let counts = read(&bundle.join(POPULAR_COUNTS_FILE))?;
    let broken = |source| PopularFileError::Broken { path: map.display().to_string(), source };
    PopularQueries::new(read(&map)?, &counts).map(Some).map_err(broken)
}

/// Reads popular queries from a file of query, tab, count lines.
///
/// # Errors
/// The reader's, which names the line.
pub fn read(file: &Path) -> Result<PopularQueries, PopularFileError> {
    parse(file, &extras::read_text(file)?)
}

/// As [`read`], of a text; errors name `file`.
///
/// # Errors
/// The reader's, which names the line.
pub fn parse(file: &Path, text: &str) -> Result<PopularQueries, PopularFileError> {
    let PopularFiles { map, counts } = PopularFiles::new(&extras::parse_popular(file, text)?)?;
    let broken = |source| PopularFileError::Broken { path: file.display().to_string(), source };
    PopularQueries::new(map, &counts).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_bundle_are_read_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open(folder.path()).unwrap().is_none());
        let source = folder.path().join("popular.tsv");
        std::fs::write(&source, "heat pump\t4\nheat sink\t6\n").unwrap();
        assert!(read(&source).is_ok());
        let files = PopularFiles::new(&extras::read_popular(&source).unwrap()).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write(POPULAR_FILE, &files.map);
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("popular.counts can't be read") && error.contains("build the bundle again"), "{error}");
        write(POPULAR_COUNTS_FILE, &files.counts);
        assert!(open(folder.path()).unwrap().is_some());
        write(POPULAR_COUNTS_FILE, &files.counts[1..]);
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("8 bytes of counts for each of the 2 popular queries; found 15"), "{error}");
        write(POPULAR_FILE, b"nonsense");
        assert!(open(folder.path()).unwrap_err().to_string().contains("the map of popular queries can't be read"));
    }
}
