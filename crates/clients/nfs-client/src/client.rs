//! One method per procedure of NFS version 3, on one or more connections.
//!
//! Owns: which connection a call takes, waiting when the server says JUKEBOX, checking replies
//! against what was asked.
//! Must not know: paths, directories larger than one reply, when data is stable.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use cairn_codec_nfs::v3::{
    self, AccessArgs, AccessOk, CommitArgs, CommitOk, CreateArgs, CreateHow, DirOp, ErrorStatus,
    Failure, FileAttr, FileHandle, FsInfoOk, FsStatOk, LinkArgs, LinkWcc, LookupOk, MakeOk,
    MkDirArgs, MkNodArgs, MkNodWhat, NfsTime, PathConfOk, PostOpAttr, PostOpHandle, Procedure,
    ReadArgs, ReadDirArgs, ReadDirPlusArgs, ReadHead, RenameArgs, RenameWcc, SetAttrArgs,
    SetAttributes, StableHow, SymLinkArgs, WccData, WriteHead, WriteOk, WriteVerifier,
    encode_write_head,
};
use cairn_codec_rpc::rpc::{Groups, MACHINE_NAME_LEN_BYTES_MAX};
use cairn_codec_rpc::{AuthSys, Decode, DecodeError, Encode, Opaque, Reader, Writer, rpc};

use crate::connection::{Connection, ConnectionSettings, Reply, ReplyBuffer, Target};
use crate::error::Error;
use crate::mount;
use crate::url::{NCONNECT_MAX, NfsUrl};

/// Transfers are never smaller, whatever FSINFO says: a server that says 0 is broken.
const TRANSFER_LEN_BYTES_MIN: u32 = 4096;
/// Buffers for READ data that are kept for the next READ: fresh memory costs a page fault per page.
const FREE_BUFFER_COUNT_MAX: usize = 32;
/// Pages of directories that are asked for.
const READDIR_LEN_BYTES_MAX: u32 = 256 << 10;
const READDIR_LEN_BYTES_MIN: u32 = 8 << 10;

/// Who the server is told we are (AUTH_SYS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// At most 16 are sent; the protocol has no room for more.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The effective user and groups of this process.
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|gid| gid.as_raw()).collect(),
        }
    }

    fn to_auth_body(&self) -> Vec<u8> {
        let count = self.groups.len().min(rpc::GROUP_COUNT_MAX);
        let groups = self.groups.get(..count).and_then(Groups::new);
        let name = rustix::system::uname().nodename().to_bytes().to_vec();
        let name = name
            .get(..MACHINE_NAME_LEN_BYTES_MAX as usize)
            .unwrap_or(&name);
        AuthSys {
            stamp: 0,
            machine_name: Opaque(name),
            uid: self.uid,
            gid: self.gid,
            groups: groups.unwrap_or_default(),
        }
        .to_body()
    }
}

/// Numbers of a client that people tune. The URL's options win.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub connection: ConnectionSettings,
    pub identity: Identity,
    /// TCP connections to the server, 1 to 16.
    pub nconnect: u16,
    /// The first pause after JUKEBOX; doubled each time, up to `jukebox_pause_max`.
    pub jukebox_pause: Duration,
    pub jukebox_pause_max: Duration,
    /// Answers of JUKEBOX to one call before its caller gets the error.
    pub jukebox_count_max: u32,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            identity: Identity::of_process(),
            nconnect: 1,
            jukebox_pause: Duration::from_millis(100),
            jukebox_pause_max: Duration::from_secs(5),
            jukebox_count_max: 20,
        }
    }
}

/// What the server said it can take, within what we can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub read_max_bytes: u32,
    pub write_max_bytes: u32,
    pub readdir_bytes: u32,
    pub file_len_bytes_max: u64,
}

impl Limits {
    fn new(info: &FsInfoOk) -> Self {
        let transfer = |max: u32| max.clamp(TRANSFER_LEN_BYTES_MIN, v3::DATA_LEN_BYTES_MAX);
        Self {
            read_max_bytes: transfer(info.read_max_bytes),
            write_max_bytes: transfer(info.write_max_bytes),
            readdir_bytes: info
                .readdir_preferred_bytes
                .clamp(READDIR_LEN_BYTES_MIN, READDIR_LEN_BYTES_MAX),
            file_len_bytes_max: info.file_len_bytes_max,
        }
    }
}

/// What READ brought.
pub struct ReadData {
    pub attributes: PostOpAttr,
    /// The data is up to the end of the file.
    pub eof: bool,
    /// The caller's buffer, its length now that of the data.
    pub data: AlignedBuf,
}

/// What WRITE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// From the front of the data; at least 1 unless there was none.
    pub count_bytes: u32,
    pub committed: StableHow,
    pub verifier: WriteVerifier,
}

/// What CREATE, MKDIR, SYMLINK or MKNOD made; servers may leave both out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub handle: PostOpHandle,
    pub attributes: PostOpAttr,
}

/// One user on one export of one server. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientCore>,
}

struct ClientCore {
    connections: Vec<Connection>,
    /// Where the search for the least busy connection starts.
    turn: AtomicUsize,
    settings: ClientSettings,
    server_address: SocketAddr,
    root: FileHandle,
    export: Vec<u8>,
    limits: Limits,
    buffers: BufPool,
    url: NfsUrl,
}

/// The head of WRITE; the data follows it on the wire uncopied.
struct WriteHeadArgs(WriteHead);

impl Encode for WriteHeadArgs {
    fn encode(&self, to: &mut Writer<'_>) {
        encode_write_head(to, &self.0);
    }
}

impl Client {
    /// Connects, mounts the export that the URL's path is in, and asks for its limits.
    pub async fn connect(url: &NfsUrl, mut settings: ClientSettings) -> Result<Self, Error> {
        settings.identity.uid = url.uid.unwrap_or(settings.identity.uid);
        settings.identity.gid = url.gid.unwrap_or(settings.identity.gid);
        let auth_body = settings.identity.to_auth_body();
        let mounted = mount::mount(url, &auth_body, &settings.connection).await?;
        let mut connections = vec![mounted.connection];
        let nconnect = url.nconnect.unwrap_or(settings.nconnect);
        for _ in 1..nconnect.clamp(1, NCONNECT_MAX) {
            let address = mounted.ports.nfs;
            let settings = settings.connection.clone();
            connections.push(Connection::open(address, auth_body.clone(), settings).await?);
        }
        let mut inner = ClientCore {
            connections,
            turn: AtomicUsize::new(0),
            settings,
            server_address: mounted.ports.nfs,
            root: mounted.root,
            export: mounted.export,
            limits: Limits {
                read_max_bytes: TRANSFER_LEN_BYTES_MIN,
                write_max_bytes: TRANSFER_LEN_BYTES_MIN,
                readdir_bytes: READDIR_LEN_BYTES_MIN,
                file_len_bytes_max: u64::MAX,
            },
            buffers: BufPool::new(TRANSFER_LEN_BYTES_MIN as usize, 0),
            url: url.clone(),
        };
        inner.limits = Limits::new(&inner.fs_info(mounted.root).await?);
        let buffer_len_bytes = inner.limits.read_max_bytes as usize;
        inner.buffers = BufPool::new(buffer_len_bytes, FREE_BUFFER_COUNT_MAX);
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The handle of the export's root.
    pub fn root(&self) -> FileHandle {
        self.inner.root
    }

    /// The path that was mounted.
    pub fn export(&self) -> &[u8] {
        &self.inner.export
    }

    /// Where NFS is answered.
    pub fn server_address(&self) -> SocketAddr {
        self.inner.server_address
    }

    /// The URL that the client was made from.
    pub fn url(&self) -> &NfsUrl {
        &self.inner.url
    }

    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// A buffer for READ data, its bytes whatever they were; `len_bytes` is at most
    /// [`Limits::read_max_bytes`]. Large ones come back to the client for reuse when they, or the
    /// `Bytes` made of them, are dropped.
    pub fn buffer(&self, len_bytes: usize) -> AlignedBuf {
        let capacity_bytes = self.inner.buffers.slot_len_bytes();
        match len_bytes <= capacity_bytes && len_bytes > capacity_bytes / 2 {
            true => self.inner.buffers.take(len_bytes),
            false => AlignedBuf::zeroed(len_bytes),
        }
    }

    /// Who the server takes us for, unless it squashes.
    pub fn identity(&self) -> &Identity {
        &self.inner.settings.identity
    }

    /// Does nothing, there and back.
    pub async fn null(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.call(Procedure::Null, &(), Bytes::new(), None).await?;
        Ok(())
    }

    pub async fn get_attr(&self, object: FileHandle) -> Result<FileAttr, Error> {
        self.inner
            .request::<FileAttr, ()>(Procedure::GetAttr, &object)
            .await
    }

    pub async fn set_attr(
        &self,
        object: FileHandle,
        attributes: SetAttributes,
        guard: Option<NfsTime>,
    ) -> Result<WccData, Error> {
        let args = SetAttrArgs {
            object,
            attributes,
            guard,
        };
        self.inner
            .request::<WccData, WccData>(Procedure::SetAttr, &args)
            .await
    }

    pub async fn lookup(&self, dir: FileHandle, name: &[u8]) -> Result<LookupOk, Error> {
        self.inner
            .request::<LookupOk, PostOpAttr>(Procedure::Lookup, &place(dir, name))
            .await
    }

    /// `access` are bits of [`v3::access`]; the answer has those that are granted.
    pub async fn access(&self, object: FileHandle, access: u32) -> Result<AccessOk, Error> {
        let args = AccessArgs { object, access };
        self.inner
            .request::<AccessOk, PostOpAttr>(Procedure::Access, &args)
            .await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, link: FileHandle) -> Result<Vec<u8>, Error> {
        self.inner
            .request_with(Procedure::ReadLink, &link, |from| {
                let reply: v3::ReadLinkReply<'_> = from.get()?;
                Ok(match reply {
                    Ok(ok) => Ok(ok.target.to_vec()),
                    Err(failure) => Err(failure.status),
                })
            })
            .await
    }

    /// Reads at most `buffer.len()` bytes, which must be within [`Limits::read_max_bytes`], into
    /// `buffer`. Fewer bytes without `eof` are allowed to the server; see `read_full`.
    ///
    /// Large reads are received in the buffer itself.
    pub async fn read_into(
        &self,
        file: FileHandle,
        offset: u64,
        buffer: AlignedBuf,
    ) -> Result<ReadData, Error> {
        let count_bytes = buffer.len() as u32;
        let args = ReadArgs {
            file,
            offset,
            count_bytes,
        };
        let mut buffer = Some(buffer);
        let mut jukebox = Jukebox::new(&self.inner.settings);
        loop {
            let buffer_now = buffer
                .take()
                .unwrap_or_else(|| AlignedBuf::zeroed(count_bytes as usize));
            let reply = self
                .inner
                .call(Procedure::Read, &args, Bytes::new(), Some(buffer_now))
                .await?;
            match read_data(reply, count_bytes)? {
                ReadOutcome::Data(data) => return Ok(data),
                ReadOutcome::Failed(status, untouched) => {
                    jukebox.wait_or_fail(Procedure::Read, status).await?;
                    buffer = untouched;
                }
            }
        }
    }

    /// Writes from the front of `data`, at most [`Limits::write_max_bytes`]; the data is sent from
    /// where it is.
    pub async fn write(
        &self,
        file: FileHandle,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> Result<Written, Error> {
        let count_bytes = data.len().min(self.inner.limits.write_max_bytes as usize);
        let data = data.slice(..count_bytes);
        let args = WriteHeadArgs(WriteHead {
            file,
            offset,
            count_bytes: count_bytes as u32,
            stable,
        });
        let mut jukebox = Jukebox::new(&self.inner.settings);
        let written: WriteOk = loop {
            let reply = self
                .inner
                .call(Procedure::Write, &args, data.clone(), None)
                .await?;
            match decode(Procedure::Write, &reply.results, owned::<WriteOk, WccData>)? {
                Ok(written) => break written,
                Err(status) => jukebox.wait_or_fail(Procedure::Write, status).await?,
            }
        };
        let inconsistent = |reason| {
            Err(Error::Inconsistent {
                procedure: Procedure::Write.name(),
                reason,
            })
        };
        if written.count_bytes as usize > count_bytes {
            return inconsistent("more was written than sent");
        }
        if written.count_bytes == 0 && count_bytes > 0 {
            return inconsistent("nothing was written, without an error");
        }
        if written.committed < stable {
            return inconsistent("the data is less stable than asked for");
        }
        Ok(Written {
            count_bytes: written.count_bytes,
            committed: written.committed,
            verifier: written.verifier,
        })
    }

    pub async fn create(
        &self,
        dir: FileHandle,
        name: &[u8],
        how: CreateHow,
    ) -> Result<Made, Error> {
        let place = place(dir, name);
        self.make(Procedure::Create, &CreateArgs { place, how })
            .await
    }

    pub async fn mkdir(
        &self,
        dir: FileHandle,
        name: &[u8],
        attributes: SetAttributes,
    ) -> Result<Made, Error> {
        let place = place(dir, name);
        self.make(Procedure::MkDir, &MkDirArgs { place, attributes })
            .await
    }

    pub async fn symlink(
        &self,
        dir: FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: SetAttributes,
    ) -> Result<Made, Error> {
        let args = SymLinkArgs {
            place: place(dir, name),
            attributes,
            target: Opaque(target),
        };
        self.make(Procedure::SymLink, &args).await
    }

    pub async fn mknod(
        &self,
        dir: FileHandle,
        name: &[u8],
        what: MkNodWhat,
    ) -> Result<Made, Error> {
        let place = place(dir, name);
        self.make(Procedure::MkNod, &MkNodArgs { place, what })
            .await
    }

    pub async fn remove(&self, dir: FileHandle, name: &[u8]) -> Result<WccData, Error> {
        self.inner
            .request::<WccData, WccData>(Procedure::Remove, &place(dir, name))
            .await
    }

    pub async fn rmdir(&self, dir: FileHandle, name: &[u8]) -> Result<WccData, Error> {
        self.inner
            .request::<WccData, WccData>(Procedure::RmDir, &place(dir, name))
            .await
    }

    pub async fn rename(
        &self,
        from: (FileHandle, &[u8]),
        to: (FileHandle, &[u8]),
    ) -> Result<RenameWcc, Error> {
        let args = RenameArgs {
            from: place(from.0, from.1),
            to: place(to.0, to.1),
        };
        self.inner
            .request::<RenameWcc, RenameWcc>(Procedure::Rename, &args)
            .await
    }

    /// A further name for `file`.
    pub async fn link(
        &self,
        file: FileHandle,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<LinkWcc, Error> {
        let args = LinkArgs {
            file,
            link: place(dir, name),
        };
        self.inner
            .request::<LinkWcc, LinkWcc>(Procedure::Link, &args)
            .await
    }

    /// One page of a directory; the results are read in place by `read`.
    pub async fn readdir<T>(
        &self,
        args: &ReadDirArgs,
        read: impl Fn(&v3::ReadDirOk<'_>) -> T,
    ) -> Result<T, Error> {
        self.inner
            .request_with(Procedure::ReadDir, args, |from| {
                let reply: v3::ReadDirReply<'_> = from.get()?;
                Ok(reply.map(|ok| read(&ok)).map_err(|failure| failure.status))
            })
            .await
    }

    /// One page of a directory with attributes and handles; the results are read in place.
    pub async fn readdirplus<T>(
        &self,
        args: &ReadDirPlusArgs,
        read: impl Fn(&v3::ReadDirPlusOk<'_>) -> T,
    ) -> Result<T, Error> {
        self.inner
            .request_with(Procedure::ReadDirPlus, args, |from| {
                let reply: v3::ReadDirPlusReply<'_> = from.get()?;
                Ok(reply.map(|ok| read(&ok)).map_err(|failure| failure.status))
            })
            .await
    }

    pub async fn fs_stat(&self, object: FileHandle) -> Result<FsStatOk, Error> {
        self.inner
            .request::<FsStatOk, PostOpAttr>(Procedure::FsStat, &object)
            .await
    }

    pub async fn fs_info(&self, object: FileHandle) -> Result<FsInfoOk, Error> {
        self.inner.fs_info(object).await
    }

    pub async fn path_conf(&self, object: FileHandle) -> Result<PathConfOk, Error> {
        self.inner
            .request::<PathConfOk, PostOpAttr>(Procedure::PathConf, &object)
            .await
    }

    /// Makes unstable data stable; `count_bytes` 0 means to the end of the file. The data is safe
    /// only if the verifier is that of the writes.
    pub async fn commit(
        &self,
        file: FileHandle,
        offset: u64,
        count_bytes: u32,
    ) -> Result<WriteVerifier, Error> {
        let args = CommitArgs {
            file,
            offset,
            count_bytes,
        };
        let committed = self
            .inner
            .request::<CommitOk, WccData>(Procedure::Commit, &args)
            .await?;
        Ok(committed.verifier)
    }

    async fn make(&self, procedure: Procedure, args: &impl Encode) -> Result<Made, Error> {
        let made = self
            .inner
            .request::<MakeOk, WccData>(procedure, args)
            .await?;
        Ok(Made {
            handle: made.object,
            attributes: made.attributes,
        })
    }
}

impl ClientCore {
    async fn fs_info(&self, object: FileHandle) -> Result<FsInfoOk, Error> {
        self.request::<FsInfoOk, PostOpAttr>(Procedure::FsInfo, &object)
            .await
    }

    /// A call whose results `T` (or `F`, when it failed) do not borrow.
    async fn request<T, F>(&self, procedure: Procedure, args: &impl Encode) -> Result<T, Error>
    where
        T: for<'a> Decode<'a>,
        F: for<'a> Decode<'a>,
    {
        self.request_with(procedure, args, owned::<T, F>).await
    }

    async fn request_with<T>(
        &self,
        procedure: Procedure,
        args: &impl Encode,
        read: impl Fn(&mut Reader<'_>) -> Result<Result<T, ErrorStatus>, DecodeError>,
    ) -> Result<T, Error> {
        let mut jukebox = Jukebox::new(&self.settings);
        loop {
            let reply = self.call(procedure, args, Bytes::new(), None).await?;
            match decode(procedure, &reply.results, &read)? {
                Ok(value) => return Ok(value),
                Err(status) => jukebox.wait_or_fail(procedure, status).await?,
            }
        }
    }

    async fn call(
        &self,
        procedure: Procedure,
        args: &impl Encode,
        payload: Bytes,
        buffer: Option<AlignedBuf>,
    ) -> Result<Reply, Error> {
        let target = Target {
            program: v3::PROGRAM,
            version: v3::VERSION,
            procedure: procedure.number(),
            name: procedure.name(),
        };
        self.least_busy().call(target, args, payload, buffer).await
    }

    fn least_busy(&self) -> &Connection {
        let count = self.connections.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % count;
        let (before, after) = self.connections.split_at(turn);
        after
            .iter()
            .chain(before)
            .min_by_key(|connection| connection.waiting_count())
            .expect("a client has at least one connection")
    }
}

/// Counts the times the server said "later" to one call, and waits in between.
struct Jukebox<'a> {
    settings: &'a ClientSettings,
    count: u32,
    pause: Duration,
}

impl<'a> Jukebox<'a> {
    fn new(settings: &'a ClientSettings) -> Self {
        Self {
            settings,
            count: 0,
            pause: settings.jukebox_pause,
        }
    }

    /// Returns when the call should be tried again.
    async fn wait_or_fail(
        &mut self,
        procedure: Procedure,
        status: ErrorStatus,
    ) -> Result<(), Error> {
        self.count += 1;
        let is_later = status == ErrorStatus::JukeBox;
        if !is_later || self.count >= self.settings.jukebox_count_max {
            return Err(Error::Status {
                procedure: procedure.name(),
                status,
            });
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.settings.jukebox_pause_max);
        Ok(())
    }
}

enum ReadOutcome {
    Data(ReadData),
    Failed(ErrorStatus, Option<AlignedBuf>),
}

/// Puts the data of a READ reply into the buffer, if it is not there yet.
fn read_data(reply: Reply, count_bytes: u32) -> Result<ReadOutcome, Error> {
    let procedure = Procedure::Read;
    let inconsistent = |reason| Error::Inconsistent {
        procedure: procedure.name(),
        reason,
    };
    let (head, data) = match reply.buffer {
        Some(ReplyBuffer::Received(data)) => {
            let head = decode(procedure, &reply.results, |from| {
                let head: Result<ReadHead, Failure<PostOpAttr>> = from.get()?;
                // The length was checked when the data was received.
                from.u32()?;
                Ok(head.map_err(|failure| failure.status))
            })?;
            match head {
                Ok(head) => (head, data),
                Err(status) => return Ok(ReadOutcome::Failed(status, Some(data))),
            }
        }
        Some(ReplyBuffer::Untouched(mut buffer)) => {
            let head = decode(procedure, &reply.results, |from| {
                let reply: v3::ReadReply<'_> = from.get()?;
                Ok(reply.map_err(|failure| failure.status).map(|ok| {
                    let fits = ok.data.len() <= buffer.len();
                    if fits {
                        buffer.set_len(ok.data.len());
                        buffer.copy_from_slice(&ok.data);
                    }
                    (ok.head, fits)
                }))
            })?;
            match head {
                Ok((head, true)) => (head, buffer),
                Ok((_, false)) => return Err(inconsistent("more data than asked for")),
                Err(status) => return Ok(ReadOutcome::Failed(status, Some(buffer))),
            }
        }
        None => return Err(inconsistent("the buffer was lost")),
    };
    if head.count_bytes as usize != data.len() || head.count_bytes > count_bytes {
        return Err(inconsistent("the count is not the length of the data"));
    }
    Ok(ReadOutcome::Data(ReadData {
        attributes: head.attributes,
        eof: head.eof,
        data,
    }))
}

fn owned<T, F>(from: &mut Reader<'_>) -> Result<Result<T, ErrorStatus>, DecodeError>
where
    T: for<'a> Decode<'a>,
    F: for<'a> Decode<'a>,
{
    let reply: Result<T, Failure<F>> = from.get()?;
    Ok(reply.map_err(|failure| failure.status))
}

fn decode<T>(
    procedure: Procedure,
    results: &[u8],
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, Error> {
    let bad = |error| Error::BadReply {
        procedure: procedure.name(),
        error,
    };
    let mut from = Reader::new(results);
    let value = read(&mut from).map_err(bad)?;
    from.finish().map_err(bad)?;
    Ok(value)
}

fn place(dir: FileHandle, name: &[u8]) -> DirOp<'_> {
    DirOp {
        dir,
        name: Opaque(name),
    }
}
