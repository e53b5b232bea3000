//! Starts and stops a node.
//!
//! Owns: threads, sockets, the order: disks, pool, volumes, then the servers; the reverse at the end.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cairn_admin::api::{AdminView, NfsReady, NfsView, ReadyFile, Status};
use cairn_admin::{AdminServer, AdminSettings, Token};
use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next};
use cairn_base::{Backoff, real};
use cairn_cluster::MEMBER_STOP_MAX;
use cairn_config::Config;
use cairn_dns::DnsServer;
use cairn_exports::HandleSigner;
use cairn_memory::allocator;
use cairn_nfs3::{Nfs3, Nfs3Settings};
use cairn_pool::{Pool, watch};
use cairn_rpc_server::{Listeners, RpcServer, ServeError, ServerSettings};
use cairn_trust::Encryption;
use prometheus::process_collector::ProcessCollector;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::address_pools::PoolNames;
use crate::addresses::Addresses;
use crate::certificate::{self, AdminCertificate};
use crate::classes;
use crate::cluster::{self, ClusterNode};
use crate::control::Controller;
use crate::disks::{DiskHints, PoolDisks, descriptors_max};
use crate::ending::{CUT_OFF_MAX, Ending};
use crate::error::NodeError;
use crate::extras::NodeExtras;
use crate::jobs::JobCollector;
use crate::keys::KeyHolder;
use crate::lock_wait::open_pool_in_time;
use crate::memory;
use crate::metrics::NodeCollector;
use crate::node::NodeCore;
use crate::ready;
use crate::s3::{self, S3Server};
use crate::san::{self, IscsiServer};
use crate::state_folder;
use crate::token;

/// The port at which clients look for the port mapper.
const RPCBIND_PORT: u16 = 111;
/// Maximum time for running requests at the end.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Maximum time for running requests at the end in a cluster, where other nodes answer the calls that clients repeat.
const STOP_GRACE_IN_CLUSTER: Duration = Duration::from_secs(3);
/// A member of etcd that gets no answer from most others is killed after so long.
const ETCD_STOP_MAX: Duration = Duration::from_secs(2);
/// A node without a lease ends within this time.
const STOP_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(
    CUT_OFF_MAX.as_millis() + ETCD_STOP_MAX.as_millis() < STOP_MAX.as_millis()
        && STOP_GRACE_IN_CLUSTER.as_millis() < CUT_OFF_MAX.as_millis()
);
/// Interval at which disks get a new pool file: an older copy of a disk is recognised by its older file.
const POOL_FILE_INTERVAL: Duration = Duration::from_secs(600);
/// Interval of the check whether a recovered disk lacks data.
const RETURNED_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the check whether a given-up disk has proven that it answers again.
const PROVEN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which corrupt places that readers met are checked again.
const DAMAGED_INTERVAL: Duration = Duration::from_secs(30);
/// Pauses of the watch of disks after a failure: without it nothing notices a disk that hangs.
const WATCH_RETRY_FIRST: Duration = Duration::from_millis(100);
const WATCH_RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Maximum time for the last steps of background jobs at the end. One that waits for a disk is abandoned then.
const JOBS_STOP_MAX: Duration = Duration::from_secs(2);
/// Maximum time to remove the files with the server's addresses at its end; then they stay.
const UNANNOUNCE_MAX: Duration = Duration::from_secs(2);
/// Threads for blocking work: copying and deleting files of metadata.
pub const BLOCKING_THREADS_MAX: usize = 16;

/// A node that serves. If it is dropped without [`Self::stop`], it leaves the state of a crash.
pub struct Node {
    runtime: Runtime,
    started: Started,
}

/// The parts that run on the runtime.
struct Started {
    inner: Arc<NodeCore>,
    controller: Arc<Controller>,
    nfs: cairn_rpc_server::Running,
    nfs_address: SocketAddr,
    iscsi: Arc<IscsiServer>,
    s3: Arc<S3Server>,
    admin_stop: oneshot::Sender<()>,
    admin: JoinHandle<()>,
    created: bool,
    /// The certificates by which clients know the admin API over HTTPS.
    certificate_pem: Option<String>,
}

/// Sockets, bound before anything else: a used port should not cost a recovery.
struct Sockets {
    nfs: TcpListener,
    nfs_address: SocketAddr,
    admin: TcpListener,
    iscsi: Vec<TcpListener>,
    s3: Option<TcpListener>,
    dns: Option<(UdpSocket, TcpListener)>,
    admin_address: SocketAddr,
    rpcbind: Vec<TcpListener>,
    rpcbind_udp: Vec<UdpSocket>,
}

impl Node {
    /// Starts everything and returns once clients are served. Blocks; call it outside of any runtime.
    pub fn start(config: Config, extras: NodeExtras) -> Result<Self, NodeError> {
        let sockets = bind(&config)?;
        allocator::keep_to(config.memory_limit_bytes);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, usize::from))
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("engine")
            .enable_all()
            .build()
            .map_err(NodeError::Runtime)?;
        match Self::start_on(&runtime, config, sockets, extras) {
            Ok(started) => Ok(Self { runtime, started }),
            Err(error) => {
                // A folder that hangs may keep a thread for ever.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    fn start_on(
        runtime: &Runtime,
        config: Config,
        sockets: Sockets,
        extras: NodeExtras,
    ) -> Result<Started, NodeError> {
        let handle = runtime.handle().clone();
        let _inside = handle.enter();
        let env = real::env(handle.clone());

        let begun = Instant::now();
        let token_path = state_folder::token_path(&config)?;
        let keys = KeyHolder::new(config.master_keys.clone());
        // Secrets and volumes whose keys are missing wait for them, and all others do not.
        runtime.block_on(keys.look());
        let (pool, cluster) = open_pool(runtime, &env, &config, &keys)?;
        let created = pool.opened.created;
        tell_opened(&pool, begun);
        // Also outside of disks that were added to a running server.
        state_folder::require_apart(&token_path, &disk_folders(&pool))?;
        let token = token::load_or_make(&token_path, &*env.entropy)?;
        let certificate = certificate::of_admin(&env, &config);
        let certificate = certificate.map_err(NodeError::Certificate)?;
        let inner = NodeCore::new(env, config, pool, token_path, cluster, keys);
        inner.begin_to_remember();
        // Before the first call on the disks: an unresponsive one is given up in time.
        tend_watch(&inner.pool).map_err(NodeError::Runtime)?;
        // Before volumes are opened: that takes memory.
        memory::tend(&inner.env, &inner.memory).map_err(NodeError::Runtime)?;
        runtime.block_on(crate::read_cache::open_all(&inner));
        runtime.block_on(async {
            crate::keys::wrap_secrets(&inner, created).await;
            inner.open_volumes().await?;
            inner.ensure_first_volume().await
        })?;

        inner
            .registry
            .register(Box::new(ProcessCollector::for_self()))?;
        inner
            .registry
            .register(Box::new(NodeCollector::new(Arc::downgrade(&inner))?))?;
        inner
            .registry
            .register(Box::new(JobCollector::new(&inner.env)?))?;
        let nfs_address = sockets.nfs_address;
        let nfs_view = NfsView {
            address: nfs_address.ip().to_string(),
            port: nfs_address.port(),
            rpcbind: !sockets.rpcbind.is_empty(),
        };
        let controller = Arc::new(Controller {
            inner: Arc::clone(&inner),
            extras: extras.start(&inner, &nfs_view),
            nfs: nfs_view,
            admin: AdminView {
                url: admin_url(certificate.as_ref(), sockets.admin_address),
            },
        });
        let nfs = start_nfs(&inner, sockets.nfs, sockets.rpcbind, sockets.rpcbind_udp)?;
        let requests = &inner.memory.requests;
        requests.add("nfs_requests", nfs.held_bytes());
        let iscsi = start_iscsi(&inner, sockets.iscsi)?;
        let s3 = start_s3(&inner, sockets.s3)?;
        if let Some((udp, tcp)) = sockets.dns {
            start_dns(&inner, udp, tcp)?;
        }
        let listen_failed = |source| listen_error("the admin API", sockets.admin_address, source);
        sockets.admin.set_nonblocking(true).map_err(listen_failed)?;
        let listener = tokio::net::TcpListener::from_std(sockets.admin).map_err(listen_failed)?;
        let server = admin_server(&inner, &controller, token)?;
        if let Some(cluster) = &inner.cluster {
            cluster.serve_admin(server.passed());
        }
        tend(runtime, &inner, &controller)?;
        let (admin_stop, stopped) = oneshot::channel();
        let (certificate, certificate_pem) = match certificate {
            Some(admin) => (Some(admin.certificate), Some(admin.shown_pem)),
            None => (None, None),
        };
        let admin = runtime.spawn(server.serve(listener, certificate, async {
            // Also ready when the sender is dropped: a node that is gone serves nothing.
            let _ = stopped.await;
        }));
        Ok(Started {
            inner,
            controller,
            nfs,
            nfs_address,
            iscsi,
            s3,
            admin_stop,
            admin,
            created,
            certificate_pem,
        })
    }

    /// The contents of the ready file.
    pub fn ready(&self) -> ReadyFile {
        let pool = self.started.inner.pool.state();
        let token_path = &self.started.inner.token_path;
        let token_path = std::path::absolute(token_path).unwrap_or_else(|_| token_path.clone());
        let state_dir = state_folder::find(self.config().state_dir.as_deref());
        let state_dir = state_dir.map(|folder| std::path::absolute(&folder).unwrap_or(folder));
        ReadyFile {
            pid: std::process::id(),
            pool: pool.pool.to_string(),
            state_dir: state_dir.map(|folder| folder.display().to_string()),
            nfs: NfsReady {
                address: reachable(self.started.nfs_address).ip().to_string(),
                port: self.started.nfs_address.port(),
            },
            admin: self.started.controller.admin.clone(),
            token_file: token_path.display().to_string(),
            certificate: self.started.certificate_pem.clone(),
            volumes: pool
                .all_volumes()
                .map(|volume| volume.name.clone())
                .collect(),
        }
    }

    /// Notes files with the contents of [`Self::ready`], which [`Self::unannounce`] removes.
    pub fn announced(&self, files: &[PathBuf]) {
        *self.started.inner.announced.lock() = files.to_vec();
    }

    /// Removes these files. Waits only briefly for a file on an unresponsive disk.
    pub fn unannounce(&self) {
        let files = std::mem::take(&mut *self.started.inner.announced.lock());
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for file in files {
                ready::remove(&file);
            }
            // The receiver may be gone.
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(UNANNOUNCE_MAX);
    }

    pub fn status(&self) -> Status {
        self.runtime.block_on(self.started.controller.status_now())
    }

    /// Whether this start made the pool.
    pub fn created(&self) -> bool {
        self.started.created
    }

    pub fn config(&self) -> &Config {
        &self.started.inner.config
    }

    /// Runs a future on the node's threads, for example a wait for a signal.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Starts a process beside this one that removes the node's addresses and ends its lease as soon as this process
    /// is gone, if the node is in a cluster. `program`: this program; with the argument
    /// [`cluster::guardian::COMMAND`] it runs [`cluster::guardian::run`].
    pub fn guard_lease(&self, program: PathBuf) {
        let inner = &self.started.inner;
        // NFS serves by now, and the addresses are tended with it.
        if let (Some(cluster), Some(addresses)) = (&inner.cluster, inner.addresses.get()) {
            let guarding = cluster.guard_lease(program, addresses.placed());
            self.runtime.spawn(guarding);
        }
    }

    /// Waits until this node has to leave its cluster, and returns the reason; waits for ever, if it is in none.
    pub async fn over(&self) -> cairn_owner::Ended {
        match &self.started.inner.cluster {
            Some(cluster) => cluster.member.over().await,
            None => std::future::pending().await,
        }
    }

    /// Takes no more requests, finishes the running ones, makes everything durable and ends.
    ///
    /// A node of a cluster without a lease (etcd does not answer, for example) ends within [`STOP_MAX`].
    pub fn stop(self) {
        let inner = Arc::clone(&self.started.inner);
        let cluster = inner.cluster.as_ref();
        let is_cut_off = || {
            let member = cluster.map(|cluster| &cluster.member);
            member.is_some_and(|member| member.is_cut_off() || member.is_last())
        };
        let ending = Ending::new(Arc::clone(&inner.env.clock), is_cut_off);
        self.runtime.block_on(async {
            let work = async {
                if let Some(benchmarks) = &self.started.controller.extras.benchmarks {
                    Arc::clone(benchmarks).stop().await;
                }
                inner.pool.scrub_stop().await;
            };
            ending.step("benchmarks and the scrub", work).await;
            if let Some(cluster) = cluster
                && let Some(addresses) = inner.addresses.get()
            {
                // First: clients of these addresses should find another node, and this one answers until then.
                cluster.member.leave_addresses();
                let left = addresses.leave_pools(&cluster.member);
                ending
                    .step("addresses that it leaves to others", left)
                    .await;
            }
            inner.pool.stop();
            // An error means that the server has ended already.
            let _ = self.started.admin_stop.send(());
            inner.exports.end();
            let grace = match cluster {
                None => STOP_GRACE,
                Some(_) => STOP_GRACE_IN_CLUSTER,
            };
            // Concurrently: a client that does not end costs the others no time.
            let requests = async {
                tokio::join!(
                    self.started.iscsi.stop(grace),
                    self.started.s3.stop(grace),
                    self.started.nfs.stop(grace),
                );
            };
            ending.step("requests under way", requests).await;
            if let Some(cluster) = cluster {
                let left = cluster.stop();
                ending.step("volumes that it leaves to others", left).await;
            }
            inner.history.stop();
            let admin = ending.step("requests of the admin API", self.started.admin);
            if let Some(Err(error)) = admin.await {
                tracing::error!(%error, "the admin API failed");
            }
            let volumes = async {
                classes::write_all(&inner).await;
                inner.close_volumes().await;
                inner.pool.store.repairs_done().await;
            };
            ending
                .step("volumes that are written to disk", volumes)
                .await;
            let rest = async {
                crate::read_cache::close_all(&inner).await;
                crate::events::stopped(&inner).await;
            };
            ending
                .step("read caches and the list of events", rest)
                .await;
            if let Some(cluster) = cluster {
                // Always: nothing else would end its process.
                let patience = match ending.is_over() {
                    true => ETCD_STOP_MAX,
                    false => MEMBER_STOP_MAX,
                };
                cluster.stop_etcd(patience).await;
            }
            // Most have ended with the pool; those that are left are waited for, so that none works on what is gone.
            inner.env.jobs.stop();
            let jobs = inner.env.jobs.stopped(&*inner.env.clock, JOBS_STOP_MAX);
            let left = ending.step("background jobs", jobs).await;
            if let Some(left) = left.filter(|left| !left.is_empty()) {
                tracing::warn!(
                    jobs = left.join(", "),
                    "stopping: these background jobs are abandoned during a step"
                );
            }
        });
        let is_left_behind = ending.is_over() || inner.env.spawner.thread_count() > 0;
        drop(inner);
        if is_left_behind {
            // A volume was abandoned, and its thread waits for a disk, or with this runtime's timers, which must
            // stay. It ends with the process.
            std::mem::forget(self.runtime);
            return;
        }
        self.runtime.shutdown_timeout(STOP_GRACE);
    }
}

/// The URL of the admin API for people and programs: with the name that the operator gave, or with the address.
fn admin_url(certificate: Option<&AdminCertificate>, address: SocketAddr) -> String {
    let Some(certificate) = certificate else {
        return format!("http://{}", reachable(address));
    };
    let Some(name) = &certificate.name else {
        return format!("https://{}", reachable(address));
    };
    match name.parse() {
        Ok(ip) => format!("https://{}", SocketAddr::new(ip, address.port())),
        Err(_) => format!("https://{name}:{}", address.port()),
    }
}

/// The folders of the used disks.
fn disk_folders(pool: &PoolDisks) -> Vec<PathBuf> {
    let folders = pool.opened.disks.iter();
    let folders = folders.filter_map(|disk| disk.disk().folder().map(Path::to_owned));
    folders.collect()
}

/// Starts the job that watches disks; it ends with the pool. A thread of its own: those of the runtime may all be
/// in RocksDB, waiting for the disk that hangs.
fn tend_watch(pool: &Arc<Pool>) -> std::io::Result<()> {
    let watched = Arc::downgrade(pool);
    let mut look_at = pool.env.clock.monotonic();
    let mut looking = watch::Looking::new(look_at);
    let work = move || {
        // Also while the pool stops: its end waits for disks.
        let Some(pool) = watched.upgrade() else {
            return Next::End;
        };
        let now = pool.env.clock.monotonic();
        if now >= look_at {
            look_at = now + watch::LOOK_INTERVAL;
            watch::look(&pool, &mut looking);
        }
        watch::glance(&pool, &mut looking);
        Next::Period
    };
    Job::every("watch", watch::GLANCE_INTERVAL)
        .from_now()
        .retry(Backoff::new(WATCH_RETRY_FIRST, WATCH_RETRY_LONGEST))
        .start_thread(&pool.env, work)
}

fn start_nfs(
    inner: &Arc<NodeCore>,
    nfs: TcpListener,
    rpcbind: Vec<TcpListener>,
    rpcbind_udp: Vec<UdpSocket>,
) -> Result<cairn_rpc_server::Running, NodeError> {
    let mut settings = ServerSettings {
        threads: inner.config.threads,
        ..ServerSettings::default()
    };
    let connections = usize::try_from(descriptors_max() / 4).unwrap_or(usize::MAX);
    settings.connection_count_max = settings.connection_count_max.min(connections);
    let held = usize::try_from(inner.budget.nfs_bytes()).unwrap_or(usize::MAX);
    settings.held_bytes_max = settings.held_bytes_max.min(held);
    let handle_key = HandleSigner::new(&crate::keys::handle_key(inner)?.0.to_be_bytes());
    let (exports, registry) = (Arc::clone(&inner.exports), &inner.registry);
    let failed = |error: ServeError| NodeError::Nfs(error.to_string());
    let nfs3 = Nfs3::new(
        Nfs3Settings::new(handle_key),
        exports,
        settings.threads,
        registry,
    );
    let nfs3 = nfs3.map_err(|error| failed(error.into()))?;
    inner.pool.clients.watch(nfs3.request_counter());
    // Set only here.
    let _ = inner.mounts.set(Box::new(nfs3.mounts()));
    let mut server = RpcServer::new("nfs", settings, nfs3.programs(), registry).map_err(failed)?;
    if let Some(cluster) = &inner.cluster {
        let member = Arc::clone(&cluster.member);
        let forward = Arc::clone(&cluster.forward);
        nfs3.in_cluster(Arc::clone(&forward), move || member.lease_is_valid());
        forward.metrics.register(registry)?;
        server = server.in_cluster(forward);
    }
    let listeners = Listeners {
        programs: vec![nfs],
        rpcbind,
        rpcbind_udp,
    };
    let running = server.start(listeners).map_err(failed)?;
    if let Some(cluster) = &inner.cluster {
        cluster.serve_rpc(running.forwarded());
        let more = running.more_addresses(tokio::runtime::Handle::current());
        let addresses = Addresses::new(inner.env.clone(), inner.config.address_hook.clone(), more);
        // Set only here.
        let _ = inner.addresses.set(Arc::clone(&addresses));
        cluster.member.on_leaving(Arc::clone(&addresses) as _);
        addresses.tend(&inner.pool, &cluster.member);
    }
    Ok(running)
}

/// Opens the pool, and joins the cluster if the node has a cluster folder.
fn open_pool(
    runtime: &Runtime,
    env: &Env,
    config: &Config,
    keys: &KeyHolder,
) -> Result<(PoolDisks, Option<Arc<ClusterNode>>), NodeError> {
    let place = match cluster::folder_of(config)? {
        Some(folder) => {
            let encryption = match config.internal_encryption {
                true => Encryption::On,
                false => Encryption::Off,
            };
            let begun = cluster::Begun::begin(env, &folder, encryption);
            Some(runtime.block_on(begun)?)
        }
        None => None,
    };
    let known = match &place {
        Some(place) => runtime.block_on(place.known_disks(env))?,
        None => Vec::new(),
    };
    let state_folder = state_folder::find(config.state_dir.as_deref());
    // In a cluster the disks have no secret that a node makes with its pool: a key of the folder signs file handles.
    let keys_problem = keys.problem().filter(|_| place.is_none());
    let known = DiskHints {
        disks: &known,
        state_folder: state_folder.as_deref(),
        keys_problem: keys_problem.as_deref(),
    };
    let mut pool = runtime.block_on(open_pool_in_time(env, config, known))?;
    let cluster = match place {
        Some(place) => {
            let known = keys.known();
            let joined = place.join(env, config, &known, &mut pool.opened);
            Some(Arc::new(runtime.block_on(joined)?))
        }
        None => {
            cluster::check_mark(&pool.opened.state, None, config)?;
            None
        }
    };
    Ok((pool, cluster))
}

fn tell_opened(pool: &PoolDisks, begun: Instant) {
    tracing::info!(
        pool = %pool.opened.state.pool,
        disks = pool.opened.disks.len(),
        missing = pool.opened.missing.len(),
        took_ms = begun.elapsed().as_millis(),
        "pool opened"
    );
    for missing in &pool.opened.missing {
        tracing::error!(
            disk = missing.disk.label,
            why = missing.why,
            "a disk is missing; serving without it"
        );
    }
}

fn start_iscsi(
    inner: &Arc<NodeCore>,
    sockets: Vec<TcpListener>,
) -> Result<Arc<IscsiServer>, NodeError> {
    let requests = &inner.memory.requests;
    let iscsi = Arc::new(IscsiServer::default());
    let serving = san::shared(inner, &sockets);
    inner
        .registry
        .register(Box::new(cairn_iscsi::IscsiCollector::new(Arc::clone(
            &serving,
        ))?))?;
    let commands = Arc::clone(&serving);
    let held = move || commands.held_bytes.load(Ordering::Relaxed) as u64;
    requests.add("iscsi_commands", held);
    let commands = Arc::clone(&serving);
    let unsent = move || commands.unsent_bytes.load(Ordering::Relaxed) as u64;
    requests.add("iscsi_unsent", unsent);
    let commands = Arc::clone(&serving);
    inner
        .pool
        .clients
        .watch(move || commands.command_count.load(Ordering::Relaxed));
    iscsi.tend(inner, serving, sockets);
    Ok(iscsi)
}

fn start_s3(
    inner: &Arc<NodeCore>,
    socket: Option<TcpListener>,
) -> Result<Arc<S3Server>, NodeError> {
    let s3 = Arc::new(S3Server::default());
    let serving = s3::shared(inner).map_err(NodeError::S3)?;
    inner
        .registry
        .register(Box::new(cairn_s3::S3Collector::new(Arc::clone(&serving))?))?;
    let transfers = Arc::clone(&serving);
    inner
        .memory
        .requests
        .add("s3_transfers", move || transfers.held_bytes());
    let requests = Arc::clone(&serving);
    inner.pool.clients.watch(move || requests.activity());
    s3.tend(inner, serving, socket);
    Ok(s3)
}

fn admin_server(
    inner: &Arc<NodeCore>,
    controller: &Arc<Controller>,
    token: Token,
) -> Result<AdminServer, NodeError> {
    let oidc = inner.config.oidc.clone();
    let oidc = oidc
        .map(|oidc| cairn_oidc::Provider::new(oidc, inner.env.clone()))
        .transpose()?;
    Ok(AdminServer::new(
        Arc::clone(controller) as Arc<dyn cairn_admin::Control>,
        token,
        AdminSettings {
            metrics_open: inner.config.metrics_open,
            audit: inner.config.admin_audit,
        },
        inner.env.clone(),
        oidc,
        inner
            .cluster
            .as_ref()
            .map(|cluster| Arc::clone(&cluster.forward)),
    ))
}

/// Begins the node's background work.
fn tend(
    runtime: &Runtime,
    inner: &Arc<NodeCore>,
    controller: &Arc<Controller>,
) -> Result<(), NodeError> {
    let (spare_bytes, idle_after) = (inner.config.disk_spare_bytes, inner.config.idle_after);
    cairn_pool::idle_spares::tend(&inner.pool, spare_bytes, idle_after);
    runtime.block_on(async {
        // Twice: the second one records that the first is there.
        inner.pool.renew().await;
        inner.pool.renew().await;
        cairn_pool::scrub::tend(&inner.pool).await;
    });
    cairn_pool::executor::tend(&inner.pool);
    crate::snapshots::tend(inner);
    crate::autogrow::tend(inner);
    classes::tend(inner);
    crate::tiers::tend(inner);
    crate::keys::tend(inner);
    crate::history::tend(inner).map_err(NodeError::Runtime)?;
    runtime.block_on(inner.audit.load(inner));
    runtime.block_on(crate::events::begin(inner, controller));
    if let Some(benchmarks) = &controller.extras.benchmarks {
        runtime.block_on(Arc::clone(benchmarks).begin());
    }
    inner.every("pool-file", POOL_FILE_INTERVAL, |inner| async move {
        inner.pool.renew().await;
    });
    inner.every("returned-disks", RETURNED_INTERVAL, |inner| async move {
        inner.pool.make_returned_good().await;
    });
    inner.every("proven-disks", PROVEN_INTERVAL, |inner| async move {
        inner.take_back_proven().await;
    });
    inner.every("damaged-places", DAMAGED_INTERVAL, |inner| async move {
        inner.pool.store.check_damaged_places().await;
    });
    Ok(())
}

/// Answers for the names of address pools until the runtime ends. Must be called on the runtime.
fn start_dns(inner: &Arc<NodeCore>, udp: UdpSocket, tcp: TcpListener) -> Result<(), NodeError> {
    let address = tcp.local_addr().map_err(NodeError::Runtime)?;
    let failed = |source| listen_error("DNS", address, source);
    let names = Arc::new(PoolNames(Arc::downgrade(inner)));
    let server = DnsServer::new(inner.env.clone(), names, &inner.registry)?;
    let udp = tokio::net::UdpSocket::from_std(udp).map_err(failed)?;
    let tcp = tokio::net::TcpListener::from_std(tcp).map_err(failed)?;
    tracing::info!(%address, "the DNS responder listens");
    server.serve(udp, tcp);
    Ok(())
}

fn bind(config: &Config) -> Result<Sockets, NodeError> {
    let (nfs, nfs_address) = bind_tcp("NFS", config.listen_nfs)?;
    let (admin, admin_address) = bind_tcp("the admin API", config.listen_admin)?;
    let mut iscsi = Vec::new();
    for address in &config.listen_iscsi {
        iscsi.push(bind_tcp("iSCSI", *address)?.0);
    }
    let s3 = match config.listen_s3 {
        Some(address) => Some(bind_tcp("S3", address)?.0),
        None => None,
    };
    let dns = match config.listen_dns {
        Some(address) => {
            let failed = |source| listen_error("DNS", address, source);
            Some(cairn_dns::bind(address).map_err(failed)?)
        }
        None => None,
    };
    let mut rpcbind = Vec::new();
    let mut rpcbind_udp = Vec::new();
    if config.rpcbind != Some(false) {
        match bind_rpcbind(config.listen_nfs.ip()) {
            Ok((tcp, udp)) => {
                rpcbind.push(tcp);
                rpcbind_udp.push(udp);
            }
            // A user that did not ask for it can do without: their clients name the ports.
            Err(NodeError::Listen { source, .. }) if config.rpcbind.is_none() => {
                tracing::info!(
                    reason = %source,
                    "port 111 is not served: clients mount with proto=tcp,port=,mountport="
                );
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Sockets {
        nfs,
        nfs_address,
        admin,
        iscsi,
        s3,
        dns,
        admin_address,
        rpcbind,
        rpcbind_udp,
    })
}

fn bind_rpcbind(ip: IpAddr) -> Result<(TcpListener, UdpSocket), NodeError> {
    let address = SocketAddr::new(ip, RPCBIND_PORT);
    let (tcp, _) = bind_tcp("rpcbind", address)?;
    let udp = UdpSocket::bind(address)
        .map_err(|source| listen_error("rpcbind (UDP)", address, source))?;
    Ok((tcp, udp))
}

fn bind_tcp(
    what: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), NodeError> {
    let failed = |source| listen_error(what, address, source);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn listen_error(what: &'static str, address: SocketAddr, source: std::io::Error) -> NodeError {
    use std::io::ErrorKind;
    let flag = match what {
        "NFS" => "--listen-nfs",
        "the admin API" => "--listen-admin",
        "iSCSI" => "--listen-iscsi",
        "S3" => "--listen-s3",
        "DNS" => "--listen-dns",
        _ => "--rpcbind=false",
    };
    let hint = match source.kind() {
        ErrorKind::AddrInUse if flag == "--rpcbind=false" => {
            "; another port mapper runs (`rpcbind`): stop it, or use --rpcbind=false".to_owned()
        }
        ErrorKind::AddrInUse => format!(
            "; another program has the port: choose another with {flag} {}:PORT (0 picks a free one)",
            address.ip()
        ),
        ErrorKind::PermissionDenied => {
            format!("; ports below 1024 need root or CAP_NET_BIND_SERVICE; change it with {flag}")
        }
        ErrorKind::AddrNotAvailable => {
            format!("; this machine does not have the address; change it with {flag}")
        }
        _ => String::new(),
    };
    NodeError::Listen {
        what,
        address,
        source,
        hint,
    }
}

/// The address at which a program on this machine reaches a server that listens on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    use std::net::{IpAddr, Ipv4Addr};
    if address.ip().is_unspecified() {
        // A wildcard IPv6 socket accepts IPv4 as well.
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
    } else {
        address
    }
}
