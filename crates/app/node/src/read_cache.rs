//! The read cache of a node: opening, what is told of it, closing.

use std::sync::Arc;

use cairn_read_cache::{DiskCache, ReadCacheStats};

use crate::node::Inner;

/// Opens the cache that the settings name. Without it everything is served as well, only slower.
pub async fn open(inner: &Arc<Inner>) {
    let Some((folder, size_bytes)) = &inner.config.read_cache else {
        return;
    };
    let pool = inner.pool.state().pool;
    match DiskCache::open(folder, pool, *size_bytes).await {
        Ok(cache) => {
            let cache = Arc::new(cache);
            inner.pool.store.use_read_cache(Arc::clone(&cache) as _);
            tracing::info!(folder = %folder.display(), size_bytes, "the read cache is used");
            let _ = inner.read_cache.set(cache);
        }
        Err(error) => tracing::error!(%error, "serving without the read cache"),
    }
}

/// So that the next start finds all that it has.
pub async fn close(inner: &Inner) {
    if let Some(cache) = inner.read_cache.get() {
        cache.close().await;
    }
}

pub fn stats(inner: &Inner) -> Option<ReadCacheStats> {
    inner.read_cache.get().map(|cache| cache.stats())
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
        None => Some(format!(
            "the read cache at {} could not be opened, and is not used: the log says why",
            folder.display()
        )),
    }
}
