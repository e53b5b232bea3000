//! A session's bytes: commands in, PDUs out, and the other way.
//!
//! Owns: tags, numbers and the window of commands, where received data goes, which part of a write is sent when.
//! Must not know: sockets, clocks but for how long a command waits.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use cairn_base::AlignedBuf;
use cairn_codec_iscsi::{
    Attribute, CommandHeader, HEADER_LEN_BYTES, Header, Numbers, Reply, ReplyNumbers, Request,
    UNTAGGED, serial_before,
};
use cairn_codec_scsi::parse_sense;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::error::Error;

/// What comes with a reply that is no data of a command: sense data, text.
const OTHER_LEN_BYTES_MAX: usize = 64 << 10;
/// Received at once, unless it goes straight to where it stays.
const INPUT_LEN_BYTES: usize = 128 << 10;
/// Data that is copied behind its header: a slice of its own costs more.
const COPIED_LEN_BYTES_MAX: usize = 1024;
pub(crate) const SLICE_COUNT_MAX: usize = 64;

/// What both sides agreed on that matters here.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    pub immediate_data: bool,
    /// Of a write, what the target takes unasked, in bytes.
    pub first_burst_len_bytes: usize,
    /// What the target takes in one data segment, in bytes.
    pub send_segment_len_bytes: usize,
    pub lun: [u8; 8],
    pub next_command: u32,
    pub max_command: u32,
    pub expected_status: u32,
}

/// The data of a command.
pub(crate) enum Transfer {
    None,
    /// Received into the buffer, as much as it holds.
    Read(AlignedBuf),
    Write(Bytes),
}

impl Transfer {
    fn len_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Read(buffer) => buffer.len(),
            Self::Write(data) => data.len(),
        }
    }
}

/// A command that ended well.
pub(crate) struct Answered {
    pub buffer: Option<AlignedBuf>,
    /// From the front of the buffer.
    pub received_bytes: usize,
}

pub(crate) struct Call {
    pub cdb: [u8; 16],
    pub transfer: Transfer,
    pub reply_to: oneshot::Sender<Result<Answered, Error>>,
}

struct Task {
    transfer: Transfer,
    received_bytes: usize,
    reply_to: oneshot::Sender<Result<Answered, Error>>,
    since: Instant,
}

/// The part of a PDU that is being received.
enum Stage {
    Header,
    /// Data of a command, from `at` of its buffer on.
    Data {
        reply: Reply,
        numbers: ReplyNumbers,
        tag: u32,
        at: usize,
        left: usize,
        padding: usize,
    },
    Other {
        reply: Reply,
        numbers: ReplyNumbers,
        len_bytes: usize,
        padding: usize,
    },
}

/// Where the next bytes go.
pub(crate) enum Space<'a> {
    InPlace(&'a mut [u8]),
    Input(&'a mut BytesMut, usize),
}

pub(crate) struct Wire {
    agreed: Agreed,
    /// Until the target takes more commands.
    waiting: VecDeque<Call>,
    next_tag: u32,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
}

/// Commands under way, and what is being received for them.
pub(crate) struct Incoming {
    tasks: FxHashMap<u32, Task>,
    input: BytesMut,
    stage: Stage,
}

impl Wire {
    pub fn new(agreed: Agreed) -> Self {
        Self {
            agreed,
            waiting: VecDeque::new(),
            next_tag: 1,
            outgoing: Outgoing::default(),
            incoming: Incoming {
                tasks: FxHashMap::default(),
                input: BytesMut::with_capacity(INPUT_LEN_BYTES),
                stage: Stage::Header,
            },
        }
    }

    pub fn under_way_count(&self) -> usize {
        self.incoming.tasks.len() + self.waiting.len()
    }

    pub fn submit(&mut self, call: Call, now: Instant) {
        self.waiting.push_back(call);
        self.send_waiting(now);
    }

    fn numbers(&self, command: u32) -> Numbers {
        Numbers {
            command,
            expected_status: self.agreed.expected_status,
        }
    }

    fn send_waiting(&mut self, now: Instant) {
        while !serial_before(self.agreed.max_command, self.agreed.next_command)
            && let Some(call) = self.waiting.pop_front()
        {
            self.send(call, now);
        }
    }

    fn send(&mut self, call: Call, now: Instant) {
        let tag = self.new_tag();
        let command = self.agreed.next_command;
        self.agreed.next_command = command.wrapping_add(1);
        let len_bytes = call.transfer.len_bytes();
        let immediate = match &call.transfer {
            Transfer::Write(data) if self.agreed.immediate_data => {
                let first = self.agreed.first_burst_len_bytes;
                data.slice(..len_bytes.min(first).min(self.agreed.send_segment_len_bytes))
            }
            _ => Bytes::new(),
        };
        let request = Request::Command(CommandHeader {
            // The target asks for the data that is not in this PDU.
            is_final: true,
            reads: matches!(call.transfer, Transfer::Read(_)),
            writes: matches!(call.transfer, Transfer::Write(_)),
            attribute: Attribute::Simple,
            lun: self.agreed.lun,
            tag,
            expected_len_bytes: len_bytes as u32,
            numbers: self.numbers(command),
            cdb: call.cdb,
        });
        let header = request.header(immediate.len(), false, self.agreed.expected_status);
        self.outgoing.push(&header, immediate);
        let task = Task {
            transfer: call.transfer,
            received_bytes: 0,
            reply_to: call.reply_to,
            since: now,
        };
        self.incoming.tasks.insert(tag, task);
    }

    fn new_tag(&mut self) -> u32 {
        loop {
            let tag = self.next_tag;
            self.next_tag = self.next_tag.wrapping_add(1);
            if tag != UNTAGGED && !self.incoming.tasks.contains_key(&tag) {
                return tag;
            }
        }
    }

    /// Does what the received bytes say, as far as they are whole. An error ends the session.
    pub fn process(&mut self, now: Instant) -> Result<(), Error> {
        loop {
            let incoming = &mut self.incoming;
            match &mut incoming.stage {
                Stage::Header => {
                    let Some(header) = incoming.input.first_chunk::<HEADER_LEN_BYTES>() else {
                        return Ok(());
                    };
                    let header = Header(*header);
                    incoming.input.advance(HEADER_LEN_BYTES);
                    incoming.stage = incoming.begin(&header)?;
                }
                Stage::Data {
                    reply,
                    numbers,
                    tag,
                    at,
                    left,
                    padding,
                } => {
                    let count = incoming.input.len().min(*left);
                    if let Some(task) = incoming.tasks.get_mut(tag)
                        && let Transfer::Read(buffer) = &mut task.transfer
                        && let Some(place) = buffer.get_mut(*at..*at + count)
                    {
                        place.copy_from_slice(&incoming.input[..count]);
                    }
                    incoming.input.advance(count);
                    *at += count;
                    *left -= count;
                    if *left > 0 || incoming.input.len() < *padding {
                        return Ok(());
                    }
                    incoming.input.advance(*padding);
                    if let Some(task) = incoming.tasks.get_mut(tag) {
                        task.received_bytes = task.received_bytes.max(*at);
                    }
                    let (reply, numbers) = (*reply, *numbers);
                    incoming.stage = Stage::Header;
                    self.take(&reply, &numbers, &Bytes::new(), now)?;
                }
                Stage::Other {
                    reply,
                    numbers,
                    len_bytes,
                    padding,
                } => {
                    if incoming.input.len() < *len_bytes + *padding {
                        return Ok(());
                    }
                    let data = incoming.input.split_to(*len_bytes).freeze();
                    incoming.input.advance(*padding);
                    let (reply, numbers) = (*reply, *numbers);
                    incoming.stage = Stage::Header;
                    self.take(&reply, &numbers, &data, now)?;
                }
            }
        }
    }

    fn take(
        &mut self,
        reply: &Reply,
        numbers: &ReplyNumbers,
        data: &[u8],
        now: Instant,
    ) -> Result<(), Error> {
        if reply.has_status() {
            self.agreed.expected_status = numbers.status.wrapping_add(1);
        }
        if serial_before(self.agreed.max_command, numbers.max_command) {
            self.agreed.max_command = numbers.max_command;
        }
        match *reply {
            Reply::Response {
                tag,
                response,
                status,
                ..
            } => {
                let sense = data.get(2..).and_then(parse_sense);
                if response != 0 {
                    return Err(Error::Nonsense(
                        "a command that the target could not finish",
                    ));
                }
                self.finish(tag, status, sense);
            }
            Reply::DataIn(data) => {
                if let Some((status, _)) = data.status {
                    self.finish(data.tag, status, None);
                }
            }
            Reply::ReadyToTransfer {
                tag,
                target_tag,
                offset_bytes,
                len_bytes,
                ..
            } => self.send_data(tag, target_tag, offset_bytes, len_bytes)?,
            Reply::NopIn {
                lun, target_tag, ..
            } if target_tag != UNTAGGED => {
                let answer = Request::NopOut {
                    lun,
                    tag: UNTAGGED,
                    target_tag,
                    numbers: self.numbers(self.agreed.next_command),
                };
                let header = answer.header(0, true, self.agreed.expected_status);
                self.outgoing.push(&header, Bytes::new());
            }
            // Only tells the window of commands.
            Reply::NopIn { .. } => {}
            // Nothing is asked for whose answer these would be; 0: something about a LUN, which the next command tells.
            Reply::Async { event: 0, .. } | Reply::Text { .. } | Reply::Task { .. } => {}
            Reply::Async { .. } | Reply::Logout { .. } => {
                return Err(Error::Lost(std::io::ErrorKind::ConnectionAborted));
            }
            Reply::Login { .. } => return Err(Error::Nonsense("a login long after the login")),
            Reply::Reject { .. } => return Err(Error::Nonsense("it rejects what we sent")),
        }
        self.send_waiting(now);
        Ok(())
    }

    /// Sends the part of a write that the target is ready for.
    fn send_data(
        &mut self,
        tag: u32,
        target_tag: u32,
        offset_bytes: u32,
        len_bytes: u32,
    ) -> Result<(), Error> {
        let data = match self.incoming.tasks.get(&tag).map(|task| &task.transfer) {
            Some(Transfer::Write(data)) => data.clone(),
            _ => {
                return Err(Error::Nonsense(
                    "it asks for data of a command that has none",
                ));
            }
        };
        let (mut at, end) = (
            offset_bytes as usize,
            offset_bytes as usize + len_bytes as usize,
        );
        if end > data.len() || len_bytes == 0 {
            return Err(Error::Nonsense(
                "it asks for more data than the command has",
            ));
        }
        let mut number = 0;
        while at < end {
            let count = (end - at).min(self.agreed.send_segment_len_bytes);
            let request = Request::DataOut {
                is_final: at + count == end,
                tag,
                target_tag,
                data_number: number,
                offset_bytes: at as u32,
            };
            let header = request.header(count, false, self.agreed.expected_status);
            self.outgoing.push(&header, data.slice(at..at + count));
            at += count;
            number += 1;
        }
        Ok(())
    }

    fn finish(&mut self, tag: u32, status: u8, sense: Option<cairn_codec_scsi::SenseSeen>) {
        // A task that was given up may be answered late.
        let Some(task) = self.incoming.tasks.remove(&tag) else {
            return;
        };
        let answer = match status {
            0 => Ok(Answered {
                buffer: match task.transfer {
                    Transfer::Read(buffer) => Some(buffer),
                    Transfer::None | Transfer::Write(_) => None,
                },
                received_bytes: task.received_bytes,
            }),
            status => Err(Error::Command { status, sense }),
        };
        // The caller may be gone.
        let _ = task.reply_to.send(answer);
    }

    /// Whether a command has waited for longer than `limit`.
    pub fn is_overdue(&self, now: Instant, limit: Duration) -> bool {
        self.incoming
            .tasks
            .values()
            .any(|task| now.saturating_duration_since(task.since) > limit)
    }

    pub fn fail_all(&mut self, error: &Error) {
        for (_, task) in self.incoming.tasks.drain() {
            let _ = task.reply_to.send(Err(error.clone()));
        }
        for call in self.waiting.drain(..) {
            let _ = call.reply_to.send(Err(error.clone()));
        }
    }
}

impl Incoming {
    /// Where the next bytes from the target go.
    pub fn space(&mut self) -> Space<'_> {
        if self.input.is_empty()
            && let Stage::Data { tag, at, left, .. } = self.stage
            && left > COPIED_LEN_BYTES_MAX
            && let Some(Task {
                transfer: Transfer::Read(buffer),
                ..
            }) = self.tasks.get_mut(&tag)
            && let Some(place) = buffer.get_mut(at..at + left)
        {
            return Space::InPlace(place);
        }
        self.input.reserve(INPUT_LEN_BYTES);
        Space::Input(&mut self.input, INPUT_LEN_BYTES)
    }

    /// So many bytes came, into [`Space::InPlace`].
    pub fn received_in_place(&mut self, len_bytes: usize) {
        if let Stage::Data { at, left, .. } = &mut self.stage {
            *at += len_bytes;
            *left = left.saturating_sub(len_bytes);
        }
    }

    /// What follows a header.
    fn begin(&self, header: &Header) -> Result<Stage, Error> {
        let (reply, numbers) = header
            .reply()
            .map_err(|_| Error::Nonsense("a PDU that no target sends"))?;
        if header.additional_len_bytes() > 0 {
            return Err(Error::Nonsense("a reply with additional header segments"));
        }
        let len_bytes = header.data_len_bytes();
        let padding = len_bytes.wrapping_neg() % 4;
        if let Reply::DataIn(data) = &reply {
            let at = data.offset_bytes as usize;
            let room = match self.tasks.get(&data.tag).map(|task| &task.transfer) {
                Some(Transfer::Read(buffer)) => buffer.len(),
                _ => return Err(Error::Nonsense("data that nobody asked for")),
            };
            if at.checked_add(len_bytes).is_none_or(|end| end > room) {
                return Err(Error::Nonsense("more data than was asked for"));
            }
            return Ok(Stage::Data {
                reply,
                numbers,
                tag: data.tag,
                at,
                left: len_bytes,
                padding,
            });
        }
        if len_bytes > OTHER_LEN_BYTES_MAX {
            return Err(Error::Nonsense("a reply with much data"));
        }
        Ok(Stage::Other {
            reply,
            numbers,
            len_bytes,
            padding,
        })
    }
}

/// Bytes to send: headers and small data together, large data from where it lies.
#[derive(Default)]
pub(crate) struct Outgoing {
    whole: VecDeque<Bytes>,
    tail: BytesMut,
}

impl Outgoing {
    fn push(&mut self, header: &[u8; HEADER_LEN_BYTES], data: Bytes) {
        self.tail.extend_from_slice(header);
        let padding = data.len().wrapping_neg() % 4;
        if data.len() <= COPIED_LEN_BYTES_MAX {
            self.tail.extend_from_slice(&data);
        } else {
            self.whole.push_back(self.tail.split().freeze());
            self.whole.push_back(data);
        }
        self.tail.extend_from_slice(&[0; 3][..padding]);
    }

    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.tail.is_empty()
    }

    /// Fills `slices` from the front; how many there are.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.whole.iter().map(|part| &part[..]);
        let tail = std::iter::once(&self.tail[..]).filter(|tail| !tail.is_empty());
        let mut count = 0;
        for (place, part) in slices.iter_mut().zip(parts.chain(tail)) {
            *place = IoSlice::new(part);
            count += 1;
        }
        count
    }

    pub fn sent(&mut self, mut len_bytes: usize) {
        while len_bytes > 0 {
            match self.whole.front_mut() {
                Some(part) if part.len() <= len_bytes => {
                    len_bytes -= part.len();
                    self.whole.pop_front();
                }
                Some(part) => {
                    part.advance(len_bytes);
                    return;
                }
                None => {
                    self.tail.advance(len_bytes.min(self.tail.len()));
                    return;
                }
            }
        }
    }
}
