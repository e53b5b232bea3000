//! Usage for quotas: of trees, and of users and groups in each of them.
//!
//! Owns: the sums, of each tree alone and with its nested trees. Must not know: the owner of an inode, the effect of a
//! limit.
//!
//! Every inode counts in one tree, for one user and for one group, even without quotas: so a quota on a user is right
//! from its first moment. Only sums of trees alone are stored; sums with nested trees are made in memory.

use cairn_base::{Branch, Ino};
use cairn_formats::metadata::{QuotaKey, QuotaKind, UsageRecord};
use rustc_hash::FxHashMap;

/// The tree of all inodes outside of directories with a quota.
const VOLUME: Ino = Ino(0);

/// The tree of a branch's own inodes. They do not count in the main branch.
pub fn root_tree(branch: Branch) -> Ino {
    Ino(1).in_branch(branch)
}

/// The tree that counts the inherited part of a branch: what it had from its beginning and has as its own since, at the
/// size of the beginning.
pub fn taken_over_tree(branch: Branch) -> Ino {
    Ino(0).in_branch(branch)
}

/// The tree, user and group that an inode is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub tree: Ino,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// Keys of the sums that the owner's inodes count in.
    pub fn keys(&self) -> [QuotaKey; 3] {
        let of = |kind, id| QuotaKey {
            tree: self.tree,
            kind,
            id,
        };
        [
            of(QuotaKind::Tree, 0),
            of(QuotaKind::User, self.uid),
            of(QuotaKind::Group, self.gid),
        ]
    }
}

/// A change of an owner's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageDelta {
    pub inodes: i64,
    pub file_bytes: i64,
    pub stored_bytes: i64,
}

impl UsageDelta {
    pub const ONE_INODE: Self = Self {
        inodes: 1,
        file_bytes: 0,
        stored_bytes: 0,
    };

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::Neg for UsageDelta {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            inodes: -self.inodes,
            file_bytes: -self.file_bytes,
            stored_bytes: -self.stored_bytes,
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Usages {
    own: FxHashMap<QuotaKey, UsageRecord>,
    /// The parent of each tree. If empty, `own` has all sums.
    parents: FxHashMap<Ino, Ino>,
    /// Sums with nested trees.
    total: FxHashMap<QuotaKey, UsageRecord>,
}

impl Usages {
    pub fn own(&self, key: &QuotaKey) -> UsageRecord {
        self.own.get(key).copied().unwrap_or_default()
    }

    pub fn total(&self, key: &QuotaKey) -> UsageRecord {
        let sums = match self.parents.is_empty() {
            true => &self.own,
            false => &self.total,
        };
        sums.get(key).copied().unwrap_or_default()
    }

    /// Up to `max` sums with nested trees for which `wanted` is true, in no order.
    pub fn totals(
        &self,
        max: usize,
        wanted: impl Fn(&QuotaKey) -> bool,
    ) -> Vec<(QuotaKey, UsageRecord)> {
        let sums = match self.parents.is_empty() {
            true => &self.own,
            false => &self.total,
        };
        let found = sums.iter().filter(|(key, _)| wanted(key)).take(max);
        found.map(|(key, usage)| (*key, *usage)).collect()
    }

    pub fn all_own(&self) -> impl Iterator<Item = (&QuotaKey, &UsageRecord)> {
        self.own.iter()
    }

    /// Loads a stored sum.
    pub fn load(&mut self, key: QuotaKey, usage: Option<UsageRecord>) {
        match usage {
            Some(usage) => self.own.insert(key, usage),
            None => self.own.remove(&key),
        };
    }

    /// Sets the parent of each tree; the parent of unnamed trees is the volume.
    pub fn set_parents(&mut self, parents: FxHashMap<Ino, Ino>) {
        self.parents = parents;
        self.total.clear();
        if self.parents.is_empty() {
            return;
        }
        for (key, usage) in &self.own {
            for tree in around(&self.parents, key.tree) {
                let total = self.total.entry(QuotaKey { tree, ..*key }).or_default();
                total.inodes = total.inodes.saturating_add(usage.inodes);
                total.file_bytes = total.file_bytes.saturating_add(usage.file_bytes);
                total.stored_bytes = total.stored_bytes.saturating_add(usage.stored_bytes);
            }
        }
    }

    /// Charges an owner. Returns the stored sums that change.
    pub fn charge(
        &mut self,
        owner: &Owner,
        delta: &UsageDelta,
        errors: &mut u64,
        mut changed: impl FnMut(QuotaKey),
    ) {
        for key in owner.keys() {
            add(&mut self.own, key, delta, errors);
            changed(key);
            if !self.parents.is_empty() {
                for tree in around(&self.parents, key.tree) {
                    // Errors were counted above.
                    add(&mut self.total, QuotaKey { tree, ..key }, delta, &mut 0);
                }
            }
        }
    }
}

/// A tree and its ancestors, the volume last.
fn around(parents: &FxHashMap<Ino, Ino>, tree: Ino) -> impl Iterator<Item = Ino> + '_ {
    let mut next = Some(tree);
    // No chain is longer than the number of trees, for any stored parents.
    (0..=parents.len() + 1).map_while(move |_| {
        let tree = next?;
        next = match tree.branch().is_main() {
            true => (tree != VOLUME).then(|| parents.get(&tree).copied().unwrap_or(VOLUME)),
            // A branch has no parent.
            false => None,
        };
        Some(tree)
    })
}

fn add(
    sums: &mut FxHashMap<QuotaKey, UsageRecord>,
    key: QuotaKey,
    delta: &UsageDelta,
    errors: &mut u64,
) {
    let sum = sums.entry(key).or_default();
    let mut add = |value: &mut u64, delta: i64| {
        *value = value.checked_add_signed(delta).unwrap_or_else(|| {
            *errors += 1;
            if delta < 0 { 0 } else { u64::MAX }
        });
    };
    add(&mut sum.inodes, delta.inodes);
    add(&mut sum.file_bytes, delta.file_bytes);
    add(&mut sum.stored_bytes, delta.stored_bytes);
    if sum.is_zero() {
        sums.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(tree: u64, uid: u32) -> Owner {
        Owner {
            tree: Ino(tree),
            uid,
            gid: 100,
        }
    }

    fn tree(tree: u64) -> QuotaKey {
        owner(tree, 0).keys()[0]
    }

    #[test]
    fn trees_count_what_is_in_the_trees_in_them() {
        let mut usages = Usages::default();
        let mut errors = 0;
        let delta = UsageDelta {
            inodes: 1,
            file_bytes: 10,
            stored_bytes: 5,
        };
        let mut charge = |usages: &mut Usages, tree, delta| {
            usages.charge(&owner(tree, 7), &delta, &mut errors, |_| {});
        };
        charge(&mut usages, 5, delta);
        usages.set_parents([(Ino(5), Ino(4))].into_iter().collect());
        charge(&mut usages, 4, delta);
        charge(&mut usages, 0, delta);
        charge(&mut usages, 5, delta);
        let counts = |usages: &Usages| {
            [0, 4, 5].map(|id| (usages.own(&tree(id)).inodes, usages.total(&tree(id)).inodes))
        };
        assert_eq!(counts(&usages), [(1, 4), (1, 3), (2, 2)]);
        let user = owner(4, 7).keys()[1];
        assert_eq!(usages.total(&user).file_bytes, 30);
        // A tree is inserted in between, and removed again.
        let between = [(Ino(5), Ino(3)), (Ino(3), Ino(4))];
        usages.set_parents(between.into_iter().collect());
        assert_eq!(usages.total(&tree(3)).inodes, 2);
        assert_eq!(counts(&usages), [(1, 4), (1, 3), (2, 2)]);
        for _ in 0..2 {
            usages.charge(&owner(5, 7), &-delta, &mut errors, |_| {});
        }
        assert_eq!(usages.total(&tree(3)), UsageRecord::default());
        assert_eq!(counts(&usages), [(1, 2), (1, 1), (0, 0)]);
        assert_eq!(errors, 0);
        usages.charge(&owner(5, 7), &-delta, &mut errors, |_| {});
        assert!(errors > 0);
    }
}
