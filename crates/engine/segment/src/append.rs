//! The write path: find an open segment, reserve stripes, build them, write, sync.
//!
//! Owns: choosing segments for streams, creating them, retrying on other disks. Invariant: an acknowledged append is
//! durable on every shard of its segments.

use std::sync::Arc;

use cairn_base::disk::DiskError;
use cairn_base::domain::{DomainPath, survives};
use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, NodeId, VolumeId};
use cairn_erasure::Code;
use cairn_formats::pointer::{BLOCK_BYTES, Location};
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, ShardError, ShardErrorKind, ShardService, ShardWrite, file_len_bytes,
};
use futures_util::future::join_all;
use rustc_hash::FxHashSet;
use tokio::sync::{OwnedRwLockReadGuard, oneshot};

use crate::disk_table::Members;
use crate::error::{Result, SegmentError};
use crate::layout::RecordShape;
use crate::life::{ReservedStripe, Segment, WrittenStripe};
use crate::overdue::DiskOp;
use crate::placement::{choose_disks, fit_code_in};
use crate::read::is_no_answer;
use crate::record::EncodedRecord;
use crate::store::{SegmentStore, count, disk_space, shard_len};
use crate::stripe::StripeBuffers;
use crate::types::{Appended, Placing, SegmentInfo, SegmentPin, Stream};
use crate::volume::Volume;
use cairn_formats::summary::SummaryEntry;

/// Limit of the tries of one append, and of the tries to create a segment. A retry uses other disks where there are
/// enough. Otherwise it uses the failing ones again, until they work or are faulted. A few errors fault a disk, so only
/// disks that fail now and then reach this limit.
const ATTEMPTS_MAX: usize = 64;
/// When disks are nearly full, new shards shrink by this factor, repeatedly.
const SHARD_SHRINK: u64 = 4;

/// The part of the reserve that garbage collection leaves to the metadata.
const REWRITE_RESERVE_PART: u64 = 4;

/// Failure of a stripe write: the shards that refused, by index.
struct WriteFailure {
    segment: Arc<Segment>,
    shards: Vec<(u8, ShardError)>,
}

/// Disks that refused a request of the current append.
#[derive(Clone, Default)]
struct Refusals {
    /// The next try avoids these, if that costs no protection: one error does not fault a disk.
    avoided: FxHashSet<DiskId>,
    /// Disks without space for a new shard.
    full: FxHashSet<DiskId>,
    /// Disks without space for bytes of an existing shard: another open segment there does not help.
    full_for_writes: FxHashSet<DiskId>,
}

impl Refusals {
    /// Refusals of an append that begins while some disks are late or are known to fail.
    fn of_late(disks: Vec<DiskId>) -> Self {
        Self {
            avoided: disks.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Notes that a disk failed to create a shard.
    fn note_create(&mut self, disk: DiskId, error: &ShardError) {
        match error {
            // These errors are no fault of the disk: the next id will be free, and no other disk has file descriptors
            // either.
            ShardError::Exists { .. } | ShardError::Disk(DiskError::NoDescriptor { .. }) => {}
            ShardError::Disk(DiskError::Full { .. }) => {
                self.full.insert(disk);
            }
            _ => {
                self.avoided.insert(disk);
            }
        }
    }

    /// Notes that a disk failed to write bytes of a shard.
    fn note_write(&mut self, disk: DiskId, error: &ShardError) {
        self.note_create(disk, error);
        if error.kind() == ShardErrorKind::Full {
            self.full_for_writes.insert(disk);
        }
    }

    fn takes_shards(&self, disk: DiskId) -> bool {
        !self.avoided.contains(&disk) && !self.full.contains(&disk)
    }

    fn takes_writes(&self, disk: DiskId) -> bool {
        !self.avoided.contains(&disk) && !self.full_for_writes.contains(&disk)
    }
}

/// Requirements of an append.
#[derive(Clone, Copy)]
struct AppendTarget {
    placing: Placing,
    stream: Stream,
}

/// Place of a new segment.
struct SegmentPlace {
    code: Code,
    /// Disk of each shard, by index.
    disks: Vec<Arc<dyn ShardService>>,
    shard_len_bytes: u64,
}

/// Stripes of one segment that are written together.
struct WriteJob<'a> {
    segment: Arc<Segment>,
    stripes: Vec<ReservedStripe>,
    records: &'a [EncodedRecord],
    /// Keeps the segment from being sealed or removed during the write.
    gate: OwnedRwLockReadGuard<()>,
}

impl SegmentStore {
    /// Writes records and returns when they are durable on all shards of their segments.
    ///
    /// After a disk error the whole append is written to a new segment on other disks, with fewer data shards if
    /// needed. If that would cost parity shards, it is written to the failing disks again, until they work or are
    /// faulted. A disk that does not answer for [`SegmentSettings::write_deadline`] counts as one that refused, if
    /// other disks can replace it. Once started, an append continues even if the returned future is dropped: a caller
    /// that goes away must not leave a partial segment or stripe.
    pub async fn append(
        self: &Arc<Self>,
        volume: VolumeId,
        placing: impl Into<Placing>,
        stream: Stream,
        records: Vec<EncodedRecord>,
    ) -> Result<Appended> {
        let wanted = AppendTarget {
            placing: placing.into(),
            stream,
        };
        let volume = self.volume(volume)?;
        volume.require_owned()?;
        let is_wrong = |record: &EncodedRecord| record.is_encrypted() != volume.key.is_some();
        if records.iter().any(is_wrong) {
            return Err(SegmentError::WrongForm { volume: volume.id });
        }
        let (done, appended) = oneshot::channel();
        let store = self.clone();
        let task = async move {
            let result = store.append_now(&volume, wanted, &records).await;
            let _ = done.send(result);
        };
        self.env.spawner.spawn("segment append", Box::pin(task));
        appended.await.map_err(|_| SegmentError::Stopping)?
    }

    async fn append_now(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        wanted: AppendTarget,
        records: &[EncodedRecord],
    ) -> Result<Appended> {
        let blocks: u32 = records
            .iter()
            .map(|record| record.stored_len_bytes() / BLOCK_BYTES + 1)
            .fold(0, u32::saturating_add);
        let permits = blocks.clamp(1, self.appends_in_flight_max);
        let _in_flight = self
            .appends_in_flight
            .acquire_many(permits)
            .await
            .map_err(|_| SegmentError::Stopping)?;
        let mut refusals = self.first_refusals(wanted);
        let (mut detail, mut is_unreachable) = (String::new(), false);
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                count(&self.counters.append_retries, 1);
            }
            let failures = match self
                .append_once(volume, wanted, records, &mut refusals)
                .await?
            {
                // A disk may have reported meanwhile that another node owns the volume.
                Ok(appended) => return volume.require_owned().map(|()| appended),
                Err(failures) => failures,
            };
            for failure in failures {
                for (index, error) in failure.shards {
                    if let Some(fenced) = self.note_fenced(&error) {
                        return Err(fenced);
                    }
                    tracing::warn!(segment = %failure.segment.id, shard = index, %error, "a write failed; trying again");
                    detail = error.to_string();
                    is_unreachable = is_no_answer(&error);
                    if let Some(disk) = failure.segment.disk_of(index) {
                        refusals.note_write(disk, &error);
                    }
                }
            }
        }
        Err(SegmentError::Write {
            detail,
            is_unreachable,
        })
    }

    /// Disks that an append avoids from the beginning: doubtful ones, if the others are enough.
    fn first_refusals(&self, wanted: AppendTarget) -> Refusals {
        let refusals = Refusals::of_late(self.doubtful_disks());
        match refusals.avoided.is_empty() || self.place(wanted, &refusals).is_ok() {
            true => refusals,
            // All of them may recover in a moment: not every append should create a segment until then.
            false => Refusals::of_late(self.late.all()),
        }
    }

    /// One try to write everything. The inner error names the failed shards, so that the next try avoids their disks.
    async fn append_once(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        wanted: AppendTarget,
        records: &[EncodedRecord],
        refusals: &mut Refusals,
    ) -> Result<std::result::Result<Appended, Vec<WriteFailure>>> {
        let shapes: Vec<RecordShape> = records.iter().map(RecordShape::from).collect();
        let mut locations = Vec::with_capacity(records.len());
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        let mut pin = SegmentPin::default();
        let mut writes = Vec::new();
        while locations.len() < records.len() {
            let segment = match self.open_segment(volume, wanted, refusals).await {
                Ok(segment) => segment,
                Err(error) => {
                    self.give_back(volume, wanted, refusals, writes).await;
                    return Err(error);
                }
            };
            // Before the reservation: sealing must wait for reserved stripes. This never waits, because the append
            // holds earlier gates. Only sealing and removal take the gate exclusively, after closing the segment.
            let Ok(gate) = segment.gate.clone().try_read_owned() else {
                self.retire(volume, &segment);
                continue;
            };
            pin.add(&segment);
            let stripes = segment.reserve(&shapes[locations.len()..], self.env.clock.monotonic());
            if stripes.is_empty() {
                let next = &shapes[locations.len()];
                if !segment.could_hold(next) {
                    let detail = format!(
                        "a record of {} bytes has no room in an empty segment with shards of {} bytes",
                        next.len_bytes, self.settings.shard_len_bytes
                    );
                    drop(gate);
                    self.give_back(volume, wanted, refusals, writes).await;
                    return Err(SegmentError::Write {
                        detail,
                        is_unreachable: false,
                    });
                }
                drop(gate);
                self.retire(volume, &segment);
                continue;
            }
            let first = locations.len();
            locations.extend(locate(&segment, &stripes, &shapes[first..]));
            if !segments.iter().any(|held| Arc::ptr_eq(held, &segment)) {
                segments.push(segment.clone());
            }
            writes.push(WriteJob {
                segment,
                stripes,
                records: &records[first..locations.len()],
                gate,
            });
        }
        let refused: &Refusals = refusals;
        let jobs = writes.into_iter();
        let written = join_all(jobs.map(|job| self.write(wanted, refused, job))).await;
        let failures: Vec<WriteFailure> = written
            .into_iter()
            .filter_map(std::result::Result::err)
            .collect();
        if !failures.is_empty() && !planted::is(Bug::AppendAnsweredOnError) {
            for failure in &failures {
                self.retire(volume, &failure.segment);
            }
            return Ok(Err(failures));
        }
        count(&self.counters.appends, 1);
        Ok(Ok(Appended {
            locations,
            segments: segments.iter().map(|segment| segment.info()).collect(),
            pin,
        }))
    }

    /// Gives back the reservation of a failed append. A stripe that was reserved and never written would keep its
    /// segment from ever being sealed. So a stripe with later reservations behind it is written, although no reader
    /// needs it.
    async fn give_back(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        wanted: AppendTarget,
        refusals: &Refusals,
        jobs: Vec<WriteJob<'_>>,
    ) {
        for job in jobs {
            if job.segment.release(&job.stripes) {
                continue;
            }
            if let Err(failure) = self.write(wanted, refusals, job).await {
                self.retire(volume, &failure.segment);
            }
        }
    }

    async fn write(
        self: &Arc<Self>,
        wanted: AppendTarget,
        refusals: &Refusals,
        job: WriteJob<'_>,
    ) -> std::result::Result<(), WriteFailure> {
        let WriteJob {
            segment,
            stripes,
            records,
            gate,
        } = job;
        let (buffers, written) = build_stripes(segment.code, &stripes, records);
        let entries = summary_entries(records);
        self.count_written(segment.code, &stripes, records);
        let shards = segment.open_shards();
        let disks = segment.disks();
        let writes = shard_writes(&stripes, buffers);
        let ops = shards.into_iter().zip(disks.iter()).zip(writes).zip(0..);
        let ops = ops.map(|(((shard, disk), writes), index)| DiskOp {
            disk: *disk,
            run: shard.append(segment.epoch, segment.shard_name(index), writes),
        });
        let late_max = usize::from(segment.code.parity()).max(1);
        let parity = segment.code.parity();
        let can_do_without = |late: &[DiskId]| self.can_do_without(wanted, parity, refusals, late);
        let results = self
            .run_on_disks(ops.collect(), late_max, can_do_without, |_, _| {
                // The result is ignored: the shard has no footer.
                Box::pin(std::future::ready(()))
            })
            .await;
        let failed: Vec<(u8, ShardError)> = (0..)
            .zip(results)
            .filter_map(|(index, result)| {
                let name = segment.shard_name(index);
                let late = || self.late_error(segment.disk_of(index), format!("writing {name}"));
                let error = result.map_or_else(|| Some(late()), std::result::Result::err);
                error.map(|error| (index, error))
            })
            .collect();
        let failed_shards: Vec<u8> = failed.iter().map(|(index, _)| *index).collect();
        segment.note_written(written, entries, &failed_shards);
        let result = if failed.is_empty() {
            Ok(())
        } else {
            Err(WriteFailure {
                segment,
                shards: failed,
            })
        };
        drop(gate);
        result
    }

    /// Whether a segment with the same parity can be created without some late disks.
    fn can_do_without(
        &self,
        wanted: AppendTarget,
        parity: u8,
        refusals: &Refusals,
        late: &[DiskId],
    ) -> bool {
        let mut refusals = refusals.clone();
        refusals.avoided.extend(late.iter().copied());
        let placed = self.place(wanted, &refusals);
        placed.is_ok_and(|place| place.code.parity() >= parity)
    }

    fn late_error(&self, disk: Option<DiskId>, what: String) -> ShardError {
        let disk = disk.and_then(|disk| self.disk(disk));
        let disk = disk.map_or_else(String::new, |disk| disk.label().to_owned());
        ShardError::Late { disk, what }
    }

    fn count_written(&self, code: Code, stripes: &[ReservedStripe], records: &[EncodedRecord]) {
        let stored: u64 = records
            .iter()
            .map(|record| u64::from(record.stored_len_bytes()))
            .sum();
        let unit: u64 = stripes
            .iter()
            .map(|stripe| u64::from(stripe.plan.unit_blocks) * u64::from(BLOCK_BYTES))
            .sum();
        let data = unit * u64::from(code.data());
        count(&self.counters.appended_bytes, stored);
        count(&self.counters.padding_bytes, data - stored);
        count(&self.counters.parity_bytes, unit * u64::from(code.parity()));
    }

    /// The open segment of `stream`, on none of the disks that refused writes. Creates one if there is none.
    async fn open_segment(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        wanted: AppendTarget,
        refusals: &mut Refusals,
    ) -> Result<Arc<Segment>> {
        let AppendTarget { placing, stream } = wanted;
        let code = placing.code;
        if let Some(segment) = self.current_segment(volume, wanted, refusals) {
            return Ok(segment);
        }
        let _creating = volume.creating.lock().await;
        if let Some(segment) = self.current_segment(volume, wanted, refusals) {
            return Ok(segment);
        }
        let idle = if stream == Stream::Cold {
            None
        } else {
            let usable = |segment: &Segment| self.is_usable(segment, code, refusals);
            volume.streams.lock().take_idle(placing, usable)
        };
        let segment = match idle {
            Some(segment) => segment,
            None => match self.create_segment(volume, wanted, refusals).await {
                Ok(segment) => segment,
                Err(error @ SegmentError::NoSpace { .. }) if stream != Stream::Cold => {
                    // Room that another stream reserved is better than none.
                    let may_borrow = stream == Stream::Rewrite || self.is_reserve_whole();
                    let usable = |segment: &Segment| self.is_usable(segment, code, refusals);
                    let borrowed = volume.streams.lock().borrow_any(code, may_borrow, usable);
                    return borrowed.ok_or(error);
                }
                Err(error) => return Err(error),
            },
        };
        let surplus = {
            let mut streams = volume.streams.lock();
            let replaced = streams.set(placing, stream, segment.clone());
            let mut surplus =
                streams.trim(self.settings.streams_max, self.settings.open_segments_max);
            surplus.extend(replaced);
            surplus
        };
        for segment in surplus {
            self.retire(volume, &segment);
        }
        Ok(segment)
    }

    /// The stream's segment if it accepts appends; otherwise it is retired.
    fn current_segment(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        wanted: AppendTarget,
        refusals: &Refusals,
    ) -> Option<Arc<Segment>> {
        let AppendTarget { placing, stream } = wanted;
        let segment = volume.streams.lock().get(placing, stream)?.clone();
        if self.is_usable(&segment, placing.code, refusals) {
            return Some(segment);
        }
        self.retire(volume, &segment);
        None
    }

    fn is_usable(&self, segment: &Segment, wanted: Code, refusals: &Refusals) -> bool {
        let good = |disk: &DiskId| refusals.takes_writes(*disk) && self.takes_shards(*disk);
        segment.takes_stripes()
            && segment.disks().iter().all(good)
            && !self.is_weak(segment.code, wanted)
    }

    /// Whether a segment has fewer parity shards than a new one would have, because disks that had failed are back.
    /// Every append calls this, so disks are counted only where there are fewer than wanted.
    fn is_weak(&self, made: Code, wanted: Code) -> bool {
        made.parity() < wanted.parity()
            && usize::from(made.parity()) + 1 < self.takes_shards_count()
    }

    /// Takes a segment out of use and seals it in the background.
    fn retire(self: &Arc<Self>, volume: &Arc<Volume>, segment: &Arc<Segment>) {
        volume.streams.lock().forget(segment);
        if !segment.close() {
            return;
        }
        let (store, volume, segment) = (self.clone(), volume.clone(), segment.clone());
        let task = async move { store.seal(&volume, &segment).await };
        self.env.spawner.spawn("segment seal", Box::pin(task));
    }

    /// Creates a segment on disks with room. Disks that refuse are left out of the next try, if the others are enough.
    async fn create_segment(
        self: &Arc<Self>,
        volume: &Volume,
        wanted: AppendTarget,
        refusals: &mut Refusals,
    ) -> Result<Arc<Segment>> {
        let (mut detail, mut is_unreachable) = (String::new(), false);
        for _ in 0..ATTEMPTS_MAX {
            let mut plan = self.place(wanted, refusals);
            if plan.is_err() && !refusals.avoided.is_empty() {
                // Too few disks without them, and they are not faulted: the next try asks them again.
                refusals.avoided.clear();
                plan = self.place(wanted, refusals);
            }
            let SegmentPlace {
                code,
                disks,
                shard_len_bytes,
            } = plan?;
            let can_do_without =
                |late: &[DiskId]| self.can_do_without(wanted, code.parity(), refusals, late);
            let place = SegmentPlace {
                code,
                disks,
                shard_len_bytes,
            };
            let created = self.create_on(volume, &place, wanted, can_do_without);
            match created.await {
                Ok(segment) => return Ok(segment),
                Err(refused) => {
                    for (disk, error) in refused {
                        if let Some(fenced) = self.note_fenced(&error) {
                            return Err(fenced);
                        }
                        tracing::warn!(%error, "a shard was not created; trying again");
                        detail = error.to_string();
                        is_unreachable = is_no_answer(&error);
                        refusals.note_create(disk, &error);
                    }
                }
            }
        }
        Err(SegmentError::Write {
            detail,
            is_unreachable,
        })
    }

    /// Chooses code, disks and shard size for a new segment. Disks that refused have no room, but count as working:
    /// they do not reduce protection. Fails with `NoSpace`, or with `Write` if no disk works.
    ///
    /// Prefers disks of the wanted class, unless a segment on all disks would survive more losses.
    fn place(&self, wanted: AppendTarget, refusals: &Refusals) -> Result<SegmentPlace> {
        let members = self.members();
        let healthy: Vec<(Arc<dyn ShardService>, u64)> = self
            .roomy_disks()
            .into_iter()
            .map(|disk| {
                let room_bytes = match refusals.takes_shards(disk.id()) {
                    true => self.room_bytes(&*disk, wanted.stream),
                    false => 0,
                };
                (disk, room_bytes)
            })
            .collect();
        let code = wanted.placing.code;
        let media = wanted.placing.media;
        if media.is_none() || !members.has_media() {
            return self.place_on(code, &members, &healthy);
        }
        let is_right = |(disk, _): &&(Arc<dyn ShardService>, u64)| members.is_of(disk.id(), media);
        let right: Vec<_> = healthy.iter().filter(is_right).cloned().collect();
        if right.is_empty() {
            return self.place_on(code, &members, &healthy);
        }
        let any = self.place_on(code, &members, &healthy)?;
        let survives = |place: &SegmentPlace| {
            let disks = place.disks.iter();
            let places: Vec<DomainPath> = disks.map(|disk| members.domain(disk.id())).collect();
            survives(&places, usize::from(place.code.parity()))
        };
        let is_as_safe = |place: &SegmentPlace| {
            let (ours, others) = (survives(place), survives(&any));
            ours.disks >= others.disks && ours.nodes >= others.nodes
        };
        match self.place_on(code, &members, &right) {
            Ok(place) if is_as_safe(&place) || planted::is(Bug::MediaBeforeProtection) => Ok(place),
            _ => Ok(any),
        }
    }

    /// As [`Self::place`], on some disks, given with their room in bytes.
    fn place_on(
        &self,
        wanted: Code,
        members: &Members,
        healthy: &[(Arc<dyn ShardService>, u64)],
    ) -> Result<SegmentPlace> {
        let nodes_of = |disks: &[&(Arc<dyn ShardService>, u64)]| -> Vec<NodeId> {
            let nodes = disks.iter().map(|(disk, _)| members.domain(disk.id()).node);
            nodes.collect()
        };
        let healthy_nodes = nodes_of(&healthy.iter().collect::<Vec<_>>());
        let pool = members.staying(&[]);
        let mut best = None;
        let mut len_bytes = self.settings.shard_len_bytes;
        loop {
            let file_bytes = file_len_bytes(len_bytes).unwrap_or(u64::MAX);
            let roomy: Vec<_> = healthy
                .iter()
                .filter(|(_, room)| *room >= file_bytes)
                .collect();
            if let Some(code) = fit_code_in(wanted, &healthy_nodes, &nodes_of(&roomy), &pool) {
                // Smaller shards pay only if they allow a wider code.
                if best
                    .as_ref()
                    .is_none_or(|(other, ..): &(Code, _, _)| other.total() < code.total())
                {
                    best = Some((code, roomy, len_bytes));
                }
            }
            let full_width = best.as_ref().is_some_and(|(code, ..)| *code == wanted);
            if full_width || len_bytes <= self.settings.shard_len_bytes_min {
                break;
            }
            len_bytes = shard_len(&self.settings, len_bytes / SHARD_SHRINK);
        }
        let Some((code, roomy, len_bytes)) = best else {
            if !self.has_working_disk() {
                // The advice to free space would be wrong here.
                return Err(SegmentError::Write {
                    detail: "no disk of the pool works; mend or replace them, and restart"
                        .to_owned(),
                    is_unreachable: self.has_absent_disk(),
                });
            }
            return Err(SegmentError::NoSpace {
                detail: format!(
                    "{} disks can be written to, and too few of them have {} bytes free beside the reserve",
                    healthy.len(),
                    self.settings.shard_len_bytes_min
                ),
            });
        };
        let rooms: Vec<u64> = roomy.iter().map(|(_, room)| *room).collect();
        let nodes = nodes_of(&roomy);
        let count = usize::from(code.total());
        let chosen = choose_disks(&rooms, &nodes, count, || self.env.entropy.u64());
        let disks = chosen
            .into_iter()
            .map(|index| roomy[index].0.clone())
            .collect();
        Ok(SegmentPlace {
            code,
            disks,
            shard_len_bytes: len_bytes,
        })
    }

    /// Bytes that a stream may use on a disk.
    pub(crate) fn room_bytes(&self, disk: &dyn ShardService, stream: Stream) -> u64 {
        let space = disk_space(disk);
        let kept_bytes = self.kept_bytes(space.total_bytes, stream);
        space.free_bytes.saturating_sub(kept_bytes)
    }

    /// Bytes that a stream must leave free on a disk.
    fn kept_bytes(&self, total_bytes: u64, stream: Stream) -> u64 {
        let reserve_bytes = self.reserve_bytes(total_bytes);
        match stream {
            // The rest belongs to the metadata: garbage collection needs metadata, too.
            Stream::Rewrite => reserve_bytes / REWRITE_RESERVE_PART,
            Stream::Mixed | Stream::File(_) | Stream::Cold => reserve_bytes,
        }
    }

    /// Creates the shards of a new segment. On failure none remain, and the error names the disks.
    async fn create_on(
        self: &Arc<Self>,
        volume: &Volume,
        place: &SegmentPlace,
        wanted: AppendTarget,
        can_do_without: impl Fn(&[DiskId]) -> bool,
    ) -> std::result::Result<Arc<Segment>, Vec<(DiskId, ShardError)>> {
        let SegmentPlace {
            code,
            disks,
            shard_len_bytes,
        } = place;
        let (code, shard_len_bytes) = (*code, *shard_len_bytes);
        let info = SegmentInfo {
            id: (volume.allocate)(),
            code,
            disks: disks.iter().map(|disk| disk.id()).collect(),
            shard_len_bytes,
            sealed: false,
            remote: None,
            media: wanted.placing.media,
            protection: wanted.placing.protection,
        };
        let segment = Arc::new(Segment::created(volume.id, volume.epoch, info));
        // Known before its shards exist, so that a sweep does not take them for orphans.
        volume.segments.write().insert(segment.clone());
        volume.uncommitted.lock().insert(segment.id);
        let creations = disks.iter().zip(0..).map(|(disk, index)| {
            let name = segment.shard_name(index);
            // The disk checks again: other owners may have used free space since.
            let kept_bytes = self.kept_bytes(disk_space(&**disk).total_bytes, wanted.stream);
            let disk_of = disk.clone();
            DiskOp {
                disk: disk.id(),
                run: disk_of.create(volume.epoch, name, shard_len_bytes, kept_bytes),
            }
        });
        let late_max = usize::from(code.parity()).max(1);
        let (late_disks, late_segment) = (disks.to_vec(), segment.clone());
        // If the shard is created late, the segment was given up. A shard that remains is an orphan, which the next
        // sweep deletes.
        let clean_up = move |index: usize, result: std::result::Result<(), ShardError>| {
            let (disk, segment) = (late_disks.get(index).cloned(), late_segment.clone());
            let run = async move {
                if let (Ok(()), Some(disk)) = (result, disk) {
                    let name = segment.shard_name(index as u8);
                    let _ = disk.remove(segment.epoch, name).await;
                }
            };
            Box::pin(run) as BoxFuture<()>
        };
        let results = self
            .run_on_disks(creations.collect(), late_max, can_do_without, clean_up)
            .await;
        let mut made = Vec::new();
        let mut refused = Vec::new();
        for (index, (result, disk)) in (0..).zip(results.into_iter().zip(disks)) {
            match result {
                Some(Ok(())) => made.push((index, disk.clone())),
                Some(Err(error)) => refused.push((disk.id(), error)),
                None => {
                    let what = format!("making a shard of segment {}", segment.id);
                    refused.push((disk.id(), self.late_error(Some(disk.id()), what)));
                }
            }
        }
        if refused.is_empty() {
            let data_blocks = (shard_len_bytes / u64::from(BLOCK_BYTES)) as u32;
            let shards = made.into_iter().map(|(_, disk)| disk).collect();
            segment.open_with(shards, data_blocks, self.env.clock.monotonic());
            count(&self.counters.segments_created, 1);
            return Ok(segment);
        }
        volume.segments.write().remove(&segment.id);
        segment.begin_removal();
        for (index, disk) in made {
            // A shard that remains is an orphan, which the next sweep deletes.
            let _ = disk.remove(segment.epoch, segment.shard_name(index)).await;
        }
        Err(refused)
    }
}

/// Summary entries of some records. One record without an owner means that the segment gets no summary.
fn summary_entries(records: &[EncodedRecord]) -> Vec<SummaryEntry> {
    let entry = |record: &EncodedRecord| {
        Some(SummaryEntry {
            owner: record.owner()?,
            len_bytes: record.file_len_bytes(),
        })
    };
    records.iter().filter_map(entry).collect()
}

/// The locations of the records in the stripes.
pub(crate) fn locate(
    segment: &Segment,
    stripes: &[ReservedStripe],
    shapes: &[RecordShape],
) -> Vec<Location> {
    let placed = stripes.iter().flat_map(|stripe| {
        stripe
            .plan
            .offsets
            .iter()
            .map(move |offset| (stripe, *offset))
    });
    placed
        .zip(shapes)
        .map(|((stripe, offset_bytes), shape)| Location {
            segment: segment.id,
            stripe_block: stripe.stripe_block,
            unit_blocks: stripe.plan.unit_blocks,
            offset_bytes,
            len_bytes: shape.len_bytes,
        })
        .collect()
}

pub(crate) fn build_stripes(
    code: Code,
    stripes: &[ReservedStripe],
    records: &[EncodedRecord],
) -> (Vec<StripeBuffers>, Vec<WrittenStripe>) {
    let mut rest = records;
    stripes
        .iter()
        .map(|stripe| {
            let (now, later) = rest.split_at(stripe.plan.offsets.len());
            rest = later;
            let placed: Vec<_> = stripe
                .plan
                .offsets
                .iter()
                .zip(now)
                .map(|(offset, record)| (*offset as usize, record.parts()))
                .collect();
            let unit_len_bytes = usize::from(stripe.plan.unit_blocks) * BLOCK_BYTES as usize;
            let buffers = StripeBuffers::build(code, unit_len_bytes, &placed);
            let written = WrittenStripe {
                stripe_block: stripe.stripe_block,
                unit_blocks: stripe.plan.unit_blocks,
                checksums: buffers.checksums(stripe_offset(stripe), CHECKSUM_UNIT_BYTES),
            };
            (buffers, written)
        })
        .unzip()
}

fn stripe_offset(stripe: &ReservedStripe) -> u64 {
    u64::from(stripe.stripe_block) * u64::from(BLOCK_BYTES)
}

/// The writes of each shard for these stripes, by index.
pub(crate) fn shard_writes(
    stripes: &[ReservedStripe],
    buffers: Vec<StripeBuffers>,
) -> Vec<Vec<ShardWrite>> {
    let shard_count = buffers.first().map_or(0, |buffers| buffers.shards.len());
    let mut writes: Vec<Vec<ShardWrite>> = Vec::with_capacity(shard_count);
    writes.resize_with(shard_count, || Vec::with_capacity(stripes.len()));
    for (stripe, buffers) in stripes.iter().zip(buffers) {
        let offset = stripe_offset(stripe);
        for (writes, parts) in writes.iter_mut().zip(buffers.shards) {
            writes.push(ShardWrite { offset, parts });
        }
    }
    writes
}
