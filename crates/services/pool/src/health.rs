//! Says how the pool is, what may be lost now, and what an operator should know.
//!
//! Owns: the judgement, a pure function of what was observed, of a single server as of a cluster.
//! Must not know: how a warning reads.

mod cluster;
mod losses;
pub mod observed;
mod summary;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::warning::{Warning, Weight};
use cluster::{judge_cluster, survives};
use observed::Observed;
use summary::summary;

pub use cluster::NodesSurvived;
pub use losses::LossesSurvived;

/// Below this many percent of free space there is a warning.
pub const FREE_PERCENT_LOW: u64 = 10;
/// A scrub that is due waits for its window, and for other nodes. One that waits for longer does not come to its turn.
const SCRUB_OVERDUE_MIN: Duration = Duration::from_secs(24 * 3600);

/// How the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All disks serve and data is protected as set.
    Healthy,
    /// All is well, but a lost device would be lost data: there is only one, or one copy.
    NoRedundancy,
    /// Everything can be read; some protection is lost, or writes fail for want of room.
    Degraded,
    /// Something cannot be served.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub summary: String,
    pub protection: LossesSurvived,
    /// The worst first.
    pub warnings: Vec<Warning>,
    /// In a cluster.
    pub survives: Option<NodesSurvived>,
}

pub fn judge(observed: &Observed) -> Judgement {
    let mut warnings = Vec::new();
    if let Some(cluster) = &observed.cluster {
        judge_cluster(cluster, &mut warnings);
    }
    judge_pool(observed, &mut warnings);
    warnings.sort_by_key(|warning| std::cmp::Reverse(warning.weight()));
    let least_spare = observed.segments_short.map(|(_, spare)| spare);
    let is_beyond = observed.is_beyond() || least_spare.is_some_and(|spare| spare < 0);
    let worst = warnings.iter().map(Warning::weight).max();
    let protection = observed.protection();
    let health = match worst {
        _ if is_beyond => Health::Failed,
        Some(Weight::Failed) => Health::Failed,
        Some(Weight::Degraded) => Health::Degraded,
        _ if observed.tolerated == 0 => Health::NoRedundancy,
        _ if matches!(protection.devices, Some((_, 0))) => Health::NoRedundancy,
        _ => Health::Healthy,
    };
    Judgement {
        health,
        summary: summary(observed, protection, is_beyond),
        protection,
        survives: observed
            .cluster
            .as_ref()
            .map(|cluster| survives(observed, cluster)),
        warnings,
    }
}

/// The warning of so many.
type OfCount = fn(u64) -> Warning;

fn judge_pool(observed: &Observed, warnings: &mut Vec<Warning>) {
    if observed.disk_count > 0 && observed.tolerated == 0 {
        warnings.push(Warning::OneDisk);
    } else if let Some((devices, survived)) = observed.protection().devices {
        warnings.push(Warning::SharedDevice {
            disks: observed.disk_count,
            devices,
            survived,
        });
    }
    for disk in &observed.disks_lost {
        warnings.push(Warning::DiskLost {
            disk: disk.label.clone(),
            loss: disk.loss,
            why: disk.why.clone(),
        });
    }
    for (disk, why) in &observed.disks_troubled {
        warnings.push(Warning::DiskTroubled {
            disk: disk.clone(),
            why: why.clone(),
        });
    }
    let least_spare = observed.segments_short.map(|(_, spare)| spare);
    if observed.is_at_the_limit() || least_spare == Some(0) {
        warnings.push(Warning::AtTheLimit);
    }
    match observed.segments_short {
        Some((count, spare)) if spare < 0 => warnings.push(Warning::SegmentsUnreadable { count }),
        Some((count, _)) => warnings.push(Warning::SegmentsShort { count }),
        None => {}
    }
    for (volume, why) in &observed.volumes_failed {
        warnings.push(Warning::VolumeNotServed {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    for (volume, why) in &observed.volumes_read_only {
        warnings.push(Warning::VolumeReadOnly {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    for (volume, why) in &observed.keys_away {
        warnings.push(Warning::KeyAway {
            volume: volume.clone(),
            why: why.clone(),
        });
    }
    if let Some(why) = &observed.secrets_unwrapped {
        warnings.push(Warning::SecretsUnwrapped { why: why.clone() });
    }
    for (tier, why) in &observed.tiers_away {
        warnings.push(Warning::TierAway {
            tier: tier.clone(),
            why: why.clone(),
        });
    }
    let named = |volumes: &[String], warning: fn(String) -> Warning| -> Vec<Warning> {
        volumes.iter().cloned().map(warning).collect()
    };
    warnings.extend(named(&observed.volumes_degraded, |volume| {
        Warning::MetadataShort { volume }
    }));
    warnings.extend(named(&observed.volumes_unprotected, |volume| {
        Warning::VolumeUnprotected { volume }
    }));
    warnings.extend(named(&observed.directories_unprotected, |volume| {
        Warning::DirectoriesUnprotected { volume }
    }));
    if let Some(named) = observed
        .disks_named
        .filter(|named| *named <= observed.tolerated)
    {
        warnings.push(Warning::DisksUnnamed { named });
    }
    let counted: [(u64, OfCount); 5] = [
        (observed.narrow_segments, |count| Warning::SegmentsNarrow {
            count,
        }),
        (observed.single_segments, |count| Warning::SegmentsSingle {
            count,
        }),
        (observed.damaged_places, |count| Warning::PlacesDamaged {
            count,
        }),
        (observed.lost_bytes, |bytes| Warning::BytesLost { bytes }),
        (observed.damaged_reads, |count| Warning::ReadsDamaged {
            count,
        }),
    ];
    let seen = counted.into_iter().filter(|(count, _)| *count > 0);
    warnings.extend(seen.map(|(count, warning)| warning(count)));
    let is_low = |percent: &u64| *percent < FREE_PERCENT_LOW;
    match observed.free_percent.filter(is_low) {
        _ if observed.is_full => warnings.push(Warning::PoolFull),
        Some(percent) => warnings.push(Warning::SpaceLow { percent }),
        None => {}
    }
    for low in &observed.volumes_low {
        let (volume, limit_bytes) = (low.volume.clone(), low.limit_bytes);
        warnings.push(match low.free_percent {
            0 => Warning::VolumeFull {
                volume,
                limit_bytes,
            },
            percent => Warning::VolumeLow {
                volume,
                limit_bytes,
                percent,
            },
        });
    }
    if let Some(memory) = observed.memory.as_ref().filter(|memory| memory.is_over()) {
        warnings.push(Warning::MemoryOver {
            resident_bytes: memory.resident_bytes,
            limit_bytes: memory.limit_bytes,
            largest: memory.largest.clone(),
        });
    }
    if let Some(late) = observed
        .scrub_overdue
        .filter(|late| *late >= SCRUB_OVERDUE_MIN)
    {
        warnings.push(Warning::ScrubOverdue { late });
    }
    warnings.extend(observed.caches.iter().cloned());
}
