//! The optional parts of a bundle: a blocklist, popular queries with their counts, and a template.
//!
//! This module parses the files and names the line of an error. The server decides what the parts do to a completion.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::template::{Template, TemplateError};

/// The blocklist in a bundle: one term a line, as people wrote it.
pub const BLOCKLIST_FILE: &str = "blocklist.txt";
/// The probabilities of typing errors in a bundle and beside a checkpoint: see `completion::typing::channel::Channel`.
pub const TYPING_FILE: &str = "typing.json";
/// The popular queries in a bundle: a finite-state map from query to its place in the alphabet, from 0.
pub const POPULAR_FILE: &str = "popular.fst";
/// The counts of the popular queries in a bundle, in the order of their places: 8 bytes each, the lowest first.
pub const POPULAR_COUNTS_FILE: &str = "popular.counts";
/// File name of popular queries beside a checkpoint: lines of query, tab, count.
pub const POPULAR_SOURCE: &str = "popular.tsv";

/// The text around every input in a bundle and beside a checkpoint: see [`Template`].
pub const TEMPLATE_FILE: &str = "template.txt";

/// Why a blocklist, popular queries or a template can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ExtrasError {
    /// The file can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A line of popular queries isn't query, tab, count.
    #[error(
        "{}, line {line}: expected a query on one line without double spaces or spaces around it, a tab and a count \
         from 1, such as \"heat pump<TAB>12\"; found {found:?}",
        path.display()
    )]
    Popular {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The text of the line.
        found: String,
    },
    /// A line of typing pairs isn't typed text, tab, accepted query.
    #[error(
        "{}, line {line}: expected what was typed, a tab and the query that was accepted, such as \"heta pu<TAB>heat \
         pump\"; found {found:?}",
        path.display()
    )]
    Pair {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The text of the line.
        found: String,
    },
    /// The file isn't UTF-8.
    #[error("{}, line {line}: this isn't UTF-8; save the file in that encoding", path.display())]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A `*` somewhere else than at a term's end, or a term without letters and digits.
    #[error(
        "{}, line {line}: a term needs a letter or digit, and a * may only end it; found {found:?}",
        path.display()
    )]
    Blocklist {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The text of the line.
        found: String,
    },
    /// The text is no template.
    #[error("{}: {source}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong with the text.
        source: TemplateError,
    },
    /// The map can't be built.
    #[error("the map of popular queries can't be built: {0}")]
    Map(#[from] fst::Error),
}

/// Reads lines of query, tab, count. Counts of the same query add up.
///
/// # Errors
/// See [`ExtrasError`].
pub fn read_popular(path: &Path) -> Result<BTreeMap<String, u64>, ExtrasError> {
    parse_popular(path, &read_text(path)?)
}

/// As [`read_popular`], of a text; errors name `path`.
///
/// # Errors
/// See [`ExtrasError`].
pub fn parse_popular(path: &Path, text: &str) -> Result<BTreeMap<String, u64>, ExtrasError> {
    let mut counts = BTreeMap::<String, u64>::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let parsed = line.rsplit_once('\t').and_then(|(query, count)| Some((query, count.trim().parse::<u64>().ok()?)));
        let wrong = || ExtrasError::Popular { path: path.to_owned(), line: index + 1, found: line.to_owned() };
        let (query, count) = parsed.filter(|&(query, count)| is_query(query) && count > 0).ok_or_else(wrong)?;
        let total = counts.entry(query.to_owned()).or_default();
        *total = total.saturating_add(count);
    }
    Ok(counts)
}

/// Reads lines of typed text, tab, accepted query.
///
/// # Errors
/// See [`ExtrasError`].
pub fn read_typing_pairs(path: &Path) -> Result<Vec<(String, String)>, ExtrasError> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty());
    let pairs = lines.map(|(index, line)| {
        let pair = line.split_once('\t').filter(|(typed, accepted)| !typed.is_empty() && !accepted.contains('\t'));
        let pair = pair.filter(|(_, accepted)| !accepted.trim().is_empty());
        let wrong = || ExtrasError::Pair { path: path.to_owned(), line: index + 1, found: line.to_owned() };
        pair.map(|(typed, accepted)| (typed.to_owned(), accepted.to_owned())).ok_or_else(wrong)
    });
    pairs.collect()
}

/// Whether a popular query is one that a server could suggest.
fn is_query(query: &str) -> bool {
    !query.is_empty() && query.trim() == query && !query.contains("  ") && !query.contains(char::is_control)
}

/// Popular queries as they are stored.
#[derive(Clone, Debug)]
pub struct PopularFiles {
    /// See [`POPULAR_FILE`].
    pub map: Vec<u8>,
    /// See [`POPULAR_COUNTS_FILE`].
    pub counts: Vec<u8>,
}

impl PopularFiles {
    /// From queries with their counts.
    ///
    /// # Errors
    /// The map builder's; none for keys that come sorted.
    pub fn new(queries: &BTreeMap<String, u64>) -> Result<Self, ExtrasError> {
        let map = fst::Map::from_iter(queries.keys().zip(0..))?;
        let counts = queries.values().flat_map(|count| count.to_le_bytes()).collect();
        Ok(Self { map: map.into_fst().into_inner(), counts })
    }
}

/// Reads a blocklist: its terms, without comments (`#`) and empty lines. A `*` at a term's end stands for any end of
/// the word.
///
/// # Errors
/// See [`ExtrasError`].
pub fn read_blocklist(path: &Path) -> Result<Vec<String>, ExtrasError> {
    parse_blocklist(path, &read_text(path)?)
}

/// As [`read_blocklist`], of a text; errors name `path`.
///
/// # Errors
/// See [`ExtrasError`].
pub fn parse_blocklist(path: &Path, text: &str) -> Result<Vec<String>, ExtrasError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index, line.trim()));
    let terms = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let checked = terms.map(|(index, line)| match line.strip_suffix('*').unwrap_or(line) {
        stem if stem.contains('*') || !stem.contains(char::is_alphanumeric) => {
            Err(ExtrasError::Blocklist { path: path.to_owned(), line: index + 1, found: line.to_owned() })
        }
        _ => Ok(line.to_owned()),
    });
    checked.collect()
}

/// Reads a template.
///
/// # Errors
/// See [`ExtrasError`].
pub fn read_template(path: &Path) -> Result<Template, ExtrasError> {
    parse_template(path, &read_text(path)?)
}

/// As [`read_template`], of a text; errors name `path`. A line break at the end ends the file and isn't part of the
/// template.
///
/// # Errors
/// See [`ExtrasError`].
pub fn parse_template(path: &Path, text: &str) -> Result<Template, ExtrasError> {
    let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    Template::new(text).map_err(|source| ExtrasError::Template { path: path.to_owned(), source })
}

/// Reads a file of people's: UTF-8, with a byte order mark or without one.
///
/// # Errors
/// [`ExtrasError::Read`] or [`ExtrasError::Encoding`], which names the line.
pub fn read_text(path: &Path) -> Result<String, ExtrasError> {
    let bytes = std::fs::read(path).map_err(|source| ExtrasError::Read { path: path.to_owned(), source })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        ExtrasError::Encoding { path: path.to_owned(), line }
    })?;
    // Some editors begin a file with a byte order mark.
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    #[test]
    fn popular_queries_are_read_and_wrong_lines_named() {
        let (_folder, path) = file("heat pump\t12\nlens\t3\n\nheat pump\t1\n");
        let counts = read_popular(&path).unwrap();
        assert_eq!(counts.iter().map(|(q, n)| (q.as_str(), *n)).collect::<Vec<_>>(), [("heat pump", 13), ("lens", 3)]);
        let files = PopularFiles::new(&counts).unwrap();
        let map = fst::Map::new(files.map).unwrap();
        assert_eq!((map.get("heat pump"), map.get("lens")), (Some(0), Some(1)));
        assert_eq!(files.counts, [13u64, 3].map(u64::to_le_bytes).concat());
        let wrong = ["heat pump 12", "heat pump\tmany", "\t7", "b\t-1", "b\t0", "heat  pump\t1", " b\t1", "b\u{7}\t1"];
        for wrong in wrong.map(|line| format!("a\t1\n{line}")) {
            let (_folder, path) = file(&wrong);
            let error = read_popular(&path).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
        let (_folder, path) = file("\u{feff}heat pump\t12\n");
        assert_eq!(read_popular(&path).unwrap().into_keys().collect::<Vec<_>>(), ["heat pump"]);
        let (_folder, path) = file("a b\t18446744073709551615\na b\t18446744073709551615\n");
        assert_eq!(read_popular(&path).unwrap()["a b"], u64::MAX);
        std::fs::write(&path, b"a\t1\nb\t1\n\xff\t1\n").unwrap();
        assert!(read_popular(&path).unwrap_err().to_string().contains("line 3: this isn't UTF-8"));
        assert!(read_popular(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere can't be read"));
    }

    #[test]
    fn templates_are_read_without_the_line_break_at_the_end() {
        for end in ["", "\n", "\r\n"] {
            let (_folder, path) = file(&format!("q: a\nq: {{input}}{end}"));
            assert_eq!(read_template(&path).unwrap().around("b"), "q: a\nq: b");
        }
        let (_folder, path) = file("q: \n");
        let error = read_template(&path).unwrap_err().to_string();
        assert!(error.contains("file: a template has {input} once"), "{error}");
    }

    #[test]
    fn blocklists_are_read_and_wrong_lines_named() {
        let (_folder, path) = file("# never\n\n  Bad Word \nworse*\n");
        assert_eq!(read_blocklist(&path).unwrap(), ["Bad Word", "worse*"]);
        let (_folder, path) = file("\u{feff}first\nsecond\n");
        assert_eq!(read_blocklist(&path).unwrap(), ["first", "second"]);
        std::fs::write(&path, b"ok\n\xff\n").unwrap();
        assert!(read_blocklist(&path).unwrap_err().to_string().contains("line 2: this isn't UTF-8"));
        for wrong in ["ok\n*", "ok\na*b", "ok\n-"] {
            let (_folder, path) = file(wrong);
            assert!(read_blocklist(&path).unwrap_err().to_string().contains("line 2"));
        }
    }
}
