//! The state of everything: health, warnings, memory, and the service of each volume.
//!
//! Owns: the inputs of the verdict. Must not know: the verdict itself (`cairn_pool::health`).

use std::collections::BTreeMap;
use std::path::Path;

use cairn_admin::api::{MemoryView, PoolView, Status};
use cairn_admin::disks::{DiskState, DiskView};
use cairn_admin::list_query::ListQuery;
use cairn_base::VolumeId;
use cairn_base::domain::Losses;
use cairn_config::{Protection, VolumeName};
use cairn_formats::encryption::VolumeEncryption;
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolVolume};
use cairn_pool::health::observed::{LostDisk, LowVolume, Observed, ObservedCluster};
use cairn_pool::health::{FREE_PERCENT_LOW, Judgement, judge};
use cairn_pool::warning::DiskLoss;

use super::Controller;
use crate::node::VolumeService;
use crate::{cluster_view, convert};

/// The state of a volume, without its contents.
pub struct VolumeState {
    pub id: VolumeId,
    pub name: VolumeName,
    pub protection: Protection,
    pub serving: bool,
    pub owner: Option<String>,
    pub problem: Option<String>,
}

/// Names, each with its fault.
type Troubles = Vec<(String, String)>;

impl Controller {
    pub(super) fn judged(&self) -> Judgement {
        let pool = self.inner.pool.state();
        let volumes = self.volume_states(&pool);
        judge(&self.observed(&pool, &self.disk_views(), &volumes))
    }

    /// The state of everything, as `cairn status` shows it.
    pub async fn status_now(&self) -> Status {
        Status {
            volumes: self.volume_page(&ListQuery::default()).await.volumes,
            ..self.overview()
        }
    }

    /// The state of everything but the volumes. Streams need it every few seconds, even with thousands of volumes.
    pub fn overview(&self) -> Status {
        let inner = &self.inner;
        let pool = inner.pool.state();
        let disks = self.disk_views();
        let volumes: Vec<VolumeState> = self.volume_states(&pool);
        let space = inner.pool.store.space();
        let Judgement {
            health,
            summary,
            protection,
            warnings,
            ..
        } = judge(&self.observed(&pool, &disks, &volumes));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: inner.uptime().as_secs(),
            health: convert::health(health),
            summary,
            warnings: crate::warnings::views(&warnings),
            pool: PoolView {
                id: pool.pool.to_string(),
                created_seconds: pool.created.seconds,
                protection: convert::layout(inner.pool.store.default_code()),
                disk_failures_tolerated: counted(protection.disks),
                node_failures_tolerated: inner.pool.nodes_tolerated_by_all().map(counted),
                devices: protection.devices.map(|(devices, _)| counted(devices)),
                device_failures_tolerated: protection
                    .devices
                    .map(|(_, survived)| counted(survived)),
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                reserve_bytes: space.reserve_bytes,
            },
            nfs: self.nfs.clone(),
            admin: self.admin.clone(),
            memory: self.memory(),
            disks,
            volumes: Vec::new(),
        }
    }

    /// The states of all volumes, in the order of their names.
    pub fn volume_states(&self, pool: &PoolState) -> Vec<VolumeState> {
        let volumes = pool.all_volumes();
        let mut states: Vec<_> = volumes
            .map(|volume| self.volume_state(pool, volume))
            .collect();
        states.sort_by(|one, other| one.name.cmp(&other.name));
        states
    }

    /// The state of a volume, with the facts that an overview of all volumes needs.
    pub(super) fn volume_state(&self, pool: &PoolState, volume: &PoolVolume) -> VolumeState {
        let inner = &self.inner;
        let mut state = VolumeState {
            id: volume.id,
            name: volume.name.clone(),
            protection: pool.store_of(volume).settings.protection,
            serving: false,
            owner: None,
            problem: None,
        };
        match inner.pool.service(volume.id) {
            Some(VolumeService::Serving(fs)) => {
                // Its clients are told to try again later, until it is opened again.
                state.problem = fs.meta().failure().map(|failure| {
                    format!(
                        "its metadata failed: {failure}; if it is not opened on other disks within a minute, see \
                         whether the disk works, and start the server anew"
                    )
                });
                if fs.is_deleted() {
                    state.problem = Some(
                        "it was deleted, but an older copy of the pool state lists it: delete it again".to_owned(),
                    );
                }
                state.serving = state.problem.is_none();
            }
            Some(VolumeService::Failed(why)) => state.problem = Some(why),
            None if is_erased(pool.store_of(volume)) => {
                state.problem = inner.pool.key_trouble(pool.store_of(volume));
            }
            None => match inner.owner_name(volume.id) {
                Some(Ok(name)) => {
                    state.serving = true;
                    state.owner = Some(name);
                }
                Some(Err(why)) => {
                    state.problem = Some(match inner.pool.key_trouble(volume) {
                        None => why,
                        // Several nodes could serve it; the trouble of this one may be that of all.
                        Some(trouble) => format!("{why}; on this node {trouble}"),
                    });
                }
                None => state.problem = Some("it is being opened or deleted".to_owned()),
            },
        }
        state
    }

    pub(super) fn observed(
        &self,
        pool: &PoolState,
        disks: &[DiskView],
        volumes: &[VolumeState],
    ) -> Observed {
        let inner = &self.inner;
        let code = inner.pool.store.default_code();
        let space = inner.pool.store.space();
        let LostDisks {
            lost,
            empty_count,
            node_count: nodes_lost,
        } = lost_disks(pool, disks);
        let cluster = inner.cluster.as_ref();
        let cluster = cluster.map(|cluster| cluster_view::observed(inner, cluster));
        let (keys_away, volumes_failed) = self.not_served(pool, volumes, cluster.as_ref());
        let tiers_away = crate::tiers::troubles(inner);
        let tiers_away = tiers_away
            .into_iter()
            .filter_map(|(tier, trouble)| Some((tier, trouble?)));
        let degraded =
            pool.volumes
                .iter()
                .filter_map(|volume| match inner.pool.service(volume.id) {
                    // For a read-only volume, the reason is shown.
                    Some(VolumeService::Serving(fs))
                        if fs.read_only().is_none() && fs.meta().stats().is_degraded() =>
                    {
                        Some(pool.head_of(volume).name.to_string())
                    }
                    _ => None,
                });
        let read_only = pool.volumes.iter().filter_map(|volume| {
            let VolumeService::Serving(fs) = inner.pool.service(volume.id)? else {
                return None;
            };
            let why = fs.read_only()?.to_owned();
            Some((pool.head_of(volume).name.to_string(), why))
        });
        let unprotected = volumes
            .iter()
            .filter(|volume| volume.protection == Protection::None && pool.disks.len() > 1)
            .map(|volume| volume.name.to_string());
        let asks_for_none = |volume: &&PoolVolume| {
            let asked = volume.settings.directory_protections;
            asked.contains(Protection::None) && pool.disks.len() > 1
        };
        let directories_unprotected = pool.volumes.iter().filter(asks_for_none);
        let directories_unprotected =
            directories_unprotected.map(|volume| pool.head_of(volume).name.to_string());
        Observed {
            disks_named: self.disks_named(disks),
            disk_count: pool.disks.len(),
            disks_lost: lost,
            disks_lost_empty: empty_count,
            disks_troubled: troubled_disks(disks),
            tolerated: usize::from(code.parity()),
            node_count: inner.pool.store.node_count(),
            nodes_tolerated: inner.pool.nodes_tolerated_by_all().unwrap_or(0),
            nodes_lost,
            layout: convert::layout(code),
            volumes_failed,
            volumes_read_only: read_only.collect(),
            keys_away,
            secrets_unwrapped: inner.pool.secrets_trouble(),
            volumes_low: self.volumes_low(pool),
            tiers_away: tiers_away.collect(),
            disks_by_drive: self.disks_by_drive(),
            is_full: space.total_bytes > 0 && space.free_bytes <= space.reserve_bytes,
            memory: Some(inner.memory.used()),
            scrub_overdue: inner.pool.scrub_overdue(),
            volumes_degraded: degraded.collect(),
            volumes_unprotected: unprotected.collect(),
            directories_unprotected: directories_unprotected.collect(),
            narrow_segments: inner.pool.narrow_segments(),
            single_segments: inner.pool.single_segments(),
            segments_short: inner.pool.segments_short(),
            damaged_places: inner.pool.scrub.damaged(),
            lost_bytes: inner
                .pool
                .rebuild_lost_bytes()
                .saturating_sub(inner.pool.scrub.lost_bytes_known()),
            damaged_reads: inner.pool.store.damaged_places(),
            free_percent: percent(space.free_bytes, space.total_bytes),
            caches: crate::read_cache::warnings(inner),
            cluster,
        }
    }

    /// Volumes that are not served and have an owner, each with the reason: those that wait for their keys, and all
    /// others.
    fn not_served(
        &self,
        pool: &PoolState,
        volumes: &[VolumeState],
        cluster: Option<&ObservedCluster>,
    ) -> (Troubles, Troubles) {
        // A volume without an owner has a warning of its own, with the reason.
        let without_owner = |name: &VolumeName| {
            cluster.is_some_and(|cluster| {
                let mut free = cluster.without_owner.iter();
                free.any(|(volume, _)| *volume == name.to_string())
            })
        };
        let failed = volumes
            .iter()
            .filter(|volume| !volume.serving && !without_owner(&volume.name));
        // An erased volume never has a key, and does not wait for one.
        let waits_for_key = |volume: &&VolumeState| {
            let mut all = pool.all_volumes();
            let found = all.find(|other| other.id == volume.id);
            let store = found.map(|volume| pool.store_of(volume));
            store.is_some_and(|store| {
                !is_erased(store) && self.inner.pool.key_trouble(store).is_some()
            })
        };
        let (keys_away, failed): (Vec<&VolumeState>, Vec<&VolumeState>) =
            failed.partition(waits_for_key);
        let told = |volumes: Vec<&VolumeState>| -> Troubles {
            let each = volumes.into_iter().map(|volume| {
                let why = volume.problem.clone().unwrap_or_default();
                (volume.name.to_string(), why)
            });
            each.collect()
        };
        (told(keys_away), told(failed))
    }

    /// Volumes near their size limits.
    fn volumes_low(&self, pool: &PoolState) -> Vec<LowVolume> {
        let low = |volume: &PoolVolume| {
            let limit_bytes = volume.settings.size_limit.bytes()?;
            let VolumeService::Serving(fs) = self.inner.pool.service(volume.id)? else {
                return None;
            };
            let free_bytes = limit_bytes.saturating_sub(fs.counts().file_bytes);
            let free_percent = percent(free_bytes, limit_bytes).unwrap_or(0);
            (free_percent < FREE_PERCENT_LOW && !volume.is_deleted).then(|| LowVolume {
                volume: volume.name.to_string(),
                limit_bytes,
                free_percent,
            })
        };
        pool.volumes.iter().filter_map(low).collect()
    }

    /// The number of working data disks on each drive; in a cluster it is unknown.
    fn disks_by_drive(&self) -> Vec<usize> {
        let inner = &self.inner;
        let mut by_drive: BTreeMap<String, usize> = BTreeMap::new();
        if inner.cluster.is_none() {
            let there = inner.pool.disks();
            let there = there.iter().filter(|disk| !disk.health().failed);
            for drive in there.filter_map(|disk| disk.disk().device()) {
                for name in &drive.drives {
                    *by_drive.entry(name.clone()).or_default() += 1;
                }
            }
        }
        by_drive.into_values().collect()
    }

    /// The number of working disks that the configuration names; `None` if it names all.
    fn disks_named(&self, disks: &[DiskView]) -> Option<usize> {
        let inner = &self.inner;
        let working = disks
            .iter()
            .filter(|disk| !matches!(disk.state, DiskState::Failed | DiskState::Missing));
        let is_named = |disk: &&DiskView| {
            let label = Path::new(&disk.label);
            inner.named.iter().any(|place| place == label)
        };
        let named = working.clone().filter(is_named).count();
        // In a cluster the map lists the disks, and a start that finds none of its own makes no pool.
        (named < working.count() && inner.cluster.is_none()).then_some(named)
    }

    pub(super) fn memory(&self) -> MemoryView {
        let inner = &self.inner;
        let dirty_bytes = inner
            .pool
            .services()
            .values()
            .map(|service| match service {
                VolumeService::Serving(fs) => fs.stats().dirty_memory_bytes,
                VolumeService::Failed(_) => 0,
            })
            .sum();
        MemoryView {
            limit_bytes: inner.config.memory_limit_bytes,
            resident_bytes: cairn_memory::resident_bytes(),
            record_cache_limit_bytes: inner.budget.record_cache_bytes,
            record_cache_bytes: inner.pool.store.stats().cache_bytes,
            dirty_limit_bytes: inner.budget.dirty_bytes,
            dirty_bytes,
            metadata_limit_bytes: inner.budget.metadata_bytes,
            rest_bytes: inner.budget.rest_bytes,
        }
    }
}

/// Disks that do not serve.
struct LostDisks {
    lost: Vec<LostDisk>,
    /// The number of them without any needed data.
    empty_count: usize,
    /// The number of nodes with any of the others.
    node_count: usize,
}

fn lost_disks(pool: &PoolState, disks: &[DiskView]) -> LostDisks {
    let lost = disks.iter().filter_map(|disk| {
        let loss = match disk.state {
            DiskState::Ok | DiskState::Draining | DiskState::Drained => return None,
            DiskState::Unresponsive => DiskLoss::Unresponsive,
            DiskState::Failing => DiskLoss::Failing,
            DiskState::Returning => DiskLoss::Returning,
            DiskState::Failed => DiskLoss::Failed,
            DiskState::Missing => DiskLoss::Missing,
        };
        Some(LostDisk {
            label: disk.label.clone(),
            loss,
            why: disk.problem.clone().unwrap_or_default(),
        })
    });
    let holds_nothing = |disk: &&DiskView| {
        let is_lost = disk.state.is_lost();
        let mut members = pool.disks.iter();
        is_lost && members.any(|member| member.holds_nothing && member.id.to_string() == disk.id)
    };
    let empty_count = disks.iter().filter(holds_nothing).count();
    let lost_ids: Vec<&str> = disks
        .iter()
        .filter(|disk| disk.state.is_lost())
        .filter(|disk| !holds_nothing(disk))
        .map(|disk| disk.id.as_str())
        .collect();
    let lost_members = pool.disks.iter();
    let lost_members =
        lost_members.filter(|member| lost_ids.contains(&member.id.to_string().as_str()));
    let losses: Losses = lost_members.map(PoolDisk::domain).collect();
    LostDisks {
        lost: lost.collect(),
        empty_count,
        node_count: losses.nodes,
    }
}

/// Disks that serve in spite of a fault, each with the fault.
fn troubled_disks(disks: &[DiskView]) -> Troubles {
    let troubled = disks.iter().filter_map(|disk| match disk.state {
        DiskState::Ok | DiskState::Draining | DiskState::Drained => {
            let problem = disk.problem.as_deref()?;
            Some((disk.label.clone(), problem.to_owned()))
        }
        DiskState::Unresponsive
        | DiskState::Failing
        | DiskState::Returning
        | DiskState::Failed
        | DiskState::Missing => None,
    });
    troubled.collect()
}

fn is_erased(store: &PoolVolume) -> bool {
    matches!(store.encryption, Some(VolumeEncryption::Erased(_)))
}

pub(super) fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) fn percent(part: u64, whole: u64) -> Option<u64> {
    let hundredths = u128::from(part) * 100;
    hundredths
        .checked_div(u128::from(whole))
        .and_then(|percent| u64::try_from(percent).ok())
}
