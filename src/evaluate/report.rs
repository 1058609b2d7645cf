//! Evaluation results as tables for people, JSON for programs, and one plot.

use std::path::Path;

use comfy_table::{Table, presets};
use plotters::prelude::*;

use super::metrics::{self, Keystroke, QueryScore, mean, percentile, summarise};
use super::replay::Contender;

/// Prefix lengths, in characters, that results are split by.
const LENGTHS: [(usize, usize); 5] = [(1, 3), (4, 6), (7, 10), (11, 16), (17, usize::MAX)];
/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// The keystrokes of one method over one set of queries.
pub struct Run {
    /// The method that answered.
    pub contender: Contender,
    /// The set's name, such as "unseen".
    pub set: String,
    /// Characters of each query.
    pub lengths: Vec<usize>,
    /// The measurements of all keystrokes.
    pub keystrokes: Vec<Keystroke>,
}

impl Run {
    fn scores(&self) -> Vec<QueryScore> {
        metrics::score_queries(&self.keystrokes, &self.lengths)
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Quality: one row per contender and set.
pub fn quality(runs: &[Run]) -> Table {
    let mut table =
        table(&["set", "method", "MRR@10", "partial MRR", "success@1", "success@10", "MRL", "keystrokes saved"]);
    for run in runs {
        let (summary, scores) = (summarise(run.keystrokes.iter()), run.scores());
        table.add_row([
            run.set.clone(),
            run.contender.name().to_owned(),
            format!("{:.4}", mean(scores.iter().map(|s| s.mrr))),
            format!("{:.4}", summary.partial_mrr),
            percent(summary.success_at_1),
            percent(summary.success_at_10),
            format!("{:.2}", mean(scores.iter().map(|s| s.recoverable))),
            percent(mean(scores.iter().map(|s| s.saved))),
        ]);
    }
    table
}

/// MRR@10 by the number of characters typed.
pub fn by_length(runs: &[Run]) -> Table {
    let name = |(from, to): (usize, usize)| if to == usize::MAX { format!("{from}+") } else { format!("{from}-{to}") };
    let names: Vec<String> = LENGTHS.iter().copied().map(name).collect();
    let mut header = vec!["set", "method"];
    header.extend(names.iter().map(String::as_str));
    let mut table = table(&header);
    for run in runs {
        let mut row = vec![run.set.clone(), run.contender.name().to_owned()];
        for (from, to) in LENGTHS {
            let summary = summarise(run.keystrokes.iter().filter(|k| (from..=to).contains(&k.typed)));
            row.push(if summary.keystrokes == 0 { "-".into() } else { format!("{:.4}", summary.mrr) });
        }
        table.add_row(row);
    }
    table
}

/// The first contender of each set against the others, query by query: means of paired differences with their
/// intervals.
pub fn differences(runs: &[Run]) -> Table {
    let mut table = table(&["set", "difference", "MRR@10 [95 %]", "keystrokes saved [95 %]"]);
    for (index, run) in runs.iter().enumerate() {
        for other in runs[index + 1..].iter().filter(|other| other.set == run.set) {
            let (a, b) = (run.scores(), other.scores());
            let compare = |of: fn(&QueryScore) -> f64| {
                let (a, b): (Vec<f64>, Vec<f64>) = (a.iter().map(of).collect(), b.iter().map(of).collect());
                metrics::paired_bootstrap(&a, &b, RESAMPLES)
            };
            let (mrr, saved) = (compare(|s| s.mrr), compare(|s| s.saved));
            table.add_row([
                run.set.clone(),
                format!("{} - {}", run.contender.name(), other.contender.name()),
                format!("{:+.4} [{:+.4}, {:+.4}]", mrr.mean, mrr.low, mrr.high),
                format!("{:+.2} % [{:+.2}, {:+.2}]", 100.0 * saved.mean, 100.0 * saved.low, 100.0 * saved.high),
            ]);
        }
    }
    table
}

/// What answers cost. A warm keystroke agrees if its character was the one that the first suggestion had there.
pub fn cost<'a>(rows: impl IntoIterator<Item = (&'a str, &'a [Keystroke])>) -> Table {
    let header = [
        "keystrokes",
        "count",
        "p50 ms",
        "p99 ms",
        "forwards",
        "positions",
        "for the typed text",
        "nodes from the cache",
        "proven",
    ];
    let mut table = table(&header);
    for (name, all) in rows {
        let agreeing: Vec<Keystroke> = all.iter().copied().filter(|k| k.agreed).collect();
        for (name, some) in [(name.to_owned(), all), (format!("{name}, agreeing"), agreeing.as_slice())] {
            let latencies: Vec<f64> = some.iter().map(|k| k.latency_ms).collect();
            let average = |of: fn(&Keystroke) -> f64| mean(some.iter().map(of));
            let (saved, computed) = (average(|k| k.saved as f64), average(|k| k.computed as f64));
            table.add_row([
                name,
                some.len().to_string(),
                format!("{:.2}", percentile(&latencies, 50.0)),
                format!("{:.2}", percentile(&latencies, 99.0)),
                format!("{:.2}", average(|k| k.forwards as f64)),
                format!("{computed:.2}"),
                format!("{:.3}", average(|k| k.typed_computed as f64)),
                percent(saved / (saved + computed).max(f64::MIN_POSITIVE)),
                percent(average(|k| f64::from(u8::from(k.proven)))),
            ]);
        }
    }
    table
}

/// MRR@10 against characters typed, one line a contender, for one set of queries, as SVG.
///
/// # Errors
/// If the file can't be written.
pub fn plot(runs: &[Run], set: &str, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const CHARACTERS: usize = 24;
    let root = SVGBackend::new(path, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("MRR@10, {set} queries"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(1usize..CHARACTERS, 0f64..1f64)?;
    chart.configure_mesh().x_desc("characters typed").y_desc("MRR@10").draw()?;
    for (index, run) in runs.iter().filter(|run| run.set == set).enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let at = |typed: usize| summarise(run.keystrokes.iter().filter(|k| k.typed == typed)).mrr;
        let line = LineSeries::new((1..=CHARACTERS).map(|typed| (typed, at(typed))), color.stroke_width(2));
        let legend = move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(line)?.label(run.contender.name()).legend(legend);
    }
    chart.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE).draw()?;
    root.present()?;
    Ok(())
}
