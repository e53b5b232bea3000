//! From a design to its figures: capacity, rates, bottlenecks, cost.
//!
//! Owns: how the rules combine for each family. Pure: the same catalog and design, the same figures.
//! Must not know: goals, other designs, how figures are shown.

mod cloud_volumes;
mod cost;
mod elastic;
mod limits;
mod parallel_fs;
mod san_array;
mod server;

use crate::catalog::{Band, Catalog, CatalogError, Instance};
pub use crate::deployable::COUNT_MAX;
use crate::deployable::Violation;
use crate::design::{
    CloudVolumes, Cluster, Design, Elastic, Family, NfsServer, ParallelFs, Product, Protection,
    SanArray, SanSystem, Shape, Storage,
};
pub use crate::evaluate::cloud_volumes::cloud_volume_client;
use crate::evaluate::cloud_volumes::cloud_volumes;
use crate::evaluate::cost::Costing;
use crate::evaluate::elastic::elastic;
pub use crate::evaluate::limits::Detail;
use crate::evaluate::limits::{Limits, iops, throughput};
use crate::evaluate::parallel_fs::parallel_fs;
use crate::evaluate::san_array::san_array;
use crate::evaluate::server::{RANDOM_BYTES, ServerRates, network, network_iops, rates};
use crate::prices::{PriceBook, PriceError};
use crate::reliability;
use crate::report::{Capacity, Credit, Evaluation, Figure, Known, Performance, Protocol};
use crate::rules;
use crate::units::{Bytes, Rate, Usd, number};

/// Share of a server's memory that we count as cache (rule `cache.memory`).
const MEMORY_CACHE_SHARE: f64 = 0.5;
/// How long a Lustre bucket is assumed to last at full burst (rule `lustre.credit`).
const LUSTRE_BURST_S: f64 = 1800.0;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    #[error("this design cannot be built: {detail}")]
    Invalid { detail: String },
    #[error(
        "this design cannot be deployed: {words} ({rule}); `cairn plan check` names the nearest that can"
    )]
    NotDeployable { rule: rules::RuleId, words: String },
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Price(#[from] PriceError),
}

fn invalid(detail: String) -> EvaluateError {
    EvaluateError::Invalid { detail }
}

/// Everything about one design.
pub fn evaluate(catalog: &Catalog, design: &Design) -> Result<Evaluation, EvaluateError> {
    evaluate_with(catalog, design, Detail::Words)
}

/// Evaluates one design, with words or numbers alone.
pub fn evaluate_with(
    catalog: &Catalog,
    design: &Design,
    detail: Detail,
) -> Result<Evaluation, EvaluateError> {
    let broken = crate::deployable::violations(catalog, design);
    if let Some(Violation { rule, words }) = broken.into_iter().next() {
        return Err(EvaluateError::NotDeployable { rule, words });
    }
    let book = catalog.prices.book(&design.region)?;
    let parts = match &design.shape {
        Shape::Cluster(it) => cluster(catalog, book, design.product, it, detail)?,
        Shape::NfsServer(it) => nfs_server(catalog, book, design.product, it, detail)?,
        Shape::SanArray(it) => san_array(catalog, book, it, detail)?,
        Shape::ParallelFs(it) => parallel_fs(catalog, book, it, detail)?,
        Shape::CloudVolumes(it) => cloud_volumes(catalog, book, it, detail)?,
        Shape::Elastic(it) => elastic(catalog, book, it, detail)?,
    };
    let mut parts = parts;
    if let Some(published) = crate::validate::published(catalog, design) {
        let performance = &mut parts.performance;
        performance.seq_read.measured_mb_s = published.read;
        performance.seq_write.measured_mb_s = published.write;
    }
    let cost = parts.costing.finish(&parts.capacity, &parts.performance);
    let mut notes = parts.notes;
    if let Shape::CloudVolumes(CloudVolumes::Service { .. }) = &design.shape {
        notes.insert(0, catalog.designs.cloud_volumes.withdrawn.clone());
    }
    let needs = needs(catalog, design);
    let reliability = reliability::judge(&reliability::Judged {
        catalog,
        design,
        usable: parts.capacity.usable_bytes.value,
        restore_bytes_s: parts.performance.seq_write.steady_mb_s.bytes_s(),
        words: detail == Detail::Words,
    });
    Ok(Evaluation {
        name: match detail {
            Detail::Figures => String::new(),
            Detail::Words => design.name(),
        },
        design: design.clone(),
        available: needs.is_empty(),
        needs,
        capacity: parts.capacity,
        performance: parts.performance,
        cost,
        protocols: protocols(catalog, design),
        survives: parts.survives,
        survives_words: parts.survives_words,
        reliability,
        notes,
    })
}

/// What this version of Cairn lacks for a shape; nothing for a vendor's product.
fn needs(catalog: &Catalog, design: &Design) -> Vec<String> {
    if design.product == Product::Vendor {
        return Vec::new();
    }
    let feature = match &design.shape {
        // Several servers are several name spaces: nothing more than one server is needed.
        Shape::NfsServer(_) | Shape::CloudVolumes(_) => "server",
        Shape::Cluster(_) => "cluster",
        Shape::ParallelFs(_) => "parallel",
        Shape::SanArray(_) => "iscsi",
        // Nothing of Cairn is of this shape.
        Shape::Elastic(_) => "elastic",
    };
    catalog.cairn.missing(feature).into_iter().collect()
}

fn protocol_feature(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Nfs => "nfs",
        Protocol::Smb => "smb",
        Protocol::S3 => "s3",
        Protocol::Iscsi => "iscsi",
        Protocol::Lustre => "lustre",
    }
}

/// What a design serves today.
fn protocols(catalog: &Catalog, design: &Design) -> Vec<Protocol> {
    if let Shape::Elastic(it) = &design.shape {
        return vec![match it {
            Elastic::Efs { .. } => Protocol::Nfs,
            Elastic::S3 { .. } => Protocol::S3,
        }];
    }
    match (design.product, design.shape.family()) {
        (Product::Cairn, family) => planned_protocols(family)
            .iter()
            .copied()
            .filter(|protocol| catalog.cairn.missing(protocol_feature(*protocol)).is_none())
            .collect(),
        (Product::Vendor, Family::Cluster) => catalog.designs.cluster.protocols.clone(),
        (Product::Vendor, Family::NfsServer) => vec![Protocol::Nfs],
        (Product::Vendor, Family::SanArray) => vec![Protocol::Iscsi],
        (Product::Vendor, Family::ParallelFs) => vec![Protocol::Lustre],
        (Product::Vendor, Family::CloudVolumes) => vec![Protocol::Nfs, Protocol::Smb],
        (Product::Vendor, Family::Elastic) => Vec::new(),
    }
}

/// What Cairn in this shape serves, or will.
pub(crate) fn planned_protocols(family: Family) -> &'static [Protocol] {
    match family {
        Family::Elastic => &[],
        Family::SanArray => &[Protocol::Iscsi],
        Family::ParallelFs => &[Protocol::Nfs],
        Family::Cluster | Family::NfsServer | Family::CloudVolumes => {
            &[Protocol::Nfs, Protocol::Smb, Protocol::S3, Protocol::Iscsi]
        }
    }
}

/// What Cairn lacks for a protocol.
pub(crate) fn protocol_missing(catalog: &Catalog, protocol: Protocol) -> Option<String> {
    catalog.cairn.missing(protocol_feature(protocol))
}

struct Parts<'a> {
    capacity: Capacity,
    performance: Performance,
    costing: Costing<'a>,
    survives: Figure<u32>,
    survives_words: String,
    notes: Vec<String>,
}

/// `any 2 disks`, `any one disk`.
fn any(count: u32, one: &str, many: &str) -> String {
    match count {
        1 => format!("any one {one}"),
        count => format!("any {count} {many}"),
    }
}

fn figure<T>(value: T, rules: &[rules::RuleId]) -> Figure<T> {
    Figure {
        value,
        known: weakest(rules),
        range: None,
        rules: rules.to_vec(),
    }
}

fn weakest(rules: &[rules::RuleId]) -> Known {
    rules
        .iter()
        .map(|rule| rule.known())
        .max()
        .unwrap_or(Known::Derived)
}

/// A figure with the range of the one rule that it is uncertain by.
fn spread_figure<T>(
    value: T,
    by: rules::RuleId,
    rules: &[rules::RuleId],
    times: impl Fn(&T, f64) -> T,
) -> Figure<T> {
    let range = Some(by.spread().map(|factor| times(&value, factor)));
    Figure {
        range,
        ..figure(value, rules)
    }
}

fn check_count(count: u32, what: &str) -> Result<(), EvaluateError> {
    if (1..=COUNT_MAX).contains(&count) {
        Ok(())
    } else {
        Err(invalid(format!("{count} {what}, not 1 to {COUNT_MAX}")))
    }
}

fn check_protection(
    catalog: &Catalog,
    product: Product,
    protection: Protection,
    units: u32,
    what: &str,
) -> Result<(), EvaluateError> {
    let total = protection.units();
    if protection.data == 0 {
        return Err(invalid(
            "protection needs a data unit: N of N+M is 0".to_owned(),
        ));
    }
    if protection.parity > 0 && total > units {
        return Err(invalid(format!(
            "protection {protection} needs {total} {what}, there are {units}"
        )));
    }
    let cairn = &catalog.cairn;
    let codes = product == Product::Cairn && protection.parity > 0;
    if codes && (protection.data > cairn.data_max || protection.parity > cairn.parity_max) {
        return Err(invalid(format!(
            "Cairn protects with at most {}+{}, not {protection}",
            cairn.data_max, cairn.parity_max
        )));
    }
    Ok(())
}

fn joined(raw: Bytes, protection: Protection) -> Capacity {
    let (efficiency, rule) = match protection.parity {
        0 => (1.0, rules::CAPACITY_JOINED),
        _ => (protection.efficiency(), rules::CAPACITY_PROTECTION),
    };
    Capacity {
        raw_bytes: figure(raw, &[rules::CAPACITY_RAW]),
        usable_bytes: figure(raw.times(efficiency), &[rules::CAPACITY_RAW, rule]),
        usable_percent: (efficiency * 1000.0).round() / 10.0,
    }
}

fn service_capacity(usable: Bytes) -> Capacity {
    Capacity {
        raw_bytes: figure(usable, &[rules::CAPACITY_SERVICE]),
        usable_bytes: figure(usable, &[rules::CAPACITY_SERVICE]),
        usable_percent: 100.0,
    }
}

fn both(left: Band<Limits>, right: Band<Limits>) -> Band<Limits> {
    Band {
        steady: left.steady.with(right.steady),
        burst: left.burst.with(right.burst),
    }
}

fn scaled(band: Band<Limits>, count: u32, what: &str) -> Band<Limits> {
    let (factor, why) = (f64::from(count), || format!("x {count} {what}"));
    Band {
        steady: band.steady.times(factor, why),
        burst: band.burst.times(factor, why),
    }
}

/// The figures of `count` equal servers that share the load, each behind its network.
struct Servers<'a> {
    instance: &'a Instance,
    count: u32,
    what: &'a str,
    /// What the network of a server is divided by, for internal traffic.
    read_network: (f64, String),
    write_network: (f64, String),
    credit_count: f64,
    detail: Detail,
}

impl Servers<'_> {
    fn performance(&self, of: ServerRates) -> Performance {
        let Self {
            instance,
            count,
            what,
            detail,
            ..
        } = *self;
        let (read_by, read_why) = &self.read_network;
        let (write_by, write_why) = &self.write_network;
        let read = scaled(
            both(network(instance, *read_by, read_why, detail), of.read),
            count,
            what,
        );
        let write = scaled(
            both(network(instance, *write_by, write_why, detail), of.write),
            count,
            what,
        );
        let read_iops = scaled(
            both(
                network_iops(instance, *read_by, read_why, detail),
                of.read_iops,
            ),
            count,
            what,
        );
        let write_iops = scaled(
            both(
                network_iops(instance, *write_by, write_why, detail),
                of.write_iops,
            ),
            count,
            what,
        );
        let cache = instance
            .memory()
            .times(MEMORY_CACHE_SHARE * f64::from(count));
        let cached = Rate::from_mb_s(
            scaled(network(instance, *read_by, read_why, detail), count, what)
                .steady
                .lowest(),
        );
        let credit = of.credit.map(|credit| Credit {
            baseline_mb_s: credit.baseline_mb_s.times(self.credit_count),
            burst_mb_s: credit.burst_mb_s.times(self.credit_count),
            bucket_bytes: credit.bucket_bytes.times(self.credit_count),
            ..credit
        });
        Performance {
            seq_read: throughput(read.steady, read.burst, &[]),
            seq_write: throughput(write.steady, write.burst, &of.write_rules),
            random_read: iops(read_iops.steady, read_iops.burst, &[]),
            random_write: iops(write_iops.steady, write_iops.burst, &of.random_rules),
            cached_read_mb_s: Some(spread_figure(
                cached,
                rules::NETWORK_INSTANCE,
                &[rules::CACHE_MEMORY, rules::NETWORK_INSTANCE],
                |rate, factor| rate.times(factor),
            )),
            uncached_read: None,
            cached_when: Some(
                detail.words(|| {
                    format!("when what is read fits into {cache} of memory, half of all")
                }),
            ),
            cache_bytes: Some(spread_figure(
                cache,
                rules::CACHE_MEMORY,
                &[rules::CACHE_MEMORY],
                |bytes, factor| bytes.times(factor),
            )),
            credit,
        }
    }
}

fn one(instance: &Instance, detail: Detail) -> Servers<'_> {
    Servers {
        instance,
        count: 1,
        what: "servers",
        read_network: (1.0, String::new()),
        write_network: (1.0, String::new()),
        credit_count: 1.0,
        detail,
    }
}

fn storage_notes(storage: &Storage, notes: &mut Vec<String>) {
    if matches!(storage, Storage::InstanceStore { .. }) {
        notes.push(
            "instance store is gone when its instance stops, hibernates or fails: for data that exists elsewhere too"
                .to_owned(),
        );
    }
}

fn check_storage(instance: &Instance, storage: &Storage) -> Result<(), EvaluateError> {
    if let Storage::InstanceStore { disk_bytes, .. } = storage
        && let Some((_, known)) = instance.data_disks()
        && (disk_bytes.get() - known.get()).abs() > 1.0
    {
        return Err(invalid(format!(
            "local disks of {} are {}, not {}",
            instance.name,
            known.tb_or_tib(),
            disk_bytes.tb_or_tib()
        )));
    }
    Ok(())
}

fn cluster<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    product: Product,
    it: &Cluster,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    check_count(it.nodes, "nodes")?;
    check_protection(catalog, product, it.protection, it.nodes, "nodes")?;
    let instance = catalog.instance(&it.instance)?;
    check_storage(instance, &it.storage)?;
    let of = rates(
        catalog,
        instance,
        &it.storage,
        it.protection,
        product,
        detail,
    )?;
    let elsewhere = f64::from(it.nodes - 1) / f64::from(it.nodes);
    let units = it.protection.units();
    let amplified = f64::from(units) / f64::from(it.protection.data);
    let nodes = Servers {
        instance,
        count: it.nodes,
        what: "nodes",
        read_network: (
            1.0 + elsewhere,
            detail.words(|| format!(" / (1 + {}/{})", it.nodes - 1, it.nodes)),
        ),
        write_network: (
            1.0 + amplified * elsewhere,
            detail.words(|| {
                format!(
                    " / (1 + {units}/{} x {}/{})",
                    it.protection.data,
                    it.nodes - 1,
                    it.nodes
                )
            }),
        ),
        credit_count: f64::from(it.nodes),
        detail,
    };
    let performance = nodes.performance(of);
    let capacity = joined(it.storage.raw().times(f64::from(it.nodes)), it.protection);
    let mut costing = Costing::new(book, catalog.today);
    costing.instances(&it.instance, it.nodes)?;
    costing.storage(&it.storage, it.nodes)?;
    costing.without("root volumes and data transfer");
    let mut notes = Vec::new();
    storage_notes(&it.storage, &mut notes);
    let survive_rule = match product {
        Product::Vendor => {
            costing
                .without("the OneFS licence of APEX File Storage, which Dell sells by quotation");
            rules::CLUSTER_PROTECTION
        }
        Product::Cairn => rules::CAIRN_CODES,
    };
    Ok(Parts {
        capacity,
        performance,
        costing,
        survives: figure(it.protection.parity, &[survive_rule]),
        survives_words: any(it.protection.parity, "node or disk", "nodes or disks"),
        notes,
    })
}

fn nfs_server<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    product: Product,
    it: &NfsServer,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let count = it.storage.count();
    check_protection(catalog, product, it.protection, count, "disks")?;
    let disks_max = catalog.cairn.disks_max;
    if product == Product::Cairn && count > disks_max {
        return Err(invalid(format!(
            "a Cairn server has at most {disks_max} disks, not {count}"
        )));
    }
    let instance = catalog.instance(&it.instance)?;
    check_storage(instance, &it.storage)?;
    let of = rates(
        catalog,
        instance,
        &it.storage,
        it.protection,
        product,
        detail,
    )?;
    let performance = one(instance, detail).performance(of);
    let mut costing = Costing::new(book, catalog.today);
    costing.instances(&it.instance, 1)?;
    costing.storage(&it.storage, 1)?;
    costing.without("root volumes and data transfer");
    let mut notes = Vec::new();
    storage_notes(&it.storage, &mut notes);
    let (rules, words): (&[rules::RuleId], String) = match (&it.storage, it.protection.parity) {
        (Storage::Ebs { .. }, 0) => (
            &[rules::CAPACITY_JOINED, rules::EBS_SURVIVES],
            "no volume; the server's failure stops the service and loses no data".to_owned(),
        ),
        (Storage::Ebs { .. }, parity) => (
            match product {
                Product::Cairn => &[rules::CAIRN_CODES, rules::EBS_SURVIVES],
                Product::Vendor => &[rules::CAPACITY_PROTECTION, rules::EBS_SURVIVES],
            },
            any(parity, "volume", "volumes")
                + " (the data, not the service: it stops with its one server)",
        ),
        (Storage::InstanceStore { .. }, 0) => (
            &[rules::CAPACITY_JOINED, rules::STORE_LOST],
            "no disk, and no stop of the server: instance store is gone with it".to_owned(),
        ),
        (Storage::InstanceStore { .. }, parity) => (
            &[rules::CAIRN_CODES, rules::STORE_LOST],
            any(parity, "disk", "disks")
                + ", but no stop of the server: instance store is gone with it",
        ),
    };
    // A failure is of any part: what dies with its server survives none.
    let survives = match &it.storage {
        Storage::Ebs { .. } => it.protection.parity,
        Storage::InstanceStore { .. } => 0,
    };
    Ok(Parts {
        capacity: joined(it.storage.raw(), it.protection),
        performance,
        costing,
        survives: figure(survives, rules),
        survives_words: words,
        notes,
    })
}

/// Several servers of one's own, as block systems, as a parallel file system or as volumes.
fn servers<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    count: u32,
    server: &NfsServer,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    check_count(count, "servers")?;
    let single = nfs_server(catalog, book, Product::Cairn, server, detail)?;
    let instance = catalog.instance(&server.instance)?;
    let of = rates(
        catalog,
        instance,
        &server.storage,
        server.protection,
        Product::Cairn,
        detail,
    )?;
    let mut all = one(instance, detail);
    all.count = count;
    all.credit_count = f64::from(count);
    let performance = all.performance(of);
    let mut costing = Costing::new(book, catalog.today);
    costing.instances(&server.instance, count)?;
    costing.storage(&server.storage, count)?;
    costing.without("root volumes and data transfer");
    Ok(Parts {
        capacity: joined(
            server.storage.raw().times(f64::from(count)),
            server.protection,
        ),
        performance,
        costing,
        survives: single.survives,
        survives_words: format!("in each server {}", single.survives_words),
        notes: single.notes,
    })
}
