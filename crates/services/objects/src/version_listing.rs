//! Listings of versions: by keys, and of each key the newest first.
//!
//! Owns: how the directories of the bucket and those of previous versions are walked as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::{Ino, Timestamp};
use cairn_fs::{Credentials, FsError, access};

use crate::bucket::{Bucket, Directories, text};
use crate::listing::{Entry, Listed, NameTarget, Names, Tree, Walk, common_prefix, is_plain, past};
use crate::records::ObjectError;
use crate::versions::{Pair, READ};
use crate::volume::Objects;

/// Of a page.
const LIST_COUNT_MAX: usize = 1000;
/// Who looks at what is kept, which has rights of its own.
static ROOT: Credentials = Credentials::ROOT;

/// A version of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVersion {
    pub key: String,
    pub version_id: String,
    pub is_latest: bool,
    pub is_marker: bool,
    pub size_bytes: u64,
    pub mtime: Timestamp,
    pub etag: String,
}

/// A page of versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionListing {
    pub entries: Vec<Listed<ListedVersion>>,
    /// After which key the next page begins, or which prefix; and after which of its versions. `None`: that was all.
    pub next: Option<(String, Option<String>)>,
}

/// Which versions are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionsWanted<'a> {
    pub prefix: &'a str,
    pub delimiter: &'a str,
    /// After this key, or what an earlier page told as a prefix.
    pub after: &'a str,
    /// After this version of the key.
    pub after_version: Option<&'a str>,
    pub limit: usize,
    /// Only what XML can hold as it is (XML 1.0, section 2.2).
    pub is_plain: bool,
}

pub(crate) struct Both<'a> {
    live: Directories<'a>,
    /// A user who may see a folder sees all of it.
    kept: Directories<'a>,
}

impl<'a> Both<'a> {
    pub fn new(objects: &'a Objects, who: &'a Credentials) -> Self {
        Self {
            live: Directories { objects, who },
            kept: Directories {
                objects,
                who: &ROOT,
            },
        }
    }
}

type Page = Names<Ino, Ino>;

/// Two pages as one, up to where both have been read.
fn merged(live: Page, kept: Page) -> Names<Pair, Pair> {
    let last = |page: &Page| {
        let last = page.entries.last().map(|entry| Arc::clone(&entry.name));
        last.filter(|_| !page.eof)
    };
    let bound = match (last(&live), last(&kept)) {
        (Some(live), Some(kept)) => Some(live.min(kept)),
        (live, kept) => live.or(kept),
    };
    type Halves = (Option<NameTarget<Ino, Ino>>, Option<Ino>);
    let mut names: BTreeMap<Arc<[u8]>, Halves> = BTreeMap::new();
    for entry in live.entries {
        names.entry(entry.name).or_default().0 = Some(entry.named);
    }
    for entry in kept.entries {
        if let NameTarget::Directory(dir) = entry.named {
            names.entry(entry.name).or_default().1 = Some(dir);
        }
    }
    let is_read = |name: &Arc<[u8]>| bound.as_ref().is_none_or(|bound| name <= bound);
    let entries = names.into_iter().filter(|(name, _)| is_read(name));
    let entries = entries.map(|(name, (live, kept))| {
        let file = match &live {
            Some(NameTarget::File(ino)) => Some(*ino),
            _ => None,
        };
        let dir = match &live {
            Some(NameTarget::Directory(ino)) => Some(*ino),
            _ => None,
        };
        let pair = |live| Pair { live, kept };
        let named = match (file, dir, kept) {
            (None, None, None) => NameTarget::Nothing,
            (Some(_), _, None) => NameTarget::File(pair(file)),
            (None, Some(_), None) => NameTarget::Directory(pair(dir)),
            (_, _, Some(_)) => NameTarget::Both(pair(file), pair(dir)),
        };
        Entry { name, named }
    });
    Names {
        entries: entries.collect(),
        eof: bound.is_none(),
    }
}

impl Both<'_> {
    async fn may_list(&self, live: Option<Ino>) -> Result<bool, FsError> {
        let Directories { objects, who } = &self.live;
        let Some(live) = live else { return Ok(true) };
        match objects.fs().access(who, live, access::READ).await {
            Ok((allowed, _)) => Ok(allowed != 0),
            Err(FsError::Stale) => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn page(
        tree: &Directories<'_>,
        dir: Option<Ino>,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<Page, FsError> {
        let none = Names {
            entries: Vec::new(),
            eof: true,
        };
        let Some(dir) = dir else { return Ok(none) };
        match tree.names_after(dir, after, inclusive, limit).await {
            // It went meanwhile.
            Err(FsError::Stale | FsError::NotFound) => Ok(none),
            page => page,
        }
    }
}

impl Tree for Both<'_> {
    type Directory = Pair;
    type File = Pair;

    async fn names_after(
        &self,
        dir: Pair,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> Result<Names<Pair, Pair>, FsError> {
        let Directories { objects, who } = &self.live;
        let may_see = self.may_list(dir.live).await? && objects.folder_lets(who, dir, READ).await?;
        let live = Self::page(&self.live, dir.live, after, inclusive, limit).await?;
        let kept = dir.kept.filter(|_| may_see);
        let mut kept = Self::page(&self.kept, kept, after, inclusive, limit).await?;
        // Versions of the directory's own key come after all keys below it.
        let is_key = |entry: &Entry<Ino, Ino>| std::str::from_utf8(&entry.name).is_ok();
        let count = kept
            .entries
            .iter()
            .take_while(|entry| is_key(entry))
            .count();
        kept.eof |= count < kept.entries.len();
        kept.entries.truncate(count);
        Ok(merged(live, kept))
    }

    async fn directory(&self, dir: Pair, name: &[u8]) -> Result<Option<Pair>, FsError> {
        let Directories { objects, who } = &self.live;
        match objects.enter(who, dir, name).await {
            Ok(pair) => Ok((pair.live.is_some() || pair.kept.is_some()).then_some(pair)),
            // What the key's user may not see is not there.
            Err(FsError::AccessDenied | FsError::NameTooLong) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn own(&self, dir: Pair) -> Result<Option<Pair>, FsError> {
        let Some(live) = dir.live else {
            return Ok(None);
        };
        let own = self.live.own(live).await?;
        Ok(own.map(|own| Pair {
            live: Some(own),
            kept: None,
        }))
    }
}

impl Bucket {
    /// A page of the versions of the bucket's objects, delete markers with them.
    pub async fn list_versions(
        &self,
        who: &Credentials,
        wanted: VersionsWanted<'_>,
    ) -> Result<VersionListing, ObjectError> {
        let tree = Both::new(&self.objects, who);
        let root = self.pair().await?;
        let limit = wanted.limit.min(LIST_COUNT_MAX);
        let mut page = VersionListing {
            entries: Vec::new(),
            next: None,
        };
        if limit == 0 {
            return Ok(page);
        }
        let (prefix, delimiter) = (wanted.prefix.as_bytes(), wanted.delimiter.as_bytes());
        let after = wanted.after.as_bytes();
        let mut walk = Walk::new(&tree, root);
        match after < prefix {
            true => walk.seek(prefix, true).await?,
            false => match common_prefix(after, prefix, delimiter) {
                Some(told) if told == after => walk.seek(&past(told), true).await?,
                _ => walk.seek(after, wanted.after_version.is_some()).await?,
            },
        }
        while let Some(found) = walk.next().await? {
            if !found.key.starts_with(prefix) {
                break;
            }
            let Pair { live, kept } = found.file;
            let after_version = wanted.after_version.filter(|_| found.key == after);
            // One more tells that the page is not the last.
            let room = limit - page.entries.len() + 1;
            let versions = self
                .versions_of(who, live, kept, after_version, room)
                .await?;
            let Some(newest) = versions.first() else {
                continue;
            };
            // Without an object only a marker says what is the latest.
            let has_latest =
                after_version.is_none() && (live == Some(newest.ino) || newest.is_marker);
            let common = common_prefix(&found.key, prefix, delimiter).map(<[u8]>::to_vec);
            let is_told = !wanted.is_plain || is_plain(common.as_deref().unwrap_or(&found.key));
            if let Some(common) = common {
                if is_told && page.entries.len() == limit {
                    page.next = page.last();
                    return Ok(page);
                }
                walk.seek(&past(&common), true).await?;
                if is_told {
                    page.entries.push(Listed::Prefix(common));
                }
                continue;
            }
            if !is_told {
                continue;
            }
            let key = text(&found.key);
            for (index, info) in versions.into_iter().enumerate() {
                if page.entries.len() == limit {
                    page.next = page.last();
                    return Ok(page);
                }
                page.entries.push(Listed::Object(ListedVersion {
                    key: key.clone(),
                    version_id: info.id().to_owned(),
                    is_latest: index == 0 && has_latest,
                    is_marker: info.is_marker,
                    size_bytes: info.size_bytes(),
                    mtime: info.attr.mtime,
                    etag: info.etag(),
                }));
            }
        }
        Ok(page)
    }
}

impl VersionListing {
    fn last(&self) -> Option<(String, Option<String>)> {
        Some(match self.entries.last()? {
            Listed::Object(version) => (version.key.clone(), Some(version.version_id.clone())),
            Listed::Prefix(prefix) => (text(prefix), None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: &[(&str, NameTarget<Ino, Ino>)], eof: bool) -> Page {
        let entries = names.iter().map(|(name, named)| Entry {
            name: name.as_bytes().into(),
            named: named.clone(),
        });
        Names {
            entries: entries.collect(),
            eof,
        }
    }

    #[test]
    fn two_pages_are_one_up_to_where_both_were_read() {
        let live = page(
            &[
                ("a", NameTarget::File(Ino(1))),
                ("b", NameTarget::Directory(Ino(2))),
                ("d", NameTarget::Nothing),
            ],
            false,
        );
        let kept = page(
            &[
                ("a", NameTarget::Directory(Ino(11))),
                ("c", NameTarget::Directory(Ino(13))),
                ("e", NameTarget::Directory(Ino(15))),
            ],
            true,
        );
        let merged = merged(live, kept);
        assert!(!merged.eof);
        let told: Vec<_> = merged
            .entries
            .iter()
            .map(|entry| {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                let numbers = |pair: Pair| (pair.live.map(|it| it.0), pair.kept.map(|it| it.0));
                match entry.named {
                    NameTarget::File(file) => (name, Some(numbers(file)), None),
                    NameTarget::Directory(dir) => (name, None, Some(numbers(dir))),
                    NameTarget::Both(file, dir) => (name, Some(numbers(file)), Some(numbers(dir))),
                    NameTarget::Nothing => (name, None, None),
                }
            })
            .collect();
        let name = |name: &str| name.to_owned();
        assert_eq!(
            told,
            [
                (name("a"), Some((Some(1), Some(11))), Some((None, Some(11)))),
                (name("b"), None, Some((Some(2), None))),
                (name("c"), Some((None, Some(13))), Some((None, Some(13)))),
                (name("d"), None, None),
            ]
        );
    }
}
