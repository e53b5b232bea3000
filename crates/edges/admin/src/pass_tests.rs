use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;

use super::tests::{Pretend, TOKEN, ask};
use super::*;
use crate::pass::Stream;

const TWO: NodeId = NodeId(2);

/// Other nodes, over streams in memory. Those that are not there do not answer.
#[derive(Default)]
struct Others(
    Mutex<BTreeMap<NodeId, Option<Passed>>>,
    /// Volumes without an owner.
    Mutex<Vec<String>>,
);

impl Nodes for Others {
    fn owners(&self) -> Vec<NodeId> {
        self.0.lock().unwrap().keys().copied().collect()
    }

    fn without_owner(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }

    fn name(&self, node: NodeId) -> String {
        format!("node{}", node.0)
    }

    fn connect(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let found = self.0.lock().unwrap().get(&node).cloned().flatten();
        Box::pin(async move {
            let passed = found.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (here, there) = tokio::io::duplex(1024);
            tokio::spawn(passed.serve(there));
            Ok(Box::new(here) as Box<dyn Stream>)
        })
    }
}

fn node(pretend: Pretend, others: &Arc<Others>) -> AdminServer {
    let settings = AdminSettings {
        metrics_open: false,
        audit: false,
    };
    AdminServer::new(
        Arc::new(pretend),
        Token::parse(TOKEN).unwrap(),
        settings,
        cairn_testkit::test_env(),
        None,
        Some(Arc::clone(others) as Arc<dyn Nodes>),
    )
}

/// Two nodes; the first one is asked.
fn two(second: Pretend) -> (AdminServer, Arc<Others>) {
    let others = Arc::new(Others::default());
    let second = node(second, &others).passed();
    others.0.lock().unwrap().insert(TWO, Some(second));
    let first = Pretend {
        away: Some(TWO),
        buckets: vec!["one", "three"],
        ..Pretend::default()
    };
    (node(first, &others), others)
}

fn has_two() -> Pretend {
    Pretend {
        buckets: vec!["two"],
        ..Pretend::default()
    }
}

#[tokio::test]
async fn what_another_node_has_is_answered_there() {
    let (first, others) = two(has_two());
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
        ("POST", "/api/v1/buckets", yes, r#"{"name":1}"#, 400, "does not fit"),
        // By whoever has it.
        ("PATCH", "/api/v1/buckets/one", yes, r#"{"nfs_versions":true}"#, 200, r#""nfs_versions_seconds":60"#),
        ("PATCH", "/api/v1/buckets/two", yes, r#"{"nfs_versions":false}"#, 200, r#""name":"two""#),
        ("PATCH", "/api/v1/buckets/one", yes, r#"{"nfs":true}"#, 400, "does not fit"),
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

/// A volume that moves: each node takes the other one for its owner.
#[tokio::test]
async fn requests_do_not_go_in_circles() {
    let second = Pretend {
        away: Some(NodeId(1)),
        ..Pretend::default()
    };
    let (first, _others) = two(second);
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
