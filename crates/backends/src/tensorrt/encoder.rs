//! The encoder's execution context: one for all sources; its shapes and output addresses change from source to source.

use tensorrt::{Context, ContextOptions, DevicePtr, Engine, Error, ScratchMemory, TensorName};

use crate::cuda::DeviceMemory;
use crate::device::DeviceSources;
use crate::readings::SourceShape;
use scheduler::backend::{BackendError, SourceSlot};

/// TensorRT's part of the reading of a source.
pub struct EncoderRunner {
    /// Made at the first reading.
    context: Option<Context>,
    engine: Engine,
    input_ids: TensorName,
    /// `cross_k_0`, `cross_v_0`, ...: in the order of the sources' tensors.
    outputs: Vec<TensorName>,
}

impl EncoderRunner {
    /// A runner of an engine that was checked to have the graph's input and outputs.
    pub fn new(engine: Engine, shape: &SourceShape) -> Result<Self, Error> {
        let outputs = shape.names().map(TensorName::new).collect::<Result<_, _>>()?;
        Ok(Self { context: None, engine, input_ids: TensorName::new("input_ids")?, outputs })
    }

    /// The outputs, which are inputs of the decoder.
    pub fn outputs(&self) -> &[TensorName] {
        &self.outputs
    }

    /// Puts a reading on the stream.
    pub fn run(
        &mut self,
        (slot, len): (SourceSlot, usize),
        sources: &DeviceSources,
        scratch: &DeviceMemory,
    ) -> Result<(), BackendError> {
        let context = match &mut self.context {
            Some(context) => context,
            None => self
                .context
                .insert(Self::prepare(&self.engine, &self.input_ids, sources, scratch).map_err(BackendError::engine)?),
        };
        context.set_input_shape(&self.input_ids, &[1, len as i64]).map_err(BackendError::engine)?;
        // SAFETY: a slot has room for the longest source, which the profile ends with, and lives longer than this: a
        // `DeviceBackend` drops its runner first, when the stream has finished. The rest is as `prepare` says.
        unsafe {
            for (tensor, name) in self.outputs.iter().enumerate() {
                context.set_address(name, DevicePtr(sources.in_slot(slot, tensor))).map_err(BackendError::engine)?;
            }
            context.enqueue(tensorrt::Stream(sources.stream().raw())).map_err(BackendError::engine)
        }
    }

    fn prepare(
        engine: &Engine,
        input_ids: &TensorName,
        sources: &DeviceSources,
        scratch: &DeviceMemory,
    ) -> Result<Context, Error> {
        let options = ContextOptions { scratch: ScratchMemory::UserManaged, ..ContextOptions::default() };
        let mut context = engine.context(&options)?;
        // SAFETY: the stream is of the engine's device and stays as long as the sources, which have room for the
        // longest one; the scratch memory suffices for every context, and contexts that share it run one after the
        // other.
        unsafe {
            context.set_profile(0, tensorrt::Stream(sources.stream().raw()))?;
            context.set_scratch(DevicePtr(scratch.address()), scratch.bytes() as u64);
            context.set_address(input_ids, DevicePtr(sources.ids()))?;
        }
        Ok(context)
    }
}
