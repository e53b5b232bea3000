//! What changes when a design does: one more node, other volumes, another instance.
//!
//! Owns: the changes, and comparing two designs with the rules that each breaks. Must not know: goals.

use serde::Serialize;

use crate::catalog::Catalog;
use crate::check::violations;
use crate::deployable::Violation;
use crate::design::{
    CloudVolumes, Design, Elastic, NfsServer, ParallelFs, Product, SanSystem, Shape, Storage,
    Volume,
};
use crate::evaluate::{EvaluateError, evaluate};
use crate::report::Evaluation;
use crate::units::Bytes;

/// One change of a design.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// So many nodes, servers, systems or volumes of a service more (or fewer).
    Nodes(i32),
    /// Another instance type.
    Instance(String),
    /// Another volume type: provisioned figures of the old one go.
    VolumeType(String),
    VolumeSize(Bytes),
    Volumes(u32),
    VolumeIops(u64),
    VolumeMibS(u32),
    Level(String),
    /// Of a SAN array.
    Host(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("a {family} has no {what} to change")]
    Without {
        family: &'static str,
        what: &'static str,
    },
    #[error("{count} fewer leave none of {of}")]
    NoneLeft { count: u32, of: u32 },
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// Two designs side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub before: Evaluation,
    pub after: Evaluation,
    /// Rules of the papers that the one before breaks; what cannot be deployed has no figures at all.
    pub before_breaks: Vec<Violation>,
    pub after_breaks: Vec<Violation>,
}

/// Evaluates both, with the rules that each breaks.
pub fn compare(
    catalog: &Catalog,
    before: &Design,
    after: &Design,
) -> Result<Comparison, EvaluateError> {
    Ok(Comparison {
        before: evaluate(catalog, before)?,
        after: evaluate(catalog, after)?,
        before_breaks: violations(catalog, before),
        after_breaks: violations(catalog, after),
    })
}

/// Applies changes, one after the other.
pub fn apply(design: &Design, changes: &[Change]) -> Result<Design, ChangeError> {
    let mut changed = design.clone();
    for change in changes {
        apply_one(&mut changed, change)?;
    }
    Ok(changed)
}

/// Applies changes and evaluates both.
pub fn whatif(
    catalog: &Catalog,
    design: &Design,
    changes: &[Change],
) -> Result<Comparison, ChangeError> {
    let after = apply(design, changes)?;
    Ok(compare(catalog, design, &after)?)
}

fn apply_one(design: &mut Design, change: &Change) -> Result<(), ChangeError> {
    let family = design.shape.family().words();
    let without = |what| ChangeError::Without { family, what };
    match change {
        Change::Nodes(more) => {
            let product = design.product;
            let count = count_mut(&mut design.shape).ok_or_else(|| without("count of nodes"))?;
            // Too many are refused with the rule that they break.
            let next = count.saturating_add_signed(*more);
            if next == 0 {
                return Err(ChangeError::NoneLeft {
                    count: more.unsigned_abs(),
                    of: *count,
                });
            }
            *count = next;
            follow_nodes(product, &mut design.shape);
        }
        Change::Instance(name) => {
            *instance_mut(&mut design.shape).ok_or_else(|| without("instance"))? = name.clone();
        }
        Change::VolumeType(name) => {
            let volume = volume_mut(&mut design.shape).ok_or_else(|| without("EBS volumes"))?;
            volume.volume_type.clone_from(name);
            volume.iops = None;
            volume.mib_s = None;
        }
        Change::VolumeSize(size) => {
            volume_mut(&mut design.shape)
                .ok_or_else(|| without("EBS volumes"))?
                .size_bytes = *size;
        }
        Change::VolumeIops(iops) => {
            volume_mut(&mut design.shape)
                .ok_or_else(|| without("EBS volumes"))?
                .iops = Some(*iops);
        }
        Change::VolumeMibS(mib_s) => {
            volume_mut(&mut design.shape)
                .ok_or_else(|| without("EBS volumes"))?
                .mib_s = Some(*mib_s);
        }
        Change::Volumes(count) => match storage_mut(&mut design.shape) {
            Some(Storage::Ebs { volumes, .. }) => {
                *volumes = *count;
                follow_disks(&mut design.shape);
            }
            _ => return Err(without("EBS volumes")),
        },
        Change::Level(name) => match &mut design.shape {
            Shape::ParallelFs(ParallelFs::Lustre { level, .. })
            | Shape::CloudVolumes(CloudVolumes::Service { level, .. })
            | Shape::Elastic(Elastic::Efs { level, .. }) => level.clone_from(name),
            _ => return Err(without("service level")),
        },
        Change::Host(name) => match &mut design.shape {
            Shape::SanArray(it) => it.host = Some(name.clone()),
            _ => return Err(without("host")),
        },
    }
    Ok(())
}

/// A cluster's code follows its nodes: the same parity over all, as Table 3 has it; at most 16 of data.
fn follow_nodes(product: Product, shape: &mut Shape) {
    const DATA_MAX: u32 = 16;
    if let Shape::Cluster(it) = shape {
        let data = it.nodes.saturating_sub(it.protection.parity).max(1);
        it.protection.data = match product {
            Product::Vendor => data,
            Product::Cairn => data.min(DATA_MAX),
        };
    }
}

/// So does a server's, with its disks.
fn follow_disks(shape: &mut Shape) {
    const DATA_MAX: u32 = 16;
    if let Some(server) = server_mut(shape)
        && server.protection.parity > 0
    {
        let data = server
            .storage
            .count()
            .saturating_sub(server.protection.parity);
        server.protection.data = data.clamp(1, DATA_MAX);
    }
}

fn server_mut(shape: &mut Shape) -> Option<&mut NfsServer> {
    match shape {
        Shape::NfsServer(server) => Some(server),
        Shape::SanArray(it) => match &mut it.system {
            SanSystem::Server(server) => Some(server),
            SanSystem::Ontap { .. } => None,
        },
        Shape::ParallelFs(ParallelFs::Servers { server, .. })
        | Shape::CloudVolumes(CloudVolumes::Servers { server, .. }) => Some(server),
        _ => None,
    }
}

fn count_mut(shape: &mut Shape) -> Option<&mut u32> {
    match shape {
        Shape::Cluster(it) => Some(&mut it.nodes),
        Shape::SanArray(it) => Some(&mut it.systems),
        Shape::ParallelFs(ParallelFs::Servers { servers, .. })
        | Shape::CloudVolumes(CloudVolumes::Servers { servers, .. }) => Some(servers),
        Shape::CloudVolumes(CloudVolumes::Service { volumes, .. }) => Some(volumes),
        Shape::NfsServer(_) | Shape::ParallelFs(ParallelFs::Lustre { .. }) | Shape::Elastic(_) => {
            None
        }
    }
}

fn instance_mut(shape: &mut Shape) -> Option<&mut String> {
    if let Shape::Cluster(it) = shape {
        return Some(&mut it.instance);
    }
    server_mut(shape).map(|server| &mut server.instance)
}

fn storage_mut(shape: &mut Shape) -> Option<&mut Storage> {
    if let Shape::Cluster(it) = shape {
        return Some(&mut it.storage);
    }
    server_mut(shape).map(|server| &mut server.storage)
}

fn volume_mut(shape: &mut Shape) -> Option<&mut Volume> {
    match storage_mut(shape)? {
        Storage::Ebs { volume, .. } => Some(volume),
        Storage::InstanceStore { .. } => None,
    }
}

/// The next step up that the design's rules allow, with what it becomes.
pub fn grow(catalog: &Catalog, design: &Design) -> Option<(String, Evaluation)> {
    let mut grown = design.clone();
    let step = match &mut grown.shape {
        Shape::ParallelFs(ParallelFs::Lustre {
            level,
            capacity_bytes,
            ..
        }) => {
            let of = catalog.lustre_level(level).ok()?;
            *capacity_bytes = *capacity_bytes + of.steps(1.0);
            "one step of capacity more"
        }
        Shape::Elastic(it) => {
            *it.capacity_mut() = it.capacity() + Bytes::from_tib(1.0);
            "1 TiB more, which comes by itself"
        }
        Shape::NfsServer(server) => match &mut server.storage {
            Storage::InstanceStore { .. } => return None,
            Storage::Ebs { volumes, .. } => {
                *volumes = volumes.saturating_add(1);
                follow_disks(&mut grown.shape);
                "one volume more"
            }
        },
        shape => {
            let count = count_mut(shape)?;
            *count = count.saturating_add(1);
            follow_nodes(design.product, shape);
            match shape {
                Shape::Cluster(_) => "one node more",
                Shape::SanArray(_) => "one system more",
                Shape::CloudVolumes(CloudVolumes::Service { .. }) => "one volume more",
                _ => "one server more",
            }
        }
    };
    let allowed = violations(catalog, &grown).is_empty();
    let evaluation = evaluate(catalog, &grown).ok()?;
    allowed.then(|| (step.to_owned(), evaluation))
}

/// A design that holds `factor` times as much, by the step that suits its family; `None` where that
/// is less than one of anything.
pub fn scaled(catalog: &Catalog, design: &Design, factor: f64) -> Option<Design> {
    if !(factor.is_finite() && factor > 0.0) {
        return None;
    }
    let mut scaled = design.clone();
    match &mut scaled.shape {
        Shape::ParallelFs(ParallelFs::Lustre {
            level,
            capacity_bytes,
            ..
        }) => {
            let of = catalog.lustre_level(level).ok()?;
            let steps = (capacity_bytes.gib() * factor / of.step_gib - 1e-9)
                .ceil()
                .max(1.0);
            *capacity_bytes = of.steps(steps);
        }
        Shape::CloudVolumes(CloudVolumes::Service { quota_bytes, .. }) => {
            *quota_bytes = quota_bytes.times(factor);
        }
        Shape::Elastic(it) => {
            let gib = (it.capacity().gib() * factor - 1e-9).ceil().max(1.0);
            *it.capacity_mut() = Bytes::from_gib(gib);
        }
        Shape::SanArray(it) => match &mut it.system {
            SanSystem::Ontap { ssd_bytes, .. } => *ssd_bytes = ssd_bytes.times(factor),
            SanSystem::Server(_) => it.systems = times(it.systems, factor),
        },
        Shape::ParallelFs(ParallelFs::Servers { servers, .. })
        | Shape::CloudVolumes(CloudVolumes::Servers { servers, .. }) => {
            *servers = times(*servers, factor);
        }
        shape => match storage_mut(shape)? {
            Storage::InstanceStore { .. } => return (factor <= 1.0).then_some(scaled),
            Storage::Ebs { volume, .. } => {
                // Whole GiB, up; a TiB with a fraction is not sold.
                let gib = (volume.size_bytes.gib() * factor).ceil();
                volume.size_bytes = Bytes::from_gib(gib);
            }
        },
    }
    Some(scaled)
}

fn times(count: u32, factor: f64) -> u32 {
    // Far below 2^32: counts are bounded by evaluation.
    (f64::from(count) * factor - 1e-9).ceil().clamp(1.0, 1e6) as u32
}

/// Single changes worth knowing of a design, with their names.
pub fn neighbours(catalog: &Catalog, design: &Design) -> Vec<(String, Design)> {
    let mut all = Vec::new();
    let mut add = |name: String, changes: &[Change]| {
        if let Ok(changed) = apply(design, changes)
            && changed != *design
        {
            all.push((name, changed));
        }
    };
    add("one more".to_owned(), &[Change::Nodes(1)]);
    add("one fewer".to_owned(), &[Change::Nodes(-1)]);
    let mut copy = design.clone();
    if let Some(name) = instance_mut(&mut copy.shape).cloned() {
        let (smaller, larger) = sizes_beside(catalog, &name);
        for other in [larger, smaller].into_iter().flatten() {
            add(other.clone(), &[Change::Instance(other)]);
        }
    }
    if let Some(volume) = volume_mut(&mut copy.shape).cloned() {
        let other = if volume.volume_type == "st1" {
            "gp3"
        } else {
            "st1"
        };
        add(
            format!("{other} for {}", volume.volume_type),
            &[Change::VolumeType(other.to_owned())],
        );
        if volume.volume_type == "gp3" {
            let mib_s = volume.mib_s.unwrap_or(125);
            for next in [mib_s.saturating_mul(2), mib_s / 2] {
                if (125..=1000).contains(&next) {
                    // gp3 carries a quarter of a MiB/s with each operation.
                    let iops = volume.iops.unwrap_or(3000).max(u64::from(next) * 4);
                    let mut changes = vec![Change::VolumeMibS(next)];
                    if iops > volume.iops.unwrap_or(3000) {
                        changes.push(Change::VolumeIops(iops));
                    }
                    add(format!("{next} MiB/s a volume"), &changes);
                }
            }
        }
        add(
            "volumes twice as large".to_owned(),
            &[Change::VolumeSize(volume.size_bytes.times(2.0))],
        );
    }
    for level in [
        "standard",
        "premium",
        "extreme",
        "persistent-12",
        "persistent-40",
    ] {
        add(level.to_owned(), &[Change::Level(level.to_owned())]);
    }
    all
}

/// The next smaller and larger size of the same instance family, by processors.
fn sizes_beside(catalog: &Catalog, name: &str) -> (Option<String>, Option<String>) {
    let Some((family, _)) = name.split_once('.') else {
        return (None, None);
    };
    let Some(own) = catalog.instances.get(name) else {
        return (None, None);
    };
    let of_family = || {
        catalog.instances.values().filter(|it| {
            it.name
                .split_once('.')
                .is_some_and(|(other, _)| other == family)
        })
    };
    let smaller = of_family()
        .filter(|it| it.vcpu < own.vcpu)
        .max_by_key(|it| it.vcpu);
    let larger = of_family()
        .filter(|it| it.vcpu > own.vcpu)
        .min_by_key(|it| it.vcpu);
    (
        smaller.map(|it| it.name.clone()),
        larger.map(|it| it.name.clone()),
    )
}
