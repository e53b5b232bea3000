//! `cairn rm`.
//!
//! Owns: removing names and trees, many at a time, leaves first.
//! Must not know: what is in the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow};
use cairn_nfs_client::v3::{ErrorStatus, FileHandle};
use cairn_nfs_client::{Client, DirPages, Error, NfsUrl};
use parking_lot::Mutex;

use crate::args::RmArgs;
use crate::console::{Console, Exit, Usage, connect, parse_url};
use crate::jobs;

/// Calls in flight.
const CONCURRENCY: usize = 64;
/// How often a directory is listed again because it was not empty after all: servers whose listing
/// moves when names go away.
const LIST_COUNT_MAX: u32 = 4;

/// Removes what the URLs name; links themselves, not what they lead to.
pub async fn rm(args: &RmArgs, console: &mut Console) -> Exit {
    let mut exit = Exit::Ok;
    for url in &args.urls {
        match remove(args, url).await {
            Ok(failures) => {
                for failure in failures {
                    exit = exit.max(console.fail(&failure));
                }
            }
            Err(error) => exit = exit.max(console.fail(&error)),
        }
    }
    console.finish(exit)
}

/// A directory that is being emptied.
struct Dir {
    parent: Option<Arc<Dir>>,
    /// Where its own name is.
    place: (FileHandle, Vec<u8>),
    handle: FileHandle,
    /// Entries not removed yet, and one for the listing.
    pending_count: AtomicUsize,
    list_count: u32,
    shown: String,
}

enum Job {
    Page(Arc<Dir>, Box<DirPages>),
    File(Arc<Dir>, Vec<u8>),
    /// All entries are gone, or cannot be removed.
    Finish(Arc<Dir>),
}

struct Removal {
    client: Client,
    failures: Mutex<Vec<anyhow::Error>>,
}

async fn remove(args: &RmArgs, url: &str) -> anyhow::Result<Vec<anyhow::Error>> {
    let url: NfsUrl = parse_url(url)?;
    let client = connect(&url, 1).await?;
    let mut path = client.components();
    let Some(name) = path.pop() else {
        return Err(Usage(format!(
            "{url} is a whole export; name what to remove in it"
        ))
        .into());
    };
    let found = async {
        let parent = client.resolve(&path.join(&b'/'), true).await?;
        let node = client.child(parent.handle, &name).await?;
        Ok::<_, Error>((parent, node))
    };
    let (parent, node) = match found.await {
        Err(error) if args.force && error.status() == Some(ErrorStatus::NoEnt) => {
            return Ok(Vec::new());
        }
        found => found.with_context(|| url.to_string())?,
    };
    if !node.is_directory() {
        let removed = client.remove(parent.handle, &name).await;
        removed.with_context(|| format!("removing {url}"))?;
        return Ok(Vec::new());
    }
    if !args.recursive {
        return Err(anyhow!("{url} is a directory; remove it with -r"));
    }
    let removal = Removal {
        client,
        failures: Mutex::new(Vec::new()),
    };
    let top = Dir {
        parent: None,
        place: (parent.handle, name),
        handle: node.handle,
        pending_count: AtomicUsize::new(1),
        list_count: 1,
        shown: url.to_string(),
    };
    let first = removal.list(top);
    jobs::run(vec![first], CONCURRENCY, |job| removal.step(job)).await;
    Ok(removal.failures.into_inner())
}

impl Removal {
    fn list(&self, dir: Dir) -> Job {
        let pages = self.client.dir_pages(dir.handle, true);
        Job::Page(Arc::new(dir), Box::new(pages))
    }

    fn fail(&self, error: Error, shown: String) {
        let context = format!("removing {shown}");
        self.failures
            .lock()
            .push(anyhow::Error::new(error).context(context));
    }

    async fn step(&self, job: Job) -> Vec<Job> {
        match job {
            Job::Page(dir, pages) => self.page(dir, pages).await,
            Job::File(dir, name) => {
                match self.client.remove(dir.handle, &name).await {
                    Ok(_) => {}
                    // Somebody else was quicker.
                    Err(error) if error.status() == Some(ErrorStatus::NoEnt) => {}
                    Err(error) => self.fail(error, dir.child(&name)),
                }
                done(dir)
            }
            Job::Finish(dir) => self.finish(dir).await,
        }
    }

    async fn page(&self, dir: Arc<Dir>, mut pages: Box<DirPages>) -> Vec<Job> {
        let entries = match pages.next_page().await {
            Ok(Some(entries)) => entries,
            Ok(None) => return done(dir),
            Err(error) => {
                self.fail(error, dir.shown.clone());
                return done(dir);
            }
        };
        dir.pending_count
            .fetch_add(entries.len(), Ordering::Relaxed);
        let mut jobs = vec![Job::Page(dir.clone(), pages)];
        for entry in entries {
            // One that cannot be looked at fails alone, if it is no file.
            let handle = entry.known().and_then(|(handle, attributes)| {
                (attributes.file_type == cairn_nfs_client::v3::FileType::Directory)
                    .then_some(handle)
            });
            jobs.push(match handle {
                None => Job::File(dir.clone(), entry.name),
                Some(handle) => self.list(Dir {
                    shown: dir.child(&entry.name),
                    place: (dir.handle, entry.name),
                    parent: Some(dir.clone()),
                    handle,
                    pending_count: AtomicUsize::new(1),
                    list_count: 1,
                }),
            });
        }
        jobs
    }

    async fn finish(&self, dir: Arc<Dir>) -> Vec<Job> {
        let (parent, name) = &dir.place;
        match self.client.rmdir(*parent, name).await {
            Ok(_) => {}
            Err(error) if error.status() == Some(ErrorStatus::NoEnt) => {}
            Err(error)
                if error.status() == Some(ErrorStatus::NotEmpty)
                    && dir.list_count < LIST_COUNT_MAX =>
            {
                return vec![self.list(Dir {
                    parent: dir.parent.clone(),
                    place: dir.place.clone(),
                    handle: dir.handle,
                    pending_count: AtomicUsize::new(1),
                    list_count: dir.list_count + 1,
                    shown: dir.shown.clone(),
                })];
            }
            Err(error) => self.fail(error, dir.shown.clone()),
        }
        dir.parent.clone().map(done).unwrap_or_default()
    }
}

impl Dir {
    fn child(&self, name: &[u8]) -> String {
        format!("{}/{}", self.shown, String::from_utf8_lossy(name))
    }
}

/// One thing less to wait for in `dir`.
fn done(dir: Arc<Dir>) -> Vec<Job> {
    match dir.pending_count.fetch_sub(1, Ordering::Relaxed) {
        1 => vec![Job::Finish(dir)],
        _ => Vec::new(),
    }
}
