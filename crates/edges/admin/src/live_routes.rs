//! Paths of the console: live numbers, history; and the console's own files.
//!
//! Owns: what HTTP says about them. Must not know: who may ask (`caller`), which files there are (`cairn_console`).

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use cairn_base::NodeId;
use cairn_forward::Forward;
use futures_util::future::{Either, join, select};
use futures_util::stream;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::caller::{Caller, Leave};
use super::{Api, ServerCore, Table};
use crate::across;
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::joined::SilentNode;
use crate::live::{
    HistoryList, HistoryQuery, HistoryView, LiveControl, LiveEvent, LiveNumber, LiveView,
    MOUNT_LIST, MountList,
};
use crate::pass::{OfANode, Whose, ask_numbers};
use crate::query::Query;

/// Maximum number of open streams; further pages poll instead. Below the limit on connections, so that open pages keep no
/// other client out.
pub(super) const STREAMS_MAX: usize = 64;
/// Interval between two events of a stream.
const LIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of series in a request.
const SERIES_MAX: usize = 64;
/// Maximum number of steps in an answer.
const POINTS_MAX: u64 = 2_000;
const POINTS_DEFAULT: u64 = 360;
const LIVE: &str = "/api/v1/live";
const HISTORY: &str = "/api/v1/history";
const HISTORY_LIST: &str = "/api/v1/history/series";
/// Deadline for live metrics of another node; after it, the answer lacks that node.
const OTHERS_NOW_MAX: Duration = Duration::from_secs(2);
/// Deadline for history of another node.
const OTHERS_PAST_MAX: Duration = Duration::from_secs(5);
/// Maximum age of other nodes' numbers: a base, and more for each node, as each is asked over its own connection.
const OTHERS_AGE: Duration = Duration::from_secs(1);
const OTHERS_AGE_EACH: Duration = Duration::from_millis(40);
/// The page may load only files of this server, and may not be shown in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn live_control(shared: &ServerCore) -> Result<&dyn LiveControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no history");
    shared.control.live().ok_or_else(absent)
}

/// Live metrics of the server. In a cluster `numbers` are those of all nodes, or with `node` those of one node.
#[utoipa::path(get, path = "/api/v1/live", params(("node" = Option<String>, Query)),
    responses((status = 200, body = LiveView), (status = 404, body = ErrorBody)))]
pub(super) async fn live(
    State(shared): Api,
    of_a_node: Option<Extension<OfANode>>,
    RawQuery(query): RawQuery,
) -> Result<Json<LiveView>, ControlError> {
    let query = Query::parse(query.as_deref(), &["node"])?;
    let control = live_control(&shared)?;
    let whose = shared.whose(of_a_node.is_some(), &query)?;
    let view = match whose {
        Whose::Own => control.live().await?,
        Whose::Of(node) => {
            let mut view = control.live().await?;
            let told: LiveView = shared
                .ask_one(node, Uri::from_static(LIVE), OTHERS_NOW_MAX)
                .await?;
            view.numbers = told.numbers;
            view
        }
        Whose::All(_) => shared.live_of_all().await?,
    };
    Ok(Json(view))
}

/// Streams live metrics every two seconds, as server-sent events of the type `live`, or `problem` with an error. At most 64
/// streams are open at a time. A stream that a session opened ends with the session.
#[utoipa::path(get, path = "/api/v1/live/events", responses(
    (status = 200, body = LiveEvent, content_type = "text/event-stream"), (status = 404, body = ErrorBody)))]
pub(super) async fn live_events(
    State(shared): Api,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, ControlError> {
    live_control(&shared)?;
    let leave = Leave::of(&shared, &headers, &caller);
    let permit = Arc::clone(&shared.streams).try_acquire_owned();
    let permit = permit.map_err(|_| {
        let message = format!("{STREAMS_MAX} pages already have a stream");
        ControlError::new(ErrorKind::Unavailable, message).hint("poll /api/v1/live instead")
    })?;
    let stopping = shared.stopping.subscribe();
    let events = stream::unfold(
        Streaming {
            shared,
            stopping,
            leave,
            is_new: true,
            _permit: permit,
        },
        |mut streaming| async move {
            let event = streaming.next().await?;
            Some((Ok::<_, Infallible>(event), streaming))
        },
    );
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would keep events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One open stream.
struct Streaming {
    shared: Arc<ServerCore>,
    stopping: watch::Receiver<bool>,
    leave: Leave,
    /// The stream has sent nothing yet.
    is_new: bool,
    _permit: OwnedSemaphorePermit,
}

impl Streaming {
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::take(&mut self.is_new) {
            let wait = self.shared.env.clock.sleep(LIVE_INTERVAL);
            let stopped = pin!(self.stopping.wait_for(|stopping| *stopping));
            if let Either::Left(_) = select(stopped, wait).await {
                return None;
            }
        }
        if !self.leave.holds(&self.shared) {
            return None;
        }
        self.shared.live_now().await
    }
}

/// The last event, which all streams share.
#[derive(Default)]
pub(super) struct LastEvent {
    made: Option<(Duration, Bytes)>,
}

/// The latest live metrics of the other nodes.
#[derive(Default)]
pub(super) struct OtherNumbers {
    asked: Option<Duration>,
    numbers: Vec<Vec<LiveNumber>>,
    silent: Vec<SilentNode>,
}

impl ServerCore {
    fn whose(&self, is_of_a_node: bool, query: &Query) -> Result<Whose, ControlError> {
        let name = query.values("node").last();
        Whose::of(self.forward.as_ref(), is_of_a_node, name)
    }

    /// The answer of one other node.
    async fn ask_one<T: DeserializeOwned>(
        &self,
        node: NodeId,
        uri: Uri,
        max: Duration,
    ) -> Result<T, ControlError> {
        let (mut told, silent) = self.ask_others(vec![node], uri, max).await;
        told.pop().ok_or_else(|| {
            let silent = silent.first();
            let (node, why) = silent.map_or(("?", "?"), |it| (&it.node, &it.why));
            ControlError::new(
                ErrorKind::Unavailable,
                format!("node {node} does not answer: {why}"),
            )
            .hint("`cairn cluster status` shows the state of the cluster")
        })
    }

    async fn ask_others<T: DeserializeOwned>(
        &self,
        others: Vec<NodeId>,
        uri: Uri,
        max: Duration,
    ) -> (Vec<T>, Vec<SilentNode>) {
        let Some(forward) = &self.forward else {
            return (Vec::new(), Vec::new());
        };
        let (told, silent) = ask_numbers(forward, others, uri, max).await;
        (told.into_iter().map(|(_, view)| view).collect(), silent)
    }

    /// Live metrics of the server, with the numbers of all nodes of its cluster combined.
    async fn live_of_all(&self) -> Result<LiveView, ControlError> {
        let mut view = live_control(self)?.live().await?;
        let Some(forward) = &self.forward else {
            return Ok(view);
        };
        // Who asks meanwhile waits, and has the same.
        let mut others = self.other_numbers.lock().await;
        others.renew(self, forward).await;
        let all = std::iter::once(&view.numbers).chain(&others.numbers);
        view.numbers = across::numbers(all.map(Vec::as_slice));
        view.silent.clone_from(&others.silent);
        Ok(view)
    }

    /// The current event. When it is outdated, one stream makes the next event for all streams.
    async fn live_now(&self) -> Option<Bytes> {
        let mut last = self.last_event.lock().await;
        let now = self.env.clock.monotonic();
        if let Some((made, event)) = &last.made
            && now.saturating_sub(*made) < LIVE_INTERVAL / 2
        {
            return Some(event.clone());
        }
        let (kind, json) = match self.live_of_all().await {
            Ok(view) => ("live", serde_json::to_string(&view)),
            Err(error) => ("problem", serde_json::to_string(&ErrorBody::from(error))),
        };
        let event = Bytes::from(format!(
            "event: {kind}\ndata: {}\n\n",
            json.unwrap_or_default()
        ));
        last.made = Some((now, event.clone()));
        Some(event)
    }
}

impl OtherNumbers {
    async fn renew(&mut self, shared: &ServerCore, forward: &Arc<Forward>) {
        let others = forward.nodes().others();
        let age_max =
            OTHERS_AGE_EACH.saturating_mul(u32::try_from(others.len()).unwrap_or(u32::MAX));
        let now = shared.env.clock.monotonic();
        let is_young = |asked| now.saturating_sub(asked) < OTHERS_AGE.saturating_add(age_max);
        if self.asked.is_some_and(is_young) {
            return;
        }
        let live = Uri::from_static(LIVE);
        let (told, silent) = shared
            .ask_others::<LiveView>(others, live, OTHERS_NOW_MAX)
            .await;
        self.numbers = told.into_iter().map(|view| view.numbers).collect();
        self.silent = silent;
        self.asked = Some(shared.env.clock.monotonic());
    }
}

pub(super) fn streams() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(STREAMS_MAX))
}

async fn mount_list(State(shared): Api) -> Result<Json<MountList>, ControlError> {
    let mounts = live_control(&shared)?.mounts().await?;
    Ok(Json(MountList { mounts }))
}

pub(super) fn routes(table: &mut Table) {
    table.handle(MOUNT_LIST, mount_list);
}

/// Describes the stored history. In a cluster, with the series of all nodes that answer, or with `node` those of one node.
#[utoipa::path(get, path = "/api/v1/history/series", params(("node" = Option<String>, Query)),
    responses((status = 200, body = HistoryList), (status = 404, body = ErrorBody)))]
pub(super) async fn history_list(
    State(shared): Api,
    of_a_node: Option<Extension<OfANode>>,
    RawQuery(query): RawQuery,
) -> Result<Json<HistoryList>, ControlError> {
    let query = Query::parse(query.as_deref(), &["node"])?;
    let control = live_control(&shared)?;
    let uri = Uri::from_static(HISTORY_LIST);
    let list = match shared.whose(of_a_node.is_some(), &query)? {
        Whose::Own => control.history_list().await?,
        Whose::Of(node) => shared.ask_one(node, uri, OTHERS_PAST_MAX).await?,
        Whose::All(others) => {
            let mut all = control.history_list().await?;
            let (told, _) = shared
                .ask_others::<HistoryList>(others, uri, OTHERS_PAST_MAX)
                .await;
            let mut known: BTreeSet<String> = all
                .series
                .iter()
                .map(|series| series.name.clone())
                .collect();
            for series in told.into_iter().flat_map(|list| list.series) {
                if known.insert(series.name.clone()) {
                    all.series.push(series);
                }
            }
            all
        }
    };
    Ok(Json(list))
}

/// Values of series over time. `series` may be given up to 64 times; `from` and `to` are seconds since 1970, or relative
/// to now if negative or zero (by default the last hour); `points` is the maximum number of steps (by default 360, up to 2000).
/// A step is 10 s, 5 min, or a multiple; the finest step that covers the whole time is used. In a cluster, values of all nodes
/// are combined as `across` says, or with `node` those of one node are returned.
#[utoipa::path(get, path = "/api/v1/history", params(("series" = Vec<String>, Query, min_items = 1, max_items = 64, max_length = 4096), ("from" = Option<i64>, Query),
    ("to" = Option<i64>, Query), ("points" = Option<u64>, Query, minimum = 1, maximum = 2000), ("node" = Option<String>, Query)),
    responses((status = 200, body = HistoryView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn history(
    State(shared): Api,
    of_a_node: Option<Extension<OfANode>>,
    RawQuery(query): RawQuery,
) -> Result<Json<HistoryView>, ControlError> {
    let invalid = |message: String| ControlError::new(ErrorKind::Invalid, message);
    let query = Query::parse(
        query.as_deref(),
        &["series", "from", "to", "points", "node"],
    )?;
    let series: Vec<String> = query.values("series").map(str::to_owned).collect();
    if series.is_empty() || series.len() > SERIES_MAX {
        let message = format!("give 1 to {SERIES_MAX} series");
        return Err(invalid(message).hint("GET /api/v1/history/series lists them"));
    }
    let number = |key: &str| -> Result<Option<i64>, ControlError> {
        let text = query.values(key).last();
        text.map(|text| {
            let parsed = text.parse();
            parsed.map_err(|_| invalid(format!("{key} is a whole number")))
        })
        .transpose()
    };
    let now_seconds = shared.env.clock.now().seconds;
    let absolute = |seconds: i64| match seconds {
        ..=0 => now_seconds.saturating_add(seconds),
        _ => seconds,
    };
    let from_seconds = absolute(number("from")?.unwrap_or(-3600));
    let to_seconds = absolute(number("to")?.unwrap_or(0));
    if from_seconds >= to_seconds {
        return Err(invalid("from is later than to".to_owned()));
    }
    let points = match number("points")? {
        None => POINTS_DEFAULT,
        Some(points) => u64::try_from(points)
            .ok()
            .filter(|points| (1..=POINTS_MAX).contains(points))
            .ok_or_else(|| invalid(format!("points is 1 to {POINTS_MAX}")))?,
    };
    let asked = HistoryQuery {
        series,
        from_seconds,
        to_seconds,
        points,
    };
    let control = live_control(&shared)?;
    let view = match shared.whose(of_a_node.is_some(), &query)? {
        Whose::Own => control.history(asked).await?,
        Whose::Of(node) => {
            let uri = uri_of(&asked)?;
            shared.ask_one(node, uri, OTHERS_PAST_MAX).await?
        }
        Whose::All(others) => {
            let uri = uri_of(&asked)?;
            let own = control.history(asked);
            let others = shared.ask_others(others, uri, OTHERS_PAST_MAX);
            let (own, (told, silent)) = join(own, others).await;
            let mut view = across::history(own?, &told);
            view.silent = silent;
            view
        }
    };
    Ok(Json(view))
}

/// The request for another node, whose clock may differ.
fn uri_of(query: &HistoryQuery) -> Result<Uri, ControlError> {
    let HistoryQuery {
        series,
        from_seconds,
        to_seconds,
        points,
    } = query;
    let mut path = format!("{HISTORY}?from={from_seconds}&to={to_seconds}&points={points}");
    for name in series {
        path.push_str("&series=");
        path.extend(utf8_percent_encode(name, NON_ALPHANUMERIC));
    }
    let failed = |error| ControlError::new(ErrorKind::Invalid, format!("series: {error}"));
    path.parse().map_err(failed)
}

/// Routes of the console's files. They need no token, and are not part of the API document.
pub(super) fn pages() -> Router<Arc<ServerCore>> {
    Router::new()
        .route("/", get(to_console))
        .route("/console", get(to_console))
        .route("/console/", get(console))
        .route("/console/{*path}", get(console))
}

/// Redirects the server's root address to the console.
async fn to_console() -> Response {
    let mut response = StatusCode::FOUND.into_response();
    let root = HeaderValue::from_static(cairn_console::ROOT);
    response.headers_mut().insert(header::LOCATION, root);
    response
}

/// A file of the console. It needs no token: all servers of a version have identical files.
async fn console(request: Request) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix(cairn_console::ROOT).unwrap_or("");
    let Some(file) = cairn_console::file(path) else {
        return ControlError::new(ErrorKind::NotFound, "the console has no such file")
            .hint("reload the page: it may be from an older version")
            .into_response();
    };
    let asked = |name| {
        let values = request.headers().get_all(name).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .collect::<Vec<_>>()
            .join(",")
    };
    let is_known = asked(header::IF_NONE_MATCH)
        .split(',')
        .any(|tag| tag.trim().trim_start_matches("W/") == file.tag);
    let takes_gzip = asked(header::ACCEPT_ENCODING)
        .split(',')
        .any(|coding| matches!(coding.trim().split(';').next(), Some("gzip" | "*")));
    let mut response = match (is_known, takes_gzip) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => Response::new(Body::from(file.gzip)),
        (false, false) => Response::new(Body::from(file.plain())),
    };
    let headers = response.headers_mut();
    if !is_known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
        if takes_gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
    }
    let fixed = [
        (header::ETAG, file.tag),
        // Asked for each time, and sent only if it is another one: so no page is older than its server.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
