//! The paths of master keys, and of keys of volumes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cairn_config::VolumeName;

use super::{Api, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::keys::{KeyControl, KeyRotationView, MasterKeysView};

fn control(shared: &ServerCore) -> Result<&dyn KeyControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no keys");
    shared.control.keys().ok_or_else(absent)
}

/// Rereads the server's master keys from their source, and lists their ids; never the keys themselves.
#[utoipa::path(get, path = "/api/v1/master-keys", responses((status = 200, body = MasterKeysView)))]
pub(super) async fn master_key_list(
    State(shared): Api,
) -> Result<Json<MasterKeysView>, ControlError> {
    Ok(Json(control(&shared)?.master_keys().await?))
}

/// Wraps the keys of all encrypted volumes with the first master key, without reading or writing data.
#[utoipa::path(post, path = "/api/v1/master-keys/rotate", responses(
    (status = 200, body = KeyRotationView), (status = 409, body = ErrorBody)))]
pub(super) async fn master_key_rotate(
    State(shared): Api,
) -> Result<Json<KeyRotationView>, ControlError> {
    let rotated = to_the_end(async move { control(&shared)?.rotate_keys().await }).await?;
    Ok(Json(rotated))
}

/// Erases the key of a volume. The volume is unreadable for ever once this answers; it still has to be deleted.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/key", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn volume_key_erase(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.erase_key(volume).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
