//! Answers what is asked of events.

use axum::Json;
use axum::extract::State;

use super::{Api, Said, Table};
use crate::control::ControlError;
use crate::endpoint::absent;
use crate::events::{EVENT_LIST, EventPage, EventQuery};

async fn event_list(
    State(shared): Api,
    Said(query): Said<EventQuery>,
) -> Result<Json<EventPage>, ControlError> {
    shared.check_node(&query.part)?;
    let events = shared.control.events();
    let events = events.ok_or_else(|| absent("this server keeps no events"))?;
    events.events(query).await.map(Json)
}

pub(super) fn routes(table: &mut Table) {
    table.handle(EVENT_LIST, event_list);
}
