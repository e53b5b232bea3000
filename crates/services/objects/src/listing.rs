//! Listings in the order of S3: by the bytes of whole keys, by seeks.
//!
//! Owns: the order. Must not know: what is told of an object.
//!
//! Names of a directory come in the order of their bytes. A directory `a` stands for keys that begin with `a/`, which come
//! after `a-b` and `a.txt`, whose names come after `a`. So a directory is held back until the next name is past `a/`. A
//! listing that begins at a key looks up the directories that it would have held back there: those whose name is the
//! beginning of the key's part, followed by a byte below the slash.
//!
//! Names over NFS are any bytes, and paths may be long; keys are UTF-8 of at most 1,024 bytes. A name that is no key is passed over, a directory
//! with all that is in it, so that a page never ends there nor begins there.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;

use cairn_fs::FsError;

use crate::KEY_LEN_BYTES_MAX;

/// Names of a directory that are read at a time.
const PAGE_COUNT: usize = 256;
const SLASH: u8 = b'/';

/// Whether a name below a path that is a key, or of the bucket itself, is one too. `more_len` bytes follow the name.
fn is_key(path: &[u8], name: &[u8], more_len: usize) -> bool {
    path.len() + name.len() + more_len <= KEY_LEN_BYTES_MAX && std::str::from_utf8(name).is_ok()
}

/// Whether XML can hold a text as it is (XML 1.0, section 2.2, `Char`; section 2.11 of the CR, which its readers lose).
pub fn is_plain(text: &[u8]) -> bool {
    let is_held = |char: char| match char {
        '\t' | '\n' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        other => other >= ' ',
    };
    std::str::from_utf8(text).is_ok_and(|text| text.chars().all(is_held))
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameTarget<D, F> {
    File(F),
    Directory(D),
    /// The key itself has something to list, and keys below it.
    Both(F, D),
    /// Links and devices are no objects.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<D, F> {
    pub name: Arc<[u8]>,
    pub named: NameTarget<D, F>,
}

/// Names of a directory in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names<D, F> {
    pub entries: Vec<Entry<D, F>>,
    /// There are none after these.
    pub eof: bool,
}

/// The directories that are listed.
pub(crate) trait Tree {
    type Directory: Copy + Send + Sync;
    /// The listed properties of a key.
    type File: Copy + Send + Sync;
    /// See [`cairn_fs::FsView::names_after`].
    fn names_after(
        &self,
        dir: Self::Directory,
        after: &[u8],
        inclusive: bool,
        limit: usize,
    ) -> impl Future<Output = Result<Names<Self::Directory, Self::File>, FsError>> + Send;
    /// The directory of a name; `None` if there is none, or it is something else.
    fn directory(
        &self,
        dir: Self::Directory,
        name: &[u8],
    ) -> impl Future<Output = Result<Option<Self::Directory>, FsError>> + Send;
    /// The object that the directory itself is, if a client made it on purpose.
    fn own(
        &self,
        dir: Self::Directory,
    ) -> impl Future<Output = Result<Option<Self::File>, FsError>> + Send;
}

/// An object on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundObject<F> {
    pub key: Vec<u8>,
    pub file: F,
}

/// Something of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed<T> {
    Object(T),
    /// Keys that begin so, up to the delimiter.
    Prefix(Vec<u8>),
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    pub key: String,
    pub size_bytes: u64,
    pub mtime: cairn_base::Timestamp,
    pub etag: String,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Listed<ListedObject>>,
    /// Where the next page begins: after this key, or after all that begin with this prefix. `None`: that was all.
    pub next: Option<String>,
}

/// One directory that is walked.
struct Level<D, F> {
    dir: D,
    /// Of its keys: the bucket's is empty, others end with a slash.
    path: Vec<u8>,
    names: VecDeque<Entry<D, F>>,
    /// Where the next names are read from.
    after: Vec<u8>,
    inclusive: bool,
    is_read: bool,
    /// Directories, by their names with a slash.
    held: BTreeMap<Vec<u8>, D>,
    /// The directory's own key comes first.
    is_new: bool,
}

impl<D, F> Level<D, F> {
    fn new(dir: D, path: Vec<u8>) -> Self {
        Self {
            dir,
            path,
            names: VecDeque::new(),
            after: Vec::new(),
            inclusive: true,
            is_read: false,
            held: BTreeMap::new(),
            is_new: true,
        }
    }
}

/// Walks over the objects below a directory in the order of their keys.
pub(crate) struct Walk<'a, T: Tree> {
    tree: &'a T,
    root: T::Directory,
    levels: Vec<Level<T::Directory, T::File>>,
}

impl<'a, T: Tree> Walk<'a, T> {
    pub fn new(tree: &'a T, root: T::Directory) -> Self {
        Self {
            tree,
            root,
            levels: Vec::new(),
        }
    }

    /// Goes to the first key after `start`, or to `start` itself if `inclusive` and it is there.
    pub async fn seek(&mut self, start: &[u8], inclusive: bool) -> Result<(), FsError> {
        self.levels.clear();
        let mut level = Level::new(self.root, Vec::new());
        // The bucket itself is no object.
        level.is_new = false;
        let mut rest = start;
        loop {
            let slash = rest.iter().position(|byte| *byte == SLASH);
            let part = slash.map_or(rest, |at| &rest[..at]);
            level.after = rest.to_vec();
            // A name has no slash: where there is one, names are past it anyway.
            level.inclusive = inclusive || rest.is_empty();
            // Those that would have been held back.
            for len in 1..=part.len() {
                let next = rest.get(len).copied();
                let is_before =
                    next.is_none_or(|next| next < SLASH) && is_key(&level.path, &part[..len], 1);
                if is_before && let Some(dir) = self.tree.directory(level.dir, &part[..len]).await?
                {
                    let mut name = part[..len].to_vec();
                    name.push(SLASH);
                    level.held.insert(name, dir);
                }
            }
            let Some(at) = slash else {
                self.levels.push(level);
                return Ok(());
            };
            let below = match part.is_empty() || !is_key(&level.path, part, 1) {
                true => None,
                false => self.tree.directory(level.dir, part).await?,
            };
            let mut path = level.path.clone();
            path.extend_from_slice(&rest[..=at]);
            self.levels.push(level);
            let Some(dir) = below else { return Ok(()) };
            level = Level::new(dir, path);
            rest = &rest[at + 1..];
            // Its own key is `start` if nothing follows.
            level.is_new = rest.is_empty() && inclusive;
        }
    }

    pub async fn next(&mut self) -> Result<Option<FoundObject<T::File>>, FsError> {
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if std::mem::take(&mut level.is_new)
                && let Some(file) = self.tree.own(level.dir).await?
            {
                return Ok(Some(FoundObject {
                    key: level.path.clone(),
                    file,
                }));
            }
            if level.names.is_empty() && !level.is_read {
                let page =
                    self.tree
                        .names_after(level.dir, &level.after, level.inclusive, PAGE_COUNT);
                let page = match page.await {
                    Ok(page) => page,
                    // It went meanwhile.
                    Err(FsError::Stale | FsError::NotFound) => Names {
                        entries: Vec::new(),
                        eof: true,
                    },
                    Err(error) => return Err(error),
                };
                level.is_read = page.eof;
                if let Some(last) = page.entries.last() {
                    level.after = last.name.to_vec();
                    level.inclusive = false;
                }
                level.names = page.entries.into();
            }
            let name: Option<Arc<[u8]>> = level.names.front().map(|entry| Arc::clone(&entry.name));
            let is_held_first = match (level.held.first_key_value(), &name) {
                (Some((held, _)), Some(name)) => held.as_slice() < &name[..],
                (Some(_), None) => true,
                (None, _) => false,
            };
            if is_held_first && let Some((name, dir)) = level.held.pop_first() {
                let mut path = level.path.clone();
                path.extend_from_slice(&name);
                self.levels.push(Level::new(dir, path));
                continue;
            }
            let Some(Entry { name, named }) = level.names.pop_front() else {
                self.levels.pop();
                continue;
            };
            let (file, dir) = match named {
                NameTarget::File(file) => (Some(file), None),
                NameTarget::Directory(dir) => (None, Some(dir)),
                NameTarget::Both(file, dir) => (Some(file), Some(dir)),
                NameTarget::Nothing => (None, None),
            };
            if let Some(dir) = dir
                && is_key(&level.path, &name, 1)
            {
                let mut name = name.to_vec();
                name.push(SLASH);
                level.held.insert(name, dir);
            }
            if let Some(file) = file
                && is_key(&level.path, &name, 0)
            {
                let mut key = level.path.clone();
                key.extend_from_slice(&name);
                return Ok(Some(FoundObject { key, file }));
            }
        }
    }
}

/// Which part of a listing is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListRequest<'a> {
    pub prefix: &'a [u8],
    pub delimiter: &'a [u8],
    /// After this key, and after all that begin with it if it ends a prefix of an earlier page.
    pub after: &'a [u8],
    pub limit: usize,
    /// Only what XML can hold as it is: see [`is_plain`].
    pub is_plain: bool,
}

/// A page of what is below a directory; and whether there is more.
pub(crate) async fn page<T: Tree>(
    tree: &T,
    root: T::Directory,
    wanted: ListRequest<'_>,
) -> Result<(Vec<Listed<FoundObject<T::File>>>, bool), FsError> {
    let ListRequest {
        prefix,
        delimiter,
        after,
        limit,
        is_plain: only_plain,
    } = wanted;
    let mut walk = Walk::new(tree, root);
    match after < prefix {
        true => walk.seek(prefix, true).await?,
        // What an earlier page told as a prefix is over.
        false => match common_prefix(after, prefix, delimiter) {
            Some(told) if told == after => walk.seek(&past(told), true).await?,
            _ => walk.seek(after, false).await?,
        },
    }
    let mut entries = Vec::new();
    while let Some(found) = walk.next().await? {
        if !found.key.starts_with(prefix) {
            return Ok((entries, false));
        }
        let common = common_prefix(&found.key, prefix, delimiter).map(<[u8]>::to_vec);
        let is_told = !only_plain || is_plain(common.as_deref().unwrap_or(&found.key));
        if is_told && entries.len() == limit {
            return Ok((entries, true));
        }
        if let Some(common) = &common {
            walk.seek(&past(common), true).await?;
        }
        if is_told {
            entries.push(match common {
                Some(common) => Listed::Prefix(common),
                None => Listed::Object(found),
            });
        }
    }
    Ok((entries, false))
}

/// The part of a key up to the first delimiter after the prefix.
pub(crate) fn common_prefix<'a>(
    key: &'a [u8],
    prefix: &[u8],
    delimiter: &[u8],
) -> Option<&'a [u8]> {
    if delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(prefix)?;
    let at = rest
        .windows(delimiter.len())
        .position(|window| window == delimiter)?;
    key.get(..prefix.len() + at + delimiter.len())
}

/// The first bytes that come after everything that begins with `prefix`.
pub(crate) fn past(prefix: &[u8]) -> Vec<u8> {
    let mut past = prefix.to_vec();
    while let Some(last) = past.pop() {
        if last < u8::MAX {
            past.push(last + 1);
            break;
        }
    }
    past
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cairn_base::Ino;
    use proptest::prelude::*;

    use super::*;

    /// A bucket that is a set of keys.
    struct Keys {
        files: BTreeSet<Vec<u8>>,
        /// With a slash at the end; numbers are places in here.
        dirs: Vec<Vec<u8>>,
        marked: BTreeSet<Vec<u8>>,
    }

    impl Keys {
        fn new(keys: &BTreeSet<Vec<u8>>) -> Self {
            let mut dirs = BTreeSet::from([Vec::new()]);
            for key in keys {
                for (at, byte) in key.iter().enumerate() {
                    if *byte == SLASH {
                        dirs.insert(key[..=at].to_vec());
                    }
                }
            }
            let is_dir = |key: &&Vec<u8>| key.ends_with(b"/");
            Self {
                files: keys.iter().filter(|key| !is_dir(key)).cloned().collect(),
                marked: keys.iter().filter(is_dir).cloned().collect(),
                dirs: dirs.into_iter().collect(),
            }
        }

        fn dir(&self, ino: Ino) -> &Vec<u8> {
            &self.dirs[ino.0 as usize]
        }
    }

    impl Tree for Keys {
        type Directory = Ino;
        type File = ();

        async fn names_after(
            &self,
            dir: Ino,
            after: &[u8],
            inclusive: bool,
            limit: usize,
        ) -> Result<Names<Ino, ()>, FsError> {
            let path = self.dir(dir);
            let mut names = BTreeMap::new();
            for file in &self.files {
                if let Some(rest) = file.strip_prefix(&path[..])
                    && !rest.contains(&SLASH)
                {
                    names.insert(rest.to_vec(), NameTarget::File(()));
                }
            }
            for (ino, other) in self.dirs.iter().enumerate() {
                if let Some([name @ .., SLASH]) = other.strip_prefix(&path[..])
                    && !name.contains(&SLASH)
                {
                    names.insert(name.to_vec(), NameTarget::Directory(Ino(ino as u64)));
                }
            }
            let is_in = |name: &[u8]| name > after || inclusive && name == after;
            let all: Vec<_> = names
                .into_iter()
                .filter(|(name, _)| is_in(name))
                .map(|(name, named)| Entry {
                    name: name.into(),
                    named,
                })
                .collect();
            // Small pages, so that there are several.
            let limit = limit.min(3);
            Ok(Names {
                eof: all.len() <= limit,
                entries: all.into_iter().take(limit).collect(),
            })
        }

        async fn directory(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
            let path = [self.dir(dir), name, b"/"].concat();
            let found = self.dirs.iter().position(|other| *other == path);
            Ok(found.map(|ino| Ino(ino as u64)))
        }

        async fn own(&self, dir: Ino) -> Result<Option<()>, FsError> {
            Ok(self.marked.contains(self.dir(dir)).then_some(()))
        }
    }

    /// The expected page, computed from all keys.
    fn expected(keys: &BTreeSet<Vec<u8>>, wanted: ListRequest<'_>) -> (Vec<Listed<Vec<u8>>>, bool) {
        let mut entries: Vec<Listed<Vec<u8>>> = Vec::new();
        for key in keys {
            if !key.starts_with(wanted.prefix) {
                continue;
            }
            let entry = match common_prefix(key, wanted.prefix, wanted.delimiter) {
                Some(common) => {
                    // Told as a whole by an earlier page, or not at all.
                    if wanted.after == common || key.as_slice() <= wanted.after {
                        continue;
                    }
                    Listed::Prefix(common.to_vec())
                }
                None if key.as_slice() <= wanted.after => continue,
                None => Listed::Object(key.clone()),
            };
            if entries.last() == Some(&entry) {
                continue;
            }
            if entries.len() == wanted.limit {
                return (entries, true);
            }
            entries.push(entry);
        }
        (entries, false)
    }

    fn check(keys: &BTreeSet<Vec<u8>>, wanted: ListRequest<'_>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let tree = Keys::new(keys);
        let got = runtime.block_on(page(&tree, Ino(0), wanted)).unwrap();
        let entries = got.0.into_iter().map(|entry| match entry {
            Listed::Object(found) => Listed::Object(found.key),
            Listed::Prefix(prefix) => Listed::Prefix(prefix),
        });
        assert_eq!(
            (entries.collect(), got.1),
            expected(keys, wanted),
            "{wanted:?}"
        );
    }

    /// No key may be a file where another has a directory.
    fn consistent(keys: BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
        let all = keys.clone();
        let is_dir = |key: &[u8]| {
            let below = [key, b"/"].concat();
            all.iter().any(|other| other.starts_with(&below))
        };
        let fits = |key: &Vec<u8>| key.ends_with(b"/") || !is_dir(key);
        keys.into_iter().filter(fits).collect()
    }

    #[test]
    fn directories_come_where_their_keys_do() {
        let keys = ["a-b", "a.txt", "a/", "a/x", "a/y/z", "a0", "b/c"];
        let keys: BTreeSet<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        for after in [
            "", "a", "a-b", "a.txt", "a/", "a/x", "a/y/", "a/y/z", "a0", "b",
        ] {
            for delimiter in ["", "/", "-"] {
                for prefix in ["", "a", "a/", "a/y", "b/"] {
                    for limit in [1, 2, 100] {
                        check(
                            &keys,
                            ListRequest {
                                prefix: prefix.as_bytes(),
                                delimiter: delimiter.as_bytes(),
                                after: after.as_bytes(),
                                limit,
                                is_plain: false,
                            },
                        );
                    }
                }
            }
        }
    }

    /// Counts what is asked of the directories.
    struct Counting(Keys, std::sync::atomic::AtomicUsize);

    impl Counting {
        fn count(&self) {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    impl Tree for Counting {
        type Directory = Ino;
        type File = ();

        async fn names_after(
            &self,
            dir: Ino,
            after: &[u8],
            inclusive: bool,
            limit: usize,
        ) -> Result<Names<Ino, ()>, FsError> {
            self.count();
            self.0.names_after(dir, after, inclusive, limit).await
        }

        async fn directory(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, FsError> {
            self.count();
            self.0.directory(dir, name).await
        }

        async fn own(&self, dir: Ino) -> Result<Option<()>, FsError> {
            self.count();
            self.0.own(dir).await
        }
    }

    /// Wherever a page begins, and however deep, it costs what it shows, and what leads there.
    #[test]
    fn a_page_costs_the_same_anywhere() {
        const LIMIT: usize = 30;
        let flat = (0..600).map(|index| format!("{index:05}"));
        let deep = (0..600).map(|index| format!("a/b/c/d/e/{:02}/{index:05}", index / 20));
        let keys: BTreeSet<Vec<u8>> = flat.chain(deep).map(String::into_bytes).collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let tree = Counting(Keys::new(&keys), Default::default());
        let (mut after, mut costs, mut seen) = (Vec::new(), Vec::new(), 0);
        loop {
            tree.1.store(0, std::sync::atomic::Ordering::Relaxed);
            let wanted = ListRequest {
                prefix: b"",
                delimiter: b"",
                after: &after,
                limit: LIMIT,
                is_plain: false,
            };
            let (entries, is_more) = runtime.block_on(page(&tree, Ino(0), wanted)).unwrap();
            costs.push(tree.1.load(std::sync::atomic::Ordering::Relaxed));
            seen += entries.len();
            if let Some(Listed::Object(last)) = entries.last() {
                after = last.key.clone();
            }
            if !is_more {
                break;
            }
        }
        assert_eq!(seen, keys.len());
        // Three names come at a time here; a key of 20 bytes has about so many names that could be held back.
        let most = LIMIT / 3 + 2 * LIMIT + 20;
        assert!(costs.iter().all(|cost| *cost <= most), "{costs:?}");
    }

    /// Of names: what is in keys, and what is in none. 0xC3 0xA9 is an e with an accent.
    static BYTES: [u8; 10] = [b'a', b'b', b'.', b'-', b'/', 0x01, 0x80, 0xa9, 0xc3, 0xff];

    fn name_of(entry: &Listed<Vec<u8>>) -> &[u8] {
        match entry {
            Listed::Object(key) => key,
            Listed::Prefix(prefix) => prefix,
        }
    }

    #[test]
    fn xml_holds_some_texts_as_they_are() {
        for (text, want) in [
            (&b"a b\tc\nd"[..], true),
            ("\u{e9}\u{10000}\u{fffd}".as_bytes(), true),
            (b"", true),
            (b"\x01", false),
            (b"\r", false),
            ("\u{ffff}".as_bytes(), false),
            (b"\xff", false),
        ] {
            assert_eq!(is_plain(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn pages_are_those_of_the_sorted_keys(
            keys in prop::collection::btree_set("[ab.-][ab./-]{0,5}", 0..24),
            prefix in "[ab./-]{0,3}",
            after in "[ab./0-]{0,4}",
            delimiter in prop::sample::select(vec!["", "/", "-", "a/"]),
            limit in 1_usize..6,
        ) {
            let is_path = |key: &String| !key.starts_with('/') && !key.contains("//");
            let keys = keys.into_iter().filter(is_path).map(String::into_bytes);
            let keys = consistent(keys.collect());
            check(&keys, ListRequest {
                prefix: prefix.as_bytes(),
                delimiter: delimiter.as_bytes(),
                after: after.as_bytes(),
                limit,
                is_plain: false,
            });
        }

        /// Any names, made over NFS: pages show each key once, in order, and nothing else, and they end.
        #[test]
        fn pages_of_any_names_show_the_keys_once(
            names in prop::collection::btree_set(prop::collection::vec(prop::sample::select(&BYTES[..]), 1..8), 0..40),
            long in prop::collection::vec(0_usize..3, 0..3),
            delimiter in prop::sample::select(vec!["", "/", "-", "\u{e9}"]),
            prefix in prop::sample::select(vec!["", "a", "a/", "\u{e9}"]),
            limit in 1_usize..6,
            is_plain: bool,
        ) {
            let mut keys: BTreeSet<Vec<u8>> = names
                .into_iter()
                .filter(|name| !name.starts_with(b"/") && !name.windows(2).any(|two| two == b"//"))
                .collect();
            for depth in long {
                // Beyond what a key may be, with keys after it in the order.
                let deep = [vec![b'b'; 250], vec![b'c'; 250]].join(&SLASH);
                let path = [deep.clone(), deep.clone(), vec![b'x'; 15 + 3 * depth]].join(&SLASH);
                keys.insert([path, vec![b'd'; 250]].join(&SLASH));
            }
            let keys = consistent(keys);
            let shown: BTreeSet<Vec<u8>> = keys
                .iter()
                .filter(|key| key.len() <= KEY_LEN_BYTES_MAX && std::str::from_utf8(key).is_ok())
                .cloned()
                .collect();
            let all = ListRequest {
                prefix: prefix.as_bytes(),
                delimiter: delimiter.as_bytes(),
                after: b"",
                limit: usize::MAX,
                is_plain: false,
            };
            let (mut want, _) = expected(&shown, all);
            if is_plain {
                want.retain(|entry| super::is_plain(name_of(entry)));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let tree = Keys::new(&keys);
            let (mut got, mut after) = (Vec::new(), Vec::new());
            // One page for each entry at the most, and the last.
            for _ in 0..=want.len() {
                let wanted = ListRequest { after: &after, limit, is_plain, ..all };
                let (entries, is_more) = runtime.block_on(page(&tree, Ino(0), wanted)).unwrap();
                prop_assert!(entries.len() == limit || !is_more);
                got.extend(entries.into_iter().map(|entry| match entry {
                    Listed::Object(found) => Listed::Object(found.key),
                    Listed::Prefix(prefix) => Listed::Prefix(prefix),
                }));
                if !is_more {
                    break;
                }
                after = name_of(got.last().unwrap()).to_vec();
            }
            prop_assert_eq!(got, want);
        }
    }
}
