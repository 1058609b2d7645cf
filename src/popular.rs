//! Popular queries: a finite-state map from query to count, and the most frequent ones that begin with a typed text.

use std::collections::BTreeMap;
use std::path::Path;

use bundle::extras::{POPULAR_FILE, popular_map};
use fst::automaton::Str;
use fst::{Automaton, IntoStreamer, Map, Streamer};

/// Popular queries with their counts.
pub struct Popular {
    map: Map<Vec<u8>>,
}

/// Why popular queries can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct PopularError {
    path: String,
    reason: String,
}

impl Popular {
    /// Reads `popular.fst` of a bundle; `None` if it has none.
    ///
    /// # Errors
    /// If the file can't be read or is no such map.
    pub fn open(bundle: &Path) -> Result<Option<Self>, PopularError> {
        let path = bundle.join(POPULAR_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let wrong = |reason: String| PopularError { path: path.display().to_string(), reason };
        let bytes = std::fs::read(&path).map_err(|e| wrong(e.to_string()))?;
        let map = Map::new(bytes).map_err(|e| wrong(e.to_string()))?;
        map.as_fst().verify().map_err(|e| wrong(e.to_string()))?;
        Ok(Some(Self { map }))
    }

    /// From queries with their counts.
    ///
    /// # Errors
    /// The map builder's; none for keys that come sorted.
    pub fn from_counts(counts: BTreeMap<String, u64>) -> Result<Self, PopularError> {
        let wrong = |reason: String| PopularError { path: "popular queries".into(), reason };
        let bytes = popular_map(counts).map_err(|e| wrong(e.to_string()))?;
        Ok(Self { map: Map::new(bytes).map_err(|e| wrong(e.to_string()))? })
    }

    /// The `count` most frequent queries that begin with `typed` and are longer, each with its share, 0 to 1, of all
    /// queries that begin with it. All of these are read: for texts of one or two characters over millions of queries
    /// that takes milliseconds.
    pub fn best(&self, typed: &str, count: usize) -> Vec<(String, f64)> {
        let mut stream = self.map.search(Str::new(typed).starts_with()).into_stream();
        // Counts may be as large as they like: their sum needn't fit.
        let (mut total, mut best) = (0u128, std::collections::BinaryHeap::new());
        while let Some((query, frequency)) = stream.next() {
            total += u128::from(frequency);
            let more = query.get(typed.len()..).is_some_and(|rest| rest.iter().any(|b| !b.is_ascii_whitespace()));
            if more {
                // The heap's greatest is the worst kept: fewest, then last in the alphabet.
                best.push((std::cmp::Reverse(frequency), query.to_vec()));
                if best.len() > count {
                    best.pop();
                }
            }
        }
        let found = best.into_sorted_vec().into_iter();
        found.map(|(n, q)| (String::from_utf8_lossy(&q).into_owned(), n.0 as f64 / total.max(1) as f64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_come_first_with_their_share() {
        let counts = [("heat", 5), ("heat pump", 4), ("heat sink", 6), ("heat exchanger", 1), ("lens", 9)];
        let popular = Popular::from_counts(counts.map(|(q, n)| (q.to_owned(), n)).into()).unwrap();
        let best = popular.best("heat", 2);
        assert_eq!(best, [("heat sink".to_owned(), 6.0 / 16.0), ("heat pump".to_owned(), 4.0 / 16.0)]);
        assert!(popular.best("x", 2).is_empty());
        let huge = Popular::from_counts([("a b", u64::MAX), ("a c", u64::MAX)].map(|(q, n)| (q.to_owned(), n)).into());
        assert_eq!(huge.unwrap().best("a", 1)[0].1, 0.5);
        let folder = tempfile::tempdir().unwrap();
        assert!(Popular::open(folder.path()).unwrap().is_none());
        std::fs::write(folder.path().join(POPULAR_FILE), popular.map.as_fst().as_bytes()).unwrap();
        assert_eq!(Popular::open(folder.path()).unwrap().unwrap().best("heat", 2), best);
        std::fs::write(folder.path().join(POPULAR_FILE), b"nonsense").unwrap();
        assert!(Popular::open(folder.path()).is_err());
    }
}
