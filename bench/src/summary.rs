//! A few repeated measurements as a median with its spread.

/// Median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// A quarter of them are below.
    pub low: f64,
    /// A quarter of them are above.
    pub high: f64,
}

impl Summary {
    /// Summarises values in any order; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then(|| {
            let at = |share: f64| quantile(&sorted, share);
            Self { median: at(0.5), low: at(0.25), high: at(0.75) }
        })
    }

    /// Distance of the quartiles as a share of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// Linear between the two values beside the place.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_values() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([7.0]), Some(Summary { median: 7.0, low: 7.0, high: 7.0 }));
        let summary = Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.5, low: 1.75, high: 3.25 });
        assert!((summary.spread() - 0.6).abs() < 1e-12);
    }
}
