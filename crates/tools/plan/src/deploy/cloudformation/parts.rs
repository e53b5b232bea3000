//! What templates of a server and of a cluster have in common: parameters, rules, roles, the boot of a machine.

use super::protection::key_arn;
use super::words::{equals, join, not, parameter, pattern, reference, resource, sub, tags};
use super::{ROOT_DEVICE, ROOT_GIB, TAG};
use crate::deploy::tree::{Node, list, map};
use crate::deploy::user_data::{self, Slot};
use crate::deploy::{DeployError, DeployOptions, check_user_data, ports, values};

/// What both templates ask for, in the order in which they ask.
pub(super) fn parameters_first(zone_of: &str) -> Vec<(String, Node)> {
    let named = |name: &str, node: Node| (name.to_string(), node);
    vec![
        named(
            "Vpc",
            parameter(
                "AWS::EC2::VPC::Id",
                "Network of the subnet and of the clients",
            ),
        ),
        named("Subnet", parameter("AWS::EC2::Subnet::Id", zone_of)),
        named(
            "AvailabilityZone",
            parameter(
                "AWS::EC2::AvailabilityZone::Name",
                "Zone of the subnet; volumes are made there",
            ),
        ),
        named(
            "SecurityGroup",
            parameter(
                "AWS::EC2::SecurityGroup::Id",
                "Group of the clients: only its members reach the storage",
            ),
        ),
        named(
            "ClientNetwork",
            pattern(
                "Addresses of the clients, which the volume is exported to: at most a /8",
                values::CLIENT_CIDR_PATTERN,
            ),
        ),
        named(
            "ClusterName",
            pattern("Name that all resources get", values::NAME_PATTERN),
        ),
        named(
            "LoginAddress",
            pattern(
                "Address of the login node (such as 10.0.0.7/32): its root is root of the volume, and it may connect with SSH; at most a /24",
                values::LOGIN_CIDR_PATTERN,
            ),
        ),
    ]
}

pub(super) fn parameters_last() -> Vec<(String, Node)> {
    let named = |name: &str, node: Node| (name.to_string(), node);
    vec![
        named(
            "AdministratorUser",
            pattern(
                "User with sudo, who gets the key pair",
                values::USER_PATTERN,
            )
            .with("Default", "cairn-admin"),
        ),
        named(
            "KeyPair",
            parameter(
                "AWS::EC2::KeyPair::KeyName",
                "Key pair of the administrator",
            ),
        ),
        named(
            "PackageUrl",
            pattern(
                "The .deb of Cairn, https://... or s3://BUCKET/KEY",
                values::URL_PATTERN,
            ),
        ),
        named(
            "PackageSha256",
            pattern(
                "SHA-256 of the .deb: nothing else is installed",
                values::SHA256_PATTERN,
            ),
        ),
        named(
            "Image",
            parameter(
                "AWS::EC2::Image::Id",
                "Debian 12 or newer, for x86-64. An image by its id, so that an update never replaces the server for a newer one",
            ),
        ),
        named(
            "EgressNetwork",
            pattern(
                "Where HTTPS may go, the only way out: Debian's mirror and the AWS API. The VPC's own addresses if it has both inside",
                values::CIDR_PATTERN,
            )
            .with("Default", "0.0.0.0/0"),
        ),
        named(
            "KmsKey",
            pattern(
                "ARN of the KMS key that volumes are encrypted with; empty: a new one, which stays when the stack is deleted",
                values::KMS_KEY_PATTERN,
            )
            .with("Default", ""),
        ),
        named(
            "AlarmTopic",
            pattern(
                "ARN of the SNS topic that alarms are sent to; empty: they are seen in CloudWatch alone",
                values::TOPIC_PATTERN,
            )
            .with("Default", ""),
        ),
    ]
}

pub(super) fn rules() -> Node {
    let assertion = |condition: Node, words: &str| {
        map! { "Assertions" => list![map! { "Assert" => condition, "AssertDescription" => words }] }
    };
    map! {
        "SubnetOfVpc" => assertion(
            map! { "Fn::EachMemberIn" => list![
                map! { "Fn::ValueOfAll" => list!["AWS::EC2::Subnet::Id", "VpcId"] },
                map! { "Fn::RefAll" => "AWS::EC2::VPC::Id" },
            ] },
            "The subnet belongs to the VPC",
        ),
    }
}

fn package_is_in_s3() -> Node {
    let scheme = map! { "Fn::Select" => list!["0", map! { "Fn::Split" => list![":", reference("PackageUrl")] }] };
    equals(scheme, "s3".into())
}

/// Conditions of both templates.
pub(super) fn conditions() -> Node {
    map! {
        "PackageIsInS3" => package_is_in_s3(),
        "HasNewKey" => equals(reference("KmsKey"), "".into()),
        "HasAlarmTopic" => not(equals(reference("AlarmTopic"), "".into())),
    }
}

/// HTTPS and nothing else: security groups do not see the VPC's own name and time services (VPC user guide, security
/// groups).
pub(super) fn egress() -> Node {
    list![map! {
        "IpProtocol" => "tcp",
        "FromPort" => 443_u32,
        "ToPort" => 443_u32,
        "CidrIp" => reference("EgressNetwork"),
        "Description" => "Packages and the AWS API",
    }]
}

/// Rules that let clients in, and nobody else.
pub(super) fn ingress(options: &DeployOptions) -> Vec<Node> {
    let mut rules = Vec::new();
    for (port, protocol) in ports(options) {
        let rule = |words: &str| {
            map! {
                "IpProtocol" => "tcp",
                "FromPort" => u32::from(port),
                "ToPort" => u32::from(port),
                "Description" => format!("{protocol} of {words}"),
            }
        };
        rules.push(rule("clients").with("SourceSecurityGroupId", reference("SecurityGroup")));
        rules.push(rule("the login node").with("CidrIp", reference("LoginAddress")));
    }
    rules.push(map! {
        "IpProtocol" => "tcp",
        "FromPort" => 22_u32,
        "ToPort" => 22_u32,
        "Description" => "SSH of the login node",
        "CidrIp" => reference("LoginAddress"),
    });
    rules
}

pub(super) fn allow(actions: Node, resources: Node) -> Node {
    map! { "Effect" => "Allow", "Action" => actions, "Resource" => resources }
}

pub(super) fn of_this_name() -> Node {
    map! { "StringEquals" => map! { (format!("ec2:ResourceTag/{TAG}")) => reference("ClusterName") } }
}

/// The role of instances: its statements and nothing else, and the package of Cairn if that is in S3.
pub(super) fn role(resources: &mut Vec<(String, Node)>, prefix: &str, statements: Vec<Node>) {
    let assume = map! {
        "Version" => "2012-10-17",
        "Statement" => list![map! {
            "Effect" => "Allow",
            "Principal" => map! { "Service" => sub("ec2.${AWS::URLSuffix}") },
            "Action" => "sts:AssumeRole",
        }],
    };
    let policy = |name: &str, statements: Vec<Node>| {
        map! {
            "PolicyName" => name,
            "PolicyDocument" => map! { "Version" => "2012-10-17", "Statement" => statements },
        }
    };
    let role = format!("{prefix}Role");
    let package = map! { "Fn::Select" => list!["1", map! { "Fn::Split" => list!["s3://", reference("PackageUrl")] }] };
    let package = map! { "Fn::Sub" => list!["arn:${AWS::Partition}:s3:::${Package}", map! { "Package" => package }] };
    let mut read_package = policy("read-package", vec![allow("s3:GetObject".into(), package)]);
    read_package = read_package.with("Roles", list![reference(&role)]);
    resources.extend([
        (
            role.clone(),
            resource(
                "AWS::IAM::Role",
                map! {
                    "AssumeRolePolicyDocument" => assume,
                    "Policies" => list![policy("serve", statements)],
                    "Tags" => tags("role"),
                },
            ),
        ),
        (
            format!("{prefix}PackagePolicy"),
            map! { "Type" => "AWS::IAM::Policy", "Condition" => "PackageIsInS3", "Properties" => read_package },
        ),
        (
            format!("{prefix}Profile"),
            resource("AWS::IAM::InstanceProfile", map! { "Roles" => list![reference(&role)] }),
        ),
    ]);
}

pub(super) fn signal_statement() -> Node {
    allow(
        "cloudformation:SignalResource".into(),
        reference("AWS::StackId"),
    )
}

pub(super) fn root_volume() -> Node {
    map! {
        "DeviceName" => ROOT_DEVICE,
        "Ebs" => map! {
            "VolumeType" => "gp3",
            "VolumeSize" => ROOT_GIB,
            "Encrypted" => true,
            "KmsKeyId" => key_arn(),
            "DeleteOnTermination" => true,
        },
    }
}

/// User data with slots, for `UserData`.
pub(super) fn user_data_node(
    text: &str,
    value: impl Fn(Slot) -> Node,
) -> Result<Node, DeployError> {
    // Values are counted with what their patterns allow on average: the largest, URLs, are seldom long.
    check_user_data(&user_data::fill(text, |_| "x".repeat(64), str::to_string))?;
    // Scripts come after the last slot and stay as they are: `${` in them is no variable, and has no escape.
    let (head, tail) = user_data::split_after_slots(text);
    let mut variables: Vec<(String, Node)> = Vec::new();
    let template = user_data::fill(
        head,
        |slot| {
            let node = value(slot);
            if let Node::Map(entries) = &node
                && let [(key, Node::Text(name))] = entries.as_slice()
                && key == "Ref"
            {
                return format!("${{{name}}}");
            }
            if !variables.iter().any(|(name, _)| name == slot.name()) {
                variables.push((slot.name().to_string(), node));
            }
            format!("${{{}}}", slot.name())
        },
        |fixed| fixed.replace("${", "${!"),
    );
    let head = map! { "Fn::Sub" => list![template, variables] };
    Ok(map! { "Fn::Base64" => join("", list![head, tail]) })
}

/// Values that both templates have.
pub(super) fn common_value(slot: Slot) -> Node {
    match slot {
        Slot::Name => reference("ClusterName"),
        Slot::User => reference("AdministratorUser"),
        Slot::Region => reference("AWS::Region"),
        Slot::Stack => reference("AWS::StackName"),
        Slot::Clients => reference("ClientNetwork"),
        Slot::Login => reference("LoginAddress"),
        Slot::PackageUrl => reference("PackageUrl"),
        Slot::PackageSha256 => reference("PackageSha256"),
        Slot::Group | Slot::Volumes | Slot::Nodes => "".into(),
    }
}

pub(super) fn metadata_options() -> Node {
    map! { "HttpTokens" => "required", "HttpEndpoint" => "enabled", "HttpPutResponseHopLimit" => 1_u32 }
}
