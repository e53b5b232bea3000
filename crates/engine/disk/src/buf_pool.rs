//! Read buffers that are used again, because zeroing a fresh one costs a pass over memory.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use parking_lot::Mutex;

/// Smallest and largest pooled buffer: powers of two between these; other lengths are allocated.
const CLASS_LEN_BYTES_MIN: usize = 4096;
const CLASS_LEN_BYTES_MAX: usize = 2 << 20;
const CLASS_COUNT: usize =
    (CLASS_LEN_BYTES_MAX.trailing_zeros() - CLASS_LEN_BYTES_MIN.trailing_zeros() + 1) as usize;
/// Most bytes kept of each class.
const CLASS_KEPT_BYTES_MAX: usize = 4 << 20;

#[derive(Default)]
pub(crate) struct BufPool {
    classes: [Mutex<Vec<AlignedBuf>>; CLASS_COUNT],
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
            .and_then(|class| self.classes.get(class)?.lock().pop())
            .unwrap_or_else(|| AlignedBuf::zeroed(len_bytes))
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
        let mut kept = class.lock();
        if kept.len() < CLASS_KEPT_BYTES_MAX / len_bytes {
            kept.push(buf);
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
}
