//! How often a design loses data, how long it is out, and which failures it serves through.
//!
//! Owns: what follows from the failure rates of `data/reliability.toml`. Must not know: goals, prices, how
//! fast a design is.
//!
//! Failures are counted as independent, and nothing but failures of volumes, disks and servers is counted:
//! mistakes of people, of software and the loss of a whole zone come on top.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalog::{Catalog, DiskKind};
use crate::design::{
    CloudVolumes, Cluster, Design, Elastic, NfsServer, ParallelFs, SanSystem, Shape, Storage,
};
use crate::rules::{self, RuleId};
use crate::units::{Bytes, number};

/// Hours of a year, for outages.
const HOURS_PER_YEAR: f64 = 8766.0;

/// What a service still works through.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// It may stop with its one node.
    #[default]
    Single,
    /// It goes on when any one node fails, perhaps after a short wait.
    Node,
    /// It goes on when a whole availability zone fails.
    Zone,
}

impl Availability {
    pub const ALL: [(&'static str, Self); 3] = [
        ("single", Self::Single),
        ("node", Self::Node),
        ("zone", Self::Zone),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, level)| *level == self)
            .map_or("single", |(name, _)| name)
    }
}

/// Loss and outage to expect of a design. Data and service are two things: what survives two volumes on
/// one server still stops with that server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reliability {
    /// Chance that some data is lost in a year, 0 to 1; `None`: its vendor states none.
    pub loss_per_year: Option<f64>,
    /// Share of all data that such a loss takes, 0 to 1.
    pub loss_share: Option<f64>,
    /// The two multiplied: what is lost in a year on average.
    pub loss_bytes_per_year: Option<Bytes>,
    pub loss_words: String,
    pub availability: Availability,
    /// Hours a year in which some of it is out, on average; `None`: nobody states the rates.
    pub outage_hours_per_year: Option<f64>,
    /// How long the usual outage lasts.
    pub outage_hours_each: Option<f64>,
    /// What the vendor's promise still allows in a year; `None`: no promise.
    pub promised_hours_per_year: Option<f64>,
    pub outage_words: String,
    pub rules: Vec<RuleId>,
}

/// The data file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    version: u32,
    #[allow(dead_code, reason = "states what the data is, for readers of the file")]
    date: String,
    pub volume: BTreeMap<String, LossRate>,
    pub disk: BTreeMap<String, LossRate>,
    pub server: ServerRates,
    pub service: BTreeMap<String, ServiceRates>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossRate {
    pub lost_per_year: f64,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRates {
    pub stops: PerYear,
    pub restarts: PerYear,
    pub restart_hours: Hours,
    pub replace_hours: Hours,
    pub takeover_hours: Hours,
    pub detect_hours: Hours,
    pub rebuild_mb_s: RebuildRate,
    pub promised: Promised,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerYear {
    pub per_year: f64,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hours {
    pub hours: f64,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebuildRate {
    pub mb_s: f64,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promised {
    /// Share of the time that it is up.
    pub share: f64,
    pub source: String,
    pub date: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceRates {
    pub words: String,
    pub availability: Availability,
    pub survives: u32,
    /// How it goes on after a failure, as its vendor documents it.
    pub takeover: String,
    pub lost_per_year: Option<f64>,
    pub promised: Option<f64>,
    pub source: String,
    pub date: String,
}

impl Rates {
    fn volume(&self, volume_type: &str) -> f64 {
        // A type that the file lacks is counted as the worst that it has: never as one that cannot fail.
        let worst = || {
            self.volume
                .values()
                .map(|rate| rate.lost_per_year)
                .fold(0.0, f64::max)
        };
        self.volume
            .get(volume_type)
            .map_or_else(worst, |rate| rate.lost_per_year)
    }

    fn disk(&self, kind: Option<DiskKind>) -> f64 {
        let name = match kind {
            Some(DiskKind::Nvme) => "nvme",
            Some(DiskKind::Hdd) | None => "hdd",
        };
        self.disk.get(name).map_or(1.0, |rate| rate.lost_per_year)
    }

    /// Years until what was lost is there again.
    fn repair_years(&self, lost: Bytes) -> f64 {
        let of = &self.server;
        let rebuild_hours = lost.get() / (of.rebuild_mb_s.mb_s * 1e6) / 3600.0;
        (of.detect_hours.hours + rebuild_hours) / HOURS_PER_YEAR
    }
}

/// The design that is judged.
pub struct Judged<'a> {
    pub catalog: &'a Catalog,
    pub design: &'a Design,
    pub usable: Bytes,
    /// Writes, bytes per second: what is restored comes back so fast.
    pub restore_bytes_s: f64,
    /// `false`: only numbers are wanted.
    pub words: bool,
}

/// Loss of data in numbers.
#[derive(Clone, Copy)]
struct Loss {
    per_year: f64,
    share: f64,
}

impl Loss {
    /// Rates become a chance: what happens twice a year on average happens almost surely.
    fn chance(self) -> f64 {
        -(-self.per_year).exp_m1()
    }
}

/// Of `count` units that fail `rate` times a year and are repaired in `repair_years`: how often a year more
/// than `parity` are out at once. `apart`: units that fail alike and never share a stripe (the volumes of
/// one node) count once for each further failure.
fn beyond(count: f64, apart: f64, rate: f64, repair_years: f64, parity: u32) -> f64 {
    let mut per_year = count * rate;
    for failed in 1..=parity {
        let left = (count - f64::from(failed) * apart).max(0.0);
        per_year *= (left * rate * repair_years).min(1.0);
    }
    per_year
}

/// Share of the stripes, of `width` units over `count` places each, that has units on all of `failed`
/// places.
fn touched(count: u32, width: u32, failed: u32) -> f64 {
    (0..failed)
        .map(|taken| {
            f64::from(width.saturating_sub(taken)) / f64::from((count.saturating_sub(taken)).max(1))
        })
        .product::<f64>()
        .clamp(0.0, 1.0)
}

/// The loss of one server's data.
fn server_loss(catalog: &Catalog, it: &NfsServer) -> Loss {
    let rates = &catalog.reliability;
    let count = it.storage.count();
    let parity = it.protection.parity;
    let share = match parity {
        0 => 1.0,
        _ => touched(count, it.protection.units(), parity.saturating_add(1)),
    };
    let units = |rate: f64| {
        let repair = rates.repair_years(it.storage.size_each());
        beyond(f64::from(count), 1.0, rate, repair, parity)
    };
    match &it.storage {
        Storage::Ebs { volume, .. } => Loss {
            per_year: units(rates.volume(&volume.volume_type)),
            share,
        },
        Storage::InstanceStore { .. } => {
            // With the server everything is gone; what disks add is smaller, and counted as all too.
            let kind = catalog
                .instances
                .get(&it.instance)
                .and_then(|instance| instance.data_disks())
                .map(|(kind, _)| kind);
            Loss {
                per_year: rates.server.stops.per_year + units(rates.disk(kind)),
                share: 1.0,
            }
        }
    }
}

fn cluster_loss(catalog: &Catalog, it: &Cluster) -> Loss {
    let rates = &catalog.reliability;
    let parity = it.protection.parity;
    let nodes = f64::from(it.nodes);
    let stripes = match parity {
        0 => 1.0,
        _ => touched(it.nodes, it.protection.units(), parity.saturating_add(1)),
    };
    match &it.storage {
        // A node that fails leaves its volumes whole: only volumes are lost.
        Storage::Ebs { volumes, volume } => {
            let each = f64::from(*volumes);
            let repair = rates.repair_years(volume.size_bytes);
            let failed = i32::try_from(parity.saturating_add(1)).unwrap_or(i32::MAX);
            Loss {
                per_year: beyond(
                    nodes * each,
                    each,
                    rates.volume(&volume.volume_type),
                    repair,
                    parity,
                ),
                share: match parity {
                    0 => 1.0,
                    _ => stripes / each.powi(failed),
                },
            }
        }
        // A node takes its disks with it; a disk is counted as if it took its node with it.
        Storage::InstanceStore { disks, .. } => {
            let kind = catalog
                .instances
                .get(&it.instance)
                .and_then(|instance| instance.data_disks())
                .map(|(kind, _)| kind);
            let rate = rates.server.stops.per_year + f64::from(*disks) * rates.disk(kind);
            // All its disks are filled again side by side.
            let repair = rates.repair_years(it.storage.size_each());
            Loss {
                per_year: beyond(nodes, 1.0, rate, repair, parity),
                share: stripes,
            }
        }
    }
}

/// What to expect of a design.
pub fn judge(of: &Judged<'_>) -> Reliability {
    match &of.design.shape {
        Shape::Cluster(it) => cluster(of, it),
        Shape::NfsServer(it) => servers(of, 1, it, 1.0, "the server"),
        Shape::SanArray(it) => match &it.system {
            SanSystem::Ontap { .. } => service(of, "ontap"),
            // Striped by the host: without one system the file system on all of them is gone.
            SanSystem::Server(server) => servers(of, it.systems, server, 1.0, "the array"),
        },
        Shape::ParallelFs(ParallelFs::Lustre { .. }) => service(of, "lustre"),
        Shape::CloudVolumes(CloudVolumes::Service { .. }) => service(of, "cloud-volumes"),
        Shape::Elastic(Elastic::Efs { level, .. }) if level == "regional" => {
            service(of, "efs-regional")
        }
        Shape::Elastic(Elastic::Efs { .. }) => service(of, "efs-one-zone"),
        Shape::Elastic(Elastic::S3 { .. }) => service(of, "s3"),
        Shape::ParallelFs(ParallelFs::Servers {
            servers: count,
            server,
        })
        | Shape::CloudVolumes(CloudVolumes::Servers {
            servers: count,
            server,
        }) => {
            let share = 1.0 / f64::from((*count).max(1));
            servers(of, *count, server, share, "one server's part")
        }
    }
}

/// A chance of a year in words: `0.2%`, `1 in 40 million`.
fn chance(value: f64) -> String {
    if value >= 0.001 {
        return format!("{}%", number((value * 1000.0).round() / 10.0));
    }
    if value <= 1e-18 {
        return "less than 1 in a billion billion".to_owned();
    }
    let one_in = 1.0 / value;
    let digits = 10_f64.powi(one_in.log10().floor() as i32);
    let rounded = (one_in / digits).round() * digits;
    match rounded {
        it if it < 1e6 => format!("1 in {}", number(it)),
        it if it < 1e9 => format!("1 in {} million", number(it / 1e6)),
        it => format!("1 in {} billion", number((it / 1e9).min(1e9))),
    }
}

/// `3 minutes`, `4.5 hours`, `6 days`.
pub fn duration(hours: f64) -> String {
    let text = |value: f64, unit: &str| {
        let value = match value {
            it if it < 10.0 => (it * 10.0).round() / 10.0,
            it => it.round(),
        };
        match value {
            1.0 => format!("1 {unit}"),
            _ => format!("{} {unit}s", number(value)),
        }
    };
    match hours {
        it if it < 1.0 / 60.0 => text((it * 3600.0).max(1.0).round(), "second"),
        it if it < 1.0 => text((it * 60.0).round(), "minute"),
        it if it < 72.0 => text(it, "hour"),
        it => text(it / 24.0, "day"),
    }
}

fn lost(of: &Judged<'_>, loss: Loss, when: &str) -> (Option<f64>, Option<Bytes>, String) {
    let per_year = loss.chance();
    let bytes = Bytes::new(of.usable.get() * loss.share * per_year);
    let words = match of.words {
        false => String::new(),
        true => format!(
            "{} a year that {} {}",
            chance(per_year),
            match loss.share {
                share if share >= 0.9995 => "all is lost".to_owned(),
                share if share >= 0.001 => format!(
                    "{}% of the data is lost",
                    number((share * 1000.0).round() / 10.0)
                ),
                _ => "a little of the data is lost".to_owned(),
            },
            when
        ),
    };
    (Some(per_year), Some(bytes), words)
}

fn promised_hours(share: f64) -> f64 {
    (1.0 - share) * HOURS_PER_YEAR
}

/// Servers of one's own, none of which takes over from another.
fn servers(
    of: &Judged<'_>,
    count: u32,
    it: &NfsServer,
    share_each: f64,
    what: &str,
) -> Reliability {
    let rates = &of.catalog.reliability.server;
    let each = server_loss(of.catalog, it);
    let all = f64::from(count.max(1));
    let loss = Loss {
        per_year: each.per_year * all,
        share: if share_each == 1.0 && count > 1 {
            1.0
        } else {
            each.share * share_each
        },
    };
    let local = matches!(it.storage, Storage::InstanceStore { .. });
    let when = match (local, it.protection.parity) {
        (true, _) => format!(
            "when {} stops: instance store is gone with its server",
            if count == 1 { "the server" } else { "a server" }
        ),
        (false, 0) => "with any one volume".to_owned(),
        (false, parity) => format!(
            "when {} volumes of a server fail before one is replaced",
            parity + 1
        ),
    };
    let (loss_per_year, loss_bytes_per_year, loss_words) = lost(of, loss, &when);
    // Lost data comes back from elsewhere, as fast as it can be written.
    let restore = of.usable.get() * loss.share / of.restore_bytes_s.max(1.0) / 3600.0;
    let restarts = rates.restarts.per_year * rates.restart_hours.hours;
    let stops = match local {
        true => 0.0,
        false => rates.stops.per_year * rates.replace_hours.hours,
    };
    let hours = all * (restarts + stops) + loss.per_year * restore;
    let each_hours = match local {
        true => restore,
        false => rates.replace_hours.hours,
    };
    let promised = promised_hours(rates.promised.share);
    let outage_words = match of.words {
        false => String::new(),
        true => format!(
            "{} a year for {what}: {} when a server fails, {} at each update{}; EC2 promises no less than {} a year for one server",
            duration(hours),
            match local {
                true => format!("{} (all is restored from elsewhere)", duration(restore)),
                false => duration(rates.replace_hours.hours),
            },
            duration(rates.restart_hours.hours),
            match local {
                true => String::new(),
                false => format!(", {} to restore after a loss", duration(restore)),
            },
            duration(promised),
        ),
    };
    Reliability {
        loss_per_year,
        loss_share: Some(loss.share),
        loss_bytes_per_year,
        loss_words,
        availability: Availability::Single,
        outage_hours_per_year: Some(hours),
        outage_hours_each: Some(each_hours),
        promised_hours_per_year: Some(promised),
        outage_words,
        rules: vec![
            if local {
                rules::STORE_LOST
            } else {
                rules::EBS_SURVIVES
            },
            rules::LOSS_UNITS,
            rules::OUTAGE_SERVER,
        ],
    }
}

fn cluster(of: &Judged<'_>, it: &Cluster) -> Reliability {
    let rates = &of.catalog.reliability.server;
    let loss = cluster_loss(of.catalog, it);
    let local = matches!(it.storage, Storage::InstanceStore { .. });
    let unit = if local { "nodes" } else { "volumes" };
    let when = match it.protection.parity {
        0 => format!("with any one of its {unit}"),
        parity => format!(
            "when {} {unit} fail before one is replaced{}",
            parity + 1,
            if local {
                "; instance store is gone when its node stops, and what one node had is rebuilt from the others"
            } else {
                ""
            }
        ),
    };
    let (loss_per_year, loss_bytes_per_year, loss_words) = lost(of, loss, &when);
    let nodes = f64::from(it.nodes);
    let protected = it.protection.parity > 0 && it.nodes > 1;
    let events = nodes * (rates.stops.per_year + rates.restarts.per_year);
    let restore = of.usable.get() * loss.share / of.restore_bytes_s.max(1.0) / 3600.0;
    // More nodes out at once than the code bears: clients wait until one is back.
    let repair = rates.replace_hours.hours / HOURS_PER_YEAR;
    let stalled = beyond(
        nodes,
        1.0,
        rates.stops.per_year,
        repair,
        it.protection.parity,
    ) * rates.replace_hours.hours;
    let each = match protected {
        true => rates.takeover_hours.hours,
        false => rates.replace_hours.hours,
    };
    let hours = events * each + stalled + loss.per_year * restore;
    let outage_words = match of.words {
        false => String::new(),
        true => format!(
            "{} a year, in waits of {} while a node's work moves to another; an outage of the zone comes on top",
            duration(hours),
            duration(each),
        ),
    };
    Reliability {
        loss_per_year,
        loss_share: Some(loss.share),
        loss_bytes_per_year,
        loss_words,
        availability: match protected {
            true => Availability::Node,
            false => Availability::Single,
        },
        outage_hours_per_year: Some(hours),
        outage_hours_each: Some(each),
        promised_hours_per_year: None,
        outage_words,
        rules: vec![rules::LOSS_UNITS, rules::OUTAGE_CLUSTER],
    }
}

/// A managed service: what its vendor documents, and no more.
fn service(of: &Judged<'_>, id: &str) -> Reliability {
    let rules = vec![rules::SERVICE_REDUNDANCY, rules::SERVICE_STATED];
    let Some(rates) = of.catalog.reliability.service.get(id) else {
        return Reliability {
            loss_per_year: None,
            loss_share: None,
            loss_bytes_per_year: None,
            loss_words: "unknown: nothing is documented".to_owned(),
            availability: Availability::Single,
            outage_hours_per_year: None,
            outage_hours_each: None,
            promised_hours_per_year: None,
            outage_words: "unknown: nothing is documented".to_owned(),
            rules,
        };
    };
    let promised = rates.promised.map(promised_hours);
    let (loss_words, outage_words) = match of.words {
        false => (String::new(), String::new()),
        true => (
            match rates.lost_per_year {
                Some(rate) => format!("{} a year for any one file", chance(rate)),
                None => "unknown: its vendor states no rate; keep a copy elsewhere".to_owned(),
            },
            format!(
                "{}; {}",
                match promised {
                    Some(hours) => format!(
                        "up to {} a year by its promise of {}%",
                        duration(hours),
                        number(rates.promised.unwrap_or(0.0) * 100.0)
                    ),
                    None => "unknown: its vendor promises nothing".to_owned(),
                },
                rates.takeover
            ),
        ),
    };
    Reliability {
        loss_per_year: rates.lost_per_year,
        loss_share: None,
        loss_bytes_per_year: rates
            .lost_per_year
            .map(|rate| Bytes::new(rate * of.usable.get())),
        loss_words,
        availability: rates.availability,
        outage_hours_per_year: None,
        outage_hours_each: None,
        promised_hours_per_year: promised,
        outage_words,
        rules,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_has_a_source_a_date_and_is_a_rate() {
        let rates = &Catalog::embedded().reliability;
        for (name, it) in rates.volume.iter().chain(&rates.disk) {
            assert!(it.lost_per_year > 0.0 && it.lost_per_year < 0.1, "{name}");
            assert!(!it.source.is_empty() && it.date.len() == 10, "{name}");
        }
        for (name, it) in &rates.service {
            assert!(!it.source.is_empty() && it.date.len() == 10, "{name}");
            assert!(it.promised.is_none_or(|share| (0.9..1.0).contains(&share)));
        }
    }

    #[test]
    fn parity_multiplies_and_nothing_fails_less_for_more_units() {
        let day = 1.0 / 365.0;
        let none = beyond(10.0, 1.0, 0.002, day, 0);
        assert!((none - 0.02).abs() < 1e-12);
        let one = beyond(10.0, 1.0, 0.002, day, 1);
        assert!((one - 0.02 * 9.0 * 0.002 * day).abs() < 1e-15);
        assert!(beyond(20.0, 1.0, 0.002, day, 1) > one);
        assert!(beyond(10.0, 1.0, 0.002, day, 2) < one);
        // Two failed of ten places, stripes of two: one stripe in 45 pairs.
        assert!((touched(10, 2, 2) - 1.0 / 45.0).abs() < 1e-12);
        assert_eq!(touched(6, 6, 3), 1.0);
    }

    #[test]
    fn chances_and_durations_read_as_words() {
        let chances = [
            (0.05, "5%"),
            (0.015, "1.5%"),
            (0.000_5, "1 in 2,000"),
            (2.5e-8, "1 in 40 million"),
        ];
        for (value, words) in chances {
            assert_eq!(chance(value), words);
        }
        let durations = [
            (0.001, "4 seconds"),
            (0.1, "6 minutes"),
            (1.0, "1 hour"),
            (43.8, "44 hours"),
            (240.0, "10 days"),
        ];
        for (hours, words) in durations {
            assert_eq!(duration(hours), words);
        }
    }
}
