//! The volume as clients reach it, even while the pool reopens it.
//!
//! Owns: when a client may begin an operation, and which opening of the volume it uses. Must not know: why the volume
//! is reopened, its expected contents.
//!
//! While it is reopened, operations go on until one is told to come again later: from then on none begins. The next
//! opening is served when all operations have ended and its contents were checked.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use cairn_fs::Fs;
use parking_lot::Mutex;

#[derive(Default)]
pub struct Serving(Mutex<ServingState>);

#[derive(Default)]
struct ServingState {
    fs: Option<Fs>,
    /// Clients may be told to come again later.
    is_reopening: bool,
    /// No operation begins.
    is_held: bool,
    under_way: u32,
    waiting: Vec<Waker>,
}

impl Serving {
    /// Sets the opening that clients reach from now on.
    pub fn put(&self, fs: Fs) {
        self.change(|inner| {
            (inner.fs, inner.is_reopening, inner.is_held) = (Some(fs), false, false);
        });
    }

    /// Allows the volume to end and come back. Resolves when no other task has that permission.
    pub async fn expect_another(&self) {
        self.wait_for(|inner| (!std::mem::replace(&mut inner.is_reopening, true)).then_some(()))
            .await;
    }

    /// It does not come back in this life: operations fail.
    pub fn give_up(&self) {
        self.change(|inner| (inner.is_reopening, inner.is_held) = (false, false));
    }

    pub fn is_reopening(&self) -> bool {
        self.0.lock().is_reopening
    }

    /// Notes that a client was told to come again later.
    pub fn come_later(&self) {
        self.change(|inner| inner.is_held |= inner.is_reopening);
    }

    /// Resolves when no operation is in progress; none begins from now on.
    pub async fn idle(&self) {
        self.change(|inner| inner.is_held = true);
        self.wait_for(|inner| (inner.under_way == 0).then_some(()))
            .await;
    }

    /// Begins an operation on the returned opening, as soon as that is allowed.
    pub async fn begin(&self) -> Fs {
        self.wait_for(|inner| {
            let fs = inner.fs.clone().filter(|_| !inner.is_held)?;
            inner.under_way += 1;
            Some(fs)
        })
        .await
    }

    pub fn end(&self) {
        self.change(|inner| inner.under_way -= 1);
    }

    fn change(&self, change: impl FnOnce(&mut ServingState)) {
        let woken = {
            let mut inner = self.0.lock();
            change(&mut inner);
            std::mem::take(&mut inner.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    async fn wait_for<T>(&self, mut ready: impl FnMut(&mut ServingState) -> Option<T>) -> T {
        poll_fn(|context| {
            let mut inner = self.0.lock();
            match ready(&mut inner) {
                Some(value) => Poll::Ready(value),
                None => {
                    inner.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
