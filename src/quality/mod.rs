//! Builds int8 bundles, and compares each with the f32 model before it takes its place.
//!
//! The f32 model reads a third of the texts first: what its linear maps multiply says which factors make int8 more
//! exact. Then both models read the other texts, and their next-token distributions are compared at every token. A
//! bundle beyond the bounds is refused, so nobody serves a model that quantization broke by accident.

mod comparison;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use bundle::Quantization;
use bundle::extras::read_popular;
use bundle::manifest::{Manifest, Quality};
use engine_build::{Activations, BuildError, BuildOptions, Check, Progress, build_checked};

use self::comparison::Comparison;
use crate::engine::{TokenizerError, read_text};
use backends::onnxruntime::{self, CpuLevel, LoadError, Observed};
use completion::text::TokenId;
use scheduler::backend::{Backend, BackendError, Batch, Limits, Outputs, Selected};

/// Least share of positions at which both models put the same token first.
pub const MIN_TOP1_AGREEMENT: f64 = 0.9;
/// Largest mean divergence from the f32 model, in nats.
pub const MAX_KL_NATS: f64 = 0.05;
/// Largest perplexity in multiples of the f32 model's.
pub const MAX_PERPLEXITY_RATIO: f64 = 1.05;

/// Most texts that are read. Of a longer list, texts at even distances are taken, or the most popular ones.
const MAX_TEXTS: usize = 200;
/// One text of so many is for the factors, and the others are for the comparison.
const OBSERVED: usize = 3;
/// Most positions of the texts for the factors. Texts at even distances are taken from more.
const MAX_OBSERVED: usize = 256;
/// Tokens of one forward.
const CHUNK: usize = 64;
/// Sentences for models that come without queries.
const SAMPLE: &str = include_str!("sample.txt");

/// How a quantized bundle is compared, and what then.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Texts to read, one a line. Else the popular queries that the bundle gets, or English sentences.
    pub texts: Option<PathBuf>,
    /// Keep the bundle however different it is, and where it can't be compared.
    pub force: bool,
    /// The ONNX Runtime library; without it, it is looked for beside the binary.
    pub library: Option<PathBuf>,
}

/// Why a quantized bundle was not kept.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    /// The difference is beyond the bounds.
    #[error(
        "quantization changes this model too much: {0}; build it without, measure on texts of its own, or use --force"
    )]
    Beyond(String),
    /// The texts can't be read.
    #[error("the texts to compare on, {}, can't be read: {reason}", path.display())]
    Texts {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        reason: String,
    },
    /// There is nothing to compare.
    #[error("the texts to compare on have no tokens; name others with --quality-texts")]
    NoTokens,
    /// The tokenizer can't be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A model can't be loaded.
    #[error("the quantized model can't be compared with f32: {0}")]
    Load(#[from] LoadError),
    /// A forward of one of the models failed.
    #[error("the quantized model can't be compared with f32: {0}")]
    Forward(#[from] BackendError),
}

/// Builds a bundle; a quantized one only if it is near enough to the model in f32.
///
/// # Errors
/// A build's, and [`BuildError::Refused`] with a [`QualityError`]. A bundle that was at the place is still there then.
pub fn build(options: &BuildOptions, gate: &Gate, progress: &dyn Progress) -> Result<Manifest, BuildError> {
    if options.quantization == Quantization::None {
        return engine_build::build(options, progress);
    }
    build_checked(options, progress, &mut Comparing { options, gate, progress, reference: None })
}

/// A quantized build, with the f32 model that it is compared with.
struct Comparing<'a> {
    options: &'a BuildOptions,
    gate: &'a Gate,
    progress: &'a dyn Progress,
    reference: Option<Reference>,
}

impl Comparing<'_> {
    /// The result; with `--force`, nothing instead of an error.
    fn forced<T>(&self, result: Result<T, QualityError>) -> Result<Option<T>, BuildError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.gate.force => {
                tracing::warn!(%error, "the quantized model is kept without a comparison");
                Ok(None)
            }
            Err(error) => Err(BuildError::Refused(error.into())),
        }
    }
}

impl Check for Comparing<'_> {
    fn observe(&mut self, folder: &Path) -> Result<Activations, BuildError> {
        let reference = Reference::build(self.options, folder, self.progress)?;
        self.progress.stage("observe the model in f32", 0);
        let observed = observe(self.options, self.gate, reference.files());
        self.reference = Some(reference);
        Ok(self.forced(observed)?.unwrap_or_default())
    }

    fn check(&mut self, folder: &Path, manifest: &Manifest) -> Result<Option<Quality>, BuildError> {
        let Some(reference) = &self.reference else { return Ok(None) };
        self.progress.stage("compare with f32", 0);
        let quality = measure(self.options, self.gate, [reference.files(), ModelFiles { folder, manifest }]);
        let Some(quality) = self.forced(quality)? else { return Ok(None) };
        match beyond(&quality) {
            Some(reason) if !self.gate.force => Err(BuildError::Refused(QualityError::Beyond(reason).into())),
            _ => Ok(Some(quality)),
        }
    }
}

/// The figures in a sentence.
pub fn describe(quality: &Quality) -> String {
    format!(
        "against f32 on {} texts ({} positions): the same first token at {:.1} %, divergence {:.4} nats, \
         perplexity {:.3} against {:.3}",
        quality.texts,
        quality.positions,
        100.0 * quality.top1_agreement,
        quality.kl_nats,
        quality.perplexity,
        quality.reference_perplexity
    )
}

/// The bounds that the figures exceed, in words.
fn beyond(quality: &Quality) -> Option<String> {
    let Quality { top1_agreement, kl_nats, .. } = *quality;
    let ratio = quality.perplexity / quality.reference_perplexity;
    let mut broken = Vec::new();
    // NaN is in no range.
    if !(MIN_TOP1_AGREEMENT..=1.0).contains(&top1_agreement) {
        broken.push(format!("the first token agrees at {top1_agreement:.3} of positions, below {MIN_TOP1_AGREEMENT}"));
    }
    if !(0.0..=MAX_KL_NATS).contains(&kl_nats) {
        broken.push(format!("the divergence is {kl_nats:.4} nats, above {MAX_KL_NATS}"));
    }
    if !(0.0..=MAX_PERPLEXITY_RATIO).contains(&ratio) {
        broken.push(format!("the perplexity is {ratio:.3} times as high, above {MAX_PERPLEXITY_RATIO}"));
    }
    (!broken.is_empty()).then(|| broken.join("; "))
}

/// The same model in f32, in a folder that is removed in the end.
struct Reference {
    folder: PathBuf,
    manifest: Manifest,
}

impl Reference {
    fn build(options: &BuildOptions, candidate: &Path, progress: &dyn Progress) -> Result<Self, BuildError> {
        let mut name = candidate.file_name().unwrap_or_default().to_os_string();
        name.push("-f32");
        let folder = candidate.with_file_name(name);
        let mut plain = BuildOptions::new(&options.checkpoint, &folder);
        plain.adapter.clone_from(&options.adapter);
        plain.context = options.context;
        plain.template.clone_from(&options.template);
        let manifest = engine_build::build(&plain, progress)?;
        Ok(Self { folder, manifest })
    }

    fn files(&self) -> ModelFiles<'_> {
        ModelFiles { folder: &self.folder, manifest: &self.manifest }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "the f32 model for the comparison can't be removed");
        }
    }
}

/// A model in a folder.
#[derive(Clone, Copy)]
struct ModelFiles<'a> {
    folder: &'a Path,
    manifest: &'a Manifest,
}

/// What the linear maps and the head of the f32 model read on the texts for it, at [`MAX_OBSERVED`] positions at most.
fn observe(options: &BuildOptions, gate: &Gate, files: ModelFiles<'_>) -> Result<Activations, QualityError> {
    let [texts, _] = shares(texts(options, gate)?);
    let text = read_text(files.folder, files.manifest)?;
    let texts: Vec<Vec<_>> =
        texts.iter().map(|line| text.prompt().iter().copied().chain(text.encode_query(line)).collect()).collect();
    let positions: usize = texts.iter().map(Vec::len).sum();
    let observed = Observed::default();
    let mut model = onnxruntime::load_observed(files.folder, files.manifest, &settings(gate), Some(&observed))?;
    let mut output = Outputs::default();
    for tokens in texts.iter().step_by(positions.div_ceil(MAX_OBSERVED).max(1)) {
        for (chunk, mut batch) in chunks(tokens, model.limits()) {
            batch.selected = (0..chunk.len()).map(|offset| Selected { row: 0, offset, full: false }).collect();
            model.forward(&batch, &mut output)?;
        }
    }
    drop(model);
    Ok(std::mem::take(&mut *observed.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// The texts for the factors, and those for the comparison. A few texts are for both.
fn shares(texts: Vec<String>) -> [Vec<String>; 2] {
    if texts.len() < OBSERVED {
        return [texts.clone(), texts];
    }
    let (observed, compared): (Vec<_>, Vec<_>) = texts.into_iter().enumerate().partition(|(i, _)| i % OBSERVED == 0);
    [observed, compared].map(|texts| texts.into_iter().map(|(_, text)| text).collect())
}

/// Compares two models, the reference and the candidate, on the texts.
fn measure(options: &BuildOptions, gate: &Gate, pair: [ModelFiles<'_>; 2]) -> Result<Quality, QualityError> {
    let [_, texts] = shares(texts(options, gate)?);
    let [reference, candidate] = pair;
    let text = read_text(candidate.folder, candidate.manifest)?;
    let settings = settings(gate);
    let load = |files: ModelFiles<'_>| onnxruntime::load(files.folder, files.manifest, &settings);
    let mut models = [load(reference)?, load(candidate)?];
    let mut comparison = Comparison::default();
    let mut count = 0;
    for line in &texts {
        let tokens = text.encode_query(line);
        if !tokens.is_empty() {
            read(&mut models, text.prompt(), &tokens, &mut comparison)?;
            count += 1;
        }
    }
    comparison.quality(count).ok_or(QualityError::NoTokens)
}

fn settings(gate: &Gate) -> onnxruntime::Options {
    onnxruntime::Options {
        library: gate.library.clone(),
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        spin: false,
        cpu_level: CpuLevel::detect(),
        lanes: 1,
        chunk: CHUNK,
        pool_bytes: 0,
        huge_pages: false,
    }
}

/// The texts to read, at most [`MAX_TEXTS`].
fn texts(options: &BuildOptions, gate: &Gate) -> Result<Vec<String>, QualityError> {
    if let Some(path) = &gate.texts {
        let wrong = |error: std::io::Error| QualityError::Texts { path: path.clone(), reason: error.to_string() };
        return Ok(spread(&std::fs::read_to_string(path).map_err(wrong)?));
    }
    let Some(path) = &options.popular else { return Ok(spread(SAMPLE)) };
    let counts =
        read_popular(path).map_err(|error| QualityError::Texts { path: path.clone(), reason: error.to_string() })?;
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Ok(counts.into_iter().take(MAX_TEXTS).map(|(query, _)| query).collect())
}

/// The lines that aren't blank; of many, [`MAX_TEXTS`] at even distances.
fn spread(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let count = lines.len().min(MAX_TEXTS);
    (0..count).map(|i| lines[i * lines.len() / count].to_owned()).collect()
}

/// The positions of a text, cut to the context, that a forward takes at a time, and the batch that selects the first.
fn chunks<'a>(tokens: &'a [TokenId], limits: &Limits) -> impl Iterator<Item = (Range<usize>, Batch)> + use<'a> {
    let (end, size) = (tokens.len().min(limits.context), limits.chunk);
    (0..end).step_by(size).map(move |start| {
        let chunk = start..end.min(start + size);
        let mut batch = Batch::default();
        batch.push_row(start, tokens[chunk.clone()].iter().copied());
        batch.selected.push(Selected { row: 0, offset: 0, full: false });
        (chunk, batch)
    })
}

/// Runs both models on one text after the prompt, cut to the context, and compares them from the prompt's last token
/// on.
fn read(
    models: &mut [Box<dyn Backend>; 2],
    prompt: &[TokenId],
    text: &[TokenId],
    comparison: &mut Comparison,
) -> Result<(), BackendError> {
    let limits = models[0].limits().clone();
    let tokens: Vec<TokenId> = prompt.iter().chain(text).copied().collect();
    let mut outputs = [Outputs::default(), Outputs::default()];
    for (chunk, mut batch) in chunks(&tokens, &limits) {
        let wanted = chunk.clone().filter(|position| position + 1 >= prompt.len());
        let selected: Vec<_> =
            wanted.clone().map(|at| Selected { row: 0, offset: at - chunk.start, full: true }).collect();
        if !selected.is_empty() {
            batch.selected = selected;
        }
        for (model, output) in models.iter_mut().zip(&mut outputs) {
            model.forward(&batch, output)?;
        }
        let [reference, candidate] = &outputs;
        let rows = reference.logits.chunks(limits.vocab).zip(candidate.logits.chunks(limits.vocab));
        for (position, (reference, candidate)) in wanted.zip(rows) {
            comparison.add(reference, candidate, tokens.get(position + 1).copied());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Quality = Quality {
        texts: 1,
        positions: 10,
        top1_agreement: 0.95,
        kl_nats: 0.01,
        perplexity: 10.1,
        reference_perplexity: 10.0,
    };

    #[test]
    fn bounds_are_told_apart_and_what_is_no_number_breaks_them() {
        assert_eq!(beyond(&GOOD), None);
        let broken = |change: fn(&mut Quality)| {
            let mut quality = GOOD;
            change(&mut quality);
            beyond(&quality).unwrap()
        };
        assert!(broken(|q| q.top1_agreement = 0.89).contains("first token"));
        assert!(broken(|q| q.kl_nats = 0.06).contains("divergence"));
        assert!(broken(|q| q.kl_nats = f64::NAN).contains("divergence"));
        assert!(broken(|q| q.perplexity = 10.6).contains("perplexity"));
    }

    #[test]
    fn texts_are_taken_at_even_distances_and_queries_by_their_counts() {
        let many: String = (0..1000).map(|i| format!("text {i}\n\n")).collect();
        let taken = spread(&many);
        assert_eq!((taken.len(), taken[0].as_str(), taken[199].as_str()), (200, "text 0", "text 995"));
        assert!(spread("").is_empty());
        assert!(spread(SAMPLE).len() >= 40);
        assert_eq!(
            shares(many.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()).map(|texts| texts.len()),
            [334, 666]
        );
        assert_eq!(shares(vec!["one".to_owned()]), [["one"], ["one"]]);

        let folder = tempfile::tempdir().unwrap();
        let popular = folder.path().join("popular.tsv");
        std::fs::write(&popular, "rare\t1\noften\t9\n").unwrap();
        let mut options = BuildOptions::new("c", "b");
        options.popular = Some(popular);
        assert_eq!(texts(&options, &Gate::default()).unwrap(), ["often", "rare"]);
        let gate = Gate { texts: Some(folder.path().join("none")), ..Gate::default() };
        assert!(texts(&options, &gate).unwrap_err().to_string().contains("can't be read"));
    }
}
