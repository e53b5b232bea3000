//! The paths of sessions: which there are, and how an administrator ends them.
//!
//! Owns: what HTTP says about them. Must not know: what is in a cookie, how long a session holds (`session`), who may ask
//! (`caller`).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cairn_config::{Logout, TOKEN_USER, UserName};
use cairn_oidc::PersonName;

use super::caller::{Via, role_of, session_of};
use super::{Api, Said, ServerCore, Table, to_the_end};
use crate::api::ErrorKind;
use crate::control::ControlError;
use crate::session::{SESSION_SECONDS, Used, Whose};
use crate::users::{
    OPEN_SESSION_LIST, OpenSession, OpenSessionList, SESSION_END, SESSIONS_END, SessionNumber,
    SessionsOf,
};

fn absent() -> ControlError {
    ControlError::new(ErrorKind::NotFound, "there is no session with this number")
        .hint("`cairn user sessions` shows all sessions used since the server started")
}

fn number_of(text: &str) -> Option<u64> {
    let is_plain = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

/// Valid sessions that were used since this process started.
fn open(shared: &ServerCore) -> Vec<Used> {
    let used = shared.sessions.used(shared.now_seconds()).into_iter();
    let is_open = |used: &Used| !shared.is_logged_out(&used.session);
    // One that was ended here is not found any more.
    let holds = |used: &Used| {
        let value = shared.sessions.value(&used.session);
        let found = shared.sessions.find(&value, shared.now_seconds());
        found.is_some()
    };
    used.filter(is_open).filter(holds).collect()
}

fn shown(shared: &ServerCore, used: &Used, own: Option<u64>) -> Option<OpenSession> {
    let session = &used.session;
    let role = role_of(shared, session)?;
    let (user, by) = match &session.whose {
        Whose::Token => (TOKEN_USER.to_owned(), Via::Token),
        Whose::User { name, .. } => (name.to_string(), Via::Password),
        Whose::Person { name, .. } => (name.to_string(), Via::Oidc),
    };
    Some(OpenSession {
        id: format!("{:016x}", session.number()),
        user,
        role,
        by: by.as_str().to_owned(),
        begun_seconds: session.begun_seconds(),
        used_seconds: used.used_seconds,
        address: used.address.to_canonical().to_string(),
        ends_seconds: session.ends_seconds,
        is_own: own == Some(session.number()),
    })
}

pub(super) async fn open_session_list(
    State(shared): Api,
    headers: HeaderMap,
) -> Json<OpenSessionList> {
    let own = session_of(&shared, &headers).map(|(session, _)| session.number());
    let open = open(&shared);
    let mut sessions: Vec<OpenSession> = open
        .iter()
        .filter_map(|used| shown(&shared, used, own))
        .collect();
    sessions.sort_by(|one, other| (&one.user, &one.id).cmp(&(&other.user, &other.id)));
    Json(OpenSessionList { sessions })
}

pub(super) async fn session_end(
    State(shared): Api,
    Said(SessionNumber(id)): Said<SessionNumber>,
) -> Result<StatusCode, ControlError> {
    let number = number_of(&id).ok_or_else(absent)?;
    let known = open(&shared).into_iter();
    let known = known
        .map(|used| used.session)
        .find(|session| session.number() == number);
    let ends_seconds = match known {
        Some(session) => session.ends_seconds,
        // It may be used at another node, which knows when it ends.
        None if shared.forward.is_some() => latest_end(&shared),
        None => return Err(absent()),
    };
    let logout = Logout::Session {
        number,
        ends_seconds,
    };
    log_out(shared, vec![logout]).await
}

pub(super) async fn sessions_end(
    State(shared): Api,
    Said(SessionsOf { user, by }): Said<SessionsOf>,
) -> Result<StatusCode, ControlError> {
    let invalid = |message: &str| ControlError::new(ErrorKind::Invalid, message);
    let of_user = || {
        let name: Result<UserName, _> = user.parse();
        name.map(|name| Whose::key_of_user(&name))
    };
    let of_person = || {
        let name: Result<PersonName, _> = user.parse();
        name.map(|name| Whose::key_of_person(name.as_str()))
    };
    let of_token = (user == TOKEN_USER).then(|| Whose::Token.key());
    let keys: Vec<String> = match by.as_deref() {
        None => of_user()
            .into_iter()
            .chain(of_person())
            .chain(of_token)
            .collect(),
        Some("oidc") => of_person().into_iter().collect(),
        Some("password") => of_user().into_iter().collect(),
        Some(_) => return Err(invalid("by is password or oidc")),
    };
    if keys.is_empty() {
        return Err(invalid("this is not a valid user name"));
    }
    let ends_seconds = latest_end(&shared);
    let all_of = |whose| Logout::AllOf {
        whose,
        ends_seconds,
    };
    log_out(shared, keys.into_iter().map(all_of).collect()).await
}

/// An upper bound for the end of all existing sessions.
fn latest_end(shared: &ServerCore) -> i64 {
    shared.now_seconds().saturating_add(SESSION_SECONDS)
}

async fn log_out(
    shared: Arc<ServerCore>,
    logouts: Vec<Logout>,
) -> Result<StatusCode, ControlError> {
    let all = async move {
        for logout in logouts {
            shared.log_out(logout).await?;
        }
        Ok::<_, ControlError>(())
    };
    to_the_end(all).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn routes(table: &mut Table) {
    table.handle(OPEN_SESSION_LIST, open_session_list);
    table.handle(SESSION_END, session_end);
    table.handle(SESSIONS_END, sessions_end);
}
