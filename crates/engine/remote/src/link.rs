//! One connection to a node that serves disks, as who asks sees it: what is under way, and how much may be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::env::Clock;
use cairn_wire::{Header, Limits, Message, Reply, Request};
use futures_util::future::{Either, select};
use futures_util::poll;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::breaker::Breaker;
use crate::frames::{Frame, Heard, Outgoing};

/// What counts against the bytes under way is rounded up to this.
pub(crate) const CREDIT_BYTES: u64 = 4096;

/// Bytes that a request may have under way, in parts of [`CREDIT_BYTES`].
pub(crate) fn credits(request: &Request) -> u32 {
    let payload_len_bytes = request.payload_len_bytes().unwrap_or(u64::MAX);
    let len_bytes = payload_len_bytes.saturating_add(request.reply_len_bytes());
    u32::try_from(len_bytes.div_ceil(CREDIT_BYTES)).unwrap_or(u32::MAX)
}

/// Why a request has no reply.
pub(crate) enum NoReply {
    Late,
    Broken(String),
    /// It was not sent.
    Refused(cairn_wire::WireError),
}

/// What may still be sent to one disk.
struct Credit {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Held from before a request is sent until its reply is there, also if nobody waits for it any more: the peer counts it as well.
struct Permits {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

struct PendingCall {
    reply: Option<oneshot::Sender<Result<Arrived, NoReply>>>,
    due: Duration,
    _permits: Permits,
}

struct Arrived {
    header: Header,
    reply: Reply,
    payload: Bytes,
}

#[derive(Default)]
struct PendingCalls {
    id_last: u64,
    waiting: BTreeMap<u64, PendingCall>,
    /// Nothing is added any more.
    ended: Option<String>,
}

pub(crate) struct Link {
    /// Tells the connections to one peer apart.
    pub(crate) number: u64,
    pub(crate) breaker: Breaker,
    pub(crate) heard: Arc<Heard>,
    clock: Arc<dyn Clock>,
    queue: UnboundedSender<Outgoing>,
    limits: Limits,
    credits: Mutex<BTreeMap<DiskId, Arc<Credit>>>,
    under_way: Mutex<PendingCalls>,
}

impl Link {
    pub(crate) fn new(
        number: u64,
        clock: Arc<dyn Clock>,
        heard: Arc<Heard>,
        queue: UnboundedSender<Outgoing>,
        limits: Limits,
    ) -> Self {
        Self {
            number,
            breaker: Breaker::default(),
            heard,
            clock,
            queue,
            limits,
            credits: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    pub(crate) fn queue(&self) -> &UnboundedSender<Outgoing> {
        &self.queue
    }

    fn credit(&self, disk: DiskId) -> Arc<Credit> {
        let mut credits = self.credits.lock();
        let credit = credits.entry(disk).or_insert_with(|| {
            let bytes = usize::try_from(self.limits.bytes_max / CREDIT_BYTES);
            let bytes = bytes.unwrap_or(usize::MAX).min(u32::MAX as usize);
            Arc::new(Credit {
                requests: Arc::new(Semaphore::new(self.limits.requests_max as usize)),
                bytes: Arc::new(Semaphore::new(bytes)),
            })
        });
        Arc::clone(credit)
    }

    async fn permits(&self, disk: DiskId, bytes: u32) -> Option<Permits> {
        let credit = self.credit(disk);
        let request = Arc::clone(&credit.requests).acquire_owned().await.ok()?;
        let bytes = Arc::clone(&credit.bytes)
            .acquire_many_owned(bytes)
            .await
            .ok()?;
        Some(Permits {
            _request: request,
            _bytes: bytes,
        })
    }

    /// Sends a request and waits for its reply. Dropping the future only ends the wait.
    pub(crate) async fn call(
        &self,
        disk: DiskId,
        request: Request,
        payload: Vec<Bytes>,
        deadline: Duration,
    ) -> Result<(Reply, Bytes), NoReply> {
        let due = self.clock.monotonic().saturating_add(deadline);
        let mut asked = Box::pin(self.permits(disk, credits(&request)));
        let permits = match poll!(&mut asked) {
            Poll::Ready(permits) => permits,
            Poll::Pending => {
                let sleep = self.clock.sleep(deadline);
                let broken = Box::pin(self.breaker.broken());
                match select(asked, select(sleep, broken)).await {
                    Either::Left((permits, _)) => permits,
                    Either::Right((Either::Left(_), _)) => return Err(NoReply::Late),
                    Either::Right((Either::Right((reason, _)), _)) => {
                        return Err(NoReply::Broken(reason));
                    }
                }
            }
        };
        let Some(permits) = permits else {
            return Err(self.broken());
        };
        let message = Message::Request { disk, request };
        let (reply, replied) = oneshot::channel();
        let id = self.add(PendingCall {
            reply: Some(reply),
            due,
            _permits: permits,
        })?;
        let head = match cairn_wire::encode(id, &message, &payload) {
            Ok(head) => head.into(),
            Err(error) => {
                self.under_way.lock().waiting.remove(&id);
                return Err(NoReply::Refused(error));
            }
        };
        let frame = Outgoing {
            head,
            payload,
            guard: None,
        };
        if self.queue.send(frame).is_err() {
            return Err(self.broken());
        }
        let arrived = match replied.await {
            Ok(arrived) => arrived?,
            Err(_) => return Err(self.broken()),
        };
        if let Err(error) = arrived.header.check_payload(&arrived.payload) {
            self.breaker
                .break_off(format!("what came is not understood: {error}"));
            return Err(self.broken());
        }
        Ok((arrived.reply, arrived.payload))
    }

    fn broken(&self) -> NoReply {
        let reason = self.breaker.reason();
        NoReply::Broken(reason.unwrap_or_else(|| "the connection ended".to_owned()))
    }

    fn add(&self, waiting: PendingCall) -> Result<u64, NoReply> {
        let mut under_way = self.under_way.lock();
        if let Some(reason) = &under_way.ended {
            return Err(NoReply::Broken(reason.clone()));
        }
        under_way.id_last += 1;
        let id = under_way.id_last;
        under_way.waiting.insert(id, waiting);
        Ok(id)
    }

    /// A reply came; false if nobody asked for it.
    pub(crate) fn replied(&self, frame: Frame, reply: Reply) -> bool {
        let waiting = self.under_way.lock().waiting.remove(&frame.header.id);
        let Some(waiting) = waiting else {
            return false;
        };
        if let Some(sender) = waiting.reply {
            // A caller that no longer waits needs no reply.
            let _ = sender.send(Ok(Arrived {
                header: frame.header,
                reply,
                payload: frame.payload,
            }));
        }
        true
    }

    /// Tells those who have waited too long. Their requests still count as under way.
    pub(crate) fn expire(&self) {
        let now = self.clock.monotonic();
        let mut under_way = self.under_way.lock();
        for waiting in under_way.waiting.values_mut() {
            if waiting.due <= now
                && let Some(reply) = waiting.reply.take()
            {
                let _ = reply.send(Err(NoReply::Late));
            }
        }
    }

    /// Nothing is sent any more, and whatever has no reply yet has failed.
    pub(crate) fn end(&self, reason: &str) {
        self.breaker.break_off(reason);
        let waiting = {
            let mut under_way = self.under_way.lock();
            under_way.ended = Some(reason.to_owned());
            std::mem::take(&mut under_way.waiting)
        };
        for (_, waiting) in waiting {
            if let Some(reply) = waiting.reply {
                let _ = reply.send(Err(NoReply::Broken(reason.to_owned())));
            }
        }
        for credit in self.credits.lock().values() {
            credit.requests.close();
            credit.bytes.close();
        }
    }
}
