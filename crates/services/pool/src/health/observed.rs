//! What there is to judge: the state of a pool, and of the cluster that it is in, as a node observes them.
//!
//! Owns: these values. Must not know: how bad they are (`health`), and how they are gathered.

use std::time::Duration;

use crate::warning::{DiskLoss, Warning};

/// A process that has more than so many percent of its memory limit is told of: measuring and shrinking take a moment.
const MEMORY_PERCENT_MAX: u128 = 105;

/// What there is to judge.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub disk_count: usize,
    /// Missing at start, failed since, or not counted on now.
    pub disks_lost: Vec<LostDisk>,
    /// How many of them hold nothing that anybody needs: all that was on them is on others.
    pub disks_lost_empty: usize,
    /// Labels of disks that are used in spite of what is wrong with them, each with what that is.
    pub disks_troubled: Vec<(String, String)>,
    /// Disks that data of the default protection can lose.
    pub tolerated: usize,
    /// How many nodes the disks are on.
    pub node_count: usize,
    /// Nodes that data of the default protection can lose; none if there is one.
    pub nodes_tolerated: usize,
    /// How many nodes have a lost disk that holds something that is needed.
    pub nodes_lost: usize,
    /// How that data is laid out.
    pub layout: String,
    /// Volumes that are not served, each with why.
    pub volumes_failed: Vec<(String, String)>,
    /// Volumes that are only read until their disks have room, each with what found none.
    pub volumes_read_only: Vec<(String, String)>,
    /// Volumes whose metadata has fewer copies than it should.
    pub volumes_degraded: Vec<String>,
    /// Volumes that one lost disk would damage although the pool could protect them.
    pub volumes_unprotected: Vec<String>,
    /// Volumes with directories that ask for no protection.
    pub directories_unprotected: Vec<String>,
    /// Parts of the data that have less protection than is asked for.
    pub narrow_segments: u64,
    /// Of these, those that survive no loss.
    pub single_segments: u64,
    /// Parts of the data with shards that are lost and not rebuilt yet, and how many more the worst of them may lose.
    pub segments_short: Option<(u64, i16)>,
    /// Places of files that the last scrub found damaged beyond repair.
    pub damaged_places: u64,
    /// Bytes that were given up while data was moved or rebuilt, since the start, and that no scrub has looked for.
    pub lost_bytes: u64,
    /// Places at which readers met damage and that still cannot be read, without those before the last scrub that read all.
    pub damaged_reads: u64,
    /// Disks that work and that the configuration names; `None` if it names all that work.
    pub disks_named: Option<usize>,
    /// How many data disks that work each drive of this server bears. Empty: not known, or of a cluster.
    pub disks_by_drive: Vec<usize>,
    /// Free space left, in percent.
    pub free_percent: Option<u64>,
    /// Nothing more can be written.
    pub is_full: bool,
    /// Volumes of which little is left to their size limit.
    pub volumes_low: Vec<LowVolume>,
    /// Encrypted volumes that wait for their key, each with why it cannot be had. They are in no other list.
    pub keys_away: Vec<(String, String)>,
    /// Why no secret is set or made, if that is so.
    pub secrets_unwrapped: Option<String>,
    /// Tiers that do not do what they should, each with why.
    pub tiers_away: Vec<(String, String)>,
    /// `None`: not known.
    pub memory: Option<MemoryUse>,
    /// For how long a scrub that is to begin by itself has not.
    pub scrub_overdue: Option<Duration>,
    /// Read caches that are not used, as warnings.
    pub caches: Vec<Warning>,
    /// If the server is a node of a cluster.
    pub cluster: Option<ObservedCluster>,
}

/// Memory that the process has, and its limit, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub resident_bytes: u64,
    pub limit_bytes: u64,
    /// What has most of it, the largest first.
    pub largest: Vec<(&'static str, u64)>,
}

impl MemoryUse {
    pub(super) fn is_over(&self) -> bool {
        u128::from(self.resident_bytes) * 100 > u128::from(self.limit_bytes) * MEMORY_PERCENT_MAX
    }
}

/// A volume with little left to its size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowVolume {
    pub volume: String,
    pub limit_bytes: u64,
    /// Of the limit, rounded down.
    pub free_percent: u64,
}

/// A disk that does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDisk {
    pub label: String,
    pub loss: DiskLoss,
    pub why: String,
}

/// What there is to judge of a cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Default)]
pub struct ObservedCluster {
    pub has_lease: bool,
    pub nodes: Vec<ObservedNode>,
    pub etcd: ObservedEtcd,
    pub logs: Vec<ObservedLog>,
    /// Volumes that nobody owns, each with the nodes that tried to take it over and why they could not.
    pub without_owner: Vec<(String, Vec<(String, String)>)>,
    /// Volumes with an address that is not on this node, which owns them: volume, address, and why.
    pub addresses: Vec<(String, String, String)>,
    /// Addresses of pools that a node which should have them has not: pool, address, and why.
    pub pool_addresses: Vec<(String, String, String)>,
    /// Nodes that are there and have no key for a volume: node, volume.
    pub keys_missing: Vec<(String, String)>,
    /// So many nodes that are there can open the encrypted volume that the fewest can open. `None`: no volume is encrypted.
    pub openers_least: Option<usize>,
    /// Keys of the map that cannot be read.
    pub damaged_keys: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNode {
    pub name: String,
    /// Its lease lives.
    pub is_alive: bool,
    pub is_reached: bool,
    pub problem: Option<String>,
    /// How much longer it is meant to be away.
    pub maintenance: Option<Duration>,
    /// The file system with its cluster folder is nearly full.
    pub folder_is_low: bool,
    /// Volumes that it owns.
    pub volumes: usize,
    /// Open volumes that its memory limit holds, if that is known.
    pub volumes_max: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedEtcd {
    /// Whether nodes of the cluster run it.
    pub is_own: bool,
    pub members: Vec<ObservedMember>,
    /// Why nothing is known of the members.
    pub problem: Option<String>,
    /// Addresses beyond this machine at which it is asked without TLS.
    pub plain: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMember {
    pub name: String,
    /// Why it does not count: it does not answer, or says that it is not well.
    pub problem: Option<String>,
}

/// The log of a volume of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLog {
    pub volume: String,
    /// Copies on nodes that are there.
    pub copies: usize,
    /// Copies that it should have.
    pub wanted: usize,
}

impl ObservedEtcd {
    pub(super) fn healthy(&self) -> usize {
        let members = self.members.iter();
        members.filter(|member| member.problem.is_none()).count()
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    pub(super) fn has_quorum(&self) -> bool {
        self.problem.is_none() && self.healthy() >= self.quorum()
    }

    /// Nodes that may go so that etcd goes on, whichever they are.
    pub(super) fn survives_nodes(&self) -> usize {
        match (self.has_quorum(), self.is_own) {
            (false, _) => 0,
            (true, true) => self.healthy() - self.quorum(),
            (true, false) => usize::MAX,
        }
    }
}
