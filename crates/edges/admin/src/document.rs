//! What the OpenAPI document says of all schemas alike, and the attributes of no type can say.
//!
//! Owns: bounds that follow from the type of a number, the longest value of a query, one object for a type with flattened fields.
//! Must not know: paths, what a field means. Bounds that a handler checks are attributes of the field or the parameter.

use std::collections::{BTreeMap, BTreeSet};

use utoipa::Number;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::{
    AdditionalProperties, AllOf, ArrayItems, KnownFormat, Object, Schema, SchemaFormat, SchemaType,
    Type,
};
use utoipa::openapi::{OpenApi, RefOr};

use crate::query::QUERY_VALUE_CHARS_MAX;

/// Completes a document that has all its paths.
pub(crate) fn finish(document: &mut OpenApi) {
    let mut flattened = BTreeSet::new();
    if let Some(components) = &mut document.components {
        let merged: Vec<(String, Object)> = components
            .schemas
            .iter()
            .filter_map(|(name, schema)| match schema {
                RefOr::T(Schema::AllOf(parts)) => Some((
                    name.clone(),
                    merged(parts, &components.schemas, &mut flattened)?,
                )),
                _ => None,
            })
            .collect();
        for (name, whole) in merged {
            let whole = RefOr::T(Schema::Object(whole));
            components.schemas.insert(name, whole);
        }
        for schema in components.schemas.values_mut() {
            walk(schema, &mut bound_number);
        }
    }
    // No client meets a type that is only a part of others.
    let text = document.to_json().unwrap_or_default();
    if let Some(components) = &mut document.components {
        let is_met = |name: &str| text.contains(&format!("/schemas/{name}\""));
        let is_kept = |name: &str| !flattened.contains(name) || is_met(name);
        components.schemas.retain(|name, _| is_kept(name));
    }
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.patch,
        ];
        for operation in operations.into_iter().flatten() {
            bound_parameters(operation);
        }
    }
}

fn bound_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else {
            continue;
        };
        let is_in_query = matches!(parameter.parameter_in, ParameterIn::Query);
        if let Some(schema) = &mut parameter.schema {
            walk(schema, &mut |object| {
                bound_number(object);
                if is_in_query {
                    bound_value(object);
                }
            });
        }
    }
}

/// One object for a type with flattened fields: of several that allow no others, none takes the fields of the rest. `flattened` gets the
/// names of the types that it has them from. `None`: a part is no object.
fn merged(
    parts: &AllOf,
    all: &BTreeMap<String, RefOr<Schema>>,
    flattened: &mut BTreeSet<String>,
) -> Option<Object> {
    let mut whole = Object::new();
    whole.description.clone_from(&parts.description);
    let mut is_closed = false;
    for part in &parts.items {
        let part = match part {
            RefOr::T(part) => part,
            RefOr::Ref(to) => {
                let name = to.ref_location.rsplit('/').next()?;
                flattened.insert(name.to_owned());
                match all.get(name)? {
                    RefOr::T(part) => part,
                    RefOr::Ref(_) => return None,
                }
            }
        };
        let Schema::Object(part) = part else {
            return None;
        };
        whole.properties.extend(part.properties.clone());
        whole.required.extend(part.required.iter().cloned());
        is_closed |= matches!(
            part.additional_properties.as_deref(),
            Some(AdditionalProperties::FreeForm(false))
        );
    }
    // The parts come in an order of their own.
    whole.required.sort();
    if is_closed {
        whole.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    Some(whole)
}

/// Shows the objects of a schema, and those in it.
fn walk(schema: &mut RefOr<Schema>, visit: &mut dyn FnMut(&mut Object)) {
    let RefOr::T(schema) = schema else {
        return;
    };
    match schema {
        Schema::Object(object) => {
            visit(object);
            for property in object.properties.values_mut() {
                walk(property, visit);
            }
            if let Some(AdditionalProperties::RefOr(values)) =
                object.additional_properties.as_deref_mut()
            {
                walk(values, visit);
            }
        }
        Schema::Array(array) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                walk(items, visit);
            }
        }
        Schema::OneOf(parts) => parts.items.iter_mut().for_each(|part| walk(part, visit)),
        Schema::AllOf(parts) => parts.items.iter_mut().for_each(|part| walk(part, visit)),
        Schema::AnyOf(parts) => parts.items.iter_mut().for_each(|part| walk(part, visit)),
        _ => {}
    }
}

fn is_a(object: &Object, wanted: &Type) -> bool {
    match &object.schema_type {
        SchemaType::Type(kind) => kind == wanted,
        SchemaType::Array(kinds) => kinds.contains(wanted),
        SchemaType::AnyValue => false,
    }
}

/// What serde takes for a number. `int64` is what a derived schema says of a `u64`, too, whose upper half it does not have.
fn bound_number(object: &mut Object) {
    if !is_a(object, &Type::Integer) || object.enum_values.is_some() {
        return;
    }
    let is_short = matches!(
        object.format,
        Some(SchemaFormat::KnownFormat(KnownFormat::Int32))
    );
    // Only unsigned ones have a least value.
    let (format, least, most) = match (object.minimum.is_some(), is_short) {
        (true, true) => ("uint32", Number::UInt(0), Number::from(u32::MAX)),
        (true, false) => ("uint64", Number::UInt(0), Number::from(u64::MAX)),
        (false, true) => ("int32", Number::from(i32::MIN), Number::from(i32::MAX)),
        (false, false) => ("int64", Number::from(i64::MIN), Number::from(i64::MAX)),
    };
    object.format = Some(SchemaFormat::Custom(format.to_owned()));
    object.minimum.get_or_insert(least);
    object.maximum.get_or_insert(most);
}

/// The limit that every value of a query has ([`crate::query::Query::parse`]).
fn bound_value(object: &mut Object) {
    let is_open = object.pattern.is_none() && object.enum_values.is_none();
    if is_a(object, &Type::String) && is_open {
        object.max_length.get_or_insert(QUERY_VALUE_CHARS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    fn document() -> Value {
        serde_json::from_str(&crate::server::openapi_json()).unwrap()
    }

    fn operations(document: &Value) -> Vec<(String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        let all = paths.iter().flat_map(|(path, item)| {
            let item = item.as_object().unwrap();
            item.iter()
                .map(move |(method, operation)| (format!("{method} {path}"), operation))
        });
        all.collect()
    }

    /// The schema that `schema` is or names.
    fn named<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        let Some(name) = schema["$ref"].as_str() else {
            return schema;
        };
        let name = name.rsplit('/').next().unwrap();
        &document["components"]["schemas"][name]
    }

    /// Shows a schema and those in it, each with where it is. Those that are behind names are shown once.
    fn each<'a>(
        document: &'a Value,
        schema: &'a Value,
        place: &str,
        seen: &mut Vec<String>,
        show: &mut dyn FnMut(&str, &'a Value),
    ) {
        if let Some(name) = schema["$ref"].as_str() {
            if seen.iter().any(|known| known == name) {
                return;
            }
            seen.push(name.to_owned());
        }
        let schema = named(document, schema);
        show(place, schema);
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            each(document, property, &format!("{place}.{field}"), seen, show);
        }
        for kind in ["oneOf", "allOf", "anyOf"] {
            for part in schema[kind].as_array().into_iter().flatten() {
                each(document, part, place, seen, show);
            }
        }
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                each(document, &schema[inner], &format!("{place}[]"), seen, show);
            }
        }
    }

    fn is_of(schema: &Value, kind: &str) -> bool {
        match &schema["type"] {
            Value::String(one) => one == kind,
            Value::Array(several) => several.iter().any(|one| one == kind),
            _ => false,
        }
    }

    /// Everything that a client sends, with where it is.
    fn sent<'a>(document: &'a Value, show: &mut dyn FnMut(&str, &'a Value)) {
        let mut seen = Vec::new();
        for (place, operation) in operations(document) {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let place = format!("{place} {}", parameter["name"]);
                each(document, &parameter["schema"], &place, &mut seen, show);
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            if body.is_object() {
                each(document, body, &place, &mut seen, show);
            }
        }
    }

    #[test]
    fn what_is_sent_has_bounds() {
        let document = document();
        let mut missing = Vec::new();
        let mut count = 0;
        sent(&document, &mut |place, schema| {
            count += 1;
            let has = |key: &str| schema.get(key).is_some();
            let is_bounded = ["maxLength", "pattern", "format", "enum", "const"]
                .into_iter()
                .any(has);
            if is_of(schema, "string") && !is_bounded {
                missing.push(format!("{place}: a text without a bound"));
            }
            let is_bounded = has("enum") || (has("minimum") && has("maximum"));
            if is_of(schema, "integer") && !is_bounded {
                missing.push(format!("{place}: a number without bounds"));
            }
        });
        assert!(count > 300, "{count}");
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn every_path_names_the_common_errors() {
        let document = document();
        for (place, operation) in operations(&document) {
            let answers = operation["responses"].as_object().unwrap();
            let mut wanted = Vec::new();
            if operation["security"].is_null() {
                wanted.extend(["400", "401", "404", "409", "429", "431", "500", "503"]);
                if !place.starts_with("get ") {
                    wanted.push("403");
                }
            }
            if operation["requestBody"].is_object() {
                wanted.extend(["400", "403", "408", "413", "429", "500", "503"]);
            }
            for status in wanted {
                assert!(answers.contains_key(status), "{place} {status}");
            }
            for (status, answer) in answers {
                let body = &answer["content"]["application/json"]["schema"]["$ref"];
                let is_error = status.starts_with(['4', '5']);
                let is_told = body.as_str() == Some("#/components/schemas/ErrorBody");
                // The library answers a head that it does not hold, and sends no body.
                assert!(!is_error || is_told || status == "431", "{place} {status}");
            }
        }
    }

    #[test]
    fn examples_fit_their_schemas() {
        let document = document();
        let mut count = 0;
        let mut check = |place: &str, schema: &Value, example: &Value| {
            count += 1;
            if let Some(text) = example.as_str() {
                assert!(is_of(schema, "string"), "{place}: {text}");
                let chars = text.chars().count() as u64;
                let (least, most) = (&schema["minLength"], &schema["maxLength"]);
                assert!(chars >= least.as_u64().unwrap_or(0), "{place}: {text}");
                assert!(
                    chars <= most.as_u64().unwrap_or(u64::MAX),
                    "{place}: {text}"
                );
            }
            if let Some(number) = example.as_u64() {
                assert!(is_of(schema, "integer"), "{place}: {number}");
                let (least, most) = (&schema["minimum"], &schema["maximum"]);
                assert!(number >= least.as_u64().unwrap_or(0), "{place}: {number}");
                assert!(
                    number <= most.as_u64().unwrap_or(u64::MAX),
                    "{place}: {number}"
                );
            }
        };
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            each(
                &document,
                schema,
                name,
                &mut Vec::new(),
                &mut |place, schema| {
                    check(place, schema, &schema["example"]);
                },
            );
        }
        for (place, operation) in operations(&document) {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                check(&place, &parameter["schema"], &parameter["example"]);
            }
        }
        assert!(count > 300, "{count}");
    }

    #[test]
    fn a_type_with_flattened_fields_is_one_object() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let create = &schemas["VolumeCreate"];
        assert_eq!(create["type"], "object");
        assert_eq!(create["additionalProperties"], false);
        for field in ["name", "encrypt", "compression", "tiering"] {
            assert!(create["properties"][field].is_object(), "{field}");
        }
        assert_eq!(create["required"], serde_json::json!(["name"]));
        // None of several that allow no others is left, which nothing fits.
        for (name, schema) in schemas {
            for part in schema["allOf"].as_array().into_iter().flatten() {
                let is_closed = named(&document, part)["additionalProperties"] == false;
                assert!(!is_closed, "{name}");
            }
        }
    }

    #[test]
    fn numbers_are_bounded_by_their_types() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let rate = &schemas["RebuildRate"]["properties"]["rate_bytes_per_second"];
        assert_eq!(rate["format"], "uint64");
        assert_eq!(
            (rate["minimum"].as_u64(), rate["maximum"].as_u64()),
            (Some(0), Some(u64::MAX))
        );
        let created = &schemas["VolumeView"]["properties"]["created_seconds"];
        assert_eq!(created["format"], "int64");
        assert_eq!(created["minimum"].as_i64(), Some(i64::MIN));
        let weight = &schemas["NodeWeight"]["properties"]["weight"];
        assert_eq!(weight["format"], "uint32");
        assert_eq!(weight["maximum"].as_u64(), Some(1000));
    }
}
