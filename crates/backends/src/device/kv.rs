//! KV caches of the lanes and the pool of KV pages in the device's memory, and the copies between them.

use std::sync::Arc;

use super::runs::runs;
use crate::cuda::{CudaError, DeviceMemory, Extent, Region, Stream};
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

    /// Where a position of a lane is in the lanes' memory.
    fn in_lane(&self, lane: usize, position: usize) -> Region {
        let offset = lane * self.heads * self.row_bytes() + position * self.head_bytes();
        Region { offset, pitch: self.row_bytes(), rows: self.rows() }
    }

    /// The same for one page, in the pages' memory.
    fn in_pages(&self, page: usize) -> Region {
        Region { offset: page * self.head_bytes(), pitch: self.pages * self.head_bytes(), rows: self.heads }
    }

    /// Positions that follow each other, all layers and heads of them.
    fn extent(&self, positions: usize) -> Extent {
        Extent { width: positions * self.head_bytes(), height: self.heads, depth: self.tensors() }
    }

    /// Whether there are the lane, the position and the page of a copy.
    fn has(&self, copy: &KvCopy) -> bool {
        let (lane, position, page) = copy.endpoints();
        lane.0 < self.lanes && position < self.context && page.0 < self.pages
    }
}

/// KV caches of the lanes, and the pool of KV pages, in device memory.
pub struct DeviceKv {
    shape: KvShape,
    stream: Arc<Stream>,
    /// `[2 * layers, lanes, heads, context, head_dim]`, in the order k0, v0, k1, v1, ...; each tensor begins aligned.
    /// A prefix of the lanes is a prefix of each tensor, so a forward of fewer rows needs no copy.
    lanes: DeviceMemory,
    /// `[2 * layers, heads, pages, head_dim]`: pages that follow each other lie side by side, as a lane's positions do.
    pages: DeviceMemory,
}

impl DeviceKv {
    /// Zeroed caches: a NaN in a masked position would give NaN out.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(stream: &Arc<Stream>, shape: KvShape) -> Result<Self, CudaError> {
        Ok(Self {
            shape,
            stream: Arc::clone(stream),
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

    /// Puts the copies on the stream: one call for each run of positions, whatever the number of layers and heads.
    ///
    /// # Errors
    /// A copy that names something that doesn't exist, or the driver's.
    pub fn copy(&self, copies: &[KvCopy]) -> Result<(), BackendError> {
        let wrong = copies.iter().position(|copy| !self.shape.has(copy));
        for run in runs(&copies[..wrong.unwrap_or(copies.len())]) {
            let extent = self.shape.extent(run.len);
            let lane = (&self.lanes, self.shape.in_lane(run.lane, run.position));
            let pages = (&self.pages, self.shape.in_pages(run.page));
            let (to, from) = if run.is_load { (lane, pages) } else { (pages, lane) };
            self.stream.copy(to, from, extent)?;
        }
        match wrong {
            Some(wrong) => {
                Err(BackendError::Contract(format!("{:?} names something that does not exist", copies[wrong])))
            }
            None => Ok(()),
        }
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
    fn memory_is_what_lanes_and_pages_take() {
        let shape =
            KvShape { layers: 12, heads: 12, context: 128, head_dim: 64, element_bytes: 2, lanes: 32, pages: 10 };
        assert_eq!(shape.page_bytes(), 24 * 768 * 2);
        assert_eq!(shape.bytes(), (32 * 128 + 10) * shape.page_bytes());
    }
}
