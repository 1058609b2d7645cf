//! The shapes that steps are padded to, so that few of them suffice for all steps: each has an execution context and a
//! CUDA graph that are made before the first request. Pure.
//!
//! A bucket costs device memory and time at the start; a step that no bucket holds runs with its own shapes, which
//! takes the host longer.

use super::buffers::{Shapes, Sizes};

/// Most buckets: each has a context of its own.
pub const MAX_BUCKETS: usize = 64;

/// Steps of rows in one octave of the numbers of rows of decoding.
const STEPS_PER_OCTAVE: usize = 4;

/// Most tokens of a bucket, padding included; by default a step has no more of them.
const MAX_TOKENS: usize = 128;

/// From this number of tokens a row on there is one bucket for each number of rows: whoever computes a long text wants
/// the distributions at several of its positions.
const LONG: usize = 16;

/// The shapes, in the order in which they are prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    shapes: Vec<Shapes>,
}

impl Buckets {
    /// Buckets for steps within these bounds. `widths` are those of the sources, in models with an encoder.
    pub fn new(sizes: &Sizes, widths: &[usize]) -> Self {
        let decode =
            |width| decode_rows(sizes.lanes).map(move |rows| Shapes { rows, longest: 1, selected: rows, width });
        let mut shapes: Vec<Shapes> = match widths {
            [] => decode(0).chain(prefill(sizes)).collect(),
            widths => widths
                .iter()
                .flat_map(|&width| decode(width))
                .filter(|shapes| shapes.rows.is_power_of_two() || shapes.rows == sizes.lanes)
                .collect(),
        };
        // Small steps are the most frequent ones, and gain most.
        shapes.sort_by_key(|shapes| (shapes.rows * shapes.longest, shapes.width, shapes.selected));
        shapes.truncate(MAX_BUCKETS);
        Self { shapes }
    }

    /// All of them.
    pub fn all(&self) -> &[Shapes] {
        &self.shapes
    }

    /// The cheapest bucket that holds a step, of those that `fits` allows.
    pub fn of(&self, step: Shapes, fits: impl Fn(Shapes) -> bool) -> Option<Shapes> {
        let holds = |bucket: &&Shapes| {
            bucket.rows >= step.rows
                && bucket.longest >= step.longest
                && bucket.selected >= step.selected
                && bucket.width == step.width
        };
        let cost = |bucket: &&Shapes| (bucket.rows * bucket.longest + bucket.selected, bucket.rows);
        self.shapes.iter().filter(holds).filter(|bucket| fits(**bucket)).min_by_key(cost).copied()
    }
}

/// Numbers of rows, in finer steps where they are small: 1, 2, ..., 8, 10, 12, 14, 16, 20, ...
fn decode_rows(lanes: usize) -> impl Iterator<Item = usize> {
    let step = |rows: usize| (rows.next_power_of_two() / 2 / STEPS_PER_OCTAVE).max(1);
    (1..=lanes).filter(move |&rows| rows.is_multiple_of(step(rows)) || rows == lanes)
}

/// 1, 2, 4, ... and the last number.
fn octaves(last: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |number| number.checked_mul(2)).take_while(move |&n| n < last).chain([last])
}

fn prefill(sizes: &Sizes) -> impl Iterator<Item = Shapes> + use<> {
    let Sizes { lanes, chunk, selected, .. } = *sizes;
    let pairs = octaves(chunk).skip(1).flat_map(move |longest| octaves(lanes).map(move |rows| (rows, longest)));
    pairs.filter(|(rows, longest)| *rows == 1 || rows * longest <= MAX_TOKENS).flat_map(move |(rows, longest)| {
        let most = (rows * longest).min(selected);
        let few = (longest < LONG && rows < most).then_some(rows);
        few.into_iter().chain([most]).map(move |selected| Shapes { rows, longest, selected, width: 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(lanes: usize, chunk: usize) -> Sizes {
        Sizes { lanes, chunk, selected: lanes.max(chunk), top_k: 64, vocab: 50_257, vocab_padded: 50_264 }
    }

    fn shapes(rows: usize, longest: usize, selected: usize) -> Shapes {
        Shapes { rows, longest, selected, width: 0 }
    }

    #[test]
    fn a_servers_default_has_buckets_for_what_people_do() {
        let buckets = Buckets::new(&sizes(32, 64), &[]);
        assert!(buckets.all().len() <= MAX_BUCKETS, "{}", buckets.all().len());
        let of = |rows, longest, selected| buckets.of(shapes(rows, longest, selected), |_| true);
        for rows in [1, 2, 3, 8, 10, 16, 20, 32] {
            assert_eq!(of(rows, 1, rows), Some(shapes(rows, 1, rows)), "decoding is padded by little");
        }
        assert_eq!(of(9, 1, 9), Some(shapes(10, 1, 10)));
        assert_eq!(of(3, 2, 3), Some(shapes(4, 2, 4)));
        assert_eq!(of(3, 2, 5), Some(shapes(4, 2, 8)), "several positions of a row");
        assert_eq!(of(1, 40, 9), Some(shapes(1, 64, 64)), "a cold text");
        assert_eq!(of(2, 33, 2), Some(shapes(2, 64, 64)));
        assert_eq!(of(33, 1, 33), None);
        assert_eq!(of(3, 60, 3), None, "more than a step has by default");
        assert_eq!(buckets.of(shapes(9, 1, 9), |bucket| bucket.rows > 10), Some(shapes(12, 1, 12)));
        assert_eq!(Buckets::default().of(shapes(1, 1, 1), |_| true), None);
    }

    #[test]
    fn sources_have_buckets_for_each_of_their_widths() {
        let widths = [16, 32, 64, 128, 256, 512];
        let buckets = Buckets::new(&sizes(32, 64), &widths);
        let decode = |width| Shapes { width, ..shapes(3, 1, 3) };
        for width in widths {
            assert_eq!(buckets.of(decode(width), |_| true), Some(Shapes { width, ..shapes(4, 1, 4) }));
        }
        assert_eq!(buckets.of(decode(48), |_| true), None);
        assert!(buckets.all().len() <= MAX_BUCKETS);
    }

    proptest! {
        #[test]
        fn buckets_are_few_within_the_bounds_and_hold_what_they_are_taken_for(
            lanes in 1..300usize, chunk in 1..200usize, rows in 1..300usize, longest in 1..200usize,
            selected in 1..300usize, encodes: bool,
        ) {
            let sizes = sizes(lanes, chunk);
            let buckets = Buckets::new(&sizes, if encodes { &[16, 48] } else { &[] });
            let all = buckets.all();
            prop_assert!((1..=MAX_BUCKETS).contains(&all.len()));
            let mut distinct = all.to_vec();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), all.len());
            for bucket in all {
                prop_assert!(bucket.rows <= lanes && bucket.longest <= chunk && bucket.selected <= sizes.selected);
            }
            let width = if encodes { 16 } else { 0 };
            let step = Shapes { rows, longest, selected, width };
            if let Some(bucket) = buckets.of(step, |_| true) {
                prop_assert!(bucket.rows >= rows && bucket.longest >= longest && bucket.selected >= selected);
                prop_assert_eq!(bucket.width, width);
            }
            let one = Shapes { rows: 1, longest: 1, selected: 1, width };
            prop_assert_eq!(buckets.of(one, |_| true), Some(one));
        }
    }
}
