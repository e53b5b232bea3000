//! A server on memory disks, and a client that sends what it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, PoolId, Timestamp, VolumeId};
use cairn_codec_nfs::v3::{self, Call, FileHandle, Reply};
use cairn_codec_nfs::{mount, v3::ErrorStatus};
use cairn_codec_rpc::{
    AcceptStatus, AuthSys, CallHeader, Encode, FragmentHeader, OpaqueAuth, Reader, ReplyBody,
    ReplyHeader, Writer,
};
use cairn_exports::{ClientRule, Export, Exports, HandleSigner, Squash, Volume};
use cairn_fs::{DirtyBudget, Fs, FsSettings};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_nfs3::{Nfs3, Nfs3Settings};
use cairn_rpc_server::{ForwardedCalls, Listeners, RpcServer, Running, ServerSettings};
use cairn_segment::{SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{MemDisk, OpKind, Pace};
use tokio::sync::watch;

pub const KEY: [u8; 16] = *b"a pool's secret.";
const DISK: DiskId = DiskId(1);
const POOL: PoolId = PoolId(7);
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Holds back whatever is asked of the disks while it is shut.
pub struct Gate(watch::Sender<bool>);

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(true)))
    }

    pub fn shut(&self) {
        self.0.send_replace(false);
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }
}

impl Pace for Gate {
    fn pause(&self, _: OpKind, _: &str) -> Option<BoxFuture<()>> {
        let mut is_open = self.0.subscribe();
        if *is_open.borrow() {
            return None;
        }
        Some(Box::pin(async move {
            // An error means that the test is over.
            let _ = is_open.wait_for(|is_open| *is_open).await;
        }))
    }
}

/// The runtime that the engine's background tasks run on; ends when dropped.
pub struct Engine {
    handle: tokio::runtime::Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Engine {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.recv().unwrap()
    }

    fn volume(
        &self,
        id: u32,
        name: &'static str,
        memory: &Memory,
        gate: &Arc<Gate>,
    ) -> (Fs, Arc<MemDisk>) {
        let handle = self.handle.clone();
        let mem_disk = MemDisk::new(name, 2 << 30);
        mem_disk.pace_with(Arc::clone(gate) as Arc<dyn Pace>);
        let disk = Arc::clone(&mem_disk) as Arc<dyn Disk>;
        let (dirty, cache_bytes) = (Arc::clone(&memory.dirty), memory.cache_bytes);
        let fs = self.run(async move {
            let env = cairn_base::real::env(handle);
            let volume = VolumeId(id);
            ShardDisk::format(Arc::clone(&disk), POOL, DISK, Timestamp::new(1, 0))
                .await
                .unwrap();
            let shards = ShardDisk::open(Arc::clone(&disk), POOL, ShardSettings::default())
                .await
                .unwrap();
            let settings = SegmentSettings {
                shard_len_bytes: 4 << 20,
                cache_bytes,
                ..SegmentSettings::default()
            };
            let segments = SegmentStore::new(env.clone(), settings, vec![shards], Vec::new());
            let mut settings = MetaSettings::new(1, MetaCache::new(1 << 20));
            settings.log_file_bytes = 4 << 20;
            let meta = MetaStore::create(env.clone(), settings, volume, vec![(DISK, disk)])
                .await
                .unwrap();
            let mut settings = FsSettings::new(env, volume, name);
            settings.dirty = dirty;
            Fs::format(settings, meta, segments).await.unwrap()
        });
        (fs, mem_disk)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// What volumes of one server may hold in memory.
struct Memory {
    dirty: Arc<DirtyBudget>,
    cache_bytes: u64,
}

pub struct Server {
    pub address: SocketAddr,
    pub rpcbind: SocketAddr,
    pub udp: SocketAddr,
    pub exports: Arc<Exports>,
    pub main: Fs,
    pub other: Fs,
    /// The only disk of `main`.
    pub main_disk: Arc<MemDisk>,
    pub registry: prometheus::Registry,
    /// In front of the disks.
    pub gate: Arc<Gate>,
    running: Option<Running>,
    engine: Engine,
}

pub fn rule(clients: &str) -> ClientRule {
    ClientRule {
        squash: Squash::None,
        ..ClientRule::read_write(clients.parse().unwrap())
    }
}

pub fn export(fs: &Fs, rules: Vec<ClientRule>) -> Export {
    Export {
        volume: Volume::Serving(fs.clone()),
        rules,
        gate: None,
        activity: None,
    }
}

impl Server {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// Volumes `main` and `other`, exported to this machine without squashing.
    pub fn with(change: impl FnOnce(&mut ServerSettings)) -> Self {
        Self::with_dirty(256 << 20, change)
    }

    /// Those volumes, with `dirty_bytes_max` bytes of memory for data that is not on the disks yet.
    pub fn with_dirty(dirty_bytes_max: u64, change: impl FnOnce(&mut ServerSettings)) -> Self {
        Self::with_memory(dirty_bytes_max, 1 << 20, change)
    }

    /// As [`Self::start`], but what is read comes from the disk each time.
    pub fn without_cache() -> Self {
        Self::with_memory(256 << 20, 0, |_| {})
    }

    fn with_memory(
        dirty_bytes_max: u64,
        cache_bytes: u64,
        change: impl FnOnce(&mut ServerSettings),
    ) -> Self {
        let engine = Engine::start();
        let gate = Gate::new();
        let memory = Memory {
            dirty: DirtyBudget::new(dirty_bytes_max),
            cache_bytes,
        };
        let (main, main_disk) = engine.volume(1, "main", &memory, &gate);
        let (other, _) = engine.volume(2, "other", &memory, &gate);
        let exports = Arc::new(Exports::new(vec![
            export(&main, vec![rule("127.0.0.0/8")]),
            export(&other, vec![rule("127.0.0.0/8")]),
        ]));
        let registry = prometheus::Registry::new();
        let mut settings = ServerSettings {
            threads: 2,
            ..ServerSettings::default()
        };
        change(&mut settings);
        let nfs3_settings = Nfs3Settings::new(HandleSigner::new(&KEY));
        let served = Arc::clone(&exports);
        let nfs3 = Nfs3::new(nfs3_settings, served, settings.threads, &registry).unwrap();
        let server = RpcServer::new("nfs", settings, nfs3.programs(), &registry).unwrap();
        let nfs = TcpListener::bind("127.0.0.1:0").unwrap();
        let rpcbind = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addresses = (
            nfs.local_addr().unwrap(),
            rpcbind.local_addr().unwrap(),
            udp.local_addr().unwrap(),
        );
        let listeners = Listeners {
            programs: vec![nfs],
            rpcbind: vec![rpcbind],
            rpcbind_udp: vec![udp],
        };
        Self {
            address: addresses.0,
            rpcbind: addresses.1,
            udp: addresses.2,
            exports,
            main,
            other,
            main_disk,
            registry,
            gate,
            running: Some(server.start(listeners).unwrap()),
            engine,
        }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Serves calls that an edge passes on.
    pub fn forwarded(&self) -> ForwardedCalls {
        self.running.as_ref().unwrap().forwarded()
    }

    /// Runs something on the threads of the engine.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.engine.run(work)
    }

    /// Stops serving, as SIGTERM does.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.engine.run(running.stop(STOP_GRACE));
        }
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metric = &family.unwrap().get_metric()[0];
        (metric.get_counter().get_value() + metric.get_gauge().get_value()) as u64
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.gate.open();
        self.stop();
        let volumes = [self.main.clone(), self.other.clone()];
        self.engine.run(async move {
            for fs in volumes {
                fs.close().await.unwrap();
            }
        });
    }
}

/// The body of an AUTH_SYS credential.
pub fn user(uid: u32, gid: u32) -> Vec<u8> {
    AuthSys {
        stamp: 1,
        machine_name: "test".into(),
        uid,
        gid,
        groups: cairn_codec_rpc::rpc::Groups::new(&[gid]).unwrap(),
    }
    .to_body()
}

type Refused = Box<v3::Failure<v3::WccData>>;

/// The results of a call, or why there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub xid: u32,
    pub body: ReplyBody<'static>,
    pub results: &'static [u8],
}

impl Answer {
    /// Of a record without its header. The bytes live on: tests are short.
    pub fn of(record: Vec<u8>) -> Self {
        let mut from = Reader::new(record.leak());
        let header: ReplyHeader<'static> = from.get().unwrap();
        Self {
            xid: header.xid,
            body: header.body,
            results: from.rest(),
        }
    }

    pub fn accepted(&self) -> AcceptStatus {
        match self.body {
            ReplyBody::Accepted { status, .. } => status,
            ReplyBody::Denied(rejection) => panic!("denied: {rejection:?}"),
        }
    }

    pub fn nfs(&self, procedure: v3::Procedure) -> Reply<'static> {
        assert_eq!(self.accepted(), AcceptStatus::Success);
        let mut from = Reader::new(self.results);
        let reply = Reply::decode(procedure, &mut from).unwrap();
        from.finish().unwrap();
        reply
    }
}

pub fn call_bytes<A: Encode + ?Sized>(
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    credential: &OpaqueAuth<'_>,
    args: &A,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    let record = to.begin_record();
    to.put(&CallHeader {
        xid,
        program,
        version,
        procedure,
        credential: *credential,
        verifier: OpaqueAuth::NONE,
    });
    to.put(args);
    to.finish_record(record, 0);
    bytes
}

pub struct Client {
    pub stream: TcpStream,
    pub xid: u32,
    pub user: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        // A test that would hang fails.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let xid = u32::from(stream.local_addr().unwrap().port()) << 16;
        Self {
            stream,
            xid,
            user: user(0, 0),
        }
    }

    /// A whole record of an NFS call.
    pub fn encode(&mut self, call: &Call<'_>) -> Vec<u8> {
        self.xid += 1;
        let place = (v3::PROGRAM, v3::VERSION, call.procedure().number());
        call_bytes(self.xid, place, &OpaqueAuth::sys(&self.user), call)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn receive(&mut self) -> Answer {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).unwrap();
        let header = FragmentHeader::from_bytes(header);
        assert!(header.last);
        let mut record = vec![0; header.len_bytes as usize];
        self.stream.read_exact(&mut record).unwrap();
        Answer::of(record)
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn call<A: Encode + ?Sized>(&mut self, place: (u32, u32, u32), args: &A) -> Answer {
        self.xid += 1;
        let bytes = call_bytes(self.xid, place, &OpaqueAuth::sys(&self.user), args);
        self.send(&bytes);
        let answer = self.receive();
        assert_eq!(answer.xid, self.xid);
        answer
    }

    pub fn nfs(&mut self, call: Call<'_>) -> Reply<'static> {
        let place = (v3::PROGRAM, v3::VERSION, call.procedure().number());
        self.call(place, &call).nfs(call.procedure())
    }

    pub fn mount(&mut self, call: mount::Call<'_>) -> mount::Reply<'static> {
        let procedure = call.procedure();
        let place = (mount::PROGRAM, mount::VERSION_3, procedure.number());
        let answer = self.call(place, &call);
        assert_eq!(answer.accepted(), AcceptStatus::Success);
        let mut from = Reader::new(answer.results);
        mount::Reply::decode(mount::VERSION_3, procedure, &mut from).unwrap()
    }

    pub fn root(&mut self, path: &str) -> FileHandle {
        match self.mount(mount::Call::Mount(path.into())) {
            mount::Reply::Mount(Ok(found)) => found.handle,
            other => panic!("{other:?}"),
        }
    }

    pub fn lookup(&mut self, dir: FileHandle, name: &str) -> Result<FileHandle, ErrorStatus> {
        let name = name.into();
        match self.nfs(Call::Lookup(v3::DirOp { dir, name })) {
            Reply::Lookup(Ok(found)) => Ok(found.object),
            Reply::Lookup(Err(failure)) => Err(failure.status),
            other => panic!("{other:?}"),
        }
    }

    /// Makes a file.
    pub fn create(&mut self, dir: FileHandle, name: &str) -> FileHandle {
        let how = v3::CreateHow::Guarded(v3::SetAttributes {
            mode: Some(0o644),
            ..v3::SetAttributes::default()
        });
        let place = v3::DirOp {
            dir,
            name: name.into(),
        };
        match self.nfs(Call::Create(v3::CreateArgs { place, how })) {
            Reply::Create(Ok(made)) => made.object.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn getattr(&mut self, object: FileHandle) -> Result<v3::FileAttr, ErrorStatus> {
        match self.nfs(Call::GetAttr(object)) {
            Reply::GetAttr(result) => result.map_err(|failure| failure.status),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(
        &mut self,
        file: FileHandle,
        offset: u64,
        data: &[u8],
    ) -> Result<v3::WriteOk, Refused> {
        match self.nfs(write_call(file, offset, data)) {
            Reply::Write(result) => result.map_err(Box::new),
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, file: FileHandle, offset: u64, count_bytes: u32) -> Vec<u8> {
        match self.nfs(Call::Read(v3::ReadArgs {
            file,
            offset,
            count_bytes,
        })) {
            Reply::Read(Ok(read)) => read.data.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

pub fn write_call(file: FileHandle, offset: u64, data: &[u8]) -> Call<'_> {
    Call::Write(v3::WriteArgs {
        head: v3::WriteHead {
            file,
            offset,
            count_bytes: data.len() as u32,
            stable: v3::StableHow::Unstable,
        },
        data: data.into(),
    })
}

/// Bytes that repeat late, different for each seed.
pub fn pattern(seed: u32, len_bytes: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(2_654_435_761) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 4);
    while bytes.len() < len_bytes {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
