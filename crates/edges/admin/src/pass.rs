//! Requests that another node has to answer: any node takes any request.
//!
//! Owns: how a request goes to the node that has its volume, which lists are of all nodes.
//! Must not know: how nodes reach one another ([`Forward`]), what a request does, who may ask: the node that was asked has
//! looked at that. But for what lasts beyond that node (`is_guarded`): there its word is not enough, and the node that answers
//! looks at what the client showed.
//!
//! A handler that finds its volume at another node says so ([`ControlError::at`]). The request, whose body is short, then
//! goes there as it is, over HTTP/1.1 and the mutual TLS of nodes, and that node's answer is the answer. A node passes on
//! only what a client sent to it: requests do not go in circles while a volume moves.

mod scrub;
mod told;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_forward::{Admission, Forward, Incoming, Refused, Serve, ServeReads, Service, Stream};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{ErrorBody, ErrorKind};
use crate::audit::{AuditPage, AuditQuery};
use crate::control::ControlError;
use crate::entries::LogRange;
use crate::events::{EventPage, EventQuery};
use crate::groups::{self, GroupAsk, GroupDone};
use crate::joined::{LogPage, SilentNode, joined};
use crate::pages::is_of_all_nodes;
use crate::query::Query;
use crate::server::caller::{self, CONSOLE_HEADER, Caller};
use crate::server::{Api, HEAD_LEN_BYTES_MAX, read_body};

/// To reach another node.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Until a node answers: some changes take minutes, as the hooks of a snapshot do.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Until a node answers with a list.
const LIST_MAX: Duration = Duration::from_secs(10);
/// Until a node answers with a page of its log: the others are shown without it.
const LOG_MAX: Duration = Duration::from_secs(3);
/// The client of a change that was not made, because its volume moves or is being opened, is told to send it again after so long.
const AGAIN_SECONDS: &str = "1";
/// A request about a volume that moves to another node, or is being opened, is tried again for so long, as clients of the
/// volume wait for it, a change only as long as it is fresh,
pub(crate) const PASSING_MAX: Duration = Duration::from_secs(10);
/// and so often.
const PASSING_LOOK: Duration = Duration::from_millis(100);
/// Between nodes: what is in the way of an answer passes by itself, and nothing was done.
const PASSING: &str = "cairn-passing";
const AUDIT: &str = "/api/v1/audit";
const EVENTS: &str = "/api/v1/events";
/// Of another node's list.
const LIST_LEN_BYTES_MAX: usize = 64 << 20;
/// Each node scrubs the volumes that it owns: for users that is one scrub.
const SCRUBS: [&str; 4] = [
    "/api/v1/scrub",
    "/api/v1/scrub/start",
    "/api/v1/scrub/pause",
    "/api/v1/scrub/report",
];
/// Of changes whose effect outlives the node that asks for them.
const GUARDED: [&str; 3] = ["/api/v1/cluster/", "/api/v1/users", "/api/v1/session"];
/// Paths that name a thing without its volume.
const NAMED_ALONE: [&str; 2] = ["/api/v1/buckets/", "/api/v1/s3/keys/"];

/// Whether a change gives or takes rights, or says who is a node of the cluster. A node that asks another one for that on its own
/// could stay in when it is removed, or become one that has more rights: only who is an administrator is obeyed.
fn is_guarded(method: &Method, path: &str) -> bool {
    let mut starts = GUARDED.iter();
    !method.is_safe() && starts.any(|start| path.starts_with(start))
}

/// What the client showed, as the other node has to see it.
fn shown(headers: &HeaderMap) -> HeaderMap {
    let mut shown = HeaderMap::new();
    let names = [
        header::AUTHORIZATION,
        header::COOKIE,
        header::HOST,
        HeaderName::from_static(CONSOLE_HEADER),
    ];
    for name in names {
        for value in headers.get_all(&name) {
            shown.append(name.clone(), value.clone());
        }
    }
    shown
}

/// Lets requests of other nodes pass, but guarded ones only with what a client would have to show here.
pub(crate) async fn admit_guarded(state: Api, request: Request, next: Next) -> Response {
    if !is_guarded(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = caller::authorize(state, request, next).await;
    // The audit log has it at the node that was asked, if that is honest.
    let (who, status) = (response.extensions().get::<Caller>(), response.status());
    let user = who.map_or("nobody", Caller::name);
    tracing::info!(user, %method, path, %status, "a change forwarded by another node");
    response
}

/// What to say when the other node does not know what the client showed: each node has a token of its own.
fn unknown_there(forward: &Arc<Forward>, node: NodeId) -> Response {
    let name = forward.nodes().name(node);
    let message = format!(
        "node {name} has to do this, because it runs an etcd member and this node does not, but node {name} does not know the token or \
        session of this request"
    );
    let hint = format!(
        "send the request to node {name} with its token, or send it here with the name and password of an admin"
    );
    let error = ControlError::new(ErrorKind::Forbidden, message);
    error.hint(hint).into_response()
}

/// Other nodes that own volumes, as far as this one knows.
fn owners(forward: &Forward) -> Vec<NodeId> {
    let own = forward.own();
    let owners = forward.nodes().owners().into_iter();
    let others: BTreeSet<NodeId> = owners
        .filter_map(|(_, owner)| owner.filter(|owner| *owner != own))
        .collect();
    others.into_iter().collect()
}

/// Of an answer: which node has what the request is about.
#[derive(Clone, Copy)]
pub(crate) struct Elsewhere(pub NodeId);

/// Of a request that another node has passed on.
#[derive(Clone, Copy)]
pub(crate) struct OfANode;

/// Serves what other nodes pass on.
#[derive(Clone)]
pub struct PeerServer(Router);

impl PeerServer {
    /// `router` asks for no token.
    pub(crate) fn new(router: Router) -> Self {
        Self(router.layer(axum::middleware::map_request(mark)))
    }

    #[cfg(test)]
    pub(crate) fn router(&self) -> Router {
        self.0.clone()
    }

    /// Serves one stream, until the other node ends it. That node has proved who it is.
    async fn serve_on(router: Router, stream: impl Stream) {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(CONNECT_MAX)
            .max_buf_size(HEAD_LEN_BYTES_MAX);
        let service = TowerToHyperService::new(router);
        if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(%error, "a request forwarded by a node ended");
        }
    }
}

impl Serve for PeerServer {
    fn serve(self: Arc<Self>, incoming: Incoming) -> BoxFuture<()> {
        let Incoming { stream, admission } = incoming;
        let held = Arc::clone(&admission);
        let admitted = move |request, next| admit(Arc::clone(&held), request, next);
        let router = self.0.clone();
        let router = router.layer(axum::middleware::from_fn(admitted));
        Box::pin(async move {
            tokio::select! {
                biased;
                _ = admission.ended() => {}
                () = Self::serve_on(router, stream) => {}
            }
        })
    }
}

impl ServeReads for PeerServer {
    fn serve(self: Arc<Self>, stream: Box<dyn Stream>) -> BoxFuture<()> {
        let router = self.0.clone();
        let router = router.layer(axum::middleware::from_fn(only_reads));
        Box::pin(Self::serve_on(router, stream))
    }
}

async fn mark(mut request: Request) -> Request {
    request.extensions_mut().insert(OfANode);
    request
}

async fn only_reads(request: Request, next: Next) -> Response {
    match request.method().is_safe() {
        true => next.run(request).await,
        false => ControlError::new(ErrorKind::Invalid, "a change came over a stream for reads")
            .into_response(),
    }
}

/// Begins a request only as long as nothing in it can be too old, and ends a change whatever becomes of its stream: who comes
/// next waits for it.
async fn admit(admission: Arc<Admission>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    if !admission.is_live() {
        return too_late();
    }
    let begun = tokio::spawn(async move {
        let response = next.run(request).await;
        drop(admission);
        response
    });
    begun.await.unwrap_or_else(|_| {
        ControlError::new(ErrorKind::Internal, "the request was interrupted").into_response()
    })
}

fn too_late() -> Response {
    let message =
        "the request waited so long that another change may have come first; nothing was changed";
    let error = ControlError::new(ErrorKind::Unavailable, message);
    error
        .hint("check the current state, then try again")
        .into_response()
}

/// Admits a change that a client asks this node for; at once or not at all.
async fn admit_change(forward: &Arc<Forward>, came: &Came) -> Result<Arc<Admission>, Response> {
    if came.generation != forward.pulse().generation() {
        return Err(too_late());
    }
    let admitting = timeout(CONNECT_MAX, forward.registry().admit_own()).await;
    let admitted = admitting.unwrap_or(Err(Refused::Behind));
    let admission = admitted.map_err(|why| {
        let message = format!("this node cannot make changes now: {why}");
        let error = ControlError::new(ErrorKind::Unavailable, message);
        error.hint(
            "`cairn cluster status` shows whether etcd answers; try again, or use another node",
        )
    });
    let admission = admission.map_err(ControlError::into_response)?;
    match admission.is_fresh(came.read_at) {
        true => Ok(admission),
        false => Err(too_late()),
    }
}

/// When and over which connection a request came.
struct Came {
    read_at: Duration,
    generation: u64,
}

/// The pulse's generation when a connection was accepted.
#[derive(Clone, Copy)]
pub(crate) struct AcceptedIn(pub u64);

/// What of a request goes to another node.
struct ForwardedRequest {
    /// Of a change: what it is admitted under here.
    admission: Option<Arc<Admission>>,
    method: Method,
    uri: Uri,
    content_type: Option<HeaderValue>,
    /// What the client showed, if the other node has to look at that.
    shown: HeaderMap,
    body: Bytes,
}

impl ForwardedRequest {
    async fn of(
        &self,
        forward: &Arc<Forward>,
        node: NodeId,
        max: Duration,
    ) -> io::Result<Response> {
        let connecting = async {
            match &self.admission {
                Some(admission) => forward.connect(node, Service::Admin, admission).await,
                None => forward.connect_for_reads(node).await,
            }
        };
        let connecting = timeout(CONNECT_MAX, connecting);
        let stream = connecting.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (mut requests, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%node, %error, "a request to another node ended");
            }
        });
        let path = self.uri.path_and_query().map_or("/", |it| it.as_str());
        let mut request = axum::http::Request::builder()
            .method(self.method.clone())
            .uri(path);
        if !self.shown.contains_key(header::HOST) {
            request = request.header(header::HOST, "node");
        }
        for (name, value) in &self.shown {
            request = request.header(name, value);
        }
        if let Some(content_type) = &self.content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request
            .body(Body::from(self.body.clone()))
            .map_err(io::Error::other)?;
        let answer = timeout(max, requests.send_request(request)).await;
        let answer = answer.map_err(|_| io::ErrorKind::TimedOut)?;
        Ok(answer.map_err(io::Error::other)?.map(Body::new))
    }

    /// What a node answers, read.
    async fn read<T: DeserializeOwned>(
        &self,
        forward: &Arc<Forward>,
        node: NodeId,
        max: Duration,
    ) -> io::Result<T> {
        let answer = async {
            let answer = self.of(forward, node, max).await?;
            match answer.status() {
                StatusCode::OK => page_in(answer).await,
                status => Err(io::Error::other(format!("it answers with {status}"))),
            }
        };
        let answer = timeout(max, answer).await;
        answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// The answers of several nodes at once, and the nodes that do not answer.
    async fn read_all<T: DeserializeOwned>(
        &self,
        forward: &Arc<Forward>,
        asked: Vec<NodeId>,
        max: Duration,
    ) -> (Vec<(String, T)>, Vec<SilentNode>) {
        let answers = asked.into_iter().map(|node| async move {
            let answer = self.read(forward, node, max).await;
            (forward.nodes().name(node), answer)
        });
        let mut told = Vec::new();
        let mut silent = Vec::new();
        for (node, answer) in join_all(answers).await {
            match answer {
                Ok(answer) => told.push((node, answer)),
                Err(error) => silent.push(SilentNode {
                    node,
                    why: error.to_string(),
                }),
            }
        }
        (told, silent)
    }
}

/// Which nodes a question about numbers is about.
pub(crate) enum Whose {
    /// The node that was asked.
    Own,
    Of(NodeId),
    /// All nodes of the cluster.
    All(Vec<NodeId>),
}

impl Whose {
    /// By the name of a node in the question, if there is one. What another node asks is about this one.
    pub fn of(
        forward: Option<&Arc<Forward>>,
        is_of_a_node: bool,
        name: Option<&str>,
    ) -> Result<Self, ControlError> {
        if is_of_a_node {
            return Ok(Self::Own);
        }
        let Some(forward) = forward else {
            return match name {
                None => Ok(Self::Own),
                Some(_) => Err(ControlError::new(
                    ErrorKind::NotFound,
                    "this server is not in a cluster: leave node out",
                )),
            };
        };
        let others = forward.nodes().others();
        let Some(name) = name else {
            return Ok(Self::All(others));
        };
        if forward.nodes().name(forward.own()) == name {
            return Ok(Self::Own);
        }
        let found = others
            .into_iter()
            .find(|node| forward.nodes().name(*node) == name);
        found.map(Self::Of).ok_or_else(|| no_such_node(name))
    }
}

fn no_such_node(name: &str) -> ControlError {
    let message = format!("no node of this cluster has the name {name}");
    ControlError::new(ErrorKind::NotFound, message).hint("`cairn node list` shows the nodes")
}

/// What other nodes answer to a question, and those that do not within `max`. One that is away is not asked: pages would wait
/// for it each time.
pub(crate) async fn ask_numbers<T: DeserializeOwned>(
    forward: &Arc<Forward>,
    asked: Vec<NodeId>,
    uri: Uri,
    max: Duration,
) -> (Vec<(String, T)>, Vec<SilentNode>) {
    let question = ForwardedRequest {
        admission: None,
        method: Method::GET,
        uri,
        content_type: None,
        shown: HeaderMap::new(),
        body: Bytes::new(),
    };
    let (alive, away): (Vec<NodeId>, Vec<NodeId>) = asked
        .into_iter()
        .partition(|node| forward.nodes().is_alive(*node));
    let (told, mut silent) = question.read_all(forward, alive, max).await;
    silent.extend(away.into_iter().map(|node| SilentNode {
        node: forward.nodes().name(node),
        why: "it is away".to_owned(),
    }));
    (told, silent)
}

/// Has another node take a step of a group of snapshots.
pub async fn ask_group(
    forward: &Arc<Forward>,
    node: NodeId,
    ask: &GroupAsk,
    max: Duration,
) -> Result<GroupDone, ControlError> {
    let failed = |why: String| {
        let name = forward.nodes().name(node);
        ControlError::new(ErrorKind::Unavailable, format!("node {name}: {why}"))
    };
    let body = serde_json::to_vec(ask).map_err(|error| failed(error.to_string()))?;
    let admission = forward.registry().admit_own().await;
    let admission = admission.map_err(|why| failed(format!("it is not asked: {why}")))?;
    let asked = ForwardedRequest {
        admission: Some(admission),
        method: Method::POST,
        uri: Uri::from_static(groups::PATH),
        content_type: Some(HeaderValue::from_static("application/json")),
        shown: HeaderMap::new(),
        body: body.into(),
    };
    let answer = asked.of(forward, node, max).await;
    let answer = answer.map_err(|error| failed(format!("it does not answer: {error}")))?;
    let status = answer.status();
    let read = timeout(max, list_in(answer)).await;
    let read = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let body = read.map_err(|error| failed(format!("its answer cannot be read: {error}")))?;
    if status == StatusCode::OK {
        return serde_json::from_value(body).map_err(|error| failed(error.to_string()));
    }
    match serde_json::from_value::<ErrorBody>(body) {
        Ok(ErrorBody { error }) => Err(ControlError {
            kind: error.kind,
            message: error.message,
            hint: error.hint,
            at: None,
            is_passing: false,
        }),
        // One of an older version has no such path.
        Err(_) => Err(failed(format!("it answers with {status}"))),
    }
}

fn silent(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    node: NodeId,
    error: &io::Error,
) -> Response {
    let name = forward.nodes().name(node);
    // A change may have been made, with its answer lost.
    let hint = match asked.method.is_safe() {
        true => "try again: its volumes go to other nodes when it is lost",
        false => {
            "look whether the change was made, then try again: its volumes go to other nodes when it is lost"
        }
    };
    ControlError::new(
        ErrorKind::Unavailable,
        format!("node {name}, which has what this is about, does not answer: {error}"),
    )
    .hint(hint)
    .into_response()
}

/// What to say while some volumes have no owner: nobody knows what they have.
fn homeless(forward: &Arc<Forward>) -> Option<Response> {
    let owners = forward.nodes().owners().into_iter();
    let unowned = owners.filter(|(_, owner)| owner.is_none());
    let volumes: Vec<String> = unowned
        .map(|(volume, _)| forward.nodes().volume_name(volume))
        .collect();
    if volumes.is_empty() {
        return None;
    }
    let volumes = volumes.join(", ");
    let error = ControlError::new(
        ErrorKind::Unavailable,
        format!("no node has volume {volumes} at the moment"),
    );
    let hint = "try again: another node takes over what a lost one had";
    Some(error.hint(hint).into_response())
}

/// Tells the node that forwarded the request that it is worth another try.
pub(crate) fn mark_passing(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(PASSING, HeaderValue::from_static("1"));
}

/// Answers a request here, or has the node answer that has what it is about.
pub(crate) async fn pass(State(shared): Api, request: Request, next: Next) -> Response {
    let Some(forward) = &shared.forward else {
        return next.run(request).await;
    };
    if request.extensions().get::<OfANode>().is_some() {
        let mut response = next.run(request).await;
        // What it is about has left this node meanwhile.
        if response.extensions().get::<Elsewhere>().is_some() {
            mark_passing(&mut response);
        }
        return response;
    }
    let (parts, body) = request.into_parts();
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    let read_at = forward.now();
    let admission = match parts.method.is_safe() {
        true => None,
        false => {
            let accepted = parts.extensions.get::<AcceptedIn>();
            let came = Came {
                read_at,
                generation: accepted.map_or_else(|| forward.pulse().generation(), |it| it.0),
            };
            match admit_change(forward, &came).await {
                Ok(admission) => Some(admission),
                Err(refused) => return refused,
            }
        }
    };
    let is_guarded = is_guarded(&parts.method, parts.uri.path());
    let asked = ForwardedRequest {
        admission,
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        content_type: parts.headers.get(header::CONTENT_TYPE).cloned(),
        shown: match is_guarded {
            true => shown(&parts.headers),
            false => HeaderMap::new(),
        },
        body: body.clone(),
    };
    let until = Instant::now() + PASSING_MAX;
    let response = loop {
        let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
        let own = next.clone().run(request).await;
        let elsewhere = own.extensions().get::<Elsewhere>().copied();
        let mut response = match elsewhere {
            None => own,
            Some(Elsewhere(node)) => {
                let answer = asked.of(forward, node, ANSWER_MAX).await;
                match answer {
                    Ok(answer) if is_guarded && answer.status() == StatusCode::UNAUTHORIZED => {
                        unknown_there(forward, node)
                    }
                    Ok(answer) => answer,
                    Err(error) => silent(forward, &asked, node, &error),
                }
            }
        };
        let is_passing = response.headers_mut().remove(PASSING).is_some();
        if is_passing && Instant::now() < until {
            sleep(PASSING_LOOK).await;
            // Its client may have made the change through another node by now, and newer ones. One that is there sends it again.
            let is_late = |admission: &Arc<Admission>| !admission.is_fresh(read_at);
            if asked.admission.as_ref().is_some_and(is_late) {
                let soon = HeaderValue::from_static(AGAIN_SECONDS);
                response.headers_mut().insert(header::RETRY_AFTER, soon);
                return response;
            }
            continue;
        }
        if elsewhere.is_some() {
            return response;
        }
        break response;
    };
    let path = asked.uri.path();
    if asked.method == Method::GET && response.status() == StatusCode::OK && is_of_all_nodes(path) {
        return all_of(forward, &asked, response).await;
    }
    if asked.method == Method::GET && response.status() == StatusCode::OK {
        if path == AUDIT {
            return log_of_all::<AuditPage>(forward, &asked, AuditQuery::KEYS, response).await;
        }
        if path == EVENTS {
            return log_of_all::<EventPage>(forward, &asked, EventQuery::KEYS, response).await;
        }
    }
    if SCRUBS.contains(&path) {
        return scrub::of_all(forward, &asked, response).await;
    }
    let is_alone = NAMED_ALONE.iter().any(|start| path.starts_with(start));
    if is_alone && response.status() == StatusCode::NOT_FOUND {
        return found(forward, &asked, response).await;
    }
    told::complete(forward, &asked, response).await
}

/// The answer of the node that has what is named; `absent` if none has.
async fn found(forward: &Arc<Forward>, asked: &ForwardedRequest, absent: Response) -> Response {
    let mut unsure = None;
    for node in owners(forward) {
        match asked.of(forward, node, ANSWER_MAX).await {
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {}
            Ok(answer) => return answer,
            // It may be the one, if no other is.
            Err(error) => unsure = Some(silent(forward, asked, node, &error)),
        }
    }
    unsure.or_else(|| homeless(forward)).unwrap_or(absent)
}

/// A list with what all nodes have. Without one of them it would look as if that had nothing.
async fn all_of(forward: &Arc<Forward>, asked: &ForwardedRequest, own: Response) -> Response {
    let answers = owners(forward).into_iter().map(|node| async move {
        let list = async {
            let answer = asked.of(forward, node, LIST_MAX).await?;
            match answer.status() {
                StatusCode::OK => list_in(answer).await,
                status => Err(io::Error::other(format!("it answers with {status}"))),
            }
        };
        (node, list.await)
    });
    let answers = join_all(answers).await;
    let (mut head, body) = own.into_parts();
    let mut all = match list_in(Response::new(body)).await {
        Ok(all) => all,
        Err(error) => {
            let message = format!("the list of this node cannot be read: {error}");
            return ControlError::new(ErrorKind::Internal, message).into_response();
        }
    };
    for (node, list) in answers {
        match list {
            Ok(list) => join(&mut all, list),
            Err(error) => return silent(forward, asked, node, &error),
        }
    }
    if let Some(unsure) = homeless(forward) {
        return unsure;
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, Body::from(all.to_string()))
}

/// The page of a log with what all nodes have. Who does not answer is named: what the others know is worth seeing without it.
async fn log_of_all<P: LogPage>(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    keys: &[&'static str],
    own: Response,
) -> Response {
    let part = Query::parse(asked.uri.query(), keys)
        .ok()
        // The time matters to nodes, each by its own clock.
        .and_then(|query| LogRange::of(&query, 0).ok())
        .unwrap_or_default();
    let is_wanted = |node: &NodeId| {
        let name = part.node.as_ref();
        name.is_none_or(|name| *name == forward.nodes().name(*node))
    };
    let (mut head, body) = own.into_parts();
    let own = match page_in::<P>(Response::new(body)).await {
        Ok(page) => page,
        Err(error) => {
            let message = format!("{} of this node cannot be read: {error}", P::LOG);
            return ControlError::new(ErrorKind::Internal, message).into_response();
        }
    };
    let others: Vec<NodeId> = forward
        .nodes()
        .others()
        .into_iter()
        .filter(is_wanted)
        .collect();
    let has_own = is_wanted(&forward.own());
    if let (Some(name), true) = (&part.node, others.is_empty() && !has_own) {
        return no_such_node(name).into_response();
    }
    let (mut pages, silent) = asked.read_all(forward, others, LOG_MAX).await;
    if has_own {
        pages.push((forward.nodes().name(forward.own()), own));
    }
    let mut all: P = joined(part.limit, pages);
    *all.parts().silent = silent;
    head.headers.remove(header::CONTENT_LENGTH);
    match serde_json::to_vec(&all) {
        Ok(all) => Response::from_parts(head, Body::from(all)),
        Err(error) => ControlError::new(ErrorKind::Internal, error.to_string()).into_response(),
    }
}

async fn page_in<P: DeserializeOwned>(answer: Response) -> io::Result<P> {
    Ok(serde_json::from_value(list_in(answer).await?)?)
}

async fn list_in(answer: Response) -> io::Result<Value> {
    let body = Limited::new(answer.into_body(), LIST_LEN_BYTES_MAX).collect();
    let body = body.await.map_err(io::Error::other)?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}

/// Adds the entries of one list to those of another, in the order of their volumes and names.
fn join(all: &mut Value, other: Value) {
    let (Value::Object(all), Value::Object(other)) = (all, other) else {
        return;
    };
    for (key, entries) in other {
        let (Some(Value::Array(all)), Value::Array(entries)) = (all.get_mut(&key), entries) else {
            continue;
        };
        all.extend(entries);
        all.sort_by_key(|entry| {
            ["volume", "name", "id"].map(|key| {
                entry
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            })
        });
    }
}
