//! Builds whose process was killed, at any byte: the next one goes on from there or starts over, and ends with the same
//! bundle.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};

use bundle::Quantization;
use bundle::manifest::WEIGHTS_FILE;
use engine_build::{BuildOptions, Progress, build};

use crate::tiny::{Tiny, poke};

/// The file that lists which weights are written.
const JOURNAL: &str = "model.weights.journal";

/// A file's name and content.
type Files = Vec<(String, Vec<u8>)>;

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let read = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("a file"))
    };
    let mut files: Files = entries.map(read).collect();
    files.sort();
    files
}

fn partial(tiny: &Tiny) -> PathBuf {
    tiny.root().join("bundle.partial")
}

/// Keeps what is on disk whenever some bytes more are written.
struct Snapshots<'a> {
    folder: &'a Path,
    taken: RefCell<Vec<Files>>,
}

impl Progress for Snapshots<'_> {
    fn stage(&self, _name: &str, _total_bytes: u64) {}
    fn advance(&self, _bytes: u64) {
        self.taken.borrow_mut().push(files(self.folder));
    }
}

/// Remembers how much was there before the first byte was written.
#[derive(Default)]
struct Found {
    folder: PathBuf,
    bytes: Cell<Option<u64>>,
}

impl Progress for Found {
    fn stage(&self, _name: &str, _total_bytes: u64) {}
    fn advance(&self, _bytes: u64) {
        if self.bytes.get().is_none() {
            let journal = fs::read_to_string(self.folder.join(JOURNAL)).expect("a journal");
            let place = journal.lines().nth(1).expect("the place where it goes on");
            self.bytes.set(place.split(' ').next().and_then(|bytes| bytes.parse().ok()));
        }
    }
}

/// Builds over what a killed build left: the bundle, and the bytes that were taken up.
fn take_up(tiny: &Tiny, options: &BuildOptions, left: &Files) -> (Files, u64) {
    fs::create_dir_all(partial(tiny)).expect("a folder");
    for (name, content) in left {
        fs::write(partial(tiny).join(name), content).expect("a file");
    }
    let found = Found { folder: partial(tiny), ..Found::default() };
    build(options, &found).expect("a bundle");
    assert!(!partial(tiny).exists());
    (files(&tiny.out()), found.bytes.get().expect("a journal"))
}

fn options(tiny: &Tiny) -> BuildOptions {
    BuildOptions { quantization: Quantization::Int8, ..tiny.options() }
}

/// A checkpoint, its bundle, and what was on disk as that was built.
fn killed() -> (Tiny, Files, Vec<Files>) {
    let tiny = Tiny::new();
    let folder = partial(&tiny);
    let snapshots = Snapshots { folder: &folder, taken: RefCell::default() };
    build(&options(&tiny), &snapshots).expect("a bundle");
    let whole = files(&tiny.out());
    assert!(whole.iter().all(|(name, _)| !["lock", JOURNAL].contains(&name.as_str())));
    let taken = snapshots.taken.into_inner();
    (tiny, whole, taken)
}

#[test]
fn a_killed_build_is_taken_up_wherever_it_was() {
    let (tiny, whole, taken) = killed();
    let mut resumed = Vec::new();
    for left in &taken {
        let (bundle, found) = take_up(&tiny, &options(&tiny), left);
        assert!(bundle == whole, "after {found} bytes");
        resumed.push(found);
    }
    assert!(resumed.is_sorted() && resumed.last() > Some(&8192), "{resumed:?}");
}

#[test]
fn what_a_crash_of_the_machine_left_is_taken_up_as_far_as_it_is_right() {
    let (tiny, whole, taken) = killed();
    let last = taken.last().expect("a snapshot");
    let length = |name: &str| last.iter().find(|file| file.0 == name).map_or(0, |file| file.1.len());
    let mut found = Vec::new();
    for step in 0..40 {
        let mut left = last.clone();
        for (name, content) in &mut left {
            match name.as_str() {
                WEIGHTS_FILE => {
                    content.truncate(length(WEIGHTS_FILE) * step / 39);
                    // Blocks that never reached the disk read as zeros.
                    let from = content.len() / 2;
                    if step % 2 == 0 {
                        content[from..].fill(0);
                    }
                }
                JOURNAL => content.truncate(length(JOURNAL) * (step * 17 % 40) / 39),
                _ => {}
            }
        }
        left.push(("popular.map".to_owned(), b"of another build".to_vec()));
        let (bundle, taken_up) = take_up(&tiny, &options(&tiny), &left);
        assert!(bundle == whole, "step {step}");
        found.push(taken_up);
    }
    assert!(found.contains(&0) && found.iter().any(|&bytes| bytes > 0), "{found:?}");
}

#[test]
fn another_build_starts_over() {
    let (tiny, _, taken) = killed();
    let left = taken.last().expect("a snapshot");
    let plain = tiny.options();
    let fresh = Tiny::new();
    build(&fresh.options(), &()).expect("a bundle");
    let (bundle, found) = take_up(&tiny, &plain, left);
    assert_eq!(found, 0, "other flags");
    let weights = |files: &Files| files.iter().find(|file| file.0 == WEIGHTS_FILE).cloned();
    assert!(weights(&bundle) == weights(&files(&fresh.out())));
    tiny.edit(|tensors| poke(tensors, "transformer.wte.weight", 3, 0.25));
    let (changed, found) = take_up(&tiny, &options(&tiny), left);
    assert_eq!(found, 0, "another checkpoint");
    let (again, _) = take_up(&tiny, &options(&tiny), &Files::new());
    assert!(changed == again);
}

#[test]
fn two_builds_of_one_bundle_do_not_meet() {
    /// Builds the same bundle in the midst of a build.
    struct Other<'a> {
        tiny: &'a Tiny,
        done: Cell<bool>,
    }
    impl Progress for Other<'_> {
        fn stage(&self, _name: &str, _total_bytes: u64) {}
        fn advance(&self, _bytes: u64) {
            if !self.done.replace(true) {
                build(&options(self.tiny), &()).expect("a bundle of the other build");
            }
        }
    }
    let (tiny, whole, _) = killed();
    let other = Other { tiny: &tiny, done: Cell::new(false) };
    build(&options(&tiny), &other).expect("a bundle");
    assert!(other.done.get() && files(&tiny.out()) == whole);
}
