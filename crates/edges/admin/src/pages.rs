//! Lists of the API in pages: whatever can be long takes `name`, `after` and `limit`, in one shape.
//!
//! Owns: which lists there are, what their entries are called by. Must not know: what is listed, where it comes from.
//!
//! A list is cut after it was put together, of all nodes where several have a part of it. Volumes are cut before, by the nodes
//! that have them: there are most of them, and each costs more than its name.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use utoipa::openapi::path::{ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{OpenApi, RefOr};

use crate::api::ErrorKind;
use crate::control::ControlError;
use crate::endpoint::ListOf;
use crate::list_query::{ENTRIES_OF_A_PAGE_MAX, ListQuery};
use crate::query::Query;
use crate::server::declared;

/// Of a list that is cut.
const LIST_LEN_BYTES_MAX: usize = 64 << 20;

/// A list that can be long.
struct Listed {
    /// As the document has it: `{}` is any one part.
    path: &'static str,
    /// What the answer is called there.
    schema: String,
    list: ListOf,
    /// What else may be asked of it.
    own: Vec<String>,
}

/// Those that say so of themselves, where they are declared.
static LISTS: LazyLock<Vec<Listed>> = LazyLock::new(|| {
    let declared = declared();
    let lists = declared.routes().iter().filter_map(|route| {
        let list = route.list.filter(|list| !list.key.is_empty())?;
        let own = route.parameters().into_iter();
        let own = own.filter(|it| it.parameter_in == ParameterIn::Query);
        Some(Listed {
            path: route.path,
            schema: route.schema_name()?,
            list,
            own: own.map(|it| it.name).collect(),
        })
    });
    lists.collect()
});

impl Listed {
    fn of(path: &str) -> Option<&'static Self> {
        LISTS.iter().find(|list| {
            let (mut wanted, mut parts) = (list.path.split('/'), path.split('/'));
            loop {
                match (wanted.next(), parts.next()) {
                    (None, None) => return true,
                    (Some(wanted), Some(part)) if wanted == part || wanted.starts_with('{') => {}
                    _ => return false,
                }
            }
        })
    }

    /// What an entry is called: the parts of its key, with a slash between them.
    fn name(&self, entry: &Value) -> String {
        let parts = self.list.key.iter().map(|key| match entry.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => format!("{:>10}", number.to_string()),
            _ => String::new(),
        });
        parts.collect::<Vec<_>>().join("/")
    }

    /// Where an entry is in the list.
    fn place(&self, entry: &Value) -> String {
        let number = self.list.order.and_then(|field| entry.get(field)?.as_i64());
        let number = number.map_or_else(String::new, |number| format!("{number:>10} "));
        number + &self.name(entry)
    }
}

/// Whether a path is that of a list of which each node has a part.
pub(crate) fn is_of_all_nodes(path: &str) -> bool {
    Listed::of(path).is_some_and(|list| list.list.is_of_all_nodes)
}

/// The part of a query about the page, and the rest.
fn split(query: &str) -> (String, String) {
    let is_of_page = |pair: &&str| {
        let key = pair.split('=').next().unwrap_or_default();
        ListQuery::KEYS.contains(&key)
    };
    let (own, rest): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_of_page);
    (own.join("&"), rest.join("&"))
}

/// The page of a list that a query asks for.
fn asked(list: &'static Listed, query: &str) -> Result<ListQuery, ControlError> {
    let own = list.own.iter().map(String::as_str);
    let known: Vec<&str> = ListQuery::KEYS.iter().copied().chain(own).collect();
    let query = Query::parse(Some(query), &known)?;
    ListQuery::of(&query).map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))
}

/// Cuts the answer of a list to the page that is asked for. Without such a question a list is what it was.
pub(crate) async fn page(mut request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let list = Listed::of(request.uri().path()).filter(|_| request.method() == Method::GET);
    let Some(list) = list.filter(|_| !query.is_empty()) else {
        return next.run(request).await;
    };
    let asked = match asked(list, query) {
        Ok(asked) => asked,
        Err(refused) => return refused.into_response(),
    };
    let (own, rest) = split(query);
    if own.is_empty() {
        return next.run(request).await;
    }
    let path = request.uri().path();
    let without = match rest.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{rest}"),
    };
    match without.parse::<Uri>() {
        Ok(uri) => *request.uri_mut() = uri,
        Err(error) => {
            let message = format!("the query cannot be read: {error}");
            return ControlError::new(ErrorKind::Invalid, message).into_response();
        }
    }
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    cut(list, &asked, response).await
}

async fn cut(list: &Listed, asked: &ListQuery, response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    let unreadable = |why: String| {
        let message = format!("the list cannot be cut into pages: {why}");
        ControlError::new(ErrorKind::Internal, message).into_response()
    };
    let body = match Limited::new(body, LIST_LEN_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return unreadable(error.to_string()),
    };
    let mut answer: Value = match serde_json::from_slice(&body) {
        Ok(answer) => answer,
        Err(error) => return unreadable(error.to_string()),
    };
    let Some(Value::Array(entries)) = answer.get_mut(list.list.entries).map(Value::take) else {
        return unreadable(format!("it has no {}", list.list.entries));
    };
    let named = entries
        .into_iter()
        .filter(|entry| asked.has_name(&list.name(entry)));
    let of_named = ListQuery {
        name: None,
        ..asked.clone()
    };
    let cut = of_named.cut(named.map(|entry| (list.place(&entry), entry)));
    let entries = cut.items.into_iter().map(|(_, entry)| entry).collect();
    if let Value::Object(answer) = &mut answer {
        answer.insert(list.list.entries.to_owned(), Value::Array(entries));
        answer.insert("total".to_owned(), cut.total.into());
        if let Some(after) = cut.next_after {
            answer.insert("next_after".to_owned(), after.into());
        }
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, Body::from(answer.to_string()))
}

/// Adds to the document what all lists take and give.
pub(crate) fn describe(document: &mut OpenApi) {
    for list in LISTS.iter() {
        let item = document.paths.paths.get_mut(list.path);
        if let Some(operation) = item.and_then(|item| item.get.as_mut()) {
            let about = "In pages of at most `limit`, 1 to 1000: `next_after` is the `after` of the next one, `total` how many \
                         there are on all. `name` is a part of what an entry is called, whatever its case.";
            let said = operation.description.take().unwrap_or_default();
            operation.description = Some(format!("{said} {about}").trim().to_owned());
            let parameters = operation.parameters.get_or_insert_default();
            let text = || ObjectBuilder::new().schema_type(Type::String);
            let limit = ObjectBuilder::new()
                .schema_type(Type::Integer)
                .minimum(Some(1))
                .maximum(Some(ENTRIES_OF_A_PAGE_MAX));
            for (key, schema) in [("name", text()), ("after", text()), ("limit", limit)] {
                let parameter = ParameterBuilder::new()
                    .name(key)
                    .parameter_in(ParameterIn::Query)
                    .schema(Some(Schema::Object(schema.build())));
                parameters.push(RefOr::T(parameter.build()));
            }
        }
        let schemas = document.components.as_mut().map(|it| &mut it.schemas);
        let schema = schemas.and_then(|schemas| schemas.get_mut(&list.schema));
        if let Some(RefOr::T(Schema::Object(object))) = schema {
            let whole = ObjectBuilder::new()
                .schema_type(Type::Integer)
                .minimum(Some(0))
                .description(Some(
                    "How many there are on all pages; only where a page was asked for.",
                ));
            let next = ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some("The `after` of the next page, if there is one."));
            let whole = RefOr::T(Schema::Object(whole.build()));
            let next = RefOr::T(Schema::Object(next.build()));
            object.properties.insert("total".to_owned(), whole);
            object.properties.insert("next_after".to_owned(), next);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_known_by_their_paths() {
        let cases = [
            ("/api/v1/luns", Some("luns")),
            ("/api/v1/luns/main/a", None),
            ("/api/v1/volumes/main/snapshots", Some("snapshots")),
            ("/api/v1/volumes/main/snapshots/a", None),
            // Cut by the nodes that have them.
            ("/api/v1/volumes", None),
            ("/metrics", None),
        ];
        for (path, want) in cases {
            assert_eq!(
                Listed::of(path).map(|list| list.list.entries),
                want,
                "{path}"
            );
        }
    }

    #[test]
    fn lists_that_nodes_have_parts_of_are_known() {
        let cases = [
            ("/api/v1/luns", true),
            ("/api/v1/luns/", false),
            ("/api/v1/luns/main/a", false),
            ("/api/v1/activity", true),
            // All nodes know the same disks.
            ("/api/v1/disks", false),
            ("/api/v1/volumes/main/snapshots", false),
        ];
        for (path, want) in cases {
            assert_eq!(is_of_all_nodes(path), want, "{path}");
        }
    }

    #[test]
    fn what_is_asked_of_a_page_is_taken_out_of_the_query() {
        let cases = [
            ("", "", ""),
            (
                "limit=2&space=true&after=a%20b",
                "limit=2&after=a%20b",
                "space=true",
            ),
            ("space=true", "", "space=true"),
            ("limit", "limit", ""),
        ];
        for (query, own, rest) in cases {
            assert_eq!(split(query), (own.to_owned(), rest.to_owned()), "{query}");
        }
    }

    #[test]
    fn keys_are_of_one_entry_alone() {
        let list = Listed::of("/api/v1/volumes/main/quotas").unwrap();
        let of = |id: Value| list.name(&json!({"path": "/a", "of": "user", "id": id}));
        // In the order of numbers.
        assert!(of(json!(9)) < of(json!(10)));
        assert!(of(Value::Null) < of(json!(0)));
        let lun = Listed::of("/api/v1/luns").unwrap();
        assert_eq!(lun.name(&json!({"volume": "main", "name": "a"})), "main/a");
        let snapshots = Listed::of("/api/v1/volumes/main/snapshots").unwrap();
        let of = |seconds: i64, name: &str| {
            snapshots.place(&json!({"taken_seconds": seconds, "name": name}))
        };
        assert!(of(999_999_999, "b") < of(1_700_000_000, "a") && of(5, "a") < of(5, "b"));
    }

    #[test]
    fn all_lists_are_in_the_document_with_their_entries() {
        let document: Value = serde_json::from_str(&crate::server::openapi_json()).unwrap();
        for list in LISTS.iter() {
            let parameters = document["paths"][list.path]["get"]["parameters"].as_array();
            let parameters = parameters.unwrap_or_else(|| panic!("{}", list.path));
            for key in ListQuery::KEYS {
                assert!(
                    parameters.iter().any(|it| it["name"] == *key),
                    "{} {key}",
                    list.path
                );
            }
            let schema = &document["components"]["schemas"][&list.schema]["properties"];
            for field in [list.list.entries, "total", "next_after"] {
                assert!(schema.get(field).is_some(), "{} {field}", list.schema);
            }
            let entries = schema[list.list.entries]["items"]["$ref"].as_str().unwrap();
            let entry = entries.rsplit('/').next().unwrap();
            let schemas = &document["components"]["schemas"];
            let mut text = schemas[entry].to_string();
            // What it has besides is of another type.
            for other in schemas[entry]["allOf"].as_array().into_iter().flatten() {
                let name = other["$ref"].as_str().and_then(|it| it.rsplit('/').next());
                text.push_str(
                    &name
                        .map(|name| schemas[name].to_string())
                        .unwrap_or_default(),
                );
            }
            for key in list.list.key {
                assert!(text.contains(&format!("\"{key}\"")), "{entry} has no {key}");
            }
            let has_order = list
                .list
                .order
                .is_none_or(|order| text.contains(&format!("\"{order}\"")));
            assert!(has_order, "{entry}");
        }
    }
}
