//! An index of a graph's nodes by the values that they produce and use, with lookups and edits.
//!
//! A node that replaces others takes the place of the last of them. All its inputs are computed before that place, and
//! all users of its output come after it.

use std::collections::{HashMap, HashSet};

use crate::Activations;
use crate::onnx::graph::attribute_proto;
use crate::onnx::proto::{AttributeProto, DataType, NodeProto, TensorProto};
use crate::onnx::{Attribute, DOMAIN, Dim, Element, Graph, Parameter, Source};
use crate::packing::{Form, Packing, Panels};
use crate::rounding::Reading;
use bundle::manifest::Quantization;

/// A packed weight matrix, by name.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) matrix: String,
    /// f32 `[16 panels]`, of an int8 matrix.
    pub(crate) scale: Option<String>,
}

/// A node of the domain `foretype` to be.
pub(crate) struct Fused<'a> {
    pub(crate) operator: &'a str,
    /// Optional ones that are left out are `None`.
    pub(crate) inputs: Vec<Option<String>>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: Vec<Attribute<'a>>,
}

/// The graph while it is rewritten.
#[derive(Debug)]
pub(crate) struct Rewriter {
    /// The graph without its nodes.
    graph: Graph,
    quantization: Quantization,
    /// What the maps of this graph read, by the names of their nodes, until they are packed.
    read: Activations,
    slots: Vec<Option<NodeProto>>,
    producers: HashMap<String, usize>,
    /// A slot for each time that a value is an input.
    users: HashMap<String, Vec<usize>>,
    outputs: HashSet<String>,
    /// Index of each parameter, by its name.
    parameters: HashMap<String, usize>,
    constants: HashMap<String, usize>,
    /// What stands in for the parameter of this number: packed matrices and their scales.
    stand_ins: HashMap<usize, Vec<Parameter>>,
    /// How many nodes of each kind took the place of others; see `fused_name`.
    fused: HashMap<String, usize>,
}

impl Rewriter {
    pub(crate) fn new(mut graph: Graph, quantization: Quantization, read: Activations) -> Self {
        let nodes = std::mem::take(&mut graph.nodes);
        let numbered = |names: Vec<&String>| names.into_iter().cloned().zip(0..).collect();
        let mut rewriter = Self {
            quantization,
            read,
            slots: vec![None; nodes.len()],
            producers: HashMap::new(),
            users: HashMap::new(),
            outputs: graph.outputs.iter().map(|output| output.name.clone()).collect(),
            parameters: numbered(graph.parameters.iter().map(|parameter| &parameter.name).collect()),
            constants: numbered(graph.constants.iter().map(|constant| &constant.name).collect()),
            stand_ins: HashMap::new(),
            fused: HashMap::new(),
            graph,
        };
        for (slot, node) in nodes.into_iter().enumerate() {
            rewriter.insert(slot, node);
        }
        rewriter
    }

    /// The number of slots; each holds a node or, once it has been taken out, nothing.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The node in a slot, if it is this operator of ONNX's own.
    pub(crate) fn operator(&self, slot: usize, operator: &str) -> Option<&NodeProto> {
        self.node(slot).filter(|node| node.op_type == operator)
    }

    /// The node in a slot, if it is one of ONNX's own.
    pub(crate) fn node(&self, slot: usize) -> Option<&NodeProto> {
        self.slots.get(slot)?.as_ref().filter(|node| node.domain.is_empty())
    }

    /// The slot of the node that makes a value.
    pub(crate) fn producer(&self, value: &str) -> Option<usize> {
        self.producers.get(value).copied()
    }

    /// The node that makes a value, if it is this operator of ONNX's own.
    pub(crate) fn made_by(&self, value: &str, operator: &str) -> Option<&NodeProto> {
        self.operator(self.producer(value)?, operator)
    }

    /// The slots of the nodes that use a value, one for each use.
    pub(crate) fn users(&self, value: &str) -> &[usize] {
        self.users.get(value).map_or(&[], Vec::as_slice)
    }

    /// The slots of the nodes that use a value, if the graph itself doesn't.
    pub(crate) fn inner_users(&self, value: &str) -> &[usize] {
        if self.is_output(value) { &[] } else { self.users(value) }
    }

    /// The slot of the one node that uses a value, once, if that is all its use.
    pub(crate) fn only_user(&self, value: &str) -> Option<usize> {
        match self.inner_users(value) {
            [slot] => Some(*slot),
            _ => None,
        }
    }

    pub(crate) fn is_output(&self, value: &str) -> bool {
        self.outputs.contains(value)
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.get(name).map(|&index| &self.graph.parameters[index])
    }

    /// Whether the value is a parameter in f32 of this shape.
    pub(crate) fn is_vector(&self, name: &str, size: u64) -> bool {
        self.parameter(name).is_some_and(|parameter| parameter.element == Element::F32 && parameter.shape == [size])
    }

    /// The values of an int64 constant.
    pub(crate) fn integers(&self, name: &str) -> Option<Vec<i64>> {
        let bytes = self.constant(name, DataType::Int64)?.raw_data.as_deref()?;
        Some(bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The value of an f32 constant of one element.
    pub(crate) fn scalar(&self, name: &str) -> Option<f32> {
        let bytes = self.constant(name, DataType::Float)?.raw_data.as_deref()?;
        bytes.try_into().ok().map(f32::from_le_bytes)
    }

    /// The size of a dimension of a graph input, if it is fixed.
    pub(crate) fn input_dim(&self, name: &str, dim: usize) -> Option<i64> {
        use crate::onnx::proto::DimensionValue::DimValue;
        let input = self.graph.inputs.iter().find(|input| input.name == name)?;
        let shape = input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        match shape.dim.get(dim)?.value {
            Some(DimValue(size)) => Some(size),
            _ => None,
        }
    }

    /// Another input of the graph.
    pub(crate) fn add_input(&mut self, name: &str, element: Element, shape: &[Dim]) {
        self.graph.input(name, element, shape);
    }

    /// Another shape of an input or output of the graph.
    pub(crate) fn reshape(&mut self, name: &str, element: Element, shape: &[Dim]) {
        self.graph.declare_anew(name, element, shape);
    }

    /// Takes nodes out and puts one of the domain `foretype` in the last one's place.
    pub(crate) fn replace(&mut self, slots: &[usize], fused: &Fused) {
        let Some(&last) = slots.iter().max() else { return };
        let kind = self.fused_kind(last, fused.operator);
        let number = self.fused.entry(kind.clone()).or_default();
        let name = format!("{kind}_{number}");
        *number += 1;
        let given = fused.inputs.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
        let node = NodeProto {
            input: fused.inputs[..given].iter().map(|input| input.clone().unwrap_or_default()).collect(),
            output: fused.outputs.clone(),
            name,
            op_type: fused.operator.to_owned(),
            attribute: fused.attributes.iter().map(attribute_proto).collect(),
            domain: DOMAIN.to_owned(),
        };
        for slot in slots {
            self.remove(*slot);
        }
        self.insert(last, node);
    }

    /// The name, without its number, of the node that takes the place of others, of which the last is in this slot: the
    /// scope and the operator in f32. The number is how many there are already; so names are the same in f32 and int8.
    fn fused_kind(&self, last: usize, operator: &str) -> String {
        let node = self.slots[last].as_ref();
        let scope = node.and_then(|node| node.name.rsplit_once('/')).map_or("", |(scope, _)| scope);
        format!("{scope}/{}", operator.trim_end_matches("Int8"))
    }

    /// The packed form of a weight matrix; every use of the same matrix shares the first one's.
    ///
    /// In int8 it is rounded for `reading`, if that is known.
    pub(crate) fn pack(&mut self, name: &str, panels: Panels, reading: Option<Reading>) -> Option<Weight> {
        let &index = self.parameters.get(name)?;
        let whole = panels.output_rows || panels.outputs == panels.stored_outputs;
        let part = if whole { String::new() } else { format!("{}.", panels.first) };
        let matrix = format!("{name}.{part}{}", if panels.output_rows { "panels" } else { "column_panels" });
        let scale = (self.quantization == Quantization::Int8).then(|| format!("{matrix}.scale"));
        let (form, element, shape) = match scale {
            Some(_) => (Form::Int8(reading), Element::U8, panels.shape_int8()),
            None => (Form::F32, Element::F32, panels.shape_f32()),
        };
        let source = self.graph.parameters[index].source.clone();
        let packed =
            Parameter { packing: Some(Packing::Panels(panels, form)), ..stand_in(&matrix, shape, element, source) };
        let scales =
            |name: &String| stand_in(name, panels.shape_scales(), Element::F32, Source::Scales(matrix.clone()));
        let scales = scale.as_ref().map(scales);
        self.add(index, std::iter::once(packed).chain(scales));
        Some(Weight { matrix, scale })
    }

    /// What an operator to be multiplies with, if that is known and can be used. It replaces the nodes in `slots`.
    pub(crate) fn reading(&mut self, operator: &str, slots: &[usize], inputs: u64) -> Option<Reading> {
        let kind = self.fused_kind(*slots.iter().max()?, operator);
        let number = self.fused.get(&kind).copied().unwrap_or_default();
        let seen = self.read.remove(&format!("{kind}_{number}"))?;
        let is_useful = seen.inputs as u64 == inputs && seen.values.iter().all(|x| x.is_finite());
        is_useful.then(|| Reading::new(&seen))
    }

    /// Another parameter in f32, made from one: its name.
    pub(crate) fn derive(&mut self, name: &str, suffix: &str, shape: Vec<u64>, source: Source) -> Option<String> {
        let &index = self.parameters.get(name)?;
        let derived = format!("{name}.{suffix}");
        self.add(index, [stand_in(&derived, shape, Element::F32, source)]);
        Some(derived)
    }

    /// The graph, without the nodes, constants and parameters that nothing needs.
    pub(crate) fn finish(mut self) -> Graph {
        let mut needed = self.outputs.clone();
        for slot in (0..self.slots.len()).rev() {
            match &self.slots[slot] {
                Some(node) if node.output.iter().any(|output| needed.contains(output)) => {
                    needed.extend(node.input.iter().cloned());
                }
                _ => self.slots[slot] = None,
            }
        }
        self.graph.nodes = self.slots.into_iter().flatten().collect();
        self.graph.constants.retain(|constant| needed.contains(&constant.name));
        let mut stand_ins = self.stand_ins;
        let parameters = std::mem::take(&mut self.graph.parameters);
        for (index, parameter) in parameters.into_iter().enumerate() {
            let all = std::iter::once(parameter).chain(stand_ins.remove(&index).unwrap_or_default());
            self.graph.parameters.extend(all.filter(|parameter| needed.contains(&parameter.name)));
        }
        self.graph
    }

    fn constant(&self, name: &str, data_type: DataType) -> Option<&TensorProto> {
        let constant = &self.graph.constants[*self.constants.get(name)?];
        (constant.data_type == data_type as i32).then_some(constant)
    }

    /// Adds what stands in for a parameter, once.
    fn add(&mut self, index: usize, parameters: impl IntoIterator<Item = Parameter>) {
        let all = self.stand_ins.entry(index).or_default();
        for parameter in parameters {
            if all.iter().all(|other| other.name != parameter.name) {
                all.push(parameter);
            }
        }
    }

    fn insert(&mut self, slot: usize, node: NodeProto) {
        for output in &node.output {
            self.producers.insert(output.clone(), slot);
        }
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            self.users.entry(input.clone()).or_default().push(slot);
        }
        self.slots[slot] = Some(node);
    }

    fn remove(&mut self, slot: usize) {
        let Some(node) = self.slots[slot].take() else { return };
        for output in &node.output {
            self.producers.remove(output);
        }
        for input in &node.input {
            if let Some(users) = self.users.get_mut(input) {
                users.retain(|user| *user != slot);
            }
        }
    }
}

fn stand_in(name: &str, shape: Vec<u64>, element: Element, source: Source) -> Parameter {
    Parameter { name: name.to_owned(), shape, element, source, packing: None, offset_bytes: 0 }
}

/// The attribute of that name.
pub(crate) fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

/// The integer attribute of that name, or its default.
pub(crate) fn int(node: &NodeProto, name: &str, default: i64) -> i64 {
    attribute(node, name).and_then(|attribute| attribute.i).unwrap_or(default)
}

/// The text attribute of that name, or nothing.
pub(crate) fn text<'a>(node: &'a NodeProto, name: &str) -> &'a [u8] {
    attribute(node, name).and_then(|attribute| attribute.s.as_deref()).unwrap_or_default()
}

/// An input, unless it is left out.
pub(crate) fn input(node: &NodeProto, index: usize) -> Option<&str> {
    node.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
}

/// The other of two inputs.
pub(crate) fn other_input<'a>(node: &'a NodeProto, value: &str) -> Option<&'a str> {
    match node.input.as_slice() {
        [a, b] if a == value => Some(b),
        [a, b] if b == value => Some(a),
        _ => None,
    }
}
