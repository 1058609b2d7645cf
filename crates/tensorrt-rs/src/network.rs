//! Networks: the parsed form of an ONNX file, to be inspected before it is built.

use std::collections::HashSet;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::builder::Inner as BuilderInner;
use crate::error::Error;
use crate::library::Library;
use crate::sys::{TrtNetwork, TrtParser, TrtTensor, call};
use crate::types::{DataType, Shape, text};

/// A network under construction.
#[doc(alias = "INetworkDefinition")]
pub struct Network {
    raw: NonNull<TrtNetwork>,
    builder: Rc<BuilderInner>,
    /// Weights that a parser read stay in its memory, so parsers live as long as their network.
    parsers: Vec<NonNull<TrtParser>>,
}

/// The kind of a layer, by TensorRT's number, which both flavours share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "LayerType")]
pub struct LayerKind(pub i32);

impl LayerKind {
    /// Picks the largest values.
    pub const TOP_K: Self = Self(15);
    /// Begins a fused attention; there is one for each.
    pub const ATTENTION_INPUT: Self = Self(51);
    /// Ends a fused attention.
    pub const ATTENTION_OUTPUT: Self = Self(52);
    /// Writes keys or values into a cache, in place.
    pub const KV_CACHE_UPDATE: Self = Self(54);
}

/// A tensor that goes into or comes out of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name, as in the ONNX file.
    pub name: String,
    /// Type of the tensor's elements.
    pub data_type: DataType,
    /// The tensor's shape; -1 where it is dynamic. Empty also where TensorRT can't tell.
    pub shape: Shape,
}

impl Network {
    pub(crate) fn new(raw: NonNull<TrtNetwork>, builder: &Rc<BuilderInner>) -> Self {
        Self { raw, builder: Rc::clone(builder), parsers: Vec::new() }
    }

    pub(crate) fn library(&self) -> &Library {
        &self.builder.library
    }

    pub(crate) fn as_ptr(&self) -> *mut TrtNetwork {
        self.raw.as_ptr()
    }

    /// Keeps a parser for as long as the network is there.
    pub(crate) fn keep(&mut self, parser: NonNull<TrtParser>) {
        self.parsers.push(parser);
    }

    /// The input tensors, in the order of the network.
    pub fn inputs(&self) -> Vec<TensorInfo> {
        self.input_tensors().into_iter().map(|tensor| self.info(tensor)).collect()
    }

    /// The output tensors, in the order of the network.
    pub fn outputs(&self) -> Vec<TensorInfo> {
        let (table, raw) = (self.library().table(), self.raw.as_ptr());
        // SAFETY: the network is alive.
        let count = unsafe { call!(table, network_outputs, raw) };
        // SAFETY: the network is alive, and the index is below the count.
        let tensors = (0..count).map(|index| unsafe { call!(table, network_output, raw, index) });
        tensors.map(|tensor| self.info(tensor)).collect()
    }

    /// The layers, in the order in which they were added.
    ///
    /// ```compile_fail
    /// fn outlives(network: tensorrt::Network) -> Vec<tensorrt::Layer<'static>> {
    ///     network.layers().collect()
    /// }
    /// ```
    pub fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        // SAFETY: the network is alive.
        let count = unsafe { call!(self.library().table(), network_layers, self.raw.as_ptr()) };
        (0..count).map(|index| Layer { network: self, index })
    }

    /// The names of inputs that no layer reads. A parser that does not know an operator's input drops it without a
    /// word; an input that is left over is how that shows.
    pub fn unused_inputs(&self) -> Vec<String> {
        let read: HashSet<*const TrtTensor> = self.layers().flat_map(|layer| layer.input_tensors()).collect();
        let inputs = self.input_tensors().into_iter().filter(|tensor| !read.contains(tensor));
        inputs.map(|tensor| self.info(tensor).name).collect()
    }

    /// Allows every fused attention to be taken apart where there is no kernel for it as a whole. Returns how many
    /// there are.
    ///
    /// # Errors
    /// An attention that refuses.
    #[doc(alias = "setDecomposable")]
    pub fn set_decomposable(&mut self) -> Result<usize, Error> {
        let attentions: Vec<_> = self.layers().filter(Layer::is_attention).map(|layer| layer.index).collect();
        for &layer in &attentions {
            self.library().accept("IAttention::setDecomposable", |table| {
                // SAFETY: the network is alive, and the index is that of one of its layers.
                unsafe { call!(table, network_set_decomposable, self.raw.as_ptr(), layer, true) }
            })?;
        }
        Ok(attentions.len())
    }

    fn input_tensors(&self) -> Vec<*const TrtTensor> {
        let (table, raw) = (self.library().table(), self.raw.as_ptr());
        // SAFETY: the network is alive.
        let count = unsafe { call!(table, network_inputs, raw) };
        // SAFETY: the network is alive, and the index is below the count.
        (0..count).map(|index| unsafe { call!(table, network_input, raw, index) }).collect()
    }

    /// The name, type and shape of `tensor`, which is one of this network's.
    fn info(&self, tensor: *const TrtTensor) -> TensorInfo {
        let table = self.library().table();
        // SAFETY: the tensor is alive while its network is, and so is its name.
        unsafe {
            TensorInfo {
                name: text(call!(table, tensor_name, tensor)),
                data_type: DataType::from_raw(call!(table, tensor_type, tensor)),
                shape: Shape::from_raw(call!(table, tensor_dims, tensor)).unwrap_or_default(),
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let table = self.library().table();
        // SAFETY: the network is ours; its parsers and its builder are still there.
        unsafe { call!(table, network_destroy, self.raw.as_ptr()) };
        for parser in self.parsers.drain(..) {
            // SAFETY: the parser is ours, and the network that used its memory is gone.
            unsafe { call!(self.builder.library.table(), parser_destroy, parser.as_ptr()) };
        }
    }
}

/// One layer of a network.
#[doc(alias = "ILayer")]
#[derive(Clone, Copy)]
pub struct Layer<'net> {
    network: &'net Network,
    index: i32,
}

impl Layer<'_> {
    /// The operation of the layer.
    pub fn kind(&self) -> LayerKind {
        // SAFETY: the network is alive, and the index is that of one of its layers.
        LayerKind(unsafe {
            call!(self.network.library().table(), network_layer_type, self.network.as_ptr(), self.index)
        })
    }

    /// The layer's name; the parser takes it from the ONNX node.
    pub fn name(&self) -> String {
        // SAFETY: the network is alive, the index is that of one of its layers, and the name lives as long.
        unsafe { text(call!(self.network.library().table(), network_layer_name, self.network.as_ptr(), self.index)) }
    }

    /// Whether it begins a fused attention.
    pub fn is_attention(&self) -> bool {
        self.kind() == LayerKind::ATTENTION_INPUT
    }

    /// Whether it is an attention that may be taken apart.
    pub fn is_decomposable(&self) -> bool {
        // SAFETY: the network is alive, and the index is that of one of its layers.
        unsafe { call!(self.network.library().table(), network_decomposable, self.network.as_ptr(), self.index) }
    }

    /// Whether it is an attention with an explicit mask.
    pub fn has_mask(&self) -> bool {
        !self.mask().is_null()
    }

    fn mask(&self) -> *const TrtTensor {
        // SAFETY: the network is alive, and the index is that of one of its layers.
        unsafe { call!(self.network.library().table(), network_attention_mask, self.network.as_ptr(), self.index) }
    }

    fn input_tensors(&self) -> Vec<*const TrtTensor> {
        let (table, network) = (self.network.library().table(), self.network.as_ptr());
        // SAFETY: the network is alive, and the index is that of one of its layers.
        let count = unsafe { call!(table, network_layer_inputs, network, self.index) };
        // SAFETY: as above, and the input's index is below the count.
        let inputs = (0..count).map(|input| unsafe { call!(table, network_layer_input, network, self.index, input) });
        inputs.chain([self.mask()]).filter(|tensor| !tensor.is_null()).collect()
    }
}

impl fmt::Debug for Layer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layer({}, {:?})", self.name(), self.kind())
    }
}
