//! One CA takes the place of another, while nodes talk with one another.

use std::sync::Arc;

use cairn_base::NodeId;
use cairn_trust::{Fingerprint, Grants, IssueServer, Issuers, Listener, Protocol};

use crate::common::{Node, ONE, TWO, authority, echoes, until};

const THREE: NodeId = NodeId(3);

/// All nodes are of the cluster, and may have keys.
struct All;

impl Grants for All {
    fn hosts(&self, _: NodeId) -> Option<Vec<String>> {
        Some(vec!["127.0.0.1".to_owned()])
    }

    fn may_have_key(&self, _: NodeId) -> bool {
        true
    }
}

struct Asks(NodeId, String);

impl Issuers for Asks {
    fn issuers(&self) -> Vec<(NodeId, String)> {
        vec![(self.0, self.1.clone())]
    }
}

async fn reaches(from: &Node, to: &Node, listener: &Listener) -> bool {
    let node = to.trust.node();
    let connected = from.connect(listener.address(), node, Protocol::Forward);
    match connected.await {
        Ok(mut stream) => echoes(&mut stream, b"x").await,
        Err(_) => false,
    }
}

fn prints(node: &Node) -> Vec<Fingerprint> {
    let kept = node.trust.folder().authorities().unwrap();
    let kept: Vec<Fingerprint> = kept.all().map(|it| it.fingerprint()).collect();
    let used = node.trust.authorities();
    let used: Vec<Fingerprint> = used.all().map(|it| it.fingerprint()).collect();
    assert_eq!(kept, used, "what is used is what a start would find");
    used
}

#[tokio::test]
async fn nodes_reach_one_another_while_an_authority_takes_the_place_of_another() {
    let authority = authority();
    let old = authority.fingerprint();
    let (one, two) = (Node::new(&authority, ONE), Node::new(&authority, TWO));
    // One that is removed before, and keeps what it has.
    let gone = Node::new(&authority, THREE);
    let (at_one, _) = one.listen_to_all().await;
    let (at_two, _) = two.listen_to_all().await;
    let server = IssueServer::new(one.trust.clone(), Arc::new(All));
    at_one.handle(Protocol::Issue, server);
    let asks = Asks(ONE, at_one.address().to_string());
    two.trust.ask(Arc::new(asks));
    let both_ways = async || {
        assert!(reaches(&one, &two, &at_two).await);
        assert!(reaches(&two, &one, &at_one).await);
    };
    let lasting = one.connect(at_two.address(), TWO, Protocol::Forward).await;
    let mut lasting = lasting.unwrap();

    let made = one.trust.make_another().unwrap();
    let new = made.fingerprint();
    assert_eq!(prints(&one), [old, new]);
    both_ways().await;
    assert!(two.trust.prefer(new).is_err(), "it does not trust it yet");
    assert!(gone.trust.distrust(old).is_err(), "it would trust nobody");
    two.trust.trust_also(made.without_key()).unwrap();
    // Begun again it is done already.
    two.trust.trust_also(made.without_key()).unwrap();
    assert_eq!(prints(&two), [old, new]);
    both_ways().await;

    // The one without the key asks for a certificate of that very CA, and begins before the other one does.
    two.trust.prefer(new).unwrap();
    assert!(two.trust.distrust(old).is_err(), "its certificate is of it");
    assert_eq!(prints(&two), [new, old]);
    two.trust.renew_soon();
    let before = [&one, &two].map(|node| node.trust.certificate());
    until("it has a certificate of the new CA", || {
        two.trust.issuer() == new
    })
    .await;
    assert!(!two.trust.authority().has_key());
    both_ways().await;
    two.trust.fetch_key(new).await.unwrap();
    assert!(two.trust.authority().has_key());
    one.trust.prefer(new).unwrap();
    assert!(one.trust.renew_if_due().unwrap());
    assert_eq!(one.trust.issuer(), new);
    assert!(!one.trust.renew_if_due().unwrap());
    both_ways().await;
    // Everybody sees the certificates, so that keys of before must not go with them.
    for (node, before) in [&one, &two].iter().zip(&before) {
        let now = node.trust.certificate();
        assert_ne!(now.key_pem, before.key_pem);
        assert_eq!(node.trust.folder().certificate().unwrap(), now);
        assert!(!node.trust.folder().path().join("node.key.next").exists());
    }
    // A folder that was saved before is as good as ever until the old CA is dropped.
    assert!(
        !reaches(&gone, &one, &at_one).await,
        "it does not know the new one"
    );
    gone.trust.trust_also(made.without_key()).unwrap();
    assert!(reaches(&gone, &one, &at_one).await);

    one.trust.distrust(old).unwrap();
    both_ways().await;
    two.trust.distrust(old).unwrap();
    both_ways().await;
    for (node, listener) in [(&one, &at_one), (&two, &at_two)] {
        assert_eq!(prints(node), [new]);
        let folder = node.trust.folder().path();
        let keys = std::fs::read_to_string(folder.join("ca.key")).unwrap();
        assert!(!keys.contains(authority.key_pem().unwrap()));
        assert!(!reaches(&gone, node, listener).await);
    }
    assert!(echoes(&mut lasting, b"as before").await);
}

#[tokio::test]
async fn a_certificate_has_its_key_whatever_a_crash_comes_after() {
    let authority = authority();
    let one = Node::new(&authority, ONE);
    let folder = one.trust.folder();
    let path = |name: &str| folder.path().join(name);
    let [old_pem, old_key] =
        ["node.pem", "node.key"].map(|name| std::fs::read(path(name)).unwrap());
    let first = folder.certificate().unwrap();
    let valid_for = std::time::Duration::from_secs(3600);
    let next = authority.issue(&first.subject, crate::common::start(), valid_for);
    let next = next.unwrap();
    assert_ne!(next.key_pem, first.key_pem);
    // After the key alone, after the certificate, and after all.
    std::fs::write(path("node.key.next"), &next.key_pem).unwrap();
    assert_eq!(folder.certificate().unwrap(), first);
    std::fs::write(path("node.pem"), &next.certificate_pem).unwrap();
    assert_eq!(folder.certificate().unwrap(), next);
    assert!(!path("node.key.next").exists());
    assert_eq!(folder.certificate().unwrap(), next);
    std::fs::write(path("node.pem"), old_pem).unwrap();
    std::fs::write(path("node.key"), old_key).unwrap();
    folder.save_certificate(&next).unwrap();
    assert_eq!(folder.certificate().unwrap(), next);
    assert!(!path("node.key.next").exists());
}

#[tokio::test]
async fn the_key_of_an_authority_that_is_not_trusted_goes_with_the_next_start() {
    let authority = authority();
    let one = Node::new(&authority, ONE);
    let made = one.trust.make_another().unwrap();
    let path = one.trust.folder().path().to_owned();
    let Node {
        folder, trust, env, ..
    } = one;
    drop(trust);
    // As a crash leaves it: the certificate was not written any more.
    std::fs::write(path.join("ca.pem"), authority.certificate_pem()).unwrap();
    let opened = cairn_trust::ClusterFolder::open(&path).unwrap();
    let settings = cairn_trust::TrustSettings::default();
    let trust = cairn_trust::Trust::open(env, Arc::new(opened), settings).unwrap();
    assert!(trust.authorities().other().is_none() && trust.authority().has_key());
    let keys = std::fs::read_to_string(path.join("ca.key")).unwrap();
    assert_eq!(Some(keys.as_str()), authority.key_pem());
    assert!(!keys.contains(made.key_pem().unwrap()));
    drop(folder);
}
