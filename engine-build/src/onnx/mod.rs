//! Writing ONNX: protobuf messages, a graph builder over them, and the external weights file.
//!
//! Nothing here knows what a transformer is; that is `blocks` and `families`. Nothing here reads ONNX.

pub(crate) mod external;
pub(crate) mod graph;
pub(crate) mod proto;
mod source;

pub(crate) use graph::{Attribute, DOMAIN, Dim, Element, Graph, Parameter, Value};
pub(crate) use source::Source;
