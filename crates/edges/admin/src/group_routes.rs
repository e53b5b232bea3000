//! Answers what nodes ask of one another. Clients cannot reach these routes, whatever their token.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};

use super::{Api, Given, ServerCore, to_the_end};
use crate::control::ControlError;
use crate::groups::{self, GroupAsk, GroupDone};
use crate::snapshots::control;

pub(super) fn for_nodes() -> Router<Arc<ServerCore>> {
    Router::new().route(groups::PATH, post(snapshot_group_step))
}

/// A step of the snapshots of a consistency group.
async fn snapshot_group_step(
    State(shared): Api,
    Given(ask): Given<GroupAsk>,
) -> Result<Json<GroupDone>, ControlError> {
    let done = async move { control(&*shared.control)?.snapshot_group_step(ask).await };
    Ok(Json(to_the_end(done).await?))
}
