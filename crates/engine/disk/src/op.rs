//! One transfer between memory and a file, whichever way it goes to the kernel.
//!
//! Owns: the buffers while the kernel uses them, continuing after short transfers, retries.
//! Must not know: rings, threads, futures.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use cairn_base::AlignedBuf;
use cairn_base::buf::IO_ALIGN_BYTES;
use io_uring::{opcode, squeue, types};

/// Most parts given to the kernel at once (its own UIO_MAXIOV).
const IOVEC_COUNT_MAX: usize = 1024;
/// Most bytes given to the kernel at once; it takes at most 0x7ffff000.
const TRANSFER_LEN_BYTES_MAX: usize = 1 << 30;
/// Times in a row that a transfer may be interrupted or make no progress.
const RETRY_COUNT_MAX: u32 = 1000;

/// An open file of the operating system.
pub(crate) struct OsFile {
    main: OwnedFd,
    /// `main` takes only aligned transfers.
    direct: bool,
    /// The file through the page cache, for transfers that are not aligned.
    buffered: OnceLock<OwnedFd>,
    pub(crate) len_bytes: AtomicU64,
}

impl OsFile {
    pub(crate) fn new(main: OwnedFd, direct: bool, len_bytes: u64) -> Self {
        Self {
            main,
            direct,
            buffered: OnceLock::new(),
            len_bytes: AtomicU64::new(len_bytes),
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn main(&self) -> &OwnedFd {
        &self.main
    }

    /// The descriptor that takes transfers of any alignment. Linux keeps both views of the file
    /// coherent; the second open goes by /proc because the file may have been renamed since.
    fn buffered(&self) -> io::Result<RawFd> {
        if !self.direct {
            return Ok(self.main.as_raw_fd());
        }
        if let Some(fd) = self.buffered.get() {
            return Ok(fd.as_raw_fd());
        }
        let path = format!("/proc/self/fd/{}", self.main.as_raw_fd());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)?;
        Ok(self.buffered.get_or_init(|| file.into()).as_raw_fd())
    }
}

enum Kind {
    Write {
        offset: u64,
        end: u64,
        durable: bool,
        parts: VecDeque<Bytes>,
        iovecs: Vec<libc::iovec>,
    },
    Read {
        offset: u64,
        buf: AlignedBuf,
        done_bytes: usize,
    },
    Sync,
}

pub(crate) struct Op {
    file: Arc<OsFile>,
    fd: RawFd,
    /// Progress only counts in multiples of this: a direct transfer cannot continue elsewhere.
    granule_bytes: usize,
    retry_count: u32,
    kind: Kind,
}

// SAFETY: the only members that are not `Send` are the iovecs; they point into `parts`, which the
// operation owns and which are immutable.
unsafe impl Send for Op {}

/// What a finished operation gives.
pub(crate) enum Outcome {
    Done,
    /// The buffer and how many of its bytes were read (fewer at the end of the file).
    Read(AlignedBuf, usize),
}

pub(crate) enum Step {
    /// Give it to the kernel (again).
    Again,
    Finished(io::Result<Outcome>),
}

impl Op {
    /// Whether a thread that blocks does this better than a ring.
    ///
    /// The kernel ends an asynchronous durable write in a work queue, and runs fdatasync in one of
    /// its own threads; both wait for a processor like everything else, however urgent we are. A
    /// thread of ours that waits in the call is woken by the device: on busy processors that took
    /// a durable 4 KiB write from 4 ms to 0.2 ms.
    pub(crate) fn prefers_thread(&self) -> bool {
        match self.kind {
            Kind::Write { durable, .. } => durable,
            Kind::Read { .. } => false,
            Kind::Sync => true,
        }
    }

    /// `aligned`: offset, addresses and lengths are all aligned.
    pub(crate) fn write(
        file: Arc<OsFile>,
        aligned: bool,
        offset: u64,
        parts: Vec<Bytes>,
        end: u64,
        durable: bool,
    ) -> io::Result<Self> {
        let mut parts = VecDeque::from(parts);
        parts.retain(|part| !part.is_empty());
        Self::new(
            file,
            aligned,
            Kind::Write {
                offset,
                end,
                durable,
                parts,
                iovecs: Vec::new(),
            },
        )
    }

    /// Reads into all of `buf`; `aligned` as for `write`.
    pub(crate) fn read(
        file: Arc<OsFile>,
        aligned: bool,
        offset: u64,
        buf: AlignedBuf,
    ) -> io::Result<Self> {
        Self::new(
            file,
            aligned,
            Kind::Read {
                offset,
                buf,
                done_bytes: 0,
            },
        )
    }

    pub(crate) fn sync(file: Arc<OsFile>) -> io::Result<Self> {
        Self::new(file, true, Kind::Sync)
    }

    fn new(file: Arc<OsFile>, aligned: bool, kind: Kind) -> io::Result<Self> {
        let direct = aligned && file.direct;
        let fd = if aligned {
            file.main.as_raw_fd()
        } else {
            file.buffered()?
        };
        Ok(Self {
            file,
            fd,
            granule_bytes: if direct { IO_ALIGN_BYTES } else { 1 },
            retry_count: 0,
            kind,
        })
    }

    /// The next submission for io_uring. The operation must stay alive and in place until it
    /// completes: the entry points into it.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        match &mut self.kind {
            Kind::Write {
                offset,
                durable,
                parts,
                iovecs,
                ..
            } => {
                let flags = write_flags(*durable);
                fill_iovecs(parts, iovecs);
                match iovecs.as_slice() {
                    [one] => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
                        .offset(*offset)
                        .rw_flags(flags)
                        .build(),
                    many => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32)
                        .offset(*offset)
                        .rw_flags(flags)
                        .build(),
                }
            }
            Kind::Read {
                offset,
                buf,
                done_bytes,
            } => {
                let rest = read_rest(buf, *done_bytes);
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset + *done_bytes as u64)
                    .build()
            }
            Kind::Sync => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        }
    }

    /// Does the operation by a system call in this thread. Returns the kernel's form: bytes, or -errno.
    pub(crate) fn call(&mut self) -> i32 {
        let result = match &mut self.kind {
            Kind::Write {
                offset,
                durable,
                parts,
                iovecs,
                ..
            } => {
                fill_iovecs(parts, iovecs);
                // SAFETY: the iovecs point into `parts`, which live until the call returns.
                unsafe {
                    libc::pwritev2(
                        self.fd,
                        iovecs.as_ptr(),
                        iovecs.len() as i32,
                        *offset as i64,
                        write_flags(*durable),
                    )
                }
            }
            Kind::Read {
                offset,
                buf,
                done_bytes,
            } => {
                let rest = read_rest(buf, *done_bytes);
                let at = *offset + *done_bytes as u64;
                // SAFETY: `rest` is valid for writes of its length.
                unsafe { libc::pread(self.fd, rest.as_mut_ptr().cast(), rest.len(), at as i64) }
            }
            // SAFETY: the descriptor is open as long as `file` is.
            Kind::Sync => unsafe { libc::fdatasync(self.fd) as isize },
        };
        if result < 0 {
            return -io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO);
        }
        // At most TRANSFER_LEN_BYTES_MAX, which fits.
        i32::try_from(result).unwrap_or(-libc::EIO)
    }

    /// Takes the kernel's result (bytes or -errno) of the last `entry` or `call`.
    pub(crate) fn complete(&mut self, result: i32) -> Step {
        if result < 0 {
            let errno = result.saturating_neg();
            if matches!(errno, libc::EINTR | libc::EAGAIN) && self.may_retry() {
                return Step::Again;
            }
            return Step::Finished(Err(io::Error::from_raw_os_error(errno)));
        }
        let moved_bytes = result as usize;
        let progress_bytes = moved_bytes - moved_bytes % self.granule_bytes;
        match &mut self.kind {
            Kind::Sync => Step::Finished(Ok(Outcome::Done)),
            Kind::Write {
                offset, end, parts, ..
            } => {
                let end = *end;
                *offset = offset.saturating_add(progress_bytes as u64);
                advance(parts, progress_bytes);
                if parts.is_empty() {
                    self.file.len_bytes.fetch_max(end, Ordering::AcqRel);
                    return Step::Finished(Ok(Outcome::Done));
                }
                if progress_bytes > 0 {
                    self.retry_count = 0;
                } else if !self.may_retry() {
                    return Step::Finished(Err(io::ErrorKind::WriteZero.into()));
                }
                Step::Again
            }
            Kind::Read {
                buf, done_bytes, ..
            } => {
                // A transfer that ends at an odd byte ended at the end of the file.
                let at_end = moved_bytes == 0 || moved_bytes != progress_bytes;
                *done_bytes += moved_bytes;
                if at_end || *done_bytes >= buf.len() {
                    let done_bytes = (*done_bytes).min(buf.len());
                    let buf = std::mem::replace(buf, AlignedBuf::zeroed(0));
                    return Step::Finished(Ok(Outcome::Read(buf, done_bytes)));
                }
                self.retry_count = 0;
                Step::Again
            }
        }
    }

    fn may_retry(&mut self) -> bool {
        self.retry_count += 1;
        self.retry_count <= RETRY_COUNT_MAX
    }
}

fn write_flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

fn read_rest(buf: &mut AlignedBuf, done_bytes: usize) -> &mut [u8] {
    let end = buf.len().min(done_bytes + TRANSFER_LEN_BYTES_MAX);
    buf.get_mut(done_bytes..end).unwrap_or_default()
}

fn fill_iovecs(parts: &VecDeque<Bytes>, iovecs: &mut Vec<libc::iovec>) {
    iovecs.clear();
    let mut left_bytes = TRANSFER_LEN_BYTES_MAX;
    for part in parts.iter().take(IOVEC_COUNT_MAX) {
        let len_bytes = part.len().min(left_bytes);
        if len_bytes == 0 {
            break;
        }
        iovecs.push(libc::iovec {
            // The kernel only reads from the iovecs of a write.
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: len_bytes,
        });
        left_bytes -= len_bytes;
    }
}

fn advance(parts: &mut VecDeque<Bytes>, mut by_bytes: usize) {
    while let Some(front) = parts.front_mut() {
        if front.len() > by_bytes {
            front.advance(by_bytes);
            return;
        }
        by_bytes -= front.len();
        parts.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(direct: bool, parts: &[usize]) -> Op {
        let file = std::fs::File::open("/dev/null").unwrap();
        let file = Arc::new(OsFile::new(file.into(), direct, 0));
        let parts: Vec<Bytes> = parts.iter().map(|len| vec![1; *len].into()).collect();
        let end = parts.iter().map(Bytes::len).sum::<usize>() as u64;
        Op::write(file, true, 0, parts, end, false).unwrap()
    }

    /// Feeds the kernel's results one by one: `None` while it goes on, then the errno or 0.
    fn feed(op: &mut Op, results: &[i32]) -> Vec<Option<i32>> {
        results
            .iter()
            .map(|result| match op.complete(*result) {
                Step::Again => None,
                Step::Finished(Ok(_)) => Some(0),
                Step::Finished(Err(error)) => Some(error.raw_os_error().unwrap_or(-1)),
            })
            .collect()
    }

    #[test]
    fn short_writes_go_on_where_they_stopped() {
        let mut whole = op(false, &[4096, 4096]);
        assert_eq!(feed(&mut whole, &[8192]), [Some(0)]);
        let mut short = op(false, &[4096, 4096]);
        assert_eq!(
            feed(&mut short, &[5000, -libc::EINTR, 3192]),
            [None, None, Some(0)]
        );
        assert_eq!(short.file.len_bytes.load(Ordering::Relaxed), 8192);
        // Direct: the odd bytes are written again.
        let mut direct = op(true, &[4096, 4096]);
        assert_eq!(
            feed(&mut direct, &[5000, 3192, 4096]),
            [None, None, Some(0)]
        );
        let mut failed = op(true, &[4096]);
        assert_eq!(feed(&mut failed, &[-libc::ENOSPC]), [Some(libc::ENOSPC)]);
    }

    #[test]
    fn retries_are_bounded() {
        for result in [0, -libc::EAGAIN] {
            let mut op = op(false, &[1]);
            let steps = feed(&mut op, &vec![result; RETRY_COUNT_MAX as usize + 1]);
            assert!(steps.last().unwrap().is_some());
            assert_eq!(steps.iter().filter(|step| step.is_some()).count(), 1);
        }
    }

    #[test]
    fn iovecs_stay_within_the_kernels_limits() {
        let parts: VecDeque<Bytes> = (0..3000).map(|_| Bytes::from_static(b"ab")).collect();
        let mut iovecs = Vec::new();
        fill_iovecs(&parts, &mut iovecs);
        assert_eq!(iovecs.len(), IOVEC_COUNT_MAX);
    }
}
