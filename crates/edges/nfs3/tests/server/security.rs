//! Clients that must not: outside of an export's list, read-only, squashed, with handles that they made,
//! slow on purpose.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use cairn_base::{Generation, View};
use cairn_codec_nfs::mount::{self, MountError};
use cairn_codec_nfs::v3::{self, Call, ErrorStatus, FileHandle, Procedure, Reply};
use cairn_codec_rpc::{AcceptStatus, AuthSys, OpaqueAuth, Reader};
use cairn_exports::{Export, FailedVolume, HandleSigner, Squash, Target, Volume};
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::{Client, KEY, Server, call_bytes, export, pattern, rule, user, write_call};

/// All of 127.0.0.0/8 is this machine.
const INSIDE: &str = "127.0.0.1/32";
const OUTSIDE: [u8; 4] = [127, 0, 0, 2];
const NOBODY: u32 = cairn_exports::ANONYMOUS_ID;
/// A test that would wait for ever fails after this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client at another address of this machine.
fn outsider(server: &Server) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket
        .bind(&SocketAddr::new(IpAddr::from(OUTSIDE), 0).into())
        .unwrap();
    socket.connect(&server.address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let stream = std::net::TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    let xid = u32::from(stream.local_addr().unwrap().port()) << 16;
    Client {
        stream,
        xid,
        user: user(0, 0),
    }
}

/// One call of each procedure about this file and this directory; none for NULL.
fn call_of(procedure: Procedure, file: FileHandle, dir: FileHandle) -> Option<Call<'static>> {
    let attributes = v3::SetAttributes {
        mode: Some(0o600),
        ..v3::SetAttributes::default()
    };
    let place = |name: &'static str| v3::DirOp {
        dir,
        name: name.into(),
    };
    Some(match procedure {
        Procedure::Null => return None,
        Procedure::GetAttr => Call::GetAttr(file),
        Procedure::SetAttr => Call::SetAttr(v3::SetAttrArgs {
            object: file,
            attributes,
            guard: None,
        }),
        Procedure::Lookup => Call::Lookup(place("file")),
        Procedure::Access => Call::Access(v3::AccessArgs {
            object: file,
            access: 0x3f,
        }),
        Procedure::ReadLink => Call::ReadLink(file),
        Procedure::Read => Call::Read(v3::ReadArgs {
            file,
            offset: 0,
            count_bytes: 10,
        }),
        Procedure::Write => write_call(file, 0, b"other"),
        Procedure::Create => Call::Create(v3::CreateArgs {
            place: place("created"),
            how: v3::CreateHow::Unchecked(attributes),
        }),
        Procedure::MkDir => Call::MkDir(v3::MkDirArgs {
            place: place("folder"),
            attributes,
        }),
        Procedure::SymLink => Call::SymLink(v3::SymLinkArgs {
            place: place("symlink"),
            attributes: v3::SetAttributes::default(),
            target: "/etc/passwd".into(),
        }),
        Procedure::MkNod => Call::MkNod(v3::MkNodArgs {
            place: place("fifo"),
            what: v3::MkNodWhat::Fifo(attributes),
        }),
        Procedure::Remove => Call::Remove(place("file")),
        Procedure::RmDir => Call::RmDir(place("dir")),
        Procedure::Rename => Call::Rename(v3::RenameArgs {
            from: place("file"),
            to: place("renamed"),
        }),
        Procedure::Link => Call::Link(v3::LinkArgs {
            file,
            link: place("linked"),
        }),
        Procedure::ReadDir => Call::ReadDir(v3::ReadDirArgs {
            dir,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 4096,
        }),
        Procedure::ReadDirPlus => Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir,
            cookie: 0,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 4096,
        }),
        Procedure::FsStat => Call::FsStat(dir),
        Procedure::FsInfo => Call::FsInfo(dir),
        Procedure::PathConf => Call::PathConf(dir),
        Procedure::Commit => Call::Commit(v3::CommitArgs {
            file,
            offset: 0,
            count_bytes: 0,
        }),
    })
}

fn changes(procedure: Procedure) -> bool {
    match procedure {
        Procedure::SetAttr
        | Procedure::Write
        | Procedure::Create
        | Procedure::MkDir
        | Procedure::SymLink
        | Procedure::MkNod
        | Procedure::Remove
        | Procedure::RmDir
        | Procedure::Rename
        | Procedure::Link => true,
        Procedure::Null
        | Procedure::GetAttr
        | Procedure::Lookup
        | Procedure::Access
        | Procedure::ReadLink
        | Procedure::Read
        | Procedure::ReadDir
        | Procedure::ReadDirPlus
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf
        // Of a file that nobody may write it does nothing.
        | Procedure::Commit => false,
    }
}

/// Every procedure on these objects fails with `status`, and tells nothing of them.
fn nothing_is_answered(client: &mut Client, file: FileHandle, dir: FileHandle, status: &str) {
    for procedure in Procedure::ALL {
        let Some(call) = call_of(*procedure, file, dir) else {
            continue;
        };
        let text = format!("{:?}", client.nfs(call));
        assert!(text.contains(&format!("status: {status}")), "{text}");
        assert!(!text.contains("FileAttr"), "{text}");
    }
    // Of a large WRITE the payload comes apart; it is not even kept.
    let payload = vec![7; 200_000];
    let refused = client.write(file, 0, &payload).unwrap_err();
    assert_eq!(format!("{:?}", refused.status), status);
    assert_eq!(refused.body.after, None);
}

fn mounted(client: &mut Client, path: &str) -> Result<FileHandle, MountError> {
    let path: &'static str = path.to_owned().leak();
    match client.mount(mount::Call::Mount(path.into())) {
        mount::Reply::Mount(result) => result.map(|found| found.handle),
        other => panic!("{other:?}"),
    }
}

fn dump_len(client: &mut Client) -> usize {
    match client.mount(mount::Call::Dump) {
        mount::Reply::Dump(mounts) => mounts.0.len(),
        other => panic!("{other:?}"),
    }
}

fn make_dir(client: &mut Client, dir: FileHandle, name: &'static str) -> FileHandle {
    let place = v3::DirOp {
        dir,
        name: name.into(),
    };
    let attributes = v3::SetAttributes {
        mode: Some(0o777),
        ..v3::SetAttributes::default()
    };
    match client.nfs(Call::MkDir(v3::MkDirArgs { place, attributes })) {
        Reply::MkDir(Ok(made)) => made.object.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_procedure_answers_a_client_outside_of_the_list() {
    let server = Server::start();
    let only_inside = || vec![export(&server.main, vec![rule(INSIDE)])];
    server.exports.replace(only_inside());
    let mut inside = server.connect();
    let (pseudo, root) = (inside.root("/"), inside.root("/main"));
    let file = inside.create(root, "file");
    let mut outside = outsider(&server);

    nothing_is_answered(&mut outside, file, root, "Access");
    nothing_is_answered(&mut outside, pseudo, pseudo, "Access");
    // Nor does it learn which names there are.
    for path in ["/main", "/", "", "/main/.", "/none", "/main/none"] {
        assert_eq!(
            mounted(&mut outside, path),
            Err(MountError::Access),
            "{path}"
        );
    }
    match outside.mount(mount::Call::Export) {
        mount::Reply::Export(exports) => assert!(exports.0.is_empty()),
        other => panic!("{other:?}"),
    }
    // Nor who mounted what; and it ends nobody else's mount.
    assert_eq!(dump_len(&mut outside), 0);
    outside.mount(mount::Call::Unmount("/main".into()));
    outside.mount(mount::Call::UnmountAll);
    assert_eq!(dump_len(&mut inside), 2);
    // The old version of the protocol is no way around.
    let path = mount::Call::Mount("/main".into());
    let answer = outside.call((mount::PROGRAM, 1, 1), &path);
    assert_eq!(answer.accepted(), AcceptStatus::Success);
    let mut from = Reader::new(answer.results);
    let reply = mount::Reply::decode(1, mount::Procedure::Mount, &mut from);
    assert!(
        matches!(reply, Ok(mount::Reply::MountV1(Err(_)))),
        "{reply:?}"
    );
    assert_eq!(inside.read(file, 0, 10), b"");

    // Of a volume that others may use, but this client not, a handle helps nobody.
    let both = vec![
        export(&server.main, vec![rule("127.0.0.0/8")]),
        export(&server.other, vec![rule(INSIDE)]),
    ];
    server.exports.replace(both);
    let other = inside.root("/other");
    let theirs = inside.create(other, "file");
    nothing_is_answered(&mut outside, theirs, other, "Access");
    let second = Call::Link(v3::LinkArgs {
        file,
        link: v3::DirOp {
            dir: other,
            name: "stolen".into(),
        },
    });
    let text = format!("{:?}", outside.nfs(second));
    assert!(text.contains("status: Access"), "{text}");

    // A right that is taken away while the connection is open is gone with the next call.
    server
        .exports
        .replace(vec![export(&server.main, vec![rule("10.0.0.0/8")])]);
    nothing_is_answered(&mut inside, file, root, "Access");
    server.exports.replace(Vec::new());
    nothing_is_answered(&mut inside, file, root, "Stale");
    server.exports.replace(only_inside());
    assert_eq!(inside.lookup(root, "file"), Ok(file));
}

/// The handle and the user of a large WRITE are looked at when its head comes, and its payload may come much later.
#[test]
fn exports_that_change_while_a_payload_comes_hold_for_it() {
    const LEN: usize = 200_000;
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    let exports_before = || {
        server
            .exports
            .replace(vec![export(&server.main, vec![rule(INSIDE)])])
    };
    let mut changed = rule(INSIDE);
    changed.squash = Squash::All;
    let mut read_only = rule(INSIDE);
    read_only.read_only = true;
    let failed = || Export {
        volume: Volume::Failed(FailedVolume {
            volume: server.main.volume(),
            name: "main".into(),
            root: Some(cairn_fs::ROOT),
        }),
        rules: vec![rule(INSIDE)],
        gate: None,
        activity: None,
    };
    let cases = [
        (vec![export(&server.main, vec![rule(INSIDE)])], Ok(())),
        (
            vec![
                // The grants of a client change their places.
                export(&server.other, vec![rule(INSIDE)]),
                export(&server.main, vec![rule(INSIDE)]),
            ],
            Ok(()),
        ),
        (
            vec![export(&server.main, vec![read_only])],
            Err(ErrorStatus::RoFs),
        ),
        (
            vec![export(&server.main, vec![changed])],
            Err(ErrorStatus::Access),
        ),
        (
            vec![export(&server.main, vec![rule("10.0.0.0/8")])],
            Err(ErrorStatus::Access),
        ),
        (vec![failed()], Err(ErrorStatus::JukeBox)),
        (Vec::new(), Err(ErrorStatus::Stale)),
    ];
    for (index, (exports, want)) in cases.into_iter().enumerate() {
        exports_before();
        let data = pattern(index as u32, LEN);
        let bytes = client.encode(&write_call(file, 0, &data));
        client.send(&bytes[..LEN / 2]);
        while server.metric("cairn_nfs_held_bytes") < LEN as u64 {
            std::thread::yield_now();
        }
        server.exports.replace(exports);
        client.send(&bytes[LEN / 2..]);
        let got = match client.receive().nfs(Procedure::Write) {
            Reply::Write(result) => result.map(|_| ()).map_err(|failure| failure.status),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, want, "case {index}");
        exports_before();
        let is_written = client.read(file, 0, LEN as u32) == data;
        assert_eq!(is_written, want.is_ok(), "case {index}");
    }
}

/// Linux gives up a stale file for ever, with the data that it has not written yet.
#[test]
fn a_volume_that_cannot_be_opened_is_waited_for() {
    let server = Server::with(|settings| settings.connection_count_max = 4);
    let mut inside = server.connect();
    let root = inside.root("/main");
    let file = inside.create(root, "file");
    let mut outside = outsider(&server);
    let failed = FailedVolume {
        volume: server.main.volume(),
        name: "main".into(),
        root: Some(cairn_fs::ROOT),
    };
    server.exports.replace(vec![Export {
        volume: Volume::Failed(failed),
        rules: vec![rule(INSIDE)],
        gate: None,
        activity: None,
    }]);
    nothing_is_answered(&mut inside, file, root, "JukeBox");
    nothing_is_answered(&mut outside, file, root, "Access");

    // A mount waits: the first that Linux asks of the root is asked until it is answered.
    assert_eq!(mounted(&mut inside, "/main"), Ok(root));
    // No error of MOUNT says "later", and nobody knows what this is.
    let below = mounted(&mut inside, "/main/dir");
    assert_eq!(below, Err(MountError::ServerFault));
    assert_eq!(mounted(&mut inside, "/none"), Err(MountError::NoEnt));
    assert_eq!(mounted(&mut outside, "/main"), Err(MountError::Access));
    assert_eq!(mounted(&mut outside, "/"), Err(MountError::Access));
    for (client, count) in [(&mut inside, 1), (&mut outside, 0)] {
        match client.mount(mount::Call::Export) {
            mount::Reply::Export(exports) => assert_eq!(exports.0.len(), count),
            other => panic!("{other:?}"),
        }
        assert_eq!(dump_len(client), count);
    }
    let pseudo = inside.root("/");
    assert_eq!(inside.lookup(pseudo, "main"), Err(ErrorStatus::JukeBox));
    let listing = call_of(Procedure::ReadDir, pseudo, pseudo).unwrap();
    let text = format!("{:?}", inside.nfs(listing));
    assert!(text.contains("main"), "{text}");
    // A waiting client does not count as unauthorized: those get half of the connections.
    for mut client in [server.connect(), server.connect()] {
        assert_eq!(mounted(&mut client, "/main"), Ok(root));
    }

    server
        .exports
        .replace(vec![export(&server.main, vec![rule(INSIDE)])]);
    assert_eq!(inside.lookup(root, "file"), Ok(file));
}

#[test]
fn nothing_changes_through_a_read_only_export() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    make_dir(&mut client, root, "dir");
    client.write(file, 0, b"data").unwrap();
    // The first READ sets the access time, for every reader.
    client.read(file, 0, 10);
    let before = (client.getattr(root), client.getattr(file));

    let mut read_only = rule("127.0.0.0/8");
    read_only.read_only = true;
    server
        .exports
        .replace(vec![export(&server.main, vec![read_only])]);
    for procedure in Procedure::ALL {
        let Some(call) = call_of(*procedure, file, root) else {
            continue;
        };
        let text = format!("{:?}", client.nfs(call));
        let refused = text.contains("status: RoFs");
        assert_eq!(refused, changes(*procedure), "{text}");
    }
    let payload = vec![7; 200_000];
    let refused = client.write(file, 0, &payload).unwrap_err();
    assert_eq!(refused.status, ErrorStatus::RoFs);
    assert_eq!((client.getattr(root), client.getattr(file)), before);
    assert_eq!(client.read(file, 0, 10), b"data");
}

#[test]
fn a_listing_tells_who_may_not_search_names_alone() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let file = client.create(dir, "file");
    let mode = |object, mode| {
        Call::SetAttr(v3::SetAttrArgs {
            object,
            attributes: v3::SetAttributes {
                mode: Some(mode),
                ..v3::SetAttributes::default()
            },
            guard: None,
        })
    };
    client.nfs(mode(file, 0o644));
    // Others may list it, and the file's own mode lets all read.
    for (bits, may_search) in [(0o744, false), (0o755, true)] {
        client.user = user(0, 0);
        client.nfs(mode(dir, bits));
        client.user = user(1000, 1000);
        let found = client.lookup(dir, "file");
        assert_eq!(found.is_ok(), may_search, "{bits:o}");
        let listing = call_of(Procedure::ReadDirPlus, file, dir).unwrap();
        let Reply::ReadDirPlus(Ok(page)) = client.nfs(listing) else {
            panic!("{bits:o}: it may be listed");
        };
        assert_eq!(page.entries.0.len(), 3, "{bits:o}");
        for entry in &page.entries.0 {
            let told = (entry.handle.is_some(), entry.attributes.is_some());
            assert_eq!(told, (may_search, may_search), "{bits:o}: {entry:?}");
        }
    }
}

/// Owner and group of everything that a call makes.
fn owner_of_made(reply: Reply<'static>) -> (u32, u32) {
    let made = match reply {
        Reply::Create(Ok(made))
        | Reply::MkDir(Ok(made))
        | Reply::SymLink(Ok(made))
        | Reply::MkNod(Ok(made)) => made,
        other => panic!("{other:?}"),
    };
    let attributes = made.attributes.unwrap();
    (attributes.uid, attributes.gid)
}

#[test]
fn every_procedure_is_done_as_the_squashed_user() {
    let server = Server::start();
    let mut root_user = server.connect();
    let root = root_user.root("/main");
    let private = root_user.create(root, "private");
    let mode = |object, mode, gid| {
        Call::SetAttr(v3::SetAttrArgs {
            object,
            attributes: v3::SetAttributes {
                mode: Some(mode),
                gid,
                ..v3::SetAttributes::default()
            },
            guard: None,
        })
    };
    root_user.nfs(mode(private, 0o640, Some(0)));
    root_user.write(private, 0, b"secret").unwrap();
    // Nobody but root may search it.
    let locked = make_dir(&mut root_user, root, "locked");
    let inside = make_dir(&mut root_user, locked, "inside");
    root_user.nfs(mode(inside, 0o777, None));
    root_user.create(locked, "file");
    root_user.nfs(mode(locked, 0o700, None));
    // What a directory hides now, its snapshots do not show, though it was open then.
    root_user.nfs(mode(locked, 0o777, None));
    let (main, name) = (server.main.clone(), b"open");
    server.run(async move { main.take_snapshot(name, b"").await.unwrap() });
    root_user.nfs(mode(locked, 0o700, None));
    let snapshots = root_user.lookup(locked, ".snapshot").unwrap();
    root_user.lookup(snapshots, "open").unwrap();
    let mount_paths = [
        "/main/locked/inside",
        "/main/locked/file",
        "/main/locked/none",
        "/main/locked/.snapshot",
        "/main/locked/.snapshot/open",
    ];
    assert_eq!(mounted(&mut root_user, mount_paths[0]), Ok(inside));
    let places = ["place-0", "place-1", "place-2", "place-3", "place-4"];
    let open = places.map(|name| {
        let dir = make_dir(&mut root_user, root, name);
        root_user.nfs(mode(dir, 0o777, None));
        dir
    });

    let sys = |uid, gid, groups: &[u32]| {
        let body = AuthSys {
            stamp: 1,
            machine_name: "test".into(),
            uid,
            gid,
            groups: cairn_codec_rpc::rpc::Groups::new(groups).unwrap(),
        };
        Some(body.to_body())
    };
    let cases = [
        (Squash::Root, sys(0, 0, &[0]), (NOBODY, NOBODY)),
        (Squash::Root, sys(1000, 0, &[0]), (1000, NOBODY)),
        (Squash::All, sys(0, 0, &[0]), (NOBODY, NOBODY)),
        (Squash::All, sys(1000, 1000, &[0, 1000]), (NOBODY, NOBODY)),
        // Without a credential nobody is root, whatever the rule says.
        (Squash::None, None, (NOBODY, NOBODY)),
    ];
    for ((squash, body, want), dir) in cases.into_iter().zip(open) {
        let mut squashed = rule("127.0.0.0/8");
        squashed.squash = squash;
        server
            .exports
            .replace(vec![export(&server.main, vec![squashed])]);
        let mut client = server.connect();
        let credential = match &body {
            Some(body) => OpaqueAuth::sys(body),
            None => OpaqueAuth::NONE,
        };
        let case = format!("{squash:?} {body:?}");
        // MOUNT tells nothing of a directory that the squashed user may not search, and leads to nothing
        // below it; the directory itself it may hold.
        let versions = [
            (
                mount::VERSION_1,
                "(Err(MountErrno(13)",
                "(Err(MountErrno(2)",
            ),
            (mount::VERSION_3, "(Err(Access", "(Err(NoEnt"),
        ];
        for (version, access, no_ent) in versions {
            let mut mounts = |path: &'static str| {
                let place = (mount::PROGRAM, version, mount::Procedure::Mount.number());
                let call = mount::Call::Mount(path.into());
                client.send(&call_bytes(1, place, &credential, &call));
                let answer = client.receive();
                let mut from = Reader::new(answer.results);
                mount::Reply::decode(version, mount::Procedure::Mount, &mut from).unwrap()
            };
            for path in mount_paths {
                let text = format!("{:?}", mounts(path));
                assert!(text.contains(access), "{case} {path}: {text}");
            }
            for path in ["/", "/main", "/main/locked", "/main/place-0"] {
                let text = format!("{:?}", mounts(path));
                assert!(text.contains("(Ok("), "{case} {path}: {text}");
            }
            let text = format!("{:?}", mounts("/main/none"));
            assert!(text.contains(no_ent), "{case}: {text}");
        }
        let mut call = |call: Call<'static>| {
            client.xid += 1;
            let place = (v3::PROGRAM, v3::VERSION, call.procedure().number());
            let bytes = call_bytes(client.xid, place, &credential, &call);
            client.send(&bytes);
            client.receive().nfs(call.procedure())
        };
        for (dir, name) in [(locked, ".snapshot"), (snapshots, "open"), (snapshots, ".")] {
            let name = name.as_bytes().into();
            let text = format!("{:?}", call(Call::Lookup(v3::DirOp { dir, name })));
            assert!(text.contains("status: Access"), "{case}: {text}");
        }
        for procedure in [
            Procedure::Create,
            Procedure::MkDir,
            Procedure::SymLink,
            Procedure::MkNod,
        ] {
            let made = call(call_of(procedure, private, dir).unwrap());
            assert_eq!(owner_of_made(made), want, "{case} {procedure:?}");
        }
        let exclusive = Call::Create(v3::CreateArgs {
            place: v3::DirOp {
                dir,
                name: "exclusive".into(),
            },
            how: v3::CreateHow::Exclusive(*b"verifier"),
        });
        assert_eq!(owner_of_made(call(exclusive)), want, "{case}");
        // Files of root and root's group keep their owner.
        for (procedure, status) in [
            (Procedure::Read, "Access"),
            (Procedure::Write, "Access"),
            (Procedure::SetAttr, "Perm"),
        ] {
            let text = format!("{:?}", call(call_of(procedure, private, dir).unwrap()));
            assert!(
                text.contains(&format!("status: {status}")),
                "{case}: {text}"
            );
        }
        match call(call_of(Procedure::Access, private, dir).unwrap()) {
            Reply::Access(Ok(answer)) => assert_eq!(answer.access, 0, "{case}"),
            other => panic!("{case}: {other:?}"),
        }
        for procedure in [
            Procedure::Create,
            Procedure::MkDir,
            Procedure::SymLink,
            Procedure::MkNod,
            Procedure::Remove,
            Procedure::Rename,
            Procedure::Link,
        ] {
            let name = match procedure {
                Procedure::Remove | Procedure::Rename => "private",
                _ => "file",
            };
            let place = v3::DirOp {
                dir: root,
                name: name.into(),
            };
            let made = match procedure {
                Procedure::Remove => Call::Remove(place),
                Procedure::Rename => Call::Rename(v3::RenameArgs {
                    from: place,
                    to: v3::DirOp {
                        dir: root,
                        name: "taken".into(),
                    },
                }),
                _ => call_of(procedure, private, root).unwrap(),
            };
            let text = format!("{:?}", call(made));
            assert!(
                text.contains("status: Access"),
                "{case} {procedure:?}: {text}"
            );
        }
    }
}

/// A snapshot may be deleted while clients hold handles of what is in it.
#[test]
fn a_handle_of_a_view_that_is_not_there_is_stale() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let in_view = |view| {
        let target = Target::Inode {
            volume: server.main.volume(),
            view,
            ino: server.main.root(),
        };
        FileHandle::new(HandleSigner::new(&KEY).seal(target).as_bytes()).unwrap()
    };
    assert_eq!(in_view(View::Live).as_bytes(), root.as_bytes());
    let gone = in_view(View::Snapshot(Generation::FIRST));
    assert_eq!(client.getattr(gone), Err(ErrorStatus::Stale));
    let file = client.create(root, "file");
    for (file, dir) in [(file, gone), (gone, root)] {
        let name = b"link"[..].into();
        let link = v3::DirOp { dir, name };
        let link = Call::Link(v3::LinkArgs { file, link });
        let Reply::Link(Err(failure)) = client.nfs(link) else {
            panic!("a link with a handle of nothing");
        };
        assert_eq!(failure.status, ErrorStatus::Stale);
    }
}

#[test]
fn handles_cannot_be_made_or_carried_over() {
    let server = Server::start();
    let mut client = server.connect();
    let (root, other) = (client.root("/main"), client.root("/other"));
    let file = client.create(root, "file");
    let handle = |bytes: &[u8]| FileHandle::new(bytes).unwrap();
    for real in [root, file, other] {
        for bit in 0..real.as_bytes().len() * 8 {
            let mut forged = real.as_bytes().to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            let got = client.getattr(handle(&forged));
            assert_eq!(got, Err(ErrorStatus::BadHandle), "bit {bit}");
        }
    }
    // Parts of two real ones make no third.
    for at in 1..file.as_bytes().len() {
        let (front, back) = (&file.as_bytes()[..at], &other.as_bytes()[at..]);
        let mixed = handle(&[front, back].concat());
        if mixed != file && mixed != other {
            assert_eq!(
                client.getattr(mixed),
                Err(ErrorStatus::BadHandle),
                "at {at}"
            );
        }
    }
    // Another pool signs with another key, and its inode 1 is not ours.
    let mut key = KEY;
    key[0] ^= 1;
    let inode = Target::Inode {
        volume: server.main.volume(),
        view: View::Live,
        ino: server.main.root(),
    };
    let foreign = HandleSigner::new(&key).seal(inode);
    let got = client.getattr(handle(foreign.as_bytes()));
    assert_eq!(got, Err(ErrorStatus::BadHandle));
    assert_eq!(
        HandleSigner::new(&KEY).seal(inode).as_bytes(),
        root.as_bytes()
    );
    // Between volumes nothing is linked or renamed.
    let place = |dir, name: &'static str| v3::DirOp {
        dir,
        name: name.into(),
    };
    for call in [
        Call::Link(v3::LinkArgs {
            file,
            link: place(other, "x"),
        }),
        Call::Rename(v3::RenameArgs {
            from: place(root, "file"),
            to: place(other, "x"),
        }),
    ] {
        let text = format!("{:?}", client.nfs(call));
        assert!(text.contains("status: XDev"), "{text}");
    }
    // Of a file that is gone it is stale, for every procedure that is about it.
    client.nfs(Call::Remove(place(root, "file")));
    for procedure in [
        Procedure::GetAttr,
        Procedure::SetAttr,
        Procedure::Access,
        Procedure::ReadLink,
        Procedure::Read,
        Procedure::Write,
        Procedure::Link,
        Procedure::Commit,
    ] {
        let text = format!("{:?}", client.nfs(call_of(procedure, file, root).unwrap()));
        assert!(text.contains("status: Stale"), "{procedure:?}: {text}");
    }
}

#[test]
fn no_path_leads_out_of_a_volume() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let link = Call::SymLink(v3::SymLinkArgs {
        place: v3::DirOp {
            dir: root,
            name: "link".into(),
        },
        attributes: v3::SetAttributes::default(),
        target: "/".into(),
    });
    client.nfs(link);
    // Above the root there is the root.
    assert_eq!(client.lookup(root, ".."), Ok(root));
    assert_eq!(client.lookup(root, "."), Ok(root));
    assert_eq!(client.lookup(dir, ".."), Ok(root));
    for name in ["/", "dir/..", "../other", "/etc", "dir/", "a\0b", "\0"] {
        assert!(client.lookup(root, name).is_err(), "{name:?}");
    }
    let long = "n".repeat(256);
    assert_eq!(client.lookup(root, &long), Err(ErrorStatus::NameTooLong));
    let deep = format!("/main/{}", "dir/".repeat(400));
    for path in [
        "/main/..",
        "/main/../other",
        "/main/dir/../../other",
        "/..",
        "/../etc",
        "..",
        // A link is followed by clients, in their own tree, never by the server.
        "/main/link",
        "/main/link/etc",
        "/main/\0",
        "/main/dir\0/..",
        &format!("/main/{long}"),
    ] {
        assert!(mounted(&mut client, path).is_err(), "{path:?}");
    }
    // Longer than the protocol's limit: refused before it is looked at.
    let call = mount::Call::Mount((&*deep.leak()).into());
    let answer = client.call((mount::PROGRAM, 3, 1), &call);
    assert_eq!(answer.accepted(), AcceptStatus::GarbageArgs);
    assert_eq!(client.lookup(root, "dir"), Ok(dir));
}

/// Waits until the server has closed the connection; says what it is fed with meanwhile.
fn is_closed_soon(client: &mut Client, feed: &[u8]) -> bool {
    let (started, mut feed) = (Instant::now(), feed.iter().cycle());
    let step = Duration::from_millis(20);
    client.stream.set_read_timeout(Some(step)).unwrap();
    while started.elapsed() < PATIENCE {
        let fed = match feed.next() {
            Some(byte) => client.stream.write_all(&[*byte]),
            None => Ok(()),
        };
        match client.stream.read(&mut [0]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
        if fed.is_err() {
            return true;
        }
    }
    false
}

#[test]
fn whoever_dribbles_or_may_nothing_is_cut_off() {
    let server = Server::with(|settings| settings.stall_timeout = Duration::from_millis(400));
    server
        .exports
        .replace(vec![export(&server.main, vec![rule(INSIDE)])]);
    let mut inside = server.connect();
    let root = inside.root("/main");
    let file = inside.create(root, "file");
    // A record that grows by a byte now and then holds its memory for ever.
    let payload = vec![7; 1 << 20];
    let whole = inside.encode(&write_call(file, 0, &payload));
    let mut slow = server.connect();
    slow.send(&whole[..2000]);
    assert!(is_closed_soon(&mut slow, &whole[2000..]));
    // So it does in many fragments.
    let mut slow = server.connect();
    assert!(is_closed_soon(&mut slow, &[0, 0, 0, 1, 7]));
    // Who may mount something may be silent; who may not, not.
    let mut stranger = outsider(&server);
    assert!(is_closed_soon(&mut stranger, &[]));
    let mut stranger = outsider(&server);
    let fragment = (0x7fff_ffff_u32 & (100 << 10)).to_be_bytes();
    stranger.send(&fragment);
    assert!(is_closed_soon(&mut stranger, &[]));
    inside.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(inside.lookup(root, "file"), Ok(file));
    assert!(server.metric("cairn_nfs_connections_stalled_total") >= 3);
    assert!(server.metric("cairn_nfs_connections_broken_total") >= 1);
}

#[test]
fn strangers_cannot_take_all_connections() {
    let server = Server::with(|settings| {
        settings.connection_count_max = 8;
        settings.connection_count_per_client_max = 8;
    });
    server
        .exports
        .replace(vec![export(&server.main, vec![rule(INSIDE)])]);
    let mut strangers: Vec<Client> = (0..8).map(|_| outsider(&server)).collect();
    let null = (v3::PROGRAM, v3::VERSION, 0);
    let mut served = 0;
    for stranger in &mut strangers {
        stranger.xid += 1;
        let bytes = call_bytes(stranger.xid, null, &OpaqueAuth::sys(&user(0, 0)), &());
        let sent = stranger.stream.write_all(&bytes).is_ok();
        served += usize::from(sent && !stranger.is_closed());
    }
    assert_eq!(served, 4);
    let mut inside: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut inside {
        client.root("/main");
    }
}

/// What the server holds of replies of NULL that nobody reads, when it takes no more calls.
fn held_for_unread(server: &Server, strangers: &mut [Client]) -> u64 {
    let null = (v3::PROGRAM, v3::VERSION, 0);
    let calls = call_bytes(1, null, &OpaqueAuth::NONE, &()).repeat(1000);
    for stranger in &mut *strangers {
        let step = Duration::from_millis(500);
        stranger.stream.set_write_timeout(Some(step)).unwrap();
    }
    let (started, mut sent) = (Instant::now(), vec![0; strangers.len()]);
    loop {
        let mut is_taking = false;
        for (stranger, sent) in strangers.iter_mut().zip(&mut sent) {
            if let Ok(count) = stranger.stream.write(&calls[*sent % calls.len()..]) {
                *sent += count;
                is_taking = true;
            }
        }
        let held = server.metric("cairn_nfs_held_bytes");
        if !is_taking && held > 0 {
            return held;
        }
        assert!(started.elapsed() < PATIENCE, "the server takes all");
    }
}

#[test]
fn strangers_cannot_take_the_memory_for_replies() {
    let server = Server::with(|settings| {
        settings.held_bytes_max = 1 << 20;
        settings.socket_buffer_bytes = 256 << 10;
    });
    server
        .exports
        .replace(vec![export(&server.main, vec![rule(INSIDE)])]);
    let mut strangers: Vec<Client> = (0..2).map(|_| outsider(&server)).collect();
    let held = held_for_unread(&server, &mut strangers);
    // The reply that reaches the limit is still taken.
    assert!(held <= 2 * ((64 << 10) + 100), "{held}");
}
