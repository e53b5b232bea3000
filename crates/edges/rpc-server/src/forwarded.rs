//! Calls that another node of the cluster passes on for its client.
//!
//! Owns: the preamble of such a stream, and what a stream is here.
//! Must not know: how nodes reach and trust one another.
//!
//! A stream carries the calls of one client's connection: first the preamble, which says who the client is, then ordinary
//! records (RFC 5531, section 11) in both directions, with the client's own transaction ids. So the owner of a volume serves
//! it as if it were that connection, its limits and the cache of replies included.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

/// A stream between two nodes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// `CFW` and the version.
const MAGIC: [u8; 4] = *b"CFW\x01";
pub const PREAMBLE_LEN_BYTES: usize = 4 + 16 + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no stream of forwarded calls of this version")]
pub struct BadPreamble;

/// Bytes 0..4 `CFW\x01`, 4..20 the client's address as IPv6 (an IPv4 address mapped), 20..22 its port, big-endian.
pub fn encode_preamble(client: SocketAddr) -> [u8; PREAMBLE_LEN_BYTES] {
    let ip = match client.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; PREAMBLE_LEN_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..20].copy_from_slice(&ip.octets());
    bytes[20..].copy_from_slice(&client.port().to_be_bytes());
    bytes
}

pub fn decode_preamble(bytes: &[u8; PREAMBLE_LEN_BYTES]) -> Result<SocketAddr, BadPreamble> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(BadPreamble)?;
    let (ip, rest) = rest.split_first_chunk::<16>().ok_or(BadPreamble)?;
    let (port, _) = rest.split_first_chunk::<2>().ok_or(BadPreamble)?;
    if *magic != MAGIC {
        return Err(BadPreamble);
    }
    let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
    Ok(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

/// Reads the preamble off a stream.
pub async fn read_preamble(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<SocketAddr> {
    let mut bytes = [0; PREAMBLE_LEN_BYTES];
    stream.read_exact(&mut bytes).await?;
    decode_preamble(&bytes)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_who_it_was() {
        for client in ["10.1.2.3:1023", "[fe80::1]:65535", "127.0.0.1:0"] {
            let client: SocketAddr = client.parse().unwrap();
            let bytes = encode_preamble(client);
            assert_eq!(decode_preamble(&bytes), Ok(client));
            for at in 0..4 {
                let mut bad = bytes;
                bad[at] ^= 1;
                assert_eq!(decode_preamble(&bad), Err(BadPreamble), "byte {at}");
            }
        }
    }
}
