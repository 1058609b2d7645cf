//! The encoder's execution context: one for all sources; its shapes and output addresses change from source to source.

use tensorrt::{Context, ContextOptions, DevicePtr, Engine, Error, ScratchMemory, TensorName};

use super::kernels::Kernels;
use crate::cuda::DeviceMemory;
use crate::device::DeviceSources;
use crate::readings::SourceShape;
use scheduler::backend::{BackendError, SourceSlot};

/// TensorRT's part of the reading of a source.
pub struct EncoderRunner {
    /// Made before the first reading.
    context: Option<Context>,
    engine: Engine,
    kernels: Option<Kernels>,
    input_ids: TensorName,
    /// `cross_k_0`, `cross_v_0`, ...: in the order of the sources' tensors.
    outputs: Vec<TensorName>,
}

impl EncoderRunner {
    /// A runner of an engine that was checked to have the graph's input and outputs.
    pub fn new((engine, kernels): (Engine, Option<Kernels>), shape: &SourceShape) -> Result<Self, Error> {
        let outputs = shape.names().map(TensorName::new).collect::<Result<_, _>>()?;
        Ok(Self { context: None, engine, kernels, input_ids: TensorName::new("input_ids")?, outputs })
    }

    /// The outputs, which are inputs of the decoder.
    pub fn outputs(&self) -> &[TensorName] {
        &self.outputs
    }

    /// Puts a reading on the stream.
    pub fn run(&mut self, (slot, len): (SourceSlot, usize), sources: &DeviceSources) -> Result<(), BackendError> {
        let Some(context) = &mut self.context else {
            return Err(BackendError::Contract("a reading before the encoder was prepared".into()));
        };
        context.set_input_shape(&self.input_ids, &[1, len as i64]).map_err(BackendError::engine)?;
        // SAFETY: a slot has room for the longest source, which the profile ends with, and lives longer than this: a
        // `DeviceBackend` drops its runner first, when the stream has finished. The rest is as `context` says.
        unsafe {
            for (tensor, name) in self.outputs.iter().enumerate() {
                context.set_address(name, DevicePtr(sources.in_slot(slot, tensor))).map_err(BackendError::engine)?;
            }
            context.enqueue(tensorrt::Stream(sources.stream().raw())).map_err(BackendError::engine)
        }
    }

    /// Makes the context, and reads a token, so that kernels are there.
    pub fn prepare(&mut self, sources: &DeviceSources, scratch: &DeviceMemory) -> Result<(), BackendError> {
        let context = self.context(sources, scratch).map_err(BackendError::engine)?;
        self.context = Some(context);
        self.run((SourceSlot(0), 1), sources)?;
        sources.stream().synchronize()?;
        self.kernels.iter_mut().for_each(Kernels::keep);
        Ok(())
    }

    fn context(&self, sources: &DeviceSources, scratch: &DeviceMemory) -> Result<Context, Error> {
        let options = ContextOptions {
            scratch: ScratchMemory::UserManaged,
            cache: self.kernels.as_ref().map(Kernels::cache),
            ..ContextOptions::default()
        };
        let mut context = self.engine.context(&options)?;
        // SAFETY: the stream is of the engine's device and stays as long as the sources, which have room for the
        // longest one; the scratch memory suffices for every context, and contexts that share it run one after the
        // other.
        unsafe {
            context.set_profile(0, tensorrt::Stream(sources.stream().raw()))?;
            context.set_scratch(DevicePtr(scratch.address()), scratch.bytes() as u64);
            context.set_address(&self.input_ids, DevicePtr(sources.ids()))?;
        }
        Ok(context)
    }
}
