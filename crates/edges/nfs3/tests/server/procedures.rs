//! Every procedure of NFS, MOUNT, PORTMAP and rpcbind over a socket, on a real volume.

use crate::common::{Answer, Client, Server, call_bytes, export, pattern, rule, user, write_call};
use cairn_codec_nfs::v3::{
    self, Call, CreateHow, DeviceNumber, DirOp, ErrorStatus, FileHandle, FileType, MkNodWhat,
    NfsTime, Reply, SetAttributes, SetTime, StableHow,
};
use cairn_codec_nfs::{mount, nlm};
use cairn_codec_rpc::{AcceptStatus, OpaqueAuth, Reader, portmap, rpcbind};

macro_rules! ok {
    ($reply:expr, $variant:ident) => {
        match $reply {
            Reply::$variant(Ok(results)) => results,
            other => panic!("{other:?}"),
        }
    };
}

macro_rules! err {
    ($reply:expr, $variant:ident) => {
        match $reply {
            Reply::$variant(Err(failure)) => failure,
            other => panic!("{other:?}"),
        }
    };
}

fn place(dir: FileHandle, name: &str) -> DirOp<'_> {
    DirOp {
        dir,
        name: name.into(),
    }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

fn make_dir(client: &mut Client, dir: FileHandle, name: &str) -> FileHandle {
    let args = v3::MkDirArgs {
        place: place(dir, name),
        attributes: mode(0o755),
    };
    ok!(client.nfs(Call::MkDir(args)), MkDir).object.unwrap()
}

#[test]
fn files_are_made_written_read_and_removed() {
    let server = Server::start();
    let mut client = server.connect();
    assert_eq!(client.nfs(Call::Null), Reply::Null);
    let root = client.root("/main");
    let attr = client.getattr(root).unwrap();
    assert_eq!(
        (attr.file_type, attr.fsid, attr.fileid),
        (FileType::Directory, 1, 1)
    );

    let args = v3::CreateArgs {
        place: place(root, "file"),
        how: CreateHow::Guarded(mode(0o640)),
    };
    let made = ok!(client.nfs(Call::Create(args.clone())), Create);
    let file = made.object.unwrap();
    assert_eq!(made.attributes.unwrap().mode, 0o640);
    assert!(made.dir_wcc.before.unwrap().ctime < made.dir_wcc.after.unwrap().ctime);
    let again = err!(client.nfs(Call::Create(args)), Create);
    assert_eq!(again.status, ErrorStatus::Exist);
    assert!(again.body.after.is_some());

    let data = pattern(1, 100_000);
    let written = ok!(client.nfs(write_call(file, 7, &data)), Write);
    assert_eq!(written.count_bytes, 100_000);
    assert_eq!(written.wcc.before.unwrap().size_bytes, 0);
    assert_eq!(written.wcc.after.unwrap().size_bytes, 100_007);
    let committed = ok!(
        client.nfs(Call::Commit(v3::CommitArgs {
            file,
            offset: 0,
            count_bytes: 0
        })),
        Commit
    );
    assert_eq!(committed.verifier, written.verifier);
    for stable in [StableHow::DataSync, StableHow::FileSync] {
        let call = v3::WriteArgs {
            head: v3::WriteHead {
                file,
                offset: 0,
                count_bytes: 7,
                stable,
            },
            data: b"stable!".as_slice().into(),
        };
        let written = ok!(client.nfs(Call::Write(call)), Write);
        assert_eq!(written.committed, StableHow::FileSync);
    }

    let read = ok!(
        client.nfs(Call::Read(v3::ReadArgs {
            file,
            offset: 7,
            count_bytes: 1 << 20,
        })),
        Read
    );
    assert_eq!(
        (read.head.count_bytes, read.head.eof, &*read.data),
        (100_000, true, &data[..])
    );
    assert_eq!(read.head.attributes.unwrap().size_bytes, 100_007);
    assert_eq!(client.read(file, 0, 7), b"stable!");
    // Beyond the end there is nothing, near 2^64 too.
    for offset in [100_007, u64::MAX] {
        assert_eq!(client.read(file, offset, 10), b"");
    }

    let access = ok!(
        client.nfs(Call::Access(v3::AccessArgs {
            object: file,
            access: 0x3f
        })),
        Access
    );
    assert_eq!(
        access.access & (v3::access::READ | v3::access::MODIFY),
        v3::access::READ | v3::access::MODIFY
    );

    let removed = ok!(client.nfs(Call::Remove(place(root, "file"))), Remove);
    assert!(removed.before.is_some() && removed.after.is_some());
    let gone = err!(client.nfs(Call::Remove(place(root, "file"))), Remove);
    assert_eq!(gone.status, ErrorStatus::NoEnt);
    assert!(gone.body.after.is_some());
    assert_eq!(client.lookup(root, "file"), Err(ErrorStatus::NoEnt));
    assert_eq!(client.getattr(file), Err(ErrorStatus::Stale));
}

#[test]
fn attributes_are_set_and_guarded() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    let time = NfsTime {
        seconds: 4_000_000_000,
        nanos: 999_999_999,
    };
    let set = |attributes, guard| {
        Call::SetAttr(v3::SetAttrArgs {
            object: file,
            attributes,
            guard,
        })
    };
    let wcc = ok!(
        client.nfs(set(
            SetAttributes {
                mode: Some(0o100_751),
                uid: Some(7),
                gid: Some(8),
                size_bytes: Some(1 << 40),
                atime: SetTime::ClientTime(time),
                mtime: SetTime::ServerTime,
            },
            None
        )),
        SetAttr
    );
    let attr = wcc.after.unwrap();
    assert_eq!(
        (attr.mode, attr.uid, attr.gid, attr.size_bytes, attr.atime),
        (0o751, 7, 8, 1 << 40, time)
    );
    let guard = Some(NfsTime {
        seconds: 1,
        nanos: 1,
    });
    let refused = err!(client.nfs(set(mode(0), guard)), SetAttr);
    assert_eq!(refused.status, ErrorStatus::NotSync);
    assert_eq!(refused.body.after, Some(attr));
    ok!(client.nfs(set(mode(0o600), Some(attr.ctime))), SetAttr);
    let bad_time = SetAttributes {
        mtime: SetTime::ClientTime(NfsTime {
            seconds: 0,
            nanos: 1_000_000_000,
        }),
        ..SetAttributes::default()
    };
    let refused = err!(client.nfs(set(bad_time, None)), SetAttr);
    assert_eq!(refused.status, ErrorStatus::Inval);
    let too_large = SetAttributes {
        size_bytes: Some(u64::MAX),
        ..SetAttributes::default()
    };
    let refused = err!(client.nfs(set(too_large, None)), SetAttr);
    assert_eq!(refused.status, ErrorStatus::FBig);
    let far = client.write(file, u64::MAX - 1, b"abc").unwrap_err();
    assert_eq!(far.status, ErrorStatus::FBig);
}

#[test]
fn exclusive_create_knows_its_verifier() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let create = |verifier| {
        Call::Create(v3::CreateArgs {
            place: place(root, "x"),
            how: CreateHow::Exclusive(verifier),
        })
    };
    let first = ok!(client.nfs(create(*b"verifier")), Create);
    let again = ok!(client.nfs(create(*b"verifier")), Create);
    assert_eq!(first.object, again.object);
    let other = err!(client.nfs(create(*b"VERIFIER")), Create);
    assert_eq!(other.status, ErrorStatus::Exist);
}

#[test]
fn names_links_and_nodes() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let file = client.create(root, "a");

    let linked = ok!(
        client.nfs(Call::Link(v3::LinkArgs {
            file,
            link: place(dir, "b")
        })),
        Link
    );
    assert_eq!(linked.attributes.unwrap().nlink, 2);
    assert!(linked.dir_wcc.before.is_some());
    assert_eq!(client.lookup(dir, "b"), Ok(file));
    assert_eq!(client.lookup(dir, ".."), Ok(root));

    let rename = |from, to| Call::Rename(v3::RenameArgs { from, to });
    let moved = ok!(
        client.nfs(rename(place(dir, "b"), place(root, "c"))),
        Rename
    );
    assert!(moved.from_dir.before.is_some() && moved.to_dir.after.is_some());
    let missing = err!(
        client.nfs(rename(place(dir, "b"), place(root, "c"))),
        Rename
    );
    assert_eq!(missing.status, ErrorStatus::NoEnt);
    assert!(missing.body.from_dir.after.is_some() && missing.body.to_dir.after.is_some());

    let other = client.root("/other");
    let across = err!(
        client.nfs(rename(place(root, "c"), place(other, "c"))),
        Rename
    );
    assert_eq!(across.status, ErrorStatus::XDev);
    let across = err!(
        client.nfs(Call::Link(v3::LinkArgs {
            file,
            link: place(other, "c")
        })),
        Link
    );
    assert_eq!(across.status, ErrorStatus::XDev);

    let target = b"../any\xff/bytes";
    let made = ok!(
        client.nfs(Call::SymLink(v3::SymLinkArgs {
            place: place(dir, "link"),
            attributes: mode(0o777),
            target: target.as_slice().into(),
        })),
        SymLink
    );
    let read = ok!(client.nfs(Call::ReadLink(made.object.unwrap())), ReadLink);
    assert_eq!(&*read.target, target);
    let not_link = err!(client.nfs(Call::ReadLink(file)), ReadLink);
    assert_eq!(not_link.status, ErrorStatus::Inval);
    assert!(not_link.body.is_some());

    let device = DeviceNumber { major: 8, minor: 3 };
    let attributes = mode(0o600);
    for (name, what) in [
        ("fifo", MkNodWhat::Fifo(attributes)),
        ("socket", MkNodWhat::Socket(attributes)),
        ("block", MkNodWhat::BlockDevice { attributes, device }),
        ("char", MkNodWhat::CharDevice { attributes, device }),
    ] {
        let wanted = what.file_type();
        let made = ok!(
            client.nfs(Call::MkNod(v3::MkNodArgs {
                place: place(dir, name),
                what
            })),
            MkNod
        );
        let attr = made.attributes.unwrap();
        assert_eq!(attr.file_type, wanted);
        let is_device = matches!(wanted, FileType::BlockDevice | FileType::CharDevice);
        assert_eq!(
            attr.device,
            if is_device {
                device
            } else {
                DeviceNumber::default()
            }
        );
    }
    for what in [MkNodWhat::Regular, MkNodWhat::Directory, MkNodWhat::Symlink] {
        let refused = err!(
            client.nfs(Call::MkNod(v3::MkNodArgs {
                place: place(dir, "no"),
                what
            })),
            MkNod
        );
        assert_eq!(refused.status, ErrorStatus::BadType);
    }

    let full = err!(client.nfs(Call::RmDir(place(root, "dir"))), RmDir);
    assert_eq!(full.status, ErrorStatus::NotEmpty);
    make_dir(&mut client, root, "empty");
    ok!(client.nfs(Call::RmDir(place(root, "empty"))), RmDir);
    let is_dir = err!(client.nfs(Call::Remove(place(root, "dir"))), Remove);
    assert_eq!(is_dir.status, ErrorStatus::IsDir);
    let not_dir = err!(client.nfs(Call::RmDir(place(root, "a"))), RmDir);
    assert_eq!(not_dir.status, ErrorStatus::NotDir);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let long = "n".repeat(256);
    let cases: &[(&str, ErrorStatus)] = &[
        (&long, ErrorStatus::NameTooLong),
        ("", ErrorStatus::Inval),
        ("a/b", ErrorStatus::Inval),
        ("a\0b", ErrorStatus::Inval),
        (".", ErrorStatus::Exist),
        ("..", ErrorStatus::Exist),
    ];
    for (name, want) in cases {
        let failure = err!(
            client.nfs(Call::MkDir(v3::MkDirArgs {
                place: place(root, name),
                attributes: mode(0o755)
            })),
            MkDir
        );
        assert_eq!(failure.status, *want, "{name:?}");
        assert!(failure.body.after.is_some());
    }
    let longest = "n".repeat(255);
    let made = make_dir(&mut client, root, &longest);
    assert_eq!(client.lookup(root, &longest), Ok(made));
    let refused = err!(client.nfs(Call::RmDir(place(root, "."))), RmDir);
    assert_eq!(refused.status, ErrorStatus::Inval);
}

/// All names of a directory, read in pages of `count_bytes`.
fn list(client: &mut Client, dir: FileHandle, count_bytes: u32, plus: bool) -> Vec<String> {
    let mut names = Vec::new();
    let mut cookie = 0;
    let mut page_len_max = 0;
    loop {
        let (entries, eof, len_bytes) = if plus {
            let call = Call::ReadDirPlus(v3::ReadDirPlusArgs {
                dir,
                cookie,
                cookie_verifier: [0; 8],
                dir_count_bytes: count_bytes,
                max_count_bytes: count_bytes,
            });
            let answer = client.call((v3::PROGRAM, 3, 17), &call);
            let page = ok!(answer.nfs(v3::Procedure::ReadDirPlus), ReadDirPlus);
            for entry in &page.entries.0 {
                let attr = entry.attributes.unwrap();
                assert_eq!(attr.fileid, entry.fileid);
                assert_eq!(
                    client.getattr(entry.handle.unwrap()).unwrap().fileid,
                    entry.fileid
                );
            }
            let entries: Vec<_> = page
                .entries
                .0
                .iter()
                .map(|it| (it.name, it.cookie))
                .collect();
            (entries, page.eof, answer.results.len())
        } else {
            let call = Call::ReadDir(v3::ReadDirArgs {
                dir,
                cookie,
                cookie_verifier: [0; 8],
                count_bytes,
            });
            let answer = client.call((v3::PROGRAM, 3, 16), &call);
            let page = ok!(answer.nfs(v3::Procedure::ReadDir), ReadDir);
            let entries: Vec<_> = page
                .entries
                .0
                .iter()
                .map(|it| (it.name, it.cookie))
                .collect();
            (entries, page.eof, answer.results.len())
        };
        page_len_max = page_len_max.max(len_bytes);
        for (name, next) in entries {
            names.push(String::from_utf8(name.to_vec()).unwrap());
            cookie = next;
        }
        if eof {
            // The status before the results does not count.
            assert!(page_len_max <= count_bytes as usize + 4);
            return names;
        }
    }
}

#[test]
fn directories_are_listed_in_pages() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let mut wanted = vec![".".to_owned(), "..".to_owned()];
    for index in 0..300 {
        let name = format!("file-{index}-{}", "x".repeat(index % 40));
        client.create(root, &name);
        wanted.push(name);
    }
    wanted.sort();
    for (count_bytes, plus) in [
        (512, false),
        (4096, false),
        (1 << 20, false),
        (512, true),
        (4096, true),
        (u32::MAX, true),
    ] {
        let mut names = list(&mut client, root, count_bytes, plus);
        names.sort();
        assert_eq!(names, wanted, "count {count_bytes}, plus {plus}");
    }
    let too_small = err!(
        client.nfs(Call::ReadDir(v3::ReadDirArgs {
            dir: root,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 100,
        })),
        ReadDir
    );
    assert_eq!(too_small.status, ErrorStatus::TooSmall);
    let file = client.lookup(root, &wanted[5]).unwrap();
    let not_dir = err!(
        client.nfs(Call::ReadDir(v3::ReadDirArgs {
            dir: file,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 4096,
        })),
        ReadDir
    );
    assert_eq!(not_dir.status, ErrorStatus::NotDir);
}

#[test]
fn the_file_system_describes_itself() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let stat = ok!(client.nfs(Call::FsStat(root)), FsStat);
    assert!(stat.total_bytes > 0 && stat.free_bytes <= stat.total_bytes);
    assert!(stat.attributes.is_some());
    let info = ok!(client.nfs(Call::FsInfo(root)), FsInfo);
    assert_eq!(
        (info.read_max_bytes, info.write_max_bytes),
        (1 << 20, 1 << 20)
    );
    assert_eq!(info.properties, 0x1b);
    let conf = ok!(client.nfs(Call::PathConf(root)), PathConf);
    assert_eq!(
        (conf.name_len_bytes_max, conf.no_trunc, conf.case_preserving),
        (255, true, true)
    );
}

#[test]
fn users_are_told_apart_and_squashed() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "mine");
    let read = Call::Read(v3::ReadArgs {
        file,
        offset: 0,
        count_bytes: 10,
    });
    let chmod = |mode| {
        Call::SetAttr(v3::SetAttrArgs {
            object: file,
            attributes: SetAttributes {
                mode: Some(mode),
                ..SetAttributes::default()
            },
            guard: None,
        })
    };
    ok!(client.nfs(chmod(0o600)), SetAttr);
    client.user = user(1000, 1000);
    let denied = err!(client.nfs(read.clone()), Read);
    assert_eq!(denied.status, ErrorStatus::Access);
    assert!(denied.body.is_some());
    let not_owner = err!(client.nfs(chmod(0o777)), SetAttr);
    assert_eq!(not_owner.status, ErrorStatus::Perm);
    // Many users over one connection.
    for uid in (1000..1020).chain([1000, 0]) {
        client.user = user(uid, uid);
        assert_eq!(
            matches!(client.nfs(read.clone()), Reply::Read(Ok(_))),
            uid == 0
        );
    }
    // Without a user, anonymous.
    let place = (v3::PROGRAM, 3, v3::Procedure::Read.number());
    let bytes = call_bytes(77, place, &OpaqueAuth::NONE, &read);
    client.send(&bytes);
    let denied = err!(client.receive().nfs(v3::Procedure::Read), Read);
    assert_eq!(denied.status, ErrorStatus::Access);
    // Squashed from now on, over the connection that is open.
    let mut squashed = rule("127.0.0.0/8");
    squashed.squash = cairn_exports::Squash::Root;
    server
        .exports
        .replace(vec![export(&server.main, vec![squashed])]);
    client.user = user(0, 0);
    let denied = err!(client.nfs(read), Read);
    assert_eq!(denied.status, ErrorStatus::Access);
}

#[test]
fn exports_are_checked_with_each_call() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let file = client.create(root, "file");
    client.write(file, 0, b"data").unwrap();

    let mut read_only = rule("127.0.0.1/32");
    read_only.read_only = true;
    let rules = vec![rule("127.0.0.0/8"), read_only];
    server.exports.replace(vec![export(&server.main, rules)]);
    assert_eq!(client.read(file, 0, 10), b"data");
    let refused = client.write(file, 0, b"more").unwrap_err();
    assert_eq!(refused.status, ErrorStatus::RoFs);
    assert!(refused.body.after.is_some());
    let refused = err!(client.nfs(Call::Remove(place(root, "file"))), Remove);
    assert_eq!(refused.status, ErrorStatus::RoFs);
    let access = ok!(
        client.nfs(Call::Access(v3::AccessArgs {
            object: root,
            access: 0x3f
        })),
        Access
    );
    assert_eq!(
        access.access,
        v3::access::READ | v3::access::LOOKUP | v3::access::EXECUTE & access.access
    );

    server
        .exports
        .replace(vec![export(&server.main, vec![rule("10.0.0.0/8")])]);
    assert_eq!(client.getattr(file), Err(ErrorStatus::Access));
    let refused = client.mount(mount::Call::Mount("/main".into()));
    assert_eq!(refused, mount::Reply::Mount(Err(mount::MountError::Access)));

    let mut reserved = rule("127.0.0.0/8");
    reserved.require_reserved_port = true;
    server
        .exports
        .replace(vec![export(&server.main, vec![reserved])]);
    assert_eq!(client.getattr(file), Err(ErrorStatus::Access));

    server.exports.replace(Vec::new());
    assert_eq!(client.getattr(file), Err(ErrorStatus::Stale));
    let refused = client.mount(mount::Call::Mount("/main".into()));
    assert_eq!(refused, mount::Reply::Mount(Err(mount::MountError::Access)));
}

fn commit_all(file: FileHandle) -> Call<'static> {
    Call::Commit(v3::CommitArgs {
        file,
        offset: 0,
        count_bytes: 0,
    })
}

/// Flips a bit of some stored bytes, which are on the disk once.
fn damage(server: &Server, stored: &[u8]) {
    let disk = &server.main_disk;
    let places: Vec<(String, usize)> = disk
        .file_names()
        .into_iter()
        .filter_map(|name| {
            let bytes = disk.file_bytes(&name)?;
            let at = bytes.windows(stored.len()).position(|it| it == stored)?;
            Some((name, at))
        })
        .collect();
    assert_eq!(places.len(), 1, "{places:?}");
    let (name, at) = &places[0];
    disk.flip_bit(name, *at as u64, 0);
}

#[test]
fn what_is_damaged_beyond_repair_is_an_error_and_nothing_else_is() {
    let server = Server::without_cache();
    let mut client = server.connect();
    let root = client.root("/main");
    let (file, other) = (client.create(root, "file"), client.create(root, "other"));
    // Several pieces with a checksum each, in the only shard that there is.
    let data = pattern(1, 400_000);
    for file in [file, other] {
        client.write(file, 0, &data[..200_000]).unwrap();
        client.write(file, 200_000, &data[200_000..]).unwrap();
        ok!(client.nfs(commit_all(file)), Commit);
    }
    let more = pattern(2, 100_000);
    client.write(file, 400_000, &more).unwrap();
    ok!(client.nfs(commit_all(file)), Commit);
    assert!(client.read(file, 400_000, 100_000) == more);

    let damaged_at = 450_000;
    damage(&server, &more[50_000..50_032]);
    let read = |offset, count_bytes| {
        Call::Read(v3::ReadArgs {
            file,
            offset,
            count_bytes,
        })
    };
    for (offset, count_bytes) in [(damaged_at, 1), (400_000, 100_000), (damaged_at + 10, 4096)] {
        let refused = err!(client.nfs(read(offset, count_bytes)), Read);
        assert_eq!(refused.status, ErrorStatus::Io, "{count_bytes} at {offset}");
        let after = refused.body.expect("the file itself is known");
        assert_eq!(after.size_bytes, 500_000);
    }
    // Everything else is there: the rest of the file, of its record, and other files.
    assert!(client.read(file, 0, 400_000) == data);
    assert!(client.read(file, 400_000, 1000) == more[..1000]);
    assert!(client.read(file, 499_000, 1000) == more[99_000..]);
    assert!(client.read(other, 0, 400_000) == data);
    // New bytes take the place of the damaged ones.
    client.write(file, 400_000, &more).unwrap();
    ok!(client.nfs(commit_all(file)), Commit);
    assert!(client.read(file, 400_000, 100_000) == more);
}

#[test]
fn mounts_lead_to_directories() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let sub = make_dir(&mut client, dir, "sub");
    client.create(root, "file");
    for (path, want) in [
        ("/main", Ok(root)),
        ("main", Ok(root)),
        ("//main///", Ok(root)),
        ("/main/.", Ok(root)),
        ("/main/dir", Ok(dir)),
        ("/main/dir/sub/", Ok(sub)),
        ("/main/../other", Err(mount::MountError::Inval)),
        ("/main/file", Err(mount::MountError::NotDir)),
        ("/main/file/x", Err(mount::MountError::NotDir)),
        ("/main/none", Err(mount::MountError::NoEnt)),
        ("/none", Err(mount::MountError::NoEnt)),
    ] {
        let got = match client.mount(mount::Call::Mount(path.into())) {
            mount::Reply::Mount(result) => result.map(|found| found.handle),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, want, "{path}");
    }
    let mount::Reply::Mount(Ok(found)) = client.mount(mount::Call::Mount("/main".into())) else {
        panic!("/main can be mounted");
    };
    assert_eq!(found.auth_flavors.0, [1, 0]);

    // Version 1 differs in the form of the handle only.
    let path = mount::Call::Mount("/main".into());
    let answer = client.call((mount::PROGRAM, 1, 1), &path);
    let mut from = Reader::new(answer.results);
    let reply = mount::Reply::decode(1, mount::Procedure::Mount, &mut from).unwrap();
    assert_eq!(
        reply,
        mount::Reply::MountV1(Ok(root.as_bytes().try_into().unwrap()))
    );

    let mount::Reply::Export(exports) = client.mount(mount::Call::Export) else {
        panic!("EXPORT answers with exports");
    };
    let paths: Vec<_> = exports.0.iter().map(|export| export.path.0).collect();
    assert_eq!(paths, [b"/main".as_slice(), b"/other"]);
    assert_eq!(exports.0[0].groups.0[0].0, b"127.0.0.0/8");

    let dump = |client: &mut Client| match client.mount(mount::Call::Dump) {
        mount::Reply::Dump(mounts) => mounts.0.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(dump(&mut client), 6);
    client.mount(mount::Call::Unmount("/main/dir".into()));
    assert_eq!(dump(&mut client), 5);
    client.mount(mount::Call::UnmountAll);
    assert_eq!(dump(&mut client), 0);
}

/// It would hide the snapshots of the directory.
#[test]
fn nothing_can_be_called_snapshot() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let file = client.create(dir, "file");
    let name = || place(dir, ".snapshot");
    let attributes = mode(0o755);
    for how in [
        CreateHow::Unchecked(attributes),
        CreateHow::Guarded(attributes),
        CreateHow::Exclusive(*b"verifier"),
    ] {
        let place = name();
        let create = v3::CreateArgs { place, how };
        let refused = err!(client.nfs(Call::Create(create)), Create);
        assert_eq!(refused.status, ErrorStatus::Exist);
    }
    let make_dir = v3::MkDirArgs {
        place: name(),
        attributes,
    };
    let refused = err!(client.nfs(Call::MkDir(make_dir)), MkDir);
    assert_eq!(refused.status, ErrorStatus::Exist);
    let symlink = v3::SymLinkArgs {
        place: name(),
        attributes,
        target: b"file".as_slice().into(),
    };
    let refused = err!(client.nfs(Call::SymLink(symlink)), SymLink);
    assert_eq!(refused.status, ErrorStatus::Exist);
    let fifo = v3::MkNodArgs {
        place: name(),
        what: MkNodWhat::Fifo(attributes),
    };
    let refused = err!(client.nfs(Call::MkNod(fifo)), MkNod);
    assert_eq!(refused.status, ErrorStatus::Exist);
    let link = name();
    let refused = err!(client.nfs(Call::Link(v3::LinkArgs { file, link })), Link);
    assert_eq!(refused.status, ErrorStatus::Exist);
    for from in [place(dir, "file"), place(root, "dir")] {
        let to = name();
        let rename = Call::Rename(v3::RenameArgs { from, to });
        let refused = err!(client.nfs(rename), Rename);
        assert_eq!(refused.status, ErrorStatus::Exist);
        assert!(refused.body.to_dir.after.is_some());
    }
    assert_eq!(client.lookup(dir, "file"), Ok(file));
    // It is still what shows the snapshots, and nothing is in it.
    let snapshots = client.lookup(dir, ".snapshot").unwrap();
    assert_eq!(client.lookup(snapshots, "file"), Err(ErrorStatus::NoEnt));
}

/// Each entry of `.snapshot` is a directory of its own: to who lists it, who looks it up and who mounts it.
#[test]
fn snapshots_are_directories_of_their_own() {
    let server = Server::start();
    let mut client = server.connect();
    let root = client.root("/main");
    let dir = make_dir(&mut client, root, "dir");
    let below = make_dir(&mut client, dir, "below");
    let file = client.create(below, "file");
    client.write(file, 0, b"old").unwrap();
    ok!(client.nfs(commit_all(file)), Commit);
    for name in ["first", "second"] {
        let main = server.main.clone();
        server.run(async move { main.take_snapshot(name.as_bytes(), b"").await.unwrap() });
    }
    client.write(file, 0, b"new").unwrap();
    make_dir(&mut client, dir, "later");

    let snapshots = client.lookup(dir, ".snapshot").unwrap();
    let page = ok!(
        client.nfs(Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir: snapshots,
            cookie: 0,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 4096,
        })),
        ReadDirPlus
    );
    let entries = page.entries.0;
    let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    let want: [v3::Name<'_>; 4] = [".".into(), "..".into(), "first".into(), "second".into()];
    assert_eq!(names, want);
    let first = client.lookup(snapshots, "first").unwrap();
    let second = client.lookup(snapshots, "second").unwrap();
    let mut fileids = std::collections::BTreeSet::new();
    for (entry, handle) in entries.iter().zip([snapshots, dir, first, second]) {
        let told = client.getattr(handle).unwrap();
        assert_eq!(entry.handle, Some(handle), "{:?}", entry.name);
        assert_eq!(entry.attributes, Some(told), "{:?}", entry.name);
        assert_eq!(entry.fileid, told.fileid, "{:?}", entry.name);
        assert_eq!(told.fsid, client.getattr(root).unwrap().fsid);
        assert!(fileids.insert(entry.fileid), "{:?}", entry.name);
    }
    // READDIR tells the same numbers, and pages of a snapshot have those of its view.
    assert_eq!(list(&mut client, snapshots, 4096, false).len(), 4);
    assert_eq!(list(&mut client, first, 4096, true).len(), 3);

    let mut mounted = |path: &'static str| match client.mount(mount::Call::Mount(path.into())) {
        mount::Reply::Mount(result) => result.map(|found| found.handle),
        other => panic!("{other:?}"),
    };
    assert_eq!(mounted("/main/dir/.snapshot"), Ok(snapshots));
    assert_eq!(mounted("/main/dir/.snapshot/first"), Ok(first));
    assert_eq!(mounted("/main/.snapshot/second/dir"), Ok(second));
    let old_below = mounted("/main/dir/.snapshot/first/below").unwrap();
    for (path, want) in [
        ("/main/.snapshot/none", mount::MountError::NoEnt),
        // It was not there then.
        ("/main/dir/later/.snapshot/first", mount::MountError::NoEnt),
        ("/main/.snapshot/first/.snapshot", mount::MountError::NoEnt),
        (
            "/main/.snapshot/first/dir/below/file",
            mount::MountError::NotDir,
        ),
        ("/main/dir/.snapshot/..", mount::MountError::Inval),
    ] {
        assert_eq!(mounted(path), Err(want), "{path}");
    }
    let old = client.lookup(old_below, "file").unwrap();
    assert_eq!(client.read(old, 0, 10), b"old");
    let refused = err!(client.nfs(write_call(old, 0, b"x")), Write);
    assert_eq!(refused.status, ErrorStatus::RoFs);
    assert_eq!(client.read(file, 0, 10), b"new");
}

#[test]
fn export_tells_a_client_of_its_own_rules_alone() {
    let server = Server::start();
    let rules = vec![rule("10.0.0.0/8"), rule("127.0.0.0/8"), rule("127.0.0.0/9")];
    let hidden = vec![rule("10.0.0.0/8")];
    server.exports.replace(vec![
        export(&server.main, rules),
        export(&server.other, hidden),
    ]);
    let mut client = server.connect();
    let mount::Reply::Export(exports) = client.mount(mount::Call::Export) else {
        panic!("EXPORT answers with exports");
    };
    let told: Vec<_> = exports
        .0
        .iter()
        .map(|export| {
            let groups: Vec<_> = export.groups.0.iter().map(|group| group.0).collect();
            (export.path.0, groups)
        })
        .collect();
    assert_eq!(
        told,
        [(b"/main".as_slice(), vec![b"127.0.0.0/9".as_slice()])]
    );
}

#[test]
fn the_pseudo_root_shows_the_volumes() {
    let server = Server::start();
    let mut client = server.connect();
    let top = client.root("/");
    let attr = client.getattr(top).unwrap();
    assert_eq!((attr.file_type, attr.mode), (FileType::Directory, 0o555));
    let main = client.root("/main");
    assert_eq!(client.lookup(top, "main"), Ok(main));
    assert_eq!(client.lookup(top, ".."), Ok(top));
    assert_eq!(client.lookup(top, "none"), Err(ErrorStatus::NoEnt));
    assert_ne!(attr.fsid, client.getattr(main).unwrap().fsid);

    let read_dir = |client: &mut Client, cookie, count_bytes| {
        client.nfs(Call::ReadDir(v3::ReadDirArgs {
            dir: top,
            cookie,
            cookie_verifier: [0; 8],
            count_bytes,
        }))
    };
    let names = |page: &v3::ReadDirOk<'static>| -> Vec<&'static [u8]> {
        page.entries.0.iter().map(|entry| entry.name.0).collect()
    };
    let page = ok!(read_dir(&mut client, 0, 4096), ReadDir);
    let all: [&[u8]; 4] = [b".", b"..", b"main", b"other"];
    assert_eq!((names(&page), page.eof), (all.to_vec(), true));
    // One at a time.
    let mut cookie = 0;
    for (index, name) in all.iter().enumerate() {
        let page = ok!(read_dir(&mut client, cookie, 136), ReadDir);
        assert_eq!((names(&page), page.eof), (vec![*name], index == 3));
        cookie = page.entries.0[0].cookie;
    }
    let too_small = err!(read_dir(&mut client, 0, 110), ReadDir);
    assert_eq!(too_small.status, ErrorStatus::TooSmall);
    let plus = ok!(
        client.nfs(Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir: top,
            cookie: 2,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 4096,
        })),
        ReadDirPlus
    );
    assert_eq!(plus.entries.0.len(), 2);
    let info = ok!(client.nfs(Call::FsInfo(top)), FsInfo);
    assert_eq!(info.read_max_bytes, 1 << 20);
    ok!(client.nfs(Call::FsStat(top)), FsStat);
    ok!(client.nfs(Call::PathConf(top)), PathConf);
    let access = ok!(
        client.nfs(Call::Access(v3::AccessArgs {
            object: top,
            access: 0x3f
        })),
        Access
    );
    assert_eq!(access.access, 0x23);
    let refused = err!(
        client.nfs(Call::MkDir(v3::MkDirArgs {
            place: place(top, "new"),
            attributes: mode(0o755)
        })),
        MkDir
    );
    assert_eq!(refused.status, ErrorStatus::RoFs);
    assert!(refused.body.after.is_some());
    let refused = err!(
        client.nfs(Call::Rename(v3::RenameArgs {
            from: place(main, "a"),
            to: place(top, "a")
        })),
        Rename
    );
    assert_eq!(refused.status, ErrorStatus::RoFs);
    // Of a large WRITE the payload comes apart.
    for len_bytes in [10, 32 << 10, 1 << 20] {
        let refused = client.write(top, 0, &vec![7; len_bytes]).unwrap_err();
        let told = (refused.status, refused.body.after.is_some());
        assert_eq!(told, (ErrorStatus::IsDir, true), "{len_bytes}");
    }

    // What a client may not mount it does not see.
    server.exports.replace(vec![
        export(&server.main, vec![rule("127.0.0.0/8")]),
        export(&server.other, vec![rule("10.0.0.0/8")]),
    ]);
    let page = ok!(read_dir(&mut client, 2, 4096), ReadDir);
    assert_eq!(names(&page), [b"main"]);
    assert_eq!(client.lookup(top, "other"), Err(ErrorStatus::NoEnt));
    assert!(client.getattr(top).unwrap().ctime > attr.ctime);
}

#[test]
fn locks_are_refused() {
    use nlm::{Call, LockArgs, Status};
    let server = Server::start();
    let mut client = server.connect();
    let cookie = nlm::Object::from("cookie");
    let refused = Some(Status::DeniedNoLocks);
    for version in [1, 3, 4] {
        let lock = || nlm::Lock {
            client: "host".into(),
            // Nobody asks what it names: the answer is the same for every file.
            file: "handle".into(),
            owner: "7@host".into(),
            process: 7,
            range: match version {
                nlm::VERSION_4 => nlm::Range::Wide {
                    offset: 1 << 40,
                    len_bytes: 0,
                },
                _ => nlm::Range::Narrow {
                    offset: 1 << 31,
                    len_bytes: 0,
                },
            },
        };
        let lock_args = |block| LockArgs {
            cookie,
            block,
            exclusive: true,
            lock: lock(),
            reclaim: false,
            state: 1,
        };
        let share = || nlm::ShareArgs {
            cookie,
            client: "host".into(),
            file: "handle".into(),
            owner: "me".into(),
            denied: nlm::ShareRight::None,
            wanted: nlm::ShareRight::Read,
            reclaim: false,
        };
        let notice = nlm::Notice {
            client: "host".into(),
            state: 3,
        };
        let test = Call::Test {
            cookie,
            exclusive: false,
            lock: lock(),
        };
        let cancel = Call::Cancel {
            cookie,
            block: true,
            exclusive: true,
            lock: lock(),
        };
        let unlock = Call::Unlock {
            cookie,
            lock: lock(),
        };
        let cases = [
            (0, Call::Null, None),
            (1, test, refused),
            (2, Call::Lock(lock_args(false)), refused),
            (2, Call::Lock(lock_args(true)), refused),
            (3, cancel, Some(Status::Denied)),
            (4, unlock, Some(Status::Granted)),
            (20, Call::Share(share()), refused),
            (21, Call::Unshare(share()), Some(Status::Granted)),
            (22, Call::UnmonitoredLock(lock_args(true)), refused),
            (23, Call::FreeAll(notice), None),
        ];
        for (number, call, status) in cases {
            if nlm::Procedure::of_version(version, number).is_none() {
                continue;
            }
            let answer = client.call((nlm::PROGRAM, version, number), &call);
            assert_eq!(answer.accepted(), AcceptStatus::Success);
            let mut from = Reader::new(answer.results);
            if let Some(status) = status {
                assert_eq!(from.get(), Ok(nlm::Outcome { cookie, status }), "{call:?}");
            }
            if let Call::Share(_) | Call::Unshare(_) = call {
                assert_eq!(from.u32(), Ok(0));
            }
            assert_eq!(from.finish(), Ok(()), "{call:?}");
        }
    }
    // TEST and two LOCK thrice, SHARE and NM_LOCK where they are.
    assert_eq!(
        server.metric("cairn_nfs_locks_refused_total"),
        3 * 3 + 2 * 2
    );
}

#[test]
fn ports_are_told() {
    let server = Server::start();
    let nfs = u32::from(server.address.port());
    let own = u32::from(server.rpcbind.port());
    for address in [server.address, server.rpcbind] {
        let mut client = Client::connect(address);
        let mut port = |program, version, protocol| {
            let wanted = portmap::Call::GetPort(portmap::Mapping {
                program,
                version,
                protocol,
                port: 0,
            });
            let answer = client.call((portmap::PROGRAM, 2, 3), &wanted);
            Reader::new(answer.results).u32().unwrap()
        };
        let (tcp, udp) = (portmap::PROTOCOL_TCP, portmap::PROTOCOL_UDP);
        assert_eq!(port(v3::PROGRAM, 3, tcp), nfs);
        assert_eq!(port(mount::PROGRAM, 3, tcp), nfs);
        assert_eq!(port(mount::PROGRAM, 1, tcp), nfs);
        for version in [1, 3, 4] {
            assert_eq!(port(nlm::PROGRAM, version, tcp), nfs);
        }
        assert_eq!(port(nlm::PROGRAM, 4, udp), 0);
        assert_eq!(port(portmap::PROGRAM, 2, udp), own);
        assert_eq!(port(v3::PROGRAM, 4, tcp), 0);
        assert_eq!(port(v3::PROGRAM, 3, udp), 0);
        assert_eq!(port(1, 1, tcp), 0);

        let answer = client.call((portmap::PROGRAM, 2, 4), &());
        let reply =
            portmap::Reply::decode(portmap::Procedure::Dump, &mut Reader::new(answer.results));
        let Ok(portmap::Reply::Dump(mappings)) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(mappings.0.len(), 12);

        for version in [3, 4] {
            let wanted = rpcbind::Call::GetAddr(rpcbind::Mapping {
                program: v3::PROGRAM,
                version: 3,
                netid: "tcp".into(),
                uaddr: "".into(),
                owner: "".into(),
            });
            let answer = client.call((portmap::PROGRAM, version, 3), &wanted);
            let uaddr = Reader::new(answer.results).opaque(256).unwrap();
            assert_eq!(rpcbind::parse_uaddr(uaddr), Some(server.address));
        }
        let set = portmap::Call::Set(portmap::Mapping {
            program: 5,
            version: 1,
            protocol: tcp,
            port: 6,
        });
        let answer = client.call((portmap::PROGRAM, 2, 1), &set);
        assert_eq!(Reader::new(answer.results).bool(), Ok(false));
    }
}

#[test]
fn datagrams_are_answered_in_little() {
    let server = Server::start();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(std::time::Duration::from_secs(60)))
        .unwrap();
    let ask = |place, args: &[u8]| {
        let mut call = call_bytes(9, place, &OpaqueAuth::NONE, &());
        call.extend_from_slice(args);
        socket.send_to(&call[4..], server.udp).unwrap();
        let mut bytes = vec![0; 4096];
        let len = socket.recv(&mut bytes).unwrap();
        bytes.truncate(len);
        Answer::of(bytes)
    };
    let mut wanted = Vec::new();
    for word in [v3::PROGRAM, 3, portmap::PROTOCOL_TCP, 0] {
        wanted.extend_from_slice(&word.to_be_bytes());
    }
    let answer = ask((portmap::PROGRAM, 2, 3), &wanted);
    assert_eq!(
        Reader::new(answer.results).u32(),
        Ok(u32::from(server.address.port()))
    );
    let statuses = [
        ((v3::PROGRAM, 3, 0), AcceptStatus::Success),
        ((v3::PROGRAM, 3, 1), AcceptStatus::ProgramUnavailable),
        ((mount::PROGRAM, 3, 0), AcceptStatus::Success),
        ((nlm::PROGRAM, 4, 0), AcceptStatus::ProgramUnavailable),
        ((portmap::PROGRAM, 2, 4), AcceptStatus::ProcedureUnavailable),
        ((mount::PROGRAM, 3, 5), AcceptStatus::ProcedureUnavailable),
    ];
    for (place, want) in statuses {
        assert_eq!(ask(place, &[]).accepted(), want, "{place:?}");
    }
    // Rubbish gets no answer, and does not stop the next one from getting it.
    socket.send_to(b"rubbish", server.udp).unwrap();
    assert_eq!(
        ask((v3::PROGRAM, 3, 0), &[]).accepted(),
        AcceptStatus::Success
    );
}
