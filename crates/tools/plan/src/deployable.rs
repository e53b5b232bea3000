//! What can be deployed: the limits of what AWS sells, against one design.
//!
//! Owns: the one table of regions, instances, volumes, disks and file systems that ranking, `check`,
//! `whatif`, `compare` and `deploy` ask alike (`data/designs.toml`, `data/instances.toml`).
//! Must not know: the papers' own rules (`check`), prices, or what a design delivers.

use serde::Serialize;

use crate::catalog::{Catalog, Instance};
use crate::design::{
    CloudVolumes, Design, Elastic, NfsServer, ParallelFs, Product, Protection, SanSystem, Shape,
    Storage, Volume,
};
use crate::prices::REGIONS;
use crate::rules::{self, RuleId};
use crate::units::{Bytes, Rate, number};

/// Servers, volumes or systems at most in one design: far above any, below what overflows.
pub const COUNT_MAX: u32 = 10_000;
/// Room for the rounding of a size that is no whole number of bytes, such as 14.2 TiB.
const SIZE_SLACK: f64 = 1.000_001;

/// A rule that a design breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub rule: RuleId,
    /// With the design's own numbers.
    pub words: String,
}

/// Every limit that a design breaks; none: it can be deployed as it stands.
pub fn violations(catalog: &Catalog, design: &Design) -> Vec<Violation> {
    let mut found = DesignCheck {
        catalog,
        product: design.product,
        broken: Vec::new(),
    };
    found.region(&design.region);
    found.shape(&design.shape);
    found.broken
}

/// `false`: the name is that of a price list alone, such as the paper's prices of 2016.
pub fn is_region(name: &str) -> bool {
    REGIONS.contains(&name)
}

struct DesignCheck<'a> {
    catalog: &'a Catalog,
    product: Product,
    broken: Vec<Violation>,
}

impl DesignCheck<'_> {
    /// Words are made only where something breaks: a ranking asks ten thousand times.
    fn breaks(&mut self, broken: bool, rule: RuleId, words: impl FnOnce() -> String) {
        if broken {
            self.broken.push(Violation {
                rule,
                words: words(),
            });
        }
    }

    fn region(&mut self, region: &str) {
        let catalog = self.catalog;
        let known = is_region(region) || catalog.prices.books.iter().any(|it| it.name == region);
        self.breaks(!known, rules::DEPLOY_REGION, || {
            let nearest = crate::catalog::nearest(region, REGIONS.iter().copied());
            format!(
                "there is no region \"{region}\"; nearest: {}",
                nearest.join(", ")
            )
        });
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Cluster(it) => {
                self.count(it.nodes, "nodes");
                self.protection(it.protection, it.nodes, "nodes", rules::CLUSTER_PROTECTION);
                self.machine(&it.instance, &it.storage);
            }
            Shape::NfsServer(it) => self.server(it),
            Shape::SanArray(it) => {
                self.count(it.systems, "systems");
                if let Some(host) = &it.host {
                    self.known_instance(host);
                }
                match &it.system {
                    SanSystem::Server(server) => self.server(server),
                    SanSystem::Ontap {
                        ssd_bytes,
                        iops,
                        mb_s,
                    } => self.ontap(it.systems, *ssd_bytes, *iops, *mb_s),
                }
            }
            Shape::ParallelFs(ParallelFs::Servers { servers, server })
            | Shape::CloudVolumes(CloudVolumes::Servers { servers, server }) => {
                self.count(*servers, "servers");
                self.server(server);
            }
            Shape::ParallelFs(ParallelFs::Lustre {
                level,
                capacity_bytes,
                ..
            }) => self.lustre(level, *capacity_bytes),
            Shape::CloudVolumes(CloudVolumes::Service {
                level,
                volumes,
                quota_bytes,
            }) => self.cloud_volumes(level, *volumes, *quota_bytes),
            Shape::Elastic(it) => self.elastic(it),
        }
    }

    fn count(&mut self, count: u32, what: &str) {
        self.breaks(
            !(1..=COUNT_MAX).contains(&count),
            rules::DEPLOY_COUNT,
            || format!("{count} {what}, not 1 to {}", number(f64::from(COUNT_MAX))),
        );
    }

    fn server(&mut self, it: &NfsServer) {
        let count = it.storage.count();
        self.protection(it.protection, count, "disks", rules::CAPACITY_JOINED);
        let most = self.catalog.cairn.disks_max;
        // What a vendor's server holds is bounded by the instance alone.
        let too_many = self.product == Product::Cairn && count > most;
        self.breaks(too_many, rules::CAIRN_CODES, || {
            format!("{count} disks; a Cairn server has at most {most}")
        });
        self.machine(&it.instance, &it.storage);
    }

    fn protection(&mut self, it: Protection, units: u32, what: &str, vendor_rule: RuleId) {
        let cairn = &self.catalog.cairn;
        let rule = match self.product {
            Product::Cairn => rules::CAIRN_CODES,
            Product::Vendor => vendor_rule,
        };
        let (data_max, parity_max) = (cairn.data_max, cairn.parity_max);
        self.breaks(it.data == 0, rule, || {
            "protection needs a data unit: N of N+M is 0".to_owned()
        });
        let total = it.units();
        self.breaks(it.parity > 0 && total > units, rule, || {
            format!("protection {it} needs {total} {what}, there are {units}")
        });
        let beyond = it.parity > 0 && (it.data > data_max || it.parity > parity_max);
        self.breaks(self.product == Product::Cairn && beyond, rule, || {
            format!("protection {it}; Cairn protects with at most {data_max}+{parity_max}")
        });
    }

    fn machine(&mut self, name: &str, storage: &Storage) {
        let catalog = self.catalog;
        let Some(instance) = catalog.instances.get(name) else {
            return self.known_instance(name);
        };
        match storage {
            Storage::InstanceStore { disks, disk_bytes } => {
                self.instance_store(instance, *disks, *disk_bytes);
            }
            Storage::Ebs { volumes, volume } => {
                let most = instance.ebs_volumes_max;
                self.breaks(!(1..=most).contains(volumes), rules::EBS_COUNT, || {
                    format!("{volumes} data volumes; {name} takes 1 to {most}")
                });
                self.volume(name, volume);
            }
        }
    }

    fn instance_store(&mut self, instance: &Instance, disks: u32, disk_bytes: Bytes) {
        let name = &instance.name;
        let Some((_, known)) = instance.data_disks() else {
            return self.breaks(true, rules::DISK_COUNT, || {
                format!("{name} has no local disks whose speed is known")
            });
        };
        self.breaks(
            !(1..=instance.disks).contains(&disks),
            rules::DISK_COUNT,
            || {
                format!(
                    "{disks} local disks; {name} has {} (at least one is used)",
                    instance.disks
                )
            },
        );
        let other = (disk_bytes.get() - known.get()).abs() > 1.0;
        self.breaks(other, rules::DISK_COUNT, || {
            format!(
                "local disks of {}; those of {name} are {}",
                disk_bytes.tb_or_tib(),
                known.tb_or_tib()
            )
        });
    }

    fn volume(&mut self, instance: &str, it: &Volume) {
        let catalog = self.catalog;
        let name = &it.volume_type;
        let Some(of) = catalog.designs.volume.get(name) else {
            let known: Vec<&str> = catalog.designs.volume.keys().map(String::as_str).collect();
            return self.breaks(true, rules::EBS_TYPE, || {
                format!("{name} volumes; the planner knows {}", known.join(", "))
            });
        };
        let gib = it.size_bytes.gib();
        self.breaks(
            !(of.size_gib_min..=of.size_gib_max * SIZE_SLACK).contains(&gib),
            rules::EBS_SIZE,
            || {
                format!(
                    "a volume of {} GiB; {name} has {} to {} GiB",
                    number(gib),
                    number(of.size_gib_min),
                    number(of.size_gib_max)
                )
            },
        );
        self.provisioned_iops(instance, it);
        let Some(given) = it.mib_s.map(f64::from) else {
            return;
        };
        let Some(least) = of.mib_s else {
            return self.breaks(true, rules::EBS_PROVISIONED, || {
                format!("{} MiB/s provisioned; {name} has none", number(given))
            });
        };
        let most = of.mib_s_max;
        self.breaks(
            !(least..=most).contains(&given),
            rules::EBS_PROVISIONED,
            || {
                format!(
                    "{} MiB/s provisioned; {name} has {} to {}",
                    number(given),
                    number(least),
                    number(most)
                )
            },
        );
        let iops = it.iops.map_or(of.iops.unwrap_or(0.0), |iops| iops as f64);
        let carried = of.mib_s_per_iops_max.map_or(f64::INFINITY, |it| it * iops);
        self.breaks(given > carried, rules::EBS_MIB_S_PER_IOPS, || {
            format!(
                "{} MiB/s with {} IOPS; they carry {} MiB/s, and {} MiB/s need {} IOPS",
                number(given),
                number(iops),
                number(carried),
                number(given),
                number((given / of.mib_s_per_iops_max.unwrap_or(1.0)).ceil())
            )
        });
    }

    fn provisioned_iops(&mut self, instance: &str, it: &Volume) {
        let catalog = self.catalog;
        let name = &it.volume_type;
        let Some(of) = catalog.designs.volume.get(name) else {
            return;
        };
        let least = of.iops.or(of.iops_min);
        let (Some(least), Some(most)) = (least, of.iops_max) else {
            return self.breaks(it.iops.is_some(), rules::EBS_PROVISIONED, || {
                format!("{} IOPS provisioned; {name} has none", it.iops.unwrap_or(0))
            });
        };
        let Some(given) = it.iops.map(|iops| iops as f64) else {
            return self.breaks(of.iops_min.is_some(), rules::EBS_PROVISIONED, || {
                format!(
                    "no IOPS provisioned; {name} needs {} to {}",
                    number(least),
                    number(most)
                )
            });
        };
        let without_nitro = of
            .iops_max_without_nitro
            .filter(|_| !catalog.designs.nitro.has(instance));
        let most = without_nitro.unwrap_or(most);
        self.breaks(
            !(least..=most).contains(&given),
            rules::EBS_PROVISIONED,
            || {
                format!(
                    "{} IOPS provisioned; {name} has {} to {}{}",
                    number(given),
                    number(least),
                    number(most),
                    match without_nitro {
                        Some(_) => format!(" on {instance}, which is not built on Nitro"),
                        None => String::new(),
                    }
                )
            },
        );
        let by_size = of.iops_per_gib_max.unwrap_or(f64::INFINITY) * it.size_bytes.gib();
        let free = of.iops.unwrap_or(0.0);
        self.breaks(
            given > free && given > by_size * SIZE_SLACK,
            rules::EBS_IOPS_PER_GIB,
            || {
                format!(
                    "{} IOPS on {} GiB; {name} has at most {} on that size",
                    number(given),
                    number(it.size_bytes.gib()),
                    number(by_size.max(free).floor())
                )
            },
        );
    }

    fn ontap(&mut self, systems: u32, ssd: Bytes, iops: u64, rate: Rate) {
        let of = &self.catalog.designs.san_array;
        self.breaks(systems > of.systems_max, rules::SAN_SYSTEMS, || {
            format!("{systems} file systems, not 1 to {}", of.systems_max)
        });
        let size = of.ssd_gib_min * (2.0 - SIZE_SLACK)..=Bytes::from_gb(of.ssd_tb_max * 1e3).gib();
        self.breaks(!size.contains(&ssd.gib()), rules::SAN_SIZE, || {
            format!(
                "{} of SSD, not {} GiB to {} TB",
                ssd.tb_or_tib(),
                number(of.ssd_gib_min),
                number(of.ssd_tb_max)
            )
        });
        let given = iops as f64;
        self.breaks(iops > of.iops_max, rules::SAN_IOPS, || {
            format!(
                "{} SSD IOPS; a file system has at most {}",
                number(given),
                number(of.iops_max as f64)
            )
        });
        let Some((sold, most)) = of.throughput(rate.mb_s()) else {
            let sold: Vec<String> = of.throughput_mb_s.iter().map(|it| number(*it)).collect();
            return self.breaks(true, rules::SAN_LEVEL, || {
                format!(
                    "a throughput capacity of {rate}; it is one of {} MB/s",
                    sold.join(", ")
                )
            });
        };
        self.breaks(
            iops > most && iops <= of.iops_max,
            rules::SAN_IOPS_THROUGHPUT,
            || {
                format!(
                    "{} SSD IOPS with {} MB/s of throughput capacity, which has at most {}",
                    number(given),
                    number(sold),
                    number(most as f64)
                )
            },
        );
        let least = (of.iops_per_gib_min * ssd.gib()).floor().min(most as f64);
        self.breaks(given < least, rules::SAN_IOPS_THROUGHPUT, || {
            format!(
                "{} SSD IOPS; {} come with {}, and fewer are not sold",
                number(given),
                number(least),
                ssd.tb_or_tib()
            )
        });
    }

    fn lustre(&mut self, level: &str, capacity: Bytes) {
        let levels = &self.catalog.designs.parallel_fs.level;
        let Some(of) = levels.iter().find(|it| it.name == level) else {
            let known: Vec<&str> = levels.iter().map(|it| it.name.as_str()).collect();
            return self.breaks(true, rules::LUSTRE_LEVEL, || {
                format!("level \"{level}\" is none of {}", known.join(", "))
            });
        };
        let steps = capacity.gib() / of.step_gib;
        let whole = steps >= 1.0 - 1e-9 && (steps - steps.round()).abs() < 1e-6;
        self.breaks(!whole, rules::LUSTRE_SIZE, || {
            format!(
                "{} GiB; {level} comes in steps of {} GiB",
                number(capacity.gib()),
                number(of.step_gib)
            )
        });
    }

    fn elastic(&mut self, it: &Elastic) {
        self.breaks(
            self.product == Product::Cairn,
            rules::CAIRN_FEATURES,
            || "Cairn is no managed service: elastic storage is the vendor's alone".to_owned(),
        );
        let gib = it.capacity().gib();
        let rule = match it {
            Elastic::Efs { .. } => rules::EFS_LEVEL,
            Elastic::S3 { .. } => rules::S3_OBJECTS,
        };
        // A value larger than any number of bytes is no capacity.
        self.breaks(!(1.0..=1e12).contains(&gib), rule, || {
            format!("a capacity of {} GiB, not 1 GiB or more", number(gib))
        });
        let Elastic::Efs { level, mib_s, .. } = it else {
            return;
        };
        let levels = &self.catalog.designs.elastic.efs;
        let Some(of) = levels.iter().find(|it| it.name == *level) else {
            let known: Vec<&str> = levels.iter().map(|it| it.name.as_str()).collect();
            return self.breaks(true, rules::EFS_LEVEL, || {
                format!("\"{level}\" is none of {}", known.join(", "))
            });
        };
        if let Some(given) = mib_s.map(f64::from) {
            self.breaks(
                !(1.0..=of.write_mib_s_max).contains(&given),
                rules::EFS_LEVEL,
                || {
                    format!(
                        "{} MiB/s provisioned, not 1 to {}",
                        number(given),
                        number(of.write_mib_s_max)
                    )
                },
            );
        }
    }

    fn known_instance(&mut self, name: &str) {
        let known = self.catalog.instances.contains_key(name);
        let names = self.catalog.instances.keys().map(String::as_str);
        self.breaks(!known, rules::DEPLOY_INSTANCE, || {
            format!(
                "instance type \"{name}\" is not known; nearest: {}",
                crate::catalog::nearest(name, names).join(", ")
            )
        });
    }

    fn cloud_volumes(&mut self, level: &str, volumes: u32, quota: Bytes) {
        let of = &self.catalog.designs.cloud_volumes;
        self.count(volumes, "volumes");
        let known: Vec<&str> = of.level.iter().map(|it| it.name.as_str()).collect();
        self.breaks(!known.contains(&level), rules::CVS_LEVEL, || {
            format!("level \"{level}\" is none of {}", known.join(", "))
        });
        let most = of.quota_tb_max;
        let sold = quota.gb() >= 1.0 && quota.get() <= most * 1e12 * SIZE_SLACK;
        self.breaks(!sold, rules::CVS_QUOTA, || {
            format!(
                "a quota of {}, not 1 GB to {} TB",
                quota.tb_or_tib(),
                number(most)
            )
        });
    }
}
