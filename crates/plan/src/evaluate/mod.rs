//! From a design to its figures: capacity, rates, bottlenecks, cost.
//!
//! Owns: how the rules combine for each family. Pure: the same catalog and design, the same figures.
//! Must not know: goals, other designs, how figures are shown.

mod cost;
mod limits;
mod server;

use crate::catalog::{Band, Catalog, CatalogError, Instance};
use crate::design::{
    CloudVolumes, Cluster, Design, Family, NfsServer, ParallelFs, Product, Protection, SanArray,
    SanSystem, Shape, Storage,
};
use crate::evaluate::cost::Costing;
pub use crate::evaluate::limits::Detail;
use crate::evaluate::limits::{Limits, iops, throughput};
use crate::evaluate::server::{RANDOM_BYTES, ServerRates, network, network_iops, rates};
use crate::prices::{PriceBook, PriceError};
use crate::report::{Capacity, Credit, Evaluation, Figure, Performance, Protocol};
use crate::rules;
use crate::units::{Bytes, Rate, Usd, number};

/// Servers, volumes or systems at most in one design: far above any, below what overflows.
pub const COUNT_MAX: u32 = 10_000;
/// Share of a server's memory that we count as cache (rule `cache.memory`).
const MEMORY_CACHE_SHARE: f64 = 0.5;
/// How long a Lustre bucket is assumed to last at full burst (rule `lustre.credit`).
const LUSTRE_BURST_S: f64 = 1800.0;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    #[error("this design cannot be built: {detail}")]
    Invalid { detail: String },
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

/// The same, or its numbers alone.
pub fn evaluate_with(
    catalog: &Catalog,
    design: &Design,
    detail: Detail,
) -> Result<Evaluation, EvaluateError> {
    let book = catalog.prices.book(&design.region)?;
    let parts = match &design.shape {
        Shape::Cluster(it) => cluster(catalog, book, design.product, it, detail)?,
        Shape::NfsServer(it) => nfs_server(catalog, book, design.product, it, detail)?,
        Shape::SanArray(it) => san_array(catalog, book, it, detail)?,
        Shape::ParallelFs(it) => parallel_fs(catalog, book, it, detail)?,
        Shape::CloudVolumes(it) => cloud_volumes(catalog, book, it, detail)?,
    };
    let cost = parts.costing.finish(&parts.capacity, &parts.performance);
    let needs = needs(catalog, design);
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
        notes: parts.notes,
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
        Shape::Cluster(_) | Shape::ParallelFs(_) => "cluster",
        Shape::SanArray(_) => "iscsi",
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
    }
}

/// What Cairn in this shape serves, or will.
pub(crate) fn planned_protocols(family: Family) -> &'static [Protocol] {
    match family {
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
        rules: rules.to_vec(),
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
    let total = protection.data.saturating_add(protection.parity);
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
    let (factor, why) = (f64::from(count), format!("x {count} {what}"));
    Band {
        steady: band.steady.times(factor, &why),
        burst: band.burst.times(factor, &why),
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
            cached_read_mb_s: Some(figure(
                cached,
                &[rules::CACHE_MEMORY, rules::NETWORK_INSTANCE],
            )),
            cached_when: Some(format!(
                "when what is read fits into {cache} of memory, half of all"
            )),
            cache_bytes: Some(figure(cache, &[rules::CACHE_MEMORY])),
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
            "local disks lose everything when their instance stops: for data that exists elsewhere too"
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
    let units = it.protection.data + it.protection.parity;
    let amplified = f64::from(units) / f64::from(it.protection.data);
    let nodes = Servers {
        instance,
        count: it.nodes,
        what: "nodes",
        read_network: (
            1.0 + elsewhere,
            format!(" / (1 + {}/{})", it.nodes - 1, it.nodes),
        ),
        write_network: (
            1.0 + amplified * elsewhere,
            format!(
                " / (1 + {units}/{} x {}/{})",
                it.protection.data,
                it.nodes - 1,
                it.nodes
            ),
        ),
        credit_count: f64::from(it.nodes),
        detail,
    };
    let performance = nodes.performance(of);
    let capacity = joined(it.storage.raw().times(f64::from(it.nodes)), it.protection);
    let mut costing = Costing::new(book);
    costing.instances(&it.instance, it.nodes)?;
    costing.storage(&it.storage, it.nodes)?;
    costing.without("root volumes and data transfer");
    let mut notes = Vec::new();
    storage_notes(&it.storage, &mut notes);
    let survive_rule = match product {
        Product::Vendor => {
            costing.without("the vendor's software licence");
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
    let mut costing = Costing::new(book);
    costing.instances(&it.instance, 1)?;
    costing.storage(&it.storage, 1)?;
    costing.without("root volumes and data transfer");
    let mut notes = Vec::new();
    storage_notes(&it.storage, &mut notes);
    let (rules, words): (&[rules::RuleId], String) = match (&it.storage, it.protection.parity) {
        (Storage::Ebs { .. }, 0) => (
            &[rules::CAPACITY_JOINED, rules::EBS_SURVIVES],
            "no volume; the server's failure stops service, not data".to_owned(),
        ),
        (Storage::Ebs { .. }, parity) => (
            &[rules::CAIRN_CODES, rules::EBS_SURVIVES],
            any(parity, "volume", "volumes") + "; the server's failure stops service, not data",
        ),
        (Storage::InstanceStore { .. }, 0) => (
            &[rules::CAPACITY_JOINED, rules::STORE_LOST],
            "no disk; the server's failure loses all".to_owned(),
        ),
        (Storage::InstanceStore { .. }, parity) => (
            &[rules::CAIRN_CODES, rules::STORE_LOST],
            any(parity, "disk", "disks") + ", but not the server: local disks are gone with it",
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
    let mut costing = Costing::new(book);
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

fn san_array<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &SanArray,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    check_count(it.systems, "systems")?;
    let (ssd, iops_each, rate) = match &it.system {
        SanSystem::Server(server) => return servers(catalog, book, it.systems, server, detail),
        SanSystem::Ontap {
            ssd_bytes,
            iops,
            mb_s,
        } => (*ssd_bytes, *iops, *mb_s),
    };
    let of = &catalog.designs.san_array;
    let size = of.ssd_tb_min..=of.ssd_tb_max;
    if it.systems > of.systems_max
        || !size.contains(&(ssd.get() / 1e12))
        || iops_each > of.iops_max
        || rate.mb_s() > of.throughput_gb_s_max * 1024.0
    {
        return Err(invalid(format!(
            "an array is at most {} file systems of {} to {} TB SSD, {} IOPS and {} GB/s each",
            of.systems_max, of.ssd_tb_min, of.ssd_tb_max, of.iops_max, of.throughput_gb_s_max
        )));
    }
    let count = f64::from(it.systems);
    let (mut read, mut write, mut random) = (
        Limits::new(detail),
        Limits::new(detail),
        Limits::new(detail),
    );
    read.rate(
        "throughput capacity",
        rate.times(count),
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate}", it.systems),
    );
    let each = rate.min(Rate::from_mb_s(of.write_mb_s_max));
    write.rate(
        "throughput capacity",
        rate.times(count),
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate}", it.systems),
    );
    write.rate(
        "writes copied to the partner",
        each.times(count),
        rules::SAN_WRITE,
        || format!("{} systems x {each}", it.systems),
    );
    random.iops(
        "SSD IOPS",
        iops_each as f64 * count,
        rules::SAN_IOPS,
        || format!("{} systems x {iops_each} IOPS", it.systems),
    );
    random.iops(
        "throughput capacity",
        rate.bytes_s() * count / RANDOM_BYTES,
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate} / 4 KiB", it.systems),
    );
    let mut random_write = random.clone();
    random_write.iops(
        "writes copied to the partner",
        each.bytes_s() * count / RANDOM_BYTES,
        rules::SAN_WRITE,
        || format!("{} systems x {each} / 4 KiB", it.systems),
    );
    let prices = book.ontap()?;
    let mut costing = Costing::new(book);
    let extra = iops_each as f64 - prices.iops_per_gib_included * ssd.gib();
    let month = prices.usd_per_gb_month * ssd.gib()
        + prices.usd_per_iops_month * extra.max(0.0)
        + prices.usd_per_mb_s_month * rate.mb_s();
    costing.service(
        "FSx for NetApp ONTAP file system".to_owned(),
        count,
        Usd(month * count),
        prices.of.as_deref(),
    );
    costing.without("the host that stripes over the array, and data transfer");
    let performance = Performance {
        seq_read: throughput(read.clone(), read, &[rules::SAN_STRIPE]),
        seq_write: throughput(write.clone(), write, &[rules::SAN_STRIPE]),
        random_read: iops(random.clone(), random, &[rules::SAN_STRIPE]),
        random_write: iops(random_write.clone(), random_write, &[rules::SAN_STRIPE]),
        cached_read_mb_s: None,
        cached_when: None,
        cache_bytes: None,
        credit: None,
    };
    Ok(Parts {
        capacity: service_capacity(ssd.times(count)),
        performance,
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "one server of each system's pair; losing a whole system loses the array"
            .to_owned(),
        notes: vec![
            "one host uses the array; its network carries all of it: 20 GB/s need 160 Gb/s"
                .to_owned(),
            "random reads that its memory or NVMe caches answer come on top of the SSD IOPS"
                .to_owned(),
        ],
    })
}

fn parallel_fs<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &ParallelFs,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let (level, capacity, cached) = match it {
        ParallelFs::Servers {
            servers: count,
            server,
        } => return servers(catalog, book, *count, server, detail),
        ParallelFs::Lustre {
            level,
            capacity_bytes,
            ssd_read_cache,
        } => (
            catalog.lustre_level(level)?,
            *capacity_bytes,
            *ssd_read_cache,
        ),
    };
    let tib = capacity.tib();
    let steps = tib / level.step_tib;
    if !(steps >= 1.0 - 1e-9 && (steps - steps.round()).abs() < 1e-6) {
        return Err(invalid(format!(
            "{} comes in steps of {} TiB, not {}",
            level.name,
            number(level.step_tib),
            capacity.tb_or_tib()
        )));
    }
    let of = &catalog.designs.parallel_fs;
    let cache_tib = tib * of.cache_share;
    let rate = |limits: &mut Limits, name: &str, size: f64, each: f64, rule, what: &str| {
        limits.rate(name, Rate::from_mb_s(size * each), rule, || {
            format!("{} TiB{what} x {} MB/s", number(size), number(each))
        });
    };
    let band = |steady: f64, burst: f64, disk: f64, disk_burst: f64| {
        let mut limits = Band {
            steady: Limits::new(detail),
            burst: Limits::new(detail),
        };
        for (limits, network, disk) in [
            (&mut limits.steady, steady, disk),
            (&mut limits.burst, burst, disk_burst),
        ] {
            rate(
                limits,
                "network of the servers",
                tib,
                network,
                rules::LUSTRE_NETWORK,
                "",
            );
            rate(limits, "disks", tib, disk, rules::LUSTRE_DISK, "");
        }
        limits
    };
    let write = band(
        level.network_mb_s_per_tib,
        level.network_burst_mb_s_per_tib,
        level.disk_mb_s_per_tib,
        level.disk_burst_write_mb_s_per_tib,
    );
    let uncached = band(
        level.network_mb_s_per_tib,
        level.network_burst_mb_s_per_tib,
        level.disk_mb_s_per_tib,
        level.disk_burst_read_mb_s_per_tib,
    );
    let mut cached_band = Band {
        steady: Limits::new(detail),
        burst: Limits::new(detail),
    };
    for (limits, network, burst) in [
        (
            &mut cached_band.steady,
            level.cache_network_mb_s_per_tib,
            false,
        ),
        (
            &mut cached_band.burst,
            level.cache_network_burst_mb_s_per_tib,
            true,
        ),
    ] {
        rate(
            limits,
            "network of the cache",
            cache_tib,
            network,
            rules::LUSTRE_CACHE,
            " of cache",
        );
        // A burst is answered by the cache servers' memory too: only their network limits it.
        if !burst {
            let disk = of.cache_disk_mb_s_per_tib;
            rate(
                limits,
                "disks of the cache",
                cache_tib,
                disk,
                rules::LUSTRE_CACHE,
                " of cache",
            );
        }
    }
    let read = if cached {
        cached_band.clone()
    } else {
        uncached
    };
    let random = |band: &Band<Limits>| {
        let mut limits = Limits::new(detail);
        limits.iops(
            "disks",
            band.steady.lowest() * 1e6 / (1024.0 * 1024.0),
            rules::LUSTRE_DISK,
            || "hard disks: one operation counted as 1 MiB of throughput".to_owned(),
        );
        limits
    };
    let (random_read, random_write) = (random(&read), random(&write));
    let price_of = if cached {
        format!("{} with cache", level.name)
    } else {
        level.name.clone()
    };
    let (usd, of_list) = book.lustre(&price_of)?;
    let mut costing = Costing::new(book);
    // A TiB of this service is 1,000 GiB, in its API and on its bill.
    let gib = tib * 1000.0;
    costing.service(
        format!("FSx for Lustre {price_of}, {} GiB", number(gib)),
        1.0,
        Usd(usd * gib),
        of_list,
    );
    let credit = Credit {
        name: "servers' network and disks".to_owned(),
        baseline_mb_s: Rate::from_mb_s(write.steady.lowest()),
        burst_mb_s: Rate::from_mb_s(write.burst.lowest()),
        bucket_bytes: Bytes::new(
            (write.burst.lowest() - write.steady.lowest()) * 1e6 * LUSTRE_BURST_S,
        ),
        burst_s: LUSTRE_BURST_S,
        rules: vec![rules::LUSTRE_CREDIT],
    };
    let mut notes = vec![format!(
        "memory cache {}, {} TiB of SSD read cache",
        Bytes::from_gib(tib * level.memory_gib_per_tib),
        if cached {
            number(cache_tib)
        } else {
            "no".to_owned()
        }
    )];
    notes.push("clients need the Lustre client".to_owned());
    let cache = Bytes::from_tib(cache_tib);
    let performance = Performance {
        seq_read: throughput(
            read.steady,
            read.burst,
            if cached { &[rules::LUSTRE_CACHE] } else { &[] },
        ),
        seq_write: throughput(write.steady, write.burst, &[]),
        random_read: iops(random_read.clone(), random_read, &[]),
        random_write: iops(random_write.clone(), random_write, &[]),
        cached_read_mb_s: cached.then(|| {
            figure(
                Rate::from_mb_s(cached_band.steady.lowest()),
                &[rules::LUSTRE_CACHE],
            )
        }),
        cached_when: cached.then(|| format!("when what is read fits into {cache} of SSD cache")),
        cache_bytes: cached.then(|| figure(cache, &[rules::LUSTRE_CACHE])),
        credit: Some(credit),
    };
    Ok(Parts {
        capacity: service_capacity(capacity),
        performance,
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "a server or disk, replaced by the service".to_owned(),
        notes,
    })
}

fn cloud_volumes<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &CloudVolumes,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let (level, volumes, quota) = match it {
        CloudVolumes::Servers {
            servers: count,
            server,
        } => {
            let mut parts = servers(catalog, book, *count, server, detail)?;
            parts
                .notes
                .push("each volume lives on one server, and is a name space of its own".to_owned());
            return Ok(parts);
        }
        CloudVolumes::Service {
            level,
            volumes,
            quota_bytes,
        } => (catalog.cloud_volume_level(level)?, *volumes, *quota_bytes),
    };
    check_count(volumes, "volumes")?;
    let of = &catalog.designs.cloud_volumes;
    if !(quota.gb() >= 1.0 && quota.get() <= of.quota_tb_max * 1e12 * 1.000_001) {
        return Err(invalid(format!(
            "a volume is 1 GB to {} TB, not {}",
            of.quota_tb_max,
            quota.tb_or_tib()
        )));
    }
    let count = f64::from(volumes);
    let mut by_level = Limits::new(detail);
    by_level.rate(
        "service level",
        Rate::from_mb_s(quota.gb() * level.kb_s_per_gb / 1000.0).times(count),
        rules::CVS_LEVEL,
        || {
            format!(
                "{volumes} volumes x {} GB x {} KB/s",
                number(quota.gb()),
                number(level.kb_s_per_gb)
            )
        },
    );
    let volume = |mib_s: f64| {
        let mut limits = by_level.clone();
        limits.rate(
            "one volume",
            Rate::from_mib_s(mib_s * count),
            rules::CVS_VOLUME,
            || format!("{volumes} volumes x {} MiB/s", number(mib_s)),
        );
        limits
    };
    let random = |each: f64| {
        let mut limits = Limits::new(detail);
        limits.iops("one volume", each * count, rules::CVS_VOLUME, || {
            format!("{volumes} volumes x {} IOPS", number(each))
        });
        limits.iops(
            "service level",
            by_level.lowest() * 1e6 / RANDOM_BYTES,
            rules::CVS_LEVEL,
            || "rate of the level / 4 KiB".to_owned(),
        );
        limits
    };
    let (usd, of_list) = book.cloud_volume(&level.name)?;
    let mut costing = Costing::new(book);
    costing.service(
        format!("{} volume of {} GB", level.name, number(quota.gb())),
        count,
        Usd(usd * quota.gb() * count),
        of_list,
    );
    let (read, write) = (volume(of.volume_read_mib_s), volume(of.volume_write_mib_s));
    let (random_read, random_write) = (random(of.volume_read_iops), random(of.volume_write_iops));
    Ok(Parts {
        capacity: service_capacity(quota.times(count)),
        performance: Performance {
            seq_read: throughput(read.clone(), read, &[]),
            seq_write: throughput(write.clone(), write, &[]),
            random_read: iops(random_read.clone(), random_read, &[]),
            random_write: iops(random_write.clone(), random_write, &[]),
            cached_read_mb_s: None,
            cached_when: None,
            cache_bytes: None,
            credit: None,
        },
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "a part of the service, replaced by it".to_owned(),
        notes: vec![
            "level and size change at any time; cost counts only for the time they hold".to_owned(),
            "one TCP connection carries 5 Gb/s (10 Gb/s in a placement group): mount with nconnect"
                .to_owned(),
        ],
    })
}

/// What one instance gets of a cloud volume: its flows, and the gateway's share of its network.
pub fn cloud_volume_client(
    catalog: &Catalog,
    instance: &str,
    flows: u32,
) -> Result<Rate, EvaluateError> {
    let detail = Detail::Figures;
    /// Instances of fewer processors get a fixed rate through a gateway.
    const GATEWAY_VCPU_MIN: u32 = 32;
    const GATEWAY_SMALL_GBIT_S: f64 = 5.0;
    let of = &catalog.designs.cloud_volumes;
    let instance = catalog.instance(instance)?;
    let network = instance.network().steady;
    let gateway = if instance.vcpu >= GATEWAY_VCPU_MIN {
        network.times(0.5)
    } else {
        Rate::from_gbit_s(GATEWAY_SMALL_GBIT_S).min(network)
    };
    let flows = flows.min(of.flows_max);
    let mut limits = Limits::new(detail);
    limits.rate("gateway", gateway, rules::CVS_GATEWAY, || {
        format!("{}: {} Gb/s / 2", instance.name, number(network.gbit_s()))
    });
    limits.rate(
        "flows",
        Rate::from_gbit_s(of.flow_gbit_s_outside * f64::from(flows)),
        rules::CVS_FLOW,
        || format!("{flows} flows x {} Gb/s", number(of.flow_gbit_s_outside)),
    );
    limits.rate(
        "one volume",
        Rate::from_mib_s(of.volume_read_mib_s),
        rules::CVS_VOLUME,
        || format!("{} MiB/s", number(of.volume_read_mib_s)),
    );
    Ok(Rate::from_mb_s(limits.lowest()))
}
