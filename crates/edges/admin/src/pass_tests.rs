use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use axum::body::Body;
use axum::http::Method;
use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use cairn_forward::{MapTerms, Nodes, Serve, Service, Stream, Term};
use tokio::time::Instant;
use tower::ServiceExt;

use super::tests::{Pretend, TOKEN, ask};
use super::*;
use crate::pass::PASSING_MAX;

const TWO: NodeId = NodeId(2);
/// Of volumes without an owner.
const UNOWNED_FIRST: u32 = 100;

/// Other nodes, over streams in memory. Those that are not there do not answer.
#[derive(Default)]
struct Others(
    Mutex<BTreeMap<NodeId, Option<PeerServer>>>,
    /// Volumes without an owner.
    Mutex<Vec<String>>,
    /// Nodes that are known to be away.
    Mutex<Vec<NodeId>>,
);

impl Others {
    fn nodes(&self) -> Vec<NodeId> {
        self.0.lock().unwrap().keys().copied().collect()
    }
}

/// All nodes, each in a term that has its number.
fn terms() -> MapTerms {
    let term = |node: u128| (NodeId(node), Term(node + 1));
    MapTerms {
        revision: 1,
        alive: (0..10).map(term).collect(),
    }
}

/// What a node passes on to others.
fn forward(own: NodeId, others: &Arc<Others>) -> Arc<Forward> {
    let nodes = Arc::new(Known(own, Arc::clone(others)));
    let own_term = move || Some(Term(own.0 + 1));
    Forward::new(cairn_testkit::test_env(), nodes, own_term).unwrap()
}

struct Known(NodeId, Arc<Others>);

impl Nodes for Known {
    fn own(&self) -> NodeId {
        self.0
    }

    fn others(&self) -> Vec<NodeId> {
        self.1.nodes()
    }

    fn name(&self, node: NodeId) -> String {
        format!("node{}", node.0)
    }

    fn is_alive(&self, node: NodeId) -> bool {
        !self.1.2.lock().unwrap().contains(&node)
    }

    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
        let owned = self.1.nodes().into_iter();
        let owned = owned.map(|node| (VolumeId(node.0 as u32), Some(node)));
        let unowned = 0..self.1.1.lock().unwrap().len() as u32;
        let unowned = unowned.map(|index| (VolumeId(UNOWNED_FIRST + index), None));
        owned.chain(unowned).collect()
    }

    fn volume_name(&self, volume: VolumeId) -> String {
        self.1.1.lock().unwrap()[(volume.0 - UNOWNED_FIRST) as usize].clone()
    }

    fn lost(&self, _: VolumeId, _: NodeId) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn dial(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let found = self.1.0.lock().unwrap().get(&node).cloned().flatten();
        let (own, others) = (self.0, Arc::clone(&self.1));
        Box::pin(async move {
            let passed = Arc::new(found.ok_or(io::ErrorKind::ConnectionRefused)?);
            let (here, there) = tokio::io::duplex(1024);
            tokio::spawn(async move {
                let far = forward(node, &others);
                far.handle(Service::Admin, Arc::clone(&passed) as Arc<dyn Serve>);
                far.handle_reads(passed);
                far.learn(terms()).await;
                far.serve(own, Box::new(there)).await;
            });
            Ok(Box::new(here) as Box<dyn Stream>)
        })
    }
}

async fn node(pretend: Pretend, others: &Arc<Others>) -> AdminServer {
    node_with(TOKEN, pretend, others).await
}

async fn node_with(token: &str, pretend: Pretend, others: &Arc<Others>) -> AdminServer {
    node_passing_on(token, pretend, forward(NodeId(1), others)).await
}

async fn node_passing_on(token: &str, pretend: Pretend, own: Arc<Forward>) -> AdminServer {
    let settings = AdminSettings {
        metrics_open: false,
        audit: false,
    };
    own.learn(terms()).await;
    AdminServer::new(
        Arc::new(pretend),
        Token::parse(token).unwrap(),
        settings,
        cairn_testkit::test_env(),
        None,
        Some(own),
    )
}

/// Two nodes; the first one is asked.
async fn two(second: Pretend) -> (AdminServer, Arc<Others>) {
    let others = Arc::new(Others::default());
    let second = node(second, &others).await.passed();
    others.0.lock().unwrap().insert(TWO, Some(second));
    let first = Pretend {
        away: Some(TWO),
        buckets: vec!["one", "three"],
        ..Pretend::default()
    };
    (node(first, &others).await, others)
}

fn has_two() -> Pretend {
    Pretend {
        buckets: vec!["two"],
        ..Pretend::default()
    }
}

#[tokio::test]
async fn what_another_node_has_is_answered_there() {
    let (first, others) = two(has_two()).await;
    let router = first.router();
    let yes = Some(TOKEN);
    #[rustfmt::skip]
    let cases = [
        ("GET", "/api/v1/volumes/away", yes, "", 200, "\"away\""),
        ("GET", "/api/v1/volumes/away", None, "", 401, "no token"),
        ("GET", "/api/v1/volumes/main", yes, "", 200, "\"main\""),
        ("GET", "/api/v1/volumes/none", yes, "", 404, "not_found"),
        // With its body.
        ("POST", "/api/v1/buckets", yes, r#"{"name":"here","volume":"main"}"#, 409, "here is taken"),
        ("POST", "/api/v1/buckets", yes, r#"{"name":1}"#, 400, "is not valid"),
        // By the node that has it.
        ("PATCH", "/api/v1/buckets/one", yes, r#"{"nfs_versions":true}"#, 200, r#""nfs_versions_seconds":60"#),
        ("PATCH", "/api/v1/buckets/two", yes, r#"{"nfs_versions":false}"#, 200, r#""name":"two""#),
        ("PATCH", "/api/v1/buckets/one", yes, r#"{"nfs":true}"#, 400, "is not valid"),
        ("PATCH", "/api/v1/buckets/four", yes, r#"{"nfs_versions":true}"#, 404, "no such bucket"),
        ("DELETE", "/api/v1/buckets/one", yes, "", 204, ""),
        ("DELETE", "/api/v1/buckets/two", yes, "", 204, ""),
        ("DELETE", "/api/v1/buckets/four", yes, "", 404, "no such bucket"),
    ];
    for (method, path, token, body, status, part) in cases {
        let (got, text) = ask(&router, method, path, token, body).await;
        assert_eq!(got, status, "{method} {path}: {text}");
        assert!(text.contains(part), "{method} {path}: {text}");
    }
    let (status, text) = ask(&router, "GET", "/api/v1/buckets", yes, "").await;
    let names: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names = names["buckets"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!((status, names), (200, vec!["one", "three", "two"]));

    // What nobody has may have what is asked for.
    others.1.lock().unwrap().push("lost".to_owned());
    let off = r#"{"nfs_versions":false}"#;
    for (method, path, body, want) in [
        ("GET", "/api/v1/buckets", "", 503),
        ("PATCH", "/api/v1/buckets/four", off, 503),
        ("PATCH", "/api/v1/buckets/two", off, 200),
    ] {
        let (status, text) = ask(&router, method, path, yes, body).await;
        assert_eq!(status, want, "{path}: {text}");
        assert_eq!(text.contains("volume lost"), want == 503, "{path}: {text}");
    }
    others.1.lock().unwrap().clear();

    // Where one is silent the others are asked all the same.
    others.0.lock().unwrap().insert(NodeId(0), None);
    let (status, text) = ask(&router, "PATCH", "/api/v1/buckets/two", yes, off).await;
    assert_eq!(status, 200, "{text}");
    let (status, text) = ask(&router, "PATCH", "/api/v1/buckets/four", yes, off).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("look whether"), "{text}");
    others.0.lock().unwrap().remove(&NodeId(0));

    others.0.lock().unwrap().insert(TWO, None);
    for path in ["/api/v1/volumes/away", "/api/v1/buckets"] {
        let (status, text) = ask(&router, "GET", path, yes, "").await;
        assert_eq!(status, 503, "{path}: {text}");
        assert!(
            text.contains("node2") && text.contains("try again"),
            "{text}"
        );
    }
    let (status, _) = ask(&router, "DELETE", "/api/v1/buckets/two", yes, "").await;
    assert_eq!(status, 503);
    let (status, _) = ask(&router, "GET", "/api/v1/volumes/main", yes, "").await;
    assert_eq!(status, 200);
}

/// A node is not obeyed where it could get in, or stay in, by that: the caller is an administrator here.
#[tokio::test]
async fn what_gives_rights_is_done_for_administrators_alone() {
    const OTHER: &str = "fedcba9876543210fedcba9876543210";
    let others = Arc::new(Others::default());
    let passed = node(Pretend::default(), &others).await.passed();
    let router = passed.router();
    let ticket = r#"{"valid_seconds":60}"#;
    let user = r#"{"name":"evil","role":"admin","password":"correct horse battery"}"#;
    for (method, path, body) in [
        ("POST", "/api/v1/cluster/tickets", ticket),
        ("POST", "/api/v1/cluster/authority/rotation", ""),
        (
            "PATCH",
            "/api/v1/cluster/nodes/away",
            r#"{"draining":true}"#,
        ),
        ("DELETE", "/api/v1/cluster/nodes/away", ""),
        ("POST", "/api/v1/users", user),
        ("PATCH", "/api/v1/users/evil", r#"{"role":"admin"}"#),
        ("DELETE", "/api/v1/users/evil", ""),
    ] {
        for token in [None, Some(OTHER)] {
            let (status, text) = ask(&router, method, path, token, body).await;
            assert_eq!(status, 401, "{method} {path}: {text}");
        }
    }
    let (status, text) = ask(
        &router,
        "POST",
        "/api/v1/cluster/tickets",
        Some(TOKEN),
        ticket,
    )
    .await;
    assert_eq!(status, 200, "{text}");
    // A node asks about data for its clients, whose rights it has checked.
    let (status, text) = ask(&router, "GET", "/api/v1/volumes/main", None, "").await;
    assert_eq!(status, 200, "{text}");

    // A client that asks a node which has another one do it.
    for (token, want, part) in [
        (TOKEN, 204, ""),
        (OTHER, 403, "send the request to node node2 with its token"),
    ] {
        let second = node_with(token, Pretend::default(), &others).await.passed();
        others.0.lock().unwrap().insert(TWO, Some(second));
        let pretend = Pretend {
            away: Some(TWO),
            ..Pretend::default()
        };
        let first = node(pretend, &others).await.router();
        let path = "/api/v1/cluster/nodes/away";
        let (status, text) = ask(&first, "DELETE", path, Some(TOKEN), "").await;
        assert_eq!(status, want, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

/// What a volume uses its owner knows; without it, that it does not answer.
#[tokio::test]
async fn what_volumes_use_their_owner_tells() {
    let others = Arc::new(Others::default());
    let owns = |owner, used_bytes| {
        let pretend = Pretend {
            owner,
            used_bytes: Some(used_bytes),
            other_volumes: 2,
            ..Pretend::default()
        };
        node(pretend, &others)
    };
    let first = owns(Some("node2"), 0).await;
    let second = owns(None, 77).await.passed();
    others.0.lock().unwrap().insert(TWO, Some(second));
    let router = first.router();
    let paths = ["/api/v1/volumes", "/api/v1/volumes/main"];
    let asked = async |path| {
        let (status, text) = ask(&router, "GET", path, Some(TOKEN), "").await;
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list = answer["volumes"].as_array().cloned();
        let volumes = list.unwrap_or_else(|| vec![answer.clone()]);
        let problem = volumes[0]["problem"].as_str().unwrap_or("").to_owned();
        let used: Vec<u64> = volumes
            .iter()
            .map(|it| it["used_bytes"].as_u64().unwrap())
            .collect();
        assert_eq!((status, &volumes[0]["owner"]), (200, &"node2".into()));
        // Of which snapshot it is a clone its owner knows alone.
        let is_told = used.first().is_some_and(|used| *used > 0);
        assert_eq!(volumes[0]["clone_of"].is_object(), is_told);
        (used, problem)
    };
    assert_eq!(asked(paths[0]).await, (vec![77, 77, 77], String::new()));
    assert_eq!(asked(paths[1]).await, (vec![77], String::new()));
    // It was the owner: what it knows is no better.
    let was = owns(Some("node3"), 99).await.passed();
    others.0.lock().unwrap().insert(TWO, Some(was));
    assert_eq!(asked(paths[1]).await, (vec![0], String::new()));
    others.0.lock().unwrap().insert(TWO, None);
    for path in paths {
        let (_, problem) = asked(path).await;
        assert!(
            problem.contains("node2") && problem.contains("not known"),
            "{problem}"
        );
    }
}

/// What clients of the volume wait for, commands wait for as well, and no longer than for a while.
#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_to_a_node_is_waited_for() {
    let moving = |refusals| Pretend {
        refusals: Mutex::new(refusals),
        ..Pretend::default()
    };
    let yes = Some(TOKEN);
    for refusals in [0, 3, u32::MAX] {
        // Here, and at the node that has it.
        let others = Arc::new(Others::default());
        let here = node(moving(refusals), &others).await;
        let (there, _others) = two(moving(refusals)).await;
        for server in [here, there] {
            let begun = Instant::now();
            let router = server.router();
            let (status, text) = ask(&router, "GET", "/api/v1/volumes/away", yes, "").await;
            match refusals {
                u32::MAX => {
                    assert_eq!(status, 503, "{text}");
                    assert!(text.contains("not open yet"), "{text}");
                    assert!(begun.elapsed() >= PASSING_MAX);
                }
                _ => assert_eq!(status, 200, "{text}"),
            }
        }
    }
}

/// A change is not: its client may have made it through another node after a second. A client that is there is told to send it again.
#[tokio::test(start_paused = true)]
async fn a_change_is_tried_again_only_as_long_as_it_is_fresh() {
    for (refusals, want) in [(0, 204), (3, 204), (u32::MAX, 503)] {
        let world = cairn_testkit::TestWorld::new(1);
        let nodes = Arc::new(Known(NodeId(1), Arc::default()));
        let own = Forward::new(world.env.clone(), nodes, || Some(Term(2))).unwrap();
        let moving = Pretend {
            refusals: Mutex::new(refusals),
            ..Pretend::default()
        };
        let server = node_passing_on(TOKEN, moving, own).await;
        let request = Request::builder()
            .method(Method::DELETE)
            .uri("/api/v1/volumes/away")
            .header("Authorization", format!("Bearer {TOKEN}"))
            .body(Body::empty())
            .unwrap();
        let begun = Instant::now();
        let clock = world.clock.clone();
        let step = std::time::Duration::from_millis(50);
        let passing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(step).await;
                clock.advance(step);
            }
        });
        let response = server.router().oneshot(request).await.unwrap();
        passing.abort();
        assert_eq!(response.status().as_u16(), want);
        let is_late = response.headers().contains_key("retry-after");
        assert_eq!(is_late, want == 503);
        assert!(begun.elapsed() < PASSING_MAX, "{refusals}");
    }
}

/// A volume that moves: each node takes the other one for its owner.
#[tokio::test(start_paused = true)]
async fn requests_do_not_go_in_circles() {
    let second = Pretend {
        away: Some(NodeId(1)),
        ..Pretend::default()
    };
    let (first, _others) = two(second).await;
    let (status, text) = ask(
        &first.router(),
        "GET",
        "/api/v1/volumes/away",
        Some(TOKEN),
        "",
    )
    .await;
    assert_eq!(status, 503);
    assert!(text.contains("another node has it"), "{text}");
}

/// Every node shows the requests to all nodes, and names the nodes that did not answer.
#[tokio::test]
async fn the_log_of_changes_is_of_all_nodes() {
    let change = |id: u64, path: &str| crate::audit::AuditEntry {
        id,
        at_seconds: 0,
        user: "alice".to_owned(),
        via: "token".to_owned(),
        address: "::1".to_owned(),
        method: "POST".to_owned(),
        path: path.to_owned(),
        status: 200,
        count: None,
        node: None,
    };
    let second = Pretend::default();
    second
        .users
        .noted
        .lock()
        .unwrap()
        .extend([change(1, "/c"), change(2, "/d"), change(3, "/e")]);
    let others = Arc::new(Others::default());
    let second = node(second, &others).await.passed();
    others.0.lock().unwrap().insert(TWO, Some(second));
    let first = Pretend::default();
    first
        .users
        .noted
        .lock()
        .unwrap()
        .extend([change(1, "/a"), change(2, "/b")]);
    let router = node(first, &others).await.router();
    let asked = async |query: &str| {
        let path = format!("/api/v1/audit{query}");
        let (status, text) = ask(&router, "GET", &path, Some(TOKEN), "").await;
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        let entries = page["entries"].as_array().cloned().unwrap_or_default();
        let shown = entries.iter().map(|it| {
            format!(
                "{}{}",
                it["node"].as_str().unwrap(),
                it["path"].as_str().unwrap()
            )
        });
        (status, shown.collect::<Vec<_>>().join(" "), page)
    };
    let (status, shown, page) = asked("").await;
    assert_eq!(
        (status, shown.as_str()),
        (200, "node2/e node1/b node2/d node1/a node2/c")
    );
    assert!(page.get("silent").is_none(), "{page}");
    // Those with the last id of a page are all on it.
    let (_, shown, page) = asked("?limit=2").await;
    assert_eq!(
        (shown.as_str(), page["next_before"].as_u64()),
        ("node2/e node1/b node2/d", Some(2))
    );
    assert_eq!(asked("?limit=2&before=2").await.1, "node1/a node2/c");
    assert_eq!(asked("?node=node2&path=/d").await.1, "node2/d");
    assert_eq!(asked("?node=node1").await.1, "node1/b node1/a");
    assert_eq!(asked("?node=node3").await.0, 404);
    assert_eq!(asked("?limit=0").await.0, 400);

    others.0.lock().unwrap().insert(TWO, None);
    let (status, shown, page) = asked("").await;
    assert_eq!((status, shown.as_str()), (200, "node1/b node1/a"));
    assert_eq!(page["silent"][0]["node"], "node2");
}

/// Measurements are of all nodes in one, or of the named one.
#[tokio::test]
async fn numbers_are_of_all_nodes() {
    let others = Arc::new(Others::default());
    let live = || Pretend {
        has_live: true,
        ..Pretend::default()
    };
    let second = node(live(), &others).await.passed();
    others.0.lock().unwrap().insert(TWO, Some(second));
    let router = node(live(), &others).await.router();
    let asked = async |path: &str| {
        let (status, text) = ask(&router, "GET", path, Some(TOKEN), "").await;
        let view: serde_json::Value = serde_json::from_str(&text).unwrap();
        (status, view)
    };
    let history = "/api/v1/history?series=nfs&series=a%3Ab%26c&from=100&to=110";
    for (node, live, past) in [("", 3.0, 1.0), ("node1", 1.5, 0.5), ("node2", 1.5, 0.5)] {
        let (of_live, of_history) = match node {
            "" => (String::new(), String::new()),
            node => (format!("?node={node}"), format!("&node={node}")),
        };
        let (status, view) = asked(&format!("/api/v1/live{of_live}")).await;
        assert_eq!((status, &view["numbers"][0]["value"]), (200, &live.into()));
        assert!(view.get("silent").is_none(), "{view}");
        let (status, view) = asked(&format!("{history}{of_history}")).await;
        assert_eq!((status, view["from_seconds"].as_i64()), (200, Some(100)));
        let series = &view["series"][1];
        assert_eq!(series["name"], "a:b&c", "{view}");
        assert_eq!(series["values"][1], past, "{node}: {view}");
        assert!(series["values"][0].is_null() && view.get("silent").is_none());
    }
    for path in ["/api/v1/live?node=node3", &format!("{history}&node=node3")] {
        assert_eq!(asked(path).await.0, 404, "{path}");
    }

    others.0.lock().unwrap().insert(TWO, None);
    let (status, view) = asked(history).await;
    assert_eq!((status, &view["silent"][0]["node"]), (200, &"node2".into()));
    assert_eq!(view["series"][0]["values"][1], 0.5);
    let (status, view) = asked("/api/v1/live?node=node2").await;
    assert_eq!(status, 503, "{view}");
    // One that is away is not waited for.
    others.2.lock().unwrap().push(TWO);
    let (_, view) = asked(history).await;
    assert_eq!(view["silent"][0]["why"], "it is away");
    // One server has no other.
    let alone = super::live_tests::server().router();
    let (status, text) = ask(&alone, "GET", "/api/v1/live?node=node2", Some(TOKEN), "").await;
    assert!(status == 404 && text.contains("not in a cluster"), "{text}");
}

/// Pages are of what all nodes have.
#[tokio::test]
async fn lists_of_all_nodes_come_in_pages() {
    let (first, _others) = two(has_two()).await;
    let router = first.router();
    let asked = async |query: &str| {
        let path = format!("/api/v1/buckets{query}");
        let (status, text) = ask(&router, "GET", &path, Some(TOKEN), "").await;
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        let buckets = page["buckets"].as_array().cloned().unwrap_or_default();
        let names = buckets.iter().map(|it| it["name"].as_str().unwrap());
        (status, names.collect::<Vec<_>>().join(" "), page)
    };
    let (_, names, page) = asked("?limit=2").await;
    assert_eq!(
        (
            names.as_str(),
            page["total"].as_u64(),
            page["next_after"].as_str()
        ),
        ("one three", Some(3), Some("three"))
    );
    let (_, names, page) = asked("?limit=2&after=three").await;
    assert_eq!((names.as_str(), page.get("next_after")), ("two", None));
    let (_, names, page) = asked("?name=T").await;
    assert_eq!(
        (names.as_str(), page["total"].as_u64()),
        ("three two", Some(2))
    );
    assert!(asked("").await.2.get("total").is_none());
    for wrong in ["?limit=0", "?limit=1001", "?limit", "?limit=1&space=true"] {
        let (status, _, page) = asked(wrong).await;
        assert_eq!(status, 400, "{wrong}: {page}");
    }
}
