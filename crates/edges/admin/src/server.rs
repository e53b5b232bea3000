//! The HTTP server of the API.
//!
//! Owns: its connections, what all requests share, what is done with each before and after its path. Must not know: what a path answers
//! (`*_routes`), which paths there are (`route_table`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use cairn_base::LogLimit;
use cairn_base::env::{Clock, Env};
use cairn_config::{Logout, UserName, UserRecord};
use cairn_forward::{Door, Forward};
use cairn_https::{Certificate, head_len_bytes};
use cairn_oidc::Provider;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use self::caller::{Caller, Encrypted, Peer};
use self::requests::{Given, InPath, refuse, to_the_end};
pub(crate) use self::requests::{body_of, read_body};
pub(crate) use self::route_table::declared;
pub use self::route_table::openapi_json;
use self::route_table::{observed, open, secured};
use self::serving::Said;
pub(crate) use self::serving::Table;
use crate::api::{ErrorBody, ErrorKind};
use crate::attempts::Attempts;
use crate::audit::{self, AuditControl};
use crate::control::{Control, ControlError};
use crate::entries::LogRange;
use crate::failures::Failures;
use crate::lobby::{CONNECTIONS_MAX, Guest, Lobby};
use crate::pages;
use crate::pass::{self, AcceptedIn, PeerServer};
use crate::passwords::Passwords;
use crate::patience::patient;
use crate::session::{Session, Sessions};
use crate::token::Token;
use crate::users::UserControl;

/// Longest body of a request, in bytes.
pub const BODY_LEN_BYTES_MAX: usize = 256 << 10;
/// Longest head of a request, in bytes; so much is kept for a connection, and an answer in so large parts.
pub(crate) const HEAD_LEN_BYTES_MAX: usize = 64 << 10;
/// When fewer are left, each connection ends with its answer: those that open pages keep between their questions must
/// not shut others out.
const CONNECTIONS_SPARE: usize = CONNECTIONS_MAX / 4;
// Streams alone never take those.
const _: () = assert!(live_routes::STREAMS_MAX + CONNECTIONS_SPARE < CONNECTIONS_MAX);
/// A client that takes longer to send the head of a request is cut off, also between two requests; so is one that takes longer to
/// begin with TLS.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that takes longer to send its body is cut off; so is one that takes nothing of its answer for so long.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a stopping server waits for answers that are under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Numbers and switches of the API.
#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// Serve `/metrics` without the token. What it tells (names of volumes, rates, sizes) is no
    /// secret in most places, but that is the operator's choice.
    pub metrics_open: bool,
    /// Each request that changes something is a line of the server's log, too.
    pub audit: bool,
}

pub(crate) struct ServerCore {
    control: Arc<dyn Control>,
    /// Of the cluster that the node is in.
    pub forward: Option<Arc<Forward>>,
    token: Token,
    settings: AdminSettings,
    document: String,
    env: Env,
    sessions: Sessions,
    /// By which people log in, too.
    oidc: Option<Provider>,
    attempts: Attempts,
    passwords: Passwords,
    /// Failed log-ins that the audit log does not have yet, and how much of what viewers try it takes.
    failures: Mutex<Failures>,
    viewers: Mutex<Budget>,
    /// Log-ins by the provider that cannot begin, or fail: anybody causes as many as they like.
    pub oidc_begins_logged: LogLimit,
    pub oidc_ends_logged: LogLimit,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
    last_event: tokio::sync::Mutex<live_routes::LastEvent>,
    /// What other nodes said last.
    other_numbers: tokio::sync::Mutex<live_routes::OtherNumbers>,
    /// Streams end when it is true.
    stopping: watch::Sender<bool>,
}

/// Log-ins of viewers, and what they try and may not do, that the audit log takes in a row, and after which time one more.
const VIEWERS_AT_ONCE: u32 = 200;
const VIEWER_EVERY: Duration = Duration::from_secs(60);

/// Bounds what those who may change nothing can have written.
struct Budget {
    at_once: u32,
    every: Duration,
    left: u32,
    counted_at: Duration,
}

impl Budget {
    fn new(at_once: u32, every: Duration, now: Duration) -> Mutex<Self> {
        Mutex::new(Self {
            at_once,
            every,
            left: at_once,
            counted_at: now,
        })
    }

    fn may_note(&mut self, now: Duration) -> bool {
        let since = now.saturating_sub(self.counted_at);
        let more = u32::try_from(since.as_secs() / self.every.as_secs()).unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(self.at_once);
            self.counted_at = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

impl ServerCore {
    /// Only in a cluster one node of several can be meant.
    pub fn check_node(&self, part: &LogRange) -> Result<(), ControlError> {
        if part.node.is_some() && self.forward.is_none() {
            let message = "this server is not in a cluster: leave out node";
            return Err(ControlError::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    pub fn audits(&self) -> bool {
        self.settings.audit
    }

    pub fn now_seconds(&self) -> i64 {
        self.env.clock.now().seconds
    }

    pub fn audit_control(&self) -> Option<&dyn AuditControl> {
        self.control.audit()
    }

    pub fn user(&self, name: &UserName) -> Option<UserRecord> {
        self.control.users()?.user(name)
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.env.clock)
    }

    pub fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    pub fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock()
    }

    /// Whether a session was ended, here or at another node, now or before a restart.
    pub fn is_logged_out(&self, session: &Session) -> bool {
        let is_ended = |users: &dyn UserControl| {
            let (number, ends_seconds) = (session.number(), session.ends_seconds);
            users.is_logged_out(number, &session.whose.key(), ends_seconds)
        };
        self.control.users().is_some_and(is_ended)
    }

    /// Ends sessions: here at once, and for good when this is answered.
    pub async fn log_out(&self, logout: Logout) -> Result<(), ControlError> {
        self.sessions.end(logout.clone(), self.now_seconds());
        let Some(users) = self.control.users() else {
            return Ok(());
        };
        users.log_out(logout).await.map_err(|error| {
            let message =
                format!("the session has ended at this node only until the node restarts: {error}");
            ControlError::new(error.kind, message).hint(
                "log out again once the server can store it; the session ends after at most 12 h",
            )
        })
    }

    pub fn may_note_viewer(&self) -> bool {
        let now = self.env.clock.monotonic();
        self.viewers.lock().may_note(now)
    }
}

pub(crate) type Api = State<Arc<ServerCore>>;

/// The API over one listener.
pub struct AdminServer {
    shared: Arc<ServerCore>,
    stopping: watch::Sender<bool>,
}

impl AdminServer {
    /// `oidc`: by which people log in, too; `nodes`: those of the cluster, which answer for one another.
    pub fn new(
        control: Arc<dyn Control>,
        token: Token,
        settings: AdminSettings,
        env: Env,
        oidc: Option<Provider>,
        forward: Option<Arc<Forward>>,
    ) -> Self {
        let stopping = watch::Sender::new(false);
        let now = env.clock.monotonic();
        let shared = Arc::new(ServerCore {
            control,
            forward,
            sessions: Sessions::new(&token),
            token,
            settings,
            document: openapi_json(),
            oidc,
            attempts: Attempts::default(),
            passwords: Passwords::default(),
            failures: Mutex::default(),
            viewers: Budget::new(VIEWERS_AT_ONCE, VIEWER_EVERY, now),
            oidc_begins_logged: LogLimit::default(),
            oidc_ends_logged: LogLimit::default(),
            env,
            streams: live_routes::streams(),
            last_event: tokio::sync::Mutex::default(),
            other_numbers: tokio::sync::Mutex::default(),
            stopping: stopping.clone(),
        });
        Self { shared, stopping }
    }

    /// What serves the requests that other nodes pass on.
    pub fn passed(&self) -> PeerServer {
        let (secured, _) = secured().split_for_parts();
        let all = secured.merge(group_routes::for_nodes());
        let shared = Arc::clone(&self.shared);
        let guard = middleware::from_fn_with_state(shared, pass::admit_guarded);
        let all = all.layer(guard);
        PeerServer::new(all.with_state(Arc::clone(&self.shared)))
    }

    /// Serves until `stop` is ready, then finishes what is under way: HTTPS alone with a `certificate`, else HTTP.
    pub async fn serve(
        self,
        listener: TcpListener,
        certificate: Option<Arc<Certificate>>,
        stop: impl Future<Output = ()> + Send,
    ) {
        audit::recall(&self.shared).await;
        let tls = certificate
            .map(|certificate| certificate.acceptor())
            .transpose();
        let tls = match tls {
            Ok(tls) => tls,
            // Never without the encryption that is wanted.
            Err(error) => {
                tracing::error!(%error, "the admin API is not served, because HTTPS cannot be set up");
                return;
            }
        };
        let lobby = Lobby::new();
        let left = Arc::clone(&lobby);
        let router = router(Arc::clone(&self.shared)).layer(middleware::map_response(
            move |mut response: Response| {
                if left.left() < CONNECTIONS_SPARE {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                std::future::ready(response)
            },
        ));
        let graceful = GracefulShutdown::new();
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_LEN_BYTES_MAX);
        tokio::pin!(stop);
        let mut door = Door::new(self.shared.forward.clone());
        let errors = LogLimit::default();
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = door.accept(&listener) => accepted,
            };
            let (stream, peer, generation) = match accepted {
                // Not admitted as a whole: who looks sees a node without a lease, too. Changes are, one by one.
                Ok((stream, peer, entry)) => (stream, peer, entry.generation()),
                Err(error) => {
                    // Most often too many open files: they do not close faster by asking often.
                    if let Some(more) = errors.admitted() {
                        tracing::warn!(%error, more, "the admin API cannot accept a connection");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let guest = lobby.enter(peer.ip());
            let (own, shared) = (Arc::clone(&guest), Arc::clone(&self.shared));
            let router = router
                .clone()
                .layer(Extension(Peer(peer)))
                .layer(Extension(AcceptedIn(generation)))
                .layer(middleware::from_fn(
                    move |request: Request, next: middleware::Next| {
                        let (guest, shared) = (Arc::clone(&own), Arc::clone(&shared));
                        async move {
                            let is_known = caller::is_known(&shared, request.headers());
                            let response = guest.answer(is_known, request, next).await;
                            // By name and password.
                            if response.extensions().get::<Caller>().is_some() {
                                guest.settle();
                            }
                            response
                        }
                    },
                ));
            let stream = patient(stream, CLIENT_TIMEOUT);
            let Some(tls) = tls.clone() else {
                let service = TowerToHyperService::new(router);
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let connection = ended(graceful.watch(connection), Arc::clone(&guest));
                guest.is_served_by(tokio::spawn(connection).abort_handle());
                continue;
            };
            let service = TowerToHyperService::new(router.layer(Extension(Encrypted)));
            let (http, watcher) = (http.clone(), graceful.watcher());
            let own = Arc::clone(&guest);
            let connection = tokio::spawn(async move {
                match tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let connection = http.serve_connection(TokioIo::new(stream), service);
                        ended(watcher.watch(connection), own).await;
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "a connection to the admin API failed to start")
                    }
                    Err(_) => {
                        tracing::debug!("a connection to the admin API did not start in time")
                    }
                }
            });
            guest.is_served_by(connection.abort_handle());
        }
        drop(listener);
        self.stopping.send_replace(true);
        if tokio::time::timeout(STOP_TIMEOUT, graceful.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("gave up waiting for requests to the admin API");
        }
        let kept = audit::keep_failures(&self.shared);
        if tokio::time::timeout(STOP_TIMEOUT, kept).await.is_err() {
            tracing::warn!("the audit log could not record the last failed log-ins");
        }
    }

    #[cfg(test)]
    fn router(&self) -> Router {
        router(Arc::clone(&self.shared))
    }
}

/// Runs a connection to its end.
async fn ended(connection: impl Future<Output = hyper::Result<()>>, _guest: Arc<Guest>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the admin API ended");
    }
}

fn router(shared: Arc<ServerCore>) -> Router {
    let token = middleware::from_fn_with_state(Arc::clone(&shared), caller::authorize);
    let note = middleware::from_fn_with_state(Arc::clone(&shared), audit::note);
    let pass = middleware::from_fn_with_state(Arc::clone(&shared), pass::pass);
    let (secured, _) = secured().split_for_parts();
    let (mut observed, _) = observed().split_for_parts();
    let (open, _) = open().split_for_parts();
    if !shared.settings.metrics_open {
        observed = observed.layer(token.clone());
    }
    Router::new()
        .merge(
            secured
                .layer(pass)
                .layer(middleware::from_fn(pages::page))
                .layer(token),
        )
        .merge(observed)
        .merge(open)
        .merge(live_routes::pages())
        .fallback(|| async {
            ControlError::new(ErrorKind::NotFound, "this path does not exist")
                .hint("GET /api/v1/openapi.json lists all paths")
        })
        .method_not_allowed_fallback(|| async {
            let error =
                ControlError::new(ErrorKind::Invalid, "this path does not take this method")
                    .hint("GET /api/v1/openapi.json lists all paths and their methods");
            (StatusCode::METHOD_NOT_ALLOWED, Json(ErrorBody::from(error)))
        })
        .layer(note)
        .layer(middleware::from_fn(bounded))
        .layer(middleware::map_response(guard))
        .with_state(shared)
}

/// No answer is kept by a browser or a proxy, where the next one to sit there reads it, nor taken for what its type does not
/// say. Files of the console say themselves how long they may be kept: there is nothing of anybody in them.
async fn guard(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Refuses a request whose head is longer than it may be: what is read at once may be more than that.
async fn bounded(request: Request, next: middleware::Next) -> Response {
    if head_len_bytes(&request) <= HEAD_LEN_BYTES_MAX {
        return next.run(request).await;
    }
    let message = format!("the head of the request has more than {HEAD_LEN_BYTES_MAX} bytes");
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let mut response = refuse(status, message).into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

#[path = "benchmark_routes.rs"]
mod benchmark_routes;
#[path = "caller.rs"]
pub(crate) mod caller;
#[path = "event_routes.rs"]
mod event_routes;
#[path = "group_routes.rs"]
mod group_routes;
#[path = "live_routes.rs"]
mod live_routes;
#[path = "oidc_routes.rs"]
mod oidc_routes;
#[path = "plan_routes.rs"]
mod plan_routes;
#[path = "requests.rs"]
mod requests;
#[path = "route_table.rs"]
mod route_table;
#[path = "serving.rs"]
mod serving;
#[path = "session_routes.rs"]
mod session_routes;
#[path = "status_routes.rs"]
mod status_routes;
#[path = "user_routes.rs"]
mod user_routes;

#[cfg(test)]
#[path = "live_tests.rs"]
mod live_tests;
#[cfg(test)]
#[path = "pass_tests.rs"]
mod pass_tests;
#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "users_tests.rs"]
mod users_tests;
