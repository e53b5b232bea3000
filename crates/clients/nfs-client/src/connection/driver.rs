//! The one task of a connection.
//!
//! Owns: when to read, write, take calls, give up, reconnect and send again.
//! Must not know: what calls say.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::wire::{Incoming, Outgoing, SLICE_COUNT_MAX, Space, Wire};
use super::{Call, ConnectionSettings, QUEUED_CALLS_MAX, socket};
use crate::error::Error;

/// How serving one TCP connection ended.
enum End {
    /// All handles are gone.
    Unused,
    Lost(io::Error),
    Garbage(cairn_codec_rpc::DecodeError),
}

struct Driver {
    address: SocketAddr,
    settings: ConnectionSettings,
    queue: mpsc::Receiver<Call>,
    /// Calls taken from the queue and not yet submitted; empty between steps.
    taken: Vec<Call>,
    wire: Wire,
    started: Instant,
}

/// Serves calls until all handles to the connection are gone.
pub(super) async fn run(
    address: SocketAddr,
    stream: TcpStream,
    queue: mpsc::Receiver<Call>,
    settings: ConnectionSettings,
) {
    let mut driver = Driver {
        address,
        settings,
        queue,
        taken: Vec::with_capacity(QUEUED_CALLS_MAX),
        wire: Wire::new(),
        started: Instant::now(),
    };
    let mut stream = Some(stream);
    loop {
        if let Some(stream) = stream.take() {
            match driver.serve(stream).await {
                End::Unused => return,
                End::Lost(error) => {
                    tracing::warn!(%address, %error, "the connection is lost");
                    driver.wire.disconnect();
                }
                End::Garbage(error) => {
                    tracing::warn!(%address, %error, "the server sends garbage");
                    driver
                        .wire
                        .fail_all(|procedure| Error::BadReply { procedure, error });
                }
            }
        }
        // Without a call there is no reason to reconnect: servers close idle connections.
        if driver.wire.in_flight_count() == 0 {
            match driver.queue.recv().await {
                Some(call) => driver.wire.submit_unsent(call, driver.now()),
                None => return,
            }
        }
        match driver.reconnect().await {
            Ok(connected) => {
                driver.retransmit();
                stream = Some(connected);
            }
            Err(error) => driver.give_up(error),
        }
    }
}

impl Driver {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn serve(&mut self, mut stream: TcpStream) -> End {
        let (mut from, mut to) = stream.split();
        let mut check = tokio::time::interval(self.settings.reply_timeout / 4);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wire = &mut self.wire;
            let in_flight_count = wire.in_flight_count();
            let room = self.settings.in_flight_max.saturating_sub(in_flight_count);
            tokio::select! {
                biased;
                sent = send(&wire.outgoing, &mut to), if !wire.outgoing.is_empty() => match sent {
                    Ok(len_bytes) => wire.outgoing.sent(len_bytes),
                    Err(error) => return End::Lost(error),
                },
                received = receive(&mut wire.incoming, &mut from) => match received {
                    Ok(0) => return End::Lost(io::ErrorKind::UnexpectedEof.into()),
                    Ok(len_bytes) => {
                        wire.incoming.received(len_bytes);
                        if let Err(error) = wire.process() {
                            return End::Garbage(error);
                        }
                    }
                    Err(error) => return End::Lost(error),
                },
                count = self.queue.recv_many(&mut self.taken, room.min(QUEUED_CALLS_MAX)),
                    if room > 0 =>
                {
                    if count == 0 {
                        return End::Unused;
                    }
                    if in_flight_count > 0 && count < room {
                        self.gather(room).await;
                    }
                    self.submit_taken();
                }
                _ = check.tick(), if in_flight_count > 0 => {
                    let oldest = self.now().checked_sub(self.settings.reply_timeout);
                    if oldest.is_some_and(|oldest| self.wire.is_overdue(oldest)) {
                        return End::Lost(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Lets other tasks that were just answered add their next calls, so that one `writev` takes
    /// them all. With a single caller there is nobody to wait for.
    async fn gather(&mut self, room: usize) {
        tokio::task::yield_now().await;
        while self.taken.len() < room {
            match self.queue.try_recv() {
                Ok(call) => self.taken.push(call),
                Err(_) => return,
            }
        }
    }

    fn submit_taken(&mut self) {
        let now = self.now();
        for call in self.taken.drain(..) {
            self.wire.submit(call, now);
        }
    }

    /// Tries for a while, with growing pauses, as long as somebody waits.
    async fn reconnect(&mut self) -> Result<TcpStream, Error> {
        let started = Instant::now();
        let mut pause = self.settings.reconnect_pause;
        loop {
            let error = match socket::connect(self.address, &self.settings).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Up to a quarter more, so that clients of a restarted server do not come in step.
            let jitter = pause.mul_f64(f64::from(socket::random_u32()) / f64::from(u32::MAX) / 4.0);
            let is_too_late = started.elapsed() + pause > self.settings.reconnect_for;
            self.wire.disconnect();
            if is_too_late || self.wire.in_flight_count() == 0 {
                return Err(error);
            }
            tokio::time::sleep(pause + jitter).await;
            pause = (pause * 2).min(self.settings.reconnect_pause_max);
        }
    }

    fn retransmit(&mut self) {
        let (now, address) = (self.now(), self.address);
        let transmissions = self.settings.transmissions_max;
        self.wire
            .retransmit(now, transmissions, |procedure| Error::NoReply {
                procedure,
                address,
                transmissions,
            });
    }

    /// Answers everyone who waits now; the next call starts a new attempt.
    fn give_up(&mut self, error: Error) {
        let address = self.address;
        let unreachable = |error: &Error| {
            let kind = match error {
                Error::Unreachable { error, .. } => error.kind(),
                _ => io::ErrorKind::Other,
            };
            Error::Unreachable {
                address,
                error: kind.into(),
            }
        };
        self.wire.fail_all(|_| unreachable(&error));
        while let Ok(call) = self.queue.try_recv() {
            let _ = call.reply_to.send(Err(unreachable(&error)));
        }
    }
}

async fn send(outgoing: &Outgoing, to: &mut WriteHalf<'_>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
    let count = outgoing.slices(&mut slices);
    let sent = to.write_vectored(&slices[..count]).await?;
    match sent {
        0 => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}

async fn receive(incoming: &mut Incoming, from: &mut ReadHalf<'_>) -> io::Result<usize> {
    match incoming.space() {
        Space::InPlace { rest } => from.read(rest).await,
        Space::Input {
            input,
            len_bytes_max,
        } => from.read_buf(&mut input.limit(len_bytes_max)).await,
    }
}
