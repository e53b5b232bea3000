//! The first failure of a run: later ones follow from it.
//!
//! Owns: which failure is reported. Must not know: the check that found it.

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
