//! What commands do with the bytes of a logical unit.
//!
//! Owns: steps of bounded size, when a write is stable, what is compared. Must not know: which command it is for.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_codec_scsi::{self as scsi, Blocks, Key, LbaStatus, Sense, code};
use cairn_fs::{Compared, FsError, Stability};

use crate::execute::{STEP_LEN_BYTES, WHO, Work, sense_of};

impl Work<'_> {
    pub fn range(&self, blocks: &Blocks) -> Range<u64> {
        let block = u64::from(self.lun.block_len_bytes);
        // It was checked against the size.
        let start = blocks.lba.saturating_mul(block);
        start..start.saturating_add(blocks.count.saturating_mul(block))
    }

    pub fn read_error(&self, error: FsError) -> Sense {
        tracing::debug!(lun = self.lun.name, %error, "read failed");
        sense_of(error, false)
    }

    pub fn write_error(&self, error: FsError) -> Sense {
        tracing::debug!(lun = self.lun.name, %error, "write failed");
        sense_of(error, true)
    }

    /// All bytes of the range; it is within the file.
    pub async fn read(&self, range: &Range<u64>) -> Result<Vec<Bytes>, Sense> {
        let fs = self.unit.san.fs();
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(STEP_LEN_BYTES) as u32;
            let read = fs.read(&WHO, self.lun.ino, at, len).await;
            let read = read.map_err(|error| self.read_error(error))?;
            if read.count_bytes == 0 {
                // It was made smaller meanwhile.
                return Err(Sense::illegal(code::LBA_OUT_OF_RANGE));
            }
            at += u64::from(read.count_bytes);
            parts.extend(read.parts);
        }
        Ok(parts)
    }

    /// Writes; stable when done, unless the LUN has a write cache and nobody insists.
    pub async fn write(&self, at: u64, data: Bytes, fua: bool) -> Result<(), Sense> {
        if self.task.is_aborted() || data.is_empty() {
            return Ok(());
        }
        let fs = self.unit.san.fs();
        let is_stable = fua || !self.lun.write_cache;
        let len = data.len() as u64;
        self.unit
            .counters
            .written_bytes
            .fetch_add(len, Ordering::Relaxed);
        let stability = match is_stable && len <= STEP_LEN_BYTES {
            true => Stability::Stable,
            false => Stability::Unstable,
        };
        let mut done = 0;
        while done < len {
            let step = (len - done).min(STEP_LEN_BYTES);
            let part = data.slice(done as usize..(done + step) as usize);
            let written = fs
                .write(&WHO, self.lun.ino, at + done, part, stability)
                .await;
            written.map_err(|error| self.write_error(error))?;
            done += step;
        }
        if is_stable && stability == Stability::Unstable {
            self.flush().await?;
        }
        Ok(())
    }

    pub async fn flush(&self) -> Result<(), Sense> {
        let done = self.unit.san.fs().commit(&WHO, self.lun.ino, 0, 0).await;
        done.map(drop).map_err(|error| self.write_error(error))
    }

    pub async fn punch(&self, range: Range<u64>) -> Result<(), Sense> {
        let done = self.unit.san.fs().punch(&WHO, self.lun.ino, range).await;
        done.map_err(|error| self.write_error(error))
    }

    /// Writes if the old bytes are there.
    pub async fn compare_and_write(
        &self,
        at: u64,
        old: &[u8],
        new: Bytes,
        fua: bool,
    ) -> Result<(), Sense> {
        if self.task.is_aborted() {
            return Ok(());
        }
        let stability = match fua || !self.lun.write_cache {
            true => Stability::Stable,
            false => Stability::Unstable,
        };
        let (fs, len) = (self.unit.san.fs(), new.len() as u64);
        let compared = fs.compare_and_write(&WHO, self.lun.ino, at, old, new, stability);
        match compared.await {
            Ok(Compared::Written(_)) => {
                let written = &self.unit.counters.written_bytes;
                written.fetch_add(len, Ordering::Relaxed);
                Ok(())
            }
            Ok(Compared::Differs(offset)) => {
                Err(Sense::new(Key::Miscompare, code::MISCOMPARE).with_information(offset))
            }
            // It was made smaller meanwhile.
            Err(FsError::Invalid) => Err(Sense::illegal(code::LBA_OUT_OF_RANGE)),
            Err(error) => Err(self.write_error(error)),
        }
    }

    pub fn compare(&self, read: &[Bytes], wanted: &[u8]) -> Result<(), Sense> {
        let mut at = 0;
        for part in read {
            let other = wanted.get(at..at + part.len()).unwrap_or_default();
            if other != &part[..] {
                let same = part
                    .iter()
                    .zip(other)
                    .take_while(|(left, right)| left == right)
                    .count();
                let offset = (at + same) as u64;
                return Err(Sense::new(Key::Miscompare, code::MISCOMPARE).with_information(offset));
            }
            at += part.len();
        }
        Ok(())
    }

    pub async fn verify(&self, blocks: &Blocks, compare: u8, data: &Bytes) -> Result<(), Sense> {
        let range = self.range(blocks);
        let block = self.lun.block_len_bytes as usize;
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + STEP_LEN_BYTES);
            let read = self.read(&(at..end)).await?;
            match compare {
                0 => {}
                1 => {
                    let from = (at - range.start) as usize;
                    let to = (end - range.start) as usize;
                    self.compare(&read, data.get(from..to).unwrap_or_default())?;
                }
                _ => {
                    let read = read.concat();
                    for one in read.chunks(block) {
                        self.compare(&[Bytes::copy_from_slice(one)], data)?;
                    }
                }
            }
            at = end;
        }
        Ok(())
    }

    pub async fn write_same(&self, blocks: &Blocks, data: &Bytes) -> Result<(), Sense> {
        let range = self.range(blocks);
        // A hole reads as zeros, whether it was asked to be one or not.
        if data.iter().all(|byte| *byte == 0) {
            return self.punch(range).await;
        }
        let fs = self.unit.san.fs();
        let step = STEP_LEN_BYTES.min(range.end - range.start);
        let many = Bytes::from(data.repeat(step as usize / data.len().max(1)));
        let mut at = range.start;
        while at < range.end && !self.task.is_aborted() {
            let len = (range.end - at).min(many.len() as u64);
            let part = many.slice(..len as usize);
            let written = fs
                .write(&WHO, self.lun.ino, at, part, Stability::Unstable)
                .await;
            written.map_err(|error| self.write_error(error))?;
            at += len;
        }
        self.unit
            .counters
            .written_bytes
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        match self.lun.write_cache {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    pub async fn lba_status(&self, lba: u64, allocation: u32) -> Result<Vec<u8>, Sense> {
        let lun = &self.lun;
        if lba >= lun.block_count() {
            return Err(Sense::illegal(code::LBA_OUT_OF_RANGE));
        }
        let block = u64::from(lun.block_len_bytes);
        let parts = self
            .unit
            .san
            .fs()
            .allocation(&WHO, lun.ino, lba * block..lun.size_bytes)
            .await;
        let parts = parts.map_err(|error| self.read_error(error))?;
        let most = (allocation.saturating_sub(8) / 16).clamp(1, 1024) as usize;
        let mut runs: Vec<LbaStatus> = Vec::new();
        let mut at = lba;
        for part in parts {
            // A block of which a part is there is there.
            let end = match part.is_allocated {
                true => part.range.end.div_ceil(block),
                false => part.range.end / block,
            };
            if end <= at {
                continue;
            }
            let count = u32::try_from(end - at).unwrap_or(u32::MAX);
            let seen = runs.len();
            match runs.last_mut() {
                Some(last) if last.is_mapped == part.is_allocated => {
                    last.count = last.count.saturating_add(count)
                }
                _ if seen == most => break,
                _ => runs.push(LbaStatus {
                    lba: at,
                    count,
                    is_mapped: part.is_allocated,
                }),
            }
            at = at.saturating_add(count.into());
            if at < end {
                // More than one run can say.
                break;
            }
        }
        Ok(scsi::lba_status(&runs))
    }
}
