//! `paper`: the workload of the paper case on whole servers.
//!
//! Ten candidates, 42 tokens in all, prompts of 10 tokens, in a closed loop at a few numbers of clients. foretype in
//! int8 is compared with PyTorch and with an ONNX Runtime wrapper, all with nginx in front.
//!
//! foretype searches for the ten most probable continuations where the others sample ten: both compute ten rows of 32
//! steps.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bundle::Quantization;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::load_tools::{Counted, Load, Tool};
use crate::model::{Model, Name, Setting};
use crate::peers::worker::{PEERS, Peer};
use crate::peers::{PeerSetting, own};
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals, maybe, yes_no};
use crate::server::Program;
use crate::workload::{Queries, Texts};
use crate::wrapper::Service;

/// Candidates of a prompt.
pub const CANDIDATES: usize = 10;
/// Tokens of a candidate, its prompt included.
pub const TOTAL_TOKENS: usize = 42;
/// Arguments of foretype's server for the paper case: ten rows of a candidate's steps, and nothing besides.
pub const PAPER_SERVER: &str = "--lanes 40 --beams 10 --no-lookahead";
/// Tokens of a prompt.
const PROMPT_TOKENS: usize = 10;
/// More than any cell asks for, so that no prompt comes twice.
const BODIES: usize = 2000;
const NAME: &str = "peers-paper";

/// Arguments of `paper`.
#[derive(Clone, Debug, Args)]
pub struct PaperArgs {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    peers: PeerSetting,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4")]
    clients: Vec<usize>,
    /// Seconds of a cell.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Peers, by the variant of their engine.
    #[arg(long, value_delimiter = ',', default_value = "torch-fp32,onnxruntime-standard-int8")]
    against: Vec<String>,
    /// More arguments for foretype's server.
    #[arg(long, allow_hyphen_values = true, default_value = PAPER_SERVER)]
    foretype_args: String,
    /// Shorter cells at 1 and 4 clients, JMeter at 4 only.
    #[arg(long)]
    quick: bool,
    /// The folder that holds `wrk/bodies.lua` and `jmeter/paper.jmx`.
    #[arg(long, value_name = "DIR", default_value = "bench")]
    bench: PathBuf,
}

/// One server under one number of clients.
#[derive(Clone, Debug, Serialize)]
struct Row {
    server: String,
    tool: &'static str,
    clients: usize,
    nginx: bool,
    answers: u64,
    refused: u64,
    failed: u64,
    qps: f64,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// foretype's answers per second against this server's, same tool and clients.
    foretype_qps_ratio: Option<f64>,
    /// This server's mean latency against foretype's.
    foretype_latency_ratio: Option<f64>,
    /// Why there are no figures.
    absent: Option<String>,
}

/// A server of the run.
struct Side {
    name: String,
    service: Result<Service, String>,
    is_own: bool,
}

impl PaperArgs {
    /// Measures and writes `peers-paper.*`, again after each number of clients.
    pub async fn run(mut self) -> Result<()> {
        if self.quick {
            (self.clients, self.seconds) = (vec![1, 4], 6);
        }
        let logs = self.logs();
        fs::create_dir_all(&logs)?;
        let model = Model::open(Name::Gpt2, &self.setting)?;
        let sides = self.sides(&model, &logs).await?;
        let mut texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed);
        let mut rows = Vec::new();
        for &clients in &self.clients {
            for tool in [Tool::Wrk, Tool::Jmeter] {
                if self.quick && tool == Tool::Jmeter && clients != 4 {
                    continue;
                }
                if !tool.is_installed() {
                    require::skip(tool.name(), "it is not installed; bench/setup.sh installs it");
                    continue;
                }
                let bodies = logs.join(format!("bodies-{}-{clients}.jsonl", tool.name()));
                write_bodies(&bodies, &mut texts, &model)?;
                for side in &sides {
                    let row = self.cell(side, tool, clients, &bodies).await;
                    rows.push(row);
                }
            }
            relate(&mut rows);
            self.write(&rows)?;
        }
        Ok(())
    }

    async fn sides(&self, model: &Model, logs: &Path) -> Result<Vec<Side>> {
        let installed = self.peers.installed();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut sides = Vec::new();
        let program = Program::find(&self.setting)?;
        let own = own_model(model, &self.setting, TOTAL_TOKENS as u32 + 6)?;
        let arguments: Vec<&str> = self.foretype_args.split_whitespace().collect();
        let server = program.start(&own, &arguments).await?;
        let service = Service::foretype(server, logs).await.map_err(|error| format!("{error:#}"));
        sides.push(Side { name: "foretype int8".into(), service, is_own: true });
        for peer in wanted(&self.against)? {
            println!("starting {} behind gunicorn", peer.name);
            let service = Service::peer(peer, &installed, threads, logs).await.map_err(|error| format!("{error:#}"));
            sides.push(Side { name: format!("{} in Flask, gunicorn", peer.name), service, is_own: false });
        }
        sides.iter().flat_map(|side| &side.service).try_for_each(Service::pause)?;
        Ok(sides)
    }

    /// The folder of logs and request bodies.
    fn logs(&self) -> PathBuf {
        self.setting.results.join("tmp")
    }

    async fn cell(&self, side: &Side, tool: Tool, clients: usize, bodies: &Path) -> Row {
        let empty = Row {
            server: side.name.clone(),
            tool: tool.name(),
            clients,
            nginx: side.service.as_ref().is_ok_and(Service::is_proxied),
            answers: 0,
            refused: 0,
            failed: 0,
            qps: f64::NAN,
            mean_ms: f64::NAN,
            p50_ms: f64::NAN,
            p99_ms: f64::NAN,
            max_ms: f64::NAN,
            foretype_qps_ratio: None,
            foretype_latency_ratio: None,
            absent: None,
        };
        let row = match self.measure(side, tool, clients, bodies).await {
            Ok(counted) if counted.requests == counted.refused => {
                let Counted { refused, failed, seconds, .. } = counted;
                let absent = format!("no answer in {seconds:.0} s ({refused} refused, {failed} failed)");
                Row { refused, failed, absent: Some(absent), ..empty }
            }
            Ok(counted) => Row {
                answers: counted.requests,
                refused: counted.refused,
                failed: counted.failed,
                qps: counted.qps(),
                mean_ms: counted.mean_ms,
                p50_ms: counted.p50_ms,
                p99_ms: counted.p99_ms,
                max_ms: counted.max_ms,
                ..empty
            },
            Err(error) => Row { absent: Some(format!("{error:#}")), ..empty },
        };
        println!(
            "{}, {} x{clients}: {:.2} QPS, mean {:.0} ms{}",
            row.server,
            row.tool,
            row.qps,
            row.mean_ms,
            row.absent.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
        );
        row
    }

    async fn measure(&self, side: &Side, tool: Tool, clients: usize, bodies: &Path) -> Result<Counted> {
        let service = side.service.as_ref().map_err(|reason| anyhow::anyhow!("{reason}"))?;
        service.resume()?;
        // The slow ones need time for a few answers at all.
        let seconds = if side.is_own { self.seconds } else { self.seconds * 2 };
        let load = Load { address: service.address, clients, seconds, bodies };
        let counted = tokio::task::block_in_place(|| tool.run(&load, &self.bench, &self.logs()));
        service.settle().await?;
        service.pause()?;
        counted
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let folder = &self.setting.results;
        let title = format!(
            "The paper case: {CANDIDATES} candidates, {TOTAL_TOKENS} tokens in all, prompts of {PROMPT_TOKENS} \
             tokens, closed loop"
        );
        Report::new(title, rows).write(folder, NAME, &table(rows))?;
        report::write_csv(folder, NAME, rows)?;
        let mut names: Vec<&str> = rows.iter().map(|row| row.server.as_str()).collect();
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let lines = |of: fn(&Row) -> f64| -> Vec<Line> {
            let points = |name: &str| {
                let own = rows.iter().filter(|row| row.server == name && row.tool == Tool::Wrk.name());
                own.map(|row| (row.clients as f64, of(row))).filter(|point| point.1.is_finite()).collect()
            };
            let line = |name: &&str| Line { name: (*name).to_owned(), points: points(name) };
            names.iter().map(line).filter(|line| !line.points.is_empty()).collect()
        };
        let words = Words { caption: "The paper case: latency", x: "clients", y: "mean milliseconds" };
        plot::lines(&report::file(folder, &format!("{NAME}-latency"), "svg"), &words, &lines(|row| row.mean_ms))?;
        let words = Words { caption: "The paper case: throughput", x: "clients", y: "answers per second" };
        plot::lines(&report::file(folder, &format!("{NAME}-throughput"), "svg"), &words, &lines(|row| row.qps))
    }
}

/// The same model as an int8 bundle with another context, for foretype's server.
pub fn own_model(model: &Model, setting: &Setting, context: u32) -> Result<Model> {
    let checkpoint = setting.checkpoint(model.name);
    let (bundle, manifest) = own::bundle(checkpoint, &setting.cache, context, Quantization::Int8)?;
    model.with_bundle(bundle, manifest)
}

/// Peers by `family-variant`; an empty name is none.
pub fn wanted(names: &[String]) -> Result<Vec<&'static Peer>> {
    let known = |peer: &Peer| format!("{}-{}", peer.family, peer.variant);
    let all = || PEERS.iter().map(known).collect::<Vec<_>>().join(", ");
    names
        .iter()
        .filter(|name| !name.is_empty())
        .map(|name| PEERS.iter().find(|peer| known(peer) == *name))
        .map(|found| found.with_context(|| format!("there is no such peer; the peers are {}", all())))
        .collect()
}

/// Prompts of exactly 10 tokens, in bodies that both kinds of server understand.
fn write_bodies(path: &Path, texts: &mut Texts, model: &Model) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    let mut written = 0;
    while written < BODIES {
        let words = texts.typed(Name::Gpt2);
        // As many whole words as give the length; other texts are left.
        let ends = words.char_indices().filter(|(_, c)| *c == ' ').map(|(at, _)| at).chain([words.len()]);
        let Some(end) = ends.into_iter().find(|&end| model.tokens(&words[..end]) == PROMPT_TOKENS) else { continue };
        let body = json!({
            "input": &words[..end], "suggestions": CANDIDATES, "max_new_tokens": TOTAL_TOKENS - PROMPT_TOKENS
        });
        writeln!(file, "{body}")?;
        written += 1;
    }
    Ok(file.flush()?)
}

fn relate(rows: &mut [Row]) {
    let own: Vec<Row> = rows.iter().filter(|row| row.server.starts_with("foretype")).cloned().collect();
    for row in rows.iter_mut().filter(|row| row.absent.is_none()) {
        let same = |own: &&Row| own.tool == row.tool && own.clients == row.clients && own.absent.is_none();
        if let Some(own) = own.iter().find(same) {
            row.foretype_qps_ratio = Some(own.qps / row.qps);
            row.foretype_latency_ratio = Some(row.mean_ms / own.mean_ms);
        }
    }
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("server", |row| row.server.clone()),
            ("tool", |row| row.tool.to_owned()),
            ("clients", |row| row.clients.to_string()),
            ("nginx", |row| yes_no(row.nginx)),
            ("answers", |row| row.answers.to_string()),
            ("QPS", |row| decimals(row.qps, 2)),
            ("mean ms", |row| decimals(row.mean_ms, 1)),
            ("p50 ms", |row| decimals(row.p50_ms, 1)),
            ("p99 ms", |row| decimals(row.p99_ms, 1)),
            ("max ms", |row| decimals(row.max_ms, 1)),
            ("foretype QPS x", |row| maybe(row.foretype_qps_ratio, |x| decimals(x, 2))),
            ("foretype latency /", |row| maybe(row.foretype_latency_ratio, |x| decimals(x, 2))),
            ("failed", |row| row.absent.clone().unwrap_or_else(|| (row.refused + row.failed).to_string())),
        ],
    )
}
