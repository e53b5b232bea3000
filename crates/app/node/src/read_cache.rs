//! The read caches of a node: opened, added, removed, closed, and their views.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::caches::{CacheAdd, CacheList, CacheReads, CacheState, CacheView};
use cairn_base::DiskId;
use cairn_formats::pool_file::PoolCache;
use cairn_pool::warning::{CacheTrouble, Warning};
use cairn_read_cache::{CacheSet, DiskCache};
use cairn_segment::ReadCache;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::node::{ChangeFailure, NodeCore};

/// Maximum time that a start waits for them. Without a cache everything is served, only slower.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// The open caches, and the reasons why others are not open; a cache that is being opened is in neither.
#[derive(Default)]
pub struct ReadCaches(Mutex<BTreeMap<DiskId, Result<Arc<DiskCache>, String>>>);

impl ReadCaches {
    fn open(&self) -> Vec<(DiskId, Arc<DiskCache>)> {
        let all = self.0.lock();
        let open = all.iter().filter_map(|(id, cache)| {
            let cache = cache.as_ref().ok()?;
            Some((*id, Arc::clone(cache)))
        });
        open.collect()
    }
}

/// Makes reads use all open caches.
fn use_them(inner: &NodeCore) {
    let caches = inner.read_caches.open().into_iter();
    let caches = caches.map(|(id, cache)| (id, cache as Arc<dyn ReadCache>));
    match CacheSet::new(caches.collect()) {
        Some(set) => inner.pool.store.use_read_cache(Arc::new(set)),
        None => inner.pool.store.use_no_read_cache(),
    }
}

/// Opens a cache, on a thread of its own: this makes and opens files, and the disk may hang.
///
/// `create`: makes a missing folder. The folder of an unmounted drive is not made.
fn opening(
    inner: &NodeCore,
    cache: &PoolCache,
    create: bool,
) -> impl FnOnce() -> Result<DiskCache, String> + Send + 'static {
    let (pool, folder) = (inner.pool.state().pool, PathBuf::from(&cache.folder));
    let (runtime, size_bytes) = (Handle::current(), cache.size_bytes);
    move || {
        if create
            && let Err(error) = std::fs::create_dir(&folder)
            && error.kind() != ErrorKind::AlreadyExists
        {
            return Err(format!("{} cannot be created: {error}", folder.display()));
        }
        if !folder.exists() {
            return Err(format!(
                "{} does not exist: check its name, and that its drive is mounted, or create it with --create",
                folder.display()
            ));
        }
        let opened = runtime.block_on(DiskCache::open(&folder, pool, size_bytes));
        opened.map_err(|error| error.to_string())
    }
}

/// Opens all caches. One on a slow disk is used once it is open.
pub async fn open_all(inner: &Arc<NodeCore>) {
    let caches = inner.pool.state().caches.clone();
    let all = caches.into_iter().map(|cache| {
        let opening = tokio::task::spawn_blocking(opening(inner, &cache, false));
        let weak = Arc::downgrade(inner);
        tokio::spawn(async move {
            let opened = opening.await.unwrap_or_else(|error| Err(error.to_string()));
            let Some(inner) = weak.upgrade() else { return };
            let (folder, size_bytes) = (&cache.folder, cache.size_bytes);
            // It may have been removed meanwhile.
            if !inner.pool.state().caches.iter().any(|it| it.id == cache.id) {
                return;
            }
            match &opened {
                Ok(_) => tracing::info!(folder, size_bytes, "the read cache is in use"),
                Err(error) => tracing::error!(error, "serving without this read cache"),
            }
            inner
                .read_caches
                .0
                .lock()
                .insert(cache.id, opened.map(Arc::new));
            use_them(&inner);
        })
    });
    if timeout(OPEN_MAX, join_all(all)).await.is_err() {
        tracing::warn!("a read cache takes long to open; serving without it meanwhile");
    }
}

impl NodeCore {
    /// Makes a cache in a folder and uses it from then on.
    pub async fn cache_add(self: &Arc<Self>, add: &CacheAdd) -> Result<CacheView, ChangeFailure> {
        let _joining = self.folders.join().await;
        let folder = self.place_of_cache(&add.path).await?;
        let cache = PoolCache {
            id: DiskId(self.env.entropy.u128()),
            folder: folder.display().to_string(),
            size_bytes: add.size_bytes,
            added: self.env.clock.now(),
        };
        let is_listed = |it: &PoolCache| it.folder == cache.folder;
        if self.pool.state().caches.iter().any(is_listed) {
            return Err(ChangeFailure::Impossible(format!(
                "{} is already a read cache",
                cache.folder
            )));
        }
        // As for folders of disks, the number of unresponsive ones that are tried at a time is limited.
        let opened = self
            .answer_of(&cache.folder, opening(self, &cache, add.create))
            .await?;
        let opened = opened.map_err(ChangeFailure::Impossible)?;
        if let Err(refused) = self.pool.cache_add(cache.clone()).await {
            opened.close().await;
            return Err(refused);
        }
        self.read_caches
            .0
            .lock()
            .insert(cache.id, Ok(Arc::new(opened)));
        use_them(self);
        tracing::info!(
            folder = cache.folder,
            size_bytes = cache.size_bytes,
            "a read cache was added"
        );
        Ok(view(self, &cache))
    }

    /// Stops using a cache, and empties its folder.
    pub async fn cache_remove(&self, words: &str) -> Result<(), ChangeFailure> {
        let _joining = self.folders.join().await;
        let state = self.pool.state();
        let is_meant = |cache: &&PoolCache| cache.id.to_string() == words;
        let id = state.caches.iter().find(is_meant).map(|cache| cache.id);
        let id = id.ok_or_else(|| ChangeFailure::NoDisk(words.to_owned()))?;
        let cache = self.pool.cache_remove(id).await?;
        let opened = self.read_caches.0.lock().remove(&id);
        use_them(self);
        if let Some(Ok(opened)) = opened {
            opened.close().await;
        }
        let (folder, pool) = (PathBuf::from(&cache.folder), state.pool);
        let removing = move || DiskCache::remove(&folder, pool);
        match self.answer_of(&cache.folder, removing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(folder = cache.folder, %error, "the removed read cache could not be emptied");
            }
            Err(error) => tracing::warn!(%error, "the removed read cache could not be emptied"),
        }
        tracing::info!(folder = cache.folder, "a read cache was removed");
        Ok(())
    }

    pub fn cache_list(&self) -> CacheList {
        let state = self.pool.state();
        let stats = self.pool.store.stats();
        CacheList {
            caches: state.caches.iter().map(|cache| view(self, cache)).collect(),
            reads: CacheReads {
                cache_bytes: stats.second_hit_bytes,
                disk_bytes: stats.disk_read_bytes,
                memory_hits: stats.cache_hits,
                memory_misses: stats.cache_misses,
            },
        }
    }
}

fn view(inner: &NodeCore, cache: &PoolCache) -> CacheView {
    let all = inner.read_caches.0.lock();
    let (state, problem, errors) = match all.get(&cache.id) {
        None => (CacheState::Opening, None, 0),
        Some(Err(why)) => (CacheState::NotOpen, Some(why.clone()), 0),
        Some(Ok(open)) => {
            let stats = open.stats();
            let state = match stats.is_let_alone {
                true => CacheState::LetAlone,
                false => CacheState::Ok,
            };
            (state, None, stats.errors)
        }
    };
    CacheView {
        id: cache.id.to_string(),
        path: cache.folder.clone(),
        size_bytes: cache.size_bytes,
        state,
        errors,
        problem,
    }
}

/// Stores the indexes, so that the next start finds all contents.
pub async fn close_all(inner: &NodeCore) {
    let open = inner.read_caches.open();
    join_all(open.iter().map(|(_, cache)| cache.close())).await;
}

/// Warnings for caches that are not used.
pub fn warnings(inner: &NodeCore) -> Vec<Warning> {
    let views = inner.cache_list().caches.into_iter();
    let warnings = views.filter_map(|cache| {
        let trouble = match cache.state {
            CacheState::Ok => return None,
            CacheState::LetAlone => CacheTrouble::LetAlone,
            CacheState::Opening => CacheTrouble::Opening,
            CacheState::NotOpen => CacheTrouble::NotOpen,
        };
        Some(Warning::ReadCacheUnused {
            cache: Path::new(&cache.path).display().to_string(),
            trouble,
            why: cache.problem,
        })
    });
    warnings.collect()
}
