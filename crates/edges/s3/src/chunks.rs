//! Bodies in chunks with a signature each ("Transferring payload in multiple chunks", Amazon S3 API Reference).
//!
//! Owns: the check that the last chunk came. Must not know: whether signatures are right.
//!
//! The crate `s3s` takes the end of a body for the end of its chunks. The last chunk, which has no bytes, shows that
//! the client has sent everything.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use s3s::s3_error;

use crate::documents::Watched;

const SHA256: &str = "x-amz-content-sha256";
/// Prefix of the value that replaces the SHA-256 of a body in chunks.
const STREAMING: &[u8] = b"STREAMING-";

/// Whether the body of a request comes in chunks.
pub(crate) fn are_in(headers: &HeaderMap) -> bool {
    let said = headers.get(SHA256);
    said.is_some_and(|said| said.as_bytes().starts_with(STREAMING))
}

/// The position in the chunks of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the line `SIZE[;chunk-signature=SIGNATURE]`, with the hexadecimal digits of the size so far.
    Line { size: u64, is_size: bool },
    /// In the bytes of a chunk, or the end of the line behind them; so many are left.
    Bytes { left: u64 },
    /// The last chunk has begun.
    Over,
}

const LINE: At = At::Line {
    size: 0,
    is_size: true,
};

impl At {
    fn after(mut self, mut bytes: &[u8]) -> Self {
        while let Some((first, rest)) = bytes.split_first() {
            match self {
                Self::Over => return self,
                Self::Bytes { left } => {
                    let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    bytes = bytes.get(len..).unwrap_or_default();
                    self = match left.saturating_sub(len as u64) {
                        0 => LINE,
                        left => Self::Bytes { left },
                    };
                    continue;
                }
                Self::Line { size, is_size } => {
                    let digit = char::from(*first).to_digit(16).filter(|_| is_size);
                    self = match (digit, first) {
                        (Some(digit), _) => Self::Line {
                            size: size.saturating_mul(16).saturating_add(u64::from(digit)),
                            is_size,
                        },
                        (None, b'\n') if size == 0 => Self::Over,
                        (None, b'\n') => Self::Bytes {
                            left: size.saturating_add(2),
                        },
                        (None, _) => Self::Line {
                            size,
                            is_size: false,
                        },
                    };
                }
            }
            bytes = rest;
        }
        self
    }
}

/// A body that fails if it ends before its last chunk.
pub(crate) struct Chunks<B> {
    body: B,
    at: At,
    watched: Watched,
}

impl<B> Chunks<B> {
    pub fn new(body: B, watched: Watched) -> Self {
        Self {
            body,
            at: LINE,
            watched,
        }
    }
}

impl<B> HttpBody for Chunks<B>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.at = this.at.after(data);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None if this.at == At::Over => None,
            None => {
                this.at = At::Over;
                let why = "the body ended before its last chunk, which has no bytes";
                this.watched.fail(s3_error!(IncompleteBody, "{}", why));
                Some(Err(why.into()))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        // The reader must see the end.
        self.at == At::Over && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[tokio::test]
    async fn a_body_in_chunks_has_a_last_one() {
        let cases: &[(&str, &[u8], bool)] = &[
            (
                "whole",
                b"3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n",
                true,
            ),
            ("nothing in it", b"0;chunk-signature=00\r\n\r\n", true),
            (
                "unsigned, with a trailer",
                b"A\r\n0123456789\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n",
                true,
            ),
            ("bytes that look like it", b"7\r\n\r\n0\r\n\r\n\r\n", false),
            (
                "without the last",
                b"3;chunk-signature=00\r\nabc\r\n",
                false,
            ),
            ("cut in a chunk", b"3;chunk-signature=00\r\nab", false),
            ("cut in a line", b"3;chunk-signature=00\r\nabc\r\n0", false),
            (
                "a size beyond all",
                b"ffffffffffffffffff;chunk-signature=00\r\nabc",
                false,
            ),
            ("empty", b"", false),
        ];
        for (name, body, is_whole) in cases {
            for step in [1, 2, 7, 1000] {
                let pieces: Vec<_> = body
                    .chunks(step)
                    .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
                    .collect();
                let watched = Watched::default();
                let pieces = StreamBody::new(stream::iter(pieces));
                let read = Chunks::new(pieces, watched.clone()).collect().await;
                assert_eq!(read.is_ok(), *is_whole, "{name} by {step}");
                if let Ok(read) = read {
                    assert_eq!(read.to_bytes(), *body, "{name}");
                }
                let code = watched
                    .error()
                    .map(|error| error.code().as_str().to_owned());
                let want = (!is_whole).then_some("IncompleteBody");
                assert_eq!(code.as_deref(), want, "{name} by {step}");
            }
        }
    }
}
