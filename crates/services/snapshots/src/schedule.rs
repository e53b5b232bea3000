//! What a schedule says.
//!
//! `hourly 24, daily 7, six-hourly 10 (0 */6 * * *)`: a name, how many snapshots are kept, and when in the form of cron, in
//! UTC. Four names need no such form.

use std::fmt;
use std::str::FromStr;

use cairn_base::Timestamp;
use chrono::{DateTime, Utc};
use croner::Cron;

/// Schedules of one volume.
pub const SCHEDULE_COUNT_MAX: usize = 16;
/// Longest name of a schedule, in bytes. A time follows it in the names of its snapshots.
pub const SCHEDULE_NAME_LEN_BYTES_MAX: usize = 40;
/// Most snapshots that one schedule keeps.
pub const KEEP_MAX: u32 = 1000;

const KNOWN: [(&str, &str); 4] = [
    ("hourly", "0 * * * *"),
    ("daily", "0 0 * * *"),
    ("weekly", "0 0 * * 0"),
    ("monthly", "0 0 1 * *"),
];

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error(
        "{0:?} is not a schedule: write a name, the number of snapshots to keep, and a cron expression, as in \
         `hourly 24`, `daily 7` or `six-hourly 10 (0 */6 * * *)`"
    )]
    Form(String),
    #[error(
        "{0:?} is not a schedule name: 1 to {SCHEDULE_NAME_LEN_BYTES_MAX} letters, digits and -, beginning with a letter"
    )]
    Name(String),
    #[error(
        "{0} has no time: only hourly, daily, weekly and monthly imply one; write it as in `{0} 10 (0 */6 * * *)`"
    )]
    NoTime(String),
    #[error("schedule {name}: {count} is not a number of snapshots to keep: 1 to {KEEP_MAX}")]
    Keep { name: String, count: String },
    #[error("schedule {name}: {cron:?} is not a cron expression: {why}")]
    Cron {
        name: String,
        cron: String,
        why: String,
    },
    #[error("there are two schedules {0}")]
    Twice(String),
    #[error("a volume has at most {SCHEDULE_COUNT_MAX} schedules")]
    TooMany,
    #[error(
        "snapshots are deleted when less than 1 to {max} percent of the pool is free, or never (0), not at {0}",
        max = crate::AUTODELETE_PERCENT_MAX
    )]
    Autodelete(u8),
}

/// One schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub name: String,
    /// So many of its snapshots stay.
    pub keep: u32,
    /// As it was written; `None` for a known name.
    cron: Option<String>,
    when: Cron,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.keep)?;
        match &self.cron {
            Some(cron) => write!(f, " ({cron})"),
            None => Ok(()),
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        let form = || ScheduleError::Form(text.to_owned());
        let (head, cron) = match text.split_once('(') {
            Some((head, rest)) => {
                let cron = rest.strip_suffix(')').ok_or_else(form)?;
                (head, Some(cron.trim()))
            }
            None => (text, None),
        };
        let mut words = head.split_whitespace();
        let (Some(name), Some(count), None) = (words.next(), words.next(), words.next()) else {
            return Err(form());
        };
        check_name(name)?;
        let keep = count
            .parse()
            .ok()
            .filter(|keep| (1..=KEEP_MAX).contains(keep));
        let keep = keep.ok_or_else(|| ScheduleError::Keep {
            name: name.to_owned(),
            count: count.to_owned(),
        })?;
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let pattern = match (cron, known) {
            (Some(cron), _) => cron,
            (None, Some((_, pattern))) => pattern,
            (None, None) => return Err(ScheduleError::NoTime(name.to_owned())),
        };
        let bad = |why: String| ScheduleError::Cron {
            name: name.to_owned(),
            cron: pattern.to_owned(),
            why,
        };
        // Seconds, and words such as @hourly, are not of cron(8).
        if pattern.split_whitespace().count() != 5 {
            return Err(bad(
                "five fields are wanted: minute, hour, day, month, day of the week".to_owned(),
            ));
        }
        let when = Cron::from_str(pattern).map_err(|error| bad(error.to_string()))?;
        let schedule = Self {
            name: name.to_owned(),
            keep,
            cron: cron.map(str::to_owned),
            when,
        };
        let from = DateTime::UNIX_EPOCH;
        match schedule.when.find_next_occurrence(&from, true) {
            Ok(_) => Ok(schedule),
            Err(_) => Err(bad("that time never comes".to_owned())),
        }
    }
}

impl Schedule {
    /// The last time up to `now` at which a snapshot was due, in seconds since 1970.
    pub fn last_due_seconds(&self, now: Timestamp) -> Option<i64> {
        let now: DateTime<Utc> = DateTime::from_timestamp(now.seconds, 0)?;
        let due = self.when.find_previous_occurrence(&now, true).ok()?;
        Some(due.timestamp())
    }

    /// The next time after `now` at which one is due, in seconds since 1970.
    pub fn next_due_seconds(&self, now: Timestamp) -> Option<i64> {
        let now: DateTime<Utc> = DateTime::from_timestamp(now.seconds, 0)?;
        let due = self.when.find_next_occurrence(&now, false).ok()?;
        Some(due.timestamp())
    }

    /// When snapshots are due, in the form of cron.
    pub fn cron(&self) -> &str {
        self.when.as_str()
    }

    /// The name of the snapshot that was due then: the schedule's, and the time in UTC.
    pub fn snapshot_name(&self, due_seconds: i64) -> Option<String> {
        let due: DateTime<Utc> = DateTime::from_timestamp(due_seconds, 0)?;
        Some(format!("{}.{}", self.name, due.format("%Y-%m-%d_%H%M")))
    }
}

fn check_name(name: &str) -> Result<(), ScheduleError> {
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if begins && name.len() <= SCHEDULE_NAME_LEN_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ScheduleError::Name(name.to_owned()))
}

/// Reads schedules between commas; none of `none` and of nothing.
pub fn parse(text: &str) -> Result<Vec<Schedule>, ScheduleError> {
    if matches!(text.trim(), "" | "none") {
        return Ok(Vec::new());
    }
    let mut depth = 0;
    // Those within parentheses are of cron.
    let parts = text.split(|letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let mut schedules: Vec<Schedule> = Vec::new();
    for part in parts {
        let schedule: Schedule = part.parse()?;
        if schedules.iter().any(|other| other.name == schedule.name) {
            return Err(ScheduleError::Twice(schedule.name));
        }
        if schedules.len() == SCHEDULE_COUNT_MAX {
            return Err(ScheduleError::TooMany);
        }
        schedules.push(schedule);
    }
    Ok(schedules)
}

/// What [`parse`] reads.
pub fn text(schedules: &[Schedule]) -> String {
    let all: Vec<String> = schedules.iter().map(Schedule::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-25 22:06:30 UTC, a Wednesday.
    const NOW: Timestamp = Timestamp::new(1_795_644_390, 5);

    #[test]
    fn schedules_are_read_and_written() {
        for (given, want) in [
            ("", ""),
            ("none", ""),
            (
                "hourly 24, daily 7, weekly 4",
                "hourly 24, daily 7, weekly 4",
            ),
            (" monthly   12 ", "monthly 12"),
            ("six-hourly 10 (0 */6 * * *)", "six-hourly 10 (0 */6 * * *)"),
            (
                "work 5 ( 30 8,12,17 * * MON-FRI ),hourly 2",
                "work 5 (30 8,12,17 * * MON-FRI), hourly 2",
            ),
            // A known name may come at another time.
            ("daily 7 (30 2 * * *)", "daily 7 (30 2 * * *)"),
        ] {
            let schedules = parse(given).unwrap();
            assert_eq!(text(&schedules), want, "{given:?}");
            assert_eq!(text(&parse(want).unwrap()), want);
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        let long = format!("{} 1 (0 0 * * *)", "a".repeat(41));
        let many: Vec<String> = (0..17).map(|at| format!("s{at} 1 (0 0 * * *)")).collect();
        for (given, want) in [
            ("hourly", "is not a schedule"),
            ("hourly 24 7", "is not a schedule"),
            ("hourly 24,,daily 7", "is not a schedule"),
            ("x 1 (0 0 * * *", "is not a schedule"),
            ("hourly 0", "1 to 1000"),
            ("hourly many", "1 to 1000"),
            ("hourly -1", "1 to 1000"),
            ("hourly 1001", "1 to 1000"),
            ("often 5", "has no time"),
            ("a/b 5 (0 0 * * *)", "not a schedule name"),
            ("1st 5 (0 0 * * *)", "not a schedule name"),
            (&long, "not a schedule name"),
            ("x 5 (0 0 * *)", "five fields"),
            ("x 5 (0 0 0 * * *)", "five fields"),
            ("x 5 (@hourly)", "five fields"),
            ("x 5 (61 0 * * *)", "cron expression"),
            ("x 5 (0 0 30 2 *)", "never comes"),
            ("daily 1, daily 2", "two schedules daily"),
            (&many.join(","), "at most 16"),
        ] {
            let error = parse(given).map(|found| text(&found)).unwrap_err();
            assert!(error.to_string().contains(want), "{given:?}: {error}");
        }
    }

    proptest! {
        /// Whatever is written: it is read or refused, and what is read is written so that it is read again.
        #[test]
        fn any_text_is_read_or_refused(
            text in "([a-z-]{1,6} [0-9]{1,4}( \\([0-9*/,LW# -]{0,12}\\))?(, ?)?){0,4}|.{0,40}",
            now in -1i64 << 40..1i64 << 40,
        ) {
            if let Ok(schedules) = parse(&text) {
                let written = super::text(&schedules);
                prop_assert_eq!(super::text(&parse(&written).unwrap()), written);
                for schedule in schedules {
                    let due = schedule.last_due_seconds(Timestamp::new(now, 0));
                    prop_assert!(due.is_none_or(|due| due <= now));
                }
            }
        }
    }

    #[test]
    fn a_snapshot_is_due_at_the_last_time_that_came() {
        for (schedule, want) in [
            ("hourly 1", "hourly.2026-11-25_2200"),
            ("daily 1", "daily.2026-11-25_0000"),
            ("weekly 1", "weekly.2026-11-22_0000"),
            ("monthly 1", "monthly.2026-11-01_0000"),
            ("x 1 (7 22 * * *)", "x.2026-11-24_2207"),
            // The minute that begins now.
            ("y 1 (6 22 * * *)", "y.2026-11-25_2206"),
            ("z 1 (0 0 29 2 *)", "z.2024-02-29_0000"),
        ] {
            let schedule: Schedule = schedule.parse().unwrap();
            let due = schedule.last_due_seconds(NOW).unwrap();
            assert_eq!(schedule.snapshot_name(due).unwrap(), want);
        }
    }
}
