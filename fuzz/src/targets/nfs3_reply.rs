//! A reply as a client reads it: the first two bytes say which call it answers, then come the RPC
//! header and the results.

use crate::round_trip;
use cairn_codec_nfs::{mount, v3};
use cairn_codec_rpc::{AcceptStatus, Reader, ReplyBody, ReplyHeader, portmap, rpcbind};

/// Tries one input.
pub fn run(input: &[u8]) {
    let [program, number, reply @ ..] = input else {
        return;
    };
    let mut from = Reader::new(reply);
    let Ok(header) = from.get::<ReplyHeader<'_>>() else {
        return;
    };
    round_trip!(reply, |from| from.get::<ReplyHeader<'_>>());
    if let ReplyBody::Accepted {
        status: AcceptStatus::Success,
        ..
    } = header.body
    {
        results(*program, u32::from(*number), from.rest());
    }
}

fn results(program: u8, number: u32, results: &[u8]) {
    match program % 5 {
        0 => {
            if let Some(procedure) = v3::Procedure::from_u32(number) {
                nfs(procedure, results);
            }
        }
        1 | 2 => {
            let version = if program % 5 == 1 {
                mount::VERSION_3
            } else {
                mount::VERSION_1
            };
            if let Some(procedure) = mount::Procedure::from_u32(number) {
                round_trip!(results, |from| mount::Reply::decode(
                    version, procedure, from
                ));
            }
        }
        3 => {
            if let Some(procedure) = portmap::Procedure::from_u32(number) {
                round_trip!(results, |from| portmap::Reply::decode(procedure, from));
            }
        }
        _ => {
            if let Some(procedure) = rpcbind::Procedure::from_u32(number) {
                round_trip!(results, |from| rpcbind::Reply::decode(procedure, from));
            }
        }
    }
}

fn nfs(procedure: v3::Procedure, results: &[u8]) {
    let reply = round_trip!(results, |from| v3::Reply::decode(procedure, from));
    let Ok(prefix) = v3::decode_read_prefix(results) else {
        return;
    };
    // Whoever reads only the beginning must see the same READ as who reads all.
    if let Some(v3::Reply::Read(read)) = reply {
        let prefix = prefix.expect("the whole has a beginning");
        match (prefix, read) {
            (Ok(prefix), Ok(read)) => {
                assert_eq!(prefix.head, read.head);
                let data = &results[prefix.data_offset..][..prefix.data_len_bytes as usize];
                assert_eq!(data, &*read.data);
            }
            (Err(prefix), Err(read)) => assert_eq!(prefix, read),
            (prefix, read) => panic!("{prefix:?} and {read:?}"),
        }
    }
}
