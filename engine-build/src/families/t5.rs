//! T5 (`T5ForConditionalGeneration`): an encoder reads a source, and a decoder generates text after a start token.
//!
//! Two generations are supported: the first (ReLU, a tied head with a scale before it), and version 1.1 with its
//! descendants FLAN-T5 and UL2 (a gated network, a separate head). Both have RMSNorm, no biases, unscaled query-key
//! products, and a relative position bias that the layers of a stack share.

use super::fields::{Named, heads_width, named};
use super::{Encoder, Family, Head, Shape};
use crate::blocks::{
    Activation, Attention, Builder, Cache, CrossAttention, Gate, Layer, LayerPlan, Linear, Mlp, Norm, NormKind, Order,
    RelativeBias, Step,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

/// Tokens of a source, and of an answer, that the released models were made for. Their configurations call it
/// `n_positions`.
const POSITIONS: u32 = 512;

/// The encoder's graph has a number for each distance.
const MAX_POSITIONS: u32 = 16_384;

#[derive(Debug)]
struct T5 {
    /// The shape of the decoder.
    shape: Shape,
    encoder_layers: u32,
    /// Width of the feed-forward networks.
    inner: u32,
    activation: Activation,
    gated: bool,
    epsilon: f32,
    buckets: u32,
    max_distance: u32,
    /// Whether the head's input is scaled down by the root of its width.
    scaled_head: bool,
}

/// Reads T5's `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let encoder_layers = config.dimension(&["num_layers", "num_hidden_layers"])?;
    let heads = config.dimension(&["num_heads", "num_attention_heads"])?;
    let head_dim = config.dimension(&["d_kv", "head_dim"])?;
    heads_width(heads, head_dim)?;
    let (activation, gated) = network(config)?;
    let shape = Shape {
        layers: config.dimension_opt("num_decoder_layers")?.unwrap_or(encoder_layers),
        heads,
        kv_heads: heads,
        head_dim,
        hidden: config.dimension(&["d_model", "hidden_size"])?,
        positions: positions(config)?,
        window: None,
        vocab: config.dimension(&["vocab_size"])?,
    };
    let field = |name, default| Ok::<_, ConfigError>(named(name, config.dimension_opt(name)?.unwrap_or(default)));
    let buckets = field("relative_attention_num_buckets", 32)?;
    let farthest = field("relative_attention_max_distance", 128)?;
    check_buckets(buckets, farthest)?;
    Ok(Box::new(T5 {
        shape,
        encoder_layers,
        inner: config.dimension(&["d_ff"])?,
        activation,
        gated,
        epsilon: config.positive_or("layer_norm_epsilon", 1e-6)?,
        buckets: buckets.size,
        max_distance: farthest.size,
        scaled_head: scaled_head(config)?,
    }))
}

fn positions(config: &Config) -> Result<u32, ConfigError> {
    let positions = config.dimension_opt("n_positions")?.unwrap_or(POSITIONS);
    if positions > MAX_POSITIONS {
        let (field, found) = ("n_positions", positions.to_string());
        return Err(ConfigError::Unsupported { field, found, supported: "up to 16384" });
    }
    Ok(positions)
}

/// The first generation's head is scaled, and those are the checkpoints whose head is tied. Transformers 5 says that
/// all are tied, and writes what it means into a field of its own.
fn scaled_head(config: &Config) -> Result<bool, ConfigError> {
    let tied = config.flag_or("tie_word_embeddings", true)?;
    config.flag_or("scale_decoder_outputs", tied)
}

/// The activation that `feed_forward_proj` names, behind `gated-` where the network is gated.
fn network(config: &Config) -> Result<(Activation, bool), ConfigError> {
    let field = config.text_or("feed_forward_proj", "relu")?;
    let (name, gated) = match field.strip_prefix("gated-") {
        // The released models' configurations say `gelu` and mean the approximation.
        Some("gelu") => ("gelu_new", true),
        Some(name) => (name, true),
        None => (field, false),
    };
    match Activation::from_name(name) {
        Some(activation) => Ok((activation, gated)),
        None => Err(ConfigError::Activation { found: field.to_owned(), supported: Activation::names() }),
    }
}

/// Checks that there are buckets for both directions, near and far, and that the far ones have room.
fn check_buckets(buckets: Named, farthest: Named) -> Result<(), ConfigError> {
    let (Named { field, size: buckets }, Named { field: far_field, size: farthest }) = (buckets, farthest);
    if !(4..=1 << 16).contains(&buckets) || buckets % 2 == 1 {
        let found = buckets.to_string();
        return Err(ConfigError::Unsupported { field, found, supported: "an even number from 4 to 65536" });
    }
    if farthest <= buckets / 2 {
        let found = farthest.to_string();
        let supported = "a number above half of `relative_attention_num_buckets`";
        return Err(ConfigError::Unsupported { field: far_field, found, supported });
    }
    Ok(())
}

impl T5 {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Rms, hidden: self.shape.hidden, epsilon: self.epsilon }
    }

    /// A map without bias.
    fn map(name: String, from: u32, to: u32) -> Linear {
        Linear::new(name, from, to).bias(false)
    }

    /// Width of all heads together.
    fn width(&self) -> u32 {
        self.shape.heads * self.shape.head_dim
    }

    /// The self-attention of a layer whose names begin with `layer`.
    fn attention(&self, layer: &str) -> Attention {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let qkv = ["q", "k", "v"].map(|part| (format!("{layer}layer.0.SelfAttention.{part}"), self.width()));
        Attention {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0,
            qkv: Linear::stacked(qkv, hidden).bias(false),
            out: Self::map(format!("{layer}layer.0.SelfAttention.o"), self.width(), hidden),
        }
    }

    /// The feed-forward network of such a layer, in its part `part`.
    fn mlp(&self, layer: &str, part: u32) -> Mlp {
        let name = |map: &str| format!("{layer}layer.{part}.DenseReluDense.{map}");
        let (hidden, inner) = (self.shape.hidden, self.inner);
        let (up, gate) = if self.gated {
            let both = [name("wi_0"), name("wi_1")].map(|name| (name, inner));
            (Linear::stacked(both, hidden).bias(false), Gate::First { inner })
        } else {
            (Self::map(name("wi"), hidden, inner), Gate::None)
        };
        Mlp { up, gate, activation: self.activation, down: Self::map(name("wo"), inner, hidden) }
    }

    /// The relative position biases of a stack, which its first layer stores and all its layers use.
    fn bias(&self, stack: &str) -> RelativeBias {
        RelativeBias {
            name: format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
            heads: self.shape.heads,
            buckets: self.buckets,
            max_distance: self.max_distance,
        }
    }

    /// The network's part of a layer: the residual stream before and behind it.
    fn feed_forward(&self, b: &mut Builder, layer: &str, part: u32, x: &Value) -> Result<Value, WeightsError> {
        b.graph.scope(format!("{layer}mlp"));
        let normed = b.normed(&self.norm(), &format!("{layer}layer.{part}.layer_norm"), x)?;
        let update = b.mlp_widened(&normed, &self.mlp(layer, part))?;
        Ok(b.graph.node("Add", &[x, &update], &[]))
    }
}

impl Family for T5 {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &[""]
    }

    fn vocabulary(&self) -> &'static str {
        "shared.weight"
    }

    fn encoder(&self) -> Option<&dyn Encoder> {
        Some(self)
    }

    fn mask(&self, b: &mut Builder, step: &Step) -> Result<Value, WeightsError> {
        b.causal_bias(&self.bias("decoder"), step)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let scope = format!("decoder.block.{index}.");
        LayerPlan {
            norm: self.norm(),
            first_norm: "layer.0.layer_norm",
            order: Order::Sequential("layer.2.layer_norm"),
            attention: self.attention(&scope),
            mlp: self.mlp(&scope, 2),
            scope,
        }
    }

    fn layer(&self, b: &mut Builder, at: &Layer, x: &Value) -> Result<(Value, Cache), WeightsError> {
        let LayerPlan { scope, norm, first_norm, attention, .. } = self.plan(at.index);
        b.graph.scope(format!("{scope}attention"));
        let normed = b.normed(&norm, &format!("{scope}{first_norm}"), x)?;
        let (attended, present) = b.attention(at, &normed, &attention)?;
        let mut x = b.residual(x, attended);
        if let Some(source) = at.source {
            b.graph.scope(format!("{scope}cross"));
            let name = |part: &str| format!("{scope}layer.1.EncDecAttention.{part}");
            let cross = CrossAttention {
                heads: attention.heads,
                head_dim: attention.head_dim,
                scale: attention.scale,
                queries: Self::map(name("q"), self.shape.hidden, self.width()),
                out: Self::map(name("o"), self.width(), self.shape.hidden),
            };
            let normed = b.normed(&norm, &format!("{scope}layer.1.layer_norm"), &x)?;
            let update = b.cross_attention(at.index, &normed, &cross, source)?;
            x = b.residual(&x, update);
        }
        Ok((self.feed_forward(b, &scope, 2, &x)?, present))
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        None
    }

    fn end(&self, b: &mut Builder, x: &Value) -> Result<Value, WeightsError> {
        let name = "decoder.final_layer_norm";
        // The scale is a factor of the normalization's weight.
        let factor = if self.scaled_head { f64::from(self.shape.hidden).sqrt().recip() } else { 1.0 };
        b.scaled_norm(&self.norm(), name, x, factor)
    }

    fn head(&self) -> Head {
        Head { matrix: Some("lm_head.weight"), bias: None }
    }

    fn head_may_be_absent(&self) -> bool {
        true
    }
}

impl Encoder for T5 {
    fn positions(&self) -> u32 {
        self.shape.positions
    }

    fn encode(&self, b: &mut Builder, ids: &Value, rows: Value) -> Result<Value, WeightsError> {
        let bias = b.bidirectional_bias(&self.bias("encoder"), ids, self.positions())?;
        let mut x = rows;
        for index in 0..self.encoder_layers {
            let layer = format!("encoder.block.{index}.");
            b.graph.scope(format!("{layer}attention"));
            let normed = b.normed(&self.norm(), &format!("{layer}layer.0.layer_norm"), &x)?;
            let update = b.encoder_attention(&normed, &self.attention(&layer), &bias)?;
            x = b.residual(&x, update);
            x = self.feed_forward(b, &layer, 1, &x)?;
        }
        b.graph.scope("encoder.end");
        b.normed(&self.norm(), "encoder.final_layer_norm", &x)
    }

    fn cross(&self, index: u32) -> Linear {
        let parts =
            ["k", "v"].map(|part| (format!("decoder.block.{index}.layer.1.EncDecAttention.{part}"), self.width()));
        Linear::stacked(parts, self.shape.hidden).bias(false)
    }
}
