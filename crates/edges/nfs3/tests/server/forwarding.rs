//! A client of one node, and volumes that another one owns.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_codec_nfs::v3::{self, Call, ErrorStatus, Reply};
use cairn_exports::{Export, Exports, FailedVolume, HandleSigner, Volume};
use cairn_nfs3::{Forward, Nfs3, Nfs3Settings};
use cairn_rpc_server::forwarded::{Stream, read_preamble};
use cairn_rpc_server::{ForwardedCalls, Listeners, RpcServer, Running, ServerSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Client, KEY, Server, export, pattern, rule, write_call};

const OWNER: NodeId = NodeId(1);
const STREAM_LEN_BYTES: usize = 64 << 10;

/// Reaches the owner in this process, through streams that may be cut.
struct Streams {
    owner: ForwardedCalls,
    /// The next so many streams end after as many bytes towards the owner.
    cuts: AtomicUsize,
    cut_after_bytes: usize,
}

impl Forward for Streams {
    fn connect(&self, owner: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        if owner != OWNER {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        }
        let calls = self.owner.clone();
        let is_cut = self
            .cuts
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |cuts| {
                cuts.checked_sub(1)
            });
        let cut_after_bytes = is_cut.is_ok().then_some(self.cut_after_bytes);
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(STREAM_LEN_BYTES);
            let (middle, mut end) = tokio::io::duplex(STREAM_LEN_BYTES);
            tokio::spawn(async move {
                // It may be cut off in there.
                if let Ok(client) = read_preamble(&mut end).await {
                    calls.serve(Box::new(end), client);
                }
            });
            tokio::spawn(async move {
                let (from_near, mut to_near) = tokio::io::split(far);
                let (mut from_end, mut to_end) = tokio::io::split(middle);
                let limit = cut_after_bytes.map_or(u64::MAX, |bytes| bytes as u64);
                let mut from_near = from_near.take(limit);
                let there = tokio::io::copy(&mut from_near, &mut to_end);
                let back = tokio::io::copy(&mut from_end, &mut to_near);
                tokio::select! {
                    _ = there => {}
                    _ = back => {}
                }
                // Both directions end with the one.
                let _ = to_end.shutdown().await;
            });
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }
}

/// A node that owns no volume.
struct Edge {
    client: Client,
    exports: Arc<Exports>,
    running: Option<Running>,
    streams: Arc<Streams>,
    /// The node's lease.
    may_answer: Arc<AtomicBool>,
}

fn elsewhere(owner: &Server, by: Option<NodeId>) -> Vec<Export> {
    let volume = |fs: &cairn_fs::Fs| Export {
        volume: Volume::Elsewhere(
            FailedVolume {
                volume: fs.volume(),
                name: fs.name().to_owned(),
                root: Some(cairn_fs::ROOT),
            },
            by,
        ),
        rules: vec![rule("127.0.0.0/8")],
        gate: None,
        activity: None,
    };
    vec![volume(&owner.main), volume(&owner.other)]
}

impl Edge {
    fn before(owner: &Server, cuts: usize, cut_after_bytes: usize) -> Self {
        let streams = Arc::new(Streams {
            owner: owner.forwarded(),
            cuts: AtomicUsize::new(cuts),
            cut_after_bytes,
        });
        let exports = Arc::new(Exports::new(elsewhere(owner, Some(OWNER))));
        let registry = prometheus::Registry::new();
        let settings = ServerSettings {
            threads: 2,
            ..ServerSettings::default()
        };
        let nfs3_settings = Nfs3Settings::new(HandleSigner::new(&KEY));
        let nfs3 = Nfs3::new(nfs3_settings, Arc::clone(&exports), 2, &registry).unwrap();
        let may_answer = Arc::new(AtomicBool::new(true));
        let lease = Arc::clone(&may_answer);
        nfs3.in_cluster(Arc::clone(&streams) as _, move || {
            lease.load(Ordering::Acquire)
        });
        let server = RpcServer::new("edge", settings, nfs3.programs(), &registry).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let running = server.start(Listeners {
            programs: vec![listener],
            ..Listeners::default()
        });
        Self {
            client: Client::connect(address),
            exports,
            running: Some(running.unwrap()),
            streams,
            may_answer,
        }
    }

    fn end(mut self, owner: &Server) {
        let running = self.running.take().unwrap();
        drop(self.client);
        owner.run(running.stop(Duration::from_secs(30)));
    }
}

#[test]
fn a_volume_of_another_node_is_used_as_one_of_this_node() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let mut direct = owner.connect();
    let root = edge.client.root("/main");
    assert_eq!(root, direct.root("/main"));
    let file = edge.client.create(root, "file");
    // Around the sizes from which payloads are received in place, and with padding.
    for (seed, len_bytes) in [
        1,
        4095,
        (32 << 10) - 1,
        32 << 10,
        100_001,
        (1 << 20) - 3,
        1 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        let data = pattern(seed as u32, len_bytes);
        let written = edge.client.write(file, 0, &data).unwrap();
        assert_eq!(written.count_bytes as usize, len_bytes);
        assert_eq!(
            edge.client.read(file, 0, len_bytes as u32),
            data,
            "{len_bytes}"
        );
        assert_eq!(direct.read(file, 0, len_bytes as u32), data, "{len_bytes}");
    }
    // Whatever is asked, the answers are the same to the byte.
    let dir_op = |name: &'static str| v3::DirOp {
        dir: root,
        name: name.into(),
    };
    let calls: Vec<Call<'_>> = vec![
        Call::GetAttr(file),
        Call::Lookup(dir_op("file")),
        Call::Lookup(dir_op("none")),
        Call::Access(v3::AccessArgs {
            object: root,
            access: 63,
        }),
        Call::ReadLink(file),
        Call::FsStat(root),
        Call::FsInfo(root),
        Call::PathConf(root),
        Call::Read(v3::ReadArgs {
            file,
            offset: 7,
            count_bytes: 1 << 20,
        }),
        Call::ReadDir(v3::ReadDirArgs {
            dir: root,
            cookie: 0,
            cookie_verifier: [0; 8],
            count_bytes: 4096,
        }),
        Call::ReadDirPlus(v3::ReadDirPlusArgs {
            dir: root,
            cookie: 0,
            cookie_verifier: [0; 8],
            dir_count_bytes: 4096,
            max_count_bytes: 32 << 10,
        }),
    ];
    for call in calls {
        let place = (v3::PROGRAM, v3::VERSION, call.procedure().number());
        let here = edge.client.call(place, &call).results;
        assert_eq!(here, direct.call(place, &call).results, "{call:?}");
    }
    // By path below the root, and through the directory of all volumes.
    let made = edge.client.nfs(Call::MkDir(v3::MkDirArgs {
        place: dir_op("dir"),
        attributes: v3::SetAttributes::default(),
    }));
    assert!(matches!(made, Reply::MkDir(Ok(_))), "{made:?}");
    assert_eq!(edge.client.root("/main/dir"), direct.root("/main/dir"));
    let pseudo = edge.client.root("/");
    assert_eq!(edge.client.lookup(pseudo, "main"), Ok(root));
    assert_eq!(edge.client.lookup(pseudo, "none"), Err(ErrorStatus::NoEnt));
    edge.end(&owner);
}

#[test]
fn calls_are_held_until_somebody_owns_the_volume() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let root = edge.client.root("/main");
    edge.exports.replace(elsewhere(&owner, None));
    let calls: Vec<Vec<u8>> = (0..50)
        .map(|_| edge.client.encode(&Call::GetAttr(root)))
        .collect();
    edge.client.send(&calls.concat());
    // The owner says itself that it owns nothing before it does.
    owner.exports.replace(elsewhere(&owner, None));
    edge.exports.replace(elsewhere(&owner, Some(OWNER)));
    let rules = || vec![rule("127.0.0.0/8")];
    owner.exports.replace(vec![
        export(&owner.main, rules()),
        export(&owner.other, rules()),
    ]);
    let mut answered: Vec<u32> = (0..50)
        .map(|_| {
            let answer = edge.client.receive();
            assert!(matches!(
                answer.nfs(v3::Procedure::GetAttr),
                Reply::GetAttr(Ok(_))
            ));
            answer.xid
        })
        .collect();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), 50, "each is answered once");
    edge.end(&owner);
}

#[test]
fn a_server_that_ends_keeps_no_call_without_an_owner() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    let root = edge.client.root("/main");
    edge.exports.replace(elsewhere(&owner, None));
    let call = edge.client.encode(&Call::GetAttr(root));
    let begun = Instant::now();
    edge.client.send(&call);
    edge.exports.end();
    let answer = edge.client.receive();
    let Reply::GetAttr(Err(failure)) = answer.nfs(v3::Procedure::GetAttr) else {
        panic!("nobody owns it");
    };
    assert_eq!(failure.status, ErrorStatus::JukeBox);
    // It is held for 30 s otherwise.
    assert!(begun.elapsed() < Duration::from_secs(15));
    edge.end(&owner);
}

#[test]
fn wherever_a_stream_breaks_each_change_is_made_once() {
    // In the preamble, in the head of a call, in its payload, behind it.
    for cut_after_bytes in [0, 5, 22, 40, 200, 10_000, 60_000, 140_000] {
        let owner = Server::start();
        let mut edge = Edge::before(&owner, 2, cut_after_bytes);
        let root = edge.client.root("/main");
        let file = edge.client.create(root, "file");
        let data = pattern(3, 50_003);
        for offset in (0..8).map(|index| index * 50_003) {
            let bytes = edge.client.encode(&write_call(file, offset, &data));
            edge.client.send(&bytes);
            match edge.client.receive().nfs(v3::Procedure::Write) {
                Reply::Write(Ok(written)) => assert_eq!(written.count_bytes, 50_003),
                other => panic!("{cut_after_bytes}: {other:?}"),
            }
        }
        assert_eq!(
            edge.client.read(file, 50_003, 50_003),
            data,
            "{cut_after_bytes}"
        );
        assert_eq!(
            edge.streams.cuts.load(Ordering::Acquire),
            0,
            "{cut_after_bytes}"
        );
        edge.end(&owner);
    }
}

#[test]
fn what_is_under_way_when_the_lease_ends_is_answered_by_the_next_owner() {
    let owner = Server::start();
    let mut edge = Edge::before(&owner, 0, 0);
    // This node owns the volume first.
    let rules = || vec![rule("127.0.0.0/8")];
    edge.exports.replace(vec![
        export(&owner.main, rules()),
        export(&owner.other, rules()),
    ]);
    let root = edge.client.root("/main");
    let file = edge.client.create(root, "file");
    let (small, large) = (pattern(4, 5000), pattern(5, 300_001));
    edge.may_answer.store(false, Ordering::Release);
    let create = Call::Create(v3::CreateArgs {
        place: v3::DirOp {
            dir: root,
            name: "file".into(),
        },
        how: v3::CreateHow::Guarded(v3::SetAttributes::default()),
    });
    let calls = [
        Call::GetAttr(file),
        write_call(file, 0, &small),
        write_call(file, 5000, &large),
        // Refused, which is only true of what was read.
        create,
    ]
    .map(|call| (call.procedure(), edge.client.encode(&call)));
    let bytes: Vec<u8> = calls.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    edge.client.send(&bytes);
    // Nobody tells anything while it is not clear who owns the volume, and not that the client is to come later.
    edge.exports.replace(elsewhere(&owner, None));
    edge.exports.replace(elsewhere(&owner, Some(OWNER)));
    for _ in &calls {
        let answer = edge.client.receive();
        // The transaction id follows the record mark.
        let is_it = |bytes: &[u8]| bytes[4..8] == answer.xid.to_be_bytes();
        let asked = calls.iter().find(|(_, bytes)| is_it(bytes));
        let (procedure, _) = asked.expect("an answer to a call");
        match answer.nfs(*procedure) {
            Reply::GetAttr(Ok(_)) | Reply::Write(Ok(_)) => {}
            Reply::Create(Err(failure)) => assert_eq!(failure.status, ErrorStatus::Exist),
            other => panic!("{other:?}"),
        }
    }
    let mut direct = owner.connect();
    assert_eq!(direct.read(file, 0, 5000), small);
    assert_eq!(direct.read(file, 5000, 300_001), large);
    edge.end(&owner);
}
