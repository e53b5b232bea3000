//! The designs that are looked at for a goal.
//!
//! Owns: which shapes are worth evaluating. Must not know: whether they fit.

use crate::catalog::{Catalog, Instance, LustreLevel, LustreLimits, lustre_tib};
use crate::design::{
    CloudVolumes, Cluster, Design, Elastic, NfsServer, ParallelFs, Product, Protection, SanArray,
    SanSystem, Shape, Storage, Volume,
};
use crate::goal::Goal;
use crate::units::{Bytes, Rate};

/// Throughput that gp3 volumes are tried with; 750 MiB/s is what 3,000 IOPS can carry.
const GP3_MIB_S: [u32; 4] = [125, 250, 500, 750];
/// The largest volume that is planned, in TiB.
const VOLUME_TIB_MAX: f64 = 16.0;
/// Sizes, in TiB, that volumes of st1 are tried with beside those that a goal needs.
const ST1_TIB: [f64; 3] = [4.0, 8.0, VOLUME_TIB_MAX];
/// Volumes of a server: with two of parity these are 2+2 to 16+2.
const VOLUME_COUNTS: [u32; 6] = [4, 6, 8, 10, 12, 18];
/// Nodes of a Cairn cluster.
const CLUSTER_NODES: [u32; 9] = [3, 4, 5, 6, 8, 10, 12, 15, 18];
/// Parity at most that a cluster or server is tried with.
const PARITY_MAX: u32 = 4;
/// A parallel file system is planned up to the largest capacity that any of the papers shows, and a
/// step: beyond that nothing says that its figures still grow.
const LUSTRE_TIB_MAX: f64 = 1030.0;
/// Servers, systems and volumes that a goal is spread over. Volumes of each are as large as that needs; local disks
/// are as they are, so every number of servers up to the last is looked at.
const SPREAD_SERVERS: [u32; 8] = [2, 3, 4, 8, 16, 32, 48, 64];

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
            let size = Bytes::from_gb(exact * 1000.0);
            let of_rates = st1_of_rates_tib(goal, none, f64::from(volumes), size.tib());
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

/// What a Cairn server can stand on: current instances with local disks, or with so many volumes of a kind, whose
/// size the goal decides.
enum Basis<'a> {
    Local {
        instance: &'a Instance,
        disks: u32,
        disk_bytes: Bytes,
    },
    Ebs {
        instance: &'a Instance,
        volumes: u32,
        /// Provisioned throughput of gp3; `None`: st1.
        gp3_mib_s: Option<u32>,
    },
}

impl Basis<'_> {
    fn all(catalog: &Catalog) -> Vec<Basis<'_>> {
        let mut all = Vec::new();
        for instance in catalog.instances.values().filter(|it| !it.previous) {
            if let Some((_, disk_bytes)) = instance.data_disks() {
                let disks = instance.disks.min(catalog.cairn.disks_max);
                all.push(Basis::Local {
                    instance,
                    disks,
                    disk_bytes,
                });
                continue;
            }
            let most = instance.ebs_volumes_max.min(catalog.cairn.disks_max);
            for volumes in VOLUME_COUNTS.into_iter().filter(|it| *it <= most) {
                let rates = gp3_rates(instance, volumes).map(Some);
                all.extend(rates.chain([None]).map(|gp3_mib_s| Basis::Ebs {
                    instance,
                    volumes,
                    gp3_mib_s,
                }));
            }
        }
        all
    }

    fn instance(&self) -> &Instance {
        match self {
            Basis::Local { instance, .. } | Basis::Ebs { instance, .. } => instance,
        }
    }

    /// Disks or volumes of a server.
    fn count(&self) -> u32 {
        match self {
            Basis::Local { disks, .. } => *disks,
            Basis::Ebs { volumes, .. } => *volumes,
        }
    }

    /// Storages of each of `servers` servers with which they hold the goal together; none if they cannot.
    fn storages(&self, goal: &Goal, servers: u32, protection: Protection) -> Vec<Storage> {
        let needed = goal.capacity_planned();
        match *self {
            Basis::Local {
                disks, disk_bytes, ..
            } => {
                let storage = Storage::InstanceStore { disks, disk_bytes };
                let usable = storage
                    .raw()
                    .times(f64::from(servers) * protection.efficiency());
                match usable.get() < needed.get() {
                    true => Vec::new(),
                    false => vec![storage],
                }
            }
            Basis::Ebs {
                volumes, gp3_mib_s, ..
            } => {
                let all = f64::from(volumes * servers);
                let Some(exact) = exact_tib(needed, all * protection.efficiency()) else {
                    return Vec::new();
                };
                let sizes = match gp3_mib_s {
                    Some(_) => vec![exact],
                    None => st1_sizes_tib(goal, protection, all, exact),
                };
                let storage = |tib| self.sized(tib);
                sizes.into_iter().filter_map(storage).collect()
            }
        }
    }

    /// With volumes of a size; local disks have theirs.
    fn sized(&self, tib: f64) -> Option<Storage> {
        match *self {
            Basis::Local { .. } => None,
            Basis::Ebs {
                volumes, gp3_mib_s, ..
            } => Some(Storage::Ebs {
                volumes,
                volume: match gp3_mib_s {
                    Some(mib_s) => gp3(tib, mib_s),
                    None => st1(Bytes::from_tib(tib)),
                },
            }),
        }
    }

    /// The largest that there is: what does not hold the goal, and shows by how much.
    fn largest(&self) -> Option<Storage> {
        match *self {
            Basis::Local {
                disks, disk_bytes, ..
            } => Some(Storage::InstanceStore { disks, disk_bytes }),
            Basis::Ebs { .. } => self.sized(VOLUME_TIB_MAX),
        }
    }
}

/// Rates of gp3 up to the first with which so many volumes do all that the instance can: more costs more and
/// delivers the same.
fn gp3_rates(instance: &Instance, volumes: u32) -> impl Iterator<Item = u32> {
    let most = instance.ebs().burst.mib_s();
    let is_enough = move |mib_s: u32| f64::from(mib_s * volumes) >= most;
    let needed = GP3_MIB_S.into_iter().take_while(move |it| !is_enough(*it));
    needed.chain(GP3_MIB_S.into_iter().find(move |it| is_enough(*it)))
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
    for basis in Basis::all(catalog) {
        let volumes = basis.count();
        if matches!(basis, Basis::Local { .. }) {
            continue;
        }
        for parity in RAID_PARITY.into_iter().filter(|it| volumes > *it + 1) {
            let protection = Protection {
                data: volumes - parity,
                parity,
            };
            for server in servers(&basis, goal, protection) {
                out.push(Product::Vendor, Shape::NfsServer(server));
            }
        }
    }
}

fn cairn_server(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    for basis in Basis::all(catalog) {
        let mut codes = codes(catalog, basis.count(), goal.survive);
        if codes.is_empty() {
            codes.push(Protection { data: 1, parity: 0 });
        }
        for protection in codes {
            for server in servers(&basis, goal, protection) {
                out.push(Product::Cairn, Shape::NfsServer(server));
            }
        }
    }
}

/// One server, as large as the goal or the largest that there is.
fn servers(basis: &Basis<'_>, goal: &Goal, protection: Protection) -> Vec<NfsServer> {
    let mut storages = basis.storages(goal, 1, protection);
    if storages.is_empty() {
        storages.extend(basis.largest());
    }
    let server = |storage| NfsServer {
        instance: basis.instance().name.clone(),
        storage,
        protection,
    };
    storages.into_iter().map(server).collect()
}

/// Sizes of st1, whose speed is bought by the TiB: the exact one, that with which its rates carry what the goal
/// reads and writes, and larger ones, for its operations.
fn st1_sizes_tib(goal: &Goal, protection: Protection, volumes: f64, exact: f64) -> Vec<f64> {
    let mut sizes: Vec<f64> = ST1_TIB.into_iter().filter(|tib| *tib > exact).collect();
    sizes.extend([exact, st1_of_rates_tib(goal, protection, volumes, exact)]);
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

/// The size of st1, in half TiB and at least the exact one, with which its rates carry what the goal reads and
/// writes.
fn st1_of_rates_tib(goal: &Goal, protection: Protection, volumes: f64, exact: f64) -> f64 {
    /// Rule `ebs.st1`.
    const MIB_S_PER_TIB: f64 = 40.0;
    /// Rule `ebs.slowest`.
    const DELIVERED: f64 = 0.9;
    let striped = protection.efficiency()
        * if protection.parity > 0 {
            DELIVERED
        } else {
            1.0
        };
    let mib_s = |rate: Option<Rate>| rate.unwrap_or_default().mib_s();
    let needed = mib_s(goal.read_mb_s).max(mib_s(goal.write_mb_s) / striped);
    let tib = needed / (MIB_S_PER_TIB * volumes);
    let halves = (tib * 2.0 - 1e-9).ceil() / 2.0;
    halves.max(exact).min(VOLUME_TIB_MAX)
}

/// The size of volumes, in half TiB, of which `units` hold just what is needed.
fn exact_tib(needed: Bytes, units: f64) -> Option<f64> {
    let halves = (needed.tib() / units * 2.0 - 1e-9).ceil().max(1.0);
    (halves <= 2.0 * VOLUME_TIB_MAX).then_some(halves / 2.0)
}

fn cairn_cluster(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    let bases = Basis::all(catalog);
    for nodes in CLUSTER_NODES {
        for protection in codes(catalog, nodes, goal.survive)
            .into_iter()
            .filter(|code| code.parity >= goal.survive.min(2))
        {
            for basis in &bases {
                for storage in basis.storages(goal, nodes, protection) {
                    out.push(
                        Product::Cairn,
                        Shape::Cluster(Cluster {
                            nodes,
                            instance: basis.instance().name.clone(),
                            storage,
                            protection,
                        }),
                    );
                }
            }
        }
    }
}

/// Several equal servers: volumes on each, a parallel file system over them, or an array. With just the
/// parity that is asked for: more of it on the same disks costs more and is no faster.
fn cairn_spread(catalog: &Catalog, goal: &Goal, out: &mut Out) {
    for basis in Basis::all(catalog) {
        let parity = goal.survive.clamp(1, PARITY_MAX);
        let codes = codes(catalog, basis.count(), parity);
        let Some(protection) = codes.into_iter().find(|code| code.parity == parity) else {
            continue;
        };
        let is_local = matches!(basis, Basis::Local { .. });
        let [least, .., most] = SPREAD_SERVERS;
        for servers in (least..=most).filter(|it| is_local || SPREAD_SERVERS.contains(it)) {
            for storage in basis.storages(goal, servers, protection) {
                let server = NfsServer {
                    instance: basis.instance().name.clone(),
                    storage,
                    protection,
                };
                for shape in spread(goal, servers, server) {
                    out.push(Product::Cairn, shape);
                }
            }
        }
    }
}

fn spread(goal: &Goal, servers: u32, server: NfsServer) -> [Shape; 3] {
    [
        Shape::CloudVolumes(CloudVolumes::Servers {
            servers,
            server: server.clone(),
        }),
        Shape::ParallelFs(ParallelFs::Servers {
            servers,
            server: server.clone(),
        }),
        Shape::SanArray(SanArray {
            systems: servers,
            system: SanSystem::Server(server),
            host: goal.host.clone(),
        }),
    ]
}
