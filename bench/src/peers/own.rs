//! foretype's own engine in this process: the bundle's backend, without the server and without the prefix cache.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use backends::onnxruntime::{self, CpuLevel, Options};
use bundle::{Manifest, Quantization, is_bundle};
use completion::text::TokenId;
use engine_build::BuildOptions;
use scheduler::backend::{Backend, Batch, Outputs, Selected};

/// The most rows of a cell.
pub const LANES: usize = 10;
/// Tokens of a prompt at most.
const CHUNK: usize = 64;

/// The bundle of a checkpoint for a context and a precision, built on first use.
pub fn bundle(
    checkpoint: &Path,
    cache: &Path,
    context: u32,
    quantization: Quantization,
) -> Result<(PathBuf, Manifest)> {
    let kind = match quantization {
        Quantization::None => "fp32",
        Quantization::Int8 => "int8",
        Quantization::Int4 => "int4",
    };
    let name = checkpoint.file_name().context("a checkpoint folder has a name")?.to_string_lossy();
    let out = cache.join(format!("{name}-{kind}-{context}"));
    // One that another version wrote is built again.
    if is_bundle(&out)
        && let Ok(manifest) = Manifest::load(&out)
    {
        return Ok((out, manifest));
    }
    std::fs::create_dir_all(cache)?;
    let mut options = BuildOptions::new(checkpoint, &out);
    options.context = Some(context);
    options.quantization = quantization;
    let manifest = engine_build::build(&options, &())?;
    Ok((out, manifest))
}

/// The engine, for greedy decoding.
pub struct Own {
    backend: Box<dyn Backend>,
    batch: Batch,
    out: Outputs,
}

impl Own {
    /// Loads a bundle.
    pub fn load(bundle: &Path, manifest: &Manifest, library: Option<PathBuf>, threads: usize) -> Result<Self> {
        let cpu_level = CpuLevel::detect();
        let (spin, pool_bytes, huge_pages) = (false, 0, true);
        let options = Options { library, threads, spin, cpu_level, lanes: LANES, chunk: CHUNK, pool_bytes, huge_pages };
        let backend = onnxruntime::load(bundle, manifest, &options)?;
        Ok(Self { backend, batch: Batch::default(), out: Outputs::default() })
    }

    /// Continues rows of one length by `new_tokens` tokens each, greedily: tokens and milliseconds.
    pub fn generate(&mut self, prompt: &[Vec<u32>], new_tokens: usize) -> Result<(Vec<Vec<u32>>, f64)> {
        let started = Instant::now();
        let mut tokens = vec![Vec::with_capacity(new_tokens); prompt.len()];
        self.batch.clear();
        prompt.iter().for_each(|row| self.batch.push_row(0, row.iter().copied().map(TokenId)));
        let mut past = prompt.first().map_or(0, Vec::len);
        for step in 0..new_tokens {
            self.step(&mut tokens)?;
            if step + 1 < new_tokens {
                self.batch.clear();
                tokens.iter().for_each(|row| self.batch.push_row(past, row.last().copied().map(TokenId)));
                past += 1;
            }
        }
        Ok((tokens, started.elapsed().as_secs_f64() * 1000.0))
    }

    /// Computes the batch and adds the best next token to each row.
    fn step(&mut self, tokens: &mut [Vec<u32>]) -> Result<()> {
        for (row, part) in self.batch.rows.iter().enumerate() {
            self.batch.selected.push(Selected { row, offset: part.len - 1, full: false });
        }
        self.backend.forward(&self.batch, &mut self.out)?;
        let best = self.out.top_ids.iter().step_by(self.backend.limits().top_k);
        tokens.iter_mut().zip(best).for_each(|(row, &token)| row.push(token));
        Ok(())
    }
}
