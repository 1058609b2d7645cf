//! The fenced part: copies of weights in huge pages.
//!
//! ONNX Runtime maps the file of weights in pages of 4 KiB. A step reads all of it, and at the end of each page the
//! processor has to look an address up, and fetches nothing ahead. In pages of 2 MiB a step takes 0.89 to 0.96 of the
//! time (docs/kernel-notes.md). The file's pages stay in the system's cache, which takes them back when memory is
//! short.

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapOptions, MmapRaw};

use super::context::Element;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes that are mapped at a time. Only those that are written to take memory.
const REGION: usize = 64 << 20;
/// Bytes of a cache line. Each copy begins with one.
const LINE: usize = 64;

/// The copies that this process uses. Replicas of a model share theirs, and so the processor's caches.
static IN_USE: Mutex<Vec<Weak<Block>>> = Mutex::new(Vec::new());

/// Where the copies of one session lie, one behind the other.
#[derive(Debug, Default)]
pub(super) struct HugePages {
    /// The region that has room, if any was mapped yet.
    last: Mutex<Option<Region>>,
}

#[derive(Debug)]
struct Region {
    memory: Arc<MmapRaw>,
    /// Bytes from the start that are taken. The rest was never written to.
    used: usize,
}

/// Bytes of a region that nobody writes to any more.
#[derive(Debug)]
struct Block {
    start: *const u8,
    len: usize,
    _memory: Arc<MmapRaw>,
}

// SAFETY: its memory lives as long as it does, and is only read.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `Region::write` wrote so many bytes there, in memory that lives as long as this.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// A copy of elements.
#[derive(Debug)]
pub(super) struct Copied<T>(Arc<Block>, PhantomData<T>);

impl<T: Element> Copied<T> {
    pub(super) fn get(&self) -> &[T] {
        // SAFETY: the bytes are those of so many `T`, and begin a cache line, so they are aligned.
        unsafe { std::slice::from_raw_parts(self.0.start.cast::<T>(), self.0.len / size_of::<T>()) }
    }
}

impl HugePages {
    /// A copy of elements, unless there is no memory, or no huge page.
    pub(super) fn copy<T: Element>(&self, elements: &[T]) -> Option<Copied<T>> {
        // SAFETY: the elements are numbers, which have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|block| block.strong_count() > 0);
        if let Some(block) = in_use.iter().filter_map(Weak::upgrade).find(|block| block.bytes() == bytes) {
            return Some(Copied(block, PhantomData));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|region| region.room() < bytes.len()) {
            *last = Some(are_available().then(|| Region::new(bytes.len())).flatten()?);
        }
        let block = Arc::new(last.as_mut()?.write(bytes));
        in_use.push(Arc::downgrade(&block));
        Some(Copied(block, PhantomData))
    }
}

/// Whether the system gives huge pages to who asks.
fn are_available() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|modes| !modes.contains("[never]"))
}

impl Region {
    /// A region with room for so many bytes.
    fn new(bytes: usize) -> Option<Self> {
        // Mappings begin anywhere, huge pages at multiples of their size.
        let len = bytes.max(REGION).checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
        let memory = MmapRaw::from(MmapOptions::new().len(len).map_anon().ok()?);
        #[cfg(target_os = "linux")]
        memory.advise(memmap2::Advice::HugePage).ok()?;
        let used = memory.as_ptr().align_offset(HUGE_PAGE);
        Some(Self { memory: Arc::new(memory), used })
    }

    fn room(&self) -> usize {
        self.memory.len().saturating_sub(self.used)
    }

    /// # Panics
    /// If there is no room.
    fn write(&mut self, bytes: &[u8]) -> Block {
        assert!(self.room() >= bytes.len(), "{} bytes in {self:?}", bytes.len());
        // SAFETY: as many bytes are there from `used` on, and no block has them.
        let start = unsafe {
            let start = self.memory.as_mut_ptr().add(self.used);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            start
        };
        self.used = (self.used + bytes.len()).next_multiple_of(LINE);
        Block { start, len: bytes.len(), _memory: Arc::clone(&self.memory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_shared_begin_cache_lines_and_outlive_their_session() {
        let [first, second] = [HugePages::default(), HugePages::default()];
        let all: Vec<Vec<f32>> =
            [1_usize, 15, 17, 0, 3 << 20, 20 << 20, 5].map(|len| (0..len).map(|i| i as f32).collect()).into();
        let copies: Vec<_> = all.iter().map_while(|elements| first.copy(elements)).collect();
        let again: Vec<_> = all.iter().map_while(|elements| second.copy(elements)).collect();
        drop((first, second));
        let are_copied = if are_available() { all.len() } else { 0 };
        assert_eq!((copies.len(), again.len()), (are_copied, are_copied));
        for ((copy, again), elements) in copies.iter().zip(&again).zip(&all) {
            assert_eq!(copy.get(), elements);
            assert!(copy.get().as_ptr().addr().is_multiple_of(LINE));
            assert!(Arc::ptr_eq(&copy.0, &again.0), "{} elements", elements.len());
        }
        let memory: Vec<_> = copies.iter().map(|copy| Arc::downgrade(&copy.0._memory)).collect();
        drop((copies, again));
        assert!(memory.iter().all(|memory| memory.strong_count() == 0), "memory is kept");
    }

    #[test]
    fn what_no_address_space_holds_is_refused() {
        assert!(Region::new(usize::MAX).is_none() && Region::new(usize::MAX / 2).is_none());
    }
}
