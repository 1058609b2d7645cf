//! The table of `typeahead`.

use super::Row;
use crate::report::{self, decimals, maybe, percent};

/// A line for each server.
pub(super) fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("server", |row| row.server.clone()),
            ("keys", |row| row.keys.to_string()),
            ("key p50 ms", |row| decimals(row.key_p50_ms, 2)),
            ("p99 ms", |row| decimals(row.key_p99_ms, 2)),
            ("agreeing", |row| row.agreeing_keys.to_string()),
            ("agreeing p50 ms", |row| decimals(row.agreeing_p50_ms, 2)),
            ("p99 ms", |row| decimals(row.agreeing_p99_ms, 2)),
            ("own p50 ms", |row| decimals(row.own_key_p50_ms, 2)),
            ("p99 ms", |row| decimals(row.own_key_p99_ms, 2)),
            ("x foretype", |row| maybe(row.agreeing_ratio, |x| decimals(x, 1))),
            ("people", |row| row.sustained.to_string()),
            ("p99 ms", |row| maybe(row.sustained_p99_ms, |x| decimals(x, 1))),
            ("superseded", |row| maybe(row.superseded_share, percent)),
            ("fewer", |row| maybe(row.fewer_share, percent)),
            ("next p99 ms", |row| maybe(row.next_p99_ms, |x| decimals(x, 1))),
            ("people who agree with nothing", |row| row.own_sustained.to_string()),
            ("p99 ms", |row| maybe(row.own_sustained_p99_ms, |x| decimals(x, 1))),
            ("superseded", |row| maybe(row.own_superseded_share, percent)),
            ("fewer", |row| maybe(row.own_fewer_share, percent)),
            ("next p99 ms", |row| maybe(row.own_next_p99_ms, |x| decimals(x, 1))),
            ("failed", |row| row.absent.clone().unwrap_or_else(|| row.failed.to_string())),
        ],
    )
}
