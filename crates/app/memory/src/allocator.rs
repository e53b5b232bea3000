//! Both allocators of the process: mimalloc for this program, the C library's for RocksDB, which is C++.
//!
//! Owns: how long freed memory is kept, and when it is given back. Must not know: why.

/// Milliseconds that freed memory is kept before the system gets it back. A server under load frees and takes buffers of a
/// megabyte all the time. With the allocator's second it pays for fresh pages again after each pause: up to a third of the
/// processor time of writes (docs/results/performance.md). One that does nothing has given it back after a minute; one near
/// its memory limit gives it back at once ([`give_back`]).
const MEMORY_KEPT_MS: libc::c_long = 30_000;
/// `mi_option_purge_delay` of mimalloc 3; the binding names no such constant.
const OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Below this limit, in bytes, freed memory is not kept at all: under load it would be a third of the limit at times.
const KEPT_FROM_BYTES: u64 = 512 << 20;
/// Below this limit, in bytes, a page of 2 MiB for each few KiB in use is too much.
const HUGE_PAGES_FROM_BYTES: u64 = 1 << 30;

/// Sets both allocators up. To be called once, before there are other threads.
pub fn prepare() {
    keep_for(MEMORY_KEPT_MS);
    c_library::prepare();
}

/// How long mimalloc keeps freed memory, in milliseconds. MIMALLOC_PURGE_DELAY in the environment goes first.
fn keep_for(milliseconds: libc::c_long) {
    // SAFETY: sets a number; an option that mimalloc does not know is ignored.
    unsafe { libmimalloc_sys::mi_option_set_default(OPTION_PURGE_DELAY, milliseconds) };
}

/// Sets the process up for a memory limit: with a small one, freed memory goes back at once, and the system makes no large pages
/// of parts that are used. To be called before most memory is taken; programs that are started later inherit the latter.
pub fn keep_to(limit_bytes: u64) {
    if limit_bytes < KEPT_FROM_BYTES {
        keep_for(0);
    }
    if limit_bytes < HUGE_PAGES_FROM_BYTES {
        let (yes, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
        // SAFETY: changes how the kernel backs memory that is touched from now on; the other arguments have to be 0. A
        // kernel without it refuses, and then nothing has changed.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, unused, unused, unused) };
    }
}

/// Gives the system all memory back that was freed and is kept. Takes some milliseconds; other threads go on.
pub fn give_back() {
    // SAFETY: may be called at any time, from any thread. It frees nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
    c_library::give_back();
}

#[cfg(target_env = "gnu")]
mod c_library {
    /// Heaps that threads of RocksDB share. By default there are eight for each processor, each of which keeps what was freed in it.
    const ARENAS_MAX: libc::c_int = 4;
    /// From here on, in bytes, each piece is a mapping, which goes back to the system as soon as it is freed. By default this
    /// grows to 32 MiB with the pieces that are freed, and write buffers of RocksDB leave holes in the heap.
    const MAPPED_FROM_BYTES: libc::c_int = 256 << 10;
    /// Freed bytes at the end of the heap that are kept.
    const KEPT_BYTES: libc::c_int = 1 << 20;

    pub fn prepare() {
        let settings = [
            (libc::M_ARENA_MAX, ARENAS_MAX),
            (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
            (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
        ];
        for (name, value) in settings {
            // SAFETY: sets a number; the library refuses one that it does not take.
            unsafe { libc::mallopt(name, value) };
        }
    }

    pub fn give_back() {
        // SAFETY: may be called at any time, from any thread. It frees nothing that is in use.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Other C libraries have no such settings.
#[cfg(not(target_env = "gnu"))]
mod c_library {
    pub fn prepare() {}

    pub fn give_back() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the C library, which tests of this crate take their memory from.
    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_memory_goes_back_when_that_is_asked_for() {
        const MOST_BYTES: u64 = 32 << 20;
        prepare();
        let before = crate::resident_bytes();
        // Small pieces, with one left at the end of the heap: freeing alone gives nothing back.
        let mut pieces: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; 8 << 10]).collect();
        let held = crate::resident_bytes();
        assert!(held > before + MOST_BYTES, "{before} {held}");
        let last = pieces.pop();
        drop(pieces);
        give_back();
        let after = crate::resident_bytes();
        assert!(after + MOST_BYTES < held, "{held} {after}");
        drop(std::hint::black_box(last));
    }
}
