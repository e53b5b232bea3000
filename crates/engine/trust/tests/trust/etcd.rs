//! etcd accepts a node's certificate for all that it needs one for.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cairn_base::NodeId;
use cairn_cluster::{
    Etcd, EtcdMember, EtcdMemberSettings, EtcdMemberTls, EtcdSettings, EtcdTls, MemberError,
    check_program,
};
use cairn_testkit::free_ports;
use cairn_trust::{Authority, ClusterFolder, NodeCertificate, Trust, TrustSettings};

use crate::common::{CLUSTER, membership};

const PATIENCE: Duration = Duration::from_secs(60);

fn tls(authority: &Authority, client: Option<&NodeCertificate>) -> EtcdTls {
    let client = client.map(|certificate| {
        let pem = certificate.certificate_pem.clone();
        (pem.into_bytes(), certificate.key_pem.clone().into_bytes())
    });
    EtcdTls {
        ca: authority.certificate_pem().as_bytes().to_vec(),
        client,
    }
}

async fn connects(url: &str, tls: EtcdTls) -> bool {
    let mut settings = EtcdSettings::new(vec![url.to_owned()]);
    settings.tls = Some(tls);
    Etcd::connect(settings).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_runs_on_certificates_of_nodes() {
    if let Err(error @ MemberError::NotInstalled { .. }) = check_program("etcd".as_ref()).await {
        eprintln!("SKIPPED: {error}");
        return;
    }
    // etcd has a clock of its own.
    let env = cairn_base::real::env(tokio::runtime::Handle::current());
    let authority = Authority::create(CLUSTER, env.clock.now()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nodes: Vec<_> = (1..=3_u128)
        .map(|id| {
            let path = folder.path().join(id.to_string());
            let opened = ClusterFolder::create(&path).unwrap();
            opened
                .establish(&membership(CLUSTER, NodeId(id)), &authority)
                .unwrap();
            Trust::open(env.clone(), opened.into(), TrustSettings::default()).unwrap()
        })
        .collect();
    let ports = free_ports(6);
    let (peer_ports, client_ports) = ports.split_at(3);
    let peers: Vec<(String, String)> = (1..=3)
        .zip(peer_ports)
        .map(|(id, port)| (format!("m{id}"), format!("https://127.0.0.1:{port}")))
        .collect();
    let mut members = Vec::new();
    for ((trust, (name, peer_url)), port) in nodes.iter().zip(&peers).zip(client_ports) {
        let settings = EtcdMemberSettings {
            program: PathBuf::from("etcd"),
            name: name.clone(),
            folder: trust.folder().path().join("etcd"),
            peer_url: peer_url.clone(),
            client_url: format!("https://127.0.0.1:{port}"),
            members: peers.clone(),
            joins: false,
            cluster: "test".to_owned(),
            tls: Some(EtcdMemberTls {
                ca: trust.folder().authority_path(),
                certificate: trust.folder().certificate_path(),
                key: trust.folder().key_path(),
                client: tls(&authority, Some(&trust.certificate())),
            }),
        };
        members.push(EtcdMember::start(settings).await.unwrap());
    }
    for member in &members {
        let healthy = member.wait_until_healthy(PATIENCE).await;
        healthy.expect("the members reach one another");
    }

    let url = members[0].client_url();
    let other = Authority::create(CLUSTER, env.clock.now()).unwrap();
    let subject = nodes[1].certificate().subject;
    let day = Duration::from_secs(24 * 3600);
    let foreign = other.issue(&subject, env.clock.now(), day).unwrap();
    let own = nodes[1].certificate();
    assert!(connects(url, tls(&authority, Some(&own))).await);
    let by_name = url.replace("127.0.0.1", "localhost");
    assert!(connects(&by_name, tls(&authority, Some(&own))).await);
    assert!(!connects(url, tls(&authority, None)).await);
    assert!(!connects(url, tls(&authority, Some(&foreign))).await);
    assert!(!connects(url, tls(&other, Some(&own))).await);

    // etcd reads a renewed certificate by itself. One that is no certificate shows that it does.
    let path = nodes[0].folder().certificate_path();
    let renewed = authority
        .renew(
            &nodes[0].certificate(),
            &nodes[0].certificate().subject,
            env.clock.now(),
            day,
        )
        .unwrap();
    fs::write(&path, "damaged").unwrap();
    assert!(!connects(url, tls(&authority, Some(&own))).await);
    nodes[0].folder().save_certificate(&renewed).unwrap();
    assert!(connects(url, tls(&authority, Some(&own))).await);
    for member in members {
        member.stop().await;
    }
}
