//! When the cluster's own work may go on, and how often a scrub begins.
//!
//! Owns: the words for windows of the week and for the time between scrubs; when a window is open; when the next scrub begins.
//! Must not know: which work is done in a window.
//!
//! All times are UTC: the nodes of a cluster may be set to different zones, and a window must not move with summer time.

use std::fmt;
use std::str::FromStr;

use cairn_base::Timestamp;
use cairn_base::words::{WordError, serde_as_word};
use serde::{Deserialize, Serialize};

use super::hours;

/// Most spans of one window.
pub const WINDOW_SPANS_MAX: usize = 16;
/// The longest time between the beginnings of two scrubs: five years.
pub const SCRUB_EVERY_HOURS_MAX: u32 = 5 * 366 * 24;

const MINUTE_SECONDS: i64 = 60;
const HOUR_SECONDS: i64 = 3600;
const DAY_MINUTES: u16 = 24 * 60;
const WEEK_MINUTES: u16 = 7 * DAY_MINUTES;
/// 1970-01-01 was a Thursday, and weeks begin with Monday here.
const EPOCH_MINUTE_OF_WEEK: i64 = 3 * DAY_MINUTES as i64;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAILY: &str = "daily";

/// Days of the week: bit 0 is Monday.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Days(u8);

impl Days {
    const ALL: Self = Self(0x7f);

    /// One day, "mon-fri", or "daily".
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text == DAILY {
            return Some(Self::ALL);
        }
        let day = |name: &str| DAYS.iter().position(|day| *day == name);
        let Some((first, last)) = text.split_once('-') else {
            return day(&text).map(|day| Self(1 << day));
        };
        let (first, last) = (day(first)?, day(last)?);
        let count = (last + DAYS.len() - first) % DAYS.len() + 1;
        let days = (first..first + count).map(|day| 1 << (day % DAYS.len()));
        Some(Self(days.fold(0, |all, day| all | day)))
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// 0 is Monday.
    fn indexes(self) -> impl Iterator<Item = u16> {
        (0..7).filter(move |day| self.0 & (1 << day) != 0)
    }
}

/// A time of day on some days. It belongs to the day on which it begins, and may end on the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    days: Days,
    /// Since midnight; below a day.
    from_minute: u16,
    /// 1 up to a day.
    len_minutes: u16,
}

impl Span {
    /// The minutes of the week at which it begins.
    fn starts(self) -> impl Iterator<Item = u16> {
        let days = self.days.indexes();
        days.map(move |day| day * DAY_MINUTES + self.from_minute)
    }

    /// For how many minutes it is still open; `None`: it is not.
    fn left_minutes(self, minute: u16) -> Option<u16> {
        let passed = self.starts().map(|start| minutes_from(start, minute));
        let left = passed.filter_map(|passed| self.len_minutes.checked_sub(passed));
        left.filter(|left| *left > 0).max()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days == Days::ALL {
            f.write_str(DAILY)?;
        } else {
            let names = self.days.indexes().map(|day| DAYS[usize::from(day)]);
            f.write_str(&names.collect::<Vec<_>>().join(","))?;
        }
        // Midnight at the end is that of the same night.
        let to = match self.from_minute + self.len_minutes {
            to if to > DAY_MINUTES => to - DAY_MINUTES,
            to => to,
        };
        let (from, to) = (
            (self.from_minute / 60, self.from_minute % 60),
            (to / 60, to % 60),
        );
        write!(f, ":{:02}:{:02}-{:02}:{:02}", from.0, from.1, to.0, to.1)
    }
}

/// From one minute of the week to the next time that it is another one.
fn minutes_from(from: u16, to: u16) -> u16 {
    (to + WEEK_MINUTES - from) % WEEK_MINUTES
}

fn minute_of_week(at: Timestamp) -> u16 {
    let minutes = at.seconds.div_euclid(MINUTE_SECONDS) + EPOCH_MINUTE_OF_WEEK;
    // Below a week, which fits.
    minutes.rem_euclid(i64::from(WEEK_MINUTES)) as u16
}

/// The beginning of the minute that is so many minutes after that of `at`.
fn minutes_after(at: Timestamp, minutes: u16) -> Timestamp {
    let begun = at.seconds - at.seconds.rem_euclid(MINUTE_SECONDS);
    let later = i64::from(minutes) * MINUTE_SECONDS;
    Timestamp::new(begun.saturating_add(later), 0)
}

/// Times of the week, in UTC, to the minute: `sat:22:00-06:00`, `daily:01:00-05:00`, `mon-fri:02:00-04:00,sat,sun:00:00-24:00`.
///
/// A part that ends at or before the time at which it begins ends on the next day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow(Vec<Span>);

impl MaintenanceWindow {
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.left_minutes(minute_of_week(at)).is_some()
    }

    /// When it opens: `at` itself if it is open then.
    pub fn next_open(&self, at: Timestamp) -> Timestamp {
        if self.is_open(at) {
            return at;
        }
        let minute = minute_of_week(at);
        let starts = self.0.iter().flat_map(|span| span.starts());
        let wait = starts.map(|start| minutes_from(minute, start)).min();
        minutes_after(at, wait.unwrap_or(0))
    }

    /// When it closes, if it is open at `at`; `None` if it is not, or never closes.
    pub fn closes(&self, at: Timestamp) -> Option<Timestamp> {
        let minute = minute_of_week(at);
        let mut open_minutes = 0;
        // Another span may begin before this one ends.
        while let Some(left) = self.left_minutes((minute + open_minutes) % WEEK_MINUTES) {
            open_minutes += left;
            if open_minutes >= WEEK_MINUTES {
                return None;
            }
        }
        (open_minutes > 0).then(|| minutes_after(at, open_minutes))
    }

    fn left_minutes(&self, minute: u16) -> Option<u16> {
        let left = self.0.iter().filter_map(|span| span.left_minutes(minute));
        left.max()
    }
}

impl fmt::Display for MaintenanceWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spans: Vec<String> = self.0.iter().map(Span::to_string).collect();
        f.pad(&spans.join(","))
    }
}

/// Minutes since midnight, up to 24:00.
fn minute_of_day(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| {
        let is_plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| digits.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minute = hours * 60 + minutes;
    (minutes < 60 && minute <= DAY_MINUTES).then_some(minute)
}

impl FromStr for MaintenanceWindow {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let refuse = |wanted| WordError::new(text, "a maintenance window", wanted);
        let form = "days and times of 24 hours in UTC, such as sat:22:00-06:00, daily:01:00-05:00 or \
             mon-fri:02:00-04:00,sat,sun:00:00-24:00";
        let mut spans = Vec::new();
        let mut days = Days::default();
        for part in text.split(',') {
            let (day, times) = match part.trim().split_once(':') {
                Some((day, times)) => (day, Some(times)),
                None => (part.trim(), None),
            };
            days = days.with(Days::parse(day).ok_or_else(|| refuse(form))?);
            let Some(times) = times else { continue };
            let (from, to) = times.split_once('-').ok_or_else(|| refuse(form))?;
            let minutes = minute_of_day(from).zip(minute_of_day(to));
            let (from_minute, to) = minutes.ok_or_else(|| refuse(form))?;
            if from_minute == DAY_MINUTES || from_minute == to {
                return Err(refuse(
                    "another time at which it ends than the one at which it begins; a whole day is sat:00:00-24:00",
                ));
            }
            let to = if to > from_minute {
                to
            } else {
                to + DAY_MINUTES
            };
            spans.push(Span {
                days,
                from_minute,
                len_minutes: to - from_minute,
            });
            days = Days::default();
        }
        if !days.is_none() {
            return Err(refuse(
                "times behind the last day, such as sat,sun:22:00-06:00",
            ));
        }
        if spans.len() > WINDOW_SPANS_MAX {
            return Err(refuse("at most 16 times"));
        }
        Ok(Self(spans))
    }
}

serde_as_word!(MaintenanceWindow);

/// How long after the beginning of a scrub the next one is due: `12h`, `30d`. 1 hour up to 5 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScrubEvery {
    hours: u32,
}

impl ScrubEvery {
    pub fn seconds(self) -> i64 {
        i64::from(self.hours) * HOUR_SECONDS
    }
}

impl fmt::Display for ScrubEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hours::written(self.hours))
    }
}

impl FromStr for ScrubEvery {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wanted = "hours or days, such as 12h or 30d, 1h up to 1830d";
        match hours::parse(text) {
            Some(hours @ 1..=SCRUB_EVERY_HOURS_MAX) => Ok(Self { hours }),
            _ => Err(WordError::new(text, "a time between scrubs", wanted)),
        }
    }
}

serde_as_word!(ScrubEvery);

/// When a pool's own work is done that can wait. Nothing is set: whenever it comes, and no scrub begins by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_every: Option<ScrubEvery>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<MaintenanceWindow>,
    /// Data does not move to emptier disks until it is told to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spread_paused: bool,
}

impl Maintenance {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether what keeps to the window may go on.
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_open(at))
    }

    /// When the next scrub begins by itself: `now` if it is due. `None`: none does.
    ///
    /// It counts from when the last one began, `None` if none ever did, so that scrubs of one window stay in it however long
    /// they take. A scrub that is due while the window is closed begins when it opens.
    pub fn next_scrub(&self, last_begun: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let every = self.scrub_every?;
        let due = last_begun.map_or(now, |begun| {
            Timestamp::new(begun.seconds.saturating_add(every.seconds()), begun.nanos)
        });
        let due = due.max(now);
        let window = self.window.as_ref();
        Some(window.map_or(due, |window| window.next_open(due)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-28, a Saturday, 00:00 UTC.
    const SATURDAY: i64 = 1_795_824_000;

    /// Days after that Saturday, and a time.
    fn at(day: i64, hour: i64, minute: i64) -> Timestamp {
        let seconds = SATURDAY + day * 86_400 + hour * 3600 + minute * 60;
        Timestamp::new(seconds, 0)
    }

    fn window(text: &str) -> MaintenanceWindow {
        text.parse().unwrap()
    }

    #[test]
    fn windows_are_read_or_refused() {
        let form = "days and times";
        let ends = "another time at which it ends";
        let cases: &[(&str, Result<&str, &str>)] = &[
            ("sat:22:00-06:00", Ok("sat:22:00-06:00")),
            ("SAT:22:00-06:00", Ok("sat:22:00-06:00")),
            ("daily:01:00-05:00", Ok("daily:01:00-05:00")),
            ("mon-sun:01:00-05:00", Ok("daily:01:00-05:00")),
            ("sun,sat:01:00-05:00", Ok("sat,sun:01:00-05:00")),
            ("sat-mon:01:00-05:00", Ok("mon,sat,sun:01:00-05:00")),
            (
                "mon:01:00-05:00, sat:00:00-24:00",
                Ok("mon:01:00-05:00,sat:00:00-24:00"),
            ),
            ("sat:22:00-00:00", Ok("sat:22:00-24:00")),
            ("sat:00:00-00:01", Ok("sat:00:00-00:01")),
            ("sat:23:59-23:58", Ok("sat:23:59-23:58")),
            ("", Err(form)),
            ("sat", Err("times behind the last day")),
            ("mon:01:00-02:00,sat", Err("times behind the last day")),
            ("saturday:01:00-02:00", Err(form)),
            ("22:00-06:00", Err(form)),
            ("sat:22-06", Err(form)),
            ("sat:22:00", Err(form)),
            ("sat:1:00-2:00", Err(form)),
            ("sat:22:60-23:00", Err(form)),
            ("sat:22:00-24:01", Err(form)),
            ("sat:+1:00-02:00", Err(form)),
            ("sat:22:00-22:00", Err(ends)),
            ("sat:24:00-01:00", Err(ends)),
            ("sat:22:00-06:00,", Err(form)),
        ];
        for (text, want) in cases {
            let read = text.parse::<MaintenanceWindow>();
            match want {
                Ok(shown) => assert_eq!(read.unwrap().to_string(), *shown, "{text}"),
                Err(why) => {
                    let error = read.unwrap_err().to_string();
                    assert!(error.contains(why), "{text}: {error}");
                }
            }
        }
        let spans = vec!["mon:01:00-02:00"; WINDOW_SPANS_MAX];
        assert!(spans.join(",").parse::<MaintenanceWindow>().is_ok());
        let spans = vec!["mon:01:00-02:00"; WINDOW_SPANS_MAX + 1];
        assert!(spans.join(",").parse::<MaintenanceWindow>().is_err());
    }

    #[test]
    fn a_window_across_midnight_is_of_the_day_on_which_it_begins() {
        let night = window("sat:22:00-06:00");
        let cases = [
            ("before", at(0, 21, 59), false),
            ("begins", at(0, 22, 0), true),
            ("midnight", at(1, 0, 0), true),
            ("last minute", at(1, 5, 59), true),
            ("over", at(1, 6, 0), false),
            ("the night before", at(0, 3, 0), false),
            ("the next week", at(8, 3, 0), true),
        ];
        for (name, at, want) in cases {
            assert_eq!(night.is_open(at), want, "{name}");
        }
        assert_eq!(night.next_open(at(0, 3, 0)), at(0, 22, 0));
        assert_eq!(night.next_open(at(1, 6, 0)), at(7, 22, 0));
        assert_eq!(night.next_open(at(1, 5, 30)), at(1, 5, 30));
        assert_eq!(night.closes(at(0, 23, 15)), Some(at(1, 6, 0)));
        assert_eq!(night.closes(at(1, 6, 0)), None);
        // Also where the week ends.
        assert_eq!(
            window("sun:22:00-06:00").closes(at(1, 23, 0)),
            Some(at(2, 6, 0))
        );
    }

    #[test]
    fn parts_that_touch_are_one() {
        let both = window("sat:22:00-24:00,sun:00:00-03:00");
        assert_eq!(both.closes(at(0, 22, 5)), Some(at(1, 3, 0)));
        assert_eq!(window("daily:00:00-24:00").closes(at(0, 5, 0)), None);
        assert_eq!(
            window("daily:06:00-12:00,daily:12:00-06:00").closes(at(0, 5, 0)),
            None
        );
    }

    #[test]
    fn times_between_scrubs_are_read_or_refused() {
        let cases = [
            ("1h", Some("1h")),
            ("48h", Some("2d")),
            ("30d", Some("30d")),
            ("1830d", Some("1830d")),
            ("1831d", None),
            ("0d", None),
            ("30", None),
            ("-1d", None),
            ("99999999999d", None),
            ("monthly", None),
        ];
        for (text, want) in cases {
            let read = text.parse::<ScrubEvery>().ok();
            assert_eq!(
                read.map(|every| every.to_string()).as_deref(),
                want,
                "{text}"
            );
        }
    }

    #[test]
    fn the_next_scrub_waits_for_its_time_and_its_window() {
        let plan = |every: &str, window: &str| Maintenance {
            scrub_every: (!every.is_empty()).then(|| every.parse().unwrap()),
            window: (!window.is_empty()).then(|| window.parse().unwrap()),
            spread_paused: false,
        };
        let night = "sat:22:00-06:00";
        let now = at(0, 12, 0);
        let cases = [
            ("no timer", plan("", night), None, None),
            ("the first", plan("30d", ""), None, Some(now)),
            (
                "the first in a window",
                plan("30d", night),
                None,
                Some(at(0, 22, 0)),
            ),
            (
                "not due",
                plan("7d", ""),
                Some(at(-1, 3, 0)),
                Some(at(6, 3, 0)),
            ),
            ("long due", plan("7d", ""), Some(at(-30, 3, 0)), Some(now)),
            (
                "due after the window",
                plan("7d", night),
                Some(at(-6, 6, 0)),
                Some(at(7, 22, 0)),
            ),
            (
                "due in the window",
                plan("7d", night),
                Some(at(-7, 22, 0)),
                Some(at(0, 22, 0)),
            ),
            // A clock that was set back.
            (
                "begun in the future",
                plan("1d", ""),
                Some(at(5, 0, 0)),
                Some(at(6, 0, 0)),
            ),
        ];
        for (name, plan, last, want) in cases {
            assert_eq!(plan.next_scrub(last, now), want, "{name}");
        }
    }

    fn any_window() -> impl Strategy<Value = MaintenanceWindow> {
        let span = (1u8..128, 0..DAY_MINUTES, 1..=DAY_MINUTES).prop_filter_map(
            "a whole day begins at midnight",
            |(days, from_minute, len_minutes)| {
                let is_written = len_minutes < DAY_MINUTES || from_minute == 0;
                is_written.then_some(Span {
                    days: Days(days),
                    from_minute,
                    len_minutes,
                })
            },
        );
        proptest::collection::vec(span, 1..5).prop_map(MaintenanceWindow)
    }

    /// A day by its number since 1970, and a minute of it, as a calendar has them.
    fn is_open_by_hand(window: &MaintenanceWindow, at: Timestamp) -> bool {
        let minute = at.seconds.div_euclid(60);
        window.0.iter().any(|span| {
            // Which days' parts may be open now: today's and yesterday's.
            [0, 1].into_iter().any(|days_ago| {
                let day = minute.div_euclid(1440) - days_ago;
                let weekday = (day + 3).rem_euclid(7);
                let begins = day * 1440 + i64::from(span.from_minute);
                let ends = begins + i64::from(span.len_minutes);
                (span.days.0 >> weekday) & 1 == 1 && (begins..ends).contains(&minute)
            })
        })
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(window in any_window()) {
            prop_assert_eq!(window.to_string().parse::<MaintenanceWindow>(), Ok(window));
        }

        #[test]
        fn it_is_open_as_the_calendar_says(window in any_window(), seconds in -4_000_000_000i64..4_000_000_000) {
            let at = Timestamp::new(seconds, 5);
            prop_assert_eq!(window.is_open(at), is_open_by_hand(&window, at));
        }

        /// Closed until then, open from then on; and the same of the end.
        #[test]
        fn it_opens_and_closes_when_it_says(window in any_window(), seconds in 0i64..4_000_000_000) {
            let at = Timestamp::new(seconds, 5);
            let opens = window.next_open(at);
            prop_assert!(opens >= at && window.is_open(opens));
            let mut minute = seconds - seconds.rem_euclid(60);
            while minute < opens.seconds - opens.seconds.rem_euclid(60) {
                prop_assert!(!window.is_open(Timestamp::new(minute, 0)));
                minute += 60;
            }
            if let Some(closes) = window.closes(opens) {
                prop_assert!(!window.is_open(closes));
                while minute < closes.seconds {
                    prop_assert!(window.is_open(Timestamp::new(minute, 0)));
                    minute += 60;
                }
            }
        }

        #[test]
        fn a_scrub_begins_when_it_is_due_and_the_window_is_open(
            window in any_window(),
            hours in 1u32..10_000,
            last in proptest::option::of(0i64..4_000_000_000),
            now in 0i64..4_000_000_000,
        ) {
            let every = ScrubEvery { hours };
            let plan = Maintenance { scrub_every: Some(every), window: Some(window), spread_paused: true };
            let now = Timestamp::new(now, 0);
            let last = last.map(|last| Timestamp::new(last, 0));
            let next = plan.next_scrub(last, now).unwrap();
            prop_assert!(next >= now && plan.is_open(next));
            if let Some(last) = last {
                prop_assert!(next.seconds >= last.seconds + every.seconds());
            }
            // Asked again then, it is now.
            prop_assert_eq!(plan.next_scrub(last, next), Some(next));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9:,-]{0,40}") {
            if let Ok(window) = text.parse::<MaintenanceWindow>() {
                prop_assert_eq!(window.to_string().parse::<MaintenanceWindow>(), Ok(window));
            }
        }
    }
}
