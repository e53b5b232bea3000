//! A question's bytes, and those of its answer.
//!
//! Source: RFC 1035, section 4.1. All numbers are big-endian.
//!
//! ```text
//! offset  bytes
//!      0  2      id, which the answer repeats
//!      2  2      QR 1 bit, OPCODE 4, AA 1, TC 1, RD 1 | RA 1, Z 3, RCODE 4
//!      4  2 x 4  counts: questions, answers, authority, additional
//!     12         the question: labels (a length and its bytes each), an empty label, type (2), class (2)
//! ```

use std::net::IpAddr;

use crate::name::{LABEL_LEN_BYTES_MAX, NAME_LEN_BYTES_MAX, Name};

const HEADER_LEN_BYTES: usize = 12;
/// Longest reply over UDP, which every client takes. Source: RFC 1035, section 4.2.1.
pub const UDP_LEN_BYTES_MAX: usize = 512;
/// Most addresses in a reply; further ones get their turn in others.
pub const ADDRESSES_MAX: usize = 8;
/// Clients and resolvers keep an answer for so long: an address may move at any time, and then nobody has it for a moment.
pub const TTL_SECONDS: u32 = 5;
/// Records behind the question that are looked at; a client sends one, or two.
const ADDITIONAL_COUNT_MAX: u16 = 8;
/// What this server takes over UDP. Source: RFC 6891, section 6.2.3.
const UDP_TAKEN_LEN_BYTES: u16 = 1232;

// The longest reply fits: a header, the longest question, addresses of IPv6, what says that EDNS is known.
const _: () = assert!(
    HEADER_LEN_BYTES + NAME_LEN_BYTES_MAX + 4 + 28 * ADDRESSES_MAX + OPT_LEN_BYTES
        <= UDP_LEN_BYTES_MAX
);
const OPT_LEN_BYTES: usize = 11;

const TYPE_A: u16 = 1;
const TYPE_SOA: u16 = 6;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;
const TYPE_ANY: u16 = 255;
const CLASS_IN: u16 = 1;

/// The name of the question, as compression names it: a pointer to offset 12.
const QUESTION_NAME: [u8; 2] = [0xc0, 0x0c];

const FLAG_REPLY: u16 = 0x8000;
const FLAG_AUTHORITATIVE: u16 = 0x0400;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const OPCODE_MASK: u16 = 0x7800;

/// Of the time between changes that nobody copies: there are no secondary servers.
const SOA_SERIAL: u32 = 1;
const SOA_REFRESH_SECONDS: u32 = 3600;
const SOA_RETRY_SECONDS: u32 = 600;
const SOA_EXPIRE_SECONDS: u32 = 86_400;
const SOA_MAILBOX: &[u8] = b"\x0ahostmaster";

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// A question as it came.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    /// Over TCP without the length before it.
    pub bytes: &'b [u8],
    pub transport: Transport,
    /// The sender has asked so often that its address may be forged: no reply is longer than its question. A client
    /// that is meant asks again over TCP.
    pub is_limited: bool,
}

/// What a server knows of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It has these addresses now, those first that a client is to take.
    Here(Vec<IpAddr>),
    /// This server has authority for it, and cannot tell now: the client asks another one.
    Unsure,
    /// It is no name of this server.
    Elsewhere,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// With addresses, or with what says who has authority for the name.
    Answered,
    /// The name is known, and has nothing of that type now.
    Empty,
    /// This server cannot tell now.
    Failed,
    /// Not a name of this server.
    Refused,
    /// No question that can be understood.
    Malformed,
    /// The client is told to ask over TCP.
    Truncated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Over TCP without the length that comes before it.
    pub bytes: Vec<u8>,
    pub outcome: Outcome,
}

/// Source: RFC 1035, section 4.1.1; BADVERS: RFC 6891, section 9.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NotImplemented = 4,
    Refused = 5,
    /// Its upper bits are in the record of EDNS.
    BadVersion = 16,
}

struct Question<'b> {
    /// As it came, with type and class: it is repeated to the byte, for clients write it in letters that they draw.
    bytes: &'b [u8],
    name: Option<Name>,
    kind: u16,
    class: u16,
}

/// The client's record of EDNS.
#[derive(Clone, Copy)]
struct Edns {
    version: u8,
}

fn take(input: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
    input.split_at_checked(count)
}

fn take_u16(input: &[u8]) -> Option<(u16, &[u8])> {
    let (bytes, rest) = input.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*bytes), rest))
}

/// Takes the name of a question, which has no pointers: there is nothing before it that one could point to.
fn take_labels(input: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let mut labels = Vec::new();
    let mut rest = input;
    let mut len_bytes = 0;
    loop {
        let (len, after) = rest.split_first()?;
        let len = usize::from(*len);
        len_bytes += len + 1;
        if len > LABEL_LEN_BYTES_MAX || len_bytes > NAME_LEN_BYTES_MAX {
            return None;
        }
        if len == 0 {
            return Some((labels, after));
        }
        let (label, after) = take(after, len)?;
        labels.push(label);
        rest = after;
    }
}

fn take_question(input: &[u8]) -> Option<(Question<'_>, &[u8])> {
    let (labels, rest) = take_labels(input)?;
    let (kind, rest) = take_u16(rest)?;
    let (class, rest) = take_u16(rest)?;
    let (bytes, _) = take(input, input.len().checked_sub(rest.len())?)?;
    let question = Question {
        bytes,
        name: Name::of_labels(&labels),
        kind,
        class,
    };
    Some((question, rest))
}

/// Skips a name that may end with a pointer; says whether it is that of the root.
fn skip_name(input: &[u8]) -> Option<(bool, &[u8])> {
    let mut rest = input;
    loop {
        let (len, after) = rest.split_first()?;
        match *len {
            0 => return Some((input.first() == Some(&0), after)),
            len if len & 0xc0 == 0xc0 => return Some((false, take(after, 1)?.1)),
            len if usize::from(len) <= LABEL_LEN_BYTES_MAX => {
                rest = take(after, usize::from(len))?.1;
            }
            _ => return None,
        }
    }
}

/// Finds the record of EDNS among those behind the question; the others are not looked at. `None`: that is no message.
fn find_edns(mut input: &[u8], count: u16) -> Option<Option<Edns>> {
    let mut found = None;
    for _ in 0..count.min(ADDITIONAL_COUNT_MAX) {
        let (is_root, rest) = skip_name(input)?;
        let (kind, rest) = take_u16(rest)?;
        // Class; then, in the place of a time to live: upper bits of the code, version, flags.
        let (_, rest) = take_u16(rest)?;
        let (more, rest) = take(rest, 4)?;
        let (len, rest) = take_u16(rest)?;
        let (_, rest) = take(rest, usize::from(len))?;
        input = rest;
        if kind == TYPE_OPT {
            if !is_root || found.is_some() {
                return None;
            }
            let version = more.get(1).copied()?;
            found = Some(Edns { version });
        }
    }
    Some(found)
}

/// A reply under way.
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(id: u16, flags: u16, code: Code, question: Option<&Question<'_>>) -> Self {
        let flags =
            FLAG_REPLY | (flags & (OPCODE_MASK | FLAG_RECURSION_DESIRED)) | (code as u16 & 0x000f);
        let mut writer = Self { bytes: Vec::new() };
        writer.put(id);
        writer.put(flags);
        writer.put(u16::from(question.is_some()));
        writer.bytes.extend([0; 6]);
        if let Some(question) = question {
            writer.bytes.extend_from_slice(question.bytes);
        }
        writer
    }

    fn put(&mut self, value: u16) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn set_flag(&mut self, flag: u16) {
        let upper = flag.to_be_bytes()[0];
        self.bytes[2] |= upper;
    }

    /// Counts a record of a section: 1 answers, 2 authority, 3 additional.
    fn count(&mut self, section: usize) {
        let at = 5 + 2 * section;
        assert!(
            section <= 3 && self.bytes[at] < u8::MAX,
            "replies are short"
        );
        self.bytes[at] += 1;
    }

    fn record(&mut self, section: usize, kind: u16, data: &[u8]) {
        self.count(section);
        self.bytes.extend(QUESTION_NAME);
        self.put(kind);
        self.put(CLASS_IN);
        self.put_u32(TTL_SECONDS);
        let len = u16::try_from(data.len()).expect("records are short");
        self.put(len);
        self.bytes.extend_from_slice(data);
    }

    /// Who has authority for the name, and how long a client may remember that there is nothing. Source: RFC 2308, section 3.
    fn soa(&mut self, section: usize) {
        let mut data = QUESTION_NAME.to_vec();
        data.extend_from_slice(SOA_MAILBOX);
        data.extend(QUESTION_NAME);
        for number in [
            SOA_SERIAL,
            SOA_REFRESH_SECONDS,
            SOA_RETRY_SECONDS,
            SOA_EXPIRE_SECONDS,
            TTL_SECONDS,
        ] {
            data.extend(number.to_be_bytes());
        }
        self.record(section, TYPE_SOA, &data);
    }

    /// Says that EDNS is known, to who said so. Source: RFC 6891, section 6.1.
    fn edns(&mut self, code: Code) {
        self.count(3);
        self.bytes.push(0);
        self.put(TYPE_OPT);
        self.put(UDP_TAKEN_LEN_BYTES);
        self.bytes.push((code as u16 >> 4) as u8);
        self.bytes.extend([0; 5]);
    }
}

/// Answers a question, or says why not. `None`: it is not answered at all, being no message, or itself a reply, for two servers
/// that answer replies would never stop.
///
/// At most [`ADDRESSES_MAX`] addresses of one family are told. Sources: RFC 1035, section 4.1; RFC 2308; RFC 6891; of questions for all
/// types one is answered, RFC 8482.
pub fn answer(request: Request<'_>, names: &dyn Fn(&Name) -> Lookup) -> Option<Answer> {
    let input = request.bytes;
    let (header, rest) = input.split_first_chunk::<HEADER_LEN_BYTES>()?;
    let field = |index: usize| u16::from_be_bytes([header[index * 2], header[index * 2 + 1]]);
    let [id, flags, questions, answers, authority, additional] = [0, 1, 2, 3, 4, 5].map(field);
    if flags & FLAG_REPLY != 0 {
        return None;
    }
    let bare = |code: Code, outcome| {
        Some(Answer {
            bytes: Writer::new(id, flags, code, None).bytes,
            outcome,
        })
    };
    if flags & OPCODE_MASK != 0 {
        return bare(Code::NotImplemented, Outcome::Refused);
    }
    if (questions, answers, authority) != (1, 0, 0) {
        return bare(Code::FormatError, Outcome::Malformed);
    }
    let Some((question, rest)) = take_question(rest) else {
        return bare(Code::FormatError, Outcome::Malformed);
    };
    let Some(edns) = find_edns(rest, additional) else {
        return bare(Code::FormatError, Outcome::Malformed);
    };
    let found = match (&question.name, question.class) {
        (Some(name), CLASS_IN) => names(name),
        _ => Lookup::Elsewhere,
    };
    let is_version_known = edns.is_none_or(|edns| edns.version == 0);
    let (code, refused) = match (&found, is_version_known) {
        (_, false) => (Code::BadVersion, Outcome::Refused),
        (Lookup::Elsewhere, true) => (Code::Refused, Outcome::Refused),
        (Lookup::Unsure, true) => (Code::ServerFailure, Outcome::Failed),
        (Lookup::Here(_), true) => (Code::NoError, Outcome::Refused),
    };
    let mut writer = Writer::new(id, flags, code, Some(&question));
    let mut outcome = match (&found, code) {
        (Lookup::Here(addresses), Code::NoError) => {
            write_addresses(&mut writer, question.kind, addresses)
        }
        _ => refused,
    };
    if request.is_limited && writer.bytes.len() > question.bytes.len() + HEADER_LEN_BYTES {
        writer = Writer::new(id, flags, code, Some(&question));
        writer.set_flag(FLAG_TRUNCATED | FLAG_AUTHORITATIVE);
        outcome = Outcome::Truncated;
    }
    if edns.is_some() {
        writer.edns(code);
    }
    assert!(request.transport == Transport::Tcp || writer.bytes.len() <= UDP_LEN_BYTES_MAX);
    Some(Answer {
        bytes: writer.bytes,
        outcome,
    })
}

fn write_addresses(writer: &mut Writer, kind: u16, addresses: &[IpAddr]) -> Outcome {
    writer.set_flag(FLAG_AUTHORITATIVE);
    if kind == TYPE_SOA {
        writer.soa(1);
        return Outcome::Answered;
    }
    let has_v4 = addresses.iter().any(IpAddr::is_ipv4);
    let wants_v4 = kind == TYPE_A || kind == TYPE_ANY && has_v4;
    let wants_v6 = kind == TYPE_AAAA || kind == TYPE_ANY && !has_v4;
    let is_wanted = |address: &&IpAddr| match address {
        IpAddr::V4(_) => wants_v4,
        IpAddr::V6(_) => wants_v6,
    };
    let mut outcome = Outcome::Empty;
    for address in addresses.iter().filter(is_wanted).take(ADDRESSES_MAX) {
        outcome = Outcome::Answered;
        match address {
            IpAddr::V4(v4) => writer.record(1, TYPE_A, &v4.octets()),
            IpAddr::V6(v6) => writer.record(1, TYPE_AAAA, &v6.octets()),
        }
    }
    if outcome == Outcome::Empty {
        writer.soa(2);
    }
    outcome
}

#[cfg(test)]
mod tests;
