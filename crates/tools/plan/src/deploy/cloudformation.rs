//! CloudFormation.
//!
//! Owns: its resources and parameters. Must not know: YAML and JSON, what the boot scripts do.

use super::spec::{
    CLUSTER_NOTICE, Disks, ETCD_COUNT, INSTANCE_STORE_NOTICE, Machine, PARTITION_COUNT_MAX,
};
use super::spec::{PLANNED, SPREAD_COUNT_MAX, STORAGE_TYPE_DEFAULT, STORAGE_TYPES, Spec};
use super::tree::{Node, list, map};
use super::user_data::{self, DiskMode, SERVER_SIGNAL, Slot};
use super::{DeployError, DeployOptions, NFS_PORT, check_user_data, ports, values};

const IMAGE_PARAMETER: &str = "/aws/service/debian/release/12/latest/amd64";
const ROOT_DEVICE: &str = "/dev/xvda";
const ROOT_GIB: u32 = 100;
/// How long the first boot may take: it may build Cairn.
const BOOT_TIME: &str = "PT45M";
/// Whose volumes, interfaces and instances belong together; the roles' permissions go by it.
const TAG: &str = "cairn:server";

pub(super) fn template(spec: &Spec, options: &DeployOptions) -> Result<Node, DeployError> {
    match spec {
        Spec::Server(machine) => server(machine, options),
        Spec::Cluster { nodes, node } => cluster(*nodes, node, options),
    }
}

fn reference(name: &str) -> Node {
    map! { "Ref" => name }
}

fn attribute(name: &str, attribute: &str) -> Node {
    map! { "Fn::GetAtt" => list![name, attribute] }
}

fn sub(text: &str) -> Node {
    map! { "Fn::Sub" => text }
}

fn choose(condition: &str, yes: Node, no: Node) -> Node {
    map! { "Fn::If" => list![condition, yes, no] }
}

fn no_value() -> Node {
    reference("AWS::NoValue")
}

fn equals(left: Node, right: Node) -> Node {
    map! { "Fn::Equals" => list![left, right] }
}

fn not(condition: Node) -> Node {
    map! { "Fn::Not" => list![condition] }
}

fn join(separator: &str, parts: Node) -> Node {
    map! { "Fn::Join" => list![separator, parts] }
}

fn storage_type(key: &str) -> Node {
    map! { "Fn::FindInMap" => list!["StorageTypes", reference("StorageType"), key] }
}

fn resource(kind: &str, properties: Node) -> Node {
    map! { "Type" => kind, "Properties" => properties }
}

fn tags(name_suffix: &str) -> Node {
    list![
        map! { "Key" => "Name", "Value" => sub(&format!("${{ClusterName}}-{name_suffix}")) },
        map! { "Key" => TAG, "Value" => reference("ClusterName") },
    ]
}

fn parameter(kind: &str, description: &str) -> Node {
    map! { "Type" => kind, "Description" => description }
}

fn pattern(description: &str, allowed: &str) -> Node {
    parameter("String", description).with("AllowedPattern", allowed)
}

/// What both templates ask for, in the order in which they ask.
fn parameters_first(zone_of: &str) -> Vec<(String, Node)> {
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
                "Addresses of the clients, which the volume is exported to",
                values::CIDR_PATTERN,
            ),
        ),
        named(
            "ClusterName",
            pattern("Name that all resources get", values::NAME_PATTERN),
        ),
        named(
            "LoginAddress",
            pattern(
                "Address of the login node (such as 10.0.0.7/32): its root is root of the volume, and it may connect with SSH",
                values::CIDR_PATTERN,
            ),
        ),
    ]
}

fn parameters_last() -> Vec<(String, Node)> {
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
                "Archive of Cairn, https://... or s3://BUCKET/KEY; empty: build the source",
                values::URL_PATTERN,
            )
            .with("Default", ""),
        ),
        named(
            "PackageSha256",
            pattern("SHA-256 of the archive", values::SHA256_PATTERN).with("Default", ""),
        ),
        named(
            "SourceUrl",
            pattern(
                "Repository of Cairn, built at first boot where there is no archive",
                values::GIT_URL_PATTERN,
            )
            .with("Default", ""),
        ),
        named(
            "SourceRef",
            pattern("Branch or tag of the repository", values::GIT_REF_PATTERN)
                .with("Default", "main"),
        ),
        named(
            "Image",
            parameter(
                "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
                "Parameter that has the current image: Debian 12 or newer, for x86-64",
            )
            .with("Default", IMAGE_PARAMETER),
        ),
    ]
}

fn rules() -> Node {
    let empty = |name: &str| equals(reference(name), "".into());
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
        "CairnFromSomewhere" => assertion(
            not(map! { "Fn::And" => list![empty("PackageUrl"), empty("SourceUrl")] }),
            "PackageUrl or SourceUrl says where Cairn comes from",
        ),
        "PackageIsChecked" => assertion(
            map! { "Fn::Or" => list![empty("PackageUrl"), not(empty("PackageSha256"))] },
            "PackageUrl needs PackageSha256",
        ),
    }
}

fn package_is_in_s3() -> Node {
    let scheme = map! { "Fn::Select" => list!["0", map! { "Fn::Split" => list![":", reference("PackageUrl")] }] };
    equals(scheme, "s3".into())
}

/// Rules that let clients in, and nobody else.
fn ingress(options: &DeployOptions) -> Vec<Node> {
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

fn allow(actions: Node, resources: Node) -> Node {
    map! { "Effect" => "Allow", "Action" => actions, "Resource" => resources }
}

fn of_this_name() -> Node {
    map! { "StringEquals" => map! { (format!("ec2:ResourceTag/{TAG}")) => reference("ClusterName") } }
}

/// The role of instances: its statements and nothing else, and the archive of Cairn if that is in S3.
fn role(resources: &mut Vec<(String, Node)>, prefix: &str, statements: Vec<Node>) {
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

fn signal_statement() -> Node {
    allow(
        "cloudformation:SignalResource".into(),
        reference("AWS::StackId"),
    )
}

fn root_volume() -> Node {
    map! {
        "DeviceName" => ROOT_DEVICE,
        "Ebs" => map! {
            "VolumeType" => "gp3",
            "VolumeSize" => ROOT_GIB,
            "Encrypted" => true,
            "DeleteOnTermination" => true,
        },
    }
}

/// User data with slots, for `UserData`.
fn user_data_node(text: &str, value: impl Fn(Slot) -> Node) -> Result<Node, DeployError> {
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
fn common_value(slot: Slot) -> Node {
    match slot {
        Slot::Name => reference("ClusterName"),
        Slot::User => reference("AdministratorUser"),
        Slot::Region => reference("AWS::Region"),
        Slot::Stack => reference("AWS::StackName"),
        Slot::Clients => reference("ClientNetwork"),
        Slot::Login => reference("LoginAddress"),
        Slot::PackageUrl => reference("PackageUrl"),
        Slot::PackageSha256 => reference("PackageSha256"),
        Slot::SourceUrl => reference("SourceUrl"),
        Slot::SourceRef => reference("SourceRef"),
        Slot::Volumes | Slot::Nodes | Slot::Etcd => "".into(),
    }
}

fn metadata_options() -> Node {
    map! { "HttpTokens" => "required", "HttpEndpoint" => "enabled", "HttpPutResponseHopLimit" => 1_u32 }
}

fn server(machine: &Machine, options: &DeployOptions) -> Result<Node, DeployError> {
    let is_ebs = matches!(machine.disks, Disks::Ebs { .. });
    let mut parameters = parameters_first("Subnet of the server");
    let mut conditions = map! {
        "HasPlacementGroup" => not(equals(reference("PlacementGroup"), "None".into())),
        "IsSpot" => not(equals(reference("SpotPrice"), "None".into())),
        "PackageIsInS3" => package_is_in_s3(),
    };
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
    }

    let mut resources = vec![
        (
            "ServerSecurityGroup".to_string(),
            resource(
                "AWS::EC2::SecurityGroup",
                map! {
                    "GroupDescription" => "Clients of a Cairn server",
                    "VpcId" => reference("Vpc"),
                    "SecurityGroupIngress" => ingress(options),
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
    }
    statements.push(signal_statement());
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
    let user_data = user_data_node(&user_data::server(machine, mode), |slot| match slot {
        Slot::Volumes => volume_ids.clone(),
        _ => common_value(slot),
    })?;
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
            },
        },
        "Properties" => map! {
            // An interface that is there already decides the subnet.
            "AvailabilityZones" => list![reference("AvailabilityZone")],
            "MinSize" => "1",
            "MaxSize" => "1",
            "DesiredCapacity" => "1",
            "HealthCheckType" => "EC2",
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

fn cluster(nodes: u32, node: &Machine, options: &DeployOptions) -> Result<Node, DeployError> {
    let mut parameters = parameters_first("Subnet of the clients' side of the nodes");
    parameters.push((
        "InternalNetwork".to_string(),
        pattern(
            "Addresses of a new subnet of the VPC for the nodes alone, such as 10.0.250.0/24",
            values::CIDR_PATTERN,
        ),
    ));
    parameters.extend(parameters_last());
    let mut resources = internal_network();
    resources.push((
        "ExternalSecurityGroup".to_string(),
        resource(
            "AWS::EC2::SecurityGroup",
            map! {
                "GroupDescription" => "Clients of the Cairn nodes",
                "VpcId" => reference("Vpc"),
                "SecurityGroupIngress" => ingress(options),
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
            signal_statement(),
        ],
    );
    let address =
        |number: u32| attribute(&format!("Node{number}Internal"), "PrimaryPrivateIpAddress");
    let addresses = |count: u32| join(",", (1..=count).map(address).collect::<Vec<_>>().into());
    let mode = match node.disks {
        Disks::Ebs { .. } => DiskMode::OwnVolumes,
        Disks::InstanceStore { .. } => DiskMode::InstanceStore,
    };
    let user_data = user_data_node(&user_data::node(node, mode), |slot| match slot {
        Slot::Nodes => addresses(nodes),
        Slot::Etcd => addresses(ETCD_COUNT),
        _ => common_value(slot),
    })?;
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
            "Description" => "One for each node; they move when a node fails",
            "Value" => join(",", floating.into()),
        },
        "EtcdAddresses" => map! { "Description" => "Internal", "Value" => addresses(ETCD_COUNT) },
    };
    Ok(map! {
        "AWSTemplateFormatVersion" => "2010-09-09",
        "Description" => format!("Cairn, a cluster of {nodes} nodes. PLANNED: {CLUSTER_NOTICE}"),
        "Parameters" => parameters,
        "Rules" => rules(),
        "Conditions" => map! { "PackageIsInS3" => package_is_in_s3() },
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
                "DeleteOnTermination" => false,
            };
            for (key, value) in [("Iops", iops), ("Throughput", mib_s)] {
                ebs = ebs.with_some(key, value.map(Node::from));
            }
            map! { "DeviceName" => name, "Ebs" => ebs }
        })
        .collect()
}

/// Names that EC2 suggests for data volumes: /dev/sdf to /dev/sdp, then /dev/xvdba and so on.
pub(super) fn device_names(count: u32) -> impl Iterator<Item = String> {
    let few = ('f'..='p').map(|letter| format!("/dev/sd{letter}"));
    let more = ('a'..='z').map(|letter| format!("/dev/xvdb{letter}"));
    few.chain(more).take(count as usize)
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
        (name, instance),
    ]);
}
