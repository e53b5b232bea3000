//! The pool's state, kept in the cluster's map.
//!
//! Owns: which transactions a change of the state is; that a node's own disks are in its pool file, too, by which a start
//! finds them. Must not know: why anything changes.

use std::future::Future;
use std::pin::Pin;

use cairn_base::{DiskId, NodeId, TierId, VolumeId};
use cairn_cluster::map::{MapErrorKind, TiersRecord, Versioned};
use cairn_cluster::{ClusterMap, MapError};
use cairn_formats::encryption::{VolumeEncryption, WrappedKey};
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolVolume};
use cairn_formats::settings::{Logouts, Maintenance, PartLimit, USERS_MAX, VolumePart};
use cairn_pool::truth::{self, Holder, SaveError, Truth};

use crate::state::{
    Classes, StoreState, Tiers, Users, classes_of, classes_record, disk_record, logouts_of,
    logouts_record, maintenance_of, maintenance_record, secrets_key_of, secrets_key_record,
    store_record, store_state, tiers_of, tiers_record, users_of, users_record,
};

/// A record that somebody else changed meanwhile is read and changed again so often.
const TRIES_MAX: usize = 8;

pub struct MapTruth {
    map: ClusterMap,
    own: NodeId,
}

impl MapTruth {
    pub fn new(map: ClusterMap, own: NodeId) -> Self {
        Self { map, own }
    }

    async fn change(&self, state: &PoolState, before: &PoolState) -> Result<(), MapError> {
        let is_in = |id: DiskId, of: &PoolState| of.disks.iter().any(|disk| disk.id == id);
        for disk in &state.disks {
            match before.disks.iter().find(|was| was.id == disk.id) {
                None => self.map.add_disk(&disk_record(disk)).await?,
                Some(was) if is_changed(was, disk) => self.change_disk(was, disk).await?,
                Some(_) => {}
            }
        }
        for disk in before.disks.iter().filter(|disk| !is_in(disk.id, state)) {
            let record = self.map.disk(disk.id).await?;
            self.map.remove_disk(&record).await?;
        }
        let invalid = |problem: String| MapError::HighWater(problem);
        if state.classes != before.classes {
            self.change_classes(&state.classes, &before.classes).await?;
        }
        if state.users != before.users {
            self.change_users(&state.users, &before.users).await?;
        }
        if state.logouts != before.logouts {
            self.add_logouts(&state.logouts).await?;
        }
        if state.maintenance != before.maintenance {
            self.change_maintenance(&state.maintenance, &before.maintenance)
                .await?;
        }
        if let Some(key) = &state.secrets_key
            && state.secrets_key != before.secrets_key
        {
            self.change_secrets_key(key, before.secrets_key.as_ref())
                .await?;
        }
        // Before a volume is deleted: what it has in a tier must not be forgotten with it.
        let (tiers, tiers_before) = (Tiers::of(state), Tiers::of(before));
        if tiers != tiers_before {
            self.change_tiers(&tiers, &tiers_before).await?;
        }
        for volume in &state.volumes {
            let store = StoreState::of(state, volume);
            match before.volumes.iter().find(|was| was.id == volume.id) {
                None => {
                    let record = store_record(&store).map_err(invalid)?;
                    self.map.add_volume(&record).await?;
                }
                Some(was) => {
                    let was = StoreState::of(before, was);
                    if was != store {
                        self.change_store(&was, &store).await?;
                    }
                }
            }
        }
        for volume in &before.volumes {
            if !state.volumes.iter().any(|there| there.id == volume.id) {
                self.map.delete_volume(volume.id).await?;
            }
        }
        Ok(())
    }

    async fn change_disk(&self, was: &PoolDisk, disk: &PoolDisk) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.disk(disk.id).await?;
            let mut record = found.value.clone();
            if leaving(was) != leaving(disk) {
                (record.draining, record.replaced) = leaving(disk);
            }
            // What another node says meanwhile of the rest stays.
            if was.media != disk.media {
                record.media = disk.media;
            }
            match self.map.change_disk(&found, &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Makes the changes between two states to the classes that the map has now.
    async fn change_classes(&self, now: &Classes, before: &Classes) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.classes().await?;
            let mut classes = match &found {
                Some(found) => classes_of(&found.value).map_err(MapError::HighWater)?,
                None => Classes::new(),
            };
            classes.retain(|name, _| now.contains_key(name) || !before.contains_key(name));
            let changed = now.iter();
            let changed = changed.filter(|(name, spec)| before.get(name) != Some(spec));
            classes.extend(changed.map(|(name, spec)| (name.clone(), *spec)));
            let record = classes_record(&classes).map_err(MapError::HighWater)?;
            match self.map.set_classes(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Replaces the maintenance window, unless somebody else did since this node saw `before`: two operators hear of one another.
    async fn change_maintenance(
        &self,
        now: &Maintenance,
        before: &Maintenance,
    ) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.maintenance().await?;
            let there = match &found {
                Some(found) => maintenance_of(&found.value).map_err(MapError::HighWater)?,
                None => Maintenance::default(),
            };
            // An equal change may be there already, of a try without an answer.
            if there != *before && there != *now {
                return Err(MapError::Changed {
                    key: self.map.keys().maintenance(),
                    what: "the maintenance window",
                });
            }
            let record = maintenance_record(now).map_err(MapError::HighWater)?;
            match self.map.set_maintenance(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Replaces the key of secrets, unless another node made or wrapped it meanwhile: with two of them half of the secrets
    /// could not be read any more.
    async fn change_secrets_key(
        &self,
        now: &WrappedKey,
        before: Option<&WrappedKey>,
    ) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.secrets_key().await?;
            let there = found.as_ref().map(|found| secrets_key_of(&found.value));
            let there = there.transpose().map_err(MapError::HighWater)?;
            // An equal change may be there already, of a try without an answer.
            if there.as_ref() != before && there.as_ref() != Some(now) {
                return Err(MapError::Changed {
                    key: self.map.keys().secrets_key(),
                    what: "the key of secrets",
                });
            }
            let record = secrets_key_record(now).map_err(MapError::HighWater)?;
            match self.map.set_secrets_key(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Makes the changes between two states to the users that the map has now.
    ///
    /// One that another node changed or made meanwhile is not changed: a password that was set there, or a right that was
    /// taken away, must not come undone. The caller hears that somebody else was first.
    async fn change_users(&self, now: &Users, before: &Users) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.users().await?;
            let mut users = match &found {
                Some(found) => users_of(&found.value).map_err(MapError::HighWater)?,
                None => Users::new(),
            };
            let names = now.keys().chain(before.keys());
            let names = names.filter(|name| now.get(name) != before.get(name));
            for name in names {
                // An equal change may be there already, of a try without an answer.
                if users.get(name) != before.get(name) && users.get(name) != now.get(name) {
                    return Err(MapError::Changed {
                        key: self.map.keys().users(),
                        what: "this user",
                    });
                }
                match now.get(name) {
                    Some(user) => drop(users.insert(name.clone(), user.clone())),
                    None => drop(users.remove(name)),
                }
            }
            if users.len() > USERS_MAX {
                let problem = format!("a pool has at most {USERS_MAX} users");
                return Err(MapError::HighWater(problem));
            }
            let record = users_record(&users).map_err(MapError::HighWater)?;
            match self.map.set_users(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Has the map say of all sessions that were ended that they were: those that other nodes ended meanwhile, too.
    async fn add_logouts(&self, ended: &Logouts) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.logouts().await?;
            let mut logouts = match &found {
                Some(found) => logouts_of(&found.value).map_err(MapError::HighWater)?,
                None => Logouts::default(),
            };
            // What would have ended by itself was forgotten by the clock of who ended something last.
            logouts.merge(ended, 0);
            let record = logouts_record(&logouts).map_err(MapError::HighWater)?;
            match self.map.set_logouts(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// Makes the changes between two states to the tiers that the map has now. One that a volume names is not removed,
    /// whatever this node knew of that.
    async fn change_tiers(&self, now: &Tiers, before: &Tiers) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.tiers().await?;
            let there = match &found {
                Some(found) => tiers_of(&found.value).map_err(MapError::HighWater)?,
                None => Tiers::default(),
            };
            let Some(tiers) = merged(now, before, there) else {
                return Err(MapError::Changed {
                    key: self.map.keys().tiers(),
                    what: "the tiers",
                });
            };
            let is_gone = |id| !tiers.tiers.iter().any(|tier| tier.id == id);
            let removed = before.tiers.iter().filter(|tier| is_gone(tier.id));
            let removed: Vec<TierId> = removed.map(|tier| tier.id).collect();
            if !removed.is_empty() {
                // Read after the tiers were: who comes to name one later changes those.
                for volume in self.map.volumes().await?.0 {
                    let store = store_state(&volume.record.value).map_err(MapError::HighWater)?;
                    let tiering = store.volume.tiering;
                    if tiering.is_some_and(|tiering| removed.contains(&tiering.tier)) {
                        return Err(MapError::Changed {
                            key: self.map.keys().volume(store.volume.id),
                            what: "a volume, which names the tier",
                        });
                    }
                }
            }
            let record = tiers_record(&tiers).map_err(MapError::HighWater)?;
            match self.map.set_tiers(found.as_ref(), &record).await {
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// The tiers, if a volume comes to name another one, which must be there then.
    async fn tiers_beside(
        &self,
        was: &PoolVolume,
        now: &PoolVolume,
    ) -> Result<Option<Versioned<TiersRecord>>, MapError> {
        let Some(tiering) = now.tiering.as_ref().filter(|_| was.tiering != now.tiering) else {
            return Ok(None);
        };
        let found = self.map.tiers().await?;
        let known = found.as_ref().map(|found| tiers_of(&found.value));
        let known = known.transpose().map_err(MapError::HighWater)?;
        let is_there =
            known.is_some_and(|known| known.tiers.iter().any(|tier| tier.id == tiering.tier));
        match is_there {
            true => Ok(found),
            false => Err(MapError::Changed {
                key: self.map.keys().tiers(),
                what: "the tiers",
            }),
        }
    }

    /// Makes the changes between two states of a store to what the map has of it now: another node may have changed
    /// something else, and to undo that would be to lose data if it was the key.
    async fn change_store(&self, was: &StoreState, now: &StoreState) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let found = self.map.volume(now.volume.id).await?.record;
            let mut store = store_state(&found.value).map_err(MapError::HighWater)?;
            if !apply_to_store(was, now, &mut store) {
                return Err(MapError::Changed {
                    key: self.map.keys().volume(now.volume.id),
                    what: "the clones of a volume",
                });
            }
            let record = store_record(&store).map_err(MapError::HighWater)?;
            let tiers = self.tiers_beside(&was.volume, &now.volume).await?;
            let changing = self
                .map
                .change_volume_beside(&found, &record, tiers.as_ref());
            match changing.await {
                // The number of a new clone may be somebody's by now, and stays so.
                Err(error) if is_retried(&error, tries) => tries += 1,
                result => return result,
            }
        }
    }

    /// What the pool files of this node's disks say: which other disks it has.
    fn local(&self, state: &PoolState) -> PoolState {
        let own = state.disks.iter().filter(|disk| disk.node == self.own);
        let own = own.map(|disk| PoolDisk {
            node: NodeId::ONLY,
            ..disk.clone()
        });
        PoolState {
            disks: own.collect(),
            volumes: Vec::new(),
            clones: Vec::new(),
            deleted: Vec::new(),
            classes: Classes::new(),
            users: Users::new(),
            logouts: Logouts::default(),
            tiers: Vec::new(),
            tier_last: TierId::default(),
            maintenance: Maintenance::default(),
            secrets_key: None,
            // The folder of the node has it.
            handle_key: None,
            ..state.clone()
        }
    }
}

/// The changes between two states of the tiers, made to those that are `there`. `None` if somebody else changed the same: one
/// with the number or name of a new one is there by now, and is another.
fn merged(now: &Tiers, before: &Tiers, mut there: Tiers) -> Option<Tiers> {
    let find = |tiers: &Tiers, id: TierId| tiers.tiers.iter().find(|tier| tier.id == id).cloned();
    let is_removed = |id: TierId| find(now, id).is_none() && find(before, id).is_some();
    // Another node deleted a volume that has something in it.
    let mut all = there.tiers.iter();
    if all.any(|tier| is_removed(tier.id) && !tier.deleting.is_empty()) {
        return None;
    }
    there.tiers.retain(|tier| !is_removed(tier.id));
    for tier in &now.tiers {
        let was = find(before, tier.id);
        let mut all = there.tiers.iter_mut();
        let known = all.find(|known| known.id == tier.id || known.name == tier.name);
        match (was, known) {
            (None, None) if there.last < tier.id => there.tiers.push(tier.clone()),
            // There by an earlier try.
            (None, Some(known)) if known.id == tier.id && known.url == tier.url => {}
            (None, _) => return None,
            (Some(was), Some(known)) => {
                let is_forgotten =
                    |id: &VolumeId| was.deleting.contains(id) && !tier.deleting.contains(id);
                known.deleting.retain(|id| !is_forgotten(id));
                let new = tier.deleting.iter().filter(|id| !was.deleting.contains(id));
                for id in new {
                    if !known.deleting.contains(id) {
                        known.deleting.push(*id);
                    }
                }
            }
            // It is removed.
            (Some(_), None) => {}
        }
    }
    there.last = there.last.max(now.last);
    Some(there)
}

/// Makes the changes between two states of a store to a third one. Clones that another node made or deleted meanwhile stay so.
/// False if the number of a new one is that of another by now.
fn apply_to_store(was: &StoreState, now: &StoreState, to: &mut StoreState) -> bool {
    apply(&was.volume, &now.volume, &mut to.volume);
    let find = |store: &StoreState, id: VolumeId| {
        let mut clones = store.clones.iter();
        clones.find(|clone| clone.id == id).cloned()
    };
    to.clones
        .retain(|clone| find(now, clone.id).is_some() || find(was, clone.id).is_none());
    for clone in &now.clones {
        let there = to.clones.iter_mut().find(|there| there.id == clone.id);
        match (find(was, clone.id), there) {
            (Some(was), Some(there)) => apply(&was, clone, there),
            (None, None) => to.clones.push(clone.clone()),
            // There by an earlier try.
            (None, Some(there)) if there == clone => {}
            (None, Some(_)) => return false,
            // It is deleted.
            (Some(_), None) => {}
        }
    }
    true
}

/// Makes the changes between two states of a volume to a third one.
fn apply(was: &PoolVolume, now: &PoolVolume, to: &mut PoolVolume) {
    if was.name != now.name {
        to.name = now.name.clone();
    }
    if was.settings != now.settings {
        to.settings = now.settings;
    }
    if was.exports != now.exports {
        to.exports = now.exports.clone();
    }
    if was.class != now.class {
        to.class = now.class.clone();
    }
    // Who takes the name of a tier off does so because nothing is there; not if somebody else sends something there by now.
    if was.tiering != now.tiering && (now.tiering.is_some() || to.tiering == was.tiering) {
        to.tiering = now.tiering.clone();
    }
    if was.is_deleted != now.is_deleted {
        to.is_deleted = now.is_deleted;
    }
    // Each part is a setting of its own.
    let changed = now
        .limits
        .iter()
        .filter(|limit| !was.limits.contains(limit));
    let changed: Vec<_> = changed.cloned().collect();
    let is_of =
        |limits: &[PartLimit], part: &VolumePart| limits.iter().any(|limit| limit.part == *part);
    to.limits.retain(|limit| {
        let is_cleared = is_of(&was.limits, &limit.part) && !is_of(&now.limits, &limit.part);
        !is_cleared && !is_of(&changed, &limit.part)
    });
    to.limits.extend(changed);
    to.limits.sort_by(|one, other| one.part.cmp(&other.part));
    // A key that was erased meanwhile stays erased, and one that was wrapped anew is the one to erase.
    let is_erasure = matches!(now.encryption, Some(VolumeEncryption::Erased(_)));
    if was.encryption != now.encryption && (is_erasure || to.encryption == was.encryption) {
        to.encryption = now.encryption;
    }
}

/// Whether the map has to say something else of a disk.
fn is_changed(was: &PoolDisk, now: &PoolDisk) -> bool {
    leaving(was) != leaving(now) || was.media != now.media
}

fn leaving(disk: &PoolDisk) -> (bool, bool) {
    (disk.draining, disk.replaced)
}

fn is_retried(error: &MapError, tries: usize) -> bool {
    error.kind() == MapErrorKind::Changed && tries < TRIES_MAX
}

impl Truth for MapTruth {
    fn save<'a>(
        &'a self,
        disks: &'a [Holder],
        state: &'a PoolState,
        before: &'a PoolState,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<bool>, SaveError>> + Send + 'a>> {
        Box::pin(async move {
            let changed = self.change(state, before).await;
            changed.map_err(|error| {
                let is_late = error.kind() == MapErrorKind::Changed
                    || matches!(error, MapError::Exists { .. });
                match is_late {
                    true => SaveError::Conflict(error.to_string()),
                    false => SaveError::Map(error.to_string()),
                }
            })?;
            // This node acts upon its own change at once, without having followed the map to it. The change is made, whatever
            // becomes of this.
            if let Err(error) = self.map.remember() {
                tracing::warn!(%error, "the latest version of the map could not be stored: after a crash now, this node would accept an older map");
            }
            let (local, local_before) = (self.local(state), self.local(before));
            if disks.is_empty() {
                return Ok(Vec::new());
            }
            truth::save(disks, &local, &local_before).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use cairn_base::env::BoxFuture;
    use cairn_cluster::map::{ClusterId, HighWater, HighWaterStore, Keys};
    use cairn_cluster::{
        Coordinator, CoordinatorError, KeyRange, LeaseGrant, LeaseId, MemoryCoordinator, Outcome,
        RangeReply, Revision, Txn, Watcher,
    };
    use cairn_formats::encryption::{MasterKeyId, WRAPPED_LEN_BYTES};
    use cairn_formats::pool_file::{PoolClone, VolumeTiering};
    use cairn_formats::settings::{
        ClassName, ClassSpec, Logout, SizeLimit, Tiering, UserName, UserRecord,
    };
    use cairn_formats::testing::example_pool;
    use cairn_testkit::test_env;

    use super::*;
    use crate::state::pool_state;

    struct Forgotten;

    impl HighWaterStore for Forgotten {
        fn load(&self) -> Result<Option<HighWater>, String> {
            Ok(None)
        }

        fn store(&self, _seen: HighWater) -> Result<(), String> {
            Ok(())
        }
    }

    async fn two_nodes() -> (MapTruth, MapTruth) {
        let env = test_env();
        let store = MemoryCoordinator::new(env.clone());
        let memory = Arc::new(Forgotten);
        let made = ClusterMap::create_cluster(
            store.client("a".to_owned()),
            env.clone(),
            ClusterId(1),
            "test",
            memory.clone(),
        );
        let one = MapTruth::new(made.await.unwrap(), NodeId(1));
        let opened = ClusterMap::open(store.client("b".to_owned()), env, "test", memory);
        (one, MapTruth::new(opened.await.unwrap(), NodeId(2)))
    }

    #[derive(Default)]
    struct Kept(parking_lot::Mutex<Option<HighWater>>);

    impl HighWaterStore for Kept {
        fn load(&self) -> Result<Option<HighWater>, String> {
            Ok(*self.0.lock())
        }

        fn store(&self, seen: HighWater) -> Result<(), String> {
            *self.0.lock() = Some(seen);
            Ok(())
        }
    }

    /// It acts upon it before it follows the map to it.
    #[tokio::test]
    async fn what_a_node_changed_itself_is_kept_in_mind() {
        let env = test_env();
        let store = MemoryCoordinator::new(env.clone());
        let kept = Arc::new(Kept::default());
        let made = ClusterMap::create_cluster(
            store.client("a".to_owned()),
            env,
            ClusterId(1),
            "test",
            kept.clone(),
        );
        let truth = MapTruth::new(made.await.unwrap(), NodeId(1));
        let before = PoolState {
            volumes: Vec::new(),
            ..example_pool(0)
        };
        let kept = || kept.load().unwrap().map_or(0, |seen| seen.revision);
        let first = kept();
        truth.save(&[], &example_pool(0), &before).await.unwrap();
        assert!(kept() > first && kept() >= truth.map.written().0);
    }

    /// Clones that come and go at several nodes, and the volume that they came from.
    #[tokio::test]
    async fn clones_of_a_volume_are_changed_one_by_one() {
        let (one, other) = two_nodes().await;
        let empty = PoolState {
            volumes: Vec::new(),
            ..example_pool(0)
        };
        let main = example_pool(0);
        let store = main.volumes[0].id;
        one.change(&main, &empty).await.unwrap();
        let with = |state: &PoolState, names: &[(u32, &str)]| {
            let mut state = state.clone();
            for (id, name) in names {
                let volume = PoolVolume {
                    id: VolumeId(*id),
                    name: name.parse().unwrap(),
                    ..main.volumes[0].clone()
                };
                state.clones.push(PoolClone { store, volume });
            }
            state
        };
        let seen = async || {
            let mut follower = one.map.follow().await.unwrap();
            pool_state(&follower.view().unwrap(), &main, NodeId(1))
        };
        let first = with(&main, &[(2, "first")]);
        one.change(&first, &main).await.unwrap();
        // A node that knows nothing of it makes another: the number is taken.
        let late = other.change(&with(&main, &[(2, "late")]), &main).await;
        assert_eq!(late.unwrap_err().kind(), MapErrorKind::Changed);
        let late = other.change(&with(&main, &[(3, "first")]), &main).await;
        assert!(matches!(late, Err(MapError::Exists { .. })));
        let second = with(&main, &[(3, "second")]);
        other.change(&second, &main).await.unwrap();
        let both = seen().await;
        assert_eq!(both.clones, with(&first, &[(3, "second")]).clones);

        // Of one that another node deletes meanwhile nothing is changed.
        let mut exported = both.clone();
        exported.clones[1].volume.exports.clear();
        let mut deleted = both.clone();
        deleted.delete_volume(VolumeId(3));
        deleted.delete_volume(store);
        one.change(&deleted, &both).await.unwrap();
        other.change(&exported, &both).await.unwrap();
        let left = seen().await;
        assert_eq!(left.clones, first.clones);
        assert!(left.volumes[0].is_deleted);
        let mut gone = left.clone();
        gone.delete_volume(VolumeId(2));
        other.change(&gone, &left).await.unwrap();
        assert!(seen().await.volumes.is_empty());
    }

    /// A node that does not know yet what another changed does not undo it: with the key of a volume that was wrapped
    /// before, all its data could be lost.
    #[tokio::test]
    async fn a_change_of_a_volume_undoes_no_other() {
        let (one, other) = two_nodes().await;
        let key = |byte| {
            Some(VolumeEncryption::Key(WrappedKey {
                master_key: MasterKeyId([byte; 8]),
                wrapped: [byte; WRAPPED_LEN_BYTES],
            }))
        };
        let empty = PoolState {
            volumes: Vec::new(),
            ..example_pool(0)
        };
        let with = |change: &dyn Fn(&mut PoolVolume)| {
            let mut state = example_pool(0);
            state.volumes[0].encryption = key(1);
            change(&mut state.volumes[0]);
            state
        };
        let made = with(&|_| {});
        one.change(&made, &empty).await.unwrap();
        let seen = async || {
            let found = one.map.volume(made.volumes[0].id).await.unwrap();
            store_state(&found.record.value).unwrap().volume
        };
        assert_eq!(seen().await, made.volumes[0]);

        let rotated = with(&|volume| volume.encryption = key(2));
        one.change(&rotated, &made).await.unwrap();
        let size_limit = SizeLimit::Bytes(1 << 30);
        let limited = with(&|volume| volume.settings.size_limit = size_limit);
        other.change(&limited, &made).await.unwrap();
        let found = seen().await;
        assert_eq!(
            (found.encryption, found.settings.size_limit),
            (key(2), size_limit)
        );

        let limit = |part: &str, iops| PartLimit {
            part: part.parse().unwrap(),
            throughput: None,
            read_throughput: None,
            write_throughput: None,
            iops: Some(iops),
        };
        let lun = with(&|volume| volume.limits = vec![limit("lun/a", 1)]);
        let bucket = with(&|volume| volume.limits = vec![limit("bucket/b", 2)]);
        one.change(&lun, &made).await.unwrap();
        other.change(&bucket, &made).await.unwrap();
        assert_eq!(
            seen().await.limits,
            [limit("lun/a", 1), limit("bucket/b", 2)]
        );
        let more = with(&|volume| volume.limits = vec![limit("lun/a", 3)]);
        one.change(&more, &lun).await.unwrap();
        other.change(&made, &bucket).await.unwrap();
        assert_eq!(seen().await.limits, more.volumes[0].limits);

        // Nor is an erased key there again for a rotation that began before, and it is erased in spite of one.
        let erased = Some(VolumeEncryption::Erased(Default::default()));
        let gone = with(&|volume| volume.encryption = erased);
        other.change(&gone, &made).await.unwrap();
        assert_eq!(seen().await.encryption, erased);
        let late = with(&|volume| volume.encryption = key(3));
        one.change(&late, &rotated).await.unwrap();
        assert_eq!(seen().await.encryption, erased);
        assert_eq!(seen().await.settings.size_limit, size_limit);
    }

    /// Two nodes change classes at the same time, each from what it saw last: neither undoes what the other did.
    #[tokio::test]
    async fn classes_of_all_nodes_are_in_the_map() {
        let (one, other) = two_nodes().await;
        let class = |name: &str| name.parse::<ClassName>().unwrap();
        let spec = |rate| ClassSpec {
            client_throughput: Some(rate),
            ..ClassSpec::default()
        };
        let none = Classes::new();
        let gold = Classes::from([(class("gold"), spec(1 << 20))]);
        let silver = Classes::from([(class("silver"), spec(1 << 21))]);
        one.change_classes(&gold, &none).await.unwrap();
        other.change_classes(&silver, &none).await.unwrap();

        let seen = async |truth: &MapTruth| {
            let mut follower = truth.map.follow().await.unwrap();
            let view = follower.view().unwrap();
            pool_state(&view, &example_pool(1), truth.own).classes
        };
        let both = Classes::from_iter(gold.clone().into_iter().chain(silver.clone()));
        assert_eq!(seen(&one).await, both);
        let changed = Classes::from([(class("gold"), spec(1 << 22))]);
        one.change_classes(&changed, &gold).await.unwrap();
        other.change_classes(&none, &silver).await.unwrap();
        assert_eq!(seen(&other).await, changed);
    }

    /// What another node set meanwhile is not replaced unseen, and the pool files of a cluster's disks do not have it.
    #[tokio::test]
    async fn the_maintenance_window_is_in_the_map() {
        let (one, other) = two_nodes().await;
        let window = |text: &str| Maintenance {
            window: Some(text.parse().unwrap()),
            ..Maintenance::default()
        };
        let (none, night) = (Maintenance::default(), window("sat:22:00-06:00"));
        let seen = async |truth: &MapTruth| {
            let mut follower = truth.map.follow().await.unwrap();
            let view = follower.view().unwrap();
            pool_state(&view, &example_pool(1), truth.own)
        };
        assert_eq!(seen(&one).await.maintenance, none);
        one.change_maintenance(&night, &none).await.unwrap();
        // Once more, for want of an answer.
        one.change_maintenance(&night, &none).await.unwrap();
        assert_eq!(seen(&other).await.maintenance, night);
        let daily = window("daily:01:00-02:00");
        let late = other.change_maintenance(&daily, &none).await;
        assert!(matches!(late, Err(MapError::Changed { .. })), "{late:?}");
        other.change_maintenance(&none, &night).await.unwrap();
        let after = seen(&one).await;
        assert_eq!(after.maintenance, none);
        let set = PoolState {
            maintenance: night,
            ..after
        };
        assert!(one.local(&set).maintenance.is_none());
    }

    /// With two keys half of the secrets could not be read any more.
    #[tokio::test]
    async fn one_key_of_secrets_is_in_the_map() {
        let (one, other) = two_nodes().await;
        let seen = async |truth: &MapTruth| {
            let mut follower = truth.map.follow().await.unwrap();
            let view = follower.view().unwrap();
            let before = PoolState {
                secrets_key: None,
                ..example_pool(1)
            };
            pool_state(&view, &before, truth.own)
        };
        let key = |byte| WrappedKey {
            master_key: MasterKeyId([byte; 8]),
            wrapped: [byte; WRAPPED_LEN_BYTES],
        };
        assert_eq!(seen(&one).await.secrets_key, None);
        one.change_secrets_key(&key(1), None).await.unwrap();
        // Once more, for want of an answer.
        one.change_secrets_key(&key(1), None).await.unwrap();
        let late = other.change_secrets_key(&key(2), None).await;
        assert!(matches!(late, Err(MapError::Changed { .. })), "{late:?}");
        let state = seen(&other).await;
        assert_eq!(state.secrets_key, Some(key(1)));
        other
            .change_secrets_key(&key(3), Some(&key(1)))
            .await
            .unwrap();
        assert_eq!(seen(&one).await.secrets_key, Some(key(3)));
        let local = one.local(&state);
        assert_eq!((local.secrets_key, local.handle_key), (None, None));
    }

    /// Two that read a key find it as it was before either goes on.
    struct Abreast {
        inner: Arc<dyn Coordinator>,
        key: KeyRange,
        both: Arc<tokio::sync::Barrier>,
        is_past: AtomicBool,
    }

    impl Coordinator for Abreast {
        fn range(&self, range: KeyRange) -> BoxFuture<Result<RangeReply, CoordinatorError>> {
            let is_first = range == self.key && !self.is_past.swap(true, Ordering::AcqRel);
            let (reading, both) = (self.inner.range(range), Arc::clone(&self.both));
            Box::pin(async move {
                let found = reading.await;
                if is_first {
                    both.wait().await;
                }
                found
            })
        }

        fn transact(&self, txn: Txn) -> BoxFuture<Outcome> {
            self.inner.transact(txn)
        }

        fn grant_lease(&self, ttl: Duration) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
            self.inner.grant_lease(ttl)
        }

        fn keep_alive(&self, lease: LeaseId) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
            self.inner.keep_alive(lease)
        }

        fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<Result<(), CoordinatorError>> {
            self.inner.revoke_lease(lease)
        }

        fn watch(&self, range: KeyRange, from: Revision) -> Box<dyn Watcher> {
            self.inner.watch(range, from)
        }
    }

    /// Makes the key of secrets as a node does that knows of none: what it wraps from then on it wraps with the key that its state has,
    /// and that has one which was saved, or which the map told of.
    async fn key_made(truth: &MapTruth, own: WrappedKey) -> WrappedKey {
        let mut state = PoolState {
            secrets_key: None,
            ..example_pool(1)
        };
        loop {
            if let Some(key) = state.secrets_key {
                return key;
            }
            let next = PoolState {
                secrets_key: Some(own),
                ..state.clone()
            };
            match truth.save(&[], &next, &state).await {
                Ok(_) => state = next,
                Err(SaveError::Conflict(_)) => {
                    let view = truth.map.follow().await.unwrap().view().unwrap();
                    state = pool_state(&view, &state, truth.own);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn two_nodes_that_make_the_key_of_secrets_at_once_have_one() {
        for is_turned in [false, true] {
            let env = test_env();
            let store = MemoryCoordinator::new(env.clone());
            let both = Arc::new(tokio::sync::Barrier::new(2));
            let client = |name: &str| -> Arc<dyn Coordinator> {
                Arc::new(Abreast {
                    inner: store.client(name.to_owned()),
                    key: KeyRange::One(Keys::new("test").secrets_key()),
                    both: Arc::clone(&both),
                    is_past: AtomicBool::new(false),
                })
            };
            let memory = Arc::new(Forgotten);
            let made = ClusterMap::create_cluster(
                client("a"),
                env.clone(),
                ClusterId(1),
                "test",
                memory.clone(),
            );
            let one = MapTruth::new(made.await.unwrap(), NodeId(1));
            let opened = ClusterMap::open(client("b"), env, "test", memory).await;
            let other = MapTruth::new(opened.unwrap(), NodeId(2));
            let key = |byte| WrappedKey {
                master_key: MasterKeyId([9; 8]),
                wrapped: [byte; WRAPPED_LEN_BYTES],
            };
            let (of_one, of_other) = match is_turned {
                false => tokio::join!(key_made(&one, key(1)), key_made(&other, key(2))),
                true => {
                    let (of_other, of_one) =
                        tokio::join!(key_made(&other, key(2)), key_made(&one, key(1)));
                    (of_one, of_other)
                }
            };
            assert_eq!(of_one, of_other);
            assert!([key(1), key(2)].contains(&of_one));
            let there = one.map.secrets_key().await.unwrap().unwrap();
            assert_eq!(secrets_key_of(&there.value), Ok(of_one));
        }
    }

    /// A tier that a volume names is not removed by a node that does not know of it yet, and a volume does not come to name one
    /// that is gone.
    #[tokio::test]
    async fn tiers_of_all_nodes_are_in_the_map() {
        let (one, other) = two_nodes().await;
        let seen = async |truth: &MapTruth| {
            let mut follower = truth.map.follow().await.unwrap();
            let view = follower.view().unwrap();
            pool_state(&view, &example_pool(1), truth.own)
        };
        let add = |state: &PoolState, name: &str| {
            let mut state = state.clone();
            let added = state.add_tier(
                name.parse().unwrap(),
                format!("s3://{name}"),
                None,
                cairn_base::Timestamp::new(1, 0),
            );
            (state, added.unwrap())
        };
        let made = PoolState {
            volumes: Vec::new(),
            disks: Vec::new(),
            ..example_pool(1)
        };
        let volume = example_pool(1).volumes.remove(0);
        let with_volume = PoolState {
            volumes: vec![PoolVolume {
                exports: Vec::new(),
                ..volume
            }],
            ..made.clone()
        };
        one.change(&with_volume, &made).await.unwrap();
        let start = seen(&one).await;
        let (cold, id) = add(&start, "cold");
        one.change(&cold, &start).await.unwrap();
        // The other one adds another tier, of the same number: it saw nothing of the first.
        let (late, _) = add(&start, "other");
        let refused = other.change(&late, &start).await.unwrap_err();
        assert_eq!(refused.kind(), MapErrorKind::Changed);
        let before = seen(&other).await;
        assert_eq!((before.tiers.len(), before.tier_last), (1, id));
        // One comes to name it while the other, which does not know, removes it.
        let mut names = before.clone();
        names.volumes[0].tiering = Some(VolumeTiering {
            tier: id,
            policy: Default::default(),
            cooling_days: Default::default(),
            filter: Default::default(),
        });
        one.change(&names, &before).await.unwrap();
        let mut removed = before.clone();
        removed.tiers.clear();
        let refused = other.change(&removed, &before).await.unwrap_err();
        assert_eq!(refused.kind(), MapErrorKind::Changed);
        assert_eq!(seen(&other).await.tiers.len(), 1);
        assert_eq!(
            seen(&other).await.volumes[0].tiering,
            names.volumes[0].tiering
        );
        // A name that is taken off as nothing is there stays if it is another policy by now.
        let mut sends = names.clone();
        sends.volumes[0].tiering.as_mut().unwrap().policy = Tiering::All;
        one.change(&sends, &names).await.unwrap();
        other.change(&before, &names).await.unwrap();
        assert_eq!(
            seen(&other).await.volumes[0].tiering,
            sends.volumes[0].tiering
        );
        one.change(&before, &sends).await.unwrap();
        // Now it goes, and a change that names it late is refused.
        other.change(&removed, &before).await.unwrap();
        let refused = one.change(&names, &before).await.unwrap_err();
        assert_eq!(refused.kind(), MapErrorKind::Changed);
        let after = seen(&one).await;
        assert_eq!(
            (after.tiers.len(), after.tier_last),
            (0, id),
            "an id is given once"
        );
        assert_eq!(after.volumes[0].tiering, None);
        let local = one.local(&cold);
        assert!(local.tiers.is_empty() && local.tier_last == TierId::default());
        // Volumes that are deleted at two nodes are both remembered, and forgotten one by one.
        let (cold, id) = add(&after, "cold");
        one.change(&cold, &after).await.unwrap();
        let deleting = |of: &[u32]| {
            let mut state = cold.clone();
            state.tiers[0].deleting = of.iter().map(|id| VolumeId(*id)).collect();
            state
        };
        one.change(&deleting(&[7]), &cold).await.unwrap();
        other.change(&deleting(&[8]), &cold).await.unwrap();
        one.change(&deleting(&[]), &deleting(&[7])).await.unwrap();
        let left = seen(&one).await;
        assert_eq!(
            (left.tiers[0].id, &left.tiers[0].deleting[..]),
            (id, &[VolumeId(8)][..])
        );
    }

    /// What any node ended has ended for all, and the pool files of a cluster's disks do not have it.
    #[tokio::test]
    async fn sessions_that_any_node_ended_are_in_the_map() {
        let (one, other) = two_nodes().await;
        let ended = |number| {
            let mut logouts = Logouts::default();
            let ends_seconds = 500;
            let logout = Logout::Session {
                number,
                ends_seconds,
            };
            logouts.add(logout, 0);
            logouts
        };
        // Neither has seen what the other did.
        one.add_logouts(&ended(1)).await.unwrap();
        other.add_logouts(&ended(2)).await.unwrap();
        let mut follower = one.map.follow().await.unwrap();
        let view = follower.view().unwrap();
        let state = pool_state(&view, &example_pool(1), one.own);
        assert!(state.logouts.has(1, "", 500) && state.logouts.has(2, "", 500));
        assert!(!state.logouts.has(3, "", 500));
        assert!(one.local(&state).logouts.is_none());
    }

    /// Two nodes change users, each from what it saw last: what one did to a user the other does not undo.
    #[tokio::test]
    async fn users_of_all_nodes_are_in_the_map() {
        let (one, other) = two_nodes().await;
        let name = |name: &str| name.parse::<UserName>().unwrap();
        let user = |stamp| UserRecord {
            stamp,
            ..cairn_formats::testing::example_user()
        };
        let none = Users::new();
        let alice = Users::from([(name("alice"), user(1))]);
        let bob = Users::from([(name("bob"), user(2))]);
        one.change_users(&alice, &none).await.unwrap();
        other.change_users(&bob, &none).await.unwrap();

        let seen = async |truth: &MapTruth| {
            let mut follower = truth.map.follow().await.unwrap();
            let view = follower.view().unwrap();
            pool_state(&view, &example_pool(1), truth.own).users
        };
        let both = Users::from_iter(alice.clone().into_iter().chain(bob.clone()));
        assert_eq!(seen(&one).await, both);
        // Another node made one of this name, with another password.
        let late = Users::from([(name("alice"), user(3))]);
        assert!(other.change_users(&late, &none).await.is_err());
        // Alice was locked out by the one; the other cannot bring her back with what it saw before.
        one.change_users(&none, &alice).await.unwrap();
        let undone = other.change_users(&late, &alice).await.unwrap_err();
        assert_eq!(undone.kind(), MapErrorKind::Changed);
        assert_eq!(seen(&other).await, bob);
        // Once more is no other change.
        one.change_users(&none, &alice).await.unwrap();
        assert_eq!(seen(&other).await, bob);
        assert!(
            one.local(&PoolState {
                users: bob,
                ..example_pool(1)
            })
            .users
            .is_empty()
        );
    }
}
