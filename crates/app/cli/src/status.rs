//! `cairn status`.

use cairn_admin::api::Status;
use cairn_admin::events::Severity;
use cairn_admin::volumes::VolumeView;
use cairn_admin::warnings::WarningView;
use cairn_base::units::format_size;

use crate::access;
use crate::args::ViewArgs;
use crate::disk::disk_table;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

pub fn status(args: &ViewArgs) -> Result<(), Failure> {
    let status = access::client(&args.server)?.status()?;
    if args.json {
        return print::json(&status);
    }
    print::text(&status_text(&status))
}

fn status_text(status: &Status) -> String {
    let mut lines = vec![
        format!("health    {}", status.health),
        format!("pool      {}  ({})", status.summary, status.pool.id),
        format!(
            "space     {} free of {}, {} reserved for deleting and rebuilding",
            format_size(status.pool.free_bytes),
            format_size(status.pool.total_bytes),
            format_size(status.pool.reserve_bytes)
        ),
        format!("NFS       {}", nfs_address(status)),
        format!("admin     {}", status.admin.url),
        format!(
            "memory    {} in use, limit {}; cache {} of {}, dirty {} of {}",
            format_size(status.memory.resident_bytes),
            format_size(status.memory.limit_bytes),
            format_size(status.memory.record_cache_bytes),
            format_size(status.memory.record_cache_limit_bytes),
            format_size(status.memory.dirty_bytes),
            format_size(status.memory.dirty_limit_bytes)
        ),
        format!(
            "server    version {}, process {}, up {}",
            status.version,
            status.pid,
            duration(status.uptime_seconds)
        ),
    ];
    lines.extend(warning_lines(&status.warnings));
    lines.push(String::new());
    lines.push(disk_table(&status.disks));
    lines.push(String::new());
    lines.push(volume_table(&status.volumes));
    lines.join("\n")
}

/// What needs attention, each with what to do next; or that nothing needs to be done.
pub fn warning_lines(warnings: &[WarningView]) -> Vec<String> {
    if warnings.is_empty() {
        return vec!["next      nothing needs to be done".to_owned()];
    }
    let each = warnings.iter().flat_map(|warning| {
        let mark = match warning.severity {
            Severity::Error => "ERROR",
            Severity::Warning => "warning",
            Severity::Info => "note",
        };
        [
            format!("{mark:<9} {}", print::name(&warning.message)),
            format!("  next    {}", print::name(&warning.next)),
        ]
    });
    each.collect()
}

fn nfs_address(status: &Status) -> String {
    let rpcbind = if status.nfs.rpcbind {
        ", and rpcbind on port 111"
    } else {
        ""
    };
    format!("{} port {}{rpcbind}", status.nfs.address, status.nfs.port)
}

pub fn volume_table(volumes: &[VolumeView]) -> String {
    const COLUMNS: &[Column] = &[
        ("VOLUME", Align::Left),
        ("STATE", Align::Left),
        ("PROTECTION", Align::Left),
        ("LAYOUT", Align::Left),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("LIMIT", Align::Right),
        ("INODES", Align::Right),
        ("PATTERN", Align::Left),
        ("COMPRESSION", Align::Left),
        ("EXPORTED", Align::Left),
        ("CLONE OF", Align::Left),
    ];
    let has_clones = volumes.iter().any(|volume| volume.clone_of.is_some());
    let columns = &COLUMNS[..COLUMNS.len() - usize::from(!has_clones)];
    let rows = volumes.iter().map(|volume| {
        let mut row = vec![
            volume.name.to_string(),
            if volume.serving { "ok" } else { "FAILED" }.to_owned(),
            volume.settings.protection.to_string(),
            volume.layout.clone(),
            format_size(volume.used_bytes),
            format_size(volume.free_bytes),
            volume.settings.size_limit.to_string(),
            volume.inodes.to_string(),
            volume.settings.access_pattern.to_string(),
            volume.settings.compression.to_string(),
            if volume.exported { "yes" } else { "no" }.to_owned(),
        ];
        if has_clones {
            let origin = volume.clone_of.as_ref().map(ToString::to_string);
            row.push(origin.unwrap_or_default());
        }
        row
    });
    print::table(columns, rows.collect())
}

pub fn size_or_none(bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        format_size(bytes)
    }
}

pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::warnings::WarningKind;

    use super::*;

    #[test]
    fn nothing_to_do_stands_beside_no_warning() {
        let warning = WarningView {
            kind: WarningKind::NodeAway,
            severity: Severity::Warning,
            subject: "node two".to_owned(),
            volume: None,
            node: Some("two".to_owned()),
            disk: None,
            count: None,
            wanted: None,
            message: "node two is away".to_owned(),
            next: "start it".to_owned(),
        };
        let nothing = ["next      nothing needs to be done"];
        assert_eq!(warning_lines(&[]), nothing);
        let lines = ["warning   node two is away", "  next    start it"];
        assert_eq!(warning_lines(&[warning]), lines);
    }

    #[test]
    fn durations_are_short() {
        let cases: &[(u64, &str)] = &[
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3660, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ];
        for (seconds, want) in cases {
            assert_eq!(duration(*seconds), *want);
        }
    }
}
