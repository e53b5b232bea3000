//! `cairn events`: what happened in the system.

use std::time::Duration;

use cairn_admin::Client;
use cairn_admin::entries::{ENTRY_LIMIT_MAX, LogRange};
use cairn_admin::events::{EVENT_LIST, EventEntry, EventPage, EventQuery, EventStage, Severity};
use cairn_base::printable::csv_field;
use clap::{Args, ValueEnum};

use crate::args::ViewArgs;
use crate::audit::time;
use crate::cluster::parse_time;
use crate::exit::Failure;
use crate::follow::{LogPage, follow, say_silent};
use crate::print::note;
use crate::{access, print};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Least {
    Info,
    Warning,
    Error,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only events of at least this severity
    #[arg(long, value_name = "info|warning|error")]
    pub severity: Option<Least>,
    /// Only events whose subject (disk, volume, node) contains this text
    #[arg(long, value_name = "TEXT")]
    pub subject: Option<String>,
    /// Only events whose message or next step contains this text
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// Only events since this long ago: 90s, 30m, 1h or 2d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<Duration>,
    /// Only events until this long ago
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub until: Option<Duration>,
    /// Maximum number of events, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=ENTRY_LIMIT_MAX as u64))]
    pub limit: u64,
    /// Then show new events as they happen, oldest first, until Ctrl-C
    #[arg(long, conflicts_with = "until")]
    pub follow: bool,
    /// Print all events that match, as CSV
    #[arg(long, conflicts_with_all = ["follow", "json", "limit"])]
    pub csv: bool,
    /// Only events that this node of a cluster saw [default: all nodes]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

impl EventsArgs {
    fn query(&self, limit: usize) -> EventQuery {
        // Counted from the server's clock.
        let ago = |time: Option<Duration>| {
            let seconds = time.map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
            seconds.map(|seconds| -seconds)
        };
        EventQuery {
            severity: self.severity.map(|least| match least {
                Least::Info => Severity::Info,
                Least::Warning => Severity::Warning,
                Least::Error => Severity::Error,
            }),
            subject: self.subject.clone(),
            text: self.text.clone(),
            part: LogRange {
                from_seconds: ago(self.since),
                to_seconds: ago(self.until),
                limit,
                node: self.node.clone(),
                ..LogRange::default()
            },
        }
    }
}

pub fn events(args: &EventsArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if args.csv {
        return export(args, &client);
    }
    let limit = usize::try_from(args.limit).unwrap_or(ENTRY_LIMIT_MAX);
    let page = client.ask(EVENT_LIST, &args.query(limit))?;
    if args.follow {
        let log = |page: EventPage| LogPage {
            entries: page.entries,
            silent: page.silent,
        };
        let newer = |after| newer(args, &client, after).map(log);
        // What a second node sees of an event comes with the first's.
        return follow(
            log(page),
            WHAT,
            |event| event.nodes.first().map(String::as_str),
            newer,
            |event| match args.view.json {
                true => print::text(&print::json_line(event)?),
                false => print::text(&text(event)),
            },
        );
    }
    say_silent(&page.silent, WHAT);
    if args.view.json {
        return print::json(&page);
    }
    if page.entries.is_empty() {
        note!("cairn: no event matches since the oldest one that is kept");
        return Ok(());
    }
    let shown: Vec<String> = page.entries.iter().map(text).collect();
    print::text(&shown.join("\n"))
}

/// Warns of nodes that do not answer: their events are missing.
const WHAT: &str = "the events of";

/// All events above an id, newest first.
fn newer(args: &EventsArgs, client: &Client, after: Option<u64>) -> Result<EventPage, Failure> {
    let mut query = args.query(ENTRY_LIMIT_MAX);
    query.part.after = after;
    let mut all = client.ask(EVENT_LIST, &query)?;
    while let Some(before) = all.next_before {
        query.part.before = Some(before);
        let more = client.ask(EVENT_LIST, &query)?;
        all.entries.extend(more.entries);
        all.next_before = more.next_before;
    }
    Ok(all)
}

fn export(args: &EventsArgs, client: &Client) -> Result<(), Failure> {
    let mut query = args.query(ENTRY_LIMIT_MAX);
    print::csv("id,time,severity,kind,stage,subject,message,action,nodes\r\n")?;
    loop {
        let page = client.ask(EVENT_LIST, &query)?;
        let lines: String = page.entries.iter().map(csv).collect();
        print::csv(&lines)?;
        match page.next_before {
            Some(before) => query.part.before = Some(before),
            None => return Ok(()),
        }
    }
}

/// The API's word for a value.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(_) | Err(_) => String::new(),
    }
}

fn csv(event: &EventEntry) -> String {
    let words = [
        event.id.to_string(),
        time(event.at_seconds),
        event.severity.as_str().to_owned(),
        word(&event.kind),
        word(&event.stage),
        csv_field(&event.subject),
        csv_field(&event.message),
        csv_field(event.action.as_deref().unwrap_or("")),
        csv_field(&event.nodes.join(" ")),
    ];
    format!("{}\r\n", words.join(","))
}

/// A line about the event, and below it a line with the next step.
fn text(event: &EventEntry) -> String {
    let mark = match event.severity {
        Severity::Info => "info   ",
        Severity::Warning => "WARNING",
        Severity::Error => "ERROR  ",
    };
    let ended = match event.stage {
        EventStage::Ended => "over: ",
        EventStage::Began | EventStage::Once => "",
    };
    let seen = match &event.nodes[..] {
        [] => String::new(),
        nodes => format!(" ({})", nodes.join(", ")),
    };
    let line = format!(
        "{}  {mark}  {ended}{}{seen}",
        time(event.at_seconds),
        event.message
    );
    let line = print::name(&line);
    match &event.action {
        Some(action) => format!("{line}\n{:31}{}", "", print::name(action)),
        None => line.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::events::EventKind;

    use super::*;

    #[test]
    fn events_are_shown_and_written_as_csv() {
        let mut event = EventEntry {
            id: 7,
            at_seconds: 1_800_000_000,
            severity: Severity::Error,
            kind: EventKind::DiskMissing,
            stage: EventStage::Began,
            warning: None,
            subject: "disk /a".to_owned(),
            message: "=it is \"missing\"".to_owned(),
            action: Some("bring it back".to_owned()),
            nodes: Vec::new(),
        };
        assert_eq!(
            csv(&event),
            "7,2027-01-15T08:00:00Z,error,disk_missing,began,\"disk /a\",\"'=it is \"\"missing\"\"\",\"bring it back\",\"\"\r\n"
        );
        let first = "2027-01-15T08:00:00Z  ERROR    =it is \"missing\"";
        let below = "                               bring it back";
        assert_eq!(text(&event), format!("{first}\n{below}"));
        event.action = None;
        event.stage = EventStage::Ended;
        event.severity = Severity::Info;
        event.message = "it is back".to_owned();
        assert_eq!(
            text(&event),
            "2027-01-15T08:00:00Z  info     over: it is back"
        );
        event.nodes = vec!["n1".to_owned(), "n2".to_owned()];
        assert!(text(&event).ends_with("it is back (n1, n2)"));
    }
}
