//! COMPOUNDs as a whole: limits, faults in the middle, payloads that are not copied.

use super::*;

fn compound(minor_version: u32, op_count: u32, ops: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    encode_compound_head(&mut to, b"tag", minor_version, op_count);
    ops.iter().for_each(|word| to.u32(*word));
    bytes
}

const TAG: Tag<'static> = Opaque(b"tag");

#[test]
fn heads_are_taken_or_refused() {
    let refused = |status| Err(CompoundFault::Refused { tag: TAG, status });
    let cases = [
        ("none", 1, 0, Ok(0)),
        ("version 4.0", 0, 1, refused(ErrorStatus::MinorVersMismatch)),
        ("version 4.3", 3, 1, refused(ErrorStatus::MinorVersMismatch)),
        // The version comes before all else.
        ("both", 3, u32::MAX, refused(ErrorStatus::MinorVersMismatch)),
        ("at the limit", 2, OP_COUNT_MAX, Ok(OP_COUNT_MAX)),
        (
            "one more",
            2,
            OP_COUNT_MAX + 1,
            refused(ErrorStatus::TooManyOps),
        ),
        ("ten thousand", 2, 10_000, refused(ErrorStatus::TooManyOps)),
        ("4 billion", 1, u32::MAX, refused(ErrorStatus::TooManyOps)),
    ];
    for (name, minor_version, op_count, want) in cases {
        let bytes = compound(minor_version, op_count, &[]);
        let got = Compound::decode(&bytes).map(|call| call.op_count);
        assert_eq!(got, want, "{name}");
        let mut bytes = bytes;
        // The callback has its ident before the count.
        let count_offset = bytes.len() - 4;
        bytes.splice(count_offset..count_offset, [0; 4]);
        let got = CbCompound::decode(&bytes).map(|call| call.op_count);
        assert_eq!(got, want, "{name}");
    }
    let long = wire(&[Words(&[u32::MAX, 0])]);
    let too_long = CompoundFault::Malformed(TooLong {
        len_bytes: u32::MAX,
        len_bytes_max: TEXT_LEN_BYTES_MAX,
    });
    assert_eq!(Compound::decode(&long).map(drop), Err(too_long));
}

/// One operation is read before the bad one, and none after it.
#[test]
fn bad_operations_have_their_answer() {
    let illegal = |number| {
        (
            BadOp::Illegal { number },
            Op::Illegal,
            ErrorStatus::OpIllegal,
        )
    };
    let malformed =
        |number, op, error| (BadOp::Malformed { number, error }, op, ErrorStatus::BadXdr);
    let too_long = |len_bytes, len_bytes_max| TooLong {
        len_bytes,
        len_bytes_max,
    };
    type Answer = (BadOp, Op, ErrorStatus);
    let cases: &[(&str, u32, &[u32], Answer)] = &[
        ("number 0", 2, &[0], illegal(0)),
        ("number 2", 1, &[2, 1], illegal(2)),
        ("after the last", 2, &[76], illegal(76)),
        ("OP_ILLEGAL itself", 2, &[10_044], illegal(10_044)),
        ("of version 4.2", 1, &[59, 0], illegal(59)),
        ("xattrs in version 4.1", 1, &[72, 0], illegal(72)),
        (
            "nothing",
            2,
            &[],
            (BadOp::Missing, Op::Illegal, ErrorStatus::BadXdr),
        ),
        ("cut", 2, &[3], malformed(3, Op::Access, Truncated)),
        (
            "cut, and not to be implemented",
            1,
            &[30, 0],
            (
                BadOp::Malformed {
                    number: 30,
                    error: Truncated,
                },
                Op::Renew,
                ErrorStatus::NotSupp,
            ),
        ),
        (
            "handle of 129 bytes",
            2,
            &[22, 129],
            malformed(22, Op::PutFh, too_long(129, 128)),
        ),
        (
            "name of 4 GiB",
            2,
            &[15, u32::MAX],
            malformed(
                15,
                Op::Lookup,
                too_long(u32::MAX, NAME_DECODE_LEN_BYTES_MAX),
            ),
        ),
        (
            "bitmap of 2^32 words",
            2,
            &[9, u32::MAX],
            malformed(9, Op::GetAttr, TooMany { count_max: 8 }),
        ),
        (
            "bitmap of 9 words",
            2,
            &[9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            malformed(9, Op::GetAttr, TooMany { count_max: 8 }),
        ),
        (
            "2^32 state ids",
            2,
            &[55, u32::MAX],
            malformed(
                55,
                Op::TestStateId,
                TooMany {
                    count_max: STATE_ID_COUNT_MAX,
                },
            ),
        ),
        (
            "more state ids than bytes",
            2,
            &[55, STATE_ID_COUNT_MAX, 0, 0, 0, 0],
            malformed(55, Op::TestStateId, Truncated),
        ),
        (
            "a boolean of 2",
            2,
            &[58, 2],
            malformed(
                58,
                Op::ReclaimComplete,
                BadValue {
                    what: "bool",
                    value: 2,
                },
            ),
        ),
        (
            "a claim of 7",
            2,
            &[18, 0, 1, 0, 0, 0, 0, 0, 7],
            malformed(
                18,
                Op::Open,
                BadValue {
                    what: "open_claim_type4",
                    value: 7,
                },
            ),
        ),
        (
            "attributes longer than the call",
            2,
            &[34, 0, 0, 0, 0, 1, 0x10, 65_536, 0, 0],
            malformed(34, Op::SetAttr, Truncated),
        ),
        (
            "referring to flavors of 2^32 groups",
            2,
            &[40, 0, 1, 1, 0, 0, 0, 0, u32::MAX],
            malformed(40, Op::BackchannelCtl, TooMany { count_max: 16 }),
        ),
    ];
    for (name, minor_version, words, (want, op, status)) in cases {
        // PUTROOTFH, the bad one, and one that nobody reads.
        let ops = [&[24][..], words].concat();
        let bytes = compound(*minor_version, 3, &ops);
        let call = Compound::decode(&bytes).unwrap();
        let mut ops = call.ops();
        assert_eq!(ops.next(), Some(Ok(OpArgs::PutRootFh)), "{name}");
        assert_eq!(ops.next(), Some(Err(*want)), "{name}");
        assert_eq!(ops.next(), None, "{name}");
        assert_eq!(
            want.result(*minor_version),
            OpResult::failed(*op, *status),
            "{name}"
        );
        let permitted = permits(*op, *minor_version, *status);
        assert!(permitted, "{name}: {op:?} may not answer {status:?}");
    }
}

/// Ten thousand operations cost what their bytes cost; the last is found.
#[test]
fn many_operations_are_read_one_by_one() {
    let words = vec![24; 10_000];
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word: &u32| word.to_be_bytes())
        .collect();
    let mut ops = Ops::<OpArgs<'_>>::new(1, 10_001, Reader::new(&bytes));
    assert!(
        ops.by_ref()
            .take(10_000)
            .all(|op| op == Ok(OpArgs::PutRootFh))
    );
    assert_eq!(ops.left(), 1);
    assert_eq!(ops.next(), Some(Err(BadOp::Missing)));
    assert_eq!(ops.next(), None);
}

#[test]
fn what_follows_the_operations_is_left() {
    let bytes = compound(1, 1, &[24, 7]);
    let mut ops = Compound::decode(&bytes).unwrap().ops();
    assert_eq!(ops.by_ref().count(), 1);
    assert_eq!(ops.rest(), [0, 0, 0, 7]);
}

fn results(bytes: &[u8]) -> (Status, Vec<OpResult<'_>>) {
    let reply = CompoundReply::<OpResult<'_>>::decode(bytes).unwrap();
    assert_eq!(reply.tag, TAG);
    let results: Result<Vec<_>, _> = reply.results().collect();
    (reply.status, results.unwrap())
}

#[test]
fn replies_are_written_result_by_result() {
    let mut buf = b"before".to_vec();
    let mut reply = ReplyWriter::new(&mut buf, b"tag");
    reply.push(&OpResult::PutRootFh(Ok(())));
    let status = reply.push_with(Op::GetFh, |to| {
        to.put(&Handle::from(&b"fh"[..]));
        Ok(())
    });
    assert_eq!(status, Ok(()));
    // The reply holds nothing of a body that failed.
    let status = reply.push_with(Op::ReadDir, |to| {
        to.raw(&[9; 64]);
        Err(ErrorStatus::TooSmall)
    });
    assert_eq!(status, Err(ErrorStatus::TooSmall));
    assert_eq!(reply.result_count(), 3);
    let len_bytes = reply.len_bytes();
    assert_eq!(&buf[..6], b"before");
    assert_eq!(buf.len(), 6 + len_bytes);
    let want = vec![
        OpResult::PutRootFh(Ok(())),
        OpResult::GetFh(Ok(Opaque(b"fh"))),
        OpResult::ReadDir(Err(ErrorStatus::TooSmall)),
    ];
    assert_eq!(results(&buf[6..]), (Err(ErrorStatus::TooSmall), want));
}

#[test]
fn the_last_result_can_be_replaced() {
    let mut buf = Vec::new();
    let mut reply = ReplyWriter::new(&mut buf, b"tag");
    reply.push(&OpResult::PutRootFh(Ok(())));
    reply.push(&OpResult::ReadLink(Ok(Opaque(&[7; 5000]))));
    reply.replace_last(&OpResult::failed(Op::ReadLink, ErrorStatus::RepTooBig));
    let want = vec![
        OpResult::PutRootFh(Ok(())),
        OpResult::ReadLink(Err(ErrorStatus::RepTooBig)),
    ];
    assert_eq!(results(&buf), (Err(ErrorStatus::RepTooBig), want));

    // So can a READ whose payload is elsewhere: nothing of it is counted any more.
    let mut buf = Vec::new();
    let mut reply = ReplyWriter::new(&mut buf, b"tag");
    reply.push_read_head(false, 5);
    reply.push_read_head(true, 70_001);
    let len_bytes = reply.len_bytes();
    reply.replace_last(&OpResult::failed(Op::Read, ErrorStatus::RepTooBig));
    // Of the READ that is gone: the end of file, the length, and the payload with its padding.
    assert_eq!(reply.len_bytes(), len_bytes - 4 - 4 - 70_004);
}

#[test]
fn a_refusal_has_no_results() {
    let mut buf = Vec::new();
    ReplyWriter::new(&mut buf, b"tag").refuse(ErrorStatus::MinorVersMismatch);
    assert_eq!(
        buf,
        wire(&[Words(&[10_021, 3]), Bytes(b"tag"), Words(&[0])])
    );
    assert_eq!(results(&buf), (Err(ErrorStatus::MinorVersMismatch), vec![]));
}

#[test]
fn a_reply_that_lies_about_its_results_is_refused() {
    let mut bytes = wire(&[Words(&[0, 3]), Bytes(b"tag"), Words(&[u32::MAX, 24, 0])]);
    let read = |bytes: &[u8]| {
        let reply = CompoundReply::<OpResult<'_>>::decode(bytes).unwrap();
        reply.results().map(|it| it.map(drop)).collect::<Vec<_>>()
    };
    assert_eq!(read(&bytes), [Ok(()), Err(Truncated)]);
    bytes.extend_from_slice(&99u32.to_be_bytes());
    let bad = BadValue {
        what: "nfs_opnum4",
        value: 99,
    };
    assert_eq!(read(&bytes), [Ok(()), Err(bad)]);
}

#[test]
fn longest_prefixes_are_as_long_as_we_say() {
    let tag = [b't'; TEXT_LEN_BYTES_MAX as usize];
    let handle = [b'h'; HANDLE_LEN_BYTES_MAX as usize];
    let mut source = Source::new(vec![1; 40]);
    let ops = [
        OpArgs::Sequence(source.sequence_args()),
        OpArgs::PutFh(Opaque(&handle)),
        OpArgs::Write(WriteArgs {
            head: source.write_head4(),
            data: Opaque(b""),
        }),
    ];
    let mut bytes = Vec::new();
    encode_compound(&mut Writer::new(&mut bytes), &tag, 2, &ops);
    assert_eq!(bytes.len(), WRITE_PREFIX_LEN_BYTES_MAX);
    assert!(matches!(decode_write_prefix(&bytes), Prefix::Found(_)));

    let mut buf = Vec::new();
    let mut reply = ReplyWriter::new(&mut buf, &tag);
    reply.push(&OpResult::Sequence(Ok(source.sequence_ok())));
    reply.push(&OpResult::PutFh(Ok(())));
    reply.push_read_head(true, 0);
    assert_eq!(buf.len(), READ_PREFIX_LEN_BYTES_MAX);
    assert!(matches!(decode_read_prefix(&buf), Prefix::Found(_)));
}

#[test]
fn other_forms_are_no_prefix() {
    let sequence = [53, 0, 0, 0, 0, 1, 2, 3, 0];
    let write = [38, 0, 0, 0, 0, 0, 0, 2, DATA_LEN_BYTES_MAX + 1];
    let put_fh = [22, 4, 0];
    let call = |minor, ops: &[&[u32]]| compound(minor, 3, &ops.concat());
    let cases = [
        ("version 4.0", call(0, &[&sequence, &put_fh])),
        ("no sequence", call(1, &[&put_fh, &put_fh])),
        ("no handle", call(1, &[&sequence, &[24]])),
        ("a read", call(1, &[&sequence, &put_fh, &[25]])),
        ("too long", call(1, &[&sequence, &put_fh, &write])),
        ("two operations", compound(1, 2, &sequence)),
        (
            "too many operations",
            compound(1, OP_COUNT_MAX + 1, &sequence),
        ),
    ];
    for (name, bytes) in cases {
        assert_eq!(decode_write_prefix(&bytes), Prefix::Other, "{name}");
    }
    let failed = wire(&[Words(&[22, 3]), Bytes(b"tag"), Words(&[1, 53, 22])]);
    assert_eq!(decode_read_prefix(&failed), Prefix::Other);
}

proptest! {
    /// A COMPOUND of any operations is read as it was written, and cut anywhere it is refused.
    #[test]
    fn compounds_round_trip(choices in choices(), numbers: Vec<prop::sample::Index>) {
        let ops: Vec<Op> = numbers.iter().take(6).map(|at| Op::ALL[at.index(Op::ALL.len())]).collect();
        let ops: Vec<Op> = ops.into_iter().filter(|op| *op != Op::Illegal).collect();
        let mut source = Source::new(choices);
        let args: Vec<_> = ops.iter().map(|op| source.op_args(*op)).collect();
        let mut bytes = Vec::new();
        encode_compound(&mut Writer::new(&mut bytes), b"tag", 2, &args);
        let call = Compound::decode(&bytes).unwrap();
        let read: Result<Vec<_>, _> = call.ops().collect();
        prop_assert_eq!(read.as_ref(), Ok(&args));
        for len in 0..bytes.len() {
            if let Ok(call) = Compound::decode(&bytes[..len]) {
                prop_assert!(call.ops().any(|op| op.is_err()));
                let good = call.ops().take_while(|op| op.is_ok()).count();
                let read: Vec<_> = call.ops().take(good).map(Result::unwrap).collect();
                prop_assert_eq!(&read[..], &args[..good]);
            }
        }

        let all: Vec<_> = ops.iter().map(|op| source.op_result(*op)).collect();
        let mut buf = Vec::new();
        let mut reply = ReplyWriter::new(&mut buf, b"tag");
        all.iter().for_each(|result| reply.push(result));
        let status = all.last().map_or(Ok(()), OpResult::status);
        prop_assert_eq!(results(&buf), (status, all));
    }

    /// Head, payload, padding and what follows, sent one after the other, are the message; its beginning, however
    /// much of it, says where the payload is.
    #[test]
    fn write_is_the_same_in_pieces(choices in choices(), data: Vec<u8>, asks: bool) {
        let mut source = Source::new(choices);
        let file = [7; 20];
        let mut ops = vec![
            OpArgs::Sequence(source.sequence_args()),
            OpArgs::PutFh(Opaque(&file)),
            OpArgs::Write(WriteArgs { head: source.write_head4(), data: Opaque(&data) }),
        ];
        if asks {
            ops.push(OpArgs::GetAttr(Attr::mask(&[Attr::Size])));
        }
        let mut bytes = Vec::new();
        encode_compound(&mut Writer::new(&mut bytes), b"tag", 1, &ops);
        let Prefix::Found(found) = decode_write_prefix(&bytes) else {
            panic!("a WRITE is found");
        };
        for len in 0..=bytes.len() {
            let want = match len >= found.data_offset {
                true => Prefix::Found(found.clone()),
                false => Prefix::More,
            };
            prop_assert_eq!(decode_write_prefix(&bytes[..len]), want);
        }
        prop_assert_eq!(found.data_len_bytes as usize, data.len());
        let (payload, rest) = bytes[found.data_offset..].split_at(data.len());
        prop_assert_eq!(payload, &data);
        prop_assert_eq!(OpArgs::Sequence(found.sequence), ops[0].clone());
        prop_assert_eq!(OpArgs::PutFh(found.file), ops[1].clone());
        let write = WriteArgs { head: found.head, data: Opaque(payload) };
        prop_assert_eq!(OpArgs::Write(write), ops[2].clone());
        let rest = Reader::new(&rest[padding(data.len()).len()..]);
        let rest = Ops::<OpArgs<'_>>::new(found.minor_version, found.op_count - 3, rest);
        let rest: Result<Vec<_>, _> = rest.collect();
        prop_assert_eq!(rest.unwrap(), &ops[3..]);
    }

    #[test]
    fn read_is_the_same_in_pieces(choices in choices(), data: Vec<u8>, eof: bool, asks: bool) {
        let sequence = Source::new(choices).sequence_ok();
        let mut all = vec![
            OpResult::Sequence(Ok(sequence)),
            OpResult::PutFh(Ok(())),
            OpResult::Read(Ok(ReadOk { eof, data: Opaque(&data) })),
        ];
        let mut buf = Vec::new();
        let mut reply = ReplyWriter::new(&mut buf, b"tag");
        reply.push(&all[0]);
        reply.push(&all[1]);
        let place = reply.push_read_head(eof, data.len() as u32);
        if asks {
            all.push(OpResult::GetAttr(Err(ErrorStatus::Delay)));
            reply.push(&all[3]);
        }
        let len_bytes = reply.len_bytes();
        let payload = [&data[..], padding(data.len())].concat();
        buf.splice(place.offset..place.offset, payload);
        prop_assert_eq!(buf.len(), len_bytes);
        prop_assert_eq!(results(&buf).1, all);

        if asks {
            prop_assert_eq!(decode_read_prefix(&buf), Prefix::Other, "it failed");
            return Ok(());
        }
        let found = ReadPrefix {
            tag: TAG,
            result_count: 3,
            sequence,
            eof,
            data_offset: place.offset,
            data_len_bytes: data.len() as u32,
        };
        for len in 0..=buf.len() {
            let want = match len >= place.offset {
                true => Prefix::Found(found.clone()),
                false => Prefix::More,
            };
            prop_assert_eq!(decode_read_prefix(&buf[..len]), want);
        }
    }

    /// The reply is what encoding the entries that fit would give, and not one more fits.
    #[test]
    fn readdir_writer_is_the_encoder(
        choices in choices(), dir_count_bytes in 0u32..300, max_count_bytes in 0u32..2000,
    ) {
        let mut source = Source::new(choices);
        let mask = Attr::mask(&[Attr::Type, Attr::Owner, Attr::FileId]);
        let names = ["a", "file-0002", "it", "another name that is longer", "e"];
        let entries: Vec<(u64, &str, FattrBuf)> = (3..).zip(names).map(|(cookie, name)| {
            let values = mask.iter().filter_map(Attr::from_bit);
            let values: Vec<_> = values.map(|attr| source.attr_value(attr)).collect();
            (cookie, name, FattrBuf::new(&values))
        }).collect();
        let entry = |(cookie, name, values): &'_ (u64, &'static str, FattrBuf)| -> Vec<u8> {
            encode(&Entry {
                cookie: *cookie,
                name: (*name).into(),
                attributes: values.as_fattr(),
            })
        };

        let mut bytes = Vec::new();
        let mut to = Writer::new(&mut bytes);
        let Some(mut page) = DirWriter::new(&mut to, [7; 8], dir_count_bytes, max_count_bytes) else {
            prop_assert!(readdir::EMPTY_LEN_BYTES > max_count_bytes as usize);
            return Ok(());
        };
        let fitting = entries.iter().take_while(|(cookie, name, values)| {
            let values: Result<Vec<_>, _> = values.as_fattr().values().collect();
            let values = values.unwrap();
            page.push(*cookie, (*name).into(), &mask, |attr| {
                values.iter().find(|value| value.attr() == attr).unwrap().clone()
            })
        }).count();
        prop_assert_eq!(page.entry_count(), fitting);
        page.finish(fitting == entries.len());

        let mut want = vec![7; 8];
        for one in &entries[..fitting] {
            want.extend_from_slice(&[0, 0, 0, 1]);
            want.extend(entry(one));
        }
        want.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, u8::from(fitting == entries.len())]);
        prop_assert_eq!(&bytes, &want);
        prop_assert!(bytes.len() <= max_count_bytes as usize);
        let read: ReadDirOk<'_> = Reader::new(&bytes).get().unwrap();
        prop_assert_eq!(read.entries.len(), fitting);

        let dir_len = |count: usize| -> usize {
            entries[..count].iter().map(|(_, name, _)| readdir::dir_info_len(name.len())).sum()
        };
        let dir_limit = match dir_count_bytes {
            0 => usize::MAX,
            limit => limit as usize,
        };
        prop_assert!(fitting <= 1 || dir_len(fitting) <= dir_limit);
        if let Some(next) = entries.get(fitting) {
            let too_long = bytes.len() + 4 + entry(next).len() > max_count_bytes as usize;
            prop_assert!(too_long || dir_len(fitting + 1) > dir_limit);
        }
    }
}
