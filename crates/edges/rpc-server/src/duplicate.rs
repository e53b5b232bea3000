//! The duplicate request cache: a request that changes something is done once, however often the
//! client sends it.
//!
//! Owns: the replies of recent requests that must not be repeated, and who waits for one of them.
//! Must not know: what the requests do, connections. A program that wants such a cache has one of its own.
//!
//! TCP does not lose requests, but connections break between the request and its reply; the client
//! then sends the request again, over whichever connection it has. The cache is in memory only: after a
//! restart a repeated REMOVE says NOENT, as with every other NFSv3 server.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

/// How many may wait for one request. More are dropped; the client will send again.
const WAITER_COUNT_MAX: usize = 4;
const SHARD_COUNT: usize = 16;
/// What an entry costs beyond its reply.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// Tells requests apart. The port is left out: a client may come back from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    pub client: IpAddr,
    pub xid: u32,
    pub procedure: u32,
    /// Hash of whatever else tells requests of one number apart.
    pub digest: u64,
}

impl RequestKey {
    /// All of it, the same on every node.
    pub fn to_bytes(self) -> [u8; 32] {
        let client = match self.client.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&client.octets());
        bytes[16..20].copy_from_slice(&self.xid.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.procedure.to_be_bytes());
        bytes[24..].copy_from_slice(&self.digest.to_be_bytes());
        bytes
    }
}

/// The decision on a request.
pub enum Admission {
    /// Do it, and tell the guard the reply.
    New(Guard),
    /// It is being done; the reply will come here, or an error if it was given up.
    Wait(oneshot::Receiver<Bytes>),
    /// It was done, with this reply.
    Done(Bytes),
    /// It is being done and enough others wait.
    Drop,
}

enum State {
    Running {
        number: u64,
        waiters: Vec<oneshot::Sender<Bytes>>,
    },
    Done {
        number: u64,
        reply: Bytes,
    },
}

#[derive(Default)]
struct Shard {
    states: FxHashMap<RequestKey, State>,
    /// Requests that are done, oldest first, with the number that tells an entry from a later one of its key.
    done: VecDeque<(RequestKey, u64)>,
    done_bytes: usize,
    number_next: u64,
}

/// The cache. Cheap to clone.
#[derive(Clone)]
pub struct Duplicates(Arc<CacheCore>);

struct CacheCore {
    shards: [Mutex<Shard>; SHARD_COUNT],
    shard_count_max: usize,
    shard_bytes_max: usize,
}

impl Duplicates {
    /// Keeps at most so many replies and bytes; the oldest go first. Requests that run are not counted
    /// here, because the limits of connections bound them.
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self(Arc::new(CacheCore {
            shards: Default::default(),
            shard_count_max: count_max.div_ceil(SHARD_COUNT),
            shard_bytes_max: bytes_max.div_ceil(SHARD_COUNT),
        }))
    }

    pub fn admit(&self, key: RequestKey) -> Admission {
        let mut shard = self.0.shard(&key).lock();
        let number = shard.number_next;
        match shard.states.entry(key) {
            Entry::Occupied(mut entry) => match entry.get_mut() {
                State::Done { reply, .. } => Admission::Done(reply.clone()),
                State::Running { waiters, .. } => {
                    waiters.retain(|waiter| !waiter.is_closed());
                    if waiters.len() >= WAITER_COUNT_MAX {
                        return Admission::Drop;
                    }
                    let (sender, receiver) = oneshot::channel();
                    waiters.push(sender);
                    Admission::Wait(receiver)
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(State::Running {
                    number,
                    waiters: Vec::new(),
                });
                shard.number_next = number.wrapping_add(1);
                Admission::New(Guard {
                    cache: Arc::clone(&self.0),
                    key,
                    number,
                })
            }
        }
    }

    /// Replies kept, and what they cost in bytes.
    pub fn usage(&self) -> (usize, usize) {
        self.0.shards.iter().fold((0, 0), |(count, bytes), shard| {
            let shard = shard.lock();
            (count + shard.done.len(), bytes + shard.done_bytes)
        })
    }
}

impl CacheCore {
    fn shard(&self, key: &RequestKey) -> &Mutex<Shard> {
        &self.shards[(key.digest ^ u64::from(key.xid)) as usize % SHARD_COUNT]
    }

    /// Tells those who wait, and forgets the request: the reply is none to keep.
    fn tell(&self, key: &RequestKey, number: u64, reply: &Bytes) {
        let mut shard = self.shard(key).lock();
        let is_own =
            |state: &State| matches!(state, State::Running { number: at, .. } if *at == number);
        let state = match shard.states.get(key).is_some_and(is_own) {
            true => shard.states.remove(key),
            false => None,
        };
        drop(shard);
        if let Some(State::Running { waiters, .. }) = state {
            for waiter in waiters {
                // A waiter that has gone needs no reply.
                let _ = waiter.send(reply.clone());
            }
        }
    }

    fn finish(&self, key: &RequestKey, number: u64, reply: Bytes) {
        let mut shard = self.shard(key).lock();
        let done = State::Done {
            number,
            reply: reply.clone(),
        };
        let before = shard.states.insert(*key, done);
        shard.done.push_back((*key, number));
        shard.done_bytes += cost(&reply);
        while shard.done.len() > self.shard_count_max || shard.done_bytes > self.shard_bytes_max {
            let Some((oldest, number)) = shard.done.pop_front() else {
                break;
            };
            shard.forget(&oldest, number);
        }
        drop(shard);
        if let Some(State::Running { waiters, .. }) = before {
            for waiter in waiters {
                // A waiter that has gone needs no reply.
                let _ = waiter.send(reply.clone());
            }
        }
    }

    /// The request did not run to its end: forget it, so that it can be tried again.
    fn abandon(&self, key: &RequestKey, number: u64) {
        let mut shard = self.shard(key).lock();
        if let Some(State::Running { number: at, .. }) = shard.states.get(key)
            && *at == number
        {
            shard.states.remove(key);
        }
    }
}

impl Shard {
    fn forget(&mut self, key: &RequestKey, number: u64) {
        if let Some(State::Done { number: at, reply }) = self.states.get(key)
            && *at == number
        {
            self.done_bytes -= cost(reply);
            self.states.remove(key);
        }
    }
}

fn cost(reply: &Bytes) -> usize {
    reply.len() + ENTRY_OVERHEAD_BYTES
}

/// The duty to do a request once. Dropped without a reply, the request is forgotten.
pub struct Guard {
    cache: Arc<CacheCore>,
    key: RequestKey,
    number: u64,
}

impl Guard {
    pub fn finish(self, reply: Bytes) {
        self.cache.finish(&self.key, self.number, reply);
        // The drop that follows finds the request done and leaves it.
    }

    /// Answers those who wait with a reply that says "not now". The request is not done: a client that repeats it has it done.
    pub fn not_now(self, reply: &Bytes) {
        match planted::is(Bug::HeldReplyKept) {
            true => self.cache.finish(&self.key, self.number, reply.clone()),
            false => self.cache.tell(&self.key, self.number, reply),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.cache.abandon(&self.key, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(xid: u32) -> RequestKey {
        RequestKey {
            client: IpAddr::from([10, 0, 0, 1]),
            xid,
            procedure: 8,
            digest: 5,
        }
    }

    fn guard(cache: &Duplicates, key: RequestKey) -> Guard {
        match cache.admit(key) {
            Admission::New(guard) => guard,
            _ => panic!("{key:?} is known already"),
        }
    }

    #[test]
    fn what_says_not_now_is_told_and_not_kept() {
        let cache = Duplicates::new(100, 100_000);
        let first = guard(&cache, key(1));
        let Admission::Wait(mut waiting) = cache.admit(key(1)) else {
            panic!("it is not being done");
        };
        first.not_now(&Bytes::from_static(b"later"));
        assert_eq!(waiting.try_recv().unwrap(), "later");
        guard(&cache, key(1)).finish(Bytes::from_static(b"done"));
        assert!(matches!(cache.admit(key(1)), Admission::Done(reply) if reply == "done"));
        assert_eq!(cache.usage().0, 1);
    }

    #[test]
    fn a_reply_that_is_kept_and_says_not_now_is_noticed() {
        let test: fn() = what_says_not_now_is_told_and_not_kept;
        assert!(planted::is_noticed_by(Bug::HeldReplyKept, test));
    }

    #[test]
    fn a_request_done_is_answered_from_memory() {
        let cache = Duplicates::new(100, 100_000);
        guard(&cache, key(1)).finish(Bytes::from_static(b"reply"));
        assert!(matches!(cache.admit(key(1)), Admission::Done(reply) if reply == "reply"));
        for other in [
            key(2),
            RequestKey {
                digest: 6,
                ..key(1)
            },
            RequestKey {
                procedure: 9,
                ..key(1)
            },
            RequestKey {
                client: IpAddr::from([10, 0, 0, 2]),
                ..key(1)
            },
        ] {
            drop(guard(&cache, other));
        }
    }

    #[test]
    fn a_running_request_is_waited_for() {
        let cache = Duplicates::new(100, 100_000);
        let running = guard(&cache, key(1));
        let mut waiting: Vec<_> = (0..WAITER_COUNT_MAX)
            .map(|_| match cache.admit(key(1)) {
                Admission::Wait(receiver) => receiver,
                _ => panic!("the request runs"),
            })
            .collect();
        assert!(matches!(cache.admit(key(1)), Admission::Drop));
        // One that gave up makes room.
        waiting.pop();
        assert!(matches!(cache.admit(key(1)), Admission::Wait(_)));
        running.finish(Bytes::from_static(b"reply"));
        for mut receiver in waiting {
            assert_eq!(receiver.try_recv().unwrap(), "reply");
        }
    }

    #[test]
    fn a_request_given_up_can_be_tried_again() {
        let cache = Duplicates::new(100, 100_000);
        let running = guard(&cache, key(1));
        let Admission::Wait(mut receiver) = cache.admit(key(1)) else {
            panic!("the request runs");
        };
        drop(running);
        assert!(receiver.try_recv().is_err());
        drop(guard(&cache, key(1)));
    }

    #[test]
    fn count_and_bytes_are_bounded() {
        let cache = Duplicates::new(64, 1 << 20);
        for xid in 0..10_000 {
            guard(&cache, key(xid)).finish(Bytes::from_static(b"reply"));
        }
        assert_eq!(cache.usage().0, 64);
        assert!(matches!(cache.admit(key(9_999)), Admission::Done(_)));
        drop(guard(&cache, key(0)));

        let cache = Duplicates::new(1 << 20, 64 << 10);
        for xid in 0..10_000 {
            guard(&cache, key(xid)).finish(Bytes::from(vec![0; 1000]));
        }
        assert!(cache.usage().1 <= 64 << 10);
        // A reply larger than everything is simply not kept.
        let cache = Duplicates::new(16, 16);
        guard(&cache, key(1)).finish(Bytes::from_static(b"reply"));
        assert_eq!(cache.usage(), (0, 0));
        drop(guard(&cache, key(1)));
    }
}
