//! What guards a server and its data: the key, snapshots, alarms.
//!
//! Must not know: how the server boots.

use super::TAG;
use super::words::{attribute, choose, no_value, reference, resource, sub, tags};
use crate::deploy::alarms::{ALARMS, Alarm};
use crate::deploy::tree::{Node, list, map};
use crate::deploy::user_data::METRICS;

/// The key of all volumes.
pub(super) fn key_arn() -> Node {
    choose(
        "HasNewKey",
        attribute("VolumeKey", "Arn"),
        reference("KmsKey"),
    )
}

/// A principal that may use EBS in this account may use the key through it, as with the key that AWS manages: the group and the
/// snapshots need it as well. It stays with the volumes.
pub(super) fn key() -> (String, Node) {
    let statement = |name: &str, principal: Node, actions: Node| {
        map! {
            "Sid" => name,
            "Effect" => "Allow",
            "Principal" => map! { "AWS" => principal },
            "Action" => actions,
            "Resource" => "*",
        }
    };
    let through_ec2 = map! { "StringEquals" => map! {
        "kms:CallerAccount" => reference("AWS::AccountId"),
        "kms:ViaService" => sub("ec2.${AWS::Region}.amazonaws.com"),
    } };
    let policy = map! {
        "Version" => "2012-10-17",
        "Statement" => list![
            statement(
                "Account",
                sub("arn:${AWS::Partition}:iam::${AWS::AccountId}:root"),
                "kms:*".into(),
            ),
            statement("VolumesOfThisAccount", "*".into(), use_of_key().into()).with("Condition", through_ec2),
        ],
    };
    let properties = map! {
        "Description" => sub("Volumes of ${ClusterName}"),
        "EnableKeyRotation" => true,
        "KeyPolicy" => policy,
        "Tags" => tags("volumes"),
    };
    let key = map! {
        "Type" => "AWS::KMS::Key",
        "Condition" => "HasNewKey",
        "DeletionPolicy" => "Retain",
        "UpdateReplacePolicy" => "Retain",
        "Properties" => properties,
    };
    ("VolumeKey".to_string(), key)
}

/// What EC2 does with a key for a principal that attaches a volume (EBS user guide, EBS encryption requirements).
fn use_of_key() -> Vec<Node> {
    [
        "kms:CreateGrant",
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:GenerateDataKeyWithoutPlaintext",
        "kms:ReEncrypt*",
    ]
    .map(Node::from)
    .to_vec()
}

/// What the instance needs to attach volumes that are encrypted with the key.
pub(super) fn key_statement() -> Node {
    map! {
        "Effect" => "Allow",
        "Action" => use_of_key(),
        "Resource" => key_arn(),
        "Condition" => map! { "StringEquals" => map! {
            "kms:ViaService" => sub("ec2.${AWS::Region}.amazonaws.com"),
        } },
    }
}

/// Snapshots of all data volumes of the instance at one moment: of volumes one by one they would not fit together.
///
/// They are kept by age: those kept by number would never go once their instance is replaced (EBS user guide,
/// considerations for Amazon Data Lifecycle Manager).
pub(super) fn snapshots() -> [(String, Node); 2] {
    let assume = map! {
        "Version" => "2012-10-17",
        "Statement" => list![map! {
            "Effect" => "Allow",
            "Principal" => map! { "Service" => "dlm.amazonaws.com" },
            "Action" => "sts:AssumeRole",
        }],
    };
    let role = map! {
        "AssumeRolePolicyDocument" => assume,
        "ManagedPolicyArns" => list![
            sub("arn:${AWS::Partition}:iam::aws:policy/service-role/AWSDataLifecycleManagerServiceRole"),
        ],
        "Tags" => tags("snapshots"),
    };
    let schedule = map! {
        "Name" => "Daily",
        "CopyTags" => true,
        "CreateRule" => map! {
            "Interval" => 24_u32, "IntervalUnit" => "HOURS", "Times" => list![reference("SnapshotTime")],
        },
        "RetainRule" => map! { "Interval" => reference("SnapshotDays"), "IntervalUnit" => "DAYS" },
    };
    let policy = map! {
        "Description" => "Data volumes of a Cairn server",
        "State" => "ENABLED",
        "ExecutionRoleArn" => attribute("SnapshotRole", "Arn"),
        "PolicyDetails" => map! {
            "PolicyType" => "EBS_SNAPSHOT_MANAGEMENT",
            "ResourceTypes" => list!["INSTANCE"],
            "TargetTags" => list![map! { "Key" => TAG, "Value" => reference("ClusterName") }],
            "Parameters" => map! { "ExcludeBootVolume" => true },
            "Schedules" => list![schedule],
        },
        "Tags" => tags("snapshots"),
    };
    let conditional = |kind: &str, properties: Node| map! { "Type" => kind, "Condition" => "HasSnapshots", "Properties" => properties };
    [
        (
            "SnapshotRole".to_string(),
            conditional("AWS::IAM::Role", role),
        ),
        (
            "Snapshots".to_string(),
            conditional("AWS::DLM::LifecyclePolicy", policy),
        ),
    ]
}

/// Alarms of what a server tells of itself.
pub(super) fn server_alarms() -> Vec<(String, Node)> {
    ALARMS
        .iter()
        .map(|each| {
            let dimension = map! { "Name" => "Server", "Value" => reference("ClusterName") };
            (
                format!("{}Alarm", each.name),
                alarm(each, METRICS, dimension),
            )
        })
        .collect()
}

pub(super) fn alarm(alarm: &Alarm, namespace: &str, dimension: Node) -> Node {
    let actions = || choose("HasAlarmTopic", list![reference("AlarmTopic")], no_value());
    resource(
        "AWS::CloudWatch::Alarm",
        map! {
            "AlarmDescription" => alarm.words,
            "Namespace" => namespace,
            "MetricName" => alarm.metric,
            "Dimensions" => list![dimension],
            "Statistic" => alarm.statistic,
            "Period" => alarm.period_seconds,
            "EvaluationPeriods" => alarm.periods,
            "ComparisonOperator" => alarm.comparison,
            "Threshold" => alarm.threshold,
            "TreatMissingData" => alarm.missing,
            "AlarmActions" => actions(),
            "OKActions" => actions(),
            "Tags" => tags("alarm"),
        },
    )
}
