//! A log of queries becomes popular queries: counts of what people asked, in bounded memory.
//!
//! | module | holds |
//! |---|---|
//! | [`rows`] | rows of TSV, CSV and JSON Lines files: a query and how often it was used |
//! | [`tally`] | counts by query, on disk as soon as they outgrow their memory |
//!
//! `deploy/popular.sql` is the same in SQL; tests compare the bytes. Deliberately absent: what the server does with the
//! file, which is the business of [`crate::popular`].

pub mod rows;
pub mod tally;

use std::borrow::Cow;
use std::io::{self, Write};
use std::num::NonZeroU64;

use self::rows::{RowError, Rows};
use self::tally::{Order, Tally};

/// What becomes of the counts.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// A query that was used less often is left out.
    pub min_uses: NonZeroU64,
    /// Most queries that are written: the most frequent ones.
    pub max_queries: usize,
    /// Bytes of counts in memory.
    pub memory_bytes: usize,
}

/// What a fold has read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Rows of the log.
    pub rows: u64,
    /// Rows without a query: empty, absent, or not UTF-8.
    pub without_query: u64,
    /// Different queries.
    pub queries: u64,
    /// Queries that were written.
    pub written: usize,
}

/// Why a log can't be folded.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// A row can't be read.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The counts can't be kept on disk, or the result can't be written.
    #[error("{0}; temporary files are in the folder that TMPDIR names")]
    Disk(#[from] io::Error),
}

/// Counts the queries of all logs, and writes lines of query, tab, count: the most frequent first, and queries of the
/// same count in the order of their bytes.
///
/// # Errors
/// See [`FoldError`].
pub fn fold(logs: Vec<Rows>, selection: Selection, out: &mut impl Write) -> Result<Folded, FoldError> {
    let mut folded = Folded::default();
    let mut by_query = Tally::new(Order::Query, selection.memory_bytes)?;
    for mut log in logs {
        while let Some((query, uses)) = log.next_row()? {
            folded.rows += 1;
            match query.map(normal) {
                Some(query) if !query.is_empty() => by_query.add(&query, uses)?,
                _ => folded.without_query += 1,
            }
        }
    }
    // The memory of the first tally is free by now: what it sums comes from the disk.
    let mut by_uses = Tally::new(Order::Uses, selection.memory_bytes)?;
    for counted in by_query.sorted()? {
        let (query, uses) = counted?;
        folded.queries += 1;
        if uses >= selection.min_uses.get() {
            by_uses.add(&query, uses)?;
        }
    }
    for counted in by_uses.sorted()?.take(selection.max_queries) {
        let (query, uses) = counted?;
        writeln!(out, "{query}\t{uses}")?;
        folded.written += 1;
    }
    out.flush()?;
    Ok(folded)
}

/// A query as it is counted: on one line, its words one space apart, without spaces around it.
fn normal(query: &str) -> Cow<'_, str> {
    let is_gap = |character: char| character.is_whitespace() || character.is_control();
    let words = || query.split(is_gap).filter(|word| !word.is_empty());
    // Most queries are in this form already.
    let length: usize = words().map(|word| word.len() + 1).sum();
    if length == query.len() + 1 && !query.contains(|character| is_gap(character) && character != ' ') {
        return Cow::Borrowed(query);
    }
    Cow::Owned(words().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::rows::{Columns, Format};
    use super::*;

    #[test]
    fn queries_are_counted_in_one_form() {
        for (query, form) in [
            ("heat pump", "heat pump"),
            ("  heat \t\r\n pump\u{85}", "heat pump"),
            ("heat\u{a0}pump", "heat pump"),
            ("heat\tpump", "heat pump"),
            ("\u{3000}\u{7}", ""),
            ("", ""),
            ("näher \"so\"", "näher \"so\""),
        ] {
            assert_eq!(normal(query), form, "{query:?}");
        }
    }

    /// The bytes that a fold writes, and what it says.
    fn folded(log: &str, memory_bytes: usize, min_uses: u64, max_queries: usize) -> (String, Folded) {
        let columns = Columns::new(Format::Tsv, Some("1"), Some("2")).unwrap();
        let rows = Rows::new("log".into(), Box::new(io::Cursor::new(log.to_owned())), &columns).unwrap();
        let selection = Selection { min_uses: NonZeroU64::new(min_uses).unwrap(), max_queries, memory_bytes };
        let mut out = Vec::new();
        let folded = fold(vec![rows], selection, &mut out).unwrap();
        (String::from_utf8(out).unwrap(), folded)
    }

    #[test]
    fn the_most_frequent_come_first_and_memory_changes_nothing() {
        use rand::{Rng, SeedableRng, rngs::StdRng};
        let mut rng = StdRng::seed_from_u64(30);
        let mut log = String::from(" \t3\n");
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        for _ in 0..5000 {
            let (query, uses) = (format!("query {}", rng.random_range(0..700)), rng.random_range(0..4));
            log += &format!("{query}\t{uses}\n");
            *counts.entry(query).or_default() += uses;
        }
        let queries = counts.len() as u64;
        let mut lines: Vec<(String, u64)> = counts.into_iter().filter(|&(_, uses)| uses >= 9).collect();
        lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        assert!(lines.len() > 150, "{}", lines.len());
        lines.truncate(150);
        let expected: String = lines.iter().map(|(query, uses)| format!("{query}\t{uses}\n")).collect();
        // With 1 byte every row is a run of its own, so that runs are merged in several rounds.
        for memory_bytes in [1, 1000, 20_000, 1 << 20] {
            let (written, folded) = folded(&log, memory_bytes, 9, 150);
            assert_eq!(written, expected, "{memory_bytes} bytes");
            assert_eq!(folded, Folded { rows: 5001, without_query: 1, queries, written: 150 });
        }
    }
}
