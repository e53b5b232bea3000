//! Targets that another node of the cluster has: any node is a portal of all of them.
//!
//! Owns: which node has a target, what nodes ask one another about targets, passing a connection on.
//! Must not know: how nodes reach one another ([`Forward`]), what comes over a connection after its first login request.
//!
//! A connection is forwarded as a whole, from its first login request: the owner of the volume serves it as if the initiator
//! had come to it, but for the target port group, which is that of the node that the initiator reached. When the volume gets
//! another owner the connection ends, as it does when the owner is lost; the initiator logs in again, through the same portal.
//!
//! Between nodes: a question is a frame, and so is its answer; after the answer to [`Ask::Serve`] the bytes of the connection
//! follow.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use cairn_base::{LogLimit, NodeId, VolumeId};
use cairn_codec_iscsi::{
    Ask, Caller, Elsewhere, Frame, FrameError, KEYS_LEN_BYTES_MAX, Keys, LocateAnswer, Proof,
    Secret, decode_frame, encode_frame, frame_len_bytes, login_status,
};
use cairn_forward::{
    Admission, Forward, Incoming, Located, Remembered, Search, Service, Stream, locate,
};
use cairn_san::{Chap, Initiator};
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::connection::LOGIN_HEADER_LEN_BYTES;
use crate::link::{Entry, FreeLink};
use crate::portal::{Accepted, PortalCore};
use crate::target::Targets;

/// For one question and its answer, the connection to the other node included.
const ASK_MAX: Duration = Duration::from_secs(2);
/// A login waits so long for a volume that is being taken over. Initiators wait for 15 s and more.
const LOGIN_HOLD_MAX: Duration = Duration::from_secs(6);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Names of targets whose volume is known. Over it all are forgotten, and asked for again.
const KNOWN_COUNT_MAX: usize = 4096;
const BUFFER_LEN_BYTES: usize = 256 << 10;

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

/// The nodes of the cluster, as portals of all targets.
pub struct Cluster {
    pub forward: Arc<Forward>,
    portals: Box<dyn Fn() -> Vec<NodePortals> + Send + Sync>,
}

impl Cluster {
    /// `portals` tells of the nodes that serve iSCSI, in order of their groups.
    pub fn new(
        forward: Arc<Forward>,
        portals: impl Fn() -> Vec<NodePortals> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            forward,
            portals: Box::new(portals),
        })
    }

    pub fn portals(&self) -> Vec<NodePortals> {
        (self.portals)()
    }

    pub fn own(&self) -> NodeId {
        self.forward.own()
    }
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
    Initiator {
        chap: chap(proof.chap),
        mutual: proof.mutual.map(chap),
    }
}

async fn ask<T: Frame>(
    cluster: &Cluster,
    admission: &Arc<Admission>,
    node: NodeId,
    question: &Ask,
) -> io::Result<(T, Box<dyn Stream>)> {
    let asking = async {
        let forward = &cluster.forward;
        let mut stream = forward.connect(node, Service::Iscsi, admission).await?;
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
pub(crate) type Known = Remembered<String>;

pub(crate) fn known() -> Known {
    Remembered::new(None, KNOWN_COUNT_MAX)
}

/// The search for a target by its name.
struct Searched<'a> {
    targets: &'a Targets,
    cluster: &'a Cluster,
    admission: &'a Arc<Admission>,
    name: &'a str,
}

impl Search for Searched<'_> {
    fn is_here(&self) -> bool {
        self.targets.named(self.name).is_some()
    }

    fn is_sure_of_own(&self) -> bool {
        !self.targets.is_starting()
    }

    fn serves(&self, volume: VolumeId) -> bool {
        self.targets.of_volume(volume).is_some()
    }

    fn remembered(&self) -> Option<VolumeId> {
        self.targets.known.volume(self.name, Duration::ZERO)
    }

    fn remember(&self, volume: VolumeId) {
        let name = self.name.to_owned();
        self.targets.known.note(name, volume, Duration::ZERO);
    }

    async fn ask(
        &self,
        node: NodeId,
        volumes: Vec<VolumeId>,
    ) -> io::Result<cairn_forward::LocateAnswer> {
        let question = Ask::Find {
            target: self.name.to_owned(),
            volumes,
        };
        let (found, _) = ask::<LocateAnswer>(self.cluster, self.admission, node, &question).await?;
        Ok(cairn_forward::LocateAnswer {
            volume: found.volume,
            is_sure: found.is_sure,
        })
    }
}

/// What this node answers who looks for a target. A volume that it owns and has not opened yet may have it.
fn found(targets: &Targets, name: &str, volumes: &[VolumeId]) -> LocateAnswer {
    let is_read = |volume: &VolumeId| targets.of_volume(*volume).is_some();
    LocateAnswer {
        volume: targets.named(name).map(|target| target.volume),
        is_sure: !targets.is_starting() && volumes.iter().all(is_read),
    }
}

/// Who has not logged in causes as many lines as they like.
static AWAY_LOGGED: LogLimit = LogLimit::new(1);

/// What other nodes have for an initiator. A node that does not answer is left out.
async fn gather(cluster: &Cluster, admission: &Arc<Admission>, initiator: &str) -> Elsewhere {
    let own = cluster.own();
    let owners = cluster.forward.nodes().owners();
    let others: BTreeSet<NodeId> = owners.iter().filter_map(|(_, owner)| *owner).collect();
    let question = Ask::Targets {
        initiator: initiator.to_owned(),
    };
    let answers = others.into_iter().filter(|node| *node != own).map(|node| {
        let question = &question;
        async move {
            let answer = ask::<Elsewhere>(cluster, admission, node, question).await;
            (node, answer)
        }
    });
    let mut all = Elsewhere::default();
    for (node, answer) in join_all(answers).await {
        match answer {
            Ok((more, _)) => {
                all.targets.extend(more.targets);
                all.initiator = all.initiator.or(more.initiator);
            }
            Err(error) => {
                if let Some(more) = AWAY_LOGGED.admitted() {
                    tracing::warn!(%node, %error, more, "discovery does not tell of the targets of a node that does not answer");
                }
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
    /// It goes on here, in this target port group, because no node has the target.
    Nowhere(u16, Elsewhere),
    Refused(u16),
}

/// Where a login goes. `first` is its request, `keys` its text, `local` the address that the initiator reached.
pub(crate) async fn route(
    shared: &PortalCore,
    cluster: &Cluster,
    admission: &Arc<Admission>,
    keys: &Keys,
    local: SocketAddr,
    status_number: u32,
    first: impl Fn() -> Vec<u8>,
) -> Route {
    let targets = &shared.targets;
    let deadline = Instant::now() + LOGIN_HOLD_MAX;
    let is_discovery = keys.get("SessionType") == Some("Discovery");
    loop {
        let own = cluster.own();
        let portals = cluster.portals().into_iter();
        let group = portals
            .filter(|portal| portal.node == own)
            .map(|portal| portal.group)
            .next();
        // Until the map has this node's number nobody can tell its port from another.
        if let Some(group) = group {
            let initiator = keys.get("InitiatorName");
            let elsewhere = async || match initiator {
                Some(initiator) => gather(cluster, admission, initiator).await,
                None => Elsewhere::default(),
            };
            if is_discovery {
                return Route::Here(group, elsewhere().await);
            }
            let Some(target) = keys.get("TargetName") else {
                return Route::Here(group, Elsewhere::default());
            };
            let search = Searched {
                targets,
                cluster,
                admission,
                name: target,
            };
            match locate(&**cluster.forward.nodes(), &search).await {
                Located::Here => return Route::Here(group, Elsewhere::default()),
                // Said only to who proves its name: what other nodes have for that counts.
                Located::Nowhere => return Route::Nowhere(group, elsewhere().await),
                Located::Unsure => {}
                Located::On(owner, volume) => {
                    let caller = Caller {
                        volume,
                        local,
                        group,
                        status_number,
                    };
                    let question = Ask::Serve(caller);
                    let served = ask::<bool>(cluster, admission, owner, &question).await;
                    if let Ok((true, stream)) = served {
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
    shared: &PortalCore,
    cluster: &Cluster,
    admission: &Admission,
    mut client: TcpStream,
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
        pump(&mut client, stream, admission).await
    };
    let mut is_old = false;
    let ended = tokio::select! {
        biased;
        _ = admission.ended() => {
            is_old = true;
            Ok(())
        }
        ended = passing => ended,
        () = cluster.forward.nodes().lost(volume, owner) => Ok(()),
        _ = stop.wait_for(|stops| *stops) => Ok(()),
    };
    shared.passed_count.fetch_sub(1, Ordering::Relaxed);
    if is_old || !admission.is_live() {
        cairn_forward::reset(&client);
    }
    if let Err(error) = ended {
        tracing::debug!(%volume, %owner, %error, "a forwarded connection ended");
    }
}

/// Copies in both directions until either ends.
async fn pump(
    one: impl AsyncRead + AsyncWrite + Unpin,
    other: impl Stream,
    admission: &Admission,
) -> io::Result<()> {
    let (mut from_one, mut to_one) = tokio::io::split(one);
    let (mut from_other, mut to_other) = tokio::io::split(other);
    tokio::select! {
        ended = copy(&mut from_one, &mut to_other, admission) => ended,
        ended = copy(&mut from_other, &mut to_one, admission) => ended,
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    admission: &Admission,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(BUFFER_LEN_BYTES);
    while from.read_buf(&mut buffer).await? > 0 {
        // Between reading and passing on: the process may have stood still before it read.
        if !admission.is_live() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all_buf(&mut buffer).await?;
        to.flush().await?;
        buffer.reserve(BUFFER_LEN_BYTES);
    }
    Ok(())
}

/// Serves what other nodes ask, with the threads of this node's server.
#[derive(Clone)]
pub struct PeerServer {
    pub(crate) shared: Arc<PortalCore>,
    pub(crate) lanes: Vec<mpsc::UnboundedSender<Accepted>>,
    pub(crate) next: Arc<AtomicUsize>,
}

impl PeerServer {
    /// Serves one stream of another node to its end.
    pub async fn serve(&self, incoming: Incoming) {
        let Incoming {
            mut stream,
            admission,
        } = incoming;
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
                let proof = match targets.initiator(&initiator) {
                    Ok(proof) => proof.map(proof_of),
                    // Without an answer the other node tells of no targets that are here.
                    Err(error) => {
                        tracing::debug!(%error, "a node's question about an initiator has no answer");
                        return;
                    }
                };
                let answer = Elsewhere {
                    targets: targets.seen_by(&initiator),
                    initiator: proof,
                };
                write_frame(&mut stream, &answer).await
            }
            Ask::Find { target, volumes } => {
                write_frame(&mut stream, &found(targets, &target, &volumes)).await
            }
            Ask::Serve(caller) => self.take_over(caller, stream, admission).await,
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a stream of another node ended");
        }
    }

    async fn take_over(
        &self,
        caller: Caller,
        mut stream: impl Stream,
        admission: Arc<Admission>,
    ) -> io::Result<()> {
        let is_here = self.shared.targets.of_volume(caller.volume).is_some();
        let client = admission.client();
        let permit = self.shared.permit(client.ip().to_canonical());
        let Some(permit) = permit.filter(|_| is_here) else {
            return write_frame(&mut stream, &false).await;
        };
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let accepted = Accepted {
            link: FreeLink::Passed(far),
            peer: client,
            permit,
            entry: Entry {
                local: caller.local,
                group: Some(caller.group),
                status_number: caller.status_number,
                is_passed: true,
                admission: Some(Arc::clone(&admission)),
            },
            accepting: None,
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
        let near = tokio::net::UnixStream::from_std(near)?;
        tokio::select! {
            biased;
            _ = admission.ended() => Ok(()),
            ended = pump(near, stream, &admission) => ended,
        }
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
            volumes: vec![VolumeId(3), VolumeId(70_000)],
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

    /// Else a login is told that there is no such target, and hosts take that for final.
    #[test]
    fn a_node_that_has_not_opened_a_volume_yet_is_not_sure_of_its_targets() {
        let env = cairn_testkit::test_env();
        let shaper = cairn_qos::Shaper::new(&env);
        let activities = cairn_activity::Activities::new(&env);
        let targets = Targets::new(env, shaper, activities, None);
        let name = "iqn.2025-11.test:target";
        assert!(found(&targets, name, &[]).is_sure);
        assert!(!found(&targets, name, &[VolumeId(3)]).is_sure);
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

    /// What a node alone admits its clients under.
    async fn admission() -> Arc<Admission> {
        let clock = Arc::new(cairn_testkit::ManualClock::default());
        let (node, term) = (NodeId(1), cairn_forward::Term(1));
        let pulse = Arc::new(cairn_forward::Pulse::new(clock));
        let registry = cairn_forward::Registry::new(node, pulse, move || Some(term));
        let terms = cairn_forward::MapTerms {
            revision: 1,
            alive: [(node, term)].into(),
        };
        registry.learn(terms).await;
        registry.admit_own().await.unwrap()
    }

    #[test]
    fn what_is_passed_on_comes_through_in_both_directions() {
        runtime().block_on(async {
            let (mut client, entry) = tokio::io::duplex(64);
            let (exit, mut owner) = tokio::io::duplex(64);
            let admission = admission().await;
            let pumping = tokio::spawn(async move { pump(entry, exit, &admission).await });
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
