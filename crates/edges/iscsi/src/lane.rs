//! One connection: bytes in and out, cut into PDUs.
//!
//! Owns: the stream, digests, lengths, the numbers of its answers, what waits to be sent.
//! Must not know: what is in a PDU, which session it is of.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_base::env::BoxFuture;
use cairn_base::{crc32c, crc32c_append};
use cairn_codec_iscsi::{
    CHECKSUM_LEN_BYTES, DATA_SEGMENT_LEN_BYTES_MAX, HEADER_LEN_BYTES, Header, KEYS_LEN_BYTES_MAX,
    Negotiated, Reply,
};
use cairn_qos::Client;
use parking_lot::Mutex;

use crate::link::{Entry, FreeLink, Link};
use crate::portal::{Permit, PortalCore};

/// Data of one PDU during login.
const LOGIN_SEGMENT_LEN_BYTES_MAX: usize = 8192;
/// With so much to send nothing more is taken in, in bytes: before the login a few answers,
const LOGIN_UNSENT_BYTES_MAX: usize = 4 << 10;
/// in a discovery session the longest text in parts,
const DISCOVERY_UNSENT_BYTES_MAX: usize = 64 << 10;
/// else what keeps a fast network busy.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// A connection with less goes on even where all together have too much, so that nobody who takes answers stands.
const UNSENT_BYTES_SPARED: usize = 64 << 10;
/// What a part of the output takes beside its bytes: its place in the queue, its allocation.
const PART_LEN_BYTES: usize = 128;
/// An initiator that takes nothing of it for so long is given up.
const STALL_TIME_MAX: Duration = Duration::from_secs(60);
const READ_LEN_BYTES: usize = 64 << 10;
/// Before the login.
const LOGIN_READ_LEN_BYTES: usize = 4 << 10;
const SLICES_MAX: usize = 64;

/// Why a connection ends that nobody ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(&'static str),
    #[error("the login was refused with status {0:#06x}")]
    Refused(u16),
    #[error("nothing came for too long")]
    Silent,
    /// Rule 9 of the cluster: another node may have changed what was read.
    #[error("this node's lease ended before an answer could be sent")]
    NoLease,
    /// The initiator may have sent them over another path meanwhile.
    #[error("commands in it may be old")]
    Old,
}

/// A PDU with its data.
pub(crate) struct Pdu {
    pub header: Header,
    pub data: Bytes,
    pub is_damaged: bool,
}

/// Which commands an initiator may send: that is the session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub expected: u32,
    pub last: u32,
}

/// What of a connection is not sent yet, in bytes, counted for all connections as well.
struct Unsent {
    shared: Arc<PortalCore>,
    bytes: usize,
}

impl Unsent {
    fn new(shared: Arc<PortalCore>) -> Self {
        Self { shared, bytes: 0 }
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.shared.unsent_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    fn remove(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.shared.unsent_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Whether there may be more.
    fn has_room(&self, bytes_max: usize) -> bool {
        let of_all = self.shared.unsent_bytes.load(Ordering::Acquire);
        self.bytes < bytes_max
            && (self.bytes < UNSENT_BYTES_SPARED || of_all < self.shared.settings.unsent_bytes_max)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}

pub(crate) struct Lane {
    link: Link,
    pub peer: SocketAddr,
    /// Whose rate its commands count for.
    pub client: Client,
    pub entry: Entry,
    permit: Permit,
    /// The number that the initiator gave it.
    pub connection: u16,
    /// No other connection of the session has had this one.
    pub number: u64,
    input: BytesMut,
    output: VecDeque<Bytes>,
    unsent: Unsent,
    /// Digests, and what one data segment may have, are those of a connection.
    pub negotiated: Negotiated,
    /// Full feature phase has begun.
    pub is_full: bool,
    /// Of a session without a target.
    pub is_discovery: bool,
    status_number: u32,
    /// A command that came before those that the initiator numbered before it, over other connections.
    pub early: Option<Pdu>,
    pub text: Vec<u8>,
    /// The rest of an answer in text that does not fit into one PDU.
    pub text_left: Option<Bytes>,
    /// Asked whether it is there, and it has not answered.
    pub pinged: bool,
    /// Ends when all is sent.
    pub is_closing: bool,
    /// It has ended, and how.
    pub ended: Option<Result<(), Broken>>,
    sent_bytes: u64,
    ticks_without_progress: u32,
    /// Ready when the admission ends; `None` once it was, and without one.
    admission_end: Mutex<Option<BoxFuture<()>>>,
}

/// Which parts of a connection are ready.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub reads: bool,
    pub writes: bool,
}

impl Lane {
    pub fn new(link: Link, peer: SocketAddr, entry: Entry, permit: Permit) -> Self {
        let admission_end = entry.admission.as_ref().map(|admission| -> BoxFuture<()> {
            let ended = admission.ended();
            Box::pin(async move {
                ended.await;
            })
        });
        Self {
            admission_end: Mutex::new(admission_end),
            link,
            peer,
            client: Client::address(peer.ip()),
            unsent: Unsent::new(Arc::clone(permit.shared())),
            status_number: entry.status_number,
            entry,
            permit,
            connection: 0,
            number: 0,
            input: BytesMut::new(),
            output: VecDeque::new(),
            negotiated: Negotiated::default(),
            is_full: false,
            is_discovery: false,
            early: None,
            text: Vec::new(),
            text_left: None,
            pinged: false,
            is_closing: false,
            ended: None,
            sent_bytes: 0,
            ticks_without_progress: 0,
        }
    }

    pub fn status_number(&self) -> u32 {
        self.status_number
    }

    /// Ready when it has to make way for another connection.
    pub async fn makes_way(&self) {
        self.permit.makes_way().await;
    }

    /// Whether it may stay, once its login is over or goes on at another node.
    pub fn settle(&self, initiator: Option<&str>) -> bool {
        self.permit.settle(initiator)
    }

    /// Whether PDUs are taken from it.
    pub fn takes(&self) -> bool {
        let bytes_max = match (self.is_full, self.is_discovery) {
            (false, _) => LOGIN_UNSENT_BYTES_MAX,
            (true, true) => DISCOVERY_UNSENT_BYTES_MAX,
            (true, false) => UNSENT_BYTES_MAX,
        };
        self.ended.is_none() && !self.is_closing && self.unsent.has_room(bytes_max)
    }

    /// Whether PDUs are not taken from it because too much of what it was answered is not sent yet.
    pub fn is_held_back(&self) -> bool {
        self.ended.is_none() && !self.is_closing && !self.takes()
    }

    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// What became of the stream when nothing of it is to be served here any more: with what came over it.
    pub fn into_parts(self) -> (Link, BytesMut, Permit) {
        (self.link, self.input, self.permit)
    }

    /// Moves it to another thread: [`FreeLane::attach`] is for there.
    pub fn detach(self) -> io::Result<FreeLane> {
        Ok(FreeLane {
            link: self.link.detach()?,
            peer: self.peer,
            entry: self.entry,
            permit: self.permit,
            connection: self.connection,
            input: self.input,
            negotiated: self.negotiated,
            status_number: self.status_number,
        })
    }

    /// Whether something came, or something can be sent of what is to be.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Ready {
        let is_ready = |polled: Poll<io::Result<()>>| polled.is_ready();
        // A lane that holds a command back takes nothing in: what came is not more than the socket holds.
        let may_read = self.takes() && self.early.is_none();
        let is_over = {
            let mut end = self.admission_end.lock();
            let is_over = |end: &mut BoxFuture<()>| end.as_mut().poll(context).is_ready();
            let is_over = end.as_mut().is_some_and(is_over);
            if is_over {
                *end = None;
            }
            is_over
        };
        Ready {
            reads: is_over || may_read && is_ready(self.link.poll_readable(context)),
            writes: self.ended.is_none()
                && self.has_output()
                && is_ready(self.link.poll_writable(context)),
        }
    }

    /// Ready when it is.
    pub async fn ready(&self) -> Ready {
        poll_fn(|context| {
            let ready = self.poll_ready(context);
            match ready.reads || ready.writes {
                true => Poll::Ready(ready),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Takes in what came; `false`: nothing will any more.
    pub fn read(&mut self) -> Result<bool, Broken> {
        let len_bytes = match self.is_full {
            true => READ_LEN_BYTES,
            false => LOGIN_READ_LEN_BYTES,
        };
        self.input.reserve(len_bytes);
        match self.link.try_read_buf(&mut self.input) {
            Ok(0) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes in what came on a connection of a session; an error ends the connection.
    pub fn take_in(&mut self) {
        self.end_if_old();
        if self.ended.is_some() {
            return;
        }
        match self.read() {
            Ok(true) => {}
            Ok(false) => self.ended = Some(Ok(())),
            Err(error) => self.ended = Some(Err(error)),
        }
    }

    /// Whether commands that came over it may begin.
    pub fn is_live(&self) -> bool {
        let admission = self.entry.admission.as_ref();
        admission.is_none_or(|admission| admission.is_live())
    }

    pub fn end_if_old(&mut self) {
        if self.ended.is_none() && !self.is_live() {
            self.link.reset();
            self.ended = Some(Err(Broken::Old));
        }
    }

    /// Sends what can be sent, and ends when it is to.
    pub fn advance(&mut self) {
        if self.ended.is_some() {
            return;
        }
        match self.flush() {
            Ok(()) if self.is_closing && self.output.is_empty() => self.ended = Some(Ok(())),
            Ok(()) => {}
            Err(error) => self.ended = Some(Err(error)),
        }
    }

    /// The next PDU, if all of it is there.
    pub fn next_pdu(&mut self) -> Result<Option<Pdu>, Broken> {
        if !self.is_live() {
            self.link.reset();
            return Err(Broken::Old);
        }
        let Some(header) = self.input.first_chunk::<HEADER_LEN_BYTES>() else {
            return Ok(None);
        };
        let header = Header(*header);
        let head_len = HEADER_LEN_BYTES + header.additional_len_bytes();
        let has_head_digest = self.is_full && self.negotiated.header_digest;
        let head_end = head_len
            + if has_head_digest {
                CHECKSUM_LEN_BYTES
            } else {
                0
            };
        if self.input.len() < head_end {
            self.input.reserve(head_end - self.input.len());
            return Ok(None);
        }
        if has_head_digest {
            let (head, digest) = self.input[..head_end].split_at(head_len);
            // Its length may be what is wrong: nothing after it can be trusted.
            if crc32c(head).to_le_bytes() != digest {
                return Err(Broken::Protocol("the digest of a header is wrong"));
            }
        }
        let data_len = header.data_len_bytes();
        let most = match self.is_full {
            true => DATA_SEGMENT_LEN_BYTES_MAX as usize,
            // The node that passed it on has put the first request together.
            false if self.entry.is_passed => KEYS_LEN_BYTES_MAX,
            false => LOGIN_SEGMENT_LEN_BYTES_MAX,
        };
        if data_len > most {
            return Err(Broken::Protocol("a PDU has more data than was agreed on"));
        }
        let has_data_digest = self.is_full && self.negotiated.data_digest && data_len > 0;
        let padded = data_len.next_multiple_of(4);
        let total = head_end
            + padded
            + if has_data_digest {
                CHECKSUM_LEN_BYTES
            } else {
                0
            };
        if self.input.len() < total {
            self.input.reserve(total - self.input.len());
            return Ok(None);
        }
        let pdu = self.input.split_to(total).freeze();
        let is_damaged = has_data_digest && {
            let digest = &pdu[head_end + padded..];
            crc32c(&pdu[head_end..head_end + padded]).to_le_bytes() != digest
        };
        Ok(Some(Pdu {
            header,
            data: pdu.slice(head_end..head_end + data_len),
            is_damaged,
        }))
    }

    /// Puts a PDU into what is to be sent.
    pub fn send(&mut self, reply: &Reply, data: Vec<Bytes>, window: Window) {
        let len: usize = data.iter().map(Bytes::len).sum();
        let header = reply.header(len, self.status_number, window.expected, window.last);
        if reply.has_status() {
            self.status_number = self.status_number.wrapping_add(1);
        }
        let is_login = matches!(reply, Reply::Login { .. });
        let mut head = BytesMut::with_capacity(HEADER_LEN_BYTES + CHECKSUM_LEN_BYTES);
        head.extend_from_slice(&header);
        if self.negotiated.header_digest && !is_login {
            head.extend_from_slice(&crc32c(&header).to_le_bytes());
        }
        self.push(head.freeze());
        if len == 0 {
            return;
        }
        const PADDING: [u8; 3] = [0; 3];
        let padding = PADDING
            .get(..len.next_multiple_of(4) - len)
            .unwrap_or_default();
        if self.negotiated.data_digest && !is_login {
            let sum = data
                .iter()
                .fold(crc32c(&[]), |sum, part| crc32c_append(sum, part));
            let sum = crc32c_append(sum, padding);
            let mut tail = padding.to_vec();
            tail.extend(sum.to_le_bytes());
            data.into_iter().for_each(|part| self.push(part));
            self.push(tail.into());
        } else {
            data.into_iter().for_each(|part| self.push(part));
            self.push(Bytes::from_static(
                &PADDING[..len.next_multiple_of(4) - len],
            ));
        }
    }

    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.unsent.add(bytes.len() + PART_LEN_BYTES);
            self.output.push_back(bytes);
        }
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while !self.output.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .output
                .iter()
                .take(SLICES_MAX)
                .map(|part| IoSlice::new(part))
                .collect();
            let mut written = match self.link.try_write_vectored(&slices) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            self.unsent.remove(written);
            self.sent_bytes += written as u64;
            while let Some(front) = self.output.front_mut() {
                if written < front.len() {
                    drop(front.split_to(written));
                    break;
                }
                written -= front.len();
                self.output.pop_front();
                self.unsent.remove(PART_LEN_BYTES);
            }
        }
        Ok(())
    }

    /// Sends all that is to be sent, for at most so long.
    pub async fn drain(&mut self, time_max: Duration) -> Result<(), Broken> {
        loop {
            self.flush()?;
            if self.output.is_empty() {
                return Ok(());
            }
            let writable = poll_fn(|context| self.link.poll_writable(context));
            let writable = tokio::time::timeout(time_max, writable).await;
            writable.map_err(|_| Broken::Silent)??;
        }
    }

    /// Whether the initiator takes what is sent, to be asked once in so long; `None` if there is nothing to send.
    pub fn takes_output(&mut self, interval: Duration) -> Option<bool> {
        if self.output.is_empty() {
            return None;
        }
        match std::mem::take(&mut self.sent_bytes) {
            0 => self.ticks_without_progress += 1,
            _ => self.ticks_without_progress = 0,
        }
        Some(interval * self.ticks_without_progress <= STALL_TIME_MAX)
    }
}

/// A connection of no runtime, on its way to the thread of its session.
pub(crate) struct FreeLane {
    link: FreeLink,
    pub peer: SocketAddr,
    entry: Entry,
    permit: Permit,
    pub connection: u16,
    input: BytesMut,
    negotiated: Negotiated,
    status_number: u32,
}

impl FreeLane {
    /// Makes it one of the runtime that this is called in.
    pub fn attach(self) -> io::Result<Lane> {
        let mut lane = Lane::new(self.link.attach()?, self.peer, self.entry, self.permit);
        lane.connection = self.connection;
        lane.input = self.input;
        lane.negotiated = self.negotiated;
        lane.status_number = self.status_number;
        Ok(lane)
    }
}
