//! GPT-J (`GPTJForCausalLM`): rotary embeddings over a part of each head, neighbours paired. Attention and feed-forward
//! network are parallel after one LayerNorm. Attention has no biases; the head has one.

use super::gpt::{Gpt, Maps, Names};
use super::rope::plain_frequencies;
use super::{Family, Head, Shape};
use crate::blocks::{LayerPlan, Linear, Norm, Order, Rotary, root_scale};
use crate::checkpoint::Config;
use crate::error::ConfigError;

/// The base of the angles, which no configuration changes.
const THETA: f64 = 10_000.0;

const NAMES: Names = Names {
    hidden: &["n_embd", "hidden_size"],
    heads: &["n_head", "num_attention_heads"],
    layers: &["n_layer", "num_hidden_layers"],
    positions: &["n_positions", "max_position_embeddings"],
    inner: "n_inner",
    tied: false,
};

#[derive(Debug)]
struct GptJ {
    gpt: Gpt,
    rotary: Rotary,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let gpt = Gpt::read(config, &NAMES)?;
    let rotated = config.dimension_opt("rotary_dim")?.unwrap_or(64);
    let frequencies = plain_frequencies(rotated, gpt.shape.head_dim, THETA)?;
    Ok(Box::new(GptJ { gpt, rotary: Rotary { frequencies, interleaved: true } }))
}

impl Family for GptJ {
    fn shape(&self) -> Shape {
        self.gpt.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "wte.weight"
    }

    fn rotary(&self) -> Option<&Rotary> {
        Some(&self.rotary)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let (hidden, inner) = (self.gpt.shape.hidden, self.gpt.inner);
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("attn.{part}")), hidden));
        let maps = Maps {
            qkv: Linear::stacked(qkv, hidden).bias(false),
            out: Linear::new(name("attn.out_proj"), hidden, hidden).bias(false),
            up: Linear::new(name("mlp.fc_in"), hidden, inner),
            down: Linear::new(name("mlp.fc_out"), inner, hidden),
        };
        self.gpt.layer(index, Order::ParallelShared, root_scale(self.gpt.shape.head_dim), maps)
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        self.gpt.end_norm()
    }

    fn head(&self) -> Head {
        Head { matrix: self.gpt.matrix(), bias: Some("lm_head.bias") }
    }
}
