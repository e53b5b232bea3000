//! Bytes written down from the XDR of RFC 7863 and RFC 8276.

use super::*;

const STATE: StateId = StateId {
    seqid: 3,
    other: *b"abcdefghijkl",
};
const SESSION: SessionId = SessionId(*b"0123456789abcdef");

fn state_words() -> Part {
    Words(&[3, 0x61626364, 0x65666768, 0x696a6b6c])
}

#[test]
fn arguments_are_golden() {
    let mode_and_size = FattrBuf::new(&[AttrValue::Mode(0o644), AttrValue::Size(0x1_0000_0002)]);
    let mode = FattrBuf::new(&[AttrValue::Mode(0o600)]);
    let owner = StateOwner {
        client_id: ClientId(0x1_0000_0009),
        owner: "own".into(),
    };
    let stable = [STATE, StateId::CURRENT];
    let channel = ChannelAttrs {
        header_pad_len_bytes: 0,
        request_len_bytes_max: 1,
        response_len_bytes_max: 2,
        cached_response_len_bytes_max: 3,
        op_count_max: 4,
        request_count_max: 5,
        rdma_ird: None,
    };
    let security = [
        CallbackSecurity::None,
        CallbackSecurity::Sys(CallbackSys {
            stamp: 9,
            machine_name: "host".into(),
            uid: 1,
            gid: 2,
            groups: cairn_codec_rpc::Groups::new(&[7]).unwrap(),
        }),
    ];
    let cases: &[(&[Part], OpArgs)] = &[
        (&[Words(&[3, 0x1f])], OpArgs::Access(0x1f)),
        (
            &[Words(&[4, 0]), state_words()],
            OpArgs::Close(CloseArgs {
                seqid: 0,
                state_id: STATE,
            }),
        ),
        (
            &[
                Words(&[6, 5, 6]),
                Bytes(b"target"),
                Words(&[1]),
                Bytes(b"l"),
                Words(&[2, 0, 2, 4, 0o600]),
            ],
            OpArgs::Create(CreateArgs {
                kind: CreateType::Symlink("target".into()),
                name: "l".into(),
                attributes: mode.as_fattr(),
            }),
        ),
        (
            &[Words(&[6, 4, 8, 1, 1]), Bytes(b"c"), Words(&[0, 0])],
            OpArgs::Create(CreateArgs {
                kind: CreateType::CharDevice(DeviceNumber { major: 8, minor: 1 }),
                name: "c".into(),
                attributes: Fattr::default(),
            }),
        ),
        // supported_attrs, type, change, size, fsid, fileid; mode, numlinks, owner.
        (
            &[Words(&[9, 2, 0x0010_011b, 0x1a])],
            OpArgs::GetAttr(Bitmap::of(&[0, 1, 3, 4, 8, 20, 33, 35, 36])),
        ),
        (&[Words(&[10])], OpArgs::GetFh),
        (
            &[
                Words(&[12, 2, 0, 1, 2, 0xffff_ffff, 0xffff_ffff, 1, 0]),
                state_words(),
                Words(&[0, 1, 9, 3]),
                Bytes(b"own"),
            ],
            OpArgs::Lock(LockArgs {
                lock_type: LockType::Write,
                reclaim: false,
                offset: 0x1_0000_0002,
                len_bytes: u64::MAX,
                locker: Locker::New(NewLockOwner {
                    open_seqid: 0,
                    open_state_id: STATE,
                    lock_seqid: 0,
                    owner,
                }),
            }),
        ),
        (
            &[
                Words(&[12, 1, 1, 0, 0, 0, 1, 0]),
                state_words(),
                Words(&[4]),
            ],
            OpArgs::Lock(LockArgs {
                lock_type: LockType::Read,
                reclaim: true,
                offset: 0,
                len_bytes: 1,
                locker: Locker::Known(KnownLockOwner {
                    lock_state_id: STATE,
                    lock_seqid: 4,
                }),
            }),
        ),
        (
            &[Words(&[15, 6]), Bytes(b"passwd")],
            OpArgs::Lookup("passwd".into()),
        ),
        (
            &[
                Words(&[18, 0, 3, 0, 1, 9, 3]),
                Bytes(b"own"),
                Words(&[1, 3, 0x01020304, 0x05060708, 2, 0, 2, 4, 0o600, 0, 1]),
                Bytes(b"f"),
            ],
            OpArgs::Open(OpenArgs {
                seqid: 0,
                share_access: share_access::BOTH,
                share_deny: share_deny::NONE,
                owner,
                how: OpenHow::Create(CreateHow::ExclusiveWith(ExclusiveCreate {
                    verifier: [1, 2, 3, 4, 5, 6, 7, 8],
                    attributes: mode.as_fattr(),
                })),
                claim: OpenClaim::Null("f".into()),
            }),
        ),
        (
            &[
                Words(&[18, 0, 0x401, 0, 1, 9, 3]),
                Bytes(b"own"),
                Words(&[0, 4]),
            ],
            OpArgs::Open(OpenArgs {
                seqid: 0,
                share_access: share_access::READ | share_access::WANT_NO_DELEGATION,
                share_deny: share_deny::NONE,
                owner,
                how: OpenHow::NoCreate,
                claim: OpenClaim::Handle,
            }),
        ),
        (
            &[Words(&[22, 5]), Bytes(b"stone")],
            OpArgs::PutFh(Opaque(b"stone")),
        ),
        (&[Words(&[24])], OpArgs::PutRootFh),
        (
            &[Words(&[25]), state_words(), Words(&[0, 4096, 65536])],
            OpArgs::Read(ReadArgs {
                state_id: STATE,
                offset: 4096,
                count_bytes: 65536,
            }),
        ),
        (
            &[Words(&[26, 0, 5, 0, 7, 100, 1000, 1, 0x0010_0000])],
            OpArgs::ReadDir(ReadDirArgs {
                cookie: 5,
                cookie_verifier: [0, 0, 0, 0, 0, 0, 0, 7],
                dir_count_bytes: 100,
                max_count_bytes: 1000,
                attr_request: Attr::mask(&[Attr::FileId]),
            }),
        ),
        // Values come in the order of bits, whatever order they were given in.
        (
            &[Words(&[34, 0, 0, 0, 0, 2, 0x10, 2, 12, 1, 2, 0o644])],
            OpArgs::SetAttr(SetAttrArgs {
                state_id: StateId::ANONYMOUS,
                attributes: mode_and_size.as_fattr(),
            }),
        ),
        (
            &[
                Words(&[38]),
                state_words(),
                Words(&[0, 8, 2, 5]),
                Bytes(b"hello"),
            ],
            OpArgs::Write(WriteArgs {
                head: WriteHead {
                    state_id: STATE,
                    offset: 8,
                    stable: StableHow::FileSync,
                },
                data: "hello".into(),
            }),
        ),
        (
            &[
                Words(&[42, 0, 1, 6]),
                Bytes(b"client"),
                Words(&[0x103, 0, 1, 4]),
                Bytes(b"a.eu"),
                Words(&[2]),
                Bytes(b"nm"),
                Words(&[0xffff_ffff, 0xffff_ffff, 7]),
            ],
            OpArgs::ExchangeId(ExchangeIdArgs {
                owner: ClientOwner {
                    verifier: [0, 0, 0, 0, 0, 0, 0, 1],
                    owner: "client".into(),
                },
                flags: exchange_flag::SUPP_MOVED_REFER
                    | exchange_flag::SUPP_MOVED_MIGR
                    | exchange_flag::BIND_PRINC_STATEID,
                state_protect: StateProtect::None,
                implementation: Some(ImplId {
                    domain: "a.eu".into(),
                    name: "nm".into(),
                    date: NfsTime {
                        seconds: -1,
                        nanos: 7,
                    },
                }),
            }),
        ),
        (
            &[
                Words(&[43, 0, 5, 1, 3, 0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 3, 4, 5, 0]),
                Words(&[0x4000_0000, 2, 0, 1, 9, 4]),
                Bytes(b"host"),
                Words(&[1, 2, 1, 7]),
            ],
            OpArgs::CreateSession(CreateSessionArgs {
                client_id: ClientId(5),
                sequence_id: 1,
                flags: create_session_flag::PERSIST | create_session_flag::CONN_BACK_CHAN,
                fore_channel: channel,
                back_channel: channel,
                callback_program: 0x4000_0000,
                security: Items::new(&security),
            }),
        ),
        (
            &[
                Words(&[53]),
                Bytes(b"0123456789abcdef"),
                Words(&[1, 2, 3, 1]),
            ],
            OpArgs::Sequence(SequenceArgs {
                session_id: SESSION,
                sequence_id: 1,
                slot_id: 2,
                highest_slot_id: 3,
                cache_this: true,
            }),
        ),
        (
            &[Words(&[55, 2]), state_words(), Words(&[1, 0, 0, 0])],
            OpArgs::TestStateId(Items::new(&stable)),
        ),
        (&[Words(&[58, 0])], OpArgs::ReclaimComplete(false)),
        (
            &[Words(&[59]), state_words(), Words(&[0, 1, 0, 2])],
            OpArgs::Allocate(SpaceArgs {
                state_id: STATE,
                offset: 1,
                len_bytes: 2,
            }),
        ),
        (
            &[
                Words(&[60]),
                state_words(),
                state_words(),
                Words(&[0, 1, 0, 2, 0, 3, 1, 0, 0]),
            ],
            OpArgs::Copy(CopyArgs {
                from_state_id: STATE,
                to_state_id: STATE,
                from_offset: 1,
                to_offset: 2,
                len_bytes: 3,
                requirements: CopyRequirements {
                    consecutive: true,
                    synchronous: false,
                },
                source_servers: Items::default(),
            }),
        ),
        (
            &[Words(&[69]), state_words(), Words(&[0, 9, 1])],
            OpArgs::Seek(SeekArgs {
                state_id: STATE,
                offset: 9,
                what: SeekWhat::Hole,
            }),
        ),
        (
            &[
                Words(&[73, 1, 4]),
                Bytes(b"user"),
                Words(&[3]),
                Bytes(b"val"),
            ],
            OpArgs::SetXattr(SetXattrArgs {
                option: SetXattrOption::Create,
                name: "user".into(),
                value: "val".into(),
            }),
        ),
    ];
    for (parts, args) in cases {
        let bytes = wire(parts);
        assert_eq!(encode(args), bytes, "{args:?}");
        assert_eq!(only(&bytes), (Ok(args.clone()), 0));
    }
}

#[test]
fn results_are_golden() {
    let attributes = FattrBuf::new(&[AttrValue::Type(FileType::Directory), AttrValue::FileId(9)]);
    let fattr = attributes.as_fattr();
    let entries = [
        Entry {
            cookie: 3,
            name: "a".into(),
            attributes: fattr,
        },
        Entry {
            cookie: 4,
            name: "bcde".into(),
            attributes: Fattr::default(),
        },
    ];
    let denied = LockDenied {
        offset: 1,
        len_bytes: 2,
        lock_type: LockType::Write,
        owner: StateOwner {
            client_id: ClientId(3),
            owner: "o".into(),
        },
    };
    let statuses = [Ok(()), Err(ErrorStatus::BadStateId)];
    let contents = [
        ReadPlusContent::Data(PlacedData {
            offset: 0,
            data: "ab".into(),
        }),
        ReadPlusContent::Hole(Hole {
            offset: 2,
            len_bytes: 8,
        }),
    ];
    let flavors = [
        SecInfo::Flavor(1),
        SecInfo::Gss(GssInfo {
            oid: Opaque(b"oid"),
            quality: 0,
            service: GssService::Privacy,
        }),
    ];
    let cases: &[(&[Part], OpResult)] = &[
        (
            &[Words(&[3, 0, 0x1f, 3])],
            OpResult::Access(Ok(AccessOk {
                supported: 0x1f,
                access: 3,
            })),
        ),
        (
            &[Words(&[3, 13])],
            OpResult::Access(Err(ErrorStatus::Access)),
        ),
        (
            &[Words(&[9, 0, 1, 0x0010_0002, 12, 2, 0, 9])],
            OpResult::GetAttr(Ok(fattr)),
        ),
        (
            &[Words(&[12, 10010, 0, 1, 0, 2, 2, 0, 3, 1]), Bytes(b"o")],
            OpResult::Lock(ReplyOr::With(denied)),
        ),
        (
            &[Words(&[12, 0]), state_words()],
            OpResult::Lock(ReplyOr::Ok(STATE)),
        ),
        (&[Words(&[13, 0])], OpResult::LockT(ReplyOr::Ok(()))),
        (
            &[Words(&[12, 10008])],
            OpResult::Lock(ReplyOr::Failed(ErrorStatus::Delay)),
        ),
        (
            &[
                Words(&[18, 0]),
                state_words(),
                Words(&[1, 0, 1, 0, 2, 0x24, 0, 3, 1, 0]),
            ],
            OpResult::Open(Ok(OpenOk {
                state_id: STATE,
                dir_change: ChangeInfo {
                    atomic: true,
                    before: 1,
                    after: 2,
                },
                flags: open_result::LOCKTYPE_POSIX | open_result::MAY_NOTIFY_LOCK,
                attrs_set: Bitmap::EMPTY,
                delegation: Delegation::NoneExt(NoDelegation::Contention(false)),
            })),
        ),
        (
            &[Words(&[25, 0, 1, 3]), Bytes(b"end")],
            OpResult::Read(Ok(ReadOk {
                eof: true,
                data: "end".into(),
            })),
        ),
        (
            &[
                Words(&[26, 0, 0, 7, 1, 0, 3, 1]),
                Bytes(b"a"),
                Words(&[1, 0x0010_0002, 12, 2, 0, 9, 1, 0, 4, 4]),
                Bytes(b"bcde"),
                Words(&[0, 0, 0, 1]),
            ],
            OpResult::ReadDir(Ok(ReadDirOk {
                cookie_verifier: [0, 0, 0, 0, 0, 0, 0, 7],
                entries: Chain::new(&entries),
                eof: true,
            })),
        ),
        (
            &[Words(&[33, 0, 2, 1, 6, 3]), Bytes(b"oid"), Words(&[0, 3])],
            OpResult::SecInfo(Ok(Items::new(&flavors))),
        ),
        // The mask is there in success and in failure.
        (
            &[Words(&[34, 0, 2, 0x10, 2])],
            OpResult::SetAttr(SetAttrReply {
                status: Ok(()),
                attrs_set: Attr::mask(&[Attr::Size, Attr::Mode]),
            }),
        ),
        (
            &[Words(&[34, 22, 0])],
            OpResult::failed(Op::SetAttr, ErrorStatus::Inval),
        ),
        (
            &[
                Words(&[53, 0]),
                Bytes(b"0123456789abcdef"),
                Words(&[1, 2, 3, 4, 0x101]),
            ],
            OpResult::Sequence(Ok(SequenceOk {
                session_id: SESSION,
                sequence_id: 1,
                slot_id: 2,
                highest_slot_id: 3,
                target_highest_slot_id: 4,
                status_flags: sequence_status::CB_PATH_DOWN
                    | sequence_status::RESTART_RECLAIM_NEEDED,
            })),
        ),
        (
            &[Words(&[55, 0, 2, 0, 10025])],
            OpResult::TestStateId(Ok(Items::new(&statuses))),
        ),
        (
            &[Words(&[60, 10094, 1, 1])],
            OpResult::Copy(ReplyOr::With(CopyRequirements {
                consecutive: true,
                synchronous: true,
            })),
        ),
        (
            &[Words(&[60, 0, 0, 0, 9, 2, 1, 2, 0, 1])],
            OpResult::Copy(ReplyOr::Ok(CopyOk {
                response: WriteResponse {
                    callback_id: None,
                    count_bytes: 9,
                    committed: StableHow::FileSync,
                    verifier: [0, 0, 0, 1, 0, 0, 0, 2],
                },
                requirements: CopyRequirements {
                    consecutive: false,
                    synchronous: true,
                },
            })),
        ),
        (
            &[Words(&[67, 0, 0, 5, 1, 28])],
            OpResult::OffloadStatus(Ok(OffloadStatusOk {
                count_bytes: 5,
                complete: Some(Err(ErrorStatus::NoSpc)),
            })),
        ),
        (
            &[
                Words(&[68, 0, 1, 2, 0, 0, 0, 2]),
                Bytes(b"ab"),
                Words(&[1, 0, 2, 0, 8]),
            ],
            OpResult::ReadPlus(Ok(ReadPlusOk {
                eof: true,
                contents: Items::new(&contents),
            })),
        ),
        (
            &[Words(&[10044, 10044])],
            OpResult::Illegal(Err(ErrorStatus::OpIllegal)),
        ),
    ];
    for (parts, result) in cases {
        let bytes = wire(parts);
        assert_eq!(encode(result), bytes, "{result:?}");
        let mut from = Reader::new(&bytes);
        assert_eq!(from.get(), Ok(result.clone()));
        assert_eq!(from.finish(), Ok(()));
    }
}

#[test]
fn callbacks_are_golden() {
    let calls = [ReferringCall {
        sequence_id: 5,
        slot_id: 6,
    }];
    let lists = [ReferringCalls {
        session_id: SESSION,
        calls: Items::new(&calls),
    }];
    let ops = [
        CbArgs::Sequence(CbSequenceArgs {
            session_id: SESSION,
            sequence_id: 1,
            slot_id: 0,
            highest_slot_id: 0,
            cache_this: false,
            referring_calls: Items::new(&lists),
        }),
        CbArgs::NotifyLock(CbNotifyLockArgs {
            file: Opaque(b"fh"),
            owner: StateOwner {
                client_id: ClientId(2),
                owner: "own".into(),
            },
        }),
        CbArgs::Recall(CbRecallArgs {
            state_id: STATE,
            truncate: true,
            file: Opaque(b"fh"),
        }),
    ];
    let bytes = wire(&[
        Words(&[3]),
        Bytes(b"tag"),
        Words(&[2, 0, 3, 11]),
        Bytes(b"0123456789abcdef"),
        Words(&[1, 0, 0, 0, 1]),
        Bytes(b"0123456789abcdef"),
        Words(&[1, 5, 6, 13, 2]),
        Bytes(b"fh"),
        Words(&[0, 2, 3]),
        Bytes(b"own"),
        Words(&[4]),
        state_words(),
        Words(&[1, 2]),
        Bytes(b"fh"),
    ]);
    let mut written = Vec::new();
    encode_callback(&mut Writer::new(&mut written), b"tag", 2, &ops);
    assert_eq!(written, bytes);
    let call = CbCompound::decode(&bytes).unwrap();
    assert_eq!((&*call.tag, call.minor_version), (&b"tag"[..], 2));
    let read: Result<Vec<_>, _> = call.ops().collect();
    assert_eq!(read.unwrap(), ops);
}

#[test]
fn special_state_ids_are_those_of_the_rfc() {
    let all = |byte, seqid| StateId {
        seqid,
        other: [byte; 12],
    };
    let cases = [
        (all(0, 0), Some(SpecialStateId::Anonymous)),
        (all(0xff, u32::MAX), Some(SpecialStateId::ReadBypass)),
        (all(0, 1), Some(SpecialStateId::Current)),
        (all(0, u32::MAX), Some(SpecialStateId::Invalid)),
        (all(0, 2), Some(SpecialStateId::Invalid)),
        (all(0xff, 0), Some(SpecialStateId::Invalid)),
        (STATE, None),
        (all(1, 0), None),
    ];
    for (state_id, want) in cases {
        assert_eq!(state_id.special(), want, "{state_id:?}");
    }
}
