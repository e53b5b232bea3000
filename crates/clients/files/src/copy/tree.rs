//! The two kinds of trees behind one set of operations.
//!
//! Owns: the choice between `local` and `remote`.
//! Must not know: anything about either.
//!
//! No operation follows a symbolic link in its last component.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use cairn_nfs_client::v3::{FileType, StableHow};
use cairn_nfs_client::{DirPages, Uncommitted};

use super::meta::{Attributes, Identity, Meta};
use super::{Remote, local, remote};

/// How often a file that changes is looked at through two addresses.
const SAME_TRIES_MAX: usize = 10;

/// A file or directory.
#[derive(Clone)]
pub(super) enum FileLocation {
    Local(PathBuf),
    Remote(Remote),
}

/// A place and what is there.
#[derive(Clone)]
pub(super) struct FoundFile {
    pub place: FileLocation,
    pub meta: Meta,
}

pub(super) enum Lookup {
    Found(FoundFile),
    Missing,
}

impl FoundFile {
    pub fn identity(&self) -> Identity {
        let server = match &self.place {
            FileLocation::Local(_) => None,
            FileLocation::Remote((client, _)) => Some(client.server_address()),
        };
        Identity {
            server,
            id: self.meta.id,
        }
    }

    /// Whether this and another are one file, also where a server has two addresses: the handles are the same then,
    /// and so is what is told of them, as long as nothing changes. If in doubt they are: one would be emptied.
    pub async fn is_same(&self, other: &Self) -> anyhow::Result<bool> {
        if self.identity() == other.identity() {
            return Ok(true);
        }
        let (
            FileLocation::Remote((client, handle)),
            FileLocation::Remote((other_client, other_handle)),
        ) = (&self.place, &other.place)
        else {
            return Ok(false);
        };
        if handle != other_handle || self.meta.id != other.meta.id {
            return Ok(false);
        }
        for _ in 0..SAME_TRIES_MAX {
            let before = client.get_attr(*handle).await?;
            let others = other_client.get_attr(*other_handle).await?;
            if others == before {
                return Ok(true);
            }
            if client.get_attr(*handle).await? == before {
                // Two servers that began as one, perhaps, or count alike.
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A name in a directory and what is there, if that can be found out.
pub(super) type Listed = (Vec<u8>, anyhow::Result<FoundFile>);

/// Reads one directory, a page at a time.
pub(super) enum Listing {
    Local(local::Listing),
    Remote(super::Remote, Box<DirPages>),
}

impl Listing {
    /// The next entries, perhaps none; `None` at the end.
    pub async fn next_page(&mut self) -> anyhow::Result<Option<Vec<Listed>>> {
        match self {
            Self::Local(listing) => listing.next_page().await,
            Self::Remote((client, _), pages) => remote::next_page(client, pages).await,
        }
    }
}

/// A file that is read.
pub(super) enum Source {
    Local(Arc<std::fs::File>),
    Remote(Remote),
}

/// A file that is written.
pub(super) enum Sink {
    Local(Arc<std::fs::File>),
    Remote(Remote),
}

/// A file that was made or emptied to be written.
pub(super) struct Created {
    pub sink: Sink,
    pub place: FileLocation,
    /// There was a file of that name.
    pub existed: bool,
}

impl FileLocation {
    /// User and group of files made here. The first user can give them to others.
    pub fn owner(&self) -> (u32, u32) {
        match self {
            Self::Local(_) => (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            Self::Remote((client, _)) => {
                let identity = client.identity();
                (identity.uid, identity.gid)
            }
        }
    }

    pub async fn found(&self) -> anyhow::Result<FoundFile> {
        match self {
            Self::Local(path) => local::found(path).await,
            Self::Remote(place) => remote::found(place).await,
        }
    }

    pub async fn list(&self) -> anyhow::Result<Listing> {
        Ok(match self {
            Self::Local(path) => Listing::Local(local::list(path).await?),
            Self::Remote(place) => {
                let pages = place.0.dir_pages(place.1, true);
                Listing::Remote(place.clone(), Box::new(pages))
            }
        })
    }

    pub async fn read_link(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Local(path) => local::read_link(path).await,
            Self::Remote((client, link)) => Ok(client.read_link(*link).await?),
        }
    }

    pub async fn open(&self) -> anyhow::Result<Source> {
        Ok(match self {
            Self::Local(path) => Source::Local(local::open(path).await?),
            Self::Remote(place) => Source::Remote(place.clone()),
        })
    }

    /// Makes the directory `name` in this one, or takes the one that is there.
    pub async fn make_dir(&self, name: &[u8], mode: u32) -> anyhow::Result<FileLocation> {
        match self {
            Self::Local(path) => local::make_dir(path, name, mode).await,
            Self::Remote(place) => remote::make_dir(place, name, mode).await,
        }
    }

    /// Makes the file `name`, or empties the one that is there unless it is `source` itself.
    /// `attributes` may be set right away if that is free.
    pub async fn create(
        &self,
        name: &[u8],
        mode: u32,
        attributes: &Attributes,
        source: &FoundFile,
    ) -> anyhow::Result<Created> {
        match self {
            Self::Local(path) => local::create(path, name, source.identity()).await,
            Self::Remote(place) => remote::create(place, name, mode, attributes, source).await,
        }
    }

    /// Makes a symbolic link in place of what is there, unless that is a directory.
    pub async fn symlink(
        &self,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> anyhow::Result<FileLocation> {
        match self {
            Self::Local(path) => local::symlink(path, name, target, attributes).await,
            Self::Remote(place) => remote::symlink(place, name, target, attributes).await,
        }
    }

    /// Makes a fifo, socket or device in place of what is there, unless that is a directory.
    pub async fn make_special(
        &self,
        name: &[u8],
        like: &Meta,
        mode: u32,
        attributes: &Attributes,
    ) -> anyhow::Result<FileLocation> {
        match self {
            Self::Local(path) => local::make_special(path, name, like, mode, attributes).await,
            Self::Remote(place) => remote::make_special(place, name, like, mode, attributes).await,
        }
    }

    /// Makes `name` a further name of `file`, which is on the same side.
    pub async fn link(&self, file: &FileLocation, name: &[u8]) -> anyhow::Result<()> {
        match (self, file) {
            (Self::Local(dir), Self::Local(file)) => local::link(file, dir, name).await,
            (Self::Remote(dir), Self::Remote(file)) => remote::link(file, dir, name).await,
            _ => unreachable!("copies are all on one side"),
        }
    }

    pub async fn remove(&self, name: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Local(path) => local::remove(path, name).await,
            Self::Remote((client, dir)) => {
                client.remove(*dir, name).await?;
                Ok(())
            }
        }
    }

    /// Sets attributes; when only the owner is refused, all but that.
    pub async fn set_attributes(
        &self,
        attributes: &Attributes,
        file_type: FileType,
    ) -> anyhow::Result<()> {
        if attributes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Local(path) => local::set_attributes(path, *attributes, file_type).await,
            Self::Remote(place) => remote::set_attributes(place, *attributes).await,
        }
    }
}

impl Source {
    /// Bytes from `offset` on; fewer than `len_bytes` only at the end of the file.
    /// Large reads of local files take their buffers from `buffers`.
    pub async fn read(
        &self,
        offset: u64,
        len_bytes: usize,
        buffers: &BufPool,
    ) -> anyhow::Result<Bytes> {
        match self {
            Self::Local(file) => {
                let pooled = buffers.slot_len_bytes() / 2..=buffers.slot_len_bytes();
                let buffer = match pooled.contains(&len_bytes) {
                    true => buffers.take(len_bytes),
                    false => AlignedBuf::zeroed(len_bytes),
                };
                local::read(file, offset, buffer).await
            }
            Self::Remote((client, file)) => {
                let buffer = client.buffer(len_bytes);
                let read = client.read_full(*file, offset, buffer).await?;
                Ok(read.data.freeze())
            }
        }
    }

    /// The first run of data at or after `start`, cut at `end`; `None`: only a hole is left. Sides
    /// that cannot tell say that all is data.
    pub async fn next_data(
        &self,
        start: u64,
        end: u64,
    ) -> anyhow::Result<Option<std::ops::Range<u64>>> {
        match self {
            Self::Local(file) => local::next_data(file, start, end).await,
            Self::Remote(_) => Ok((start < end).then_some(start..end)),
        }
    }

    /// How long it is now.
    pub async fn size_bytes(&self) -> anyhow::Result<u64> {
        match self {
            Self::Local(file) => local::size_bytes(file).await,
            Self::Remote((client, file)) => Ok(client.get_attr(*file).await?.size_bytes),
        }
    }

    /// Whether `next_data` knows holes.
    pub fn tells_holes(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// Most bytes of one read.
    pub fn read_len_bytes_max(&self) -> u64 {
        match self {
            Self::Local(_) => u64::MAX,
            Self::Remote((client, _)) => u64::from(client.limits().read_max_bytes),
        }
    }
}

impl Sink {
    pub async fn write(
        &self,
        offset: u64,
        data: Bytes,
        stable: StableHow,
        uncommitted: &mut Uncommitted,
    ) -> anyhow::Result<()> {
        match self {
            Self::Local(file) => local::write(file, offset, data).await,
            Self::Remote((client, file)) => {
                let written = client.write_full(*file, offset, data, stable, uncommitted);
                Ok(written.await?)
            }
        }
    }

    /// Most bytes of one write.
    pub fn write_len_bytes_max(&self) -> u64 {
        match self {
            Self::Local(_) => u64::MAX,
            Self::Remote((client, _)) => u64::from(client.limits().write_max_bytes),
        }
    }
}
