//! Copies of single positions, merged into runs of positions. Pure.
//!
//! A run is one call of the driver, whatever its length, because lanes and pages have the same layout: positions that
//! follow each other lie side by side in both.

use scheduler::backend::{KvCopy, Lane, Page};

/// Copies of positions that follow each other, in a lane as in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) is_load: bool,
    pub(super) lane: usize,
    /// The first position in the lane.
    pub(super) position: usize,
    /// The first page.
    pub(super) page: usize,
    /// Number of positions.
    pub(super) len: usize,
}

impl Run {
    fn of(copy: &KvCopy) -> Self {
        let (Lane(lane), position, Page(page)) = copy.endpoints();
        Self { is_load: matches!(copy, KvCopy::Load { .. }), lane, position, page, len: 1 }
    }

    /// What a copy of one position writes.
    fn target(&self) -> (usize, usize) {
        if self.is_load { (self.lane, self.position) } else { (0, self.page) }
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        (self.lane, self.position + self.len, self.page + self.len) == (next.lane, next.position, next.page)
    }
}

/// The runs that do what the copies do in their order.
///
/// Loads that follow each other read pages only and write lanes only, so their order doesn't matter, but for the last
/// one into a position; likewise stores.
pub(super) fn runs(copies: &[KvCopy]) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::new();
    for alike in copies.chunk_by(|a, b| matches!(a, KvCopy::Load { .. }) == matches!(b, KvCopy::Load { .. })) {
        let first = merged.len();
        // The later ones first, of which the removal of those with the same target leaves the last one.
        let mut single: Vec<Run> = alike.iter().rev().map(Run::of).collect();
        single.sort_by_key(Run::target);
        single.dedup_by_key(|run| run.target());
        single.sort_unstable();
        for run in single {
            match merged[first..].last_mut() {
                Some(last) if last.is_followed_by(&run) => last.len += 1,
                _ => merged.push(run),
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LANES: usize = 3;
    const POSITIONS: usize = 6;
    const PAGES: usize = 8;

    fn load(page: usize, lane: usize, position: usize) -> KvCopy {
        KvCopy::Load { page: Page(page), lane: Lane(lane), position }
    }

    /// Numbers in lanes and pages.
    #[derive(Debug, PartialEq)]
    struct Memory {
        lanes: Vec<Vec<usize>>,
        pages: Vec<usize>,
    }

    impl Memory {
        fn new() -> Self {
            let lane = |lane| (0..POSITIONS).map(|position| 100 * (lane + 1) + position).collect();
            Self { lanes: (0..LANES).map(lane).collect(), pages: (1000..1000 + PAGES).collect() }
        }

        fn copy(&mut self, run: &Run) {
            let Run { is_load, lane, position, page, len } = *run;
            let (lane, pages) = (&mut self.lanes[lane][position..position + len], &mut self.pages[page..page + len]);
            if is_load { lane.copy_from_slice(pages) } else { pages.copy_from_slice(lane) }
        }
    }

    #[test]
    fn a_path_of_forty_tokens_into_ten_lanes_is_ten_copies() {
        let copies: Vec<_> = (0..10).flat_map(|lane| (0..40).map(move |at| load(7 + at, lane, at))).collect();
        let merged = runs(&copies);
        assert_eq!((copies.len(), merged.len()), (400, 10));
        assert!(merged.iter().all(|run| run.is_load && (run.position, run.page, run.len) == (0, 7, 40)));
        // Position by position, as lanes that advance together would ask for it.
        let across: Vec<_> = (0..40).flat_map(|at| (0..10).map(move |lane| load(7 + at, lane, at))).collect();
        assert_eq!(runs(&across), merged);
        assert_eq!(runs(&[]), []);
        // Pages that don't follow each other are no run, and neither are those of a loop's end and beginning.
        assert_eq!(runs(&[load(4, 0, 0), load(6, 0, 1), load(5, 0, 2)]).len(), 3);
    }

    proptest! {
        #[test]
        fn runs_do_what_the_copies_do_one_by_one(
            wanted in prop::collection::vec((any::<bool>(), 0..LANES, 0..POSITIONS, 0..PAGES, 1..5usize), 0..12),
        ) {
            let mut copies = Vec::new();
            for (is_load, lane, position, page, len) in wanted {
                for at in 0..len.min(POSITIONS - position).min(PAGES - page) {
                    let (page, lane, position) = (Page(page + at), Lane(lane), position + at);
                    copies.push(match is_load {
                        true => KvCopy::Load { page, lane, position },
                        false => KvCopy::Store { lane, position, page },
                    });
                }
            }
            let (mut expected, mut found) = (Memory::new(), Memory::new());
            copies.iter().for_each(|copy| expected.copy(&Run::of(copy)));
            let merged = runs(&copies);
            merged.iter().for_each(|run| found.copy(run));
            prop_assert_eq!(found, expected);
            prop_assert!(merged.len() <= copies.len());
        }
    }
}
