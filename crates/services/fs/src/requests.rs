//! Requests that were done before the volume was opened here: by an earlier owner, or before a restart.
//!
//! Owns: which of them are kept, and for how long they are looked for.
//! Must not know: what a client sends, what it is answered.
//!
//! A change carries its request in its own batch, so that one is there exactly if the other is. A client that got no reply
//! sends it again, to whoever serves the volume then, and must not be told that a name is gone which it removed itself.
//! While the volume stays open the edge's own memory knows that; this is for what it forgot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_meta::{Batch, Key, MetaError, MetaStore, RequestRecord};
use parking_lot::Mutex;

use crate::types::{Credentials, RequestId};

/// So many are kept, the last ones: more than are under way at any time, which is what clients may send again.
pub const REQUESTS_KEPT: u16 = 8192;
/// After the volume was opened they are looked for so long. Clients send again within a minute; much later the same number
/// may be another request's.
const LOOKED_FOR: Duration = Duration::from_secs(300);
/// Read at a time.
const SCAN_MAX: usize = 1024;

pub(crate) struct Requests {
    next: AtomicU64,
    until: Duration,
    earlier: Mutex<HashMap<RequestId, Ino>>,
}

impl Requests {
    /// Reads those of earlier lives.
    pub fn open(env: &Env, meta: &MetaStore) -> Result<Self, MetaError> {
        let (mut from, to) = Key::requests();
        let (mut next, mut earlier) = (0, HashMap::new());
        loop {
            let found = meta.live().scan(&from, &to, SCAN_MAX)?;
            for (_, value) in &found {
                let record = RequestRecord::decode(value)?;
                next = next.max(record.sequence.saturating_add(1));
                earlier.insert(RequestId(record.id), record.ino);
            }
            match found.last() {
                Some((last, _)) if found.len() == SCAN_MAX => from = last.successor(),
                _ => break,
            }
        }
        Ok(Self {
            next: AtomicU64::new(next),
            until: env.clock.monotonic().saturating_add(LOOKED_FOR),
            earlier: Mutex::new(earlier),
        })
    }

    /// Has a batch say that it does what somebody asked for, and on which inode.
    pub fn note(&self, batch: &mut Batch, who: &Credentials, ino: Ino) {
        let Some(RequestId(id)) = who.request else {
            return;
        };
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        // It fits: it is below the number of those that are kept.
        let slot = (sequence % u64::from(REQUESTS_KEPT)) as u16;
        let record = RequestRecord { id, sequence, ino };
        batch.put(Key::request(slot), record.encode());
    }

    /// The inode that a request made or changed before the volume was opened, if it did.
    pub fn made_before(&self, env: &Env, id: &RequestId) -> Option<Ino> {
        let mut earlier = self.earlier.lock();
        if !earlier.is_empty() && env.clock.monotonic() >= self.until {
            *earlier = HashMap::new();
        }
        earlier.get(id).copied()
    }
}
