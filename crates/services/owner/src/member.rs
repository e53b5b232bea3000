//! This node as a member of a cluster.
//!
//! Owns: the map as it is followed, the pool's disks and state that follow from it, the node's lease while there is one.
//! Must not know: sockets, certificates, folders.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_base::{Backoff, DiskId, Epoch, LogPosition, NodeId, Timestamp, VolumeId};
use cairn_cluster::map::{HostRecord, LeftRecord, MapView, Process, Sign, WorkRecord};
use cairn_cluster::{
    ClusterMap, Coordinator, CoordinatorError, ELECTION_MAX, LeaseSettings, LeaseView, MapError,
    OwnedLease, Revision,
};
use cairn_formats::pool_file::{PoolState, PoolVolume};
use cairn_meta::{
    Agreement, AgreementError, Copies, MetaSettings, MetaStore, Recovered, Seat, VolumeList,
    VolumeLog,
};
use cairn_pool::{Pool, PoolLogDisks, SeatFuture, Seats};
use cairn_remote::{Identity, PeerSettings};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::agreement::from_map;
use crate::peers::{Dials, PeerStatus, PeerTable};
use crate::state::{
    StoreState, classes_record, maintenance_record, pool_state, secrets_key_record, store_record,
};
use crate::takeover::{Node, Protection, TakeoverError};
use crate::usage::ReportedUsage;

/// How often it is looked which draining disks have nothing of a volume any more.
const LEFT_LOOK: Duration = Duration::from_secs(1);
/// A map that cannot be read is read again after so long, at first and at most.
const MAP_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// How often it is looked which nodes can be reached.
const PEERS_LOOK: Duration = Duration::from_millis(100);

/// Volumes move by themselves only when nodes and volumes have been the same for so long,
const SETTLED: Duration = Duration::from_secs(180);
/// and one at a time, with so long a pause after any change of owner.
const MOVES_PAUSE: Duration = Duration::from_secs(30);
/// Volumes that are taken over at a time: what each reads of its log is in memory meanwhile.
const TAKEOVERS_MAX: usize = 4;

/// Volumes of which others are told why this node could not take them over.
const FAILED_TOLD_MAX: usize = 32;
/// Characters of such a reason.
const FAILED_CHARS_MAX: usize = 300;

/// Nodes that are meant to be away.
fn in_maintenance(view: &MapView, today: Timestamp) -> BTreeSet<NodeId> {
    let nodes = view.nodes.iter();
    let away = nodes.filter(|(_, record)| record.value.maintenance_left(today).is_some());
    away.map(|(id, _)| *id).collect()
}

fn cut(text: String) -> String {
    match text.char_indices().nth(FAILED_CHARS_MAX) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// An address that could not be put on an interface is left to other nodes for so long, at first and at most. Each further try costs
/// its clients a pause.
const UNFIT_REST: Backoff = Backoff::new(Duration::from_secs(600), Duration::from_secs(86_400));
/// Addresses of which others are told why they are not here.
const UNFIT_TOLD_MAX: usize = 64;

/// An address that this node could not put on an interface.
struct Unfit {
    why: String,
    until: Duration,
    rest: Backoff,
}

/// A volume that is to be left waits so long for what comes before.
const FAREWELL_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct MemberSettings {
    pub lease: LeaseSettings,
    pub peers: PeerSettings,
    /// How long a disk is waited for in a takeover that no other can stand in for.
    pub patience: Duration,
    /// Where this process runs, if others are to be told.
    pub host: Option<HostRecord>,
    /// Open volumes that this node's memory limit holds; `None`: as many as there are.
    pub volumes_max: Option<u32>,
    /// Bytes that this node may have acknowledged and not written to disks yet, at most; only told.
    pub unflushed_bytes_max: u64,
    /// Whether it does without encryption towards nodes that say the same; only told.
    pub allows_clear: bool,
    /// Volumes that are taken over at a time; the busiest come first.
    pub takeovers_max: usize,
    /// Volumes move by themselves, for the load's sake, when nodes and volumes have been the same for so long.
    pub settled: Duration,
    /// And when no volume has changed its owner for so long.
    pub moves_pause: Duration,
}

const LEASE: LeaseSettings = LeaseSettings::new(Duration::from_secs(3));
// A change of etcd's leader ends no lease: there is time to find the new one.
const _: () = assert!(LEASE.slack().as_millis() >= ELECTION_MAX.as_millis() + 500);

impl Default for MemberSettings {
    fn default() -> Self {
        Self {
            lease: LEASE,
            peers: PeerSettings::default(),
            patience: Duration::from_secs(3),
            host: None,
            volumes_max: None,
            unflushed_bytes_max: 0,
            allows_clear: false,
            takeovers_max: TAKEOVERS_MAX,
            settled: SETTLED,
            moves_pause: MOVES_PAUSE,
        }
    }
}

/// Why a node may go on no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Somebody removed it from the cluster.
    Removed,
    /// Another process has taken its place under the same identity.
    Twin { own: HostRecord, other: HostRecord },
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Removed => f.write_str("this node was removed from the cluster"),
            Self::Twin { own, other } => write!(
                f,
                "two servers run as the same node: this one ({own}) and {other}. One of the two cluster folders is a copy: \
                 keep one, and let the other machine join as a node of its own (`cairn cluster join`)"
            ),
        }
    }
}

/// What comes before a volume that this node owns is left.
pub trait Farewell: Send + Sync + 'static {
    /// When this ends, clients are sent here no longer for the volume.
    fn leaving(self: Arc<Self>, volume: VolumeId) -> BoxFuture<()>;
}

/// Measures what clients do with volumes.
pub trait Meter: Send + Sync + 'static {
    /// A second, of late; of a clone, of it alone.
    fn work(&self, volume: VolumeId) -> WorkRecord;
}

/// A lease, and the process that has it.
#[derive(Clone)]
pub(crate) struct HeldLease {
    pub process: Process,
    pub lease: Arc<OwnedLease>,
}

/// Says of the volumes of this node which disks they have left.
struct LeftDisks {
    member: Arc<ClusterMember>,
    pool: Arc<Pool>,
    told: ReportedUsage,
}

impl Step for LeftDisks {
    async fn step(&mut self) -> StepResult {
        if self.member.is_stopping() {
            return Ok(Next::End);
        }
        let told = &mut self.told;
        self.member.tell_what_was_left(&self.pool, told).await;
        Ok(Next::Period)
    }
}

pub struct ClusterMember {
    pub(crate) env: Env,
    pub(crate) map: ClusterMap,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) own: Identity,
    pub(crate) settings: MemberSettings,
    pub peers: Arc<PeerTable>,
    views: watch::Sender<Arc<MapView>>,
    pool: OnceLock<Weak<Pool>>,
    held: Mutex<Option<HeldLease>>,
    /// The epochs of volumes that were taken, to give them up.
    epochs: Mutex<BTreeMap<VolumeId, (Process, Epoch)>>,
    /// Volumes that somebody wants another node to have.
    asked: Mutex<BTreeSet<VolumeId>>,
    asked_notify: Notify,
    stopping: AtomicBool,
    stop_notify: Notify,
    ended: watch::Sender<bool>,
    farewell: OnceLock<Arc<dyn Farewell>>,
    pub(crate) meter: OnceLock<Arc<dyn Meter>>,
    /// Why this node may go on no more.
    over: watch::Sender<Option<Ended>>,
    /// Why volumes could not be taken over last.
    failed: Mutex<BTreeMap<VolumeId, String>>,
    /// The file system with the cluster folder is nearly full.
    folder_is_low: AtomicBool,
    /// Others were seen to know this process: a process that takes its place later runs beside it.
    was_known: AtomicBool,
    /// The fewest copies with which the logs of volumes go on that were taken.
    log_copies: Mutex<BTreeMap<VolumeId, usize>>,
    /// It stops, and addresses of pools leave it.
    leaves_addresses: AtomicBool,
    unfit_addresses: Mutex<BTreeMap<IpAddr, Unfit>>,
    /// Addresses of pools that have to go from this machine and do not, each with why.
    staying_addresses: Mutex<BTreeMap<IpAddr, String>>,
    /// The last lease that this node had.
    last_lease: Mutex<Option<LeaseView>>,
    /// The store knows that this node is gone.
    is_gone: AtomicBool,
    /// Volumes that are about to come to this node, each with how far the state goes that it has of it.
    prepared: Mutex<BTreeMap<VolumeId, LogPosition>>,
    /// Held while a volume is taken over, or prepared for that: the one changes what the other opens.
    openings: Mutex<BTreeMap<VolumeId, Arc<tokio::sync::Mutex<()>>>>,
    /// The revision of the newest change of what is set aside that this node heeds.
    reserved_seen: AtomicU64,
}

/// Agrees to nothing: who only prepares for a volume does not own it.
struct NoAgreement;

impl Agreement for NoAgreement {
    fn change(&self, _: u64, _: VolumeList) -> BoxFuture<Result<u64, AgreementError>> {
        Box::pin(async { Err(AgreementError::Refused) })
    }
}

impl ClusterMember {
    pub fn new(
        env: Env,
        map: ClusterMap,
        coordinator: Arc<dyn Coordinator>,
        own: Identity,
        settings: MemberSettings,
        dials: Arc<dyn Dials>,
    ) -> Arc<Self> {
        let peers = PeerTable::new(env.clone(), own, settings.peers.clone(), dials);
        Arc::new(Self {
            env,
            map,
            coordinator,
            own,
            settings,
            peers,
            views: watch::Sender::default(),
            pool: OnceLock::new(),
            held: Mutex::default(),
            epochs: Mutex::default(),
            asked: Mutex::default(),
            asked_notify: Notify::new(),
            stopping: AtomicBool::new(false),
            stop_notify: Notify::new(),
            ended: watch::Sender::new(false),
            farewell: OnceLock::new(),
            meter: OnceLock::new(),
            over: watch::Sender::new(None),
            failed: Mutex::default(),
            folder_is_low: AtomicBool::new(false),
            was_known: AtomicBool::new(false),
            log_copies: Mutex::default(),
            leaves_addresses: AtomicBool::new(false),
            unfit_addresses: Mutex::default(),
            staying_addresses: Mutex::default(),
            last_lease: Mutex::default(),
            is_gone: AtomicBool::new(false),
            prepared: Mutex::default(),
            openings: Mutex::default(),
            reserved_seen: AtomicU64::new(0),
        })
    }

    pub fn node(&self) -> NodeId {
        self.own.node
    }

    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// The map as it is known now.
    pub fn view(&self) -> Arc<MapView> {
        self.views.borrow().clone()
    }

    pub fn views(&self) -> watch::Receiver<Arc<MapView>> {
        self.views.subscribe()
    }

    pub fn peer_status(&self) -> Vec<PeerStatus> {
        self.peers.status()
    }

    /// Whether this node may answer for the volumes that it owns: until when, its lease says.
    pub fn lease_is_valid(&self) -> bool {
        let held = self.held.lock();
        held.as_ref().is_some_and(|held| held.lease.is_valid())
    }

    /// Who owns a volume, as far as this node knows: of a clone who owns the store that it lives in.
    pub fn owner(&self, volume: VolumeId) -> Option<NodeId> {
        let view = self.views.borrow();
        let owner = view.store_of(volume)?.owner.as_ref()?;
        Some(owner.value.node)
    }

    /// Asks for a volume of this node to be given to others.
    pub fn ask_to_give(&self, volume: VolumeId) {
        self.asked.lock().insert(volume);
        self.asked_notify.notify_one();
    }

    pub(crate) fn asked_to_give(&self) -> BTreeSet<VolumeId> {
        std::mem::take(&mut self.asked.lock())
    }

    /// Has the loop that owns volumes look again.
    pub(crate) fn wake(&self) {
        self.asked_notify.notify_one();
    }

    pub(crate) async fn asked(&self) {
        self.asked_notify.notified().await;
    }

    /// Waits until this node may go on no more, and says why.
    pub async fn over(&self) -> Ended {
        let mut over = self.over.subscribe();
        // The sender is in `self`.
        let ended = over.wait_for(Option::is_some).await;
        ended.map_or(Ended::Removed, |ended| {
            ended.clone().unwrap_or(Ended::Removed)
        })
    }

    /// Says whether the file system with the cluster folder is nearly full.
    pub fn set_folder_is_low(&self, is_low: bool) {
        if self.folder_is_low.swap(is_low, Ordering::AcqRel) != is_low {
            self.asked_notify.notify_one();
        }
    }

    pub(crate) fn note_failed(&self, volume: VolumeId, why: String) {
        self.failed.lock().insert(volume, cut(why));
    }

    pub(crate) fn note_taken(&self, volume: VolumeId) {
        self.failed.lock().remove(&volume);
    }

    /// What others are to know of this node.
    pub(crate) fn sign(
        &self,
        view: &MapView,
        locked: BTreeSet<VolumeId>,
        unreached: BTreeSet<NodeId>,
    ) -> Sign {
        let mut failed = self.failed.lock();
        // Of one that somebody owns or that is gone nobody asks why.
        failed.retain(|volume, _| {
            let known = view.volumes.get(volume);
            known.is_some_and(|known| {
                let owner = known.owner.as_ref().map(|owner| owner.value.node);
                owner.is_none_or(|owner| owner == self.own.node)
            })
        });
        let told = failed.iter().take(FAILED_TOLD_MAX);
        Sign {
            locked,
            unreached,
            failed: told.map(|(id, why)| (*id, why.clone())).collect(),
            folder_is_low: self.folder_is_low.load(Ordering::Acquire),
            host: self.settings.host.clone(),
            volumes_max: self.settings.volumes_max,
            allows_clear: self.settings.allows_clear,
            leaves_addresses: self.leaves_addresses.load(Ordering::Acquire),
            unfit_addresses: self.unfit_told(),
            prepared: self.prepared.lock().clone(),
            reserved_seen: self.reserved_seen.load(Ordering::Acquire),
            unflushed_bytes_max: self.settings.unflushed_bytes_max,
        }
    }

    /// From here on this node leaves free what is set aside as of a revision of the map; others are told.
    pub fn note_reserved_seen(&self, seen: u64) {
        if self.reserved_seen.swap(seen, Ordering::AcqRel) != seen {
            self.asked_notify.notify_one();
        }
    }

    /// As whom, and in which epoch, this process owns a volume.
    pub(crate) fn epoch_of(&self, volume: VolumeId) -> Option<(Process, Epoch)> {
        self.epochs.lock().get(&volume).copied()
    }

    fn unfit_told(&self) -> BTreeMap<IpAddr, String> {
        let now = self.env.clock.monotonic();
        let unfit = self.unfit_addresses.lock();
        let unfit = unfit.iter().filter(|(_, unfit)| unfit.until > now);
        let unfit = unfit.map(|(address, unfit)| (address, &unfit.why));
        let staying = self.staying_addresses.lock();
        let told = staying.iter().chain(unfit).take(UNFIT_TOLD_MAX);
        told.map(|(address, why)| (*address, why.clone())).collect()
    }

    /// Why an address of a pool is still on this machine although it has to go; `None`: it is where it should be.
    pub fn note_staying(&self, address: IpAddr, why: Option<String>) {
        let mut staying = self.staying_addresses.lock();
        let before = match &why {
            Some(why) => staying.insert(address, cut(why.clone())),
            None => staying.remove(&address),
        };
        if before != why.map(cut) {
            self.asked_notify.notify_one();
        }
    }

    /// This node could not put an address of a pool on an interface: another one is to have it, for a while.
    pub fn note_unfit(&self, address: IpAddr, why: String) {
        let now = self.env.clock.monotonic();
        let mut all = self.unfit_addresses.lock();
        let unfit = all.entry(address).or_insert(Unfit {
            why: String::new(),
            until: Duration::ZERO,
            rest: UNFIT_REST,
        });
        if unfit.until <= now {
            unfit.why = cut(why);
            unfit.until = now.saturating_add(unfit.rest.pause());
        }
        drop(all);
        self.asked_notify.notify_one();
    }

    /// This node has an address of a pool on an interface, or has nothing to do with it any more.
    pub fn note_fit(&self, address: IpAddr) {
        self.unfit_addresses.lock().remove(&address);
    }

    /// A process that takes the place of this one in the map while this one runs is another one with the same folder.
    fn notice_twin(&self, view: &MapView) {
        let Some(own) = &self.settings.host else {
            return;
        };
        let alive = view.alive.get(&self.own.node);
        let Some(host) = alive.and_then(|alive| alive.value.host.as_ref()) else {
            return;
        };
        if host.instance == own.instance {
            self.was_known.store(true, Ordering::Release);
        } else if self.was_known.load(Ordering::Acquire) {
            let ended = Ended::Twin {
                own: own.clone(),
                other: host.clone(),
            };
            tracing::error!("{ended}");
            self.over.send_replace(Some(ended));
        }
    }

    /// A key that cannot be read may be this node's: the map is asked for certain.
    async fn notice_removal(&self, view: &MapView) {
        if view.nodes.contains_key(&self.own.node) || !view.damaged.is_empty() {
            return;
        }
        // A removed node is no user of etcd any more.
        if let Err(
            MapError::NotFound { .. } | MapError::Coordinator(CoordinatorError::Refused(_)),
        ) = self.map.node(self.own.node).await
        {
            self.was_removed();
        }
    }

    /// Says that this node is none of the cluster any more: it may go on no more.
    pub fn was_removed(&self) {
        tracing::error!("this node was removed from the cluster");
        self.over.send_replace(Some(Ended::Removed));
    }

    /// Sets who measures what clients do with volumes.
    pub fn on_measuring(&self, meter: Arc<dyn Meter>) {
        // Only here.
        let _ = self.meter.set(meter);
    }

    /// Sets what comes before a volume is left.
    pub fn on_leaving(&self, farewell: Arc<dyn Farewell>) {
        // Only here.
        let _ = self.farewell.set(farewell);
    }

    /// Tells others that this node stops, and that they should have the addresses of pools that it has.
    pub fn leave_addresses(&self) {
        self.leaves_addresses.store(true, Ordering::Release);
        self.asked_notify.notify_one();
    }

    pub(crate) async fn say_farewell(&self, volume: VolumeId) {
        let Some(farewell) = self.farewell.get() else {
            return;
        };
        let leaving = Arc::clone(farewell).leaving(volume);
        if let Either::Right(_) = select(leaving, self.env.clock.sleep(FAREWELL_MAX)).await {
            tracing::warn!(%volume, "the volume is given up before its address was dropped");
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) async fn stopped(&self) {
        self.stop_notify.notified().await;
    }

    /// Ends if the node is told to stop after this call, awaited yet or not.
    pub(crate) fn told_to_stop(&self) -> impl Future<Output = ()> {
        self.stop_notify.notified()
    }

    pub(crate) fn hold(&self, held: Option<HeldLease>) {
        *self.held.lock() = held;
    }

    pub fn process(&self) -> Option<Process> {
        self.held.lock().as_ref().map(|held| held.process)
    }

    /// Reads the map, once, before the pool is made of it. `before` has what this node knows of its own disks.
    pub async fn first_state(&self, before: &PoolState) -> Result<PoolState, MapError> {
        let mut follower = self.map.follow().await?;
        let view = follower.view()?;
        let state = pool_state(&view, before, self.own.node);
        self.peers.follow(&view);
        self.views.send_replace(Arc::new(view));
        Ok(state)
    }

    /// Puts the volumes of a server that becomes the first node of a cluster into the map, under the numbers that they have.
    pub async fn import_volumes(map: &ClusterMap, state: &PoolState) -> Result<(), MapError> {
        let mut stores: Vec<&PoolVolume> = state.volumes.iter().collect();
        stores.sort_by_key(|store| store.id);
        for store in stores {
            match map.volume(store.id).await {
                Err(MapError::NotFound { .. }) => {}
                // An earlier start came so far.
                found => {
                    found?;
                    continue;
                }
            }
            let store = StoreState::of(state, store);
            let record = store_record(&store).map_err(MapError::HighWater)?;
            map.import_volume(&record).await?;
        }
        if !state.classes.is_empty() && map.classes().await?.is_none() {
            let record = classes_record(&state.classes).map_err(MapError::HighWater)?;
            map.set_classes(None, &record).await?;
        }
        if !state.maintenance.is_none() && map.maintenance().await?.is_none() {
            let record = maintenance_record(&state.maintenance).map_err(MapError::HighWater)?;
            map.set_maintenance(None, &record).await?;
        }
        if let Some(key) = &state.secrets_key
            && map.secrets_key().await?.is_none()
        {
            let record = secrets_key_record(key).map_err(MapError::HighWater)?;
            map.set_secrets_key(None, &record).await?;
        }
        map.reserve_volumes(state.volume_next).await
    }

    /// Waits until each volume of the map has a log of the cluster.
    pub async fn all_have_logs(&self) {
        let mut views = self.views();
        let have_logs = |view: &Arc<MapView>| {
            let mut volumes = view.volumes.values();
            volumes.all(|volume| volume.log.log.open().is_some())
        };
        // The sender is in `self`.
        let _ = views.wait_for(have_logs).await;
    }

    /// Begins to follow the map and to own volumes; ends with [`Self::stop`].
    pub fn start(self: &Arc<Self>, pool: &Arc<Pool>) {
        // Only here.
        let _ = self.pool.set(Arc::downgrade(pool));
        let spawner = self.env.spawner.clone();
        let follow = Arc::clone(self).follow_map(Arc::clone(pool));
        spawner.spawn("cluster map", Box::pin(follow));
        self.start_to_look_at_peers(pool);
        let left = LeftDisks {
            member: Arc::clone(self),
            pool: Arc::clone(pool),
            told: ReportedUsage::default(),
        };
        Job::every("left-disks", LEFT_LOOK).start(&self.env, left);
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let own = async move {
            Arc::clone(&member).own_volumes(pool).await;
            member.ended.send_replace(true);
        };
        spawner.spawn("ownership", Box::pin(own));
    }

    /// The fewest copies with which the log of a volume goes on that this node took.
    pub(crate) fn log_copies_least(&self, volume: VolumeId) -> usize {
        self.log_copies.lock().get(&volume).copied().unwrap_or(0)
    }

    pub(crate) fn note_lease(&self, lease: LeaseView) {
        *self.last_lease.lock() = Some(lease);
    }

    pub(crate) fn note_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Whether this node has lost its lease, or never had one, so that it has nothing to hand over and etcd may not answer.
    pub fn is_cut_off(&self) -> bool {
        let lease = self.last_lease.lock();
        let is_valid = lease.as_ref().is_some_and(LeaseView::is_valid);
        !is_valid && !self.is_gone.load(Ordering::Acquire)
    }

    /// Whether no other node of the cluster is there that could have what this one leaves.
    pub fn is_last(&self) -> bool {
        let view = self.view();
        view.nodes.len() > 1 && view.alive.keys().all(|node| *node == self.own.node)
    }

    /// Closes the volumes that this node owns and lets others have them.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop_notify.notify_waiters();
        self.asked_notify.notify_one();
        let mut ended = self.ended.subscribe();
        // The sender is in `self`.
        let _ = ended.wait_for(|ended| *ended).await;
        self.peers.stop();
    }

    async fn follow_map(self: Arc<Self>, pool: Arc<Pool>) {
        let mut pauses = MAP_RETRY;
        loop {
            let mut follower = loop {
                if self.is_stopping() {
                    return;
                }
                match self.map.follow().await {
                    Ok(follower) => break follower,
                    Err(error) => {
                        tracing::warn!(%error, "the cluster map cannot be read");
                        self.env.clock.sleep(pauses.pause()).await;
                    }
                }
            };
            loop {
                let view = match follower.view() {
                    Ok(view) => Arc::new(view),
                    Err(error) => {
                        tracing::error!(%error, "this node stops following the cluster map");
                        self.env.clock.sleep(pauses.pause()).await;
                        break;
                    }
                };
                pauses.reset();
                let known = pool.state();
                let state = pool_state(&view, &known, self.own.node);
                let revision = view.revision;
                // What each owner tells of its volumes every second changes nothing here.
                if *known != state {
                    self.remember(revision);
                }
                drop(known);
                self.peers.follow(&view);
                let before = self.views.send_replace(view);
                if self.owners_differ(&before) {
                    pool.publish();
                }
                let is_current = || revision >= self.map.written();
                pool.refresh(state, is_current).await;
                self.notice_removal(&self.view()).await;
                self.notice_twin(&self.view());
                tokio::select! {
                    // In this order, so that a simulated cluster does the same each time.
                    biased;
                    () = follower.changed() => {}
                    () = self.stopped() => {}
                }
                if self.is_stopping() {
                    return;
                }
            }
        }
    }

    /// Keeps in mind how new the map is that this node is about to follow: killed later, it follows no older one.
    fn remember(&self, revision: Revision) {
        if let Err(error) = self.map.remember_followed(revision) {
            tracing::warn!(%error, "the latest version of the map could not be stored: after a crash now, this node would accept an older map");
        }
    }

    /// Says of the volumes of this node which draining disks have nothing of them any more.
    async fn tell_what_was_left(&self, pool: &Arc<Pool>, told: &mut ReportedUsage) {
        let view = self.view();
        let owned = self.epochs.lock().clone();
        self.tell_usage(pool, &view, &owned, told).await;
        let draining = view.disks.values().filter(|disk| disk.value.draining);
        let draining: Vec<_> = draining
            .map(|disk| (disk.value.id, disk.revision.0))
            .collect();
        if draining.is_empty() {
            return;
        }
        for (volume, (process, epoch)) in owned {
            let mut left = LeftRecord::default();
            for (disk, revision) in &draining {
                if pool.has_left(volume, *disk).await {
                    left.disks.insert(*disk, *revision);
                }
            }
            let known = view
                .volumes
                .get(&volume)
                .and_then(|known| known.left.as_ref());
            let is_known = known.map_or(left.disks.is_empty(), |known| known.value == left);
            if is_known {
                continue;
            }
            if let Err(error) = self.map.set_left(volume, process, epoch, &left).await {
                tracing::debug!(%volume, %error, "the disks that the volume left could not be reported yet");
            }
        }
    }

    fn owners_differ(&self, before: &MapView) -> bool {
        let owners = |view: &MapView| -> Vec<(VolumeId, Option<NodeId>)> {
            let volumes = view.volumes.iter();
            volumes
                .map(|(id, state)| (*id, state.owner.as_ref().map(|owner| owner.value.node)))
                .collect()
        };
        owners(before) != owners(&self.views.borrow())
    }

    /// Until the last volume is closed: closing needs to know which disks there are.
    fn start_to_look_at_peers(self: &Arc<Self>, pool: &Arc<Pool>) {
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let look = move || {
            if *member.ended.borrow() {
                return ready(Next::End);
            }
            let view = member.view();
            pool.set_remote_disks(member.peers.disks(&view));
            pool.set_awaited_nodes(in_maintenance(&view, member.env.clock.now()));
            ready(Next::Period)
        };
        let job = Job::every("peers", PEERS_LOOK).from_now();
        job.start(&self.env, look);
    }

    /// Gives a volume up that this node owns and does not serve any more.
    pub(crate) async fn give_up(&self, volume: VolumeId) {
        let taken = self.epochs.lock().remove(&volume);
        let Some((process, epoch)) = taken else {
            return;
        };
        if let Err(error) = self.map.give_up_as(volume, process, epoch).await {
            tracing::debug!(%volume, %error, "the volume becomes free at the latest when this node's lease ends");
        }
    }

    /// Nobody else opens or prepares a volume until the guard goes.
    async fn alone_with(&self, volume: VolumeId) -> tokio::sync::OwnedMutexGuard<()> {
        let opening = {
            let mut openings = self.openings.lock();
            openings.retain(|_, opening| Arc::strong_count(opening) > 1);
            Arc::clone(openings.entry(volume).or_default())
        };
        opening.lock_owned().await
    }

    /// How far the state goes that this node has of a volume which is about to come to it.
    pub(crate) fn prepared(&self) -> BTreeMap<VolumeId, LogPosition> {
        self.prepared.lock().clone()
    }

    /// Volumes that are about to come to this node. Of others nothing is told any more.
    pub(crate) fn keep_prepared(&self, coming: &BTreeSet<VolumeId>) {
        self.prepared.lock().retain(|id, _| coming.contains(id));
    }

    /// This node need not get any more of a volume before that comes.
    pub(crate) fn note_prepared(&self, volume: VolumeId, through: LogPosition) {
        self.prepared.lock().insert(volume, through);
        self.asked_notify.notify_one();
    }

    async fn prepare_state(
        &self,
        volume: &PoolVolume,
        settings: MetaSettings,
        disks: cairn_pool::MetaDisks,
    ) -> Result<(), String> {
        let _alone = self.alone_with(volume.id).await;
        let pool = self.pool.get().and_then(Weak::upgrade);
        let pool = pool.ok_or_else(|| "this node is starting".to_owned())?;
        let view = self.view();
        let known = view.volumes.get(&volume.id);
        let known = known.ok_or_else(|| format!("there is no volume {}", volume.id))?;
        let is_elsewhere = known
            .owner
            .as_ref()
            .is_some_and(|owner| owner.value.node != self.own.node);
        if !is_elsewhere || pool.service(volume.id).is_some() {
            return Err("it is no longer on another node".to_owned());
        }
        let seat = Seat {
            volume: volume.id,
            epoch: Epoch(0),
            node: self.own.node,
            revision: 0,
            list: from_map(&known.log.log)?,
            agreement: Arc::new(NoAgreement),
            disks: Arc::new(PoolLogDisks::new(self.own.node, &pool)),
            copies: Copies::new(1, 1),
            patience: self.settings.patience,
        };
        let prepared = MetaStore::prepare(self.env.clone(), settings, seat, disks).await;
        prepared.map_err(|error| error.to_string())
    }

    async fn take_over(
        &self,
        volume: &PoolVolume,
        settings: MetaSettings,
        disks: Vec<(DiskId, Arc<dyn cairn_base::disk::Disk>)>,
    ) -> Result<(Arc<MetaStore>, Recovered), String> {
        let _alone = self.alone_with(volume.id).await;
        let pool = self.pool.get().and_then(Weak::upgrade);
        let pool = pool.ok_or_else(|| "this node is starting".to_owned())?;
        let process = self.process().filter(|_| self.lease_is_valid());
        let process = process.ok_or_else(|| "this node has no lease".to_owned())?;
        let wanted = settings.copies;
        let least = VolumeLog::copies_least(wanted);
        self.log_copies.lock().insert(volume.id, least);
        let has_log = |view: &MapView| {
            let known = view.volumes.get(&volume.id);
            known.is_some_and(|known| known.log.log.open().is_some())
        };
        let above = match has_log(&self.view()) {
            true => Epoch(0),
            // It may be a volume that this server had before it was in a cluster.
            false => {
                let epoch = MetaStore::mirrored_epoch(volume.id, disks.clone()).await;
                let epoch = epoch.map_err(|error| error.to_string())?;
                epoch.unwrap_or(Epoch(0))
            }
        };
        let node = Node {
            env: self.env.clone(),
            map: self.map.clone(),
            process,
            log_disks: Arc::new(PoolLogDisks::new(self.own.node, &pool)),
            disks,
        };
        let protection = Protection {
            copies: Copies::new(wanted, least),
            patience: self.settings.patience,
        };
        let taken = node.take_over(volume.id, above, protection, settings);
        let epochs = &self.epochs;
        let note = |epoch| epochs.lock().insert(volume.id, (process, epoch));
        match taken.await {
            Ok((meta, recovered)) => {
                note(meta.epoch());
                Ok((meta, recovered))
            }
            Err(error) => {
                if let TakeoverError::Metadata { epoch, .. } = &error {
                    note(*epoch);
                    // Another node may reach what this one does not.
                    self.give_up(volume.id).await;
                }
                Err(error.to_string())
            }
        }
    }
}

impl Seats for ClusterMember {
    fn take<'a>(
        &'a self,
        volume: &'a PoolVolume,
        settings: MetaSettings,
        disks: cairn_pool::MetaDisks,
    ) -> SeatFuture<'a, Result<(Arc<MetaStore>, Recovered), String>> {
        Box::pin(self.take_over(volume, settings, disks))
    }

    fn prepare<'a>(
        &'a self,
        volume: &'a PoolVolume,
        settings: MetaSettings,
        disks: cairn_pool::MetaDisks,
    ) -> SeatFuture<'a, Result<(), String>> {
        Box::pin(self.prepare_state(volume, settings, disks))
    }

    fn node(&self) -> NodeId {
        self.own.node
    }

    fn is_deleted(&self, volume: VolumeId) -> SeatFuture<'_, bool> {
        Box::pin(async move {
            match self.map.is_deleted(volume).await {
                Ok(is_deleted) => is_deleted,
                Err(error) => {
                    tracing::warn!(%volume, %error, "the remains of a deleted volume stay until the next start");
                    false
                }
            }
        })
    }

    fn deleted_in_store(
        &self,
        store: VolumeId,
        volumes: Vec<VolumeId>,
    ) -> SeatFuture<'_, Vec<VolumeId>> {
        Box::pin(async move {
            match self.map.deleted_in_store(store, &volumes).await {
                Ok(deleted) => deleted,
                Err(error) => {
                    tracing::warn!(%store, %error, "the remains of deleted volumes stay until the store is next opened");
                    Vec::new()
                }
            }
        })
    }

    fn remove_disk(&self, disk: DiskId) -> SeatFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let removed = self.map.remove_left_disk(disk).await;
            removed.map_err(|error| error.to_string())
        })
    }
}
