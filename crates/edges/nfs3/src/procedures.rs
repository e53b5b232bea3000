//! The procedures of NFS version 3 on an inode of a volume (RFC 1813, section 3.3).
//!
//! Owns: what each procedure asks of `fs`, and what its results look like, also when it fails.
//! Must not know: connections, who may use the volume (decided before), how files are kept.

use bytes::Bytes;
use cairn_base::{Timestamp, View};
use cairn_codec_nfs::v3::{
    self, CommitOk, ErrorStatus, Failure, FileHandle, LinkWcc, LookupOk, MakeOk, PostOpAttr,
    Procedure, ReadHead, RenameWcc, StableHow, WccData, WriteOk, readdir::DirWriter,
};
use cairn_codec_rpc::{DecodeError, Encode, Writer};
use cairn_exports::HANDLE_LEN_BYTES;
use cairn_fs::{
    Attr, DirEntry, FILE_LEN_BYTES_MAX, Fs, FsError, FsView, LINK_COUNT_MAX, Made,
    NAME_LEN_BYTES_MAX, NodeKind, SNAPSHOTS_NAME, SetAttr, Stability, TRANSFER_LEN_BYTES_MAX, Wcc,
    access,
};
use cairn_rpc_server::{Reply, ReplyFuture};

use crate::mount;
use crate::nfs_program::data_start;
use crate::session::{InodeView, Request};
use crate::v3_values;

/// Most bytes of a READDIR or READDIRPLUS reply, whatever the client asks for.
const READDIR_LEN_BYTES_MAX: u32 = 256 << 10;
/// What FSINFO recommends for them.
const READDIR_LEN_BYTES_PREFERRED: u32 = 64 << 10;
/// A guess of how long names are. It decides how many entries of a directory are asked for at a time.
const NAME_LEN_BYTES_USUAL: usize = 16;
/// Cookies stay valid for ever, so the verifier never changes.
const COOKIE_VERIFIER: v3::CookieVerifier = [0; 8];

/// A call that has begun.
pub enum Begun {
    /// Doing it twice does no harm.
    Repeatable(ReplyFuture),
    /// Must be done once, however often it is sent.
    Once(ReplyFuture),
    /// A WRITE that must be done once. A late one, over a connection that the client gave up, would put
    /// old bytes over those that were written and answered meanwhile.
    OnceWrite {
        future: ReplyFuture,
        data_start: Bytes,
    },
}

/// Makes the future that will reply. `held_bytes` grows by what the call holds in memory until then. An error means
/// that the arguments make no sense.
pub fn start(
    request: Request,
    call: v3::Call<'_>,
    held_bytes: &mut usize,
) -> Result<Begun, DecodeError> {
    use Begun::Repeatable;
    use v3::Call;
    Ok(match call {
        Call::Null => Repeatable(Box::pin(async move { Reply::success(request.xid, &()) })),
        Call::GetAttr(_) => Repeatable(Box::pin(request.getattr())),
        // A size that comes late would cut off what was written after it.
        Call::SetAttr(args) => once(request, Again::Changed, move |request| {
            request.setattr(args)
        }),
        Call::Lookup(args) => Repeatable(Box::pin(request.lookup(args.name.0.into()))),
        Call::Access(args) => Repeatable(Box::pin(request.access(args.access))),
        Call::ReadLink(_) => Repeatable(Box::pin(request.readlink())),
        Call::Read(args) => {
            let len = args.count_bytes.min(TRANSFER_LEN_BYTES_MAX);
            *held_bytes += len as usize;
            Repeatable(Box::pin(request.read(args.offset, len)))
        }
        Call::Write(args) => {
            let data = Bytes::copy_from_slice(args.data.0);
            Begun::OnceWrite {
                data_start: data_start(&data),
                future: start_write(request, args.head, data, held_bytes)?,
            }
        }
        Call::Create(args) => {
            let (name, how) = (args.place.name.0.into(), args.how);
            once(request, Again::Made, move |request| {
                request.create(name, how)
            })
        }
        Call::MkDir(args) => {
            let (name, attributes) = (args.place.name.0.into(), args.attributes);
            once(request, Again::Made, move |request| {
                request.mkdir(name, attributes)
            })
        }
        Call::SymLink(args) => {
            let (name, target) = (args.place.name.0.into(), args.target.0.into());
            *held_bytes += args.target.0.len();
            let attributes = args.attributes;
            once(request, Again::Made, move |request| {
                request.symlink(name, attributes, target)
            })
        }
        Call::MkNod(args) => {
            let (name, what) = (args.place.name.0.into(), args.what);
            once(request, Again::Made, move |request| {
                request.mknod(name, what)
            })
        }
        Call::Remove(args) => {
            let name = args.name.0.into();
            once(request, Again::Changed, move |request| request.remove(name))
        }
        Call::RmDir(args) => {
            let name = args.name.0.into();
            once(request, Again::Changed, move |request| request.rmdir(name))
        }
        Call::Rename(args) => {
            let (from, to) = (args.from.name.0.into(), args.to.name.0.into());
            let to_dir = args.to.dir;
            once(request, Again::Renamed(to_dir), move |request| {
                request.rename(from, to_dir, to)
            })
        }
        Call::Link(args) => {
            let name = args.link.name.0.into();
            let dir = args.link.dir;
            once(request, Again::Linked(dir), move |request| {
                request.link(dir, name)
            })
        }
        Call::ReadDir(args) => {
            *held_bytes += args.count_bytes.min(READDIR_LEN_BYTES_MAX) as usize;
            Repeatable(Box::pin(request.readdir(args)))
        }
        Call::ReadDirPlus(args) => {
            *held_bytes += args.max_count_bytes.min(READDIR_LEN_BYTES_MAX) as usize;
            Repeatable(Box::pin(request.readdirplus(args)))
        }
        Call::FsStat(_) => Repeatable(Box::pin(request.fsstat())),
        Call::FsInfo(_) => Repeatable(Box::pin(request.fsinfo())),
        Call::PathConf(_) => Repeatable(Box::pin(request.pathconf())),
        Call::Commit(args) => Repeatable(Box::pin(request.commit(args.offset, args.count_bytes))),
    })
}

/// What the reply to a change is made of that was done before.
enum Again {
    /// The attributes of the inode that the call names.
    Changed,
    /// Those of what was made, and of the directory.
    Made,
    /// Those of two directories: that of the call, and this one.
    Renamed(FileHandle),
    /// Those of the inode, and of this directory.
    Linked(FileHandle),
}

/// A change that is done once, also if an earlier owner of the volume did it, or this server before it was started again.
fn once<Work: Future<Output = Reply> + Send + 'static>(
    request: Request,
    again: Again,
    work: impl FnOnce(Request) -> Work + Send + 'static,
) -> Begun {
    Begun::Once(Box::pin(async move {
        match request.made_before() {
            Some(ino) => request.again(again, ino).await,
            None => work(request).await,
        }
    }))
}

/// Starts a WRITE, whose data may have been received in place.
pub fn start_write(
    request: Request,
    head: v3::WriteHead,
    data: Bytes,
    held_bytes: &mut usize,
) -> Result<ReplyFuture, DecodeError> {
    if head.count_bytes as usize != data.len() {
        return Err(DecodeError::BadValue {
            what: "count of the payload",
            value: head.count_bytes,
        });
    }
    *held_bytes += data.len();
    Ok(Box::pin(request.write(head, data)))
}

/// The reply of a procedure that failed before anything is known about its objects.
pub fn refuse(xid: u32, procedure: Procedure, status: ErrorStatus) -> Reply {
    fn with<F: Default + Encode>(xid: u32, status: ErrorStatus) -> Reply {
        reply(xid, &Err::<(), _>(Failure::<F>::from(status)))
    }
    match procedure {
        Procedure::Null => Reply::success(xid, &()),
        Procedure::GetAttr => with::<()>(xid, status),
        Procedure::Lookup
        | Procedure::Access
        | Procedure::ReadLink
        | Procedure::Read
        | Procedure::ReadDir
        | Procedure::ReadDirPlus
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf => with::<PostOpAttr>(xid, status),
        Procedure::SetAttr
        | Procedure::Write
        | Procedure::Create
        | Procedure::MkDir
        | Procedure::SymLink
        | Procedure::MkNod
        | Procedure::Remove
        | Procedure::RmDir
        | Procedure::Commit => with::<WccData>(xid, status),
        Procedure::Rename => with::<RenameWcc>(xid, status),
        Procedure::Link => with::<LinkWcc>(xid, status),
    }
}

/// A reply with results or the failure that took their place.
pub fn reply<T: Encode, F: Encode>(xid: u32, results: &Result<T, Failure<F>>) -> Reply {
    let reply = Reply::success(xid, results);
    match results {
        Ok(_) => reply,
        Err(failure) => reply.failed(failure.status.number()),
    }
}

/// Ends a page of a directory into which `fitted` of `count` entries fitted; with `eof` there are none after these.
/// `None` if none fitted: a client would ask for a page without entries for ever.
pub fn finish_page(
    writer: DirWriter<'_, '_>,
    fitted: usize,
    count: usize,
    eof: bool,
) -> Option<()> {
    let all = fitted == count;
    (all || fitted > 0).then(|| writer.finish(all && eof))
}

/// What FSINFO says about every volume.
pub fn fs_info(attributes: PostOpAttr) -> v3::FsInfoOk {
    v3::FsInfoOk {
        attributes,
        read_max_bytes: TRANSFER_LEN_BYTES_MAX,
        read_preferred_bytes: TRANSFER_LEN_BYTES_MAX,
        read_multiple_bytes: 4096,
        write_max_bytes: TRANSFER_LEN_BYTES_MAX,
        write_preferred_bytes: TRANSFER_LEN_BYTES_MAX,
        write_multiple_bytes: 4096,
        readdir_preferred_bytes: READDIR_LEN_BYTES_PREFERRED,
        file_len_bytes_max: FILE_LEN_BYTES_MAX,
        time_delta: v3::NfsTime {
            seconds: 0,
            nanos: 1,
        },
        properties: v3::property::LINK
            | v3::property::SYMLINK
            | v3::property::HOMOGENEOUS
            | v3::property::CAN_SET_TIME,
    }
}

/// What PATHCONF says about every file.
pub fn path_conf(attributes: PostOpAttr) -> v3::PathConfOk {
    v3::PathConfOk {
        attributes,
        link_count_max: LINK_COUNT_MAX,
        name_len_bytes_max: NAME_LEN_BYTES_MAX as u32,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    }
}

/// A READ reply up to its data.
struct ReadResults(ReadHead);

impl Encode for ReadResults {
    fn encode(&self, to: &mut Writer<'_>) {
        v3::encode_read_head(to, &self.0);
    }
}

type Name = Box<[u8]>;

/// A page of a directory, and how each of its entries is shown.
struct Page {
    dir: Attr,
    entries: Vec<(InodeView, DirEntry)>,
    eof: bool,
}

impl Request {
    /// Attributes of `ino` for the reply of a procedure that failed.
    async fn post_op(&self, ino: cairn_base::Ino) -> PostOpAttr {
        let attr = self.view().attr(ino).await.ok()?;
        Some(self.attr(&attr))
    }

    async fn wcc_after(&self, ino: cairn_base::Ino) -> WccData {
        WccData {
            before: None,
            after: self.post_op(ino).await,
        }
    }

    /// What this very request made or changed before the volume was opened here, if it did.
    fn made_before(&self) -> Option<cairn_base::Ino> {
        let request = self.who.request.as_ref()?;
        let ino = self.fs().made_before(request)?;
        self.session.service.metrics.count_duplicate();
        Some(ino)
    }

    /// The reply to a change that was done before: it succeeded, else nothing would say so. Attributes are those of now.
    async fn again(self, what: Again, ino: cairn_base::Ino) -> Reply {
        let own = self.wcc_after(self.ino).await;
        match what {
            Again::Changed => self.success(own),
            Again::Made => {
                // Somebody may have removed it since.
                let attributes = self.post_op(ino).await;
                self.success(MakeOk {
                    object: attributes.is_some().then(|| self.handle(ino)),
                    attributes,
                    dir_wcc: own,
                })
            }
            Again::Renamed(dir) => self.success(RenameWcc {
                from_dir: own,
                to_dir: self.wcc_of(&dir).await,
            }),
            Again::Linked(dir) => self.success(LinkWcc {
                attributes: own.after,
                dir_wcc: self.wcc_of(&dir).await,
            }),
        }
    }

    async fn wcc_of(&self, handle: &FileHandle) -> WccData {
        match self.second(handle) {
            Ok(ino) => self.wcc_after(ino).await,
            Err(_) => WccData::default(),
        }
    }

    fn wcc(&self, wcc: &Wcc) -> WccData {
        v3_values::wcc(self.volume(), wcc)
    }

    fn log_io(&self, procedure: Procedure, error: &FsError) {
        let (FsError::Io(reason) | FsError::Unreachable(reason)) = error else {
            return;
        };
        let Some(more) = self.session.service.io_errors.admitted() else {
            return;
        };
        let volume = self.fs().name();
        let ino = self.ino;
        let procedure = procedure.name();
        match error {
            FsError::Unreachable(_) => {
                tracing::warn!(%volume, %ino, procedure, more, "the client is told to come later: {reason}");
            }
            _ => tracing::error!(%volume, %ino, procedure, more, "I/O error: {reason}"),
        }
    }

    fn status(&self, procedure: Procedure, error: &FsError) -> ErrorStatus {
        self.log_io(procedure, error);
        match v3_values::status(error) {
            // Nobody else could answer.
            v3_values::FENCED if !self.session.service.is_in_cluster() => ErrorStatus::JukeBox,
            status => status,
        }
    }

    fn success<T: Encode>(&self, results: T) -> Reply {
        // What a failure would carry makes no difference here.
        reply(self.xid, &Ok::<_, Failure<()>>(results))
    }

    /// The reply when a procedure with `post_op_attr` of its first object failed.
    async fn fail_attr(&self, status: ErrorStatus) -> Reply {
        let failure = Failure::new(status, self.post_op(self.ino).await);
        reply(self.xid, &Err::<(), _>(failure))
    }

    /// The reply when a procedure with `wcc_data` of its first object failed.
    async fn fail_wcc(&self, status: ErrorStatus) -> Reply {
        let failure = Failure::new(status, self.wcc_after(self.ino).await);
        reply(self.xid, &Err::<(), _>(failure))
    }

    /// The reply with `wcc_data` of the first object when `fs` failed with an error.
    async fn failed_attr(&self, procedure: Procedure, error: &FsError) -> Reply {
        let status = self.status(procedure, error);
        self.fail_attr(status).await
    }

    async fn failed_wcc(&self, procedure: Procedure, error: &FsError) -> Reply {
        let status = self.status(procedure, error);
        self.fail_wcc(status).await
    }

    async fn getattr(self) -> Reply {
        let result = match self.view().attr(self.ino).await {
            Ok(attr) => Ok(self.attr(&attr)),
            Err(error) => {
                let status = self.status(Procedure::GetAttr, &error);
                Err(Failure::new(status, ()))
            }
        };
        reply(self.xid, &result)
    }

    async fn setattr(self, args: v3::SetAttrArgs) -> Reply {
        let values = (|| {
            let fs = self.changed_fs()?;
            let guard = args.guard.map(v3_values::timestamp).transpose()?;
            Ok::<_, ErrorStatus>((fs, v3_values::set_attr(&args.attributes)?, guard))
        })();
        let (fs, set, guard): (&Fs, SetAttr, Option<Timestamp>) = match values {
            Ok(values) => values,
            Err(status) => return self.fail_wcc(status).await,
        };
        match fs.set_attr(&self.who, self.ino, set, guard).await {
            Ok(wcc) => self.success(self.wcc(&wcc)),
            Err(error) => self.failed_wcc(Procedure::SetAttr, &error).await,
        }
    }

    async fn lookup(self, name: Name) -> Reply {
        if self.lists_snapshots {
            return self.lookup_snapshot(&name).await;
        }
        match self.view().lookup(&self.who, self.ino, &name).await {
            // No listing shows it.
            Err(FsError::NotFound) if self.snapshot.is_none() && *name == *SNAPSHOTS_NAME => {
                self.lookup_snapshots().await
            }
            Ok((attr, dir)) => self.success(LookupOk {
                object: self.handle(attr.ino),
                attributes: Some(self.attr(&attr)),
                dir_attributes: dir.map(|dir| self.attr(&dir)),
            }),
            Err(error) => self.failed_attr(Procedure::Lookup, &error).await,
        }
    }

    /// The directory of the snapshots of a directory.
    async fn lookup_snapshots(mut self) -> Reply {
        if let Err(error) = self.must_search().await {
            return self.failed_attr(Procedure::Lookup, &error).await;
        }
        let dir_attributes = self.post_op(self.ino).await;
        self.snapshot = Some(FsView::clone(self.fs()));
        self.lists_snapshots = true;
        match self.post_op(self.ino).await {
            Some(attributes) => self.success(LookupOk {
                object: self.handle(self.ino),
                attributes: Some(attributes),
                dir_attributes,
            }),
            None => self.fail_attr(ErrorStatus::Stale).await,
        }
    }

    /// The directory as a snapshot shows it. One that was not there then is not in it.
    async fn lookup_snapshot(mut self, name: &[u8]) -> Reply {
        if let Err(error) = self.must_search().await {
            return self.failed_attr(Procedure::Lookup, &error).await;
        }
        let dir_attributes = self.post_op(self.ino).await;
        match name {
            b"." => {}
            b".." => (self.snapshot, self.lists_snapshots) = (None, false),
            name => {
                let found = self.fs().snapshot(name);
                let view = found.and_then(|found| self.fs().in_view(found.view()).ok());
                let Some(view) = view else {
                    return self.fail_attr(ErrorStatus::NoEnt).await;
                };
                (self.snapshot, self.lists_snapshots) = (Some(view), false);
            }
        }
        match self.view().attr(self.ino).await {
            Ok(attr) => self.success(LookupOk {
                object: self.handle(attr.ino),
                attributes: Some(self.attr(&attr)),
                dir_attributes,
            }),
            Err(FsError::Stale) => {
                let failure = Failure::new(ErrorStatus::NoEnt, dir_attributes);
                reply(self.xid, &Err::<(), _>(failure))
            }
            Err(error) => self.failed_attr(Procedure::Lookup, &error).await,
        }
    }

    /// That who asks may look up names in the directory, as it is now.
    async fn must_search(&self) -> Result<(), FsError> {
        mount::must_search(self.fs(), &self.who, self.ino).await
    }

    /// A page of the directory, or of its snapshots, oldest first, in which it was.
    async fn page(&self, cookie: u64, limit: usize, with_attr: bool) -> Result<Page, FsError> {
        let view = self.view();
        if !self.lists_snapshots {
            let page = view.read_dir(&self.who, self.ino, cookie, limit, with_attr);
            let shown = self.shown();
            return page.await.map(|page| Page {
                dir: page.dir,
                entries: page
                    .entries
                    .into_iter()
                    .map(|entry| (shown, entry))
                    .collect(),
                eof: page.eof,
            });
        }
        let dir = view.attr(self.ino).await?;
        let wanted = access::READ | access::LOOKUP;
        let (allowed, _) = view.access(&self.who, self.ino, wanted).await?;
        if allowed & access::READ == 0 {
            return Err(FsError::AccessDenied);
        }
        // As in other directories, nobody learns here what a LOOKUP would refuse.
        let has_attr = with_attr && allowed & access::LOOKUP != 0;
        let entry = |shown, name: &[u8], cookie, attr| {
            let entry = DirEntry {
                ino: self.ino,
                name: name.into(),
                cookie,
                attr: has_attr.then_some(attr),
            };
            (shown, entry)
        };
        // Above it is the directory, as it is now.
        let mut entries = vec![
            entry(InodeView::Snapshots, b".", 1, dir),
            entry(InodeView::In(View::Live), b"..", 2, dir),
        ];
        entries.retain(|(_, entry)| entry.cookie > cookie);
        let mut eof = true;
        for snapshot in self.fs().snapshots() {
            let at = snapshot.generation.0.saturating_add(2);
            if at <= cookie {
                continue;
            }
            if entries.len() >= limit {
                eof = false;
                break;
            }
            let Ok(shown) = self.fs().in_view(snapshot.view()) else {
                continue;
            };
            match shown.attr(self.ino).await {
                Ok(attr) => {
                    entries.push(entry(InodeView::In(shown.view()), &snapshot.name, at, attr))
                }
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Page { dir, entries, eof })
    }

    async fn access(self, wanted: u32) -> Reply {
        let wanted = match self.changed_fs().is_err() {
            true => wanted & !(access::MODIFY | access::EXTEND | access::DELETE),
            false => wanted,
        };
        match self.view().access(&self.who, self.ino, wanted).await {
            Ok((access, attr)) => self.success(v3::AccessOk {
                attributes: Some(self.attr(&attr)),
                access: access & wanted,
            }),
            Err(error) => self.failed_attr(Procedure::Access, &error).await,
        }
    }

    async fn readlink(self) -> Reply {
        match self.view().read_link(&self.who, self.ino).await {
            Ok((target, attr)) => self.success(v3::ReadLinkOk {
                attributes: Some(self.attr(&attr)),
                target: (&*target).into(),
            }),
            Err(error) => self.failed_attr(Procedure::ReadLink, &error).await,
        }
    }

    async fn read(self, offset: u64, len: u32) -> Reply {
        match self.view().read(&self.who, self.ino, offset, len).await {
            Ok(data) => {
                let head = ReadHead {
                    attributes: Some(self.attr(&data.attr)),
                    count_bytes: data.count_bytes,
                    eof: data.eof,
                };
                let len_bytes = data.count_bytes as usize;
                // The header says how long the record is: data of another length would make the
                // rest of the stream unreadable.
                assert_eq!(data.parts.iter().map(Bytes::len).sum::<usize>(), len_bytes);
                let session = &self.session;
                session.service.metrics.read(session.peer.thread, len_bytes);
                Reply::with_data(self.xid, &ReadResults(head), data.parts, len_bytes)
            }
            Err(error) => self.failed_attr(Procedure::Read, &error).await,
        }
    }

    async fn write(self, head: v3::WriteHead, data: Bytes) -> Reply {
        let fs = match self.changed_fs() {
            Ok(fs) => fs,
            Err(status) => return self.fail_wcc(status).await,
        };
        let stability = match head.stable {
            StableHow::Unstable => Stability::Unstable,
            StableHow::DataSync | StableHow::FileSync => Stability::Stable,
        };
        let len_bytes = data.len();
        // Taken before the write: if memory is lost in between, the client sees the old verifier
        // here and the new one with COMMIT, and sends the data again.
        let verifier = fs.write_verifier();
        let written = fs.write(&self.who, self.ino, head.offset, data, stability);
        match written.await {
            Ok(written) => {
                let session = &self.session;
                session
                    .service
                    .metrics
                    .written(session.peer.thread, len_bytes);
                self.success(WriteOk {
                    wcc: self.wcc(&written.wcc),
                    count_bytes: written.count_bytes,
                    committed: match written.stable {
                        true => StableHow::FileSync,
                        false => StableHow::Unstable,
                    },
                    verifier,
                })
            }
            Err(error) => self.failed_wcc(Procedure::Write, &error).await,
        }
    }

    async fn commit(self, offset: u64, count_bytes: u32) -> Reply {
        if self.snapshot.is_some() {
            return self.fail_wcc(ErrorStatus::RoFs).await;
        }
        let committed = self.fs().commit(&self.who, self.ino, offset, count_bytes);
        match committed.await {
            Ok(wcc) => self.success(CommitOk {
                wcc: self.wcc(&wcc),
                // Taken after the commit, for the reason given in `write`.
                verifier: self.fs().write_verifier(),
            }),
            Err(error) => self.failed_wcc(Procedure::Commit, &error).await,
        }
    }

    /// The reply of a procedure that makes something in the directory.
    async fn made(&self, procedure: Procedure, made: Result<Made, FsError>) -> Reply {
        match made {
            Ok(made) => self.success(MakeOk {
                object: Some(self.handle(made.attr.ino)),
                attributes: Some(self.attr(&made.attr)),
                dir_wcc: self.wcc(&made.dir),
            }),
            Err(error) => self.failed_wcc(procedure, &error).await,
        }
    }

    /// Where something new is made, if anything may be, and its attributes.
    fn attributes_to_set(&self, set: &v3::SetAttributes) -> Result<(&Fs, SetAttr), ErrorStatus> {
        Ok((self.changed_fs()?, v3_values::set_attr(set)?))
    }

    async fn create(self, name: Name, how: v3::CreateHow) -> Reply {
        let mode = self
            .changed_fs()
            .and_then(|fs| Ok((fs, v3_values::create_mode(&how)?)));
        let (fs, mode) = match mode {
            Ok(mode) => mode,
            Err(status) => return self.fail_wcc(status).await,
        };
        let made = fs.create(&self.who, self.ino, &name, mode).await;
        self.made(Procedure::Create, made).await
    }

    async fn mkdir(self, name: Name, attributes: v3::SetAttributes) -> Reply {
        let (fs, set) = match self.attributes_to_set(&attributes) {
            Ok(set) => set,
            Err(status) => return self.fail_wcc(status).await,
        };
        let made = fs.make_dir(&self.who, self.ino, &name, set).await;
        self.made(Procedure::MkDir, made).await
    }

    async fn symlink(self, name: Name, attributes: v3::SetAttributes, target: Name) -> Reply {
        let (fs, set) = match self.attributes_to_set(&attributes) {
            Ok(set) => set,
            Err(status) => return self.fail_wcc(status).await,
        };
        let made = fs
            .make_symlink(&self.who, self.ino, &name, &target, set)
            .await;
        self.made(Procedure::SymLink, made).await
    }

    async fn mknod(self, name: Name, what: v3::MkNodWhat) -> Reply {
        let values = (|| {
            let (node, attributes) = match &what {
                v3::MkNodWhat::CharDevice { attributes, device } => (
                    NodeKind::CharDevice {
                        major: device.major,
                        minor: device.minor,
                    },
                    attributes,
                ),
                v3::MkNodWhat::BlockDevice { attributes, device } => (
                    NodeKind::BlockDevice {
                        major: device.major,
                        minor: device.minor,
                    },
                    attributes,
                ),
                v3::MkNodWhat::Socket(attributes) => (NodeKind::Socket, attributes),
                v3::MkNodWhat::Fifo(attributes) => (NodeKind::Fifo, attributes),
                v3::MkNodWhat::Regular | v3::MkNodWhat::Directory | v3::MkNodWhat::Symlink => {
                    return Err(ErrorStatus::BadType);
                }
            };
            Ok((node, self.attributes_to_set(attributes)?))
        })();
        let (node, (fs, set)) = match values {
            Ok(values) => values,
            Err(status) => return self.fail_wcc(status).await,
        };
        let made = fs.make_node(&self.who, self.ino, &name, node, set).await;
        self.made(Procedure::MkNod, made).await
    }

    async fn removed(&self, procedure: Procedure, removed: Result<Wcc, FsError>) -> Reply {
        match removed {
            Ok(wcc) => self.success(self.wcc(&wcc)),
            Err(error) => self.failed_wcc(procedure, &error).await,
        }
    }

    async fn remove(self, name: Name) -> Reply {
        let fs = match self.changed_fs() {
            Ok(fs) => fs,
            Err(status) => return self.fail_wcc(status).await,
        };
        let removed = fs.remove(&self.who, self.ino, &name).await;
        self.removed(Procedure::Remove, removed).await
    }

    async fn rmdir(self, name: Name) -> Reply {
        let fs = match self.changed_fs() {
            Ok(fs) => fs,
            Err(status) => return self.fail_wcc(status).await,
        };
        let removed = fs.remove_dir(&self.who, self.ino, &name).await;
        self.removed(Procedure::RmDir, removed).await
    }

    async fn rename(self, from_name: Name, to_dir: FileHandle, to_name: Name) -> Reply {
        let to_dir = self
            .changed_fs()
            .and_then(|fs| Ok((fs, self.second(&to_dir)?)));
        let (status, to_dir) = match to_dir {
            Ok((fs, to_dir)) => {
                let renamed = fs.rename(&self.who, self.ino, &from_name, to_dir, &to_name);
                match renamed.await {
                    Ok((from, to)) => {
                        let results = RenameWcc {
                            from_dir: self.wcc(&from),
                            to_dir: self.wcc(&to),
                        };
                        return self.success(results);
                    }
                    Err(error) => (self.status(Procedure::Rename, &error), Some(to_dir)),
                }
            }
            Err(status) => (status, None),
        };
        let body = RenameWcc {
            from_dir: self.wcc_after(self.ino).await,
            to_dir: match to_dir {
                Some(to_dir) => self.wcc_after(to_dir).await,
                None => WccData::default(),
            },
        };
        reply(self.xid, &Err::<(), _>(Failure::new(status, body)))
    }

    async fn link(self, dir: FileHandle, name: Name) -> Reply {
        let dir = self
            .changed_fs()
            .and_then(|fs| Ok((fs, self.second(&dir)?)));
        let (status, dir) = match dir {
            Ok((fs, dir)) => match fs.link(&self.who, self.ino, dir, &name).await {
                Ok((attr, wcc)) => {
                    let results = LinkWcc {
                        attributes: Some(self.attr(&attr)),
                        dir_wcc: self.wcc(&wcc),
                    };
                    return self.success(results);
                }
                Err(error) => (self.status(Procedure::Link, &error), Some(dir)),
            },
            Err(status) => (status, None),
        };
        let body = LinkWcc {
            attributes: self.post_op(self.ino).await,
            dir_wcc: match dir {
                Some(dir) => self.wcc_after(dir).await,
                None => WccData::default(),
            },
        };
        reply(self.xid, &Err::<(), _>(Failure::new(status, body)))
    }

    async fn listed(&self, listing: Option<Reply>) -> Reply {
        match listing {
            Some(reply) => reply,
            None => self.fail_attr(ErrorStatus::TooSmall).await,
        }
    }

    async fn readdir(self, args: v3::ReadDirArgs) -> Reply {
        let count_bytes = args.count_bytes.min(READDIR_LEN_BYTES_MAX);
        let limit = count_bytes as usize / v3::readdir::entry_len(NAME_LEN_BYTES_USUAL) + 1;
        let page = match self.page(args.cookie, limit, false).await {
            Ok(page) => page,
            Err(error) => return self.failed_attr(Procedure::ReadDir, &error).await,
        };
        let attributes = Some(self.attr(&page.dir));
        let listed = Reply::listing(self.xid, |to| {
            let mut writer = DirWriter::readdir(to, &attributes, COOKIE_VERIFIER, count_bytes)?;
            let fitted = page.entries.iter().take_while(|(shown, entry)| {
                writer.push(&v3::Entry {
                    fileid: shown.fileid(entry.ino),
                    name: (&*entry.name).into(),
                    cookie: entry.cookie,
                })
            });
            let fitted = fitted.count();
            finish_page(writer, fitted, page.entries.len(), page.eof)
        });
        self.listed(listed).await
    }

    async fn readdirplus(self, args: v3::ReadDirPlusArgs) -> Reply {
        let count_bytes = args.max_count_bytes.min(READDIR_LEN_BYTES_MAX);
        let entry_len = 4
            + v3::readdir::dir_info_len(NAME_LEN_BYTES_USUAL)
            + 4
            + v3::FILE_ATTR_LEN_BYTES
            + 8
            + HANDLE_LEN_BYTES;
        let dir_limit =
            args.dir_count_bytes as usize / v3::readdir::dir_info_len(NAME_LEN_BYTES_USUAL);
        let limit = (count_bytes as usize / entry_len).min(dir_limit) + 1;
        let page = match self.page(args.cookie, limit, true).await {
            Ok(page) => page,
            Err(error) => return self.failed_attr(Procedure::ReadDirPlus, &error).await,
        };
        let attributes = Some(self.attr(&page.dir));
        let listed = Reply::listing(self.xid, |to| {
            let mut writer = DirWriter::readdirplus(
                to,
                &attributes,
                COOKIE_VERIFIER,
                args.dir_count_bytes,
                count_bytes,
            )?;
            let fitted = page.entries.iter().take_while(|(shown, entry)| {
                let attr = entry.attr.as_ref();
                writer.push_plus(&v3::EntryPlus {
                    fileid: shown.fileid(entry.ino),
                    name: (&*entry.name).into(),
                    cookie: entry.cookie,
                    attributes: attr.map(|attr| self.attr_as(*shown, attr)),
                    // A user who may not search here gets neither.
                    handle: attr.map(|_| self.handle_as(*shown, entry.ino)),
                })
            });
            let fitted = fitted.count();
            finish_page(writer, fitted, page.entries.len(), page.eof)
        });
        self.listed(listed).await
    }

    async fn fsstat(self) -> Reply {
        // In a directory with a quota there is as much as that leaves.
        let space = match self.view().view() {
            View::Live => self.fs().space_at(self.ino).await,
            View::Snapshot(_) => self.fs().space().await,
        };
        let space = match space {
            Ok(space) => space,
            Err(error) => return self.failed_attr(Procedure::FsStat, &error).await,
        };
        match self.view().attr(self.ino).await {
            Ok(attr) => self.success(v3::FsStatOk {
                attributes: Some(self.attr(&attr)),
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                available_bytes: space.free_bytes,
                total_files: space.total_inodes,
                free_files: space.free_inodes,
                available_files: space.free_inodes,
                invariant_seconds: 0,
            }),
            Err(error) => self.failed_attr(Procedure::FsStat, &error).await,
        }
    }

    async fn fsinfo(self) -> Reply {
        match self.view().attr(self.ino).await {
            Ok(attr) => self.success(fs_info(Some(self.attr(&attr)))),
            Err(error) => self.failed_attr(Procedure::FsInfo, &error).await,
        }
    }

    async fn pathconf(self) -> Reply {
        match self.view().attr(self.ino).await {
            Ok(attr) => self.success(path_conf(Some(self.attr(&attr)))),
            Err(error) => self.failed_attr(Procedure::PathConf, &error).await,
        }
    }
}
