//! The scrub, its timer and its report: JSON, routes, and what they ask of a node.

use cairn_config::{MaintenanceWindow, ScrubEvery};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::ErrorKind;
use crate::control::{Answer, ControlError};
use crate::endpoint::{Endpoint, act, delete, endpoints, get, post, put};
use crate::server::Table;

/// The stage of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubStage {
    /// No scrub was ever started.
    #[default]
    Never,
    Running,
    /// Paused by an operator; `start` resumes it.
    Paused,
    Done,
}

impl std::fmt::Display for ScrubStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Never => "never",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubStart {
    /// Rate limit in bytes per second; 0: no limit; left out: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_second: Option<u64>,
    /// Restart from the beginning, even if a scrub is in progress.
    #[serde(default)]
    pub restart: bool,
}

/// The scrub schedule and the maintenance window; a field that is left out is cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubScheduleSet {
    /// Time from the start of one scrub to the start of the next, in hours or days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(([1-9][0-9]{0,3}|[1-3][0-9]{4}|4[0-2][0-9]{3}|43[0-8][0-9]{2}|439[01][0-9]|43920)h|([1-9][0-9]{0,2}|1[0-7][0-9]{2}|18[0-2][0-9]|1830)d)$")]
    pub every: Option<ScrubEvery>,
    /// Maintenance window: days and times of the week, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00", max_length = 1024, pattern = "^((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)(,((daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?),)*(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?):([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00))*$")]
    pub window: Option<MaintenanceWindow>,
}

/// The scrub schedule and the maintenance window of a server, or of all nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubSchedule {
    /// Left out: there is no schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d")]
    pub every: Option<ScrubEvery>,
    /// Left out: there is no maintenance window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "sat:22:00-06:00")]
    pub window: Option<MaintenanceWindow>,
    /// Whether the window is open now; true without a window.
    pub is_open: bool,
    /// When the window opens. Left out: it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_seconds: Option<i64>,
    /// When the window closes. Left out: it is closed, or never closes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubView {
    pub stage: ScrubStage,
    /// Whether the schedule started this scrub.
    #[serde(default)]
    pub by_schedule: bool,
    /// When the awaited maintenance window opens. Left out: the scrub waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until_seconds: Option<i64>,
    /// When the schedule starts the next scrub, in a cluster on the first node. Left out: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seconds: Option<i64>,
    pub started_seconds: i64,
    /// 0 until the scrub is done.
    pub finished_seconds: i64,
    pub rate_bytes_per_second: u64,
    /// Bytes read so far, and an estimate of the total.
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// Estimate at the rate so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    pub shards: u64,
    pub records: u64,
    /// Bytes of shards that were damaged or unreadable, and how many of them were repaired.
    pub wrong_bytes: u64,
    pub repaired_bytes: u64,
    pub shards_rebuilt: u64,
    pub shards_sealed: u64,
    /// Shards on missing disks, which were not checked.
    pub shards_away: u64,
    /// Unreadable places in files; `report` lists them.
    pub damaged: u64,
    /// Failures of the scrub itself.
    pub errors: u64,
    /// Nodes that do not answer; these numbers lack their part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<crate::joined::SilentNode>,
}

/// Unreadable bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubDamage {
    pub volume: String,
    pub inode: u64,
    /// All paths of the file from the root of the volume; empty if it has no name. Bytes that are not UTF-8 are shown as
    /// U+FFFD.
    pub paths: Vec<String>,
    pub start: u64,
    pub end: u64,
    pub detail: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    pub scrub: ScrubView,
    /// Damage that was found and still exists, by volume and file.
    pub damaged: Vec<ScrubDamage>,
    /// Number of further places, beyond the list's limit.
    pub damaged_more: u64,
}

endpoints! {
    /// Shows the progress of the scrub.
    SCRUB: Endpoint<(), (), ScrubView> = get("/api/v1/scrub");

    /// Starts a scrub, resumes a paused one, or changes its rate.
    SCRUB_START: Endpoint<(), ScrubStart, ScrubView> = post("/api/v1/scrub/start");

    /// Pauses the scrub; it stays paused across restarts.
    SCRUB_PAUSE: Endpoint<(), (), ScrubView> = act("/api/v1/scrub/pause");

    /// Lists damage that the last scrub could not repair, as bytes of files.
    SCRUB_REPORT: Endpoint<(), (), ScrubReport> = get("/api/v1/scrub/report");

    /// Shows the scrub schedule and the maintenance window.
    SCRUB_SCHEDULE: Endpoint<(), (), ScrubSchedule> = get("/api/v1/scrub/schedule");

    /// Sets the scrub schedule and the maintenance window; a field that is left out is cleared.
    SCRUB_SCHEDULE_SET: Endpoint<(), ScrubScheduleSet, ScrubSchedule> = put("/api/v1/scrub/schedule");

    /// Clears the scrub schedule and the maintenance window. A scrub that waits for the window continues.
    SCRUB_SCHEDULE_CLEAR: Endpoint<(), (), ()> = delete("/api/v1/scrub/schedule");

}

/// What a node does with scrubs. Changes are durable when they are answered.
pub trait ScrubControl: Send + Sync {
    fn scrub(&self) -> Answer<'_, ScrubView>;
    fn scrub_start(&self, start: ScrubStart) -> Answer<'_, ScrubView>;
    fn scrub_pause(&self) -> Answer<'_, ScrubView>;
    fn scrub_report(&self) -> Answer<'_, ScrubReport>;
    /// The timer of scrubs and the maintenance window.
    fn scrub_schedule(&self) -> Answer<'_, ScrubSchedule>;
    /// Replaces both; with nothing in it both are gone.
    fn scrub_schedule_set(&self, set: ScrubScheduleSet) -> Answer<'_, ScrubSchedule>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn ScrubControl>(|node| Ok(node.scrubs()))
        .on(SCRUB, |node, (), ()| node.scrub())
        .on(SCRUB_START, |node, (), start| node.scrub_start(start))
        .on(SCRUB_PAUSE, |node, (), ()| node.scrub_pause())
        .on(SCRUB_REPORT, |node, (), ()| node.scrub_report())
        .on(SCRUB_SCHEDULE, |node, (), ()| node.scrub_schedule())
        .on(SCRUB_SCHEDULE_SET, |node, (), set| {
            Box::pin(schedule_set(node, set))
        })
        .on(SCRUB_SCHEDULE_CLEAR, |node, (), ()| {
            let none = ScrubScheduleSet::default();
            Box::pin(async move { node.scrub_schedule_set(none).await.map(drop) })
        });
}

async fn schedule_set(
    node: &dyn ScrubControl,
    set: ScrubScheduleSet,
) -> Result<ScrubSchedule, ControlError> {
    if set == ScrubScheduleSet::default() {
        let message = "neither `every` nor `window` is given";
        return Err(ControlError::new(ErrorKind::Invalid, message)
            .hint("DELETE takes the schedule and the window away"));
    }
    node.scrub_schedule_set(set).await
}
