//! This process as a node of a cluster.
//!
//! Owns: the order in which a node takes its place (its folder, etcd, the map, its disks in the map); the internal
//! listener and its services. Must not know: which node owns what (`cairn_owner`), certificates (`cairn_trust`), how
//! the map is kept (`cairn_cluster`).

mod admit;
mod copies;
mod etcd;
mod forward;
pub mod guardian;
mod high_water;
mod iscsi;
mod issue;
pub mod offline;
pub mod recover;
pub mod rotation;
mod twins;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::jobs::{Job, Next};
use cairn_cluster::map::copy::MapCopy;
use cairn_cluster::map::{
    ClusterId, HostRecord, JoinToken, MapError, MapErrorKind, MapView, NodeRecord, VersionRange,
    WEIGHT_NORMAL,
};
use cairn_cluster::{ClusterMap, Coordinator};
use cairn_config::{Config, MemoryBudget};
use cairn_floating::{PlacedAddress, Purpose};
use cairn_formats::pool_file::{ClusterMark, HandleKey, PoolState};
use cairn_forward::Forward;
use cairn_keys::{KeyError, MasterKeys};
use cairn_owner::{ClusterMember, Dials, MapTruth, MemberSettings, disk_record};
use cairn_pool::open::OpenedPool;
use cairn_pool::{Pool, give_secrets_to_cluster, handle_key_of};
use cairn_remote::{Connection, Dial, Identity, ServeSettings, Served, Server};
use cairn_shard::ShardService;
use cairn_trust::{
    ClusterFolder, Encryption, Handler, IssueServer, JoinServer, JoinSettings, Listener,
    ListenerSettings, Membership, NodeStream, PeerIdentity, Protocol, Stage, Ticket, Trust,
    TrustDial, TrustSettings, host_of,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::admit::Admission;
use self::copies::CopiesFolder;
pub use self::copies::{ON_DISK, ON_DISK_NEW};
pub use self::etcd::EtcdHealth;
use self::etcd::EtcdSide;
use self::high_water::HighWaterFile;
use self::issue::MapOfIssuers;
use self::rotation::{AuthorityProgress, BeginError};
use self::twins::{host_record, require_alone};
use crate::error::NodeError;

/// The default cluster folder.
pub const FOLDER_DEFAULT: &str = "/var/lib/cairn/cluster";
/// The default ports of etcd.
pub const ETCD_CLIENT_PORT: u16 = 2379;
pub const ETCD_PEER_PORT: u16 = 2380;
/// The default port for other nodes.
pub const INTERNAL_PORT: u16 = 7400;
/// Versions of the internal protocol that this program speaks.
pub const PROTOCOL_OLDEST: u32 = cairn_wire::PROTOCOL_VERSION as u32;
pub const PROTOCOL_NEWEST: u32 = cairn_wire::PROTOCOL_VERSION as u32;
/// Maximum number of addresses in a ticket.
const TICKET_ADDRESSES_MAX: usize = 5;
/// Interval of the check whether a replaced node can be removed.
const REPLACED_LOOK: Duration = Duration::from_secs(2);
/// Maximum time that a start waits for its place in the map, in case etcd is between two leaders.
const PLACE_PATIENCE: Duration = Duration::from_secs(30);
const PLACE_PAUSE: Duration = Duration::from_millis(500);

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError::Cluster(error.to_string())
}

fn secrets_stay(error: &KeyError) -> NodeError {
    failed(format!(
        "the pool's secrets cannot be taken into the cluster: {error}. Give the server its master key"
    ))
}

fn removed(membership: &Membership, folder: &Path) -> NodeError {
    NodeError::Removed {
        node: membership.node_name.clone(),
        cluster: membership.cluster_name.clone(),
        folder: folder.display().to_string(),
    }
}

/// The cluster folder of a configuration, if the node is in a cluster.
pub fn folder_of(config: &Config) -> Result<Option<PathBuf>, NodeError> {
    let is_one = |path: &Path| {
        ClusterFolder::is_one(path).map_err(|error| {
            failed(format!(
                "the cluster folder cannot be read: {error}; run the server as the user that created the folder, \
                 or give the folder to the server's user (chown -R)"
            ))
        })
    };
    match &config.cluster_dir {
        Some(path) if is_one(path)? => Ok(Some(path.clone())),
        Some(path) => Err(failed(format!(
            "{} is not the cluster folder of a node; create it with `cairn cluster init --cluster-dir {0}`, or with \
             `cairn cluster join`",
            path.display()
        ))),
        None => {
            let path = Path::new(FOLDER_DEFAULT);
            Ok(is_one(path)?.then(|| path.to_owned()))
        }
    }
}

/// A node that has its place in etcd, and no pool yet.
pub struct Begun {
    /// The host of this process.
    host: HostRecord,
    trust: Arc<Trust>,
    membership: Arc<Mutex<Membership>>,
    etcd: Arc<EtcdSide>,
    map: ClusterMap,
    listener: Listener,
}

/// A node of a cluster.
pub struct ClusterNode {
    pub member: Arc<ClusterMember>,
    /// Between this node's clients and the owners of volumes.
    pub forward: Arc<Forward>,
    pub trust: Arc<Trust>,
    pub membership: Arc<Mutex<Membership>>,
    etcd: Arc<EtcdSide>,
    map: ClusterMap,
    listener: Arc<Listener>,
    is_stopping: Arc<AtomicBool>,
}

impl Begun {
    /// Takes the node's place in the cluster: its folder, its member of etcd, the map.
    pub async fn begin(
        env: &Env,
        folder: &Path,
        encryption: Encryption,
    ) -> Result<Self, NodeError> {
        let folder = Arc::new(ClusterFolder::open(folder).map_err(failed)?);
        let membership = folder.membership().map_err(failed)?;
        let settings = TrustSettings {
            encryption,
            ..TrustSettings::default()
        };
        let trust = Trust::open(env.clone(), Arc::clone(&folder), settings);
        let trust = trust.map_err(failed)?;
        // Before anything is started: a used port should not cost more.
        let listener = Listener::bind(
            Arc::clone(&trust),
            &membership.internal_address,
            ListenerSettings::default(),
        );
        let listener = listener.await.map_err(failed)?;
        let is_first = membership.stage == Stage::Init;
        let host = host_record(env, folder.path());
        // Before this node's member of etcd runs: two with one identity would harm etcd.
        if let Some(others) = etcd::others(&trust, &membership).await {
            let high_water = Arc::new(HighWaterFile::in_folder(folder.path()));
            let name = &membership.cluster_name;
            let opened = ClusterMap::open(Arc::new(others), env.clone(), name, high_water).await;
            match opened {
                Ok(map) => require_alone(env, &map, &membership, &host).await?,
                // If the map cannot be read, a later step reports that.
                Err(error) => tracing::debug!(%error, "the map is not read yet"),
            }
        }
        let membership = Arc::new(Mutex::new(membership));
        let started = EtcdSide::start(
            Arc::clone(&folder),
            Arc::clone(&trust),
            Arc::clone(&membership),
        );
        let etcd = started.await?;
        let own = membership.lock().clone();
        let map = match open_map(env, &etcd, &folder, &membership, is_first).await {
            Ok(map) => map,
            Err(error) => {
                // etcd lets a removed node read nothing.
                return Err(match etcd.is_gone(&own).await {
                    true => removed(&own, folder.path()),
                    false => error,
                });
            }
        };
        require_alone(env, &map, &own, &host).await?;
        Ok(Self {
            host,
            trust,
            membership,
            etcd,
            map,
            listener,
        })
    }

    pub fn node(&self) -> NodeId {
        self.membership.lock().node
    }

    /// The paths of this node's disks in the map, without those that are to leave: a start that finds none of them
    /// must not make new ones.
    pub async fn known_disks(&self, env: &Env) -> Result<Vec<String>, NodeError> {
        let own = self.node();
        let (disks, _) = in_time(env, || self.map.disks()).await?;
        let disks = disks.into_iter().map(|disk| disk.value);
        let known = disks.filter(|disk| disk.node == own && !disk.draining);
        Ok(known.map(|disk| disk.label).collect())
    }

    /// Adds the node's disks to the map, and builds the pool's state from them and the map.
    pub async fn join(
        self,
        env: &Env,
        config: &Config,
        keys: &MasterKeys,
        opened: &mut OpenedPool,
    ) -> Result<ClusterNode, NodeError> {
        let membership = self.membership.lock().clone();
        let mark = ClusterMark {
            cluster: membership.cluster,
            node: membership.node,
        };
        check_mark(&opened.state, Some(mark), config)?;
        let is_new = membership.stage != Stage::Member;
        let is_first = membership.stage == Stage::Init;
        if is_new && !opened.state.tiers.is_empty() {
            let why = "those of a pool with tiers, which a cluster cannot take over; bring its data back and remove them first (`cairn tier remove`), and add them in the cluster";
            return Err(others_disks(config, why.to_owned()));
        }
        if is_new && !is_first && opened.state.cluster.is_none() {
            check_has_no_volumes(&opened.state, config)?;
        }
        if !is_new {
            self.require_listed(env, &membership).await?;
        }
        opened.state.cluster = Some(mark);
        for disk in &mut opened.state.disks {
            disk.node = membership.node;
        }
        if is_first {
            // Handles of clients stay valid, and so do secrets of volumes.
            let handle_key = handle_key_of(&opened.state, keys);
            let handle_key = handle_key.map_err(|error| secrets_stay(&error))?;
            if let Some(handle_key) = handle_key.filter(|_| !opened.created)
                && handle_key != membership.handle_key
            {
                self.keep_handle_key(handle_key)?;
            }
            let given = give_secrets_to_cluster(&mut opened.state, keys, &*env.entropy);
            given.map_err(|error| secrets_stay(&error))?;
            in_time(env, || self.add_first_node(env, &membership)).await?;
            let volumes = &opened.state;
            in_time(env, || ClusterMember::import_volumes(&self.map, volumes)).await?;
        }
        if is_new && !is_first {
            // It has no volumes, so the key wraps nothing. The cluster has a key, or makes one.
            opened.state.secrets_key = None;
        }
        // The key is in the cluster folder, and data disks do not need it.
        opened.state.handle_key = None;
        let adds = is_new || opened.created;
        in_time(env, || self.add_disks(&opened.state, adds)).await?;
        let own = Identity {
            cluster: membership.cluster,
            node: membership.node,
        };
        let coordinator: Arc<dyn Coordinator> = Arc::new(self.etcd.etcd.clone());
        let budget = MemoryBudget::of(config.memory_limit_bytes);
        let settings = MemberSettings {
            volumes_max: Some(budget.volumes_max()),
            unflushed_bytes_max: budget.dirty_bytes,
            allows_clear: !config.internal_encryption,
            takeovers_max: budget.takeovers_max(),
            patience: config.write_deadline.max(Duration::from_secs(3)),
            host: Some(self.host.clone()),
            ..MemberSettings::default()
        };
        let member = ClusterMember::new(
            env.clone(),
            self.map.clone(),
            coordinator,
            own,
            settings,
            Arc::new(TrustDials(Arc::clone(&self.trust))),
        );
        let state = in_time(env, || member.first_state(&opened.state)).await?;
        let why = "no data folder of this node contains it";
        opened.keep_members(state, membership.node, why);
        if is_new && !is_first {
            self.become_member()?;
        }
        let forward = forward::new(env, &self.trust, &member)?;
        Ok(ClusterNode {
            member,
            forward,
            trust: self.trust,
            membership: self.membership,
            etcd: self.etcd,
            map: self.map,
            listener: Arc::new(self.listener),
            is_stopping: Arc::default(),
        })
    }

    /// A node that was removed while it was away no longer has a place.
    async fn require_listed(&self, env: &Env, membership: &Membership) -> Result<(), NodeError> {
        let found = in_time(env, || async {
            match self.map.node(membership.node).await {
                Ok(_) => Ok(true),
                Err(MapError::NotFound { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        });
        match found.await? {
            true => Ok(()),
            false => Err(removed(membership, self.trust.folder().path())),
        }
    }

    fn become_member(&self) -> Result<(), NodeError> {
        become_member(&self.trust, &self.membership)
    }

    fn keep_handle_key(&self, key: HandleKey) -> Result<(), NodeError> {
        let mut membership = self.membership.lock();
        membership.handle_key = key;
        let saved = self.trust.folder().save_membership(&membership);
        saved.map_err(failed)
    }

    async fn add_first_node(&self, env: &Env, membership: &Membership) -> Result<(), MapError> {
        match self.map.node(membership.node).await {
            Err(MapError::NotFound { .. }) => {}
            // An earlier start came so far.
            found => return found.map(drop),
        }
        let record = NodeRecord {
            id: membership.node,
            name: membership.node_name.clone(),
            internal_address: membership.internal_address.clone(),
            external_address: membership.external_address.clone(),
            versions: VersionRange {
                oldest: PROTOCOL_OLDEST,
                newest: PROTOCOL_NEWEST,
            },
            joined: env.clock.now(),
            draining: false,
            replaced_by: None,
            maintenance_until: None,
            weight: WEIGHT_NORMAL,
        };
        self.map.add_node(&record).await
    }

    /// `adds`: disks that the map does not know are new; otherwise they were removed while this node was away.
    async fn add_disks(&self, state: &PoolState, adds: bool) -> Result<(), MapError> {
        for disk in &state.disks {
            match self.map.disk(disk.id).await {
                Ok(_) => continue,
                Err(MapError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            if adds {
                self.map.add_disk(&disk_record(disk)).await?;
            } else {
                tracing::error!(
                    disk = disk.label,
                    "this disk was removed from the cluster, and is not used: empty its folder, then add it again"
                );
            }
        }
        Ok(())
    }
}

fn become_member(trust: &Trust, membership: &Mutex<Membership>) -> Result<(), NodeError> {
    let mut membership = membership.lock();
    if membership.stage == Stage::Member {
        return Ok(());
    }
    membership.stage = Stage::Member;
    trust.folder().save_membership(&membership).map_err(failed)
}

/// Refuses disks of another cluster, or of a cluster where there should be none.
pub fn check_mark(
    state: &PoolState,
    own: Option<ClusterMark>,
    config: &Config,
) -> Result<(), NodeError> {
    let why = match (state.cluster, own) {
        (None, _) => return Ok(()),
        (Some(mark), Some(own)) if mark == own => return Ok(()),
        (Some(mark), Some(own)) if mark.cluster == own.cluster => format!(
            "those of node {} of this cluster, and this is node {}; check --data and --cluster-dir",
            mark.node, own.node
        ),
        (Some(mark), Some(own)) => format!(
            "those of cluster {}, and this node is in cluster {}; give it other folders, or empty these",
            mark.cluster, own.cluster
        ),
        (Some(mark), None) => format!(
            "those of node {} of cluster {}; start it with --cluster-dir and the folder that says so",
            mark.node, mark.cluster
        ),
    };
    Err(others_disks(config, why))
}

fn others_disks(config: &Config, why: String) -> NodeError {
    let folders = config.data.iter().map(|path| path.display().to_string());
    NodeError::OthersDisks {
        folders: folders.collect::<Vec<_>>().join(", "),
        why,
    }
}

fn check_has_no_volumes(state: &PoolState, config: &Config) -> Result<(), NodeError> {
    match state.volumes.len() {
        0 => Ok(()),
        count => Err(others_disks(
            config,
            format!(
                "those of a pool with {count} volumes of its own, which would not be in the cluster; give this node empty \
                 folders"
            ),
        )),
    }
}

/// Tries again while etcd does not answer.
async fn in_time<T, F>(env: &Env, mut call: impl FnMut() -> F) -> Result<T, NodeError>
where
    F: Future<Output = Result<T, MapError>>,
{
    let begun = env.clock.monotonic();
    loop {
        let error = match call().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let passes = matches!(error.kind(), MapErrorKind::Retry | MapErrorKind::Changed);
        if !passes || env.clock.monotonic().saturating_sub(begun) >= PLACE_PATIENCE {
            return Err(failed(error));
        }
        env.clock.sleep(PLACE_PAUSE).await;
    }
}

async fn open_map(
    env: &Env,
    etcd: &Arc<EtcdSide>,
    folder: &ClusterFolder,
    membership: &Mutex<Membership>,
    is_first: bool,
) -> Result<ClusterMap, NodeError> {
    let membership = membership.lock().clone();
    let id = ClusterId(membership.cluster.0);
    let name = membership.cluster_name;
    let high_water = || Arc::new(HighWaterFile::in_folder(folder.path()));
    let coordinator = || Arc::new(etcd.etcd.clone()) as Arc<dyn Coordinator>;
    if is_first {
        let made =
            ClusterMap::create_cluster(coordinator(), env.clone(), id, &name, high_water()).await;
        match made {
            Ok(map) => return Ok(map),
            // An earlier start came so far, or another node has it: the check below tells.
            Err(MapError::Exists { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let open = || ClusterMap::open(coordinator(), env.clone(), &name, high_water());
    let map = in_time(env, open).await?;
    let found = map.cluster().id;
    match found == id {
        true => Ok(map),
        false => Err(failed(MapError::OtherCluster {
            ours: id,
            theirs: found,
        })),
    }
}

/// Connects to other nodes over TLS.
struct TrustDials(Arc<Trust>);

impl Dials for TrustDials {
    fn to(&self, node: &NodeRecord) -> Arc<dyn Dial> {
        Arc::new(TrustDial {
            trust: Arc::clone(&self.0),
            address: node.internal_address.clone(),
            node: node.id,
        })
    }
}

/// The disks of this node, as they come and go.
struct OwnDisks(std::sync::Weak<Pool>);

impl Served for OwnDisks {
    fn disks(&self) -> Vec<Arc<dyn ShardService>> {
        let pool = self.0.upgrade();
        let disks = pool.map_or_else(Vec::new, |pool| pool.disks());
        disks.into_iter().map(|disk| disk as _).collect()
    }
}

/// Serves the disks of this node to others.
struct ShardHandler(Arc<Server>);

impl Handler for ShardHandler {
    fn serve(self: Arc<Self>, peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            let mut connection = Connection::new(stream);
            if let Some(node) = peer.node {
                connection = connection.of_node(node);
            }
            let ended = Arc::clone(&self.0).serve(connection).await;
            tracing::debug!(peer = ?peer.node, ?ended, "a node's connection ended");
        })
    }
}

/// Addresses from which nodes may connect. The address behind a name is learnt when its node connects.
fn addresses_of(view: &MapView) -> BTreeSet<IpAddr> {
    let nodes = view.nodes.values().map(|node| &node.value);
    let addresses =
        nodes.filter_map(|node| host_of(&node.internal_address).ok()?.parse::<IpAddr>().ok());
    addresses.collect()
}

async fn remove_replaced(member: &ClusterMember, etcd: &EtcdSide) -> Next {
    let view = member.view();
    if etcd.keeper(&view) != Some(member.node()) {
        return Next::Held("another node does this");
    }
    let nodes = view.nodes.values().map(|node| &node.value);
    let is_replaced = |node: &&NodeRecord| node.replaced_by.is_some() && node.draining;
    for node in nodes.filter(is_replaced) {
        match remove_node(member, etcd, node).await {
            Ok(()) => tracing::info!(node = node.name, "another node has replaced this node"),
            Err(why) => tracing::debug!(node = node.name, why, "the node is not replaced yet"),
        }
    }
    Next::Period
}

async fn remove_node(
    member: &ClusterMember,
    etcd: &EtcdSide,
    node: &NodeRecord,
) -> Result<(), String> {
    // First: its member could not be removed by its name later.
    if node.draining && etcd.has_member(node).await? {
        return Err(format!(
            "node {} still has an etcd member, which the cluster removes by itself; try again in a moment",
            node.name
        ));
    }
    let emptied = member.map().empty_drained_node(node.id).await;
    emptied.map_err(|error| error.to_string())?;
    // While the node is in the map: after an interruption the removal can be requested again by its name.
    let revoked = etcd.revoke(node.id).await;
    revoked.map_err(|error| {
        format!(
            "node {} is empty, but may still use etcd: {error}; try again",
            node.name
        )
    })?;
    let removed = member.map().remove_node(node.id).await;
    removed.map_err(|error| error.to_string())
}

impl ClusterNode {
    /// See [`guardian`]; runs until the runtime ends. `addresses`: those that are on interfaces of this machine.
    pub fn guard_lease(
        &self,
        program: PathBuf,
        addresses: watch::Receiver<BTreeMap<Purpose, PlacedAddress>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (member, etcd) = (Arc::clone(&self.member), self.etcd.etcd.clone());
        async move { guardian::keep(&program, member, etcd, addresses).await }
    }

    pub fn truth(&self) -> Arc<MapTruth> {
        Arc::new(MapTruth::new(self.map.clone(), self.member.node()))
    }

    /// Serves other nodes, and begins to own volumes.
    pub fn start(&self, env: &Env, pool: &Arc<Pool>) {
        let membership = self.membership.lock().clone();
        let own = Identity {
            cluster: membership.cluster,
            node: membership.node,
        };
        let served = Arc::new(OwnDisks(Arc::downgrade(pool)));
        let server = Server::new(
            env.clone(),
            own,
            ServeSettings::default(),
            served,
            Arc::clone(&self.member.peers) as _,
        );
        let shards = Arc::new(ShardHandler(server));
        self.listener.handle(Protocol::Shards, shards);
        self.start_forward(env);
        let admission = Arc::new(Admission {
            env: env.clone(),
            map: self.map.clone(),
            membership: Arc::clone(&self.membership),
            etcd: Arc::clone(&self.etcd),
        });
        let join = JoinServer::new(Arc::clone(&self.trust), admission, JoinSettings::default());
        self.member.start(pool);
        let listener = Arc::downgrade(&self.listener);
        let mut views = self.member.views();
        let only_nodes = async move {
            loop {
                let view = views.borrow_and_update().clone();
                let Some(listener) = listener.upgrade() else {
                    return;
                };
                listener.set_addresses(addresses_of(&view));
                listener.set_nodes(view.nodes.keys().copied().collect());
                drop(listener);
                if views.changed().await.is_err() {
                    return;
                }
            }
        };
        env.spawner
            .spawn("nodes that may connect", Box::pin(only_nodes));
        self.start_to_remove_replaced(env);
        let issuers = Arc::new(MapOfIssuers {
            member: Arc::downgrade(&self.member),
            etcd: Arc::downgrade(&self.etcd),
        });
        self.trust.ask(Arc::clone(&issuers) as _);
        let issuing = IssueServer::new(Arc::clone(&self.trust), issuers);
        self.listener.handle(Protocol::Issue, issuing);
        let is_first = membership.stage == Stage::Init;
        let listener = Arc::downgrade(&self.listener);
        let (member, trust) = (Arc::clone(&self.member), Arc::clone(&self.trust));
        let membership = Arc::clone(&self.membership);
        let mut keeps = self.etcd.keeps();
        let admitting = async move {
            if is_first {
                // Until the cluster has the logs of this server's volumes, only this server has them: no other node
                // may take the volumes over.
                member.all_have_logs().await;
                if let Err(error) = become_member(&trust, &membership) {
                    tracing::error!(%error, "other nodes cannot join");
                    return;
                }
            }
            loop {
                let keeps_now = *keeps.borrow_and_update();
                let Some(listener) = listener.upgrade() else {
                    return;
                };
                match keeps_now {
                    true => listener.handle(Protocol::Join, Arc::clone(&join) as _),
                    // A joining node asks the next node of its ticket.
                    false => listener.unhandle(Protocol::Join),
                }
                drop(listener);
                if keeps.changed().await.is_err() {
                    return;
                }
            }
        };
        env.spawner.spawn("admission", Box::pin(admitting));
        let (member, is_stopping) = (&self.member, &self.is_stopping);
        self.etcd.tend(env, member, is_stopping);
        copies::tend(env, member, pool, self.trust.folder().path(), is_stopping);
    }

    /// Starts the job that removes replaced nodes once nothing is on them any more; until the node stops. One of the
    /// nodes with that right does it.
    fn start_to_remove_replaced(&self, env: &Env) {
        let (member, etcd) = (Arc::clone(&self.member), Arc::clone(&self.etcd));
        let is_stopping = Arc::clone(&self.is_stopping);
        let owner = move || {
            let is_stopping = is_stopping.load(Ordering::Acquire);
            (!is_stopping).then(|| (Arc::clone(&member), Arc::clone(&etcd)))
        };
        let job = Job::every("replaced-nodes", REPLACED_LOOK);
        job.start_on(env, owner, |(member, etcd)| async move {
            remove_replaced(&member, &etcd).await
        });
    }

    /// The node that admits and removes nodes, and writes the keys that admit clients, if this one does not.
    pub fn keeper_elsewhere(&self) -> Result<Option<NodeId>, String> {
        if self.etcd.writes_guarded() {
            return Ok(None);
        }
        let keeper = self.etcd.keeper(&self.member.view());
        let none = || {
            "only a node with an etcd member can change this, and none is up: start one of these nodes".to_owned()
        };
        keeper.map(Some).ok_or_else(none)
    }

    /// Removes a drained node from the cluster, with all its rights in etcd. Only on a node with a member of etcd,
    /// where nodes run etcd.
    pub async fn remove_node(&self, node: &NodeRecord) -> Result<(), String> {
        remove_node(&self.member, &self.etcd, node).await
    }

    /// A copy of the present map, which this node also keeps.
    pub async fn backup(&self) -> Result<MapCopy, String> {
        let copy = self.map.copy(copies::VERSION).await;
        let copy = copy.map_err(|error| error.to_string())?;
        let folder = CopiesFolder::in_folder(self.trust.folder().path());
        let kept = copy.clone();
        let keeping = tokio::task::spawn_blocking(move || {
            folder.take(&kept)?;
            folder.keep(&kept)
        });
        let keeping = keeping.await.map_err(|error| error.to_string())?;
        keeping.map_err(|error| format!("this node cannot keep it: {error}"))?;
        Ok(copy)
    }

    /// Releases everything that this node owns and ends its connections. The pool closes its volumes with that.
    pub async fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.member.stop().await;
        self.listener.close().await;
    }

    /// Ends this node's member of etcd: last, because the node releases its lease through it.
    pub async fn stop_etcd(&self, patience: Duration) {
        self.etcd.stop_within(patience).await;
    }

    /// A ticket with which one more node can join.
    pub async fn ticket(&self, valid_for: Duration) -> Result<Ticket, String> {
        let token: JoinToken = self
            .map
            .create_token(valid_for, self.member.node())
            .await
            .map_err(|error| error.to_string())?;
        let view = self.member.view();
        let own = self.member.node();
        let (with_member, holders) = (self.etcd.with_member(), self.etcd.holders(&view));
        let nodes = view.nodes.values().map(|node| &node.value);
        // Only those admit nodes.
        let mut nodes: Vec<&NodeRecord> = nodes
            .filter(|node| match with_member.is_empty() {
                true => holders.contains(&node.id),
                false => with_member.contains(&node.name),
            })
            .collect();
        // This node first: it is running.
        nodes.sort_by_key(|node| (node.id != own, !view.alive.contains_key(&node.id)));
        let addresses = nodes.iter().map(|node| node.internal_address.clone());
        let addresses = addresses.take(TICKET_ADDRESSES_MAX).collect();
        // The CA of this node's certificate: other nodes may not use the next CA yet.
        let fingerprint = self.trust.issuer();
        Ticket::new(addresses, fingerprint, token.to_string()).map_err(|error| error.to_string())
    }

    /// The CAs of nodes, and the progress of a rotation.
    pub async fn authority(&self) -> Result<AuthorityProgress, String> {
        rotation::progress(&self.etcd, &self.member).await
    }

    /// Starts a rotation of the CA, which nodes then carry out by themselves.
    pub async fn rotate_authority(&self) -> Result<(), BeginError> {
        rotation::begin(&self.etcd, &self.member).await
    }

    /// The node with this name.
    pub fn record_named(&self, name: &str) -> Result<NodeRecord, String> {
        let view = self.member.view();
        let named = view.nodes.values().find(|node| node.value.name == name);
        let none = || format!("there is no node \"{name}\" in the cluster");
        named.map(|node| node.value.clone()).ok_or_else(none)
    }

    pub fn node_named(&self, name: &str) -> Result<NodeId, String> {
        self.record_named(name).map(|node| node.id)
    }

    /// The state of the members of etcd at the last check.
    pub fn etcd_health(&self) -> EtcdHealth {
        self.etcd.health()
    }

    /// Asks all members of etcd for their state.
    pub async fn look_at_etcd(&self) {
        self.etcd.look_at_members().await;
    }
}
