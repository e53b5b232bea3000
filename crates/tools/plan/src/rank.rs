//! From a goal to a ranking: what fits, in order, and what does not, with the limit it breaks.
//!
//! Owns: what it means to fit, the order, and the words why. Must not know: how figures follow.
//!
//! Order: what keeps the data comes first, because surviving failures is a goal by itself: a design that
//! survives fewer than asked for (1 unless the goal says otherwise) does not fit, however little it costs.
//! Then designs that work today before those that need what is planned (unless the goal says otherwise),
//! then the lower cost per month, then the higher rate. A product that is no longer sold never fits.

mod growth;
mod words;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use crate::candidates::candidates;
use crate::catalog::{Catalog, DiskKind};
use crate::design::{
    CloudVolumes, Design, Elastic, Family, ParallelFs, Product, SanArray, SanSystem, Shape, Storage,
};
use crate::evaluate::{
    Detail, EvaluateError, evaluate, evaluate_with, planned_protocols, protocol_missing,
};
use crate::goal::{Goal, GoalError, Workload};
use crate::prices::PriceError;
use crate::reliability::Availability;
use crate::report::{
    Bottleneck, Broken, Collision, Evaluation, Fit, GrowthYear, Miss, Protocol, Ranking, Variant,
};
use crate::rules;
use crate::units::{Bytes, Rate, Usd, number};
use growth::{growth, growth_years};
use words::{broken, why};

/// Designs shown that fit: the best of each family, product and kind of storage.
pub const FIT_COUNT_MAX: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Goal(#[from] GoalError),
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// Designs that compete with each other; the best of each is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    family: Family,
    product: Product,
    /// `gp3`, `st1`, local: too different to be variants of one another.
    storage: StorageKind,
    /// The paper's server, with its rules of thumb; Linux with RAID on today's instances is another.
    paper_server: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StorageKind {
    Ssd,
    Hdd,
    Local,
    Service,
    /// Objects, which is another thing than files.
    Objects,
}

fn storage_kind(storage: &Storage) -> StorageKind {
    match storage {
        Storage::InstanceStore { .. } => StorageKind::Local,
        Storage::Ebs { volume, .. } if volume.volume_type == "st1" => StorageKind::Hdd,
        Storage::Ebs { .. } => StorageKind::Ssd,
    }
}

fn kind(design: &Design) -> Kind {
    let storage = match &design.shape {
        Shape::Cluster(it) => storage_kind(&it.storage),
        Shape::NfsServer(it) => storage_kind(&it.storage),
        Shape::SanArray(it) => match &it.system {
            SanSystem::Ontap { .. } => StorageKind::Service,
            SanSystem::Server(server) => storage_kind(&server.storage),
        },
        Shape::Elastic(Elastic::S3 { .. }) => StorageKind::Objects,
        Shape::ParallelFs(ParallelFs::Lustre { .. })
        | Shape::Elastic(Elastic::Efs { .. })
        | Shape::CloudVolumes(CloudVolumes::Service { .. }) => StorageKind::Service,
        Shape::ParallelFs(ParallelFs::Servers { server, .. })
        | Shape::CloudVolumes(CloudVolumes::Servers { server, .. }) => {
            storage_kind(&server.storage)
        }
    };
    Kind {
        family: design.shape.family(),
        product: design.product,
        storage,
        paper_server: design.is_paper_server(),
    }
}

/// One goal held against one design: below 1 it is missed; how far says which is missed most.
struct GoalScore {
    goal: &'static str,
    ratio: f64,
}

/// The goals as flags, in the order in which they are named.
const GOALS: [&str; 14] = [
    SOLD,
    "capacity",
    "namespaces",
    "read",
    "write",
    "iops",
    "write-iops",
    "latency",
    "clients",
    "protocols",
    "survive",
    KEPT,
    "availability",
    "budget",
];

/// That it can be bought at all: no flag, and yet what every buyer asks.
pub const SOLD: &str = "sold";

/// That an archive or a database outlives a stop of all of its servers: no flag, either.
pub const KEPT: &str = "kept";

/// Name spaces that a design divides its data into.
pub fn namespaces(design: &Design) -> u32 {
    match &design.shape {
        Shape::CloudVolumes(
            CloudVolumes::Service { volumes: count, .. }
            | CloudVolumes::Servers { servers: count, .. },
        ) => *count,
        _ => 1,
    }
}

/// Whether it can no longer be bought: it is evaluated for comparison, and never advised.
fn withdrawn(design: &Design) -> bool {
    matches!(
        design.shape,
        Shape::CloudVolumes(CloudVolumes::Service { .. })
    )
}

/// What a random operation takes at least, in milliseconds, as far as its medium states it: of disks from
/// seek and turn, of volumes what their type is documented for. Queues, parity and clients come on top.
fn latency_ms(catalog: &Catalog, design: &Design) -> Option<(f64, rules::RuleId)> {
    /// Seek and half a turn of a hard disk (rule `disk.hdd-random`).
    const HDD_MS: f64 = 12.7;
    /// io2: "under 500 microseconds"; gp3: "single-digit millisecond", of which 1 ms is the least.
    const IO2_MS: f64 = 0.5;
    const GP3_MS: f64 = 1.0;
    if let Shape::ParallelFs(ParallelFs::Lustre { .. }) = &design.shape {
        return Some((HDD_MS, rules::DISK_HDD_RANDOM));
    }
    if let Shape::Elastic(it) = &design.shape {
        return Some(match it {
            Elastic::Efs { level, .. } => (
                catalog.efs_level(level).ok()?.latency_ms,
                rules::EFS_LATENCY,
            ),
            Elastic::S3 { .. } => (catalog.designs.elastic.s3_latency_ms, rules::S3_LATENCY),
        });
    }
    if let Shape::SanArray(SanArray {
        system: SanSystem::Ontap { .. },
        ..
    }) = &design.shape
    {
        // The paper: over 1,000,000 operations a second in less than 1 ms on average.
        return Some((1.0, rules::SAN_IOPS));
    }
    let (instance, storage) = design.shape.machine()?;
    match storage {
        Storage::Ebs { volume, .. } => match volume.volume_type.as_str() {
            "st1" | "sc1" => Some((HDD_MS, rules::DISK_HDD_RANDOM)),
            "io2" => Some((IO2_MS, rules::LATENCY_EBS)),
            "gp3" | "io1" => Some((GP3_MS, rules::LATENCY_EBS)),
            _ => None,
        },
        Storage::InstanceStore { .. } => match catalog.instances.get(instance)?.data_disks()?.0 {
            DiskKind::Hdd => Some((HDD_MS, rules::DISK_HDD_RANDOM)),
            DiskKind::Nvme => None,
        },
    }
}

/// Holds an evaluation against every goal.
fn kept(catalog: &Catalog, goal: &Goal, it: &Evaluation) -> Vec<GoalScore> {
    let mut all = Vec::with_capacity(GOALS.len());
    let mut hold = |goal: &'static str, ratio: f64| all.push(GoalScore { goal, ratio });
    let limits = &catalog.designs.nfs_server;
    let paper_server = it.design.is_paper_server();
    let needed = goal.capacity_planned();
    hold(
        "capacity",
        it.capacity.usable_bytes.value.get() / needed.get(),
    );
    if withdrawn(&it.design) {
        hold(SOLD, 0.0);
    }
    hold(
        "namespaces",
        f64::from(goal.namespaces) / f64::from(namespaces(&it.design)),
    );
    if let Some(read) = goal.read_mb_s {
        hold(
            "read",
            read_rate(goal, it).mb_s() / read.mb_s().max(f64::MIN_POSITIVE),
        );
    }
    if let Some(write) = goal.write_mb_s {
        let steady = it.performance.seq_write.sustained();
        hold("write", steady.mb_s() / write.mb_s().max(f64::MIN_POSITIVE));
    }
    if let Some(iops) = goal.iops {
        hold(
            "iops",
            it.performance.random_read.steady_iops / (iops as f64).max(1.0),
        );
    }
    if let Some(iops) = goal.write_iops {
        hold(
            "write-iops",
            it.performance.random_write.steady_iops / (iops as f64).max(1.0),
        );
    }
    if let Some(bound) = goal.latency_bound_ms() {
        match latency_ms(catalog, &it.design) {
            Some((least, _)) => hold("latency", bound / least),
            // Nobody states one: a goal that was asked for is not met by silence.
            None if goal.latency_ms.is_some() => hold("latency", 0.0),
            None => {}
        }
    }
    let one_host = it.design.shape.family() == Family::SanArray;
    // Who does not say how many clients there are, nor asks for block storage, has more than one.
    if one_host && goal.clients.is_none() && !goal.protocols.contains(&Protocol::Iscsi) {
        hold("clients", 0.5);
    }
    if let Some(clients) = goal.clients {
        let most = match it.design.shape.family() {
            Family::SanArray => 1,
            _ if paper_server => limits.clients_below.saturating_sub(1),
            _ => u32::MAX,
        };
        hold("clients", f64::from(most) / f64::from(clients));
    }
    if paper_server {
        // Below, not at: the smallest step above the limit breaks it. A larger value than asked for does as well.
        let usable = it.capacity.usable_bytes.value.tib();
        let ratio = limits.capacity_below_tib / usable.max(needed.tib());
        hold("capacity", if ratio == 1.0 { 0.999 } else { ratio });
    }
    if let (Shape::Elastic(Elastic::Efs { .. }), Some(clients)) = (&it.design.shape, goal.clients) {
        let each = Rate::from_mib_s(catalog.designs.elastic.efs_client_mib_s);
        let fastest = fastest_asked(goal).mb_s();
        if fastest > 0.0 {
            hold("clients", each.times(f64::from(clients)).mb_s() / fastest);
        }
    }
    // Who does not say so means files.
    if is_object_store(&it.design) && goal.protocols.is_empty() {
        hold("protocols", 0.0);
    }
    if !goal.protocols.is_empty() {
        let served = goal.protocols.iter().all(|protocol| serves(it, *protocol));
        hold("protocols", if served { 1.0 } else { 0.0 });
    }
    if goal.survive > 0 {
        hold(
            "survive",
            f64::from(it.survives.value) / f64::from(goal.survive),
        );
    }
    if goal.workload.outlives_servers() && kind(&it.design).storage == StorageKind::Local {
        hold(KEPT, 0.0);
    }
    if it.reliability.availability < goal.availability {
        hold("availability", 0.0);
    } else if goal.availability > Availability::Single {
        hold("availability", 1.0);
    }
    if let Some(budget) = goal.budget_month_usd {
        hold(
            "budget",
            budget.0 / it.cost.month_usd.0.max(f64::MIN_POSITIVE),
        );
    }
    all
}

fn is_object_store(design: &Design) -> bool {
    matches!(design.shape, Shape::Elastic(Elastic::S3 { .. }))
}

/// The higher of the rates that are asked for.
fn fastest_asked(goal: &Goal) -> Rate {
    let [read, write] = [goal.read_mb_s, goal.write_mb_s].map(Option::unwrap_or_default);
    if read.mb_s() > write.mb_s() {
        read
    } else {
        write
    }
}

/// Cairn will serve what is planned for its shape; a vendor serves what it serves.
fn serves(it: &Evaluation, protocol: Protocol) -> bool {
    it.protocols.contains(&protocol)
        || (it.design.product == Product::Cairn
            && planned_protocols(it.design.shape.family()).contains(&protocol))
}

/// Reads that no cache answers; of hot data that the cache holds, the cache's. Both are columns of what is
/// shown.
fn read_rate(goal: &Goal, it: &Evaluation) -> Rate {
    let performance = &it.performance;
    let uncached = performance.uncached().sustained();
    match (
        goal.hot_share,
        &performance.cache_bytes,
        &performance.cached_read_mb_s,
    ) {
        (Some(share), Some(cache), Some(cached))
            if cache.value.get() >= share * goal.capacity_bytes.get() =>
        {
            let measured = performance.seq_read.measured_mb_s.unwrap_or(Rate::ZERO);
            [uncached, cached.value, measured]
                .into_iter()
                .max_by(|left, right| left.mb_s().total_cmp(&right.mb_s()))
                .unwrap_or(uncached)
        }
        _ => uncached,
    }
}

/// The goal that is missed most, if any.
fn worst(kept: &[GoalScore]) -> Option<&GoalScore> {
    kept.iter()
        .filter(|kept| kept.ratio < 1.0 - 1e-9)
        .min_by(|left, right| left.ratio.total_cmp(&right.ratio))
}

/// A candidate's figures that the order needs; the evaluation itself is made again for what is shown.
struct Scored {
    index: usize,
    kind: Kind,
    available: bool,
    month: Usd,
    /// Steady read plus write, MB/s.
    rate: f64,
    /// What the order goes by: the cost, or the cost per operation.
    key: f64,
    /// Random work: costs more than twice the least that fits.
    dear: bool,
    /// The goal that is missed most; `None`: fits.
    missed: Option<&'static str>,
    /// How far all missed goals are away together: 0 for what fits.
    shortfall: f64,
    /// Ratio of each goal, in the order of [`GOALS`]; infinite where nobody asked.
    ratios: [f64; GOALS.len()],
}

/// Ranks the embedded candidates for a goal.
pub fn rank(catalog: &Catalog, goal: &Goal) -> Result<Ranking, RankError> {
    // Before designs are made for numbers that nobody plans with.
    goal.check()?;
    rank_designs(catalog, goal, &candidates(catalog, goal))
}

/// Ranks these designs. A design without a price is left out: there is nothing to rank it by.
pub fn rank_designs(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
) -> Result<Ranking, RankError> {
    goal.check()?;
    catalog
        .prices
        .book(&goal.region)
        .map_err(EvaluateError::from)?;
    if let Some(host) = &goal.host {
        catalog.instance(host).map_err(EvaluateError::from)?;
    }
    let (mut scored, unpriced) = scores(catalog, goal, designs)?;
    bound_costs(goal, &mut scored);
    scored.sort_by(|left, right| order(goal, left, right));
    let fits = fits(catalog, goal, designs, &scored)?;
    let misses = misses(catalog, goal, designs, &scored)?;
    let collision = fits
        .is_empty()
        .then(|| collision(catalog, goal, designs, &scored))
        .transpose()?;
    Ok(Ranking {
        candidates: scored.len(),
        fits,
        misses,
        collision,
        unpriced: unpriced.into_iter().collect(),
    })
}

/// The designs that can be built, and what has no price; on all processors, in the order of the designs.
fn scores(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
) -> Result<(Vec<Scored>, BTreeSet<String>), RankError> {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let each = designs.len().div_ceil(processors).max(1);
    std::thread::scope(|scope| {
        let parts = designs.chunks(each).enumerate().map(|(part, designs)| {
            scope.spawn(move || scores_of_part(catalog, goal, part * each, designs))
        });
        // All of them run before the first is waited for.
        let parts: Vec<_> = parts.collect();
        let (mut scored, mut unpriced) = (Vec::with_capacity(designs.len()), BTreeSet::new());
        for part in parts {
            let (of_part, of_part_unpriced) = match part.join() {
                Ok(done) => done?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            scored.extend(of_part);
            unpriced.extend(of_part_unpriced);
        }
        Ok((scored, unpriced))
    })
}

fn scores_of_part(
    catalog: &Catalog,
    goal: &Goal,
    first: usize,
    designs: &[Design],
) -> Result<(Vec<Scored>, BTreeSet<String>), RankError> {
    let (mut scored, mut unpriced) = (Vec::with_capacity(designs.len()), BTreeSet::new());
    for (index, design) in designs.iter().enumerate() {
        match evaluate_with(catalog, design, Detail::Figures) {
            Ok(evaluation) => scored.push(score(catalog, goal, first + index, evaluation)),
            Err(EvaluateError::Price(PriceError::Gap { what, .. })) => {
                unpriced.insert(what);
            }
            // A combination that cannot be built is no candidate.
            Err(EvaluateError::Invalid { .. } | EvaluateError::NotDeployable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((scored, unpriced))
}

/// A thing that is missing entirely (a protocol, protection) counts as a hundredth of it: far, but no farther than
/// a rate can be.
const RATIO_NONE: f64 = 0.01;

/// Streams and archives go by cost; random work without a number of its own by the cost of an operation.
fn key(goal: &Goal, it: &Evaluation) -> f64 {
    let month = it.cost.month_usd.0;
    if per_operation(goal) {
        let operations = it
            .performance
            .random_read
            .steady_iops
            .min(it.performance.random_write.steady_iops);
        month / operations.max(f64::MIN_POSITIVE)
    } else {
        month
    }
}

fn per_operation(goal: &Goal) -> bool {
    goal.iops.is_none()
        && matches!(
            goal.workload,
            Workload::Random | Workload::Metadata | Workload::Database
        )
}

fn score(catalog: &Catalog, goal: &Goal, index: usize, mut evaluation: Evaluation) -> Scored {
    add_needs(catalog, goal, &mut evaluation);
    let kept = kept(catalog, goal, &evaluation);
    let mut ratios = [f64::INFINITY; GOALS.len()];
    for held in &kept {
        if let Some(place) = GOALS.iter().position(|goal| *goal == held.goal) {
            ratios[place] = ratios[place].min(held.ratio);
        }
    }
    Scored {
        index,
        kind: kind(&evaluation.design),
        available: evaluation.available,
        month: evaluation.cost.month_usd,
        rate: evaluation.performance.uncached().sustained().mb_s()
            + evaluation.performance.seq_write.sustained().mb_s(),
        key: key(goal, &evaluation),
        dear: false,
        missed: worst(&kept).map(|kept| kept.goal),
        shortfall: kept
            .iter()
            .map(|kept| match kept.ratio {
                ratio if ratio > 0.0 => -ratio.min(1.0).ln(),
                _ => -RATIO_NONE.ln(),
            })
            .sum(),
        ratios,
    }
}

/// What the goal's protocols need beyond the shape.
fn add_needs(catalog: &Catalog, goal: &Goal, it: &mut Evaluation) {
    if it.design.product != Product::Cairn {
        return;
    }
    for protocol in &goal.protocols {
        if let Some(missing) = protocol_missing(catalog, *protocol)
            && planned_protocols(it.design.shape.family()).contains(protocol)
            && !it.needs.contains(&missing)
        {
            it.needs.push(missing);
        }
    }
    it.available = it.needs.is_empty();
}

/// Random work goes by the cost of an operation only among what costs at most so many times the least.
const COST_TIMES_MAX: f64 = 2.0;

/// Marks what costs too much to be advised for its cheap operations.
fn bound_costs(goal: &Goal, scored: &mut [Scored]) {
    if !per_operation(goal) {
        return;
    }
    let advised = |it: &Scored| it.missed.is_none() && (it.available || goal.include_planned);
    let least = scored
        .iter()
        .filter(|it| advised(it))
        .map(|it| it.month.0)
        .fold(f64::INFINITY, f64::min);
    for it in scored {
        it.dear = it.month.0 > least * COST_TIMES_MAX;
    }
}

fn order(goal: &Goal, left: &Scored, right: &Scored) -> std::cmp::Ordering {
    let availability = |scored: &Scored| !(scored.available || goal.include_planned);
    availability(left)
        .cmp(&availability(right))
        .then(left.dear.cmp(&right.dear))
        .then(left.key.total_cmp(&right.key))
        .then(right.rate.total_cmp(&left.rate))
        .then(left.index.cmp(&right.index))
}

fn evaluated(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
    scored: &Scored,
) -> Result<Evaluation, RankError> {
    let mut evaluation = evaluate(catalog, &designs[scored.index])?;
    add_needs(catalog, goal, &mut evaluation);
    Ok(evaluation)
}

fn fits(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
    scored: &[Scored],
) -> Result<Vec<Fit>, RankError> {
    let mut kinds = Vec::new();
    let mut fits: Vec<Fit> = Vec::new();
    for it in scored.iter().filter(|it| it.missed.is_none()) {
        if kinds.contains(&it.kind) || fits.len() == FIT_COUNT_MAX {
            continue;
        }
        kinds.push(it.kind);
        let evaluation = evaluated(catalog, goal, designs, it)?;
        let why = why(
            catalog,
            goal,
            fits.last().map(|fit| &fit.evaluation),
            &evaluation,
        );
        let growth_years = growth_years(catalog, goal, &evaluation);
        fits.push(Fit {
            rank: fits.len() + 1,
            growth: growth(catalog, goal, &evaluation, &growth_years),
            growth_years,
            variants: variants(designs, scored, it),
            evaluation,
            why,
        });
    }
    Ok(fits)
}

/// Variants of a design shown at most.
const VARIANT_COUNT_MAX: usize = 2;
/// What costs more than so many times the best of its kind is no near-twin.
const VARIANT_COST_TIMES_MAX: f64 = 1.15;

/// The next of the same kind on other instances: bought for about the same, and folded into its line.
fn variants(designs: &[Design], scored: &[Scored], best: &Scored) -> Vec<Variant> {
    fn instance(design: &Design) -> Option<&str> {
        design.shape.machine().map(|(name, _)| name)
    }
    let mut known = vec![instance(&designs[best.index])];
    let mut variants = Vec::new();
    let near = |it: &&Scored| {
        it.kind == best.kind
            && it.missed.is_none()
            && it.available == best.available
            && it.month.0 <= best.month.0 * VARIANT_COST_TIMES_MAX
    };
    for it in scored.iter().filter(near) {
        let design = &designs[it.index];
        let name = instance(design);
        if name.is_none() || known.contains(&name) {
            continue;
        }
        known.push(name);
        variants.push(Variant {
            name: design.name(),
            design: design.clone(),
            month_usd: it.month,
        });
        if variants.len() == VARIANT_COUNT_MAX {
            break;
        }
    }
    variants
}

/// The nearest of each kind of which nothing fits.
fn misses(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
    scored: &[Scored],
) -> Result<Vec<Miss>, RankError> {
    // Candidates are ten thousands, kinds some dozens.
    let fitting = scored.iter().filter(|it| it.missed.is_none());
    let fitting: BTreeSet<Kind> = fitting.map(|it| it.kind).collect();
    let mut nearest: Vec<&Scored> = Vec::new();
    for it in scored {
        if it.missed.is_none() || fitting.contains(&it.kind) {
            continue;
        }
        match nearest.iter_mut().find(|other| other.kind == it.kind) {
            // Sorted by cost: of two that miss as far, the cheaper stays.
            Some(other) if it.shortfall < other.shortfall - 1e-9 => *other = it,
            Some(_) => {}
            None => nearest.push(it),
        }
    }
    nearest.sort_by(|left, right| left.shortfall.total_cmp(&right.shortfall));
    nearest
        .into_iter()
        .map(|it| miss(catalog, goal, designs, it))
        .collect()
}

fn miss(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
    it: &Scored,
) -> Result<Miss, RankError> {
    let evaluation = evaluated(catalog, goal, designs, it)?;
    let name = it.missed.unwrap_or("capacity");
    Ok(Miss {
        broken: broken(catalog, goal, &evaluation, name),
        evaluation,
    })
}

/// Nothing fits: the goal that nothing meets, or two that nothing meets together.
fn collision(
    catalog: &Catalog,
    goal: &Goal,
    designs: &[Design],
    scored: &[Scored],
) -> Result<Collision, RankError> {
    // A product that is no longer sold does not help a user who asks what to give up.
    // Nor does an object store help a user who asks for files.
    let objects =
        |design: &Design| is_object_store(design) && !goal.protocols.contains(&Protocol::S3);
    let sold = |it: &&Scored| {
        let design = &designs[it.index];
        !withdrawn(design) && !objects(design)
    };
    let scored: Vec<&Scored> = scored.iter().filter(sold).collect();
    let meets = |it: &Scored, place: usize| it.ratios[place] >= 1.0 - 1e-9;
    let asked: Vec<usize> = (0..GOALS.len())
        .filter(|place| scored.iter().any(|it| it.ratios[*place].is_finite()))
        .collect();
    let alone = asked
        .iter()
        .find(|place| !scored.iter().any(|it| meets(it, **place)));
    let pair = || {
        asked.iter().enumerate().find_map(|(index, left)| {
            asked[index + 1..]
                .iter()
                .find(|right| {
                    !scored
                        .iter()
                        .any(|it| meets(it, *left) && meets(it, **right))
                })
                .map(|right| (*left, *right))
        })
    };
    let nearest = scored
        .iter()
        .copied()
        .filter(|it| it.missed.is_some())
        .min_by(|left, right| {
            left.shortfall
                .total_cmp(&right.shortfall)
                .then(left.month.0.total_cmp(&right.month.0))
        })
        .map(|it| miss(catalog, goal, designs, it))
        .transpose()?;
    let (goals, mut words) = if let Some(place) = alone {
        let name = GOALS[*place];
        if name == "budget" {
            // Candidates are as large as the capacity asks: with less of it a budget may do.
            (
                vec!["capacity", name],
                "--capacity and --budget collide: nothing that holds so much costs so little"
                    .to_owned(),
            )
        } else {
            (vec![name], format!("no design meets --{name} alone"))
        }
    } else if let Some((left, right)) = pair() {
        let (left, right) = (GOALS[left], GOALS[right]);
        (
            vec![left, right],
            format!("--{left} and --{right} collide: designs meet each, none meets both"),
        )
    } else {
        let names: Vec<&'static str> = asked.iter().map(|place| GOALS[*place]).collect();
        let words = format!("no design meets --{} together", names.join(" --"));
        (names, words)
    };
    if let Some(nearest) = &nearest {
        words += &format!(
            ". The nearest is {}: {}",
            nearest.evaluation.name, nearest.broken.words
        );
    }
    Ok(Collision {
        goals,
        words,
        nearest: nearest.map(Box::new),
    })
}
