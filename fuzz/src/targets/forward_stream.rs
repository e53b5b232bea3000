//! What another node sends on a stream for a client: the preamble, frames, and beats.

use std::future::Future;
use std::io::Cursor;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cairn_base::real::SystemClock;
use cairn_forward::{Beats, Framed, PREAMBLE_LEN_BYTES, Preamble, read_beat};
use tokio::io::AsyncReadExt;

pub fn run(input: &[u8]) {
    if let Some((head, rest)) = input.split_first_chunk::<PREAMBLE_LEN_BYTES>() {
        if let Ok(preamble) = Preamble::decode(head) {
            // An IPv4 address comes back in its short form, which is the same to all who look at it.
            assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
        }
        frames(rest);
    }
    let mut from = input;
    while let Some(Ok((beat, _))) = now(read_beat(&mut from)) {
        assert!(from.len() + 12 <= input.len(), "{beat:?}");
    }
}

/// All bytes that come out were in a frame whose head was right.
fn frames(input: &[u8]) {
    let clock = Arc::new(SystemClock::default());
    // A process whose beats the input may name: all of one number.
    let beats = Beats::new(Arc::clone(&clock) as _, 0);
    let stream = tokio::io::join(Cursor::new(input.to_vec()), tokio::io::sink());
    let mut framed = Framed::new(stream, beats, clock);
    let mut read = Vec::new();
    if now(framed.read_to_end(&mut read)).is_some_and(|read| read.is_ok()) {
        assert!(read.len() <= input.len());
    }
}

/// The value of a future that waits for nothing.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
