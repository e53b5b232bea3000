//! Addresses on interfaces of this machine.
//!
//! Owns: which interface an address belongs to, putting it there for a while, telling neighbours.
//! Must not know: why, and for how long an address is wanted.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType,
    SockaddrStorage, recv, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::frames::{arp_announcement, neighbor_advertisement};
use crate::netlink::{self, OnInterface};

/// The kernel answers at once.
const ANSWER_SECONDS_MAX: i64 = 2;
const ANSWER_LEN_BYTES_MAX: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error("this machine has no interface {0}; `ip link` shows those that it has")]
    None(String),
    #[error(
        "no interface of this machine is in the network of {address}/{prefix_len}: name one with --interface, or give \
         this machine an address there"
    )]
    NoneNear { address: IpAddr, prefix_len: u8 },
    #[error(
        "this server may not put {address} on {interface}: it needs CAP_NET_ADMIN (under systemd: \
         AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW), or an address hook (`address_hook`)"
    )]
    NotAllowed { address: IpAddr, interface: String },
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
}

/// An interface of this machine.
#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    link: LinkAddr,
}

fn system(what: impl Into<String>) -> impl FnOnce(nix::Error) -> InterfaceError {
    let what = what.into();
    move |error| InterfaceError::System {
        what,
        source: error.into(),
    }
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// Whether two addresses are in one network.
fn is_near(one: IpAddr, other: IpAddr, prefix_len: u8) -> bool {
    let same = |one: u128, other: u128, bits: u32| {
        let shift = bits.saturating_sub(u32::from(prefix_len));
        one.checked_shr(shift) == other.checked_shr(shift)
    };
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            same(u32::from(one).into(), u32::from(other).into(), 32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => same(one.into(), other.into(), 128),
        _ => false,
    }
}

impl Interface {
    /// The interface of a name, or that in the network of an address.
    pub fn find(
        address: IpAddr,
        prefix_len: u8,
        name: Option<&str>,
    ) -> Result<Self, InterfaceError> {
        let all = getifaddrs().map_err(system("listing the interfaces"))?;
        let all: Vec<InterfaceAddress> = all.collect();
        let is_meant = |entry: &&InterfaceAddress| match name {
            Some(name) => entry.interface_name == name,
            None => {
                let near = entry.address.as_ref().and_then(ip_of);
                !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)
                    && near.is_some_and(|near| is_near(near, address, prefix_len))
            }
        };
        let found = all.iter().find(is_meant);
        let found = found.map(|entry| entry.interface_name.clone());
        let Some(found) = found else {
            return Err(match name {
                Some(name) => InterfaceError::None(name.to_owned()),
                None => InterfaceError::NoneNear {
                    address,
                    prefix_len,
                },
            });
        };
        let mut entries = all.iter().filter(|entry| entry.interface_name == found);
        let link = entries.find_map(|entry| entry.address.as_ref()?.as_link_addr().copied());
        match link {
            Some(link) => Ok(Self { name: found, link }),
            None => Err(InterfaceError::None(found)),
        }
    }

    fn at(&self, address: IpAddr, prefix_len: u8) -> Result<OnInterface, InterfaceError> {
        let interface_index = u32::try_from(self.link.ifindex());
        Ok(OnInterface {
            interface_index: interface_index
                .map_err(|_| InterfaceError::None(self.name.clone()))?,
            address,
            prefix_len,
        })
    }

    /// Puts an address here, or keeps it here: for so many seconds from now, after which the kernel removes it by itself.
    pub fn keep(
        &self,
        address: IpAddr,
        prefix_len: u8,
        seconds: u32,
    ) -> Result<(), InterfaceError> {
        let at = self.at(address, prefix_len)?;
        self.asked(address, "putting", |sequence| {
            netlink::add(sequence, at, seconds)
        })
    }

    /// Takes an address away; fine if it is not here.
    pub fn remove(&self, address: IpAddr, prefix_len: u8) -> Result<(), InterfaceError> {
        let at = self.at(address, prefix_len)?;
        let removed = self.asked(address, "removing", |sequence| {
            netlink::remove(sequence, at)
        });
        match removed {
            Err(InterfaceError::System { source, .. })
                if source.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                Ok(())
            }
            result => result,
        }
    }

    fn asked(
        &self,
        address: IpAddr,
        doing: &str,
        message: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<(), InterfaceError> {
        const SEQUENCE: u32 = 1;
        let what = format!("{doing} {address} on {}", self.name);
        let kernel = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        );
        let kernel = kernel.map_err(system(what.clone()))?;
        let patience = TimeVal::seconds(ANSWER_SECONDS_MAX);
        setsockopt(&kernel, ReceiveTimeout, &patience).map_err(system(what.clone()))?;
        let to = NetlinkAddr::new(0, 0);
        let sent = sendto(
            kernel.as_raw_fd(),
            &message(SEQUENCE),
            &to,
            MsgFlags::empty(),
        );
        sent.map_err(system(what.clone()))?;
        let mut bytes = [0; ANSWER_LEN_BYTES_MAX];
        loop {
            let len = recv(kernel.as_raw_fd(), &mut bytes, MsgFlags::empty());
            let len = len.map_err(system(what.clone()))?;
            let answer = netlink::answer(SEQUENCE, bytes.get(..len).unwrap_or(&[]));
            match answer {
                None => {}
                Some(Ok(())) => return Ok(()),
                Some(Err(source)) if source.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(InterfaceError::NotAllowed {
                        address,
                        interface: self.name.clone(),
                    });
                }
                Some(Err(source)) => return Err(InterfaceError::System { what, source }),
            }
        }
    }

    /// Tells neighbours that an address is here now. An interface that is no Ethernet has none that would need it.
    pub fn announce(&self, address: IpAddr) -> Result<(), InterfaceError> {
        let Some(mac) = self.link.addr() else {
            return Ok(());
        };
        let frame = match address {
            IpAddr::V4(v4) => arp_announcement(mac, v4),
            IpAddr::V6(v6) => neighbor_advertisement(mac, v6),
        };
        let what = format!("announcing {address} on {}", self.name);
        // Of no protocol: nothing is received.
        let link: OwnedFd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(system(what.clone()))?;
        let sent = sendto(link.as_raw_fd(), &frame, &self.link, MsgFlags::empty());
        sent.map(drop).map_err(system(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_by_their_prefix() {
        let cases = [
            ("10.0.0.1", "10.0.0.200", 24, true),
            ("10.0.0.1", "10.0.1.1", 24, false),
            ("10.0.0.1", "10.0.1.1", 0, true),
            ("10.0.0.1", "10.0.0.2", 32, false),
            ("10.0.0.1", "10.0.0.1", 32, true),
            ("fd00::1", "fd00::ffff:1", 64, true),
            ("fd00::1", "fd00:0:0:1::1", 64, false),
            ("fd00::1", "10.0.0.1", 0, false),
        ];
        for (one, other, prefix_len, want) in cases {
            let got = is_near(one.parse().unwrap(), other.parse().unwrap(), prefix_len);
            assert_eq!(got, want, "{one} {other}/{prefix_len}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let address = "192.0.2.1".parse().unwrap();
        let none = Interface::find(address, 24, Some("no-such-if")).unwrap_err();
        assert!(none.to_string().contains("no-such-if"), "{none}");
        // A network of this very address, which is for documents alone.
        let far = Interface::find(address, 32, None).unwrap_err();
        assert!(far.to_string().contains("192.0.2.1/32"), "{far}");
    }
}
