//! A cluster: its nodes, their network, their volumes.

use super::parts::{
    Own, Statement, arn, boot_stack, metadata_options, of_this_name, output, role, root_volume,
    security_group, signal_statement, user_data_text,
};
use super::protection::{alarm, key};
use super::variables::{head, lookups, variable, variables_first};
use super::{BOOT_STACK, TAG, interpolated, tags};
use crate::deploy::alarms::NODE_ALARM;
use crate::deploy::hcl::{Body, Value, expression};
use crate::deploy::spec::{Disks, Machine, PARTITION_COUNT_MAX, SPREAD_COUNT_MAX, device_names};
use crate::deploy::user_data::{self, DiskMode};
use crate::deploy::{DeployError, DeployOptions, values};

pub(super) fn cluster(
    file: &mut Body,
    nodes: u32,
    node: &Machine,
    options: &DeployOptions,
    region: &str,
) -> Result<(), DeployError> {
    head(file, region, &[]);
    variables_first(file);
    variable(
        "internal_network",
        "Addresses of a new subnet for the nodes alone, such as 10.0.250.0/24",
    )
    .pattern(values::SUBNET_PATTERN)
    .write(file);
    lookups(file);
    key(file);
    internal_network(file);
    security_group(file, "external", "Clients of the Cairn nodes", options);
    file.block(&["resource", "aws_placement_group", "nodes"], |body| {
        body.attribute("name", interpolated("${var.cluster_name}-nodes"));
        match nodes <= SPREAD_COUNT_MAX {
            true => body
                .attribute("strategy", "spread")
                .attribute("spread_level", "rack"),
            false => body
                .attribute("strategy", "partition")
                .attribute("partition_count", PARTITION_COUNT_MAX),
        };
    })
    .blank();
    interfaces(file, nodes);
    role(
        file,
        "nodes",
        &[
            Statement {
                actions: vec!["ec2:DescribeNetworkInterfaces"],
                resources: vec!["*".into()],
                condition: None,
            },
            // Floating addresses move from one node's interface to another's.
            Statement {
                actions: vec![
                    "ec2:AssignPrivateIpAddresses",
                    "ec2:UnassignPrivateIpAddresses",
                ],
                resources: vec![arn("ec2", "network-interface/*")],
                condition: of_this_name(),
            },
            // The first node leaves each other one a ticket there, with which it joins.
            Statement {
                actions: vec![
                    "ssm:PutParameter",
                    "ssm:GetParameter",
                    "ssm:DeleteParameter",
                ],
                resources: vec![arn("ssm", "parameter/cairn/${var.cluster_name}/*")],
                condition: None,
            },
            signal_statement(),
        ],
    );
    let mode = match node.disks {
        Disks::Ebs { .. } => DiskMode::OwnVolumes,
        Disks::InstanceStore { .. } => DiskMode::InstanceStore,
    };
    let own = Own {
        stack: BOOT_STACK,
        ..Own::default()
    };
    let user_data = user_data_text(&user_data::node(nodes, node, mode, options), own)?;
    boot_stack(file, BOOT_SIGNAL, nodes);
    file.block(&["locals"], |body| {
        body.attribute(
            "internal_addresses",
            expression("aws_network_interface.internal[*].private_ip"),
        )
        .attribute("user_data", user_data);
    })
    .blank();
    node_template(file, node);
    file.block(&["resource", "aws_instance", "nodes"], |body| {
        body.attribute("count", nodes)
            .attribute(
                "tags",
                Value::Object(vec![
                    (
                        "Name".to_string(),
                        interpolated("${var.cluster_name}-node${count.index + 1}"),
                    ),
                    (TAG.to_string(), expression("var.cluster_name")),
                    ("cairn-signal".to_string(), BOOT_SIGNAL.into()),
                ]),
            )
            .blank()
            .block(&["launch_template"], |body| {
                body.attribute("id", expression("aws_launch_template.nodes.id"))
                    .attribute(
                        "version",
                        expression("aws_launch_template.nodes.latest_version"),
                    );
            });
        for (index, side) in ["external", "internal"].into_iter().enumerate() {
            body.blank().block(&["network_interface"], |body| {
                body.attribute("device_index", index as u32).attribute(
                    "network_interface_id",
                    expression(format!("aws_network_interface.{side}[count.index].id")),
                );
            });
        }
    });
    file.blank();
    let dimension = (
        "InstanceId".to_string(),
        expression("aws_instance.nodes[count.index].id"),
    );
    alarm(file, "node", &NODE_ALARM, "AWS/EC2", Some(nodes), dimension);
    output(
        file,
        "node_addresses",
        "Of the clients' side",
        expression("aws_network_interface.external[*].private_ip"),
    );
    output(
        file,
        "floating_addresses",
        "One for each node. The volume has the first; the others are there for volumes that are made later",
        expression(
            "[for each in aws_network_interface.external : one([for ip in each.private_ips : ip if ip != each.private_ip])]",
        ),
    );
    Ok(())
}

const BOOT_SIGNAL: &str = "Boot";

fn internal_network(file: &mut Body) {
    file.comment("A subnet without a way out, where only nodes talk to nodes.")
        .block(&["resource", "aws_subnet", "internal"], |body| {
            body.attribute("vpc_id", expression("data.aws_subnet.clients.vpc_id"))
                .attribute(
                    "availability_zone",
                    expression("data.aws_subnet.clients.availability_zone"),
                )
                .attribute("cidr_block", expression("var.internal_network"))
                .attribute("map_public_ip_on_launch", false)
                .attribute("tags", tags("internal"));
        })
        .blank()
        .block(&["resource", "aws_route_table", "internal"], |body| {
            body.attribute("vpc_id", expression("data.aws_subnet.clients.vpc_id"))
                .attribute("tags", tags("internal"));
        })
        .blank()
        .block(
            &["resource", "aws_route_table_association", "internal"],
            |body| {
                body.attribute("subnet_id", expression("aws_subnet.internal.id"))
                    .attribute("route_table_id", expression("aws_route_table.internal.id"));
            },
        )
        .blank()
        .block(&["resource", "aws_security_group", "internal"], |body| {
            body.attribute("name_prefix", interpolated("${var.cluster_name}-internal-"))
                .attribute("description", "Cairn nodes among themselves")
                .attribute("vpc_id", expression("data.aws_subnet.clients.vpc_id"))
                .attribute("tags", tags("internal"));
            for way in ["ingress", "egress"] {
                body.blank().block(&[way], |body| {
                    body.attribute("description", "Nodes with nodes")
                        .attribute("protocol", "-1")
                        .attribute("from_port", 0_u32)
                        .attribute("to_port", 0_u32)
                        .attribute("self", true);
                });
            }
        })
        .blank();
}

fn interfaces(file: &mut Body, nodes: u32) {
    for (name, subnet, words) in [
        ("external", "var.subnet_id", "Clients of a Cairn node"),
        (
            "internal",
            "aws_subnet.internal.id",
            "A Cairn node to the others",
        ),
    ] {
        file.block(&["resource", "aws_network_interface", name], |body| {
            body.attribute("count", nodes)
                .attribute("subnet_id", expression(subnet))
                .attribute(
                    "security_groups",
                    Value::List(vec![expression(format!("aws_security_group.{name}.id"))]),
                )
                .attribute("description", words);
            if name == "external" {
                // The address beside the first is the floating one.
                body.attribute("private_ips_count", 1_u32);
            }
            body.attribute("tags", tags("node"));
        })
        .blank();
    }
}

fn node_template(file: &mut Body, node: &Machine) {
    file.block(&["resource", "aws_launch_template", "nodes"], |body| {
        body.attribute("name_prefix", interpolated("${var.cluster_name}-node-"))
            .attribute("image_id", expression("var.image"))
            .attribute("instance_type", node.instance.as_str())
            .attribute("key_name", expression("var.key_pair"))
            .attribute("user_data", expression("base64encode(local.user_data)"))
            .attribute("update_default_version", true)
            .blank()
            .block(&["iam_instance_profile"], |body| {
                body.attribute("arn", expression("aws_iam_instance_profile.nodes.arn"));
            })
            .blank();
        root_volume(body);
        if let Disks::Ebs {
            count,
            volume_type,
            size_gib,
            iops,
            mib_s,
        } = &node.disks
        {
            for name in device_names(*count) {
                body.block(&["block_device_mappings"], |body| {
                    body.attribute("device_name", name)
                        .blank()
                        .block(&["ebs"], |body| {
                            body.attribute("volume_type", volume_type.as_str())
                                .attribute("volume_size", *size_gib);
                            for (key, value) in [("iops", iops), ("throughput", mib_s)] {
                                if let Some(value) = value {
                                    body.attribute(key, *value);
                                }
                            }
                            body.attribute("encrypted", true)
                                .attribute("kms_key_id", expression("local.volume_key"))
                                .attribute("delete_on_termination", false);
                        });
                })
                .blank();
            }
        }
        metadata_options(body, true);
        body.block(&["placement"], |body| {
            body.attribute("group_name", expression("aws_placement_group.nodes.name"));
        })
        .blank()
        .block(&["tag_specifications"], |body| {
            body.attribute("resource_type", "volume")
                .attribute("tags", tags("node"));
        });
    })
    .blank();
}
