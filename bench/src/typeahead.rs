//! `typeahead`: the work that people who type really cause, on whole servers. foretype against itself without its memory, and
//! against other engines in the obvious wrapper: the typed text in, ten candidates out, for every key.
//!
//! Two measures. One person types a query, and half-way goes on along the first suggestion: the latency of keys that agree with
//! it. And how many people can type at once (`typing`'s people) with the 99th percentile of a key within a bound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Connection, Invocation, Outcome, Pool};
use crate::ladder::Ladder;
use crate::latency::Latencies;
use crate::model::{Model, Name, Setting};
use crate::paper::{own_model, wanted};
use crate::peers::PeerSetting;
use crate::peers::worker::{Installed, Peer};
use crate::report::{self, Report, maybe, percent};
use crate::server::Program;
use crate::tally::{SUPERSEDED, Tally};
use crate::typing::{MOST_SUPERSEDED, PRECISION, schedule};
use crate::workload::{Queries, Texts};
use crate::wrapper::Service;

/// Between two keys of the one person: 6 keys a second.
const PAUSE: Duration = Duration::from_millis(160);
/// Keys of a query at most.
const MAX_KEYS: usize = 40;
/// Answers that come later than this after the last key are not waited for.
const DRAIN: Duration = Duration::from_secs(20);
/// What turns foretype's memory off: no page more than one text needs, no distributions kept, nothing prepared while idle.
const WITHOUT_TREE: &str = "--kv-pool-mib 0 --tree-mib 0 --no-lookahead";
const NAME: &str = "peers-typeahead";

/// Arguments of `typeahead`.
#[derive(Clone, Debug, Args)]
pub struct TypeaheadArgs {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    peers: PeerSetting,
    /// The model; --peer-models names the same one's.
    #[arg(long, default_value = "gpt2")]
    model: Name,
    /// Suggestions wanted.
    #[arg(long, default_value_t = 10)]
    suggestions: usize,
    /// Tokens that may reach beyond the typed text.
    #[arg(long, default_value_t = 4)]
    max_new_tokens: usize,
    /// Queries that the one person types.
    #[arg(long = "typed", value_name = "N", default_value_t = 10)]
    typed_queries: usize,
    /// Most milliseconds of the 99th percentile for which a number of people counts as sustained.
    #[arg(long, default_value_t = 100.0)]
    p99_ms: f64,
    /// Seconds of a trial that count.
    #[arg(long, default_value_t = 12.0)]
    seconds: f64,
    /// People to start with.
    #[arg(long, default_value_t = 1)]
    from: usize,
    /// People at most.
    #[arg(long, default_value_t = 1024)]
    to: usize,
    /// The gap between sustained and not at which the search ends, as a share.
    #[arg(long, default_value_t = PRECISION)]
    precision: f64,
    /// Peers, by the variant of their engine.
    #[arg(long, value_delimiter = ',', default_value = "onnxruntime-fused-int8,openvino-genai-int8")]
    against: Vec<String>,
    /// More arguments for foretype's servers.
    #[arg(long, allow_hyphen_values = true, default_value = "--lanes 64 --beams 10")]
    foretype_args: String,
    /// Fewer queries, shorter trials.
    #[arg(long)]
    quick: bool,
}

/// One server.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    server: String,
    /// Keys of the one person, and those of them that agree with the first suggestion.
    keys: u64,
    agreeing_keys: u64,
    key_p50_ms: f64,
    key_p99_ms: f64,
    agreeing_p50_ms: f64,
    agreeing_p99_ms: f64,
    failed: u64,
    /// People at once with the 99th percentile within the bound.
    sustained: usize,
    sustained_p99_ms: Option<f64>,
    /// Shares of its answers: superseded, and with fewer suggestions than were asked for.
    superseded_share: Option<f64>,
    fewer_share: Option<f64>,
    /// Of the smallest number that wasn't sustained.
    next_p99_ms: Option<f64>,
    /// This server's median of agreeing keys against foretype's.
    agreeing_ratio: Option<f64>,
    /// Why there are no figures.
    absent: Option<String>,
}

/// A key: what has been typed with it, and whether it agrees with the first suggestion.
#[derive(Clone, Debug)]
struct Key {
    typed: String,
    agrees: bool,
}

/// What became of the keys of so many people.
struct Trial {
    p99_ms: f64,
    superseded_share: f64,
    /// With fewer suggestions than were asked for.
    fewer_share: f64,
}

/// What the keys' tasks write into.
#[derive(Default)]
struct Seen {
    latencies: Latencies,
    tally: Tally,
    fewer: u64,
}

/// What is run behind the address.
enum Kind<'a> {
    Foretype(&'a str),
    Peer(&'static Peer),
}

impl TypeaheadArgs {
    /// Measures and writes `peers-typeahead-MODEL.*`, again after each server.
    pub async fn run(mut self) -> Result<()> {
        if self.quick {
            (self.typed_queries, self.seconds, self.to) =
                (self.typed_queries.min(2), self.seconds.min(4.0), self.to.min(32));
            self.precision = 1.0;
        }
        std::fs::create_dir_all(self.setting.results.join("tmp"))?;
        let model = Model::open(self.model, &self.setting)?;
        let model = own_model(&model, &self.setting, 64)?;
        let mut kinds = vec![
            ("foretype int8".to_owned(), Kind::Foretype("")),
            ("foretype int8, tree off".to_owned(), Kind::Foretype(WITHOUT_TREE)),
        ];
        kinds.extend(
            wanted(&self.against)?.into_iter().map(|peer| (format!("{} wrapper", peer.name), Kind::Peer(peer))),
        );
        let (mut rows, mut keys) = (Vec::<Row>::new(), None);
        for (name, kind) in kinds {
            let row = self.server(&model, &name, &kind, &mut keys).await;
            let row = row.unwrap_or_else(|error| Row { absent: Some(format!("{error:#}")), ..Row::default() });
            let ours = rows.first().map(|own| own.agreeing_p50_ms).filter(|_| row.absent.is_none());
            rows.push(Row { server: name, agreeing_ratio: ours.map(|ours| row.agreeing_p50_ms / ours), ..row });
            self.write(&rows)?;
        }
        Ok(())
    }

    async fn server(&self, model: &Model, name: &str, kind: &Kind<'_>, keys: &mut Option<Vec<Key>>) -> Result<Row> {
        println!("{name}");
        let service = self.start(model, kind).await?;
        let typed = match keys {
            Some(keys) => keys,
            // Only the first server is asked what there is to agree with; the others get the same texts.
            None => keys.insert(self.keys(&service).await?),
        };
        drop(service);
        // A fresh one, which has not seen the texts.
        let service = self.start(model, kind).await?;
        let mut row = self.one_person(&service, typed).await?;
        drop(service);
        let factor = if self.quick { 2.0 } else { 1.5 };
        let ladder = Ladder { from: self.from, to: self.to, factor, precision: self.precision };
        let mut failed = None;
        while let Some(people) = ladder.next(row.sustained, failed) {
            let service = self.start(model, kind).await?;
            let trial = self.trial(&service, people).await?;
            let Trial { p99_ms, superseded_share, fewer_share } = trial;
            println!(
                "  {people} people: p99 {p99_ms:.1} ms, superseded {}, fewer suggestions {}",
                percent(superseded_share),
                percent(fewer_share)
            );
            if p99_ms > self.p99_ms || superseded_share > MOST_SUPERSEDED {
                (failed, row.next_p99_ms) = (Some(people), Some(p99_ms));
            } else {
                (row.sustained, row.sustained_p99_ms) = (people, Some(p99_ms));
                (row.superseded_share, row.fewer_share) = (Some(superseded_share), Some(fewer_share));
            }
        }
        Ok(row)
    }

    async fn start(&self, model: &Model, kind: &Kind<'_>) -> Result<Service> {
        let logs = self.setting.results.join("tmp");
        match kind {
            Kind::Foretype(more) => {
                let program = Program::find(&self.setting)?;
                let arguments: Vec<&str> =
                    self.foretype_args.split_whitespace().chain(more.split_whitespace()).collect();
                Service::foretype(program.start(model, &arguments).await?, &logs).await
            }
            Kind::Peer(peer) => {
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                let installed: Installed = self.peers.installed();
                Service::peer(peer, &installed, threads, &logs).await
            }
        }
    }

    fn invocation(&self, typed: &str) -> Invocation {
        Invocation {
            input: typed.to_owned(),
            suggestions: Some(self.suggestions),
            max_new_tokens: Some(self.max_new_tokens),
            ..Invocation::default()
        }
    }

    /// What the one person types: the first half of a held-out query, then the first suggestion to its end.
    async fn keys(&self, service: &Service) -> Result<Vec<Key>> {
        let mut texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed);
        let mut connection = Connection::open(service.address).await?;
        let mut keys = Vec::new();
        for _ in 0..self.typed_queries {
            let query: Vec<char> = texts.query().chars().collect();
            let half = query.len().div_ceil(2).min(MAX_KEYS / 2);
            let own: String = query[..half].iter().collect();
            keys.extend(prefixes(&own, 0).map(|typed| Key { typed, agrees: false }));
            let Outcome::Answered(answer) = connection.complete(&self.invocation(&own)).await? else { continue };
            let Some(first) = answer.suggestions.into_iter().next() else { continue };
            keys.extend(prefixes(&first.text, half).map(|typed| Key { typed, agrees: true }).take(MAX_KEYS - half));
        }
        Ok(keys)
    }

    /// Types the keys one after the other at a person's speed; the next waits for the answer if that takes longer.
    async fn one_person(&self, service: &Service, keys: &[Key]) -> Result<Row> {
        let mut connection = Connection::open(service.address).await?;
        let (mut all, mut agreeing, mut failed) = (Latencies::default(), Latencies::default(), 0);
        for key in keys {
            let started = Instant::now();
            let outcome = connection.complete(&self.invocation(&key.typed)).await;
            let latency = started.elapsed();
            if !matches!(outcome, Ok(Outcome::Answered(_))) {
                failed += 1;
                connection = Connection::open(service.address).await.context("a new connection")?;
            }
            all.record(latency);
            if key.agrees {
                agreeing.record(latency);
            }
            tokio::time::sleep_until(started + PAUSE.max(latency)).await;
        }
        Ok(Row {
            keys: all.len(),
            agreeing_keys: agreeing.len(),
            key_p50_ms: all.percentile_ms(50.0),
            key_p99_ms: all.percentile_ms(99.0),
            agreeing_p50_ms: agreeing.percentile_ms(50.0),
            agreeing_p99_ms: agreeing.percentile_ms(99.0),
            failed,
            ..Row::default()
        })
    }

    /// So many people. What is refused, lost or not answered in the end counts as later than any bound.
    async fn trial(&self, service: &Service, people: usize) -> Result<Trial> {
        let warmup = Duration::from_secs(2);
        let texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed + 7);
        let keystrokes = schedule(texts, people, warmup, warmup + Duration::from_secs_f64(self.seconds));
        let due_in_all = keystrokes.iter().filter(|key| key.due >= warmup).count() as u64;
        let (pool, seen) = (Arc::new(Pool::new(service.address)), Arc::new(Mutex::new(Seen::default())));
        let (mut tasks, started, wanted) = (JoinSet::new(), Instant::now(), self.suggestions);
        for key in keystrokes {
            tokio::time::sleep_until(started + key.due).await;
            let invocation =
                Invocation { session: Some(format!("person-{}", key.person)), ..self.invocation(&key.text) };
            let (pool, seen) = (Arc::clone(&pool), Arc::clone(&seen));
            tasks.spawn(async move {
                let outcome = pool.complete(&invocation).await;
                if key.due >= warmup {
                    let latency = (started + key.due).elapsed();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).add(latency, &outcome, wanted);
                }
            });
        }
        drop(tokio::time::timeout(DRAIN, async { while tasks.join_next().await.is_some() {} }).await);
        tasks.shutdown().await;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.latencies.len()..due_in_all).for_each(|_| seen.latencies.record_failure());
        let share = |count: u64| count as f64 / due_in_all.max(1) as f64;
        Ok(Trial {
            p99_ms: seen.latencies.percentile_ms(99.0),
            superseded_share: share(seen.tally.count(SUPERSEDED)),
            fewer_share: share(seen.fewer),
        })
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let title = format!(
            "Type-ahead, {}: {} suggestions of up to {} new tokens for each key; people sustained at p99 <= {} ms",
            self.model.text(),
            self.suggestions,
            self.max_new_tokens,
            self.p99_ms
        );
        let name = format!("{NAME}-{}", self.model.text());
        Report::new(title, rows).write(&self.setting.results, &name, &table(rows))?;
        report::write_csv(&self.setting.results, &name, rows)
    }
}

impl Seen {
    /// Adds a key that is over, of which `wanted` suggestions were asked.
    fn add(&mut self, latency: Duration, outcome: &Outcome, wanted: usize) {
        self.tally.add(outcome);
        match outcome {
            Outcome::Answered(answer) => {
                self.latencies.record(latency);
                self.fewer += u64::from(answer.suggestions.len() < wanted);
            }
            Outcome::Status(_) | Outcome::Lost(_) => self.latencies.record_failure(),
        }
    }
}

/// A text's beginnings that are longer than `from` characters.
fn prefixes(text: &str, from: usize) -> impl Iterator<Item = String> + '_ {
    text.char_indices().skip(from).map(|(at, character)| text[..at + character.len_utf8()].to_owned())
}

fn table(rows: &[Row]) -> String {
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
            row.absent.clone().unwrap_or_else(|| row.failed.to_string()),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Answer, Suggestion};

    #[test]
    fn beginnings_are_whole_characters() {
        assert_eq!(prefixes("aäb", 1).collect::<Vec<_>>(), ["aä", "aäb"]);
        assert_eq!(prefixes("ab", 2).count(), 0);
    }

    #[test]
    fn answers_that_are_short_of_suggestions_are_counted() {
        let mut seen = Seen::default();
        let answer = |count| Answer { suggestions: vec![Suggestion::default(); count], ..Answer::default() };
        for outcome in [Outcome::Answered(answer(10)), Outcome::Answered(answer(9)), Outcome::Status(429)] {
            seen.add(Duration::from_millis(1), &outcome, 10);
        }
        assert_eq!((seen.latencies.len(), seen.fewer), (3, 1));
        assert!(seen.latencies.percentile_ms(99.0) > 100_000.0, "a refusal is later than any bound");
    }
}
