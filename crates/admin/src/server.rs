//! The HTTP server of the API.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use cairn_config::{ClientNet, VolumeName};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{
    DiskList, ErrorBody, ErrorKind, ExportList, ExportSet, ExportView, Status, VolumeChange,
    VolumeCreate, VolumeList, VolumeView,
};
use crate::control::{Control, ControlError};
use crate::token::Token;

/// Longest body of a request, in bytes.
pub const BODY_LEN_BYTES_MAX: usize = 256 << 10;
/// Most connections at a time; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 128;
/// A client that takes longer to send its headers, or its body, is cut off.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a stopping server waits for answers that are under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Numbers and switches of the API.
#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// Serve `/metrics` without the token. What it tells (names of volumes, rates, sizes) is no
    /// secret in most places, but that is the operator's choice.
    pub metrics_open: bool,
}

struct Shared {
    control: Arc<dyn Control>,
    token: Token,
    settings: AdminSettings,
}

type Api = State<Arc<Shared>>;

/// The API over one listener.
pub struct AdminServer {
    router: Router,
}

impl AdminServer {
    pub fn new(control: Arc<dyn Control>, token: Token, settings: AdminSettings) -> Self {
        let shared = Arc::new(Shared {
            control,
            token,
            settings,
        });
        Self {
            router: router(shared),
        }
    }

    /// Serves until `stop` is ready, then finishes what is under way.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let graceful = GracefulShutdown::new();
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(RECEIVE_TIMEOUT);
        tokio::pin!(stop);
        loop {
            let accept = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, stream) = tokio::select! {
                () = &mut stop => break,
                (permit, accepted) = accept => match accepted {
                    Ok((stream, _)) => (permit, stream),
                    Err(error) => {
                        // Most often too many open files: they do not close faster by asking often.
                        tracing::warn!(%error, "the admin API cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let service = TowerToHyperService::new(self.router.clone());
            let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                let _permit = permit;
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the admin API ended");
                }
            });
        }
        drop(listener);
        if tokio::time::timeout(STOP_TIMEOUT, graceful.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("gave up on requests to the admin API that are still under way");
        }
    }

    #[cfg(test)]
    fn router(&self) -> Router {
        self.router.clone()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cairn admin API",
        description = "Volumes, exports, disks and the state of a Cairn server. Every request but \
                       /healthz and this document carries `Authorization: Bearer TOKEN`; the \
                       server prints at start where its token is."
    ),
    components(schemas(ErrorBody)),
    security(("token" = []))
)]
struct Document;

fn documented() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status))
        .routes(routes!(disk_list))
        .routes(routes!(volume_list, volume_create))
        .routes(routes!(volume_show, volume_set, volume_delete))
        .routes(routes!(export_list))
        .routes(routes!(export_set, export_remove))
}

fn document(mut openapi: utoipa::openapi::OpenApi) -> String {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    openapi
        .components
        .get_or_insert_with(Default::default)
        .add_security_scheme("token", SecurityScheme::Http(bearer));
    openapi.to_pretty_json().unwrap_or_default()
}

/// The OpenAPI document, made from the code that answers.
pub fn openapi_json() -> String {
    document(documented().into_openapi())
}

fn router(shared: Arc<Shared>) -> Router {
    let (api, openapi) = documented().split_for_parts();
    let document: Arc<str> = document(openapi).into();
    let secured = api.layer(middleware::from_fn_with_state(
        Arc::clone(&shared),
        authorize,
    ));
    let metrics_route = Router::new().route("/metrics", routing::get(metrics));
    let metrics_route = if shared.settings.metrics_open {
        metrics_route
    } else {
        metrics_route.layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            authorize,
        ))
    };
    Router::new()
        .merge(secured)
        .merge(metrics_route)
        .route("/healthz", routing::get(|| async { "ok\n" }))
        .route(
            "/api/v1/openapi.json",
            routing::get(move || async move {
                (
                    [(header::CONTENT_TYPE, "application/json")],
                    document.to_string(),
                )
            }),
        )
        .fallback(|| async {
            ControlError::new(ErrorKind::NotFound, "there is nothing at this path")
                .hint("GET /api/v1/openapi.json lists all paths")
        })
        .method_not_allowed_fallback(|| async {
            let error =
                ControlError::new(ErrorKind::Invalid, "this path does not take this method")
                    .hint("GET /api/v1/openapi.json lists all paths and their methods");
            (StatusCode::METHOD_NOT_ALLOWED, Json(ErrorBody::from(error)))
        })
        .with_state(shared)
}

async fn authorize(State(shared): Api, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    if given.is_some_and(|value| shared.token.is_in(value.as_bytes())) {
        return next.run(request).await;
    }
    let message = match given {
        None => "this request has no token",
        Some(_) => "the token is not this server's",
    };
    let mut response = ControlError::new(ErrorKind::Unauthorized, message)
        .hint("send the content of the server's admin-token file as `Authorization: Bearer TOKEN`")
        .into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn status_code(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        (status_code(self.kind), Json(ErrorBody::from(self))).into_response()
    }
}

/// A JSON body: bounded in size and time, and refused in the API's own words.
struct Given<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Given<T> {
    type Rejection = ControlError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ControlError> {
        let invalid = |message: String| ControlError::new(ErrorKind::Invalid, message);
        let body = Limited::new(request.into_body(), BODY_LEN_BYTES_MAX).collect();
        let body = tokio::time::timeout(RECEIVE_TIMEOUT, body)
            .await
            .map_err(|_| invalid("the body took too long to arrive".to_owned()))?
            .map_err(|error| invalid(format!("the body cannot be read: {error}")))?;
        serde_json::from_slice(&body.to_bytes())
            .map(Self)
            .map_err(|error| invalid(format!("the body does not fit: {error}")))
    }
}

/// Takes the name of a volume out of the path.
fn volume_name(text: &str) -> Result<VolumeName, ControlError> {
    text.parse().map_err(|_| {
        ControlError::new(
            ErrorKind::NotFound,
            format!("there is no volume \"{text}\""),
        )
    })
}

/// Runs a change to its end, also when the client goes away meanwhile.
async fn to_the_end<T, F>(change: F) -> Result<T, ControlError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ControlError>> + Send + 'static,
{
    match tokio::spawn(change).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a change that the admin API was asked for broke off");
            Err(ControlError::new(
                ErrorKind::Internal,
                "the change broke off; see the server's log",
            ))
        }
    }
}

/// How the server, its pool, disks and volumes are.
#[utoipa::path(get, path = "/api/v1/status", responses(
    (status = 200, body = Status), (status = 401, body = ErrorBody)))]
async fn status(State(shared): Api) -> Result<Json<Status>, ControlError> {
    shared.control.status().await.map(Json)
}

/// The disks of the pool.
#[utoipa::path(get, path = "/api/v1/disks", responses(
    (status = 200, body = DiskList), (status = 401, body = ErrorBody)))]
async fn disk_list(State(shared): Api) -> Result<Json<DiskList>, ControlError> {
    let disks = shared.control.disks().await?;
    Ok(Json(DiskList { disks }))
}

/// All volumes.
#[utoipa::path(get, path = "/api/v1/volumes", responses(
    (status = 200, body = VolumeList), (status = 401, body = ErrorBody)))]
async fn volume_list(State(shared): Api) -> Result<Json<VolumeList>, ControlError> {
    let volumes = shared.control.volumes().await?;
    Ok(Json(VolumeList { volumes }))
}

/// Makes a volume. It is exported to nobody until an export is set.
#[utoipa::path(post, path = "/api/v1/volumes", request_body = VolumeCreate, responses(
    (status = 201, body = VolumeView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn volume_create(
    State(shared): Api,
    Given(create): Given<VolumeCreate>,
) -> Result<(StatusCode, Json<VolumeView>), ControlError> {
    let made = to_the_end(async move { shared.control.volume_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// One volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}", params(("name" = String, Path)), responses(
    (status = 200, body = VolumeView), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
async fn volume_show(
    State(shared): Api,
    Path(name): Path<String>,
) -> Result<Json<VolumeView>, ControlError> {
    shared.control.volume(volume_name(&name)?).await.map(Json)
}

/// Changes settings of a volume.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}", params(("name" = String, Path)),
    request_body = VolumeChange, responses(
    (status = 200, body = VolumeView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn volume_set(
    State(shared): Api,
    Path(name): Path<String>,
    Given(change): Given<VolumeChange>,
) -> Result<Json<VolumeView>, ControlError> {
    let name = volume_name(&name)?;
    to_the_end(async move { shared.control.volume_set(name, change).await })
        .await
        .map(Json)
}

/// The values of `key` in a query string. Percent signs need no decoding: no value that fits has one.
fn query_values<'a>(query: Option<&'a str>, key: &str) -> Vec<&'a str> {
    query
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, value)| value)
        .collect()
}

/// Deletes a volume and all its data. An exported one is refused unless `force=true`.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}",
    params(("name" = String, Path), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn volume_delete(
    State(shared): Api,
    Path(name): Path<String>,
    axum::extract::RawQuery(query): axum::extract::RawQuery,
) -> Result<StatusCode, ControlError> {
    let name = volume_name(&name)?;
    let force = query_values(query.as_deref(), "force") == ["true"];
    to_the_end(async move { shared.control.volume_delete(name, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Who may mount what.
#[utoipa::path(get, path = "/api/v1/exports", responses(
    (status = 200, body = ExportList), (status = 401, body = ErrorBody)))]
async fn export_list(State(shared): Api) -> Result<Json<ExportList>, ControlError> {
    let exports = shared.control.exports().await?;
    Ok(Json(ExportList { exports }))
}

/// Adds rules to the export of a volume, or replaces those for the same clients.
#[utoipa::path(put, path = "/api/v1/exports/{volume}", params(("volume" = String, Path)),
    request_body = ExportSet, responses(
    (status = 200, body = ExportView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn export_set(
    State(shared): Api,
    Path(volume): Path<String>,
    Given(set): Given<ExportSet>,
) -> Result<Json<ExportView>, ControlError> {
    let volume = volume_name(&volume)?;
    to_the_end(async move { shared.control.export_set(volume, set.rules).await })
        .await
        .map(Json)
}

/// Removes the rules of the clients named by `client` (may be given more than once); all rules
/// when none is named.
#[utoipa::path(delete, path = "/api/v1/exports/{volume}",
    params(("volume" = String, Path), ("client" = Option<String>, Query)), responses(
    (status = 200, body = ExportView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn export_remove(
    State(shared): Api,
    Path(volume): Path<String>,
    axum::extract::RawQuery(query): axum::extract::RawQuery,
) -> Result<Json<ExportView>, ControlError> {
    let volume = volume_name(&volume)?;
    let clients = query_values(query.as_deref(), "client")
        .into_iter()
        .map(|text| text.replace("%2F", "/").replace("%3A", ":"))
        .map(|text| {
            text.parse::<ClientNet>()
                .map_err(|error| ControlError::new(ErrorKind::Invalid, error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    to_the_end(async move { shared.control.export_remove(volume, clients).await })
        .await
        .map(Json)
}

async fn metrics(State(shared): Api) -> Result<Response, ControlError> {
    let text = shared.control.metrics().await?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
