//! Shapes of models, and what they are called: the configurations and the tensors of GPT-2, GPT-J and T5.

use std::ops::Range;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::draw::{Draw, GAIN};

/// GPT-2's tokens; its end of text is the last.
const VOCAB: usize = 50257;
/// Elements of a head that GPT-J rotates, if it has that many.
const ROTARY: usize = 64;
/// Size of T5's vocabulary: pieces, sentinels, and a few ids without a token.
const T5_VOCAB: usize = 32128;
/// T5's tokens that are text, or sentinels: nothing else is ever the best.
const T5_SPOKEN: Range<usize> = 3..32100;
/// By how much T5's layers scale: less than others, or rounding would come to choose tokens within an answer.
const T5_GAIN: f32 = 1.5;
/// Buckets of relative positions.
const T5_BUCKETS: usize = 32;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Family {
    /// GPT-2.
    Gpt2,
    /// GPT-J, with GPT-2's vocabulary.
    Gptj,
    /// T5 1.1, whose offspring FLAN-T5 is: this many layers in the encoder, and as many in the decoder.
    T5,
}

/// The shape of a model.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Shape {
    /// The family whose layout the checkpoint has.
    #[arg(long, value_enum, default_value = "gpt2")]
    pub(super) family: Family,
    /// Number of layers.
    #[arg(long, default_value_t = 12)]
    pub(super) layers: usize,
    /// Elements of the hidden state, a multiple of the heads.
    #[arg(long, default_value_t = 768)]
    pub(super) hidden: usize,
    /// Heads of each layer.
    #[arg(long, default_value_t = 12)]
    pub(super) heads: usize,
    /// Positions; a T5's source has as many.
    #[arg(long, default_value_t = 1024)]
    pub(super) positions: usize,
}

/// A tensor of a checkpoint.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) draw: Draw,
}

impl Tensor {
    fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, draw: Draw) -> Self {
        Self { name: name.into(), shape: shape.into(), draw }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Family {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT-2",
            Self::Gptj => "GPT-J",
            Self::T5 => "T5",
        }
    }
}

impl Shape {
    pub(super) fn config(&self) -> Value {
        let Self { family, layers, hidden, heads, positions } = *self;
        let own = match family {
            Family::T5 => return self.t5_config(),
            Family::Gpt2 => json!({
                "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "tie_word_embeddings": true
            }),
            Family::Gptj => json!({
                "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "tie_word_embeddings": false,
                "rotary_dim": ROTARY.min(hidden / heads)
            }),
        };
        let mut config = json!({
            "n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": positions, "n_ctx": positions,
            "vocab_size": VOCAB, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1,
        });
        if let (Some(config), Value::Object(own)) = (config.as_object_mut(), own) {
            config.extend(own);
        }
        config
    }

    /// FLAN-T5's. It says of its head what transformers said before version 5: that it has a matrix of its own.
    fn t5_config(&self) -> Value {
        let Self { layers, hidden, heads, positions, .. } = *self;
        json!({
            "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": true,
            "d_model": hidden, "d_kv": hidden / heads, "d_ff": self.t5_inner(), "num_heads": heads,
            "num_layers": layers, "num_decoder_layers": layers, "n_positions": positions,
            "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1,
            "relative_attention_num_buckets": T5_BUCKETS, "relative_attention_max_distance": 128,
            "tie_word_embeddings": false, "vocab_size": T5_VOCAB,
            "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
        })
    }

    pub(super) fn tensors(&self) -> Vec<Tensor> {
        match self.family {
            Family::Gpt2 => self.gpt2(),
            Family::Gptj => self.gptj(),
            Family::T5 => self.t5(),
        }
    }

    fn gpt2(&self) -> Vec<Tensor> {
        let hidden = self.hidden;
        let mut tensors = vec![
            Tensor::new("transformer.wte.weight", [VOCAB, hidden], Draw::Table),
            Tensor::new("transformer.wpe.weight", [self.positions, hidden], Draw::Table),
        ];
        for layer in 0..self.layers {
            let layer = format!("transformer.h.{layer}");
            let maps = [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)];
            for (name, from, to) in maps {
                tensors.push(Tensor::new(
                    format!("{layer}.{name}.weight"),
                    [from * hidden, to * hidden],
                    Draw::ColumnsOut,
                ));
                tensors.push(Tensor::new(format!("{layer}.{name}.bias"), [to * hidden], Draw::Around(0.0)));
            }
            for name in ["ln_1", "ln_2"] {
                tensors.extend(norm(&format!("{layer}.{name}"), hidden));
            }
        }
        tensors.extend(norm("transformer.ln_f", hidden));
        tensors
    }

    fn gptj(&self) -> Vec<Tensor> {
        let hidden = self.hidden;
        let mut tensors = vec![Tensor::new("transformer.wte.weight", [VOCAB, hidden], Draw::Table)];
        for layer in 0..self.layers {
            let layer = format!("transformer.h.{layer}");
            tensors.extend(norm(&format!("{layer}.ln_1"), hidden));
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                tensors.push(map(format!("{layer}.attn.{name}"), hidden, hidden, GAIN));
            }
            for (name, from, to) in [("fc_in", 1, 4), ("fc_out", 4, 1)] {
                tensors.push(map(format!("{layer}.mlp.{name}"), from * hidden, to * hidden, GAIN));
                tensors.push(Tensor::new(format!("{layer}.mlp.{name}.bias"), [to * hidden], Draw::Around(0.0)));
            }
        }
        tensors.extend(norm("transformer.ln_f", hidden));
        tensors.push(Tensor::new("lm_head.weight", [VOCAB, hidden], Draw::Table));
        tensors.push(Tensor::new("lm_head.bias", [VOCAB], Draw::Around(0.0)));
        tensors
    }

    fn t5(&self) -> Vec<Tensor> {
        let mut tensors = vec![Tensor::new("shared.weight", [T5_VOCAB, self.hidden], Draw::Table)];
        self.t5_stack(&mut tensors, "encoder", &["SelfAttention"]);
        self.t5_stack(&mut tensors, "decoder", &["SelfAttention", "EncDecAttention"]);
        tensors.push(Tensor::new("lm_head.weight", [T5_VOCAB, self.hidden], Draw::Words(T5_SPOKEN)));
        tensors
    }

    /// The layers of the encoder or the decoder, each with these attentions. No map has a bias, and no norm.
    fn t5_stack(&self, tensors: &mut Vec<Tensor>, stack: &str, attentions: &[&str]) {
        let (hidden, inner) = (self.hidden, self.t5_inner());
        for layer in 0..self.layers {
            let layer = format!("{stack}.block.{layer}.layer");
            for (part, attention) in attentions.iter().enumerate() {
                let name = format!("{layer}.{part}.{attention}");
                // Queries are smaller by what other families divide the products by.
                let queries = T5_GAIN / ((hidden / self.heads) as f32).sqrt();
                for (map_name, gain) in [("q", queries), ("k", T5_GAIN), ("v", T5_GAIN), ("o", T5_GAIN)] {
                    tensors.push(map(format!("{name}.{map_name}"), hidden, hidden, gain));
                }
                if part == 0 && layer.ends_with("block.0.layer") {
                    let name = format!("{name}.relative_attention_bias.weight");
                    tensors.push(Tensor::new(name, [T5_BUCKETS, self.heads], Draw::Plain));
                }
                tensors.push(scale(format!("{layer}.{part}.layer_norm"), hidden));
            }
            let part = attentions.len();
            for (name, from, to) in [("wi_0", hidden, inner), ("wi_1", hidden, inner), ("wo", inner, hidden)] {
                tensors.push(map(format!("{layer}.{part}.DenseReluDense.{name}"), from, to, T5_GAIN));
            }
            tensors.push(scale(format!("{layer}.{part}.layer_norm"), hidden));
        }
        tensors.push(scale(format!("{stack}.final_layer_norm"), hidden));
    }

    /// Width of the gated feed-forward networks, as the base model has it.
    fn t5_inner(&self) -> usize {
        self.hidden * 8 / 3
    }
}

/// A matrix `[out, in]`.
fn map(name: String, from: usize, to: usize, gain: f32) -> Tensor {
    Tensor::new(format!("{name}.weight"), [to, from], Draw::RowsOut { gain })
}

fn scale(name: String, hidden: usize) -> Tensor {
    Tensor::new(format!("{name}.weight"), [hidden], Draw::Around(1.0))
}

fn norm(name: &str, hidden: usize) -> [Tensor; 2] {
    [scale(name.to_owned(), hidden), Tensor::new(format!("{name}.bias"), [hidden], Draw::Around(0.0))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(shape: &Shape) -> usize {
        shape.tensors().iter().map(Tensor::elements).sum()
    }

    #[test]
    fn the_shapes_are_those_of_gpt2_small() {
        let shape = Shape { family: Family::Gpt2, layers: 12, hidden: 768, heads: 12, positions: 1024 };
        assert_eq!(parameters(&shape), 124_439_808);
    }

    #[test]
    fn the_shapes_are_those_of_gptj() {
        let shape = Shape { family: Family::Gptj, layers: 28, hidden: 4096, heads: 16, positions: 2048 };
        // The real one has 143 more tokens, each with a row of both tables and a bias.
        assert_eq!(parameters(&shape) + 143 * (2 * 4096 + 1), 6_050_882_784);
        assert_eq!(shape.config()["rotary_dim"], 64);
    }

    #[test]
    fn the_shapes_are_those_of_flan_t5_base() {
        let shape = Shape { family: Family::T5, layers: 12, hidden: 768, heads: 12, positions: 512 };
        assert_eq!(parameters(&shape), 247_577_856);
        assert_eq!((&shape.config()["d_ff"], &shape.config()["d_kv"]), (&json!(2048), &json!(64)));
    }
}
