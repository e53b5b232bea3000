//! Common operations on files: walk a path, read a range, write a range and know it is safe.
//!
//! Owns: resolving paths and symbolic links, pipelining of large transfers, short reads and writes,
//! COMMIT and sending again what a restarted server lost.
//! Must not know: local files.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_codec_nfs::v3::{ErrorStatus, FileAttr, FileHandle, FileType, SetAttributes, StableHow};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered, StreamExt};

use crate::client::{Client, Made, ReadData};
use crate::error::{Error, PathProblem};
use crate::stable::{Round, Uncommitted};

/// Symbolic links followed in one path, as in Linux.
const LINK_COUNT_MAX: u32 = 40;
/// READs or WRITEs of one transfer that are in flight together.
pub const TRANSFER_DEPTH: usize = 16;

/// A file that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub handle: FileHandle,
    pub attributes: FileAttr,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }
}

impl Client {
    /// The components of the URL's path below the export.
    pub fn components(&self) -> Vec<Vec<u8>> {
        let mount_depth = components_of(self.export()).count();
        let path = self.url().components().skip(mount_depth);
        path.map(<[u8]>::to_vec).collect()
    }

    /// What the client's URL names. `follow`: if that is a symbolic link, what it leads to.
    pub async fn resolve_url(&self, follow: bool) -> Result<Node, Error> {
        let path = self.components().join(&b'/');
        self.resolve(&path, follow).await
    }

    /// What `path`, from the root of the export, names. Links on the way are followed.
    pub async fn resolve(&self, path: &[u8], follow: bool) -> Result<Node, Error> {
        let root = Node {
            handle: self.root(),
            attributes: self.get_attr(self.root()).await?,
        };
        let mut above: Vec<Node> = Vec::new();
        let mut here = root;
        let mut link_count = 0;
        let mut rest: VecDeque<Vec<u8>> = components_of(path).map(<[u8]>::to_vec).collect();
        while let Some(name) = rest.pop_front() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    here = above.pop().ok_or(Error::Path(PathProblem::AboveRoot))?;
                    continue;
                }
                _ => {}
            }
            let child = self.child(here.handle, &name).await?;
            let is_link = child.attributes.file_type == FileType::Symlink;
            if !is_link || (rest.is_empty() && !follow) {
                above.push(here);
                here = child;
                continue;
            }
            link_count += 1;
            if link_count > LINK_COUNT_MAX {
                return Err(Error::Path(PathProblem::TooManyLinks(LINK_COUNT_MAX)));
            }
            let target = self.read_link(child.handle).await?;
            if target.starts_with(b"/") {
                let name = String::from_utf8_lossy(&name).into_owned();
                return Err(Error::Path(PathProblem::AbsoluteLink(name)));
            }
            for component in components_of(&target).rev() {
                rest.push_front(component.to_vec());
            }
        }
        Ok(here)
    }

    /// `name` in `dir`, with attributes.
    pub async fn child(&self, dir: FileHandle, name: &[u8]) -> Result<Node, Error> {
        let found = self.lookup(dir, name).await?;
        self.node(found.object, found.attributes).await
    }

    /// `name` in `dir`; `None` if there is nothing.
    pub async fn child_if_there(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<Option<Node>, Error> {
        match self.child(dir, name).await {
            Err(error) if error.status() == Some(ErrorStatus::NoEnt) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The node that was just made as `name` in `dir`, also if the server did not return it.
    pub async fn made_node(&self, dir: FileHandle, name: &[u8], made: Made) -> Result<Node, Error> {
        match made.handle {
            Some(handle) => self.node(handle, made.attributes).await,
            None => self.child(dir, name).await,
        }
    }

    /// The handle of what was just made, also if the server did not say it.
    pub async fn made_handle(
        &self,
        dir: FileHandle,
        name: &[u8],
        made: Made,
    ) -> Result<FileHandle, Error> {
        match made.handle {
            Some(handle) => Ok(handle),
            None => Ok(self.lookup(dir, name).await?.object),
        }
    }

    async fn node(&self, handle: FileHandle, attributes: Option<FileAttr>) -> Result<Node, Error> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.get_attr(handle).await?,
        };
        Ok(Node { handle, attributes })
    }

    /// Makes the directory `path` and those above it that are missing; existing ones are taken.
    pub async fn mkdir_all(&self, path: &[u8], attributes: SetAttributes) -> Result<Node, Error> {
        let mut here = Node {
            handle: self.root(),
            attributes: self.get_attr(self.root()).await?,
        };
        for name in components_of(path) {
            here = match self.mkdir(here.handle, name, attributes).await {
                Ok(made) => self.made_node(here.handle, name, made).await?,
                Err(error) if error.status() == Some(ErrorStatus::Exist) => {
                    self.child(here.handle, name).await?
                }
                Err(error) => return Err(error),
            };
        }
        if !here.is_directory() {
            return Err(Error::Status {
                procedure: "mkdir",
                status: ErrorStatus::NotDir,
            });
        }
        Ok(here)
    }

    /// Reads until `buffer` is full or the file ends, however little the server gives at a time.
    pub async fn read_full(
        &self,
        file: FileHandle,
        offset: u64,
        buffer: AlignedBuf,
    ) -> Result<ReadData, Error> {
        let len_bytes = buffer.len();
        let mut read = self.read_into(file, offset, buffer).await?;
        while read.data.len() < len_bytes && !read.eof {
            let done = read.data.len();
            let rest = AlignedBuf::zeroed(len_bytes - done);
            let more = self.read_into(file, offset + done as u64, rest).await?;
            if more.data.is_empty() && !more.eof {
                return Err(Error::Inconsistent {
                    procedure: "read",
                    reason: "no data, and yet not the end of the file",
                });
            }
            read.data.set_len(done + more.data.len());
            read.data[done..].copy_from_slice(&more.data);
            read.eof = more.eof;
        }
        Ok(read)
    }

    /// The bytes of a range in order, read ahead. It ends early where the file ends.
    pub fn read_range(&self, file: FileHandle, range: Range<u64>) -> ReadRange {
        ReadRange {
            client: self.clone(),
            file,
            next: range,
            reading: FuturesOrdered::new(),
        }
    }

    /// Writes all of `data`, in as many calls as it takes, one after the other.
    pub async fn write_full(
        &self,
        file: FileHandle,
        mut offset: u64,
        mut data: Bytes,
        stable: StableHow,
        uncommitted: &mut Uncommitted,
    ) -> Result<(), Error> {
        while !data.is_empty() {
            let written = self.write(file, offset, data.clone(), stable).await?;
            uncommitted.wrote(offset, &written);
            offset += u64::from(written.count_bytes);
            data = data.slice(written.count_bytes as usize..);
        }
        Ok(())
    }

    /// Writes `data` pipelined and returns when all of it is on stable storage.
    pub async fn write_range(
        &self,
        file: FileHandle,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Error> {
        let end = offset.saturating_add(data.len() as u64);
        let mut uncommitted = Uncommitted::default();
        let mut to_write: Vec<Range<u64>> = std::iter::once(offset..end).collect();
        loop {
            let chunk = u64::from(self.limits().write_max_bytes);
            let mut chunks = to_write.iter().flat_map(|range| split(range, chunk));
            let mut writing = FuturesUnordered::new();
            loop {
                while writing.len() < TRANSFER_DEPTH
                    && let Some(range) = chunks.next()
                {
                    let start = (range.start - offset) as usize;
                    let part = data.slice(start..start + (range.end - range.start) as usize);
                    writing.push(async move {
                        let mut part_uncommitted = Uncommitted::default();
                        let stable = StableHow::Unstable;
                        self.write_full(file, range.start, part, stable, &mut part_uncommitted)
                            .await?;
                        Ok::<_, Error>(part_uncommitted)
                    });
                }
                match writing.next().await {
                    Some(done) => uncommitted.merge(done?),
                    None => break,
                }
            }
            match self.commit_all(file, &mut uncommitted).await? {
                Round::Safe => return Ok(()),
                Round::Resend(lost) => to_write = lost,
            }
        }
    }

    /// Sends a COMMIT for all of `uncommitted`, if there is any need, and says what was lost.
    pub async fn commit_all(
        &self,
        file: FileHandle,
        uncommitted: &mut Uncommitted,
    ) -> Result<Round, Error> {
        if uncommitted.is_empty() {
            return Ok(Round::Safe);
        }
        // The whole file: a part would only save the server looking.
        let verifier = self.commit(file, 0, 0).await?;
        uncommitted.committed(verifier)
    }
}

/// The reader that [`Client::read_range`] gives.
pub struct ReadRange {
    client: Client,
    file: FileHandle,
    /// Not asked for yet.
    next: Range<u64>,
    reading: FuturesOrdered<BoxFuture<'static, Result<ReadData, Error>>>,
}

impl ReadRange {
    /// The next bytes; `None` at the end of the range or of the file.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        while self.reading.len() < TRANSFER_DEPTH && !self.next.is_empty() {
            let chunk = u64::from(self.client.limits().read_max_bytes);
            let end = self.next.end.min(self.next.start.saturating_add(chunk));
            let (client, file, start) = (self.client.clone(), self.file, self.next.start);
            self.next.start = end;
            self.reading.push_back(Box::pin(async move {
                let buffer = client.buffer((end - start) as usize);
                client.read_full(file, start, buffer).await
            }));
        }
        let read = match self.reading.next().await? {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        if read.eof {
            self.next.start = self.next.end;
            self.reading.clear();
        }
        (!read.data.is_empty()).then(|| Ok(read.data.freeze()))
    }
}

/// `range` in pieces of at most `len_bytes_max`.
pub(crate) fn split(
    range: &Range<u64>,
    len_bytes_max: u64,
) -> impl Iterator<Item = Range<u64>> + use<> {
    let mut rest = range.clone();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.end.min(rest.start.saturating_add(len_bytes_max));
        let piece = rest.start..end;
        rest.start = end;
        Some(piece)
    })
}

fn components_of(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty())
}
