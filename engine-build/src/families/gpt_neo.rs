//! GPT-Neo (`GPTNeoForCausalLM`): GPT-2 with separate maps for queries, keys and values, which have no biases,
//! attention that is not scaled, and layers in turn global and local. Within its window, local attention is global
//! attention.

use super::gpt::{Gpt, Maps, Names};
use super::{Family, Head, Shape};
use crate::blocks::{Builder, LayerPlan, Linear, Norm, Order, Step};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

const NAMES: Names = Names {
    hidden: &["hidden_size"],
    heads: &["num_heads", "num_attention_heads"],
    layers: &["num_layers", "num_hidden_layers"],
    positions: &["max_position_embeddings"],
    inner: "intermediate_size",
    tied: true,
};

#[derive(Debug)]
struct GptNeo(Gpt);

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let mut gpt = Gpt::read(config, &NAMES)?;
    let window = config.dimension_opt("window_size")?.unwrap_or(256);
    gpt.shape.window = config.mentions("attention_types", "local").then_some(window);
    Ok(Box::new(GptNeo(gpt)))
}

impl Family for GptNeo {
    fn shape(&self) -> Shape {
        self.0.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "wte.weight"
    }

    fn embed(&self, builder: &mut Builder, step: &Step, rows: Value) -> Result<Value, WeightsError> {
        self.0.add_positions(builder, step, &rows)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let (hidden, inner) = (self.0.shape.hidden, self.0.inner);
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("attn.attention.{part}")), hidden));
        let maps = Maps {
            qkv: Linear::stacked(qkv, hidden).bias(false),
            out: Linear::new(name("attn.attention.out_proj"), hidden, hidden),
            up: Linear::new(name("mlp.c_fc"), hidden, inner),
            down: Linear::new(name("mlp.c_proj"), inner, hidden),
        };
        self.0.layer(index, Order::Sequential("ln_2"), 1.0, maps)
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        self.0.end_norm()
    }

    fn head(&self) -> Head {
        Head { matrix: self.0.matrix(), bias: None }
    }
}
