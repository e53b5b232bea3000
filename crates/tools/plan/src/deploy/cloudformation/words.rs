//! The language of CloudFormation: intrinsic functions, parameters, resources.
//!
//! Must not know: what is deployed.

use super::TAG;
use crate::deploy::tree::{Node, list, map};

pub(super) fn reference(name: &str) -> Node {
    map! { "Ref" => name }
}

pub(super) fn attribute(name: &str, attribute: &str) -> Node {
    map! { "Fn::GetAtt" => list![name, attribute] }
}

pub(super) fn sub(text: &str) -> Node {
    map! { "Fn::Sub" => text }
}

pub(super) fn choose(condition: &str, yes: Node, no: Node) -> Node {
    map! { "Fn::If" => list![condition, yes, no] }
}

pub(super) fn no_value() -> Node {
    reference("AWS::NoValue")
}

pub(super) fn equals(left: Node, right: Node) -> Node {
    map! { "Fn::Equals" => list![left, right] }
}

pub(super) fn not(condition: Node) -> Node {
    map! { "Fn::Not" => list![condition] }
}

pub(super) fn join(separator: &str, parts: Node) -> Node {
    map! { "Fn::Join" => list![separator, parts] }
}

pub(super) fn storage_type(key: &str) -> Node {
    map! { "Fn::FindInMap" => list!["StorageTypes", reference("StorageType"), key] }
}

pub(super) fn resource(kind: &str, properties: Node) -> Node {
    map! { "Type" => kind, "Properties" => properties }
}

pub(super) fn tags(name_suffix: &str) -> Node {
    list![
        map! { "Key" => "Name", "Value" => sub(&format!("${{ClusterName}}-{name_suffix}")) },
        map! { "Key" => TAG, "Value" => reference("ClusterName") },
    ]
}

pub(super) fn parameter(kind: &str, description: &str) -> Node {
    map! { "Type" => kind, "Description" => description }
}

pub(super) fn pattern(description: &str, allowed: &str) -> Node {
    parameter("String", description).with("AllowedPattern", allowed)
}
