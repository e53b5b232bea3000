//! A given configuration against the papers' rules: which fail, and the nearest that passes.
//!
//! Owns: the rules of Tables 1, 2, 3, 8 and 9 and of the other designs as checks.
//! Must not know: what a design delivers or costs.

use serde::Serialize;

use crate::candidates::candidates;
use crate::catalog::Catalog;
use crate::design::{Cluster, Design, Product, Protection, Shape, Storage};
use crate::evaluate::{Detail, EvaluateError, evaluate, evaluate_with};
use crate::goal::Goal;
use crate::report::Evaluation;
use crate::rules::{self, RuleId};
use crate::units::{Bytes, number};

/// A rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    pub rule: RuleId,
    /// With the configuration's own numbers.
    pub words: String,
}

/// What `cairn plan check` says.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub name: String,
    pub design: Design,
    pub violations: Vec<Violation>,
    /// The configuration nearest to it that breaks no rule; `None` when it breaks none itself.
    pub nearest: Option<Box<Design>>,
    pub nearest_name: Option<String>,
    /// Figures, when it can be built at all.
    pub evaluation: Option<Box<Evaluation>>,
}

/// Why a configuration file is no design.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{file} is no configuration: {detail}. It needs product, region and [shape]; \
     docs/guide/planner.md has an example of each family"
)]
pub struct ConfigError {
    pub file: String,
    pub detail: String,
}

/// A configuration of a cluster may list its nodes one by one; they must be the same.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeList {
    product: Product,
    region: String,
    node: Vec<Node>,
    protection: Option<Protection>,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Node {
    instance: String,
    #[serde(flatten)]
    storage: Storage,
}

/// A configuration as read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub design: Design,
    /// Nodes of a list that differ from the first, from 1.
    pub different: Vec<usize>,
}

/// Reads a configuration: TOML or JSON, a design, an evaluation or a report that holds one.
pub fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
    let error = |detail: String| ConfigError {
        file: file.to_owned(),
        detail,
    };
    let value: serde_json::Value = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|it| error(it.to_string()))?
    } else {
        toml::from_str(text).map_err(|it| error(it.to_string()))?
    };
    if value.get("node").is_some() {
        let list: NodeList = serde_json::from_value(value).map_err(|it| error(it.to_string()))?;
        return nodes(list).ok_or_else(|| error("its list of nodes is empty".to_owned()));
    }
    // A saved report: the best that fits; a saved evaluation: its design.
    let inner = value
        .pointer("/ranking/fits/0/evaluation/design")
        .or_else(|| value.pointer("/evaluation/design"))
        .or_else(|| value.pointer("/design"))
        .unwrap_or(&value);
    let design = serde_json::from_value(inner.clone()).map_err(|it| error(it.to_string()))?;
    Ok(Config {
        design,
        different: Vec::new(),
    })
}

/// The design of a configuration, or of this rank (from 1) of a saved plan.
pub fn design_of_rank(file: &str, text: &str, rank: usize) -> Result<Design, ConfigError> {
    let saved = serde_json::from_str::<serde_json::Value>(text).ok();
    let fits = saved
        .as_ref()
        .and_then(|plan| plan.pointer("/ranking/fits"))
        .and_then(serde_json::Value::as_array);
    let Some(fits) = fits else {
        return parse(file, text).map(|config| config.design);
    };
    let error = |detail: String| ConfigError {
        file: file.to_owned(),
        detail,
    };
    let fit = rank
        .checked_sub(1)
        .and_then(|index| fits.get(index))
        .and_then(|fit| fit.pointer("/evaluation/design"))
        .ok_or_else(|| {
            error(format!(
                "it has {} designs, none of rank {rank}",
                fits.len()
            ))
        })?;
    serde_json::from_value(fit.clone()).map_err(|it| error(it.to_string()))
}

fn nodes(list: NodeList) -> Option<Config> {
    let first = list.node.first()?;
    let different = list
        .node
        .iter()
        .enumerate()
        .filter(|(_, node)| *node != first)
        .map(|(index, _)| index + 1)
        .collect();
    let count = u32::try_from(list.node.len()).ok()?;
    let protection = list.protection.unwrap_or(Protection {
        data: count.saturating_sub(2).max(1),
        parity: 2,
    });
    Some(Config {
        different,
        design: Design {
            product: list.product,
            region: list.region,
            shape: Shape::Cluster(Cluster {
                nodes: count,
                instance: first.instance.clone(),
                storage: first.storage.clone(),
                protection,
            }),
        },
    })
}

/// Checks a configuration against every rule.
pub fn check(catalog: &Catalog, config: &Config) -> Checked {
    let design = &config.design;
    let mut violations = violations(catalog, design);
    if !config.different.is_empty() {
        let names: Vec<String> = config.different.iter().map(usize::to_string).collect();
        violations.push(Violation {
            rule: rules::CLUSTER_SAME,
            words: format!("nodes {} differ from node 1", names.join(", ")),
        });
    }
    let nearest = if violations.is_empty() {
        None
    } else {
        nearest(catalog, design)
    };
    Checked {
        name: design.name(),
        design: design.clone(),
        nearest_name: nearest.as_ref().map(Design::name),
        nearest: nearest.map(Box::new),
        violations,
        evaluation: evaluate(catalog, design).ok().map(Box::new),
    }
}

/// Every rule that a design breaks.
pub fn violations(catalog: &Catalog, design: &Design) -> Vec<Violation> {
    let mut violations = Vec::new();
    match (&design.product, &design.shape) {
        (Product::Vendor, Shape::Cluster(it)) => cluster(catalog, it, &mut violations),
        (Product::Vendor, Shape::NfsServer(it)) => {
            let limits = &catalog.designs.nfs_server;
            if it.storage.raw().tib() >= limits.capacity_below_tib {
                violations.push(Violation {
                    rule: rules::NFS_CAPACITY,
                    words: format!(
                        "{} is not below {} TiB",
                        it.storage.raw(),
                        number(limits.capacity_below_tib)
                    ),
                });
            }
        }
        _ => {}
    }
    // What the shape itself cannot be: unknown types, too many volumes, codes that do not fit.
    match evaluate(catalog, design) {
        Ok(_) | Err(EvaluateError::Price(_)) => {}
        Err(error) => violations.push(Violation {
            rule: match design.product {
                Product::Cairn => rules::CAIRN_CODES,
                Product::Vendor => rules::CAPACITY_RAW,
            },
            words: error.to_string(),
        }),
    }
    violations
}

fn cluster(catalog: &Catalog, it: &Cluster, violations: &mut Vec<Violation>) {
    let of = &catalog.designs.cluster;
    let mut breaks = |broken: bool, rule: RuleId, words: String| {
        if broken {
            violations.push(Violation { rule, words });
        }
    };
    let nodes = of.nodes_min..=of.nodes_max;
    breaks(
        !nodes.contains(&it.nodes),
        rules::CLUSTER_NODES,
        format!(
            "{} nodes, not {} to {}",
            it.nodes, of.nodes_min, of.nodes_max
        ),
    );
    breaks(
        !of.instances.contains(&it.instance),
        rules::CLUSTER_INSTANCE,
        format!("{} is none of {}", it.instance, of.instances.join(", ")),
    );
    let wanted = Protection {
        data: it.nodes.saturating_sub(of.parity),
        parity: of.parity,
    };
    breaks(
        nodes.contains(&it.nodes) && it.protection != wanted,
        rules::CLUSTER_PROTECTION,
        format!(
            "{} nodes are protected {wanted}, not {}",
            it.nodes, it.protection
        ),
    );
    let Storage::Ebs { volumes, volume } = &it.storage else {
        breaks(
            true,
            rules::CLUSTER_VOLUME_TYPE,
            "data is on EBS volumes, not on local disks".to_owned(),
        );
        return;
    };
    let tib = volume.size_bytes.tib();
    let raw = tib * f64::from(*volumes) * f64::from(it.nodes);
    // Sizes are compared with a byte's slack: 14.2 TiB is no whole number of bytes.
    let within = |value: f64, least: f64, most: f64| value >= least - 1e-6 && value <= most + 1e-6;
    let list = |counts: &[u32]| {
        counts
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if volume.volume_type == of.ssd.volume_type {
        let of = &of.ssd;
        breaks(
            !of.volumes_per_node.contains(volumes),
            rules::CLUSTER_SSD_VOLUMES,
            format!(
                "{volumes} volumes a node, not one of {}",
                list(&of.volumes_per_node)
            ),
        );
        let most = of.volume_tib_limit(it.nodes, *volumes);
        breaks(
            !within(tib, of.volume_tib_min, most),
            rules::CLUSTER_SSD_SIZE,
            format!(
                "volumes of {} TiB, not {} to {} for {} nodes x {volumes}",
                number(tib),
                number(of.volume_tib_min),
                number(most),
                it.nodes
            ),
        );
        breaks(
            !within(raw, of.raw_tib_min, of.raw_tib_max),
            rules::CLUSTER_SSD_RAW,
            format!(
                "{} TiB raw, not {} to {}",
                number(raw),
                of.raw_tib_min,
                of.raw_tib_max
            ),
        );
    } else if volume.volume_type == of.hdd.volume_type {
        let of = &of.hdd;
        breaks(
            !of.volumes_per_node.contains(volumes),
            rules::CLUSTER_HDD_VOLUMES,
            format!(
                "{volumes} volumes a node, not one of {}",
                list(&of.volumes_per_node)
            ),
        );
        breaks(
            !of.volume_tib.iter().any(|size| within(tib, *size, *size)),
            rules::CLUSTER_HDD_SIZE,
            format!("volumes of {} TiB, not 4 or 10", number(tib)),
        );
        breaks(
            !within(raw, of.raw_tib_min, of.raw_tib_max),
            rules::CLUSTER_HDD_RAW,
            format!(
                "{} TiB raw, not {} to {}",
                number(raw),
                of.raw_tib_min,
                of.raw_tib_max
            ),
        );
    } else {
        breaks(
            true,
            rules::CLUSTER_VOLUME_TYPE,
            format!("{} volumes, not gp3 or st1", volume.volume_type),
        );
    }
}

/// The configuration that breaks no rule, has a price, and differs least: in instance, count, then capacity.
fn nearest(catalog: &Catalog, design: &Design) -> Option<Design> {
    let raw = |design: &Design| match &design.shape {
        Shape::Cluster(it) => it.storage.raw().times(f64::from(it.nodes)),
        Shape::NfsServer(it) => it.storage.raw(),
        _ => Bytes::ZERO,
    };
    let wanted = raw(design);
    // Candidates are made for a capacity; this one's own usable capacity is about half of raw or more.
    let goal = Goal::capacity(
        Bytes::new(wanted.get().max(1e12)).times(0.5),
        &design.region,
    );
    let mut others: Vec<(f64, Design)> = candidates(catalog, &goal)
        .into_iter()
        .filter(|other| {
            other.product == design.product && other.shape.family() == design.shape.family()
        })
        .map(|mut other| {
            keep_provisioned(design, &mut other);
            (distance(design, &other, wanted, raw(&other)), other)
        })
        .collect();
    others.sort_by(|left, right| left.0.total_cmp(&right.0));
    // The near ones first: to look at all would take seconds.
    others.into_iter().map(|(_, other)| other).find(|other| {
        violations(catalog, other).is_empty()
            && evaluate_with(catalog, other, Detail::Figures).is_ok()
    })
}

/// What was provisioned of a volume stays, where the type does.
fn keep_provisioned(design: &Design, other: &mut Design) {
    let (Shape::Cluster(given), Shape::Cluster(other)) = (&design.shape, &mut other.shape) else {
        return;
    };
    if let (Storage::Ebs { volume: given, .. }, Storage::Ebs { volume, .. }) =
        (&given.storage, &mut other.storage)
        && given.volume_type == volume.volume_type
    {
        volume.iops = given.iops;
        volume.mib_s = given.mib_s;
    }
}

/// How far apart two designs of a family are: each difference counts in parts of itself.
fn distance(design: &Design, other: &Design, wanted: Bytes, has: Bytes) -> f64 {
    let ratio = |left: f64, right: f64| (left.max(1e-9) / right.max(1e-9)).ln().abs();
    let capacity = ratio(wanted.get(), has.get());
    let storages = |left: &Storage, right: &Storage| {
        let mut apart = ratio(f64::from(left.count()), f64::from(right.count()))
            + ratio(left.size_each().get(), right.size_each().get());
        match (left, right) {
            (Storage::Ebs { volume: left, .. }, Storage::Ebs { volume: right, .. }) => {
                if left.volume_type != right.volume_type {
                    apart += 2.0;
                }
                if left.mib_s != right.mib_s {
                    apart += 0.2;
                }
            }
            (Storage::InstanceStore { .. }, Storage::InstanceStore { .. }) => {}
            _ => apart += 3.0,
        }
        apart
    };
    // Another instance is a larger change than another size of volume.
    let names = |left: &str, right: &str| 3.0 * (1.0 - strsim::jaro_winkler(left, right));
    match (&design.shape, &other.shape) {
        (Shape::Cluster(left), Shape::Cluster(right)) => {
            capacity
                + ratio(f64::from(left.nodes), f64::from(right.nodes))
                + names(&left.instance, &right.instance)
                + storages(&left.storage, &right.storage)
        }
        (Shape::NfsServer(left), Shape::NfsServer(right)) => {
            let parity = f64::from(left.protection.parity.abs_diff(right.protection.parity));
            capacity
                + parity
                + names(&left.instance, &right.instance)
                + storages(&left.storage, &right.storage)
        }
        _ => capacity,
    }
}
