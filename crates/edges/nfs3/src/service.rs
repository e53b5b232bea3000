//! What all connections share, and how one call becomes a reply or a future of one.
//!
//! Owns: programs and versions, credentials, the way from a file handle to a volume and a right.
//! Must not know: sockets, record marks of what comes in, what the procedures do.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::{Ino, Timestamp, VolumeId};
use cairn_codec_nfs::{mount as mount_codec, nlm as nlm_codec, v3};
use cairn_codec_rpc::rpc::decode_call;
use cairn_codec_rpc::{
    AcceptStatus, AuthStatus, CallHeader, Credential, DecodeError, Incoming, Reader, Rejection,
    portmap as portmap_codec,
};
use cairn_fs::{Attr, Credentials, Fs};
use tokio::sync::Notify;

use crate::duplicate::{Admission, DIGEST_LEN_BYTES_MAX, Duplicates, RequestKey};
use crate::exports::{Exports, Grant, PeerView};
use crate::handle::Target;
use crate::log_limit::LogLimit;
use crate::metrics::{Events, Metrics};
use crate::mount::{self, MountList};
use crate::reply::Reply;
use crate::settings::Settings;
use crate::{nfs3, nlm, portmap, pseudo};

pub type ReplyFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Lines of a kind in an interval, of kinds of which each single one is worth a line.
const LINE_COUNT_MAX: u32 = 20;

/// What all connections share.
pub struct Service {
    pub settings: Settings,
    pub exports: Arc<Exports>,
    pub metrics: Arc<Metrics>,
    pub duplicates: Duplicates,
    /// Those of WRITE apart: there are so many that they would push out all others.
    pub duplicate_writes: Duplicates,
    pub mounts: MountList,
    pub mounts_refused: LogLimit,
    /// What of mounts, errors of disks and connections that we closed goes to the log: a client causes
    /// as many as it likes.
    pub mounts_logged: LogLimit,
    pub io_errors: LogLimit,
    pub connections_broken: LogLimit,
    pub connections_stalled: LogLimit,
    /// Bytes held for all connections.
    pub held_bytes: AtomicUsize,
    /// Told when that falls below its limit.
    pub freed: Arc<Notify>,
    pub connection_count: AtomicUsize,
    /// Where clients find NFS and MOUNT.
    pub nfs_port: AtomicU16,
    /// Where they find PORTMAP, if that is another port.
    pub rpcbind_port: AtomicU16,
    pub started: Timestamp,
}

impl Service {
    pub fn new(settings: Settings, exports: Arc<Exports>, metrics: Arc<Metrics>) -> Self {
        let duplicates =
            || Duplicates::new(settings.duplicate_count_max, settings.duplicate_bytes_max);
        Self {
            duplicates: duplicates(),
            duplicate_writes: duplicates(),
            mounts: MountList::new(settings.mount_list_count_max),
            mounts_refused: LogLimit::default(),
            mounts_logged: LogLimit::new(LINE_COUNT_MAX),
            io_errors: LogLimit::new(LINE_COUNT_MAX),
            connections_broken: LogLimit::default(),
            connections_stalled: LogLimit::default(),
            settings,
            exports,
            metrics,
            held_bytes: AtomicUsize::new(0),
            freed: Arc::default(),
            connection_count: AtomicUsize::new(0),
            nfs_port: AtomicU16::new(0),
            rpcbind_port: AtomicU16::new(0),
            started: std::time::SystemTime::now().into(),
        }
    }
}

/// Whether a reply can go out at once.
pub enum Started {
    Ready(Reply),
    /// Can be dropped when there is nobody to answer any more: it changes nothing.
    Running(ReplyFuture),
    /// A change, which is done to its end once it was begun, whether anybody hears of it or not.
    Changing(ReplyFuture),
}

/// A call that was understood as far as its header.
pub struct StartedCall {
    pub started: Started,
    /// Set if it is an NFS call, for metrics.
    pub procedure: Option<v3::Procedure>,
    /// Bytes that it holds until it is answered: its payload, or the data that it asked for.
    pub held_bytes: usize,
}

/// What a request holds besides payload and data.
const REQUEST_LEN_BYTES: usize = 1024;

/// How a call came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// One client at one address, with what it may do. Replaced when the exports change.
pub struct Session {
    pub service: Arc<Service>,
    pub transport: Transport,
    pub peer: SocketAddr,
    /// Our address as the client sees it.
    pub local: SocketAddr,
    pub view: PeerView,
    /// The number of the thread it is served by, for metrics.
    pub thread: usize,
}

impl Session {
    pub fn new(
        service: Arc<Service>,
        transport: Transport,
        peer: SocketAddr,
        local: SocketAddr,
        thread: usize,
    ) -> Self {
        let canonical =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (peer, local) = (canonical(peer), canonical(local));
        let view = service.exports.current().view(peer.ip(), peer.port());
        Self {
            service,
            transport,
            peer,
            local,
            view,
            thread,
        }
    }

    /// The same client under the exports that are in force now, if they have changed.
    pub fn renewed(&self) -> Option<Self> {
        if self.service.exports.is_current(&self.view) {
            return None;
        }
        Some(Self::new(
            Arc::clone(&self.service),
            self.transport,
            self.peer,
            self.local,
            self.thread,
        ))
    }

    pub fn seal(&self, target: Target) -> v3::FileHandle {
        v3::FileHandle::new(self.service.settings.handle_key.seal(target).as_bytes())
            .expect("a handle of ours is shorter than the protocol's limit")
    }

    /// Begins to serve the call in `record`. If the record is a WRITE whose payload was received
    /// apart, `payload` is that, and `record` ends where it would begin.
    ///
    /// An error means that the bytes are not a call that could be answered.
    pub fn start(
        self: &Arc<Self>,
        users: &mut Users,
        record: &[u8],
        payload: Option<Bytes>,
    ) -> Result<StartedCall, DecodeError> {
        let mut from = Reader::new(record);
        let call = match decode_call(&mut from)? {
            Incoming::Call(call) => call,
            Incoming::Refused { xid, rejection } => {
                Events::count(&self.service.metrics.events.requests_denied);
                return Ok(StartedCall::ready(Reply::rejection(xid, rejection)));
            }
        };
        let started = match (call.program, call.version) {
            (v3::PROGRAM, v3::VERSION) => return Ok(self.start_nfs(users, &call, from, payload)),
            (mount_codec::PROGRAM, mount_codec::VERSION_1 | mount_codec::VERSION_3) => {
                Events::count(&self.service.metrics.events.requests_other);
                mount::start(self, &call, from)
            }
            (
                nlm_codec::PROGRAM,
                nlm_codec::VERSION_1 | nlm_codec::VERSION_3 | nlm_codec::VERSION_4,
            ) => {
                Events::count(&self.service.metrics.events.requests_other);
                Started::Ready(nlm::answer(self, &call, from))
            }
            (portmap_codec::PROGRAM, 2..=4) => {
                Events::count(&self.service.metrics.events.requests_other);
                Started::Ready(portmap::answer(self, &call, from))
            }
            (program, _) => {
                let versions = match program {
                    v3::PROGRAM => Some((v3::VERSION, v3::VERSION)),
                    mount_codec::PROGRAM => Some((mount_codec::VERSION_1, mount_codec::VERSION_3)),
                    nlm_codec::PROGRAM => Some((nlm_codec::VERSION_1, nlm_codec::VERSION_4)),
                    portmap_codec::PROGRAM => Some((2, 4)),
                    _ => None,
                };
                Started::Ready(self.unknown(
                    call.xid,
                    match versions {
                        Some((low, high)) => AcceptStatus::ProgramMismatch { low, high },
                        None => AcceptStatus::ProgramUnavailable,
                    },
                ))
            }
        };
        Ok(StartedCall {
            started,
            procedure: None,
            held_bytes: REQUEST_LEN_BYTES,
        })
    }

    /// An answer to what is not served, counted.
    pub fn unknown(&self, xid: u32, status: AcceptStatus) -> Reply {
        Events::count(&self.service.metrics.events.requests_unknown);
        Reply::failure(xid, status)
    }

    /// An answer to what cannot be read, counted.
    pub fn garbage(&self, xid: u32) -> Reply {
        Events::count(&self.service.metrics.events.requests_garbage);
        Reply::failure(xid, AcceptStatus::GarbageArgs)
    }

    /// An answer to a call whose credential cannot be read, counted.
    pub fn denied(&self, xid: u32, status: AuthStatus) -> Reply {
        Events::count(&self.service.metrics.events.requests_denied);
        Reply::rejection(xid, Rejection::Auth(status))
    }

    fn start_nfs(
        self: &Arc<Self>,
        users: &mut Users,
        call: &CallHeader<'_>,
        args: Reader<'_>,
        payload: Option<Bytes>,
    ) -> StartedCall {
        let xid = call.xid;
        let Some(procedure) = v3::Procedure::from_u32(call.procedure) else {
            return StartedCall::ready(self.unknown(xid, AcceptStatus::ProcedureUnavailable));
        };
        let reply = |reply| StartedCall {
            procedure: Some(procedure),
            ..StartedCall::ready(reply)
        };
        if procedure == v3::Procedure::Null {
            return reply(Reply::success(xid, &()));
        }
        if self.transport == Transport::Udp {
            return StartedCall::ready(self.unknown(xid, AcceptStatus::ProgramUnavailable));
        }
        // Every procedure but NULL begins with the handle of the object or directory it is about.
        let Ok(handle) = args.clone().get::<v3::FileHandle>() else {
            return reply(self.garbage(xid));
        };
        let request = match self.resolve(&handle) {
            Ok(Object::Inode { grant, ino }) => match users.user(self, call, grant) {
                Ok(who) => Request {
                    session: Arc::clone(self),
                    xid,
                    grant,
                    ino,
                    who,
                },
                Err(status) => return reply(self.denied(xid, status)),
            },
            Ok(Object::PseudoRoot) => {
                let Ok(call) = v3::Call::decode(procedure, &mut args.clone()) else {
                    return reply(self.garbage(xid));
                };
                return StartedCall {
                    started: pseudo::start(self, xid, &call),
                    procedure: Some(procedure),
                    held_bytes: REQUEST_LEN_BYTES,
                };
            }
            Err(status) => {
                if status == v3::ErrorStatus::Access {
                    Events::count(&self.service.metrics.events.requests_denied);
                }
                return reply(nfs3::refuse(xid, procedure, status));
            }
        };
        let mut held_bytes = REQUEST_LEN_BYTES;
        let args_bytes = args.rest();
        let Ok(future) = nfs3::start(request, procedure, args, payload, &mut held_bytes) else {
            return reply(self.garbage(xid));
        };
        let key = |data_start: &[u8]| {
            let head = args_bytes.get(..DIGEST_LEN_BYTES_MAX).unwrap_or(args_bytes);
            // Another user's call is another call, whatever else is the same.
            let parts = [head, data_start, call.credential.caller()];
            let sum = parts.into_iter().fold(0, |sum: u32, part| {
                sum.rotate_left(1) ^ cairn_base::crc32c(part)
            });
            RequestKey {
                client: self.peer.ip(),
                xid,
                procedure: call.procedure,
                digest: u64::from(sum) << 32 | args_bytes.len() as u64,
            }
        };
        let service = &self.service;
        let started = match future {
            nfs3::Begun::Repeatable(future) => Started::Running(future),
            nfs3::Begun::Once(future) => self.once(&service.duplicates, key(&[]), future),
            nfs3::Begun::OnceWrite { future, data_start } => {
                self.once(&service.duplicate_writes, key(&data_start), future)
            }
        };
        StartedCall {
            started,
            procedure: Some(procedure),
            held_bytes,
        }
    }

    /// Runs `future` unless the same request was run already or is running.
    fn once(&self, duplicates: &Duplicates, key: RequestKey, future: ReplyFuture) -> Started {
        let answered = &self.service.metrics.events.duplicates_answered;
        match duplicates.admit(key) {
            Admission::New(guard) => Started::Changing(Box::pin(async move {
                let reply = future.await;
                guard.finish(Bytes::copy_from_slice(&reply.head));
                reply
            })),
            Admission::Done(head) => {
                Events::count(answered);
                Started::Ready(Reply::again(&head))
            }
            Admission::Wait(receiver) => {
                Events::count(answered);
                Started::Running(Box::pin(async move {
                    match receiver.await {
                        Ok(head) => Reply::again(&head),
                        Err(_) => Reply::none(),
                    }
                }))
            }
            Admission::Drop => Started::Ready(Reply::none()),
        }
    }

    /// The reply to a WRITE to what this client may not use, or to what takes none: its payload need not be kept.
    pub fn refuse_write(&self, xid: u32, file: &v3::FileHandle) -> Option<Reply> {
        let status = match self.resolve(file) {
            Ok(Object::Inode { .. }) => return None,
            Ok(Object::PseudoRoot) => return Some(pseudo::refuse_write(self, xid)),
            Err(status) => status,
        };
        if status == v3::ErrorStatus::Access {
            Events::count(&self.service.metrics.events.requests_denied);
        }
        Some(nfs3::refuse(xid, v3::Procedure::Write, status))
    }

    /// What a handle names, if this client may use it.
    pub fn resolve(&self, handle: &v3::FileHandle) -> Result<Object, v3::ErrorStatus> {
        let target = self.service.settings.handle_key.open(handle.as_bytes());
        match target.map_err(|_| v3::ErrorStatus::BadHandle)? {
            // To whom it shows nothing it is not there either.
            Target::PseudoRoot => match self.view.is_let_in() {
                true => Ok(Object::PseudoRoot),
                false => Err(v3::ErrorStatus::Access),
            },
            Target::Inode { volume, ino } => match self.view.index_of(volume) {
                Some(grant) => Ok(Object::Inode { grant, ino }),
                // Of what is stale Linux drops what is not written yet, and never asks again.
                None if self.view.is_failed(volume) => Err(v3::ErrorStatus::JukeBox),
                None if self.view.is_exported(volume) => Err(v3::ErrorStatus::Access),
                None => Err(v3::ErrorStatus::Stale),
            },
        }
    }
}

impl StartedCall {
    fn ready(reply: Reply) -> Self {
        Self {
            started: Started::Ready(reply),
            procedure: None,
            held_bytes: 0,
        }
    }
}

pub enum Object {
    Inode {
        /// Its place in [`PeerView::grants`].
        grant: usize,
        ino: Ino,
    },
    PseudoRoot,
}

/// One NFS call on an inode of a volume, by somebody who may talk to that volume.
pub struct Request {
    pub session: Arc<Session>,
    pub xid: u32,
    grant: usize,
    /// What the call's first handle names.
    pub ino: Ino,
    pub who: Arc<Credentials>,
}

impl Request {
    pub fn grant(&self) -> &Grant {
        &self.session.view.grants()[self.grant]
    }

    pub fn fs(&self) -> &Fs {
        &self.grant().fs
    }

    pub fn volume(&self) -> VolumeId {
        self.grant().volume
    }

    pub fn handle(&self, ino: Ino) -> v3::FileHandle {
        self.session.seal(Target::Inode {
            volume: self.volume(),
            ino,
        })
    }

    pub fn attr(&self, attr: &Attr) -> v3::FileAttr {
        crate::convert::attr(self.volume(), attr)
    }

    /// The inode that a second handle of the call names; it must be of the same volume.
    pub fn second(&self, handle: &v3::FileHandle) -> Result<Ino, v3::ErrorStatus> {
        match self.session.resolve(handle)? {
            Object::Inode { grant, ino } if grant == self.grant => Ok(ino),
            Object::Inode { .. } => Err(v3::ErrorStatus::XDev),
            Object::PseudoRoot => Err(v3::ErrorStatus::RoFs),
        }
    }
}

/// Most users of one connection that are remembered.
const USER_COUNT_MAX: usize = 8;

/// The users that recent calls of one connection came from, so that most calls need not decode and
/// copy their groups again.
#[derive(Default)]
pub struct Users {
    known: Vec<KnownUser>,
    replace_next: usize,
}

struct KnownUser {
    flavor: u32,
    body: Box<[u8]>,
    grant: usize,
    who: Arc<Credentials>,
}

impl Users {
    /// Must be called when the session is renewed: rights and squashing may have changed.
    pub fn forget(&mut self) {
        self.known.clear();
        self.replace_next = 0;
    }

    fn user(
        &mut self,
        session: &Session,
        call: &CallHeader<'_>,
        grant: usize,
    ) -> Result<Arc<Credentials>, AuthStatus> {
        let sent = &call.credential;
        let known = self.known.iter().find(|user| {
            user.grant == grant && user.flavor == sent.flavor && *user.body == *sent.body
        });
        if let Some(user) = known {
            return Ok(Arc::clone(&user.who));
        }
        let rule = &session.view.grants()[grant].rule;
        let who = rule.who(caller(call)?.as_ref());
        let user = KnownUser {
            flavor: sent.flavor,
            body: sent.body.into(),
            grant,
            who: Arc::new(who),
        };
        let who = Arc::clone(&user.who);
        if self.known.len() < USER_COUNT_MAX {
            self.known.push(user);
        } else {
            self.known[self.replace_next] = user;
            self.replace_next = (self.replace_next + 1) % USER_COUNT_MAX;
        }
        Ok(who)
    }
}

/// Who calls, as the client says it: not squashed. `None` if it does not say (AUTH_NONE).
pub fn caller(call: &CallHeader<'_>) -> Result<Option<Credentials>, AuthStatus> {
    match call.credential.credential()? {
        Credential::None => Ok(None),
        Credential::Sys(sys) => Ok(Some(Credentials {
            uid: sys.uid,
            gid: sys.gid,
            groups: sys.groups.to_vec(),
        })),
        Credential::Other(_) => Err(AuthStatus::BadCredential),
    }
}

impl Service {
    /// The port where PORTMAP is to be found.
    pub fn portmap_port(&self) -> u16 {
        match self.rpcbind_port.load(Ordering::Relaxed) {
            0 => self.nfs_port.load(Ordering::Relaxed),
            port => port,
        }
    }
}
