//! The folder of a disk: names, the lock, and what makes a name durable.
//!
//! Owns: opening, creating, removing, renaming and listing files; the lock file.
//! Must not know: how bytes get to the kernel (`engine`), what is in the files.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use cairn_base::AlignedBuf;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::{
    Disk, DiskDevice, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode, write_zeros,
};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::buf_pool::{BufPool, ReadBuffers};
use crate::device::device_of;
use crate::engine::Engine;
use crate::file::RealFile;
use crate::op::OsFile;
use crate::usage::Usage;
use crate::workers::END_MAX;

/// Holds the lock and our process id; not a file of the disk's users.
pub const LOCK_NAME: &str = "lock";
/// Made and removed at each start to find out whether the file system takes direct I/O.
const PROBE_NAME: &str = "probe.tmp";
/// So many file descriptors of those that the process may have are never given to files: who opens its own,
/// as RocksDB does, cannot wait for one as we can, and would fail for good.
const DESCRIPTORS_SPARED: u64 = 32;
const NAME_PART_LEN_BYTES_MAX: usize = 255;

/// How requests get to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring, or threads where the kernel or a container refuses it.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    Threads,
}

/// Settings of one disk.
#[derive(Clone, Debug)]
pub struct DiskSettings {
    pub engine: EngineChoice,
    /// Use O_DIRECT where the file system takes it; otherwise the page cache and fdatasync.
    pub direct: bool,
    /// Most bytes that our files may take; `None`: all that the file system gives.
    pub size_limit_bytes: Option<u64>,
    /// Requests queued and in flight at once (1..=4096); more callers wait.
    pub in_flight_max: u32,
    /// Threads that do the I/O when io_uring does not (1..=256).
    pub thread_count: usize,
    /// Make the folder, and missing folders above it, where it does not exist. Else opening it fails.
    pub make_folder: bool,
    /// What it reads into; by default it shares these with no other disk.
    pub buffers: ReadBuffers,
}

impl Default for DiskSettings {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            direct: true,
            size_limit_bytes: None,
            in_flight_max: 256,
            thread_count: 8,
            make_folder: true,
            buffers: ReadBuffers::default(),
        }
    }
}

/// What a disk and its open files share. The last of them releases the lock.
pub(crate) struct Core {
    pub(crate) label: String,
    pub(crate) engine: Engine,
    pub(crate) bufs: Arc<BufPool>,
    pub(crate) usage: Arc<Usage>,
    /// Writes that threads of others make, past the engine.
    pub(crate) inline_writes: AtomicUsize,
    /// Released when nothing is in flight any more.
    lock: Option<File>,
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.engine.end(Instant::now() + END_MAX) {
            tracing::error!(
                disk = self.label,
                "operations have no answer at the end of the disk; its folder stays locked until this process ends"
            );
            // Transfers under way may still land there: nobody else must take the folder for quiet.
            std::mem::forget(self.lock.take());
        } else if let Some(lock) = &self.lock {
            // Closing it is not enough: a process that is just being started has a copy of it until it executes.
            let _ = rustix::fs::flock(lock.as_fd(), FlockOperation::Unlock);
        }
    }
}

impl Core {
    /// The error of `what` (a phrase such as "writing NAME at byte 0").
    pub(crate) fn error(&self, what: String, error: &io::Error) -> DiskError {
        disk_error(&self.label, what, error)
    }

    pub(crate) fn full(&self, what: String) -> DiskError {
        DiskError::Full {
            disk: self.label.clone(),
            what,
        }
    }
}

/// A disk that is a folder of the local file system, held by this process alone.
pub struct RealDisk {
    core: Arc<Core>,
    root: Root,
    direct: bool,
    device: Option<DiskDevice>,
    /// Disks of the pool on its file system, this one included.
    sharers: AtomicU64,
}

/// The folder that was opened. Names are looked up by path, and something else may be at that path by now:
/// another drive, or, where one was unmounted, the file system below it. Neither is ours.
#[derive(Clone)]
struct Root {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Kept open, so that no other folder gets its number.
    _folder: Arc<File>,
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        let metadata = folder.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            _folder: Arc::new(folder),
        })
    }

    /// Fails if another folder is at its path now.
    fn check(&self) -> io::Result<()> {
        let metadata = std::fs::metadata(&self.path);
        let metadata = metadata.map_err(|error| {
            io::Error::other(format!("the folder of the disk is gone: {error}"))
        })?;
        if (metadata.dev(), metadata.ino()) == (self.device, self.inode) {
            return Ok(());
        }
        Err(io::Error::other(
            "another folder is where that of the disk was: is another drive mounted there?",
        ))
    }
}

impl RealDisk {
    /// Takes the folder at `path`, which is made if it is missing and the settings say so.
    ///
    /// Fails with `Io` when another process holds it (the message names its pid), when io_uring was
    /// demanded and is refused, or when the folder cannot be made or written.
    pub fn open(path: impl AsRef<Path>, settings: DiskSettings) -> Result<Arc<Self>, DiskError> {
        let path = path.as_ref();
        let given = path.display().to_string();
        let fail = |what: &str, error: io::Error| disk_error(&given, what.to_owned(), &error);
        if settings.make_folder {
            make_root(path).map_err(|error| fail("making the folder", error))?;
        }
        let root = path
            .canonicalize()
            .map_err(|error| fail("resolving the path", error))?;
        let label = root.display().to_string();
        let lock = take_lock(&root, &label)?;
        let opened = Root::open(&root).map_err(|error| fail("opening the folder", error))?;
        let direct = settings.direct
            && takes_direct(&root).map_err(|error| fail("writing a probe file", error))?;
        let usage = Usage::scan(&root, settings.size_limit_bytes)
            .map_err(|error| fail("counting the space in use", error))?;
        let engine =
            Engine::start(&settings).map_err(|error| fail("starting the I/O engine", error))?;
        let device = match device_of(&root) {
            Ok(device) => Some(device),
            Err(error) => {
                tracing::warn!(disk = label, %error, "on which device a disk is cannot be seen");
                None
            }
        };
        tracing::debug!(disk = label, engine = engine.name(), direct, "disk opened");
        Ok(Arc::new(Self {
            core: Arc::new(Core {
                label,
                engine,
                bufs: settings.buffers.0,
                usage: Arc::new(usage),
                inline_writes: AtomicUsize::new(0),
                lock: Some(lock),
            }),
            root: opened,
            direct,
            device,
            sharers: AtomicU64::new(1),
        }))
    }

    /// `io_uring` or `threads`.
    pub fn engine_name(&self) -> &'static str {
        self.core.engine.name()
    }

    /// Whether files are opened with O_DIRECT.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn path_of(&self, name: &str) -> Result<PathBuf, DiskError> {
        match check_name(name) {
            Ok(()) => Ok(self.root.path.join(name)),
            Err(reason) => Err(DiskError::Io {
                disk: self.core.label.clone(),
                what: format!("checking the name {name:?}"),
                detail: reason.to_owned(),
            }),
        }
    }

    fn folder_path_of(&self, folder: &str) -> Result<PathBuf, DiskError> {
        if folder.is_empty() {
            return Ok(self.root.path.clone());
        }
        self.path_of(folder)
    }

    /// The error of doing `what` to the file `name`, in the trait's words.
    fn name_error(&self, what: &str, name: &str, error: &io::Error) -> DiskError {
        let disk = self.core.label.clone();
        let name = name.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => DiskError::NotFound { disk, name },
            io::ErrorKind::AlreadyExists => DiskError::Exists { disk, name },
            _ => self.core.error(format!("{what} {name}"), error),
        }
    }

    async fn open_file(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = self.path_of(name)?;
        match mode {
            OpenMode::Existing => {
                let (root, direct) = (self.root.clone(), self.direct);
                let os_file = self.core.engine.call(move || {
                    root.check()?;
                    open_existing(&path, direct)
                });
                let os_file = os_file
                    .await
                    .map_err(|error| self.name_error("opening", name, &error))?;
                Ok(self.file(name, os_file))
            }
            OpenMode::CreateNew { len_bytes } => {
                let os_file = self.create(name, path, len_bytes).await?;
                Ok(self.file(name, os_file))
            }
            OpenMode::CreateZeroed { len_bytes } => {
                let os_file = self.create(name, path, len_bytes).await?;
                let file = self.file(name, os_file);
                if let Err(error) = write_zeros(&*file, len_bytes).await {
                    // Half a file must not look like a whole one; the first error is the one to tell.
                    let _ = self.remove_file(name).await;
                    return Err(error);
                }
                Ok(file)
            }
        }
    }

    fn file(&self, name: &str, os_file: Arc<OsFile>) -> Arc<dyn DiskFile> {
        Arc::new(RealFile::new(self.core.clone(), name.to_owned(), os_file))
    }

    async fn create(
        &self,
        name: &str,
        path: PathBuf,
        len_bytes: u64,
    ) -> Result<Arc<OsFile>, DiskError> {
        if !self.core.usage.grow(0, len_bytes) {
            return Err(self.core.full(format!("creating {name}")));
        }
        let (root, direct) = (self.root.clone(), self.direct);
        let created = self.core.engine.call(move || {
            root.check()?;
            with_parent(&root.path, &path, || {
                create_allocated(&path, direct, len_bytes)
            })
        });
        created.await.map_err(|error| {
            self.core.usage.shrink(len_bytes, 0);
            match error.kind() {
                // Of the file, not of its parents.
                io::ErrorKind::AlreadyExists => self.name_error("creating", name, &error),
                _ => self.core.error(format!("creating {name}"), &error),
            }
        })
    }

    async fn remove_file(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path_of(name)?;
        let root = self.root.clone();
        let limited = self.core.usage.limit_bytes().is_some();
        let removed = self.core.engine.call(move || {
            root.check()?;
            let len_bytes = if limited { path.metadata()?.len() } else { 0 };
            std::fs::remove_file(&path)?;
            Ok(len_bytes)
        });
        let len_bytes = removed
            .await
            .map_err(|error| self.name_error("removing", name, &error))?;
        self.core.usage.shrink(len_bytes, 0);
        Ok(())
    }

    async fn rename_file(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from_path, to_path) = (self.path_of(from)?, self.path_of(to)?);
        let root = self.root.clone();
        let limited = self.core.usage.limit_bytes().is_some();
        let renamed = self.core.engine.call(move || {
            root.check()?;
            // Asked first, so that a missing file is not taken for a missing folder.
            from_path.symlink_metadata()?;
            let replaced_len_bytes = match to_path.metadata() {
                Ok(metadata) if limited => metadata.len(),
                _ => 0,
            };
            with_parent(&root.path, &to_path, || {
                std::fs::rename(&from_path, &to_path)
            })?;
            Ok(replaced_len_bytes)
        });
        let replaced_len_bytes = renamed
            .await
            .map_err(|error| self.name_error("renaming", from, &error))?;
        self.core.usage.shrink(replaced_len_bytes, 0);
        Ok(())
    }

    async fn list_files(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        let path = self.folder_path_of(folder)?;
        let is_top = folder.is_empty();
        let root = self.root.clone();
        let listed = self.core.engine.call(move || {
            root.check()?;
            list_names(&path, is_top)
        });
        listed.await.map_err(|error| {
            self.core
                .error(format!("listing the folder {folder:?}"), &error)
        })
    }

    async fn recount_others(&self) -> Result<(), DiskError> {
        if self.core.usage.limit_bytes().is_none() {
            return Ok(());
        }
        // Not the core: the last of those who hold it waits for the threads, of which this is one.
        let (root, usage) = (self.root.clone(), self.core.usage.clone());
        let counted = self.core.engine.call(move || {
            root.check()?;
            usage.recount(&root.path)
        });
        counted
            .await
            .map_err(|error| self.core.error("counting the space in use".into(), &error))
    }

    async fn sync_folder_names(&self, folder: &str) -> Result<(), DiskError> {
        let path = self.folder_path_of(folder)?;
        let root = self.root.clone();
        let synced = self.core.engine.call(move || {
            root.check()?;
            match sync_folder_at(&path) {
                // No folder, so no names in it to keep.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            }
        });
        synced.await.map_err(|error| {
            self.core
                .error(format!("syncing the folder {folder:?}"), &error)
        })
    }
}

impl Disk for RealDisk {
    fn label(&self) -> &str {
        &self.core.label
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        Box::pin(self.open_file(name, mode))
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        Box::pin(self.remove_file(name))
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        Box::pin(self.rename_file(from, to))
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        Box::pin(self.list_files(folder))
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        Box::pin(self.sync_folder_names(folder))
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        let here = self.root.check();
        here.map_err(|error| self.core.error("asking for free space".into(), &error))?;
        let stat = rustix::fs::statvfs(&self.root.path).map_err(|errno| {
            self.core
                .error("asking for free space".into(), &errno.into())
        })?;
        let total_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        let usage = &self.core.usage;
        let sharers = self.sharers.load(Ordering::Relaxed).max(1);
        Ok(DiskSpace {
            total_bytes: (total_bytes / sharers).min(usage.limit_bytes().unwrap_or(u64::MAX)),
            free_bytes: (free_bytes / sharers).min(usage.free_bytes()),
        })
    }

    fn device(&self) -> Option<&DiskDevice> {
        self.device.as_ref()
    }

    fn is_idle(&self) -> bool {
        self.core.engine.is_idle() && self.core.inline_writes.load(Ordering::Acquire) == 0
    }

    fn share_file_system(&self, disks: usize) {
        let sharers = u64::try_from(disks).unwrap_or(u64::MAX);
        self.sharers.store(sharers, Ordering::Relaxed);
    }

    fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
        Box::pin(self.recount_others())
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root.path)
    }
}

pub(crate) fn disk_error(label: &str, what: String, error: &io::Error) -> DiskError {
    let disk = label.to_owned();
    match error.raw_os_error() {
        _ if is_full(error) => DiskError::Full { disk, what },
        Some(libc::EMFILE | libc::ENFILE) => DiskError::NoDescriptor { disk, what },
        _ => DiskError::Io {
            disk,
            what,
            detail: error.to_string(),
        },
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Names are relative, of parts of `[a-z0-9._-]` that are not `.` or `..`.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name == LOCK_NAME {
        return Err("this name is the lock's");
    }
    for part in name.split('/') {
        if part.is_empty() {
            return Err("a name is relative and has no empty parts");
        }
        if part == "." || part == ".." {
            return Err("`.` and `..` are not allowed");
        }
        if part.len() > NAME_PART_LEN_BYTES_MAX {
            return Err("a part of the name is longer than 255 bytes");
        }
        let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        if !part.bytes().all(allowed) {
            return Err("only a-z, 0-9, `.`, `_` and `-` are allowed");
        }
    }
    Ok(())
}

fn take_lock(root: &Path, label: &str) -> Result<File, DiskError> {
    let fail = |error: io::Error| disk_error(label, "taking the lock".into(), &error);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(root.join(LOCK_NAME))
        .map_err(fail)?;
    match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            // The holder writes its pid just after it has the lock, so it may not be there yet.
            let mut pid = String::new();
            let _ = file.take(20).read_to_string(&mut pid);
            return Err(DiskError::InUse {
                disk: label.to_owned(),
                pid: pid.trim().parse().ok(),
            });
        }
        Err(errno) => return Err(fail(errno.into())),
    }
    tell_pid(&file).map_err(fail)?;
    Ok(file)
}

/// Writes our process id over that of the last holder. It is there to be told: what counts is the lock, and where no
/// block is free for this the disk can be opened all the same.
fn tell_pid(file: &File) -> io::Result<()> {
    let pid = format!("{}\n", std::process::id());
    // Its block is not given back before: it might be gone to somebody else.
    match file.write_all_at(pid.as_bytes(), 0) {
        Err(error) if is_full(&error) => {
            // Better no process is named than the last one.
            let _ = file.set_len(0);
            Ok(())
        }
        written => written.and_then(|()| file.set_len(pid.len() as u64)),
    }
}

/// Whether the file system takes O_DIRECT, found out by doing it.
fn takes_direct(root: &Path) -> io::Result<bool> {
    let path = root.join(PROBE_NAME);
    let probe = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = options.custom_flags(libc::O_DIRECT).open(&path)?;
        file.write_all(&AlignedBuf::zeroed(IO_ALIGN_BYTES))
    };
    let result = probe();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    is_direct_taken(result)
}

fn is_direct_taken(probed: io::Result<()>) -> io::Result<bool> {
    match probed {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(false)
        }
        // A full disk can be opened: its files can still be read and removed.
        Err(error) if is_full(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

fn open_options(direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options
}

fn open_existing(path: &Path, direct: bool) -> io::Result<Arc<OsFile>> {
    let file = match open_options(direct).open(path) {
        // Its file system let no more be written after an error: what it has can still be read, and writes fail.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            open_options(direct).write(false).open(path)?
        }
        opened => opened?,
    };
    let file = sparing_descriptors(file)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(Arc::new(OsFile::new(file.into(), direct, metadata.len())))
}

fn create_allocated(path: &Path, direct: bool, len_bytes: u64) -> io::Result<Arc<OsFile>> {
    let file = open_options(direct).create_new(true).open(path)?;
    let allocated = sparing_descriptors(file).and_then(|file| {
        allocate(&file, len_bytes)?;
        Ok(file)
    });
    match allocated {
        Ok(file) => Ok(Arc::new(OsFile::new(file.into(), direct, len_bytes))),
        // A file without its space must not stay; the first error is the one to tell.
        Err(error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

/// Gives a file back that got one of the last file descriptors.
fn sparing_descriptors(file: File) -> io::Result<File> {
    // Asked each time, because it can be changed while the process runs.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // The kernel gives out the lowest number that is free.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(0);
    match number < limit.saturating_sub(DESCRIPTORS_SPARED) {
        true => Ok(file),
        false => Err(io::Error::from_raw_os_error(libc::EMFILE)),
    }
}

fn allocate(file: &File, len_bytes: u64) -> io::Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len_bytes) {
        Ok(()) => Ok(()),
        // Some file systems cannot preallocate: then ENOSPC can come at a write instead.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(len_bytes),
        Err(errno) => Err(errno.into()),
    }
}

/// Does `action`; when a folder was missing for it, makes the parents of `path` and does it again.
fn with_parent<T>(root: &Path, path: &Path, action: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match action() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    if let Some(parent) = path.parent() {
        make_folders(root, parent)?;
    }
    action()
}

/// Makes the folder of a disk and missing folders above it, durably: other disks will say that this one is there.
fn make_root(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    std::fs::create_dir_all(&path)?;
    for made in &missing {
        let synced = made.parent().map_or(Ok(()), sync_folder_at);
        match synced {
            // Names can be made in a folder that we may not read, and so not sync.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                // Who finds the folder there takes its name for durable.
                for made in &missing {
                    let _ = std::fs::remove_dir(made);
                }
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes `folder` and missing folders above it, durably: each new name is synced into its parent.
fn make_folders(root: &Path, folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|path| *path != root && !path.is_dir())
        .collect();
    for path in missing.into_iter().rev() {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if let Some(parent) = path.parent()
            && let Err(error) = sync_folder_at(parent)
        {
            // Who finds the folder there takes its name for durable.
            let _ = std::fs::remove_dir(path);
            return Err(error);
        }
    }
    Ok(())
}

fn sync_folder_at(path: &Path) -> io::Result<()> {
    sparing_descriptors(File::open(path)?)?.sync_all()
}

fn list_names(path: &Path, is_top: bool) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let own = is_top && entry.file_name() == OsStr::new(LOCK_NAME);
        if own || !entry.file_type()?.is_file() {
            continue;
        }
        // A name that is not UTF-8 is not one of ours.
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_taken_with_its_lock() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let told = tell_pid(&full);
        assert!(told.is_ok(), "{told:?}");
        // The id of the last holder may have been longer.
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(LOCK_NAME), "4194304194304\n").unwrap();
        let _lock = take_lock(folder.path(), "disk").unwrap();
        let told = std::fs::read_to_string(folder.path().join(LOCK_NAME)).unwrap();
        assert_eq!(told, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_copy_of_the_lock_keeps_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        let open = || RealDisk::open(folder.path(), DiskSettings::default());
        let disk = open().unwrap();
        assert!(matches!(open(), Err(DiskError::InUse { .. })));
        let copy = disk.core.lock.as_ref().map(File::try_clone);
        drop(disk);
        assert!(open().is_ok());
        drop(copy);
    }

    #[test]
    fn direct_io_is_given_up_only_where_it_is_refused() {
        let cases = [
            (libc::EINVAL, Some(false)),
            (libc::EOPNOTSUPP, Some(false)),
            (libc::ENOSPC, Some(true)),
            (libc::EDQUOT, Some(true)),
            (libc::EIO, None),
            (libc::EACCES, None),
        ];
        for (errno, want) in cases {
            let taken = is_direct_taken(Err(io::Error::from_raw_os_error(errno)));
            assert_eq!(taken.ok(), want, "{errno}");
        }
    }

    #[test]
    fn names_are_taken_or_refused() {
        let long = "a".repeat(256);
        let cases: &[(&str, bool)] = &[
            ("a", true),
            ("shards/0000000a/00ff.03", true),
            ("a-b_c.d", true),
            ("a/lock", true),
            ("..a", true),
            ("lock", false),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            (".", false),
            ("..", false),
            ("a/../b", false),
            ("A", false),
            ("a b", false),
            ("a\0", false),
            ("\u{e9}", false),
            (&long, false),
        ];
        for (name, want) in cases {
            assert_eq!(check_name(name).is_ok(), *want, "{name:?}");
        }
    }
}
