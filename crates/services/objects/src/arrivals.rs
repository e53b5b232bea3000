//! In which order changes of an object came.
//!
//! Owns: that a change which was begun before another one of the same key is not done after it. Must not know: what is
//! changed.
//!
//! A change may be under way for long: its bytes come slowly, or disks that it needs are away. Its client gives it up
//! meanwhile, sends it again and then newer ones, which are answered. What was begun before those comes too late then. Only
//! keys with a change under way are kept here.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_base::Ino;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::records::ObjectError;

/// A name in a directory.
type Key = (Ino, Box<[u8]>);

/// Changes that are under way in one volume.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    number_last: u64,
    keys: HashMap<Key, OfKey>,
}

struct OfKey {
    count: usize,
    /// The newest of those that are done; held while one is being done.
    done: Arc<tokio::sync::Mutex<u64>>,
}

/// A change that was begun.
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    key: Key,
    number: u64,
    done: Arc<tokio::sync::Mutex<u64>>,
}

/// Held while a change is being done; no other one of the key is.
pub(crate) struct Due<'a> {
    done: tokio::sync::MutexGuard<'a, u64>,
    number: u64,
}

impl Arrivals {
    /// A change begins.
    pub fn arrive(self: &Arc<Self>, dir: Ino, name: &[u8]) -> Arrival {
        let mut under_way = self.0.lock();
        under_way.number_last += 1;
        let number = under_way.number_last;
        let key: Key = (dir, name.into());
        let of_key = under_way.keys.entry(key.clone()).or_insert_with(|| OfKey {
            count: 0,
            done: Arc::default(),
        });
        of_key.count += 1;
        let done = Arc::clone(&of_key.done);
        drop(under_way);
        Arrival {
            arrivals: Arc::clone(self),
            key,
            number,
            done,
        }
    }
}

impl Arrival {
    /// Waits until no other change of the key is being done. [`ObjectError::Late`] if one was done that came later.
    pub(crate) async fn due(&self) -> Result<Due<'_>, ObjectError> {
        let done = self.done.lock().await;
        match *done > self.number && !planted::is(Bug::LateObjectChangeDone) {
            true => Err(ObjectError::Late),
            false => Ok(Due {
                done,
                number: self.number,
            }),
        }
    }
}

impl Due<'_> {
    /// It is done.
    pub fn done(mut self) {
        *self.done = self.number;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut under_way = self.arrivals.0.lock();
        if let Some(of_key) = under_way.keys.get_mut(&self.key) {
            of_key.count -= 1;
            if of_key.count == 0 {
                under_way.keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn what_came_before_is_not_done_after() {
        let arrivals = Arc::new(Arrivals::default());
        let arrive = |name: &str| arrivals.arrive(Ino(1), name.as_bytes());
        let (old, other, new) = (arrive("a"), arrive("b"), arrive("a"));
        new.due().await.unwrap().done();
        assert!(matches!(old.due().await, Err(ObjectError::Late)));
        other.due().await.unwrap().done();
        // What came later still is done.
        let newest = arrive("a");
        newest.due().await.unwrap().done();
        assert!(matches!(new.due().await, Err(ObjectError::Late)));
        drop((old, new, newest, other));
        assert!(arrivals.0.lock().keys.is_empty());
    }

    #[test]
    fn a_late_change_that_is_done_is_noticed() {
        let test: fn() = what_came_before_is_not_done_after;
        assert!(planted::is_noticed_by(Bug::LateObjectChangeDone, test));
    }

    #[tokio::test]
    async fn one_change_of_a_key_is_done_at_a_time() {
        let arrivals = Arc::new(Arrivals::default());
        let (old, new) = (arrivals.arrive(Ino(1), b"a"), arrivals.arrive(Ino(1), b"a"));
        let doing = old.due().await.unwrap();
        let mut waiting = Box::pin(new.due());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        // What failed was not done.
        drop(doing);
        waiting.await.unwrap().done();
        assert!(old.due().await.is_err());
    }
}
