//! A given configuration against every rule: which it breaks, and the nearest that keeps them.
//!
//! Owns: reading configurations, and the papers' own rules (Tables 1, 2, 3, 8 and 9 of the cluster, the size
//! of one NFS server). What AWS sells is `deployable`'s, the nearest configuration `nearest`'s.
//! Must not know: what a design delivers or costs, but that it can be said.

use serde::Serialize;

use crate::catalog::Catalog;
use crate::deployable;
pub use crate::deployable::Violation;
use crate::design::{Cluster, Design, Product, Protection, Shape, Storage};
use crate::evaluate::{EvaluateError, evaluate};
use crate::nearest::{family_rule, nearest};
use crate::report::{Evaluation, PriceStamp};
use crate::rules::{self, RuleId};
use crate::units::{Rate, number};

/// What `cairn plan check` says.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub name: String,
    pub design: Design,
    pub violations: Vec<Violation>,
    /// The configuration nearest to it that breaks no rule; `None` when it breaks none itself.
    pub nearest: Option<Box<Design>>,
    pub nearest_name: Option<String>,
    /// Why it breaks no rule and yet has no figures: a missing price, a missing rate.
    pub unknown: Option<String>,
    /// What breaks no rule and is worth knowing.
    pub notes: Vec<String>,
    /// Where the figures' prices are from.
    pub prices: Option<PriceStamp>,
    /// Figures, when it can be deployed at all.
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

#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
struct Node {
    instance: String,
    #[serde(flatten)]
    storage: Storage,
}

/// A configuration as read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Of a list of nodes: a cluster of the node that it has most of.
    pub design: Design,
    /// The nodes of a list that differ from it.
    pub different: Vec<OtherNode>,
}

/// A node of a list that is not like the others.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherNode {
    /// From 1.
    pub number: usize,
    /// In what it differs, in words.
    pub words: String,
    /// The cluster, were all its nodes like this one.
    pub design: Design,
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
        // Each is compared with all others.
        let most = deployable::COUNT_MAX as usize;
        if list.node.len() > most {
            let count = list.node.len();
            return Err(error(format!(
                "it lists {count} nodes; give at most {most}"
            )));
        }
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
    let alike = |node: &Node| list.node.iter().filter(|other| *other == node).count();
    // Of as many the first, not the last, as `max_by_key` would have it.
    let most = list
        .node
        .iter()
        .rev()
        .max_by_key(|node| alike(node))?
        .clone();
    let count = u32::try_from(list.node.len()).ok()?;
    let protection = list.protection.unwrap_or(Protection {
        data: count.saturating_sub(2).max(1),
        parity: 2,
    });
    let cluster_of = |node: &Node| Design {
        product: list.product,
        region: list.region.clone(),
        shape: Shape::Cluster(Cluster {
            nodes: count,
            instance: node.instance.clone(),
            storage: node.storage.clone(),
            protection,
        }),
    };
    let different = list
        .node
        .iter()
        .enumerate()
        .filter(|(_, node)| **node != most)
        .map(|(index, node)| OtherNode {
            number: index + 1,
            words: differs(node, &most),
            design: cluster_of(node),
        })
        .collect();
    Some(Config {
        different,
        design: cluster_of(&most),
    })
}

fn differs(node: &Node, most: &Node) -> String {
    let mut words = Vec::new();
    if node.instance != most.instance {
        words.push(format!("{}, not {}", node.instance, most.instance));
    }
    if node.storage != most.storage {
        let (own, others) = (node.storage.words(), most.storage.words());
        words.push(format!("{own}, not {others}"));
    }
    words.join("; ")
}

/// Checks a configuration against every rule.
pub fn check(catalog: &Catalog, config: &Config) -> Checked {
    let design = &config.design;
    let mut broken = violations(catalog, design);
    let of_all = broken.clone();
    for node in &config.different {
        broken.push(Violation {
            rule: rules::CLUSTER_SAME,
            words: format!(
                "node {} differs from the others: {}",
                node.number, node.words
            ),
        });
        // What all nodes break is said once.
        let own = violations(catalog, &node.design);
        for violation in own.into_iter().filter(|it| !of_all.contains(it)) {
            broken.push(Violation {
                words: format!("node {}: {}", node.number, violation.words),
                ..violation
            });
        }
    }
    let near = (!broken.is_empty())
        .then(|| nearest(catalog, design))
        .flatten();
    let evaluation = evaluate(catalog, design);
    let unknown = match &evaluation {
        Err(error) if broken.is_empty() => Some(error.to_string()),
        _ => None,
    };
    Checked {
        name: design.name(),
        design: design.clone(),
        nearest_name: near.as_ref().map(Design::name),
        nearest: near.map(Box::new),
        violations: broken,
        unknown,
        notes: notes(catalog, design),
        prices: catalog
            .prices
            .book(&design.region)
            .ok()
            .map(|book| book.stamp(catalog.today)),
        evaluation: evaluation.ok().map(Box::new),
    }
}

/// Volumes that are provisioned for more than their instance carries: paid for, and never seen.
fn notes(catalog: &Catalog, design: &Design) -> Vec<String> {
    let Some((name, Storage::Ebs { volumes, volume })) = design.shape.machine() else {
        return Vec::new();
    };
    let Some(instance) = catalog.instances.get(name) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    let band = instance.ebs();
    let total = Rate::from_mib_s(f64::from(volume.mib_s.unwrap_or(0)) * f64::from(*volumes));
    if total > band.steady {
        notes.push(format!(
            "the volumes of a server are provisioned for {total}; {name} carries {} always and {} for 30 minutes a day",
            band.steady, band.burst
        ));
    }
    let band = instance.ebs_iops();
    let total = volume.iops.map_or(0.0, |iops| iops as f64) * f64::from(*volumes);
    if total > band.steady {
        notes.push(format!(
            "the volumes of a server are provisioned for {} IOPS; {name} carries {} always and {} for 30 minutes a day",
            number(total),
            number(band.steady),
            number(band.burst)
        ));
    }
    notes
}

/// Every rule that a design breaks: of what is sold, and of its paper.
pub fn violations(catalog: &Catalog, design: &Design) -> Vec<Violation> {
    let mut violations = deployable::violations(catalog, design);
    let sold = violations.is_empty();
    match (&design.product, &design.shape) {
        (Product::Vendor, Shape::Cluster(it)) => cluster(catalog, it, &mut violations),
        (Product::Vendor, Shape::NfsServer(it)) if design.is_paper_server() => {
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
    // What no table says and the model cannot compute all the same.
    if sold && let Err(EvaluateError::Invalid { detail }) = evaluate(catalog, design) {
        violations.push(Violation {
            rule: family_rule(design.product, design.shape.family()),
            words: detail,
        });
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
        let iops = volume.iops.unwrap_or(0);
        let mib_s = volume.mib_s.unwrap_or(0);
        breaks(
            iops > of.iops_max || mib_s > of.mib_s_max,
            rules::CLUSTER_SSD_PROVISIONED,
            format!(
                "volumes of {} IOPS and {} MiB/s, not up to {} and {}",
                number(iops as f64),
                number(f64::from(mib_s)),
                number(of.iops_max as f64),
                number(f64::from(of.mib_s_max))
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
