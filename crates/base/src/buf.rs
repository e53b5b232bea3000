//! Buffers aligned for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Alignment, in bytes, of buffers, file offsets and lengths that direct I/O takes.
pub const IO_ALIGN_BYTES: usize = 4096;

/// A heap buffer whose address is a multiple of [`IO_ALIGN_BYTES`]; zeroed when made.
///
/// `freeze` turns it into [`Bytes`] without a copy; slices of that at aligned offsets can be
/// written with O_DIRECT as they are.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
    capacity_bytes: usize,
    /// Where the memory goes when the buffer is dropped.
    pool: Option<BufPool>,
}

// SAFETY: the buffer owns its memory alone, like a `Vec<u8>`.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only allow reading.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A zeroed buffer of `len_bytes`; its capacity is rounded up to the alignment.
    pub fn zeroed(len_bytes: usize) -> Self {
        let capacity_bytes = len_bytes.max(1).next_multiple_of(IO_ALIGN_BYTES);
        let layout = Self::layout(capacity_bytes);
        // SAFETY: the layout has a size that is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Self {
            start,
            len_bytes,
            capacity_bytes,
            pool: None,
        }
    }

    /// A copy of `bytes` at an aligned address.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Bytes that the buffer can be resized to without a new allocation; a multiple of the alignment.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Changes the length within the capacity. Bytes that come in view are whatever they were.
    ///
    /// Panics when `len_bytes` is above [`Self::capacity_bytes`].
    pub fn set_len(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.capacity_bytes);
        self.len_bytes = len_bytes;
    }

    /// Gives the memory to a reference-counted [`Bytes`].
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn layout(capacity_bytes: usize) -> Layout {
        Layout::from_size_align(capacity_bytes, IO_ALIGN_BYTES).expect("buffer size fits isize")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(self.start);
            return;
        }
        // SAFETY: not of a pool, so allocated by `zeroed` with this same layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity_bytes)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid and initialised for `capacity_bytes >= len_bytes`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Size of the pages that a pool asks the kernel for.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Buffers of one size in one mapping, handed out again and again.
///
/// Large buffers that live for long cannot come from the heap: it gives them back to the kernel,
/// which clears every page again when it is touched. Receiving 1 MiB payloads so took 60% of the
/// server's time in `clear_page`; here a page is cleared once, and as part of a huge one (measured:
/// first touch 12 GB/s in huge pages, 2.4 GB/s in small ones).
///
/// Address space is reserved at once; memory is used as buffers are first handed out, lowest address
/// first, and given back by [`Self::trim`].
#[derive(Clone)]
pub struct BufPool(Arc<Region>);

struct Region {
    /// The mapping, which is a little longer so that `start` can be aligned to a huge page.
    mapping: *mut libc::c_void,
    mapping_len_bytes: usize,
    start: NonNull<u8>,
    slot_len_bytes: usize,
    slot_count: usize,
    slots: Mutex<Slots>,
}

// SAFETY: the region owns its mapping alone; which slots are in use is behind the mutex.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

#[derive(Default)]
struct Slots {
    /// Those below `touched_count` that nobody uses.
    free: BTreeSet<usize>,
    /// Slots from here on have no memory yet.
    touched_count: usize,
    /// One past the highest that was handed out since the last trim.
    peak: usize,
}

impl BufPool {
    /// Room for `slot_count` buffers of `slot_len_bytes` (rounded up to the alignment).
    ///
    /// If the address space cannot be had the pool has no room, and every buffer is of the heap.
    pub fn new(slot_len_bytes: usize, slot_count: usize) -> Self {
        let slot_len_bytes = slot_len_bytes.max(1).next_multiple_of(IO_ALIGN_BYTES);
        let len_bytes = slot_len_bytes.saturating_mul(slot_count);
        let mapping_len_bytes = len_bytes.saturating_add(HUGE_PAGE_BYTES);
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapping_len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let failed = mapping == libc::MAP_FAILED;
        let start = match failed {
            true => None,
            false => {
                let offset = mapping.addr().next_multiple_of(HUGE_PAGE_BYTES) - mapping.addr();
                // SAFETY: the mapping is longer than the slots by more than the offset.
                NonNull::new(unsafe { mapping.cast::<u8>().add(offset) })
            }
        };
        if let Some(start) = start {
            // SAFETY: inside of the mapping. A refusal only makes it slower.
            #[cfg(target_os = "linux")]
            unsafe {
                libc::madvise(start.as_ptr().cast(), len_bytes, libc::MADV_HUGEPAGE);
            }
        }
        Self(Arc::new(Region {
            mapping,
            mapping_len_bytes: if failed { 0 } else { mapping_len_bytes },
            start: start.unwrap_or(NonNull::dangling()),
            slot_len_bytes,
            slot_count: if start.is_some() { slot_count } else { 0 },
            slots: Mutex::default(),
        }))
    }

    pub fn capacity_bytes(&self) -> usize {
        self.0.slot_len_bytes
    }

    /// Bytes of memory kept for later.
    pub fn free_bytes(&self) -> usize {
        self.0.slots.lock().free.len() * self.0.slot_len_bytes
    }

    /// Bytes of memory that the pool has, in use or not.
    pub fn touched_bytes(&self) -> usize {
        self.0.slots.lock().touched_count * self.0.slot_len_bytes
    }

    /// A buffer of `len_bytes`; its content is whatever it was. It returns to this pool when it, or
    /// the last [`Bytes`] made of it, is dropped. From the heap if the pool has no room left.
    ///
    /// Panics when `len_bytes` is above [`Self::capacity_bytes`].
    pub fn take(&self, len_bytes: usize) -> AlignedBuf {
        assert!(len_bytes <= self.0.slot_len_bytes);
        let Some(slot) = self.0.slots.lock().take(self.0.slot_count) else {
            return AlignedBuf::zeroed(len_bytes);
        };
        AlignedBuf {
            // SAFETY: the slot is inside of the mapping, and was handed to nobody else.
            start: unsafe { self.0.start.add(slot * self.0.slot_len_bytes) },
            len_bytes,
            capacity_bytes: self.0.slot_len_bytes,
            pool: Some(self.clone()),
        }
    }

    fn put(&self, start: NonNull<u8>) {
        let slot = (start.addr().get() - self.0.start.addr().get()) / self.0.slot_len_bytes;
        let is_new = self.0.slots.lock().free.insert(slot);
        assert!(is_new);
    }

    /// Gives memory back that was not needed since the last call: call it from time to time.
    pub fn trim(&self) {
        let region = &*self.0;
        let mut slots = region.slots.lock();
        let slots_per_page = HUGE_PAGE_BYTES.div_ceil(region.slot_len_bytes);
        let keep = slots.end_of_use().max(slots.peak);
        let keep = keep.next_multiple_of(slots_per_page);
        slots.peak = 0;
        if keep >= slots.touched_count {
            return;
        }
        let len_bytes = (slots.touched_count - keep) * region.slot_len_bytes;
        slots.free.split_off(&keep);
        slots.touched_count = keep;
        // SAFETY: inside of the mapping, and no slot from `keep` on is in use: the lock is held.
        unsafe {
            let from = region.start.add(keep * region.slot_len_bytes);
            libc::madvise(from.as_ptr().cast(), len_bytes, libc::MADV_DONTNEED);
        }
    }
}

impl Slots {
    fn take(&mut self, slot_count: usize) -> Option<usize> {
        let slot = match self.free.pop_first() {
            Some(slot) => slot,
            None if self.touched_count < slot_count => {
                self.touched_count += 1;
                self.touched_count - 1
            }
            None => return None,
        };
        self.peak = self.peak.max(slot + 1);
        Some(slot)
    }

    /// One past the highest slot in use.
    fn end_of_use(&self) -> usize {
        let mut end = self.touched_count;
        for free in self.free.iter().rev() {
            if free + 1 != end {
                break;
            }
            end = *free;
        }
        end
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapping_len_bytes > 0 {
            // SAFETY: mapped by `new` with this length; every buffer holds the region, so none is left.
            unsafe { libc::munmap(self.mapping, self.mapping_len_bytes) };
        }
    }
}

/// Whether `bytes` can go to an O_DIRECT write as it is: aligned address and length.
pub fn is_io_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(IO_ALIGN_BYTES)
        && bytes.len().is_multiple_of(IO_ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_keeps_content_when_frozen() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(7);
            let bytes = buf.freeze();
            assert_eq!(bytes.len(), len);
            assert!(bytes.as_ptr().addr().is_multiple_of(IO_ALIGN_BYTES));
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn pool_hands_out_the_lowest_and_gives_back_the_rest() {
        const SLOT: usize = 1 << 20;
        let pool = BufPool::new(SLOT - 5, 8);
        assert_eq!(pool.capacity_bytes(), SLOT);
        let mut bufs: Vec<_> = (0..9).map(|_| pool.take(SLOT)).collect();
        assert_eq!((pool.touched_bytes(), pool.free_bytes()), (8 * SLOT, 0));
        let first = bufs[0].as_ptr();
        for (index, buf) in bufs.iter_mut().enumerate() {
            assert!(buf.as_ptr().addr().is_multiple_of(IO_ALIGN_BYTES));
            buf.fill(index as u8);
        }
        assert!((0..9).all(|index| bufs[index].iter().all(|byte| *byte == index as u8)));
        // The ninth is of the heap.
        bufs.truncate(8);
        pool.trim();
        assert_eq!(pool.touched_bytes(), 8 * SLOT);
        let last = bufs.split_off(3);
        let slice = bufs.remove(0).freeze().slice(7..9);
        drop(last);
        assert_eq!(pool.free_bytes(), 5 * SLOT);
        // They were in use since the last trim; at the next they were not.
        pool.trim();
        assert_eq!(pool.touched_bytes(), 4 * SLOT);
        assert_eq!(slice, [0, 0].as_slice());
        drop(slice);
        assert_eq!(pool.take(1).as_ptr(), first);
        drop(bufs);
        pool.trim();
        pool.trim();
        assert_eq!((pool.touched_bytes(), pool.free_bytes()), (0, 0));
        assert!(pool.take(SLOT).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn pool_without_room_uses_the_heap() {
        let pool = BufPool::new(4096, 0);
        assert_eq!(pool.take(100).len(), 100);
        assert_eq!(pool.touched_bytes(), 0);
        let impossible = BufPool::new(1 << 40, 1 << 20);
        assert_eq!(impossible.take(100).len(), 100);
    }
}
