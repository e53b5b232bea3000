//! A design: everything that is needed to price, predict and deploy one way of storing data.
//!
//! Owns: the shapes and what describes them. Must not know: what they deliver or cost.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Rate};

/// One design in one region. Plain data: it can be saved, compared and changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Who makes what serves the data.
    pub product: Product,
    /// Region of the prices and of the template, such as `us-east-1`.
    pub region: String,
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Product {
    /// What the design's paper describes: the vendor's product or service, or plain Linux.
    Vendor,
    Cairn,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "kebab-case")]
pub enum Shape {
    /// Nodes that store one name space together, protected N+M across nodes.
    Cluster(Cluster),
    /// One server with its own disks or volumes.
    NfsServer(NfsServer),
    /// Block systems, striped by the host.
    SanArray(SanArray),
    /// A file system whose throughput grows with its capacity.
    ParallelFs(ParallelFs),
    /// Volumes whose throughput follows their size and service level.
    CloudVolumes(CloudVolumes),
    /// Managed storage that is as large as what is in it.
    Elastic(Elastic),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    Cluster,
    NfsServer,
    SanArray,
    ParallelFs,
    CloudVolumes,
    Elastic,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    pub nodes: u32,
    /// Instance type of every node.
    pub instance: String,
    /// Storage of every node: the same on all.
    pub storage: Storage,
    /// Across nodes.
    pub protection: Protection,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NfsServer {
    pub instance: String,
    pub storage: Storage,
    /// Across the disks or volumes of this one server; `0` parity: they are joined without redundancy.
    pub protection: Protection,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanArray {
    /// How many block systems the host stripes over.
    pub systems: u32,
    pub system: SanSystem,
    /// Instance type of the host that stripes over them: bounds what it reads, and is priced. `None`: the
    /// host is not part of the plan, and counts as the fastest that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SanSystem {
    /// A managed file system that serves LUNs.
    Ontap {
        ssd_bytes: Bytes,
        iops: u64,
        /// Throughput capacity.
        mb_s: Rate,
    },
    /// Cairn on a server of one's own.
    Server(NfsServer),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ParallelFs {
    /// The managed service.
    Lustre {
        /// `persistent-12` or `persistent-40`.
        level: String,
        capacity_bytes: Bytes,
        ssd_read_cache: bool,
    },
    /// Cairn on servers of one's own, files spread over them.
    Servers { servers: u32, server: NfsServer },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CloudVolumes {
    /// The managed service.
    Service {
        /// `standard`, `premium` or `extreme`.
        level: String,
        volumes: u32,
        quota_bytes: Bytes,
    },
    /// Cairn on servers of one's own; each volume lives on one of them.
    Servers { servers: u32, server: NfsServer },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Elastic {
    /// Amazon EFS: files.
    Efs {
        /// `regional` or `one-zone`.
        level: String,
        capacity_bytes: Bytes,
        /// Provisioned throughput; `None`: what comes with the capacity.
        #[serde(default)]
        mib_s: Option<u32>,
    },
    /// Amazon S3: objects.
    S3 { capacity_bytes: Bytes },
}

impl Elastic {
    pub fn capacity(&self) -> Bytes {
        match self {
            Self::Efs { capacity_bytes, .. } | Self::S3 { capacity_bytes } => *capacity_bytes,
        }
    }

    pub fn capacity_mut(&mut self) -> &mut Bytes {
        match self {
            Self::Efs { capacity_bytes, .. } | Self::S3 { capacity_bytes } => capacity_bytes,
        }
    }
}

/// Storage of one server or node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "storage", rename_all = "kebab-case")]
pub enum Storage {
    /// Disks of the host: fast, and gone when the instance stops.
    InstanceStore {
        disks: u32,
        disk_bytes: Bytes,
    },
    Ebs {
        volumes: u32,
        volume: Volume,
    },
}

/// One EBS volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// `gp3`, `st1`, `io1` and so on.
    pub volume_type: String,
    pub size_bytes: Bytes,
    /// Provisioned; `None`: what the type gives by itself.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Provisioned; `None`: what the type gives by itself.
    #[serde(default)]
    pub mib_s: Option<u32>,
}

/// N+M: `data` units and `parity` units to a stripe; any `parity` of them may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    pub data: u32,
    pub parity: u32,
}

impl Protection {
    /// Units of a stripe. What would be more than a number holds is the most that it does: no design has as many.
    pub fn units(self) -> u32 {
        self.data.saturating_add(self.parity)
    }

    /// Share of the raw capacity that holds data.
    pub fn efficiency(self) -> f64 {
        f64::from(self.data) / f64::from(self.units().max(1))
    }
}

impl std::fmt::Display for Protection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.parity {
            0 => write!(out, "none"),
            parity => write!(out, "{}+{parity}", self.data),
        }
    }
}

impl Shape {
    pub fn family(&self) -> Family {
        match self {
            Self::Cluster(_) => Family::Cluster,
            Self::NfsServer(_) => Family::NfsServer,
            Self::SanArray(_) => Family::SanArray,
            Self::ParallelFs(_) => Family::ParallelFs,
            Self::CloudVolumes(_) => Family::CloudVolumes,
            Self::Elastic(_) => Family::Elastic,
        }
    }
}

impl Shape {
    /// Instance type and storage of each server or node; `None`: a managed service has its own.
    pub fn machine(&self) -> Option<(&str, &Storage)> {
        let server = match self {
            Self::Cluster(it) => return Some((&it.instance, &it.storage)),
            Self::NfsServer(server) => server,
            Self::SanArray(it) => match &it.system {
                SanSystem::Server(server) => server,
                SanSystem::Ontap { .. } => return None,
            },
            Self::ParallelFs(ParallelFs::Servers { server, .. })
            | Self::CloudVolumes(CloudVolumes::Servers { server, .. }) => server,
            Self::ParallelFs(ParallelFs::Lustre { .. })
            | Self::CloudVolumes(CloudVolumes::Service { .. })
            | Self::Elastic(_) => return None,
        };
        Some((&server.instance, &server.storage))
    }
}

impl Family {
    pub const ALL: [Self; 6] = [
        Self::Cluster,
        Self::NfsServer,
        Self::SanArray,
        Self::ParallelFs,
        Self::CloudVolumes,
        Self::Elastic,
    ];

    /// The name in data files, flags and JSON.
    pub fn id(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::NfsServer => "nfs-server",
            Self::SanArray => "san-array",
            Self::ParallelFs => "parallel-fs",
            Self::CloudVolumes => "cloud-volumes",
            Self::Elastic => "elastic",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Cluster => "scale-out cluster",
            Self::NfsServer => "single NFS server",
            Self::SanArray => "SAN array",
            Self::ParallelFs => "parallel file system",
            Self::CloudVolumes => "cloud volumes",
            Self::Elastic => "elastic storage",
        }
    }
}

impl Storage {
    pub fn count(&self) -> u32 {
        match self {
            Self::InstanceStore { disks, .. } => *disks,
            Self::Ebs { volumes, .. } => *volumes,
        }
    }

    pub fn size_each(&self) -> Bytes {
        match self {
            Self::InstanceStore { disk_bytes, .. } => *disk_bytes,
            Self::Ebs { volume, .. } => volume.size_bytes,
        }
    }

    pub fn raw(&self) -> Bytes {
        self.size_each().times(f64::from(self.count()))
    }

    /// Such as `12 x gp3 1 TiB`.
    pub fn words(&self) -> String {
        match self {
            Self::InstanceStore { disks, disk_bytes } => {
                format!("{disks} x instance-store disk {}", disk_bytes.tb_or_tib())
            }
            Self::Ebs { volumes, volume } => {
                let mut words = format!(
                    "{volumes} x {} {}",
                    volume.volume_type,
                    volume.size_bytes.tb_or_tib()
                );
                if let Some(mib_s) = volume.mib_s {
                    words += &format!(" {mib_s} MiB/s");
                }
                if let Some(iops) = volume.iops {
                    words += &format!(" {iops} IOPS");
                }
                words
            }
        }
    }
}

impl SanArray {
    fn words(&self) -> String {
        let mut words = match &self.system {
            SanSystem::Ontap {
                ssd_bytes,
                iops,
                mb_s,
            } => format!(
                "{} x file system of {} SSD, {iops} IOPS, {mb_s}",
                self.systems,
                ssd_bytes.tb_or_tib()
            ),
            SanSystem::Server(server) => format!("{} x ({})", self.systems, server.words()),
        };
        if let Some(host) = &self.host {
            words += &format!(", host {host}");
        }
        words
    }
}

impl NfsServer {
    fn words(&self) -> String {
        format!(
            "{}, {}, protection {}",
            self.instance,
            self.storage.words(),
            self.protection
        )
    }
}

impl Design {
    /// Whether it is the NFS server of the paper: its disks or volumes are joined without redundancy. With
    /// parity it is a Linux server of today.
    pub fn is_paper_server(&self) -> bool {
        match &self.shape {
            Shape::NfsServer(it) => self.product == Product::Vendor && it.protection.parity == 0,
            _ => false,
        }
    }

    /// The design in one line, without its region; unique among the designs of one ranking.
    pub fn name(&self) -> String {
        let maker = match (self.product, &self.shape) {
            (Product::Cairn, _) => "Cairn",
            (Product::Vendor, Shape::Cluster(_)) => "APEX File Storage",
            (Product::Vendor, Shape::NfsServer(_)) => "Linux NFS",
            (Product::Vendor, Shape::SanArray(_)) => "FSx for NetApp ONTAP",
            (Product::Vendor, Shape::ParallelFs(_)) => "FSx for Lustre",
            (Product::Vendor, Shape::CloudVolumes(_)) => "Cloud Volumes Service",
            (Product::Vendor, Shape::Elastic(Elastic::Efs { .. })) => "Amazon EFS",
            (Product::Vendor, Shape::Elastic(Elastic::S3 { .. })) => "Amazon S3",
        };
        format!(
            "{maker} {}: {}",
            self.shape.family().words(),
            self.shape.words()
        )
    }
}

impl Shape {
    /// Such as `6 x m5dn.12xlarge, 12 x gp3 1 TiB, protection 4+2`.
    pub fn words(&self) -> String {
        match self {
            Self::Cluster(it) => format!(
                "{} x {}, {}, protection {}",
                it.nodes,
                it.instance,
                it.storage.words(),
                it.protection
            ),
            Self::NfsServer(it) => it.words(),
            Self::SanArray(it) => it.words(),
            Self::ParallelFs(ParallelFs::Lustre {
                level,
                capacity_bytes,
                ssd_read_cache,
            }) => format!(
                "{level}, {}{}",
                capacity_bytes.tb_or_tib(),
                if *ssd_read_cache {
                    ", SSD read cache"
                } else {
                    ""
                }
            ),
            Self::CloudVolumes(CloudVolumes::Service {
                level,
                volumes,
                quota_bytes,
            }) => format!("{volumes} x {level} volume of {}", quota_bytes.tb_or_tib()),
            Self::ParallelFs(ParallelFs::Servers { servers, server })
            | Self::CloudVolumes(CloudVolumes::Servers { servers, server }) => {
                format!("{servers} x ({})", server.words())
            }
            Self::Elastic(Elastic::Efs {
                level,
                capacity_bytes,
                mib_s,
            }) => match mib_s {
                None => format!("{level}, {}", capacity_bytes.tb_or_tib()),
                Some(mib_s) => format!(
                    "{level}, {}, {mib_s} MiB/s provisioned",
                    capacity_bytes.tb_or_tib()
                ),
            },
            Self::Elastic(Elastic::S3 { capacity_bytes }) => {
                format!("Standard, {}", capacity_bytes.tb_or_tib())
            }
        }
    }
}
