//! Which request may begin when: the rates of all volumes that have some, and who waits.
//!
//! Owns: the order of those who wait, what a request is charged to, lending.
//! Must not know: the clock, threads, how who waits is told.
//!
//! Clients of a volume take turns by the bytes that they got (start-time fair queuing), and so do reads and writes of one
//! client: one of them at its limit does not hold up the other. Volumes of a class with a total take turns in the same way,
//! in proportion to their own rates. The rest of the total goes to volumes that want more than their own rate: that is the
//! lending. It is taken from the same bucket as everything else, so nothing is promised twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::settings::ClassName;

use crate::bucket::{Bucket, Rate};
use crate::client::{Client, Who};
use crate::limits::{DIMENSIONS, KINDS, Kind, Limits, Operation, PartOf, PartRates, Rates};

/// Clients of a volume that are remembered beyond what they have waiting; those that owe nothing are the same as new ones.
const CLIENTS_KEPT: usize = 1024;
/// Requests of a flow among which those that nobody waits for any more are looked for.
const FLOW_SWEPT_COUNT: usize = 1024;
/// The least that a turn counts, in bytes.
const TURN_BYTES_MIN: u64 = 4096;
/// Rates that are shown are of about so long.
const METER_SECONDS: f64 = 1.0;
const METER_STEP: Duration = Duration::from_millis(20);

/// Who waits to begin.
pub trait Waiter {
    /// Nobody waits any more.
    fn is_gone(&self) -> bool;
}

/// A rate as it is seen from outside: of about the last second.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    rate: f64,
    /// As of when.
    at: Duration,
    /// What came since, and is not in the rate yet: an exponential for each request would be most of what it pays here.
    since: f64,
}

impl Meter {
    fn add(&mut self, count: f64, now: Duration) {
        self.since += count;
        if now.saturating_sub(self.at) >= METER_STEP {
            self.rate = self.read(now);
            (self.at, self.since) = (now, 0.0);
        }
    }

    fn read(&self, now: Duration) -> f64 {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.rate * (-elapsed / METER_SECONDS).exp() + self.since / METER_SECONDS
    }
}

struct Queued<W> {
    /// As it came: limits of parts may come and go while it waits.
    client: Client,
    operation: Operation,
    since: Duration,
    waiter: W,
}

/// Requests of one kind of one client.
struct Flow<W> {
    queue: VecDeque<Queued<W>>,
    /// Where its next turn begins, in bytes that others got.
    turn: u64,
    /// With so many it is swept.
    sweep_count: usize,
}

type FlowKey = (Client, Kind);

/// What a client may have of one volume.
#[derive(Default)]
struct Own {
    bytes: Option<Bucket>,
    operations: Option<Bucket>,
}

impl Own {
    fn each(&mut self, operation: Operation) -> impl Iterator<Item = (&mut Bucket, f64)> {
        let bytes = operation.len_bytes as f64;
        let count = operation.count() as f64;
        let all = [
            (self.bytes.as_mut(), bytes),
            (self.operations.as_mut(), count),
        ];
        all.into_iter()
            .filter_map(|(bucket, cost)| Some((bucket?, cost)))
            .filter(|(_, cost)| *cost > 0.0)
    }
}

/// What a part of a volume may have.
struct PartBuckets {
    of: PartOf,
    buckets: [Option<Bucket>; DIMENSIONS.len()],
    bytes: Meter,
    operations: Meter,
}

impl PartBuckets {
    /// The buckets from now on, with the debts of the former ones.
    fn of(limits: &PartRates, before: Option<Self>, now: Duration) -> Self {
        let mut part = before.unwrap_or_else(|| Self {
            of: limits.of,
            buckets: Default::default(),
            bytes: Meter::default(),
            operations: Meter::default(),
        });
        set_buckets(&mut part.buckets, &limits.rates, true, now);
        part
    }
}

/// The buckets that an operation is charged to, what it costs there, and whether that is bytes.
fn each(
    buckets: &mut [Option<Bucket>; DIMENSIONS.len()],
    operation: Operation,
) -> impl Iterator<Item = (&mut Bucket, f64, bool)> {
    let all = buckets.iter_mut().zip(DIMENSIONS);
    all.filter_map(move |(bucket, dimension)| {
        let cost = dimension.cost(operation);
        let bucket = bucket.as_mut().filter(|_| cost > 0.0)?;
        Some((bucket, cost, dimension.is_bytes))
    })
}

fn set_buckets(
    buckets: &mut [Option<Bucket>; DIMENSIONS.len()],
    rates: &Rates,
    has_credit: bool,
    now: Duration,
) {
    for (bucket, rate) in buckets.iter_mut().zip(rates) {
        match (bucket.as_mut(), rate) {
            (Some(bucket), Some(rate)) => bucket.set_rate(*rate, now),
            (_, rate) => *bucket = rate.map(|rate| new_bucket(rate, has_credit, now)),
        }
    }
}

/// Counts of operations that began, and how long they waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    read_bytes: u64,
    written_bytes: u64,
    operations: u64,
    delayed: u64,
    delayed_time: Duration,
}

struct Volume<W> {
    limits: Limits,
    buckets: [Option<Bucket>; DIMENSIONS.len()],
    meters: [Meter; DIMENSIONS.len()],
    /// Its saved credit has been added.
    has_credit: bool,
    clients: HashMap<Who, Own>,
    /// As in the limits.
    parts: Vec<PartBuckets>,
    /// With so many of them those are forgotten that are as new ones.
    clients_sweep_count: usize,
    flows_sweep_count: usize,
    flows: HashMap<FlowKey, Flow<W>>,
    /// Clients with requests that wait, by kind, those whose turn is first in front.
    order: [BTreeSet<(u64, Client)>; KINDS.len()],
    waiting: usize,
    turn: u64,
    /// Where its next turn begins among volumes of its class.
    class_turn: f64,
    counts: Counts,
}

/// All volumes of a class that has a total.
struct Group {
    bucket: Bucket,
    turn: f64,
}

/// One limit of a volume, as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitReport {
    pub name: &'static str,
    pub is_bytes: bool,
    pub rate: Rate,
    pub now: f64,
    /// The remaining credit.
    pub credit: f64,
}

impl LimitReport {
    /// How long the credit lasts if all goes on as now; `None`: it is not being spent.
    pub fn ends_in(&self) -> Option<Duration> {
        let spent = self.now - self.rate.baseline;
        let is_spent = self.rate.has_burst() && spent > self.rate.baseline * 0.01;
        is_spent.then(|| Duration::from_secs_f64((self.credit / spent).min(1e9)))
    }
}

/// A volume as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub class: Option<ClassName>,
    pub limits: Vec<LimitReport>,
    /// Bytes and operations per second of the parts that have limits, in their order.
    pub parts: Vec<(f64, f64)>,
    pub client_bytes: Option<f64>,
    pub client_operations: Option<f64>,
    pub total_bytes: Option<f64>,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
    pub operations_per_second: f64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub operations: u64,
    pub waiting: u64,
    /// Operations that had to wait before they began, and for how long together.
    pub delayed: u64,
    pub delayed_time: Duration,
}

impl<W: Waiter> Volume<W> {
    fn new(limits: Limits, now: Duration) -> Self {
        // Credit comes when the saved credit is known.
        let buckets = limits
            .rates
            .map(|rate| rate.map(|rate| new_bucket(rate, false, now)));
        let parts = limits.parts.iter();
        Self {
            buckets,
            parts: parts.map(|part| PartBuckets::of(part, None, now)).collect(),
            limits,
            meters: Default::default(),
            has_credit: false,
            clients: HashMap::new(),
            clients_sweep_count: CLIENTS_KEPT,
            flows_sweep_count: CLIENTS_KEPT,
            flows: HashMap::new(),
            order: Default::default(),
            waiting: 0,
            turn: 0,
            class_turn: 0.0,
            counts: Counts::default(),
        }
    }

    fn set(&mut self, limits: Limits, now: Duration) {
        set_buckets(&mut self.buckets, &limits.rates, self.has_credit, now);
        let mut before = std::mem::take(&mut self.parts);
        let parts = limits.parts.iter().map(|part| {
            let same = before.iter().position(|there| there.of == part.of);
            PartBuckets::of(part, same.map(|at| before.swap_remove(at)), now)
        });
        self.parts = parts.collect();
        let is_same = limits.client_bytes == self.limits.client_bytes
            && limits.client_operations == self.limits.client_operations;
        if !is_same {
            self.clients.clear();
        }
        self.limits = limits;
    }

    fn refill(&mut self, now: Duration) {
        self.buckets
            .iter_mut()
            .flatten()
            .for_each(|bucket| bucket.refill(now));
    }

    /// The parts that a client asks for.
    fn parts_of(&mut self, client: Client) -> impl Iterator<Item = &mut PartBuckets> {
        let parts = self.parts.iter_mut();
        parts.filter(move |part| part.of.holds(&client))
    }

    /// Whether anything limits an operation at all.
    fn concerns(&self, operation: Operation) -> bool {
        let has = |(bucket, dimension): (&Option<Bucket>, crate::limits::Dimension)| {
            bucket.is_some() && dimension.cost(operation) > 0.0
        };
        let mut parts = self.parts.iter();
        if parts.any(|part| part.buckets.iter().zip(DIMENSIONS).any(has)) {
            return true;
        }
        let is_of_client = (self.limits.client_operations.is_some() && operation.count() > 0)
            || (self.limits.client_bytes.is_some() && operation.len_bytes > 0);
        let is_of_class = self.limits.total_bytes.is_some() && operation.len_bytes > 0;
        is_of_client || is_of_class || self.buckets.iter().zip(DIMENSIONS).any(has)
    }

    fn own(&mut self, client: Client, now: Duration) -> Option<&mut Own> {
        let (bytes, operations) = (self.limits.client_bytes, self.limits.client_operations);
        if bytes.is_none() && operations.is_none() {
            return None;
        }
        if self.clients.len() >= self.clients_sweep_count
            && !self.clients.contains_key(&client.who())
        {
            self.clients.retain(|_, own| {
                let mut buckets = [&mut own.bytes, &mut own.operations].into_iter().flatten();
                buckets.any(|bucket| {
                    bucket.refill(now);
                    !bucket.is_full()
                })
            });
            self.clients_sweep_count = (2 * self.clients.len()).max(CLIENTS_KEPT);
        }
        let make = |rate: Option<f64>| Some(Bucket::new(Rate::steady(rate?), 1.0, now));
        let own = self.clients.entry(client.who()).or_insert_with(|| Own {
            bytes: make(bytes),
            operations: make(operations),
        });
        let buckets = [&mut own.bytes, &mut own.operations].into_iter().flatten();
        buckets.for_each(|bucket| bucket.refill(now));
        Some(own)
    }

    /// Whether an operation may begin by the volume's own rates and those of its client.
    fn may_begin(&mut self, client: Client, operation: Operation, now: Duration) -> bool {
        for (bucket, ..) in each(&mut self.buckets, operation) {
            bucket.refill(now);
            if !bucket.is_ready() {
                return false;
            }
        }
        self.wait_of(client, operation, now).is_zero()
    }

    /// How long an operation of any client has to wait: by the volume's own rates, or with its bytes lent.
    fn wait(&mut self, operation: Operation, is_lent: bool) -> Duration {
        let waits = each(&mut self.buckets, operation);
        let waits = waits.map(|(bucket, _, is_bytes)| match is_lent && is_bytes {
            true => bucket.wait_lent(),
            false => bucket.wait(),
        });
        waits.max().unwrap_or_default()
    }

    /// How long an operation has to wait for the limits of its client and of the part that it uses.
    fn wait_of(&mut self, client: Client, operation: Operation, now: Duration) -> Duration {
        let parts = self.parts_of(client);
        let waits = parts.flat_map(|part| each(&mut part.buckets, operation));
        let waits = waits.map(|(bucket, ..)| {
            bucket.refill(now);
            bucket.wait()
        });
        let of_parts = waits.max().unwrap_or_default();
        let Some(own) = self.own(client, now) else {
            return of_parts;
        };
        let waits = own.each(operation).map(|(bucket, _)| bucket.wait());
        waits.max().unwrap_or_default().max(of_parts)
    }

    fn charge(&mut self, client: Client, operation: Operation, is_lent: bool, now: Duration) {
        for (bucket, cost, is_bytes) in each(&mut self.buckets, operation) {
            match is_lent && is_bytes {
                true => bucket.charge_lent(cost),
                false => bucket.charge(cost),
            }
        }
        if let Some(own) = self.own(client, now) {
            own.each(operation)
                .for_each(|(bucket, cost)| bucket.charge(cost));
        }
        for part in self.parts_of(client) {
            each(&mut part.buckets, operation).for_each(|(bucket, cost, _)| bucket.charge(cost));
            part.bytes.add(operation.len_bytes as f64, now);
            part.operations.add(operation.count() as f64, now);
        }
        self.count(operation, now);
    }

    fn count(&mut self, operation: Operation, now: Duration) {
        for (meter, dimension) in self.meters.iter_mut().zip(DIMENSIONS) {
            let cost = dimension.cost(operation);
            if cost > 0.0 {
                meter.add(cost, now);
            }
        }
        let counts = &mut self.counts;
        counts.operations += operation.count();
        match operation.kind {
            Kind::Read => counts.read_bytes += operation.len_bytes,
            Kind::Write => counts.written_bytes += operation.len_bytes,
            Kind::Other => {}
        }
    }

    /// Whose turn a request takes. A client has one for each part of it that has limits, so that one at its limit holds up no
    /// other; parts without limits are no reason to get more turns than others.
    fn turn_of(&self, client: Client) -> Client {
        let mut turn = client.without_parts();
        for part in self.parts.iter().filter(|part| part.of.holds(&client)) {
            match part.of {
                PartOf::Named(part) => turn = turn.of(part),
                PartOf::Clients(_) => turn = turn.from(client.address),
            }
        }
        turn
    }

    fn queue(&mut self, queued: Queued<W>) {
        let turn = self.turn;
        let client = self.turn_of(queued.client);
        if self.flows.len() >= self.flows_sweep_count {
            self.flows
                .retain(|_, flow| !flow.queue.is_empty() || flow.turn > turn);
            self.flows_sweep_count = (2 * self.flows.len()).max(CLIENTS_KEPT);
        }
        let kind = queued.operation.kind;
        let flow = self.flows.entry((client, kind)).or_insert(Flow {
            queue: VecDeque::new(),
            turn,
            sweep_count: FLOW_SWEPT_COUNT,
        });
        if flow.queue.len() >= flow.sweep_count {
            // A client that connects again and again leaves any number of them.
            let before = flow.queue.len();
            flow.queue.retain(|queued| !queued.waiter.is_gone());
            self.waiting -= before - flow.queue.len();
            flow.sweep_count = (2 * flow.queue.len()).max(FLOW_SWEPT_COUNT);
        }
        if flow.queue.is_empty() {
            // It may be there still, if all that waited was swept.
            self.order[kind as usize].remove(&(flow.turn, client));
            flow.turn = flow.turn.max(turn);
            self.order[kind as usize].insert((flow.turn, client));
        }
        flow.queue.push_back(queued);
        self.waiting += 1;
    }

    /// The first of a flow that somebody still waits for.
    fn head(&mut self, key: FlowKey) -> Option<(Client, Operation)> {
        let flow = self.flows.get_mut(&key)?;
        while let Some(queued) = flow.queue.front() {
            if !queued.waiter.is_gone() {
                return Some((queued.client, queued.operation));
            }
            flow.queue.pop_front();
            self.waiting -= 1;
        }
        None
    }

    /// The next who may begin, of those whose turn is first; and how long until there is one.
    fn next(&mut self, is_lent: bool, now: Duration) -> Result<FlowKey, Option<Duration>> {
        let mut due = None;
        let mut best: Option<(u64, FlowKey)> = None;
        for kind in KINDS {
            let mut from = Bound::Unbounded;
            loop {
                let order = &self.order[kind as usize];
                let next = order.range((from, Bound::Unbounded)).next().copied();
                let Some((turn, client)) = next else { break };
                if best.is_some_and(|(least, _)| least <= turn) {
                    break;
                }
                let key = (client, kind);
                let Some((asks, operation)) = self.head(key) else {
                    self.order[kind as usize].remove(&(turn, client));
                    continue;
                };
                let wait = self.wait(operation, is_lent);
                if !wait.is_zero() {
                    // All others of the kind wait for the same.
                    due = sooner(due, Some(wait));
                    break;
                }
                match self.wait_of(asks, operation, now) {
                    Duration::ZERO => {
                        best = Some((turn, key));
                        break;
                    }
                    wait => due = sooner(due, Some(wait)),
                }
                from = Bound::Excluded((turn, client));
            }
        }
        best.map(|(_, key)| key).ok_or(due)
    }

    /// Lets the first of a flow begin.
    fn grant(&mut self, key: FlowKey, is_lent: bool, now: Duration) -> Option<Queued<W>> {
        let (client, kind) = key;
        let flow = self.flows.get_mut(&key)?;
        let queued = flow.queue.pop_front()?;
        let order = &mut self.order[kind as usize];
        order.remove(&(flow.turn, client));
        self.turn = self.turn.max(flow.turn);
        let turn = queued.operation.len_bytes.max(TURN_BYTES_MIN);
        flow.turn = flow.turn.saturating_add(turn);
        if !flow.queue.is_empty() {
            order.insert((flow.turn, client));
        }
        self.waiting -= 1;
        self.counts.delayed += 1;
        self.counts.delayed_time += now.saturating_sub(queued.since);
        self.charge(queued.client, queued.operation, is_lent, now);
        Some(queued)
    }

    /// Lets all begin who may.
    fn pump(&mut self, now: Duration, granted: &mut Vec<W>) -> Option<Duration> {
        while self.waiting > 0 {
            match self.next(false, now) {
                Ok(key) => granted.extend(self.grant(key, false, now).map(|queued| queued.waiter)),
                Err(due) => return due,
            }
        }
        None
    }

    fn report(&mut self, now: Duration) -> Report {
        self.refill(now);
        let limits = self.buckets.iter().zip(DIMENSIONS).zip(&self.meters);
        let limits = limits.filter_map(|((bucket, dimension), meter)| {
            let bucket = bucket.as_ref()?;
            Some(LimitReport {
                name: dimension.name,
                is_bytes: dimension.is_bytes,
                rate: bucket.rate(),
                now: meter.read(now),
                credit: bucket.credit(),
            })
        });
        let parts = self.parts.iter();
        let parts = parts.map(|part| (part.bytes.read(now), part.operations.read(now)));
        let [_, read, write, operations, ..] = self.meters.map(|meter| meter.read(now));
        Report {
            class: self.limits.class.clone(),
            limits: limits.collect(),
            parts: parts.collect(),
            client_bytes: self.limits.client_bytes,
            client_operations: self.limits.client_operations,
            total_bytes: self.limits.total_bytes,
            read_bytes_per_second: read,
            written_bytes_per_second: write,
            operations_per_second: operations,
            read_bytes: self.counts.read_bytes,
            written_bytes: self.counts.written_bytes,
            operations: self.counts.operations,
            waiting: self.waiting as u64,
            delayed: self.counts.delayed,
            delayed_time: self.counts.delayed_time,
        }
    }
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// All credit at once, or only enough to begin.
fn new_bucket(rate: Rate, has_credit: bool, now: Duration) -> Bucket {
    let part = match has_credit || !rate.has_burst() {
        true => 1.0,
        false => 0.0,
    };
    Bucket::new(rate, part, now)
}

/// All volumes that have limits.
pub struct Scheduler<W> {
    volumes: BTreeMap<VolumeId, Volume<W>>,
    groups: BTreeMap<ClassName, Group>,
}

impl<W> Default for Scheduler<W> {
    fn default() -> Self {
        Self {
            volumes: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }
}

impl<W: Waiter> Scheduler<W> {
    /// The limits of all volumes that have some. Those that had, and have none any more: who waits for them may begin.
    pub fn set(&mut self, limits: BTreeMap<VolumeId, Limits>, now: Duration, granted: &mut Vec<W>) {
        let mut totals: BTreeMap<ClassName, f64> = BTreeMap::new();
        for (id, limits) in &limits {
            if let (Some(class), Some(total)) = (&limits.class, limits.total_bytes) {
                totals.insert(class.clone(), total);
            }
            match self.volumes.get_mut(id) {
                Some(volume) if volume.limits == *limits => {}
                Some(volume) => {
                    volume.set(limits.clone(), now);
                    volume.class_turn = 0.0;
                }
                None => {
                    self.volumes.insert(*id, Volume::new(limits.clone(), now));
                }
            }
        }
        let gone: Vec<VolumeId> = self.volumes.keys().copied().collect();
        for id in gone.into_iter().filter(|id| !limits.contains_key(id)) {
            let volume = self.volumes.remove(&id);
            let flows = volume.into_iter().flat_map(|volume| volume.flows);
            let queues = flows.flat_map(|(_, flow)| flow.queue);
            granted.extend(queues.map(|queued| queued.waiter));
        }
        self.groups.retain(|class, _| totals.contains_key(class));
        for (class, total) in totals {
            let rate = Rate::steady(total);
            match self.groups.get_mut(&class) {
                Some(group) if group.bucket.rate() == rate => {}
                Some(group) => group.bucket.set_rate(rate, now),
                None => {
                    let bucket = Bucket::new(rate, 1.0, now);
                    self.groups.insert(class, Group { bucket, turn: 0.0 });
                }
            }
        }
    }

    /// Lets an operation begin, if it may at once.
    pub fn admit(
        &mut self,
        id: VolumeId,
        client: Client,
        operation: Operation,
        now: Duration,
    ) -> bool {
        let Some(volume) = self.volumes.get_mut(&id) else {
            return true;
        };
        if volume.waiting > 0 && volume.concerns(operation) {
            return false;
        }
        if volume.limits.total_bytes.is_some() && operation.len_bytes > 0 {
            return self.admit_shared(id, client, operation, now);
        }
        let is_let = volume.may_begin(client, operation, now);
        if is_let {
            volume.charge(client, operation, false, now);
        }
        is_let
    }

    /// Lets an operation of a volume that shares a total with others begin, if it may at once.
    fn admit_shared(
        &mut self,
        id: VolumeId,
        client: Client,
        operation: Operation,
        now: Duration,
    ) -> bool {
        let Some(volume) = self.volumes.get(&id) else {
            return true;
        };
        let Some(class) = &volume.limits.class else {
            return true;
        };
        if self.waits_in(class) {
            return false;
        }
        let Some(group) = self.groups.get_mut(class) else {
            return true;
        };
        group.bucket.refill(now);
        let Some(volume) = self.volumes.get_mut(&id) else {
            return true;
        };
        if !group.bucket.is_ready() {
            return false;
        }
        let is_own = volume.may_begin(client, operation, now);
        if !is_own {
            volume.refill(now);
            let is_lent = volume.wait(operation, true).is_zero();
            if !is_lent || !volume.wait_of(client, operation, now).is_zero() {
                return false;
            }
        }
        group.bucket.charge(operation.len_bytes as f64);
        volume.charge(client, operation, !is_own, now);
        true
    }

    fn waits_in(&self, class: &ClassName) -> bool {
        let mut volumes = self.volumes.values();
        volumes.any(|volume| volume.waiting > 0 && volume.limits.class.as_ref() == Some(class))
    }

    /// Has an operation wait for its turn. Look with [`Self::pump_of`] whether that is now, and with [`Self::pump`] when.
    pub fn queue(
        &mut self,
        id: VolumeId,
        client: Client,
        operation: Operation,
        waiter: W,
        now: Duration,
    ) -> Result<(), W> {
        let Some(volume) = self.volumes.get_mut(&id) else {
            return Err(waiter);
        };
        let queued = Queued {
            client,
            operation,
            since: now,
            waiter,
        };
        volume.queue(queued);
        Ok(())
    }

    /// Lets all of a volume begin who may, and of those that share a total with it.
    pub fn pump_of(&mut self, id: VolumeId, now: Duration, granted: &mut Vec<W>) {
        let Some(volume) = self.volumes.get_mut(&id) else {
            return;
        };
        volume.refill(now);
        match (&volume.limits.class, volume.limits.total_bytes) {
            (Some(class), Some(_)) => {
                let class = class.clone();
                self.pump_class(&class, now, granted);
            }
            _ => {
                volume.pump(now, granted);
            }
        }
    }

    /// Lets all begin who may; says how long it is until the next one may.
    pub fn pump(&mut self, now: Duration, granted: &mut Vec<W>) -> Option<Duration> {
        let mut due = None;
        let mut shared = BTreeSet::new();
        for volume in self.volumes.values_mut() {
            if volume.waiting == 0 {
                continue;
            }
            match (&volume.limits.class, volume.limits.total_bytes) {
                (Some(class), Some(_)) => {
                    shared.insert(class.clone());
                }
                _ => {
                    volume.refill(now);
                    due = sooner(due, volume.pump(now, granted));
                }
            }
        }
        for class in shared {
            due = sooner(due, self.pump_class(&class, now, granted));
        }
        due
    }

    fn pump_class(
        &mut self,
        class: &ClassName,
        now: Duration,
        granted: &mut Vec<W>,
    ) -> Option<Duration> {
        let group = self.groups.get_mut(class)?;
        group.bucket.refill(now);
        let members = self.volumes.values_mut();
        let members = members
            .filter(|volume| volume.waiting > 0 && volume.limits.class.as_ref() == Some(class));
        members.for_each(|volume| volume.refill(now));
        loop {
            let waits = group.bucket.wait();
            let mut due = None;
            let mut best: Option<(f64, VolumeId, FlowKey)> = None;
            // First the volume's own rate, then the rest of others.
            let mut is_lent = false;
            for lent in [false, true] {
                let members = self.volumes.iter_mut();
                let members = members.filter(|(_, volume)| {
                    volume.waiting > 0 && volume.limits.class.as_ref() == Some(class)
                });
                for (id, volume) in members {
                    match volume.next(lent, now) {
                        Ok(key) if best.is_none_or(|(least, ..)| volume.class_turn < least) => {
                            best = Some((volume.class_turn, *id, key));
                        }
                        Ok(_) => {}
                        Err(wait) => due = sooner(due, wait),
                    }
                }
                if best.is_some() {
                    is_lent = lent;
                    break;
                }
            }
            let Some((_, id, key)) = best else {
                return due;
            };
            if !waits.is_zero() {
                return Some(waits);
            }
            let volume = self.volumes.get_mut(&id)?;
            let Some(queued) = volume.grant(key, is_lent, now) else {
                continue;
            };
            let len_bytes = queued.operation.len_bytes;
            group.bucket.charge(len_bytes as f64);
            let begins = volume.class_turn.max(group.turn);
            let turn = len_bytes.max(TURN_BYTES_MIN) as f64;
            volume.class_turn = begins + turn / volume.limits.weight();
            group.turn = begins;
            granted.push(queued.waiter);
        }
    }

    /// Who waits there.
    pub fn waiting(&self) -> usize {
        self.volumes.values().map(|volume| volume.waiting).sum()
    }

    pub fn report(&mut self, id: VolumeId, now: Duration) -> Option<Report> {
        Some(self.volumes.get_mut(&id)?.report(now))
    }

    /// Volumes with credit whose saved credit is not known yet.
    pub fn without_credit(&self) -> Vec<VolumeId> {
        let volumes = self.volumes.iter();
        let without = volumes.filter(|(_, volume)| {
            let mut rates = volume.limits.rates.iter().flatten();
            !volume.has_credit && rates.any(Rate::has_burst)
        });
        without.map(|(id, _)| *id).collect()
    }

    /// The credit of a volume by what it is of; `None`: it has none, or that is not known yet.
    pub fn credit(&mut self, id: VolumeId, now: Duration) -> Option<BTreeMap<&'static str, f64>> {
        let volume = self
            .volumes
            .get_mut(&id)
            .filter(|volume| volume.has_credit)?;
        volume.refill(now);
        let buckets = volume.buckets.iter().zip(DIMENSIONS);
        let credit: BTreeMap<&'static str, f64> = buckets
            .filter_map(|(bucket, dimension)| Some((dimension.name, bucket.as_ref()?)))
            .filter(|(_, bucket)| bucket.rate().has_burst())
            .map(|(name, bucket)| (name, bucket.credit()))
            .collect();
        (!credit.is_empty()).then_some(credit)
    }

    /// Adds the credit that was saved so long ago, and the credit earned since; all that there can be where nothing was saved.
    pub fn restore(&mut self, id: VolumeId, saved: &BTreeMap<String, f64>, ago: Duration) {
        let Some(volume) = self.volumes.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut volume.has_credit, true) {
            return;
        }
        for (bucket, dimension) in volume.buckets.iter_mut().zip(DIMENSIONS) {
            let Some(bucket) = bucket.as_mut().filter(|bucket| bucket.rate().has_burst()) else {
                continue;
            };
            let earned = bucket.rate().baseline * ago.as_secs_f64();
            bucket.earn(match saved.get(dimension.name) {
                Some(credit) if credit.is_finite() => credit.max(0.0) + earned,
                _ => bucket.rate().credit,
            });
        }
    }
}
