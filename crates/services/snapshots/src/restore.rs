//! Files and directories of a snapshot, restored in the volume.
//!
//! Owns: what comes with a file or directory, in which order, what must not be there before. Must not know: how bytes are shared.
//!
//! A file takes the place of the one of its name in one commit, and shares its bytes with the snapshot. A directory is made
//! at a name that is free, entry by entry.

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_fs::{
    Attr, Credentials, Expected, FileKind, Fs, FsError, FsView, NodeKind, Placing, SNAPSHOTS_NAME,
    SetAttr, SetTime, XattrMode,
};
use chrono::DateTime;
use futures_util::StreamExt as _;

static WHO: Credentials = Credentials::ROOT;
/// Entries of a directory that are read at a time.
const PAGE_COUNT: usize = 512;
/// Files that are made at the same time: they become durable together.
const ENTRIES_AT_ONCE: usize = 64;
/// Deepest directory below the one that is restored.
const DEPTH_MAX: usize = 256;

/// The name of the snapshot that keeps what a volume was before it was restored.
pub fn kept_name(now: Timestamp) -> String {
    let when = DateTime::from_timestamp(now.seconds, 0).unwrap_or_default();
    when.format("before-restore-%Y-%m-%d_%H%M%S").to_string()
}

/// Counts of restored files and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub files: u64,
    pub directories: u64,
    /// Of files; they take no more space than before.
    pub bytes: u64,
}

/// Why something was not restored, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFailure {
    #[error("there is no snapshot {0}")]
    NoSnapshot(String),
    #[error(
        "{0:?} is not a path in a volume: a path begins with /, without ., .., .snapshot or empty names"
    )]
    Path(String),
    #[error("snapshot {snapshot} has no {path}")]
    NotThere { snapshot: String, path: String },
    #[error("{path} cannot be created: {error}")]
    Place { path: String, error: FsError },
    #[error("{0} already exists; a directory needs an unused path")]
    DirectoryExists(String),
    #[error("{0} is a directory, and the source is not")]
    IsDirectory(String),
    #[error("{path}: {error}")]
    Fs { path: String, error: FsError },
}

/// Makes what a snapshot has at path `from` anew at path `to`.
pub async fn restore(
    fs: &Fs,
    snapshot: &str,
    from: &str,
    to: &str,
) -> Result<Restored, RestoreFailure> {
    let (from_names, to_names) = (names(from)?, names(to)?);
    let found = fs.snapshot(snapshot.as_bytes());
    let found = found.ok_or_else(|| RestoreFailure::NoSnapshot(snapshot.to_owned()))?;
    let at = |error| RestoreFailure::Fs {
        path: from.to_owned(),
        error,
    };
    let view = fs.in_view(found.view()).map_err(at)?;
    let mut source = view.attr(fs.root()).await.map_err(at)?;
    for name in &from_names {
        source = match view.lookup(&WHO, source.ino, name.as_bytes()).await {
            Ok((attr, _)) => attr,
            Err(FsError::NotFound | FsError::NotDirectory) => {
                return Err(RestoreFailure::NotThere {
                    snapshot: snapshot.to_owned(),
                    path: from.to_owned(),
                });
            }
            Err(error) => return Err(at(error)),
        };
    }
    let place = |error| RestoreFailure::Place {
        path: to.to_owned(),
        error,
    };
    let Some((name, parents)) = to_names.split_last() else {
        return Err(RestoreFailure::DirectoryExists(to.to_owned()));
    };
    let mut dir = fs.root();
    for parent in parents {
        let (attr, _) = fs
            .lookup(&WHO, dir, parent.as_bytes())
            .await
            .map_err(place)?;
        dir = attr.ino;
    }
    let mut restoring = Restoring {
        fs,
        view,
        restored: Restored::default(),
    };
    let place = RestoreTarget {
        dir,
        name: name.as_bytes(),
        path: to.to_owned(),
    };
    let made = match source.kind {
        FileKind::Directory => restoring.directory(&source, place).await,
        _ => {
            let made = restoring.entry(&source, &place, Expected::Anything);
            let bytes = made.await?;
            restoring.restored.files += 1;
            restoring.restored.bytes += bytes;
            Ok(())
        }
    };
    made?;
    Ok(restoring.restored)
}

fn names(path: &str) -> Result<Vec<&str>, RestoreFailure> {
    let bad = || RestoreFailure::Path(path.to_owned());
    if path == "/" {
        return Ok(Vec::new());
    }
    let inner = path.strip_prefix('/').ok_or_else(bad)?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let names: Vec<&str> = inner.split('/').collect();
    let is_bad = |name: &&str| {
        matches!(*name, "" | "." | "..") || name.as_bytes() == SNAPSHOTS_NAME || name.contains('\0')
    };
    match names.iter().any(is_bad) {
        true => Err(bad()),
        false => Ok(names),
    }
}

/// Where something comes.
struct RestoreTarget<'a> {
    dir: Ino,
    name: &'a [u8],
    path: String,
}

impl RestoreTarget<'_> {
    fn failed(&self, error: FsError) -> RestoreFailure {
        let path = self.path.clone();
        match error {
            FsError::IsDirectory => RestoreFailure::IsDirectory(path),
            error => RestoreFailure::Fs { path, error },
        }
    }
}

struct Restoring<'a> {
    fs: &'a Fs,
    view: FsView,
    restored: Restored,
}

/// A directory that is being filled.
struct Filling {
    source: Attr,
    made: Ino,
    path: String,
    cookie: u64,
    is_read: bool,
    /// Directories in it that wait.
    waiting: Vec<(Attr, Vec<u8>)>,
}

impl Restoring<'_> {
    /// A directory with all that is in it; where nothing is yet.
    async fn directory(
        &mut self,
        source: &Attr,
        place: RestoreTarget<'_>,
    ) -> Result<(), RestoreFailure> {
        let mut filling = vec![self.make_directory(source, &place).await?];
        while let Some(mut last) = filling.pop() {
            if let Some((source, name)) = last.waiting.pop() {
                let path = format!("{}/{}", last.path, String::from_utf8_lossy(&name));
                let place = RestoreTarget {
                    dir: last.made,
                    name: &name,
                    path,
                };
                if filling.len() >= DEPTH_MAX {
                    return Err(place.failed(FsError::NameTooLong));
                }
                let next = self.make_directory(&source, &place).await?;
                filling.extend([last, next]);
            } else if last.is_read {
                self.finish_directory(&last).await?;
            } else {
                self.read_page(&mut last).await?;
                filling.push(last);
            }
        }
        Ok(())
    }

    async fn make_directory(
        &mut self,
        source: &Attr,
        place: &RestoreTarget<'_>,
    ) -> Result<Filling, RestoreFailure> {
        let made = self
            .fs
            .make_dir(&WHO, place.dir, place.name, attributes(source));
        let made = made.await.map_err(|error| match error {
            FsError::Exists => RestoreFailure::DirectoryExists(place.path.clone()),
            error => place.failed(error),
        })?;
        self.restored.directories += 1;
        Ok(Filling {
            source: *source,
            made: made.attr.ino,
            path: place.path.clone(),
            cookie: 0,
            is_read: false,
            waiting: Vec::new(),
        })
    }

    async fn read_page(&mut self, filling: &mut Filling) -> Result<(), RestoreFailure> {
        let (ino, cookie) = (filling.source.ino, filling.cookie);
        let at = |error| RestoreFailure::Fs {
            path: filling.path.clone(),
            error,
        };
        let page = self
            .view
            .read_dir(&WHO, ino, cookie, PAGE_COUNT, true)
            .await;
        let page = page.map_err(at)?;
        filling.is_read = page.eof;
        let mut others = Vec::new();
        for entry in page.entries {
            filling.cookie = entry.cookie;
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            let source = match entry.attr {
                Some(attr) => attr,
                None => self.view.attr(entry.ino).await.map_err(at)?,
            };
            match source.kind {
                FileKind::Directory => filling.waiting.push((source, entry.name.to_vec())),
                _ => others.push((source, entry.name)),
            }
        }
        let (restoring, filling) = (&*self, &*filling);
        let made = others.into_iter().map(|(source, name)| async move {
            let place = RestoreTarget {
                dir: filling.made,
                name: &name,
                path: format!("{}/{}", filling.path, String::from_utf8_lossy(&name)),
            };
            restoring.entry(&source, &place, Expected::Nothing).await
        });
        let mut made = futures_util::stream::iter(made).buffer_unordered(ENTRIES_AT_ONCE);
        let (mut files, mut bytes) = (0, 0);
        while let Some(made) = made.next().await {
            bytes += made?;
            files += 1;
        }
        drop(made);
        self.restored.files += files;
        self.restored.bytes += bytes;
        Ok(())
    }

    /// Its times last: what was made in it changed them.
    async fn finish_directory(&self, filling: &Filling) -> Result<(), RestoreFailure> {
        let at = |error| RestoreFailure::Fs {
            path: filling.path.clone(),
            error,
        };
        for (name, value) in self.xattrs(filling.source.ino).await.map_err(at)? {
            let set = self
                .fs
                .set_xattr(&WHO, filling.made, &name, &value, XattrMode::Any);
            set.await.map_err(at)?;
        }
        let set = attributes(&filling.source);
        let set = self.fs.set_attr(&WHO, filling.made, set, None).await;
        set.map(drop).map_err(at)
    }

    /// Restores an entry other than a directory; returns how many bytes it has.
    async fn entry(
        &self,
        source: &Attr,
        place: &RestoreTarget<'_>,
        expected: Expected,
    ) -> Result<u64, RestoreFailure> {
        if source.kind != FileKind::Regular {
            return self.other(source, place).await.map(|()| 0);
        }
        let made = self.share(source, place, expected).await;
        made.map_err(|error| place.failed(error))?;
        Ok(source.size_bytes)
    }

    async fn share(
        &self,
        source: &Attr,
        place: &RestoreTarget<'_>,
        expected: Expected,
    ) -> Result<(), FsError> {
        let xattrs = self.xattrs(source.ino).await?;
        let xattrs: Vec<(&[u8], Bytes)> = xattrs
            .iter()
            .map(|(name, value)| (&name[..], value.clone()))
            .collect();
        let mut file = self.fs.make_unnamed_near(&WHO, place.dir).await?;
        file.share(&self.view, source.ino, 0..source.size_bytes)
            .await?;
        let placing = Placing {
            dir: place.dir,
            name: place.name,
            expected,
            set: attributes(source),
            xattrs: &xattrs,
        };
        file.place(&WHO, &placing).await.map(drop)
    }

    /// A link, a device and such; where nothing is yet.
    async fn other(&self, source: &Attr, place: &RestoreTarget<'_>) -> Result<(), RestoreFailure> {
        let set = attributes(source);
        let made = match source.kind {
            FileKind::Symlink => {
                let read = self.view.read_link(&WHO, source.ino).await;
                let (target, _) = read.map_err(|error| place.failed(error))?;
                let made = self
                    .fs
                    .make_symlink(&WHO, place.dir, place.name, &target, set);
                made.await
            }
            kind => {
                let (major, minor) = (source.device_major, source.device_minor);
                let node = match kind {
                    FileKind::BlockDevice => NodeKind::BlockDevice { major, minor },
                    FileKind::CharDevice => NodeKind::CharDevice { major, minor },
                    FileKind::Socket => NodeKind::Socket,
                    _ => NodeKind::Fifo,
                };
                let made = self.fs.make_node(&WHO, place.dir, place.name, node, set);
                made.await
            }
        };
        made.map_err(|error| place.failed(error)).map(drop)
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<(Bytes, Bytes)>, FsError> {
        let mut all = Vec::new();
        for name in self.view.xattr_list(&WHO, ino).await? {
            let value = self.view.xattr(&WHO, ino, &name).await?;
            all.push((name, value));
        }
        Ok(all)
    }
}

/// What a file had then.
fn attributes(source: &Attr) -> SetAttr {
    SetAttr {
        mode: Some(source.mode),
        uid: Some(source.uid),
        gid: Some(source.gid),
        size_bytes: None,
        atime: SetTime::To(source.atime),
        mtime: SetTime::To(source.mtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_what_was_tells_when() {
        let name = kept_name(Timestamp::new(1_764_165_907, 5));
        assert_eq!(name, "before-restore-2025-11-26_140507");
    }

    #[test]
    fn paths_are_read_or_refused() {
        for (path, want) in [
            ("/", Some(vec![])),
            ("/a", Some(vec!["a"])),
            ("/a/b c/", Some(vec!["a", "b c"])),
            ("", None),
            ("a", None),
            ("//", None),
            ("/a//b", None),
            ("/a/../b", None),
            ("/./a", None),
            ("/a\0", None),
        ] {
            assert_eq!(names(path).ok(), want, "{path:?}");
        }
    }
}
