//! What one connection does with its file or directory.
//!
//! Owns: the requests of each workload, which of them comes next, when there are no more.
//! Must not know: other connections, time.

use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use cairn_nfs_client::v3::{CreateHow, FileHandle, SetAttributes, StableHow};
use cairn_nfs_client::{Client, Error};
use parking_lot::Mutex;

use super::{LoadError, LoadSettings, Workload};
use crate::drive::{Done, Failed, Job, Plan, Turn, Unstable, write_all};
use crate::pattern;

/// Where the random offsets of connection 0 begin.
const RANDOM_SEED: u64 = 88_172_645_463_325_252;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

pub struct LoadPlan<'a> {
    pub settings: &'a LoadSettings,
}

pub struct LoadJob {
    settings: LoadSettings,
    index: u64,
    client: Client,
    /// The directory that everything is in.
    base: FileHandle,
    /// Of the file or directory of this connection, in `base`.
    name: String,
    target: FileHandle,
    buffers: BufPool,
    /// Which file comes when; empty: one after the other.
    order: Vec<u64>,
    // The tasks of a connection share a thread; this lock is never waited for.
    turns: Mutex<Turns>,
    unstable: Unstable,
}

/// Which request comes next.
struct Turns {
    /// Requests begun.
    begun: u64,
    random: u64,
}

impl Plan for LoadPlan<'_> {
    type Client = Client;
    type Job = LoadJob;
    type Error = LoadError;

    /// Finds or makes the file or directory.
    async fn prepare(&self, index: usize, client: &Client) -> Result<LoadJob, LoadError> {
        let settings = self.settings;
        let base = client.resolve_url(true).await;
        let base = base.map_err(|error| LoadError::Connect {
            url: client.url().to_string(),
            error: error.into(),
        })?;
        let base = base.handle;
        let workload = settings.workload;
        let limits = client.limits();
        let len_bytes_max = limits.read_max_bytes.min(limits.write_max_bytes);
        if !workload.is_names() && settings.block_len_bytes > u64::from(len_bytes_max) {
            return Err(LoadError::BlockTooLarge {
                len_bytes: settings.block_len_bytes,
                len_bytes_max,
            });
        }
        let name = match workload {
            // Apart from those of `create`, whose files are empty.
            Workload::FileWrite | Workload::FileRead => format!("nfsload-s{index}"),
            _ if workload.is_names() => format!("nfsload-d{index}"),
            _ => format!("nfsload-f{index}"),
        };
        let target = match workload.is_in_directory() {
            true => directory(client, base, &name, workload).await,
            false => file(client, base, &name, workload).await,
        };
        let target = target.map_err(|error| LoadError::Prepare {
            name: name.clone(),
            error,
        })?;
        Ok(LoadJob {
            settings: settings.clone(),
            index: index as u64,
            client: client.clone(),
            base,
            name,
            target,
            buffers: buffers(settings),
            order: order(settings, index as u64),
            turns: Mutex::new(Turns {
                begun: 0,
                random: RANDOM_SEED ^ (index as u64) << 32,
            }),
            unstable: Unstable::default(),
        })
    }
}

impl Job for LoadJob {
    fn next(&self) -> Option<Turn> {
        let settings = &self.settings;
        let workload = settings.workload;
        let mut turns = self.turns.lock();
        let is_over = if workload.is_in_directory() {
            turns.begun >= settings.file_count
        } else {
            !workload.is_random() && turns.begun >= settings.block_count()
        };
        if is_over {
            return None;
        }
        let index = turns.begun;
        turns.begun += 1;
        let block = if workload.is_random() {
            turns.random = pattern::mix(turns.random.wrapping_add(index).wrapping_add(1));
            turns.random % settings.block_count()
        } else {
            index
        };
        let index = match self.order.get(index as usize) {
            Some(file) => *file,
            None => index,
        };
        Some(Turn { index, block })
    }

    async fn request(&self, turn: Turn) -> Result<Option<Done>, Failed> {
        let bytes = match self.settings.workload {
            Workload::SeqWrite | Workload::RandWrite => self.write(turn).await,
            Workload::SeqRead => self.read(turn, self.settings.verify).await,
            Workload::RandRead => self.read(turn, false).await,
            Workload::Create => self.create(turn.index).await,
            Workload::Stat => self.stat(turn.index).await,
            Workload::Unlink => self.unlink(turn.index).await,
            Workload::FileWrite => self.file_write(turn.index).await,
            Workload::FileRead => self.file_read(turn.index).await,
        };
        Ok(Some(Done::one(bytes?)))
    }

    async fn settle(&self) -> Result<(), Failed> {
        self.unstable.commit(&self.client, self.target).await
    }
}

impl LoadJob {
    async fn write(&self, turn: Turn) -> Result<u64, Failed> {
        let len_bytes = self.settings.block_len_bytes;
        let offset = turn.block * len_bytes;
        let mut buffer = self.buffers.take(len_bytes as usize);
        match self.settings.verify {
            true => pattern::fill(&mut buffer, self.place(offset)),
            false => pattern::stamp(&mut buffer, self.place(offset), turn.index),
        }
        let stable = match self.settings.sync {
            true => StableHow::FileSync,
            false => StableHow::Unstable,
        };
        let (client, data) = (&self.client, buffer.freeze());
        write_all(client, self.target, offset, data, stable, &self.unstable).await?;
        Ok(len_bytes)
    }

    async fn read(&self, turn: Turn, verify: bool) -> Result<u64, Failed> {
        let len_bytes = self.settings.block_len_bytes;
        let offset = turn.block * len_bytes;
        let buffer = self.buffers.take(len_bytes as usize);
        let read = self.client.read_full(self.target, offset, buffer).await?;
        let read_bytes = read.data.len() as u64;
        if read_bytes < len_bytes {
            return Err(Failed::Short(offset + read_bytes));
        }
        if verify && !pattern::is_filled(&read.data, self.place(offset)) {
            return Err(Failed::WrongData(offset));
        }
        Ok(read_bytes)
    }

    async fn create(&self, turn: u64) -> Result<u64, Failed> {
        let (dir, name) = (self.walked().await?, file_name(turn));
        let how = CreateHow::Guarded(with_mode(FILE_MODE));
        self.client.create(dir, name.as_bytes(), how).await?;
        if self.settings.walk {
            self.client.lookup(dir, name.as_bytes()).await?;
        }
        Ok(0)
    }

    async fn stat(&self, turn: u64) -> Result<u64, Failed> {
        let (dir, name) = (self.walked().await?, file_name(turn));
        let found = self.client.lookup(dir, name.as_bytes()).await?;
        // Servers need not put attributes into what LOOKUP answers.
        if self.settings.walk || found.attributes.is_none() {
            self.client.get_attr(found.object).await?;
        }
        Ok(0)
    }

    async fn unlink(&self, turn: u64) -> Result<u64, Failed> {
        let (dir, name) = (self.walked().await?, file_name(turn));
        self.client.remove(dir, name.as_bytes()).await?;
        Ok(0)
    }

    async fn file_write(&self, turn: u64) -> Result<u64, Failed> {
        let (name, len_bytes) = (file_name(turn), self.settings.block_len_bytes);
        let how = CreateHow::Guarded(with_mode(FILE_MODE));
        let client = &self.client;
        let made = client.create(self.target, name.as_bytes(), how).await?;
        let file = client
            .made_handle(self.target, name.as_bytes(), made)
            .await?;
        let mut buffer = self.buffers.take(len_bytes as usize);
        pattern::stamp(&mut buffer, self.place(turn * len_bytes), turn);
        let stable = StableHow::FileSync;
        write_all(client, file, 0, buffer.freeze(), stable, &self.unstable).await?;
        Ok(len_bytes)
    }

    async fn file_read(&self, turn: u64) -> Result<u64, Failed> {
        let (name, len_bytes) = (file_name(turn), self.settings.block_len_bytes);
        let file = self.client.lookup(self.target, name.as_bytes()).await?;
        let buffer = self.buffers.take(len_bytes as usize);
        let read = self.client.read_full(file.object, 0, buffer).await?;
        let read_bytes = read.data.len() as u64;
        if read_bytes < len_bytes {
            return Err(Failed::Short(read_bytes));
        }
        Ok(read_bytes)
    }

    /// The directory of this connection, looked up again if that is wanted.
    async fn walked(&self) -> Result<FileHandle, Error> {
        match self.settings.walk {
            true => Ok(self
                .client
                .lookup(self.base, self.name.as_bytes())
                .await?
                .object),
            false => Ok(self.target),
        }
    }

    /// Names a block among those of all connections.
    fn place(&self, offset: u64) -> u64 {
        self.index << 40 | offset
    }
}

/// The files of a connection in an order of chance, which is always the same one; empty if in theirs.
fn order(settings: &LoadSettings, index: u64) -> Vec<u64> {
    if settings.workload != Workload::FileRead || !settings.shuffle {
        return Vec::new();
    }
    let mut files: Vec<u64> = (0..settings.file_count).collect();
    let mut word = RANDOM_SEED ^ index << 32;
    for last in (1..files.len()).rev() {
        word = pattern::mix(word);
        files.swap(last, (word % (last as u64 + 1)) as usize);
    }
    files
}

/// As many buffers as there can be requests, with noise in them.
fn buffers(settings: &LoadSettings) -> BufPool {
    if settings.workload.is_names() {
        return BufPool::new(0, 0);
    }
    let len_bytes = settings.block_len_bytes as usize;
    let pool = BufPool::new(len_bytes, settings.depth);
    let buffers: Vec<AlignedBuf> = (0..settings.depth as u64)
        .map(|slot| {
            let mut buffer = pool.take(len_bytes);
            pattern::fill(&mut buffer, slot + 1);
            buffer
        })
        .collect();
    drop(buffers);
    pool
}

async fn file(
    client: &Client,
    base: FileHandle,
    name: &str,
    workload: Workload,
) -> Result<FileHandle, Error> {
    // Opened first and made only if it is not there: some servers refuse CREATE of an existing file.
    let name = name.as_bytes();
    let found = match workload.is_write() {
        true => client.child_if_there(base, name).await?,
        false => Some(client.child(base, name).await?),
    };
    match found {
        Some(node) => Ok(node.handle),
        None => {
            let how = CreateHow::Unchecked(with_mode(FILE_MODE));
            let made = client.create(base, name, how).await?;
            client.made_handle(base, name, made).await
        }
    }
}

async fn directory(
    client: &Client,
    base: FileHandle,
    name: &str,
    workload: Workload,
) -> Result<FileHandle, Error> {
    let name = name.as_bytes();
    if workload.makes_directory() && client.child_if_there(base, name).await?.is_none() {
        let made = client.mkdir(base, name, with_mode(DIRECTORY_MODE)).await?;
        return client.made_handle(base, name, made).await;
    }
    Ok(client.child(base, name).await?.handle)
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

fn file_name(turn: u64) -> String {
    format!("f{turn:07}")
}
