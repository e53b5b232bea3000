//! Decides which conditions are new, and when to report.
//!
//! Owns: a condition is reported once when it begins and once when it ends, over restarts; nothing is reported too
//! often. A state machine: observations in, events out. Must not know: the list of conditions, where events are kept.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use cairn_admin::events::{
    EVENT_ACTION_CHARS_MAX, EVENT_MESSAGE_CHARS_MAX, EVENT_SUBJECT_CHARS_MAX, EventEntry,
    EventKind, EventStage, Severity,
};
use cairn_admin::warnings::WarningKind;

use super::seen::{
    Condition, Happened, Observation, Rise, conditions, ended, happened, risen, rises,
};

/// A condition has ended when it was not seen for so long: an intermittent condition counts as one.
const OVER_AFTER: Duration = Duration::from_secs(5);
/// A volume that is being reopened or deleted is not reported, nor is a node that has just begun.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// A growth is reported at once, and then at this interval.
const RISE_EVERY: Duration = Duration::from_secs(60);
/// Events of one observation; the rest is reported at the next one.
const EVENTS_OF_A_LOOK_MAX: usize = 64;
/// Conditions that are tracked at a time.
const OPEN_MAX: usize = 4096;

/// Identifies a condition: its kind, its subject, and for an alert its warning.
type Key = (EventKind, String, Option<WarningKind>);

/// A condition that was reported, or waits to be.
struct Open {
    severity: Severity,
    message: String,
    since: Duration,
    seen: Duration,
    is_told: bool,
}

struct Rising {
    by: u64,
    told: Option<Duration>,
}

#[derive(Default)]
pub struct Tracker {
    open: BTreeMap<Key, Open>,
    rising: BTreeMap<(EventKind, String), Rising>,
    before: Option<Observation>,
}

impl Tracker {
    /// Continues from the kept events; `events` come oldest first.
    pub fn new<'a>(events: impl Iterator<Item = &'a EventEntry>, now: Duration) -> Self {
        let mut tracker = Self::default();
        for event in events {
            let key = (event.kind, event.subject.clone(), event.warning);
            match event.stage {
                // A scrub knows its own progress.
                _ if event.kind == EventKind::Scrub => {}
                EventStage::Began if tracker.open.len() < OPEN_MAX => {
                    let open = Open {
                        severity: event.severity,
                        message: event.message.clone(),
                        since: now,
                        seen: now,
                        is_told: true,
                    };
                    tracker.open.insert(key, open);
                }
                EventStage::Ended => drop(tracker.open.remove(&key)),
                EventStage::Began | EventStage::Once => {}
            }
        }
        tracker
    }

    /// The events to report after an observation.
    pub fn look(&mut self, seen: Observation, now: Duration, now_seconds: i64) -> Vec<EventEntry> {
        let mut events = Vec::new();
        let before = self.before.take();
        if let Some(before) = &before {
            for happened in happened(before, &seen) {
                events.push(told(happened, now_seconds));
            }
        }
        // Counters of the process begin with it; those of a scrub do not.
        let before = before.unwrap_or_else(|| Observation {
            scrub: seen.scrub.clone(),
            ..Observation::default()
        });
        self.note_rises(rises(&before, &seen));
        self.tell_rises(now, now_seconds, &mut events);
        self.note_conditions(&seen, now);
        self.tell_conditions(&seen, now, now_seconds, &mut events);
        self.before = Some(with_owners(seen, &before));
        events
    }

    fn note_rises(&mut self, rises: Vec<Rise>) {
        for rise in rises {
            let rising = self.rising.entry((rise.kind, rise.subject));
            let rising = rising.or_insert(Rising { by: 0, told: None });
            rising.by = rising.by.saturating_add(rise.by);
        }
    }

    fn tell_rises(&mut self, now: Duration, now_seconds: i64, events: &mut Vec<EventEntry>) {
        for ((kind, subject), rising) in &mut self.rising {
            let is_due = rising
                .told
                .is_none_or(|told| now.saturating_sub(told) >= RISE_EVERY);
            if rising.by == 0 || !is_due || events.len() >= EVENTS_OF_A_LOOK_MAX {
                continue;
            }
            let rise = Rise {
                kind: *kind,
                subject: subject.clone(),
                by: std::mem::take(&mut rising.by),
            };
            rising.told = Some(now);
            events.push(told(risen(rise), now_seconds));
        }
        // A growth after a quiet time is reported at once.
        self.rising.retain(|_, rising| {
            let told = rising.told.unwrap_or(now);
            rising.by > 0 || now.saturating_sub(told) < RISE_EVERY
        });
    }

    fn note_conditions(&mut self, seen: &Observation, now: Duration) {
        let mut open = self.open.iter();
        let is_nearly_full =
            open.any(|((kind, _, _), open)| *kind == EventKind::PoolNearlyFull && open.is_told);
        for condition in conditions(seen, is_nearly_full) {
            let Condition {
                kind,
                warning,
                subject,
                severity,
                message,
                ..
            } = condition;
            let key = (kind, cut(&subject, EVENT_SUBJECT_CHARS_MAX), warning);
            let count = self.open.len();
            match self.open.get_mut(&key) {
                Some(open) => open.seen = now,
                None if count < OPEN_MAX => {
                    let open = Open {
                        severity,
                        message,
                        since: now,
                        seen: now,
                        is_told: false,
                    };
                    self.open.insert(key, open);
                }
                None => {}
            }
        }
    }

    fn tell_conditions(
        &mut self,
        seen: &Observation,
        now: Duration,
        now_seconds: i64,
        events: &mut Vec<EventEntry>,
    ) {
        let mut over = Vec::new();
        // The remaining faults of each subject: the end of one of several conditions does not make it healthy.
        let mut holding: BTreeMap<String, (Severity, String)> = BTreeMap::new();
        for ((_, subject, _), open) in &self.open {
            let is_worse = holding
                .get(subject)
                .is_none_or(|(worst, _)| open.severity > *worst);
            if open.seen == now && is_of_one_thing(subject) && is_worse {
                holding.insert(subject.clone(), (open.severity, open.message.clone()));
            }
        }
        for (key, open) in &mut self.open {
            let (kind, subject, warning) = key;
            let is_seen = open.seen == now;
            if !open.is_told && !is_seen {
                over.push(key.clone());
                continue;
            }
            if events.len() >= EVENTS_OF_A_LOOK_MAX {
                continue;
            }
            if !open.is_told && now.saturating_sub(open.since) >= told_after(*kind, *warning) {
                open.is_told = true;
                let action = action_of(seen, key);
                let event = (
                    EventStage::Began,
                    open.severity,
                    open.message.clone(),
                    action.as_deref(),
                );
                events.push(EventEntry {
                    warning: *warning,
                    ..entry(*kind, subject, event, now_seconds)
                });
            } else if open.is_told && now.saturating_sub(open.seen) >= OVER_AFTER {
                let (mut severity, mut message) = ended(*kind, subject, &open.message, seen);
                if let Some((still, why)) = holding.get(subject)
                    && *still > severity
                {
                    severity = *still;
                    message = format!("{message}. Still true: {why}");
                }
                let event = (EventStage::Ended, severity, message, None);
                events.push(EventEntry {
                    warning: *warning,
                    ..entry(*kind, subject, event, now_seconds)
                });
                over.push(key.clone());
            }
        }
        for key in over {
            self.open.remove(&key);
        }
    }
}

/// Whether conditions with this subject are about one thing, such as a disk or a volume. Conditions of the whole
/// system are independent of one another.
fn is_of_one_thing(subject: &str) -> bool {
    ["disk ", "volume ", "node ", "tier "]
        .iter()
        .any(|thing| subject.starts_with(thing))
}

/// The remedy for a present condition.
fn action_of(seen: &Observation, (kind, subject, warning): &Key) -> Option<Cow<'static, str>> {
    let mut holding = conditions(seen, true).into_iter();
    holding.find_map(|condition| {
        let is_it = condition.kind == *kind
            && condition.warning == *warning
            && cut(&condition.subject, EVENT_SUBJECT_CHARS_MAX) == *subject;
        is_it.then_some(condition.action)?
    })
}

/// Keeps the last owner of a volume that has none now.
fn with_owners(mut seen: Observation, before: &Observation) -> Observation {
    use super::seen::Owner;
    for volume in &mut seen.volumes {
        let mut earlier = before.volumes.iter();
        let earlier = earlier.find(|earlier| earlier.name == volume.name);
        if let (Owner::Nobody, Some(earlier)) = (&volume.owner, earlier) {
            volume.owner = earlier.owner.clone();
        }
    }
    seen
}

fn told_after(kind: EventKind, warning: Option<WarningKind>) -> Duration {
    // States that are true for a moment when a node comes or goes.
    let is_passing = matches!(
        warning,
        Some(
            WarningKind::EtcdMemberDown
                | WarningKind::EtcdNoQuorum
                | WarningKind::EtcdUnreachable
                | WarningKind::NodeUnreached
                | WarningKind::LogCopiesFew
        )
    );
    if is_passing {
        return SETTLED_AFTER;
    }
    match kind {
        EventKind::VolumeNotServed
        | EventKind::VolumeWithoutOwner
        | EventKind::NodeAway
        | EventKind::LeaseLost => SETTLED_AFTER,
        _ => Duration::ZERO,
    }
}

fn told(happened: Happened, now_seconds: i64) -> EventEntry {
    let Happened {
        stage,
        kind,
        subject,
        severity,
        message,
        action,
    } = happened;
    let event = (stage, severity, message, action);
    entry(kind, &subject, event, now_seconds)
}

/// An event with its texts cut to their limits.
pub fn entry(
    kind: EventKind,
    subject: &str,
    (stage, severity, message, action): (EventStage, Severity, String, Option<&str>),
    now_seconds: i64,
) -> EventEntry {
    EventEntry {
        id: 0,
        at_seconds: now_seconds,
        severity,
        kind,
        stage,
        warning: None,
        subject: cut(subject, EVENT_SUBJECT_CHARS_MAX),
        message: cut(&message, EVENT_MESSAGE_CHARS_MAX),
        action: action.map(|action| cut(action, EVENT_ACTION_CHARS_MAX)),
        nodes: Vec::new(),
    }
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
mod tests;
