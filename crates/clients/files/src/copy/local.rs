//! Files on this machine. Every call that may block runs on a thread for that.

use std::ffi::OsStr;
use std::fs::{self, File, ReadDir};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_nfs_client::v3::{DeviceNumber, FileType};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;

use super::meta::{Attributes, Identity, Meta, Time};
use super::tree::{Created, FileLocation, FoundFile, Listed, Lookup, Sink};

/// Entries of one page.
const PAGE_ENTRY_COUNT: usize = 256;

/// Runs `work` where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("the work was stopped")?
}

/// The mask that new files of this process get.
pub(super) fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

pub(super) async fn find(path: &Path, follow: bool) -> anyhow::Result<Lookup> {
    let path = path.to_owned();
    blocking(move || {
        let metadata = match follow {
            true => fs::metadata(&path),
            false => fs::symlink_metadata(&path),
        };
        match metadata {
            Ok(metadata) => Ok(Lookup::Found(FoundFile {
                // The rest must work on what was found, not on the link to it.
                place: FileLocation::Local(if follow {
                    fs::canonicalize(&path)?
                } else {
                    path
                }),
                meta: meta(&metadata),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lookup::Missing),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// The directory that `path` is in, and its name there.
pub(super) async fn find_parent(path: &Path) -> anyhow::Result<(FileLocation, Vec<u8>)> {
    let path = path.to_owned();
    blocking(move || {
        let name = path.file_name().context("it has no name")?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !fs::metadata(parent)?.is_dir() {
            bail!("not a directory");
        }
        Ok((
            FileLocation::Local(parent.to_owned()),
            name.as_bytes().to_vec(),
        ))
    })
    .await
}

pub(super) async fn found(path: &Path) -> anyhow::Result<FoundFile> {
    let path = path.to_owned();
    blocking(move || {
        Ok(FoundFile {
            meta: meta(&fs::symlink_metadata(&path)?),
            place: FileLocation::Local(path),
        })
    })
    .await
}

fn meta(metadata: &fs::Metadata) -> Meta {
    let file_type = metadata.file_type();
    let time = |seconds, nanos: i64| Time {
        seconds,
        nanos: nanos as u32,
    };
    Meta {
        file_type: if file_type.is_dir() {
            FileType::Directory
        } else if file_type.is_symlink() {
            FileType::Symlink
        } else if file_type.is_fifo() {
            FileType::Fifo
        } else if file_type.is_socket() {
            FileType::Socket
        } else if file_type.is_block_device() {
            FileType::BlockDevice
        } else if file_type.is_char_device() {
            FileType::CharDevice
        } else {
            FileType::Regular
        },
        mode: metadata.mode() & 0o7777,
        nlink: metadata.nlink(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        size_bytes: metadata.len(),
        used_bytes: metadata.blocks().saturating_mul(512),
        device: DeviceNumber {
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
        },
        id: (metadata.dev(), metadata.ino()),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Reads one directory.
pub(super) struct Listing {
    /// Away while a page is being read.
    entries: Option<ReadDir>,
}

pub(super) async fn list(path: &Path) -> anyhow::Result<Listing> {
    let path = path.to_owned();
    let entries = blocking(move || Ok(fs::read_dir(path)?)).await?;
    Ok(Listing {
        entries: Some(entries),
    })
}

impl Listing {
    pub async fn next_page(&mut self) -> anyhow::Result<Option<Vec<Listed>>> {
        let Some(mut entries) = self.entries.take() else {
            return Ok(None);
        };
        let (entries, page) = blocking(move || {
            let mut page = Vec::new();
            let mut is_end = true;
            for entry in entries.by_ref().take(PAGE_ENTRY_COUNT) {
                is_end = false;
                let entry = entry?;
                let found = match entry.metadata() {
                    Ok(metadata) => Ok(FoundFile {
                        place: FileLocation::Local(entry.path()),
                        meta: meta(&metadata),
                    }),
                    // Removed since it was listed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => Err(error.into()),
                };
                page.push((entry.file_name().into_vec(), found));
            }
            Ok((entries, (!is_end).then_some(page)))
        })
        .await?;
        self.entries = Some(entries);
        Ok(page)
    }
}

pub(super) async fn read_link(path: &Path) -> anyhow::Result<Vec<u8>> {
    let path = path.to_owned();
    blocking(move || Ok(fs::read_link(path)?.into_os_string().into_vec())).await
}

pub(super) async fn open(path: &Path) -> anyhow::Result<Arc<File>> {
    let path = path.to_owned();
    blocking(move || {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags as i32)
            .open(path)?;
        Ok(Arc::new(file))
    })
    .await
}

pub(super) async fn size_bytes(file: &Arc<File>) -> anyhow::Result<u64> {
    let file = Arc::clone(file);
    blocking(move || Ok(file.metadata()?.len())).await
}

pub(super) async fn read(
    file: &Arc<File>,
    offset: u64,
    mut buffer: AlignedBuf,
) -> anyhow::Result<Bytes> {
    let file = file.clone();
    blocking(move || {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.set_len(filled);
        Ok(buffer.freeze())
    })
    .await
}

pub(super) async fn next_data(
    file: &Arc<File>,
    start: u64,
    end: u64,
) -> anyhow::Result<Option<Range<u64>>> {
    let file = file.clone();
    blocking(move || {
        if start >= end {
            return Ok(None);
        }
        // The file's own position is not used otherwise.
        let data_start = match rustix::fs::seek(&file, SeekFrom::Data(start)) {
            Ok(data_start) => data_start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(start..end)),
            Err(error) => return Err(error.into()),
        };
        let data_end = rustix::fs::seek(&file, SeekFrom::Hole(data_start))?.min(end);
        Ok((data_start < data_end).then_some(data_start..data_end))
    })
    .await
}

pub(super) async fn make_dir(dir: &Path, name: &[u8], mode: u32) -> anyhow::Result<FileLocation> {
    let path = join(dir, name);
    blocking(move || {
        match fs::DirBuilder::new().mode(mode).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Not through a link: the tree that is copied must not choose where it goes.
                if !fs::symlink_metadata(&path)?.is_dir() {
                    bail!("at the destination there is something else of that name");
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(FileLocation::Local(path))
    })
    .await
}

pub(super) async fn create(dir: &Path, name: &[u8], source: Identity) -> anyhow::Result<Created> {
    let path = join(dir, name);
    blocking(move || {
        let mut options = fs::OpenOptions::new();
        // Nobody else reads it before it has its mode.
        options.write(true).mode(0o600);
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        options.custom_flags(flags as i32);
        let (file, existed) = match options.clone().create_new(true).open(&path) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let metadata = fs::symlink_metadata(&path)?;
                if !metadata.is_file() {
                    bail!("at the destination there is something else of that name");
                }
                let found = FoundFile {
                    place: FileLocation::Local(path.clone()),
                    meta: meta(&metadata),
                };
                if found.identity() == source {
                    bail!("it and the destination are the same file");
                }
                (options.truncate(true).open(&path)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Created {
            sink: Sink::Local(Arc::new(file)),
            place: FileLocation::Local(path),
            existed,
        })
    })
    .await
}

pub(super) async fn write(file: &Arc<File>, offset: u64, data: Bytes) -> anyhow::Result<()> {
    let file = file.clone();
    blocking(move || Ok(file.write_all_at(&data, offset)?)).await
}

pub(super) async fn symlink(
    dir: &Path,
    name: &[u8],
    target: &[u8],
    attributes: &Attributes,
) -> anyhow::Result<FileLocation> {
    let (path, target) = (join(dir, name), target.to_vec());
    let attributes = *attributes;
    blocking(move || {
        replacing(&path, || {
            std::os::unix::fs::symlink(OsStr::from_bytes(&target), &path)
        })?;
        apply(&path, attributes, FileType::Symlink)?;
        Ok(FileLocation::Local(path))
    })
    .await
}

pub(super) async fn make_special(
    dir: &Path,
    name: &[u8],
    like: &Meta,
    mode: u32,
    attributes: &Attributes,
) -> anyhow::Result<FileLocation> {
    let path = join(dir, name);
    let (like, attributes) = (*like, *attributes);
    blocking(move || {
        let file_type = match like.file_type {
            FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Socket => rustix::fs::FileType::Socket,
            _ => rustix::fs::FileType::Fifo,
        };
        let device = rustix::fs::makedev(like.device.major, like.device.minor);
        let mode = Mode::from_raw_mode(mode);
        replacing(&path, || {
            Ok(rustix::fs::mknodat(CWD, &path, file_type, mode, device)?)
        })?;
        apply(&path, attributes, like.file_type)?;
        Ok(FileLocation::Local(path))
    })
    .await
}

pub(super) async fn link(file: &Path, dir: &Path, name: &[u8]) -> anyhow::Result<()> {
    let (file, path) = (file.to_owned(), join(dir, name));
    blocking(move || {
        if let Ok(there) = fs::symlink_metadata(&path)
            && meta(&there).id == meta(&fs::symlink_metadata(&file)?).id
        {
            return Ok(());
        }
        Ok(replacing(&path, || fs::hard_link(&file, &path))?)
    })
    .await
}

pub(super) async fn remove(dir: &Path, name: &[u8]) -> anyhow::Result<()> {
    let path = join(dir, name);
    blocking(move || Ok(fs::remove_file(path)?)).await
}

pub(super) async fn set_attributes(
    path: &Path,
    attributes: Attributes,
    file_type: FileType,
) -> anyhow::Result<()> {
    let path = path.to_owned();
    blocking(move || Ok(apply(&path, attributes, file_type)?)).await
}

fn apply(path: &Path, attributes: Attributes, file_type: FileType) -> io::Result<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    if let Some(size_bytes) = attributes.size_bytes {
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let file = fs::OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)?;
        file.set_len(size_bytes)?;
    }
    let mut attributes = attributes;
    if let Some((uid, gid)) = attributes.owner {
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(uid),
            rustix::fs::Gid::from_raw(gid),
        );
        match rustix::fs::chownat(CWD, path, Some(uid), Some(gid), nofollow) {
            Err(Errno::PERM) => attributes = attributes.without_owner(),
            done => done?,
        }
    }
    // After the owner: a change of that clears set-uid. A link has no mode.
    if let Some(mode) = attributes.mode
        && file_type != FileType::Symlink
    {
        set_mode(path, Mode::from_raw_mode(mode))?;
    }
    if let Some((atime, mtime)) = attributes.times {
        let timespec = |time: Time| Timespec {
            tv_sec: time.seconds,
            tv_nsec: i64::from(time.nanos.min(999_999_999)),
        };
        let times = Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        };
        rustix::fs::utimensat(CWD, path, &times, nofollow)?;
    }
    Ok(())
}

/// Not through a link: a server that gives one name twice could have made one of the file meanwhile.
fn set_mode(path: &Path, mode: Mode) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let there = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if there == rustix::fs::FileType::Symlink {
        return Err(io::Error::other("it was replaced by a link"));
    }
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::chmodat(CWD, opened, mode, AtFlags::empty())?)
}

/// Makes something; if there is something else already, in its place.
fn replacing(path: &Path, make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Fails for directories, which is right.
            fs::remove_file(path)?;
            make()
        }
        made => made,
    }
}

fn join(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of which nothing is left is not the end.
    #[tokio::test]
    async fn names_behind_those_that_were_removed_are_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..PAGE_ENTRY_COUNT * 2 {
            File::create(folder.path().join(format!("{number}"))).expect("a file");
        }
        let mut entries = fs::read_dir(folder.path()).expect("listed");
        // All names are in memory once the first was read.
        let first = entries.next().expect("one").expect("read").file_name();
        let in_order: Vec<_> = fs::read_dir(folder.path())
            .expect("listed")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        assert_eq!(in_order[0], first);
        for name in &in_order[1..=PAGE_ENTRY_COUNT] {
            fs::remove_file(folder.path().join(name)).expect("removed");
        }
        let mut listing = Listing {
            entries: Some(entries),
        };
        let mut found = 0;
        while let Some(page) = listing.next_page().await.expect("a page") {
            found += page.len();
        }
        assert_eq!(found, PAGE_ENTRY_COUNT - 1);
    }
}
