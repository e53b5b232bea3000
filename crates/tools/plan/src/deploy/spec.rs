//! What a template needs to know of a design.
//!
//! Owns: which designs have a template, the storage types of the published one. Must not know: formats.

use super::DeployError;
use crate::design::{CloudVolumes, Cluster, Design, NfsServer, ParallelFs, Product};
use crate::design::{Protection, SanSystem, Shape, Storage, Volume};
use crate::units::Bytes;

/// A pool has no more disks than this (docs/reference/formats/pool.md).
pub const DISK_COUNT_MAX: u32 = 64;
/// Nodes of a cluster that a template is made for.
pub const NODE_COUNT_MAX: u32 = 24;
/// A spread placement group takes no more running instances in one availability zone (EC2 user guide,
/// placement groups).
pub const SPREAD_COUNT_MAX: u32 = 7;
/// Partitions of a partition placement group in one availability zone (the same page).
pub const PARTITION_COUNT_MAX: u32 = 7;
/// With fewer, the loss of one is the loss of the cluster.
pub const NODE_COUNT_MIN: u32 = 3;
/// Size of an st1 volume is between these (EBS user guide, volume types).
const ST1_SIZE_GIB_MIN: u32 = 125;
const VOLUME_SIZE_GIB_MAX: u32 = 16 * 1024;

/// A size that one can choose when the published template is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageType {
    /// As published: `Medium-5TB`.
    pub name: &'static str,
    /// Usable, in the unit of EBS, which the paper writes as GB.
    pub usable_gib: u32,
    /// Today's instance with as many processors as the published one (the largest: 32 for 40).
    pub instance: &'static str,
}

/// Source: NFS Storage Solutions on AWS with Alces Flight Compute, 2016.2; its m4 instances became m6i.
pub const STORAGE_TYPES: [StorageType; 4] = [
    StorageType {
        name: "Small-2TB",
        usable_gib: 2000,
        instance: "m6i.xlarge",
    },
    StorageType {
        name: STORAGE_TYPE_DEFAULT,
        usable_gib: 5000,
        instance: "m6i.2xlarge",
    },
    StorageType {
        name: "Large-10TB",
        usable_gib: 10_000,
        instance: "m6i.4xlarge",
    },
    StorageType {
        name: "XLarge-15TB",
        usable_gib: 15_000,
        instance: "m6i.8xlarge",
    },
];
pub const STORAGE_TYPE_DEFAULT: &str = "Medium-5TB";
/// The storage type that stands for the design that was planned.
pub(super) const PLANNED: &str = "Planned";
const PUBLISHED_VOLUME_TYPE: &str = "st1";
const PUBLISHED_VOLUME_COUNT: u32 = 6;

impl StorageType {
    /// Of each of the volumes, so that what the name says is usable.
    pub(super) fn volume_gib(&self, protection: Protection) -> u32 {
        self.usable_gib
            .div_ceil(protection.data.max(1))
            .max(ST1_SIZE_GIB_MIN)
    }
}

/// The published template's own design, made current: six st1 volumes that survive the loss of any two.
pub fn published_server(region: &str) -> Design {
    let protection = default_protection(PUBLISHED_VOLUME_COUNT);
    let size = STORAGE_TYPES
        .iter()
        .find(|each| each.name == STORAGE_TYPE_DEFAULT);
    let (instance, gib) = size.map_or(("", 0), |it| (it.instance, it.volume_gib(protection)));
    Design {
        product: Product::Cairn,
        region: region.to_string(),
        shape: Shape::NfsServer(NfsServer {
            instance: instance.to_string(),
            storage: Storage::Ebs {
                volumes: PUBLISHED_VOLUME_COUNT,
                volume: Volume {
                    volume_type: PUBLISHED_VOLUME_TYPE.to_string(),
                    size_bytes: Bytes::from_gib(f64::from(gib)),
                    iops: None,
                    mib_s: None,
                },
            },
            protection,
        }),
    }
}

/// What Cairn does with so many disks when nobody says otherwise.
pub(super) fn default_protection(disks: u32) -> Protection {
    match disks {
        0..=3 => Protection {
            data: 1,
            parity: disks.saturating_sub(1),
        },
        _ => Protection {
            data: disks - 2,
            parity: 2,
        },
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Spec {
    Server(Machine),
    Cluster { nodes: u32, node: Machine },
}

/// A server, or each node of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub instance: String,
    pub disks: Disks,
    pub protection: Protection,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Disks {
    InstanceStore {
        count: u32,
    },
    Ebs {
        count: u32,
        volume_type: String,
        size_gib: u32,
        iops: Option<u32>,
        mib_s: Option<u32>,
    },
}

impl Disks {
    pub fn count(&self) -> u32 {
        match self {
            Self::InstanceStore { count } | Self::Ebs { count, .. } => *count,
        }
    }
}

impl Machine {
    /// The volume that clients mount, and its protection where that is not what Cairn does by itself.
    pub fn export(&self) -> (&'static str, String) {
        self.export_of(self.disks.count())
    }

    /// The volume that clients mount, and its protection, when the data is spread over `parts` nodes or disks.
    pub fn export_of(&self, parts: u32) -> (&'static str, String) {
        let by_itself = default_protection(parts);
        match self.protection {
            protection if protection == by_itself => ("main", String::new()),
            Protection { parity: 0, .. } => ("data", "none".to_string()),
            Protection { data: 1, parity } => ("data", format!("{}x", parity.saturating_add(1))),
            Protection { parity, .. } => ("data", format!("+{parity}n")),
        }
    }

    /// Whether one of the published storage types is this very machine.
    pub fn storage_type(&self) -> Option<&'static StorageType> {
        STORAGE_TYPES.iter().find(|each| {
            self.instance == each.instance
                && matches!(&self.disks, Disks::Ebs { volume_type, size_gib, iops: None, mib_s: None, .. }
                    if volume_type == PUBLISHED_VOLUME_TYPE && *size_gib == each.volume_gib(self.protection))
        })
    }
}

/// What the template is to be of, and what has to be said about it.
pub(super) fn spec(design: &Design) -> Result<(Spec, Vec<String>), DeployError> {
    if design.product == Product::Vendor {
        return Err(DeployError::VendorProduct {
            name: design.name(),
        });
    }
    let mut notices = Vec::new();
    let spec = match &design.shape {
        Shape::NfsServer(server) => Spec::Server(machine(server)?),
        Shape::CloudVolumes(CloudVolumes::Servers { servers, server }) => {
            if *servers > 1 {
                notices.push(format!(
                    "This is the template of one server: deploy it {servers} times, each time with another cluster name."
                ));
            }
            Spec::Server(machine(server)?)
        }
        Shape::Cluster(cluster) => cluster_spec(cluster)?,
        Shape::SanArray(array) => match &array.system {
            SanSystem::Server(server) => {
                if array.systems > 1 {
                    notices.push(format!(
                        "This is the template of one server: deploy it {} times, each time with another cluster name. The host \
                         stripes over them.",
                        array.systems
                    ));
                }
                notices.push(LUN_NOTICE.to_string());
                Spec::Server(machine(server)?)
            }
            SanSystem::Ontap { .. } => {
                return Err(DeployError::VendorProduct {
                    name: design.name(),
                });
            }
        },
        Shape::ParallelFs(ParallelFs::Servers { .. }) => {
            return Err(DeployError::NoTemplate {
                what: "a parallel file system".to_string(),
                needs: "files that are spread over servers".to_string(),
            });
        }
        Shape::ParallelFs(ParallelFs::Lustre { .. })
        | Shape::CloudVolumes(CloudVolumes::Service { .. })
        | Shape::Elastic(_) => {
            return Err(DeployError::VendorProduct {
                name: design.name(),
            });
        }
    };
    let machine = match &spec {
        Spec::Server(machine) | Spec::Cluster { node: machine, .. } => machine,
    };
    if matches!(machine.disks, Disks::InstanceStore { .. }) {
        notices.push(INSTANCE_STORE_NOTICE.to_string());
    }
    if machine.protection.parity == 0 {
        notices.push(
            "Cairn keeps one copy: nothing here survives the loss of a disk but what the disks themselves do."
                .to_string(),
        );
    }
    Ok((spec, notices))
}

/// Stands in the template, in its description and in what the command prints.
pub(super) const INSTANCE_STORE_NOTICE: &str = "The data is on disks of the host: it is LOST when the instance stops, is replaced or its host fails. A restart \
     of the system keeps it.";

const LUN_NOTICE: &str =
    "The server has no LUNs yet: `cairn lun create` makes them (docs/guide/iscsi.md).";

fn cluster_spec(cluster: &Cluster) -> Result<Spec, DeployError> {
    let nodes = cluster.nodes;
    if !(NODE_COUNT_MIN..=NODE_COUNT_MAX).contains(&nodes) {
        return Err(DeployError::OutOfRange {
            what: "nodes".to_string(),
            value: nodes,
            min: NODE_COUNT_MIN,
            max: NODE_COUNT_MAX,
        });
    }
    let node = NfsServer {
        instance: cluster.instance.clone(),
        storage: cluster.storage.clone(),
        protection: cluster.protection,
    };
    // Disks of one node are not limited by the widest code: data is spread over nodes.
    Ok(Spec::Cluster {
        nodes,
        node: machine_of(&node, VOLUMES_PER_NODE_MAX)?,
    })
}

/// EBS volumes that one instance takes beside its root and its interfaces: the lowest shared limit is 28
/// attachments (EC2 user guide, volume limits of Nitro instances).
const VOLUMES_PER_NODE_MAX: u32 = 24;

fn machine(server: &NfsServer) -> Result<Machine, DeployError> {
    machine_of(server, DISK_COUNT_MAX)
}

fn machine_of(server: &NfsServer, disk_count_max: u32) -> Result<Machine, DeployError> {
    super::values::check_instance(&server.instance)?;
    let count = server.storage.count();
    if !(1..=disk_count_max).contains(&count) {
        return Err(DeployError::OutOfRange {
            what: "data disks of a server".to_string(),
            value: count,
            min: 1,
            max: disk_count_max,
        });
    }
    let disks = match &server.storage {
        Storage::InstanceStore { .. } => Disks::InstanceStore { count },
        Storage::Ebs { volume, .. } => Disks::Ebs {
            count,
            volume_type: volume_type(volume)?,
            size_gib: size_gib(volume.size_bytes)?,
            iops: whole(volume.iops)?,
            mib_s: volume.mib_s,
        },
    };
    Ok(Machine {
        instance: server.instance.clone(),
        disks,
        protection: server.protection,
    })
}

fn volume_type(volume: &Volume) -> Result<String, DeployError> {
    let known = ["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"];
    known
        .contains(&volume.volume_type.as_str())
        .then(|| volume.volume_type.clone())
        .ok_or_else(|| DeployError::Value {
            what: "a volume type",
            value: volume.volume_type.clone(),
            expected: "gp2, gp3, io1, io2, sc1, st1 or standard",
        })
}

/// Whole GiB, rounded up: volumes have no smaller unit.
fn size_gib(size: Bytes) -> Result<u32, DeployError> {
    let gib = size.gib().ceil();
    if (1.0..=f64::from(VOLUME_SIZE_GIB_MAX)).contains(&gib) {
        // In range and whole: nothing is cut off.
        return Ok(gib as u32);
    }
    Err(DeployError::OutOfRange {
        what: "GiB of a volume".to_string(),
        value: gib.clamp(0.0, f64::from(u32::MAX)) as u32,
        min: 1,
        max: VOLUME_SIZE_GIB_MAX,
    })
}

fn whole(value: Option<u64>) -> Result<Option<u32>, DeployError> {
    value
        .map(u32::try_from)
        .transpose()
        .map_err(|_| DeployError::Value {
            what: "IOPS of a volume",
            value: value.unwrap_or_default().to_string(),
            expected: "a number that a volume can have",
        })
}

/// Names that EC2 suggests for data volumes: /dev/sdf to /dev/sdp, then /dev/xvdba to /dev/xvddz.
pub(super) fn device_names(count: u32) -> impl Iterator<Item = String> {
    let few = ('f'..='p').map(|letter| format!("/dev/sd{letter}"));
    let more = ('b'..='d')
        .flat_map(|first| ('a'..='z').map(move |second| format!("/dev/xvd{first}{second}")));
    few.chain(more).take(count as usize)
}
