//! The paths of tiers.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cairn_config::TierName;

use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::tiers::{TierAdd, TierCheck, TierChecked, TierControl, TierList, TierView};

fn control(shared: &ServerCore) -> Result<&dyn TierControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no tiers");
    shared.control.tiers().ok_or_else(absent)
}

/// A text that cannot be a name is one that no tier has.
fn named(text: &str) -> Result<TierName, ControlError> {
    let absent = |_| {
        let message = "there is no tier of the name in the path";
        ControlError::new(ErrorKind::NotFound, message).hint("`cairn tier list` shows all tiers")
    };
    text.parse().map_err(absent)
}

/// Lists the tiers, with the data in them.
#[utoipa::path(get, path = "/api/v1/tiers", responses((status = 200, body = TierList)))]
pub(super) async fn tier_list(State(shared): Api) -> Result<Json<TierList>, ControlError> {
    let tiers = control(&shared)?.tiers().await?;
    Ok(Json(TierList { tiers }))
}

/// Adds a tier. No other pool may use the bucket and prefix, or the directory. `PATCH /api/v1/volumes/{name}` sets which data is
/// offloaded to it.
#[utoipa::path(post, path = "/api/v1/tiers", request_body = TierAdd, responses(
    (status = 201, body = TierView), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn tier_add(
    State(shared): Api,
    Given(add): Given<TierAdd>,
) -> Result<(StatusCode, Json<TierView>), ControlError> {
    let added = to_the_end(async move { control(&shared)?.tier_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(added)))
}

/// Shows one tier.
#[utoipa::path(get, path = "/api/v1/tiers/{tier}", params(("tier" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = TierView), (status = 404, body = ErrorBody)))]
pub(super) async fn tier_show(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<Json<TierView>, ControlError> {
    Ok(Json(control(&shared)?.tier(named(&name)?).await?))
}

/// Removes an empty tier.
#[utoipa::path(delete, path = "/api/v1/tiers/{tier}", params(("tier" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn tier_remove(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ControlError> {
    let name = named(&name)?;
    to_the_end(async move { control(&shared)?.tier_remove(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads an object of a tier and verifies its checksums. To check all objects, repeat the request with `next` until there is
/// none.
#[utoipa::path(post, path = "/api/v1/tiers/{tier}/check", params(("tier" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = TierCheck,
    responses((status = 200, body = TierChecked), (status = 404, body = ErrorBody)))]
pub(super) async fn tier_check(
    State(shared): Api,
    InPath(name): InPath<String>,
    Given(from): Given<TierCheck>,
) -> Result<Json<TierChecked>, ControlError> {
    let checked = control(&shared)?.tier_check(named(&name)?, from).await?;
    Ok(Json(checked))
}
