//! Plans, built by NVIDIA's TensorRT-RTX on this machine, GPU or not. `FORETYPE_TENSORRT_RTX` names the folder of its
//! libraries, as `tools/tensorrt_rtx.sh` fetches them; `make test` does that. Where neither it nor
//! `target/tensorrt-rtx` is there, these tests say that they are skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bundle::{Dtype, Manifest, Quantization};
use engine_build::plan::{
    ENGINES, Misfit, Part, PlanError, PlanNeeds, PlanOptions, PlanRecord, PlanShapes, Range, build_plan, find_plan,
    read_plan,
};
use engine_build::{BuildOptions, build};
use serde_json::json;
use tempfile::TempDir;
use tensorrt::{Builder, Flavour, Gpu, Layer, LayerKind, Library, Network, Parser, Sm, Validity, Version};

use crate::tiny::Tiny;

/// The library, or `None` where it was not fetched. A library that is named must open.
fn library() -> Option<Library> {
    let fetched = repository("target/tensorrt-rtx");
    let Some(folder) =
        std::env::var_os("FORETYPE_TENSORRT_RTX").map(PathBuf::from).or(fetched.exists().then_some(fetched))
    else {
        require::skip(
            "plans of TensorRT-RTX",
            "FORETYPE_TENSORRT_RTX isn't set: run tools/tensorrt_rtx.sh target/tensorrt-rtx",
        );
        return None;
    };
    Some(Library::open(Flavour::Rtx, Some(&folder)).expect("TensorRT-RTX opens"))
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Every checkpoint of the repository.
fn checkpoints() -> Vec<PathBuf> {
    let goldens = fs::read_dir(repository("tests/goldens")).expect("goldens").map(|entry| entry.expect("entry").path());
    let mut all: Vec<_> = goldens.filter(|path| path.join("config.json").is_file()).collect();
    all.push(repository("models/demo"));
    all
}

fn bundle(checkpoint: &Path, dtype: Dtype) -> (TempDir, Manifest) {
    let folder = TempDir::new().expect("a folder");
    let mut options = BuildOptions::new(checkpoint, folder.path());
    options.dtype = dtype;
    let manifest = build(&options, &()).expect("a bundle");
    (folder, manifest)
}

fn parsed(builder: &Builder, bundle: &Path) -> Network {
    parsed_file(builder, &bundle.join("model.onnx"))
}

fn parsed_file(builder: &Builder, graph: &Path) -> Network {
    let mut network = builder.network().expect("a network");
    Parser::new(&mut network).expect("a parser").parse_file(graph).expect("it parses");
    network
}

fn options(architectures: &[u32]) -> PlanOptions {
    PlanOptions { architectures: architectures.iter().map(|number| Sm(*number)).collect(), ..PlanOptions::default() }
}

fn gpu(name: &str, architecture: u32) -> &'static Gpu {
    let gpu = Gpu { name: name.to_owned(), sm: Sm(architecture), multiprocessors: 72, cuda: (13, 0) };
    Box::leak(Box::new(gpu))
}

fn needs(architecture: u32) -> PlanNeeds<'static> {
    let version = Version { major: 1, minor: 7, patch: 1 };
    let part = Part::Decoder;
    PlanNeeds { flavour: Flavour::Rtx, version, gpu: gpu("A10G", architecture), part, lanes: None, chunk: None }
}

#[test]
fn every_model_is_read_as_it_is_meant() {
    let Some(library) = library() else { return };
    let checkpoints = checkpoints();
    assert!(checkpoints.len() >= 12);
    for checkpoint in checkpoints {
        let (folder, manifest) = bundle(&checkpoint, Dtype::F16);
        let builder = Builder::new(&library).expect("a builder");
        let mut network = parsed(&builder, folder.path());
        let layers = manifest.model.layers as usize;
        assert_eq!(network.unused_inputs(), Vec::<String>::new(), "{checkpoint:?}");
        assert_eq!(network.inputs().len(), 3 + 2 * layers);
        assert_eq!(network.outputs().len(), 4 + 2 * layers);
        let attentions: Vec<_> = network.layers().filter(Layer::is_attention).collect();
        assert_eq!(attentions.len(), layers, "{checkpoint:?}");
        assert!(attentions.iter().all(Layer::has_mask));
        assert!(!attentions.iter().any(Layer::is_decomposable), "nobody said so yet");
        let of_kind = |kind| network.layers().filter(|layer| layer.kind() == kind).count();
        assert_eq!(of_kind(LayerKind::ATTENTION_OUTPUT), layers);
        assert_eq!(of_kind(LayerKind::KV_CACHE_UPDATE), 2 * layers);
        assert_eq!(of_kind(LayerKind::TOP_K), 1);
        assert_eq!(network.set_decomposable().expect("allowed"), layers);
        assert!(network.layers().filter(Layer::is_attention).all(|layer| layer.is_decomposable()));
    }
}

/// Encoder-decoders: checkpoints, and layers of the encoder and of the decoder.
const T5: [(&str, usize, usize); 3] = [("relu", 2, 3), ("gated", 3, 2), ("long", 1, 1)];

fn t5(name: &str) -> PathBuf {
    repository("tests/goldens/t5").join(name)
}

#[test]
fn both_graphs_of_an_encoder_decoder_are_read_as_they_are_meant() {
    let Some(library) = library() else { return };
    for (name, encoder_layers, layers) in T5 {
        let (folder, manifest) = bundle(&t5(name), Dtype::F16);
        assert_eq!(manifest.model.layers as usize, layers);
        let builder = Builder::new(&library).expect("a builder");
        // By graph: inputs, outputs, attentions, cache updates.
        let expected = [
            ("encoder.onnx", [1, 2 * layers, encoder_layers, 0]),
            ("model.onnx", [4 + 4 * layers, 4 + 2 * layers, 2 * layers, 2 * layers]),
        ];
        for (graph, expected) in expected {
            let mut network = parsed_file(&builder, &folder.path().join(graph));
            assert_eq!(network.unused_inputs(), Vec::<String>::new(), "{name}, {graph}");
            let attentions: Vec<_> = network.layers().filter(Layer::is_attention).collect();
            assert!(attentions.iter().all(Layer::has_mask), "{name}, {graph}");
            let updates = network.layers().filter(|layer| layer.kind() == LayerKind::KV_CACHE_UPDATE).count();
            let found = [network.inputs().len(), network.outputs().len(), attentions.len(), updates];
            assert_eq!(found, expected, "{name}, {graph}");
            assert_eq!(network.set_decomposable().expect("allowed"), expected[2]);
        }
    }
}

#[test]
fn an_encoder_decoder_gets_a_plan_for_each_graph() {
    let Some(library) = library() else { return };
    for (name, ..) in T5 {
        let (folder, manifest) = bundle(&t5(name), Dtype::F16);
        let engines = folder.path().join(ENGINES);
        let needs = |part| PlanNeeds { part, ..needs(86) };
        let source = manifest.model.source.expect("it reads sources");
        for (part, file) in [(Part::Encoder, "sm80+86+89-encoder"), (Part::Decoder, "sm80+86+89")] {
            let error = find_plan(&engines, &manifest, &needs(part)).expect_err("none yet").to_string();
            assert_eq!(error.contains("no plan of the encoder in"), part == Part::Encoder, "{error}");
            let options = PlanOptions { part, ..options(&[80, 86, 89]) };
            let (path, record) = build_plan(folder.path(), &library, &options, Arc::new(())).expect("a plan");
            assert_eq!(record.plan.path, format!("tensorrt-rtx-1.7.1-{file}.plan"), "{name}");
            assert_eq!(record.part, part);
            assert_eq!(record.shapes.source.map(|range| (range.min, range.max)), Some((1, source)));
            let found = find_plan(&engines, &manifest, &needs(part)).expect("a plan");
            assert_eq!((&found.path, &found.record), (&path, &record));
            read_plan(&found).expect("whole");
        }
    }
}

/// What is not read must show: the trap that `unused_inputs` is for.
#[test]
fn an_input_that_nothing_reads_is_found() {
    let Some(library) = library() else { return };
    let builder = Builder::new(&library).expect("a builder");
    let network = builder.network().expect("a network");
    assert_eq!(network.unused_inputs(), Vec::<String>::new());
    let (folder, _) = bundle(&repository("tests/goldens/plain"), Dtype::F16);
    let path = folder.path().join("model.onnx");
    // A graph that declares one more input than it uses: `select` under another name, beside the real one.
    let mut onnx = fs::read(&path).expect("a graph");
    let extra = value_info("left_over");
    onnx = with_graph_input(&onnx, &extra);
    fs::write(&path, onnx).expect("written");
    assert_eq!(parsed(&builder, folder.path()).unused_inputs(), ["left_over"]);
}

#[test]
fn plans_for_every_gpu_that_is_served_are_built_and_found() {
    let Some(library) = library() else { return };
    let (folder, manifest) = bundle(&repository("models/demo"), Dtype::F16);
    let engines = folder.path().join(ENGINES);
    for (architectures, name) in [(&[75][..], "sm75"), (&[89, 80, 86], "sm80+86+89")] {
        let (path, record) =
            build_plan(folder.path(), &library, &options(architectures), Arc::new(())).expect("a plan");
        let expected = format!("tensorrt-rtx-1.7.1-{name}.plan");
        assert_eq!(
            (record.plan.path.as_str(), path),
            (expected.as_str(), engines.join(&expected).with_extension("json"))
        );
        assert_eq!(record.shapes, PlanShapes::default().within(64));
    }
    for (gpu, name) in [(75, "sm75"), (80, "sm80+86+89"), (86, "sm80+86+89"), (89, "sm80+86+89")] {
        let found = find_plan(&engines, &manifest, &needs(gpu)).expect("a plan");
        assert!(found.record.plan.path.contains(name), "{found:?}");
        let plan = read_plan(&found).expect("whole");
        // A header that is whole; what else it says depends on whether there is a GPU.
        let runtime = tensorrt::Runtime::new(&library).expect("a runtime");
        let malformed = |plan: &[u8]| match runtime.validity(plan).expect("TensorRT-RTX can tell") {
            Validity::Invalid(why) => why.is_malformed(),
            _ => false,
        };
        assert!(!malformed(&plan));
        assert!(malformed(&plan[..10]) && malformed(&vec![0x5a; 1 << 16]) && malformed(&[]));
    }
    let misfit = |needs: &PlanNeeds| match find_plan(&engines, &manifest, needs) {
        Err(PlanError::Misfit { misfit, .. }) => misfit,
        other => panic!("{other:?}"),
    };
    let (built_for, here) = ("SM75".to_owned(), "SM120".to_owned());
    assert_eq!(misfit(&needs(120)), Misfit::Gpu { built_for, here });
    let newer = PlanNeeds { version: Version { major: 1, minor: 8, patch: 0 }, ..needs(86) };
    let (built_by, here) = ("TensorRT-RTX 1.7.1".to_owned(), "TensorRT-RTX 1.8.0".to_owned());
    assert_eq!(misfit(&newer), Misfit::Builder { built_by, here });
    let more = PlanNeeds { lanes: Some(32), chunk: Some(64), ..needs(86) };
    assert_eq!(misfit(&more), Misfit::Shapes { has_lanes: 10, has_chunk: 42, lanes: 32, chunk: 64 });
    let other = bundle(&repository("tests/goldens/plain"), Dtype::F16).1;
    assert!(matches!(
        find_plan(&engines, &other, &needs(86)),
        Err(PlanError::Misfit { misfit: Misfit::Graph { .. }, .. })
    ));
}

/// Every architecture that TensorRT-RTX knows, in one plan.
const ALL: [u32; 6] = [75, 80, 86, 89, 120, 121];

/// A bundle with these options, and the bytes of its plan.
fn planned(library: &Library, tiny: &Tiny, sms: &[u32], change: impl FnOnce(&mut BuildOptions)) -> (Manifest, u64) {
    let mut built = tiny.options();
    built.dtype = Dtype::F16;
    change(&mut built);
    let manifest = build(&built, &()).expect("a bundle");
    let (_, record) = build_plan(&tiny.out(), library, &options(sms), Arc::new(())).expect("a plan");
    assert_eq!(record.architectures, sms);
    (manifest, record.plan.bytes)
}

#[test]
fn weights_in_few_bits_become_plans_for_every_architecture_that_has_them() {
    let Some(library) = library() else { return };
    let tiny = Tiny::golden("plain");
    let half = planned(&library, &tiny, &ALL, |_| ()).1;
    for (quantization, block, sms) in [
        (Quantization::Int8, 64, &ALL[..]),
        (Quantization::Int4, 32, &ALL[1..]),
        (Quantization::Int4, 64, &ALL[1..]),
        (Quantization::Int4, 128, &ALL[1..]),
    ] {
        let (manifest, bytes) = planned(&library, &tiny, sms, |options| {
            (options.quantization, options.block) = (quantization, block);
        });
        assert_eq!(manifest.model.quantization, quantization);
        println!("plain in {quantization:?}, blocks of {block}: a plan of {bytes} bytes, {half} in f16");
    }
    let error = build_plan(&tiny.out(), &library, &options(&[75, 86]), Arc::new(())).expect_err("refused").to_string();
    assert!(error.contains("no int4 on SM75") && error.contains("int8"), "{error}");
}

#[test]
fn attention_over_a_part_of_a_long_context_is_built_for_every_architecture() {
    let Some(library) = library() else { return };
    let tiny = Tiny::golden("llama");
    tiny.set("max_position_embeddings", json!(600));
    planned(&library, &tiny, &ALL, |options| options.context = Some(600));
    let builder = Builder::new(&library).expect("a builder");
    let network = parsed(&builder, &tiny.out());
    assert!(network.inputs().iter().any(|input| input.name == "slots" && *input.shape == [-1]));
    assert_eq!(network.unused_inputs(), Vec::<String>::new());
}

#[test]
fn attention_in_f32_is_built_where_the_gpu_multiplies_f32() {
    let Some(library) = library() else { return };
    for name in ["plain", "llama"] {
        let tiny = Tiny::golden(name);
        planned(&library, &tiny, &[80, 86, 89, 120], |options| options.f32_attention = true);
        let error = build_plan(&tiny.out(), &library, &options(&[75]), Arc::new(())).expect_err("refused");
        assert!(error.to_string().contains("FP32 GEMM is not supported"), "{error}");
    }
}

#[test]
fn a_damaged_plan_or_record_is_refused_with_both_sides() {
    let Some(library) = library() else { return };
    let (folder, manifest) = bundle(&repository("tests/goldens/plain"), Dtype::F16);
    let engines = folder.path().join(ENGINES);
    let error = find_plan(&engines, &manifest, &needs(86)).expect_err("none yet").to_string();
    assert!(error.contains("no plan") && error.contains("TensorRT-RTX 1.7.1 for SM86"), "{error}");
    let (record_path, record) = build_plan(folder.path(), &library, &options(&[86]), Arc::new(())).expect("a plan");
    let found = find_plan(&engines, &manifest, &needs(86)).expect("a plan");
    let path = engines.join(&record.plan.path);
    let whole = fs::read(&path).expect("a plan");

    fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    let error = read_plan(&found).expect_err("truncated").to_string();
    let (bytes, expected) = (whole.len() - 1, whole.len());
    assert!(error.contains(&format!("has {bytes} bytes, and its record says {expected}")), "{error}");
    let mut corrupted = whole.clone();
    corrupted[whole.len() / 2] ^= 1;
    fs::write(&path, corrupted).expect("written");
    let error = read_plan(&found).expect_err("corrupted").to_string();
    assert!(error.contains(&format!("its record says {}", record.plan.sha256)), "{error}");
    fs::write(&path, &whole).expect("written");
    read_plan(&found).expect("whole again");

    let json = fs::read_to_string(&record_path).expect("a record");
    for (from, to) in [("\"format\": 1", "\"format\": 2"), ("sm86.plan", "../x.plan"), ("{", "["), ("42\n", "0\n")] {
        assert!(json.contains(from), "{from}");
        fs::write(&record_path, json.replacen(from, to, 1)).expect("written");
        let error = find_plan(&engines, &manifest, &needs(86)).expect_err("broken").to_string();
        assert!(error.contains("is no record of a plan"), "{from}: {error}");
    }
    fs::remove_file(&record_path).expect("removed");
    assert!(matches!(find_plan(&engines, &manifest, &needs(86)), Err(PlanError::Io { .. })));
}

#[test]
fn what_cannot_become_a_plan_is_refused_beforehand() {
    let Some(library) = library() else { return };
    let refusal = |checkpoint: &str, dtype, options: &PlanOptions| {
        let (folder, _) = bundle(&repository(checkpoint), dtype);
        let error = build_plan(folder.path(), &library, options, Arc::new(())).expect_err("refused").to_string();
        assert!(!folder.path().join(ENGINES).exists());
        error
    };
    let error = refusal("tests/goldens/plain", Dtype::F32, &options(&[86]));
    assert!(error.contains("graph is f32") && error.contains("--dtype f16"), "{error}");
    let error = refusal("tests/goldens/plain", Dtype::F16, &options(&[86, 90]));
    assert!(error.contains("75, 80, 86, 89, 120, 121") && error.contains("not for SM90"), "{error}");
    let error = refusal("tests/goldens/inner", Dtype::F16, &options(&[75]));
    assert!(error.contains("below 32, and this one's is 24"), "{error}");
    let error = refusal("tests/goldens/t5/gated", Dtype::F16, &options(&[75, 86]));
    assert!(error.contains("no f32 matrices on SM75") && error.contains("leave out 75"), "{error}");
    let encoder = PlanOptions { part: Part::Encoder, ..options(&[86]) };
    let error = refusal("tests/goldens/plain", Dtype::F16, &encoder);
    assert!(error.contains("reads no source"), "{error}");
    let backwards = PlanShapes::new(Range::new(2, 1, 10), Range::new(1, 16, 42), Range::new(1, 4, 10));
    let error = refusal("tests/goldens/plain", Dtype::F16, &PlanOptions { shapes: backwards, ..options(&[86]) });
    assert!(error.contains("MIN,OPT,MAX"), "{error}");
    // A graph that TensorRT can't parse: every reason is in the sentence.
    let (folder, _) = bundle(&repository("tests/goldens/plain"), Dtype::F16);
    let path = folder.path().join("model.onnx");
    let onnx = fs::read(&path).expect("a graph");
    fs::write(&path, replaced(&onnx, b"TensorScatter", b"TensorSquirms")).expect("written");
    let error = build_plan(folder.path(), &library, &options(&[86]), Arc::new(())).expect_err("unknown operator");
    assert!(error.to_string().contains("TensorSquirms"), "{error}");
}

#[test]
fn a_build_that_nobody_wants_any_more_ends() {
    let Some(library) = library() else { return };
    struct Cancelled;
    impl engine_build::Progress for Cancelled {
        fn stage(&self, _name: &str, _total_bytes: u64) {}
        fn advance(&self, _bytes: u64) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }
    let (folder, _) = bundle(&repository("tests/goldens/plain"), Dtype::F16);
    let error = build_plan(folder.path(), &library, &options(&[86]), Arc::new(Cancelled)).expect_err("cancelled");
    assert!(matches!(error, PlanError::Cancelled), "{error}");
}

#[test]
fn a_record_says_what_the_plan_is() {
    let Some(library) = library() else { return };
    let (folder, manifest) = bundle(&repository("tests/goldens/plain"), Dtype::F16);
    let engines = folder.path().join("elsewhere");
    let options = PlanOptions { engines: Some(engines), shapes: PlanShapes::for_server(32, 64), ..options(&[89, 86]) };
    let (path, record) = build_plan(folder.path(), &library, &options, Arc::new(())).expect("a plan");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode(&path.with_extension("plan")), mode(&folder.path().join("manifest.json")));
    let read: PlanRecord = serde_json::from_slice(&fs::read(path).expect("a record")).expect("JSON");
    assert_eq!(read, record);
    assert_eq!((record.flavour.as_str(), record.version.as_str()), ("tensorrt-rtx", "1.7.1"));
    assert_eq!(record.architectures, [86, 89]);
    assert_eq!((record.shapes.lanes(), record.shapes.chunk()), (32, 64));
    assert!(record.graph.iter().all(|file| manifest.files.contains(file)));
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let places: Vec<_> = (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
    bytes
}

/// A protobuf field of length-delimited content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    bytes.extend(varint(content.len()));
    bytes.extend(content);
    bytes
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// ONNX's `ValueInfoProto` of an i64 vector of one element.
fn value_info(name: &str) -> Vec<u8> {
    let dimension = field(1, &[0x08, 1]);
    let shape = field(2, &dimension);
    let tensor = [vec![0x08, 7], shape].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// The model with one more graph input: protobuf messages are merged by putting them one after the other.
fn with_graph_input(model: &[u8], input: &[u8]) -> Vec<u8> {
    [model.to_vec(), field(7, &field(11, input))].concat()
}
