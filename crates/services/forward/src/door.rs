//! Where clients' connections are accepted.
//!
//! Owns: turning away those that waited in the kernel while this process stood still. Must not know: who accepts them.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::admission::{Admission, Refused};
use crate::forward::Forward;

/// The network by which connections of one machine are counted: a machine with one IPv6 address has a whole network of 64 bits.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// More than wait in the kernel for one listener: a connection taken after so many came later.
const WAITING_MAX: usize = 1 << 16;

/// A listener: connections wait in it until they are accepted, also while this process stands still.
pub trait Accepts {
    type Stream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Stream, SocketAddr)>>;

    /// Has a connection that is turned away closed so that its client connects again at once.
    fn turn_away(stream: Self::Stream);

    /// Turns away all that wait now. It asks the kernel: that `poll_accept` is pending says only that the runtime has not heard of
    /// any yet.
    fn turn_waiting_away(&self) -> io::Result<()>;
}

impl Accepts for TcpListener {
    type Stream = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        Self::poll_accept(self, cx)
    }

    fn turn_away(stream: TcpStream) {
        reset(&stream);
    }

    fn turn_waiting_away(&self) -> io::Result<()> {
        let listener = socket2::SockRef::from(self);
        for _ in 0..WAITING_MAX {
            match listener.accept() {
                Ok((waiting, _)) => reset(&waiting),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// Accepts connections of clients for one listener.
pub struct Door {
    /// None on a server that is in no cluster: its clients have nowhere else to go.
    forward: Option<Arc<Forward>>,
    generation: u64,
    standstills: Option<watch::Receiver<u64>>,
    /// Connections that lie before this moment in the queue of the kernel may hold old bytes.
    is_flushing: bool,
}

/// A connection that was accepted and may not be read yet.
pub struct Entry {
    forward: Option<Arc<Forward>>,
    accepted_at: Duration,
    generation: u64,
}

impl Door {
    pub fn new(forward: Option<Arc<Forward>>) -> Self {
        let generation = forward.as_ref().map_or(0, |it| it.pulse().generation());
        let standstills = forward.as_ref().map(|it| it.pulse().subscribe());
        Self {
            forward,
            generation,
            standstills,
            is_flushing: false,
        }
    }

    pub async fn accept<L: Accepts>(
        &mut self,
        listener: &L,
    ) -> io::Result<(L::Stream, SocketAddr, Entry)> {
        loop {
            if self.is_flushing {
                if planted::is(Bug::WaitingConnectionHeardLate) {
                    turn_heard_away(listener).await?;
                } else if !planted::is(Bug::WaitingConnectionTaken) {
                    listener.turn_waiting_away()?;
                }
                self.is_flushing = false;
            }
            let accepting = poll_fn(|cx| listener.poll_accept(cx));
            let stood_still = async {
                match &mut self.standstills {
                    // The sender is gone with the server.
                    Some(standstills) => drop(standstills.changed().await),
                    None => std::future::pending().await,
                }
            };
            let accepted = tokio::select! {
                biased;
                () = stood_still => {
                    self.is_flushing = true;
                    if let Some(forward) = &self.forward {
                        self.generation = forward.pulse().generation();
                    }
                    continue;
                }
                accepted = accepting => accepted,
            };
            let (stream, peer) = accepted?;
            let Some(forward) = &self.forward else {
                let entry = Entry {
                    forward: None,
                    accepted_at: Duration::ZERO,
                    generation: 0,
                };
                return Ok((stream, peer, entry));
            };
            let generation = forward.pulse().generation();
            if generation != self.generation {
                (self.generation, self.is_flushing) = (generation, true);
                if !planted::is(Bug::WaitingConnectionTaken) {
                    L::turn_away(stream);
                    continue;
                }
            }
            let entry = Entry {
                forward: Some(Arc::clone(forward)),
                accepted_at: forward.now(),
                generation,
            };
            return Ok((stream, peer, entry));
        }
    }
}

/// Turns away what the runtime has heard of: others may wait in the kernel. It is a mistake that is planted.
async fn turn_heard_away<L: Accepts>(listener: &L) -> io::Result<()> {
    while let Poll::Ready(accepted) = poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await {
        L::turn_away(accepted?.0);
    }
    Ok(())
}

impl Entry {
    /// Of the pulse, when the connection was accepted.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Waits until the connection may be read. `None`: this server is in no cluster.
    pub async fn admit(self, client: SocketAddr) -> Result<Option<Arc<Admission>>, Refused> {
        let Some(forward) = self.forward else {
            return Ok(None);
        };
        let registry = Arc::clone(forward.registry());
        drop(forward);
        let admitted = registry.admit_client(client, self.accepted_at, self.generation);
        let admitted = admitted.await;
        admitted.map(Some)
    }
}

/// Has a connection closed in a way that makes its client connect again at once: after an orderly end of the server's side
/// Linux waits for three seconds.
pub fn reset(stream: &impl std::os::fd::AsFd) {
    let socket = socket2::SockRef::from(stream);
    if let Err(error) = socket.set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection is closed cleanly instead of at once");
    }
}
