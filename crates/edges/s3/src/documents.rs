//! Bodies that are read as a whole: XML and JSON.
//!
//! Owns: which requests have one, its maximum length; it is read only after the sender's rights are checked, and in
//! memory that is counted. Must not know: its contents.
//!
//! The crate `s3s` checks signature and access by the head of a request, and reads the body then. So it gets a body
//! that begins to be read at the first poll.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use cairn_base::env::BoxFuture;
use cairn_forward::network_of;
use http::header::CONTENT_LENGTH;
use http::{Method, Request};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use ring::digest;
use s3s::{Body, S3Error, S3Result, s3_error};
use tokio::time::{Sleep, sleep};

use crate::body::{STALL_MAX, wrong_sha256};
use crate::caller::ClientAddress;
use crate::chunks::{self, Chunks};
use crate::contents;
use crate::forms::unhex;
use crate::operations::{self, At, Row};
use crate::pass::LookupKey;
use crate::places::{self, Holder};
use crate::server::ServerCore;

/// Maximum length of a thousand keys to delete, or of ten thousand parts.
pub(crate) const KEYS_LEN_BYTES_MAX: u64 = 8 << 20;
/// Maximum length of a setting of a bucket or an object; all stored settings of a bucket have at most 60 KiB.
const SETTING_LEN_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of short documents, such as the region of a new bucket.
const OTHER_LEN_BYTES_MAX: u64 = 64 << 10;
/// The SHA-256 of the body, in hexadecimal digits, or a word.
const SHA256: &str = "x-amz-content-sha256";

/// Maximum length of a request's body, in bytes; `None`: it is the bytes of an object. `row` is the operation, if it
/// has a document.
fn len_bytes_max(method: &Method, at: At, row: Option<&Row>) -> Option<u64> {
    match (row, method) {
        // Keys to delete, parts.
        (Some(_), &Method::POST) => Some(KEYS_LEN_BYTES_MAX),
        // A new bucket.
        (Some(row), _) if row.chosen_by.is_empty() => Some(OTHER_LEN_BYTES_MAX),
        (Some(_), _) => Some(SETTING_LEN_BYTES_MAX),
        (None, &Method::PUT) if at == At::Object => None,
        (None, _) => Some(OTHER_LEN_BYTES_MAX),
    }
}

/// The check of a complete body.
type Check = Box<dyn FnOnce(&[u8]) -> S3Result<()> + Send>;

/// The reason why the body of a request was refused, if it was.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<Mutex<Option<S3Error>>>);

impl Watched {
    /// This error takes precedence over that of the body's reader.
    pub fn error(&self) -> Option<S3Error> {
        self.0.lock().take()
    }

    pub(crate) fn fail(&self, error: S3Error) {
        *self.0.lock() = Some(error);
    }
}

fn too_long(len_bytes_max: u64) -> S3Error {
    s3_error!(
        MaxMessageLengthExceeded,
        "the body of this request has at most {} bytes",
        len_bytes_max
    )
}

/// Bounds the body of a request that is read as a whole. Other bodies are streams.
pub(crate) fn bound(
    shared: &Arc<ServerCore>,
    request: Request<Incoming>,
) -> S3Result<(Request<Body>, Watched)> {
    let watched = Watched::default();
    let (uri, headers) = (request.uri(), request.headers());
    let at = shared.hosts.at(headers, uri.path());
    let query = uri.query().unwrap_or_default();
    let row = operations::find(request.method(), at, query, headers);
    let row = row.filter(|row| row.has_document());
    let Some(len_bytes_max) = len_bytes_max(request.method(), at, row) else {
        let request = match chunks::are_in(request.headers()) {
            true => request.map(|body| {
                let chunks = Chunks::new(body, watched.clone());
                Body::http_body_unsync(chunks)
            }),
            false => request.map(Body::from),
        };
        return Ok((request, watched));
    };
    let told = request.headers().get(CONTENT_LENGTH);
    let told = told.and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > len_bytes_max) {
        return Err(too_long(len_bytes_max));
    }
    let signed = request.headers().get(SHA256);
    let signed = signed.and_then(|text| unhex(text.to_str().ok()?));
    let headers = request.headers().clone();
    // `s3s` checks this as well, and reports it as an internal error.
    let check: Check = Box::new(move |bytes: &[u8]| match signed {
        Some(wanted) if digest::digest(&digest::SHA256, bytes).as_ref() != wanted.as_slice() => {
            Err(wrong_sha256())
        }
        _ => row.map_or(Ok(()), |row| contents::check(row, &headers, bytes)),
    });
    if request.body().is_end_stream() {
        check(&[])?;
        return Ok((request.map(Body::from), watched));
    }
    // The signature is checked before the body is read: by then the key is known to be right.
    let address = request.extensions().get::<ClientAddress>();
    let signer = match LookupKey::of(shared, &request) {
        Some(LookupKey::Key(id)) => shared.holder_of(&id),
        _ => None,
    };
    let stranger = || Holder::Address(address.map(|address| network_of(address.0)));
    let holder = signer.unwrap_or_else(stranger);
    let place = Arc::clone(shared);
    let place = BodyMemory::Waiting(Box::pin(async move { place.place(holder).await }));
    let request = request.map(|body| {
        let document = Document::new(body, len_bytes_max, place, check, watched.clone());
        Body::http_body_unsync(document)
    });
    Ok((request, watched))
}

/// As much memory as an object in transfer, while the body is read.
enum BodyMemory {
    Waiting(BoxFuture<Option<places::BufferSlot>>),
    Held(#[expect(dead_code, reason = "held")] Option<places::BufferSlot>),
}

/// A body that arrives as one piece, bounded in length and in time from the first read on.
struct Document<B> {
    body: B,
    len_bytes_max: u64,
    taken: BytesMut,
    place: BodyMemory,
    ends: Option<Pin<Box<Sleep>>>,
    /// `None`: the body has ended.
    check: Option<Check>,
    watched: Watched,
}

type Failed = Box<dyn Error + Send + Sync>;
type Polled = Poll<Option<Result<Frame<Bytes>, Failed>>>;

impl<B> Document<B> {
    fn new(body: B, len_bytes_max: u64, place: BodyMemory, check: Check, watched: Watched) -> Self {
        Self {
            body,
            len_bytes_max,
            taken: BytesMut::new(),
            place,
            ends: None,
            check: Some(check),
            watched,
        }
    }

    fn fail(&mut self, error: S3Error) -> Polled {
        self.check = None;
        let why = format!("the body of a request: {error}");
        self.watched.fail(error);
        Poll::Ready(Some(Err(why.into())))
    }

    /// The body is complete.
    fn end(&mut self) -> Polled {
        let Some(check) = self.check.take() else {
            return Poll::Ready(None);
        };
        let taken = std::mem::take(&mut self.taken).freeze();
        match check(&taken) {
            Ok(()) if taken.is_empty() => Poll::Ready(None),
            Ok(()) => Poll::Ready(Some(Ok(Frame::data(taken)))),
            Err(error) => self.fail(error),
        }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Document<B> {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = self.get_mut();
        if let BodyMemory::Waiting(waiting) = &mut this.place {
            let held = ready!(waiting.as_mut().poll(context));
            this.place = BodyMemory::Held(held);
        }
        while this.check.is_some() {
            let ends = this.ends.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(ends.as_mut().poll(context));
                    let why = "the body did not come in time";
                    return this.fail(s3_error!(RequestTimeout, "{}", why));
                }
            };
            let piece = match frame {
                None => break,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(_)) => {
                    let why = "the body ended before its length";
                    return this.fail(s3_error!(IncompleteBody, "{}", why));
                }
            };
            let len_bytes = this.taken.len() as u64 + piece.len() as u64;
            if len_bytes > this.len_bytes_max {
                return this.fail(too_long(this.len_bytes_max));
            }
            this.taken.extend_from_slice(&piece);
        }
        this.end()
    }

    fn is_end_stream(&self) -> bool {
        self.check.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.check.is_some() && self.taken.is_empty() {
            true => self.body.size_hint(),
            false => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[test]
    fn each_kind_of_body_has_its_bound() {
        let row = |operation: &str| {
            operations::row(operation)
                .ok()
                .filter(|row| row.has_document())
        };
        for (operation, method, at, want) in [
            ("PutObject", Method::PUT, At::Object, None),
            ("UploadPart", Method::PUT, At::Object, None),
            (
                "CreateBucket",
                Method::PUT,
                At::Bucket,
                Some(OTHER_LEN_BYTES_MAX),
            ),
            (
                "PutObjectTagging",
                Method::PUT,
                At::Object,
                Some(SETTING_LEN_BYTES_MAX),
            ),
            (
                "PutBucketPolicy",
                Method::PUT,
                At::Bucket,
                Some(SETTING_LEN_BYTES_MAX),
            ),
            (
                "DeleteObjects",
                Method::POST,
                At::Bucket,
                Some(KEYS_LEN_BYTES_MAX),
            ),
            (
                "CompleteMultipartUpload",
                Method::POST,
                At::Object,
                Some(KEYS_LEN_BYTES_MAX),
            ),
            (
                "CreateMultipartUpload",
                Method::POST,
                At::Object,
                Some(OTHER_LEN_BYTES_MAX),
            ),
            (
                "GetObject",
                Method::GET,
                At::Object,
                Some(OTHER_LEN_BYTES_MAX),
            ),
            (
                "none",
                Method::DELETE,
                At::Service,
                Some(OTHER_LEN_BYTES_MAX),
            ),
        ] {
            assert_eq!(
                len_bytes_max(&method, at, row(operation)),
                want,
                "{operation}"
            );
        }
    }

    /// An encoded name led to a body without limits of length and time.
    #[test]
    fn a_name_of_the_query_is_decoded_before_it_is_looked_up() {
        for (query, operation) in [
            ("delete", "DeleteObjects"),
            ("del%65te", "DeleteObjects"),
            ("%64elete=", "DeleteObjects"),
        ] {
            let none = http::HeaderMap::new();
            let row = operations::find(&Method::POST, At::Bucket, query, &none).unwrap();
            assert_eq!(row.operation, operation, "{query}");
            let row = Some(row).filter(|row| row.has_document());
            let len_bytes_max = len_bytes_max(&Method::POST, At::Bucket, row);
            assert_eq!(len_bytes_max, Some(KEYS_LEN_BYTES_MAX), "{query}");
        }
        for query in ["policy", "p%6flicy", "%61cl", "tagging", "t%61gging"] {
            let none = http::HeaderMap::new();
            let row = operations::find(&Method::PUT, At::Bucket, query, &none).unwrap();
            assert!(row.has_document(), "{query}");
        }
    }

    fn document<B>(body: B, len_bytes_max: u64, want: &'static [u8]) -> (Document<B>, Watched) {
        let watched = Watched::default();
        let place = BodyMemory::Waiting(Box::pin(async { None }));
        let check: Check = Box::new(move |bytes: &[u8]| match bytes == want {
            true => Ok(()),
            false => Err(wrong_sha256()),
        });
        let document = Document::new(body, len_bytes_max, place, check, watched.clone());
        (document, watched)
    }

    fn pieces() -> impl HttpBody<Data = Bytes, Error = Infallible> + Unpin {
        let pieces = [&b"12"[..], b"345"].map(|piece| Ok(Frame::data(Bytes::from_static(piece))));
        StreamBody::new(stream::iter(pieces))
    }

    fn code(watched: &Watched) -> Option<String> {
        watched
            .error()
            .map(|error| error.code().as_str().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_its_bound_and_in_time() {
        let (body, watched) = document(pieces(), 5, b"12345");
        assert_eq!(body.collect().await.unwrap().to_bytes(), "12345");
        assert_eq!(code(&watched), None);

        let (body, watched) = document(pieces(), 4, b"12345");
        assert!(body.collect().await.is_err());
        assert_eq!(code(&watched).as_deref(), Some("MaxMessageLengthExceeded"));
        let (body, watched) = document(pieces(), 5, b"other");
        assert!(body.collect().await.is_err());
        assert_eq!(code(&watched).as_deref(), Some("XAmzContentSHA256Mismatch"));

        let silent = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let (body, watched) = document(StreamBody::new(silent), 4, b"");
        assert!(body.collect().await.is_err());
        assert_eq!(code(&watched).as_deref(), Some("RequestTimeout"));

        let broken = stream::iter([Err::<Frame<Bytes>, _>(std::io::Error::other("gone"))]);
        let (body, watched) = document(StreamBody::new(broken), 4, b"");
        assert!(body.collect().await.is_err());
        assert_eq!(code(&watched).as_deref(), Some("IncompleteBody"));
    }

    /// The place is taken when the body is read, so a refused request takes none.
    #[tokio::test]
    async fn nothing_is_held_before_the_body_is_read() {
        let (mut body, _) = document(pieces(), 5, b"12345");
        assert!(matches!(body.place, BodyMemory::Waiting(_)));
        let whole = body.frame().await.unwrap().unwrap();
        assert_eq!(whole.into_data().unwrap(), "12345");
        assert!(matches!(body.place, BodyMemory::Held(_)) && body.is_end_stream());
        assert!(body.frame().await.is_none());
    }
}
