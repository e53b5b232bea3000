//! Bodies that are read as a whole: XML and JSON.
//!
//! Owns: which requests have one, how long it may be, that it is read only once its sender may do what it asks for, and in memory
//! that is counted. Must not know: what is in it.
//!
//! The crate `s3s` checks signature and access by the head of a request, and reads the body then. So the body that it is given is one
//! that begins to be read when it is asked for.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{Method, Request};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use ring::digest;
use s3s::{Body, S3Error, S3Result, s3_error};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};

use crate::body::{STALL_MAX, wrong_sha256};
use crate::forms::unhex;
use crate::server::Shared;

/// A thousand keys to delete, or ten thousand parts.
pub(crate) const KEYS_LEN_BYTES_MAX: u64 = 8 << 20;
/// A setting of a bucket or an object; what is kept of all of a bucket's is 60 KiB.
const SETTING_LEN_BYTES_MAX: u64 = 1 << 20;
/// Of what has little to say: the region of a new bucket.
const OTHER_LEN_BYTES_MAX: u64 = 64 << 10;
/// The SHA-256 of the body, in hexadecimal digits, or a word.
const SHA256: &str = "x-amz-content-sha256";
/// `POST` to these names keys or parts, and `PUT` of these is a setting.
const POSTED: [&str; 4] = ["delete", "uploadId", "select", "restore"];
const SET: [&str; 21] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "retention",
    "tagging",
    "versioning",
    "website",
];

/// How long the body of a request may be, in bytes; `None`: it is the bytes of an object.
fn len_bytes_max(method: &Method, query: &str, is_object: bool) -> Option<u64> {
    let has = |names: &[&str]| {
        let mut parts = query.split('&').filter_map(|part| part.split('=').next());
        parts.any(|name| names.contains(&name))
    };
    match *method {
        Method::POST if has(&POSTED) => Some(KEYS_LEN_BYTES_MAX),
        Method::PUT if has(&SET) => Some(SETTING_LEN_BYTES_MAX),
        Method::PUT if is_object => None,
        _ => Some(OTHER_LEN_BYTES_MAX),
    }
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    TooLong {
        len_bytes_max: u64,
    },
    TooSlow,
    BrokenOff,
    /// It is not the body that was signed.
    Other,
}

impl Why {
    fn error(self) -> S3Error {
        match self {
            Self::TooLong { len_bytes_max } => s3_error!(
                MaxMessageLengthExceeded,
                "the body of this request has at most {} bytes",
                len_bytes_max
            ),
            Self::TooSlow => s3_error!(RequestTimeout, "the body did not come in time"),
            Self::BrokenOff => s3_error!(IncompleteBody, "the body ended before its length"),
            Self::Other => wrong_sha256(),
        }
    }
}

/// What became of the body of a request.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<OnceLock<Why>>);

impl Watched {
    /// Why the body was not read to its end, if it was not: that comes before what its reader says.
    pub fn error(&self) -> Option<S3Error> {
        self.0.get().map(|why| why.error())
    }
}

/// Bounds the body of a request that is read as a whole. Others have theirs read as it comes.
pub(crate) fn bound(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
) -> S3Result<(Request<Body>, Watched)> {
    let watched = Watched::default();
    let path = request.uri().path().trim_start_matches('/');
    let is_object = match shared.hosts.bucket_of_host(request.headers()) {
        Some(_) => !path.is_empty(),
        None => path.split_once('/').is_some_and(|(_, key)| !key.is_empty()),
    };
    let query = request.uri().query().unwrap_or_default();
    let Some(len_bytes_max) = len_bytes_max(request.method(), query, is_object) else {
        return Ok((request.map(Body::from), watched));
    };
    let told = request.headers().get(CONTENT_LENGTH);
    let told = told.and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > len_bytes_max) {
        return Err(Why::TooLong { len_bytes_max }.error());
    }
    if request.body().is_end_stream() {
        return Ok((request.map(Body::from), watched));
    }
    let signed = request.headers().get(SHA256);
    let signed = signed.and_then(|text| unhex(text.to_str().ok()?));
    let place = Arc::clone(shared);
    let request = request.map(|body| {
        Body::http_body_unsync(Document {
            body,
            len_bytes_max,
            left_bytes: len_bytes_max,
            place: Place::Waiting(Box::pin(async move { place.place().await })),
            ends: None,
            signed: signed.map(Signed::new),
            watched: watched.clone(),
        })
    });
    Ok((request, watched))
}

/// As much memory as an object on its way, for as long as the body is read.
enum Place {
    Waiting(BoxFuture<Option<OwnedSemaphorePermit>>),
    Held(#[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>),
}

/// What the client signed for the body, and what has come of it.
struct Signed {
    wanted: Vec<u8>,
    made: digest::Context,
}

impl Signed {
    fn new(wanted: Vec<u8>) -> Self {
        Self {
            wanted,
            made: digest::Context::new(&digest::SHA256),
        }
    }

    fn is_right(self) -> bool {
        self.made.finish().as_ref() == self.wanted.as_slice()
    }
}

/// A body that is bounded in length and time, from when it is read on.
struct Document<B> {
    body: B,
    len_bytes_max: u64,
    left_bytes: u64,
    place: Place,
    ends: Option<Pin<Box<Sleep>>>,
    /// `None`: no SHA-256 of it was signed, or it was looked at.
    signed: Option<Signed>,
    watched: Watched,
}

type Failed = Box<dyn Error + Send + Sync>;

impl<B> Document<B> {
    fn fail(&self, why: Why) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        // What came first holds.
        let _ = self.watched.0.set(why);
        Poll::Ready(Some(Err(format!("the body of a request: {why:?}").into())))
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Document<B> {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let this = self.get_mut();
        if let Place::Waiting(waiting) = &mut this.place {
            let held = ready!(waiting.as_mut().poll(context));
            this.place = Place::Held(held);
        }
        let ends = this.ends.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(ends.as_mut().poll(context));
                return this.fail(Why::TooSlow);
            }
        };
        match frame {
            None => Poll::Ready(None),
            Some(Err(_)) => this.fail(Why::BrokenOff),
            Some(Ok(frame)) => {
                let len_bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left_bytes) = this.left_bytes.checked_sub(len_bytes) else {
                    return this.fail(Why::TooLong {
                        len_bytes_max: this.len_bytes_max,
                    });
                };
                this.left_bytes = left_bytes;
                if let (Some(signed), Some(data)) = (&mut this.signed, frame.data_ref()) {
                    signed.made.update(data);
                }
                // `s3s` sees it as well, and calls it a mistake of the server.
                let is_last = this.body.is_end_stream();
                let signed = if is_last { this.signed.take() } else { None };
                match signed.is_none_or(Signed::is_right) {
                    true => Poll::Ready(Some(Ok(frame))),
                    false => this.fail(Why::Other),
                }
            }
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
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    #[test]
    fn each_kind_of_body_has_its_bound() {
        for (method, query, is_object, want) in [
            (Method::PUT, "", true, None),
            (Method::PUT, "partNumber=1&uploadId=a", true, None),
            (Method::PUT, "", false, Some(OTHER_LEN_BYTES_MAX)),
            (Method::PUT, "tagging", true, Some(SETTING_LEN_BYTES_MAX)),
            (Method::PUT, "policy=", false, Some(SETTING_LEN_BYTES_MAX)),
            (Method::POST, "delete", false, Some(KEYS_LEN_BYTES_MAX)),
            (Method::POST, "uploadId=a", true, Some(KEYS_LEN_BYTES_MAX)),
            (Method::POST, "uploads", true, Some(OTHER_LEN_BYTES_MAX)),
            (Method::GET, "", true, Some(OTHER_LEN_BYTES_MAX)),
            (Method::DELETE, "tagging", true, Some(OTHER_LEN_BYTES_MAX)),
        ] {
            let got = len_bytes_max(&method, query, is_object);
            assert_eq!(got, want, "{method} {query}");
        }
    }

    fn document<S>(frames: S, len_bytes_max: u64) -> (Document<StreamBody<S>>, Watched) {
        let watched = Watched::default();
        let document = Document {
            body: StreamBody::new(frames),
            len_bytes_max,
            left_bytes: len_bytes_max,
            place: Place::Waiting(Box::pin(async { None })),
            ends: None,
            signed: None,
            watched: watched.clone(),
        };
        (document, watched)
    }

    fn frames() -> Vec<Result<Frame<Bytes>, Infallible>> {
        vec![
            Ok(Frame::data(Bytes::from_static(b"12"))),
            Ok(Frame::data(Bytes::from_static(b"345"))),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_its_bound_and_in_time() {
        let (body, watched) = document(stream::iter(frames()), 5);
        let read = body.collect().await.unwrap();
        assert_eq!(read.to_bytes(), "12345");
        assert_eq!(watched.0.get(), None);

        let (body, watched) = document(stream::iter(frames()), 4);
        assert!(body.collect().await.is_err());
        let want = Why::TooLong { len_bytes_max: 4 };
        assert_eq!(watched.0.get(), Some(&want));

        let silent = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let (body, watched) = document(silent, 4);
        assert!(body.collect().await.is_err());
        assert_eq!(watched.0.get(), Some(&Why::TooSlow));

        let broken = stream::iter([Err::<Frame<Bytes>, _>(std::io::Error::other("gone"))]);
        let (body, watched) = document(broken, 4);
        assert!(body.collect().await.is_err());
        assert_eq!(watched.0.get(), Some(&Why::BrokenOff));
    }

    #[tokio::test]
    async fn a_body_is_the_one_that_was_signed() {
        for (text, want) in [("12345", None), ("12346", Some(&Why::Other))] {
            let watched = Watched::default();
            let sum = digest::digest(&digest::SHA256, text.as_bytes());
            let document = Document {
                body: Full::new(Bytes::from_static(b"12345")),
                len_bytes_max: 5,
                left_bytes: 5,
                place: Place::Waiting(Box::pin(async { None })),
                ends: None,
                signed: Some(Signed::new(sum.as_ref().to_vec())),
                watched: watched.clone(),
            };
            assert_eq!(document.collect().await.is_ok(), want.is_none());
            assert_eq!(watched.0.get(), want);
        }
    }

    /// The place is taken when the body is read, and not for who is refused before.
    #[tokio::test]
    async fn nothing_is_held_before_the_body_is_read() {
        let (mut body, _) = document(stream::iter(frames()), 5);
        assert!(matches!(body.place, Place::Waiting(_)));
        body.frame().await.unwrap().unwrap();
        assert!(matches!(body.place, Place::Held(_)));
    }
}
