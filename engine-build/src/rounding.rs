//! Rounds weights to 8 bits so that the error of one input makes up for those of the others. The method is GPFQ, in two
//! passes (arXiv 2010.15979).
//!
//! A map's result is a sum over its inputs, and inputs go together. What rounding has changed in the sum, on rows that
//! the map is known to read, is mostly undone by another choice of the next weight. That choice is the weight plus a
//! least-squares share of the change, rounded to the same scale. It costs nothing when the map runs.
//!
//! Few rows are known, so the share is damped: an input that is small on all of them takes little of the others' error.

use std::fmt;
use std::sync::Arc;

use kernels::layout::PANEL;
use kernels::observe::Seen;

/// The largest magnitude of an int8 weight.
pub(crate) const LARGEST: f32 = 127.0;

/// How often each weight is chosen. The second time, the errors of the inputs behind it are known, too.
const PASSES: usize = 2;

/// The weights of an input, or anything else of the outputs of a panel.
pub(crate) type Row = [f32; PANEL];

/// What a matrix reads.
#[derive(Clone)]
pub(crate) struct Reading {
    /// The rows, input by input. `[inputs, rows]`
    columns: Arc<[f32]>,
    rows: usize,
    /// The factor of each input's product with the error that makes it the input's share. `[inputs]`
    shares: Arc<[f32]>,
}

impl Reading {
    pub(crate) fn new(seen: &Seen) -> Self {
        let (inputs, width) = (seen.inputs, seen.inputs.max(1));
        let column = |input: usize| seen.values.get(input..).unwrap_or_default().iter().step_by(width).copied();
        let squares: Vec<f32> = (0..inputs).map(|input| column(input).map(|x| x * x).sum()).collect();
        let damping = squares.iter().sum::<f32>() / width as f32;
        let share = |squares: &f32| if damping > 0.0 { (squares + damping).recip() } else { 0.0 };
        Self {
            columns: (0..inputs).flat_map(column).collect(),
            rows: seen.values.len() / width,
            shares: squares.iter().map(share).collect(),
        }
    }

    fn column(&self, input: usize) -> &[f32] {
        &self.columns[input * self.rows..][..self.rows]
    }
}

impl fmt::Debug for Reading {
    /// Short, and another for other rows: parameters are told apart by it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.columns.iter().fold(0_u64, |bits, x| bits.rotate_left(5) ^ u64::from(x.to_bits()));
        write!(f, "Reading {{ rows: {}, bits: {bits:x} }}", self.rows)
    }
}

/// Rounds the weights of a panel, `[inputs]`, to multiples of their outputs' scales: to integers in -127..=127.
pub(crate) fn round(weights: &mut [Row], scales: &Row, reading: Option<&Reading>) {
    let exact = weights.to_vec();
    // What the sums lack, on each row.
    let mut lacking = vec![Row::default(); reading.map_or(0, |reading| reading.rows)];
    for pass in 0..reading.map_or(1, |_| PASSES) {
        for (exact, (input, weights)) in exact.iter().zip(weights.iter_mut().enumerate()) {
            let (column, share) = reading.map_or((&[][..], 0.0), |known| (known.column(input), known.shares[input]));
            if pass > 0 {
                add(&mut lacking, column, &std::array::from_fn(|lane| weights[lane] * scales[lane] - exact[lane]));
            }
            let owed = products(&lacking, column);
            *weights = std::array::from_fn(|lane| {
                let wanted = exact[lane] + owed[lane] * share;
                let steps = if scales[lane] > 0.0 { wanted / scales[lane] } else { 0.0 };
                steps.round_ties_even().clamp(-LARGEST, LARGEST)
            });
            add(&mut lacking, column, &std::array::from_fn(|lane| exact[lane] - weights[lane] * scales[lane]));
        }
    }
}

/// The products of a column with what each output lacks.
fn products(lacking: &[Row], column: &[f32]) -> Row {
    let mut products = Row::default();
    for (x, lacking) in column.iter().zip(lacking) {
        products.iter_mut().zip(lacking).for_each(|(product, lacking)| *product += x * lacking);
    }
    products
}

/// Adds an input's error to what each output lacks.
fn add(lacking: &mut [Row], column: &[f32], error: &Row) {
    for (x, lacking) in column.iter().zip(lacking) {
        lacking.iter_mut().zip(error).for_each(|(lacking, error)| *lacking += x * error);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The squares of the errors of the sums over rows `[_, weights.len()]`.
    fn loss(weights: &[Row], rounded: &[Row], scales: &Row, rows: &[f32]) -> f32 {
        let sum = |row: &[f32], lane: usize| -> f32 {
            let errors = weights.iter().zip(rounded).map(|(exact, steps)| exact[lane] - steps[lane] * scales[lane]);
            row.iter().zip(errors).map(|(x, error)| x * error).sum()
        };
        rows.chunks(weights.len()).flat_map(|row| (0..PANEL).map(move |lane| sum(row, lane).powi(2))).sum()
    }

    fn scales(weights: &[Row]) -> Row {
        std::array::from_fn(|lane| weights.iter().fold(0.0_f32, |most, row| most.max(row[lane].abs())) / LARGEST)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Rows that are mixtures of a few, as those of a model are: their sums are more exact, and also those of rows
        /// of the same kind that weren't known.
        #[test]
        fn sums_over_rows_of_the_known_kind_are_more_exact(
            weights in proptest::collection::vec(proptest::array::uniform16(-1.0..1.0_f32), 48),
            kinds in proptest::collection::vec(proptest::collection::vec(-1.0..1.0_f32, 48), 6),
            mixtures in proptest::collection::vec(proptest::array::uniform6(-1.0..1.0_f32), 60),
        ) {
            let mixed = |mix: &[f32; 6], at: usize| mix.iter().zip(&kinds).map(|(by, kind)| by * kind[at]).sum::<f32>();
            let rows: Vec<f32> = mixtures.iter().flat_map(|mix| (0..48).map(|at| mixed(mix, at))).collect();
            let (known, others) = rows.split_at(40 * 48);
            let scales = scales(&weights);
            let (mut plain, mut chosen) = (weights.clone(), weights.clone());
            round(&mut plain, &scales, None);
            round(&mut chosen, &scales, Some(&Reading::new(&Seen { inputs: 48, values: known.to_vec() })));
            prop_assert!(chosen.iter().flatten().all(|steps| steps.fract() == 0.0 && steps.abs() <= LARGEST));
            for rows in [known, others] {
                let [chosen, plain] = [&chosen, &plain].map(|rounded| loss(&weights, rounded, &scales, rows));
                prop_assert!(chosen < 0.5 * plain, "{chosen} with what is read, {plain} without");
            }
        }
    }

    #[test]
    fn rows_of_zeros_and_no_rows_say_nothing() {
        let weights = vec![[0.3, -1.0, 0.0, 5.0, 1e-9, 0.5, 0.25, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 0.1]; 3];
        let scales = scales(&weights);
        let rounded = |reading: Option<&Reading>| {
            let mut rounded = weights.clone();
            round(&mut rounded, &scales, reading);
            rounded
        };
        let of = |values: &[f32]| Reading::new(&Seen { inputs: 3, values: values.to_vec() });
        let plain = rounded(None);
        assert_eq!(plain[0][..4], [127.0, -127.0, 0.0, 127.0]);
        assert_eq!(rounded(Some(&of(&[]))), plain);
        assert_eq!(rounded(Some(&of(&[0.0; 6]))), plain);
        assert_ne!(format!("{:?}", of(&[1.0, 2.0, 3.0])), format!("{:?}", of(&[1.0, 2.0, 4.0])));
    }
}
