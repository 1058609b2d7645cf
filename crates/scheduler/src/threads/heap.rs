//! What an engine had, or took to load, back to the operating system.

/// Returns the memory that was freed and not yet allocated again.
///
/// The GNU C library keeps what a thread frees for later. The threads of an engine end with it, so that a server whose
/// models come and go would keep the most that each of its threads ever had. Other allocators return memory by
/// themselves.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes the allocator's own locks, and touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
