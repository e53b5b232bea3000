//! Attributes and names as people and programs read them.
//!
//! Owns: `-rwxr-xr-x`, dates, names that are not text, the JSON of a file.
//! Must not know: where files come from.

use std::fmt::Write;

use cairn_base::printable::is_plain;
use cairn_nfs_client::v3::{FileAttr, FileType, NfsTime};
use serde::Serialize;

/// A file as `--json` shows it; the fields are an interface that scripts rely on.
#[derive(Debug, Serialize)]
pub(crate) struct FileJson {
    pub name: String,
    /// The bytes of the name in hexadecimal, if it is not UTF-8 and `name` only resembles it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    #[serde(rename = "type")]
    pub file_type: &'static str,
    /// In octal, as chmod takes it.
    pub mode: String,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub used_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub fsid: u64,
    pub fileid: u64,
    pub accessed: String,
    pub modified: String,
    pub changed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

impl FileJson {
    pub fn new(name: &[u8], attributes: &FileAttr, link_target: Option<&[u8]>) -> Self {
        let text = std::str::from_utf8(name);
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        };
        let is_device = matches!(
            attributes.file_type,
            FileType::BlockDevice | FileType::CharDevice
        );
        let device = attributes.device;
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            name_hex: text.is_err().then(|| hex(name)),
            file_type: type_name(attributes.file_type),
            mode: format!("{:04o}", attributes.mode & 0o7777),
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size_bytes: attributes.size_bytes,
            used_bytes: attributes.used_bytes,
            device: is_device.then(|| format!("{}:{}", device.major, device.minor)),
            fsid: attributes.fsid,
            fileid: attributes.fileid,
            accessed: time(attributes.atime),
            modified: time(attributes.mtime),
            changed: time(attributes.ctime),
            link_target: link_target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

pub(crate) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::CharDevice => "character device",
        FileType::Symlink => "symlink",
        FileType::Socket => "socket",
        FileType::Fifo => "fifo",
    }
}

/// Type and mode as `ls -l` shows them.
pub(crate) fn mode(attributes: &FileAttr) -> String {
    let mode = attributes.mode;
    let mut shown = String::with_capacity(10);
    shown.push(match attributes.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
        FileType::Fifo => 'p',
    });
    for (shift, special, with_x, without_x) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        shown.push(if bits & 4 != 0 { 'r' } else { '-' });
        shown.push(if bits & 2 != 0 { 'w' } else { '-' });
        shown.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => with_x,
            (false, true) => without_x,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// RFC 3339 in UTC, to the nanosecond.
pub(crate) fn time(time: NfsTime) -> String {
    let (seconds, nanos) = (u64::from(time.seconds), time.nanos);
    let (year, month, day) = civil_date(seconds / 86_400);
    let in_day = seconds % 86_400;
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// The time to the minute, for `ls -l`.
pub(crate) fn time_short(at: NfsTime) -> String {
    let mut shown = time(at).replace('T', " ");
    shown.truncate("2026-01-01 00:00".len());
    shown
}

/// Year, month and day so many days after 1 January 1970.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march {
        0..10 => month_from_march + 3,
        _ => month_from_march - 9,
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// A name for output: as it is for programs, with control characters escaped for terminals, which
/// would obey them.
pub(crate) fn name(name: &[u8], is_terminal: bool) -> Vec<u8> {
    if !is_terminal {
        return name.to_vec();
    }
    let mut shown = String::new();
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match is_plain(char) {
                true => shown.push(char),
                false => shown.extend(char.escape_default()),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown.into_bytes()
}

#[cfg(test)]
mod tests {
    use cairn_nfs_client::v3::DeviceNumber;

    use super::*;

    fn attributes(file_type: FileType, mode: u32) -> FileAttr {
        let time = NfsTime::default();
        FileAttr {
            file_type,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            device: DeviceNumber { major: 1, minor: 3 },
            fsid: 0,
            fileid: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    #[test]
    fn modes_are_shown_as_ls_does() {
        let cases = [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Regular, 0o6755, "-rwsr-sr-x"),
            (FileType::Regular, 0o7000, "---S--S--T"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
        ];
        for (file_type, bits, want) in cases {
            assert_eq!(mode(&attributes(file_type, bits)), want);
        }
    }

    #[test]
    fn times_are_shown_in_utc() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_399, "2000-02-28T23:59:59.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
            (u32::MAX, "2106-02-07T06:28:15.000000007Z"),
        ];
        for (seconds, want) in cases {
            assert_eq!(time(NfsTime { seconds, nanos: 7 }), want);
        }
    }

    #[test]
    fn names_cannot_command_a_terminal() {
        let cases: &[(&[u8], bool, &[u8])] = &[
            (b"plain", true, b"plain"),
            ("grün".as_bytes(), true, "grün".as_bytes()),
            (b"a\x1b[2J\n", true, b"a\\u{1b}[2J\\n"),
            (b"a\xffb", true, b"a\\xffb"),
            (b"a\x1b\xff", false, b"a\x1b\xff"),
        ];
        for (bytes, is_terminal, want) in cases {
            assert_eq!(name(bytes, *is_terminal), *want);
        }
    }

    #[test]
    fn json_tells_names_that_are_not_text() {
        let json = FileJson::new(b"a\xff", &attributes(FileType::CharDevice, 0o600), None);
        let json = serde_json::to_value(json).expect("JSON");
        assert_eq!(json["name_hex"], "61ff");
        assert_eq!(json["device"], "1:3");
        assert_eq!(json["mode"], "0600");
    }
}
