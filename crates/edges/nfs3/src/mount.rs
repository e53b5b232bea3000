//! MOUNT versions 3 and 1: the way from a path to the first file handle.
//!
//! Owns: paths of exports, the list of mounts that `showmount -a` shows.
//! Must not know: NFS procedures, connections.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{Ino, View, VolumeId};
use cairn_codec_nfs::mount::{
    Call, ExportEntry, MountEntry, MountErrno, MountError, MountOk, PROGRAM, Procedure, VERSION_1,
    VERSION_3,
};
use cairn_codec_nfs::mount::{HANDLE_V1_LEN_BYTES, Reply as Results};
use cairn_codec_rpc::{AcceptStatus, Array, AuthFlavor, CallHeader, Encode, List, Reader};
use cairn_exports::{HANDLE_LEN_BYTES, Target, caller};
use cairn_fs::{Credentials, FileKind, Fs, FsError, FsView, SNAPSHOTS_NAME, access};
use cairn_rpc_server::{Handler, Peer, Program, Reply, Started, StartedCall, Transport};
use parking_lot::Mutex;

use crate::forward::{ForwardedCall, Routes, not_owner};
use crate::service::Service;
use crate::session::Session;

const _: () = assert!(HANDLE_LEN_BYTES == HANDLE_V1_LEN_BYTES);

/// Who has mounted what, as far as clients say. For people to look at: nothing depends on it.
pub struct MountList {
    count_max: usize,
    /// Oldest first.
    mounts: Mutex<VecDeque<(IpAddr, Box<[u8]>)>>,
}

impl MountList {
    pub fn new(count_max: usize) -> Self {
        Self {
            count_max,
            mounts: Mutex::new(VecDeque::new()),
        }
    }

    pub fn len(&self) -> usize {
        self.mounts.lock().len()
    }

    pub fn count_max(&self) -> usize {
        self.count_max
    }

    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut mounts = self.mounts.lock();
        if mounts
            .iter()
            .any(|(who, what)| *who == client && **what == *path)
        {
            return;
        }
        if mounts.len() >= self.count_max {
            mounts.pop_front();
        }
        mounts.push_back((client, path.into()));
    }

    fn remove(&self, client: IpAddr, path: &[u8]) {
        self.mounts
            .lock()
            .retain(|(who, what)| *who != client || **what != *path);
    }

    fn remove_all(&self, client: IpAddr) {
        self.mounts.lock().retain(|(who, _)| *who != client);
    }

    pub fn all(&self) -> Vec<(String, Box<[u8]>)> {
        let mounts = self.mounts.lock();
        mounts
            .iter()
            .map(|(who, what)| (who.to_string(), what.clone()))
            .collect()
    }
}

/// MOUNT as a program of the server.
pub struct MountProgram(pub Arc<Service>);

impl Program for MountProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> &[u32] {
        &[VERSION_1, VERSION_3]
    }

    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler> {
        Box::new(MountHandler {
            service: Arc::clone(&self.0),
            peer: Arc::clone(peer),
            routes: self.0.routes(peer),
        })
    }
}

struct MountHandler {
    service: Arc<Service>,
    peer: Arc<Peer>,
    /// To the owners of volumes that are not here.
    routes: Option<Arc<Routes>>,
}

impl Handler for MountHandler {
    fn begin(&mut self, call: &CallHeader<'_>, args: Reader<'_>) -> StartedCall {
        self.peer.count_other();
        StartedCall::new(self.start(call, args))
    }
}

impl MountHandler {
    fn start(&self, call: &CallHeader<'_>, mut args: Reader<'_>) -> Started {
        let (xid, peer) = (call.xid, &self.peer);
        let Some(procedure) = Procedure::from_u32(call.procedure) else {
            return Started::Ready(peer.unknown(xid, AcceptStatus::ProcedureUnavailable));
        };
        // Long answers to short questions are not given over UDP, where the sender can be forged.
        if peer.transport == Transport::Udp
            && matches!(procedure, Procedure::Dump | Procedure::Export)
        {
            return Started::Ready(peer.unknown(xid, AcceptStatus::ProcedureUnavailable));
        }
        let args_bytes = args.rest();
        let Ok(decoded) = Call::decode(procedure, &mut args) else {
            return Started::Ready(peer.garbage(xid));
        };
        let mounts = &self.service.mounts;
        let client = peer.address.ip();
        Started::Ready(match decoded {
            Call::Null => Reply::success(xid, &()),
            Call::Mount(path) => {
                let user = match caller(&call.credential) {
                    Ok(user) => user,
                    Err(status) => return Started::Ready(peer.denied(xid, status)),
                };
                let session = self.session();
                let version = call.version;
                if let Some(volume) = below_elsewhere(&session, path.0) {
                    let args = Bytes::copy_from_slice(args_bytes);
                    let later = match version {
                        VERSION_1 => {
                            success(xid, &Results::MountV1(Err(MountError::ServerFault.into())))
                        }
                        _ => success(xid, &Results::Mount(Err(MountError::ServerFault))),
                    };
                    return match &self.routes {
                        // A datagram is not passed on: its answer would hold up all others.
                        Some(routes) if peer.transport == Transport::Tcp => {
                            let passed = ForwardedCall::new(call, [args], routes.now());
                            Started::Running(routes.pass(volume, passed, false, later))
                        }
                        None if peer.is_forwarded => Started::Ready(not_owner(xid)),
                        _ => Started::Ready(later),
                    };
                }
                let path: Box<[u8]> = path.0.into();
                return Started::Running(Box::pin(async move {
                    mount(&session, xid, version, user.as_ref(), &path).await
                }));
            }
            Call::Dump => dump(&self.session(), xid),
            Call::Unmount(path) => {
                mounts.remove(client, path.0);
                Reply::success(xid, &())
            }
            Call::UnmountAll => {
                mounts.remove_all(client);
                Reply::success(xid, &())
            }
            Call::Export => exports(&self.session(), xid),
        })
    }

    /// This client under the exports that are in force now.
    fn session(&self) -> Session {
        Session::new(&self.service, &self.peer)
    }
}

/// The volume that another node owns whose directories a path leads through: only that node knows them. The root of a
/// volume is known everywhere, but for clones.
fn below_elsewhere(session: &Session, path: &[u8]) -> Option<VolumeId> {
    let names = path.split(|byte| *byte == b'/');
    let mut names = names.filter(|name| !name.is_empty() && *name != b".");
    let found = session.exports.elsewhere_by_name(names.next()?)?;
    let is_known_here = names.next().is_none() && found.root.is_some();
    (!is_known_here).then_some(found.volume)
}

/// Lists the mounts of volumes that this client may use. It does not hear of others.
fn dump(session: &Session, xid: u32) -> Reply {
    let all = session.service.mounts.all();
    let told = all.iter().filter(|(_, path)| may_see(session, path));
    let entries = told.map(|(host, path)| MountEntry {
        host: host.as_str().into(),
        path: (&**path).into(),
    });
    Reply::success(xid, &Results::Dump(List(entries.collect())))
}

/// Whether this client may use the volume of a path; for `/`, whether it may use any.
fn may_see(session: &Session, path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/');
    match names.find(|name| !name.is_empty() && *name != b".") {
        Some(volume) => {
            let exports = &session.exports;
            exports.by_name(volume).is_some() || exports.failed_by_name(volume).is_some()
        }
        None => session.exports.is_let_in(),
    }
}

/// Lists what this client may mount (RFC 1813, appendix I, procedure 5), each with the rule that lets it in. Who else may is
/// nothing that it hears.
fn exports(session: &Session, xid: u32) -> Reply {
    let (ip, port) = (session.peer.address.ip(), session.peer.address.port());
    let all = session.exports.table().exports().iter();
    let texts: Vec<(String, String)> = all
        .filter_map(|export| {
            let rule = export.rule_of(ip, port)?;
            let path = format!("/{}", export.volume.name());
            Some((path, rule.clients.to_string()))
        })
        .collect();
    let entries = texts.iter().map(|(path, clients)| ExportEntry {
        path: path.as_str().into(),
        groups: List(vec![clients.as_str().into()]),
    });
    Reply::success(xid, &Results::Export(List(entries.collect())))
}

async fn mount(
    session: &Session,
    xid: u32,
    version: u32,
    user: Option<&Credentials>,
    path: &[u8],
) -> Reply {
    let shown = path.escape_ascii();
    let client = session.peer.address;
    let found = find(session, user, path).await;
    match &found {
        Ok(_) => {
            if let Some(more) = session.service.mounts_logged.admitted() {
                tracing::info!(%client, more, "mounted {shown}");
            }
            session.service.mounts.add(client.ip(), path);
        }
        Err(error) => {
            let what = format!("mount of {shown}");
            let log = &session.service.mounts_refused;
            log.refused(client, &what, &error.name());
        }
    }
    let found = found.map(|target| session.service.settings.handle_key.seal(target));
    if version == VERSION_1 {
        let result = found.map_err(MountErrno::from).map(|handle| {
            let mut bytes = [0; HANDLE_V1_LEN_BYTES];
            bytes.copy_from_slice(handle.as_bytes());
            bytes
        });
        return success(xid, &Results::MountV1(result));
    }
    let result = found.and_then(|handle| {
        let handle = cairn_codec_nfs::v3::FileHandle::new(handle.as_bytes());
        Ok(MountOk {
            handle: handle.ok_or(MountError::ServerFault)?,
            auth_flavors: Array(vec![AuthFlavor::Sys.number(), AuthFlavor::None.number()]),
        })
    });
    success(xid, &Results::Mount(result))
}

fn success<T: Encode>(xid: u32, results: &T) -> Reply {
    Reply::success(xid, results)
}

/// What a path names: `/` the pseudo root, `/VOLUME` the root of a volume, `/VOLUME/DIR/...` a
/// directory in it that `user`, squashed, may reach, and `.snapshot/NAME` in any of these the same as that snapshot shows it.
async fn find(
    session: &Session,
    user: Option<&Credentials>,
    path: &[u8],
) -> Result<Target, MountError> {
    let mut names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".");
    let Some(volume) = names.next() else {
        // A client to which it would show nothing does not see it either.
        return match session.exports.is_let_in() {
            true => Ok(Target::PseudoRoot),
            false => Err(MountError::Access),
        };
    };
    if let Some(failed) = session.exports.failed_by_name(volume) {
        // No error of MOUNT makes clients wait: Linux fails the mount. Given the root, which is known, it goes
        // on to ask for attributes until the answer is no longer "later".
        return match (names.next(), failed.root) {
            (None, Some(ino)) => Ok(Target::Inode {
                volume: failed.volume,
                view: View::Live,
                ino,
            }),
            _ => Err(MountError::ServerFault),
        };
    }
    let Some(grant) = session.exports.by_name(volume) else {
        // An unauthorized client does not learn which names there are.
        if !session.exports.is_let_in() {
            return Err(MountError::Access);
        }
        let mut all = session.exports.table().exports().iter();
        return Err(
            match all.any(|export| export.volume.name().as_bytes() == volume) {
                true => MountError::Access,
                false => MountError::NoEnt,
            },
        );
    };
    let who = grant.rule.who(user);
    let mut at = Reached {
        view: FsView::clone(&grant.fs),
        dir: grant.fs.root(),
        lists_snapshots: false,
    };
    for name in names {
        if name == b".." {
            return Err(MountError::Inval);
        }
        // Not as root, as `mountd` does: that would show what is in directories that the caller may not
        // search, and give out handles of what is below them. The last directory need not be searchable.
        let next = at.next(&grant.fs, &who, name).await;
        at = next.map_err(|error| mount_error(&error))?;
    }
    let volume = grant.volume;
    Ok(match at.lists_snapshots {
        true => Target::Snapshots {
            volume,
            dir: at.dir,
        },
        false => Target::Inode {
            volume,
            view: at.view.view(),
            ino: at.dir,
        },
    })
}

/// The directory that a path has come to.
struct Reached {
    /// Where it is read.
    view: FsView,
    dir: Ino,
    /// It is the directory of its snapshots.
    lists_snapshots: bool,
}

impl Reached {
    /// Goes on to a directory in it, as LOOKUP does.
    async fn next(self, fs: &Fs, who: &Credentials, name: &[u8]) -> Result<Self, FsError> {
        if self.lists_snapshots {
            must_search(fs, who, self.dir).await?;
            let found = fs.snapshot(name).ok_or(FsError::NotFound)?;
            let view = fs.in_view(found.view())?;
            // A directory is in no snapshot from before it was made.
            view.attr(self.dir).await?;
            return Ok(Self {
                view,
                lists_snapshots: false,
                ..self
            });
        }
        match self.view.lookup(who, self.dir, name).await {
            Ok((attr, _)) if attr.kind != FileKind::Directory => Err(FsError::NotDirectory),
            Ok((attr, _)) => Ok(Self {
                dir: attr.ino,
                ..self
            }),
            Err(FsError::NotFound) if self.view.view().is_live() && name == SNAPSHOTS_NAME => {
                must_search(fs, who, self.dir).await?;
                Ok(Self {
                    lists_snapshots: true,
                    ..self
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// That `who` may look up names in the directory, as it is now.
pub(crate) async fn must_search(fs: &Fs, who: &Credentials, dir: Ino) -> Result<(), FsError> {
    let (allowed, _) = fs.access(who, dir, access::LOOKUP).await?;
    match allowed & access::LOOKUP {
        0 => Err(FsError::AccessDenied),
        _ => Ok(()),
    }
}

fn mount_error(error: &FsError) -> MountError {
    match error {
        FsError::NotFound | FsError::Stale => MountError::NoEnt,
        FsError::NotDirectory => MountError::NotDir,
        FsError::NotOwner => MountError::Perm,
        FsError::AccessDenied => MountError::Access,
        FsError::NameTooLong => MountError::NameTooLong,
        FsError::Invalid => MountError::Inval,
        FsError::Io(_) => MountError::Io,
        FsError::Exists
        | FsError::IsDirectory
        | FsError::NoSpace
        | FsError::QuotaExceeded
        | FsError::CrossTree
        | FsError::ReadOnly
        | FsError::NotEmpty
        | FsError::TooManyLinks
        | FsError::FileTooLarge
        | FsError::BadCookie
        | FsError::NotSync
        | FsError::NotSupported
        | FsError::NoAttribute
        | FsError::AttributeTooLarge
        | FsError::TryLater
        | FsError::Unreachable(_)
        | FsError::NotOwn(_)
        | FsError::Fenced => MountError::ServerFault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_mounts_is_bounded() {
        let list = MountList::new(3);
        let client = |last| IpAddr::from([10, 0, 0, last]);
        for last in [1, 2, 3, 4, 4] {
            list.add(client(last), b"/main");
        }
        assert_eq!(list.len(), 3);
        list.add(client(4), b"/other");
        list.remove(client(3), b"/elsewhere");
        list.remove(client(3), b"/main");
        assert_eq!(list.len(), 2);
        list.remove_all(client(4));
        assert_eq!(list.len(), 0);
    }
}
