//! The decoder's execution contexts, and the code that gives TensorRT addresses and streams. The encoder's is in
//! `encoder`.
//!
//! Prefill has one context, whose shapes change from run to run. Decoding has one context for each number of rows, and
//! for each width of the sources in an encoder-decoder. Only the contents of a decode context's memory change, so it
//! replays a captured CUDA graph from its second run on. An engine that can't be captured is enqueued run by run, which
//! is slower and gives the same results. All contexts share their scratch memory, because they run one after the other
//! on one stream.

use std::collections::BTreeMap;

use engine_build::plan::{DECODE_PROFILE, PREFILL_PROFILE};
use tensorrt::{Context, ContextOptions, DevicePtr, Engine, Error, ScratchMemory, Specialization, TensorName};

use super::encoder::EncoderRunner;
use crate::cuda::{CudaError, DeviceMemory, Graph};
use crate::device::{Buffers, DeviceSources, Runner, Shapes};
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
}

impl Names {
    fn new(layers: usize) -> Result<Self, Error> {
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
        })
    }
}

/// A context, and the shapes that it is set to.
struct Prepared {
    /// Before the context: a captured run uses what belongs to it.
    graph: Option<Graph>,
    context: Context,
    shapes: Option<Shapes>,
    /// Number of runs so far.
    runs: u64,
}

/// TensorRT's part of a step.
pub struct TensorRtRunner {
    /// The runs that are prepared for decoding, by their rows and the width of their sources.
    decode: BTreeMap<(usize, usize), Prepared>,
    prefill: Option<Prepared>,
    engine: Engine,
    names: Names,
    /// The encoder's part, in models that read sources.
    encoder: Option<EncoderRunner>,
    scratch: DeviceMemory,
    /// Whether runs are captured; ends when one can't be.
    captures: bool,
}

impl TensorRtRunner {
    /// A runner of an engine that was checked to have the graph's inputs and outputs.
    pub fn new(
        (engine, encoder): (Engine, Option<EncoderRunner>),
        layers: usize,
        scratch: DeviceMemory,
        captures: bool,
    ) -> Result<Self, Error> {
        let names = Names::new(layers)?;
        Ok(Self { decode: BTreeMap::new(), prefill: None, engine, names, encoder, scratch, captures })
    }

    /// A context in a profile, with every address that stays.
    fn prepare(&self, profile: usize, buffers: &Buffers) -> Result<Prepared, BackendError> {
        let is_rtx = self.engine.library().flavour() == tensorrt::Flavour::Rtx;
        let options = ContextOptions {
            scratch: ScratchMemory::UserManaged,
            // A capture needs the final kernels; lengths of prefill are too many to compile for each.
            specialization: (is_rtx && profile == DECODE_PROFILE).then_some(Specialization::Eager),
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
        Ok(Prepared { graph: None, context, shapes: None, runs: 0 })
    }

    /// Sets a context to the shapes of a run.
    fn set_shapes(
        (names, cross): (&Names, &[TensorName]),
        prepared: &mut Prepared,
        shapes: Shapes,
        buffers: &Buffers,
    ) -> Result<(), Error> {
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
        if !cross.is_empty() {
            context.set_input_shape(&names.source_len, &[b])?;
        }
        let source = [b, kv.heads as i64, shapes.width as i64, kv.head_dim as i64];
        for name in cross {
            context.set_input_shape(name, &source)?;
        }
        for (name, address) in names.results.iter().zip(buffers.results(shapes)) {
            // SAFETY: as in `prepare`.
            unsafe { context.set_address(name, DevicePtr(address)) }?;
        }
        prepared.shapes = Some(shapes);
        Ok(())
    }

    fn enqueue(context: &mut Context, buffers: &Buffers) -> Result<(), BackendError> {
        // SAFETY: stream and memory are as `prepare` says, and stay until the work is done.
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
            .inspect_err(|error| tracing::warn!(%error, "decoding runs without CUDA graphs: a run can't be captured"))
            .ok()
    }

    fn run_decode(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError> {
        let key = (shapes.rows, shapes.width);
        if !self.decode.contains_key(&key) {
            let prepared = self.prepare(DECODE_PROFILE, buffers)?;
            self.decode.insert(key, prepared);
        }
        let Some(prepared) = self.decode.get_mut(&key) else { return Ok(()) };
        let cross = self.encoder.as_ref().map_or(&[][..], EncoderRunner::outputs);
        Self::set_shapes((&self.names, cross), prepared, shapes, buffers).map_err(BackendError::engine)?;
        // TensorRT does work at the first run with new shapes that can't be captured.
        if self.captures && prepared.graph.is_none() && prepared.runs > 0 {
            prepared.graph = Self::capture(&mut prepared.context, buffers);
            self.captures = prepared.graph.is_some();
        }
        prepared.runs += 1;
        match &mut prepared.graph {
            // SAFETY: what was captured is a run of this context, which is there, over memory as `prepare` says.
            Some(graph) => unsafe { graph.launch() }.map_err(|error: CudaError| error.into()),
            None => Self::enqueue(&mut prepared.context, buffers),
        }
    }
}

impl Runner for TensorRtRunner {
    fn run(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError> {
        if shapes.is_decode() {
            return self.run_decode(shapes, buffers);
        }
        if self.prefill.is_none() {
            self.prefill = Some(self.prepare(PREFILL_PROFILE, buffers)?);
        }
        let Some(prepared) = &mut self.prefill else { return Ok(()) };
        let cross = self.encoder.as_ref().map_or(&[][..], EncoderRunner::outputs);
        Self::set_shapes((&self.names, cross), prepared, shapes, buffers).map_err(BackendError::engine)?;
        Self::enqueue(&mut prepared.context, buffers)
    }

    fn encode(&mut self, slot: SourceSlot, len: usize, sources: &DeviceSources) -> Result<(), BackendError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.run((slot, len), sources, &self.scratch)
    }
}
