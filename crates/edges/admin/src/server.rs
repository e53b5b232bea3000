//! The HTTP server of the API.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, RawQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use cairn_base::LogLimit;
use cairn_base::env::{Clock, Env};
use cairn_config::{ClientNet, Logout, UserName, UserRecord, VolumeName};
use cairn_forward::{Door, Forward};
use cairn_https::{Certificate, head_len_bytes};
use cairn_oidc::Provider;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::caller::{Caller, Encrypted, Peer};
use crate::api::{
    AuthorityView, BalanceView, CacheAdd, CacheList, CacheView, ClusterBackup, ClusterView,
    DiskAdd, DiskChange, DiskList, DiskPlace, DiskReplace, DiskView, ErrorBody, ErrorKind,
    ExportList, ExportSet, ExportView, NodeChange, NodeMaintenance, NodeReplace, NodeWeight,
    RebuildRate, RebuildView, ScrubReport, ScrubSchedule, ScrubScheduleSet, ScrubStart, ScrubView,
    SpreadSet, SpreadView, Status, TicketCreate, TicketView, VolumeAddressSet, VolumeChange,
    VolumeCloneCreate, VolumeCreate, VolumeList, VolumeMove, VolumeView,
};
use crate::attempts::Attempts;
use crate::audit::{self, AuditControl};
use crate::control::{Control, ControlError};
use crate::document;
use crate::entries::Part;
use crate::failures::Failures;
use crate::list_query::ListQuery;
use crate::lobby::{CONNECTIONS_MAX, Guest, Lobby};
use crate::pages;
use crate::pass::{self, AcceptedIn, Elsewhere, Passed};
use crate::passwords::Passwords;
use crate::patience::patient;
use crate::query::{Query, QueryError};
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

pub(crate) struct Shared {
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
    /// Failed log-ins that the log of changes does not have yet, and how much of what viewers try it takes.
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

/// Log-ins of viewers, and what they try and may not do, that the log of changes takes in a row, and after which time one more.
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

impl Shared {
    /// Only in a cluster one node of several can be meant.
    pub fn check_node(&self, part: &Part) -> Result<(), ControlError> {
        if part.node.is_some() && self.forward.is_none() {
            let message = "this server is in no cluster: leave out node";
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
            let message = format!("the session has ended at this node until it is started again: {error}");
            ControlError::new(error.kind, message)
                .hint("log out again when the server can keep it; the session ends by itself after 12 h at the latest")
        })
    }

    pub fn may_note_viewer(&self) -> bool {
        let now = self.env.clock.monotonic();
        self.viewers.lock().may_note(now)
    }
}

pub(crate) type Api = State<Arc<Shared>>;

/// The API over one listener.
pub struct AdminServer {
    shared: Arc<Shared>,
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
        let shared = Arc::new(Shared {
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
    pub fn passed(&self) -> Passed {
        let (secured, _) = secured().split_for_parts();
        let all = secured.merge(snapshot_routes::for_nodes());
        let shared = Arc::clone(&self.shared);
        let guard = middleware::from_fn_with_state(shared, pass::admit_guarded);
        let all = all.layer(guard);
        Passed::new(all.with_state(Arc::clone(&self.shared)))
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
                tracing::error!(%error, "the admin API cannot serve HTTPS, and is not served");
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
                        tracing::debug!(%error, "a connection to the admin API did not begin")
                    }
                    Err(_) => {
                        tracing::debug!("a connection to the admin API did not begin in time")
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
            tracing::warn!("gave up on requests to the admin API that are still under way");
        }
        let kept = audit::keep_failures(&self.shared);
        if tokio::time::timeout(STOP_TIMEOUT, kept).await.is_err() {
            tracing::warn!("the log of changes does not have the last failed log-ins");
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

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cairn admin API",
        description = "Volumes, exports, disks and the state of a Cairn server. Every request but \
                       /healthz, this document and the log-in carries `Authorization: Bearer TOKEN`, a user's \
                       name and password as `Authorization: Basic`, or the cookie of a session, with the header \
                       `X-Cairn-Console` if it changes something; the server prints at start where its token is. A \
                       user who is a viewer gets 403 for every change. With `metrics_open = true` \
                       /metrics needs none. Every error has an ErrorBody, also 404 for an unknown \
                       path and 405 for a method that a path does not take."
    ),
    components(schemas(ErrorBody)),
    security(("token" = []), ("user" = []))
)]
struct Document;

/// What takes the token.
fn secured() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(disk_list, disk_add))
        .routes(routes!(disk_place))
        .routes(routes!(cache_list, cache_add))
        .routes(routes!(cache_remove))
        .routes(routes!(disk_set, disk_remove))
        .routes(routes!(disk_replace))
        .routes(routes!(disk_retry))
        .routes(routes!(rebuild, rebuild_set))
        .routes(routes!(spread, spread_set))
        .routes(routes!(scrub))
        .routes(routes!(scrub_start))
        .routes(routes!(scrub_pause))
        .routes(routes!(scrub_report))
        .routes(routes!(
            scrub_schedule,
            scrub_schedule_set,
            scrub_schedule_clear
        ))
        .routes(routes!(volume_list, volume_create))
        .routes(routes!(volume_clone))
        .routes(routes!(volume_show, volume_set, volume_delete))
        .routes(routes!(cluster))
        .routes(routes!(cluster_ticket))
        .routes(routes!(cluster_backup))
        .routes(routes!(cluster_authority))
        .routes(routes!(cluster_authority_rotate))
        .routes(routes!(node_set, node_remove))
        .routes(routes!(node_replace))
        .routes(routes!(node_maintenance))
        .routes(routes!(node_weight))
        .routes(routes!(balance, balance_step))
        .routes(routes!(volume_move))
        .routes(routes!(volume_address_set, volume_address_remove))
        .routes(routes!(
            address_pool_routes::address_pool_list,
            address_pool_routes::address_pool_create
        ))
        .routes(routes!(
            address_pool_routes::address_pool_show,
            address_pool_routes::address_pool_change,
            address_pool_routes::address_pool_delete
        ))
        .routes(routes!(
            class_routes::class_list,
            class_routes::class_create
        ))
        .routes(routes!(
            class_routes::class_show,
            class_routes::class_set,
            class_routes::class_delete
        ))
        .routes(routes!(tier_routes::tier_list, tier_routes::tier_add))
        .routes(routes!(tier_routes::tier_show, tier_routes::tier_remove))
        .routes(routes!(tier_routes::tier_check))
        .routes(routes!(
            class_routes::limit_list,
            class_routes::limit_set,
            class_routes::limit_clear
        ))
        .routes(routes!(activity_routes::activity_list))
        .routes(routes!(activity_routes::activity_show))
        .routes(routes!(export_list))
        .routes(routes!(export_set, export_remove))
        .routes(routes!(san_routes::lun_list, san_routes::lun_create))
        .routes(routes!(
            san_routes::lun_show,
            san_routes::lun_set,
            san_routes::lun_delete
        ))
        .routes(routes!(san_routes::lun_clone))
        .routes(routes!(san_routes::lun_restore))
        .routes(routes!(san_routes::lun_map, san_routes::lun_unmap))
        .routes(routes!(san_routes::igroup_list))
        .routes(routes!(san_routes::igroup_set, san_routes::igroup_remove))
        .routes(routes!(san_routes::initiator_list))
        .routes(routes!(
            san_routes::initiator_set,
            san_routes::initiator_remove
        ))
        .routes(routes!(san_routes::session_list))
        .routes(routes!(s3_routes::bucket_list, s3_routes::bucket_create))
        .routes(routes!(s3_routes::bucket_set, s3_routes::bucket_delete))
        .routes(routes!(s3_routes::key_list, s3_routes::key_create))
        .routes(routes!(s3_routes::key_revoke))
        .routes(routes!(snapshot_routes::snapshot_create_group))
        .routes(routes!(key_routes::master_key_list))
        .routes(routes!(key_routes::master_key_rotate))
        .routes(routes!(key_routes::volume_key_erase))
        .routes(routes!(
            snapshot_routes::snapshot_list,
            snapshot_routes::snapshot_create
        ))
        .routes(routes!(
            snapshot_routes::snapshot_show,
            snapshot_routes::snapshot_set,
            snapshot_routes::snapshot_delete
        ))
        .routes(routes!(snapshot_routes::snapshot_restore))
        .routes(routes!(snapshot_routes::volume_restore))
        .routes(routes!(snapshot_routes::snapshot_diff))
        .routes(routes!(snapshot_routes::clone_create))
        .routes(routes!(
            snapshot_routes::schedules,
            snapshot_routes::schedules_set
        ))
        .routes(routes!(
            policy_routes::policy_list,
            policy_routes::policy_set
        ))
        .routes(routes!(
            policy_routes::policy_show,
            policy_routes::policy_clear
        ))
        .routes(routes!(
            policy_routes::apply_show,
            policy_routes::apply_start,
            policy_routes::apply_cancel
        ))
        .routes(routes!(quota_routes::quota_list, quota_routes::quota_set))
        .routes(routes!(
            quota_routes::quota_show,
            quota_routes::quota_remove
        ))
        .routes(routes!(quota_routes::quota_usages))
        .routes(routes!(caller::session_show, caller::session_delete))
        .routes(routes!(caller::password_change))
        .routes(routes!(
            session_routes::open_session_list,
            session_routes::sessions_end
        ))
        .routes(routes!(session_routes::session_end))
        .routes(routes!(user_routes::user_list, user_routes::user_create))
        .routes(routes!(
            user_routes::user_show,
            user_routes::user_set,
            user_routes::user_delete
        ))
        .routes(routes!(user_routes::audit_list))
        .routes(routes!(event_routes::event_list))
        .routes(routes!(
            benchmark_routes::benchmark_list,
            benchmark_routes::benchmark_start
        ))
        .routes(routes!(benchmark_routes::benchmark_stop))
        .routes(routes!(benchmark_routes::benchmark_published))
        .routes(routes!(benchmark_routes::benchmark_report))
        .routes(routes!(benchmark_routes::benchmark_result))
        .routes(routes!(plan_routes::plan_show))
        .routes(routes!(plan_routes::plan_report))
        .routes(routes!(plan_routes::plan_template))
        .routes(routes!(live_routes::live))
        .routes(routes!(live_routes::live_events))
        .routes(routes!(live_routes::mount_list))
        .routes(routes!(live_routes::history))
        .routes(routes!(live_routes::history_list))
}

/// What takes the token unless the settings say otherwise.
fn observed() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// What takes none.
fn open() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(alive))
        .routes(routes!(openapi))
        .routes(routes!(caller::session_create))
        .routes(routes!(oidc_routes::login_ways))
        .routes(routes!(oidc_routes::oidc_begin))
        .routes(routes!(oidc_routes::oidc_finish))
}

/// The OpenAPI document, made from the code that answers.
pub fn openapi_json() -> String {
    let mut document = OpenApiRouter::with_openapi(Document::openapi())
        .merge(secured())
        .merge(observed())
        .merge(open())
        .into_openapi();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    document
        .components
        .get_or_insert_with(Default::default)
        .add_security_scheme("token", SecurityScheme::Http(bearer));
    let basic = HttpBuilder::new().scheme(HttpAuthScheme::Basic).build();
    if let Some(components) = &mut document.components {
        components.add_security_scheme("user", SecurityScheme::Http(basic));
    }
    for item in document.paths.paths.values_mut() {
        if let Some(operation) = &mut item.get {
            complete(operation, false);
        }
        let changes = [
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.patch,
        ];
        for operation in changes.into_iter().flatten() {
            complete(operation, true);
        }
    }
    pages::describe(&mut document);
    document::finish(&mut document);
    document.to_pretty_json().unwrap_or_default()
}

/// What a status means, the same for all paths.
const STATUSES: &[(&str, &str)] = &[
    ("200", "done"),
    ("201", "made"),
    ("204", "deleted"),
    ("400", "the request makes no sense: fix it"),
    (
        "401",
        "no token, or not this server's; no user with this password; no session that holds; \
         the OpenID provider vouches for nobody",
    ),
    (
        "403",
        "a viewer changes nothing; nobody is logged in by another site's page; the OpenID provider gives no role",
    ),
    ("404", "there is no such thing"),
    ("408", "the body took too long to arrive"),
    (
        "409",
        "the state of things forbids it; the hint says what to do first",
    ),
    ("413", "the body is too long"),
    (
        "429",
        "too many tries; `Retry-After` says for how many seconds to wait",
    ),
    ("431", "the head is too long, with all values of the query"),
    (
        "500",
        "a disk failed or Cairn has a bug; the server's log says more",
    ),
    ("503", "not now: try again"),
];
/// Errors that any request with a token can have: a query or a path that makes no sense, something that is not there, a cluster or a
/// volume in another state.
const ERRORS_COMMON: &[&str] = &["400", "401", "404", "409", "429", "431", "500", "503"];
const ERRORS_OF_CHANGES: &[&str] = &["403"];
/// Those of any with a body: log-ins have one, and no token.
const ERRORS_OF_BODIES: &[&str] = &["400", "403", "408", "413", "429", "500", "503"];

/// Adds what need not be said at each path: errors that many have, what statuses mean, and the body of errors.
fn complete(operation: &mut Operation, is_change: bool) {
    let mut errors: Vec<&str> = Vec::new();
    // Without a requirement of its own, that of the whole document holds.
    if operation.security.is_none() {
        errors.extend(ERRORS_COMMON);
        if is_change {
            errors.extend(ERRORS_OF_CHANGES);
        }
    }
    if operation.request_body.is_some() {
        errors.extend(ERRORS_OF_BODIES);
    }
    let refused = || {
        let body = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("ErrorBody")))
            .build();
        ResponseBuilder::new()
            .content("application/json", body)
            .build()
    };
    let responses = &mut operation.responses.responses;
    for status in errors {
        responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(refused()));
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else {
            continue;
        };
        if status == "431" {
            // The library answers a head that it does not hold, and sends no body.
            *response = ResponseBuilder::new().build();
        } else if status.starts_with(['4', '5']) && response.content.is_empty() {
            *response = refused();
        }
        let meaning = STATUSES.iter().find(|(known, _)| known == status);
        if let Some((_, meaning)) = meaning {
            response.description = (*meaning).to_owned();
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
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
            ControlError::new(ErrorKind::NotFound, "there is nothing at this path")
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

fn status_code(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        let (node, is_passing) = (self.at, self.is_passing);
        let mut response = (status_code(self.kind), Json(ErrorBody::from(self))).into_response();
        if let Some(node) = node {
            response.extensions_mut().insert(Elsewhere(node));
        }
        if is_passing {
            pass::mark_passing(&mut response);
        }
        response
    }
}

/// A JSON body: bounded in size and time, and refused in the API's own words.
struct Given<T>(T);

impl<T: DeserializeOwned + Serialize, S: Sync> FromRequest<S> for Given<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        let body = read_body(request.into_body()).await?;
        let unfit = |why: String| {
            let message = format!("the body does not fit: {why}");
            refuse(StatusCode::BAD_REQUEST, message)
        };
        let given: T = serde_json::from_slice(&body).map_err(|error| unfit(error.to_string()))?;
        // Only then can there be a list.
        if body.contains(&b'[') && has_list_for_object(&body, &given) {
            return Err(unfit("it has a list where an object is wanted".to_owned()));
        }
        Ok(Self(given))
    }
}

/// Whether a list stands for an object: serde takes one for a struct, in the order of its fields, which the document does not know.
fn has_list_for_object<T: Serialize>(body: &[u8], given: &T) -> bool {
    fn differ(said: &Value, meant: &Value) -> bool {
        match (said, meant) {
            (Value::Array(_), Value::Object(_)) => true,
            (Value::Array(said), Value::Array(meant)) => said
                .iter()
                .zip(meant)
                .any(|(said, meant)| differ(said, meant)),
            (Value::Object(said), Value::Object(meant)) => said.iter().any(|(key, said)| {
                let meant = meant.get(key);
                meant.is_some_and(|meant| differ(said, meant))
            }),
            _ => false,
        }
    }
    let said = serde_json::from_slice::<Value>(body);
    let meant = serde_json::to_value(given);
    matches!((said, meant), (Ok(said), Ok(meant)) if differ(&said, &meant))
}

type Refused = (StatusCode, Json<ErrorBody>);

fn refuse(status: StatusCode, message: String) -> Refused {
    let error = ControlError::new(ErrorKind::Invalid, message);
    (status, Json(ErrorBody::from(error)))
}

/// All of a body, which has to be short, and to arrive in time.
pub(crate) async fn read_body(body: Body) -> Result<Bytes, Refused> {
    let too_long = || {
        let message = format!("the body has more than {BODY_LEN_BYTES_MAX} bytes");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    // Said at once when the client announces it, and not after all that has arrived.
    if body.size_hint().lower() > BODY_LEN_BYTES_MAX as u64 {
        return Err(too_long());
    }
    let body = Limited::new(body, BODY_LEN_BYTES_MAX).collect();
    let body = tokio::time::timeout(CLIENT_TIMEOUT, body)
        .await
        .map_err(|_| {
            let message = "the body took too long to arrive".to_owned();
            refuse(StatusCode::REQUEST_TIMEOUT, message)
        })?
        .map_err(|error| match error.is::<LengthLimitError>() {
            true => too_long(),
            false => {
                let message = format!("the body cannot be read: {error}");
                refuse(StatusCode::BAD_REQUEST, message)
            }
        })?;
    Ok(body.to_bytes())
}

/// What the path names. A text that cannot be such a name, or is not UTF-8, is one that nothing has.
struct InPath<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(named)| Self(named))
            .map_err(|_| {
                ControlError::new(
                    ErrorKind::NotFound,
                    "there is nothing of the name in the path",
                )
            })
    }
}

/// The volume that the path names. A text that cannot be a name is one that no volume has.
struct Named(VolumeName);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        let absent = || {
            ControlError::new(
                ErrorKind::NotFound,
                "there is no volume of the name in the path",
            )
        };
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| absent())?;
        text.parse().map(Self).map_err(|_| absent())
    }
}

/// The disk that the path names.
struct DiskNamed(String);

impl<S: Send + Sync> FromRequestParts<S> for DiskNamed {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        Path::<String>::from_request_parts(parts, state)
            .await
            .map(|Path(disk)| Self(disk))
            .map_err(|_| ControlError::new(ErrorKind::NotFound, "there is no disk of that name"))
    }
}

/// The node that the path names.
struct NodeNamed(String);

impl<S: Send + Sync> FromRequestParts<S> for NodeNamed {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        Path::<String>::from_request_parts(parts, state)
            .await
            .map(|Path(node)| Self(node))
            .map_err(|_| ControlError::new(ErrorKind::NotFound, "there is no node of that name"))
    }
}

impl From<QueryError> for ControlError {
    fn from(error: QueryError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

fn force_of(query: Option<&str>) -> Result<bool, ControlError> {
    switch_of(query, "force")
}

/// The only key that some queries have: true or false, and false if it is left out.
fn switch_of(query: Option<&str>, key: &'static str) -> Result<bool, ControlError> {
    let query = Query::parse(query, &[key])?;
    match query.values(key).last() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => {
            let message = format!("{key} is true or false");
            Err(ControlError::new(ErrorKind::Invalid, message))
        }
    }
}

/// Runs a change to its end, also when the client goes away meanwhile.
async fn to_the_end<T, F>(change: F) -> Result<T, ControlError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ControlError>> + Send + 'static,
{
    match tokio::spawn(change).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a change that the admin API was asked for broke off");
            Err(ControlError::new(
                ErrorKind::Internal,
                "the change broke off; see the server's log",
            ))
        }
    }
}

/// How the server, its pool, disks and volumes are.
#[utoipa::path(get, path = "/api/v1/status", responses(
    (status = 200, body = Status)))]
async fn status(State(shared): Api) -> Result<Json<Status>, ControlError> {
    shared.control.status().await.map(Json)
}

/// The disks of the pool.
#[utoipa::path(get, path = "/api/v1/disks", responses(
    (status = 200, body = DiskList)))]
async fn disk_list(State(shared): Api) -> Result<Json<DiskList>, ControlError> {
    let disks = shared.control.disks().await?;
    Ok(Json(DiskList { disks }))
}

/// What a folder of the server's machine is on, or would be: to be looked at before it becomes a disk. Nothing is made.
#[utoipa::path(get, path = "/api/v1/disk-place", params(("path" = String, Query, min_length = 1, max_length = 4096, pattern = r"^/")), responses(
    (status = 200, body = DiskPlace), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn disk_place(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<DiskPlace>, ControlError> {
    let query = Query::parse(query.as_deref(), &["path"])?;
    let path = query.values("path").last().map(str::to_owned);
    let path = path.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "path is missing"))?;
    shared.control.disk_place(path).await.map(Json)
}

/// Takes an empty folder of the server's machine into the pool.
#[utoipa::path(post, path = "/api/v1/disks", request_body = DiskAdd, responses(
    (status = 201, body = DiskView), (status = 409, body = ErrorBody)))]
async fn disk_add(
    State(shared): Api,
    Given(add): Given<DiskAdd>,
) -> Result<(StatusCode, Json<DiskView>), ControlError> {
    let disk = to_the_end(async move { shared.control.disk_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// Moves the data of a disk to the others, or stops that; says what kind of device it is. `disk` is its id, or the beginning of it.
#[utoipa::path(patch, path = "/api/v1/disks/{disk}", params(("disk" = String, Path, min_length = 1, max_length = 64)),
    request_body = DiskChange, responses(
    (status = 200, body = DiskView), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn disk_set(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    Given(change): Given<DiskChange>,
) -> Result<Json<DiskView>, ControlError> {
    to_the_end(async move {
        let mut view = None;
        if let Some(media) = change.media {
            view = Some(shared.control.disk_media(disk.clone(), media).await?);
        }
        if let Some(draining) = change.draining {
            view = Some(shared.control.disk_drain(disk, draining).await?);
        }
        view.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "nothing is to be changed"))
    })
    .await
    .map(Json)
}

/// Takes a disk out of the pool. One with data on it only with `force=true`, and only if that data can
/// be rebuilt from the others.
#[utoipa::path(delete, path = "/api/v1/disks/{disk}",
    params(("disk" = String, Path, min_length = 1, max_length = 64), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn disk_remove(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let force = force_of(query.as_deref())?;
    to_the_end(async move { shared.control.disk_remove(disk, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Puts a new disk into the place of one that is there or lost; the old one leaves the pool when
/// everything that it held is on others.
#[utoipa::path(post, path = "/api/v1/disks/{disk}/replace", params(("disk" = String, Path, min_length = 1, max_length = 64)),
    request_body = DiskReplace, responses(
    (status = 201, body = DiskView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn disk_replace(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    Given(by): Given<DiskReplace>,
) -> Result<(StatusCode, Json<DiskView>), ControlError> {
    let disk = to_the_end(async move { shared.control.disk_replace(disk, by).await }).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// Takes a disk back that is not used any more, without a restart, if it answers and takes what it is asked to. It is given what it
/// missed before it counts. In a cluster any node takes the request; the node of the disk has to run.
#[utoipa::path(post, path = "/api/v1/disks/{disk}/retry",
    params(("disk" = String, Path, min_length = 1, max_length = 64)), responses(
    (status = 200, body = DiskView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn disk_retry(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
) -> Result<Json<DiskView>, ControlError> {
    to_the_end(async move { shared.control.disk_retry(disk).await })
        .await
        .map(Json)
}

/// The read caches of the server that answers.
#[utoipa::path(get, path = "/api/v1/caches", responses(
    (status = 200, body = CacheList)))]
async fn cache_list(State(shared): Api) -> Result<Json<CacheList>, ControlError> {
    shared.control.caches().await.map(Json)
}

/// Makes a read cache in a folder of the server's machine, and uses it from then on.
#[utoipa::path(post, path = "/api/v1/caches", request_body = CacheAdd, responses(
    (status = 201, body = CacheView), (status = 409, body = ErrorBody)))]
async fn cache_add(
    State(shared): Api,
    Given(add): Given<CacheAdd>,
) -> Result<(StatusCode, Json<CacheView>), ControlError> {
    let cache = to_the_end(async move { shared.control.cache_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(cache)))
}

/// Uses a read cache no more, and empties its folder. `cache` is its id.
#[utoipa::path(delete, path = "/api/v1/caches/{cache}", params(("cache" = String, Path, min_length = 1, max_length = 64)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
async fn cache_remove(
    State(shared): Api,
    DiskNamed(cache): DiskNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.cache_remove(cache).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How far the moving and rebuilding of shards is.
#[utoipa::path(get, path = "/api/v1/rebuild", responses((status = 200, body = RebuildView)))]
async fn rebuild(State(shared): Api) -> Result<Json<RebuildView>, ControlError> {
    shared.control.rebuild().await.map(Json)
}

/// Changes how fast shards are moved and rebuilt, until the next start.
#[utoipa::path(patch, path = "/api/v1/rebuild", request_body = RebuildRate, responses(
    (status = 200, body = RebuildView)))]
async fn rebuild_set(
    State(shared): Api,
    Given(set): Given<RebuildRate>,
) -> Result<Json<RebuildView>, ControlError> {
    let answer = shared.control.rebuild_rate(set.rate_bytes_per_second);
    answer.await.map(Json)
}

/// How far the moving of data to emptier disks is.
#[utoipa::path(get, path = "/api/v1/spread", responses((status = 200, body = SpreadView)))]
async fn spread(State(shared): Api) -> Result<Json<SpreadView>, ControlError> {
    shared.control.spread().await.map(Json)
}

/// Pauses the moving of data to emptier disks, or lets it go on: in a cluster on all nodes.
#[utoipa::path(put, path = "/api/v1/spread", request_body = SpreadSet, responses(
    (status = 200, body = SpreadView), (status = 409, body = ErrorBody)))]
async fn spread_set(
    State(shared): Api,
    Given(set): Given<SpreadSet>,
) -> Result<Json<SpreadView>, ControlError> {
    to_the_end(async move { shared.control.spread_set(set).await })
        .await
        .map(Json)
}

/// The cluster that the node is in.
#[utoipa::path(get, path = "/api/v1/cluster", responses(
    (status = 200, body = ClusterView), (status = 404, description = "The server is in no cluster")))]
async fn cluster(State(shared): Api) -> Result<Json<ClusterView>, ControlError> {
    shared.control.cluster().await.map(Json)
}

/// Copies the cluster's map, without any data of clients, and has the node keep the copy, too: `cairn cluster recover` makes a map
/// of one.
#[utoipa::path(post, path = "/api/v1/cluster/backups", responses(
    (status = 200, body = ClusterBackup), (status = 404, description = "The server is in no cluster")))]
async fn cluster_backup(State(shared): Api) -> Result<Json<ClusterBackup>, ControlError> {
    let copy = to_the_end(async move { shared.control.cluster_backup().await }).await?;
    Ok(Json(ClusterBackup { copy }))
}

/// Which authority certificates of nodes are of, and how far another one has taken its place.
#[utoipa::path(get, path = "/api/v1/cluster/authority", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is in no cluster")))]
async fn cluster_authority(State(shared): Api) -> Result<Json<AuthorityView>, ControlError> {
    shared.control.cluster_authority().await.map(Json)
}

/// Has another authority take the place of the one that certificates of nodes are of. The nodes do it by themselves, one step after
/// the other, while clients work. If that runs already, it is shown.
#[utoipa::path(post, path = "/api/v1/cluster/authority/rotation", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is in no cluster"),
    (status = 409, description = "Somebody else runs etcd with certificates of the authority")))]
async fn cluster_authority_rotate(State(shared): Api) -> Result<Json<AuthorityView>, ControlError> {
    to_the_end(async move { shared.control.cluster_authority_rotate().await })
        .await
        .map(Json)
}

/// Makes a ticket with which one node can join the cluster.
#[utoipa::path(post, path = "/api/v1/cluster/tickets", request_body = TicketCreate, responses(
    (status = 200, body = TicketView), (status = 400, description = "It would be valid for too long"), (status = 404, description = "The server is in no cluster")))]
async fn cluster_ticket(
    State(shared): Api,
    Given(create): Given<TicketCreate>,
) -> Result<Json<TicketView>, ControlError> {
    to_the_end(async move { shared.control.cluster_ticket(create).await })
        .await
        .map(Json)
}

/// Moves all that a node has to other nodes, or stops that. `node` is its name. How far it is, says `drain` of the node.
#[utoipa::path(patch, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeChange, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would be left")))]
async fn node_set(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(change): Given<NodeChange>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_drain(node, change.draining).await })
        .await
        .map(Json)
}

/// Says that a node is meant to be away for a while: its volumes move to other nodes at once, it takes none, and nothing on its
/// disks is rebuilt. It stays in the cluster with all that it has, unlike one that drains.
#[utoipa::path(put, path = "/api/v1/cluster/nodes/{node}/maintenance", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeMaintenance, responses((status = 200, body = ClusterView),
    (status = 409, description = "The node is to leave, or the time is too long")))]
async fn node_maintenance(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(set): Given<NodeMaintenance>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_maintenance(node, set.seconds).await })
        .await
        .map(Json)
}

/// Says which part of the load a node has beside others. Volumes follow one at a time, after a while; with 0 all of them leave at
/// once.
#[utoipa::path(put, path = "/api/v1/cluster/nodes/{node}/weight", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeWeight, responses((status = 200, body = ClusterView),
    (status = 400, description = "The weight is too large")))]
async fn node_weight(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(set): Given<NodeWeight>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_weight(node, set.weight).await })
        .await
        .map(Json)
}

/// Who owns how much of the cluster's load, and which volumes should move so that it is spread. It changes nothing.
#[utoipa::path(get, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is in no cluster")))]
async fn balance(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    shared.control.balance().await.map(Json)
}

/// Moves the first of the volumes that should move, waits until its new owner serves it, and says what should move then. Clients of
/// that volume feel a short pause.
#[utoipa::path(post, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is in no cluster"),
    (status = 503, description = "The volume did not move")))]
async fn balance_step(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    to_the_end(async move { shared.control.balance_step().await })
        .await
        .map(Json)
}

/// Has another node take the place of one: all that it has moves to others, at once also if it is lost, and then it is
/// removed from the cluster.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/replace", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeReplace, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would be left")))]
async fn node_replace(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(replace): Given<NodeReplace>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_replace(node, replace.by).await })
        .await
        .map(Json)
}

/// Takes a drained node out of the cluster: other nodes refuse it from then on, and its server ends.
#[utoipa::path(delete, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 409, description = "Something is on it still")))]
async fn node_remove(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.node_remove(node).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has another node own a volume, as long as that one can.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/move", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeMove, responses((status = 200, body = VolumeView)))]
async fn volume_move(
    State(shared): Api,
    Named(name): Named,
    Given(to): Given<VolumeMove>,
) -> Result<Json<VolumeView>, ControlError> {
    to_the_end(async move { shared.control.volume_move(name, to.to).await })
        .await
        .map(Json)
}

/// Has an address follow a volume: the node that owns the volume has it.
#[utoipa::path(put, path = "/api/v1/volumes/{name}/address", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeAddressSet, responses((status = 200, body = ClusterView)))]
async fn volume_address_set(
    State(shared): Api,
    Named(name): Named,
    Given(address): Given<VolumeAddressSet>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.volume_address(name, Some(address)).await })
        .await
        .map(Json)
}

/// Takes the address that follows a volume away.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/address", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204)))]
async fn volume_address_remove(
    State(shared): Api,
    Named(name): Named,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.volume_address(name, None).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How far the scrub is.
#[utoipa::path(get, path = "/api/v1/scrub", responses((status = 200, body = ScrubView)))]
async fn scrub(State(shared): Api) -> Result<Json<ScrubView>, ControlError> {
    shared.control.scrub().await.map(Json)
}

/// Starts a scrub, or goes on with the one that was paused; changes its rate.
#[utoipa::path(post, path = "/api/v1/scrub/start", request_body = ScrubStart, responses(
    (status = 200, body = ScrubView)))]
async fn scrub_start(
    State(shared): Api,
    Given(start): Given<ScrubStart>,
) -> Result<Json<ScrubView>, ControlError> {
    to_the_end(async move { shared.control.scrub_start(start).await })
        .await
        .map(Json)
}

/// Pauses the scrub; it stays paused over restarts.
#[utoipa::path(post, path = "/api/v1/scrub/pause", responses(
    (status = 200, body = ScrubView), (status = 409, body = ErrorBody)))]
async fn scrub_pause(State(shared): Api) -> Result<Json<ScrubView>, ControlError> {
    to_the_end(async move { shared.control.scrub_pause().await })
        .await
        .map(Json)
}

/// What the last scrub found that cannot be repaired: which bytes of which files.
#[utoipa::path(get, path = "/api/v1/scrub/report", responses((status = 200, body = ScrubReport)))]
async fn scrub_report(State(shared): Api) -> Result<Json<ScrubReport>, ControlError> {
    shared.control.scrub_report().await.map(Json)
}

/// When scrubs begin by themselves, and the maintenance window.
#[utoipa::path(get, path = "/api/v1/scrub/schedule", responses((status = 200, body = ScrubSchedule)))]
async fn scrub_schedule(State(shared): Api) -> Result<Json<ScrubSchedule>, ControlError> {
    shared.control.scrub_schedule().await.map(Json)
}

/// Sets when scrubs begin by themselves, the maintenance window, or both; what is left out is not there any more.
#[utoipa::path(put, path = "/api/v1/scrub/schedule", request_body = ScrubScheduleSet, responses(
    (status = 200, body = ScrubSchedule), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn scrub_schedule_set(
    State(shared): Api,
    Given(set): Given<ScrubScheduleSet>,
) -> Result<Json<ScrubSchedule>, ControlError> {
    if set == ScrubScheduleSet::default() {
        let message = "neither `every` nor `window` is given";
        return Err(ControlError::new(ErrorKind::Invalid, message)
            .hint("DELETE takes the schedule and the window away"));
    }
    to_the_end(async move { shared.control.scrub_schedule_set(set).await })
        .await
        .map(Json)
}

/// Takes the timer of scrubs and the maintenance window away. A scrub that waits for the window goes on.
#[utoipa::path(delete, path = "/api/v1/scrub/schedule", responses((status = 204), (status = 409, body = ErrorBody)))]
async fn scrub_schedule_clear(State(shared): Api) -> Result<StatusCode, ControlError> {
    let none = ScrubScheduleSet::default();
    to_the_end(async move { shared.control.scrub_schedule_set(none).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Volumes by name: all, or a page of at most `limit`, 1 to 1000. Of a page, `next_after` is the `after` of the next one.
/// `name` is a part of the name, whatever its case.
#[utoipa::path(get, path = "/api/v1/volumes", params(("name" = Option<String>, Query), ("after" = Option<String>, Query),
    ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000)), responses((status = 200, body = VolumeList), (status = 400, body = ErrorBody)))]
async fn volume_list(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<VolumeList>, ControlError> {
    let query = Query::parse(query.as_deref(), ListQuery::KEYS)?;
    let query = ListQuery::of(&query);
    let query = query.map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))?;
    shared.control.volumes(query).await.map(Json)
}

/// Makes a volume. It is exported to nobody until an export is set.
#[utoipa::path(post, path = "/api/v1/volumes", request_body = VolumeCreate, responses(
    (status = 201, body = VolumeView), (status = 409, body = ErrorBody)))]
async fn volume_create(
    State(shared): Api,
    Given(create): Given<VolumeCreate>,
) -> Result<(StatusCode, Json<VolumeView>), ControlError> {
    let made = to_the_end(async move { shared.control.volume_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Makes a volume that begins as this one is now, or as one of its snapshots shows it, and shares all of its bytes: at once,
/// whatever its size. It is exported to nobody until an export is set.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/volume-clones", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeCloneCreate, responses(
    (status = 201, body = VolumeView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn volume_clone(
    State(shared): Api,
    Named(name): Named,
    Given(clone): Given<VolumeCloneCreate>,
) -> Result<(StatusCode, Json<VolumeView>), ControlError> {
    let made = to_the_end(async move { shared.control.volume_clone(name, clone).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// One volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), responses(
    (status = 200, body = VolumeView), (status = 404, body = ErrorBody)))]
async fn volume_show(
    State(shared): Api,
    Named(name): Named,
) -> Result<Json<VolumeView>, ControlError> {
    shared.control.volume(name).await.map(Json)
}

/// Changes settings of a volume.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeChange, responses(
    (status = 200, body = VolumeView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn volume_set(
    State(shared): Api,
    Named(name): Named,
    Given(change): Given<VolumeChange>,
) -> Result<Json<VolumeView>, ControlError> {
    to_the_end(async move { shared.control.volume_set(name, change).await })
        .await
        .map(Json)
}

/// Deletes a volume and all its data. An exported one is refused unless `force=true`.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}",
    params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn volume_delete(
    State(shared): Api,
    Named(name): Named,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let force = force_of(query.as_deref())?;
    to_the_end(async move { shared.control.volume_delete(name, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Who may mount what.
#[utoipa::path(get, path = "/api/v1/exports", responses(
    (status = 200, body = ExportList)))]
async fn export_list(State(shared): Api) -> Result<Json<ExportList>, ControlError> {
    let exports = shared.control.exports().await?;
    Ok(Json(ExportList { exports }))
}

/// Adds rules to the export of a volume, or replaces those for the same clients.
#[utoipa::path(put, path = "/api/v1/exports/{volume}", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = ExportSet, responses(
    (status = 200, body = ExportView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn export_set(
    State(shared): Api,
    Named(volume): Named,
    Given(set): Given<ExportSet>,
) -> Result<Json<ExportView>, ControlError> {
    to_the_end(async move { shared.control.export_set(volume, set.rules).await })
        .await
        .map(Json)
}

/// Removes the rules of the clients named by `client` (may be given more than once); all rules
/// when none is named. Another key in the query is an error.
#[utoipa::path(delete, path = "/api/v1/exports/{volume}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("client" = Option<String>, Query, min_length = 2, max_length = 49, pattern = r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}(/(3[0-2]|[12]?[0-9]))?|(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}(:[0-9A-Fa-f]{1,4}){1,1}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|([0-9A-Fa-f]{1,4}:){1,1}(:[0-9A-Fa-f]{1,4}){1,6}|:(:[0-9A-Fa-f]{1,4}){1,7}|::)(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)$")), responses(
    (status = 200, body = ExportView), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
async fn export_remove(
    State(shared): Api,
    Named(volume): Named,
    RawQuery(query): RawQuery,
) -> Result<Json<ExportView>, ControlError> {
    let clients = Query::parse(query.as_deref(), &["client"])?
        .values("client")
        .map(|text| {
            text.parse::<ClientNet>()
                .map_err(|error| ControlError::new(ErrorKind::Invalid, error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    to_the_end(async move { shared.control.export_remove(volume, clients).await })
        .await
        .map(Json)
}

/// Everything that is counted, in Prometheus's text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "text/plain; version=0.0.4")))]
async fn metrics(State(shared): Api) -> Result<Response, ControlError> {
    let text = shared.control.metrics().await?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Whether the process answers at all. Takes no token.
#[utoipa::path(get, path = "/healthz", security(()), responses(
    (status = 200, body = String, content_type = "text/plain")))]
async fn alive() -> &'static str {
    "ok\n"
}

/// This document. Takes no token.
#[utoipa::path(get, path = "/api/v1/openapi.json", security(()), responses(
    (status = 200, body = serde_json::Value)))]
async fn openapi(State(shared): Api) -> Response {
    let kind = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(shared.document.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[path = "activity_routes.rs"]
mod activity_routes;
#[path = "address_pool_routes.rs"]
mod address_pool_routes;
#[path = "benchmark_routes.rs"]
mod benchmark_routes;
#[path = "caller.rs"]
pub(crate) mod caller;
#[path = "class_routes.rs"]
mod class_routes;
#[path = "event_routes.rs"]
mod event_routes;
#[path = "key_routes.rs"]
mod key_routes;
#[path = "live_routes.rs"]
mod live_routes;
#[path = "oidc_routes.rs"]
mod oidc_routes;
#[path = "plan_routes.rs"]
mod plan_routes;
#[path = "policy_routes.rs"]
mod policy_routes;
#[path = "quota_routes.rs"]
mod quota_routes;
#[path = "s3_routes.rs"]
mod s3_routes;
#[path = "san_routes.rs"]
mod san_routes;
#[path = "session_routes.rs"]
mod session_routes;
#[path = "snapshot_routes.rs"]
mod snapshot_routes;
#[path = "tier_routes.rs"]
mod tier_routes;
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
