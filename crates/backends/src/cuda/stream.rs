//! A CUDA stream, and CUDA graphs captured from its work.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Device;
use super::driver::{Copy3d, Copy3dSide, CudaError};
use super::memory::{DeviceMemory, Element, Pinned};

/// Not ordered with the legacy default stream, which libraries may use.
const NON_BLOCKING: u32 = 1;
/// Calls of other threads don't spoil a capture: replicas share a process.
const CAPTURE_THREAD_LOCAL: i32 = 1;
const MEMORY_TYPE_HOST: u32 = 1;
const MEMORY_TYPE_DEVICE: u32 = 2;

/// Work on a device, done in the order in which it was given, at some time before [`Stream::synchronize`] returns.
pub struct Stream {
    pub(super) device: Arc<Device>,
    raw: *mut c_void,
    /// Synchronizations that have begun: each is numbered, from 1.
    begun: AtomicU64,
    /// The last of them that has ended.
    ended: AtomicU64,
}

// SAFETY: the driver's streams may be used from any thread in which their context is current, by several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Rows of bytes in slices: one side of a [`Stream::copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset of the first byte from the start of the memory.
    pub offset: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Rows from one slice to the next.
    pub rows: usize,
}

/// Size of the block that a [`Stream::copy`] copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of a row.
    pub width: usize,
    /// Rows of a slice.
    pub height: usize,
    /// Number of slices.
    pub depth: usize,
}

impl Region {
    /// The byte behind the last one.
    fn end(&self, extent: Extent) -> usize {
        self.offset + ((extent.depth - 1) * self.rows + extent.height - 1) * self.pitch + extent.width
    }

    fn side(&self, memory_type: u32, host: *mut c_void, device: u64) -> Copy3dSide {
        Copy3dSide {
            x_bytes: 0,
            y: 0,
            z: 0,
            lod: 0,
            memory_type,
            host,
            device,
            array: std::ptr::null_mut(),
            reserved: std::ptr::null_mut(),
            pitch: self.pitch,
            height: self.rows,
        }
    }

    fn on_device(&self, memory: &DeviceMemory) -> Copy3dSide {
        self.side(MEMORY_TYPE_DEVICE, std::ptr::null_mut(), memory.address() + self.offset as u64)
    }
}

impl Device {
    /// A new stream on it.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(self: &Arc<Self>) -> Result<Arc<Stream>, CudaError> {
        Stream::new(Arc::clone(self)).map(Arc::new)
    }
}

impl Stream {
    pub(super) fn new(device: Arc<Device>) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for one pointer; the context is current. Destroyed once, in `drop`.
        let code = unsafe { (device.driver.functions.cuStreamCreate)(&mut raw, NON_BLOCKING) };
        device.driver.check("cuStreamCreate", code)?;
        Ok(Self { device, raw, begun: AtomicU64::new(0), ended: AtomicU64::new(0) })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's `CUstream`, which is also the runtime's `cudaStream_t`, for libraries that put work on it.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// The number of the next synchronization, the first that waits for all that is on the stream now.
    pub(super) fn next_synchronization(&self) -> u64 {
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// The latest synchronization that has ended. What was put on the stream before it began is done.
    pub(super) fn synchronised(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// The driver's, and that of any work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // SAFETY: the stream is alive.
        self.check("cuStreamSynchronize", unsafe { (self.functions().cuStreamSynchronize)(self.raw) })?;
        self.ended.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Copies the first elements of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// The driver's.
    pub fn upload<T: Element>(
        &self,
        to: &DeviceMemory,
        from: &mut Pinned<T>,
        elements: usize,
    ) -> Result<(), CudaError> {
        let bytes = elements * size_of::<T>();
        assert!(elements <= from.len() && bytes <= to.bytes() && from.is_of(self), "an upload beyond its memory");
        // SAFETY: both sides have so many bytes (asserted); neither is freed, nor the source written, before the stream
        // has been synchronised: `drop` and `lend` see to that.
        let code = from
            .lend(|source| unsafe { (self.functions().cuMemcpyHtoDAsync_v2)(to.address(), source, bytes, self.raw) });
        self.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Copies `elements` elements from byte `offset` of `from` to element `start` of `to`.
    ///
    /// # Errors
    /// The driver's.
    pub fn download<T: Element>(
        &self,
        to: &mut Pinned<T>,
        start: usize,
        (from, offset): (&DeviceMemory, usize),
        elements: usize,
    ) -> Result<(), CudaError> {
        let bytes = elements * size_of::<T>();
        let is_inside = start + elements <= to.len() && offset + bytes <= from.bytes() && to.is_of(self);
        assert!(is_inside, "a download beyond its memory");
        // SAFETY: as in `upload`, the other way round; the target's offset is inside (asserted).
        let code = to.lend(|target| unsafe {
            let target = target.cast::<T>().add(start);
            (self.functions().cuMemcpyDtoHAsync_v2)(target.cast(), from.address() + offset as u64, bytes, self.raw)
        });
        self.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Copies rows of elements in one copy. In `to` they lie side by side, from element `start` on. The width of
    /// `extent` is a multiple of an element's size.
    ///
    /// # Errors
    /// The driver's.
    pub fn download_rows<T: Element>(
        &self,
        to: &mut Pinned<T>,
        start: usize,
        (from, source): (&DeviceMemory, Region),
        extent: Extent,
    ) -> Result<(), CudaError> {
        let Extent { width, height, depth } = extent;
        assert!(width > 0 && height > 0 && depth > 0 && width.is_multiple_of(size_of::<T>()), "a copy of no elements");
        let elements = width / size_of::<T>() * height * depth;
        let is_inside = start + elements <= to.len() && source.end(extent) <= from.bytes() && to.is_of(self);
        assert!(is_inside, "a download beyond its memory");
        let packed = Region { offset: 0, pitch: width, rows: height };
        // SAFETY: as in `download`; the description is read during the call.
        let code = to.lend(|target| unsafe {
            let target = packed.side(MEMORY_TYPE_HOST, target.cast::<T>().add(start).cast(), 0);
            let copy = Copy3d { source: source.on_device(from), target, width_bytes: width, height, depth };
            (self.functions().cuMemcpy3DAsync_v2)(&copy, self.raw)
        });
        self.check("cuMemcpy3DAsync_v2", code)
    }

    /// Copies between two memories of the device, which may not overlap.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy(
        &self,
        (to, target): (&DeviceMemory, Region),
        (from, source): (&DeviceMemory, Region),
        extent: Extent,
    ) -> Result<(), CudaError> {
        let Extent { width, height, depth } = extent;
        assert!(width > 0 && height > 0 && depth > 0, "an empty copy");
        assert!(target.end(extent) <= to.bytes() && source.end(extent) <= from.bytes(), "a copy beyond its memory");
        let copy =
            Copy3d { source: source.on_device(from), target: target.on_device(to), width_bytes: width, height, depth };
        // SAFETY: both sides lie inside live memory (asserted), which is not freed before the stream has been
        // synchronised; the description is read during the call.
        self.check("cuMemcpy3DAsync_v2", unsafe { (self.functions().cuMemcpy3DAsync_v2)(&copy, self.raw) })
    }

    /// Records what `enqueue` puts on the stream, instead of doing it. The result of `enqueue` comes first, so that its
    /// reason isn't lost behind the capture's.
    ///
    /// # Errors
    /// The driver's, or `enqueue`'s. The stream works as before then, and nothing was done.
    pub fn capture<E: From<CudaError>>(self: &Arc<Self>, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        // SAFETY: the stream is alive and not being captured: captures begin and end in this function.
        self.check("cuStreamBeginCapture_v2", unsafe {
            (self.functions().cuStreamBeginCapture_v2)(self.raw, CAPTURE_THREAD_LOCAL)
        })?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the pointer is valid for one pointer.
        let ended =
            self.check("cuStreamEndCapture", unsafe { (self.functions().cuStreamEndCapture)(self.raw, &mut graph) });
        let made = enqueued.and(ended.map_err(E::from)).and_then(|()| Ok(self.instantiate(graph)?));
        if !graph.is_null() {
            // SAFETY: made by the capture, destroyed once; the executable graph is independent of it.
            let _ = unsafe { (self.functions().cuGraphDestroy)(graph) };
        }
        made
    }

    fn instantiate(self: &Arc<Self>, graph: *mut c_void) -> Result<Graph, CudaError> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is alive, and the pointer is valid for one pointer. Destroyed once, by `Graph`.
        self.check("cuGraphInstantiateWithFlags", unsafe {
            (self.functions().cuGraphInstantiateWithFlags)(&mut executable, graph, 0)
        })?;
        Ok(Graph { stream: Arc::clone(self), executable })
    }

    fn functions(&self) -> &super::driver::Functions {
        &self.device.driver.functions
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        self.device.driver.check(call, code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let destroyed = self.device.make_current().and_then(|()| {
            // SAFETY: made in `new`, destroyed once; everything that used it held it.
            self.check("cuStreamDestroy_v2", unsafe { (self.functions().cuStreamDestroy_v2)(self.raw) })
        });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "a stream is not destroyed cleanly");
        }
    }
}

/// Captured work, ready to be done again.
pub struct Graph {
    stream: Arc<Stream>,
    executable: *mut c_void,
}

// SAFETY: an executable graph belongs to no thread; without `Sync` it is used by one at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Puts the work on the stream that it was captured from.
    ///
    /// # Safety
    /// Everything that the captured work uses is there, at its addresses, until the stream is synchronised.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn launch(&mut self) -> Result<(), CudaError> {
        // SAFETY: both are alive; the caller vouches for the work.
        self.stream.check("cuGraphLaunch", unsafe {
            (self.stream.functions().cuGraphLaunch)(self.executable, self.stream.raw)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroyed = self.stream.device.make_current().and_then(|()| {
            // SAFETY: made by `capture`, destroyed once; the driver lets launches finish first.
            self.stream
                .check("cuGraphExecDestroy", unsafe { (self.stream.functions().cuGraphExecDestroy)(self.executable) })
        });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "a captured graph is not destroyed cleanly");
        }
    }
}
