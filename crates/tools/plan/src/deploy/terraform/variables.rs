//! What a user may set, and what is looked up: variables, the provider, data sources.

use super::PROVIDER_VERSION;
use crate::deploy::hcl::{Body, Value, expression};
use crate::deploy::values;

/// What a variable may be.
enum Kind {
    Text,
    Pattern(&'static str),
}

pub(super) struct Variable {
    name: &'static str,
    words: &'static str,
    kind: Kind,
    default: Option<&'static str>,
}

pub(super) fn variable(name: &'static str, words: &'static str) -> Variable {
    Variable {
        name,
        words,
        kind: Kind::Text,
        default: None,
    }
}

impl Variable {
    pub fn pattern(mut self, pattern: &'static str) -> Self {
        self.kind = Kind::Pattern(pattern);
        self
    }

    pub fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    pub fn write(&self, file: &mut Body) {
        file.block(&["variable", self.name], |body| {
            body.attribute("type", expression("string"))
                .attribute("description", self.words);
            if let Some(default) = self.default {
                body.attribute("default", default);
            }
            if let Kind::Pattern(pattern) = self.kind {
                body.blank().block(&["validation"], |body| {
                    let pattern = pattern.replace('\\', "\\\\");
                    body.attribute(
                        "condition",
                        expression(format!("can(regex(\"{pattern}\", var.{}))", self.name)),
                    )
                    .attribute(
                        "error_message",
                        format!("{} has to match {pattern}", self.name),
                    );
                });
            }
        })
        .blank();
    }
}

pub(super) fn head(file: &mut Body, region: &str, notices: &[&str]) {
    file.comment(
        "Cairn, made by `cairn plan deploy --format terraform`. For Terraform and OpenTofu.",
    );
    for notice in notices {
        file.comment(notice);
    }
    file.blank().block(&["terraform"], |body| {
        body.attribute("required_version", ">= 1.5").blank().block(
            &["required_providers"],
            |body| {
                body.attribute(
                    "aws",
                    Value::Object(vec![
                        ("source".to_string(), "hashicorp/aws".into()),
                        ("version".to_string(), PROVIDER_VERSION.into()),
                    ]),
                );
            },
        );
    });
    file.blank()
        .block(&["provider", "aws"], |body| {
            body.attribute("region", expression("var.region"));
        })
        .blank()
        .block(&["variable", "region"], |body| {
            body.attribute("type", expression("string"))
                .attribute("description", "Region of everything")
                .attribute("default", region);
        })
        .blank();
}

pub(super) fn variables_first(file: &mut Body) {
    for each in [
        variable("subnet_id", "Subnet of the storage, on the side of the clients"),
        variable("client_security_group_id", "Group of the clients: only its members reach the storage"),
        variable("client_network", "Addresses of the clients, which the volume is exported to: at most a /8")
            .pattern(values::CLIENT_CIDR_PATTERN),
        variable("cluster_name", "Name that all resources get").pattern(values::NAME_PATTERN),
        variable("login_address", "Address of the login node (such as 10.0.0.7/32): its root is root of the volume, and it may connect with SSH; at most a /24")
            .pattern(values::LOGIN_CIDR_PATTERN),
        variable("administrator_user", "User with sudo, who gets the key pair")
            .pattern(values::USER_PATTERN)
            .default("cairn-admin"),
        variable("key_pair", "Key pair of the administrator"),
        variable("package_url", "The .deb of Cairn, https://... or s3://BUCKET/KEY").pattern(values::URL_PATTERN),
        variable("package_sha256", "SHA-256 of the .deb: nothing else is installed").pattern(values::SHA256_PATTERN),
        variable("image", "Debian 12 or newer, for x86-64. An image by its id, so that an update never replaces the server for a newer one")
            .pattern(values::IMAGE_PATTERN),
        variable("egress_network", "Where HTTPS may go, the only way out: Debian's mirror and the AWS API. The VPC's own addresses if it has both inside")
            .pattern(values::CIDR_PATTERN)
            .default("0.0.0.0/0"),
        variable("kms_key", "ARN of the KMS key that volumes are encrypted with; empty: a new one")
            .pattern(values::KMS_KEY_PATTERN)
            .default(""),
        variable("alarm_topic", "ARN of the SNS topic that alarms are sent to; empty: they are seen in CloudWatch alone")
            .pattern(values::TOPIC_PATTERN)
            .default(""),
    ] {
        each.write(file);
    }
}

pub(super) fn lookups(file: &mut Body) {
    file.block(&["data", "aws_caller_identity", "here"], |_| {})
        .blank()
        .block(&["data", "aws_partition", "here"], |_| {})
        .blank()
        .block(&["data", "aws_subnet", "clients"], |body| {
            body.attribute("id", expression("var.subnet_id"));
        })
        .blank();
}
