//! The first thing that went wrong in a run: whatever sees more of it later follows from that.
//!
//! Owns: which failure is told. Must not know: who sees what.

use parking_lot::Mutex;

#[derive(Default)]
pub struct FirstFailure(Mutex<Option<String>>);

impl FirstFailure {
    pub fn note(&self, what: impl Into<String>) {
        self.0.lock().get_or_insert_with(|| what.into());
    }

    pub fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
