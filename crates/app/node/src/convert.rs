//! Converts the terms of the config and of the pool into those of NFS and of the admin API, each in one place.

use cairn_admin::classes::{LatencyView, LimitView, PartView, RatesView};
use cairn_admin::rebuild::RebuildView;
use cairn_admin::scrub::{ScrubDamage, ScrubSchedule, ScrubView};
use cairn_admin::spread::SpreadView;
use cairn_admin::{scrub, spread};
use cairn_base::Timestamp;
use cairn_config::{Access, ExportRule, Maintenance, Squash};
use cairn_erasure::Code;
use cairn_exports::ClientRule;
use cairn_formats::pool_file::PoolVolume;
use cairn_formats::scrub_file::ScrubStage;
use cairn_pool::executor::RebuildStatus;
use cairn_pool::health::Health;
use cairn_pool::scrub::{DamagedPlace, ScrubProgress};
use cairn_pool::spread::{SpreadStage, SpreadStatus};
use cairn_qos::GoalReport;

pub fn client_rule(rule: &ExportRule) -> ClientRule {
    ClientRule {
        clients: rule.client.net(),
        read_only: match rule.access {
            Access::ReadOnly => true,
            Access::ReadWrite => false,
        },
        squash: match rule.squash {
            Squash::Root => cairn_exports::Squash::Root,
            Squash::All => cairn_exports::Squash::All,
            Squash::None => cairn_exports::Squash::None,
        },
        anonymous_uid: rule.anonymous_uid,
        anonymous_gid: rule.anonymous_gid,
        require_reserved_port: rule.require_reserved_port,
    }
}

pub fn health(health: Health) -> cairn_admin::api::Health {
    match health {
        Health::Healthy => cairn_admin::api::Health::Healthy,
        Health::NoRedundancy => cairn_admin::api::Health::NoRedundancy,
        Health::Degraded => cairn_admin::api::Health::Degraded,
        Health::Failed => cairn_admin::api::Health::Failed,
    }
}

pub fn rebuild(status: RebuildStatus) -> RebuildView {
    RebuildView {
        running: status.is_running,
        rate_bytes_per_second: status.bytes_per_second_max,
        shards_left: status.shards_left,
        bytes_left: status.bytes_left,
        shards_moved: status.shards_moved,
        segments_rewritten: status.segments_rewritten,
        moved_bytes: status.moved_bytes,
        worked_bytes: status.worked_bytes,
        lost_bytes: status.lost_bytes,
        errors: status.errors,
        seconds_left: status.seconds_left,
        shards_missing: status.shards_missing,
        problems: status.problems,
    }
}

pub fn spread(status: SpreadStatus) -> SpreadView {
    let (stage, rests_until_seconds) = match status.stage {
        SpreadStage::Even => (spread::SpreadStage::Even, None),
        SpreadStage::Moving => (spread::SpreadStage::Moving, None),
        SpreadStage::Paused => (spread::SpreadStage::Paused, None),
        SpreadStage::Resting { until_seconds } => {
            (spread::SpreadStage::Resting, Some(until_seconds))
        }
        SpreadStage::Waiting => (spread::SpreadStage::Waiting, None),
        SpreadStage::Settled => (spread::SpreadStage::Settled, None),
    };
    SpreadView {
        stage,
        paused: status.is_paused,
        rests_until_seconds,
        least_permille: status.unevenness.least_permille,
        most_permille: status.unevenness.most_permille,
        excess_bytes: status.unevenness.excess_bytes,
        moved_bytes: status.moved_bytes,
    }
}

pub fn scrub(progress: ScrubProgress) -> ScrubView {
    ScrubView {
        silent: Vec::new(),
        stage: match progress.stage {
            ScrubStage::Never => scrub::ScrubStage::Never,
            ScrubStage::Running => scrub::ScrubStage::Running,
            ScrubStage::Paused => scrub::ScrubStage::Paused,
            ScrubStage::Done => scrub::ScrubStage::Done,
        },
        by_schedule: progress.by_schedule,
        rests_until_seconds: progress.rests_until_seconds,
        next_seconds: progress.next_seconds,
        started_seconds: progress.started_seconds,
        finished_seconds: progress.finished_seconds,
        rate_bytes_per_second: progress.rate_bytes_per_second,
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
        seconds_left: progress.seconds_left,
        shards: progress.shards,
        records: progress.records,
        wrong_bytes: progress.wrong_bytes,
        repaired_bytes: progress.repaired_bytes,
        shards_rebuilt: progress.shards_rebuilt,
        shards_sealed: progress.shards_sealed,
        shards_away: progress.shards_away,
        damaged: progress.damaged,
        errors: progress.errors,
    }
}

pub fn scrub_schedule(maintenance: &Maintenance, now: Timestamp) -> ScrubSchedule {
    let window = maintenance.window.as_ref();
    let is_open = maintenance.is_open(now);
    let opens = window.filter(|_| !is_open);
    let closes = window.and_then(|window| window.closes(now));
    ScrubSchedule {
        every: maintenance.scrub_every,
        window: maintenance.window.clone(),
        is_open,
        opens_seconds: opens.map(|window| window.next_open(now).seconds),
        closes_seconds: closes.map(|closes| closes.seconds),
    }
}

pub fn damaged_place(place: DamagedPlace) -> ScrubDamage {
    let paths = place.paths.iter();
    ScrubDamage {
        volume: place.volume,
        inode: place.inode,
        paths: paths
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect(),
        start: place.start,
        end: place.end,
        detail: place.detail,
    }
}

/// The name of an erasure code for people.
pub fn layout(code: Code) -> String {
    match (code.data(), code.parity()) {
        (_, 0) => "1 copy, NO REDUNDANCY".to_owned(),
        (1, parity) => format!("{} mirrors", u16::from(parity) + 1),
        (data, parity) => format!("{data}+{parity}"),
    }
}

/// Rates as the API shows them: whole numbers.
pub fn rates(
    report: &cairn_qos::Report,
    goal: Option<GoalReport>,
    volume: &PoolVolume,
) -> RatesView {
    let limits = report.limits.iter().map(|limit| LimitView {
        of: limit.name.to_owned(),
        baseline: whole(limit.rate.baseline),
        burst: whole(limit.rate.burst),
        now: whole(limit.now),
        credit: whole(limit.credit),
        credit_max: match limit.rate.has_burst() {
            true => whole(limit.rate.credit),
            false => 0,
        },
        credit_ends_seconds: limit.ends_in().map(|time| time.as_secs()),
    });
    RatesView {
        limits: limits.collect(),
        client_throughput: report.client_bytes.map(whole),
        client_iops: report.client_operations.map(whole),
        total_throughput: report.total_bytes.map(whole),
        latency: goal.as_ref().map(latency),
        parts: parts(volume, Some(report)),
        read_bytes_per_second: whole(report.read_bytes_per_second),
        written_bytes_per_second: whole(report.written_bytes_per_second),
        operations_per_second: whole(report.operations_per_second),
        waiting: report.waiting,
        delayed: report.delayed,
        delayed_ms: u64::try_from(report.delayed_time.as_millis()).unwrap_or(u64::MAX),
    }
}

fn latency(report: &GoalReport) -> LatencyView {
    let last = report.last.unwrap_or_default();
    LatencyView {
        goal_microseconds: u64::try_from(report.goal.as_micros()).unwrap_or(u64::MAX),
        met: report.is_met(),
        requests: last.all,
        late: last.late,
        requests_total: report.answered.all,
        late_total: report.answered.late,
    }
}

/// The parts of a volume with limits. Their use is known where the volume is served.
pub fn parts(volume: &PoolVolume, report: Option<&cairn_qos::Report>) -> Vec<PartView> {
    let used = report.map(|report| &report.parts);
    // A change of the limits may come in between.
    let used = used.filter(|used| used.len() == volume.limits.len());
    let views = volume.limits.iter().enumerate().map(|(at, limit)| {
        let used = used.and_then(|used| used.get(at));
        PartView {
            limit: limit.clone(),
            bytes_per_second: used.map(|(bytes, _)| whole(*bytes)),
            operations_per_second: used.map(|(_, operations)| whole(*operations)),
        }
    });
    views.collect()
}

fn whole(number: f64) -> u64 {
    // Saturates: nothing here is below zero.
    number.round() as u64
}

pub fn role(role: cairn_admin::disks::DiskRole) -> cairn_base::DiskRole {
    match role {
        cairn_admin::disks::DiskRole::Data => cairn_base::DiskRole::Data,
        cairn_admin::disks::DiskRole::Journal => cairn_base::DiskRole::Journal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named() {
        let cases: &[(u8, u8, &str)] = &[
            (1, 0, "1 copy, NO REDUNDANCY"),
            (1, 1, "2 mirrors"),
            (1, 2, "3 mirrors"),
            (2, 2, "2+2"),
            (16, 2, "16+2"),
        ];
        for (data, parity, want) in cases {
            assert_eq!(layout(Code::new(*data, *parity).unwrap()), *want);
        }
    }
}
