//! What a connection of the server receives: however the stream is cut into reads, the calls, payloads and
//! refusals are those of a plain reading, and no more is held than may be.
//!
//! The input is a short description of a stream, because what matters comes with records of up to 1 MiB:
//!
//! ```text
//! 0: bit 0: an export lets the client in; bits 1 to 3: the count of cuts, less one
//! 1: a byte for each cut: its square and one more is how much a read brings
//! then pieces, until the input ends; the two low bits of the first byte say what it is:
//!    0: bytes as they are, as many as the other six bits say, and one more
//!    1: filling, as many times 17 bytes as the next two bytes say; zeros if bit 2 is set
//!    2: a WRITE; of the next three bytes two say the length of its payload, by 17, the last what is odd
//!    3: the header of a fragment with the length in the next three bytes, the last one if bit 2 is set
//! ```

use cairn_codec_nfs::v3;
use cairn_codec_rpc::record::FRAGMENT_COUNT_MAX;
use cairn_codec_rpc::rpc::decode_call;
use cairn_codec_rpc::{
    CallHeader, DecodeError, FragmentHeader, Incoming, OpaqueAuth, Reader, Writer, xdr,
};

use cairn_rpc_server::intake::{
    Gate, INPUT_LEN_BYTES, Intake, LARGE_LEN_BYTES_MIN, RECORD_LEN_BYTES_MAX, Space, Step, Verdict,
};

/// Enough for a record of the greatest length, and something behind it.
const STREAM_LEN_BYTES_MAX: usize = RECORD_LEN_BYTES_MAX as usize + (128 << 10);
/// After so many reads each brings all that there is room for, or a long stream would take long.
const READ_COUNT_MAX: usize = 2048;
/// What lengths in the input count, so that two bytes reach beyond the longest record.
const STEP_LEN_BYTES: usize = 17;
/// A WRITE to a handle that begins so is refused.
const REFUSED: u8 = b'r';

/// What is odd about a WRITE.
const ODD_LEN: u8 = 3;
const ODD_HANDLE: u8 = 4;
const ODD_RECORD_LEN: u8 = 8;
const ODD_OPAQUE_LEN: u8 = 16;
const ODD_CREDENTIAL: u8 = 32;
const ODD_FRAGMENT: u8 = 64;
const ODD_PROCEDURE: u8 = 128;

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Refused(u32),
    Garbage(u32),
}

struct TestGate {
    is_let_in: bool,
}

impl TestGate {
    /// As the server does: a stranger may write to nothing.
    fn refuses(&self, head: &v3::WriteHead) -> bool {
        !self.is_let_in || head.file.as_bytes().first() == Some(&REFUSED)
    }
}

/// The number of a WRITE, and its arguments up to the payload.
type LargeWrite = (u32, v3::WriteHead);

impl Gate for TestGate {
    type Answer = Answer;
    type Large = LargeWrite;

    fn is_let_in(&self) -> bool {
        self.is_let_in
    }

    /// As NFSv3 does.
    fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> Verdict<Answer, LargeWrite> {
        let what = (call.program, call.version, call.procedure);
        if what != (v3::PROGRAM, v3::VERSION, v3::Procedure::Write.number()) {
            return Verdict::Ordinary;
        }
        match v3::decode_write_prefix(args) {
            Ok(Some(prefix)) if prefix.fills(args_len_bytes) => match self.refuses(&prefix.head) {
                true => Verdict::Refused(Answer::Refused(call.xid)),
                false => Verdict::Payload {
                    call: (call.xid, prefix.head),
                    payload_start: prefix.data_offset,
                    payload_len_bytes: prefix.data_len_bytes as usize,
                },
            },
            Ok(None) => Verdict::NeedsMore,
            Ok(Some(_)) | Err(_) => Verdict::Ordinary,
        }
    }

    fn garbage(&self, xid: u32) -> Answer {
        Answer::Garbage(xid)
    }
}

#[derive(PartialEq, Eq)]
enum Came {
    Whole(Vec<u8>),
    /// A WRITE whose payload was received in place, and that.
    InPlace(LargeWrite, Vec<u8>),
    Skipped(Answer),
}

// Whole payloads would make failures unreadable.
impl std::fmt::Debug for Came {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(record) => write!(to, "Whole({} bytes)", record.len()),
            Self::InPlace((xid, _), payload) => {
                write!(to, "InPlace({xid}, {} bytes)", payload.len())
            }
            Self::Skipped(answer) => write!(to, "Skipped({answer:?})"),
        }
    }
}

/// What came of a stream, and why it was refused in the end, if it was.
type Outcome = (Vec<Came>, Option<DecodeError>);

/// As the server receives it; `cuts` say how much each read brings.
fn receive(stream: &[u8], cuts: impl Iterator<Item = usize>, gate: &mut TestGate) -> Outcome {
    let mut intake = Intake::default();
    let mut came = Vec::new();
    let mut left = stream;
    let mut cuts = cuts
        .take(READ_COUNT_MAX)
        .chain(std::iter::repeat(usize::MAX));
    loop {
        loop {
            came.push(match intake.next(gate) {
                Ok(Step::Starved) => break,
                Ok(Step::Call(record)) => Came::Whole(record.into_owned()),
                Ok(Step::Large {
                    call,
                    payload,
                    tail,
                }) => {
                    assert!(tail.is_empty());
                    Came::InPlace(call, payload.to_vec())
                }
                Ok(Step::Skipped(answer)) => Came::Skipped(answer),
                Err(error) => return (came, Some(error)),
            });
        }
        hold_the_limits(&intake, gate);
        if left.is_empty() {
            return (came, None);
        }
        let cut = cuts.next().unwrap_or(usize::MAX);
        let piece = &left[..cut.clamp(1, left.len())];
        let read_bytes = match intake.space() {
            Space::Payload(payload) => payload.fill_from(piece),
            Space::Input(free) => {
                let read_bytes = piece.len().min(free.len());
                free[..read_bytes].copy_from_slice(&piece[..read_bytes]);
                intake.received(read_bytes);
                read_bytes
            }
        };
        assert!(read_bytes > 0, "there is always room");
        left = &left[read_bytes..];
    }
}

/// What is held is one record at most, with the room that a growing buffer takes.
fn hold_the_limits(intake: &Intake<Answer, LargeWrite>, gate: &TestGate) {
    let record_len_bytes_max = match gate.is_let_in {
        true => RECORD_LEN_BYTES_MAX as usize,
        false => INPUT_LEN_BYTES,
    };
    assert!(intake.held_bytes() <= 2 * record_len_bytes_max);
}

/// The same from the whole stream, with no thought of speed.
fn model(mut stream: &[u8], gate: &TestGate) -> Outcome {
    let mut came = Vec::new();
    while let Some((header, rest)) = FragmentHeader::split(stream) {
        match record(header, rest, gate) {
            Ok(Some((record, rest))) => {
                came.push(record);
                stream = rest;
            }
            Ok(None) => break,
            Err(error) => return (came, Some(error)),
        }
    }
    (came, None)
}

/// The record with this first header, and what follows it; `None` if it is not whole.
fn record<'s>(
    header: FragmentHeader,
    rest: &'s [u8],
    gate: &TestGate,
) -> Result<Option<(Came, &'s [u8])>, DecodeError> {
    let len = header.len_bytes as usize;
    let first_len = u64::from(header.len_bytes);
    check_len(first_len, RECORD_LEN_BYTES_MAX)?;
    if !header.last {
        return fragments(header, rest, gate);
    }
    let there = rest.get(..len).unwrap_or(rest);
    // What is too long to be kept must at least be a call, or there is nobody to answer.
    if FragmentHeader::LEN_BYTES + len > INPUT_LEN_BYTES
        && let Err(error) = decode_call(&mut Reader::new(there))
        && error != DecodeError::Truncated
    {
        return Err(error);
    }
    let whole = rest.split_at_checked(len);
    Ok(whole.map(|(record, rest)| (whole_record(record, gate), rest)))
}

fn whole_record(record: &[u8], gate: &TestGate) -> Came {
    if record.len() >= LARGE_LEN_BYTES_MIN
        && let Some((xid, args)) = write_of(record)
    {
        return match gate.refuses(&args.head) {
            true => Came::Skipped(Answer::Refused(xid)),
            false => Came::InPlace((xid, args.head), args.data.to_vec()),
        };
    }
    match record.first_chunk() {
        Some(xid) if FragmentHeader::LEN_BYTES + record.len() > INPUT_LEN_BYTES => {
            Came::Skipped(Answer::Garbage(u32::from_be_bytes(*xid)))
        }
        _ => Came::Whole(record.to_vec()),
    }
}

/// The WRITE that a record is, if it is one and nothing follows it.
fn write_of(record: &[u8]) -> Option<(u32, v3::WriteArgs<'_>)> {
    let mut from = Reader::new(record);
    let Ok(Incoming::Call(call)) = decode_call(&mut from) else {
        return None;
    };
    let what = (call.program, call.version, call.procedure);
    if what != (v3::PROGRAM, v3::VERSION, v3::Procedure::Write.number()) {
        return None;
    }
    let args = from.get().ok()?;
    from.rest().is_empty().then_some((call.xid, args))
}

fn fragments<'s>(
    first: FragmentHeader,
    mut rest: &'s [u8],
    gate: &TestGate,
) -> Result<Option<(Came, &'s [u8])>, DecodeError> {
    let len_bytes_max = match gate.is_let_in {
        true => RECORD_LEN_BYTES_MAX,
        false => INPUT_LEN_BYTES as u32,
    };
    let mut assembled = Vec::new();
    let mut header = first;
    for _ in 0..FRAGMENT_COUNT_MAX {
        let len_bytes = assembled.len() as u64 + u64::from(header.len_bytes);
        check_len(len_bytes, len_bytes_max)?;
        let Some((fragment, behind)) = rest.split_at_checked(header.len_bytes as usize) else {
            return Ok(None);
        };
        assembled.extend_from_slice(fragment);
        if header.last {
            return Ok(Some((Came::Whole(assembled), behind)));
        }
        let Some((next, behind)) = FragmentHeader::split(behind) else {
            return Ok(None);
        };
        (header, rest) = (next, behind);
    }
    Err(DecodeError::TooManyFragments {
        count_max: FRAGMENT_COUNT_MAX,
    })
}

fn check_len(len_bytes: u64, len_bytes_max: u32) -> Result<(), DecodeError> {
    match len_bytes > u64::from(len_bytes_max) {
        true => Err(DecodeError::RecordTooLong {
            len_bytes,
            len_bytes_max,
        }),
        false => Ok(()),
    }
}

/// Bytes that repeat late, so that what lands in a wrong place is seen.
static FILLING: [u8; 65_521] = {
    let mut bytes = [0; 65_521];
    let mut index = 0;
    while index < bytes.len() {
        bytes[index] = (index * 31 % 251) as u8 ^ (index >> 8) as u8;
        index += 1;
    }
    bytes
};

fn fill(stream: &mut Vec<u8>, mut len_bytes: usize) {
    while len_bytes > 0 {
        let piece = &FILLING[..len_bytes.min(FILLING.len())];
        stream.extend_from_slice(piece);
        len_bytes -= piece.len();
    }
}

/// The record of a WRITE.
fn write(stream: &mut Vec<u8>, steps: u16, odd: u8) {
    let payload_len = usize::from(steps) * STEP_LEN_BYTES + usize::from(odd & ODD_LEN);
    let payload_len = payload_len.min(v3::DATA_LEN_BYTES_MAX as usize);
    let is = |what: u8| odd & what != 0;
    let credential = [7; cairn_codec_rpc::rpc::AUTH_BODY_LEN_BYTES_MAX as usize];
    let procedure = match is(ODD_PROCEDURE) {
        true => v3::Procedure::Commit,
        false => v3::Procedure::Write,
    };
    let handle: &[u8] = match is(ODD_HANDLE) {
        true => &[REFUSED],
        false => &[b'f'; 64],
    };
    let mut record = Vec::new();
    let mut to = Writer::new(&mut record);
    to.put(&CallHeader {
        xid: u32::from(steps),
        program: v3::PROGRAM,
        version: v3::VERSION,
        procedure: procedure.number(),
        credential: match is(ODD_CREDENTIAL) {
            true => OpaqueAuth::sys(&credential),
            false => OpaqueAuth::NONE,
        },
        verifier: OpaqueAuth::NONE,
    });
    to.put(&v3::WriteHead {
        file: v3::FileHandle::new(handle).expect("it is short"),
        offset: 1,
        count_bytes: payload_len as u32,
        stable: v3::StableHow::Unstable,
    });
    to.u32(payload_len as u32 + u32::from(is(ODD_OPAQUE_LEN)));
    fill(&mut record, payload_len);
    record.extend_from_slice(xdr::padding(payload_len));
    let header = FragmentHeader {
        last: !is(ODD_FRAGMENT),
        len_bytes: record.len() as u32 + u32::from(is(ODD_RECORD_LEN)),
    };
    stream.extend_from_slice(&header.to_bytes());
    stream.append(&mut record);
}

/// The stream that the pieces describe.
fn stream_of(mut pieces: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((what, rest)) = pieces.split_first() {
        pieces = match (what & 3, rest) {
            (0, rest) => {
                let len = (usize::from(what >> 2) + 1).min(rest.len());
                stream.extend_from_slice(&rest[..len]);
                &rest[len..]
            }
            (1, [high, low, rest @ ..]) => {
                let len = usize::from(u16::from_be_bytes([*high, *low])) * STEP_LEN_BYTES;
                match what & 4 {
                    0 => fill(&mut stream, len),
                    _ => stream.resize(stream.len() + len, 0),
                }
                rest
            }
            (2, [high, low, odd, rest @ ..]) => {
                write(&mut stream, u16::from_be_bytes([*high, *low]), *odd);
                rest
            }
            (3, [high, mid, low, rest @ ..]) => {
                let header = FragmentHeader {
                    last: what & 4 != 0,
                    len_bytes: u32::from_be_bytes([0, *high, *mid, *low]),
                };
                stream.extend_from_slice(&header.to_bytes());
                rest
            }
            _ => break,
        };
        if stream.len() >= STREAM_LEN_BYTES_MAX {
            break;
        }
    }
    stream.truncate(STREAM_LEN_BYTES_MAX);
    stream
}

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((flags, rest)) = input.split_first() else {
        return;
    };
    let mut gate = TestGate {
        is_let_in: flags & 1 != 0,
    };
    let cut_count = usize::from(flags >> 1 & 7) + 1;
    let Some((cuts, pieces)) = rest.split_at_checked(cut_count) else {
        return;
    };
    let stream = stream_of(pieces);
    let want = model(&stream, &gate);
    assert_eq!(receive(&stream, std::iter::empty(), &mut gate), want);
    let cuts = cuts.iter().cycle().map(|cut| usize::from(*cut).pow(2) + 1);
    assert_eq!(receive(&stream, cuts, &mut gate), want);
}
