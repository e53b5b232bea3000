//! A session that is logged in: its connections, and the order of its commands.
//!
//! Owns: which connections it has, numbers of commands, text, logout, when it ends. Must not know: what commands do (`execute`),
//! how their data comes (`tasks`).
//!
//! One task does all of it, so that nothing of a session is locked: a connection that joins comes to the thread of the first.
//! A command whose number is not the next one stays with its connection, of which nothing more is taken until it is: what
//! is missing is on its way over another one.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::busy_poll::ConnectionRequests;
use cairn_codec_iscsi::{
    CONNECTION_COUNT_MAX, KEYS_LEN_BYTES_MAX, Keys, Negotiated, Numbers, RejectReason, Reply,
    Request, UNTAGGED, login_status, serial_before,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};

use crate::connection::note_end;
use cairn_forward::Admission;

use crate::lane::{Broken, FreeLane, Lane, Pdu, Window};
use crate::login::Login;
use crate::portal::PortalCore;
use crate::target::{Session, View};
use crate::tasks::{Active, Delayed, Incoming, Running, Start};
use crate::unit::Nexus;

/// Commands of one session that are under way at a time.
pub const WINDOW_COUNT: u32 = 128;
/// An initiator that says nothing for so long is asked whether it is there, and given up after as long again. A command that
/// is missing is waited for as long.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// Connections of one session that wait to join it.
const JOINS_MAX: usize = CONNECTION_COUNT_MAX as usize;
// Connections are told apart by bits.
const _: () = assert!(2 * JOINS_MAX + 1 < u64::BITS as usize);

/// A connection that joins a session, and what its last login request is answered with.
pub(crate) struct Joining {
    pub lane: FreeLane,
    pub reply: Reply,
    pub text: Bytes,
}

impl Joining {
    /// Turns the reply into a refusal with this status.
    pub fn refused(self, status: u16) -> Self {
        let reply = match self.reply {
            Reply::Login {
                stage, isid, tag, ..
            } => Reply::Login {
                transit: false,
                continues: false,
                stage,
                next_stage: 0,
                isid,
                tsih: 0,
                tag,
                status,
            },
            reply => reply,
        };
        Self {
            reply,
            text: Bytes::new(),
            ..self
        }
    }
}

/// A session that begins.
pub(crate) struct Begun {
    id: u64,
    pub session: Arc<Session>,
    nexus: Nexus,
    view: Option<View>,
    joins: mpsc::Receiver<Joining>,
    ended: watch::Sender<()>,
    told: ConnectionRequests,
}

impl Begun {
    /// Ends the session that this one takes the place of.
    pub async fn begin(
        shared: &Arc<PortalCore>,
        login: &mut Login,
        peer: std::net::SocketAddr,
        told: ConnectionRequests,
    ) -> Self {
        let targets = &shared.targets;
        let (ended, wait) = watch::channel(());
        let (sender, joins) = mpsc::channel(JOINS_MAX);
        let session = Arc::new(Session {
            initiator: login.initiator.clone(),
            target: login.target.as_ref().and_then(|target| target.san.target()),
            volume: login.target.as_ref().map(|target| target.volume),
            isid: login.isid,
            tsih: targets.new_tsih(),
            group: login.group,
            peer,
            begun_seconds: targets.env().clock.now().seconds,
            connections: AtomicU32::new(1),
            joins: sender,
            end: watch::Sender::new(false),
            ended: wait,
        });
        let id = targets.begin_session(Arc::clone(&session)).await;
        let nexus = Nexus::new(&login.initiator, login.isid, login.group);
        let view = login
            .target
            .take()
            .map(|target| View::new(target, &login.initiator, login.group, nexus.clone()));
        Self {
            id,
            session,
            nexus,
            view,
            joins,
            ended,
            told,
        }
    }
}

/// What became of a PDU.
enum Taken {
    Done,
    /// Its turn has not come.
    Early(Pdu),
}

pub(crate) struct SessionTask {
    pub shared: Arc<PortalCore>,
    session: Arc<Session>,
    pub nexus: Nexus,
    /// `None` in a discovery session.
    pub view: Option<View>,
    /// What holds for the whole session.
    pub agreed: Negotiated,
    targets_elsewhere: Vec<String>,
    pub lanes: Vec<Lane>,
    lane_next: u64,
    /// Connections that wait until what an older one with their number began has ended.
    waiting_joins: Vec<(u64, Joining)>,
    expected_command: u32,
    /// The command number that was missing at the last look.
    missing: Option<u32>,
    /// Commands that take a place in the window.
    pub open_count: u32,
    pub incoming: HashMap<u32, Incoming>,
    pub waiting: VecDeque<Start>,
    /// Commands that wait for their time and whose data is not to come.
    pub parked: HashMap<u32, (u64, Start)>,
    pub delayed: FuturesUnordered<Delayed>,
    pub delayed_next: u64,
    pub active: HashMap<u32, Active>,
    pub running: FuturesUnordered<Running>,
    /// Of those how many each connection began.
    pub running_of: HashMap<u64, usize>,
    /// Of connections that have ended, as long as what they began runs.
    pub admissions: HashMap<u64, Arc<Admission>>,
    pub running_commands: usize,
    pub ordered_runs: bool,
    pub transfer_tag_next: u32,
    /// Commands begun since the thread's busy poll was told.
    pub begun_count: u64,
    told: ConnectionRequests,
    is_ending: bool,
}

/// Serves a session, which begins with one connection, until it ends.
pub(crate) async fn serve(
    shared: Arc<PortalCore>,
    begun: Begun,
    lane: Lane,
    login: Login,
    command_number: u32,
    targets_elsewhere: Vec<String>,
    stop: watch::Receiver<bool>,
) {
    let Begun {
        id,
        session,
        nexus,
        view,
        joins,
        ended: _ended,
        told,
    } = begun;
    let peer = lane.peer;
    let mut task = SessionTask {
        shared: Arc::clone(&shared),
        session,
        nexus,
        view,
        agreed: login.negotiated,
        targets_elsewhere,
        lanes: vec![lane],
        lane_next: 1,
        waiting_joins: Vec::new(),
        expected_command: command_number,
        missing: None,
        open_count: 0,
        incoming: HashMap::new(),
        waiting: VecDeque::new(),
        parked: HashMap::new(),
        delayed: FuturesUnordered::new(),
        delayed_next: 0,
        active: HashMap::new(),
        running: FuturesUnordered::new(),
        running_of: HashMap::new(),
        admissions: HashMap::new(),
        running_commands: 0,
        ordered_runs: false,
        transfer_tag_next: 1,
        begun_count: 0,
        told,
        is_ending: false,
    };
    if let Err(error) = task.run(joins, stop).await {
        note_end(&shared, peer, Err(error));
    }
    // Nobody waits for answers any more. Who comes next waits until what was begun is done.
    let mut admissions: Vec<_> = std::mem::take(&mut task.admissions).into_values().collect();
    let lanes = std::mem::take(&mut task.lanes).into_iter();
    admissions.extend(lanes.filter_map(|mut lane| lane.entry.admission.take()));
    // A begun command is carried out to its end, so that a new session of the initiator does not race with it.
    task.waiting.clear();
    task.incoming.clear();
    task.parked.clear();
    task.delayed.clear();
    while task.running.next().await.is_some() {}
    drop(task);
    drop(admissions);
    shared.targets.end_session(id);
}

impl SessionTask {
    async fn run(
        &mut self,
        mut joins: mpsc::Receiver<Joining>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Broken> {
        let clock = self.shared.targets.env().clock.clone();
        let mut end = self.session.end.subscribe();
        let mut timer = clock.sleep(IDLE_TIME_MAX);
        loop {
            for lane in &mut self.lanes {
                lane.end_if_old();
            }
            self.take_all();
            // Before anybody is told.
            self.count();
            let held_back = self.held_back_count();
            for lane in &mut self.lanes {
                lane.advance();
            }
            self.bury();
            if self.lanes.is_empty() && self.waiting_joins.is_empty() {
                return Ok(());
            }
            // What came before is taken once there is room for its answers: nothing tells of it any more.
            if self.held_back_count() < held_back {
                continue;
            }
            let begun_count = std::mem::take(&mut self.begun_count);
            self.told.settled(begun_count, self.running.len());
            let is_ending = self.is_ending;
            let lanes = &self.lanes;
            tokio::select! {
                Some(done) = self.running.next(), if !self.running.is_empty() => {
                    self.finish(done)?;
                    // Those that ended meanwhile, too: one flush for all.
                    while let Some(Some(done)) = futures_util::FutureExt::now_or_never(self.running.next()) {
                        self.finish(done)?;
                    }
                    self.pump();
                    self.admit_joins();
                }
                Some((tag, number)) = self.delayed.next(), if !self.delayed.is_empty() => {
                    self.admitted(tag, number);
                    while let Some(Some((tag, number))) = futures_util::FutureExt::now_or_never(self.delayed.next()) {
                        self.admitted(tag, number);
                    }
                }
                readable = any_ready(lanes) => {
                    for (index, lane) in self.lanes.iter_mut().enumerate() {
                        if readable >> index & 1 == 1 {
                            lane.take_in();
                        }
                    }
                }
                Some(joining) = joins.recv(), if !is_ending => self.join(joining),
                _ = end.wait_for(|ends| *ends), if !is_ending => self.end_politely(),
                _ = stop.wait_for(|stops| *stops), if !is_ending => self.end_politely(),
                () = &mut timer => {
                    timer = clock.sleep(IDLE_TIME_MAX);
                    self.look_after();
                }
            }
        }
    }

    pub fn lane(&mut self, number: u64) -> Option<&mut Lane> {
        let mut lanes = self.lanes.iter_mut();
        lanes.find(|lane| lane.number == number && lane.ended.is_none())
    }

    fn window(&self) -> Window {
        let left = WINDOW_COUNT - self.open_count.min(WINDOW_COUNT);
        Window {
            expected: self.expected_command,
            last: self.expected_command.wrapping_add(left).wrapping_sub(1),
        }
    }

    /// Puts a PDU into what is to be sent over a connection, if that is there.
    pub fn send(&mut self, lane: u64, reply: &Reply, data: Vec<Bytes>) {
        let window = self.window();
        if let Some(lane) = self.lane(lane) {
            lane.send(reply, data, window);
        }
    }

    pub fn reject(&mut self, lane: u64, reason: RejectReason, pdu: &Pdu) {
        let header = Bytes::copy_from_slice(&pdu.header.0);
        self.send(lane, &Reply::Reject { reason }, vec![header]);
    }

    /// Takes all PDUs whose turn has come.
    fn take_all(&mut self) {
        loop {
            let before = self.expected_command;
            for index in 0..self.lanes.len() {
                self.take_from(index);
            }
            // What one connection brought may be what others wait for.
            let waits = self.lanes.iter().any(|lane| lane.early.is_some());
            if !waits || self.expected_command == before {
                return;
            }
        }
    }

    fn take_from(&mut self, index: usize) {
        while let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.takes()) {
            let pdu = match lane.early.take() {
                Some(pdu) => pdu,
                None => match lane.next_pdu() {
                    Ok(Some(pdu)) => pdu,
                    Ok(None) => return,
                    Err(error) => {
                        lane.ended = Some(Err(error));
                        return;
                    }
                },
            };
            lane.pinged = false;
            let number = lane.number;
            match self.take(number, pdu) {
                Ok(Taken::Done) => {}
                Ok(Taken::Early(pdu)) => {
                    if let Some(lane) = self.lanes.get_mut(index) {
                        lane.early = Some(pdu);
                    }
                    return;
                }
                Err(error) => {
                    if let Some(lane) = self.lanes.get_mut(index) {
                        lane.ended = Some(Err(error));
                    }
                    return;
                }
            }
        }
    }

    fn take(&mut self, lane: u64, pdu: Pdu) -> Result<Taken, Broken> {
        let Ok(request) = pdu.header.request() else {
            self.reject(lane, RejectReason::NotSupported, &pdu);
            return Ok(Taken::Done);
        };
        if pdu.is_damaged {
            // Without a recovery level the connection begins anew.
            self.reject(lane, RejectReason::DataDigest, &pdu);
            if let Some(lane) = self.lane(lane) {
                lane.is_closing = true;
            }
            return Ok(Taken::Done);
        }
        if let Some(numbers) = request.numbers().filter(|_| !pdu.header.is_immediate()) {
            match self.turn(numbers) {
                Turn::Now => {}
                Turn::Later => return Ok(Taken::Early(pdu)),
                Turn::Never => return Ok(Taken::Done),
            }
        }
        let is_discovery = self.view.is_none();
        match request {
            Request::Login(_) => return Err(Broken::Protocol("a second login")),
            Request::NopOut { lun, tag, .. } => {
                if tag != UNTAGGED {
                    let most = self.segment_len_bytes(lane);
                    let echo = pdu.data.slice(..pdu.data.len().min(most));
                    let reply = Reply::NopIn {
                        lun,
                        tag,
                        target_tag: UNTAGGED,
                    };
                    self.send(lane, &reply, vec![echo]);
                }
            }
            Request::Text {
                is_final,
                continues,
                tag,
                target_tag,
                ..
            } => self.text(lane, is_final && !continues, tag, target_tag, &pdu)?,
            Request::Logout {
                reason,
                tag,
                connection,
                ..
            } => self.logout(lane, reason, tag, connection),
            Request::Snack { .. } => self.reject(lane, RejectReason::Snack, &pdu),
            _ if is_discovery => self.reject(lane, RejectReason::Protocol, &pdu),
            Request::Command(header) => {
                let is_immediate = pdu.header.is_immediate();
                self.command(lane, header, is_immediate, &pdu.data)?;
            }
            Request::Task {
                function,
                lun,
                tag,
                referenced_tag,
                ..
            } => self.task(lane, function, lun, tag, referenced_tag),
            Request::DataOut {
                is_final,
                tag,
                target_tag,
                data_number,
                offset_bytes,
            } => self.data_out(
                lane,
                is_final,
                tag,
                target_tag,
                data_number,
                offset_bytes,
                &pdu.data,
            ),
        }
        Ok(Taken::Done)
    }

    /// Whether a request is the next one. What comes twice, or outside of the window, is ignored (RFC 7143, section 4.2.2.1).
    fn turn(&mut self, numbers: Numbers) -> Turn {
        let window = self.window();
        let is_open = self.open_count < WINDOW_COUNT;
        if numbers.command == window.expected && is_open {
            self.expected_command = self.expected_command.wrapping_add(1);
            return Turn::Now;
        }
        let is_ahead = serial_before(window.expected, numbers.command)
            && !serial_before(window.last, numbers.command);
        // With one connection there are no gaps.
        match is_ahead && self.lanes.len() + self.waiting_joins.len() > 1 {
            true => Turn::Later,
            false => Turn::Never,
        }
    }

    pub fn segment_len_bytes(&mut self, lane: u64) -> usize {
        let lane = self.lane(lane);
        lane.map_or(0, |lane| lane.negotiated.send_segment_len_bytes as usize)
    }

    fn logout(&mut self, lane: u64, reason: u8, tag: u32, connection: u16) {
        const DONE: u8 = 0;
        const NO_CONNECTION: u8 = 1;
        const NO_RECOVERY: u8 = 2;
        let named = self.lanes.iter().find(|one| one.connection == connection);
        let named = named.map(|one| one.number);
        let response = match (reason, named) {
            (0, _) => DONE,
            (1, Some(_)) => DONE,
            (1, None) => NO_CONNECTION,
            _ => NO_RECOVERY,
        };
        self.send(lane, &Reply::Logout { tag, response }, Vec::new());
        for one in &mut self.lanes {
            if response == DONE && (reason == 0 || Some(one.number) == named) {
                // What it began is not answered any more.
                one.is_closing = true;
            }
        }
    }

    fn text(
        &mut self,
        number: u64,
        is_whole: bool,
        tag: u32,
        target_tag: u32,
        pdu: &Pdu,
    ) -> Result<(), Broken> {
        let Some(lane) = self.lane(number) else {
            return Ok(());
        };
        if target_tag != UNTAGGED && lane.text_left.is_some() && pdu.data.is_empty() {
            self.send_text(number, tag);
            return Ok(());
        }
        lane.text_left = None;
        lane.text.extend_from_slice(&pdu.data);
        if lane.text.len() > KEYS_LEN_BYTES_MAX {
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
            self.send(number, &reply, Vec::new());
            return Ok(());
        }
        let text = std::mem::take(&mut lane.text);
        let local = lane.entry.local;
        let Ok(keys) = Keys::parse(&text) else {
            self.reject(number, RejectReason::InvalidField, pdu);
            return Ok(());
        };
        let mut answers = Keys::default();
        for (key, value) in keys.iter() {
            match (key, self.lane(number)) {
                ("SendTargets", _) => self.send_targets(value, local, &mut answers),
                ("MaxRecvDataSegmentLength", Some(lane)) => {
                    drop(lane.negotiated.take(key, value, true));
                }
                _ => answers.push(key, "NotUnderstood"),
            }
        }
        if let Some(lane) = self.lane(number) {
            lane.text_left = Some(answers.encode().into());
        }
        self.send_text(number, tag);
        Ok(())
    }

    fn send_text(&mut self, number: u64, tag: u32) {
        let most = self.segment_len_bytes(number);
        let Some(lane) = self.lane(number) else {
            return;
        };
        let mut text = lane.text_left.take().unwrap_or_default();
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
            lane.text_left = Some(text);
        }
        self.send(number, &reply, vec![part]);
    }

    fn send_targets(&self, which: &str, local: std::net::SocketAddr, answers: &mut Keys) {
        let own = self.session.target.as_deref();
        let wanted = match (which, own) {
            ("All", None) => None,
            ("", Some(own)) => Some(own),
            // A session with a target learns of that one alone.
            ("All", Some(own)) => Some(own),
            (name, _) => Some(name),
        };
        let mut names = self.shared.targets.seen_by(&self.session.initiator);
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
                for (portal, group) in self.shared.portals(local) {
                    answers.push("TargetAddress", format!("{portal},{group}"));
                }
            }
        }
    }

    /// Tells the initiator that the session ends, and ends it.
    fn end_politely(&mut self) {
        // The target drops the connections of the session (RFC 7143, section 11.9.1).
        let event = Reply::Async {
            lun: [0; 8],
            event: 3,
            parameters: [0, 2, 0],
        };
        let window = self.window();
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_closing) {
            lane.send(&event, Vec::new(), window);
            lane.is_closing = true;
        }
        self.waiting_joins.clear();
        self.is_ending = true;
    }

    /// Once in a while: who is silent, who takes nothing, what is missing.
    fn look_after(&mut self) {
        let window = self.window();
        let is_idle = self.running.is_empty();
        let is_waiting = self.lanes.iter().any(|lane| lane.early.is_some());
        let missing = is_waiting.then_some(self.expected_command);
        if missing.is_some() && missing == self.missing {
            for lane in &mut self.lanes {
                let error = Broken::Protocol("a command did not come that others wait for");
                lane.ended = Some(Err(error));
            }
            return;
        }
        self.missing = missing;
        for lane in &mut self.lanes {
            match lane.takes_output(IDLE_TIME_MAX) {
                Some(true) => {}
                Some(false) => lane.ended = Some(Err(Broken::Silent)),
                // Its answer would be behind the command that waits.
                None if lane.early.is_some() => {}
                None if std::mem::replace(&mut lane.pinged, true) && is_idle => {
                    lane.ended = Some(Err(Broken::Silent));
                }
                None => {
                    let ping = Reply::NopIn {
                        lun: [0; 8],
                        tag: UNTAGGED,
                        target_tag: 0x7fff_fffe,
                    };
                    lane.send(&ping, Vec::new(), window);
                }
            }
        }
    }

    /// Takes connections away that have ended, with what they began.
    fn bury(&mut self) {
        let mut index = 0;
        while let Some(lane) = self.lanes.get(index) {
            if lane.ended.is_none() {
                index += 1;
                continue;
            }
            let mut lane = self.lanes.remove(index);
            let is_last = self.lanes.is_empty() && self.waiting_joins.is_empty();
            if let Some(admission) = lane.entry.admission.take()
                && (is_last || self.running_of.contains_key(&lane.number))
            {
                self.admissions.insert(lane.number, admission);
            }
            if !is_last {
                self.forget_lane(lane.number);
            }
            self.count();
            note_end(&self.shared, lane.peer, lane.ended.take().unwrap_or(Ok(())));
        }
    }

    /// Connections of which nothing is taken because their answers are not.
    fn held_back_count(&self) -> usize {
        let lanes = self.lanes.iter();
        lanes.filter(|lane| lane.is_held_back()).count()
    }

    fn count(&self) {
        let count = self.lanes.iter().filter(|lane| lane.is_full).count();
        let connections = &self.session.connections;
        connections.store(count as u32, Ordering::Relaxed);
    }

    /// One more connection, or one in place of another: what that began ends before (RFC 7143, section 6.3.4).
    fn join(&mut self, joining: Joining) {
        let connection = joining.lane.connection;
        self.waiting_joins
            .retain(|(_, other)| other.lane.connection != connection);
        let old = self
            .lanes
            .iter()
            .position(|lane| lane.connection == connection);
        let old = old.map(|index| self.lanes.remove(index));
        let lanes = self.lanes.iter().filter(|lane| lane.is_full);
        let count = lanes.count() + self.waiting_joins.len();
        if old.is_none() && count >= self.agreed.connections as usize {
            self.refuse(joining);
            return;
        }
        let old = old.map_or(u64::MAX, |lane| {
            self.forget_lane(lane.number);
            tracing::debug!(peer = %lane.peer, connection, "an iSCSI connection was logged in again");
            lane.number
        });
        self.waiting_joins.push((old, joining));
        self.admit_joins();
    }

    fn admit_joins(&mut self) {
        let is_over = |running: &HashMap<u64, usize>, old: &u64| !running.contains_key(old);
        while let Some(index) = self
            .waiting_joins
            .iter()
            .position(|(old, _)| is_over(&self.running_of, old))
        {
            let (_, joining) = self.waiting_joins.remove(index);
            self.attach(joining, true);
        }
    }

    fn refuse(&mut self, joining: Joining) {
        // Those that were refused and take no answer do not add up.
        if self.lanes.len() > 2 * JOINS_MAX {
            return;
        }
        self.attach(joining.refused(login_status::TOO_MANY_CONNECTIONS), false);
    }

    fn attach(&mut self, joining: Joining, is_in: bool) {
        let Joining { lane, reply, text } = joining;
        let peer = lane.peer;
        let mut lane = match lane.attach() {
            Ok(lane) => lane,
            Err(error) => return note_end(&self.shared, peer, Err(error.into())),
        };
        lane.number = self.lane_next;
        self.lane_next += 1;
        lane.send(&reply, vec![text], self.window());
        lane.is_full = is_in;
        lane.is_closing = !is_in;
        self.lanes.push(lane);
    }
}

/// Whether it is the turn of a request.
enum Turn {
    Now,
    /// Others come before it, over other connections.
    Later,
    Never,
}

/// Which connections, as bits, have something to be read, when something can be done for any.
async fn any_ready(lanes: &[Lane]) -> u64 {
    poll_fn(|context| {
        let (mut readable, mut is_any) = (0, false);
        for (index, lane) in lanes.iter().enumerate() {
            let ready = lane.poll_ready(context);
            readable |= u64::from(ready.reads) << index;
            is_any |= ready.reads || ready.writes;
        }
        match is_any {
            true => Poll::Ready(readable),
            false => Poll::Pending,
        }
    })
    .await
}
