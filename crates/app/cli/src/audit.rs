//! `cairn audit`: who changed what and when.

use std::time::Duration;

use cairn_admin::Client;
use cairn_admin::audit::{AUDIT_LIST, AuditEntry, AuditPage, AuditQuery};
use cairn_admin::entries::{ENTRY_LIMIT_MAX, LogRange};
use cairn_base::printable::csv_field;
use clap::{Args, Subcommand, ValueEnum};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::cluster::parse_time;
use crate::exit::Failure;
use crate::follow::{LogPage, follow, say_silent};
use crate::print::{self, Align};

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List changes, newest first
    ///
    /// Example: cairn audit list --by alice --since 1d --refused
    List(AuditListArgs),
    /// Write the whole audit log as CSV, or as one JSON object per line
    ///
    /// Example: cairn audit export --format csv >changes.csv
    Export(AuditExportArgs),
}

#[derive(Debug, Args)]
pub struct AuditFilter {
    /// Only changes by this user; `token` for the admin token
    #[arg(long, value_name = "USER")]
    pub by: Option<String>,
    /// Only changes whose path contains this text
    #[arg(long, value_name = "TEXT")]
    pub path: Option<String>,
    /// Only changes with this HTTP method
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Only changes since this long ago: 90s, 30m, 1h or 2d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<Duration>,
    /// Only changes that were refused or failed
    #[arg(long)]
    pub refused: bool,
    /// Only changes made through this node of a cluster [default: all nodes]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct AuditListArgs {
    #[command(flatten)]
    pub filter: AuditFilter,
    /// Maximum number of entries, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=ENTRY_LIMIT_MAX as u64))]
    pub limit: u64,
    /// Then show new changes as they are made, oldest first, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditFormat {
    Csv,
    Json,
}

#[derive(Debug, Args)]
pub struct AuditExportArgs {
    #[arg(long, value_name = "csv|json")]
    pub format: AuditFormat,
    #[command(flatten)]
    pub filter: AuditFilter,
    #[command(flatten)]
    pub server: ServerArgs,
}

impl AuditFilter {
    fn query(&self, limit: usize) -> AuditQuery {
        let since = self
            .since
            .map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        AuditQuery {
            user: self.by.clone(),
            path: self.path.clone(),
            method: self.method.clone(),
            refused: self.refused.then_some(true),
            part: LogRange {
                node: self.node.clone(),
                // Counted from the server's clock.
                from_seconds: since.map(|since| -since),
                limit,
                ..LogRange::default()
            },
        }
    }
}

pub fn audit(command: &AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::List(args) => list(args),
        AuditCommand::Export(args) => export(args),
    }
}

fn list(args: &AuditListArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let limit = usize::try_from(args.limit).unwrap_or(ENTRY_LIMIT_MAX);
    let page = client.ask(AUDIT_LIST, &args.filter.query(limit))?;
    if args.follow {
        let log = |page: AuditPage| LogPage {
            entries: page.entries,
            silent: page.silent,
        };
        let newer = |after| newer(args, &client, after).map(log);
        return follow(
            log(page),
            WHAT,
            |entry| entry.node.as_deref(),
            newer,
            |entry| match args.view.json {
                true => print::text(&print::json_line(entry)?),
                false => print::text(&line(entry)),
            },
        );
    }
    say_silent(&page.silent, WHAT);
    if args.view.json {
        return print::json(&page);
    }
    print::text(&table(&page.entries))
}

/// Warns of nodes that do not answer: their entries are missing.
const WHAT: &str = "the entries of";

/// All entries above an id, newest first.
fn newer(args: &AuditListArgs, client: &Client, after: Option<u64>) -> Result<AuditPage, Failure> {
    let mut query = args.filter.query(ENTRY_LIMIT_MAX);
    query.part.after = after;
    let mut all = client.ask(AUDIT_LIST, &query)?;
    while let Some(before) = all.next_before {
        query.part.before = Some(before);
        let more = client.ask(AUDIT_LIST, &query)?;
        all.entries.extend(more.entries);
        all.next_before = more.next_before;
    }
    Ok(all)
}

fn export(args: &AuditExportArgs) -> Result<(), Failure> {
    let client = access::client(&args.server)?;
    let mut query = args.filter.query(ENTRY_LIMIT_MAX);
    if args.format == AuditFormat::Csv {
        print::csv("id,time,user,via,address,method,path,status,count,node\r\n")?;
    }
    let mut is_first = true;
    loop {
        let page = client.ask(AUDIT_LIST, &query)?;
        if is_first {
            say_silent(&page.silent, WHAT);
        }
        is_first = false;
        let mut text = String::new();
        for entry in &page.entries {
            match args.format {
                AuditFormat::Csv => text.push_str(&csv(entry)),
                AuditFormat::Json => {
                    text.push_str(&print::json_line(entry)?);
                    text.push('\n');
                }
            }
        }
        print::csv(&text)?;
        match page.next_before {
            Some(before) => query.part.before = Some(before),
            None => return Ok(()),
        }
    }
}

/// A line of CSV.
fn csv(entry: &AuditEntry) -> String {
    let texts = [
        &entry.user,
        &entry.via,
        &entry.address,
        &entry.method,
        &entry.path,
    ];
    let texts: Vec<String> = texts.iter().map(|text| csv_field(text)).collect();
    let (id, at) = (entry.id, time(entry.at_seconds));
    let node = entry.node.as_deref().map(csv_field).unwrap_or_default();
    let (texts, status, count) = (texts.join(","), entry.status, entry.count.unwrap_or(1));
    format!("{id},{at},{texts},{status},{count},{node}\r\n")
}

/// Seconds since 1970 as UTC, the way of RFC 3339.
pub fn time(seconds: i64) -> String {
    let Ok(at) = time::OffsetDateTime::from_unix_timestamp(seconds) else {
        return seconds.to_string();
    };
    let (hour, minute, second) = at.time().as_hms();
    format!(
        "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day()
    )
}

fn line(entry: &AuditEntry) -> String {
    let node = entry.node.as_ref();
    let node = node.map_or_else(String::new, |node| format!("  on {node}"));
    let line = format!(
        "{}  {}  {}  {}  {} {}  {}{node}",
        time(entry.at_seconds),
        entry.user,
        entry.via,
        entry.address,
        entry.method,
        entry.path,
        status(entry)
    );
    print::name(&line).into_owned()
}

/// How a change was answered; of failed log-ins that are one entry, how many there were.
fn status(entry: &AuditEntry) -> String {
    match entry.count {
        Some(count) => format!("{count}x {}", entry.status),
        None => entry.status.to_string(),
    }
}

fn table(entries: &[AuditEntry]) -> String {
    let mut columns = vec![
        ("TIME", Align::Left),
        ("USER", Align::Left),
        ("VIA", Align::Left),
        ("FROM", Align::Left),
        ("CHANGE", Align::Left),
        ("STATUS", Align::Right),
    ];
    let has_nodes = entries.iter().any(|entry| entry.node.is_some());
    if has_nodes {
        columns.push(("NODE", Align::Left));
    }
    let rows = entries.iter().map(|entry| {
        let mut row = vec![
            time(entry.at_seconds),
            entry.user.clone(),
            entry.via.clone(),
            entry.address.clone(),
            format!("{} {}", entry.method, entry.path),
            status(entry),
        ];
        if has_nodes {
            row.push(entry.node.clone().unwrap_or_default());
        }
        row
    });
    print::table(&columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lines_of_csv() {
        let entry = AuditEntry {
            id: 7,
            at_seconds: 1_800_000_000,
            user: "=alice".to_owned(),
            via: "session".to_owned(),
            address: "::1".to_owned(),
            method: "POST".to_owned(),
            path: "/a\",\"b".to_owned(),
            status: 201,
            count: None,
            node: None,
        };
        assert_eq!(
            csv(&entry),
            "7,2027-01-15T08:00:00Z,\"'=alice\",\"session\",\"::1\",\"POST\",\"/a\"\",\"\"b\",201,1,\r\n"
        );
        assert_eq!(time(i64::MAX), i64::MAX.to_string());
    }
}
