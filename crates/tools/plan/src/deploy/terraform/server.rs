//! One server: its group, its network interface, its volumes.

use super::parts::{
    Own, Statement, arn, boot_stack, metadata_options, of_this_name, output, role, root_volume,
    security_group, signal_statement, user_data_text,
};
use super::protection::{key, key_statement, server_alarms, snapshots};
use super::variables::{head, lookups, variable, variables_first};
use super::{BOOT_SECONDS, BOOT_STACK, HEALTH_GRACE_SECONDS, interpolated, tags};
use crate::deploy::hcl::{Body, Value, expression};
use crate::deploy::spec::{Disks, INSTANCE_STORE_NOTICE, Machine, PLANNED, STORAGE_TYPES};
use crate::deploy::user_data::{self, BOOT_HOOK, DiskMode, METRICS, SERVER_SIGNAL};
use crate::deploy::{DeployError, DeployOptions, NFS_PORT, values};

const GROUP_NAME: &str = "${var.cluster_name}-storage";

pub(super) fn server(
    file: &mut Body,
    machine: &Machine,
    options: &DeployOptions,
    region: &str,
) -> Result<(), DeployError> {
    let is_ebs = matches!(machine.disks, Disks::Ebs { .. });
    let notices: &[&str] = if is_ebs {
        &[]
    } else {
        &[INSTANCE_STORE_NOTICE]
    };
    head(file, region, notices);
    variables_first(file);
    variable("placement_group", "Placement group of the clients, or None")
        .default("None")
        .write(file);
    variable(
        "spot_price",
        "Most USD an hour for a spot instance, or None for one that stays",
    )
    .pattern(values::SPOT_PATTERN)
    .default("None")
    .write(file);
    if is_ebs {
        storage_types(file, machine);
        file.block(&["variable", "existing_volume_ids"], |body| {
            body.attribute("type", expression("list(string)"))
                .attribute("description", "Data volumes of an earlier server of the same name, in the zone of the subnet; empty: new ones")
                .attribute("default", Value::List(Vec::new()));
        })
        .blank();
        variable(
            "snapshot_days",
            "Days that daily snapshots of the data volumes are kept; 0: none are made",
        )
        .pattern(values::DAYS_PATTERN)
        .default("7")
        .write(file);
        variable("snapshot_time", "When they are made, in UTC")
            .pattern(values::TIME_PATTERN)
            .default("03:00")
            .write(file);
    }
    lookups(file);
    key(file);
    security_group(file, "storage", "Clients of a Cairn server", options);
    file.comment("Of its own, so that the address stays when the instance is replaced.")
        .block(&["resource", "aws_network_interface", "storage"], |body| {
            body.attribute("subnet_id", expression("var.subnet_id"))
                .attribute(
                    "security_groups",
                    Value::List(vec![expression("aws_security_group.storage.id")]),
                )
                .attribute("description", "Address of the Cairn server")
                .attribute("tags", tags("storage"));
        })
        .blank();
    let mut statements = Vec::new();
    if is_ebs {
        data_volumes(file, machine);
        statements.push(Statement {
            actions: vec!["ec2:DescribeVolumes"],
            resources: vec!["*".into()],
            condition: None,
        });
        statements.push(Statement {
            actions: vec!["ec2:AttachVolume"],
            resources: vec![arn("ec2", "volume/*"), arn("ec2", "instance/*")],
            condition: of_this_name(),
        });
        statements.push(key_statement());
    }
    statements.extend([
        signal_statement(),
        Statement {
            actions: vec![
                "autoscaling:CompleteLifecycleAction",
                "autoscaling:SetInstanceHealth",
            ],
            resources: vec![arn(
                "autoscaling",
                &format!("autoScalingGroup:*:autoScalingGroupName/{GROUP_NAME}"),
            )],
            condition: None,
        },
        Statement {
            actions: vec!["cloudwatch:PutMetricData"],
            resources: vec!["*".into()],
            condition: Some(("cloudwatch:namespace".to_string(), METRICS.into())),
        },
    ]);
    role(file, "storage", &statements);
    let mode = if is_ebs {
        DiskMode::Volumes
    } else {
        DiskMode::InstanceStore
    };
    let own = Own {
        volumes: if is_ebs {
            "join(\",\", local.volume_ids)"
        } else {
            ""
        },
        stack: BOOT_STACK,
        group: GROUP_NAME,
    };
    let user_data = user_data_text(&user_data::server(machine, mode, true, options), own)?;
    file.block(&["locals"], |body| {
        body.attribute("user_data", user_data);
    })
    .blank();
    boot_stack(file, SERVER_SIGNAL, 1);
    server_template(file, machine);
    server_group(file);
    server_alarms(file);
    if is_ebs {
        file.blank();
        snapshots(file);
    }
    let (export, _) = machine.export();
    output(
        file,
        "server_address",
        "Stays when the instance is replaced",
        expression("aws_network_interface.storage.private_ip"),
    );
    let mount = format!(
        "sudo mount -t nfs -o vers=3,proto=tcp,nolock,port={NFS_PORT},mountport={NFS_PORT},nconnect=8 \
         ${{aws_network_interface.storage.private_ip}}:/{export} /mnt"
    );
    output(
        file,
        "mount_command",
        "On a Linux client",
        interpolated(&mount),
    );
    if is_ebs {
        output(
            file,
            "data_volumes",
            "What existing_volume_ids of another server takes",
            expression("local.volume_ids"),
        );
    }
    Ok(())
}

fn storage_types(file: &mut Body, machine: &Machine) {
    let own = machine.storage_type();
    let entry =
        |instance: &str, volume_type: &str, size_gib: u32, more: (Option<u32>, Option<u32>)| {
            let or_null = |value: Option<u32>| value.map_or(expression("null"), Value::from);
            Value::Object(vec![
                ("instance".to_string(), instance.into()),
                ("volume_type".to_string(), volume_type.into()),
                ("volume_gib".to_string(), size_gib.into()),
                ("iops".to_string(), or_null(more.0)),
                ("mib_s".to_string(), or_null(more.1)),
            ])
        };
    let mut types = Vec::new();
    if let (
        None,
        Disks::Ebs {
            volume_type,
            size_gib,
            iops,
            mib_s,
            ..
        },
    ) = (own, &machine.disks)
    {
        types.push((
            PLANNED.to_string(),
            entry(&machine.instance, volume_type, *size_gib, (*iops, *mib_s)),
        ));
    }
    for each in STORAGE_TYPES {
        let gib = each.volume_gib(machine.protection);
        types.push((
            each.name.to_string(),
            entry(each.instance, "st1", gib, (None, None)),
        ));
    }
    let default = own.map_or(PLANNED, |own| own.name);
    file.block(&["variable", "storage_type"], |body| {
        body.attribute("type", expression("string"))
            .attribute(
                "description",
                "Usable capacity and the instance that goes with it: a name in local.storage_types",
            )
            .attribute("default", default);
    })
    .blank()
    .block(&["locals"], |body| {
        body.attribute("storage_types", Value::Object(types))
            .attribute(
                "storage",
                expression("local.storage_types[var.storage_type]"),
            );
    })
    .blank();
}

fn data_volumes(file: &mut Body, machine: &Machine) {
    let count = machine.disks.count();
    file.block(&["resource", "aws_ebs_volume", "data"], |body| {
        body.attribute("count", expression(format!("length(var.existing_volume_ids) == 0 ? {count} : 0")))
            .attribute("availability_zone", expression("data.aws_subnet.clients.availability_zone"))
            .attribute("type", expression("local.storage.volume_type"))
            .attribute("size", expression("local.storage.volume_gib"))
            .attribute("iops", expression("local.storage.iops"))
            .attribute("throughput", expression("local.storage.mib_s"))
            .attribute("encrypted", true)
            .attribute("kms_key_id", expression("local.volume_key"))
            .attribute("tags", tags("storage"))
            .blank()
            .comment("Data outlives its server: to delete it, take this away first.")
            .block(&["lifecycle"], |body| {
                body.attribute("prevent_destroy", true);
            });
    })
    .blank()
    .block(&["locals"], |body| {
        body.attribute(
            "volume_ids",
            expression("length(var.existing_volume_ids) == 0 ? aws_ebs_volume.data[*].id : var.existing_volume_ids"),
        );
    })
    .blank();
}

fn server_template(file: &mut Body, machine: &Machine) {
    file.block(&["resource", "aws_launch_template", "storage"], |body| {
        let instance = match machine.disks {
            Disks::Ebs { .. } => expression("local.storage.instance"),
            Disks::InstanceStore { .. } => Value::from(machine.instance.as_str()),
        };
        body.attribute("name_prefix", interpolated("${var.cluster_name}-storage-"))
            .attribute("image_id", expression("var.image"))
            .attribute("instance_type", instance)
            .attribute("key_name", expression("var.key_pair"))
            .attribute("user_data", expression("base64encode(local.user_data)"))
            .attribute("update_default_version", true)
            .blank()
            .block(&["iam_instance_profile"], |body| {
                body.attribute("arn", expression("aws_iam_instance_profile.storage.arn"));
            })
            .blank()
            .block(&["network_interfaces"], |body| {
                body.attribute("device_index", 0_u32).attribute(
                    "network_interface_id",
                    expression("aws_network_interface.storage.id"),
                );
            })
            .blank();
        root_volume(body);
        metadata_options(body, false);
        body.block(&["dynamic", "placement"], |body| {
            body.attribute(
                "for_each",
                expression("var.placement_group == \"None\" ? [] : [var.placement_group]"),
            )
            .blank()
            .block(&["content"], |body| {
                body.attribute("group_name", expression("placement.value"));
            });
        })
        .blank()
        .block(&["dynamic", "instance_market_options"], |body| {
            body.attribute(
                "for_each",
                expression("var.spot_price == \"None\" ? [] : [var.spot_price]"),
            )
            .blank()
            .block(&["content"], |body| {
                body.attribute("market_type", "spot")
                    .blank()
                    .block(&["spot_options"], |body| {
                        body.attribute("max_price", expression("instance_market_options.value"))
                            .attribute("spot_instance_type", "one-time");
                    });
            });
        })
        .blank()
        .block(&["tag_specifications"], |body| {
            body.attribute("resource_type", "instance")
                .attribute("tags", tags("storage"));
        });
    })
    .blank();
}

fn server_group(file: &mut Body) {
    file.block(&["resource", "aws_autoscaling_group", "storage"], |body| {
        body.comment("A name that is known before the group: the role and the boot script need it.")
            .attribute("name", interpolated(GROUP_NAME))
            .comment("An interface that is there already decides the subnet.")
            .attribute(
                "availability_zones",
                Value::List(vec![expression("data.aws_subnet.clients.availability_zone")]),
            )
            .attribute("min_size", 1_u32)
            .attribute("max_size", 1_u32)
            .attribute("desired_capacity", 1_u32)
            .comment("The server's own health comes from the instance, which reports itself as unhealthy.")
            .attribute("health_check_type", "EC2")
            .attribute("health_check_grace_period", HEALTH_GRACE_SECONDS)
            .comment("The stack `boot` waits instead: it ends at the first failure.")
            .attribute("wait_for_capacity_timeout", "0")
            .blank()
            .comment("In service only after a good boot: another one is abandoned, and the instance replaced.")
            .block(&["initial_lifecycle_hook"], |body| {
                body.attribute("name", BOOT_HOOK)
                    .attribute("lifecycle_transition", "autoscaling:EC2_INSTANCE_LAUNCHING")
                    .attribute("default_result", "ABANDON")
                    .attribute("heartbeat_timeout", BOOT_SECONDS);
            })
            .blank()
            .block(&["launch_template"], |body| {
                body.attribute("id", expression("aws_launch_template.storage.id"))
                    .attribute("version", expression("aws_launch_template.storage.latest_version"));
            })
            .blank()
            .comment("The old instance goes first: the address and the volumes are at one instance at a time.")
            .block(&["instance_refresh"], |body| {
                body.attribute("strategy", "Rolling").blank().block(&["preferences"], |body| {
                    body.attribute("min_healthy_percentage", 0_u32);
                });
            })
            .blank()
            .block(&["tag"], |body| {
                body.attribute("key", "Name")
                    .attribute("value", interpolated("${var.cluster_name}-storage"))
                    .attribute("propagate_at_launch", true);
            });
    });
}
