//! The path of events.

use axum::Json;
use axum::extract::{RawQuery, State};

use super::Api;
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::events::{EventPage, EventQuery};
use crate::query::Query;

/// Lists events, newest first: in a cluster those of all nodes, or only those of `node`. `next_before` is the `before` of the next
/// page. `severity` is the lowest severity to show; `subject` is a part of the subject; `text` is a part of the message or of the
/// action; `from` and `to` are seconds since 1970, or relative to now if negative or zero; `after` shows only events with a higher
/// id; `limit` is 1 to 1000, by default 100.
#[utoipa::path(get, path = "/api/v1/events", params(("node" = Option<String>, Query), ("severity" = Option<crate::events::Severity>, Query),
    ("subject" = Option<String>, Query), ("text" = Option<String>, Query), ("from" = Option<i64>, Query),
    ("to" = Option<i64>, Query), ("before" = Option<u64>, Query), ("after" = Option<u64>, Query),
    ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000)),
    responses((status = 200, body = EventPage), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn event_list(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<EventPage>, ControlError> {
    let query = Query::parse(query.as_deref(), EventQuery::KEYS)?;
    let query = EventQuery::of(&query, shared.env.clock.now().seconds)
        .map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))?;
    shared.check_node(&query.part)?;
    let absent = || ControlError::new(ErrorKind::NotFound, "this server keeps no events");
    let events = shared.control.events().ok_or_else(absent)?;
    events.events(query).await.map(Json)
}
