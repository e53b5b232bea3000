//! Answers what is asked of users and of the audit log.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cairn_config::UserName;

use super::caller::user_control;
use super::{Api, Given, Said, ServerCore, Table, to_the_end};
use crate::api::ErrorKind;
use crate::audit::{AUDIT_LIST, AuditControl, AuditPage, AuditQuery};
use crate::control::ControlError;
use crate::users::{
    USER_CREATE, USER_DELETE, USER_LIST, USER_SET, USER_SHOW, UserCreate, UserList, UserSet,
    UserView, no_user,
};

pub(super) async fn user_list(State(shared): Api) -> Result<Json<UserList>, ControlError> {
    let users = user_control(&shared)?.users().into_iter();
    let users = users.map(|(name, record)| UserView::new(name, &record));
    Ok(Json(UserList {
        users: users.collect(),
    }))
}

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

pub(super) async fn user_show(
    State(shared): Api,
    Said(name): Said<UserName>,
) -> Result<Json<UserView>, ControlError> {
    let record = user_control(&shared)?.user(&name).ok_or_else(no_user)?;
    Ok(Json(UserView::new(name, &record)))
}

pub(super) async fn user_set(
    State(shared): Api,
    Said(name): Said<UserName>,
    Given(set): Given<UserSet>,
) -> Result<Json<UserView>, ControlError> {
    if set.role.is_none() && set.password.is_none() {
        let error = ControlError::new(ErrorKind::Invalid, "the request changes nothing");
        return Err(error.hint("give a role, a password, or both"));
    }
    let set = async move {
        let users = user_control(&shared)?;
        // Before the work that a hash is.
        users.user(&name).ok_or_else(no_user)?;
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

pub(super) async fn user_delete(
    State(shared): Api,
    Said(name): Said<UserName>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { user_control(&shared)?.user_delete(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn audit_control(shared: &ServerCore) -> Result<&dyn AuditControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no audit log");
    shared.control.audit().ok_or_else(absent)
}

pub(super) async fn audit_list(
    State(shared): Api,
    Said(query): Said<AuditQuery>,
) -> Result<Json<AuditPage>, ControlError> {
    shared.check_node(&query.part)?;
    audit_control(&shared)?.audit(query).await.map(Json)
}

pub(super) fn routes(table: &mut Table) {
    table.handle(USER_LIST, user_list);
    table.handle(USER_CREATE, user_create);
    table.handle(USER_SHOW, user_show);
    table.handle(USER_SET, user_set);
    table.handle(USER_DELETE, user_delete);
    table.handle(AUDIT_LIST, audit_list);
}
