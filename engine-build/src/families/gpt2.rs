//! GPT-2 (`GPT2LMHeadModel`): learned positions, LayerNorm before each block, one matrix for queries, keys and values.
//!
//! Dropout and initializer fields do not matter for inference and are not read. `reorder_and_upcast_attn` only moves
//! rounding; attention here accumulates in f32 anyway. Tensors that the graph has no use for (the `attn.bias` mask
//! buffers of old checkpoints, a stored copy of a tied head) are ignored, as transformers does.

use crate::blocks::{Activation, AttentionSpec, Builder, Cache, HeadSpec, Step, Vocabulary};
use crate::checkpoint::{Config, Weights};
use crate::error::{ConfigError, WeightsError};
use crate::families::{GraphOptions, Shape};
use crate::onnx::{Graph, Value};

/// Every field of the configuration that changes the mathematics.
#[derive(Debug)]
pub(crate) struct Gpt2 {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    activation: Activation,
    epsilon: f32,
    /// Divide query-key products by the square root of the head size.
    scale: bool,
    /// Divide them by the layer's number, counted from 1, too.
    scale_by_layer: bool,
    /// The head is the token embedding, not `lm_head.weight`.
    tied: bool,
}

impl Gpt2 {
    /// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
    pub(crate) fn read(config: &Config) -> Result<Self, ConfigError> {
        if config.flag_or("add_cross_attention", false)? {
            return Err(ConfigError::CrossAttention);
        }
        let hidden = config.dimension(&["n_embd", "hidden_size"])?;
        let heads = config.dimension(&["n_head", "num_attention_heads"])?;
        if hidden % heads != 0 {
            return Err(ConfigError::HeadSize { hidden, heads });
        }
        let activation = config.text_or("activation_function", "gelu_new")?;
        Ok(Self {
            shape: Shape {
                layers: config.dimension(&["n_layer", "num_hidden_layers"])?,
                heads,
                head_dim: hidden / heads,
                hidden,
                positions: config.dimension(&["n_positions", "n_ctx", "max_position_embeddings"])?,
                vocab: config.dimension(&["vocab_size"])?,
            },
            inner: config.dimension_opt("n_inner")?.unwrap_or(4 * hidden),
            activation: Activation::from_name(activation).ok_or_else(|| ConfigError::Activation {
                found: activation.to_owned(),
                supported: Activation::names(),
            })?,
            epsilon: config.positive_or("layer_norm_epsilon", 1e-5)?,
            scale: config.flag_or("scale_attn_weights", true)?,
            scale_by_layer: config.flag_or("scale_attn_by_inverse_layer_idx", false)?,
            tied: config.flag_or("tie_word_embeddings", true)?,
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Inputs `input_ids`, `past_len`, `select` and the past; outputs `logits`, `topv`, `topi`, `lse` and the present.
    pub(crate) fn graph(&self, weights: &Weights, options: &GraphOptions) -> Result<Graph, WeightsError> {
        let prefix = if weights.contains("transformer.wte.weight") { "transformer." } else { "" };
        let mut builder = Builder::new(weights, prefix, options.dtype);
        let step = builder.step(options.context);
        let tokens = self.vocabulary_matrix(&mut builder, "wte.weight")?;
        let mut x = self.embed(&mut builder, &step, &tokens, options.context)?;
        let mut presents = Vec::new();
        for layer in 0..self.shape.layers {
            let present;
            (x, present) = self.layer(&mut builder, layer, &step, x, options.context)?;
            presents.push(present);
        }
        let x = builder.select(&x, &step, self.shape.hidden);
        let x = builder.layer_norm("ln_f", &x, u64::from(self.shape.hidden), self.epsilon)?;
        let matrix = self.head_matrix(&mut builder, tokens)?;
        builder.head(&x, &matrix, &self.head_spec(options.top_k));
        for (layer, present) in (0..).zip(&presents) {
            builder.present(present, &self.attention(layer, options.context));
        }
        Ok(builder.graph)
    }

    fn embed(&self, b: &mut Builder, step: &Step, tokens: &Vocabulary, context: u32) -> Result<Value, WeightsError> {
        let rows = (u64::from(self.shape.positions), u64::from(context));
        let positions = b.position_matrix("wpe.weight", rows, u64::from(self.shape.hidden))?;
        Ok(b.embed(step, tokens, &positions))
    }

    /// `x += Attention(LN(x)); x += MLP(LN(x))`, all `[B, S, E]`.
    fn layer(
        &self,
        b: &mut Builder,
        layer: u32,
        step: &Step,
        x: Value,
        context: u32,
    ) -> Result<(Value, Cache), WeightsError> {
        let (hidden, inner) = (u64::from(self.shape.hidden), u64::from(self.inner));
        let name = |part: &str| format!("h.{layer}.{part}");
        let spec = self.attention(layer, context);

        b.graph.scope(name("attn"));
        let past = b.past(layer, &spec);
        let normed = b.layer_norm(&name("ln_1"), &x, hidden, self.epsilon)?;
        let normed = b.narrow(normed);
        let qkv = b.linear(&name("attn.c_attn"), &normed, hidden, 3 * hidden)?;
        let heads = b.split_heads(&qkv, &spec);
        let (mixed, present) = b.attend(layer, heads, (&past, step), &spec);
        let update = b.linear(&name("attn.c_proj"), &mixed, hidden, hidden)?;
        let x = b.residual(&x, update);

        b.graph.scope(name("mlp"));
        let normed = b.layer_norm(&name("ln_2"), &x, hidden, self.epsilon)?;
        let normed = b.narrow(normed);
        let wide = b.linear(&name("mlp.c_fc"), &normed, hidden, inner)?;
        let wide = b.activate(self.activation, &wide);
        let update = b.linear(&name("mlp.c_proj"), &wide, inner, hidden)?;
        Ok((b.residual(&x, update), present))
    }

    fn attention(&self, layer: u32, context: u32) -> AttentionSpec {
        let Shape { heads, head_dim, .. } = self.shape;
        let mut scale = if self.scale { f64::from(head_dim).sqrt().recip() } else { 1.0 };
        if self.scale_by_layer {
            scale /= f64::from(layer + 1);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the graph's attribute is an f32")]
        let scale = scale as f32;
        AttentionSpec { heads, head_dim, context, scale }
    }

    /// A matrix with one row per token id, padded to the padded vocabulary.
    fn vocabulary_matrix(&self, b: &mut Builder, name: &str) -> Result<Vocabulary, WeightsError> {
        let rows = (u64::from(self.shape.vocab), u64::from(self.shape.vocab_padded()));
        b.vocabulary_matrix(name, rows, u64::from(self.shape.hidden))
    }

    fn head_matrix(&self, b: &mut Builder, tokens: Vocabulary) -> Result<Vocabulary, WeightsError> {
        if self.tied { Ok(tokens) } else { b.without_prefix(|b| self.vocabulary_matrix(b, "lm_head.weight")) }
    }

    fn head_spec(&self, top_k: u32) -> HeadSpec {
        HeadSpec { vocab: self.shape.vocab, vocab_padded: self.shape.vocab_padded(), top_k }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use safetensors::tensor::{Dtype as Stored, TensorView};

    use super::*;
    use crate::checkpoint::Folder;
    use crate::manifest::Dtype;
    use crate::onnx::proto::GraphProto;

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
        let options = GraphOptions { context: 6, top_k: 3, dtype };
        let (model, _) = model.graph(&weights, &options).expect("a graph").finish("gpt2", "model.weights");
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
        let scales: Vec<f32> = (0..3).map(|layer| model.attention(layer, 9).scale).collect();
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
