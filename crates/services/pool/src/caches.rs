//! Read caches of this server: which there are. In a cluster a node's own disks say it, and nobody else needs to know.
//!
//! Must not know: how a cache keeps anything; it is opened before it is listed, and closed after it is not any more.

use cairn_base::DiskId;
use cairn_formats::pool_file::{CACHES_MAX, PoolCache, PoolState};

use crate::pool::{ChangeFailure, Pool};

impl Pool {
    /// Lists a cache that is open.
    pub async fn cache_add(&self, cache: PoolCache) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        if state.caches.len() >= CACHES_MAX {
            return Err(ChangeFailure::Impossible(format!(
                "a server has at most {CACHES_MAX} read caches"
            )));
        }
        if state.caches.iter().any(|it| it.folder == cache.folder) {
            return Err(ChangeFailure::Impossible(format!(
                "{} is a read cache already",
                cache.folder
            )));
        }
        state.caches.push(cache);
        self.save(&mut tried, &mut state).await
    }

    /// Lists a cache no more; returns it.
    pub async fn cache_remove(&self, id: DiskId) -> Result<PoolCache, ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let at = state.caches.iter().position(|cache| cache.id == id);
        let at = at.ok_or_else(|| ChangeFailure::NoDisk(id.to_string()))?;
        let cache = state.caches.remove(at);
        self.save(&mut tried, &mut state).await?;
        Ok(cache)
    }
}
