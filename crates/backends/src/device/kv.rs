//! KV caches of the lanes and the pool of KV pages in the device's memory, and the kernel that copies between them.

use std::ffi::CStr;
use std::sync::Arc;

use super::copies::{Launch, MOST, Place, launches};
use crate::cuda::{Blocks, CudaError, DeviceMemory, Kernel, Stream};
use scheduler::backend::{BackendError, KvCopy};

/// Alignment of tensors' addresses that engines want, in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// The extents of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub heads: usize,
    /// Positions of a lane.
    pub context: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Number of lanes.
    pub lanes: usize,
    /// Number of pages.
    pub pages: usize,
}

impl KvShape {
    /// Key and value tensors, one pair a layer.
    pub fn tensors(&self) -> usize {
        2 * self.layers
    }

    /// Bytes of one position: all layers, keys and values.
    pub fn page_bytes(&self) -> usize {
        self.tensors() * self.heads * self.head_bytes()
    }

    /// Memory of lanes and pages.
    pub fn bytes(&self) -> usize {
        self.tensors() * self.tensor_bytes() + self.pages * self.page_bytes()
    }

    fn head_bytes(&self) -> usize {
        self.head_dim * self.element_bytes
    }

    /// Bytes of one head's positions.
    fn row_bytes(&self) -> usize {
        self.context * self.head_bytes()
    }

    /// Rows of one tensor: one for each head of each lane, rounded up so that the next tensor is aligned.
    fn rows(&self) -> usize {
        let rows = self.lanes * self.heads;
        let is_aligned = |rows: &usize| (rows * self.row_bytes()).is_multiple_of(ALIGNMENT);
        (rows..rows + ALIGNMENT).find(is_aligned).unwrap_or(rows)
    }

    fn tensor_bytes(&self) -> usize {
        self.rows() * self.row_bytes()
    }

    /// Whether there are the lane, the position and the page of a copy.
    fn has(&self, copy: &KvCopy) -> bool {
        let (lane, position, page) = copy.endpoints();
        lane.0 < self.lanes && position < self.context && page.0 < self.pages
    }
}

/// The kernel, made by `tools/cuda_kernels.sh` from the source beside it.
const PTX: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("kernels/copy_kv.ptx"), "\0").as_bytes()) {
    Ok(ptx) => ptx,
    Err(_) => panic!("the PTX has a zero byte"),
};

/// Threads of a block: as many as a position of one tensor has units of 16 bytes in GPT-2, rounded up to whole warps.
const THREADS: u32 = 96;

/// The kernel's parameter, as `Copies` in `kernels/copy_kv.cu`.
#[repr(C)]
struct Parameter {
    lanes: u64,
    pages: u64,
    lane_tensor: u64,
    page_tensor: u64,
    context: u32,
    page_count: u32,
    heads: u32,
    head_bytes: u32,
    is_load: u32,
    count: u32,
    /// The position's row of the first head in the lanes, and its page.
    positions: [[u32; 2]; MOST],
}

/// KV caches of the lanes, and the pool of KV pages, in device memory.
pub struct DeviceKv {
    /// Declared first: it goes before the memory that it works on.
    kernel: Kernel,
    shape: KvShape,
    /// `[2 * layers, lanes, heads, context, head_dim]`, in the order k0, v0, k1, v1, ...; each tensor begins aligned.
    /// A prefix of the lanes is a prefix of each tensor, so a forward of fewer rows needs no copy.
    lanes: DeviceMemory,
    /// `[2 * layers, heads, pages, head_dim]`
    pages: DeviceMemory,
}

impl DeviceKv {
    /// Zeroed caches: a NaN in a masked position would give NaN out.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(stream: &Arc<Stream>, shape: KvShape) -> Result<Self, CudaError> {
        Ok(Self {
            kernel: Kernel::load(stream, PTX, c"copy_kv")?,
            shape,
            lanes: DeviceMemory::new(stream, shape.tensors() * shape.tensor_bytes())?,
            pages: DeviceMemory::new(stream, shape.pages * shape.page_bytes())?,
        })
    }

    /// The extents of the cache and of its pages.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Where a tensor is, `[lanes, heads, context, head_dim]`; by the order k0, v0, k1, v1, ...
    pub fn address(&self, tensor: usize) -> u64 {
        assert!(tensor < self.shape.tensors(), "tensor {tensor} of {}", self.shape.tensors());
        self.lanes.address() + (tensor * self.shape.tensor_bytes()) as u64
    }

    /// Puts the copies on the stream: one launch for all that follow each other in one direction, 504 at most.
    ///
    /// # Errors
    /// A copy that names something that doesn't exist, or the driver's.
    pub fn copy(&self, copies: &[KvCopy]) -> Result<(), BackendError> {
        let wrong = copies.iter().position(|copy| !self.shape.has(copy));
        for launch in launches(&copies[..wrong.unwrap_or(copies.len())]) {
            self.launch(&launch)?;
        }
        match wrong {
            Some(wrong) => {
                Err(BackendError::Contract(format!("{:?} names something that does not exist", copies[wrong])))
            }
            None => Ok(()),
        }
    }

    fn launch(&self, Launch { is_load, places }: &Launch) -> Result<(), CudaError> {
        let shape = self.shape;
        let mut parameter = Parameter {
            lanes: self.lanes.address(),
            pages: self.pages.address(),
            lane_tensor: shape.tensor_bytes() as u64,
            page_tensor: (shape.heads * shape.pages * shape.head_bytes()) as u64,
            context: shape.context as u32,
            page_count: shape.pages as u32,
            heads: shape.heads as u32,
            head_bytes: shape.head_bytes() as u32,
            is_load: u32::from(*is_load),
            count: places.len() as u32,
            positions: [[0; 2]; MOST],
        };
        for (to, &Place { lane, position, page }) in parameter.positions.iter_mut().zip(places) {
            *to = [(lane * shape.heads * shape.context + position) as u32, page as u32];
        }
        let blocks = Blocks { x: parameter.count, y: shape.tensors() as u32, threads: THREADS };
        // SAFETY: `Parameter` is the kernel's parameter. Both memories have the shape's size, and every place is inside
        // it: `copy` checked them. They are freed after a synchronization.
        unsafe { self.kernel.launch(blocks, &parameter) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_begin_aligned_whatever_the_sizes() {
        for (heads, context, head_dim) in [(3, 7, 5), (12, 128, 64), (1, 1, 1), (2, 24, 8)] {
            let shape = KvShape { layers: 2, heads, context, head_dim, element_bytes: 2, lanes: 5, pages: 3 };
            assert_eq!(shape.tensor_bytes() % ALIGNMENT, 0, "{shape:?}");
            assert!(shape.tensor_bytes() >= 5 * heads * context * head_dim * 2);
            assert!(shape.rows() < 5 * heads + ALIGNMENT);
        }
    }

    #[test]
    fn the_parameter_is_as_large_as_the_kernels() {
        let ptx = PTX.to_str().unwrap();
        let declared = format!("copy_kv_param_0[{}]", size_of::<Parameter>());
        assert!(ptx.contains(&declared) && size_of::<Parameter>() <= 4096, "{declared}");
        assert!(include_str!("kernels/copy_kv.cu").contains(&format!("#define MOST {MOST}\n")));
    }

    #[test]
    fn memory_is_what_lanes_and_pages_take() {
        let shape =
            KvShape { layers: 12, heads: 12, context: 128, head_dim: 64, element_bytes: 2, lanes: 32, pages: 10 };
        assert_eq!(shape.page_bytes(), 24 * 768 * 2);
        assert_eq!(shape.bytes(), (32 * 128 + 10) * shape.page_bytes());
    }
}
