//! A random checkpoint of a real shape, as `save_pretrained` would write it: GPT-2's, or GPT-J's. The same seed gives the same bytes.
//!
//! The weights are drawn as the golden tests draw theirs (`tests/goldens/reference.py`): layers outweigh what they add to, so
//! that the output depends on the prompt. With the initialisation of training, every prompt gets the same constant token.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;
use serde_json::json;

/// Standard deviation of the logits over the vocabulary.
const LOGIT_STD: f32 = 3.0;
/// By how much a layer's matrix scales what it is given.
const GAIN: f32 = 2.5;
/// Standard deviation of biases, and of LayerNorm weights around 1.
const OFFSET_STD: f32 = 0.1;

const VOCAB: usize = 50257;
/// Elements of a head that GPT-J rotates, where it has so many.
const ROTARY: usize = 64;
const WEIGHTS: &str = "model.safetensors";

/// What GPT-J's matrices of layers have in their names.
const GPTJ_MAPS: [&str; 6] = ["q_proj", "k_proj", "v_proj", "out_proj", ".fc_in", ".fc_out"];

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Family {
    /// GPT-2.
    Gpt2,
    /// GPT-J, with GPT-2's vocabulary.
    Gptj,
}

/// Arguments of `checkpoint`. The defaults are GPT-2's smallest.
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
    #[command(flatten)]
    shape: Shape,
}

/// The shape of a model.
#[derive(Clone, Copy, Debug, Args)]
struct Shape {
    /// Family.
    #[arg(long, value_enum, default_value = "gpt2")]
    family: Family,
    /// Layers.
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Elements of the hidden state, a multiple of the heads.
    #[arg(long, default_value_t = 768)]
    hidden: usize,
    /// Heads of each layer.
    #[arg(long, default_value_t = 12)]
    heads: usize,
    /// Positions.
    #[arg(long, default_value_t = 1024)]
    positions: usize,
}

/// A tensor's name and its sizes.
type Tensor = (String, Vec<usize>);

impl CheckpointArgs {
    /// Writes the checkpoint; one that is there is left alone.
    pub fn run(self) -> Result<()> {
        let weights = self.folder.join(WEIGHTS);
        if weights.exists() {
            println!("{} is there already", self.folder.display());
            return Ok(());
        }
        let Shape { family, layers, hidden, heads, .. } = self.shape;
        ensure!(heads > 0 && hidden > 0 && hidden.is_multiple_of(heads), "--hidden must be a multiple of --heads");
        fs::create_dir_all(&self.folder)?;
        for (source, name) in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")] {
            let from = self.vocabulary.join(source);
            fs::copy(&from, self.folder.join(name)).with_context(|| format!("can't copy {}", from.display()))?;
        }
        fs::write(self.folder.join("config.json"), serde_json::to_vec_pretty(&self.shape.config())?)?;
        let tensors = self.shape.tensors();
        write_weights(&weights, &tensors, self.seed)?;
        let millions = tensors.iter().map(elements).sum::<usize>() / 1_000_000;
        println!(
            "wrote a random {} of {layers} layers, {hidden} wide, {millions} M parameters, to {}",
            if family == Family::Gpt2 { "GPT-2" } else { "GPT-J" },
            self.folder.display()
        );
        Ok(())
    }
}

impl Shape {
    fn config(&self) -> serde_json::Value {
        let Self { family, layers, hidden, heads, positions } = *self;
        let mut config = json!({
            "n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": positions, "n_ctx": positions,
            "vocab_size": VOCAB, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1,
        });
        let own = match family {
            Family::Gpt2 => json!({
                "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "tie_word_embeddings": true
            }),
            Family::Gptj => json!({
                "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "tie_word_embeddings": false,
                "rotary_dim": ROTARY.min(hidden / heads)
            }),
        };
        if let (Some(config), serde_json::Value::Object(own)) = (config.as_object_mut(), own) {
            config.extend(own);
        }
        config
    }

    /// Names and shapes. Matrices of layers are `[in, out]` in GPT-2 and `[out, in]` in GPT-J.
    fn tensors(&self) -> Vec<Tensor> {
        match self.family {
            Family::Gpt2 => self.gpt2(),
            Family::Gptj => self.gptj(),
        }
    }

    fn gpt2(&self) -> Vec<Tensor> {
        let hidden = self.hidden;
        let mut tensors = vec![
            ("wte.weight".to_owned(), vec![VOCAB, hidden]),
            ("wpe.weight".to_owned(), vec![self.positions, hidden]),
        ];
        for layer in 0..self.layers {
            let maps = [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)];
            for (name, from, to) in maps {
                tensors.push((format!("h.{layer}.{name}.weight"), vec![from * hidden, to * hidden]));
                tensors.push((format!("h.{layer}.{name}.bias"), vec![to * hidden]));
            }
            for name in ["ln_1", "ln_2"] {
                tensors.extend(norm(&format!("h.{layer}.{name}"), hidden));
            }
        }
        tensors.extend(norm("ln_f", hidden));
        tensors
    }

    fn gptj(&self) -> Vec<Tensor> {
        let hidden = self.hidden;
        let mut tensors = vec![("wte.weight".to_owned(), vec![VOCAB, hidden])];
        for layer in 0..self.layers {
            tensors.extend(norm(&format!("h.{layer}.ln_1"), hidden));
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                tensors.push((format!("h.{layer}.attn.{name}.weight"), vec![hidden, hidden]));
            }
            for (name, from, to) in [("fc_in", 1, 4), ("fc_out", 4, 1)] {
                tensors.push((format!("h.{layer}.mlp.{name}.weight"), vec![to * hidden, from * hidden]));
                tensors.push((format!("h.{layer}.mlp.{name}.bias"), vec![to * hidden]));
            }
        }
        tensors.extend(norm("ln_f", hidden));
        tensors.push(("lm_head.weight".to_owned(), vec![VOCAB, hidden]));
        tensors.push(("lm_head.bias".to_owned(), vec![VOCAB]));
        tensors
    }
}

fn norm(name: &str, hidden: usize) -> [Tensor; 2] {
    ["weight", "bias"].map(|part| (format!("{name}.{part}"), vec![hidden]))
}

fn elements((_, shape): &Tensor) -> usize {
    shape.iter().product()
}

/// Writes the file tensor by tensor: a large model is drawn in the memory of its largest matrix.
fn write_weights(path: &Path, tensors: &[Tensor], seed: u64) -> Result<()> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for tensor in tensors {
        let (name, shape) = tensor;
        let start = end;
        end += 4 * elements(tensor);
        let prefix = if name.starts_with("lm_head") { "" } else { "transformer." };
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("{prefix}{name}"), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let partial = path.with_extension("partial");
    let mut file = BufWriter::new(fs::File::create(&partial)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut rng = StdRng::seed_from_u64(seed);
    for (name, shape) in tensors {
        for value in values(&mut rng, name, shape) {
            file.write_all(&value.to_le_bytes())?;
        }
    }
    file.into_inner()?.sync_all()?;
    Ok(fs::rename(partial, path)?)
}

fn values(rng: &mut StdRng, name: &str, shape: &[usize]) -> Vec<f32> {
    let mut values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.sample(StandardNormal)).collect();
    match *shape {
        [_, hidden] if ["wte", "wpe", "lm_head"].iter().any(|table| name.starts_with(table)) => {
            let scale = LOGIT_STD / (hidden as f32).sqrt();
            values.iter_mut().for_each(|value| *value *= scale);
        }
        // GPT-J's, an output a row.
        [_, inputs] if GPTJ_MAPS.iter().any(|map| name.contains(map)) => {
            let scale = GAIN / (inputs as f32).sqrt();
            for row in values.chunks_exact_mut(inputs) {
                let mean = row.iter().sum::<f32>() / inputs as f32;
                row.iter_mut().for_each(|value| *value = (*value - mean) * scale);
            }
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

    const SMALL: Shape = Shape { family: Family::Gpt2, layers: 12, hidden: 768, heads: 12, positions: 1024 };

    #[test]
    fn the_shapes_are_those_of_gpt2_small() {
        let parameters: usize = SMALL.tensors().iter().map(elements).sum();
        assert_eq!(parameters, 124_439_808);
    }

    #[test]
    fn the_shapes_are_those_of_gptj() {
        let shape = Shape { family: Family::Gptj, layers: 28, hidden: 4096, heads: 16, positions: 2048 };
        let parameters: usize = shape.tensors().iter().map(elements).sum();
        // The real one has 143 more tokens, each with a row of both tables and a bias.
        assert_eq!(parameters + 143 * (2 * 4096 + 1), 6_050_882_784);
        assert_eq!(shape.config()["rotary_dim"], 64);
    }

    #[test]
    fn a_file_is_read_as_what_was_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(WEIGHTS);
        for family in [Family::Gpt2, Family::Gptj] {
            let tensors = Shape { family, layers: 1, hidden: 4, heads: 2, positions: 8 }.tensors();
            write_weights(&path, &tensors, 3).unwrap();
            let bytes = fs::read(&path).unwrap();
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(read.len(), tensors.len());
            let (first, shape) = &tensors[0];
            let drawn = values(&mut StdRng::seed_from_u64(3), first, shape);
            let drawn: Vec<u8> = drawn.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(read.tensor("transformer.wte.weight").unwrap().data(), drawn);
        }
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
