//! The shapes that steps are padded to, so that few of them suffice for all steps: each has an execution context and a
//! CUDA graph that are made before the first request. Pure.
//!
//! A bucket costs device memory and time at the start; a step that no bucket holds runs with its own shapes, which
//! takes the host longer.

use super::buffers::{Shapes, Sizes};
use bundle::manifest::attended_lengths;

/// Most buckets in which attention reads whole caches, and most in which it reads less: each has a context of its own.
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
        let attended = sizes.slots;
        let decode = |width| {
            let of_rows = move |rows| Shapes { rows, longest: 1, selected: rows, width, attended };
            decode_rows(sizes.lanes).map(of_rows)
        };
        let mut shapes: Vec<Shapes> = match widths {
            [] => decode(0).chain(prefill(sizes)).collect(),
            widths => widths
                .iter()
                .flat_map(|&width| decode(width))
                .filter(|shapes| shapes.rows.is_power_of_two() || shapes.rows == sizes.lanes)
                .collect(),
        };
        // Small steps are the most frequent ones, and gain most.
        let order = |shapes: &Shapes| (shapes.rows * shapes.longest, shapes.width, shapes.attended, shapes.selected);
        shapes.sort_by_key(order);
        shapes.truncate(MAX_BUCKETS);
        // Long contexts are where reading less saves most, and a step of several long rows reads them anyway.
        let is_short = |shapes: &&Shapes| widths.is_empty() && (shapes.rows == 1 || shapes.longest == 1);
        let lengths = || attended_lengths(attended as u32).map(|length| length as usize);
        let mut shorter: Vec<Shapes> = shapes
            .iter()
            .filter(is_short)
            .flat_map(|shapes| lengths().map(move |attended| Shapes { attended, ..*shapes }))
            .filter(|shapes| (shapes.longest..attended).contains(&shapes.attended))
            .collect();
        shorter.sort_by_key(order);
        shorter.truncate(MAX_BUCKETS);
        shapes.extend(shorter);
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
                && bucket.attended >= step.attended
        };
        let cost = |bucket: &&Shapes| (bucket.rows * bucket.longest + bucket.selected, bucket.rows, bucket.attended);
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
    let Sizes { lanes, chunk, selected, slots: attended, .. } = *sizes;
    let pairs = octaves(chunk).skip(1).flat_map(move |longest| octaves(lanes).map(move |rows| (rows, longest)));
    pairs.filter(|(rows, longest)| *rows == 1 || rows * longest <= MAX_TOKENS).flat_map(move |(rows, longest)| {
        let most = (rows * longest).min(selected);
        let few = (longest < LONG && rows < most).then_some(rows);
        few.into_iter().chain([most]).map(move |selected| Shapes { rows, longest, selected, width: 0, attended })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(lanes: usize, chunk: usize) -> Sizes {
        Sizes { lanes, chunk, selected: lanes.max(chunk), top_k: 64, vocab: 50_257, vocab_padded: 50_264, slots: 0 }
    }

    fn shapes(rows: usize, longest: usize, selected: usize) -> Shapes {
        Shapes { rows, longest, selected, width: 0, attended: 0 }
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

    #[test]
    fn a_step_over_few_positions_reads_few_of_a_long_context() {
        let buckets = Buckets::new(&Sizes { slots: 1024, ..sizes(32, 64) }, &[]);
        let at = |rows, longest, attended| {
            let step = Shapes { attended, ..shapes(rows, longest, rows) };
            buckets.of(step, |_| true).map(|bucket| (bucket.rows, bucket.attended))
        };
        for rows in [1, 8, 10, 32] {
            assert_eq!(at(rows, 1, 64), Some((rows, 64)));
            assert_eq!(at(rows, 1, 256), Some((rows, 256)));
            assert_eq!(at(rows, 1, 1024), Some((rows, 1024)));
        }
        assert_eq!(at(1, 40, 64), Some((1, 64)), "a cold text");
        assert_eq!(at(2, 33, 64), Some((2, 1024)), "two of them");
        assert!(buckets.all().len() <= 2 * MAX_BUCKETS);
    }

    proptest! {
        #[test]
        fn buckets_are_few_within_the_bounds_and_hold_what_they_are_taken_for(
            lanes in 1..300usize, chunk in 1..200usize, rows in 1..300usize, longest in 1..200usize,
            selected in 1..300usize, encodes: bool, slots in prop_oneof![Just(0), 130..2000usize], share in 0.0..1.0,
        ) {
            let sizes = Sizes { slots, ..sizes(lanes, chunk) };
            let attended = (slots as f64 * share) as usize;
            let buckets = Buckets::new(&sizes, if encodes { &[16, 48] } else { &[] });
            let all = buckets.all();
            let most = if slots > 0 { 2 * MAX_BUCKETS } else { MAX_BUCKETS };
            prop_assert!((1..=most).contains(&all.len()));
            let mut distinct = all.to_vec();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), all.len());
            for bucket in all {
                prop_assert!(bucket.rows <= lanes && bucket.longest <= chunk && bucket.selected <= sizes.selected);
                prop_assert!(bucket.attended <= slots && (slots == 0 || bucket.attended >= bucket.longest.min(slots)));
            }
            let width = if encodes { 16 } else { 0 };
            let step = Shapes { rows, longest, selected, width, attended };
            if let Some(bucket) = buckets.of(step, |_| true) {
                prop_assert!(bucket.rows >= rows && bucket.longest >= longest && bucket.selected >= selected);
                prop_assert_eq!(bucket.width, width);
                prop_assert!(bucket.attended >= attended);
            }
            let one = Shapes { rows: 1, longest: 1, selected: 1, width, attended: 0 };
            let least = buckets.of(one, |_| true).expect("a bucket for the smallest step");
            prop_assert_eq!(Shapes { attended: 0, ..least }, one);
        }
    }
}
