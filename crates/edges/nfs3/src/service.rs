//! What all connections share, and the programs made of it.
//!
//! Owns: settings, exports, the cache of replies, the list of mounts, counters.
//! Must not know: connections, calls.

use std::sync::{Arc, OnceLock};

use cairn_base::Timestamp;
use cairn_exports::{Exports, HandleSigner};
use cairn_forward::Forward;
use cairn_rpc_server::{Duplicates, LogLimit, Peer, Program};

use crate::forward::Routes;
use crate::forward_metrics::{ForwardCollector, ForwardMetrics};
use crate::mount::{MountList, MountProgram};
use crate::nfs_program::NfsProgram;
use crate::nlm::NlmProgram;
use crate::procedure_metrics::{Gauges, ProcedureCollector, ProcedureMetrics};

/// Lines of a kind in an interval, for kinds of which each line is worth reading.
const LINE_COUNT_MAX: u32 = 20;

/// Keys and limits.
#[derive(Clone, Debug)]
pub struct Nfs3Settings {
    /// Secret of the pool. File handles are signed with it, so it must never change.
    pub handle_key: HandleSigner,
    /// Replies kept so that a request sent again is answered as the first time: so many of WRITE, and so
    /// many of all others.
    pub duplicate_count_max: usize,
    pub duplicate_bytes_max: usize,
    /// Mounts remembered for MOUNT DUMP (`showmount -a`).
    pub mount_list_count_max: usize,
}

impl Nfs3Settings {
    /// The defaults, with the pool's secret.
    pub fn new(handle_key: HandleSigner) -> Self {
        Self {
            handle_key,
            duplicate_count_max: 16_384,
            duplicate_bytes_max: 8 << 20,
            mount_list_count_max: 1024,
        }
    }
}

/// NFSv3 with its companions.
pub struct Nfs3 {
    service: Arc<Service>,
}

impl Nfs3 {
    /// Serves `exports`; the server that it plugs into has `thread_count` threads.
    pub fn new(
        settings: Nfs3Settings,
        exports: Arc<Exports>,
        thread_count: usize,
        registry: &prometheus::Registry,
    ) -> Result<Self, prometheus::Error> {
        let service = Arc::new(Service::new(settings, exports, thread_count));
        let source = Arc::clone(&service);
        let metrics = Arc::clone(&service.metrics);
        let collector = ProcedureCollector::new(metrics, Box::new(move || source.gauges()));
        registry.register(Box::new(collector))?;
        let passed = Arc::clone(&service.passed);
        let exports = Arc::clone(&service.exports);
        registry.register(Box::new(ForwardCollector::new(passed, exports)))?;
        Ok(Self { service })
    }

    /// What the server is to serve.
    pub fn programs(&self) -> Vec<Arc<dyn Program>> {
        vec![
            Arc::new(MountProgram(Arc::clone(&self.service))),
            Arc::new(NfsProgram(Arc::clone(&self.service))),
            Arc::new(NlmProgram(Arc::clone(&self.service))),
        ]
    }

    /// In a cluster: how owners of volumes are reached, and whether this node may answer for those that it owns. Before
    /// the first connection.
    pub fn in_cluster(
        &self,
        forward: Arc<Forward>,
        may_answer: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        // Only here.
        let _ = self.service.cluster.set(InCluster {
            forward,
            may_answer: Box::new(may_answer),
        });
    }

    /// Who has mounted what, as far as clients say: addresses and paths, oldest first, whenever it is asked.
    pub fn mounts(&self) -> impl Fn() -> Vec<(String, Box<[u8]>)> + Send + Sync + 'static {
        let service = Arc::clone(&self.service);
        move || service.mounts.all()
    }

    /// NFS requests answered so far, whenever it is asked.
    pub fn request_counter(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let metrics = Arc::clone(&self.service.metrics);
        move || metrics.request_count()
    }
}

/// What all connections share.
pub struct Service {
    pub settings: Nfs3Settings,
    pub exports: Arc<Exports>,
    pub metrics: Arc<ProcedureMetrics>,
    /// Of calls on volumes of other nodes.
    pub passed: Arc<ForwardMetrics>,
    pub duplicates: Duplicates,
    /// Those of WRITE have a cache of their own: there are so many that they would push out all others.
    pub duplicate_writes: Duplicates,
    pub mounts: MountList,
    /// Limits of log lines, because a client can cause any number of them.
    pub mounts_refused: LogLimit,
    pub mounts_logged: LogLimit,
    pub io_errors: LogLimit,
    pub started: Timestamp,
    pub cluster: OnceLock<InCluster>,
}

/// What a node of a cluster has besides.
pub struct InCluster {
    forward: Arc<Forward>,
    may_answer: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Service {
    fn new(settings: Nfs3Settings, exports: Arc<Exports>, thread_count: usize) -> Self {
        let duplicates =
            || Duplicates::new(settings.duplicate_count_max, settings.duplicate_bytes_max);
        Self {
            duplicates: duplicates(),
            duplicate_writes: duplicates(),
            mounts: MountList::new(settings.mount_list_count_max),
            mounts_refused: LogLimit::default(),
            mounts_logged: LogLimit::new(LINE_COUNT_MAX),
            io_errors: LogLimit::new(LINE_COUNT_MAX),
            settings,
            exports,
            metrics: Arc::new(ProcedureMetrics::new(thread_count.max(1))),
            passed: Arc::default(),
            started: std::time::SystemTime::now().into(),
            cluster: OnceLock::new(),
        }
    }

    /// The ways of a client's connection to the owners of volumes. None for one that another node passes on: its calls
    /// go no further.
    pub fn routes(&self, peer: &Arc<Peer>) -> Option<Arc<Routes>> {
        let cluster = self.cluster.get().filter(|_| !peer.is_forwarded)?;
        let (forward, exports) = (Arc::clone(&cluster.forward), Arc::clone(&self.exports));
        let passed = Arc::clone(&self.passed);
        Some(Routes::new(forward, exports, passed, Arc::clone(peer)))
    }

    pub fn is_in_cluster(&self) -> bool {
        self.cluster.get().is_some()
    }

    /// Whether what was read here may be told: another node may own the volume already.
    pub fn may_answer(&self) -> bool {
        self.cluster
            .get()
            .is_none_or(|cluster| (cluster.may_answer)())
    }

    fn gauges(&self) -> Gauges {
        let (duplicates, duplicate_bytes) = self.duplicates.usage();
        let (writes, write_bytes) = self.duplicate_writes.usage();
        Gauges {
            duplicates: (duplicates + writes) as u64,
            duplicates_max: 2 * self.settings.duplicate_count_max as u64,
            duplicate_bytes: (duplicate_bytes + write_bytes) as u64,
            mounts: self.mounts.len() as u64,
            mounts_max: self.mounts.count_max() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_not_shown() {
        let settings = Nfs3Settings::new(HandleSigner::new(&[0xa7; 16]));
        let shown = format!("{settings:?} {settings:#?}");
        assert!(shown.contains("HandleSigner(secret)"), "{shown}");
        for number in [0xa7_u128, 0xa7a7_a7a7_a7a7_a7a7] {
            for text in [format!("{number}"), format!("{number:x}")] {
                assert!(!shown.to_lowercase().contains(&text), "{text} in {shown}");
            }
        }
    }
}
