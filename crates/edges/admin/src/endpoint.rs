//! A route of the API, declared once.
//!
//! Owns: what a declaration says (method, path, arguments, body, answer), and how each part is read, written and described. The server
//! ([`crate::server`]), the client ([`crate::Client`]) and the OpenAPI document take all of that from the declaration.
//! Must not know: any particular route, what answers it.

use std::marker::PhantomData;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::openapi::path::{HttpMethod, ParameterIn};
use utoipa::openapi::path::{Operation, OperationBuilder, Parameter, ParameterBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{
    Components, ContentBuilder, Ref, RefOr, Required, ResponseBuilder, ResponsesBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::ControlError;
use crate::list_query::{ENTRIES_OF_A_PAGE_MAX, ListQuery};
use crate::query::Query;

/// Bytes of a path segment that a URL shows as they are: RFC 3986, section 3.3, without those that separate.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'@')
    .remove(b'+');
/// The grammar of most names, in the document.
const PLAIN_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";
const PLAIN_NAME_CHARS_MAX: usize = 63;
/// The grammar of directories of a volume, in the document.
pub(crate) const DIRECTORY: &str =
    r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$";
pub(crate) const DIRECTORY_CHARS_MAX: usize = 4096;

/// Adds a type to the schemas of the document, and returns how it is referred to.
type SchemaOf = fn(&mut Components) -> RefOr<Schema>;

/// What a declaration says that is no type.
#[derive(Clone, Copy)]
pub struct Route {
    /// The name of the constant; in lower case the id of the operation in the document.
    pub name: &'static str,
    pub verb: Verb,
    pub path: &'static str,
    /// The status of a success.
    pub success: StatusCode,
    /// For people, a line of the source each; the document has them.
    pub about: &'static [&'static str],
    body: Option<SchemaOf>,
    answer: Option<SchemaOf>,
    parameters: fn(&mut Parameters),
    pub(crate) list: Option<ListOf>,
}

/// The method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

/// How the answer of a list is cut into pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListOf {
    /// The field that has the entries.
    pub entries: &'static str,
    /// What an entry is called by: together they are of one entry alone. Empty: the node that answers cuts the list itself.
    pub key: &'static [&'static str],
    /// A number that entries are ordered by before what they are called, if one is.
    pub order: Option<&'static str>,
    /// Each node has what is of its own volumes, and users want that of all.
    pub is_of_all_nodes: bool,
}

/// A route whose URL has arguments `A`, whose body is a `B` (`()`: none), and that answers a `V` (`()`: nothing).
pub struct Endpoint<A, B, V> {
    pub(crate) route: Route,
    pub(crate) read_body: fn(&[u8]) -> Result<B, String>,
    pub(crate) respond: fn(StatusCode, V) -> Response,
    pub(crate) parse: fn(&str) -> Result<V, serde_json::Error>,
    arguments: PhantomData<fn(A)>,
}

impl<A, B, V> Clone for Endpoint<A, B, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, B, V> Copy for Endpoint<A, B, V> {}

/// Declares routes: each is a public constant, and its description that of the constant.
macro_rules! endpoints {
    ($($(#[doc = $about:literal])* $name:ident: $declared:ty = $made:expr;)*) => {$(
        $(#[doc = $about])*
        pub const $name: $declared = $made.named(stringify!($name), &[$($about),*]);
    )*};
}
pub(crate) use endpoints;

/// Shows something.
pub(crate) const fn get<A, V>(path: &'static str) -> Endpoint<A, (), V>
where
    A: Argument,
    V: Serialize + DeserializeOwned + ToSchema,
{
    bare(Verb::Get, path)
}

/// Has something done that takes no body.
pub(crate) const fn act<A, V>(path: &'static str) -> Endpoint<A, (), V>
where
    A: Argument,
    V: Serialize + DeserializeOwned + ToSchema,
{
    bare(Verb::Post, path)
}

/// Deletes a part of what is shown then.
pub(crate) const fn remove<A, V>(path: &'static str) -> Endpoint<A, (), V>
where
    A: Argument,
    V: Serialize + DeserializeOwned + ToSchema,
{
    bare(Verb::Delete, path)
}

/// Deletes something; nothing is left to show.
pub(crate) const fn delete<A: Argument>(path: &'static str) -> Endpoint<A, (), ()> {
    Endpoint {
        route: route::<A>(Verb::Delete, path, StatusCode::NO_CONTENT),
        read_body: no_body,
        respond: nothing,
        parse: no_answer,
        arguments: PhantomData,
    }
}

/// Creates something, which is shown.
pub(crate) const fn create<A, B, V>(path: &'static str) -> Endpoint<A, B, V>
where
    A: Argument,
    B: Serialize + DeserializeOwned + ToSchema,
    V: Serialize + DeserializeOwned + ToSchema,
{
    whole(Verb::Post, path, StatusCode::CREATED)
}

pub(crate) const fn post<A, B, V>(path: &'static str) -> Endpoint<A, B, V>
where
    A: Argument,
    B: Serialize + DeserializeOwned + ToSchema,
    V: Serialize + DeserializeOwned + ToSchema,
{
    whole(Verb::Post, path, StatusCode::OK)
}

pub(crate) const fn put<A, B, V>(path: &'static str) -> Endpoint<A, B, V>
where
    A: Argument,
    B: Serialize + DeserializeOwned + ToSchema,
    V: Serialize + DeserializeOwned + ToSchema,
{
    whole(Verb::Put, path, StatusCode::OK)
}

pub(crate) const fn patch<A, B, V>(path: &'static str) -> Endpoint<A, B, V>
where
    A: Argument,
    B: Serialize + DeserializeOwned + ToSchema,
    V: Serialize + DeserializeOwned + ToSchema,
{
    whole(Verb::Patch, path, StatusCode::OK)
}

const fn route<A: Argument>(verb: Verb, path: &'static str, success: StatusCode) -> Route {
    Route {
        name: "",
        verb,
        path,
        success,
        about: &[],
        body: None,
        answer: None,
        parameters: A::describe,
        list: None,
    }
}

const fn bare<A, V>(verb: Verb, path: &'static str) -> Endpoint<A, (), V>
where
    A: Argument,
    V: Serialize + DeserializeOwned + ToSchema,
{
    Endpoint {
        route: Route {
            answer: Some(schema_of::<V>),
            ..route::<A>(verb, path, StatusCode::OK)
        },
        read_body: no_body,
        respond: shown::<V>,
        parse: parsed::<V>,
        arguments: PhantomData,
    }
}

const fn whole<A, B, V>(verb: Verb, path: &'static str, success: StatusCode) -> Endpoint<A, B, V>
where
    A: Argument,
    B: Serialize + DeserializeOwned + ToSchema,
    V: Serialize + DeserializeOwned + ToSchema,
{
    Endpoint {
        route: Route {
            body: Some(schema_of::<B>),
            answer: Some(schema_of::<V>),
            ..route::<A>(verb, path, success)
        },
        read_body: crate::server::body_of::<B>,
        respond: shown::<V>,
        parse: parsed::<V>,
        arguments: PhantomData,
    }
}

impl<A, B, V> Endpoint<A, B, V> {
    pub(crate) const fn named(
        mut self,
        name: &'static str,
        about: &'static [&'static str],
    ) -> Self {
        self.route.name = name;
        self.route.about = about;
        self
    }

    /// A list that can be long, which is cut into pages after it was put together, of all nodes where several have a part of it.
    pub(crate) const fn list(
        mut self,
        entries: &'static str,
        key: &'static [&'static str],
    ) -> Self {
        self.route.list = Some(ListOf {
            entries,
            key,
            order: None,
            is_of_all_nodes: false,
        });
        self
    }

    /// Each node has the entries that are of its own volumes: the answer has those of all nodes.
    pub(crate) const fn of_all_nodes(mut self) -> Self {
        if let Some(list) = self.route.list {
            self.route.list = Some(ListOf {
                is_of_all_nodes: true,
                ..list
            });
        }
        self
    }

    /// The entries of the list are ordered by this number first.
    pub(crate) const fn ordered(mut self, by: &'static str) -> Self {
        if let Some(list) = self.route.list {
            self.route.list = Some(ListOf {
                order: Some(by),
                ..list
            });
        }
        self
    }
}

fn no_body(_: &[u8]) -> Result<(), String> {
    Ok(())
}

fn nothing(status: StatusCode, (): ()) -> Response {
    status.into_response()
}

fn no_answer(_: &str) -> Result<(), serde_json::Error> {
    Ok(())
}

fn shown<V: Serialize>(status: StatusCode, answer: V) -> Response {
    (status, Json(answer)).into_response()
}

fn parsed<V: DeserializeOwned>(text: &str) -> Result<V, serde_json::Error> {
    serde_json::from_str(text)
}

fn schema_of<T: ToSchema>(components: &mut Components) -> RefOr<Schema> {
    let mut found = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut found);
    components.schemas.extend(found);
    Ref::from_schema_name(T::name()).into()
}

impl Route {
    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        self.verb == Verb::Get
    }

    pub(crate) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// What the document calls the answer.
    pub(crate) fn schema_name(&self) -> Option<String> {
        let answer = self.answer?(&mut Components::default());
        match answer {
            RefOr::Ref(to) => to.ref_location.rsplit('/').next().map(str::to_owned),
            RefOr::T(_) => None,
        }
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let mut parameters = Parameters {
            names: placeholders(self.path),
            found: Vec::new(),
        };
        (self.parameters)(&mut parameters);
        parameters.found
    }

    pub(crate) fn http_method(&self) -> HttpMethod {
        match self.verb {
            Verb::Get => HttpMethod::Get,
            Verb::Put => HttpMethod::Put,
            Verb::Post => HttpMethod::Post,
            Verb::Patch => HttpMethod::Patch,
            Verb::Delete => HttpMethod::Delete,
        }
    }

    /// The operation for the document, whose types go to `components`.
    pub(crate) fn operation(&self, components: &mut Components) -> Operation {
        let about: Vec<&str> = self.about.iter().map(|line| line.trim()).collect();
        let mut response = ResponseBuilder::new();
        if let Some(answer) = self.answer {
            let content = ContentBuilder::new().schema(Some(answer(components)));
            response = response.content("application/json", content.build());
        }
        let responses = ResponsesBuilder::new().response(self.success.as_str(), response.build());
        let mut operation = OperationBuilder::new()
            .operation_id(Some(self.name.to_lowercase()))
            .summary(Some(about.join("\n")))
            .responses(responses.build());
        let parameters = self.parameters();
        if !parameters.is_empty() {
            operation = operation.parameters(Some(parameters));
        }
        if let Some(body) = self.body {
            let content = ContentBuilder::new().schema(Some(body(components)));
            let body = RequestBodyBuilder::new()
                .content("application/json", content.build())
                .required(Some(Required::True));
            operation = operation.request_body(Some(body.build()));
        }
        operation.build()
    }
}

/// Says that there is nothing of that kind.
pub(crate) fn absent(message: &str) -> ControlError {
    ControlError::new(ErrorKind::NotFound, message)
}

/// The names in braces of a path, in order.
fn placeholders(path: &'static str) -> std::vec::IntoIter<&'static str> {
    let parts = path.split('/');
    let names = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.collect::<Vec<_>>().into_iter()
}

/// A part of a URL: a name in its path, or keys of its query.
pub trait Argument: Sized + Send + 'static {
    /// Adds its parameters.
    fn describe(to: &mut Parameters);
    /// Takes itself out of a request.
    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError>;
    /// Puts itself into the URL of a request; fails if it cannot be the name of anything.
    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail>;
}

/// The parameters of a route, while its arguments describe themselves.
pub struct Parameters {
    names: std::vec::IntoIter<&'static str>,
    found: Vec<Parameter>,
}

impl Parameters {
    /// The next name in the path.
    pub(crate) fn in_path(&mut self, schema: ObjectBuilder) {
        let name = self.names.next().unwrap_or_default();
        self.add(name, ParameterIn::Path, Required::True, schema);
    }

    pub(crate) fn in_query(&mut self, key: &str, schema: ObjectBuilder) {
        self.add(key, ParameterIn::Query, Required::False, schema);
    }

    pub(crate) fn required(&mut self, key: &str, schema: ObjectBuilder) {
        self.add(key, ParameterIn::Query, Required::True, schema);
    }

    /// One of a type that the document has a schema of.
    pub(crate) fn referred<T: ToSchema>(&mut self, key: &str) {
        let parameter = ParameterBuilder::new()
            .name(key)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .schema(Some(Ref::from_schema_name(T::name())));
        self.found.push(parameter.build());
    }

    fn add(&mut self, name: &str, place: ParameterIn, required: Required, schema: ObjectBuilder) {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .required(required)
            .schema(Some(Schema::Object(schema.build())));
        self.found.push(parameter.build());
    }
}

/// A text of so many characters.
pub(crate) fn text(chars_min: usize, chars_max: usize) -> ObjectBuilder {
    any_text()
        .min_length(Some(chars_min))
        .max_length(Some(chars_max))
}

pub(crate) fn any_text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(crate) fn plain_name() -> ObjectBuilder {
    text(1, PLAIN_NAME_CHARS_MAX).pattern(Some(PLAIN_NAME))
}

pub(crate) fn switch() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

/// A number with the bounds of its type.
pub(crate) fn number<T: PartialSchema>() -> ObjectBuilder {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => ObjectBuilder::from(object),
        _ => ObjectBuilder::new().schema_type(Type::Integer),
    }
}

/// What the URL of a request says.
pub struct UrlParts<'a> {
    values: std::vec::IntoIter<String>,
    query: Option<&'a str>,
    now_seconds: i64,
}

impl<'a> UrlParts<'a> {
    /// `values` are those of the path, decoded, in order.
    pub(crate) fn new(values: Vec<String>, query: Option<&'a str>, now_seconds: i64) -> Self {
        Self {
            values: values.into_iter(),
            query,
            now_seconds,
        }
    }

    /// The next name in the path; `absent` says that nothing has it.
    pub(crate) fn in_path(
        &mut self,
        absent: impl FnOnce() -> ControlError,
    ) -> Result<String, ControlError> {
        self.values.next().ok_or_else(absent)
    }

    /// Seconds since 1970 UTC at the server, for times that are given relative to now.
    pub(crate) fn now_seconds(&self) -> i64 {
        self.now_seconds
    }

    pub(crate) fn query(&self, keys: &[&'static str]) -> Result<Query, ControlError> {
        Ok(Query::parse(self.query, keys)?)
    }
}

/// The URL of a request that is being put together, without its server.
pub struct Url {
    path: String,
    /// Of the path, with the names that are not there yet.
    rest: &'static str,
    query: String,
}

impl Url {
    fn new(path: &'static str) -> Self {
        Self {
            path: String::new(),
            rest: path,
            query: String::new(),
        }
    }

    /// Puts the next name into the path.
    pub(crate) fn fill(&mut self, name: &str) {
        if let Some((before, after)) = self.rest.split_once('{') {
            self.path.push_str(before);
            self.rest = after.split_once('}').map_or("", |(_, after)| after);
        }
        self.path.extend(utf8_percent_encode(name, IN_PATH));
    }

    pub(crate) fn ask(&mut self, key: &str, value: &str) {
        self.query.push(match self.query.is_empty() {
            true => '?',
            false => '&',
        });
        self.query.push_str(key);
        self.query.push('=');
        self.query
            .extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    }

    /// Of a query that is text already.
    pub(crate) fn ask_text(&mut self, query: &str) {
        if !query.is_empty() {
            self.query.push_str(&format!("?{query}"));
        }
    }
}

impl<A: Argument, B, V> Endpoint<A, B, V> {
    /// Path and query of a request.
    pub(crate) fn url(&self, arguments: &A) -> Result<String, ErrorDetail> {
        let mut url = Url::new(self.route.path);
        arguments.write(&mut url)?;
        Ok(format!("{}{}{}", url.path, url.rest, url.query))
    }
}

impl Argument for () {
    fn describe(_: &mut Parameters) {}

    fn read(_: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        Ok(())
    }

    fn write(&self, _: &mut Url) -> Result<(), ErrorDetail> {
        Ok(())
    }
}

macro_rules! several_arguments {
    ($($of:ident $at:tt),*) => {
        impl<$($of: Argument),*> Argument for ($($of,)*) {
            fn describe(to: &mut Parameters) {
                $($of::describe(to);)*
            }

            fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
                Ok(($($of::read(from)?,)*))
            }

            fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
                $(self.$at.write(to)?;)*
                Ok(())
            }
        }
    };
}

several_arguments!(A 0, B 1);
several_arguments!(A 0, B 1, C 2);

/// Makes a type that is read from text the next name of a path, with what is said of a text that can be no name.
macro_rules! name_in_path {
    ($name:ty, $schema:expr, $absent:expr) => {
        impl $crate::endpoint::Argument for $name {
            fn describe(to: &mut $crate::endpoint::Parameters) {
                to.in_path($schema);
            }

            fn read(
                from: &mut $crate::endpoint::UrlParts<'_>,
            ) -> Result<Self, $crate::ControlError> {
                let absent = || $absent;
                from.in_path(absent)?.parse().map_err(|_| absent())
            }

            fn write(
                &self,
                to: &mut $crate::endpoint::Url,
            ) -> Result<(), $crate::api::ErrorDetail> {
                to.fill(&self.to_string());
                Ok(())
            }
        }
    };
}
pub(crate) use name_in_path;

/// Declares names that are looked up as they are: any text may be one.
macro_rules! texts_in_path {
    ($($(#[doc = $about:literal])* $name:ident, $schema:expr, $absent:literal;)*) => {$(
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(pub String);

        impl $crate::endpoint::Argument for $name {
            fn describe(to: &mut $crate::endpoint::Parameters) {
                to.in_path($schema);
            }

            fn read(from: &mut $crate::endpoint::UrlParts<'_>) -> Result<Self, $crate::ControlError> {
                from.in_path(|| $crate::endpoint::absent($absent)).map(Self)
            }

            fn write(&self, to: &mut $crate::endpoint::Url) -> Result<(), $crate::api::ErrorDetail> {
                to.fill(&self.0);
                Ok(())
            }
        }
    )*};
}
pub(crate) use texts_in_path;

/// Declares switches of a query: true or false, and false if they are left out.
macro_rules! switches {
    ($($(#[doc = $about:literal])* $name:ident = $key:literal;)*) => {$(
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub bool);

        impl $crate::endpoint::Argument for $name {
            fn describe(to: &mut $crate::endpoint::Parameters) {
                to.in_query($key, $crate::endpoint::switch());
            }

            fn read(from: &mut $crate::endpoint::UrlParts<'_>) -> Result<Self, $crate::ControlError> {
                let query = from.query(&[$key])?;
                match query.values($key).last() {
                    None | Some("false") => Ok(Self(false)),
                    Some("true") => Ok(Self(true)),
                    Some(_) => {
                        let message = concat!($key, " is true or false");
                        Err($crate::ControlError::new($crate::api::ErrorKind::Invalid, message))
                    }
                }
            }

            fn write(&self, to: &mut $crate::endpoint::Url) -> Result<(), $crate::api::ErrorDetail> {
                to.ask($key, if self.0 { "true" } else { "false" });
                Ok(())
            }
        }
    )*};
}
pub(crate) use switches;

switches! {
    /// Do it although something speaks against it.
    Force = "force";
}

name_in_path!(
    cairn_config::VolumeName,
    plain_name(),
    absent("no volume has the name in the path")
);

/// The page of a list that the node cuts itself.
impl Argument for ListQuery {
    fn describe(to: &mut Parameters) {
        to.in_query("name", any_text());
        to.in_query("after", any_text());
        let limit = number::<u64>()
            .minimum(Some(1))
            .maximum(Some(ENTRIES_OF_A_PAGE_MAX));
        to.in_query("limit", limit);
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(Self::KEYS)?;
        Self::of(&query).map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        let limit = self.limit.map(|limit| limit.to_string());
        let all = [
            ("name", &self.name),
            ("after", &self.after),
            ("limit", &limit),
        ];
        for (key, value) in all {
            if let Some(value) = value {
                to.ask(key, value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cairn_config::VolumeName;

    use super::*;

    type Nested = Endpoint<(VolumeName, VolumeName, Force), (), ()>;
    const NESTED: Nested = delete("/volumes/{name}/of/{other}/end");

    #[test]
    fn what_a_client_writes_is_what_the_server_reads() {
        let name = |text: &str| text.parse::<VolumeName>().unwrap();
        let said = (name("a.b-c_d"), name("x"), Force(true));
        let url = NESTED.url(&said).unwrap();
        assert_eq!(url, "/volumes/a.b-c_d/of/x/end?force=true");
        let values = vec!["a.b-c_d".to_owned(), "x".to_owned()];
        let read = <(VolumeName, VolumeName, Force)>::read(&mut UrlParts::new(
            values,
            Some("force=true"),
            0,
        ));
        assert_eq!(read.unwrap(), said);
    }

    #[test]
    fn what_would_end_a_name_early_is_encoded() {
        let mut url = Url::new("/a/{b}/{c}");
        url.fill("x/../y?z=1#f %");
        url.fill("\u{e9}:@+");
        url.ask("k", "a&b=c");
        let whole = format!("{}{}{}", url.path, url.rest, url.query);
        assert_eq!(
            whole,
            "/a/x%2F..%2Fy%3Fz%3D1%23f%20%25/%C3%A9:@+?k=a%26b%3Dc"
        );
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let read = |values: &[&str], query| {
            let values = values.iter().map(|it| (*it).to_owned()).collect();
            let read = <(VolumeName, Force)>::read(&mut UrlParts::new(values, query, 0));
            read.map_err(|error| error.kind)
        };
        assert!(read(&["main"], None).is_ok());
        assert_eq!(read(&[], None), Err(ErrorKind::NotFound));
        assert_eq!(read(&["/"], None), Err(ErrorKind::NotFound));
        assert_eq!(read(&["main"], Some("force=1")), Err(ErrorKind::Invalid));
        assert_eq!(
            read(&["main"], Some("forced=true")),
            Err(ErrorKind::Invalid)
        );
    }
}
