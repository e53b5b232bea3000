//! The cluster itself: made once, opened by each node, and accepted again after a backup was restored.
//!
//! Owns: the cluster's record.
//! Must not know: nodes, volumes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cairn_base::env::Env;
use parking_lot::Mutex;

use super::high_water::{HighWaterState, HighWaterStore};
use super::keys::{Keys, is_name};
use super::values::{ClusterId, ClusterRecord, MapGeneration, Versioned, decode, encode};
use super::{ClusterMap, MapCore, MapError, PATIENCE, found};
use crate::coordinator::{Compare, Coordinator, Entry, Key, KeyRange, Op, RangeReply, Txn};
use crate::settle::{Mark, Settled, Unsettled, transact_settled};

const WHAT: &str = "the cluster's record";

impl ClusterMap {
    /// Makes a cluster. Its name must be free in this store.
    pub async fn create_cluster(
        coordinator: Arc<dyn Coordinator>,
        env: Env,
        id: ClusterId,
        name: &str,
        high_water: Arc<dyn HighWaterStore>,
    ) -> Result<Self, MapError> {
        let keys = keys_of(name)?;
        let key = keys.cluster();
        let record = ClusterRecord {
            id,
            name: name.to_owned(),
            created: env.clock.now(),
            generation: MapGeneration(1),
        };
        let value = encode(&key, &record)?;
        let txn = Txn {
            when: vec![Compare::absent(key.clone())],
            then: vec![Op::put(key.clone(), value.clone())],
            otherwise: Vec::new(),
        };
        let mark = Mark {
            key: key.clone(),
            value,
        };
        match settle(&*coordinator, &env, txn, &mark).await? {
            Settled::Done(_) | Settled::DoneUnseen(_) => {}
            Settled::Refused(_) => return Err(MapError::Exists { key, what: WHAT }),
        }
        Self::open(coordinator, env, name, high_water).await
    }

    /// Opens the map of a cluster. Refuses one that is older than what this node has seen.
    pub async fn open(
        coordinator: Arc<dyn Coordinator>,
        env: Env,
        name: &str,
        high_water: Arc<dyn HighWaterStore>,
    ) -> Result<Self, MapError> {
        let keys = keys_of(name)?;
        let (cluster, reply) = read_record(&*coordinator, keys.cluster()).await?;
        let seen = HighWaterState::begin(high_water, &cluster.value, reply.revision)?;
        Ok(Self {
            shared: Arc::new(MapCore {
                coordinator,
                env,
                keys,
                cluster,
                patience: PATIENCE,
                written: AtomicU64::new(0),
                seen: Mutex::new(seen),
            }),
        })
    }

    /// Accepts that the store was restored from a backup: nodes that saw a later state take this one from now on. Changes
    /// of the map since the backup are lost, so that an operator has to want this.
    ///
    /// `above` is the highest generation that any node has seen.
    pub async fn accept_restored(
        coordinator: Arc<dyn Coordinator>,
        env: Env,
        name: &str,
        above: MapGeneration,
    ) -> Result<MapGeneration, MapError> {
        let key = keys_of(name)?.cluster();
        let (cluster, _) = read_record(&*coordinator, key.clone()).await?;
        let mut record = cluster.value;
        let highest = record.generation.max(above);
        record.generation = MapGeneration(highest.0 + 1);
        let value = encode(&key, &record)?;
        let txn = Txn {
            when: vec![Compare::Modified(key.clone(), cluster.revision)],
            then: vec![Op::put(key.clone(), value.clone())],
            otherwise: Vec::new(),
        };
        let mark = Mark {
            key: key.clone(),
            value,
        };
        match settle(&*coordinator, &env, txn, &mark).await? {
            Settled::Done(_) | Settled::DoneUnseen(_) => Ok(record.generation),
            Settled::Refused(_) => Err(MapError::Changed { key, what: WHAT }),
        }
    }
}

async fn settle(
    coordinator: &dyn Coordinator,
    env: &Env,
    txn: Txn,
    mark: &Mark,
) -> Result<Settled, MapError> {
    transact_settled(coordinator, env, txn, mark, PATIENCE)
        .await
        .map_err(|error| match error {
            Unsettled::NotDone(error) => MapError::Coordinator(error),
            Unsettled::Unknown(error) => MapError::Unknown(error),
        })
}

async fn read_record(
    coordinator: &dyn Coordinator,
    key: Key,
) -> Result<(Versioned<ClusterRecord>, RangeReply), MapError> {
    let reply = coordinator.range(KeyRange::One(key.clone())).await?;
    let entry: Option<&Entry> = reply.entries.first();
    let record = decode(found(entry, &key, WHAT)?)?;
    Ok((record, reply))
}

fn keys_of(name: &str) -> Result<Keys, MapError> {
    if is_name(name) {
        return Ok(Keys::new(name));
    }
    Err(MapError::Invalid {
        key: Key::new(name),
        what: "the cluster's name",
        problem: "a name has letters, digits, '-', '_' and '.', 63 at most".to_owned(),
    })
}
