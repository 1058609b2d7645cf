//! From a checkpoint to a bundle: the stages, in order.
//!
//! All checks come before the output folder is touched, except those that need the values of the weights. A build
//! starts no process and writes nothing outside the output folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;
use sha2::{Digest, Sha256};

use crate::blocks::Precision;
use crate::checkpoint::config::ConfigError;
use crate::checkpoint::{Configs, Folder, Tensor, Weights, adapter};
use crate::error::BuildError;
use crate::extras::{Room, check_template, read_extras};
use crate::families::{GraphOptions, Model, Shape};
use crate::fuse::fuse;
use crate::onnx::Parameter;
use crate::onnx::external::write_parameters;
use crate::onnx::proto::ModelProto;
use crate::output::PartialBundle;
use crate::progress::Progress;
use crate::quantizing::{BLOCKS, Bits};
use crate::smoothing::{Activations, smooth};
use crate::tokenizer::TokenizerFiles;
use bundle::manifest::{
    Dtype, ENCODER_FILE, ENCODER_WEIGHTS_FILE, FORMAT, GRAPH_FILE, Manifest, ModelInfo, Operators, Quality,
    Quantization, SourceInfo, TOKENIZER_FILE, Tokens, WEIGHTS_FILE, attended_lengths, hexadecimal,
};

/// Positions that a query needs by default: the KV cache's size, and so most of a lane's memory.
const DEFAULT_CONTEXT: u32 = 128;

/// Candidates per position by default.
const DEFAULT_TOP_K: u32 = 64;

/// Inputs that share a scale by default.
const DEFAULT_BLOCK: u32 = 64;

/// The options of a build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The checkpoint folder, as `save_pretrained` writes it.
    pub checkpoint: PathBuf,
    /// The folder of a LoRA adapter that is merged with the checkpoint. None by default.
    pub adapter: Option<PathBuf>,
    /// The bundle folder: absent, empty, or a bundle to replace.
    pub out: PathBuf,
    /// The model's name; by default the checkpoint folder's.
    pub name: Option<String>,
    /// Positions of the KV cache; by default [`default_context`].
    pub context: Option<u32>,
    /// Candidates that the graph returns per position, cut to the vocabulary. 64 by default.
    pub top_k: u32,
    /// Precision of the graph.
    pub dtype: Dtype,
    /// Operators of the graph; by default those that suit the precision.
    pub operators: Option<Operators>,
    /// How the graph's matrices are stored. As they are by default.
    pub quantization: Quantization,
    /// Inputs that share a scale in 4 bits, at most: 32, 64 or 128. 64 by default.
    pub block: u32,
    /// Whether an f16 graph computes attention in f32. It doesn't by default.
    pub f32_attention: bool,
    /// Text around every input; see [`bundle::Template`]. None by default.
    pub template: Option<PathBuf>,
    /// Terms that are never suggested; see [`bundle::extras::read_blocklist`]. None by default.
    pub blocklist: Option<PathBuf>,
    /// Popular queries; see [`bundle::extras::read_popular`]. None by default.
    pub popular: Option<PathBuf>,
    /// Probabilities of typing errors; see [`completion::typing::channel::Channel`]. The default ones by default.
    pub typing: Option<PathBuf>,
    /// What people typed and accepted, to learn these probabilities from; see
    /// [`bundle::extras::read_typing_pairs`]. None by default.
    pub typing_pairs: Option<PathBuf>,
}

impl BuildOptions {
    /// The defaults for a checkpoint and an output folder.
    pub fn new(checkpoint: impl Into<PathBuf>, out: impl Into<PathBuf>) -> Self {
        Self {
            checkpoint: checkpoint.into(),
            adapter: None,
            out: out.into(),
            name: None,
            context: None,
            top_k: DEFAULT_TOP_K,
            dtype: Dtype::F32,
            operators: None,
            quantization: Quantization::None,
            block: DEFAULT_BLOCK,
            f32_attention: false,
            template: None,
            blocklist: None,
            popular: None,
            typing: None,
            typing_pairs: None,
        }
    }

    /// The operators that the graph will have.
    ///
    /// # Errors
    /// [`BuildError::OperatorsPrecision`] or [`BuildError::Quantization`] where the options contradict each other.
    pub fn operators(&self) -> Result<Operators, BuildError> {
        let refused = |why| Err(BuildError::Quantization { asked: self.quantization.name(), why });
        match (self.dtype, self.operators, self.quantization) {
            (Dtype::F16, Some(Operators::Foretype), _) => Err(BuildError::OperatorsPrecision),
            (Dtype::F16, _, _) => Ok(Operators::Onnx),
            (Dtype::F32, _, Quantization::Int4) => {
                refused("but it is for GPUs: ask for f16, with `--for gpu` on the command line")
            }
            (Dtype::F32, Some(Operators::Onnx), Quantization::Int8) => {
                refused("but in f32 only foretype's own operators read it: leave out the operators, or ask for f16")
            }
            (Dtype::F32, operators, _) => Ok(operators.unwrap_or(Operators::Foretype)),
        }
    }

    /// The precision of the graph's parts.
    fn precision(&self) -> Result<Precision, BuildError> {
        if !BLOCKS.contains(&self.block) {
            return Err(BuildError::QuantizationBlock(self.block));
        }
        let stored = match self.quantization {
            Quantization::None => None,
            Quantization::Int8 => Some((Bits::Eight, self.block)),
            Quantization::Int4 => Some((Bits::Four, self.block)),
        };
        Ok(Precision { dtype: self.dtype, stored, f32_attention: self.f32_attention && self.dtype == Dtype::F16 })
    }
}

/// The KV cache's default size for a model of this many positions: all of them, but not more than queries need.
pub fn default_context(positions: u32) -> u32 {
    positions.min(DEFAULT_CONTEXT)
}

/// Whether a checkpoint is of a model that reads a source with an encoder. One that can't be built isn't.
pub fn is_encoder_decoder(checkpoint: &Path) -> bool {
    let read = || -> Result<bool, BuildError> {
        let configs = Configs::read(&Folder::open(checkpoint)?)?;
        Ok(Model::read(&configs.model)?.source_positions().is_some())
    };
    read().unwrap_or(false)
}

/// Builds a bundle.
///
/// # Errors
/// A [`BuildError`] that says what is wrong with the checkpoint, the options or the output folder. Nothing is left
/// behind then, and a bundle that was at `options.out` is still there. Only a build whose process is killed leaves
/// `OUT.partial`, and the next one to the same place goes on from there if it is the same build.
pub fn build(options: &BuildOptions, progress: &dyn Progress) -> Result<Manifest, BuildError> {
    build_checked(options, progress, &mut Unchecked)
}

/// Who looks at a bundle before it is put in its place.
pub trait Check {
    /// What the linear maps and the head of the f32 model read, to make int8 more exact; nothing, to round without.
    ///
    /// It is asked before the weights are written; files may be put beside `folder`.
    ///
    /// # Errors
    /// Why there is no bundle.
    fn observe(&mut self, folder: &Path) -> Result<Activations, BuildError>;

    /// Measures the bundle's quality, or refuses it. Its files lie in `folder` for the moment, all but the manifest.
    ///
    /// # Errors
    /// [`BuildError::Refused`], and others.
    fn check(&mut self, folder: &Path, manifest: &Manifest) -> Result<Option<Quality>, BuildError>;
}

/// Takes every bundle.
struct Unchecked;

impl Check for Unchecked {
    fn observe(&mut self, _folder: &Path) -> Result<Activations, BuildError> {
        Ok(Activations::new())
    }

    fn check(&mut self, _folder: &Path, _manifest: &Manifest) -> Result<Option<Quality>, BuildError> {
        Ok(None)
    }
}

/// Builds a bundle that `check` looks at before it is put in its place.
///
/// # Errors
/// As [`build`](fn@build), and what `check` says.
pub fn build_checked(
    options: &BuildOptions,
    progress: &dyn Progress,
    check: &mut dyn Check,
) -> Result<Manifest, BuildError> {
    let operators = options.operators()?;
    progress.stage("read the checkpoint", 0);
    let folder = Folder::open(&options.checkpoint)?;
    let configs = Configs::read(&folder)?;
    let model = Model::read(&configs.model)?;
    let shape = model.shape();
    check_encoder_decoder(options, &model)?;
    let tokenizer = TokenizerFiles::read(&folder)?;
    tokenizer.check_vocabulary(shape.vocab)?;
    let tokens = special_tokens(&configs, &tokenizer, &model)?;
    let mut weights = Weights::open(&folder)?;
    if let Some(folder) = &options.adapter {
        adapter::add(&mut weights, folder)?;
    }
    let graph_options = graph_options(options, operators, shape)?;
    // All checks of tensors come before the folder; their factors follow.
    model.graph(&weights, &graph_options)?;
    let encoder = model.encoder_graph(&weights, options.dtype)?;
    let extras = read_extras(options)?;
    let room = model.source_positions().map_or(Room::Context(graph_options.context), Room::Source);
    check_template(options, &tokenizer.json, room)?;
    let mut bundle = PartialBundle::create(&options.out)?;
    let mut read = check.observe(bundle.folder())?;
    smooth(&model, &mut weights, &mut read, operators == Operators::Foretype)?;
    let graph = model.graph(&weights, &graph_options)?;
    let source = source_info(graph.parameters.iter().chain(encoder.iter().flat_map(|encoder| &encoder.parameters)));
    let graph = match operators {
        Operators::Onnx => graph,
        Operators::Foretype => fuse(graph, shape.vocab, options.quantization, read),
    };
    let mut graphs = vec![(GRAPH_FILE, WEIGHTS_FILE, graph)];
    graphs.extend(encoder.map(|encoder| (ENCODER_FILE, ENCODER_WEIGHTS_FILE, encoder)));

    for (name, weights_name, graph) in graphs {
        let graph = graph.finish(model.family(), weights_name);
        write_graph(&mut bundle, [name, weights_name], graph, &weights, progress)?;
    }
    bundle.add(TOKENIZER_FILE, |file| file.write_all(&tokenizer.json).map_err(write_error(TOKENIZER_FILE)))?;
    for (name, content) in extras {
        bundle.add(name, |file| file.write_all(&content).map_err(write_error(name)))?;
    }
    let mut manifest = Manifest {
        format: FORMAT,
        checksum: String::new(),
        name: options.name.clone().unwrap_or_else(|| folder_name(&options.checkpoint)),
        family: model.family().to_owned(),
        tool: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        model: ModelInfo {
            operators,
            quantization: options.quantization,
            source: model.source_positions(),
            ..model_info(shape, &graph_options)
        },
        tokens,
        tokenizer: tokenizer.info(),
        files: bundle.files(),
        source,
        quality: None,
    };
    manifest.quality = check.check(bundle.folder(), &manifest)?;
    bundle.finish(&mut manifest)?;
    Ok(manifest)
}

/// Adds a graph and its weights, in files of these names.
fn write_graph(
    bundle: &mut PartialBundle,
    [name, weights_name]: [&'static str; 2],
    (graph, parameters): (ModelProto, Vec<Parameter>),
    weights: &Weights,
    progress: &dyn Progress,
) -> Result<(), BuildError> {
    progress.stage("write the weights", parameters.iter().map(Parameter::bytes).sum());
    let identity = identity(&parameters, weights)?;
    bundle.add_resumable(weights_name, &identity, |file| write_parameters(&parameters, weights, file, progress))?;
    progress.stage("write the graph", 0);
    bundle.add(name, |file| file.write_all(&graph.encode_to_vec()).map_err(write_error(name)))
}

/// Names everything that the bytes of the weights file follow from: another checkpoint, graph or version has another
/// name.
fn identity(parameters: &[Parameter], weights: &Weights) -> Result<String, BuildError> {
    let mut hasher = Sha256::new();
    hasher.update(env!("CARGO_PKG_VERSION"));
    hasher.update(weights.identity()?);
    for parameter in parameters {
        hasher.update(format!("{parameter:?}"));
    }
    Ok(hexadecimal(&hasher.finalize()))
}

fn graph_options(options: &BuildOptions, operators: Operators, shape: Shape) -> Result<GraphOptions, BuildError> {
    let positions = shape.positions;
    let attended = shape.window.map_or(positions, |window| window.min(positions));
    let context = options.context.unwrap_or_else(|| default_context(attended));
    if context == 0 || context > positions {
        return Err(BuildError::Context { asked: context, positions });
    }
    if let Some(window) = shape.window.filter(|window| context > *window) {
        return Err(BuildError::Window { asked: context, window });
    }
    if options.top_k == 0 {
        return Err(BuildError::TopK);
    }
    // foretype's own operators never read more than there is.
    let slots = operators == Operators::Onnx && attended_lengths(context).count() > 1;
    Ok(GraphOptions { context, top_k: options.top_k.min(shape.vocab), precision: options.precision()?, slots })
}

/// Checks the options that an encoder-decoder can't have.
fn check_encoder_decoder(options: &BuildOptions, model: &Model) -> Result<(), BuildError> {
    let refused = |asked, why| Err(BuildError::EncoderDecoder { asked, why });
    if model.source_positions().is_none() {
        Ok(())
    } else if options.quantization != Quantization::None {
        refused(options.quantization.name(), "and there is no comparison with f32 for those")
    } else if options.f32_attention && options.dtype == Dtype::F16 {
        refused("attention in f32", "whose position biases are f16")
    } else {
        Ok(())
    }
}

/// The start token and the ends of text, from the configuration files and failing that from the tokenizer.
fn special_tokens(configs: &Configs, tokenizer: &TokenizerFiles, model: &Model) -> Result<Tokens, BuildError> {
    let vocab = model.shape().vocab;
    let configured = |field: &'static str, first: &crate::checkpoint::Config, then: &crate::checkpoint::Config| {
        let ids = first.token_ids(field)?;
        let ids = if ids.is_empty() { then.token_ids(field)? } else { ids };
        match ids.iter().find(|id| **id >= vocab) {
            Some(&id) => Err(ConfigError::TokenRange { field, id, vocab }),
            None => Ok(ids),
        }
    };
    let start = if model.source_positions().is_some() {
        let start = configured("decoder_start_token_id", &configs.generation, &configs.model)?.first().copied();
        start.ok_or(BuildError::DecoderStart)?
    } else {
        let start = configured("bos_token_id", &configs.model, &configs.generation)?.first().copied();
        start.or_else(|| tokenizer.end_of_text()).ok_or(BuildError::StartToken)?
    };
    // transformers' own order: generation_config.json overrides config.json.
    let mut end_of_text = configured("eos_token_id", &configs.generation, &configs.model)?;
    if end_of_text.is_empty() {
        end_of_text.extend(tokenizer.end_of_text());
    }
    Ok(Tokens { start, end_of_text })
}

fn model_info(shape: Shape, options: &GraphOptions) -> ModelInfo {
    ModelInfo {
        layers: shape.layers,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        hidden: shape.hidden,
        context: options.context,
        positions: shape.positions,
        vocab: shape.vocab,
        vocab_padded: shape.vocab_padded(),
        top_k: options.top_k,
        dtype: options.precision.dtype,
        operators: Operators::default(),
        quantization: Quantization::default(),
        source: None,
    }
}

fn source_info<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> SourceInfo {
    // Each once: a matrix can be in the graphs in several parts.
    let tensors: BTreeMap<&str, &Tensor> = parameters
        .flat_map(|parameter| parameter.source.tensors())
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let largest = tensors.values().max_by_key(|tensor| tensor.elements);
    SourceInfo {
        parameters: tensors.values().map(|tensor| tensor.elements).sum(),
        dtype: largest.map_or("", |tensor| tensor.stored.name()).to_owned(),
    }
}

/// The checkpoint folder's own name, also where the path is `.` or a link.
fn folder_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn write_error(name: &'static str) -> impl FnOnce(std::io::Error) -> BuildError {
    move |source| BuildError::Write { path: name.into(), source }
}
