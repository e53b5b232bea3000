//! Nodes without the CA's key get their certificates from those that have it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use cairn_base::NodeId;
use cairn_testkit::{ManualClock, TestWorld};
use cairn_trust::{
    Authority, ClusterFolder, Grants, IssueServer, Issuers, Listener, Protocol, Trust, TrustError,
    TrustSettings,
};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::common::{CLUSTER, DAY, Node, ONE, TWO, authority, echoes, membership, start, until};

const HOST: &str = "10.3.3.3";

/// What the map says.
#[derive(Default)]
struct Map {
    nodes: Mutex<BTreeSet<NodeId>>,
    holders: Mutex<BTreeSet<NodeId>>,
}

impl Grants for Map {
    fn hosts(&self, node: NodeId) -> Option<Vec<String>> {
        let is_there = self.nodes.lock().contains(&node);
        is_there.then(|| vec![HOST.to_owned()])
    }

    fn may_have_key(&self, node: NodeId) -> bool {
        self.holders.lock().contains(&node)
    }
}

/// Whom a node asks, in order.
struct Asked(Vec<(NodeId, String)>);

impl Issuers for Asked {
    fn issuers(&self) -> Vec<(NodeId, String)> {
        self.0.clone()
    }
}

/// A node that has the key.
async fn issuer(authority: &Authority, node: NodeId) -> (Node, Listener, Arc<Map>) {
    let node = Node::new(authority, node);
    let (listener, _) = node.listen_to_all().await;
    let map = Arc::new(Map::default());
    let server = IssueServer::new(node.trust.clone(), map.clone());
    listener.handle(Protocol::Issue, server);
    (node, listener, map)
}

/// A node that has no key of the CA, and a certificate as joining gives it.
struct Without {
    trust: Arc<Trust>,
    clock: ManualClock,
    _folder: TempDir,
}

impl Without {
    fn open(authority: &Authority, node: NodeId) -> Result<Self, TrustError> {
        Self::with(authority, node, |_| {})
    }

    /// `change`: what becomes of its folder before its first start.
    fn with(
        authority: &Authority,
        node: NodeId,
        change: impl FnOnce(&Path),
    ) -> Result<Self, TrustError> {
        let TestWorld { env, clock } = TestWorld::new(7);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster");
        let opened = ClusterFolder::create(&path).unwrap();
        let membership = membership(CLUSTER, node);
        let subject = cairn_trust::Subject {
            node,
            hosts: vec!["127.0.0.1".to_owned()],
        };
        let valid_for = TrustSettings::default().valid_for;
        let issued = authority.issue(&subject, start(), valid_for).unwrap();
        opened.save_certificate(&issued).unwrap();
        opened
            .establish(&membership, &authority.without_key())
            .unwrap();
        change(&path);
        let trust = Trust::open(env, Arc::new(opened), TrustSettings::default())?;
        Ok(Self {
            trust,
            clock,
            _folder: folder,
        })
    }

    fn has_key_file(&self) -> bool {
        self.trust.folder().path().join("ca.key").exists()
    }
}

fn asked(of: &[(&Node, &Listener)]) -> Arc<Asked> {
    let of = of.iter();
    let of = of.map(|(node, listener)| (node.trust.node(), listener.address().to_string()));
    Arc::new(Asked(of.collect()))
}

#[tokio::test]
async fn a_certificate_is_renewed_by_a_node_that_has_the_key() {
    let authority = authority();
    let (one, listener, map) = issuer(&authority, ONE).await;
    let two = Without::open(&authority, TWO).unwrap();
    assert!(!two.trust.authority().has_key() && !two.has_key_file());
    let first = two.trust.certificate();
    // Both clocks go on: less than a third is left.
    one.clock.step_wall(61 * DAY);
    two.clock.step_wall(61 * DAY);
    // It does not know whom to ask yet, and then those do not know it.
    two.trust.ask(asked(&[(&one, &listener)]));
    until("it is told why not", || {
        let problem = two.trust.problem();
        problem.is_some_and(|problem| problem.contains("is not in the cluster"))
    })
    .await;
    assert_eq!(two.trust.certificate(), first);
    map.nodes.lock().insert(TWO);
    // It would try again after a while; who says whom to ask has it look at once.
    two.trust.ask(asked(&[(&one, &listener)]));
    until("it has another certificate", || {
        two.trust.certificate() != first
    })
    .await;
    let next = two.trust.certificate();
    assert_eq!(next.key_pem, first.key_pem);
    assert!(next.expires > first.expires);
    assert_eq!(next.subject.node, TWO);
    // The map says which addresses are in it.
    assert!(next.subject.hosts.contains(&HOST.to_owned()));
    assert_eq!(two.trust.folder().certificate().unwrap(), next);
    assert!(!two.has_key_file());
    let address = listener.address().to_string();
    let connected = two.trust.connect(&address, ONE, Protocol::Forward).await;
    assert!(echoes(&mut connected.unwrap(), b"renewed").await);
}

#[tokio::test]
async fn the_key_goes_to_nodes_that_are_to_have_it_and_leaves_others() {
    let authority = authority();
    let (one, listener, map) = issuer(&authority, ONE).await;
    let two = Without::open(&authority, TWO).unwrap();
    map.nodes.lock().insert(TWO);
    let ca = authority.fingerprint();
    let unknown = two.trust.fetch_key(ca).await;
    let unknown = unknown.expect_err("nobody is known");
    assert!(matches!(unknown, TrustError::NoIssuer(_)), "{unknown}");
    // The first one that it asks has no key itself.
    let three = Without::open(&authority, NodeId(3)).unwrap();
    let other = Listener::bind(three.trust.clone(), "127.0.0.1:0", Default::default());
    let other = other.await.unwrap();
    other.handle(
        Protocol::Issue,
        IssueServer::new(three.trust.clone(), map.clone()),
    );
    let first = (NodeId(3), other.address().to_string());
    let second = (ONE, listener.address().to_string());
    two.trust.ask(Arc::new(Asked(vec![first, second])));
    let refused = two
        .trust
        .fetch_key(ca)
        .await
        .expect_err("it is not to have it");
    assert!(
        refused.to_string().contains("may not have the CA's key"),
        "{refused}"
    );
    assert!(!two.has_key_file());
    map.holders.lock().insert(TWO);
    two.trust.fetch_key(ca).await.unwrap();
    assert!(two.trust.authority().has_key() && two.has_key_file());
    let kept = two.trust.folder().authorities().unwrap();
    assert_eq!(kept.issuing().key_pem(), one.trust.authority().key_pem());
    // It makes its certificates by itself now.
    for clock in [&one.clock, &two.clock, &three.clock] {
        clock.step_wall(61 * DAY);
    }
    assert!(two.trust.renew_if_due().unwrap());

    two.trust.drop_key(ca).await.unwrap();
    assert!(!two.trust.authority().has_key() && !two.has_key_file());
    // Without another one that has it the key stays.
    listener.close().await;
    map.holders.lock().insert(NodeId(3));
    let alone = one.trust.drop_key(ca).await;
    assert!(alone.is_err() && one.trust.authority().has_key());
}

#[tokio::test]
async fn without_a_certificate_and_a_key_a_node_has_to_join_again() {
    let authority = authority();
    let other = Authority::create(CLUSTER, start()).unwrap();
    let remove =
        |name: &'static str| move |path: &Path| std::fs::remove_file(path.join(name)).unwrap();
    let stranger = Without::open(&other, TWO).unwrap();
    let foreign = stranger.trust.certificate();
    type Change = Box<dyn FnOnce(&Path)>;
    let cases: Vec<(&str, Change)> = vec![
        ("no certificate", Box::new(remove("node.pem"))),
        ("no key of it", Box::new(remove("node.key"))),
        (
            "one of another CA",
            Box::new(move |path: &Path| {
                std::fs::write(path.join("node.pem"), &foreign.certificate_pem).unwrap();
                std::fs::write(path.join("node.key"), &foreign.key_pem).unwrap();
            }),
        ),
    ];
    for (name, change) in cases {
        let opened = Without::with(&authority, TWO, change).map(drop);
        let error = opened.expect_err(name);
        assert!(
            matches!(error, TrustError::Rejoin { .. }),
            "{name}: {error}"
        );
        assert!(error.to_string().contains("--takes-over"), "{error}");
    }
}
