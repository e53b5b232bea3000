//! Terraform and OpenTofu.
//!
//! Owns: its resources and variables. Must not know: how HCL is written, what the boot scripts do.

use super::hcl::{Body, Value, escape_template, expression};
use super::spec::{
    CLUSTER_NOTICE, Disks, ETCD_COUNT, INSTANCE_STORE_NOTICE, Machine, PARTITION_COUNT_MAX,
};
use super::spec::{PLANNED, SPREAD_COUNT_MAX, STORAGE_TYPES, Spec};
use super::user_data::{self, DiskMode, Slot};
use super::{DeployError, DeployOptions, NFS_PORT, check_user_data, ports, values};

const IMAGE_PARAMETER: &str = "/aws/service/debian/release/12/latest/amd64";
const ROOT_GIB: u32 = 100;
/// The oldest version of the provider that has all of what is used here: `insecure_value` of a parameter is of 5.8.
const PROVIDER_VERSION: &str = ">= 5.8";
const TAG: &str = "cairn:server";

pub(super) fn template(
    spec: &Spec,
    options: &DeployOptions,
    region: &str,
) -> Result<String, DeployError> {
    let mut file = Body::default();
    match spec {
        Spec::Server(machine) => server(&mut file, machine, options, region)?,
        Spec::Cluster { nodes, node } => cluster(&mut file, *nodes, node, options, region)?,
    }
    Ok(file.text())
}

/// A quoted string with templates in it, of which nothing has to be escaped.
fn interpolated(text: &str) -> Value {
    expression(format!("\"{text}\""))
}

fn tags(suffix: &str) -> Value {
    Value::Object(vec![
        (
            "Name".to_string(),
            interpolated(&format!("${{var.cluster_name}}-{suffix}")),
        ),
        (TAG.to_string(), expression("var.cluster_name")),
    ])
}

/// What a variable may be.
enum Kind {
    Text,
    Pattern(&'static str),
}

struct Variable {
    name: &'static str,
    words: &'static str,
    kind: Kind,
    default: Option<&'static str>,
}

fn variable(name: &'static str, words: &'static str) -> Variable {
    Variable {
        name,
        words,
        kind: Kind::Text,
        default: None,
    }
}

impl Variable {
    fn pattern(mut self, pattern: &'static str) -> Self {
        self.kind = Kind::Pattern(pattern);
        self
    }

    fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    fn write(&self, file: &mut Body) {
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

fn head(file: &mut Body, region: &str, notices: &[&str]) {
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

fn variables_first(file: &mut Body) {
    for each in [
        variable("subnet_id", "Subnet of the storage, on the side of the clients"),
        variable("client_security_group_id", "Group of the clients: only its members reach the storage"),
        variable("client_network", "Addresses of the clients, which the volume is exported to").pattern(values::CIDR_PATTERN),
        variable("cluster_name", "Name that all resources get").pattern(values::NAME_PATTERN),
        variable("login_address", "Address of the login node (such as 10.0.0.7/32): its root is root of the volume, and it may connect with SSH")
            .pattern(values::CIDR_PATTERN),
        variable("administrator_user", "User with sudo, who gets the key pair")
            .pattern(values::USER_PATTERN)
            .default("cairn-admin"),
        variable("key_pair", "Key pair of the administrator"),
        variable("package_url", "Archive of Cairn, https://... or s3://BUCKET/KEY; empty: build the source")
            .pattern(values::URL_PATTERN)
            .default(""),
        variable("package_sha256", "SHA-256 of the archive").pattern(values::SHA256_PATTERN).default(""),
        variable("source_url", "Repository of Cairn, built at first boot where there is no archive")
            .pattern(values::GIT_URL_PATTERN)
            .default(""),
        variable("source_ref", "Branch or tag of the repository").pattern(values::GIT_REF_PATTERN).default("main"),
        variable("image_parameter", "SSM parameter that has the current image: Debian 12 or newer, for x86-64")
            .default(IMAGE_PARAMETER),
    ] {
        each.write(file);
    }
}

fn lookups(file: &mut Body) {
    file.block(&["data", "aws_caller_identity", "here"], |_| {})
        .blank()
        .block(&["data", "aws_partition", "here"], |_| {})
        .blank()
        .block(&["data", "aws_subnet", "clients"], |body| {
            body.attribute("id", expression("var.subnet_id"));
        })
        .blank()
        .block(&["data", "aws_ssm_parameter", "image"], |body| {
            body.attribute("name", expression("var.image_parameter"));
        })
        .blank();
}

fn security_group(file: &mut Body, name: &str, words: &str, options: &DeployOptions) {
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
        .block(&["egress"], |body| {
            body.attribute("description", "Packages and AWS")
                .attribute("protocol", "-1")
                .attribute("from_port", 0_u32)
                .attribute("to_port", 0_u32)
                .attribute("cidr_blocks", Value::List(vec!["0.0.0.0/0".into()]));
        });
    })
    .blank();
}

/// A statement of a policy document.
struct Statement {
    actions: Vec<&'static str>,
    resources: Vec<Value>,
    /// Only what has the tag of this name.
    is_of_name: bool,
}

fn arn(what: &str) -> Value {
    interpolated(&format!(
        "arn:${{data.aws_partition.here.partition}}:ec2:${{var.region}}:${{data.aws_caller_identity.here.account_id}}:{what}/*"
    ))
}

fn role(file: &mut Body, name: &str, statements: &[Statement]) {
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
                if statement.is_of_name {
                    body.blank().block(&["condition"], |body| {
                        body.attribute("test", "StringEquals")
                            .attribute("variable", format!("ec2:ResourceTag/{TAG}"))
                            .attribute("values", Value::List(vec![expression("var.cluster_name")]));
                    });
                }
            });
        }
        // Where the archive of Cairn is in S3, and only that object.
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

fn user_data_text(text: &str, volumes: &str) -> Result<Value, DeployError> {
    check_user_data(&user_data::fill(text, |_| "x".repeat(64), str::to_string))?;
    let value = |slot: Slot| {
        let named = match slot {
            Slot::Name => "var.cluster_name",
            Slot::User => "var.administrator_user",
            Slot::Region => "var.region",
            // There is no stack that waits for a signal.
            Slot::Stack => return String::new(),
            Slot::Volumes => volumes,
            Slot::Clients => "var.client_network",
            Slot::Login => "var.login_address",
            Slot::PackageUrl => "var.package_url",
            Slot::PackageSha256 => "var.package_sha256",
            Slot::SourceUrl => "var.source_url",
            Slot::SourceRef => "var.source_ref",
            Slot::Nodes => "join(\",\", local.internal_addresses)",
            Slot::Etcd => {
                return format!(
                    "${{join(\",\", slice(local.internal_addresses, 0, {ETCD_COUNT}))}}"
                );
            }
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

fn root_volume(body: &mut Body) {
    body.block(&["block_device_mappings"], |body| {
        body.attribute("device_name", "/dev/xvda")
            .blank()
            .block(&["ebs"], |body| {
                body.attribute("volume_type", "gp3")
                    .attribute("volume_size", ROOT_GIB)
                    .attribute("encrypted", true)
                    .attribute("delete_on_termination", true);
            });
    })
    .blank();
}

fn metadata_options(body: &mut Body, has_tags: bool) {
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

/// Settled before anything is made: the boot script would only fail later.
fn needs_a_source(body: &mut Body) {
    body.blank().block(&["lifecycle"], |body| {
        for (condition, words) in [
            (
                "var.package_url != \"\" || var.source_url != \"\"",
                "package_url or source_url says where Cairn comes from.",
            ),
            (
                "var.package_url == \"\" || var.package_sha256 != \"\"",
                "package_url needs package_sha256.",
            ),
        ] {
            body.block(&["precondition"], |body| {
                body.attribute("condition", expression(condition))
                    .attribute("error_message", words);
            });
        }
    });
}

fn output(file: &mut Body, name: &str, words: &str, value: Value) {
    file.blank().block(&["output", name], |body| {
        body.attribute("description", words)
            .attribute("value", value);
    });
}

fn server(
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
    }
    lookups(file);
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
            is_of_name: false,
        });
        statements.push(Statement {
            actions: vec!["ec2:AttachVolume"],
            resources: vec![arn("volume"), arn("instance")],
            is_of_name: true,
        });
    }
    role(file, "storage", &statements);
    let mode = if is_ebs {
        DiskMode::Volumes
    } else {
        DiskMode::InstanceStore
    };
    let volumes = if is_ebs {
        "join(\",\", local.volume_ids)"
    } else {
        ""
    };
    let user_data = user_data_text(&user_data::server(machine, mode), volumes)?;
    file.block(&["locals"], |body| {
        body.attribute("user_data", user_data);
    })
    .blank();
    server_template(file, machine);
    server_group(file);
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
            .attribute(
                "image_id",
                expression("data.aws_ssm_parameter.image.insecure_value"),
            )
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
        needs_a_source(body);
    })
    .blank();
}

fn server_group(file: &mut Body) {
    file.block(&["resource", "aws_autoscaling_group", "storage"], |body| {
        body.attribute("name_prefix", interpolated("${var.cluster_name}-storage-"))
            .comment("An interface that is there already decides the subnet.")
            .attribute(
                "availability_zones",
                Value::List(vec![expression("data.aws_subnet.clients.availability_zone")]),
            )
            .attribute("min_size", 1_u32)
            .attribute("max_size", 1_u32)
            .attribute("desired_capacity", 1_u32)
            .attribute("health_check_type", "EC2")
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

fn cluster(
    file: &mut Body,
    nodes: u32,
    node: &Machine,
    options: &DeployOptions,
    region: &str,
) -> Result<(), DeployError> {
    let planned = format!("PLANNED: {CLUSTER_NOTICE}");
    head(file, region, &[&planned]);
    variables_first(file);
    variable(
        "internal_network",
        "Addresses of a new subnet for the nodes alone, such as 10.0.250.0/24",
    )
    .pattern(values::CIDR_PATTERN)
    .write(file);
    lookups(file);
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
                is_of_name: false,
            },
            // Floating addresses move from one node's interface to another's.
            Statement {
                actions: vec![
                    "ec2:AssignPrivateIpAddresses",
                    "ec2:UnassignPrivateIpAddresses",
                ],
                resources: vec![arn("network-interface")],
                is_of_name: true,
            },
        ],
    );
    let mode = match node.disks {
        Disks::Ebs { .. } => DiskMode::OwnVolumes,
        Disks::InstanceStore { .. } => DiskMode::InstanceStore,
    };
    let user_data = user_data_text(&user_data::node(node, mode), "")?;
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
    output(
        file,
        "node_addresses",
        "Of the clients' side",
        expression("aws_network_interface.external[*].private_ip"),
    );
    output(
        file,
        "floating_addresses",
        "One for each node; they move when a node fails",
        expression(
            "[for each in aws_network_interface.external : one([for ip in each.private_ips : ip if ip != each.private_ip])]",
        ),
    );
    Ok(())
}

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
            .attribute(
                "image_id",
                expression("data.aws_ssm_parameter.image.insecure_value"),
            )
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
            for name in super::cloudformation::device_names(*count) {
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
        needs_a_source(body);
    })
    .blank();
}
