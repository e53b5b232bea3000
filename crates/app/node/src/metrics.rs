//! Metrics of everything below the protocols, collected on request.
//!
//! Owns: the names of the engine's counters and gauges in Prometheus. Must not know: how the numbers are counted.
//! Each protocol counts its own requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;

use cairn_admin::rebuild::RebuildView;
use cairn_admin::scrub::{ScrubStage, ScrubView};
use cairn_admin::spread::{SpreadStage, SpreadView};
use cairn_base::DiskId;
use cairn_config::{ClassChoice, MemoryBudget};
use cairn_fs::{ApplyRecord, ApplyState, FsStats, GcBacklog, QuotaCounts, TieringStatus};
use cairn_meta::MetaStats;
use cairn_pool::watch::Counts;
use cairn_pool::{TierStatus, VolumeTotals};
use cairn_qos::{GoalReport, LimitReport, Report};
use cairn_segment::{DiskState, DiskStatus, SegmentStats};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::memory::MemoryCounts;
use crate::node::NodeCore;

/// One value: labels and number.
type Sample = (Vec<(&'static str, String)>, u64);

/// All shown numbers, at one moment.
pub struct Observed {
    pub uptime_seconds: u64,
    pub memory: MemoryBudget,
    pub memory_limit_bytes: u64,
    /// The present memory of each part of the program.
    pub memory_parts: Vec<(&'static str, u64)>,
    pub memory_counts: MemoryCounts,
    pub metadata_cache_bytes: u64,
    pub segments: SegmentStats,
    /// Bytes that the server's own work has processed.
    pub internal_bytes: u64,
    pub disks: Vec<DiskStatus>,
    /// Of the disks of this server.
    pub answers: HashMap<DiskId, Counts>,
    pub scrub: ScrubView,
    pub rebuild: RebuildView,
    pub spread: SpreadView,
    /// By the volume's name.
    pub volumes: Vec<(String, VolumeNumbers)>,
    /// Of all volumes together since the start, also of those that are no longer served.
    pub totals_of_all: VolumeTotals,
    pub volumes_failed: u64,
    /// Of volumes with a class of service.
    pub rates: Vec<(String, Report)>,
    /// By volume, for those with an objective.
    pub goals: Vec<(String, GoalReport)>,
    /// How many times longer than usual the server's own work pauses beside clients.
    pub rest_times: u32,
    pub tiers: Vec<TierStatus>,
    pub tolerated: Vec<Tolerated>,
    /// For each address pool: the number of its addresses that nodes have now, and the number of all.
    pub address_pools: BTreeMap<String, (usize, usize)>,
    /// Addresses of pools on this node.
    pub pool_addresses_here: usize,
    /// The state of each encrypted volume, by name: encrypted, locked, erased.
    pub encryption: Vec<(String, &'static str)>,
}

/// The losses that a volume survives: so many disks, or so many nodes. `None` for nodes if the pool is on one node.
pub struct Tolerated {
    pub volume: String,
    pub disks: usize,
    pub nodes: Option<usize>,
}

pub struct VolumeNumbers {
    pub fs: FsStats,
    pub backlog: GcBacklog,
    pub meta: MetaStats,
    /// Since the start, however often it was opened.
    pub totals: VolumeTotals,
    pub inodes: u64,
    pub file_bytes: u64,
    pub stored_bytes: u64,
    pub segments: u64,
    pub snapshots: u64,
    pub snapshots_freeing: u64,
    pub snapshot_bytes: u64,
    pub quotas: QuotaCounts,
    pub policies: u64,
    pub apply: ApplyRecord,
}

/// Shows a node to Prometheus.
pub struct NodeCollector {
    node: Weak<NodeCore>,
    desc: Desc,
}

impl NodeCollector {
    pub fn new(node: Weak<NodeCore>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            node,
            // The registry needs one to distinguish collectors; families describe themselves.
            desc: Desc::new(
                "cairn_node".to_owned(),
                "Everything below the protocols".to_owned(),
                Vec::new(),
                HashMap::new(),
            )?,
        })
    }
}

impl Collector for NodeCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.node
            .upgrade()
            .map(|node| families(&node.observe()))
            .unwrap_or_default()
    }
}

fn families(observed: &Observed) -> Vec<MetricFamily> {
    let mut out = Families::default();
    node(observed, &mut out);
    store(&observed.segments, observed.internal_bytes, &mut out);
    disks(&observed.disks, &mut out);
    answers(observed, &mut out);
    amplification(&observed.segments, &observed.totals_of_all, &mut out);
    scrub(&observed.scrub, &mut out);
    rebuild(&observed.rebuild, &mut out);
    spread(&observed.spread, &mut out);
    volumes(&observed.volumes, &mut out);
    tolerated(&observed.tolerated, &mut out);
    encryption(&observed.encryption, &mut out);
    address_pools(observed, &mut out);
    classes(&observed.rates, &mut out);
    goals(&observed.goals, observed.rest_times, &mut out);
    tiers(&observed.tiers, &mut out);
    out.0
}

fn node(observed: &Observed, out: &mut Families) {
    let part = |name: &str, bytes: u64| (vec![("part", name.to_owned())], bytes);
    out.gauge(
        "cairn_uptime_seconds",
        "Time since the server started",
        observed.uptime_seconds,
    );
    out.gauge(
        "cairn_memory_limit_bytes",
        "The configured memory limit",
        observed.memory_limit_bytes,
    );
    out.gauges(
        "cairn_memory_budget_bytes",
        "Parts of the memory limit",
        vec![
            part("record_cache", observed.memory.record_cache_bytes),
            part("dirty", observed.memory.dirty_bytes),
            part("metadata", observed.memory.metadata_bytes),
            part("dedupe", observed.memory.dedupe_bytes),
            part("requests", observed.memory.requests_bytes),
            part("tables", observed.memory.tables_bytes),
            part("read_buffers", observed.memory.read_buffers_bytes),
            part("rest", observed.memory.rest_bytes),
        ],
    );
    let parts = observed.memory_parts.iter();
    out.gauges(
        "cairn_memory_bytes",
        "Memory of the process by part; other: the program, its stacks and the reserves of allocators",
        parts.map(|(name, bytes)| part(name, *bytes)).collect(),
    );
    let counts = observed.memory_counts;
    out.gauge(
        "cairn_memory_resident_bytes",
        "Resident memory of the process",
        counts.resident_bytes,
    );
    out.gauge(
        "cairn_memory_caches_bytes_max",
        "Current limit of all caches together; it shrinks when the process nears its memory limit",
        counts.cache_max_bytes,
    );
    out.counters(
        "cairn_memory_pauses_total",
        "Waits of callers because memory was short",
        vec![(Vec::new(), counts.pauses)],
    );
    out.counters(
        "cairn_memory_given_back_total",
        "Returns of freed memory to the system because memory was short",
        vec![(Vec::new(), counts.given_back)],
    );
    out.gauge(
        "cairn_metadata_cache_bytes",
        "Metadata blocks in memory",
        observed.metadata_cache_bytes,
    );
    out.gauge(
        "cairn_volumes_failed",
        "Volumes that are not served",
        observed.volumes_failed,
    );
}

fn tolerated(volumes: &[Tolerated], out: &mut Families) {
    let samples = volumes.iter().flat_map(|volume| {
        let disks = ("disk", Some(volume.disks));
        let domains = [disks, ("node", volume.nodes)].into_iter();
        domains.filter_map(|(domain, count)| {
            let labels = vec![
                ("volume", volume.volume.clone()),
                ("domain", domain.to_owned()),
            ];
            Some((labels, count? as u64))
        })
    });
    out.gauges(
        "cairn_volume_failures_tolerated",
        "Disks, or instead nodes, that the volume can lose without loss of data",
        samples.collect(),
    );
}

fn encryption(volumes: &[(String, &'static str)], out: &mut Families) {
    let samples = volumes.iter().map(|(volume, state)| {
        let labels = vec![("volume", volume.clone()), ("state", (*state).to_owned())];
        (labels, 1)
    });
    out.gauges(
        "cairn_volume_encrypted",
        "1 for each encrypted volume: encrypted, locked (its master key is missing), or erased",
        samples.collect(),
    );
}

/// Addresses that nodes share.
fn address_pools(observed: &Observed, out: &mut Families) {
    let each = |of: fn(&(usize, usize)) -> usize| -> Vec<Sample> {
        let pools = observed.address_pools.iter();
        let samples = pools.map(|(pool, counts)| (vec![("pool", pool.clone())], of(counts) as u64));
        samples.collect()
    };
    out.gauges(
        "cairn_address_pool_addresses",
        "Addresses of an address pool",
        each(|(_, all)| *all),
    );
    out.gauges(
        "cairn_address_pool_addresses_held",
        "Addresses of an address pool that nodes hold now; if fewer than all for more than some seconds, clients cannot reach the others",
        each(|(held, _)| *held),
    );
    out.gauge(
        "cairn_address_pool_addresses_here",
        "Address pool addresses that this node holds",
        observed.pool_addresses_here as u64,
    );
}

/// The contents of tiers, and their response.
fn tiers(tiers: &[TierStatus], out: &mut Families) {
    let each = |value: &dyn Fn(&TierStatus) -> u64| -> Vec<Sample> {
        let labels = |tier: &TierStatus| vec![("tier", tier.tier.name.to_string())];
        let tiers = tiers.iter();
        tiers.map(|tier| (labels(tier), value(tier))).collect()
    };
    let sum = |tier: &TierStatus, of: fn(&TieringStatus) -> u64| -> u64 {
        let known = tier.volumes.iter().filter_map(|it| it.status.as_ref());
        known.map(of).sum()
    };
    out.gauges(
        "cairn_tier_working",
        "1 for a tier that answers",
        each(&|tier| u64::from(tier.trouble.is_none() && !tier.stats.is_away)),
    );
    out.gauges(
        "cairn_tier_objects",
        "Objects with data in a tier",
        each(&|tier| sum(tier, |status| status.objects)),
    );
    out.gauges(
        "cairn_tier_bytes",
        "Bytes of data in a tier",
        each(&|tier| sum(tier, |status| status.remote_bytes)),
    );
    out.gauges(
        "cairn_tier_live_bytes",
        "Bytes of data in a tier that are in use",
        each(&|tier| sum(tier, |status| status.remote_live_bytes)),
    );
    out.gauges(
        "cairn_tier_saved_bytes",
        "Space that the data in a tier would need on disks, with parity and copies",
        each(&|tier| sum(tier, |status| status.saved_bytes)),
    );
    out.gauges(
        "cairn_tier_unused_objects",
        "Unreferenced objects in a tier, which are to be deleted",
        each(&|tier| sum(tier, |status| status.unused_objects)),
    );
    type Row = (&'static str, &'static str, fn(&TierStatus) -> u64);
    #[rustfmt::skip]
    let counters: &[Row] = &[
        ("cairn_tier_reads_total", "Read requests to a tier", |tier| tier.stats.reads),
        ("cairn_tier_writes_total", "Write requests to a tier", |tier| tier.stats.writes),
        ("cairn_tier_deletes_total", "Delete requests to a tier", |tier| tier.stats.deletes),
        ("cairn_tier_errors_total", "Failed requests to a tier", |tier| tier.stats.errors),
        ("cairn_tier_wrong_total", "Answers of a tier with wrong data", |tier| tier.stats.wrong),
        ("cairn_tier_read_bytes_total", "Bytes read from a tier", |tier| tier.stats.read_bytes),
        ("cairn_tier_written_bytes_total", "Bytes written to a tier", |tier| tier.stats.written_bytes),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, each(value));
    }
}

/// Rates of volumes with a class.
fn classes(volumes: &[(String, Report)], out: &mut Families) {
    let whole = |number: f64| number.round() as u64;
    let limits = |value: &dyn Fn(&LimitReport) -> Option<f64>| -> Vec<Sample> {
        let each = volumes.iter().flat_map(|(name, report)| {
            report.limits.iter().map(move |limit| (name, report, limit))
        });
        let samples = each.filter_map(|(name, report, limit)| {
            let labels = vec![
                ("volume", name.clone()),
                ("class", ClassChoice::from(report.class.clone()).to_string()),
                ("of", limit.name.to_owned()),
            ];
            Some((labels, whole(value(limit)?)))
        });
        samples.collect()
    };
    let credit = |limit: &LimitReport, value: f64| limit.rate.has_burst().then_some(value);
    out.gauges(
        "cairn_class_limit",
        "Baseline of a volume's limit, in bytes or operations per second",
        limits(&|limit| Some(limit.rate.baseline)),
    );
    out.gauges(
        "cairn_class_burst",
        "Burst rate of a volume's limit while it has credit",
        limits(&|limit| Some(limit.rate.burst)),
    );
    out.gauges(
        "cairn_class_rate",
        "Use of a volume's limit over about the last second",
        limits(&|limit| Some(limit.now)),
    );
    out.gauges(
        "cairn_class_credit",
        "Credit: bytes or operations available above the baseline",
        limits(&|limit| credit(limit, limit.credit)),
    );
    out.gauges(
        "cairn_class_credit_max",
        "Maximum credit",
        limits(&|limit| credit(limit, limit.rate.credit)),
    );
    let each = |value: fn(&Report) -> u64| by_volume(volumes, value);
    out.gauges(
        "cairn_class_waiting",
        "Requests that are delayed now",
        each(|report| report.waiting),
    );
    type Row = (&'static str, &'static str, fn(&Report) -> u64);
    #[rustfmt::skip]
    let counters: &[Row] = &[
        ("cairn_class_read_bytes_total", "Bytes read from volumes in a class", |report| report.read_bytes),
        ("cairn_class_written_bytes_total", "Bytes written to volumes in a class", |report| report.written_bytes),
        ("cairn_class_operations_total", "Counted requests to volumes in a class", |report| report.operations),
        ("cairn_class_delayed_total", "Delayed requests", |report| report.delayed),
        ("cairn_class_delayed_milliseconds_total", "Total delay of requests", |report| {
            u64::try_from(report.delayed_time.as_millis()).unwrap_or(u64::MAX)
        }),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, each(*value));
    }
}

/// A number of each volume, by its name.
fn by_volume<T>(volumes: &[(String, T)], value: fn(&T) -> u64) -> Vec<Sample> {
    let sample = |(name, of): &(String, T)| (vec![("volume", name.clone())], value(of));
    volumes.iter().map(sample).collect()
}

fn goals(volumes: &[(String, GoalReport)], rest_times: u32, out: &mut Families) {
    let each = |value: fn(&GoalReport) -> u64| by_volume(volumes, value);
    out.gauges(
        "cairn_latency_goal_microseconds",
        "Latency objective for 99 of 100 requests to a volume",
        each(|report| u64::try_from(report.goal.as_micros()).unwrap_or(u64::MAX)),
    );
    out.gauges(
        "cairn_latency_goal_missed",
        "1 if the volume misses its latency objective",
        each(|report| u64::from(report.is_met() == Some(false))),
    );
    out.counters(
        "cairn_latency_goal_requests_total",
        "Answered requests that count for the latency objective",
        each(|report| report.answered.all),
    );
    out.counters(
        "cairn_latency_goal_late_total",
        "Requests that missed the latency objective",
        each(|report| report.answered.late),
    );
    out.gauges(
        "cairn_internal_rest_times",
        "Throttling of background work for latency objectives: its rests last this many times as long as usual",
        vec![(Vec::new(), u64::from(rest_times))],
    );
}

fn store(stats: &SegmentStats, internal_bytes: u64, out: &mut Families) {
    #[rustfmt::skip]
    let counters = [
        ("cairn_store_appends_total", "Appends of records to segments", stats.appends),
        ("cairn_store_appended_bytes_total", "Stored bytes of records", stats.appended_bytes),
        ("cairn_store_parity_bytes_total", "Bytes of parity and copies", stats.parity_bytes),
        ("cairn_store_padding_bytes_total", "Bytes of stripes that hold no record", stats.padding_bytes),
        ("cairn_store_rebuilds_total", "Shards with a lost file that were rebuilt", stats.rebuilds),
        ("cairn_store_rebuilds_failed_total", "Shards with a lost file that could not be rebuilt", stats.rebuilds_failed),
        ("cairn_store_append_retries_total", "Retried appends, on other disks if there are enough", stats.append_retries),
        ("cairn_store_segments_created_total", "Segments created", stats.segments_created),
        ("cairn_store_segments_removed_total", "Segments deleted", stats.segments_removed),
        ("cairn_store_disk_reads_total", "Reads from disks", stats.disk_reads),
        ("cairn_store_disk_read_bytes_total", "Bytes read from disks", stats.disk_read_bytes),
        ("cairn_store_merged_reads_total", "Small records read together with their neighbours", stats.merged_reads),
        ("cairn_store_degraded_reads_total", "Reads that needed redundancy", stats.degraded_reads),
        ("cairn_store_checksum_errors_total", "Damaged reads from disks", stats.checksum_errors),
        ("cairn_store_damaged_reads_total", "Reads of data damaged beyond repair", stats.damaged_reads),
        ("cairn_store_unreachable_reads_total", "Reads that got too few answers from disks and are retried later", stats.unreachable_reads),
        ("cairn_store_repairs_total", "Runs of bytes repaired from redundancy", stats.repairs),
        ("cairn_store_repairs_failed_total", "Repairs that failed", stats.repairs_failed),
        ("cairn_store_repairs_skipped_total", "Repairs deferred because enough were under way", stats.repairs_skipped),
        ("cairn_internal_bytes_total", "Bytes processed by rebuilds, scrubs, garbage collection, conversions and tiers, as class internal counts them", internal_bytes),
        ("cairn_cache_hits_total", "Records found in the cache", stats.cache_hits),
        ("cairn_cache_misses_total", "Records not found in the cache", stats.cache_misses),
        ("cairn_read_cache_hits_total", "Reads fully served from the read cache", stats.second_hits),
        ("cairn_read_cache_hit_bytes_total", "Bytes served from the read cache", stats.second_hit_bytes),
        ("cairn_read_cache_misses_total", "Reads not fully served from the read cache", stats.second_misses),
        ("cairn_read_cache_kept_bytes_total", "Bytes written to the read cache", stats.second_kept_bytes),
        ("cairn_read_cache_wrong_total", "Damaged parts of records in the read cache", stats.second_wrong),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, vec![(Vec::new(), value)]);
    }
    out.gauge(
        "cairn_cache_bytes",
        "Bytes of records in the cache",
        stats.cache_bytes,
    );
    out.gauge(
        "cairn_store_open_segments",
        "Open segments",
        stats.open_segments,
    );
    out.gauge(
        "cairn_store_open_room_bytes",
        "Space for data in open segments",
        stats.open_room_bytes,
    );
    out.gauge(
        "cairn_store_append_bytes_in_flight",
        "Bytes being written to disks",
        stats.append_bytes_in_flight,
    );
}

fn disks(disks: &[DiskStatus], out: &mut Families) {
    let each = |value: fn(&DiskStatus) -> u64| -> Vec<Sample> {
        disks
            .iter()
            .map(|disk| {
                let labels = vec![("disk", disk.id.to_string()), ("label", disk.label.clone())];
                (labels, value(disk))
            })
            .collect()
    };
    out.gauges(
        "cairn_disk_total_bytes",
        "Size of the disk",
        each(|disk| disk.total_bytes),
    );
    out.gauges(
        "cairn_disk_free_bytes",
        "Free space of the disk",
        each(|disk| disk.free_bytes),
    );
    out.gauges(
        "cairn_disk_waiting_bytes",
        "Free space in spare files for new shards; spare files are removed after a minute without use",
        each(|disk| disk.waiting_bytes),
    );
    out.gauges(
        "cairn_disk_healthy",
        "1 if the disk serves, 0 if it is missing, failed, unresponsive or failing",
        each(|disk| u64::from(disk.state == DiskState::Healthy)),
    );
    out.counters(
        "cairn_disk_read_errors_total",
        "Reads that failed",
        each(|disk| disk.read_errors),
    );
    out.counters(
        "cairn_disk_write_errors_total",
        "Writes that failed",
        each(|disk| disk.write_errors),
    );
    out.counters(
        "cairn_disk_full_errors_total",
        "Writes refused for lack of space",
        each(|disk| disk.full_errors),
    );
    out.counters(
        "cairn_disk_checksum_errors_total",
        "Damaged reads from the disk",
        each(|disk| disk.checksum_errors),
    );
}

/// The response of disks: the number of operations, and their time.
fn answers(observed: &Observed, out: &mut Families) {
    let each = |value: fn(&Counts) -> u64| -> Vec<Sample> {
        let disks = observed.disks.iter();
        let samples = disks.filter_map(|disk| {
            let labels = vec![("disk", disk.id.to_string()), ("label", disk.label.clone())];
            Some((labels, value(observed.answers.get(&disk.id)?)))
        });
        samples.collect()
    };
    out.counters(
        "cairn_disk_operations_total",
        "Completed operations of the disk",
        each(|counts| counts.ops),
    );
    out.counters(
        "cairn_disk_operation_microseconds_total",
        "Total time of the disk's operations",
        each(|counts| counts.nanos / 1000),
    );
}

/// Bytes written to disks for each byte that clients wrote: once all of them (records, moves of garbage collection,
/// padding, parity, every copy of the log), once without redundancy. In thousandths, because gauges here are whole
/// numbers.
fn amplification(segments: &SegmentStats, totals: &VolumeTotals, out: &mut Families) {
    let data = segments.appended_bytes + segments.padding_bytes;
    let once = data + totals.log_bytes;
    let all = data + segments.parity_bytes + totals.log_copies_bytes;
    let given = totals.written_bytes;
    if given == 0 {
        return;
    }
    let permille = |written: u64| {
        let permille = u128::from(written) * 1000 / u128::from(given);
        u64::try_from(permille).unwrap_or(u64::MAX)
    };
    out.gauge(
        "cairn_write_amplification_permille",
        "Thousandths of bytes written to disks for each byte that clients wrote since the start",
        permille(all),
    );
    out.gauge(
        "cairn_write_amplification_data_permille",
        "Thousandths of bytes written to disks, without parity and further copies, for each byte that clients wrote since the start",
        permille(once),
    );
}

fn scrub(scrub: &ScrubView, out: &mut Families) {
    let is_running = u64::from(scrub.stage == ScrubStage::Running);
    let is_resting = u64::from(scrub.rests_until_seconds.is_some());
    let next_seconds = scrub.next_seconds.unwrap_or(0).max(0).unsigned_abs();
    #[rustfmt::skip]
    let gauges = [
        ("cairn_scrub_running", "1 while a scrub runs", is_running),
        ("cairn_scrub_resting", "1 while the scrub waits for the maintenance window", is_resting),
        ("cairn_scrub_next_seconds", "Time of the next scheduled scrub, in seconds since 1970; 0: none", next_seconds),
        ("cairn_scrub_done_bytes", "Bytes that the current or last scrub read", scrub.done_bytes),
        ("cairn_scrub_total_bytes", "Estimate of all bytes that the scrub reads", scrub.total_bytes),
        ("cairn_scrub_shards", "Shards that the scrub checked", scrub.shards),
        ("cairn_scrub_records", "Records that the scrub checked", scrub.records),
        ("cairn_scrub_wrong_bytes", "Damaged bytes of shards that the scrub found", scrub.wrong_bytes),
        ("cairn_scrub_repaired_bytes", "Damaged bytes that the scrub repaired", scrub.repaired_bytes),
        ("cairn_scrub_damaged", "Places in files that the scrub could not repair", scrub.damaged),
        ("cairn_scrub_errors", "Failures of the scrub itself", scrub.errors),
    ];
    for (name, help, value) in gauges {
        out.gauge(name, help, value);
    }
}

fn rebuild(rebuild: &RebuildView, out: &mut Families) {
    #[rustfmt::skip]
    let gauges = [
        ("cairn_rebuild_running", "1 while shards have to move or be rebuilt", u64::from(rebuild.running)),
        ("cairn_rebuild_shards_left", "Shards to be moved or rebuilt", rebuild.shards_left),
        ("cairn_rebuild_bytes_left", "Bytes of shards to be moved or rebuilt", rebuild.bytes_left),
        ("cairn_rebuild_shards_missing", "Shards that are missing from their disks", rebuild.shards_missing),
    ];
    for (name, help, value) in gauges {
        out.gauge(name, help, value);
    }
    #[rustfmt::skip]
    let counters = [
        ("cairn_rebuild_shards_total", "Shards moved or rebuilt onto another disk", rebuild.shards_moved),
        ("cairn_rebuild_segments_total", "Segments rewritten because no disk could take their shards", rebuild.segments_rewritten),
        ("cairn_rebuild_bytes_total", "Bytes moved, rebuilt or rewritten", rebuild.moved_bytes),
        ("cairn_rebuild_worked_bytes_total", "Bytes processed by moves and rebuilds, including those of incomplete shards", rebuild.worked_bytes),
        ("cairn_rebuild_lost_bytes_total", "Bytes that could not be recovered from any disk", rebuild.lost_bytes),
        ("cairn_rebuild_errors_total", "Moves and rewrites that failed", rebuild.errors),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, vec![(Vec::new(), value)]);
    }
}

fn spread(spread: &SpreadView, out: &mut Families) {
    let is_moving = u64::from(spread.stage == SpreadStage::Moving);
    #[rustfmt::skip]
    let gauges = [
        ("cairn_spread_moving", "1 while data moves to emptier disks", is_moving),
        ("cairn_spread_paused", "1 while the spread of data to emptier disks is paused", u64::from(spread.paused)),
        ("cairn_spread_least_permille", "How full the emptiest disk is, in thousandths, in the device class with the largest difference", spread.least_permille),
        ("cairn_spread_most_permille", "How full the fullest disk is, in thousandths, in the device class with the largest difference", spread.most_permille),
        ("cairn_spread_excess_bytes", "Bytes on disks above the mean of their device class", spread.excess_bytes),
    ];
    for (name, help, value) in gauges {
        out.gauge(name, help, value);
    }
    let help = "Bytes moved to emptier disks, of the volumes served here";
    let moved = vec![(Vec::new(), spread.moved_bytes)];
    out.counters("cairn_spread_bytes_total", help, moved);
}

fn volumes(volumes: &[(String, VolumeNumbers)], out: &mut Families) {
    let each = |value: fn(&VolumeNumbers) -> u64| -> Vec<Sample> {
        volumes
            .iter()
            .map(|(name, numbers)| (vec![("volume", name.clone())], value(numbers)))
            .collect()
    };
    type Row = (&'static str, &'static str, fn(&VolumeNumbers) -> u64);
    #[rustfmt::skip]
    let gauges: &[Row] = &[
        ("cairn_volume_inodes", "Inodes: files, folders and others", |n| n.inodes),
        ("cairn_volume_file_bytes", "Bytes of files", |n| n.file_bytes),
        ("cairn_volume_stored_bytes", "Stored bytes of live records", |n| n.stored_bytes),
        ("cairn_volume_segments", "Segments with a live record", |n| n.segments),
        ("cairn_volume_snapshots", "Visible snapshots", |n| n.snapshots),
        ("cairn_volume_snapshots_freeing", "Deleted snapshots whose space is being freed", |n| n.snapshots_freeing),
        ("cairn_volume_snapshot_bytes", "Stored bytes of records that only snapshots hold", |n| n.snapshot_bytes),
        ("cairn_volume_quotas", "Quotas on directories, users and groups", |n| n.quotas.quotas),
        ("cairn_volume_quotas_over_advisory", "Quotas above their advisory limit; users and groups of default quotas count as one each", |n| n.quotas.over_advisory),
        ("cairn_volume_quotas_over_soft", "Quotas above their soft limit", |n| n.quotas.over_soft),
        ("cairn_volume_quotas_at_hard", "Quotas at their hard limit", |n| n.quotas.at_hard),
        ("cairn_volume_quota_refusals", "Operations that quotas refused since the volume was opened", |n| n.quotas.refusals),
        ("cairn_volume_policies", "Directories with a policy of their own", |n| n.policies),
        ("cairn_volume_apply_running", "1 while existing data is converted to its policies", |n| u64::from(n.apply.state == ApplyState::Running && n.apply.began_seconds > 0)),
        ("cairn_volume_apply_inodes", "Inodes that the current or last conversion visited", |n| n.apply.inodes),
        ("cairn_volume_apply_inodes_all", "Inodes at the start of the conversion", |n| n.apply.inodes_all),
        ("cairn_volume_apply_seen_bytes", "Bytes of files that the conversion visited", |n| n.apply.seen_bytes),
        ("cairn_volume_apply_rewritten_bytes", "Bytes of files that the conversion rewrote", |n| n.apply.rewritten_bytes),
        ("cairn_volume_apply_shared_bytes", "Bytes of files that the conversion deduplicated", |n| n.apply.shared_bytes),
        ("cairn_volume_apply_left", "Parts of files that could not be converted", |n| n.apply.left),
        ("cairn_volume_inodes_in_memory", "Inodes in memory", |n| n.fs.inodes_in_memory),
        ("cairn_volume_extents_in_memory", "Extents of files in memory", |n| n.fs.extents_in_memory),
        ("cairn_volume_dirty_bytes", "Written data that is not on disk yet", |n| n.fs.dirty_bytes),
        ("cairn_volume_dirty_memory_bytes", "Memory of written data that is not on disk yet", |n| n.fs.dirty_memory_bytes),
        ("cairn_volume_dirty_bytes_max", "Limit of memory for written data that is not on disk yet, of all volumes together", |n| n.fs.dirty_bytes_max),
        ("cairn_gc_orphans", "Removed files whose space is not freed yet", |n| n.backlog.orphans),
        ("cairn_gc_dead_segments", "Segments without a live record that are not deleted yet", |n| n.backlog.dead_segments),
        ("cairn_gc_dead_bytes", "Space of segments without a live record", |n| n.backlog.dead_bytes),
        ("cairn_gc_sparse_bytes", "Garbage in other sealed segments", |n| n.backlog.sparse_bytes),
        ("cairn_gc_sparse_bytes_allowed", "Limit of garbage above which segments are rewritten", |n| n.backlog.sparse_bytes_allowed),
        ("cairn_gc_backlog_bytes", "Garbage that is being collected now", |n| n.backlog.bytes()),
        ("cairn_log_bytes", "Retained bytes of the commit log, on one disk", |n| n.meta.log_bytes),
        ("cairn_log_queue_bytes", "Bytes submitted to the log that are not durable yet", |n| n.meta.queue_bytes),
        ("cairn_log_disks", "Disks that the log is written to", |n| n.meta.log_disks.len() as u64),
        ("cairn_log_copies_wanted", "Copies that log and state should have", |n| n.meta.copies_wanted as u64),
        ("cairn_log_degraded", "1 if the loss of another disk could lose metadata", |n| u64::from(n.meta.is_degraded())),
    ];
    for (name, help, value) in gauges {
        out.gauges(name, help, each(*value));
    }
    #[rustfmt::skip]
    let counters: &[Row] = &[
        ("cairn_volume_inodes_evicted_total", "Inodes evicted from memory", |n| n.totals.inodes_evicted),
        ("cairn_volume_written_bytes_total", "Bytes of files that clients wrote", |n| n.totals.written_bytes),
        ("cairn_volume_flushed_bytes_total", "Bytes of files written to segments", |n| n.totals.flushed_bytes),
        ("cairn_volume_deduplicated_bytes_total", "Bytes of files that were deduplicated", |n| n.totals.deduplicated_bytes),
        ("cairn_volume_flush_errors_total", "Flushes that failed", |n| n.totals.flush_errors),
        ("cairn_volume_journaled_writes_total", "Small stable writes that went to the log", |n| n.totals.journaled_writes),
        ("cairn_gc_segments_removed_total", "Segments deleted by garbage collection", |n| n.totals.gc_segments_removed),
        ("cairn_gc_rewritten_bytes_total", "Bytes copied out of sparse segments", |n| n.totals.gc_rewritten_bytes),
        ("cairn_joined_bytes_total", "Bytes of files in many small extents that were merged into few", |n| n.totals.joined_bytes),
        ("cairn_gc_surveys_total", "Searches of all segments for those to rewrite", |n| n.totals.gc_surveys),
        ("cairn_gc_rewrite_passes_total", "Passes over all extents, for segments without a usable summary", |n| n.totals.rewrite_passes),
        ("cairn_gc_errors_total", "Failures of garbage collection", |n| n.totals.gc_errors),
        ("cairn_volume_orphans_reaped_total", "Removed files whose space was freed", |n| n.totals.orphans_reaped),
        ("cairn_log_groups_total", "Log records written", |n| n.totals.log_groups),
        ("cairn_log_batches_total", "Batches in log records", |n| n.totals.log_batches),
        ("cairn_log_written_bytes_total", "Bytes of log records, on one disk", |n| n.totals.log_bytes),
        ("cairn_log_syncs_total", "Durable writes of the log", |n| n.totals.log_syncs),
        ("cairn_log_ships_total", "Checkpoints shipped to other disks", |n| n.totals.log_ships),
        ("cairn_log_ship_errors_total", "Checkpoints that could not be shipped", |n| n.totals.log_ship_errors),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, each(*value));
    }
}

/// Families that are being built; those without a sample are left out, as the registry requires.
#[derive(Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.gauges(name, help, vec![(Vec::new(), value)]);
    }

    fn gauges(&mut self, name: &str, help: &str, samples: Vec<Sample>) {
        self.add(name, help, MetricType::GAUGE, samples, |metric, value| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    fn counters(&mut self, name: &str, help: &str, samples: Vec<Sample>) {
        self.add(name, help, MetricType::COUNTER, samples, |metric, value| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: Vec<Sample>,
        set: impl Fn(&mut Metric, f64),
    ) {
        if samples.is_empty() {
            return;
        }
        let metrics = samples.into_iter().map(|(labels, value)| {
            let labels = labels.into_iter().map(|(name, value)| {
                let mut label = LabelPair::default();
                label.set_name(name.to_owned());
                label.set_value(value);
                label
            });
            let mut metric = Metric::from_label(labels.collect());
            set(&mut metric, value as f64);
            metric
        });
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics.collect());
        self.0.push(family);
    }
}
