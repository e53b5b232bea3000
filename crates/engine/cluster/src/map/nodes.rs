//! Nodes and their disks.
//!
//! Owns: joining, changing and removing them; that names and addresses are unique; who is alive.
//! Must not know: what a node does, where data goes.

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_base::{DiskId, NodeId, Timestamp};

use super::keys::{NameKind, is_name};
use super::values::{
    AliveRecord, DiskRecord, IscsiPortals, NameRecord, NodeRecord, OwnerRecord, RemovedRecord,
    Sign, TokenRecord, Value, VersionRange, Versioned, decode, encode,
};
use super::{ClusterMap, JoinToken, MapError, Process, Written, found};
use crate::coordinator::{Compare, Key, KeyRange, LeaseId, Op, Outcome, Revision, Txn};

/// etcd takes so many steps in a transaction, and some more.
const DISKS_DRAINED_AT_ONCE_MAX: usize = 100;
/// A member of etcd that starts again has so long before another one may.
pub const MEMBER_RESTART_MAX: Duration = Duration::from_secs(30);
/// A node that comes while a CA takes the place of another is added so often, since nodes note in between how far they are.
const GUARDED_TRIES_MAX: usize = 16;
/// So many tokens of a node go with it at once; those that are left let nobody in.
const TOKENS_REMOVED_MAX: usize = 64;
/// A disk's removal that somebody's note came in between of is tried so often.
const REMOVAL_TRIES_MAX: usize = 8;

/// Where a node is from now on, when another machine takes its place.
#[derive(Clone, Debug)]
pub struct Machine {
    pub internal_address: String,
    pub external_address: String,
    pub versions: VersionRange,
}

impl ClusterMap {
    /// Adds a node without a token: the first of a cluster, or one that an operator vouches for.
    pub async fn add_node(&self, record: &NodeRecord) -> Result<(), MapError> {
        self.add_node_with(record, Txn::default()).await
    }

    /// Adds a node that has a token, and uses the token up: both or neither.
    pub async fn join(&self, token: &JoinToken, record: &NodeRecord) -> Result<(), MapError> {
        let key = self.keys().token(&token.id());
        let before = self.valid_token(token).await?;
        let used = TokenRecord {
            used_by: Some(record.id),
            ..before.value
        };
        let txn = Txn {
            when: vec![Compare::Modified(key.clone(), before.revision)],
            then: vec![Op::put(key.clone(), encode(&key, &used)?)],
            otherwise: Vec::new(),
        };
        match self.add_node_with(record, txn).await {
            Err(MapError::Changed { key: of, .. }) if of == self.keys().node(record.id) => {
                Err(MapError::Token("it was used meanwhile"))
            }
            result => result,
        }
    }

    /// Has another machine be a node that is away, with that node's disks: the node gets its addresses, and uses a token up.
    pub async fn rejoin(
        &self,
        token: &JoinToken,
        name: &str,
        machine: &Machine,
    ) -> Result<NodeRecord, MapError> {
        let token_key = self.keys().token(&token.id());
        let before = self.valid_token(token).await?;
        let replaced = self.node_named(name).await?;
        let node = replaced.value.id;
        let invalid = |problem: &str| MapError::Invalid {
            key: self.keys().node(node),
            what: "the machine of a node",
            problem: problem.to_owned(),
        };
        if replaced.value.draining {
            return Err(invalid(
                "the node is being drained: `cairn node drain --cancel` stops the drain",
            ));
        }
        let alive = self.keys().alive(node);
        if self.read_one::<AliveRecord>(alive.clone()).await?.is_some() {
            return Err(invalid(
                "the node is up, or was some seconds ago: stop its server first",
            ));
        }
        let record = NodeRecord {
            internal_address: machine.internal_address.clone(),
            external_address: machine.external_address.clone(),
            versions: machine.versions,
            maintenance_until: None,
            ..replaced.value.clone()
        };
        let used = TokenRecord {
            used_by: Some(node),
            ..before.value
        };
        let txn = Txn {
            when: vec![
                Compare::Modified(token_key.clone(), before.revision),
                Compare::absent(alive),
            ],
            then: vec![
                Op::put(token_key.clone(), encode(&token_key, &used)?),
                // Of the machine of before.
                Op::delete(self.keys().rotation_note(node)),
            ],
            otherwise: Vec::new(),
        };
        let mut tries = 1;
        loop {
            let rotation = self.rotation().await?;
            let mut guarded = txn.clone();
            // The machine of before may have trusted the new CA, and had its key; this one gets what it trusts after this.
            self.guard_rotation(&mut guarded, rotation.as_ref(), |it| it.without(node))?;
            let result = self.change_node_with(&replaced, &record, guarded).await;
            let is_changed = matches!(result, Err(MapError::Changed { .. }));
            if !is_changed || tries >= GUARDED_TRIES_MAX || self.rotation().await? == rotation {
                return result.map(|()| record);
            }
            tries += 1;
        }
    }

    async fn add_node_with(&self, record: &NodeRecord, txn: Txn) -> Result<(), MapError> {
        let mut tries = 1;
        loop {
            let rotation = self.rotation().await?;
            let mut guarded = txn.clone();
            self.guard_rotation(&mut guarded, rotation.as_ref(), Clone::clone)?;
            let result = self.add_node_once(record, guarded).await;
            let is_changed = matches!(result, Err(MapError::Changed { .. }));
            if !is_changed || tries >= GUARDED_TRIES_MAX || self.rotation().await? == rotation {
                return result;
            }
            tries += 1;
        }
    }

    async fn add_node_once(&self, record: &NodeRecord, mut txn: Txn) -> Result<(), MapError> {
        let key = self.keys().node(record.id);
        let claims = self.claims_of(record)?;
        for claim in &claims {
            txn.when.push(Compare::absent(claim.clone()));
            txn.then.push(self.claim(claim, record.id)?);
            txn.otherwise.push(KeyRange::One(claim.clone()));
        }
        match self
            .write(key.clone(), Revision::ABSENT, record, txn)
            .await?
        {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let taken = reply.reads.iter().flatten().next();
                Err(match taken {
                    Some(entry) if entry.key == key => MapError::Exists {
                        key,
                        what: "a node of this id",
                    },
                    Some(entry) => MapError::Exists {
                        key: entry.key.clone(),
                        what: "a node of this name or address",
                    },
                    None => MapError::Changed {
                        key,
                        what: "the token",
                    },
                })
            }
        }
    }

    /// Replaces a node's record; its name and addresses may change, its id not.
    pub async fn change_node(
        &self,
        replaced: &Versioned<NodeRecord>,
        record: &NodeRecord,
    ) -> Result<(), MapError> {
        self.change_node_with(replaced, record, Txn::default())
            .await
    }

    async fn change_node_with(
        &self,
        replaced: &Versioned<NodeRecord>,
        record: &NodeRecord,
        mut txn: Txn,
    ) -> Result<(), MapError> {
        let key = self.keys().node(record.id);
        let before = self.claims_of(&replaced.value)?;
        let after = self.claims_of(record)?;
        for freed in before.difference(&after) {
            txn.then.push(Op::delete(freed.clone()));
        }
        for claim in after.difference(&before) {
            txn.when.push(Compare::absent(claim.clone()));
            txn.then.push(self.claim(claim, record.id)?);
            txn.otherwise.push(KeyRange::One(claim.clone()));
        }
        match self
            .write(key.clone(), replaced.revision, record, txn)
            .await?
        {
            Written::Done => Ok(()),
            Written::Refused(reply) => {
                let taken = reply.reads.iter().flatten().find(|entry| entry.key != key);
                Err(match taken {
                    Some(entry) => MapError::Exists {
                        key: entry.key.clone(),
                        what: "a node of this name or address",
                    },
                    None => MapError::Changed {
                        key,
                        what: "a node",
                    },
                })
            }
        }
    }

    /// Has a node leave, or stay after all: it and all its disks drain from one moment on, or none does. `replaced_by` takes
    /// its place; refused if that one leaves, too.
    pub async fn set_node_draining(
        &self,
        node: NodeId,
        draining: bool,
        replaced_by: Option<NodeId>,
    ) -> Result<(), MapError> {
        let key = self.keys().node(node);
        let invalid = |problem: String| MapError::Invalid {
            key: key.clone(),
            what: "the draining of a node",
            problem,
        };
        let before = self.node(node).await?;
        let record = NodeRecord {
            draining,
            replaced_by,
            ..before.value.clone()
        };
        let mut txn = Txn::default();
        if let Some(other) = replaced_by {
            let other = self.node(other).await?;
            if other.value.draining {
                return Err(invalid(format!(
                    "{} is being drained as well",
                    other.value.name
                )));
            }
            let key = self.keys().node(other.value.id);
            txn.when.push(Compare::Modified(key, other.revision));
        }
        txn.when.push(self.no_disk_added(node).await?);
        let (disks, _) = self.disks().await?;
        let disks: Vec<_> = disks
            .iter()
            .filter(|disk| disk.value.node == node)
            .collect();
        if disks.len() > DISKS_DRAINED_AT_ONCE_MAX {
            return Err(invalid(format!(
                "it has {} disks, and {DISKS_DRAINED_AT_ONCE_MAX} can be drained at once: drain some of them first (`cairn \
                 disk drain`), and remove them",
                disks.len()
            )));
        }
        for disk in disks {
            let key = self.keys().disk(disk.value.id);
            let changed = DiskRecord {
                draining,
                replaced: disk.value.replaced && draining,
                ..disk.value.clone()
            };
            txn.when.push(Compare::Modified(key.clone(), disk.revision));
            txn.then.push(Op::put(key.clone(), encode(&key, &changed)?));
        }
        self.write(key.clone(), before.revision, &record, txn)
            .await?
            .or_changed(key, "a node, or one of its disks")
    }

    /// Says until when a node is meant to be away; `None`: it is not.
    pub async fn set_node_maintenance(
        &self,
        node: NodeId,
        until: Option<Timestamp>,
    ) -> Result<(), MapError> {
        let before = self.node(node).await?;
        let record = NodeRecord {
            maintenance_until: until,
            ..before.value
        };
        let key = self.keys().node(node);
        self.write(key.clone(), before.revision, &record, Txn::default())
            .await?
            .or_changed(key, "a node")
    }

    /// Says which part of the load a node has beside others.
    pub async fn set_node_weight(&self, node: NodeId, weight: u32) -> Result<(), MapError> {
        let before = self.node(node).await?;
        let record = NodeRecord {
            weight,
            ..before.value
        };
        let key = self.keys().node(node);
        self.write(key.clone(), before.revision, &record, Txn::default())
            .await?
            .or_changed(key, "a node")
    }

    /// Takes a drained node out of the map with all its disks: refused as long as a volume has something on one of them.
    /// Begun again it goes on where it stopped.
    pub async fn remove_drained_node(&self, node: NodeId) -> Result<(), MapError> {
        self.empty_drained_node(node).await?;
        self.remove_node(node).await
    }

    /// Takes the disks of a drained node out of the map; the node itself is left for [`Self::remove_node`].
    pub async fn empty_drained_node(&self, node: NodeId) -> Result<(), MapError> {
        let key = self.keys().node(node);
        let invalid = |problem: String| MapError::Invalid {
            key: key.clone(),
            what: "the removal of a node",
            problem,
        };
        let record = self.node(node).await?.value;
        if !record.draining {
            let name = record.name;
            return Err(invalid(format!(
                "it is in use: `cairn node drain {name}` moves its data to other nodes"
            )));
        }
        let (volumes, _) = self.volumes().await?;
        for volume in &volumes {
            let is_owner = |owner: &&Versioned<OwnerRecord>| owner.value.node == node;
            let record = &volume.record.value;
            if volume.owner.as_ref().filter(is_owner).is_some() {
                return Err(invalid(format!(
                    "it still owns volume {}; try again in a moment",
                    record.name
                )));
            }
            if volume.preferred == Some(node) {
                self.set_preferred(record.id, None).await?;
            }
        }
        let (disks, _) = self.disks().await?;
        for disk in disks.iter().filter(|disk| disk.value.node == node) {
            let mut tries = 1;
            loop {
                match self.remove_left_disk(disk.value.id).await {
                    Err(MapError::Changed { .. }) if tries < REMOVAL_TRIES_MAX => tries += 1,
                    result => break result?,
                }
            }
        }
        Ok(())
    }

    /// Removes a node that has no disks any more, and its sign of life. That it was here is remembered: certificates of it are good
    /// for a while.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), MapError> {
        let key = self.keys().node(node);
        let before = self.node(node).await?;
        let no_disk_added = self.no_disk_added(node).await?;
        let (disks, _) = self.disks().await?;
        let count = disks.iter().filter(|disk| disk.value.node == node).count();
        if count > 0 {
            return Err(MapError::Invalid {
                key,
                what: "the removal of a node",
                problem: format!(
                    "{count} of its disks are still in the map; drain and remove them first"
                ),
            });
        }
        let claims = self.claims_of(&before.value)?;
        let removed = self.keys().removed(node);
        let record = RemovedRecord {
            node,
            name: before.value.name,
            at: self.shared.env.clock.now(),
        };
        let mut then = vec![Op::put(removed.clone(), encode(&removed, &record)?)];
        let mut gone = vec![key.clone()];
        // All that it says of itself.
        gone.extend(
            self.keys()
                .of_node(node)
                .into_iter()
                .filter_map(|range| match range {
                    KeyRange::One(key) => Some(key),
                    KeyRange::Prefix(_) => None,
                }),
        );
        let iscsi = match self.iscsi(node).await {
            // The node wrote that, and must not be kept by it.
            Err(MapError::Damaged { .. } | MapError::TooNew { .. }) => None,
            found => found?,
        };
        if let Some(iscsi) = iscsi {
            gone.push(
                self.keys()
                    .name(NameKind::IscsiGroup, &iscsi.value.group.to_string()),
            );
        }
        // Tickets that this node made let nobody in any more.
        let tokens = self.read(self.keys().tokens()).await?.entries.into_iter();
        let of_it = tokens.filter(|entry| {
            decode::<TokenRecord>(entry).is_ok_and(|token| token.value.made_by == node)
        });
        gone.extend(of_it.take(TOKENS_REMOVED_MAX).map(|entry| entry.key));
        then.extend(gone.into_iter().chain(claims).map(Op::delete));
        let txn = Txn {
            when: vec![
                Compare::Modified(key.clone(), before.revision),
                no_disk_added,
            ],
            then,
            otherwise: Vec::new(),
        };
        self.delete(txn, key, "a node").await
    }

    /// Has a node's member of etcd start again, unless that of another node does: the lease that it has for that, given back with
    /// [`Self::end_member_restart`].
    pub async fn begin_member_restart(&self, node: NodeId) -> Result<Option<LeaseId>, MapError> {
        let coordinator = &self.shared.coordinator;
        let lease = coordinator.grant_lease(MEMBER_RESTART_MAX).await?.id;
        let key = self.keys().member_restart();
        let txn = Txn {
            when: vec![Compare::absent(key.clone())],
            then: vec![Op::Put {
                key,
                value: node.to_string().into_bytes(),
                lease: Some(lease),
            }],
            otherwise: Vec::new(),
        };
        match coordinator.transact(txn).await {
            Outcome::Done(_) => Ok(Some(lease)),
            Outcome::Refused(_) => {
                coordinator.revoke_lease(lease).await?;
                Ok(None)
            }
            // If it was done it is undone when the lease ends.
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(error.into()),
        }
    }

    pub async fn end_member_restart(&self, lease: LeaseId) -> Result<(), MapError> {
        Ok(self.shared.coordinator.revoke_lease(lease).await?)
    }

    /// Nodes that were removed, as far as that is remembered.
    pub async fn removed_nodes(&self) -> Result<Vec<Versioned<RemovedRecord>>, MapError> {
        let (removed, _) = self.read_all(self.keys().all_removed()).await?;
        Ok(removed)
    }

    /// Forgets that a node was removed, once nothing that it has is good any more.
    pub async fn forget_removed(&self, removed: &Versioned<RemovedRecord>) -> Result<(), MapError> {
        let key = self.keys().removed(removed.value.node);
        self.delete_one(key, removed.revision, "a node that was removed")
            .await
    }

    pub async fn node(&self, node: NodeId) -> Result<Versioned<NodeRecord>, MapError> {
        let key = self.keys().node(node);
        let node = self.read_one(key.clone()).await?;
        node.ok_or(MapError::NotFound {
            key,
            what: "the node",
        })
    }

    /// All nodes, and the revision that a watch goes on from.
    pub async fn nodes(&self) -> Result<(Vec<Versioned<NodeRecord>>, Revision), MapError> {
        self.read_all(self.keys().nodes()).await
    }

    /// Says that this process is there, for as long as its lease lives, and which volumes it cannot open.
    pub async fn announce(&self, process: Process, sign: &Sign) -> Result<(), MapError> {
        let key = self.keys().alive(process.node);
        loop {
            let before = self.read_one::<AliveRecord>(key.clone()).await?;
            let same = before.as_ref().map(|before| &before.value);
            let same = same.filter(|before| before.process == process.nonce);
            let record = AliveRecord {
                node: process.node,
                process: process.nonce,
                since: same.map_or_else(|| self.shared.env.clock.now(), |before| before.since),
                locked: sign.locked.clone(),
                unreached: sign.unreached.clone(),
                failed: sign.failed.clone(),
                folder_is_low: sign.folder_is_low,
                host: sign.host.clone(),
                volumes_max: sign.volumes_max,
                allows_clear: sign.allows_clear,
                leaves_addresses: sign.leaves_addresses,
                unfit_addresses: sign.unfit_addresses.clone(),
                prepared: sign.prepared.clone(),
                reserved_seen: sign.reserved_seen,
                unflushed_bytes_max: sign.unflushed_bytes_max,
            };
            let replaced = before.map_or(Revision::ABSENT, |before| before.revision);
            let written = self
                .write_leased(
                    key.clone(),
                    replaced,
                    &record,
                    Some(process.lease),
                    Txn::default(),
                )
                .await?;
            match written {
                Written::Done => return Ok(()),
                // An earlier process's sign of life went meanwhile.
                Written::Refused(_) => {}
            }
        }
    }

    /// Who is alive, and the revision that a watch on [`super::Keys::all_alive`] goes on from.
    pub async fn alive(&self) -> Result<(Vec<Versioned<AliveRecord>>, Revision), MapError> {
        self.read_all(self.keys().all_alive()).await
    }

    /// Adds a disk to a node that is in the map.
    pub async fn add_disk(&self, record: &DiskRecord) -> Result<(), MapError> {
        let key = self.keys().disk(record.id);
        let node_key = self.keys().node(record.node);
        let adds_key = self.keys().disk_adds(record.node);
        loop {
            let node = self.node(record.node).await?;
            if node.value.draining {
                return Err(MapError::Invalid {
                    key,
                    what: "a disk",
                    problem: format!(
                        "node {0} is being drained and takes no new disks; `cairn node drain {0} --cancel` stops the drain",
                        node.value.name
                    ),
                });
            }
            // The removal and the drain of the node compare the second key, so that neither is done meanwhile.
            let txn = Txn {
                when: vec![Compare::Modified(node_key.clone(), node.revision)],
                then: vec![Op::put(
                    adds_key.clone(),
                    record.id.to_string().into_bytes(),
                )],
                otherwise: Vec::new(),
            };
            match self
                .write(key.clone(), Revision::ABSENT, record, txn)
                .await?
            {
                Written::Done => return Ok(()),
                Written::Refused(reply) if reply.read_one(0).is_some() => {
                    return Err(MapError::Exists {
                        key,
                        what: "a disk of this id",
                    });
                }
                Written::Refused(_) => {}
            }
        }
    }

    pub async fn change_disk(
        &self,
        replaced: &Versioned<DiskRecord>,
        record: &DiskRecord,
    ) -> Result<(), MapError> {
        let key = self.keys().disk(record.id);
        self.write(key.clone(), replaced.revision, record, Txn::default())
            .await?
            .or_changed(key, "a disk")
    }

    /// Removes a disk that nothing is on any more.
    pub async fn remove_disk(&self, replaced: &Versioned<DiskRecord>) -> Result<(), MapError> {
        let key = self.keys().disk(replaced.value.id);
        self.delete_one(key, replaced.revision, "a disk").await
    }

    pub async fn disk(&self, disk: DiskId) -> Result<Versioned<DiskRecord>, MapError> {
        let key = self.keys().disk(disk);
        let disk = self.read_one(key.clone()).await?;
        disk.ok_or(MapError::NotFound {
            key,
            what: "the disk",
        })
    }

    pub async fn disks(&self) -> Result<(Vec<Versioned<DiskRecord>>, Revision), MapError> {
        self.read_all(self.keys().disks()).await
    }

    /// Compares that the node adds no disk after this.
    async fn no_disk_added(&self, node: NodeId) -> Result<Compare, MapError> {
        let key = self.keys().disk_adds(node);
        let found = self.read(KeyRange::One(key.clone())).await?.one();
        let revision = found.map_or(Revision::ABSENT, |entry| entry.modified);
        Ok(Compare::Modified(key, revision))
    }

    /// Where a node serves iSCSI, if it does.
    pub async fn iscsi(&self, node: NodeId) -> Result<Option<Versioned<IscsiPortals>>, MapError> {
        self.read_one(self.keys().iscsi(node)).await
    }

    /// Where all nodes serve iSCSI. What cannot be read is left out: each node writes its own, and holds up no other by that.
    pub async fn all_iscsi(&self) -> Result<Vec<Versioned<IscsiPortals>>, MapError> {
        let reply = self.read(self.keys().all_iscsi()).await?;
        let readable = reply.entries.iter().filter_map(|entry| decode(entry).ok());
        Ok(readable.collect())
    }

    /// Says where a node serves iSCSI, in place of what it said before; refused if another node has its number.
    pub async fn set_iscsi(
        &self,
        replaced: Option<&Versioned<IscsiPortals>>,
        portals: &IscsiPortals,
    ) -> Result<(), MapError> {
        let key = self.keys().iscsi(portals.node);
        let node = self.node(portals.node).await?;
        let claim = |group: u16| self.keys().name(NameKind::IscsiGroup, &group.to_string());
        let mut txn = Txn::default();
        // It must not be removed meanwhile.
        let node_key = self.keys().node(portals.node);
        txn.when.push(Compare::Modified(node_key, node.revision));
        let before = replaced.map(|before| before.value.group);
        if before != Some(portals.group) {
            let after = claim(portals.group);
            txn.when.push(Compare::absent(after.clone()));
            txn.then.push(self.claim(&after, portals.node)?);
            txn.then
                .extend(before.map(|group| Op::delete(claim(group))));
        }
        let revision = replaced.map_or(Revision::ABSENT, |before| before.revision);
        self.write(key.clone(), revision, portals, txn)
            .await?
            .or_changed(key, IscsiPortals::WHAT)
    }

    /// The keys that say who has a node's name and addresses.
    fn claims_of(&self, record: &NodeRecord) -> Result<BTreeSet<Key>, MapError> {
        let keys = self.keys();
        let invalid = |problem: String| MapError::Invalid {
            key: keys.node(record.id),
            what: "a node",
            problem,
        };
        if !is_name(&record.name) {
            let name = &record.name;
            return Err(invalid(format!(
                "{name:?} is not a name: at most 63 letters, digits, '-', '_' and '.'"
            )));
        }
        let addresses = [&record.internal_address, &record.external_address];
        if let Some(address) = addresses.into_iter().find(|address| !is_address(address)) {
            return Err(invalid(format!("{address:?} is not an address")));
        }
        let mut claims = BTreeSet::from([keys.name(NameKind::Node, &record.name)]);
        claims.extend(addresses.map(|address| keys.name(NameKind::Address, address)));
        Ok(claims)
    }

    fn claim(&self, claim: &Key, node: NodeId) -> Result<Op, MapError> {
        let name = NameRecord {
            of: node.to_string(),
        };
        Ok(Op::put(claim.clone(), encode(claim, &name)?))
    }

    /// What a name or address of a node leads to.
    pub async fn node_named(&self, name: &str) -> Result<Versioned<NodeRecord>, MapError> {
        let key = self.keys().name(NameKind::Node, name);
        let reply = self.read(KeyRange::One(key.clone())).await?;
        let name = decode::<NameRecord>(found(reply.entries.first(), &key, "the node")?)?;
        let node = name
            .value
            .of
            .parse::<NodeId>()
            .map_err(|_| MapError::Damaged {
                key: key.clone(),
                what: "a name",
                problem: format!("{:?} is not the id of a node", name.value.of),
            })?;
        self.node(node).await
    }
}

/// Whether this may be an address: what can stand in a key, and not too long.
fn is_address(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]%".contains(&byte);
    !text.is_empty() && text.len() <= 255 && text.bytes().all(fine)
}
