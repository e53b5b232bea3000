//! The parts of requests that are read, and how errors are answered.
//!
//! Owns: bounds of bodies, statuses of errors. Must not know: any path.

use std::future::Future;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{BODY_LEN_BYTES_MAX, CLIENT_TIMEOUT};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::pass::{self, Elsewhere};
use crate::query::QueryError;

fn status_code(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::NotSupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        let (node, is_passing) = (self.at, self.is_passing);
        let mut response = (status_code(self.kind), Json(ErrorBody::from(self))).into_response();
        if let Some(node) = node {
            response.extensions_mut().insert(Elsewhere(node));
        }
        if is_passing {
            pass::mark_passing(&mut response);
        }
        response
    }
}

/// A JSON body: bounded in size and time, and refused in the API's own words.
pub(super) struct Given<T>(pub(super) T);

impl<T: DeserializeOwned + Serialize, S: Sync> FromRequest<S> for Given<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        let body = read_body(request.into_body()).await?;
        let given = body_of(&body).map_err(|why| {
            let message = format!("the body is not valid: {why}");
            refuse(StatusCode::BAD_REQUEST, message)
        })?;
        Ok(Self(given))
    }
}

/// Reads a body; fails with why it is not one.
pub(crate) fn body_of<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<T, String> {
    let given: T = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    // Only then can there be a list.
    if body.contains(&b'[') && has_list_for_object(body, &given) {
        return Err("it has a list instead of an object".to_owned());
    }
    Ok(given)
}

/// Whether a list stands for an object: serde takes one for a struct, in the order of its fields, which the document does not know.
fn has_list_for_object<T: Serialize>(body: &[u8], given: &T) -> bool {
    fn differ(said: &Value, meant: &Value) -> bool {
        match (said, meant) {
            (Value::Array(_), Value::Object(_)) => true,
            (Value::Array(said), Value::Array(meant)) => said
                .iter()
                .zip(meant)
                .any(|(said, meant)| differ(said, meant)),
            (Value::Object(said), Value::Object(meant)) => said.iter().any(|(key, said)| {
                let meant = meant.get(key);
                meant.is_some_and(|meant| differ(said, meant))
            }),
            _ => false,
        }
    }
    let said = serde_json::from_slice::<Value>(body);
    let meant = serde_json::to_value(given);
    matches!((said, meant), (Ok(said), Ok(meant)) if differ(&said, &meant))
}

pub(super) type Refused = (StatusCode, Json<ErrorBody>);

pub(super) fn refuse(status: StatusCode, message: String) -> Refused {
    let error = ControlError::new(ErrorKind::Invalid, message);
    (status, Json(ErrorBody::from(error)))
}

/// All of a body, which has to be short, and to arrive in time.
pub(crate) async fn read_body(body: Body) -> Result<Bytes, Refused> {
    let too_long = || {
        let message = format!("the body has more than {BODY_LEN_BYTES_MAX} bytes");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    // Said at once when the client announces it, and not after all that has arrived.
    if body.size_hint().lower() > BODY_LEN_BYTES_MAX as u64 {
        return Err(too_long());
    }
    let body = Limited::new(body, BODY_LEN_BYTES_MAX).collect();
    let body = tokio::time::timeout(CLIENT_TIMEOUT, body)
        .await
        .map_err(|_| {
            let message = "the body took too long to arrive".to_owned();
            refuse(StatusCode::REQUEST_TIMEOUT, message)
        })?
        .map_err(|error| match error.is::<LengthLimitError>() {
            true => too_long(),
            false => {
                let message = format!("the body cannot be read: {error}");
                refuse(StatusCode::BAD_REQUEST, message)
            }
        })?;
    Ok(body.to_bytes())
}

/// What the path names. A text that cannot be such a name, or is not UTF-8, is one that nothing has.
pub(super) struct InPath<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(named)| Self(named))
            .map_err(|_| {
                ControlError::new(ErrorKind::NotFound, "no object has the name in the path")
            })
    }
}

impl From<QueryError> for ControlError {
    fn from(error: QueryError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

/// Runs a change to its end, also when the client goes away meanwhile.
pub(super) async fn to_the_end<T, F>(change: F) -> Result<T, ControlError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ControlError>> + Send + 'static,
{
    match tokio::spawn(change).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a change through the admin API was interrupted");
            Err(ControlError::new(
                ErrorKind::Internal,
                "the change was interrupted; see the server's log",
            ))
        }
    }
}
