//! Making TCP connections.
//!
//! Owns: timeouts, socket options, the choice of a source port.
//! Must not know: RPC.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cairn_base::env::Entropy;
use cairn_base::real::OsEntropy;
use tokio::net::{TcpSocket, TcpStream};

use super::ConnectionSettings;
use crate::error::Error;

/// Ports that only root can bind; those below 512 belong to well-known services.
const RESERVED_PORTS: std::ops::Range<u16> = 512..1024;
/// A port may be taken, or still be in TIME_WAIT to the same server.
const RESERVED_PORT_TRIES: u16 = 16;

pub(super) async fn connect(
    address: SocketAddr,
    settings: &ConnectionSettings,
) -> Result<TcpStream, Error> {
    let connecting = async {
        match settings.reserved_port {
            true => connect_from_reserved(address).await,
            false => connect_from(address, None).await,
        }
    };
    let connected = tokio::time::timeout(settings.connect_timeout, connecting).await;
    let stream = connected
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|error| Error::Unreachable { address, error })?;
    stream
        .set_nodelay(true)
        .map_err(|error| Error::Unreachable { address, error })?;
    Ok(stream)
}

/// Falls back to an ordinary port: most servers do not ask for more.
async fn connect_from_reserved(address: SocketAddr) -> io::Result<TcpStream> {
    let count = RESERVED_PORTS.end - RESERVED_PORTS.start;
    let first = (random_u32() % u32::from(count)) as u16;
    for step in 0..RESERVED_PORT_TRIES {
        let port = RESERVED_PORTS.start + (first + step) % count;
        match connect_from(address, Some(port)).await {
            Err(error) => match error.kind() {
                io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => {}
                io::ErrorKind::PermissionDenied => break,
                _ => return Err(error),
            },
            connected => return connected,
        }
    }
    connect_from(address, None).await
}

async fn connect_from(address: SocketAddr, port: Option<u16>) -> io::Result<TcpStream> {
    let (socket, any) = match address {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    if let Some(port) = port {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(any, port))?;
    }
    socket.connect(address).await
}

/// For first xids and for pauses: two clients should not choose the same.
pub(super) fn random_u32() -> u32 {
    OsEntropy.u64() as u32
}
