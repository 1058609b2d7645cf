//! A random checkpoint of a real shape, as `save_pretrained` would write it: GPT-2's, GPT-J's, or T5's with a tokenizer
//! of our own. The same seed gives the same bytes.

mod draw;
mod pieces;
mod shape;

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::json;

use self::shape::{Family, Shape, Tensor};

const WEIGHTS: &str = "model.safetensors";

/// Arguments of `checkpoint`. The defaults are GPT-2's smallest.
#[derive(Clone, Debug, Args)]
pub struct CheckpointArgs {
    /// Where to write it.
    folder: PathBuf,
    /// GPT-2's `encoder.json` and `vocab.bpe`, as tools/gpt2_vocabulary.sh fetches them, for the families that have its
    /// vocabulary.
    #[arg(long, value_name = "DIR")]
    vocabulary: Option<PathBuf>,
    /// Seed of the weights.
    #[arg(long, default_value_t = 124)]
    seed: u64,
    #[command(flatten)]
    shape: Shape,
}

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
        self.write_tokenizer()?;
        fs::write(self.folder.join("config.json"), serde_json::to_vec_pretty(&self.shape.config())?)?;
        let tensors = self.shape.tensors();
        write_weights(&weights, &tensors, self.seed)?;
        let millions = tensors.iter().map(Tensor::elements).sum::<usize>() / 1_000_000;
        println!(
            "wrote a random {} of {layers} layers, {hidden} wide, {millions} M parameters, to {}",
            family.text(),
            self.folder.display()
        );
        Ok(())
    }

    fn write_tokenizer(&self) -> Result<()> {
        if self.shape.family == Family::T5 {
            return Ok(fs::write(self.folder.join("tokenizer.json"), serde_json::to_vec(&pieces::tokenizer())?)?);
        }
        let vocabulary = self.vocabulary.as_deref().context("this family needs --vocabulary")?;
        for (source, name) in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")] {
            let from = vocabulary.join(source);
            fs::copy(&from, self.folder.join(name)).with_context(|| format!("can't copy {}", from.display()))?;
        }
        Ok(())
    }
}

/// Writes the file tensor by tensor: a large model is drawn in the memory of its largest matrix.
fn write_weights(path: &Path, tensors: &[Tensor], seed: u64) -> Result<()> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += 4 * tensor.elements();
        let entry = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let partial = path.with_extension("partial");
    let mut file = BufWriter::new(fs::File::create(&partial)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut rng = StdRng::seed_from_u64(seed);
    for tensor in tensors {
        for value in tensor.draw.values(&mut rng, &tensor.shape) {
            file.write_all(&value.to_le_bytes())?;
        }
    }
    file.into_inner()?.sync_all()?;
    Ok(fs::rename(partial, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_what_was_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(WEIGHTS);
        for family in [Family::Gpt2, Family::Gptj, Family::T5] {
            let tensors = Shape { family, layers: 1, hidden: 12, heads: 2, positions: 8 }.tensors();
            write_weights(&path, &tensors, 3).unwrap();
            let bytes = fs::read(&path).unwrap();
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(read.len(), tensors.len());
            let drawn = tensors[0].draw.values(&mut StdRng::seed_from_u64(3), &tensors[0].shape);
            let drawn: Vec<u8> = drawn.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(read.tensor(&tensors[0].name).unwrap().data(), drawn);
        }
    }
}
