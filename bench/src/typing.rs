//! `typing`: people who type, as an open loop. Each keystroke sends the whole text typed so far when it is typed,
//! whether or not the last was answered, and its latency counts from the instant it was due. How many people can type
//! is found by doubling, then halving the gap; each trial has a server of its own, so that none answers from another's
//! memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Invocation, Outcome, Pool};
use crate::ladder::Ladder;
use crate::latency::Latencies;
use crate::metrics::{Reading, ratio};
use crate::model::{Model, SearchArgs, Setting};
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals, maybe, percent, yes_no};
use crate::server::Program;
use crate::tally::{SUPERSEDED, Tally};
use crate::workload::{Queries, Texts};

/// Most keystrokes of a sustained trial that may be superseded, as a share: a server that drops everything is quick.
pub const MOST_SUPERSEDED: f64 = 0.05;
/// The gap between sustained and not at which a search for people ends, as a share.
pub const PRECISION: f64 = 0.07;
/// Keys per second: each person has a speed of their own.
const SPEED: std::ops::Range<f64> = 5.0..8.0;
/// By what each pause between keys differs from the person's own.
const JITTER: std::ops::Range<f64> = 0.6..1.4;
/// Seconds between queries.
const BETWEEN: std::ops::Range<f64> = 1.0..3.0;
/// Answers that come later than this after the last keystroke are not waited for.
const DRAIN: Duration = Duration::from_secs(30);

/// Arguments of `typing`.
#[derive(Clone, Debug, Args)]
pub struct TypingArgs {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    search: SearchArgs,
    /// Deadline in milliseconds. Default: the server's.
    #[arg(long)]
    deadline_ms: Option<u64>,
    /// Most milliseconds of the 99th percentile for which a number of people counts as sustained.
    #[arg(long, default_value_t = 100.0)]
    p99_ms: f64,
    /// Most keystrokes that may be superseded: a server that drops everything is quick.
    #[arg(long, default_value_t = MOST_SUPERSEDED)]
    superseded: f64,
    /// Seconds of a trial that count.
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Seconds before that, in which people start.
    #[arg(long, default_value_t = 4.0)]
    warmup: f64,
    /// People to start with.
    #[arg(long, default_value_t = 8)]
    from: usize,
    /// People at most.
    #[arg(long, default_value_t = 1024)]
    to: usize,
    /// The gap between sustained and not at which the search ends, as a share.
    #[arg(long, default_value_t = PRECISION)]
    precision: f64,
}

/// One trial.
#[derive(Clone, Debug, Serialize)]
struct Row {
    people: usize,
    keystrokes: u64,
    per_second: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    /// Of keystrokes that were not superseded.
    served_p99_ms: f64,
    superseded_share: f64,
    /// Keystrokes answered with at least one suggestion within the bound.
    useful_share: f64,
    empty_share: f64,
    failed: u64,
    outcomes: String,
    /// From the server's metrics, where it has them: of the positions computed, those for requests that were then
    /// dropped.
    wasted_share: Option<f64>,
    lookahead_positions: Option<f64>,
    rows_per_step: Option<f64>,
    sustained: bool,
}

/// A key that is due.
#[derive(Clone, Debug)]
pub struct Keystroke {
    /// From the start.
    pub due: Duration,
    /// Who types it.
    pub person: usize,
    /// All that has been typed with it.
    pub text: String,
}

/// What the keystrokes' tasks write into.
#[derive(Default)]
struct Seen {
    all: Latencies,
    served: Latencies,
    tally: Tally,
    useful: u64,
}

impl TypingArgs {
    /// Searches and writes `load-typing-MODEL.*`.
    pub async fn run(self) -> Result<()> {
        let program = Program::find(&self.setting)?;
        let model = Model::open(self.search.model, &self.setting)?;
        let mut rows = Vec::new();
        let sustained = self.search(&program, &model, &mut rows).await?;
        rows.sort_by_key(|row: &Row| row.people);
        let title = format!(
            "Typing, {}: {sustained} people sustained at p99 <= {} ms a keystroke ({} suggestions, {} new tokens)",
            self.search.model.text(),
            self.p99_ms,
            self.search.suggestions,
            self.search.max_new_tokens
        );
        let (folder, name) = (&self.setting.results, format!("load-typing-{}", self.search.model.text()));
        Report::new(title, &rows).write(folder, &name, &table(&rows))?;
        report::write_csv(folder, &name, &rows)?;
        let line = |name: &str, of: fn(&Row) -> f64| Line {
            name: name.to_owned(),
            points: rows.iter().map(|row| (row.people as f64, of(row).min(5.0 * self.p99_ms))).collect(),
        };
        let lines = [line("p50", |row| row.p50_ms), line("p95", |row| row.p95_ms), line("p99", |row| row.p99_ms)];
        let caption = format!("Latency of a keystroke, {}", self.search.model.text());
        let words = Words { caption: &caption, x: "people typing", y: "milliseconds" };
        plot::lines(&report::file(folder, &name, "svg"), &words, &lines)
    }

    async fn search(&self, program: &Program, model: &Model, rows: &mut Vec<Row>) -> Result<usize> {
        let ladder = Ladder { from: self.from, to: self.to, factor: 2.0, precision: self.precision };
        let (mut low, mut high) = (0, None);
        while let Some(people) = ladder.next(low, high) {
            let row = self.trial(program, model, people).await?;
            if row.sustained {
                low = people;
            } else {
                high = Some(people);
            }
            rows.push(row);
        }
        Ok(low)
    }

    async fn trial(&self, program: &Program, model: &Model, people: usize) -> Result<Row> {
        let server = program.start(model, &[]).await?;
        let has_sessions = server.has_sessions().await?;
        let warmup = Duration::from_secs_f64(self.warmup);
        let until = warmup + Duration::from_secs_f64(self.seconds);
        let mut texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed);
        let keystrokes = schedule(|| texts.query(), people, warmup, until);
        let (pool, seen) = (Arc::new(Pool::new(server.address)), Arc::new(Mutex::new(Seen::default())));
        let bound = Duration::from_secs_f64(self.p99_ms / 1000.0);
        let (mut tasks, mut due_in_all) = (JoinSet::new(), 0);
        let started = Instant::now();
        for Keystroke { due, person, text } in keystrokes {
            let invocation = Invocation {
                deadline_ms: self.deadline_ms,
                session: has_sessions.then(|| format!("person-{person}")),
                ..self.search.invocation(text)
            };
            tokio::time::sleep_until(started + due).await;
            due_in_all += u64::from(due >= warmup);
            let (pool, seen) = (Arc::clone(&pool), Arc::clone(&seen));
            tasks.spawn(async move {
                let outcome = pool.complete(&invocation).await;
                if due >= warmup {
                    let latency = (started + due).elapsed();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).add(latency, &outcome, bound);
                }
            });
        }
        let drained = async { while tasks.join_next().await.is_some() {} };
        drop(tokio::time::timeout(DRAIN, drained).await);
        let reading = Reading::take(server.address).await;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in seen.tally.requests..due_in_all {
            seen.add(DRAIN, &Outcome::Lost("no answer before the trial's end".into()), bound);
        }
        let row = self.row(people, &seen, reading.as_ref());
        println!(
            "{people:4} people, {:6.1} keystrokes/s: p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, superseded {}, \
             sustained: {} ({}{})",
            row.per_second,
            row.p50_ms,
            row.p95_ms,
            row.p99_ms,
            percent(row.superseded_share),
            row.sustained,
            row.outcomes,
            if has_sessions { "" } else { "; the server has no sessions" }
        );
        Ok(row)
    }

    fn row(&self, people: usize, seen: &Seen, reading: Option<&Reading>) -> Row {
        let Seen { all, served, tally, useful } = seen;
        let share = |count: u64| count as f64 / all.len().max(1) as f64;
        let sum = |name| reading.and_then(|reading| reading.sum(name));
        let superseded_share = share(tally.count(SUPERSEDED));
        let p99_ms = all.percentile_ms(99.0);
        Row {
            people,
            keystrokes: all.len(),
            per_second: all.len() as f64 / self.seconds,
            p50_ms: all.percentile_ms(50.0),
            p95_ms: all.percentile_ms(95.0),
            p99_ms,
            served_p99_ms: served.percentile_ms(99.0),
            superseded_share,
            useful_share: share(*useful),
            empty_share: share(tally.empty),
            failed: tally.requests - tally.answered,
            outcomes: tally.line(),
            wasted_share: ratio(sum("foretype_positions_wasted_total"), sum("foretype_positions_computed_total")),
            lookahead_positions: sum("foretype_positions_lookahead_total"),
            rows_per_step: ratio(sum("foretype_step_rows_sum"), sum("foretype_step_rows_count")),
            sustained: all.len() > 0 && p99_ms <= self.p99_ms && superseded_share <= self.superseded,
        }
    }
}

impl Seen {
    /// Adds a keystroke that is over. One that was refused or lost is later than any bound.
    fn add(&mut self, latency: Duration, outcome: &Outcome, bound: Duration) {
        self.tally.add(outcome);
        match outcome {
            Outcome::Answered(answer) => {
                self.all.record(latency);
                if answer.finish != SUPERSEDED {
                    self.served.record(latency);
                    self.useful += u64::from(!answer.suggestions.is_empty() && latency <= bound);
                }
            }
            Outcome::Status(_) | Outcome::Lost(_) => {
                self.all.record_failure();
                self.served.record_failure();
            }
        }
    }
}

/// All keystrokes of all people, by when they are due. `next` is the text that someone types next, from its first
/// character to its last.
pub fn schedule(mut next: impl FnMut() -> String, people: usize, warmup: Duration, until: Duration) -> Vec<Keystroke> {
    let mut keystrokes = Vec::new();
    for person in 0..people {
        let mut rng = StdRng::seed_from_u64(person as u64);
        let speed = rng.random_range(SPEED);
        // Nobody starts with the others.
        let mut now = rng.random_range(0.0..warmup.as_secs_f64().max(0.001));
        'typing: loop {
            let query = next();
            let ends = query.char_indices().map(|(at, character)| at + character.len_utf8());
            for end in ends {
                if now >= until.as_secs_f64() {
                    break 'typing;
                }
                keystrokes.push(Keystroke { due: Duration::from_secs_f64(now), person, text: query[..end].to_owned() });
                now += rng.random_range(JITTER) / speed;
            }
            now += rng.random_range(BETWEEN);
        }
    }
    keystrokes.sort_by_key(|keystroke| keystroke.due);
    keystrokes
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("people", |row| row.people.to_string()),
            ("keystrokes/s", |row| decimals(row.per_second, 1)),
            ("p50 ms", |row| decimals(row.p50_ms, 1)),
            ("p95 ms", |row| decimals(row.p95_ms, 1)),
            ("p99 ms", |row| decimals(row.p99_ms, 1)),
            ("served p99 ms", |row| decimals(row.served_p99_ms, 1)),
            ("superseded", |row| percent(row.superseded_share)),
            ("useful in time", |row| percent(row.useful_share)),
            ("empty", |row| percent(row.empty_share)),
            ("failed", |row| row.failed.to_string()),
            ("wasted", |row| maybe(row.wasted_share, percent)),
            ("looked ahead", |row| maybe(row.lookahead_positions, |positions| decimals(positions, 0))),
            ("rows/step", |row| maybe(row.rows_per_step, |rows| decimals(rows, 1))),
            ("sustained", |row| yes_no(row.sustained)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Answer;

    #[test]
    fn people_type_whole_queries_at_their_speed() {
        let queries =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo/queries/heldout_unseen.txt");
        let make = || {
            let mut texts = Texts::new(Queries::load(&queries).unwrap(), 1);
            schedule(|| texts.query(), 10, Duration::from_secs(2), Duration::from_secs(30))
        };
        let keystrokes = make();
        assert_eq!(format!("{keystrokes:?}"), format!("{:?}", make()));
        assert!(keystrokes.is_sorted_by_key(|keystroke| keystroke.due));
        // 5 to 8 keys a second, less the pauses between queries.
        assert!((10 * 28 * 3..10 * 30 * 8).contains(&keystrokes.len()), "{}", keystrokes.len());
        let first: Vec<&str> = keystrokes.iter().filter(|k| k.person == 0).map(|k| k.text.as_str()).collect();
        assert!(first[1].starts_with(first[0]) && first[1].chars().count() == 2, "{first:?}");
    }

    #[test]
    fn a_refusal_is_later_than_any_bound_and_superseding_is_not_serving() {
        let mut seen = Seen::default();
        let (quick, bound) = (Duration::from_millis(1), Duration::from_millis(100));
        let superseded = Answer { finish: SUPERSEDED.into(), ..Answer::default() };
        seen.add(quick, &Outcome::Answered(superseded), bound);
        seen.add(quick, &Outcome::Status(429), bound);
        assert_eq!((seen.all.len(), seen.served.len(), seen.useful), (2, 1, 0));
        assert!(seen.served.percentile_ms(50.0) > 100_000.0);
    }
}
