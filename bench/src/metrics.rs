//! What the server says of itself: `/metrics`, in Prometheus' text format.

use std::net::SocketAddr;

use crate::client::Connection;

/// One reading of all samples.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Name with labels, and value.
    samples: Vec<(String, f64)>,
}

impl Reading {
    /// Reads them; `None` where the server has no metrics.
    pub async fn take(address: SocketAddr) -> Option<Self> {
        let (status, body) = Connection::open(address).await.ok()?.get("/metrics").await.ok()?;
        (status == 200).then(|| Self::parse(&String::from_utf8_lossy(&body)))
    }

    fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.trim().rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Self { samples: text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect() }
    }

    /// Sum of all series of a metric; `None` if there are none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let of_name = |series: &str| series.split('{').next() == Some(name);
        let values: Vec<f64> = self.samples.iter().filter(|(series, _)| of_name(series)).map(|(_, v)| *v).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}

/// How much a metric grew from one reading to the next.
pub fn growth(before: Option<&Reading>, after: Option<&Reading>, name: &str) -> Option<f64> {
    Some(after?.sum(name)? - before?.sum(name).unwrap_or(0.0))
}

/// A share or mean, if both are known and the whole isn't nothing.
pub fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    whole.filter(|whole| *whole > 0.0).and_then(|whole| Some(part? / whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_and_absent_ones_are_none() {
        let text =
            "# HELP a_total x\na_total{model=\"x y\",outcome=\"b\"} 2\na_total{outcome=\"c\"} 3\na_total_b 7\nb 1e3\n";
        let reading = Reading::parse(text);
        assert_eq!([reading.sum("a_total"), reading.sum("b"), reading.sum("c")], [Some(5.0), Some(1000.0), None]);
        assert_eq!(growth(Some(&Reading::default()), Some(&reading), "b"), Some(1000.0));
        assert_eq!(growth(None, Some(&reading), "b"), None);
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
    }
}
