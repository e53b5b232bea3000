//! On which device a folder is, and which drives are below that.
//!
//! Owns: what the kernel says of mounts (`/proc/self/mountinfo`) and of block devices (`/sys/dev/block`).
//! Must not know: what the pool makes of two folders on one drive.
//!
//! All of it asks the kernel about folders, which may hang: callers ask past what would notice that.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairn_base::disk::DiskDevice;
use rustix::fs::{major, minor};

/// Block devices that are looked at below one file system. More than any machine stacks.
const DEVICES_MAX: usize = 4096;

/// Where a folder is, as a person knows places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    /// The kind of file system, such as `xfs`.
    pub kind: String,
    /// The mounted device, such as `/dev/sda1`.
    pub source: String,
}

/// Which device bears a folder that is there.
pub fn device_of(folder: &Path) -> io::Result<DiskDevice> {
    let number = fs::metadata(folder)?.dev();
    let of_file_system = (major(number), minor(number));
    // Btrfs gives each subvolume a number of its own that no block device has. Its source is the device that it is on.
    let of_source = || {
        let source = mount_of(folder).ok()?.source;
        let number = match source.starts_with("/dev/") {
            true => fs::metadata(source).ok()?.rdev(),
            false => 0,
        };
        (number != 0).then(|| (major(number), minor(number)))
    };
    let number = match of_file_system {
        (0, _) => of_source().unwrap_or(of_file_system),
        (_, _) => of_file_system,
    };
    Ok(DiskDevice {
        file_system: text(number),
        drives: drives_of(Path::new("/sys"), number),
    })
}

fn text((major, minor): (u32, u32)) -> String {
    format!("{major}:{minor}")
}

/// The drives below a block device: the parent of a partition, and what a mapped device or an array is made of. The number itself
/// where `sys` does not know it.
///
/// Source: Documentation/ABI/testing/sysfs-block and stable/sysfs-block of Linux (`partition`, `slaves`).
pub fn drives_of(sys: &Path, number: (u32, u32)) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let start = sys.join("dev/block").join(text(number)).canonicalize();
    let mut ahead: Vec<PathBuf> = start.into_iter().collect();
    while let Some(at) = ahead.pop() {
        // Links that lead in a circle end here.
        if seen.len() >= DEVICES_MAX || !seen.insert(at.clone()) {
            continue;
        }
        let parent = at.parent().map(Path::to_owned);
        let whole = match parent {
            Some(parent) if at.join("partition").exists() => parent,
            _ => at,
        };
        let below = fs::read_dir(whole.join("slaves"));
        let below = below.into_iter().flatten().flatten();
        let below: Vec<PathBuf> = below
            .filter_map(|entry| entry.path().canonicalize().ok())
            .collect();
        match (below.is_empty(), whole.file_name()) {
            (true, Some(name)) => {
                found.insert(name.to_string_lossy().into_owned());
            }
            (_, _) => ahead.extend(below),
        }
    }
    if found.is_empty() {
        found.insert(text(number));
    }
    found
}

/// The mount that a folder is on, or would be on if it existed.
pub fn mount_of(folder: &Path) -> io::Result<Mount> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let place = std::path::absolute(folder)?;
    let there = place.ancestors().find_map(|part| part.canonicalize().ok());
    let there = there.unwrap_or_else(|| PathBuf::from("/"));
    let found = mount_in(&mounts, &there);
    found.ok_or_else(|| io::Error::other(format!("no mount has {}", there.display())))
}

/// The mount of `place`, a path without links, in the text of `mountinfo`.
///
/// Source: proc_pid_mountinfo(5): ID, parent, MAJOR:MINOR, root, mount point, options, optional fields, `-`, kind, source, options.
fn mount_in(mounts: &str, place: &Path) -> Option<Mount> {
    let mounts = mounts.lines().filter_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(head.split(' ').nth(4)?));
        let mut tail = tail.split(' ');
        let kind = unescape(tail.next()?);
        let source = unescape(tail.next()?);
        place.starts_with(&point).then_some(Mount {
            point,
            kind,
            source,
        })
    });
    // Of two that are mounted at one place, the later one is seen: `max_by_key` returns the last of the longest.
    mounts.max_by_key(|mount| mount.point.components().count())
}

/// Space, tab, line feed and backslash are octal numbers in `mountinfo`.
fn unescape(text: &str) -> String {
    let coded = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let text = text.to_owned();
    // The backslash comes last: what it makes is no code.
    coded
        .iter()
        .fold(text, |text, (code, char)| text.replace(code, char))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A /sys with a drive `sda` with two partitions, `nvme0n1`, an array `md0` of `sda2` and `nvme0n1`, a volume `dm-0` on it,
    /// and two mapped devices that name one another.
    fn fake_sys() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let devices = [
            ("8:0", "devices/pci/block/sda"),
            ("8:1", "devices/pci/block/sda/sda1"),
            ("8:2", "devices/pci/block/sda/sda2"),
            ("259:0", "devices/pci/nvme/nvme0n1"),
            ("9:0", "devices/virtual/block/md0"),
            ("253:0", "devices/virtual/block/dm-0"),
            ("253:1", "devices/virtual/block/dm-1"),
            ("253:2", "devices/virtual/block/dm-2"),
        ];
        fs::create_dir_all(at("dev/block")).unwrap();
        for (number, path) in devices {
            fs::create_dir_all(at(path).join("slaves")).unwrap();
            symlink(at(path), at("dev/block").join(number)).unwrap();
        }
        for partition in ["sda1", "sda2"] {
            let partition = at("devices/pci/block/sda").join(partition);
            fs::remove_dir(partition.join("slaves")).unwrap();
            fs::write(partition.join("partition"), "1\n").unwrap();
        }
        for (device, below) in [
            ("md0", "devices/pci/block/sda/sda2"),
            ("md0", "devices/pci/nvme/nvme0n1"),
            ("dm-0", "devices/virtual/block/md0"),
            ("dm-1", "devices/virtual/block/dm-2"),
            ("dm-2", "devices/virtual/block/dm-1"),
        ] {
            let slaves = at("devices/virtual/block").join(device).join("slaves");
            let name = Path::new(below).file_name().unwrap();
            symlink(at(below), slaves.join(name)).unwrap();
        }
        root
    }

    #[test]
    fn the_drives_below_a_device_are_found() {
        let sys = fake_sys();
        let cases: &[((u32, u32), &[&str])] = &[
            ((8, 0), &["sda"]),
            ((8, 1), &["sda"]),
            ((8, 2), &["sda"]),
            ((259, 0), &["nvme0n1"]),
            ((9, 0), &["nvme0n1", "sda"]),
            ((253, 0), &["nvme0n1", "sda"]),
            // A circle has no drive: the device is told by its number.
            ((253, 1), &["253:1"]),
            // A file system without a device: tmpfs, NFS, overlay.
            ((0, 45), &["0:45"]),
        ];
        for (number, want) in cases {
            let got: Vec<String> = drives_of(sys.path(), *number).into_iter().collect();
            assert_eq!(got, *want, "{number:?}");
        }
        let nowhere = drives_of(Path::new("/nonexistent"), (8, 1));
        assert_eq!(nowhere.into_iter().collect::<Vec<_>>(), ["8:1"]);
    }

    #[test]
    fn the_mount_of_a_place_is_the_deepest_and_the_last() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 22 8:17 / /srv/disk\\0401 rw - xfs /dev/sdb1 rw\n\
                      31 22 0:40 / /srv/tmp rw - tmpfs first rw\n\
                      32 22 0:41 / /srv/tmp rw shared:9 - tmpfs second rw\n\
                      damaged line\n";
        let cases = [
            ("/srv/disk9/data", "/", "ext4", "/dev/sda1"),
            ("/srv/disk 1/data", "/srv/disk 1", "xfs", "/dev/sdb1"),
            ("/srv/disk 1", "/srv/disk 1", "xfs", "/dev/sdb1"),
            ("/srv/tmp/a", "/srv/tmp", "tmpfs", "second"),
            ("/", "/", "ext4", "/dev/sda1"),
        ];
        for (place, point, kind, source) in cases {
            let want = Mount {
                point: point.into(),
                kind: kind.to_owned(),
                source: source.to_owned(),
            };
            assert_eq!(mount_in(mounts, Path::new(place)), Some(want), "{place}");
        }
        assert_eq!(mount_in("", Path::new("/")), None);
    }

    #[test]
    fn folders_of_one_file_system_are_on_one_device() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (root.path().join("one"), root.path().join("other"));
        for folder in [&one, &other] {
            fs::create_dir(folder).unwrap();
        }
        let of = |folder: &Path| device_of(folder).unwrap();
        assert_eq!(of(&one), of(&other));
        assert!(!of(&one).drives.is_empty());
        assert!(device_of(&root.path().join("absent")).is_err());
        // Where it would be is known all the same.
        assert_eq!(
            mount_of(&root.path().join("absent/deeper")).unwrap(),
            mount_of(&one).unwrap()
        );
    }
}
