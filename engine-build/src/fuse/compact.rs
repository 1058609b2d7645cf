//! f32 matrices in 28 bits a weight, without loss (see [`kernels::f28`]), for models whose steps wait for memory.
//!
//! `Linear`, `Embedding` and `Head` become `LinearF28`, `EmbeddingF28` and `HeadF28`, with the matrix's exceptions as an input behind it.

use std::collections::HashMap;

use kernels::f28::EXCEPTION_BYTES;

use crate::Progress;
use crate::checkpoint::Weights;
use crate::error::BuildError;
use crate::onnx::{DOMAIN, Element, Graph, Parameter, Source};
use crate::packing::Form;

/// A matrix with an exception for fewer weights than this stays f32: exceptions take eight bytes each, and time.
const WEIGHTS_PER_EXCEPTION: u64 = 256;

/// Stores a rewritten graph's f32 matrices so, if they are at least `from_bytes` together. Reads them all to find out which can be.
pub(crate) fn compact(
    mut graph: Graph,
    weights: &Weights,
    from_bytes: u64,
    progress: &dyn Progress,
) -> Result<Graph, BuildError> {
    let bytes: u64 = graph.parameters.iter().filter(|parameter| is_f32(parameter)).map(Parameter::bytes).sum();
    if bytes < from_bytes {
        return Ok(graph);
    }
    progress.stage("look through the weights", bytes);
    let mut exceptions = HashMap::new();
    let mut parameters = Vec::with_capacity(2 * graph.parameters.len());
    for mut parameter in std::mem::take(&mut graph.parameters) {
        if progress.is_cancelled() {
            return Err(BuildError::Cancelled);
        }
        let beside = if is_f32(&parameter) {
            progress.advance(parameter.bytes());
            compacted(&mut parameter, weights)?
        } else {
            None
        };
        if let Some(beside) = &beside {
            exceptions.insert(parameter.name.clone(), beside.name.clone());
        }
        parameters.extend(std::iter::once(parameter).chain(beside));
    }
    graph.parameters = parameters;
    for node in graph.nodes.iter_mut().filter(|node| node.domain == DOMAIN) {
        let found = node.input.iter().position(|input| exceptions.contains_key(input));
        if let Some((at, beside)) = found.and_then(|at| Some((at, exceptions.get(&node.input[at])?))) {
            node.input.insert(at + 1, beside.clone());
            node.op_type.push_str("F28");
        }
    }
    Ok(graph)
}

fn is_f32(parameter: &Parameter) -> bool {
    parameter.panels.is_some_and(|(_, form)| form == Form::F32)
}

/// Gives a packed matrix the other form, if that pays. Returns what goes beside it.
fn compacted(parameter: &mut Parameter, weights: &Weights) -> Result<Option<Parameter>, BuildError> {
    let Some((panels, _)) = parameter.panels else { return Ok(None) };
    let Some(exceptions) = panels.f28_exceptions(&parameter.source, weights)? else { return Ok(None) };
    if exceptions > parameter.elements() / WEIGHTS_PER_EXCEPTION {
        return Ok(None);
    }
    parameter.shape = panels.shape_f28();
    parameter.element = Element::U8;
    parameter.panels = Some((panels, Form::F28));
    Ok(Some(Parameter {
        name: format!("{}.exceptions", parameter.name),
        // Not none: runtimes differ in what they make of an empty tensor. Bytes: integers they would take for a shape.
        shape: vec![exceptions.max(1), EXCEPTION_BYTES as u64],
        element: Element::U8,
        source: Source::Beside(parameter.name.clone()),
        panels: None,
        offset_bytes: 0,
    }))
}
