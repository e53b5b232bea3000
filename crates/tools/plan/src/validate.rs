//! The model against what was published.
//!
//! Owns: which published figure is held against which prediction, and the tolerance.
//! Must not know: how predictions come about.
//!
//! No constant is fitted to a row: each prediction is `evaluate` of the paper's own configuration.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::catalog::{Catalog, CatalogError};
use crate::design::{
    CloudVolumes, Cluster, Design, NfsServer, ParallelFs, Product, Protection, SanArray, SanSystem,
    Shape, Storage, Volume,
};
use crate::evaluate::{EvaluateError, cloud_volume_client, evaluate};
use crate::report::Evaluation;
use crate::rules::RuleId;
use crate::units::{Bytes, Rate, number};

/// Errors at most, of the median and of the worst in each family.
pub const MEDIAN_ERROR_MAX: f64 = 0.10;
pub const WORST_ERROR_MAX: f64 = 0.25;

#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    pub rows: Vec<Row>,
    pub families: Vec<FamilyErrors>,
}

/// One published figure beside its prediction.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub family: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub published: f64,
    pub predicted: f64,
    /// predicted / published - 1.
    pub error: f64,
    /// The error is larger than [`WORST_ERROR_MAX`]: the model does not predict this figure.
    pub missed: bool,
    pub rules: Vec<RuleId>,
    /// What we know of the reason.
    pub note: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct FamilyErrors {
    pub family: &'static str,
    pub rows: usize,
    /// Rows that miss.
    pub missed: usize,
    pub median: f64,
    pub worst: f64,
    /// Both within their limits.
    pub holds: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    version: u32,
    nfs_server: Vec<MeasuredServer>,
    cluster: Vec<MeasuredCluster>,
    san_array: MeasuredSan,
    cloud_volumes: MeasuredVolume,
    parallel_fs: MeasuredLustre,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredServer {
    instance: String,
    ebs_tb: Option<f64>,
    write_mb_s: f64,
    read_mb_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredCluster {
    nodes: u32,
    instance: String,
    volumes_per_node: u32,
    volume_mib_s: u32,
    read_mb_s: f64,
    write_mb_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredSan {
    systems: u32,
    ssd_tb: f64,
    iops: u64,
    throughput_gb_s: f64,
    write_gb_s: f64,
    random_iops: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredVolume {
    read_mib_s: f64,
    random_read_iops: f64,
    random_write_iops: f64,
    instance: String,
    instance_read_mib_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredLustre {
    level: String,
    capacity_tib: f64,
    expected: LustreFigures,
    measured: LustreFigures,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LustreFigures {
    write_burst_mb_s: f64,
    write_baseline_mb_s: f64,
    read_burst_mb_s: f64,
    read_baseline_mb_s: f64,
}

/// Region whose prices the predictions carry; rates do not depend on it.
const REGION: &str = "us-east-1";

fn design(product: Product, shape: Shape) -> Design {
    Design {
        product,
        region: REGION.to_owned(),
        shape,
    }
}

/// The cluster that the paper measured: 6 nodes with 12 volumes of 1 TiB each.
pub fn paper_cluster(region: &str) -> Design {
    Design {
        region: region.to_owned(),
        ..cluster_of(6, "m5dn.12xlarge", 12, 145)
    }
}

fn cluster_of(nodes: u32, instance: &str, volumes: u32, mib_s: u32) -> Design {
    design(
        Product::Vendor,
        Shape::Cluster(Cluster {
            nodes,
            instance: instance.to_owned(),
            storage: Storage::Ebs {
                volumes,
                volume: Volume {
                    volume_type: "gp3".to_owned(),
                    size_bytes: Bytes::from_tib(1.0),
                    iops: None,
                    mib_s: Some(mib_s),
                },
            },
            protection: Protection {
                data: nodes.saturating_sub(2).max(1),
                parity: 2,
            },
        }),
    )
}

/// The paper's NFS server on this instance, with its local disks or an st1 volume of so many TB.
pub fn paper_server(
    catalog: &Catalog,
    instance: &str,
    ebs_tb: Option<f64>,
) -> Result<Design, EvaluateError> {
    let storage = match ebs_tb {
        Some(tb) => Storage::Ebs {
            volumes: 1,
            volume: Volume {
                volume_type: "st1".to_owned(),
                size_bytes: Bytes::from_gb(tb * 1000.0),
                iops: None,
                mib_s: None,
            },
        },
        None => {
            let of = catalog.instance(instance)?;
            let (_, disk_bytes) = of.data_disks().ok_or_else(|| EvaluateError::Invalid {
                detail: format!("{instance} has no local disks"),
            })?;
            Storage::InstanceStore {
                disks: of.disks,
                disk_bytes,
            }
        }
    };
    Ok(design(
        Product::Vendor,
        Shape::NfsServer(NfsServer {
            instance: instance.to_owned(),
            storage,
            protection: Protection { data: 1, parity: 0 },
        }),
    ))
}

/// The paper's parallel file system: 6 TiB (6,000 GiB) of persistent-12 with SSD read cache.
pub fn paper_lustre() -> Design {
    design(
        Product::Vendor,
        Shape::ParallelFs(ParallelFs::Lustre {
            level: "persistent-12".to_owned(),
            capacity_bytes: Bytes::from_gib(6000.0),
            ssd_read_cache: true,
        }),
    )
}

fn paper_array(of: &MeasuredSan) -> SanArray {
    SanArray {
        systems: of.systems,
        system: SanSystem::Ontap {
            ssd_bytes: Bytes::from_gb(of.ssd_tb * 1000.0),
            iops: of.iops,
            mb_s: Rate::from_mb_s(of.throughput_gb_s * 1000.0),
        },
        host: None,
    }
}

fn lustre_of(of: &MeasuredLustre) -> Shape {
    Shape::ParallelFs(ParallelFs::Lustre {
        level: of.level.clone(),
        capacity_bytes: Bytes::from_gib(of.capacity_tib * 1000.0),
        ssd_read_cache: true,
    })
}

struct Rows(Vec<Row>);

impl Rows {
    fn push(
        &mut self,
        family: &'static str,
        what: String,
        unit: &'static str,
        published: f64,
        predicted: f64,
        rules: &[RuleId],
    ) -> &mut Row {
        self.0.push(Row {
            family,
            what,
            unit,
            published,
            predicted,
            error: predicted / published - 1.0,
            missed: (predicted / published - 1.0).abs() > WORST_ERROR_MAX + ROUNDING,
            rules: rules.to_vec(),
            note: String::new(),
        });
        self.0.last_mut().expect("just pushed")
    }
}

/// An error of exactly the limit is within it, however it is rounded.
const ROUNDING: f64 = 1e-9;

static MEASURED: LazyLock<Result<Measured, CatalogError>> = LazyLock::new(|| {
    toml::from_str(include_str!("../data/measured.toml")).map_err(|error| CatalogError::Data {
        file: "data/measured.toml".to_owned(),
        detail: error.to_string(),
    })
});

/// What a paper measured of one configuration.
#[derive(Clone, Debug)]
pub struct Published {
    pub shape: Shape,
    pub read: Option<Rate>,
    pub write: Option<Rate>,
}

/// The measured configurations that no instance's own disks decide.
static PUBLISHED: LazyLock<Vec<Published>> = LazyLock::new(|| {
    let Ok(measured) = MEASURED.as_ref() else {
        return Vec::new();
    };
    let clusters = measured.cluster.iter().map(|of| Published {
        shape: cluster_of(of.nodes, &of.instance, of.volumes_per_node, of.volume_mib_s).shape,
        read: Some(Rate::from_mb_s(of.read_mb_s)),
        write: Some(Rate::from_mb_s(of.write_mb_s)),
    });
    let san = &measured.san_array;
    let arrays = std::iter::once(Published {
        shape: Shape::SanArray(paper_array(san)),
        read: None,
        write: Some(Rate::from_mb_s(san.write_gb_s * 1000.0)),
    });
    let lustre = &measured.parallel_fs;
    let parallel = std::iter::once(Published {
        shape: lustre_of(lustre),
        read: Some(Rate::from_mb_s(lustre.measured.read_baseline_mb_s)),
        write: Some(Rate::from_mb_s(lustre.measured.write_baseline_mb_s)),
    });
    clusters.chain(arrays).chain(parallel).collect()
});

/// What a paper measured of exactly this design; `None`: nobody did.
pub fn published(catalog: &Catalog, design: &Design) -> Option<Published> {
    if design.product != Product::Vendor {
        return None;
    }
    let Shape::NfsServer(server) = &design.shape else {
        return PUBLISHED
            .iter()
            .find(|it| it.shape == design.shape)
            .cloned();
    };
    let measured = MEASURED.as_ref().ok()?;
    measured
        .nfs_server
        .iter()
        .filter(|of| of.instance == server.instance)
        .find_map(|of| {
            let paper = paper_server(catalog, &of.instance, of.ebs_tb).ok()?;
            (paper.shape == design.shape).then(|| Published {
                shape: paper.shape,
                read: Some(Rate::from_mb_s(of.read_mb_s)),
                write: Some(Rate::from_mb_s(of.write_mb_s)),
            })
        })
}

/// Compares the model with every published measurement.
pub fn validate(catalog: &Catalog) -> Result<Validation, EvaluateError> {
    let measured = MEASURED.as_ref().map_err(Clone::clone)?;
    let mut rows = Rows(Vec::new());
    for server in &measured.nfs_server {
        nfs_server(catalog, server, &mut rows)?;
    }
    for cluster in &measured.cluster {
        cluster_rows(catalog, cluster, &mut rows)?;
    }
    san(catalog, &measured.san_array, &mut rows)?;
    cloud_volume(catalog, &measured.cloud_volumes, &mut rows)?;
    lustre(catalog, &measured.parallel_fs, &mut rows)?;
    let families = families(&rows.0);
    Ok(Validation {
        rows: rows.0,
        families,
    })
}

fn read_row(
    family: &'static str,
    what: String,
    published: f64,
    it: &Evaluation,
    rows: &mut Rows,
    cache: &str,
) {
    let read = &it.performance.seq_read;
    let row = rows.push(
        family,
        what,
        "MB/s",
        published,
        read.burst_mb_s.mb_s(),
        &read.bottleneck_burst.rules,
    );
    if !row.missed || published < row.predicted {
        return;
    }
    // With a share h of the reads from cache, disks carry 1-h: rate = disks / (1-h).
    let share = 1.0 - row.predicted / published;
    row.note = format!(
        "faster than the storage can be; if a cache was the reason, it answered {}% of the reads: {cache}. \
         The paper does not say",
        number((share * 100.0).round())
    );
}

fn nfs_server(
    catalog: &Catalog,
    of: &MeasuredServer,
    rows: &mut Rows,
) -> Result<(), EvaluateError> {
    let it = evaluate(catalog, &paper_server(catalog, &of.instance, of.ebs_tb)?)?;
    let family = if of.ebs_tb.is_some() {
        "NFS server, EBS"
    } else {
        "NFS server, local disks"
    };
    let write = &it.performance.seq_write;
    // Volumes burst all the way: their bucket outlasts the 960 GB of the measurement.
    let predicted = write
        .burst_mb_s
        .mb_s()
        .min(steady_network(catalog, &of.instance)?);
    rows.push(
        family,
        format!("{} write", of.instance),
        "MB/s",
        of.write_mb_s,
        predicted,
        &if predicted < write.burst_mb_s.mb_s() {
            vec![crate::rules::NETWORK_INSTANCE]
        } else {
            write.bottleneck_burst.rules.clone()
        },
    );
    let mut read = it.clone();
    let burst = read.performance.seq_read.burst_mb_s.mb_s();
    let network = steady_network(catalog, &of.instance)?;
    if network < burst {
        read.performance.seq_read.burst_mb_s = Rate::from_mb_s(network);
        read.performance.seq_read.bottleneck_burst.rules = vec![crate::rules::NETWORK_INSTANCE];
    }
    read_row(
        family,
        format!("{} read", of.instance),
        of.read_mb_s,
        &read,
        rows,
        "the server and its 8 clients have 540 GiB of memory, and 960 GB were read",
    );
    Ok(())
}

/// Hours of load are served at the network's share of the host, not at its peak.
fn steady_network(catalog: &Catalog, instance: &str) -> Result<f64, EvaluateError> {
    Ok(catalog.instance(instance)?.network().steady.mb_s())
}

fn cluster_rows(
    catalog: &Catalog,
    of: &MeasuredCluster,
    rows: &mut Rows,
) -> Result<(), EvaluateError> {
    let it = evaluate(
        catalog,
        &cluster_of(of.nodes, &of.instance, of.volumes_per_node, of.volume_mib_s),
    )?;
    let family = "scale-out cluster";
    let name = format!(
        "{} x {}, {} x {} MiB/s",
        of.nodes, of.instance, of.volumes_per_node, of.volume_mib_s
    );
    let write = &it.performance.seq_write;
    rows.push(
        family,
        format!("{name}, write"),
        "MB/s",
        of.write_mb_s,
        write.steady_mb_s.mb_s(),
        &write.bottleneck.rules,
    );
    read_row(
        family,
        format!("{name}, read"),
        of.read_mb_s,
        &it,
        rows,
        "the nodes have 1,152 GiB of memory together",
    );
    Ok(())
}

fn san(catalog: &Catalog, of: &MeasuredSan, rows: &mut Rows) -> Result<(), EvaluateError> {
    let it = evaluate(
        catalog,
        &design(Product::Vendor, Shape::SanArray(paper_array(of))),
    )?;
    let family = "SAN array";
    let performance = &it.performance;
    rows.push(
        family,
        format!("{} file systems, large writes", of.systems),
        "MB/s",
        of.write_gb_s * 1000.0,
        performance.seq_write.steady_mb_s.mb_s(),
        &performance.seq_write.bottleneck.rules,
    );
    rows.push(
        family,
        format!(
            "{} file systems, random reads (published as over 1,000,000)",
            of.systems
        ),
        "IOPS",
        of.random_iops,
        performance.random_read.steady_iops,
        &performance.random_read.bottleneck.rules,
    )
    .note = "SSD alone; the rest is answered by the systems' memory and NVMe caches".to_owned();
    Ok(())
}

fn cloud_volume(
    catalog: &Catalog,
    of: &MeasuredVolume,
    rows: &mut Rows,
) -> Result<(), EvaluateError> {
    // A quota at which the level does not bind: the paper looked for the limits of the volume.
    let it = evaluate(
        catalog,
        &design(
            Product::Vendor,
            Shape::CloudVolumes(CloudVolumes::Service {
                level: "extreme".to_owned(),
                volumes: 1,
                quota_bytes: Bytes::from_gb(100_000.0),
            }),
        ),
    )?;
    let family = "cloud volume";
    let performance = &it.performance;
    rows.push(
        family,
        "one volume, sequential reads".to_owned(),
        "MiB/s",
        of.read_mib_s,
        performance.seq_read.steady_mb_s.mib_s(),
        &performance.seq_read.bottleneck.rules,
    )
    .note = "the limit is of the same storage system in another cloud".to_owned();
    rows.push(
        family,
        "one volume, random reads".to_owned(),
        "IOPS",
        of.random_read_iops,
        performance.random_read.steady_iops,
        &performance.random_read.bottleneck.rules,
    );
    rows.push(
        family,
        "one volume, random writes".to_owned(),
        "IOPS",
        of.random_write_iops,
        performance.random_write.steady_iops,
        &performance.random_write.bottleneck.rules,
    );
    let client = cloud_volume_client(catalog, &of.instance, 16)?;
    rows.push(
        family,
        format!("one {}, sequential reads", of.instance),
        "MiB/s",
        of.instance_read_mib_s,
        client.mib_s(),
        &[crate::rules::CVS_GATEWAY],
    );
    Ok(())
}

fn lustre(catalog: &Catalog, of: &MeasuredLustre, rows: &mut Rows) -> Result<(), EvaluateError> {
    let mut wanted = paper_lustre();
    wanted.shape = lustre_of(of);
    let it = evaluate(catalog, &wanted)?;
    let (read, write) = (&it.performance.seq_read, &it.performance.seq_write);
    let family = "parallel file system";
    let figures = [
        (
            "write, burst",
            of.expected.write_burst_mb_s,
            of.measured.write_burst_mb_s,
            write.burst_mb_s,
            &write.bottleneck_burst,
        ),
        (
            "write, baseline",
            of.expected.write_baseline_mb_s,
            of.measured.write_baseline_mb_s,
            write.steady_mb_s,
            &write.bottleneck,
        ),
        (
            "read, burst",
            of.expected.read_burst_mb_s,
            of.measured.read_burst_mb_s,
            read.burst_mb_s,
            &read.bottleneck_burst,
        ),
        (
            "read, baseline",
            of.expected.read_baseline_mb_s,
            of.measured.read_baseline_mb_s,
            read.steady_mb_s,
            &read.bottleneck,
        ),
    ];
    for (what, expected, measured, predicted, by) in figures {
        rows.push(
            family,
            format!("{what}, expected by the paper"),
            "MB/s",
            expected,
            predicted.mb_s(),
            &by.rules,
        );
        let row = rows.push(
            family,
            format!("{what}, measured"),
            "MB/s",
            measured,
            predicted.mb_s(),
            &by.rules,
        );
        if row.missed {
            row.note =
                "the paper's own expectation is the prediction; it does not say what else burst"
                    .to_owned();
        }
    }
    Ok(())
}

fn families(rows: &[Row]) -> Vec<FamilyErrors> {
    let mut names: Vec<&'static str> = Vec::new();
    for row in rows {
        if !names.contains(&row.family) {
            names.push(row.family);
        }
    }
    names
        .into_iter()
        .map(|family| {
            let of = || rows.iter().filter(|row| row.family == family);
            let mut errors: Vec<f64> = of().map(|row| row.error.abs()).collect();
            errors.sort_by(f64::total_cmp);
            let median = median(&errors);
            let worst = errors.last().copied().unwrap_or(0.0);
            FamilyErrors {
                family,
                rows: errors.len(),
                missed: of().filter(|row| row.missed).count(),
                median,
                worst,
                holds: median <= MEDIAN_ERROR_MAX + ROUNDING && worst <= WORST_ERROR_MAX + ROUNDING,
            }
        })
        .collect()
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}
