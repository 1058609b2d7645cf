//! The TensorRT part of `foretype build`: plans of a bundle.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bundle::Manifest;
use clap::Args;
use engine_build::plan::{Part, PlanOptions, PlanRecord, PlanShapes, Range, build_plan};
use tensorrt::{Flavour, Library, Sm};

use super::progress::Bar;

/// What to build plans for.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TensorRT")]
pub(super) struct PlanArgs {
    /// The engine that the bundle is for: `onnxruntime`, `tensorrt`, or `tensorrt-rtx`. The latter two add a plan to
    /// the bundle.
    #[arg(long, env = "FORETYPE_BUILD_TARGET", value_name = "TARGET", default_value = "onnxruntime",
        value_parser = ["onnxruntime", "tensorrt", "tensorrt-rtx"])]
    target: String,
    /// GPU architectures that the plan is for, such as 75,86,89, or `current`: this machine's. TensorRT builds for no
    /// other.
    #[arg(long, env = "FORETYPE_SM", value_name = "LIST", default_value = "current", value_parser = architectures)]
    sm: Architectures,
    /// Rows of a step with any number of tokens: the minimum, the number that the plan is fastest at, the maximum.
    #[arg(long, env = "FORETYPE_PREFILL_BATCH", value_name = "MIN,OPT,MAX", default_value = "1,1,10")]
    prefill_batch: Range,
    /// Tokens of a row in such a step, likewise.
    #[arg(long, env = "FORETYPE_PREFILL_TOKENS", value_name = "MIN,OPT,MAX", default_value = "1,16,42")]
    prefill_tokens: Range,
    /// Rows of a step with one token per row, likewise.
    #[arg(long, env = "FORETYPE_DECODE_BATCH", value_name = "MIN,OPT,MAX", default_value = "1,4,10")]
    decode_batch: Range,
    /// GPU memory that a layer of the plan may use beside its inputs and outputs, in MiB.
    #[arg(long, env = "FORETYPE_WORKSPACE_MIB", value_name = "MIB", default_value_t = 1024)]
    workspace_mib: u64,
    /// The folder of TensorRT's libraries. Default: looked for beside this binary and where the system's loader looks.
    #[arg(long, env = "FORETYPE_TENSORRT", value_name = "DIR")]
    tensorrt: Option<PathBuf>,
}

/// Architectures by name; none for this machine's.
#[derive(Clone, Debug)]
struct Architectures(Vec<Sm>);

fn architectures(text: &str) -> Result<Architectures, String> {
    if text == "current" {
        return Ok(Architectures(Vec::new()));
    }
    let read: Result<_, _> = text.split(',').map(|part| part.trim().parse()).collect();
    read.map(Architectures).map_err(|error: tensorrt::Error| error.to_string())
}

impl PlanArgs {
    /// Whether there is a plan to build at all.
    pub(super) fn is_wanted(&self) -> bool {
        self.target != "onnxruntime"
    }

    /// The library, opened before anything is built: a long build must not end with its absence.
    pub(super) fn library(&self) -> Result<Option<Library>, Box<dyn Error>> {
        match self.target.parse::<Flavour>() {
            Ok(flavour) => Ok(Some(Library::open(flavour, self.tensorrt.as_deref())?)),
            Err(_) => Ok(None),
        }
    }

    /// Adds plans to the bundle, one for each of its graphs.
    pub(super) fn add(&self, bundle: &Path, library: &Library) -> Result<(), Box<dyn Error>> {
        for &part in Part::of(&Manifest::load(bundle)?.model) {
            let started = Instant::now();
            let options = PlanOptions {
                architectures: self.sm.0.clone(),
                gpu: None,
                part,
                shapes: PlanShapes::new(self.prefill_batch, self.prefill_tokens, self.decode_batch),
                workspace_bytes: self.workspace_mib << 20,
                engines: None,
            };
            let (path, record) = build_plan(bundle, library, &options, Arc::new(Bar::default()))?;
            Self::say(library, &record, started, &path);
        }
        Ok(())
    }

    fn say(library: &Library, record: &PlanRecord, started: Instant, path: &Path) {
        let (of, takes) = match record.part {
            Part::Decoder => ("", format!("up to {} rows of {} tokens", record.shapes.lanes(), record.shapes.chunk())),
            Part::Encoder => {
                let tokens = record.shapes.source.map_or(0, |source| source.max);
                (" of the encoder", format!("sources of up to {tokens} tokens"))
            }
        };
        println!(
            "built a plan{of} by {} {} for {} ({takes}, {:.1} MiB) in {:.1} s: {}",
            library.flavour(),
            library.version(),
            record.architectures.iter().map(|sm| Sm(*sm).to_string()).collect::<Vec<_>>().join(", "),
            record.plan.bytes as f64 / f64::from(1 << 20),
            started.elapsed().as_secs_f64(),
            path.with_extension("plan").display()
        );
    }
}
