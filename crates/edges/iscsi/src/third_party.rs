//! Copies that the target makes by itself: EXTENDED COPY, and copies by token.
//!
//! Owns: what of a copy is shared and what is moved byte by byte, what a token stands for, what a host is told of it later.
//! Must not know: how long tokens live (`tokens`), PDUs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::Ino;
use cairn_codec_scsi::{
    self as scsi, Blocks, Command, Key, PopulateToken, RodTokenBytes, Sense, TokenAction,
    TokenAsked, TokenLimits, TokenResult, WriteUsingToken, code,
};
use cairn_fs::FsError;

use crate::execute::{GRANULE_LEN_BYTES, Outcome, STEP_LEN_BYTES, WHO, Work, in_range};
use crate::reservation::Refused;
use crate::tokens::{self, TOKEN_COUNT_MAX, TOKEN_LEN_BYTES_MAX, Token};
use crate::unit::Unit;

/// Fewer bytes are copied: they cost less than what refers to them.
const SHARE_LEN_BYTES_MIN: u64 = 256 << 10;
/// What hosts should move by one token: far from what would hold up writers.
const OPTIMAL_TOKEN_LEN_BYTES: u64 = 256 << 20;

/// What EXTENDED COPY moves with one segment, at most.
pub fn segment_len_bytes_max(block_len_bytes: u32) -> u32 {
    block_len_bytes.saturating_mul(u16::MAX.into())
}

pub fn token_limits(block_len_bytes: u32) -> TokenLimits {
    let seconds = |time: Duration| time.as_secs() as u32;
    TokenLimits {
        block_len_bytes,
        transfer_len_bytes: TOKEN_LEN_BYTES_MAX,
        optimal_len_bytes: OPTIMAL_TOKEN_LEN_BYTES,
        inactivity_seconds: seconds(tokens::INACTIVITY),
        inactivity_seconds_max: seconds(tokens::INACTIVITY_MAX),
        lifetime_seconds_max: seconds(tokens::LIFETIME_MAX),
        granularity_blocks: (GRANULE_LEN_BYTES / u64::from(block_len_bytes.max(1))) as u16,
        copy_segment_len_bytes: segment_len_bytes_max(block_len_bytes),
        token_count_max: TOKEN_COUNT_MAX as u32,
    }
}

/// Where the bytes of a token are.
enum Source {
    Zeros,
    Token(Arc<Token>),
}

/// The part of a copy that was done before it ended or failed.
#[derive(Default)]
struct Progress {
    blocks: u64,
    ranges: u16,
}

impl<'a> Work<'a> {
    fn of<'b>(&'b self, unit: &'b Arc<Unit>) -> Work<'b> {
        Work {
            lun: unit.lun(),
            unit,
            nexus: self.nexus,
            place: self.place,
            task: self.task,
        }
    }

    /// EXTENDED COPY between logical units that the session sees.
    pub async fn copy(&self, list: &[u8]) -> Result<Outcome, Refused> {
        if list.is_empty() {
            return Ok(Outcome::good());
        }
        let list = scsi::parse_copy_list(list)?;
        let mut targets = Vec::new();
        for name in &list.targets {
            let named = self
                .place
                .units
                .values()
                .find(|unit| unit.lun().naa_bytes()[..] == name[..]);
            let unreachable = Sense::new(Key::CopyAborted, code::COPY_TARGET_UNREACHABLE);
            targets.push(named.ok_or(unreachable)?.clone());
        }
        let (mut done, mut bytes) = (0, 0);
        for segment in &list.segments {
            let result = match (
                targets.get(segment.source),
                targets.get(segment.destination),
            ) {
                (Some(source), Some(destination)) => {
                    self.copy_segment(source, destination, segment).await
                }
                _ => Err(Sense::illegal(code::INVALID_FIELD_IN_LIST).into()),
            };
            match result {
                Ok(copied) => {
                    bytes += copied;
                    done += 1;
                }
                Err(refused) => {
                    self.unit
                        .note_copy(self.nexus, (list.list, false, done, bytes));
                    return Err(refused);
                }
            }
        }
        self.unit
            .note_copy(self.nexus, (list.list, true, done, bytes));
        Ok(Outcome::good())
    }

    async fn copy_segment(
        &self,
        source: &Arc<Unit>,
        destination: &Arc<Unit>,
        segment: &scsi::CopySegment,
    ) -> Result<u64, Refused> {
        let (from, to) = (self.of(source), self.of(destination));
        let count = u64::from(segment.block_count);
        let read = Blocks {
            lba: segment.source_lba,
            count,
        };
        let written = Blocks {
            lba: segment.destination_lba,
            count,
        };
        let commands = [
            Command::Read {
                blocks: read,
                fua: false,
            },
            Command::Write {
                blocks: written,
                fua: false,
            },
        ];
        let copy_aborted = |sense: Sense| {
            Refused::Sense(Sense {
                key: Key::CopyAborted,
                ..sense
            })
        };
        for ((work, command), blocks) in
            [&from, &to].into_iter().zip(&commands).zip([read, written])
        {
            work.unit
                .with_reservations(|state| state.check(self.nexus, command))?;
            in_range(&work.lun, &blocks).map_err(|_| copy_aborted(Sense::illegal(code::NONE)))?;
        }
        if from.lun.block_len_bytes != to.lun.block_len_bytes || to.lun.read_only {
            return Err(copy_aborted(Sense::illegal(code::COPY_SEGMENT_FAILED)));
        }
        let range = from.range(&read);
        let len = range.end - range.start;
        let _order = destination.order.read().await;
        to.take_over(from.lun.ino, range, to.range(&written).start)
            .await?;
        Ok(len)
    }

    /// Puts bytes that a file of the volume has in place of those of the logical unit: it shares them where they are many and
    /// lie as it wants them, and copies the rest.
    async fn take_over(&self, from: Ino, range: Range<u64>, at: u64) -> Result<(), Sense> {
        let len = range.end - range.start;
        let is_aligned = (range.start | at).is_multiple_of(GRANULE_LEN_BYTES);
        let mut done = 0;
        if is_aligned && len >= SHARE_LEN_BYTES_MIN && !self.task.is_aborted() {
            let part = len - len % GRANULE_LEN_BYTES;
            let fs = self.unit.san.fs();
            let end = range.start + part;
            let shared = fs.share_over(&WHO, from, range.start..end, self.lun.ino, at);
            match shared.await {
                Ok(()) => {
                    let written = &self.unit.counters.written_bytes;
                    written.fetch_add(part, Ordering::Relaxed);
                    done = part;
                }
                // It overlaps itself, or somebody writes to it all the time.
                Err(FsError::Invalid | FsError::TryLater) => {}
                Err(error) => return Err(self.write_error(error)),
            }
        }
        while done < len && !self.task.is_aborted() {
            let step = (len - done).min(STEP_LEN_BYTES);
            let start = range.start + done;
            let bytes = self.read_of(from, &(start..start + step)).await?;
            self.write(at + done, bytes.into(), false).await?;
            done += step;
        }
        Ok(())
    }

    async fn read_of(&self, ino: Ino, range: &Range<u64>) -> Result<Vec<u8>, Sense> {
        let mut bytes = Vec::new();
        while range.start + (bytes.len() as u64) < range.end {
            let at = range.start + bytes.len() as u64;
            let read = self
                .unit
                .san
                .fs()
                .read(&WHO, ino, at, (range.end - at) as u32);
            let read = read.await.map_err(|error| self.read_error(error))?;
            if read.count_bytes == 0 {
                // It was made smaller meanwhile.
                return Err(Sense::illegal(code::LBA_OUT_OF_RANGE));
            }
            for part in read.parts {
                bytes.extend_from_slice(&part);
            }
        }
        Ok(bytes)
    }

    /// That the ranges are on the medium, and of no more than one token may have. `at`: where they are in the list.
    fn require_ranges(&self, ranges: &[Blocks], at: u16) -> Result<u64, Sense> {
        let mut blocks: u64 = 0;
        for range in ranges {
            in_range(&self.lun, range)?;
            blocks = blocks.saturating_add(range.count);
        }
        let len_bytes = blocks.saturating_mul(self.lun.block_len_bytes.into());
        match len_bytes {
            len_bytes if len_bytes > TOKEN_LEN_BYTES_MAX => Err(Sense::list_field(at)),
            len_bytes => Ok(len_bytes),
        }
    }

    /// POPULATE TOKEN.
    pub async fn populate_token(&self, list: u32, data: &[u8]) -> Result<Outcome, Refused> {
        let Some(asked) = scsi::parse_populate_token(data)? else {
            return Ok(Outcome::good());
        };
        if u64::from(asked.inactivity_seconds) > tokens::INACTIVITY_MAX.as_secs() {
            return Err(Sense::list_field(4).into());
        }
        self.require_ranges(&asked.ranges, 16)?;
        self.begin(list, TokenAction::Populate)?;
        let mut progress = Progress::default();
        let made = self.make_token(&asked, &mut progress).await;
        let (sense, token) = match made {
            Ok(token) => (None, Some(Box::new(token))),
            Err(sense) => (Some(sense), None),
        };
        self.end(list, TokenAction::Populate, progress, sense, token);
        told(asked.immediate, sense)
    }

    async fn make_token(
        &self,
        asked: &PopulateToken,
        progress: &mut Progress,
    ) -> Result<RodTokenBytes, Sense> {
        let making = self.place.tokens.begin(self.nexus.initiator());
        let making = making.ok_or(scsi::too_many_tokens())?;
        let fs = self.unit.san.fs();
        // What a token shares stays when the LUN overwrites it, for which no space is set aside: hosts copy by themselves.
        if fs.reserved_bytes(self.lun.ino) > 0 {
            return Err(scsi::too_many_tokens());
        }
        let failed = |error| self.write_error(error);
        let mut file = fs.make_unnamed(&WHO).map_err(failed)?;
        {
            // One moment for all ranges: nobody writes meanwhile.
            let _order = self.unit.order.write().await;
            for blocks in &asked.ranges {
                let shared = file.share(fs, self.lun.ino, self.range(blocks)).await;
                shared.map_err(failed)?;
                progress.blocks += blocks.count;
                progress.ranges += 1;
            }
        }
        let inactivity = match asked.inactivity_seconds {
            0 => tokens::INACTIVITY,
            seconds => Duration::from_secs(seconds.into()),
        };
        Ok(making.finish(
            file,
            self.lun.naa_bytes(),
            self.lun.block_len_bytes,
            inactivity,
        ))
    }

    /// WRITE USING TOKEN.
    pub async fn write_using_token(&self, list: u32, data: &[u8]) -> Result<Outcome, Refused> {
        let Some(asked) = scsi::parse_write_using_token(data)? else {
            return Ok(Outcome::good());
        };
        self.require_ranges(&asked.ranges, 536)?;
        let block = u64::from(self.lun.block_len_bytes);
        let begin = asked.offset_blocks.saturating_mul(block);
        let source = match &asked.token {
            TokenAsked::Zeros => Source::Zeros,
            TokenAsked::Made(id, bytes) => {
                let token = self.place.tokens.find(*id, bytes);
                Source::Token(token.ok_or(scsi::unknown_token())?)
            }
        };
        if let Source::Token(token) = &source
            && begin >= token.len_bytes()
        {
            return Err(Sense::list_field(8).into());
        }
        self.begin(list, TokenAction::Write)?;
        let mut progress = Progress::default();
        let written = self.write_ranges(&asked, &source, begin, &mut progress);
        let sense = written.await.err();
        if let (TokenAsked::Made(id, _), true) = (&asked.token, asked.deletes) {
            self.place.tokens.delete(*id);
        }
        self.end(list, TokenAction::Write, progress, sense, None);
        told(asked.immediate, sense)
    }

    /// As many whole blocks as the token has bytes for; of the last one what is missing is zeros.
    async fn write_ranges(
        &self,
        asked: &WriteUsingToken,
        source: &Source,
        begin: u64,
        progress: &mut Progress,
    ) -> Result<(), Sense> {
        let block = u64::from(self.lun.block_len_bytes);
        let _order = self.unit.order.read().await;
        let mut at = begin;
        for blocks in &asked.ranges {
            let range = self.range(blocks);
            let written = match source {
                Source::Zeros => {
                    self.punch(range.clone()).await?;
                    range.end - range.start
                }
                Source::Token(token) => {
                    let there = token.len_bytes().saturating_sub(at);
                    let part = there.min(range.end - range.start);
                    let whole = part - part % block;
                    let (from, to) = (at, range.start);
                    self.take_over(token.ino(), from..from + whole, to).await?;
                    if part > whole {
                        let rest = from + whole..from + part;
                        let mut bytes = self.read_of(token.ino(), &rest).await?;
                        bytes.resize(block as usize, 0);
                        self.write(to + whole, bytes.into(), false).await?;
                    }
                    part.next_multiple_of(block)
                }
            };
            if self.task.is_aborted() {
                return Ok(());
            }
            at += written;
            progress.blocks += written / block;
            progress.ranges += 1;
        }
        Ok(())
    }

    /// Notes that a copy by token is under way under this number, which no other one may have meanwhile.
    fn begin(&self, list: u32, action: TokenAction) -> Result<(), Sense> {
        let begins = TokenResult {
            action,
            is_done: false,
            moved_blocks: 0,
            ranges_done: 0,
            sense: None,
            token: None,
        };
        match self.unit.token_copy_begins(self.nexus, list, begins) {
            true => Ok(()),
            false => Err(Sense::illegal(code::OPERATION_IN_PROGRESS)),
        }
    }

    fn end(
        &self,
        list: u32,
        action: TokenAction,
        progress: Progress,
        sense: Option<Sense>,
        token: Option<Box<RodTokenBytes>>,
    ) {
        let ends = TokenResult {
            action,
            is_done: true,
            moved_blocks: progress.blocks,
            ranges_done: progress.ranges,
            sense,
            token,
        };
        self.unit.token_copy_ends(self.nexus, list, ends);
    }

    /// RECEIVE ROD TOKEN INFORMATION.
    pub fn rod_token_information(&self, list: u32) -> Result<Vec<u8>, Sense> {
        let result = self.unit.token_copy(self.nexus, list);
        let result = result.ok_or(Sense::cdb_field(2, None))?;
        Ok(scsi::rod_token_information(&result))
    }
}

/// A host that need not wait learns of an error when it asks (SBC-3, section 5.7.2).
fn told(is_immediate: bool, sense: Option<Sense>) -> Result<Outcome, Refused> {
    match sense {
        Some(sense) if !is_immediate => Err(sense.into()),
        _ => Ok(Outcome::good()),
    }
}
