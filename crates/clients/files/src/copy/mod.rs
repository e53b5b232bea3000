//! `cairn cp`.
//!
//! Owns: what becomes of each SRC at DST, and walking the trees: directories before what is in
//! them, their attributes after it, hard links as links, failures collected and told at the end.
//! Must not know: how either side reads and writes (`tree`), how contents move (`data`).

mod data;
mod local;
mod meta;
mod progress;
mod remote;
mod tree;

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow, bail};
use cairn_nfs_client::v3::FileType;
use cairn_nfs_client::{Client, NfsUrl};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::OnceCell;

use crate::args::CpArgs;
use crate::console::{Console, Exit, Usage, connect, parse_url};
use crate::jobs;
use data::Mover;
use meta::{Attributes, Identity, Meta};
use progress::Progress;
use tree::{FileLocation, FoundFile, Listing};

/// Connections to each server, unless its URL says how many.
const NCONNECT: u16 = 4;
/// Files with several names that are remembered. Past it further names become files of their own.
const LINKED_FILES_MAX: usize = 1 << 20;
/// Failures that are told one by one.
const FAILURES_SHOWN_MAX: usize = 1000;

/// Copies files and trees; see [`CpArgs`].
pub async fn cp(args: &CpArgs, console: &mut Console) -> Exit {
    let exit = match prepare(args).await {
        Ok((destination, sources)) => copy_all(args, destination, sources, console).await,
        Err(error) => console.fail(&error),
    };
    console.finish(exit)
}

/// One side of a copy.
enum Side {
    Local(std::path::PathBuf),
    /// Its URL is the client's.
    Remote(Client),
}

/// Where copies go.
struct Destination {
    dir: FileLocation,
    /// `None`: into `dir` under their own names.
    name: Option<Vec<u8>>,
    /// Only a directory may get the name.
    directory_only: bool,
    shown: String,
}

struct Source {
    found: FoundFile,
    /// Its own name; `None`: what is in it goes straight into the destination.
    name: Option<Vec<u8>>,
    shown: String,
}

async fn prepare(args: &CpArgs) -> anyhow::Result<(Destination, Vec<Source>)> {
    let Some((destination_text, source_texts)) = args.paths.split_last() else {
        return Err(Usage("give SRC and DST".to_owned()).into());
    };
    check_sides(source_texts, destination_text)?;
    let destination = find_destination(destination_text).await?;
    if source_texts.len() > 1 && destination.name.is_some() {
        bail!("{destination_text} is not a directory, so it cannot take several files");
    }
    let mut sources = Vec::new();
    for text in source_texts {
        sources.push(find_source(text, args.recursive).await?);
    }
    Ok((destination, sources))
}

/// Refuses what can be refused before anybody is asked.
fn check_sides(sources: &[String], destination: &str) -> anyhow::Result<()> {
    let is_remote = |text: &str| match NfsUrl::looks_like(text) {
        true => parse_url(text).map(|_| true),
        false => Ok(false),
    };
    let destination_is_remote = is_remote(destination)?;
    for source in sources {
        if !is_remote(source)? && !destination_is_remote {
            let problem =
                format!("{source} and {destination} are both here; one side must be an nfs:// URL");
            return Err(Usage(problem).into());
        }
    }
    Ok(())
}

async fn open_side(text: &str) -> anyhow::Result<Side> {
    Ok(match NfsUrl::looks_like(text) {
        true => Side::Remote(connect(&parse_url(text)?, NCONNECT).await?),
        false => Side::Local(text.into()),
    })
}

async fn find_destination(text: &str) -> anyhow::Result<Destination> {
    let side = open_side(text).await?;
    let (there, directory_only) = match &side {
        Side::Local(path) => (local::find(path, true).await, text.ends_with('/')),
        Side::Remote(client) => (remote::find(client, true).await, client.url().is_directory),
    };
    let (name, dir) = match there.with_context(|| text.to_owned())? {
        tree::Lookup::Found(found) if found.meta.file_type == FileType::Directory => {
            (None, found.place)
        }
        tree::Lookup::Found(_) if directory_only => bail!("{text} is not a directory"),
        tree::Lookup::Found(_) | tree::Lookup::Missing => {
            let parent = match &side {
                Side::Local(path) => local::find_parent(path).await,
                Side::Remote(client) => remote::find_parent(client).await,
            };
            let (dir, name) = parent.with_context(|| format!("the directory of {text}"))?;
            (Some(name), dir)
        }
    };
    Ok(Destination {
        dir,
        name,
        directory_only,
        shown: text.trim_end_matches('/').to_owned(),
    })
}

async fn find_source(text: &str, recursive: bool) -> anyhow::Result<Source> {
    let side = open_side(text).await?;
    let means_contents = text == "." || text == ".." || text.ends_with("/.");
    // As `cp`: a link that was named is followed, unless trees are copied.
    let (there, name) = match &side {
        Side::Local(path) => {
            let name = path.file_name().map(|name| {
                use std::os::unix::ffi::OsStrExt as _;
                name.as_bytes().to_vec()
            });
            let follow = !recursive || text.ends_with('/');
            (local::find(path, follow).await, name)
        }
        Side::Remote(client) => {
            let follow = !recursive || client.url().is_directory;
            let name = client.url().file_name().map(<[u8]>::to_vec);
            (remote::find(client, follow).await, name)
        }
    };
    match there.with_context(|| text.to_owned())? {
        tree::Lookup::Missing => bail!("{text}: no such file or directory"),
        tree::Lookup::Found(found) => {
            if found.meta.file_type == FileType::Directory && !recursive {
                bail!("{text} is a directory; copy it with -r");
            }
            Ok(Source {
                found,
                name: name.filter(|_| !means_contents),
                shown: text.trim_end_matches('/').to_owned(),
            })
        }
    }
}

async fn copy_all(
    args: &CpArgs,
    destination: Destination,
    sources: Vec<Source>,
    console: &mut Console,
) -> Exit {
    let keep = args.preserve || args.recursive;
    let owner = destination.dir.owner();
    let copy = Copy {
        keep,
        keep_owner: keep && owner.0 == 0,
        owner,
        umask: local::umask(),
        mover: Mover::new(Progress::new(console.err_is_terminal && !args.quiet)),
        links: Mutex::default(),
        roots: Mutex::default(),
        failures: Mutex::default(),
    };
    let mut first = Vec::new();
    for source in sources {
        let is_directory = source.found.meta.file_type == FileType::Directory;
        let name = match &destination.name {
            Some(_) if destination.directory_only && !is_directory => {
                copy.fail(anyhow!("{} is not a directory", destination.shown));
                continue;
            }
            Some(name) => Some(name.clone()),
            None => source.name,
        };
        if name.is_none() && !is_directory {
            copy.fail(anyhow!("{} has no name to copy it to", source.shown));
            continue;
        }
        first.push(Job::Entry(Box::new(Entry {
            source: source.found,
            to: destination.dir.clone(),
            name,
            parent: None,
            shown: source.shown,
        })));
    }
    jobs::run(first, usize::from(args.jobs), |job| copy.step(job)).await;
    copy.finish(console)
}

/// A directory that is being copied.
struct Dir {
    parent: Option<Arc<Dir>>,
    /// The copy.
    place: FileLocation,
    /// What the copy gets when it is complete.
    attributes: Attributes,
    /// Entries not copied yet, and one for the listing.
    pending_count: AtomicUsize,
    /// The source, for messages.
    shown: String,
}

/// One thing to copy.
struct Entry {
    source: FoundFile,
    to: FileLocation,
    /// `None`: the copy is `to` itself.
    name: Option<Vec<u8>>,
    parent: Option<Arc<Dir>>,
    shown: String,
}

enum Job {
    Entry(Box<Entry>),
    Page(Arc<Dir>, Listing),
    Finish(Arc<Dir>),
}

#[derive(Default)]
struct Failures {
    shown: Vec<anyhow::Error>,
    more_count: u64,
}

struct Copy {
    /// Mode, times and hard links.
    keep: bool,
    /// The copies are given to whom the originals belong to.
    keep_owner: bool,
    /// Whom they belong to else.
    owner: (u32, u32),
    umask: u32,
    mover: Mover,
    /// The copy of each file with several names.
    links: Mutex<FxHashMap<Identity, Arc<OnceCell<FileLocation>>>>,
    /// The directories that copies are made in, so that none is copied into itself.
    roots: Mutex<Vec<FoundFile>>,
    failures: Mutex<Failures>,
}

impl Copy {
    fn fail(&self, error: anyhow::Error) {
        let mut failures = self.failures.lock();
        if failures.shown.len() < FAILURES_SHOWN_MAX {
            failures.shown.push(error);
        } else {
            failures.more_count += 1;
        }
    }

    fn finish(self, console: &mut Console) -> Exit {
        let summary = self.mover.progress.finish();
        if let Some(summary) = summary {
            let _ = writeln!(console.err, "{summary}");
        }
        let failures = self.failures.into_inner();
        let mut exit = Exit::Ok;
        for failure in &failures.shown {
            exit = exit.max(console.fail(failure));
        }
        if failures.more_count > 0 {
            let more = anyhow!("{} more failures are not shown", failures.more_count);
            exit = exit.max(console.fail(&more));
        }
        exit
    }

    async fn step(&self, job: Job) -> Vec<Job> {
        match job {
            Job::Entry(entry) => self.entry(*entry).await,
            Job::Page(dir, listing) => self.page(dir, listing).await,
            Job::Finish(dir) => {
                let set = dir
                    .place
                    .set_attributes(&dir.attributes, FileType::Directory);
                if let Err(error) = set.await {
                    self.fail(error.context(format!("setting the attributes of {}", dir.shown)));
                }
                dir.parent.clone().map(done).unwrap_or_default()
            }
        }
    }

    async fn entry(&self, entry: Entry) -> Vec<Job> {
        if entry.source.meta.file_type == FileType::Directory {
            return match self.begin_directory(&entry).await {
                Ok(job) => vec![job],
                Err(error) => {
                    self.fail(error.context(format!("copying {}", entry.shown)));
                    entry.parent.map(done).unwrap_or_default()
                }
            };
        }
        let copied = match &entry.name {
            Some(name) => self.leaf(&entry, name).await,
            None => Err(anyhow!("it has no name")),
        };
        match copied {
            Ok(()) => self.mover.progress.file_done(),
            Err(error) => self.fail(error.context(format!("copying {}", entry.shown))),
        }
        entry.parent.map(done).unwrap_or_default()
    }

    async fn begin_directory(&self, entry: &Entry) -> anyhow::Result<Job> {
        let meta = &entry.source.meta;
        let roots = self.roots.lock().clone();
        for root in &roots {
            if root.is_same(&entry.source).await? {
                bail!("it is the directory that the copies go to");
            }
        }
        // Until it is complete we must be able to write in it.
        let mode = self.mode(meta) | 0o700;
        let place = match &entry.name {
            Some(name) => entry.to.make_dir(name, mode).await?,
            None => entry.to.clone(),
        };
        if entry.parent.is_none() {
            let root = place.found().await?;
            if root.is_same(&entry.source).await? {
                bail!("it and the destination are the same directory");
            }
            self.roots.lock().push(root);
        }
        let mut attributes = self.attributes(meta);
        if entry.name.is_none() && !self.keep {
            attributes.mode = None;
        }
        let dir = Dir {
            parent: entry.parent.clone(),
            place,
            attributes,
            pending_count: AtomicUsize::new(1),
            shown: entry.shown.clone(),
        };
        let listing = entry.source.place.list().await?;
        Ok(Job::Page(Arc::new(dir), listing))
    }

    async fn page(&self, dir: Arc<Dir>, mut listing: Listing) -> Vec<Job> {
        let page = match listing.next_page().await {
            Ok(Some(page)) => page,
            Ok(None) => return done(dir),
            Err(error) => {
                self.fail(error.context(format!("listing {}", dir.shown)));
                return done(dir);
            }
        };
        dir.pending_count.fetch_add(page.len(), Ordering::Relaxed);
        let mut jobs = vec![Job::Page(dir.clone(), listing)];
        for (name, source) in page {
            let shown = format!("{}/{}", dir.shown, String::from_utf8_lossy(&name));
            let source = match source {
                Ok(source) => source,
                Err(error) => {
                    self.fail(error.context(format!("copying {shown}")));
                    // The page itself is waited for, too.
                    dir.pending_count.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
            };
            if source.meta.file_type == FileType::Regular {
                self.mover.progress.expect(source.meta.size_bytes);
            }
            jobs.push(Job::Entry(Box::new(Entry {
                source,
                to: dir.place.clone(),
                shown,
                name: Some(name),
                parent: Some(dir.clone()),
            })));
        }
        jobs
    }

    /// Copies what is no directory, as a further link if another name of it was copied already.
    async fn leaf(&self, entry: &Entry, name: &[u8]) -> anyhow::Result<()> {
        let cell = match self.keep && entry.source.meta.nlink > 1 {
            true => self.linked(entry.source.identity()),
            false => None,
        };
        let Some(cell) = cell else {
            self.leaf_alone(entry, name).await?;
            return Ok(());
        };
        // The first name copies; others wait for it, and copy themselves if it failed.
        let is_first = Cell::new(false);
        let first = cell
            .get_or_try_init(|| {
                is_first.set(true);
                self.leaf_alone(entry, name)
            })
            .await?;
        if !is_first.get() {
            entry.to.link(first, name).await.context("linking it")?;
        }
        Ok(())
    }

    fn linked(&self, identity: Identity) -> Option<Arc<OnceCell<FileLocation>>> {
        let mut links = self.links.lock();
        if links.len() >= LINKED_FILES_MAX {
            return links.get(&identity).cloned();
        }
        Some(links.entry(identity).or_default().clone())
    }

    async fn leaf_alone(&self, entry: &Entry, name: &[u8]) -> anyhow::Result<FileLocation> {
        let meta = &entry.source.meta;
        let attributes = self.attributes(meta);
        match meta.file_type {
            FileType::Regular => {
                let mode = self.mode(meta);
                self.mover
                    .copy_file(&entry.source, &entry.to, name, mode, attributes)
                    .await
            }
            FileType::Symlink => {
                let target = entry.source.place.read_link().await?;
                entry.to.symlink(name, &target, &attributes).await
            }
            FileType::Fifo | FileType::Socket | FileType::BlockDevice | FileType::CharDevice => {
                let mode = self.mode(meta);
                entry.to.make_special(name, meta, mode, &attributes).await
            }
            FileType::Directory => bail!("it is a directory"),
        }
    }

    /// Permission bits that a new copy begins with.
    fn mode(&self, meta: &Meta) -> u32 {
        match self.keep {
            true => meta.mode & 0o777,
            false => meta.mode & 0o777 & !self.umask,
        }
    }

    /// What a copy gets at the end.
    fn attributes(&self, meta: &Meta) -> Attributes {
        if !self.keep {
            let is_directory = meta.file_type == FileType::Directory;
            return Attributes {
                mode: is_directory.then(|| self.mode(meta)),
                ..Attributes::default()
            };
        }
        let mode = match self.keep_owner {
            true => meta.mode & 0o7777,
            false => meta.mode_for(self.owner),
        };
        Attributes {
            mode: Some(mode),
            owner: self.keep_owner.then_some((meta.uid, meta.gid)),
            times: Some((meta.atime, meta.mtime)),
            size_bytes: None,
        }
    }
}

/// One thing less to wait for in `dir`.
fn done(dir: Arc<Dir>) -> Vec<Job> {
    match dir.pending_count.fetch_sub(1, Ordering::Relaxed) {
        1 => vec![Job::Finish(dir)],
        _ => Vec::new(),
    }
}

/// A client and one of its files: what a remote place is.
type Remote = (Client, cairn_nfs_client::v3::FileHandle);
