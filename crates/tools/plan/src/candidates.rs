//! The designs that are looked at for a goal.
//!
//! Owns: which shapes are worth evaluating. Must not know: whether they fit.

use crate::catalog::{Catalog, LustreLevel, LustreLimits, lustre_tib};
use crate::design::{
    CloudVolumes, Cluster, Design, Elastic, NfsServer, ParallelFs, Product, Protection, SanArray,
    SanSystem, Shape, Storage, Volume,
};
use crate::goal::Goal;
use crate::units::{Bytes, Rate};

/// Designs at most that one ranking looks at.
pub const CANDIDATE_COUNT_MAX: usize = 60_000;

/// Throughput that gp3 volumes are tried with; 750 MiB/s is what 3,000 IOPS can carry.
const GP3_MIB_S: [u32; 4] = [125, 250, 500, 750];
/// Sizes, in TiB, that volumes of a server are tried with.
const VOLUME_TIB: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// Volumes of a server: with two of parity these are 2+2 to 16+2.
const VOLUME_COUNTS: [u32; 6] = [4, 6, 8, 10, 12, 18];
/// Nodes of a Cairn cluster.
const CLUSTER_NODES: [u32; 9] = [3, 4, 5, 6, 8, 10, 12, 15, 18];
/// Parity at most that a cluster or server is tried with.
const PARITY_MAX: u32 = 4;
/// A parallel file system is planned up to the largest capacity that any of the papers shows, and a
/// step: beyond that nothing says that its figures still grow.
const LUSTRE_TIB_MAX: f64 = 1030.0;
/// Servers, systems and volumes at most that a goal is spread over.
const SPREAD_MAX: u32 = 64;

/// All candidates for a goal: what of the designs could hold its capacity, and what is just too small.
pub fn candidates(catalog: &Catalog, goal: &Goal) -> Vec<Design> {
    let mut out = Out {
        region: &goal.region,
        designs: Vec::new(),
    };
    vendor_cluster(catalog, &mut out);
    vendor_servers(catalog, goal, &mut out);
    san(catalog, goal, &mut out);
    lustre(catalog, goal, &mut out);
    cloud_volumes(catalog, goal, &mut out);
    elastic(catalog, goal, &mut out);
    cairn_server(catalog, goal, &mut out);
    linux_server(catalog, goal, &mut out);
    cairn_cluster(catalog, goal, &mut out);
    cairn_spread(catalog, goal, &mut out);
    out.designs.truncate(CANDIDATE_COUNT_MAX);
    out.designs
}

struct Out<'a> {
    region: &'a str,
    designs: Vec<Design>,
}

impl Out<'_> {
    fn push(&mut self, product: Product, shape: Shape) {
        self.designs.push(Design {
            product,
            region: self.region.to_owned(),
            shape,
        });
    }
}

fn gp3(tib: f64, mib_s: u32) -> Volume {
    Volume {
        volume_type: "gp3".to_owned(),
        size_bytes: Bytes::from_tib(tib),
        iops: None,
        mib_s: (mib_s != GP3_MIB_S[0]).then_some(mib_s),
    }
}

fn st1(size: Bytes) -> Volume {
    Volume {
        volume_type: "st1".to_owned(),
        size_bytes: size,
        iops: None,
        mib_s: None,
    }
}

/// Every row of Tables 8 and 9, with volumes in whole TiB and the largest that a row has.
fn vendor_cluster(catalog: &Catalog, out: &mut Out) {
    let of = &catalog.designs.cluster;
    for instance in &of.instances {
        for nodes in of.nodes_min..=of.nodes_max {
            let protection = Protection {
                data: nodes - of.parity,
                parity: of.parity,
            };
            let mut push = |volumes: u32, volume: Volume| {
                out.push(
                    Product::Vendor,
                    Shape::Cluster(Cluster {
                        nodes,
                        instance: instance.clone(),
                        storage: Storage::Ebs { volumes, volume },
                        protection,
                    }),
                );
            };
            for &volumes in &of.ssd.volumes_per_node {
                let most = of.ssd.volume_tib_limit(nodes, volumes);
                let whole = (1..=of.ssd.volume_tib_max as u32).map(f64::from);
                for tib in whole.filter(|tib| *tib < most).chain([most]) {
                    for mib_s in GP3_MIB_S {
                        push(volumes, gp3(tib, mib_s));
                    }
                }
            }
            for &volumes in &of.hdd.volumes_per_node {
                for &tib in &of.hdd.volume_tib {
                    push(volumes, st1(Bytes::from_tib(tib)));
                }
            }
        }
    }
}

fn vendor_servers(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let of = &catalog.designs.nfs_server;
    let none = Protection { data: 1, parity: 0 };
    for name in &of.instance_store {
        let Some(instance) = catalog.instances.get(name) else {
            continue;
        };
        if let Some((_, disk_bytes)) = instance.data_disks() {
            out.push(
                Product::Vendor,
                Shape::NfsServer(NfsServer {
                    instance: name.clone(),
                    storage: Storage::InstanceStore {
                        disks: instance.disks,
                        disk_bytes,
                    },
                    protection: none,
                }),
            );
        }
    }
    let needed_tb = (goal.capacity_planned().get() / 1e12).ceil().max(1.0);
    for name in &of.ebs {
        for volumes in 1..=4_u32 {
            let exact = (needed_tb / f64::from(volumes)).ceil();
            let none = Protection { data: 1, parity: 0 };
            let size = Bytes::from_gb(exact * 1000.0);
            let of_rates = sizes_tib(goal, none, volumes, &st1(size), size.tib());
            let of_rates = of_rates.last().copied().unwrap_or_default();
            let of_rates = (Bytes::from_tib(of_rates).gb() / 1000.0).ceil().max(exact);
            for tb in [exact, of_rates, 1.0, 2.0, 5.0, 10.0, 15.0] {
                if (0.5..=of.volume_tib_max).contains(&tb) {
                    out.push(
                        Product::Vendor,
                        Shape::NfsServer(NfsServer {
                            instance: name.clone(),
                            storage: Storage::Ebs {
                                volumes,
                                volume: st1(Bytes::from_gb(tb * 1000.0)),
                            },
                            protection: none,
                        }),
                    );
                }
            }
        }
    }
}

fn san(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let of = &catalog.designs.san_array;
    let needed = goal.capacity_planned().get() / 1e12;
    for systems in 1..=of.systems_max {
        let tb = (needed / f64::from(systems) * 10.0).ceil() / 10.0;
        let least = (Bytes::from_gib(of.ssd_gib_min).gb() / 100.0).ceil() / 10.0;
        let tb = tb.clamp(of.ssd_tb_min.max(least), of.ssd_tb_max);
        let included = (of.iops_per_gib_min * Bytes::from_gb(tb * 1000.0).gib()) as u64;
        let wanted = goal.iops.max(goal.write_iops).unwrap_or(0);
        let wanted = wanted.div_ceil(u64::from(systems)).max(included);
        for (&mb_s, &most) in of.throughput_mb_s.iter().zip(&of.throughput_iops_max) {
            let mut choices = vec![included.min(most), wanted.min(most), most];
            choices.dedup();
            for iops in choices {
                out.push(
                    Product::Vendor,
                    Shape::SanArray(SanArray {
                        systems,
                        system: SanSystem::Ontap {
                            ssd_bytes: Bytes::from_gb(tb * 1000.0),
                            iops,
                            mb_s: Rate::from_mb_s(mb_s),
                        },
                        host: goal.host.clone(),
                    }),
                );
            }
        }
    }
}

fn lustre(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let needed = lustre_tib(goal.capacity_planned());
    let of = &catalog.designs.parallel_fs;
    for level in &of.level {
        for steps in lustre_steps(of, level, goal, needed) {
            for ssd_read_cache in [false, true] {
                out.push(
                    Product::Vendor,
                    Shape::ParallelFs(ParallelFs::Lustre {
                        level: level.name.clone(),
                        capacity_bytes: level.steps(steps),
                        ssd_read_cache,
                    }),
                );
            }
        }
    }
}

/// As many steps as the capacity needs, and as the rates would.
fn lustre_steps(of: &LustreLimits, level: &LustreLevel, goal: &Goal, needed_tib: f64) -> Vec<f64> {
    let of_rate = |rate: Option<Rate>, per_tib: f64| rate.map_or(0.0, |rate| rate.mb_s() / per_tib);
    let cached = level
        .cache_network_mb_s_per_tib
        .min(of.cache_disk_mb_s_per_tib);
    let cached_per_tib = cached * of.cache_share;
    // In the service's TiB, by which its rates are stated.
    let step_tib = lustre_tib(level.steps(1.0));
    // One operation counts as 1 MiB of the disks.
    let operations = |iops: Option<u64>| iops.unwrap_or(0) as f64 * 1.048_576;
    let write = of_rate(goal.write_mb_s, level.disk_mb_s_per_tib)
        .max(operations(goal.write_iops) / level.disk_mb_s_per_tib);
    let reads = operations(goal.iops);
    let mut steps: Vec<f64> = [
        needed_tib,
        write,
        of_rate(goal.read_mb_s, level.disk_mb_s_per_tib).max(write),
        (reads / level.disk_mb_s_per_tib)
            .max(of_rate(goal.read_mb_s, level.disk_mb_s_per_tib))
            .max(write),
        (reads / cached_per_tib)
            .max(of_rate(goal.read_mb_s, level.disk_mb_s_per_tib))
            .max(write),
        of_rate(goal.read_mb_s, cached_per_tib)
            .max(write)
            .max(goal.hot_share.unwrap_or(0.0) * lustre_tib(goal.capacity_bytes) / of.cache_share),
    ]
    .into_iter()
    .map(|tib| (tib.max(needed_tib) / step_tib - 1e-9).ceil().max(1.0))
    .filter(|steps| steps * step_tib <= LUSTRE_TIB_MAX)
    .collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    steps
}

/// EFS is planned up to the largest capacity that any of the papers shows.
const EFS_TIB_MAX: f64 = 1024.0;

/// As large as the goal; of EFS with the throughput that comes with it, and with what the rates need.
fn elastic(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let of = &catalog.designs.elastic;
    let capacity_bytes = Bytes::from_gib((goal.capacity_planned().gib() - 1e-9).ceil().max(1.0));
    let mut push = |it: Elastic| out.push(Product::Vendor, Shape::Elastic(it));
    let mib_s = |rate: Option<Rate>| rate.unwrap_or_default().mib_s();
    // Of 4 KiB each.
    let operations = |iops: Option<u64>| iops.unwrap_or(0) as f64 / 256.0;
    let writes = mib_s(goal.write_mb_s).max(operations(goal.write_iops));
    let reads = mib_s(goal.read_mb_s).max(operations(goal.iops));
    let needed = writes.max(reads / of.efs_read_times).ceil().max(1.0);
    for level in &of.efs {
        if capacity_bytes.tib() > EFS_TIB_MAX {
            break;
        }
        let provisioned = needed.min(level.write_mib_s_max) as u32;
        for mib_s in [None, Some(provisioned)] {
            push(Elastic::Efs {
                level: level.name.clone(),
                capacity_bytes,
                mib_s,
            });
        }
    }
    push(Elastic::S3 { capacity_bytes });
}

fn cloud_volumes(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let of = &catalog.designs.cloud_volumes;
    let needed_gb = goal.capacity_planned().gb();
    let rate = goal
        .read_mb_s
        .unwrap_or_default()
        .mb_s()
        .max(goal.write_mb_s.unwrap_or_default().mb_s());
    for level in &of.level {
        for volumes in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32] {
            for gb in [
                needed_gb,
                (rate * 1000.0 / level.kb_s_per_gb).max(needed_gb),
            ] {
                let each = (gb / f64::from(volumes)).ceil().max(100.0);
                if each <= of.quota_tb_max * 1000.0 {
                    out.push(
                        Product::Vendor,
                        Shape::CloudVolumes(CloudVolumes::Service {
                            level: level.name.clone(),
                            volumes,
                            quota_bytes: Bytes::from_gb(each),
                        }),
                    );
                }
            }
        }
    }
}

/// What a Cairn server can stand on: current instances with local disks or volumes.
fn cairn_storages(catalog: &Catalog) -> Vec<(String, Storage)> {
    let mut storages = Vec::new();
    for instance in catalog.instances.values().filter(|it| !it.previous) {
        if let Some((_, disk_bytes)) = instance.data_disks() {
            let disks = instance.disks.min(catalog.cairn.disks_max);
            storages.push((
                instance.name.clone(),
                Storage::InstanceStore { disks, disk_bytes },
            ));
            continue;
        }
        for volumes in VOLUME_COUNTS {
            if volumes > instance.ebs_volumes_max.min(catalog.cairn.disks_max) {
                continue;
            }
            for tib in VOLUME_TIB {
                let name = || instance.name.clone();
                for mib_s in GP3_MIB_S {
                    let volume = gp3(tib, mib_s);
                    storages.push((name(), Storage::Ebs { volumes, volume }));
                }
                let volume = st1(Bytes::from_tib(tib));
                storages.push((name(), Storage::Ebs { volumes, volume }));
            }
        }
    }
    storages
}

/// N+M over `units`, with 2 of parity and with as many as must survive.
fn codes(catalog: &Catalog, units: u32, survive: u32) -> Vec<Protection> {
    let mut codes: Vec<Protection> = [1, 2, survive.min(PARITY_MAX)]
        .into_iter()
        .filter(|parity| *parity > 0 && units > *parity)
        .map(|parity| Protection {
            data: (units - parity).min(catalog.cairn.data_max),
            parity,
        })
        .collect();
    codes.sort_by_key(|code| (code.parity, code.data));
    codes.dedup();
    codes
}

/// Linux NFS on today's instances: md joins EBS volumes, with one (RAID 5) or two (RAID 6) of parity, each
/// as large as the goal needs.
fn linux_server(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    const RAID_PARITY: [u32; 2] = [1, 2];
    const LARGEST_TIB: f64 = VOLUME_TIB[VOLUME_TIB.len() - 1];
    for (instance, storage) in cairn_storages(catalog) {
        let Storage::Ebs { volumes, volume } = storage else {
            continue;
        };
        if volume.size_bytes != Bytes::from_tib(VOLUME_TIB[0]) {
            continue;
        }
        for parity in RAID_PARITY.into_iter().filter(|it| volumes > *it + 1) {
            let protection = Protection {
                data: volumes - parity,
                parity,
            };
            let exact = exact_tib(goal, protection).unwrap_or(LARGEST_TIB);
            for tib in sizes_tib(goal, protection, volumes, &volume, exact) {
                out.push(
                    Product::Vendor,
                    Shape::NfsServer(NfsServer {
                        instance: instance.clone(),
                        storage: Storage::Ebs {
                            volumes,
                            volume: Volume {
                                size_bytes: Bytes::from_tib(tib),
                                ..volume.clone()
                            },
                        },
                        protection,
                    }),
                );
            }
        }
    }
}

fn cairn_server(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    for (instance, storage) in cairn_storages(catalog) {
        let mut codes = codes(catalog, storage.count(), goal.survive);
        if codes.is_empty() {
            codes.push(Protection { data: 1, parity: 0 });
        }
        for protection in codes {
            let mut push = |storage: Storage| {
                out.push(
                    Product::Cairn,
                    Shape::NfsServer(NfsServer {
                        instance: instance.clone(),
                        storage,
                        protection,
                    }),
                );
            };
            // Volumes of one size in the list stand for the one that fits exactly.
            if let Storage::Ebs { volumes, volume } = &storage
                && volume.size_bytes == Bytes::from_tib(VOLUME_TIB[0])
                && let Some(exact) = exact_tib(goal, protection)
            {
                for tib in sizes_tib(goal, protection, *volumes, volume, exact) {
                    let mut volume = volume.clone();
                    volume.size_bytes = Bytes::from_tib(tib);
                    push(Storage::Ebs {
                        volumes: *volumes,
                        volume,
                    });
                }
            }
            push(storage.clone());
        }
    }
}

/// The exact size, and that of st1 with which its rates carry what the goal reads and writes: of st1 speed is
/// bought by the TiB.
fn sizes_tib(
    goal: &Goal,
    protection: Protection,
    volumes: u32,
    volume: &Volume,
    exact: f64,
) -> Vec<f64> {
    /// Rule `ebs.st1`.
    const MIB_S_PER_TIB: f64 = 40.0;
    /// Rule `ebs.slowest`.
    const DELIVERED: f64 = 0.9;
    const LARGEST_TIB: f64 = VOLUME_TIB[VOLUME_TIB.len() - 1];
    if volume.volume_type != "st1" {
        return vec![exact];
    }
    let striped = protection.efficiency()
        * if protection.parity > 0 {
            DELIVERED
        } else {
            1.0
        };
    let mib_s = |rate: Option<Rate>| rate.unwrap_or_default().mib_s();
    let needed = mib_s(goal.read_mb_s).max(mib_s(goal.write_mb_s) / striped);
    let tib = needed / (MIB_S_PER_TIB * f64::from(volumes));
    let halves = (tib * 2.0 - 1e-9).ceil() / 2.0;
    let mut sizes = vec![exact, halves.max(exact).min(LARGEST_TIB)];
    sizes.dedup();
    sizes
}

/// The size of volumes, in half TiB, with which a server holds just what the goal asks for.
fn exact_tib(goal: &Goal, protection: Protection) -> Option<f64> {
    let tib = goal.capacity_planned().tib() / f64::from(protection.data);
    let halves = (tib * 2.0 - 1e-9).ceil().max(1.0);
    (halves <= 32.0).then_some(halves / 2.0)
}

/// Storages worth spreading over nodes: for each, what about fills the capacity.
fn cairn_cluster(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let storages = cairn_storages(catalog);
    let needed = goal.capacity_planned().get();
    for nodes in CLUSTER_NODES {
        for protection in codes(catalog, nodes, goal.survive)
            .into_iter()
            .filter(|code| code.parity >= goal.survive.min(2))
        {
            for (instance, storage) in &storages {
                let usable = storage.raw().get() * f64::from(nodes) * protection.efficiency();
                if (needed..needed * 4.0).contains(&usable) {
                    out.push(
                        Product::Cairn,
                        Shape::Cluster(Cluster {
                            nodes,
                            instance: instance.clone(),
                            storage: storage.clone(),
                            protection,
                        }),
                    );
                }
            }
        }
    }
}

/// The same server several times: volumes on each, a parallel file system over them, or an array.
fn cairn_spread(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let needed = goal.capacity_planned().get();
    for (instance, storage) in cairn_storages(catalog) {
        for protection in codes(catalog, storage.count(), goal.survive) {
            let usable = storage.raw().get() * protection.efficiency();
            let servers = (needed / usable).ceil();
            // One server is the single server; a spread that is mostly air is not worth looking at.
            if !(2.0..=f64::from(SPREAD_MAX)).contains(&servers) || usable * servers > needed * 1.5
            {
                continue;
            }
            let servers = servers as u32;
            let server = NfsServer {
                instance: instance.clone(),
                storage: storage.clone(),
                protection,
            };
            out.push(
                Product::Cairn,
                Shape::CloudVolumes(CloudVolumes::Servers {
                    servers,
                    server: server.clone(),
                }),
            );
            out.push(
                Product::Cairn,
                Shape::ParallelFs(ParallelFs::Servers {
                    servers,
                    server: server.clone(),
                }),
            );
            out.push(
                Product::Cairn,
                Shape::SanArray(SanArray {
                    systems: servers,
                    system: SanSystem::Server(server),
                    host: goal.host.clone(),
                }),
            );
        }
    }
}
