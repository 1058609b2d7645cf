//! Results: a table for people, CSV for spreadsheets, JSON for programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::machine::Machine;

/// A measurement's results, as written to `NAME.*`.
#[derive(Debug, Serialize)]
pub struct Report<'a, R> {
    /// What was measured, in a sentence.
    pub title: String,
    /// The machine and the commit.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// What was measured, row by row.
    pub rows: &'a [R],
}

impl<'a, R: Serialize> Report<'a, R> {
    /// A report of rows measured here.
    pub fn new(title: impl Into<String>, rows: &'a [R]) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("foretype-bench {}", arguments.join(" "));
        Self { title: title.into(), machine: Machine::describe(), command, rows }
    }

    /// Writes text and JSON, and prints the text.
    pub fn write(&self, folder: &Path, name: &str, table: &str) -> Result<()> {
        println!("\n{}", self.text(table));
        self.save(folder, name, table)
    }

    fn text(&self, table: &str) -> String {
        format!("{}\n{}\n{}\n\n{table}\n", self.title, self.machine.line(), self.command)
    }

    /// Writes text and JSON.
    pub fn save(&self, folder: &Path, name: &str, table: &str) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(file(folder, name, "txt"), self.text(table))?;
        Ok(fs::write(file(folder, name, "json"), serde_json::to_vec_pretty(self)?)?)
    }
}

/// Writes rows of plain fields.
pub fn write_csv<R: Serialize>(folder: &Path, name: &str, rows: &[R]) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut writer = csv::Writer::from_path(file(folder, name, "csv"))?;
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.flush()?)
}

/// `NAME.EXTENSION`.
pub fn file(folder: &Path, name: &str, extension: &str) -> PathBuf {
    folder.join(format!("{name}.{extension}"))
}

/// A column of a table: its header, and what it shows of a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// A table for people.
pub fn table<'a, R: 'a>(rows: impl IntoIterator<Item = &'a R>, columns: &[Column<R>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|(header, _)| *header));
    for row in rows {
        table.add_row(columns.iter().map(|(_, show)| show(row)));
    }
    table.to_string()
}

/// A number with this many decimals.
pub fn decimals(value: f64, count: usize) -> String {
    format!("{value:.count$}")
}

/// `yes` or `no`.
pub fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// A share from 0 to 1, written as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A value that the server may not say.
pub fn maybe(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "n/a".to_owned(), show)
}
