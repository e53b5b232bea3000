//! A watch on etcd that survives lost connections, dead members, compaction and a restored backup.
//!
//! Owns: where the watch goes on, and when it has to read everything again.
//! Must not know: what the keys mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{sleep, timeout};

use super::{Etcd, Failure, entry, errors, header_revision, number};
use crate::coordinator::{
    Change, Coordinator, CoordinatorError, Key, KeyRange, Revision, WatchEvent, Watcher,
};

const RECONNECT_WAIT: Duration = Duration::from_millis(200);
const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(1);
/// A member that has said nothing for so long is asked for a sign of life. Most of the time nothing changes, and a member that is cut
/// off looks the same: who waits for it knows of no new owner meanwhile.
const QUIET: Duration = Duration::from_millis(500);
/// It has so long to answer.
const SIGN_OF_LIFE_WAIT: Duration = Duration::from_millis(1000);

pub(super) struct EtcdWatcher {
    etcd: Etcd,
    range: KeyRange,
    /// The revision that comes next.
    from: Revision,
    stream: Option<WatchStream>,
    /// A sign of life was asked for, and nothing was heard since.
    is_asked: bool,
    wait: Duration,
}

/// What one message of the stream asks for.
enum Step {
    Deliver(WatchEvent),
    Wait,
    Reconnect(CoordinatorError),
    ReadAgain,
}

impl EtcdWatcher {
    pub fn new(etcd: Etcd, range: KeyRange, from: Revision) -> Self {
        Self {
            etcd,
            range,
            from,
            stream: None,
            is_asked: false,
            wait: RECONNECT_WAIT,
        }
    }

    async fn step(&mut self) -> Step {
        let message = match &mut self.stream {
            None => {
                return match self.open().await {
                    Ok(step) => step,
                    Err(failure) => Step::Reconnect(failure.error),
                };
            }
            Some(stream) => {
                let waits = match self.is_asked {
                    true => SIGN_OF_LIFE_WAIT,
                    false => QUIET,
                };
                match timeout(waits, stream.message()).await {
                    Ok(message) => message,
                    Err(_) if self.is_asked => {
                        return Step::Reconnect(CoordinatorError::Unreachable(
                            "the member that is watched does not answer".to_owned(),
                        ));
                    }
                    Err(_) => {
                        self.is_asked = true;
                        return match timeout(SIGN_OF_LIFE_WAIT, stream.request_progress()).await {
                            Ok(Ok(())) => Step::Wait,
                            Ok(Err(error)) => Step::Reconnect(errors::of("the watch", error).error),
                            Err(_) => Step::Reconnect(CoordinatorError::Unreachable(
                                "the member that is watched takes nothing".to_owned(),
                            )),
                        };
                    }
                }
            }
        };
        self.is_asked = false;
        match message {
            Ok(Some(message)) => self.take(&message),
            Ok(None) => Step::Reconnect(CoordinatorError::Unreachable(
                "the watch was closed".to_owned(),
            )),
            Err(error) => Step::Reconnect(errors::of("the watch", error).error),
        }
    }

    /// Opens a stream on the member that is asked at present and takes its first message.
    async fn open(&mut self) -> Result<Step, Failure> {
        let (_, _, member) = self.etcd.shared.current_member();
        let (key, prefix) = match &self.range {
            KeyRange::One(key) => (key.as_str().to_owned(), false),
            KeyRange::Prefix(prefix) => (prefix.clone(), true),
        };
        let mut options = WatchOptions::new().with_start_revision(number(self.from));
        if prefix {
            options = options.with_prefix();
        }
        let mut stream = self
            .etcd
            .attempt(&member, "watching", |mut client| {
                let (key, options) = (key.clone(), options.clone());
                async move { client.watch(key, Some(options)).await }
            })
            .await?;
        let after = self.etcd.shared.settings.attempt_timeout;
        let closed = || {
            let error = CoordinatorError::Unreachable("the watch was not opened".to_owned());
            Failure::new(error, false)
        };
        let first = timeout(after, stream.message())
            .await
            .map_err(|_| closed())?;
        let first = first.map_err(|error| errors::of("the watch", error))?;
        let first = first.ok_or_else(closed)?;
        self.stream = Some(stream);
        self.wait = RECONNECT_WAIT;
        // A member that lags behind a little is fine, but a store that went back would keep quiet until it is where we
        // were. Only a reading that goes through the leader tells one from the other.
        if header_revision(first.header()).next() < self.from {
            let now = self.etcd.range(self.range.clone()).await;
            let now = now.map_err(|error| Failure::new(error, false))?;
            if now.revision.next() < self.from {
                return Ok(Step::ReadAgain);
            }
        }
        Ok(self.take(&first))
    }

    fn take(&mut self, message: &WatchResponse) -> Step {
        if message.compact_revision() > 0 {
            return Step::ReadAgain;
        }
        if message.canceled() {
            return Step::Reconnect(CoordinatorError::Other(format!(
                "the watch was canceled: {}",
                message.cancel_reason()
            )));
        }
        if message.events().is_empty() {
            return Step::Wait;
        }
        let mut changes = Vec::with_capacity(message.events().len());
        let mut last = self.from;
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            let entry = entry(kv);
            last = last.max(entry.modified);
            changes.push(match event.event_type() {
                EventType::Put => Change::Put(entry),
                EventType::Delete => Change::Deleted {
                    key: Key::new(entry.key.as_str()),
                    revision: entry.modified,
                },
            });
        }
        self.from = last.next();
        Step::Deliver(WatchEvent::Changes {
            revision: last,
            changes,
        })
    }
}

impl Watcher for EtcdWatcher {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = WatchEvent> + Send + '_>> {
        Box::pin(async move {
            loop {
                match self.step().await {
                    Step::Deliver(event) => return event,
                    Step::Wait => {}
                    Step::Reconnect(error) => {
                        tracing::debug!(range = %self.range, %error, "watching again");
                        (self.stream, self.is_asked) = (None, false);
                        let shared = &self.etcd.shared;
                        shared.current.fetch_add(1, Ordering::Relaxed);
                        sleep(self.wait).await;
                        self.wait = (self.wait * 2).min(RECONNECT_WAIT_MAX);
                    }
                    Step::ReadAgain => {
                        (self.stream, self.is_asked) = (None, false);
                        match self.etcd.range(self.range.clone()).await {
                            Ok(reply) => {
                                self.from = reply.revision.next();
                                return WatchEvent::Reset(reply);
                            }
                            Err(error) => {
                                tracing::debug!(range = %self.range, %error, "reading again");
                                sleep(self.wait).await;
                            }
                        }
                    }
                }
            }
        })
    }
}
