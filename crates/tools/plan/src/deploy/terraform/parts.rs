//! What files of a server and of a cluster have in common: security groups, roles, the boot of a machine.

use super::{BOOT_SECONDS, BOOT_STACK, ROOT_GIB, TAG, interpolated, tags};
use crate::deploy::hcl::{Body, Value, escape_template, expression};
use crate::deploy::user_data::{self, Slot};
use crate::deploy::{DeployError, DeployOptions, check_user_data, ports};

pub(super) fn security_group(file: &mut Body, name: &str, words: &str, options: &DeployOptions) {
    file.block(&["resource", "aws_security_group", name], |body| {
        body.attribute(
            "name_prefix",
            interpolated(&format!("${{var.cluster_name}}-{name}-")),
        )
        .attribute("description", words)
        .attribute("vpc_id", expression("data.aws_subnet.clients.vpc_id"))
        .attribute("tags", tags(name))
        .blank();
        for (port, protocol) in ports(options) {
            body.block(&["ingress"], |body| {
                body.attribute("description", protocol)
                    .attribute("protocol", "tcp")
                    .attribute("from_port", u32::from(port))
                    .attribute("to_port", u32::from(port))
                    .attribute(
                        "security_groups",
                        Value::List(vec![expression("var.client_security_group_id")]),
                    )
                    .attribute(
                        "cidr_blocks",
                        Value::List(vec![expression("var.login_address")]),
                    );
            })
            .blank();
        }
        body.block(&["ingress"], |body| {
            body.attribute("description", "SSH of the login node")
                .attribute("protocol", "tcp")
                .attribute("from_port", 22_u32)
                .attribute("to_port", 22_u32)
                .attribute(
                    "cidr_blocks",
                    Value::List(vec![expression("var.login_address")]),
                );
        })
        .blank()
        .comment("Security groups do not see the VPC's own name and time services.")
        .block(&["egress"], |body| {
            body.attribute("description", "Packages and the AWS API")
                .attribute("protocol", "tcp")
                .attribute("from_port", 443_u32)
                .attribute("to_port", 443_u32)
                .attribute(
                    "cidr_blocks",
                    Value::List(vec![expression("var.egress_network")]),
                );
        });
    })
    .blank();
}

/// A statement of a policy document.
pub(super) struct Statement {
    pub actions: Vec<&'static str>,
    pub resources: Vec<Value>,
    /// A variable of the request, and the value that it has to have.
    pub condition: Option<(String, Value)>,
}

/// Only what has the tag of this name.
pub(super) fn of_this_name() -> Option<(String, Value)> {
    Some((
        format!("ec2:ResourceTag/{TAG}"),
        expression("var.cluster_name"),
    ))
}

/// An ARN in this region and account.
pub(super) fn arn(service: &str, what: &str) -> Value {
    interpolated(&format!(
        "arn:${{data.aws_partition.here.partition}}:{service}:${{var.region}}:${{data.aws_caller_identity.here.account_id}}:{what}"
    ))
}

pub(super) fn role(file: &mut Body, name: &str, statements: &[Statement]) {
    file.block(&["data", "aws_iam_policy_document", "assume"], |body| {
        body.block(&["statement"], |body| {
            body.attribute("actions", Value::List(vec!["sts:AssumeRole".into()])).blank().block(&["principals"], |body| {
                body.attribute("type", "Service").attribute(
                    "identifiers",
                    Value::List(vec![interpolated("ec2.${data.aws_partition.here.dns_suffix}")]),
                );
            });
        });
    })
    .blank()
    .block(&["data", "aws_iam_policy_document", "serve"], |body| {
        for statement in statements {
            body.block(&["statement"], |body| {
                let actions = statement.actions.iter().map(|each| Value::from(*each)).collect();
                body.attribute("actions", Value::List(actions))
                    .attribute("resources", Value::List(statement.resources.clone()));
                if let Some((variable, value)) = &statement.condition {
                    body.blank().block(&["condition"], |body| {
                        body.attribute("test", "StringEquals")
                            .attribute("variable", variable.as_str())
                            .attribute("values", Value::List(vec![value.clone()]));
                    });
                }
            });
        }
        // Where the package is in S3, and only that object.
        body.block(&["dynamic", "statement"], |body| {
            body.attribute("for_each", expression("startswith(var.package_url, \"s3://\") ? [var.package_url] : []"))
                .blank()
                .block(&["content"], |body| {
                    body.attribute("actions", Value::List(vec!["s3:GetObject".into()])).attribute(
                        "resources",
                        Value::List(vec![interpolated(
                            "arn:${data.aws_partition.here.partition}:s3:::${trimprefix(statement.value, \"s3://\")}",
                        )]),
                    );
                });
        });
    })
    .blank()
    .block(&["resource", "aws_iam_role", name], |body| {
        body.attribute("name_prefix", interpolated("${var.cluster_name}-"))
            .attribute("assume_role_policy", expression("data.aws_iam_policy_document.assume.json"))
            .attribute("tags", tags("role"));
    })
    .blank()
    .block(&["resource", "aws_iam_role_policy", name], |body| {
        body.attribute("name", "serve")
            .attribute("role", expression(format!("aws_iam_role.{name}.id")))
            .attribute("policy", expression("data.aws_iam_policy_document.serve.json"));
    })
    .blank()
    .block(&["resource", "aws_iam_instance_profile", name], |body| {
        body.attribute("name_prefix", interpolated("${var.cluster_name}-"))
            .attribute("role", expression(format!("aws_iam_role.{name}.name")));
    })
    .blank();
}

/// What of user data the two kinds of files say differently: expressions, or texts with templates.
#[derive(Clone, Copy, Default)]
pub(super) struct Own {
    pub volumes: &'static str,
    pub stack: &'static str,
    pub group: &'static str,
}

pub(super) fn user_data_text(text: &str, own: Own) -> Result<Value, DeployError> {
    check_user_data(&user_data::fill(text, |_| "x".repeat(64), str::to_string))?;
    let value = |slot: Slot| {
        let named = match slot {
            Slot::Name => "var.cluster_name",
            Slot::User => "var.administrator_user",
            Slot::Region => "var.region",
            Slot::Stack => return own.stack.to_string(),
            Slot::Group => return own.group.to_string(),
            Slot::Volumes => own.volumes,
            Slot::Clients => "var.client_network",
            Slot::Login => "var.login_address",
            Slot::PackageUrl => "var.package_url",
            Slot::PackageSha256 => "var.package_sha256",
            Slot::Nodes => "join(\",\", local.internal_addresses)",
        };
        match named {
            "" => String::new(),
            named => format!("${{{named}}}"),
        }
    };
    Ok(Value::Heredoc(user_data::fill(
        text,
        value,
        escape_template,
    )))
}

/// Terraform itself does not wait for a boot. It waits for a stack, and that for a signal of each machine: one that tells
/// of a failure, or none in time, fails the stack and with it `apply`.
pub(super) fn boot_stack(file: &mut Body, signal: &str, count: u32) {
    let minutes = BOOT_SECONDS / 60;
    let template = format!(
        "jsonencode({{ Resources = {{ {signal} = {{ Type = \"AWS::CloudFormation::WaitCondition\", CreationPolicy = \
         {{ ResourceSignal = {{ Count = {count}, Timeout = \"PT{minutes}M\" }} }} }} }} }})"
    );
    file.comment("Waits until every machine has told that its boot went well. One that failed, or tells nothing, fails apply.")
        .block(&["resource", "aws_cloudformation_stack", "boot"], |body| {
            body.attribute("name", interpolated(BOOT_STACK))
                .attribute("template_body", expression(template))
                .attribute("on_failure", "DELETE");
        })
        .blank();
}

pub(super) fn signal_statement() -> Statement {
    Statement {
        actions: vec!["cloudformation:SignalResource"],
        resources: vec![arn("cloudformation", &format!("stack/{BOOT_STACK}/*"))],
        condition: None,
    }
}

pub(super) fn root_volume(body: &mut Body) {
    body.block(&["block_device_mappings"], |body| {
        body.attribute("device_name", "/dev/xvda")
            .blank()
            .block(&["ebs"], |body| {
                body.attribute("volume_type", "gp3")
                    .attribute("volume_size", ROOT_GIB)
                    .attribute("encrypted", true)
                    .attribute("kms_key_id", expression("local.volume_key"))
                    .attribute("delete_on_termination", true);
            });
    })
    .blank();
}

pub(super) fn metadata_options(body: &mut Body, has_tags: bool) {
    body.block(&["metadata_options"], |body| {
        body.attribute("http_endpoint", "enabled")
            .attribute("http_tokens", "required")
            .attribute("http_put_response_hop_limit", 1_u32);
        if has_tags {
            body.attribute("instance_metadata_tags", "enabled");
        }
    })
    .blank();
}

pub(super) fn output(file: &mut Body, name: &str, words: &str, value: Value) {
    file.blank().block(&["output", name], |body| {
        body.attribute("description", words)
            .attribute("value", value);
    });
}
