//! One client with what it may use, and one call of it on an inode.
//!
//! Owns: the way from a file handle to a volume and a right.
//! Must not know: sockets, arguments of procedures.

use std::sync::Arc;

use cairn_activity as activity;
use cairn_base::{Ino, View, VolumeId};
use cairn_codec_nfs::v3;
use cairn_exports::{Grant, Object, PeerExports, Target};
use cairn_fs::{Attr, Credentials, Fs, FsView, RequestId};
use cairn_qos::{Client, Gate, Operation};
use cairn_rpc_server::{
    Account, AccountKeeper, Answered, Delay, Peer, REQUEST_LEN_BYTES, RequestKey,
};

use crate::service::Service;
use crate::v3_values;

/// From this bit on a fileid says how an inode is shown; the numbers of inodes of one volume differ below it only.
const FILEID_SHOWN_SHIFT: u32 = 44;
/// The largest number that fits above that bit: of the directories of snapshots.
const FILEID_SHOWN_MAX: u64 = u64::MAX >> FILEID_SHOWN_SHIFT;
const WRITE_BITS: u32 = 0o222;

/// What a handle names in a volume that is here.
pub struct ResolvedHandle {
    pub grant: usize,
    pub snapshot: Option<FsView>,
    pub ino: Ino,
    pub lists_snapshots: bool,
}

/// How an inode is shown: as it is in a view, or as the directory of its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeView {
    In(View),
    Snapshots,
}

impl InodeView {
    /// The number that an inode has where it is shown so. Clients take two directories of one number, one below the other, for a
    /// loop, and keep one set of attributes and bytes for a number: so each view of an inode has its own, for as long as there
    /// is that snapshot. Generations are counted round after a million of them.
    pub fn fileid(self, ino: Ino) -> u64 {
        let shown = match self {
            Self::In(View::Live) => 0,
            Self::In(view) => 1 + (view.number() - 1) % (FILEID_SHOWN_MAX - 1),
            Self::Snapshots => FILEID_SHOWN_MAX,
        };
        // Inodes of a clone have its number among those bits, all of them the same one.
        ino.0 ^ shown << FILEID_SHOWN_SHIFT
    }
}

/// One client over one connection, with what it may use. Replaced when the exports change.
pub struct Session {
    pub service: Arc<Service>,
    pub peer: Arc<Peer>,
    pub exports: PeerExports,
    /// Whose rate its requests count for.
    pub client: Client,
    /// Whose they are for who looks what clients do.
    counted: activity::Client,
}

impl Session {
    pub fn new(service: &Arc<Service>, peer: &Arc<Peer>) -> Self {
        let (ip, port) = (peer.address.ip(), peer.address.port());
        Self {
            exports: service.exports.current().of_peer(ip, port),
            service: Arc::clone(service),
            peer: Arc::clone(peer),
            client: Client::address(ip),
            counted: activity::Client::address(activity::Protocol::Nfs, ip),
        }
    }

    /// This client under the current exports, if they have changed.
    pub fn renewed(&self) -> Option<Self> {
        match self.service.exports.is_current(&self.exports) {
            true => None,
            false => Some(Self::new(&self.service, &self.peer)),
        }
    }

    pub fn seal(&self, target: Target) -> v3::FileHandle {
        v3::FileHandle::new(self.service.settings.handle_key.seal(target).as_bytes())
            .expect("a handle of ours is shorter than the protocol's limit")
    }

    /// Checks a handle, and finds what it names if this client may use it.
    pub fn resolve(&self, handle: &v3::FileHandle) -> Result<Object, v3::ErrorStatus> {
        let target = self.service.settings.handle_key.open(handle.as_bytes());
        self.find(target.map_err(|_| v3::ErrorStatus::BadHandle)?)
    }

    /// Where an object is in a volume that is here; else the volume that is elsewhere, or none for the pseudo root.
    pub fn place(&self, object: Object) -> Result<ResolvedHandle, Option<VolumeId>> {
        match object {
            Object::Inode {
                grant,
                snapshot,
                ino,
            } => Ok(ResolvedHandle {
                grant,
                snapshot,
                ino,
                lists_snapshots: false,
            }),
            // Read as the directory is now, and nothing can be changed there.
            Object::Snapshots { grant, dir } => Ok(ResolvedHandle {
                grant,
                snapshot: Some(FsView::clone(&self.exports.grants()[grant].fs)),
                ino: dir,
                lists_snapshots: true,
            }),
            Object::PseudoRoot => Err(None),
            Object::Elsewhere { volume } => Err(Some(volume)),
        }
    }

    /// What a handle that was checked names, if this client may use it.
    pub fn find(&self, target: Target) -> Result<Object, v3::ErrorStatus> {
        self.exports.find(target).map_err(v3_values::refusal)
    }
}

/// Counts what the client does with its volumes. `what`: the place in [`PeerExports::grants`], the inode, and the bytes that
/// came with the call.
impl AccountKeeper for Session {
    fn answered(&self, what: [u64; 3], answered: &Answered<'_>) {
        let [grant, ino, written_bytes] = what;
        let grant = usize::try_from(grant).ok();
        let grant = grant.and_then(|grant| self.exports.grants().get(grant));
        let procedure = v3::Procedure::from_u32(answered.procedure);
        let activity = grant.and_then(|grant| grant.activity.as_ref());
        let (Some(activity), Some(procedure)) = (activity, procedure) else {
            return;
        };
        let is_read = procedure == v3::Procedure::Read;
        activity.note(&activity::Done {
            operation: activity::Operation {
                protocol: activity::Protocol::Nfs,
                number: procedure.number() as u8,
                name: procedure.name(),
            },
            client: &self.counted,
            file: Some(&activity::File::inode(Ino(ino))),
            work: activity::Work {
                operations: 1,
                read_bytes: if is_read {
                    answered.data_len_bytes as u64
                } else {
                    0
                },
                // A WRITE that failed has written nothing.
                written_bytes: if answered.failure.is_none() {
                    written_bytes
                } else {
                    0
                },
            },
            latency: Some(answered.elapsed),
        });
    }
}

/// One NFS call on an inode of a volume, by somebody who may use that volume.
pub struct Request {
    pub session: Arc<Session>,
    pub xid: u32,
    /// Its place in [`PeerExports::grants`].
    pub grant: usize,
    /// Where the inode is read, unless that is the live view.
    pub snapshot: Option<FsView>,
    /// What the call's first handle names.
    pub ino: Ino,
    /// It names the directory of the snapshots of that.
    pub lists_snapshots: bool,
    pub who: Arc<Credentials>,
}

impl Request {
    /// This client, with the request's key in its changes.
    pub fn for_request(self, key: RequestKey) -> Self {
        let who = Credentials {
            request: Some(RequestId(key.to_bytes())),
            ..Credentials::clone(&self.who)
        };
        Self {
            who: Arc::new(who),
            ..self
        }
    }

    pub fn grant(&self) -> &Grant {
        &self.session.exports.grants()[self.grant]
    }

    pub fn fs(&self) -> &Fs {
        &self.grant().fs
    }

    /// Where the inode is read.
    pub fn view(&self) -> &FsView {
        self.snapshot.as_ref().unwrap_or(self.fs())
    }

    /// Where the inode is changed. A snapshot is read-only, and so may be the export.
    pub fn changed_fs(&self) -> Result<&Fs, v3::ErrorStatus> {
        match self.grant().rule.read_only || self.snapshot.is_some() {
            true => Err(v3::ErrorStatus::RoFs),
            false => Ok(self.fs()),
        }
    }

    /// How what the call's first handle names is shown.
    pub fn shown(&self) -> InodeView {
        match self.lists_snapshots {
            true => InodeView::Snapshots,
            false => InodeView::In(self.snapshot.as_ref().map_or(View::Live, FsView::view)),
        }
    }

    /// What the call waits for before it begins, with `payload_len_bytes` in memory.
    pub fn delay(&self, operation: Operation, payload_len_bytes: usize) -> Option<Delay> {
        let gate = self.grant().gate.as_ref()?;
        let pass = gate.admit(self.session.client, operation)?;
        Some(Delay {
            until: Box::pin(pass),
            held_bytes: REQUEST_LEN_BYTES + payload_len_bytes,
        })
    }

    /// Where the call is timed; `None`: its volume has no latency objective.
    pub fn timing(&self) -> Option<Arc<Gate>> {
        let gate = self.grant().gate.as_ref();
        gate.filter(|gate| gate.has_goal()).cloned()
    }

    /// Who counts the call when it is answered, and what of it; `None`: nobody does.
    pub fn account(&self, written_len_bytes: usize) -> Option<Account> {
        self.grant().activity.as_ref()?;
        Some(Account {
            keeper: Arc::clone(&self.session) as Arc<dyn AccountKeeper>,
            what: [self.grant as u64, self.ino.0, written_len_bytes as u64],
        })
    }

    pub fn volume(&self) -> VolumeId {
        self.grant().volume
    }

    /// A handle of an inode that is shown as that of the call is.
    pub fn handle(&self, ino: Ino) -> v3::FileHandle {
        self.handle_as(self.shown(), ino)
    }

    pub fn handle_as(&self, shown: InodeView, ino: Ino) -> v3::FileHandle {
        self.session.seal(self.target_as(shown, ino))
    }

    /// What a handle of what the call's first handle names is made of.
    pub fn own_target(&self) -> Target {
        self.target_as(self.shown(), self.ino)
    }

    fn target_as(&self, shown: InodeView, ino: Ino) -> Target {
        let volume = self.volume();
        match shown {
            InodeView::In(view) => Target::Inode { volume, view, ino },
            InodeView::Snapshots => Target::Snapshots { volume, dir: ino },
        }
    }

    /// Attributes of an inode that is shown as that of the call is.
    pub fn attr(&self, attr: &Attr) -> v3::FileAttr {
        self.attr_as(self.shown(), attr)
    }

    pub fn attr_as(&self, shown: InodeView, attr: &Attr) -> v3::FileAttr {
        let mut told = v3_values::attr(self.volume(), attr);
        told.fileid = shown.fileid(attr.ino);
        if shown == InodeView::Snapshots {
            told.mode &= !WRITE_BITS;
            let changed = v3_values::time(self.fs().snapshots_changed());
            (told.mtime, told.ctime) = (changed, changed);
        }
        told
    }

    /// The inode that a second handle of a change names. It must be on the same volume, which changes in its live view
    /// only.
    pub fn second(&self, handle: &v3::FileHandle) -> Result<Ino, v3::ErrorStatus> {
        match self.session.resolve(handle)? {
            Object::Inode {
                snapshot: Some(_), ..
            } => Err(v3::ErrorStatus::RoFs),
            Object::Inode { grant, ino, .. } if grant == self.grant => Ok(ino),
            Object::Snapshots { .. } => Err(v3::ErrorStatus::RoFs),
            Object::Inode { .. } => Err(v3::ErrorStatus::XDev),
            Object::Elsewhere { .. } => Err(v3::ErrorStatus::XDev),
            Object::PseudoRoot => Err(v3::ErrorStatus::RoFs),
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{Branch, Generation};

    use super::*;

    /// In one volume no two things that are shown have one number; those of the volume as it is now are its inodes' own.
    #[test]
    fn each_view_of_an_inode_has_a_number_of_its_own() {
        let generations = [
            1,
            2,
            15,
            16,
            17,
            255,
            256,
            4096,
            65_535,
            FILEID_SHOWN_MAX - 1,
        ];
        let snapshots = generations.map(|number| InodeView::In(View::Snapshot(Generation(number))));
        let all = [InodeView::In(View::Live), InodeView::Snapshots];
        for branch in [Branch::MAIN, Branch(1), Branch(16), Branch::LAST] {
            let mut seen = std::collections::BTreeSet::new();
            for ino in [1, 2, 16, 1 << 20, (1 << FILEID_SHOWN_SHIFT) - 1] {
                let ino = Ino(ino).in_branch(branch);
                assert_eq!(InodeView::In(View::Live).fileid(ino), ino.0);
                for shown in all.iter().chain(&snapshots) {
                    assert!(
                        seen.insert(shown.fileid(ino)),
                        "{shown:?} of {ino}, {branch}"
                    );
                }
            }
        }
        // Generations that do not fit are counted round, past the numbers that mean something else.
        let past = InodeView::In(View::Snapshot(Generation(FILEID_SHOWN_MAX)));
        assert_eq!(past.fileid(Ino(5)), snapshots[0].fileid(Ino(5)));
    }
}
