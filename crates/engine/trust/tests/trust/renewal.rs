//! Certificates renew themselves while connections live.

use std::time::Duration;

use cairn_trust::{Protocol, TrustSettings};

use crate::common::{Node, ONE, TWO, authority, echoes, until};

const VALID_FOR: Duration = Duration::from_secs(900);

fn short() -> TrustSettings {
    TrustSettings {
        valid_for: VALID_FOR,
        ..TrustSettings::default()
    }
}

#[tokio::test]
async fn a_renewal_disturbs_no_connection() {
    let authority = authority();
    let one = Node::with(&authority, ONE, short());
    let two = Node::with(&authority, TWO, short());
    let (listener, _) = two.listen_to_all().await;
    let address = listener.address();
    let mut old = one.connect(address, TWO, Protocol::Forward).await.unwrap();
    let nodes = [&one, &two];
    let first = nodes.map(|node| node.trust.certificate());
    for _ in 0..5 {
        let before = nodes.map(|node| node.trust.certificate());
        for (node, before) in nodes.iter().zip(&before) {
            let mut expires = node.trust.expires();
            let left = before.expires.seconds - node.env.clock.now().seconds;
            // Each is renewed when less than a third is left, without being asked.
            let due = Duration::from_secs(left as u64) - VALID_FOR / 3;
            node.clock.advance(due + Duration::from_secs(1));
            // It may have been about to sleep.
            until("it is renewed", || {
                node.clock.advance(Duration::from_millis(1));
                expires.has_changed().unwrap()
            })
            .await;
            assert_ne!(node.trust.certificate(), *before);
            assert_eq!(
                *expires.borrow_and_update(),
                node.trust.certificate().expires
            );
        }
        assert!(echoes(&mut old, b"old").await);
        let mut new = one.connect(address, TWO, Protocol::Forward).await.unwrap();
        assert!(echoes(&mut new, b"new").await);
        let back = two.listen_to_all().await;
        let mut second = one
            .connect(back.0.address(), TWO, Protocol::Forward)
            .await
            .unwrap();
        assert!(echoes(&mut second, b"x").await);
        back.0.close().await;
    }
    for (node, first) in nodes.iter().zip(first) {
        let last = node.trust.certificate();
        // By now the first one would be refused.
        assert!(last.expires > first.expires && node.env.clock.now() > first.expires);
        assert_eq!(last.key_pem, first.key_pem);
        assert_eq!(node.trust.folder().certificate().unwrap(), last);
        assert_eq!(node.trust.problem(), None);
    }
}

#[tokio::test]
async fn a_clock_that_steps_makes_another_certificate() {
    let one = Node::with(&authority(), ONE, short());
    assert!(!one.trust.renew_if_due().unwrap());
    for step in [100 * 24 * 3600, -200 * 24 * 3600] {
        let before = one.trust.certificate();
        one.clock.step_wall(step);
        assert!(one.trust.renew_if_due().unwrap());
        let after = one.trust.certificate();
        assert_ne!(after, before);
        let now = one.env.clock.now();
        assert!(after.begins < now && now < after.expires);
        assert!(!one.trust.renew_if_due().unwrap());
    }
}

#[tokio::test]
async fn a_renewal_that_fails_is_told_and_tried_again() {
    let authority = authority();
    let one = Node::with(&authority, ONE, short());
    let two = Node::new(&authority, TWO);
    let (listener, _) = two.listen_to_all().await;
    one.settled().await;
    let path = one.trust.folder().path().to_owned();
    let away = path.with_extension("away");
    std::fs::rename(&path, &away).unwrap();
    one.clock.step_wall(700);
    let before = one.trust.certificate();
    let error = one.trust.renew_if_due().expect_err("no folder");
    assert_eq!(one.trust.problem(), Some(error.to_string()));
    assert!(error.to_string().contains("node."), "{error}");
    // A certificate that is not written is not used: after a restart it would be another one.
    assert_eq!(one.trust.certificate(), before);
    let connected = one
        .connect(listener.address(), TWO, Protocol::Forward)
        .await;
    assert!(echoes(&mut connected.unwrap(), b"x").await);

    std::fs::rename(&away, &path).unwrap();
    assert!(one.trust.renew_if_due().unwrap());
    assert_eq!(one.trust.problem(), None);
}
