//! The read cache of a node: opening, what is told of it, closing.

use std::sync::Arc;
use std::time::Duration;

use cairn_read_cache::{DiskCache, ReadCacheStats};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::node::Inner;

/// A start waits for it for so long. Without it everything is served as well, only slower.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// Opens the cache that the settings name. One whose disk takes long is used once it is open.
pub async fn open(inner: &Arc<Inner>) {
    let Some((folder, size_bytes)) = inner.config.read_cache.clone() else {
        return;
    };
    let (pool, weak) = (inner.pool.state().pool, Arc::downgrade(inner));
    let runtime = Handle::current();
    // Files are made and opened in it: a disk that hangs holds up a thread of its own.
    let opening = tokio::task::spawn_blocking(move || {
        let opened = runtime.block_on(DiskCache::open(&folder, pool, size_bytes));
        let Some(inner) = weak.upgrade() else { return };
        let cache = match opened {
            Ok(cache) => {
                let cache = Arc::new(cache);
                inner.pool.store.use_read_cache(Arc::clone(&cache) as _);
                tracing::info!(folder = %folder.display(), size_bytes, "the read cache is used");
                Some(cache)
            }
            Err(error) => {
                tracing::error!(%error, "serving without the read cache");
                None
            }
        };
        // Only here.
        let _ = inner.read_cache.set(cache);
    });
    if timeout(OPEN_MAX, opening).await.is_err() {
        tracing::warn!("the read cache takes long to open; serving without it until then");
    }
}

fn cache(inner: &Inner) -> Option<&Arc<DiskCache>> {
    inner.read_cache.get()?.as_ref()
}

/// So that the next start finds all that it has.
pub async fn close(inner: &Inner) {
    if let Some(cache) = cache(inner) {
        cache.close().await;
    }
}

pub fn stats(inner: &Inner) -> Option<ReadCacheStats> {
    cache(inner).map(|cache| cache.stats())
}

/// What an operator should know.
pub fn warning(inner: &Inner) -> Option<String> {
    let (folder, _) = inner.config.read_cache.as_ref()?;
    match stats(inner) {
        Some(stats) if !stats.is_let_alone => None,
        Some(_) => Some(format!(
            "the read cache at {} fails and is let alone for a minute: look after its disk; reads are slower, nothing is lost",
            folder.display()
        )),
        None if inner.read_cache.get().is_none() => Some(format!(
            "the read cache at {} is being opened; until then reads are slower",
            folder.display()
        )),
        None => Some(format!(
            "the read cache at {} could not be opened, and is not used: the log says why",
            folder.display()
        )),
    }
}
