use cairn_codec_rpc::{Rejection, Writer};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;

/// What a caller heard, whichever way its data came.
#[derive(Clone, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// What stands before READ data, and the data.
    Data(String, Vec<u8>),
    /// Results that are no READ data.
    Results(Vec<u8>),
    Failed(String),
}

// Whole payloads would make failures unreadable.
impl std::fmt::Debug for Heard {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => to.write_str("Nothing"),
            Self::Data(head, data) => write!(to, "Data({head}, {} bytes)", data.len()),
            Self::Results(results) => write!(to, "Results({} bytes)", results.len()),
            Self::Failed(error) => write!(to, "Failed({error})"),
        }
    }
}

/// Reads results as those of a READ.
fn read_data(results: &[u8]) -> Option<Heard> {
    let mut from = Reader::new(results);
    let read: v3::ReadReply<'_> = from.get().ok()?;
    let read = read.ok().filter(|_| from.rest().is_empty())?;
    Some(Heard::Data(format!("{:?}", read.head), read.data.to_vec()))
}

fn heard(mut reply: oneshot::Receiver<Result<Reply, Error>>) -> Heard {
    let reply = match reply.try_recv() {
        Err(_) => return Heard::Nothing,
        Ok(Err(error)) => return Heard::Failed(error.to_string()),
        Ok(Ok(reply)) => reply,
    };
    if let Some(ReplyBuffer::Received(data)) = &reply.buffer {
        let padding = xdr::padding(data.len());
        let results = [&reply.results[..], data, padding].concat();
        return read_data(&results).expect("only READ data is received in place");
    }
    read_data(&reply.results).unwrap_or_else(|| Heard::Results(reply.results.to_vec()))
}

/// What the callers hear whose calls have the numbers 0, 1, 2, ... and buffers of such lengths, when the
/// server sends `stream`, of which reads bring as many bytes as `cuts` say, or less where there is less
/// room; and why the stream was given up, if it was.
fn receive(
    stream: &[u8],
    cuts: &[usize],
    buffer_lens: &[usize],
) -> (Vec<Heard>, Option<DecodeError>) {
    let mut wire = Wire::new();
    let mut replies = Vec::new();
    for (xid, len_bytes) in buffer_lens.iter().enumerate() {
        let (reply_to, reply) = oneshot::channel();
        let call = Call {
            xid: xid as u32,
            name: "read",
            head: Bytes::new(),
            payload: Bytes::new(),
            buffer: (*len_bytes > 0).then(|| AlignedBuf::zeroed(*len_bytes)),
            reply_to,
        };
        wire.submit(call, Duration::ZERO);
        replies.push(reply);
    }
    let mut left = stream;
    let mut cuts = cuts.iter().cycle();
    let mut end = None;
    while !left.is_empty() {
        let cut = *cuts.next().expect("there are some");
        let piece = &left[..cut.clamp(1, left.len())];
        let read_bytes = match wire.incoming.space() {
            Space::InPlace { rest } => {
                let read_bytes = piece.len().min(rest.len());
                rest[..read_bytes].copy_from_slice(&piece[..read_bytes]);
                read_bytes
            }
            Space::Input {
                input,
                len_bytes_max,
            } => {
                let read_bytes = piece.len().min(len_bytes_max);
                input.extend_from_slice(&piece[..read_bytes]);
                read_bytes
            }
        };
        assert!(read_bytes > 0, "there is always room");
        left = &left[read_bytes..];
        wire.incoming.received(read_bytes);
        if let Err(error) = wire.process() {
            end = Some(error);
            break;
        }
    }
    (replies.into_iter().map(heard).collect(), end)
}

fn record(body: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    let start = to.begin_record();
    body(&mut to);
    to.finish_record(start, 0);
    bytes
}

fn data(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|index| (index * 31 % 251) as u8)
        .collect()
}

/// READ data behind some header.
fn read_reply(header: &ReplyHeader<'_>, len_bytes: usize) -> Vec<u8> {
    let head = v3::ReadHead {
        attributes: None,
        count_bytes: len_bytes as u32,
        eof: false,
    };
    record(|to| {
        to.put(header);
        v3::encode_read_head(to, &head);
        to.raw(&data(len_bytes));
        to.raw(xdr::padding(len_bytes));
    })
}

/// An answer to call `xid`: its record, and what the caller should hear.
fn answer(kind: u8, xid: u32, len_bytes: usize) -> (Vec<u8>, Heard) {
    let success = ReplyHeader::accepted(xid, AcceptStatus::Success);
    match kind % 4 {
        0 => {
            let head = v3::ReadHead {
                attributes: None,
                count_bytes: len_bytes as u32,
                eof: false,
            };
            let heard = Heard::Data(format!("{head:?}"), data(len_bytes));
            (read_reply(&success, len_bytes), heard)
        }
        1 => {
            let failure: v3::ReadReply<'_> = Err(v3::ErrorStatus::Stale.into());
            let mut results = Vec::new();
            Writer::new(&mut results).put(&failure);
            let bytes = record(|to| {
                to.put(&success);
                to.put(&failure);
            });
            (bytes, Heard::Results(results))
        }
        2 => {
            let rejection = Rejection::RpcMismatch { low: 2, high: 2 };
            let error = Error::Rejected {
                procedure: "read",
                reason: Rejected::Denied(rejection),
            };
            let bytes = record(|to| to.put(&ReplyHeader::denied(xid, rejection)));
            (bytes, Heard::Failed(error.to_string()))
        }
        // What looks like READ data behind a refusal is none.
        _ => {
            let status = AcceptStatus::SystemError;
            let error = Error::Rejected {
                procedure: "read",
                reason: Rejected::Accept(status),
            };
            let bytes = read_reply(&ReplyHeader::accepted(xid, status), len_bytes);
            (bytes, Heard::Failed(error.to_string()))
        }
    }
}

/// The record in fragments of so many bytes.
fn in_fragments(record: &[u8], len_bytes: usize) -> Vec<u8> {
    let body = &record[FragmentHeader::LEN_BYTES..];
    let count = body.len().div_ceil(len_bytes);
    let mut bytes = Vec::new();
    for (index, piece) in body.chunks(len_bytes).enumerate() {
        let header = FragmentHeader {
            last: index + 1 == count,
            len_bytes: piece.len() as u32,
        };
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(piece);
    }
    bytes
}

#[test]
fn what_follows_a_refusal_is_no_data() {
    let len_bytes = 2 * IN_PLACE_LEN_BYTES_MIN;
    let (stream, want) = answer(3, 0, len_bytes);
    for cuts in [&[usize::MAX][..], &[100, usize::MAX]] {
        let heard = receive(&stream, cuts, &[len_bytes]);
        assert_eq!(heard, (vec![want.clone()], None), "{cuts:?}");
    }
}

/// Answers with the order in which they come, lengths of buffers and of data around those that matter.
fn answers() -> impl Strategy<Value = Vec<(u8, usize, usize, bool)>> {
    let len = prop_oneof![
        0usize..100,
        IN_PLACE_LEN_BYTES_MIN - 200..IN_PLACE_LEN_BYTES_MIN + 200,
        0usize..200_000,
    ];
    prop::collection::vec((0u8..4, len.clone(), len, prop::bool::weighted(0.2)), 1..6)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let cut = prop_oneof![1usize..5, 1usize..500, 1usize..200_000];
    prop::collection::vec(cut, 1..20)
}

proptest! {
    #[test]
    fn any_cut_gives_the_same(answers in answers(), cuts in cuts(), backwards: bool) {
        let mut stream = Vec::new();
        let mut want = Vec::new();
        let mut buffer_lens = Vec::new();
        for (index, (kind, data_len, more_len, fragmented)) in answers.into_iter().enumerate() {
            let (mut bytes, heard) = answer(kind, index as u32, data_len);
            if fragmented {
                bytes = in_fragments(&bytes, more_len / 3 + bytes.len() / 1000 + 20);
            }
            // A buffer may be larger than what comes, or too small for it.
            buffer_lens.push(match more_len % 3 {
                0 => data_len,
                1 => data_len + more_len,
                _ => more_len,
            });
            want.push(heard);
            match backwards {
                true => stream.splice(0..0, bytes).for_each(drop),
                false => stream.extend(bytes),
            }
        }
        prop_assert_eq!(receive(&stream, &cuts, &buffer_lens), (want, None));
    }

    #[test]
    fn any_cut_of_damaged_streams_gives_the_same(
        answers in answers(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cuts in cuts(),
    ) {
        let parts: Vec<Vec<u8>> = answers
            .iter()
            .enumerate()
            .map(|(index, (kind, data_len, ..))| answer(*kind, index as u32, *data_len).0)
            .collect();
        let buffer_lens: Vec<usize> = answers.iter().map(|(_, _, len, _)| *len).collect();
        let mut stream = parts.concat();
        // In the heads, where it matters: behind them is data.
        let mut start = 0;
        for ((at, value), part) in damage.iter().zip(parts.iter().cycle()) {
            let at = start + at.index(part.len().min(60));
            stream[at] = *value;
            start = (start + part.len()) % stream.len();
        }
        let want = receive(&stream, &[usize::MAX], &buffer_lens);
        prop_assert_eq!(receive(&stream, &cuts, &buffer_lens), want);
    }
}
