//! A random checkpoint of GPT-2's real shape, as `save_pretrained` would write it. The same seed gives the same bytes.
//!
//! The weights are drawn as the golden tests draw theirs (`tests/goldens/reference.py`): layers outweigh what they add to, so
//! that the output depends on the prompt. With the initialisation of training, every prompt gets the same constant token.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

/// Standard deviation of the logits over the vocabulary.
const LOGIT_STD: f32 = 3.0;
/// By how much a layer's matrix scales what it is given.
const GAIN: f32 = 2.5;
/// Standard deviation of biases, and of LayerNorm weights around 1.
const OFFSET_STD: f32 = 0.1;

const LAYERS: usize = 12;
const HIDDEN: usize = 768;
const HEADS: usize = 12;
const POSITIONS: usize = 1024;
const VOCAB: usize = 50257;
const WEIGHTS: &str = "model.safetensors";

/// Arguments of `checkpoint`.
#[derive(Clone, Debug, Args)]
pub struct CheckpointArgs {
    /// Where to write it.
    folder: PathBuf,
    /// GPT-2's encoder.json and vocab.bpe, as tools/gpt2_vocabulary.sh fetches them.
    #[arg(long, value_name = "DIR")]
    vocabulary: PathBuf,
    /// Seed of the weights.
    #[arg(long, default_value_t = 124)]
    seed: u64,
}

impl CheckpointArgs {
    /// Writes the checkpoint; one that is there is left alone.
    pub fn run(self) -> Result<()> {
        let weights = self.folder.join(WEIGHTS);
        if weights.exists() {
            println!("{} is there already", self.folder.display());
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        for (source, name) in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")] {
            let from = self.vocabulary.join(source);
            fs::copy(&from, self.folder.join(name)).with_context(|| format!("can't copy {}", from.display()))?;
        }
        fs::write(self.folder.join("config.json"), serde_json::to_vec_pretty(&config())?)?;
        write_weights(&weights, self.seed)?;
        println!("wrote a random GPT-2 to {}", self.folder.display());
        Ok(())
    }
}

fn config() -> serde_json::Value {
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS,
        "n_positions": POSITIONS, "n_ctx": POSITIONS, "vocab_size": VOCAB, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1, "tie_word_embeddings": true
    })
}

/// Names and shapes; matrices of layers are `[in, out]`.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes =
        vec![("wte.weight".to_owned(), vec![VOCAB, HIDDEN]), ("wpe.weight".to_owned(), vec![POSITIONS, HIDDEN])];
    for layer in 0..LAYERS {
        let maps = [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)];
        for (name, from, to) in maps {
            shapes.push((format!("h.{layer}.{name}.weight"), vec![from * HIDDEN, to * HIDDEN]));
            shapes.push((format!("h.{layer}.{name}.bias"), vec![to * HIDDEN]));
        }
        for name in ["ln_1", "ln_2"] {
            shapes.push((format!("h.{layer}.{name}.weight"), vec![HIDDEN]));
            shapes.push((format!("h.{layer}.{name}.bias"), vec![HIDDEN]));
        }
    }
    shapes.push(("ln_f.weight".to_owned(), vec![HIDDEN]));
    shapes.push(("ln_f.bias".to_owned(), vec![HIDDEN]));
    shapes
}

fn write_weights(path: &Path, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let bytes = values(&mut rng, &name, &shape).iter().flat_map(|value| value.to_le_bytes()).collect();
            (format!("transformer.{name}"), shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>>>()?;
    let partial = path.with_extension("partial");
    safetensors::serialize_to_file(views, None, &partial)?;
    Ok(fs::rename(partial, path)?)
}

fn values(rng: &mut StdRng, name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.sample(StandardNormal)).collect();
    match *shape {
        [_, hidden] if name.starts_with("wte") || name.starts_with("wpe") => {
            let scale = LOGIT_STD / (hidden as f32).sqrt();
            values.iter_mut().for_each(|value| *value *= scale);
        }
        [inputs, outputs] => {
            // Centred, or the mean of what an activation lets through becomes the same addition to every position.
            let mut means = vec![0.0; outputs];
            for row in values.chunks_exact(outputs) {
                means.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / inputs as f32);
            }
            let scale = GAIN / (inputs as f32).sqrt();
            for row in values.chunks_exact_mut(outputs) {
                row.iter_mut().zip(&means).for_each(|(value, mean)| *value = (*value - mean) * scale);
            }
        }
        _ => {
            let centre = if name.ends_with("weight") { 1.0 } else { 0.0 };
            values.iter_mut().for_each(|value| *value = *value * OFFSET_STD + centre);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_are_those_of_gpt2_small() {
        let parameters: usize = shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, 124_439_808);
    }

    #[test]
    fn layers_are_centred_and_seeded() {
        let draw = |seed| values(&mut StdRng::seed_from_u64(seed), "h.0.mlp.c_fc.weight", &[16, 4]);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let column: f32 = draw(1).chunks_exact(4).map(|row| row[0]).sum();
        assert!(column.abs() < 1e-5, "{column}");
    }
}
