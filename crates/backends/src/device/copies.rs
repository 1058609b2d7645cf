//! Copies of positions between lanes and pages, sorted into launches of the kernel that does them. Pure.
//!
//! A launch has copies of one direction, which the device does at the same time: none of them may write what another
//! one reads or writes.

use scheduler::backend::{KvCopy, Lane, Page};

/// Most copies of a launch: a kernel's parameters have 4,096 bytes. As in `kernels/copy_kv.cu`.
pub(super) const MOST: usize = 504;

/// One position in a lane and its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) lane: usize,
    pub(super) position: usize,
    pub(super) page: usize,
}

impl Place {
    fn of(copy: &KvCopy) -> Self {
        let (Lane(lane), position, Page(page)) = copy.endpoints();
        Self { lane, position, page }
    }

    /// What a copy writes.
    fn target(&self, is_load: bool) -> (usize, usize) {
        if is_load { (self.lane, self.position) } else { (0, self.page) }
    }
}

/// Copies that the device does at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// From pages to lanes.
    pub(super) is_load: bool,
    /// At most [`MOST`].
    pub(super) places: Vec<Place>,
}

/// The launches that do what the copies do in their order.
///
/// Loads that follow each other read pages only and write lanes only, so their order doesn't matter, but for the last
/// one into a position; likewise stores.
pub(super) fn launches(copies: &[KvCopy]) -> Vec<Launch> {
    let is_load = |copy: &KvCopy| matches!(copy, KvCopy::Load { .. });
    let mut launches = Vec::new();
    for alike in copies.chunk_by(|a, b| is_load(a) == is_load(b)) {
        let is_load = is_load(&alike[0]);
        // The later ones first, of which the removal of those with the same target leaves the last one.
        let mut places: Vec<Place> = alike.iter().rev().map(Place::of).collect();
        places.sort_by_key(|place| place.target(is_load));
        places.dedup_by_key(|place| place.target(is_load));
        launches.extend(places.chunks(MOST).map(|places| Launch { is_load, places: places.to_vec() }));
    }
    launches
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
    #[derive(Clone, Debug, PartialEq)]
    struct Memory {
        lanes: Vec<Vec<usize>>,
        pages: Vec<usize>,
    }

    impl Memory {
        fn new() -> Self {
            let lane = |lane| (0..POSITIONS).map(|position| 100 * (lane + 1) + position).collect();
            Self { lanes: (0..LANES).map(lane).collect(), pages: (1000..1000 + PAGES).collect() }
        }

        fn copy(&mut self, is_load: bool, Place { lane, position, page }: Place) {
            if is_load {
                self.lanes[lane][position] = self.pages[page];
            } else {
                self.pages[page] = self.lanes[lane][position];
            }
        }
    }

    #[test]
    fn a_path_of_forty_tokens_into_ten_lanes_is_one_launch() {
        let copies: Vec<_> = (0..10).flat_map(|lane| (0..40).map(move |at| load(7 + at, lane, at))).collect();
        let launches = launches(&copies);
        assert_eq!((copies.len(), launches.len()), (400, 1));
        assert!(launches[0].is_load && launches[0].places.len() == 400);
        assert_eq!(super::launches(&[]), []);
        let many: Vec<_> = (0..MOST + 1).map(|at| load(at, 0, at)).collect();
        let sizes: Vec<_> = super::launches(&many).iter().map(|launch| launch.places.len()).collect();
        assert_eq!(sizes, [MOST, 1], "parameters have an end");
    }

    proptest! {
        #[test]
        fn launches_do_what_the_copies_do_one_by_one_in_whatever_order_the_device_takes(
            wanted in prop::collection::vec((any::<bool>(), 0..LANES, 0..POSITIONS, 0..PAGES, 1..5usize), 0..12),
            rotation in 0..12usize,
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
            copies.iter().for_each(|copy| expected.copy(matches!(copy, KvCopy::Load { .. }), Place::of(copy)));
            for Launch { is_load, mut places } in launches(&copies) {
                let first = rotation % places.len();
                places.rotate_left(first);
                places.iter().for_each(|&place| found.copy(is_load, place));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
