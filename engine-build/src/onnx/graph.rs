//! A small graph builder: values in, nodes appended, one `ModelProto` out.
//!
//! It keeps what the protobuf cannot: which initializers live in the external weights file, at which offset, and
//! where their bytes will come from. It does no I/O and no shape inference.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::proto::{
    AttributeProto, AttributeType, DataLocation, DataType, DimensionProto, DimensionValue, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};
use super::source::Source;
use crate::packing::Packing;
use crate::quantizing::Blocks;

/// ONNX IR version and default operator set: the first that have `TensorScatter` and `Attention` with its KV cache.
const IR_VERSION: i64 = 12;
const OPSET: i64 = 24;

/// The operators that foretype's own runtime adds to ONNX's.
pub(crate) const DOMAIN: &str = "foretype";
const DOMAIN_VERSION: i64 = 1;

/// External tensors start on a page, so that a runtime can map each one straight from the file.
const ALIGNMENT_BYTES: u64 = 4096;

/// The name of a tensor in the graph. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value(Rc<str>);

impl Value {
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    I64,
    U8,
    I8,
    /// Two in a byte, the first in the lower half.
    I4,
}

impl Element {
    /// Bytes of so many elements.
    pub(crate) fn bytes(self, elements: u64) -> u64 {
        match self {
            Element::I4 => elements.div_ceil(2),
            Element::U8 | Element::I8 => elements,
            Element::F16 => 2 * elements,
            Element::F32 => 4 * elements,
            Element::I64 => 8 * elements,
        }
    }

    pub(crate) fn data_type(self) -> DataType {
        match self {
            Element::F32 => DataType::Float,
            Element::F16 => DataType::Float16,
            Element::I64 => DataType::Int64,
            Element::U8 => DataType::Uint8,
            Element::I8 => DataType::Int8,
            Element::I4 => DataType::Int4,
        }
    }
}

/// One dimension of a graph input or output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dim {
    Fixed(u32),
    /// Known at run time, under this name (`dim_param`).
    Named(&'static str),
}

/// An operator attribute.
#[derive(Clone, Debug)]
pub(crate) enum Attribute<'a> {
    Float(&'static str, f32),
    Int(&'static str, i64),
    Ints(&'static str, &'a [i64]),
    Text(&'static str, &'a str),
}

/// A tensor of the external weights file.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) element: Element,
    pub(crate) source: Source,
    /// How a matrix of the source is packed, where it isn't stored row by row.
    pub(crate) packing: Option<Packing>,
    /// Start in the weights file, a multiple of the page size.
    pub(crate) offset_bytes: u64,
}

impl Parameter {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.element.bytes(self.elements())
    }

    /// Where the element `index` was read from: the tensor's name and the index there.
    pub(crate) fn origin(&self, index: u64) -> (String, u64) {
        match &self.source {
            Source::Transposed(matrix) => matrix.origin(index).map(|(tensor, at)| (tensor.name.clone(), at)),
            other => other.tensors().first().map(|tensor| (tensor.name.clone(), index)),
        }
        .unwrap_or_else(|| (self.name.clone(), index))
    }
}

/// The graph under construction.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) inputs: Vec<ValueInfoProto>,
    pub(crate) outputs: Vec<ValueInfoProto>,
    /// Values between nodes whose types are declared.
    pub(crate) inner: Vec<ValueInfoProto>,
    pub(crate) constants: Vec<TensorProto>,
    constant_names: HashMap<(Vec<i64>, Vec<i64>), Value>,
    /// In the order of the weights file.
    pub(crate) parameters: Vec<Parameter>,
    scope: String,
}

impl Graph {
    /// Names the nodes that follow `SCOPE/Operator_N`, so that a profile of the graph can be read.
    pub(crate) fn scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    pub(crate) fn input(&mut self, name: &str, element: Element, shape: &[Dim]) -> Value {
        self.inputs.push(value_info(name, element, shape));
        Value(name.into())
    }

    /// Declares a value as the next graph output; outputs keep the order of these calls.
    pub(crate) fn output(&mut self, value: &Value, element: Element, shape: &[Dim]) {
        self.outputs.push(value_info(value.name(), element, shape));
    }

    /// Declares the graph input or output of this name with another shape.
    pub(crate) fn declare_anew(&mut self, name: &str, element: Element, shape: &[Dim]) {
        for declared in self.inputs.iter_mut().chain(&mut self.outputs).filter(|declared| declared.name == name) {
            *declared = value_info(name, element, shape);
        }
    }

    /// Declares the type of a value between nodes.
    pub(crate) fn declare_inner(&mut self, name: &str, element: Element) {
        let tensor_type = TensorTypeProto { elem_type: element.data_type() as i32, shape: None };
        let r#type = Some(TypeProto { tensor_type: Some(tensor_type) });
        self.inner.push(ValueInfoProto { name: name.to_owned(), r#type });
    }

    /// An inline int64 constant. Equal constants are stored once.
    pub(crate) fn integers(&mut self, shape: &[i64], values: &[i64]) -> Value {
        let key = (shape.to_vec(), values.to_vec());
        if let Some(value) = self.constant_names.get(&key) {
            return value.clone();
        }
        let value = Value(format!("constant_{}", self.constants.len()).into());
        self.constants.push(TensorProto {
            dims: shape.to_vec(),
            data_type: DataType::Int64 as i32,
            name: value.name().to_owned(),
            raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            ..TensorProto::default()
        });
        self.constant_names.insert(key, value.clone());
        value
    }

    /// An inline floating-point constant of no dimensions.
    pub(crate) fn scalar(&mut self, value: f32, element: Element) -> Value {
        let bytes = match element {
            Element::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            Element::F32 | Element::I64 | Element::U8 | Element::I8 | Element::I4 => value.to_le_bytes().to_vec(),
        };
        let constant = Value(format!("constant_{}", self.constants.len()).into());
        self.constants.push(TensorProto {
            data_type: element.data_type() as i32,
            name: constant.name().to_owned(),
            raw_data: Some(bytes),
            ..TensorProto::default()
        });
        constant
    }

    /// An initializer in the external weights file.
    pub(crate) fn parameter(&mut self, name: &str, shape: &[u64], element: Element, source: Source) -> Value {
        self.push_parameter(name, shape, element, (source, None))
    }

    /// A matrix `[inputs, outputs]` that is stored in few bits and used in f16.
    pub(crate) fn quantized(&mut self, name: &str, source: Source, blocks: Blocks) -> Value {
        let (packing, scale, element) = (Some(Packing::Blocks(blocks)), format!("{name}.scale"), blocks.element());
        let matrix = self.push_parameter(name, &blocks.shape(), element, (source, packing));
        let scales = self.parameter(&scale, &blocks.shape_scales(), Element::F16, Source::Scales(name.to_owned()));
        let by_block = [Attribute::Int("axis", 0), Attribute::Int("block_size", blocks.block.cast_signed())];
        let by_output = [Attribute::Int("axis", 1)];
        let attributes = if blocks.is_whole() { &by_output[..] } else { &by_block };
        self.node("DequantizeLinear", &[&matrix, &scales], attributes)
    }

    fn push_parameter(
        &mut self,
        name: &str,
        shape: &[u64],
        element: Element,
        (source, packing): (Source, Option<Packing>),
    ) -> Value {
        let (name_owned, shape) = (name.to_owned(), shape.to_vec());
        self.parameters.push(Parameter { name: name_owned, shape, element, source, packing, offset_bytes: 0 });
        Value(name.into())
    }

    /// A node with one output.
    pub(crate) fn node(&mut self, operator: &str, inputs: &[&Value], attributes: &[Attribute]) -> Value {
        let output = Value(self.next_name(operator).into());
        self.push(operator, inputs, attributes, std::slice::from_ref(&output));
        output
    }

    /// A node with `N` outputs.
    pub(crate) fn node_n<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: &[Attribute],
    ) -> [Value; N] {
        let stem = self.next_name(operator);
        let outputs = std::array::from_fn(|i| Value(format!("{stem}.{i}").into()));
        self.push(operator, inputs, attributes, &outputs);
        outputs
    }

    /// A node whose outputs carry the names by which a runtime asks for them.
    pub(crate) fn named<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: &[Attribute],
        names: [&str; N],
    ) -> [Value; N] {
        let outputs = names.map(|name| Value(name.into()));
        self.push(operator, inputs, attributes, &outputs);
        outputs
    }

    /// The finished model, whose large tensors are in `weights_file`, and those tensors in file order.
    pub(crate) fn finish(mut self, name: &str, weights_file: &str) -> (ModelProto, Vec<Parameter>) {
        lay_out(&mut self.parameters);
        let domains = self.nodes.iter().map(|node| node.domain.as_str());
        // ONNX's own comes first, whether or not there is a node of it: readers take it for granted.
        let domains: BTreeSet<&str> = domains.chain([""]).collect();
        let opset_import = domains.into_iter().map(operator_set).collect();
        let mut initializer = self.constants;
        initializer.extend(self.parameters.iter().map(|parameter| external_tensor(parameter, weights_file)));
        let graph = GraphProto {
            node: self.nodes,
            name: name.to_owned(),
            initializer,
            input: self.inputs,
            output: self.outputs,
            value_info: self.inner,
        };
        let model = ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: env!("CARGO_PKG_NAME").to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(graph),
            opset_import,
        };
        (model, self.parameters)
    }

    fn next_name(&self, operator: &str) -> String {
        format!("{}/{operator}_{}", self.scope, self.nodes.len())
    }

    fn push(&mut self, operator: &str, inputs: &[&Value], attributes: &[Attribute], outputs: &[Value]) {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|v| v.name().to_owned()).collect(),
            output: outputs.iter().map(|v| v.name().to_owned()).collect(),
            name: self.next_name(operator),
            op_type: operator.to_owned(),
            attribute: attributes.iter().map(attribute_proto).collect(),
            domain: String::new(),
        });
    }
}

/// Gives every parameter its place in the weights file, each behind the one before it.
fn lay_out(parameters: &mut [Parameter]) {
    let mut end = 0_u64;
    for parameter in parameters {
        parameter.offset_bytes = end.next_multiple_of(ALIGNMENT_BYTES);
        end = parameter.offset_bytes + parameter.bytes();
    }
}

fn operator_set(domain: &str) -> OperatorSetIdProto {
    let version = if domain.is_empty() { OPSET } else { DOMAIN_VERSION };
    OperatorSetIdProto { domain: domain.to_owned(), version: Some(version) }
}

fn value_info(name: &str, element: Element, shape: &[Dim]) -> ValueInfoProto {
    let dim = |dim: &Dim| DimensionProto {
        value: Some(match *dim {
            Dim::Fixed(size) => DimensionValue::DimValue(i64::from(size)),
            Dim::Named(name) => DimensionValue::DimParam(name.to_owned()),
        }),
    };
    let tensor_type = TensorTypeProto {
        elem_type: element.data_type() as i32,
        shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }),
    };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

fn external_tensor(parameter: &Parameter, weights_file: &str) -> TensorProto {
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
    TensorProto {
        dims: parameter.shape.iter().map(|&size| size.cast_signed()).collect(),
        data_type: parameter.element.data_type() as i32,
        name: parameter.name.clone(),
        raw_data: None,
        external_data: vec![
            entry("location", weights_file.to_owned()),
            entry("offset", parameter.offset_bytes.to_string()),
            entry("length", parameter.bytes().to_string()),
        ],
        data_location: Some(DataLocation::External as i32),
    }
}

pub(crate) fn attribute_proto(attribute: &Attribute) -> AttributeProto {
    let new = |name: &str, kind: AttributeType| AttributeProto {
        name: name.to_owned(),
        r#type: kind as i32,
        ..AttributeProto::default()
    };
    match *attribute {
        Attribute::Float(name, value) => AttributeProto { f: Some(value), ..new(name, AttributeType::Float) },
        Attribute::Int(name, value) => AttributeProto { i: Some(value), ..new(name, AttributeType::Int) },
        Attribute::Ints(name, values) => AttributeProto { ints: values.to_vec(), ..new(name, AttributeType::Ints) },
        Attribute::Text(name, value) => {
            AttributeProto { s: Some(value.as_bytes().to_vec()), ..new(name, AttributeType::String) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_constants_are_stored_once() {
        let mut graph = Graph::default();
        let first = graph.integers(&[1], &[7]);
        assert_eq!(first, graph.integers(&[1], &[7]));
        assert_ne!(first, graph.integers(&[], &[7]));
    }

    #[test]
    fn parameters_start_on_pages_and_name_their_file() {
        let mut graph = Graph::default();
        graph.parameter("a", &[3, 5], Element::F32, Source::Computed(vec![0.0; 15]));
        graph.parameter("b", &[2048], Element::F16, Source::Computed(vec![0.0; 2048]));
        graph.parameter("c", &[1], Element::F32, Source::Computed(vec![0.0]));
        let (model, parameters) = graph.finish("g", "model.weights");
        assert_eq!(parameters.iter().map(|p| p.offset_bytes).collect::<Vec<_>>(), [0, 4096, 8192]);
        let initializer = &model.graph.expect("a graph").initializer[1];
        let entries: Vec<_> = initializer.external_data.iter().map(|e| (e.key.as_str(), e.value.as_str())).collect();
        assert_eq!(entries, [("location", "model.weights"), ("offset", "4096"), ("length", "4096")]);
    }
}
