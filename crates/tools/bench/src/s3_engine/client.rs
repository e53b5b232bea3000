//! Requests of S3 over HTTP: signed by `rusty_s3`, sent over connections that are kept.
//!
//! Owns: connections, what an answer means. Must not know: the clock, which request comes next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rusty_s3::actions::{ListObjectsV2, ListObjectsV2Response, ObjectIdentifier, S3Action};
use rusty_s3::{Bucket, Credentials};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::url::S3Url;

/// A signature holds so long.
const SIGNED_FOR: Duration = Duration::from_secs(3600);
/// Of the text of an error.
const ERROR_LEN_MAX: usize = 300;

/// Why a request did not succeed.
#[derive(Debug)]
pub enum S3Failed {
    /// The server answered so.
    Refused(StatusCode, String),
    /// It did not answer.
    Lost(String),
}

impl fmt::Display for S3Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status, text) => write!(f, "{status}: {text}"),
            Self::Lost(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for S3Failed {}

impl S3Failed {
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Refused(..))
    }
}

fn lost(error: impl fmt::Display) -> S3Failed {
    S3Failed::Lost(error.to_string())
}

/// Who talks to a bucket. Clones share their connections.
#[derive(Clone)]
pub struct S3Client(Arc<ClientCore>);

struct ClientCore {
    address: String,
    bucket: Bucket,
    credentials: Option<Credentials>,
    reply_timeout: Duration,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// A page of a listing.
pub struct Page {
    pub keys: Vec<String>,
    /// Where the next one begins.
    pub next: Option<String>,
}

impl S3Client {
    pub fn new(url: &S3Url, reply_timeout: Duration) -> Result<Self, S3Failed> {
        Ok(Self(Arc::new(ClientCore {
            address: url.address(),
            bucket: url.bucket().map_err(lost)?,
            credentials: url.credentials(),
            reply_timeout,
            idle: Mutex::default(),
        })))
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, S3Failed> {
        let idle = self.0.idle.lock().pop();
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let address = &self.0.address;
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| lost(format!("connecting to {address}: {error}")))?;
        stream.set_nodelay(true).map_err(lost)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        md5: Option<&str>,
        body: Bytes,
        is_kept: bool,
    ) -> Result<Answer, S3Failed> {
        let sent = async {
            let mut sender = self.connection().await?;
            let path = target.find('/').and_then(|at| target.get(at..));
            let mut request = Request::builder()
                .method(method)
                .uri(path.unwrap_or("/"))
                .header("host", &self.0.address);
            if let Some(md5) = md5 {
                request = request.header("content-md5", md5);
            }
            let request = request.body(Full::new(body)).map_err(lost)?;
            let response = sender.send_request(request).await.map_err(lost)?;
            let status = response.status();
            let mut body = response.into_body();
            let (mut count, mut kept) = (0, Vec::new());
            // The bytes of objects are counted and not kept; pages and errors are small.
            let is_kept = is_kept || !status.is_success();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(lost)?.into_data() {
                    count += data.len() as u64;
                    if is_kept {
                        kept.extend_from_slice(&data);
                    }
                }
            }
            self.0.idle.lock().push(sender);
            let text = String::from_utf8_lossy(&kept).into_owned();
            match status.is_success() {
                true => Ok(Answer { count, text }),
                false => {
                    let short = text.chars().take(ERROR_LEN_MAX).collect();
                    Err(S3Failed::Refused(status, short))
                }
            }
        };
        let sent = timeout(self.0.reply_timeout, sent).await;
        sent.map_err(|_| lost("the server did not answer in time"))?
    }

    fn signed<'a>(&'a self, action: impl S3Action<'a>) -> String {
        let url = action.sign(SIGNED_FOR);
        let text = url.as_str();
        text.strip_prefix("http://").unwrap_or(text).to_owned()
    }

    fn who(&self) -> Option<&Credentials> {
        self.0.credentials.as_ref()
    }

    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), S3Failed> {
        let url = self.signed(self.0.bucket.put_object(self.who(), key));
        let sent = self.send(Method::PUT, &url, None, body, false);
        sent.await.map(drop)
    }

    /// Reads an object; returns how many bytes it has.
    pub async fn get(&self, key: &str) -> Result<u64, S3Failed> {
        let url = self.signed(self.0.bucket.get_object(self.who(), key));
        let sent = self.send(Method::GET, &url, None, Bytes::new(), false);
        Ok(sent.await?.count)
    }

    pub async fn delete(&self, key: &str) -> Result<(), S3Failed> {
        let url = self.signed(self.0.bucket.delete_object(self.who(), key));
        let sent = self.send(Method::DELETE, &url, None, Bytes::new(), false);
        sent.await.map(drop)
    }

    /// Deletes up to 1,000 objects in one request.
    pub async fn delete_many(&self, keys: &[String]) -> Result<(), S3Failed> {
        let objects = keys.iter().cloned().map(ObjectIdentifier::new);
        let objects: Vec<ObjectIdentifier> = objects.collect();
        let mut action = self.0.bucket.delete_objects(self.who(), objects.iter());
        action.set_quiet(true);
        let url = action.sign(SIGNED_FOR);
        let url = url.as_str().strip_prefix("http://").unwrap_or_default();
        let (body, md5) = action.body_with_md5();
        let sent = self.send(Method::POST, url, Some(&md5), Bytes::from(body), false);
        sent.await.map(drop)
    }

    /// A page of the keys that begin with a prefix.
    pub async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Page, S3Failed> {
        let mut action: ListObjectsV2<'_> = self.0.bucket.list_objects_v2(self.who());
        action.with_prefix(prefix);
        if let Some(after) = after {
            action.with_continuation_token(after);
        }
        let url = self.signed(action);
        let sent = self.send(Method::GET, &url, None, Bytes::new(), true);
        let answer = sent.await?;
        let page: ListObjectsV2Response =
            ListObjectsV2::parse_response(&answer.text).map_err(lost)?;
        Ok(Page {
            keys: page.contents.into_iter().map(|entry| entry.key).collect(),
            next: page.next_continuation_token,
        })
    }
}

struct Answer {
    count: u64,
    text: String,
}
