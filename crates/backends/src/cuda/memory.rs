//! Device memory, and pinned host memory that the device can read and write.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::CudaError;
use super::stream::Stream;

/// Types that may lie in [`Pinned`] memory: plain data, valid as any bytes.
pub trait Element: Copy + Send + 'static + sealed::Plain {}

mod sealed {
    pub trait Plain {}
}

impl sealed::Plain for u8 {}
impl sealed::Plain for i64 {}
impl sealed::Plain for i32 {}
impl sealed::Plain for f32 {}
impl<T: Copy + Send + 'static + sealed::Plain> Element for T {}

/// Memory of the device, zeroed in the stream's order. Freed when dropped, once the stream's work is done.
pub struct DeviceMemory {
    pub(super) stream: Arc<Stream>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Takes memory.
    ///
    /// # Errors
    /// The driver's; see [`CudaError::is_out_of_memory`].
    pub fn new(stream: &Arc<Stream>, bytes: usize) -> Result<Self, CudaError> {
        stream.device.make_current()?;
        let driver = &stream.device.driver;
        let mut address = 0;
        // A size of zero is refused by the driver.
        let bytes = bytes.max(1);
        // SAFETY: the pointer is valid for one address; the context is current.
        driver.check("cuMemAlloc_v2", unsafe { (driver.functions.cuMemAlloc_v2)(&mut address, bytes) })?;
        let memory = Self { stream: Arc::clone(stream), address, bytes };
        // SAFETY: the memory was just allocated with this size, and its `drop` waits for the stream.
        let code = unsafe { (driver.functions.cuMemsetD8Async)(address, 0, bytes, stream.raw()) };
        driver.check("cuMemsetD8Async", code)?;
        Ok(memory)
    }

    /// Device address of the first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let driver = &self.stream.device.driver;
        let freed = self.stream.device.make_current().and_then(|()| self.stream.synchronize()).and_then(|()| {
            // SAFETY: allocated in `new`, freed once; nothing on the stream uses it any more.
            driver.check("cuMemFree_v2", unsafe { (driver.functions.cuMemFree_v2)(self.address) })
        });
        // After a failure on the device the driver refuses everything; its memory goes with the process.
        if let Err(error) = freed {
            tracing::warn!(%error, bytes = self.bytes, "device memory is not freed");
        }
    }
}

/// Host memory that the device copies from and to on its own, and that therefore can't be touched meanwhile.
pub struct Pinned<T: Element> {
    stream: Arc<Stream>,
    start: NonNull<T>,
    len: usize,
    /// The first of the stream's synchronizations after which the memory is ours again.
    free_at: u64,
}

// SAFETY: the memory is owned, and its elements are plain data.
unsafe impl<T: Element> Send for Pinned<T> {}

impl<T: Element> Pinned<T> {
    /// Takes zeroed memory for so many elements.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(stream: &Arc<Stream>, len: usize) -> Result<Self, CudaError> {
        stream.device.make_current()?;
        let driver = &stream.device.driver;
        let bytes = len.max(1) * size_of::<T>();
        let mut start = std::ptr::null_mut();
        // SAFETY: the pointer is valid for one pointer; the context is current.
        driver.check("cuMemHostAlloc", unsafe { (driver.functions.cuMemHostAlloc)(&mut start, bytes, 0) })?;
        let Some(start) = NonNull::new(start.cast::<T>()) else {
            return Err(CudaError { call: "cuMemHostAlloc", code: 0, name: "a null pointer".into() });
        };
        // SAFETY: just allocated with this size; zero bytes are a valid `T`.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { stream: Arc::clone(stream), start, len, free_at: 0 })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads it. Panics while the device may be writing to it.
    pub fn as_slice(&self) -> &[T] {
        self.assert_ours();
        // SAFETY: `len` initialised elements; the device has no work on them (asserted), and gets it only through `&mut
        // self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Writes it. Panics while the device may be reading it.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.assert_ours();
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives the address to `enqueue`, which puts work on the stream.
    ///
    /// Only a synchronization that begins after that surely waits for the work; one that another thread began before
    /// may end at any time. If `enqueue` panics, the memory stays lent.
    pub(super) fn lend<R>(&mut self, enqueue: impl FnOnce(*mut c_void) -> R) -> R {
        self.free_at = u64::MAX;
        let enqueued = enqueue(self.start.as_ptr().cast());
        self.free_at = self.stream.next_synchronization();
        enqueued
    }

    pub(super) fn is_of(&self, stream: &Stream) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.stream), stream)
    }

    fn assert_ours(&self) {
        let is_ours = self.free_at <= self.stream.synchronised();
        assert!(is_ours, "pinned memory is touched before the stream that uses it was synchronised");
    }
}

impl<T: Element> Drop for Pinned<T> {
    fn drop(&mut self) {
        let driver = &self.stream.device.driver;
        let freed = self.stream.device.make_current().and_then(|()| self.stream.synchronize()).and_then(|()| {
            // SAFETY: allocated in `new`, freed once; nothing on the stream uses it any more.
            driver.check("cuMemFreeHost", unsafe { (driver.functions.cuMemFreeHost)(self.start.as_ptr().cast()) })
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory is not freed");
        }
    }
}
