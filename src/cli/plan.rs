//! `foretype plan`, and the TensorRT part of `foretype build`: plans of a bundle.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bundle::Manifest;
use clap::Args;
use engine_build::plan::{Part, PlanOptions, PlanRecord, PlanShapes, Range, Target, build_plan};
use tensorrt::{Flavour, Library, Sm};

use super::progress::Bar;

/// What `build` adds plans for.
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
    #[command(flatten)]
    limits: PlanLimits,
}

/// What plans take and may use.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TensorRT")]
struct PlanLimits {
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

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanCommand {
    /// The bundle, built for GPUs.
    bundle: PathBuf,
    /// Instance types of Amazon SageMaker or EC2, or architectures: `ml.g5.xlarge,ml.g6.xlarge,120`.
    #[arg(long = "for", env = "FORETYPE_PLAN_FOR", value_name = "LIST", required = true, value_delimiter = ',')]
    targets: Vec<String>,
    /// The library that builds the plans and will run them. TensorRT-RTX needs no GPU to build; TensorRT builds for the
    /// GPU of this machine only.
    #[arg(long, env = "FORETYPE_PLAN_TARGET", value_name = "TARGET", default_value = "tensorrt-rtx",
        value_parser = ["tensorrt", "tensorrt-rtx"])]
    target: String,
    #[command(flatten)]
    limits: PlanLimits,
}

impl PlanCommand {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let targets: Vec<Target> = self.targets.iter().map(|name| Target::read(name)).collect::<Result<_, _>>()?;
        let flavour: Flavour = self.target.parse()?;
        if let Some(other) = targets.iter().find(|target| flavour == Flavour::Rtx && !Sm::RTX.contains(&target.sm)) {
            return Err(format!(
                "TensorRT-RTX has no kernels for {other}: leave it out, and give the instance TensorRT, which builds \
                 its plan there, at its first start or with `plan --target tensorrt`"
            )
            .into());
        }
        let library = Library::open(flavour, self.limits.tensorrt.as_deref())?;
        let mut architectures: Vec<Sm> = targets.iter().map(|target| target.sm).collect();
        architectures.sort_unstable();
        architectures.dedup();
        self.limits.add(&self.bundle, &library, &architectures)
    }
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
            Ok(flavour) => Ok(Some(Library::open(flavour, self.limits.tensorrt.as_deref())?)),
            Err(_) => Ok(None),
        }
    }

    /// Adds plans to the bundle, one for each of its graphs.
    pub(super) fn add(&self, bundle: &Path, library: &Library) -> Result<(), Box<dyn Error>> {
        self.limits.add(bundle, library, &self.sm.0)
    }
}

impl PlanLimits {
    /// Adds a plan for all of the architectures to the bundle, for each of its graphs.
    fn add(&self, bundle: &Path, library: &Library, architectures: &[Sm]) -> Result<(), Box<dyn Error>> {
        for &part in Part::of(&Manifest::load(bundle)?.model) {
            let started = Instant::now();
            let options = PlanOptions {
                architectures: architectures.to_vec(),
                gpu: None,
                part,
                shapes: PlanShapes::new(self.prefill_batch, self.prefill_tokens, self.decode_batch),
                workspace_bytes: self.workspace_mib << 20,
                engines: None,
            };
            let (path, record) = build_plan(bundle, library, &options, Arc::new(Bar::default()))?;
            say(library, &record, started, &path);
        }
        Ok(())
    }
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
