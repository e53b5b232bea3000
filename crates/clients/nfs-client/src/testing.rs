//! A small NFS server in memory, for tests of this crate and of those above it.
//!
//! Owns: a tree of files with honest stable and unstable data, and a script by which a test makes
//! the server misbehave.
//! Must not know: permissions, limits, disks. It is for tests only: it panics on what tests never do.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use cairn_codec_nfs::mount::{self, ExportEntry, MountError, MountOk};
use cairn_codec_nfs::v3::{
    self, AccessOk, Call, CommitOk, CreateHow, DeviceNumber, DirOp, Entry, EntryPlus, ErrorStatus,
    Failure, FileAttr, FileHandle, FileType, FsInfoOk, FsStatOk, LinkWcc, LookupOk, MakeOk,
    MkNodWhat, NfsTime, PathConfOk, Procedure, ReadDirOk, ReadDirPlusOk, ReadHead, ReadLinkOk,
    ReadOk, RenameWcc, Reply, SetAttributes, SetTime, StableHow, WccData, WriteOk,
};
use cairn_codec_rpc::rpc::{self, Incoming, encode_success};
use cairn_codec_rpc::{
    AcceptStatus, Array, List, Opaque, Reader, RecordAssembler, ReplyHeader, Writer,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The one export.
pub const EXPORT: &[u8] = b"/main";
const ROOT: u64 = 1;
const BLOCK_LEN_BYTES: u64 = 4096;
const PAGE_ENTRY_COUNT: usize = 16;

/// What the server does with one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Answer,
    /// Answers with this status and does nothing.
    Fail(ErrorStatus),
    /// Closes the connection and does nothing.
    CloseBefore,
    /// Does it, then closes the connection without an answer.
    CloseAfter,
    /// Does it; the answer goes out only after that of the next call.
    AnswerLater,
    /// Sends these bytes as the record.
    Send(Vec<u8>),
    /// Sends these bytes without a record around them.
    SendRaw(Vec<u8>),
    /// Never answers.
    Ignore,
    /// Restarts (see [`FakeServer::restart`]), then answers.
    RestartBefore,
}

type Script = Box<dyn FnMut(Procedure) -> Action + Send>;

/// A running server; it stops with the runtime of the test.
#[derive(Clone)]
pub struct FakeServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    script: Script,
    verifier: u64,
    clock: u32,
    read_count_max: usize,
    write_count_max: usize,
    has_readdirplus: bool,
    calls: Vec<(u32, Procedure)>,
}

#[derive(Clone)]
struct Inode {
    attributes: FileAttr,
    what: What,
}

#[derive(Clone)]
enum What {
    File {
        now: Contents,
        stable: Contents,
    },
    /// Cookie, then name and inode.
    Directory(BTreeMap<u64, (Vec<u8>, u64)>),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    blocks: BTreeSet<u64>,
}

type Failed = ErrorStatus;

/// Cookie, name, inode.
type RawEntry = (u64, Vec<u8>, u64);

impl FakeServer {
    /// Starts on a free port of the loopback address.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let mut state = State {
            inodes: BTreeMap::new(),
            next: ROOT + 1,
            script: Box::new(|_| Action::Answer),
            verifier: 1,
            clock: 1,
            read_count_max: usize::MAX,
            write_count_max: usize::MAX,
            has_readdirplus: true,
            calls: Vec::new(),
        };
        let root = state.inode(FileType::Directory, ROOT, What::Directory(BTreeMap::new()));
        state.inodes.insert(ROOT, root);
        let server = Self {
            address,
            state: Arc::new(Mutex::new(state)),
        };
        server.accept_at(listener);
        server
    }

    fn accept_at(&self, listener: TcpListener) {
        let accepting = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
    }

    /// This server under another address.
    pub async fn other_address(&self) -> Self {
        let listener = TcpListener::bind("127.0.0.2:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        self.accept_at(listener);
        Self {
            address,
            state: self.state.clone(),
        }
    }

    /// The URL of `path` in the export.
    pub fn url(&self, path: &str) -> String {
        format!("nfs://{}/main{path}", self.address)
    }

    /// From now on each NFS call is looked at by `script`.
    pub fn script(&self, script: impl FnMut(Procedure) -> Action + Send + 'static) {
        self.state.lock().script = Box::new(script);
    }

    /// Loses unstable data and changes the verifier.
    pub fn restart(&self) {
        self.state.lock().restart();
    }

    /// Transfers are cut to so many bytes.
    pub fn limit_transfers(&self, read_count_max: usize, write_count_max: usize) {
        let mut state = self.state.lock();
        (state.read_count_max, state.write_count_max) = (read_count_max, write_count_max);
    }

    /// The server has only READDIR.
    pub fn without_readdirplus(&self) {
        self.state.lock().has_readdirplus = false;
    }

    /// The xid and procedure of each NFS call that arrived.
    pub fn calls(&self) -> Vec<(u32, Procedure)> {
        self.state.lock().calls.clone()
    }

    /// The stable contents of a file, by its path below the export.
    pub fn stable(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        match &state.inodes.get(&state.find(path)?)?.what {
            What::File { stable, .. } => Some(stable.bytes.clone()),
            _ => None,
        }
    }

    /// The attributes of what is at a path below the export.
    pub fn attributes(&self, path: &str) -> Option<FileAttr> {
        let state = self.state.lock();
        Some(state.inodes.get(&state.find(path)?)?.attributes)
    }

    /// The names in a directory, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let state = self.state.lock();
        let dir = state.find(path).and_then(|it| state.inodes.get(&it));
        let mut names = match dir.map(|dir| &dir.what) {
            Some(What::Directory(entries)) => entries
                .values()
                .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
                .collect(),
            _ => Vec::new(),
        };
        names.sort();
        names
    }

    /// Gives what is at a path below the export one more name in the root, one that no client could.
    pub fn plant(&self, path: &str, name: &[u8]) {
        let mut state = self.state.lock();
        let inode = state.find(path).expect("something to name");
        state.next += 1;
        let cookie = state.next;
        let entries = state.entries_mut(ROOT).expect("the root is a directory");
        entries.insert(cookie, (name.to_vec(), inode));
    }

    async fn serve(&self, mut stream: TcpStream) {
        let mut records = RecordAssembler::new(4 << 20);
        let mut input = BytesMut::new();
        let mut later = Vec::new();
        loop {
            let record = match records.next_record(&mut input) {
                Ok(Some(record)) => record,
                Ok(None) => match stream.read_buf(&mut input).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => continue,
                },
                Err(_) => return,
            };
            match self.answer(&record, &mut later) {
                Ok(output) if stream.write_all(&output).await.is_ok() => {}
                _ => return,
            }
        }
    }

    /// The bytes to send for one record; an error closes the connection.
    fn answer(&self, record: &[u8], later: &mut Vec<u8>) -> io::Result<Vec<u8>> {
        let close = || Err(io::ErrorKind::ConnectionReset.into());
        let mut from = Reader::new(record);
        let Ok(Incoming::Call(header)) = rpc::decode_call(&mut from) else {
            return close();
        };
        let mut results = Vec::new();
        match (header.program, header.version) {
            (mount::PROGRAM, mount::VERSION_3) => {
                answer_mount(header.procedure, &mut from, &mut Writer::new(&mut results));
            }
            (v3::PROGRAM, v3::VERSION) => {
                let Some(procedure) = Procedure::from_u32(header.procedure) else {
                    return close();
                };
                let mut state = self.state.lock();
                state.calls.push((header.xid, procedure));
                let action = (state.script)(procedure);
                if action == Action::CloseBefore {
                    return close();
                }
                if action == Action::RestartBefore {
                    state.restart();
                }
                let Ok(call) = Call::decode(procedure, &mut from) else {
                    return close();
                };
                let mut to = Writer::new(&mut results);
                match action.clone() {
                    Action::Fail(status) => to.put(&failure(procedure, status)),
                    Action::Send(bytes) => return Ok(framed(|to| to.raw(&bytes))),
                    Action::SendRaw(bytes) => return Ok(bytes),
                    Action::Ignore => return Ok(Vec::new()),
                    _ => state.execute(&call, &mut to),
                }
                match action {
                    Action::CloseAfter => return close(),
                    Action::AnswerLater => {
                        later.extend(success(header.xid, &results));
                        return Ok(Vec::new());
                    }
                    _ => {}
                }
            }
            _ => {
                let unknown = ReplyHeader::accepted(header.xid, AcceptStatus::ProgramUnavailable);
                return Ok(framed(|to| to.put(&unknown)));
            }
        }
        let mut output = success(header.xid, &results);
        output.append(later);
        Ok(output)
    }
}

fn framed(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut output = Vec::new();
    let mut to = Writer::new(&mut output);
    let start = to.begin_record();
    write(&mut to);
    to.finish_record(start, 0);
    output
}

fn success(xid: u32, results: &[u8]) -> Vec<u8> {
    framed(|to| {
        encode_success(to, xid);
        to.raw(results);
    })
}

fn answer_mount(procedure: u32, from: &mut Reader<'_>, to: &mut Writer<'_>) {
    match mount::Procedure::from_u32(procedure) {
        Some(mount::Procedure::Mount) => {
            let path: mount::DirPath<'_> = from.get().expect("a path");
            let mounted: Result<MountOk, MountError> = if path.0 == EXPORT {
                Ok(MountOk {
                    handle: handle(ROOT),
                    auth_flavors: Array(vec![1]),
                })
            } else {
                Err(MountError::NoEnt)
            };
            to.put(&mounted);
        }
        Some(mount::Procedure::Export) => to.put(&List(vec![ExportEntry {
            path: Opaque(EXPORT),
            groups: List(Vec::new()),
        }])),
        _ => {}
    }
}

fn handle(inode: u64) -> FileHandle {
    FileHandle::new(&inode.to_be_bytes()).expect("eight bytes fit")
}

fn number(handle: &FileHandle) -> u64 {
    let bytes = handle.as_bytes().try_into().expect("a handle of ours");
    u64::from_be_bytes(bytes)
}

fn failure(procedure: Procedure, status: ErrorStatus) -> Reply<'static> {
    match procedure {
        Procedure::Null => Reply::Null,
        Procedure::GetAttr => Reply::GetAttr(Err(status.into())),
        Procedure::SetAttr => Reply::SetAttr(Err(status.into())),
        Procedure::Lookup => Reply::Lookup(Err(status.into())),
        Procedure::Access => Reply::Access(Err(status.into())),
        Procedure::ReadLink => Reply::ReadLink(Err(status.into())),
        Procedure::Read => Reply::Read(Err(status.into())),
        Procedure::Write => Reply::Write(Err(status.into())),
        Procedure::Create => Reply::Create(Err(status.into())),
        Procedure::MkDir => Reply::MkDir(Err(status.into())),
        Procedure::SymLink => Reply::SymLink(Err(status.into())),
        Procedure::MkNod => Reply::MkNod(Err(status.into())),
        Procedure::Remove => Reply::Remove(Err(status.into())),
        Procedure::RmDir => Reply::RmDir(Err(status.into())),
        Procedure::Rename => Reply::Rename(Err(status.into())),
        Procedure::Link => Reply::Link(Err(status.into())),
        Procedure::ReadDir => Reply::ReadDir(Err(status.into())),
        Procedure::ReadDirPlus => Reply::ReadDirPlus(Err(status.into())),
        Procedure::FsStat => Reply::FsStat(Err(status.into())),
        Procedure::FsInfo => Reply::FsInfo(Err(status.into())),
        Procedure::PathConf => Reply::PathConf(Err(status.into())),
        Procedure::Commit => Reply::Commit(Err(status.into())),
    }
}

fn failed<T, F: Default>(result: Result<T, Failed>) -> Result<T, Failure<F>> {
    result.map_err(Failure::from)
}

impl Contents {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if (self.bytes.len() as u64) < end {
            self.bytes.resize(end as usize, 0);
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(data);
        let blocks = offset / BLOCK_LEN_BYTES..end.div_ceil(BLOCK_LEN_BYTES);
        self.blocks.extend(blocks);
    }

    fn set_len(&mut self, len_bytes: u64) {
        self.bytes.resize(len_bytes as usize, 0);
        self.blocks
            .retain(|block| block * BLOCK_LEN_BYTES < len_bytes);
    }
}

impl State {
    fn restart(&mut self) {
        self.verifier += 1;
        for inode in self.inodes.values_mut() {
            if let What::File { now, stable } = &mut inode.what {
                *now = stable.clone();
            }
            inode.update_size();
        }
    }

    fn inode(&mut self, file_type: FileType, fileid: u64, what: What) -> Inode {
        self.clock += 1;
        let time = NfsTime {
            seconds: self.clock,
            nanos: 0,
        };
        Inode {
            attributes: FileAttr {
                file_type,
                mode: 0o644,
                nlink: 1,
                uid: 0,
                gid: 0,
                size_bytes: 0,
                used_bytes: 0,
                device: DeviceNumber::default(),
                fsid: 1,
                fileid,
                atime: time,
                mtime: time,
                ctime: time,
            },
            what,
        }
    }

    fn find(&self, path: &str) -> Option<u64> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |dir, name| {
                let (_, child) = self.entry(dir, name.as_bytes()).ok()?;
                Some(child)
            })
    }

    fn get(&self, inode: u64) -> Result<&Inode, Failed> {
        self.inodes.get(&inode).ok_or(ErrorStatus::Stale)
    }

    fn get_mut(&mut self, inode: u64) -> Result<&mut Inode, Failed> {
        self.inodes.get_mut(&inode).ok_or(ErrorStatus::Stale)
    }

    fn attributes(&self, inode: u64) -> Option<FileAttr> {
        self.inodes.get(&inode).map(|inode| inode.attributes)
    }

    fn entries(&self, dir: u64) -> Result<&BTreeMap<u64, (Vec<u8>, u64)>, Failed> {
        match &self.get(dir)?.what {
            What::Directory(entries) => Ok(entries),
            _ => Err(ErrorStatus::NotDir),
        }
    }

    fn entries_mut(&mut self, dir: u64) -> Result<&mut BTreeMap<u64, (Vec<u8>, u64)>, Failed> {
        match &mut self.get_mut(dir)?.what {
            What::Directory(entries) => Ok(entries),
            _ => Err(ErrorStatus::NotDir),
        }
    }

    /// The cookie and inode of a name.
    fn entry(&self, dir: u64, name: &[u8]) -> Result<(u64, u64), Failed> {
        let mut entries = self.entries(dir)?.iter();
        let found = entries.find(|(_, (entry, _))| entry == name);
        found
            .map(|(cookie, (_, inode))| (*cookie, *inode))
            .ok_or(ErrorStatus::NoEnt)
    }

    fn add(&mut self, place: &DirOp<'_>, inode: u64) -> Result<(), Failed> {
        let dir = number(&place.dir);
        if self.entry(dir, place.name.0).is_ok() {
            return Err(ErrorStatus::Exist);
        }
        self.next += 1;
        let cookie = self.next;
        let name = place.name.to_vec();
        self.entries_mut(dir)?.insert(cookie, (name, inode));
        Ok(())
    }

    fn make(
        &mut self,
        place: &DirOp<'_>,
        file_type: FileType,
        what: What,
        set: &SetAttributes,
    ) -> Result<MakeOk, Failed> {
        self.next += 1;
        let number = self.next;
        self.add(place, number)?;
        let inode = self.inode(file_type, number, what);
        self.inodes.insert(number, inode);
        self.set(number, set)?;
        Ok(self.made(number))
    }

    fn made(&self, inode: u64) -> MakeOk {
        MakeOk {
            object: Some(handle(inode)),
            attributes: self.attributes(inode),
            dir_wcc: WccData::default(),
        }
    }

    fn set(&mut self, inode: u64, set: &SetAttributes) -> Result<(), Failed> {
        self.clock += 1;
        let now = NfsTime {
            seconds: self.clock,
            nanos: 0,
        };
        let inode = self.get_mut(inode)?;
        let attributes = &mut inode.attributes;
        attributes.mode = set.mode.unwrap_or(attributes.mode);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        for (time, set) in [
            (&mut attributes.atime, set.atime),
            (&mut attributes.mtime, set.mtime),
        ] {
            match set {
                SetTime::Keep => {}
                SetTime::ServerTime => *time = now,
                SetTime::ClientTime(wanted) => *time = wanted,
            }
        }
        if let (Some(len_bytes), What::File { now, stable }) = (set.size_bytes, &mut inode.what) {
            now.set_len(len_bytes);
            stable.set_len(len_bytes);
        }
        inode.update_size();
        Ok(())
    }

    fn remove(&mut self, place: &DirOp<'_>, directory: bool) -> Result<WccData, Failed> {
        let dir = number(&place.dir);
        let (cookie, inode) = self.entry(dir, place.name.0)?;
        match &self.get(inode)?.what {
            What::Directory(_) if !directory => return Err(ErrorStatus::IsDir),
            What::Directory(entries) if !entries.is_empty() => return Err(ErrorStatus::NotEmpty),
            What::Directory(_) => {}
            _ if directory => return Err(ErrorStatus::NotDir),
            _ => {}
        }
        self.entries_mut(dir)?.remove(&cookie);
        let attributes = &mut self.get_mut(inode)?.attributes;
        attributes.nlink -= 1;
        if attributes.nlink == 0 {
            self.inodes.remove(&inode);
        }
        Ok(WccData::default())
    }

    fn write(&mut self, args: &v3::WriteArgs<'_>) -> Result<WriteOk, Failed> {
        let (verifier, count_max) = (self.verifier.to_be_bytes(), self.write_count_max);
        self.clock += 1;
        let clock = self.clock;
        let inode = self.get_mut(number(&args.head.file))?;
        let What::File { now, stable } = &mut inode.what else {
            return Err(ErrorStatus::Inval);
        };
        let data = args.data.0;
        let data = data.get(..count_max).unwrap_or(data);
        now.write(args.head.offset, data);
        if args.head.stable != StableHow::Unstable {
            *stable = now.clone();
        }
        inode.attributes.mtime.seconds = clock;
        inode.update_size();
        Ok(WriteOk {
            wcc: WccData::default(),
            count_bytes: data.len() as u32,
            committed: args.head.stable,
            verifier,
        })
    }

    fn read(&self, args: &v3::ReadArgs) -> Result<(ReadHead, Vec<u8>), Failed> {
        let inode = self.get(number(&args.file))?;
        let What::File { now, .. } = &inode.what else {
            return Err(ErrorStatus::Inval);
        };
        let start = now.bytes.len().min(args.offset as usize);
        let count = (args.count_bytes as usize).min(self.read_count_max);
        let end = now.bytes.len().min(start + count);
        let head = ReadHead {
            attributes: Some(inode.attributes),
            count_bytes: (end - start) as u32,
            eof: end == now.bytes.len(),
        };
        Ok((head, now.bytes[start..end].to_vec()))
    }

    /// The entries after `cookie`, those of one page, and whether there are no more.
    fn page(&self, dir: &FileHandle, cookie: u64) -> Result<(Vec<RawEntry>, bool), Failed> {
        let entries = self.entries(number(dir))?;
        let mut after = entries.range(cookie + 1..);
        let page: Vec<_> = after
            .by_ref()
            .take(PAGE_ENTRY_COUNT)
            .map(|(cookie, (name, inode))| (*cookie, name.clone(), *inode))
            .collect();
        Ok((page, after.next().is_none()))
    }

    /// Carries a call out and writes its results.
    fn execute(&mut self, call: &Call<'_>, to: &mut Writer<'_>) {
        match call {
            Call::Null => {}
            Call::GetAttr(object) => {
                let found = self.get(number(object)).map(|it| it.attributes);
                to.put(&failed::<_, ()>(found));
            }
            Call::SetAttr(args) => {
                let done = self.set(number(&args.object), &args.attributes);
                to.put(&failed::<_, WccData>(done.map(|()| WccData::default())));
            }
            Call::Lookup(place) => {
                let found = self.entry(number(&place.dir), place.name.0);
                let found = found.map(|(_, inode)| LookupOk {
                    object: handle(inode),
                    attributes: self.attributes(inode),
                    dir_attributes: None,
                });
                to.put(&failed::<_, v3::PostOpAttr>(found));
            }
            Call::Access(args) => {
                let granted = AccessOk {
                    attributes: None,
                    access: args.access,
                };
                to.put(&failed::<_, v3::PostOpAttr>(Ok(granted)));
            }
            Call::ReadLink(link) => {
                let target = match self.get(number(link)).map(|it| &it.what) {
                    Ok(What::Symlink(target)) => Ok(ReadLinkOk {
                        attributes: None,
                        target: Opaque(target),
                    }),
                    Ok(_) => Err(ErrorStatus::Inval),
                    Err(status) => Err(status),
                };
                to.put(&failed::<_, v3::PostOpAttr>(target));
            }
            Call::Read(args) => {
                let read = self.read(args);
                let read = read.as_ref().map(|(head, data)| ReadOk {
                    head: *head,
                    data: Opaque(data),
                });
                to.put(&failed::<_, v3::PostOpAttr>(read.map_err(|status| *status)));
            }
            Call::Write(args) => to.put(&failed::<_, WccData>(self.write(args))),
            Call::Create(_) | Call::MkDir(_) | Call::SymLink(_) | Call::MkNod(_) => {
                to.put(&failed::<_, WccData>(self.create(call)));
            }
            Call::Remove(place) => to.put(&failed::<_, WccData>(self.remove(place, false))),
            Call::RmDir(place) => to.put(&failed::<_, WccData>(self.remove(place, true))),
            Call::Rename(args) => {
                let renamed = self.rename(&args.from, &args.to);
                to.put(&failed::<_, RenameWcc>(renamed));
            }
            Call::Link(args) => {
                let inode = number(&args.file);
                let linked = self.add(&args.link, inode).and_then(|()| {
                    self.get_mut(inode)?.attributes.nlink += 1;
                    Ok(LinkWcc::default())
                });
                to.put(&failed::<_, LinkWcc>(linked));
            }
            Call::ReadDir(args) => {
                let page = self.page(&args.dir, args.cookie);
                let page = page.as_ref().map(|(entries, eof)| ReadDirOk {
                    attributes: None,
                    cookie_verifier: [0; 8],
                    entries: List(entries.iter().map(entry).collect()),
                    eof: *eof,
                });
                to.put(&failed::<_, v3::PostOpAttr>(page.map_err(|status| *status)));
            }
            Call::ReadDirPlus(_) if !self.has_readdirplus => {
                to.put(&failure(Procedure::ReadDirPlus, ErrorStatus::NotSupp));
            }
            Call::ReadDirPlus(args) => {
                let page = self.page(&args.dir, args.cookie);
                let plus = |entry| self.entry_plus(entry);
                let page = page.as_ref().map(|(entries, eof)| ReadDirPlusOk {
                    attributes: None,
                    cookie_verifier: [0; 8],
                    entries: List(entries.iter().map(plus).collect()),
                    eof: *eof,
                });
                to.put(&failed::<_, v3::PostOpAttr>(page.map_err(|status| *status)));
            }
            Call::FsStat(_) => to.put(&failed::<_, v3::PostOpAttr>(Ok(FS_STAT))),
            Call::FsInfo(_) => to.put(&failed::<_, v3::PostOpAttr>(Ok(FS_INFO))),
            Call::PathConf(_) => to.put(&failed::<_, v3::PostOpAttr>(Ok(PATH_CONF))),
            Call::Commit(args) => {
                let verifier = self.verifier.to_be_bytes();
                let committed = self.get_mut(number(&args.file)).map(|inode| {
                    if let What::File { now, stable } = &mut inode.what {
                        *stable = now.clone();
                    }
                    CommitOk {
                        wcc: WccData::default(),
                        verifier,
                    }
                });
                to.put(&failed::<_, WccData>(committed));
            }
        }
    }

    fn create(&mut self, call: &Call<'_>) -> Result<MakeOk, Failed> {
        let file = || What::File {
            now: Contents::default(),
            stable: Contents::default(),
        };
        match call {
            Call::Create(args) => match args.how {
                CreateHow::Exclusive(_) => Err(ErrorStatus::NotSupp),
                CreateHow::Guarded(set) => self.make(&args.place, FileType::Regular, file(), &set),
                CreateHow::Unchecked(set) => {
                    match self.entry(number(&args.place.dir), args.place.name.0) {
                        Ok((_, inode)) => self.set(inode, &set).map(|()| self.made(inode)),
                        Err(_) => self.make(&args.place, FileType::Regular, file(), &set),
                    }
                }
            },
            Call::MkDir(args) => {
                let what = What::Directory(BTreeMap::new());
                self.make(&args.place, FileType::Directory, what, &args.attributes)
            }
            Call::SymLink(args) => {
                let what = What::Symlink(args.target.to_vec());
                self.make(&args.place, FileType::Symlink, what, &args.attributes)
            }
            Call::MkNod(args) => {
                let (set, device) = match args.what {
                    MkNodWhat::CharDevice { attributes, device }
                    | MkNodWhat::BlockDevice { attributes, device } => (attributes, device),
                    MkNodWhat::Socket(set) | MkNodWhat::Fifo(set) => (set, DeviceNumber::default()),
                    _ => return Err(ErrorStatus::BadType),
                };
                let made = self.make(&args.place, args.what.file_type(), What::Special, &set)?;
                let inode = number(&made.object.ok_or(ErrorStatus::ServerFault)?);
                self.get_mut(inode)?.attributes.device = device;
                Ok(made)
            }
            _ => Err(ErrorStatus::ServerFault),
        }
    }

    fn rename(&mut self, from: &DirOp<'_>, to: &DirOp<'_>) -> Result<RenameWcc, Failed> {
        let from_dir = number(&from.dir);
        let (cookie, inode) = self.entry(from_dir, from.name.0)?;
        if self.entry(number(&to.dir), to.name.0).is_ok() {
            self.remove(to, false)?;
        }
        self.entries_mut(from_dir)?.remove(&cookie);
        self.add(to, inode)?;
        Ok(RenameWcc::default())
    }

    /// Every other entry comes without a handle, as servers may do.
    fn entry_plus<'a>(&self, raw: &'a RawEntry) -> EntryPlus<'a> {
        let Entry {
            fileid,
            name,
            cookie,
        } = entry(raw);
        EntryPlus {
            fileid,
            name,
            cookie,
            attributes: self.attributes(fileid),
            handle: (fileid % 2 == 0).then(|| handle(fileid)),
        }
    }
}

fn entry((cookie, name, fileid): &RawEntry) -> Entry<'_> {
    Entry {
        fileid: *fileid,
        name: Opaque(name),
        cookie: *cookie,
    }
}

impl Inode {
    fn update_size(&mut self) {
        match &self.what {
            What::File { now, .. } => {
                self.attributes.size_bytes = now.bytes.len() as u64;
                self.attributes.used_bytes = now.blocks.len() as u64 * BLOCK_LEN_BYTES;
            }
            What::Symlink(target) => self.attributes.size_bytes = target.len() as u64,
            What::Directory(_) | What::Special => {}
        }
    }
}

const FS_STAT: FsStatOk = FsStatOk {
    attributes: None,
    total_bytes: 1 << 30,
    free_bytes: 1 << 29,
    available_bytes: 1 << 29,
    total_files: 1000,
    free_files: 500,
    available_files: 500,
    invariant_seconds: 0,
};

const FS_INFO: FsInfoOk = FsInfoOk {
    attributes: None,
    read_max_bytes: 128 << 10,
    read_preferred_bytes: 128 << 10,
    read_multiple_bytes: 4096,
    write_max_bytes: 128 << 10,
    write_preferred_bytes: 128 << 10,
    write_multiple_bytes: 4096,
    readdir_preferred_bytes: 8192,
    file_len_bytes_max: u64::MAX,
    time_delta: NfsTime {
        seconds: 0,
        nanos: 1,
    },
    properties: v3::property::LINK | v3::property::SYMLINK,
};

const PATH_CONF: PathConfOk = PathConfOk {
    attributes: None,
    link_count_max: 1000,
    name_len_bytes_max: 255,
    no_trunc: true,
    chown_restricted: true,
    case_insensitive: false,
    case_preserving: true,
};
