//! A node joins with a ticket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, Timestamp};
use cairn_testkit::TestWorld;
use cairn_trust::frame::{Answer, Ask, encode};
use cairn_trust::{
    Admit, Admitted, Authority, ClusterFolder, EtcdMemberEntry, EtcdSource, HandleKey, IssueAnswer,
    JoinError, JoinRequest, JoinServer, JoinSettings, Listener, Protocol, Stage, Ticket, Trust,
    TrustSettings, VersionRange, host_of, join,
};
use parking_lot::Mutex;
use serde_json::json;

use crate::common::{
    CLUSTER, HOUR, Node, ONE, TWO, authority, echoes, start, until, until_sleeps_to,
};

pub const TOKEN: &str = "cairn-0011-secret";

pub fn request() -> JoinRequest {
    JoinRequest {
        node_name: "n2".to_owned(),
        internal_address: "127.0.0.1:7701".to_owned(),
        external_address: "10.9.9.9".to_owned(),
        versions: VersionRange {
            oldest: 1,
            newest: 2,
        },
        program: "0.1.0".to_owned(),
        extra: json!({"disks": 3}),
    }
}

pub fn admitted(node: NodeId) -> Admitted {
    Admitted {
        node,
        cluster_name: "the-cluster".to_owned(),
        handle_key: HandleKey(0xfeed_beef),
        etcd: EtcdSource::Own {
            client_port: 2379,
            peer_port: 2380,
            members: vec![EtcdMemberEntry {
                node_name: "n1".to_owned(),
                client_url: "https://127.0.0.1:2379".to_owned(),
                peer_url: "https://127.0.0.1:2380".to_owned(),
            }],
            runs_member: true,
            joins: true,
            made_anew: None,
        },
        extra: json!({"rack": "a"}),
    }
}

/// Admits who has the token, once.
#[derive(Default)]
pub struct Door {
    pub requests: Mutex<Vec<JoinRequest>>,
    pub asked: AtomicUsize,
    is_used: Mutex<bool>,
}

impl Admit for Door {
    fn admit(&self, token: String, request: JoinRequest) -> BoxFuture<Result<Admitted, String>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let result = if token != TOKEN {
            Err("this cluster does not know the token".to_owned())
        } else if std::mem::replace(&mut *self.is_used.lock(), true) {
            Err("the token was used already".to_owned())
        } else {
            self.requests.lock().push(request);
            Ok(admitted(TWO))
        };
        Box::pin(std::future::ready(result))
    }
}

/// The first node, which admits others.
pub struct First {
    pub node: Node,
    pub listener: Listener,
    pub door: Arc<Door>,
}

impl First {
    pub async fn new() -> Self {
        Self::of(&authority()).await
    }

    pub async fn of(authority: &Authority) -> Self {
        let node = Node::new(authority, ONE);
        let (listener, _) = node.listen_to_all().await;
        let door = Arc::new(Door::default());
        let server = JoinServer::new(node.trust.clone(), door.clone(), JoinSettings::default());
        listener.handle(Protocol::Join, server);
        Self {
            node,
            listener,
            door,
        }
    }

    pub fn ticket(&self) -> Ticket {
        self.ticket_of(TOKEN)
    }

    pub fn ticket_of(&self, token: &str) -> Ticket {
        let addresses = vec![self.listener.address().to_string()];
        let fingerprint = self.node.trust.authority().fingerprint();
        Ticket::new(addresses, fingerprint, token.to_owned()).unwrap()
    }

    pub fn asked(&self) -> usize {
        self.door.asked.load(Ordering::SeqCst)
    }
}

async fn try_join(ticket: &Ticket) -> Result<(), JoinError> {
    let world = TestWorld::new(2);
    let settings = JoinSettings::default();
    let joined = join(&world.env, ticket, &request(), &settings).await;
    joined.map(|_| ())
}

#[tokio::test]
async fn a_node_joins_and_is_one_of_the_cluster() {
    let first = First::new().await;
    let world = TestWorld::new(2);
    // As the operator copies it.
    let ticket: Ticket = first.ticket().to_string().parse().unwrap();
    let settings = JoinSettings::default();
    let joined = join(&world.env, &ticket, &request(), &settings).await;
    let admission = joined.expect("it is admitted");
    assert_eq!(*first.door.requests.lock(), [request()]);
    assert_eq!(admission.admitted, admitted(TWO));
    assert!(!admission.authorities.issuing().has_key());
    assert_eq!(admission.certificate.subject.node, TWO);
    let hosts = &admission.certificate.subject.hosts;
    assert!(hosts.contains(&host_of(&request().internal_address).unwrap().to_owned()));
    let secret = admission.certificate.key_pem.lines().nth(1).unwrap();
    let shown = format!("{admission:?}");
    assert!(!shown.contains(secret) && !shown.contains(&0xfeed_beef_u32.to_string()));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster");
    let folder = ClusterFolder::create(&path).unwrap();
    let membership = admission.membership(&request());
    assert_eq!(membership.stage, Stage::Joining);
    assert_eq!((membership.cluster, membership.node), (CLUSTER, TWO));
    assert_eq!(membership.etcd, admitted(TWO).etcd);
    let established = admission.establish(&folder, &request()).unwrap();
    assert_eq!(established, membership);
    assert!(!path.join("ca.key").exists());
    let settings = TrustSettings::default();
    let trust = Trust::open(world.env.clone(), Arc::new(folder), settings).unwrap();
    let address = first.listener.address().to_string();
    let connected = trust.connect(&address, ONE, Protocol::Forward).await;
    assert!(echoes(&mut connected.unwrap(), b"one of us").await);

    let again = try_join(&ticket).await;
    let used = JoinError::Refused("the token was used already".to_owned());
    assert_eq!(again, Err(used));
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_tells_nothing() {
    let first = First::new().await;
    let refused = try_join(&first.ticket_of("cairn-0011-guess")).await;
    let unknown = "this cluster does not know the token".to_owned();
    assert_eq!(refused, Err(JoinError::Refused(unknown)));
    assert_eq!(first.door.requests.lock().len(), 0);
    // It was no reason to use up the right one.
    assert_eq!(try_join(&first.ticket()).await, Ok(()));
}

#[tokio::test]
async fn a_token_is_shown_to_its_cluster_alone() {
    let (first, other) = (First::new().await, First::of(&authority()).await);
    let addresses = vec![other.listener.address().to_string()];
    let fingerprint = first.node.trust.authority().fingerprint();
    let ticket = Ticket::new(addresses, fingerprint, TOKEN.to_owned()).unwrap();
    let refused = try_join(&ticket).await.expect_err("another cluster");
    assert!(matches!(refused, JoinError::Unreachable(_)), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("from before a rotation of the CA, or from another cluster"),
        "{refused}"
    );
    assert_eq!(other.asked(), 0);
}

#[tokio::test]
async fn a_ticket_is_good_until_its_authority_is_replaced() {
    let first = First::new().await;
    let trust = &first.node.trust;
    let (old, early) = (trust.issuer(), first.ticket());
    let made = trust.make_another().unwrap();
    let world = TestWorld::new(2);
    let settings = JoinSettings::default();
    let joined = join(&world.env, &early, &request(), &settings).await;
    let admission = joined.expect("both are trusted");
    // Who joins meanwhile trusts both.
    let prints = |admission: &cairn_trust::Admission| -> Vec<_> {
        let all = admission.authorities.all();
        all.map(|it| it.fingerprint()).collect()
    };
    assert_eq!(prints(&admission), [old, made.fingerprint()]);
    let folder = tempfile::tempdir().unwrap();
    let folder = ClusterFolder::create(&folder.path().join("cluster")).unwrap();
    admission.establish(&folder, &request()).unwrap();
    let kept = folder.authorities().unwrap();
    assert_eq!(
        kept.certificates_pem(),
        trust.authorities().certificates_pem()
    );
    assert!(kept.all().all(|it| !it.has_key()));

    trust.prefer(made.fingerprint()).unwrap();
    assert!(trust.renew_if_due().unwrap());
    let refused = try_join(&early).await.expect_err("of the old one");
    let refused = refused.to_string();
    assert!(
        refused.contains("from before a rotation of the CA") && refused.contains("create a new"),
        "{refused}"
    );
    assert_eq!(first.asked(), 1);
    *first.door.is_used.lock() = false;
    let joined = join(&world.env, &first.ticket(), &request(), &settings).await;
    assert_eq!(prints(&joined.unwrap()), [made.fingerprint(), old]);
}

#[tokio::test]
async fn the_first_node_that_can_be_used_is_asked() {
    let (first, other) = (First::new().await, First::of(&authority()).await);
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let good = first.listener.address();
    let addresses = [closed, other.listener.address(), good, good];
    let addresses = addresses.iter().map(ToString::to_string).collect();
    let fingerprint = first.node.trust.authority().fingerprint();
    let ticket = Ticket::new(addresses, fingerprint, TOKEN.to_owned()).unwrap();
    assert_eq!(try_join(&ticket).await, Ok(()));
    assert_eq!((first.asked(), other.asked()), (1, 0));
    first.listener.close().await;
    let nowhere = try_join(&ticket)
        .await
        .expect_err("nobody listens")
        .to_string();
    for address in ticket.addresses() {
        assert!(nowhere.contains(address), "{nowhere}");
    }
}

#[tokio::test]
async fn a_clock_that_is_off_is_noticed_before_the_token_is_used() {
    let first = First::new().await;
    for skew in [HOUR + 2, -HOUR - 2, 20 * HOUR] {
        let world = TestWorld::new(2);
        world.clock.step_wall(skew);
        let settings = JoinSettings::default();
        let refused = join(&world.env, &first.ticket(), &request(), &settings).await;
        let refused = refused.expect_err("its clock is off").to_string();
        assert!(
            refused.contains("differ by more than an hour"),
            "{skew}: {refused}"
        );
    }
    assert_eq!(first.asked(), 0);
    // Much further, and the certificate says it.
    let world = TestWorld::new(2);
    world.clock.step_wall(-48 * HOUR);
    let settings = JoinSettings::default();
    let refused = join(&world.env, &first.ticket(), &request(), &settings).await;
    let refused = refused.expect_err("its clock is off").to_string();
    assert!(refused.contains("check the clocks"), "{refused}");
    let world = TestWorld::new(2);
    world.clock.step_wall(HOUR - 2);
    let joined = join(&world.env, &first.ticket(), &request(), &settings).await;
    assert!(joined.is_ok(), "{joined:?}");
}

#[tokio::test]
async fn a_request_that_cannot_be_is_not_sent() {
    let first = First::new().await;
    let cases: [fn(&mut JoinRequest); 6] = [
        |request| request.node_name = "no name".to_owned(),
        |request| request.internal_address = "0.0.0.0:7700".to_owned(),
        |request| request.external_address = String::new(),
        |request| request.versions.oldest = 3,
        |request| request.program = "x".repeat(65),
        |request| request.program = "\n".to_owned(),
    ];
    for change in cases {
        let mut request = request();
        change(&mut request);
        let world = TestWorld::new(2);
        let settings = JoinSettings::default();
        let refused = join(&world.env, &first.ticket(), &request, &settings).await;
        assert!(matches!(refused, Err(JoinError::Invalid(_))), "{request:?}");
    }
    assert_eq!(first.asked(), 0);
}

/// Never decides.
#[derive(Default)]
struct Undecided(AtomicUsize);

impl Admit for Undecided {
    fn admit(&self, _: String, _: JoinRequest) -> BoxFuture<Result<Admitted, String>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_decision_that_takes_too_long_is_none() {
    let node = Node::new(&authority(), ONE);
    let (listener, _) = node.listen_to_all().await;
    let undecided = Arc::new(Undecided::default());
    let settings = JoinSettings::default();
    let server = JoinServer::new(node.trust.clone(), undecided.clone(), settings.clone());
    listener.handle(Protocol::Join, server);
    let addresses = vec![listener.address().to_string()];
    let fingerprint = node.trust.authority().fingerprint();
    let ticket = Ticket::new(addresses, fingerprint, TOKEN.to_owned()).unwrap();
    let waiting = async {
        let asked = || undecided.0.load(Ordering::SeqCst) == 1;
        until("it is asked", asked).await;
        until_sleeps_to(&node.clock, settings.frame_deadline).await;
        node.clock.advance(settings.admit_deadline);
    };
    let (refused, ()) = tokio::join!(try_join(&ticket), waiting);
    let refused = refused.expect_err("no decision").to_string();
    assert!(refused.contains("took too long to decide"), "{refused}");
}

#[tokio::test]
async fn what_is_sent_shows_no_secret_in_messages() {
    let ask = Ask {
        token: TOKEN.to_owned(),
        now: Timestamp::new(start().seconds, 0),
        request: request(),
        certificate_request: String::new(),
    };
    assert!(!format!("{ask:?}").contains(TOKEN));
    let answer = Answer::Admitted {
        authority_pem: String::new(),
        second_authority_pem: None,
        certificate_pem: String::new(),
        admitted: Box::new(admitted(TWO)),
    };
    assert!(!format!("{answer:?}").contains(&0xfeed_beef_u32.to_string()));
    let key = IssueAnswer::Key {
        authority_key_pem: "secret".to_owned(),
    };
    assert!(!format!("{key:?}").contains("secret"));
    encode(&ask).unwrap();
}
