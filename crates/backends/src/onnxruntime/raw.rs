//! The fenced part: KV memory that graph inputs and outputs alias, and I/O bindings over it.
//!
//! `ort`'s own `IoBinding` copies borrowed tensors on `bind_input` (and deadlocks doing it in 2.0.0-rc.15), and can't
//! bind one buffer as input and output. An in-place KV cache needs exactly that, so this module binds through ONNX
//! Runtime's C API. A binding shares the ownership of the memory that it is laid over, so no order of drops matters.
//! Only [`Binding::run`] asks something of its caller; the other public functions check their arguments against the
//! sizes that the object was made with.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use memmap2::MmapMut;
use ort::AsPointer;
use ort::session::Session;
use ort::sys;

/// Memory that can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for {elements} elements of {element_bytes} bytes")]
pub struct NoMemory {
    /// Elements that were asked for.
    pub elements: usize,
    /// Bytes of each.
    pub element_bytes: usize,
}

/// What [`Memory`] and the tensors over it own together. What lies there is `Memory`'s and `Binding::run`'s matter.
struct Allocation(MmapMut);

/// Zeroed memory at a fixed address, as long as it lives: what tensors are laid over.
///
/// Zeroed because a NaN in a masked KV slot would make the output NaN. It comes from the operating system and goes back
/// there, not through the allocator: pages of the KV pool that were never used take no physical memory, also when an
/// earlier model's memory was freed. It begins on a page, and so on a cache line, where vector loads are at their best.
pub struct Memory<T: Element> {
    allocation: Arc<Allocation>,
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
    /// Allocates `len` elements that are all zero.
    ///
    /// # Errors
    /// The system has no such memory, or no address space can hold it.
    pub fn zeroed(len: usize) -> Result<Self, NoMemory> {
        let none = NoMemory { elements: len, element_bytes: size_of::<T>() };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(none)?;
        let mut allocation = Allocation(MmapMut::map_anon(bytes.max(1)).map_err(|_| none)?);
        let start = NonNull::new(allocation.0.as_mut_ptr().cast::<T>()).ok_or(none)?;
        Ok(Self { allocation: Arc::new(allocation), start, len })
    }

    /// Reads the elements.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements were mapped, as zeros and from the start of a page, all bit patterns of `T` are valid,
        // and ONNX Runtime writes to them only inside `Binding::run`, whose caller sees to it that no slice is alive
        // then.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Writes the elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// A tensor over the first elements, which shares their ownership.
    fn tensor(&self, shape: &[i64]) -> Result<Tensor, ort::Error> {
        let size = |size: &i64| usize::try_from(*size).ok();
        let elements = shape.iter().try_fold(1_usize, |all, next| all.checked_mul(size(next)?));
        let Some(elements) = elements.filter(|&elements| elements <= self.len) else {
            return Err(ort::Error::new(format!("{shape:?} doesn't fit into memory for {} elements", self.len)));
        };
        let info = MemoryInfo::cpu()?;
        let mut value = ptr::null_mut();
        // SAFETY: the address is valid for `elements` elements of the stated type (checked above); shape and info are
        // read during the call only.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                info.0.as_ptr(),
                self.start.as_ptr().cast::<c_void>(),
                elements * size_of::<T>(),
                shape.as_ptr(),
                shape.len(),
                T::TYPE,
                &mut value,
            )
        })?;
        let value = NonNull::new(value).ok_or_else(|| ort::Error::new("CreateTensorWithDataAsOrtValue returned null"));
        Ok(Tensor { value: value?, _memory: Arc::clone(&self.allocation) })
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

/// An owned `OrtValue`, and its share of the memory that it is laid over.
struct Tensor {
    value: NonNull<sys::OrtValue>,
    _memory: Arc<Allocation>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: created by `Memory::tensor`, released once, before the memory.
        unsafe { (ort::api().ReleaseValue)(self.value.as_ptr()) }
    }
}

/// All inputs and outputs of a graph for one combination of shapes, laid over [`Memory`].
///
/// Made once per combination and run many times: a step creates no tensor and copies none.
pub struct Binding {
    binding: NonNull<sys::OrtIoBinding>,
    /// What is bound.
    tensors: Vec<Tensor>,
    /// `OrtIoBinding` belongs to one thread at a time; it is moved, never shared.
    _not_sync: PhantomData<*mut ()>,
}

// SAFETY: ONNX Runtime ties neither an OrtIoBinding nor an OrtValue to a thread; without `Sync` they are used by one
// at a time.
unsafe impl Send for Binding {}

impl Binding {
    /// An empty binding for a session.
    pub fn new(session: &Session) -> Result<Self, ort::Error> {
        let mut binding = ptr::null_mut();
        // SAFETY: the session is alive; the call takes `*mut` but only reads it.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut binding) })?;
        let binding = NonNull::new(binding).ok_or_else(|| ort::Error::new("CreateIoBinding returned null"))?;
        Ok(Self { binding, tensors: Vec::new(), _not_sync: PhantomData })
    }

    /// Binds an input to the first elements of `memory`.
    pub fn input<T: Element>(&mut self, name: &CStr, memory: &Memory<T>, shape: &[i64]) -> Result<(), ort::Error> {
        let tensor = memory.tensor(shape)?;
        // SAFETY: binding, name and value are valid during the call, and the value as long as the binding.
        check(unsafe { (ort::api().BindInput)(self.binding.as_ptr(), name.as_ptr(), tensor.value.as_ptr()) })?;
        self.tensors.push(tensor);
        Ok(())
    }

    /// Binds an output to the first elements of `memory`. The same memory may be bound to an input.
    pub fn output<T: Element>(&mut self, name: &CStr, memory: &Memory<T>, shape: &[i64]) -> Result<(), ort::Error> {
        let tensor = memory.tensor(shape)?;
        // SAFETY: as in `input`.
        check(unsafe { (ort::api().BindOutput)(self.binding.as_ptr(), name.as_ptr(), tensor.value.as_ptr()) })?;
        self.tensors.push(tensor);
        Ok(())
    }

    /// Runs the graph on the bound memory.
    ///
    /// # Safety
    /// The binding was made for this session. From the call to the return, no slice of bound memory is alive, and no
    /// other thread uses such memory, by a slice or by running another binding over it.
    pub unsafe fn run(&mut self, session: &mut Session) -> Result<(), ort::Error> {
        // SAFETY: session and binding are alive and, as the caller promises, belong together and have the bound memory
        // to themselves; null run options are allowed.
        check(unsafe { (ort::api().RunWithBinding)(session.ptr_mut(), ptr::null(), self.binding.as_ptr()) })
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once, before its tensors.
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
        let mut memory = Memory::<f32>::zeroed(1000).unwrap();
        assert!(memory.as_slice().iter().all(|&x| x == 0.0));
        assert_eq!(memory.as_slice().as_ptr() as usize % 64, 0, "a cache line");
        memory.as_mut_slice()[999] = 1.0;
        assert_eq!(memory.as_slice()[999], 1.0);
        assert_eq!(Memory::<i64>::zeroed(0).unwrap().as_slice().len(), 0);
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4, 1 << 50] {
            let error = Memory::<f32>::zeroed(len).err().unwrap();
            assert_eq!(error.to_string(), format!("there is no memory for {len} elements of 4 bytes"));
        }
    }
}
