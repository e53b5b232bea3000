//! A connection until it is one of a session: its login.
//!
//! Owns: the PDUs of a login, where it goes: a session of its own, one that there is, another node.
//! Must not know: who may log in (`login`), what comes after.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::LogLimit;
use cairn_base::busy_poll::{BusyPoll, ConnectionRequests};
use cairn_codec_iscsi::{
    Elsewhere, HEADER_LEN_BYTES, Header, KEYS_LEN_BYTES_MAX, Keys, LoginHeader, Reply, Request,
    login_status,
};
use cairn_forward::Admission;
use tokio::sync::{mpsc, watch};

use crate::lane::{Broken, Lane, Pdu, Window};
use crate::link::{Entry, Link};
use crate::login::{Answer, Login};
use crate::pass::{self, Handover, Route};
use crate::portal::{Permit, PortalCore};
use crate::session::{self, Joining, WINDOW_COUNT};
use crate::target::{PORT_GROUP, Session};

/// Of a PDU of the login, which has nothing between header and data.
pub(crate) const LOGIN_HEADER_LEN_BYTES: usize = HEADER_LEN_BYTES;
/// A connection whose first login request takes longer is cut off.
const FIRST_TIME_MAX: Duration = Duration::from_secs(5);
/// A login that takes longer is cut off.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(15);

/// What a login came to.
enum Entered {
    /// The initiator went away.
    Gone,
    /// It goes on at another node.
    Away(Handover),
    Leading,
    /// One more connection of a session, which answers the last request.
    Joining(Arc<Session>, Reply, Bytes),
}

struct Entering {
    shared: Arc<PortalCore>,
    lane: Lane,
    login: Login,
    text: Vec<u8>,
    /// Of the first command after the login.
    command_number: u32,
    /// Targets of other nodes that the initiator sees, in a discovery session.
    targets_elsewhere: Vec<String>,
    /// The session has begun.
    live: Option<session::Begun>,
    /// Of the thread, on which a session that it begins stays.
    busy_poll: Arc<BusyPoll>,
}

/// Serves a connection until it ends.
pub async fn serve(
    shared: Arc<PortalCore>,
    link: Link,
    peer: SocketAddr,
    entry: Entry,
    permit: Permit,
    busy_poll: Arc<BusyPoll>,
    stop: watch::Receiver<bool>,
) {
    let mut entering = Entering {
        login: Login::new(Arc::clone(&shared.targets), entry.is_passed),
        lane: Lane::new(link, peer, entry, permit),
        shared,
        text: Vec::new(),
        command_number: 0,
        targets_elsewhere: Vec::new(),
        live: None,
        busy_poll,
    };
    let entered = entering.run(stop.clone()).await;
    let initiator = Some(&*entering.login.initiator);
    let entered = match entered {
        Ok(Entered::Away(handover)) if entering.lane.settle(None) => Ok(Entered::Away(handover)),
        Ok(Entered::Joining(session, reply, text)) if entering.lane.settle(initiator) => {
            Ok(Entered::Joining(session, reply, text))
        }
        // It was settled before its session began.
        Ok(Entered::Leading) => Ok(Entered::Leading),
        Ok(_) => Ok(Entered::Gone),
        Err(error) => Err(error),
    };
    let Entering {
        shared,
        lane,
        live,
        targets_elsewhere,
        command_number,
        login,
        ..
    } = entering;
    match entered {
        Ok(Entered::Gone) => {}
        Ok(Entered::Away(handover)) => {
            let admission = lane.entry.admission.clone();
            let (link, input, _permit) = lane.into_parts();
            // Only connections of initiators are forwarded.
            if let (Link::Tcp(stream), Some(cluster), Some(admission)) =
                (link, shared.targets.cluster(), admission)
            {
                pass::pass(&shared, cluster, &admission, stream, handover, input, stop).await;
            }
        }
        Ok(Entered::Leading) => {
            if let Some(live) = live {
                session::serve(
                    shared,
                    live,
                    lane,
                    login,
                    command_number,
                    targets_elsewhere,
                    stop,
                )
                .await;
            }
        }
        Ok(Entered::Joining(session, reply, text)) => match lane.detach() {
            Ok(lane) => {
                let joining = Joining { lane, reply, text };
                if let Err(mpsc::error::SendError(joining)) = session.joins.send(joining).await {
                    // It has ended meanwhile.
                    let ended = turn_away(joining.refused(login_status::NO_SESSION)).await;
                    note_stranger(&shared, peer, ended);
                }
            }
            Err(error) => note_stranger(&shared, peer, Err(error.into())),
        },
        Err(error) => note_stranger(&shared, peer, Err(error)),
    }
}

async fn turn_away(joining: Joining) -> Result<(), Broken> {
    let mut lane = joining.lane.attach()?;
    let window = Window {
        expected: 0,
        last: 0,
    };
    lane.send(&joining.reply, Vec::new(), window);
    lane.drain(LOGIN_TIME_MAX).await
}

/// Says how a connection of a session ended.
pub(crate) fn note_end(shared: &PortalCore, peer: SocketAddr, ended: Result<(), Broken>) {
    note(shared, &shared.broken_logged, peer, ended);
}

/// Says how a connection ended that has not logged in.
fn note_stranger(shared: &PortalCore, peer: SocketAddr, ended: Result<(), Broken>) {
    note(shared, &shared.strangers_logged, peer, ended);
}

fn note(shared: &PortalCore, limit: &LogLimit, peer: SocketAddr, ended: Result<(), Broken>) {
    match ended {
        Ok(()) => {}
        Err(Broken::Io(error)) => tracing::debug!(%peer, "connection lost: {error}"),
        Err(error) => {
            shared.broken_count.fetch_add(1, Ordering::Relaxed);
            if let Some(more) = limit.admitted() {
                tracing::warn!(%peer, more, "iSCSI connection closed: {error}");
            }
        }
    }
}

/// Where the login goes whose first request this is. `came`: where it came in, and the target port group of that if another
/// node said so.
async fn route(
    shared: Arc<PortalCore>,
    admission: Option<Arc<Admission>>,
    came: (SocketAddr, Option<u16>),
    status_number: u32,
    header: Header,
    text: &[u8],
) -> Route {
    let here = |group| Route::Here(group, Elsewhere::default());
    let (local, group) = came;
    let (Some(cluster), Some(admission), None) = (shared.targets.cluster(), admission, group)
    else {
        return here(group.unwrap_or(PORT_GROUP));
    };
    let Ok(keys) = Keys::parse(text) else {
        return here(PORT_GROUP);
    };
    let first = || pass::whole_request(&header.0, text);
    pass::route(
        &shared,
        cluster,
        &admission,
        &keys,
        local,
        status_number,
        first,
    )
    .await
}

impl Entering {
    async fn run(&mut self, mut stop: watch::Receiver<bool>) -> Result<Entered, Broken> {
        let clock = self.shared.targets.env().clock.clone();
        let mut timer = clock.sleep(LOGIN_TIME_MAX);
        let mut first = clock.sleep(FIRST_TIME_MAX);
        loop {
            self.lane.flush()?;
            // Unsent bytes are bounded: the target reads nothing more from an initiator that does not take them.
            while self.lane.takes() {
                let Some(pdu) = self.lane.next_pdu()? else {
                    break;
                };
                if let Some(entered) = self.take(&pdu).await? {
                    if matches!(entered, Entered::Away(_)) {
                        self.lane.drain(LOGIN_TIME_MAX).await?;
                    }
                    return Ok(entered);
                }
                self.lane.flush()?;
            }
            tokio::select! {
                ready = self.lane.ready() => {
                    if ready.reads && !self.lane.read()? {
                        return Ok(Entered::Gone);
                    }
                }
                _ = stop.wait_for(|stops| *stops) => return Ok(Entered::Gone),
                () = self.lane.makes_way() => return Ok(Entered::Gone),
                () = &mut timer => return Err(Broken::Silent),
                () = &mut first, if !self.login.has_begun() => return Err(Broken::Silent),
            }
        }
    }

    async fn take(&mut self, pdu: &Pdu) -> Result<Option<Entered>, Broken> {
        match pdu.header.request() {
            Ok(Request::Login(header)) => self.step(&header, pdu).await,
            Ok(_) => Err(Broken::Protocol("a command before the login")),
            Err(_) => Err(Broken::Protocol("what came first is no login")),
        }
    }

    fn window(&self) -> Window {
        let expected = self.command_number;
        Window {
            expected,
            last: expected.wrapping_add(WINDOW_COUNT - 1),
        }
    }

    async fn step(&mut self, header: &LoginHeader, pdu: &Pdu) -> Result<Option<Entered>, Broken> {
        self.text.extend_from_slice(&pdu.data);
        if self.text.len() > KEYS_LEN_BYTES_MAX {
            return Err(Broken::Protocol("a login with too much text"));
        }
        self.command_number = header.numbers.command;
        self.lane.connection = header.connection;
        let reply = |transit, stage, next_stage, tsih, status| Reply::Login {
            transit,
            continues: false,
            stage,
            next_stage,
            isid: header.isid,
            tsih,
            tag: header.tag,
            status,
        };
        if header.continues {
            let more = reply(false, header.stage, 0, 0, login_status::SUCCESS);
            self.lane.send(&more, Vec::new(), self.window());
            return Ok(None);
        }
        let text = std::mem::take(&mut self.text);
        let mut refused = None;
        if !self.login.has_begun() {
            let shared = Arc::clone(&self.shared);
            let entry = &self.lane.entry;
            let (admission, came) = (entry.admission.clone(), (entry.local, entry.group));
            let number = self.lane.status_number();
            match route(shared, admission, came, number, pdu.header, &text).await {
                Route::Here(group, elsewhere) => {
                    self.login.group = group;
                    self.targets_elsewhere.clone_from(&elsewhere.targets);
                    self.login.elsewhere = elsewhere;
                }
                Route::Nowhere(group, elsewhere) => {
                    self.login.group = group;
                    self.login.elsewhere = elsewhere;
                    self.login.is_nowhere = true;
                }
                Route::Away(handover) => return Ok(Some(Entered::Away(handover))),
                Route::Refused(status) => refused = Some(Answer::failed(status, header.stage)),
            }
        }
        let answer = refused.unwrap_or_else(|| self.login.step(header, &text));
        if answer.status != login_status::SUCCESS {
            let failed = reply(false, answer.stage, 0, 0, answer.status);
            self.lane.send(&failed, Vec::new(), self.window());
            // Sent as far as the socket takes it, before anything is done that takes longer for some names than for others.
            self.lane.flush()?;
            self.shared.refused_count.fetch_add(1, Ordering::Relaxed);
            if self.login.is_stranger()
                && let Some(more) = self.shared.unknown_logged.admitted()
            {
                let (initiator, peer) = (&self.login.initiator, self.lane.peer);
                tracing::info!(
                    %peer,
                    initiator,
                    more,
                    "an initiator that sees no LUN here and has no secret wants to log in: it is answered as one whose secret is wrong; \
                     `cairn igroup create` lets it in"
                );
            }
            return Err(Broken::Refused(answer.status));
        }
        let text: Bytes = answer.keys.encode().into();
        let (transit, stage, next) = (answer.transit, answer.stage, answer.next_stage);
        let success = |tsih| reply(transit, stage, next, tsih, login_status::SUCCESS);
        if !answer.is_done {
            self.lane.send(&success(0), vec![text], self.window());
            return Ok(None);
        }
        if let Some(session) = self.login.joins.take() {
            self.lane.negotiated = self.login.negotiated.clone();
            return Ok(Some(Entered::Joining(
                Arc::clone(&session),
                success(session.tsih),
                text,
            )));
        }
        if !self.lane.settle(Some(&self.login.initiator)) {
            return Ok(Some(Entered::Gone));
        }
        let told = ConnectionRequests::new(Arc::clone(&self.busy_poll));
        let peer = self.lane.peer;
        let live = session::Begun::begin(&self.shared, &mut self.login, peer, told).await;
        // Before digests are on.
        self.lane
            .send(&success(live.session.tsih), vec![text], self.window());
        self.lane.negotiated = self.login.negotiated.clone();
        self.lane.is_full = true;
        self.lane.is_discovery = self.login.is_discovery;
        self.live = Some(live);
        Ok(Some(Entered::Leading))
    }
}
