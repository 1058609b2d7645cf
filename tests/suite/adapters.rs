//! LoRA adapters that a build merges, against the models that PEFT merges; and adapters that it refuses.

use std::fs;
use std::path::{Path, PathBuf};

use engine_build::{BuildOptions, build};
use serde_json::{Value, json};

use crate::goldens::{check_greedy, max_difference, read_expected};
use crate::support::{all_logits, build_with, load, repository};

/// Largest difference of a logit from PEFT's merged model in f32.
const TOLERANCE: f32 = 1e-4;

fn adapters() -> Vec<PathBuf> {
    let folders = fs::read_dir(repository("tests/goldens/lora")).unwrap();
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 4, "{folders:?}");
    folders
}

fn config(adapter: &Path) -> Value {
    serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).unwrap()).unwrap()
}

/// The golden that an adapter belongs to.
fn base(adapter: &Path) -> PathBuf {
    repository("tests/goldens").join(config(adapter)["base_model_name_or_path"].as_str().unwrap())
}

#[test]
fn a_merged_adapter_computes_what_pefts_merged_model_does() {
    for adapter in adapters() {
        let (_folder, bundle, manifest) =
            build_with(&base(&adapter), |options| options.adapter = Some(adapter.clone()));
        let mut backend = load(&bundle, &manifest);
        let mut worst = 0_f32;
        for golden in read_expected(&adapter.join("expected.safetensors")) {
            let rows = all_logits(&mut *backend, 0, &golden.prompt);
            assert_eq!(rows.len(), golden.logits.len());
            for (row, expected) in rows.iter().zip(&golden.logits) {
                worst = worst.max(max_difference(row, expected));
            }
            check_greedy(&mut *backend, &golden, "adapter");
        }
        println!("adapters: {} ({}): largest difference {worst:.1e}", adapter.display(), manifest.family);
        assert!(worst <= TOLERANCE, "{}: {worst}", adapter.display());
    }
}

/// Builds with a copy of an adapter whose configuration `change` has changed.
fn refusal(adapter: &str, checkpoint: &str, change: impl FnOnce(&Path, &mut Value)) -> String {
    let (from, folder) = (repository("tests/goldens/lora").join(adapter), tempfile::tempdir().unwrap());
    let copy = folder.path().join("adapter");
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
    }
    let mut settings = config(&copy);
    change(&copy, &mut settings);
    if copy.join("adapter_config.json").exists() {
        fs::write(copy.join("adapter_config.json"), settings.to_string()).unwrap();
    }
    let checkpoint = repository("tests/goldens").join(checkpoint);
    let options = BuildOptions { adapter: Some(copy), ..BuildOptions::new(checkpoint, folder.path().join("out")) };
    let said = build(&options, &()).expect_err("refused").to_string();
    assert!(!said.contains('\n') && said.len() < 400, "{said}");
    said
}

#[test]
fn adapters_that_would_be_merged_wrongly_are_refused_in_a_sentence() {
    let said = refusal("linear", "llama", |_, settings| settings["use_dora"] = json!(true));
    assert!(said.contains("`use_dora` to true") && said.contains("merge_and_unload"), "{said}");
    let said = refusal("linear", "llama", |_, settings| settings["next_years_config"] = json!({"depth": 2}));
    assert!(said.contains("`next_years_config`"), "{said}");
    let said = refusal("linear", "fp16", |_, _| {});
    assert!(said.contains("lm_head") && said.contains("another model"), "{said}");
    let said = refusal("some_layers", "llama_wide", |_, _| {});
    assert!(said.contains("shapes") && said.contains("don't fit"), "{said}");
    let said = refusal("conv1d", "fp16", |copy, _| fs::remove_file(copy.join("adapter_config.json")).unwrap());
    assert!(said.contains("has no adapter_config.json") && said.contains("save_pretrained"), "{said}");
    let said = refusal("conv1d", "fp16", |copy, _| fs::remove_file(copy.join("adapter_model.safetensors")).unwrap());
    assert!(said.contains("has no adapter_model.safetensors"), "{said}");
    let said = refusal("conv1d", "fp16", |copy, _| fs::write(copy.join("adapter_model.safetensors"), "x").unwrap());
    assert!(said.contains("adapter_model.safetensors is truncated"), "{said}");
    // The weights of a model in place of an adapter's.
    let said = refusal("conv1d", "fp16", |copy, _| {
        let model = repository("tests/goldens/fp16/model.safetensors");
        fs::copy(model, copy.join("adapter_model.safetensors")).map(drop).unwrap();
    });
    assert!(said.contains("no matrix lora_A or lora_B"), "{said}");
}
