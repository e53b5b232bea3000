//! Who asks, and whether they may: the one place where rights are looked at, for every path.
//!
//! Owns: the ways to show who one is (token, session, name and password), what a role may do, log-in and log-out.
//! Must not know: what a request does, what is in a cookie (`session`), how a password is compared (`passwords`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cairn_config::{Logout, PasswordHash, Role, TOKEN_USER, UserName, UserRecord};
use cairn_oidc::PersonName;
use zeroize::Zeroizing;

use super::{Api, Given, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::audit::Tried;
use crate::control::ControlError;
use crate::session::{Session, Whose, cookie_name, cookie_of, set_cookie};
use crate::users::{
    Password, PasswordChange, SessionCreate, SessionOpen, UserControl, UserLogin, UserView,
};

/// A page that changes something says so in this header, which no form and no other site's page can send. With
/// [`ACTIVE`] it says that somebody uses it at the moment.
pub const CONSOLE_HEADER: &str = "x-cairn-console";
const ACTIVE: &str = "active";
/// Changes that anybody may make who is let in: they are about oneself.
const OWN_CHANGES: [(Method, &str); 2] = [
    (Method::DELETE, "/api/v1/session"),
    (Method::PUT, "/api/v1/session/password"),
];
/// Longest name and password in a header, in bytes, as base64.
const BASIC_LEN_BYTES_MAX: usize = 4096;

/// Where a connection comes from.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub SocketAddr);

/// That the connection is encrypted.
#[derive(Clone, Copy)]
pub(crate) struct Encrypted;

/// How somebody showed who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Token,
    Session,
    Password,
    /// A session that began with the word of an OpenID provider, or the log-in that begins it.
    Oidc,
}

impl Via {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Session => "session",
            Self::Password => "password",
            Self::Oidc => "oidc",
        }
    }
}

/// A holder of the token, a user of this server, or somebody whom a provider knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Token,
    User(UserName),
    Person(PersonName),
}

/// Who asks. A holder of the token is an admin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub who: Who,
    pub role: Role,
    pub via: Via,
}

impl Caller {
    fn token(via: Via) -> Self {
        Self {
            who: Who::Token,
            role: Role::Admin,
            via,
        }
    }

    pub fn name(&self) -> &str {
        match &self.who {
            Who::Token => TOKEN_USER,
            Who::User(name) => name.as_str(),
            Who::Person(name) => name.as_str(),
        }
    }

    /// Why they may not do this, if they may not.
    fn refusal(&self, method: &Method, path: &str) -> Option<ControlError> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let is_own = OWN_CHANGES
            .iter()
            .any(|(own, at)| own == method && *at == path);
        match self.role {
            Role::Admin => None,
            Role::Viewer if is_read || is_own => None,
            Role::Viewer => {
                let name = self.name();
                let message =
                    format!("user {name} is a viewer, who can see everything and change nothing");
                let hint = match self.who {
                    Who::Person(_) => format!(
                        "an admin can do this; {name} becomes an admin with a role or group of the OpenID provider that oidc_admin lists"
                    ),
                    Who::Token | Who::User(_) => format!(
                        "an admin can do this, or make {name} an admin with `cairn user set {name} --role admin`"
                    ),
                };
                Some(ControlError::new(ErrorKind::Forbidden, message).hint(hint))
            }
        }
    }
}

/// What of a request says who asks. Requests themselves cannot wait for anything: their bodies are of one thread.
struct RequestOrigin {
    headers: HeaderMap,
    is_read: bool,
    address: IpAddr,
}

impl RequestOrigin {
    fn of(request: &Request) -> Self {
        Self {
            headers: request.headers().clone(),
            is_read: matches!(*request.method(), Method::GET | Method::HEAD),
            address: address_of(request.extensions()),
        }
    }
}

pub(super) fn address_of(extensions: &Extensions) -> IpAddr {
    let peer = extensions.get::<Peer>();
    // Only tests have requests without a connection.
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip())
}

/// The record of a user, if there is one.
fn record_of(shared: &ServerCore, name: &UserName) -> Option<UserRecord> {
    shared.control.users()?.user(name)
}

/// The session that a request has, with its user's role, if it holds.
pub(super) fn session_of(shared: &ServerCore, headers: &HeaderMap) -> Option<(Session, Role)> {
    let name = cookie_name(host(headers));
    let now_seconds = shared.env.clock.now().seconds;
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|header| cookie_of(header.to_str().ok()?, &name))
        .find_map(|value| {
            let session = shared.sessions.find(value, now_seconds)?;
            if shared.is_logged_out(&session) {
                return None;
            }
            let role = role_of(shared, &session)?;
            Some((session, role))
        })
}

/// The role of a session now; none if its user is gone, or another one than when it began, or the settings of the provider
/// are others.
pub(super) fn role_of(shared: &ServerCore, session: &Session) -> Option<Role> {
    match &session.whose {
        Whose::Token => Some(Role::Admin),
        Whose::User { name, stamp } => {
            let user = record_of(shared, name)?;
            (user.stamp == *stamp).then_some(user.role)
        }
        Whose::Person { role, stamp, .. } => {
            let provider = shared.oidc.as_ref()?;
            (provider.stamp() == *stamp).then_some(*role)
        }
    }
}

pub(super) fn host(headers: &HeaderMap) -> &str {
    let host = headers.get(header::HOST);
    host.and_then(|host| host.to_str().ok()).unwrap_or("")
}

/// Holds for as long as a stream may go on.
pub(super) enum Leave {
    /// Of a caller who showed the token with the request.
    Always,
    /// Of one who showed name and password: as long as that user is as it was.
    User(UserName, u64),
    /// As long as the session holds that is in these headers.
    Session(HeaderMap),
}

impl Leave {
    pub fn of(shared: &ServerCore, headers: &HeaderMap, caller: &Caller) -> Self {
        match (caller.via, &caller.who) {
            (Via::Session | Via::Oidc, _) | (_, Who::Person(_)) => {
                let kept = [header::HOST, header::COOKIE].into_iter().flat_map(|name| {
                    let values = headers.get_all(&name).iter().cloned();
                    values.map(move |value| (name.clone(), value))
                });
                let mut own = HeaderMap::new();
                for (name, value) in kept {
                    own.append(name, value);
                }
                Self::Session(own)
            }
            (_, Who::User(name)) => {
                // One that is gone meanwhile has no stamp that anybody has.
                let stamp = record_of(shared, name).map_or(u64::MAX, |record| record.stamp);
                Self::User(name.clone(), stamp)
            }
            (_, Who::Token) => Self::Always,
        }
    }

    pub fn holds(&self, shared: &ServerCore) -> bool {
        match self {
            Self::Always => true,
            Self::User(name, stamp) => {
                record_of(shared, name).is_some_and(|record| record.stamp == *stamp)
            }
            Self::Session(headers) => session_of(shared, headers).is_some(),
        }
    }
}

/// Lets requests pass of those who show who they are, if their role may do what they ask.
pub(crate) async fn authorize(State(shared): Api, mut request: Request, next: Next) -> Response {
    let asked = RequestOrigin::of(&request);
    let (caller, session) = match caller_of(&shared, &asked).await {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    if let Some(refused) = caller.refusal(request.method(), request.uri().path()) {
        let mut response = refused.into_response();
        response.extensions_mut().insert(caller);
        return response;
    }
    let is_encrypted = is_encrypted(request.headers(), request.extensions());
    if let Some(session) = &session {
        let now_seconds = shared.now_seconds();
        shared
            .sessions
            .note_used(session, asked.address, now_seconds);
    }
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(caller);
    let is_used = asked.headers.get(CONSOLE_HEADER);
    let is_used = is_used.is_some_and(|value| value == ACTIVE);
    if let Some(session) = session.filter(|_| is_used || !asked.is_read) {
        let now_seconds = shared.env.clock.now().seconds;
        let renewed = shared.sessions.renewed(&session, now_seconds);
        // A log-out has said something about the cookie already.
        if let Some(renewed) = renewed
            && !response.headers().contains_key(header::SET_COOKIE)
        {
            add_cookie(
                &shared,
                &asked.headers,
                is_encrypted,
                &renewed,
                &mut response,
            );
        }
    }
    response
}

async fn caller_of(
    shared: &ServerCore,
    asked: &RequestOrigin,
) -> Result<(Caller, Option<Session>), Response> {
    let Some(given) = asked.headers.get(header::AUTHORIZATION) else {
        // One that changes something must come from the console: for a browser another port of the same host is the
        // same site, which `SameSite` alone lets in.
        let is_allowed = asked.is_read || asked.headers.contains_key(CONSOLE_HEADER);
        let found = session_of(shared, &asked.headers).filter(|_| is_allowed);
        let Some((session, role)) = found else {
            return Err(unauthorized("this request has no token"));
        };
        let (who, via) = match &session.whose {
            Whose::Token => (Who::Token, Via::Session),
            Whose::User { name, .. } => (Who::User(name.clone()), Via::Session),
            Whose::Person { name, .. } => (Who::Person(name.clone()), Via::Oidc),
        };
        return Ok((Caller { who, role, via }, Some(session)));
    };
    if let Some((user, password)) = basic(given.as_bytes()) {
        // Browsers add these to what other pages have them send, once somebody gave them name and password.
        let browsers = [header::ORIGIN.as_str(), "sec-fetch-site"];
        if browsers
            .iter()
            .any(|name| asked.headers.contains_key(*name))
        {
            return Err(unauthorized(
                "a browser cannot send name and password in a header: log in at /console/",
            ));
        }
        let found = verified(shared, &user, password, asked.address).await;
        let (name, record) = found.map_err(|error| error.refuse(shared, &user))?;
        let caller = Caller {
            who: Who::User(name),
            role: record.role,
            via: Via::Password,
        };
        return Ok((caller, None));
    }
    if shared.token.is_in(given.as_bytes()) {
        return Ok((Caller::token(Via::Token), None));
    }
    Err(unauthorized("the token is not this server's"))
}

/// Whether a request shows this server's token or a session that there is. A password is not looked at: that takes time,
/// and places of its own.
pub(super) fn is_known(shared: &ServerCore, headers: &HeaderMap) -> bool {
    match headers.get(header::AUTHORIZATION) {
        Some(given) => shared.token.is_in(given.as_bytes()),
        None => session_of(shared, headers).is_some(),
    }
}

fn unauthorized(message: &str) -> Response {
    let mut response = ControlError::new(ErrorKind::Unauthorized, message)
        .hint("send the content of the server's admin-token file as `Authorization: Bearer TOKEN`, or a user's name and password as `Authorization: Basic`")
        .into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Name and password in an `Authorization` header of the scheme Basic (RFC 7617).
pub fn basic(authorization: &[u8]) -> Option<(String, Password)> {
    const SCHEME: &[u8] = b"basic ";
    let (scheme, given) = authorization.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || given.len() > BASIC_LEN_BYTES_MAX {
        return None;
    }
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(given).ok()?);
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), Password::new(password.to_owned())))
}

/// Why somebody was not let in.
pub(super) enum NotLetIn {
    Wrong,
    /// How long to wait.
    TooOften(Duration),
    Failed(ControlError),
}

impl NotLetIn {
    /// The answer to a caller who claimed to be `user`.
    fn refuse(self, shared: &ServerCore, user: &str) -> Response {
        let is_wrong = matches!(self, Self::Wrong);
        let mut response = self.into_response();
        if is_wrong {
            response.extensions_mut().insert(Tried::new(shared, user));
        }
        response
    }
}

impl IntoResponse for NotLetIn {
    fn into_response(self) -> Response {
        match self {
            Self::Wrong => ControlError::new(ErrorKind::Unauthorized, "user name or password is wrong")
                .hint("`cairn user list` shows all users; an admin can set a new password with `cairn user password NAME`")
                .into_response(),
            Self::TooOften(wait) => {
                let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
                let message = format!("too many tries to log in: try again in {seconds} s");
                let mut response = ControlError::new(ErrorKind::TooMany, message)
                    .hint("the admin token and open sessions work meanwhile")
                    .into_response();
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                response
            }
            Self::Failed(error) => error.into_response(),
        }
    }
}

/// The user that somebody is, by name and password.
async fn verified(
    shared: &ServerCore,
    user: &str,
    password: Password,
    address: IpAddr,
) -> Result<(UserName, UserRecord), NotLetIn> {
    let now = shared.env.clock.monotonic();
    // A text that is no name is no user either; it is counted, but not remembered.
    let name = user.parse::<UserName>().ok();
    let counted = name.as_ref().map_or(String::new(), UserName::to_string);
    let counted = counted.as_str();
    let taken = shared.attempts.take(Some(counted), address, now);
    taken.map_err(NotLetIn::TooOften)?;
    let found = name.and_then(|name| Some((record_of(shared, &name)?, name)));
    let hash: Option<PasswordHash> = found.as_ref().map(|(record, _)| record.password.clone());
    let is_of = shared.passwords.is_of(hash, password).await;
    match found {
        Some((record, name)) if is_of.map_err(NotLetIn::Failed)? => {
            shared.attempts.was_right(counted, address);
            Ok((name, record))
        }
        _ => Err(NotLetIn::Wrong),
    }
}

/// Logs a browser in, with the admin token or a user's name and password: the answer sets a cookie. A session ends after
/// 12 hours, after an hour in which nobody used the page, and when its user is changed or deleted. After too many tries
/// the answer is 429, with `Retry-After`.
#[utoipa::path(post, path = "/api/v1/session", security(()), request_body = SessionCreate,
    responses((status = 200, body = SessionOpen), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub(super) async fn session_create(
    State(shared): Api,
    extensions: Extensions,
    headers: HeaderMap,
    Given(create): Given<SessionCreate>,
) -> Response {
    if let Err(foreign) = refuse_foreign(&headers) {
        return foreign.into_response();
    }
    let address = address_of(&extensions);
    let begun = match create {
        SessionCreate::Token(login) => by_token(&shared, &login.token, address),
        SessionCreate::User(login) => by_user(&shared, login, address).await,
    };
    match begun {
        Ok((caller, whose)) => logged_in(&shared, &headers, &extensions, caller, whose),
        Err(refused) => *refused,
    }
}

/// Begins a session for somebody who showed who they are.
pub(super) fn logged_in(
    shared: &ServerCore,
    headers: &HeaderMap,
    extensions: &Extensions,
    caller: Caller,
    whose: Whose,
) -> Response {
    let now_seconds = shared.env.clock.now().seconds;
    let nonce = shared.env.entropy.u64();
    let session = shared.sessions.begin(whose, now_seconds, nonce);
    if shared.is_logged_out(&session) {
        // Its last second is that of those which were ended.
        let message = "all sessions of this user are being ended right now";
        let error = ControlError::new(ErrorKind::Unavailable, message).hint("log in again");
        return error.into_response();
    }
    let address = address_of(extensions);
    shared.sessions.note_used(&session, address, now_seconds);
    let mut response = Json(open(&session, caller.role)).into_response();
    let is_encrypted = is_encrypted(headers, extensions);
    add_cookie(shared, headers, is_encrypted, &session, &mut response);
    response.extensions_mut().insert(caller);
    response
}

/// Nobody is logged in by what a page of another site sends.
pub(super) fn refuse_foreign(headers: &HeaderMap) -> Result<(), ControlError> {
    if !is_foreign(headers) {
        return Ok(());
    }
    let error = ControlError::new(
        ErrorKind::Forbidden,
        "this log-in comes from a page of another site",
    );
    let hint = "log in at /console/ of this server; a proxy in front must keep the Host header";
    Err(error.hint(hint))
}

/// Whether a browser sends this for a page of somebody else, whose form could log people in as somebody they are not.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let is_other_site =
        text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    let is_other_origin = text("origin").is_some_and(|origin| {
        let origin = origin.split_once("://").map_or("", |(_, host)| host);
        !origin.eq_ignore_ascii_case(host(headers))
    });
    is_other_site || is_other_origin
}

type Begun = Result<(Caller, Whose), Box<Response>>;

fn by_token(shared: &ServerCore, token: &str, address: IpAddr) -> Begun {
    // A holder of it is let in whatever others of the same address tried.
    if shared
        .token
        .is_in(format!("Bearer {}", token.trim()).as_bytes())
    {
        return Ok((Caller::token(Via::Token), Whose::Token));
    }
    let now = shared.env.clock.monotonic();
    let taken = shared.attempts.take(None, address, now);
    taken.map_err(|wait| Box::new(NotLetIn::TooOften(wait).into_response()))?;
    let error = ControlError::new(ErrorKind::Unauthorized, "the token is not this server's")
        .hint("it is in the admin-token file, which `cairn serve` names when it starts");
    let mut response = error.into_response();
    let tried = Tried::new(shared, TOKEN_USER);
    response.extensions_mut().insert(tried);
    Err(Box::new(response))
}

async fn by_user(shared: &ServerCore, login: UserLogin, address: IpAddr) -> Begun {
    match verified(shared, &login.user, login.password, address).await {
        Ok((name, record)) => {
            let whose = Whose::User {
                name: name.clone(),
                stamp: record.stamp,
            };
            let caller = Caller {
                who: Who::User(name),
                role: record.role,
                via: Via::Password,
            };
            Ok((caller, whose))
        }
        Err(error) => Err(Box::new(error.refuse(shared, &login.user))),
    }
}

fn open(session: &Session, role: Role) -> SessionOpen {
    let (user, by) = match &session.whose {
        Whose::Token => (TOKEN_USER.to_owned(), Via::Token),
        Whose::User { name, .. } => (name.to_string(), Via::Password),
        Whose::Person { name, .. } => (name.to_string(), Via::Oidc),
    };
    SessionOpen {
        user,
        by: by.as_str().to_owned(),
        role,
        ends_seconds: session.ends_seconds,
        idle_ends_seconds: session.idle_ends_seconds,
    }
}

/// The session of the browser that asks.
#[utoipa::path(get, path = "/api/v1/session", responses(
    (status = 200, body = SessionOpen), (status = 404, body = ErrorBody)))]
pub(super) async fn session_show(
    State(shared): Api,
    headers: HeaderMap,
) -> Result<Json<SessionOpen>, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this request has no session");
    let (session, role) = session_of(&shared, &headers).ok_or_else(absent)?;
    Ok(Json(open(&session, role)))
}

/// Logs a browser out: at once, for all nodes of a cluster, and over restarts.
#[utoipa::path(delete, path = "/api/v1/session", responses((status = 204)))]
pub(super) async fn session_delete(
    State(shared): Api,
    extensions: Extensions,
    headers: HeaderMap,
) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some((session, _)) = session_of(&shared, &headers) {
        let logout = Logout::Session {
            number: session.number(),
            ends_seconds: session.ends_seconds,
        };
        let kept = Arc::clone(&shared);
        if let Err(error) = to_the_end(async move { kept.log_out(logout).await }).await {
            response = error.into_response();
        }
    }
    let cookie = set_cookie(
        &cookie_name(host(&headers)),
        "",
        0,
        is_encrypted(&headers, &extensions),
    );
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Changes the password of the user who asks, who gives the one of now as well. All sessions of the user end, this one too.
#[utoipa::path(put, path = "/api/v1/session/password", request_body = PasswordChange,
    responses((status = 200, body = UserView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(super) async fn password_change(
    State(shared): Api,
    extensions: Extensions,
    Given(change): Given<PasswordChange>,
) -> Response {
    let user = match extensions.get::<Caller>().map(|caller| &caller.who) {
        Some(Who::User(user)) => user.clone(),
        Some(Who::Person(_)) => {
            let message = "users of an OpenID provider have no password on this server";
            let error = ControlError::new(ErrorKind::Conflict, message);
            return error
                .hint("change the password at the provider")
                .into_response();
        }
        Some(Who::Token) | None => {
            let error = ControlError::new(ErrorKind::Conflict, "the admin token has no password");
            return error
                .hint("`cairn user password NAME` sets the password of a user")
                .into_response();
        }
    };
    let address = address_of(&extensions);
    let (name, record) = match verified(&shared, user.as_str(), change.password, address).await {
        Ok(found) => found,
        Err(refused) => return refused.into_response(),
    };
    let set = async move {
        let hash = shared
            .passwords
            .hash(name.as_str(), change.new_password, &*shared.env.entropy);
        let hash = hash.await?;
        let users = user_control(&shared)?;
        users
            .user_set(name, None, Some(hash), Some(record.stamp))
            .await
    };
    match to_the_end(set).await {
        Ok(view) => Json(view).into_response(),
        Err(error) => error.into_response(),
    }
}

pub(super) fn user_control(shared: &ServerCore) -> Result<&dyn UserControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no users");
    shared.control.users().ok_or_else(absent)
}

/// Whether the browser's connection is encrypted, if need be up to a proxy.
pub(super) fn is_encrypted(headers: &HeaderMap, extensions: &Extensions) -> bool {
    let proxied = headers.get("x-forwarded-proto");
    extensions.get::<Encrypted>().is_some() || proxied.is_some_and(|proto| proto == "https")
}

fn add_cookie(
    shared: &ServerCore,
    headers: &HeaderMap,
    is_encrypted: bool,
    session: &Session,
    response: &mut Response,
) {
    let left = session
        .ends_seconds
        .saturating_sub(shared.env.clock.now().seconds);
    let name = cookie_name(host(headers));
    let cookie = set_cookie(&name, &shared.sessions.value(session), left, is_encrypted);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_changes_nothing_but_what_is_its_own() {
        let caller = |role| Caller {
            who: Who::User("bob".parse().unwrap()),
            role,
            via: Via::Session,
        };
        #[rustfmt::skip]
        let cases = [
            (Method::GET, "/api/v1/volumes", true),
            (Method::HEAD, "/api/v1/volumes", true),
            (Method::POST, "/api/v1/volumes", false),
            (Method::PUT, "/api/v1/exports/main", false),
            (Method::PATCH, "/api/v1/volumes/main", false),
            (Method::DELETE, "/api/v1/volumes/main", false),
            (Method::OPTIONS, "/api/v1/volumes", false),
            (Method::TRACE, "/api/v1/volumes", false),
            (Method::DELETE, "/api/v1/session", true),
            (Method::DELETE, "/api/v1/session/", false),
            (Method::PUT, "/api/v1/session/password", true),
            (Method::PUT, "/api/v1/users/bob", false),
        ];
        for (method, path, want) in cases {
            assert_eq!(caller(Role::Admin).refusal(&method, path), None);
            let refused = caller(Role::Viewer).refusal(&method, path);
            assert_eq!(refused.is_none(), want, "{method} {path}");
        }
    }

    #[test]
    fn headers_with_name_and_password_are_read_or_refused() {
        let read = |text: &str| {
            let (user, password) = basic(text.as_bytes())?;
            Some(format!("{user}|{}", password.as_str()))
        };
        let cases = [
            ("Basic YWxpY2U6c2VjcmV0", Some("alice|secret")),
            ("basic YWxpY2U6czpl", Some("alice|s:e")),
            ("Basic Og==", Some("|")),
            ("Basic YWxpY2U=", None),
            ("Basic !", None),
            ("Basic", None),
            ("Basic /w==", None),
            ("Bearer YWxpY2U6c2VjcmV0", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(read(text).as_deref(), want, "{text}");
        }
        let long = format!("Basic {}", "YWFh".repeat(BASIC_LEN_BYTES_MAX));
        assert_eq!(read(&long), None);
    }
}
