//! OPT (`OPTForCausalLM`): learned positions that begin at row 2. LayerNorm comes before each block, or after it
//! (350M). The embeddings may be narrower than the layers, with a projection at each end.

use super::fields::{activation, head_dim, named};
use super::{Family, Head, Shape};
use crate::blocks::{
    Activation, Attention, Builder, Cache, Gate, Layer, LayerPlan, LearnedPositions, Linear, Mlp, Norm, NormKind,
    Order, Step, root_scale,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

/// Rows of the position embedding before that of position 0.
const POSITION_OFFSET: u32 = 2;

#[derive(Debug)]
struct Opt {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    /// Width of the token embedding.
    embedding: u32,
    activation: Activation,
    /// LayerNorm before each block, not behind it.
    norm_first: bool,
    /// A last LayerNorm before the head.
    norm_last: bool,
    bias: bool,
    tied: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let hidden = config.dimension(&["hidden_size"])?;
    let heads = config.dimension(&["num_attention_heads"])?;
    if !config.flag_or("layer_norm_elementwise_affine", true)? {
        let (found, supported) = ("false".to_owned(), "true: normalizations with weights");
        return Err(ConfigError::Unsupported { field: "layer_norm_elementwise_affine", found, supported });
    }
    let norm_first = config.flag_or("do_layer_norm_before", true)?;
    Ok(Box::new(Opt {
        shape: Shape {
            layers: config.dimension(&["num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim: head_dim(named("hidden_size", hidden), named("num_attention_heads", heads))?,
            hidden,
            positions: config.dimension(&["max_position_embeddings"])?,
            window: None,
            vocab: config.dimension(&["vocab_size"])?,
        },
        inner: config.dimension(&["ffn_dim"])?,
        embedding: config.dimension_opt("word_embed_proj_dim")?.unwrap_or(hidden),
        activation: activation(config, "activation_function", "relu")?,
        norm_first,
        norm_last: norm_first && !config.flag_or("_remove_final_layer_norm", false)?,
        bias: config.flag_or("enable_bias", true)?,
        tied: config.flag_or("tie_word_embeddings", true)?,
    }))
}

impl Opt {
    /// PyTorch's default epsilon, which no configuration changes.
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: 1e-5 }
    }

    /// A map between the widths of embedding and layers, in f32 at both ends; nothing where they are the same.
    fn project(
        &self,
        builder: &mut Builder,
        x: Value,
        name: &str,
        [from, to]: [u32; 2],
    ) -> Result<Value, WeightsError> {
        if self.embedding == self.shape.hidden {
            return Ok(x);
        }
        let narrow = builder.narrow(x);
        let projected = builder.linear(&Linear::new(name, from, to).bias(false), &narrow)?;
        Ok(builder.widen(projected))
    }
}

impl Family for Opt {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["model.decoder.", "decoder.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "embed_tokens.weight"
    }

    fn embedding_width(&self) -> u32 {
        self.embedding
    }

    fn embed(&self, builder: &mut Builder, step: &Step, rows: Value) -> Result<Value, WeightsError> {
        let Shape { positions, hidden, .. } = self.shape;
        let rows = self.project(builder, rows, "project_in", [self.embedding, hidden])?;
        let name = "embed_positions.weight";
        builder.add_positions(step, &rows, &LearnedPositions { name, positions, hidden, offset: POSITION_OFFSET })
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let name = |part: &str| format!("layers.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("self_attn.{part}")), hidden));
        LayerPlan {
            scope: name(""),
            norm: self.norm(),
            first_norm: "self_attn_layer_norm",
            order: Order::Sequential("final_layer_norm"),
            attention: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: root_scale(head_dim),
                qkv: Linear::stacked(qkv, hidden).bias(self.bias),
                out: Linear::new(name("self_attn.out_proj"), hidden, hidden).bias(self.bias),
            },
            mlp: Mlp {
                up: Linear::new(name("fc1"), hidden, self.inner).bias(self.bias),
                gate: Gate::None,
                activation: self.activation,
                down: Linear::new(name("fc2"), self.inner, hidden).bias(self.bias),
            },
        }
    }

    fn normalizes_first(&self) -> bool {
        self.norm_first
    }

    /// The usual layer, or `x = N1(x + A(x)); x = N2(x + M(x))`.
    fn layer(&self, builder: &mut Builder, at: &Layer, x: &Value) -> Result<(Value, Cache), WeightsError> {
        let plan = self.plan(at.index);
        if self.norm_first {
            return builder.layer(at, x, &plan);
        }
        let name = |part: &str| format!("{}{part}", plan.scope);
        builder.graph.scope(name("attention"));
        let narrow = builder.narrow(x.clone());
        let (update, present) = builder.attention(at, &narrow, &plan.attention)?;
        let sum = builder.residual(x, update);
        let x = builder.norm(&plan.norm, &name(plan.first_norm), &sum)?;

        builder.graph.scope(name("mlp"));
        let narrow = builder.narrow(x.clone());
        let update = builder.mlp(&narrow, &plan.mlp)?;
        let sum = builder.residual(&x, update);
        Ok((builder.norm(&plan.norm, &name("final_layer_norm"), &sum)?, present))
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        (self.norm_last && self.embedding == self.shape.hidden).then(|| (self.norm(), "final_layer_norm"))
    }

    fn end(&self, builder: &mut Builder, x: &Value) -> Result<Value, WeightsError> {
        let x = if self.norm_last { builder.norm(&self.norm(), "final_layer_norm", x)? } else { x.clone() };
        self.project(builder, x, "project_out", [self.shape.hidden, self.embedding])
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("lm_head.weight"), bias: None }
    }
}
