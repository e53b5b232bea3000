//! Jobs about names.
//!
//! Owns: the requests of each, which name comes next.
//! Must not know: the clock, other jobs, what names there are from before.

use cairn_nfs_client::v3::{CreateHow, FileHandle};
use cairn_nfs_client::{Client, DirPages};
use parking_lot::Mutex;

use super::files::{self, FILE_MODE, with_mode};
use crate::data::PassError;
use crate::drive::{Done, Failed, Job, Plan, Turn};
use crate::plan::NamesOperation;

/// What all workers do.
pub(super) struct NamesPlan {
    /// The folder of the file set.
    pub folder: FileHandle,
    pub operation: NamesOperation,
    pub one_directory: bool,
    pub specs: Vec<NamesSpec>,
}

/// What one worker does.
#[derive(Clone, Copy)]
pub struct NamesSpec {
    /// Among those of all clients.
    pub worker: u64,
    pub files: u64,
    /// How often all its files were renamed.
    pub generation: u64,
}

pub struct NamesJob {
    client: Client,
    dir: FileHandle,
    operation: NamesOperation,
    spec: NamesSpec,
    // The tasks of a job share a thread; these locks are never waited for.
    begun: Mutex<u64>,
    /// Of a listing, unless a request has it.
    pages: Mutex<Option<DirPages>>,
}

impl Plan for NamesPlan {
    type Client = Client;
    type Job = NamesJob;
    type Error = PassError;

    async fn prepare(&self, index: usize, client: &Client) -> Result<NamesJob, PassError> {
        let spec = *self.specs.get(index).ok_or(PassError::Job(index))?;
        let name = files::names_dir((!self.one_directory).then_some(spec.worker));
        let dir = files::directory(client, self.folder, &name).await;
        let dir = dir.map_err(|error| PassError::Prepare {
            name,
            error: error.into(),
        })?;
        let pages = client.dir_pages(dir, false);
        Ok(NamesJob {
            client: client.clone(),
            dir,
            operation: self.operation,
            spec,
            begun: Mutex::default(),
            pages: Mutex::new((self.operation == NamesOperation::Readdir).then_some(pages)),
        })
    }
}

impl Job for NamesJob {
    fn next(&self) -> Option<Turn> {
        if self.operation == NamesOperation::Readdir {
            self.pages.lock().as_ref()?;
        }
        let mut begun = self.begun.lock();
        let index = *begun;
        if self.operation != NamesOperation::Readdir && index >= self.spec.files {
            return None;
        }
        *begun += 1;
        Some(Turn {
            index,
            block: index,
        })
    }

    async fn request(&self, turn: Turn) -> Result<Option<Done>, Failed> {
        let (client, dir) = (&self.client, self.dir);
        let name = self.name(turn.block);
        match self.operation {
            NamesOperation::Create => {
                let how = CreateHow::Guarded(with_mode(FILE_MODE));
                client.create(dir, name.as_bytes(), how).await?;
            }
            NamesOperation::Stat => {
                let found = client.lookup(dir, name.as_bytes()).await?;
                // Servers need not put attributes into what LOOKUP answers.
                if found.attributes.is_none() {
                    client.get_attr(found.object).await?;
                }
            }
            NamesOperation::Readdir => return self.read_page().await,
            NamesOperation::Rename => {
                let spec = &self.spec;
                let to = files::entry_name(spec.worker, turn.block, spec.generation + 1);
                client
                    .rename((dir, name.as_bytes()), (dir, to.as_bytes()))
                    .await?;
            }
            NamesOperation::Unlink => {
                client.remove(dir, name.as_bytes()).await?;
            }
        }
        Ok(Some(Done::one(0)))
    }
}

impl NamesJob {
    /// Names that were begun with, from the first.
    pub fn begun(&self) -> u64 {
        *self.begun.lock()
    }

    fn name(&self, index: u64) -> String {
        files::entry_name(self.spec.worker, index, self.spec.generation)
    }

    /// An operation is an entry, a request a page.
    async fn read_page(&self) -> Result<Option<Done>, Failed> {
        let Some(mut pages) = self.pages.lock().take() else {
            return Ok(None);
        };
        let Some(page) = pages.next_page().await? else {
            return Ok(None);
        };
        *self.pages.lock() = Some(pages);
        Ok(Some(Done {
            operations: page.len() as u64,
            bytes: 0,
        }))
    }
}
