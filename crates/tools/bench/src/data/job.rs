//! Jobs that move data.
//!
//! Owns: which block comes next, filling and cutting requests. Must not know: the clock, other jobs, what the target is.

use std::future::Future;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use futures_util::future;
use parking_lot::Mutex;

use super::share::{Blocks, Share, Shuffle};
use super::{PassError, READ_PIECES_MAX};
use crate::drive::{Done, Failed, Job, Plan, Turn};
use crate::pattern::{Buffers, Data, mix};
use crate::plan::{Direction, Order};

/// Noise that a worker writes from before it comes again, unless all workers together would need more
/// than [`NOISE_BYTES_MAX`].
const NOISE_BYTES: u64 = 4 << 20;
const NOISE_BYTES_MAX: u64 = 256 << 20;

/// Where the bytes of a target are: files of a server, a LUN.
pub trait Space: Sync {
    type Client;
    type Object: Object;

    /// What a worker reads or writes, made if it is to be written and is not there.
    fn open(
        &self,
        client: &Self::Client,
        spec: &Spec,
        direction: Direction,
    ) -> impl Future<Output = Result<Self::Object, PassError>>;
}

/// Bytes by their offset.
pub trait Object: Send + Sync + 'static {
    /// Of one read and of one write.
    fn len_bytes_max(&self, direction: Direction) -> usize;
    /// Writes from the front of the share's file.
    fn write(&self, offset: u64, data: Bytes) -> impl Future<Output = Result<(), Failed>> + Send;
    /// Fills the buffer; how much there was.
    fn read(
        &self,
        offset: u64,
        buffer: AlignedBuf,
    ) -> impl Future<Output = Result<u64, Failed>> + Send;
    /// Makes stable what was written.
    fn settle(&self) -> impl Future<Output = Result<(), Failed>> + Send;
}

/// What all workers of one pass over the files do.
pub(super) struct DataPlan<'a, S> {
    pub space: &'a S,
    pub direction: Direction,
    pub order: Order,
    pub request_bytes: u64,
    /// Also what is shorter than a request, at the end of each run.
    pub with_rest: bool,
    /// Goes through the blocks once; otherwise until the time is over.
    pub once: bool,
    pub depth: usize,
    pub data: Data,
    pub seed: u64,
    pub specs: Vec<Spec>,
}

/// What one worker works on.
pub struct Spec {
    /// Among those of all clients.
    pub worker: u64,
    pub share: Share,
    /// Bytes at the front of the share that are there and need not be written.
    pub skip_bytes: u64,
    /// The file is left from another run: what is in it goes.
    pub truncate: bool,
    /// Another client makes the file, perhaps right now.
    pub is_foreign: bool,
}

pub struct DataJob<O> {
    object: O,
    file_number: u64,
    first_extent: u64,
    blocks: Blocks,
    block_count: u64,
    first_block: u64,
    direction: Direction,
    order: Order,
    once: bool,
    request_bytes: u64,
    shuffle: Shuffle,
    turns: Mutex<Turns>,
    data: Data,
    to_send: Buffers,
    to_receive: BufPool,
}

// The tasks of a job share a thread; this lock is never waited for.
struct Turns {
    begun: u64,
    random: u64,
}

impl<S: Space> Plan for DataPlan<'_, S> {
    type Client = S::Client;
    type Job = DataJob<S::Object>;
    type Error = PassError;

    async fn prepare(&self, index: usize, client: &S::Client) -> Result<Self::Job, PassError> {
        let spec = self.specs.get(index).ok_or(PassError::Job(index))?;
        let object = self.space.open(client, spec, self.direction).await?;
        let blocks = spec.share.blocks(self.request_bytes, self.with_rest);
        let block_count = blocks.count();
        let request_len_bytes = self.request_bytes as usize;
        let (send_count, receive_count) = match self.direction {
            Direction::Write => (self.noise_count(), 0),
            Direction::Read => (0, self.depth),
        };
        let piece_bytes = request_len_bytes.min(object.len_bytes_max(Direction::Read));
        let piece_count = request_len_bytes.div_ceil(piece_bytes).min(READ_PIECES_MAX);
        let seed = mix(self.seed.wrapping_add(spec.worker) | 1);
        Ok(DataJob {
            object,
            file_number: spec.share.file.number(),
            first_extent: spec.share.first_extent(),
            first_block: blocks.first_after(spec.skip_bytes),
            block_count,
            blocks,
            direction: self.direction,
            order: self.order,
            once: self.once,
            request_bytes: self.request_bytes,
            shuffle: Shuffle::new(block_count, seed),
            turns: Mutex::new(Turns {
                begun: 0,
                random: seed,
            }),
            data: self.data.clone(),
            to_send: Buffers::new(&self.data, request_len_bytes, send_count, spec.worker),
            to_receive: touched(piece_bytes, receive_count * piece_count),
        })
    }
}

impl<S> DataPlan<'_, S> {
    /// Buffers of a worker that writes.
    fn noise_count(&self) -> usize {
        let bytes = NOISE_BYTES.min(NOISE_BYTES_MAX / self.specs.len().max(1) as u64);
        self.depth.max((bytes / self.request_bytes) as usize)
    }
}

/// Buffers whose pages are there already: the clock is not to see them come.
fn touched(len_bytes: usize, count: usize) -> BufPool {
    let pool = BufPool::new(len_bytes, count);
    let buffers: Vec<AlignedBuf> = (0..count)
        .map(|_| {
            let mut buffer = pool.take(len_bytes);
            buffer.fill(1);
            buffer
        })
        .collect();
    drop(buffers);
    pool
}

impl<O: Object> Job for DataJob<O> {
    fn next(&self) -> Option<Turn> {
        let mut turns = self.turns.lock();
        let index = self.first_block + turns.begun;
        if self.once && index >= self.block_count {
            return None;
        }
        let block = match (self.order, self.once) {
            (Order::Sequential, _) => index % self.block_count,
            (Order::Random, true) => self.shuffle.at(index),
            (Order::Random, false) => {
                turns.random = mix(turns.random.wrapping_add(index).wrapping_add(1));
                turns.random % self.block_count
            }
        };
        turns.begun += 1;
        Some(Turn { index, block })
    }

    async fn request(&self, turn: Turn) -> Result<Option<Done>, Failed> {
        let (offset, len_bytes) = self.blocks.at(turn.block);
        match self.direction {
            Direction::Write => self.write(turn.index, offset, len_bytes as usize).await?,
            Direction::Read => self.read(offset, len_bytes).await?,
        }
        Ok(Some(Done::one(len_bytes)))
    }

    async fn settle(&self) -> Result<(), Failed> {
        self.object.settle().await
    }
}

impl<O: Object> DataJob<O> {
    /// How much at the front of the share was written when nothing failed, once or in order.
    pub fn bytes_written(&self) -> u64 {
        let begun = self.turns.lock().begun;
        match (self.order, self.once) {
            (Order::Sequential, _) => self.blocks.bytes_before(self.first_block + begun),
            (Order::Random, true) if begun == self.block_count => {
                self.blocks.bytes_before(self.block_count)
            }
            (Order::Random, _) => 0,
        }
    }

    async fn write(&self, turn: u64, offset: u64, len_bytes: usize) -> Result<(), Failed> {
        let mut buffer = self.to_send.take();
        let bytes = buffer.bytes_mut();
        let (file, extent) = (self.file_number, self.first_extent);
        let len_bytes = len_bytes.min(bytes.len());
        let (bytes, _) = bytes.split_at_mut(len_bytes);
        self.data.stamp(bytes, file, extent, offset, turn);
        let mut data = buffer.freeze();
        data.truncate(len_bytes);
        let piece_bytes = self.object.len_bytes_max(Direction::Write);
        if len_bytes <= piece_bytes {
            return self.object.write(offset, data).await;
        }
        // A request that the server does not take in one call goes out in several at once, as from
        // a kernel's client.
        let pieces = (0..len_bytes).step_by(piece_bytes).map(|start| {
            let end = len_bytes.min(start + piece_bytes);
            self.object
                .write(offset + start as u64, data.slice(start..end))
        });
        future::try_join_all(pieces).await?;
        Ok(())
    }

    async fn read(&self, offset: u64, len_bytes: u64) -> Result<(), Failed> {
        let piece_bytes = self
            .request_bytes
            .min(self.object.len_bytes_max(Direction::Read) as u64);
        if len_bytes <= piece_bytes {
            return self.read_piece(offset, len_bytes).await;
        }
        let pieces = (0..len_bytes)
            .step_by(piece_bytes as usize)
            .map(|start| self.read_piece(offset + start, piece_bytes.min(len_bytes - start)));
        future::try_join_all(pieces).await?;
        Ok(())
    }

    async fn read_piece(&self, offset: u64, len_bytes: u64) -> Result<(), Failed> {
        let buffer = self.to_receive.take(len_bytes as usize);
        let read_bytes = self.object.read(offset, buffer).await?;
        match read_bytes < len_bytes {
            true => Err(Failed::Short(offset + read_bytes)),
            false => Ok(()),
        }
    }
}
