//! Scrub of a volume's records, and the names of the files with corrupt ones.
//!
//! Owns: the walk over the extents and its position, the file that a corrupt record belongs to. Must not know: shards
//! and their checksums (`segment` checks those), when a scrub runs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use cairn_base::{Generation, Ino, SegmentId};
use cairn_meta::{CookieRecord, DirentRecord, InodeRecord, Key, KeyKind};
use cairn_segment::{ErrorKind, Pace};
use futures_util::future::{Either, join_all, select};
use rustc_hash::FxHashMap;

use crate::kernel::{Extent, RecordExtent, meta_error, parse_extent, segment_error};
use crate::rewrite::REWRITE_SEGMENTS_MAX;
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{Fs, ROOT, VolumeCore};

/// Extents that one step visits.
const STEP_EXTENTS_MAX: usize = 256;
/// Records that are read at a time.
const CONCURRENCY: usize = 4;
/// Maximum depth of a file; deeper ones cannot be made through NFS, whose paths are shorter.
const DEPTH_MAX: usize = 4096;
/// Names that are visited before other tasks get their turn.
const VISIT_MAX: usize = 1024;
/// Paths that one call finds, and names of one inode among them.
pub const PATHS_MAX: usize = 1024;
pub const NAMES_MAX: usize = 16;
/// Paths of folders that a call caches.
const FOLDERS_MAX: usize = 4096;

/// An extent, named by its file and its end: the position of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtentAt {
    pub ino: Ino,
    pub end: u64,
}

/// Bytes of a file that are corrupt beyond repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedExtent {
    pub at: ExtentAt,
    pub start: u64,
    pub segment: SegmentId,
    /// A description of the fault.
    pub detail: String,
}

/// The result of one step of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordScrub {
    pub records: u64,
    /// Bytes of those records as stored.
    pub record_bytes: u64,
    pub damaged: Vec<DamagedExtent>,
    /// Extents that could not be checked because too few disks answered.
    pub unreachable: u64,
    /// The position of the next step; `None`: that was the end.
    pub next: Option<ExtentAt>,
}

/// The state of an extent's record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExtentHealth {
    Good,
    /// Too few disks answer now; the text names those that do not.
    Unreachable(String),
    /// No disk has the written bytes; the text describes the fault.
    Damaged(String),
}

#[derive(Default)]
struct CheckedExtents {
    damaged: Vec<DamagedExtent>,
    unreachable: u64,
}

/// The result for segments whose records had to be rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenAnew {
    pub segments: u64,
    /// The segments that still exist.
    pub left: u64,
    /// Calls that could not rewrite everything: data that is out of reach now, or has no room, stays.
    pub errors: u64,
}

/// Names of some inodes, as far as they were found.
struct Names {
    /// The number of names to find for each inode.
    wanted: FxHashMap<Ino, usize>,
    /// The inode, its folder, its name there.
    found: Vec<(Ino, Ino, Vec<u8>)>,
}

impl Fs {
    /// Rewrites the records of segments whose shards are not trustworthy. A crash left some of them without footers,
    /// so it is unknown whether their parity is right. A scrub `found` others: their shards contradict one another,
    /// or a missing shard cannot be rebuilt from the others. Called after all shards were checked, so repairable
    /// segments are not among them.
    ///
    /// Fails only if the volume is closing.
    pub async fn write_anew(
        &self,
        found: Vec<SegmentId>,
        pace: &Pace,
    ) -> Result<WrittenAnew, FsError> {
        let shared = &self.shared;
        let unsealed = std::pin::pin!(shared.segments.unsealed(shared.volume, pace));
        let stopped = std::pin::pin!(shared.tasks.stopped());
        let mut segments = match select(unsealed, stopped).await {
            Either::Left((Ok(unsealed), _)) => unsealed,
            Either::Left((Err(_), _)) | Either::Right(_) => return Err(FsError::Fenced),
        };
        segments.extend(found);
        segments.sort_unstable();
        segments.dedup();
        // Some were deleted since, perhaps before a restart.
        let is_there = |id: &SegmentId| shared.meta.segment(*id).is_some();
        segments.retain(is_there);
        let mut written = WrittenAnew {
            segments: segments.len() as u64,
            ..WrittenAnew::default()
        };
        for some in segments.chunks(REWRITE_SEGMENTS_MAX) {
            match self.rewrite_segments(some, pace).await {
                Ok(_) => {}
                // The list of segments to rewrite must not be lost.
                Err(FsError::Fenced) => return Err(FsError::Fenced),
                Err(error) => {
                    written.errors += 1;
                    tracing::warn!(volume = self.name(), %error, "writing segments anew");
                }
            }
        }
        written.left = segments.into_iter().filter(is_there).count() as u64;
        Ok(written)
    }

    /// Checks the records of the extents behind `after` against their pointers, a few hundred of them. Repairs wrong
    /// bytes where redundancy allows, and returns the extents that are corrupt beyond that. Only counts the extents
    /// on disks that do not answer.
    ///
    /// Fails only if the metadata cannot be read, or the volume is closing.
    pub async fn scrub_records(
        &self,
        after: Option<ExtentAt>,
        pace: &Pace,
    ) -> Result<RecordScrub, FsError> {
        let shared = &self.shared;
        let extents = shared.extents_after(after, STEP_EXTENTS_MAX)?;
        let mut scrub = RecordScrub {
            next: (extents.len() == STEP_EXTENTS_MAX)
                .then(|| extents.last().map(|(at, _)| *at))
                .flatten(),
            ..RecordScrub::default()
        };
        // A record that was partly overwritten has several extents, mostly side by side.
        let mut distinct: Vec<Vec<(ExtentAt, RecordExtent)>> = Vec::new();
        // Inline bytes are in the metadata, which has its own checksums.
        let in_records = extents.into_iter();
        let in_records = in_records.filter_map(|(at, extent)| Some((at, extent.in_record()?)));
        for (at, extent) in in_records {
            match distinct.last_mut() {
                Some(group) if group.iter().all(|(_, last)| last.record == extent.record) => {
                    group.push((at, extent));
                }
                _ => distinct.push(vec![(at, extent)]),
            }
        }
        for groups in distinct.chunks(CONCURRENCY) {
            let bytes = |group: &Vec<(ExtentAt, RecordExtent)>| {
                let record = group.first().map(|(_, extent)| &extent.record);
                record.map_or(0, |record| u64::from(record.location.len_bytes))
            };
            let total: u64 = groups.iter().map(bytes).sum();
            // A volume that was opened elsewhere must release its disks.
            let is_wanted = || !shared.tasks.is_stopping();
            let Some(_turn) = pace.spend_if(total, is_wanted).await else {
                return Err(FsError::Fenced);
            };
            if shared.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let checks = groups.iter().map(|group| shared.check_extents(group));
            for checked in join_all(checks).await {
                let checked = checked?;
                scrub.records += 1;
                scrub.damaged.extend(checked.damaged);
                scrub.unreachable += checked.unreachable;
            }
            scrub.record_bytes += total;
        }
        Ok(scrub)
    }

    /// Whether any part of a corrupt extent still exists in the same segment: it may have been overwritten or deleted
    /// since, or cut into pieces, of which any may be the corrupt one.
    pub fn is_still_there(&self, damaged: &DamagedExtent) -> Result<bool, FsError> {
        Ok(!self.pieces_of(damaged)?.is_empty())
    }

    /// The remaining pieces of an extent that was found corrupt.
    fn pieces_of(&self, damaged: &DamagedExtent) -> Result<Vec<(ExtentAt, RecordExtent)>, FsError> {
        let (from, to) = Key::extents_past(damaged.at.ino, damaged.start);
        let mut pieces = Vec::new();
        let mut failure = None;
        self.shared
            .meta
            .live()
            .scan_with(&from, &to, |key, value, birth| {
                match parse_extent(key, value, birth) {
                    Ok((_, extent)) if extent.start >= damaged.at.end => {
                        return ControlFlow::Break(());
                    }
                    Ok((ino, extent)) => {
                        let end = extent.end;
                        let found = extent.in_record();
                        let found = found.filter(|extent| extent.segment() == damaged.segment);
                        pieces.extend(found.map(|extent| (ExtentAt { ino, end }, extent)));
                    }
                    Err(error) => {
                        failure = Some(meta_error(error));
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })
            .map_err(meta_error)?;
        failure.map_or(Ok(pieces), Err)
    }

    /// Whether corrupt bytes still exist, and still cannot be read. Fails if the metadata cannot be read.
    pub async fn is_still_damaged(&self, damaged: &DamagedExtent) -> Result<bool, FsError> {
        let mut pieces = self.pieces_of(damaged)?;
        pieces.dedup_by(|(_, one), (_, last)| one.record == last.record);
        for (at, extent) in pieces {
            // Bytes that cannot be read now are not known to be good again.
            if self.shared.check_extent(at, &extent).await? != ExtentHealth::Good {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The paths of some inodes, from the root of the volume (`/a/b`): up to [`PATHS_MAX`] names in all, and
    /// [`NAMES_MAX`] of each inode. Makes one pass over all names of the volume, because inodes know no names; in
    /// parts, so that other tasks get their turn.
    pub async fn paths_of(&self, inos: &[Ino]) -> Result<BTreeMap<Ino, Vec<Vec<u8>>>, FsError> {
        let shared = &self.shared;
        let mut paths: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
        let mut names = Names {
            wanted: inos.iter().map(|ino| (*ino, 0)).collect(),
            found: Vec::new(),
        };
        let (from, to) = Key::all_dirents();
        let mut next = (!inos.is_empty()).then_some(from);
        while let Some(from) = next.take() {
            next = shared.find_names(&from, &to, &mut names)?;
            if names.found.len() >= PATHS_MAX {
                tracing::info!(volume = %shared.volume, paths = PATHS_MAX, "more files have names than are looked for");
                break;
            }
            let_others_run().await;
            if shared.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        let mut folders: BTreeMap<Ino, Option<Vec<u8>>> = BTreeMap::new();
        for (ino, dir, name) in names.found {
            // A folder that was removed meanwhile took its names with it.
            if let Some(mut path) = shared.folder_path(dir, &mut folders).await? {
                path.push(b'/');
                path.extend_from_slice(&name);
                paths.entry(ino).or_default().push(path);
            }
        }
        Ok(paths)
    }
}

impl VolumeCore {
    fn extents_after(
        &self,
        after: Option<ExtentAt>,
        count_max: usize,
    ) -> Result<Vec<(ExtentAt, Extent)>, FsError> {
        let (all, to) = Key::all_extents();
        let from = after.map_or(all, |at| Key::extent(at.ino, at.end).successor());
        let mut found = Vec::new();
        let mut failed = None;
        self.meta
            .live()
            .pass_over(&from, &to, |key, value, birth| {
                match parse_extent(key, value, birth) {
                    Ok((ino, extent)) => {
                        let end = extent.end;
                        found.push((ExtentAt { ino, end }, extent));
                        if found.len() < count_max {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(())
                        }
                    }
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })
            .map_err(meta_error)?;
        failed.map_or(Ok(found), |error| Err(meta_error(error)))
    }

    fn extent_at(&self, at: ExtentAt) -> Result<Option<Extent>, FsError> {
        let key = Key::extent(at.ino, at.end);
        let Some(value) = self.meta.live().get(&key).map_err(meta_error)? else {
            return Ok(None);
        };
        let (_, extent) =
            parse_extent(key.as_bytes(), &value, Generation::FIRST).map_err(meta_error)?;
        Ok(Some(extent))
    }

    /// The unreadable ones among some extents of one record. Fails if the metadata cannot be read.
    async fn check_extents(
        &self,
        extents: &[(ExtentAt, RecordExtent)],
    ) -> Result<CheckedExtents, FsError> {
        let mut checked = CheckedExtents::default();
        let Some((_, first)) = extents.first() else {
            return Ok(checked);
        };
        // The verification of tiers checks records in a tier: each read costs, and an unreachable tier is no corruption.
        if self
            .segments
            .is_remote(self.volume, first.record.location.segment)
        {
            return Ok(checked);
        }
        if self
            .segments
            .verify(self.volume, &first.record)
            .await
            .is_ok()
        {
            return Ok(checked);
        }
        // Some may have been moved or overwritten since they were listed, and others not.
        for (at, extent) in extents {
            match self.check_extent(*at, extent).await? {
                ExtentHealth::Good => {}
                ExtentHealth::Unreachable(detail) => {
                    checked.unreachable += 1;
                    tracing::debug!(volume = %self.volume, ino = %at.ino, detail, "bytes of a file cannot be checked now");
                }
                ExtentHealth::Damaged(detail) => checked.damaged.push(DamagedExtent {
                    at: *at,
                    start: extent.start,
                    segment: extent.record.location.segment,
                    detail,
                }),
            }
        }
        Ok(checked)
    }

    /// The state of an extent's record. Fails if the metadata cannot be read.
    async fn check_extent(
        &self,
        at: ExtentAt,
        extent: &RecordExtent,
    ) -> Result<ExtentHealth, FsError> {
        let mut record = extent.record.clone();
        loop {
            let error = match self.segments.verify(self.volume, &record).await {
                Ok(()) => return Ok(ExtentHealth::Good),
                Err(error) => error,
            };
            // The record was moved or overwritten during the read: its present state counts.
            let Some(now) = self.extent_at(at)?.and_then(|extent| extent.in_record()) else {
                return Ok(ExtentHealth::Good);
            };
            if now.record != record {
                record = now.record;
                continue;
            }
            return match error.kind() {
                ErrorKind::Unreachable => Ok(ExtentHealth::Unreachable(error.to_string())),
                ErrorKind::Damaged | ErrorKind::Gone => {
                    Ok(ExtentHealth::Damaged(error.to_string()))
                }
                // The path to the record is gone or has no key; that says nothing about the bytes.
                ErrorKind::NoSpace | ErrorKind::Io | ErrorKind::Fenced => Err(segment_error(error)),
                ErrorKind::Refused => match segment_error(error) {
                    FsError::Fenced => Err(FsError::Fenced),
                    // An invalid pointer.
                    refused => Ok(ExtentHealth::Damaged(refused.to_string())),
                },
            };
        }
    }

    /// Searches names of wanted inodes in a part of the names of the volume; returns the key at which to continue.
    fn find_names(&self, from: &Key, to: &Key, names: &mut Names) -> Result<Option<Key>, FsError> {
        self.visit_some(from, to, |key, value| {
            let KeyKind::Dirent { dir, name } = key else {
                return Ok(());
            };
            let entry = DirentRecord::decode(value)?;
            if let Some(count) = names.wanted.get_mut(&entry.ino)
                && *count < NAMES_MAX
                && names.found.len() < PATHS_MAX
            {
                *count += 1;
                names.found.push((entry.ino, dir, name.to_vec()));
            }
            Ok(())
        })
    }

    /// The path of a folder without its last slash: empty for the root.
    pub(crate) async fn folder_path(
        &self,
        folder: Ino,
        known: &mut BTreeMap<Ino, Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>, FsError> {
        let mut below: Vec<Ino> = Vec::new();
        let mut at = folder;
        let mut path = loop {
            if at == ROOT {
                break Some(Vec::new());
            }
            if let Some(path) = known.get(&at) {
                break path.clone();
            }
            let record = self.meta.live().get(&Key::inode(at)).map_err(meta_error)?;
            let Some(record) = record.filter(|_| below.len() < DEPTH_MAX) else {
                break None;
            };
            below.push(at);
            at = InodeRecord::decode(&record)
                .map_err(|error| FsError::Io(error.to_string()))?
                .parent;
        };
        for child in below.into_iter().rev() {
            let name = self.name_in(at, child).await?;
            path = path.zip(name).map(|(mut path, name)| {
                path.push(b'/');
                path.extend_from_slice(&name);
                path
            });
            if known.len() >= FOLDERS_MAX {
                known.clear();
            }
            known.insert(child, path.clone());
            at = child;
        }
        Ok(path)
    }

    /// The name of `child` in the folder `dir`.
    async fn name_in(&self, dir: Ino, child: Ino) -> Result<Option<Vec<u8>>, FsError> {
        let (from, to) = Key::cookies_after(dir, 0);
        let mut next = Some(from);
        let mut name = None;
        while let Some(from) = next.filter(|_| name.is_none()) {
            next = self.visit_some(&from, &to, |key, value| {
                let entry = CookieRecord::decode(value)?;
                if matches!(key, KeyKind::Cookie { .. }) && entry.ino == child {
                    name = Some(entry.name.to_vec());
                }
                Ok(())
            })?;
            let_others_run().await;
        }
        Ok(name)
    }

    /// Visits up to [`VISIT_MAX`] entries; returns the key at which to continue.
    fn visit_some(
        &self,
        from: &Key,
        to: &Key,
        mut each: impl FnMut(KeyKind<'_>, &[u8]) -> Result<(), cairn_meta::MetaError>,
    ) -> Result<Option<Key>, FsError> {
        let mut seen = 0;
        let mut last = Ok(None);
        let visited = self.meta.live().pass_over(from, to, |key, value, _| {
            seen += 1;
            let done = KeyKind::parse(key)
                .map_err(cairn_meta::MetaError::from)
                .and_then(|key| each(key, value));
            match done {
                Ok(()) if seen < VISIT_MAX => return ControlFlow::Continue(()),
                Ok(()) => last = Key::parse(key).map(Some).map_err(Into::into),
                Err(error) => last = Err(error),
            }
            ControlFlow::Break(())
        });
        visited.map_err(meta_error)?;
        let last: Option<Key> = last.map_err(meta_error)?;
        Ok(last.map(|key| key.successor()))
    }
}
