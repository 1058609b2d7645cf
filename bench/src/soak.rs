//! `soak`: hours of mixed traffic while engines fail, processes are killed, the disk is full and clients leave.
//!
//! There are four servers. One has every kind of traffic, and a log on a disk that is full from time to time. One loads
//! and unloads models from that disk. One is killed and started again. One has the fake engine, which panics, errs,
//! computes NaN and hangs.
//!
//! No request may be lost but those of a killed process, which a client sends again. No answer may be wrong. Memory
//! must stay. Afterwards nothing may run, wait or be held.

mod faults;
mod traffic;
mod watched;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use hyper::{Method, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::faults::SmallDisk;
use self::traffic::{Client, INVOCATIONS, Kind, Target, Verdict};
use self::watched::{Row, Watched};
use crate::client::Connection;
use crate::fake_server::FakeServer;
use crate::metrics::Reading;
use crate::model::Setting;
use crate::report::{self, Report};
use crate::server::{self, Program, Server};

/// Clients of each server.
const CLIENTS: usize = 4;
/// A client's pause between two requests, in milliseconds.
const PAUSE: std::ops::Range<u64> = 20..200;
/// Between two kills of a process.
const KILL: Duration = Duration::from_secs(30);
/// How long the disk is full, and how long it isn't.
const DISK: Duration = Duration::from_secs(20);
/// How long a client tries again after its server was killed.
const RETRY: Duration = Duration::from_secs(30);
/// Part of the soak after which memory must stay, and the most time that this takes.
const WARM_UP: (f64, Duration) = (0.3, Duration::from_secs(600));
/// What memory may grow by after that.
const GROWTH: f64 = 0.05;
/// Gauges that must be 0 when nobody asks for anything.
const GAUGES: [&str; 3] = ["foretype_active_requests", "foretype_queue_length", "foretype_prefix_cache_holds"];
/// Arguments of every server: caches that are full long before memory is compared.
const CACHES: [&str; 4] = ["--kv-pool-mib", "16", "--prefix-cache-mib", "16"];

/// Arguments of `soak`.
#[derive(Clone, Debug, Args)]
pub struct SoakArgs {
    #[command(flatten)]
    setting: Setting,
    /// Minutes of traffic.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Root of a file system of at most 256 MiB that nobody else uses; the soak fills it.
    #[arg(long, value_name = "DIR")]
    disk: PathBuf,
    /// A small checkpoint that is loaded and unloaded.
    #[arg(long, value_name = "DIR", default_value = "tests/goldens/plain")]
    checkpoint: PathBuf,
}

/// What all tasks of a soak share.
#[derive(Clone)]
struct Soak {
    queries: Arc<Vec<String>>,
    until: Instant,
    seed: u64,
}

impl Soak {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Mixed traffic of several clients until the soak is over.
    async fn traffic(self, target: Target, watched: Arc<Watched>) {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (soak, watched) = (self.clone(), Arc::clone(&watched));
            let mut client = Client::new(target, format!("client-{number}"), Arc::clone(&self.queries));
            let mut rng = StdRng::seed_from_u64(self.seed + number as u64);
            clients.spawn(async move {
                while !soak.is_over() {
                    watched.add(&client.any(&mut rng).await);
                    sleep(Duration::from_millis(rng.random_range(PAUSE))).await;
                }
            });
        }
        clients.join_all().await;
    }

    /// Keys at a server that may be killed at any time: a client sends a lost key again until it is answered.
    async fn keys(self, target: Target, watched: Arc<Watched>) {
        let mut client = Client::new(target, "somebody".into(), Arc::clone(&self.queries));
        let mut rng = StdRng::seed_from_u64(self.seed);
        while !self.is_over() {
            let first_try = Instant::now();
            let mut verdict = client.send(Kind::Key, &mut rng).await;
            while matches!(verdict, Verdict::Lost(_)) && first_try.elapsed() < RETRY {
                watched.add(&Verdict::Cut);
                sleep(Duration::from_millis(50)).await;
                verdict = client.send(Kind::Key, &mut rng).await;
            }
            watched.add(&verdict);
            sleep(Duration::from_millis(rng.random_range(PAUSE))).await;
        }
    }

    /// Reads a server's memory each second.
    async fn memory(self, server: &Server, watched: &Watched) {
        while !self.is_over() {
            watched.memory(server.resident_mib());
            sleep(Duration::from_secs(1)).await;
        }
    }
}

impl SoakArgs {
    /// Runs it, writes `soak.*` and fails if something was lost, wrong or kept.
    pub async fn run(self) -> Result<()> {
        silence_injected_panics();
        let program = Program::find(&self.setting)?;
        let disk = Arc::new(SmallDisk::new(&self.disk));
        disk.free()?;
        let queries = std::fs::read_to_string(&self.setting.queries)?.lines().map(str::to_owned).collect();
        let until = Instant::now() + Duration::from_secs_f64(self.minutes * 60.0);
        let soak = Soak { queries: Arc::new(queries), until, seed: self.setting.seed };
        let rows = tokio::try_join!(
            self.steady(&program, &disk, soak.clone()),
            self.models(&program, &disk, soak.clone()),
            self.killed(&program, &disk, soak.clone()),
            self.failing(soak),
        )?;
        self.finish(&<[Row; 4]>::from(rows))
    }

    /// All kinds of traffic; the log is on a disk that is full half of the time.
    async fn steady(&self, program: &Program, disk: &SmallDisk, soak: Soak) -> Result<Row> {
        let demo = self.setting.demo();
        let arguments = [&["--model".as_ref(), demo.as_os_str()], CACHES.map(OsStr::new).as_slice()].concat();
        let server = program.serve(server::free_port()?, &arguments, &disk.path("steady.log")).await?;
        let watched = Arc::new(Watched::default());
        let target = Target { address: server.address, route: INVOCATIONS, model: "demo", fails: false };
        let traffic = tokio::spawn(soak.clone().traffic(target, Arc::clone(&watched)));
        tokio::join!(soak.memory(&server, &watched)).0;
        traffic.await?;
        Ok(watched.row("every kind of traffic", self.warm_up(), gauges(server.address).await?))
    }

    /// Models come and go, built on a disk that is full half of the time; another model answers throughout.
    async fn models(&self, program: &Program, disk: &SmallDisk, soak: Soak) -> Result<Row> {
        let (cache, log) = (disk.path("cache"), disk.path("models.log"));
        let fixed = ["--multi-model".as_ref(), "--cache".as_ref(), cache.as_os_str()];
        let arguments = [fixed.as_slice(), CACHES.map(OsStr::new).as_slice()].concat();
        let server = program.serve(server::free_port()?, &arguments, &log).await?;
        let watched = Arc::new(Watched::default());
        let loaded = load(server.address, "demo", &self.setting.demo()).await?;
        ensure!(loaded.0 == 200, "the demo can't be loaded: {}", loaded.1);
        let target = Target { address: server.address, route: "/models/demo/invoke", model: "demo", fails: false };
        let traffic = tokio::spawn(soak.clone().traffic(target, Arc::clone(&watched)));
        let (_, changed) =
            tokio::join!(soak.clone().memory(&server, &watched), self.loads(server.address, disk, &soak, &watched));
        changed?;
        traffic.await?;
        Ok(watched.row("models come and go", self.warm_up(), gauges(server.address).await?))
    }

    async fn loads(&self, address: SocketAddr, disk: &SmallDisk, soak: &Soak, watched: &Watched) -> Result<()> {
        let checkpoint = std::path::absolute(&self.checkpoint)?;
        while !soak.is_over() {
            let half = Instant::now() + DISK;
            while Instant::now() < half {
                watched.add(&expect(200, &load(address, "tiny", &checkpoint).await?));
                watched.add(&expect(200, &send(address, Method::DELETE, "/models/tiny", String::new()).await?));
                sleep(Duration::from_secs(2)).await;
            }
            // A bundle that is in the cache would need no disk.
            disk.free()?;
            disk.fill()?;
            watched.fault();
            let (status, answer) = load(address, "tiny", &checkpoint).await?;
            let refused = status != 200 && answer.contains("No space");
            watched.add(&if refused {
                Verdict::Refused(status)
            } else {
                Verdict::Wrong(format!("{status}: {answer}"))
            });
            sleep_until((Instant::now() + DISK).min(soak.until)).await;
            disk.free()?;
        }
        Ok(())
    }

    /// A server that is killed and started again.
    async fn killed(&self, program: &Program, disk: &SmallDisk, soak: Soak) -> Result<Row> {
        let (demo, log, port) = (self.setting.demo(), disk.path("killed.log"), server::free_port()?);
        let arguments = [&["--model".as_ref(), demo.as_os_str()], CACHES.map(OsStr::new).as_slice()].concat();
        let mut server = program.serve(port, &arguments, &log).await?;
        let watched = Arc::new(Watched::default());
        let target = Target { address: server.address, route: INVOCATIONS, model: "demo", fails: false };
        let keys = tokio::spawn(soak.clone().keys(target, Arc::clone(&watched)));
        while !soak.is_over() {
            sleep_until((Instant::now() + KILL).min(soak.until)).await;
            if !soak.is_over() {
                drop(server);
                watched.fault();
                server = program.serve(port, &arguments, &log).await?;
            }
        }
        keys.await?;
        Ok(watched.row("killed", self.warm_up(), gauges(server.address).await?))
    }

    /// A server whose engine fails in every way that it can.
    async fn failing(&self, soak: Soak) -> Result<Row> {
        let (watched, engines) = (Arc::new(Watched::default()), AtomicU64::new(self.setting.seed));
        let counted = Arc::clone(&watched);
        let server = FakeServer::with_faults(&self.setting.demo().join("tokenizer.json"), move || {
            let (mut faults, counted) =
                (faults::engine_faults(engines.fetch_add(1, Ordering::Relaxed)), Arc::clone(&counted));
            Box::new(move |batch| faults(batch).inspect(|_| counted.fault()))
        })?;
        let target = Target { address: server.address, route: INVOCATIONS, model: "fake", fails: true };
        soak.traffic(target, Arc::clone(&watched)).await;
        Ok(watched.row("engine fails", self.warm_up(), gauges(server.address).await?))
    }

    /// Seconds after which memory must stay.
    fn warm_up(&self) -> usize {
        (self.minutes * 60.0 * WARM_UP.0).min(WARM_UP.1.as_secs_f64()) as usize
    }

    fn finish(&self, rows: &[Row]) -> Result<()> {
        let grew = |row: &&Row| row.memory_most_mib > row.memory_mib * (1.0 + GROWTH);
        let bounds = [
            (rows.iter().all(|row| row.lost == 0), "no request is lost"),
            (rows.iter().all(|row| row.wrong == 0), "no answer is wrong"),
            (rows.iter().all(|row| row.right > 0), "every server answers"),
            (!rows.iter().any(|row| grew(&row)), "memory grows by at most 5 % after the first ten minutes"),
            (rows.iter().all(|row| row.gauges == 0.0), "nothing runs, waits or is held at the end"),
        ];
        let lines = bounds.map(|(holds, what)| format!("{}  {what}", if holds { "holds " } else { "BROKEN" }));
        let first = rows.iter().filter(|row| !row.first.is_empty());
        let first: Vec<String> = first.map(|row| format!("{}: {}", row.server, row.first)).collect();
        let table = report::table(
            rows,
            &[
                ("server", |row| row.server.into()),
                ("requests", |row| row.requests.to_string()),
                ("right", |row| row.right.to_string()),
                ("refused", |row| row.refused.to_string()),
                ("cut", |row| row.cut.to_string()),
                ("lost", |row| row.lost.to_string()),
                ("wrong", |row| row.wrong.to_string()),
                ("faults", |row| row.faults.to_string()),
                ("MiB", |row| report::decimals(row.memory_mib, 1)),
                ("most MiB later", |row| report::decimals(row.memory_most_mib, 1)),
            ],
        );
        let title = format!("Soak: {} minutes of mixed traffic with faults", self.minutes);
        let text = format!("{table}\n\n{}\n{}", lines.join("\n"), first.join("\n"));
        Report::new(title, rows).write(&self.setting.results, "soak", &text)?;
        ensure!(bounds.iter().all(|(holds, _)| *holds), "a bound is broken");
        Ok(())
    }
}

/// Faults are expected; their panics are not worth a backtrace each.
fn silence_injected_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&"injected") {
            usual(panic);
        }
    }));
}

/// Sum of the gauges that must be 0 once everything is over; a cut client is noticed within a moment.
async fn gauges(address: SocketAddr) -> Result<f64> {
    let mut sum = f64::NAN;
    for _ in 0..50 {
        let reading = Reading::take(address).await.context("a server without metrics")?;
        sum = GAUGES.iter().map(|name| reading.sum(name).with_context(|| format!("no {name}"))).sum::<Result<f64>>()?;
        if sum == 0.0 {
            break;
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(sum)
}

async fn load(address: SocketAddr, name: &str, folder: &Path) -> Result<(u16, String)> {
    let folder = std::path::absolute(folder)?;
    send(address, Method::POST, "/models", json!({"model_name": name, "url": folder}).to_string()).await
}

async fn send(address: SocketAddr, method: Method, path: &str, body: String) -> Result<(u16, String)> {
    let request = Request::builder().method(method).uri(path).header("Content-Type", "application/json");
    let (status, answer) = Connection::open(address).await?.send(request, Bytes::from(body)).await?;
    Ok((status, String::from_utf8_lossy(&answer).into_owned()))
}

fn expect(wanted: u16, (status, answer): &(u16, String)) -> Verdict {
    if *status == wanted { Verdict::Right } else { Verdict::Wrong(format!("status {status}: {answer:.200}")) }
}
