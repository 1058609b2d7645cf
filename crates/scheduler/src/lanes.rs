//! Assigns paths to lanes so that few keys and values are copied.
//!
//! A lane still holds the keys and values of its last path. The beams of a search mostly grow by one token a step, so
//! most rows find their whole past in some lane. Pure: this module plans, the scheduler copies.

use super::prefix_cache::Serial;

/// The contents of all lanes.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// By lane: the names of the nodes at positions 0.. whose keys and values are valid.
    contents: Vec<Vec<Serial>>,
}

impl Lanes {
    /// `lanes` lanes that hold nothing.
    pub fn new(lanes: usize) -> Self {
        Self { contents: vec![Vec::new(); lanes] }
    }

    /// Gives each path one of the first `paths.len()` lanes; the one that has most of it, the longest matches first.
    ///
    /// Returns for each path its lane and how many of its positions are valid there.
    pub fn assign(&self, paths: &[&[Serial]]) -> Vec<(usize, usize)> {
        let lanes = paths.len();
        let mut matches = Vec::with_capacity(lanes * lanes);
        for (row, path) in paths.iter().enumerate() {
            matches.extend((0..lanes).map(|lane| (common(path, &self.contents[lane]), row, lane)));
        }
        // Ties go to the lower row and lane: the plan must not depend on the sort.
        matches.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut assigned = vec![None; lanes];
        let mut taken = vec![false; lanes];
        for (valid, row, lane) in matches {
            if assigned[row].is_none() && !taken[lane] {
                assigned[row] = Some((lane, valid));
                taken[lane] = true;
            }
        }
        assigned.into_iter().flatten().collect()
    }

    /// Records that a lane now holds exactly this path.
    pub fn set(&mut self, lane: usize, path: impl Iterator<Item = Serial>) {
        self.contents[lane].clear();
        self.contents[lane].extend(path);
    }

    /// Forgets what all lanes hold: after an error nothing is known of them.
    pub fn clear(&mut self) {
        self.contents.iter_mut().for_each(Vec::clear);
    }
}

fn common(path: &[Serial], content: &[Serial]) -> usize {
    path.iter().zip(content).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix_cache::PrefixCache;
    use completion::text::TokenId;

    #[test]
    fn rows_go_where_their_past_is() {
        let mut cache = PrefixCache::new(0, 1, 1 << 20);
        let mut serials = Vec::new();
        let mut parent = None;
        for token in 0..6 {
            let node = cache.hold(parent, TokenId(token));
            serials.push(cache.serial(node));
            parent = Some(node);
        }
        let mut lanes = Lanes::new(3);
        lanes.set(0, serials[..2].iter().copied());
        lanes.set(1, serials[..4].iter().copied());
        let (short, long) = (&serials[..3], &serials[..5]);
        assert_eq!(lanes.assign(&[long, short]), [(1, 4), (0, 2)]);
        // One row has to use lane 0, whatever lane 1 holds.
        assert_eq!(lanes.assign(&[long]), [(0, 2)]);
        assert_eq!(lanes.assign(&[short, short, short]).len(), 3);
        lanes.clear();
        assert_eq!(lanes.assign(&[long, short]), [(0, 0), (1, 0)]);
    }
}
