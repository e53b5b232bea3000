//! Requests to the kernel about addresses, as messages of rtnetlink.
//!
//! Owns: which attributes a request has, and the meaning of a reply. Must not know: sockets, bytes (`netlink-packet-route`).
//! Source: rtnetlink(7), netlink(7).

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressMessage, CacheInfo,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnInterface {
    pub interface_index: u32,
    pub address: IpAddr,
    pub prefix_len: u8,
}

/// Puts an address on an interface, or extends its stay there: the kernel removes it after `seconds` by itself.
pub fn add(sequence: u32, at: OnInterface, seconds: u32) -> Vec<u8> {
    let mut message = about(at);
    // The kernel sets the times of creation and change.
    let mut lifetimes = CacheInfo::default();
    lifetimes.ifa_preferred = seconds;
    lifetimes.ifa_valid = seconds;
    message
        .attributes
        .push(AddressAttribute::CacheInfo(lifetimes));
    if at.address.is_ipv6() {
        // No time for duplicate address detection: another node may have had the address a moment ago.
        let flags = AddressFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(flags));
    }
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    request(sequence, flags, RouteNetlinkMessage::NewAddress(message))
}

/// Takes an address off an interface.
pub fn remove(sequence: u32, at: OnInterface) -> Vec<u8> {
    let message = RouteNetlinkMessage::DelAddress(about(at));
    request(sequence, NLM_F_REQUEST | NLM_F_ACK, message)
}

/// The address, valid everywhere (scope "universe"), without flags.
fn about(at: OnInterface) -> AddressMessage {
    let family = match at.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family,
        prefix_len: at.prefix_len,
        index: at.interface_index,
        ..AddressHeader::default()
    };
    message.attributes = vec![
        AddressAttribute::Local(at.address),
        AddressAttribute::Address(at.address),
    ];
    message
}

fn request(sequence: u32, flags: u16, message: RouteNetlinkMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.sequence_number = sequence;
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// The reply to the request with this number; `None` if `bytes` are another message.
pub fn answer(sequence: u32, bytes: &[u8]) -> Option<io::Result<()>> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).ok()?;
    let NetlinkPayload::Error(reply) = message.payload else {
        return None;
    };
    if message.header.sequence_number != sequence {
        return None;
    }
    Some(match reply.raw_code() {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of a request, and what it says of the address.
    fn read(bytes: &[u8]) -> (u16, AddressMessage) {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).unwrap();
        assert_eq!(message.header.length as usize, bytes.len());
        let flags = message.header.flags;
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(message)) => {
                (flags, message)
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(message)) => {
                (flags, message)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_name_address_interface_and_lifetime() {
        for (address, prefix_len, is_v6) in [("10.0.0.9", 24, false), ("fd00::9", 64, true)] {
            let address = address.parse().unwrap();
            let at = OnInterface {
                interface_index: 7,
                address,
                prefix_len,
            };
            let bytes = [add(1, at, 5), remove(2, at)];
            // RTM_NEWADDR and RTM_DELADDR; the flags of the first say "create or replace".
            let kinds = bytes.each_ref().map(|bytes| [bytes[4], bytes[5]]);
            assert_eq!(kinds, [20_u16.to_ne_bytes(), 21_u16.to_ne_bytes()]);
            let [(add_flags, added), (remove_flags, removed)] = bytes.each_ref().map(|it| read(it));
            assert_eq!((add_flags, remove_flags), (0x505, 0x005));
            for message in [&added, &removed] {
                assert_eq!(
                    (message.header.index, message.header.prefix_len),
                    (7, prefix_len)
                );
                assert!(
                    message
                        .attributes
                        .contains(&AddressAttribute::Local(address))
                );
                assert!(
                    message
                        .attributes
                        .contains(&AddressAttribute::Address(address))
                );
            }
            let lifetimes = |it: &AddressAttribute| match it {
                AddressAttribute::CacheInfo(it) => Some((it.ifa_preferred, it.ifa_valid)),
                _ => None,
            };
            assert_eq!(added.attributes.iter().find_map(lifetimes), Some((5, 5)));
            assert_eq!(removed.attributes.iter().find_map(lifetimes), None);
            let no_detection = AddressAttribute::Flags(AddressFlags::Nodad);
            assert_eq!(added.attributes.contains(&no_detection), is_v6);
        }
    }

    #[test]
    fn a_request_has_the_layout_of_the_kernel() {
        let at = OnInterface {
            interface_index: 7,
            address: "10.0.0.9".parse().unwrap(),
            prefix_len: 24,
        };
        let half = |value: u16| value.to_ne_bytes().to_vec();
        let word = |value: u32| value.to_ne_bytes().to_vec();
        let attribute =
            |kind: u16, len: u16, value: Vec<u8>| [half(len), half(kind), value].concat();
        let address = vec![10, 0, 0, 9];
        let want = [
            // `struct nlmsghdr`: length, RTM_NEWADDR, flags, number, port.
            [word(60), half(20), half(0x505), word(1), word(0)].concat(),
            // `struct ifaddrmsg`: AF_INET, length of the prefix, flags, scope, interface.
            [vec![2, 24, 0, 0], word(7)].concat(),
            // IFA_LOCAL, IFA_ADDRESS, IFA_CACHEINFO: preferred and valid seconds, two times of the kernel.
            attribute(2, 8, address.clone()),
            attribute(1, 8, address),
            attribute(6, 20, [word(5), word(5), word(0), word(0)].concat()),
        ];
        assert_eq!(add(1, at, 5), want.concat());
    }

    #[test]
    fn replies_are_read_or_left_alone() {
        // NLMSG_ERROR: header, errno, and the header of the request.
        let replied = |sequence: u32, code: i32| {
            let mut bytes = 36_u32.to_ne_bytes().to_vec();
            bytes.extend(2_u16.to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(code.to_ne_bytes());
            bytes.extend([0; 16]);
            bytes
        };
        assert!(answer(4, &replied(4, 0)).unwrap().is_ok());
        let refused = answer(4, &replied(4, -1)).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(answer(5, &replied(4, 0)).is_none());
        let whole = replied(4, 0);
        for len in 0..whole.len() {
            assert!(answer(4, &whole[..len]).is_none(), "{len}");
        }
    }
}
