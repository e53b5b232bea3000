//! Transfer of the files of a state to other nodes, and back to a disk of this node.
//!
//! Owns: reading the files, and turning received ones into a state that can be opened. Must not know: where the files
//! are stored in between.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::{VolumeId, crc32c};
use cairn_formats::metadata::AppliedRecord;
use cairn_formats::metadata::descriptor::{Descriptor, FileEntry};
use cairn_formats::metadata::state_file;

use super::rocks::{self, NewReplica};
use super::{Candidate, Source, Turn, blocking_on};
use crate::disks::DiskSet;
use crate::error::MetaError;

/// The only file of a state in memory.
const STATE_FILE: &str = "state.file";

/// A state at one moment, to be copied.
pub(crate) struct Exported {
    pub descriptor: Descriptor,
    files: Files,
    _turn: Turn,
}

enum Files {
    Memory(Bytes),
    /// A checkpoint, removed at the end.
    Folder(PathBuf),
}

impl Exported {
    pub fn of_snapshot(volume: VolumeId, applied: AppliedRecord, bytes: Bytes, turn: Turn) -> Self {
        let file = FileEntry {
            name: STATE_FILE.to_owned(),
            len_bytes: bytes.len() as u64,
            crc: crc32c(&bytes),
        };
        Self {
            descriptor: Descriptor {
                volume,
                applied,
                lineage: 0,
                files: vec![file],
            },
            files: Files::Memory(bytes),
            _turn: turn,
        }
    }

    pub fn of_folder(descriptor: Descriptor, checkpoint: PathBuf, turn: Turn) -> Self {
        Self {
            descriptor,
            files: Files::Folder(checkpoint),
            _turn: turn,
        }
    }

    /// Reads exactly `len_bytes` of a file.
    pub async fn read(
        &self,
        file: &FileEntry,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Bytes, MetaError> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        match &self.files {
            Files::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(len);
                let is_there = end <= bytes.len();
                let read = is_there.then(|| bytes.slice(start..end));
                read.ok_or_else(|| MetaError::State(format!("{} is too short", file.name)))
            }
            Files::Folder(checkpoint) => {
                let path = checkpoint.join(&file.name);
                super::blocking(move || {
                    let mut bytes = vec![0; len];
                    let read =
                        File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, offset));
                    read.map_err(|error| rocks::failed("reading", &path, &error))?;
                    Ok(Bytes::from(bytes))
                })
                .await
            }
        }
    }

    /// Releases the resources of the export.
    pub async fn end(self) -> Result<(), MetaError> {
        match self.files {
            Files::Memory(_) => Ok(()),
            Files::Folder(checkpoint) => {
                super::blocking(move || rocks::remove_folder(&checkpoint)).await
            }
        }
    }
}

/// A state that is received on a disk of this node.
pub(super) struct Receiver {
    disks: DiskSet,
    index: usize,
    into: Into,
}

enum Into {
    Memory(BytesMut),
    Folder(Arc<NewReplica>, Option<Arc<File>>),
}

impl Receiver {
    pub async fn begin(
        disks: &DiskSet,
        index: usize,
        descriptor: &Descriptor,
    ) -> Result<Self, MetaError> {
        let into = if disks.get(index).disk.folder().is_some() {
            let replica = NewReplica::begin(disks, index, descriptor.clone()).await?;
            Into::Folder(Arc::new(replica), None)
        } else {
            Into::Memory(BytesMut::new())
        };
        Ok(Self {
            disks: disks.clone(),
            index,
            into,
        })
    }

    /// Whether an older copy already has a file.
    pub async fn has(&self, file: &FileEntry) -> Result<bool, MetaError> {
        match &self.into {
            Into::Memory(_) => Ok(false),
            Into::Folder(replica, _) => {
                let (replica, file) = (replica.clone(), file.clone());
                blocking_on(&self.disks, self.index, move || replica.link(&file)).await
            }
        }
    }

    /// Begins a file, or restarts it.
    pub async fn begin_file(&mut self, file: &FileEntry) -> Result<(), MetaError> {
        match &mut self.into {
            Into::Memory(bytes) => bytes.clear(),
            Into::Folder(replica, open) => {
                let (replica, file) = (replica.clone(), file.clone());
                let work = move || replica.create(&file);
                *open = Some(Arc::new(blocking_on(&self.disks, self.index, work).await?));
            }
        }
        Ok(())
    }

    pub async fn write(&mut self, part: Bytes) -> Result<(), MetaError> {
        match &mut self.into {
            Into::Memory(bytes) => bytes.extend_from_slice(&part),
            Into::Folder(replica, Some(open)) => {
                let (replica, open) = (replica.clone(), open.clone());
                let work = move || replica.done((&*open).write_all(&part));
                blocking_on(&self.disks, self.index, work).await?;
            }
            Into::Folder(_, None) => {}
        }
        Ok(())
    }

    pub async fn end_file(&mut self) -> Result<(), MetaError> {
        if let Into::Folder(replica, open) = &mut self.into
            && let Some(open) = open.take()
        {
            let replica = replica.clone();
            let work = move || replica.done(open.sync_all());
            blocking_on(&self.disks, self.index, work).await?;
        }
        Ok(())
    }

    /// Gives up the transfer: removes the received files.
    pub async fn discard(self) {
        if let Into::Folder(replica, open) = self.into {
            drop(open);
            let work = move || rocks::remove_folder(replica.path());
            if let Err(error) = blocking_on(&self.disks, self.index, work).await {
                tracing::warn!(%error, "a copy of the state that was begun stays");
            }
        }
    }

    /// Completes the state: all files are here.
    pub async fn finish(self) -> Result<Candidate, MetaError> {
        let index = self.index;
        let (applied, source) = match self.into {
            Into::Memory(bytes) => {
                let state_file = state_file::decode(&bytes)?;
                (state_file.applied, Source::Memory(state_file))
            }
            Into::Folder(replica, _) => {
                let work = move || replica.finish();
                let replica = blocking_on(&self.disks, index, work).await?;
                (replica.applied(), Source::Replica(replica))
            }
        };
        Ok(Candidate {
            disk: index,
            applied,
            is_primary: false,
            source,
        })
    }
}
