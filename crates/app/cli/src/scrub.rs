//! `cairn scrub ...`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_admin::scrub::{
    SCRUB, SCRUB_PAUSE, SCRUB_REPORT, SCRUB_SCHEDULE, SCRUB_SCHEDULE_CLEAR, SCRUB_SCHEDULE_SET,
    SCRUB_START, ScrubReport, ScrubSchedule, ScrubScheduleSet, ScrubStage, ScrubStart, ScrubView,
};
use cairn_base::time::rfc3339_utc;
use cairn_base::units::format_size;
use cairn_config::{MaintenanceWindow, ScrubEvery, Size};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::status::duration;

#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    /// Start a scrub, resume a paused scrub, or change its rate
    Start(ScrubStartArgs),
    /// Pause the scrub; it stays paused across restarts
    Pause(ViewArgs),
    /// Show the scrub's progress and findings
    Status(ViewArgs),
    /// List the files with unreadable data
    Report(ViewArgs),
    /// Schedule scrubs, and set a maintenance window: `cairn scrub schedule --every 30d --window sat:22:00-06:00`
    ///
    /// Without --every, --window and --clear, the command shows the schedule and the next start. Each call sets both values: a
    /// flag that you leave out is cleared. In a cluster the schedule applies to all nodes.
    ///
    /// Outside of the maintenance window, no scheduled scrub starts, a running scheduled scrub pauses, and no volume moves to
    /// balance the load. Scrubs that an operator starts, rebuilds and repairs run at any time.
    Schedule(ScrubScheduleArgs),
}

#[derive(Debug, Args)]
pub struct ScrubScheduleArgs {
    /// Time from the start of one scrub to the start of the next, in hours or days, such as 12h or 30d
    #[arg(long, value_name = "TIME")]
    pub every: Option<ScrubEvery>,
    /// Maintenance window: days and times of the week in UTC, such as sat:22:00-06:00, daily:01:00-05:00 or
    /// mon-fri:02:00-04:00,sat,sun:00:00-24:00 [default: none, always open]
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<MaintenanceWindow>,
    /// Clear the schedule and the window
    #[arg(long, conflicts_with_all = ["every", "window"])]
    pub clear: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ScrubStartArgs {
    /// Bytes per second that this scrub reads at most, such as 50MiB; 0 for no limit [default: `scrub_rate` in the
    /// configuration]
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Start from the beginning, even if a scrub is in progress
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Does what is asked about the scrub.
pub fn scrub(command: &ScrubCommand) -> Result<(), Failure> {
    match command {
        ScrubCommand::Start(args) => start(args),
        ScrubCommand::Pause(args) => pause(args),
        ScrubCommand::Status(args) => status(args),
        ScrubCommand::Report(args) => report(args),
        ScrubCommand::Schedule(args) => schedule(args),
    }
}

fn start(args: &ScrubStartArgs) -> Result<(), Failure> {
    let start = ScrubStart {
        rate_bytes_per_second: args.rate.map(|rate| rate.0),
        restart: args.restart,
    };
    let scrub = access::client(&args.view.server)?.tell(SCRUB_START, &(), &start)?;
    shown(&scrub, &args.view)
}

fn pause(args: &ViewArgs) -> Result<(), Failure> {
    let scrub = access::client(&args.server)?.ask(SCRUB_PAUSE, &())?;
    shown(&scrub, args)
}

fn status(args: &ViewArgs) -> Result<(), Failure> {
    let scrub = access::client(&args.server)?.ask(SCRUB, &())?;
    shown(&scrub, args)
}

fn report(args: &ViewArgs) -> Result<(), Failure> {
    let report = access::client(&args.server)?.ask(SCRUB_REPORT, &())?;
    if args.json {
        return print::json(&report);
    }
    print::text(&report_text(&report))
}

fn schedule(args: &ScrubScheduleArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let set = ScrubScheduleSet {
        every: args.every,
        window: args.window.clone(),
    };
    let schedule = if args.clear {
        client.ask(SCRUB_SCHEDULE_CLEAR, &())?;
        client.ask(SCRUB_SCHEDULE, &())?
    } else if set == ScrubScheduleSet::default() {
        client.ask(SCRUB_SCHEDULE, &())?
    } else {
        client.tell(SCRUB_SCHEDULE_SET, &(), &set)?
    };
    if args.view.json {
        return print::json(&schedule);
    }
    let scrub = client.ask(SCRUB, &())?;
    print::text(&schedule_text(&schedule, &scrub, now_seconds()))
}

fn now_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() as i64)
}

/// An instant, and how far off it is: "2026-11-28T22:00:00Z, in 3 h 0 min".
fn instant(seconds: i64, now_seconds: i64) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let left = u64::try_from(seconds.saturating_sub(now_seconds)).unwrap_or(0);
    match left {
        0 => "now".to_owned(),
        left => format!("{}, in {}", rfc3339_utc(at), duration(left)),
    }
}

fn schedule_text(schedule: &ScrubSchedule, scrub: &ScrubView, now_seconds: i64) -> String {
    let every = schedule.every.as_ref();
    let every = every.map(|every| format!("every {every}"));
    let mut lines = vec![format!(
        "scrub     {}",
        every.unwrap_or_else(|| "none; set one with `cairn scrub schedule --every 30d`".to_owned())
    )];
    match &schedule.window {
        None => lines.push("window    none: always open".to_owned()),
        Some(window) => {
            let instant = |seconds| instant(seconds, now_seconds);
            let state = match (schedule.opens_seconds, schedule.closes_seconds) {
                (Some(opens), _) => format!("closed; opens {}", instant(opens)),
                (None, Some(closes)) => format!("open; closes {}", instant(closes)),
                (None, None) => "open".to_owned(),
            };
            lines.push(format!("window    {window} (UTC), {state}"));
        }
    }
    lines.extend(coming(scrub, now_seconds));
    lines.join("\n")
}

/// The next scrub of a schedule, or why none begins.
fn coming(scrub: &ScrubView, now_seconds: i64) -> Option<String> {
    if let Some(until) = scrub.rests_until_seconds {
        let until = instant(until, now_seconds);
        return Some(format!(
            "resting   until the maintenance window opens: {until}"
        ));
    }
    let next = scrub.next_seconds?;
    Some(format!("next      {}", instant(next, now_seconds)))
}

fn shown(scrub: &ScrubView, view: &ViewArgs) -> Result<(), Failure> {
    if view.json {
        return print::json(scrub);
    }
    print::text(&scrub_text(scrub, now_seconds()))
}

fn scrub_text(scrub: &ScrubView, now_seconds: i64) -> String {
    let coming = coming(scrub, now_seconds);
    if scrub.stage == ScrubStage::Never {
        let mut lines = vec!["no scrub has run yet: `cairn scrub start`".to_owned()];
        lines.extend(coming);
        return lines.join("\n");
    }
    let percent = (u128::from(scrub.done_bytes) * 100)
        .checked_div(u128::from(scrub.total_bytes))
        .unwrap_or(100)
        .min(100);
    let left = scrub.seconds_left.map(duration);
    let rate = match scrub.rate_bytes_per_second {
        0 => "no limit".to_owned(),
        rate => format!("at most {}/s", format_size(rate)),
    };
    let mut lines = vec![
        format!("scrub     {} ({rate})", scrub.stage),
        format!(
            "read      {} of {}, {percent}%{}",
            format_size(scrub.done_bytes),
            format_size(scrub.total_bytes),
            left.map(|left| format!(", about {left} left"))
                .unwrap_or_default()
        ),
        format!(
            "checked   {} shards, {} records",
            scrub.shards, scrub.records
        ),
        format!(
            "wrong     {} in shards, {} of that repaired; {} shards rebuilt, {} sealed",
            format_size(scrub.wrong_bytes),
            format_size(scrub.repaired_bytes),
            scrub.shards_rebuilt,
            scrub.shards_sealed
        ),
    ];
    lines.extend(coming);
    if scrub.shards_away > 0 {
        lines.push(format!(
            "away      {} shards on missing disks were not checked",
            scrub.shards_away
        ));
    }
    for silent in &scrub.silent {
        lines.push(format!(
            "silent    node {}: {}; these numbers lack its part",
            silent.node, silent.why
        ));
    }
    if scrub.errors > 0 {
        lines.push(format!("errors    {}; see the server's log", scrub.errors));
    }
    if scrub.damaged > 0 {
        lines.push(format!(
            "DAMAGED   {} places in files cannot be read: `cairn scrub report`",
            scrub.damaged
        ));
    }
    lines.join("\n")
}

fn report_text(report: &ScrubReport) -> String {
    const COLUMNS: &[Column] = &[
        ("VOLUME", Align::Left),
        ("FILE", Align::Left),
        ("FROM", Align::Right),
        ("TO", Align::Right),
        ("INODE", Align::Right),
    ];
    if report.damaged.is_empty() {
        let text = match report.scrub.stage {
            ScrubStage::Never => "no scrub has run yet: `cairn scrub start`",
            ScrubStage::Running | ScrubStage::Paused => "no damaged files so far",
            ScrubStage::Done => "no damaged files",
        };
        return text.to_owned();
    }
    let mut rows = Vec::new();
    for damage in &report.damaged {
        let mut paths = damage.paths.clone();
        if paths.is_empty() {
            paths.push("(no name known)".to_owned());
        }
        // All names of a file: each is one that somebody will ask about.
        rows.extend(paths.into_iter().map(|path| {
            vec![
                damage.volume.clone(),
                path,
                damage.start.to_string(),
                damage.end.to_string(),
                damage.inode.to_string(),
            ]
        }));
    }
    let mut text = print::table(COLUMNS, rows);
    if report.damaged_more > 0 {
        text.push_str(&format!("\n\nand {} places more", report.damaged_more));
    }
    text
}

#[cfg(test)]
mod tests {
    use cairn_admin::scrub::ScrubDamage;

    use super::*;

    #[test]
    fn a_scrub_is_told_in_words() {
        let none = ScrubView::default();
        assert!(scrub_text(&none, 0).contains("no scrub"));
        let running = ScrubView {
            stage: ScrubStage::Running,
            done_bytes: 1 << 30,
            total_bytes: 4 << 30,
            seconds_left: Some(3660),
            rate_bytes_per_second: 50 << 20,
            damaged: 2,
            ..none
        };
        let text = scrub_text(&running, 0);
        assert!(
            text.contains("1 GiB of 4 GiB, 25%, about 1 h 1 min left"),
            "{text}"
        );
        assert!(text.contains("at most 50 MiB/s"), "{text}");
        assert!(text.contains("2 places"), "{text}");
    }

    #[test]
    fn a_schedule_is_told_in_words() {
        let (now, saturday) = (1_795_903_200, 1_795_903_200 + 3 * 3600);
        let mut schedule = ScrubSchedule {
            is_open: true,
            ..ScrubSchedule::default()
        };
        let mut scrub = ScrubView::default();
        let text = schedule_text(&schedule, &scrub, now);
        assert!(text.contains("none; set one"), "{text}");
        assert!(text.contains("always open"), "{text}");
        schedule.every = Some("30d".parse().unwrap());
        schedule.window = Some("sat:22:00-06:00".parse().unwrap());
        schedule.opens_seconds = Some(saturday);
        scrub.next_seconds = Some(saturday);
        let want = "scrub     every 30d\n\
                    window    sat:22:00-06:00 (UTC), closed; opens 2026-11-29T01:00:00Z, in 3 h 0 min\n\
                    next      2026-11-29T01:00:00Z, in 3 h 0 min";
        assert_eq!(schedule_text(&schedule, &scrub, now), want);
        scrub.stage = ScrubStage::Running;
        scrub.rests_until_seconds = Some(saturday);
        let text = scrub_text(&scrub, now);
        assert!(
            text.contains("resting   until the maintenance window opens: 2026-11-29"),
            "{text}"
        );
    }

    #[test]
    fn every_name_of_a_damaged_file_is_listed() {
        let report = ScrubReport {
            damaged: vec![ScrubDamage {
                volume: "main".to_owned(),
                inode: 7,
                paths: vec!["/a".to_owned(), "/b\n".to_owned()],
                start: 0,
                end: 4096,
                detail: String::new(),
            }],
            damaged_more: 3,
            ..ScrubReport::default()
        };
        let text = report_text(&report);
        assert!(text.contains("/a") && text.contains("/b\\n"), "{text}");
        assert!(text.contains("and 3 places more"), "{text}");
    }
}
