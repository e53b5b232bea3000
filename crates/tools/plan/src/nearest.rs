//! The configuration nearest to one that breaks a rule.
//!
//! Owns: what of a design may change, and how far apart that makes two designs. A design is repaired where
//! it is broken: what breaks nothing stays, and of two repairs the one that changes less wins.
//! Must not know: goals; which design would be better.

use std::collections::BTreeMap;

use crate::catalog::{Catalog, VolumeType, nearest as names_like};
use crate::check::violations;
use crate::deployable::COUNT_MAX;
use crate::design::{
    CloudVolumes, Cluster, Design, Elastic, Family, NfsServer, ParallelFs, Product, Protection,
    SanArray, SanSystem, Shape, Storage, Volume,
};
use crate::evaluate::{Detail, EvaluateError, evaluate_with};
use crate::units::{Bytes, Rate};

/// Each thing that changes counts this much, besides how much it changes.
const CHANGED: f64 = 0.3;
/// Another instance, another volume type, another number of nodes are larger changes than another size.
const INSTANCE: f64 = 2.0;
const TYPE: f64 = 4.0;
const NODES: f64 = 1.0;
const LEVEL: f64 = 1.0;
const REGION: f64 = 1.0;
/// Capacity is what most people bought it for.
const CAPACITY: f64 = 0.5;
/// Instance types that are tried besides the given one.
const INSTANCE_COUNT: usize = 6;
/// Designs without a price that are tried in a region before one is named all the same.
const UNPRICED_MAX: usize = 200;

/// One value that a part of the design may take, and how far it is from the given one.
type Choice<T> = (f64, T);

fn apart(left: f64, right: f64) -> f64 {
    (left.max(1e-9) / right.max(1e-9)).ln().abs()
}

/// The nearest design that breaks no rule; one with a price if there is one.
pub fn nearest(catalog: &Catalog, design: &Design) -> Option<Design> {
    let mut all: Vec<Choice<Design>> = Vec::new();
    for (region_apart, region) in regions(catalog, &design.region) {
        for (shape_apart, shape) in shapes(catalog, design.product, &design.shape) {
            let other = Design {
                product: design.product,
                region: region.clone(),
                shape,
            };
            let capacity = CAPACITY * apart(raw(&design.shape), raw(&other.shape));
            all.push((region_apart + shape_apart + capacity, other));
        }
    }
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut unpriced = None;
    let mut tried: BTreeMap<String, usize> = BTreeMap::new();
    for (_, other) in all {
        // Another region may have a price.
        let tried_here = tried.get(&other.region).copied().unwrap_or(0);
        if tried_here >= UNPRICED_MAX {
            continue;
        }
        if !violations(catalog, &other).is_empty() {
            continue;
        }
        match evaluate_with(catalog, &other, Detail::Figures) {
            Ok(_) => return Some(other),
            // Its price is missing for the given one, too.
            Err(EvaluateError::Price(_)) if keeps_instance(design, &other) => return Some(other),
            Err(EvaluateError::Price(_)) => {
                tried.insert(other.region.clone(), tried_here + 1);
                unpriced.get_or_insert(other);
            }
            Err(_) => {}
        }
    }
    unpriced
}

fn keeps_instance(design: &Design, other: &Design) -> bool {
    design.region == other.region
        && instance(&design.shape).is_some_and(|given| instance(&other.shape) == Some(given))
}

fn instance(shape: &Shape) -> Option<&str> {
    match shape {
        Shape::Cluster(it) => Some(&it.instance),
        Shape::NfsServer(server)
        | Shape::SanArray(SanArray {
            system: SanSystem::Server(server),
            ..
        })
        | Shape::ParallelFs(ParallelFs::Servers { server, .. })
        | Shape::CloudVolumes(CloudVolumes::Servers { server, .. }) => Some(&server.instance),
        Shape::SanArray(_) | Shape::ParallelFs(_) | Shape::CloudVolumes(_) | Shape::Elastic(_) => {
            None
        }
    }
}

fn raw(shape: &Shape) -> f64 {
    let servers = |count: u32, server: &NfsServer| f64::from(count) * server.storage.raw().get();
    match shape {
        Shape::Cluster(it) => f64::from(it.nodes) * it.storage.raw().get(),
        Shape::NfsServer(it) => servers(1, it),
        Shape::SanArray(it) => match &it.system {
            SanSystem::Server(server) => servers(it.systems, server),
            SanSystem::Ontap { ssd_bytes, .. } => f64::from(it.systems) * ssd_bytes.get(),
        },
        Shape::ParallelFs(ParallelFs::Servers {
            servers: count,
            server,
        })
        | Shape::CloudVolumes(CloudVolumes::Servers {
            servers: count,
            server,
        }) => servers(*count, server),
        Shape::ParallelFs(ParallelFs::Lustre { capacity_bytes, .. }) => capacity_bytes.get(),
        Shape::CloudVolumes(CloudVolumes::Service {
            volumes,
            quota_bytes,
            ..
        }) => f64::from(*volumes) * quota_bytes.get(),
        Shape::Elastic(it) => it.capacity().get(),
    }
}

fn regions(catalog: &Catalog, given: &str) -> Vec<Choice<String>> {
    let priced = |name: &str| catalog.prices.books.iter().any(|book| book.name == name);
    if crate::deployable::is_region(given) || priced(given) {
        return vec![(0.0, given.to_owned())];
    }
    let books = catalog.prices.books.iter().map(|book| book.name.as_str());
    let real = books.filter(|name| crate::deployable::is_region(name));
    names_like(given, real)
        .into_iter()
        .enumerate()
        .map(|(index, name)| (REGION + index as f64, name))
        .collect()
}

fn shapes(catalog: &Catalog, product: Product, shape: &Shape) -> Vec<Choice<Shape>> {
    let many = |count: u32, server: &NfsServer, make: &dyn Fn(u32, NfsServer) -> Shape| {
        let mut all = Vec::new();
        for (count_apart, count) in counts(count, 1, COUNT_MAX) {
            for (apart, server) in servers(catalog, Product::Cairn, server) {
                all.push((count_apart + apart, make(count, server)));
            }
        }
        all
    };
    match shape {
        Shape::Cluster(it) => clusters(catalog, product, it),
        Shape::NfsServer(it) => servers(catalog, product, it)
            .into_iter()
            .map(|(apart, server)| (apart, Shape::NfsServer(server)))
            .collect(),
        Shape::SanArray(it) => hosted(
            catalog,
            it.host.as_deref(),
            match &it.system {
                SanSystem::Server(server) => many(it.systems, server, &|systems, server| {
                    Shape::SanArray(SanArray {
                        systems,
                        system: SanSystem::Server(server),
                        host: None,
                    })
                }),
                SanSystem::Ontap {
                    ssd_bytes,
                    iops,
                    mb_s,
                } => arrays(catalog, it.systems, *ssd_bytes, *iops, *mb_s),
            },
        ),
        Shape::ParallelFs(ParallelFs::Servers {
            servers: count,
            server,
        }) => many(*count, server, &|servers, server| {
            Shape::ParallelFs(ParallelFs::Servers { servers, server })
        }),
        Shape::CloudVolumes(CloudVolumes::Servers {
            servers: count,
            server,
        }) => many(*count, server, &|servers, server| {
            Shape::CloudVolumes(CloudVolumes::Servers { servers, server })
        }),
        Shape::ParallelFs(ParallelFs::Lustre {
            level,
            capacity_bytes,
            ssd_read_cache,
        }) => lustre(catalog, level, *capacity_bytes, *ssd_read_cache),
        Shape::CloudVolumes(CloudVolumes::Service {
            level,
            volumes,
            quota_bytes,
        }) => cloud_volumes(catalog, level, *volumes, *quota_bytes),
        Shape::Elastic(it) => elastic(catalog, it),
    }
}

/// These arrays behind the given host, or one of the most similar name.
fn hosted(catalog: &Catalog, host: Option<&str>, shapes: Vec<Choice<Shape>>) -> Vec<Choice<Shape>> {
    let Some(host) = host else {
        return shapes;
    };
    let names = instances(catalog, host, &[]);
    let mut all = Vec::new();
    for (by, shape) in shapes {
        let Shape::SanArray(it) = shape else { continue };
        for (host_apart, name) in &names {
            let with = SanArray {
                host: Some(name.clone()),
                ..it.clone()
            };
            all.push((by + host_apart, Shape::SanArray(with)));
        }
    }
    all
}

fn elastic(catalog: &Catalog, it: &Elastic) -> Vec<Choice<Shape>> {
    let given = it.capacity();
    let within = Bytes::from_gib(given.gib().clamp(1.0, 1e12));
    let by = match within == given {
        true => 0.0,
        false => CHANGED + apart(given.get(), within.get()),
    };
    let Elastic::Efs { level, mib_s, .. } = it else {
        let capacity_bytes = within;
        return vec![(by, Shape::Elastic(Elastic::S3 { capacity_bytes }))];
    };
    let mut all = Vec::new();
    for of in &catalog.designs.elastic.efs {
        let level_apart = match of.name == *level {
            true => 0.0,
            false => LEVEL + 3.0 * (1.0 - strsim::jaro_winkler(level, &of.name)),
        };
        let given = mib_s.map(f64::from);
        let bounded = given.map(|given| given.clamp(1.0, of.write_mib_s_max));
        all.push((
            by + level_apart + changed(given, bounded, None),
            Shape::Elastic(Elastic::Efs {
                level: of.name.clone(),
                capacity_bytes: within,
                mib_s: bounded.map(|it| it as u32),
            }),
        ));
    }
    all
}

/// The given count, or the nearest that is within bounds.
fn counts(given: u32, least: u32, most: u32) -> Vec<Choice<u32>> {
    let mut all = vec![(0.0, given)];
    let within = given.clamp(least, most);
    if within != given {
        all.push((
            CHANGED + NODES + apart(f64::from(given), f64::from(within)),
            within,
        ));
    }
    all
}

fn clusters(catalog: &Catalog, product: Product, it: &Cluster) -> Vec<Choice<Shape>> {
    let of = &catalog.designs.cluster;
    let vendor = product == Product::Vendor;
    let mut nodes: Vec<Choice<u32>> = vec![(0.0, it.nodes)];
    let others: Vec<u32> = match vendor {
        true => (of.nodes_min..=of.nodes_max).collect(),
        false => vec![it.nodes.clamp(1, COUNT_MAX), it.protection.units()],
    };
    for other in others.into_iter().filter(|other| *other != it.nodes) {
        nodes.push((
            CHANGED + NODES + apart(f64::from(it.nodes), f64::from(other)),
            other,
        ));
    }
    let instances = match vendor {
        true => instances(catalog, &it.instance, &of.instances),
        false => instances(catalog, &it.instance, &[]),
    };
    let mut all = Vec::new();
    for (nodes_apart, nodes) in &nodes {
        for (instance_apart, instance) in &instances {
            for (storage_apart, storage) in
                storages(catalog, instance, &it.storage, vendor.then_some(*nodes))
            {
                for (code_apart, protection) in codes(catalog, product, it.protection, *nodes) {
                    all.push((
                        nodes_apart + instance_apart + storage_apart + code_apart,
                        Shape::Cluster(Cluster {
                            nodes: *nodes,
                            instance: instance.clone(),
                            storage: storage.clone(),
                            protection,
                        }),
                    ));
                }
            }
        }
    }
    all
}

fn servers(catalog: &Catalog, product: Product, it: &NfsServer) -> Vec<Choice<NfsServer>> {
    let mut all = Vec::new();
    for (instance_apart, instance) in instances(catalog, &it.instance, &[]) {
        for (storage_apart, storage) in storages(catalog, &instance, &it.storage, None) {
            let mut storages = vec![(storage_apart, storage)];
            if product == Product::Vendor {
                let smaller = below_paper(catalog, &storages[0].1);
                storages.extend(smaller.map(|(apart, it)| (storage_apart + apart, it)));
            } else {
                let count = it.protection.units();
                let counted = with_count(
                    &storages[0].1,
                    count.clamp(1, catalog.cairn.disks_max.max(1)),
                );
                storages.extend(counted.map(|(apart, it)| (storage_apart + apart, it)));
                let bounded = with_count(&storages[0].1, catalog.cairn.disks_max);
                storages.extend(bounded.map(|(apart, it)| (storage_apart + apart, it)));
            }
            for (storage_apart, storage) in storages {
                for (code_apart, protection) in
                    codes(catalog, product, it.protection, storage.count())
                {
                    all.push((
                        instance_apart + storage_apart + code_apart,
                        NfsServer {
                            instance: instance.clone(),
                            storage: storage.clone(),
                            protection,
                        },
                    ));
                }
            }
        }
    }
    all
}

/// This storage with another count.
fn with_count(storage: &Storage, count: u32) -> Option<Choice<Storage>> {
    let from = storage.count();
    if count == from {
        return None;
    }
    let mut other = storage.clone();
    match &mut other {
        Storage::InstanceStore { disks, .. } => *disks = count,
        Storage::Ebs { volumes, .. } => *volumes = count,
    }
    Some((
        CHANGED + apart(f64::from(from), f64::from(count.max(1))),
        other,
    ))
}

/// Just below what the NFS paper has one server for: smaller volumes, or fewer disks.
fn below_paper(catalog: &Catalog, storage: &Storage) -> Option<Choice<Storage>> {
    let most = Bytes::from_tib(catalog.designs.nfs_server.capacity_below_tib);
    if storage.raw() < most {
        return None;
    }
    let count = f64::from(storage.count().max(1));
    match storage {
        Storage::InstanceStore { disk_bytes, .. } => {
            let fit = (most.get() / disk_bytes.get().max(1.0)).ceil() - 1.0;
            with_count(storage, fit.clamp(1.0, 1e6) as u32)
        }
        Storage::Ebs { volumes, volume } => {
            let gib = (most.gib() / count).ceil() - 1.0;
            let from = volume.size_bytes.gib();
            let mut volume = volume.clone();
            volume.size_bytes = Bytes::from_gib(gib);
            Some((
                CHANGED + apart(from, gib),
                Storage::Ebs {
                    volumes: *volumes,
                    volume,
                },
            ))
        }
    }
}

/// The given type, those of `preferred`, and others of its family or with a similar name.
fn instances(catalog: &Catalog, given: &str, preferred: &[String]) -> Vec<Choice<String>> {
    let known = catalog.instances.get(given);
    let mut all: Vec<Choice<String>> = match known {
        Some(_) => vec![(0.0, given.to_owned())],
        None => Vec::new(),
    };
    let family = given.split('.').next().unwrap_or(given);
    let mut others: Vec<Choice<String>> = catalog
        .instances
        .values()
        .filter(|it| it.name != given)
        .filter(|it| preferred.is_empty() || preferred.contains(&it.name))
        .map(|it| {
            let size = known.map_or(0.0, |of| apart(f64::from(of.vcpu), f64::from(it.vcpu)));
            let same = it.name.split('.').next() == Some(family);
            let name = 3.0 * (1.0 - strsim::jaro_winkler(given, &it.name));
            let previous = if it.previous && !same { 1.0 } else { 0.0 };
            (
                CHANGED + INSTANCE + size + name + previous + if same { 0.0 } else { 1.0 },
                it.name.clone(),
            )
        })
        .collect();
    others.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    others.truncate(INSTANCE_COUNT);
    all.append(&mut others);
    all
}

/// `cluster_nodes`: the paper's cluster of so many nodes, whose volumes have their own table.
fn storages(
    catalog: &Catalog,
    instance: &str,
    given: &Storage,
    cluster_nodes: Option<u32>,
) -> Vec<Choice<Storage>> {
    let Some(instance) = catalog.instances.get(instance) else {
        return vec![(0.0, given.clone())];
    };
    let mut all = Vec::new();
    let (count, size) = (given.count(), given.size_each());
    if let Storage::InstanceStore { disks, .. } = given
        && cluster_nodes.is_none()
        && let Some((_, disk_bytes)) = instance.data_disks()
    {
        let within = (*disks).clamp(1, instance.disks);
        let changed = |it: bool| if it { CHANGED } else { 0.0 };
        let sizes = apart(size.get(), disk_bytes.get());
        all.push((
            changed(within != *disks)
                + changed(sizes > 1e-9)
                + apart(f64::from(*disks), f64::from(within))
                + sizes,
            Storage::InstanceStore {
                disks: within,
                disk_bytes,
            },
        ));
        return all;
    }
    let (asked, other_kind) = match given {
        Storage::Ebs { volume, .. } => (volume.clone(), 0.0),
        Storage::InstanceStore { .. } => (
            Volume {
                volume_type: "gp3".to_owned(),
                size_bytes: size,
                iops: None,
                mib_s: None,
            },
            TYPE,
        ),
    };
    for (type_apart, volume_type) in volume_types(catalog, &asked.volume_type, cluster_nodes) {
        for (count_apart, volumes) in volume_counts(
            catalog,
            count,
            instance.ebs_volumes_max,
            &volume_type,
            cluster_nodes,
        ) {
            for (size_apart, size_bytes) in volume_sizes(
                catalog,
                asked.size_bytes,
                volumes,
                &volume_type,
                cluster_nodes,
            ) {
                for (given_apart, iops, mib_s) in provisioned(
                    catalog,
                    &asked,
                    &volume_type,
                    &instance.name,
                    size_bytes,
                    cluster_nodes.is_some(),
                ) {
                    all.push((
                        other_kind + type_apart + count_apart + size_apart + given_apart,
                        Storage::Ebs {
                            volumes,
                            volume: Volume {
                                volume_type: volume_type.clone(),
                                size_bytes,
                                iops,
                                mib_s,
                            },
                        },
                    ));
                }
            }
        }
    }
    all
}

fn volume_types(catalog: &Catalog, given: &str, cluster_nodes: Option<u32>) -> Vec<Choice<String>> {
    let known = catalog.designs.volume.contains_key(given);
    let mut all = Vec::new();
    if known {
        all.push((0.0, given.to_owned()));
    }
    let of = &catalog.designs.cluster;
    let others: Vec<String> = match (cluster_nodes, known) {
        (Some(_), _) => vec![of.ssd.volume_type.clone(), of.hdd.volume_type.clone()],
        (None, true) => Vec::new(),
        // An unknown type is most likely an SSD of an earlier time, such as gp2.
        (None, false) => vec!["gp3".to_owned(), "st1".to_owned()],
    };
    let others = others.into_iter().filter(|other| other != given);
    all.extend(
        others
            .enumerate()
            .map(|(index, other)| (CHANGED + TYPE + index as f64, other)),
    );
    all
}

fn volume_counts(
    catalog: &Catalog,
    given: u32,
    most: u32,
    volume_type: &str,
    cluster_nodes: Option<u32>,
) -> Vec<Choice<u32>> {
    let of = &catalog.designs.cluster;
    let mut counts = match cluster_nodes {
        Some(_) if volume_type == of.hdd.volume_type => of.hdd.volumes_per_node.clone(),
        Some(_) => of.ssd.volumes_per_node.clone(),
        None => vec![given.clamp(1, most.max(1))],
    };
    counts.retain(|count| *count != given);
    let mut all = vec![(0.0, given)];
    all.extend(
        counts
            .into_iter()
            .map(|count| (CHANGED + apart(f64::from(given), f64::from(count)), count)),
    );
    all
}

fn volume_sizes(
    catalog: &Catalog,
    given: Bytes,
    volumes: u32,
    volume_type: &str,
    cluster_nodes: Option<u32>,
) -> Vec<Choice<Bytes>> {
    let mut sizes: Vec<Bytes> = Vec::new();
    if let Some(of) = catalog.designs.volume.get(volume_type) {
        sizes.push(Bytes::from_gib(
            given.gib().clamp(of.size_gib_min, of.size_gib_max),
        ));
    }
    if let Some(nodes) = cluster_nodes {
        let of = &catalog.designs.cluster;
        if volume_type == of.hdd.volume_type {
            sizes.extend(of.hdd.volume_tib.iter().map(|tib| Bytes::from_tib(*tib)));
        } else {
            let most = of
                .ssd
                .volume_tib_limit(nodes.clamp(1, COUNT_MAX), volumes.clamp(1, COUNT_MAX));
            // So many volumes leave no size that is allowed.
            if most >= of.ssd.volume_tib_min {
                let within = given.tib().clamp(of.ssd.volume_tib_min, most);
                sizes.push(Bytes::from_tib(within));
            }
        }
    }
    let mut all = vec![(0.0, given)];
    for size in sizes {
        if (size.get() - given.get()).abs() > 1.0 {
            all.push((CHANGED + apart(given.get(), size.get()), size));
        }
    }
    all
}

/// What may be provisioned of a volume, as (distance, IOPS, MiB/s).
fn provisioned(
    catalog: &Catalog,
    asked: &Volume,
    volume_type: &str,
    instance: &str,
    size: Bytes,
    cluster: bool,
) -> Vec<(f64, Option<u64>, Option<u32>)> {
    let Some(of) = catalog.designs.volume.get(volume_type) else {
        return vec![(0.0, asked.iops, asked.mib_s)];
    };
    let of_cluster = &catalog.designs.cluster.ssd;
    let most = |of: f64, cluster_most: f64| if cluster { of.min(cluster_most) } else { of };
    let mib_s_most = most(of.mib_s_max, f64::from(of_cluster.mib_s_max));
    let mut rates: Vec<Option<u32>> = vec![asked.mib_s];
    match of.mib_s {
        None => rates.push(None),
        Some(least) => {
            if let Some(given) = asked.mib_s {
                rates.push(Some(f64::from(given).clamp(least, mib_s_most) as u32));
            }
        }
    }
    let mut all = Vec::new();
    let iops_most = most(iops_limit(catalog, of, instance, size), {
        of_cluster.iops_max as f64
    });
    for rate in rates {
        let mut operations: Vec<Option<u64>> = vec![asked.iops];
        let mut rates = vec![rate];
        if let Some(least) = of.iops.or(of.iops_min) {
            let needed = match (rate, of.mib_s_per_iops_max) {
                (Some(rate), Some(ratio)) => (f64::from(rate) / ratio).ceil(),
                _ => least,
            };
            let bounded = |iops: f64| Some(iops.max(least).min(iops_most).max(least) as u64);
            operations.push(bounded(asked.iops.map_or(needed, |iops| iops as f64)));
            operations.push(bounded(needed.max(asked.iops.unwrap_or(0) as f64)));
            // Where the size carries no more operations, the rate follows them.
            if let (Some(rate), Some(ratio)) = (rate, of.mib_s_per_iops_max) {
                let carried = (iops_most.max(least) * ratio).floor();
                rates.push(Some(f64::from(rate).min(carried) as u32));
            }
        } else {
            operations.push(None);
        }
        for iops in operations {
            for rate in &rates {
                all.push((
                    changed(
                        asked.iops.map(|it| it as f64),
                        iops.map(|it| it as f64),
                        of.iops,
                    ) + changed(asked.mib_s.map(f64::from), rate.map(f64::from), of.mib_s),
                    iops,
                    *rate,
                ));
            }
        }
    }
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    all.dedup();
    all
}

fn iops_limit(catalog: &Catalog, of: &VolumeType, instance: &str, size: Bytes) -> f64 {
    let mut most = of.iops_max.unwrap_or(0.0);
    if let Some(without) = of.iops_max_without_nitro
        && !catalog.designs.nitro.has(instance)
    {
        most = most.min(without);
    }
    let by_size = of.iops_per_gib_max.unwrap_or(f64::INFINITY) * size.gib();
    most.min(by_size.floor())
}

/// A goal that was not given may be added for little; a given one counts by how much of it is left.
fn changed(given: Option<f64>, other: Option<f64>, default: Option<f64>) -> f64 {
    match (given, other) {
        (given, other) if given == other => 0.0,
        (None, _) => 0.1,
        (Some(given), other) => {
            CHANGED / 3.0 + 0.5 * apart(given, other.or(default).unwrap_or(given))
        }
    }
}

/// The given code, or what of it the units carry.
fn codes(
    catalog: &Catalog,
    product: Product,
    given: Protection,
    units: u32,
) -> Vec<Choice<Protection>> {
    let mut codes = vec![given];
    let parity = given
        .parity
        .min(catalog.cairn.parity_max)
        .min(units.saturating_sub(1));
    let data = units.saturating_sub(parity).max(1);
    let bounded = match product {
        Product::Cairn => data.min(catalog.cairn.data_max),
        Product::Vendor => data,
    };
    codes.push(Protection {
        data: given.data.clamp(1, bounded),
        parity,
    });
    codes.push(Protection {
        data: bounded,
        parity,
    });
    if product == Product::Vendor && units > catalog.designs.cluster.parity {
        let parity = catalog.designs.cluster.parity;
        codes.push(Protection {
            data: units - parity,
            parity,
        });
    }
    codes
        .into_iter()
        .map(|code| {
            let by = f64::from(code.parity.abs_diff(given.parity))
                + 0.2 * apart(f64::from(code.data), f64::from(given.data.max(1)));
            (by, code)
        })
        .collect()
}

fn arrays(
    catalog: &Catalog,
    systems: u32,
    ssd: Bytes,
    iops: u64,
    rate: Rate,
) -> Vec<Choice<Shape>> {
    let of = &catalog.designs.san_array;
    let most = Bytes::from_gb(of.ssd_tb_max * 1e3);
    let ssd_within = Bytes::from_gib(ssd.gib().clamp(of.ssd_gib_min, most.gib()));
    let mut sizes = vec![(0.0, ssd)];
    if ssd_within != ssd {
        sizes.push((CHANGED + apart(ssd.get(), ssd_within.get()), ssd_within));
    }
    let mut rates = vec![(0.0, rate)];
    for sold in &of.throughput_mb_s {
        rates.push((CHANGED + apart(rate.mb_s(), *sold), Rate::from_mb_s(*sold)));
    }
    let mut all = Vec::new();
    for (systems_apart, systems) in counts(systems, 1, of.systems_max) {
        for (size_apart, ssd) in &sizes {
            for (rate_apart, rate) in &rates {
                let most = of.throughput(rate.mb_s()).map_or(0, |(_, most)| most);
                let least = ((of.iops_per_gib_min * ssd.gib()).ceil() as u64).min(most);
                let mut operations = vec![iops, iops.min(most), iops.max(least).min(most)];
                operations.dedup();
                for other in operations {
                    let by = match other == iops {
                        true => 0.0,
                        false => CHANGED + apart(iops as f64, other as f64),
                    };
                    all.push((
                        systems_apart + size_apart + rate_apart + by,
                        Shape::SanArray(SanArray {
                            systems,
                            system: SanSystem::Ontap {
                                ssd_bytes: *ssd,
                                iops: other,
                                mb_s: *rate,
                            },
                            host: None,
                        }),
                    ));
                }
            }
        }
    }
    all
}

fn lustre(catalog: &Catalog, level: &str, capacity: Bytes, cached: bool) -> Vec<Choice<Shape>> {
    let levels = &catalog.designs.parallel_fs.level;
    let mut all = Vec::new();
    for of in levels {
        let level_apart = match of.name == level {
            true => 0.0,
            false => LEVEL + 3.0 * (1.0 - strsim::jaro_winkler(level, &of.name)),
        };
        let steps = capacity.gib() / of.step_gib;
        for count in [steps.floor(), steps.ceil()] {
            let size = of.steps(count.max(1.0));
            let by = apart(capacity.get(), size.get());
            // Less than was asked for is a larger change than more.
            let short = if size < capacity { CHANGED } else { 0.0 };
            for ssd_read_cache in [cached, !cached] {
                let cache = if ssd_read_cache == cached { 0.0 } else { LEVEL };
                all.push((
                    level_apart + by + cache + if by > 1e-9 { short } else { 0.0 },
                    Shape::ParallelFs(ParallelFs::Lustre {
                        level: of.name.clone(),
                        capacity_bytes: size,
                        ssd_read_cache,
                    }),
                ));
            }
        }
    }
    all
}

fn cloud_volumes(catalog: &Catalog, level: &str, volumes: u32, quota: Bytes) -> Vec<Choice<Shape>> {
    let of = &catalog.designs.cloud_volumes;
    let within = Bytes::from_gb(quota.gb().clamp(1.0, of.quota_tb_max * 1e3));
    let mut quotas = vec![(0.0, quota)];
    if within != quota {
        quotas.push((CHANGED + apart(quota.get(), within.get()), within));
    }
    let mut all = Vec::new();
    for it in &of.level {
        let level_apart = match it.name == level {
            true => 0.0,
            false => LEVEL + 3.0 * (1.0 - strsim::jaro_winkler(level, &it.name)),
        };
        for (count_apart, volumes) in counts(volumes, 1, COUNT_MAX) {
            for (quota_apart, quota_bytes) in &quotas {
                all.push((
                    level_apart + count_apart + quota_apart,
                    Shape::CloudVolumes(CloudVolumes::Service {
                        level: it.name.clone(),
                        volumes,
                        quota_bytes: *quota_bytes,
                    }),
                ));
            }
        }
    }
    all
}

/// The rule that a figure of this family rests on, for what no other rule says.
pub fn family_rule(product: Product, family: Family) -> crate::rules::RuleId {
    use crate::rules;
    match (product, family) {
        (Product::Cairn, _) => rules::CAIRN_CODES,
        (Product::Vendor, Family::Cluster) => rules::CAPACITY_RAW,
        (Product::Vendor, Family::NfsServer) => rules::CAPACITY_JOINED,
        (Product::Vendor, Family::SanArray) => rules::SAN_STRIPE,
        (Product::Vendor, Family::ParallelFs) => rules::LUSTRE_SIZE,
        (Product::Vendor, Family::CloudVolumes) => rules::CVS_LEVEL,
        (Product::Vendor, Family::Elastic) => rules::EFS_LEVEL,
    }
}
