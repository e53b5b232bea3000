//! Access keys that were revoked and that their volumes could not forget yet.
//!
//! Owns: their names, for as long as the process lives. Must not know: why a volume takes no changes.
//!
//! A volume without room is served to be read, and takes no changes, the removal of a key included. The key is refused here all the
//! same, also when the volume is reopened, and removed from the volume by the first opening that can change it. There are at most as
//! many names as there are keys: only a key that its volume has comes here.

use std::collections::BTreeSet;

use parking_lot::RwLock;

/// Names of access keys that are refused whatever their volumes say. One for all volumes: names are never given again.
#[derive(Default)]
pub struct Barred(RwLock<BTreeSet<String>>);

impl Barred {
    pub(crate) fn add(&self, id: &str) {
        self.0.write().insert(id.to_owned());
    }

    /// Its volume has forgotten it.
    pub(crate) fn remove(&self, id: &str) {
        self.0.write().remove(id);
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.read().contains(id)
    }
}
