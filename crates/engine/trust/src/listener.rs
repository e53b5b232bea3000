//! The internal address of a node: who connects is checked and handed to what serves its protocol.
//!
//! Owns: accepting, handshakes and their limits, how many connections there are.
//! Must not know: what is served.
//!
//! Each limit keeps somebody out: handshakes of one address, one unauthorized client from taking all; connections that join,
//! unauthorized clients from taking those of nodes. Who has shown a certificate counts for the limit of all connections alone.
//!
//! No handshake waits for another one. Addresses of nodes, those that the map has and those that they were last seen at, have a share of
//! their own each. Beyond the share of all unauthorized clients, the oldest of theirs makes way for the next: an honest client needs milliseconds.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock};
use rustls::server::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::LazyConfigAcceptor;

use crate::certificate::Parsed;
use crate::log_limit::LogLimit;
use crate::protocol::Protocol;
use crate::stream::{NodeStream, PeerIdentity, carrier};
use crate::tls::{NOT_LISTED, clear_listener, explain, in_time, refuse, welcome};
use crate::trust::Trust;

/// After an error of accepting, such as too many open files, which passes when others are closed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Who has one IPv6 address has as many as fit in this.
const IPV6_PREFIX: u128 = !(u64::MAX as u128);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// From the connection to the end of the handshake.
    pub handshake_deadline: Duration,
    /// Handshakes of unauthorized clients at a time; the oldest is closed for another one.
    pub handshake_count_max: usize,
    /// Of one address (of one /64 of IPv6), those that join included; more are closed.
    pub stranger_count_max: usize,
    /// Connections that have shown a certificate; more are refused.
    pub connection_count_max: usize,
    /// Connections that join; more are refused.
    pub join_count_max: usize,
}

impl Default for ListenerSettings {
    fn default() -> Self {
        Self {
            handshake_deadline: Duration::from_secs(10),
            handshake_count_max: 64,
            stranger_count_max: 16,
            connection_count_max: 4096,
            join_count_max: 16,
        }
    }
}

/// Serves one protocol.
pub trait Handler: Send + Sync + 'static {
    /// Serves a connection to its end. Dropped when the listener closes.
    fn serve(self: Arc<Self>, peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()>;
}

/// Accepts connections until it is closed or dropped; connections end with it.
pub struct Listener {
    shared: Arc<ListenerCore>,
    address: SocketAddr,
}

struct ListenerCore {
    trust: Arc<Trust>,
    settings: ListenerSettings,
    handlers: RwLock<[Option<Arc<dyn Handler>>; Protocol::ALL.len()]>,
    halves: Arc<Halves>,
    strangers: Arc<Strangers>,
    /// Those of them that come from addresses of nodes.
    neighbours: Arc<Strangers>,
    known: RwLock<NodeAddresses>,
    connections: Arc<Semaphore>,
    joins: Arc<Semaphore>,
    refusals: LogLimit,
    accept_errors: LogLimit,
    /// Nodes of the cluster, once they are known; others are refused whatever they show.
    nodes: watch::Sender<Option<Arc<BTreeSet<NodeId>>>>,
    /// Every task has a receiver, so that their end can be waited for.
    stop: watch::Sender<bool>,
}

impl Listener {
    /// Listens. Until a protocol has a handler its connections are refused.
    pub async fn bind(
        trust: Arc<Trust>,
        address: &str,
        settings: ListenerSettings,
    ) -> io::Result<Self> {
        let told = |error: io::Error| {
            let text = format!("listening on the internal address {address}: {error}");
            io::Error::new(error.kind(), text)
        };
        let listener = TcpListener::bind(address).await.map_err(told)?;
        let address = listener.local_addr()?;
        let clock = &trust.env().clock;
        let shared = Arc::new(ListenerCore {
            handlers: RwLock::default(),
            halves: Arc::new(Halves {
                count_max: settings.handshake_count_max,
                begun: Mutex::default(),
            }),
            strangers: Strangers::new(settings.stranger_count_max, network_of),
            neighbours: Strangers::new(settings.stranger_count_max, |address| {
                address.to_canonical()
            }),
            known: RwLock::default(),
            connections: Arc::new(Semaphore::new(settings.connection_count_max)),
            joins: Arc::new(Semaphore::new(settings.join_count_max)),
            refusals: LogLimit::new(Arc::clone(clock)),
            accept_errors: LogLimit::new(Arc::clone(clock)),
            nodes: watch::Sender::new(None),
            stop: watch::Sender::new(false),
            settings,
            trust,
        });
        let accepting = Arc::clone(&shared).accept_all(listener, shared.stop.subscribe());
        let spawner = &shared.trust.env().spawner;
        spawner.spawn("internal listener", Box::pin(accepting));
        Ok(Self { shared, address })
    }

    /// The address, with the port that the system chose if it was to choose one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what serves a protocol from the next connection on.
    pub fn handle(&self, protocol: Protocol, handler: Arc<dyn Handler>) {
        self.shared.handlers.write()[protocol.index()] = Some(handler);
    }

    /// Refuses a protocol from now on, as before it had a handler.
    pub fn unhandle(&self, protocol: Protocol) {
        self.shared.handlers.write()[protocol.index()] = None;
    }

    /// Sets from which addresses nodes are to connect. What others do there does not hold them up.
    pub fn set_addresses(&self, addresses: BTreeSet<IpAddr>) {
        let addresses = addresses.iter().map(IpAddr::to_canonical).collect();
        self.shared.known.write().addresses = addresses;
    }

    /// Sets which nodes may connect. Connections of others end. Before that every node with a certificate may.
    pub fn set_nodes(&self, nodes: BTreeSet<NodeId>) {
        let mut known = self.shared.known.write();
        known.seen.retain(|node, _| nodes.contains(node));
        drop(known);
        self.shared.nodes.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&nodes);
            if is_new {
                *known = Some(Arc::new(nodes));
            }
            is_new
        });
    }

    /// Connections that are being served now.
    pub fn connection_count(&self) -> usize {
        let settings = &self.shared.settings;
        let used = |semaphore: &Semaphore, max: usize| max - semaphore.available_permits().min(max);
        used(&self.shared.connections, settings.connection_count_max)
            + used(&self.shared.joins, settings.join_count_max)
    }

    /// Accepts no more, ends all connections, and waits until they have.
    pub async fn close(&self) {
        self.shared.stop.send_replace(true);
        self.shared.stop.closed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
    }
}

/// Whether a node is of the cluster, as far as that is known.
fn is_of(nodes: Option<&BTreeSet<NodeId>>, node: NodeId) -> bool {
    nodes.is_none_or(|nodes| nodes.contains(&node))
}

/// A connection that is to be served.
struct Admitted {
    handler: Arc<dyn Handler>,
    peer: PeerIdentity,
    stream: NodeStream,
    _permit: OwnedSemaphorePermit,
}

impl ListenerCore {
    async fn accept_all(self: Arc<Self>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let stopped = stop.wait_for(|stop| *stop);
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((tcp, address)) => self.begin(tcp, address),
                    Err(error) => {
                        if let Some(more) = self.accept_errors.admitted() {
                            tracing::warn!(more, "accepting connections of nodes: {error}");
                        }
                        self.trust.env().clock.sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        };
        select(pin!(accepting), pin!(stopped)).await;
    }

    fn begin(self: &Arc<Self>, tcp: TcpStream, address: SocketAddr) {
        let is_known = self.known.read().has(address.ip());
        let counted = match is_known {
            true => &self.neighbours,
            false => &self.strangers,
        };
        let Some(stranger) = Strangers::admit(counted, address.ip()) else {
            let reason = "it has too many that are not known yet";
            return self.refusals.refused(address, "a connection", &reason);
        };
        let half = (!is_known).then(|| Halves::begin(&self.halves));
        let mut stop = self.stop.subscribe();
        let shared = Arc::clone(self);
        let task = async move {
            let stopped = stop.wait_for(|stop| *stop);
            let serving = shared.serve(tcp, address, half, stranger);
            select(pin!(serving), pin!(stopped)).await;
        };
        self.trust
            .env()
            .spawner
            .spawn("internal connection", Box::pin(task));
    }

    async fn serve(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        half: Option<Half>,
        stranger: Stranger,
    ) {
        let clock = &*self.trust.env().clock;
        let deadline = self.settings.handshake_deadline;
        let makes_way = async {
            match &half {
                Some(half) => half.makes_way.notified().await,
                None => std::future::pending().await,
            }
        };
        let admitting = in_time(clock, deadline, self.admit(tcp, address));
        let admitted = match select(pin!(admitting), pin!(makes_way)).await {
            Either::Left((admitted, _)) => admitted,
            Either::Right(_) => {
                let reason = "its handshake was the oldest of too many";
                return self.refusals.refused(address, "a connection", &reason);
            }
        };
        let admitted = match admitted {
            Some(Ok(admitted)) => admitted,
            Some(Err(reason)) => {
                return self.refusals.refused(address, "a connection", &reason);
            }
            None => {
                let reason = "its handshake took too long";
                return self.refusals.refused(address, "a connection", &reason);
            }
        };
        drop(half);
        // A client without a certificate stays unauthorized.
        let stranger = admitted.peer.node.is_none().then_some(stranger);
        let Admitted {
            handler,
            peer,
            stream,
            _permit,
        } = admitted;
        match peer.node {
            None => handler.serve(peer, stream).await,
            Some(node) => {
                self.known.write().saw(node, address.ip());
                let mut nodes = self.nodes.subscribe();
                let removed = nodes.wait_for(|nodes| !is_of(nodes.as_deref(), node));
                let serving = handler.serve(peer, stream);
                select(serving, pin!(removed)).await;
            }
        }
        drop(stranger);
    }

    /// The handshake, and what decides whether the connection is served.
    async fn admit(&self, tcp: TcpStream, address: SocketAddr) -> Result<Admitted, String> {
        let told = |error: io::Error| explain(&error, None);
        let carrier = carrier(tcp).map_err(told)?;
        let start = LazyConfigAcceptor::new(Acceptor::default(), carrier)
            .await
            .map_err(told)?;
        let (mut joins, mut is_known) = (false, false);
        for name in start.client_hello().alpn().into_iter().flatten() {
            match Protocol::agreed(name).map(|(protocol, _)| protocol) {
                Some(Protocol::Join) => joins = true,
                Some(_) => is_known = true,
                None => {}
            }
        }
        let live = self.trust.live();
        // Who asks for both has to show a certificate.
        let config = match joins && !is_known {
            true => &live.joining,
            false => &live.members,
        };
        let stream = start.into_stream(Arc::clone(config)).await.map_err(told)?;
        let (_, connection) = stream.get_ref();
        let (protocol, is_clear) = connection
            .alpn_protocol()
            .and_then(Protocol::agreed)
            .ok_or("it does not say what it speaks")?;
        let certificates = connection.peer_certificates().unwrap_or_default();
        let node = match (protocol.needs_certificate(), certificates.first()) {
            (false, _) => None,
            (true, None) => return Err("it has no certificate".to_owned()),
            (true, Some(certificate)) => {
                let parsed = Parsed::of(certificate).map_err(|error| error.to_string())?;
                let (node, cluster) = parsed.node().ok_or("its certificate names no node")?;
                if cluster != self.trust.cluster() {
                    return Err("its certificate names another cluster".to_owned());
                }
                Some(node)
            }
        };
        let mut stream = NodeStream::encrypted(stream);
        let permits = match protocol.needs_certificate() {
            true => &self.connections,
            false => &self.joins,
        };
        let permit = Arc::clone(permits).try_acquire_owned();
        let is_member = node.is_none_or(|node| is_of(self.nodes.borrow().as_deref(), node));
        let handler = self.handlers.read()[protocol.index()].clone();
        let refused = match (permit, handler) {
            _ if !is_member => NOT_LISTED,
            (Ok(permit), Some(handler)) => {
                welcome(&mut stream).await.map_err(told)?;
                if is_clear {
                    stream = clear_listener(stream).await.map_err(told)?;
                }
                return Ok(Admitted {
                    handler,
                    peer: PeerIdentity { node, address },
                    stream,
                    _permit: permit,
                });
            }
            (Err(_), _) => "it has as many connections as it may; try again later",
            (Ok(_), None) => "it does not serve this yet; try again later",
        };
        refuse(&mut stream, refused).await.map_err(told)?;
        Err(format!("{protocol}: {refused}"))
    }
}

/// Where nodes connect from.
#[derive(Default)]
struct NodeAddresses {
    /// As the map has it.
    addresses: BTreeSet<IpAddr>,
    /// Where each was when it showed its certificate last: the map may have a name, or a machine several addresses.
    seen: BTreeMap<NodeId, IpAddr>,
}

impl NodeAddresses {
    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.addresses.contains(&address) || self.seen.values().any(|seen| *seen == address)
    }

    fn saw(&mut self, node: NodeId, address: IpAddr) {
        self.seen.insert(node, address.to_canonical());
    }
}

/// Handshakes of unauthorized clients that have begun and not ended, by the order in which they began.
struct Halves {
    count_max: usize,
    begun: Mutex<Begun>,
}

#[derive(Default)]
struct Begun {
    next: u64,
    halves: BTreeMap<u64, Arc<Notify>>,
}

/// One of them; it is none any more when this is dropped.
struct Half {
    halves: Arc<Halves>,
    number: u64,
    makes_way: Arc<Notify>,
}

impl Halves {
    /// Begins one, for which the oldest makes way if there are too many.
    fn begin(halves: &Arc<Self>) -> Half {
        let makes_way = Arc::new(Notify::new());
        let mut begun = halves.begun.lock();
        let number = begun.next;
        begun.next += 1;
        begun.halves.insert(number, Arc::clone(&makes_way));
        if begun.halves.len() > halves.count_max
            && let Some((_, oldest)) = begun.halves.pop_first()
        {
            oldest.notify_one();
        }
        drop(begun);
        Half {
            halves: Arc::clone(halves),
            number,
            makes_way,
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.halves.begun.lock().halves.remove(&self.number);
    }
}

/// Those of whom nothing is known yet, by address.
struct Strangers {
    count_max: usize,
    /// Addresses that count as one.
    of: fn(IpAddr) -> IpAddr,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One of them; it is none any more when this is dropped.
struct Stranger {
    strangers: Arc<Strangers>,
    address: IpAddr,
}

impl Strangers {
    fn new(count_max: usize, of: fn(IpAddr) -> IpAddr) -> Arc<Self> {
        Arc::new(Self {
            count_max,
            of,
            counts: Mutex::default(),
        })
    }

    fn admit(strangers: &Arc<Self>, address: IpAddr) -> Option<Stranger> {
        let address = (strangers.of)(address);
        let mut counts = strangers.counts.lock();
        let count = counts.entry(address).or_default();
        // A limit of 0 would leave an entry behind; it admits nobody, so there is nobody to attack.
        (*count < strangers.count_max).then(|| {
            *count += 1;
            Stranger {
                strangers: Arc::clone(strangers),
                address,
            }
        })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.strangers.counts.lock().entry(self.address) {
            *entry.get_mut() = entry.get().saturating_sub(1);
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & IPV6_PREFIX).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_half_handshake_makes_way() {
        let halves = Arc::new(Halves {
            count_max: 2,
            begun: Mutex::default(),
        });
        let begin = || Halves::begin(&halves);
        let makes_way = |half: &Half| half.makes_way.notified().now_or_never().is_some();
        let (first, second) = (begin(), begin());
        assert!(!makes_way(&first) && !makes_way(&second));
        let third = begin();
        assert!(makes_way(&first) && !makes_way(&second) && !makes_way(&third));
        drop(second);
        let fourth = begin();
        assert!(!makes_way(&third) && !makes_way(&fourth));
        drop((first, third, fourth));
        assert!(halves.begun.lock().halves.is_empty());
    }

    #[test]
    fn nodes_are_known_by_the_map_and_by_where_they_were_seen() {
        let mut known = NodeAddresses::default();
        let of = |address: &str| address.parse::<IpAddr>().unwrap();
        known.addresses.insert(of("10.0.0.1"));
        known.saw(NodeId(2), of("::ffff:10.0.0.2"));
        for (address, want) in [
            ("10.0.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("10.0.0.2", true),
            ("10.0.0.3", false),
        ] {
            assert_eq!(known.has(of(address)), want, "{address}");
        }
        // It has moved.
        known.saw(NodeId(2), of("10.0.0.3"));
        assert!(!known.has(of("10.0.0.2")) && known.has(of("10.0.0.3")));
    }

    #[test]
    fn strangers_are_counted_by_address_and_forgotten() {
        let strangers = Strangers::new(2, network_of);
        let admit = |address: &str| Strangers::admit(&strangers, address.parse().unwrap());
        let first = admit("10.0.0.1").expect("the first");
        // That address as another family has it.
        let second = admit("::ffff:10.0.0.1").expect("the second");
        assert!(admit("10.0.0.1").is_none());
        let other = admit("10.0.0.2").expect("another address");
        let near = admit("fd00::1").expect("another family");
        let nearer = admit("fd00::2").expect("the second of the network");
        assert!(admit("fd00::3").is_none());
        assert!(admit("fd00:0:0:1::1").is_some());
        drop(first);
        let again = admit("10.0.0.1").expect("one has gone");
        drop((second, other, near, nearer, again));
        assert!(strangers.counts.lock().is_empty());
    }
}
