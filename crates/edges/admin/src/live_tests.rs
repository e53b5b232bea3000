use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::Method;
use http_body_util::BodyExt as _;
use tower::ServiceExt;

use super::tests::{Pretend, TOKEN, answer};
use super::*;
use crate::api::{Health, MemoryView, PoolView};
use crate::control::Answer;
use crate::live::{
    HistoryAcross, HistoryKind, HistoryList, HistoryQuery, HistorySeries, HistoryView, LiveControl,
    LiveNumber, LiveView, MountView,
};
use crate::rebuild::RebuildView;
use crate::scrub::ScrubView;

impl LiveControl for Pretend {
    fn live(&self) -> Answer<'_, LiveView> {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let pool = PoolView {
            devices: None,
            device_failures_tolerated: None,
            id: String::new(),
            created_seconds: 0,
            protection: "4+2".to_owned(),
            disk_failures_tolerated: 2,
            node_failures_tolerated: None,
            total_bytes: 2,
            free_bytes: 1,
            reserve_bytes: 0,
        };
        let memory = MemoryView {
            limit_bytes: 0,
            resident_bytes: 0,
            record_cache_limit_bytes: 0,
            record_cache_bytes: 0,
            dirty_limit_bytes: 0,
            dirty_bytes: 0,
            metadata_limit_bytes: 0,
            rest_bytes: 0,
        };
        answer(Ok(LiveView {
            now_seconds: 0,
            pid: 1,
            version: "1".to_owned(),
            uptime_seconds: ASKED.fetch_add(1, Ordering::Relaxed),
            health: Health::Healthy,
            summary: "a line\nand another".to_owned(),
            warnings: Vec::new(),
            pool,
            memory,
            rebuild: RebuildView::default(),
            scrub: ScrubView::default(),
            disk_count: 6,
            disks_working: 6,
            volume_count: 1,
            node: None,
            missing_parts: Vec::new(),
            last_event_id: 0,
            numbers: vec![LiveNumber {
                name: "inodes".to_owned(),
                value: 1.5,
                across: HistoryAcross::Sum,
            }],
            silent: Vec::new(),
        }))
    }

    fn mounts(&self) -> Answer<'_, Vec<MountView>> {
        answer(Ok(vec![MountView {
            client: "::1".to_owned(),
            path: "/main".to_owned(),
        }]))
    }

    fn history_list(&self) -> Answer<'_, HistoryList> {
        answer(Err(ControlError::new(ErrorKind::Unavailable, "no disk")))
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, HistoryView> {
        let series = query.series.into_iter().map(|name| HistorySeries {
            name,
            kind: HistoryKind::Mean,
            across: HistoryAcross::Sum,
            values: vec![None, Some(0.5)],
        });
        answer(Ok(HistoryView {
            from_seconds: query.from_seconds,
            step_seconds: query.to_seconds.abs_diff(query.from_seconds),
            steps: query.points,
            series: series.collect(),
            silent: Vec::new(),
        }))
    }
}

pub(super) fn server() -> AdminServer {
    AdminServer::new(
        Arc::new(Pretend {
            has_live: true,
            ..Pretend::default()
        }),
        Token::parse(TOKEN).unwrap(),
        AdminSettings {
            metrics_open: false,
            audit: false,
        },
        cairn_testkit::test_env(),
        None,
        None,
    )
}

/// Sends a request with these headers; gives back status, headers and body.
async fn send(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, axum::http::HeaderMap, Vec<u8>) {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, body.to_vec())
}

#[tokio::test]
async fn a_browser_gets_a_session_for_the_token_alone() {
    let router = server().router();
    let host = ("host", "127.0.0.1:8049");
    let log_in = format!("{{\"token\":\" {TOKEN}\\n\"}}");
    for wrong in [
        "{}",
        "{\"token\":\"\"}",
        "{\"token\":\"0123456789abcdef0123456789abcdee\"}",
    ] {
        let (status, headers, _) = send(&router, "POST", "/api/v1/session", &[host], wrong).await;
        assert!([400, 401].contains(&status), "{wrong}");
        assert!(!headers.contains_key("set-cookie"));
    }
    let (status, headers, _) = send(&router, "POST", "/api/v1/session", &[host], &log_in).await;
    assert_eq!(status, 200);
    let cookie = headers["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
    assert!(!cookie.contains(TOKEN) && !cookie.contains("Secure"));
    let proxied = [host, ("x-forwarded-proto", "https")];
    let (_, headers, _) = send(&router, "POST", "/api/v1/session", &proxied, &log_in).await;
    assert!(headers["set-cookie"].to_str().unwrap().ends_with("Secure"));

    let cookie = cookie.split(';').next().unwrap();
    let session = ("cookie", cookie);
    let console = ("x-cairn-console", "1");
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let bad = ("authorization", "Bearer 0123456789abcdef0123456789abcdee");
    #[rustfmt::skip]
    let cases: &[(&str, &str, Headers, u16)] = &[
        ("GET", "/api/v1/volumes", &[host, session], 200),
        ("GET", "/api/v1/volumes", &[host], 401),
        // A page of another port of the same host has the cookie.
        ("POST", "/api/v1/volumes", &[host, session], 401),
        ("POST", "/api/v1/volumes", &[host, session, console], 201),
        ("POST", "/api/v1/volumes", &[host, console], 401),
        ("DELETE", "/api/v1/volumes/main", &[host, session], 401),
        // The cookie is of the server at that port.
        ("GET", "/api/v1/volumes", &[("host", "127.0.0.1:8050"), session], 401),
        // A wrong token is wrong, whatever else there is.
        ("GET", "/api/v1/volumes", &[host, session, bad], 401),
        ("GET", "/api/v1/session", &[host, session], 200),
        ("DELETE", "/api/v1/session", &[host, session], 401),
        ("DELETE", "/api/v1/session", &[host, session, console], 204),
        ("GET", "/api/v1/volumes", &[host, session], 401),
    ];
    for (method, path, headers, want) in cases {
        let body = r#"{"name":"two"}"#;
        let (status, _, body) = send(&router, method, path, headers, body).await;
        let body = String::from_utf8_lossy(&body);
        assert_eq!(status, *want, "{method} {path} {headers:?}: {body}");
    }
    // By the token there is no session to show.
    let bearer = format!("Bearer {TOKEN}");
    let by_token = [("authorization", bearer.as_str())];
    assert_eq!(
        send(&router, "GET", "/api/v1/session", &by_token, "")
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn the_files_of_the_console_are_sent_to_anybody() {
    let router = server().router();
    let gzip = ("accept-encoding", "br, gzip;q=0.9");
    let mut tags = Vec::new();
    for (path, kind) in [
        ("/console/", "text/html; charset=utf-8"),
        ("/console/volumes/main", "text/html; charset=utf-8"),
        ("/console/console.js", "text/javascript; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
    ] {
        let (status, headers, packed) = send(&router, "GET", path, &[gzip], "").await;
        assert_eq!(
            (status, &headers["content-type"]),
            (200, &kind.parse().unwrap())
        );
        assert_eq!(headers["content-encoding"], "gzip");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
        let (_, plain_headers, plain) = send(&router, "GET", path, &[], "").await;
        assert!(!plain_headers.contains_key("content-encoding") && plain.len() > packed.len() / 2);
        let tag = headers["etag"].to_str().unwrap().to_owned();
        let known = [("if-none-match", tag.as_str())];
        let (status, _, body) = send(&router, "GET", path, &known, "").await;
        assert_eq!((status, body.len()), (304, 0), "{path}");
        tags.push(tag);
    }
    assert_eq!(tags[0], tags[1]);
    assert_ne!(tags[1], tags[2]);
    let (status, headers, _) = send(&router, "GET", "/", &[], "").await;
    assert_eq!(
        (status, &headers["location"]),
        (302, &"/console/".parse().unwrap())
    );
    assert_eq!(
        send(&router, "GET", "/console/old.js", &[], "").await.0,
        404
    );
    assert_eq!(send(&router, "POST", "/console/", &[], "").await.0, 405);
}

#[tokio::test]
async fn questions_to_the_history_are_answered_or_refused() {
    let router = server().router();
    let bearer = format!("Bearer {TOKEN}");
    let token = [("authorization", bearer.as_str())];
    let many = "series=a&".repeat(65);
    #[rustfmt::skip]
    let cases: &[(&str, u16, &str)] = &[
        ("series=inodes", 200, r#""step_seconds":3600,"steps":360"#),
        ("series=inodes", 200, "[null,0.5]"),
        ("series=a%3Ab&series=c", 200, r#""name":"a:b""#),
        ("series=a&from=100&to=160&points=6", 200, r#"{"from_seconds":100,"step_seconds":60,"steps":6"#),
        ("", 400, "1 to 64 series"),
        (&many, 400, "1 to 64 series"),
        ("series=a&from=x", 400, "from is a whole number"),
        ("series=a&from=160&to=100", 400, "later than to"),
        ("series=a&points=0", 400, "points is 1 to 2000"),
        ("series=a&points=2001", 400, "points is 1 to 2000"),
        ("series=a&points=-1", 400, "points is 1 to 2000"),
        ("series=a&from=-9223372036854775808&to=9223372036854775807", 200, "steps"),
        ("name=a", 400, "this path knows"),
    ];
    for (query, want, part) in cases {
        let path = format!("/api/v1/history?{query}");
        let (status, _, body) = send(&router, "GET", &path, &token, "").await;
        let body = String::from_utf8_lossy(&body);
        assert_eq!(status, *want, "{query}: {body}");
        assert!(body.contains(part), "{query}: {body}");
    }
    let (status, _, _) = send(&router, "GET", "/api/v1/history/series", &token, "").await;
    assert_eq!(status, 503);
}

#[tokio::test]
async fn streams_share_what_they_tell_and_there_are_not_too_many() {
    let server = server();
    let router = server.router();
    let ask = || {
        let request = Request::builder()
            .uri("/api/v1/live/events")
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(Body::empty())
            .unwrap();
        router.clone().oneshot(request)
    };
    let mut open = Vec::new();
    let mut first = Vec::new();
    for _ in 0..live_routes::STREAMS_MAX {
        let mut body = ask().await.unwrap().into_body();
        let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
        first.push(event);
        open.push(body);
    }
    let text = String::from_utf8(first[0].to_vec()).unwrap();
    let json = text.strip_prefix("event: live\ndata: ").unwrap();
    // Nothing in it ends the event early.
    assert_eq!(json.trim_end().lines().count(), 1, "{json}");
    let view: LiveView = serde_json::from_str(json.trim_end()).unwrap();
    assert_eq!(view.summary, "a line\nand another");
    assert!(first.iter().all(|event| *event == first[0]));
    assert_eq!(ask().await.unwrap().status(), 503);
    drop(open.pop());
    assert_eq!(ask().await.unwrap().status(), 200);
    // A server that ends does not wait for them.
    server.stopping.send_replace(true);
    for mut body in open {
        assert!(body.frame().await.is_none());
    }
}

/// The console's types are made of the document as it is in the repository.
#[test]
fn the_document_in_the_repository_is_that_of_the_program() {
    let path = format!(
        "{}/../../../console/openapi.json",
        std::env::var("CARGO_MANIFEST_DIR").unwrap()
    );
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept.trim_end() == openapi_json().trim_end(),
        "console/openapi.json is old: run `make console-types console` and commit"
    );
}
