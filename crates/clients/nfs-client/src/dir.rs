//! Directories, a page at a time.
//!
//! Owns: cookies, falling back from READDIRPLUS to READDIR, looking up what a page left out,
//! refusing names that are none.
//! Must not know: in which order names are shown.

use cairn_codec_nfs::v3::{
    CookieVerifier, ErrorStatus, FileAttr, FileHandle, PostOpAttr, PostOpHandle, ReadDirArgs,
    ReadDirPlusArgs,
};
use futures_util::stream::{self, StreamExt};

use crate::client::Client;
use crate::error::Error;

/// LOOKUPs in flight for entries that came without attributes.
const LOOKUP_DEPTH: usize = 32;

/// One name in a directory, with what it names. Never `.` or `..`.
#[derive(Debug)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub fileid: u64,
    /// `None` if the pages were not asked for with attributes. An error is the server's for this one alone: what it
    /// names cannot be read, or looked at by this user.
    pub node: Option<Result<(FileHandle, FileAttr), Error>>,
}

impl DirEntry {
    /// What it names, if that is known.
    pub fn known(&self) -> Option<(FileHandle, FileAttr)> {
        self.node.as_ref()?.as_ref().ok().copied()
    }
}

/// Reads one directory. A name that stays there from begin to end is seen once.
pub struct DirPages {
    client: Client,
    dir: FileHandle,
    position: Position,
    /// Ask for attributes and handles too.
    with_nodes: bool,
    /// The server has no READDIRPLUS.
    plain_only: bool,
    ended: bool,
}

#[derive(Clone, Copy, Default)]
struct Position {
    cookie: u64,
    verifier: CookieVerifier,
}

struct Page {
    entries: Vec<RawEntry>,
    next: Position,
    eof: bool,
}

struct RawEntry {
    name: Vec<u8>,
    fileid: u64,
    attributes: PostOpAttr,
    handle: PostOpHandle,
}

impl Client {
    /// Lists `dir` from the beginning. `with_nodes`: with attributes and handles.
    pub fn dir_pages(&self, dir: FileHandle, with_nodes: bool) -> DirPages {
        DirPages {
            client: self.clone(),
            dir,
            position: Position::default(),
            with_nodes,
            plain_only: false,
            ended: false,
        }
    }
}

impl DirPages {
    /// The next entries in the server's order, perhaps none; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<DirEntry>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let page = self.read_page().await?;
        self.ended = page.eof;
        if page.entries.is_empty() && !page.eof {
            return Err(bad("an empty page, and yet not the end"));
        }
        if !page.eof && page.next.cookie == self.position.cookie {
            return Err(bad("the cookies do not advance"));
        }
        self.position = page.next;
        let mut entries = Vec::with_capacity(page.entries.len());
        let named = page.entries.into_iter();
        let wanted = named.filter(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
        let mut complete =
            stream::iter(wanted.map(|entry| self.complete(entry))).buffered(LOOKUP_DEPTH);
        while let Some(entry) = complete.next().await {
            entries.extend(entry?);
        }
        Ok(Some(entries))
    }

    async fn read_page(&mut self) -> Result<Page, Error> {
        let page_len_bytes = self.client.limits().readdir_bytes;
        if self.with_nodes && !self.plain_only {
            let args = ReadDirPlusArgs {
                dir: self.dir,
                cookie: self.position.cookie,
                cookie_verifier: self.position.verifier,
                dir_count_bytes: page_len_bytes,
                max_count_bytes: page_len_bytes,
            };
            let page = self.client.readdirplus(&args, |ok| {
                let entries = ok.entries.0.iter();
                Page {
                    next: next_position(entries.clone().map(|it| it.cookie), ok.cookie_verifier),
                    entries: entries
                        .map(|entry| RawEntry {
                            name: entry.name.to_vec(),
                            fileid: entry.fileid,
                            attributes: entry.attributes,
                            handle: entry.handle,
                        })
                        .collect(),
                    eof: ok.eof,
                }
            });
            match page.await {
                Err(error) if error.status() == Some(ErrorStatus::NotSupp) => {
                    self.plain_only = true;
                }
                page => return page,
            }
        }
        let args = ReadDirArgs {
            dir: self.dir,
            cookie: self.position.cookie,
            cookie_verifier: self.position.verifier,
            count_bytes: page_len_bytes,
        };
        let page = self.client.readdir(&args, |ok| {
            let entries = ok.entries.0.iter();
            Page {
                next: next_position(entries.clone().map(|it| it.cookie), ok.cookie_verifier),
                entries: entries
                    .map(|entry| RawEntry {
                        name: entry.name.to_vec(),
                        fileid: entry.fileid,
                        attributes: None,
                        handle: None,
                    })
                    .collect(),
                eof: ok.eof,
            }
        });
        page.await
    }

    /// `None`: removed since the page was made.
    async fn complete(&self, entry: RawEntry) -> Result<Option<DirEntry>, Error> {
        // Callers make local paths of names; nothing may climb out through one.
        let is_name = !entry.name.is_empty() && !entry.name.iter().any(|it| matches!(it, 0 | b'/'));
        if !is_name {
            return Err(bad("a name that is empty or holds a slash or NUL"));
        }
        let node = match (entry.handle, entry.attributes) {
            _ if !self.with_nodes => None,
            (Some(handle), Some(attributes)) => Some(Ok((handle, attributes))),
            _ => match self.client.child_if_there(self.dir, &entry.name).await {
                Ok(Some(node)) => Some(Ok((node.handle, node.attributes))),
                Ok(None) => return Ok(None),
                Err(error) if error.status().is_some() => Some(Err(error)),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(DirEntry {
            name: entry.name,
            fileid: entry.fileid,
            node,
        }))
    }
}

fn next_position(cookies: impl Iterator<Item = u64>, verifier: CookieVerifier) -> Position {
    Position {
        cookie: cookies.last().unwrap_or_default(),
        verifier,
    }
}

fn bad(reason: &'static str) -> Error {
    Error::Inconsistent {
        procedure: "readdir",
        reason,
    }
}
