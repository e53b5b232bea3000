//! The recount: counts every number of the metadata again from its records, and compares the volume's space with the
//! files on its disks.
//!
//! Owns: which records must agree with which. Must not know: the operations of clients. It counts between two steps of
//! the executor, so that nothing changes meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{Generation, Ino, SegmentId};
use cairn_erasure::Code;
use cairn_fs::{GcBacklog, VolumeSpace};
use cairn_meta::{
    CookieRecord, DirentRecord, ExtentPlace, ExtentRecord, InodeKind, InodeRecord, Key, KeyKind,
    MetaStore, Owner, QuotaKey, UsageRecord,
};
use cairn_segment::SegmentStore;
use cairn_testkit::MemDisk;
use futures_util::future::{Either, select};

use crate::world::VOLUME;

/// If the state takes longer than this to apply the submitted changes, it has no space.
const APPLIED_WAIT_MAX: Duration = Duration::from_secs(30);

/// The volume's free space, counted from the files on the disks. That is simple only if each segment uses all disks;
/// otherwise there is no result.
pub fn space(
    disks: &[&MemDisk],
    segments: &SegmentStore,
    code: Code,
    said: VolumeSpace,
    dirty_bytes: u64,
) -> Result<(), String> {
    let status = segments.disk_status();
    // Without disks that failed, and disks that have not promised yet to refuse earlier owners.
    let takes_shards = status.iter().filter(|disk| segments.takes_shards(disk.id));
    if usize::from(code.total()) != disks.len() || takes_shards.count() != disks.len() {
        return Ok(());
    }
    // Segments of another code are on some of the disks only, and their room does not fit all data.
    let asked = segments.protections(VOLUME);
    if asked.is_none_or(|asked| !asked.is_empty()) {
        return Ok(());
    }
    let reserve: Vec<u64> = segments
        .space()
        .disks
        .iter()
        .map(|disk| disk.reserve_bytes)
        .collect();
    let mut room_bytes = u64::MAX;
    for (disk, reserve_bytes) in disks.iter().zip(reserve) {
        let total_bytes = disk.space().map_err(|error| error.to_string())?.total_bytes;
        let files = disk.file_sizes();
        let used = files.iter().filter(|(name, _)| !name.starts_with("free/"));
        let used_bytes: u64 = used.map(|(_, len_bytes)| len_bytes).sum();
        let room = total_bytes.saturating_sub(used_bytes + reserve_bytes);
        room_bytes = room_bytes.min(room);
    }
    if room_bytes == 0 {
        return Ok(());
    }
    let stats = segments.stats();
    let room_bytes = room_bytes * u64::from(code.data()) + stats.open_room_bytes;
    let want_bytes = room_bytes.min(said.total_bytes).saturating_sub(dirty_bytes);
    if said.free_bytes.abs_diff(want_bytes) > said.total_bytes / 100 {
        return Err(format!(
            "the volume says {said:?}, its disks have {want_bytes} free"
        ));
    }
    Ok(())
}

/// After a long idle time: no segment is kept without need, and no shard exists without a segment.
pub fn garbage(
    disks: &[&MemDisk],
    segments: &SegmentStore,
    backlog: GcBacklog,
) -> Result<(), String> {
    if backlog.orphans > 0 || backlog.dead_segments > 0 {
        return Err(format!("garbage is left: {backlog:?}"));
    }
    let known: BTreeSet<u64> = segments
        .segments(VOLUME)
        .into_iter()
        .map(|info| info.id.0)
        .collect();
    for disk in disks {
        for (name, _) in disk.file_sizes() {
            let Some(shard) = name.strip_prefix("shards/") else {
                continue;
            };
            let digits = shard.split(['/', '.']).nth(1).unwrap_or_default();
            let id = u64::from_str_radix(digits, 16).map_err(|error| format!("{name}: {error}"))?;
            if !known.contains(&id) {
                return Err(format!("{name} is of no segment"));
            }
        }
    }
    Ok(())
}

/// Counts again; an error names the disagreement. Snapshots are counted if the state holds them.
pub async fn recount(env: &Env, meta: &MetaStore) -> Result<(), String> {
    let has_history = is_all_applied(env, meta).await;
    let mut count = Recount {
        meta,
        has_history,
        inodes: BTreeMap::new(),
        orphans: BTreeSet::new(),
        links: BTreeMap::new(),
        subdirs: BTreeMap::new(),
        live: BTreeMap::new(),
        file_bytes: 0,
        stored_bytes: 0,
        history_bytes: 0,
        usages: BTreeMap::new(),
    };
    count.load()?;
    count.check_directories()?;
    count.check_links()?;
    count.check_extents()?;
    count.check_usages()?;
    count.check_history()?;
    count.check_counters()
}

/// Waits until the state has applied everything submitted. False if that takes too long, as without space.
async fn is_all_applied(env: &Env, meta: &MetaStore) -> bool {
    let all_applied = std::pin::pin!(async {
        loop {
            let last = meta.last_ticket();
            if meta.applied(last).await.is_err() {
                return false;
            }
            if meta.last_ticket() == last {
                return true;
            }
        }
    });
    match select(all_applied, env.clock.sleep(APPLIED_WAIT_MAX)).await {
        Either::Left((is_applied, _)) => is_applied,
        Either::Right(_) => false,
    }
}

struct Recount<'a> {
    meta: &'a MetaStore,
    has_history: bool,
    inodes: BTreeMap<Ino, InodeRecord>,
    orphans: BTreeSet<Ino>,
    /// Number of names of each inode.
    links: BTreeMap<Ino, u32>,
    subdirs: BTreeMap<Ino, u32>,
    /// Live bytes and records of each segment.
    live: BTreeMap<SegmentId, (u64, u64)>,
    file_bytes: u64,
    stored_bytes: u64,
    history_bytes: u64,
    /// Usage for quotas.
    usages: BTreeMap<QuotaKey, UsageRecord>,
}

impl Recount<'_> {
    fn scan(
        &self,
        range: (Key, Key),
        mut visit: impl FnMut(KeyKind<'_>, &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut failed = Ok(());
        self.meta
            .live()
            .scan_with(&range.0, &range.1, |key, value, _| {
                failed = KeyKind::parse(key)
                    .map_err(|error| error.to_string())
                    .and_then(|kind| visit(kind, value));
                match failed {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
            .map_err(|error| format!("scanning the metadata: {error}"))?;
        failed
    }

    fn load(&mut self) -> Result<(), String> {
        let mut inodes = BTreeMap::new();
        self.scan(Key::inodes(), |key, value| {
            let KeyKind::Inode(ino) = key else {
                return Err(format!("{key:?} among the inodes"));
            };
            let record = InodeRecord::decode(value).map_err(|error| error.to_string())?;
            inodes.insert(ino, record);
            Ok(())
        })?;
        let mut orphans = BTreeSet::new();
        self.scan(Key::orphans(), |key, _| {
            let KeyKind::Orphan(ino) = key else {
                return Err(format!("{key:?} among the orphans"));
            };
            orphans.insert(ino);
            Ok(())
        })?;
        self.inodes = inodes;
        self.orphans = orphans;
        Ok(())
    }

    fn check_directories(&mut self) -> Result<(), String> {
        let dirs: Vec<(Ino, InodeRecord)> = self
            .inodes
            .iter()
            .filter(|(_, record)| record.kind == InodeKind::Directory)
            .map(|(ino, record)| (*ino, record.clone()))
            .collect();
        for (dir, record) in dirs {
            let at = |text: String| format!("directory {dir}: {text}");
            let mut by_cookie = BTreeMap::new();
            let mut entries = Vec::new();
            self.scan(Key::dirents(dir), |key, value| {
                let KeyKind::Dirent { name, .. } = key else {
                    return Err(format!("{key:?} among the entries"));
                };
                let entry = DirentRecord::decode(value).map_err(|error| error.to_string())?;
                entries.push((name.to_vec(), entry.ino, entry.kind));
                by_cookie.insert(entry.cookie, (entry.ino, name.to_vec()));
                Ok(())
            })
            .map_err(at)?;
            let mut cookie_count = 0u64;
            self.scan(Key::cookies_after(dir, 0), |key, value| {
                let KeyKind::Cookie { seq, .. } = key else {
                    return Err(format!("{key:?} among the cookies"));
                };
                let cookie = CookieRecord::decode(value).map_err(|error| error.to_string())?;
                cookie_count += 1;
                let entry = by_cookie.get(&seq);
                if entry.is_none_or(|entry| *entry != (cookie.ino, cookie.name.to_vec())) {
                    return Err(format!("cookie {seq} and its entry do not agree"));
                }
                if seq >= record.cookie_next {
                    return Err(format!("cookie {seq} was not given yet"));
                }
                Ok(())
            })
            .map_err(at)?;
            let count = entries.len() as u64;
            if count != by_cookie.len() as u64 || count != cookie_count {
                return Err(at(format!("{count} entries, {cookie_count} cookies")));
            }
            if count != record.entry_count {
                return Err(at(format!(
                    "counts {} entries, has {count}",
                    record.entry_count
                )));
            }
            for (name, ino, kind) in entries {
                let name = String::from_utf8_lossy(&name).into_owned();
                let child = self
                    .inodes
                    .get(&ino)
                    .ok_or_else(|| at(format!("{name} names inode {ino}, which is not there")))?;
                if child.kind != kind {
                    return Err(at(format!("{name} is another kind than its inode")));
                }
                *self.links.entry(ino).or_default() += 1;
                if kind == InodeKind::Directory {
                    *self.subdirs.entry(dir).or_default() += 1;
                    if child.parent != dir {
                        return Err(at(format!("{name} says that it is in {}", child.parent)));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), String> {
        for (ino, record) in &self.inodes {
            let names = self.links.get(ino).copied().unwrap_or(0);
            let is_root = *ino == Ino(1);
            let want = match record.kind {
                InodeKind::Directory => 2 + self.subdirs.get(ino).copied().unwrap_or(0),
                _ => names,
            };
            if record.nlink == 0 || self.orphans.contains(ino) {
                if names != 0 || record.nlink != 0 || !self.orphans.contains(ino) {
                    return Err(format!(
                        "inode {ino} has {} links, {names} names, and is {} orphan",
                        record.nlink,
                        if self.orphans.contains(ino) {
                            "an"
                        } else {
                            "no"
                        }
                    ));
                }
                continue;
            }
            if record.nlink != want {
                return Err(format!(
                    "inode {ino} counts {} links, has {want}",
                    record.nlink
                ));
            }
            if names == 0 && !is_root {
                return Err(format!("inode {ino} has no name"));
            }
            if record.kind == InodeKind::Directory && names > 1 {
                return Err(format!("directory {ino} has {names} names"));
            }
        }
        match self
            .orphans
            .iter()
            .find(|ino| !self.inodes.contains_key(ino))
        {
            Some(ino) => Err(format!("orphan {ino} is not there")),
            None => Ok(()),
        }
    }

    fn check_extents(&mut self) -> Result<(), String> {
        let mut used: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
        let mut last: Option<(Ino, u64)> = None;
        let mut live: BTreeMap<SegmentId, (u64, u64)> = BTreeMap::new();
        let (mut file_bytes, mut stored_bytes) = (0, 0);
        self.scan(Key::all_extents(), |key, value| {
            let KeyKind::Extent { ino, end_offset } = key else {
                return Err(format!("{key:?} among the extents"));
            };
            let extent = ExtentRecord::decode(value).map_err(|error| error.to_string())?;
            let at = |text: &str| {
                format!(
                    "extent {}..{end_offset} of inode {ino}: {text}",
                    extent.start
                )
            };
            if extent.start >= end_offset {
                return Err(at("is empty"));
            }
            if last.is_some_and(|(other, end)| other == ino && end > extent.start) {
                return Err(at("overlaps the one before"));
            }
            last = Some((ino, end_offset));
            let len = end_offset - extent.start;
            let room = u64::from(extent.place.room_len_bytes());
            let is_inline = matches!(extent.place, ExtentPlace::Inline(_));
            if len > room || is_inline && len != room {
                return Err(at("is longer than where its bytes are"));
            }
            let inode = self
                .inodes
                .get(&ino)
                .ok_or_else(|| at("its inode is not there"))?;
            if !self.orphans.contains(&ino) && end_offset > inode.size_bytes {
                return Err(at("is past the end of the file"));
            }
            let stored = extent.place.stored_len_bytes(len);
            match &extent.place {
                ExtentPlace::Record { record, .. } => {
                    let segment = record.location.segment;
                    if self.meta.segment(segment).is_none() {
                        return Err(at("is in a segment that is not there"));
                    }
                    let entry = live.entry(segment).or_default();
                    entry.0 += stored;
                    entry.1 += 1;
                }
                ExtentPlace::Inline(_) if self.meta.is_encrypted() => {
                    return Err(at("has plain bytes of an encrypted volume"));
                }
                ExtentPlace::Inline(_) => {}
            }
            file_bytes += len;
            stored_bytes += stored;
            let of_inode = used.entry(ino).or_default();
            of_inode.0 += len;
            of_inode.1 += stored;
            Ok(())
        })?;
        for (ino, record) in &self.inodes {
            let (used, stored) = used.get(ino).copied().unwrap_or_default();
            // The extents of an orphan are removed before the orphan.
            let noted = (record.used_bytes, record.stored_bytes);
            if !self.orphans.contains(ino) && noted != (used, stored) {
                return Err(format!(
                    "inode {ino} uses {noted:?} bytes of files and as stored, its extents {used} and {stored}"
                ));
            }
            let owner = Owner {
                tree: record.tree,
                uid: record.uid,
                gid: record.gid,
            };
            for key in owner.keys() {
                let usage = self.usages.entry(key).or_default();
                usage.inodes += 1;
                usage.file_bytes += used;
                usage.stored_bytes += stored;
            }
        }
        self.live = live;
        self.file_bytes = file_bytes;
        self.stored_bytes = stored_bytes;
        Ok(())
    }

    /// Checks the usage of trees, users and groups.
    fn check_usages(&self) -> Result<(), String> {
        let mut counted: BTreeMap<_, _> = self.meta.own_usages().into_iter().collect();
        for (key, want) in &self.usages {
            let is = counted.remove(key).unwrap_or_default();
            if is != *want {
                return Err(format!(
                    "quotas count {is:?} of {key:?}, which has {want:?}"
                ));
            }
        }
        match counted.first_key_value() {
            Some((key, is)) => Err(format!("quotas count {is:?} of {key:?}, which has nothing")),
            None => Ok(()),
        }
    }

    /// Checks the data that only snapshots hold: each version is seen by some snapshot, and extents count as those of
    /// the volume.
    fn check_history(&mut self) -> Result<(), String> {
        if !self.has_history {
            return Ok(());
        }
        let (from, to) = Key::everything();
        let versions = self.meta.history(&from, &to, None, usize::MAX);
        let versions = versions.map_err(|error| format!("reading the history: {error}"))?;
        let snapshots = self.meta.snapshots();
        let is_freeing = !self.meta.deleted_snapshots().is_empty();
        for version in versions {
            let sees = |at: &Generation| version.birth <= *at && *at < version.death;
            if !is_freeing && !snapshots.iter().any(|(at, _)| sees(at)) {
                return Err(format!("no snapshot sees {version:?}"));
            }
            let Ok(KeyKind::Extent { end_offset, .. }) = version.key.kind() else {
                continue;
            };
            let value = version.value.as_ref();
            let value = value.ok_or_else(|| format!("{version:?} has no value"))?;
            let extent = ExtentRecord::decode(value).map_err(|error| error.to_string())?;
            let len = end_offset.saturating_sub(extent.start);
            let stored = extent.place.stored_len_bytes(len);
            if let ExtentPlace::Record { record, .. } = &extent.place {
                let segment = record.location.segment;
                if self.meta.segment(segment).is_none() {
                    return Err(format!("{version:?} is in a segment that is not there"));
                }
                let entry = self.live.entry(segment).or_default();
                entry.0 += stored;
                entry.1 += 1;
            }
            self.history_bytes += stored;
            self.stored_bytes += stored;
        }
        Ok(())
    }

    fn check_counters(&self) -> Result<(), String> {
        let counters = self.meta.counters();
        let has_snapshots = !self.meta.snapshots().is_empty() || counters.history_bytes > 0;
        if has_snapshots && !self.has_history {
            return Ok(());
        }
        let pairs = [
            ("inodes", counters.inodes, self.inodes.len() as u64),
            ("file bytes", counters.file_bytes, self.file_bytes),
            ("stored bytes", counters.stored_bytes, self.stored_bytes),
            (
                "bytes of snapshots",
                counters.history_bytes,
                self.history_bytes,
            ),
            ("errors of counters", self.meta.stats().counter_errors, 0),
        ];
        for (what, is, want) in pairs {
            if is != want {
                return Err(format!("the volume counts {is} {what}, has {want}"));
            }
        }
        for (id, record) in self.meta.segments() {
            let want = self.live.get(&id).copied().unwrap_or((0, 0));
            if (record.live_bytes, record.live_records) != want {
                return Err(format!(
                    "segment {id} counts {} live bytes in {} records, has {want:?}",
                    record.live_bytes, record.live_records
                ));
            }
        }
        Ok(())
    }
}
