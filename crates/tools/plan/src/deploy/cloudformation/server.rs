//! One server: its group, its network interface, its volumes.

use super::parts::{
    allow, common_value, conditions, egress, ingress, metadata_options, of_this_name,
    parameters_first, parameters_last, role, root_volume, rules, signal_statement, user_data_node,
};
use super::protection::{key, key_arn, key_statement, server_alarms, snapshots};
use super::words::{
    attribute, choose, equals, join, no_value, not, parameter, pattern, reference, resource,
    storage_type, sub, tags,
};
use super::{BOOT_SECONDS, BOOT_TIME, HEALTH_GRACE_SECONDS};
use crate::deploy::spec::{
    Disks, INSTANCE_STORE_NOTICE, Machine, PLANNED, STORAGE_TYPE_DEFAULT, STORAGE_TYPES,
};
use crate::deploy::tree::{Node, list, map};
use crate::deploy::user_data::{self, BOOT_HOOK, DiskMode, METRICS, SERVER_SIGNAL, Slot};
use crate::deploy::{DeployError, DeployOptions, NFS_PORT, values};

pub(super) fn server(machine: &Machine, options: &DeployOptions) -> Result<Node, DeployError> {
    let is_ebs = matches!(machine.disks, Disks::Ebs { .. });
    let mut parameters = parameters_first("Subnet of the server");
    let mut conditions = conditions()
        .with(
            "HasPlacementGroup",
            not(equals(reference("PlacementGroup"), "None".into())),
        )
        .with("IsSpot", not(equals(reference("SpotPrice"), "None".into())));
    let mut mappings = None;
    let mut volumes = Vec::new();
    if let Disks::Ebs { count, .. } = &machine.disks {
        let (types, default) = storage_types(machine);
        let names: Vec<Node> = match &types {
            Node::Map(entries) => entries.iter().map(|(name, _)| Node::from(name)).collect(),
            _ => Vec::new(),
        };
        mappings = Some(map! { "StorageTypes" => types });
        parameters.push((
            "StorageType".to_string(),
            parameter(
                "String",
                "Usable capacity and the instance that goes with it",
            )
            .with("Default", default)
            .with("AllowedValues", names),
        ));
        volumes = (1..=*count)
            .map(|number| format!("DataVolume{number}"))
            .collect();
        conditions = conditions.with(
            "HasNewVolumes",
            equals(reference("ExistingVolumes"), "".into()),
        );
        conditions = conditions.with(
            "HasSnapshots",
            not(equals(reference("SnapshotDays"), "0".into())),
        );
        if default == PLANNED {
            conditions = conditions.with(
                "IsPlanned",
                equals(reference("StorageType"), PLANNED.into()),
            );
        }
    }
    parameters.extend([
        (
            "PlacementGroup".to_string(),
            parameter("String", "Placement group of the clients, or None").with("Default", "None"),
        ),
        (
            "SpotPrice".to_string(),
            pattern(
                "Most USD an hour for a spot instance, or None for one that stays",
                values::SPOT_PATTERN,
            )
            .with("Default", "None"),
        ),
    ]);
    parameters.extend(parameters_last());
    if is_ebs {
        parameters.push((
            "ExistingVolumes".to_string(),
            pattern(
                "Data volumes of an earlier stack of the same name, vol-1,vol-2,... in this zone; empty: new ones",
                values::VOLUME_IDS_PATTERN,
            )
            .with("Default", ""),
        ));
        parameters.extend([
            (
                "SnapshotDays".to_string(),
                pattern(
                    "Days that daily snapshots of the data volumes are kept; 0: none are made",
                    values::DAYS_PATTERN,
                )
                .with("Default", "7"),
            ),
            (
                "SnapshotTime".to_string(),
                pattern("When they are made, in UTC", values::TIME_PATTERN)
                    .with("Default", "03:00"),
            ),
        ]);
    }

    let mut resources = vec![
        key(),
        (
            "ServerSecurityGroup".to_string(),
            resource(
                "AWS::EC2::SecurityGroup",
                map! {
                    "GroupDescription" => "Clients of a Cairn server",
                    "VpcId" => reference("Vpc"),
                    "SecurityGroupIngress" => ingress(options),
                    "SecurityGroupEgress" => egress(),
                    "Tags" => tags("storage"),
                },
            ),
        ),
        // Of its own, so that the address stays when the instance is replaced.
        (
            "ServerInterface".to_string(),
            resource(
                "AWS::EC2::NetworkInterface",
                map! {
                    "SubnetId" => reference("Subnet"),
                    "GroupSet" => list![attribute("ServerSecurityGroup", "GroupId")],
                    "Description" => "Address of the Cairn server",
                    "Tags" => tags("storage"),
                },
            ),
        ),
    ];
    for name in &volumes {
        resources.push((name.clone(), data_volume(machine)));
    }
    let mut statements = Vec::new();
    if is_ebs {
        statements.push(allow("ec2:DescribeVolumes".into(), "*".into()));
        statements.push(
            allow(
                "ec2:AttachVolume".into(),
                list![
                    sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:volume/*"),
                    sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"),
                ],
            )
            .with("Condition", of_this_name()),
        );
        statements.push(key_statement());
    }
    statements.extend([
        signal_statement(),
        allow(
            list!["autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceHealth"],
            sub(
                "arn:${AWS::Partition}:autoscaling:${AWS::Region}:${AWS::AccountId}:autoScalingGroup:*:autoScalingGroupName/${AWS::StackName}-server",
            ),
        ),
        allow("cloudwatch:PutMetricData".into(), "*".into())
            .with("Condition", map! { "StringEquals" => map! { "cloudwatch:namespace" => METRICS } }),
    ]);
    role(&mut resources, "Server", statements);

    let volume_refs: Vec<Node> = volumes.iter().map(|name| reference(name)).collect();
    let volume_ids = match is_ebs {
        true => choose(
            "HasNewVolumes",
            join(",", volume_refs.into()),
            reference("ExistingVolumes"),
        ),
        false => "".into(),
    };
    let mode = if is_ebs {
        DiskMode::Volumes
    } else {
        DiskMode::InstanceStore
    };
    let user_data =
        user_data_node(
            &user_data::server(machine, mode, true, options),
            |slot| match slot {
                Slot::Volumes => volume_ids.clone(),
                Slot::Group => group_name(),
                _ => common_value(slot),
            },
        )?;
    let instance = match is_ebs {
        true => storage_type("Instance"),
        false => Node::from(&machine.instance),
    };
    let spot = map! {
        "MarketType" => "spot",
        "SpotOptions" => map! { "MaxPrice" => reference("SpotPrice"), "SpotInstanceType" => "one-time" },
    };
    let data = map! {
        "ImageId" => reference("Image"),
        "InstanceType" => instance,
        "KeyName" => reference("KeyPair"),
        "IamInstanceProfile" => map! { "Arn" => attribute("ServerProfile", "Arn") },
        "NetworkInterfaces" => list![map! { "DeviceIndex" => 0_u32, "NetworkInterfaceId" => reference("ServerInterface") }],
        "BlockDeviceMappings" => list![root_volume()],
        "MetadataOptions" => metadata_options(),
        "Placement" => choose("HasPlacementGroup", map! { "GroupName" => reference("PlacementGroup") }, no_value()),
        "InstanceMarketOptions" => choose("IsSpot", spot, no_value()),
        "TagSpecifications" => list![
            map! { "ResourceType" => "instance", "Tags" => tags("storage") },
            map! { "ResourceType" => "volume", "Tags" => list![
                map! { "Key" => "Name", "Value" => sub("${ClusterName}-storage-root") },
            ] },
        ],
        "UserData" => user_data,
    };
    resources.push((
        "ServerTemplate".to_string(),
        resource(
            "AWS::EC2::LaunchTemplate",
            map! { "LaunchTemplateData" => data },
        ),
    ));
    resources.push((SERVER_SIGNAL.to_string(), server_group()));
    resources.extend(server_alarms());
    if is_ebs {
        resources.extend(snapshots());
    }

    let (export, _) = machine.export();
    let mount = format!(
        "sudo mount -t nfs -o vers=3,proto=tcp,nolock,port={NFS_PORT},mountport={NFS_PORT},nconnect=8 \
         ${{ServerInterface.PrimaryPrivateIpAddress}}:/{export} /mnt"
    );
    let mut outputs = map! {
        "ServerAddress" => map! {
            "Description" => "Stays when the instance is replaced",
            "Value" => attribute("ServerInterface", "PrimaryPrivateIpAddress"),
        },
        "MountCommand" => map! { "Description" => "On a Linux client", "Value" => sub(&mount) },
        "VolumeKey" => map! {
            "Description" => "It stays when the stack is deleted, as the volumes do: KmsKey of a new stack",
            "Value" => key_arn(),
        },
        "ServerGroupName" => map! { "Description" => "Auto scaling group of one", "Value" => reference(SERVER_SIGNAL) },
    };
    if is_ebs {
        outputs = outputs.with(
            "DataVolumes",
            map! {
                "Description" => "They stay when the stack is deleted: ExistingVolumes of a new stack of this name",
                "Value" => volume_ids,
            },
        );
    }
    let mut description =
        String::from("Cairn, a single NFS server in an auto scaling group of one.");
    if !is_ebs {
        description.push(' ');
        description.push_str(INSTANCE_STORE_NOTICE);
    }
    Ok(map! { "AWSTemplateFormatVersion" => "2010-09-09", "Description" => description, "Parameters" => parameters }
        .with("Rules", rules())
        .with_some("Mappings", mappings)
        .with("Conditions", conditions)
        .with("Resources", resources)
        .with("Outputs", outputs))
}

/// The published storage types, and the planned one before them if it is none of these.
fn storage_types(machine: &Machine) -> (Node, &'static str) {
    let mut types = Vec::new();
    let own = machine.storage_type();
    if let (
        None,
        Disks::Ebs {
            volume_type,
            size_gib,
            ..
        },
    ) = (own, &machine.disks)
    {
        types.push((
            PLANNED.to_string(),
            storage_type_entry(&machine.instance, volume_type, *size_gib),
        ));
    }
    for each in STORAGE_TYPES {
        let entry = storage_type_entry(each.instance, "st1", each.volume_gib(machine.protection));
        types.push((each.name.to_string(), entry));
    }
    let default = match own {
        Some(own) => own.name,
        None if types.len() > STORAGE_TYPES.len() => PLANNED,
        None => STORAGE_TYPE_DEFAULT,
    };
    (types.into(), default)
}

fn storage_type_entry(instance: &str, volume_type: &str, size_gib: u32) -> Node {
    map! { "Instance" => instance, "VolumeType" => volume_type, "VolumeGib" => size_gib }
}

/// A data volume outlives its instance and its stack.
fn data_volume(machine: &Machine) -> Node {
    let mut properties = map! {
        "AvailabilityZone" => reference("AvailabilityZone"),
        "VolumeType" => storage_type("VolumeType"),
        "Size" => storage_type("VolumeGib"),
        "Encrypted" => true,
        "KmsKeyId" => key_arn(),
        "Tags" => tags("storage"),
    };
    if let (Disks::Ebs { iops, mib_s, .. }, None) = (&machine.disks, machine.storage_type()) {
        for (key, value) in [("Iops", iops), ("Throughput", mib_s)] {
            if let Some(value) = value {
                properties =
                    properties.with(key, choose("IsPlanned", Node::from(*value), no_value()));
            }
        }
    }
    map! {
        "Type" => "AWS::EC2::Volume",
        "Condition" => "HasNewVolumes",
        "DeletionPolicy" => "Retain",
        "UpdateReplacePolicy" => "Retain",
        "Properties" => properties,
    }
}

/// A name that is known before the group: the role and the boot script need it.
fn group_name() -> Node {
    sub("${AWS::StackName}-server")
}

fn server_group() -> Node {
    map! {
        "Type" => "AWS::AutoScaling::AutoScalingGroup",
        "CreationPolicy" => map! { "ResourceSignal" => map! { "Count" => 1_u32, "Timeout" => BOOT_TIME } },
        "UpdatePolicy" => map! {
            // The old instance goes first: the address and the volumes are at one instance at a time.
            "AutoScalingRollingUpdate" => map! {
                "MinInstancesInService" => 0_u32,
                "MaxBatchSize" => 1_u32,
                "PauseTime" => BOOT_TIME,
                "WaitOnResourceSignals" => true,
                // They would replace an instance that this update has just started, or stop it again.
                "SuspendProcesses" => list!["HealthCheck", "ReplaceUnhealthy", "AZRebalance", "AlarmNotification", "ScheduledActions"],
            },
        },
        "Properties" => map! {
            "AutoScalingGroupName" => group_name(),
            // An interface that is there already decides the subnet.
            "AvailabilityZones" => list![reference("AvailabilityZone")],
            "MinSize" => "1",
            "MaxSize" => "1",
            "DesiredCapacity" => "1",
            // The server's own health comes from the instance, which reports itself as unhealthy.
            "HealthCheckType" => "EC2",
            "HealthCheckGracePeriod" => HEALTH_GRACE_SECONDS,
            // In service only after a good boot: another one is abandoned, and the instance replaced.
            "LifecycleHookSpecificationList" => list![map! {
                "LifecycleHookName" => BOOT_HOOK,
                "LifecycleTransition" => "autoscaling:EC2_INSTANCE_LAUNCHING",
                "DefaultResult" => "ABANDON",
                "HeartbeatTimeout" => BOOT_SECONDS,
            }],
            "LaunchTemplate" => map! {
                "LaunchTemplateId" => reference("ServerTemplate"),
                "Version" => attribute("ServerTemplate", "LatestVersionNumber"),
            },
            "Tags" => list![map! {
                "Key" => "Name",
                "Value" => sub("${ClusterName}-storage"),
                "PropagateAtLaunch" => true,
            }],
        },
    }
}
