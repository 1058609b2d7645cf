//! What `peers` measured: tables, CSV, JSON and plots, written again after each cell.

use std::path::Path;

use anyhow::Result;

use super::{Cell, Row};
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals, maybe, percent};

const NAME: &str = "peers-engine";

/// Writes everything that is known by now.
pub fn write(folder: &Path, rows: &[Row], bytes_per_second: f64) -> Result<()> {
    let title = format!(
        "Engines side by side, greedy, exact lengths; medians; ratio: the peer's against foretype's of the same \
         precision; memory read at {:.1} GB/s",
        bytes_per_second / 1e9
    );
    Report::new(title, rows).write(folder, NAME, &table(rows))?;
    report::write_csv(folder, NAME, rows)?;
    for precision in ["fp32", "reduced"] {
        plot_batch(folder, rows, precision)?;
    }
    plot_floor(folder, rows)
}

fn cells(rows: &[Row]) -> Vec<Cell> {
    let mut cells: Vec<Cell> =
        rows.iter().map(|row| Cell { prompt: row.prompt, rows: row.rows, new: row.new }).collect();
    cells.dedup();
    cells
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for cell in cells(rows) {
        let of_cell = rows.iter().filter(|row| (row.prompt, row.rows, row.new) == (cell.prompt, cell.rows, cell.new));
        let table = report::table(
            of_cell,
            &[
                ("engine", |row| row.engine.clone()),
                ("precision", |row| row.precision.to_owned()),
                ("total ms", |row| maybe(row.total_ms, |x| decimals(x, 2))),
                ("spread", |row| maybe(row.total_spread, percent)),
                ("step ms", |row| maybe(row.step_ms, |x| decimals(x, 2))),
                ("spread", |row| maybe(row.step_spread, percent)),
                ("total x foretype", |row| maybe(row.total_ratio, |x| decimals(x, 2))),
                ("step x foretype", |row| maybe(row.step_ratio, |x| decimals(x, 2))),
                ("x floor", |row| maybe(row.times_floor, |x| decimals(x, 2))),
                ("tokens equal", |row| maybe(row.tokens_equal, percent)),
                ("resident MiB", |row| maybe(row.resident_mib, |mib| decimals(mib, 0))),
                ("version", |row| row.absent.clone().unwrap_or_else(|| row.version.clone())),
            ],
        );
        text += &format!("prompt {} x {} rows, {} new tokens\n{table}\n\n", cell.prompt, cell.rows, cell.new);
    }
    text
}

/// Tokens per second against rows, for the cells with prompts of 8.
fn plot_batch(folder: &Path, rows: &[Row], precision: &str) -> Result<()> {
    let chosen: Vec<&Row> = rows.iter().filter(|row| row.precision == precision && row.prompt == 8).collect();
    let mut names: Vec<&str> = chosen.iter().map(|row| row.engine.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: chosen
            .iter()
            .filter(|row| row.engine == name)
            .filter_map(|row| Some((row.rows as f64, (row.rows * row.new) as f64 / row.total_ms? * 1000.0)))
            .collect(),
    };
    let lines: Vec<Line> = names.into_iter().map(line).filter(|line| !line.points.is_empty()).collect();
    let caption = format!("Throughput against rows, {precision}, prompts of 8");
    let words = Words { caption: &caption, x: "rows", y: "tokens per second" };
    plot::lines(&report::file(folder, &format!("{NAME}-batch-{precision}"), "svg"), &words, &lines)
}

/// The roofline: foretype's steps against rows, with the time of reading the weights once.
fn plot_floor(folder: &Path, rows: &[Row]) -> Result<()> {
    let mut lines = Vec::new();
    for precision in ["fp32", "reduced"] {
        let own = || rows.iter().filter(|row| row.own && row.precision == precision && row.prompt == 8);
        let line = |name: String, of: fn(&Row) -> Option<f64>| Line {
            name,
            points: own().filter_map(|row| Some((row.rows as f64, of(row)?))).collect(),
        };
        let name = if precision == "fp32" { "fp32" } else { "int8" };
        lines.push(line(format!("foretype {name}, step"), |row| row.step_ms));
        lines.push(line(format!("{name} weights read once"), |row| Some(row.step_ms? / row.times_floor?)));
    }
    lines.retain(|line| !line.points.is_empty());
    let words = Words { caption: "A step against the floor of memory", x: "rows", y: "milliseconds" };
    plot::lines(&report::file(folder, &format!("{NAME}-roofline"), "svg"), &words, &lines)
}
