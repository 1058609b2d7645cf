//! The binary as a person runs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::repository;

fn foretype(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretype"));
    command.args(args).env_remove("FORETYPE_MODEL");
    command
}

fn run(args: &[&str]) -> Output {
    foretype(args).output().unwrap()
}

#[test]
fn build_then_complete_as_a_table_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let (demo, bundle) = (repository("models/demo"), bundle.to_str().unwrap().to_owned());
    let built = run(&["build", demo.to_str().unwrap(), "--out", &bundle]);
    assert!(built.status.success(), "{built:?}");
    assert!(String::from_utf8_lossy(&built.stdout).contains("built demo (gpt2"), "{built:?}");
    let table = run(&["complete", "--model", &bundle, "wireless char"]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("suggestion") && text.contains("wireless charg") && text.contains(" %"), "{text}");
    let json = run(&["complete", "--model", &bundle, "wireless char", "--json", "--suggestions", "3"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["suggestions"].as_array().unwrap().len(), 3);
    assert_eq!(json["model"], "demo");
}

#[test]
fn a_bare_checkpoint_is_built_into_the_cache_once() {
    let cache = tempfile::tempdir().unwrap();
    let plain = repository("tests/goldens/plain");
    let arguments = [
        "complete",
        "--model",
        plain.to_str().unwrap(),
        "--cache",
        cache.path().to_str().unwrap(),
        "he",
        "--max-new-tokens",
        "2",
    ];
    let first = run(&arguments);
    assert!(first.status.success(), "{first:?}");
    assert!(String::from_utf8_lossy(&first.stderr).contains("building the bundle"));
    let second = run(&arguments);
    assert!(second.status.success() && !String::from_utf8_lossy(&second.stderr).contains("building"), "{second:?}");
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
}

#[test]
fn mistakes_are_answered_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, demo) = (folder.path().to_str().unwrap(), repository("models/demo"));
    let demo = demo.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["complete", "--model", "/nowhere", "x"], "there is no folder /nowhere"),
        (&["complete", "--model", empty, "x"], "holds neither a foretype bundle"),
        (&["serve", "--model", "/nowhere"], "there is no folder /nowhere"),
        (&["build", empty, "--out", "/tmp/never"], "config.json"),
        (&["complete", "--model", demo, "--cache", empty, " "], "the input is empty"),
        (
            &["complete", "--model", demo, "--cache", empty, "--onnxruntime", "/nowhere.so", "x"],
            "there is no such file",
        ),
        (
            &["complete", "--model", demo, "--cache", empty, "--onnxruntime", "/bin/sh", "x"],
            "can't be loaded as ONNX Runtime",
        ),
    ];
    for (arguments, words) in cases {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().last().unwrap_or_default();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(last.starts_with("foretype: ") && last.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
fn serve_prints_an_example_that_works_and_ends_on_sigterm() {
    let cache = tempfile::tempdir().unwrap();
    let demo = repository("models/demo");
    let arguments =
        ["serve", "--model", demo.to_str().unwrap(), "--cache", cache.path().to_str().unwrap(), "--port", "0"];
    let mut server = foretype(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let example =
        lines.find_map(|line| line.unwrap().trim().strip_prefix("curl ").map(|rest| format!("curl {rest}"))).unwrap();
    let answer = match Command::new("curl").arg("--version").output() {
        Ok(_) => Command::new("sh").args(["-c", &example]).output().unwrap().stdout,
        Err(_) => {
            // No curl on this machine: send what the example says by hand.
            let url = example.split_whitespace().find(|word| word.starts_with("http")).unwrap();
            let mut response = ureq::post(url)
                .header("Content-Type", "application/json")
                .send(r#"{"input": "wireless char"}"#)
                .unwrap();
            response.body_mut().read_to_vec().unwrap()
        }
    };
    let json: Value = serde_json::from_slice(&answer).unwrap();
    assert!(json["suggestions"].as_array().unwrap().len() >= 5, "{json}");
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    let status = server.wait().unwrap();
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(status.success(), "{status:?}: {log}");
    assert!(log.contains("status=200") && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn a_broken_model_leaves_an_unhealthy_server_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let plain = repository("tests/goldens/plain");
    for entry in std::fs::read_dir(&plain).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("model.safetensors"), b"garbage").unwrap();
    let path = folder.path().to_str().unwrap();
    let arguments = ["serve", "--model", path, "--cache", path, "--port", "0"];
    let mut server = foretype(&arguments).stderr(Stdio::piped()).env("FORETYPE_LOG", "info").spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    let line = lines.find_map(|line| {
        let line = line.unwrap();
        seen.push(line.clone());
        line.contains("the model can't be loaded").then_some(line)
    });
    assert!(line.as_deref().is_some_and(|line| line.contains("model.safetensors")), "{seen:?}");
    assert!(server.try_wait().unwrap().is_none(), "it keeps answering /ping");
    Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    assert!(server.wait().unwrap().success());
}

#[test]
fn serve_takes_the_options_of_lmi_containers_or_refuses_them_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let properties = folder.path().join("serving.properties");
    let model = folder.path().to_str().unwrap();
    // The folder has no model of its own: the file names one.
    std::fs::write(&properties, "engine=Python\noption.model_id=/nowhere/of/all\noption.dtype=fp16\n").unwrap();
    let refused = run(&["serve", "--model", model]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("there is no folder /nowhere/of/all"), "{refused:?}");
    std::fs::write(&properties, "option.tensor_parallel_degree=4\n").unwrap();
    let refused = run(&["serve", "--model", model]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let words = "option.tensor_parallel_degree of serving.properties is '4': a model isn't split over devices";
    assert!(String::from_utf8_lossy(&refused.stderr).contains(words), "{refused:?}");
    // Flags come first, and the options are those of `serve` alone.
    std::fs::write(&properties, "option.max_model_len=64\n").unwrap();
    let help = foretype(&["serve", "--model", model, "--context", "32", "--max-batch", "0"])
        .env("OPTION_MAX_ROLLING_BATCH_SIZE", "8")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&help.stderr).contains("'0' for '--max-batch"), "{help:?}");
    let complete = foretype(&["complete", "--model", "/nowhere", "x"]).env("OPTION_DTYPE", "fp8").output().unwrap();
    assert!(String::from_utf8_lossy(&complete.stderr).contains("there is no folder /nowhere"), "{complete:?}");
}
