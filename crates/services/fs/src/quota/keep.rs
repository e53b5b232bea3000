//! Grace periods and reports: the background work of quotas.
//!
//! Owns: since when soft limits are passed, stored so that a restart changes nothing; which events were reported.
//! Must not know: how usage is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_meta::{Batch, GraceRecord, Key, QuotaKey, QuotaKind, QuotaLimit, UsageRecord};

use crate::kernel::{Bare, Domain, Limits, QuotaNotices};
use crate::volume::{Fs, VolumeCore};

/// Interval of the comparison of usage with soft and advisory limits.
const KEEP_INTERVAL: Duration = Duration::from_secs(5);
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Users and groups that one check of a default quota visits.
const OF_DEFAULT_MAX: usize = 100_000;

/// The number of quotas of a volume in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    pub quotas: u64,
    /// Users and groups that pass a limit of a default quota count as one each.
    pub over_advisory: u64,
    pub over_soft: u64,
    /// The hard limit is reached or passed.
    pub at_hard: u64,
    /// Refused writes, names and other changes since the volume was opened.
    pub refusals: u64,
}

/// The limits that usage passes.
#[derive(Clone, Copy, Debug, Default)]
struct PassedLimits {
    advisory: bool,
    soft: bool,
    hard: bool,
}

impl PassedLimits {
    fn of(limit: &QuotaLimit, used: u64) -> Self {
        let passes = |at: Option<u64>| at.is_some_and(|at| used > at);
        Self {
            advisory: passes(limit.advisory),
            soft: passes(limit.soft),
            hard: limit.hard.is_some_and(|hard| used >= hard),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            advisory: self.advisory || other.advisory,
            soft: self.soft || other.soft,
            hard: self.hard || other.hard,
        }
    }
}

impl Domain {
    fn passed(&self, usage: &UsageRecord) -> (PassedLimits, PassedLimits) {
        let limits = self.limits();
        let bytes = match limits.is_physical {
            true => usage.stored_bytes,
            false => usage.file_bytes,
        };
        (
            PassedLimits::of(&limits.bytes, bytes),
            PassedLimits::of(&limits.files, usage.inodes),
        )
    }

    /// Follows the present usage, in case there was no write since.
    fn keep_grace(&self, bytes: PassedLimits, files: PassedLimits, now_seconds: u64) {
        for (since, passed) in [(&self.bytes_since, bytes), (&self.files_since, files)] {
            let (from, to) = match passed.soft {
                true => (0, now_seconds.max(1)),
                false => (since.load(Ordering::Relaxed), 0),
            };
            if from != to {
                let _ = since.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

fn name_of(key: &QuotaKey) -> String {
    match key.kind {
        QuotaKind::User => format!("user {}", key.id),
        QuotaKind::Group => format!("group {}", key.id),
        QuotaKind::Tree => "all".to_owned(),
        QuotaKind::DefaultUser => "each user".to_owned(),
        QuotaKind::DefaultGroup => "each group".to_owned(),
    }
}

impl Fs {
    /// The state of the quotas, a few seconds old at most.
    pub fn quota_counts(&self) -> QuotaCounts {
        let shared = &self.shared;
        if !shared.quotas.has_limits() {
            return QuotaCounts::default();
        }
        let now = shared.watched_domains();
        let mut counts = QuotaCounts {
            quotas: shared.quotas.count(),
            ..QuotaCounts::default()
        };
        for (domain, usage) in now {
            let (bytes, files) = domain.passed(&usage);
            let passed = bytes.or(files);
            counts.over_advisory += u64::from(passed.advisory);
            counts.over_soft += u64::from(passed.soft);
            counts.at_hard += u64::from(passed.hard);
            counts.refusals += domain.refusals.load(Ordering::Relaxed);
        }
        counts
    }
}

impl super::Quotas {
    fn count(&self) -> u64 {
        let table = self.table.read();
        let limits = table.records.values();
        limits.filter(|record| !record.is_unlimited()).count() as u64
    }
}

impl VolumeCore {
    pub(crate) async fn run_quotas(self: Arc<Self>) {
        loop {
            let mut interval = IDLE_INTERVAL;
            if self.quotas.has_limits() {
                interval = KEEP_INTERVAL;
                self.keep_quotas();
            }
            let wake = self.quotas.keep_wake.notified();
            if !self.tasks.pause(interval, wake).await {
                return;
            }
        }
    }

    /// The domains that have limits now, with the usage of each: those with a quota, and those that a default quota
    /// covers.
    fn watched_domains(&self) -> Vec<(Arc<Domain>, UsageRecord)> {
        let mut keys: BTreeMap<QuotaKey, ()> = BTreeMap::new();
        let mut defaults = Vec::new();
        {
            let table = self.quotas.table.read();
            for key in table.records.keys() {
                match key.kind {
                    QuotaKind::DefaultUser => defaults.push((*key, QuotaKind::User)),
                    QuotaKind::DefaultGroup => defaults.push((*key, QuotaKind::Group)),
                    _ => drop(keys.insert(*key, ())),
                }
            }
            keys.extend(table.domains.keys().map(|key| (*key, ())));
            if table.size_limit_bytes.is_some() {
                keys.insert(super::tree_key(super::VOLUME_TREE), ());
            }
        }
        for (default, kind) in defaults {
            let limits = {
                let table = self.quotas.table.read();
                let record = table.records.get(&default);
                record.map(Limits::of).unwrap_or_default()
            };
            let wanted = |key: &QuotaKey| key.tree == default.tree && key.kind == kind;
            let found = self.meta.find_usages(OF_DEFAULT_MAX, wanted);
            let passing = found.into_iter().filter(|(_, usage)| {
                let bytes = match limits.is_physical {
                    true => usage.stored_bytes,
                    false => usage.file_bytes,
                };
                let passed = PassedLimits::of(&limits.bytes, bytes)
                    .or(PassedLimits::of(&limits.files, usage.inodes));
                passed.advisory || passed.soft || passed.hard
            });
            keys.extend(passing.map(|(key, _)| (key, ())));
        }
        let domains: Vec<Arc<Domain>> = {
            let mut table = self.quotas.table.write();
            keys.into_keys()
                .filter_map(|key| table.domain(key))
                .collect()
        };
        let usages = self.meta.usages(domains.iter().map(|domain| domain.key));
        domains.into_iter().zip(usages).collect()
    }

    /// Compares usage with soft and advisory limits, stores since when those are passed, and reports new events.
    fn keep_quotas(&self) {
        let now = u64::try_from(self.now().seconds).unwrap_or(0);
        let mut changed = Vec::new();
        for (domain, usage) in self.watched_domains() {
            let (bytes, files) = domain.passed(&usage);
            domain.keep_grace(bytes, files, now);
            self.tell(&domain, bytes.or(files), &usage);
            changed.push((domain.key, domain.grace()));
        }
        if self.require_serving().is_err() {
            return;
        }
        let mut table = self.quotas.table.write();
        let mut batch = Batch::new();
        for (key, grace) in changed {
            let stored = table.graces.get(&key).copied().unwrap_or_default();
            if stored == grace {
                continue;
            }
            if grace == GraceRecord::default() {
                table.graces.remove(&key);
                batch.delete(Key::grace(key));
            } else {
                table.graces.insert(key, grace);
                batch.put(Key::grace(key), grace.encode());
            }
        }
        // For users and groups without a quota any more: a later quota begins with a new grace period.
        let stale: Vec<QuotaKey> = table.graces.keys().copied().collect();
        for key in stale {
            if table.limits_of(&key).is_none() {
                table.graces.remove(&key);
                batch.delete(Key::grace(key));
            }
        }
        if !batch.is_empty() {
            self.commit_bare(Bare::Quotas, batch);
        }
    }

    fn tell(&self, domain: &Domain, passed: PassedLimits, usage: &UsageRecord) {
        let mut told = domain.told.lock();
        let refusals = domain.refusals.load(Ordering::Relaxed);
        let what = |what: &'static str| {
            let (of, tree) = (name_of(&domain.key), domain.key.tree);
            let UsageRecord {
                inodes,
                file_bytes,
                stored_bytes,
            } = *usage;
            tracing::warn!(volume = %self.volume, directory = %tree, of, file_bytes, stored_bytes, inodes, refusals, "{what}");
        };
        if passed.advisory && !told.advisory {
            what("usage passed the advisory limit of a quota");
        }
        if passed.soft && !told.soft {
            what(
                "usage passed the soft limit of a quota: writes are refused when the grace is over",
            );
        }
        if passed.hard && !told.hard {
            what("usage is at the hard limit of a quota: writes are refused");
        } else if refusals > told.refusals && told.refusals == 0 {
            what("a quota refused something");
        }
        *told = QuotaNotices {
            advisory: passed.advisory,
            soft: passed.soft,
            hard: passed.hard,
            refusals,
        };
    }
}
