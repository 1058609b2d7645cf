//! Which parts of a file are there: one line for each, behind a line that names the file and the size of its parts.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// The parts of a file that is being downloaded.
pub(crate) struct Journal {
    file: File,
    done: BTreeSet<u64>,
}

impl Journal {
    /// Opens the journal of the file that `identity` names. That of another file is begun anew.
    pub(crate) fn open(path: &Path, identity: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut text = String::new();
        let is_text = file.read_to_string(&mut text).is_ok();
        if let Some((first, lines)) = text.split_once('\n')
            && is_text
            && first == identity
        {
            // A line that a kill cut short has no end.
            let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
            let done = whole.lines().filter_map(|line| line.parse().ok()).collect();
            return Ok(Self { file, done });
        }
        file.set_len(0)?;
        let mut file = OpenOptions::new().append(true).open(path)?;
        writeln!(file, "{identity}")?;
        Ok(Self { file, done: BTreeSet::new() })
    }

    pub(crate) fn has(&self, part: u64) -> bool {
        self.done.contains(&part)
    }

    /// Notes a part that has been written.
    pub(crate) fn add(&mut self, part: u64) -> io::Result<()> {
        self.done.insert(part);
        // In one piece, behind whatever a kill left.
        self.file.write_all(format!("\n{part}\n").as_bytes())
    }

    /// How many parts are there without a gap, from the first.
    pub(crate) fn front(&self) -> u64 {
        (0..).zip(&self.done).take_while(|(index, part)| index == *part).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_remembered_for_the_same_file_only_and_cut_lines_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, "a 100").expect("opened");
        for part in [1, 0, 7] {
            journal.add(part).expect("added");
        }
        assert_eq!(journal.front(), 2);
        let mut text = std::fs::read_to_string(&path).expect("read");
        text.push_str("\n1");
        std::fs::write(&path, text).expect("written");
        let mut again = Journal::open(&path, "a 100").expect("opened");
        assert_eq!(again.done.iter().copied().collect::<Vec<_>>(), [0, 1, 7]);
        again.add(12).expect("added");
        let third = Journal::open(&path, "a 100").expect("opened");
        assert_eq!(third.done.iter().copied().collect::<Vec<_>>(), [0, 1, 7, 12]);
        assert!(Journal::open(&path, "b 100").expect("opened").done.is_empty());
        assert!(Journal::open(&path, "a 100").expect("opened").done.is_empty());
    }
}
