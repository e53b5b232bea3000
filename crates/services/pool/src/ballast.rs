//! Room that each disk of this server keeps for what a start, a takeover and a delete need, where other programs fill its
//! file system.
//!
//! Owns: the files that take that room beforehand, how large they are, who gets what of it, and when it is made again; that what
//! found no room is tried again as soon as there is some.
//! Must not know: what is written into that room; how a volume is opened, or copies of its metadata are made.
//!
//! On disk: `ballast/0` to `ballast/3`, whole and empty. Nothing is ever read from them, and a crash may lose them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::{Disk, DiskError, DiskSpace, OpenMode};
use cairn_fs::Fs;
use cairn_shard::ShardDisk;

use crate::pool::Pool;

/// Where the files are on their disk.
pub const BALLAST_FOLDER: &str = "ballast";

/// How often it is looked whether there is room.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// So many files: each time that something finds no room, one of them goes.
const PIECE_COUNT: usize = 4;
/// So many of them are only given up to open a volume: a server that found no room for long may be killed at any time.
const PIECES_FOR_START: usize = 2;
/// What a start writes on a disk whatever volumes there are: the pool file and its identity beside what they replace, folders.
const START_BYTES: u64 = 512 << 10;
/// And for each volume: a short file of the log, copies of what of it has too few, RocksDB's list of files, options and own log, each
/// beside the one that it replaces, and the promise of the disk.
const VOLUME_BYTES: u64 = 1 << 20;
/// More volumes than so many have not all their metadata on one disk.
const VOLUMES_MAX: u64 = 64;
/// A large disk keeps a longer file of the log for what goes on.
const PIECE_BYTES_MAX: u64 = 8 << 20;
/// Less than this is no help.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// All of them take this part of a disk,
const DISK_PART: u64 = 128;
/// and where starts write more, that, but no more than this part.
const DISK_PART_MAX: u64 = 32;
/// One is made only where so many times its size is free: others must not find the disk full because of it.
const FREE_PIECES_MIN: u64 = 3 * PIECE_COUNT as u64;
/// An opening is given no more than this part of a disk.
const OPENING_PART: u64 = 16;
/// A disk with less than this free is short of room,
const SHORT_BYTES_MAX: u64 = 32 << 20;
/// or with less than this part of it, if that is enough for an opening.
const SHORT_PART: u64 = 64;
/// So much more room on a disk that was short is worth another try.
const ROOM_CAME_BYTES: u64 = 1 << 20;
/// Copies of metadata that found no room are tried again after so long once there is some, later and later,
const COPIES_PAUSE: Duration = Duration::from_secs(1);
/// but no less often than this,
const COPIES_PAUSE_MAX: Duration = Duration::from_secs(60);
/// and this often: each try begins another file of the log.
const COPIES_TRIES_MAX: u32 = 10;

/// The observed room on the disks.
#[derive(Debug, Default)]
pub(crate) struct RoomSeen {
    /// Disks that are short of room, and how much they had when that was least.
    short: BTreeMap<DiskId, u64>,
    /// Disks that have all their ballast, and how large each file of it was wanted.
    whole: BTreeMap<DiskId, u64>,
    /// How often metadata of whichever node found no room on each disk.
    fulls: BTreeMap<DiskId, u64>,
    copies: Option<CopiesAgain>,
}

/// When copies of metadata are tried again.
#[derive(Debug)]
struct CopiesAgain {
    at: Duration,
    pause: Duration,
    tries_left: u32,
}

impl CopiesAgain {
    fn new(now: Duration) -> Self {
        Self {
            at: now,
            pause: COPIES_PAUSE,
            tries_left: COPIES_TRIES_MAX,
        }
    }

    /// Whether it is time; the next time is later.
    fn take_turn(&mut self, now: Duration) -> bool {
        let is_due = self.tries_left > 0 && self.at <= now;
        if is_due {
            self.tries_left -= 1;
            self.at = now + self.pause;
            self.pause = (self.pause * 2).min(COPIES_PAUSE_MAX);
        }
        is_due
    }
}

impl RoomSeen {
    /// Takes how often metadata found no room on the disks. Whether it did since the last look.
    fn note_fulls(&mut self, fulls: BTreeMap<DiskId, u64>) -> bool {
        let before = |id: &DiskId| self.fulls.get(id).copied().unwrap_or(0);
        let is_more = fulls.iter().any(|(id, count)| *count > before(id));
        self.fulls = fulls;
        is_more
    }

    /// Takes how much room the disks have that are short of it now. Whether some came where there was too little.
    fn note(&mut self, short: BTreeMap<DiskId, u64>) -> bool {
        let came = |(id, least): (&DiskId, &u64)| match short.get(id) {
            Some(free_bytes) => *free_bytes >= least.saturating_add(ROOM_CAME_BYTES),
            None => true,
        };
        let has_come = self.short.iter().any(came);
        let before = std::mem::take(&mut self.short);
        self.short = short
            .into_iter()
            .map(|(id, free_bytes)| {
                let least = before.get(&id).copied().unwrap_or(free_bytes);
                // What came is tried with; from then on more has to come.
                let least = match has_come {
                    true => free_bytes,
                    false => least.min(free_bytes),
                };
                (id, least)
            })
            .collect();
        has_come
    }
}

fn piece_name(index: usize) -> String {
    format!("{BALLAST_FOLDER}/{index}")
}

/// The size of one file on a disk of so many bytes, in a pool of so many volumes: those for starts alone are enough for one start.
fn piece_bytes(total_bytes: u64, volume_count: u64) -> u64 {
    let volumes = volume_count.clamp(1, VOLUMES_MAX);
    let start = START_BYTES + volumes * VOLUME_BYTES;
    let wanted = start / PIECES_FOR_START as u64;
    let part = total_bytes / DISK_PART / PIECE_COUNT as u64;
    let most = total_bytes / DISK_PART_MAX / PIECE_COUNT as u64;
    let align = IO_ALIGN_BYTES as u64;
    wanted.max(part.min(PIECE_BYTES_MAX)).min(most) / align * align
}

/// Bytes that have to be free on a disk of `total_bytes` when a volume is opened.
fn opening_bytes(total_bytes: u64) -> u64 {
    (START_BYTES + VOLUME_BYTES).min(total_bytes / OPENING_PART)
}

/// With less than this free a disk of so many bytes is short of room.
fn least_bytes(total_bytes: u64) -> u64 {
    let least = SHORT_BYTES_MAX.min(total_bytes / SHORT_PART);
    least.max(opening_bytes(total_bytes))
}

/// Whether a disk has room for so many bytes that can wait: the last of it is for starts, takeovers and deletes.
pub fn has_room_to_spare(space: DiskSpace, len_bytes: u64) -> bool {
    space.free_bytes >= least_bytes(space.total_bytes).saturating_add(len_bytes)
}

/// The free bytes of a disk that is short of room.
fn short_bytes(disk: &dyn Disk) -> Option<u64> {
    let space = disk.space().ok()?;
    (space.free_bytes < least_bytes(space.total_bytes)).then_some(space.free_bytes)
}

/// How much of its ballast a disk gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BallastRelease {
    /// As much as makes an opening possible.
    Opening,
    /// One file, where not even so much is free as one of them gives: what was given up before is used, or others have it.
    IfUsedUp,
    /// One file.
    One,
}

impl BallastRelease {
    /// Whether a disk has it already.
    fn is_there(self, space: DiskSpace, piece_bytes: u64) -> bool {
        match self {
            Self::Opening => space.free_bytes >= opening_bytes(space.total_bytes),
            Self::IfUsedUp => space.free_bytes >= piece_bytes,
            Self::One => false,
        }
    }
}

/// Whether the metadata of a volume finds no room. One that is only read wants none before it is opened again.
fn finds_no_room(fs: &Fs) -> bool {
    fs.read_only().is_none() && fs.meta().is_full()
}

/// Which of the files are there.
async fn pieces(disk: &dyn Disk) -> Result<BTreeSet<usize>, DiskError> {
    let names = disk.list(BALLAST_FOLDER).await?;
    let indices = names.iter().filter_map(|name| name.parse::<usize>().ok());
    Ok(indices.filter(|index| *index < PIECE_COUNT).collect())
}

/// Makes those files that are missing or shorter than wanted, as far as there is ample room. Whether all are there then, or none is
/// wanted.
async fn make(disk: &dyn Disk, len_bytes: u64) -> Result<bool, DiskError> {
    if len_bytes < PIECE_BYTES_MIN {
        return Ok(true);
    }
    let has_room = |free_bytes: u64| free_bytes >= len_bytes * FREE_PIECES_MIN;
    // First: a disk that has no room is not asked what is on it, again and again.
    if !has_room(disk.space()?.free_bytes) {
        return Ok(false);
    }
    let there = pieces(disk).await?;
    for index in 0..PIECE_COUNT {
        let name = piece_name(index);
        if there.contains(&index) {
            let is_long = match disk.open(&name, OpenMode::Existing).await {
                Ok(file) => file.len_bytes() >= len_bytes,
                Err(DiskError::NotFound { .. }) => false,
                Err(error) => return Err(error),
            };
            if is_long {
                continue;
            }
        }
        if !has_room(disk.space()?.free_bytes) {
            return Ok(false);
        }
        match disk.remove(&name).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let mode = OpenMode::CreateNew { len_bytes };
        match disk.open(&name, mode).await {
            Ok(_) | Err(DiskError::Exists { .. }) => {}
            Err(DiskError::Full { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Gives one of the files up, unless no more than `kept` are there. Whether it did.
async fn give_up(disk: &dyn Disk, kept: usize) -> Result<bool, DiskError> {
    let there = pieces(disk).await?;
    let Some(last) = there.last().filter(|_| there.len() > kept) else {
        return Ok(false);
    };
    match disk.remove(&piece_name(*last)).await {
        Ok(()) => {}
        Err(DiskError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    // Some file systems give the blocks of a file to others only when its removal is durable.
    disk.sync_folder(BALLAST_FOLDER).await?;
    Ok(true)
}

impl Pool {
    /// The disks of this server that answer; none that is only about to join.
    fn answering_disks(&self) -> Vec<Arc<ShardDisk>> {
        let table = self.table();
        let mut disks = table.disks();
        disks.retain(|disk| {
            let id = disk.id();
            table.works(id) && table.member(id).is_some() && !disk.is_silent()
        });
        disks
    }

    /// The size of one file of a disk's ballast.
    fn piece_bytes(&self, disk: &dyn Disk) -> Result<u64, DiskError> {
        let volumes = self.state().volumes.len() as u64;
        Ok(piece_bytes(disk.space()?.total_bytes, volumes))
    }

    /// Keeps room on each disk for what must go on where others fill it.
    async fn keep_room(&self) {
        for disk in self.answering_disks() {
            // Others can only fill what is a folder of this machine.
            if disk.disk().folder().is_none() {
                continue;
            }
            let made = async {
                let len_bytes = self.piece_bytes(&**disk.disk())?;
                if self.room.lock().whole.get(&disk.id()) == Some(&len_bytes) {
                    return Ok(());
                }
                if make(&**disk.disk(), len_bytes).await? {
                    self.room.lock().whole.insert(disk.id(), len_bytes);
                }
                Ok::<_, DiskError>(())
            };
            if let Err(error) = made.await {
                tracing::debug!(%error, "no ballast on this disk");
            }
        }
    }

    /// Gives some of the room up that disks keep which are short of it, as long as more than `kept` parts are there. Whether
    /// there is some more now.
    async fn give_room_up(&self, kept: usize, wanted: BallastRelease) -> bool {
        let mut is_any = false;
        for disk in self.answering_disks() {
            if disk.disk().folder().is_none() {
                continue;
            }
            let Some(free_bytes) = short_bytes(&**disk.disk()) else {
                continue;
            };
            {
                let mut room = self.room.lock();
                room.whole.remove(&disk.id());
                // Also before the first look: what a start found no room for is tried again when some comes.
                room.short.entry(disk.id()).or_insert(free_bytes);
            }
            // Each time there is one file less, so this ends.
            while !self.has_wanted(&**disk.disk(), wanted) {
                match give_up(&**disk.disk(), kept).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(%error, "the ballast of a disk cannot be given up");
                        break;
                    }
                }
                is_any = true;
                // What it gave up itself is no room that came.
                if let Some(free_bytes) = short_bytes(&**disk.disk()) {
                    self.room.lock().short.insert(disk.id(), free_bytes);
                }
                tracing::warn!(
                    disk = disk.label(),
                    "this disk is full; some of its ballast was given up"
                );
                if wanted == BallastRelease::One {
                    break;
                }
            }
        }
        is_any
    }

    /// One that does not tell its space is asked for nothing.
    fn has_wanted(&self, disk: &dyn Disk, wanted: BallastRelease) -> bool {
        let (Ok(space), Ok(piece_bytes)) = (disk.space(), self.piece_bytes(disk)) else {
            return true;
        };
        wanted.is_there(space, piece_bytes)
    }

    /// Before a volume is opened: all that there is may be used for it, and each of many volumes must find some.
    pub(crate) async fn make_room_to_open(&self) {
        self.give_room_up(0, BallastRelease::Opening).await;
    }

    /// For another try to save the pool's state. Whether there is some more room.
    pub(crate) async fn make_room_to_save(&self) -> bool {
        self.give_room_up(PIECES_FOR_START, BallastRelease::IfUsedUp)
            .await
    }

    /// For another try to open a volume that found no room. Whether there is some more.
    pub(crate) async fn make_more_room_to_open(&self) -> bool {
        self.give_room_up(0, BallastRelease::One).await
    }

    /// Whether some disk has room for what an opening writes.
    pub(crate) fn has_room_to_open(&self) -> bool {
        let room = |disk: &Arc<ShardDisk>| {
            let space = disk.disk().space();
            space.is_ok_and(|space| space.free_bytes >= opening_bytes(space.total_bytes))
        };
        self.answering_disks().iter().any(room)
    }

    /// One look, each [`LOOK_INTERVAL`].
    pub(crate) async fn tend_room(&self) {
        let now = self.env.clock.monotonic();
        let disks = self.answering_disks();
        let short = disks.iter().filter_map(|disk| {
            let free_bytes = short_bytes(&**disk.disk())?;
            Some((disk.id(), free_bytes))
        });
        let fulls = disks.iter().map(|disk| (disk.id(), disk.metadata_fulls()));
        let (has_come, is_asked_for) = {
            let (short, fulls) = (short.collect(), fulls.collect());
            let mut room = self.room.lock();
            let has_come = room.note(short);
            if has_come {
                room.copies = Some(CopiesAgain::new(now));
            }
            (has_come, room.note_fulls(fulls))
        };
        if has_come {
            self.open_failed_soon(now);
        }
        // Volumes of this node, and files of those of others.
        if is_asked_for || self.serving_all().iter().any(finds_no_room) {
            self.give_room_up(PIECES_FOR_START, BallastRelease::IfUsedUp)
                .await;
        } else {
            self.keep_room().await;
        }
    }

    /// Makes copies of metadata that found no room, once there is some. In a cluster the log does that by itself. Not part of
    /// [`Self::tend_room`]: another change of the pool, which this waits for, may itself wait for room.
    pub(crate) async fn copy_where_room_came(&self) {
        if self.seats.is_some() || self.serving_all().iter().any(finds_no_room) {
            return;
        }
        let now = self.env.clock.monotonic();
        // A read-only volume gets no copies before it is opened for changes.
        let lacks = |fs: &Fs| fs.read_only().is_none() && fs.meta().stats().is_degraded();
        let lacking: Vec<Fs> = self.serving_all().into_iter().filter(lacks).collect();
        // Copies that are missing because a disk is away are not the concern of this check.
        let found_no_room = |fs: &Fs| {
            let stats = fs.meta().stats();
            stats.log_is_short || stats.ship_errors > 0
        };
        let found_none = lacking.iter().any(found_no_room);
        {
            let mut room = self.room.lock();
            if lacking.is_empty() {
                room.copies = None;
                return;
            }
            // Room may have come while the server was not there to see it, or in steps that are too small to be noted.
            if room.copies.is_none() && room.short.is_empty() && found_none {
                room.copies = Some(CopiesAgain::new(now));
            }
            if room.copies.as_mut().is_none_or(|it| !it.take_turn(now)) {
                return;
            }
        }
        let Ok(_changes) = self.begin_change().await else {
            return;
        };
        let state = self.state();
        for fs in lacking {
            let volume = state.volumes.iter().find(|it| it.id == fs.volume());
            if let Some(volume) = volume
                && self.metadata_trouble(&fs).is_none()
            {
                self.set_copies(&fs, &volume.settings).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::MemDisk;

    use super::*;

    const MIB: u64 = 1 << 20;
    const DISK_BYTES: u64 = 1024 * MIB;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work)
    }

    /// What one file takes, of four.
    #[test]
    fn it_is_as_large_as_starts_need_and_a_small_part_of_a_disk() {
        const KIB: u64 = 1 << 10;
        // The disk, volumes, and one of the four files.
        let cases = [
            (16 * MIB, 1, 128 * KIB),
            (224 * MIB, 0, 768 * KIB),
            (224 * MIB, 1, 768 * KIB),
            (384 * MIB, 4, 9 * MIB / 4),
            (384 * MIB, 100, 3 * MIB),
            (DISK_BYTES, 1, 2 * MIB),
            (1 << 40, 1, PIECE_BYTES_MAX),
            (1 << 40, 32, 65 * MIB / 4),
            (1 << 40, 1000, 129 * MIB / 4),
        ];
        for (total_bytes, volumes, want) in cases {
            let got = piece_bytes(total_bytes, volumes);
            assert_eq!(got, want, "{total_bytes} {volumes}");
            assert!(PIECE_COUNT as u64 * got <= total_bytes / DISK_PART_MAX);
        }
    }

    #[test]
    fn what_can_wait_leaves_what_an_opening_needs() {
        for total_bytes in [8 * MIB, 64 * MIB, DISK_BYTES, 1 << 40] {
            let space = |free_bytes| DiskSpace {
                total_bytes,
                free_bytes,
            };
            let least = least_bytes(total_bytes);
            assert!(least >= opening_bytes(total_bytes), "{total_bytes}");
            assert!(has_room_to_spare(space(least + 4096), 4096));
            assert!(!has_room_to_spare(space(least + 4095), 4096));
            assert!(!BallastRelease::Opening.is_there(space(0), 4096));
            assert!(BallastRelease::Opening.is_there(space(least), 4096));
        }
    }

    #[test]
    fn it_is_given_up_where_others_fill_the_disk_and_made_again() {
        block_on(async {
            let len_bytes = piece_bytes(DISK_BYTES, 1);
            let disk = MemDisk::new("disk", DISK_BYTES);
            assert!(make(&*disk, len_bytes).await.unwrap());
            assert!(make(&*disk, len_bytes).await.unwrap(), "all is there");
            let ballast_bytes = PIECE_COUNT as u64 * len_bytes;
            assert_eq!(disk.used_bytes(), ballast_bytes);
            assert_eq!(short_bytes(&*disk), None);
            disk.fill(DISK_BYTES - ballast_bytes);
            assert_eq!(short_bytes(&*disk), Some(0));
            let has = |wanted: BallastRelease| wanted.is_there(disk.space().unwrap(), len_bytes);
            assert!(!has(BallastRelease::IfUsedUp));
            let mut given_up = 0;
            while give_up(&*disk, PIECES_FOR_START).await.unwrap() {
                given_up += 1;
            }
            assert_eq!(given_up, PIECE_COUNT - PIECES_FOR_START);
            assert!(short_bytes(&*disk).is_some(), "it is short still");
            assert!(
                has(BallastRelease::IfUsedUp),
                "but what was given up is free"
            );
            // Without ample room nothing is made: what came is for others.
            assert!(!make(&*disk, len_bytes).await.unwrap());
            assert!(give_up(&*disk, 0).await.unwrap());
            assert!(give_up(&*disk, 0).await.unwrap());
            assert!(!give_up(&*disk, 0).await.unwrap(), "none is left");
            assert!(has(BallastRelease::Opening));
            assert_eq!(disk.used_bytes(), 0);
            disk.fill(0);
            assert!(make(&*disk, len_bytes).await.unwrap());
            assert_eq!(disk.used_bytes(), ballast_bytes);
        });
    }

    #[test]
    fn it_grows_with_the_number_of_volumes() {
        block_on(async {
            let disk = MemDisk::new("disk", DISK_BYTES);
            for volumes in [1, 4, 6, 2] {
                let len_bytes = piece_bytes(DISK_BYTES, volumes);
                assert!(make(&*disk, len_bytes).await.unwrap());
                let least = PIECE_COUNT as u64 * len_bytes;
                assert!(disk.used_bytes() >= least, "{volumes}");
            }
            let most = PIECE_COUNT as u64 * piece_bytes(DISK_BYTES, 6);
            assert_eq!(disk.used_bytes(), most);
        });
    }

    #[test]
    fn more_room_on_a_short_disk_is_worth_a_try_and_less_is_not() {
        let at = |free_bytes: &[u64]| -> BTreeMap<DiskId, u64> {
            let ids = (0..).map(DiskId);
            ids.zip(free_bytes.iter().copied()).collect()
        };
        let mut seen = RoomSeen::default();
        // Free bytes of the disks that are short, one after the other, and whether room came.
        let looks: &[(&[u64], bool)] = &[
            (&[], false),
            (&[0, 0], false),
            (&[10, 0], false),
            (&[ROOM_CAME_BYTES, 0], true),
            (&[ROOM_CAME_BYTES, 0], false),
            (&[0, 0], false),
            (&[ROOM_CAME_BYTES + 1, 0], true),
            (&[ROOM_CAME_BYTES + 1], true),
            (&[], true),
            (&[], false),
        ];
        for (index, (free_bytes, want)) in looks.iter().enumerate() {
            assert_eq!(seen.note(at(free_bytes)), *want, "look {index}");
        }
    }

    #[test]
    fn metadata_that_found_no_room_is_seen_once() {
        let mut seen = RoomSeen::default();
        let looks = [(0, false), (0, false), (2, true), (2, false), (3, true)];
        for (count, want) in looks {
            let fulls = BTreeMap::from([(DiskId(1), count), (DiskId(2), 0)]);
            assert_eq!(seen.note_fulls(fulls), want, "{count}");
        }
    }

    #[test]
    fn copies_are_tried_later_and_later_and_not_for_ever() {
        let mut again = CopiesAgain::new(Duration::ZERO);
        let seconds = (0..1000).map(Duration::from_secs);
        let tries: Vec<u64> = seconds
            .filter(|now| again.take_turn(*now))
            .map(|now| now.as_secs())
            .collect();
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }
}
