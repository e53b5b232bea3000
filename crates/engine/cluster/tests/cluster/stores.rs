//! The two stores that tests run against, and what a test does to them.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_cluster::map::{HighWater, HighWaterStore};
use cairn_cluster::{
    Coordinator, Etcd, EtcdMember, EtcdMemberSettings, EtcdSettings, Key, KeyRange, MemberError,
    MemoryCoordinator, Op, Outcome, Revision, Txn, TxnReply, WatchEvent, Watcher, check_program,
};
use cairn_testkit::{ManualClock, TestWorld, free_ports};
use parking_lot::Mutex;

/// No answer of a store takes this long, also on a machine with far more to do than it can.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One store and the means to do to it what a test wants.
pub struct World {
    pub name: &'static str,
    pub coordinator: Arc<dyn Coordinator>,
    pub env: Env,
    pub kind: Kind,
}

pub enum Kind {
    Memory(MemoryCoordinator, ManualClock),
    Etcd(EtcdCluster),
}

impl World {
    pub fn memory() -> Self {
        let TestWorld { env, clock } = TestWorld::new(1);
        let memory = MemoryCoordinator::new(env.clone());
        Self {
            name: "memory",
            coordinator: memory.client("test"),
            env,
            kind: Kind::Memory(memory, clock),
        }
    }

    /// A real etcd of one member, unless none is installed.
    pub async fn etcd() -> Option<Self> {
        let cluster = EtcdCluster::start(1).await?;
        let etcd = Etcd::connect(cluster.patient_settings())
            .await
            .expect("etcd answers");
        Some(Self {
            name: "etcd",
            coordinator: Arc::new(etcd),
            env: cairn_base::real::env(tokio::runtime::Handle::current()),
            kind: Kind::Etcd(cluster),
        })
    }

    /// Lets time pass where it does not pass by itself.
    pub fn pass(&self, time: Duration) {
        if let Kind::Memory(_, clock) = &self.kind {
            clock.advance(time);
        }
    }

    pub async fn compact(&self, revision: Revision) {
        match &self.kind {
            Kind::Memory(memory, _) => memory.compact(revision),
            Kind::Etcd(cluster) => {
                let mut client = cluster.client().await;
                client
                    .compact(revision.0 as i64, None)
                    .await
                    .expect("etcd compacts");
            }
        }
    }

    pub async fn put(&self, key: &str, value: &str) -> Revision {
        let op = Op::put(Key::new(key), value.into());
        self.done(Txn {
            then: vec![op],
            ..Txn::default()
        })
        .await
        .revision
    }

    pub async fn done(&self, txn: Txn) -> TxnReply {
        match self.coordinator.transact(txn).await {
            Outcome::Done(reply) => reply,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    pub async fn value(&self, key: &str) -> Option<String> {
        let reply = self.coordinator.range(KeyRange::One(Key::new(key))).await;
        let entry = reply.expect("the store answers").one()?;
        Some(String::from_utf8(entry.value).expect("text"))
    }

    pub fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watcher> {
        self.coordinator
            .watch(KeyRange::Prefix(prefix.to_owned()), from)
    }
}

/// The next event of a watch; it must come.
pub async fn next(watcher: &mut dyn Watcher) -> WatchEvent {
    within(watcher.next()).await
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it happens in time")
}

/// Runs one test against both stores, each time in a world of its own.
pub async fn on_both<F: Future<Output = ()>>(test: impl Fn(Arc<World>) -> F) {
    test(Arc::new(World::memory())).await;
    if let Some(world) = World::etcd().await {
        test(Arc::new(world)).await;
    }
}

/// Several etcd members on free ports of this machine, in a folder that goes with them.
pub struct EtcdCluster {
    pub members: Vec<Option<EtcdMember>>,
    pub settings: Vec<EtcdMemberSettings>,
    _folder: tempfile::TempDir,
}

impl EtcdCluster {
    pub async fn start(count: usize) -> Option<Self> {
        Self::start_with(count, |_| {}).await
    }

    pub async fn start_with(
        count: usize,
        change: impl Fn(&mut EtcdMemberSettings),
    ) -> Option<Self> {
        if let Err(error @ MemberError::NotInstalled { .. }) = check_program("etcd".as_ref()).await
        {
            eprintln!("SKIPPED: {error}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let ports = free_ports(2 * count);
        let members: Vec<(String, String)> = (0..count)
            .map(|i| {
                (
                    format!("m{i}"),
                    format!("http://127.0.0.1:{}", ports[2 * i]),
                )
            })
            .collect();
        let mut cluster = Self {
            members: Vec::new(),
            settings: Vec::new(),
            _folder: folder,
        };
        for (i, (name, peer_url)) in members.iter().enumerate() {
            let mut settings = EtcdMemberSettings {
                program: PathBuf::from("etcd"),
                name: name.clone(),
                folder: cluster._folder.path().join(name),
                peer_url: peer_url.clone(),
                client_url: format!("http://127.0.0.1:{}", ports[2 * i + 1]),
                members: members.clone(),
                joins: false,
                cluster: "test".to_owned(),
                tls: None,
            };
            change(&mut settings);
            cluster.settings.push(settings.clone());
            let member = EtcdMember::start(settings).await.expect("etcd starts");
            cluster.members.push(Some(member));
        }
        for member in cluster.members.iter().flatten() {
            member
                .wait_until_healthy(PATIENCE)
                .await
                .expect("etcd becomes healthy");
        }
        Some(cluster)
    }

    /// A member that does not answer is left as soon as elsewhere; a request is given up later.
    pub fn settings(&self) -> EtcdSettings {
        EtcdSettings {
            request_timeout: PATIENCE / 2,
            ..self.usual_settings()
        }
    }

    /// Of one member: there is no other that would be asked in its place.
    pub fn patient_settings(&self) -> EtcdSettings {
        EtcdSettings {
            attempt_timeout: PATIENCE / 2,
            ..self.settings()
        }
    }

    pub fn usual_settings(&self) -> EtcdSettings {
        EtcdSettings::new(
            self.settings
                .iter()
                .map(|settings| settings.client_url.clone())
                .collect(),
        )
    }

    pub async fn client(&self) -> etcd_client::Client {
        let urls: Vec<_> = self
            .settings
            .iter()
            .map(|settings| &settings.client_url)
            .collect();
        etcd_client::Client::connect(urls, None)
            .await
            .expect("etcd answers")
    }

    /// Kills a member that is not started again by itself.
    pub fn kill(&mut self, index: usize) {
        self.members[index] = None;
    }

    pub async fn start_again(&mut self, index: usize) {
        let member = EtcdMember::start(self.settings[index].clone())
            .await
            .expect("etcd starts");
        self.members[index] = Some(member);
    }
}

/// Remembers the highest state for as long as the test runs.
#[derive(Clone, Default)]
pub struct MemoryHighWater(pub Arc<Mutex<Option<HighWater>>>);

impl HighWaterStore for MemoryHighWater {
    fn load(&self) -> Result<Option<HighWater>, String> {
        Ok(*self.0.lock())
    }

    fn store(&self, seen: HighWater) -> Result<(), String> {
        *self.0.lock() = Some(seen);
        Ok(())
    }
}
