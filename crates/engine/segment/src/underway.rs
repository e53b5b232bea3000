//! Counts background work of one kind, up to a limit.
//!
//! Owns: the number of running pieces, and waiting for their end. Must not know: the work.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Work of one kind. A waiter does not keep new work from beginning.
pub(crate) struct Underway {
    count_max: usize,
    state: Mutex<State>,
    one_ended: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    running: BTreeSet<u64>,
}

/// One piece of work; dropping it ends the piece.
pub(crate) struct Turn {
    all: Arc<Underway>,
    number: u64,
}

impl Underway {
    pub fn new(count_max: usize) -> Arc<Self> {
        Arc::new(Self {
            count_max,
            state: Mutex::default(),
            one_ended: Notify::new(),
        })
    }

    /// `None` if the limit is reached.
    pub fn begin(self: &Arc<Self>) -> Option<Turn> {
        let mut state = self.state.lock();
        if state.running.len() >= self.count_max {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.running.insert(number);
        Some(Turn {
            all: self.clone(),
            number,
        })
    }

    /// Waits until all work that began before this call has ended.
    pub async fn ended(&self) {
        let next = self.state.lock().next;
        loop {
            let mut one_ended = pin!(self.one_ended.notified());
            // From here on no end is missed.
            one_ended.as_mut().enable();
            let oldest = self.state.lock().running.first().copied();
            if oldest.is_none_or(|oldest| oldest >= next) {
                return;
            }
            one_ended.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.state.lock().running.remove(&self.number);
        self.all.one_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn who_waits_holds_nobody_up_and_waits_only_for_what_was_there() {
        let work = Underway::new(2);
        let first = work.begin().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(work.ended());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let second = work.begin().expect("while somebody waits");
        assert!(work.begin().is_none());
        let mut later = pin!(work.ended());
        assert!(later.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert!(later.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(later.as_mut().poll(&mut context).is_ready());
        let mut none = pin!(work.ended());
        assert!(none.as_mut().poll(&mut context).is_ready());
    }
}
