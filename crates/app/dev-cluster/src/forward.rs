//! Ports of the loopback address that lead to nodes, for clients on this machine and in VMs on it.
//!
//! One port for each server of each node; and one that leads to whichever node serves, as an address would that follows
//! the owner of a volume: connections to a node that serves no more are reset.
//!
//! Owns: connections from here to nodes, and which node serves. Must not know: what goes through.

use std::io::{Error as IoError, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_nfs_client::{Client, ClientSettings, NfsUrl};
use socket2::SockRef;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::commands::FIRST_VOLUME;

/// Connections at a time through one port; others wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
const BUFFER_LEN_BYTES: usize = 256 << 10;
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long a client is held while nobody serves, and how often it is tried meanwhile.
const HOLD_MAX: Duration = Duration::from_secs(60);
const REACH_PAUSE: Duration = Duration::from_millis(100);
/// How often the node that serves is asked, and how long it has to answer.
const ASK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// After a failure of `accept`, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections go; none while nobody serves.
pub type Target = watch::Receiver<Option<SocketAddr>>;

/// What a client gets while nobody can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// A reset: what a machine whose server does not run answers.
    Reset,
    /// Nothing, for some time: what an address that nobody has answers.
    Hold,
}

/// Listens until the task is dropped.
pub async fn forward(listener: TcpListener, target: Target, unreached: Unreached) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((client, _)) => {
                let target = target.clone();
                connections.spawn(async move {
                    connect(client, target, unreached).await;
                    drop(place);
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// One connection. Whatever ends it but its two ends resets it for the client, who then connects again.
async fn connect(mut client: TcpStream, mut target: Target, unreached: Unreached) {
    let reached = match unreached {
        Unreached::Reset => reach(&mut target).await,
        Unreached::Hold => timeout(HOLD_MAX, reach_some_time(&mut target)).await.ok(),
    };
    let Some((address, mut server)) = reached else {
        reset(&client);
        return;
    };
    let carried = tokio::select! {
        carried = carry(&mut client, &mut server) => carried,
        _ = target.wait_for(|now| *now != Some(address)) => Err(IoError::from(ErrorKind::ConnectionReset)),
    };
    if carried.is_err() {
        reset(&client);
    }
}

/// A connection to the present target, if there is one and it can be reached.
async fn reach(target: &mut Target) -> Option<(SocketAddr, TcpStream)> {
    let address = (*target.borrow_and_update())?;
    let connected = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
    Some((address, connected.ok()?.ok()?))
}

async fn reach_some_time(target: &mut Target) -> (SocketAddr, TcpStream) {
    loop {
        let mut changes = target.clone();
        changes.mark_unchanged();
        let reached = tokio::select! {
            reached = reach(target) => reached,
            _ = changes.changed() => None,
        };
        match reached {
            Some(reached) => return reached,
            None => sleep(REACH_PAUSE).await,
        }
    }
}

/// The socket is closed with a reset instead of a farewell.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

async fn carry(client: &mut TcpStream, server: &mut TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional_with_sizes(client, server, BUFFER_LEN_BYTES, BUFFER_LEN_BYTES)
        .await
        .map(drop)
}

/// Keeps `serving` the NFS address of a node that serves the first volume; stays with one for as long as it does.
pub async fn follow(
    nodes: impl Fn() -> Vec<SocketAddr>,
    serving: watch::Sender<Option<SocketAddr>>,
) {
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let current = *serving.borrow();
        let still = match current {
            Some(address) => serves(address).await,
            None => false,
        };
        if still {
            continue;
        }
        // The first that answers. Without any, clients stay where they are: it may only be slow.
        let mut asked = JoinSet::new();
        for address in nodes() {
            asked.spawn(async move { serves(address).await.then_some(address) });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some(address)) = answer {
                serving.send_if_modified(|now| now.replace(address) != Some(address));
                break;
            }
        }
    }
}

/// Whether a node tells the attributes of the first volume's root, in time.
pub async fn serves(address: SocketAddr) -> bool {
    let (ip, port) = (address.ip(), address.port());
    let Ok(url) = format!("nfs://{ip}:{port}/{FIRST_VOLUME}").parse::<NfsUrl>() else {
        return false;
    };
    let asked = async {
        let client = Client::connect(&url, ClientSettings::default()).await?;
        client.get_attr(client.root()).await
    };
    matches!(timeout(ANSWER_MAX, asked).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers each connection with its own name, and then whatever it is sent.
    async fn server(name: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    stream.write_all(name.as_bytes()).await.unwrap();
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn read(stream: &mut TcpStream, len_bytes: usize) -> std::io::Result<String> {
        let mut bytes = vec![0; len_bytes];
        stream.read_exact(&mut bytes).await?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[tokio::test]
    async fn connections_lead_to_the_target_and_are_reset_when_it_changes() {
        let (one, two) = (server("one").await, server("two").await);
        let (target, seen) = watch::channel(None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap();
        tokio::spawn(forward(listener, seen, Unreached::Reset));

        let mut early = TcpStream::connect(port).await.unwrap();
        let refused = read(&mut early, 3).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "nobody serves");

        target.send_replace(Some(one));
        let mut first = TcpStream::connect(port).await.unwrap();
        assert_eq!(read(&mut first, 3).await.unwrap(), "one");
        first.write_all(b"echo").await.unwrap();
        assert_eq!(read(&mut first, 4).await.unwrap(), "echo");

        target.send_replace(Some(two));
        let cut = read(&mut first, 1).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
        let mut second = TcpStream::connect(port).await.unwrap();
        assert_eq!(read(&mut second, 3).await.unwrap(), "two");
        // What one end has sent before it closed arrives.
        second.write_all(b"end").await.unwrap();
        second.shutdown().await.unwrap();
        let mut rest = String::new();
        second.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "end");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_resets_its_client() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        let (_target, seen) = watch::channel(Some(address));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap();
        tokio::spawn(forward(listener, seen, Unreached::Reset));
        let mut client = TcpStream::connect(port).await.unwrap();
        let cut = read(&mut client, 1).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
        assert!(!serves(address).await);
    }

    #[tokio::test]
    async fn a_client_is_held_until_somebody_serves() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        let (target, seen) = watch::channel(None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap();
        tokio::spawn(forward(listener, seen, Unreached::Hold));
        let mut client = TcpStream::connect(port).await.unwrap();
        target.send_replace(Some(address));
        let one = server("one").await;
        target.send_replace(Some(one));
        assert_eq!(read(&mut client, 3).await.unwrap(), "one");
    }
}
