//! What happened in the system: disks that are lost and come back, damage that is found, starts after a crash.
//!
//! Owns: what is in an event, how events are looked for. Must not know: what makes an event, where events are kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::entries::{Entry, Part};
use crate::joined::{LogPage, OfNode, PageParts, SilentNode};
use crate::query::Query;
use crate::warnings::WarningKind;

/// Longest texts of an event, in characters; what is longer is cut.
pub const EVENT_SUBJECT_CHARS_MAX: usize = 128;
pub const EVENT_MESSAGE_CHARS_MAX: usize = 600;
pub const EVENT_ACTION_CHARS_MAX: usize = 256;
/// Longest line of an event as it is kept, in bytes. A character becomes six bytes at most, as an escape of JSON.
pub const EVENT_LINE_LEN_BYTES_MAX: usize = 8192;
const _: () = assert!(
    6 * (EVENT_SUBJECT_CHARS_MAX + EVENT_MESSAGE_CHARS_MAX + EVENT_ACTION_CHARS_MAX) + 512
        <= EVENT_LINE_LEN_BYTES_MAX
);

/// How bad it is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong.
    Info,
    /// All is served; look at it when there is time.
    Warning,
    /// Something is not served, or lost, or is about to be: look at it now.
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

/// What it is about.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The server was started, in order or after an end that was not.
    ServerStarted,
    ServerStopped,
    /// A disk is not there.
    DiskMissing,
    /// A disk is there, and is not used any more.
    DiskFailed,
    /// A disk is used in spite of what is wrong with it.
    DiskSuspect,
    /// Reads of a disk did not match their checksums.
    DiskDamage,
    DiskAdded,
    DiskRemoved,
    /// All that is on a disk is moved to others.
    DiskDrain,
    /// Data is moved, or made anew after a loss.
    Rebuild,
    Scrub,
    /// Bytes that were wrong on a disk were made anew.
    DamageRepaired,
    /// Data that cannot be had any more.
    DataDamaged,
    /// Little space is left.
    PoolNearlyFull,
    /// No space is left to write to.
    PoolFull,
    /// A volume cannot be used.
    VolumeNotServed,
    /// In a cluster, no node owns a volume.
    VolumeWithoutOwner,
    /// In a cluster, another node owns a volume from now on.
    VolumeTakenOver,
    /// In a cluster, a node is not there.
    NodeAway,
    /// In a cluster, this node may own no volume.
    LeaseLost,
    /// A snapshot that was due could not be taken, or an old one not be deleted.
    ScheduleFailed,
    TierFailed,
    /// Requests to a volume are answered later than its class says.
    LatencyGoalMissed,
    /// What the status warns of besides.
    Alert,
}

/// Whether it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventStage {
    /// From now on, until an event of the same kind and subject says that it ended.
    Began,
    Ended,
    /// It happened, and that was it.
    Once,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventEntry {
    /// Grows with each event.
    pub id: u64,
    /// When it was seen, in seconds since 1970 UTC.
    pub at_seconds: i64,
    pub severity: Severity,
    pub kind: EventKind,
    pub stage: EventStage,
    /// Of an alert: which warning of the status it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<WarningKind>,
    /// What it happened to.
    #[schema(example = "disk /srv/disk2")]
    pub subject: String,
    /// What happened, in a sentence.
    #[schema(example = "disk /srv/disk2 is missing: its folder does not exist")]
    pub message: String,
    /// What to do, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The nodes that saw it, in an answer of a cluster: who saw it first is the first. Not kept.
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

/// What nodes see of one happening they see within so many seconds.
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
    /// The `before` of the next page; left out with the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
    /// When the oldest event is of that is kept, whatever was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seconds: Option<i64>,
    /// Why events are not written at the moment, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Nodes that did not answer, and why: what they alone saw is not here.
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

/// Which events are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Those that are at least so bad.
    pub severity: Option<Severity>,
    /// A part of the subject; case counts in neither.
    pub subject: Option<String>,
    /// A part of the message or of what to do.
    pub text: Option<String>,
    pub part: Part,
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
            part: Part::of(query, now_seconds)?,
        })
    }

    /// As a query of the path.
    pub fn to_query(&self) -> String {
        self.part.to_query(&[
            ("severity", self.severity.map(Severity::as_str)),
            ("subject", self.subject.as_deref()),
            ("text", self.text.as_deref()),
        ])
    }

    /// The page of these events, which come newest first.
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
