//! What is freed, back to the operating system.
//!
//! The command allocates with mimalloc, and native libraries with the C library's allocator. The GNU C library keeps
//! what a thread frees for later, in up to eight arenas a core. Other C libraries return memory by themselves.

/// Lets threads share arenas: one for every four cores. Each arena keeps what its threads had at most.
///
/// To be called before any thread is started.
pub fn share_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = i32::try_from(cores.div_ceil(4)).unwrap_or(i32::MAX);
        // SAFETY: the call sets a number of the allocator, under the allocator's own lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Returns the memory that was freed and not yet allocated again.
///
/// The threads of an engine end with it, so that a server whose models come and go would keep the most that each of its
/// threads ever had.
pub(super) fn give_back() {
    // SAFETY: it collects what is free in this thread's heap and in those of ended threads, and touches nothing that is
    // allocated. Where another allocator is used, there is nothing to collect.
    unsafe { libmimalloc_sys::mi_collect(true) };
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes the allocator's own locks, and touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
