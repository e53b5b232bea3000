//! Which paths there are, and the OpenAPI document of them.
//!
//! Owns: the one list of all features and paths, by what they take (a token, one unless the settings say otherwise, none), and what the
//! document says of each that need not be said there. Must not know: what a path answers.

use std::sync::Arc;

use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApiBuilder, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    ServerCore, Table, benchmark_routes, caller, event_routes, live_routes, oidc_routes,
    plan_routes, session_routes, status_routes, user_routes,
};
use crate::api::ErrorBody;
use crate::{
    activity, address_pools, balance, caches, classes, cluster, disks, document, exports, jobs,
    keys, pages, policies, quotas, rebuild, s3, san, scrub, snapshots, spread, tiers, volumes,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cairn admin API",
        description = "Volumes, exports, disks and the state of a Cairn server. Every request but \
                       /healthz, this document and the log-in carries `Authorization: Bearer TOKEN`, a user's \
                       name and password as `Authorization: Basic`, or the cookie of a session, with the header \
                       `X-Cairn-Console` if it changes something; the server prints at start where its token is. A \
                       user who is a viewer gets 403 for every change. With `metrics_open = true` \
                       /metrics needs none. Every error has an ErrorBody, also 404 for an unknown \
                       path and 405 for a method that a path does not take."
    ),
    components(schemas(ErrorBody)),
    security(("token" = []), ("user" = []))
)]
struct Document;

/// Routes whose declarations say all about them, each feature's in its module. They take the token.
pub(crate) fn declared() -> Table {
    let mut table = Table::default();
    for routes in [
        volumes::routes,
        exports::routes,
        disks::routes,
        caches::routes,
        rebuild::routes,
        spread::routes,
        scrub::routes,
        cluster::routes,
        balance::routes,
        address_pools::routes,
        classes::routes,
        tiers::routes,
        activity::routes,
        san::routes,
        s3::routes,
        jobs::routes,
        keys::routes,
        snapshots::routes,
        policies::routes,
        quotas::routes,
        user_routes::routes,
        session_routes::routes,
        event_routes::routes,
        live_routes::routes,
    ] {
        routes(&mut table);
    }
    table
}

/// What takes the token.
pub(super) fn secured() -> OpenApiRouter<Arc<ServerCore>> {
    let declared = declared();
    let mut document = OpenApiBuilder::new().build();
    declared.describe(&mut document);
    OpenApiRouter::with_openapi(document)
        .merge(declared.router().into())
        .routes(routes!(status_routes::status))
        .routes(routes!(caller::session_show, caller::session_delete))
        .routes(routes!(caller::password_change))
        .routes(routes!(
            benchmark_routes::benchmark_list,
            benchmark_routes::benchmark_start
        ))
        .routes(routes!(benchmark_routes::benchmark_stop))
        .routes(routes!(benchmark_routes::benchmark_published))
        .routes(routes!(benchmark_routes::benchmark_report))
        .routes(routes!(benchmark_routes::benchmark_result))
        .routes(routes!(plan_routes::plan_show))
        .routes(routes!(plan_routes::plan_report))
        .routes(routes!(plan_routes::plan_template))
        .routes(routes!(live_routes::live))
        .routes(routes!(live_routes::live_events))
        .routes(routes!(live_routes::history))
        .routes(routes!(live_routes::history_list))
}

/// What takes the token unless the settings say otherwise.
pub(super) fn observed() -> OpenApiRouter<Arc<ServerCore>> {
    OpenApiRouter::new().routes(routes!(status_routes::metrics))
}

/// What takes none.
pub(super) fn open() -> OpenApiRouter<Arc<ServerCore>> {
    OpenApiRouter::new()
        .routes(routes!(status_routes::alive))
        .routes(routes!(status_routes::openapi))
        .routes(routes!(caller::session_create))
        .routes(routes!(oidc_routes::login_ways))
        .routes(routes!(oidc_routes::oidc_begin))
        .routes(routes!(oidc_routes::oidc_finish))
}

/// The OpenAPI document, made from the code that answers.
pub fn openapi_json() -> String {
    let mut document = OpenApiRouter::with_openapi(Document::openapi())
        .merge(secured())
        .merge(observed())
        .merge(open())
        .into_openapi();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    document
        .components
        .get_or_insert_with(Default::default)
        .add_security_scheme("token", SecurityScheme::Http(bearer));
    let basic = HttpBuilder::new().scheme(HttpAuthScheme::Basic).build();
    if let Some(components) = &mut document.components {
        components.add_security_scheme("user", SecurityScheme::Http(basic));
    }
    for item in document.paths.paths.values_mut() {
        if let Some(operation) = &mut item.get {
            complete(operation, false);
        }
        let changes = [
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.patch,
        ];
        for operation in changes.into_iter().flatten() {
            complete(operation, true);
        }
    }
    pages::describe(&mut document);
    document::finish(&mut document);
    document.to_pretty_json().unwrap_or_default()
}

/// Descriptions of HTTP statuses, for all paths.
const STATUSES: &[(&str, &str)] = &[
    ("200", "done"),
    ("201", "created"),
    ("204", "deleted"),
    ("400", "the request is not valid: fix it"),
    (
        "401",
        "the token is missing or wrong; user name or password is wrong; the session has ended; \
        the OpenID provider did not authenticate the user",
    ),
    (
        "403",
        "viewers cannot change anything; another site's page cannot log in; the OpenID provider gives the user no role",
    ),
    ("404", "the object does not exist"),
    ("408", "the body took too long to arrive"),
    (
        "409",
        "the current state does not allow the request; the hint says what to do first",
    ),
    ("413", "the body is too long"),
    (
        "429",
        "too many requests; `Retry-After` says how many seconds to wait",
    ),
    (
        "431",
        "the request's head is too long, query values included",
    ),
    (
        "500",
        "a disk failed, or Cairn has a bug; the server's log has details",
    ),
    (
        "501",
        "this server was built without the part that the request needs",
    ),
    ("503", "temporarily not possible: try again"),
];
/// Errors of any request with a token, for example a query or path that is not valid, a missing object, or a state that does not
/// allow the request.
const ERRORS_COMMON: &[&str] = &["400", "401", "404", "409", "429", "431", "500", "503"];
const ERRORS_OF_CHANGES: &[&str] = &["403"];
/// Errors of any request with a body. Log-ins have a body and no token.
const ERRORS_OF_BODIES: &[&str] = &["400", "403", "408", "413", "429", "500", "503"];

/// Adds the parts that all paths share: common errors, descriptions of statuses, and the body of errors.
fn complete(operation: &mut Operation, is_change: bool) {
    let mut errors: Vec<&str> = Vec::new();
    // Without a requirement of its own, that of the whole document holds.
    if operation.security.is_none() {
        errors.extend(ERRORS_COMMON);
        if is_change {
            errors.extend(ERRORS_OF_CHANGES);
        }
    }
    if operation.request_body.is_some() {
        errors.extend(ERRORS_OF_BODIES);
    }
    let refused = || {
        let body = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("ErrorBody")))
            .build();
        ResponseBuilder::new()
            .content("application/json", body)
            .build()
    };
    let responses = &mut operation.responses.responses;
    for status in errors {
        responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(refused()));
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else {
            continue;
        };
        if status == "431" {
            // The library answers a head that it does not hold, and sends no body.
            *response = ResponseBuilder::new().build();
        } else if status.starts_with(['4', '5']) && response.content.is_empty() {
            *response = refused();
        }
        let meaning = STATUSES.iter().find(|(known, _)| known == status);
        if let Some((_, meaning)) = meaning {
            response.description = (*meaning).to_owned();
        }
    }
}
