//! Read caches: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, create, delete, endpoints, get, text, texts_in_path};
use crate::server::Table;

/// The state of a read cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    Ok,
    /// The cache is being opened, and is in use once that is done.
    Opening,
    /// The cache could not be opened, and is not in use.
    NotOpen,
    /// The cache failed; the server retries it within a minute.
    LetAlone,
}

impl std::fmt::Display for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Opening => "opening",
            Self::NotOpen => "NOT OPEN",
            Self::LetAlone => "FAILING",
        })
    }
}

/// A read cache: a folder on a faster disk for data that is read often. Its loss loses no data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    pub id: String,
    pub path: String,
    /// Maximum size of the cache.
    pub size_bytes: u64,
    pub state: CacheState,
    /// Failed reads of the cache since the server started.
    pub errors: u64,
    /// Why the cache could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheList {
    pub caches: Vec<CacheView>,
    /// Sources of reads since the server started.
    #[serde(default)]
    pub reads: CacheReads,
}

/// Sources of the reads of all volumes of a server, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheReads {
    /// Bytes from a read cache.
    pub cache_bytes: u64,
    /// Bytes from disks of the pool.
    pub disk_bytes: u64,
    /// Records found in memory, and records not found there.
    pub memory_hits: u64,
    pub memory_misses: u64,
}

/// A read cache to create, in a folder by its path on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheAdd {
    #[schema(min_length = 1, max_length = 4096, pattern = r"^/")]
    pub path: String,
    /// Maximum size of the cache, at least 256 MiB.
    #[schema(minimum = 268435456)]
    pub size_bytes: u64,
    /// Create the folder if it does not exist. Its parent folder must exist.
    #[serde(default)]
    pub create: bool,
}

endpoints! {
    /// Lists the read caches of the answering server.
    CACHE_LIST: Endpoint<(), (), CacheList> = get("/api/v1/caches");

    /// Creates a read cache in a folder on the server, and starts to use it.
    CACHE_ADD: Endpoint<(), CacheAdd, CacheView> = create("/api/v1/caches");

    /// Removes a read cache, and empties its folder. `cache` is its id.
    CACHE_REMOVE: Endpoint<CacheName, (), ()> = delete("/api/v1/caches/{cache}");

}

texts_in_path! {
    /// A read cache, by its whole id.
    CacheName, text(1, 64), "there is no read cache with that name";
}

/// What a node does with its read caches. Changes are durable when they are answered.
pub trait CacheControl: Send + Sync {
    fn cache_list(&self) -> Answer<'_, CacheList>;
    fn cache_add(&self, add: CacheAdd) -> Answer<'_, CacheView>;
    fn cache_remove(&self, cache: CacheName) -> Answer<'_, ()>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn CacheControl>(|node| Ok(node.caches()))
        .on(CACHE_LIST, |node, (), ()| node.cache_list())
        .on(CACHE_ADD, |node, (), add| node.cache_add(add))
        .on(CACHE_REMOVE, |node, cache, ()| node.cache_remove(cache));
}
