//! GPT-2's real size against transformers. Run by `make parity`, which makes the checkpoint and the reference.

use std::path::PathBuf;
use std::time::Instant;

use backends::onnxruntime;
use bundle::Manifest;

use crate::goldens::{check_greedy, max_difference, read_expected};
use crate::support::{all_logits, backend_options};

/// Largest difference of a logit from transformers' fp32 one.
const TOLERANCE: f32 = 2e-3;

#[test]
#[ignore = "needs the reference that `make parity` makes"]
fn transformers_124m() {
    let folder =
        PathBuf::from(std::env::var_os("FORETYPE_PARITY_DIR").expect("FORETYPE_PARITY_DIR names the reference"));
    let bundle = folder.join("bundle");
    let manifest = Manifest::load(&bundle).unwrap();
    let mut options = backend_options();
    options.threads = std::thread::available_parallelism().unwrap().get();
    let started = Instant::now();
    let mut backend = onnxruntime::load(&bundle, &manifest, &options).unwrap();
    println!("parity: load, seconds = {:.2}", started.elapsed().as_secs_f64());
    let goldens = read_expected(&folder.join("expected.safetensors"));
    let (mut worst, mut equal, mut all) = (0f32, 0, 0);
    for (i, golden) in goldens.iter().enumerate() {
        let rows = all_logits(&mut *backend, 0, &golden.prompt);
        let expected = golden.logits.last().unwrap();
        worst = worst.max(max_difference(rows.last().unwrap(), expected));
        equal += check_greedy(&mut *backend, golden, &format!("prompt {i}"));
        all += golden.greedy.len();
    }
    println!("parity: prompts = {}", goldens.len());
    println!("parity: max |logit difference| (at most {TOLERANCE}) = {worst:.2e}");
    println!("parity: greedy tokens equal (ties within 1e-4 aside) = {equal} of {all}");
    assert!(worst <= TOLERANCE);
}
