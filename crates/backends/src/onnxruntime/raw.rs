//! The fenced part: KV memory that graph inputs and outputs alias, and I/O bindings over it.
//!
//! `ort`'s own `IoBinding` copies borrowed tensors on `bind_input` (and deadlocks doing it in 2.0.0-rc.15), and can't
//! bind one buffer as input and output. An in-place KV cache needs exactly that, so this module binds through ONNX
//! Runtime's C API. Nothing outside of it is `unsafe`; every public function checks its arguments against the sizes
//! that the object was made with.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use ort::AsPointer;
use ort::session::Session;
use ort::sys;

/// Vector loads of the kernels are at their best on cache lines.
const ALIGNMENT: usize = 64;

/// Zeroed memory at a fixed address, as long as it lives: what tensors are laid over.
///
/// Zeroed because a NaN in a masked KV slot would make the output NaN. Pages of the KV pool that were never used take
/// no physical memory, because the allocator gets large zeroed blocks untouched from the operating system. It does so
/// only at its own alignment: the block is therefore [`ALIGNMENT`] bytes larger, and begins at the first aligned
/// address.
pub struct Memory<T: Element> {
    allocation: NonNull<u8>,
    start: NonNull<T>,
    len: usize,
}

/// Types that ONNX Runtime can see in [`Memory`], all of them valid as zero bytes.
pub trait Element: Copy + Send {
    /// ONNX Runtime's name for it.
    const TYPE: sys::ONNXTensorElementDataType;
}

impl Element for f32 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

/// f16 by its bits: the KV cache is only copied here, never computed with.
impl Element for u16 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
}

impl Element for i64 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
}

// SAFETY: the memory is owned, and `T: Element` is plain data.
unsafe impl<T: Element> Send for Memory<T> {}

impl<T: Element> Memory<T> {
    fn layout(len: usize) -> Layout {
        let array = Layout::array::<T>(len).map(|array| array.size() + ALIGNMENT);
        #[expect(clippy::expect_used, reason = "only sizes near isize::MAX fail, which no machine holds")]
        array
            .and_then(|size| Layout::from_size_align(size, align_of::<T>()))
            .expect("a size that fits the address space")
    }

    /// Allocates `len` elements that are all zero.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout's size is at least `ALIGNMENT`, not zero.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let offset = allocation.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: the offset is below `ALIGNMENT`, by which the allocation is larger than `len` elements; `ALIGNMENT`
        // is a multiple of every element's alignment.
        let start = unsafe { allocation.add(offset) }.cast::<T>();
        Self { allocation, start, len }
    }

    /// Reads the elements. No engine runs meanwhile: running needs the `&mut` of [`Binding::run`]'s owner.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements were allocated and zeroed, all bit patterns of `T` are valid, and ONNX Runtime writes
        // to them only inside `Binding::run`, which borrows the owner of both mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Writes the elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// A tensor over the first elements. It must not outlive the memory: [`Binding`]s are dropped first by their owner.
    fn tensor(&self, shape: &[i64]) -> Result<Tensor, ort::Error> {
        let elements = shape.iter().product::<i64>();
        assert!(usize::try_from(elements).is_ok_and(|n| n <= self.len), "{shape:?} in memory for {}", self.len);
        let info = MemoryInfo::cpu()?;
        let mut value = ptr::null_mut();
        // SAFETY: the address is valid for `elements` elements of the stated type (asserted above); shape and info are
        // read during the call only.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                info.0.as_ptr(),
                self.start.as_ptr().cast::<c_void>(),
                elements as usize * size_of::<T>(),
                shape.as_ptr(),
                shape.len(),
                T::TYPE,
                &mut value,
            )
        })?;
        NonNull::new(value).map(Tensor).ok_or_else(|| ort::Error::new("CreateTensorWithDataAsOrtValue returned null"))
    }
}

impl<T: Element> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.allocation.as_ptr(), Self::layout(self.len)) }
    }
}

/// An owned `OrtMemoryInfo`.
struct MemoryInfo(NonNull<sys::OrtMemoryInfo>);

impl MemoryInfo {
    fn cpu() -> Result<Self, ort::Error> {
        let mut info = ptr::null_mut();
        // SAFETY: `info` is a valid place for the result.
        check(unsafe {
            (ort::api().CreateCpuMemoryInfo)(
                sys::OrtAllocatorType::OrtDeviceAllocator,
                sys::OrtMemType::OrtMemTypeDefault,
                &mut info,
            )
        })?;
        NonNull::new(info).map(Self).ok_or_else(|| ort::Error::new("CreateCpuMemoryInfo returned null"))
    }
}

impl Drop for MemoryInfo {
    fn drop(&mut self) {
        // SAFETY: created by `cpu`, released once.
        unsafe { (ort::api().ReleaseMemoryInfo)(self.0.as_ptr()) }
    }
}

/// An owned `OrtValue` over [`Memory`]. A binding holds its own reference to the tensor, so this lives only while
/// binding.
struct Tensor(NonNull<sys::OrtValue>);

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: created by `Memory::tensor`, released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) }
    }
}

/// All inputs and outputs of a graph for one combination of shapes, laid over [`Memory`].
///
/// Made once per combination and run many times: a step creates no tensor and copies none.
pub struct Binding {
    binding: NonNull<sys::OrtIoBinding>,
    /// `OrtIoBinding` belongs to one thread at a time; it is moved, never shared.
    _not_sync: PhantomData<*mut ()>,
}

// SAFETY: ONNX Runtime ties an OrtIoBinding to no thread; without `Sync` it is used by one at a time.
unsafe impl Send for Binding {}

impl Binding {
    /// An empty binding for a session.
    pub fn new(session: &Session) -> Result<Self, ort::Error> {
        let mut binding = ptr::null_mut();
        // SAFETY: the session is alive; the call takes `*mut` but only reads it.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut binding) })?;
        let binding = NonNull::new(binding).ok_or_else(|| ort::Error::new("CreateIoBinding returned null"))?;
        Ok(Self { binding, _not_sync: PhantomData })
    }

    /// Binds an input to the first elements of `memory`.
    ///
    /// The caller keeps `memory` alive and in place as long as the binding.
    pub fn input<T: Element>(&mut self, name: &CStr, memory: &Memory<T>, shape: &[i64]) -> Result<(), ort::Error> {
        let tensor = memory.tensor(shape)?;
        // SAFETY: binding, name and value are valid during the call; the binding takes its own reference to the value.
        check(unsafe { (ort::api().BindInput)(self.binding.as_ptr(), name.as_ptr(), tensor.0.as_ptr()) })
    }

    /// Binds an output to the first elements of `memory`, as [`Binding::input`]. The same memory may be bound to both.
    pub fn output<T: Element>(&mut self, name: &CStr, memory: &Memory<T>, shape: &[i64]) -> Result<(), ort::Error> {
        let tensor = memory.tensor(shape)?;
        // SAFETY: as in `input`.
        check(unsafe { (ort::api().BindOutput)(self.binding.as_ptr(), name.as_ptr(), tensor.0.as_ptr()) })
    }

    /// Runs the graph on the bound memory.
    pub fn run(&mut self, session: &mut Session) -> Result<(), ort::Error> {
        // SAFETY: session and binding are alive and belong together; `&mut` on both keeps this the only run; null run
        // options are allowed.
        check(unsafe { (ort::api().RunWithBinding)(session.ptr_mut(), ptr::null(), self.binding.as_ptr()) })
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.binding.as_ptr()) }
    }
}

/// A graph name as a C string.
pub fn c_name(name: String) -> CString {
    #[expect(clippy::expect_used, reason = "names are built from letters, digits and underscores")]
    CString::new(name).expect("a name without NUL")
}

/// Takes ownership of a status and makes it a result.
pub(super) fn check(status: sys::OrtStatusPtr) -> Result<(), ort::Error> {
    // SAFETY: every status comes straight from a call of the C API and is used nowhere else.
    unsafe { ort::Error::result_from_status(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        let mut memory = Memory::<f32>::zeroed(1000);
        assert!(memory.as_slice().iter().all(|&x| x == 0.0));
        assert_eq!(memory.as_slice().as_ptr() as usize % ALIGNMENT, 0);
        memory.as_mut_slice()[999] = 1.0;
        assert_eq!(memory.as_slice()[999], 1.0);
        assert_eq!(Memory::<i64>::zeroed(0).as_slice().len(), 0);
    }
}
