//! Requests that were done before the volume was opened here: by an earlier owner, or before a restart.
//!
//! Owns: which of them are kept, and how long they are searched. Must not know: the contents of requests and replies.
//!
//! A change stores its request in its own batch, so the request is stored if and only if the change is. A client that
//! got no reply repeats the request to the node that then serves the volume. It must not be told that a name is gone
//! which it removed itself. While the volume stays open, the edge's own memory knows that; this module covers
//! requests that the edge has forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_meta::{Batch, Key, MetaError, RequestRecord};
use parking_lot::Mutex;

use super::metadata::Metadata;
use crate::types::RequestId;

/// The number of kept requests, the last ones: more than are ever in progress, which are those that clients may repeat.
pub const REQUESTS_KEPT: u16 = 8192;
/// Requests are searched for so long after the volume was opened. Clients repeat a request within a minute; much
/// later another request may have the same number.
const LOOKED_FOR: Duration = Duration::from_secs(300);
/// Keys that are read at a time.
const SCAN_MAX: usize = 1024;

pub(crate) struct Requests {
    next: AtomicU64,
    until: Duration,
    earlier: Mutex<HashMap<RequestId, Ino>>,
}

impl Requests {
    /// Reads the requests from before this opening.
    pub fn open(env: &Env, meta: &Metadata) -> Result<Self, MetaError> {
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

    /// Adds a client's request, and the inode it is about, to the batch that fulfils it.
    pub fn note(&self, batch: &mut Batch, RequestId(id): RequestId, ino: Ino) {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(ino != Ino(0), "a request is about an inode");
        // It fits: it is below [`REQUESTS_KEPT`].
        let slot = (sequence % u64::from(REQUESTS_KEPT)) as u16;
        let record = RequestRecord { id, sequence, ino };
        assert!(slot < REQUESTS_KEPT);
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
