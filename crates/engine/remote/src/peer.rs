//! A node that serves its disks to this one: one connection at a time, made again when it breaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, NodeId};
use cairn_wire::{
    DiskReport, Hello, Message, PAYLOAD_LEN_BYTES_MAX, PROTOCOL_VERSION, Reply, Request, Welcome,
};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::breaker::Breaker;
use crate::disk::RemoteDisk;
use crate::frames::{Buffers, FrameReader, Heard, send_small, write_frames};
use crate::link::Link;
use crate::transport::Dial;
use crate::{HEARTBEAT, Identity, TICK};

/// Settings of the connection to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// For a connection and both hellos.
    pub dial_deadline: Duration,
    /// For a request; a caller that wants to wait less leaves it to itself.
    pub deadline: Duration,
    /// For a request that writes or copies much: spare files, copies, sweeps, lists.
    pub long_deadline: Duration,
    /// Heard nothing for so long: its disks count as silent, and readers who can do without them do not wait.
    pub silent_after: Duration,
    /// Heard nothing for so long: the connection is given up.
    pub dead_after: Duration,
    /// The wait before another try to connect doubles from the one to the other.
    pub retry_after_min: Duration,
    pub retry_after_max: Duration,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            dial_deadline: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
            long_deadline: Duration::from_secs(600),
            silent_after: Duration::from_millis(1500),
            dead_after: Duration::from_secs(10),
            retry_after_min: Duration::from_millis(100),
            retry_after_max: Duration::from_secs(5),
        }
    }
}

impl PeerSettings {
    pub(crate) fn deadline_of(&self, request: &Request) -> Duration {
        match request {
            Request::PrepareRecycled { .. }
            | Request::ReleaseRecycled {}
            | Request::CopyFrom { .. }
            | Request::List { .. }
            | Request::Sweep { .. } => self.long_deadline,
            _ => self.deadline,
        }
    }
}

/// How the last try to connect went.
#[derive(Clone, Default)]
struct Status {
    tries: u64,
    is_connected: bool,
    problem: Option<String>,
}

pub(crate) struct PeerCore {
    pub(crate) env: Env,
    pub(crate) settings: PeerSettings,
    pub(crate) node: NodeId,
    /// For messages.
    pub(crate) label: String,
    own: Identity,
    dial: Arc<dyn Dial>,
    buffers: Arc<Buffers>,
    link: Mutex<Option<Arc<Link>>>,
    link_number_last: AtomicU64,
    disks: Mutex<BTreeMap<DiskId, Arc<RemoteDisk>>>,
    status: watch::Sender<Status>,
    stop: Breaker,
}

/// A node that serves its disks to this one. The connection ends with it; disks that are still in use then fail.
pub struct Peer(Arc<PeerCore>);

impl Peer {
    /// Begins to connect, and goes on to. `label` names the node in messages.
    pub fn start(
        env: Env,
        own: Identity,
        node: NodeId,
        label: impl Into<String>,
        dial: Arc<dyn Dial>,
        settings: PeerSettings,
    ) -> Self {
        let shared = Arc::new(PeerCore {
            env,
            settings,
            node,
            label: label.into(),
            own,
            dial,
            buffers: Arc::new(Buffers::new()),
            link: Mutex::default(),
            link_number_last: AtomicU64::new(0),
            disks: Mutex::default(),
            status: watch::Sender::default(),
            stop: Breaker::default(),
        });
        let spawner = shared.env.spawner.clone();
        spawner.spawn("peer", Box::pin(Arc::clone(&shared).run()));
        Self(shared)
    }

    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Waits until a try to connect has ended, well or not. Gives what is wrong, if something is.
    pub async fn tried(&self) -> Option<String> {
        let mut status = self.0.status.subscribe();
        let tried = status.wait_for(|status| status.tries > 0).await;
        tried.map_or(None, |status| status.problem.clone())
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        let mut status = self.0.status.subscribe();
        // The sender is in `self`.
        let _ = status.wait_for(|status| status.is_connected).await;
    }

    /// Waits until there is none.
    pub async fn disconnected(&self) {
        let mut status = self.0.status.subscribe();
        let _ = status.wait_for(|status| !status.is_connected).await;
    }

    pub fn is_connected(&self) -> bool {
        self.0.status.borrow().is_connected
    }

    /// Whether something was heard of the node so lately that its disks do not count as silent.
    pub fn is_heard(&self) -> bool {
        let link = self.0.link.lock();
        let age = link.as_ref().map(|link| link.heard.age());
        age.is_some_and(|age| age < self.0.settings.silent_after)
    }

    /// Why there is no connection.
    pub fn problem(&self) -> Option<String> {
        self.0.status.borrow().problem.clone()
    }

    /// The disks that the node has told of so far, in the order of their ids.
    pub fn disks(&self) -> Vec<Arc<RemoteDisk>> {
        self.0.disks.lock().values().cloned().collect()
    }

    pub fn disk(&self, disk: DiskId) -> Option<Arc<RemoteDisk>> {
        self.0.disks.lock().get(&disk).cloned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.stop.break_off("it is not used any more");
    }
}

impl PeerCore {
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.lock().clone()
    }

    /// Why there is no connection, for those who need one.
    pub(crate) fn why_not(&self) -> String {
        let problem = self.status.borrow().problem.clone();
        problem.unwrap_or_else(|| "there is no connection yet".to_owned())
    }

    async fn run(self: Arc<Self>) {
        let mut wait = self.settings.retry_after_min;
        loop {
            let reason = match self.connect().await {
                Ok((link, reader, disks)) => {
                    wait = self.settings.retry_after_min;
                    self.use_link(&link, reader, disks).await
                }
                Err(reason) => reason,
            };
            let is_stopped = self.stop.reason().is_some();
            let known = self.status.borrow().problem.clone();
            if known.as_ref() != Some(&reason) && !is_stopped {
                tracing::warn!(peer = self.label, reason, "no connection to a peer");
            }
            self.status.send_modify(|status| {
                status.tries += 1;
                status.is_connected = false;
                status.problem = Some(reason);
            });
            if is_stopped {
                return;
            }
            let pause = self.env.clock.sleep(wait);
            wait = (wait * 2).min(self.settings.retry_after_max);
            select(pause, Box::pin(self.stop.broken())).await;
        }
    }

    async fn connect(&self) -> Result<(Arc<Link>, FrameReader, Vec<DiskReport>), String> {
        let deadline = self.env.clock.sleep(self.settings.dial_deadline);
        let gave_up = select(deadline, Box::pin(self.stop.broken()));
        match select(Box::pin(self.shake_hands()), gave_up).await {
            Either::Left((connected, _)) => connected,
            Either::Right((Either::Left(_), _)) => {
                let seconds = self.settings.dial_deadline.as_secs_f32();
                Err(format!("it did not answer within {seconds} s"))
            }
            Either::Right((Either::Right((reason, _)), _)) => Err(reason),
        }
    }

    async fn shake_hands(&self) -> Result<(Arc<Link>, FrameReader, Vec<DiskReport>), String> {
        let dialled = self.dial.dial().await;
        let connection = dialled.map_err(|error| format!("connecting: {error}"))?;
        let clock = &self.env.clock;
        let heard = Heard::new(Arc::clone(clock));
        let mut reader = FrameReader::new(
            connection.from,
            Arc::clone(&self.buffers),
            Arc::clone(&heard),
        );
        let (queue, queued) = mpsc::unbounded_channel();
        let hello = Message::Hello(Hello {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            cluster: self.own.cluster,
            from: self.own.node,
            to: self.node,
        });
        send_small(&queue, &hello, None);
        let writing = Box::pin(write_frames(connection.to, queued));
        let (answer, writing) = match select(Box::pin(reader.next()), writing).await {
            Either::Left((answer, writing)) => (answer, writing),
            Either::Right((Err(error), _)) => return Err(format!("sending: {error}")),
            Either::Right((Ok(()), _)) => return Err("the connection ended".to_owned()),
        };
        let welcome = match answer.map_err(|error| error.to_string())? {
            Some(frame) => self.welcomed(frame.message)?,
            None => return Err("it closed the connection".to_owned()),
        };
        let number = self.link_number_last.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Link::new(number, Arc::clone(clock), heard, queue, welcome.limits);
        let link = Arc::new(link);
        let task = {
            let link = Arc::clone(&link);
            async move {
                let broken = Box::pin(link.breaker.broken());
                if let Either::Left((Err(error), _)) = select(writing, broken).await {
                    link.breaker.break_off(format!("sending: {error}"));
                }
            }
        };
        self.env.spawner.spawn("peer writer", Box::pin(task));
        Ok((link, reader, welcome.disks))
    }

    fn welcomed(&self, message: Message) -> Result<Welcome, String> {
        let welcome = match message {
            Message::Welcome(welcome) => welcome,
            Message::Goodbye { reason } => return Err(format!("it refuses this node: {reason}")),
            _ => return Err("its first message is not a welcome".to_owned()),
        };
        if welcome.version != PROTOCOL_VERSION {
            let version = welcome.version;
            return Err(format!(
                "it speaks version {version}, this program {PROTOCOL_VERSION}; use the same version"
            ));
        }
        if (welcome.cluster, welcome.node) != (self.own.cluster, self.node) {
            return Err(format!(
                "it is node {} of cluster {}, not node {} of cluster {}; check the addresses of nodes",
                welcome.node, welcome.cluster, self.node, self.own.cluster
            ));
        }
        let limits = welcome.limits;
        if limits.requests_max == 0 || limits.bytes_max < PAYLOAD_LEN_BYTES_MAX as u64 {
            return Err("it allows less than one request".to_owned());
        }
        Ok(welcome)
    }

    /// Gives the reason for the end.
    async fn use_link(
        self: &Arc<Self>,
        link: &Arc<Link>,
        reader: FrameReader,
        disks: Vec<DiskReport>,
    ) -> String {
        *self.link.lock() = Some(Arc::clone(link));
        self.note(disks);
        self.status.send_modify(|status| {
            status.tries += 1;
            status.is_connected = true;
            status.problem = None;
        });
        tracing::info!(peer = self.label, "connected to a peer");
        let work = select(
            Box::pin(self.receive(link, reader)),
            Box::pin(self.watch(link)),
        );
        let ended = select(
            Box::pin(link.breaker.broken()),
            Box::pin(self.stop.broken()),
        );
        let reason = match select(work, ended).await {
            Either::Left((Either::Left((reason, _)) | Either::Right((reason, _)), _)) => reason,
            Either::Right((Either::Left((reason, _)) | Either::Right((reason, _)), _)) => reason,
        };
        *self.link.lock() = None;
        for disk in self.disks.lock().values() {
            disk.set_silent(true);
        }
        link.end(&reason);
        reason
    }

    async fn receive(self: &Arc<Self>, link: &Link, mut reader: FrameReader) -> String {
        loop {
            let mut frame = match reader.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return "it closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            };
            match std::mem::replace(&mut frame.message, Message::Ping {}) {
                Message::Reply(reply) => {
                    if !link.replied(frame, reply) {
                        return "it answered what nobody had asked".to_owned();
                    }
                }
                Message::State { disks } => self.note(disks),
                Message::Goodbye { reason } => {
                    return format!("it ended the connection: {reason}");
                }
                _ => return "it sent what only its clients send".to_owned(),
            }
        }
    }

    /// Looks after what is overdue, and says that we are there. Gives the reason for the end.
    async fn watch(&self, link: &Link) -> String {
        let clock = &self.env.clock;
        let mut said_at = clock.monotonic();
        loop {
            clock.sleep(TICK).await;
            link.expire();
            let age = link.heard.age();
            if age >= self.settings.dead_after {
                return format!("nothing was heard of it for {} s", age.as_secs());
            }
            if age >= self.settings.silent_after {
                for disk in self.disks.lock().values() {
                    disk.set_silent(true);
                }
            }
            if clock.monotonic().saturating_sub(said_at) >= HEARTBEAT {
                said_at = clock.monotonic();
                send_small(link.queue(), &Message::Ping {}, None);
            }
        }
    }

    /// Takes over what the node says of its disks. Those that it does not name are not served any more.
    fn note(self: &Arc<Self>, reports: Vec<DiskReport>) {
        let mut disks = self.disks.lock();
        for disk in disks.values() {
            if !reports.iter().any(|report| report.disk == disk.disk_id()) {
                disk.set_silent(true);
            }
        }
        for report in reports {
            match disks.get(&report.disk) {
                Some(disk) => disk.note(report),
                None => {
                    let disk = RemoteDisk::new(Arc::clone(self), report);
                    disks.insert(disk.disk_id(), Arc::new(disk));
                }
            }
        }
    }
}

/// What a reply should have been.
pub(crate) fn unexpected(reply: &Reply) -> String {
    let text = format!("{reply:?}");
    let name = text.split([' ', '{']).next().unwrap_or_default();
    format!("it answered with {name}, which is no answer to that")
}
