//! A server whose lease is over answers nobody (rule 9): another node may own the volume by then.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_activity::Activities;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{AlignedBuf, DiskId, PoolId, Timestamp, VolumeId};
use cairn_fs::{Fs, FsSettings};
use cairn_iscsi::{PortalCore, Running, Settings, Target, Targets};
use cairn_iscsi_client::{Error, IscsiUrl, Session, SessionSettings};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_qos::Shaper;
use cairn_san::{LunSpec, Seen};
use cairn_segment::{SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::MemDisk;

const DISK: DiskId = DiskId(1);
const POOL: PoolId = PoolId(7);
const VOLUME: VolumeId = VolumeId(1);
const INITIATOR: &str = "iqn.2025-11.test:host";
const BLOCK_LEN_BYTES: usize = 4096;
/// Nothing takes this long, also on a machine with far more to do than it can.
const PATIENCE: Duration = Duration::from_secs(60);

async fn volume(env: &Env) -> Fs {
    let disk = MemDisk::new("disk", 1 << 30) as Arc<dyn Disk>;
    ShardDisk::format(Arc::clone(&disk), POOL, DISK, Timestamp::new(1, 0))
        .await
        .unwrap();
    let shards = ShardDisk::open(Arc::clone(&disk), POOL, ShardSettings::default())
        .await
        .unwrap();
    let settings = SegmentSettings {
        shard_len_bytes: 4 << 20,
        ..SegmentSettings::default()
    };
    let segments = SegmentStore::new(env.clone(), settings, vec![shards], Vec::new());
    let mut settings = MetaSettings::new(1, MetaCache::new(1 << 20));
    settings.log_file_bytes = 4 << 20;
    let meta = MetaStore::create(env.clone(), settings, VOLUME, vec![(DISK, disk)])
        .await
        .unwrap();
    let settings = FsSettings::new(env.clone(), VOLUME, "main");
    Fs::format(settings, meta, segments).await.unwrap()
}

/// The volume's target, with one LUN that the initiator sees.
async fn target(env: &Env, targets: &Arc<Targets>) -> Arc<Target> {
    targets.replace(vec![volume(env).await]);
    let target = loop {
        match targets.of_volume(VOLUME) {
            Some(target) => break target,
            None => tokio::task::yield_now().await,
        }
    };
    let spec = LunSpec {
        name: "disk".to_owned(),
        size_bytes: 64 << 20,
        block_len_bytes: BLOCK_LEN_BYTES as u32,
        write_cache: false,
        is_reserved: false,
    };
    let san = &target.san;
    san.create(spec).await.unwrap();
    let initiators = [INITIATOR.to_owned()].into();
    let seen = Seen::new();
    san.igroup_set("hosts", initiators, None, &seen)
        .await
        .unwrap();
    san.map("disk", "hosts", None, &seen).await.unwrap();
    target.follow().await.unwrap();
    target
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_server_whose_lease_is_over_closes_connections_and_answers_nothing() {
    let runtime = runtime();
    let env = cairn_base::real::env(runtime.handle().clone());
    let targets = Targets::new(env.clone(), Shaper::new(&env), Activities::new(&env), None);
    let lease = Arc::new(AtomicBool::new(true));
    let may_answer = Arc::clone(&lease);
    let shared = PortalCore::new(Arc::clone(&targets), Settings::default(), move || {
        may_answer.load(Ordering::Acquire)
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    runtime.block_on(async {
        let target = target(&env, &targets).await;
        let running = Running::start(Arc::clone(&shared), vec![listener]).unwrap();
        let name = target.san.target().unwrap();
        let url: IscsiUrl = format!("iscsi://{address}/{name}/0").parse().unwrap();
        let settings = SessionSettings {
            initiator: INITIATOR.to_owned(),
            ..SessionSettings::default()
        };
        let login = || Session::login(&url, &settings);
        let read = async |session: &Session| {
            let buffer = session.read(0, AlignedBuf::zeroed(BLOCK_LEN_BYTES)).await?;
            Ok::<_, Error>(buffer[..].to_vec())
        };
        let data = Bytes::from(vec![7; BLOCK_LEN_BYTES]);
        let (reader, writer) = (login().await.unwrap(), login().await.unwrap());
        writer.write(0, data.clone(), false).await.unwrap();
        assert_eq!(read(&reader).await.unwrap(), data);

        lease.store(false, Ordering::Release);
        let broken = shared.broken_count.load(Ordering::Relaxed);
        let got = read(&reader).await;
        assert!(matches!(got, Err(Error::Lost(_))), "{got:?}");
        let got = writer.write(0, data.clone(), false).await;
        assert!(matches!(got, Err(Error::Lost(_))), "{got:?}");
        // Not even a command that is refused, which says what the LUN is like, and nobody who comes now.
        let got = login().await.map(|_| ());
        assert!(matches!(got, Err(Error::Lost(_))), "{got:?}");
        // The server counts a connection when it has closed it.
        let counted = || shared.broken_count.load(Ordering::Relaxed);
        let begun = Instant::now();
        while counted() < broken + 3 {
            assert!(begun.elapsed() < PATIENCE, "{} of 3", counted() - broken);
            tokio::task::yield_now().await;
        }
        assert_eq!(counted(), broken + 3);

        lease.store(true, Ordering::Release);
        let reader = login().await.unwrap();
        assert_eq!(read(&reader).await.unwrap(), data);
        drop(reader);
        running.stop(PATIENCE).await;
    });
}
