//! An open file of a disk.
//!
//! Owns: which transfers are aligned, growth, reading past the end.
//! Must not know: how the bytes get to the kernel (`engine`).
//!
//! Writes at aligned offsets with aligned lengths go to the device as they are (parts whose memory
//! is not aligned are copied once). All others go through the page cache, which reads and merges the
//! edge blocks; they are meant for small metadata files. The kernel keeps both ways coherent, but
//! two writes at once to the same 4 KiB block leave either's bytes, as with any file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::{DiskError, DiskFile, IoFuture};
use cairn_base::inline_call;

use crate::align::align_parts;
use crate::engine::perform_here;
use crate::folder::Core;
use crate::op::{Op, OsFile, Outcome};

/// Most bytes in one read: it is one buffer.
pub const READ_LEN_BYTES_MAX: usize = 256 << 20;
/// Offsets of the kernel are signed.
const FILE_LEN_BYTES_MAX: u64 = i64::MAX as u64;
const ALIGN_BYTES: u64 = IO_ALIGN_BYTES as u64;

pub(crate) struct RealFile {
    core: Arc<Core>,
    /// As it was opened; for messages.
    name: String,
    os_file: Arc<OsFile>,
}

/// A write on its way.
struct Write {
    offset: u64,
    len_bytes: u64,
    old_len_bytes: u64,
}

fn write_what(name: &str, offset: u64, len_bytes: u64) -> String {
    format!("writing {len_bytes} bytes to {name} at {offset}")
}

impl RealFile {
    pub(crate) fn new(core: Arc<Core>, name: String, os_file: Arc<OsFile>) -> Self {
        Self {
            core,
            name,
            os_file,
        }
    }

    async fn write(&self, offset: u64, parts: Vec<Bytes>, durable: bool) -> Result<(), DiskError> {
        if parts.iter().all(Bytes::is_empty) {
            return if durable {
                self.sync_data().await
            } else {
                Ok(())
            };
        }
        let (op, write) = self.begin_write(offset, parts, durable)?;
        let result = match op {
            Ok(op) => self.core.engine.perform(op).await.map(|_| ()),
            Err(error) => Err(error),
        };
        self.end_write(write, result)
    }

    /// Checks a write that is not empty and accounts for its space.
    fn begin_write(
        &self,
        offset: u64,
        parts: Vec<Bytes>,
        durable: bool,
    ) -> Result<(io::Result<Op>, Write), DiskError> {
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let what = || write_what(&self.name, offset, len_bytes);
        let end = offset
            .checked_add(len_bytes)
            .filter(|end| *end <= FILE_LEN_BYTES_MAX)
            .ok_or_else(|| self.refusal(what(), "past the largest file"))?;
        let old_len_bytes = self.len_bytes();
        if !self.core.usage.grow(old_len_bytes, end) {
            return Err(self.core.full(what()));
        }
        let aligned = offset.is_multiple_of(ALIGN_BYTES) && len_bytes.is_multiple_of(ALIGN_BYTES);
        let parts = if aligned && self.os_file.is_direct() {
            align_parts(parts).unwrap_or_default()
        } else {
            parts
        };
        let op = Op::write(self.os_file.clone(), aligned, offset, parts, end, durable);
        let write = Write {
            offset,
            len_bytes,
            old_len_bytes,
        };
        Ok((op, write))
    }

    fn end_write(&self, write: Write, result: io::Result<()>) -> Result<(), DiskError> {
        result.map_err(|error| {
            let end = write.offset + write.len_bytes;
            self.core.usage.shrink(end, write.old_len_bytes);
            let what = write_what(&self.name, write.offset, write.len_bytes);
            self.core.error(what, &error)
        })
    }

    async fn read(&self, offset: u64, len_bytes: usize) -> Result<Bytes, DiskError> {
        let what = || format!("reading {len_bytes} bytes from {} at {offset}", self.name);
        let end = offset
            .checked_add(len_bytes as u64)
            .filter(|end| *end <= FILE_LEN_BYTES_MAX)
            .ok_or_else(|| self.refusal(what(), "past the largest file"))?;
        let file_len_bytes = self.len_bytes();
        if end > file_len_bytes {
            return Err(self.short(file_len_bytes, end));
        }
        if len_bytes > READ_LEN_BYTES_MAX {
            return Err(self.refusal(what(), "more than one read may ask for"));
        }
        if len_bytes == 0 {
            return Ok(Bytes::new());
        }
        // Rounded outwards, so that a direct file takes it; what came too much is cut off.
        let start = offset - offset % ALIGN_BYTES;
        let skip = (offset - start) as usize;
        let buf_len_bytes = (skip + len_bytes).next_multiple_of(IO_ALIGN_BYTES);
        let buf = self.core.bufs.take(buf_len_bytes);
        let result = match Op::read(self.os_file.clone(), true, start, buf) {
            Ok(op) => self.core.engine.perform(op).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(Outcome::Read(buf, got_bytes)) if got_bytes >= skip + len_bytes => {
                Ok(self.core.bufs.freeze(buf).slice(skip..skip + len_bytes))
            }
            // The file was cut behind our back, or while we read.
            Ok(Outcome::Read(_, got_bytes)) => Err(self.short(start + got_bytes as u64, end)),
            Ok(Outcome::Done) => Err(self.refusal(what(), "the engine mixed up its answers")),
            Err(error) => Err(self.core.error(what(), &error)),
        }
    }

    async fn sync_data(&self) -> Result<(), DiskError> {
        let result = match Op::sync(self.os_file.clone()) {
            Ok(op) => self.core.engine.perform(op).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(self.core.error(format!("syncing {}", self.name), &error)),
        }
    }

    async fn resize(&self, len_bytes: u64) -> Result<(), DiskError> {
        let what = || format!("setting the length of {} to {len_bytes}", self.name);
        if len_bytes > FILE_LEN_BYTES_MAX {
            return Err(self.refusal(what(), "past the largest file"));
        }
        let old_len_bytes = self.len_bytes();
        if !self.core.usage.grow(old_len_bytes, len_bytes) {
            return Err(self.core.full(what()));
        }
        let os_file = self.os_file.clone();
        let resized = self.core.engine.call(move || {
            rustix::fs::ftruncate(os_file.main(), len_bytes)?;
            os_file.len_bytes.store(len_bytes, Ordering::Release);
            Ok(())
        });
        match resized.await {
            Ok(()) => {
                self.core.usage.shrink(old_len_bytes, len_bytes);
                Ok(())
            }
            Err(error) => {
                self.core.usage.shrink(len_bytes, old_len_bytes);
                Err(self.core.error(what(), &error))
            }
        }
    }

    fn short(&self, len_bytes: u64, wanted_bytes: u64) -> DiskError {
        DiskError::Short {
            disk: self.core.label.clone(),
            name: self.name.clone(),
            len_bytes,
            wanted_bytes,
        }
    }

    fn refusal(&self, what: String, detail: &str) -> DiskError {
        DiskError::Io {
            disk: self.core.label.clone(),
            what,
            detail: detail.to_owned(),
        }
    }
}

/// A write by a thread that is not the engine's, until it has ended, or was not begun.
struct InlineWrite(Arc<Core>);

impl InlineWrite {
    fn begin(core: Arc<Core>) -> Self {
        core.inline_writes.fetch_add(1, Ordering::AcqRel);
        Self(core)
    }
}

impl Drop for InlineWrite {
    fn drop(&mut self) {
        self.0.inline_writes.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DiskFile for RealFile {
    fn len_bytes(&self) -> u64 {
        self.os_file.len_bytes.load(Ordering::Acquire)
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        Box::pin(self.write(offset, parts, false))
    }

    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        Box::pin(self.write(offset, parts, true))
    }

    fn write_durable_here<'a>(&'a self, offset: u64, part: Bytes) -> IoFuture<'a, ()> {
        Box::pin(async move {
            if part.is_empty() || !inline_call::is_possible() {
                return self.write(offset, vec![part], true).await;
            }
            let (op, write) = self.begin_write(offset, vec![part], true)?;
            let result = match op {
                Ok(op) => {
                    // The disk is not closed, nor its lock released, before the call has ended.
                    let inline = InlineWrite::begin(self.core.clone());
                    let call = move || {
                        let written = perform_here(op).map(drop);
                        drop(inline);
                        written
                    };
                    // Asked just now, by this thread: it is still possible.
                    match inline_call::run_inline(call) {
                        Ok(written) => written.await,
                        Err(_) => Err(io::Error::other("the thread is taken")),
                    }
                }
                Err(error) => Err(error),
            };
            self.end_write(write, result)
        })
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        Box::pin(self.read(offset, len_bytes))
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        Box::pin(self.sync_data())
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        Box::pin(self.resize(len_bytes))
    }
}
