//! Tells the map what each node has of the volumes that this node owns, how far the moving of data is, and what clients do.
//!
//! Owns: how often that is told. Must not know: what follows from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Epoch, VolumeId};
use cairn_cluster::map::{MapView, OnNodeRecord, Process, UsageRecord, WorkRecord};
use cairn_pool::Pool;

use crate::balance::work_of;
use crate::member::ClusterMember;
use crate::work::Average;

/// While a node or disk drains it is told so often, if it changed,
const EVERY_DRAINING: Duration = Duration::from_secs(2);
/// and else so often, if it changed by more than one part in [`SHARE`].
const EVERY: Duration = Duration::from_secs(30);
const SHARE: u64 = 20;
/// Of a volume; what holds up many comes first.
const PROBLEMS_MAX: usize = 3;
const PROBLEM_LEN_BYTES_MAX: usize = 300;

/// The usage that was told of each volume, when, and in which epoch.
#[derive(Default)]
pub(crate) struct ReportedUsage {
    usage: BTreeMap<VolumeId, (Epoch, Duration, UsageRecord)>,
    work: BTreeMap<VolumeId, (Epoch, Average)>,
}

fn total_bytes(usage: &UsageRecord) -> u64 {
    usage.nodes.values().map(|node| node.bytes).sum()
}

fn differs_much(one: &UsageRecord, other: &UsageRecord) -> bool {
    let (one_bytes, other_bytes) = (total_bytes(one), total_bytes(other));
    one.nodes.keys().ne(other.nodes.keys())
        || one_bytes.abs_diff(other_bytes) > one_bytes.max(other_bytes) / SHARE
}

fn cut(mut text: String) -> String {
    if text.len() > PROBLEM_LEN_BYTES_MAX {
        let end = (0..=PROBLEM_LEN_BYTES_MAX)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

impl ClusterMember {
    pub(crate) async fn tell_usage(
        &self,
        pool: &Arc<Pool>,
        view: &MapView,
        owned: &BTreeMap<VolumeId, (Process, Epoch)>,
        told: &mut ReportedUsage,
    ) {
        let is_draining = view.disks.values().any(|disk| disk.value.draining);
        let every = if is_draining { EVERY_DRAINING } else { EVERY };
        told.usage.retain(|volume, _| owned.contains_key(volume));
        told.work.retain(|volume, _| owned.contains_key(volume));
        for (volume, (process, epoch)) in owned {
            let now = self.env.clock.monotonic();
            let work = self.work_now(view, *volume, *epoch, told);
            let before = told.usage.get(volume).filter(|(of, _, _)| of == epoch);
            if before.is_some_and(|(_, at, _)| now.saturating_sub(*at) < every) {
                continue;
            }
            let Some(on_nodes) = pool.on_nodes(*volume) else {
                continue;
            };
            let status = pool.rebuild_status();
            let problems = status.problems.into_iter().take(PROBLEMS_MAX).map(cut);
            let usage = UsageRecord {
                nodes: on_nodes
                    .into_iter()
                    .map(|(node, on_node)| {
                        let record = OnNodeRecord {
                            shards: on_node.shards,
                            bytes: on_node.bytes,
                        };
                        (node, record)
                    })
                    .collect(),
                bytes_per_second: status.bytes_per_second,
                problems: problems.collect(),
                work,
            };
            let is_news = match before {
                None => true,
                Some((_, _, before)) if is_draining => *before != usage,
                Some((_, _, before)) => before.work != work || differs_much(before, &usage),
            };
            if is_news
                && let Err(error) = self.map.set_usage(*volume, *process, *epoch, &usage).await
            {
                tracing::debug!(%volume, %error, "the volume's usage could not be reported yet");
                continue;
            }
            told.usage.insert(*volume, (*epoch, now, usage));
        }
    }

    /// What to tell of the work that clients have a volume do, if that is measured.
    fn work_now(
        &self,
        view: &MapView,
        volume: VolumeId,
        epoch: Epoch,
        told: &mut ReportedUsage,
    ) -> Option<WorkRecord> {
        let meter = self.meter.get()?;
        let state = view.volumes.get(&volume)?;
        let now = self.env.clock.monotonic();
        let before = work_of(state);
        let begun = told.work.entry(volume);
        let (of, average) = begun.or_insert_with(|| (epoch, Average::new(now, before)));
        if *of != epoch {
            (*of, *average) = (epoch, Average::new(now, before));
        }
        let mut measured = WorkRecord::default();
        for part in state.record.value.numbers() {
            let work = meter.work(part);
            measured.operations_per_second += work.operations_per_second;
            measured.bytes_per_second += work.bytes_per_second;
        }
        average.add(now, measured);
        Some(average.told(before))
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::NodeId;

    use super::*;

    #[test]
    fn small_changes_are_not_told_and_others_are() {
        let usage = |nodes: &[(u128, u64)]| UsageRecord {
            nodes: nodes
                .iter()
                .map(|(node, bytes)| {
                    let bytes = *bytes;
                    (NodeId(*node), OnNodeRecord { shards: 1, bytes })
                })
                .collect(),
            ..UsageRecord::default()
        };
        let before = usage(&[(1, 500), (2, 500)]);
        for (after, want) in [
            (usage(&[(1, 500), (2, 540)]), false),
            (usage(&[(1, 500), (2, 560)]), true),
            (usage(&[(1, 1000)]), true),
            (usage(&[]), true),
        ] {
            assert_eq!(differs_much(&before, &after), want, "{after:?}");
        }
        assert!(!differs_much(&usage(&[]), &usage(&[])));
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = cut("ä".repeat(PROBLEM_LEN_BYTES_MAX));
        assert_eq!(long, "ä".repeat(PROBLEM_LEN_BYTES_MAX / 2));
    }
}
