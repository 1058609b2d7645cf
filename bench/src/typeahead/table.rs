//! The table of `typeahead`.

use super::Row;
use crate::report::{self, maybe, percent};

/// A line for each server.
pub(super) fn table(rows: &[Row]) -> String {
    let header = [
        "server",
        "keys",
        "key p50 ms",
        "p99 ms",
        "agreeing",
        "agreeing p50 ms",
        "p99 ms",
        "x foretype",
        "people",
        "p99 ms",
        "superseded",
        "fewer",
        "next p99 ms",
        "people who agree with nothing",
        "p99 ms",
        "superseded",
        "fewer",
        "next p99 ms",
        "failed",
    ];
    let mut table = report::table(&header);
    for row in rows {
        let ms = |value| maybe(value, |ms| format!("{ms:.1}"));
        table.add_row([
            row.server.clone(),
            row.keys.to_string(),
            format!("{:.2}", row.key_p50_ms),
            format!("{:.2}", row.key_p99_ms),
            row.agreeing_keys.to_string(),
            format!("{:.2}", row.agreeing_p50_ms),
            format!("{:.2}", row.agreeing_p99_ms),
            ms(row.agreeing_ratio),
            row.sustained.to_string(),
            ms(row.sustained_p99_ms),
            maybe(row.superseded_share, percent),
            maybe(row.fewer_share, percent),
            ms(row.next_p99_ms),
            row.own_sustained.to_string(),
            ms(row.own_sustained_p99_ms),
            maybe(row.own_superseded_share, percent),
            maybe(row.own_fewer_share, percent),
            ms(row.own_next_p99_ms),
            row.absent.clone().unwrap_or_else(|| row.failed.to_string()),
        ]);
    }
    table.to_string()
}
