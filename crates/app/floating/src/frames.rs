//! The frames that tell neighbours on an Ethernet where an address is now.
//!
//! Owns: their bytes. Must not know: sockets, interfaces.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The address of an Ethernet interface.
pub type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const NA_LEN_BYTES: u16 = 32;

/// An ARP request for the address itself, from it: all neighbours that know the address take the new place of it.
/// Source: RFC 5227, section 3 (ARP announcement); RFC 826 for the bytes.
pub fn arp_announcement(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(BROADCAST);
    frame.extend(mac);
    frame.extend(TYPE_ARP);
    // Ethernet, IPv4, their lengths, a request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// An unsolicited neighbour advertisement to all nodes, which replaces what they know.
/// Source: RFC 4861, sections 4.4 and 7.2.6; RFC 2464, section 7, for the multicast address.
pub fn neighbor_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![NEIGHBOR_ADVERTISEMENT, 0, 0, 0];
    // Override; neither a router's nor an answer.
    message.extend([0x20, 0, 0, 0]);
    message.extend(address.octets());
    // Option: the target's link-layer address, in units of 8 bytes.
    message.extend([2, 1]);
    message.extend(mac);
    let sum = checksum(address, all_nodes, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());

    let mut frame = Vec::with_capacity(86);
    frame.extend([0x33, 0x33, 0, 0, 0, 1]);
    frame.extend(mac);
    frame.extend(TYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(NA_LEN_BYTES.to_be_bytes());
    // From no further than this link: neighbours check the hop limit.
    frame.extend([ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(all_nodes.octets());
    frame.extend(message);
    frame
}

/// Of ICMPv6, over the pseudo header. Source: RFC 4443, section 2.3; RFC 8200, section 8.1.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let len_bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut covered = Vec::new();
    covered.extend(from.octets());
    covered.extend(to.octets());
    covered.extend(len_bytes.to_be_bytes());
    covered.extend([0, 0, 0, ICMPV6]);
    covered.extend(message);
    let words = covered.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0xaa, 0xbb, 0xcc];

    #[test]
    fn an_arp_announcement_is_a_request_for_oneself() {
        let frame = arp_announcement(MAC, Ipv4Addr::new(10, 1, 2, 3));
        let want = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0xaa, 0xbb, 0xcc, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, // ARP: a request
            2, 0, 0, 0xaa, 0xbb, 0xcc, 10, 1, 2, 3, // from
            0, 0, 0, 0, 0, 0, 10, 1, 2, 3, // for
        ];
        assert_eq!(frame, want);
    }

    #[test]
    fn an_advertisement_overrides_and_its_checksum_holds() {
        let address: Ipv6Addr = "fd00::7".parse().unwrap();
        let frame = neighbor_advertisement(MAC, address);
        assert_eq!(frame.len(), 86);
        assert_eq!(&frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[20..22], [ICMPV6, 255]);
        let message = &frame[54..];
        assert_eq!(message.len(), usize::from(NA_LEN_BYTES));
        assert_eq!(message[..2], [136, 0]);
        assert_eq!(message[4], 0x20);
        assert_eq!(message[8..24], address.octets());
        assert_eq!(message[24..], [2, 1, 2, 0, 0, 0xaa, 0xbb, 0xcc]);
        // Over a message with its own checksum the sum is all ones.
        assert_eq!(
            checksum(address, "ff02::1".parse().unwrap(), message),
            0,
            "{message:x?}"
        );
    }
}
