//! Slices that several threads write at disjoint places.

use std::marker::PhantomData;

/// A slice whose elements several threads write, each its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T> {
    start: *mut T,
    len: usize,
    _owned: PhantomData<T>,
}

// SAFETY: it is only an address; who writes where is promised by the callers of its unsafe functions.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _owned: PhantomData }
    }

    /// The address of an element.
    ///
    /// # Panics
    /// In builds with debug assertions, if `index` is beyond the end.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len, "{index} of {}", self.len);
        self.start.wrapping_add(index)
    }

    /// The `len` elements from `start` on, to write.
    ///
    /// # Safety
    /// The slice lives, and no other thread reads or writes these elements while the result lives.
    ///
    /// # Panics
    /// If it goes beyond the end.
    #[expect(clippy::mut_from_ref, reason = "this is what the type is for")]
    pub(crate) unsafe fn slice_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "{start} + {len} of {}", self.len);
        // SAFETY: within the slice; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
