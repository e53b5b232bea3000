//! One connection: PDUs in, PDUs out, the tasks in between.
//!
//! Owns: cutting the stream into PDUs, digests, numbers, data that comes with commands, limits of one connection.
//! Must not know: what commands do (`execute`), who may log in (`login`).
//!
//! One task does all of it, so that nothing of a connection is locked. Sessions have one connection.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_base::buf::AlignedFill;
use cairn_base::{crc32c, crc32c_append};
use cairn_codec_iscsi::{
    Attribute, CHECKSUM_LEN_BYTES, CommandHeader, DATA_SEGMENT_LEN_BYTES_MAX, DataIn, Elsewhere,
    HEADER_LEN_BYTES, Header, KEYS_LEN_BYTES_MAX, Keys, LoginHeader, Negotiated, Numbers,
    RejectReason, Reply, Request, Residual, TaskFunction, TaskResponse, UNTAGGED, login_status,
};
use cairn_codec_scsi::{Command, Key, Sense, Status, code, lun_of_bytes};
use cairn_qos::{Client, Pass};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use crate::execute::{self, Checked, Outcome, Place};
use crate::login::{Answer, Login};
use crate::pass::{self, Handover, Route};
use crate::portal::Shared;
use crate::target::{PORT_GROUP, Session, View};
use crate::unit::{Nexus, TaskHandle, Unit};

/// Of a PDU of the login, which has nothing between header and data.
pub(crate) const LOGIN_HEADER_LEN_BYTES: usize = HEADER_LEN_BYTES;
/// Commands of one session that are under way at a time.
pub const WINDOW_COUNT: u32 = 128;
/// Data of one PDU during login.
const LOGIN_SEGMENT_LEN_BYTES_MAX: usize = 8192;
/// A login that takes longer is cut off.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(15);
/// An initiator that says nothing for so long is asked whether it is there, and given up after as long again.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// With so much to send nothing more is taken in.
const OUTPUT_LEN_BYTES_MAX: usize = 16 << 20;
/// An initiator that takes nothing of it for so long is given up.
const STALL_TIME_MAX: Duration = Duration::from_secs(60);
const READ_LEN_BYTES: usize = 64 << 10;
const SLICES_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(&'static str),
    #[error("the login was refused with status {0:#06x}")]
    Refused(u16),
    #[error("nothing came for too long")]
    Silent,
    /// Rule 9 of the cluster: another node may have changed what was read.
    #[error("this node's lease ended before an answer could be sent")]
    NoLease,
}

/// Memory that a command holds, of that of all.
struct Held {
    shared: Arc<Shared>,
    len_bytes: usize,
}

impl Held {
    fn take(shared: &Arc<Shared>, len_bytes: u64) -> Option<Self> {
        let len_bytes = usize::try_from(len_bytes).ok()?;
        let held: &AtomicUsize = &shared.held_bytes;
        let before = held.fetch_add(len_bytes, Ordering::AcqRel);
        let taken = Self {
            shared: Arc::clone(shared),
            len_bytes,
        };
        // Dropped, it gives back.
        (before + len_bytes <= shared.settings.held_bytes_max).then_some(taken)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared
            .held_bytes
            .fetch_sub(self.len_bytes, Ordering::AcqRel);
    }
}

/// A command with all that its answer needs.
struct Asked {
    header: CommandHeader,
    /// Bytes that the command is about, whatever the initiator expected.
    out_len_bytes: u64,
    /// R2Ts that were sent for it.
    asked_count: u32,
    is_immediate: bool,
}

/// A command whose data is coming.
struct Incoming {
    asked: Asked,
    /// The command, or how it ended before its data was there.
    work: Result<(Arc<Unit>, Checked), Outcome>,
    fill: AlignedFill,
    held: Option<Held>,
    /// Bytes that came, those that nobody wants included.
    arrived_bytes: u64,
    /// More comes without being asked for.
    is_open: bool,
    /// Asked for, up to here.
    asked_bytes: u64,
    /// Ends of what was asked for, with their tags.
    ready: VecDeque<(u32, u64)>,
    data_number: u32,
    /// Its number among the delayed, while it waits for its time: nothing is asked for before.
    delayed: Option<u64>,
}

/// A command that can begin.
struct Start {
    asked: Asked,
    unit: Arc<Unit>,
    checked: Checked,
    data: Bytes,
    held: Option<Held>,
}

enum Done {
    Command {
        asked: Box<Asked>,
        outcome: Outcome,
        is_aborted: bool,
        has_descriptor_sense: bool,
        held: Option<Held>,
    },
    Task {
        tag: u32,
        response: TaskResponse,
    },
}

type Running = Pin<Box<dyn Future<Output = Done> + Send>>;
/// Ready when the time of a delayed command has come: its tag, and its number among the delayed.
type Delayed = Pin<Box<dyn Future<Output = (u32, u64)> + Send>>;

/// A session that is logged in.
struct Live {
    id: u64,
    session: Arc<Session>,
    nexus: Nexus,
    /// `None` in a discovery session.
    view: Option<View>,
    _ended: watch::Sender<()>,
}

/// How a connection came here.
pub(crate) struct Entry {
    /// Where the initiator came in.
    pub local: SocketAddr,
    /// The target port group of that place, if another node says so.
    pub group: Option<u16>,
    /// Of the first answer.
    pub status_number: u32,
    /// By another node.
    pub is_passed: bool,
}

impl Entry {
    pub fn of_listener(local: SocketAddr) -> Self {
        Self {
            local,
            group: None,
            status_number: 1,
            is_passed: false,
        }
    }
}

/// What a connection goes over.
pub(crate) enum Link {
    Tcp(TcpStream),
    /// Its other end is the stream of another node.
    Passed(UnixStream),
}

impl Link {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Passed(stream) => stream.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Passed(stream) => stream.writable().await,
        }
    }

    fn try_read_buf(&self, to: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(to),
            Self::Passed(stream) => stream.try_read_buf(to),
        }
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Passed(stream) => stream.try_write_vectored(slices),
        }
    }
}

struct Connection {
    stream: Link,
    peer: SocketAddr,
    /// Whose rate its commands count for.
    client: Client,
    entry: Entry,
    /// It goes on at another node.
    handover: Option<Handover>,
    /// Targets of other nodes that the initiator sees, in a discovery session.
    targets_elsewhere: Vec<String>,
    shared: Arc<Shared>,
    input: BytesMut,
    output: VecDeque<Bytes>,
    output_bytes: usize,
    login: Option<Login>,
    login_text: Vec<u8>,
    negotiated: Negotiated,
    live: Option<Live>,
    expected_command: u32,
    status_number: u32,
    /// Commands that take a place in the window.
    open_count: u32,
    incoming: HashMap<u32, Incoming>,
    waiting: VecDeque<Start>,
    /// Commands that wait for their time and whose data is not to come.
    parked: HashMap<u32, (u64, Start)>,
    delayed: FuturesUnordered<Delayed>,
    delayed_next: u64,
    active: HashMap<u32, (u16, TaskHandle)>,
    running: FuturesUnordered<Running>,
    running_commands: usize,
    ordered_runs: bool,
    text: Vec<u8>,
    /// What is left of an answer in text that does not fit into one PDU.
    text_left: Option<Bytes>,
    transfer_tag_next: u32,
    /// Asked whether it is there, and it has not answered.
    pinged: bool,
    /// Ends when all is sent.
    is_closing: bool,
}

/// A PDU with its data.
struct Pdu {
    header: Header,
    data: Bytes,
    is_damaged: bool,
}

/// Serves a connection until it ends.
pub async fn serve(
    shared: Arc<Shared>,
    stream: Link,
    peer: SocketAddr,
    entry: Entry,
    stop: watch::Receiver<bool>,
) {
    let mut connection = Connection {
        stream,
        peer,
        client: Client::address(peer.ip()),
        login: Some(Login::new(Arc::clone(&shared.targets), entry.is_passed)),
        shared,
        input: BytesMut::new(),
        output: VecDeque::new(),
        output_bytes: 0,
        login_text: Vec::new(),
        negotiated: Negotiated::default(),
        live: None,
        expected_command: 0,
        status_number: entry.status_number,
        entry,
        handover: None,
        targets_elsewhere: Vec::new(),
        open_count: 0,
        incoming: HashMap::new(),
        waiting: VecDeque::new(),
        parked: HashMap::new(),
        delayed: FuturesUnordered::new(),
        delayed_next: 0,
        active: HashMap::new(),
        running: FuturesUnordered::new(),
        running_commands: 0,
        ordered_runs: false,
        text: Vec::new(),
        text_left: None,
        transfer_tag_next: 1,
        pinged: false,
        is_closing: false,
    };
    let ended = connection.run(stop.clone()).await;
    if let (Some(handover), Some(nodes)) = (
        connection.handover.take(),
        connection.shared.targets.nodes(),
    ) {
        // Only connections of initiators are passed on.
        if let Link::Tcp(stream) = connection.stream {
            pass::pass(
                &connection.shared,
                nodes,
                stream,
                handover,
                connection.input,
                stop,
            )
            .await;
        }
        return;
    }
    match ended {
        Ok(()) => {}
        Err(Broken::Io(error)) => tracing::debug!(%peer, "connection lost: {error}"),
        Err(error) => {
            connection
                .shared
                .broken_count
                .fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, "iSCSI connection closed: {error}");
        }
    }
    // What was begun is done to its end, so that a new session of the initiator does not race with it.
    connection.waiting.clear();
    connection.incoming.clear();
    connection.parked.clear();
    connection.delayed.clear();
    while connection.running.next().await.is_some() {}
    if let Some(live) = connection.live.take() {
        connection.shared.targets.end_session(live.id);
    }
}

/// Where the login goes whose first request this is. `came`: the initiator, where it came in, and the target port group of that
/// if another node said so.
async fn route(
    shared: Arc<Shared>,
    came: (SocketAddr, SocketAddr, Option<u16>),
    status_number: u32,
    header: Header,
    text: &[u8],
) -> Route {
    let here = |group| Route::Here(group, Elsewhere::default());
    let (client, local, group) = came;
    let (Some(nodes), None) = (shared.targets.nodes(), group) else {
        return here(group.unwrap_or(PORT_GROUP));
    };
    let Ok(keys) = Keys::parse(text) else {
        return here(PORT_GROUP);
    };
    let first = || pass::whole_request(&header.0, text);
    pass::route(&shared, nodes, &keys, client, local, status_number, first).await
}

impl Connection {
    async fn run(&mut self, mut stop: watch::Receiver<bool>) -> Result<(), Broken> {
        let clock = self.shared.targets.env().clock.clone();
        let mut end: Option<watch::Receiver<bool>> = None;
        let mut timer = clock.sleep(LOGIN_TIME_MAX);
        let mut sent_bytes = 0_u64;
        let mut ticks_without_progress = 0;
        loop {
            while self.output_bytes < OUTPUT_LEN_BYTES_MAX && !self.is_closing {
                let Some(pdu) = self.next_pdu()? else { break };
                self.pinged = false;
                self.take(pdu).await?;
                if self.handover.is_some() {
                    return self.drain().await;
                }
                if end.is_none()
                    && let Some(live) = &self.live
                {
                    end = Some(live.session.end.subscribe());
                    timer = clock.sleep(IDLE_TIME_MAX);
                }
            }
            sent_bytes += self.flush()?;
            if self.is_closing && self.output.is_empty() {
                return Ok(());
            }
            let has_output = !self.output.is_empty();
            let reads = self.output_bytes < OUTPUT_LEN_BYTES_MAX && !self.is_closing;
            let ends = async {
                match &mut end {
                    Some(end) => drop(end.wait_for(|ends| *ends).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(done) = self.running.next(), if !self.running.is_empty() => {
                    self.finish(done)?;
                    // Those that ended meanwhile, too: one flush for all.
                    while let Some(Some(done)) = futures_util::FutureExt::now_or_never(self.running.next()) {
                        self.finish(done)?;
                    }
                    self.pump();
                }
                Some((tag, number)) = self.delayed.next(), if !self.delayed.is_empty() => {
                    self.admitted(tag, number);
                    while let Some(Some((tag, number))) = futures_util::FutureExt::now_or_never(self.delayed.next()) {
                        self.admitted(tag, number);
                    }
                }
                ready = self.stream.readable(), if reads => {
                    ready?;
                    self.input.reserve(READ_LEN_BYTES);
                    match self.stream.try_read_buf(&mut self.input) {
                        Ok(0) => return Ok(()),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                ready = self.stream.writable(), if has_output => ready?,
                () = ends => {
                    self.end_politely();
                    end = None;
                }
                _ = stop.changed() => self.end_politely(),
                () = &mut timer => {
                    timer = clock.sleep(IDLE_TIME_MAX);
                    if self.live.is_none() {
                        return Err(Broken::Silent);
                    }
                    if has_output {
                        ticks_without_progress += 1;
                        if std::mem::take(&mut sent_bytes) > 0 {
                            ticks_without_progress = 0;
                        }
                        if IDLE_TIME_MAX * ticks_without_progress > STALL_TIME_MAX {
                            return Err(Broken::Silent);
                        }
                    } else if std::mem::replace(&mut self.pinged, true) && self.running.is_empty() {
                        return Err(Broken::Silent);
                    } else {
                        let ping = Reply::NopIn { lun: [0; 8], tag: UNTAGGED, target_tag: 0x7fff_fffe };
                        self.send(&ping, Vec::new());
                    }
                }
            }
        }
    }

    /// Sends all that is to be sent.
    async fn drain(&mut self) -> Result<(), Broken> {
        loop {
            self.flush()?;
            if self.output.is_empty() {
                return Ok(());
            }
            let writable = tokio::time::timeout(LOGIN_TIME_MAX, self.stream.writable()).await;
            writable.map_err(|_| Broken::Silent)??;
        }
    }

    /// Tells the initiator that the session ends, and ends it.
    fn end_politely(&mut self) {
        if self.live.is_some() && !self.is_closing {
            // The target drops the connections of the session (RFC 7143, section 11.9.1).
            let event = Reply::Async {
                lun: [0; 8],
                event: 3,
                parameters: [0, 2, 0],
            };
            self.send(&event, Vec::new());
        }
        self.is_closing = true;
    }

    fn next_pdu(&mut self) -> Result<Option<Pdu>, Broken> {
        let Some(header) = self.input.first_chunk::<HEADER_LEN_BYTES>() else {
            return Ok(None);
        };
        let header = Header(*header);
        let is_full = self.live.is_some();
        let head_len = HEADER_LEN_BYTES + header.additional_len_bytes();
        let has_head_digest = is_full && self.negotiated.header_digest;
        let head_end = head_len
            + if has_head_digest {
                CHECKSUM_LEN_BYTES
            } else {
                0
            };
        if self.input.len() < head_end {
            self.input.reserve(head_end - self.input.len());
            return Ok(None);
        }
        if has_head_digest {
            let (head, digest) = self.input[..head_end].split_at(head_len);
            // Its length may be what is wrong: nothing after it can be trusted.
            if crc32c(head).to_le_bytes() != digest {
                return Err(Broken::Protocol("the digest of a header is wrong"));
            }
        }
        let data_len = header.data_len_bytes();
        let most = match is_full {
            true => DATA_SEGMENT_LEN_BYTES_MAX as usize,
            // The node that passed it on has put the first request together.
            false if self.entry.is_passed => KEYS_LEN_BYTES_MAX,
            false => LOGIN_SEGMENT_LEN_BYTES_MAX,
        };
        if data_len > most {
            return Err(Broken::Protocol("a PDU has more data than was agreed on"));
        }
        let has_data_digest = is_full && self.negotiated.data_digest && data_len > 0;
        let padded = data_len.next_multiple_of(4);
        let total = head_end
            + padded
            + if has_data_digest {
                CHECKSUM_LEN_BYTES
            } else {
                0
            };
        if self.input.len() < total {
            self.input.reserve(total - self.input.len());
            return Ok(None);
        }
        let pdu = self.input.split_to(total).freeze();
        let is_damaged = has_data_digest && {
            let digest = &pdu[head_end + padded..];
            crc32c(&pdu[head_end..head_end + padded]).to_le_bytes() != digest
        };
        Ok(Some(Pdu {
            header,
            data: pdu.slice(head_end..head_end + data_len),
            is_damaged,
        }))
    }

    async fn take(&mut self, pdu: Pdu) -> Result<(), Broken> {
        let Ok(request) = pdu.header.request() else {
            if self.live.is_none() {
                return Err(Broken::Protocol("what came first is no login"));
            }
            self.reject(RejectReason::NotSupported, &pdu.header);
            return Ok(());
        };
        if self.live.is_none() {
            return match request {
                Request::Login(header) => self.login(&header, &pdu).await,
                _ => Err(Broken::Protocol("a command before the login")),
            };
        }
        if pdu.is_damaged {
            // Without a recovery level the session begins anew.
            self.reject(RejectReason::DataDigest, &pdu.header);
            self.is_closing = true;
            return Ok(());
        }
        let is_immediate = pdu.header.is_immediate();
        let is_discovery = self.live.as_ref().is_none_or(|live| live.view.is_none());
        match request {
            Request::Login(_) => Err(Broken::Protocol("a second login")),
            Request::NopOut {
                lun, tag, numbers, ..
            } => {
                if tag != UNTAGGED && self.in_order(is_immediate, &numbers) {
                    let most = self.negotiated.send_segment_len_bytes as usize;
                    let echo = pdu.data.slice(..pdu.data.len().min(most));
                    let reply = Reply::NopIn {
                        lun,
                        tag,
                        target_tag: UNTAGGED,
                    };
                    self.send(&reply, vec![echo]);
                }
                Ok(())
            }
            Request::Text {
                is_final,
                continues,
                tag,
                target_tag,
                numbers,
                ..
            } => {
                if self.in_order(is_immediate, &numbers) {
                    self.text(is_final && !continues, tag, target_tag, &pdu)?;
                }
                Ok(())
            }
            Request::Logout {
                reason,
                tag,
                numbers,
                ..
            } => {
                if self.in_order(is_immediate, &numbers) {
                    let response = if reason > 1 { 2 } else { 0 };
                    self.send(&Reply::Logout { tag, response }, Vec::new());
                    self.is_closing = reason <= 1;
                }
                Ok(())
            }
            Request::Snack { .. } => {
                self.reject(RejectReason::Snack, &pdu.header);
                Ok(())
            }
            _ if is_discovery => {
                self.reject(RejectReason::Protocol, &pdu.header);
                Ok(())
            }
            Request::Command(header) => {
                if self.in_order(is_immediate, &header.numbers) {
                    self.command(header, is_immediate, &pdu)?;
                }
                Ok(())
            }
            Request::Task {
                function,
                lun,
                tag,
                referenced_tag,
                numbers,
                ..
            } => {
                if self.in_order(is_immediate, &numbers) {
                    self.task(function, lun, tag, referenced_tag);
                }
                Ok(())
            }
            Request::DataOut {
                is_final,
                tag,
                target_tag,
                data_number,
                offset_bytes,
            } => {
                self.data_out(
                    is_final,
                    tag,
                    target_tag,
                    data_number,
                    offset_bytes,
                    &pdu.data,
                );
                Ok(())
            }
        }
    }

    /// Whether a request is the next one. Others are ignored (RFC 7143, section 4.2.2.1): with one connection there are no gaps.
    fn in_order(&mut self, is_immediate: bool, numbers: &Numbers) -> bool {
        if is_immediate {
            return true;
        }
        if numbers.command != self.expected_command || self.open_count >= WINDOW_COUNT {
            return false;
        }
        self.expected_command = self.expected_command.wrapping_add(1);
        true
    }

    async fn login(&mut self, header: &LoginHeader, pdu: &Pdu) -> Result<(), Broken> {
        let Some(mut login) = self.login.take() else {
            return Err(Broken::Protocol("a second login"));
        };
        self.login_text.extend_from_slice(&pdu.data);
        if self.login_text.len() > KEYS_LEN_BYTES_MAX {
            return Err(Broken::Protocol("a login with too much text"));
        }
        self.expected_command = header.numbers.command;
        let reply =
            |connection: &mut Self, transit, stage, next_stage, tsih, status, text: Vec<u8>| {
                let reply = Reply::Login {
                    transit,
                    continues: false,
                    stage,
                    next_stage,
                    isid: header.isid,
                    tsih,
                    tag: header.tag,
                    status,
                };
                connection.send(&reply, vec![text.into()]);
            };
        if header.continues {
            reply(
                self,
                false,
                header.stage,
                0,
                0,
                login_status::SUCCESS,
                Vec::new(),
            );
            self.login = Some(login);
            return Ok(());
        }
        let text = std::mem::take(&mut self.login_text);
        let mut refused = None;
        if !login.has_begun() {
            let shared = Arc::clone(&self.shared);
            let came = (self.peer, self.entry.local, self.entry.group);
            match route(shared, came, self.status_number, pdu.header, &text).await {
                Route::Here(group, elsewhere) => {
                    login.group = group;
                    self.targets_elsewhere.clone_from(&elsewhere.targets);
                    login.elsewhere = elsewhere;
                }
                Route::Away(handover) => {
                    self.handover = Some(handover);
                    return Ok(());
                }
                Route::Refused(status) => refused = Some(Answer::failed(status, header.stage)),
            }
        }
        let answer = refused.unwrap_or_else(|| login.step(header, &text));
        if answer.status != login_status::SUCCESS {
            reply(self, false, answer.stage, 0, 0, answer.status, Vec::new());
            self.shared.refused_count.fetch_add(1, Ordering::Relaxed);
            // Sent as far as the socket takes it.
            self.flush()?;
            return Err(Broken::Refused(answer.status));
        }
        let mut tsih = 0;
        let mut live = None;
        if answer.is_done {
            tsih = self.shared.targets.new_tsih();
            let (ended_sender, ended) = watch::channel(());
            let session = Arc::new(Session {
                initiator: login.initiator.clone(),
                target: login.target.as_ref().and_then(|target| target.san.target()),
                volume: login.target.as_ref().map(|target| target.volume),
                isid: login.isid,
                tsih,
                group: login.group,
                peer: self.peer,
                begun_seconds: self.shared.targets.env().clock.now().seconds,
                end: watch::Sender::new(false),
                ended,
            });
            let id = self
                .shared
                .targets
                .begin_session(Arc::clone(&session))
                .await;
            let nexus = Nexus::new(&login.initiator, login.isid, login.group);
            let view = login
                .target
                .take()
                .map(|target| View::new(target, &login.initiator, login.group, nexus.clone()));
            live = Some(Live {
                id,
                session,
                nexus,
                view,
                _ended: ended_sender,
            });
        }
        // Before digests are on.
        reply(
            self,
            answer.transit,
            answer.stage,
            answer.next_stage,
            tsih,
            answer.status,
            answer.keys.encode(),
        );
        match live {
            Some(live) => {
                self.negotiated = login.negotiated.clone();
                self.live = Some(live);
            }
            None => self.login = Some(login),
        }
        Ok(())
    }

    fn text(&mut self, is_whole: bool, tag: u32, target_tag: u32, pdu: &Pdu) -> Result<(), Broken> {
        if target_tag != UNTAGGED && self.text_left.is_some() && pdu.data.is_empty() {
            self.send_text(tag);
            return Ok(());
        }
        self.text_left = None;
        self.text.extend_from_slice(&pdu.data);
        if self.text.len() > KEYS_LEN_BYTES_MAX {
            return Err(Broken::Protocol("too much text"));
        }
        if !is_whole {
            let reply = Reply::Text {
                is_final: false,
                continues: false,
                lun: [0; 8],
                tag,
                target_tag: 1,
            };
            self.send(&reply, Vec::new());
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        let Ok(keys) = Keys::parse(&text) else {
            self.reject(RejectReason::InvalidField, &pdu.header);
            return Ok(());
        };
        let mut answers = Keys::default();
        for (key, value) in keys.iter() {
            match key {
                "SendTargets" => self.send_targets(value, &mut answers),
                "MaxRecvDataSegmentLength" => drop(self.negotiated.take(key, value, true)),
                _ => answers.push(key, "NotUnderstood"),
            }
        }
        self.text_left = Some(answers.encode().into());
        self.send_text(tag);
        Ok(())
    }

    fn send_text(&mut self, tag: u32) {
        let mut text = self.text_left.take().unwrap_or_default();
        let most = self.negotiated.send_segment_len_bytes as usize;
        let part = text.split_to(text.len().min(most));
        let is_final = text.is_empty();
        let reply = Reply::Text {
            is_final,
            continues: !is_final,
            lun: [0; 8],
            tag,
            target_tag: if is_final { UNTAGGED } else { 1 },
        };
        if !is_final {
            self.text_left = Some(text);
        }
        self.send(&reply, vec![part]);
    }

    fn send_targets(&self, which: &str, answers: &mut Keys) {
        let Some(live) = &self.live else { return };
        let own = live.session.target.as_deref();
        let wanted = match (which, own) {
            ("All", None) => None,
            ("", Some(own)) => Some(own),
            // A session with a target learns of that one alone.
            ("All", Some(own)) => Some(own),
            (name, _) => Some(name),
        };
        let mut names = self.shared.targets.seen_by(&live.session.initiator);
        // A volume that came here meanwhile is in both.
        let elsewhere = self.targets_elsewhere.iter();
        let more: Vec<_> = elsewhere
            .filter(|name| !names.contains(name))
            .cloned()
            .collect();
        names.extend(more);
        for name in names {
            if wanted.is_none_or(|wanted| wanted == name) {
                answers.push("TargetName", name);
                for (portal, group) in self.shared.portals(self.entry.local) {
                    answers.push("TargetAddress", format!("{portal},{group}"));
                }
            }
        }
    }

    fn command(
        &mut self,
        header: CommandHeader,
        is_immediate: bool,
        pdu: &Pdu,
    ) -> Result<(), Broken> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let Some(view) = &mut live.view else {
            return Ok(());
        };
        if self.active.contains_key(&header.tag)
            || self.incoming.contains_key(&header.tag)
            || self.parked.contains_key(&header.tag)
        {
            return Err(Broken::Protocol("two commands with one tag"));
        }
        if !is_immediate {
            self.open_count += 1;
        }
        let place = view.place();
        let unit = lun_of_bytes(&header.lun)
            .and_then(|lun| place.units.get(&lun))
            .cloned();
        let checked = match &unit {
            None => Err(execute::without_unit(&place, &header.cdb)),
            Some(unit) => execute::check(unit, &live.nexus, &header.cdb),
        };
        let has_descriptor_sense = unit
            .as_ref()
            .is_some_and(|unit| unit.has_descriptor_sense());
        let out_len = checked.as_ref().map_or(0, |checked| checked.out_len_bytes);
        let expected = u64::from(header.expected_len_bytes);
        let sent = if header.writes { expected } else { 0 };
        let mut accept = sent.min(out_len);
        let reads = if header.reads {
            expected.min(execute::TRANSFER_LEN_BYTES_MAX)
        } else {
            0
        };
        let asked = Asked {
            header,
            out_len_bytes: out_len,
            asked_count: 0,
            is_immediate,
        };
        let mut held = None;
        let mut work = match (checked, unit) {
            (Ok(checked), Some(unit)) => Ok((unit, checked)),
            (Err(outcome), _) => Err(outcome),
            (Ok(_), None) => Err(Outcome::failed(Sense::illegal(code::LUN_NOT_SUPPORTED))),
        };
        if accept < out_len
            && let Ok((unit, checked)) = &mut work
            && let Some((shorter, len)) = execute::shortened(unit, *checked, accept)
        {
            *checked = shorter;
            accept = len;
        }
        let is_exact = |work: &Result<(Arc<Unit>, Checked), Outcome>| match work {
            Ok((_, checked)) => match checked.command {
                Command::Write { .. } | Command::WriteAndVerify { .. } => true,
                Command::CompareAndWrite { .. } => sent == out_len,
                _ => accept == out_len,
            },
            Err(_) => true,
        };
        // More than twice the blocks would be a length that the command cannot say.
        if work.is_ok() && !is_exact(&work) {
            // Less comes than the command is about: nothing of it is written.
            work = Err(Outcome::failed(Sense::illegal(code::INVALID_FIELD_IN_CDB)));
        }
        let mut pass = None;
        if let Ok((unit, checked)) = &work
            && let Some(operation) = execute::counted(unit, checked, accept)
            // An ordered one waits in its place, where those behind it wait for it.
            && header.attribute != Attribute::Ordered
        {
            pass = place.gate.admit(self.client, operation);
        }
        let immediate_len = pdu.data.len() as u64;
        if work.is_ok() {
            // What is delayed holds what has come, and no more.
            let len_bytes = match pass {
                None => accept.max(reads),
                Some(_) => immediate_len,
            };
            held = Held::take(&self.shared, len_bytes);
            if held.is_none() {
                work = Err(Outcome::of(Status::TaskSetFull));
            }
        }
        if immediate_len > u64::from(self.negotiated.first_burst_len_bytes) && header.writes {
            return Err(Broken::Protocol("more unsolicited data than was agreed on"));
        }
        let accept = if work.is_ok() { accept } else { 0 };
        let is_open = header.writes && !header.is_final;
        if accept == 0 && !is_open {
            match work {
                Ok((unit, checked)) => {
                    let start = Start {
                        asked,
                        unit,
                        checked,
                        data: Bytes::new(),
                        held,
                    };
                    match pass {
                        None => self.waiting.push_back(start),
                        Some(pass) => {
                            let number = self.delay(header.tag, pass);
                            self.parked.insert(header.tag, (number, start));
                        }
                    }
                }
                Err(outcome) => {
                    self.answer(&asked, outcome, has_descriptor_sense);
                }
            }
            self.pump();
            return Ok(());
        }
        let mut fill = AlignedFill::new(accept as usize);
        fill.fill_from(&pdu.data);
        let tag = header.tag;
        let delayed = match (pass, work.is_ok()) {
            (Some(pass), true) => Some(self.delay(tag, pass)),
            _ => None,
        };
        let incoming = Incoming {
            asked,
            work,
            fill,
            held,
            arrived_bytes: immediate_len,
            is_open,
            asked_bytes: immediate_len.min(accept),
            ready: VecDeque::new(),
            data_number: 0,
            delayed,
        };
        self.incoming.insert(tag, incoming);
        self.go_on(tag);
        Ok(())
    }

    /// Notes that a command waits for its time.
    fn delay(&mut self, tag: u32, pass: Pass) -> u64 {
        let number = self.delayed_next;
        self.delayed_next += 1;
        self.delayed.push(Box::pin(async move {
            pass.await;
            (tag, number)
        }));
        number
    }

    /// The time of a delayed command has come, if it is still there.
    fn admitted(&mut self, tag: u32, number: u64) {
        if let Some(incoming) = self.incoming.get_mut(&tag)
            && incoming.delayed == Some(number)
        {
            incoming.delayed = None;
            if incoming.work.is_ok() {
                incoming.held = None;
                incoming.held = Held::take(&self.shared, incoming.fill.len_bytes() as u64);
                if incoming.held.is_none() {
                    incoming.work = Err(Outcome::of(Status::TaskSetFull));
                }
            }
            self.go_on(tag);
            return;
        }
        if self.parked.get(&tag).is_none_or(|(at, _)| *at != number) {
            return;
        }
        let Some((_, mut start)) = self.parked.remove(&tag) else {
            return;
        };
        let header = &start.asked.header;
        let len_bytes = match header.reads {
            true => u64::from(header.expected_len_bytes).min(execute::TRANSFER_LEN_BYTES_MAX),
            false => 0,
        };
        start.held = Held::take(&self.shared, len_bytes);
        match start.held {
            Some(_) => self.waiting.push_back(start),
            None => self.answer(&start.asked, Outcome::of(Status::TaskSetFull), false),
        }
        self.pump();
    }

    /// Asks for more data of a command, or begins it if all is there.
    fn go_on(&mut self, tag: u32) {
        let Some(incoming) = self.incoming.get_mut(&tag) else {
            return;
        };
        if incoming.is_open || (!incoming.ready.is_empty() && incoming.work.is_err()) {
            return;
        }
        if incoming.delayed.is_some() && incoming.work.is_ok() {
            return;
        }
        let accept = incoming.fill.len_bytes() as u64;
        if incoming.work.is_ok() && incoming.fill.missing_bytes() > 0 {
            let mut replies = Vec::new();
            while incoming.asked_bytes < accept
                && incoming.ready.len() < self.negotiated.outstanding_r2t as usize
            {
                let len =
                    (accept - incoming.asked_bytes).min(self.negotiated.burst_len_bytes.into());
                let target_tag = self.transfer_tag_next;
                self.transfer_tag_next = self.transfer_tag_next.wrapping_add(1) & 0x7fff_ffff;
                replies.push(Reply::ReadyToTransfer {
                    lun: incoming.asked.header.lun,
                    tag,
                    target_tag,
                    number: incoming.asked.asked_count,
                    offset_bytes: incoming.asked_bytes as u32,
                    len_bytes: len as u32,
                });
                incoming.asked.asked_count += 1;
                incoming.asked_bytes += len;
                incoming.ready.push_back((target_tag, incoming.asked_bytes));
            }
            for reply in replies {
                self.send(&reply, Vec::new());
            }
            return;
        }
        let Some(Incoming {
            asked,
            work,
            fill,
            held,
            ..
        }) = self.incoming.remove(&tag)
        else {
            return;
        };
        match work {
            Ok((unit, checked)) => self.waiting.push_back(Start {
                asked,
                unit,
                checked,
                data: fill.finish().freeze(),
                held,
            }),
            Err(outcome) => self.answer(&asked, outcome, false),
        }
        self.pump();
    }

    fn data_out(
        &mut self,
        is_final: bool,
        tag: u32,
        target_tag: u32,
        number: u32,
        offset_bytes: u32,
        data: &Bytes,
    ) {
        // Of a task that was aborted, or ended early: it is of no interest any more.
        let Some(incoming) = self.incoming.get_mut(&tag) else {
            return;
        };
        let is_solicited = target_tag != UNTAGGED;
        let failed = |incoming: &mut Incoming| {
            if incoming.work.is_ok() {
                let sense = Sense::new(Key::AbortedCommand, code::DATA_PHASE_ERROR);
                incoming.work = Err(Outcome::failed(sense));
            }
        };
        let is_expected = match is_solicited {
            true => incoming.ready.front().is_some_and(|(expected, end)| {
                *expected == target_tag && u64::from(offset_bytes) + data.len() as u64 <= *end
            }),
            false => {
                let end = u64::from(offset_bytes) + data.len() as u64;
                incoming.is_open && end <= u64::from(self.negotiated.first_burst_len_bytes)
            }
        };
        if !is_expected
            || u64::from(offset_bytes) != incoming.arrived_bytes
            || number != incoming.data_number
        {
            failed(incoming);
        }
        incoming.data_number = number.wrapping_add(1);
        incoming.arrived_bytes = u64::from(offset_bytes) + data.len() as u64;
        if incoming.work.is_ok() {
            incoming.fill.fill_from(data);
        }
        if is_final {
            incoming.data_number = 0;
            if is_solicited {
                let end = incoming.ready.pop_front().map(|(_, end)| end);
                if end != Some(incoming.arrived_bytes) {
                    failed(incoming);
                }
            } else {
                incoming.is_open = false;
                incoming.asked_bytes = incoming.arrived_bytes.min(incoming.fill.len_bytes() as u64);
            }
            if incoming.work.is_err() {
                // What is still on its way is dropped when it comes.
                incoming.ready.clear();
            }
            self.go_on(tag);
        }
    }

    /// Begins what can begin. An ordered command waits for those before it, and those after it wait for it.
    fn pump(&mut self) {
        while let Some(next) = self.waiting.front() {
            let is_ordered = next.asked.header.attribute == Attribute::Ordered;
            if self.ordered_runs || (is_ordered && self.running_commands > 0) {
                return;
            }
            let Some(start) = self.waiting.pop_front() else {
                return;
            };
            self.ordered_runs = is_ordered;
            self.begin(start);
        }
    }

    fn begin(&mut self, start: Start) {
        let Some(live) = &mut self.live else { return };
        let Some(view) = &mut live.view else { return };
        let Start {
            asked,
            unit,
            checked,
            data,
            held,
        } = start;
        let place: Arc<Place> = view.place();
        let nexus = live.nexus.clone();
        let guard = unit.begin_task(&nexus);
        let lun = lun_of_bytes(&asked.header.lun).unwrap_or(0);
        self.active.insert(asked.header.tag, (lun, guard.handle()));
        self.running_commands += 1;
        let is_ordered = asked.header.attribute == Attribute::Ordered;
        let (gate, client) = (Arc::clone(&place.gate), self.client);
        let work = async move {
            let operation = execute::counted(&unit, &checked, data.len() as u64);
            if let Some(operation) = operation.filter(|_| is_ordered) {
                gate.pass(client, operation).await;
            }
            let outcome = execute::execute(&unit, &nexus, &place, &guard, checked, data).await;
            Done::Command {
                asked: Box::new(asked),
                outcome,
                is_aborted: guard.is_aborted(),
                has_descriptor_sense: unit.has_descriptor_sense(),
                held,
            }
        };
        self.running.push(Box::pin(work));
    }

    fn finish(&mut self, done: Done) -> Result<(), Broken> {
        if !(self.shared.may_answer)() {
            return Err(Broken::NoLease);
        }
        match done {
            Done::Command {
                asked,
                outcome,
                is_aborted,
                has_descriptor_sense,
                held,
            } => {
                self.active.remove(&asked.header.tag);
                self.running_commands -= 1;
                if asked.header.attribute == Attribute::Ordered {
                    self.ordered_runs = false;
                }
                if is_aborted {
                    // Nobody waits for its answer any more.
                    if !asked.is_immediate {
                        self.open_count -= 1;
                    }
                } else {
                    self.answer(&asked, outcome, has_descriptor_sense);
                }
                drop(held);
            }
            Done::Task { tag, response } => self.send(&Reply::Task { tag, response }, Vec::new()),
        }
        Ok(())
    }

    /// Sends the data and the status of a command.
    fn answer(&mut self, asked: &Asked, outcome: Outcome, has_descriptor_sense: bool) {
        let header = &asked.header;
        if !asked.is_immediate {
            self.open_count -= 1;
        }
        let expected = u64::from(header.expected_len_bytes);
        let len = outcome.len_bytes();
        let moved = match (header.writes, outcome.sense.is_some()) {
            // Of a command that failed before its data came nothing was used.
            (true, true) if asked.out_len_bytes == 0 => expected,
            (true, _) => asked.out_len_bytes,
            (false, true) => 0,
            (false, false) => len,
        };
        let residual = Residual::of(expected, moved);
        let tag = header.tag;
        if let Some(sense) = outcome.sense {
            let sense = match has_descriptor_sense {
                true => sense.descriptor(),
                false => sense.fixed().to_vec(),
            };
            let mut data = (sense.len() as u16).to_be_bytes().to_vec();
            data.extend(sense);
            let reply = Reply::Response {
                tag,
                response: 0,
                status: outcome.status as u8,
                data_count: asked.asked_count,
                residual,
            };
            self.send(&reply, vec![data.into()]);
            return;
        }
        let send = if header.reads { len.min(expected) } else { 0 };
        if send == 0 {
            let reply = Reply::Response {
                tag,
                response: 0,
                status: outcome.status as u8,
                data_count: asked.asked_count,
                residual,
            };
            self.send(&reply, Vec::new());
            return;
        }
        self.send_data(tag, outcome.data, send, (outcome.status as u8, residual));
    }

    fn send_data(&mut self, tag: u32, parts: Vec<Bytes>, len: u64, status: (u8, Residual)) {
        let mut parts = VecDeque::from(parts);
        let segment = u64::from(self.negotiated.send_segment_len_bytes);
        let burst = u64::from(self.negotiated.burst_len_bytes);
        let (mut at, mut number) = (0, 0);
        while at < len {
            let burst_left = burst - at % burst;
            let take = segment.min(burst_left).min(len - at);
            let mut data = Vec::new();
            let mut missing = take as usize;
            while missing > 0 {
                let Some(front) = parts.front_mut() else {
                    break;
                };
                let part = front.split_to(front.len().min(missing));
                missing -= part.len();
                if front.is_empty() {
                    parts.pop_front();
                }
                if !part.is_empty() {
                    data.push(part);
                }
            }
            let end = at + take;
            let is_last = end == len;
            let reply = Reply::DataIn(DataIn {
                is_final: is_last || end % burst == 0,
                status: is_last.then_some(status),
                tag,
                number,
                offset_bytes: at as u32,
            });
            self.send(&reply, data);
            at = end;
            number += 1;
        }
    }

    fn task(&mut self, function: TaskFunction, lun: [u8; 8], tag: u32, referenced: u32) {
        let Some(live) = &mut self.live else { return };
        let Some(view) = &mut live.view else { return };
        let nexus = live.nexus.clone();
        let place = view.place();
        let number = lun_of_bytes(&lun);
        let unit = number.and_then(|number| place.units.get(&number)).cloned();
        let done = move |response| Done::Task { tag, response };
        let at_once = move |response| -> Running { Box::pin(std::future::ready(done(response))) };
        let future: Running = match function {
            TaskFunction::AbortTask => {
                if self.incoming.contains_key(&referenced) {
                    self.forget_incoming(|one| one.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else if self
                    .waiting
                    .iter()
                    .any(|start| start.asked.header.tag == referenced)
                {
                    self.forget_waiting(|start| start.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else if self.parked.contains_key(&referenced) {
                    self.forget_waiting(|start| start.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else {
                    match self.active.remove(&referenced) {
                        Some((_, task)) => Box::pin(async move {
                            task.abort().await;
                            done(TaskResponse::Complete)
                        }),
                        None => at_once(TaskResponse::NoTask),
                    }
                }
            }
            TaskFunction::AbortTaskSet
            | TaskFunction::ClearTaskSet
            | TaskFunction::LogicalUnitReset => {
                let Some(unit) = unit else {
                    self.running.push(at_once(TaskResponse::NoLun));
                    return;
                };
                self.forget_incoming(|one| one.asked.header.lun == lun);
                self.forget_waiting(|start| start.asked.header.lun == lun);
                Box::pin(async move {
                    match function {
                        TaskFunction::AbortTaskSet => {
                            unit.abort(|other| *other == nexus, None).await
                        }
                        TaskFunction::ClearTaskSet => {
                            unit.abort(|_| true, None).await;
                            unit.attention_of_all(Some(&nexus), code::COMMANDS_CLEARED);
                        }
                        _ => unit.reset(code::POWER_ON).await,
                    }
                    done(TaskResponse::Complete)
                })
            }
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => {
                self.forget_incoming(|_| true);
                self.forget_waiting(|_| true);
                Box::pin(async move {
                    for unit in place.units.values() {
                        unit.reset(code::POWER_ON).await;
                    }
                    done(TaskResponse::Complete)
                })
            }
            TaskFunction::TaskReassign => at_once(TaskResponse::ReassignNotSupported),
            TaskFunction::ClearAca | TaskFunction::Unknown => at_once(TaskResponse::NotSupported),
        };
        self.running.push(future);
    }

    fn forget_incoming(&mut self, which: impl Fn(&Incoming) -> bool) {
        let open = &mut self.open_count;
        self.incoming.retain(|_, one| {
            let goes = which(one);
            if goes && !one.asked.is_immediate {
                *open -= 1;
            }
            !goes
        });
    }

    fn forget_waiting(&mut self, which: impl Fn(&Start) -> bool) {
        let open = &mut self.open_count;
        let mut stays = |start: &Start| {
            let goes = which(start);
            if goes && !start.asked.is_immediate {
                *open -= 1;
            }
            !goes
        };
        self.waiting.retain(|start| stays(start));
        self.parked.retain(|_, (_, start)| stays(start));
    }

    fn reject(&mut self, reason: RejectReason, header: &Header) {
        self.send(
            &Reply::Reject { reason },
            vec![Bytes::copy_from_slice(&header.0)],
        );
    }

    /// Puts a PDU into what is to be sent.
    fn send(&mut self, reply: &Reply, data: Vec<Bytes>) {
        let len: usize = data.iter().map(Bytes::len).sum();
        let max = self
            .expected_command
            .wrapping_add(WINDOW_COUNT - self.open_count.min(WINDOW_COUNT))
            .wrapping_sub(1);
        let header = reply.header(len, self.status_number, self.expected_command, max);
        if reply.has_status() {
            self.status_number = self.status_number.wrapping_add(1);
        }
        let is_login = matches!(reply, Reply::Login { .. });
        let mut head = BytesMut::with_capacity(HEADER_LEN_BYTES + CHECKSUM_LEN_BYTES);
        head.extend_from_slice(&header);
        if self.negotiated.header_digest && !is_login {
            head.extend_from_slice(&crc32c(&header).to_le_bytes());
        }
        self.push(head.freeze());
        if len == 0 {
            return;
        }
        const PADDING: [u8; 3] = [0; 3];
        let padding = PADDING
            .get(..len.next_multiple_of(4) - len)
            .unwrap_or_default();
        if self.negotiated.data_digest && !is_login {
            let sum = data
                .iter()
                .fold(crc32c(&[]), |sum, part| crc32c_append(sum, part));
            let sum = crc32c_append(sum, padding);
            let mut tail = padding.to_vec();
            tail.extend(sum.to_le_bytes());
            data.into_iter().for_each(|part| self.push(part));
            self.push(tail.into());
        } else {
            data.into_iter().for_each(|part| self.push(part));
            self.push(Bytes::from_static(
                &PADDING[..len.next_multiple_of(4) - len],
            ));
        }
    }

    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.output_bytes += bytes.len();
            self.output.push_back(bytes);
        }
    }

    /// Sends as much as the socket takes.
    fn flush(&mut self) -> Result<u64, Broken> {
        let mut sent = 0;
        while !self.output.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .output
                .iter()
                .take(SLICES_MAX)
                .map(|part| IoSlice::new(part))
                .collect();
            let mut written = match self.stream.try_write_vectored(&slices) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            self.output_bytes -= written;
            sent += written as u64;
            while let Some(front) = self.output.front_mut() {
                if written < front.len() {
                    drop(front.split_to(written));
                    break;
                }
                written -= front.len();
                self.output.pop_front();
            }
        }
        Ok(sent)
    }
}
