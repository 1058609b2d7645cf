//! The decoder's execution contexts, and the code that gives TensorRT addresses and streams. The encoder's is in
//! `encoder`.
//!
//! Each bucket of shapes has a context and a CUDA graph, made before the first request: one plain run, which compiles
//! and chooses kernels, then a capture. Only the contents of a context's memory change from run to run. Steps that no
//! bucket holds have one context, whose shapes change; it is enqueued kernel by kernel. So are engines that can't be
//! captured, which is slower and gives the same results. All contexts share their scratch memory, because they run one
//! after the other on one stream.

use std::sync::Arc;
use std::time::Instant;

use engine_build::plan::{DECODE_PROFILE, PREFILL_PROFILE};
use rustc_hash::FxHashMap;
use tensorrt::{Context, ContextOptions, DevicePtr, Engine, Error, ScratchMemory, Specialization, TensorName};

use super::LoadError;
use super::encoder::EncoderRunner;
use super::kernels::Kernels;
use super::tensors::has_slots;
use crate::cuda::{CudaError, DeviceMemory, Graph, Stream};
use crate::device::{Buckets, Buffers, DeviceSources, Runner, Shapes};
use crate::readings::SLOTS;
use scheduler::backend::{BackendError, SourceSlot};

/// Names of the graph's inputs and outputs.
struct Names {
    input_ids: TensorName,
    past_len: TensorName,
    select: TensorName,
    logits: TensorName,
    /// `topi`, `topv`, `lse`
    results: [TensorName; 3],
    /// Past and present of k0, v0, k1, v1, ...
    kv: Vec<(TensorName, TensorName)>,
    /// `source_len`
    source_len: TensorName,
    /// `slots`, in engines that are told how much attention reads.
    slots: Option<TensorName>,
}

impl Names {
    fn new(layers: usize, has_slots: bool) -> Result<Self, Error> {
        let pair = |i: usize, kv: char| {
            Ok((TensorName::new(format!("past_{kv}_{i}"))?, TensorName::new(format!("present_{kv}_{i}"))?))
        };
        let kv: Result<_, Error> = (0..layers).flat_map(|i| [pair(i, 'k'), pair(i, 'v')]).collect();
        Ok(Self {
            input_ids: TensorName::new("input_ids")?,
            past_len: TensorName::new("past_len")?,
            select: TensorName::new("select")?,
            logits: TensorName::new("logits")?,
            results: [TensorName::new("topi")?, TensorName::new("topv")?, TensorName::new("lse")?],
            kv: kv?,
            source_len: TensorName::new("source_len")?,
            slots: has_slots.then(|| TensorName::new(SLOTS)).transpose()?,
        })
    }
}

/// A context, and the shapes that it is set to.
struct Prepared {
    /// Before the context: a captured run uses what belongs to it.
    graph: Option<Graph>,
    context: Context,
    shapes: Option<Shapes>,
}

/// Memory of the device that a context takes for itself, measured on one.
pub(super) fn context_bytes(engine: &Engine, stream: &Arc<Stream>) -> Result<usize, LoadError> {
    let free = || stream.device().memory().map(|memory| memory.free);
    let before = free()?;
    let options = ContextOptions { scratch: ScratchMemory::UserManaged, ..ContextOptions::default() };
    let mut context = engine.context(&options)?;
    // SAFETY: the stream is of the engine's device, and outlives the context.
    unsafe { context.set_profile(PREFILL_PROFILE, tensorrt::Stream(stream.raw())) }?;
    stream.synchronize()?;
    Ok(before.saturating_sub(free()?))
}

/// TensorRT's part of a step.
pub struct TensorRtRunner {
    /// Contexts that are prepared, each for one bucket.
    prepared: FxHashMap<Shapes, Prepared>,
    /// The context of other steps.
    other: Option<Prepared>,
    engine: Engine,
    names: Names,
    /// The encoder's part, in models that read sources.
    encoder: Option<EncoderRunner>,
    scratch: DeviceMemory,
    /// TensorRT-RTX's compiled kernels.
    kernels: Option<Kernels>,
    /// Whether runs are captured; ends when one can't be.
    captures: bool,
}

impl TensorRtRunner {
    /// A runner of an engine that was checked to have the graph's inputs and outputs.
    pub fn new(
        (engine, kernels, encoder): (Engine, Option<Kernels>, Option<EncoderRunner>),
        layers: usize,
        scratch: DeviceMemory,
        captures: bool,
    ) -> Result<Self, Error> {
        let names = Names::new(layers, has_slots(&engine))?;
        let (prepared, other) = (FxHashMap::default(), None);
        Ok(Self { prepared, other, engine, names, encoder, scratch, kernels, captures })
    }

    /// A context in a profile, with every address that stays.
    fn context(
        &self,
        profile: usize,
        specialization: Specialization,
        buffers: &Buffers,
    ) -> Result<Prepared, BackendError> {
        let is_rtx = self.engine.library().flavour() == tensorrt::Flavour::Rtx;
        let options = ContextOptions {
            scratch: ScratchMemory::UserManaged,
            specialization: is_rtx.then_some(specialization),
            cache: self.kernels.as_ref().map(Kernels::cache),
            ..ContextOptions::default()
        };
        let mut context = self.engine.context(&options).map_err(BackendError::engine)?;
        let names = &self.names;
        let inputs = [
            (&names.input_ids, buffers.input_ids()),
            (&names.past_len, buffers.past_len()),
            (&names.select, buffers.select()),
            (&names.logits, buffers.logits()),
        ];
        // SAFETY: the stream is of the engine's device and stays as long as the buffers. They and the scratch memory
        // are the size of the profiles' largest shapes, and live longer than the contexts: a `DeviceBackend` drops its
        // runner first, when the stream has finished, and the runner drops its contexts before its scratch memory. Past
        // and present are at one address. Contexts share scratch memory and run one after the other.
        unsafe {
            context.set_profile(profile, tensorrt::Stream(buffers.stream().raw())).map_err(BackendError::engine)?;
            context.set_scratch(DevicePtr(self.scratch.address()), self.scratch.bytes() as u64);
            for (name, address) in inputs {
                context.set_address(name, DevicePtr(address)).map_err(BackendError::engine)?;
            }
            if let Some(name) = &names.slots {
                context.set_address(name, DevicePtr(buffers.slots())).map_err(BackendError::engine)?;
            }
            for (tensor, (past, present)) in names.kv.iter().enumerate() {
                let address = DevicePtr(buffers.kv.address(tensor));
                context.set_address(past, address).map_err(BackendError::engine)?;
                context.set_address(present, address).map_err(BackendError::engine)?;
            }
            if let Some((encoder, sources)) = self.encoder.as_ref().zip(buffers.sources.as_ref()) {
                context
                    .set_address(&names.source_len, DevicePtr(buffers.source_len()))
                    .map_err(BackendError::engine)?;
                for (tensor, name) in encoder.outputs().iter().enumerate() {
                    context.set_address(name, DevicePtr(sources.in_lanes(tensor))).map_err(BackendError::engine)?;
                }
            }
        }
        Ok(Prepared { graph: None, context, shapes: None })
    }

    /// Sets a context to the shapes of a run.
    fn set_shapes(&self, prepared: &mut Prepared, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError> {
        self.set(prepared, shapes, buffers).map_err(BackendError::engine)
    }

    fn set(&self, prepared: &mut Prepared, shapes: Shapes, buffers: &Buffers) -> Result<(), Error> {
        let (names, cross) = (&self.names, self.encoder.as_ref().map_or(&[][..], EncoderRunner::outputs));
        if prepared.shapes == Some(shapes) {
            return Ok(());
        }
        prepared.shapes = None;
        let (b, s, r) = (shapes.rows as i64, shapes.longest as i64, shapes.selected as i64);
        let kv = buffers.kv.shape();
        let cache = [b, kv.heads as i64, kv.context as i64, kv.head_dim as i64];
        let context = &mut prepared.context;
        context.set_input_shape(&names.input_ids, &[b, s])?;
        context.set_input_shape(&names.past_len, &[b])?;
        context.set_input_shape(&names.select, &[r])?;
        for (past, _) in &names.kv {
            context.set_input_shape(past, &cache)?;
        }
        if let Some(name) = &names.slots {
            context.set_input_shape(name, &[shapes.attended as i64])?;
        }
        if !cross.is_empty() {
            context.set_input_shape(&names.source_len, &[b])?;
        }
        let source = [b, kv.heads as i64, shapes.width as i64, kv.head_dim as i64];
        for name in cross {
            context.set_input_shape(name, &source)?;
        }
        for (name, address) in names.results.iter().zip(buffers.results(shapes)) {
            // SAFETY: as in `context`.
            unsafe { context.set_address(name, DevicePtr(address)) }?;
        }
        prepared.shapes = Some(shapes);
        Ok(())
    }

    fn enqueue(context: &mut Context, buffers: &Buffers) -> Result<(), BackendError> {
        // SAFETY: stream and memory are as `context` says, and stay until the work is done.
        unsafe { context.enqueue(tensorrt::Stream(buffers.stream().raw())) }.map_err(BackendError::engine)
    }

    /// Captures a run that was done before with the same shapes. `None` where that isn't possible.
    fn capture(context: &mut Context, buffers: &Buffers) -> Option<Graph> {
        let stream = buffers.stream();
        // SAFETY: the stream is of the engine's device.
        let is_capturable = unsafe { context.is_capturable(tensorrt::Stream(stream.raw())) };
        let captured = match is_capturable {
            Some(false) => Err(BackendError::Engine("TensorRT says that it can't be".into())),
            Some(true) | None => stream.capture(|| Self::enqueue(context, buffers)),
        };
        captured
            .inspect_err(|error| tracing::warn!(%error, "steps run without CUDA graphs: a run can't be captured"))
            .ok()
    }

    /// A context for one bucket, after a run in which TensorRT does what can't be captured, and its graph.
    fn bucket(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<Prepared, BackendError> {
        let profile = if shapes.is_decode() { DECODE_PROFILE } else { PREFILL_PROFILE };
        // A capture needs the final kernels.
        let mut prepared = self.context(profile, Specialization::Eager, buffers)?;
        self.set_shapes(&mut prepared, shapes, buffers)?;
        Self::enqueue(&mut prepared.context, buffers)?;
        buffers.stream().synchronize()?;
        if self.captures {
            prepared.graph = Self::capture(&mut prepared.context, buffers);
            self.captures = prepared.graph.is_some();
        }
        Ok(prepared)
    }
}

impl Runner for TensorRtRunner {
    fn prepare(&mut self, buckets: &Buckets, buffers: &Buffers) -> Result<(), BackendError> {
        let started = Instant::now();
        if let Some((encoder, sources)) = self.encoder.as_mut().zip(buffers.sources.as_ref()) {
            encoder.prepare(sources, &self.scratch)?;
        }
        // Its shapes are too many to compile for each.
        self.other = Some(self.context(PREFILL_PROFILE, Specialization::None, buffers)?);
        for &shapes in buckets.all() {
            let prepared = self.bucket(shapes, buffers)?;
            self.prepared.insert(shapes, prepared);
        }
        self.kernels.iter_mut().for_each(Kernels::keep);
        let elapsed_ms = started.elapsed().as_millis() as u64;
        tracing::info!(contexts = self.prepared.len() + 1, graphs = self.captures, elapsed_ms, "prepared");
        Ok(())
    }

    fn run(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError> {
        match self.prepared.get_mut(&shapes) {
            Some(Prepared { graph: Some(graph), .. }) => {
                // SAFETY: what was captured is a run of this context, which is there, over memory as `context` says.
                unsafe { graph.launch() }.map_err(|error: CudaError| error.into())
            }
            Some(prepared) => Self::enqueue(&mut prepared.context, buffers),
            None => {
                let Some(mut other) = self.other.take() else {
                    return Err(BackendError::Contract("a run before the engine was prepared".into()));
                };
                let set = self.set_shapes(&mut other, shapes, buffers);
                let done = set.and_then(|()| Self::enqueue(&mut other.context, buffers));
                self.other = Some(other);
                done
            }
        }
    }

    fn encode(&mut self, slot: SourceSlot, len: usize, sources: &DeviceSources) -> Result<(), BackendError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.run((slot, len), sources)
    }
}
