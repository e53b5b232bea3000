//! Bytes on their way into an object: a file that no name leads to until all of it is there.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::Ino;
use cairn_fs::{Attr, Credentials, FsError, Stability, TRANSFER_LEN_BYTES_MAX};
use md5::{Digest as _, Md5};

use crate::records::ObjectError;
use crate::volume::Objects;

/// What is written at once.
const STEP_LEN_BYTES: usize = TRANSFER_LEN_BYTES_MAX as usize;
/// Objects up to this are written stable with their only write: they ride the journal.
const SMALL_LEN_BYTES: usize = 64 << 10;

/// A file that is being filled. Without [`Staged::take`] it goes again when it is dropped.
pub struct Staged {
    objects: Arc<Objects>,
    who: Credentials,
    folder: Ino,
    /// `None`: the file has found its place.
    name: Option<String>,
    ino: Ino,
    len_bytes: u64,
    buffer: BytesMut,
    md5: Md5,
    is_stable: bool,
}

/// A file that is whole and durable, and has no place yet.
pub(crate) struct Whole {
    pub ino: Ino,
    pub attr: Attr,
}

impl Staged {
    pub(crate) async fn begin(
        objects: &Arc<Objects>,
        who: &Credentials,
        folder: Ino,
        name: String,
    ) -> Result<Self, ObjectError> {
        let ino = objects.new_file(who, folder, &name).await?;
        Ok(Self {
            objects: Arc::clone(objects),
            who: who.clone(),
            folder,
            name: Some(name),
            ino,
            len_bytes: 0,
            buffer: BytesMut::new(),
            md5: Md5::new(),
            is_stable: true,
        })
    }

    /// Adds bytes to its end.
    pub async fn add(&mut self, mut data: Bytes) -> Result<(), ObjectError> {
        self.md5.update(&data);
        // Large pieces are written from where they lie.
        if self.buffer.is_empty() {
            while data.len() >= STEP_LEN_BYTES {
                let step = data.split_to(STEP_LEN_BYTES);
                self.write(step, Stability::Unstable).await?;
            }
        }
        while !data.is_empty() {
            let room = STEP_LEN_BYTES - self.buffer.len();
            let step = data.split_to(room.min(data.len()));
            self.buffer.extend_from_slice(&step);
            if self.buffer.len() == STEP_LEN_BYTES {
                let step = std::mem::take(&mut self.buffer).freeze();
                self.write(step, Stability::Unstable).await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, data: Bytes, stability: Stability) -> Result<(), ObjectError> {
        let len_bytes = data.len() as u64;
        let fs = &self.objects.fs;
        let written = fs
            .write(&self.who, self.ino, self.len_bytes, data, stability)
            .await?;
        self.is_stable &= written.stable;
        self.len_bytes += len_bytes;
        Ok(())
    }

    /// Bytes so far.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes + self.buffer.len() as u64
    }

    /// The MD5 of all of it.
    pub fn md5(&self) -> [u8; 16] {
        self.md5.clone().finalize().into()
    }

    /// Makes all of it durable.
    pub(crate) async fn finish(&mut self) -> Result<Whole, ObjectError> {
        let rest = std::mem::take(&mut self.buffer).freeze();
        if !rest.is_empty() {
            let is_small = self.len_bytes == 0 && rest.len() <= SMALL_LEN_BYTES;
            let stability = match is_small {
                true => Stability::Stable,
                false => Stability::Unstable,
            };
            self.write(rest, stability).await?;
        }
        let fs = &self.objects.fs;
        if !self.is_stable {
            fs.commit(&self.who, self.ino, 0, 0).await?;
        }
        let attr = fs.attr(self.ino).await?;
        Ok(Whole {
            ino: self.ino,
            attr,
        })
    }

    pub(crate) fn place(&self) -> (Ino, &str) {
        (self.folder, self.name.as_deref().unwrap_or_default())
    }

    pub(crate) fn who(&self) -> &Credentials {
        &self.who
    }

    /// It has a place now.
    pub(crate) fn take(mut self) {
        self.name = None;
    }

    /// Removes it now, instead of when it is dropped.
    pub async fn discard(mut self) {
        if let Some(name) = self.name.take() {
            remove(&self.objects, &self.who, self.folder, &name).await;
        }
    }
}

async fn remove(objects: &Objects, who: &Credentials, folder: Ino, name: &str) {
    match objects.fs.remove(who, folder, name.as_bytes()).await {
        Ok(_) | Err(FsError::NotFound | FsError::Stale) => {}
        // The next owner removes it.
        Err(error) => {
            tracing::debug!(%error, "a part of an object that nobody wants stays for now")
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        let (objects, who, folder) = (Arc::clone(&self.objects), self.who.clone(), self.folder);
        let task = async move { remove(&objects, &who, folder, &name).await };
        self.objects
            .env
            .spawner
            .spawn("objects: remove what is not whole", Box::pin(task));
    }
}
