//! The end of a connection, and why.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Ends once, for the first reason that somebody gives.
#[derive(Default)]
pub(crate) struct Breaker {
    reason: Mutex<Option<String>>,
    broken: Notify,
}

impl Breaker {
    pub(crate) fn break_off(&self, reason: impl Into<String>) {
        {
            let mut known = self.reason.lock();
            if known.is_some() {
                return;
            }
            *known = Some(reason.into());
        }
        self.broken.notify_waiters();
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Resolves at the end.
    pub(crate) async fn broken(&self) -> String {
        loop {
            let broken = self.broken.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            broken.await;
        }
    }
}
