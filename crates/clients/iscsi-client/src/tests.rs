//! Sessions without a socket: what a target says, however it is cut.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_codec_iscsi::{DataIn, HEADER_LEN_BYTES, Header, Reply, Request, Residual, UNTAGGED};
use cairn_codec_scsi::{Key, Sense, code};
use proptest::prelude::*;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::wire::{Agreed, Answered, Call, SLICE_COUNT_MAX, Space, Transfer, Wire};

type Answer = oneshot::Receiver<Result<Answered, Error>>;

const FIRST_BURST: usize = 4096;
const SEGMENT: usize = 3000;

fn wire(window: u32) -> Wire {
    Wire::new(Agreed {
        immediate_data: true,
        first_burst_len_bytes: FIRST_BURST,
        send_segment_len_bytes: SEGMENT,
        lun: [0, 1, 0, 0, 0, 0, 0, 0],
        next_command: u32::MAX,
        max_command: u32::MAX.wrapping_add(window).wrapping_sub(1),
        expected_status: 10,
    })
}

fn submit(wire: &mut Wire, opcode: u8, transfer: Transfer) -> Answer {
    let (reply_to, reply) = oneshot::channel();
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    let call = Call {
        cdb,
        transfer,
        reply_to,
    };
    wire.submit(call, Instant::now());
    reply
}

/// What the session sends: requests with their data.
fn sent(wire: &mut Wire) -> Vec<(Request, Vec<u8>)> {
    let mut bytes = Vec::new();
    while !wire.outgoing.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); SLICE_COUNT_MAX];
        let count = wire.outgoing.slices(&mut slices);
        let part: Vec<u8> = slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        // Sockets take what they like.
        let taken = part.len().div_ceil(2);
        bytes.extend_from_slice(&part[..taken]);
        wire.outgoing.sent(taken);
    }
    let mut requests = Vec::new();
    let mut rest = &bytes[..];
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_LEN_BYTES>() {
        let header = Header(*header);
        let len = header.data_len_bytes();
        requests.push((header.request().expect("a request"), after[..len].to_vec()));
        rest = &after[len.next_multiple_of(4)..];
    }
    assert!(rest.is_empty());
    requests
}

/// The target says these bytes, in pieces of so many.
fn receive(wire: &mut Wire, mut bytes: &[u8], pieces: &[usize]) -> Result<(), Error> {
    let mut pieces = pieces.iter().cycle();
    while !bytes.is_empty() {
        let piece = (*pieces.next().expect("pieces")).clamp(1, bytes.len());
        let taken = match wire.incoming.space() {
            Space::InPlace(place) => {
                let taken = piece.min(place.len());
                place[..taken].copy_from_slice(&bytes[..taken]);
                wire.incoming.received_in_place(taken);
                taken
            }
            Space::Input(input, _) => {
                input.extend_from_slice(&bytes[..piece]);
                piece
            }
        };
        bytes = &bytes[taken..];
        wire.process(Instant::now())?;
    }
    Ok(())
}

fn said(reply: Reply, data: &[u8], max_command: u32) -> Vec<u8> {
    let mut bytes = reply.header(data.len(), 10, 0, max_command).to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn response(tag: u32, status: u8) -> Reply {
    Reply::Response {
        tag,
        response: 0,
        status,
        data_count: 0,
        residual: Residual::None,
    }
}

#[test]
fn a_write_is_sent_as_the_target_asks() {
    let mut wire = wire(4);
    let data: Bytes = (0..10_000_u32).map(|at| at as u8).collect();
    let mut answer = submit(&mut wire, 0x8a, Transfer::Write(data.clone()));
    let [(Request::Command(command), immediate)] = &sent(&mut wire)[..] else {
        panic!("one command");
    };
    assert!(command.writes && command.is_final && !command.reads);
    assert_eq!(command.expected_len_bytes, 10_000);
    assert_eq!(command.numbers.command, u32::MAX);
    // No more than a segment, which is less than the first burst.
    assert_eq!(immediate[..], data[..SEGMENT]);
    let ask = Reply::ReadyToTransfer {
        lun: [0; 8],
        tag: command.tag,
        target_tag: 77,
        number: 0,
        offset_bytes: SEGMENT as u32,
        len_bytes: 7000,
    };
    receive(&mut wire, &said(ask, &[], 5), &[7]).expect("taken");
    let mut at = SEGMENT;
    let pieces = sent(&mut wire);
    assert_eq!(pieces.len(), 3);
    for (number, (request, piece)) in pieces.iter().enumerate() {
        let want = Request::DataOut {
            is_final: number == 2,
            tag: command.tag,
            target_tag: 77,
            data_number: number as u32,
            offset_bytes: at as u32,
        };
        assert_eq!(*request, want);
        assert_eq!(piece[..], data[at..at + piece.len()]);
        at += piece.len();
    }
    assert_eq!(at, 10_000);
    assert!(answer.try_recv().is_err());
    receive(&mut wire, &said(response(command.tag, 0), &[], 5), &[48]).expect("taken");
    assert!(answer.try_recv().expect("an answer").is_ok());
    assert_eq!(wire.under_way_count(), 0);
}

#[test]
fn a_command_that_fails_says_why() {
    let mut wire = wire(4);
    let mut answer = submit(&mut wire, 0x8a, Transfer::Write(vec![1; 512].into()));
    let tag = match sent(&mut wire)[0].0 {
        Request::Command(command) => command.tag,
        other => panic!("{other:?}"),
    };
    let sense = Sense::new(Key::DataProtect, code::SPACE_ALLOCATION_FAILED).fixed();
    let mut data = (sense.len() as u16).to_be_bytes().to_vec();
    data.extend(sense);
    receive(&mut wire, &said(response(tag, 2), &data, 5), &[5]).expect("taken");
    let error = answer
        .try_recv()
        .expect("an answer")
        .err()
        .expect("an error");
    assert!(error.is_answer());
    assert!(error.to_string().contains("no space left"), "{error}");
}

#[test]
fn commands_wait_for_the_window_and_questions_are_answered() {
    let mut wire = wire(2);
    let _answers: Vec<Answer> = (0..5)
        .map(|_| submit(&mut wire, 0, Transfer::None))
        .collect();
    let numbers = |requests: &[(Request, Vec<u8>)]| -> Vec<u32> {
        let number = |(request, _): &(Request, Vec<u8>)| match request {
            Request::Command(command) => command.numbers.command,
            other => panic!("{other:?}"),
        };
        requests.iter().map(number).collect()
    };
    assert_eq!(numbers(&sent(&mut wire)), [u32::MAX, 0]);
    let ask = Reply::NopIn {
        lun: [0; 8],
        tag: UNTAGGED,
        target_tag: 3,
    };
    receive(&mut wire, &said(ask, &[], 2), &[48]).expect("taken");
    let requests = sent(&mut wire);
    let Request::NopOut {
        tag, target_tag, ..
    } = requests[0].0
    else {
        panic!("no answer");
    };
    assert_eq!((tag, target_tag), (UNTAGGED, 3));
    assert_eq!(numbers(&requests[1..]), [1, 2]);
    assert!(wire.is_overdue(
        Instant::now() + Duration::from_secs(2),
        Duration::from_secs(1)
    ));
    wire.fail_all(&Error::Closed);
    assert_eq!(wire.under_way_count(), 0);
}

#[test]
fn targets_that_lie_end_the_session() {
    let data_in = |tag, offset_bytes| {
        Reply::DataIn(DataIn {
            is_final: true,
            status: None,
            tag,
            number: 0,
            offset_bytes,
        })
    };
    let ask = |offset_bytes, len_bytes| Reply::ReadyToTransfer {
        lun: [0; 8],
        tag: 1,
        target_tag: 1,
        number: 0,
        offset_bytes,
        len_bytes,
    };
    let cases = [
        ("unknown tag", false, data_in(9, 0), 4),
        ("data for a write", true, data_in(1, 0), 4),
        ("past the end", false, data_in(1, 510), 4),
        ("far past the end", false, data_in(1, u32::MAX), 4),
        ("asks a read", false, ask(0, 4), 0),
        ("asks for too much", true, ask(500, 13), 0),
        ("asks far away", true, ask(u32::MAX, u32::MAX), 0),
        ("asks for nothing", true, ask(0, 0), 0),
    ];
    for (what, is_write, reply, len) in cases {
        let mut wire = wire(4);
        let transfer = match is_write {
            true => Transfer::Write(vec![0; 512].into()),
            false => Transfer::Read(AlignedBuf::zeroed(512)),
        };
        let _answer = submit(&mut wire, 0, transfer);
        let bytes = said(reply, &vec![0; len], 5);
        assert!(receive(&mut wire, &bytes, &[48]).is_err(), "{what}");
    }
}

proptest! {
    #[test]
    fn a_read_is_whole_however_it_comes(
        len in 1_usize..60_000,
        segments in prop::collection::vec(1_usize..9000, 1..8),
        pieces in prop::collection::vec(1_usize..5000, 1..8),
    ) {
        let mut wire = wire(4);
        let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let mut answer = submit(&mut wire, 0x88, Transfer::Read(AlignedBuf::zeroed(len)));
        let mut bytes = Vec::new();
        let (mut at, mut number) = (0, 0);
        for segment in segments.iter().cycle() {
            let end = len.min(at + segment);
            let reply = Reply::DataIn(DataIn {
                is_final: end == len,
                status: (end == len).then_some((0, Residual::None)),
                tag: 1,
                number,
                offset_bytes: at as u32,
            });
            bytes.extend(said(reply, &data[at..end], 5));
            (at, number) = (end, number + 1);
            if at == len {
                break;
            }
        }
        prop_assert!(receive(&mut wire, &bytes, &pieces).is_ok());
        let answered = answer.try_recv().expect("an answer").expect("good");
        prop_assert_eq!(answered.received_bytes, len);
        prop_assert_eq!(&answered.buffer.expect("a buffer")[..], &data[..]);
    }

    #[test]
    fn any_bytes_are_taken_or_end_the_session(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        opcode in prop::sample::select(vec![0x20_u8, 0x21, 0x22, 0x25, 0x31, 0x32, 0x3f]),
        pieces in prop::collection::vec(1_usize..100, 1..4),
    ) {
        let mut wire = wire(4);
        let _read = submit(&mut wire, 0, Transfer::Read(AlignedBuf::zeroed(700)));
        let _write = submit(&mut wire, 0, Transfer::Write(vec![0; 700].into()));
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = opcode;
        }
        let _ = receive(&mut wire, &bytes, &pieces);
    }
}
