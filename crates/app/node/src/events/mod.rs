//! Records events of the system: observes it every few seconds, and stores the resulting events.
//!
//! Owns: the interval, the observed facts, the events of a start and a stop. Must not know: which changes are worth
//! an event ([`seen`]), which were reported already ([`tracker`]), how events are kept ([`crate::entry_log`]).
//!
//! Events follow from the status, the metrics and the map of the cluster, so none reports a fact that is invisible
//! elsewhere; the engine does not know of events.

mod seen;
mod tracker;

use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use cairn_admin::Answer;
use cairn_admin::disks::{DiskState, DiskView};
use cairn_admin::events::{
    EventControl, EventEntry, EventKind, EventPage, EventQuery, EventStage, Severity,
};
use cairn_base::VolumeId;
use cairn_formats::pool_file::PoolVolume;
use parking_lot::Mutex;

use self::seen::{Observation, Owner, SeenDisk, SeenNode, SeenVolume, Troubles};
use self::tracker::{Tracker, entry};
use crate::control::{Controller, percent};
use crate::convert;
use crate::entry_log::{EntryLog, LogKind};
use crate::node::NodeCore;

/// The folder in a data folder.
pub const EVENTS_NAME: &str = "events";

/// About 10,000 usual events.
const EVENTS: LogKind = LogKind {
    name: EVENTS_NAME,
    shown: "the log of events",
    lines_len_bytes_max: 4 << 20,
};
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const SERVER: &str = "server";

/// The events of one server.
pub struct Events {
    log: EntryLog<EventEntry>,
    tracker: Mutex<Tracker>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            log: EntryLog::new(&EVENTS),
            tracker: Mutex::default(),
        }
    }
}

impl Events {
    pub fn last_id(&self) -> u64 {
        self.log.look(|kept| kept.id_last())
    }

    async fn append(&self, inner: &NodeCore, events: Vec<EventEntry>) {
        for event in &events {
            // Also into the server's log, so that its readers need no second source.
            tracing::info!(
                target: "event", severity = event.severity.as_str(), subject = event.subject, "{}", event.message
            );
        }
        if let Err(error) = self.log.append(inner, events).await {
            tracing::error!(%error, "events are not on any disk yet; they are written with the next ones");
        }
    }
}

/// Loads the kept events, records the start, and begins to observe.
pub async fn begin(inner: &Arc<NodeCore>, controller: &Arc<Controller>) {
    let events = &inner.events;
    events.log.load(inner).await;
    let now = inner.env.clock.monotonic();
    let last = events.log.look(|kept| {
        let mut oldest_first: Vec<&EventEntry> = kept.newest_first().collect();
        oldest_first.reverse();
        *events.tracker.lock() = Tracker::new(oldest_first.into_iter(), now);
        kept.newest_first().next().map(|event| event.kind)
    });
    let event = started(last, inner.env.clock.now().seconds);
    events.append(inner, vec![event]).await;
    // The first observation: later events are the differences to it.
    look(inner, controller).await;
    let controller: Weak<Controller> = Arc::downgrade(controller);
    inner.every("events", LOOK_INTERVAL, move |inner| {
        let controller = controller.upgrade();
        async move {
            if let Some(controller) = controller {
                look(&inner, &controller).await;
            }
        }
    });
}

/// A stop is the last event of a server; a server without it ended otherwise.
fn started(last: Option<EventKind>, now_seconds: i64) -> EventEntry {
    let version = env!("CARGO_PKG_VERSION");
    let event = match last {
        None | Some(EventKind::ServerStopped) => (
            EventStage::Once,
            Severity::Info,
            format!("the server was started, version {version}"),
            None,
        ),
        Some(_) => (
            EventStage::Once,
            Severity::Warning,
            format!(
                "the server was started, version {version}, without a clean stop before: it was killed, it crashed, \
                or the machine lost power. All acknowledged data is intact"
            ),
            Some("check the logs of the server and of the system around that time"),
        ),
    };
    entry(EventKind::ServerStarted, SERVER, event, now_seconds)
}

/// Records that the server ends in order. This is its last use of its disks.
pub async fn stopped(inner: &NodeCore) {
    let event = (
        EventStage::Once,
        Severity::Info,
        "the server was stopped".to_owned(),
        None,
    );
    let now_seconds = inner.env.clock.now().seconds;
    let event = entry(EventKind::ServerStopped, SERVER, event, now_seconds);
    inner.events.append(inner, vec![event]).await;
}

async fn look(inner: &Arc<NodeCore>, controller: &Controller) {
    let seen = controller.seen();
    if inner.pool.is_stopping() {
        // Changes while everything is being closed are no events.
        return;
    }
    let (now, now_seconds) = (inner.env.clock.monotonic(), inner.env.clock.now().seconds);
    let events = inner.events.tracker.lock().look(seen, now, now_seconds);
    if !events.is_empty() {
        inner.events.append(inner, events).await;
    }
}

impl Controller {
    fn seen(&self) -> Observation {
        let inner = &self.inner;
        let status = self.overview();
        let states = self.volume_states(&inner.pool.state());
        let view = inner.cluster.as_ref().map(|cluster| cluster.member.view());
        let node_of = |disk: &str| {
            let view = view.as_ref()?;
            let mut disks = view.disks.values().map(|disk| &disk.value);
            let record = disks.find(|record| record.id.to_string() == disk)?;
            Some(view.nodes.get(&record.node)?.value.name.clone())
        };
        let labels: Vec<String> = status.disks.iter().map(|disk| disk.label.clone()).collect();
        // A lost disk has the label of its replacement, until it has left the pool.
        let is_in_place_of_another = |disk: &DiskView| {
            let same = labels.iter().filter(|label| **label == disk.label);
            disk.state != DiskState::Ok && same.count() > 1
        };
        let label_of = |disk: &DiskView| match is_in_place_of_another(disk) {
            true => format!("{} ({})", disk.label, disk.id),
            false => disk.label.clone(),
        };
        let disks = status.disks.iter().map(|disk| SeenDisk {
            subject: match node_of(&disk.id) {
                Some(node) => format!("disk {} of node {node}", label_of(disk)),
                None => format!("disk {}", label_of(disk)),
            },
            state: disk.state,
            problem: disk.problem.clone(),
            checksum_errors: disk.checksum_errors,
        });
        let owner_of = |id: VolumeId| match inner.owner_name(id) {
            None => Owner::Alone,
            Some(Err(_)) => Owner::Nobody,
            Some(Ok(node)) => Owner::Node(node),
        };
        let volumes = states.into_iter().map(|volume| SeenVolume {
            owner: owner_of(volume.id),
            name: volume.name.to_string(),
            problem: volume.problem.filter(|_| !volume.serving),
        });
        let nodes = view.iter().flat_map(|view| {
            view.nodes.values().map(|node| SeenNode {
                name: node.value.name.clone(),
                is_there: view.alive.contains_key(&node.value.id),
            })
        });
        let space = (status.pool.free_bytes, status.pool.total_bytes);
        Observation {
            disks: disks.collect(),
            rebuild: convert::rebuild(inner.pool.rebuild_status()),
            scrub: convert::scrub(inner.pool.scrub_progress()),
            damaged_reads: inner.pool.store.stats().damaged_reads,
            free_percent: percent(space.0, space.1),
            is_full: space.1 > 0 && space.0 <= status.pool.reserve_bytes,
            volumes: volumes.collect(),
            nodes: nodes.collect(),
            has_lease: inner
                .cluster
                .as_ref()
                .map(|cluster| cluster.member.lease_is_valid()),
            schedules: inner.snapshots.schedules.troubles(inner),
            tiers: crate::tiers::troubles(inner),
            goals: self.goals_seen(),
            warnings: status.warnings,
        }
    }
}

impl Controller {
    /// Volumes of this server with a latency objective, and how they miss it.
    fn goals_seen(&self) -> Troubles {
        let inner = &self.inner;
        let state = inner.pool.state();
        let of = |volume: &PoolVolume| {
            let report = inner.shaper.goal(volume.id)?;
            let last = report.last.unwrap_or_default();
            let trouble = (report.is_met() == Some(false)).then(|| {
                format!(
                    "{} of the last {} requests took longer than {:?}",
                    last.late, last.all, report.goal
                )
            });
            Some((volume.name.to_string(), trouble))
        };
        state.all_volumes().filter_map(of).collect()
    }
}

impl EventControl for Controller {
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(async move {
            Ok(self.inner.events.log.look(|kept| EventPage {
                first_seconds: kept.first_seconds(),
                problem: kept.problem(),
                ..query.page(kept.newest_first())
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_tells_how_the_one_before_ended() {
        let severity = |last| started(last, 0).severity;
        assert_eq!(severity(None), Severity::Info);
        assert_eq!(severity(Some(EventKind::ServerStopped)), Severity::Info);
        assert_eq!(severity(Some(EventKind::ServerStarted)), Severity::Warning);
        assert_eq!(severity(Some(EventKind::DiskMissing)), Severity::Warning);
    }
}
