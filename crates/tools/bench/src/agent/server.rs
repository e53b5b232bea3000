//! The agent: HTTP in front of one session at a time.
//!
//! Owns: requests, their limits, when a session ends. Must not know: engines.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State as Shared};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::EngineFactory;
use super::protocol::{
    COORDINATOR_SILENCE_MAX, GO_DELAY_MS_MAX, Go, Hello, Open, Opened, Order, PROTOCOL,
    REQUEST_LEN_BYTES_MAX, Refusal, State,
};
use super::session::Session;
use crate::suite::{Target, machine};

/// Most connections at a time; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 32;
/// A client that takes longer to send the head of a request is cut off, also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A request whose answer takes longer, for its body does not come, is cut off.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest head of a request, in bytes.
const HEAD_LEN_BYTES_MAX: usize = 64 << 10;
/// How often the agent looks whether its coordinator is still there.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Whether an `Authorization` header holds the token.
pub type Authorize = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// An agent, until it serves.
pub struct AgentServer {
    agent: Arc<Agent>,
}

struct Agent {
    factory: EngineFactory,
    authorize: Authorize,
    /// Random, so that an old session's requests do not meet a new session.
    session_id: Box<dyn Fn() -> u128 + Send + Sync>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    session: Option<Session>,
    /// A session that has ended and still cleans up.
    ending: Option<JoinHandle<()>>,
}

impl Slot {
    fn end(&mut self) {
        if let Some(session) = self.session.take() {
            self.ending = Some(session.end());
        }
    }

    fn is_busy(&self) -> bool {
        self.session.is_some()
            || self
                .ending
                .as_ref()
                .is_some_and(|thread| !thread.is_finished())
    }
}

impl AgentServer {
    /// `random` makes ids of sessions.
    pub fn new(
        factory: EngineFactory,
        authorize: Authorize,
        random: impl Fn() -> u128 + Send + Sync + 'static,
    ) -> Self {
        Self {
            agent: Arc::new(Agent {
                factory,
                authorize,
                session_id: Box::new(random),
                slot: Mutex::new(Slot::default()),
            }),
        }
    }

    /// Serves until `stop` is ready; then ends the run that is under way and removes its files.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send) {
        let agent = Arc::clone(&self.agent);
        tokio::select! {
            () = accept(router(Arc::clone(&agent)), listener) => {}
            () = watch(&agent) => {}
            () = stop => {}
        }
        let ending = {
            let mut slot = agent.slot.lock();
            slot.end();
            slot.ending.take()
        };
        if let Some(thread) = ending {
            // An engine that panicked has said so.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

async fn accept(router: Router, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_LEN_BYTES_MAX);
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most often too many open files: they do not close faster by asking often.
                tracing::warn!(%error, "the agent cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _permit = permit;
            // A client that goes away is no event.
            let _ = connection.await;
        });
    }
}

async fn watch(agent: &Agent) {
    let mut interval = tokio::time::interval(WATCH_INTERVAL);
    loop {
        interval.tick().await;
        agent.give_up_if_silent(Instant::now());
    }
}

impl Agent {
    /// Ends a session whose coordinator has been silent for too long.
    fn give_up_if_silent(&self, now: Instant) {
        let mut slot = self.slot.lock();
        let is_silent = slot.session.as_ref().is_some_and(|session| {
            now.saturating_duration_since(session.heard_at) > COORDINATOR_SILENCE_MAX
        });
        if is_silent {
            tracing::warn!(
                seconds = COORDINATOR_SILENCE_MAX.as_secs(),
                "nothing was heard from the coordinator; its run is given up"
            );
            slot.end();
        }
    }
}

struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(Refusal { error: self.1 })).into_response()
    }
}

type Answer<T> = Result<Json<T>, Refused>;
type Api = Shared<Arc<Agent>>;

fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/bench/v1/hello", get(hello))
        .route("/bench/v1/sessions", post(open))
        .route("/bench/v1/sessions/{id}", get(state).delete(close))
        .route("/bench/v1/sessions/{id}/orders", post(order))
        .route("/bench/v1/sessions/{id}/go", post(go))
        .route("/bench/v1/sessions/{id}/stop", post(stop))
        .fallback(|| async {
            let message = "there is nothing at this path".to_owned();
            Refused(StatusCode::NOT_FOUND, message)
        })
        .layer(DefaultBodyLimit::max(REQUEST_LEN_BYTES_MAX))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&agent),
            authorize,
        ))
        .with_state(agent)
}

/// Refuses requests without the token, and bounds the time of all.
async fn authorize(Shared(agent): Api, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    if given.is_some_and(|value| (agent.authorize)(value.as_bytes())) {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
        return answer.unwrap_or_else(|_| {
            let message = "the request took too long to arrive".to_owned();
            Refused(StatusCode::REQUEST_TIMEOUT, message).into_response()
        });
    }
    let message = "the token is missing or not this agent's".to_owned();
    let mut response = Refused(StatusCode::UNAUTHORIZED, message).into_response();
    // Unauthorized clients do not keep a connection.
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the request is not understood: {error}");
        Refused(StatusCode::BAD_REQUEST, message)
    })
}

/// Does something with the session `id`.
fn with_session<T>(
    agent: &Agent,
    id: &str,
    act: impl FnOnce(&mut Session) -> Result<T, String>,
) -> Result<T, Refused> {
    let mut slot = agent.slot.lock();
    let session = slot.session.as_mut().filter(|session| session.id == id);
    let session = session.ok_or_else(|| {
        let message = "there is no such session; it was ended or given up".to_owned();
        Refused(StatusCode::NOT_FOUND, message)
    })?;
    session.heard_at = Instant::now();
    act(session).map_err(|message| Refused(StatusCode::CONFLICT, message))
}

async fn hello(Shared(agent): Api) -> Json<Hello> {
    let busy = agent.slot.lock().is_busy();
    Json(Hello {
        protocol: PROTOCOL.to_owned(),
        cairn_version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine(),
        busy,
    })
}

async fn open(Shared(agent): Api, body: Bytes) -> Answer<Opened> {
    let open: Open = parse(&body)?;
    let refuse = |message: String| Refused(StatusCode::BAD_REQUEST, message);
    if open.protocol != PROTOCOL {
        return Err(refuse(format!(
            "this agent speaks {PROTOCOL}, the coordinator another: use the same cairn on all machines"
        )));
    }
    let target: Target = open
        .target
        .parse()
        .map_err(|error: crate::suite::TargetError| refuse(error.to_string()))?;
    let mut slot = agent.slot.lock();
    if slot.is_busy() {
        let message = "it is busy with another run".to_owned();
        return Err(Refused(StatusCode::CONFLICT, message));
    }
    let id = format!("{:032x}", (agent.session_id)());
    let factory = Arc::clone(&agent.factory);
    slot.session = Some(Session::start(id.clone(), target, open.keep, factory));
    Ok(Json(Opened { session: id }))
}

async fn state(Shared(agent): Api, Path(id): Path<String>) -> Answer<State> {
    with_session(&agent, &id, |session| Ok(session.state())).map(Json)
}

async fn order(Shared(agent): Api, Path(id): Path<String>, body: Bytes) -> Answer<State> {
    let order: Order = parse(&body)?;
    with_session(&agent, &id, |session| {
        session.order(order)?;
        Ok(session.state())
    })
    .map(Json)
}

async fn go(Shared(agent): Api, Path(id): Path<String>, body: Bytes) -> Answer<State> {
    let Go { number, in_ms } = parse(&body)?;
    let state = with_session(&agent, &id, |session| Ok(session.state()))?;
    let delay = Duration::from_millis(in_ms.min(GO_DELAY_MS_MAX));
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        // By then the run may have ended, which is no error, or be at another order.
        let _ = with_session(&agent, &id, |session| {
            if session.state().number == number {
                session.control().go();
            }
            Ok(())
        });
    });
    Ok(Json(state))
}

async fn stop(Shared(agent): Api, Path(id): Path<String>) -> Answer<State> {
    with_session(&agent, &id, |session| {
        session.control().stop();
        Ok(session.state())
    })
    .map(Json)
}

async fn close(Shared(agent): Api, Path(id): Path<String>) -> Result<StatusCode, Refused> {
    with_session(&agent, &id, |_| Ok(()))?;
    agent.slot.lock().end();
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
impl AgentServer {
    pub(super) fn factory(&self) -> EngineFactory {
        Arc::clone(&self.agent.factory)
    }

    pub(super) fn put(&self, session: Session) {
        self.agent.slot.lock().session = Some(session);
    }

    pub(super) fn has_session(&self) -> bool {
        self.agent.slot.lock().session.is_some()
    }

    pub(super) fn give_up_if_silent(&self, now: Instant) {
        self.agent.give_up_if_silent(now);
    }

    /// Waits for the end of the session that was given up.
    pub(super) fn join(&self) {
        let thread = self.agent.slot.lock().ending.take();
        if let Some(thread) = thread {
            thread.join().unwrap();
        }
    }
}
