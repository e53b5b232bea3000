//! The directory that is measured: checks, the folder of the run, its mount, its caches.
//!
//! Owns: what happens on the target besides the load. Must not know: phases, fio.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, statvfs};

use crate::engine::{EngineError, RUN_FOLDER};

/// Its presence tells that a folder is from a run and may be removed.
const MARKER: &str = ".made-by-cairn-bench";
const MARKER_TEXT: &str = "Files of a benchmark; `cairn bench` removes this folder.\n";
/// What makes a directory no less empty: the run folder is looked at on its own, the others are in
/// the root of a file system from the start.
const NOT_COUNTED: [&str; 3] = [RUN_FOLDER, "lost+found", ".snapshot"];
/// Other clients may be removing the same folder.
const REMOVE_ATTEMPTS: u32 = 100;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

fn failed(what: &str, path: &Path, error: &io::Error) -> EngineError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as a user who may write there",
        io::ErrorKind::ReadOnlyFilesystem => "; mount it writable",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there",
        _ => "",
    };
    EngineError::Target(format!("{what} {}: {error}{hint}", path.display()))
}

/// The absolute path of a directory that is there.
pub(super) fn directory(path: &Path) -> Result<PathBuf, EngineError> {
    let target = fs::canonicalize(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => EngineError::Target(format!(
            "{} is not there; make the directory, or mount what shall be measured",
            path.display()
        )),
        _ => failed("looking for", path, &error),
    })?;
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => Ok(target),
        Ok(_) => Err(EngineError::Target(format!(
            "{} is no directory; a benchmark writes files of its own into one",
            path.display()
        ))),
        Err(error) => Err(failed("looking at", path, &error)),
    }
}

pub(super) fn check_space(target: &Path, bytes_needed: u64) -> Result<(), EngineError> {
    let found = statvfs(target)
        .map_err(|error| failed("asking for the free space of", target, &error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // Some network file systems tell nothing.
    if found.f_blocks == 0 || free >= bytes_needed {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
    Err(EngineError::Target(format!(
        "{} has {} MiB free and the run needs {} MiB; make room or take a smaller size",
        target.display(),
        free / (1024 * 1024),
        mib(bytes_needed)
    )))
}

pub(super) fn check_empty(target: &Path, allow_files: bool) -> Result<(), EngineError> {
    let entries = fs::read_dir(target).map_err(|error| failed("listing", target, &error))?;
    if allow_files {
        return Ok(());
    }
    for entry in entries {
        let name = entry
            .map_err(|error| failed("listing", target, &error))?
            .file_name();
        if !NOT_COUNTED.iter().any(|not_counted| name == *not_counted) {
            return Err(EngineError::Target(format!(
                "{} is not empty (it has {:?}); take an empty directory, or allow files beside those of the run",
                target.display(),
                name.to_string_lossy()
            )));
        }
    }
    Ok(())
}

/// Makes the folder of the run, or empties that of an earlier run. Other clients of the same run do
/// the same before any of them writes.
pub(super) fn make_run_folder(folder: &Path) -> Result<(), EngineError> {
    match fs::create_dir(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => empty_run_folder(folder)?,
        Err(error) => return Err(failed("making", folder, &error)),
    }
    let marker = folder.join(MARKER);
    fs::write(&marker, MARKER_TEXT).map_err(|error| failed("writing", &marker, &error))
}

fn empty_run_folder(folder: &Path) -> Result<(), EngineError> {
    let found =
        fs::symlink_metadata(folder).map_err(|error| failed("looking at", folder, &error))?;
    let list = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(folder)?.collect() };
    let entries = match found.is_dir() {
        true => list().map_err(|error| failed("listing", folder, &error))?,
        false => Vec::new(),
    };
    let ours = found.is_dir()
        && (entries.is_empty() || entries.iter().any(|entry| entry.file_name() == MARKER));
    if !ours {
        return Err(EngineError::Target(format!(
            "{} is there and is not from a benchmark; remove it or take another directory",
            folder.display()
        )));
    }
    for entry in entries {
        if entry.file_name() == MARKER {
            continue;
        }
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir {
            remove_tree(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("removing the earlier run's", &path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn remove_run_folder(folder: &Path) -> Result<(), EngineError> {
    match fs::symlink_metadata(folder.join(MARKER)) {
        Ok(_) => remove_tree(folder).map_err(|error| failed("removing", folder, &error)),
        // Nothing of ours, or another client was faster.
        Err(_) => Ok(()),
    }
}

/// Removes a directory with all that is in it, while others may do the same.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    for _ in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir_all(folder) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                if !folder.exists() {
                    return Ok(());
                }
            }
            other => return other,
        }
    }
    fs::remove_dir_all(folder)
}

pub(super) fn make_folder(folder: &Path) -> Result<(), EngineError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("making", folder, &error))
        }
        _ => Ok(()),
    }
}

/// Writes files out and drops them from the page cache; says what it did.
pub(super) fn drop_caches(files: &[PathBuf], whole_machine: bool) -> String {
    let drop_one = |path: &PathBuf| -> io::Result<()> {
        let file = fs::File::open(path)?;
        // Only clean pages can be dropped.
        file.sync_all()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    };
    let dropped = files.iter().filter(|path| drop_one(path).is_ok()).count();
    let mut said = format!(
        "{dropped} of {} files were written out and dropped from the page cache of this machine \
         (posix_fadvise)",
        files.len()
    );
    if whole_machine {
        said += match fs::write(DROP_CACHES, "3\n") {
            Ok(()) => ", and so were all its clean caches (drop_caches)",
            Err(_) => "; its other caches stay (drop_caches takes root)",
        };
    }
    said + "; caches of a server behind the mount, and of disks, stay as they are"
}

/// The mount that a path is on: type, source, where, options.
pub(super) fn mount(target: &Path) -> Option<String> {
    let device = fs::metadata(target).ok()?.dev();
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    mount_of(
        &fs::read_to_string("/proc/self/mountinfo").ok()?,
        target,
        device,
    )
}

/// Source: proc(5), `/proc/[pid]/mountinfo`.
fn mount_of(mountinfo: &str, target: &Path, device: (u32, u32)) -> Option<String> {
    let device = format!("{}:{}", device.0, device.1);
    let mut best: Option<(usize, bool, String)> = None;
    for line in mountinfo.lines() {
        let Some((first, second)) = line.split_once(" - ") else {
            continue;
        };
        let fields: Vec<&str> = first.split(' ').collect();
        let (Some(its_device), Some(point), Some(options)) =
            (fields.get(2), fields.get(4), fields.get(5))
        else {
            continue;
        };
        let mut of_source = second.split(' ');
        let (Some(kind), Some(source)) = (of_source.next(), of_source.next()) else {
            continue;
        };
        let point = unescape(point);
        if !target.starts_with(&point) {
            continue;
        }
        let rank = (
            Path::new(&point).components().count(),
            *its_device == device,
        );
        // The last of several mounts on one place is the one that is seen.
        if best
            .as_ref()
            .is_none_or(|(depth, same, _)| rank >= (*depth, *same))
        {
            let of_super = of_source.next().unwrap_or_default();
            let shown = format!(
                "{kind} {} on {point} ({options}; {of_super})",
                unescape(source)
            );
            best = Some((rank.0, rank.1, shown));
        }
    }
    best.map(|(_, _, shown)| shown)
}

/// Octal escapes: `\040` is a space.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        let value = octal.map(|digits| {
            digits
                .iter()
                .fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'))
        });
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:28 / /mnt rw - tmpfs none rw
40 22 0:45 / /mnt/my\\040files rw,nosuid shared:1 - nfs host:/export rw,vers=3,rsize=1048576
41 22 0:46 / /mnt/my\\040files ro - nfs other:/export ro,vers=3
broken line
42 22 0:47 - nothing
";

    #[test]
    fn the_mount_of_a_path_is_found() {
        let cases = [
            (
                "/home/x",
                (254, 0),
                Some("ext4 /dev/vda on / (rw,relatime; rw)"),
            ),
            ("/mnt/other", (0, 28), Some("tmpfs none on /mnt (rw; rw)")),
            (
                "/mnt/my files/deep",
                (0, 46),
                Some("nfs other:/export on /mnt/my files (ro; ro,vers=3)"),
            ),
            (
                "/mnt/my files",
                (0, 45),
                Some("nfs host:/export on /mnt/my files (rw,nosuid; rw,vers=3,rsize=1048576)"),
            ),
            ("relative", (254, 0), None),
        ];
        for (path, device, want) in cases {
            assert_eq!(
                mount_of(MOUNTINFO, Path::new(path), device).as_deref(),
                want,
                "{path}"
            );
        }
        assert!(mount(Path::new("/")).is_some(), "this machine has a root");
    }

    #[test]
    fn escapes_are_undone() {
        for (text, want) in [
            ("a\\040b\\134", "a b\\"),
            ("\\09x", "\\09x"),
            ("\\777", "\\777"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescape(text), want, "{text}");
        }
    }

    #[test]
    fn only_the_folder_of_a_run_is_emptied_and_removed() {
        let target = tempfile::tempdir().expect("a temporary directory");
        let folder = target.path().join(RUN_FOLDER);
        make_run_folder(&folder).expect("the directory is empty");
        check_empty(target.path(), false).expect("the run's folder does not count");
        make_folder(&folder.join("data")).expect("the folder is ours");
        fs::write(folder.join("data/w0"), "x").expect("the folder is ours");
        // Another client comes, and then a later run.
        make_run_folder(&folder).expect("it is from a run");
        assert!(
            !folder.join("data").exists(),
            "an earlier run's files are gone"
        );
        remove_run_folder(&folder).expect("it is from a run");
        remove_run_folder(&folder).expect("it is gone, as after another client");
        assert!(!folder.exists());

        fs::create_dir(&folder).expect("it is gone");
        fs::write(folder.join("thesis"), "x").expect("the folder is there");
        make_run_folder(&folder).expect_err("a user's folder");
        remove_run_folder(&folder).expect("nothing to do");
        assert!(folder.join("thesis").exists());
        fs::write(target.path().join("letter"), "x").expect("the directory is ours");
        let error = check_empty(target.path(), false)
            .expect_err("a user's file")
            .to_string();
        assert!(error.contains("letter"), "{error}");
        check_empty(target.path(), true).expect("allowed");
    }

    #[test]
    fn targets_that_cannot_be_are_refused() {
        let target = tempfile::tempdir().expect("a temporary directory");
        let file = target.path().join("file");
        fs::write(&file, "x").expect("the directory is ours");
        directory(&file).expect_err("a file");
        directory(&target.path().join("absent")).expect_err("nothing");
        let error = check_space(target.path(), u64::MAX)
            .expect_err("more than there is")
            .to_string();
        assert!(error.contains("MiB free"), "{error}");
        check_space(target.path(), 1).expect("a byte");
    }
}
