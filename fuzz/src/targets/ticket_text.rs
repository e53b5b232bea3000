//! The ticket with which a node joins.
//!
//! The input is read as text, and as the content of a ticket: then its length and checksum are made to fit, or nothing
//! would ever get past them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_base::crc32c;
use cairn_trust::{Ticket, check_address};

const ADDRESSES_MAX: usize = 5;
const CRC_LEN_BYTES: usize = 4;

/// Tries one input.
pub fn run(input: &[u8]) {
    check(&String::from_utf8_lossy(input));
    content(input);
    if let Ok(len) = u16::try_from(input.len() + CRC_LEN_BYTES) {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend_from_slice(input);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        content(&bytes);
    }
}

fn content(bytes: &[u8]) {
    check(&format!("cairn1-{}", URL_SAFE_NO_PAD.encode(bytes)));
}

fn check(text: &str) {
    let Ok(ticket) = text.parse::<Ticket>() else {
        return;
    };
    let addresses = ticket.addresses();
    assert!((1..=ADDRESSES_MAX).contains(&addresses.len()));
    for address in addresses {
        check_address(address).expect("an address");
    }
    assert!(!ticket.token().is_empty());
    let again = ticket.to_string();
    // One text for one ticket, whitespace aside.
    let plain: String = text.split_ascii_whitespace().collect();
    assert_eq!(
        again.split_once('-').map(|(_, rest)| rest),
        plain.split_once('-').map(|(_, rest)| rest)
    );
    assert_eq!(again.parse().as_ref(), Ok(&ticket));
    let made = Ticket::new(
        addresses.to_vec(),
        ticket.fingerprint(),
        ticket.token().to_owned(),
    );
    assert_eq!(made.as_ref(), Ok(&ticket));
}
