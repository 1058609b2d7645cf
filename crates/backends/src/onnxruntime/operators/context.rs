//! The fenced part: the tensors of a node as slices.
//!
//! `ort`'s own access to a node's tensors builds a typed value on the heap for each tensor. That costs a microsecond,
//! for hundreds of tensors in a step. This module uses the C API, checks element type and length, and allocates
//! nothing. Tensors live as long as the call; constants live as long as the session, which drops its nodes before its
//! initializers. Values that stay inside a chain have memory of the chain's own.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

use ort::AsPointer;
use ort::operator::{ComputeContext, FromKernelContext, KernelContext};
use ort::sys;

use super::links::{Link, places};

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// A tensor of any type.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    start: *mut c_void,
    dims: Dims,
    element: sys::ONNXTensorElementDataType,
}

// SAFETY: an address is used only during the call that it was noted in.
unsafe impl Send for Tensor {}

impl Tensor {
    /// Where ONNX Runtime has one.
    fn of(value: *const sys::OrtValue) -> Result<Self, ort::Error> {
        let api = ort::api();
        let mut dims = Dims::default();
        let mut element = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let (mut sizes, mut start) = (ptr::null(), ptr::null_mut());
        // SAFETY: `value` is a tensor of the running call or an initializer; the results have valid places; `sizes` are
        // those of the tensor, which keeps them.
        unsafe {
            check((api.GetTensorElementTypeAndShapeDataReference)(value, &mut element, &mut sizes, &mut dims.rank))?;
            let rank = dims.rank;
            let Some(to) = dims.sizes.get_mut(..rank) else {
                return Err(ort::Error::new(format!("a tensor of {rank} dimensions")));
            };
            to.copy_from_slice(slice(sizes, rank));
            check((api.GetTensorMutableData)(value.cast_mut(), &mut start))?;
        }
        Ok(Self { start, dims, element })
    }

    /// Its address, if it has elements of this type.
    fn start<T: Element>(&self) -> Result<*mut T, ort::Error> {
        if self.element == T::TYPE {
            return Ok(self.start.cast());
        }
        Err(ort::Error::new(format!("a tensor of {:?} where {:?} is due", self.element, T::TYPE)))
    }
}

/// The values of a chain: first the node's inputs, then its outputs, and then those that stay inside.
pub(super) struct Values {
    /// Inputs of the node.
    inputs: usize,
    /// Where the values are that the running call has made so far.
    made: Vec<Cell<Option<Tensor>>>,
    /// The memory of each value that is made, among `memory`; `None` for the node's outputs.
    places: Vec<Option<usize>>,
    memory: Vec<RefCell<Vec<Line>>>,
}

/// A cache line of a value.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "room")] [u8; 64]);

impl Values {
    /// The values of a node's links.
    ///
    /// # Errors
    /// Those of [`places`].
    pub(super) fn new<'l>(
        context: &KernelContext,
        links: impl Iterator<Item = &'l Link> + Clone,
    ) -> Result<Self, ort::Error> {
        let (mut inputs, mut outputs) = (0, 0);
        // SAFETY: the context is alive, the results have valid places.
        unsafe {
            check((ort::api().KernelInfo_GetInputCount)(context.ptr(), &mut inputs))?;
            check((ort::api().KernelInfo_GetOutputCount)(context.ptr(), &mut outputs))?;
        }
        let places = places(inputs, outputs, links).map_err(ort::Error::new)?;
        let memory = places.iter().flatten().map(|place| place + 1).max().unwrap_or(0);
        let memory = (0..memory).map(|_| RefCell::default()).collect();
        Ok(Self { inputs, made: vec![Cell::new(None); places.len()], places, memory })
    }

    /// Forgets what the last call has made.
    pub(super) fn clear(&mut self) {
        self.made.iter_mut().for_each(|value| *value.get_mut() = None);
    }
}

/// A link's attributes and constant inputs, while its node is made.
pub(super) struct Info<'a, 'k> {
    context: &'a KernelContext<'k>,
    /// Among the links of the node.
    number: usize,
    pub(super) link: Link,
}

impl<'a, 'k> Info<'a, 'k> {
    /// The link of this number; `None` if the node has fewer.
    pub(super) fn new(context: &'a KernelContext<'k>, number: usize) -> Result<Option<Self>, ort::Error> {
        let values = |name: &str| context.get::<Vec<i64>>(format!("{number}.{name}"));
        let (Some(inputs), Some(outputs)) = (values("reads"), values("makes")) else { return Ok(None) };
        let made = outputs.iter().map(|value| {
            usize::try_from(*value).map_err(|_| ort::Error::new(format!("link {number} makes the value {value}")))
        });
        let link = Link {
            inputs: inputs.iter().map(|value| usize::try_from(*value).ok()).collect(),
            outputs: made.collect::<Result<_, _>>()?,
        };
        Ok(Some(Self { context, number, link }))
    }

    /// The name of the node before it became a link.
    pub(super) fn node_name(&self) -> Result<String, ort::Error> {
        self.text("name")
    }

    fn get<T: FromKernelContext<'k>>(&self, name: &str) -> Option<T> {
        self.context.get(format!("{}.{name}", self.number))
    }

    fn needed_attribute<T: FromKernelContext<'k>>(&self, name: &str) -> Result<T, ort::Error> {
        self.get(name).ok_or_else(|| ort::Error::new(format!("the attribute `{name}` is missing")))
    }

    /// A size among the attributes.
    pub(super) fn size(&self, name: &str) -> Result<usize, ort::Error> {
        let value = self.needed_attribute::<i64>(name)?;
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
        let values = self.get::<Vec<i64>>(name).unwrap_or_default();
        let sizes: Vec<usize> = values.iter().filter_map(|value| size(*value)).collect();
        <[usize; N]>::try_from(sizes).map_err(|_| ort::Error::new(format!("the attribute `{name}` is not {N} sizes")))
    }

    pub(super) fn float(&self, name: &str) -> Result<f32, ort::Error> {
        self.needed_attribute(name)
    }

    pub(super) fn text(&self, name: &str) -> Result<String, ort::Error> {
        self.needed_attribute(name)
    }

    /// Whether the link has an input at `index`.
    pub(super) fn has(&self, index: usize) -> bool {
        self.link.inputs.get(index).is_some_and(Option::is_some)
    }

    /// The initializer at `index`, if the link has that input.
    pub(super) fn constant<T: Element>(&self, index: usize) -> Result<Option<Constant<T>>, ort::Error> {
        let Some(number) = self.link.inputs.get(index).copied().flatten() else { return Ok(None) };
        let refused = || ort::Error::new(format!("input {index} must be an initializer"));
        let (mut count, mut is_constant, mut value) = (0, 0, ptr::null());
        // SAFETY: the context is alive, the results have valid places, and the node has that input.
        unsafe {
            check((ort::api().KernelInfo_GetInputCount)(self.context.ptr(), &mut count))?;
            if number >= count {
                return Err(refused());
            }
            check((ort::api().KernelInfoGetConstantInput_tensor)(
                self.context.ptr(),
                number,
                &mut is_constant,
                &mut value,
            ))?;
        }
        if is_constant == 0 || value.is_null() {
            return Err(refused());
        }
        let tensor = Tensor::of(value)?;
        Ok(Some(Constant { start: tensor.start::<T>()?, len: tensor.dims.elements() }))
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

/// The tensors of a link in a running call.
pub(super) struct Call<'a> {
    context: &'a ComputeContext,
    link: &'a Link,
    values: &'a Values,
}

impl<'a> Call<'a> {
    pub(super) fn new(context: &'a ComputeContext, link: &'a Link, values: &'a Values) -> Self {
        Self { context, link, values }
    }

    /// The input at `index`.
    pub(super) fn input<T: Element>(&self, index: usize) -> Result<View<'_, T>, ort::Error> {
        let tensor = self.tensor(index)?;
        // SAFETY: a tensor's elements, which live as long as the call; a link writes to none of its inputs.
        Ok(View { dims: tensor.dims, elements: unsafe { slice(tensor.start::<T>()?, tensor.dims.elements()) } })
    }

    /// The output at `index`, which has no elements in common with any input that is read after.
    #[expect(clippy::mut_from_ref, reason = "each output is asked for once, and has memory of its own")]
    pub(super) fn output<T: Element>(&self, index: usize, dims: &Dims) -> Result<&mut [T], ort::Error> {
        let start = self.output_address::<T>(index, dims)?;
        // SAFETY: ONNX Runtime made or found a tensor of these dimensions for the call, and aliases it with no input
        // (the operator doesn't declare that it may); or memory of `values` that no input of the link is in.
        Ok(unsafe { slice_mut(start, dims.elements()) })
    }

    /// The output at `index` holding what the input at `from` holds: in place where both are bound to the same memory,
    /// as a KV cache is, by a copy elsewhere.
    #[expect(clippy::mut_from_ref, reason = "as in `output`")]
    pub(super) fn updated<T: Element>(&self, index: usize, from: usize) -> Result<(Dims, &mut [T]), ort::Error> {
        let inputs = &self.link.inputs;
        if inputs.iter().filter(|input| Some(*input) == inputs.get(from)).count() > 1 {
            return Err(ort::Error::new(format!("input {from} is updated, and is another input, too")));
        }
        let tensor = self.tensor(from)?;
        let (old, dims) = (tensor.start::<T>()?, tensor.dims);
        let new = self.output_address::<T>(index, &dims)?;
        let len = dims.elements();
        if !ptr::eq(old, new) {
            // SAFETY: two tensors of the same dimensions; `copy` allows them to overlap.
            unsafe { ptr::copy(old, new, len) };
        }
        // SAFETY: as in `output`; the input is not read again.
        Ok((dims, unsafe { slice_mut(new, len) }))
    }

    fn tensor(&self, index: usize) -> Result<Tensor, ort::Error> {
        let missing = || ort::Error::new(format!("input {index} is missing"));
        let number = self.link.inputs.get(index).copied().flatten().ok_or_else(missing)?;
        if let Some(made) = number.checked_sub(self.values.inputs) {
            return self.values.made[made].get().ok_or_else(missing);
        }
        let mut value = ptr::null();
        // SAFETY: the context is that of the running call.
        check(unsafe { (ort::api().KernelContext_GetInput)(self.context.ptr(), number, &mut value) })?;
        if value.is_null() { Err(missing()) } else { Tensor::of(value) }
    }

    fn output_address<T: Element>(&self, index: usize, dims: &Dims) -> Result<*mut T, ort::Error> {
        let missing = || ort::Error::new(format!("output {index} is missing"));
        let number = self.link.outputs.get(index).ok_or_else(missing)? - self.values.inputs;
        let start = match self.values.places[number] {
            Some(place) => self.inner_address::<T>(place, dims)?,
            None => self.node_output::<T>(number, dims)?,
        };
        self.values.made[number].set(Some(Tensor { start: start.cast(), dims: *dims, element: T::TYPE }));
        Ok(start)
    }

    /// Memory for a value that stays inside.
    fn inner_address<T: Element>(&self, place: usize, dims: &Dims) -> Result<*mut T, ort::Error> {
        let len = (dims.elements() * size_of::<T>()).div_ceil(size_of::<Line>());
        let mut lines = self.values.memory[place].borrow_mut();
        if let Some(more) = len.checked_sub(lines.len()) {
            lines.try_reserve(more).map_err(|error| ort::Error::new(error.to_string()))?;
            lines.resize(len, Line([0; 64]));
        }
        Ok(lines.as_mut_ptr().cast())
    }

    fn node_output<T: Element>(&self, number: usize, dims: &Dims) -> Result<*mut T, ort::Error> {
        let mut value = ptr::null_mut();
        let sizes = dims.as_slice();
        // SAFETY: the context is that of the running call; the sizes are read during this one.
        check(unsafe {
            (ort::api().KernelContext_GetOutput)(
                self.context.ptr().cast_mut(),
                number,
                sizes.as_ptr(),
                sizes.len(),
                &mut value,
            )
        })?;
        if value.is_null() {
            return Err(ort::Error::new(format!("the node's output {number} is missing")));
        }
        let found = Tensor::of(value)?;
        if found.dims != *dims {
            let found = found.dims;
            return Err(ort::Error::new(format!("output {number} is {:?}, not {sizes:?}", found.as_slice())));
        }
        found.start()
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
