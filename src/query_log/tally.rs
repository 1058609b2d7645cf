//! Counts by query in bounded memory. Counts that outgrow it are sorted into a file, a *run*; in the end all runs are
//! merged. Of many runs the merge would need as many open files, so that a full set of them becomes one.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

use rustc_hash::FxHashMap;

/// Most runs; one more, and all become one.
const MAX_RUNS: usize = 64;
/// Bytes of an entry beside the query's: the map's own, with its free places, and the allocator's.
const ENTRY_BYTES: usize = 72;
/// Bytes of a length and a count in a run.
const HEAD_BYTES: usize = 12;

/// The order in which counts are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By the query's bytes.
    Query,
    /// The most frequent first, then by the query's bytes.
    Uses,
}

/// A query with how often it was used.
pub type Counted = (Box<str>, u64);

impl Order {
    fn compare(self, a: &Counted, b: &Counted) -> Ordering {
        let by_query = || a.0.cmp(&b.0);
        match self {
            Self::Query => by_query(),
            Self::Uses => b.1.cmp(&a.1).then_with(by_query),
        }
    }
}

/// See the module's documentation.
pub struct Tally {
    order: Order,
    memory_bytes: usize,
    used_bytes: usize,
    counts: FxHashMap<Box<str>, u64>,
    runs: Vec<File>,
}

impl Tally {
    /// Without counts. In the order of uses a query may be added only once.
    ///
    /// # Errors
    /// The operating system's, where there is no place for temporary files.
    pub fn new(order: Order, memory_bytes: usize) -> io::Result<Self> {
        // A folder without place is found before the log is read.
        drop(tempfile::tempfile()?);
        Ok(Self { order, memory_bytes, used_bytes: 0, counts: FxHashMap::default(), runs: Vec::new() })
    }

    /// Adds uses of a query.
    ///
    /// # Errors
    /// The operating system's.
    pub fn add(&mut self, query: &str, uses: u64) -> io::Result<()> {
        if let Some(count) = self.counts.get_mut(query) {
            *count = sum(*count, uses);
            return Ok(());
        }
        self.counts.insert(query.into(), uses);
        self.used_bytes += query.len() + ENTRY_BYTES;
        if self.used_bytes >= self.memory_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// All counts in order, each query once.
    ///
    /// # Errors
    /// The operating system's; so are those of the items.
    pub fn sorted(mut self) -> io::Result<Box<dyn Iterator<Item = io::Result<Counted>>>> {
        if self.runs.is_empty() {
            return Ok(Box::new(self.take_sorted().into_iter().map(Ok)));
        }
        self.spill()?;
        // Their memory is free before the caller needs some.
        self.counts = FxHashMap::default();
        Ok(Box::new(Merge::new(self.order, self.runs)?))
    }

    fn take_sorted(&mut self) -> Vec<Counted> {
        let mut counts: Vec<Counted> = self.counts.drain().collect();
        counts.sort_unstable_by(|a, b| self.order.compare(a, b));
        counts
    }

    fn spill(&mut self) -> io::Result<()> {
        let counts = self.take_sorted();
        self.used_bytes = 0;
        self.runs.push(write_run(counts.into_iter().map(Ok))?);
        if self.runs.len() == MAX_RUNS {
            let merged = write_run(Merge::new(self.order, std::mem::take(&mut self.runs))?)?;
            self.runs.push(merged);
        }
        Ok(())
    }
}

/// No count is larger than a `BIGINT` of SQL can tell.
fn sum(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(i64::MAX as u64)
}

/// A run is a temporary file that goes with its handle.
fn write_run(counts: impl Iterator<Item = io::Result<Counted>>) -> io::Result<File> {
    let mut out = BufWriter::with_capacity(1 << 18, tempfile::tempfile()?);
    for counted in counts {
        let (query, uses) = counted?;
        let length = u32::try_from(query.len()).map_err(|_| io::Error::other("a query has more than 4 GiB"))?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&uses.to_le_bytes())?;
        out.write_all(query.as_bytes())?;
    }
    let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// The next count of a run; `None` at its end.
fn read_run(run: &mut BufReader<File>) -> io::Result<Option<Counted>> {
    let mut head = [0; HEAD_BYTES];
    match run.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let (length, uses) = head.split_at(4);
    let length = length.iter().rev().fold(0, |all, &byte| all << 8 | usize::from(byte));
    let uses = uses.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
    let mut query = vec![0; length];
    run.read_exact(&mut query)?;
    let query = String::from_utf8(query).map_err(io::Error::other)?;
    Ok(Some((query.into_boxed_str(), uses)))
}

/// The first count of a run that isn't merged yet.
struct Head {
    order: Order,
    counted: Counted,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.compare(&self.counted, &other.counted)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

/// Runs in one order: counts of the same query become one.
struct Merge {
    order: Order,
    runs: Vec<BufReader<File>>,
    heads: BinaryHeap<Reverse<Head>>,
}

impl Merge {
    fn new(order: Order, runs: Vec<File>) -> io::Result<Self> {
        let runs: Vec<_> = runs.into_iter().map(|run| BufReader::with_capacity(1 << 17, run)).collect();
        let mut merge = Self { order, heads: BinaryHeap::with_capacity(runs.len()), runs };
        for run in 0..merge.runs.len() {
            merge.advance(run)?;
        }
        Ok(merge)
    }

    fn advance(&mut self, run: usize) -> io::Result<()> {
        if let Some(counted) = read_run(&mut self.runs[run])? {
            self.heads.push(Reverse(Head { order: self.order, counted, run }));
        }
        Ok(())
    }

    fn pop(&mut self) -> io::Result<Option<Counted>> {
        let Some(Reverse(Head { counted: (query, mut uses), run, .. })) = self.heads.pop() else { return Ok(None) };
        self.advance(run)?;
        while let Some(Reverse(next)) = self.heads.peek().filter(|next| next.0.counted.0 == query) {
            uses = sum(uses, next.counted.1);
            let run = next.run;
            self.heads.pop();
            self.advance(run)?;
        }
        Ok(Some((query, uses)))
    }
}

impl Iterator for Merge {
    type Item = io::Result<Counted>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pop().transpose()
    }
}
