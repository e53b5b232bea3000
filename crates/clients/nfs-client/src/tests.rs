//! The client against a server in memory that misbehaves as told.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_codec_nfs::v3::{
    CreateHow, ErrorStatus, FileHandle, FileType, MkNodWhat, Procedure, SetAttributes, StableHow,
};
use cairn_codec_rpc::DecodeError;

use crate::connection::ConnectionSettings;
use crate::error::{Error, ErrorKind, PathProblem};
use crate::testing::{Action, FakeServer};
use crate::{Client, ClientSettings};

/// Patient, as on a machine that may not run this process for seconds, and never from a reserved port.
fn settings() -> ClientSettings {
    ClientSettings {
        connection: ConnectionSettings {
            reply_timeout: Duration::from_secs(60),
            transmissions_max: 3,
            reconnect_for: Duration::from_secs(60),
            reconnect_pause: Duration::from_millis(1),
            reserved_port: false,
            ..ConnectionSettings::default()
        },
        jukebox_pause: Duration::from_millis(1),
        jukebox_count_max: 4,
        ..ClientSettings::default()
    }
}

/// Quick to send a call again that is not answered, and as often as it takes: where this process stands still, an answer that is
/// there may be late, too.
fn quick_settings() -> ClientSettings {
    let mut settings = settings();
    settings.connection.reply_timeout = Duration::from_millis(200);
    settings.connection.transmissions_max = 1000;
    settings
}

async fn connect(server: &FakeServer, path: &str) -> Client {
    connect_with(server, path, settings()).await
}

async fn connect_with(server: &FakeServer, path: &str, settings: ClientSettings) -> Client {
    let url = server.url(path).parse().expect("a URL");
    Client::connect(&url, settings).await.expect("connected")
}

async fn server_and_client() -> (FakeServer, Client) {
    let server = FakeServer::start().await;
    let client = connect(&server, "").await;
    (server, client)
}

/// The first calls of `procedure` get these actions, later ones are answered.
fn script(server: &FakeServer, procedure: Procedure, actions: impl IntoIterator<Item = Action>) {
    let mut actions: VecDeque<Action> = actions.into_iter().collect();
    server.script(move |called| match called == procedure {
        true => actions.pop_front().unwrap_or(Action::Answer),
        false => Action::Answer,
    });
}

async fn create(client: &Client, name: &str) -> FileHandle {
    let how = CreateHow::Guarded(SetAttributes::default());
    let made = client.create(client.root(), name.as_bytes(), how).await;
    let made = made.expect("created");
    client
        .made_handle(client.root(), name.as_bytes(), made)
        .await
        .expect("a handle")
}

/// Bytes that differ from place to place.
fn pattern(len_bytes: usize) -> Bytes {
    (0..len_bytes)
        .map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8)
        .collect()
}

async fn read_all(client: &Client, file: FileHandle) -> Vec<u8> {
    let mut range = client.read_range(file, 0..u64::MAX);
    let mut all = Vec::new();
    while let Some(data) = range.next().await {
        all.extend_from_slice(&data.expect("read"));
    }
    all
}

#[tokio::test]
async fn every_procedure_is_called_and_understood() {
    let (_server, client) = server_and_client().await;
    let root = client.root();
    let none = SetAttributes::default();
    client.null().await.expect("null");
    let file = create(&client, "f").await;
    let attributes = client.get_attr(file).await.expect("getattr");
    assert_eq!(attributes.file_type, FileType::Regular);
    let mode = SetAttributes {
        mode: Some(0o600),
        ..none
    };
    client.set_attr(file, mode, None).await.expect("setattr");
    assert_eq!(client.get_attr(file).await.expect("getattr").mode, 0o600);
    assert_eq!(
        client.lookup(root, b"f").await.expect("lookup").object,
        file
    );
    assert_eq!(client.access(file, 3).await.expect("access").access, 3);
    let data = Bytes::from_static(b"abcde");
    let stable = StableHow::FileSync;
    let written = client.write(file, 0, data, stable).await.expect("write");
    assert_eq!((written.count_bytes, written.committed), (5, stable));
    let read = client.read_into(file, 1, AlignedBuf::zeroed(10)).await;
    let read = read.expect("read");
    assert_eq!((&*read.data, read.eof), (&b"bcde"[..], true));
    client.commit(file, 0, 0).await.expect("commit");
    client.mkdir(root, b"d", none).await.expect("mkdir");
    let made = client.symlink(root, b"s", b"f", none).await;
    let link = made.expect("symlink").handle.expect("a handle");
    assert_eq!(client.read_link(link).await.expect("readlink"), b"f");
    let fifo = MkNodWhat::Fifo(none);
    client.mknod(root, b"p", fifo).await.expect("mknod");
    client.link(file, root, b"g").await.expect("link");
    client
        .rename((root, b"g"), (root, b"h"))
        .await
        .expect("rename");
    let mut pages = client.dir_pages(root, false);
    let mut names = Vec::new();
    while let Some(page) = pages.next_page().await.expect("readdir") {
        names.extend(page.into_iter().map(|entry| entry.name));
    }
    assert_eq!(names, [&b"f"[..], b"d", b"s", b"p", b"h"]);
    client.remove(root, b"h").await.expect("remove");
    client.rmdir(root, b"d").await.expect("rmdir");
    assert!(client.fs_stat(root).await.expect("fsstat").total_bytes > 0);
    assert!(client.fs_info(root).await.expect("fsinfo").read_max_bytes > 0);
    assert!(client.path_conf(root).await.expect("pathconf").no_trunc);
}

#[tokio::test]
async fn the_export_is_found_or_the_error_names_those_there_are() {
    let server = FakeServer::start().await;
    let client = connect(&server, "/a/b").await;
    assert_eq!(client.export(), b"/main");
    assert_eq!(client.components(), [b"a", b"b"]);
    let url = server
        .url("")
        .replace("/main", "/other")
        .parse()
        .expect("a URL");
    let error = Client::connect(&url, settings())
        .await
        .err()
        .expect("refused");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        error.to_string(),
        "the server exports nothing at /other; its exports are /main"
    );
    let url = "nfs://127.0.0.1:1/main".parse().expect("a URL");
    let error = Client::connect(&url, settings())
        .await
        .err()
        .expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

/// What comes back for one GETATTR when the first answers are these.
async fn getattr_after(
    settings: ClientSettings,
    actions: impl IntoIterator<Item = Action>,
) -> (Result<(), Error>, usize) {
    let server = FakeServer::start().await;
    let client = connect_with(&server, "", settings).await;
    script(&server, Procedure::GetAttr, actions);
    let result = client.get_attr(client.root()).await.map(drop);
    let calls = server.calls();
    let calls = calls.iter().filter(|(_, it)| *it == Procedure::GetAttr);
    // The connection must be good for more, whatever happened.
    script(&server, Procedure::GetAttr, []);
    client.null().await.expect("the client recovers");
    (result, calls.count())
}

#[tokio::test]
async fn a_call_survives_what_can_be_survived() {
    use Action::*;
    let cases: Vec<(&str, Vec<Action>, usize)> = vec![
        ("nothing", vec![], 1),
        ("lost before", vec![CloseBefore], 2),
        ("lost after", vec![CloseAfter, CloseBefore], 3),
        ("later", vec![Fail(ErrorStatus::JukeBox); 3], 4),
    ];
    for (name, actions, want_calls) in cases {
        let (result, calls) = getattr_after(settings(), actions).await;
        assert!(result.is_ok(), "{name}: {result:?}");
        assert_eq!(calls, want_calls, "{name}");
    }
    let (result, calls) = getattr_after(quick_settings(), [Ignore]).await;
    assert!(result.is_ok(), "no answer: {result:?}");
    assert!(calls >= 2, "no answer: {calls} calls");
}

#[tokio::test]
async fn and_is_an_error_otherwise() {
    use Action::*;
    let error = |actions| async {
        let (result, _) = getattr_after(settings(), actions).await;
        result.expect_err("an error")
    };
    let status = error(vec![Fail(ErrorStatus::Stale)]).await;
    assert_eq!(status.status(), Some(ErrorStatus::Stale));
    let later = error(vec![Fail(ErrorStatus::JukeBox); 4]).await;
    assert_eq!(later.status(), Some(ErrorStatus::JukeBox));
    let lost = error(vec![CloseBefore; 3]).await;
    assert!(
        matches!(
            lost,
            Error::NoReply {
                transmissions: 3,
                ..
            }
        ),
        "{lost:?}"
    );
    let garbage: &[&[u8]] = &[b"", b"abc", &[0xff; 64]];
    for bytes in garbage {
        let bad = error(vec![Send(bytes.to_vec())]).await;
        assert!(matches!(bad, Error::BadReply { .. }), "{bad:?}");
    }
    // A record that would be 2 GiB.
    let long = error(vec![SendRaw(vec![0xff; 64])]).await;
    assert!(
        matches!(
            long,
            Error::BadReply {
                error: DecodeError::RecordTooLong { .. },
                ..
            }
        ),
        "{long:?}"
    );
}

#[tokio::test]
async fn a_retransmission_has_the_same_xid() {
    let (server, client) = server_and_client().await;
    script(&server, Procedure::MkDir, [Action::CloseBefore]);
    let none = SetAttributes::default();
    client.mkdir(client.root(), b"d", none).await.expect("made");
    let calls = server.calls();
    let xids: Vec<u32> = calls
        .iter()
        .filter(|(_, procedure)| *procedure == Procedure::MkDir)
        .map(|(xid, _)| *xid)
        .collect();
    assert_eq!(xids.len(), 2);
    assert_eq!(xids[0], xids[1]);
}

#[tokio::test]
async fn replies_out_of_order_reach_their_callers() {
    let (server, client) = server_and_client().await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        let file = create(&client, name).await;
        let data = Bytes::from(name.repeat(40_000));
        client.write_range(file, 0, data).await.expect("written");
    }
    let mut count = 0;
    server.script(move |_| {
        count += 1;
        match count % 2 {
            1 => Action::AnswerLater,
            _ => Action::Answer,
        }
    });
    let read = |name: &'static str| {
        let client = client.clone();
        async move {
            let found = client.lookup(client.root(), name.as_bytes()).await;
            let file = found.expect("found").object;
            let read = client.read_into(file, 0, AlignedBuf::zeroed(40_000)).await;
            assert_eq!(&*read.expect("read").data, name.repeat(40_000).as_bytes());
        }
    };
    tokio::join!(
        read("a"),
        read("b"),
        read("c"),
        read("d"),
        read("e"),
        read("f")
    );
}

#[tokio::test]
async fn transfers_come_whole_however_short_the_pieces() {
    let limits = [
        (usize::MAX, usize::MAX),
        (1000, 777),
        (50_001, 100_000),
        (131_072, 1),
    ];
    let len_bytes = [0, 1, 4097, 131_072, 131_073, 600_001];
    for (read_max, write_max) in limits {
        for len_bytes in len_bytes {
            let len_bytes = if write_max == 1 {
                len_bytes.min(500)
            } else {
                len_bytes
            };
            let (server, client) = server_and_client().await;
            server.limit_transfers(read_max, write_max);
            let file = create(&client, "f").await;
            let data = pattern(len_bytes);
            client
                .write_range(file, 0, data.clone())
                .await
                .expect("written");
            assert_eq!(server.stable("f"), Some(data.to_vec()), "{len_bytes}");
            assert_eq!(
                read_all(&client, file).await,
                data,
                "{read_max} {len_bytes}"
            );
        }
    }
}

#[tokio::test]
async fn data_that_a_restart_lost_is_sent_again() {
    let data = pattern(600_000);
    let cases = [
        ("between writes", Procedure::Write, 3),
        ("before the commit", Procedure::Commit, 0),
    ];
    for (name, procedure, after) in cases {
        let (server, client) = server_and_client().await;
        let file = create(&client, "f").await;
        let actions = vec![Action::Answer; after];
        script(
            &server,
            procedure,
            actions.into_iter().chain([Action::RestartBefore]),
        );
        client.write_range(file, 0, data.clone()).await.expect(name);
        assert_eq!(server.stable("f"), Some(data.to_vec()), "{name}");
    }
    let (server, client) = server_and_client().await;
    let file = create(&client, "f").await;
    script(&server, Procedure::Commit, vec![Action::RestartBefore; 100]);
    let error = client.write_range(file, 0, data).await.expect_err("never");
    assert!(matches!(error, Error::NeverStable { .. }));
}

#[tokio::test]
async fn reads_in_place_survive_a_lost_connection() {
    let (server, client) = server_and_client().await;
    let file = create(&client, "f").await;
    let data = pattern(1_000_000);
    client
        .write_range(file, 0, data.clone())
        .await
        .expect("written");
    let actions = [
        Action::Answer,
        Action::CloseAfter,
        Action::Answer,
        Action::CloseBefore,
    ];
    script(&server, Procedure::Read, actions);
    assert_eq!(read_all(&client, file).await, data);
}

/// A buffer a little below the limit for receiving in place, with a record a little above it, was
/// filled in place without having been counted; then the count of those in flight went below zero.
#[tokio::test]
async fn buffers_just_too_small_for_receiving_in_place_are_not_counted() {
    let (_server, client) = server_and_client().await;
    let file = create(&client, "f").await;
    let data = pattern(200_000);
    client
        .write_range(file, 0, data.clone())
        .await
        .expect("written");
    for len in [32_600, 32_700, 32_767, 32_768, 32_769] {
        let reads = [len, 65_536, len, 131_072, len]
            .map(|len| client.read_into(file, 0, AlignedBuf::zeroed(len)));
        for read in futures_util::future::join_all(reads).await {
            let read = read.expect("read");
            assert_eq!(read.data[..], data[..read.data.len()]);
        }
    }
}

#[tokio::test]
async fn a_record_that_lies_about_its_data_is_an_error() {
    let server = FakeServer::start().await;
    let client = connect_with(&server, "", quick_settings()).await;
    let file = create(&client, "f").await;
    // A READ reply to whatever xid cannot be forged here, so it answers nobody and is dropped;
    // the call is then sent again on a new connection.
    let mut forged = vec![0; 40_000];
    forged[7] = 1;
    script(&server, Procedure::Read, [Action::Send(forged)]);
    let read = client.read_into(file, 0, AlignedBuf::zeroed(65_536)).await;
    assert!(read.expect("read").eof);
}

#[tokio::test]
async fn paths_follow_relative_links_and_stop_at_the_root() {
    let (_server, client) = server_and_client().await;
    let none = SetAttributes::default();
    let deep = client.mkdir_all(b"/a/b/c", none).await.expect("made");
    let again = client.mkdir_all(b"a/b/c/", none).await.expect("there");
    assert_eq!(deep.handle, again.handle);
    let root = client.root();
    for (name, target) in [
        ("up", "../a/./b"),
        ("in", "a/b"),
        ("loop", "loop"),
        ("abs", "/a"),
        ("gone", "x"),
    ] {
        let target = target.as_bytes();
        client
            .symlink(root, name.as_bytes(), target, none)
            .await
            .expect("made");
    }
    let resolved = client.resolve(b"in/c", false).await.expect("found");
    assert_eq!(resolved.handle, deep.handle);
    let link = client.resolve(b"in", false).await.expect("found");
    assert_eq!(link.attributes.file_type, FileType::Symlink);
    let followed = client.resolve(b"in", true).await.expect("found");
    assert!(followed.is_directory());
    let problems = [
        ("up/c", PathProblem::AboveRoot),
        ("loop/x", PathProblem::TooManyLinks(40)),
        ("abs/b", PathProblem::AbsoluteLink("abs".into())),
    ];
    for (path, want) in problems {
        let error = client.resolve(path.as_bytes(), true).await;
        match error {
            Err(Error::Path(problem)) => assert_eq!(problem, want, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
    let gone = client.resolve(b"gone", true).await.expect_err("nothing");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn directories_of_many_pages_are_listed_with_or_without_readdirplus() {
    for plus in [true, false] {
        let (server, client) = server_and_client().await;
        if !plus {
            server.without_readdirplus();
        }
        let mut want = Vec::new();
        for index in 0..100 {
            let name = format!("file{index:03}");
            create(&client, &name).await;
            want.push(name.into_bytes());
        }
        let mut pages = client.dir_pages(client.root(), true);
        let mut got = Vec::new();
        while let Some(page) = pages.next_page().await.expect("listed") {
            for entry in page {
                let (_, attributes) = entry.known().expect("with attributes");
                assert_eq!(attributes.fileid, entry.fileid);
                got.push(entry.name);
            }
        }
        assert_eq!(got, want);
    }
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_errors() {
    let names: [&[u8]; 5] = [b"", b"../x", b"/etc/x", b"a/../../x", b"a\0b"];
    for plus in [true, false] {
        for name in names {
            let (server, client) = server_and_client().await;
            if !plus {
                server.without_readdirplus();
            }
            create(&client, "file").await;
            server.plant("file", name);
            for with_nodes in [true, false] {
                let mut pages = client.dir_pages(client.root(), with_nodes);
                let error = pages.next_page().await.expect_err("a name that is none");
                assert!(
                    matches!(error, Error::Inconsistent { .. }),
                    "{name:?}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn several_connections_share_the_calls() {
    let server = FakeServer::start().await;
    let url = format!("{}?nconnect=4", server.url(""))
        .parse()
        .expect("a URL");
    let client = Client::connect(&url, settings()).await.expect("connected");
    let file = create(&client, "f").await;
    let data = pattern(3 << 20);
    client
        .write_range(file, 0, data.clone())
        .await
        .expect("written");
    assert_eq!(read_all(&client, file).await, data);
}
