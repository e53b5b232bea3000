//! Bytes of objects, in both directions.
//!
//! Owns: the checks of received bytes, reading ahead of sent bytes.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{Credentials, FsError, TRANSFER_LEN_BYTES_MAX};
use cairn_objects::{Bucket, ObjectError, ObjectInfo, Staged};
use cairn_qos::Operation;
use futures_util::{Stream, StreamExt as _};
use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, StreamingBlob};
use s3s::{Body, S3Error, S3ErrorCode, S3Result, StdError, TrailingHeaders, s3_error};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::errors::told;
use crate::forms::FileError;
use crate::pace::{PACE_LEN_BYTES_MIN, Pace};
use crate::server::{ServerCore, Transfer};

/// Steps that are read before the client has taken the earlier ones.
const AHEAD_COUNT: usize = 2;
/// A client that neither sends nor takes anything for so long counts as gone.
pub const STALL_MAX: Duration = Duration::from_secs(60);
/// Maximum length of an object in one PUT, and of a part.
pub const PUT_LEN_BYTES_MAX: u64 = 5 << 30;
const TRAILER: &str = "x-amz-checksum-";

/// Checksums from a client: with the request, or behind the bytes.
#[derive(Default)]
pub struct Sums {
    pub content_md5: Option<String>,
    pub checksum: Checksum,
    /// The algorithm of a checksum that comes behind the bytes.
    pub trailer: Option<String>,
    pub trailing: Option<TrailingHeaders>,
    /// The number of bytes, if the client gives it for a body in chunks.
    pub len_bytes: Option<u64>,
    /// The algorithm of a checksum to compute, whichever are given.
    pub wanted: Option<String>,
}

fn by_algorithm(checksum: &Checksum) -> [(&'static str, Option<&String>); 5] {
    [
        ("crc32", checksum.checksum_crc32.as_ref()),
        ("crc32c", checksum.checksum_crc32c.as_ref()),
        ("crc64nvme", checksum.checksum_crc64nvme.as_ref()),
        ("sha1", checksum.checksum_sha1.as_ref()),
        ("sha256", checksum.checksum_sha256.as_ref()),
    ]
}

/// The error for a body that differs from the signed one.
pub fn wrong_sha256() -> S3Error {
    let code = S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into());
    let why = "the SHA-256 that was signed is not that of the body";
    let mut error = S3Error::with_message(code, why);
    error.set_status_code(http::StatusCode::BAD_REQUEST);
    error
}

/// Receives all bytes of a request, and checks them against the client's checksums. Returns the checksums, by
/// algorithm, in base64.
pub async fn receive(
    shared: &ServerCore,
    transfer: &mut Transfer,
    staged: &mut Staged,
    body: Option<StreamingBlob>,
    sums: Sums,
) -> S3Result<BTreeMap<String, String>> {
    let trailer = sums.trailer.as_deref().and_then(|name| {
        let name = name.trim().to_ascii_lowercase();
        name.strip_prefix(TRAILER).map(str::to_owned)
    });
    let wants = |algorithm: &str| {
        let given = by_algorithm(&sums.checksum);
        let is_given = given
            .iter()
            .any(|(name, value)| *name == algorithm && value.is_some());
        is_given
            || [&trailer, &sums.wanted]
                .iter()
                .any(|it| it.as_deref() == Some(algorithm))
    };
    let mut hasher = hasher(wants);
    if let Some(mut body) = body {
        let mut pace = Pace::default();
        loop {
            let next = next_piece(&mut body, &mut pace, transfer).await?;
            let Some(data) = next else { break };
            let data = data.map_err(|error| {
                if let Some(error) = error.downcast_ref::<FileError>() {
                    return error.told_on(transfer);
                }
                // The body was cut off, or a part of it has a wrong signature.
                let why = error.to_string();
                if why.contains("ignature") {
                    return s3_error!(SignatureDoesNotMatch, "the signature of a chunk is wrong");
                }
                if why.contains("Sha256Mismatch") {
                    return wrong_sha256();
                }
                transfer.broken_off(&why)
            })?;
            if staged.len_bytes() + data.len() as u64 > PUT_LEN_BYTES_MAX {
                return Err(s3_error!(EntityTooLarge));
            }
            hasher.update(&data);
            transfer.pass(Operation::write(data.len() as u64)).await;
            shared.metrics.received(data.len());
            transfer.received(data.len() as u64);
            staged.add(data).await.map_err(told)?;
        }
    }
    if sums.len_bytes.is_some_and(|len| len != staged.len_bytes()) {
        return Err(s3_error!(
            IncompleteBody,
            "the body does not have x-amz-decoded-content-length bytes"
        ));
    }
    if let Some(wanted) = sums.content_md5 {
        let wanted = STANDARD.decode(wanted.trim()).ok();
        let wanted = wanted.filter(|bytes| bytes.len() == 16);
        let wanted = wanted.ok_or_else(|| s3_error!(InvalidDigest))?;
        if staged.md5().is_none_or(|md5| wanted != md5) {
            return Err(s3_error!(BadDigest));
        }
    }
    let made = hasher.finalize();
    let mut kept = BTreeMap::new();
    let given = by_algorithm(&sums.checksum);
    for ((algorithm, made), (_, given)) in by_algorithm(&made).into_iter().zip(given) {
        let Some(made) = made else { continue };
        let behind = sums.trailing.as_ref().and_then(|trailing| {
            let name = format!("{TRAILER}{algorithm}");
            let value = trailing.read(|headers| headers.get(&name).cloned())??;
            Some(value.to_str().unwrap_or_default().to_owned())
        });
        let is_promised = trailer.as_deref() == Some(algorithm);
        if is_promised && behind.is_none() {
            return Err(s3_error!(
                BadDigest,
                "the checksum that was to come behind the body is missing"
            ));
        }
        if [given, behind.as_ref()]
            .into_iter()
            .flatten()
            .any(|wanted| wanted != made)
        {
            return Err(s3_error!(
                BadDigest,
                "the {} that was sent is not that of the body",
                algorithm
            ));
        }
        kept.insert(algorithm.to_owned(), made.clone());
    }
    Ok(kept)
}

/// The next bytes of a body, or the reason to stop reading: its client is too slow, or may no longer send.
async fn next_piece(
    body: &mut StreamingBlob,
    pace: &mut Pace,
    transfer: &mut Transfer,
) -> S3Result<Option<Result<Bytes, StdError>>> {
    let too_slow = || {
        s3_error!(
            RequestTimeout,
            "the body comes too slowly: less than {} KiB in {} s",
            PACE_LEN_BYTES_MIN >> 10,
            STALL_MAX.as_secs()
        )
    };
    loop {
        transfer.require_key()?;
        let begun = Instant::now();
        let wait = pace.left().min(transfer.next_look());
        let next = timeout(wait, body.next()).await;
        let len_bytes = match &next {
            Ok(Some(Ok(data))) => data.len() as u64,
            _ => 0,
        };
        if !pace.note(begun.elapsed(), len_bytes) {
            return Err(too_slow());
        }
        if let Ok(next) = next {
            return Ok(next);
        }
    }
}

/// Adds bytes of another object to the staged ones. Reads them to compute a `wanted` checksum.
pub async fn take(
    transfer: &mut Transfer,
    to: &Bucket,
    who: &Credentials,
    staged: &mut Staged,
    (source, range): (&ObjectInfo, Range<u64>),
    wanted: Option<&str>,
) -> Result<BTreeMap<String, String>, ObjectError> {
    let mut hasher = hasher(|algorithm| wanted == Some(algorithm));
    let mut at = if wanted.is_some() {
        range.start
    } else {
        range.end
    };
    while at < range.end {
        let parts = to.read(who, source.ino, at, range.end - at).await?;
        let len_bytes: usize = parts.iter().map(Bytes::len).sum();
        if len_bytes == 0 {
            return Err(FsError::TryLater.into());
        }
        transfer.pass(Operation::read(len_bytes as u64)).await;
        parts.iter().for_each(|part| hasher.update(part));
        at += len_bytes as u64;
    }
    transfer.pass(Operation::write(0)).await;
    // This checks that the bytes are still those that were read.
    to.take(who, staged, source, range).await?;
    let made = hasher.finalize();
    let made = by_algorithm(&made).into_iter();
    Ok(made
        .filter_map(|(algorithm, sum)| Some((algorithm.to_owned(), sum?.clone())))
        .collect())
}

fn hasher(wants: impl Fn(&str) -> bool) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    if wants("crc32") {
        hasher.crc32 = Some(Default::default());
    }
    if wants("crc32c") {
        hasher.crc32c = Some(Default::default());
    }
    if wants("crc64nvme") {
        hasher.crc64nvme = Some(Default::default());
    }
    if wants("sha1") {
        hasher.sha1 = Some(Default::default());
    }
    if wants("sha256") {
        hasher.sha256 = Some(Default::default());
    }
    hasher
}

/// Steps of an object that were read.
struct Steps(mpsc::Receiver<Result<Bytes, io::Error>>);

impl Stream for Steps {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// The bytes of an object. Reads the first step before it returns, so that a complete failure to read gets an error
/// response.
pub async fn send(
    shared: &Arc<ServerCore>,
    mut transfer: Transfer,
    bucket: &Bucket,
    who: &Credentials,
    ino: Ino,
    range: Range<u64>,
) -> Result<StreamingBlob, ObjectError> {
    if range.is_empty() {
        return Ok(StreamingBlob::from(Body::empty()));
    }
    let step = |at: u64| (range.end - at).min(u64::from(TRANSFER_LEN_BYTES_MAX));
    transfer.pass(Operation::read(step(range.start))).await;
    let first = bucket
        .read(who, ino, range.start, step(range.start))
        .await?;
    let count: u64 = first.iter().map(|part| part.len() as u64).sum();
    if count == range.end - range.start && first.len() == 1 {
        shared.metrics.sent(count as usize);
        transfer.sent(count);
        let only = first.into_iter().next().unwrap_or_default();
        return Ok(StreamingBlob::from(Body::from(only)));
    }
    let (to, steps) = mpsc::channel(AHEAD_COUNT);
    let (bucket, who, shared) = (bucket.clone(), who.clone(), Arc::clone(shared));
    tokio::spawn(async move {
        let (mut at, mut parts) = (range.start, first);
        loop {
            let count: u64 = parts.iter().map(|part| part.len() as u64).sum();
            // Another node may have changed it since.
            if count == 0 || !(shared.may_answer)() {
                let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
                let _ = to.send(Err(cut)).await;
                return;
            }
            if transfer.require_key().is_err() {
                let revoked = io::Error::from(io::ErrorKind::PermissionDenied);
                let _ = to.send(Err(revoked)).await;
                return;
            }
            shared.metrics.sent(count as usize);
            transfer.sent(count);
            for part in parts {
                // The client has gone, or takes nothing any more.
                if !matches!(timeout(STALL_MAX, to.send(Ok(part))).await, Ok(Ok(()))) {
                    return;
                }
            }
            at += count;
            if at >= range.end {
                return;
            }
            let len_bytes = (range.end - at).min(u64::from(TRANSFER_LEN_BYTES_MAX));
            transfer.pass(Operation::read(len_bytes)).await;
            parts = match bucket.read(&who, ino, at, len_bytes).await {
                Ok(parts) => parts,
                Err(error) => {
                    tracing::debug!(%error, "reading an object");
                    // A body that ends early tells the client of the error.
                    let _ = to.send(Err(io::Error::other(error))).await;
                    return;
                }
            };
        }
    });
    Ok(StreamingBlob::wrap(Steps(steps)))
}
