//! The server: threads, sockets, limits of connections, stopping.
//!
//! Owns: accepting, which thread serves which connection, and what all connections share.
//! Must not know: what comes over the connections.
//!
//! One thread accepts connections and deals them to the threads that serve them, each of which has a
//! runtime of its own. (With SO_REUSEPORT the kernel would deal them by a hash of addresses, and all
//! four connections of one client might land on one thread.)

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_base::LogLimit;
use cairn_base::busy_poll::BusyPoll;
use cairn_codec_rpc::FragmentHeader;
use cairn_forward::{Door, Entry, Forward, Incoming, network_of};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::connection;
use crate::connection_metrics::{ConnectionCollector, ConnectionMetrics, Events, Gauges};
use crate::dispatch::{Dispatcher, Table};
use crate::portmap::{PortMapper, PortMapperProgram};
use crate::program::{Peer, Program, Started, Transport, canonical};
use crate::server_settings::ServerSettings;

/// Longest datagram that is read: the calls served over UDP are short.
const DATAGRAM_LEN_BYTES_MAX: usize = 2048;
/// Unauthorized clients get one in so many of all connections.
const STRANGERS_PART: usize = 2;
/// Pause after `accept` failed, which it does when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// So many of the file descriptors that the process may have are never given to connections. Data and metadata
/// files need them, and a request that cannot open its file waits.
const DESCRIPTORS_SPARED: u64 = 96;
/// A client that says nothing for so long is asked whether it is still there, again in this interval, and given
/// up after so many questions without an answer.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// Why a server could not be made or started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("there is no socket to listen on")]
    NoListener,
    #[error("preparing a socket: {0}")]
    Socket(#[source] io::Error),
    #[error("starting a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("registering metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Bound sockets to serve on.
#[derive(Default)]
pub struct Listeners {
    /// All programs. Clients are told the port of the first.
    pub programs: Vec<TcpListener>,
    /// Port 111, or none: the same service where clients look for the port mapper.
    pub rpcbind: Vec<TcpListener>,
    /// Short calls over UDP, usually also at port 111.
    pub rpcbind_udp: Vec<UdpSocket>,
}

/// What all connections of a server share.
pub struct ServerCore {
    /// For threads, metrics and the log.
    name: String,
    pub settings: ServerSettings,
    pub table: Arc<Table>,
    port_mapper: Arc<PortMapper>,
    pub metrics: Arc<ConnectionMetrics>,
    /// For the log lines about connections that we closed.
    pub broken_logged: LogLimit,
    pub stalled_logged: LogLimit,
    /// Bytes held for all connections.
    pub held_bytes: AtomicUsize,
    /// Calls and replies that are delayed, and bytes that such calls hold.
    pub parked_count: AtomicUsize,
    pub parked_bytes: AtomicUsize,
    /// Told when that falls below its limit.
    pub freed: Arc<Notify>,
    connection_count: AtomicUsize,
    /// In a cluster: under what connections are admitted.
    forward: OnceLock<Arc<Forward>>,
    /// Addresses that may leave this machine, and who is told when one does.
    addresses: Mutex<HashMap<IpAddr, watch::Sender<Ends>>>,
}

impl ServerCore {
    fn gauges(&self) -> Gauges {
        let settings = &self.settings;
        Gauges {
            connections: self.connection_count.load(Ordering::Relaxed) as u64,
            connections_max: settings.connection_count_max as u64,
            held_bytes: self.held_bytes.load(Ordering::Relaxed) as u64,
            held_bytes_max: settings.held_bytes_max as u64,
        }
    }

    fn dispatcher(
        &self,
        transport: Transport,
        address: SocketAddr,
        local: SocketAddr,
        thread: usize,
    ) -> Dispatcher {
        let metrics = Arc::clone(&self.metrics);
        let peer = Peer::new(transport, address, local, thread, metrics);
        Dispatcher::new(Arc::clone(&self.table), peer)
    }
}

/// A server that does not serve yet.
pub struct RpcServer {
    shared: Arc<ServerCore>,
}

impl RpcServer {
    /// A server of these programs, and of a port mapper for them. Its threads and metrics bear `name`.
    pub fn new(
        name: &str,
        settings: ServerSettings,
        mut programs: Vec<Arc<dyn Program>>,
        registry: &prometheus::Registry,
    ) -> Result<Self, ServeError> {
        let port_mapper = Arc::new(PortMapper::new(&programs));
        programs.push(Arc::new(PortMapperProgram(Arc::clone(&port_mapper))));
        let shared = Arc::new(ServerCore {
            name: name.to_owned(),
            settings,
            table: Arc::new(Table::new(programs)),
            port_mapper,
            metrics: Arc::default(),
            broken_logged: LogLimit::default(),
            stalled_logged: LogLimit::default(),
            held_bytes: AtomicUsize::new(0),
            parked_count: AtomicUsize::new(0),
            parked_bytes: AtomicUsize::new(0),
            freed: Arc::default(),
            connection_count: AtomicUsize::new(0),
            forward: OnceLock::new(),
            addresses: Mutex::default(),
        });
        let source = Arc::clone(&shared);
        let gauges = Box::new(move || source.gauges());
        let metrics = Arc::clone(&shared.metrics);
        registry.register(Box::new(ConnectionCollector::new(name, metrics, gauges)))?;
        Ok(Self { shared })
    }

    /// In a cluster: what admits connections. Before the start.
    pub fn in_cluster(self, forward: Arc<Forward>) -> Self {
        // Only here.
        let _ = self.shared.forward.set(forward);
        self
    }

    /// Starts the threads. They run until [`Running::stop`].
    pub fn start(self, listeners: Listeners) -> Result<Running, ServeError> {
        let shared = self.shared;
        let first = listeners.programs.first().ok_or(ServeError::NoListener)?;
        let port_of = |listener: &TcpListener| {
            let address = listener.local_addr().map_err(ServeError::Socket)?;
            Ok::<_, ServeError>(address.port())
        };
        let ports = &shared.port_mapper;
        ports
            .programs_port
            .store(port_of(first)?, Ordering::Relaxed);
        if let Some(first) = listeners.rpcbind.first() {
            ports.own_port.store(port_of(first)?, Ordering::Relaxed);
        }
        let tcp = listeners.programs.into_iter().chain(listeners.rpcbind);
        let tcp: Vec<_> = tcp.collect();
        for listener in &tcp {
            prepare_listener(listener, &shared.settings).map_err(ServeError::Socket)?;
        }
        for socket in &listeners.rpcbind_udp {
            socket.set_nonblocking(true).map_err(ServeError::Socket)?;
        }

        let mut listens = Vec::new();
        for listener in &tcp {
            listens.push(listener.local_addr().map_err(ServeError::Socket)?);
        }
        let (stop, stopped) = watch::channel(None);
        let mut lanes = Vec::new();
        let mut threads = Vec::new();
        for index in 0..shared.settings.threads.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let lane = Lane {
                sender,
                connection_count: Arc::new(AtomicUsize::new(0)),
            };
            threads.push((index, receiver));
            lanes.push(lane);
        }
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            lanes,
            clients: Arc::default(),
            refused: Arc::default(),
        };
        let forwarded = acceptor.clone();
        let mut sockets = Some((tcp, listeners.rpcbind_udp, acceptor));
        let mut running = Running {
            shared: Arc::clone(&shared),
            acceptor: forwarded,
            listens,
            stop,
            threads: Vec::new(),
        };
        for (index, receiver) in threads {
            // The first thread accepts for all.
            let sockets = sockets.take();
            let stopped = stopped.clone();
            let serving = Arc::clone(&shared);
            let (ended, wait) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(ServeError::Thread)?;
            let thread = std::thread::Builder::new()
                .name(format!("{}-{index}", shared.name))
                .spawn(move || {
                    runtime.block_on(run(serving, index, receiver, sockets, stopped));
                    // Nobody waits if the server was dropped instead of stopped.
                    let _ = ended.send(());
                })
                .map_err(ServeError::Thread)?;
            running.threads.push((thread, wait));
        }
        Ok(running)
    }
}

fn prepare_listener(listener: &TcpListener, settings: &ServerSettings) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    if settings.socket_buffer_bytes > 0 {
        // Accepted sockets inherit them; the window scale is chosen during the handshake.
        let socket = socket2::SockRef::from(listener);
        socket.set_recv_buffer_size(settings.socket_buffer_bytes)?;
        socket.set_send_buffer_size(settings.socket_buffer_bytes)?;
    }
    Ok(())
}

/// A server that serves. Dropped without [`Self::stop`], it stops at once.
pub struct Running {
    shared: Arc<ServerCore>,
    acceptor: Acceptor,
    /// Where it listens.
    listens: Vec<SocketAddr>,
    /// The time by which everything must have ended, once it is to end.
    stop: watch::Sender<Option<Instant>>,
    threads: Vec<(JoinHandle<()>, oneshot::Receiver<()>)>,
}

impl Running {
    /// Takes no more connections and requests, finishes and answers what was begun, for at most
    /// `grace`, and ends the threads.
    pub async fn stop(mut self, grace: Duration) {
        self.stop.send_replace(Some(Instant::now() + grace));
        for (thread, ended) in self.threads.drain(..) {
            // An error means that the thread ended in another way; `join` says which.
            let _ = ended.await;
            if thread.join().is_err() {
                tracing::error!("a thread of the {} server panicked", self.shared.name);
            }
        }
    }

    /// What serves the calls of clients of other nodes.
    pub fn forwarded(&self) -> ForwardedCalls {
        ForwardedCalls(self.acceptor.clone())
    }

    /// Addresses that come and go, at the ports at which the server listens. `runtime` accepts there.
    pub fn more_addresses(&self, runtime: tokio::runtime::Handle) -> MoreAddresses {
        MoreAddresses {
            acceptor: self.acceptor.clone(),
            listens: self.listens.clone(),
            runtime,
        }
    }

    /// Tells what payloads and replies of all connections hold.
    pub fn held_bytes(&self) -> impl Fn() -> u64 + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.held_bytes.load(Ordering::Relaxed) as u64
    }

    pub fn connection_count(&self) -> usize {
        self.shared.connection_count.load(Ordering::Relaxed)
    }
}

/// Lets clients in at addresses that come to this machine and leave it.
#[derive(Clone)]
pub struct MoreAddresses {
    acceptor: Acceptor,
    listens: Vec<SocketAddr>,
    runtime: tokio::runtime::Handle,
}

/// When connections through an address end that leaves this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    No,
    /// When what was begun is answered; nothing more is taken.
    Answered,
    Now,
}

/// An address at which clients are let in.
pub struct OpenAddress {
    shared: Arc<ServerCore>,
    address: IpAddr,
    accepting: Vec<tokio::task::JoinHandle<()>>,
}

impl MoreAddresses {
    /// Serves clients at an address of this machine. At ports where the server listens on all addresses it does so already.
    pub fn open(&self, address: IpAddr) -> io::Result<OpenAddress> {
        let shared = &self.acceptor.shared;
        let mut listeners = Vec::new();
        for at in self.listens.iter().filter(|at| !at.ip().is_unspecified()) {
            let listener = TcpListener::bind((address, at.port()))?;
            prepare_listener(&listener, &shared.settings)?;
            listeners.push(listener);
        }
        let _inside = self.runtime.enter();
        let accepting = listeners.into_iter().map(|listener| {
            let accepting = self.acceptor.clone().accept(listener);
            self.runtime.spawn(accepting)
        });
        let accepting = accepting.collect();
        let ends = watch::Sender::new(Ends::No);
        shared.addresses.lock().insert(address.to_canonical(), ends);
        Ok(OpenAddress {
            shared: Arc::clone(shared),
            address,
            accepting,
        })
    }
}

impl OpenAddress {
    /// Lets nobody in any more, answers what was begun for at most `patience`, and ends all connections that came in here. Then
    /// the address may go: clients were told, and ask elsewhere.
    pub async fn close(mut self, patience: Duration) {
        let Some(ends) = self.end() else { return };
        ends.send_replace(Ends::Answered);
        if tokio::time::timeout(patience, ends.closed()).await.is_ok() {
            return;
        }
        let (address, left) = (self.address, ends.receiver_count());
        tracing::warn!(%address, left, "connections closed before their requests were finished");
        ends.send_replace(Ends::Now);
        ends.closed().await;
    }

    fn end(&mut self) -> Option<watch::Sender<Ends>> {
        for accepting in self.accepting.drain(..) {
            accepting.abort();
        }
        self.shared
            .addresses
            .lock()
            .remove(&self.address.to_canonical())
    }
}

impl Drop for OpenAddress {
    fn drop(&mut self) {
        if let Some(ends) = self.end() {
            ends.send_replace(Ends::Now);
        }
    }
}

/// Serves streams of calls that other nodes pass on.
#[derive(Clone)]
pub struct ForwardedCalls(Acceptor);

impl ForwardedCalls {
    /// Serves a stream as if it were a connection of its client, on a thread of the server. One that the limits do not let in
    /// is dropped.
    pub fn serve(&self, incoming: Incoming) {
        self.0.deal_forwarded(incoming);
    }
}

/// One thread, as the acceptor sees it.
struct Lane {
    sender: mpsc::UnboundedSender<Accepted>,
    connection_count: Arc<AtomicUsize>,
}

/// What a connection is made of.
enum Socket {
    Tcp(std::net::TcpStream, Entry),
    /// Of a client of another node.
    Forwarded(Incoming),
}

/// A connection on its way to its thread; the queue is bounded by the limit of connections.
struct Accepted {
    stream: Socket,
    peer: SocketAddr,
    permit: Permit,
}

/// The right to be one of the connections that the limits allow.
struct Permit {
    shared: Arc<ServerCore>,
    clients: Arc<Mutex<HashMap<IpAddr, usize>>>,
    client: IpAddr,
    lane_count: Arc<AtomicUsize>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.lane_count.fetch_sub(1, Ordering::Relaxed);
        self.shared.connection_count.fetch_sub(1, Ordering::Relaxed);
        let mut clients = self.clients.lock();
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

#[derive(Clone)]
struct Acceptor {
    shared: Arc<ServerCore>,
    lanes: Vec<Lane>,
    clients: Arc<Mutex<HashMap<IpAddr, usize>>>,
    refused: Arc<LogLimit>,
}

impl Clone for Lane {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            connection_count: Arc::clone(&self.connection_count),
        }
    }
}

impl Acceptor {
    async fn accept(self, listener: TcpListener) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("cannot listen: {error}");
                return;
            }
        };
        let mut failing = false;
        let mut door = Door::new(self.shared.forward.get().cloned());
        loop {
            match door.accept(&listener).await {
                Ok((stream, peer, entry)) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("connections are accepted again");
                    }
                    self.deal(stream, peer, entry);
                }
                // New connections wait in the kernel; those that exist notice nothing.
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("cannot accept connections until this is over: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gives the connection to the thread that has the fewest, if the limits let it in.
    fn deal(&self, stream: tokio::net::TcpStream, peer: SocketAddr, entry: Entry) {
        let events = &self.shared.metrics.events;
        let Some(lane) = self.fewest() else {
            return;
        };
        let permit = match spares_descriptors(&stream).and_then(|()| self.permit(peer, lane)) {
            Ok(permit) => permit,
            Err(reason) => {
                Events::count(&events.connections_refused);
                self.refused.refused(peer, "connection", &reason);
                return;
            }
        };
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, "connection lost: {error}");
                return;
            }
        };
        self.send(lane, Socket::Tcp(stream, entry), peer, permit);
    }

    fn send(&self, lane: &Lane, stream: Socket, peer: SocketAddr, permit: Permit) {
        Events::count(&self.shared.metrics.events.connections_accepted);
        let accepted = Accepted {
            stream,
            peer,
            permit,
        };
        if lane.sender.send(accepted).is_err() {
            tracing::debug!(%peer, "connection refused: the server stops");
        }
    }

    fn fewest(&self) -> Option<&Lane> {
        let count = |lane: &&Lane| lane.connection_count.load(Ordering::Relaxed);
        self.lanes.iter().min_by_key(count)
    }

    /// As [`Self::deal`], for the calls of a client of another node.
    fn deal_forwarded(&self, incoming: Incoming) {
        let client = incoming.admission.client();
        let Some(lane) = self.fewest() else { return };
        match self.permit(client, lane) {
            Ok(permit) => self.send(lane, Socket::Forwarded(incoming), client, permit),
            Err(reason) => {
                Events::count(&self.shared.metrics.events.connections_refused);
                self.refused
                    .refused(client, "forwarded connection", &reason);
            }
        }
    }

    fn permit(&self, peer: SocketAddr, lane: &Lane) -> Result<Permit, &'static str> {
        let settings = &self.shared.settings;
        let peer = canonical(peer);
        // Unauthorized clients cannot take the places of others, and get no more of their own by many addresses of IPv6.
        let (client, count_max, per_client_max) = match self.shared.table.lets_in(peer) {
            true => (
                peer.ip(),
                settings.connection_count_max,
                settings.connection_count_per_client_max,
            ),
            false => (
                network_of(peer.ip()),
                settings.connection_count_max / STRANGERS_PART,
                settings.connection_count_per_client_max / STRANGERS_PART,
            ),
        };
        let mut clients = self.clients.lock();
        if self.shared.connection_count.load(Ordering::Relaxed) >= count_max {
            return Err("too many connections");
        }
        if clients
            .get(&client)
            .is_some_and(|count| *count >= per_client_max)
        {
            return Err("too many connections of this client");
        }
        *clients.entry(client).or_insert(0) += 1;
        self.shared.connection_count.fetch_add(1, Ordering::Relaxed);
        lane.connection_count.fetch_add(1, Ordering::Relaxed);
        Ok(Permit {
            shared: Arc::clone(&self.shared),
            clients: Arc::clone(&self.clients),
            client,
            lane_count: Arc::clone(&lane.connection_count),
        })
    }
}

/// Refuses a connection that got one of the last file descriptors.
fn spares_descriptors(stream: &impl AsRawFd) -> Result<(), &'static str> {
    // Asked each time, because it can be changed while the process runs.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // The kernel gives out the lowest number that is free.
    let number = u64::try_from(stream.as_raw_fd()).unwrap_or(0);
    match number < limit.saturating_sub(DESCRIPTORS_SPARED) {
        true => Ok(()),
        false => Err("no file descriptors to spare"),
    }
}

type Sockets = (Vec<TcpListener>, Vec<UdpSocket>, Acceptor);

/// One thread from its start to its end.
async fn run(
    shared: Arc<ServerCore>,
    thread: usize,
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    sockets: Option<Sockets>,
    mut stopped: watch::Receiver<Option<Instant>>,
) {
    // Dropped at the end of accepting, which closes the sockets.
    let mut listening = JoinSet::new();
    if let Some((tcp, udp, acceptor)) = sockets {
        for listener in tcp {
            listening.spawn(acceptor.clone().accept(listener));
        }
        for socket in udp {
            listening.spawn(serve_udp(Arc::clone(&shared), thread, socket));
        }
    }
    let mut connections = JoinSet::new();
    let busy_poll = Arc::new(BusyPoll::new(shared.settings.looks_before_sleep));
    let keeper = Arc::clone(&busy_poll);
    listening.spawn(async move { keeper.keep().await });
    let (stop_connections, connection_stop) = watch::channel(false);
    loop {
        tokio::select! {
            _ = stopped.wait_for(Option::is_some) => break,
            Some(Accepted { stream, peer, permit }) = accepted.recv() => {
                let stop = connection_stop.clone();
                let shared = Arc::clone(&shared);
                let busy_poll = Arc::clone(&busy_poll);
                connections.spawn(async move {
                    // It ends when all that it began has ended, so that the limits hold for that too.
                    match stream {
                        Socket::Tcp(stream, entry) => {
                            serve_tcp(shared, thread, stream, peer, entry, busy_poll, stop).await;
                        }
                        Socket::Forwarded(Incoming { stream, admission }) => {
                            let local = SocketAddr::from(([0, 0, 0, 0], 0));
                            let dispatcher = shared.dispatcher(Transport::Tcp, peer, local, thread);
                            let dispatcher = dispatcher.admitted(&admission, true);
                            let stream = connection::Carrier::Forwarded(stream);
                            let admission = Some(admission);
                            connection::serve(stream, admission, shared, dispatcher, busy_poll, stop).await;
                        }
                    }
                    drop(permit);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    listening.shutdown().await;
    drop(accepted);
    stop_connections.send_replace(true);
    // Without a time the server was dropped: nothing is waited for.
    let deadline = *stopped.borrow();
    if let Some(deadline) = deadline {
        let ends = async { while connections.join_next().await.is_some() {} };
        let late = tokio::time::timeout_at(deadline.into(), ends)
            .await
            .is_err();
        if late {
            let left = connections.len();
            tracing::warn!(
                left,
                "connections closed before their requests were finished"
            );
        }
    }
}

async fn serve_tcp(
    shared: Arc<ServerCore>,
    thread: usize,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    entry: Entry,
    busy_poll: Arc<BusyPoll>,
    mut stop: watch::Receiver<bool>,
) {
    let admitted = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return,
        admitted = entry.admit(canonical(peer)) => admitted,
    };
    let admission = match admitted {
        Ok(admission) => admission,
        Err(why) => {
            cairn_forward::reset(&stream);
            tracing::debug!(%peer, %why, "connection closed: its client has to connect again");
            return;
        }
    };
    let ready = (|| {
        stream.set_nodelay(true)?;
        let socket = socket2::SockRef::from(&stream);
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_COUNT);
        socket.set_tcp_keepalive(&keepalive)?;
        let local = stream.local_addr()?;
        Ok::<_, io::Error>((tokio::net::TcpStream::from_std(stream)?, local))
    })();
    match ready {
        Ok((stream, local)) => {
            let mut dispatcher = shared.dispatcher(Transport::Tcp, peer, local, thread);
            if let Some(admission) = &admission {
                dispatcher = dispatcher.admitted(admission, false);
            }
            let stream = connection::Carrier::Tcp(stream);
            let local_ip = local.ip().to_canonical();
            let ends = shared
                .addresses
                .lock()
                .get(&local_ip)
                .map(watch::Sender::subscribe);
            let Some(ends) = ends else {
                connection::serve(stream, admission, shared, dispatcher, busy_poll, stop).await;
                return;
            };
            // Of an address that leaves.
            let (either, stop_either) = watch::channel(false);
            let serving = connection::serve(
                stream,
                admission,
                shared,
                dispatcher,
                busy_poll,
                stop_either,
            );
            tokio::select! {
                () = serving => {}
                () = ends_of_address(stop, ends, either) => {}
            }
        }
        Err(error) => tracing::debug!(%peer, "connection lost: {error}"),
    }
}

/// Says `either` when the server stops or an address leaves; ends when nothing is waited for any more.
async fn ends_of_address(
    mut stop: watch::Receiver<bool>,
    mut ends: watch::Receiver<Ends>,
    either: watch::Sender<bool>,
) {
    // A sender that is gone has ended, too.
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        _ = ends.wait_for(|ends| *ends != Ends::No) => {}
    }
    either.send_replace(true);
    if ends.wait_for(|ends| *ends == Ends::Now).await.is_err() {
        // The server stops, and sees to the end of its connections.
        std::future::pending().await
    }
}

/// Answers datagrams one after the other. Programs answer only short calls over UDP.
async fn serve_udp(shared: Arc<ServerCore>, thread: usize, socket: UdpSocket) {
    let socket = match tokio::net::UdpSocket::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!("cannot listen: {error}");
            return;
        }
    };
    let Ok(local) = socket.local_addr() else {
        return;
    };
    let mut datagram = [0; DATAGRAM_LEN_BYTES_MAX];
    loop {
        let (len_bytes, peer) = match socket.recv_from(&mut datagram).await {
            Ok(received) => received,
            Err(error) => {
                // Linux reports here that an earlier reply found no receiver.
                tracing::debug!("cannot receive a datagram: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let local = local_address_towards(local, peer);
        let mut dispatcher = shared.dispatcher(Transport::Udp, peer, local, thread);
        let Some(call) = datagram.get(..len_bytes) else {
            continue;
        };
        let Ok(call) = dispatcher.begin(call) else {
            continue;
        };
        let reply = match call.started {
            Started::Ready(reply) => reply,
            Started::Running(future) | Started::Changing(future) => future.await,
        };
        // There are no record marks in datagrams.
        if let Some(bytes) = reply.head.get(FragmentHeader::LEN_BYTES..)
            && let Err(error) = socket.send_to(bytes, peer).await
        {
            tracing::debug!(%peer, "cannot answer: {error}");
        }
    }
}

/// The address that a client reached. A socket that listens on all addresses does not know it; then it is the
/// one from which the way back to the client leaves.
fn local_address_towards(local: SocketAddr, peer: SocketAddr) -> SocketAddr {
    if !local.ip().is_unspecified() {
        return local;
    }
    let towards = || {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(peer)?;
        Ok::<_, io::Error>(SocketAddr::new(socket.local_addr()?.ip(), local.port()))
    };
    towards().unwrap_or(local)
}
