//! What all engines on a CUDA device share: KV caches, KV pages and encoder outputs in device memory, staging, one
//! stream.
//!
//! A [`Runner`] is one engine: it enqueues one run on the stream, over [`Buffers`] at fixed addresses. A step is one
//! upload, one run, one download of top-k and logsumexp, and one download of logits for each group of neighbouring
//! positions that want them. It is padded to one of the shapes of [`Buckets`], which the engine has prepared. KV copies
//! are only enqueued: the next step follows them on the same stream. Copies of encoder outputs into the lanes are
//! enqueued too.

mod buckets;
mod buffers;
mod copies;
mod kv;
mod sources;

use std::sync::Arc;

pub use self::buckets::{Buckets, MAX_BUCKETS};
pub use self::buffers::{Buffers, Results, Shapes, Sizes};
pub use self::kv::{DeviceKv, KvShape};
pub use self::sources::DeviceSources;
use crate::cuda::{CudaError, Stream};
use crate::readings::attended;
use completion::text::TokenId;
use scheduler::backend::{
    Backend, BackendError, Batch, EngineError, KvCopy, Limits, Outputs, SourceSlot, check_numbers, check_source,
};

impl EngineError for CudaError {}

/// An engine on a device.
pub trait Runner: Send {
    /// Puts one run on the buffers' stream: inputs, keys and values, and results are where `buffers` says.
    ///
    /// # Errors
    /// The engine's. Nothing of the run is on the stream then, or the stream has failed, too.
    fn run(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError>;

    /// Makes everything that steps of these shapes need, so that no request waits for it. The memory is zeroed, and may
    /// be used for runs. The default is for engines that prepare nothing.
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn prepare(&mut self, _buckets: &Buckets, _buffers: &Buffers) -> Result<(), BackendError> {
        Ok(())
    }

    /// Enqueues one run of the encoder: it reads a source of `len` tokens at [`DeviceSources::ids`] and writes a slot.
    /// The default is for engines without an encoder.
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn encode(&mut self, _slot: SourceSlot, _len: usize, _sources: &DeviceSources) -> Result<(), BackendError> {
        Err(BackendError::Contract("an engine that has no encoder, and a source for it".to_owned()))
    }
}

/// A backend around a runner.
pub struct DeviceBackend<R> {
    /// Declared first: an engine goes before the memory that it works on.
    runner: R,
    limits: Limits,
    buffers: Buffers,
    buckets: Buckets,
    /// Positions of each lane that may hold something: padding is written behind them. `[lanes]`
    filled: Vec<usize>,
    /// Whether a step ended early, so that staging memory may still be in use.
    is_unsettled: bool,
}

impl<R: Runner> DeviceBackend<R> {
    /// Puts a runner together with its memory, and prepares it for the shapes of the buckets.
    ///
    /// # Errors
    /// The engine's.
    pub fn new(runner: R, limits: Limits, buffers: Buffers, buckets: Buckets) -> Result<Self, BackendError> {
        let filled = vec![0; limits.lanes];
        let mut backend = Self { runner, limits, buffers, buckets, filled, is_unsettled: false };
        backend.settle()?;
        backend.runner.prepare(&backend.buckets, &backend.buffers)?;
        backend.stream().synchronize()?;
        backend.is_unsettled = false;
        Ok(backend)
    }

    fn stream(&self) -> &Arc<Stream> {
        self.buffers.stream()
    }

    fn step(&mut self, batch: &Batch) -> Result<Results, BackendError> {
        if let Some(sources) = &mut self.buffers.sources {
            sources.load(batch)?;
        }
        let attended = attended(self.buffers.sizes().slots, batch);
        let exact = Shapes::of(batch, self.buffers.width(), attended);
        let shapes = self.buckets.of(exact, |bucket| self.fits(batch, bucket)).unwrap_or(exact);
        for (filled, row) in self.filled.iter_mut().zip(&batch.rows) {
            *filled = row.past_len + row.len;
        }
        self.buffers.upload(batch, shapes, &self.filled)?;
        self.runner.run(shapes, &self.buffers)?;
        let results = self.buffers.download(batch, shapes)?;
        self.stream().synchronize()?;
        Ok(results)
    }

    /// Whether the lanes have room for the padding of these shapes.
    fn fits(&self, batch: &Batch, shapes: Shapes) -> bool {
        let of_rows = batch.rows.iter().map(|row| row.past_len);
        let others = self.filled.iter().copied().take(shapes.rows).skip(batch.rows.len());
        of_rows.chain(others).all(|filled| filled + shapes.longest <= self.limits.context)
    }

    fn read(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), BackendError> {
        let Some(sources) = &mut self.buffers.sources else { return Ok(()) };
        sources.begin(slot, tokens)?;
        self.runner.encode(slot, tokens.len(), sources)?;
        self.stream().synchronize()?;
        if let Some(sources) = &mut self.buffers.sources {
            sources.finish(slot, tokens.len());
        }
        Ok(())
    }

    /// Prepares for work that uses staging memory: makes the device current and waits for queued copies.
    fn settle(&mut self) -> Result<(), BackendError> {
        self.stream().device().make_current()?;
        if self.is_unsettled {
            self.stream().synchronize()?;
        }
        self.is_unsettled = true;
        Ok(())
    }
}

impl<R: Runner> Backend for DeviceBackend<R> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn forward(&mut self, batch: &Batch, out: &mut Outputs) -> Result<(), BackendError> {
        batch.check(&self.limits)?;
        out.clear();
        self.settle()?;
        let results = self.step(batch)?;
        self.is_unsettled = false;
        self.buffers.read(batch, results, out);
        check_numbers(out)
    }

    fn copy_kv(&mut self, copies: &[KvCopy]) -> Result<(), BackendError> {
        self.stream().device().make_current()?;
        for copy in copies {
            if let KvCopy::Load { lane, position, .. } = copy
                && let Some(filled) = self.filled.get_mut(lane.0)
            {
                *filled = (*filled).max(position + 1);
            }
        }
        self.buffers.kv.copy(copies)
    }

    fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), BackendError> {
        check_source(slot, tokens, &self.limits)?;
        self.settle()?;
        self.read(slot, tokens)?;
        self.is_unsettled = false;
        Ok(())
    }
}

impl<R> Drop for DeviceBackend<R> {
    fn drop(&mut self) {
        let stream = self.buffers.stream();
        // Contexts and graphs must not go while their work runs.
        if let Err(error) = stream.device().make_current().and_then(|()| stream.synchronize()) {
            tracing::warn!(%error, "the device's work is not finished cleanly");
        }
    }
}
