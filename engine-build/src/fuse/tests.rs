//! Patterns that are and aren't rewritten, on graphs of a few nodes and on those of every golden.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::rewrite;
use crate::Activations;
use crate::checkpoint::{Configs, Folder, Weights};
use crate::families::{GraphOptions, Model};
use crate::onnx::graph::attribute_proto;
use crate::onnx::proto::{AttributeProto, DimensionValue, NodeProto, ValueInfoProto};
use crate::onnx::{Attribute, Dim, Element, Graph, Parameter, Source, Value};
use bundle::manifest::{Dtype, Quantization};

const WIDTH: u64 = 4;
const VOCAB: u64 = 8;

/// A graph with the rows `x`, f32 `[B, S, 4]`.
fn graph() -> (Graph, Value) {
    let mut graph = Graph::default();
    let ids = graph.input("input_ids", Element::I64, &[Dim::Named("batch"), Dim::Named("tokens")]);
    let table = parameter(&mut graph, "table", &[VOCAB, WIDTH]);
    let [x] = graph.named("Gather", &[&table, &ids], &[Attribute::Int("axis", 0)], ["x"]);
    (graph, x)
}

fn parameter(graph: &mut Graph, name: &str, shape: &[u64]) -> Value {
    let values = vec![0.5; shape.iter().product::<u64>() as usize];
    graph.parameter(name, shape, Element::F32, Source::Computed(values))
}

/// `x W`, with W named `name`.
fn product(graph: &mut Graph, x: &Value, name: &str, shape: [u64; 2]) -> Value {
    let matrix = parameter(graph, name, &shape);
    let [product] = graph.named("MatMul", &[x, &matrix], &[], [&format!("x.{name}")]);
    product
}

/// The rewritten nodes behind the embedding, one line each, with `y` as the graph's output.
fn rewritten(mut graph: Graph, y: &Value) -> Vec<String> {
    graph.output(y, Element::F32, &[]);
    let graph = rewrite(graph, VOCAB as u32, Quantization::None, Activations::new());
    check(&graph);
    graph.nodes.iter().filter(|node| node.op_type != "Embedding").map(line).collect()
}

/// `Operator(inputs)`, and the attributes that are texts.
fn line(node: &NodeProto) -> String {
    let text = |attribute: &AttributeProto| {
        let text = String::from_utf8(attribute.s.clone()?).ok()?;
        (text != "none" && text != "linear").then(|| format!(" {text}"))
    };
    let texts: String = node.attribute.iter().filter_map(text).collect();
    format!("{}({}){texts}", node.op_type, node.input.join(" "))
}

/// What every graph has to be: each value made once and before its use, and nothing that isn't used.
fn check(graph: &Graph) {
    let mut known: HashSet<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
    known.extend(graph.constants.iter().map(|constant| constant.name.as_str()));
    known.extend(graph.parameters.iter().map(|parameter| parameter.name.as_str()));
    let used: HashSet<&str> = graph.nodes.iter().flat_map(|node| node.input.iter().map(String::as_str)).collect();
    for name in graph.constants.iter().map(|c| &c.name).chain(graph.parameters.iter().map(|p| &p.name)) {
        assert!(used.contains(name.as_str()), "{name} is stored for nothing");
    }
    for node in &graph.nodes {
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            assert!(known.contains(input.as_str()), "{}: {input} is not there yet", line(node));
        }
        assert!(node.output.iter().all(|output| known.insert(output)), "{}: made twice", line(node));
    }
    assert!(graph.outputs.iter().all(|output| known.contains(output.name.as_str())));
}

#[test]
fn what_follows_a_product_is_taken_in() {
    let (mut g, x) = graph();
    let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
    let bias = parameter(&mut g, "b", &[WIDTH]);
    let y = g.node("Add", &[&bias, &y], &[]);
    let y = g.node("Gelu", &[&y], &[Attribute::Text("approximate", "tanh")]);
    let y = g.node("Mul", &[&y, &x], &[]);
    let y = g.node("Add", &[&x, &y], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels b   x x) gelu_tanh"]);
}

#[test]
fn activations_are_known_by_what_they_compute() {
    for (expected, slope) in [("silu", None), ("quick_gelu", Some(1.702)), ("", Some(1.5))] {
        let (mut g, x) = graph();
        let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
        let scaled = match slope {
            Some(slope) => {
                let slope = g.scalar(slope, Element::F32);
                g.node("Mul", &[&y, &slope], &[])
            }
            None => y.clone(),
        };
        let gate = g.node("Sigmoid", &[&scaled], &[]);
        let y = g.node("Mul", &[&y, &gate], &[]);
        let lines = rewritten(g, &y);
        if expected.is_empty() {
            assert_eq!(lines.len(), 4, "{lines:?}");
        } else {
            assert_eq!(lines, [format!("Linear(x w.column_panels) {expected}")]);
        }
    }
    for (operator, expected) in [("Relu", "relu"), ("Tanh", "tanh"), ("Gelu", "gelu")] {
        let (mut g, x) = graph();
        let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
        let y = g.node(operator, &[&y], &[]);
        assert_eq!(rewritten(g, &y), [format!("Linear(x w.column_panels) {expected}")]);
    }
}

#[test]
fn parts_in_another_order_are_left_alone() {
    let (mut g, x) = graph();
    let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
    let y = g.node("Add", &[&y, &x], &[]);
    let y = g.node("Relu", &[&y], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels     x)", "Relu(/Add_2)"]);

    let (mut g, x) = graph();
    let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
    let y = g.node("Relu", &[&y], &[]);
    let bias = parameter(&mut g, "b", &[WIDTH]);
    let y = g.node("Add", &[&y, &bias], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels) relu", "Add(/Relu_2 b)"]);
}

#[test]
fn values_that_someone_else_uses_stay() {
    let (mut g, x) = graph();
    let product_value = product(&mut g, &x, "w", [WIDTH, WIDTH]);
    let y = g.node("Relu", &[&product_value], &[]);
    g.output(&product_value, Element::F32, &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels)", "Relu(x.w)"], "an output of the graph");

    let (mut g, x) = graph();
    let y = product(&mut g, &x, "w", [WIDTH, WIDTH]);
    let y = g.node("Add", &[&y, &y], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels)", "Add(x.w x.w)"], "itself");

    let (mut g, x) = graph();
    let wide = product(&mut g, &x, "w", [WIDTH, 2 * WIDTH]);
    let bias = parameter(&mut g, "b", &[1]);
    let y = g.node("Add", &[&wide, &bias], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels)", "Add(x.w b)"], "of another shape");
}

fn norm(g: &mut Graph, x: &Value) -> Value {
    let (scale, bias) = (parameter(g, "s", &[WIDTH]), parameter(g, "t", &[WIDTH]));
    g.node("LayerNormalization", &[x, &scale, &bias], &[Attribute::Int("axis", -1), Attribute::Float("epsilon", 1e-3)])
}

#[test]
fn a_norm_goes_into_all_its_products_or_stays() {
    let (mut g, x) = graph();
    let normed = norm(&mut g, &x);
    let a = product(&mut g, &normed, "w", [WIDTH, WIDTH]);
    let b = product(&mut g, &normed, "v", [WIDTH, WIDTH]);
    let y = g.node("Mul", &[&a, &b], &[]);
    assert_eq!(rewritten(g, &y), ["Linear(x v.column_panels  s t) layer", "Linear(x w.column_panels  s t x.v) layer"]);

    let (mut g, x) = graph();
    let normed = norm(&mut g, &x);
    let a = product(&mut g, &normed, "w", [WIDTH, WIDTH]);
    let y = g.node("Add", &[&a, &normed], &[]);
    let name = "/LayerNormalization_1";
    let expected = ["LayerNormalization(x s t)".to_owned(), format!("Linear({name} w.column_panels     {name})")];
    assert_eq!(rewritten(g, &y), expected);

    let (mut g, x) = graph();
    let scale = parameter(&mut g, "s", &[WIDTH]);
    let normed = g.node("RMSNormalization", &[&x, &scale], &[Attribute::Int("axis", -1)]);
    let y = product(&mut g, &normed, "w", [WIDTH, WIDTH]);
    assert_eq!(rewritten(g, &y), ["Linear(x w.column_panels  s) rms"]);
}

#[test]
fn a_gate_that_shares_its_product_is_taken_in() {
    let (mut g, x) = graph();
    let both = product(&mut g, &x, "w", [WIDTH, 12]);
    let sizes = g.integers(&[2], &[6, 6]);
    let [gate, wide] = g.node_n("Split", &[&both, &sizes], &[Attribute::Int("axis", -1)]);
    let sigmoid = g.node("Sigmoid", &[&gate], &[]);
    let gate = g.node("Mul", &[&gate, &sigmoid], &[]);
    let y = g.node("Mul", &[&gate, &wide], &[]);
    let y = product(&mut g, &y, "v", [6, WIDTH]);
    let y = g.node("Add", &[&x, &y], &[]);
    let expected = ["Linear(x w.6.column_panels      w.0.column_panels) silu", "Linear(/Mul_5 v.column_panels     x)"];
    assert_eq!(rewritten(g, &y), expected);
}

fn goldens() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens");
    let mut folders: Vec<_> =
        std::fs::read_dir(folder).expect("goldens").map(|e| e.expect("an entry").path()).collect();
    folders.retain(|folder| folder.join("config.json").is_file());
    folders.sort();
    assert!(folders.len() >= 10, "{folders:?}");
    folders
}

/// The graph of a golden, and its vocabulary.
fn standard(folder: &Path) -> (Graph, String, u32) {
    let folder = Folder::open(folder).expect("a folder");
    let model = Model::read(&Configs::read(&folder).expect("a configuration").model).expect("a model");
    let weights = Weights::open(&folder).expect("weights");
    let options =
        GraphOptions { context: model.shape().positions.min(16), top_k: 8, precision: Dtype::F32.into(), slots: false };
    (model.graph(&weights, &options).expect("a graph"), model.family().to_owned(), model.shape().vocab)
}

fn counts(graph: &Graph) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in &graph.nodes {
        let dot = if node.domain.is_empty() { "." } else { "" };
        *counts.entry(format!("{dot}{}", node.op_type)).or_insert(0) += 1;
    }
    counts
}

/// Caches hold places, and the table has an entry for each position.
fn check_caches(graph: &Graph) {
    let dims = |value: &ValueInfoProto| {
        let shape = value.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()?.shape.as_ref()).expect("a shape");
        shape.dim.iter().filter_map(|dim| dim.value.clone()).collect::<Vec<_>>()
    };
    let cache = |value: &&ValueInfoProto| value.name.starts_with("past_k_") || value.name.starts_with("present_v_");
    for value in graph.inputs.iter().chain(&graph.outputs).filter(cache) {
        let dims = dims(value);
        assert_eq!((dims.len(), &dims[0]), (3, &DimensionValue::DimParam("places".to_owned())), "{}", value.name);
    }
    let table = graph.inputs.last().expect("a table");
    assert!(matches!(dims(table)[..], [DimensionValue::DimParam(_), DimensionValue::DimValue(1..=16)]), "{table:?}");
}

#[test]
fn every_golden_is_rewritten_whole() {
    for folder in goldens() {
        for (quantization, suffix) in [(Quantization::None, ""), (Quantization::Int8, "Int8")] {
            let (graph, family, vocab) = standard(&folder);
            let layers = graph.outputs.iter().filter(|output| output.name.starts_with("present_k")).count();
            let names = |graph: &Graph| {
                let names =
                    |values: &[ValueInfoProto]| values.iter().map(|value| value.name.clone()).collect::<Vec<_>>();
                (names(&graph.inputs), names(&graph.outputs))
            };
            let (before, bytes) = (names(&graph), graph.parameters.iter().map(Parameter::elements).sum::<u64>());
            let graph = rewrite(graph, vocab, quantization, Activations::new());
            check(&graph);
            let (inputs, outputs) = names(&graph);
            assert_eq!((&inputs[..inputs.len() - 1], &outputs), (&before.0[..], &before.1));
            assert_eq!(inputs.last().map(String::as_str), Some("kv_places"));
            check_caches(&graph);
            // Gates with a bias are products of their own.
            let gates = usize::from(folder.ends_with("llama_wide"));
            if folder.ends_with("opt_post") {
                // Norms behind the blocks, and a head that is projected first, stay ONNX's own; both projections are
                // taken.
                let counts = counts(&graph);
                assert_eq!((counts[&format!("Linear{suffix}")], counts["Attention"]), (4 * layers + 2, layers));
                continue;
            }
            let mut expected = BTreeMap::from([
                (format!("Embedding{suffix}"), 1),
                (format!("Linear{suffix}"), (4 + gates) * layers),
                ("Attention".to_owned(), layers),
                (format!("Head{suffix}"), 1),
            ]);
            // The embedding's own norm has no product behind it.
            expected.extend((family == "bloom").then(|| (".LayerNormalization".to_owned(), 1)));
            assert_eq!(counts(&graph), expected, "{}", folder.display());
            if quantization == Quantization::None {
                let padded: u64 = graph.parameters.iter().map(Parameter::elements).sum();
                assert!(padded < bytes + bytes / 2, "{}: nothing is stored twice", folder.display());
            }
        }
    }
}

#[test]
fn attention_with_another_mask_stays() {
    let (mut graph, _, vocab) = standard(&goldens()[0]);
    let slots = graph.constants.iter_mut().find(|constant| constant.dims.len() == 4).expect("the slots");
    slots.raw_data.as_mut().expect("values")[0] = 7;
    let graph = rewrite(graph, vocab, Quantization::None, Activations::new());
    check(&graph);
    let counts = counts(&graph);
    assert!(counts.contains_key(".Attention") && !counts.contains_key("Attention"), "{counts:?}");
}

#[test]
fn attention_is_rewritten_in_all_layers_or_in_none() {
    let (folder, layers) = goldens()
        .into_iter()
        .map(|folder| {
            let layers = standard(&folder).0.outputs.iter().filter(|o| o.name.starts_with("present_k")).count();
            (folder, layers)
        })
        .find(|(_, layers)| *layers > 1)
        .expect("two layers");
    let (mut graph, _, vocab) = standard(&folder);
    let attention = graph.nodes.iter_mut().rfind(|node| node.op_type == "Attention").expect("attention");
    attention.attribute.push(attribute_proto(&Attribute::Float("softcap", 30.0)));
    let (inputs, outputs) = (graph.inputs.clone(), graph.outputs.clone());
    let graph = rewrite(graph, vocab, Quantization::None, Activations::new());
    check(&graph);
    assert_eq!(counts(&graph)[".Attention"], layers);
    assert_eq!((graph.inputs, graph.outputs), (inputs, outputs), "and the caches are as they were");
}

#[test]
fn a_head_whose_padding_is_not_masked_stays() {
    let padded = |graph: &Graph| graph.parameters.iter().position(|p| p.name == "vocabulary.pad_bias");
    let (folder, at) = goldens().into_iter().find_map(|f| padded(&standard(&f).0).map(|at| (f, at))).expect("padding");
    let (mut graph, _, vocab) = standard(&folder);
    let Source::Computed(values) = &mut graph.parameters[at].source else { panic!("pads are computed") };
    values.fill(0.0);
    let graph = rewrite(graph, vocab, Quantization::None, Activations::new());
    check(&graph);
    assert!(counts(&graph).contains_key(".TopK"));
}

/// The nodes that a chain was made of.
fn links(chain: &NodeProto, inner: &[String]) -> Vec<NodeProto> {
    let values: Vec<&String> = chain.input.iter().chain(&chain.output).chain(inner).collect();
    let value = |number: &i64| usize::try_from(*number).map_or_else(|_| String::new(), |n| values[n].clone());
    let of = |number: usize| {
        let prefix = format!("{number}.");
        let own = |attribute: &AttributeProto| {
            let name = attribute.name.strip_prefix(&prefix)?.to_owned();
            Some(AttributeProto { name, ..attribute.clone() })
        };
        chain.attribute.iter().filter_map(own).collect::<Vec<_>>()
    };
    let all = (0..).map(of).take_while(|attributes| !attributes.is_empty());
    all.map(|mut attributes| {
        let mut take = || attributes.remove(0);
        let (operator, name, reads, makes) = (take(), take(), take(), take());
        let text = |attribute: AttributeProto| String::from_utf8(attribute.s.expect("a text")).expect("UTF-8");
        NodeProto {
            input: reads.ints.iter().map(value).collect(),
            output: makes.ints.iter().map(value).collect(),
            name: text(name),
            op_type: text(operator),
            attribute: attributes,
            domain: "foretype".to_owned(),
        }
    })
    .collect()
}

#[test]
fn a_chain_says_all_that_its_nodes_said() {
    for folder in goldens() {
        let rewritten = || {
            let (graph, _, vocab) = standard(&folder);
            rewrite(graph, vocab, Quantization::Int8, Activations::new())
        };
        let (before, mut graph) = (rewritten().nodes, rewritten());
        super::chain::chain(&mut graph);
        check(&graph);
        let is_outer = |value: &String| graph.nodes.iter().any(|node| node.output.contains(value));
        let mut after: Vec<NodeProto> = Vec::new();
        for node in &graph.nodes {
            if node.domain.is_empty() {
                after.push(node.clone());
                continue;
            }
            let run = &before[after.len()..];
            let inner: Vec<String> = run.iter().flat_map(|node| node.output.clone()).filter(|v| !is_outer(v)).collect();
            after.extend(links(node, &inner));
        }
        assert_eq!(after, before, "{}", folder.display());
        let chains = graph.nodes.iter().filter(|node| node.op_type == "Chain").count();
        let own = before.iter().filter(|node| node.domain.is_empty()).count();
        assert!((1..=own + 1).contains(&chains), "{chains} chains between {own} other nodes");
        // Values between nodes are declared, or ONNX Runtime refuses the graph.
        let between = graph.nodes.iter().filter(|node| node.op_type == "Chain").flat_map(|node| &node.output);
        let between = between.filter(|value| graph.outputs.iter().all(|output| output.name != **value));
        assert_eq!(between.collect::<Vec<_>>(), graph.inner.iter().map(|value| &value.name).collect::<Vec<_>>());
    }
}
