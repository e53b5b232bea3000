//! What the tests share: nodes, what they serve, and patience.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::env::{BoxFuture, Env};
use cairn_base::{NodeId, PoolId, Timestamp};
use cairn_testkit::ManualClock;
use cairn_testkit::TestWorld;
use cairn_trust::{
    Authority, ClusterFolder, EtcdSource, HandleKey, Handler, Listener, ListenerSettings,
    Membership, NodeStream, PeerIdentity, Protocol, Stage, Trust, TrustSettings,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub const CLUSTER: PoolId = PoolId(0xc1);
pub const ONE: NodeId = NodeId(1);
pub const TWO: NodeId = NodeId(2);
pub const HOUR: i64 = 3600;
pub const DAY: i64 = 24 * HOUR;
/// Of real time, for what takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// When all clocks begin.
pub fn start() -> Timestamp {
    TestWorld::new(1).env.clock.now()
}

pub fn authority() -> Authority {
    Authority::create(CLUSTER, start()).expect("a CA")
}

pub fn membership(cluster: PoolId, node: NodeId) -> Membership {
    Membership {
        format: 1,
        cluster,
        cluster_name: "the-cluster".to_owned(),
        node,
        node_name: format!("name-of-{}", node.0),
        internal_address: "127.0.0.1:7700".to_owned(),
        external_address: "127.0.0.1".to_owned(),
        handle_key: HandleKey(7),
        etcd: EtcdSource::Given {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            insecure: false,
        },
        stage: Stage::Member,
    }
}

/// A node with its folder, by a clock of its own.
pub struct Node {
    pub env: Env,
    pub clock: ManualClock,
    pub trust: Arc<Trust>,
    pub folder: TempDir,
}

impl Node {
    pub fn new(authority: &Authority, node: NodeId) -> Self {
        Self::with(authority, node, TrustSettings::default())
    }

    pub fn with(authority: &Authority, node: NodeId, settings: TrustSettings) -> Self {
        Self::at(authority, node, settings, 0)
    }

    /// A node whose clock is so many seconds from where it should be, from the beginning.
    pub fn at(authority: &Authority, node: NodeId, settings: TrustSettings, skew: i64) -> Self {
        let TestWorld { env, clock } = TestWorld::new(1);
        clock.step_wall(skew);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cluster");
        let opened = ClusterFolder::create(&path).expect("a new folder");
        opened
            .establish(&membership(authority.cluster(), node), authority)
            .expect("a folder of a member");
        let trust = Trust::open(env.clone(), Arc::new(opened), settings).expect("trust");
        Self {
            env,
            clock,
            trust,
            folder,
        }
    }

    /// Waits until the certificate was looked at for the first time.
    pub async fn settled(&self) {
        until("it sleeps until the certificate is due", || {
            self.clock.next_deadline().is_some()
        })
        .await;
    }

    pub async fn listen(&self, settings: ListenerSettings) -> Listener {
        Listener::bind(self.trust.clone(), "127.0.0.1:0", settings)
            .await
            .expect("a listener")
    }

    /// Listens, with an echo for every protocol.
    pub async fn listen_to_all(&self) -> (Listener, Arc<Echo>) {
        let listener = self.listen(ListenerSettings::default()).await;
        let echo = Arc::new(Echo::default());
        for protocol in Protocol::ALL {
            listener.handle(protocol, echo.clone());
        }
        (listener, echo)
    }

    pub async fn connect(
        &self,
        address: SocketAddr,
        node: NodeId,
        protocol: Protocol,
    ) -> io::Result<NodeStream> {
        let address = address.to_string();
        self.trust.connect(&address, node, protocol).await
    }

    /// Why there is no connection.
    pub async fn refused(&self, address: SocketAddr, node: NodeId) -> String {
        let connected = self.connect(address, node, Protocol::Shards).await;
        connected.expect_err("no connection").to_string()
    }
}

/// Sends everything back, and remembers who came.
#[derive(Default)]
pub struct Echo {
    pub peers: Mutex<Vec<PeerIdentity>>,
}

impl Handler for Echo {
    fn serve(self: Arc<Self>, peer: PeerIdentity, mut stream: NodeStream) -> BoxFuture<()> {
        self.peers.lock().push(peer);
        Box::pin(async move {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut bytes).await {
                let sent = stream.write_all(&bytes[..len]).await;
                if sent.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
        })
    }
}

/// Whether what is sent comes back.
pub async fn echoes(stream: &mut NodeStream, bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    let talking = async {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        stream.read_exact(&mut back).await
    };
    talking.await.is_ok() && back == bytes
}

/// Waits for what other tasks do. Sockets are the system's, so only real time tells that it will not come.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// Waits until something sleeps to that moment, counted from the beginning of the clock.
pub async fn until_sleeps_to(clock: &ManualClock, moment: Duration) {
    until("somebody sleeps", || clock.next_deadline() == Some(moment)).await;
}
