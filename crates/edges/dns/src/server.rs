//! Questions over UDP and TCP.
//!
//! Owns: sockets, how long a client is waited for, which address comes first in an answer.
//! Must not know: where names come from.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::LogLimit;
use cairn_base::env::Env;
use cairn_codec_dns::{Answer, Lookup, Name, Outcome, Request, Transport, answer};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::limit::Limit;

/// Longest question that is read; what is longer is no question of a client's.
const QUESTION_LEN_BYTES_MAX: usize = 1232;
/// Connections at a time; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// Of one client: what leaves places to others. Further ones are closed at once.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 8;
/// A client over TCP has so long for each question, and to take its answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// Questions over one connection.
const QUESTIONS_MAX: usize = 64;
/// After an error of the socket that may last.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The names and their addresses, as the server asks for them.
pub trait Names: Send + Sync + 'static {
    fn lookup(&self, name: &Name) -> Lookup;
}

/// Answers questions until it is dropped by its tasks' runtime.
pub struct DnsServer {
    env: Env,
    names: Arc<dyn Names>,
    limit: Mutex<Limit>,
    /// How often each name's addresses were turned: clients take the first one.
    turns: AtomicUsize,
    clients: Clients,
    questions: IntCounterVec,
    connections_refused: IntCounter,
}

/// How many connections each client has. Clients share a count that one machine can be all of: an IPv6 host has a whole /64.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that is counted, until it is dropped.
struct ClientGuard {
    clients: Clients,
    client: IpAddr,
}

impl Clients {
    /// `None`: the client has as many as it may have.
    fn enter(&self, from: IpAddr) -> Option<ClientGuard> {
        let client = match from.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            v4 => v4,
        };
        let mut counts = self.0.lock();
        let count = counts.entry(client).or_default();
        if *count >= CONNECTIONS_PER_CLIENT_MAX {
            return None;
        }
        *count += 1;
        let clients = self.clone();
        Some(ClientGuard { clients, client })
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut counts = self.clients.0.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

impl DnsServer {
    /// An error: its metrics are registered already.
    pub fn new(
        env: Env,
        names: Arc<dyn Names>,
        registry: &Registry,
    ) -> prometheus::Result<Arc<Self>> {
        let questions = IntCounterVec::new(
            Opts::new(
                "cairn_dns_questions_total",
                "Questions to the DNS responder, by result.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(questions.clone()))?;
        let connections_refused = IntCounter::new(
            "cairn_dns_connections_refused_total",
            "Connections to the DNS responder that were closed because their client had too many.",
        )?;
        registry.register(Box::new(connections_refused.clone()))?;
        Ok(Arc::new(Self {
            limit: Mutex::new(Limit::new(env.entropy.u64())),
            env,
            names,
            turns: AtomicUsize::new(0),
            clients: Clients::default(),
            questions,
            connections_refused,
        }))
    }

    /// Answers what comes over these sockets, for as long as the runtime is there. To be called on a runtime.
    pub fn serve(self: &Arc<Self>, udp: UdpSocket, tcp: TcpListener) {
        let spawner = &self.env.spawner;
        spawner.spawn("dns udp", Box::pin(Arc::clone(self).serve_udp(udp)));
        spawner.spawn("dns tcp", Box::pin(Arc::clone(self).serve_tcp(tcp)));
    }

    async fn serve_udp(self: Arc<Self>, socket: UdpSocket) {
        let mut bytes = [0; QUESTION_LEN_BYTES_MAX];
        loop {
            let (len, from) = match socket.recv_from(&mut bytes).await {
                Ok(received) => received,
                // Of an answer that came back as unreachable, for example.
                Err(error) => {
                    tracing::debug!(%error, "receiving a question of DNS");
                    self.env.clock.sleep(ERROR_PAUSE).await;
                    continue;
                }
            };
            let question = bytes.get(..len).unwrap_or_default();
            let is_limited = self
                .limit
                .lock()
                .is_over(from.ip(), self.env.clock.monotonic());
            let answer = self.answered(Request {
                bytes: question,
                transport: Transport::Udp,
                is_limited,
            });
            if let Some(answer) = answer
                && let Err(error) = socket.send_to(&answer, from).await
            {
                tracing::debug!(%from, %error, "answering a question of DNS");
            }
        }
    }

    async fn serve_tcp(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let errors = LogLimit::default();
        loop {
            // Nobody closes it.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, from)) => {
                    let Some(counted) = self.clients.enter(from.ip()) else {
                        self.connections_refused.inc();
                        continue;
                    };
                    let server = Arc::clone(&self);
                    let serving = async move {
                        if let Err(error) = server.serve_stream(stream).await {
                            tracing::debug!(%from, %error, "a connection of DNS ended");
                        }
                        drop((place, counted));
                    };
                    self.env.spawner.spawn("dns client", Box::pin(serving));
                }
                Err(error) => {
                    if let Some(more) = errors.admitted() {
                        tracing::warn!(%error, more, "accepting a connection of DNS");
                    }
                    self.env.clock.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Source: RFC 7766. Each message has its length before it.
    async fn serve_stream(&self, mut stream: TcpStream) -> io::Result<()> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..QUESTIONS_MAX {
            let reading = read_message(&mut stream);
            let read = timeout(CLIENT_PATIENCE, reading)
                .await
                .map_err(|_| late())?;
            let Some(question) = read? else { return Ok(()) };
            let answer = self.answered(Request {
                bytes: &question,
                transport: Transport::Tcp,
                is_limited: false,
            });
            // A message that is no question ends the connection.
            let Some(answer) = answer else { return Ok(()) };
            let len = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let mut bytes = len.to_be_bytes().to_vec();
            bytes.extend(answer);
            let writing = stream.write_all(&bytes);
            timeout(CLIENT_PATIENCE, writing)
                .await
                .map_err(|_| late())??;
        }
        Ok(())
    }

    fn answered(&self, request: Request<'_>) -> Option<Vec<u8>> {
        let Answer { bytes, outcome } = match answer(request, &|name| self.turned(name)) {
            Some(answer) => answer,
            None => {
                self.count("dropped");
                return None;
            }
        };
        self.count(match outcome {
            Outcome::Answered => "answered",
            Outcome::Empty => "empty",
            Outcome::Failed => "failed",
            Outcome::Refused => "refused",
            Outcome::Malformed => "malformed",
            Outcome::Truncated => "limited",
        });
        Some(bytes)
    }

    fn count(&self, outcome: &str) {
        self.questions.with_label_values(&[outcome]).inc();
    }

    /// Each answer begins with the next address.
    fn turned(&self, name: &Name) -> Lookup {
        match self.names.lookup(name) {
            Lookup::Here(mut addresses) => {
                let turns = self.turns.fetch_add(1, Ordering::Relaxed);
                let first = turns.checked_rem(addresses.len()).unwrap_or(0);
                addresses.rotate_left(first);
                Lookup::Here(addresses)
            }
            found => found,
        }
    }
}

/// `None`: the client has no more questions.
async fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 2];
    if stream.read(&mut len[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut len[1..]).await?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > QUESTION_LEN_BYTES_MAX {
        let why = format!("a question of {len} bytes is too long");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

/// Binds both sockets at one address; port 0 is the same free one for both.
pub fn bind(address: SocketAddr) -> io::Result<(std::net::UdpSocket, std::net::TcpListener)> {
    let tcp = std::net::TcpListener::bind(address)?;
    let udp = std::net::UdpSocket::bind(tcp.local_addr()?)?;
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    Ok((udp, tcp))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use cairn_base::real;

    use super::*;

    struct One;

    impl Names for One {
        fn lookup(&self, name: &Name) -> Lookup {
            match name.as_str() {
                "files.example" => {
                    Lookup::Here([1, 2].map(|it| IpAddr::from([10, 0, 0, it])).to_vec())
                }
                _ => Lookup::Elsewhere,
            }
        }
    }

    const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x05files\x07example\0\0\x01\0\x01";

    fn answers(message: &[u8]) -> u8 {
        assert_eq!(message[..2], QUESTION[..2]);
        message[7]
    }

    #[test]
    fn one_client_takes_few_places() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let cases = [
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"),
        ];
        for (client, same, other) in cases {
            let clients = Clients::default();
            let mut places: Vec<ClientGuard> = (0..CONNECTIONS_PER_CLIENT_MAX)
                .map(|_| clients.enter(at(client)).expect("a place"))
                .collect();
            assert!(clients.enter(at(same)).is_none(), "{client} {same}");
            assert!(clients.enter(at(other)).is_some(), "{client} {other}");
            places.pop();
            assert!(clients.enter(at(same)).is_some(), "{client} {same}");
            places.clear();
            assert!(clients.0.lock().is_empty(), "nothing is kept of who left");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_with_too_many_connections_is_closed_and_answered_on_the_others() {
        let (udp, tcp) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = tcp.local_addr().unwrap();
        let env = real::env(tokio::runtime::Handle::current());
        let server = DnsServer::new(env, Arc::new(One), &Registry::new()).unwrap();
        let (udp, tcp) = (UdpSocket::from_std(udp), TcpListener::from_std(tcp));
        server.serve(udp.unwrap(), tcp.unwrap());
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS_PER_CLIENT_MAX {
            open.push(TcpStream::connect(at).await.unwrap());
        }
        let mut more = TcpStream::connect(at).await.unwrap();
        assert!(
            !matches!(more.read(&mut [0; 1]).await, Ok(1..)),
            "it is closed"
        );
        let len = u16::try_from(QUESTION.len()).unwrap();
        let mut bytes = [0; 512];
        for client in &mut open {
            client
                .write_all(&[&len.to_be_bytes(), QUESTION].concat())
                .await
                .unwrap();
            client.read_exact(&mut bytes[..2]).await.unwrap();
        }
        assert_eq!(server.connections_refused.get(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn questions_are_answered_over_udp_and_tcp() {
        let (udp, tcp) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = tcp.local_addr().unwrap();
        let registry = Registry::new();
        let env = real::env(tokio::runtime::Handle::current());
        let server = DnsServer::new(env, Arc::new(One), &registry).unwrap();
        let (udp, tcp) = (UdpSocket::from_std(udp), TcpListener::from_std(tcp));
        server.serve(udp.unwrap(), tcp.unwrap());

        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(at).await.unwrap();
        let mut bytes = [0; 512];
        let mut firsts = Vec::new();
        for _ in 0..2 {
            client.send(QUESTION).await.unwrap();
            let len = client.recv(&mut bytes).await.unwrap();
            assert_eq!(answers(&bytes[..len]), 2);
            firsts.push(bytes[QUESTION.len() + 15]);
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [1, 2], "each address comes first in its turn");
        // A message that is no question is dropped, and nobody is held up.
        client.send(b"short").await.unwrap();
        client.send(QUESTION).await.unwrap();
        client.recv(&mut bytes).await.unwrap();

        let mut client = TcpStream::connect(at).await.unwrap();
        for _ in 0..2 {
            let len = u16::try_from(QUESTION.len()).unwrap();
            client
                .write_all(&[&len.to_be_bytes(), QUESTION].concat())
                .await
                .unwrap();
            let mut len = [0; 2];
            client.read_exact(&mut len).await.unwrap();
            let len = usize::from(u16::from_be_bytes(len));
            client.read_exact(&mut bytes[..len]).await.unwrap();
            assert_eq!(answers(&bytes[..len]), 2);
        }
        // A question that is too long ends the connection.
        client.write_all(&u16::MAX.to_be_bytes()).await.unwrap();
        assert_eq!(client.read(&mut bytes).await.unwrap(), 0);
        assert_eq!(server.questions.with_label_values(&["answered"]).get(), 5);
        assert_eq!(server.questions.with_label_values(&["dropped"]).get(), 1);
    }
}
