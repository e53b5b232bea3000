//! What an operator copies from a node of the cluster to one that is to join.
//!
//! Owns: its text, which has where to connect, how to know the cluster, and the token.
//! Must not know: what the token is.
//!
//! ```text
//! cairn1-  base64url, without padding, of:
//!   0   2  length of what follows, big-endian
//!   2   1  count of addresses, 1 to 5
//!       n  each address: its length (1 byte) and its text, HOST:PORT
//!      32  SHA-256 of the CA's certificate
//!       n  the token: its length (1 byte) and its text
//!       4  CRC-32C of all before, big-endian
//! ```

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_base::crc32c;

use crate::address::check_address;
use crate::authority::Fingerprint;
use crate::error::TrustError;

const PREFIX: &str = "cairn";
const VERSION: u32 = 1;
const ADDRESSES_MAX: usize = 5;
pub(crate) const TOKEN_LEN_BYTES_MAX: usize = 255;
const TEXT_LEN_BYTES_MAX: usize = 4096;
const CRC_LEN_BYTES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    #[error(
        "this is not a cluster ticket; `cairn cluster token` prints one, which begins with cairn{VERSION}-"
    )]
    NotATicket,
    #[error(
        "this ticket has version {0}, which this program does not know; install the cluster's version of Cairn"
    )]
    NewerVersion(u32),
    #[error("the end of the ticket is missing; copy all of it")]
    CutOff,
    #[error("the ticket is damaged: {0}; copy it again")]
    Damaged(&'static str),
}

/// Lets a node join, once. `Debug` hides the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    addresses: Vec<String>,
    fingerprint: Fingerprint,
    token: String,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("addresses", &self.addresses)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    /// `addresses` are internal ones of nodes; those past the fifth are left out.
    pub fn new(
        mut addresses: Vec<String>,
        fingerprint: Fingerprint,
        token: String,
    ) -> Result<Self, TrustError> {
        addresses.truncate(ADDRESSES_MAX);
        addresses
            .iter()
            .try_for_each(|address| check_address(address))?;
        let invalid = |what, value: &str, problem| TrustError::Invalid {
            what,
            value: value.to_owned(),
            problem,
        };
        if addresses.is_empty() {
            return Err(invalid("the addresses of a ticket", "", "there is none"));
        }
        if !is_token(token.as_bytes()) {
            let problem = "it is from 1 to 255 visible characters";
            return Err(invalid("the token of a ticket", "..", problem));
        }
        Ok(Self {
            addresses,
            fingerprint,
            token,
        })
    }

    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The secret that works once.
    pub fn token(&self) -> &str {
        &self.token
    }

    fn encode(&self) -> Vec<u8> {
        let mut rest = vec![self.addresses.len() as u8];
        for address in &self.addresses {
            // `new` and `decode` admit no longer ones.
            rest.push(address.len() as u8);
            rest.extend_from_slice(address.as_bytes());
        }
        rest.extend_from_slice(&self.fingerprint.0);
        rest.push(self.token.len() as u8);
        rest.extend_from_slice(self.token.as_bytes());
        let len = (rest.len() + CRC_LEN_BYTES) as u16;
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.append(&mut rest);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, TicketError> {
        let (len, rest) = bytes.split_first_chunk().ok_or(TicketError::CutOff)?;
        let len = usize::from(u16::from_be_bytes(*len));
        if rest.len() < len {
            return Err(TicketError::CutOff);
        }
        if rest.len() > len {
            return Err(TicketError::Damaged("something follows it"));
        }
        let (body, crc) = bytes
            .split_last_chunk::<CRC_LEN_BYTES>()
            .ok_or(TicketError::CutOff)?;
        if crc32c(body) != u32::from_be_bytes(*crc) {
            return Err(TicketError::Damaged("some of it has changed"));
        }
        // From here on only somebody who means to could have made it wrong.
        let wrong = || TicketError::Damaged("its content is wrong");
        let body = body.get(2..).ok_or_else(wrong)?;
        let (count, mut rest) = body.split_first().ok_or_else(wrong)?;
        let mut addresses = Vec::new();
        if !(1..=ADDRESSES_MAX).contains(&usize::from(*count)) {
            return Err(wrong());
        }
        for _ in 0..*count {
            let (address, after) = take_text(rest).ok_or_else(wrong)?;
            check_address(address).map_err(|_| wrong())?;
            addresses.push(address.to_owned());
            rest = after;
        }
        let (fingerprint, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        let (token, rest) = take_text(rest).ok_or_else(wrong)?;
        if !rest.is_empty() || !is_token(token.as_bytes()) {
            return Err(wrong());
        }
        Ok(Self {
            addresses,
            fingerprint: Fingerprint(*fingerprint),
            token: token.to_owned(),
        })
    }
}

fn take_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*len))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

pub(crate) fn is_token(token: &[u8]) -> bool {
    (1..=TOKEN_LEN_BYTES_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic)
}

/// For the operator alone.
impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{PREFIX}{VERSION}-{}",
            URL_SAFE_NO_PAD.encode(self.encode())
        )
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        if text.len() > TEXT_LEN_BYTES_MAX {
            return Err(TicketError::NotATicket);
        }
        // Terminals break long lines, and what is copied from them has the breaks.
        let text: String = text.split_ascii_whitespace().collect();
        let (version, content) = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .ok_or(TicketError::NotATicket)?;
        let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
        match version.parse::<u32>() {
            Ok(VERSION) if is_number => {}
            Ok(version) if is_number && version > VERSION => {
                return Err(TicketError::NewerVersion(version));
            }
            _ => return Err(TicketError::NotATicket),
        }
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !content.bytes().all(fine) {
            return Err(TicketError::Damaged("it has letters that no ticket has"));
        }
        // What has only such letters and is no base64 ends within a byte.
        let bytes = URL_SAFE_NO_PAD
            .decode(content)
            .map_err(|_| TicketError::CutOff)?;
        Self::decode(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(addresses: &[&str]) -> Ticket {
        let addresses = addresses.iter().map(|address| (*address).to_owned());
        let token = format!("cairn-{}-{}", "0".repeat(16), "f".repeat(64));
        Ticket::new(addresses.collect(), Fingerprint([7; 32]), token).unwrap()
    }

    #[test]
    fn a_ticket_is_what_it_was_after_it_was_copied() {
        let six = ["a:1", "b:2", "c:3", "d:4", "[fd00::1]:5", "f:6"];
        for count in 1..=6 {
            let made = ticket(&six[..count]);
            let text = made.to_string();
            assert_eq!(text.parse(), Ok(made.clone()));
            assert_eq!(made.addresses().len(), count.min(ADDRESSES_MAX));
            // As a terminal of 40 columns has it.
            let lines: Vec<&[u8]> = text.as_bytes().chunks(40).collect();
            let broken = lines.join(&b"\r\n"[..]);
            let broken = format!(" {} \n", String::from_utf8(broken).unwrap());
            assert_eq!(broken.parse(), Ok(made));
        }
        assert!(ticket(&["10.0.0.1:7700"]).to_string().len() < 210);
    }

    #[test]
    fn debug_shows_no_token() {
        let ticket = ticket(&["a:1"]);
        assert!(!format!("{ticket:?}").contains(ticket.token()));
    }

    #[test]
    fn what_is_no_ticket_is_refused_with_its_reason() {
        use TicketError::{CutOff, NewerVersion, NotATicket};
        let text = ticket(&["10.0.0.1:7700"]).to_string();
        let with = |from: &str, to: &str| text.replacen(from, to, 1);
        let cases = [
            (String::new(), NotATicket),
            ("cairn1".to_owned(), NotATicket),
            ("hello".to_owned(), NotATicket),
            // A token alone.
            (ticket(&["a:1"]).token().to_owned(), NotATicket),
            (with("cairn1", "cairn"), NotATicket),
            (with("cairn1", "cairn0"), NotATicket),
            (with("cairn1", "cairn+1"), NotATicket),
            (with("cairn1", "cairn99999999999"), NotATicket),
            ("a".repeat(TEXT_LEN_BYTES_MAX + 1), NotATicket),
            (with("cairn1", "cairn2"), NewerVersion(2)),
            ("cairn17-whatever it is".to_owned(), NewerVersion(17)),
            (
                with("cairn1-", "cairn1-*"),
                TicketError::Damaged("it has letters that no ticket has"),
            ),
            (
                format!("{text}{text}"),
                TicketError::Damaged("something follows it"),
            ),
        ];
        for (text, want) in cases {
            let found = text.parse::<Ticket>();
            // Two in a row end within a byte, or are too long: either is refused.
            match want {
                TicketError::Damaged("something follows it") => assert!(found.is_err(), "{text}"),
                want => assert_eq!(found, Err(want), "{text}"),
            }
        }
        for len in "cairn1-".len()..text.len() {
            assert_eq!(text[..len].parse::<Ticket>(), Err(CutOff), "{len}");
        }
    }

    #[test]
    fn a_mistyped_letter_is_noticed() {
        let text = ticket(&["10.0.0.1:7700"]).to_string();
        // The last letter has bits that are no content.
        for at in "cairn1-".len()..text.len() - 1 {
            let mut typed = text.clone().into_bytes();
            typed[at] = if typed[at] == b'A' { b'B' } else { b'A' };
            let typed = String::from_utf8(typed).unwrap();
            assert!(typed.parse::<Ticket>().is_err(), "{at}");
        }
    }

    #[test]
    fn what_cannot_be_in_a_ticket_is_refused() {
        let with = |addresses: &[&str], token: &str| {
            let addresses = addresses.iter().map(|address| (*address).to_owned());
            Ticket::new(addresses.collect(), Fingerprint([7; 32]), token.to_owned()).map(|_| ())
        };
        assert_eq!(with(&["a:1"], &"x".repeat(255)), Ok(()));
        for (addresses, token) in [
            (&[][..], "x"),
            (&["a"], "x"),
            (&["a:1"], ""),
            (&["a:1"], "x y"),
            (&["a:1"], &"x".repeat(256)),
        ] {
            assert!(with(addresses, token).is_err(), "{addresses:?} {token}");
        }
    }
}
