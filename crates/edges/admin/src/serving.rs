//! Serves declared routes: what they take out of a request, who does what they ask, how that is answered.
//!
//! Owns: the way from a request to a method of the node and back, the same for each route. Must not know: any route, rights.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::PathItem;

use super::requests::{read_body, refuse, to_the_end};
use super::{Api, ServerCore};
use crate::control::{Answer, Control, ControlError};
use crate::endpoint::{Argument, Endpoint, Route, UrlParts, Verb, absent};

/// Routes with what answers them.
#[derive(Default)]
pub(crate) struct Table {
    router: Router<Arc<ServerCore>>,
    routes: Vec<Route>,
}

/// Finds the part of a node that a feature needs; fails if the node has none.
type Find<C> = for<'a> fn(&'a dyn Control) -> Result<&'a C, ControlError>;

/// The routes of one feature, which the part `C` of a node answers.
pub(crate) struct Slice<'a, C: ?Sized> {
    table: &'a mut Table,
    find: Find<C>,
}

impl Table {
    /// Routes that a part of the node answers.
    pub fn slice<C: ?Sized + Sync + 'static>(&mut self, find: Find<C>) -> Slice<'_, C> {
        Slice { table: self, find }
    }

    /// A route that needs more of a request than its arguments and its body.
    pub fn handle<A, B, V, H, T>(&mut self, endpoint: Endpoint<A, B, V>, handler: H)
    where
        H: Handler<T, Arc<ServerCore>>,
        T: 'static,
    {
        self.add(endpoint.route, handler);
    }

    fn add<H, T>(&mut self, route: Route, handler: H)
    where
        H: Handler<T, Arc<ServerCore>>,
        T: 'static,
    {
        let served: MethodRouter<Arc<ServerCore>> = match route.verb {
            Verb::Get => routing::get(handler),
            Verb::Put => routing::put(handler),
            Verb::Post => routing::post(handler),
            Verb::Patch => routing::patch(handler),
            Verb::Delete => routing::delete(handler),
        };
        let router = std::mem::take(&mut self.router);
        self.router = router.route(route.path, served);
        self.routes.push(route);
    }

    pub fn router(self) -> Router<Arc<ServerCore>> {
        self.router
    }

    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Adds all routes to the document.
    pub fn describe(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        for route in &self.routes {
            let item = PathItem::new(route.http_method(), route.operation(components));
            let paths = &mut document.paths.paths;
            match paths.get_mut(route.path) {
                Some(known) => known.merge_operations(item),
                None => drop(paths.insert(route.path.to_owned(), item)),
            }
        }
    }
}

impl<C: ?Sized + Sync + 'static> Slice<'_, C> {
    /// Answers a route with a method of the part. A change runs to its end, also when the client goes away meanwhile.
    pub fn on<A, B, V, F>(&mut self, endpoint: Endpoint<A, B, V>, act: F) -> &mut Self
    where
        A: Argument,
        B: Send + 'static,
        V: Send + 'static,
        F: for<'a> Fn(&'a C, A, B) -> Answer<'a, V> + Copy + Send + Sync + 'static,
    {
        let find = self.find;
        let handler = move |State(shared): Api, request: Request| async move {
            let answered = answered(endpoint, find, act, shared, request).await;
            answered.unwrap_or_else(|refused| refused)
        };
        self.table.add(endpoint.route, handler);
        self
    }
}

/// What the URL of a request says.
pub(crate) struct Said<A>(pub A);

impl<A: Argument> FromRequestParts<Arc<ServerCore>> for Said<A> {
    type Rejection = ControlError;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<ServerCore>,
    ) -> Result<Self, ControlError> {
        let values = match RawPathParams::from_request_parts(parts, shared).await {
            Ok(values) => values.iter().map(|(_, value)| value.to_owned()).collect(),
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                return Err(absent("no object has the name in the path"));
            }
            // There are none.
            Err(_) => Vec::new(),
        };
        let now_seconds = shared.now_seconds();
        A::read(&mut UrlParts::new(values, parts.uri.query(), now_seconds)).map(Self)
    }
}

async fn answered<C, A, B, V, F>(
    endpoint: Endpoint<A, B, V>,
    find: Find<C>,
    act: F,
    shared: Arc<ServerCore>,
    request: Request,
) -> Result<Response, Response>
where
    C: ?Sized + Sync + 'static,
    A: Argument,
    B: Send + 'static,
    V: Send + 'static,
    F: for<'a> Fn(&'a C, A, B) -> Answer<'a, V> + Copy + Send + Sync + 'static,
{
    let route = &endpoint.route;
    let (mut parts, body) = request.into_parts();
    let arguments = Said::<A>::from_request_parts(&mut parts, &shared).await;
    let Said(arguments) = arguments.map_err(ControlError::into_response)?;
    let body = match route.has_body() {
        true => read_body(body).await.map_err(IntoResponse::into_response)?,
        false => Bytes::new(),
    };
    let body = (endpoint.read_body)(&body).map_err(|why| {
        let message = format!("the body is not valid: {why}");
        refuse(StatusCode::BAD_REQUEST, message).into_response()
    })?;
    let work = async move { act(find(&*shared.control)?, arguments, body).await };
    let answer = match route.is_read() {
        true => work.await,
        false => to_the_end(work).await,
    };
    let answer = answer.map_err(ControlError::into_response)?;
    Ok((endpoint.respond)(route.success, answer))
}
