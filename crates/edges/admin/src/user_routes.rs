//! The paths of users and of the audit log.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::UserName;

use super::caller::user_control;
use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::audit::{AuditControl, AuditPage, AuditQuery};
use crate::control::ControlError;
use crate::query::Query;
use crate::users::{UserCreate, UserList, UserSet, UserView};

fn absent() -> ControlError {
    ControlError::new(ErrorKind::NotFound, "no user has the name in the path")
        .hint("`cairn user list` shows all users")
}

/// A text that cannot be a name is one that no user has.
fn named(text: &str) -> Result<UserName, ControlError> {
    text.parse().map_err(|_| absent())
}

/// Lists all users, without their password hashes.
#[utoipa::path(get, path = "/api/v1/users", responses((status = 200, body = UserList)))]
pub(super) async fn user_list(State(shared): Api) -> Result<Json<UserList>, ControlError> {
    let users = user_control(&shared)?.users().into_iter();
    let users = users.map(|(name, record)| UserView::new(name, &record));
    Ok(Json(UserList {
        users: users.collect(),
    }))
}

/// Creates a user.
#[utoipa::path(post, path = "/api/v1/users", request_body = UserCreate, responses(
    (status = 201, body = UserView), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn user_create(
    State(shared): Api,
    Given(create): Given<UserCreate>,
) -> Result<(StatusCode, Json<UserView>), ControlError> {
    let make = async move {
        let (name, entropy) = (create.name.as_str(), &*shared.env.entropy);
        let hash = shared.passwords.hash(name, create.password, entropy);
        let hash = hash.await?;
        let users = user_control(&shared)?;
        users.user_create(create.name, create.role, hash).await
    };
    Ok((StatusCode::CREATED, Json(to_the_end(make).await?)))
}

/// Shows one user.
#[utoipa::path(get, path = "/api/v1/users/{user}", params(("user" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = UserView), (status = 404, body = ErrorBody)))]
pub(super) async fn user_show(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<Json<UserView>, ControlError> {
    let name = named(&name)?;
    let record = user_control(&shared)?.user(&name).ok_or_else(absent)?;
    Ok(Json(UserView::new(name, &record)))
}

/// Changes the role or password of a user. All sessions of the user end.
#[utoipa::path(patch, path = "/api/v1/users/{user}", params(("user" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = UserSet,
    responses((status = 200, body = UserView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn user_set(
    State(shared): Api,
    InPath(name): InPath<String>,
    Given(set): Given<UserSet>,
) -> Result<Json<UserView>, ControlError> {
    let name = named(&name)?;
    if set.role.is_none() && set.password.is_none() {
        let error = ControlError::new(ErrorKind::Invalid, "the request changes nothing");
        return Err(error.hint("give a role, a password, or both"));
    }
    let set = async move {
        let users = user_control(&shared)?;
        // Before the work that a hash is.
        users.user(&name).ok_or_else(absent)?;
        let hash = match set.password {
            Some(password) => {
                let entropy = &*shared.env.entropy;
                let hash = shared.passwords.hash(name.as_str(), password, entropy);
                Some(hash.await?)
            }
            None => None,
        };
        users.user_set(name, set.role, hash, None).await
    };
    Ok(Json(to_the_end(set).await?))
}

/// Deletes a user. All sessions of the user end.
#[utoipa::path(delete, path = "/api/v1/users/{user}", params(("user" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn user_delete(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ControlError> {
    let name = named(&name)?;
    to_the_end(async move { user_control(&shared)?.user_delete(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn audit_control(shared: &ServerCore) -> Result<&dyn AuditControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no audit log");
    shared.control.audit().ok_or_else(absent)
}

/// The audit log, newest first: each request that changes something, and each log-in. `next_before` is the `before` of the next
/// page. `user` is the whole name, `path` a part of the path; `from` and `to` are seconds since 1970, or relative to now if
/// negative or zero; `refused=true` shows only requests that were refused or failed; `after` shows only entries with a higher id;
/// `limit` is 1 to 1000, by default 100. In a cluster the log has the requests to all nodes, or only those to `node`; `silent`
/// names nodes that did not answer. A page may have a few more entries than `limit`, with the id of the last one.
#[utoipa::path(get, path = "/api/v1/audit", params(("node" = Option<String>, Query), ("user" = Option<String>, Query), ("path" = Option<String>, Query),
    ("method" = Option<String>, Query), ("from" = Option<i64>, Query), ("to" = Option<i64>, Query),
    ("refused" = Option<bool>, Query), ("before" = Option<u64>, Query), ("after" = Option<u64>, Query),
    ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000)),
    responses((status = 200, body = AuditPage), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn audit_list(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<AuditPage>, ControlError> {
    let query = Query::parse(query.as_deref(), AuditQuery::KEYS)?;
    let query = AuditQuery::of(&query, shared.env.clock.now().seconds)
        .map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))?;
    shared.check_node(&query.part)?;
    audit_control(&shared)?.audit(query).await.map(Json)
}
