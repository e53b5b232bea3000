//! The seam to disks: what the engine asks of one, real or simulated.
//!
//! A disk is a folder of files with names; a crash keeps only what was synced. Implementations:
//! `cairn-disk` (a directory, O_DIRECT, io_uring) and `cairn-testkit` (memory, with faults).

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::buf::AlignedBuf;

/// Zeros are written so many bytes at a time.
const ZERO_WRITE_LEN_BYTES: usize = 1 << 20;

/// What every disk operation returns: boxed, because disks are chosen at run time.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DiskError>> + Send + 'a>>;

/// Why a disk operation failed. Never fatal to the process: the caller decides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    #[error("{disk}: no file {name}")]
    NotFound { disk: String, name: String },
    #[error("{disk}: the file {name} is there already")]
    Exists { disk: String, name: String },
    #[error("{disk}: no space left while {what}; free space on it or add a disk")]
    Full { disk: String, what: String },
    /// The process, or the machine, has no file descriptor left; no sign of a bad disk.
    #[error(
        "{disk}: no file descriptor left while {what}; raise the limit (LimitNOFILE, ulimit -n)"
    )]
    NoDescriptor { disk: String, what: String },
    #[error("{disk}: {what}: {detail}")]
    Io {
        disk: String,
        what: String,
        detail: String,
    },
    #[error("{disk}: {name} ends at byte {len_bytes}, bytes up to {wanted_bytes} were asked for")]
    Short {
        disk: String,
        name: String,
        len_bytes: u64,
        wanted_bytes: u64,
    },
    /// Another process has the disk; `pid` is `None` when it did not say which.
    #[error("{disk}: it is in use by {}; stop it first", holder(*.pid))]
    InUse { disk: String, pid: Option<u32> },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must be there.
    Existing,
    /// The file must not be there; `len_bytes` are allocated (reading as zeros), or `Full`.
    CreateNew { len_bytes: u64 },
    /// As `CreateNew`, with zeros really written, so that later overwrites change no file-system
    /// metadata (an allocated but unwritten range costs a journal commit at its first sync).
    CreateZeroed { len_bytes: u64 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// One disk, a failure domain. Names are relative paths of `[a-z0-9._-]` parts joined by `/`;
/// missing folders are made by `open` with a create mode and by `rename`.
pub trait Disk: Send + Sync + 'static {
    /// A name for messages: the path of the folder.
    fn label(&self) -> &str;
    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>>;
    /// Removes a file; `NotFound` if it is not there.
    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()>;
    /// Renames a file, replacing any file at `to`. Durable after `sync_folder` of both folders.
    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()>;
    /// The names (last parts only) of the files in `folder`, in no order; empty if there is none.
    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>>;
    /// Makes creations, removals and renames in `folder` durable ("" is the top).
    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()>;
    fn space(&self) -> Result<DiskSpace, DiskError>;
    /// Counts again what others keep in its folder, if it may use only a part of its file system.
    fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Whether nothing that was asked of it is under way any more, also of what nobody waits for: no write lands later.
    fn is_idle(&self) -> bool {
        true
    }
    /// Where the disk is in the host's file system, when it is a folder there.
    fn folder(&self) -> Option<&std::path::Path> {
        None
    }
    /// What its folder is on, as of when it was opened, if the host says so.
    fn device(&self) -> Option<&DiskDevice> {
        None
    }
    /// Says that so many disks of the pool, this one included, are on its file system. From then on each counts on its part of
    /// the space, so that all together have it once.
    fn share_file_system(&self, _disks: usize) {}
}

/// What the folder of a disk is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDevice {
    /// Folders with the same one share its space: `MAJOR:MINOR` of the block device, or of the file system where it has none.
    pub file_system: String,
    /// The drives that bear it, by their names in `/sys`; the file system itself where that has no block device. Data on
    /// several of them (LVM, RAID) may be on each.
    pub drives: BTreeSet<String>,
}

/// An open file. Offsets and lengths may be anything; those that are multiples of
/// [`crate::buf::IO_ALIGN_BYTES`], with buffers so aligned, go to the device without a copy.
pub trait DiskFile: Send + Sync + 'static {
    fn len_bytes(&self) -> u64;
    /// Writes `parts` one after the other at `offset`; extends the file if it ends before.
    /// Durable after a `sync` that starts when this has returned.
    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()>;
    /// Writes and syncs in one step (FUA where the device has it): the log's way to write.
    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()>;
    /// As `write_durable_at`, if possible by the thread that polls, after its poll (see [`crate::here`]): for
    /// threads that have nothing else to do, because each hand-over to another one costs a wake-up.
    fn write_durable_here<'a>(&'a self, offset: u64, part: Bytes) -> IoFuture<'a, ()> {
        self.write_durable_at(offset, vec![part])
    }
    /// Reads exactly `len_bytes`, or `Short`. The buffer starts at an aligned address if `offset` is aligned.
    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes>;
    /// fdatasync: data, and the length if it changed.
    fn sync<'a>(&'a self) -> IoFuture<'a, ()>;
    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()>;
}

/// Really writes zeros to all of a file of `len_bytes`, durably, so that its blocks are "written" for the file system:
/// one write after the other, as a disk does it for [`OpenMode::CreateZeroed`].
pub async fn write_zeros(file: &dyn DiskFile, len_bytes: u64) -> Result<(), DiskError> {
    let zeros = AlignedBuf::zeroed(ZERO_WRITE_LEN_BYTES).freeze();
    let mut offset = 0;
    while offset < len_bytes {
        let part_len_bytes = (len_bytes - offset).min(ZERO_WRITE_LEN_BYTES as u64);
        let part = zeros.slice(..part_len_bytes as usize);
        file.write_at(offset, vec![part]).await?;
        offset += part_len_bytes;
    }
    file.sync().await
}
