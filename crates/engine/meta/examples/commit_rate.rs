//! Measures the metadata store on folders: durable creates per second with several waiting callers, point reads, scans,
//! and the duration of a restart after a kill with many files.
//!
//! `commit_rate FOLDER... [--seconds S] [--files N] [--copies C] [--think MICROS] [--creates] [--kill] [--reopen]`:
//! each folder is a disk. `--think` is the pause of a caller before its next create; with `--creates` nothing else is
//! measured. The volume is made in the folders and removed at the end. With `--kill` the process dies after filling the
//! volume and leaves it; with `--reopen` it only opens the volume that such a run has left. Prints one JSON object per
//! measurement.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, Ino, VolumeId};
use cairn_disk::RealDisk;
use cairn_meta::{
    Batch, CookieRecord, DirentRecord, InodeKind, InodeRecord, Key, MetaCache, MetaSettings,
    MetaStore, SpaceDelta,
};
use serde_json::json;

const VOLUME: VolumeId = VolumeId(1);
const ROOT: Ino = Ino(1);

type Disks = Vec<(DiskId, Arc<dyn Disk>)>;

struct Arguments {
    folders: Vec<String>,
    seconds: f64,
    files: u64,
    copies: usize,
    threads: usize,
    think: Duration,
    creates: bool,
    kill: bool,
    reopen: bool,
}

fn arguments() -> Arguments {
    let mut arguments = Arguments {
        folders: Vec::new(),
        seconds: 1.0,
        files: 1_000_000,
        copies: 1,
        threads: 2,
        think: Duration::ZERO,
        creates: false,
        kill: false,
        reopen: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--seconds" => arguments.seconds = value().parse().expect("a number"),
            "--files" => arguments.files = value().parse().expect("a count"),
            "--copies" => arguments.copies = value().parse().expect("a count"),
            "--threads" => arguments.threads = value().parse().expect("a count"),
            "--think" => {
                arguments.think = Duration::from_micros(value().parse().expect("a count"));
            }
            "--creates" => arguments.creates = true,
            "--kill" => arguments.kill = true,
            "--reopen" => arguments.reopen = true,
            _ => arguments.folders.push(word),
        }
    }
    assert!(!arguments.folders.is_empty(), "name at least one folder");
    arguments
}

/// The writes of a file creation: its inode, its name, its cookie, its directory.
fn create_batch(store: &MetaStore, number: u64) -> Batch {
    let ino = store.allocate_ino();
    let name = format!("file-{number:08}");
    let dirent = DirentRecord {
        ino,
        kind: InodeKind::Regular,
        cookie: number,
    };
    let cookie = CookieRecord {
        ino,
        kind: InodeKind::Regular,
        name: Bytes::copy_from_slice(name.as_bytes()),
    };
    let mut directory = InodeRecord::new(InodeKind::Directory);
    directory.entry_count = number;
    directory.cookie_next = number;
    let mut batch = Batch::new();
    batch
        .put(
            Key::inode(ino),
            InodeRecord::new(InodeKind::Regular).encode(),
        )
        .put(Key::dirent(ROOT, name.as_bytes()), dirent.encode())
        .put(Key::cookie(ROOT, number), cookie.encode())
        .put(Key::inode(ROOT), directory.encode())
        .space(SpaceDelta {
            inodes: 1,
            ..SpaceDelta::default()
        });
    batch
}

/// One create: does the reads it needs, then waits until it is durable.
async fn create_one(store: &MetaStore, number: u64) {
    let name = format!("file-{number:08}");
    let parent = store.live().get(&Key::inode(ROOT)).expect("reads");
    let there = store
        .live()
        .get(&Key::dirent(ROOT, name.as_bytes()))
        .expect("reads");
    assert!(there.is_none() && (parent.is_some() || number == 0));
    let ticket = store.submit(create_batch(store, number));
    store.durable(ticket).await.expect("durable");
}

async fn durable_creates(
    store: &Arc<MetaStore>,
    next: &Arc<AtomicU64>,
    waiting: u64,
    (seconds, think): (f64, Duration),
) {
    let before = store.stats();
    let start = Instant::now();
    let deadline = Duration::from_secs_f64(seconds);
    let mut tasks = Vec::new();
    for _ in 0..waiting {
        let (store, next) = (store.clone(), next.clone());
        tasks.push(tokio::spawn(async move {
            let mut latencies = Vec::new();
            while start.elapsed() < deadline {
                let begin = Instant::now();
                create_one(&store, next.fetch_add(1, Ordering::Relaxed)).await;
                latencies.push(begin.elapsed());
                // Like a client that answers from its own processor, without a timer.
                let thinking = Instant::now();
                while thinking.elapsed() < think {
                    tokio::task::yield_now().await;
                }
            }
            latencies
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("a task ends"));
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        latencies
            .get(index)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    };
    let groups = store.stats().groups - before.groups;
    println!(
        "{}",
        json!({
            "measure": "durable creates", "waiting": waiting,
            "per_second": (latencies.len() as f64 / elapsed).round(),
            "p50_us": at(0.5).round(), "p99_us": at(0.99).round(),
            "creates_per_group": latencies.len() as f64 / groups.max(1) as f64,
        })
    );
}

async fn fill(store: &MetaStore, next: &AtomicU64, files: u64) {
    let before = store.stats();
    let start = Instant::now();
    while next.load(Ordering::Relaxed) < files {
        store.admit().await;
        for _ in 0..64 {
            store.submit(create_batch(store, next.fetch_add(1, Ordering::Relaxed)));
        }
        tokio::task::yield_now().await;
    }
    store.durable(store.last_ticket()).await.expect("durable");
    println!(
        "{}",
        json!({
            "measure": "fill", "files": files, "seconds": start.elapsed().as_secs_f64(),
            "groups": store.stats().groups - before.groups,
            "group_bytes": store.stats().group_bytes - before.group_bytes,
        })
    );
}

fn reads(store: &MetaStore, files: u64, seconds: f64) {
    let start = Instant::now();
    let mut count = 0u64;
    let mut number = 1u64;
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..100 {
            number = number
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let name = format!("file-{:08}", (number >> 33) % files);
            let found = store
                .live()
                .get(&Key::dirent(ROOT, name.as_bytes()))
                .expect("reads");
            assert!(found.is_some());
            count += 1;
        }
    }
    let per_second = (count as f64 / start.elapsed().as_secs_f64()).round();
    println!(
        "{}",
        json!({"measure": "point gets", "per_second": per_second})
    );
    let (from, to) = Key::dirents(ROOT);
    let start = Instant::now();
    let mut count = 0u64;
    let scanned = store.live().scan_with(&from, &to, |_, _, _| {
        count += 1;
        ControlFlow::Continue(())
    });
    scanned.expect("scans");
    let per_second = (count as f64 / start.elapsed().as_secs_f64()).round();
    println!(
        "{}",
        json!({"measure": "scan", "entries": count, "per_second": per_second})
    );
}

async fn restart(env: &Env, settings: &MetaSettings, disks: &Disks, what: &str) -> Arc<MetaStore> {
    let start = Instant::now();
    let opened = MetaStore::open(env.clone(), settings.clone(), VOLUME, disks.clone()).await;
    let (store, recovered) = opened.expect("opens");
    println!(
        "{}",
        json!({
            "measure": "restart", "after": what, "seconds": start.elapsed().as_secs_f64(),
            "replayed_entries": recovered.replayed_entries,
            "log_bytes": store.stats().log_bytes, "inodes": store.counters().inodes,
        })
    );
    store
}

fn main() {
    let arguments = arguments();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads)
        .enable_time()
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    let open = |(index, path): (usize, &String)| -> (DiskId, Arc<dyn Disk>) {
        let disk = RealDisk::open(path, Default::default()).expect("the folder opens as a disk");
        (DiskId(index as u128 + 1), disk)
    };
    let disks: Disks = arguments.folders.iter().enumerate().map(open).collect();
    let settings = MetaSettings::new(arguments.copies, MetaCache::new(256 << 20));
    runtime.block_on(async {
        if arguments.reopen {
            let store = restart(&env, &settings, &disks, "death of the process").await;
            store.close().await.expect("closes");
            return;
        }
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks.clone());
        let store = created.await.expect("creates; are the folders empty?");
        let next = Arc::new(AtomicU64::new(0));
        create_one(&store, next.fetch_add(1, Ordering::Relaxed)).await;
        for waiting in [1, 4, 16, 128] {
            let pace = (arguments.seconds, arguments.think);
            durable_creates(&store, &next, waiting, pace).await;
        }
        if arguments.creates {
            store.close().await.expect("closes");
            return;
        }
        fill(&store, &next, arguments.files).await;
        if arguments.kill {
            std::process::abort();
        }
        reads(&store, next.load(Ordering::Relaxed), arguments.seconds);
        store.abort().await;
        drop(store);
        let store = restart(&env, &settings, &disks, "kill").await;
        store.close().await.expect("closes");
        println!("{}", json!({"measure": "shipped", "states": store.stats().states.len(), "ships": store.stats().ships}));
        drop(store);
        let store = restart(&env, &settings, &disks, "close").await;
        store.abort().await;
    });
    for (_, disk) in &disks {
        if let Some(folder) = disk.folder() {
            std::fs::remove_dir_all(folder.join("volumes")).ok();
        }
    }
}
