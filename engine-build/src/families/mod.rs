//! The model families: which fields and tensors each has, and which blocks make up its graph.
//!
//! A family is a file here that implements [`Family`], and a line in [`FAMILIES`]; no other part of the program
//! distinguishes families. `docs/adding-a-family.md` is the guide. `rope`, `gpt` and `fields` read the settings that
//! several configurations share.

mod bloom;
mod fields;
mod gpt;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod llama;
mod opt;
mod rope;
mod t5;

use std::fmt::Debug;

use crate::blocks::{Builder, Cache, CacheShape, HeadSpec, Layer, LayerPlan, Linear, Norm, Precision, Rotary, Step};
use crate::checkpoint::{Config, Weights};
use crate::error::{ConfigError, WeightsError};
use crate::onnx::{Graph, Value};
use bundle::manifest::Dtype;

/// The caller's choices for a graph, within the model's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphOptions {
    /// Positions of the KV cache.
    pub(crate) context: u32,
    /// Candidates per selected position.
    pub(crate) top_k: u32,
    pub(crate) precision: Precision,
    /// Whether the graph has the input `slots`, which says how much of the KV cache attention reads.
    pub(crate) slots: bool,
}

/// The shape that every family has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    /// Heads of keys and values: a divisor of `heads`.
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) hidden: u32,
    /// Positions that the model was made for.
    pub(crate) positions: u32,
    /// How far some layer's attention looks back, where that is less than everything.
    pub(crate) window: Option<u32>,
    pub(crate) vocab: u32,
}

impl Shape {
    /// The vocabulary rounded up to what tensor cores want: TensorRT stores a copy of an odd-sized matrix.
    pub(crate) fn vocab_padded(&self) -> u32 {
        self.vocab.next_multiple_of(8)
    }
}

/// Where the logits' matrix is, and whether they have a bias. Names are the checkpoint's, without prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// `None`: the token embedding.
    pub(crate) matrix: Option<&'static str>,
    pub(crate) bias: Option<&'static str>,
}

/// A decoder whose configuration has been understood: what there is to know to write its graph.
///
/// The methods with a body are for what most families do alike. Tensor names are without the prefix.
pub(crate) trait Family: Debug {
    fn shape(&self) -> Shape;

    /// What may stand before every tensor name but the head's. The first that fits the checkpoint is taken.
    fn prefixes(&self) -> &'static [&'static str];

    /// The token embedding, `[vocab, embedding width]`.
    fn vocabulary(&self) -> &'static str;

    /// Width of the token embedding and of what the head takes.
    fn embedding_width(&self) -> u32 {
        self.shape().hidden
    }

    /// How queries and keys are turned by position, if they are.
    fn rotary(&self) -> Option<&Rotary> {
        None
    }

    /// The input of the first layer, f32 `[B, S, E]`, from `rows`, the embedding rows of the tokens, f32.
    fn embed(&self, _builder: &mut Builder, _step: &Step, rows: Value) -> Result<Value, WeightsError> {
        Ok(rows)
    }

    /// The encoder, in an encoder-decoder.
    fn encoder(&self) -> Option<&dyn Encoder> {
        None
    }

    /// The attention mask of every layer: which positions are visible, bool `[B, 1, S, A]`, or a bias that is added to
    /// the query-key products, `[B, H, S, A]` in the computing precision.
    fn mask(&self, _builder: &mut Builder, step: &Step) -> Result<Value, WeightsError> {
        Ok(step.mask.clone())
    }

    /// The parts of layer `index`, counted from 0.
    fn plan(&self, index: u32) -> LayerPlan;

    /// Whether a layer normalizes what its maps read, as [`LayerPlan`] says, and not what they write.
    fn normalizes_first(&self) -> bool {
        true
    }

    /// One layer: the residual stream f32 `[B, S, E]` before and behind it, and its present cache.
    fn layer(&self, builder: &mut Builder, at: &Layer, x: &Value) -> Result<(Value, Cache), WeightsError> {
        builder.layer(at, x, &self.plan(at.index))
    }

    /// The normalization whose result the head takes, and its name, if there is nothing between them.
    fn end_norm(&self) -> Option<(Norm, &'static str)>;

    /// From the residual stream's end at the selected positions, f32 `[R, E]`, to what the head takes, f32.
    fn end(&self, builder: &mut Builder, x: &Value) -> Result<Value, WeightsError> {
        match self.end_norm() {
            Some((norm, name)) => builder.norm(&norm, name, x),
            None => Ok(x.clone()),
        }
    }

    fn head(&self) -> Head;

    /// Whether the token embedding stands in where the checkpoint lacks the head's matrix.
    fn head_may_be_absent(&self) -> bool {
        false
    }
}

/// The half of an encoder-decoder that reads.
pub(crate) trait Encoder: Debug {
    /// Tokens of a source that the model was made for.
    fn positions(&self) -> u32;

    /// From a source's token ids, i64 `[1, T]`, and their rows of the embedding, f32 `[1, T, E]`, to what the decoder's
    /// layers read, in the computing precision `[1, T, E]`.
    fn encode(&self, builder: &mut Builder, ids: &Value, rows: Value) -> Result<Value, WeightsError>;

    /// The map from there to the keys and values of the decoder's layer `index`, side by side.
    fn cross(&self, index: u32) -> Linear;
}

/// The head's matrix where it is the token embedding but has factors, or is rounded, on its own. No checkpoint has a
/// tensor of this name.
const TIED_HEAD: &str = "(tied head).weight";

/// How a configuration names its family, and who reads it.
struct Entry {
    model_type: &'static str,
    architecture: &'static str,
    read: fn(&Config) -> Result<Box<dyn Family>, ConfigError>,
}

const FAMILIES: [Entry; 10] = [
    Entry { model_type: "gpt2", architecture: "GPT2LMHeadModel", read: gpt2::read },
    Entry { model_type: "gpt_neo", architecture: "GPTNeoForCausalLM", read: gpt_neo::read },
    Entry { model_type: "gptj", architecture: "GPTJForCausalLM", read: gptj::read },
    Entry { model_type: "gpt_neox", architecture: "GPTNeoXForCausalLM", read: gpt_neox::read },
    Entry { model_type: "llama", architecture: "LlamaForCausalLM", read: llama::read },
    Entry { model_type: "mistral", architecture: "MistralForCausalLM", read: llama::read_mistral },
    Entry { model_type: "qwen2", architecture: "Qwen2ForCausalLM", read: llama::read_qwen2 },
    Entry { model_type: "bloom", architecture: "BloomForCausalLM", read: bloom::read },
    Entry { model_type: "opt", architecture: "OPTForCausalLM", read: opt::read },
    Entry { model_type: "t5", architecture: "T5ForConditionalGeneration", read: t5::read },
];

/// A model of one of the families.
#[derive(Debug)]
pub(crate) struct Model {
    name: &'static str,
    family: Box<dyn Family>,
}

impl Model {
    /// Reads the configuration of whichever family it names.
    pub(crate) fn read(config: &Config) -> Result<Self, ConfigError> {
        let entry = find(config)?;
        Ok(Self { name: entry.model_type, family: (entry.read)(config)? })
    }

    /// The family's name in the manifest.
    pub(crate) fn family(&self) -> &'static str {
        self.name
    }

    pub(crate) fn shape(&self) -> Shape {
        self.family.shape()
    }

    /// The parts of layer `index`.
    pub(crate) fn plan(&self, index: u32) -> LayerPlan {
        self.family.plan(index)
    }

    /// Whether every layer is as its plan says: see [`Family::normalizes_first`].
    pub(crate) fn normalizes_first(&self) -> bool {
        self.family.normalizes_first()
    }

    /// The name of the normalization whose result the head takes, without prefix; see [`Family::end_norm`].
    pub(crate) fn end_norm(&self) -> Option<&'static str> {
        self.family.end_norm().map(|(_, name)| name)
    }

    /// Makes the head's matrix a tensor of its own, also where it is the token embedding. The map's name has no prefix.
    pub(crate) fn untie_head(&self, weights: &mut Weights) -> Linear {
        let name = head_matrix(&*self.family, weights).unwrap_or_else(|| {
            weights.alias(&format!("{}{}", self.prefix(weights), self.family.vocabulary()), TIED_HEAD);
            TIED_HEAD
        });
        let map = name.strip_suffix(".weight").unwrap_or(name);
        Linear::new(map, self.family.embedding_width(), self.shape().vocab).bias(false)
    }

    /// What stands before the tensor names of a plan in this checkpoint.
    pub(crate) fn prefix(&self, weights: &Weights) -> &'static str {
        prefix(&*self.family, weights)
    }

    /// The graph, with every tensor it takes checked for name, type and shape: inputs `input_ids`, `past_len`,
    /// `select`, perhaps `slots`, and the past, outputs `logits`, `topv`, `topi`, `lse` and the present.
    pub(crate) fn graph(&self, weights: &Weights, options: &GraphOptions) -> Result<Graph, WeightsError> {
        graph(&*self.family, weights, options)
    }

    /// Tokens of a source that the model was made for, if it is an encoder-decoder.
    pub(crate) fn source_positions(&self) -> Option<u32> {
        self.family.encoder().map(Encoder::positions)
    }

    /// The encoder's graph, checked like the decoder's, if the model is an encoder-decoder: input `input_ids`, outputs
    /// `cross_k_LAYER` and `cross_v_LAYER`.
    pub(crate) fn encoder_graph(&self, weights: &Weights, dtype: Dtype) -> Result<Option<Graph>, WeightsError> {
        self.family.encoder().map(|encoder| encoder_graph(&*self.family, encoder, weights, dtype)).transpose()
    }
}

/// The entry for the configuration's model type and architecture, of which one may be absent.
fn find(config: &Config) -> Result<&'static Entry, ConfigError> {
    let model_type = config.text_opt("model_type")?;
    let architecture = config.texts("architectures")?.first().copied();
    let matches = |entry: &&Entry| {
        model_type.is_none_or(|name| name == entry.model_type)
            && architecture.is_none_or(|name| name == entry.architecture)
    };
    if model_type.is_none() && architecture.is_none() {
        return Err(ConfigError::FieldMissing("model_type"));
    }
    FAMILIES.iter().find(matches).ok_or_else(|| {
        let known_type = FAMILIES.iter().any(|entry| model_type == Some(entry.model_type));
        let found = match (model_type, architecture) {
            (Some(name), _) if !known_type => format!("the model type `{name}`"),
            (_, Some(name)) => format!("the architecture `{name}`"),
            (name, None) => format!("the model type `{}`", name.unwrap_or_default()),
        };
        ConfigError::Architecture { found, supported: FAMILIES.map(|entry| entry.architecture).join(", ") }
    })
}

fn graph(family: &dyn Family, weights: &Weights, options: &GraphOptions) -> Result<Graph, WeightsError> {
    let shape = family.shape();
    let [vocab, vocab_padded, width] = [shape.vocab, shape.vocab_padded(), family.embedding_width()].map(u64::from);
    let mut builder = Builder::new(weights, prefix(family, weights), options.precision);
    let b = &mut builder;
    let mut step = b.step(options.context, options.slots);
    let mask = family.mask(b, &step)?;
    step.has_biases = mask != step.mask;
    step.mask = mask;
    let heads = (shape.heads, shape.head_dim);
    let source = family.encoder().map(|_| b.source_inputs(&step, shape.layers, heads));
    let rotary = family.rotary().map(|rotary| b.rotary_tables(rotary, options.context));
    let tokens = b.vocabulary_matrix(family.vocabulary(), (vocab, vocab_padded), width)?;
    b.graph.scope("embedding");
    let rows = b.token_rows(&tokens, &step.input_ids);
    let mut x = family.embed(b, &step, rows)?;

    let cache = CacheShape { kv_heads: shape.kv_heads, context: options.context, head_dim: shape.head_dim };
    let mut presents = Vec::new();
    for index in 0..shape.layers {
        let past = b.past(index, cache);
        let present;
        let at = Layer { index, step: &step, past: &past, rotary: rotary.as_ref(), source: source.as_ref() };
        (x, present) = family.layer(b, &at, &x)?;
        presents.push(present);
    }
    let x = b.select(&x, &step, shape.hidden);
    let x = family.end(b, &x)?;
    let bias = family.head().bias;
    b.without_prefix(|b| {
        let matrix = match head_matrix(family, weights) {
            Some(name) => b.vocabulary_matrix(name, (vocab, vocab_padded), width)?,
            None => tokens,
        };
        let spec = HeadSpec { vocab: shape.vocab, vocab_padded: shape.vocab_padded(), top_k: options.top_k, bias };
        b.head(&x, &matrix, &spec)
    })?;
    for present in &presents {
        b.present(present, cache);
    }
    Ok(builder.graph)
}

fn encoder_graph(
    family: &dyn Family,
    encoder: &dyn Encoder,
    weights: &Weights,
    dtype: Dtype,
) -> Result<Graph, WeightsError> {
    let shape = family.shape();
    let mut builder = Builder::new(weights, prefix(family, weights), dtype);
    let b = &mut builder;
    let ids = b.source_ids();
    let sizes = [shape.vocab, shape.vocab_padded(), family.embedding_width()].map(u64::from);
    let tokens = b.vocabulary_matrix(family.vocabulary(), (sizes[0], sizes[1]), sizes[2])?;
    b.graph.scope("embedding");
    let rows = b.token_rows(&tokens, &ids);
    let x = encoder.encode(b, &ids, rows)?;
    for layer in 0..shape.layers {
        b.graph.scope(format!("cross.{layer}"));
        b.source_outputs(layer, &x, &encoder.cross(layer), (shape.heads, shape.head_dim))?;
    }
    Ok(builder.graph)
}

/// The head's matrix, if it isn't the tensor of the token embedding.
fn head_matrix(family: &dyn Family, weights: &Weights) -> Option<&'static str> {
    if weights.contains(TIED_HEAD) {
        return Some(TIED_HEAD);
    }
    let absent = |name: &str| family.head_may_be_absent() && !weights.contains(name);
    family.head().matrix.filter(|name| !absent(name))
}

/// The prefix under which the checkpoint has the token embedding; the usual one where it has none, for the error.
fn prefix(family: &dyn Family, weights: &Weights) -> &'static str {
    let prefixes = family.prefixes();
    let fits = |prefix: &&&str| weights.contains(&format!("{prefix}{}", family.vocabulary()));
    prefixes.iter().find(fits).or(prefixes.first()).copied().unwrap_or_default()
}
