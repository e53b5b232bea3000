//! Targets that another node of the cluster has: any node is a portal of all of them.
//!
//! Owns: which node has a target, what nodes ask one another about targets, passing a connection on.
//! Must not know: how nodes reach one another ([`Nodes`]), what comes over a connection after its first login request.
//!
//! A connection is passed on as a whole, from its first login request: the owner of the volume serves it as if the initiator
//! had come to it, but for the target port group, which is that of the node that the initiator reached. When the volume gets
//! another owner the connection ends, as it does when the owner is lost; the initiator logs in again, through the same portal.
//!
//! Between nodes: a question is a frame, and so is its answer; after the answer to [`Ask::Serve`] the bytes of the connection
//! follow.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use cairn_codec_iscsi::{
    Ask, Caller, Elsewhere, Found, Frame, FrameError, KEYS_LEN_BYTES_MAX, Keys, Proof, Secret,
    decode_frame, encode_frame, frame_len_bytes, login_status,
};
use cairn_san::{Chap, Initiator};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::connection::LOGIN_HEADER_LEN_BYTES;
use crate::link::{Entry, FreeLink};
use crate::portal::{Accepted, Shared};
use crate::target::Targets;

/// For one question and its answer, the connection to the other node included.
const ASK_MAX: Duration = Duration::from_secs(2);
/// A login waits so long for a volume that is being taken over. Initiators wait for 15 s and more.
const LOGIN_HOLD_MAX: Duration = Duration::from_secs(6);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Names of targets whose volume is known. Over it all are forgotten, and asked for again.
const KNOWN_COUNT_MAX: usize = 4096;
const BUFFER_LEN_BYTES: usize = 256 << 10;

/// A stream between two nodes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// A node as a portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortals {
    pub node: NodeId,
    /// The number of its target port group: no other node has it.
    pub group: u16,
    pub addresses: Vec<SocketAddr>,
    /// Whether its lease lives.
    pub is_alive: bool,
}

/// The nodes of the cluster.
pub trait Nodes: Send + Sync + 'static {
    fn own(&self) -> NodeId;
    /// Those that serve iSCSI, in order of their groups.
    fn portals(&self) -> Vec<NodePortals>;
    /// All volumes, and who owns each as far as this node knows.
    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)>;
    /// Ready when the node owns the volume no more.
    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()>;
    /// A stream to what [`Passed::serve`] serves on another node.
    fn connect(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>>;
}

async fn write_frame(to: &mut (impl AsyncWrite + Unpin), value: &impl Frame) -> io::Result<()> {
    let frame = encode_frame(value).map_err(bad)?;
    to.write_all(&frame).await?;
    to.flush().await
}

async fn read_frame<T: Frame>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let len = from.read_u32().await?;
    let len = frame_len_bytes(len.to_be_bytes()).map_err(bad)?;
    let mut text = Vec::new();
    from.take(len as u64).read_to_end(&mut text).await?;
    if text.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode_frame(&text).map_err(bad)
}

fn bad(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// What a node tells another of what an initiator has to prove.
fn proof_of(initiator: Initiator) -> Proof {
    let secret = |chap: Chap| Secret {
        user: chap.user,
        secret: chap.secret,
    };
    Proof {
        chap: secret(initiator.chap),
        mutual: initiator.mutual.map(secret),
    }
}

/// What another node was told of that.
pub(crate) fn initiator_of(proof: Proof) -> Initiator {
    let chap = |secret: Secret| Chap {
        user: secret.user,
        secret: secret.secret,
    };
    Initiator::new(chap(proof.chap), proof.mutual.map(chap))
}

async fn ask<T: Frame>(
    nodes: &Arc<dyn Nodes>,
    node: NodeId,
    question: &Ask,
) -> io::Result<(T, Box<dyn Stream>)> {
    let asking = async {
        let mut stream = nodes.connect(node).await?;
        write_frame(&mut stream, question).await?;
        let answer = read_frame(&mut stream).await?;
        Ok((answer, stream))
    };
    let asked = timeout(ASK_MAX, asking).await;
    let asked = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if let Err(error) = &asked {
        tracing::debug!(%node, %error, "a node does not answer about its targets");
    }
    asked
}

/// Which volume a target is of, where that was found out once: that never changes.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<String, VolumeId>>);

impl Known {
    fn volume(&self, target: &str) -> Option<VolumeId> {
        self.0.lock().get(target).copied()
    }

    fn note(&self, target: &str, volume: VolumeId) {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_COUNT_MAX {
            known.clear();
        }
        known.insert(target.to_owned(), volume);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Located {
    Here,
    On(NodeId, VolumeId),
    /// It may be somewhere: a volume has no owner, or a node does not answer.
    Unsure,
    Nowhere,
}

async fn locate(targets: &Targets, nodes: &Arc<dyn Nodes>, name: &str) -> Located {
    if targets.named(name).is_some() {
        return Located::Here;
    }
    let own = nodes.own();
    let owners = nodes.owners();
    if let Some(volume) = targets.known.volume(name) {
        let owner = owners.iter().find(|(id, _)| *id == volume);
        match owner {
            Some((_, Some(owner))) if *owner != own => return Located::On(*owner, volume),
            // It is being taken over, or opened here.
            Some(_) => return Located::Unsure,
            None => {}
        }
    }
    let mut is_sure = !targets.is_starting();
    let mut others = BTreeSet::new();
    for (volume, owner) in &owners {
        match owner {
            None => is_sure = false,
            Some(owner) if *owner == own => is_sure &= targets.of_volume(*volume).is_some(),
            Some(owner) => drop(others.insert(*owner)),
        }
    }
    let question = Ask::Find {
        target: name.to_owned(),
    };
    let answers = others.into_iter().map(|node| {
        let question = &question;
        async move { (node, ask::<Found>(nodes, node, question).await) }
    });
    for (node, answer) in join_all(answers).await {
        match answer {
            Ok((
                Found {
                    volume: Some(volume),
                    ..
                },
                _,
            )) => {
                targets.known.note(name, volume);
                return Located::On(node, volume);
            }
            Ok((found, _)) => is_sure &= found.is_sure,
            Err(_) => is_sure = false,
        }
    }
    match is_sure {
        true => Located::Nowhere,
        false => Located::Unsure,
    }
}

/// What other nodes have for an initiator. A node that does not answer is left out.
async fn gather(nodes: &Arc<dyn Nodes>, initiator: &str) -> Elsewhere {
    let own = nodes.own();
    let owners = nodes.owners();
    let others: BTreeSet<NodeId> = owners.iter().filter_map(|(_, owner)| *owner).collect();
    let question = Ask::Targets {
        initiator: initiator.to_owned(),
    };
    let answers = others.into_iter().filter(|node| *node != own).map(|node| {
        let question = &question;
        async move { (node, ask::<Elsewhere>(nodes, node, question).await) }
    });
    let mut all = Elsewhere::default();
    for (node, answer) in join_all(answers).await {
        match answer {
            Ok((more, _)) => {
                all.targets.extend(more.targets);
                all.initiator = all.initiator.or(more.initiator);
            }
            Err(error) => {
                tracing::warn!(%node, %error, "discovery does not tell of the targets of a node that does not answer");
            }
        }
    }
    all
}

/// A connection whose target another node serves from here on.
pub(crate) struct Handover {
    volume: VolumeId,
    owner: NodeId,
    stream: Box<dyn Stream>,
    first: Vec<u8>,
}

/// What becomes of a login.
pub(crate) enum Route {
    /// It goes on here, in this target port group.
    Here(u16, Elsewhere),
    Away(Handover),
    Refused(u16),
}

/// Where a login goes. `first` is its request, `keys` its text.
pub(crate) async fn route(
    shared: &Shared,
    nodes: &Arc<dyn Nodes>,
    keys: &Keys,
    client: SocketAddr,
    local: SocketAddr,
    status_number: u32,
    first: impl Fn() -> Vec<u8>,
) -> Route {
    let targets = &shared.targets;
    let deadline = Instant::now() + LOGIN_HOLD_MAX;
    let is_discovery = keys.get("SessionType") == Some("Discovery");
    loop {
        let own = nodes.own();
        let portals = nodes.portals().into_iter();
        let group = portals
            .filter(|portal| portal.node == own)
            .map(|portal| portal.group)
            .next();
        // Until the map has this node's number nobody can tell its port from another.
        if let Some(group) = group {
            let target = keys.get("TargetName").filter(|_| !is_discovery);
            let Some(target) = target else {
                let initiator = keys.get("InitiatorName").filter(|_| is_discovery);
                let elsewhere = match initiator {
                    Some(initiator) => gather(nodes, initiator).await,
                    None => Elsewhere::default(),
                };
                return Route::Here(group, elsewhere);
            };
            match locate(targets, nodes, target).await {
                Located::Here => return Route::Here(group, Elsewhere::default()),
                Located::Nowhere => return Route::Refused(login_status::NOT_FOUND),
                Located::Unsure => {}
                Located::On(owner, volume) => {
                    let caller = Caller {
                        volume,
                        client,
                        local,
                        group,
                        status_number,
                    };
                    if let Ok((true, stream)) = ask::<bool>(nodes, owner, &Ask::Serve(caller)).await
                    {
                        return Route::Away(Handover {
                            volume,
                            owner,
                            stream,
                            first: first(),
                        });
                    }
                }
            }
        }
        if Instant::now() >= deadline {
            return Route::Refused(login_status::UNAVAILABLE);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The first login request with all its text in one PDU: `header` is that of the last one.
pub(crate) fn whole_request(header: &[u8; LOGIN_HEADER_LEN_BYTES], text: &[u8]) -> Vec<u8> {
    // A login's text has at most so much, which fits into the field.
    let len = text.len().min(KEYS_LEN_BYTES_MAX);
    let mut pdu = header.to_vec();
    if let Some(field) = pdu.get_mut(5..8) {
        field.copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    }
    pdu.extend_from_slice(&text[..len]);
    pdu.resize(LOGIN_HEADER_LEN_BYTES + len.next_multiple_of(4), 0);
    pdu
}

/// Passes a connection on until either side ends it, or the volume has another owner.
pub(crate) async fn pass(
    shared: &Shared,
    nodes: &Arc<dyn Nodes>,
    client: TcpStream,
    handover: Handover,
    rest: BytesMut,
    mut stop: watch::Receiver<bool>,
) {
    let Handover {
        volume,
        owner,
        mut stream,
        first,
    } = handover;
    shared.passed_count.fetch_add(1, Ordering::Relaxed);
    let passing = async {
        stream.write_all(&first).await?;
        stream.write_all(&rest).await?;
        stream.flush().await?;
        pump(client, stream).await
    };
    let ended = tokio::select! {
        ended = passing => ended,
        () = nodes.lost(volume, owner) => Ok(()),
        _ = stop.wait_for(|stops| *stops) => Ok(()),
    };
    shared.passed_count.fetch_sub(1, Ordering::Relaxed);
    if let Err(error) = ended {
        tracing::debug!(%volume, %owner, %error, "a connection that is passed on ended");
    }
}

/// Copies in both directions until either ends.
async fn pump(one: impl Stream, other: impl Stream) -> io::Result<()> {
    let (mut from_one, mut to_one) = tokio::io::split(one);
    let (mut from_other, mut to_other) = tokio::io::split(other);
    tokio::select! {
        ended = copy(&mut from_one, &mut to_other) => ended,
        ended = copy(&mut from_other, &mut to_one) => ended,
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(BUFFER_LEN_BYTES);
    while from.read_buf(&mut buffer).await? > 0 {
        to.write_all_buf(&mut buffer).await?;
        to.flush().await?;
        buffer.reserve(BUFFER_LEN_BYTES);
    }
    Ok(())
}

/// Serves what other nodes ask, with the threads of this node's server.
#[derive(Clone)]
pub struct Passed {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lanes: Vec<mpsc::UnboundedSender<Accepted>>,
    pub(crate) next: Arc<AtomicUsize>,
}

impl Passed {
    /// Serves one stream of another node to its end.
    pub async fn serve(&self, mut stream: impl Stream) {
        let question = timeout(ASK_MAX, read_frame::<Ask>(&mut stream)).await;
        let question = match question {
            Ok(Ok(question)) => question,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a node's question about targets is refused");
                return;
            }
            Err(_) => return,
        };
        let targets = &self.shared.targets;
        let served = match question {
            Ask::Targets { initiator } => {
                let answer = Elsewhere {
                    targets: targets.seen_by(&initiator),
                    initiator: targets.initiator(&initiator).map(proof_of),
                };
                write_frame(&mut stream, &answer).await
            }
            Ask::Find { target } => {
                let answer = Found {
                    volume: targets.named(&target).map(|target| target.volume),
                    is_sure: !targets.is_starting(),
                };
                write_frame(&mut stream, &answer).await
            }
            Ask::Serve(caller) => self.take_over(caller, stream).await,
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a stream of another node ended");
        }
    }

    async fn take_over(&self, caller: Caller, mut stream: impl Stream) -> io::Result<()> {
        let is_here = self.shared.targets.of_volume(caller.volume).is_some();
        let permit = self.shared.permit(caller.client.ip().to_canonical());
        let Some(permit) = permit.filter(|_| is_here) else {
            return write_frame(&mut stream, &false).await;
        };
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let accepted = Accepted {
            link: FreeLink::Passed(far),
            peer: caller.client,
            permit,
            entry: Entry {
                local: caller.local,
                group: Some(caller.group),
                status_number: caller.status_number,
                is_passed: true,
            },
        };
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len().max(1);
        let sent = self
            .lanes
            .get(next)
            .is_some_and(|lane| lane.send(accepted).is_ok());
        write_frame(&mut stream, &sent).await?;
        if !sent {
            return Ok(());
        }
        pump(tokio::net::UnixStream::from_std(near)?, stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn frames_that_end_early_are_refused() {
        let ask = Ask::Find {
            target: "iqn.2025-11.test:target".to_owned(),
        };
        runtime().block_on(async {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, &ask).await.unwrap();
            assert_eq!(read_frame::<Ask>(&mut &bytes[..]).await.unwrap(), ask);
            for len in 0..bytes.len() {
                assert!(
                    read_frame::<Ask>(&mut &bytes[..len]).await.is_err(),
                    "{len}"
                );
            }
            let long = [&[0xff; 4][..], &bytes[4..]].concat();
            assert!(read_frame::<Ask>(&mut &long[..]).await.is_err());
        });
    }

    #[test]
    fn a_login_in_several_pdus_is_passed_on_as_one() {
        let mut header = [0xaa; LOGIN_HEADER_LEN_BYTES];
        header[4] = 0;
        let pdu = whole_request(&header, b"InitiatorName=a");
        assert_eq!(pdu[..8], [0xaa, 0xaa, 0xaa, 0xaa, 0, 0, 0, 15]);
        assert_eq!(pdu.len(), LOGIN_HEADER_LEN_BYTES + 16);
        assert_eq!(&pdu[LOGIN_HEADER_LEN_BYTES..], b"InitiatorName=a\0");
    }

    #[test]
    fn what_is_passed_on_comes_through_in_both_directions() {
        runtime().block_on(async {
            let (mut client, entry) = tokio::io::duplex(64);
            let (exit, mut owner) = tokio::io::duplex(64);
            let pumping = tokio::spawn(pump(entry, exit));
            let sent: Vec<u8> = (0..5000_u32).map(|index| index as u8).collect();
            let back: Vec<u8> = sent.iter().rev().copied().collect();
            for (from, to, bytes) in [(true, false, &sent), (false, true, &back)] {
                assert_ne!(from, to);
                let mut got = vec![0; bytes.len()];
                let (one, other) = match from {
                    true => (&mut client, &mut owner),
                    false => (&mut owner, &mut client),
                };
                let (written, read) =
                    tokio::join!(one.write_all(bytes), other.read_exact(&mut got));
                written.unwrap();
                read.unwrap();
                assert_eq!(&got, bytes);
            }
            drop(client);
            pumping.await.unwrap().unwrap();
            assert_eq!(owner.read(&mut [0; 8]).await.unwrap(), 0);
        });
    }
}
