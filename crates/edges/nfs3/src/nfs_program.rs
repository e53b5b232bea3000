//! Program 100003, version 3: from the arguments of a call to a procedure on an inode.
//!
//! Owns: decoding arguments, checking the file handle, finding the user, doing changes once.
//! Must not know: sockets, what the procedures do.
//! Invariant: arguments are decoded once and each handle is checked once. The exports are looked at again only for a
//! WRITE whose payload was still coming when they changed.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{VolumeId, crc32c};
use cairn_codec_nfs::v3;
use cairn_codec_rpc::rpc::CALL_HEADER_LEN_BYTES_MAX;
use cairn_codec_rpc::{AcceptStatus, CallHeader, OpaqueAuth, Reader, xdr};
use cairn_exports::{Users, user};
use cairn_fs::{Fs, TRANSFER_LEN_BYTES_MAX};
use cairn_qos::{Gate, Operation};
use cairn_rpc_server::intake::{HEAD_LEN_BYTES_MAX, RECORD_LEN_BYTES_MAX, Verdict};
use cairn_rpc_server::{
    Admission, Answered, BeginWithPayload, Duplicates, Handler, LargeRecord, Peer, Program,
    REQUEST_LEN_BYTES, Reply, ReplyFuture, RequestKey, Started, StartedCall, Transport,
};
use tokio::sync::watch;

use crate::forward::{ForwardedCall, Routes, not_owner};
use crate::procedures::{self, Begun};
use crate::pseudo;
use crate::service::Service;
use crate::session::{Request, ResolvedHandle, Session};
use crate::v3_values;

/// So many bytes of a request's arguments, and of a WRITE's data, tell it from another one with the same number.
const DIGEST_LEN_BYTES_MAX: usize = 256;

const _: () =
    assert!(CALL_HEADER_LEN_BYTES_MAX + v3::WRITE_PREFIX_LEN_BYTES_MAX <= HEAD_LEN_BYTES_MAX);
const _: () = assert!(v3::DATA_LEN_BYTES_MAX + HEAD_LEN_BYTES_MAX as u32 <= RECORD_LEN_BYTES_MAX);

const WRITE: v3::Procedure = v3::Procedure::Write;

/// NFS as a program of the server.
pub struct NfsProgram(pub Arc<Service>);

impl Program for NfsProgram {
    fn number(&self) -> u32 {
        v3::PROGRAM
    }

    fn versions(&self) -> &[u32] {
        &[v3::VERSION]
    }

    fn lets_in(&self, client: SocketAddr) -> bool {
        let table = self.0.exports.current();
        table.lets_in(client.ip(), client.port())
    }

    fn rights_version(&self) -> u64 {
        self.0.exports.version()
    }

    fn rights_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.exports.subscribe())
    }

    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler> {
        Box::new(NfsHandler {
            session: Arc::new(Session::new(&self.0, peer)),
            users: Users::default(),
            routes: self.0.routes(peer),
        })
    }

    fn answered(&self, answered: &Answered<'_>) {
        if let Some(procedure) = v3::Procedure::from_u32(answered.procedure) {
            let thread = answered.peer.thread;
            let metrics = &self.0.metrics;
            metrics.request(thread, procedure, answered.elapsed, answered.failure);
        }
    }

    fn procedure_name(&self, procedure: u32) -> &'static str {
        v3::Procedure::from_u32(procedure).map_or("unknown", v3::Procedure::name)
    }
}

/// NFS for one connection.
struct NfsHandler {
    session: Arc<Session>,
    users: Users,
    /// To the owners of volumes that are not here.
    routes: Option<Arc<Routes>>,
}

impl Handler for NfsHandler {
    fn renew(&mut self) {
        Self::renew(self);
    }

    fn begin(&mut self, call: &CallHeader<'_>, mut args: Reader<'_>) -> StartedCall {
        self.renew();
        let (xid, peer) = (call.xid, &self.session.peer);
        let Some(procedure) = v3::Procedure::from_u32(call.procedure) else {
            return StartedCall::ready(peer.unknown(xid, AcceptStatus::ProcedureUnavailable));
        };
        if procedure != v3::Procedure::Null && peer.transport == Transport::Udp {
            return StartedCall::ready(peer.unknown(xid, AcceptStatus::ProgramUnavailable));
        }
        let args_bytes = args.rest();
        let ready = |reply| StartedCall::ready(reply).measured(call.procedure);
        let Ok(decoded) = v3::Call::decode(procedure, &mut args) else {
            return ready(peer.garbage(xid));
        };
        let Some(handle) = decoded.object() else {
            return ready(Reply::success(xid, &()));
        };
        let digest = Digest::of(args_bytes);
        let request = match self.resolve(call, procedure, handle) {
            Resolved::Inode(request) if is_once(procedure) => {
                request.for_request(digest.key(&self.session.peer, call, &[]))
            }
            Resolved::Inode(request) => request,
            Resolved::Elsewhere(volume) => {
                let held_bytes = held_for(&decoded);
                let args = Bytes::copy_from_slice(args_bytes);
                return self.pass(call, procedure, volume, [args], held_bytes);
            }
            Resolved::PseudoRoot => {
                if let v3::Call::Lookup(args) = &decoded
                    && let Some(found) = self.session.exports.elsewhere_by_name(args.name.0)
                {
                    let volume = found.volume;
                    let args = Bytes::copy_from_slice(args_bytes);
                    return self.pass(call, procedure, volume, [args], 0);
                }
                let started = pseudo::start(&self.session, xid, &decoded);
                return StartedCall::new(started).measured(call.procedure);
            }
            Resolved::Refused(reply) => return ready(reply),
        };
        let (operation, payload_len_bytes) = counted(&decoded);
        let delay = request.delay(operation, payload_len_bytes);
        let timing = request.timing();
        let account = request.account(payload_len_bytes);
        let mut held_bytes = REQUEST_LEN_BYTES;
        let routes = self.routes.as_ref();
        let owned = Owned::of(&request, procedure, || {
            routes.map(|routes| Next {
                routes: Arc::clone(routes),
                call: ForwardedCall::new(call, [Bytes::copy_from_slice(args_bytes)], routes.now()),
            })
        });
        let Ok(begun) = procedures::start(request, decoded, &mut held_bytes) else {
            return ready(self.session.peer.garbage(xid));
        };
        let key = |data: &[u8]| digest.key(&self.session.peer, call, data);
        let service = &self.session.service;
        let started = match begun {
            Begun::Repeatable(future) => {
                Started::Running(while_owned(owned, OwnerBoundReply::Anything, future))
            }
            Begun::Once(future) => {
                let future = while_owned(owned, OwnerBoundReply::Refusal, future);
                once(service, &service.duplicates, key(&[]), future)
            }
            Begun::OnceWrite { future, data_start } => {
                let future = while_owned(owned, OwnerBoundReply::Anything, future);
                once(service, &service.duplicate_writes, key(&data_start), future)
            }
        };
        StartedCall {
            started: timed(started, timing),
            procedure: Some(call.procedure),
            held_bytes,
            delay,
            account,
        }
    }

    /// Receives the payload of a WRITE in place.
    fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> LargeRecord {
        if call.procedure != WRITE.number() {
            return Verdict::Ordinary;
        }
        let prefix = match v3::decode_write_prefix(args) {
            Ok(Some(prefix)) if prefix.fills(args_len_bytes) => prefix,
            Ok(None) => return Verdict::NeedsMore,
            Ok(Some(_)) | Err(_) => return Verdict::Ordinary,
        };
        self.renew();
        let request = match self.resolve(call, WRITE, &prefix.head.file) {
            Resolved::Inode(request) => request,
            Resolved::Elsewhere(volume) => {
                let Some(write) = self.pass_write(call, volume, &args[..prefix.data_offset]) else {
                    return Verdict::Refused(not_owner(call.xid));
                };
                return Verdict::Payload {
                    call: write,
                    payload_start: prefix.data_offset,
                    payload_len_bytes: prefix.data_len_bytes as usize,
                };
            }
            Resolved::PseudoRoot => {
                return Verdict::Refused(pseudo::refuse_write(&self.session, call.xid));
            }
            Resolved::Refused(reply) => return Verdict::Refused(reply),
        };
        let write = LargeWrite {
            request,
            head: prefix.head,
            flavor: call.credential.flavor,
            credential: call.credential.body.into(),
            digest: Digest::of(&args[..prefix.data_offset]),
            next: self.routes.as_ref().map(|routes| Next {
                routes: Arc::clone(routes),
                call: ForwardedCall::new(
                    call,
                    [Bytes::copy_from_slice(&args[..prefix.data_offset])],
                    routes.now(),
                ),
            }),
        };
        Verdict::Payload {
            call: Box::new(move |payload, tail| write.start(payload, tail)),
            payload_start: prefix.data_offset,
            payload_len_bytes: prefix.data_len_bytes as usize,
        }
    }
}

/// What the handle of a call names, for its user.
enum Resolved {
    Inode(Request),
    PseudoRoot,
    /// Another node owns the volume.
    Elsewhere(VolumeId),
    Refused(Reply),
}

impl NfsHandler {
    /// Passes a call on to the owner of its volume.
    fn pass(
        &self,
        call: &CallHeader<'_>,
        procedure: v3::Procedure,
        volume: VolumeId,
        args: impl IntoIterator<Item = Bytes>,
        held_bytes: usize,
    ) -> StartedCall {
        let xid = call.xid;
        let Some(routes) = &self.routes else {
            return StartedCall::ready(not_owner(xid)).measured(procedure.number());
        };
        let later = procedures::refuse(xid, procedure, v3::ErrorStatus::JukeBox);
        let call = ForwardedCall::new(call, args, routes.now());
        let passed = routes.pass(volume, call, is_change(procedure), later);
        StartedCall {
            started: Started::Running(passed),
            procedure: Some(procedure.number()),
            held_bytes: REQUEST_LEN_BYTES + held_bytes,
            // The owner's limits hold.
            delay: None,
            // It counts, too.
            account: None,
        }
    }

    /// Passes a WRITE on to the owner while its payload is being received; `None`: no node is asked.
    fn pass_write(
        &self,
        call: &CallHeader<'_>,
        volume: VolumeId,
        prefix: &[u8],
    ) -> Option<BeginWithPayload> {
        let routes = Arc::clone(self.routes.as_ref()?);
        let xid = call.xid;
        let head = ForwardedCall::new(call, [Bytes::copy_from_slice(prefix)], routes.now());
        Some(Box::new(move |payload, tail| {
            let held_bytes = REQUEST_LEN_BYTES + payload.len();
            let later = procedures::refuse(xid, WRITE, v3::ErrorStatus::JukeBox);
            let padding = Bytes::from_static(xdr::padding(payload.len()));
            let whole = head.and(
                [payload, padding, Bytes::copy_from_slice(tail)],
                routes.now(),
            );
            StartedCall {
                started: Started::Running(routes.pass(volume, whole, true, later)),
                procedure: Some(WRITE.number()),
                held_bytes,
                delay: None,
                account: None,
            }
        }))
    }

    /// Takes the exports that are in force now.
    fn renew(&mut self) {
        if let Some(session) = self.session.renewed() {
            self.session = Arc::new(session);
            self.users.forget();
        }
    }

    fn resolve(
        &mut self,
        call: &CallHeader<'_>,
        procedure: v3::Procedure,
        handle: &v3::FileHandle,
    ) -> Resolved {
        let session = &self.session;
        let found = session.resolve(handle).map(|object| session.place(object));
        match found {
            Ok(Ok(ResolvedHandle {
                grant,
                snapshot,
                ino,
                lists_snapshots,
            })) => match self.users.user(&session.exports, grant, &call.credential) {
                Ok(who) => Resolved::Inode(Request {
                    session: Arc::clone(session),
                    xid: call.xid,
                    grant,
                    snapshot,
                    ino,
                    lists_snapshots,
                    who,
                }),
                Err(status) => Resolved::Refused(session.peer.denied(call.xid, status)),
            },
            Ok(Err(None)) => Resolved::PseudoRoot,
            Ok(Err(Some(volume))) => Resolved::Elsewhere(volume),
            Err(status) => Resolved::Refused(refuse(session, call.xid, procedure, status)),
        }
    }
}

/// Whether a call changes something that a second time would find changed.
fn is_once(procedure: v3::Procedure) -> bool {
    use v3::Procedure as P;
    matches!(
        procedure,
        P::SetAttr
            | P::Create
            | P::MkDir
            | P::SymLink
            | P::MkNod
            | P::Remove
            | P::RmDir
            | P::Rename
            | P::Link
    )
}

/// Whether a call changes something, or tells what was changed to be durable.
fn is_change(procedure: v3::Procedure) -> bool {
    use v3::Procedure as P;
    !matches!(
        procedure,
        P::Null
            | P::GetAttr
            | P::Lookup
            | P::Access
            | P::ReadLink
            | P::Read
            | P::ReadDir
            | P::ReadDirPlus
            | P::FsStat
            | P::FsInfo
            | P::PathConf
    )
}

/// What a call counts for its volume's limits, and the bytes that it brings.
fn counted(call: &v3::Call<'_>) -> (Operation, usize) {
    match call {
        v3::Call::Read(args) => {
            let len_bytes = args.count_bytes.min(TRANSFER_LEN_BYTES_MAX);
            (Operation::read(len_bytes.into()), 0)
        }
        v3::Call::Write(args) => {
            let len_bytes = args.data.len();
            (Operation::write(len_bytes as u64), len_bytes)
        }
        _ => (Operation::other(), 0),
    }
}

/// Bytes that the reply to a forwarded call may hold in memory.
fn held_for(call: &v3::Call<'_>) -> usize {
    let len_bytes = match call {
        v3::Call::Read(args) => args.count_bytes.min(v3::DATA_LEN_BYTES_MAX),
        v3::Call::ReadDir(args) => args.count_bytes,
        v3::Call::ReadDirPlus(args) => args.max_count_bytes,
        v3::Call::Write(args) => args.data.len() as u32,
        _ => 0,
    };
    len_bytes.min(v3::DATA_LEN_BYTES_MAX) as usize
}

/// A call on a volume of this node, and who answers it if the volume is lost meanwhile.
struct Owned {
    service: Arc<Service>,
    fs: Fs,
    volume: VolumeId,
    xid: u32,
    procedure: v3::Procedure,
    /// `None`: the call came from another node, which asks the next owner.
    next: Option<Next>,
}

/// The way to the next owner.
struct Next {
    routes: Arc<Routes>,
    call: ForwardedCall,
}

impl Owned {
    /// `None`: the node is in no cluster, and nobody else can own the volume.
    fn of(
        request: &Request,
        procedure: v3::Procedure,
        next: impl FnOnce() -> Option<Next>,
    ) -> Option<Self> {
        let service = &request.session.service;
        service.is_in_cluster().then(|| Self {
            service: Arc::clone(service),
            fs: request.fs().clone(),
            volume: request.volume(),
            xid: request.xid,
            procedure,
            next: next(),
        })
    }

    /// Whether this node owns the volume still, and did so all the time: a lease may have ended and another begun.
    fn is_still(&self) -> bool {
        self.service.may_answer() && self.service.exports.current().serves(&self.fs)
    }

    /// What the client is told by somebody who knows.
    async fn ask_next(self) -> Reply {
        let (xid, procedure) = (self.xid, self.procedure);
        let later = procedures::refuse(xid, procedure, v3::ErrorStatus::JukeBox);
        match self.next {
            None => not_owner(xid),
            Some(Next { routes, call }) => {
                let call = call.begun();
                routes
                    .pass(self.volume, call, is_change(procedure), later)
                    .await
            }
        }
    }
}

/// Which replies hold only as long as the node owns the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerBoundReply {
    /// The result of a read, and that bytes are in memory.
    Anything,
    /// A change that was made is in the log, which only the owner can write. That it was not made was read.
    Refusal,
}

/// What only an owner knows is told only if this node owns the volume still when the reply is ready: another owner may
/// have changed it since. Else the next owner is asked, as the client would ask it.
fn while_owned(owned: Option<Owned>, told: OwnerBoundReply, future: ReplyFuture) -> ReplyFuture {
    let Some(owned) = owned else {
        return future;
    };
    Box::pin(async move {
        let reply = future.await;
        let is_fenced = reply.failure == Some(v3_values::FENCED.number());
        let is_for_owners = told == OwnerBoundReply::Anything || reply.failure.is_some();
        match is_fenced || is_for_owners && !owned.is_still() {
            true => owned.ask_next().await,
            false => reply,
        }
    })
}

/// The call as it was, timed for the goal of its volume from when it may begin.
fn timed(started: Started, gate: Option<Arc<Gate>>) -> Started {
    let Some(gate) = gate else {
        return started;
    };
    let time = |future: ReplyFuture| -> ReplyFuture {
        Box::pin(async move {
            let timed = gate.timed();
            let reply = future.await;
            if let Some(timed) = timed {
                timed.answered();
            }
            reply
        })
    };
    match started {
        Started::Ready(reply) => Started::Ready(reply),
        Started::Running(future) => Started::Running(time(future)),
        Started::Changing(future) => Started::Changing(time(future)),
    }
}

/// The reply to a call on what this client may not use.
fn refuse(session: &Session, xid: u32, procedure: v3::Procedure, status: v3::ErrorStatus) -> Reply {
    if status == v3::ErrorStatus::Access {
        session.peer.count_denied();
    }
    procedures::refuse(xid, procedure, status)
}

/// A WRITE whose payload is being received.
struct LargeWrite {
    request: Request,
    head: v3::WriteHead,
    flavor: u32,
    credential: Box<[u8]>,
    digest: Digest,
    next: Option<Next>,
}

/// Why a WRITE whose payload has come does not begin here.
enum NotHere {
    Refused(Reply),
    /// The volume went while the payload came.
    Elsewhere(VolumeId),
}

impl LargeWrite {
    fn start(mut self, payload: Bytes, tail: &[u8]) -> StartedCall {
        let ready = |reply| StartedCall::ready(reply).measured(WRITE.number());
        let next = self.next.take().map(|next| Next {
            call: next.call.and(
                [
                    payload.clone(),
                    Bytes::from_static(xdr::padding(payload.len())),
                    Bytes::copy_from_slice(tail),
                ],
                next.routes.now(),
            ),
            ..next
        });
        match self.renew() {
            Ok(()) => {}
            Err(NotHere::Refused(reply)) => return ready(reply),
            Err(NotHere::Elsewhere(volume)) => {
                let xid = self.request.xid;
                let Some(Next { routes, call }) = next else {
                    return ready(not_owner(xid));
                };
                let later = procedures::refuse(xid, WRITE, v3::ErrorStatus::JukeBox);
                return StartedCall {
                    started: Started::Running(routes.pass(volume, call, true, later)),
                    procedure: Some(WRITE.number()),
                    held_bytes: REQUEST_LEN_BYTES + payload.len(),
                    delay: None,
                    account: None,
                };
            }
        }
        let peer = Arc::clone(&self.request.session.peer);
        let service = Arc::clone(&self.request.session.service);
        let (xid, caller) = (self.request.xid, self.sent().caller());
        let key = self
            .digest
            .key_of(&peer, xid, WRITE.number(), caller, &data_start(&payload));
        let owned = Owned::of(&self.request, WRITE, || next);
        let len_bytes = payload.len();
        let delay = self
            .request
            .delay(Operation::write(len_bytes as u64), len_bytes);
        let timing = self.request.timing();
        let account = self.request.account(len_bytes);
        let mut held_bytes = REQUEST_LEN_BYTES;
        let Ok(future) = procedures::start_write(self.request, self.head, payload, &mut held_bytes)
        else {
            return ready(peer.garbage(xid));
        };
        let future = while_owned(owned, OwnerBoundReply::Anything, future);
        let started = once(&service, &service.duplicate_writes, key, future);
        StartedCall {
            started: timed(started, timing),
            procedure: Some(WRITE.number()),
            held_bytes,
            delay,
            account,
        }
    }

    /// Applies exports that changed while the payload was coming: a right that is taken away is gone at once.
    fn renew(&mut self) -> Result<(), NotHere> {
        let Some(session) = self.request.session.renewed() else {
            return Ok(());
        };
        let session = Arc::new(session);
        let xid = self.request.xid;
        let target = self.request.own_target();
        let found = session.find(target).map(|object| session.place(object));
        let place = match found {
            Ok(Ok(place)) => place,
            Ok(Err(None)) => {
                return Err(NotHere::Refused(pseudo::refuse_write(&session, xid)));
            }
            Ok(Err(Some(volume))) => return Err(NotHere::Elsewhere(volume)),
            Err(status) => return Err(NotHere::Refused(refuse(&session, xid, WRITE, status))),
        };
        let ResolvedHandle {
            grant,
            snapshot,
            ino,
            lists_snapshots,
        } = place;
        let who = user(&session.exports, grant, &self.sent())
            .map_err(|status| NotHere::Refused(session.peer.denied(xid, status)))?;
        self.request = Request {
            session,
            xid,
            grant,
            snapshot,
            ino,
            lists_snapshots,
            who: Arc::new(who),
        };
        Ok(())
    }

    fn sent(&self) -> OpaqueAuth<'_> {
        OpaqueAuth {
            flavor: self.flavor,
            body: &self.credential,
        }
    }
}

/// What of a WRITE's data tells it from another WRITE.
pub fn data_start(data: &Bytes) -> Bytes {
    data.slice(..data.len().min(DIGEST_LEN_BYTES_MAX))
}

/// What the arguments of a call without a payload in place add to its key in the cache of replies.
#[derive(Clone, Copy)]
struct Digest {
    crc: u32,
    len_bytes: usize,
}

impl Digest {
    fn of(args: &[u8]) -> Self {
        Self {
            crc: crc32c(args.get(..DIGEST_LEN_BYTES_MAX).unwrap_or(args)),
            len_bytes: args.len(),
        }
    }

    fn key(self, peer: &Peer, call: &CallHeader<'_>, data_start: &[u8]) -> RequestKey {
        let caller = call.credential.caller();
        self.key_of(peer, call.xid, call.procedure, caller, data_start)
    }

    fn key_of(
        self,
        peer: &Peer,
        xid: u32,
        procedure: u32,
        caller: &[u8],
        data_start: &[u8],
    ) -> RequestKey {
        // Another user's call is another call, whatever else is the same.
        let parts = [self.crc, crc32c(data_start), crc32c(caller)];
        let sum = parts
            .into_iter()
            .fold(0, |sum: u32, part| sum.rotate_left(1) ^ part);
        RequestKey {
            client: peer.address.ip(),
            xid,
            procedure,
            digest: u64::from(sum) << 32 | self.len_bytes as u64,
        }
    }
}

/// Whether a reply says "not now", so that a call which is sent again has to be done.
fn is_not_now(reply: &Reply) -> bool {
    let later = [v3::ErrorStatus::JukeBox, v3_values::FENCED].map(v3::ErrorStatus::number);
    reply.is_not_now || reply.failure.is_some_and(|status| later.contains(&status))
}

/// Runs `future` unless the same request has run or is running.
fn once(
    service: &Service,
    duplicates: &Duplicates,
    key: RequestKey,
    future: cairn_rpc_server::ReplyFuture,
) -> Started {
    match duplicates.admit(key) {
        Admission::New(guard) => Started::Changing(Box::pin(async move {
            let reply = future.await;
            match is_not_now(&reply) {
                true => guard.not_now(&reply.to_bytes()),
                false => guard.finish(reply.to_bytes()),
            }
            reply
        })),
        Admission::Done(head) => {
            service.metrics.count_duplicate();
            Started::Ready(Reply::again(&head))
        }
        Admission::Wait(receiver) => {
            service.metrics.count_duplicate();
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
