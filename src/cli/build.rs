//! `foretype build`: checkpoint in, bundle out. With a TensorRT target also a plan, and then a bundle may go in as
//! well.

use std::error::Error;
use std::path::PathBuf;

use bundle::{Dtype, Operators, Quantization, is_bundle};
use clap::Args;
use engine_build::BuildOptions;

use super::choices::{Hardware, OperatorsChoice, QuantizeChoice};
use super::model_args::fetch;
use super::plan::PlanArgs;
use super::progress::Bar;
use crate::models::folder::{self, IntakeError, ModelFolder};
use crate::models::named;
use crate::quality::{self, Gate};
use backends::choice;

/// Arguments of `build`.
#[derive(Clone, Debug, Args)]
pub struct BuildArgs {
    /// The checkpoint folder, as `save_pretrained` writes it; or a bundle, to add a TensorRT plan to it. Or a
    /// checkpoint to download: `ORG/NAME[@REVISION]` of the Hugging Face Hub, or a folder at s3://, gs://, az:// or
    /// https://.
    checkpoint: PathBuf,
    /// Where downloads other than the Hub's are kept. Default: the user's cache folder.
    #[arg(long, env = "FORETYPE_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// A folder that PEFT's `save_pretrained` wrote: its LoRA adapter is merged with the checkpoint. Default: none.
    #[arg(long, env = "FORETYPE_ADAPTER", value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// The bundle folder to write. A bundle that is there is replaced; anything else is left alone.
    #[arg(long, env = "FORETYPE_OUT", value_name = "DIR")]
    out: Option<PathBuf>,
    /// The model's name in answers. Default: the checkpoint folder's.
    #[arg(long, env = "FORETYPE_NAME")]
    name: Option<String>,
    /// Positions per query, prompt and suggestion included. Default: 128, or what the model has.
    #[arg(long, env = "FORETYPE_CONTEXT", value_name = "TOKENS")]
    context: Option<u32>,
    /// Next tokens that the graph reports for each position.
    #[arg(long, env = "FORETYPE_TOP_K", value_name = "N", default_value_t = 64)]
    top_k: u32,
    /// What the bundle will be served on. Default: `gpu` on a machine with an NVIDIA GPU and for a TensorRT target,
    /// else `cpu`.
    #[arg(long = "for", env = "FORETYPE_BUILD_FOR", value_enum, value_name = "HARDWARE")]
    hardware: Option<Hardware>,
    /// Precision of weights and KV cache. Default: f16 for GPUs, f32 for CPUs.
    #[arg(long, env = "FORETYPE_DTYPE", value_parser = ["f32", "f16"])]
    dtype: Option<String>,
    /// Operators of the graph: ONNX's own, or foretype's fused ones for CPUs.
    #[arg(long, env = "FORETYPE_OPERATORS", value_enum, default_value = "auto")]
    operators: OperatorsChoice,
    /// How weights are stored: as they are, in 8 bits, or for GPUs in 4 bits. A quantized model is compared with the
    /// one it is made from, and refused if it is too different.
    #[arg(long, visible_alias = "precision", env = "FORETYPE_QUANTIZE", value_enum, default_value = "none")]
    quantize: QuantizeChoice,
    /// Weights that share a scale, at most, in 4 bits: 32, 64 or 128.
    #[arg(long, env = "FORETYPE_BLOCK", value_name = "WEIGHTS", default_value_t = 64)]
    block: u32,
    /// Compute attention in f32 in a model for GPUs.
    #[arg(long, env = "FORETYPE_F32_ATTENTION")]
    f32_attention: bool,
    /// Texts on which a quantized model is compared, one a line. Default: the popular queries, or English sentences.
    #[arg(long, env = "FORETYPE_QUALITY_TEXTS", value_name = "FILE")]
    quality_texts: Option<PathBuf>,
    /// Keep a quantized model however different it is.
    #[arg(long, env = "FORETYPE_FORCE")]
    force: bool,
    /// The ONNX Runtime library (`libonnxruntime.so`), for the comparison. Default: looked for beside this binary.
    #[arg(long, env = "FORETYPE_ONNXRUNTIME", value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
    /// The CUDA driver's library, to tell whether this machine has a GPU. Default: the system's.
    #[arg(long, env = "FORETYPE_CUDA_DRIVER", value_name = "FILE")]
    cuda_driver: Option<PathBuf>,
    /// A text around every input, with `{input}` where that stands, such as examples of what is wanted. People don't
    /// see it. Default: none.
    #[arg(long, env = "FORETYPE_TEMPLATE", value_name = "FILE")]
    template: Option<PathBuf>,
    /// Terms that are never suggested, one a line, as whole words; a `*` at the end stands for any ending. Default:
    /// none.
    #[arg(long, env = "FORETYPE_BLOCKLIST", value_name = "FILE")]
    blocklist: Option<PathBuf>,
    /// Popular queries to merge with the model's suggestions: lines of query, tab, count. Default: none.
    #[arg(long, env = "FORETYPE_POPULAR", value_name = "FILE")]
    popular: Option<PathBuf>,
    /// Probabilities of typing errors, a JSON object: see docs/tuning.md. Default: built in.
    #[arg(long, env = "FORETYPE_TYPING", value_name = "FILE")]
    typing: Option<PathBuf>,
    /// What people typed and then accepted, to learn these probabilities from: lines of typed text, tab, query. What
    /// --typing says weighs as much as 2,000 typed characters.
    #[arg(long, env = "FORETYPE_TYPING_PAIRS", value_name = "FILE")]
    typing_pairs: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanArgs,
}

impl BuildArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let started = std::time::Instant::now();
        let hardware = self.hardware();
        let half = self.dtype.as_deref().map_or(hardware == Hardware::Gpu, |dtype| dtype == "f16");
        self.check_choices(hardware, half)?;
        let adds_only = self.plan.is_wanted() && is_bundle(&self.checkpoint);
        if self.out.is_none() && !adds_only {
            return Err("--out is missing: name the folder of the bundle to write".into());
        }
        let library = self.plan.library()?;
        let Some(out) = self.out.clone() else {
            return library.map_or(Ok(()), |library| self.plan.add(&self.checkpoint, &library));
        };
        let checkpoint = self.checkpoint()?;
        let mut options = BuildOptions::new(&checkpoint, &out);
        options.adapter = self.adapter;
        options.name = self.name.or_else(|| Some(folder::model_name(&checkpoint)));
        options.context = self.context;
        options.top_k = self.top_k;
        options.template = self.template;
        options.blocklist = self.blocklist;
        options.popular = self.popular;
        options.typing = self.typing;
        options.typing_pairs = self.typing_pairs;
        options.dtype = if half { Dtype::F16 } else { Dtype::F32 };
        options.operators = self.operators.into();
        options.quantization = self.quantize.into();
        options.block = self.block;
        options.f32_attention = self.f32_attention;
        let gate = Gate { texts: self.quality_texts, force: self.force, library: self.onnxruntime };
        let manifest = quality::build(&options, &gate, &Bar::default())?;
        let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
        println!(
            "built {} ({}, {:.1} M parameters, {:.1} MiB, context {}) in {:.1} s: {}",
            manifest.name,
            manifest.family,
            manifest.source.parameters as f64 / 1e6,
            bytes as f64 / f64::from(1 << 20),
            manifest.model.context,
            started.elapsed().as_secs_f64(),
            out.display()
        );
        if let Some(measured) = &manifest.quality {
            println!("{}", quality::describe(measured));
        }
        library.map_or(Ok(()), |library| self.plan.add(&out, &library))
    }

    /// The checkpoint's folder, downloaded if it lies elsewhere.
    fn checkpoint(&self) -> Result<PathBuf, Box<dyn Error>> {
        if self.checkpoint.exists() {
            return Ok(self.checkpoint.clone());
        }
        let cache = self.cache.clone().unwrap_or_else(folder::default_cache);
        let named = match named::find(&self.checkpoint) {
            // The builder says what it takes.
            Err(IntakeError::NoFolder(folder)) => return Ok(folder),
            found => found?,
        };
        match fetch(&named, &cache, &Bar::default())? {
            ModelFolder::Checkpoint(path) => Ok(path),
            ModelFolder::Bundle(path) => {
                Err(format!("{} is a bundle already; `build` takes a checkpoint", path.display()).into())
            }
        }
    }

    /// What the bundle is for: what was said, or else what the other choices or this machine suggest.
    fn hardware(&self) -> Hardware {
        let is_own = Option::<Operators>::from(self.operators) == Some(Operators::Foretype);
        match self.hardware {
            Some(said) => said,
            None if self.plan.is_wanted() => Hardware::Gpu,
            None if is_own || self.dtype.is_some() => Hardware::Cpu,
            None => match choice::gpu(self.cuda_driver.as_deref()) {
                Ok(gpu) => {
                    tracing::info!(%gpu, "the bundle is for this machine's GPU, in f16; `--for cpu` builds the other");
                    Hardware::Gpu
                }
                Err(_) => Hardware::Cpu,
            },
        }
    }

    /// Refuses what can't be built together.
    fn check_choices(&self, hardware: Hardware, half: bool) -> Result<(), Box<dyn Error>> {
        let (operators, quantization) = (Option::<Operators>::from(self.operators), Quantization::from(self.quantize));
        if self.plan.is_wanted() && hardware == Hardware::Cpu {
            return Err("TensorRT plans are for GPUs: leave out --for, or say --for gpu".into());
        }
        if self.plan.is_wanted() && !half {
            return Err("TensorRT plans are built from f16: leave out --dtype, or say --dtype f16".into());
        }
        if self.plan.is_wanted() && operators == Some(Operators::Foretype) {
            return Err("TensorRT plans are built from ONNX's own operators: leave out --operators".into());
        }
        if quantization == Quantization::None && (self.quality_texts.is_some() || self.force) {
            return Err("--quality-texts and --force are about quantized models; add --quantize int8 or int4".into());
        }
        Ok(())
    }
}
