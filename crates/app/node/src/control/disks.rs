//! Disks: their views, and which are added and removed.
//!
//! Owns: the views, and the checks before a disk is added or replaced. Must not know: how that is done.

use std::collections::BTreeMap;

use cairn_admin::api::ErrorKind;
use cairn_admin::disks::{
    DiskAdd, DiskControl, DiskList, DiskName, DiskPlace, DiskReplace, DiskRole, DiskState, DiskView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::DiskId;
use cairn_config::MediaChoice;
use cairn_formats::pool_file::PoolState;
use cairn_pool::joining::Allowed;
use cairn_segment::DiskStatus;

use super::{Controller, refusal};
use crate::convert;

impl Controller {
    pub(super) async fn add_disk(&self, add: DiskAdd) -> Result<DiskView, ControlError> {
        self.require_node_stays()?;
        let added = self
            .inner
            .disk_add(
                &add.path,
                Allowed {
                    wipe: add.wipe,
                    create: add.create,
                },
                convert::role(add.role),
                add.media.kind(),
            )
            .await;
        self.disk_now(added.map_err(refusal)?)
    }

    pub(super) async fn replace_disk(
        &self,
        disk: String,
        by: DiskReplace,
    ) -> Result<DiskView, ControlError> {
        if let Some(lost) = self.lost_elsewhere(&disk)? {
            let noted = self.inner.pool.replace_later(&lost.to_string()).await;
            return self.disk_now(noted.map_err(refusal)?);
        }
        self.require_node_stays()?;
        let allowed = Allowed {
            wipe: by.wipe,
            create: by.create,
        };
        let added = self.inner.disk_replace(&disk, &by.path, allowed).await;
        self.disk_now(added.map_err(refusal)?)
    }

    pub(super) fn disk_views(&self) -> Vec<DiskView> {
        let pool = self.inner.pool.state();
        let statuses = self.inner.pool.store.disk_status();
        let shards = self.inner.pool.shards_by_disk();
        let (mut logs, mut states) = (BTreeMap::new(), BTreeMap::new());
        for fs in self.inner.pool.serving_all() {
            *states.entry(fs.meta().log().primary_disk()).or_insert(0) += 1;
            for disk in fs.meta().stats().log_disks {
                *logs.entry(disk).or_insert(0) += 1;
            }
        }
        let of = |counts: &BTreeMap<DiskId, u64>, disk| counts.get(&disk).copied().unwrap_or(0);
        let view = |disk: &DiskStatus| {
            let shards = shards.get(&disk.id).copied().unwrap_or(0);
            DiskView {
                logs: of(&logs, disk.id),
                states: of(&states, disk.id),
                ..self.disk_view(disk, &pool, shards)
            }
        };
        let mut views: Vec<DiskView> = statuses.iter().map(view).collect();
        views.sort_by(|left, right| left.label.cmp(&right.label));
        views
    }

    /// The disk that the operator's words name, if it belongs to another node that does not run: only an operator can
    /// then say that the disk is lost for good.
    pub(super) fn lost_elsewhere(&self, words: &str) -> Result<Option<DiskId>, ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(None);
        };
        let disk = self.inner.pool.find_disk(words).map_err(refusal)?;
        if disk.node == cluster.member.node() {
            return Ok(None);
        }
        let view = cluster.member.view();
        if !view.alive.contains_key(&disk.node) {
            return Ok(Some(disk.id));
        }
        let name = view.nodes.get(&disk.node).map(|node| &node.value.name);
        let name = name.map_or_else(|| disk.node.to_string(), Clone::clone);
        let why = format!("disk {} belongs to node {name}, which is up", disk.label);
        Err(ControlError::new(ErrorKind::Conflict, why)
            .hint("ask that node: `cairn disk replace` with its --server"))
    }

    /// Refuses an operation of a disk at any node but the disk's own: the request is forwarded to that node, if it runs.
    pub(super) fn require_own_disk(&self, words: &str) -> Result<(), ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Ok(());
        };
        let disk = self.inner.pool.find_disk(words).map_err(refusal)?;
        if disk.node == cluster.member.node() {
            return Ok(());
        }
        let view = cluster.member.view();
        let name = view.nodes.get(&disk.node).map(|node| &node.value.name);
        let name = name.map_or_else(|| disk.node.to_string(), Clone::clone);
        if !view.alive.contains_key(&disk.node) {
            let why = format!("disk {} belongs to node {name}, which is down", disk.label);
            return Err(ControlError::new(ErrorKind::Conflict, why)
                .hint("start that node: it then uses the disk again, if the disk works"));
        }
        let why = format!("disk {} belongs to node {name}", disk.label);
        Err(ControlError::new(ErrorKind::Unavailable, why).at(disk.node))
    }

    pub(super) fn disk_now(&self, id: DiskId) -> Result<DiskView, ControlError> {
        let id = id.to_string();
        let mut views = self.disk_views().into_iter();
        views.find(|view| view.id == id).ok_or_else(|| {
            ControlError::new(ErrorKind::Internal, "the disk is no longer in the pool")
        })
    }

    pub(super) fn disk_view(&self, disk: &DiskStatus, pool: &PoolState, shards: u64) -> DiskView {
        let member = pool.disks.iter().find(|member| member.id == disk.id);
        let label = match member {
            Some(member) if disk.label.is_empty() => member.label.clone(),
            _ => disk.label.clone(),
        };
        let is_draining = member.is_some_and(|member| member.draining);
        let table = self.inner.pool.table();
        let watched = || self.inner.pool.watch.problem(table.disk(disk.id)?.disk());
        // The condition of a removal.
        let is_let_go = || match &self.inner.cluster {
            Some(cluster) => cluster.member.view().is_left(disk.id),
            None => shards == 0 && self.inner.pool.is_let_go(disk.id),
        };
        let (state, problem) = match disk.state {
            cairn_segment::DiskState::Healthy if !is_draining => (DiskState::Ok, None),
            cairn_segment::DiskState::Healthy if !is_let_go() => (DiskState::Draining, None),
            cairn_segment::DiskState::Healthy => (DiskState::Drained, None),
            cairn_segment::DiskState::Unresponsive => {
                let why = "an operation has had no answer";
                (DiskState::Unresponsive, Some(why.to_owned()))
            }
            cairn_segment::DiskState::Returning => {
                let why = "it receives the writes that it missed";
                (DiskState::Returning, Some(why.to_owned()))
            }
            cairn_segment::DiskState::Failing => {
                let disk = table.disk(disk.id);
                let why = disk.and_then(|disk| self.inner.pool.watch.change_error(disk.disk()));
                let why = why.unwrap_or_else(|| "operations fail".to_owned());
                (DiskState::Failing, Some(why))
            }
            cairn_segment::DiskState::Missing => {
                let why = table.why_missing(disk.id).map(str::to_owned);
                (DiskState::Missing, why)
            }
            cairn_segment::DiskState::Failed => {
                (DiskState::Failed, table.why_out(disk.id).map(str::to_owned))
            }
        };
        let problem = problem
            .or_else(watched)
            .or_else(|| self.inner.pool.metadata_problem(disk.id));
        DiskView {
            id: disk.id.to_string(),
            label,
            role: match table.is_journal(disk.id) {
                true => DiskRole::Journal,
                false => DiskRole::Data,
            },
            media: table.member(disk.id).and_then(|it| it.media).into(),
            state,
            total_bytes: disk.total_bytes,
            free_bytes: disk.free_bytes,
            read_errors: disk.read_errors,
            write_errors: disk.write_errors,
            full_errors: disk.full_errors,
            checksum_errors: disk.checksum_errors,
            shards,
            logs: 0,
            states: 0,
            problem,
        }
    }
}

impl DiskControl for Controller {
    fn disk_list(&self) -> Answer<'_, DiskList> {
        Box::pin(async {
            Ok(DiskList {
                disks: self.disk_views(),
            })
        })
    }

    fn disk_place(&self, path: String) -> Answer<'_, DiskPlace> {
        Box::pin(async move { self.inner.disk_place(&path).await.map_err(refusal) })
    }

    fn disk_add(&self, add: DiskAdd) -> Answer<'_, DiskView> {
        Box::pin(self.add_disk(add))
    }

    fn disk_drain(&self, disk: DiskName, draining: bool) -> Answer<'_, DiskView> {
        Box::pin(async move {
            let changed = self.inner.pool.drain(&disk.0, draining).await;
            self.disk_now(changed.map_err(refusal)?)
        })
    }

    fn disk_media(&self, disk: DiskName, media: MediaChoice) -> Answer<'_, DiskView> {
        Box::pin(async move {
            let changed = self.inner.pool.set_media(&disk.0, media.kind()).await;
            self.disk_now(changed.map_err(refusal)?)
        })
    }

    fn disk_remove(&self, disk: DiskName, force: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            let removed = self.inner.disk_remove(&disk.0, force).await;
            removed.map_err(refusal)
        })
    }

    fn disk_replace(&self, disk: DiskName, by: DiskReplace) -> Answer<'_, DiskView> {
        Box::pin(self.replace_disk(disk.0, by))
    }

    fn disk_retry(&self, disk: DiskName) -> Answer<'_, DiskView> {
        Box::pin(async move {
            self.require_own_disk(&disk.0)?;
            let retried = self.inner.disk_retry(&disk.0).await;
            self.disk_now(retried.map_err(refusal)?)
        })
    }
}
