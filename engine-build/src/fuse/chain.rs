//! Makes one node of the operators that follow each other. ONNX Runtime takes microseconds between two nodes, a tenth
//! of a step in small models.
//!
//! A `Chain` has the inputs that its links read from outside, and the outputs that others read. A link is an operator.
//! Its attributes are those of the chain that begin with its number: `3.operator`, `3.name`, `3.reads`, `3.makes`,
//! and the operator's own. Values have numbers: the inputs of the chain, its outputs, and then those that stay inside.
//! An input that is left out is -1.

use std::collections::{HashMap, HashSet};

use crate::onnx::graph::attribute_proto;
use crate::onnx::proto::{AttributeProto, NodeProto};
use crate::onnx::{Attribute, DOMAIN, Element, Graph};

/// Rewrites the nodes of the domain `foretype`, of which all outputs but the graph's own are f32.
pub(crate) fn chain(graph: &mut Graph) {
    let nodes = std::mem::take(&mut graph.nodes);
    let outputs: HashSet<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let mut runs: Vec<Vec<NodeProto>> = Vec::new();
    for node in nodes {
        match runs.last_mut().filter(|run| run[0].domain == DOMAIN && node.domain == DOMAIN) {
            Some(run) => run.push(node),
            None => runs.push(vec![node]),
        }
    }
    let mut uses: HashMap<String, usize> = HashMap::new();
    for input in runs.iter().flatten().flat_map(|node| &node.input) {
        *uses.entry(input.clone()).or_default() += 1;
    }
    for (number, run) in runs.into_iter().enumerate() {
        if run[0].domain != DOMAIN {
            graph.nodes.extend(run);
            continue;
        }
        let inside = |value: &str| run.iter().flat_map(|node| &node.input).filter(|input| *input == value).count();
        let is_read =
            |value: &&String| outputs.contains(*value) || uses.get(*value).is_some_and(|n| *n > inside(value));
        let made: Vec<&String> = run.iter().flat_map(|node| &node.output).filter(is_read).collect();
        // ONNX Runtime can't know their types.
        for value in made.iter().filter(|value| !outputs.contains(**value)) {
            graph.declare_inner(value, Element::F32);
        }
        let chain = link(&run, &made, format!("Chain_{number}"));
        graph.nodes.push(chain);
    }
}

/// One node in place of several; others read its values `outputs`.
fn link(run: &[NodeProto], outputs: &[&String], name: String) -> NodeProto {
    let made: HashSet<&String> = run.iter().flat_map(|node| &node.output).collect();
    let mut numbers: HashMap<&String, i64> = HashMap::new();
    let mut inputs = Vec::new();
    let read = run.iter().flat_map(|node| &node.input).filter(|value| !value.is_empty() && !made.contains(value));
    for value in read {
        numbers.entry(value).or_insert_with(|| {
            inputs.push(value.clone());
            inputs.len() as i64 - 1
        });
    }
    for value in outputs.iter().copied().chain(run.iter().flat_map(|node| &node.output)) {
        let next = numbers.len() as i64;
        numbers.entry(value).or_insert(next);
    }
    let number = |value: &String| numbers.get(value).copied().unwrap_or(-1);
    let attributes = run.iter().enumerate().flat_map(|(at, node)| {
        let (from, to): (Vec<i64>, Vec<i64>) =
            (node.input.iter().map(number).collect(), node.output.iter().map(number).collect());
        let own = [
            attribute_proto(&Attribute::Text("operator", &node.op_type)),
            attribute_proto(&Attribute::Text("name", &node.name)),
            attribute_proto(&Attribute::Ints("reads", &from)),
            attribute_proto(&Attribute::Ints("makes", &to)),
        ];
        let all = own.into_iter().chain(node.attribute.iter().cloned());
        all.map(move |attribute| AttributeProto { name: format!("{at}.{}", attribute.name), ..attribute })
            .collect::<Vec<_>>()
    });
    NodeProto {
        attribute: attributes.collect(),
        input: inputs,
        output: outputs.iter().map(|value| (*value).clone()).collect(),
        name,
        op_type: "Chain".to_owned(),
        domain: DOMAIN.to_owned(),
    }
}
