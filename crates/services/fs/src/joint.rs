//! Consistent snapshots of several volumes (a consistency group), step by step.
//!
//! Owns: a snapshot has all changes that were acknowledged as stable before it, and the snapshots of several volumes
//! fit together. Must not know: which nodes the volumes of a group are on, which component decides that all of them
//! have their snapshot.
//!
//! A snapshot is one commit, whatever the size of the volume. By then, acknowledged changes are in the metadata, but
//! for small stable writes, whose bytes may be only in the journal. So files with bytes in the journal are flushed
//! first. While the last of them are flushed, new small writes go straight to segments: no client waits.
//!
//! Volumes of one node are locked together for the moment of that commit. Volumes of several nodes cannot be; there,
//! replies wait instead. From [`JointSnapshots::hold`] on the first node until the last node has taken its snapshots,
//! no client gets a reply to a change. So a change with a reply came before all of these snapshots, or its reply came
//! after the last one. A change that a client made because of such a reply is in none of them.

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, Timestamp};
use cairn_meta::{CommitHold, NewSnapshot, SnapshotError, Ticket};
use tokio::sync::OwnedMutexGuard;

use crate::kernel::Metadata;
use crate::snapshots::{ClosedJournal, Snapshot, SnapshotFailure};
use crate::types::FsError;
use crate::volume::Fs;

/// Takes snapshots of several volumes, all with one name and of one instant. If a client made a change of one volume
/// after another change was acknowledged, then a snapshot with the later change has a companion with the earlier one,
/// in whichever volumes they are.
///
/// Returns them in the order of `volumes`, which are distinct. Fails with the index of the volume that refuses; then
/// no volume has a snapshot.
pub async fn take_snapshots(
    volumes: &[&Fs],
    name: &[u8],
    schedule: &[u8],
) -> Result<Vec<Snapshot>, (usize, SnapshotFailure)> {
    let Some(first) = volumes.first() else {
        return Ok(Vec::new());
    };
    let mut joint = JointSnapshots::begin(volumes, name, schedule).await?;
    joint.close().await?;
    let taken = joint.take(first.shared.now(), 0);
    if let Err((_, error)) = &taken {
        // Any other fault shows before the first snapshot is begun.
        if *error == SnapshotFailure::Refused(SnapshotError::Closed) {
            forget(volumes, name).await;
        }
    }
    taken?;
    let ended = joint.end().await;
    if ended.is_err() && volumes.len() > 1 {
        forget(volumes, name).await;
    }
    ended
}

/// Deletes the snapshots of an incomplete group.
async fn forget(volumes: &[&Fs], name: &[u8]) {
    for fs in volumes {
        if let Err(error) = fs.delete_snapshot(name).await
            && error != SnapshotFailure::Refused(SnapshotError::NotFound)
        {
            tracing::warn!(volume = fs.name(), %error, "a snapshot of a group that failed is left behind; delete it");
        }
    }
}

/// Snapshots of volumes that are being taken. The caller runs the steps in the order of the methods; [`Self::hold`]
/// only matters if other nodes have volumes of the group.
///
/// Every step fails with the index of the volume that refuses; then the caller drops this value, which releases all
/// waiting tasks. Snapshots of a group ([`Self::take`]) may remain, which no client sees: see [`Fs::decide_group`].
pub struct JointSnapshots {
    volumes: Vec<Fs>,
    /// Indexes of `volumes` in the order of their stores.
    order: Vec<usize>,
    name: Bytes,
    schedule: Bytes,
    _turns: Vec<OwnedMutexGuard<()>>,
    closed: Vec<ClosedJournal>,
    held: Vec<CommitHold>,
    begun: Vec<(Generation, Ticket)>,
}

impl JointSnapshots {
    /// Waits until no other snapshot of these volumes is being taken, then moves most data out of the journal.
    pub async fn begin(
        volumes: &[&Fs],
        name: &[u8],
        schedule: &[u8],
    ) -> Result<Self, (usize, SnapshotFailure)> {
        let mut order: Vec<(usize, &Fs)> = volumes.iter().copied().enumerate().collect();
        // All callers lock in this order.
        order.sort_by_key(|(_, fs)| fs.store());
        let mut turns = Vec::with_capacity(order.len());
        for (at, (index, fs)) in order.iter().enumerate() {
            let index = *index;
            let before = at.checked_sub(1).and_then(|before| order.get(before));
            let before = before.filter(|(_, before)| before.store() == fs.store());
            if before.is_some_and(|(_, before)| before.volume() != fs.volume()) {
                return Err((index, SnapshotError::SameStore.into()));
            }
            if before.is_some() || fs.snapshot(name).is_some() {
                return Err((index, SnapshotError::Exists.into()));
            }
            let refuse = |error: FsError| (index, error.into());
            let turn = &fs.shared.snapshots.turn;
            turns.push(turn.clone().lock_owned().await);
            fs.shared.require_serving().map_err(refuse)?;
            let has_room = fs.shared.require_room_for_snapshot().await;
            has_room.map_err(refuse)?;
            fs.shared.flush_journal().await.map_err(refuse)?;
        }
        Ok(Self {
            volumes: volumes.iter().map(|fs| (*fs).clone()).collect(),
            order: order.into_iter().map(|(index, _)| index).collect(),
            name: Bytes::copy_from_slice(name),
            schedule: Bytes::copy_from_slice(schedule),
            _turns: turns,
            closed: Vec::new(),
            held: Vec::new(),
            begun: Vec::new(),
        })
    }

    /// Moves the rest out of the journal, and keeps new data out of it until the snapshots are taken.
    pub async fn close(&mut self) -> Result<(), (usize, SnapshotFailure)> {
        let closed = self.volumes.iter().map(|fs| ClosedJournal::new(&fs.shared));
        self.closed = closed.collect();
        if planted::is(Bug::SnapshotMissesJournal) {
            return Ok(());
        }
        for index in &self.order {
            let Some(fs) = self.volumes.get(*index) else {
                continue;
            };
            let folded = fs.shared.fold_all_of_journal().await;
            folded.map_err(|error| (*index, error.into()))?;
        }
        Ok(())
    }

    /// From here on no change of these volumes is acknowledged, until [`Self::end`].
    pub fn hold(&mut self) {
        let held = self.volumes.iter().map(|fs| fs.shared.meta.hold());
        self.held = held.collect();
    }

    /// Takes the snapshots. No client sees those of a `group` before it is [decided](Fs::decide_group) that all
    /// volumes have theirs; 0: there is no such group.
    pub fn take(&mut self, taken: Timestamp, group: u64) -> Result<(), (usize, SnapshotFailure)> {
        let new = NewSnapshot {
            name: self.name.clone(),
            taken,
            schedule: self.schedule.clone(),
            undecided_group: group,
        };
        let stores = self.volumes.iter();
        let stores: Vec<(&Metadata, Branch)> =
            stores.map(|fs| (&fs.shared.meta, fs.branch())).collect();
        let order: Vec<(usize, &Fs)> = self
            .order
            .iter()
            .filter_map(|index| Some((*index, self.volumes.get(*index)?)))
            .collect();
        let begun = not_while_they_end(&order, || Metadata::take_snapshots(&stores, &new));
        self.closed.clear();
        self.begun = begun?.map_err(|(index, error)| (index, error.into()))?;
        Ok(())
    }

    /// Waits until the snapshots are durable. Also fails if a client got a reply since [`Self::hold`].
    pub async fn end(mut self) -> Result<Vec<Snapshot>, (usize, SnapshotFailure)> {
        if let Some(index) = self.held.iter().position(|held| !held.is_kept()) {
            return Err((index, SnapshotError::Closed.into()));
        }
        self.held.clear();
        let mut taken = Vec::with_capacity(self.volumes.len());
        for (index, (fs, (generation, ticket))) in self.volumes.iter().zip(self.begun).enumerate() {
            let snapshot = fs.shared.await_snapshot(generation, ticket).await;
            taken.push(snapshot.map_err(|error| (index, error))?);
        }
        Ok(taken)
    }
}

/// Runs `begin` if these volumes exist, and keeps them from ending meanwhile.
fn not_while_they_end<T>(
    volumes: &[(usize, &Fs)],
    begin: impl FnOnce() -> T,
) -> Result<T, (usize, SnapshotFailure)> {
    let Some(((index, fs), others)) = volumes.split_first() else {
        return Ok(begin());
    };
    let begun = fs
        .shared
        .branches
        .within(fs.branch(), || not_while_they_end(others, begin));
    begun.map_err(|error| (*index, error.into()))?
}

impl Fs {
    /// Groups with which snapshots of this volume were taken, and whose decision is unknown here.
    pub fn undecided_groups(&self) -> Vec<u64> {
        let all = self.shared.meta.snapshots();
        let own = all
            .iter()
            .filter(|(_, record)| record.branch == self.branch());
        let groups = own.map(|(_, record)| record.undecided_group);
        groups.filter(|group| *group != 0).collect()
    }

    /// Decides on the snapshot that was taken with a group: shows it if all volumes of the group have theirs, and
    /// deletes it otherwise. Returns its generation; `None`: it was shown or deleted before.
    pub async fn decide_group(
        &self,
        group: u64,
        is_whole: bool,
    ) -> Result<Option<Generation>, SnapshotFailure> {
        self.shared.require_serving()?;
        let all = self.shared.meta.snapshots();
        let found = all
            .iter()
            .find(|(_, record)| record.branch == self.branch() && record.undecided_group == group);
        let Some((generation, _)) = found.filter(|_| group != 0) else {
            return Ok(None);
        };
        let decided = self.change_snapshot_at(*generation, |record| match is_whole {
            true => record.undecided_group = 0,
            false => record.is_deleted = true,
        });
        decided.await?;
        if !is_whole {
            self.shared.snapshots.freeing.notify_one();
        }
        Ok(Some(*generation))
    }
}
