//! The state in RocksDB, without a write-ahead log: the commit log serves as one.
//!
//! Owns: RocksDB's options, checkpoints on other disks, how a checkpoint becomes the state. Must not know: keys, except
//! those of position and lineage.
//!
//! On the primary's disk the state is the folder `state`. A copy on another disk is a folder `replica.N`. It counts
//! once its file `checkpoint` exists: that file is written last, and names every file with length and CRC32C. SST files
//! never change, and their numbers are never reused in one line of states (a lineage). So a new copy hard-links the
//! files that an older copy on the disk has.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::{Disk, DiskError};
use cairn_base::{VolumeId, crc32c, crc32c_append};
use cairn_formats::metadata::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor, FileEntry};
use cairn_formats::metadata::{AppliedRecord, Key};
use parking_lot::Mutex;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, DB, DBCompressionType, Env, LogLevel, Options,
    WriteBatch, WriteOptions,
};

use super::exported::Exported;
use super::rocks_read::RocksReader;
use super::{
    Candidate, ShipResult, Source, StateCursor, StateFuture, StateKey, StateStore, Turn, blocking,
    blocking_on, while_it_answers,
};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::settings::{MetaSettings, STATE_FILE_BYTES};

const DESCRIPTOR: &str = "checkpoint";
/// Folder of a copy that is made to be shipped, on the disk of the state.
const SHIP_NEW: &str = "ship.new";
/// Folder in which RocksDB makes that copy.
const SHIP_NEW_BEGUN: &str = "ship.new.tmp";
/// Folder of a copy that becomes the state.
const STATE_NEW: &str = "state.new";
/// Approximate size of the pieces in which data, index and filters of an SST file are read and cached.
const TABLE_BLOCK_BYTES: usize = 8 << 10;
const COPY_BUFFER_BYTES: usize = 1 << 20;
/// Parallel flushes and compactions of a state.
const BACKGROUND_JOBS: i32 = 2;
/// Interval of the check whether an abandoned state can be closed.
const LEFT_POLL: Duration = Duration::from_secs(1);
/// Number of abandoned states.
static LEFT_COUNT: AtomicI32 = AtomicI32::new(0);
/// Bytes of reused files that each shipment reads and checks, in turn: otherwise bit rot in one copy would stay in all
/// later ones.
const CHECK_BYTES_MAX: u64 = 64 << 20;
/// RocksDB allocates its manifest in pieces of this size. Its default, 4 MiB, exceeds the space that a full disk
/// reserves for an opening. On some file systems a failed allocation takes all remaining space.
const LIST_PIECE_BYTES: usize = 64 << 10;
/// Free space that a copy leaves for concurrent writes of others.
const SHIP_ROOM_BYTES: u64 = 4 << 20;

/// A RocksDB that was opened to read its position.
pub(crate) struct OpenState {
    db: DB,
    path: PathBuf,
    /// The copy beside it that it was made of, if the state still has all its tables.
    made_of: Option<Descriptor>,
}

impl OpenState {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn made_of(&self) -> Option<&Descriptor> {
        self.made_of.as_ref()
    }
}

/// Whether a state has all tables of a copy, as hard links to its files.
fn has_tables_of(state: &Path, replica: &Replica) -> bool {
    let is_shared = |file: &FileEntry| {
        let found = |folder: &Path| fs::metadata(folder.join(&file.name)).ok();
        let (Some(one), Some(other)) = (found(state), found(&replica.path)) else {
            return false;
        };
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    };
    let files = &replica.descriptor.files;
    files
        .iter()
        .filter(|file| is_sst(&file.name))
        .all(is_shared)
}

/// A shipped copy that was found and not verified yet.
pub(crate) struct Replica {
    path: PathBuf,
    descriptor: Descriptor,
}

impl Replica {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn applied(&self) -> AppliedRecord {
        self.descriptor.applied
    }

    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
}

/// A copy that is being made of files from another node.
pub(super) struct NewReplica {
    path: PathBuf,
    older: Vec<(u64, PathBuf)>,
    descriptor: Descriptor,
}

impl NewReplica {
    pub async fn begin(
        disks: &DiskSet,
        index: usize,
        descriptor: Descriptor,
    ) -> Result<Self, MetaError> {
        let folder = volume_path(disks, index)
            .ok_or_else(|| MetaError::State("the disk of the state is no folder".to_owned()))?;
        let disk = disks.get(index).disk.clone();
        blocking_on(disks, index, move || {
            require_room(&*disk, &folder, &descriptor)?;
            let older = replica_paths(&folder)?;
            let number = older.iter().map(|(number, _)| *number).max().unwrap_or(0) + 1;
            let path = replica_path(&folder, number);
            make_folders(&path)?;
            Ok(Self {
                path,
                older,
                descriptor,
            })
        })
        .await
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Links a table from an older copy of this line, if it is intact there.
    pub fn link(&self, file: &FileEntry) -> Result<bool, MetaError> {
        if !is_sst(&file.name) || self.descriptor.lineage == 0 {
            return Ok(false);
        }
        let to = self.path.join(&file.name);
        for (_, older) in &self.older {
            let Ok(Some(other)) = read_descriptor(older) else {
                continue;
            };
            let has = other.lineage == self.descriptor.lineage && other.files.contains(file);
            if !has || fs::hard_link(older.join(&file.name), &to).is_err() {
                continue;
            }
            if checksum_of(&to).ok() == Some((file.len_bytes, file.crc)) {
                return Ok(true);
            }
            fs::remove_file(&to).map_err(|error| failed("removing", &to, &error))?;
        }
        Ok(false)
    }

    pub fn create(&self, file: &FileEntry) -> Result<File, MetaError> {
        let path = self.path.join(&file.name);
        File::create(&path).map_err(|error| failed("making", &path, &error))
    }

    /// Adds the path to an error.
    pub fn done(&self, result: io::Result<()>) -> Result<(), MetaError> {
        result.map_err(|error| failed("writing", &self.path, &error))
    }

    /// Completes the copy: all files are here and synced. From here on it counts, and older ones are removed.
    pub fn finish(&self) -> Result<Replica, MetaError> {
        sync_folder(&self.path)?;
        finish_replica(&self.path, &self.descriptor)?;
        for (_, older) in &self.older {
            remove_folder(older)?;
        }
        Ok(Replica {
            path: self.path.clone(),
            descriptor: self.descriptor.clone(),
        })
    }
}

fn replica_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("replica.{number:016x}"))
}

struct RocksState {
    db: Arc<DB>,
    reader: RocksReader,
    disks: DiskSet,
    index: usize,
    /// Identifies the line of states that share file names.
    lineage: u64,
    /// Checksums of SST files that were read already, by name.
    checksums: Arc<Mutex<HashMap<String, FileEntry>>>,
}

const WRONG_CHECKSUM: &str = "Corruption: its checksum is wrong";

/// Message of both RocksDB and the host for a full disk.
const NO_SPACE: &str = "No space left on device";

/// Messages for bytes that the host cannot read, and for bytes that RocksDB finds corrupt.
const DAMAGES: [&str; 2] = ["Input/output error", "Corruption: "];

pub(super) fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> MetaError {
    let text = format!("{what} {}: {error}", path.display());
    // RocksDB resumes by itself when there is space again: it tries every five seconds.
    if text.contains(NO_SPACE) {
        MetaError::Full(text)
    } else if DAMAGES.iter().any(|damage| text.contains(damage)) {
        MetaError::StateDamaged(text)
    } else {
        MetaError::State(text)
    }
}

/// As [`failed`], on the disk of a copy: the error says nothing about the state itself.
fn failed_there(what: &str, path: &Path, error: &dyn std::fmt::Display) -> MetaError {
    there(failed(what, path, error))
}

fn there(error: MetaError) -> MetaError {
    match error {
        MetaError::StateDamaged(text) => MetaError::State(text),
        error => error,
    }
}

fn volume_path(disks: &DiskSet, index: usize) -> Option<PathBuf> {
    let member = disks.get(index);
    Some(member.disk.folder()?.join(disks.folder()))
}

fn options(settings: &MetaSettings) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&settings.cache.blocks);
    table.set_block_size(TABLE_BLOCK_BYTES);
    table.set_bloom_filter(10.0, false);
    // The cache counts and limits these, like data blocks, so they are in blocks of that size. A filter of a megabyte
    // in one piece does not fit into a shard of the cache, and would be read from the file for every lookup of a name
    // (measured: a million creations at a third of the rate).
    table.set_cache_index_and_filter_blocks(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(TABLE_BLOCK_BYTES);
    table.set_pin_top_level_index_and_filter(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(5);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_paranoid_checks(true);
    options.set_write_buffer_size(settings.write_buffer_bytes);
    options.set_write_buffer_manager(&settings.cache.write_buffers);
    options.set_max_write_buffer_number(3);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_max_open_files(i32::try_from(settings.open_files_max).unwrap_or(i32::MAX));
    options.set_target_file_size_base(STATE_FILE_BYTES);
    options.set_target_file_size_multiplier(1);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_bytes_per_sync(1 << 20);
    // Lookups of absent names are frequent; the filter spares the search.
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.05);
    options.set_allow_concurrent_memtable_write(false);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_manifest_preallocation_size(LIST_PIECE_BYTES);
    options
}

fn open_db(path: &Path, settings: &MetaSettings, create: bool) -> Result<DB, MetaError> {
    let mut options = options(settings);
    options.create_if_missing(create);
    DB::open(&options, path).map_err(|error| failed("opening the state at", path, &error))
}

fn read_applied(db: &DB, path: &Path) -> Result<AppliedRecord, MetaError> {
    let value = db
        .get(Key::applied().as_bytes())
        .map_err(|error| failed("reading the state at", path, &error))?;
    Ok(match value {
        Some(value) => AppliedRecord::decode(&value)?,
        None => AppliedRecord::default(),
    })
}

fn unlogged() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

/// The states in a volume's folder.
#[derive(Default)]
struct FolderStates {
    /// The state and the newest copy, as far as they are usable.
    usable: Vec<(AppliedRecord, bool, Source)>,
    /// Folders that were being made or removed when a store ended.
    leftovers: Vec<PathBuf>,
}

/// Adds the state and the newest copy on a disk to `candidates`, and the remains of others to `leftovers`.
pub(super) async fn discover(
    disks: &DiskSet,
    index: usize,
    settings: &MetaSettings,
    candidates: &mut Vec<Candidate>,
    leftovers: &mut Vec<Candidate>,
) {
    let Some(folder) = volume_path(disks, index) else {
        return;
    };
    let settings = settings.clone();
    let volume = disks.volume;
    let found = blocking_on(disks, index, move || {
        Ok(discover_in(&folder, volume, &settings))
    });
    let found = found.await.unwrap_or_default();
    for path in found.leftovers {
        leftovers.push(Candidate::leftover(index, path));
    }
    for (applied, is_primary, source) in found.usable {
        candidates.push(Candidate {
            disk: index,
            applied,
            is_primary,
            source,
        });
    }
}

fn discover_in(folder: &Path, volume: VolumeId, settings: &MetaSettings) -> FolderStates {
    let mut found = FolderStates::default();
    let path = folder.join("state");
    let there = path.join("CURRENT").try_exists();
    let there = there.map_err(|error| failed("looking at", &path, &error));
    let opened = there.and_then(|is_there| {
        if !is_there {
            return Ok(None);
        }
        let db = open_db(&path, settings, false)?;
        let applied = read_applied(&db, &path)?;
        let made_of = None;
        Ok(Some((applied, OpenState { db, path, made_of })))
    });
    let mut state = opened.unwrap_or_else(|error| {
        tracing::error!("{error}; looking for another copy");
        None
    });
    let mut replicas = replica_paths(folder).unwrap_or_else(|error| {
        tracing::error!("{error}; looking for copies of the state elsewhere");
        Vec::new()
    });
    replicas.sort();
    // The newest intact copy.
    while let Some((_, path)) = replicas.pop() {
        match read_descriptor(&path) {
            Ok(Some(descriptor)) if descriptor.volume == volume => {
                let replica = Replica { path, descriptor };
                let applied = replica.descriptor.applied;
                if let Some((_, state)) = &mut state
                    && has_tables_of(&state.path, &replica)
                {
                    state.made_of = Some(replica.descriptor.clone());
                }
                found
                    .usable
                    .push((applied, false, Source::Replica(replica)));
                break;
            }
            Ok(_) => found.leftovers.push(path),
            Err(error) => tracing::warn!("copy of the state at {}: {error}", path.display()),
        }
    }
    if let Some((applied, state)) = state {
        found
            .usable
            .push((applied, true, Source::Rocks(Box::new(state))));
    }
    let older = replicas.into_iter().map(|(_, path)| path);
    let half_made = [SHIP_NEW, SHIP_NEW_BEGUN, STATE_NEW].map(|name| folder.join(name));
    let half_made = half_made.into_iter().filter(|path| path.exists());
    found.leftovers.extend(older.chain(half_made));
    found
}

/// The state and the newest copy on a disk, each opened read-only: RocksDB then takes no lock and makes no file.
pub(super) async fn discover_to_read(
    disks: &DiskSet,
    index: usize,
    settings: &MetaSettings,
) -> Vec<(AppliedRecord, Arc<dyn StateStore>)> {
    let Some(folder) = volume_path(disks, index) else {
        return Vec::new();
    };
    let (settings, volume) = (settings.clone(), disks.volume);
    let opened = blocking_on(disks, index, move || {
        Ok(open_to_read_in(&folder, volume, &settings))
    });
    let opened = opened.await.unwrap_or_default().into_iter();
    opened
        .map(|(applied, db)| (applied, state_of(disks, index, db, 0)))
        .collect()
}

fn open_to_read_in(
    folder: &Path,
    volume: VolumeId,
    settings: &MetaSettings,
) -> Vec<(AppliedRecord, DB)> {
    let mut paths = Vec::new();
    let state = folder.join("state");
    if state.join("CURRENT").exists() {
        paths.push(state);
    }
    let mut replicas = replica_paths(folder).unwrap_or_default();
    replicas.sort();
    let newest = replicas.into_iter().rev().find_map(|(_, path)| {
        let descriptor = read_descriptor(&path).ok()??;
        (descriptor.volume == volume).then_some(Replica { path, descriptor })
    });
    if let Some(replica) = newest {
        match verify(&replica) {
            Ok(()) => paths.push(replica.path),
            Err(error) => tracing::error!("{error}; looking for another copy"),
        }
    }
    let open = |path: &Path| -> Result<(AppliedRecord, DB), MetaError> {
        let db = DB::open_for_read_only(&options(settings), path, false)
            .map_err(|error| failed("opening the state to be read at", path, &error))?;
        Ok((read_applied(&db, path)?, db))
    };
    let opened = paths.iter().filter_map(|path| match open(path) {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::error!("{error}; looking for another copy");
            None
        }
    });
    opened.collect()
}

/// Verifies all files of a copy against its descriptor.
fn verify(replica: &Replica) -> Result<(), MetaError> {
    for file in &replica.descriptor.files {
        let from = replica.path.join(&file.name);
        let found = checksum_of(&from).map_err(|error| failed("reading", &from, &error))?;
        if found != (file.len_bytes, file.crc) {
            return Err(failed("using", &from, &WRONG_CHECKSUM));
        }
    }
    Ok(())
}

/// The folders of copies in a volume's folder, with their numbers. On an error the copies are unknown, and a new one
/// might overwrite one that counts.
fn replica_paths(folder: &Path) -> Result<Vec<(u64, PathBuf)>, MetaError> {
    let reading = |error: io::Error| failed_there("looking for copies in", folder, &error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>().map_err(reading)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(reading(error)),
    };
    let number = |path: &Path| {
        let digits = path.file_name()?.to_str()?.strip_prefix("replica.")?;
        let number = u64::from_str_radix(digits, 16).ok()?;
        // The next number must exist, too.
        (number < u64::MAX).then_some(number)
    };
    let paths = entries.into_iter().map(|entry| entry.path());
    let numbered = paths.filter_map(|path| Some((number(&path)?, path)));
    Ok(numbered.collect())
}

pub(super) fn open(
    disks: &DiskSet,
    index: usize,
    state: OpenState,
) -> Result<Arc<dyn StateStore>, MetaError> {
    let lineage = read_lineage(&state.db, &state.path)?;
    Ok(state_of(disks, index, state.db, lineage))
}

/// As [`open`], for a state that was closed since it was found.
pub(super) async fn reopen(
    disks: &DiskSet,
    index: usize,
    path: PathBuf,
    settings: &MetaSettings,
) -> Result<Arc<dyn StateStore>, MetaError> {
    let settings = settings.clone();
    let opened = blocking_on(disks, index, move || {
        let db = open_db(&path, &settings, false)?;
        let made_of = None;
        Ok(OpenState { db, path, made_of })
    });
    open(disks, index, opened.await?)
}

fn state_of(disks: &DiskSet, index: usize, db: DB, lineage: u64) -> Arc<dyn StateStore> {
    let db = Arc::new(db);
    Arc::new(RocksState {
        reader: RocksReader::new(db.clone(), disks.get(index).disk.clone()),
        db,
        disks: disks.clone(),
        index,
        lineage,
        checksums: Arc::default(),
    })
}

/// 0 if there is none: then no file of an older copy is taken for a file of this state.
fn read_lineage(db: &DB, path: &Path) -> Result<u64, MetaError> {
    let value = db
        .get(Key::lineage().as_bytes())
        .map_err(|error| failed("reading the state at", path, &error))?;
    let number = value.and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?)));
    Ok(number.unwrap_or(0))
}

pub(super) async fn create(
    disks: &DiskSet,
    index: usize,
    settings: &MetaSettings,
    lineage: u64,
) -> Result<Arc<dyn StateStore>, MetaError> {
    let path = state_path(disks, index)?;
    let settings = settings.clone();
    let db = blocking_on(disks, index, move || {
        remove_folder(&path)?;
        // RocksDB syncs the contents of the folder, but not its name; and the log is cut at the position of the state.
        make_folders(&path)?;
        start_lineage(open_db(&path, &settings, true)?, &path, lineage)
    })
    .await?;
    Ok(state_of(disks, index, db, lineage))
}

/// Verifies a copy, makes it the state of its own disk, and opens that.
pub(super) async fn from_replica(
    disks: &DiskSet,
    index: usize,
    replica: Replica,
    settings: &MetaSettings,
    lineage: u64,
) -> Result<Arc<dyn StateStore>, MetaError> {
    install(disks, index, replica, settings, lineage).await?;
    let path = state_path(disks, index)?;
    let settings = settings.clone();
    let opening = blocking_on(disks, index, move || open_db(&path, &settings, false));
    Ok(state_of(disks, index, opening.await?, lineage))
}

/// Verifies a copy and makes it the state of its own disk with hard links, without moving bytes. The state must be
/// closed.
pub(super) async fn install(
    disks: &DiskSet,
    index: usize,
    replica: Replica,
    settings: &MetaSettings,
    lineage: u64,
) -> Result<(), MetaError> {
    let path = state_path(disks, index)?;
    let settings = settings.clone();
    blocking_on(disks, index, move || {
        let made = path.with_file_name(STATE_NEW);
        remove_folder(&made)?;
        make_folders(&made)?;
        for file in &replica.descriptor.files {
            let from = replica.path.join(&file.name);
            let to = made.join(&file.name);
            let found = checksum_of(&from).map_err(|error| failed("reading", &from, &error))?;
            if found != (file.len_bytes, file.crc) {
                return Err(failed("using", &from, &WRONG_CHECKSUM));
            }
            // All files except SST files change in place.
            let taken = if is_sst(&file.name) {
                fs::hard_link(&from, &to).or_else(|_| copy_file(&from, &to))
            } else {
                copy_file(&from, &to)
            };
            taken.map_err(|error| failed("copying", &from, &error))?;
        }
        // Before it becomes the state. Otherwise a later start would go on in the lineage of its source, with other
        // bytes in files of one name.
        drop(start_lineage(
            open_db(&made, &settings, false)?,
            &made,
            lineage,
        )?);
        sync_folder(&made)?;
        remove_folder(&path)?;
        fs::rename(&made, &path).map_err(|error| failed("renaming", &made, &error))?;
        sync_parent(&path)
    })
    .await
}

fn state_path(disks: &DiskSet, index: usize) -> Result<PathBuf, MetaError> {
    volume_path(disks, index)
        .map(|folder| folder.join("state"))
        .ok_or_else(|| MetaError::State("the disk of the state is no folder".to_owned()))
}

/// A folder that cannot be read may contain a state.
pub(super) fn is_there(disks: &DiskSet, index: usize) -> bool {
    let path = state_path(disks, index).map(|path| path.join("CURRENT"));
    path.is_ok_and(|path| path.try_exists().unwrap_or(true))
}

/// Starts a new lineage: from here on the files of this state belong to no other.
fn start_lineage(db: DB, path: &Path, lineage: u64) -> Result<DB, MetaError> {
    db.put_opt(
        Key::lineage().as_bytes(),
        lineage.to_be_bytes(),
        &unlogged(),
    )
    .and_then(|()| db.flush())
    .map_err(|error| failed("writing the state at", path, &error))?;
    Ok(db)
}

impl StateStore for RocksState {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        self.reader.get(key)
    }

    fn cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        Box::new(self.reader.cursor(from, to))
    }

    fn passing_cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        Box::new(self.reader.passing_cursor(from, to))
    }

    fn apply(
        &self,
        writes: &mut dyn Iterator<Item = (StateKey, Option<Bytes>)>,
    ) -> Result<(), MetaError> {
        let mut batch = WriteBatch::default();
        for (key, value) in writes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        self.db
            .write_opt(batch, &unlogged())
            .map_err(|error| failed("the state at", self.db.path(), &error))
    }

    fn flush(&self) -> StateFuture<'_, Result<(), MetaError>> {
        let db = self.db.clone();
        Box::pin(blocking(move || {
            db.flush()
                .map_err(|error| failed("flushing the state at", db.path(), &error))
        }))
    }

    fn ship(
        &self,
        disks: Vec<usize>,
        applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>> {
        let shipment = self.shipment(applied);
        let target = |index: &usize| Target {
            disks: self.disks.clone(),
            index: *index,
        };
        let targets: Vec<_> = disks.iter().map(target).collect();
        let own = volume_path(&self.disks, self.index);
        Box::pin(blocking(move || {
            let own =
                own.ok_or_else(|| MetaError::State("the state is in no folder".to_owned()))?;
            let results = shipment.run(&own, targets);
            drop(turn);
            results
        }))
    }

    fn export(
        &self,
        applied: AppliedRecord,
        turn: Turn,
    ) -> StateFuture<'_, Result<Exported, MetaError>> {
        let shipment = self.shipment(applied);
        let own = volume_path(&self.disks, self.index);
        Box::pin(blocking(move || {
            let own =
                own.ok_or_else(|| MetaError::State("the state is in no folder".to_owned()))?;
            let (checkpoint, descriptor) = shipment.checkpoint(&own)?;
            Ok(Exported::of_folder(descriptor, checkpoint, turn))
        }))
    }

    fn disk(&self) -> usize {
        self.index
    }

    fn leave(&self) {
        // RocksDB does the work of all states of a process on a few threads. Threads that hang with this state are
        // missing for its successor, which could not even be opened.
        let left_count = LEFT_COUNT.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        let thread_count = BACKGROUND_JOBS.saturating_add(left_count);
        match Env::new() {
            Ok(mut env) => {
                env.set_high_priority_background_threads(thread_count);
                env.set_low_priority_background_threads(thread_count);
            }
            Err(error) => tracing::error!(%error, "there are no more threads for RocksDB"),
        }
        // Closing waits for those threads, so the last owner must not close it.
        let db = self.db.clone();
        let close = move || {
            while Arc::strong_count(&db) > 1 {
                std::thread::sleep(LEFT_POLL);
            }
            drop(db);
        };
        let thread = std::thread::Builder::new().name("meta-left".to_owned());
        if let Err(error) = thread.spawn(close) {
            tracing::error!(%error, "there is no thread to close a state that was left behind");
            std::mem::forget(self.db.clone());
        }
    }
}

impl RocksState {
    fn shipment(&self, applied: AppliedRecord) -> Shipment {
        Shipment {
            db: self.db.clone(),
            volume: self.disks.volume,
            applied,
            lineage: self.lineage,
            checksums: self.checksums.clone(),
        }
    }
}

/// The inputs of a shipment, on its thread.
struct Shipment {
    db: Arc<DB>,
    volume: VolumeId,
    applied: AppliedRecord,
    lineage: u64,
    checksums: Arc<Mutex<HashMap<String, FileEntry>>>,
}

/// A disk that gets a copy.
struct Target {
    disks: DiskSet,
    index: usize,
}

impl Target {
    /// Whether the disk still takes copies. Checked again after each step that may have hung with the disk. Meanwhile
    /// this store may have been abandoned, and the folder may belong to another store that was opened in its place.
    fn check(&self) -> Result<(), MetaError> {
        match self.disks.takes_copies(self.index) {
            true => Ok(()),
            false => Err(MetaError::State(
                "nothing is put on this disk any more".to_owned(),
            )),
        }
    }

    /// Runs on a thread of its own: a hanging disk does not delay the others.
    fn ship(self, checkpoint: &Path, descriptor: &Arc<Descriptor>) -> ShipResult {
        let (disks, index) = (self.disks.clone(), self.index);
        let Some(folder) = volume_path(&disks, index) else {
            let why = "the disk is no folder".to_owned();
            return (index, Err(MetaError::State(why)));
        };
        let (checkpoint, descriptor) = (checkpoint.to_owned(), descriptor.clone());
        let disk = Arc::clone(&disks.get(index).disk);
        let work = move || {
            require_room(&*disk, &folder, &descriptor)?;
            ship_to(&folder, &checkpoint, &descriptor, &|| self.check())
        };
        (index, while_it_answers(&*disks.get(index).disk, work))
    }
}

/// Refuses a copy without room: each attempt would take all space from others for a while.
fn require_room(disk: &dyn Disk, folder: &Path, descriptor: &Descriptor) -> Result<(), MetaError> {
    let older: Vec<Descriptor> = replica_paths(folder)?
        .iter()
        .filter_map(|(_, path)| read_descriptor(path).ok()?)
        .filter(|older| older.lineage == descriptor.lineage)
        .collect();
    let is_there = |file: &&FileEntry| {
        let mut older = older.iter();
        is_sst(&file.name) && older.any(|older| older.files.contains(file))
    };
    let new = descriptor.files.iter().filter(|file| !is_there(file));
    let needed_bytes = new.map(|file| file.len_bytes).sum::<u64>() + SHIP_ROOM_BYTES;
    let free_bytes = disk.space().map_err(MetaError::Disk)?.free_bytes;
    match free_bytes < needed_bytes {
        false => Ok(()),
        true => Err(MetaError::Disk(DiskError::Full {
            disk: disk.label().to_owned(),
            what: format!("a copy of the metadata, which needs {needed_bytes} bytes"),
        })),
    }
}

impl Shipment {
    /// Makes a checkpoint beside the state, and describes its contents.
    fn checkpoint(&self, own: &Path) -> Result<(PathBuf, Descriptor), MetaError> {
        let checkpoint = own.join(SHIP_NEW);
        remove_folder(&checkpoint)?;
        let made =
            Checkpoint::new(&*self.db).and_then(|maker| maker.create_checkpoint(&checkpoint));
        made.map_err(|error| failed("making a checkpoint of", self.db.path(), &error))?;
        let descriptor = self.describe(&checkpoint)?;
        Ok((checkpoint, descriptor))
    }

    fn run(&self, own: &Path, targets: Vec<Target>) -> Result<Vec<ShipResult>, MetaError> {
        let (checkpoint, descriptor) = self.checkpoint(own)?;
        let descriptor = Arc::new(descriptor);
        let targets = targets.into_iter();
        let results = targets.map(|target| target.ship(&checkpoint, &descriptor));
        let results = results.collect();
        remove_folder(&checkpoint)?;
        Ok(results)
    }

    fn describe(&self, checkpoint: &Path) -> Result<Descriptor, MetaError> {
        let read = |error: io::Error| failed("reading the checkpoint", checkpoint, &error);
        let mut files = Vec::new();
        let mut known = self.checksums.lock();
        for entry in fs::read_dir(checkpoint).map_err(read)? {
            let entry = entry.map_err(read)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let file = match known.get(&name) {
                Some(file) => file.clone(),
                None => {
                    let (len_bytes, crc) = checksum_of(&entry.path()).map_err(read)?;
                    FileEntry {
                        name,
                        len_bytes,
                        crc,
                    }
                }
            };
            files.push(file);
        }
        // Only existing files are kept, so that this stays as small as the state.
        known.clear();
        for file in files.iter().filter(|file| is_sst(&file.name)) {
            known.insert(file.name.clone(), file.clone());
        }
        Ok(Descriptor {
            volume: self.volume,
            applied: self.applied,
            lineage: self.lineage,
            files,
        })
    }
}

/// Makes a new copy beside the old one, which is removed once the new one counts.
fn ship_to(
    folder: &Path,
    checkpoint: &Path,
    descriptor: &Descriptor,
    check: &dyn Fn() -> Result<(), MetaError>,
) -> Result<(), MetaError> {
    check()?;
    let older = replica_paths(folder)?;
    let number = older.iter().map(|(number, _)| *number).max().unwrap_or(0) + 1;
    let made = replica_path(folder, number);
    let checked = in_turn(&descriptor.files, number);
    let filled = fill_replica(&made, &older, checkpoint, descriptor, &checked);
    let shipped = filled.and_then(|()| {
        check()?;
        finish_replica(&made, descriptor)?;
        check()
    });
    if shipped.is_err() {
        // Frees space for the log and the state. A folder that stays is replaced or ignored later.
        let _ = fs::remove_dir_all(&made);
        return shipped;
    }
    for (_, path) in older {
        remove_folder(&path).map_err(there)?;
    }
    Ok(())
}

fn fill_replica(
    made: &Path,
    older: &[(u64, PathBuf)],
    checkpoint: &Path,
    descriptor: &Descriptor,
    checked: &[&FileEntry],
) -> Result<(), MetaError> {
    make_folders(made).map_err(there)?;
    let same_line: Vec<(&PathBuf, Descriptor)> = older
        .iter()
        .filter_map(|(_, path)| Some((path, read_descriptor(path).ok()??)))
        .filter(|(_, other)| other.lineage == descriptor.lineage && descriptor.lineage != 0)
        .collect();
    for file in &descriptor.files {
        let to = made.join(&file.name);
        // Whether this line of states wrote other bytes under the name before. After a restart, only the old copy shows
        // it.
        let was_other = |other: &FileEntry| other.name == file.name && other != file;
        let mut older = same_line.iter().flat_map(|(_, other)| &other.files);
        if is_sst(&file.name) && older.any(was_other) {
            let from = checkpoint.join(&file.name);
            return Err(failed("shipping", &from, &WRONG_CHECKSUM));
        }
        let has = same_line
            .iter()
            .find(|(_, other)| is_sst(&file.name) && other.files.contains(file));
        let mut is_linked =
            has.is_some_and(|(path, _)| fs::hard_link(path.join(&file.name), &to).is_ok());
        if is_linked && checked.contains(&file) {
            let found = checksum_of(&to).ok();
            if found != Some((file.len_bytes, file.crc)) {
                tracing::warn!(file = %to.display(), "damaged in a copy of the state; taken again");
                fs::remove_file(&to).map_err(|error| failed_there("removing", &to, &error))?;
                is_linked = false;
            }
        }
        if !is_linked {
            let from = checkpoint.join(&file.name);
            copy_checked(&from, &to, file)?;
        }
    }
    sync_folder(made).map_err(there)
}

/// From here on the copy counts.
fn finish_replica(made: &Path, descriptor: &Descriptor) -> Result<(), MetaError> {
    let temporary = made.join("checkpoint.new");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(&descriptor.encode())?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&temporary, made.join(DESCRIPTOR)))
        .map_err(|error| failed_there("shipping to", made, &error))?;
    sync_folder(made)
        .and_then(|()| sync_parent(made))
        .map_err(there)
}

/// The files that a shipment checks: each shipment takes the next ones in turn.
pub(super) fn in_turn(files: &[FileEntry], number: u64) -> Vec<&FileEntry> {
    let mut tables: Vec<&FileEntry> = files.iter().filter(|file| is_sst(&file.name)).collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    let count = tables.len();
    let first = number.checked_rem(count as u64).unwrap_or(0) as usize;
    let mut left_bytes = CHECK_BYTES_MAX;
    let in_turn = tables.into_iter().cycle().skip(first).take(count);
    in_turn
        .take_while(|file| {
            let is_due = left_bytes > 0;
            left_bytes = left_bytes.saturating_sub(file.len_bytes);
            is_due
        })
        .collect()
}

pub(super) fn is_sst(name: &str) -> bool {
    name.ends_with(".sst")
}

/// Length and CRC32C of a file.
fn checksum_of(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut len_bytes = 0;
    let mut crc = crc32c(&[]);
    loop {
        let count = file.read(&mut buffer)?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            return Ok((len_bytes, crc));
        };
        crc = crc32c_append(crc, read);
        len_bytes += count as u64;
    }
}

/// Copies a file and verifies it against its entry: recovery will rely on the copy.
fn copy_checked(from: &Path, to: &Path, entry: &FileEntry) -> Result<(), MetaError> {
    let reading = |error: io::Error| failed("reading", from, &error);
    let writing = |error: io::Error| failed_there("shipping to", to, &error);
    let mut source = File::open(from).map_err(reading)?;
    let mut target = File::create(to).map_err(writing)?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut len_bytes = 0;
    let mut crc = crc32c(&[]);
    loop {
        let count = source.read(&mut buffer).map_err(reading)?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            break;
        };
        crc = crc32c_append(crc, read);
        len_bytes += count as u64;
        target.write_all(read).map_err(writing)?;
    }
    if (len_bytes, crc) != (entry.len_bytes, entry.crc) {
        return Err(failed("shipping", from, &WRONG_CHECKSUM));
    }
    target.sync_all().map_err(writing)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Makes a folder and its missing parents durably: each new name is synced into its parent. It never makes the folder
/// of the disk: if the drive is not mounted, that would be on another drive.
fn make_folders(path: &Path) -> Result<(), MetaError> {
    let volumes = path.ancestors();
    let mut volumes = volumes.filter(|path| path.file_name() == Some("volumes".as_ref()));
    if let Some(disk) = volumes.next().and_then(Path::parent)
        && !disk.is_dir()
    {
        return Err(failed("making", path, &"the folder of the disk is gone"));
    }
    let missing = path.ancestors().take_while(|path| !path.is_dir());
    let missing: Vec<&Path> = missing.collect();
    for made in missing.into_iter().rev() {
        match fs::create_dir(made) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("making", made, &error));
            }
            _ => {}
        }
        if let Err(error) = sync_parent(made) {
            // Other callers assume that the name of an existing folder is durable.
            let _ = fs::remove_dir(made);
            return Err(error);
        }
    }
    Ok(())
}

fn sync_folder(path: &Path) -> Result<(), MetaError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|error| failed("syncing", path, &error))
}

fn sync_parent(path: &Path) -> Result<(), MetaError> {
    path.parent().map_or(Ok(()), sync_folder)
}

pub(super) fn remove_folder(path: &Path) -> Result<(), MetaError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", path, &error))
        }
        _ => Ok(()),
    }
}

fn read_descriptor(replica: &Path) -> Result<Option<Descriptor>, MetaError> {
    let path = replica.join(DESCRIPTOR);
    let read = |error: io::Error| failed("reading", &path, &error);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(read)?,
    };
    let mut bytes = Vec::new();
    file.take(DESCRIPTOR_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(read)?;
    Ok(Some(Descriptor::decode(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_cannot_be_listed_are_not_taken_for_absent() {
        let folder = tempfile::tempdir().expect("a folder");
        let numbers = |path: &Path| -> Option<Vec<u64>> {
            let found = replica_paths(path).ok()?;
            Some(found.into_iter().map(|(number, _)| number).collect())
        };
        let volume = folder.path().join("volume");
        assert_eq!(numbers(&volume), Some(Vec::new()), "nothing is there yet");
        make_folders(&replica_path(&volume, 7)).expect("a folder");
        assert_eq!(numbers(&volume), Some(vec![7]));
        let file = folder.path().join("file");
        fs::write(&file, "").expect("writes");
        assert_eq!(numbers(&file), None);
    }

    #[test]
    fn the_folder_of_a_disk_is_not_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        let state = disk.join("volumes/00000001/state");
        assert!(make_folders(&state).is_err(), "its drive is not mounted");
        assert!(!disk.exists());
        fs::create_dir(&disk).expect("a folder");
        make_folders(&state).expect("it is there");
        assert!(state.is_dir());
    }
}
