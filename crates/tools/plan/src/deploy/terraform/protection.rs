//! What guards a server and its data: the key, snapshots, alarms.
//!
//! Must not know: how the server boots.

use super::parts::Statement;
use super::{TAG, interpolated, tags};
use crate::deploy::alarms::{ALARMS, Alarm};
use crate::deploy::hcl::{Body, Value, expression};
use crate::deploy::user_data::METRICS;

/// What EC2 does with a key for a principal that attaches a volume (EBS user guide, EBS encryption requirements).
const USE_OF_KEY: [&str; 5] = [
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncrypt*",
];
const THROUGH_EC2: &str = "ec2.${var.region}.amazonaws.com";

/// A principal that may use EBS in this account may use the key through it, as with the key that AWS manages: the group and the
/// snapshots need it as well. It stays with the volumes.
pub(super) fn key(file: &mut Body) {
    let list =
        |actions: &[&str]| Value::List(actions.iter().map(|each| Value::from(*each)).collect());
    let principals = |body: &mut Body, who: Value| {
        body.blank().block(&["principals"], |body| {
            body.attribute("type", "AWS")
                .attribute("identifiers", Value::List(vec![who]));
        });
    };
    let condition = |body: &mut Body, variable: &str, value: Value| {
        body.blank().block(&["condition"], |body| {
            body.attribute("test", "StringEquals")
                .attribute("variable", variable)
                .attribute("values", Value::List(vec![value]));
        });
    };
    file.block(&["data", "aws_iam_policy_document", "key"], |body| {
        body.block(&["statement"], |body| {
            body.attribute("actions", list(&["kms:*"]))
                .attribute("resources", list(&["*"]));
            principals(
                body,
                interpolated(
                    "arn:${data.aws_partition.here.partition}:iam::${data.aws_caller_identity.here.account_id}:root",
                ),
            );
        })
        .blank()
        .block(&["statement"], |body| {
            body.attribute("actions", list(&USE_OF_KEY))
                .attribute("resources", list(&["*"]));
            principals(body, "*".into());
            condition(
                body,
                "kms:CallerAccount",
                expression("data.aws_caller_identity.here.account_id"),
            );
            condition(body, "kms:ViaService", interpolated(THROUGH_EC2));
        });
    })
    .blank()
    .block(&["resource", "aws_kms_key", "volumes"], |body| {
        body.attribute("count", expression("var.kms_key == \"\" ? 1 : 0"))
            .attribute("description", interpolated("Volumes of ${var.cluster_name}"))
            .attribute("enable_key_rotation", true)
            .attribute(
                "policy",
                expression("data.aws_iam_policy_document.key.json"),
            )
            .attribute("tags", tags("volumes"))
            .blank()
            .comment("Without it nobody reads the volumes again.")
            .block(&["lifecycle"], |body| {
                body.attribute("prevent_destroy", true);
            });
    })
    .blank()
    .block(&["locals"], |body| {
        body.attribute(
            "volume_key",
            expression("var.kms_key == \"\" ? aws_kms_key.volumes[0].arn : var.kms_key"),
        );
    })
    .blank();
}

/// What the instance needs to attach volumes that are encrypted with the key.
pub(super) fn key_statement() -> Statement {
    Statement {
        actions: USE_OF_KEY.to_vec(),
        resources: vec![expression("local.volume_key")],
        condition: Some(("kms:ViaService".to_string(), interpolated(THROUGH_EC2))),
    }
}

/// Snapshots of all data volumes of the instance at one moment: of volumes one by one they would not fit together.
///
/// They are kept by age: those kept by number would never go once their instance is replaced (EBS user guide,
/// considerations for Amazon Data Lifecycle Manager).
pub(super) fn snapshots(file: &mut Body) {
    let count = "var.snapshot_days == \"0\" ? 0 : 1";
    file.block(&["data", "aws_iam_policy_document", "assume_snapshots"], |body| {
        body.block(&["statement"], |body| {
            body.attribute("actions", Value::List(vec!["sts:AssumeRole".into()]))
                .blank()
                .block(&["principals"], |body| {
                    body.attribute("type", "Service")
                        .attribute("identifiers", Value::List(vec!["dlm.amazonaws.com".into()]));
                });
        });
    })
    .blank()
    .block(&["resource", "aws_iam_role", "snapshots"], |body| {
        body.attribute("count", expression(count))
            .attribute("name_prefix", interpolated("${var.cluster_name}-"))
            .attribute(
                "assume_role_policy",
                expression("data.aws_iam_policy_document.assume_snapshots.json"),
            )
            .attribute("tags", tags("snapshots"));
    })
    .blank()
    .block(&["resource", "aws_iam_role_policy_attachment", "snapshots"], |body| {
        body.attribute("count", expression(count))
            .attribute("role", expression("aws_iam_role.snapshots[0].name"))
            .attribute(
                "policy_arn",
                interpolated(
                    "arn:${data.aws_partition.here.partition}:iam::aws:policy/service-role/AWSDataLifecycleManagerServiceRole",
                ),
            );
    })
    .blank()
    .comment("All data volumes of the instance at one moment: of volumes one by one they would not fit together.")
    .block(&["resource", "aws_dlm_lifecycle_policy", "snapshots"], |body| {
        body.attribute("count", expression(count))
            .attribute("description", "Data volumes of a Cairn server")
            .attribute(
                "execution_role_arn",
                expression("aws_iam_role.snapshots[0].arn"),
            )
            .attribute("state", "ENABLED")
            .attribute("tags", tags("snapshots"))
            .blank()
            .block(&["policy_details"], |body| {
                body.attribute("policy_type", "EBS_SNAPSHOT_MANAGEMENT")
                    .attribute("resource_types", Value::List(vec!["INSTANCE".into()]))
                    .attribute(
                        "target_tags",
                        Value::Object(vec![(TAG.to_string(), expression("var.cluster_name"))]),
                    )
                    .blank()
                    .block(&["parameters"], |body| {
                        body.attribute("exclude_boot_volume", true);
                    })
                    .blank()
                    .block(&["schedule"], |body| {
                        body.attribute("name", "Daily")
                            .attribute("copy_tags", true)
                            .blank()
                            .block(&["create_rule"], |body| {
                                body.attribute("interval", 24_u32)
                                    .attribute("interval_unit", "HOURS")
                                    .attribute(
                                        "times",
                                        Value::List(vec![expression("var.snapshot_time")]),
                                    );
                            })
                            .blank()
                            .block(&["retain_rule"], |body| {
                                body.attribute(
                                    "interval",
                                    expression("tonumber(var.snapshot_days)"),
                                )
                                .attribute("interval_unit", "DAYS");
                            });
                    });
            });
    })
    .blank();
}

/// Alarms of what a server tells of itself.
pub(super) fn server_alarms(file: &mut Body) {
    for each in &ALARMS {
        let name = each.name.to_ascii_lowercase();
        let dimension = ("Server".to_string(), expression("var.cluster_name"));
        file.blank();
        alarm(file, &name, each, METRICS, None, dimension);
    }
}

pub(super) fn alarm(
    file: &mut Body,
    name: &str,
    alarm: &Alarm,
    namespace: &str,
    count: Option<u32>,
    dimension: (String, Value),
) {
    let actions = || expression("var.alarm_topic == \"\" ? [] : [var.alarm_topic]");
    let number = if count.is_some() {
        "${count.index + 1}"
    } else {
        ""
    };
    file.block(&["resource", "aws_cloudwatch_metric_alarm", name], |body| {
        if let Some(count) = count {
            body.attribute("count", count);
        }
        body.attribute(
            "alarm_name",
            interpolated(&format!("${{var.cluster_name}}-{name}{number}")),
        )
        .attribute("alarm_description", alarm.words)
        .attribute("namespace", namespace)
        .attribute("metric_name", alarm.metric)
        .attribute("statistic", alarm.statistic)
        .attribute("period", alarm.period_seconds)
        .attribute("evaluation_periods", alarm.periods)
        .attribute("comparison_operator", alarm.comparison)
        .attribute("threshold", alarm.threshold)
        .attribute("treat_missing_data", alarm.missing)
        .attribute("alarm_actions", actions())
        .attribute("ok_actions", actions())
        .attribute("dimensions", Value::Object(vec![dimension]))
        .attribute("tags", tags("alarm"));
    });
}
