//! What was measured of a cell, and what follows from it: speed with its spread, ratios, and the cost of one more token
//! by the length of what lies before it. Pure arithmetic.

use serde::Serialize;

use crate::summary::Summary;

/// Lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Tokens of the prompt.
    pub(super) input: usize,
    /// Tokens of the answer.
    pub(super) output: usize,
}

/// A cell on one server.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) server: String,
    pub(super) version: String,
    pub(super) is_own: bool,
    pub(super) nginx: bool,
    /// Duration of each run.
    pub(super) seconds: Vec<f64>,
    /// Why runs failed, or why there are none.
    pub(super) failures: Vec<String>,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) model: String,
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) server: String,
    pub(super) version: String,
    pub(super) nginx: bool,
    pub(super) runs: usize,
    /// Mean over the runs.
    pub(super) tokens_per_second: f64,
    /// Standard deviation over the runs, none of one run.
    pub(super) sd: Option<f64>,
    /// The median run, prompt included, spread over the new tokens.
    pub(super) ms_per_token: f64,
    /// What each token cost beyond those of the next shorter answer: medians compared.
    pub(super) step_ms: Option<f64>,
    /// Tokens before such a token, on average.
    pub(super) step_context: Option<f64>,
    /// `step_ms` against that of the shortest context of this model and server.
    pub(super) step_growth: Option<f64>,
    /// `step_context` against the shortest.
    pub(super) context_growth: Option<f64>,
    /// Tokens per second against the first peer's.
    pub(super) times_peer: Option<f64>,
    /// Runs that failed, with the last reason; empty if none did.
    pub(super) failed: String,
}

/// The lines of a model, cells in the order of their lengths and all servers of each.
pub(super) fn rows(model: &str, cells: &[Vec<Measured>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for servers in cells {
        let peer = servers.iter().find(|other| !other.is_own).and_then(|peer| Some(mean_and_sd(&peer.speeds())?.0));
        for (at, measured) in servers.iter().enumerate() {
            let shorter = cells.iter().map(|servers| &servers[at]).rfind(|other| other.is_shorter(measured.cell));
            rows.push(row(model, measured, shorter, peer));
        }
    }
    let shortest: Vec<Row> = rows.iter().filter(|row| row.step_ms.is_some()).cloned().collect();
    for row in &mut rows {
        if let Some(first) = shortest.iter().find(|first| first.server == row.server) {
            row.step_growth = row.step_ms.zip(first.step_ms).map(|(ms, first)| ms / first);
            row.context_growth = row.step_context.zip(first.step_context).map(|(context, first)| context / first);
        }
    }
    rows
}

fn row(model: &str, measured: &Measured, shorter: Option<&Measured>, peer: Option<f64>) -> Row {
    let Cell { input, output } = measured.cell;
    let speed = mean_and_sd(&measured.speeds());
    let step_ms = shorter.and_then(|shorter| {
        let more = (measured.median()? - shorter.median()?) / (output - shorter.cell.output) as f64;
        Some(more * 1000.0)
    });
    let middle = shorter.map(|shorter| input as f64 + (output + shorter.cell.output) as f64 / 2.0);
    Row {
        model: model.to_owned(),
        input,
        output,
        server: measured.server.clone(),
        version: measured.version.clone(),
        nginx: measured.nginx,
        runs: measured.seconds.len(),
        tokens_per_second: speed.map_or(f64::NAN, |speed| speed.0),
        sd: speed.and_then(|speed| speed.1),
        ms_per_token: measured.median().map_or(f64::NAN, |seconds| seconds * 1000.0 / output as f64),
        step_ms,
        step_context: step_ms.and(middle),
        step_growth: None,
        context_growth: None,
        times_peer: speed.zip(peer).map(|(speed, peer)| speed.0 / peer),
        failed: match measured.failures.as_slice() {
            [] => String::new(),
            failures @ [.., last] => format!("{}: {last}", failures.len()),
        },
    }
}

impl Measured {
    /// New tokens per second of each run.
    fn speeds(&self) -> Vec<f64> {
        self.seconds.iter().map(|seconds| self.cell.output as f64 / seconds).collect()
    }

    fn median(&self) -> Option<f64> {
        Summary::of(self.seconds.iter().copied()).map(|summary| summary.median)
    }

    /// Whether this has the cell's prompt and a shorter answer.
    fn is_shorter(&self, cell: Cell) -> bool {
        self.cell.input == cell.input && self.cell.output < cell.output
    }
}

/// Mean and, of two or more, the standard deviation of what they are drawn from.
fn mean_and_sd(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (!values.is_empty()).then(|| (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(input: usize, output: usize, server: &str, seconds: &[f64]) -> Measured {
        Measured {
            cell: Cell { input, output },
            server: server.to_owned(),
            version: String::new(),
            is_own: server == "own",
            nginx: true,
            seconds: seconds.to_vec(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_spread_needs_two_runs() {
        assert_eq!(mean_and_sd(&[]), None);
        assert_eq!(mean_and_sd(&[3.0]), Some((3.0, None)));
        assert_eq!(mean_and_sd(&[2.0, 4.0]), Some((3.0, Some(2.0_f64.sqrt()))));
    }

    #[test]
    fn cost_by_context_is_what_more_tokens_took() {
        let cell = |input, output, own: f64, peer: f64| {
            vec![measured(input, output, "own", &[own]), measured(input, output, "peer", &[peer])]
        };
        let cells =
            [cell(50, 50, 1.0, 2.0), cell(50, 100, 1.5, 4.0), cell(150, 50, 2.0, 5.0), cell(150, 100, 3.0, 9.0)];
        let rows = rows("m", &cells);
        let own: Vec<&Row> = rows.iter().filter(|row| row.server == "own").collect();
        assert_eq!(own[0].times_peer, Some(2.0));
        assert_eq!((own[0].step_ms, own[0].step_growth), (None, None), "there is no shorter answer");
        assert_eq!((own[1].step_ms, own[1].step_context), (Some(10.0), Some(125.0)));
        assert_eq!((own[3].step_ms, own[3].step_context), (Some(20.0), Some(225.0)));
        assert_eq!((own[3].step_growth, own[3].context_growth), (Some(2.0), Some(1.8)));
        let peer = rows.iter().rfind(|row| row.server == "peer");
        assert_eq!(peer.and_then(|row| row.times_peer), Some(1.0));
    }
}
