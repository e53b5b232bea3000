//! Read caches.

use cairn_admin::Answer;
use cairn_admin::caches::{CacheAdd, CacheControl, CacheList, CacheName, CacheView};

use super::{Controller, refusal};

impl CacheControl for Controller {
    fn cache_list(&self) -> Answer<'_, CacheList> {
        Box::pin(async { Ok(self.inner.cache_list()) })
    }

    fn cache_add(&self, add: CacheAdd) -> Answer<'_, CacheView> {
        Box::pin(async move { self.inner.cache_add(&add).await.map_err(refusal) })
    }

    fn cache_remove(&self, cache: CacheName) -> Answer<'_, ()> {
        Box::pin(async move { self.inner.cache_remove(&cache.0).await.map_err(refusal) })
    }
}
