//! Log-in by an OpenID provider: a browser is told where to go, and comes back with what proves who sits before it.
//!
//! Owns: which browser may come back for which log-in, what an answer of the provider means to the browser that waits for it.
//! Must not know: what is asked of the provider and what it must answer (`cairn_oidc`), what is in a cookie (`session`).
//!
//! The server sends no browser anywhere: the page does, to the address that it is given here, and a page of the console
//! takes what comes back. So there is no redirect that somebody else could choose, and the cookie need not be one that
//! other sites' links send.

use axum::Json;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cairn_oidc::{OidcError, Provider};

use super::caller::{
    Caller, NotLetIn, Via, Who, address_of, host, is_encrypted, logged_in, refuse_foreign,
};
use super::{Api, Given, ServerCore};
use crate::api::{ErrorBody, ErrorKind};
use crate::audit::Tried;
use crate::control::ControlError;
use crate::session::{LOGIN_SECONDS, Pending, Whose, cookie_of, login_cookie_name, set_cookie};
use crate::users::{LoginWays, OidcBegun, OidcReturn, SessionOpen};

/// Longest text of the provider that a message has.
const SAID_CHARS_MAX: usize = 200;

fn provider(shared: &ServerCore) -> Result<&Provider, ControlError> {
    let absent = || {
        ControlError::new(ErrorKind::NotFound, "this server has no OpenID provider")
            .hint("`cairn serve --help` shows the settings, which begin with oidc")
    };
    shared.oidc.as_ref().ok_or_else(absent)
}

/// The redirect address for the provider, if the settings contain it.
fn redirect(
    provider: &Provider,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<String, ControlError> {
    // Browsers say where a page that changes something is from.
    let origin = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok());
    let origin = origin.map(str::to_owned).unwrap_or_else(|| {
        let scheme = match is_encrypted(headers, extensions) {
            true => "https",
            false => "http",
        };
        format!("{scheme}://{}", host(headers))
    });
    let refused = || {
        let origin: String = origin.chars().take(SAID_CHARS_MAX).collect();
        let message =
            format!("the console is open at {origin}, which is not an allowed redirect address");
        ControlError::new(ErrorKind::Forbidden, message).hint(format!(
            "open the console at {}, or add this address to oidc_address and to the provider's allowed redirect addresses",
            provider.addresses()
        ))
    };
    provider.redirect_of(&origin).ok_or_else(refused)
}

fn refused(error: &OidcError) -> ControlError {
    let clocks = "compare the clocks of server and provider: `timedatectl` shows whether this server's clock is synchronized";
    let (kind, hint) = match error {
        OidcError::Away(_) => (
            ErrorKind::Unavailable,
            "try again; log-ins with a password or the admin token still work",
        ),
        OidcError::Answer(_) => (
            ErrorKind::Unavailable,
            "compare oidc_issuer with the provider's configuration",
        ),
        OidcError::Secret { .. } => (
            ErrorKind::Unavailable,
            "check oidc_client_secret_file: the server must be able to read it",
        ),
        OidcError::Code(_) => (
            ErrorKind::Unauthorized,
            "start the log-in again; if that does not help, compare client id, secret and the allowed redirect address, \
             /console/login, with the provider's configuration",
        ),
        OidcError::Token(token) => match token {
            cairn_oidc::TokenError::Expired(_) | cairn_oidc::TokenError::Future(_) => {
                (ErrorKind::Unauthorized, clocks)
            }
            cairn_oidc::TokenError::Issuer(_) | cairn_oidc::TokenError::Audience(_) => (
                ErrorKind::Unauthorized,
                "compare oidc_issuer and oidc_client_id with the provider's configuration",
            ),
            cairn_oidc::TokenError::Malformed(_)
            | cairn_oidc::TokenError::Algorithm(_)
            | cairn_oidc::TokenError::UnknownKey
            | cairn_oidc::TokenError::Signature
            | cairn_oidc::TokenError::Nonce => (
                ErrorKind::Unauthorized,
                "start the log-in again; if it fails again, the provider or a system on the path to it is misconfigured or hostile",
            ),
        },
        OidcError::NoName { .. } | OidcError::BadName { .. } => (
            ErrorKind::Forbidden,
            "oidc_name_claim sets the claim with the name; oidc_scope sets the requested scopes",
        ),
        OidcError::NoRole { .. } => (
            ErrorKind::Forbidden,
            "the provider's administrator can add you to a group; oidc_admin and oidc_viewer list the groups that give a role",
        ),
    };
    ControlError::new(kind, error.to_string()).hint(hint)
}

/// Lists the ways to log in besides passwords and the admin token.
#[utoipa::path(get, path = "/api/v1/session/ways", security(()), responses((status = 200, body = LoginWays)))]
pub(super) async fn login_ways(State(shared): Api) -> Json<LoginWays> {
    let oidc = shared.oidc.as_ref();
    Json(LoginWays {
        oidc: oidc.map(|provider| provider.text().to_owned()),
    })
}

/// Starts a log-in through the OpenID provider: the answer has the provider's address for the browser, and sets a cookie that is
/// valid for ten minutes. The provider redirects the browser to `/console/login` at the console's address.
#[utoipa::path(post, path = "/api/v1/session/oidc/begin", security(()), responses((status = 200, body = OidcBegun),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn oidc_begin(
    State(shared): Api,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, ControlError> {
    refuse_foreign(&headers)?;
    let provider = provider(&shared)?;
    let redirect = redirect(provider, &headers, &extensions)?;
    let seed = shared.env.entropy.u128();
    let pending = shared.sessions.begin_login(shared.now_seconds(), seed);
    let login = shared.sessions.login(&pending);
    let address = provider.address(&login, &redirect).await;
    let address = address.map_err(|error| {
        if let Some(more) = shared.oidc_begins_logged.admitted() {
            tracing::warn!(%error, more, "a log-in through the OpenID provider cannot start");
        }
        refused(&error)
    })?;
    let mut response = Json(OidcBegun { address }).into_response();
    let value = shared.sessions.login_value(&pending);
    add_login_cookie(&headers, &extensions, &value, &mut response);
    Ok(response)
}

/// Completes a log-in through the OpenID provider, with the parameters of its redirect: the answer sets a session cookie. The
/// session ends like any other, and when the settings of the provider change.
#[utoipa::path(post, path = "/api/v1/session/oidc/finish", security(()), request_body = OidcReturn,
    responses((status = 200, body = SessionOpen), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn oidc_finish(
    State(shared): Api,
    extensions: Extensions,
    headers: HeaderMap,
    Given(returned): Given<OidcReturn>,
) -> Response {
    if let Err(foreign) = refuse_foreign(&headers) {
        return foreign.into_response();
    }
    let address = address_of(&extensions);
    let now = shared.env.clock.monotonic();
    if let Err(wait) = shared.attempts.take(None, address, now) {
        return NotLetIn::TooOften(wait).into_response();
    }
    let mut response = match person(&shared, &headers, &extensions, returned).await {
        Ok((caller, whose)) => {
            shared.attempts.was_no_guess(address);
            logged_in(&shared, &headers, &extensions, caller, whose)
        }
        Err((error, tried)) => {
            let mut response = error.into_response();
            // The provider has said who it is, who only may nothing here: that is no guess.
            if response.status() == StatusCode::FORBIDDEN {
                shared.attempts.was_no_guess(address);
            }
            response.extensions_mut().insert(tried);
            response
        }
    };
    // A code is good for once, and so is what began it.
    add_login_cookie(&headers, &extensions, "", &mut response);
    response
}

type Refused = (ControlError, Tried);

/// The user that the provider authenticated.
async fn person(
    shared: &ServerCore,
    headers: &HeaderMap,
    extensions: &Extensions,
    returned: OidcReturn,
) -> Result<(Caller, Whose), Refused> {
    let nobody = |error: ControlError| (error, Tried::by_oidc(None));
    let provider = provider(shared).map_err(nobody)?;
    let redirect = redirect(provider, headers, extensions).map_err(nobody)?;
    let pending = pending(shared, headers, &returned.state).map_err(nobody)?;
    let code = code_of(returned).map_err(nobody)?;
    let login = shared.sessions.login(&pending);
    let person = provider.person(&login, &redirect, &code).await;
    let person = person.map_err(|error| {
        if let Some(more) = shared.oidc_ends_logged.admitted() {
            tracing::warn!(%error, more, "a log-in through the OpenID provider failed");
        }
        let name = match &error {
            OidcError::NoRole { name, .. } => Some(name.as_str()),
            _ => None,
        };
        (refused(&error), Tried::by_oidc(name))
    })?;
    let caller = Caller {
        who: Who::Person(person.name.clone()),
        role: person.role,
        via: Via::Oidc,
    };
    let whose = Whose::Person {
        name: person.name,
        role: person.role,
        stamp: provider.stamp(),
    };
    Ok((caller, whose))
}

/// The log-in that this browser started and that the provider answers.
fn pending(shared: &ServerCore, headers: &HeaderMap, state: &str) -> Result<Pending, ControlError> {
    let name = login_cookie_name(host(headers));
    let cookies = headers.get_all(header::COOKIE).iter();
    let found = cookies
        .filter_map(|header| cookie_of(header.to_str().ok()?, &name))
        .find_map(|value| shared.sessions.find_login(value));
    let is_its_own = |pending: &Pending| shared.sessions.login(pending).state == state;
    let Some(pending) = found.filter(is_its_own) else {
        let message = "this browser did not start this log-in, or has started another since";
        let error = ControlError::new(ErrorKind::Unauthorized, message);
        return Err(error.hint("log in again at /console/, in one window, with cookies allowed"));
    };
    match pending.holds(shared.now_seconds()) {
        true => Ok(pending),
        false => {
            let minutes = LOGIN_SECONDS / 60;
            let message = format!("this log-in is too old: it started more than {minutes} min ago");
            Err(ControlError::new(ErrorKind::Unauthorized, message).hint("log in again"))
        }
    }
}

fn code_of(returned: OidcReturn) -> Result<String, ControlError> {
    if let Some(error) = returned.error {
        let more = returned.error_description.unwrap_or_default();
        let said = format!("{error} {more}");
        let said = said.chars().filter(|letter| !letter.is_control());
        let said: String = said.take(SAID_CHARS_MAX).collect();
        let message = format!("the OpenID provider refuses this log-in: {}", said.trim());
        return Err(ControlError::new(ErrorKind::Unauthorized, message)
            .hint("log in again and agree there, or ask the provider's administrator"));
    }
    returned.code.ok_or_else(|| {
        ControlError::new(ErrorKind::Invalid, "the OpenID provider sent no code")
            .hint("log in again")
    })
}

fn add_login_cookie(
    headers: &HeaderMap,
    extensions: &Extensions,
    value: &str,
    response: &mut Response,
) {
    let name = login_cookie_name(host(headers));
    let cookie = set_cookie(
        &name,
        value,
        LOGIN_SECONDS,
        is_encrypted(headers, extensions),
    );
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        // Beside that of the session.
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}
