//! Files of a server.
//!
//! Owns: opening files, one READ or WRITE, what is stable. Must not know: which bytes come next.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_nfs_client::v3::{CreateHow, ErrorStatus, FileHandle, SetAttributes, StableHow};
use cairn_nfs_client::{Client, Error};

use super::files::{FILE_MODE, with_mode};
use crate::data::{Object, PassError, Space, Spec};
use crate::drive::{Failed, Unstable, write_all};
use crate::plan::Direction;

/// How long to wait for a file that another client is to make.
const OPEN_WAIT: Duration = Duration::from_secs(60);
const OPEN_AGAIN: Duration = Duration::from_millis(100);

/// The folder of a file set.
pub(super) struct Folder {
    pub folder: FileHandle,
    /// Each write is FILE_SYNC.
    pub is_stable: bool,
}

pub struct NfsFile {
    client: Client,
    file: FileHandle,
    stable: StableHow,
    unstable: Unstable,
}

impl Space for Folder {
    type Client = Client;
    type Object = NfsFile;

    async fn open(
        &self,
        client: &Client,
        spec: &Spec,
        direction: Direction,
    ) -> Result<NfsFile, PassError> {
        let name = spec.share.file.name();
        let opened = self.open_file(spec, direction, &name, client).await;
        let file = opened.map_err(|error| PassError::Prepare {
            name,
            error: error.into(),
        })?;
        Ok(NfsFile {
            client: client.clone(),
            file,
            stable: match self.is_stable {
                true => StableHow::FileSync,
                false => StableHow::Unstable,
            },
            unstable: Unstable::default(),
        })
    }
}

impl Folder {
    async fn open_file(
        &self,
        spec: &Spec,
        direction: Direction,
        name: &str,
        client: &Client,
    ) -> Result<FileHandle, Error> {
        let (folder, name) = (self.folder, name.as_bytes());
        let begin = Instant::now();
        loop {
            if let Some(node) = client.child_if_there(folder, name).await? {
                if spec.truncate && node.attributes.size_bytes > 0 {
                    let empty = SetAttributes {
                        size_bytes: Some(0),
                        ..SetAttributes::default()
                    };
                    client.set_attr(node.handle, empty, None).await?;
                }
                return Ok(node.handle);
            }
            match direction {
                Direction::Write => {
                    // Looked for first: some servers refuse CREATE of an existing file.
                    let how = CreateHow::Unchecked(with_mode(FILE_MODE));
                    match client.create(folder, name, how).await {
                        Err(error) if error.status() == Some(ErrorStatus::Exist) => {}
                        made => return client.made_handle(folder, name, made?).await,
                    }
                }
                Direction::Read if spec.is_foreign && begin.elapsed() < OPEN_WAIT => {
                    tokio::time::sleep(OPEN_AGAIN).await;
                }
                Direction::Read => return Ok(client.lookup(folder, name).await?.object),
            }
        }
    }
}

impl Object for NfsFile {
    fn len_bytes_max(&self, direction: Direction) -> usize {
        let limits = self.client.limits();
        match direction {
            Direction::Read => limits.read_max_bytes as usize,
            Direction::Write => limits.write_max_bytes as usize,
        }
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), Failed> {
        let (client, file) = (&self.client, self.file);
        write_all(client, file, offset, data, self.stable, &self.unstable).await?;
        Ok(())
    }

    async fn read(&self, offset: u64, buffer: AlignedBuf) -> Result<u64, Failed> {
        let read = self.client.read_full(self.file, offset, buffer).await?;
        Ok(read.data.len() as u64)
    }

    async fn settle(&self) -> Result<(), Failed> {
        self.unstable.commit(&self.client, self.file).await
    }
}
