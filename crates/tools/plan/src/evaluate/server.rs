//! What one server with its disks or volumes reads, writes and holds.
//!
//! Owns: the limits of network, EBS, volumes and local disks of one instance.
//! Must not know: how many servers there are or how they share data.

use crate::catalog::{Band, Catalog, DiskKind, Instance};
use crate::design::{Product, Protection, Storage, Volume};
use crate::evaluate::EvaluateError;
use crate::evaluate::limits::{Detail, Limits};
use crate::report::{Credit, Known};
use crate::rules;
use crate::units::{Bytes, KIB, Rate, TIB, number};

/// 24 disks of a d2.8xlarge together, in MB/s (rule `disk.hdd`).
const HDD_READ_MB_S: f64 = 3500.0 / 24.0;
const HDD_WRITE_MB_S: f64 = 3100.0 / 24.0;
/// 1 s / (8.5 ms seek + 4.17 ms half a turn) (rule `disk.hdd-random`).
const HDD_IOPS: f64 = 79.0;
/// What random figures are of.
pub const RANDOM_BYTES: f64 = 4.0 * KIB;
/// Documented least of what EBS delivers (rule `ebs.slowest`).
const EBS_DELIVERED: f64 = 0.9;
/// An instance with a peak of EBS bandwidth keeps it for this long a day.
const EBS_PEAK_S: f64 = 1800.0;

/// The limits of one server's storage, of raw bytes and operations; steady and burst.
pub struct ServerStorage {
    pub read: Band<Limits>,
    pub write: Band<Limits>,
    pub read_iops: Band<Limits>,
    pub write_iops: Band<Limits>,
    pub credit: Option<Credit>,
}

fn band(detail: Detail) -> Band<Limits> {
    Band {
        steady: Limits::new(detail),
        burst: Limits::new(detail),
    }
}

pub fn storage(
    catalog: &Catalog,
    instance: &Instance,
    storage: &Storage,
    detail: Detail,
) -> Result<ServerStorage, EvaluateError> {
    match storage {
        Storage::InstanceStore { disks, .. } => instance_store(instance, *disks, detail),
        Storage::Ebs { volumes, volume } => ebs(catalog, instance, *volumes, volume, detail),
    }
}

fn instance_store(
    instance: &Instance,
    disks: u32,
    detail: Detail,
) -> Result<ServerStorage, EvaluateError> {
    let invalid = |detail: String| EvaluateError::Invalid { detail };
    let (kind, _) = instance.data_disks().ok_or_else(|| {
        invalid(format!(
            "{} has no local disks whose speed is known",
            instance.name
        ))
    })?;
    if disks == 0 || disks > instance.disks {
        return Err(invalid(format!(
            "{} has {} local disks, not {disks}",
            instance.name, instance.disks
        )));
    }
    let (mut read, mut write, mut read_iops, mut write_iops) = (
        Limits::new(detail),
        Limits::new(detail),
        Limits::new(detail),
        Limits::new(detail),
    );
    let count = f64::from(disks);
    match kind {
        DiskKind::Hdd => {
            let rate = |mb_s| Rate::from_mb_s(mb_s * count);
            read.rate("local disks", rate(HDD_READ_MB_S), rules::DISK_HDD, || {
                format!("{disks} disks x 145.8 MB/s")
            });
            write.rate("local disks", rate(HDD_WRITE_MB_S), rules::DISK_HDD, || {
                format!("{disks} disks x 129.2 MB/s")
            });

            read_iops.iops(
                "local disks",
                HDD_IOPS * count,
                rules::DISK_HDD_RANDOM,
                || format!("{disks} disks x 79 IOPS"),
            );
            write_iops.iops(
                "local disks",
                HDD_IOPS * count,
                rules::DISK_HDD_RANDOM,
                || format!("{disks} disks x 79 IOPS"),
            );
        }
        DiskKind::Nvme => {
            let share = count / f64::from(instance.disks);
            let iops = |of_all: Option<u64>| of_all.unwrap_or(0) as f64 * share;
            let (reads, writes) = (
                iops(instance.disk_read_iops),
                iops(instance.disk_write_iops),
            );
            let rate = |iops: f64| Rate::from_bytes_s(iops * RANDOM_BYTES);
            let words = |iops: f64| format!("{} IOPS x 4 KiB", number(iops));
            read.rate("local disks", rate(reads), rules::DISK_NVME, || {
                words(reads)
            });
            write.rate("local disks", rate(writes), rules::DISK_NVME, || {
                words(writes)
            });
            let words = |iops: f64| format!("{disks} disks, {} IOPS", number(iops));
            read_iops.iops("local disks", reads, rules::DISK_NVME, || words(reads));
            write_iops.iops("local disks", writes, rules::DISK_NVME, || words(writes));
        }
    }
    let same = |limits: Limits| Band {
        steady: limits.clone(),
        burst: limits,
    };
    Ok(ServerStorage {
        read: same(read),
        write: same(write),
        read_iops: same(read_iops),
        write_iops: same(write_iops),
        credit: None,
    })
}

/// What one volume does: MiB/s and operations per second, steady and burst.
struct VolumeRates {
    mib_s: Band<f64>,
    iops: Band<f64>,
    /// Credit of one volume, where it has a bucket.
    bucket: Option<Bytes>,
    rule: rules::RuleId,
    iops_rule: rules::RuleId,
}

fn volume_rates(catalog: &Catalog, volume: &Volume) -> Result<VolumeRates, EvaluateError> {
    let of = catalog.volume_type(&volume.volume_type)?;
    let invalid = |detail: String| EvaluateError::Invalid { detail };
    let gib = volume.size_bytes.gib();
    if !(of.size_gib_min..=of.size_gib_max * 1.000_001).contains(&gib) {
        return Err(invalid(format!(
            "a {} volume is {} to {} GiB, not {}",
            volume.volume_type,
            number(of.size_gib_min),
            number(of.size_gib_max),
            number(gib)
        )));
    }
    if let (Some(per_tib), Some(burst_per_tib)) = (of.mib_s_per_tib, of.burst_mib_s_per_tib) {
        if volume.iops.is_some() || volume.mib_s.is_some() {
            return Err(invalid(format!(
                "{} volumes have no provisioned IOPS or throughput",
                volume.volume_type
            )));
        }
        let tib = volume.size_bytes.tib();
        let band = Band {
            steady: (per_tib * tib).min(of.mib_s_max),
            burst: (burst_per_tib * tib).min(of.mib_s_max),
        };
        return Ok(VolumeRates {
            mib_s: band,
            iops: band,
            bucket: Some(Bytes::new(TIB).times(tib)),
            rule: match volume.volume_type.as_str() {
                "sc1" => rules::EBS_SC1,
                _ => rules::EBS_ST1,
            },
            iops_rule: rules::EBS_ST1_IOPS,
        });
    }
    let iops = volume
        .iops
        .map_or(of.iops.unwrap_or(0.0), |iops| iops as f64);
    let mib_s = of
        .mib_s_of_iops(iops)
        .unwrap_or_else(|| volume.mib_s.map_or(of.mib_s.unwrap_or(0.0), f64::from));
    let most = of.iops_max.unwrap_or(f64::INFINITY);
    if mib_s > of.mib_s_max || iops > most {
        return Err(invalid(format!(
            "a {} volume does at most {} MiB/s and {} IOPS, not {} and {}",
            volume.volume_type,
            number(of.mib_s_max),
            number(most),
            number(mib_s),
            number(iops)
        )));
    }
    let rule = match of.mib_s_per_iops {
        Some(_) => rules::EBS_IO,
        None => rules::EBS_GP3,
    };
    let flat = |value| Band {
        steady: value,
        burst: value,
    };
    Ok(VolumeRates {
        mib_s: flat(mib_s),
        iops: flat(iops),
        bucket: None,
        rule,
        iops_rule: rule,
    })
}

fn ebs(
    catalog: &Catalog,
    instance: &Instance,
    volumes: u32,
    volume: &Volume,
    detail: Detail,
) -> Result<ServerStorage, EvaluateError> {
    if volumes == 0 || volumes > instance.ebs_volumes_max {
        return Err(EvaluateError::Invalid {
            detail: format!(
                "{} takes 1 to {} data volumes, not {volumes}",
                instance.name, instance.ebs_volumes_max
            ),
        });
    }
    let each = volume_rates(catalog, volume)?;
    let count = f64::from(volumes);
    let (bandwidth, operations) = (instance.ebs(), instance.ebs_iops());
    let mut rates = band(detail);
    let mut iops = band(detail);
    for (limits, of_instance, of_volume) in [
        (&mut rates.steady, bandwidth.steady, each.mib_s.steady),
        (&mut rates.burst, bandwidth.burst, each.mib_s.burst),
    ] {
        limits.rate(
            "EBS bandwidth of the instance",
            of_instance,
            rules::EBS_INSTANCE,
            || {
                format!(
                    "{}: {} Gb/s / 8",
                    instance.name,
                    number(of_instance.gbit_s())
                )
            },
        );
        limits.rate(
            "volumes",
            Rate::from_mib_s(of_volume * count),
            each.rule,
            || {
                format!(
                    "{volumes} {} volumes x {} MiB/s",
                    volume.volume_type,
                    number(of_volume)
                )
            },
        );
    }
    for (limits, of_instance, of_volume) in [
        (&mut iops.steady, operations.steady, each.iops.steady),
        (&mut iops.burst, operations.burst, each.iops.burst),
    ] {
        limits.iops(
            "EBS operations of the instance",
            of_instance,
            rules::EBS_IOPS,
            || format!("{}: {} IOPS", instance.name, number(of_instance)),
        );
        limits.iops("volumes", of_volume * count, each.iops_rule, || {
            format!(
                "{volumes} {} volumes x {} IOPS",
                volume.volume_type,
                number(of_volume)
            )
        });
    }
    let credit = credit(instance, &rates, &each, count, volume);
    Ok(ServerStorage {
        read: rates.clone(),
        write: rates,
        read_iops: iops.clone(),
        write_iops: iops,
        credit,
    })
}

/// The bucket that runs dry first when the server does all it can.
fn credit(
    instance: &Instance,
    rates: &Band<Limits>,
    each: &VolumeRates,
    count: f64,
    volume: &Volume,
) -> Option<Credit> {
    let (steady, burst) = (
        Rate::from_mb_s(rates.steady.lowest()),
        Rate::from_mb_s(rates.burst.lowest()),
    );
    let gain = burst.bytes_s() - steady.bytes_s();
    if gain <= 0.0 {
        return None;
    }
    let make = |name: String, bucket: Bytes, spent_bytes_s: f64, rule| Credit {
        name,
        baseline_mb_s: steady,
        burst_mb_s: burst,
        bucket_bytes: bucket,
        burst_s: bucket.get() / spent_bytes_s,
        rules: vec![rule],
    };
    let bandwidth = instance.ebs();
    let of_instance = (bandwidth.burst.bytes_s() > bandwidth.steady.bytes_s()
        && burst.bytes_s() > bandwidth.steady.bytes_s())
    .then(|| {
        make(
            format!("EBS bandwidth of {}", instance.name),
            Bytes::new((bandwidth.burst.bytes_s() - bandwidth.steady.bytes_s()) * EBS_PEAK_S),
            burst.bytes_s() - bandwidth.steady.bytes_s(),
            rules::EBS_INSTANCE,
        )
    });
    let volumes_steady = Rate::from_mib_s(each.mib_s.steady * count).bytes_s();
    let of_volumes = each
        .bucket
        .filter(|_| burst.bytes_s() > volumes_steady)
        .map(|bucket| {
            make(
                format!("{} volumes", volume.volume_type),
                bucket.times(count),
                burst.bytes_s() - volumes_steady,
                each.rule,
            )
        });
    [of_instance, of_volumes]
        .into_iter()
        .flatten()
        .min_by(|left, right| left.burst_s.total_cmp(&right.burst_s))
}

/// The four figures of one server, before its network.
pub struct ServerRates {
    pub read: Band<Limits>,
    pub write: Band<Limits>,
    pub read_iops: Band<Limits>,
    pub write_iops: Band<Limits>,
    /// Rules that hold for all limits of writes, and of random writes.
    pub write_rules: Vec<rules::RuleId>,
    pub random_rules: Vec<rules::RuleId>,
    pub credit: Option<Credit>,
}

/// Applies protection (and Cairn's own limits) to what the storage of a server does.
pub fn rates(
    catalog: &Catalog,
    instance: &Instance,
    of: &Storage,
    protection: Protection,
    product: Product,
    detail: Detail,
) -> Result<ServerRates, EvaluateError> {
    let raw = storage(catalog, instance, of, detail)?;
    let striped_on_ebs = protection.parity > 0 && matches!(of, Storage::Ebs { .. });
    let (share, also) = match (protection.parity, striped_on_ebs) {
        (0, _) => (1.0, ""),
        (_, true) => (protection.efficiency() * EBS_DELIVERED, " x 0.9"),
        (_, false) => (protection.efficiency(), ""),
    };
    let mut write_rules = Vec::new();
    if protection.parity > 0 {
        write_rules.push(rules::PARITY_WRITE);
    }
    if striped_on_ebs {
        write_rules.push(rules::EBS_SLOWEST);
    }
    let (data, parity) = (
        f64::from(protection.data.max(1)),
        f64::from(protection.parity),
    );
    let (operations, random_rule) = match product {
        Product::Cairn => (1.0 + parity + (data + parity) / data, rules::JOURNAL_RANDOM),
        Product::Vendor if protection.parity == 0 => (1.0, rules::CAPACITY_JOINED),
        Product::Vendor => (2.0 * (1.0 + parity), rules::PARITY_RANDOM),
    };
    fn each(limits: Band<Limits>, factor: f64, why: impl Fn() -> String) -> Band<Limits> {
        Band {
            steady: limits.steady.times(factor, &why),
            burst: limits.burst.times(factor, &why),
        }
    }
    let mut read = raw.read;
    let units = protection.units();
    let mut write = each(raw.write, share, || {
        format!("x {}/{units}{also}", protection.data)
    });
    if product == Product::Cairn {
        software(catalog, instance, protection, &mut read, &mut write);
    }
    Ok(ServerRates {
        read,
        write,
        read_iops: raw.read_iops,
        write_iops: each(raw.write_iops, 1.0 / operations, || {
            format!("/ {}", number(operations))
        }),
        write_rules,
        random_rules: vec![random_rule],
        credit: raw.credit,
    })
}

/// Cairn itself: what was measured, grown with the CPUs. That it grows so is extrapolated; the least is then
/// what was measured, and the most what the CPUs make of it.
fn software(
    catalog: &Catalog,
    instance: &Instance,
    protection: Protection,
    read: &mut Band<Limits>,
    write: &mut Band<Limits>,
) {
    let of = &catalog.cairn.measured;
    let measured = match protection.parity {
        0 => &of.one_disk,
        _ => &of.coded,
    };
    let code = measured.code.filter(|_| protection.parity > 0);
    let cpus = f64::from(instance.vcpu) / f64::from(of.vcpu.max(1));
    let known = if instance.vcpu == of.vcpu && code.is_none_or(|code| code == protection) {
        Known::Measured
    } else {
        Known::Extrapolated
    };
    let what = code.map_or("one disk".to_owned(), |code| code.to_string());
    for (limits, mb_s) in [(read, measured.read_mb_s), (write, measured.write_mb_s)] {
        let value = mb_s * cpus;
        let range = [value.min(mb_s), value.max(mb_s)];
        for limits in [&mut limits.steady, &mut limits.burst] {
            limits.known(
                "Cairn itself",
                value,
                range,
                known,
                rules::CAIRN_SOFTWARE,
                || {
                    format!(
                        "{} MB/s measured ({what}, {} CPUs) x {} CPUs / {}",
                        number(mb_s),
                        of.vcpu,
                        instance.vcpu,
                        of.vcpu
                    )
                },
            );
        }
    }
}

/// The network of one server as a limit of what its clients do.
pub fn network(instance: &Instance, divided_by: f64, why: &str, detail: Detail) -> Band<Limits> {
    let mut limits = band(detail);
    let rule = if divided_by == 1.0 {
        rules::NETWORK_INSTANCE
    } else {
        rules::NETWORK_CLUSTER
    };
    for (limits, rate) in [
        (&mut limits.steady, instance.network().steady),
        (&mut limits.burst, instance.network().burst),
    ] {
        limits.rate(
            "network of the instance",
            rate.times(1.0 / divided_by),
            rule,
            || format!("{}: {} Gb/s / 8{why}", instance.name, number(rate.gbit_s())),
        );
    }
    limits
}

/// The network of one server as a limit of operations of 4 KiB.
pub fn network_iops(
    instance: &Instance,
    divided_by: f64,
    why: &str,
    detail: Detail,
) -> Band<Limits> {
    let mut limits = band(detail);
    for (limits, rate) in [
        (&mut limits.steady, instance.network().steady),
        (&mut limits.burst, instance.network().burst),
    ] {
        limits.iops(
            "network of the instance",
            rate.bytes_s() / divided_by / RANDOM_BYTES,
            rules::NETWORK_INSTANCE,
            || {
                format!(
                    "{}: {} Gb/s / 8{why} / 4 KiB",
                    instance.name,
                    number(rate.gbit_s())
                )
            },
        );
    }
    limits
}
