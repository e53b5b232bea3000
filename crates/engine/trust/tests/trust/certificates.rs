//! What unauthorized clients get to see.

use rustls::pki_types::CertificateDer;
use tokio::io::AsyncReadExt;

use crate::common::{CLUSTER, Node, TWO, authority, membership};
use crate::raw;

fn contains(certificate: &CertificateDer<'_>, text: &str) -> bool {
    certificate
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn a_stranger_sees_ids_and_addresses_alone() {
    let two = Node::new(&authority(), TWO);
    let (listener, _) = two.listen_to_all().await;
    let mut stream = raw::connect(listener.address(), None, &["cairn-join/1"])
        .await
        .unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap().to_vec();
    // Its own, and that of the CA.
    assert_eq!(shown.len(), 2);
    let membership = membership(CLUSTER, TWO);
    for certificate in &shown {
        assert!(contains(certificate, &CLUSTER.to_string()));
        for name in [&membership.cluster_name, &membership.node_name] {
            assert!(!contains(certificate, name), "{name}");
        }
    }
    // After that, one byte until it asks.
    assert_eq!(stream.read_u8().await.unwrap(), 0);
    let mut byte = [0];
    let more = futures_util::poll!(std::pin::pin!(stream.read(&mut byte)));
    assert!(more.is_pending());
}
