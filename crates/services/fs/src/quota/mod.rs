//! Quotas: limits on the usage of directories, users and groups in a volume.
//!
//! Owns: the list of quotas, which of them an inode counts for, in which tree a new inode counts. Must not know: how
//! usage is stored (`meta` does), the replies to clients.
//!
//! A tree is the contents of a directory with a quota. An inode records the tree in which it counts: a new one takes
//! that of its directory. Trees are nested, and all are in the volume, which is tree 0. For counting see
//! docs/design/quotas.md.

mod check;
mod keep;
mod manage;
mod trees;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use cairn_base::Ino;
use cairn_meta::{
    GraceRecord, InodeRecord, Key, KeyKind, MetaError, Owner, QuotaKey, QuotaKind, QuotaRecord,
    TreeState,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, Semaphore};

pub(crate) use check::Room;
pub use keep::QuotaCounts;
pub use manage::{QUOTA_COUNT_MAX, QUOTA_DEPTH_MAX, QuotaLimits, QuotaView};

use crate::kernel::{Domain, Domains, Limits, Metadata};

/// The tree of all inodes that are in no directory with a quota.
pub(crate) const VOLUME_TREE: Ino = Ino(0);
/// Cached lists of domains, one for each user and group in a tree.
const OWNERS_MAX: usize = 16 << 10;

/// Whether a tree is that of a clone, which is not nested and has no quotas in it.
fn is_branch(tree: Ino) -> bool {
    !tree.branch().is_main()
}

impl Limits {
    fn of(record: &QuotaRecord) -> Self {
        Self {
            bytes: record.bytes,
            files: record.files,
            is_physical: record.is_physical,
            grace_seconds: record.grace_seconds,
        }
    }

    pub fn is_none(&self) -> bool {
        self.bytes.is_none() && self.files.is_none()
    }
}

impl Domain {
    fn new(key: QuotaKey, limits: Limits, grace: GraceRecord) -> Arc<Self> {
        Arc::new(Self {
            key,
            limits: RwLock::new(limits),
            pending_bytes: AtomicI64::new(0),
            reserved_bytes: AtomicI64::new(0),
            fresh_bytes: AtomicI64::new(0),
            bytes_since: AtomicU64::new(grace.bytes_since.unwrap_or(0)),
            files_since: AtomicU64::new(grace.files_since.unwrap_or(0)),
            near: Semaphore::new(1),
            refusals: AtomicU64::new(0),
            told: Mutex::default(),
        })
    }

    pub fn limits(&self) -> Limits {
        *self.limits.read()
    }

    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// The usage that is added when all bytes in memory are stored.
    pub fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    fn add_reserved(&self, delta: i64) {
        self.reserved_bytes.fetch_add(delta, Ordering::Relaxed);
    }

    fn add_fresh(&self, delta: i64) {
        self.fresh_bytes.fetch_add(delta, Ordering::Relaxed);
    }

    fn add_pending(&self, delta: i64) {
        self.pending_bytes.fetch_add(delta, Ordering::Relaxed);
    }

    fn grace(&self) -> GraceRecord {
        let of = |since: &AtomicU64| Some(since.load(Ordering::Relaxed)).filter(|since| *since > 0);
        GraceRecord {
            bytes_since: of(&self.bytes_since),
            files_since: of(&self.files_since),
        }
    }
}

#[derive(Default)]
struct Table {
    records: BTreeMap<QuotaKey, QuotaRecord>,
    /// As they are stored.
    graces: BTreeMap<QuotaKey, GraceRecord>,
    /// The volume's hard limit on bytes, from its settings.
    size_limit_bytes: Option<u64>,
    domains: FxHashMap<QuotaKey, Arc<Domain>>,
    owners: FxHashMap<Owner, Domains>,
}

/// The quotas of a volume.
pub(crate) struct Quotas {
    /// Whether any quota limits or reports something.
    has_limits: AtomicBool,
    /// Whether there are trees beside the volume.
    has_trees: AtomicBool,
    /// Whether the inodes of some tree are being counted.
    is_counting: AtomicBool,
    table: RwLock<Table>,
    /// Directories that moved while a tree was being counted; under the lock of moves of directories.
    moved: Mutex<Vec<Ino>>,
    /// Held by one change of quotas at a time.
    turn: tokio::sync::Mutex<()>,
    /// The number of writers that wait near a limit.
    near_count: AtomicUsize,
    keep_wake: Notify,
    trees_wake: Notify,
}

impl Table {
    fn tree(&self, tree: Ino) -> Option<&QuotaRecord> {
        self.records.get(&tree_key(tree))
    }

    /// Whether a tree has a quota; the volume counts as one.
    fn is_live(&self, tree: Ino) -> bool {
        tree == VOLUME_TREE
            || is_branch(tree)
            || self
                .tree(tree)
                .is_some_and(|record| record.state != TreeState::Leaving)
    }

    /// The tree in which inodes count that record `tree`: a tree that still exists.
    fn resolve(&self, mut tree: Ino) -> Ino {
        // No chain is longer than the number of quotas, whatever is stored.
        for _ in 0..=self.records.len() {
            match self.tree(tree) {
                _ if self.is_live(tree) => return tree,
                Some(record) => tree = record.parent,
                None => break,
            }
        }
        VOLUME_TREE
    }

    /// A tree and those around it, the volume last.
    fn around(&self, tree: Ino) -> Vec<Ino> {
        let mut trees = vec![tree];
        let mut at = tree;
        while at != VOLUME_TREE && !is_branch(at) && trees.len() <= self.records.len() + 1 {
            at = self.tree(at).map_or(VOLUME_TREE, |record| record.parent);
            trees.push(at);
        }
        trees
    }

    /// The tree around each tree.
    fn parents(&self) -> FxHashMap<Ino, Ino> {
        let trees = self.records.iter();
        let trees = trees
            .filter(|(key, _)| key.kind == QuotaKind::Tree && key.tree != VOLUME_TREE)
            .map(|(key, record)| (key.tree, record.parent));
        trees.collect()
    }

    /// The limits of a tree, or of a user or group there: its own quota, otherwise the default one.
    fn limits_of(&self, key: &QuotaKey) -> Limits {
        let default = match key.kind {
            QuotaKind::User => Some(QuotaKind::DefaultUser),
            QuotaKind::Group => Some(QuotaKind::DefaultGroup),
            QuotaKind::Tree | QuotaKind::DefaultUser | QuotaKind::DefaultGroup => None,
        };
        // Default quotas do not apply to root, as on other systems.
        let default = default.filter(|_| key.id != 0).map(|kind| QuotaKey {
            kind,
            id: 0,
            ..*key
        });
        let found = self.records.get(key);
        let found = found.or_else(|| self.records.get(&default?));
        let mut limits = found
            .filter(|record| record.state != TreeState::Leaving)
            .map(Limits::of)
            .unwrap_or_default();
        if *key == tree_key(VOLUME_TREE) && self.size_limit_bytes.is_some() {
            limits.bytes.hard = self.size_limit_bytes;
        }
        limits
    }

    fn domain(&mut self, key: QuotaKey) -> Option<Arc<Domain>> {
        let limits = self.limits_of(&key);
        if limits.is_none() {
            return None;
        }
        let grace = self.graces.get(&key).copied().unwrap_or_default();
        let domain = self.domains.entry(key);
        Some(
            domain
                .or_insert_with(|| Domain::new(key, limits, grace))
                .clone(),
        )
    }

    fn domains_of(&mut self, owner: Owner) -> Domains {
        let mut domains = Vec::new();
        for tree in self.around(owner.tree) {
            let keys = Owner { tree, ..owner }.keys();
            domains.extend(keys.into_iter().filter_map(|key| self.domain(key)));
        }
        let domains: Domains = domains.into();
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
        self.owners.insert(owner, domains.clone());
        domains
    }

    fn has_limits(&self) -> bool {
        let mut records = self.records.values();
        self.size_limit_bytes.is_some() || records.any(|record| !record.is_unlimited())
    }
}

pub(crate) fn tree_key(tree: Ino) -> QuotaKey {
    QuotaKey {
        tree,
        kind: QuotaKind::Tree,
        id: 0,
    }
}

impl Quotas {
    /// Loads the quotas of a volume.
    pub fn open(meta: &Metadata, size_limit_bytes: Option<u64>) -> Result<Self, MetaError> {
        let mut table = Table {
            size_limit_bytes,
            ..Table::default()
        };
        let live = meta.live();
        let (from, to) = Key::all_quotas();
        for (key, value) in live.scan(&from, &to, usize::MAX)? {
            if let KeyKind::Quota(of) = key.kind()? {
                table.records.insert(of, QuotaRecord::decode(&value)?);
            }
        }
        let (from, to) = Key::all_graces();
        for (key, value) in live.scan(&from, &to, usize::MAX)? {
            if let KeyKind::Grace(of) = key.kind()? {
                table.graces.insert(of, GraceRecord::decode(&value)?);
            }
        }
        let quotas = Self {
            has_limits: AtomicBool::new(false),
            has_trees: AtomicBool::new(false),
            is_counting: AtomicBool::new(false),
            table: RwLock::new(table),
            moved: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            near_count: AtomicUsize::new(0),
            keep_wake: Notify::new(),
            trees_wake: Notify::new(),
        };
        quotas.note_change(meta, &mut quotas.table.write());
        Ok(quotas)
    }

    pub fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::Acquire)
    }

    /// Follows a change of quotas.
    fn note_change(&self, meta: &Metadata, table: &mut Table) {
        let parents = table.parents();
        self.has_trees.store(!parents.is_empty(), Ordering::Release);
        let is_counting = table
            .records
            .values()
            .any(|record| record.state == TreeState::Counting);
        self.is_counting.store(is_counting, Ordering::Release);
        meta.set_tree_parents(parents);
        table.owners.clear();
        let domains: Vec<Arc<Domain>> = table.domains.values().cloned().collect();
        for domain in domains {
            *domain.limits.write() = table.limits_of(&domain.key);
        }
        self.has_limits.store(table.has_limits(), Ordering::Release);
        self.keep_wake.notify_one();
        self.trees_wake.notify_one();
    }

    /// The tree in which new inodes of a directory count.
    pub fn inherited(&self, dir: &InodeRecord) -> Ino {
        if is_branch(dir.tree) {
            return dir.tree;
        }
        match self.has_trees.load(Ordering::Acquire) {
            true => self.table.read().resolve(dir.tree),
            false => VOLUME_TREE,
        }
    }

    /// The domains that inodes of an owner count for.
    pub fn domains_of(&self, owner: Owner) -> Domains {
        if let Some(domains) = self.table.read().owners.get(&owner) {
            return domains.clone();
        }
        self.table.write().domains_of(owner)
    }

    pub fn has_trees(&self) -> bool {
        self.has_trees.load(Ordering::Acquire)
    }

    pub fn is_counting(&self) -> bool {
        self.is_counting.load(Ordering::Acquire)
    }

    /// Whether a writer waits until dirty bytes are flushed.
    pub fn is_near_limit(&self) -> bool {
        self.near_count.load(Ordering::Acquire) > 0
    }

    /// A directory got another parent; the caller holds the lock of such moves.
    pub fn note_moved(&self, dir: Ino) {
        if self.is_counting() {
            self.moved.lock().push(dir);
        }
    }
}
