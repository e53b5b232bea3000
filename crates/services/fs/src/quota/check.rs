//! Decides whether a quota admits a change.
//!
//! Owns: which bytes count as used, which changes are refused, which wait until the usage is known. Must not know:
//! how quotas are set.
//!
//! Admitted bytes are pending until they are extents. Then they count by their true amount, which is less where they
//! replaced others. Near a limit a writer waits for the pending bytes, and later writers wait for it: otherwise a
//! steady row of overwrites would keep the true usage unknown for ever.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_meta::{Owner, QuotaLimit, UsageRecord};
use smallvec::SmallVec;

use super::is_branch;
use crate::kernel::{Charged, Domain, Domains, Inode, Limits, State, owner_of};
use crate::types::FsError;
use crate::volume::VolumeCore;

/// Admitted bytes that are not in memory yet; they are pending until this is dropped.
pub(crate) struct Room {
    held: Option<(Arc<VolumeCore>, Domains, u64)>,
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((shared, domains, bytes)) = &self.held {
            add_pending(domains, -(*bytes as i64));
            if shared.quotas.is_near_limit() {
                // The waiting writers check again.
                shared.dirty.note_failure();
            }
        }
    }
}

fn add_pending(domains: &Domains, delta: i64) {
    for domain in domains.iter() {
        domain.add_pending(delta);
    }
}

fn add_fresh(domains: &Domains, delta: i64) {
    for domain in domains.iter() {
        domain.add_fresh(delta);
    }
}

fn add_reserved(domains: &Domains, delta: i64) {
    for domain in domains.iter() {
        domain.add_reserved(delta);
    }
}

/// The additional usage that a change asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More {
    pub inodes: u64,
    pub bytes: u64,
    /// Whether pending bytes of others count, too.
    pub with_pending: bool,
}

impl Domain {
    fn used_bytes(limits: &Limits, usage: &UsageRecord) -> u64 {
        match limits.is_physical {
            true => usage.stored_bytes,
            false => usage.file_bytes,
        }
    }

    /// Whether the quota admits so much more. Notes when usage passes soft limits, or falls below them.
    fn lets_in(&self, usage: &UsageRecord, more: More, now_seconds: u64) -> Verdict {
        let limits = self.limits();
        let mut verdict = Verdict::default();
        let pending = match more.with_pending {
            true => self.pending_bytes(),
            false => self.reserved_bytes(),
        };
        let more_bytes = pending.saturating_add(more.bytes);
        let used = Self::used_bytes(&limits, usage);
        let at = (&self.bytes_since, &limits.bytes);
        verdict.add(at, used, more_bytes, &limits, now_seconds);
        // A change without new inodes is not refused for the present number.
        if more.inodes > 0 {
            let at = (&self.files_since, &limits.files);
            verdict.add(at, usage.inodes, more.inodes, &limits, now_seconds);
        }
        verdict
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    is_refused: bool,
    grace_changed: bool,
}

impl Verdict {
    fn add(
        &mut self,
        (since, limit): (&AtomicU64, &QuotaLimit),
        used: u64,
        more: u64,
        limits: &Limits,
        now_seconds: u64,
    ) {
        let after = used.saturating_add(more);
        if limit.hard.is_some_and(|hard| after > hard) {
            self.is_refused = true;
            return;
        }
        let Some(soft) = limit.soft else {
            return;
        };
        if used <= soft && since.swap(0, Ordering::Relaxed) != 0 {
            self.grace_changed = true;
        }
        if after <= soft {
            return;
        }
        let now = now_seconds.max(1);
        let passed = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        match passed {
            Ok(_) => {
                self.grace_changed = true;
                self.is_refused |= limits.grace_seconds == 0;
            }
            Err(first) => {
                let ends = first.saturating_add(limits.grace_seconds);
                self.is_refused |= now >= ends;
            }
        }
    }
}

impl VolumeCore {
    pub(crate) fn now_seconds(&self) -> u64 {
        u64::try_from(self.now().seconds).unwrap_or(0)
    }

    /// The first of these domains that does not admit so much more; skips those in `except`.
    fn refusing(
        &self,
        domains: &Domains,
        except: Option<&Domains>,
        more: More,
    ) -> Option<Arc<Domain>> {
        let asked = |domain: &&Arc<Domain>| {
            let has = |except: &Domains| except.iter().any(|other| Arc::ptr_eq(other, domain));
            !except.is_some_and(has)
        };
        let asked: SmallVec<[&Arc<Domain>; 4]> = domains.iter().filter(asked).collect();
        if asked.is_empty() {
            return None;
        }
        let usages = self.meta.usages(asked.iter().map(|domain| domain.key));
        let now = self.now_seconds();
        let mut refusing = None;
        let mut grace_changed = false;
        for (domain, usage) in asked.into_iter().zip(usages) {
            let verdict = domain.lets_in(&usage, more, now);
            grace_changed |= verdict.grace_changed;
            if verdict.is_refused && refusing.is_none() {
                refusing = Some(domain.clone());
            }
        }
        if grace_changed {
            self.quotas.keep_wake.notify_one();
        }
        refusing
    }

    fn refuse(&self, domain: &Domain) -> FsError {
        domain.refusals.fetch_add(1, Ordering::Relaxed);
        self.quotas.keep_wake.notify_one();
        FsError::QuotaExceeded
    }

    /// Refuses new inodes of an owner, with so many bytes, if they exceed a quota. `before`: the present owner of them.
    pub(crate) fn require_quota(
        &self,
        owner: Owner,
        before: Option<Owner>,
        inodes: u64,
        bytes: u64,
    ) -> Result<(), FsError> {
        if !self.quotas.has_limits() {
            return Ok(());
        }
        let domains = self.quotas.domains_of(owner);
        let except = before.map(|before| self.quotas.domains_of(before));
        let more = More {
            inodes,
            bytes,
            with_pending: false,
        };
        match self.refusing(&domains, except.as_ref(), more) {
            Some(domain) => Err(self.refuse(&domain)),
            None => Ok(()),
        }
    }

    /// Refuses a write of `range` that has no room. A write that replaces bytes needs none.
    pub(crate) async fn require_room(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        range: &Range<u64>,
    ) -> Result<Room, FsError> {
        if !self.quotas.has_limits() {
            return Ok(Room { held: None });
        }
        let owner = {
            let state = inode.lock();
            // The reservation counts these bytes already.
            if state.reserved.is_some() && range.end <= state.record.size_bytes {
                return Ok(Room { held: None });
            }
            owner_of(&state.record)
        };
        let domains = self.quotas.domains_of(owner);
        if domains.is_empty() {
            return Ok(Room { held: None });
        }
        let nobody_waits = domains
            .iter()
            .all(|domain| domain.near.available_permits() > 0);
        if nobody_waits && let Ok(room) = self.reserve(&domains, range.end - range.start) {
            return Ok(room);
        }
        self.wait_for_room(inode, range, &domains).await
    }

    /// Admits so many bytes of an owner that are not in memory, or refuses them.
    pub(crate) fn room_of(self: &Arc<Self>, owner: Owner, bytes: u64) -> Result<Room, FsError> {
        if !self.quotas.has_limits() {
            return Ok(Room { held: None });
        }
        let domains = self.quotas.domains_of(owner);
        let room = self.reserve(&domains, bytes);
        room.map_err(|domain| self.refuse(&domain))
    }

    fn reserve(self: &Arc<Self>, domains: &Domains, bytes: u64) -> Result<Room, Arc<Domain>> {
        // Added first, so that of two concurrent callers at least one sees the other.
        add_pending(domains, bytes as i64);
        match self.refusing(domains, None, of_pending(0)) {
            Some(domain) => {
                // No waiter is woken: the bytes were never admitted.
                add_pending(domains, -(bytes as i64));
                Err(domain)
            }
            None => Ok(Room {
                held: Some((self.clone(), domains.clone(), bytes)),
            }),
        }
    }

    async fn wait_for_room(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        domains: &Domains,
    ) -> Result<Room, FsError> {
        let _near = NearLimit::new(self);
        let closed = domains
            .iter()
            .find(|domain| domain.near.available_permits() == 0);
        let gate = closed
            .cloned()
            .or_else(|| self.refusing(domains, None, of_pending(range.end - range.start)));
        let gate = gate.unwrap_or_else(|| domains[0].clone());
        // The semaphore is never closed.
        let _turn = gate.near.acquire().await;
        let errors = || self.counters.flush_errors.load(Ordering::Relaxed);
        let errors_before = errors();
        loop {
            let change = self.dirty.less();
            let new_bytes = self.new_bytes(inode, range)?;
            if new_bytes == 0 {
                return Ok(Room { held: None });
            }
            if let Ok(room) = self.reserve(domains, new_bytes) {
                return Ok(room);
            }
            let alone = More {
                bytes: new_bytes,
                ..More::default()
            };
            if let Some(domain) = self.refusing(domains, None, alone) {
                return Err(self.refuse(&domain));
            }
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            if errors() != errors_before {
                return Err(self.refuse(&gate));
            }
            self.flush_soon(inode);
            change.await;
        }
    }

    /// Follows a change of an inode's bytes in memory, of its owner, or of its tree. Called before waiting tasks are
    /// woken.
    pub(crate) fn sync_pending(&self, state: &mut State) {
        let reserved = state.reserved.as_ref();
        let left = reserved.map_or(0, |reserved| {
            reserved.follow(state.record.used_bytes, state.removed)
        });
        let fresh_bytes = state.fresh.len_bytes().max(left);
        self.count_fresh_for_volume(state, fresh_bytes);
        if state.charged.is_none() && !self.quotas.has_limits() {
            return;
        }
        // A reservation is pending until the file has its bytes.
        let bytes = (state.dirty.len_bytes() + state.flying_bytes()).max(left);
        let domains = match self.quotas.has_limits() && bytes > 0 {
            true => Some(self.quotas.domains_of(owner_of(&state.record))),
            false => None,
        };
        // Adds to the new domains first: so at no moment do the bytes count nowhere.
        if let Some(domains) = &domains {
            add_pending(domains, bytes as i64);
            add_fresh(domains, fresh_bytes as i64);
            add_reserved(domains, left as i64);
        }
        if let Some(before) = state.charged.take() {
            add_pending(&before.domains, -(before.bytes as i64));
            add_fresh(&before.domains, -(before.fresh_bytes as i64));
            add_reserved(&before.domains, -(before.reserved_bytes as i64));
        }
        let charged = |domains| Charged {
            domains,
            bytes,
            fresh_bytes,
            reserved_bytes: left,
        };
        state.charged = domains
            .filter(|domains| !domains.is_empty())
            .map(|domains| Box::new(charged(domains)));
    }

    /// Counts bytes that do not replace stored ones for the volume. A clone in its store is another volume.
    fn count_fresh_for_volume(&self, state: &mut State, fresh_bytes: u64) {
        let now = match is_branch(state.record.tree) {
            true => 0,
            false => fresh_bytes,
        };
        self.count_fresh(state, now);
    }
}

fn of_pending(bytes: u64) -> More {
    More {
        bytes,
        with_pending: true,
        ..More::default()
    }
}

/// Counts a writer that waits near a limit, so that the flusher hurries.
struct NearLimit<'a>(&'a VolumeCore);

impl<'a> NearLimit<'a> {
    fn new(shared: &'a VolumeCore) -> Self {
        shared.quotas.near_count.fetch_add(1, Ordering::AcqRel);
        Self(shared)
    }
}

impl Drop for NearLimit<'_> {
    fn drop(&mut self) {
        self.0.quotas.near_count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Ino;
    use cairn_meta::GraceRecord;

    use super::*;
    use crate::quota::tree_key;

    struct Case {
        name: &'static str,
        /// Usage before, requested amount, and the time in seconds.
        asks: &'static [(u64, u64, u64)],
        /// Which of these requests are admitted.
        want: &'static [bool],
        since: u64,
    }

    #[test]
    fn soft_limits_are_hard_when_their_grace_is_over() {
        let limits = Limits {
            bytes: QuotaLimit {
                hard: Some(100),
                soft: Some(50),
                advisory: None,
            },
            grace_seconds: 10,
            ..Limits::default()
        };
        let cases = [
            Case {
                name: "up to the soft limit nothing begins",
                asks: &[(0, 50, 5)],
                want: &[true],
                since: 0,
            },
            Case {
                name: "passed for less than the grace",
                asks: &[(0, 51, 5), (51, 1, 14)],
                want: &[true, true],
                since: 5,
            },
            Case {
                name: "passed for longer",
                asks: &[(0, 51, 5), (51, 1, 15)],
                want: &[true, false],
                since: 5,
            },
            Case {
                name: "below again, it begins anew",
                asks: &[(0, 51, 5), (50, 1, 100), (51, 1, 109)],
                want: &[true, true, true],
                since: 100,
            },
            Case {
                name: "hard at once",
                asks: &[(50, 50, 5), (50, 51, 5)],
                want: &[true, false],
                since: 5,
            },
            Case {
                name: "a quota below what is used",
                asks: &[(200, 0, 5)],
                want: &[false],
                since: 0,
            },
        ];
        for case in cases {
            let domain = Domain::new(tree_key(Ino(9)), limits, GraceRecord::default());
            for ((used, more, now), want) in case.asks.iter().zip(case.want) {
                let usage = UsageRecord {
                    file_bytes: *used,
                    ..UsageRecord::default()
                };
                let more = More {
                    bytes: *more,
                    ..More::default()
                };
                let verdict = domain.lets_in(&usage, more, *now);
                assert_eq!(!verdict.is_refused, *want, "{}: at {now}", case.name);
            }
            let since = domain.bytes_since.load(Ordering::Relaxed);
            assert_eq!(since, case.since, "{}", case.name);
        }
    }
}
