//! `cairn top`: what clients do now.

use std::io::IsTerminal;
use std::time::Duration;

use cairn_admin::Client;
use cairn_admin::activity::{
    ACTIVITY_LIST, ACTIVITY_SHOW, ActivityList, ActivityView, ClientActivity, FileActivity,
    FileKind, OperationActivity,
};
use cairn_base::units::format_size;
use cairn_config::VolumeName;
use clap::Args;

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

/// Time between two refreshes.
const INTERVAL: Duration = Duration::from_secs(2);
/// Minimum number of rows of each table, whatever the height of the terminal.
const ROW_COUNT_MIN: usize = 3;
/// Lines beside the rows of the three tables: two at the top, and of each table its heading and an empty line.
const LINE_COUNT_BESIDE: usize = 8;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// The volume [default: all volumes, one line each]
    pub volume: Option<VolumeName>,
    /// Show the figures once, even on a terminal
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if args.once || args.view.json || !std::io::stdout().is_terminal() {
        return once(args, &client);
    }
    loop {
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let lines = size.map_or(usize::MAX, |size| usize::from(size.ws_row));
        let text = match &args.volume {
            Some(volume) => volume_text(&client.ask(ACTIVITY_SHOW, volume)?, rows_for(lines)),
            None => all_text(&client.ask(ACTIVITY_LIST, &())?, lines.saturating_sub(2)),
        };
        print::screen(&text)?;
        std::thread::sleep(INTERVAL);
    }
}

fn once(args: &TopArgs, client: &Client) -> Result<(), Failure> {
    match (&args.volume, args.view.json) {
        (Some(volume), true) => print::json(&client.ask(ACTIVITY_SHOW, volume)?),
        (Some(volume), false) => print::text(&volume_text(
            &client.ask(ACTIVITY_SHOW, volume)?,
            usize::MAX,
        )),
        (None, true) => print::json(&client.ask(ACTIVITY_LIST, &())?),
        (None, false) => print::text(&all_text(&client.ask(ACTIVITY_LIST, &())?, usize::MAX)),
    }
}

/// Rows of each of three tables, so that all fit.
fn rows_for(lines: usize) -> usize {
    (lines.saturating_sub(LINE_COUNT_BESIDE) / 3).max(ROW_COUNT_MIN)
}

fn rate(bytes_per_second: u64) -> String {
    match bytes_per_second {
        0 => String::new(),
        bytes => format!("{}/s", format_size(bytes)),
    }
}

fn operations(per_second: f64) -> String {
    match per_second < 100.0 {
        true => format!("{per_second:.1}"),
        false => format!("{per_second:.0}"),
    }
}

/// A row whose figures are lower bounds.
fn at_least(per_second: f64, lower_bound: bool) -> String {
    let mark = if lower_bound { ">=" } else { "" };
    format!("{mark}{}", operations(per_second))
}

fn latency(micros: Option<f64>) -> String {
    match micros {
        None => String::new(),
        Some(micros) if micros < 1000.0 => format!("{micros:.0} us"),
        Some(micros) if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1e3),
        Some(micros) => format!("{:.1} s", micros / 1e6),
    }
}

const RATES: [Column; 3] = [
    ("OPS/S", Align::Right),
    ("READ", Align::Right),
    ("WRITTEN", Align::Right),
];

fn all_text(list: &ActivityList, rows: usize) -> String {
    let columns = [&[("VOLUME", Align::Left)], &RATES[..]].concat();
    let mut volumes: Vec<_> = list.volumes.iter().collect();
    let moved = |it: &cairn_admin::activity::VolumeActivity| {
        it.read_bytes_per_second
            .saturating_add(it.written_bytes_per_second)
            // As the server ranks clients.
            .max((it.operations_per_second * 4096.0) as u64)
    };
    volumes.sort_by_key(|volume| std::cmp::Reverse(moved(volume)));
    let lines = volumes.into_iter().take(rows).map(|volume| {
        vec![
            volume.volume.clone(),
            operations(volume.operations_per_second),
            rate(volume.read_bytes_per_second),
            rate(volume.written_bytes_per_second),
        ]
    });
    print::table(&columns, lines.collect())
}

fn volume_text(view: &ActivityView, rows: usize) -> String {
    let first = format!(
        "{}: {} operations/s, {}/s read, {}/s written (the last {:.0} s)",
        view.volume,
        operations(view.operations_per_second),
        format_size(view.read_bytes_per_second),
        format_size(view.written_bytes_per_second),
        view.seconds
    );
    if view.operations.is_empty() {
        return format!("{first}\n\nNo client uses this volume now.");
    }
    [
        first,
        client_table(&view.clients, rows),
        file_table(&view.files, rows),
        operation_table(&view.operations, rows),
    ]
    .join("\n\n")
}

fn client_table(clients: &[ClientActivity], rows: usize) -> String {
    let names = [("CLIENT", Align::Left), ("PROTOCOL", Align::Left)];
    let columns = [&names[..], &RATES].concat();
    let lines = clients.iter().take(rows).map(|client| {
        vec![
            client.client.clone(),
            client.protocol.title().to_owned(),
            at_least(client.operations_per_second, client.lower_bound),
            rate(client.read_bytes_per_second),
            rate(client.written_bytes_per_second),
        ]
    });
    print::table(&columns, lines.collect())
}

fn file_name(file: &FileActivity) -> String {
    match (&file.name, file.inode) {
        (Some(name), _) => name.clone(),
        (None, Some(inode)) => format!("inode {inode}, which has no name now"),
        (None, None) => String::new(),
    }
}

fn file_table(files: &[FileActivity], rows: usize) -> String {
    let names = [("FILE", Align::Left), ("KIND", Align::Left)];
    let columns = [&names[..], &RATES].concat();
    let lines = files.iter().take(rows).map(|file| {
        let kind = match file.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Lun => "LUN",
            FileKind::Object => "object",
        };
        vec![
            file_name(file),
            kind.to_owned(),
            at_least(file.operations_per_second, file.lower_bound),
            rate(file.read_bytes_per_second),
            rate(file.written_bytes_per_second),
        ]
    });
    print::table(&columns, lines.collect())
}

fn operation_table(all: &[OperationActivity], rows: usize) -> String {
    let names = [("OPERATION", Align::Left), ("PROTOCOL", Align::Left)];
    let latencies = [("MEAN", Align::Right), ("WORST", Align::Right)];
    let columns = [&names[..], &RATES, &latencies].concat();
    let lines = all.iter().take(rows).map(|it| {
        vec![
            it.operation.clone(),
            it.protocol.title().to_owned(),
            operations(it.operations_per_second),
            rate(it.read_bytes_per_second),
            rate(it.written_bytes_per_second),
            latency(it.latency_mean_microseconds),
            latency(it.latency_max_microseconds),
        ]
    });
    print::table(&columns, lines.collect())
}

#[cfg(test)]
mod tests {
    use cairn_admin::activity::ActivityProtocol;

    use super::*;

    fn view() -> ActivityView {
        ActivityView {
            volume: "main".to_owned(),
            seconds: 7.4,
            operations_per_second: 120.0,
            read_bytes_per_second: 1 << 20,
            written_bytes_per_second: 0,
            operations: vec![OperationActivity {
                protocol: ActivityProtocol::Nfs,
                operation: "read".to_owned(),
                operations_per_second: 120.0,
                read_bytes_per_second: 1 << 20,
                written_bytes_per_second: 0,
                latency_mean_microseconds: Some(250.4),
                latency_max_microseconds: Some(12_345.0),
            }],
            clients: vec![ClientActivity {
                client: "10.0.0.7".to_owned(),
                protocol: ActivityProtocol::Nfs,
                operations_per_second: 99.95,
                read_bytes_per_second: 1 << 20,
                written_bytes_per_second: 0,
                lower_bound: true,
            }],
            has_more_clients: true,
            files: vec![FileActivity {
                kind: FileKind::File,
                name: Some("/a\u{1b}[2Jb".to_owned()),
                inode: Some(7),
                operations_per_second: 120.0,
                read_bytes_per_second: 1 << 20,
                written_bytes_per_second: 0,
                lower_bound: false,
            }],
            has_more_files: false,
        }
    }

    #[test]
    fn a_volume_is_shown_in_three_tables() {
        let want = "\
main: 120 operations/s, 1 MiB/s read, 0 B/s written (the last 7 s)

CLIENT    PROTOCOL   OPS/S       READ  WRITTEN
10.0.0.7  NFS       >=100.0  1 MiB/s        -

FILE             KIND  OPS/S       READ  WRITTEN
/a\\u{1b}[2Jb  file    120  1 MiB/s        -

OPERATION  PROTOCOL  OPS/S       READ  WRITTEN    MEAN    WORST
read       NFS         120  1 MiB/s        -  250 us  12.3 ms";
        // Widths are the table's business.
        let words = |text: &str| -> Vec<String> {
            let lines = text.lines();
            let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            words.collect()
        };
        assert_eq!(words(&volume_text(&view(), usize::MAX)), words(want));
    }

    #[test]
    fn files_without_a_name_are_shown_and_tables_fit() {
        let gone = FileActivity {
            name: None,
            ..view().files.remove(0)
        };
        assert_eq!(file_name(&gone), "inode 7, which has no name now");
        // Lines of the terminal, rows.
        for (lines, want) in [(0, 3), (24, 5), (50, 14)] {
            assert_eq!(rows_for(lines), want, "{lines}");
        }
    }

    #[test]
    fn a_volume_without_clients_is_said_to_have_none() {
        let idle = ActivityView {
            operations: Vec::new(),
            ..view()
        };
        let text = volume_text(&idle, usize::MAX);
        assert!(text.ends_with("No client uses this volume now."));
    }
}
