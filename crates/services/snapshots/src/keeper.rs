//! Takes the snapshots that are due, and deletes those that newer ones make superfluous.

use cairn_base::Timestamp;
use cairn_fs::{Credentials, Fs, FsError, Snapshot, SnapshotError, SnapshotFailure, XattrMode};
use serde::{Deserialize, Serialize};

use crate::clone::remove_leftovers;
use crate::schedule::{Schedule, ScheduleError, parse, text};

static WHO: Credentials = Credentials::ROOT;
/// Of the volume's hidden folder.
const KEY: &[u8] = b"user.snapshots";
const VERSION: u32 = 1;

/// Why the schedules of a volume cannot be read, or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleFailure {
    #[error(transparent)]
    Refused(#[from] ScheduleError),
    #[error("the volume's record of its schedules cannot be read: {0}")]
    Damaged(String),
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// The schedules of a volume.
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    pub all: Vec<Schedule>,
    /// When they were set: nothing was due before.
    pub since_seconds: i64,
    /// With less of the pool free the oldest snapshot goes; 0: none goes for that.
    pub autodelete_percent: u8,
}

/// Most of a pool that can be asked to be kept free at the cost of snapshots.
pub const AUTODELETE_PERCENT_MAX: u8 = 90;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    since_seconds: i64,
    schedules: String,
    #[serde(default)]
    autodelete_percent: u8,
}

/// What a look at the schedules did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub taken: Vec<String>,
    pub deleted: Vec<String>,
    /// The oldest, for want of space.
    pub deleted_for_space: Option<String>,
    /// Those of clones that were being made when the volume was closed.
    pub left_by_clones: Vec<String>,
    /// Failed steps, with their snapshot and why. The next look tries again.
    pub failed: Vec<(String, SnapshotFailure)>,
}

/// Reads the schedules of a volume.
pub async fn schedules(fs: &Fs) -> Result<Schedules, ScheduleFailure> {
    let Some(hidden) = fs.hidden_folder().await? else {
        return Ok(Schedules::default());
    };
    let stored = match fs.xattr(&WHO, hidden, KEY).await {
        Ok(stored) => stored,
        Err(FsError::NoAttribute) => return Ok(Schedules::default()),
        Err(error) => return Err(error.into()),
    };
    let damaged = |why: String| ScheduleFailure::Damaged(why);
    let record: Record =
        serde_json::from_slice(&stored).map_err(|error| damaged(error.to_string()))?;
    if record.version != VERSION {
        let version = record.version;
        return Err(damaged(format!(
            "it has version {version}, this program knows version {VERSION}"
        )));
    }
    Ok(Schedules {
        all: parse(&record.schedules).map_err(|error| damaged(error.to_string()))?,
        since_seconds: record.since_seconds,
        autodelete_percent: record.autodelete_percent,
    })
}

/// Sets them; durable when this returns. Snapshots of schedules that are there no longer stay.
pub async fn set_schedules(
    fs: &Fs,
    all: Vec<Schedule>,
    now: Timestamp,
) -> Result<Schedules, ScheduleFailure> {
    let autodelete_percent = match schedules(fs).await {
        Ok(known) => known.autodelete_percent,
        // They are set anew.
        Err(ScheduleFailure::Damaged(_)) => 0,
        Err(error) => return Err(error),
    };
    let set = Schedules {
        all,
        since_seconds: now.seconds,
        autodelete_percent,
    };
    store(fs, &set).await?;
    Ok(set)
}

/// Has the oldest snapshots go when no more than this part of the pool is free, up to [`AUTODELETE_PERCENT_MAX`]; 0: never. Durable
/// when this returns.
pub async fn set_autodelete(fs: &Fs, percent: u8) -> Result<Schedules, ScheduleFailure> {
    if percent > AUTODELETE_PERCENT_MAX {
        return Err(ScheduleError::Autodelete(percent).into());
    }
    let set = Schedules {
        autodelete_percent: percent,
        ..schedules(fs).await?
    };
    store(fs, &set).await?;
    Ok(set)
}

async fn store(fs: &Fs, set: &Schedules) -> Result<(), ScheduleFailure> {
    let record = Record {
        version: VERSION,
        since_seconds: set.since_seconds,
        schedules: text(&set.all),
        autodelete_percent: set.autodelete_percent,
    };
    let encoded =
        serde_json::to_vec(&record).map_err(|error| ScheduleFailure::Damaged(error.to_string()))?;
    let hidden = fs.make_hidden_folder().await?;
    fs.set_xattr(&WHO, hidden, KEY, &encoded, XattrMode::Any)
        .await?;
    Ok(())
}

/// Deletes what clones left, takes what is due, then deletes what is too much: also where the pool is full, and nothing can be taken. A snapshot that
/// came due while the volume was not served is taken now, the last one of each schedule.
pub async fn keep(fs: &Fs, now: Timestamp) -> Result<Done, ScheduleFailure> {
    let schedules = schedules(fs).await?;
    let mut done = Done::default();
    match remove_leftovers(fs).await {
        Ok(deleted) => done.left_by_clones = deleted,
        Err(error) => done.failed.push(("of a clone".to_owned(), error)),
    }
    for schedule in &schedules.all {
        if let Some(name) = due(schedule, &of(fs, schedule), schedules.since_seconds, now) {
            match fs
                .take_snapshot(name.as_bytes(), schedule.name.as_bytes())
                .await
            {
                Ok(_) => done.taken.push(name),
                // Somebody else named one so.
                Err(SnapshotFailure::Refused(SnapshotError::Exists)) => {}
                Err(error) => done.failed.push((name, error)),
            }
        }
        for name in superfluous(&of(fs, schedule), schedule.keep) {
            let deleted = fs.delete_snapshot(&name).await;
            let name = String::from_utf8_lossy(&name).into_owned();
            match deleted {
                Ok(()) => done.deleted.push(name),
                // Locked or deleted meanwhile.
                Err(SnapshotFailure::Refused(_)) => {}
                Err(error) => done.failed.push((name, error)),
            }
        }
    }
    if is_short_of_space(fs, schedules.autodelete_percent)
        && let Some(name) = oldest(&fs.snapshots())
    {
        let deleted = fs.delete_snapshot(&name).await;
        let name = String::from_utf8_lossy(&name).into_owned();
        match deleted {
            Ok(()) => done.deleted_for_space = Some(name),
            // Locked or deleted meanwhile.
            Err(SnapshotFailure::Refused(_)) => {}
            Err(error) => done.failed.push((name, error)),
        }
    }
    Ok(done)
}

/// Whether less than so many percent of the pool are free, or will be. What deleted snapshots held comes back after a while: it
/// is freed, and then collected. Nothing more goes before that.
fn is_short_of_space(fs: &Fs, percent: u8) -> bool {
    if percent == 0 || fs.snapshot_freeing().snapshots > 0 {
        return false;
    }
    let (total_bytes, free_bytes) = fs.pool_room();
    let free_bytes = free_bytes.saturating_add(fs.gc_backlog().bytes());
    u128::from(free_bytes) * 100 < u128::from(total_bytes) * u128::from(percent)
}

/// The oldest that may be deleted for want of space: not a locked one, one that a clone began from, or one that is there for
/// something that is being done.
fn oldest(all: &[Snapshot]) -> Option<Vec<u8>> {
    let mut may_go = all.iter().filter(|snapshot| {
        !snapshot.is_locked && snapshot.clones.is_empty() && !snapshot.schedule.starts_with(b".")
    });
    may_go.next().map(|snapshot| snapshot.name.to_vec())
}

/// The snapshots that a schedule took, the oldest first.
fn of(fs: &Fs, schedule: &Schedule) -> Vec<Snapshot> {
    let mut all = fs.snapshots();
    all.retain(|snapshot| snapshot.schedule == schedule.name.as_bytes());
    all
}

/// The name of the snapshot that is due, if one is: the last time that came was after the newest of the schedule, and after it
/// was set.
fn due(
    schedule: &Schedule,
    of_schedule: &[Snapshot],
    since_seconds: i64,
    now: Timestamp,
) -> Option<String> {
    let newest = of_schedule.last().map(|newest| newest.taken.seconds);
    let since = newest.unwrap_or(i64::MIN).max(since_seconds);
    let due = schedule.last_due_seconds(now).filter(|due| *due > since)?;
    schedule.snapshot_name(due)
}

/// The oldest that are too many. Locked ones stay, and do not count.
fn superfluous(of_schedule: &[Snapshot], keep: u32) -> Vec<Vec<u8>> {
    let unlocked = of_schedule.iter().filter(|snapshot| !snapshot.is_locked);
    let mut names: Vec<Vec<u8>> = unlocked.map(|snapshot| snapshot.name.to_vec()).collect();
    names.truncate(names.len().saturating_sub(keep as usize));
    names
}

#[cfg(test)]
mod tests {
    use cairn_base::Generation;
    use cairn_fs::VolumeCounts;

    use super::*;

    fn snapshot(name: &str, taken_seconds: i64, is_locked: bool) -> Snapshot {
        Snapshot {
            clones: Vec::new(),
            generation: Generation::FIRST,
            name: name.to_owned().into(),
            taken: Timestamp::new(taken_seconds, 7),
            is_locked,
            schedule: "hourly".into(),
            counts: VolumeCounts::default(),
        }
    }

    #[test]
    fn one_is_due_once() {
        const HOUR: i64 = 3600;
        let schedule: Schedule = "hourly 3".parse().unwrap();
        type Row<'a> = (&'a str, Option<i64>, i64, i64, Option<&'a str>);
        let rows: [Row; 7] = [
            ("just set", None, 10 * HOUR + 5, 10 * HOUR + 6, None),
            (
                "its first hour",
                None,
                10 * HOUR + 5,
                11 * HOUR,
                Some("hourly.1970-01-01_1100"),
            ),
            ("taken in time", Some(11 * HOUR), 0, 11 * HOUR + 1, None),
            ("taken late", Some(11 * HOUR + 4), 0, 12 * HOUR - 1, None),
            (
                "the next",
                Some(11 * HOUR + 4),
                0,
                12 * HOUR + 2,
                Some("hourly.1970-01-01_1200"),
            ),
            (
                "stopped for long",
                Some(HOUR),
                0,
                30 * HOUR + 9,
                Some("hourly.1970-01-02_0600"),
            ),
            ("the clock went back", Some(20 * HOUR), 0, 12 * HOUR, None),
        ];
        for (what, newest, since, now, want) in rows {
            let of_schedule: Vec<Snapshot> = newest
                .iter()
                .map(|at| snapshot("newest", *at, false))
                .collect();
            let got = due(&schedule, &of_schedule, since, Timestamp::new(now, 0));
            assert_eq!(got.as_deref(), want, "{what}");
        }
    }

    #[test]
    fn the_oldest_that_nobody_needs_goes_for_want_of_space() {
        let of_clone = Snapshot {
            clones: vec![cairn_base::VolumeId(7)],
            ..snapshot("b", 2, false)
        };
        let under_way = Snapshot {
            schedule: ".clone.1".into(),
            ..snapshot("c", 3, false)
        };
        let by_hand = Snapshot {
            schedule: "".into(),
            ..snapshot("d", 4, false)
        };
        let all = [
            snapshot("a", 1, true),
            of_clone,
            under_way,
            by_hand,
            snapshot("e", 5, false),
        ];
        assert_eq!(oldest(&all), Some(b"d".to_vec()));
        assert_eq!(oldest(&all[..3]), None);
        assert_eq!(oldest(&[]), None);
    }

    #[test]
    fn the_oldest_go_but_locked_ones_stay() {
        let all = [
            snapshot("a", 1, true),
            snapshot("b", 2, false),
            snapshot("c", 3, false),
            snapshot("d", 4, true),
            snapshot("e", 5, false),
        ];
        let rows: [(u32, &[&str]); 4] = [(1, &["b", "c"]), (2, &["b"]), (3, &[]), (1000, &[])];
        for (keep, want) in rows {
            let got = superfluous(&all, keep);
            let want: Vec<Vec<u8>> = want.iter().map(|name| name.as_bytes().to_vec()).collect();
            assert_eq!(got, want, "{keep}");
        }
    }
}
