//! Read buffers that are used again, because zeroing a fresh one costs a pass over memory.
//!
//! Owns: how many are kept while nobody uses them, of all disks that share them. Must not know: who reads what.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::AlignedBuf;
use parking_lot::Mutex;

/// Smallest and largest pooled buffer: powers of two between these; other lengths are allocated.
const CLASS_LEN_BYTES_MIN: usize = 4096;
const CLASS_LEN_BYTES_MAX: usize = 2 << 20;
const CLASS_COUNT: usize =
    (CLASS_LEN_BYTES_MAX.trailing_zeros() - CLASS_LEN_BYTES_MIN.trailing_zeros() + 1) as usize;
/// Most bytes that are kept, unless that is set.
const KEPT_BYTES_MAX_DEFAULT: usize = 16 << 20;
/// A class keeps at most this part of it.
const CLASS_PART: usize = 4;
const _: () = assert!(KEPT_BYTES_MAX_DEFAULT / CLASS_PART >= CLASS_LEN_BYTES_MAX);

/// Buffers that disks read into, kept for the next reads. Disks that are given the same ones share them; cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct ReadBuffers(pub(crate) Arc<BufPool>);

impl ReadBuffers {
    /// Bytes of unused buffers that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.0.kept_bytes.load(Ordering::Relaxed)
    }

    /// Keeps at most so many bytes from now on, and frees unused buffers beyond that.
    pub fn set_kept_bytes_max(&self, bytes: usize) {
        self.0.kept_bytes_max.store(bytes, Ordering::Relaxed);
        self.0.drop_beyond(bytes);
    }

    /// Frees everything that is kept.
    pub fn give_back(&self) {
        self.0.drop_beyond(0);
    }
}

#[derive(Debug)]
pub(crate) struct BufPool {
    classes: [Mutex<Vec<IdleBuffer>>; CLASS_COUNT],
    kept_bytes: AtomicUsize,
    kept_bytes_max: AtomicUsize,
}

/// A buffer that nobody uses.
struct IdleBuffer(AlignedBuf);

impl std::fmt::Debug for IdleBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Default for BufPool {
    fn default() -> Self {
        Self {
            classes: Default::default(),
            kept_bytes: AtomicUsize::new(0),
            kept_bytes_max: AtomicUsize::new(KEPT_BYTES_MAX_DEFAULT),
        }
    }
}

/// Only exact powers of two: a cache that holds a slice must not pin more memory than it counts.
fn class_of(len_bytes: usize) -> Option<usize> {
    let fits = len_bytes.is_power_of_two()
        && (CLASS_LEN_BYTES_MIN..=CLASS_LEN_BYTES_MAX).contains(&len_bytes);
    fits.then(|| (len_bytes.trailing_zeros() - CLASS_LEN_BYTES_MIN.trailing_zeros()) as usize)
}

impl BufPool {
    /// A buffer of `len_bytes` with any content.
    pub(crate) fn take(&self, len_bytes: usize) -> AlignedBuf {
        class_of(len_bytes)
            .and_then(|class| self.take_kept(class))
            .unwrap_or_else(|| AlignedBuf::zeroed(len_bytes))
    }

    fn take_kept(&self, class: usize) -> Option<AlignedBuf> {
        let IdleBuffer(buf) = self.classes.get(class)?.lock().pop()?;
        self.kept_bytes.fetch_sub(buf.len(), Ordering::Relaxed);
        Some(buf)
    }

    /// `Bytes` over `buf` that give it back to the pool when the last of them is dropped.
    pub(crate) fn freeze(self: &Arc<Self>, buf: AlignedBuf) -> Bytes {
        if class_of(buf.len()).is_none() {
            return buf.freeze();
        }
        Bytes::from_owner(Pooled {
            buf: Some(buf),
            pool: self.clone(),
        })
    }

    fn give_back(&self, buf: AlignedBuf) {
        let len_bytes = buf.len();
        let Some(class) = class_of(len_bytes).and_then(|class| self.classes.get(class)) else {
            return;
        };
        let max_bytes = self.kept_bytes_max.load(Ordering::Relaxed);
        let mut kept = class.lock();
        let of_class = kept.len() * len_bytes;
        // Several that come at once may be a few too many: each class has its own bound.
        let of_all = self.kept_bytes.load(Ordering::Relaxed);
        if of_class + len_bytes <= max_bytes / CLASS_PART && of_all + len_bytes <= max_bytes {
            kept.push(IdleBuffer(buf));
            self.kept_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        }
    }

    /// Frees buffers until at most `bytes` are kept, the largest first.
    fn drop_beyond(&self, bytes: usize) {
        for class in self.classes.iter().rev() {
            while self.kept_bytes.load(Ordering::Relaxed) > bytes {
                let Some(IdleBuffer(buf)) = class.lock().pop() else {
                    break;
                };
                self.kept_bytes.fetch_sub(buf.len(), Ordering::Relaxed);
            }
        }
    }
}

struct Pooled {
    buf: Option<AlignedBuf>,
    pool: Arc<BufPool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.pool.give_back(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_are_bounded() {
        let pool = Arc::new(BufPool::default());
        let held: Vec<Bytes> = (0..8).map(|_| pool.freeze(pool.take(1 << 20))).collect();
        drop(held);
        assert_eq!(pool.classes[8].lock().len(), 4);
        drop(pool.freeze(pool.take(12288)));
        assert_eq!(pool.take(12288).len(), 12288);
        assert_eq!(pool.take(1 << 20).len(), 1 << 20);
        assert_eq!(pool.classes[8].lock().len(), 3);
    }

    #[test]
    fn disks_keep_no_more_together_than_one_alone() {
        let buffers = ReadBuffers::default();
        let of_disks = [buffers.clone(), buffers.clone(), buffers.clone()];
        let use_all = || {
            let mut held: Vec<Bytes> = Vec::new();
            for len_bytes in (12..=21).map(|bits| 1_usize << bits) {
                for ReadBuffers(pool) in &of_disks {
                    for _ in 0..(2 << 20) / len_bytes {
                        held.push(pool.freeze(pool.take(len_bytes)));
                    }
                }
            }
        };
        use_all();
        assert_eq!(buffers.kept_bytes(), KEPT_BYTES_MAX_DEFAULT);
        buffers.set_kept_bytes_max(1 << 20);
        assert!(buffers.kept_bytes() <= 1 << 20);
        use_all();
        let kept = buffers.kept_bytes();
        assert!((1..=1 << 20).contains(&kept), "{kept}");
        buffers.give_back();
        assert_eq!(buffers.kept_bytes(), 0);
        // A kept buffer counts once, however often it comes and goes.
        drop(of_disks[0].0.freeze(of_disks[0].0.take(4096)));
        drop(of_disks[1].0.freeze(of_disks[1].0.take(4096)));
        assert_eq!(buffers.kept_bytes(), 4096);
    }
}
