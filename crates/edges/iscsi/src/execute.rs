//! Commands at work on a logical unit.
//!
//! Owns: what each command does to the LUN's file, which sense data an error becomes, when a write is stable.
//! Must not know: PDUs, connections, how data comes and goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_activity::{self as activity, Activity, Protocol};
use cairn_codec_scsi::{
    self as scsi, Blocks, Command, Key, PersistentIn, ReservationSeen, Sanitize, Sense, Status,
    code,
};
use cairn_fs::{Credentials, FsError};
use cairn_qos::{Gate, Operation};
use cairn_san::{Lun, SanError};

use crate::pass::{Cluster, NodePortals};
use crate::reservation::{Effects, Refused};
use crate::third_party::{segment_len_bytes_max, token_limits};
use crate::tokens::Tokens;
use crate::unit::{Nexus, TaskGuard, Unit};

/// Most bytes of one command.
pub const TRANSFER_LEN_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of one step of reading or writing.
pub(crate) const STEP_LEN_BYTES: u64 = cairn_fs::TRANSFER_LEN_BYTES_MAX as u64;
const UNMAP_LEN_BYTES_MAX: u64 = 512 << 20;
const WRITE_SAME_LEN_BYTES_MAX: u64 = TRANSFER_LEN_BYTES_MAX;
pub(crate) const OPTIMAL_LEN_BYTES: u64 = 1 << 20;
pub(crate) const GRANULE_LEN_BYTES: u64 = 4096;
const COMPARE_BLOCKS_MAX: u8 = 255;
/// What available and used space is told in: a power of two of either length of blocks.
pub(crate) const THRESHOLD_SET_BYTES: u64 = 1 << 20;
/// Longest parameter list.
const LIST_LEN_BYTES_MAX: u64 = 16 << 10;
pub(crate) static WHO: Credentials = Credentials::ROOT;
/// States of a target port group.
const OPTIMISED: u8 = 0x0;
const NON_OPTIMISED: u8 = 0x1;
const UNAVAILABLE: u8 = 0x3;

/// What all logical units of a session have in common.
pub struct SessionContext {
    pub target_name: String,
    /// The target port group through which it is asked, and the one port in it.
    pub group: u16,
    /// Of the cluster: each is a group of its own.
    pub cluster: Option<Arc<Cluster>>,
    /// What hosts make on a LUN is to be aligned to what is stored as one.
    pub tells_of_physical_blocks: bool,
    pub revision: [u8; 4],
    /// Where commands that move data ask whether they may begin.
    pub gate: Arc<Gate>,
    /// Where all commands are counted that have ended, and whose they are.
    pub activity: Arc<Activity>,
    pub client: activity::Client,
    pub tokens: Arc<Tokens>,
    /// What the session sees.
    pub units: BTreeMap<u16, Arc<Unit>>,
}

impl SessionContext {
    /// All target port groups, and the state of each (SPC-4, section 5.15.2.4).
    fn port_groups(&self) -> Vec<(u16, u8)> {
        let Some(cluster) = &self.cluster else {
            return vec![(self.group, OPTIMISED)];
        };
        let own = cluster.own();
        let state = |node: NodePortals| match (node.node == own, node.is_alive) {
            // This node has the volume.
            (true, _) => (node.group, OPTIMISED),
            (false, true) => (node.group, NON_OPTIMISED),
            (false, false) => (node.group, UNAVAILABLE),
        };
        let mut groups: Vec<_> = cluster.portals().into_iter().map(state).collect();
        if !groups.iter().any(|(group, _)| *group == self.group) {
            groups.push((self.group, NON_OPTIMISED));
        }
        groups
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub status: Status,
    pub sense: Option<Sense>,
    pub data: Vec<Bytes>,
}

impl Outcome {
    pub fn good() -> Self {
        Self::of(Status::Good)
    }

    pub fn of(status: Status) -> Self {
        Self {
            status,
            sense: None,
            data: Vec::new(),
        }
    }

    pub fn failed(sense: Sense) -> Self {
        Self {
            sense: Some(sense),
            ..Self::of(Status::CheckCondition)
        }
    }

    pub fn reply(mut bytes: Vec<u8>, allocation: u32) -> Self {
        bytes.truncate(allocation as usize);
        Self {
            data: vec![bytes.into()],
            ..Self::good()
        }
    }

    pub fn len_bytes(&self) -> u64 {
        self.data.iter().map(|part| part.len() as u64).sum()
    }
}

impl From<Refused> for Outcome {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Conflict => Self::of(Status::ReservationConflict),
            // Initiators send it again after a pause. QEMU's takes a sense of NOT READY for an I/O error.
            Refused::Sense(NOT_NOW) => Self::of(Status::Busy),
            Refused::Sense(sense) => Self::failed(sense),
        }
    }
}

impl From<Sense> for Outcome {
    fn from(sense: Sense) -> Self {
        Self::failed(sense)
    }
}

impl From<SanError> for Refused {
    fn from(error: SanError) -> Self {
        Self::Sense(match error {
            SanError::Fs(error) => sense_of(error, true),
            _ => Sense::new(Key::HardwareError, code::INTERNAL_FAILURE),
        })
    }
}

/// It can be done later, and nothing is wrong with the medium. Of a command it is told as BUSY; as sense it is kept where a
/// host asks for the result of a copy later.
pub(crate) const NOT_NOW: Sense = Sense::new(Key::NotReady, code::BECOMING_READY);

/// What an error of the file service is to an initiator.
pub(crate) fn sense_of(error: FsError, is_write: bool) -> Sense {
    match error {
        // It recovers when there is space again: hosts pause, and go on.
        FsError::NoSpace | FsError::QuotaExceeded => {
            Sense::new(Key::DataProtect, code::SPACE_ALLOCATION_FAILED)
        }
        FsError::ReadOnly => Sense::new(Key::DataProtect, code::WRITE_PROTECTED),
        FsError::TryLater | FsError::NotOwn(_) | FsError::Fenced | FsError::Unreachable(_) => {
            NOT_NOW
        }
        FsError::Stale | FsError::NotFound => Sense::illegal(code::LUN_NOT_SUPPORTED),
        FsError::Io(_) if is_write => Sense::new(Key::MediumError, code::WRITE_ERROR),
        FsError::Io(_) => Sense::new(Key::MediumError, code::UNRECOVERED_READ),
        FsError::Exists
        | FsError::CrossTree
        | FsError::NotDirectory
        | FsError::IsDirectory
        | FsError::NotOwner
        | FsError::AccessDenied
        | FsError::NameTooLong
        | FsError::Invalid
        | FsError::NotEmpty
        | FsError::TooManyLinks
        | FsError::FileTooLarge
        | FsError::BadCookie
        | FsError::NotSync
        | FsError::NotSupported
        | FsError::NoAttribute
        | FsError::AttributeTooLarge => Sense::new(Key::HardwareError, code::INTERNAL_FAILURE),
    }
}

fn limits(block_len_bytes: u32) -> scsi::Limits {
    let blocks = |bytes: u64| bytes / u64::from(block_len_bytes.max(1));
    let blocks32 = |bytes: u64| u32::try_from(blocks(bytes)).unwrap_or(u32::MAX);
    scsi::Limits {
        block_len_bytes,
        transfer_blocks: blocks32(TRANSFER_LEN_BYTES_MAX),
        optimal_blocks: blocks32(OPTIMAL_LEN_BYTES),
        granularity_blocks: blocks32(GRANULE_LEN_BYTES) as u16,
        compare_and_write_blocks: COMPARE_BLOCKS_MAX,
        unmap_blocks: blocks32(UNMAP_LEN_BYTES_MAX),
        unmap_descriptors: scsi::UNMAP_DESCRIPTOR_COUNT_MAX as u32,
        write_same_blocks: blocks(WRITE_SAME_LEN_BYTES_MAX),
    }
}

/// Whole threshold sets in so many bytes, as many as the field can say.
pub(crate) fn threshold_sets(bytes: u64) -> u32 {
    u32::try_from(bytes / THRESHOLD_SET_BYTES).unwrap_or(u32::MAX)
}

/// What a command is, checked as far as it can be before its data comes.
#[derive(Clone, Copy, Debug)]
pub struct CheckedCommand {
    pub command: Command,
    /// Bytes that the initiator sends with it.
    pub out_len_bytes: u64,
}

/// Checks a command. The attention that waits for the nexus is told first.
pub fn check(unit: &Unit, nexus: &Nexus, cdb: &[u8; 16]) -> Result<CheckedCommand, Outcome> {
    let parsed = scsi::parse(cdb);
    let ignores = scsi::ignores_attention(cdb);
    if !ignores && let Some(attention) = unit.take_attention(nexus) {
        return Err(Sense::attention(attention).into());
    }
    let command = parsed?;
    unit.with_reservations(|reservations| reservations.check(nexus, &command))?;
    let lun = unit.lun();
    if !lun.online
        && !ignores
        && !matches!(
            command,
            Command::PersistentIn { .. } | Command::PersistentOut(_)
        )
    {
        return Err(Sense::new(Key::NotReady, code::OFFLINE).into());
    }
    let block = u64::from(lun.block_len_bytes);
    let mut out = 0;
    let list = |len_bytes: u32| match u64::from(len_bytes) {
        len_bytes if len_bytes > LIST_LEN_BYTES_MAX => {
            Err(Sense::illegal(code::PARAMETER_LIST_LENGTH))
        }
        len_bytes => Ok(len_bytes),
    };
    let within = |blocks: &Blocks| in_range(&lun, blocks);
    let moved = |blocks: &Blocks| {
        within(blocks)?;
        match blocks.count.saturating_mul(block) {
            len_bytes if len_bytes > TRANSFER_LEN_BYTES_MAX => {
                Err(Sense::illegal(code::INVALID_FIELD_IN_CDB))
            }
            len_bytes => Ok(len_bytes),
        }
    };
    if command.is_change() {
        let mode = unit.mode();
        if mode.read_only {
            return Err(Sense::new(Key::DataProtect, code::WRITE_PROTECTED).into());
        }
        if mode.software_protected {
            return Err(Sense::new(Key::DataProtect, code::SOFTWARE_WRITE_PROTECTED).into());
        }
    }
    match &command {
        Command::Read { blocks, .. } => {
            moved(blocks)?;
        }
        Command::Write { blocks, .. }
        | Command::WriteAndVerify { blocks, .. }
        | Command::OrWrite { blocks, .. } => {
            out = moved(blocks)?;
        }
        Command::CompareAndWrite { blocks, .. } => out = 2 * moved(blocks)?,
        Command::Verify { blocks, compare } => {
            within(blocks)?;
            out = match compare {
                0 => 0,
                1 => moved(blocks)?,
                _ => block.min(blocks.count.saturating_mul(block)),
            };
        }
        Command::WriteSame {
            blocks, no_data, ..
        } => {
            if blocks.count == 0 {
                return Err(Sense::illegal(code::INVALID_FIELD_IN_CDB).into());
            }
            within(blocks)?;
            if blocks.count.saturating_mul(block) > WRITE_SAME_LEN_BYTES_MAX {
                return Err(Sense::illegal(code::INVALID_FIELD_IN_CDB).into());
            }
            out = if *no_data { 0 } else { block };
        }
        Command::Prefetch { blocks } | Command::SynchronizeCache { blocks } => within(blocks)?,
        Command::ModeSelect { list_len_bytes, .. }
        | Command::Unmap { list_len_bytes, .. }
        | Command::ExtendedCopy { list_len_bytes }
        | Command::PopulateToken { list_len_bytes, .. }
        | Command::WriteUsingToken { list_len_bytes, .. }
        | Command::SetTargetPortGroups { list_len_bytes }
        | Command::SendDiagnostic { list_len_bytes, .. }
        | Command::Sanitize { list_len_bytes, .. } => out = list(*list_len_bytes)?,
        Command::PersistentOut(command) => out = list(command.list_len_bytes)?,
        _ => {}
    }
    Ok(CheckedCommand {
        command,
        out_len_bytes: out,
    })
}

/// What a command counts for the limits of its volume; `None`: nothing. `out_len_bytes`: what comes with it.
pub fn counted(unit: &Unit, checked: &CheckedCommand, out_len_bytes: u64) -> Option<Operation> {
    match &checked.command {
        Command::Read { blocks, .. } => {
            let block = u64::from(unit.lun().block_len_bytes);
            Some(Operation::read(blocks.count.saturating_mul(block)))
        }
        command if command.is_change() => Some(Operation::write(out_len_bytes)),
        _ => None,
    }
}

/// A write of which less comes than it is about is one of the whole blocks that come, and the initiator is told (RFC 7143, section
/// 11.4.5.1); of other commands less is no use.
pub fn shortened(
    unit: &Unit,
    checked: CheckedCommand,
    len_bytes: u64,
) -> Option<(CheckedCommand, u64)> {
    let block = u64::from(unit.lun().block_len_bytes);
    let count = len_bytes / block.max(1);
    let command = match checked.command {
        Command::Write { blocks, fua } => Command::Write {
            blocks: Blocks { count, ..blocks },
            fua,
        },
        Command::WriteAndVerify { blocks, compare } => Command::WriteAndVerify {
            blocks: Blocks { count, ..blocks },
            compare,
        },
        _ => return None,
    };
    Some((CheckedCommand { command, ..checked }, count * block))
}

pub(crate) fn in_range(lun: &Lun, blocks: &Blocks) -> Result<(), Sense> {
    let end = blocks.lba.checked_add(blocks.count);
    match end {
        Some(end) if end <= lun.block_count() => Ok(()),
        _ => Err(Sense::illegal(code::LBA_OUT_OF_RANGE)),
    }
}

/// Does a checked command. `data` is what came with it, of the length that was asked for.
pub async fn execute(
    unit: &Arc<Unit>,
    nexus: &Nexus,
    place: &SessionContext,
    task: &TaskGuard,
    checked: CheckedCommand,
    data: Bytes,
) -> Outcome {
    let counters = &unit.counters;
    let counter = match checked.command {
        Command::Read { .. } => &counters.reads,
        command if command.is_change() => &counters.writes,
        _ => &counters.other,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let durations = match checked.command {
        Command::Read { .. } => Some(&counters.read_durations),
        command if command.is_change() => Some(&counters.write_durations),
        _ => None,
    };
    let clock = &unit.san.env().clock;
    let begun = clock.monotonic();
    let work = Work {
        unit,
        lun: unit.lun(),
        nexus,
        place,
        task,
    };
    let data_len_bytes = data.len() as u64;
    let outcome = match work.run(checked.command, data).await {
        Ok(outcome) => outcome,
        Err(refused) => refused.into(),
    };
    let took = clock.monotonic().saturating_sub(begun);
    if let Some(durations) = durations {
        durations.note(took);
    }
    // Writes take space; hosts probe paths on which they write nothing.
    if checked.command.is_change() || checked.command == Command::TestUnitReady {
        unit.watch_space().await;
    }
    place.activity.note(&activity::Done {
        operation: operation(&checked.command),
        client: &place.client,
        file: Some(&activity::File::inode(unit.lun().ino)),
        work: moved(&checked.command, &outcome, data_len_bytes),
        latency: Some(took),
    });
    if outcome
        .sense
        .is_some_and(|sense| matches!(sense.key, Key::MediumError | Key::HardwareError))
    {
        counters.errors.fetch_add(1, Ordering::Relaxed);
    }
    outcome
}

/// What a command moved to and from the medium, by what its initiator sent and got.
fn moved(command: &Command, outcome: &Outcome, data_len_bytes: u64) -> activity::Work {
    let mut work = activity::Work::ONE;
    match command {
        Command::Read { .. } => work.read_bytes = outcome.len_bytes(),
        Command::Write { .. }
        | Command::WriteAndVerify { .. }
        | Command::WriteSame { .. }
        | Command::CompareAndWrite { .. }
        | Command::OrWrite { .. }
            if outcome.status == Status::Good =>
        {
            work.written_bytes = data_len_bytes;
        }
        // What comes with others are parameters.
        _ => {}
    }
    work
}

/// What a command is called. What hosts ask at times, to learn what a LUN is, is one kind.
fn operation(command: &Command) -> activity::Operation {
    let (number, name) = match command {
        Command::Read { .. } => (0, "READ"),
        Command::Write { .. } => (1, "WRITE"),
        Command::WriteAndVerify { .. } => (2, "WRITE AND VERIFY"),
        Command::Verify { .. } => (3, "VERIFY"),
        Command::WriteSame { .. } => (4, "WRITE SAME"),
        Command::Unmap { .. } => (5, "UNMAP"),
        Command::CompareAndWrite { .. } => (6, "COMPARE AND WRITE"),
        Command::OrWrite { .. } => (7, "ORWRITE"),
        Command::Prefetch { .. } => (8, "PRE-FETCH"),
        Command::SynchronizeCache { .. } => (9, "SYNCHRONIZE CACHE"),
        Command::GetLbaStatus { .. } => (10, "GET LBA STATUS"),
        Command::Reserve
        | Command::Release
        | Command::PersistentIn { .. }
        | Command::PersistentOut(_) => (11, "RESERVATIONS"),
        Command::Sanitize { .. } => (12, "SANITIZE"),
        Command::ExtendedCopy { .. } => (13, "EXTENDED COPY"),
        Command::PopulateToken { .. } => (14, "POPULATE TOKEN"),
        Command::WriteUsingToken { .. } => (15, "WRITE USING TOKEN"),
        Command::TestUnitReady => (16, "TEST UNIT READY"),
        Command::RequestSense { .. }
        | Command::Inquiry { .. }
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::ModeSense { .. }
        | Command::ModeSelect { .. }
        | Command::ReportLuns { .. }
        | Command::ReportOpcodes { .. }
        | Command::ReportTaskManagement { .. }
        | Command::ReportTargetPortGroups { .. }
        | Command::SetTargetPortGroups { .. }
        | Command::LogSense { .. }
        | Command::StartStop { .. }
        | Command::PreventAllow { .. }
        | Command::ReadDefectData { .. }
        | Command::CopyStatus { .. }
        | Command::RodTokenInformation { .. }
        | Command::CopyOperatingParameters { .. }
        | Command::SendDiagnostic { .. } => (17, "other"),
    };
    activity::Operation {
        protocol: Protocol::Iscsi,
        number,
        name,
    }
}

/// A command at work.
pub(crate) struct Work<'a> {
    pub unit: &'a Arc<Unit>,
    pub lun: Arc<Lun>,
    pub nexus: &'a Nexus,
    pub place: &'a SessionContext,
    pub task: &'a TaskGuard,
}

impl Work<'_> {
    async fn run(&self, command: Command, data: Bytes) -> Result<Outcome, Refused> {
        let lun = &self.lun;
        let block_len = lun.block_len_bytes;
        match command {
            Command::TestUnitReady | Command::PreventAllow { .. } => Ok(Outcome::good()),
            Command::StartStop {
                power_condition,
                no_flush,
                ..
            } => {
                if power_condition > 0xb || matches!(power_condition, 4 | 6 | 8 | 9) {
                    return Err(Sense::cdb_field(4, Some(7)).into());
                }
                if !no_flush {
                    self.flush().await?;
                }
                Ok(Outcome::good())
            }
            Command::SendDiagnostic { list_len_bytes, .. } => match list_len_bytes {
                0 => Ok(Outcome::good()),
                _ => Err(Sense::cdb_field(3, None).into()),
            },
            Command::RequestSense {
                descriptor,
                allocation,
            } => {
                let sense = match self.unit.take_attention(self.nexus) {
                    Some(attention) => Sense::attention(attention),
                    None => Sense::new(Key::NoSense, code::NONE),
                };
                let bytes = match descriptor {
                    true => sense.descriptor(),
                    false => sense.fixed().to_vec(),
                };
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::Inquiry { page, allocation } => {
                Ok(Outcome::reply(self.inquiry(page)?, allocation))
            }
            Command::ReadCapacity10 => Ok(Outcome::reply(
                scsi::read_capacity_10(lun.block_count(), block_len),
                u32::MAX,
            )),
            Command::ReadCapacity16 { allocation } => {
                // A single block costs no reading of its neighbours: only a hint, for hosts of which it is known that they take it.
                let exponent = match self.place.tells_of_physical_blocks {
                    true => (GRANULE_LEN_BYTES / u64::from(block_len.max(1))).ilog2() as u8,
                    false => 0,
                };
                let bytes = scsi::read_capacity_16(lun.block_count(), block_len, exponent);
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::ModeSense { asked, allocation } => Ok(Outcome::reply(
                scsi::mode_sense(&asked, &self.unit.mode())?,
                allocation,
            )),
            Command::ModeSelect { save, is_long, .. } => {
                if save {
                    return Err(Sense::cdb_field(1, Some(0)).into());
                }
                let mode = scsi::mode_select(&data, is_long, &self.unit.mode())?;
                self.unit.set_mode(self.nexus, &mode);
                Ok(Outcome::good())
            }
            Command::ReportLuns { select, allocation } => {
                self.unit
                    .forget_attention(self.nexus, code::REPORTED_LUNS_CHANGED);
                report_luns(self.place, select, allocation)
            }
            Command::ReportOpcodes { asked, allocation } => {
                let bytes = match asked.options {
                    0 => scsi::supported_opcodes(asked.with_timeouts),
                    _ => scsi::supported_opcode(&asked)?,
                };
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::ReportTaskManagement {
                extended,
                allocation,
            } => Ok(Outcome::reply(
                scsi::report_task_management(extended),
                allocation,
            )),
            Command::ReportTargetPortGroups {
                extended,
                allocation,
            } => {
                let groups = self.place.port_groups().into_iter();
                let groups: Vec<_> = groups
                    .map(|(group, state)| (group, state, vec![group]))
                    .collect();
                Ok(Outcome::reply(
                    scsi::report_target_port_groups(extended, &groups),
                    allocation,
                ))
            }
            Command::SetTargetPortGroups { .. } => {
                for (state, group) in scsi::parse_set_target_port_groups(&data)? {
                    if !self.place.port_groups().contains(&(group, state)) {
                        return Err(Sense::list_field(4).into());
                    }
                }
                Ok(Outcome::good())
            }
            Command::LogSense {
                page,
                subpage,
                pointer,
                allocation,
                ..
            } => {
                let attr = self
                    .unit
                    .san
                    .fs()
                    .attr_under_way(lun.ino)
                    .map_err(|error| self.read_error(error))?;
                let space = self
                    .unit
                    .san
                    .fs()
                    .space()
                    .await
                    .map_err(|error| self.read_error(error))?;
                let seen = scsi::SpaceSeen {
                    free_sets: threshold_sets(space.free_bytes),
                    used_sets: threshold_sets(
                        attr.used_bytes.next_multiple_of(THRESHOLD_SET_BYTES),
                    ),
                };
                let bytes = scsi::log_sense(page, subpage, pointer, seen)?;
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::ReadDefectData {
                is_long,
                primary,
                grown,
                format,
                allocation,
            } => {
                // There are none: the list is empty in whichever format.
                let flags = u8::from(primary) << 4 | u8::from(grown) << 3 | format;
                let len = if is_long { 8 } else { 4 };
                let mut bytes = vec![0; len];
                bytes[1] = flags;
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::Read { blocks, .. } => {
                let data = self.read(&self.range(&blocks)).await?;
                let outcome = Outcome {
                    data,
                    ..Outcome::good()
                };
                self.unit
                    .counters
                    .read_bytes
                    .fetch_add(outcome.len_bytes(), Ordering::Relaxed);
                Ok(outcome)
            }
            Command::Write { blocks, fua } => {
                let _order = self.unit.order.read().await;
                self.write(self.range(&blocks).start, data, fua).await?;
                Ok(Outcome::good())
            }
            Command::WriteAndVerify { blocks, compare } => {
                let _order = self.unit.order.write().await;
                let range = self.range(&blocks);
                self.write(range.start, data.clone(), true).await?;
                let read = self.read(&range).await?;
                if compare {
                    self.compare(&read, &data)?;
                }
                Ok(Outcome::good())
            }
            Command::Verify { blocks, compare } => {
                self.verify(&blocks, compare, &data).await?;
                Ok(Outcome::good())
            }
            Command::OrWrite { blocks, fua } => {
                let _order = self.unit.order.write().await;
                let range = self.range(&blocks);
                let mut bytes = self.read(&range).await?.concat();
                for (byte, more) in bytes.iter_mut().zip(data.iter()) {
                    *byte |= more;
                }
                self.write(range.start, bytes.into(), fua).await?;
                Ok(Outcome::good())
            }
            Command::CompareAndWrite { blocks, fua } => {
                let _order = self.unit.order.write().await;
                let range = self.range(&blocks);
                let half = ((range.end - range.start) as usize).min(data.len());
                self.compare_and_write(range.start, &data.slice(..half), data.slice(half..), fua)
                    .await?;
                Ok(Outcome::good())
            }
            Command::WriteSame { blocks, .. } => {
                let _order = self.unit.order.read().await;
                self.write_same(&blocks, &data).await?;
                Ok(Outcome::good())
            }
            Command::Unmap { .. } => {
                let ranges = scsi::parse_unmap(&data)?;
                let blocks = ranges.iter().map(|range| Blocks {
                    lba: range.lba,
                    count: range.count.into(),
                });
                let blocks: Vec<Blocks> = blocks.collect();
                let limit = u64::from(limits(block_len).unmap_blocks);
                for one in &blocks {
                    in_range(lun, one)?;
                    if one.count > limit {
                        return Err(Sense::illegal(code::INVALID_FIELD_IN_LIST).into());
                    }
                }
                let _order = self.unit.order.read().await;
                for one in &blocks {
                    self.punch(self.range(one)).await?;
                }
                Ok(Outcome::good())
            }
            Command::Prefetch { blocks } => {
                let range = self.range(&blocks);
                let end = range.end.min(range.start + TRANSFER_LEN_BYTES_MAX);
                self.read(&(range.start..end)).await?;
                Ok(Outcome::of(Status::ConditionMet))
            }
            Command::SynchronizeCache { .. } => {
                self.flush().await?;
                Ok(Outcome::good())
            }
            Command::GetLbaStatus { lba, allocation } => Ok(Outcome::reply(
                self.lba_status(lba, allocation).await?,
                allocation,
            )),
            Command::Reserve => {
                self.unit
                    .with_reservations(|state| state.reserve(self.nexus))?;
                Ok(Outcome::good())
            }
            Command::Release => {
                self.unit
                    .with_reservations(|state| state.release(self.nexus))?;
                Ok(Outcome::good())
            }
            Command::PersistentIn { action, allocation } => {
                Ok(Outcome::reply(self.persistent_in(action), allocation))
            }
            Command::PersistentOut(command) => {
                let given = scsi::parse_persistent_out(&data)?;
                let change = self.unit.change_reservations::<Refused>(|state| {
                    state.out(self.nexus, &command, &given)
                });
                let Effects { aborted, .. } = change.await?;
                if !aborted.is_empty() {
                    self.unit
                        .abort(|nexus| aborted.contains(nexus), Some(self.task))
                        .await;
                }
                Ok(Outcome::good())
            }
            Command::Sanitize {
                action,
                list_len_bytes,
                ..
            } => match action {
                Sanitize::BlockErase if list_len_bytes == 0 => {
                    let _order = self.unit.order.write().await;
                    self.punch(0..lun.size_bytes).await?;
                    Ok(Outcome::good())
                }
                // No erasure leaves the LUN in a state that is to be left.
                Sanitize::ExitFailureMode if list_len_bytes == 0 => Ok(Outcome::good()),
                Sanitize::BlockErase | Sanitize::ExitFailureMode => {
                    Err(Sense::cdb_field(7, None).into())
                }
                Sanitize::Overwrite | Sanitize::CryptographicErase => {
                    Err(Sense::cdb_field(1, Some(4)).into())
                }
            },
            Command::ExtendedCopy { .. } => self.copy(&data).await,
            Command::CopyStatus { list, allocation } => match self.unit.last_copy(self.nexus) {
                Some((known, is_good, segments, bytes)) if known == list => Ok(Outcome::reply(
                    scsi::copy_status(is_good, segments, bytes),
                    allocation,
                )),
                _ => Err(Sense::cdb_field(2, None).into()),
            },
            Command::CopyOperatingParameters { allocation } => {
                let bytes = scsi::copy_operating_parameters(segment_len_bytes_max(block_len));
                Ok(Outcome::reply(bytes, allocation))
            }
            Command::PopulateToken { list, .. } => self.populate_token(list, &data).await,
            Command::WriteUsingToken { list, .. } => self.write_using_token(list, &data).await,
            Command::RodTokenInformation { list, allocation } => Ok(Outcome::reply(
                self.rod_token_information(list)?,
                allocation,
            )),
        }
    }

    fn inquiry(&self, page: Option<u8>) -> Result<Vec<u8>, Sense> {
        let naa = self.lun.naa_bytes();
        let identity = || scsi::Identity {
            revision: self.place.revision,
            naa,
            serial: format!("{:016x}", self.lun.naa),
            target_name: self.place.target_name.clone(),
            port: scsi::PortGroup {
                port: self.place.group,
                group: self.place.group,
            },
        };
        Ok(match page {
            None => scsi::standard_inquiry(
                &self.place.revision,
                true,
                scsi::Alua {
                    explicit: self.place.cluster.is_none(),
                },
            ),
            Some(0x00) => scsi::supported_pages(),
            Some(0x80) => scsi::unit_serial(&identity()),
            Some(0x83) => scsi::device_identification(&identity()),
            Some(0x86) => scsi::extended_inquiry(),
            Some(0x87) => scsi::mode_page_policy(),
            Some(0x88) => {
                let ports = self.place.port_groups().into_iter();
                let ports: Vec<u16> = ports.map(|(group, _)| group).collect();
                scsi::scsi_ports(&self.place.target_name, &ports)
            }
            Some(0x8f) => scsi::third_party_copy(&token_limits(self.lun.block_len_bytes)),
            Some(0xb0) => scsi::block_limits(&limits(self.lun.block_len_bytes)),
            Some(0xb1) => scsi::device_characteristics(),
            Some(0xb2) => {
                let block = u64::from(self.lun.block_len_bytes).max(1);
                let exponent = (THRESHOLD_SET_BYTES / block).max(1).ilog2();
                scsi::logical_block_provisioning(exponent as u8)
            }
            Some(_) => return Err(Sense::cdb_field(2, None)),
        })
    }

    fn persistent_in(&self, action: PersistentIn) -> Vec<u8> {
        self.unit.with_reservations(|state| match action {
            PersistentIn::Keys => scsi::reservation_keys(state.generation(), &state.keys()),
            PersistentIn::Reservation => scsi::reservation_of(state.generation(), state.held()),
            PersistentIn::Capabilities => scsi::report_capabilities(state.persists()),
            PersistentIn::Full => {
                let seen =
                    state
                        .registrations()
                        .into_iter()
                        .map(|(nexus, key, kind)| ReservationSeen {
                            key,
                            holds: kind.is_some(),
                            kind: kind.unwrap_or(0),
                            port: nexus.target_port(),
                            initiator: nexus.initiator_port().to_owned(),
                        });
                scsi::reservation_descriptors(state.generation(), &seen.collect::<Vec<_>>())
            }
        })
    }
}

/// REPORT LUNS, which any LUN answers, there or not.
pub fn report_luns(
    place: &SessionContext,
    select: u8,
    allocation: u32,
) -> Result<Outcome, Refused> {
    if allocation < 16 {
        return Err(Sense::cdb_field(6, None).into());
    }
    let bytes = match select {
        0 | 2 => scsi::report_luns(place.units.keys().copied()),
        // Well-known logical units: there are none.
        1 => scsi::report_luns([]),
        _ => return Err(Sense::cdb_field(2, None).into()),
    };
    Ok(Outcome::reply(bytes, allocation))
}

/// The answer where there is no logical unit.
pub fn without_unit(place: &SessionContext, cdb: &[u8; 16]) -> Outcome {
    let absent = Sense::illegal(code::LUN_NOT_SUPPORTED);
    match scsi::parse(cdb) {
        Ok(Command::Inquiry {
            page: None,
            allocation,
        }) => {
            let alua = scsi::Alua {
                explicit: place.cluster.is_none(),
            };
            let bytes = scsi::standard_inquiry(&place.revision, false, alua);
            Outcome::reply(bytes, allocation)
        }
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(place, select, allocation).unwrap_or_else(Outcome::from)
        }
        Ok(Command::RequestSense { allocation, .. }) => {
            Outcome::reply(absent.fixed().to_vec(), allocation)
        }
        Err(refused) if scsi::ignores_attention(cdb) => refused.into(),
        _ => absent.into(),
    }
}
