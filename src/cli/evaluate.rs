//! `foretype evaluate`: what a person would have got from a model, keystroke by keystroke, and what it would have cost.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bundle::manifest::Manifest;
use clap::Args;
use indicatif::ProgressBar;

use super::model_args::{ModelArgs, Setup};
use super::progress::Bar;
use crate::engine::{DEFAULT_MAX_NEW_TOKENS, DEFAULT_SUGGESTIONS};
use crate::engine::{read_text, with_channel};
use crate::evaluate::metrics::Keystroke;
use crate::evaluate::report::{self, Run};
use crate::evaluate::{Contender, Replay, ReplayOptions, typos};
use crate::models::folder;
use crate::popular;
use backends::options;
use scheduler::scheduler::Scheduler;
use scheduler::threads::calibrate::calibrate;

/// Arguments of `evaluate`.
#[derive(Clone, Debug, Args)]
pub struct EvaluateArgs {
    /// A file of complete queries, one a line; its name names the set. May be given several times.
    #[arg(long, env = "FORETYPE_QUERIES", value_name = "FILE", required = true, value_delimiter = ',')]
    queries: Vec<PathBuf>,
    /// Who answers; the first is compared with the others.
    #[arg(long, env = "FORETYPE_METHODS", value_enum, value_delimiter = ',', default_value = "exact")]
    method: Vec<Contender>,
    /// Queries of each file; they are taken at even distances. Default: all.
    #[arg(long, env = "FORETYPE_LIMIT", value_name = "N")]
    limit: Option<usize>,
    /// A file of query, tab, count lines for the methods with popular queries. Default: the bundle's own.
    #[arg(long, env = "FORETYPE_POPULAR", value_name = "FILE")]
    popular: Option<PathBuf>,
    /// Type with errors, drawn with this seed: lists for right and for mistyped text, in other case, width and accents,
    /// and what they cost. The keystrokes of whole queries are left out then.
    #[arg(long, env = "FORETYPE_TYPOS", value_name = "SEED")]
    typos: Option<u64>,
    /// Queries of the first file to type with an empty prefix cache before each keystroke, to measure cold answers; 0
    /// also leaves out the measurement with lookahead.
    #[arg(long, env = "FORETYPE_COLD", value_name = "N", default_value_t = 20)]
    cold: usize,
    /// Where the report and the plot are written, beside being printed. Default: nowhere.
    #[arg(long, env = "FORETYPE_RESULTS", value_name = "DIR")]
    results: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

impl EvaluateArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let folder = self.model.folder()?;
        let Setup { intake, engine: options, .. } = self.model.setup(&folder)?;
        let (path, manifest) = folder::open(&folder, &intake, &Bar::default())?;
        let text = Arc::new(with_channel(read_text(&path, &manifest)?, &path)?);
        let backend = options::load(&path, &manifest, &options.backend)?;
        let context = backend.limits().context;
        let mut scheduler = Scheduler::new(backend, options.requests.pool.prefix_cache_bytes);
        calibrate(&mut scheduler, text.prompt()[0])?;
        let popular = match &self.popular {
            Some(file) => Some(popular::read(file)?),
            None => popular::open(&path)?,
        };
        if let (None, Some(method)) = (&popular, self.method.iter().find(|method| method.is_popular())) {
            let name = method.name();
            return Err(format!(
                "the method {name} needs popular queries; name a file of query<TAB>count with --popular"
            )
            .into());
        }
        let mut replay = Replay {
            text: &text,
            scheduler: &mut scheduler,
            popular: popular.as_ref(),
            options: ReplayOptions {
                beams: options.requests.beams(DEFAULT_SUGGESTIONS),
                max_new_tokens: DEFAULT_MAX_NEW_TOKENS,
                context,
                cold: false,
                lookahead: false,
                popular_weight: options.requests.popular_weight,
            },
        };
        if let Some(seed) = self.typos {
            return self.replay_typos(&mut replay, seed);
        }
        let (runs, extra) = self.replay(&mut replay)?;
        let report = report_text(&manifest, &runs, &extra)?;
        print!("{report}");
        if let Some(folder) = &self.results {
            std::fs::create_dir_all(folder)?;
            std::fs::write(folder.join("evaluate.txt"), &report)?;
            let mut sets: Vec<&str> = runs.iter().map(|run| run.set.as_str()).collect();
            sets.dedup();
            for set in sets {
                report::plot(&runs, set, &folder.join(format!("evaluate-{set}.svg")))?;
            }
        }
        Ok(())
    }

    /// Types each query right and wrong, and prints what each contender makes of it.
    fn replay_typos(&self, replay: &mut Replay<'_>, seed: u64) -> Result<(), Box<dyn Error>> {
        let (mut report, mut lists) = (String::new(), String::new());
        for file in &self.queries {
            let set = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let queries = read_queries(file, self.limit)?;
            let typos = typos::run(replay, &queries, &self.method, seed)?;
            writeln!(report, "{set}, {} queries, seed {seed}\n\n{}\n", queries.len(), typos::table(&typos))?;
            for list in typos::lists(&set, &queries, &typos) {
                writeln!(lists, "{}", serde_json::to_string(&list)?)?;
            }
        }
        print!("{report}");
        if let Some(folder) = &self.results {
            std::fs::create_dir_all(folder)?;
            std::fs::write(folder.join("evaluate-typos.txt"), &report)?;
            std::fs::write(folder.join("evaluate-typos.jsonl"), &lists)?;
        }
        Ok(())
    }

    fn replay(&self, replay: &mut Replay<'_>) -> Result<(Vec<Run>, Extra), Box<dyn Error>> {
        let (mut runs, mut extra) = (Vec::new(), Vec::new());
        for file in &self.queries {
            let set = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let queries = read_queries(file, self.limit)?;
            if runs.is_empty() && self.cold > 0 {
                let some = &queries[..self.cold.min(queries.len())];
                replay.options.cold = true;
                extra.push(("exact, cold", replay.run(some, Contender::Exact, || {})?));
                replay.options.cold = false;
                replay.scheduler.reset();
                replay.options.lookahead = true;
                extra.push(("exact, warm, with lookahead", replay.run(&queries, Contender::Exact, || {})?));
                replay.options.lookahead = false;
            }
            for &contender in &self.method {
                replay.scheduler.reset();
                let bar = ProgressBar::new(queries.len() as u64).with_message(format!("{set}, {}", contender.name()));
                let keystrokes = replay.run(&queries, contender, || bar.inc(1))?;
                bar.finish_and_clear();
                let lengths = queries.iter().map(|query| query.chars().count()).collect();
                runs.push(Run { contender, set: set.clone(), lengths, keystrokes });
            }
        }
        Ok((runs, extra))
    }
}

/// Runs that only the cost table has, by name.
type Extra = Vec<(&'static str, Vec<Keystroke>)>;

fn report_text(manifest: &Manifest, runs: &[Run], extra: &Extra) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let queries: usize = runs.iter().map(|run| run.lengths.len()).max().unwrap_or(0);
    writeln!(out, "model {}, {queries} queries a set\n\n{}\n", manifest.name, report::quality(runs))?;
    writeln!(out, "MRR@10 by characters typed\n\n{}\n", report::by_length(runs))?;
    writeln!(out, "paired differences, bootstrap over queries\n\n{}\n", report::differences(runs))?;
    let warm = runs.iter().filter(|run| !run.contender.is_without_model());
    let names: Vec<(String, &[Keystroke])> =
        warm.map(|run| (format!("{} {}, warm", run.set, run.contender.name()), run.keystrokes.as_slice())).collect();
    let extra = extra.iter().map(|(name, keystrokes)| (*name, keystrokes.as_slice()));
    let rows = names.iter().map(|(name, keystrokes)| (name.as_str(), *keystrokes));
    writeln!(out, "cost per keystroke\n\n{}", report::cost(rows.chain(extra)))?;
    Ok(out)
}

/// Queries, one a line; of more than `limit`, so many at even distances.
fn read_queries(file: &Path, limit: Option<usize>) -> Result<Vec<String>, Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let all: Vec<&str> = text.lines().map(str::trim).filter(|line| line.chars().count() > 1).collect();
    if all.is_empty() {
        return Err(format!("{} has no queries", file.display()).into());
    }
    let take = limit.unwrap_or(all.len()).clamp(1, all.len());
    Ok((0..take).map(|i| all[i * all.len() / take].to_owned()).collect())
}
