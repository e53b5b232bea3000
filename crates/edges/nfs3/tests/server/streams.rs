//! What comes over a connection in unusual ways: garbage, pieces, floods, the same thing twice.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::common::{Client, Server, call_bytes, pattern, user, write_call};
use cairn_codec_nfs::v3::{self, Call, ErrorStatus, Reply};
use cairn_codec_nfs::{mount, nlm};
use cairn_codec_rpc::{
    AcceptStatus, AuthStatus, FragmentHeader, OpaqueAuth, Rejection, ReplyBody, portmap,
};

/// A test that would wait for ever fails after this.
const PATIENCE: Duration = Duration::from_secs(60);

fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let header = FragmentHeader {
        last,
        len_bytes: bytes.len() as u32,
    };
    [&header.to_bytes(), bytes].concat()
}

#[test]
fn what_is_not_served_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let mismatch = |low, high| AcceptStatus::ProgramMismatch { low, high };
    let cases = [
        ((100_024, 1, 0), AcceptStatus::ProgramUnavailable),
        ((v3::PROGRAM, 2, 0), mismatch(3, 3)),
        ((v3::PROGRAM, 4, 0), mismatch(3, 3)),
        ((mount::PROGRAM, 2, 0), mismatch(1, 3)),
        ((mount::PROGRAM, 4, 0), mismatch(1, 3)),
        ((nlm::PROGRAM, 2, 0), mismatch(1, 4)),
        ((nlm::PROGRAM, 5, 0), mismatch(1, 4)),
        ((portmap::PROGRAM, 1, 0), mismatch(2, 4)),
        ((v3::PROGRAM, 3, 22), AcceptStatus::ProcedureUnavailable),
        ((mount::PROGRAM, 3, 6), AcceptStatus::ProcedureUnavailable),
        // GRANTED, LOCK_MSG, and SHARE before it was there.
        ((nlm::PROGRAM, 4, 5), AcceptStatus::ProcedureUnavailable),
        ((nlm::PROGRAM, 4, 7), AcceptStatus::ProcedureUnavailable),
        ((nlm::PROGRAM, 1, 20), AcceptStatus::ProcedureUnavailable),
        ((portmap::PROGRAM, 2, 5), AcceptStatus::ProcedureUnavailable),
        ((portmap::PROGRAM, 3, 9), AcceptStatus::ProcedureUnavailable),
        ((v3::PROGRAM, 3, 1), AcceptStatus::GarbageArgs),
        ((mount::PROGRAM, 3, 1), AcceptStatus::GarbageArgs),
        ((nlm::PROGRAM, 4, 2), AcceptStatus::GarbageArgs),
        ((portmap::PROGRAM, 2, 3), AcceptStatus::GarbageArgs),
        ((v3::PROGRAM, 3, 0), AcceptStatus::Success),
    ];
    for (place, want) in cases {
        assert_eq!(client.call(place, &()).accepted(), want, "{place:?}");
    }
    let handle = client.root("/main");
    for procedure in v3::Procedure::ALL.iter().skip(2) {
        // The handle alone is not enough for those that take more.
        let status = client
            .call((v3::PROGRAM, 3, procedure.number()), &handle)
            .accepted();
        let enough = matches!(
            procedure,
            v3::Procedure::ReadLink
                | v3::Procedure::FsStat
                | v3::Procedure::FsInfo
                | v3::Procedure::PathConf
        );
        let want = match enough {
            true => AcceptStatus::Success,
            false => AcceptStatus::GarbageArgs,
        };
        assert_eq!(status, want, "{procedure:?}");
    }
}

#[test]
fn bad_credentials_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let call = Call::GetAttr(root);
    let getattr = (v3::PROGRAM, 3, 1);
    let kerberos = OpaqueAuth {
        flavor: 6,
        body: &[1, 2, 3, 4],
    };
    let short = OpaqueAuth {
        flavor: 1,
        body: &[0; 8],
    };
    for credential in [kerberos, short] {
        client.send(&call_bytes(5, getattr, &credential, &call));
        assert_eq!(
            client.receive().body,
            ReplyBody::Denied(Rejection::Auth(AuthStatus::BadCredential))
        );
        let path = mount::Call::Mount("/main".into());
        client.send(&call_bytes(5, (mount::PROGRAM, 3, 1), &credential, &path));
        assert_eq!(
            client.receive().body,
            ReplyBody::Denied(Rejection::Auth(AuthStatus::BadCredential))
        );
        // NULL asks nobody who they are.
        for program in [v3::PROGRAM, mount::PROGRAM] {
            client.send(&call_bytes(6, (program, 3, 0), &credential, &()));
            assert_eq!(client.receive().accepted(), AcceptStatus::Success);
        }
    }
    let mut other_rpc = call_bytes(7, getattr, &OpaqueAuth::NONE, &call);
    other_rpc[15] = 3;
    client.send(&other_rpc);
    assert_eq!(
        client.receive().body,
        ReplyBody::Denied(Rejection::RpcMismatch { low: 2, high: 2 })
    );
}

#[test]
fn forged_handles_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let handle = |bytes: &[u8]| v3::FileHandle::new(bytes).unwrap();
    let mut forged = root.as_bytes().to_vec();
    forged[8] ^= 2;
    for bytes in [
        &forged[..],
        &[],
        &[0; 32],
        &[0xff; 64],
        &root.as_bytes()[..31],
    ] {
        let refused = client.getattr(handle(bytes));
        assert_eq!(refused, Err(ErrorStatus::BadHandle), "{bytes:?}");
    }
    // Every procedure has its own form of failure; decoding checks it.
    let bad = handle(&forged);
    let name = v3::DirOp {
        dir: bad,
        name: "x".into(),
    };
    let attributes = v3::SetAttributes::default();
    let calls = [
        Call::GetAttr(bad),
        Call::SetAttr(v3::SetAttrArgs {
            object: bad,
            attributes,
            guard: None,
        }),
        Call::Lookup(name),
        Call::Access(v3::AccessArgs {
            object: bad,
            access: 1,
        }),
        Call::ReadLink(bad),
        Call::Read(v3::ReadArgs {
            file: bad,
            offset: 0,
            count_bytes: 1,
        }),
        write_call(bad, 0, b"x"),
        Call::Create(v3::CreateArgs {
            place: name,
            how: v3::CreateHow::Exclusive([0; 8]),
        }),
        Call::MkDir(v3::MkDirArgs {
            place: name,
            attributes,
        }),
        Call::SymLink(v3::SymLinkArgs {
            place: name,
            attributes,
            target: "x".into(),
        }),
        Call::MkNod(v3::MkNodArgs {
            place: name,
            what: v3::MkNodWhat::Fifo(attributes),
        }),
        Call::Remove(name),
        Call::RmDir(name),
        Call::Rename(v3::RenameArgs {
            from: name,
            to: name,
        }),
        Call::Link(v3::LinkArgs {
            file: bad,
            link: name,
        }),
        Call::ReadDir(v3::ReadDirArgs {
            dir: bad,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 4096,
        }),
        Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir: bad,
            cookie: 0,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 4096,
        }),
        Call::FsStat(bad),
        Call::FsInfo(bad),
        Call::PathConf(bad),
        Call::Commit(v3::CommitArgs {
            file: bad,
            offset: 0,
            count_bytes: 0,
        }),
    ];
    assert_eq!(calls.len() + 1, v3::Procedure::ALL.len());
    for call in calls {
        let text = format!("{:?}", client.nfs(call));
        assert!(text.contains("BadHandle"), "{text}");
    }
}

#[test]
fn records_may_come_in_any_pieces() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");

    // One fragment, byte by byte.
    let record = client.encode(&Call::GetAttr(file));
    for byte in &record {
        client.send(&[*byte]);
    }
    client.receive().nfs(v3::Procedure::GetAttr);
    // A fragment for each byte, and empty ones between them.
    let record = client.encode(&Call::GetAttr(file));
    let body = &record[4..];
    for (index, byte) in body.iter().enumerate() {
        client.send(&fragment(&[*byte], index + 1 == body.len()));
        if index + 1 < body.len() {
            client.send(&fragment(&[], false));
        }
    }
    client.receive().nfs(v3::Procedure::GetAttr);

    // Writes around the sizes at which they are received apart, whole and in fragments, each
    // followed by the next call in the same piece.
    let mut offset = 0;
    for (index, len) in [
        0,
        1,
        4095,
        32_000,
        32_767,
        32_768,
        40_001,
        65_000,
        66_001,
        230_000,
        1 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        let data = pattern(index as u32, len);
        for in_fragments in [false, true] {
            let mut write = client.encode(&write_call(file, offset, &data));
            let write_xid = client.xid;
            if in_fragments {
                let chunks = write[4..].chunks(10_000);
                let fragments = chunks.map(|chunk| fragment(chunk, false));
                write = fragments.chain([fragment(&[], true)]).flatten().collect();
            }
            let getattr = client.encode(&Call::GetAttr(file));
            client.send(&[write, getattr].concat());
            let answers = [client.receive(), client.receive()];
            let written = answers.iter().find(|answer| answer.xid == write_xid);
            let Reply::Write(Ok(written)) = written.unwrap().nfs(v3::Procedure::Write) else {
                panic!("{len} bytes are written");
            };
            assert_eq!(written.count_bytes as usize, len);
            assert!(client.read(file, offset, len as u32) == data, "{len} bytes");
        }
        offset += len as u64;
    }
    // Now in small pieces, as a slow network brings them.
    let data = pattern(99, 200_003);
    let write = client.encode(&write_call(file, 5, &data));
    for piece in write.chunks(777) {
        client.send(piece);
    }
    client.receive().nfs(v3::Procedure::Write);
    assert!(client.read(file, 5, 200_003) == data);
}

#[test]
fn garbage_ends_the_connection_or_is_refused() {
    let server = Server::start();
    // Not RPC at all, or not a call.
    for garbage in [
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(),
        fragment(&[0; 3], true),
        fragment(&[0; 8], true),
        fragment(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0], true),
        fragment(&[], true),
        ((2 << 20) | 1u32 << 31).to_be_bytes().to_vec(),
        vec![0xff; 100],
    ] {
        let mut client = server.connect();
        client.send(&garbage);
        assert!(client.is_closed(), "{}", garbage.escape_ascii());
    }
    // Too many fragments.
    let mut client = server.connect();
    let flood = fragment(&[], false).repeat(5000);
    // The server may close before it has taken all of it.
    let _ = client.stream.write_all(&flood);
    assert!(client.is_closed());
    // Too long in fragments.
    let mut client = server.connect();
    let half = fragment(&vec![0; 600 << 10], false);
    let _ = client.stream.write_all(&half.repeat(2));
    assert!(client.is_closed());

    // A record that could be a large WRITE and is none: refused, and the connection goes on.
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    let data = pattern(1, 500_000);
    let mut write = client.encode(&write_call(file, 0, &data));
    let len_at = write.len() - data.len() - 4;
    let wrong_len = 400_000u32.to_be_bytes();
    write[len_at..len_at + 4].copy_from_slice(&wrong_len);
    client.send(&write);
    assert_eq!(client.receive().accepted(), AcceptStatus::GarbageArgs);
    let long = vec![0u8; 300_000];
    let mut lookup = client.encode(&Call::GetAttr(root))[4..].to_vec();
    lookup.extend_from_slice(&long);
    client.send(&fragment(&lookup, true));
    assert_eq!(client.receive().accepted(), AcceptStatus::GarbageArgs);
    // A count that is not the payload's length.
    let mut write = client.encode(&write_call(file, 0, &data));
    let count_at = write.len() - data.len() - 12;
    write[count_at..count_at + 4].copy_from_slice(&wrong_len);
    client.send(&write);
    assert_eq!(client.receive().accepted(), AcceptStatus::GarbageArgs);
    assert_eq!(client.getattr(file).unwrap().size_bytes, 0);
    assert!(server.metric("cairn_nfs_connections_broken_total") >= 8);
    assert_eq!(server.metric("cairn_nfs_requests_garbage_total"), 3);
}

#[test]
fn pipelined_calls_are_all_answered() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    let mut sent = Vec::new();
    let mut bytes = Vec::new();
    for index in 0..500u32 {
        let call = match index % 5 {
            0 => write_call(file, u64::from(index) * 100, b"some data"),
            1 => Call::GetAttr(root),
            // Waits for the disk, so that others overtake it.
            2 => Call::Commit(v3::CommitArgs {
                file,
                offset: 0,
                count_bytes: 0,
            }),
            3 => Call::Read(v3::ReadArgs {
                file,
                offset: 0,
                count_bytes: 100_000,
            }),
            _ => Call::Lookup(v3::DirOp {
                dir: root,
                name: "file".into(),
            }),
        };
        bytes.extend(client.encode(&call));
        sent.push((client.xid, call.procedure()));
    }
    // More than the socket holds: sent by another thread while replies are read here.
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    let mut answers = BTreeMap::new();
    for _ in 0..sent.len() {
        let answer = client.receive();
        assert!(answers.insert(answer.xid, answer).is_none());
    }
    sender.join().unwrap();
    for (xid, procedure) in sent {
        let text = format!("{:?}", answers[&xid].nfs(procedure));
        assert!(text.contains("Ok"), "{text}");
    }
}

#[test]
fn a_client_that_does_not_read_is_held_back() {
    const LIMIT: usize = 3 << 20;
    const COUNT: usize = 100;
    let server = Server::with(|settings| settings.held_bytes_per_connection_max = LIMIT);
    let mut other = server.connect();
    let root = other.root("/main");
    let file = other.create(root, "file");
    let data = pattern(3, 1 << 20);
    other.write(file, 0, &data).unwrap();

    let mut greedy = server.connect();
    let mut bytes = Vec::new();
    for _ in 0..COUNT {
        bytes.extend(greedy.encode(&Call::Read(v3::ReadArgs {
            file,
            offset: 0,
            count_bytes: 1 << 20,
        })));
    }
    greedy.send(&bytes);
    let bound = (LIMIT + (2 << 20)) as u64;
    for _ in 0..COUNT {
        assert!(other.getattr(file).is_ok());
        assert!(server.metric("cairn_nfs_held_bytes") <= bound);
    }
    for _ in 0..COUNT {
        let Reply::Read(Ok(read)) = greedy.receive().nfs(v3::Procedure::Read) else {
            panic!("the file can be read");
        };
        assert!(*read.data == data[..]);
        assert!(server.metric("cairn_nfs_held_bytes") <= bound);
    }
}

#[test]
fn one_call_at_a_time_when_memory_is_short() {
    let server = Server::with(|settings| {
        settings.held_bytes_max = 1;
        settings.in_flight_count_max = 1;
    });
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    let root = clients[0].root("/main");
    let file = clients[0].create(root, "file");
    let data = pattern(3, 300_000);
    for client in &mut clients {
        let mut bytes = client.encode(&write_call(file, 0, &data));
        for _ in 0..10 {
            bytes.extend(client.encode(&Call::Commit(v3::CommitArgs {
                file,
                offset: 0,
                count_bytes: 0,
            })));
        }
        client.send(&bytes);
    }
    for client in &mut clients {
        for _ in 0..11 {
            assert_eq!(client.receive().accepted(), AcceptStatus::Success);
        }
    }
}

#[test]
fn a_stalled_connection_is_closed() {
    let server = Server::with(|settings| settings.stall_timeout = Duration::from_millis(40));
    let mut half = server.connect();
    half.send(&[0x80, 0, 0, 100, 1, 2, 3]);
    assert!(half.is_closed());
    assert_eq!(server.metric("cairn_nfs_connections_stalled_total"), 1);
    // An idle one is left alone; the stalled one took several of its timeouts.
    let mut idle = server.connect();
    let mut half = server.connect();
    half.send(&[0x80]);
    assert!(half.is_closed());
    idle.root("/main");
}

/// A record with another stamp in its AUTH_SYS credential.
fn with_stamp(call: &[u8], stamp: u32) -> Vec<u8> {
    // After the record's mark, the six words of the header, and the flavor and length of the credential.
    const STAMP: std::ops::Range<usize> = 36..40;
    let mut call = call.to_vec();
    assert_eq!(call[STAMP], 1u32.to_be_bytes());
    call[STAMP].copy_from_slice(&stamp.to_be_bytes());
    call
}

#[test]
fn a_call_sent_again_is_answered_as_the_first_time() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    client.create(root, "file");
    let remove = client.encode(&Call::Remove(v3::DirOp {
        dir: root,
        name: "file".into(),
    }));
    client.send(&remove);
    let first = client.receive();
    assert!(matches!(
        first.nfs(v3::Procedure::Remove),
        Reply::Remove(Ok(_))
    ));
    client.send(&remove);
    assert_eq!(client.receive(), first);
    // Over another connection too, and after the first is gone.
    let mut second = server.connect();
    drop(client);
    second.send(&remove);
    assert_eq!(second.receive(), first);
    assert_eq!(server.metric("cairn_nfs_duplicates_answered_total"), 2);
    // Linux before 4.20 puts the time of day into each, also into those that it sends again.
    second.send(&with_stamp(&remove, 2));
    assert_eq!(second.receive(), first);
    assert_eq!(server.metric("cairn_nfs_duplicates_answered_total"), 3);
    // With another number it is another call.
    let refused = second.nfs(Call::Remove(v3::DirOp {
        dir: root,
        name: "file".into(),
    }));
    assert!(format!("{refused:?}").contains("NoEnt"));

    // While the first runs: both get the same reply, in either order.
    let mkdir = second.encode(&Call::MkDir(v3::MkDirArgs {
        place: v3::DirOp {
            dir: root,
            name: "dir".into(),
        },
        attributes: v3::SetAttributes::default(),
    }));
    second.send(&[&mkdir[..], &mkdir].concat());
    let (first, again) = (second.receive(), second.receive());
    assert!(matches!(
        first.nfs(v3::Procedure::MkDir),
        Reply::MkDir(Ok(_))
    ));
    assert_eq!(first, again);
}

/// What a client sent over a connection that it gave up may be read after what it sent over the next.
#[test]
fn a_late_call_undoes_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    // Small data comes with its call, large data is received apart.
    for (round, len_bytes) in [5, 100_000].into_iter().enumerate() {
        let (old, new) = (pattern(1, len_bytes), pattern(2, len_bytes));
        let late_calls = [
            client.encode(&write_call(file, 0, &old)),
            client.encode(&Call::SetAttr(v3::SetAttrArgs {
                object: file,
                attributes: v3::SetAttributes {
                    size_bytes: Some(1),
                    ..Default::default()
                },
                guard: None,
            })),
        ];
        let first = late_calls.each_ref().map(|call| {
            client.send(call);
            client.receive()
        });
        client.write(file, 0, &new).unwrap();
        let mut late = server.connect();
        let again = late_calls.each_ref().map(|call| {
            late.send(call);
            late.receive()
        });
        assert_eq!(first, again);
        let read = client.read(file, 0, len_bytes as u32);
        assert!(read == new, "{len_bytes} bytes");
        let answered = server.metric("cairn_nfs_duplicates_answered_total");
        assert_eq!(answered, 2 * (round as u64 + 1));
    }
}

/// Clients behind one address may use the same numbers.
#[test]
fn the_same_number_with_other_data_or_user_is_another_call() {
    let server = Server::start();
    let (mut one, mut two) = (server.connect(), server.connect());
    let root = one.root("/main");
    two.root("/main");
    for len_bytes in [5, 100_000] {
        let file = one.create(root, &format!("file{len_bytes}"));
        for (client, seed) in [(&mut one, 1), (&mut two, 2)] {
            let data = pattern(seed, len_bytes);
            let call = numbered(client.encode(&write_call(file, 0, &data)));
            client.send(&call);
            client.receive();
            assert!(client.read(file, 0, len_bytes as u32) == data);
        }
        let data = pattern(2, len_bytes);
        two.user = user(1000, 1000);
        let call = numbered(two.encode(&write_call(file, 0, &data)));
        two.send(&call);
        let refused = format!("{:?}", two.receive().nfs(v3::Procedure::Write));
        assert!(refused.contains("Access"), "{refused}");
        two.user = user(0, 0);
    }
    assert_eq!(server.metric("cairn_nfs_duplicates_answered_total"), 0);
}

/// A call with the number 7.
fn numbered(mut call: Vec<u8>) -> Vec<u8> {
    call[4..8].copy_from_slice(&7u32.to_be_bytes());
    call
}

#[test]
fn connections_are_limited() {
    let server = Server::with(|settings| {
        settings.connection_count_max = 3;
        settings.connection_count_per_client_max = 2;
    });
    let mut first = server.connect();
    first.root("/main");
    let mut second = server.connect();
    second.root("/main");
    let mut third = server.connect();
    assert!(third.is_closed());
    assert_eq!(server.metric("cairn_nfs_connections_refused_total"), 1);
    assert_eq!(server.metric("cairn_nfs_connections"), 2);
    first.root("/main");
}

/// Sends a call and waits until the server holds more than `held_bytes`, or has refused the connection.
fn is_begun(server: &Server, client: &mut Client, call: &[u8], held_bytes: u64) -> bool {
    let _ = client.stream.write_all(call);
    let step = Some(Duration::from_millis(10));
    client.stream.set_read_timeout(step).unwrap();
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if server.metric("cairn_nfs_held_bytes") > held_bytes {
            client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return true;
        }
        match client.stream.read(&mut [0]) {
            Ok(0) => return false,
            Ok(_) => panic!("the disks do nothing"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    panic!("neither begun nor refused");
}

/// Ends a connection as one ends that breaks: the server hears that nobody is there any more.
fn cut(client: Client) {
    let socket = socket2::SockRef::from(&client.stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A client that comes again and again, each time with a call that waits for the disks, must not make the server
/// hold more and more.
#[test]
fn what_broken_connections_left_counts_until_it_is_done() {
    const CONNECTIONS: u64 = 8;
    const HELD: u64 = 2 << 20;
    const PAYLOAD: u64 = 1 << 20;
    /// What a call that runs holds besides.
    const CALL: u64 = 1024;
    let server = Server::with_dirty(1 << 20, |settings| {
        settings.connection_count_per_client_max = CONNECTIONS as usize;
        settings.held_bytes_max = HELD as usize;
    });
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    let data = pattern(1, PAYLOAD as usize);
    let held = || server.metric("cairn_nfs_held_bytes");
    let connections = || server.metric("cairn_nfs_connections");
    server.gate.shut();
    // This one is all that memory has room for until it is on the disks.
    client.write(file, 0, &data).unwrap();

    wait_until("it is answered", || held() == 0);

    // One that was begun can be heard of over the next connection.
    let mut first = server.connect();
    let write = first.encode(&write_call(file, PAYLOAD, &data));
    assert!(is_begun(&server, &mut first, &write, PAYLOAD));
    cut(first);
    let mut again = server.connect();
    let most = CALL + 2 * PAYLOAD;
    assert!(is_begun(&server, &mut again, &write, most));
    let mut begun = vec![PAYLOAD];
    for index in 2..3 * CONNECTIONS {
        let mut one = server.connect();
        let call = one.encode(&write_call(file, index * PAYLOAD, &data));
        if is_begun(&server, &mut one, &call, held() + PAYLOAD) {
            begun.push(index * PAYLOAD);
        }
        cut(one);
        let (held, most) = (held(), HELD + CONNECTIONS * PAYLOAD);
        assert!(held <= most, "{held} bytes are held for {index} calls");
    }
    // Two are connected.
    assert_eq!(begun.len() as u64, CONNECTIONS - 2);

    server.gate.open();
    let Reply::Write(Ok(written)) = again.receive().nfs(v3::Procedure::Write) else {
        panic!("it is written");
    };
    assert_eq!(u64::from(written.count_bytes), PAYLOAD);
    assert_eq!(server.metric("cairn_nfs_duplicates_answered_total"), 1);
    // All that was begun is done to its end, and then there is room again.
    wait_until("it is done", || held() == 0 && connections() == 2);
    let mut next = server.connect();
    for offset in begun {
        assert!(next.read(file, offset, PAYLOAD as u32) == data, "{offset}");
    }
}

#[test]
fn what_changes_nothing_is_not_done_for_nobody() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    client.write(file, 0, &pattern(1, 100_000)).unwrap();
    let held = || server.metric("cairn_nfs_held_bytes");
    wait_until("it is answered", || held() == 0);
    server.gate.shut();
    let mut asks = server.connect();
    let commit = asks.encode(&Call::Commit(v3::CommitArgs {
        file,
        offset: 0,
        count_bytes: 0,
    }));
    assert!(is_begun(&server, &mut asks, &commit, 0));
    cut(asks);
    wait_until("it is given up", || held() == 0);
}

/// Others held all the memory for a moment. What waits for it here goes on when they let go of it, not when something
/// else happens on this connection.
#[test]
fn memory_that_others_give_back_is_used_at_once() {
    /// What a call that runs holds.
    const CALL: u64 = 1024;
    let server = Server::with(|settings| {
        settings.held_bytes_max = 2 * CALL as usize;
        settings.stall_timeout = Duration::from_secs(3600);
    });
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    client.write(file, 0, &pattern(1, 100_000)).unwrap();
    let held = || server.metric("cairn_nfs_held_bytes");
    wait_until("it is answered", || held() == 0);
    server.gate.shut();
    let args = v3::CommitArgs {
        file,
        offset: 0,
        count_bytes: 0,
    };
    let mut other = server.connect();
    let slow = other.encode(&Call::Commit(args.clone()));
    assert!(is_begun(&server, &mut other, &slow, 0));
    let mut bytes = client.encode(&Call::Commit(args));
    bytes.extend(client.encode(&Call::GetAttr(file)));
    client.send(&bytes);
    wait_until("all is held", || held() == 2 * CALL);
    cut(other);
    let answer = client.receive();
    let Reply::GetAttr(Ok(_)) = answer.nfs(v3::Procedure::GetAttr) else {
        panic!("it has not waited for the slow one");
    };
    server.gate.open();
    assert_eq!(client.receive().accepted(), AcceptStatus::Success);
}

#[test]
fn stopping_answers_what_was_begun() {
    let mut server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let mut idle = server.connect();
    idle.root("/main");
    let file = client.create(root, "file");
    client.write(file, 0, b"data").unwrap();
    // The answer shows that the call before it was begun.
    let commit = client.encode(&Call::Commit(v3::CommitArgs {
        file,
        offset: 0,
        count_bytes: 0,
    }));
    let getattr = client.encode(&Call::GetAttr(file));
    client.send(&[commit, getattr].concat());
    let first = client.receive();
    server.stop();
    let second = client.receive();
    assert_eq!(first.accepted(), AcceptStatus::Success);
    assert_eq!(second.accepted(), AcceptStatus::Success);
    assert!(client.is_closed());
    assert!(idle.is_closed());
    assert!(std::net::TcpStream::connect(server.address).is_err());
}
