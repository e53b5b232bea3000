//! A disk of another node.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::DiskSpace;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, DiskId, Epoch, NodeId, VolumeId, crc32c};
use cairn_formats::FormatError;
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, CheckedRead, Copied, Health, HiddenId, ShardError, ShardFooter,
    ShardFuture, ShardList, ShardName, ShardService, ShardStat, ShardWrite, SweptShards,
};
use cairn_wire::{DiskReport, Message, PAYLOAD_LEN_BYTES_MAX, Reply, Request, ShardRange};
use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;

use crate::convert;
use crate::frames::send_small;
use crate::link::{Link, NoReply};
use crate::peer::{PeerCore, unexpected};
use crate::serve::NUMBER_OF_NONE;

/// Most bytes that one request reads; a larger read has several under way.
const READ_LEN_BYTES_MAX: u64 = 8 << 20;
/// Most bytes that one request writes.
const WRITE_LEN_BYTES_MAX: usize = 8 << 20;
/// Most names in one sweep.
const SWEEP_COUNT_MAX: usize = 1 << 16;
/// A number that a node gave holds only on the connection on which it did. What we hand out says in its upper bits
/// which one that was, modulo as many as fit.
const NUMBER_BITS: u32 = 40;

const _: () = assert!(READ_LEN_BYTES_MAX.is_multiple_of(CHECKSUM_UNIT_BYTES));
const _: () = assert!(READ_LEN_BYTES_MAX <= PAYLOAD_LEN_BYTES_MAX as u64);
const _: () = assert!(WRITE_LEN_BYTES_MAX <= PAYLOAD_LEN_BYTES_MAX);

/// The shards of a disk that another node serves.
pub struct RemoteDisk {
    peer: Arc<PeerCore>,
    id: DiskId,
    label: String,
    health: Health,
    report: Mutex<DiskReport>,
}

impl RemoteDisk {
    pub(crate) fn new(peer: Arc<PeerCore>, report: DiskReport) -> Self {
        let disk = Self {
            id: report.disk,
            label: convert::label(&peer.label, &report.label),
            health: Health::of_remote(),
            peer,
            report: Mutex::new(report.clone()),
        };
        disk.note(report);
        disk
    }

    pub(crate) fn disk_id(&self) -> DiskId {
        self.id
    }

    pub(crate) fn note(&self, report: DiskReport) {
        // First: one that failed and is taken back must not look well for a moment, before it has proven itself.
        if report.silent {
            self.health.set_silent(true);
        }
        self.health
            .set(convert::health(&report), report.writes_answered);
        self.health.set_silent(report.silent);
        self.health.set_failing(report.failing);
        *self.report.lock() = report;
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.health.set_silent(silent);
    }

    fn unreachable(&self, what: What, reason: impl Into<String>) -> ShardError {
        ShardError::Unreachable {
            disk: self.label.clone(),
            what: what.to_string(),
            reason: reason.into(),
        }
    }

    fn link(&self, request: &Request) -> Result<Arc<Link>, ShardError> {
        let link = self.peer.link();
        link.ok_or_else(|| self.unreachable(What::of(request), self.peer.why_not()))
    }

    async fn ask(
        &self,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<(Reply, Bytes), ShardError> {
        let link = self.link(&request)?;
        self.ask_on(&link, request, payload).await
    }

    async fn ask_on(
        &self,
        link: &Link,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<(Reply, Bytes), ShardError> {
        let deadline = self.peer.settings.deadline_of(&request);
        let what = What::of(&request);
        let is_append = matches!(request, Request::Append { .. });
        match link.call(self.id, request, payload, deadline).await {
            Ok((Reply::Failed { fault }, _)) => Err(convert::error(fault, &self.peer.label)),
            Ok(replied) => Ok(replied),
            Err(NoReply::Late) => Err(ShardError::Late {
                disk: self.label.clone(),
                what: what.to_string(),
            }),
            Err(NoReply::Broken(_)) if is_append && planted::is(Bug::NoReplyTakenAsDone) => {
                Ok((Reply::Done {}, Bytes::new()))
            }
            Err(NoReply::Broken(reason)) => Err(self.unreachable(what, reason)),
            Err(NoReply::Refused(error)) => {
                tracing::debug!(%error, "a request is not sent");
                Err(ShardError::BadRequest {
                    disk: self.label.clone(),
                    what: what.to_string(),
                    reason: FormatError::Field("length"),
                })
            }
        }
    }

    async fn done(&self, request: Request, payload: Vec<Bytes>) -> Result<(), ShardError> {
        let what = What::of(&request);
        match self.ask(request, payload).await? {
            (Reply::Done {}, _) => Ok(()),
            (other, _) => Err(self.nonsense(what, &other)),
        }
    }

    /// The peer keeps to the format, and not to the protocol.
    fn nonsense(&self, what: What, reply: &Reply) -> ShardError {
        self.unreachable(what, unexpected(reply))
    }

    fn number(&self, link: &Link, number: u64) -> u64 {
        (link.number << NUMBER_BITS) | (number & ((1 << NUMBER_BITS) - 1))
    }

    /// The connection that gave this number, if it still lives, and the number as it gave it.
    fn numbered(&self, number: u64) -> Option<(Arc<Link>, u64)> {
        let link = self.peer.link()?;
        let plain = number & ((1 << NUMBER_BITS) - 1);
        (self.number(&link, plain) == number).then_some((link, plain))
    }

    /// A hidden shard ends with the connection on which it was made; of those there is none on a later one.
    fn hidden(&self, hidden: HiddenId) -> Result<(Arc<Link>, cairn_wire::Hidden), ShardError> {
        let name = hidden.name;
        let number = |number| cairn_wire::Hidden { name, number };
        if let Some((link, plain)) = self.numbered(hidden.number) {
            return Ok((link, number(plain)));
        }
        let what = What {
            verb: "filling",
            of: Of::Shard(name),
        };
        match self.peer.link() {
            Some(link) => Ok((link, number(NUMBER_OF_NONE))),
            None => Err(self.unreachable(what, self.peer.why_not())),
        }
    }

    async fn done_hidden(
        &self,
        hidden: HiddenId,
        payload: Vec<Bytes>,
        request: impl FnOnce(cairn_wire::Hidden) -> Request + Send,
    ) -> Result<(), ShardError> {
        let (link, hidden) = self.hidden(hidden)?;
        let request = request(hidden);
        let what = What::of(&request);
        match self.ask_on(&link, request, payload).await? {
            (Reply::Done {}, _) => Ok(()),
            (other, _) => Err(self.nonsense(what, &other)),
        }
    }

    /// Sends writes in as few requests as there may be, and waits for all of them, also after a failure.
    async fn write(
        &self,
        writes: Vec<ShardWrite>,
        request: impl Fn(Vec<ShardRange>) -> Request + Send + Sync,
    ) -> Result<(), ShardError> {
        let asked = batches(writes).into_iter();
        let asked = asked.map(|(places, payload)| self.done(request(places), payload));
        let mut asked: Vec<_> = asked.collect();
        if asked.len() == 1
            && let Some(only) = asked.pop()
        {
            return only.await;
        }
        join_all(asked).await.into_iter().collect()
    }

    async fn read_piece(
        &self,
        name: ShardName,
        range: Range<u64>,
        checksums: Option<&[u32]>,
    ) -> Result<CheckedRead, ShardError> {
        // No piece is longer than that.
        let len_bytes = (range.end - range.start) as u32;
        let place = ShardRange {
            offset: range.start,
            len_bytes,
        };
        let request = match checksums {
            None => Request::Read { name, place },
            Some(checksums) => Request::ReadChecked {
                name,
                place,
                checksums: checksums.to_vec(),
            },
        };
        let what = What::of(&request);
        match self.ask(request, Vec::new()).await? {
            (Reply::Bytes { .. }, bytes) if bytes.len() == len_bytes as usize => Ok(CheckedRead {
                bytes,
                damaged: Vec::new(),
            }),
            (Reply::Checked { damaged, .. }, bytes) if bytes.len() == len_bytes as usize => {
                Ok(CheckedRead { bytes, damaged })
            }
            (other, _) => Err(self.nonsense(what, &other)),
        }
    }

    async fn read_range(
        &self,
        name: ShardName,
        range: Range<u64>,
        checksums: Option<&[u32]>,
    ) -> Result<CheckedRead, ShardError> {
        if range.end.saturating_sub(range.start) <= READ_LEN_BYTES_MAX {
            return self.read_piece(name, range, checksums).await;
        }
        let unit_count = (READ_LEN_BYTES_MAX / CHECKSUM_UNIT_BYTES) as usize;
        let starts = range.clone().step_by(READ_LEN_BYTES_MAX as usize);
        let pieces = starts.enumerate().map(|(index, start)| {
            let end = start.saturating_add(READ_LEN_BYTES_MAX).min(range.end);
            let known = checksums.map(|checksums| {
                let from = (index * unit_count).min(checksums.len());
                let to = (from + unit_count).min(checksums.len());
                checksums.get(from..to).unwrap_or_default()
            });
            self.read_piece(name, start..end, known)
        });
        let pieces = try_join_all(pieces).await?;
        let mut whole = AlignedBuf::zeroed((range.end - range.start) as usize);
        let mut damaged = Vec::new();
        let mut at = 0;
        for piece in pieces {
            let end = at + piece.bytes.len();
            whole[at..end].copy_from_slice(&piece.bytes);
            damaged.extend(piece.damaged);
            at = end;
        }
        Ok(CheckedRead {
            bytes: whole.freeze(),
            damaged,
        })
    }

    /// The bytes go through this node.
    async fn relay(
        &self,
        epoch: Epoch,
        hidden: HiddenId,
        from: &dyn ShardService,
        range: Range<u64>,
        checksums: &[u32],
    ) -> Result<Copied, ShardError> {
        let start = range.start;
        let bytes = match from.read_checked(hidden.name, range, checksums).await {
            Ok(read) if read.damaged.is_empty() => read.bytes,
            bad => {
                // Whether the hidden shard is there, and ours, comes first, as where the disk is in this process.
                let nothing = ShardWrite {
                    offset: 0,
                    parts: Vec::new(),
                };
                self.fill(epoch, hidden, nothing).await?;
                return Ok(match bad {
                    Ok(read) => Copied::Damaged(read.damaged),
                    Err(error) => Copied::Unread(error),
                });
            }
        };
        let pieces = bytes.chunks(CHECKSUM_UNIT_BYTES as usize);
        let sums = pieces.map(crc32c).collect();
        let write = ShardWrite {
            offset: start,
            parts: vec![bytes],
        };
        self.fill(epoch, hidden, write).await?;
        Ok(Copied::Whole(sums))
    }
}

impl ShardService for RemoteDisk {
    fn id(&self) -> DiskId {
        self.id
    }

    fn node(&self) -> Option<NodeId> {
        Some(self.peer.node)
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn state(&self) -> &Health {
        &self.health
    }

    fn space(&self) -> Result<DiskSpace, ShardError> {
        let space = self.report.lock().space.clone();
        space.map_err(|fault| convert::error(fault, &self.peer.label))
    }

    fn recycled_bytes(&self) -> u64 {
        self.report.lock().recycled_bytes
    }

    fn recycled(&self) -> BTreeMap<u64, usize> {
        let report = self.report.lock();
        let counts = report.recycled.iter();
        counts
            .map(|recycled| (recycled.capacity_bytes, recycled.count as usize))
            .collect()
    }

    fn note_checksum_error(&self) {
        self.health.note_checksum_error();
        if let Some(link) = self.peer.link() {
            let note = Message::Note {
                disk: self.id,
                checksum_errors: 1,
            };
            send_small(link.queue(), &note, None);
        }
    }

    fn probe(&self) -> ShardFuture<'_, ()> {
        Box::pin(self.done(Request::Probe {}, Vec::new()))
    }

    fn prepare_recycled(&self, count: usize, capacity_bytes: u64) -> ShardFuture<'_, ()> {
        let request = Request::PrepareRecycled {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            capacity_bytes,
        };
        Box::pin(self.done(request, Vec::new()))
    }

    fn release_recycled(&self) -> ShardFuture<'_, ()> {
        Box::pin(self.done(Request::ReleaseRecycled {}, Vec::new()))
    }

    fn fence(self: Arc<Self>, volume: VolumeId, epoch: Epoch) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            self.done(Request::Fence { volume, epoch }, Vec::new())
                .await
        })
    }

    fn create(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'static, ()> {
        let request = Request::Create {
            epoch,
            name,
            capacity_bytes,
            kept_bytes,
        };
        Box::pin(async move { self.done(request, Vec::new()).await })
    }

    fn append(
        self: Arc<Self>,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'static, ()> {
        Box::pin(async move {
            let request = |places| Request::Append {
                epoch,
                name,
                places,
            };
            self.write(writes, request).await
        })
    }

    fn seal(self: Arc<Self>, epoch: Epoch, footer: ShardFooter) -> ShardFuture<'static, u64> {
        Box::pin(async move {
            let request = Request::Seal { epoch, footer };
            let what = What::of(&request);
            match self.ask(request, Vec::new()).await? {
                (Reply::Sealed { file_len_bytes }, _) => Ok(file_len_bytes),
                (other, _) => Err(self.nonsense(what, &other)),
            }
        })
    }

    fn stat(&self, name: ShardName) -> ShardFuture<'_, ShardStat> {
        Box::pin(async move {
            let request = Request::Stat { name };
            match self.ask(request.clone(), Vec::new()).await?.0 {
                Reply::Stat {
                    file_len_bytes,
                    footer,
                    is_unsealed,
                } => Ok(ShardStat {
                    file_len_bytes,
                    footer: footer.map_err(|fault| convert::error(fault, &self.peer.label)),
                    is_unsealed,
                }),
                other => Err(self.nonsense(What::of(&request), &other)),
            }
        })
    }

    fn read(&self, name: ShardName, offset: u64, len_bytes: usize) -> ShardFuture<'_, Bytes> {
        Box::pin(async move {
            let end = offset.saturating_add(len_bytes as u64);
            let read = self.read_range(name, offset..end, None).await?;
            Ok(read.bytes)
        })
    }

    fn read_checked<'a>(
        &'a self,
        name: ShardName,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, CheckedRead> {
        Box::pin(self.read_range(name, range, Some(checksums)))
    }

    fn repair(
        &self,
        epoch: Epoch,
        name: ShardName,
        writes: Vec<ShardWrite>,
    ) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            let request = |places| Request::Repair {
                epoch,
                name,
                places,
            };
            self.write(writes, request).await
        })
    }

    fn create_hidden(
        &self,
        epoch: Epoch,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> ShardFuture<'_, HiddenId> {
        Box::pin(async move {
            let request = Request::CreateHidden {
                epoch,
                name,
                capacity_bytes,
                kept_bytes,
            };
            let link = self.link(&request)?;
            match self.ask_on(&link, request.clone(), Vec::new()).await?.0 {
                Reply::Made { hidden } if hidden.name == name => {
                    let number = self.number(&link, hidden.number);
                    Ok(HiddenId { name, number })
                }
                other => Err(self.nonsense(What::of(&request), &other)),
            }
        })
    }

    fn fill(&self, epoch: Epoch, hidden: HiddenId, write: ShardWrite) -> ShardFuture<'_, ()> {
        Box::pin(async move {
            for (places, mut payload) in batches(vec![write]) {
                // Places of one write follow one another, and one request fills one of them.
                for place in places {
                    let parts = split_off(&mut payload, place.len_bytes as usize);
                    let request = |hidden| Request::Fill {
                        epoch,
                        hidden,
                        place,
                    };
                    self.done_hidden(hidden, parts, request).await?;
                }
            }
            Ok(())
        })
    }

    fn copy_from<'a>(
        &'a self,
        epoch: Epoch,
        hidden: HiddenId,
        from: &'a dyn ShardService,
        range: Range<u64>,
        checksums: &'a [u32],
    ) -> ShardFuture<'a, Copied> {
        Box::pin(async move {
            let len_bytes = range.end.saturating_sub(range.start);
            if let Some(node) = from.node()
                && len_bytes <= READ_LEN_BYTES_MAX
            {
                let (link, named) = self.hidden(hidden)?;
                let request = Request::CopyFrom {
                    epoch,
                    hidden: named,
                    node,
                    disk: from.id(),
                    place: ShardRange {
                        offset: range.start,
                        // At most what one request reads.
                        len_bytes: len_bytes as u32,
                    },
                    checksums: checksums.to_vec(),
                };
                let what = What::of(&request);
                match self.ask_on(&link, request, Vec::new()).await?.0 {
                    Reply::Copied { copied } => match copied {
                        cairn_wire::Copied::Whole { checksums } => {
                            return Ok(Copied::Whole(checksums));
                        }
                        cairn_wire::Copied::Damaged { ranges } => {
                            return Ok(Copied::Damaged(ranges));
                        }
                        cairn_wire::Copied::Unread { fault } => {
                            let error = convert::error(fault, &self.peer.label);
                            return Ok(Copied::Unread(error));
                        }
                        cairn_wire::Copied::NoWay {} => {}
                    },
                    other => return Err(self.nonsense(what, &other)),
                }
            }
            self.relay(epoch, hidden, from, range, checksums).await
        })
    }

    fn seal_hidden(
        &self,
        epoch: Epoch,
        hidden: HiddenId,
        footer: ShardFooter,
    ) -> ShardFuture<'_, ()> {
        Box::pin(
            self.done_hidden(hidden, Vec::new(), move |hidden| Request::SealHidden {
                epoch,
                hidden,
                footer,
            }),
        )
    }

    fn publish(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(
            self.done_hidden(hidden, Vec::new(), move |hidden| Request::Publish {
                epoch,
                hidden,
            }),
        )
    }

    fn discard(&self, epoch: Epoch, hidden: HiddenId) -> ShardFuture<'_, ()> {
        Box::pin(
            self.done_hidden(hidden, Vec::new(), move |hidden| Request::Discard {
                epoch,
                hidden,
            }),
        )
    }

    fn remove(&self, epoch: Epoch, name: ShardName) -> ShardFuture<'_, ()> {
        Box::pin(self.done(Request::Remove { epoch, name }, Vec::new()))
    }

    fn list(&self, volume: VolumeId) -> ShardFuture<'_, ShardList> {
        Box::pin(async move {
            let mut request = Request::List {
                volume,
                after: None,
            };
            let link = self.link(&request)?;
            let mut list: Option<ShardList> = None;
            loop {
                let reply = self.ask_on(&link, request.clone(), Vec::new()).await?.0;
                let Reply::Listed {
                    names,
                    mark,
                    promised,
                    has_more,
                } = &reply
                else {
                    return Err(self.nonsense(What::of(&request), &reply));
                };
                // A shard that was published while later pages came is younger than the first page's mark.
                let list = list.get_or_insert_with(|| ShardList {
                    names: Vec::new(),
                    mark: self.number(&link, *mark),
                    promised: *promised,
                });
                let before = list.names.last().copied();
                let ordered = before.into_iter().chain(names.iter().copied());
                if !ordered.is_sorted_by(|one, next| one < next) || (*has_more && names.is_empty())
                {
                    return Err(self.nonsense(What::of(&request), &reply));
                }
                list.names.extend(names);
                if !has_more {
                    return Ok(list.clone());
                }
                request = Request::List {
                    volume,
                    after: list.names.last().copied(),
                };
            }
        })
    }

    fn sweep(
        &self,
        epoch: Epoch,
        volume: VolumeId,
        names: Vec<ShardName>,
        mark: u64,
    ) -> ShardFuture<'_, SweptShards> {
        Box::pin(async move {
            let mut swept = SweptShards::default();
            let Some((link, mark)) = self.numbered(mark) else {
                // The disk may have been opened again since, and not know any more what was published when.
                swept.kept = names.len() as u64;
                return Ok(swept);
            };
            for names in names.chunks(SWEEP_COUNT_MAX) {
                let request = Request::Sweep {
                    epoch,
                    volume,
                    names: names.to_vec(),
                    mark,
                };
                let what = What::of(&request);
                match self.ask_on(&link, request, Vec::new()).await?.0 {
                    Reply::Swept {
                        removed,
                        kept,
                        errors,
                    } => {
                        swept.removed = swept.removed.saturating_add(removed);
                        swept.kept = swept.kept.saturating_add(kept);
                        swept.errors = swept.errors.saturating_add(errors);
                    }
                    other => return Err(self.nonsense(what, &other)),
                }
            }
            Ok(swept)
        })
    }
}

/// The places and the payload of each request that writes all of `writes`; at least one.
fn batches(writes: Vec<ShardWrite>) -> Vec<(Vec<ShardRange>, Vec<Bytes>)> {
    let mut done = Vec::new();
    let (mut places, mut payload, mut len_bytes) = (Vec::new(), Vec::new(), 0);
    for write in writes {
        let mut place = ShardRange {
            offset: write.offset,
            len_bytes: 0,
        };
        for mut part in write.parts {
            while len_bytes + part.len() > WRITE_LEN_BYTES_MAX {
                let fits = part.split_to(WRITE_LEN_BYTES_MAX - len_bytes);
                // What fits is less than the limit of one request.
                place.len_bytes += fits.len() as u32;
                places.push(place);
                payload.push(fits);
                done.push((std::mem::take(&mut places), std::mem::take(&mut payload)));
                len_bytes = 0;
                place.offset = place.offset.saturating_add(place.len_bytes.into());
                place.len_bytes = 0;
            }
            len_bytes += part.len();
            place.len_bytes += part.len() as u32;
            payload.push(part);
        }
        places.push(place);
    }
    if !places.is_empty() || done.is_empty() {
        done.push((places, payload));
    }
    done
}

/// The first bytes of a payload, taken off it.
fn split_off(payload: &mut Vec<Bytes>, len_bytes: usize) -> Vec<Bytes> {
    let mut taken = Vec::new();
    let mut missing = len_bytes;
    while missing > 0 && !payload.is_empty() {
        let mut part = payload.remove(0);
        if part.len() > missing {
            payload.insert(0, part.split_off(missing));
        }
        missing -= part.len();
        taken.push(part);
    }
    taken
}

/// The verb that was asked, for messages.
#[derive(Clone, Copy)]
struct What {
    verb: &'static str,
    of: Of,
}

#[derive(Clone, Copy)]
enum Of {
    Disk,
    Shard(ShardName),
    Volume(VolumeId),
}

impl What {
    fn of(request: &Request) -> Self {
        let (verb, of) = match request {
            Request::Probe {} => ("probing it", Of::Disk),
            Request::PrepareRecycled { .. } => ("making spare files", Of::Disk),
            Request::ReleaseRecycled {} => ("releasing spare files", Of::Disk),
            Request::Fence { volume, .. } => ("fencing", Of::Volume(*volume)),
            Request::Create { name, .. } => ("creating", Of::Shard(*name)),
            Request::Append { name, .. } => ("appending to", Of::Shard(*name)),
            Request::Seal { footer, .. } => ("sealing", Of::Shard(footer.name)),
            Request::Stat { name } => ("looking at", Of::Shard(*name)),
            Request::Read { name, .. } | Request::ReadChecked { name, .. } => {
                ("reading", Of::Shard(*name))
            }
            Request::Repair { name, .. } => ("repairing", Of::Shard(*name)),
            Request::CreateHidden { name, .. } => ("beginning", Of::Shard(*name)),
            Request::Fill { hidden, .. } => ("filling", Of::Shard(hidden.name)),
            Request::CopyFrom { hidden, .. } => ("copying", Of::Shard(hidden.name)),
            Request::SealHidden { hidden, .. } => ("sealing", Of::Shard(hidden.name)),
            Request::Publish { hidden, .. } => ("publishing", Of::Shard(hidden.name)),
            Request::Discard { hidden, .. } => ("discarding", Of::Shard(hidden.name)),
            Request::Remove { name, .. } => ("removing", Of::Shard(*name)),
            Request::List { volume, .. } => ("listing", Of::Volume(*volume)),
            Request::Sweep { volume, .. } => ("sweeping", Of::Volume(*volume)),
        };
        Self { verb, of }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Of::Disk => f.write_str(self.verb),
            Of::Shard(name) => write!(f, "{} shard {name}", self.verb),
            Of::Volume(volume) => write!(f, "{} volume {volume}", self.verb),
        }
    }
}
