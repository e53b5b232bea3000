use cairn_codec_rpc::xdr::padding;
use cairn_codec_rpc::{List, Opaque};
use proptest::prelude::*;

use super::readdir::*;
use super::*;
use crate::source::Source;
use DecodeError::{BadValue, TooLong, Truncated};

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

/// Big-endian words, and bytes with their padding.
enum Part {
    Words(&'static [u32]),
    Text(&'static [u8]),
}
use Part::{Text, Words};

fn wire(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    for part in parts {
        match part {
            Words(words) => words.iter().for_each(|word| to.u32(*word)),
            Text(text) => to.fixed(text),
        }
    }
    bytes
}

fn handle(bytes: &[u8]) -> FileHandle {
    FileHandle::new(bytes).unwrap()
}

fn dir_op(dir: &[u8], name: &'static str) -> DirOp<'static> {
    DirOp {
        dir: handle(dir),
        name: name.into(),
    }
}

const ATTR: FileAttr = FileAttr {
    file_type: FileType::Directory,
    mode: 0o755,
    nlink: 3,
    uid: 1000,
    gid: 100,
    size_bytes: 0x1_0000_0002,
    used_bytes: 4096,
    device: DeviceNumber { major: 8, minor: 1 },
    fsid: 7,
    fileid: 0x2_0000_0001,
    atime: NfsTime {
        seconds: 10,
        nanos: 11,
    },
    mtime: NfsTime {
        seconds: 12,
        nanos: 13,
    },
    ctime: NfsTime {
        seconds: 14,
        nanos: 15,
    },
};
const ATTR_WORDS: Part = Words(&[
    2, 0o755, 3, 1000, 100, 1, 2, 0, 4096, 8, 1, 0, 7, 2, 1, 10, 11, 12, 13, 14, 15,
]);

#[test]
fn calls_are_golden() {
    let mode = SetAttributes {
        mode: Some(0o644),
        ..SetAttributes::default()
    };
    let all = SetAttributes {
        mode: Some(1),
        uid: Some(2),
        gid: Some(3),
        size_bytes: Some(0x1_0000_0004),
        atime: SetTime::ServerTime,
        mtime: SetTime::ClientTime(NfsTime {
            seconds: 5,
            nanos: 6,
        }),
    };
    let cases: &[(u32, &[Part], Call)] = &[
        (0, &[], Call::Null),
        (
            1,
            &[Words(&[5]), Text(b"stone")],
            Call::GetAttr(handle(b"stone")),
        ),
        (
            2,
            &[
                Words(&[1]),
                Text(b"h"),
                Words(&[1, 1, 1, 2, 1, 3, 1, 1, 4, 1, 2, 5, 6]),
                Words(&[1, 8, 9]),
            ],
            Call::SetAttr(SetAttrArgs {
                object: handle(b"h"),
                attributes: all,
                guard: Some(NfsTime {
                    seconds: 8,
                    nanos: 9,
                }),
            }),
        ),
        (
            3,
            &[Words(&[4]), Text(b"root"), Words(&[6]), Text(b"passwd")],
            Call::Lookup(dir_op(b"root", "passwd")),
        ),
        (
            4,
            &[Words(&[1]), Text(b"h"), Words(&[0x1f])],
            Call::Access(AccessArgs {
                object: handle(b"h"),
                access: 0x1f,
            }),
        ),
        (5, &[Words(&[1]), Text(b"h")], Call::ReadLink(handle(b"h"))),
        (
            6,
            &[Words(&[1]), Text(b"h"), Words(&[1, 2, 65536])],
            Call::Read(ReadArgs {
                file: handle(b"h"),
                offset: 0x1_0000_0002,
                count_bytes: 65536,
            }),
        ),
        (
            7,
            &[
                Words(&[1]),
                Text(b"h"),
                Words(&[0, 2, 5, 2, 5]),
                Text(b"hello"),
            ],
            Call::Write(WriteArgs {
                head: WriteHead {
                    file: handle(b"h"),
                    offset: 2,
                    count_bytes: 5,
                    stable: StableHow::FileSync,
                },
                data: "hello".into(),
            }),
        ),
        (
            8,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[0, 1, 0o644, 0, 0, 0, 0, 0]),
            ],
            Call::Create(CreateArgs {
                place: dir_op(b"d", "n"),
                how: CreateHow::Unchecked(mode),
            }),
        ),
        (
            8,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[2]),
                Text(b"verifier"),
            ],
            Call::Create(CreateArgs {
                place: dir_op(b"d", "n"),
                how: CreateHow::Exclusive(*b"verifier"),
            }),
        ),
        (
            9,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[1, 0o644, 0, 0, 0, 0, 0]),
            ],
            Call::MkDir(MkDirArgs {
                place: dir_op(b"d", "n"),
                attributes: mode,
            }),
        ),
        (
            10,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[0, 0, 0, 0, 0, 0]),
                Words(&[6]),
                Text(b"target"),
            ],
            Call::SymLink(SymLinkArgs {
                place: dir_op(b"d", "n"),
                attributes: SetAttributes::default(),
                target: "target".into(),
            }),
        ),
        (
            11,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[4, 0, 0, 0, 0, 0, 0, 5, 1]),
            ],
            Call::MkNod(MkNodArgs {
                place: dir_op(b"d", "n"),
                what: MkNodWhat::CharDevice {
                    attributes: SetAttributes::default(),
                    device: DeviceNumber { major: 5, minor: 1 },
                },
            }),
        ),
        (
            11,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
                Words(&[2]),
            ],
            Call::MkNod(MkNodArgs {
                place: dir_op(b"d", "n"),
                what: MkNodWhat::Directory,
            }),
        ),
        (
            12,
            &[Words(&[1]), Text(b"d"), Words(&[1]), Text(b"n")],
            Call::Remove(dir_op(b"d", "n")),
        ),
        (
            13,
            &[Words(&[1]), Text(b"d"), Words(&[0])],
            Call::RmDir(dir_op(b"d", "")),
        ),
        (
            14,
            &[
                Words(&[1]),
                Text(b"a"),
                Words(&[1]),
                Text(b"x"),
                Words(&[1]),
                Text(b"b"),
                Words(&[1]),
                Text(b"y"),
            ],
            Call::Rename(RenameArgs {
                from: dir_op(b"a", "x"),
                to: dir_op(b"b", "y"),
            }),
        ),
        (
            15,
            &[
                Words(&[1]),
                Text(b"f"),
                Words(&[1]),
                Text(b"d"),
                Words(&[1]),
                Text(b"n"),
            ],
            Call::Link(LinkArgs {
                file: handle(b"f"),
                link: dir_op(b"d", "n"),
            }),
        ),
        (
            16,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[0, 9]),
                Text(b"verifier"),
                Words(&[4096]),
            ],
            Call::ReadDir(ReadDirArgs {
                dir: handle(b"d"),
                cookie: 9,
                cookie_verifier: *b"verifier",
                count_bytes: 4096,
            }),
        ),
        (
            17,
            &[
                Words(&[1]),
                Text(b"d"),
                Words(&[0, 9]),
                Text(b"verifier"),
                Words(&[512, 4096]),
            ],
            Call::ReadDirPlus(ReadDirPlusArgs {
                dir: handle(b"d"),
                cookie: 9,
                cookie_verifier: *b"verifier",
                dir_count_bytes: 512,
                max_count_bytes: 4096,
            }),
        ),
        (18, &[Words(&[0])], Call::FsStat(handle(b""))),
        (19, &[Words(&[1]), Text(b"h")], Call::FsInfo(handle(b"h"))),
        (20, &[Words(&[1]), Text(b"h")], Call::PathConf(handle(b"h"))),
        (
            21,
            &[Words(&[1]), Text(b"h"), Words(&[0, 4096, 0])],
            Call::Commit(CommitArgs {
                file: handle(b"h"),
                offset: 4096,
                count_bytes: 0,
            }),
        ),
    ];
    for (number, parts, want) in cases {
        let input = wire(parts);
        let procedure = Procedure::from_u32(*number).unwrap();
        let mut from = Reader::new(&input);
        assert_eq!(
            Call::decode(procedure, &mut from).as_ref(),
            Ok(want),
            "{number}"
        );
        assert_eq!(from.finish(), Ok(()), "{number}");
        assert_eq!(encode(want), input, "{number}");
    }
    assert_eq!(Procedure::from_u32(22), None);
    assert_eq!(Procedure::ReadDirPlus.name(), "readdirplus");
}

#[test]
fn bad_calls_are_refused() {
    let bad = |what, value| BadValue { what, value };
    let too_long = |len_bytes, len_bytes_max| TooLong {
        len_bytes,
        len_bytes_max,
    };
    let place = || [Words(&[1]), Text(b"d"), Words(&[1]), Text(b"n")];
    let after_place = |words| {
        place()
            .into_iter()
            .chain([Words(words)])
            .collect::<Vec<_>>()
    };
    let cases: Vec<(&str, Procedure, Vec<Part>, DecodeError)> = vec![
        ("no handle", Procedure::GetAttr, vec![], Truncated),
        (
            "handle of 65",
            Procedure::GetAttr,
            vec![Words(&[65])],
            too_long(65, 64),
        ),
        (
            "handle cut off",
            Procedure::GetAttr,
            vec![Words(&[64, 1])],
            Truncated,
        ),
        (
            "name past the limit",
            Procedure::Lookup,
            vec![Words(&[0, 4097])],
            too_long(4097, 4096),
        ),
        (
            "payload past the limit",
            Procedure::Write,
            vec![Words(&[0, 0, 0, 0, 0, DATA_LEN_BYTES_MAX + 1])],
            too_long(DATA_LEN_BYTES_MAX + 1, DATA_LEN_BYTES_MAX),
        ),
        (
            "stable_how",
            Procedure::Write,
            vec![Words(&[0, 0, 0, 0, 3])],
            bad("stable_how", 3),
        ),
        (
            "createmode3",
            Procedure::Create,
            after_place(&[3]),
            bad("createmode3", 3),
        ),
        (
            "time_how",
            Procedure::MkDir,
            after_place(&[0, 0, 0, 0, 3]),
            bad("time_how", 3),
        ),
        (
            "ftype3 of 0",
            Procedure::MkNod,
            after_place(&[0]),
            bad("ftype3", 0),
        ),
        (
            "ftype3 of 8",
            Procedure::MkNod,
            after_place(&[8]),
            bad("ftype3", 8),
        ),
        (
            "target too long",
            Procedure::SymLink,
            after_place(&[0, 0, 0, 0, 0, 0, 8193]),
            too_long(8193, 8192),
        ),
        (
            "guard",
            Procedure::SetAttr,
            vec![Words(&[0, 0, 0, 0, 0, 0, 0, 2])],
            bad("bool", 2),
        ),
    ];
    for (name, procedure, parts, want) in cases {
        let input = wire(&parts);
        assert_eq!(
            Call::decode(procedure, &mut Reader::new(&input)),
            Err(want),
            "{name}"
        );
    }
}

#[test]
fn names_too_long_for_a_server_can_be_decoded() {
    let name = [b'n'; 256];
    let call = Call::Lookup(DirOp {
        dir: handle(b"d"),
        name: Opaque(&name),
    });
    let bytes = encode(&call);
    assert_eq!(
        Call::decode(Procedure::Lookup, &mut Reader::new(&bytes)),
        Ok(call)
    );
}

#[test]
fn replies_are_golden() {
    let wcc = WccData {
        before: Some(WccAttr {
            size_bytes: 9,
            mtime: NfsTime {
                seconds: 1,
                nanos: 2,
            },
            ctime: NfsTime {
                seconds: 3,
                nanos: 4,
            },
        }),
        after: Some(ATTR),
    };
    let cases: &[(Procedure, &[Part], Reply)] = &[
        (
            Procedure::GetAttr,
            &[Words(&[0]), ATTR_WORDS],
            Reply::GetAttr(Ok(ATTR)),
        ),
        (
            Procedure::GetAttr,
            &[Words(&[70])],
            Reply::GetAttr(Err(ErrorStatus::Stale.into())),
        ),
        (
            Procedure::Lookup,
            &[
                Words(&[0, 5]),
                Text(b"stone"),
                Words(&[1]),
                ATTR_WORDS,
                Words(&[0]),
            ],
            Reply::Lookup(Ok(LookupOk {
                object: handle(b"stone"),
                attributes: Some(ATTR),
                dir_attributes: None,
            })),
        ),
        (
            Procedure::Lookup,
            &[Words(&[2, 1]), ATTR_WORDS],
            Reply::Lookup(Err(Failure::new(ErrorStatus::NoEnt, Some(ATTR)))),
        ),
        (
            Procedure::Read,
            &[Words(&[0, 0, 5, 1, 5]), Text(b"hello")],
            Reply::Read(Ok(ReadOk {
                head: ReadHead {
                    attributes: None,
                    count_bytes: 5,
                    eof: true,
                },
                data: "hello".into(),
            })),
        ),
        (
            Procedure::Write,
            &[
                Words(&[0, 1, 0, 9, 1, 2, 3, 4, 1]),
                ATTR_WORDS,
                Words(&[5, 0]),
                Text(b"verifier"),
            ],
            Reply::Write(Ok(WriteOk {
                wcc,
                count_bytes: 5,
                committed: StableHow::Unstable,
                verifier: *b"verifier",
            })),
        ),
        (
            Procedure::Create,
            &[Words(&[0, 1, 1]), Text(b"h"), Words(&[0, 0, 0])],
            Reply::Create(Ok(MakeOk {
                object: Some(handle(b"h")),
                attributes: None,
                dir_wcc: WccData::default(),
            })),
        ),
        (
            Procedure::Rename,
            &[Words(&[18, 0, 0, 0, 0])],
            Reply::Rename(Err(ErrorStatus::XDev.into())),
        ),
        (
            Procedure::ReadDir,
            &[
                Words(&[0, 0]),
                Text(b"verifier"),
                Words(&[1, 0, 7, 1]),
                Text(b"."),
                Words(&[0, 1]),
                Words(&[1, 0, 8, 2]),
                Text(b".."),
                Words(&[0, 2]),
                Words(&[0, 1]),
            ],
            Reply::ReadDir(Ok(ReadDirOk {
                attributes: None,
                cookie_verifier: *b"verifier",
                entries: List(vec![
                    Entry {
                        fileid: 7,
                        name: ".".into(),
                        cookie: 1,
                    },
                    Entry {
                        fileid: 8,
                        name: "..".into(),
                        cookie: 2,
                    },
                ]),
                eof: true,
            })),
        ),
        (
            Procedure::ReadDirPlus,
            &[
                Words(&[0, 0]),
                Text(b"verifier"),
                Words(&[1, 0, 7, 1]),
                Text(b"a"),
                Words(&[0, 1, 1]),
                ATTR_WORDS,
                Words(&[1, 2]),
                Text(b"fh"),
                Words(&[0, 0]),
            ],
            Reply::ReadDirPlus(Ok(ReadDirPlusOk {
                attributes: None,
                cookie_verifier: *b"verifier",
                entries: List(vec![EntryPlus {
                    fileid: 7,
                    name: "a".into(),
                    cookie: 1,
                    attributes: Some(ATTR),
                    handle: Some(handle(b"fh")),
                }]),
                eof: false,
            })),
        ),
        (
            Procedure::SetAttr,
            &[Words(&[10002, 0, 1]), ATTR_WORDS],
            Reply::SetAttr(Err(Failure::new(
                ErrorStatus::NotSync,
                WccData {
                    before: None,
                    after: Some(ATTR),
                },
            ))),
        ),
        (
            Procedure::Access,
            &[Words(&[0, 0, 0x1f])],
            Reply::Access(Ok(AccessOk {
                attributes: None,
                access: 0x1f,
            })),
        ),
        (
            Procedure::ReadLink,
            &[Words(&[0, 0, 6]), Text(b"target")],
            Reply::ReadLink(Ok(ReadLinkOk {
                attributes: None,
                target: "target".into(),
            })),
        ),
        (
            Procedure::Link,
            &[Words(&[0, 1]), ATTR_WORDS, Words(&[0, 0])],
            Reply::Link(Ok(LinkWcc {
                attributes: Some(ATTR),
                dir_wcc: WccData::default(),
            })),
        ),
        (
            Procedure::FsStat,
            &[Words(&[0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7])],
            Reply::FsStat(Ok(FsStatOk {
                attributes: None,
                total_bytes: 1,
                free_bytes: 2,
                available_bytes: 3,
                total_files: 4,
                free_files: 5,
                available_files: 6,
                invariant_seconds: 7,
            })),
        ),
        (
            Procedure::FsInfo,
            &[Words(&[0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10, 0x1b])],
            Reply::FsInfo(Ok(FsInfoOk {
                attributes: None,
                read_max_bytes: 1,
                read_preferred_bytes: 2,
                read_multiple_bytes: 3,
                write_max_bytes: 4,
                write_preferred_bytes: 5,
                write_multiple_bytes: 6,
                readdir_preferred_bytes: 7,
                file_len_bytes_max: 8,
                time_delta: NfsTime {
                    seconds: 9,
                    nanos: 10,
                },
                properties: 0x1b,
            })),
        ),
        (
            Procedure::PathConf,
            &[Words(&[0, 0, 1, 2, 1, 0, 0, 1])],
            Reply::PathConf(Ok(PathConfOk {
                attributes: None,
                link_count_max: 1,
                name_len_bytes_max: 2,
                no_trunc: true,
                chown_restricted: false,
                case_insensitive: false,
                case_preserving: true,
            })),
        ),
        (
            Procedure::Commit,
            &[Words(&[0, 0, 0]), Text(b"verifier")],
            Reply::Commit(Ok(CommitOk {
                wcc: WccData::default(),
                verifier: *b"verifier",
            })),
        ),
    ];
    for (procedure, parts, want) in cases {
        let input = wire(parts);
        let mut from = Reader::new(&input);
        assert_eq!(Reply::decode(*procedure, &mut from).as_ref(), Ok(want));
        assert_eq!(from.finish(), Ok(()), "{want:?}");
        assert_eq!(encode(want), input, "{want:?}");
    }
}

#[test]
fn unknown_status_is_refused() {
    let input = wire(&[Words(&[3])]);
    let reply = Reply::decode(Procedure::GetAttr, &mut Reader::new(&input));
    assert_eq!(
        reply,
        Err(BadValue {
            what: "nfsstat3",
            value: 3
        })
    );
}

#[test]
fn handle_has_a_limit() {
    assert_eq!(FileHandle::new(&[1; 65]), None);
    assert_eq!(handle(&[1; 64]).as_bytes(), [1; 64]);
    assert_ne!(handle(b"a"), handle(b"a\0"));
}

#[test]
fn longest_prefixes_are_as_long_as_we_say() {
    let head = WriteHead {
        file: handle(&[1; 64]),
        offset: 0,
        count_bytes: 8,
        stable: StableHow::Unstable,
    };
    let mut bytes = Vec::new();
    encode_write_head(&mut Writer::new(&mut bytes), &head);
    assert_eq!(bytes.len(), WRITE_PREFIX_LEN_BYTES_MAX);

    let head = ReadHead {
        attributes: Some(ATTR),
        count_bytes: 8,
        eof: false,
    };
    let mut bytes = Vec::new();
    encode_read_head(&mut Writer::new(&mut bytes), &head);
    assert_eq!(bytes.len(), READ_PREFIX_LEN_BYTES_MAX);
}

#[test]
fn bad_prefixes_are_refused() {
    let past_limit = wire(&[Words(&[0, 0, 0, 0, 0, DATA_LEN_BYTES_MAX + 1])]);
    let bad_stable = wire(&[Words(&[0, 0, 0, 0, 9])]);
    assert!(matches!(
        decode_write_prefix(&past_limit),
        Err(TooLong { .. })
    ));
    assert!(matches!(
        decode_write_prefix(&bad_stable),
        Err(BadValue { .. })
    ));
    assert_eq!(decode_write_prefix(b""), Ok(None));
    let past_limit = wire(&[Words(&[0, 0, 0, 0, DATA_LEN_BYTES_MAX + 1])]);
    assert!(matches!(
        decode_read_prefix(&past_limit),
        Err(TooLong { .. })
    ));
    assert_eq!(
        decode_read_prefix(&wire(&[Words(&[70, 0])])),
        Ok(Some(Err(ErrorStatus::Stale.into())))
    );
}

/// A READDIR reply of at most `count_bytes` that holds as many of `entries` as fit.
fn readdir(entries: &[Entry<'_>], attributes: PostOpAttr, count_bytes: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    let mut page = DirWriter::readdir(&mut to, &attributes, [7; 8], count_bytes)?;
    let all = entries.iter().all(|entry| page.push(entry));
    page.finish(all);
    Some(bytes)
}

fn procedure() -> impl Strategy<Value = Procedure> {
    prop::sample::select(Procedure::ALL)
}

fn choices() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..200)
}

#[test]
fn readdir_fills_to_the_byte() {
    let entry = Entry {
        fileid: 1,
        name: "name".into(),
        cookie: 3,
    };
    let empty = head_len(&None);
    let one = empty + entry_len(4);
    let cases = [
        ("not even empty", empty - 1, None),
        ("empty", empty, Some(0)),
        ("one byte short", one - 1, Some(0)),
        ("just one", one, Some(1)),
        ("two", one + entry_len(4), Some(2)),
        ("all there are", 10_000, Some(2)),
    ];
    for (name, count_bytes, want) in cases {
        let reply = readdir(&[entry, entry], None, count_bytes as u32);
        let entry_count = reply.map(|bytes| {
            assert!(
                bytes.len() <= count_bytes + 4,
                "{name}: the status is not counted"
            );
            (bytes.len() - 4 - empty) / entry_len(4)
        });
        assert_eq!(entry_count, want, "{name}");
    }
}

#[test]
fn dircount_limits_all_entries_but_the_first() {
    let entry = EntryPlus {
        fileid: 1,
        name: "name".into(),
        cookie: 3,
        attributes: None,
        handle: None,
    };
    for (dir_count_bytes, want) in [(0, 1), (24, 1), (47, 1), (48, 2), (u32::MAX, 3)] {
        let mut bytes = Vec::new();
        let mut to = Writer::new(&mut bytes);
        let page = DirWriter::readdirplus(&mut to, &None, [0; 8], dir_count_bytes, 4096);
        let mut page = page.unwrap();
        let entry_count = (0..3).take_while(|_| page.push_plus(&entry)).count();
        assert_eq!(entry_count, want, "{dir_count_bytes}");
        assert_eq!(page.entry_count(), want);
    }
}

proptest! {
    #[test]
    fn calls_round_trip(choices in choices(), procedure in procedure()) {
        let call = Source::new(choices).call(procedure);
        let bytes = encode(&call);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(call.procedure(), procedure);
        prop_assert_eq!(Call::decode(procedure, &mut from), Ok(call));
        prop_assert_eq!(from.finish(), Ok(()));
        for len in 0..bytes.len() {
            let cut = Call::decode(procedure, &mut Reader::new(&bytes[..len]));
            prop_assert_eq!(cut, Err(Truncated));
        }
    }

    #[test]
    fn replies_round_trip(choices in choices(), procedure in procedure()) {
        let reply = Source::new(choices).reply_of(procedure);
        let bytes = encode(&reply);
        let mut from = Reader::new(&bytes);
        prop_assert_eq!(reply.procedure(), procedure);
        prop_assert_eq!(Reply::decode(procedure, &mut from), Ok(reply));
        prop_assert_eq!(from.finish(), Ok(()));
        for len in 0..bytes.len() {
            let cut = Reply::decode(procedure, &mut Reader::new(&bytes[..len]));
            prop_assert_eq!(cut, Err(Truncated));
        }
    }

    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>) {
        for procedure in Procedure::ALL {
            let _ = Call::decode(*procedure, &mut Reader::new(&input));
            let _ = Reply::decode(*procedure, &mut Reader::new(&input));
        }
        let _ = decode_write_prefix(&input);
        let _ = decode_read_prefix(&input);
    }

    /// A message that was good until a byte changed.
    #[test]
    fn damaged_messages_decode_or_fail(
        choices in choices(), procedure in procedure(), at: prop::sample::Index, byte: u8,
    ) {
        let mut source = Source::new(choices);
        let mut call = encode(&source.call(procedure));
        let mut reply = encode(&source.reply_of(procedure));
        for bytes in [&mut call, &mut reply].into_iter().filter(|it| !it.is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = Call::decode(procedure, &mut Reader::new(&call));
        let _ = Reply::decode(procedure, &mut Reader::new(&reply));
    }

    /// Head, payload and padding sent one after the other are the message; and the beginning of
    /// the message, however much of it, says where the payload is.
    #[test]
    fn write_is_the_same_in_pieces(choices in choices(), data: Vec<u8>) {
        let mut head = Source::new(choices).write_head();
        head.count_bytes = data.len() as u32;
        let mut bytes = Vec::new();
        encode_write_head(&mut Writer::new(&mut bytes), &head);
        let data_offset = bytes.len();
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(padding(data.len()));
        prop_assert_eq!(&bytes, &encode(&WriteArgs { head, data: Opaque(&data) }));

        let prefix = WritePrefix { head, data_offset, data_len_bytes: data.len() as u32 };
        for len in 0..=bytes.len() {
            let want = (len >= data_offset).then(|| prefix.clone());
            prop_assert_eq!(decode_write_prefix(&bytes[..len]), Ok(want));
        }
    }

    #[test]
    fn read_is_the_same_in_pieces(choices in choices(), data: Vec<u8>) {
        let mut head = Source::new(choices).read_head();
        head.count_bytes = data.len() as u32;
        let mut bytes = Vec::new();
        encode_read_head(&mut Writer::new(&mut bytes), &head);
        let data_offset = bytes.len();
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(padding(data.len()));
        let reply: ReadReply<'_> = Ok(ReadOk { head, data: Opaque(&data) });
        prop_assert_eq!(&bytes, &encode(&reply));

        let prefix = ReadPrefix { head, data_offset, data_len_bytes: data.len() as u32 };
        for len in 0..=bytes.len() {
            let want = (len >= data_offset).then(|| Ok(prefix.clone()));
            prop_assert_eq!(decode_read_prefix(&bytes[..len]), Ok(want));
        }
    }

    /// The reply is what encoding the entries that fit would give, and not one more fits.
    #[test]
    fn readdir_writer_is_the_encoder(choices in choices(), count_bytes in 0u32..3000) {
        let mut source = Source::new(choices);
        let attributes = source.post_attr();
        let entries: Vec<_> = (0..5).map(|_| source.entry()).collect();
        let Some(bytes) = readdir(&entries, attributes, count_bytes) else {
            prop_assert!(head_len(&attributes) > count_bytes as usize);
            return Ok(());
        };
        let reply = Reader::new(&bytes).get::<ReadDirReply<'_>>().unwrap().unwrap();
        let fitting = reply.entries.0.len();
        prop_assert_eq!(&reply.entries.0, &entries[..fitting]);
        prop_assert_eq!(reply.eof, fitting == entries.len());
        let len = |entries: &[Entry<'_>]| {
            head_len(&attributes) + entries.iter().map(|it| entry_len(it.name.len())).sum::<usize>()
        };
        prop_assert_eq!(bytes.len(), 4 + len(&entries[..fitting]));
        prop_assert!(len(&entries[..fitting]) <= count_bytes as usize);
        if fitting < entries.len() {
            prop_assert!(len(&entries[..fitting + 1]) > count_bytes as usize);
        }
        prop_assert_eq!(encode(&ReadDirReply::Ok(reply)), bytes);
    }

    #[test]
    fn readdirplus_writer_is_the_encoder(
        choices in choices(), dir_count_bytes in 0u32..1500, max_count_bytes in 0u32..3000,
    ) {
        let mut source = Source::new(choices);
        let attributes = source.post_attr();
        let entries: Vec<_> = (0..5).map(|_| source.entry_plus()).collect();
        let mut bytes = Vec::new();
        let mut to = Writer::new(&mut bytes);
        let page =
            DirWriter::readdirplus(&mut to, &attributes, [7; 8], dir_count_bytes, max_count_bytes);
        let Some(mut page) = page else {
            prop_assert!(head_len(&attributes) > max_count_bytes as usize);
            return Ok(());
        };
        let fitting = entries.iter().take_while(|entry| page.push_plus(entry)).count();
        page.finish(fitting == entries.len());

        let reply = Reader::new(&bytes).get::<ReadDirPlusReply<'_>>().unwrap().unwrap();
        prop_assert_eq!(&reply.entries.0, &entries[..fitting]);
        let lens = entries.iter().map(|it| {
            let handle_len_bytes = it.handle.as_ref().map(|it| it.as_bytes().len());
            entryplus_len(it.name.len(), &it.attributes, handle_len_bytes)
        });
        prop_assert_eq!(bytes.len(), 4 + head_len(&attributes) + lens.take(fitting).sum::<usize>());
        prop_assert!(bytes.len() <= 4 + max_count_bytes as usize);
        let dir_len = entries[..fitting].iter().map(|it| dir_info_len(it.name.len())).sum::<usize>();
        prop_assert!(fitting <= 1 || dir_len <= dir_count_bytes as usize);
        prop_assert_eq!(encode(&ReadDirPlusReply::Ok(reply)), bytes);
    }
}
