//! The fenced part: the tensors of a node as slices.
//!
//! `ort`'s own access to a node's tensors builds a typed value on the heap for each tensor. That costs a microsecond,
//! for three tensors in each of sixty nodes of a step. This module uses the C API, checks element type and length, and
//! allocates nothing. Tensors live as long as the call; constants live as long as the session, which drops its nodes
//! before its initializers.

use std::ptr;

use kernels::layout::Matrix;
use kernels::linear::Norm;
use ort::AsPointer;
use ort::operator::{ComputeContext, KernelContext};
use ort::sys;

use super::Form;
use super::huge_pages::{Copied, HugePages};

/// Most dimensions of a tensor here.
const MAX_RANK: usize = 4;
/// Largest size among the attributes: products of two sizes don't overflow.
const MAX_SIZE: usize = 1 << 31;

/// Types of elements.
pub(super) trait Element: Copy + 'static {
    const TYPE: sys::ONNXTensorElementDataType;
}

impl Element for f32 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

impl Element for i64 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
}

impl Element for u8 {
    const TYPE: sys::ONNXTensorElementDataType = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
}

/// A tensor's dimensions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dims {
    sizes: [i64; MAX_RANK],
    rank: usize,
}

impl Dims {
    pub(super) fn new(sizes: &[usize]) -> Self {
        let mut dims = Self { rank: sizes.len(), ..Self::default() };
        dims.sizes.iter_mut().zip(sizes).for_each(|(to, from)| *to = *from as i64);
        dims
    }

    pub(super) fn as_slice(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }

    pub(super) fn elements(&self) -> usize {
        self.as_slice().iter().map(|size| usize::try_from(*size).unwrap_or(0)).product()
    }

    /// The last one: elements of a row.
    pub(super) fn width(&self) -> usize {
        self.as_slice().last().map_or(0, |size| usize::try_from(*size).unwrap_or(0))
    }

    /// Checks that rows have so many elements.
    pub(super) fn check_width(&self, inputs: usize) -> Result<(), ort::Error> {
        match self.width() {
            width if width == inputs => Ok(()),
            width => Err(ort::Error::new(format!("a row has {width} elements where the attributes say {inputs}"))),
        }
    }

    /// The same extents with another size in the last dimension.
    pub(super) fn with_last(mut self, size: usize) -> Self {
        if let Some(last) = self.rank.checked_sub(1) {
            self.sizes[last] = size as i64;
        }
        self
    }
}

/// A tensor: its dimensions and its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a, T> {
    pub(super) dims: Dims,
    pub(super) elements: &'a [T],
}

/// An initializer, valid as long as the session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constant<T> {
    start: *const T,
    len: usize,
}

// SAFETY: it points to an initializer, which nobody writes to.
unsafe impl<T: Sync> Send for Constant<T> {}

impl<T> Constant<T> {
    pub(super) fn get(&self) -> &[T] {
        // SAFETY: an initializer's elements (checked in `Info::constant`), whose address may be null only where there
        // are none; the node that holds this is dropped before them.
        unsafe { slice(self.start, self.len) }
    }
}

/// Address, dimensions and type-checked length of a tensor.
fn tensor<T: Element>(value: *const sys::OrtValue) -> Result<(*mut T, Dims), ort::Error> {
    let api = ort::api();
    let mut dims = Dims::default();
    let mut element = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    let (mut sizes, mut data) = (ptr::null(), ptr::null_mut());
    // SAFETY: `value` is a tensor of the running call or an initializer; the results have valid places; `sizes` are
    // those of the tensor, which keeps them.
    unsafe {
        check((api.GetTensorElementTypeAndShapeDataReference)(value, &mut element, &mut sizes, &mut dims.rank))?;
        let rank = dims.rank;
        let Some(to) = dims.sizes.get_mut(..rank) else {
            return Err(ort::Error::new(format!("a tensor of {rank} dimensions")));
        };
        to.copy_from_slice(slice(sizes, rank));
        check((api.GetTensorMutableData)(value.cast_mut(), &mut data))?;
    }
    if element != T::TYPE {
        return Err(ort::Error::new(format!("a tensor of {element:?} where {:?} is due", T::TYPE)));
    }
    Ok((data.cast(), dims))
}

/// A node's attributes and constant inputs, while it is made.
pub(super) struct Info<'a, 'k>(&'a KernelContext<'k>);

impl<'a, 'k> Info<'a, 'k> {
    pub(super) fn new(context: &'a KernelContext<'k>) -> Self {
        Self(context)
    }

    /// The node's name.
    pub(super) fn node_name(&self) -> Result<String, ort::Error> {
        self.0.node_name()
    }

    /// A size among the attributes.
    pub(super) fn size(&self, name: &str) -> Result<usize, ort::Error> {
        let value =
            self.0.get::<i64>(name).ok_or_else(|| ort::Error::new(format!("the attribute `{name}` is missing")))?;
        size(value).ok_or_else(|| ort::Error::new(format!("the attribute `{name}` is {value}, not 0 to {MAX_SIZE}")))
    }

    /// A size among the attributes that can't be zero.
    pub(super) fn extent(&self, name: &str) -> Result<usize, ort::Error> {
        match self.size(name)? {
            0 => Err(ort::Error::new(format!("the attribute `{name}` is 0; it must be at least 1"))),
            size => Ok(size),
        }
    }

    /// The integer attribute `name` as `N` sizes.
    pub(super) fn sizes<const N: usize>(&self, name: &str) -> Result<[usize; N], ort::Error> {
        let values = self.0.get::<Vec<i64>>(name).unwrap_or_default();
        let sizes: Vec<usize> = values.iter().filter_map(|value| size(*value)).collect();
        <[usize; N]>::try_from(sizes).map_err(|_| ort::Error::new(format!("the attribute `{name}` is not {N} sizes")))
    }

    pub(super) fn float(&self, name: &str) -> Result<f32, ort::Error> {
        self.0.get::<f32>(name).ok_or_else(|| ort::Error::new(format!("the attribute `{name}` is missing")))
    }

    pub(super) fn text(&self, name: &str) -> Result<String, ort::Error> {
        self.0.get::<String>(name).ok_or_else(|| ort::Error::new(format!("the attribute `{name}` is missing")))
    }

    /// Whether the node has an input at `index`.
    pub(super) fn has(&self, index: usize) -> Result<bool, ort::Error> {
        let (mut count, mut length) = (0, 0);
        // SAFETY: the context is alive; a first call with no buffer asks for the length, NUL included.
        unsafe {
            check((ort::api().KernelInfo_GetInputCount)(self.0.ptr(), &mut count))?;
            if index >= count {
                return Ok(false);
            }
            check((ort::api().KernelInfo_GetInputName)(self.0.ptr(), index, ptr::null_mut(), &mut length))?;
        }
        Ok(length > 1)
    }

    /// The initializer at `index`, if the node has that input.
    pub(super) fn constant<T: Element>(&self, index: usize) -> Result<Option<Constant<T>>, ort::Error> {
        if !self.has(index)? {
            return Ok(None);
        }
        let (mut is_constant, mut value) = (0, ptr::null());
        // SAFETY: the context is alive, the results have valid places.
        check(unsafe {
            (ort::api().KernelInfoGetConstantInput_tensor)(self.0.ptr(), index, &mut is_constant, &mut value)
        })?;
        if is_constant == 0 || value.is_null() {
            return Err(ort::Error::new(format!("input {index} must be an initializer")));
        }
        let (start, dims) = tensor::<T>(value)?;
        Ok(Some(Constant { start, len: dims.elements() }))
    }

    /// The initializer at `index`, which the operator can't do without.
    pub(super) fn needed<T: Element>(&self, index: usize) -> Result<Constant<T>, ort::Error> {
        self.constant(index)?.ok_or_else(|| ort::Error::new(format!("input {index} is missing")))
    }
}

fn size(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|&size| size <= MAX_SIZE)
}

/// Checks that a constant, if there is one, has so many elements.
pub(super) fn check_len<T>(what: &str, constant: Option<&Constant<T>>, len: usize) -> Result<(), ort::Error> {
    match constant {
        Some(constant) if constant.len != len => {
            Err(ort::Error::new(format!("{what} has {} elements where the attributes say {len}", constant.len)))
        }
        _ => Ok(()),
    }
}

/// A running call's tensors.
pub(super) struct Call<'a>(&'a ComputeContext);

impl<'a> Call<'a> {
    pub(super) fn new(context: &'a ComputeContext) -> Self {
        Self(context)
    }

    /// The input at `index`, if the node has it.
    pub(super) fn optional<T: Element>(&self, index: usize) -> Result<Option<View<'_, T>>, ort::Error> {
        let mut value = ptr::null();
        // SAFETY: the context is that of the running call.
        check(unsafe { (ort::api().KernelContext_GetInput)(self.0.ptr(), index, &mut value) })?;
        if value.is_null() {
            return Ok(None);
        }
        let (start, dims) = tensor::<T>(value)?;
        // SAFETY: a tensor's elements, which live as long as the call; nodes read their inputs only.
        Ok(Some(View { dims, elements: unsafe { slice(start, dims.elements()) } }))
    }

    /// The input at `index`.
    pub(super) fn input<T: Element>(&self, index: usize) -> Result<View<'_, T>, ort::Error> {
        self.optional(index)?.ok_or_else(|| ort::Error::new(format!("input {index} is missing")))
    }

    /// The output at `index`, which has no elements in common with any input that is read after.
    #[expect(clippy::mut_from_ref, reason = "each output is asked for once; ONNX Runtime gives it memory of its own")]
    pub(super) fn output<T: Element>(&self, index: usize, dims: &Dims) -> Result<&mut [T], ort::Error> {
        let start = self.output_address::<T>(index, dims)?;
        // SAFETY: ONNX Runtime made or found a tensor of these dimensions for the call, and aliases it with no input
        // (no operator here declares that it may).
        Ok(unsafe { slice_mut(start, dims.elements()) })
    }

    /// The output at `index` holding what the input at `from` holds: in place where both are bound to the same memory,
    /// as a KV cache is, by a copy elsewhere.
    #[expect(clippy::mut_from_ref, reason = "as in `output`")]
    pub(super) fn updated<T: Element>(&self, index: usize, from: usize) -> Result<(Dims, &mut [T]), ort::Error> {
        let mut value = ptr::null();
        // SAFETY: the context is that of the running call.
        check(unsafe { (ort::api().KernelContext_GetInput)(self.0.ptr(), from, &mut value) })?;
        if value.is_null() {
            return Err(ort::Error::new(format!("input {from} is missing")));
        }
        let (old, dims) = tensor::<T>(value)?;
        let new = self.output_address::<T>(index, &dims)?;
        let len = dims.elements();
        if !ptr::eq(old, new) {
            // SAFETY: two tensors of the same dimensions; `copy` allows them to overlap.
            unsafe { ptr::copy(old, new, len) };
        }
        // SAFETY: as in `output`; the input is not read again.
        Ok((dims, unsafe { slice_mut(new, len) }))
    }

    fn output_address<T: Element>(&self, index: usize, dims: &Dims) -> Result<*mut T, ort::Error> {
        let mut value = ptr::null_mut();
        let sizes = dims.as_slice();
        // SAFETY: the context is that of the running call; the sizes are read during this one.
        check(unsafe {
            (ort::api().KernelContext_GetOutput)(
                self.0.ptr().cast_mut(),
                index,
                sizes.as_ptr(),
                sizes.len(),
                &mut value,
            )
        })?;
        if value.is_null() {
            return Err(ort::Error::new(format!("output {index} is missing")));
        }
        let (start, found) = tensor::<T>(value)?;
        if found.as_slice() != sizes {
            return Err(ort::Error::new(format!("output {index} is {:?}, not {sizes:?}", found.as_slice())));
        }
        Ok(start)
    }
}

/// # Safety
/// `start` is valid for `len` elements as long as the result is used, or `len` is zero.
unsafe fn slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// # Safety
/// As `slice`, and nothing else reads or writes the elements meanwhile.
unsafe fn slice_mut<'a, T>(start: *mut T, len: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(start, len) } }
}

fn check(status: sys::OrtStatusPtr) -> Result<(), ort::Error> {
    // SAFETY: every status comes straight from a call of the C API and is used nowhere else.
    unsafe { ort::Error::result_from_status(status) }
}

/// A packed matrix among the constants.
#[derive(Debug)]
pub(super) enum Weights {
    F32(Elements<f32>),
    Int8(Elements<u8>, Constant<f32>),
}

/// The elements of a matrix.
#[derive(Debug)]
pub(super) enum Elements<T> {
    /// Where ONNX Runtime has them.
    Constant(Constant<T>),
    /// In huge pages.
    Copied(Copied<T>),
}

impl<T: Element> Elements<T> {
    fn get(&self) -> &[T] {
        match self {
            Elements::Constant(constant) => constant.get(),
            Elements::Copied(copied) => copied.get(),
        }
    }

    fn copied(self, pages: Option<&HugePages>) -> Self {
        pages.and_then(|pages| pages.copy(self.get())).map_or(self, Elements::Copied)
    }
}

impl Weights {
    /// Reads the matrix at `index`, and what belongs to it behind it.
    pub(super) fn read(info: &Info, index: usize, form: Form) -> Result<Self, ort::Error> {
        Ok(match form {
            Form::F32 => Weights::F32(Elements::Constant(info.needed(index)?)),
            Form::Int8 => Weights::Int8(Elements::Constant(info.needed(index)?), info.needed(index + 1)?),
        })
    }

    /// The matrix in huge pages, if there are any.
    pub(super) fn copied(self, pages: Option<&HugePages>) -> Self {
        match self {
            Weights::F32(elements) => Weights::F32(elements.copied(pages)),
            Weights::Int8(bytes, scales) => Weights::Int8(bytes.copied(pages), scales),
        }
    }

    /// Checks that the matrix has the sizes of the attributes.
    pub(super) fn check(&self, inputs: usize, outputs: usize) -> Result<(), ort::Error> {
        if self.matrix().fits(inputs, outputs) {
            return Ok(());
        }
        let found = match self {
            Weights::F32(elements) => elements.get().len(),
            Weights::Int8(bytes, _) => bytes.get().len(),
        };
        let reason =
            format!("the weights have {found} elements, which are not `inputs` {inputs} x `outputs` {outputs}");
        Err(ort::Error::new(reason))
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        match self {
            Weights::F32(elements) => Matrix::F32(elements.get()),
            Weights::Int8(bytes, scales) => Matrix::Int8(bytes.get(), scales.get()),
        }
    }
}

/// A normalization among the attributes and constants.
#[derive(Debug)]
pub(super) enum NormConstants {
    None,
    Layer { scale: Constant<f32>, bias: Option<Constant<f32>>, epsilon: f32 },
    Rms { scale: Constant<f32>, epsilon: f32 },
}

impl NormConstants {
    /// Reads the scale at `index` and the bias behind it.
    pub(super) fn read(info: &Info, index: usize) -> Result<Self, ort::Error> {
        Ok(match info.text("norm")?.as_str() {
            "none" => NormConstants::None,
            "layer" => NormConstants::Layer {
                scale: info.needed(index)?,
                bias: info.constant(index + 1)?,
                epsilon: info.float("epsilon")?,
            },
            "rms" => NormConstants::Rms { scale: info.needed(index)?, epsilon: info.float("epsilon")? },
            other => return Err(ort::Error::new(format!("the norm `{other}` is unknown"))),
        })
    }

    /// Checks that scale and bias are of rows of `inputs`.
    pub(super) fn check(&self, inputs: usize) -> Result<(), ort::Error> {
        match self {
            NormConstants::None => Ok(()),
            NormConstants::Layer { scale, bias, .. } => check_len("the norm's scale", Some(scale), inputs)
                .and_then(|()| check_len("the norm's bias", bias.as_ref(), inputs)),
            NormConstants::Rms { scale, .. } => check_len("the norm's scale", Some(scale), inputs),
        }
    }

    pub(super) fn norm(&self) -> Norm<'_> {
        match self {
            NormConstants::None => Norm::None,
            NormConstants::Layer { scale, bias, epsilon } => {
                Norm::Layer { scale: scale.get(), bias: bias.as_ref().map(Constant::get), epsilon: *epsilon }
            }
            NormConstants::Rms { scale, epsilon } => Norm::Rms { scale: scale.get(), epsilon: *epsilon },
        }
    }
}
