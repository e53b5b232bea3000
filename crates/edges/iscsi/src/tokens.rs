//! Tokens of a target: what blocks had at one moment, under a name that hosts can pass on.
//!
//! Owns: which tokens there are, how many and for how long. Must not know: commands, who may read or write what.
//!
//! The bytes of a token are a file without a name that shares the records of the LUN: what is written to the LUN later does not
//! change them. They take space for what the LUN has no more. A restart, or another owner of the volume, forgets all tokens:
//! hosts then copy by themselves.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next};
use cairn_codec_iscsi::same_bytes;
use cairn_codec_scsi::{NAA_LEN_BYTES, RodToken, RodTokenBytes};
use cairn_fs::Unnamed;
use parking_lot::Mutex;

/// Of one target.
pub const TOKEN_COUNT_MAX: usize = 256;
/// Of one initiator, so that one alone cannot have them all.
const COUNT_PER_INITIATOR_MAX: usize = 64;
/// A token that nobody uses for so long is gone, unless the host asks for another time.
pub const INACTIVITY: Duration = Duration::from_secs(60);
pub const INACTIVITY_MAX: Duration = Duration::from_secs(600);
/// Used or not.
pub const LIFETIME_MAX: Duration = Duration::from_secs(3600);
/// Bytes that one token stands for: while it is made nobody writes to the LUN.
pub const TOKEN_LEN_BYTES_MAX: u64 = 1 << 30;
/// Between two looks at which are over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A token that can be used.
pub struct Token {
    file: Unnamed,
    bytes: RodTokenBytes,
    begun: Duration,
    inactivity: Duration,
    used: Mutex<Duration>,
}

impl Token {
    /// The file that has its bytes.
    pub fn ino(&self) -> Ino {
        self.file.ino()
    }

    pub fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn is_over(&self, now: Duration) -> bool {
        let idle = now.saturating_sub(*self.used.lock());
        idle >= self.inactivity || now.saturating_sub(self.begun) >= LIFETIME_MAX
    }
}

struct Entry {
    initiator: String,
    /// `None` while it is made.
    token: Option<Arc<Token>>,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    is_swept: bool,
}

/// All tokens of a target.
pub struct Tokens {
    env: Env,
    state: Mutex<State>,
}

/// A place for a token that is being made; given back if that fails.
pub struct Making<'a> {
    tokens: &'a Arc<Tokens>,
    id: u64,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.tokens.state.lock();
        if state
            .entries
            .get(&self.id)
            .is_some_and(|entry| entry.token.is_none())
        {
            state.entries.remove(&self.id);
        }
    }
}

impl Tokens {
    pub fn new(env: Env) -> Arc<Self> {
        Arc::new(Self {
            env,
            state: Mutex::default(),
        })
    }

    pub fn count(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Takes a place for one more token; `None`: there are as many as there may be.
    pub fn begin(self: &Arc<Self>, initiator: &str) -> Option<Making<'_>> {
        self.sweep();
        let mut state = self.state.lock();
        let entries = &mut state.entries;
        let own = entries
            .values()
            .filter(|entry| entry.initiator == initiator);
        if entries.len() >= TOKEN_COUNT_MAX || own.count() >= COUNT_PER_INITIATOR_MAX {
            return None;
        }
        // Nobody who knows one number knows another.
        let id = loop {
            let id = self.env.entropy.u64();
            if !entries.contains_key(&id) {
                break id;
            }
        };
        let entry = Entry {
            initiator: initiator.to_owned(),
            token: None,
        };
        entries.insert(id, entry);
        Some(Making { tokens: self, id })
    }

    /// The token with these bytes, which is then in use.
    pub fn find(&self, id: u64, bytes: &RodTokenBytes) -> Option<Arc<Token>> {
        self.sweep();
        let token = self.state.lock().entries.get(&id)?.token.clone()?;
        if !same_bytes(&token.bytes, bytes) {
            return None;
        }
        *token.used.lock() = self.env.clock.monotonic();
        Some(token)
    }

    pub fn delete(&self, id: u64) {
        let gone = self.state.lock().entries.remove(&id);
        // Not under the lock: a file goes with it.
        drop(gone);
    }

    /// Forgets those that are over. Who uses one still has it.
    fn sweep(&self) {
        let now = self.env.clock.monotonic();
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        state.entries.retain(|_, entry| match &entry.token {
            Some(token) if token.is_over(now) => {
                gone.extend(entry.token.take());
                false
            }
            _ => true,
        });
        drop(state);
    }

    /// Sweeps for as long as there is something.
    fn keep_sweeping(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state.lock().is_swept, true) {
            return;
        }
        let tokens = Arc::downgrade(self);
        let sweep = move || {
            let Some(tokens) = Weak::upgrade(&tokens) else {
                return ready(Next::End);
            };
            tokens.sweep();
            let mut state = tokens.state.lock();
            if state.entries.is_empty() {
                state.is_swept = false;
                return ready(Next::End);
            }
            ready(Next::Period)
        };
        Job::every("iscsi-tokens", SWEEP_INTERVAL).start(&self.env, sweep);
    }
}

impl Making<'_> {
    /// The token is made: its bytes are in the file. Returns what hosts name it by.
    pub fn finish(
        self,
        file: Unnamed,
        naa: [u8; NAA_LEN_BYTES],
        block_len_bytes: u32,
        inactivity: Duration,
    ) -> RodTokenBytes {
        let tokens = self.tokens;
        let mut secret = [0; 32];
        tokens.env.entropy.fill(&mut secret);
        let bytes = RodToken {
            id: self.id,
            naa,
            block_len_bytes,
            len_bytes: file.len_bytes(),
            secret,
        }
        .encode();
        let now = tokens.env.clock.monotonic();
        let token = Token {
            file,
            bytes,
            begun: now,
            inactivity,
            used: Mutex::new(now),
        };
        if let Some(entry) = tokens.state.lock().entries.get_mut(&self.id) {
            entry.token = Some(Arc::new(token));
        }
        tokens.keep_sweeping();
        bytes
    }
}
