//! GPT-2 (`GPT2LMHeadModel`): learned positions, LayerNorm before each block, one matrix for queries, keys and values.
//!
//! Dropout and initializer fields do not matter for inference and are not read. `reorder_and_upcast_attn` only moves
//! rounding; attention here sums products of queries and keys in f32 anyway. Tensors that the graph has no use for (the
//! `attn.bias` mask buffers of old checkpoints, a stored copy of a tied head) are ignored, as transformers does.

use super::gpt::{Gpt, Maps, Names};
use super::{Family, Head, Shape};
use crate::blocks::{Builder, LayerPlan, Linear, Norm, Order, Step};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

const NAMES: Names = Names {
    hidden: &["n_embd", "hidden_size"],
    heads: &["n_head", "num_attention_heads"],
    layers: &["n_layer", "num_hidden_layers"],
    positions: &["n_positions", "n_ctx", "max_position_embeddings"],
    inner: "n_inner",
    tied: true,
};

/// Every field of the configuration that changes the mathematics.
#[derive(Debug)]
struct Gpt2 {
    gpt: Gpt,
    /// Divide query-key products by the square root of the head size.
    scale: bool,
    /// Divide them by the layer's number, counted from 1, too.
    scale_by_layer: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    Ok(Box::new(Gpt2::read(config)?))
}

impl Gpt2 {
    fn read(config: &Config) -> Result<Self, ConfigError> {
        if config.flag_or("add_cross_attention", false)? {
            return Err(ConfigError::CrossAttention);
        }
        Ok(Self {
            gpt: Gpt::read(config, &NAMES)?,
            scale: config.flag_or("scale_attn_weights", true)?,
            scale_by_layer: config.flag_or("scale_attn_by_inverse_layer_idx", false)?,
        })
    }

    /// The factor of query-key products in a layer.
    fn scale(&self, layer: u32) -> f32 {
        let mut scale = if self.scale { f64::from(self.gpt.shape.head_dim).sqrt().recip() } else { 1.0 };
        if self.scale_by_layer {
            scale /= f64::from(layer + 1);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the graph's attribute is an f32")]
        let scale = scale as f32;
        scale
    }
}

impl Family for Gpt2 {
    fn shape(&self) -> Shape {
        self.gpt.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "wte.weight"
    }

    fn embed(&self, builder: &mut Builder, step: &Step, rows: Value) -> Result<Value, WeightsError> {
        self.gpt.add_positions(builder, step, &rows)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let (hidden, inner) = (self.gpt.shape.hidden, self.gpt.inner);
        let name = |part: &str| format!("h.{index}.{part}");
        let maps = Maps {
            qkv: Linear::conv1d(name("attn.c_attn"), hidden, 3 * hidden),
            out: Linear::conv1d(name("attn.c_proj"), hidden, hidden),
            up: Linear::conv1d(name("mlp.c_fc"), hidden, inner),
            down: Linear::conv1d(name("mlp.c_proj"), inner, hidden),
        };
        self.gpt.layer(index, Order::Sequential("ln_2"), self.scale(index), maps)
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        self.gpt.end_norm()
    }

    fn head(&self) -> Head {
        Head { matrix: self.gpt.matrix(), bias: None }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use safetensors::tensor::{Dtype as Stored, TensorView};

    use super::*;
    use crate::checkpoint::{Folder, Weights};
    use crate::families::{self, GraphOptions};
    use crate::onnx::proto::GraphProto;
    use bundle::manifest::Dtype;

    const HIDDEN: usize = 4;
    const VOCAB: usize = 13;
    const POSITIONS: usize = 9;

    /// The graph of a model of one layer and all zeros, with `extra` fields in its configuration.
    fn graph(extra: &str, dtype: Dtype) -> GraphProto {
        let mut shapes = BTreeMap::from([
            ("wte.weight".to_owned(), vec![VOCAB, HIDDEN]),
            ("wpe.weight".to_owned(), vec![POSITIONS, HIDDEN]),
            ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ]);
        for norm in ["ln_f", "h.0.ln_1", "h.0.ln_2"] {
            shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![HIDDEN])));
        }
        for (map, from, to) in [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)]
        {
            shapes.insert(format!("h.0.{map}.weight"), vec![from * HIDDEN, to * HIDDEN]);
            shapes.insert(format!("h.0.{map}.bias"), vec![to * HIDDEN]);
        }
        let zeros = [0; 4 * VOCAB * HIDDEN * HIDDEN];
        let views = shapes.iter().map(|(name, shape)| {
            let bytes = 4 * shape.iter().product::<usize>();
            (name, TensorView::new(Stored::F32, shape.clone(), &zeros[..bytes]).expect("a tensor"))
        });
        let folder = tempfile::tempdir().expect("a folder");
        let file = safetensors::serialize(views, None).expect("a file");
        std::fs::write(folder.path().join("model.safetensors"), file).expect("written");
        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");

        let json = format!(
            r#"{{"n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 9, "vocab_size": 13, "n_ctx": 9{extra}}}"#
        );
        let model = Gpt2::read(&Config::parse("config.json", json.as_bytes()).expect("JSON")).expect("a model");
        let options = GraphOptions { context: 6, top_k: 3, precision: dtype.into(), slots: false };
        let graph = families::graph(&model, &weights, &options).expect("a graph");
        let (model, _) = graph.finish("gpt2", "model.weights");
        model.graph.expect("a graph")
    }

    fn operators(graph: &GraphProto) -> Vec<&str> {
        graph.node.iter().map(|node| node.op_type.as_str()).collect()
    }

    #[test]
    fn inputs_and_outputs_are_the_ones_runtimes_ask_for() {
        let graph = graph("", Dtype::F32);
        let inputs: Vec<_> = graph.input.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(inputs, ["input_ids", "past_len", "select", "past_k_0", "past_v_0"]);
        let outputs: Vec<_> = graph.output.iter().map(|output| output.name.as_str()).collect();
        assert_eq!(outputs, ["logits", "topv", "topi", "lse", "present_k_0", "present_v_0"]);
    }

    /// The forms that the runtimes read differently must not come back.
    #[test]
    fn attention_has_an_explicit_mask_and_scale_and_nothing_else() {
        for (extra, scale) in [
            ("", 0.5f32.sqrt()),
            (r#", "scale_attn_weights": false"#, 1.0),
            (r#", "scale_attn_by_inverse_layer_idx": true"#, 0.5f32.sqrt()),
        ] {
            let graph = graph(extra, Dtype::F32);
            let attention = graph.node.iter().find(|node| node.op_type == "Attention").expect("attention");
            assert_eq!(attention.input.len(), 4, "queries, keys, values, mask");
            let attributes: Vec<_> = attention.attribute.iter().map(|a| (a.name.as_str(), a.f)).collect();
            assert_eq!(attributes, [("scale", Some(scale))]);
            assert!(!operators(&graph).contains(&"ReduceLogSumExp"));
        }
    }

    #[test]
    fn layers_count_from_one_in_the_inverse_scale() {
        let json = r#"{"n_embd": 4, "n_head": 1, "n_layer": 3, "n_positions": 9, "vocab_size": 13,
            "scale_attn_by_inverse_layer_idx": true}"#;
        let model = Gpt2::read(&Config::parse("config.json", json.as_bytes()).expect("JSON")).expect("a model");
        let scales: Vec<f32> = (0..3).map(|layer| model.scale(layer)).collect();
        assert_eq!(scales, [0.5, 0.25, 0.5 / 3.0]);
    }

    #[test]
    fn a_tied_head_is_stored_once_and_an_untied_one_has_no_prefix() {
        let matrices = |graph: &GraphProto| {
            let head = graph.node.iter().find(|node| node.op_type == "Gemm").expect("the head");
            (head.input[1].clone(), graph.initializer.iter().filter(|tensor| tensor.dims == [16, 4]).count())
        };
        // 16 x 4 is also the shape of `mlp.c_proj.weight`.
        assert_eq!(matrices(&graph("", Dtype::F32)), ("wte.weight".to_owned(), 2));
        let untied = graph(r#", "tie_word_embeddings": false"#, Dtype::F32);
        assert_eq!(matrices(&untied), ("lm_head.weight".to_owned(), 3));
    }

    #[test]
    fn half_precision_keeps_norms_residuals_and_logits_in_f32() {
        assert!(!operators(&graph("", Dtype::F32)).contains(&"Cast"));
        let graph = graph("", Dtype::F16);
        let element = |name: &str| {
            graph.initializer.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.data_type).expect("there")
        };
        let (f32_type, f16_type) = (1, 10);
        assert_eq!([element("wte.weight"), element("h.0.mlp.c_fc.bias")], [f16_type; 2]);
        assert_eq!(["wpe.weight", "ln_f.weight", "wte.weight.mean", "vocabulary.pad_bias"].map(element), [f32_type; 4]);
        // Token embedding, two LayerNorms in and two updates out, and the head's in and out.
        assert_eq!(operators(&graph).iter().filter(|operator| **operator == "Cast").count(), 7);
    }
}
