//! The data that the model computes with: instance types, volume types, the designs' limits, features.
//!
//! Owns: the shape of `data/*.toml`, the embedded copies, and finding things by name.
//! Must not know: how figures follow from them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::design::Protection;
use crate::prices::{Day, PriceError, PriceList};
use crate::reliability::Rates;
use crate::report::Protocol;
use crate::units::{Bytes, Rate};

/// What went wrong with data that the planner was given or asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    #[error("{file} is not understood: {detail}")]
    Data { file: String, detail: String },
    #[error("there is no {what} \"{name}\"{}", near(.nearest))]
    Unknown {
        what: &'static str,
        name: String,
        nearest: Vec<String>,
    },
    #[error(transparent)]
    Price(#[from] PriceError),
}

fn near(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [first, rest @ ..] => format!("; nearest: {first}, {}", rest.join(", ")),
    }
}

/// Names offered when one is not known.
const NEAREST_COUNT: usize = 3;

/// The known names most like `name`, best first.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(f64, &str)> = known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .collect();
    scored.sort_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(right.1)));
    scored.dedup_by_key(|(_, known)| *known);
    scored
        .into_iter()
        .take(NEAREST_COUNT)
        .map(|(_, known)| known.to_owned())
        .collect()
}

/// Everything the model reads. Plain data; prices can be put over the embedded ones.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub instances: BTreeMap<String, Instance>,
    pub designs: Designs,
    pub cairn: Cairn,
    pub reliability: Rates,
    pub prices: PriceList,
    /// The day on which prices are judged old; `None`: nobody said, and only undated prices are.
    pub today: Option<Day>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Instances {
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    version: u32,
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    date: String,
    instance: Vec<Instance>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    pub name: String,
    pub vcpu: u32,
    pub memory_gib: f64,
    network_gbit_s: f64,
    network_peak_gbit_s: Option<f64>,
    ebs_mbit_s: f64,
    ebs_peak_mbit_s: Option<f64>,
    pub ebs_iops: u64,
    ebs_peak_iops: Option<u64>,
    /// Besides the root volume.
    pub ebs_volumes_max: u32,
    #[serde(default)]
    pub disks: u32,
    #[serde(default)]
    disk_gb: f64,
    disk_kind: Option<DiskKind>,
    pub disk_read_iops: Option<u64>,
    pub disk_write_iops: Option<u64>,
    /// An earlier generation, of the papers' time.
    #[serde(default)]
    pub previous: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    Hdd,
    Nvme,
}

/// A baseline, and what is reached while credits last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band<T> {
    pub steady: T,
    pub burst: T,
}

impl Instance {
    pub fn network(&self) -> Band<Rate> {
        Band {
            steady: Rate::from_gbit_s(self.network_gbit_s),
            burst: Rate::from_gbit_s(self.network_peak_gbit_s.unwrap_or(self.network_gbit_s)),
        }
    }

    pub fn ebs(&self) -> Band<Rate> {
        Band {
            steady: Rate::from_gbit_s(self.ebs_mbit_s / 1000.0),
            burst: Rate::from_gbit_s(self.ebs_peak_mbit_s.unwrap_or(self.ebs_mbit_s) / 1000.0),
        }
    }

    pub fn ebs_iops(&self) -> Band<f64> {
        Band {
            steady: self.ebs_iops as f64,
            burst: self.ebs_peak_iops.unwrap_or(self.ebs_iops) as f64,
        }
    }

    pub fn memory(&self) -> Bytes {
        Bytes::from_gib(self.memory_gib)
    }

    /// Local disks that can hold data and whose speed is known.
    pub fn data_disks(&self) -> Option<(DiskKind, Bytes)> {
        let kind = self.disk_kind?;
        let known = kind == DiskKind::Hdd || self.disk_read_iops.is_some();
        (self.disks > 0 && known).then(|| (kind, Bytes::from_gb(self.disk_gb)))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Designs {
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    version: u32,
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    date: String,
    pub cluster: ClusterLimits,
    pub nfs_server: NfsLimits,
    pub san_array: SanLimits,
    pub parallel_fs: LustreLimits,
    pub cloud_volumes: CloudVolumeLimits,
    pub elastic: ElasticLimits,
    pub volume: BTreeMap<String, VolumeType>,
    pub nitro: Nitro,
}

/// Which instances are not built on the Nitro System: their volumes do less.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nitro {
    pub source: String,
    pub date: String,
    without: Vec<String>,
}

impl Nitro {
    pub fn has(&self, instance: &str) -> bool {
        let family = instance.split('.').next().unwrap_or(instance);
        !self.without.iter().any(|without| without == family)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct ClusterLimits {
    pub source: String,
    pub nodes_min: u32,
    pub nodes_max: u32,
    pub parity: u32,
    pub instances: Vec<String>,
    pub protocols: Vec<Protocol>,
    pub ssd: ClusterSsd,
    pub hdd: ClusterHdd,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ClusterSsd {
    pub volume_type: String,
    pub volumes_per_node: Vec<u32>,
    pub volume_tib_min: f64,
    pub volume_tib_max: f64,
    pub iops_max: u64,
    pub mib_s_max: u32,
    pub raw_tib_min: f64,
    pub raw_tib_max: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ClusterHdd {
    pub volume_type: String,
    pub volumes_per_node: Vec<u32>,
    pub volume_tib: Vec<f64>,
    pub raw_tib_min: f64,
    pub raw_tib_max: f64,
}

impl LustreLevel {
    /// What this many steps hold.
    pub fn steps(&self, count: f64) -> Bytes {
        Bytes::from_gib(self.step_gib * count)
    }
}

/// The TiB by which FSx for Lustre states its rates: 1,000 GiB, as the paper's 6 TiB are the 6,000 GiB of
/// the API and of the bill.
pub fn lustre_tib(capacity: Bytes) -> f64 {
    capacity.gib() / 1000.0
}

impl ClusterSsd {
    /// The largest volume of so many: 16 TiB, or what keeps the cluster within 1 PiB, cut to a tenth.
    pub fn volume_tib_limit(&self, nodes: u32, volumes_per_node: u32) -> f64 {
        // Of counts that nobody checked yet.
        let volumes = (f64::from(nodes) * f64::from(volumes_per_node)).max(1.0);
        let tenths = (self.raw_tib_max * 10.0 / volumes + 1e-9).floor();
        (tenths / 10.0).min(self.volume_tib_max)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct NfsLimits {
    pub source: String,
    pub capacity_below_tib: f64,
    pub throughput_below_gb_s: f64,
    pub clients_below: u32,
    pub instance_store: Vec<String>,
    pub ebs: Vec<String>,
    pub volume_tib_max: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SanLimits {
    pub source: String,
    pub systems_max: u32,
    pub iops_max: u64,
    pub throughput_gb_s_max: f64,
    pub ssd_tb_min: f64,
    pub ssd_tb_max: f64,
    pub write_mb_s_max: f64,
    pub throughput_mb_s: Vec<f64>,
    /// Of each throughput capacity, in the same order.
    pub throughput_iops_max: Vec<u64>,
    pub ssd_gib_min: f64,
    pub iops_per_gib_min: f64,
}

impl SanLimits {
    /// The throughput capacity that is sold under this figure, with the most SSD IOPS behind it.
    /// `2 GB/s` is the one of 2,048 MB/s, as the paper and the console write it.
    pub fn throughput(&self, mb_s: f64) -> Option<(f64, u64)> {
        self.throughput_mb_s
            .iter()
            .zip(&self.throughput_iops_max)
            .find(|(sold, _)| {
                let named = *sold / 1.024;
                (mb_s - *sold).abs() < 1e-6 || (**sold >= 1024.0 && (mb_s - named).abs() < 1e-6)
            })
            .map(|(sold, iops_max)| (*sold, *iops_max))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct LustreLimits {
    pub source: String,
    pub cache_share: f64,
    pub cache_disk_mb_s_per_tib: f64,
    pub level: Vec<LustreLevel>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LustreLevel {
    pub name: String,
    pub step_gib: f64,
    pub network_mb_s_per_tib: f64,
    pub network_burst_mb_s_per_tib: f64,
    pub memory_gib_per_tib: f64,
    pub disk_mb_s_per_tib: f64,
    pub disk_burst_read_mb_s_per_tib: f64,
    pub disk_burst_write_mb_s_per_tib: f64,
    pub cache_network_mb_s_per_tib: f64,
    pub cache_network_burst_mb_s_per_tib: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CloudVolumeLimits {
    pub source: String,
    pub volume_read_mib_s: f64,
    pub volume_write_mib_s: f64,
    pub volume_read_iops: f64,
    pub volume_write_iops: f64,
    pub quota_tb_max: f64,
    /// What a buyer must know of the product before anything else.
    pub withdrawn: String,
    pub flow_gbit_s_outside: f64,
    pub flow_gbit_s_inside: f64,
    pub flows_max: u32,
    pub level: Vec<CloudVolumeLevel>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CloudVolumeLevel {
    pub name: String,
    pub kb_s_per_gb: f64,
}

/// Amazon EFS and S3.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElasticLimits {
    pub source: String,
    pub date: String,
    pub efs_write_mib_s_per_tib: f64,
    pub efs_read_times: f64,
    pub efs_burst_mib_s_per_tib: f64,
    pub efs_burst_mib_s_min: f64,
    /// What one client gets at most.
    pub efs_client_mib_s: f64,
    pub s3_get_per_s: f64,
    pub s3_put_per_s: f64,
    pub s3_request_mib: f64,
    pub s3_latency_ms: f64,
    pub efs: Vec<EfsLevel>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EfsLevel {
    pub name: String,
    pub read_mib_s_max: f64,
    pub write_mib_s_max: f64,
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_iops_provisioned: f64,
    pub write_iops_provisioned: f64,
    pub latency_ms: f64,
}

/// gp3 has fixed figures that can be provisioned higher; st1 and sc1 have figures per TiB; of io1 and io2
/// IOPS are provisioned, and throughput follows them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeType {
    pub source: String,
    pub date: String,
    pub size_gib_min: f64,
    pub size_gib_max: f64,
    /// By itself; `Some`: it can be provisioned, from this up.
    pub mib_s: Option<f64>,
    pub mib_s_max: f64,
    /// By itself; what is provisioned is at least this.
    pub iops: Option<f64>,
    /// `Some`: there is none by itself, and at least this must be provisioned.
    pub iops_min: Option<f64>,
    pub iops_max: Option<f64>,
    pub iops_per_gib_max: Option<f64>,
    pub iops_max_without_nitro: Option<f64>,
    /// Throughput that can be provisioned with each provisioned operation.
    pub mib_s_per_iops_max: Option<f64>,
    /// Throughput that follows from each provisioned operation, up to the knee, and beyond it.
    pub mib_s_per_iops: Option<f64>,
    pub mib_s_knee: Option<f64>,
    pub mib_s_per_iops_beyond: Option<f64>,
    pub mib_s_per_tib: Option<f64>,
    pub burst_mib_s_per_tib: Option<f64>,
}

impl VolumeType {
    /// Throughput that follows from provisioned IOPS; `None`: it does not follow from them.
    pub fn mib_s_of_iops(&self, iops: f64) -> Option<f64> {
        let first = iops * self.mib_s_per_iops?;
        let beyond = iops * self.mib_s_per_iops_beyond.unwrap_or(0.0);
        let knee = self.mib_s_knee.unwrap_or(self.mib_s_max);
        Some(first.min(knee).max(beyond).min(self.mib_s_max))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cairn {
    pub version: String,
    pub date: String,
    pub data_max: u32,
    pub parity_max: u32,
    pub disks_max: u32,
    pub measured: CairnMeasured,
    feature: Vec<Feature>,
}

/// What Cairn itself was measured to do, on one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CairnMeasured {
    pub vcpu: u32,
    /// Without parity.
    pub one_disk: CairnRates,
    pub coded: CairnRates,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CairnRates {
    /// N+M; nothing for one disk.
    pub code: Option<Protection>,
    pub write_mb_s: f64,
    pub read_mb_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Feature {
    id: String,
    words: String,
    available: bool,
}

impl Cairn {
    /// `None` where the feature is there; else what is missing, in words.
    pub fn missing(&self, id: &str) -> Option<String> {
        match self.feature.iter().find(|feature| feature.id == id) {
            Some(feature) if feature.available => None,
            Some(feature) => Some(feature.words.clone()),
            None => Some(id.to_owned()),
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, CatalogError> {
    toml::from_str(text).map_err(|error| CatalogError::Data {
        file: file.to_owned(),
        detail: error.to_string(),
    })
}

impl Catalog {
    /// The data that the program carries.
    pub fn embedded() -> Self {
        Self::parse(
            include_str!("../data/instances.toml"),
            include_str!("../data/designs.toml"),
            include_str!("../data/cairn.toml"),
            include_str!("../data/reliability.toml"),
            include_str!("../data/prices.toml"),
        )
        .expect("a test parses the embedded data")
    }

    fn parse(
        instances: &str,
        designs: &str,
        cairn: &str,
        reliability: &str,
        prices: &str,
    ) -> Result<Self, CatalogError> {
        let instances: Instances = parse("data/instances.toml", instances)?;
        Ok(Self {
            instances: instances
                .instance
                .into_iter()
                .map(|instance| (instance.name.clone(), instance))
                .collect(),
            designs: parse("data/designs.toml", designs)?,
            cairn: parse("data/cairn.toml", cairn)?,
            reliability: parse("data/reliability.toml", reliability)?,
            prices: PriceList::parse("data/prices.toml", prices)?,
            today: None,
        })
    }

    pub fn instance(&self, name: &str) -> Result<&Instance, CatalogError> {
        self.instances
            .get(name)
            .ok_or_else(|| CatalogError::Unknown {
                what: "instance type",
                name: name.to_owned(),
                nearest: nearest(name, self.instances.keys().map(String::as_str)),
            })
    }

    pub fn volume_type(&self, name: &str) -> Result<&VolumeType, CatalogError> {
        self.designs
            .volume
            .get(name)
            .ok_or_else(|| CatalogError::Unknown {
                what: "volume type",
                name: name.to_owned(),
                nearest: nearest(name, self.designs.volume.keys().map(String::as_str)),
            })
    }

    pub fn lustre_level(&self, name: &str) -> Result<&LustreLevel, CatalogError> {
        let levels = &self.designs.parallel_fs.level;
        levels
            .iter()
            .find(|level| level.name == name)
            .ok_or_else(|| CatalogError::Unknown {
                what: "level of a parallel file system",
                name: name.to_owned(),
                nearest: nearest(name, levels.iter().map(|level| level.name.as_str())),
            })
    }

    pub fn efs_level(&self, name: &str) -> Result<&EfsLevel, CatalogError> {
        let levels = &self.designs.elastic.efs;
        levels
            .iter()
            .find(|level| level.name == name)
            .ok_or_else(|| CatalogError::Unknown {
                what: "kind of EFS file system",
                name: name.to_owned(),
                nearest: nearest(name, levels.iter().map(|level| level.name.as_str())),
            })
    }

    pub fn cloud_volume_level(&self, name: &str) -> Result<&CloudVolumeLevel, CatalogError> {
        let levels = &self.designs.cloud_volumes.level;
        levels
            .iter()
            .find(|level| level.name == name)
            .ok_or_else(|| CatalogError::Unknown {
                what: "service level",
                name: name.to_owned(),
                nearest: nearest(name, levels.iter().map(|level| level.name.as_str())),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_known_get_the_nearest() {
        let catalog = Catalog::embedded();
        let cases = [
            ("m5dn.12xlrge", "m5dn.12xlarge"),
            ("i3en.24large", "i3en.24xlarge"),
            ("d2.8xl", "d2.8xlarge"),
        ];
        for (name, want) in cases {
            let error = catalog.instance(name).unwrap_err().to_string();
            assert!(error.contains(want), "{name}: {error}");
        }
        assert!(catalog.volume_type("gp4").is_err());
        assert!(catalog.lustre_level("persistent-13").is_err());
    }
}
