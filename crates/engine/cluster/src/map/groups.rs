//! Groups of volumes of which snapshots are taken at one instant, and that several nodes own.
//!
//! Owns: the one place that says whether all volumes of a group have their snapshot. Must not know: how snapshots are taken.
//!
//! The node that takes them writes the group before it asks anybody, below its own lease: a group that is not there came to
//! nothing, also because that node was lost. When all have told that theirs is durable it says so, without a lease, and from
//! then on the group is whole, whichever node is lost. It goes when all have noted that.

use std::collections::BTreeSet;

use cairn_base::VolumeId;

use super::values::{GroupRecord, Versioned};
use super::{ClusterMap, MapError, Process, Written};
use crate::coordinator::{Revision, Txn};

const WHAT: &str = "a group of snapshots";

impl ClusterMap {
    /// Begins a group that is there as long as the process is. Returns its number.
    pub async fn begin_group(
        &self,
        process: Process,
        volumes: &BTreeSet<VolumeId>,
    ) -> Result<u64, MapError> {
        let group = self.shared.env.entropy.u64().max(1);
        let key = self.keys().group(group);
        let record = GroupRecord {
            is_whole: false,
            volumes: volumes.clone(),
        };
        let written = self.write_leased(
            key.clone(),
            Revision::ABSENT,
            &record,
            Some(process.lease),
            Txn::default(),
        );
        match written.await? {
            Written::Done => Ok(group),
            Written::Refused(_) => Err(MapError::Exists { key, what: WHAT }),
        }
    }

    /// Says that all volumes of a group have their snapshot. [`MapError::Changed`]: it has come to nothing meanwhile.
    pub async fn decide_group(&self, group: u64) -> Result<(), MapError> {
        let key = self.keys().group(group);
        let changed = MapError::Changed {
            key: key.clone(),
            what: WHAT,
        };
        let found = self.group(group).await?.ok_or_else(|| changed.clone())?;
        let record = GroupRecord {
            is_whole: true,
            ..found.value
        };
        match self
            .write(key, found.revision, &record, Txn::default())
            .await?
        {
            Written::Done => Ok(()),
            Written::Refused(_) => Err(changed),
        }
    }

    /// `None`: it came to nothing, or all have noted that it is whole.
    pub async fn group(&self, group: u64) -> Result<Option<Versioned<GroupRecord>>, MapError> {
        self.read_one(self.keys().group(group)).await
    }

    /// These volumes have noted that their group is whole, or are no more.
    pub async fn leave_group(
        &self,
        group: u64,
        volumes: &BTreeSet<VolumeId>,
    ) -> Result<(), MapError> {
        while let Some(found) = self.group(group).await? {
            let mut record = found.value;
            record.volumes.retain(|volume| !volumes.contains(volume));
            if record.volumes.is_empty() {
                match self.delete_group(group, found.revision).await {
                    Err(MapError::Changed { .. }) => continue,
                    deleted => return deleted,
                }
            }
            let key = self.keys().group(group);
            let written = self.write(key, found.revision, &record, Txn::default());
            if let Written::Done = written.await? {
                break;
            }
        }
        Ok(())
    }

    /// Lets a group come to nothing, unless it is whole: the node that decided that may not have been told. Returns whether it has
    /// come to nothing.
    pub async fn give_up_group(&self, group: u64) -> Result<bool, MapError> {
        while let Some(found) = self.group(group).await? {
            if found.value.is_whole {
                return Ok(false);
            }
            match self.delete_group(group, found.revision).await {
                Err(MapError::Changed { .. }) => {}
                deleted => return deleted.map(|()| true),
            }
        }
        Ok(true)
    }

    async fn delete_group(&self, group: u64, revision: Revision) -> Result<(), MapError> {
        let key = self.keys().group(group);
        self.delete_one(key, revision, WHAT).await
    }
}
