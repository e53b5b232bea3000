//! What happened in the system: disks that are lost and come back, damage that is found, starts after a crash.
//!
//! Owns: what is in an event, how events are looked for. Must not know: what makes an event, where events are kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, any_text, endpoints, get, number,
};
use crate::entries::{Entry, LogRange};
use crate::joined::{LogPage, OfNode, PageParts, SilentNode};
use crate::query::Query;
use crate::warnings::WarningKind;

/// Maximum length of an event's texts, in characters; longer texts are cut.
pub const EVENT_SUBJECT_CHARS_MAX: usize = 128;
pub const EVENT_MESSAGE_CHARS_MAX: usize = 600;
pub const EVENT_ACTION_CHARS_MAX: usize = 256;
/// Maximum length of a stored event, in bytes. A character takes at most six bytes, as a JSON escape.
pub const EVENT_LINE_LEN_BYTES_MAX: usize = 8192;
const _: () = assert!(
    6 * (EVENT_SUBJECT_CHARS_MAX + EVENT_MESSAGE_CHARS_MAX + EVENT_ACTION_CHARS_MAX) + 512
        <= EVENT_LINE_LEN_BYTES_MAX
);

/// Severity of an event or warning.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Information, or the end of a problem.
    Info,
    /// Everything is served; the problem needs attention soon.
    Warning,
    /// Something is not served, or is lost, or is about to be: the problem needs attention now.
    Error,
}

impl Severity {
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Kind of an event.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The server started, after a clean stop or after a crash.
    ServerStarted,
    ServerStopped,
    /// A disk is missing.
    DiskMissing,
    /// A disk failed and is out of use.
    DiskFailed,
    /// A disk has a fault and stays in use, or comes back by itself.
    DiskSuspect,
    /// Reads of a disk did not match their checksums.
    DiskDamage,
    DiskAdded,
    DiskRemoved,
    /// A disk is drained: its data moves to other disks.
    DiskDrain,
    /// Data is moved or rebuilt.
    Rebuild,
    Scrub,
    /// Damaged bytes were repaired.
    DamageRepaired,
    /// Data is damaged beyond repair.
    DataDamaged,
    /// The pool has little free space.
    PoolNearlyFull,
    /// The pool is full: writes fail.
    PoolFull,
    /// A volume is not served.
    VolumeNotServed,
    /// In a cluster: a volume has no owner.
    VolumeWithoutOwner,
    /// In a cluster: a volume has a new owner.
    VolumeTakenOver,
    /// In a cluster: a node is away.
    NodeAway,
    /// In a cluster: this node has no lease, and may own no volume.
    LeaseLost,
    /// A scheduled snapshot could not be taken, or an old one could not be deleted.
    ScheduleFailed,
    TierFailed,
    /// A volume misses the latency objective of its class.
    LatencyGoalMissed,
    /// Another warning of the status.
    Alert,
}

/// Stage of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventStage {
    /// A condition began; an event of the same kind and subject ends it.
    Began,
    Ended,
    /// The event has no duration.
    Once,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventEntry {
    /// Grows with each event.
    pub id: u64,
    /// Time of the event, in seconds since 1970 UTC.
    pub at_seconds: i64,
    pub severity: Severity,
    pub kind: EventKind,
    pub stage: EventStage,
    /// For an alert: the kind of the warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<WarningKind>,
    /// The object of the event.
    #[schema(example = "disk /srv/disk2")]
    pub subject: String,
    /// The event in a sentence.
    #[schema(example = "disk /srv/disk2 is missing: its folder does not exist")]
    pub message: String,
    /// The next step for an operator, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// In answers of a cluster: the nodes that saw the event, the earliest first. Not stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

impl Entry for EventEntry {
    const LINE_LEN_BYTES_MAX: usize = EVENT_LINE_LEN_BYTES_MAX;

    fn id(&self) -> u64 {
        self.id
    }

    fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    fn at_seconds(&self) -> i64 {
        self.at_seconds
    }
}

/// Nodes see one event within this many seconds.
const SEEN_TOGETHER_SECONDS: i64 = 30;

impl OfNode for EventEntry {
    fn set_node(&mut self, node: &str) {
        self.nodes = vec![node.to_owned()];
    }

    fn node(&self) -> &str {
        self.nodes.first().map_or("", String::as_str)
    }

    /// All nodes see that one of them is away, or a disk: that is one event. Each has its own starts.
    fn joins(&self, older: &mut Self) -> bool {
        let is_of_one = [EventKind::ServerStarted, EventKind::ServerStopped].contains(&self.kind);
        let about = |event: &Self| (event.kind, event.warning, event.stage, event.severity);
        let is_same = !is_of_one
            && about(self) == about(older)
            && self.subject == older.subject
            && self.message == older.message
            && self.at_seconds.abs_diff(older.at_seconds) <= SEEN_TOGETHER_SECONDS.unsigned_abs()
            && !self.nodes.iter().any(|node| older.nodes.contains(node));
        if is_same {
            older.nodes.extend(self.nodes.iter().cloned());
        }
        is_same
    }
}

/// A page of events, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    pub entries: Vec<EventEntry>,
    /// The `before` of the next page; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
    /// Time of the oldest stored event, whatever the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seconds: Option<i64>,
    /// Why events cannot be written to disk now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Nodes that did not answer, and why. The answer lacks events that only they saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentNode>,
}

impl LogPage for EventPage {
    type Entry = EventEntry;
    const LOG: &'static str = "the log of events";

    fn parts(&mut self) -> PageParts<'_, EventEntry> {
        PageParts {
            entries: &mut self.entries,
            next_before: &mut self.next_before,
            first_seconds: &mut self.first_seconds,
            problem: &mut self.problem,
            silent: &mut self.silent,
        }
    }
}

/// A filter of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// The lowest severity.
    pub severity: Option<Severity>,
    /// A part of the subject; case is ignored here and in `text`.
    pub subject: Option<String>,
    /// A part of the message or of the next step.
    pub text: Option<String>,
    pub part: LogRange,
}

impl EventQuery {
    pub const KEYS: &'static [&'static str] = &[
        "severity", "subject", "text", "from", "to", "before", "after", "limit", "node",
    ];

    /// Reads what was asked. Fails with what is wrong with it.
    pub fn of(query: &Query, now_seconds: i64) -> Result<Self, String> {
        let text = |key: &str| query.values(key).last().map(str::to_owned);
        let severity = match text("severity") {
            None => None,
            Some(text) => {
                let mut all = Severity::ALL.into_iter();
                let known = all.find(|severity| severity.as_str() == text);
                Some(known.ok_or_else(|| "severity is info, warning or error".to_owned())?)
            }
        };
        Ok(Self {
            severity,
            subject: text("subject"),
            text: text("text"),
            part: LogRange::of(query, now_seconds)?,
        })
    }

    /// The filter as a query string.
    pub fn to_query(&self) -> String {
        self.part.to_query(&[
            ("severity", self.severity.map(Severity::as_str)),
            ("subject", self.subject.as_deref()),
            ("text", self.text.as_deref()),
        ])
    }

    /// The page of these events, which are given newest first.
    pub fn page<'a>(&self, newest_first: impl Iterator<Item = &'a EventEntry>) -> EventPage {
        let lower = |text: &Option<String>| text.as_ref().map(|text| text.to_lowercase());
        let (subject, text) = (lower(&self.subject), lower(&self.text));
        let has = |whole: &str, part: &str| whole.to_lowercase().contains(part);
        let is_met = |event: &&EventEntry| {
            self.part.has(*event)
                && self
                    .severity
                    .is_none_or(|severity| event.severity >= severity)
                && subject
                    .as_ref()
                    .is_none_or(|part| has(&event.subject, part))
                && text.as_ref().is_none_or(|part| {
                    let action = event.action.as_deref().unwrap_or("");
                    has(&event.message, part) || has(action, part)
                })
        };
        let (entries, next_before) = self.part.cut(newest_first.filter(is_met));
        EventPage {
            entries,
            next_before,
            ..EventPage::default()
        }
    }
}

/// What a node does about events.
pub trait EventControl: Send + Sync {
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage>;
}

endpoints! {
    /// Lists events, newest first: in a cluster those of all nodes, or only those of `node`. `next_before` is the `before` of the next
    /// page. `severity` is the lowest severity to show; `subject` is a part of the subject; `text` is a part of the message or of the
    /// action; `from` and `to` are seconds since 1970, or relative to now if negative or zero; `after` shows only events with a higher
    /// id; `limit` is 1 to 1000, by default 100.
    EVENT_LIST: Endpoint<EventQuery, (), EventPage> = get("/api/v1/events");

}

impl Argument for EventQuery {
    fn describe(to: &mut Parameters) {
        to.in_query("node", any_text());
        to.referred::<Severity>("severity");
        to.in_query("subject", any_text());
        to.in_query("text", any_text());
        to.in_query("from", number::<i64>());
        to.in_query("to", number::<i64>());
        LogRange::describe_ids(to);
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(Self::KEYS)?;
        Self::of(&query, from.now_seconds())
            .map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask_text(&self.to_query());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64) -> EventEntry {
        let number = usize::try_from(id).unwrap();
        EventEntry {
            id,
            at_seconds: 1000 + i64::try_from(id).unwrap(),
            severity: Severity::ALL[number % 3],
            kind: EventKind::DiskMissing,
            stage: EventStage::Began,
            warning: None,
            subject: format!("disk /srv/Disk{id}"),
            message: "it is missing".to_owned(),
            action: id.is_multiple_of(2).then(|| "Bring it back".to_owned()),
            nodes: Vec::new(),
        }
    }

    #[test]
    fn events_are_found_by_page() {
        let cases: &[(&str, &[u64], Option<u64>)] = &[
            ("", &[6, 5, 4, 3, 2, 1], None),
            ("severity=info", &[6, 5, 4, 3, 2, 1], None),
            ("severity=warning", &[5, 4, 2, 1], None),
            ("severity=error&limit=1", &[5], Some(5)),
            ("severity=error&limit=1&before=5", &[2], None),
            ("subject=disk4", &[4], None),
            ("text=bring", &[6, 4, 2], None),
            ("text=MISSING&after=4", &[6, 5], None),
            ("from=1005", &[6, 5], None),
            ("to=-8", &[2, 1], None),
        ];
        for (query, want, next) in cases {
            let query = Query::parse(Some(query), EventQuery::KEYS).unwrap();
            let asked = EventQuery::of(&query, 1010).unwrap();
            let all: Vec<EventEntry> = (1..=6).rev().map(event).collect();
            let page = asked.page(all.iter());
            let ids: Vec<u64> = page.entries.iter().map(|event| event.id).collect();
            assert_eq!((&*ids, page.next_before), (*want, *next), "{query:?}");
            let text = asked.to_query();
            let again = Query::parse(Some(&text), EventQuery::KEYS).unwrap();
            assert_eq!(EventQuery::of(&again, 1010), Ok(asked), "{text}");
        }
        for query in ["severity=bad", "limit=0", "from=x"] {
            let query = Query::parse(Some(query), EventQuery::KEYS).unwrap();
            assert!(EventQuery::of(&query, 1010).is_err(), "{query:?}");
        }
        assert!(Query::parse(Some("user=x"), EventQuery::KEYS).is_err());
    }

    #[test]
    fn what_several_nodes_saw_is_one_event() {
        let at = |id: u64, at_seconds: i64, kind| EventEntry {
            at_seconds,
            kind,
            severity: Severity::Error,
            subject: "disk a".to_owned(),
            action: None,
            ..event(id)
        };
        let page = |entries: &[EventEntry]| EventPage {
            entries: entries.iter().rev().cloned().collect(),
            ..EventPage::default()
        };
        let missing = EventKind::DiskMissing;
        let one = page(&[at(1, 100, missing), at(5, 300, EventKind::ServerStarted)]);
        // Within half a minute, and once more later: that is another time.
        let two = page(&[
            at(2, 130, missing),
            at(3, 131, missing),
            at(6, 301, EventKind::ServerStarted),
        ]);
        let pages = vec![("n1".to_owned(), one), ("n2".to_owned(), two)];
        let all = crate::joined::joined(10, pages);
        let seen: Vec<(u64, Vec<&str>)> = all
            .entries
            .iter()
            .map(|event| (event.id, event.nodes.iter().map(String::as_str).collect()))
            .collect();
        let want: [(u64, Vec<&str>); 4] = [
            (6, vec!["n2"]),
            (5, vec!["n1"]),
            (3, vec!["n2"]),
            (1, vec!["n1", "n2"]),
        ];
        assert_eq!(seen, want);
        assert_eq!(all.next_before, None);
    }

    #[test]
    fn the_longest_event_fits_a_line() {
        let long = EventEntry {
            id: u64::MAX,
            at_seconds: i64::MIN,
            kind: EventKind::VolumeWithoutOwner,
            subject: "\u{1}".repeat(EVENT_SUBJECT_CHARS_MAX),
            message: "\u{1}".repeat(EVENT_MESSAGE_CHARS_MAX),
            action: Some("\u{1}".repeat(EVENT_ACTION_CHARS_MAX)),
            ..event(1)
        };
        let line = long.to_line();
        assert!(line.len() <= EVENT_LINE_LEN_BYTES_MAX, "{}", line.len());
        assert_eq!(EventEntry::of_lines(line.as_bytes()), (vec![long], 0));
    }
}
