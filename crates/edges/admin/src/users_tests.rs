//! Users, roles, sessions and the audit log, through the API.

use std::collections::BTreeMap;
use std::sync::Mutex as StdMutex;

use axum::body::Body;
use axum::http::{HeaderMap, Method};
use cairn_config::{Logout, Logouts, PasswordHash, Role, UserName, UserRecord};
use cairn_testkit::TestWorld;
use http_body_util::BodyExt as _;
use tower::ServiceExt;

use super::tests::{Pretend, TOKEN, answer};
use super::*;
use crate::audit::{AuditEntry, AuditPage, AuditQuery};
use crate::control::Answer;
use crate::list_query::ListQuery;
use crate::users::{UserControl, UserView};
use crate::volumes::VOLUME_LIST;

/// Users in memory, and what was noted.
#[derive(Default)]
pub(super) struct PretendUsers {
    users: StdMutex<(u64, BTreeMap<UserName, UserRecord>)>,
    pub(super) noted: StdMutex<Vec<AuditEntry>>,
    logouts: StdMutex<Logouts>,
}

impl PretendUsers {
    fn change<T>(
        &self,
        change: impl FnOnce(u64, &mut BTreeMap<UserName, UserRecord>) -> Result<T, ErrorKind>,
    ) -> Answer<'_, T>
    where
        T: Send + 'static,
    {
        let mut users = self.users.lock().unwrap();
        users.0 += 1;
        let stamp = users.0;
        let changed = change(stamp, &mut users.1);
        answer(changed.map_err(|kind| ControlError::new(kind, "not so")))
    }
}

impl UserControl for PretendUsers {
    fn users(&self) -> Vec<(UserName, UserRecord)> {
        self.users.lock().unwrap().1.clone().into_iter().collect()
    }

    fn user(&self, name: &UserName) -> Option<UserRecord> {
        self.users.lock().unwrap().1.get(name).cloned()
    }

    fn user_create(&self, name: UserName, role: Role, hash: PasswordHash) -> Answer<'_, UserView> {
        self.change(|stamp, users| {
            if users.contains_key(&name) {
                return Err(ErrorKind::Conflict);
            }
            let record = UserRecord {
                role,
                password: hash,
                stamp,
                created_seconds: 1,
                changed_seconds: 1,
            };
            users.insert(name.clone(), record.clone());
            Ok(UserView::new(name, &record))
        })
    }

    fn user_set(
        &self,
        name: UserName,
        role: Option<Role>,
        hash: Option<PasswordHash>,
        expected: Option<u64>,
    ) -> Answer<'_, UserView> {
        self.change(|stamp, users| {
            let user = users.get_mut(&name).ok_or(ErrorKind::NotFound)?;
            if expected.is_some_and(|expected| expected != user.stamp) {
                return Err(ErrorKind::Conflict);
            }
            user.role = role.unwrap_or(user.role);
            user.password = hash.unwrap_or(user.password.clone());
            user.stamp = stamp;
            Ok(UserView::new(name, user))
        })
    }

    fn is_logged_out(&self, number: u64, whose: &str, ends_seconds: i64) -> bool {
        let logouts = self.logouts.lock().unwrap();
        logouts.has(number, whose, ends_seconds)
    }

    fn log_out(&self, logout: Logout) -> Answer<'_, ()> {
        self.logouts.lock().unwrap().add(logout, 0);
        answer(Ok(()))
    }

    fn user_delete(&self, name: UserName) -> Answer<'_, ()> {
        self.change(|_, users| users.remove(&name).map(drop).ok_or(ErrorKind::NotFound))
    }
}

impl AuditControl for PretendUsers {
    fn note(&self, mut entry: AuditEntry) -> Answer<'_, ()> {
        let mut noted = self.noted.lock().unwrap();
        entry.id = noted.len() as u64 + 1;
        noted.push(entry);
        answer(Ok(()))
    }

    fn audit(&self, query: AuditQuery) -> Answer<'_, AuditPage> {
        let noted = self.noted.lock().unwrap();
        answer(Ok(query.page(noted.iter().rev())))
    }
}

struct Site {
    world: TestWorld,
    router: Router,
    pretend: Arc<Pretend>,
}

impl Site {
    fn new() -> Self {
        Self::with(|_| None)
    }

    fn with(oidc: impl FnOnce(Env) -> Option<Provider>) -> Self {
        let world = TestWorld::new(1);
        let pretend = Arc::new(Pretend {
            has_live: true,
            ..Pretend::default()
        });
        let server = server_of(&world, &pretend, oidc(world.env.clone()));
        Self {
            router: server.router(),
            world,
            pretend,
        }
    }

    /// Another process with what this one kept.
    fn started_again(&self) -> AdminServer {
        server_of(&self.world, &self.pretend, None)
    }

    fn started_again_as_a_site(self) -> Self {
        let router = self.started_again().router();
        Self { router, ..self }
    }

    /// A minute goes by, until there are so many entries in the log.
    async fn pass_a_minute(&self, count: usize) {
        // The task that waits for it has to begin to wait before.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.world.clock.advance(Duration::from_secs(60));
        for _ in 0..10_000 {
            if self.pretend.users.noted.lock().unwrap().len() >= count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("no summary of the minute");
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, HeaderMap, String) {
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("host", "h:8049")
            .extension(Peer("10.1.2.3:5".parse().unwrap()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (parts.status.as_u16(), parts.headers, body)
    }

    async fn by_token(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        let (status, _, body) = self.send(method, path, &headers, body).await;
        (status, body)
    }

    async fn by_cookie(&self, cookie: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let headers = [("cookie", cookie), ("x-cairn-console", "1")];
        let (status, _, body) = self.send(method, path, &headers, body).await;
        (status, body)
    }

    async fn make(&self, name: &str, role: &str, password: &str) {
        let body = format!(r#"{{"name":"{name}","role":"{role}","password":"{password}"}}"#);
        let (status, body) = self.by_token("POST", "/api/v1/users", &body).await;
        assert_eq!(status, 201, "{body}");
        assert!(
            !body.contains("argon2") && !body.contains(password),
            "{body}"
        );
    }

    /// The cookie of a log-in, or the status of its refusal.
    async fn log_in(&self, user: &str, password: &str) -> Result<String, (u16, HeaderMap)> {
        let body = format!(r#"{{"user":"{user}","password":"{password}"}}"#);
        let (status, headers, _) = self.send("POST", "/api/v1/session", &[], &body).await;
        if status != 200 {
            assert!(!headers.contains_key("set-cookie"));
            return Err((status, headers));
        }
        Ok(cookie_in(&headers))
    }
}

fn server_of(world: &TestWorld, pretend: &Arc<Pretend>, oidc: Option<Provider>) -> AdminServer {
    let settings = AdminSettings {
        metrics_open: false,
        audit: true,
    };
    AdminServer::new(
        Arc::clone(pretend) as Arc<dyn Control>,
        Token::parse(TOKEN).unwrap(),
        settings,
        world.env.clone(),
        oidc,
        None,
    )
}

fn cookie_in(headers: &HeaderMap) -> String {
    let cookie = headers["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

const PASSWORD: &str = "correct horse";

#[tokio::test]
async fn a_viewer_sees_everything_and_changes_nothing() {
    let site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    site.make("bob", "viewer", PASSWORD).await;
    let alice = site.log_in("alice", PASSWORD).await.unwrap();
    let bob = site.log_in("bob", PASSWORD).await.unwrap();
    let (_, session) = site.by_cookie(&bob, "GET", "/api/v1/session", "").await;
    assert!(
        session.contains(r#""user":"bob","role":"viewer""#),
        "{session}"
    );
    // Every path that the document has: a viewer gets what it asks for, and 403 for what it would change.
    let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut changes = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let at = path.replace(['{', '}'], "");
        for method in ["get", "put", "post", "delete", "patch"] {
            let operation = &item[method];
            // Streams do not end, and a log-out would end this.
            let is_end = path.ends_with("/events")
                || (method, path.as_str()) == ("delete", "/api/v1/session");
            if operation.is_null() || is_end {
                continue;
            }
            let is_open = operation["security"] == serde_json::json!([{}]);
            let is_own = path.starts_with("/api/v1/session");
            let method = method.to_uppercase();
            let (status, body) = site.by_cookie(&bob, &method, &at, "{}").await;
            match (method.as_str(), is_open || is_own) {
                (_, true) => {}
                ("GET", _) => assert!(![401, 403].contains(&status), "{method} {path}: {body}"),
                _ => {
                    changes += 1;
                    assert_eq!(status, 403, "{method} {path}: {body}");
                    assert!(
                        body.contains(r#""kind":"forbidden""#) && body.contains("bob is a viewer")
                    );
                    assert!(!operation["responses"]["403"].is_null(), "{method} {path}");
                }
            }
        }
    }
    assert!(changes > 40, "{changes}");
    assert_eq!(*site.pretend.told.lock().unwrap(), Vec::<String>::new());
    let body = r#"{"name":"two"}"#;
    let (status, _) = site
        .by_cookie(&alice, "POST", "/api/v1/volumes", body)
        .await;
    assert_eq!(status, 201);
    // Without the header of the console not even an admin.
    let plain = [("cookie", alice.as_str())];
    let (status, ..) = site.send("POST", "/api/v1/volumes", &plain, body).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn sessions_end_with_their_user_and_when_nobody_uses_them() {
    let site = Site::new();
    let holds = async |cookie: &str| {
        let (status, _) = site.by_cookie(cookie, "GET", "/api/v1/volumes", "").await;
        status == 200
    };
    site.make("alice", "admin", PASSWORD).await;
    // Any change of the user ends them, and deletion does, and another user of this name does not bring them back.
    for change in [
        r#"{"role":"viewer"}"#,
        r#"{"role":"viewer"}"#,
        r#"{"password":"another horse"}"#,
    ] {
        let cookie = match site.log_in("alice", PASSWORD).await {
            Ok(cookie) => cookie,
            Err(refused) => panic!("{refused:?}"),
        };
        assert!(holds(&cookie).await);
        let (status, body) = site.by_token("PATCH", "/api/v1/users/alice", change).await;
        assert_eq!(status, 200, "{body}");
        assert!(!holds(&cookie).await, "{change}");
    }
    assert_eq!(site.log_in("alice", PASSWORD).await.unwrap_err().0, 401);
    let cookie = site.log_in("alice", "another horse").await.unwrap();
    assert_eq!(
        site.by_token("DELETE", "/api/v1/users/alice", "").await.0,
        204
    );
    assert!(!holds(&cookie).await);
    site.make("alice", "admin", "another horse").await;
    assert!(!holds(&cookie).await);

    let idle = Duration::from_secs(crate::session::IDLE_SECONDS.unsigned_abs());
    let cookie = site.log_in("alice", "another horse").await.unwrap();
    site.world.clock.advance(idle / 2);
    // What a page asks by itself does not prolong it; what somebody does, does.
    let headers = [("cookie", cookie.as_str()), ("x-cairn-console", "1")];
    let (_, headers, _) = site.send("GET", "/api/v1/volumes", &headers, "").await;
    assert!(!headers.contains_key("set-cookie"));
    let headers = [("cookie", cookie.as_str()), ("x-cairn-console", "active")];
    let (_, headers, _) = site.send("GET", "/api/v1/volumes", &headers, "").await;
    let renewed = cookie_in(&headers);
    site.world.clock.advance(idle / 2);
    assert!(!holds(&cookie).await && holds(&renewed).await);
    // A log-out ends it, however often it was renewed.
    let (status, _) = site
        .by_cookie(&renewed, "DELETE", "/api/v1/session", "")
        .await;
    assert_eq!(status, 204);
    assert!(!holds(&renewed).await);
}

#[tokio::test]
async fn tries_to_log_in_are_limited() {
    let site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    let session = site.log_in("alice", PASSWORD).await.unwrap();
    let mut refused = Vec::new();
    for number in 0..11 {
        let wrong = format!("wrong horse {number}");
        refused.push(site.log_in("alice", &wrong).await.unwrap_err());
    }
    let (last, before) = refused.split_last().unwrap();
    assert!(before.iter().all(|(status, _)| *status == 401));
    let wait: u64 = last.1["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!((last.0, wait), (429, 30));
    // Nor the right one now, by any way; sessions and the token are not touched.
    assert_eq!(site.log_in("alice", PASSWORD).await.unwrap_err().0, 429);
    let basic = [("authorization", "Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==")];
    assert_eq!(site.send("GET", "/api/v1/volumes", &basic, "").await.0, 429);
    assert_eq!(
        site.by_cookie(&session, "GET", "/api/v1/volumes", "")
            .await
            .0,
        200
    );
    assert_eq!(site.by_token("GET", "/api/v1/volumes", "").await.0, 200);
    site.world.clock.advance(Duration::from_secs(wait));
    assert_eq!(site.send("GET", "/api/v1/volumes", &basic, "").await.0, 200);
    assert!(site.log_in("alice", PASSWORD).await.is_ok());
    // An address has its own limit, over all users that it tries.
    let mut statuses = Vec::new();
    for number in 0..40 {
        let error = site.log_in(&format!("user{number}"), PASSWORD).await;
        statuses.push(error.unwrap_err().0);
    }
    assert_eq!((statuses[0], statuses[39]), (401, 429));
    let token = r#"{"token":"0123456789abcdef0123456789abcdee"}"#;
    assert_eq!(
        site.send("POST", "/api/v1/session", &[], token).await.0,
        429
    );
    // A holder of the right one is let in, whatever others of that address tried.
    let token = format!(r#"{{"token":"{TOKEN}"}}"#);
    assert_eq!(
        site.send("POST", "/api/v1/session", &[], &token).await.0,
        200
    );
}

#[tokio::test]
async fn names_and_passwords_are_taken_of_programs_and_not_of_browsers() {
    let site = Site::new();
    site.make("bob", "viewer", PASSWORD).await;
    let basic = ("authorization", "Basic Ym9iOmNvcnJlY3QgaG9yc2U=");
    let wrong = ("authorization", "Basic Ym9iOmNvcnJlY3QgaG9yc2Y=");
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: &[(&str, Headers, u16)] = &[
        ("GET", &[basic], 200),
        ("POST", &[basic], 403),
        ("GET", &[wrong], 401),
        ("GET", &[basic, ("origin", "https://evil.example")], 401),
        ("GET", &[basic, ("sec-fetch-site", "cross-site")], 401),
        ("GET", &[("authorization", "Basic !")], 401),
    ];
    for (method, headers, want) in cases {
        let (status, headers, body) = site.send(method, "/api/v1/volumes", headers, "{}").await;
        assert_eq!(status, *want, "{body}");
        // A browser would ask for a password of its own accord.
        if let Some(asked) = headers.get("www-authenticate") {
            assert_eq!(asked, "Bearer");
        }
    }
}

/// A form of another site can send a body that reads as JSON, and a browser would keep the cookie of the answer.
#[tokio::test]
async fn another_sites_page_logs_nobody_in() {
    let site = Site::new();
    site.make("bob", "viewer", PASSWORD).await;
    let body = format!(r#"{{"user":"bob","password":"{PASSWORD}"}}"#);
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: &[(Headers, u16)] = &[
        (&[], 200),
        (
            &[
                ("origin", "http://h:8049"),
                ("sec-fetch-site", "same-origin"),
            ],
            200,
        ),
        (&[("origin", "https://H:8049")], 200),
        (&[("sec-fetch-site", "none")], 200),
        (
            &[("origin", "http://h:8050"), ("sec-fetch-site", "same-site")],
            403,
        ),
        (&[("origin", "http://evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("sec-fetch-site", "cross-site")], 403),
    ];
    for (headers, want) in cases {
        let (status, answered, text) = site.send("POST", "/api/v1/session", headers, &body).await;
        assert_eq!(status, *want, "{headers:?}: {text}");
        assert_eq!(answered.contains_key("set-cookie"), *want == 200);
    }
}

#[tokio::test]
async fn users_change_their_own_password() {
    let site = Site::new();
    site.make("bob", "viewer", PASSWORD).await;
    let bob = site.log_in("bob", PASSWORD).await.unwrap();
    let path = "/api/v1/session/password";
    let body = |now: &str, new: &str| format!(r#"{{"password":"{now}","new_password":"{new}"}}"#);
    let cases = [
        (body("wrong horse", "a new horse"), 401),
        (body(PASSWORD, "short"), 400),
        (body(PASSWORD, "a new horse"), 200),
        (body(PASSWORD, "a new horse"), 401),
    ];
    for (body, want) in cases {
        let (status, text) = site.by_cookie(&bob, "PUT", path, &body).await;
        assert_eq!(status, want, "{text}");
    }
    assert!(site.log_in("bob", "a new horse").await.is_ok());
    assert_eq!(
        site.by_token("PUT", path, &body("a", "a new horse"))
            .await
            .0,
        409
    );
}

#[tokio::test]
async fn it_is_noted_who_changed_what() {
    let site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    site.make("bob", "viewer", PASSWORD).await;
    let alice = site.log_in("alice", PASSWORD).await.unwrap();
    let bob = site.log_in("bob", PASSWORD).await.unwrap();
    let _ = site.log_in("alice", "wrong horse").await;
    let _ = site.log_in("my secret <b>", "wrong horse").await;
    site.by_cookie(
        &alice,
        "POST",
        "/api/v1/volumes?secret=1",
        r#"{"name":"two"}"#,
    )
    .await;
    site.by_cookie(&bob, "DELETE", "/api/v1/volumes/main", "")
        .await;
    site.by_cookie("nonsense=1", "DELETE", "/api/v1/volumes/main", "")
        .await;
    site.by_cookie(&alice, "GET", "/api/v1/volumes", "").await;
    let (status, body) = site.by_cookie(&bob, "GET", "/api/v1/audit", "").await;
    assert_eq!(status, 200);
    let page: AuditPage = serde_json::from_str(&body).unwrap();
    let shown: Vec<String> = page
        .entries
        .iter()
        .rev()
        .map(|entry| {
            assert_eq!(entry.address, "10.1.2.3");
            format!(
                "{} {} {} {} {}",
                entry.user, entry.via, entry.method, entry.path, entry.status
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "token token POST /api/v1/users 201",
            "token token POST /api/v1/users 201",
            "alice password POST /api/v1/session 200",
            "bob password POST /api/v1/session 200",
            "alice nothing POST /api/v1/session 401",
            "alice session POST /api/v1/volumes 201",
            "bob session DELETE /api/v1/volumes/main 403",
        ]
    );
    let (_, body) = site
        .by_token("GET", "/api/v1/audit?user=alice&refused=false&limit=1", "")
        .await;
    let page: AuditPage = serde_json::from_str(&body).unwrap();
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.next_before, Some(page.entries[0].id));
    for query in ["limit=0", "who=alice", "refused=maybe"] {
        let (status, _) = site
            .by_token("GET", &format!("/api/v1/audit?{query}"), "")
            .await;
        assert_eq!(status, 400, "{query}");
    }
}

/// Unauthorized clients cannot push out entries of changes, and none of their tries goes uncounted.
#[tokio::test]
async fn failed_log_ins_are_noted_once_a_minute() {
    let site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    let noted = || site.pretend.users.noted.lock().unwrap().clone();
    for _ in 0..9 {
        let refused = site.log_in("alice", "wrong horse").await;
        assert_eq!(refused.unwrap_err().0, 401);
    }
    assert_eq!(noted().len(), 2, "the user, and the first of them");
    site.pass_a_minute(3).await;
    let summary = noted().pop().unwrap();
    let told = (&*summary.user, summary.status, summary.count);
    assert_eq!(told, ("alice", 401, Some(8)));
    assert_eq!(summary.address, "10.1.2.3");
    // Nothing failed in the next minute: there is no entry of it.
    site.world.clock.advance(Duration::from_secs(3600));
    let refused = site.log_in("nobody", PASSWORD).await;
    assert_eq!(refused.unwrap_err().0, 401);
    site.pass_a_minute(4).await;
    let last = noted().pop().unwrap();
    assert_eq!((&*last.user, last.count), ("?", None));
}

/// Log-ins and failures of the log count for who may try after a start.
#[tokio::test]
async fn a_start_forgets_neither_guessers_nor_who_logged_in() {
    let site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    site.log_in("alice", PASSWORD).await.unwrap();
    let entry = |address: &str, count| {
        let entry = site.pretend.users.noted.lock().unwrap().last().cloned();
        AuditEntry {
            address: address.to_owned(),
            via: "nothing".to_owned(),
            status: 401,
            count,
            at_seconds: site.world.env.clock.now().seconds,
            ..entry.unwrap()
        }
    };
    let guessed = entry("203.0.113.7", Some(500));
    site.pretend.users.noted.lock().unwrap().push(guessed);
    let again = site.started_again();
    audit::recall(&again.shared).await;
    let now = site.world.env.clock.monotonic();
    let try_from = |address: &str| {
        let address = address.parse().unwrap();
        again.shared.attempts.take(Some("alice"), address, now)
    };
    assert!(try_from("203.0.113.7").is_err());
    assert!(try_from("203.0.113.8").is_err());
    assert_eq!(try_from("10.1.2.3"), Ok(()));
}

/// An ended session stays so over a restart, and sessions are ended one by one, or all of somebody.
#[tokio::test]
async fn sessions_are_listed_and_ended_for_good() {
    let mut site = Site::new();
    site.make("alice", "admin", PASSWORD).await;
    site.make("bob", "viewer", PASSWORD).await;
    let alice = site.log_in("alice", PASSWORD).await.unwrap();
    let bobs = [
        site.log_in("bob", PASSWORD).await.unwrap(),
        site.log_in("bob", PASSWORD).await.unwrap(),
        site.log_in("bob", PASSWORD).await.unwrap(),
    ];
    let (status, body) = site.by_cookie(&alice, "GET", "/api/v1/sessions", "").await;
    assert_eq!(status, 200, "{body}");
    let list: crate::users::OpenSessionList = serde_json::from_str(&body).unwrap();
    let shown: Vec<_> = list
        .sessions
        .iter()
        .map(|one| (&*one.user, &*one.by, &*one.address, one.is_own))
        .collect();
    let of_bob = ("bob", "password", "10.1.2.3", false);
    let want = [
        ("alice", "password", "10.1.2.3", true),
        of_bob,
        of_bob,
        of_bob,
    ];
    assert_eq!(shown, want);
    let statuses = async |site: &Site| {
        let mut all = Vec::new();
        for cookie in [&alice, &bobs[0], &bobs[1], &bobs[2]] {
            let (status, _) = site.by_cookie(cookie, "GET", "/api/v1/volumes", "").await;
            all.push(status);
        }
        all
    };
    // One of them by its number, one by its own log-out. A viewer ends nobody's but its own.
    let path = format!("/api/v1/sessions/{}", list.sessions[1].id);
    for path in [&path, "/api/v1/sessions?user=alice"] {
        let (status, _) = site.by_cookie(&bobs[0], "DELETE", path, "").await;
        assert_eq!(status, 403);
    }
    assert_eq!(statuses(&site).await, [200; 4]);
    assert_eq!(site.by_token("DELETE", &path, "").await.0, 204);
    assert_eq!(site.by_token("DELETE", &path, "").await.0, 404);
    let ended = statuses(&site).await;
    assert_eq!(ended.iter().filter(|status| **status == 401).count(), 1);
    let holding = ended.iter().rposition(|status| *status == 200).unwrap();
    let cookie = [&alice, &bobs[0], &bobs[1], &bobs[2]][holding];
    let (status, _) = site
        .by_cookie(cookie, "DELETE", "/api/v1/session", "")
        .await;
    assert_eq!(status, 204);
    site = site.started_again_as_a_site();
    let after = statuses(&site).await;
    assert_eq!(after.iter().filter(|status| **status == 401).count(), 2);
    // All that are left, also one that this process has not seen.
    let path = "/api/v1/sessions?user=bob";
    assert_eq!(site.by_token("DELETE", path, "").await.0, 204);
    assert_eq!(statuses(&site).await, [200, 401, 401, 401]);
    site = site.started_again_as_a_site();
    assert_eq!(statuses(&site).await, [200, 401, 401, 401]);
    site.world.clock.advance(Duration::from_secs(1));
    assert!(site.log_in("bob", PASSWORD).await.is_ok());
    for path in [
        "/api/v1/sessions",
        "/api/v1/sessions?user=",
        "/api/v1/sessions?user=%00",
        "/api/v1/sessions?user=bob&by=token",
    ] {
        assert_eq!(site.by_token("DELETE", path, "").await.0, 400, "{path}");
    }
    for id in ["x", "0", "00000000000000001", "+000000000000001"] {
        let path = format!("/api/v1/sessions/{id}");
        assert_eq!(site.by_token("DELETE", &path, "").await.0, 404, "{id}");
    }
}

/// Nor can those who may change nothing; and who guesses by reading is noted, by no name that may be a secret.
#[tokio::test]
async fn what_viewers_and_guessers_try_is_noted_in_bounds() {
    let site = Site::new();
    site.make("bob", "viewer", PASSWORD).await;
    let bob = site.log_in("bob", PASSWORD).await.unwrap();
    for _ in 0..1000 {
        let tried = site.by_cookie(&bob, "DELETE", "/api/v1/volumes/main", "");
        assert_eq!(tried.await.0, 403);
    }
    let noted = || site.pretend.users.noted.lock().unwrap().clone();
    assert!((100..400).contains(&noted().len()), "{}", noted().len());
    let before = noted().len();
    site.make("carol", "viewer", PASSWORD).await;
    // bob, with another password; TOKEN, in the field of the name.
    for (number, guess) in [
        "Basic Ym9iOmNvcnJlY3QgaG9yc2Y=",
        "Basic MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY6eA==",
    ]
    .into_iter()
    .enumerate()
    {
        let basic = [("authorization", guess)];
        assert_eq!(site.send("GET", "/api/v1/volumes", &basic, "").await.0, 401);
        // The first is an entry at once, the other one with its minute.
        if number == 1 {
            site.pass_a_minute(before + 3).await;
        }
    }
    let after: Vec<(String, String)> = noted()[before..]
        .iter()
        .map(|entry| (entry.user.clone(), entry.method.clone()))
        .collect();
    let want = [("token", "POST"), ("bob", "GET"), ("?", "GET")];
    assert_eq!(
        after,
        want.map(|(user, method)| (user.to_owned(), method.to_owned()))
    );
}

#[tokio::test]
async fn users_are_made_or_refused() {
    let site = Site::new();
    let cases = [
        (
            r#"{"name":"alice","role":"viewer","password":"correct horse"}"#,
            201,
        ),
        (
            r#"{"name":"alice","role":"viewer","password":"correct horse"}"#,
            409,
        ),
        (r#"{"name":"bob","role":"viewer","password":"short"}"#, 400),
        (
            r#"{"name":"bob","role":"root","password":"correct horse"}"#,
            400,
        ),
        (
            r#"{"name":"token","role":"viewer","password":"correct horse"}"#,
            400,
        ),
        (
            r#"{"name":"a b","role":"viewer","password":"correct horse"}"#,
            400,
        ),
        (r#"{"name":"bob","role":"viewer"}"#, 400),
    ];
    for (body, want) in cases {
        let (status, text) = site.by_token("POST", "/api/v1/users", body).await;
        assert_eq!(status, want, "{text}");
        assert!(!text.contains("correct horse"), "{text}");
    }
    let cases = [
        ("GET", "/api/v1/users/alice", "", 200),
        ("GET", "/api/v1/users/bob", "", 404),
        ("GET", "/api/v1/users/a%20b", "", 404),
        ("PATCH", "/api/v1/users/alice", "{}", 400),
        ("PATCH", "/api/v1/users/bob", r#"{"role":"admin"}"#, 404),
        ("DELETE", "/api/v1/users/bob", "", 404),
        ("DELETE", "/api/v1/users/alice", "", 204),
    ];
    for (method, path, body, want) in cases {
        let (status, text) = site.by_token(method, path, body).await;
        assert_eq!(status, want, "{method} {path}: {text}");
    }
}

/// With a certificate of its own the server speaks HTTPS alone, and only to who knows the certificate.
#[test]
fn https_is_served_to_who_knows_the_certificate() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap().as_secs()).unwrap();
    let made = |name: &str| cairn_https::self_signed(&[name.to_owned()], now).unwrap();
    let (own, other) = (made("127.0.0.1"), made("127.0.0.1"));
    let certificate = Certificate::new(own.certificate_pem.as_bytes(), own.key_pem.as_bytes());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let certificate = Some(certificate.unwrap());
    let serving = runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        let settings = AdminSettings {
            metrics_open: false,
            audit: false,
        };
        let server = AdminServer::new(
            Arc::new(Pretend::default()),
            Token::parse(TOKEN).unwrap(),
            settings,
            cairn_testkit::test_env(),
            None,
            None,
        );
        server
            .serve(listener, certificate, async { drop(stopped.await) })
            .await;
    });
    use crate::client::{Client, ClientError, Identity};
    let token = Identity::Token(Token::parse(TOKEN).unwrap());
    let by = |url: &str, trusted: Option<&str>| Client::new(url, Some(&token), trusted).unwrap();
    let https = format!("https://{address}");
    let knows = by(&https, Some(&own.certificate_pem));
    assert_eq!(
        knows
            .all(VOLUME_LIST, &ListQuery::default())
            .unwrap()
            .volumes
            .len(),
        1
    );
    for client in [
        by(&https, Some(&other.certificate_pem)),
        by(&https, None),
        by(&format!("http://{address}"), None),
        by(
            &format!("https://localhost:{}", address.port()),
            Some(&own.certificate_pem),
        ),
    ] {
        assert!(matches!(
            client.all(VOLUME_LIST, &ListQuery::default()),
            Err(ClientError::Unreachable { .. })
        ));
    }
    assert!(Client::new(&https, None, Some("nonsense")).is_err());
    stop.send(()).unwrap();
    runtime.block_on(serving).unwrap();
}

/// Nobody listens there: what is tested is refused before anybody is asked.
fn nobodys_provider(env: Env) -> Option<Provider> {
    let settings = cairn_config::Oidc {
        issuer: "http://localhost:1".to_owned(),
        client_id: "cairn".to_owned(),
        client_secret_file: None,
        addresses: vec!["http://h:8049".to_owned()],
        name_claim: "preferred_username".to_owned(),
        role_claim: "groups".to_owned(),
        admins: vec!["admins".to_owned()],
        viewers: vec![],
        scopes: vec![],
        text: "Example".to_owned(),
    };
    Some(Provider::new(settings, env).unwrap())
}

#[tokio::test]
async fn a_log_in_by_a_provider_is_of_its_browser_and_not_old() {
    const FINISH: &str = "/api/v1/session/oidc/finish";
    let site = Site::with(nobodys_provider);
    let sessions = Sessions::new(&Token::parse(TOKEN).unwrap());
    let began = site.world.env.clock.now().seconds;
    let pending = sessions.begin_login(began, 7);
    let cookie = format!("cairn-oidc-8049={}", sessions.login_value(&pending));
    let state = sessions.login(&pending).state;
    let back = |state: &str| format!(r#"{{"state":"{state}","error":"access_denied"}}"#);
    let json = ("content-type", "application/json");
    let own = [
        json,
        ("cookie", cookie.as_str()),
        ("origin", "http://h:8049"),
    ];
    let (status, headers, body) = site.send("POST", FINISH, &own, &back(&state)).await;
    assert_eq!(status, 401);
    assert!(body.contains("access_denied"), "{body}");
    // It is over, whatever came of it.
    assert!(
        headers["set-cookie"]
            .to_str()
            .unwrap()
            .contains("Max-Age=0")
    );
    let foreign = [json, own[1], ("origin", "http://evil")];
    let cross = [json, own[1], ("sec-fetch-site", "cross-site")];
    for (headers, state, want, part) in [
        (&own[..], "0", 401, "did not start"),
        (&own[..1], state.as_str(), 401, "did not start"),
        (&foreign[..], state.as_str(), 403, "another site"),
        (&cross[..], state.as_str(), 403, "another site"),
    ] {
        let (status, _, body) = site.send("POST", FINISH, headers, &back(state)).await;
        assert_eq!(status, want, "{body}");
        assert!(body.contains(part), "{body}");
    }
    let seconds = u64::try_from(crate::session::LOGIN_SECONDS).unwrap();
    site.world.clock.advance(Duration::from_secs(seconds));
    let (status, _, body) = site.send("POST", FINISH, &own, &back(&state)).await;
    assert_eq!(status, 401);
    assert!(body.contains("too old"), "{body}");
    // Without a provider there is no such way.
    let site = Site::new();
    let (status, ..) = site.send("POST", FINISH, &own, &back(&state)).await;
    assert_eq!(status, 404);
    let (_, _, body) = site.send("GET", "/api/v1/session/ways", &[], "").await;
    assert_eq!(body, "{}");
}

/// Others let nobody in whom these did.
#[tokio::test]
async fn a_session_by_a_provider_has_its_role_as_long_as_the_settings_stay() {
    let site = Site::with(nobodys_provider);
    let stamp = nobodys_provider(site.world.env.clone()).unwrap().stamp();
    let sessions = Sessions::new(&Token::parse(TOKEN).unwrap());
    let now = site.world.env.clock.now().seconds;
    let cookie = |role, stamp| {
        let whose = crate::session::Whose::Person {
            name: "alice@example.org".parse().unwrap(),
            role,
            stamp,
        };
        let value = sessions.value(&sessions.begin(whose, now, 7));
        format!("cairn-session-8049={value}")
    };
    let body = r#"{"name":"two"}"#;
    for (role, stamp, want) in [
        (Role::Admin, stamp, 201),
        (Role::Viewer, stamp, 403),
        (Role::Admin, stamp ^ 1, 401),
    ] {
        let cookie = cookie(role, stamp);
        let (status, said) = site
            .by_cookie(&cookie, "POST", "/api/v1/volumes", body)
            .await;
        assert_eq!(status, want, "{said}");
    }
    let cookie = cookie(Role::Admin, stamp);
    let (_, said) = site.by_cookie(&cookie, "GET", "/api/v1/session", "").await;
    assert!(said.contains(r#""by":"oidc""#), "{said}");
    let password = r#"{"password":"correct horse","new_password":"another horse"}"#;
    let (status, _) = site
        .by_cookie(&cookie, "PUT", "/api/v1/session/password", password)
        .await;
    assert_eq!(status, 409);
    let noted = site.pretend.users.noted.lock().unwrap();
    let noted: Vec<_> = noted
        .iter()
        .map(|it| (it.user.as_str(), it.via.as_str(), it.status))
        .collect();
    assert_eq!(noted[0], ("alice@example.org", "oidc", 201));
    assert_eq!(noted[1], ("alice@example.org", "oidc", 403));
}
