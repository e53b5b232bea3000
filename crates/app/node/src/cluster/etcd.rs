//! The members of etcd that nodes of the cluster run.
//!
//! Owns: whether this node runs a member, the start of it, which members are asked, the rights of nodes in etcd. Must
//! not know: the contents of etcd.
//!
//! One node runs one member, three nodes run three, five and more run five, so that any two may fail. The order in
//! which nodes joined decides which nodes run one. Each adds its own member, one after the other, since etcd refuses
//! another one while one of its members is not healthy. A draining node removes its own member once the remaining
//! nodes have enough. A draining node that is lost cannot, and keeps others from being added: one of the remaining
//! nodes removes its member. If nodes have left and there are more members than wanted, the last of the nodes with a
//! member removes its own.
//!
//! Each node is a user of etcd, by its id. Nodes with a member, and the next one that is to get one, have all rights.
//! The other nodes read the cluster's keys, and change those by which volumes are kept and served, and their own
//! reports ([`Keys::of_all_nodes`], [`Keys::of_node`]). Only nodes with a member write which nodes exist, which
//! leave, and which have a user or a token; members and the key of the CA follow from that. So these nodes admit and
//! remove others. A removed node is no user any more, and its certificates are revoked: each member gets the list of
//! revoked certificates, and starts again, so that no earlier connection is left. etcd compares only serial numbers,
//! whichever CA signed the list, and the serial numbers of a node are equal whichever CA issued its certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_base::{NodeId, Timestamp};
use cairn_cluster::map::{Keys, MEMBER_RESTART_MAX, MapView, NodeRecord};
use cairn_cluster::{
    CoordinatorError, Etcd, EtcdMember, EtcdMemberInfo, EtcdMemberSettings, EtcdMemberTls,
    EtcdSettings, EtcdTls, MEMBER_STOP_MAX, UserRights,
};
use cairn_owner::ClusterMember;
use cairn_trust::{
    ClusterFolder, EtcdMemberEntry, EtcdSource, Fingerprint, Membership, REVOKED_FOR, Revoked,
    Stage, Trust, host_of,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::copies::{CopiesFolder, read_file};
use super::rotation;
use crate::error::NodeError;

const PROGRAM: &str = "etcd";
/// In the cluster folder.
pub const FOLDER: &str = "etcd";
/// Maximum time that a start waits for etcd.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts meanwhile.
const START_PAUSE: Duration = Duration::from_millis(500);
/// Interval of the check of the members.
const LOOK: Duration = Duration::from_secs(3);
/// A cluster folder with less free space is nearly full, and so is one of a small file system with less than a tenth
/// free: four files of etcd's log have 64 MB each, and a snapshot is as large as its data.
const FOLDER_FREE_BYTES_MIN: u64 = 512 << 20;
/// Users of etcd are checked again after so long, without any change.
const USERS_LOOK: Duration = Duration::from_secs(60);
/// Interval of the check whether a restarting member is healthy.
const RESTART_LOOK: Duration = Duration::from_millis(200);
/// Interval at which a start that waits for etcd asks other nodes whether this one still belongs to the cluster.
const REMOVED_LOOK: Duration = Duration::from_secs(5);
/// After this number of failed checks of etcd in a row, a running node asks other nodes as well.
const FAILED_MAX: u32 = 3;
/// At least so many nodes have the key of the CA, if there are so many.
const HOLDERS_MIN: usize = 3;
/// etcd 3.4 reports the members that one of them knows: this node's member is gone if it was missing so often in a row.
const MISSED_MAX: u32 = 3;

/// This node's relation to etcd.
pub struct EtcdSide {
    pub etcd: Etcd,
    folder: Arc<ClusterFolder>,
    trust: Arc<Trust>,
    member: tokio::sync::Mutex<Option<EtcdMember>>,
    membership: Arc<Mutex<Membership>>,
    /// How often in a row etcd did not know this node's member.
    missed: AtomicU32,
    /// Whether this node admits and removes nodes: where nodes run etcd, a node with a member.
    keeps: watch::Sender<bool>,
    /// The users that were made last, and when.
    users: Mutex<Option<(Users, Duration)>>,
    /// The contents of the list of revoked certificates that this process wrote last, and the CA that signed it.
    revoked: Mutex<Option<(Fingerprint, Vec<Revoked>)>>,
    /// Whether this node's member has to start again: to end connections of revoked nodes, or because the trusted CAs
    /// changed, which it reads at its start.
    is_open: AtomicBool,
    /// The fault that keeps this node from its next step of a CA rotation.
    rotation_problem: Mutex<Option<String>>,
    /// The state of the members at the last check.
    health: Mutex<EtcdHealth>,
}

/// The state of the members of etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdHealth {
    pub members: Vec<EtcdMemberHealth>,
    /// The reason why no member reports the list of members. Then `members` are the ones that this node knew last.
    pub problem: Option<String>,
}

#[derive(Clone, Debug)]
pub struct EtcdMemberHealth {
    pub name: String,
    pub url: String,
    /// The reason why it does not count.
    pub problem: Option<String>,
}

/// The number of members for so many nodes.
fn members_wanted(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError::Cluster(error.to_string())
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether a node admits others: it can issue a certificate, and make them users of etcd.
fn keeps(etcd: &EtcdSource, has_key: bool) -> bool {
    match etcd {
        EtcdSource::Given { .. } => has_key,
        EtcdSource::Own { runs_member, .. } => *runs_member && has_key,
    }
}

/// The nodes that have the key of the CA: those with a member of etcd, the one that is next to get one, and as many
/// others that stay, in the order in which they joined, that the loss of two leaves a holder.
fn holders(
    view: &MapView,
    has_member: impl Fn(&NodeRecord) -> bool,
    is_own: bool,
) -> BTreeSet<NodeId> {
    let mut holders = BTreeSet::new();
    if is_own {
        let nodes = view.nodes.values().map(|node| &node.value);
        let with_member = nodes.filter(|node| has_member(node));
        holders.extend(with_member.map(|node| node.id));
        holders.extend(next_member(view, &has_member));
    }
    let mut staying: Vec<&NodeRecord> = view.nodes.values().map(|node| &node.value).collect();
    staying.retain(|node| !node.draining);
    staying.sort_by_key(|node| (node.joined, node.id));
    let count = |holders: &BTreeSet<NodeId>| {
        let there = staying.iter().filter(|node| holders.contains(&node.id));
        there.count()
    };
    for node in &staying {
        if count(&holders) >= HOLDERS_MIN {
            break;
        }
        holders.insert(node.id);
    }
    holders
}

/// The nodes that stay and are alive, in the order in which they joined the map. A node that is away does not delay
/// the others.
fn line(view: &MapView) -> Vec<&NodeRecord> {
    let records = view.nodes.values().map(|node| &node.value);
    let mut line: Vec<&NodeRecord> = records
        .filter(|node| !node.draining && view.alive.contains_key(&node.id))
        .collect();
    line.sort_by_key(|node| (node.joined, node.id));
    line
}

/// The node that is to add a member, if more are wanted.
fn next_member(view: &MapView, has_member: impl Fn(&NodeRecord) -> bool) -> Option<NodeId> {
    let staying = view.nodes.values().map(|node| &node.value);
    let staying: Vec<&NodeRecord> = staying.filter(|node| !node.draining).collect();
    let with_member = staying.iter().filter(|node| has_member(node)).count();
    let mut without = line(view).into_iter().filter(|node| !has_member(node));
    without
        .next()
        .filter(|_| with_member < members_wanted(staying.len()))
        .map(|node| node.id)
}

/// The node that changes members and users for others, among those that are alive and have the right: preferably one
/// that stays, since at times only a leaving node has a member.
fn leader(view: &MapView, has_member: impl Fn(&NodeRecord) -> bool) -> Option<NodeId> {
    let nodes = view.nodes.values().map(|node| &node.value);
    let may = nodes.filter(|node| has_member(node) && view.alive.contains_key(&node.id));
    may.min_by_key(|node| (node.draining, node.joined, node.id))
        .map(|node| node.id)
}

/// The rights of each node of the map in etcd, and whether it drains.
type Users = BTreeMap<NodeId, (UserRights, bool)>;

fn users_of(view: &MapView, has_member: impl Fn(&NodeRecord) -> bool) -> Users {
    let next = next_member(view, &has_member);
    let nodes = view.nodes.values().map(|node| &node.value);
    let users = nodes.map(|node| {
        let rights = match has_member(node) || next == Some(node.id) {
            true => UserRights::All,
            false => UserRights::Keys,
        };
        (node.id, (rights, node.draining))
    });
    users.collect()
}

/// Whether other nodes say that this one no longer belongs to the cluster: a removed node cannot read the map. A node
/// with an outdated map may not know a new node, so all nodes that answer have to say it.
async fn is_removed(trust: &Trust, nodes: Vec<NodeRecord>) -> bool {
    let others = nodes.into_iter().filter(|node| node.id != trust.node());
    let asked =
        others.map(|node| async move { trust.is_known_to(&node.internal_address, node.id).await });
    let said: Vec<bool> = join_all(asked).await.into_iter().flatten().collect();
    !said.is_empty() && said.iter().all(|is_known| !is_known)
}

/// The nodes that this one knew last.
fn nodes_known(folder: &ClusterFolder) -> Vec<NodeRecord> {
    let copy = read_file(&CopiesFolder::in_folder(folder.path()).newest());
    copy.map_or_else(|_| Vec::new(), |copy| copy.nodes())
}

/// The reason why a member does not count, in few words; its address is shown beside it.
fn problem_of(error: &CoordinatorError) -> String {
    match error {
        CoordinatorError::TimedOut { after, .. } => {
            format!("it does not answer within {} ms", after.as_millis())
        }
        CoordinatorError::Unreachable(_) => "it cannot be reached".to_owned(),
        CoordinatorError::NoLeader(_) => {
            "it has no leader: the other members cannot reach it".to_owned()
        }
        other => other.to_string(),
    }
}

/// Whether the file system with a node's cluster folder is nearly full. etcd keeps its log and snapshots there, and
/// ends when a write fails.
fn folder_is_low(folder: &std::path::Path) -> bool {
    let Ok(seen) = rustix::fs::statvfs(folder) else {
        // If the check fails, the next failing operation reports it.
        return false;
    };
    is_low(
        seen.f_bavail.saturating_mul(seen.f_frsize),
        seen.f_blocks.saturating_mul(seen.f_frsize),
    )
}

fn is_low(free_bytes: u64, total_bytes: u64) -> bool {
    free_bytes < FOLDER_FREE_BYTES_MIN.min(total_bytes / 10)
}

/// This node's certificate as a client of etcd.
fn client_tls(trust: &Trust) -> EtcdTls {
    let certificate = trust.certificate();
    EtcdTls {
        ca: trust.authorities().certificates_pem().into_bytes(),
        client: Some((
            certificate.certificate_pem.into_bytes(),
            certificate.key_pem.into_bytes(),
        )),
    }
}

struct Members {
    side: Arc<EtcdSide>,
    cluster: Arc<ClusterMember>,
    is_stopping: Arc<AtomicBool>,
    /// Changes with the certificate of this node.
    expires: watch::Receiver<Timestamp>,
    /// Looks at the members that failed since the last one that did not.
    failed_count: u32,
}

impl Step for Members {
    async fn step(&mut self) -> StepResult {
        if self.is_stopping.load(Ordering::Acquire) {
            return Ok(Next::End);
        }
        let (side, cluster) = (&self.side, &self.cluster);
        if self.expires.has_changed().unwrap_or(false) {
            self.expires.borrow_and_update();
            side.show_certificate();
        }
        side.look_at_members().await;
        cluster.set_folder_is_low(folder_is_low(side.folder.path()));
        match side.look(cluster).await {
            Ok(()) => self.failed_count = 0,
            Err(error) => {
                tracing::debug!(error, "the members of etcd");
                self.failed_count = self.failed_count.saturating_add(1);
            }
        }
        if let Err(error) = side.tend_key(cluster).await {
            tracing::debug!(error, "the key of the cluster's CA");
        }
        side.tend_rotation(cluster).await;
        if self.failed_count >= FAILED_MAX {
            let view = cluster.view();
            let nodes = view.nodes.values().map(|it| it.value.clone()).collect();
            if is_removed(&side.trust, nodes).await {
                cluster.was_removed();
            }
        }
        Ok(Next::Period)
    }
}

impl EtcdSide {
    /// Starts this node's member, if it runs one, and waits until etcd answers.
    pub async fn start(
        folder: Arc<ClusterFolder>,
        trust: Arc<Trust>,
        membership: Arc<Mutex<Membership>>,
    ) -> Result<Arc<Self>, NodeError> {
        let current = membership.lock().clone();
        let mut member = None;
        let settings = match &current.etcd {
            EtcdSource::Given { endpoints, .. } => {
                let mut settings = EtcdSettings::new(endpoints.clone());
                // An etcd of the cluster may have no TLS; if it has, its CA is the cluster's.
                let is_tls = endpoints.iter().any(|url| url.starts_with("https://"));
                settings.tls = is_tls.then(|| client_tls(&trust));
                settings
            }
            EtcdSource::Own {
                runs_member,
                members,
                ..
            } => {
                if *runs_member {
                    if !folder.revoked_path().exists() {
                        let none = trust
                            .authority()
                            .revocation_list(&[], trust.env().clock.now());
                        folder
                            .save_revoked(&none.map_err(failed)?)
                            .map_err(failed)?;
                    }
                    let settings = member_settings(&folder, &trust, &current)?;
                    member = Some(EtcdMember::start(settings).await.map_err(failed)?);
                }
                let urls = members.iter().map(|member| member.client_url.clone());
                let mut settings = EtcdSettings::new(urls.collect());
                settings.tls = Some(client_tls(&trust));
                settings
            }
        };
        let is_known = current.stage == Stage::Member;
        let (asks, known) = (&trust, &folder);
        let is_gone = || async move { is_known && is_removed(asks, nodes_known(known)).await };
        let Some(etcd) = connect(settings, member.as_ref(), is_gone).await? else {
            return Err(super::removed(&current, folder.path()));
        };
        let side = Arc::new(Self {
            etcd,
            folder,
            trust,
            member: tokio::sync::Mutex::new(member),
            membership,
            missed: AtomicU32::new(0),
            keeps: watch::Sender::new(false),
            users: Mutex::default(),
            revoked: Mutex::default(),
            is_open: AtomicBool::new(false),
            rotation_problem: Mutex::default(),
            health: Mutex::default(),
        });
        side.look_at_keeping();
        if let EtcdSource::Own {
            runs_member: true,
            joins: false,
            members,
            ..
        } = &current.etcd
            && members.len() == 1
        {
            side.ask_for_users(&current).await.map_err(failed)?;
        }
        side.look_at_members().await;
        Ok(side)
    }

    /// Makes etcd require users, before it has other contents. After a kill at any step, either etcd accepts every
    /// client, or it requires users and this node has all rights: the next start does the rest.
    async fn ask_for_users(&self, current: &Membership) -> Result<(), CoordinatorError> {
        let keys = Keys::new(&current.cluster_name);
        let writes = keys.of_all_nodes();
        self.etcd.prepare_rights(keys.prefix(), &writes).await?;
        let own = current.node.to_string();
        self.etcd.set_user(&own, UserRights::All, &[]).await?;
        self.etcd.ask_for_users().await
    }

    /// Whether other nodes say that this node, a former member, no longer belongs to the cluster.
    pub async fn is_gone(&self, own: &Membership) -> bool {
        let is_known = own.stage == Stage::Member && self.is_own();
        is_known && is_removed(&self.trust, nodes_known(&self.folder)).await
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.trust.node()
    }

    pub fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Whether this node's member of etcd, if it runs one, has read the trusted CAs.
    pub fn is_member_current(&self) -> bool {
        let runs_member = match self.membership.lock().etcd {
            EtcdSource::Given { .. } => false,
            EtcdSource::Own { runs_member, .. } => runs_member,
        };
        !runs_member || !self.is_open.load(Ordering::Acquire)
    }

    /// A member that was not healthy at the last check, if there is one, with the reason.
    pub fn unwell_member(&self) -> Option<String> {
        let health = self.health.lock();
        let unwell = health.members.iter().find_map(|member| {
            let problem = member.problem.as_ref()?;
            Some(format!("{} at {}: {problem}", member.name, member.url))
        });
        unwell.or_else(|| health.problem.clone())
    }

    /// Called after the trusted CAs changed: clients of etcd use them at once, and the member after its next start.
    pub fn trust_changed(&self) {
        self.is_open.store(true, Ordering::Release);
        self.show_certificate();
    }

    /// Presents this node's present certificate to etcd, if etcd uses TLS.
    pub fn show_certificate(&self) {
        if self.is_own() || self.given_with_tls().is_some() {
            self.etcd.set_tls(client_tls(&self.trust));
        }
    }

    /// The address of an etcd that others run with TLS, if the cluster uses one.
    pub fn given_with_tls(&self) -> Option<String> {
        match &self.membership.lock().etcd {
            EtcdSource::Given { endpoints, .. } => {
                let mut endpoints = endpoints.iter();
                endpoints.find(|url| url.starts_with("https://")).cloned()
            }
            EtcdSource::Own { .. } => None,
        }
    }

    /// The fault that keeps this node from its next step of a CA rotation.
    pub fn rotation_problem(&self) -> Option<String> {
        self.rotation_problem.lock().clone()
    }

    async fn tend_rotation(&self, cluster: &ClusterMember) {
        let problem = rotation::tend(self, cluster).await.err();
        let mut before = self.rotation_problem.lock();
        if problem != *before
            && let Some(problem) = &problem
        {
            tracing::warn!(
                problem,
                "replacing the CA of the cluster fails; the server retries"
            );
        }
        *before = problem;
    }

    /// Updates whether this node admits others now.
    pub fn look_at_keeping(&self) {
        let has_key = self.trust.authority().has_key();
        let keeps = keeps(&self.membership.lock().etcd, has_key);
        self.keeps
            .send_if_modified(|before| std::mem::replace(before, keeps) != keeps);
    }

    /// The nodes that should have the key of the CA.
    pub fn holders(&self, view: &MapView) -> BTreeSet<NodeId> {
        let with_member = self.with_member();
        holders(view, |node| with_member.contains(&node.name), self.is_own())
    }

    /// The nodes that make CAs, and record that in the map.
    pub fn makers(&self, view: &MapView) -> BTreeSet<NodeId> {
        let mut makers = self.holders(view);
        if self.is_own() {
            let with_member = self.with_member();
            makers.retain(|id| {
                let node = view.nodes.get(id);
                node.is_some_and(|node| with_member.contains(&node.value.name))
            });
        }
        makers
    }

    /// Whether this node may write the keys that admit clients and that give rights: see [`Keys::is_guarded`]. In an
    /// etcd that others run, its operators decide on rights.
    pub fn writes_guarded(&self) -> bool {
        match self.membership.lock().etcd {
            EtcdSource::Given { .. } => true,
            EtcdSource::Own { runs_member, .. } => runs_member,
        }
    }

    /// Fetches or deletes the key of the CA, as the map says.
    async fn tend_key(&self, cluster: &ClusterMember) -> Result<(), String> {
        let view = cluster.view();
        let own = cluster.node();
        // The list of nodes may be incomplete or unreadable, and then show too few of them.
        if !view.nodes.contains_key(&own) || view.is_unsure_of_nodes(cluster.map().keys()) {
            return Ok(());
        }
        let is_holder = self.holders(&view).contains(&own);
        let authorities = self.trust.authorities();
        // During a rotation, the key of the second CA is fetched.
        let leaves = authorities.all().find(|it| it.has_key() && !is_holder);
        let issuing = authorities.issuing();
        let done = match leaves {
            Some(leaves) => self.trust.drop_key(leaves.fingerprint()).await,
            None if is_holder && !issuing.has_key() => {
                self.trust.fetch_key(issuing.fingerprint()).await
            }
            None => return Ok(()),
        };
        self.look_at_keeping();
        // With the key its certificate has the name of members, and without it not.
        self.trust.renew_soon();
        done.map_err(told)
    }

    fn is_own(&self) -> bool {
        matches!(self.membership.lock().etcd, EtcdSource::Own { .. })
    }

    /// Whether this node admits and removes nodes, now and later.
    pub fn keeps(&self) -> watch::Receiver<bool> {
        self.keeps.subscribe()
    }

    /// The nodes with a member, as far as known; none where others run etcd.
    pub fn with_member(&self) -> Vec<String> {
        match &self.membership.lock().etcd {
            EtcdSource::Given { .. } => Vec::new(),
            EtcdSource::Own { members, .. } => {
                let names = members.iter().map(|member| member.node_name.clone());
                names.collect()
            }
        }
    }

    /// The node that removes replaced nodes.
    pub fn keeper(&self, view: &MapView) -> Option<NodeId> {
        let with_member = self.with_member();
        leader(view, |node| {
            !self.is_own() || with_member.contains(&node.name)
        })
    }

    /// Makes a node that is new in the map a user. Where others run etcd, its operators do that.
    pub async fn admit(&self, node: NodeId) -> Result<(), CoordinatorError> {
        match self.is_own() {
            true => {
                let keys = Keys::new(&self.membership.lock().cluster_name);
                let own = keys.of_node(node);
                let name = node.to_string();
                self.etcd.set_user(&name, UserRights::Keys, &own).await
            }
            false => Ok(()),
        }
    }

    /// Revokes all rights of a draining node in etcd. If it stays, it gets them back automatically.
    pub async fn revoke(&self, node: NodeId) -> Result<(), CoordinatorError> {
        match self.is_own() {
            true => self.etcd.remove_user(&node.to_string()).await,
            false => Ok(()),
        }
    }

    /// The state of the members at the last check.
    pub fn health(&self) -> EtcdHealth {
        self.health.lock().clone()
    }

    /// Asks all members for their state. An unresponsive one takes the time of one attempt.
    pub async fn look_at_members(&self) -> EtcdHealth {
        let health = match self.etcd.member_states().await {
            Ok(states) => {
                let members = states.into_iter().map(|(info, problem)| EtcdMemberHealth {
                    url: info.client_urls.first().cloned().unwrap_or_default(),
                    // A member has no name before its first start.
                    name: match info.name.is_empty() {
                        true => info.peer_urls.first().cloned().unwrap_or_default(),
                        false => info.name,
                    },
                    problem: problem.as_ref().map(problem_of),
                });
                EtcdHealth {
                    members: members.collect(),
                    problem: None,
                }
            }
            Err(error) => {
                // Without a majority the members do not report the list. Asks the known ones individually.
                let known = match &self.membership.lock().etcd {
                    EtcdSource::Own { members, .. } => members.clone(),
                    EtcdSource::Given { .. } => Vec::new(),
                };
                let asked = known.into_iter().map(|entry| async move {
                    let problem = self.etcd.check_at(&entry.client_url).await.err();
                    EtcdMemberHealth {
                        name: entry.node_name,
                        problem: problem.as_ref().map(problem_of),
                        url: entry.client_url,
                    }
                });
                EtcdHealth {
                    members: futures_util::future::join_all(asked).await,
                    problem: Some(error.to_string()),
                }
            }
        };
        *self.health.lock() = health.clone();
        health
    }

    pub async fn stop(&self) {
        self.stop_within(MEMBER_STOP_MAX).await;
    }

    pub async fn stop_within(&self, patience: Duration) {
        if let Some(member) = self.member.lock().await.take() {
            member.stop_within(patience).await;
        }
    }

    /// Starts the job that follows the members and the certificate, and adds this node's member when it should run one;
    /// until the node stops.
    pub fn tend(
        self: &Arc<Self>,
        env: &Env,
        cluster: &Arc<ClusterMember>,
        is_stopping: &Arc<AtomicBool>,
    ) {
        let members = Members {
            side: Arc::clone(self),
            cluster: Arc::clone(cluster),
            is_stopping: Arc::clone(is_stopping),
            expires: self.trust.expires(),
            failed_count: 0,
        };
        Job::every("etcd-members", LOOK)
            .from_now()
            .start(env, members);
    }

    async fn look(&self, cluster: &ClusterMember) -> Result<(), String> {
        let EtcdSource::Own { runs_member, .. } = self.membership.lock().etcd.clone() else {
            return Ok(());
        };
        let members = self
            .etcd
            .members()
            .await
            .map_err(|error| error.to_string())?;
        self.note(&members)?;
        let view = cluster.view();
        let of_node = |node: &NodeRecord| members.iter().find(|member| member.name == node.name);
        let records = || view.nodes.values().map(|node| &node.value);
        let staying = || records().filter(|node| !node.draining);
        let is_alive = |node: &&NodeRecord| view.alive.contains_key(&node.id);
        let wanted = members_wanted(staying().count());
        let on_staying = staying().filter(|node| of_node(node).is_some()).count();
        let Some(own) = records().find(|node| node.id == cluster.node()) else {
            return Ok(());
        };
        let has_member = |node: &NodeRecord| of_node(node).is_some();
        let leads = leader(&view, has_member) == Some(own.id);
        if runs_member && let Err(error) = self.tend_rights(cluster, &view, has_member, leads).await
        {
            tracing::warn!(
                error,
                "the users of etcd could not be updated; the server retries"
            );
        }
        if runs_member {
            let peer_url = {
                let membership = self.membership.lock();
                urls_of(&membership).map_err(|error| error.to_string())?.1
            };
            let known = members
                .iter()
                .find(|member| member.peer_urls.contains(&peer_url));
            let Some(known) = known else {
                return self.missed().await;
            };
            self.missed.store(0, Ordering::Release);
            // With one more member than wanted etcd survives no more losses, and with two it survives fewer.
            let all_are_well = records().all(|node| is_alive(&node)) && members.len() == on_staying;
            let mut with_member: Vec<&NodeRecord> =
                staying().filter(|node| of_node(node).is_some()).collect();
            with_member.sort_by_key(|node| (node.joined, node.id));
            let is_spare = all_are_well
                && on_staying > wanted
                && with_member.last().is_some_and(|last| last.id == own.id);
            if own.draining && on_staying >= wanted || is_spare {
                tracing::info!(own.draining, "removing this node's etcd member");
                let removed = self.etcd.remove_member(known.id).await;
                removed.map_err(|error| error.to_string())?;
                return self.end_member().await;
            }
        }
        let lost = records()
            .filter(|node| node.draining && !is_alive(node))
            .find_map(of_node);
        if let Some(lost) = lost
            && leads
        {
            tracing::info!(
                member = lost.name,
                "removing the etcd member of a lost node"
            );
            let removed = self.etcd.remove_member(lost.id).await;
            return removed.map_err(|error| error.to_string());
        }
        if runs_member || own.draining {
            return Ok(());
        }
        // The member of an earlier machine with this node's identity: it cannot come back, and keeps others from
        // being added.
        if let Some(stale) = of_node(own) {
            tracing::info!("removing the etcd member of this node's earlier machine");
            let removed = self.etcd.remove_member(stale.id).await;
            return removed.map_err(|error| error.to_string());
        }
        let all_started = members.iter().all(|member| !member.name.is_empty());
        let has_key = self.trust.authority().has_key();
        if all_started && has_key && next_member(&view, has_member) == Some(own.id) {
            // The other members would not accept it.
            if !self.trust.has_member_name() {
                self.trust.renew_soon();
                return Ok(());
            }
            self.keep_revoked(cluster, &view)?;
            self.add().await?;
        }
        Ok(())
    }

    /// Makes the users and rights in etcd match the map. `leads`: among the nodes with a member, this one changes users.
    async fn tend_rights(
        &self,
        cluster: &ClusterMember,
        view: &MapView,
        has_member: impl Fn(&NodeRecord) -> bool,
        leads: bool,
    ) -> Result<(), String> {
        self.keep_revoked(cluster, view)?;
        if leads {
            self.set_users(cluster, users_of(view, has_member)).await?;
            self.forget_expired(cluster, view).await?;
        }
        self.close_connections(cluster).await
    }

    /// Updates the list of certificates that members refuse.
    fn keep_revoked(&self, cluster: &ClusterMember, view: &MapView) -> Result<(), String> {
        // An unreadable part of the map may be the removal of a node.
        if view.is_unsure_of_nodes(cluster.map().keys()) {
            return Ok(());
        }
        let removed = view.removed.values().map(|removed| Revoked {
            node: removed.value.node,
            at: removed.value.at,
        });
        let revoked: Vec<Revoked> = removed.collect();
        let authority = self.trust.authority();
        let written = (authority.fingerprint(), revoked);
        if self.revoked.lock().as_ref() == Some(&written) {
            return Ok(());
        }
        let now = self.trust.env().clock.now();
        let list = authority.revocation_list(&written.1, now);
        let is_more = self
            .folder
            .save_revoked(&list.map_err(told)?)
            .map_err(told)?;
        if is_more {
            self.is_open.store(true, Ordering::Release);
        }
        *self.revoked.lock() = Some(written);
        Ok(())
    }

    async fn set_users(&self, cluster: &ClusterMember, wanted: Users) -> Result<(), String> {
        let now = self.trust.env().clock.monotonic();
        let is_done = |(done, at): &(Users, Duration)| {
            *done == wanted && now.saturating_sub(*at) < USERS_LOOK
        };
        if self.users.lock().as_ref().is_some_and(is_done) {
            return Ok(());
        }
        // An older or newer program may have given other rights.
        let keys = cluster.map().keys();
        let writes = keys.of_all_nodes();
        let set = self.etcd.set_shared_rights(keys.prefix(), &writes);
        set.await.map_err(told)?;
        let users = self.etcd.users().await.map_err(told)?;
        // After the users: a node is in the map before it is made a user, so none loses here the rights that it got
        // meanwhile.
        let (nodes, _) = cluster.map().nodes().await.map_err(told)?;
        for node in nodes.iter().map(|node| &node.value) {
            let name = node.id.to_string();
            // A node that is being removed is no user any more, while it is still in the map.
            if node.draining && !users.contains(&name) {
                continue;
            }
            let rights = wanted.get(&node.id).map_or(UserRights::Keys, |user| user.0);
            let own = keys.of_node(node.id);
            let set = self.etcd.set_user(&name, rights, &own);
            set.await.map_err(told)?;
        }
        let is_node = |user: &&String| nodes.iter().any(|node| node.value.id.to_string() == **user);
        for user in users.iter().filter(|user| !is_node(user)) {
            tracing::info!(
                user,
                "removing a user of etcd that is not a node of the cluster"
            );
            self.etcd.remove_user(user).await.map_err(told)?;
        }
        *self.users.lock() = Some((wanted, now));
        Ok(())
    }

    /// Forgets removed nodes whose certificates have all expired.
    async fn forget_expired(&self, cluster: &ClusterMember, view: &MapView) -> Result<(), String> {
        let now = self.trust.env().clock.now().seconds;
        let is_over = |at: i64| now.saturating_sub(at) > REVOKED_FOR.as_secs() as i64;
        let over = view.removed.values();
        for removed in over.filter(|removed| is_over(removed.value.at.seconds)) {
            let forgotten = cluster.map().forget_removed(removed).await;
            forgotten.map_err(told)?;
        }
        Ok(())
    }

    /// Restarts this node's member if it may have connections of a node that was removed since its start, or of a CA
    /// that is not trusted any more: etcd checks certificates and rights at the start of a connection or a watch, and
    /// reads CAs at its own start. One member at a time, while all are healthy.
    async fn close_connections(&self, cluster: &ClusterMember) -> Result<(), String> {
        let health = self.health();
        let is_well =
            health.problem.is_none() && health.members.iter().all(|it| it.problem.is_none());
        if !is_well || !self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        let (node, client_url) = {
            let membership = self.membership.lock();
            let urls = urls_of(&membership).map_err(told)?;
            (membership.node, urls.0)
        };
        let begun = cluster.map().begin_member_restart(node).await;
        let Some(lease) = begun.map_err(told)? else {
            return Ok(());
        };
        let states = self
            .member
            .lock()
            .await
            .as_ref()
            .map(EtcdMember::start_again);
        if let Some(mut states) = states {
            tracing::info!(
                "restarting this node's etcd member: a node was removed, or the trusted CAs changed"
            );
            let deadline = tokio::time::Instant::now() + MEMBER_RESTART_MAX;
            let _ = tokio::time::timeout_at(deadline, states.changed()).await;
            self.is_open.store(false, Ordering::Release);
            while let Err(error) = self.etcd.check_at(&client_url).await {
                if tokio::time::Instant::now() >= deadline {
                    return Err(format!("its etcd member does not restart: {error}"));
                }
                tokio::time::sleep(RESTART_LOOK).await;
            }
        }
        let ended = cluster.map().end_member_restart(lease).await;
        ended.map_err(told)
    }

    /// This node runs a member that etcd does not know: another node removed it, or an earlier process of this node did.
    async fn missed(&self) -> Result<(), String> {
        if self.missed.fetch_add(1, Ordering::AcqRel) + 1 < MISSED_MAX {
            return Ok(());
        }
        tracing::warn!("etcd no longer knows this node's member: the member stops");
        self.end_member().await
    }

    /// Ends this node's member, which was removed. Deletes all its data, so that another one can be added later.
    async fn end_member(&self) -> Result<(), String> {
        self.stop().await;
        let folder = self.folder.path().join(FOLDER);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("removing {}: {error}", folder.display()));
            }
            _ => {}
        }
        self.missed.store(0, Ordering::Release);
        self.change(|etcd| {
            if let EtcdSource::Own {
                runs_member, joins, ..
            } = etcd
            {
                (*runs_member, *joins) = (false, false);
            }
        })
    }

    /// Whether a node still has a member.
    pub async fn has_member(&self, node: &NodeRecord) -> Result<bool, String> {
        if let EtcdSource::Given { .. } = self.membership.lock().etcd {
            return Ok(false);
        }
        let members = self.etcd.members().await;
        let members = members.map_err(|error| error.to_string())?;
        Ok(members.iter().any(|member| member.name == node.name))
    }

    /// Stores the present members.
    fn note(&self, members: &[EtcdMemberInfo]) -> Result<(), String> {
        let started = members
            .iter()
            .filter(|member| !member.client_urls.is_empty());
        let entries: Vec<EtcdMemberEntry> = started
            .filter_map(|member| {
                Some(EtcdMemberEntry {
                    node_name: member.name.clone(),
                    client_url: member.client_urls.first()?.clone(),
                    peer_url: member.peer_urls.first()?.clone(),
                })
            })
            .collect();
        if entries.is_empty() {
            return Ok(());
        }
        let urls: Vec<String> = entries
            .iter()
            .map(|entry| entry.client_url.clone())
            .collect();
        self.etcd.set_endpoints(&urls);
        self.change(|etcd| {
            if let EtcdSource::Own { members, .. } = etcd {
                *members = entries;
            }
        })
    }

    /// Changes the folder's record of etcd, if it differs.
    fn change(&self, change: impl FnOnce(&mut EtcdSource)) -> Result<(), String> {
        let mut membership = self.membership.lock();
        let mut changed = membership.clone();
        change(&mut changed.etcd);
        if changed == *membership {
            return Ok(());
        }
        self.folder
            .save_membership(&changed)
            .map_err(|error| error.to_string())?;
        *membership = changed;
        drop(membership);
        self.look_at_keeping();
        Ok(())
    }

    async fn add(&self) -> Result<(), String> {
        let (own, peer_url) = {
            let membership = self.membership.lock();
            let urls = urls_of(&membership).map_err(told)?;
            (membership.node_name.clone(), urls.1)
        };
        tracing::info!("adding this node's member to etcd");
        let known = self.etcd.members().await.map_err(told)?;
        let is_added = |member: &EtcdMemberInfo| member.peer_urls.contains(&peer_url);
        let all = match known.iter().any(is_added) {
            // An earlier attempt came so far.
            true => known,
            false => {
                let added = self.etcd.add_member(&peer_url).await;
                added.map_err(told)?
            }
        };
        let entries = all.iter().filter_map(|member| {
            let peer = member.peer_urls.first()?.clone();
            let is_own = peer == peer_url;
            Some(EtcdMemberEntry {
                node_name: if is_own {
                    own.clone()
                } else {
                    member.name.clone()
                },
                client_url: match member.client_urls.first() {
                    Some(url) => url.clone(),
                    None => urls_of(&self.membership.lock()).ok()?.0,
                },
                peer_url: peer,
            })
        });
        let entries: Vec<EtcdMemberEntry> = entries.collect();
        self.change(|etcd| {
            if let EtcdSource::Own {
                members,
                runs_member,
                joins,
                ..
            } = etcd
            {
                (*runs_member, *joins) = (true, true);
                *members = entries;
            }
        })?;
        let current = self.membership.lock().clone();
        let settings = member_settings(&self.folder, &self.trust, &current).map_err(told)?;
        // It has no connections yet.
        self.is_open.store(false, Ordering::Release);
        let started = EtcdMember::start(settings).await.map_err(told)?;
        *self.member.lock().await = Some(started);
        Ok(())
    }
}

/// The URLs of this node's member: for clients, for other members.
pub fn urls_of(membership: &Membership) -> Result<(String, String), NodeError> {
    let EtcdSource::Own {
        client_port,
        peer_port,
        ..
    } = &membership.etcd
    else {
        return Err(failed("this node runs no etcd member"));
    };
    let host = host_of(&membership.internal_address).map_err(failed)?;
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    Ok((
        format!("https://{host}:{client_port}"),
        format!("https://{host}:{peer_port}"),
    ))
}

fn member_settings(
    folder: &ClusterFolder,
    trust: &Trust,
    membership: &Membership,
) -> Result<EtcdMemberSettings, NodeError> {
    let EtcdSource::Own {
        members,
        joins,
        made_anew,
        ..
    } = &membership.etcd
    else {
        return Err(failed("this node runs no etcd member"));
    };
    let (client_url, peer_url) = urls_of(membership)?;
    let members = members.iter();
    let members = members.map(|member| (member.node_name.clone(), member.peer_url.clone()));
    Ok(EtcdMemberSettings {
        program: PathBuf::from(PROGRAM),
        name: membership.node_name.clone(),
        folder: folder.path().join(FOLDER),
        peer_url,
        client_url,
        members: members.collect(),
        joins: *joins,
        cluster: match made_anew {
            Some(seconds) => format!("{}-{seconds}", membership.cluster),
            None => membership.cluster.to_string(),
        },
        tls: Some(EtcdMemberTls {
            ca: folder.authority_path(),
            certificate: folder.certificate_path(),
            key: folder.key_path(),
            revoked: folder.revoked_path(),
            peer_name: trust.authority().member_name(),
            client: client_tls(trust),
        }),
    })
}

/// The members of etcd that other nodes run, if this node runs one and one of them answers at once.
pub async fn others(trust: &Trust, membership: &Membership) -> Option<Etcd> {
    let EtcdSource::Own {
        runs_member: true,
        members,
        ..
    } = &membership.etcd
    else {
        return None;
    };
    let others = members
        .iter()
        .filter(|member| member.node_name != membership.node_name);
    let urls: Vec<String> = others.map(|member| member.client_url.clone()).collect();
    if urls.is_empty() {
        return None;
    }
    let mut settings = EtcdSettings::new(urls);
    settings.tls = Some(client_tls(trust));
    Etcd::connect(settings).await.ok()
}

/// Waits until etcd answers; `None` if this node no longer belongs to the cluster, and gets no answer for that reason.
async fn connect<F: Future<Output = bool>>(
    settings: EtcdSettings,
    member: Option<&EtcdMember>,
    is_gone: impl Fn() -> F,
) -> Result<Option<Etcd>, NodeError> {
    let mut asked = None;
    let deadline = tokio::time::Instant::now() + START_PATIENCE;
    let mut is_told = false;
    loop {
        let error = match Etcd::connect(settings.clone()).await {
            Ok(etcd) => return Ok(Some(etcd)),
            Err(error) => error,
        };
        let now = tokio::time::Instant::now();
        if asked.is_none_or(|asked| now >= asked + REMOVED_LOOK) {
            asked = Some(now);
            if is_gone().await {
                return Ok(None);
            }
        }
        let is_passing = error.kind() == cairn_cluster::ErrorKind::Retry;
        if !is_passing || tokio::time::Instant::now() >= deadline {
            let state = member.map(|member| format!("; this node's member: {:?}", member.state()));
            return Err(failed(format!("{error}{}", state.unwrap_or_default())));
        }
        if !is_told {
            tracing::info!(%error, "waiting for etcd");
            is_told = true;
        }
        tokio::time::sleep(START_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Timestamp;
    use cairn_cluster::Revision;
    use cairn_cluster::map::{AliveRecord, ProcessNonce, VersionRange, Versioned, WEIGHT_NORMAL};

    use super::*;

    #[test]
    fn members_are_an_odd_number_that_two_may_leave_when_there_are_enough_nodes() {
        let wanted: Vec<usize> = (0..=8).map(members_wanted).collect();
        assert_eq!(wanted, [1, 1, 1, 3, 3, 5, 5, 5, 5]);
    }

    fn view(count: u128, away: &[u128], draining: &[u128]) -> MapView {
        let mut view = MapView::default();
        for id in 1..=count {
            let mut value = record(id);
            value.draining = draining.contains(&id);
            let revision = Revision(1);
            view.nodes.insert(NodeId(id), Versioned { revision, value });
            if !away.contains(&id) {
                let value = AliveRecord::new(NodeId(id), ProcessNonce(id), Timestamp::new(1, 0));
                view.alive.insert(NodeId(id), Versioned { revision, value });
            }
        }
        view
    }

    #[test]
    fn one_node_with_a_member_changes_users() {
        let leader = |away: &[u128], draining: &[u128], members: &[u128]| {
            let view = view(3, away, draining);
            let leader = leader(&view, |node| members.contains(&node.id.0));
            leader.map(|node| node.0)
        };
        assert_eq!(leader(&[], &[], &[2, 3]), Some(2));
        assert_eq!(leader(&[2], &[], &[2, 3]), Some(3));
        assert_eq!(leader(&[], &[2], &[2, 3]), Some(3));
        // No other node makes the next holder of a member a user.
        assert_eq!(leader(&[], &[2], &[2]), Some(2));
        assert_eq!(leader(&[2], &[], &[2]), None);
    }

    #[test]
    fn the_key_of_the_ca_is_on_three_nodes_and_with_each_member() {
        let holders = |count: u128, draining: &[u128], members: Option<&[u128]>| {
            let view = view(count, &[], draining);
            let has = |node: &NodeRecord| members.is_some_and(|it| it.contains(&node.id.0));
            let holders = holders(&view, has, members.is_some());
            holders.into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(holders(1, &[], Some(&[1])), [1]);
        // The loss of the node with etcd must not lose the key.
        assert_eq!(holders(2, &[], Some(&[1])), [1, 2]);
        assert_eq!(holders(4, &[], Some(&[1, 2, 3])), [1, 2, 3]);
        assert_eq!(holders(7, &[], Some(&[1, 2, 3, 5, 7])), [1, 2, 3, 5, 7]);
        assert_eq!(holders(7, &[], Some(&[1, 2, 3, 5])), [1, 2, 3, 4, 5]);
        // A leaving node has the key as long as it has a member.
        assert_eq!(holders(4, &[2], Some(&[1, 2, 3])), [1, 2, 3, 4]);
        assert_eq!(holders(4, &[2], Some(&[1, 3, 4])), [1, 3, 4]);
        // Where others run etcd.
        assert_eq!(holders(2, &[], None), [1, 2]);
        assert_eq!(holders(5, &[], None), [1, 2, 3]);
        assert_eq!(holders(5, &[2], None), [1, 3, 4]);
    }

    #[test]
    fn nodes_with_a_member_and_the_next_one_may_do_all() {
        let all = |count: u128, away: &[u128], draining: &[u128], members: &[u128]| {
            let view = view(count, away, draining);
            let users = users_of(&view, |node| members.contains(&node.id.0));
            assert_eq!(users.len() as u128, count);
            let all = users.into_iter().filter(|it| it.1.0 == UserRights::All);
            all.map(|it| it.0.0).collect::<Vec<_>>()
        };
        assert_eq!(all(2, &[], &[], &[1]), [1]);
        // A second and a third member are wanted, one after the other.
        assert_eq!(all(3, &[], &[], &[1]), [1, 2]);
        assert_eq!(all(3, &[], &[], &[1, 2]), [1, 2, 3]);
        assert_eq!(all(3, &[2], &[], &[1]), [1, 3]);
        assert_eq!(all(6, &[], &[], &[1, 2, 3, 4, 5]), [1, 2, 3, 4, 5]);
        // A leaving node has to remove its own member.
        assert_eq!(all(6, &[], &[2], &[1, 2, 3, 4, 5]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(all(6, &[], &[2], &[1, 3, 4, 5, 6]), [1, 3, 4, 5, 6]);
    }

    fn record(id: u128) -> NodeRecord {
        NodeRecord {
            id: NodeId(id),
            name: format!("n{id}"),
            internal_address: format!("10.0.0.{id}:7400"),
            external_address: format!("10.0.0.{id}"),
            versions: VersionRange {
                oldest: 1,
                newest: 1,
            },
            joined: Timestamp::new(id as i64, 0),
            draining: false,
            replaced_by: None,
            maintenance_until: None,
            weight: WEIGHT_NORMAL,
        }
    }

    #[test]
    fn a_folder_is_nearly_full_below_a_tenth_or_half_a_gibibyte() {
        let mib = 1 << 20;
        let cases = [
            ("a large one with room", 600 * mib, 1_000_000 * mib, false),
            ("a large one without", 500 * mib, 1_000_000 * mib, true),
            ("a small one with room", 20 * mib, 100 * mib, false),
            ("a small one without", 9 * mib, 100 * mib, true),
        ];
        for (name, free, total, want) in cases {
            assert_eq!(is_low(free, total), want, "{name}");
        }
    }
}
