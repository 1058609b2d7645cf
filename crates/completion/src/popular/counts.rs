//! Counts in the order of their queries, with sums and maxima of ranges.

use std::ops::Range;

/// Counts that share one sum and one maximum.
const BLOCK: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub struct Counts {
    counts: Vec<u64>,
    /// By block: the sum of the counts before it. Counts may be as large as they like, so a sum needn't fit in 64 bits.
    /// `[blocks + 1]`
    before: Vec<u128>,
    /// A binary tree of maxima: the root is at 1, the children of `n` at `2n` and `2n + 1`, and the blocks are its
    /// leaves. `[2 * leaves]`
    maxima: Vec<u64>,
}

/// Counts of which only the greatest is known, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A node of the tree of maxima.
    Node(usize),
    /// The index of a count.
    Count(usize),
}

impl Counts {
    /// Prepares sums and maxima.
    pub fn new(counts: Vec<u64>) -> Self {
        let mut before = vec![0];
        let blocks: Vec<u64> = counts.chunks(BLOCK).map(|block| block.iter().copied().max().unwrap_or(0)).collect();
        for block in counts.chunks(BLOCK) {
            before.push(before.last().unwrap_or(&0) + sum(block));
        }
        let leaves = blocks.len().next_power_of_two();
        let mut maxima = vec![0; 2 * leaves];
        maxima[leaves..leaves + blocks.len()].copy_from_slice(&blocks);
        for node in (1..leaves).rev() {
            maxima[node] = maxima[2 * node].max(maxima[2 * node + 1]);
        }
        Self { counts, before, maxima }
    }

    /// Number of counts.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// The sum of a range of counts.
    pub fn sum(&self, Range { start, end }: Range<usize>) -> u128 {
        let until = |end: usize| self.before[end / BLOCK] + sum(&self.counts[end / BLOCK * BLOCK..end]);
        if end - start <= BLOCK { sum(&self.counts[start..end]) } else { until(end) - until(start) }
    }

    /// The greatest count of a part.
    pub fn most(&self, part: Part) -> u64 {
        match part {
            Part::Node(node) => self.maxima[node],
            Part::Count(index) => self.counts[index],
        }
    }

    /// The few parts that make up a range.
    pub fn parts(&self, Range { start, end }: Range<usize>) -> impl Iterator<Item = Part> {
        let (first, last) = (start.next_multiple_of(BLOCK).min(end), (end / BLOCK * BLOCK).max(start));
        let singles = if first <= last { [start..first, last..end] } else { [start..end, 0..0] };
        let leaves = self.maxima.len() / 2;
        let (mut low, mut high) = (leaves + first / BLOCK, leaves + last / BLOCK);
        let mut nodes = Vec::new();
        while first < last && low < high {
            if low % 2 == 1 {
                nodes.push(Part::Node(low));
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                nodes.push(Part::Node(high));
            }
            (low, high) = (low / 2, high / 2);
        }
        singles.into_iter().flatten().map(Part::Count).chain(nodes)
    }

    /// The parts of a node: two nodes, or the counts of a block.
    pub fn children(&self, node: usize) -> impl Iterator<Item = Part> + use<> {
        let leaves = self.maxima.len() / 2;
        let nodes = if node < leaves { 2 * node..2 * node + 2 } else { 0..0 };
        let start = node.saturating_sub(leaves) * BLOCK;
        let counts = if node < leaves { 0..0 } else { start..(start + BLOCK).min(self.counts.len()) };
        nodes.map(Part::Node).chain(counts.map(Part::Count))
    }
}

fn sum(counts: &[u64]) -> u128 {
    counts.iter().copied().map(u128::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn ranges_have_their_sums_and_greatest_counts() {
        let mut rng = StdRng::seed_from_u64(5);
        for length in [1, 63, 64, 65, 1000, 4096] {
            let all: Vec<u64> = (0..length).map(|_| rng.random_range(1..1000)).collect();
            let counts = Counts::new(all.clone());
            for _ in 0..200 {
                let start = rng.random_range(0..=length);
                let range = start..rng.random_range(start..=length);
                assert_eq!(counts.sum(range.clone()), sum(&all[range.clone()]), "{range:?} of {length}");
                let mut found = Vec::new();
                let mut open: Vec<Part> = counts.parts(range.clone()).collect();
                assert!(open.len() <= 2 * BLOCK + 2 * 64);
                while let Some(part) = open.pop() {
                    match part {
                        Part::Count(index) => found.push(index),
                        Part::Node(node) => {
                            let most = counts.children(node).map(|part| counts.most(part)).max();
                            assert_eq!(Some(counts.most(part)), most.or(Some(0)));
                            open.extend(counts.children(node));
                        }
                    }
                }
                found.sort_unstable();
                assert!(found.iter().copied().eq(range.clone()), "{range:?} of {length}");
            }
        }
        let huge = Counts::new(vec![u64::MAX; 3]);
        assert_eq!(huge.sum(0..3), 3 * u128::from(u64::MAX));
    }
}
