//! The table of exported volumes, and what one client sees of it.
//!
//! Owns: which volumes there are for whom, what a file handle's target means to a client.
//! Must not know: protocols, connections, what is in a volume.
//!
//! A table never changes. A new one takes its place, and each connection sees that with its
//! next request, so a right that is taken away is gone at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use cairn_activity::Activity;
use cairn_base::{Ino, NodeId, View, VolumeId};
use cairn_fs::{Fs, FsView};
use cairn_qos::Gate;
use tokio::sync::watch;

use crate::rules::{ClientRule, rule_for};
use cairn_formats::file_handle::Target;

/// A volume, served or not.
#[derive(Clone)]
pub enum Volume {
    Serving(Fs),
    /// It could not be opened. It may be later, so its clients should wait and not give up.
    Failed(FailedVolume),
    /// Another node of the cluster owns it, or nobody while it is taken over.
    Elsewhere(FailedVolume, Option<NodeId>),
}

/// The state of a volume that is not open here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedVolume {
    pub volume: VolumeId,
    pub name: String,
    /// Its root directory; `None` for a clone, whose root only its store knows.
    pub root: Option<Ino>,
}

impl Volume {
    pub fn id(&self) -> VolumeId {
        match self {
            Self::Serving(fs) => fs.volume(),
            Self::Failed(failed) | Self::Elsewhere(failed, _) => failed.volume,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Serving(fs) => fs.name(),
            Self::Failed(failed) | Self::Elsewhere(failed, _) => &failed.name,
        }
    }
}

/// Where a volume is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeLocation {
    Here,
    On(NodeId),
    /// By nobody at the moment.
    Nowhere,
    /// It is not exported any more.
    Gone,
}

/// One volume that can be mounted as `/NAME`.
#[derive(Clone)]
pub struct Export {
    pub volume: Volume,
    pub rules: Vec<ClientRule>,
    /// Where its requests ask whether they may begin; `None`: all may.
    pub gate: Option<Arc<Gate>>,
    /// Where they are counted; `None`: nowhere.
    pub activity: Option<Arc<Activity>>,
}

impl Export {
    /// The rule for a client at this address and port; `None`: it may not use the volume.
    pub fn rule_of(&self, peer: IpAddr, port: u16) -> Option<&ClientRule> {
        rule_for(&self.rules, peer, port)
    }
}

/// All exports at one moment, sorted by name.
pub struct ExportTable {
    version: u64,
    exports: Vec<Export>,
}

impl ExportTable {
    /// Grows with every table.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Where a volume is.
    pub fn place(&self, volume: VolumeId) -> VolumeLocation {
        let found = self.exports.iter();
        let mut found = found.filter(|export| export.volume.id() == volume);
        match found.next().map(|export| &export.volume) {
            Some(Volume::Serving(_)) => VolumeLocation::Here,
            Some(Volume::Elsewhere(_, Some(owner))) => VolumeLocation::On(*owner),
            Some(Volume::Failed(_) | Volume::Elsewhere(_, None)) => VolumeLocation::Nowhere,
            None => VolumeLocation::Gone,
        }
    }

    /// Whether it is this one that serves its volume: not one that was left, nor another that was opened since.
    pub fn serves(&self, fs: &Fs) -> bool {
        let is_it = |export: &Export| matches!(&export.volume, Volume::Serving(at) if at.volume() == fs.volume() && Arc::ptr_eq(at.meta(), fs.meta()));
        self.exports.iter().any(is_it)
    }

    fn is_elsewhere(&self, volume: VolumeId) -> bool {
        let mut exports = self.exports.iter();
        exports
            .any(|export| matches!(&export.volume, Volume::Elsewhere(at, _) if at.volume == volume))
    }

    /// Whether a client at this address and port may use any volume, now or once it can be opened.
    pub fn lets_in(&self, peer: IpAddr, port: u16) -> bool {
        let mut exports = self.exports.iter();
        exports.any(|export| export.rule_of(peer, port).is_some())
    }

    /// What a client at this address and port may use.
    pub fn of_peer(self: &Arc<Self>, peer: IpAddr, port: u16) -> PeerExports {
        let mut exports = PeerExports {
            table: Arc::clone(self),
            grants: Vec::new(),
            failed: Vec::new(),
        };
        for export in &self.exports {
            let Some(rule) = export.rule_of(peer, port) else {
                continue;
            };
            match &export.volume {
                Volume::Serving(fs) => exports.grants.push(Grant {
                    volume: fs.volume(),
                    fs: fs.clone(),
                    rule: rule.clone(),
                    gate: export.gate.clone(),
                    activity: export.activity.clone(),
                }),
                Volume::Failed(failed) | Volume::Elsewhere(failed, _) => {
                    exports.failed.push(failed.clone());
                }
            }
        }
        exports
    }
}

/// A volume that a client may use, and how.
#[derive(Clone)]
pub struct Grant {
    pub volume: VolumeId,
    pub fs: Fs,
    pub rule: ClientRule,
    pub gate: Option<Arc<Gate>>,
    pub activity: Option<Arc<Activity>>,
}

/// What one client may use, as of one table.
pub struct PeerExports {
    table: Arc<ExportTable>,
    grants: Vec<Grant>,
    failed: Vec<FailedVolume>,
}

impl PeerExports {
    pub fn is_of(&self, table: &ExportTable) -> bool {
        self.table.version == table.version
    }

    /// What the client may use now, sorted by name.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// What the client may use once it can be opened, sorted by name.
    pub fn failed(&self) -> &[FailedVolume] {
        &self.failed
    }

    /// Whether there is a volume that the client may use, now or once it can be opened.
    pub fn is_let_in(&self) -> bool {
        !(self.grants.is_empty() && self.failed.is_empty())
    }

    /// What a file handle's target is to this client, if it may use it.
    pub fn find(&self, target: Target) -> Result<Object, Refusal> {
        match target {
            // A client to which the pseudo root shows nothing does not see it either.
            Target::PseudoRoot => match self.is_let_in() {
                true => Ok(Object::PseudoRoot),
                false => Err(Refusal::NotAllowed),
            },
            Target::Inode { volume, view, ino } => self.find_in(volume, |grant| {
                // Nobody was ever given such a handle.
                if ino.branch() != self.grants[grant].fs.branch() {
                    return Err(Refusal::NotExported);
                }
                Ok(Object::Inode {
                    grant,
                    snapshot: self.snapshot(grant, view)?,
                    ino,
                })
            }),
            Target::Snapshots { volume, dir } => {
                self.find_in(volume, |grant| Ok(Object::Snapshots { grant, dir }))
            }
        }
    }

    /// What a client may use of a volume.
    fn find_in(
        &self,
        volume: VolumeId,
        found: impl FnOnce(usize) -> Result<Object, Refusal>,
    ) -> Result<Object, Refusal> {
        match self.index_of(volume) {
            Some(grant) => found(grant),
            None if self.is_failed(volume) => match self.table.is_elsewhere(volume) {
                true => Ok(Object::Elsewhere { volume }),
                false => Err(Refusal::NotOpen),
            },
            None if self.is_exported(volume) => Err(Refusal::NotAllowed),
            None => Err(Refusal::NotExported),
        }
    }

    /// The view of a volume that a handle names, unless that is the live one.
    fn snapshot(&self, grant: usize, view: View) -> Result<Option<FsView>, Refusal> {
        if view.is_live() {
            return Ok(None);
        }
        let fs = &self.grants[grant].fs;
        fs.in_view(view).map(Some).map_err(|_| Refusal::NoSuchView)
    }

    /// The place of a volume in [`Self::grants`].
    pub fn index_of(&self, volume: VolumeId) -> Option<usize> {
        self.grants.iter().position(|grant| grant.volume == volume)
    }

    pub fn by_name(&self, name: &[u8]) -> Option<&Grant> {
        self.grants
            .iter()
            .find(|grant| grant.fs.name().as_bytes() == name)
    }

    /// A volume of this name that another node serves, if the client may use it.
    pub fn elsewhere_by_name(&self, name: &[u8]) -> Option<&FailedVolume> {
        let failed = self.failed_by_name(name)?;
        let is_elsewhere = self.table.is_elsewhere(failed.volume);
        is_elsewhere.then_some(failed)
    }

    pub fn failed_by_name(&self, name: &[u8]) -> Option<&FailedVolume> {
        self.failed
            .iter()
            .find(|failed| failed.name.as_bytes() == name)
    }

    /// Whether the client may use this volume once it can be opened.
    pub fn is_failed(&self, volume: VolumeId) -> bool {
        self.failed.iter().any(|failed| failed.volume == volume)
    }

    /// Whether the volume is exported to anybody.
    pub fn is_exported(&self, volume: VolumeId) -> bool {
        let mut exports = self.table.exports.iter();
        exports.any(|export| export.volume.id() == volume)
    }

    pub fn table(&self) -> &ExportTable {
        &self.table
    }
}

/// What a client may use of what a file handle names.
pub enum Object {
    /// The directory of the snapshots of `dir`: nothing can be changed there.
    Snapshots { grant: usize, dir: Ino },
    Inode {
        /// Its place in [`PeerExports::grants`].
        grant: usize,
        /// Where it is read, unless that is the live view. Nothing can be changed there.
        snapshot: Option<FsView>,
        ino: Ino,
    },
    /// The read-only directory of all volumes.
    PseudoRoot,
    /// Another node knows.
    Elsewhere { volume: VolumeId },
}

/// Why a client may not use what a file handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The volume is exported, but not to this client.
    NotAllowed,
    /// The volume could not be opened. The client should wait: once it hears that a handle is stale, it drops what it
    /// has not written yet.
    NotOpen,
    NotExported,
    /// The volume has no such snapshot, or none any more.
    NoSuchView,
}

/// The table that is in force.
pub struct Exports {
    current: ArcSwap<ExportTable>,
    version_next: AtomicU64,
    changed: watch::Sender<u64>,
    is_ending: AtomicBool,
}

impl Exports {
    pub fn new(exports: Vec<Export>) -> Self {
        Self {
            current: ArcSwap::from_pointee(sorted(0, exports)),
            version_next: AtomicU64::new(1),
            changed: watch::Sender::new(0),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Puts a new table in force, for connections that are open too.
    pub fn replace(&self, exports: Vec<Export>) {
        let version = self.version_next.fetch_add(1, Ordering::Relaxed);
        self.current.store(Arc::new(sorted(version, exports)));
        self.changed.send_replace(version);
    }

    /// Hears of each table that comes into force.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// This server ends: nobody waits here any more for a volume that has no owner. Subscribers hear of it.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.changed.send_modify(|_| ());
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The version of the table that is in force.
    pub fn version(&self) -> u64 {
        self.current.load().version
    }

    pub fn current(&self) -> Arc<ExportTable> {
        self.current.load_full()
    }

    /// Whether `exports` are still those in force.
    pub fn is_current(&self, exports: &PeerExports) -> bool {
        exports.is_of(&self.current.load())
    }
}

fn sorted(version: u64, mut exports: Vec<Export>) -> ExportTable {
    exports.sort_by(|a, b| a.volume.name().cmp(b.volume.name()));
    ExportTable { version, exports }
}
