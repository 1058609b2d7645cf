//! `typeahead`: the load of people who type, on whole servers.
//!
//! foretype is compared with itself without its caches, and with other engines in a simple wrapper: for every key the
//! typed text goes in and ten candidates come out.
//!
//! There are three measures. The first is the latency of keys that agree with the first suggestion: one person types a
//! query, and half-way continues along it. The second is how many people can type like that at once, at the speed of
//! [`crate::people`], with the 99th percentile of a key within a bound. The third is how many who agree with nothing:
//! they type whole held-out queries.

mod replay;
mod table;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use crate::client::{Connection, Invocation, Outcome, Pool};
use crate::ladder::Ladder;
use crate::latency::Latencies;
use crate::model::{Model, Name, Setting};
use crate::paper::{own_model, wanted};
use crate::peers::PeerSetting;
use crate::peers::worker::{Installed, Peer};
use crate::people::{self, Keystroke, MOST_SUPERSEDED, PRECISION, Trial, Wanted, schedule};
use crate::report::{self, Report, percent};
use crate::server::Program;
use crate::workload::{Queries, Texts};
use crate::wrapper::Service;
use replay::{Followed, Key};

/// Between two keys of the one person: 6 keys a second.
const PAUSE: Duration = Duration::from_millis(160);
/// Texts that a person begins in a trial, at most: none takes less than two seconds with the pause behind it.
const SECONDS_PER_TEXT: f64 = 2.0;
/// Seconds in which people start, before those that count.
const WARMUP: Duration = Duration::from_secs(2);
/// What turns foretype's memory off: no page more than one text needs, no distributions kept, nothing prepared while
/// idle.
const WITHOUT_CACHE: &str = "--kv-pool-mib 0 --prefix-cache-mib 0 --no-lookahead";
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
    #[arg(long, allow_hyphen_values = true, default_value = "--lanes 64 --beams 5")]
    foretype_args: String,
    /// Fewer queries, shorter trials.
    #[arg(long)]
    quick: bool,
}

/// A row of the table: what one server reached.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    server: String,
    /// Keys of the one person, those of them that agree with the first suggestion, and the others, their own.
    keys: u64,
    agreeing_keys: u64,
    key_p50_ms: f64,
    key_p99_ms: f64,
    agreeing_p50_ms: f64,
    agreeing_p99_ms: f64,
    own_key_p50_ms: f64,
    own_key_p99_ms: f64,
    failed: u64,
    /// People at once with the 99th percentile within the bound, who go on along the first suggestion.
    sustained: usize,
    sustained_p99_ms: Option<f64>,
    /// Shares of its answers: superseded, and with fewer suggestions than were asked for.
    superseded_share: Option<f64>,
    fewer_share: Option<f64>,
    /// 99th percentile of a key at the smallest number of people that was not sustained.
    next_p99_ms: Option<f64>,
    /// People sustained who accept no suggestion.
    own_sustained: usize,
    own_sustained_p99_ms: Option<f64>,
    own_superseded_share: Option<f64>,
    own_fewer_share: Option<f64>,
    own_next_p99_ms: Option<f64>,
    /// This server's median of agreeing keys against foretype's.
    agreeing_ratio: Option<f64>,
    /// Why there are no figures.
    absent: Option<String>,
}

/// What people type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typists {
    /// Half a held-out query, and on along the first suggestion.
    Agreeing,
    /// Whole held-out queries.
    Own,
}

/// How many people a server sustains.
#[derive(Clone, Copy, Debug, Default)]
struct Sustained {
    people: usize,
    /// That many people's.
    trial: Option<Trial>,
    next_p99_ms: Option<f64>,
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
            ("foretype int8, prefix cache off".to_owned(), Kind::Foretype(WITHOUT_CACHE)),
        ];
        kinds.extend(
            wanted(&self.against)?.into_iter().map(|peer| (format!("{} wrapper", peer.name), Kind::Peer(peer))),
        );
        let queries = Queries::load(&self.setting.queries)?;
        let texts = |seed| Followed::new(Texts::new(queries.clone(), seed));
        let (mut one, mut many) = (texts(self.setting.seed), texts(self.setting.seed + 7));
        self.follow(&model, &mut one, self.typed_queries).await?;
        let mut rows = Vec::<Row>::new();
        for (name, kind) in kinds {
            println!("{name}");
            let row = self.server(&model, &kind, &one, &mut many).await;
            let row = row.unwrap_or_else(|error| Row { absent: Some(format!("{error:#}")), ..Row::default() });
            let ours = rows.first().map(|own| own.agreeing_p50_ms).filter(|_| row.absent.is_none());
            rows.push(Row { server: name, agreeing_ratio: ours.map(|ours| row.agreeing_p50_ms / ours), ..row });
            self.write(&rows)?;
        }
        Ok(())
    }

    /// Makes sure of `count` texts: asks a foretype that is not measured.
    async fn follow(&self, model: &Model, texts: &mut Followed, count: usize) -> Result<()> {
        if texts.len() >= count {
            return Ok(());
        }
        let service = self.start(model, &Kind::Foretype("")).await?;
        texts.ask(count, &Pool::new(service.address), |typed| self.invocation(typed)).await
    }

    async fn server(&self, model: &Model, kind: &Kind<'_>, one: &Followed, many: &mut Followed) -> Result<Row> {
        let row = self.one_person(&self.start(model, kind).await?, one.keys(self.typed_queries)).await?;
        let agreeing = self.sustained(model, kind, Typists::Agreeing, many).await?;
        let own = self.sustained(model, kind, Typists::Own, many).await?;
        Ok(Row {
            sustained: agreeing.people,
            sustained_p99_ms: agreeing.trial.map(|trial| trial.p99_ms),
            superseded_share: agreeing.trial.map(|trial| trial.superseded_share),
            fewer_share: agreeing.trial.map(|trial| trial.fewer_share),
            next_p99_ms: agreeing.next_p99_ms,
            own_sustained: own.people,
            own_sustained_p99_ms: own.trial.map(|trial| trial.p99_ms),
            own_superseded_share: own.trial.map(|trial| trial.superseded_share),
            own_fewer_share: own.trial.map(|trial| trial.fewer_share),
            own_next_p99_ms: own.next_p99_ms,
            ..row
        })
    }

    /// Climbs the ladder, with a fresh server for each number of people.
    async fn sustained(
        &self,
        model: &Model,
        kind: &Kind<'_>,
        typists: Typists,
        texts: &mut Followed,
    ) -> Result<Sustained> {
        let factor = if self.quick { 2.0 } else { 1.5 };
        let ladder = Ladder { from: self.from, to: self.to, factor, precision: self.precision };
        let (mut sustained, mut failed) = (Sustained::default(), None);
        while let Some(people) = ladder.next(sustained.people, failed) {
            if typists == Typists::Agreeing {
                let each = ((WARMUP.as_secs_f64() + self.seconds) / SECONDS_PER_TEXT).ceil() as usize;
                self.follow(model, texts, people * each).await?;
            }
            let keystrokes = self.keystrokes(people, typists, texts)?;
            let service = self.start(model, kind).await?;
            let wanted = Wanted { suggestions: self.suggestions, from: WARMUP };
            let trial = people::trial(service.address, keystrokes, wanted, |typed| self.invocation(typed)).await;
            let Trial { p99_ms, superseded_share, fewer_share } = trial;
            println!(
                "  {people} people, {typists:?}: p99 {p99_ms:.1} ms, superseded {}, fewer suggestions {}",
                percent(superseded_share),
                percent(fewer_share)
            );
            if p99_ms > self.p99_ms || superseded_share > MOST_SUPERSEDED {
                (failed, sustained.next_p99_ms) = (Some(people), Some(p99_ms));
            } else {
                (sustained.people, sustained.trial) = (people, Some(trial));
            }
        }
        Ok(sustained)
    }

    /// What a number of people type, and when.
    fn keystrokes(&self, people: usize, typists: Typists, followed: &Followed) -> Result<Vec<Keystroke>> {
        let until = WARMUP + Duration::from_secs_f64(self.seconds);
        if typists == Typists::Own {
            let mut texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed + 7);
            return Ok(schedule(|| texts.query(), people, WARMUP, until));
        }
        // Enough for everyone: see `sustained`.
        let mut texts = followed.texts().cycle();
        Ok(schedule(|| texts.next().unwrap_or_default().to_owned(), people, WARMUP, until))
    }

    async fn start(&self, model: &Model, kind: &Kind<'_>) -> Result<Service> {
        let logs = self.setting.results.join("tmp");
        let service = match kind {
            Kind::Foretype(more) => {
                let program = Program::find(&self.setting)?;
                let arguments: Vec<&str> =
                    self.foretype_args.split_whitespace().chain(more.split_whitespace()).collect();
                Service::foretype(program.start(model, &arguments).await?, &logs).await?
            }
            Kind::Peer(peer) => {
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                let installed: Installed = self.peers.installed();
                Service::peer(peer, &installed, threads, &logs).await?
            }
        };
        // Without it gunicorn closes every connection behind an answer.
        ensure!(service.is_proxied(), "nginx is not installed; bench/setup.sh installs it");
        Ok(service)
    }

    fn invocation(&self, typed: &str) -> Invocation {
        Invocation {
            input: typed.to_owned(),
            suggestions: Some(self.suggestions),
            max_new_tokens: Some(self.max_new_tokens),
            ..Invocation::default()
        }
    }

    /// Types the keys one after the other at a person's speed; the next waits for the answer if that takes longer.
    async fn one_person(&self, service: &Service, keys: impl Iterator<Item = Key>) -> Result<Row> {
        let mut connection = Connection::open(service.address).await?;
        let (mut all, mut agreeing, mut own) = (Latencies::default(), Latencies::default(), Latencies::default());
        let mut failed = 0;
        for key in keys {
            let started = Instant::now();
            let outcome = connection.complete(&self.invocation(&key.typed)).await;
            let latency = started.elapsed();
            if !matches!(outcome, Ok(Outcome::Answered(_))) {
                failed += 1;
                connection = Connection::open(service.address).await.context("a new connection")?;
            }
            all.record(latency);
            if key.agrees { &mut agreeing } else { &mut own }.record(latency);
            tokio::time::sleep_until(started + PAUSE.max(latency)).await;
        }
        Ok(Row {
            keys: all.len(),
            agreeing_keys: agreeing.len(),
            key_p50_ms: all.percentile_ms(50.0),
            key_p99_ms: all.percentile_ms(99.0),
            agreeing_p50_ms: agreeing.percentile_ms(50.0),
            agreeing_p99_ms: agreeing.percentile_ms(99.0),
            own_key_p50_ms: own.percentile_ms(50.0),
            own_key_p99_ms: own.percentile_ms(99.0),
            failed,
            ..Row::default()
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
        Report::new(title, rows).write(&self.setting.results, &name, &table::table(rows))?;
        report::write_csv(&self.setting.results, &name, rows)
    }
}
