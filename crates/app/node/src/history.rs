//! Numbers of the present and of the past, for the console and `/api/v1/history`.
//!
//! Owns: which numbers are kept, how they follow from the metrics, the thread of the store, the disk of the store.
//! Must not know: how they are kept (`cairn_history`), who reads them.
//!
//! All numbers here come from those of `/metrics`, so that no number differs between the two.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::disks::DiskState;
use cairn_admin::live::{
    HistoryAcross, HistoryKind, HistoryList, HistoryQuery, HistorySeries, HistorySeriesName,
    HistoryView, LiveControl, LiveNumber, LiveView, MountView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::Timestamp;
use cairn_base::jobs::{Job, Next};
use cairn_history::{Kind, Query, Row, Series, Settings, Store, Table};
use cairn_shard::ShardDisk;
use parking_lot::Mutex;
use prometheus::proto::{MetricFamily, MetricType};
use tokio::sync::oneshot;

use crate::control::Controller;
use crate::convert;
use crate::folder::make_below_disk;
use crate::node::NodeCore;

/// The folder in a data folder. Three levels, so that a disk does not count its contents as its own (`cairn_disk`),
/// because they change without the disk's knowledge.
pub const HISTORY_NAME: &str = "history";
const BELOW: &str = "metrics/v1";
/// Depth below the disk's folder.
const DEPTH: usize = 3;

/// Interval of the kept rows, in seconds of the clock: each such step has one row.
const SAMPLE_SECONDS: i64 = 10;
/// The offset of a sample in its step.
const SAMPLE_AFTER: Duration = Duration::from_millis(200);
/// Minimum period of the present numbers: those of a shorter one would vary too much.
const LIVE_SPAN_MIN: Duration = Duration::from_millis(900);
/// Maximum period of the present rates: they reach back to the oldest sample within it.
const LIVE_SPAN_MAX: Duration = Duration::from_secs(4);
/// Rows and queries that wait for the store; a disk that hangs must not fill the memory.
const ASKS_MAX: usize = 16;
/// A query without an answer is given up after so long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A failed store is reopened after so long.
const REOPEN_AFTER: Duration = Duration::from_secs(60);
/// Numbers and entries are written only if so much room is left beside the room for starts and deletions.
const SPARE_BYTES: u64 = 256 << 10;
/// Rows that are kept in memory while their disk has no room for them: those of an hour.
const WAITING_ROWS_MAX: usize = 360;
const FULL: &str = "its disk has no room: the numbers of the last hour are in memory, and are written when there is some";
/// Volumes and disks with series of their own; of more, the first ones by name have them.
const VOLUMES_MAX: usize = 32;
const DISKS_MAX: usize = 64;
/// Limits of a class: of bytes and of operations, each in total, of reads, of writes.
const LIMITS_MAX: usize = 6;

/// The metrics of one moment, by family and labels.
struct Sample {
    at: Duration,
    /// Counters and gauges.
    values: BTreeMap<String, Vec<(Labels, f64)>>,
    histograms: BTreeMap<String, Vec<Histogram>>,
}

type Labels = Vec<(String, String)>;

/// Cumulative buckets (bound in seconds, and count), and the total count.
type Histogram = (Labels, Vec<(f64, u64)>, u64);

impl Sample {
    fn of(at: Duration, families: &[MetricFamily]) -> Self {
        let mut sample = Self {
            at,
            values: BTreeMap::new(),
            histograms: BTreeMap::new(),
        };
        for family in families {
            for metric in family.get_metric() {
                let labels = metric.get_label().iter();
                let labels = labels
                    .map(|pair| (pair.name().to_owned(), pair.value().to_owned()))
                    .collect();
                let value = match family.get_field_type() {
                    MetricType::COUNTER => metric.get_counter().get_value(),
                    MetricType::GAUGE => metric.get_gauge().get_value(),
                    MetricType::HISTOGRAM => {
                        let histogram = metric.get_histogram();
                        let buckets = histogram.get_bucket().iter();
                        let buckets = buckets
                            .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                            .collect();
                        let count = histogram.get_sample_count();
                        let of_family = sample.histograms.entry(family.name().to_owned());
                        of_family.or_default().push((labels, buckets, count));
                        continue;
                    }
                    _ => continue,
                };
                let of_family = sample.values.entry(family.name().to_owned());
                of_family.or_default().push((labels, value));
            }
        }
        sample
    }

    /// The sum of a family's values with these labels; `None` without any.
    fn sum(&self, family: &str, with: &[(&str, &str)]) -> Option<f64> {
        let values = self.values.get(family)?.iter();
        let mut values = values
            .filter(|(labels, _)| has(labels, with))
            .map(|(_, value)| *value)
            .peekable();
        values.peek().is_some().then(|| values.sum())
    }

    /// The values of a label in a family.
    fn label_values(&self, family: &str, label: &str, count_max: usize) -> Vec<String> {
        let of_family = self.values.get(family).into_iter().flatten();
        let found = of_family.filter_map(|(labels, _)| {
            let mut labels = labels.iter();
            Some(labels.find(|(name, _)| name == label)?.1.clone())
        });
        let found: std::collections::BTreeSet<String> = found.collect();
        found.into_iter().take(count_max).collect()
    }

    /// The merged buckets of all histograms of a family with these labels, and their total count.
    fn histogram(&self, family: &str, is_in: impl Fn(&Labels) -> bool) -> (Vec<(f64, u64)>, u64) {
        let mut all: Vec<(f64, u64)> = Vec::new();
        let mut count_of_all = 0;
        let of_family = self.histograms.get(family).into_iter().flatten();
        for (_, buckets, count) in of_family.filter(|(labels, _, _)| is_in(labels)) {
            if all.is_empty() {
                all = buckets.iter().map(|(bound, _)| (*bound, 0)).collect();
            }
            for (sum, (_, count)) in all.iter_mut().zip(buckets) {
                sum.1 += count;
            }
            count_of_all += count;
        }
        (all, count_of_all)
    }
}

fn has(labels: &Labels, with: &[(&str, &str)]) -> bool {
    let mut with = with.iter();
    with.all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
}

/// One number, as it is kept and shown.
struct Number {
    series: Series,
    value: Option<f64>,
}

/// Name, digits after the point, the counter and the labels to include.
type Rate = (
    &'static str,
    u8,
    &'static str,
    &'static [(&'static str, &'static str)],
);

#[rustfmt::skip]
const RATES: &[Rate] = &[
    ("nfs_read_bytes_per_second", 0, "cairn_nfs_read_bytes_total", &[]),
    ("nfs_written_bytes_per_second", 0, "cairn_nfs_written_bytes_total", &[]),
    ("iscsi_read_bytes_per_second", 0, "cairn_lun_bytes_total", &[("kind", "read")]),
    ("iscsi_written_bytes_per_second", 0, "cairn_lun_bytes_total", &[("kind", "write")]),
    ("iscsi_commands_per_second", 3, "cairn_lun_commands_total", &[]),
    ("s3_received_bytes_per_second", 0, "cairn_s3_bytes_total", &[("direction", "received")]),
    ("s3_sent_bytes_per_second", 0, "cairn_s3_bytes_total", &[("direction", "sent")]),
    ("s3_requests_per_second", 3, "cairn_s3_requests_total", &[]),
    ("disk_read_bytes_per_second", 0, "cairn_store_disk_read_bytes_total", &[]),
    ("cpu_seconds_per_second", 3, "process_cpu_seconds_total", &[]),
    ("rebuild_bytes_per_second", 0, "cairn_rebuild_worked_bytes_total", &[]),
];

#[rustfmt::skip]
const GAUGES: &[(&str, &str)] = &[
    ("nfs_connections", "cairn_nfs_connections"),
    ("nfs_mounts", "cairn_nfs_mounts"),
    ("iscsi_sessions", "cairn_iscsi_sessions"),
    ("s3_connections", "cairn_s3_connections"),
    ("pool_total_bytes", "cairn_disk_total_bytes"),
    ("pool_free_bytes", "cairn_disk_free_bytes"),
    ("file_bytes", "cairn_volume_file_bytes"),
    ("stored_bytes", "cairn_volume_stored_bytes"),
    ("inodes", "cairn_volume_inodes"),
    ("memory_resident_bytes", "process_resident_memory_bytes"),
    ("record_cache_bytes", "cairn_cache_bytes"),
    ("dirty_bytes", "cairn_volume_dirty_memory_bytes"),
    ("rebuild_left_bytes", "cairn_rebuild_bytes_left"),
    ("scrub_done_bytes", "cairn_scrub_done_bytes"),
];

/// How the values of a cluster's nodes are combined.
fn across(name: &str) -> HistoryAcross {
    let (series, of) = name.split_once(':').unzip();
    match series.unwrap_or(name) {
        // All nodes know all disks of the pool.
        "pool_total_bytes" | "pool_free_bytes" => HistoryAcross::Any,
        "cache_hits_percent" => HistoryAcross::Mean,
        name if name.contains("_latency_") && of.is_none() => HistoryAcross::Greatest,
        // A disk's own node has the best value for it, and a volume's owner has the only one.
        _ if of.is_some() => HistoryAcross::Any,
        _ => HistoryAcross::Sum,
    }
}

/// Requests of NFS by their kind of cost.
type Class = (&'static str, fn(&str) -> bool);

#[rustfmt::skip]
const CLASSES: &[Class] = &[
    ("nfs", |_| true),
    ("nfs_read", |procedure| procedure == "read"),
    ("nfs_write", |procedure| matches!(procedure, "write" | "commit")),
    ("nfs_other", |procedure| !matches!(procedure, "read" | "write" | "commit")),
];
const DURATIONS: &str = "cairn_nfs_request_duration_seconds";

/// All numbers that follow from two samples.
fn numbers(before: &Sample, now: &Sample) -> Vec<Number> {
    let span = now.at.saturating_sub(before.at).as_secs_f64();
    let mut all = Vec::new();
    let mut add = |name: String, kind: Kind, decimals: u8, value: Option<f64>| {
        let value = value.filter(|value| value.is_finite() && *value >= 0.0);
        let series = Series {
            name,
            kind,
            decimals,
        };
        all.push(Number { series, value });
    };
    let risen = |family: &str, with: &[(&str, &str)]| {
        let risen = now.sum(family, with)? - before.sum(family, with).unwrap_or(0.0);
        // A counter that fell was restarted.
        Some(risen).filter(|risen| *risen >= 0.0)
    };
    let rate = |family: &str, with: &[(&str, &str)]| {
        let risen = risen(family, with)?;
        (span > 0.0).then(|| risen / span)
    };

    for (name, decimals, family, with) in RATES {
        add(
            (*name).to_owned(),
            Kind::Mean,
            *decimals,
            rate(family, with),
        );
    }

    for (class, is_in) in CLASSES {
        let is_in = |labels: &Labels| {
            let mut labels = labels.iter();
            labels.any(|(name, value)| name == "procedure" && is_in(value))
        };
        let (buckets, count) = now.histogram(DURATIONS, is_in);
        let (buckets_before, count_before) = before.histogram(DURATIONS, is_in);
        let count = count.saturating_sub(count_before);
        let each: Vec<(f64, u64)> = buckets
            .iter()
            .enumerate()
            .map(|(index, (bound, count))| {
                let before = buckets_before.get(index).map_or(0, |(_, count)| *count);
                (*bound, count.saturating_sub(before))
            })
            .collect();
        let per_second = (span > 0.0).then(|| count as f64 / span);
        add(
            format!("{class}_operations_per_second"),
            Kind::Mean,
            3,
            per_second,
        );
        for (percent, kind) in [(50, Kind::Mean), (99, Kind::Max)] {
            let value = quantile(&each, count, f64::from(percent) / 100.0);
            add(
                format!("{class}_latency_p{percent}_microseconds"),
                kind,
                0,
                value.map(|value| value * 1e6),
            );
        }
    }

    for (name, family) in GAUGES {
        add((*name).to_owned(), Kind::Last, 0, now.sum(family, &[]));
    }
    let found = risen("cairn_cache_hits_total", &[]).zip(risen("cairn_cache_misses_total", &[]));
    let found = found
        .and_then(|(hits, misses)| (hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses)));
    add("cache_hits_percent".to_owned(), Kind::Mean, 1, found);

    for disk in now.label_values("cairn_disk_total_bytes", "disk", DISKS_MAX) {
        let with: &[(&str, &str)] = &[("disk", &disk)];
        let operations = risen("cairn_disk_operations_total", with);
        let took = risen("cairn_disk_operation_microseconds_total", with);
        let mean = operations
            .zip(took)
            .and_then(|(count, took)| (count > 0.0).then(|| took / count));
        add(
            format!("disk_free_bytes:{disk}"),
            Kind::Last,
            0,
            now.sum("cairn_disk_free_bytes", with),
        );
        add(
            format!("disk_operations_per_second:{disk}"),
            Kind::Mean,
            3,
            rate("cairn_disk_operations_total", with),
        );
        add(
            format!("disk_latency_microseconds:{disk}"),
            Kind::Mean,
            0,
            mean,
        );
    }
    for volume in now.label_values("cairn_volume_file_bytes", "volume", VOLUMES_MAX) {
        let with: &[(&str, &str)] = &[("volume", &volume)];
        add(
            format!("volume_file_bytes:{volume}"),
            Kind::Last,
            0,
            now.sum("cairn_volume_file_bytes", with),
        );
        add(
            format!("volume_written_bytes_per_second:{volume}"),
            Kind::Mean,
            0,
            rate("cairn_volume_written_bytes_total", with),
        );
    }
    let limits = now.label_values("cairn_class_credit", "of", LIMITS_MAX);
    for volume in now.label_values("cairn_class_read_bytes_total", "volume", VOLUMES_MAX) {
        let with: &[(&str, &str)] = &[("volume", &volume)];
        add(
            format!("class_read_bytes_per_second:{volume}"),
            Kind::Mean,
            0,
            rate("cairn_class_read_bytes_total", with),
        );
        add(
            format!("class_written_bytes_per_second:{volume}"),
            Kind::Mean,
            0,
            rate("cairn_class_written_bytes_total", with),
        );
        // Of the limit with the least left: that one slows the volume first.
        let left = limits.iter().filter_map(|of| {
            let with: &[(&str, &str)] = &[("volume", &volume), ("of", of)];
            let credit = now.sum("cairn_class_credit", with)?;
            let full = now.sum("cairn_class_credit_max", with)?;
            (full > 0.0).then(|| 100.0 * credit / full)
        });
        add(
            format!("class_credit_percent:{volume}"),
            Kind::Last,
            1,
            left.min_by(f64::total_cmp),
        );
    }
    all
}

/// The value below which `share` of `count` lie, by cumulative buckets; values are taken to be spread evenly within a
/// bucket. `None` without any.
fn quantile(buckets: &[(f64, u64)], count: u64, share: f64) -> Option<f64> {
    if count == 0 {
        return None;
    }
    let wanted = (count as f64 * share).max(1.0);
    let (mut bound_before, mut count_before) = (0.0, 0_u64);
    for (bound, cumulative) in buckets {
        if *cumulative as f64 >= wanted {
            if !bound.is_finite() {
                return Some(bound_before);
            }
            let within = cumulative.saturating_sub(count_before).max(1) as f64;
            let part = ((wanted - count_before as f64) / within).clamp(0.0, 1.0);
            return Some(bound_before + (bound - bound_before) * part);
        }
        (bound_before, count_before) = (*bound, *cumulative);
    }
    // Above the last bound: the value is at least that bound.
    Some(bound_before)
}

/// A request to the thread of the store.
enum Ask {
    Row(Table, Row),
    List(oneshot::Sender<HistoryList>),
    Query(
        HistoryQuery,
        oneshot::Sender<Result<HistoryView, ControlError>>,
    ),
    /// Writes everything and ends.
    Stop(SyncSender<()>),
}

/// The samples of a node, and the channel to its store.
#[derive(Default)]
pub struct History {
    recent: Mutex<VecDeque<Arc<Sample>>>,
    kept: Mutex<Option<Arc<Sample>>>,
    table: Mutex<Option<Table>>,
    asks: Mutex<Option<SyncSender<Ask>>>,
}

impl History {
    fn ask(&self, ask: Ask) -> Result<(), ControlError> {
        let busy = || {
            ControlError::new(ErrorKind::Unavailable, "the history is not available now")
                .hint("its disk may be slow: try again")
        };
        let asks = self.asks.lock();
        asks.as_ref()
            .ok_or_else(busy)?
            .try_send(ask)
            .map_err(|_| busy())
    }

    /// Writes the pending rows, and ends the thread.
    pub fn stop(&self) {
        let Some(asks) = self.asks.lock().take() else {
            return;
        };
        let (done, ended) = sync_channel(1);
        if asks.try_send(Ask::Stop(done)).is_ok() {
            // A disk that hangs does not delay the end.
            let _ = ended.recv_timeout(ANSWER_TIMEOUT / 5);
        }
    }
}

/// Begins to keep numbers.
pub fn tend(inner: &Arc<NodeCore>) -> std::io::Result<()> {
    let (asks, asked) = sync_channel(ASKS_MAX);
    *inner.history.asks.lock() = Some(asks);
    let node = Arc::downgrade(inner);
    // A thread of its own: it waits for a disk, which may hang.
    let thread = std::thread::Builder::new().name("history".to_owned());
    thread.spawn(move || Keeper::new(node).run(&asked))?;
    // Rates need a sample before the first row.
    let sample = inner.sample();
    *inner.history.kept.lock() = Some(sample);
    let job = Job::every(
        "history",
        Duration::from_secs(SAMPLE_SECONDS.unsigned_abs()),
    );
    let job = job.first_after(until_next_step(inner.env.clock.now()));
    inner.start_job(job, |inner| async move {
        inner.keep_row();
        Next::After(until_next_step(inner.env.clock.now()))
    });
    Ok(())
}

/// The time until the next row.
fn until_next_step(now: Timestamp) -> Duration {
    let into = now.seconds.rem_euclid(SAMPLE_SECONDS).unsigned_abs();
    let into = Duration::new(into, now.nanos.min(999_999_999));
    let step = Duration::from_secs(SAMPLE_SECONDS.unsigned_abs());
    match SAMPLE_AFTER.checked_sub(into) {
        // The timer fired a moment early: the row of this step is still due.
        Some(wait) if !wait.is_zero() => wait,
        _ => (step + SAMPLE_AFTER).saturating_sub(into),
    }
}

impl NodeCore {
    fn sample(&self) -> Arc<Sample> {
        let at = self.env.clock.monotonic();
        Arc::new(Sample::of(at, &self.registry.gather()))
    }

    /// The numbers of the last seconds. The metrics are collected once a second, for any number of callers: their
    /// cost grows with each volume.
    fn numbers_now(&self) -> Vec<Number> {
        let at = self.env.clock.monotonic();
        let mut recent = self.history.recent.lock();
        while recent
            .front()
            .is_some_and(|old| at.saturating_sub(old.at) > LIVE_SPAN_MAX)
        {
            recent.pop_front();
        }
        let last = recent.back().cloned();
        let young = last.filter(|last| at.saturating_sub(last.at) < LIVE_SPAN_MIN);
        let now = match young {
            Some(young) => young,
            None => {
                // Under the lock: concurrent callers wait for this sample, and use it.
                let now = self.sample();
                recent.push_back(Arc::clone(&now));
                now
            }
        };
        let before = recent
            .iter()
            .find(|old| now.at.saturating_sub(old.at) >= LIVE_SPAN_MIN)
            .cloned();
        drop(recent);
        // The first caller has no sample of seconds ago: that of the last row serves instead.
        let before = before.or_else(|| self.history.kept.lock().clone());
        numbers(before.as_ref().unwrap_or(&now), &now)
    }

    fn keep_row(&self) {
        let now = self.sample();
        let before = self.history.kept.lock().replace(Arc::clone(&now));
        let Some(before) = before else { return };
        let all = numbers(&before, &now);
        let is_same = |table: &Table| {
            let all = all.iter().map(|number| &number.series);
            table.iter().eq(all)
        };
        let mut table = self.history.table.lock();
        let known = table.as_ref().filter(|table| is_same(table)).cloned();
        let known =
            known.unwrap_or_else(|| all.iter().map(|number| number.series.clone()).collect());
        *table = Some(Table::clone(&known));
        drop(table);
        let values = all.iter().map(|number| {
            let scale = 10_f64.powi(i32::from(number.series.decimals));
            // A value that is too large becomes the maximum.
            number.value.map(|value| (value * scale).round() as u64)
        });
        let row = Row {
            seconds: self.env.clock.now().seconds,
            values: values.collect(),
        };
        // A row without room in the queue is lost: its disk hangs.
        let _ = self.history.ask(Ask::Row(known, row));
    }
}

/// The state of the thread.
struct Keeper {
    node: Weak<NodeCore>,
    store: Option<Store>,
    problem: Option<String>,
    /// The time of the last attempt to open a store.
    tried: Option<std::time::Instant>,
    /// Rows that are not in the store yet, the oldest first.
    waiting: VecDeque<(Table, Row)>,
}

impl Keeper {
    fn new(node: Weak<NodeCore>) -> Self {
        Self {
            node,
            store: None,
            problem: None,
            tried: None,
            waiting: VecDeque::new(),
        }
    }

    fn run(mut self, asked: &Receiver<Ask>) {
        loop {
            let ask = match asked.recv_timeout(REOPEN_AFTER) {
                Ok(ask) => ask,
                Err(RecvTimeoutError::Timeout) if self.node.strong_count() > 0 => continue,
                Err(_) => return,
            };
            self.open_if_due();
            match ask {
                Ask::Row(table, row) => self.keep(table, row),
                Ask::List(answer) => {
                    let _ = answer.send(self.list());
                }
                Ask::Query(query, answer) => {
                    let _ = answer.send(self.query(query));
                }
                Ask::Stop(done) => {
                    if let Some(store) = &mut self.store
                        && let Err(error) = store.flush()
                    {
                        tracing::warn!(%error, "the last minute of the history is lost");
                    }
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn keep(&mut self, table: Table, row: Row) {
        if self.waiting.len() >= WAITING_ROWS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((table, row));
        let Some(store) = &mut self.store else { return };
        let node = self.node.upgrade();
        if node.is_some_and(|inner| !inner.has_room_at(store.folder())) {
            if self.problem.is_none() {
                tracing::warn!(folder = %store.folder().display(), "the history is kept in memory: its disk has no room");
                self.problem = Some(FULL.to_owned());
            }
            return;
        }
        if self.problem.take().is_some() {
            tracing::info!(folder = %store.folder().display(), "there is room for the history again");
        }
        while let Some((table, row)) = self.waiting.pop_front() {
            if let Err(error) = store.push(&table, row) {
                tracing::warn!(%error, "the history cannot be written");
                self.problem = Some(error.to_string());
                self.store = None;
                return;
            }
        }
    }

    /// Opens the store if there is none, or if its disk no longer works.
    fn open_if_due(&mut self) {
        let Some(inner) = self.node.upgrade() else {
            return;
        };
        let places = inner.history_places(false);
        if let Some(store) = &mut self.store {
            if places.iter().any(|place| place == store.folder()) {
                return;
            }
            // A failed disk gets no more calls: it may hang.
            let still_works = inner.history_places(true);
            if let Some(place) = places.first()
                && still_works.iter().any(|place| place == store.folder())
                && store.flush().is_ok()
            {
                carry_over(store.folder(), place);
            }
            self.store = None;
            self.tried = None;
        }
        let is_due = self
            .tried
            .is_none_or(|tried| tried.elapsed() >= REOPEN_AFTER);
        if !is_due {
            return;
        }
        self.tried = Some(std::time::Instant::now());
        let now_seconds = inner.env.clock.now().seconds;
        match open_newest(&places, now_seconds) {
            Ok(store) => {
                self.store = Some(store);
                self.problem = None;
            }
            Err(why) => {
                tracing::warn!(why, "there is no history");
                self.problem = Some(why);
            }
        }
    }

    fn list(&self) -> HistoryList {
        let settings = Settings::default();
        let store = self.store.as_ref();
        let series = store.map(Store::series).unwrap_or_default();
        HistoryList {
            series: series
                .into_iter()
                .map(|series| HistorySeriesName {
                    across: across(&series.name),
                    kind: kind_view(series.kind),
                    name: series.name,
                })
                .collect(),
            stored_bytes: store.map_or(0, Store::stored_bytes),
            stored_bytes_max: settings.bytes_max(),
            first_seconds: store.and_then(Store::first_seconds),
            folder: store.map_or_else(String::new, |store| store.folder().display().to_string()),
            problem: self.problem.clone(),
        }
    }

    fn query(&self, query: HistoryQuery) -> Result<HistoryView, ControlError> {
        let absent = || {
            let why = self
                .problem
                .clone()
                .unwrap_or_else(|| "no disk works".to_owned());
            ControlError::new(
                ErrorKind::Unavailable,
                format!("there is no history: {why}"),
            )
        };
        let store = self.store.as_ref().ok_or_else(absent)?;
        let now_seconds = self
            .node
            .upgrade()
            .map_or(query.to_seconds, |inner| inner.env.clock.now().seconds);
        let asked = Query {
            series: query.series.clone(),
            from_seconds: query.from_seconds,
            to_seconds: query.to_seconds,
            points: query.points,
        };
        let answer = store.query(&asked, now_seconds).map_err(|error| {
            ControlError::new(ErrorKind::Internal, error.to_string())
                .hint("the history's disk cannot be read")
        })?;
        let series = query.series.into_iter().zip(answer.series);
        let series = series.map(|(name, found)| match found {
            Some((kind, values)) => HistorySeries {
                across: across(&name),
                name,
                kind: kind_view(kind),
                values,
            },
            // There is no data of it in this period.
            None => HistorySeries {
                across: across(&name),
                name,
                kind: HistoryKind::Last,
                values: vec![None; usize::try_from(answer.steps).unwrap_or(0)],
            },
        });
        Ok(HistoryView {
            from_seconds: answer.from_seconds,
            step_seconds: answer.step_seconds,
            steps: answer.steps,
            series: series.collect(),
            silent: Vec::new(),
        })
    }
}

/// Copies the history to its new disk. Unreadable parts are lost.
fn carry_over(from: &Path, to: &Path) {
    let copied = (|| {
        make_below_disk(to, DEPTH)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok::<_, std::io::Error>(())
    })();
    match copied {
        Ok(()) => tracing::info!(to = %to.display(), "the history moved to another disk"),
        Err(error) => {
            tracing::warn!(%error, from = %from.display(), "the history of a disk that leaves is lost, or a part of it");
        }
    }
}

/// Opens the store with the newest row; without any, makes one at the first path.
fn open_newest(places: &[PathBuf], now_seconds: i64) -> Result<Store, String> {
    let mut newest: Option<Store> = None;
    let mut why = "no disk of this server works".to_owned();
    let mut first = None;
    for place in places {
        if !place.exists() {
            first = first.or(Some(place));
            continue;
        }
        match Store::open(place, Settings::default(), now_seconds) {
            Ok(store) => {
                let is_newer = newest
                    .as_ref()
                    .is_none_or(|best| store.last_seconds() > best.last_seconds());
                if is_newer {
                    newest = Some(store);
                }
            }
            Err(error) => why = error.to_string(),
        }
    }
    match (newest, first) {
        (Some(store), _) => Ok(store),
        (None, Some(place)) => {
            make_below_disk(place, DEPTH).map_err(|error| error.to_string())?;
            Store::open(place, Settings::default(), now_seconds).map_err(|error| error.to_string())
        }
        (None, None) => Err(why),
    }
}

fn kind_view(kind: Kind) -> HistoryKind {
    match kind {
        Kind::Mean => HistoryKind::Mean,
        Kind::Max => HistoryKind::Max,
        Kind::Last => HistoryKind::Last,
    }
}

impl NodeCore {
    /// Possible paths of the history.
    fn history_places(&self, with_leaving: bool) -> Vec<PathBuf> {
        let folders = self.working_folders(with_leaving).into_iter();
        folders
            .map(|folder| folder.join(HISTORY_NAME).join(BELOW))
            .collect()
    }

    /// Whether the disk with this path has room for optional data: the last of it is for starts, takeovers and deletions.
    pub(crate) fn has_room_at(&self, path: &Path) -> bool {
        let disks = self.pool.disks();
        let holds = |disk: &&Arc<ShardDisk>| {
            let folder = disk.disk().folder();
            folder.is_some_and(|folder| path.starts_with(folder))
        };
        // A call on an unresponsive disk would not return.
        let Some(disk) = disks.iter().find(holds).filter(|disk| !disk.is_silent()) else {
            return true;
        };
        let space = disk.disk().space();
        space.is_ok_and(|space| cairn_pool::has_room_to_spare(space, SPARE_BYTES))
    }

    /// Folders of disks of this server that work and, unless `with_leaving`, stay; those that the configuration names
    /// first.
    pub(crate) fn working_folders(&self, with_leaving: bool) -> Vec<PathBuf> {
        let mut disks = self.pool.disks();
        let state = self.pool.state();
        let leaves = |id| {
            let mut members = state.disks.iter();
            members.any(|member| member.id == id && member.draining)
        };
        disks.retain(|disk| !disk.health().failed && (with_leaving || !leaves(disk.id())));
        let folders = disks.iter().filter_map(|disk| disk.disk().folder());
        let mut folders: Vec<&Path> = folders.collect();
        folders.sort_by_key(|folder| {
            let mut named = self.named.iter();
            named
                .position(|place| place == folder)
                .unwrap_or(usize::MAX)
        });
        folders.into_iter().map(Path::to_owned).collect()
    }
}

async fn answered<T>(answer: oneshot::Receiver<T>) -> Result<T, ControlError> {
    let late = || {
        ControlError::new(ErrorKind::Unavailable, "the history does not answer")
            .hint("its disk may be slow: try again")
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(late()),
    }
}

impl LiveControl for Controller {
    fn live(&self) -> Answer<'_, LiveView> {
        Box::pin(async {
            let status = self.overview();
            let is_working = |state: DiskState| !state.is_lost();
            let working = status.disks.iter().filter(|disk| is_working(disk.state));
            let numbers = self.inner.numbers_now().into_iter();
            Ok(LiveView {
                now_seconds: self.inner.env.clock.now().seconds,
                pid: status.pid,
                version: status.version,
                uptime_seconds: status.uptime_seconds,
                health: status.health,
                summary: status.summary,
                warnings: status.warnings,
                pool: status.pool,
                memory: status.memory,
                rebuild: convert::rebuild(self.inner.pool.rebuild_status()),
                scrub: convert::scrub(self.inner.pool.scrub_progress()),
                disk_count: status.disks.len() as u64,
                disks_working: working.count() as u64,
                volume_count: self.inner.pool.state().all_volumes().count() as u64,
                node: self.inner.cluster.as_ref().map(|cluster| {
                    let membership = cluster.membership.lock();
                    membership.node_name.clone()
                }),
                missing_parts: self.extras.missing(),
                last_event_id: self.inner.events.last_id(),
                numbers: numbers
                    .filter_map(|number| {
                        Some(LiveNumber {
                            across: across(&number.series.name),
                            name: number.series.name,
                            value: number.value?,
                        })
                    })
                    .collect(),
                silent: Vec::new(),
            })
        })
    }

    fn mounts(&self) -> Answer<'_, Vec<MountView>> {
        Box::pin(async {
            let all = self.inner.mounts.get().map(|mounts| mounts());
            let views = all.into_iter().flatten().map(|(client, path)| MountView {
                client,
                path: String::from_utf8_lossy(&path).into_owned(),
            });
            Ok(views.collect())
        })
    }

    fn history_list(&self) -> Answer<'_, HistoryList> {
        Box::pin(async {
            let (answer, answering) = oneshot::channel();
            self.inner.history.ask(Ask::List(answer))?;
            answered(answering).await
        })
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, HistoryView> {
        Box::pin(async move {
            let (answer, answering) = oneshot::channel();
            self.inner.history.ask(Ask::Query(query, answer))?;
            answered(answering).await?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_the_clock_has_one_row() {
        let cases = [
            ((100, 0), 200),
            ((100, 199_000_000), 1),
            ((100, 200_000_000), 10_000),
            ((100, 201_000_000), 9_999),
            ((109, 999_000_000), 201),
            ((-1, 0), 1_200),
        ];
        for ((seconds, nanos), want) in cases {
            let wait = until_next_step(Timestamp::new(seconds, nanos));
            assert_eq!(wait, Duration::from_millis(want), "{seconds} {nanos}");
        }
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let buckets = [(1.0, 0), (2.0, 50), (4.0, 99), (8.0, 100)];
        let cases = [
            (0.5, Some(2.0)),
            (0.25, Some(1.5)),
            (0.99, Some(4.0)),
            (1.0, Some(8.0)),
        ];
        for (share, want) in cases {
            assert_eq!(quantile(&buckets, 100, share), want, "{share}");
        }
        assert_eq!(quantile(&buckets, 0, 0.5), None);
        // More than the last bucket has: at least its bound.
        assert_eq!(quantile(&buckets, 200, 0.99), Some(8.0));
        assert_eq!(quantile(&[], 3, 0.5), Some(0.0));
    }

    #[test]
    fn rates_follow_from_two_samples() {
        let sample = |seconds, read: f64| {
            let mut sample = Sample::of(Duration::from_secs(seconds), &[]);
            let labels = |disk: &str| vec![("disk".to_owned(), disk.to_owned())];
            let mut set = |family: &str, of: Vec<(Labels, f64)>| {
                sample.values.insert(family.to_owned(), of);
            };
            set("cairn_nfs_read_bytes_total", vec![(Vec::new(), read)]);
            set(
                "cairn_disk_total_bytes",
                vec![(labels("a"), 10.0), (labels("b"), 20.0)],
            );
            let volume = || ("volume".to_owned(), "v".to_owned());
            let of = |of: &str| vec![volume(), ("of".to_owned(), of.to_owned())];
            set("cairn_class_read_bytes_total", vec![(vec![volume()], read)]);
            set(
                "cairn_class_credit",
                vec![(of("throughput"), 30.0), (of("iops"), 5.0)],
            );
            set(
                "cairn_class_credit_max",
                vec![(of("throughput"), 60.0), (of("iops"), 50.0)],
            );
            sample
        };
        let value = |before: &Sample, now: &Sample, name: &str| {
            let all = numbers(before, now);
            let found = all.iter().find(|number| number.series.name == name);
            found.and_then(|number| number.value)
        };
        let (first, second) = (sample(0, 100.0), sample(10, 600.0));
        let rate = "nfs_read_bytes_per_second";
        assert_eq!(value(&first, &second, rate), Some(50.0));
        let of_class = |name| value(&first, &second, name);
        assert_eq!(of_class("class_read_bytes_per_second:v"), Some(50.0));
        assert_eq!(of_class("class_credit_percent:v"), Some(10.0));
        // The server was restarted between them.
        assert_eq!(value(&sample(0, 1000.0), &second, rate), None);
        assert_eq!(value(&first, &first, rate), None);
        assert_eq!(value(&first, &second, "pool_total_bytes"), Some(30.0));
        assert_eq!(value(&first, &second, "disk_latency_microseconds:a"), None);
        // All can be kept.
        let all = numbers(&first, &second);
        let series: Vec<Series> = all.into_iter().map(|number| number.series).collect();
        assert!(cairn_history::format::is_table(&series));
    }
}
