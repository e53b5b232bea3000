//! Jobs about objects.
//!
//! Owns: the requests of each, names of objects, which comes next. Must not know: the clock, other jobs.

use parking_lot::Mutex;

use super::client::S3Client;
use crate::data::PassError;
use crate::drive::{Done, Failed, Job, Plan, Turn};
use crate::pattern::{Buffers, Data, mix};
use crate::plan::{End, ObjectsOperation, ObjectsWork};

/// Of S3.
const DELETE_MANY_COUNT: u64 = 1000;
/// Of ten requests of mixed load so many read.
const MIXED_READS: u64 = 7;

/// What all workers do.
pub(super) struct ObjectsPlan {
    /// Of all keys of the file set.
    pub prefix: String,
    pub work: ObjectsWork,
    pub depth: u32,
    pub data: Data,
    /// Numbers among the workers of all clients.
    pub workers: Vec<u64>,
}

pub struct ObjectsJob {
    client: S3Client,
    /// Of the keys of this worker.
    prefix: String,
    work: ObjectsWork,
    worker: u64,
    data: Data,
    buffers: Buffers,
    // The tasks of a job share a thread; these locks are never waited for.
    begun: Mutex<u64>,
    /// Where the next page begins; `None`: that was the last.
    page: Mutex<Option<Option<String>>>,
}

impl Plan for ObjectsPlan {
    type Client = S3Client;
    type Job = ObjectsJob;
    type Error = PassError;

    async fn prepare(&self, index: usize, client: &S3Client) -> Result<ObjectsJob, PassError> {
        let worker = *self.workers.get(index).ok_or(PassError::Job(index))?;
        let count = match self.work.operation {
            ObjectsOperation::Put | ObjectsOperation::Mixed => self.depth as usize,
            _ => 0,
        };
        let len_bytes = self.work.object_bytes as usize;
        Ok(ObjectsJob {
            client: client.clone(),
            prefix: format!("{}{worker:05}/", self.prefix),
            work: self.work.clone(),
            worker,
            data: self.data.clone(),
            buffers: Buffers::new(&self.data, len_bytes, count, worker),
            begun: Mutex::default(),
            page: Mutex::new(Some(None)),
        })
    }
}

impl Job for ObjectsJob {
    fn next(&self) -> Option<Turn> {
        let is_timed = matches!(self.work.end, End::After { .. });
        let mut begun = self.begun.lock();
        let index = *begun;
        let count = match self.work.operation {
            ObjectsOperation::List => {
                self.page.lock().as_ref()?;
                u64::MAX
            }
            ObjectsOperation::Delete => self.work.objects,
            ObjectsOperation::DeleteMany => self.work.objects.div_ceil(DELETE_MANY_COUNT),
            _ if is_timed => u64::MAX,
            _ => self.work.objects,
        };
        if index >= count {
            return None;
        }
        *begun += 1;
        let random = mix(mix(self.worker.wrapping_add(1)).wrapping_add(index + 1));
        let block = match self.work.operation {
            ObjectsOperation::Get | ObjectsOperation::Mixed => random % self.work.objects,
            ObjectsOperation::Put => index % self.work.objects,
            _ => index,
        };
        Some(Turn { index, block })
    }

    async fn request(&self, turn: Turn) -> Result<Option<Done>, Failed> {
        let key = self.key(turn.block);
        let bytes = match self.work.operation {
            ObjectsOperation::Put => self.put(&key, turn).await?,
            ObjectsOperation::Get => self.get(&key).await?,
            ObjectsOperation::Mixed if turn.index % 10 < MIXED_READS => self.get(&key).await?,
            ObjectsOperation::Mixed => self.put(&key, turn).await?,
            ObjectsOperation::Delete => {
                self.client.delete(&key).await?;
                0
            }
            ObjectsOperation::DeleteMany => {
                let first = turn.block * DELETE_MANY_COUNT;
                let last = (first + DELETE_MANY_COUNT).min(self.work.objects);
                let keys: Vec<String> = (first..last).map(|index| self.key(index)).collect();
                self.client.delete_many(&keys).await?;
                return Ok(Some(Done {
                    operations: keys.len() as u64,
                    bytes: 0,
                }));
            }
            ObjectsOperation::List => return self.read_page().await,
        };
        Ok(Some(Done::one(bytes)))
    }
}

impl ObjectsJob {
    /// Objects from the first on that were begun with.
    pub fn highest(&self) -> u64 {
        (*self.begun.lock()).min(self.work.objects)
    }

    fn key(&self, index: u64) -> String {
        format!("{}{index:09}", self.prefix)
    }

    async fn put(&self, key: &str, turn: Turn) -> Result<u64, Failed> {
        let mut buffer = self.buffers.take();
        let bytes = buffer.bytes_mut();
        // No two objects are alike, unless that is wanted.
        self.data
            .stamp(bytes, self.worker, turn.block, 0, turn.index);
        self.client.put(key, buffer.freeze()).await?;
        Ok(self.work.object_bytes)
    }

    async fn get(&self, key: &str) -> Result<u64, Failed> {
        let count = self.client.get(key).await?;
        match count == self.work.object_bytes {
            true => Ok(count),
            false => Err(Failed::Short(count)),
        }
    }

    /// An operation is an entry, a request a page.
    async fn read_page(&self) -> Result<Option<Done>, Failed> {
        let Some(after) = self.page.lock().take() else {
            return Ok(None);
        };
        let page = self.client.list(&self.prefix, after.as_deref()).await?;
        let is_timed = matches!(self.work.end, End::After { .. });
        *self.page.lock() = match page.next {
            Some(next) => Some(Some(next)),
            None if is_timed => Some(None),
            None => None,
        };
        Ok(Some(Done {
            operations: page.keys.len() as u64,
            bytes: 0,
        }))
    }
}
