//! The server: threads, the listening socket, limits of connections, stopping.
//!
//! Owns: accepting connections, time limits for clients; no response leaves a node without a valid lease.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_codec_s3::signed;
use cairn_forward::{Admission, Crowd, CrowdRules, Door, Forward, Seat};
use cairn_https::{Certificate, head_len_bytes};
use cairn_qos::{Client, Gate, Operation, Part};
use futures_util::FutureExt;
use http::header::{CONNECTION, EXPECT, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpResponse, S3Error, S3Result, s3_error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::account::Account;
use crate::audit::Line;
use crate::caller::{Access, Keys, denied};
use crate::caller::{Caller, ClientAddress, PassedOn, Permit};
use crate::cors;
use crate::documents::{self, KEYS_LEN_BYTES_MAX};
use crate::forms;
use crate::heads::{self, RequestPhase};
use crate::hosts::Hosts;
use crate::ids::Ids;
use crate::linger::{Lingering, Unread};
use crate::metrics::{Counters, METHODS, Requests};
use crate::operations;
use crate::pass::{self, Ask, Known, Links, LocateAnswer, LookupKey, Routed};
use crate::places::{BufferSlot, Holder, Places};
use crate::ranges::Whole;
use crate::refused;
use crate::service::Service;
use crate::stores::Stores;
use crate::website;

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CONNECTION_COUNT_MAX: usize = 2048;
/// One network has at most this part of all connections.
const NETWORK_PART: usize = 2;
/// Networks with a valid signature, and how long they are remembered after the last one.
const KNOWN_COUNT_MAX: usize = 4096;
const KNOWN_FOR: Duration = Duration::from_secs(60 * 60);
/// Maximum time between two requests.
const REST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for the head of a request, from its first byte on, and from a connection to its first request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for a connection to begin with TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// AWS accepts 8 KB of headers.
const HEADERS_LEN_BYTES_MAX: usize = 64 << 10;
const HEADER_COUNT_MAX: usize = 100;
/// A header of a response to another node: the signature of its request was valid, and who signed it. No client sees it.
const SIGNED: &str = "x-cairn-signed";
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
/// The memory of an object in transfer: steps that were read ahead, or one that is being filled.
const TRANSFER_HELD_BYTES: usize = 4 << 20;
/// With fewer, a user cannot leave a place to each kind of others ([`crate::places`]).
const TRANSFER_COUNT_MIN: usize = 8;
/// Transfers of one volume with limits, which take no place from other volumes.
const LIMITED_TRANSFER_COUNT: usize = 16;

#[derive(Clone, Debug)]
pub struct Settings {
    pub threads: usize,
    pub connection_count_max: usize,
    /// Bytes of objects in transfer, of all connections together.
    pub held_bytes_max: usize,
    /// Names of hosts below these are buckets.
    pub domains: Vec<String>,
    /// The region in signatures.
    pub region: String,
    /// Whether each request is a line of the log.
    pub audit: bool,
    /// If there is one, the server accepts only HTTPS.
    pub certificate: Option<Arc<Certificate>>,
}

impl Settings {
    /// Until a request on it was signed, a connection yields to others.
    fn crowd(&self) -> CrowdRules {
        CrowdRules {
            count_max: self.connection_count_max,
            per_network_max: self.connection_count_max / NETWORK_PART,
            known_count_max: KNOWN_COUNT_MAX,
            known_for: Some(KNOWN_FOR),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 2,
            connection_count_max: CONNECTION_COUNT_MAX,
            held_bytes_max: 256 << 20,
            domains: Vec::new(),
            region: signed::REGION_DEFAULT.to_owned(),
            audit: false,
            certificate: None,
        }
    }
}

/// The shared state of all connections.
pub struct ServerCore {
    pub stores: Arc<Stores>,
    pub settings: Settings,
    pub(crate) hosts: Hosts,
    /// Whether this node may still answer for the volumes that it serves: its lease decides. Checked before each
    /// response.
    pub may_answer: Box<dyn Fn() -> bool + Send + Sync>,
    /// The other nodes of the cluster, if there is one: they may know an access key that is unknown here.
    pub(crate) forward: Option<Arc<Forward>>,
    pub(crate) known: Known,
    /// One place for each object in transfer.
    transfers: Arc<Places>,
    /// Places of volumes with limits, which may take long.
    limited: Mutex<BTreeMap<VolumeId, Arc<Places>>>,
    pub(crate) metrics: Counters,
    pub(crate) requests: Requests,
    pub(crate) crowd: Arc<Crowd>,
    pub(crate) turned_away: AtomicU64,
    /// Requests that other nodes answered.
    pub(crate) passed: AtomicU64,
}

impl ServerCore {
    pub fn new(
        stores: Arc<Stores>,
        settings: Settings,
        forward: Option<Arc<Forward>>,
        may_answer: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let transfers = settings.held_bytes_max / TRANSFER_HELD_BYTES;
        let crowd = Crowd::new(settings.crowd(), Arc::clone(stores.clock()));
        Arc::new(Self {
            transfers: Places::new(transfers.max(TRANSFER_COUNT_MIN)),
            limited: Mutex::default(),
            stores,
            hosts: Hosts::new(&settings.domains),
            crowd,
            settings,
            may_answer: Box::new(may_answer),
            forward,
            known: pass::known(),
            metrics: Counters::default(),
            requests: Requests::default(),
            turned_away: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        })
    }

    /// Waits until there is memory for one more object in transfer of this caller. The present ones do not wait for their
    /// clients for ever: see [`crate::pace`].
    pub(crate) async fn transfer(&self, caller: &Caller, bucket: &str) -> Transfer {
        let client = caller.client.of(Part::bucket(bucket));
        let volume = caller.objects.fs().volume();
        let gate = self.stores.gate(volume);
        let places = match gate.is_limited() {
            false => Arc::clone(&self.transfers),
            true => {
                let make = || Places::new(LIMITED_TRANSFER_COUNT);
                Arc::clone(self.limited.lock().entry(volume).or_insert_with(make))
            }
        };
        Transfer {
            _place: places.take(caller.holder()).await,
            permit: caller.permit(),
            gate,
            client,
            account: caller.account.clone(),
            is_more: false,
            is_passed_on: caller.is_passed_on,
        }
    }

    /// The holder of a place for a request that an access key signed; `None`: no volume here has the key.
    pub(crate) fn holder_of(&self, id: &str) -> Option<Holder> {
        let (objects, key) = self.stores.access_key(id)?;
        Some(Holder::Key {
            id: id.to_owned(),
            uid: key.uid,
            volume: objects.fs().volume(),
        })
    }

    /// A place for a request without a rate: a document, or parts that become one object.
    pub(crate) async fn place(&self, holder: Holder) -> Option<BufferSlot> {
        self.transfers.take(holder).await
    }

    /// The error for a key or bucket that is unknown here, while another node may know it.
    pub(crate) fn unknown(&self, error: S3Error) -> S3Error {
        match self.forward.is_some() || !self.stores.is_whole() {
            true => s3_error!(
                ServiceUnavailable,
                "the volume of this access key is not served by this node any more, or not yet"
            ),
            false => error,
        }
    }

    /// Maximum memory of objects in transfer.
    pub fn held_bytes(&self) -> u64 {
        let limited: usize = self.limited.lock().values().map(|it| it.held_count()).sum();
        (self.transfers.held_count() + limited) as u64 * TRANSFER_HELD_BYTES as u64
    }

    /// A number that grows with each request, and with the bytes of objects in transfer.
    pub fn activity(&self) -> u64 {
        let requests = self.requests.iter().flatten();
        let requests = requests.map(|count| count.load(Ordering::Relaxed));
        requests.fold(self.metrics.moved_bytes(), u64::wrapping_add)
    }

    /// Admits a connection; `None`: there are too many, or too many of this client.
    fn enter(&self, client: IpAddr) -> Option<Seat> {
        let seat = self.crowd.enter(client).seat;
        if seat.is_none() {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        seat
    }

    pub(crate) fn count_passed(&self) {
        self.passed.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, method: &Method, status: StatusCode) {
        let known = METHODS.iter().position(|name| *name == method.as_str());
        let method = known.unwrap_or(METHODS.len() - 1);
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.requests[method][class].fetch_add(1, Ordering::Relaxed);
    }
}

/// An object in transfer, and its place.
pub struct Transfer {
    _place: Option<BufferSlot>,
    permit: Permit,
    gate: Arc<Gate>,
    client: Client,
    account: Option<Account>,
    is_more: bool,
    /// Whether another node, which has the client's connection, forwarded the request.
    is_passed_on: bool,
}

impl Transfer {
    /// The error for a body that ended early. For a forwarded request the stream between the two nodes may be the
    /// cause: the client has sent all of it, and should send it again.
    pub fn broken_off(&self, why: &str) -> S3Error {
        match self.is_passed_on {
            true => s3_error!(
                SlowDown,
                "the way to the node that has the volume broke off: {}",
                why
            ),
            false => s3_error!(IncompleteBody, "the body ended before its length: {}", why),
        }
    }

    /// Refuses to continue for an access key that was revoked meanwhile.
    pub fn require_key(&mut self) -> S3Result<()> {
        self.permit.require_still()
    }

    /// The time until the next check of its key.
    pub fn next_look(&self) -> Duration {
        self.permit.next_look()
    }

    /// Waits until the rate allows its next bytes.
    pub async fn pass(&mut self, operation: Operation) {
        let is_more = std::mem::replace(&mut self.is_more, true);
        self.gate.pass(self.client, operation.more(is_more)).await;
    }

    /// Counts sent bytes.
    pub fn sent(&self, len_bytes: u64) {
        if let Some(account) = &self.account {
            account.sent(len_bytes);
        }
    }

    /// Counts received bytes.
    pub fn received(&self, len_bytes: u64) {
        if let Some(account) = &self.account {
            account.received(len_bytes);
        }
    }
}

/// The parts that serve connections.
#[derive(Clone)]
struct Serving {
    shared: Arc<ServerCore>,
    service: S3Service,
    stopping: watch::Receiver<bool>,
    /// The number of streams of other nodes.
    streams: Arc<watch::Sender<usize>>,
}

/// A running server. If it is dropped without [`Self::stop`], it stops at once.
pub struct Running {
    serving: Serving,
    tls: Option<TlsAcceptor>,
    stop: watch::Sender<bool>,
    /// The tasks that accept connections.
    accepting: Mutex<Vec<JoinHandle<()>>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Running {
    /// Begins to serve: forwarded requests of other nodes, and clients after [`Self::listen`].
    pub fn start(shared: Arc<ServerCore>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(shared.settings.threads.max(1))
            .thread_name("s3")
            .enable_all()
            .build()?;
        let builder = || {
            let mut builder = S3ServiceBuilder::new(Service(Arc::clone(&shared)));
            builder.set_auth(Keys(Arc::clone(&shared)));
            builder.set_access(Access(Arc::clone(&shared)));
            builder.set_host(shared.hosts.clone());
            builder.set_config(bounds());
            builder
        };
        let mut outer = builder();
        outer.set_route(Whole(builder().build()));
        let service = outer.build();
        let certificate = shared.settings.certificate.as_ref();
        let tls = certificate.map(Certificate::acceptor).transpose()?;
        let (stop, stopping) = watch::channel(false);
        Ok(Self {
            serving: Serving {
                shared,
                service,
                stopping,
                streams: Arc::default(),
            },
            tls,
            stop,
            accepting: Mutex::default(),
            runtime: Some(runtime),
        })
    }

    /// Accepts connections of clients.
    pub fn listen(&self, listener: TcpListener) -> std::io::Result<()> {
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        listener.set_nonblocking(true)?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let accepting = runtime.spawn(accept(listener, self.serving.clone(), self.tls.clone()));
        self.accepting.lock().push(accepting);
        Ok(())
    }

    /// Serves requests that other nodes forward.
    pub fn passed(&self) -> Option<PeerServer> {
        let runtime = self.runtime.as_ref()?;
        Some(PeerServer {
            serving: self.serving.clone(),
            runtime: runtime.handle().clone(),
        })
    }

    /// Accepts no more requests, and finishes the running ones for up to `grace`.
    pub async fn stop(self, grace: Duration) {
        self.stop.send_replace(true);
        let accepting = std::mem::take(&mut *self.accepting.lock());
        let ended = async {
            for accepting in accepting {
                // A failed task has ended, too.
                let _ = accepting.await;
            }
            let mut streams = self.serving.streams.subscribe();
            // The sender is in `self`.
            let _ = streams.wait_for(|count| *count == 0).await;
        };
        let _ = tokio::time::timeout(grace, ended).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped in a task, which must not wait.
            runtime.shutdown_background();
        }
    }
}

/// The limits of a body in `s3s`: forms are read before it, and all other bodies are bounded before it.
fn bounds() -> Arc<StaticConfigProvider> {
    let mut config = S3Config::default();
    config.xml_max_body_size = KEYS_LEN_BYTES_MAX as usize;
    config.form_max_fields_size = 0;
    config.form_max_field_size = 0;
    config.post_object_max_file_size = 0;
    Arc::new(StaticConfigProvider::new(Arc::new(config)))
}

/// Serves requests that other nodes forward, with the threads of this node's server.
#[derive(Clone)]
pub struct PeerServer {
    serving: Serving,
    runtime: tokio::runtime::Handle,
}

impl PeerServer {
    /// Serves one stream of another node to its end.
    pub async fn serve(&self, incoming: cairn_forward::Incoming) {
        let serving = self.serving.clone();
        let streams = Arc::clone(&serving.streams);
        streams.send_modify(|count| *count += 1);
        // An error means that the server has ended.
        let _ = self.runtime.spawn(passed(serving, incoming)).await;
        streams.send_modify(|count| *count -= 1);
    }
}

async fn passed(serving: Serving, incoming: cairn_forward::Incoming) {
    let cairn_forward::Incoming {
        mut stream,
        admission,
    } = incoming;
    let shared = &serving.shared;
    let question = match pass::read_question(&mut stream).await {
        Ok(question) => question,
        Err(error) => {
            tracing::warn!(%error, "a node's question about objects is refused");
            return;
        }
    };
    let answered = match question {
        Ask::Find { named, volumes } => {
            let is_read = |volume: &VolumeId| shared.stores.of_volume(*volume).is_some();
            let found = LocateAnswer {
                volume: named.here(shared),
                is_sure: volumes.iter().all(is_read),
            };
            pass::write_frame(&mut stream, &found).await
        }
        Ask::IsUsed => {
            let is_used = *shared.stores.is_used.borrow();
            pass::write_frame(&mut stream, &is_used).await
        }
        Ask::Serve { volume } => {
            let is_here = shared.stores.of_volume(volume).is_some();
            let client = admission.client().ip();
            let seat = shared.enter(client).filter(|_| is_here);
            let answered = pass::write_frame(&mut stream, &seat.is_some()).await;
            if let Some(seat) = seat.filter(|_| answered.is_ok()) {
                let leave = seat.leave();
                let from = Entry {
                    client: Some(admission.client()),
                    links: None,
                    unread: Unread::default(),
                    admission: Some(admission),
                    seat,
                };
                tokio::select! {
                    biased;
                    () = leave.notified() => {}
                    () = serve(stream, from, &serving) => {}
                }
            }
            answered
        }
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "a stream of another node ended");
    }
}

async fn accept(listener: tokio::net::TcpListener, serving: Serving, tls: Option<TlsAcceptor>) {
    let mut is_over = serving.stopping.clone();
    let mut connections = JoinSet::new();
    let mut door = Door::new(serving.shared.forward.clone());
    loop {
        tokio::select! {
            biased;
            _ = stopped(&mut is_over) => break,
            Some(_) = connections.join_next() => {}
            accepted = door.accept(&listener) => match accepted {
                Ok((stream, peer, entry)) => {
                    if let Some(seat) = serving.shared.enter(peer.ip()) {
                        let (serving, tls) = (serving.clone(), tls.clone());
                        let leave = seat.leave();
                        connections.spawn(async move {
                            tokio::select! {
                                biased;
                                () = leave.notified() => {
                                    tracing::debug!(%peer, "a connection of S3 makes way for another");
                                }
                                () = begin(stream, entry, seat, serving, tls) => {}
                            }
                        });
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection of S3");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    while connections.join_next().await.is_some() {}
}

/// Waits until the server has to stop, or the sender is gone.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// The origin of a connection.
struct Entry {
    client: Option<SocketAddr>,
    /// Streams to other nodes; `None` for a forwarded request, which is not forwarded again.
    links: Option<Links>,
    unread: Unread,
    /// In a cluster: the admission of its requests.
    admission: Option<Arc<Admission>>,
    seat: Seat,
}

async fn begin(
    stream: TcpStream,
    entry: cairn_forward::Entry,
    seat: Seat,
    serving: Serving,
    tls: Option<TlsAcceptor>,
) {
    let _ = stream.set_nodelay(true);
    let Ok(client) = stream.peer_addr() else {
        return;
    };
    let mut is_over = serving.stopping.clone();
    let admitted = tokio::select! {
        biased;
        _ = stopped(&mut is_over) => return,
        admitted = entry.admit(client) => admitted,
    };
    let admission = match admitted {
        Ok(admission) => admission,
        Err(why) => {
            cairn_forward::reset(&stream);
            tracing::debug!(%client, %why, "a connection of S3 is closed: its client has to connect again");
            return;
        }
    };
    let from = Entry {
        client: Some(client),
        links: Some(Links::default()),
        unread: Unread::default(),
        admission,
        seat,
    };
    let Some(tls) = tls else {
        return serve(stream, from, &serving).await;
    };
    let mut stopping = serving.stopping.clone();
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream));
    let shaken = tokio::select! {
        _ = stopped(&mut stopping) => return,
        shaken = shaken => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => serve(stream, from, &serving).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection of S3 did not begin"),
        Err(_) => tracing::debug!("a connection of S3 did not begin in time"),
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, from: Entry, serving: &Serving) {
    let mut stopping = serving.stopping.clone();
    let under_way = RequestPhase::default();
    let stream = Lingering::new(stream, from.unread.clone());
    let stream = heads::timed(stream, HEAD_TIMEOUT, under_way.clone());
    let answer = service_fn(|request| {
        let (from, under_way) = (&from, &under_way);
        async move {
            under_way.begin();
            let answered = answer(serving, from, request).await;
            under_way.end();
            answered
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REST_TIMEOUT)
        .max_buf_size(HEADERS_LEN_BYTES_MAX)
        .max_headers(HEADER_COUNT_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    let mut is_stopping = false;
    let ended = from.admission.as_ref().map(|admission| admission.ended());
    let mut ended = std::pin::pin!(ended.map_or_else(
        || futures_util::future::pending().left_future(),
        |ended| ended.right_future(),
    ));
    loop {
        tokio::select! {
            biased;
            // First: data that is read from here on may be outdated.
            _ = &mut ended => return,
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of S3 ended");
                }
                return;
            }
            _ = stopped(&mut stopping), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The response for an error before any operation on objects.
pub(crate) fn refusal(error: &S3Error) -> HttpResponse {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{}</Code><Message>{}</Message></Error>",
        error.code().as_str(),
        // The message may include the client's input.
        refused::escaped(error.message().unwrap_or_default())
    );
    let mut response = HttpResponse::new(Body::from(text));
    let status = error.status_code().unwrap_or(StatusCode::BAD_REQUEST);
    *response.status_mut() = status;
    response
}

/// The response that asks a client to try again.
fn unavailable(why: &'static str) -> HttpResponse {
    let mut response = refusal(&s3_error!(ServiceUnavailable, "{}", why));
    response
        .headers_mut()
        .insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    response
}

/// The response to a request that may be old: it was not done.
fn too_late() -> HttpResponse {
    unavailable("the request waited for so long that it may have been sent again; it was not done")
}

/// The response to a request that ended with an internal error.
fn broken_off() -> HttpResponse {
    refusal(&s3_error!(InternalError, "the request broke off"))
}

/// The response to a head above the limit: one read can bring more bytes than are kept.
fn too_long() -> HttpResponse {
    let why = "the headers and the query are longer than 64 KiB";
    let mut response = refusal(&s3_error!(InvalidRequest, "{}", why));
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// The error for a key or bucket that no node has.
fn nowhere(named: &LookupKey) -> HttpResponse {
    refusal(&match named {
        LookupKey::Key(_) => s3_error!(
            InvalidAccessKeyId,
            "no volume of the cluster has this access key"
        ),
        LookupKey::Bucket(_) => denied(),
    })
}

/// Answers from the volumes of this node.
async fn answer_here(
    serving: &Serving,
    mut request: http::Request<Incoming>,
) -> Result<HttpResponse, HttpError> {
    let shared = &serving.shared;
    let region = &shared.settings.region;
    let asked = cors::asked(shared, &request);
    let shown = website::answer(shared, &serving.service, &request).await;
    let mut response = match (asked.as_ref().and_then(cors::CorsRequest::preflight), shown) {
        (Some(answer), _) => answer,
        (None, Some(answer)) => answer?,
        (None, None) => match signed::check(request.uri(), request.headers(), region) {
            Ok(()) if forms::is_form(&request) => forms::answer(shared, request).await,
            Ok(()) => {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let bound = match operations::unfold(&query, request.headers_mut()) {
                    Ok(()) => documents::bound(shared, request),
                    Err(error) => Err(error),
                };
                match bound {
                    Ok((request, watched)) => {
                        let answered = serving.service.call(request).await?;
                        let failed = watched.error();
                        failed.map_or(answered, |error| refusal(&error))
                    }
                    Err(error) => refusal(&error),
                }
            }
            Err(refused) => refused::answer(&refused, region),
        },
    };
    if let Some(asked) = &asked {
        asked.allow(&mut response);
    }
    // Another node may own the volume by now, and may have changed the data that was read.
    if !(shared.may_answer)() {
        response = unavailable("this node does not own the volume any more");
    }
    Ok(response)
}

async fn answer(
    serving: &Serving,
    from: &Entry,
    mut request: http::Request<Incoming>,
) -> Result<HttpResponse, HttpError> {
    let shared = &serving.shared;
    let ids = Ids::new(shared.stores.entropy());
    if let Some(admission) = &from.admission
        && !admission.is_live()
    {
        let mut late = too_late();
        ids.tell(&mut late);
        return Ok(late);
    }
    let method = request.method().clone();
    let has_body = !request.body().is_end_stream();
    if head_len_bytes(&request) > HEADERS_LEN_BYTES_MAX {
        if has_body {
            from.unread.set();
        }
        shared.count(&method, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        let mut refused = too_long();
        ids.tell(&mut refused);
        return Ok(refused);
    }
    let mut line = shared
        .settings
        .audit
        .then(|| Line::new(from.client, &ids.request, &request));
    request.extensions_mut().insert(ids.clone());
    let waits = request.headers().contains_key(EXPECT);
    let mut account = None;
    let begun = shared.stores.clock().monotonic();
    let is_passed_on = from.links.is_none() && from.admission.is_some();
    if is_passed_on {
        request.extensions_mut().insert(PassedOn);
    }
    let mark = from.seat.mark();
    request.extensions_mut().insert(mark.clone());
    if let Some(client) = from.client {
        let extensions = request.extensions_mut();
        extensions.insert(ClientAddress(client.ip()));
        let made = Account::new(&method, client.ip());
        extensions.insert(made.clone());
        account = Some(made);
    }
    let routed = match (&from.links, &from.admission) {
        (Some(links), Some(admission)) => pass::route(shared, links, admission, request).await,
        _ => Routed::Here(request),
    };
    let mut response = match (routed, &from.admission) {
        (Routed::Here(_), Some(admission)) if !admission.is_live() => too_late(),
        // To its end, even if the connection is lost: the next change waits for it.
        (Routed::Here(request), Some(admission)) if !method.is_safe() => {
            let (serving, admission) = (serving.clone(), Arc::clone(admission));
            let begun = tokio::spawn(async move {
                let answered = answer_here(&serving, request).await;
                drop(admission);
                answered
            });
            begun.await.unwrap_or_else(|_| Ok(broken_off()))?
        }
        (Routed::Here(request), _) => answer_here(serving, request).await?,
        (Routed::Answered(mut response), _) => {
            let signer = response.headers_mut().remove(SIGNED);
            if let Some(Ok(signer)) = signer.as_ref().map(HeaderValue::to_str) {
                mark.set(signer);
            }
            // The node that answered has written the line.
            line = None;
            response
        }
        (Routed::Nowhere(named), _) => nowhere(&named),
        (Routed::Unavailable, _) => unavailable("no node serves the volume now"),
    };
    if is_passed_on
        && let Some(signer) = mark.who()
        && let Ok(signer) = HeaderValue::from_str(signer)
    {
        response.headers_mut().insert(SIGNED, signer);
    }
    ids.tell(&mut response);
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    // A client that waits for "100 Continue" and got none, because the body was empty, may conclude that this
    // connection never sends it: the AWS CLI does, and then misreads the next response.
    if is_error && has_body || waits && !has_body {
        // The body may be unread, and a client that waits for "100 Continue" never sends it: the next bytes on the
        // connection could be taken for it.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        if has_body {
            from.unread.set();
        }
    }
    shared.count(&method, response.status());
    if let Some(account) = account {
        let now = shared.stores.clock().monotonic();
        account.answered(now.saturating_sub(begun));
    }
    if let Some(line) = line {
        line.end(response.status());
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use s3s::config::S3ConfigProvider as _;

    use super::*;

    /// The second line of defence: the limit of `s3s` itself, if a body ever reached it without a bound.
    #[test]
    fn what_s3s_holds_is_bounded() {
        let config = bounds().snapshot();
        assert_eq!(config.xml_max_body_size as u64, KEYS_LEN_BYTES_MAX);
        let of_forms = (
            config.form_max_fields_size,
            config.form_max_field_size,
            config.post_object_max_file_size,
        );
        assert_eq!(of_forms, (0, 0, 0));
    }
}
