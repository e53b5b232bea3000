//! A session: commands side by side on one connection.
//!
//! Owns: connecting, the one task that sends and receives, how long an answer may take, what one command moves.
//! Must not know: what is on the LUN.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes};
use cairn_base::AlignedBuf;
use cairn_base::env::Entropy as _;
use cairn_base::real::OsEntropy;
use cairn_codec_scsi::{self as scsi, Blocks, Capacity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::login::{self, Who};
use crate::url::IscsiUrl;
use crate::wire::{Answered, Call, Incoming, Outgoing, SLICE_COUNT_MAX, Space, Transfer, Wire};

/// Commands that wait for the task of the session.
const QUEUED_CALLS_MAX: usize = 1024;
/// What one command moves where the target does not say.
const TRANSFER_LEN_BYTES_DEFAULT: u64 = 1 << 20;
const TRANSFER_LEN_BYTES_MAX: u64 = 8 << 20;
const UNMAP_LEN_BYTES_DEFAULT: u64 = 64 << 20;
const SECRET_LEN_BYTES_MAX: usize = 255;
/// What happened before a session is told in its first commands, one thing each.
const ATTENTIONS_MAX: usize = 16;
const UNIT_ATTENTION: u8 = 6;
/// A target that takes no more commands for a moment is asked again: first after this,
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(1);
/// then after twice as long each time, up to this,
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(100);
/// and for so long at most.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// Numbers of a session that people tune.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    pub connect_timeout: Duration,
    /// A target that is silent for so long is lost.
    pub reply_timeout: Duration,
    /// Of this side, unless the URL has one.
    pub initiator: String,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            reply_timeout: Duration::from_secs(60),
            initiator: "iqn.2025-11.storage.cairn:initiator".to_owned(),
        }
    }
}

/// What the LUN is and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub capacity: Capacity,
    /// Of one read or write.
    pub transfer_len_bytes_max: u64,
    /// Of one UNMAP.
    pub unmap_len_bytes_max: u64,
}

impl Limits {
    pub fn len_bytes(&self) -> u64 {
        let block = u64::from(self.capacity.block_len_bytes);
        self.capacity.block_count.saturating_mul(block)
    }
}

/// A session with one LUN. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Session(Arc<SessionCore>);

struct SessionCore {
    calls: mpsc::Sender<Call>,
    limits: Limits,
}

impl Session {
    /// Connects, logs in, and asks how large the LUN is. Must be called in a runtime, in which the session stays.
    pub async fn login(url: &IscsiUrl, settings: &SessionSettings) -> Result<Self, Error> {
        let secret = match &url.secret_file {
            Some(path) => Some(read_secret(path)?),
            None => None,
        };
        let chap = url.user.as_deref().zip(secret.as_deref());
        // Random, so that sessions of one initiator differ (RFC 7143, section 11.12.5).
        let mut isid = [0x80; 6];
        OsEntropy.fill(&mut isid[1..]);
        let who = Who {
            initiator: url.initiator.as_deref().unwrap_or(&settings.initiator),
            target: &url.target,
            chap,
            isid,
            lun: scsi::lun_bytes(url.lun),
        };
        let logging_in = async {
            let mut stream = connect(url).await?;
            let agreed = login::login(&mut stream, &who).await?;
            Ok::<_, Error>((stream, agreed))
        };
        let done = tokio::time::timeout(settings.connect_timeout, logging_in).await;
        let (stream, agreed) = done.unwrap_or(Err(Error::Lost(io::ErrorKind::TimedOut)))?;
        let (calls, queue) = mpsc::channel(QUEUED_CALLS_MAX);
        let wire = Wire::new(agreed);
        tokio::spawn(run(stream, queue, wire, settings.reply_timeout));
        let limits = ask_limits(&calls).await?;
        Ok(Self(Arc::new(SessionCore { calls, limits })))
    }

    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// The run of blocks that so many bytes at `offset` are.
    fn blocks(&self, offset: u64, len_bytes: usize) -> Result<Blocks, Error> {
        let block_len = self.0.limits.capacity.block_len_bytes;
        let block = u64::from(block_len);
        if !offset.is_multiple_of(block) || !(len_bytes as u64).is_multiple_of(block) {
            return Err(Error::Unaligned(len_bytes, offset, block_len));
        }
        Ok(Blocks {
            lba: offset / block,
            count: len_bytes as u64 / block,
        })
    }

    /// Fills `buffer`, of whole blocks and at most [`Limits::transfer_len_bytes_max`], from `offset` on.
    pub async fn read(&self, offset: u64, buffer: AlignedBuf) -> Result<AlignedBuf, Error> {
        let blocks = self.blocks(offset, buffer.len())?;
        let len_bytes = buffer.len();
        let cdb = scsi::read_16(blocks);
        let mut buffer = Some(buffer);
        let into = || {
            let buffer = buffer.take();
            Transfer::Read(buffer.unwrap_or_else(|| AlignedBuf::zeroed(len_bytes)))
        };
        let answered = call_while_busy(&self.0.calls, cdb, into).await?;
        match answered.buffer {
            Some(buffer) if answered.received_bytes == len_bytes => Ok(buffer),
            _ => Err(Error::Nonsense("less data than was asked for")),
        }
    }

    /// Writes whole blocks, at most [`Limits::transfer_len_bytes_max`], from where they lie. `fua`: stable when done,
    /// also on a LUN with a write cache.
    pub async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<(), Error> {
        let cdb = scsi::write_16(self.blocks(offset, data.len())?, fua);
        call_while_busy(&self.0.calls, cdb, || Transfer::Write(data.clone())).await?;
        Ok(())
    }

    /// Makes stable what was written.
    pub async fn synchronize(&self) -> Result<(), Error> {
        call(&self.0.calls, scsi::synchronize_cache_16(), Transfer::None).await?;
        Ok(())
    }

    /// Gives whole blocks back, at most [`Limits::unmap_len_bytes_max`].
    pub async fn unmap(&self, offset: u64, len_bytes: usize) -> Result<(), Error> {
        let blocks = self.blocks(offset, len_bytes)?;
        let (cdb, list) = scsi::unmap(blocks.lba, blocks.count as u32);
        call(&self.0.calls, cdb, Transfer::Write(list.into())).await?;
        Ok(())
    }
}

fn read_secret(path: &std::path::Path) -> Result<Vec<u8>, Error> {
    let failed = |error: io::ErrorKind| Error::SecretFile {
        path: path.display().to_string(),
        error,
    };
    let text = std::fs::read(path).map_err(|error| failed(error.kind()))?;
    // Editors end a file with a newline; secrets do not.
    let secret = text.trim_ascii_end();
    match secret.is_empty() || secret.len() > SECRET_LEN_BYTES_MAX {
        true => Err(failed(io::ErrorKind::InvalidData)),
        false => Ok(secret.to_vec()),
    }
}

async fn connect(url: &IscsiUrl) -> Result<TcpStream, Error> {
    let host = format!("{}:{}", url.host, url.port);
    let resolve = |error: io::ErrorKind| Error::Resolve {
        host: url.host.clone(),
        error,
    };
    let addresses = lookup_host(&host).await;
    let addresses = addresses.map_err(|error| resolve(error.kind()))?;
    let mut last = resolve(io::ErrorKind::NotFound);
    for address in addresses {
        match connect_to(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                last = Error::Unreachable {
                    address,
                    error: error.kind(),
                };
            }
        }
    }
    Err(last)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn call(
    calls: &mpsc::Sender<Call>,
    cdb: [u8; 16],
    transfer: Transfer,
) -> Result<Answered, Error> {
    let (reply_to, reply) = oneshot::channel();
    let call = Call {
        cdb,
        transfer,
        reply_to,
    };
    calls.send(call).await.map_err(|_| Error::Closed)?;
    reply.await.unwrap_or(Err(Error::Closed))
}

/// Sends a command again while the target answers BUSY or TASK SET FULL, as initiators do (SAM-5, section 5.3.1).
async fn call_while_busy(
    calls: &mpsc::Sender<Call>,
    cdb: [u8; 16],
    mut transfer: impl FnMut() -> Transfer,
) -> Result<Answered, Error> {
    let begun = Instant::now();
    let mut pause = BUSY_PAUSE_MIN;
    loop {
        match call(calls, cdb, transfer()).await {
            Err(error) if error.is_busy() && begun.elapsed() < BUSY_MAX => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BUSY_PAUSE_MAX);
            }
            answered => return answered,
        }
    }
}

async fn ask_limits(calls: &mpsc::Sender<Call>) -> Result<Limits, Error> {
    let mut attentions = 0;
    while let Err(error) = call(calls, scsi::test_unit_ready(), Transfer::None).await {
        attentions += 1;
        let is_told_once = error.sense().is_some_and(|it| it.key == UNIT_ATTENTION);
        if !is_told_once || attentions > ATTENTIONS_MAX {
            return Err(error);
        }
    }
    let asked = async |cdb: [u8; 16], len_bytes: usize| {
        let answered = call(calls, cdb, Transfer::Read(AlignedBuf::zeroed(len_bytes))).await?;
        let mut data = answered
            .buffer
            .map(|buffer| buffer.to_vec())
            .unwrap_or_default();
        data.truncate(answered.received_bytes);
        Ok::<_, Error>(data)
    };
    let data = asked(scsi::ask_capacity_16(32), 32).await?;
    let capacity = scsi::parse_capacity_16(&data)
        .filter(|capacity| capacity.block_len_bytes.is_power_of_two())
        .filter(|capacity| (512..=65536).contains(&capacity.block_len_bytes))
        .ok_or(Error::Nonsense("the size of its LUN"))?;
    // Old targets have no such page.
    let page = asked(scsi::inquiry_of(0xb0, 64), 64).await;
    let seen = page.ok().and_then(|page| scsi::parse_block_limits(&page));
    let bytes = |blocks: Option<u32>, default: u64| match blocks {
        None | Some(0) => default,
        Some(blocks) => u64::from(blocks).saturating_mul(capacity.block_len_bytes.into()),
    };
    let transfer = bytes(
        seen.map(|seen| seen.transfer_blocks),
        TRANSFER_LEN_BYTES_DEFAULT,
    );
    let unmap = bytes(seen.map(|seen| seen.unmap_blocks), UNMAP_LEN_BYTES_DEFAULT);
    Ok(Limits {
        capacity,
        transfer_len_bytes_max: transfer.min(TRANSFER_LEN_BYTES_MAX),
        unmap_len_bytes_max: unmap.min(1 << 30),
    })
}

/// The task of a session, until all its handles are gone or the connection is.
async fn run(
    mut stream: TcpStream,
    mut queue: mpsc::Receiver<Call>,
    mut wire: Wire,
    reply_timeout: Duration,
) {
    let error = match serve(&mut stream, &mut queue, &mut wire, reply_timeout).await {
        Ok(()) => return,
        Err(error) => error,
    };
    tracing::debug!(%error, "the session ended");
    wire.fail_all(&error);
    queue.close();
    while let Some(call) = queue.recv().await {
        let _ = call.reply_to.send(Err(error.clone()));
    }
}

async fn serve(
    stream: &mut TcpStream,
    queue: &mut mpsc::Receiver<Call>,
    wire: &mut Wire,
    reply_timeout: Duration,
) -> Result<(), Error> {
    let lost = |error: io::Error| Error::Lost(error.kind());
    let (mut from, mut to) = stream.split();
    let mut taken = Vec::with_capacity(QUEUED_CALLS_MAX);
    let mut check = tokio::time::interval(reply_timeout / 4);
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let under_way = wire.under_way_count();
        tokio::select! {
            biased;
            sent = send(&wire.outgoing, &mut to), if !wire.outgoing.is_empty() => {
                let len_bytes = sent.map_err(lost)?;
                wire.outgoing.sent(len_bytes);
            }
            received = receive(&mut wire.incoming, &mut from) => {
                if received.map_err(lost)? == 0 {
                    return Err(Error::Lost(io::ErrorKind::UnexpectedEof));
                }
                wire.process(Instant::now())?;
            }
            count = queue.recv_many(&mut taken, QUEUED_CALLS_MAX) => {
                if count == 0 {
                    return Ok(());
                }
                if under_way > 0 {
                    // Others that were just answered add their next commands, so that one `writev` takes them all.
                    tokio::task::yield_now().await;
                    while let Ok(call) = queue.try_recv() {
                        taken.push(call);
                    }
                }
                let now = Instant::now();
                taken.drain(..).for_each(|call| wire.submit(call, now));
            }
            _ = check.tick(), if under_way > 0 => {
                if wire.is_overdue(Instant::now(), reply_timeout) {
                    return Err(Error::Lost(io::ErrorKind::TimedOut));
                }
            }
        }
    }
}

async fn send(outgoing: &Outgoing, to: &mut WriteHalf<'_>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
    let count = outgoing.slices(&mut slices);
    match to.write_vectored(&slices[..count]).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}

async fn receive(incoming: &mut Incoming, from: &mut ReadHalf<'_>) -> io::Result<usize> {
    match incoming.space() {
        Space::InPlace(place) => {
            let len_bytes = from.read(place).await?;
            incoming.received_in_place(len_bytes);
            Ok(len_bytes)
        }
        Space::Input(input, len_bytes_max) => from.read_buf(&mut input.limit(len_bytes_max)).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with these statuses, one after the other, and counts the commands that came.
    async fn target(mut queue: mpsc::Receiver<Call>, statuses: &[u8]) -> usize {
        let mut statuses = statuses.iter();
        let mut count = 0;
        while let Some(call) = queue.recv().await {
            count += 1;
            let answered = match statuses.next() {
                None | Some(0) => Ok(Answered {
                    buffer: None,
                    received_bytes: 0,
                }),
                Some(status) => Err(Error::Command {
                    status: *status,
                    sense: None,
                }),
            };
            let _ = call.reply_to.send(answered);
        }
        count
    }

    async fn asked(statuses: &[u8]) -> (bool, usize) {
        let (calls, queue) = mpsc::channel(1);
        let asking = async move {
            let data = Bytes::from_static(&[7; 512]);
            let transfer = || Transfer::Write(data.clone());
            call_while_busy(&calls, [0; 16], transfer).await.is_ok()
        };
        tokio::join!(asking, target(queue, statuses))
    }

    #[tokio::test]
    async fn a_command_is_sent_again_while_the_target_is_busy() {
        assert_eq!(asked(&[0x28, 0x08, 0x28]).await, (true, 4));
        // A reservation conflict and all else is an answer.
        assert_eq!(asked(&[0x28, 0x18]).await, (false, 2));
        assert_eq!(asked(&[0x02]).await, (false, 1));
    }
}
