//! The members of etcd that nodes of the cluster run.
//!
//! Owns: whether this node runs a member, the start of it, which members are asked.
//! Must not know: what is kept in etcd.
//!
//! One node runs one, three nodes three, five and more five, so that any two may go. Which nodes these are follows from
//! the order in which they joined; each adds its own member, one after the other, since etcd refuses another one while
//! one of those that it has is not well. A node that drains removes its own once the nodes that stay have enough. One that
//! drains and is lost cannot, and keeps others from being added: one of those that stay removes it. Where nodes have left
//! and there are more members than are wanted, the last of the nodes that have one removes its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_cluster::map::NodeRecord;
use cairn_cluster::{
    CoordinatorError, Etcd, EtcdMember, EtcdMemberInfo, EtcdMemberSettings, EtcdMemberTls,
    EtcdSettings, EtcdTls, MEMBER_STOP_MAX,
};
use cairn_owner::ClusterMember;
use cairn_trust::{ClusterFolder, EtcdMemberEntry, EtcdSource, Membership, Trust, host_of};
use parking_lot::Mutex;

use crate::error::NodeError;

const PROGRAM: &str = "etcd";
/// Below the cluster folder.
pub const FOLDER: &str = "etcd";
/// How long a start waits for etcd.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is tried meanwhile.
const START_PAUSE: Duration = Duration::from_millis(500);
/// How often it is looked which members there are.
const LOOK: Duration = Duration::from_secs(3);
/// A cluster folder with less free space is nearly full, and so is one of a small file system with less than a tenth free: four
/// files of etcd's log have 64 MB each, and a snapshot is as large as its data.
const FOLDER_FREE_BYTES_MIN: u64 = 512 << 20;
/// etcd 3.4 tells of members what one of them knows: this node's is gone if it was missed so often in a row.
const MISSED_MAX: u32 = 3;

/// What this node has to do with etcd.
pub struct EtcdSide {
    pub etcd: Etcd,
    folder: Arc<ClusterFolder>,
    trust: Arc<Trust>,
    member: tokio::sync::Mutex<Option<EtcdMember>>,
    membership: Arc<Mutex<Membership>>,
    /// How often in a row etcd did not know this node's member.
    missed: AtomicU32,
    /// How the members were when they were asked last.
    health: Mutex<EtcdHealth>,
}

/// How the members of etcd are.
#[derive(Clone, Debug, Default)]
pub struct EtcdHealth {
    pub members: Vec<EtcdMemberHealth>,
    /// Why nobody says who is a member. `members` are those that this node knew last then.
    pub problem: Option<String>,
}

#[derive(Clone, Debug)]
pub struct EtcdMemberHealth {
    pub name: String,
    pub url: String,
    /// Why it does not count.
    pub problem: Option<String>,
}

/// So many members run with so many nodes.
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

/// Why a member does not count, in few words: its address is told beside.
fn problem_of(error: &CoordinatorError) -> String {
    match error {
        CoordinatorError::TimedOut { after, .. } => {
            format!("it does not answer within {} ms", after.as_millis())
        }
        CoordinatorError::Unreachable(_) => "it cannot be reached".to_owned(),
        CoordinatorError::NoLeader(_) => "it has no leader: the others do not reach it".to_owned(),
        other => other.to_string(),
    }
}

/// Whether the file system with a node's cluster folder is nearly full. etcd keeps its log and snapshots there, and ends when a
/// write fails.
fn folder_is_low(folder: &std::path::Path) -> bool {
    let Ok(seen) = rustix::fs::statvfs(folder) else {
        // Who cannot be asked is told of by what fails next.
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

/// This node's certificate as etcd's client shows it.
fn client_tls(trust: &Trust) -> EtcdTls {
    let certificate = trust.certificate();
    EtcdTls {
        ca: trust.authority().certificate_pem().as_bytes().to_vec(),
        client: Some((
            certificate.certificate_pem.into_bytes(),
            certificate.key_pem.into_bytes(),
        )),
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
                // etcd of its own may be without TLS; where it has it, it is that of the cluster's CA.
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
                    let settings = member_settings(&folder, &trust, &current)?;
                    member = Some(EtcdMember::start(settings).await.map_err(failed)?);
                }
                let urls = members.iter().map(|member| member.client_url.clone());
                let mut settings = EtcdSettings::new(urls.collect());
                settings.tls = Some(client_tls(&trust));
                settings
            }
        };
        let etcd = connect(settings, member.as_ref()).await?;
        let side = Arc::new(Self {
            etcd,
            folder,
            trust,
            member: tokio::sync::Mutex::new(member),
            membership,
            missed: AtomicU32::new(0),
            health: Mutex::default(),
        });
        side.look_at_members().await;
        Ok(side)
    }

    /// How the members were when they were asked last.
    pub fn health(&self) -> EtcdHealth {
        self.health.lock().clone()
    }

    /// Asks all members how they are. One that hangs costs the time of one attempt.
    pub async fn look_at_members(&self) -> EtcdHealth {
        let health = match self.etcd.member_states().await {
            Ok(states) => {
                let members = states.into_iter().map(|(info, problem)| EtcdMemberHealth {
                    url: info.client_urls.first().cloned().unwrap_or_default(),
                    // It has none before its first start.
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
                // Without a majority members do not say who is one. Those that were known are asked one by one.
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

    /// Follows the members and the certificate, and adds this node's member when it should run one; until the node stops.
    pub async fn tend(self: Arc<Self>, cluster: Arc<ClusterMember>, stopping: impl Fn() -> bool) {
        let mut expires = self.trust.expires();
        let clock = Arc::clone(&self.trust.env().clock);
        while !stopping() {
            if expires.has_changed().unwrap_or(false) {
                expires.borrow_and_update();
                self.etcd.set_tls(client_tls(&self.trust));
            }
            self.look_at_members().await;
            cluster.set_folder_is_low(folder_is_low(self.folder.path()));
            if let Err(error) = self.look(&cluster).await {
                tracing::debug!(error, "the members of etcd");
            }
            clock.sleep(LOOK).await;
        }
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
        // In the order in which they came into the map. One that is away does not hold up the others.
        let mut line: Vec<&NodeRecord> = staying().filter(is_alive).collect();
        line.sort_by_key(|node| (node.joined, node.id));
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
            // With one more than is wanted etcd survives no more, and with two it survives less.
            let all_are_well = records().all(|node| is_alive(&node)) && members.len() == on_staying;
            let mut with_member: Vec<&NodeRecord> =
                staying().filter(|node| of_node(node).is_some()).collect();
            with_member.sort_by_key(|node| (node.joined, node.id));
            let is_spare = all_are_well
                && on_staying > wanted
                && with_member.last().is_some_and(|last| last.id == own.id);
            if own.draining && on_staying >= wanted || is_spare {
                tracing::info!(own.draining, "this node's member of etcd is removed");
                let removed = self.etcd.remove_member(known.id).await;
                removed.map_err(|error| error.to_string())?;
                return self.end_member().await;
            }
        }
        let lost = records()
            .filter(|node| node.draining && !is_alive(node))
            .find_map(of_node);
        if let Some(lost) = lost
            && line.first().is_some_and(|first| first.id == own.id)
        {
            tracing::info!(
                member = lost.name,
                "the member of etcd of a lost node is removed"
            );
            let removed = self.etcd.remove_member(lost.id).await;
            return removed.map_err(|error| error.to_string());
        }
        if runs_member || own.draining {
            return Ok(());
        }
        // Of the machine that was this node before: it cannot come back, and keeps others from being added.
        if let Some(stale) = of_node(own) {
            tracing::info!("the member of etcd of this node's earlier machine is removed");
            let removed = self.etcd.remove_member(stale.id).await;
            return removed.map_err(|error| error.to_string());
        }
        let place = line
            .iter()
            .filter(|node| of_node(node).is_none())
            .position(|node| node.id == own.id);
        let all_started = members.iter().all(|member| !member.name.is_empty());
        if on_staying < wanted && all_started && place == Some(0) {
            self.add().await?;
        }
        Ok(())
    }

    /// This node runs a member that etcd does not know: somebody removed it, or an earlier process of this node did.
    async fn missed(&self) -> Result<(), String> {
        if self.missed.fetch_add(1, Ordering::AcqRel) + 1 < MISSED_MAX {
            return Ok(());
        }
        tracing::warn!("etcd does not know this node's member any more: it ends");
        self.end_member().await
    }

    /// Ends this node's member, which was removed. Nothing of it is left, so that another one can be added later.
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

    /// Whether a node has a member still.
    pub async fn has_member(&self, node: &NodeRecord) -> Result<bool, String> {
        if let EtcdSource::Given { .. } = self.membership.lock().etcd {
            return Ok(false);
        }
        let members = self.etcd.members().await;
        let members = members.map_err(|error| error.to_string())?;
        Ok(members.iter().any(|member| member.name == node.name))
    }

    /// Remembers the members that there are.
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

    /// Changes what the folder says of etcd, if that is not what it says already.
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
        Ok(())
    }

    async fn add(&self) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let (own, peer_url) = {
            let membership = self.membership.lock();
            let urls = urls_of(&membership).map_err(|error| told(&error))?;
            (membership.node_name.clone(), urls.1)
        };
        tracing::info!("this node adds a member to etcd");
        let known = self.etcd.members().await.map_err(|error| told(&error))?;
        let is_added = |member: &EtcdMemberInfo| member.peer_urls.contains(&peer_url);
        let all = match known.iter().any(is_added) {
            // An earlier try came so far.
            true => known,
            false => {
                let added = self.etcd.add_member(&peer_url).await;
                added.map_err(|error| told(&error))?
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
        let settings =
            member_settings(&self.folder, &self.trust, &current).map_err(|error| told(&error))?;
        let started = EtcdMember::start(settings)
            .await
            .map_err(|error| told(&error))?;
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
        return Err(failed("this node runs no member of etcd"));
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
        return Err(failed("this node runs no member of etcd"));
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

async fn connect(settings: EtcdSettings, member: Option<&EtcdMember>) -> Result<Etcd, NodeError> {
    let deadline = tokio::time::Instant::now() + START_PATIENCE;
    let mut is_told = false;
    loop {
        let error = match Etcd::connect(settings.clone()).await {
            Ok(etcd) => return Ok(etcd),
            Err(error) => error,
        };
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
    use super::*;

    #[test]
    fn members_are_an_odd_number_that_two_may_leave_when_there_are_enough_nodes() {
        let wanted: Vec<usize> = (0..=8).map(members_wanted).collect();
        assert_eq!(wanted, [1, 1, 1, 3, 3, 5, 5, 5, 5]);
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
