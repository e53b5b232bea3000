//! One observation of the system, and the events that follow from it.
//!
//! Owns: the list of conditions, the text of each, the changes between two observations. Pure: no clock, no I/O. Must
//! not know: where the observed facts come from, which conditions were reported already ([`super::tracker`]).

use std::borrow::Cow;

use cairn_admin::disks::DiskState;
use cairn_admin::events::{EventKind, EventStage, Severity};
use cairn_admin::rebuild::RebuildView;
use cairn_admin::scrub::{ScrubStage, ScrubView};
use cairn_admin::warnings::{WarningKind, WarningView};
use cairn_base::units::format_size;

/// Below this percentage of free space the pool is nearly full; from the second one on it no longer is.
const FREE_PERCENT_LOW: u64 = 10;
const FREE_PERCENT_AGAIN: u64 = 12;
/// The subject of conditions of the whole pool.
const POOL: &str = "pool";
const SCRUB: &str = "scrub";
const REBUILD: &str = "rebuild";
const THIS_NODE: &str = "this node";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDisk {
    /// `disk /srv/disk1`, with its node in a cluster.
    pub subject: String,
    pub state: DiskState,
    pub problem: Option<String>,
    /// Since the server was started.
    pub checksum_errors: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenVolume {
    pub name: String,
    /// The reason why it is not served.
    pub problem: Option<String>,
    pub owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The server is in no cluster.
    Alone,
    Nobody,
    Node(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenNode {
    pub name: String,
    pub is_there: bool,
}

/// Names, each with its fault.
pub type Troubles = Vec<(String, Option<String>)>;

/// An observation of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    pub disks: Vec<SeenDisk>,
    pub rebuild: RebuildView,
    pub scrub: ScrubView,
    /// Reads that failed for good, since the server was started.
    pub damaged_reads: u64,
    pub free_percent: Option<u64>,
    /// The pool accepts no more writes.
    pub is_full: bool,
    pub volumes: Vec<SeenVolume>,
    pub nodes: Vec<SeenNode>,
    /// In a cluster.
    pub has_lease: Option<bool>,
    /// Of volumes, by name.
    pub schedules: Troubles,
    pub tiers: Troubles,
    /// Of volumes, by name: how they miss the latency objective of their class, if they do.
    pub goals: Troubles,
    /// The warnings of the status.
    pub warnings: Vec<WarningView>,
}

/// A state that is true now and has an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: EventKind,
    /// For an alert: its warning.
    pub warning: Option<WarningKind>,
    pub subject: String,
    pub severity: Severity,
    pub message: String,
    pub action: Option<Cow<'static, str>>,
}

/// A change between two observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    pub stage: EventStage,
    pub kind: EventKind,
    pub subject: String,
    pub severity: Severity,
    pub message: String,
    pub action: Option<&'static str>,
}

/// A number that grew between two observations: reported at intervals, with the sum of the growth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rise {
    pub kind: EventKind,
    pub subject: String,
    pub by: u64,
}

/// The conditions that are true now. `is_nearly_full`: whether that was reported, without its end.
pub fn conditions(seen: &Observation, is_nearly_full: bool) -> Vec<Condition> {
    let mut all: Vec<Condition> = seen.disks.iter().filter_map(of_disk).collect();
    of_pool(seen, is_nearly_full, &mut all);
    of_owners(seen, &mut all);
    of_services(seen, &mut all);
    let alerts = seen.warnings.iter();
    let alerts = alerts.filter(|warning| !has_own_event(warning.kind));
    all.extend(alerts.map(|warning| Condition {
        kind: EventKind::Alert,
        warning: Some(warning.kind),
        subject: warning.subject.clone(),
        // Even an intended state is a warning in the event that first reports it.
        severity: warning.severity.max(Severity::Warning),
        message: warning.message.clone(),
        action: Some(Cow::Owned(warning.next.clone())),
    }));
    all
}

/// A condition that has an event of its own.
fn condition(
    kind: EventKind,
    subject: String,
    severity: Severity,
    message: String,
    action: Option<&'static str>,
) -> Condition {
    Condition {
        kind,
        warning: None,
        subject,
        severity,
        message,
        action: action.map(Cow::Borrowed),
    }
}

fn of_disk(disk: &SeenDisk) -> Option<Condition> {
    let (subject, why) = (&disk.subject, disk.problem.as_deref());
    let (kind, severity, message, action) = match (disk.state, why) {
        (DiskState::Missing, why) => (
            EventKind::DiskMissing,
            Severity::Error,
            with_why(format!("{subject} is missing"), why),
            Some(
                "attach the disk and restart the server; if the disk is lost for good: cairn disk replace",
            ),
        ),
        (DiskState::Failed, why) => (
            EventKind::DiskFailed,
            Severity::Error,
            with_why(format!("{subject} failed and is out of use"), why),
            Some(
                "check the drive: cairn disk replace replaces it, cairn disk retry takes it back if it works again",
            ),
        ),
        (DiskState::Unresponsive, why) => (
            EventKind::DiskSuspect,
            Severity::Warning,
            with_why(
                format!("{subject} is unresponsive and counts as lost until it answers"),
                why,
            ),
            Some("check the drive, its cable and its controller"),
        ),
        (DiskState::Failing, why) => (
            EventKind::DiskSuspect,
            Severity::Warning,
            with_why(
                format!("{subject} fails writes and counts as lost until it takes them"),
                why,
            ),
            Some("check whether its file system is read-only, and the kernel log for the drive"),
        ),
        (DiskState::Returning, why) => (
            EventKind::DiskSuspect,
            Severity::Warning,
            with_why(
                format!(
                    "{subject} is back and counts as lost until it has the writes that it missed"
                ),
                why,
            ),
            None,
        ),
        (DiskState::Draining, _) => (
            EventKind::DiskDrain,
            Severity::Info,
            drain_began(subject),
            None,
        ),
        (DiskState::Ok | DiskState::Drained, Some(why)) => (
            EventKind::DiskSuspect,
            Severity::Warning,
            format!("{subject} has a fault and stays in use: {why}"),
            Some("check the drive, its cable and its controller; have a replacement ready"),
        ),
        (DiskState::Ok | DiskState::Drained, None) => return None,
    };
    let subject = subject.clone();
    Some(condition(kind, subject, severity, message, action))
}

/// Space and data that moves.
fn of_pool(seen: &Observation, is_nearly_full: bool, all: &mut Vec<Condition>) {
    if seen.rebuild.running {
        all.push(condition(
            EventKind::Rebuild,
            REBUILD.to_owned(),
            Severity::Info,
            format!(
                "data is being moved or rebuilt: {} left",
                shards(seen.rebuild.shards_left)
            ),
            None,
        ));
    }
    let free_percent_low = match is_nearly_full {
        true => FREE_PERCENT_AGAIN,
        false => FREE_PERCENT_LOW,
    };
    if let Some(percent) = seen
        .free_percent
        .filter(|percent| *percent < free_percent_low)
    {
        all.push(condition(
            EventKind::PoolNearlyFull,
            POOL.to_owned(),
            Severity::Warning,
            format!("the pool is nearly full: {percent}% of its space is free"),
            Some("delete data and snapshots, or add a disk: cairn disk add"),
        ));
    }
    if seen.is_full {
        all.push(condition(
            EventKind::PoolFull,
            POOL.to_owned(),
            Severity::Error,
            "the pool is full: writes fail, reads and deletions work".to_owned(),
            Some("delete data and snapshots, or add a disk: cairn disk add"),
        ));
    }
}

/// Volumes that are not served, nodes that are away, and this node's lease.
fn of_owners(seen: &Observation, all: &mut Vec<Condition>) {
    for volume in &seen.volumes {
        let name = &volume.name;
        match (&volume.owner, &volume.problem) {
            (Owner::Nobody, _) => all.push(condition(
                EventKind::VolumeWithoutOwner,
                subject_of_volume(name),
                Severity::Error,
                format!("no node owns volume {name}: it is not served"),
                Some(
                    "cairn cluster status shows which nodes and disks are missing; bring them back",
                ),
            )),
            (_, Some(why)) => all.push(condition(
                EventKind::VolumeNotServed,
                subject_of_volume(name),
                Severity::Error,
                format!("volume {name} is not served: {why}"),
                Some("cairn status shows what is missing; the server's log has details"),
            )),
            _ => {}
        }
    }
    for node in seen.nodes.iter().filter(|node| !node.is_there) {
        all.push(condition(
            EventKind::NodeAway,
            format!("node {}", node.name),
            Severity::Warning,
            format!("node {} is away: its lease has expired", node.name),
            Some("start its server or repair its network"),
        ));
    }
    if seen.has_lease == Some(false) {
        all.push(condition(
            EventKind::LeaseLost,
            THIS_NODE.to_owned(),
            Severity::Error,
            "etcd does not renew this node's lease: the node serves no volume".to_owned(),
            Some("check that a majority of the etcd members runs, and that this node reaches them"),
        ));
    }
}

/// Schedules, tiers and objectives that are not kept.
fn of_services(seen: &Observation, all: &mut Vec<Condition>) {
    for (volume, trouble) in troubled(&seen.schedules) {
        all.push(condition(
            EventKind::ScheduleFailed,
            subject_of_volume(volume),
            Severity::Warning,
            format!(
                "the snapshot schedule of volume {volume} fails: {trouble}; the server retries"
            ),
            Some("cairn snapshot list shows all snapshots; delete old ones if there are too many"),
        ));
    }
    for (tier, trouble) in troubled(&seen.tiers) {
        all.push(condition(
            EventKind::TierFailed,
            subject_of_tier(tier),
            Severity::Warning,
            format!("tier {tier} is not usable: {trouble}; the server retries"),
            Some(
                "check that its address can be reached and its credentials are valid: cairn tier show",
            ),
        ));
    }
    for (volume, trouble) in troubled(&seen.goals) {
        all.push(condition(
            EventKind::LatencyGoalMissed,
            subject_of_volume(volume),
            Severity::Warning,
            format!("volume {volume} misses its latency objective: {trouble}"),
            Some(
                "background work is throttled already; give other volumes a class with rates, or add disks or nodes",
            ),
        ));
    }
}

/// Whether a condition of its own reports this warning.
fn has_own_event(kind: WarningKind) -> bool {
    match kind {
        WarningKind::VolumeNotServed
        | WarningKind::VolumeWithoutOwner
        | WarningKind::NoLease
        | WarningKind::NodeAway
        | WarningKind::DiskMissing
        | WarningKind::DiskFailed
        | WarningKind::DiskTroubled
        | WarningKind::SpaceLow
        | WarningKind::PoolFull
        | WarningKind::KeyAway
        | WarningKind::TierAway => true,
        WarningKind::EtcdNoQuorum
        | WarningKind::EtcdUnreachable
        | WarningKind::EtcdMemberDown
        | WarningKind::EtcdPlain
        | WarningKind::NodeUnreached
        | WarningKind::OneDisk
        | WarningKind::SharedDevice
        | WarningKind::VolumeReadOnly
        | WarningKind::VolumeFull
        | WarningKind::VolumeLow
        | WarningKind::MemoryOver
        | WarningKind::ScrubOverdue
        | WarningKind::AtTheLimit
        | WarningKind::SegmentsUnreadable
        | WarningKind::SegmentsShort
        | WarningKind::SegmentsNarrow
        | WarningKind::SegmentsSingle
        | WarningKind::PlacesDamaged
        | WarningKind::BytesLost
        | WarningKind::ReadsDamaged
        | WarningKind::MetadataShort
        | WarningKind::LogCopiesFew
        | WarningKind::AddressNotHere
        | WarningKind::KeyMissing
        | WarningKind::SecretsUnwrapped
        | WarningKind::MapKeyDamaged
        | WarningKind::FolderLow
        | WarningKind::VolumesMany
        | WarningKind::Maintenance
        | WarningKind::VolumeUnprotected
        | WarningKind::DirectoriesUnprotected
        | WarningKind::DisksUnnamed
        | WarningKind::ReadCacheUnused => false,
    }
}

/// The severity and text of the event that ends a condition. The text says which state follows.
pub fn ended(
    kind: EventKind,
    subject: &str,
    message: &str,
    seen: &Observation,
) -> (Severity, String) {
    let disk = seen.disks.iter().find(|disk| disk.subject == subject);
    let state = disk.map(|disk| disk.state);
    let volume = || {
        let mut volumes = seen.volumes.iter();
        volumes.find(|volume| subject_of_volume(&volume.name) == subject)
    };
    let info = |message: String| (Severity::Info, message);
    match kind {
        EventKind::DiskMissing | EventKind::DiskFailed => match state {
            None => info(format!("{subject} is no longer in the pool")),
            Some(DiskState::Missing) => info(format!("{subject} is missing now")),
            Some(DiskState::Failed) => info(format!("{subject} is present, and out of use")),
            Some(DiskState::Unresponsive | DiskState::Failing | DiskState::Returning) => {
                info(format!("{subject} is back, and still has to prove that it works"))
            }
            Some(_) => info(format!("{subject} is back and used again")),
        },
        EventKind::DiskSuspect => match state {
            None => info(format!("{subject} is no longer in the pool")),
            Some(DiskState::Missing | DiskState::Failed) => {
                info(format!("{subject} is out of use"))
            }
            Some(_) => info(format!("{subject} is healthy again")),
        },
        EventKind::DiskDrain => match state {
            None => info(format!("{subject} is drained and left the pool")),
            Some(DiskState::Drained) => info(drain_done(subject)),
            Some(DiskState::Missing | DiskState::Failed) => (
                Severity::Warning,
                format!("{subject} was lost before it was drained"),
            ),
            Some(_) => info(format!("the drain of {subject} was cancelled")),
        },
        EventKind::Rebuild => match (seen.rebuild.shards_left, seen.rebuild.problems.first()) {
            (0, _) if seen.warnings.iter().any(|it| is_short(it.kind)) => (
                Severity::Warning,
                "no more data can be moved now, and some data has less protection than its volume asks for: see cairn status"
                    .to_owned(),
            ),
            (0, _) => info("all data is in place: nothing is left to move".to_owned()),
            (left, Some(problem)) => (
                Severity::Warning,
                format!("{} left that cannot be moved: {problem}", shards(left)),
            ),
            (left, None) => info(format!("{} left, waiting", shards(left))),
        },
        EventKind::PoolNearlyFull => info(match seen.free_percent {
            Some(percent) => format!("{percent}% of the pool's space is free again"),
            None => "the pool has enough free space again".to_owned(),
        }),
        EventKind::PoolFull => info("the pool takes writes again".to_owned()),
        EventKind::VolumeNotServed => match volume() {
            None => info(format!("{subject} is no longer there")),
            Some(SeenVolume {
                owner: Owner::Nobody,
                ..
            }) => info(format!("{subject} has no owner now")),
            Some(_) => info(format!("{subject} is served again")),
        },
        EventKind::VolumeWithoutOwner => match volume().map(|volume| &volume.owner) {
            Some(Owner::Node(node)) => info(format!("node {node} owns {subject}")),
            _ => info(format!("{subject} is no longer there")),
        },
        EventKind::NodeAway => {
            let mut nodes = seen.nodes.iter();
            match nodes.any(|node| format!("node {}", node.name) == subject) {
                true => info(format!("{subject} is back")),
                false => info(format!("{subject} is no longer in the cluster")),
            }
        }
        EventKind::LeaseLost => info("this node has its lease again".to_owned()),
        EventKind::ScheduleFailed => info(format!("the snapshot schedule of {subject} works again")),
        EventKind::TierFailed => info(format!("{subject} is usable again")),
        EventKind::LatencyGoalMissed => {
            let mut goals = seen.goals.iter();
            match goals.any(|(name, _)| subject_of_volume(name) == subject) {
                true => info(format!("{subject} meets its latency objective again")),
                false => info(format!("{subject} no longer has a latency objective on this node")),
            }
        }
        EventKind::Alert => info(format!("resolved: {message}")),
        // Those are no conditions.
        EventKind::ServerStarted
        | EventKind::ServerStopped
        | EventKind::DiskDamage
        | EventKind::DiskAdded
        | EventKind::DiskRemoved
        | EventKind::Scrub
        | EventKind::DamageRepaired
        | EventKind::DataDamaged
        | EventKind::VolumeTakenOver => info(format!("{subject}: it is over")),
    }
}

/// Whether a warning says that data has less protection than it should.
fn is_short(kind: WarningKind) -> bool {
    matches!(
        kind,
        WarningKind::SegmentsUnreadable
            | WarningKind::SegmentsShort
            | WarningKind::SegmentsNarrow
            | WarningKind::SegmentsSingle
    )
}

fn drain_began(subject: &str) -> String {
    format!("{subject} is being drained: its data moves to the other disks")
}

fn drain_done(subject: &str) -> String {
    format!("{subject} is drained: it can be removed")
}

/// A disk with little data is drained between two observations: both events are reported then.
fn quick_drains(before: &Observation, now: &Observation) -> Vec<Happened> {
    let was_ok = |disk: &&SeenDisk| {
        let mut earlier = before.disks.iter();
        earlier.any(|earlier| earlier.subject == disk.subject && earlier.state == DiskState::Ok)
    };
    let drained = now.disks.iter();
    let drained = drained.filter(|disk| disk.state == DiskState::Drained);
    let told = |disk: &SeenDisk, stage, message| Happened {
        stage,
        kind: EventKind::DiskDrain,
        subject: disk.subject.clone(),
        severity: Severity::Info,
        message,
        action: None,
    };
    let both = drained.filter(was_ok).flat_map(|disk| {
        [
            told(disk, EventStage::Began, drain_began(&disk.subject)),
            told(disk, EventStage::Ended, drain_done(&disk.subject)),
        ]
    });
    both.collect()
}

/// A scrub of little data begins and ends between two observations: both events are reported then.
fn scrubs(before: &ScrubView, now: &ScrubView) -> Vec<Happened> {
    let told = |stage, severity, message| Happened {
        stage,
        kind: EventKind::Scrub,
        subject: SCRUB.to_owned(),
        severity,
        message,
        action: None,
    };
    let (was_running, is_running) = (
        before.stage == ScrubStage::Running,
        now.stage == ScrubStage::Running,
    );
    let is_another = before.started_seconds != now.started_seconds;
    let is_done = now.stage == ScrubStage::Done
        && (is_another || before.finished_seconds != now.finished_seconds);
    let mut all = Vec::new();
    if (is_running || is_done) && (!was_running || is_another) {
        let message = "a scrub reads and checks all data".to_owned();
        all.push(told(EventStage::Began, Severity::Info, message));
    }
    if is_done || (was_running && !is_running) {
        let (severity, message) = scrub_ended(now);
        all.push(told(EventStage::Ended, severity, message));
    }
    all
}

fn scrub_ended(scrub: &ScrubView) -> (Severity, String) {
    if scrub.stage != ScrubStage::Done {
        let message = format!(
            "the scrub is paused after {}",
            format_size(scrub.done_bytes)
        );
        return (Severity::Info, message);
    }
    let found = match (scrub.wrong_bytes, scrub.damaged) {
        (0, 0) => return (Severity::Info, "the scrub is done: no damage".to_owned()),
        (wrong, damaged) => format!(
            "the scrub is done: {} were damaged, of which {} were repaired; {damaged} places in files are damaged beyond repair",
            format_size(wrong),
            format_size(scrub.repaired_bytes)
        ),
    };
    match scrub.damaged {
        0 => (Severity::Warning, found),
        _ => (Severity::Error, found),
    }
}

/// The changes since the last observation.
pub fn happened(before: &Observation, now: &Observation) -> Vec<Happened> {
    let mut all = Vec::new();
    let is_in = |disk: &&SeenDisk, seen: &Observation| {
        let mut disks = seen.disks.iter();
        disks.any(|one| one.subject == disk.subject)
    };
    for disk in now.disks.iter().filter(|disk| !is_in(disk, before)) {
        all.push(Happened {
            stage: EventStage::Once,
            kind: EventKind::DiskAdded,
            subject: disk.subject.clone(),
            severity: Severity::Info,
            message: format!("{} joined the pool", disk.subject),
            action: None,
        });
    }
    for disk in before.disks.iter().filter(|disk| !is_in(disk, now)) {
        all.push(Happened {
            stage: EventStage::Once,
            kind: EventKind::DiskRemoved,
            subject: disk.subject.clone(),
            severity: Severity::Info,
            message: format!("{} left the pool", disk.subject),
            action: None,
        });
    }
    all.extend(quick_drains(before, now));
    all.extend(scrubs(&before.scrub, &now.scrub));
    for volume in &now.volumes {
        let mut earlier = before.volumes.iter();
        let earlier = earlier.find(|earlier| earlier.name == volume.name);
        let Some((Owner::Node(from), Owner::Node(to))) =
            earlier.map(|earlier| (&earlier.owner, &volume.owner))
        else {
            continue;
        };
        if from != to {
            all.push(Happened {
                stage: EventStage::Once,
                kind: EventKind::VolumeTakenOver,
                subject: subject_of_volume(&volume.name),
                severity: Severity::Warning,
                message: format!(
                    "the owner of volume {} changed from node {from} to node {to}",
                    volume.name
                ),
                action: Some("cairn cluster status shows whether the old owner is away"),
            });
        }
    }
    all
}

/// Numbers that grew since the last observation.
pub fn rises(before: &Observation, now: &Observation) -> Vec<Rise> {
    let mut all = Vec::new();
    let mut add = |kind, subject: &str, before: u64, now: u64| {
        let by = now.saturating_sub(before);
        if by > 0 {
            let subject = subject.to_owned();
            all.push(Rise { kind, subject, by });
        }
    };
    for disk in &now.disks {
        let mut earlier = before.disks.iter();
        let earlier = earlier.find(|earlier| earlier.subject == disk.subject);
        let earlier = earlier.map_or(0, |earlier| earlier.checksum_errors);
        add(
            EventKind::DiskDamage,
            &disk.subject,
            earlier,
            disk.checksum_errors,
        );
    }
    // A new scrub counts from 0.
    let is_same = before.scrub.started_seconds == now.scrub.started_seconds;
    let earlier = |number: u64| if is_same { number } else { 0 };
    let repaired = earlier(before.scrub.repaired_bytes);
    let damaged = earlier(before.scrub.damaged);
    add(
        EventKind::DamageRepaired,
        SCRUB,
        repaired,
        now.scrub.repaired_bytes,
    );
    add(EventKind::DataDamaged, SCRUB, damaged, now.scrub.damaged);
    add(
        EventKind::DataDamaged,
        POOL,
        before.damaged_reads,
        now.damaged_reads,
    );
    add(
        EventKind::DataDamaged,
        REBUILD,
        before.rebuild.lost_bytes,
        now.rebuild.lost_bytes,
    );
    all
}

/// The event for a growth.
pub fn risen(rise: Rise) -> Happened {
    let Rise { kind, subject, by } = rise;
    let look = Some("cairn scrub start checks all data; cairn scrub report names damaged files");
    let (severity, message, action) = match (kind, subject.as_str()) {
        (EventKind::DamageRepaired, _) => (
            Severity::Warning,
            format!("the scrub repaired {} of damaged data", format_size(by)),
            Some(
                "cairn disk list shows which disk had the damage; replace that disk if it has more",
            ),
        ),
        (EventKind::DataDamaged, SCRUB) => (
            Severity::Error,
            format!("the scrub found {by} places in files that are damaged beyond repair"),
            Some("cairn scrub report lists the files: restore them from a snapshot or a backup"),
        ),
        (EventKind::DataDamaged, REBUILD) => (
            Severity::Error,
            format!(
                "{} could not be recovered from any disk when data was moved or rebuilt",
                format_size(by)
            ),
            look,
        ),
        (EventKind::DataDamaged, _) => (
            Severity::Error,
            format!("{by} reads failed, because the data is damaged and has no readable copy"),
            look,
        ),
        _ => (
            Severity::Warning,
            format!(
                "{by} reads of {subject} did not match their checksums; the data was read from the other disks"
            ),
            Some("cairn scrub start finds and repairs the rest; replace the disk if it has more"),
        ),
    };
    Happened {
        stage: EventStage::Once,
        kind,
        subject,
        severity,
        message,
        action,
    }
}

fn with_why(what: String, why: Option<&str>) -> String {
    match why {
        Some(why) => format!("{what}: {why}"),
        None => what,
    }
}

fn shards(count: u64) -> String {
    format!("{count} shard{}", if count == 1 { "" } else { "s" })
}

fn troubled(troubles: &Troubles) -> impl Iterator<Item = (&str, &str)> {
    let troubles = troubles.iter();
    troubles.filter_map(|(name, trouble)| Some((name.as_str(), trouble.as_deref()?)))
}

fn subject_of_volume(name: &str) -> String {
    format!("volume {name}")
}

fn subject_of_tier(name: &str) -> String {
    format!("tier {name}")
}
