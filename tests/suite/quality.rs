//! int8 bundles and the gate before them: what is near enough is kept with its figures, what isn't leaves everything as
//! it was.

use std::path::Path;

use bundle::Quantization;
use bundle::manifest::Manifest;
use engine_build::BuildOptions;
use foretype::models::folder::{self, IntakeError, IntakeOptions, ModelFolder};
use foretype::quality::{self, Gate};

use crate::support::{load, repository};

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
    assert!(measured.texts == 200 && measured.positions > 1000, "{measured:?}");
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
    let (first, int8) = open(Quantization::Int8, "tests/goldens/plain").unwrap();
    assert!(int8.quality.is_some());
    assert_eq!(open(Quantization::Int8, "tests/goldens/plain").unwrap(), (first.clone(), int8));
    let (second, plain) = open(Quantization::None, "tests/goldens/plain").unwrap();
    assert!(plain.quality.is_none() && first != second);
    assert_eq!(names(folder.path()).len(), 2);

    let refused = open(Quantization::Int8, "tests/goldens/unscaled");
    assert!(matches!(refused, Err(IntakeError::Build(_))), "{refused:?}");
    assert_eq!(names(folder.path()).len(), 2);
}
