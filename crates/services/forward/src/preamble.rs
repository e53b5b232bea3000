//! The first bytes of a stream between two nodes.
//!
//! Owns: their form. Must not know: what follows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use cairn_base::NodeId;

/// `CFW` and the version.
const MAGIC: [u8; 4] = *b"CFW\x02";
pub const PREAMBLE_LEN_BYTES: usize = 4 + 1 + 16 + 8 + 16 + 2;

/// A node's term: it begins with a lease and ends with it, and never begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u128);

/// What a client's connection is admitted under, and what each of its calls carries wherever it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The node that accepted the client's connection.
    pub node: NodeId,
    pub term: Term,
    /// The map revision that this node knew when it accepted the connection.
    pub revision: u64,
}

/// The protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Signs of life of an owner.
    Beats,
    /// Records of ONC RPC.
    Rpc,
    Iscsi,
    S3,
    Admin,
    /// Requests of the admin API that change nothing. They need no term: who looks must see a cluster without leases, too.
    AdminReads,
}

impl Service {
    pub const ALL: [Self; 6] = [
        Self::Beats,
        Self::Rpc,
        Self::Iscsi,
        Self::S3,
        Self::Admin,
        Self::AdminReads,
    ];

    pub const fn index(self) -> usize {
        self as usize
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Beats => "beats",
            Self::Rpc => "rpc",
            Self::Iscsi => "iscsi",
            Self::S3 => "s3",
            Self::Admin => "admin",
            Self::AdminReads => "admin_reads",
        }
    }

    fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// What the node that opens a stream says of it. Which node that is, its certificate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    pub service: Service,
    pub term: Term,
    pub revision: u64,
    pub client: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes do not start a stream between nodes of this version")]
pub struct BadPreamble;

impl Preamble {
    /// Bytes 0..4 `CFW\x02`, 4 the service, 5..21 the term, 21..29 the map revision, 29..45 the client's address as IPv6
    /// (an IPv4 address mapped), 45..47 its port. Numbers are big-endian.
    pub fn encode(&self) -> [u8; PREAMBLE_LEN_BYTES] {
        let ip = match self.client.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; PREAMBLE_LEN_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.service.index() as u8;
        bytes[5..21].copy_from_slice(&self.term.0.to_be_bytes());
        bytes[21..29].copy_from_slice(&self.revision.to_be_bytes());
        bytes[29..45].copy_from_slice(&ip.octets());
        bytes[45..].copy_from_slice(&self.client.port().to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; PREAMBLE_LEN_BYTES]) -> Result<Self, BadPreamble> {
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(BadPreamble)?;
        let (service, rest) = rest.split_first().ok_or(BadPreamble)?;
        let (term, rest) = rest.split_first_chunk::<16>().ok_or(BadPreamble)?;
        let (revision, rest) = rest.split_first_chunk::<8>().ok_or(BadPreamble)?;
        let (ip, rest) = rest.split_first_chunk::<16>().ok_or(BadPreamble)?;
        let (port, _) = rest.split_first_chunk::<2>().ok_or(BadPreamble)?;
        if *magic != MAGIC {
            return Err(BadPreamble);
        }
        let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
        Ok(Self {
            service: Service::from_u8(*service).ok_or(BadPreamble)?,
            term: Term(u128::from_be_bytes(*term)),
            revision: u64::from_be_bytes(*revision),
            client: SocketAddr::new(ip, u16::from_be_bytes(*port)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stream_is_of_whom_it_was() {
        for (index, client) in ["10.1.2.3:1023", "[fe80::1]:65535", "127.0.0.1:0"]
            .into_iter()
            .enumerate()
        {
            let preamble = Preamble {
                service: Service::ALL[index],
                term: Term(u128::MAX - 7),
                revision: 1 << 40,
                client: client.parse().unwrap(),
            };
            let bytes = preamble.encode();
            assert_eq!(Preamble::decode(&bytes), Ok(preamble));
            for at in 0..5 {
                let mut bad = bytes;
                bad[at] ^= 0x40;
                assert_eq!(Preamble::decode(&bad), Err(BadPreamble), "byte {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_preamble_or_refused(bytes: [u8; 24], rest: [u8; 23]) {
            let mut all = [0; PREAMBLE_LEN_BYTES];
            all[..24].copy_from_slice(&bytes);
            all[24..].copy_from_slice(&rest);
            for magic in [false, true] {
                if magic {
                    all[..4].copy_from_slice(&MAGIC);
                    all[4] %= 8;
                }
                if let Ok(preamble) = Preamble::decode(&all) {
                    prop_assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
                }
            }
        }
    }
}
