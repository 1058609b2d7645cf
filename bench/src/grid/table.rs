//! The grid as files: a table, CSV, JSON, and a plot of the cost of a token by context for each model.

use std::path::Path;

use anyhow::Result;

use super::cells::Row;
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, maybe};

const NAME: &str = "peers-grid";

/// Writes `peers-grid.*`.
pub(super) fn write(folder: &Path, rows: &[Row]) -> Result<()> {
    let title =
        "Generation by the lengths of prompt and answer: one client, one sequence, sampled, through the endpoint";
    Report::new(title, rows).save(folder, NAME, &text(rows))?;
    report::write_csv(folder, NAME, rows)?;
    let mut models: Vec<&str> = rows.iter().map(|row| row.model.as_str()).collect();
    models.dedup();
    for model in models {
        let of_model: Vec<&Row> = rows.iter().filter(|row| row.model == model).collect();
        let caption = format!("Cost of a token by the tokens before it, {model}");
        let words = Words { caption: &caption, x: "tokens before", y: "milliseconds" };
        let lines = lines(&of_model);
        if !lines.is_empty() {
            plot::lines(&report::file(folder, &format!("{NAME}-{model}"), "svg"), &words, &lines)?;
        }
    }
    Ok(())
}

/// A line for each server that has costs by context.
fn lines(rows: &[&Row]) -> Vec<Line> {
    let mut servers: Vec<&str> = rows.iter().map(|row| row.server.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    let points = |server: &str| {
        let own = rows.iter().filter(|row| row.server == server);
        own.filter_map(|row| row.step_context.zip(row.step_ms)).collect()
    };
    let lines = servers.into_iter().map(|server| Line { name: server.to_owned(), points: points(server) });
    lines.filter(|line| !line.points.is_empty()).collect()
}

/// The table for people.
pub(super) fn text(rows: &[Row]) -> String {
    let header = [
        "model",
        "input",
        "output",
        "server",
        "version",
        "nginx",
        "runs",
        "tokens/s",
        "SD",
        "x peer",
        "ms/token",
        "step ms",
        "at context",
        "step x",
        "context x",
        "failed",
    ];
    let mut table = report::table(&header);
    for row in rows {
        let ratio = |value| maybe(value, |value| format!("{value:.2}"));
        table.add_row([
            row.model.clone(),
            row.input.to_string(),
            row.output.to_string(),
            row.server.clone(),
            row.version.clone(),
            if row.nginx { "yes" } else { "no" }.to_owned(),
            row.runs.to_string(),
            format!("{:.1}", row.tokens_per_second),
            maybe(row.sd, |sd| format!("{sd:.1}")),
            ratio(row.times_peer),
            format!("{:.2}", row.ms_per_token),
            ratio(row.step_ms),
            maybe(row.step_context, |context| format!("{context:.0}")),
            ratio(row.step_growth),
            ratio(row.context_growth),
            row.failed.clone(),
        ]);
    }
    table.to_string()
}
