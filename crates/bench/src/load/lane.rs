//! One connection with its file or directory.
//!
//! Owns: the requests of each workload, which of them comes next, when there are no more.
//! Must not know: other connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use cairn_codec_nfs::v3::{CreateHow, FileHandle, SetAttributes, StableHow};
use cairn_nfs_client::{
    Client, ClientSettings, ConnectionSettings, Error, NfsUrl, Round, Uncommitted,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::report::Tally;
use super::{LoadError, LoadSettings, Workload, pattern};

/// A server that is silent for so long has failed.
const REPLY_SECONDS_MAX: u64 = 30;
/// Where the random offsets of connection 0 begin.
const RANDOM_SEED: u64 = 88_172_645_463_325_252;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

pub struct Lane {
    settings: LoadSettings,
    index: u64,
    client: Client,
    /// The directory that everything is in.
    base: FileHandle,
    /// Of the file or directory of this connection, in `base`.
    name: String,
    target: FileHandle,
    buffers: BufPool,
    // The tasks of a lane share a thread; these locks are never waited for.
    turns: Mutex<Turns>,
    uncommitted: Mutex<Uncommitted>,
    tally: Mutex<Tally>,
}

/// Which request comes next.
struct Turns {
    /// Requests begun.
    begun: u64,
    random: u64,
    stopped: bool,
}

/// A request to make.
#[derive(Clone, Copy)]
struct Turn {
    index: u64,
    /// Where in the file, for those that move data.
    offset: u64,
}

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Request(#[from] Error),
    #[error("wrong data at {0}")]
    WrongData(u64),
    #[error("the file ends at {0}; write it first, with the same size")]
    Short(u64),
}

impl Failed {
    /// Whether the server did answer.
    fn is_answer(&self) -> bool {
        match self {
            Self::Request(error) => error.status().is_some(),
            Self::WrongData(_) | Self::Short(_) => true,
        }
    }
}

impl Lane {
    /// Connects, and finds or makes the file or directory.
    pub async fn prepare(
        url: &NfsUrl,
        settings: &LoadSettings,
        index: usize,
    ) -> Result<Self, LoadError> {
        let connect = |error| LoadError::Connect {
            url: url.to_string(),
            error,
        };
        let client = Client::connect(url, client_settings(settings.depth));
        let client = client.await.map_err(connect)?;
        let base = client.resolve_url(true).await.map_err(connect)?.handle;
        let workload = settings.workload;
        let limits = client.limits();
        let len_bytes_max = limits.read_max_bytes.min(limits.write_max_bytes);
        if !workload.is_names() && settings.block_len_bytes > u64::from(len_bytes_max) {
            return Err(LoadError::BlockTooLarge {
                len_bytes: settings.block_len_bytes,
                len_bytes_max,
            });
        }
        let kind = if workload.is_names() { 'd' } else { 'f' };
        let name = format!("nfsload-{kind}{index}");
        let target = match workload.is_names() {
            true => directory(&client, base, &name, workload).await,
            false => file(&client, base, &name, workload).await,
        };
        let target = target.map_err(|error| LoadError::Prepare {
            name: name.clone(),
            error,
        })?;
        Ok(Self {
            settings: settings.clone(),
            index: index as u64,
            client,
            base,
            name,
            target,
            buffers: buffers(settings),
            turns: Mutex::new(Turns {
                begun: 0,
                random: RANDOM_SEED ^ (index as u64) << 32,
                stopped: false,
            }),
            uncommitted: Mutex::default(),
            tally: Mutex::default(),
        })
    }

    /// Runs the workload to its end.
    ///
    /// Each request in flight has a task: the runtime looks at its sockets each time a future that
    /// it did not spawn is woken, which would be twice for each request.
    pub async fn run(self: Arc<Self>, start: Instant) -> Tally {
        let mut slots = JoinSet::new();
        for _ in 0..self.settings.depth {
            slots.spawn(self.clone().slot(start));
        }
        slots.join_all().await;
        if self.settings.workload.is_write() && self.settings.commit {
            self.commit().await;
        }
        let mut tally = std::mem::take(&mut *self.tally.lock());
        tally.span = Some((start, Instant::now()));
        tally
    }

    /// One request after the other, as long as there are any.
    async fn slot(self: Arc<Self>, start: Instant) {
        while let Some(turn) = self.next_turn(start) {
            let begin = Instant::now();
            let outcome = self.request(turn).await;
            let mut tally = self.tally.lock();
            tally.timed(begin.elapsed());
            match outcome {
                Ok(bytes) => tally.done(bytes),
                Err(failed) => {
                    // Without a status the server has not answered; it would not the next time.
                    self.turns.lock().stopped |= !failed.is_answer();
                    tally.failed(failed);
                }
            }
        }
    }

    fn next_turn(&self, start: Instant) -> Option<Turn> {
        let settings = &self.settings;
        let workload = settings.workload;
        let mut turns = self.turns.lock();
        let is_over = if workload.is_random() {
            start.elapsed() >= settings.time
        } else if workload.is_names() {
            turns.begun >= settings.file_count
        } else {
            turns.begun >= settings.block_count()
        };
        if is_over || turns.stopped {
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
        // Without data the block is a file's number, and its offset says nothing.
        let offset = block.saturating_mul(settings.block_len_bytes);
        Some(Turn { index, offset })
    }

    /// Bytes of data that the request moved.
    async fn request(&self, turn: Turn) -> Result<u64, Failed> {
        match self.settings.workload {
            Workload::SeqWrite | Workload::RandWrite => self.write(turn).await,
            Workload::SeqRead => self.read(turn.offset, self.settings.verify).await,
            Workload::RandRead => self.read(turn.offset, false).await,
            Workload::Create => self.create(turn.index).await,
            Workload::Stat => self.stat(turn.index).await,
            Workload::Unlink => self.unlink(turn.index).await,
        }
    }

    async fn write(&self, turn: Turn) -> Result<u64, Failed> {
        let offset = turn.offset;
        let len_bytes = self.settings.block_len_bytes;
        let mut buffer = self.buffers.take(len_bytes as usize);
        match self.settings.verify {
            true => pattern::fill(&mut buffer, self.place(offset)),
            false => pattern::stamp(&mut buffer, self.place(offset), turn.index),
        }
        let stable = match self.settings.sync {
            true => StableHow::FileSync,
            false => StableHow::Unstable,
        };
        let mut uncommitted = Uncommitted::default();
        let data = buffer.freeze();
        let write = self
            .client
            .write_full(self.target, offset, data, stable, &mut uncommitted);
        write.await?;
        if self.settings.commit {
            self.uncommitted.lock().merge(uncommitted);
        }
        Ok(len_bytes)
    }

    async fn read(&self, offset: u64, verify: bool) -> Result<u64, Failed> {
        let len_bytes = self.settings.block_len_bytes;
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

    async fn commit(&self) {
        let mut uncommitted = std::mem::take(&mut *self.uncommitted.lock());
        let committed = self.client.commit_all(self.target, &mut uncommitted).await;
        match committed {
            Ok(Round::Safe) => {}
            Ok(Round::Resend(lost)) => self.tally.lock().failed(format!(
                "the server was restarted and lost {} ranges that were written",
                lost.len()
            )),
            Err(error) => self.tally.lock().failed(error),
        }
    }

    /// Names a block among those of all connections.
    fn place(&self, offset: u64) -> u64 {
        self.index << 40 | offset
    }
}

/// A benchmark must see what the server does: nothing is sent twice.
fn client_settings(depth: usize) -> ClientSettings {
    ClientSettings {
        connection: ConnectionSettings {
            in_flight_max: depth,
            reply_timeout: Duration::from_secs(REPLY_SECONDS_MAX),
            transmissions_max: 1,
            reconnect_for: Duration::ZERO,
            ..ConnectionSettings::default()
        },
        nconnect: 1,
        ..ClientSettings::default()
    }
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
    if workload == Workload::Create && client.child_if_there(base, name).await?.is_none() {
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
