//! What the kernel is told of addresses, as bytes of rtnetlink.
//!
//! Owns: the messages, and what an answer says. Must not know: sockets.
//! Source: rtnetlink(7), netlink(7), and the kernel's `include/uapi/linux/if_addr.h`.

use std::io;
use std::net::IpAddr;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// IPv6: no time is taken to ask whether somebody else has the address. Somebody else may have it for a moment.
const IFA_F_NODAD: u32 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const HEADER_LEN_BYTES: usize = 16;

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnInterface {
    pub interface_index: u32,
    pub address: IpAddr,
    pub prefix_len: u8,
}

/// Puts an address on an interface, or changes how long it stays there: the kernel removes it after `seconds` by itself.
pub fn add(sequence: u32, at: OnInterface, seconds: u32) -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let mut body = about(at);
    let mut lifetimes = Vec::with_capacity(16);
    // Preferred and valid; the times of creation and change are the kernel's.
    for value in [seconds, seconds, 0, 0] {
        lifetimes.extend(value.to_ne_bytes());
    }
    attribute(&mut body, IFA_CACHEINFO, &lifetimes);
    if at.address.is_ipv6() {
        attribute(&mut body, IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
    }
    message(RTM_NEWADDR, flags, sequence, &body)
}

/// Takes an address off an interface.
pub fn remove(sequence: u32, at: OnInterface) -> Vec<u8> {
    message(RTM_DELADDR, NLM_F_REQUEST | NLM_F_ACK, sequence, &about(at))
}

/// `struct ifaddrmsg`, and the address.
fn about(at: OnInterface) -> Vec<u8> {
    let (family, bytes) = match at.address {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    // No flags; for all of the network (scope 0).
    let mut body = vec![family, at.prefix_len, 0, 0];
    body.extend(at.interface_index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &bytes);
    attribute(&mut body, IFA_ADDRESS, &bytes);
    body
}

/// A length with its own 4 bytes, a kind, the value, and padding to a multiple of 4.
fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // All are short.
    let len_bytes = 4 + value.len() as u16;
    to.extend(len_bytes.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let len_bytes = (HEADER_LEN_BYTES + body.len()) as u32;
    let mut bytes = Vec::with_capacity(HEADER_LEN_BYTES + body.len());
    bytes.extend(len_bytes.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // From the port that the kernel gave the socket.
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// What an answer says to the request of a number: `None` if it is another one's.
pub fn answer(sequence: u32, bytes: &[u8]) -> Option<io::Result<()>> {
    let word = |at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    if kind != NLMSG_ERROR || u32::from_ne_bytes(word(8)?) != sequence {
        return None;
    }
    Some(match i32::from_ne_bytes(word(HEADER_LEN_BYTES)?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_they_say_and_aligned() {
        for (address, prefix_len, want_len) in [("10.0.0.9", 24, 60), ("fd00::9", 64, 92)] {
            let at = OnInterface {
                interface_index: 7,
                address: address.parse().unwrap(),
                prefix_len,
            };
            for bytes in [add(1, at, 5), remove(2, at)] {
                let said = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
                assert_eq!(said as usize, bytes.len());
                assert_eq!(bytes.len() % 4, 0);
                assert_eq!(bytes[17], prefix_len);
                assert_eq!(bytes[20..24], 7_u32.to_ne_bytes());
            }
            assert_eq!(add(1, at, 5).len(), want_len);
        }
    }

    #[test]
    fn answers_are_read_or_left_alone() {
        let answered = |sequence: u32, code: i32| {
            let body: Vec<u8> = code.to_ne_bytes().into_iter().chain([0; 16]).collect();
            message(NLMSG_ERROR, 0, sequence, &body)
        };
        assert!(answer(4, &answered(4, 0)).unwrap().is_ok());
        let refused = answer(4, &answered(4, -1)).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(answer(5, &answered(4, 0)).is_none());
        let whole = answered(4, 0);
        for len in 0..20 {
            assert!(answer(4, &whole[..len]).is_none(), "{len}");
        }
    }
}
