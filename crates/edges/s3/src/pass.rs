//! Requests for volumes that another node has: every node answers for all of them.
//!
//! Owns: which node has the volume of an access key or a bucket, what nodes ask one another about that, passing requests on.
//! Must not know: how nodes reach one another ([`Nodes`]), what a request does, whether its signature is right.
//!
//! A request is passed on as it came, headers and all, so that its signature is good at the owner, which looks at it as if
//! the client had come there. Bodies stream through: nothing of an object is kept here. Each connection of a client has
//! one stream to the owner that it talks to. While a volume is taken over its requests wait for some seconds. Then, and
//! whenever it is not known what became of a request with a body, the answer is 503, after which clients try again.
//!
//! Between nodes: a question is a frame, and so is its answer; after the answer to [`Ask::Serve`] HTTP/1.1 follows. A frame
//! is its length in bytes, four of them, big-endian, and JSON.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use futures_util::future::join_all;
use http::header::{AUTHORIZATION, CONNECTION, HeaderName, UPGRADE};
use http::{HeaderMap, Request, StatusCode};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::{Body, HttpResponse};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::audit::key_of;
use crate::server::Shared;

/// The longest frame: a key or the name of a bucket, and the volumes of a node.
const FRAME_LEN_BYTES_MAX: usize = 1 << 20;
/// For one question and its answer, the connection to the other node included.
const ASK_MAX: Duration = Duration::from_secs(2);
/// A request waits so long for a volume that is being taken over. Clients wait for a minute.
const HOLD_MAX: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Where a key or a bucket is counts for so long: a bucket can be deleted, and made in another volume.
const KNOWN_MAX: Duration = Duration::from_secs(5);
/// Over so many all are forgotten, and asked for again.
const KNOWN_COUNT_MAX: usize = 4096;
/// Headers that are of one connection and not of a request (RFC 9110, section 7.6.1). `transfer-encoding` follows from
/// the body.
const OF_CONNECTION: [HeaderName; 3] = [CONNECTION, UPGRADE, HeaderName::from_static("keep-alive")];

/// A stream between two nodes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// The nodes of the cluster.
pub trait Nodes: Send + Sync + 'static {
    fn own(&self) -> NodeId;
    /// All volumes, and who owns each as far as this node knows.
    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)>;
    /// Ready when the node owns the volume no more.
    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()>;
    /// A stream to what [`crate::Passed::serve`] serves on another node.
    fn connect(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>>;
}

/// What a request names that is of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Named {
    Key(String),
    /// Of a request without a key.
    Bucket(String),
}

/// What a node asks another.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// Answered with [`Found`].
    Find {
        named: Named,
        /// What the node owns, as whoever asks has it: it may have one of them no more, or not yet.
        volumes: Vec<VolumeId>,
    },
    /// Whether the volumes of the node have a bucket or a key. Answered with that.
    IsUsed,
    /// Answered with whether that is done.
    Serve {
        volume: VolumeId,
        client: SocketAddr,
    },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    pub volume: Option<VolumeId>,
    /// All volumes that were asked about are served, and read.
    pub is_sure: bool,
}

fn bad(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

pub(crate) async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    value: &impl Serialize,
) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(bad)?;
    let len = u32::try_from(text.len()).map_err(bad)?;
    to.write_all(&len.to_be_bytes()).await?;
    to.write_all(&text).await?;
    to.flush().await
}

pub(crate) async fn read_frame<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let len = from.read_u32().await? as usize;
    if len > FRAME_LEN_BYTES_MAX {
        return Err(bad("a frame that is too long"));
    }
    let mut text = vec![0; len];
    from.read_exact(&mut text).await?;
    serde_json::from_slice(&text).map_err(bad)
}

/// The question of another node, which has to come in time.
pub(crate) async fn read_question(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Ask> {
    let read = timeout(ASK_MAX, read_frame(from)).await;
    read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn ask<T: DeserializeOwned>(
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
        tracing::debug!(%node, %error, "a node does not answer about its objects");
    }
    asked
}

/// Whether any other node's volumes have a bucket or a key, as far as those say.
pub async fn is_used_elsewhere(nodes: &Arc<dyn Nodes>) -> bool {
    let own = nodes.own();
    let owners: BTreeSet<NodeId> = nodes
        .owners()
        .iter()
        .filter_map(|(_, owner)| *owner)
        .collect();
    let others = owners.into_iter().filter(|owner| *owner != own);
    let answers = others.map(|node| async move { ask::<bool>(nodes, node, &Ask::IsUsed).await });
    let answers = join_all(answers).await;
    answers
        .into_iter()
        .any(|answer| answer.is_ok_and(|(is_used, _)| is_used))
}

/// Which volume a key or a bucket is in, where that was found out a short while ago.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<Named, (VolumeId, Instant)>>);

impl Known {
    fn volume(&self, named: &Named) -> Option<VolumeId> {
        let known = self.0.lock();
        let (volume, until) = known.get(named)?;
        (*until > Instant::now()).then_some(*volume)
    }

    fn note(&self, named: &Named, volume: VolumeId) {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_COUNT_MAX {
            known.clear();
        }
        known.insert(named.clone(), (volume, Instant::now() + KNOWN_MAX));
    }

    fn forget(&self, named: &Named) {
        self.0.lock().remove(named);
    }
}

impl Named {
    /// What a request names; `None`: nothing that is of one volume.
    fn of(shared: &Shared, request: &Request<Incoming>) -> Option<Self> {
        let headers = request.headers();
        let authorization = headers.get(AUTHORIZATION);
        let authorization = authorization.and_then(|value| value.to_str().ok());
        let key = key_of(authorization, request.uri().query().unwrap_or_default());
        if !key.is_empty() {
            return Some(Self::Key(key));
        }
        let bucket = shared.hosts.bucket_of(headers, request.uri().path());
        bucket.map(Self::Bucket)
    }

    /// Of the volumes that are served here.
    pub fn here(&self, shared: &Shared) -> Option<VolumeId> {
        let stores = &shared.stores;
        match self {
            Self::Key(id) => {
                let (objects, _) = stores.access_key(id)?;
                Some(objects.fs().volume())
            }
            Self::Bucket(name) => Some(stores.bucket(name)?.objects().fs().volume()),
        }
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

async fn locate(shared: &Shared, nodes: &Arc<dyn Nodes>, named: &Named) -> Located {
    let own = nodes.own();
    let is_here = || named.here(shared).is_some();
    let was_here = is_here();
    if was_here && (shared.may_answer)() {
        return Located::Here;
    }
    let owners = nodes.owners();
    if let Some(volume) = shared.known.volume(named) {
        let owner = owners.iter().find(|(id, _)| *id == volume);
        match owner {
            Some((_, Some(owner))) if *owner != own => return Located::On(*owner, volume),
            // It is being taken over, or opened here.
            Some(_) => return Located::Unsure,
            None => {}
        }
    }
    let mut is_sure = shared.stores.is_whole() && !was_here;
    let mut others: BTreeMap<NodeId, Vec<VolumeId>> = BTreeMap::new();
    for (volume, owner) in &owners {
        match owner {
            None => is_sure = false,
            Some(owner) if *owner == own => {
                is_sure &= shared.stores.of_volume(*volume).is_some();
            }
            Some(owner) => others.entry(*owner).or_default().push(*volume),
        }
    }
    let answers = others.into_iter().map(|(node, volumes)| {
        let question = Ask::Find {
            named: named.clone(),
            volumes,
        };
        async move { (node, ask::<Found>(nodes, node, &question).await) }
    });
    for (node, answer) in join_all(answers).await {
        match answer {
            Ok((found, _)) => match found.volume {
                Some(volume) => {
                    shared.known.note(named, volume);
                    return Located::On(node, volume);
                }
                None => is_sure &= found.is_sure,
            },
            Err(_) => is_sure = false,
        }
    }
    // It may have come here meanwhile; and a node without a lease does not know who has what.
    match is_sure && (shared.may_answer)() && !is_here() {
        true => Located::Nowhere,
        false => Located::Unsure,
    }
}

/// One client's stream to an owner.
struct Link {
    owner: NodeId,
    volume: VolumeId,
    requests: SendRequest<Body>,
}

impl Link {
    async fn open(
        nodes: &Arc<dyn Nodes>,
        owner: NodeId,
        volume: VolumeId,
        client: SocketAddr,
    ) -> Option<Self> {
        let question = Ask::Serve { volume, client };
        let (true, stream) = ask::<bool>(nodes, owner, &question).await.ok()? else {
            return None;
        };
        let begun = http1::handshake(TokioIo::new(stream)).await;
        let (requests, connection) = begun.ok()?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%owner, %error, "a stream to the owner of a volume ended");
            }
        });
        Some(Self {
            owner,
            volume,
            requests,
        })
    }
}

/// What one connection of a client has of other nodes.
#[derive(Default)]
pub(crate) struct Links(Mutex<Option<Link>>);

/// What becomes of a request.
pub(crate) enum Routed {
    /// It is for this node.
    Here(Request<Incoming>),
    /// Another node's answer.
    Answered(HttpResponse),
    /// No node has what it names.
    Nowhere(Named),
    /// The volume has no owner that answers, or what became of the request is not known.
    Unavailable,
}

/// Has the request answered by the node that has its volume.
pub(crate) async fn route(
    shared: &Arc<Shared>,
    links: &Links,
    client: SocketAddr,
    request: Request<Incoming>,
) -> Routed {
    let Some(nodes) = &shared.nodes else {
        return Routed::Here(request);
    };
    let Some(named) = Named::of(shared, &request) else {
        return Routed::Here(request);
    };
    let deadline = Instant::now() + HOLD_MAX;
    let is_empty = request.body().is_end_stream();
    let mut request = Some(request);
    // What is sent again and again, if nothing is lost with that.
    let again = request.as_ref().filter(|_| is_empty).map(|request| {
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    });
    loop {
        match locate(shared, nodes, &named).await {
            Located::Here => {
                return match request.take() {
                    Some(request) => Routed::Here(request),
                    // The volume came here while another node was asked.
                    None => Routed::Unavailable,
                };
            }
            Located::Nowhere => return Routed::Nowhere(named),
            Located::Unsure => {}
            Located::On(owner, volume) => {
                let kept = links.0.lock().take();
                let is_fit = |link: &Link| {
                    (link.owner, link.volume) == (owner, volume) && !link.requests.is_closed()
                };
                let link = match kept.filter(is_fit) {
                    Some(link) => Some(link),
                    None => Link::open(nodes, owner, volume, client).await,
                };
                if let Some(link) = link {
                    let next = match (request.take(), &again) {
                        (Some(request), _) => request.map(Body::from),
                        (None, Some(again)) => again.clone().map(|()| Body::empty()),
                        (None, None) => return Routed::Unavailable,
                    };
                    match pass(shared, nodes, link, links, next).await {
                        Ok(response) => {
                            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                                shared.known.forget(&named);
                            }
                            return Routed::Answered(response);
                        }
                        // Nobody knows how much of its body was sent.
                        Err(()) if again.is_none() => return Routed::Unavailable,
                        Err(()) => {}
                    }
                }
            }
        }
        if Instant::now() >= deadline {
            return Routed::Unavailable;
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn drop_of_connection(headers: &mut HeaderMap) {
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

/// Asks the owner; an error if it did not answer, whatever it did.
async fn pass(
    shared: &Arc<Shared>,
    nodes: &Arc<dyn Nodes>,
    mut link: Link,
    links: &Links,
    mut request: Request<Body>,
) -> Result<HttpResponse, ()> {
    drop_of_connection(request.headers_mut());
    let (owner, volume) = (link.owner, link.volume);
    let mut lost = nodes.lost(volume, owner);
    let asking = async {
        link.requests.ready().await?;
        link.requests.send_request(request).await
    };
    let answered = tokio::select! {
        answered = asking => answered,
        () = &mut lost => return Err(()),
    };
    let response = answered.map_err(|error| {
        tracing::debug!(%owner, %volume, %error, "the owner of a volume did not answer a request");
    })?;
    shared.count_passed();
    // The next request comes when this answer is through.
    *links.0.lock() = Some(link);
    let (mut head, body) = response.into_parts();
    drop_of_connection(&mut head.headers);
    let body = Body::http_body_unsync(Passing { body, lost });
    Ok(HttpResponse::from_parts(head, body))
}

/// The body of an answer, for as long as its node has the volume: a node that is lost does not say so.
struct Passing {
    body: Incoming,
    lost: BoxFuture<()>,
}

impl HttpBody for Passing {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match self.lost.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err("the volume has another owner".into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use cairn_activity::Activities;
    use cairn_qos::Shaper;

    use super::*;
    use crate::server::Settings;
    use crate::stores::Stores;

    /// A node alone, of a cluster without volumes.
    struct Alone;

    impl Nodes for Alone {
        fn own(&self) -> NodeId {
            NodeId(1)
        }

        fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
            Vec::new()
        }

        fn lost(&self, _: VolumeId, _: NodeId) -> BoxFuture<()> {
            Box::pin(std::future::pending())
        }

        fn connect(&self, _: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
            Box::pin(async { Err(io::ErrorKind::NotConnected.into()) })
        }
    }

    /// It told clients that their key was unknown, for which they do not try again.
    #[tokio::test]
    async fn a_node_without_a_lease_does_not_say_that_nobody_has_a_key() {
        let env = cairn_testkit::test_env();
        let stores = Stores::new(env.clone(), Shaper::new(&env), Activities::new(&env));
        let has_lease = Arc::new(AtomicBool::new(true));
        let may_answer = {
            let has_lease = has_lease.clone();
            move || has_lease.load(Ordering::Relaxed)
        };
        let nodes: Arc<dyn Nodes> = Arc::new(Alone);
        let settings = Settings::default();
        let shared = Shared::new(stores, settings, Some(nodes.clone()), may_answer);
        let named = Named::Key("AKID".to_owned());
        assert_eq!(locate(&shared, &nodes, &named).await, Located::Nowhere);
        has_lease.store(false, Ordering::Relaxed);
        assert_eq!(locate(&shared, &nodes, &named).await, Located::Unsure);
    }

    #[tokio::test]
    async fn frames_are_read_as_they_are_written_or_refused() {
        let all = [
            Ask::Find {
                named: Named::Key("AKID".to_owned()),
                volumes: vec![VolumeId(1), VolumeId(2)],
            },
            Ask::Find {
                named: Named::Bucket("photos".to_owned()),
                volumes: Vec::new(),
            },
            Ask::IsUsed,
            Ask::Serve {
                volume: VolumeId(7),
                client: "[fe80::1]:4000".parse().unwrap(),
            },
        ];
        for ask in all {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, &ask).await.unwrap();
            assert_eq!(read_frame::<Ask>(&mut &bytes[..]).await.unwrap(), ask);
            for len in 0..bytes.len() {
                let cut = read_frame::<Ask>(&mut &bytes[..len]).await;
                assert!(cut.is_err(), "{len}");
            }
            // A length that nobody sends costs nothing.
            let long = [&[0xff; 4][..], &bytes[4..]].concat();
            assert!(read_frame::<Ask>(&mut &long[..]).await.is_err());
        }
        let other = b"\0\0\0\x0e{\"forget\": {}}";
        assert!(read_frame::<Ask>(&mut &other[..]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn where_a_bucket_is_counts_for_a_while() {
        let known = Known::default();
        let named = Named::Bucket("photos".to_owned());
        known.note(&named, VolumeId(3));
        assert_eq!(known.volume(&named), Some(VolumeId(3)));
        assert_eq!(known.volume(&Named::Key("photos".to_owned())), None);
        tokio::time::advance(KNOWN_MAX).await;
        assert_eq!(known.volume(&named), None);
        known.note(&named, VolumeId(4));
        known.forget(&named);
        assert_eq!(known.volume(&named), None);
        for index in 0..2 * KNOWN_COUNT_MAX {
            known.note(&Named::Key(index.to_string()), VolumeId(1));
        }
        assert!(known.0.lock().len() <= KNOWN_COUNT_MAX);
    }
}
