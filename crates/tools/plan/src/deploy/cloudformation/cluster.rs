//! A cluster: its nodes, their network, their volumes.

use super::BOOT_TIME;
use super::parts::{
    allow, common_value, conditions, egress, ingress, metadata_options, of_this_name,
    parameters_first, parameters_last, role, root_volume, rules, signal_statement, user_data_node,
};
use super::protection::{alarm, key, key_arn};
use super::words::{attribute, join, pattern, reference, resource, sub, tags};
use crate::deploy::alarms::NODE_ALARM;
use crate::deploy::spec::{Disks, Machine, PARTITION_COUNT_MAX, SPREAD_COUNT_MAX, device_names};
use crate::deploy::tree::{Node, list, map};
use crate::deploy::user_data::{self, DiskMode, Slot};
use crate::deploy::{DeployError, DeployOptions, values};

pub(super) fn cluster(
    nodes: u32,
    node: &Machine,
    options: &DeployOptions,
) -> Result<Node, DeployError> {
    let mut parameters = parameters_first("Subnet of the clients' side of the nodes");
    parameters.push((
        "InternalNetwork".to_string(),
        pattern(
            "Addresses of a new subnet of the VPC for the nodes alone, such as 10.0.250.0/24",
            values::SUBNET_PATTERN,
        ),
    ));
    parameters.extend(parameters_last());
    let mut resources = vec![key()];
    resources.extend(internal_network());
    resources.push((
        "ExternalSecurityGroup".to_string(),
        resource(
            "AWS::EC2::SecurityGroup",
            map! {
                "GroupDescription" => "Clients of the Cairn nodes",
                "VpcId" => reference("Vpc"),
                "SecurityGroupIngress" => ingress(options),
                "SecurityGroupEgress" => egress(),
                "Tags" => tags("external"),
            },
        ),
    ));
    let strategy = match nodes <= SPREAD_COUNT_MAX {
        true => map! { "Strategy" => "spread", "SpreadLevel" => "rack" },
        false => map! { "Strategy" => "partition", "PartitionCount" => PARTITION_COUNT_MAX },
    };
    resources.push((
        "NodePlacement".to_string(),
        resource(
            "AWS::EC2::PlacementGroup",
            strategy.with("Tags", tags("nodes")),
        ),
    ));
    role(
        &mut resources,
        "Node",
        vec![
            allow("ec2:DescribeNetworkInterfaces".into(), "*".into()),
            // Floating addresses move from one node's interface to another's.
            allow(
                list!["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"],
                sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:network-interface/*"),
            )
            .with("Condition", of_this_name()),
            // The first node leaves each other one a ticket there, with which it joins.
            allow(
                list!["ssm:PutParameter", "ssm:GetParameter", "ssm:DeleteParameter"],
                sub("arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter/cairn/${ClusterName}/*"),
            ),
            signal_statement(),
        ],
    );
    let address =
        |number: u32| attribute(&format!("Node{number}Internal"), "PrimaryPrivateIpAddress");
    let addresses = || join(",", (1..=nodes).map(address).collect::<Vec<_>>().into());
    let mode = match node.disks {
        Disks::Ebs { .. } => DiskMode::OwnVolumes,
        Disks::InstanceStore { .. } => DiskMode::InstanceStore,
    };
    let user_data = user_data_node(
        &user_data::node(nodes, node, mode, options),
        |slot| match slot {
            Slot::Nodes => addresses(),
            _ => common_value(slot),
        },
    )?;
    let mut devices = vec![root_volume()];
    devices.extend(node_volumes(&node.disks));
    let data = map! {
        "ImageId" => reference("Image"),
        "InstanceType" => &node.instance,
        "KeyName" => reference("KeyPair"),
        "IamInstanceProfile" => map! { "Arn" => attribute("NodeProfile", "Arn") },
        "BlockDeviceMappings" => devices,
        "MetadataOptions" => metadata_options().with("InstanceMetadataTags", "enabled"),
        "Placement" => map! { "GroupName" => reference("NodePlacement") },
        "TagSpecifications" => list![map! { "ResourceType" => "volume", "Tags" => tags("node") }],
        "UserData" => user_data,
    };
    resources.push((
        "NodeTemplate".to_string(),
        resource(
            "AWS::EC2::LaunchTemplate",
            map! { "LaunchTemplateData" => data },
        ),
    ));
    for number in 1..=nodes {
        push_node(&mut resources, number, &node.instance);
    }
    let floating: Vec<Node> = (1..=nodes)
        .map(|number| {
            join(
                ",",
                attribute(
                    &format!("Node{number}External"),
                    "SecondaryPrivateIpAddresses",
                ),
            )
        })
        .collect();
    let external: Vec<Node> = (1..=nodes)
        .map(|number| attribute(&format!("Node{number}External"), "PrimaryPrivateIpAddress"))
        .collect();
    let outputs = map! {
        "NodeAddresses" => map! { "Description" => "Of the clients' side", "Value" => join(",", external.into()) },
        "FloatingAddresses" => map! {
            "Description" => "One for each node. The volume has the first; the others are there for volumes that are made later",
            "Value" => join(",", floating.into()),
        },
        "InternalAddresses" => map! { "Description" => "Of the nodes among themselves", "Value" => addresses() },
    };
    Ok(map! {
        "AWSTemplateFormatVersion" => "2010-09-09",
        "Description" => format!("Cairn, a cluster of {nodes} nodes"),
        "Parameters" => parameters,
        "Rules" => rules(),
        "Conditions" => conditions(),
        "Resources" => resources,
        "Outputs" => outputs,
    })
}

/// A subnet without a way out, where only nodes talk to nodes.
fn internal_network() -> Vec<(String, Node)> {
    let all = |of: &str| {
        map! {
            "GroupId" => attribute("InternalSecurityGroup", "GroupId"),
            "IpProtocol" => "-1",
            (format!("{of}SecurityGroupId")) => attribute("InternalSecurityGroup", "GroupId"),
            "Description" => "Nodes with nodes",
        }
    };
    let named = |name: &str, node: Node| (name.to_string(), node);
    vec![
        named(
            "InternalSubnet",
            resource(
                "AWS::EC2::Subnet",
                map! {
                    "VpcId" => reference("Vpc"),
                    "AvailabilityZone" => reference("AvailabilityZone"),
                    "CidrBlock" => reference("InternalNetwork"),
                    "MapPublicIpOnLaunch" => false,
                    "Tags" => tags("internal"),
                },
            ),
        ),
        named(
            "InternalRoutes",
            resource(
                "AWS::EC2::RouteTable",
                map! { "VpcId" => reference("Vpc"), "Tags" => tags("internal") },
            ),
        ),
        named(
            "InternalRoutesOfSubnet",
            resource(
                "AWS::EC2::SubnetRouteTableAssociation",
                map! { "SubnetId" => reference("InternalSubnet"), "RouteTableId" => reference("InternalRoutes") },
            ),
        ),
        named(
            "InternalSecurityGroup",
            resource(
                "AWS::EC2::SecurityGroup",
                map! {
                    "GroupDescription" => "Cairn nodes among themselves",
                    "VpcId" => reference("Vpc"),
                    // Without a rule AWS adds one that lets everything out; this one lets nothing out.
                    "SecurityGroupEgress" => list![map! {
                        "IpProtocol" => "-1", "CidrIp" => "127.0.0.1/32", "Description" => "Nothing",
                    }],
                    "Tags" => tags("internal"),
                },
            ),
        ),
        named(
            "InternalIn",
            resource("AWS::EC2::SecurityGroupIngress", all("Source")),
        ),
        named(
            "InternalOut",
            resource("AWS::EC2::SecurityGroupEgress", all("Destination")),
        ),
    ]
}

/// Volumes of each node. They stay when their instance is gone: what is on them may be needed.
fn node_volumes(disks: &Disks) -> Vec<Node> {
    let Disks::Ebs {
        count,
        volume_type,
        size_gib,
        iops,
        mib_s,
    } = disks
    else {
        return Vec::new();
    };
    device_names(*count)
        .map(|name| {
            let mut ebs = map! {
                "VolumeType" => volume_type,
                "VolumeSize" => *size_gib,
                "Encrypted" => true,
                "KmsKeyId" => key_arn(),
                "DeleteOnTermination" => false,
            };
            for (key, value) in [("Iops", iops), ("Throughput", mib_s)] {
                ebs = ebs.with_some(key, value.map(Node::from));
            }
            map! { "DeviceName" => name, "Ebs" => ebs }
        })
        .collect()
}

fn push_node(resources: &mut Vec<(String, Node)>, number: u32, instance_type: &str) {
    let name = format!("Node{number}");
    let interface = |subnet: Node, group: &str, words: &str| {
        map! {
            "SubnetId" => subnet,
            "GroupSet" => list![attribute(group, "GroupId")],
            "Description" => words,
            "Tags" => tags(&format!("node{number}")),
        }
    };
    let external = interface(
        reference("Subnet"),
        "ExternalSecurityGroup",
        "Clients of a Cairn node",
    )
    .with("SecondaryPrivateIpAddressCount", 1_u32);
    let internal = interface(
        reference("InternalSubnet"),
        "InternalSecurityGroup",
        "A Cairn node to the others",
    );
    let mut tags = tags(&format!("node{number}"));
    if let Node::List(list) = &mut tags {
        list.push(map! { "Key" => "cairn-signal", "Value" => &name });
    }
    let instance = map! {
        "Type" => "AWS::EC2::Instance",
        "CreationPolicy" => map! { "ResourceSignal" => map! { "Count" => 1_u32, "Timeout" => BOOT_TIME } },
        "Properties" => map! {
            "LaunchTemplate" => map! {
                "LaunchTemplateId" => reference("NodeTemplate"),
                "Version" => attribute("NodeTemplate", "LatestVersionNumber"),
            },
            "ImageId" => reference("Image"),
            "InstanceType" => instance_type,
            "NetworkInterfaces" => list![
                map! { "DeviceIndex" => "0", "NetworkInterfaceId" => reference(&format!("{name}External")) },
                map! { "DeviceIndex" => "1", "NetworkInterfaceId" => reference(&format!("{name}Internal")) },
            ],
            "Tags" => tags,
        },
    };
    resources.extend([
        (
            format!("{name}External"),
            resource("AWS::EC2::NetworkInterface", external),
        ),
        (
            format!("{name}Internal"),
            resource("AWS::EC2::NetworkInterface", internal),
        ),
        (
            format!("{name}Alarm"),
            alarm(
                &NODE_ALARM,
                "AWS/EC2",
                map! { "Name" => "InstanceId", "Value" => reference(&name) },
            ),
        ),
        (name, instance),
    ]);
}
