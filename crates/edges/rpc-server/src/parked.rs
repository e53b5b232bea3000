//! Calls that are delayed before they begin, and replies that are.
//!
//! Owns: how much memory they take, of one connection and of all. Must not know: why they are delayed.
//!
//! They are not among the calls that run, so that a client with a low rate on one volume is served on others meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use crate::connection::Done;
use crate::dispatch::Dispatched;
use crate::program::Delay;
use crate::server::ServerCore;

/// Calls and replies of one connection that are delayed. More are not read.
const CONNECTION_COUNT_MAX: usize = 4096;
/// Delayed calls and replies of all connections together; beyond this number each connection has one.
const COUNT_MAX: usize = 64 << 10;
/// Payloads of one connection that wait.
const CONNECTION_BYTES_MAX: usize = 32 << 20;
/// Beside what calls that run may hold, those that wait may hold this part of it, of all connections together.
const PART_OF_HELD: usize = 2;

/// A call whose time has come.
pub struct DueCall {
    pub call: Dispatched,
    pub begun: Instant,
    pub held_bytes: usize,
}

/// A call that is delayed.
pub struct Parked {
    delay: Delay,
    waiting: Option<DueCall>,
}

impl Parked {
    pub fn new(call: Dispatched, begun: Instant, delay: Delay) -> Self {
        let waiting = DueCall {
            call,
            begun,
            held_bytes: delay.held_bytes,
        };
        Self {
            delay,
            waiting: Some(waiting),
        }
    }
}

impl Future for Parked {
    type Output = DueCall;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DueCall> {
        ready!(self.delay.until.as_mut().poll(cx));
        match self.waiting.take() {
            Some(waiting) => Poll::Ready(waiting),
            // It is not polled again.
            None => Poll::Pending,
        }
    }
}

/// A reply that is delayed.
pub struct Late {
    delay: Delay,
    done: Option<Done>,
}

impl Late {
    pub fn new(done: Done, delay: Delay) -> Self {
        Self {
            delay,
            done: Some(done),
        }
    }
}

impl Future for Late {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        ready!(self.delay.until.as_mut().poll(cx));
        match self.done.take() {
            Some(done) => Poll::Ready(done),
            // It is not polled again.
            None => Poll::Pending,
        }
    }
}

/// This connection's part of what is delayed; given back when dropped.
pub struct Parking {
    shared: Arc<ServerCore>,
    count: usize,
    held_bytes: usize,
}

impl Parking {
    pub fn new(shared: &Arc<ServerCore>) -> Self {
        Self {
            shared: Arc::clone(shared),
            count: 0,
            held_bytes: 0,
        }
    }

    /// Whether one more call or reply may be delayed. One always may.
    pub fn has_room(&self) -> bool {
        let all = self.shared.parked_count.load(Ordering::Relaxed);
        self.count == 0 || (self.count < CONNECTION_COUNT_MAX && all < COUNT_MAX)
    }

    /// Whether there is memory for the payload of one more call.
    pub fn has_room_for(&self, len_bytes: usize) -> bool {
        let all = self.shared.parked_bytes.load(Ordering::Relaxed);
        let all_max = self.shared.settings.held_bytes_max / PART_OF_HELD;
        self.held_bytes + len_bytes <= CONNECTION_BYTES_MAX && all + len_bytes <= all_max
    }

    /// Notes one that is delayed.
    pub fn add(&mut self, len_bytes: usize) {
        self.count += 1;
        self.held_bytes += len_bytes;
        let shared = &self.shared;
        shared.parked_count.fetch_add(1, Ordering::Relaxed);
        shared.parked_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    /// Notes that one is delayed no longer.
    pub fn take(&mut self, len_bytes: usize) {
        self.give_back(1, len_bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn give_back(&mut self, count: usize, len_bytes: usize) {
        self.count -= count;
        self.held_bytes -= len_bytes;
        let shared = &self.shared;
        shared.parked_count.fetch_sub(count, Ordering::Relaxed);
        shared.parked_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        self.give_back(self.count, self.held_bytes);
    }
}
