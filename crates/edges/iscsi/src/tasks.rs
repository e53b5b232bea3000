//! Commands of a session: their data, their turn, their answers.
//!
//! Owns: data that comes with commands or is asked for, the memory that they hold, what runs, what is sent back.
//! Must not know: what commands do (`execute`), which connections there are (`session`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::buf::AlignedFill;
use cairn_codec_iscsi::{
    Attribute, CommandHeader, DataIn, Reply, Residual, TaskResponse, UNTAGGED,
};
use cairn_codec_scsi::{Command, Key, Sense, Status, code, lun_of_bytes};
use cairn_qos::{Client, Pass};

use crate::execute::{self, CheckedCommand, Outcome, SessionContext};
use crate::lane::Broken;
use crate::portal::PortalCore;
use crate::session::SessionTask;
use crate::unit::{TaskHandle, Unit};

/// Data that came keeps memory that is larger by this part of it at most.
const KEPT_BEYOND_PART: usize = 4;

/// All data of a command. Where that is far less than the pages that it was received into, it is copied out of them: once it is
/// written, the record cache may keep it as it is, and takes its length for what that has in memory.
fn received(fill: AlignedFill) -> Bytes {
    let buffer = fill.finish();
    match buffer.capacity_bytes() > buffer.len() + buffer.len() / KEPT_BEYOND_PART {
        true => Bytes::copy_from_slice(&buffer),
        false => buffer.freeze(),
    }
}

/// Memory that a command holds, of that of all.
pub(crate) struct HeldMemory {
    shared: Arc<PortalCore>,
    len_bytes: usize,
}

impl HeldMemory {
    fn take(shared: &Arc<PortalCore>, len_bytes: u64) -> Option<Self> {
        let len_bytes = usize::try_from(len_bytes).ok()?;
        let held: &AtomicUsize = &shared.held_bytes;
        let before = held.fetch_add(len_bytes, Ordering::AcqRel);
        let taken = Self {
            shared: Arc::clone(shared),
            len_bytes,
        };
        // Dropped, it gives back.
        (before + len_bytes <= shared.settings.held_bytes_max).then_some(taken)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.shared
            .held_bytes
            .fetch_sub(self.len_bytes, Ordering::AcqRel);
    }
}

/// A command with all that its answer needs.
pub(crate) struct ReceivedCommand {
    /// The connection that it came over, and its answer goes.
    pub lane: u64,
    client: Client,
    pub header: CommandHeader,
    /// Bytes that the command is about, whatever the initiator expected.
    out_len_bytes: u64,
    /// R2Ts that were sent for it.
    asked_count: u32,
    pub is_immediate: bool,
}

/// A command whose data is coming.
pub(crate) struct Incoming {
    pub asked: ReceivedCommand,
    /// The command, or how it ended before its data was there.
    work: Result<(Arc<Unit>, CheckedCommand), Outcome>,
    fill: AlignedFill,
    held: Option<HeldMemory>,
    /// Bytes that came, those that nobody wants included.
    arrived_bytes: u64,
    /// More comes without being asked for.
    is_open: bool,
    /// Asked for, up to here.
    asked_bytes: u64,
    /// Ends of what was asked for, with their tags.
    ready: VecDeque<(u32, u64)>,
    data_number: u32,
    /// Its number among the delayed, while it waits for its time: nothing is asked for before.
    delayed: Option<u64>,
}

/// A command that can begin.
pub(crate) struct Start {
    pub asked: ReceivedCommand,
    unit: Arc<Unit>,
    checked: CheckedCommand,
    data: Bytes,
    held: Option<HeldMemory>,
}

/// What ended of what was under way.
pub(crate) enum Done {
    Command {
        asked: Box<ReceivedCommand>,
        outcome: Outcome,
        is_aborted: bool,
        has_descriptor_sense: bool,
        held: Option<HeldMemory>,
    },
    Task {
        lane: u64,
        tag: u32,
        response: TaskResponse,
    },
}

pub(crate) type Running = Pin<Box<dyn Future<Output = Done> + Send>>;
/// A command under way.
pub(crate) struct Active {
    pub lane: u64,
    pub task: TaskHandle,
}

/// Ready when the time of a delayed command has come: its tag, and its number among the delayed.
pub(crate) type Delayed = Pin<Box<dyn Future<Output = (u32, u64)> + Send>>;

impl SessionTask {
    pub fn command(
        &mut self,
        lane: u64,
        header: CommandHeader,
        is_immediate: bool,
        data: &Bytes,
    ) -> Result<(), Broken> {
        let Some(client) = self.lane(lane).map(|lane| lane.client) else {
            return Ok(());
        };
        let Some(view) = &mut self.view else {
            return Ok(());
        };
        if self.active.contains_key(&header.tag)
            || self.incoming.contains_key(&header.tag)
            || self.parked.contains_key(&header.tag)
        {
            return Err(Broken::Protocol("two commands with one tag"));
        }
        let immediate_len = data.len() as u64;
        if immediate_len > u64::from(self.agreed.first_burst_len_bytes) && header.writes {
            return Err(Broken::Protocol("more unsolicited data than was agreed on"));
        }
        if !is_immediate {
            self.open_count += 1;
        }
        let place = view.place();
        let unit = lun_of_bytes(&header.lun)
            .and_then(|lun| place.units.get(&lun))
            .cloned();
        let checked = match &unit {
            None => Err(execute::without_unit(&place, &header.cdb)),
            Some(unit) => execute::check(unit, &self.nexus, &header.cdb),
        };
        let has_descriptor_sense = unit
            .as_ref()
            .is_some_and(|unit| unit.has_descriptor_sense());
        let out_len = checked.as_ref().map_or(0, |checked| checked.out_len_bytes);
        let expected = u64::from(header.expected_len_bytes);
        let sent = if header.writes { expected } else { 0 };
        let mut accept = sent.min(out_len);
        let reads = if header.reads {
            expected.min(execute::TRANSFER_LEN_BYTES_MAX)
        } else {
            0
        };
        let asked = ReceivedCommand {
            lane,
            client,
            header,
            out_len_bytes: out_len,
            asked_count: 0,
            is_immediate,
        };
        let mut held = None;
        let mut work = match (checked, unit) {
            (Ok(checked), Some(unit)) => Ok((unit, checked)),
            (Err(outcome), _) => Err(outcome),
            (Ok(_), None) => Err(Outcome::failed(Sense::illegal(code::LUN_NOT_SUPPORTED))),
        };
        if accept < out_len
            && let Ok((unit, checked)) = &mut work
            && let Some((shorter, len)) = execute::shortened(unit, *checked, accept)
        {
            *checked = shorter;
            accept = len;
        }
        let is_exact = |work: &Result<(Arc<Unit>, CheckedCommand), Outcome>| match work {
            Ok((_, checked)) => match checked.command {
                Command::Write { .. } | Command::WriteAndVerify { .. } => true,
                // Both blocks of each pair; the one block that is repeated, which is not the first of several, or none
                // (SBC-3, WRITE SAME: "a single logical block is transferred").
                Command::CompareAndWrite { .. } | Command::WriteSame { .. } => sent == out_len,
                _ => accept == out_len,
            },
            Err(_) => true,
        };
        // More than twice the blocks would be a length that the command cannot say.
        if work.is_ok() && !is_exact(&work) {
            // Less comes than the command is about, or what is not of it: nothing of it is written.
            work = Err(Outcome::failed(Sense::illegal(code::INVALID_FIELD_IN_CDB)));
        }
        let mut pass = None;
        if let Ok((unit, checked)) = &work
            && let Some(operation) = execute::counted(unit, checked, accept)
            // An ordered one waits in its place, where those behind it wait for it.
            && header.attribute != Attribute::Ordered
        {
            pass = place.gate.admit(unit.client(client), operation);
        }
        if work.is_ok() {
            // A delayed command holds the bytes that have come, and no more.
            let len_bytes = match pass {
                None => accept.max(reads),
                Some(_) => immediate_len,
            };
            held = HeldMemory::take(&self.shared, len_bytes);
            if held.is_none() {
                work = Err(Outcome::of(Status::TaskSetFull));
            }
        }
        let accept = if work.is_ok() { accept } else { 0 };
        let is_open = header.writes && !header.is_final;
        if accept == 0 && !is_open {
            match work {
                Ok((unit, checked)) => {
                    let start = Start {
                        asked,
                        unit,
                        checked,
                        data: Bytes::new(),
                        held,
                    };
                    match pass {
                        None => self.waiting.push_back(start),
                        Some(pass) => {
                            let number = self.delay(header.tag, pass);
                            self.parked.insert(header.tag, (number, start));
                        }
                    }
                }
                // It says what the LUN is like.
                Err(_) if !(self.shared.may_answer)() => return Err(Broken::NoLease),
                Err(outcome) => {
                    self.answer(&asked, outcome, has_descriptor_sense);
                }
            }
            self.pump();
            return Ok(());
        }
        let mut fill = AlignedFill::new(accept as usize);
        fill.fill_from(data);
        let tag = header.tag;
        let delayed = match (pass, work.is_ok()) {
            (Some(pass), true) => Some(self.delay(tag, pass)),
            _ => None,
        };
        let incoming = Incoming {
            asked,
            work,
            fill,
            held,
            arrived_bytes: immediate_len,
            is_open,
            asked_bytes: immediate_len.min(accept),
            ready: VecDeque::new(),
            data_number: 0,
            delayed,
        };
        self.incoming.insert(tag, incoming);
        self.go_on(tag);
        Ok(())
    }

    /// Notes that a command waits for its time.
    fn delay(&mut self, tag: u32, pass: Pass) -> u64 {
        let number = self.delayed_next;
        self.delayed_next += 1;
        self.delayed.push(Box::pin(async move {
            pass.await;
            (tag, number)
        }));
        number
    }

    /// The time of a delayed command has come, if it is still there.
    pub fn admitted(&mut self, tag: u32, number: u64) {
        if let Some(incoming) = self.incoming.get_mut(&tag)
            && incoming.delayed == Some(number)
        {
            incoming.delayed = None;
            if incoming.work.is_ok() {
                incoming.held = None;
                incoming.held = HeldMemory::take(&self.shared, incoming.fill.len_bytes() as u64);
                if incoming.held.is_none() {
                    incoming.work = Err(Outcome::of(Status::TaskSetFull));
                }
            }
            self.go_on(tag);
            return;
        }
        if self.parked.get(&tag).is_none_or(|(at, _)| *at != number) {
            return;
        }
        let Some((_, mut start)) = self.parked.remove(&tag) else {
            return;
        };
        let header = &start.asked.header;
        let len_bytes = match header.reads {
            true => u64::from(header.expected_len_bytes).min(execute::TRANSFER_LEN_BYTES_MAX),
            false => 0,
        };
        start.held = HeldMemory::take(&self.shared, len_bytes);
        match start.held {
            Some(_) => self.waiting.push_back(start),
            None => self.answer(&start.asked, Outcome::of(Status::TaskSetFull), false),
        }
        self.pump();
    }

    /// Asks for more data of a command, or begins it if all is there.
    fn go_on(&mut self, tag: u32) {
        let Some(incoming) = self.incoming.get_mut(&tag) else {
            return;
        };
        if incoming.is_open || (!incoming.ready.is_empty() && incoming.work.is_err()) {
            return;
        }
        if incoming.delayed.is_some() && incoming.work.is_ok() {
            return;
        }
        let accept = incoming.fill.len_bytes() as u64;
        if incoming.work.is_ok() && incoming.fill.missing_bytes() > 0 {
            let mut replies = Vec::new();
            while incoming.asked_bytes < accept
                && incoming.ready.len() < self.agreed.outstanding_r2t as usize
            {
                let len = (accept - incoming.asked_bytes).min(self.agreed.burst_len_bytes.into());
                let target_tag = self.transfer_tag_next;
                self.transfer_tag_next = self.transfer_tag_next.wrapping_add(1) & 0x7fff_ffff;
                replies.push(Reply::ReadyToTransfer {
                    lun: incoming.asked.header.lun,
                    tag,
                    target_tag,
                    number: incoming.asked.asked_count,
                    offset_bytes: incoming.asked_bytes as u32,
                    len_bytes: len as u32,
                });
                incoming.asked.asked_count += 1;
                incoming.asked_bytes += len;
                incoming.ready.push_back((target_tag, incoming.asked_bytes));
            }
            let lane = incoming.asked.lane;
            for reply in replies {
                self.send(lane, &reply, Vec::new());
            }
            return;
        }
        let Some(Incoming {
            asked,
            work,
            fill,
            held,
            ..
        }) = self.incoming.remove(&tag)
        else {
            return;
        };
        match work {
            Ok((unit, checked)) => self.waiting.push_back(Start {
                asked,
                unit,
                checked,
                data: received(fill),
                held,
            }),
            Err(outcome) => self.answer(&asked, outcome, false),
        }
        self.pump();
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one PDU")]
    pub fn data_out(
        &mut self,
        lane: u64,
        is_final: bool,
        tag: u32,
        target_tag: u32,
        number: u32,
        offset_bytes: u32,
        data: &Bytes,
    ) {
        // Of a task that was aborted, or ended early: it is of no interest any more. Data comes over the connection of its command.
        let incoming = self.incoming.get_mut(&tag);
        let Some(incoming) = incoming.filter(|incoming| incoming.asked.lane == lane) else {
            return;
        };
        let is_solicited = target_tag != UNTAGGED;
        let failed = |incoming: &mut Incoming| {
            if incoming.work.is_ok() {
                let sense = Sense::new(Key::AbortedCommand, code::DATA_PHASE_ERROR);
                incoming.work = Err(Outcome::failed(sense));
            }
        };
        let is_expected = match is_solicited {
            true => incoming.ready.front().is_some_and(|(expected, end)| {
                *expected == target_tag && u64::from(offset_bytes) + data.len() as u64 <= *end
            }),
            false => {
                let end = u64::from(offset_bytes) + data.len() as u64;
                incoming.is_open && end <= u64::from(self.agreed.first_burst_len_bytes)
            }
        };
        if !is_expected
            || u64::from(offset_bytes) != incoming.arrived_bytes
            || number != incoming.data_number
        {
            failed(incoming);
        }
        incoming.data_number = number.wrapping_add(1);
        incoming.arrived_bytes = u64::from(offset_bytes) + data.len() as u64;
        if incoming.work.is_ok() {
            incoming.fill.fill_from(data);
        }
        if is_final {
            incoming.data_number = 0;
            if is_solicited {
                let end = incoming.ready.pop_front().map(|(_, end)| end);
                if end != Some(incoming.arrived_bytes) {
                    failed(incoming);
                }
            } else {
                incoming.is_open = false;
                incoming.asked_bytes = incoming.arrived_bytes.min(incoming.fill.len_bytes() as u64);
            }
            if incoming.work.is_err() {
                // Data that is still on its way is dropped when it comes.
                incoming.ready.clear();
            }
            self.go_on(tag);
        }
    }

    /// Begins what can begin. An ordered command waits for those before it, and those after it wait for it.
    pub fn pump(&mut self) {
        // What waits came before: the process may have stood still since.
        if !self.lanes.iter().all(|lane| lane.is_live()) {
            return;
        }
        while let Some(next) = self.waiting.front() {
            let is_ordered = next.asked.header.attribute == Attribute::Ordered;
            if self.ordered_runs || (is_ordered && self.running_commands > 0) {
                return;
            }
            let Some(start) = self.waiting.pop_front() else {
                return;
            };
            self.ordered_runs = is_ordered;
            self.begin(start);
        }
    }

    fn begin(&mut self, start: Start) {
        let Some(view) = &mut self.view else { return };
        let Start {
            asked,
            unit,
            checked,
            data,
            held,
        } = start;
        let place: Arc<SessionContext> = view.place();
        let nexus = self.nexus.clone();
        let guard = unit.begin_task(&nexus);
        let (lane, client) = (asked.lane, asked.client);
        let task = guard.handle();
        self.active.insert(asked.header.tag, Active { lane, task });
        self.running_commands += 1;
        self.begun_count += 1;
        self.shared.command_count.fetch_add(1, Ordering::Relaxed);
        let is_ordered = asked.header.attribute == Attribute::Ordered;
        let gate = Arc::clone(&place.gate);
        let work = async move {
            let operation = execute::counted(&unit, &checked, data.len() as u64);
            if let Some(operation) = operation.filter(|_| is_ordered) {
                gate.pass(unit.client(client), operation).await;
            }
            let timed = operation.and_then(|_| gate.timed());
            let outcome = execute::execute(&unit, &nexus, &place, &guard, checked, data).await;
            if let Some(timed) = timed {
                timed.answered();
            }
            Done::Command {
                asked: Box::new(asked),
                outcome,
                is_aborted: guard.is_aborted(),
                has_descriptor_sense: unit.has_descriptor_sense(),
                held,
            }
        };
        self.run_for(lane, Box::pin(work));
    }

    pub fn finish(&mut self, done: Done) -> Result<(), Broken> {
        if !(self.shared.may_answer)() {
            return Err(Broken::NoLease);
        }
        match done {
            Done::Command {
                asked,
                outcome,
                is_aborted,
                has_descriptor_sense,
                held,
            } => {
                self.has_run(asked.lane);
                if self
                    .active
                    .get(&asked.header.tag)
                    .is_some_and(|one| one.lane == asked.lane)
                {
                    self.active.remove(&asked.header.tag);
                }
                self.running_commands -= 1;
                if asked.header.attribute == Attribute::Ordered {
                    self.ordered_runs = false;
                }
                if is_aborted {
                    // Nobody waits for its answer any more.
                    if !asked.is_immediate {
                        self.open_count -= 1;
                    }
                } else {
                    self.answer(&asked, outcome, has_descriptor_sense);
                }
                drop(held);
            }
            Done::Task {
                lane,
                tag,
                response,
            } => {
                self.has_run(lane);
                self.send(lane, &Reply::Task { tag, response }, Vec::new());
            }
        }
        Ok(())
    }

    /// Has something run for a connection.
    pub fn run_for(&mut self, lane: u64, work: Running) {
        *self.running_of.entry(lane).or_default() += 1;
        self.running.push(work);
    }

    fn has_run(&mut self, lane: u64) {
        if let Some(count) = self.running_of.get_mut(&lane) {
            *count -= 1;
            if *count == 0 {
                self.admissions.remove(&lane);
                self.running_of.remove(&lane);
            }
        }
    }

    /// Sends the data and the status of a command.
    fn answer(&mut self, asked: &ReceivedCommand, outcome: Outcome, has_descriptor_sense: bool) {
        let header = &asked.header;
        if !asked.is_immediate {
            self.open_count -= 1;
        }
        let expected = u64::from(header.expected_len_bytes);
        let len = outcome.len_bytes();
        let moved = match (header.writes, outcome.sense.is_some()) {
            // Of a command that failed before its data came nothing was used.
            (true, true) if asked.out_len_bytes == 0 => expected,
            (true, _) => asked.out_len_bytes,
            (false, true) => 0,
            (false, false) => len,
        };
        let residual = Residual::of(expected, moved);
        let tag = header.tag;
        if let Some(sense) = outcome.sense {
            let sense = match has_descriptor_sense {
                true => sense.descriptor(),
                false => sense.fixed().to_vec(),
            };
            let mut data = (sense.len() as u16).to_be_bytes().to_vec();
            data.extend(sense);
            let reply = Reply::Response {
                tag,
                response: 0,
                status: outcome.status as u8,
                data_count: asked.asked_count,
                residual,
            };
            self.send(asked.lane, &reply, vec![data.into()]);
            return;
        }
        let send = if header.reads { len.min(expected) } else { 0 };
        if send == 0 {
            let reply = Reply::Response {
                tag,
                response: 0,
                status: outcome.status as u8,
                data_count: asked.asked_count,
                residual,
            };
            self.send(asked.lane, &reply, Vec::new());
            return;
        }
        let status = (outcome.status as u8, residual);
        self.send_data(asked.lane, tag, outcome.data, send, status);
    }

    fn send_data(
        &mut self,
        lane: u64,
        tag: u32,
        parts: Vec<Bytes>,
        len: u64,
        status: (u8, Residual),
    ) {
        let mut parts = VecDeque::from(parts);
        let segment = self.segment_len_bytes(lane).max(1) as u64;
        let burst = u64::from(self.agreed.burst_len_bytes);
        let (mut at, mut number) = (0, 0);
        while at < len {
            let burst_left = burst - at % burst;
            let take = segment.min(burst_left).min(len - at);
            let mut data = Vec::new();
            let mut missing = take as usize;
            while missing > 0 {
                let Some(front) = parts.front_mut() else {
                    break;
                };
                let part = front.split_to(front.len().min(missing));
                missing -= part.len();
                if front.is_empty() {
                    parts.pop_front();
                }
                if !part.is_empty() {
                    data.push(part);
                }
            }
            let end = at + take;
            let is_last = end == len;
            let reply = Reply::DataIn(DataIn {
                is_final: is_last || end % burst == 0,
                status: is_last.then_some(status),
                tag,
                number,
                offset_bytes: at as u32,
            });
            self.send(lane, &reply, data);
            at = end;
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_data_keeps_no_page_in_memory() {
        // Bytes, and whether they stay where they were received.
        let cases = [
            (0, false),
            (512, false),
            (3072, false),
            (3584, true),
            (4096, true),
            (4608, false),
            (64 << 10, true),
            ((64 << 10) + 512, true),
        ];
        for (len, stays) in cases {
            let mut fill = AlignedFill::new(len);
            let before = fill.spare().as_ptr().cast::<u8>();
            fill.fill_from(&vec![7; len]);
            let data = received(fill);
            assert!(data == vec![7; len], "{len}");
            assert_eq!(data.as_ptr() == before, stays, "{len}");
        }
    }
}
