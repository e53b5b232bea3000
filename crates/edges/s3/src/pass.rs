//! Forwarding of requests: every node answers for the volumes of all nodes.
//!
//! Owns: which node has the volume of an access key or a bucket, the questions of nodes about that, forwarding. Must
//! not know: how nodes reach one another ([`Forward`]), the operation of a request, whether its signature is right.
//!
//! A request is forwarded as it came, with all its headers, so its signature is valid at the owner, which checks it
//! as if the client had connected there. Bodies stream through: this node keeps no part of an object. Each connection
//! of a client has one stream to the owner that it talks to. During a takeover the volume's requests wait, for up to
//! ten seconds. A change that has waited for more than a second is not forwarded any more, nor is a request with a
//! body whose result is unknown. They get a 503, after which clients try again; the response is held until there is
//! an owner again, so that clients with few attempts find one.
//!
//! Between nodes: a question is a frame, and so is its answer; after the answer to [`Ask::Serve`] HTTP/1.1 follows. A
//! frame is its length in bytes, four of them, big-endian, and JSON.

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use cairn_forward::{Admission, Forward, Located, Remembered, Search, Service, locate};
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
use crate::server::ServerCore;

/// The longest frame: a key or the name of a bucket, and the volumes of a node.
const FRAME_LEN_BYTES_MAX: usize = 1 << 20;
/// Time limit of one question and its answer, with the connection to the other node.
const ASK_MAX: Duration = Duration::from_secs(2);
/// Maximum time that a request waits for the takeover of a volume. Clients wait for a minute.
const HOLD_MAX: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Maximum age of a known place of a key or a bucket: a bucket can be deleted, and made in another volume.
const KNOWN_MAX: Duration = Duration::from_secs(5);
const KNOWN_COUNT_MAX: usize = 4096;
/// Headers of one connection and not of a request (RFC 9110, section 7.6.1). `transfer-encoding` follows from the body.
const OF_CONNECTION: [HeaderName; 3] = [CONNECTION, UPGRADE, HeaderName::from_static("keep-alive")];

/// The key or bucket in a request, which belongs to one volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LookupKey {
    Key(String),
    /// Of a request without a key.
    Bucket(String),
}

/// A question of a node to another.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// Answered with [`LocateAnswer`].
    Find {
        named: LookupKey,
        /// The volumes of the asked node, by the asking node's view: it may no longer have one of them, or not yet.
        volumes: Vec<VolumeId>,
    },
    /// Whether the volumes of the node have a bucket or a key. Answered with a boolean.
    IsUsed,
    /// Answered with whether the node will serve it.
    Serve { volume: VolumeId },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocateAnswer {
    pub volume: Option<VolumeId>,
    /// All volumes in the question are served, and read.
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

/// Reads the question of another node, which has to come in time.
pub(crate) async fn read_question(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Ask> {
    let read = timeout(ASK_MAX, read_frame(from)).await;
    read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn ask<T: DeserializeOwned>(
    forward: &Arc<Forward>,
    admission: &Arc<Admission>,
    node: NodeId,
    question: &Ask,
) -> io::Result<(T, Box<dyn cairn_forward::Stream>)> {
    let asking = async {
        let mut stream = forward.connect(node, Service::S3, admission).await?;
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

/// Whether any other node's volumes have a bucket or a key, as far as those nodes know.
pub async fn is_used_elsewhere(forward: &Arc<Forward>) -> bool {
    let Ok(admission) = forward.registry().admit_own().await else {
        return false;
    };
    let owners = forward.nodes().owners();
    let owners: BTreeSet<NodeId> = owners.iter().filter_map(|(_, owner)| *owner).collect();
    let others = owners.into_iter().filter(|owner| *owner != forward.own());
    let admission = &admission;
    let answers =
        others.map(|node| async move { ask::<bool>(forward, admission, node, &Ask::IsUsed).await });
    let answers = join_all(answers).await;
    answers
        .into_iter()
        .any(|answer| answer.is_ok_and(|(is_used, _)| is_used))
}

/// The volumes of recently found keys and buckets.
pub(crate) type Known = Remembered<LookupKey>;

pub(crate) fn known() -> Known {
    Remembered::new(Some(KNOWN_MAX), KNOWN_COUNT_MAX)
}

impl LookupKey {
    /// The key or bucket of a request; `None`: it has neither.
    pub fn of(shared: &ServerCore, request: &Request<Incoming>) -> Option<Self> {
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

    /// The volume, if it is served here.
    pub fn here(&self, shared: &ServerCore) -> Option<VolumeId> {
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

/// The search for the key or bucket of a request.
struct Searched<'a> {
    shared: &'a ServerCore,
    forward: &'a Arc<Forward>,
    admission: &'a Arc<Admission>,
    named: &'a LookupKey,
}

impl Search for Searched<'_> {
    fn is_here(&self) -> bool {
        self.named.here(self.shared).is_some()
    }

    fn is_sure_of_own(&self) -> bool {
        self.shared.stores.is_whole() && (self.shared.may_answer)()
    }

    fn serves(&self, volume: VolumeId) -> bool {
        self.shared.stores.of_volume(volume).is_some()
    }

    fn remembered(&self) -> Option<VolumeId> {
        self.shared.known.volume(self.named, self.forward.now())
    }

    fn remember(&self, volume: VolumeId) {
        let now = self.forward.now();
        self.shared.known.note(self.named.clone(), volume, now);
    }

    async fn ask(
        &self,
        node: NodeId,
        volumes: Vec<VolumeId>,
    ) -> io::Result<cairn_forward::LocateAnswer> {
        let question = Ask::Find {
            named: self.named.clone(),
            volumes,
        };
        let (found, _) = ask::<LocateAnswer>(self.forward, self.admission, node, &question).await?;
        Ok(cairn_forward::LocateAnswer {
            volume: found.volume,
            is_sure: found.is_sure,
        })
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
        forward: &Arc<Forward>,
        admission: &Arc<Admission>,
        owner: NodeId,
        volume: VolumeId,
    ) -> Option<Self> {
        let question = Ask::Serve { volume };
        let (true, stream) = ask::<bool>(forward, admission, owner, &question)
            .await
            .ok()?
        else {
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

/// The stream of one client's connection to another node.
#[derive(Default)]
pub(crate) struct Links(Mutex<Option<Link>>);

/// The result of routing a request.
pub(crate) enum Routed {
    /// It is for this node.
    Here(Request<Incoming>),
    /// Another node's response.
    Answered(HttpResponse),
    /// No node has the key or bucket.
    Nowhere(LookupKey),
    /// No owner of the volume answers, or the result of the request is unknown.
    Unavailable,
}

/// Lets the node that has its volume answer the request.
pub(crate) async fn route(
    shared: &Arc<ServerCore>,
    links: &Links,
    admission: &Arc<Admission>,
    request: Request<Incoming>,
) -> Routed {
    let Some(forward) = &shared.forward else {
        return Routed::Here(request);
    };
    let Some(named) = LookupKey::of(shared, &request) else {
        return Routed::Here(request);
    };
    let is_change = !request.method().is_safe();
    let read_at = forward.now();
    let search = Searched {
        shared,
        forward,
        admission,
        named: &named,
    };
    let deadline = Instant::now() + HOLD_MAX;
    let is_empty = request.body().is_end_stream();
    let mut request = Some(request);
    // A copy for repetitions, if the request has no body.
    let again = request.as_ref().filter(|_| is_empty).map(|request| {
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    });
    loop {
        match locate(&**forward.nodes(), &search).await {
            Located::Here => {
                return match request.take() {
                    Some(request) => Routed::Here(request),
                    // The volume came to this node during the question.
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
                    None => Link::open(forward, admission, owner, volume).await,
                };
                if let Some(link) = link {
                    // The client may have sent it to another node by now.
                    if is_change && !admission.is_fresh(read_at) {
                        return Routed::Unavailable;
                    }
                    let next = match (request.take(), &again) {
                        (Some(request), _) => request.map(Body::from),
                        (None, Some(again)) => again.clone().map(|()| Body::empty()),
                        (None, None) => return Routed::Unavailable,
                    };
                    // For a request with a body, it is unknown how much was sent then. The client gets its response
                    // when there is an owner again.
                    if let Ok(response) = pass(shared, forward, link, links, next).await {
                        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                            shared.known.forget(&named);
                        }
                        return Routed::Answered(response);
                    }
                }
            }
        }
        if Instant::now() >= deadline || !admission.is_live() {
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

/// Forwards to the owner; an error if it did not answer, whatever it did.
async fn pass(
    shared: &Arc<ServerCore>,
    forward: &Forward,
    mut link: Link,
    links: &Links,
    mut request: Request<Body>,
) -> Result<HttpResponse, ()> {
    drop_of_connection(request.headers_mut());
    let (owner, volume) = (link.owner, link.volume);
    let mut lost = forward.nodes().lost(volume, owner);
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
    // The next request comes when this response is complete.
    *links.0.lock() = Some(link);
    let (mut head, body) = response.into_parts();
    drop_of_connection(&mut head.headers);
    let body = Body::http_body_unsync(Passing { body, lost });
    Ok(HttpResponse::from_parts(head, body))
}

/// The body of a response, as long as its node has the volume: a lost node does not end it.
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

    /// A single node, of a cluster without volumes.
    struct Alone;

    impl cairn_forward::Nodes for Alone {
        fn own(&self) -> NodeId {
            NodeId(1)
        }

        fn others(&self) -> Vec<NodeId> {
            Vec::new()
        }

        fn name(&self, node: NodeId) -> String {
            node.to_string()
        }

        fn is_alive(&self, _: NodeId) -> bool {
            true
        }

        fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
            Vec::new()
        }

        fn volume_name(&self, volume: VolumeId) -> String {
            volume.to_string()
        }

        fn lost(&self, _: VolumeId, _: NodeId) -> BoxFuture<()> {
            Box::pin(std::future::pending())
        }

        fn dial(&self, _: NodeId) -> BoxFuture<io::Result<Box<dyn cairn_forward::Stream>>> {
            Box::pin(async { Err(io::ErrorKind::NotConnected.into()) })
        }
    }

    /// It told clients that their key was unknown, after which they do not try again.
    #[tokio::test]
    async fn a_node_without_a_lease_does_not_say_that_nobody_has_a_key() {
        let env = cairn_testkit::test_env();
        let stores = Stores::new(env.clone(), Shaper::new(&env), Activities::new(&env));
        let has_lease = Arc::new(AtomicBool::new(true));
        let may_answer = {
            let has_lease = has_lease.clone();
            move || has_lease.load(Ordering::Relaxed)
        };
        let term = cairn_forward::Term(1);
        let forward = Forward::new(env, Arc::new(Alone), move || Some(term)).unwrap();
        let terms = cairn_forward::MapTerms {
            revision: 1,
            alive: [(NodeId(1), term)].into(),
        };
        forward.learn(terms).await;
        let admission = forward.registry().admit_own().await.unwrap();
        let settings = Settings::default();
        let shared = ServerCore::new(stores, settings, Some(forward.clone()), may_answer);
        let named = LookupKey::Key("AKID".to_owned());
        let search = Searched {
            shared: &shared,
            forward: &forward,
            admission: &admission,
            named: &named,
        };
        assert_eq!(locate(&Alone, &search).await, Located::Nowhere);
        has_lease.store(false, Ordering::Relaxed);
        assert_eq!(locate(&Alone, &search).await, Located::Unsure);
    }

    #[tokio::test]
    async fn frames_are_read_as_they_are_written_or_refused() {
        let all = [
            Ask::Find {
                named: LookupKey::Key("AKID".to_owned()),
                volumes: vec![VolumeId(1), VolumeId(2)],
            },
            Ask::Find {
                named: LookupKey::Bucket("photos".to_owned()),
                volumes: Vec::new(),
            },
            Ask::IsUsed,
            Ask::Serve {
                volume: VolumeId(7),
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
            // A large length without data costs nothing.
            let long = [&[0xff; 4][..], &bytes[4..]].concat();
            assert!(read_frame::<Ask>(&mut &long[..]).await.is_err());
        }
        let other = b"\0\0\0\x0e{\"forget\": {}}";
        assert!(read_frame::<Ask>(&mut &other[..]).await.is_err());
    }
}
