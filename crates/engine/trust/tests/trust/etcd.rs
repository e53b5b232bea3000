//! etcd accepts a node's certificate for all that it needs one for.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, NodeId, VolumeId};
use cairn_cluster::map::{Keys, NameKind};
use cairn_cluster::{
    Coordinator, CoordinatorError, Etcd, EtcdMember, EtcdMemberSettings, EtcdMemberTls,
    EtcdSettings, EtcdTls, Key, KeyRange, MemberError, Op, Outcome, Txn, UserRights, check_program,
};
use cairn_testkit::free_ports;
use cairn_trust::{
    Authority, ClusterFolder, NodeCertificate, Revoked, Subject, Trust, TrustSettings,
};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{CLUSTER, membership};
use crate::raw;

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

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

/// What a node shows etcd, and which CAs it trusts.
fn shown(trust: &Trust) -> EtcdTls {
    let certificate = trust.certificate();
    EtcdTls {
        ca: trust.authorities().certificates_pem().into_bytes(),
        client: Some((
            certificate.certificate_pem.into_bytes(),
            certificate.key_pem.into_bytes(),
        )),
    }
}

async fn connects(url: &str, tls: EtcdTls) -> bool {
    let mut settings = EtcdSettings::new(vec![url.to_owned()]);
    settings.tls = Some(tls);
    Etcd::connect(settings).await.is_ok()
}

/// As [`connects`], of one who must be let in: a try may take too long on a busy machine.
async fn connects_in_time(url: &str, tls: EtcdTls) -> bool {
    let connected = async {
        while !connects(url, tls.clone()).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, connected).await.is_ok()
}

fn is_refused<T: std::fmt::Debug>(done: Result<T, CoordinatorError>) {
    assert!(
        matches!(done, Err(CoordinatorError::Refused(_))),
        "{done:?}"
    );
}

async fn get(etcd: &Etcd, key: &str) -> Result<Option<String>, CoordinatorError> {
    let reply = etcd.range(KeyRange::One(Key::new(key))).await?;
    let entry = reply.one();
    Ok(entry.map(|entry| String::from_utf8(entry.value).unwrap()))
}

/// To put a value again does no harm.
async fn put(etcd: &Etcd, key: &str, value: &str) -> Result<(), CoordinatorError> {
    loop {
        let txn = Txn {
            then: vec![Op::put(Key::new(key), value.into())],
            ..Txn::default()
        };
        match etcd.transact(txn).await {
            Outcome::Done(_) => return Ok(()),
            Outcome::Failed(error) => return Err(error),
            Outcome::Unknown(_) => {}
            refused @ Outcome::Refused(_) => panic!("{refused:?}"),
        }
    }
}

/// Three nodes with a member of etcd each.
struct World {
    env: Env,
    authority: Authority,
    nodes: Vec<Arc<Trust>>,
    members: Vec<EtcdMember>,
    /// Of members, for one another.
    peer_urls: Vec<String>,
    _folder: TempDir,
}

impl World {
    /// `None`: no etcd is installed.
    async fn start() -> Option<Self> {
        if let Err(error @ MemberError::NotInstalled { .. }) = check_program("etcd".as_ref()).await
        {
            eprintln!("SKIPPED: {error}");
            return None;
        }
        // etcd has a clock of its own.
        let env = cairn_base::real::env(tokio::runtime::Handle::current());
        let authority = Authority::create(CLUSTER, env.clock.now()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let nodes = (1..=3_u128).map(|id| {
            let path = folder.path().join(id.to_string());
            let opened = ClusterFolder::create(&path).unwrap();
            opened
                .establish(&membership(CLUSTER, NodeId(id)), &authority)
                .unwrap();
            Trust::open(env.clone(), opened.into(), TrustSettings::default()).unwrap()
        });
        let ports = free_ports(6);
        let (peer_ports, client_ports) = ports.split_at(3);
        let url = |port: &u16| format!("https://127.0.0.1:{port}");
        let mut world = Self {
            nodes: nodes.collect(),
            env,
            authority,
            members: Vec::new(),
            peer_urls: peer_ports.iter().map(url).collect(),
            _folder: folder,
        };
        world.keep_revoked(&[]);
        let peers = world.peer_urls.iter().enumerate();
        let peers: Vec<(String, String)> = peers
            .map(|(index, url)| (format!("m{index}"), url.clone()))
            .collect();
        for ((trust, (name, peer_url)), port) in world.nodes.iter().zip(&peers).zip(client_ports) {
            let settings = EtcdMemberSettings {
                program: PathBuf::from("etcd"),
                name: name.clone(),
                folder: trust.folder().path().join("etcd"),
                peer_url: peer_url.clone(),
                client_url: url(port),
                members: peers.clone(),
                joins: false,
                cluster: "test".to_owned(),
                tls: Some(EtcdMemberTls {
                    ca: trust.folder().authority_path(),
                    certificate: trust.folder().certificate_path(),
                    key: trust.folder().key_path(),
                    revoked: trust.folder().revoked_path(),
                    peer_name: world.authority.member_name(),
                    client: tls(&world.authority, Some(&trust.certificate())),
                }),
            };
            world
                .members
                .push(EtcdMember::start(settings).await.unwrap());
        }
        for member in &world.members {
            let healthy = member.wait_until_healthy(PATIENCE).await;
            healthy.expect("the members reach one another");
        }
        Some(world)
    }

    fn keep_revoked(&self, revoked: &[Revoked]) {
        let now = self.env.clock.now();
        let list = self.authority.revocation_list(revoked, now).unwrap();
        for trust in &self.nodes {
            trust.folder().save_revoked(&list).unwrap();
        }
    }

    /// The certificate of a node that runs no member.
    fn issue(&self, node: NodeId) -> NodeCertificate {
        let subject = Subject {
            node,
            hosts: Vec::new(),
        };
        let issued = self.authority.issue(&subject, self.env.clock.now(), DAY);
        issued.unwrap()
    }

    async fn client(&self, certificate: &NodeCertificate) -> Etcd {
        let urls = self.members.iter().map(|it| it.client_url().to_owned());
        let mut settings = EtcdSettings::new(urls.collect());
        // What changes users is not asked again when it may be done.
        settings.attempt_timeout = PATIENCE / 6;
        settings.request_timeout = PATIENCE;
        settings.tls = Some(tls(&self.authority, Some(certificate)));
        Etcd::connect(settings).await.unwrap()
    }

    /// Has the member of a node start again, and waits until it is well.
    async fn start_again(&self, index: usize) {
        let member = &self.members[index];
        let mut states = member.start_again();
        let again = tokio::time::timeout(PATIENCE, states.changed()).await;
        again.expect("another process").unwrap();
        let well = async {
            while !connects(member.client_url(), shown(&self.nodes[index])).await {
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, well).await;
        in_time.expect("it is well again");
    }

    async fn stop(self) {
        for member in self.members {
            member.stop().await;
        }
    }
}

/// Whether the port for peers answers who shows a certificate.
async fn peer_answers(url: &str, certificate: &NodeCertificate) -> bool {
    let address = url.strip_prefix("https://").unwrap().parse().unwrap();
    let pair = raw::Pair::from(certificate.clone());
    let asking = async {
        let mut stream = raw::connect(address, Some(&pair), &[]).await?;
        stream
            .write_all(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        // However it ends: what counts is what was said.
        let _ = stream.read_to_end(&mut answer).await;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("in time");
    answer.is_ok_and(|answer| answer.contains("etcdserver"))
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_runs_on_certificates_of_nodes() {
    let Some(world) = World::start().await else {
        return;
    };
    let World {
        env,
        authority,
        nodes,
        members,
        ..
    } = &world;
    let url = members[0].client_url();
    let other = Authority::create(CLUSTER, env.clock.now()).unwrap();
    let subject = nodes[1].certificate().subject;
    let foreign = other.issue(&subject, env.clock.now(), DAY).unwrap();
    let own = nodes[1].certificate();
    assert!(connects_in_time(url, tls(authority, Some(&own))).await);
    let by_name = url.replace("127.0.0.1", "localhost");
    assert!(connects_in_time(&by_name, tls(authority, Some(&own))).await);
    assert!(!connects(url, tls(authority, None)).await);
    assert!(!connects(url, tls(authority, Some(&foreign))).await);
    assert!(!connects(url, tls(&other, Some(&own))).await);

    // etcd reads a renewed certificate by itself. One that is no certificate shows that it does.
    let path = nodes[0].folder().certificate_path();
    let renewed = authority
        .renew(
            &nodes[0].certificate(),
            &nodes[0].certificate().subject,
            env.clock.now(),
            DAY,
        )
        .unwrap();
    fs::write(&path, "damaged").unwrap();
    assert!(!connects(url, tls(authority, Some(&own))).await);
    nodes[0].folder().save_certificate(&renewed).unwrap();
    assert!(connects_in_time(url, tls(authority, Some(&own))).await);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_has_nothing_in_etcd() {
    let Some(world) = World::start().await else {
        return;
    };
    let certificates = [
        world.nodes[0].certificate(),
        world.issue(NodeId(4)),
        world.issue(NodeId(5)),
    ];
    let [all, keys, nobody] = [NodeId(1), NodeId(4), NodeId(5)].map(|node| node.to_string());
    let first = world.client(&certificates[0]).await;
    let second = world.client(&certificates[1]).await;
    let third = world.client(&certificates[2]).await;
    put(&third, "/c/a", "1").await.unwrap();
    let shared = [
        KeyRange::Prefix("/c/of-all/".to_owned()),
        KeyRange::One(Key::new("/c/a")),
    ];
    let own = [KeyRange::One(Key::new("/c/alive/4"))];
    // As of starts that were cut short after each step.
    for _ in 0..2 {
        first.prepare_rights("/c/", &shared).await.unwrap();
        first.set_user(&all, UserRights::All, &[]).await.unwrap();
    }
    put(&third, "/c/a", "2").await.unwrap();
    for _ in 0..2 {
        first.ask_for_users().await.unwrap();
    }
    first.prepare_rights("/c/", &shared).await.unwrap();
    first.set_user(&keys, UserRights::All, &own).await.unwrap();
    first.set_user(&keys, UserRights::Keys, &own).await.unwrap();
    let users = BTreeSet::from([all.clone(), keys.clone()]);
    assert_eq!(first.users().await.unwrap(), users);

    assert_eq!(get(&second, "/c/a").await.unwrap().as_deref(), Some("2"));
    put(&second, "/c/a", "3").await.unwrap();
    for key in ["/c/of-all/x", "/c/alive/4"] {
        put(&second, key, "3").await.unwrap();
    }
    // What others write it reads.
    put(&first, "/c/users", "1").await.unwrap();
    assert_eq!(
        get(&second, "/c/users").await.unwrap().as_deref(),
        Some("1")
    );
    for key in [
        "/c/users",
        "/c/b",
        "/c/ab",
        "/c/alive/5",
        "/c/alive/44",
        "/c/of-all",
    ] {
        is_refused(put(&second, key, "x").await);
    }
    let all_below = Op::Delete(KeyRange::Prefix("/c/alive/".to_owned()));
    let txn = Txn {
        then: vec![Op::put(Key::new("/c/a"), b"3".to_vec()), all_below],
        ..Txn::default()
    };
    let deleted = second.transact(txn).await;
    assert!(
        matches!(deleted, Outcome::Failed(CoordinatorError::Refused(_))),
        "{deleted:?}"
    );
    // Rights that are taken back are gone, those of one user like those of all; none are lost that stay.
    first.prepare_rights("/c/", &shared[1..]).await.unwrap();
    let other = [KeyRange::One(Key::new("/c/alive/44"))];
    first
        .set_user(&keys, UserRights::Keys, &other)
        .await
        .unwrap();
    for key in ["/c/of-all/x", "/c/alive/4"] {
        is_refused(put(&second, key, "x").await);
    }
    put(&second, "/c/alive/44", "3").await.unwrap();
    put(&second, "/c/a", "3").await.unwrap();
    is_refused(put(&second, "/other", "x").await);
    is_refused(get(&second, "/other").await);
    is_refused(second.users().await);
    is_refused(second.set_user(&nobody, UserRights::Keys, &own).await);
    is_refused(second.set_user(&keys, UserRights::All, &[]).await);
    is_refused(second.remove_user(&all).await);
    is_refused(second.add_member("https://127.0.0.1:1").await);
    is_refused(get(&third, "/c/a").await);
    is_refused(put(&third, "/c/a", "x").await);

    // With the next request, whichever connection it has.
    for _ in 0..2 {
        first.remove_user(&keys).await.unwrap();
    }
    is_refused(get(&second, "/c/a").await);
    is_refused(put(&second, "/c/a", "x").await);
    assert_eq!(get(&first, "/c/a").await.unwrap().as_deref(), Some("3"));

    // What needs no rights is there for its certificate until that is revoked. The port for peers never was: there etcd looks at no
    // rights, and its certificate is not one that a member has.
    let (good, gone) = (&certificates[0], &certificates[1]);
    for (member, peer) in world.members.iter().zip(&world.peer_urls) {
        let url = member.client_url();
        assert!(connects_in_time(url, tls(&world.authority, Some(gone))).await);
        assert!(!peer_answers(peer, gone).await);
        assert!(peer_answers(peer, good).await);
    }
    world.keep_revoked(&[Revoked {
        node: NodeId(4),
        at: world.env.clock.now(),
    }]);
    for (member, peer) in world.members.iter().zip(&world.peer_urls) {
        let url = member.client_url();
        assert!(!connects(url, tls(&world.authority, Some(gone))).await);
        assert!(!peer_answers(peer, gone).await);
        assert!(connects_in_time(url, tls(&world.authority, Some(good))).await);
        assert!(peer_answers(peer, good).await);
    }

    // Connections that it has are there until the members start again; each is well before the next one does.
    second.check().await.unwrap();
    for member in &world.members {
        let mut states = member.start_again();
        let again = tokio::time::timeout(PATIENCE, states.changed()).await;
        again.expect("another process").unwrap();
        member.wait_until_healthy(PATIENCE).await.unwrap();
    }
    assert!(second.check().await.is_err());
    put(&first, "/c/a", "4").await.unwrap();
    assert_eq!(get(&first, "/c/a").await.unwrap().as_deref(), Some("4"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_member_writes_what_the_map_says() {
    let Some(world) = World::start().await else {
        return;
    };
    let [member, node, other] = [NodeId(1), NodeId(4), NodeId(5)];
    let first = world.client(&world.nodes[0].certificate()).await;
    let second = world.client(&world.issue(node)).await;
    let keys = Keys::new("home");
    let shared = keys.of_all_nodes();
    first.prepare_rights(keys.prefix(), &shared).await.unwrap();
    first
        .set_user(&member.to_string(), UserRights::All, &[])
        .await
        .unwrap();
    first.ask_for_users().await.unwrap();
    let own = keys.of_node(node);
    first
        .set_user(&node.to_string(), UserRights::Keys, &own)
        .await
        .unwrap();

    let volume = VolumeId(1);
    let allowed = [
        keys.alive(node),
        keys.iscsi(node),
        keys.disk_adds(node),
        keys.rotation_note(node),
        keys.disk(DiskId(1)),
        keys.owner(volume),
        keys.log(volume),
        keys.volume(volume),
        keys.next_volume(),
        keys.logouts(),
        keys.tiers(),
        keys.name(NameKind::Volume, "v"),
    ];
    for key in &allowed {
        put(&second, key.as_str(), "1").await.unwrap();
    }
    let guarded = [
        keys.cluster(),
        keys.node(node),
        keys.node(other),
        keys.removed(node),
        keys.rotation(),
        keys.member_restart(),
        keys.recovered(),
        keys.users(),
        keys.token("00000000deadbeef"),
        keys.name(NameKind::Node, "n"),
        keys.alive(other),
        keys.iscsi(other),
        keys.disk_adds(other),
        keys.rotation_note(other),
    ];
    for key in &guarded {
        let key = key.as_str();
        put(&first, key, "1").await.unwrap();
        is_refused(put(&second, key, "x").await);
        let txn = Txn {
            then: vec![Op::delete(Key::new(key))],
            ..Txn::default()
        };
        let deleted = second.transact(txn).await;
        assert!(
            matches!(deleted, Outcome::Failed(CoordinatorError::Refused(_))),
            "{key}: {deleted:?}"
        );
        assert_eq!(
            get(&second, key).await.unwrap().as_deref(),
            Some("1"),
            "{key}"
        );
    }
    // Neither does it end the lease of another node, with which that would look as if it were away.
    let lease = first.grant_lease(DAY).await.unwrap().id;
    let txn = Txn {
        then: vec![Op::put_leased(keys.alive(other), b"2".to_vec(), lease)],
        ..Txn::default()
    };
    assert!(matches!(first.transact(txn).await, Outcome::Done(_)));
    is_refused(second.revoke_lease(lease).await);
    let kept = get(&second, keys.alive(other).as_str()).await.unwrap();
    assert_eq!(kept.as_deref(), Some("2"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_go_from_one_authority_to_another() {
    let Some(world) = World::start().await else {
        return;
    };
    let old = world.authority.fingerprint();
    let saved = world.nodes[1].certificate();
    let made = world.nodes[0].make_another().unwrap();
    for node in &world.nodes[1..] {
        let with_key = made.with_key(made.key_pem().unwrap()).unwrap();
        node.trust_also(with_key).unwrap();
    }
    let early = made.issue(&saved.subject, world.env.clock.now(), DAY);
    let early = early.unwrap();
    let of_early = || EtcdTls {
        client: tls(&made, Some(&early)).client,
        ..shown(&world.nodes[1])
    };
    // It reads which CAs are trusted when it starts, and not before.
    for (member, peer) in world.members.iter().zip(&world.peer_urls) {
        assert!(!connects(member.client_url(), of_early()).await);
        assert!(!peer_answers(peer, &early).await);
    }
    for index in 0..world.members.len() {
        world.start_again(index).await;
    }
    for (member, peer) in world.members.iter().zip(&world.peer_urls) {
        let url = member.client_url();
        assert!(connects_in_time(url, of_early()).await && peer_answers(peer, &early).await);
        assert!(connects_in_time(url, tls(&world.authority, Some(&saved))).await);
        assert!(peer_answers(peer, &saved).await);
    }

    // One node after the other shows a certificate of the new one, and so does its member at once.
    for node in &world.nodes {
        node.prefer(made.fingerprint()).unwrap();
        assert!(node.renew_if_due().unwrap());
        for (member, peer) in world.members.iter().zip(&world.peer_urls) {
            assert!(connects_in_time(member.client_url(), shown(node)).await);
            assert!(peer_answers(peer, &node.certificate()).await);
        }
    }
    for (index, node) in world.nodes.iter().enumerate() {
        node.distrust(old).unwrap();
        world.start_again(index).await;
    }
    for (member, peer) in world.members.iter().zip(&world.peer_urls) {
        let url = member.client_url();
        let of_saved = EtcdTls {
            client: tls(&made, Some(&saved)).client,
            ..shown(&world.nodes[1])
        };
        assert!(!connects(url, of_saved).await && !peer_answers(peer, &saved).await);
        assert!(connects_in_time(url, shown(&world.nodes[1])).await);
        assert!(peer_answers(peer, &world.nodes[1].certificate()).await);
    }
    world.stop().await;
}
