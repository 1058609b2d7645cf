//! The grid as files: a table, CSV, JSON, and a plot of the cost of a token by context for each model.

use std::path::Path;

use anyhow::Result;

use super::cells::Row;
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals, maybe, yes_no};

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
    report::table(
        rows,
        &[
            ("model", |row| row.model.clone()),
            ("input", |row| row.input.to_string()),
            ("output", |row| row.output.to_string()),
            ("server", |row| row.server.clone()),
            ("version", |row| row.version.clone()),
            ("nginx", |row| yes_no(row.nginx)),
            ("runs", |row| row.runs.to_string()),
            ("tokens/s", |row| decimals(row.tokens_per_second, 1)),
            ("SD", |row| maybe(row.sd, |sd| decimals(sd, 1))),
            ("x peer", |row| maybe(row.times_peer, |x| decimals(x, 2))),
            ("ms/token", |row| decimals(row.ms_per_token, 2)),
            ("step ms", |row| maybe(row.step_ms, |x| decimals(x, 2))),
            ("at context", |row| maybe(row.step_context, |context| decimals(context, 0))),
            ("step x", |row| maybe(row.step_growth, |x| decimals(x, 2))),
            ("context x", |row| maybe(row.context_growth, |x| decimals(x, 2))),
            ("failed", |row| row.failed.clone()),
        ],
    )
}
