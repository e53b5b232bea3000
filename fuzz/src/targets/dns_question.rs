//! A question to the DNS responder.
//!
//! The input is taken as a whole message, and as what comes after a header that fits: then most of it gets past the counts.

use std::net::IpAddr;

use cairn_codec_dns::{
    ADDRESSES_MAX, Lookup, Name, Outcome, Request, Transport, UDP_LEN_BYTES_MAX, answer,
};

const HEADER: [u8; 12] = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
/// More than an answer has.
const ADDRESSES: u8 = 12;

/// Tries one input.
pub fn run(input: &[u8]) {
    check(input);
    check(&[&HEADER[..], input].concat());
}

/// Names of three letters are known, of two nobody can tell.
fn names(name: &Name) -> Lookup {
    match name.as_str().len() {
        3 => Lookup::Here(
            (0..ADDRESSES)
                .map(|last| IpAddr::from([10, 0, 0, last]))
                .collect(),
        ),
        2 => Lookup::Unsure,
        _ => Lookup::Elsewhere,
    }
}

fn check(bytes: &[u8]) {
    for transport in [Transport::Udp, Transport::Tcp] {
        for is_limited in [false, true] {
            let request = Request {
                bytes,
                transport,
                is_limited,
            };
            let Some(answer) = answer(request, &names) else {
                continue;
            };
            assert!(answer.bytes.len() <= UDP_LEN_BYTES_MAX);
            assert_eq!(answer.bytes[..2], bytes[..2], "the id is repeated");
            assert!(answer.bytes[2] & 0x80 != 0, "it is a reply");
            let answers = usize::from(u16::from_be_bytes([answer.bytes[6], answer.bytes[7]]));
            assert!(answers <= ADDRESSES_MAX);
            let is_long = matches!(answer.outcome, Outcome::Answered | Outcome::Empty);
            assert!(!(is_long && is_limited));
            if !is_long {
                assert!(answer.bytes.len() <= bytes.len(), "nothing grows");
            }
        }
    }
}
