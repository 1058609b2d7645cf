//! int8 bundles and the gate before them: what is near enough is kept with its figures, what isn't leaves everything as
//! it was.

use std::path::Path;
use std::sync::PoisonError;

use backends::onnxruntime::{self, Observed};
use bundle::Quantization;
use bundle::manifest::{Manifest, Quality, WEIGHTS_FILE};
use engine_build::{Activations, BuildError, BuildOptions, Check};
use foretype::models::folder::{self, IntakeError, IntakeOptions, ModelFolder};
use foretype::quality::{self, Gate};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::goldens::{folders, max_difference, read_expected};
use crate::support::{all_logits, backend_options, build, load, repository};

fn int8(checkpoint: &Path, out: &Path) -> BuildOptions {
    let mut options = BuildOptions::new(checkpoint, out);
    options.quantization = Quantization::Int8;
    options
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_demo_in_int8_is_near_the_demo() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let gate = Gate { texts: Some(repository("models/demo/queries/heldout_unseen.txt")), ..Gate::default() };
    let manifest = quality::build(&int8(&repository("models/demo"), &out), &gate, &()).unwrap();
    let measured = manifest.quality.unwrap();
    println!("quality: {}", quality::describe(&measured));
    assert!(measured.top1_agreement >= 0.97 && measured.top1_agreement < 1.0, "{measured:?}");
    assert!(measured.kl_nats > 1e-6 && measured.kl_nats < 0.005, "{measured:?}");
    assert!((measured.perplexity / measured.reference_perplexity - 1.0).abs() < 0.01, "{measured:?}");
    assert!(measured.texts == 133 && measured.positions > 1000, "{measured:?}");
    assert_eq!(Manifest::load(&out).unwrap(), manifest, "the figures are stored");
    assert_eq!(names(folder.path()), ["bundle"], "the f32 model is gone");
    load(&out, &manifest);
}

/// The goldens' weights are random and large. Without the usual scale attention is all or nothing, and small errors
/// flip it.
#[test]
fn a_model_that_int8_changes_too_much_is_refused_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let checkpoint = repository("tests/goldens/unscaled");
    let before = engine_build::build(&BuildOptions::new(&checkpoint, &out), &()).unwrap();
    let error = quality::build(&int8(&checkpoint, &out), &Gate::default(), &()).unwrap_err().to_string();
    assert!(error.contains("the first token agrees at 0.8") && error.contains("--force"), "{error}");
    assert_eq!(names(folder.path()), ["bundle"], "nothing is left behind");
    assert_eq!(Manifest::load(&out).unwrap(), before, "the bundle that was there is untouched");
    before.verify_checksums(&out).unwrap();

    let forced = quality::build(&int8(&checkpoint, &out), &Gate { force: true, ..Gate::default() }, &()).unwrap();
    assert!(forced.quality.unwrap().top1_agreement < quality::MIN_TOP1_AGREEMENT);
    assert_eq!(Manifest::load(&out).unwrap(), forced);
}

#[test]
fn texts_without_tokens_and_no_texts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (out, texts) = (folder.path().join("bundle"), folder.path().join("texts"));
    let checkpoint = repository("tests/goldens/plain");
    let gate = Gate { texts: Some(texts.clone()), ..Gate::default() };
    let refused = || quality::build(&int8(&checkpoint, &out), &gate, &()).unwrap_err().to_string();
    assert!(refused().contains("can't be read"));
    std::fs::write(&texts, "\n\n").unwrap();
    assert!(refused().contains("no tokens"));
    assert_eq!(names(folder.path()), ["texts"]);
}

#[test]
fn a_bare_checkpoint_is_served_in_int8_and_in_f32_from_one_cache() {
    let folder = tempfile::tempdir().unwrap();
    let open = |quantization, checkpoint: &str| {
        let options = IntakeOptions { quantization, ..IntakeOptions::new(folder.path().to_owned()) };
        folder::open(&ModelFolder::Checkpoint(repository(checkpoint)), &options, &())
    };
    let (first, int8) = open(Quantization::Int8, "tests/goldens/gptj").unwrap();
    assert!(int8.quality.is_some());
    assert_eq!(open(Quantization::Int8, "tests/goldens/gptj").unwrap(), (first.clone(), int8));
    let (second, plain) = open(Quantization::None, "tests/goldens/gptj").unwrap();
    assert!(plain.quality.is_none() && first != second);
    assert_eq!(names(folder.path()).len(), 2);

    let refused = open(Quantization::Int8, "tests/goldens/unscaled");
    assert!(matches!(refused, Err(IntakeError::Build(_))), "{refused:?}");
    assert_eq!(names(folder.path()).len(), 2);
}

/// A build whose factors follow from these activations.
struct Given(Activations);

impl Check for Given {
    fn observe(&mut self, _folder: &Path) -> Result<Activations, BuildError> {
        Ok(std::mem::take(&mut self.0))
    }

    fn check(&mut self, _folder: &Path, _manifest: &Manifest) -> Result<Option<Quality>, BuildError> {
        Ok(None)
    }
}

/// The logits of all of a golden's prompts, and what the linear maps read for them.
fn observed_logits(bundle: &Path, manifest: &Manifest, prompts: &[Vec<u32>]) -> (Vec<f32>, Activations) {
    let observed = Observed::default();
    let mut backend = onnxruntime::load_observed(bundle, manifest, &backend_options(), Some(&observed)).unwrap();
    let logits = prompts.iter().flat_map(|prompt| all_logits(&mut *backend, 0, prompt)).flatten().collect();
    drop(backend);
    (logits, std::mem::take(&mut *observed.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// In f32, a model with factors computes what it computes without them, whatever its family.
#[test]
fn factors_change_weights_and_no_results() {
    for (name, checkpoint) in folders() {
        let expected = read_expected(&checkpoint.join("expected.safetensors"));
        let prompts: Vec<Vec<u32>> = expected.into_iter().map(|golden| golden.prompt).collect();
        let (_folder, plain, manifest) = build(&checkpoint, None);
        let (logits, activations) = observed_logits(&plain, &manifest, &prompts);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("bundle");
        let options = BuildOptions::new(&checkpoint, &out);
        let smoothed = engine_build::build_checked(&options, &(), &mut Given(activations)).unwrap();
        let (same, _) = observed_logits(&out, &smoothed, &prompts);
        let largest = logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let difference = max_difference(&logits, &same) / largest;
        println!("factors: {name}: relative difference {difference:.1e}");
        // Without the usual scale, attention multiplies the rounding.
        let allowed = if name == "unscaled" { 5e-5 } else { 1e-5 };
        assert!(difference <= allowed, "{name}: {difference}");
        let weights = [&plain, &out].map(|bundle| std::fs::read(bundle.join(WEIGHTS_FILE)).unwrap());
        // A layer that normalizes what it has computed passes no factor on.
        assert_eq!(weights[0] == weights[1], name == "opt_post", "{name}");
    }
}

/// A copy of a golden GPT-2 with outliers like those of the trained one: three channels of the residual stream are two
/// orders of magnitude above the others, at every position. The norms raise the others again, but not as
/// far, and the maps behind them take little of the outliers. Layers add less than the golden's do, whose weights are
/// large: int8 hardly passes even without outliers.
fn with_outliers(folder: &Path) -> std::path::PathBuf {
    const HIDDEN: usize = 64;
    const OUTLIERS: [(usize, f32); 3] = [(7, 60.0), (30, -85.0), (51, 25.0)];
    let (golden, checkpoint) = (repository("tests/goldens/plain"), folder.join("checkpoint"));
    std::fs::create_dir(&checkpoint).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(golden.join(name), checkpoint.join(name)).unwrap();
    }
    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // The root of the mean square of a row of the residual stream.
    let size = (OUTLIERS.iter().map(|(_, offset)| offset * offset).sum::<f32>() / HIDDEN as f32).sqrt();
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, tensor) in file.tensors() {
        let floats = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        let mut values: Vec<f32> = floats.collect();
        let outlier = |at: usize| OUTLIERS.iter().find(|(channel, _)| *channel == at % HIDDEN);
        if name.ends_with("wpe.weight") {
            values.iter_mut().enumerate().for_each(|(at, value)| *value += outlier(at).map_or(0.0, |(_, by)| *by));
        } else if name.contains(".ln_") && name.ends_with(".weight") {
            let factor = |at| match outlier(at) {
                Some(_) if name.contains(".ln_f.") => 0.0,
                Some(_) => 10.0,
                None => size,
            };
            values.iter_mut().enumerate().for_each(|(at, value)| *value *= factor(at));
        } else if name.ends_with("c_attn.weight") || name.ends_with("c_fc.weight") {
            let width = values.len() / HIDDEN;
            for (channel, _) in OUTLIERS {
                values[channel * width..][..width].iter_mut().for_each(|value| *value *= 0.002);
            }
        } else if name.ends_with("c_proj.weight") {
            values.iter_mut().for_each(|value| *value *= 0.2);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.push((name, tensor.shape().to_vec(), bytes));
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &checkpoint.join("model.safetensors")).unwrap();
    checkpoint
}

/// The mean absolute difference of an int8 bundle's logits from those in f32.
fn int8_difference(checkpoint: &Path, activations: Activations, f32: &[f32], prompts: &[Vec<u32>]) -> f32 {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let manifest = engine_build::build_checked(&int8(checkpoint, &out), &(), &mut Given(activations)).unwrap();
    let (logits, _) = observed_logits(&out, &manifest, prompts);
    logits.iter().zip(f32).map(|(a, b)| (a - b).abs()).sum::<f32>() / f32.len() as f32
}

#[test]
fn a_model_with_outlying_channels_passes_and_factors_are_why() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = with_outliers(folder.path());
    let out = folder.path().join("bundle");
    let manifest = quality::build(&int8(&checkpoint, &out), &Gate::default(), &()).unwrap();
    println!("outliers: {}", quality::describe(&manifest.quality.unwrap()));

    let prompts: Vec<Vec<u32>> = (0..6).map(|row| (0..40).map(|at| (row * 41 + at * 7) % 280).collect()).collect();
    let (_folder, plain, manifest) = build(&checkpoint, None);
    let (f32, activations) = observed_logits(&plain, &manifest, &prompts);
    let with = int8_difference(&checkpoint, activations, &f32, &prompts);
    let without = int8_difference(&checkpoint, Activations::new(), &f32, &prompts);
    println!("outliers: mean difference of a logit {with:.4} with factors, {without:.4} without");
    assert!(with < 0.5 * without, "{with} with factors, {without} without");
}

/// SmolLM2-135M, the one trained model of real size here.
#[test]
fn a_real_model_passes_the_gate() {
    let Some(checkpoint) = std::env::var_os("FORETYPE_REAL_MODEL") else {
        return require::skip("SmolLM2 in int8", "FORETYPE_REAL_MODEL isn't set: run tools/real_model.sh");
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let manifest = quality::build(&int8(Path::new(&checkpoint), &out), &Gate::default(), &()).unwrap();
    let quality = manifest.quality.unwrap();
    println!("SmolLM2: {}", quality::describe(&quality));
    assert!(quality.kl_nats <= 0.010 && quality.top1_agreement >= 0.92, "{quality:?}");
    let bytes = std::fs::metadata(out.join(WEIGHTS_FILE)).unwrap().len();
    assert!(bytes < 13 * manifest.source.parameters / 10, "{bytes} bytes: one a parameter, and the embedding twice");
}
