//! Tiers of a pool: object stores that cold segments are kept in.
//!
//! Owns: what the pool file says of each. Must not know: how a store is reached.

use cairn_base::{PoolId, TierId, Timestamp, VolumeId};
use serde::{Deserialize, Serialize};

use super::{ChangeError, PoolState, PoolVolume};
use crate::settings::{CoolingDays, TIERS_MAX, TierFilter, TierName, Tiering};

/// What of a volume goes where. It names its tier as long as data of it may be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeTiering {
    pub tier: TierId,
    pub policy: Tiering,
    pub cooling_days: CoolingDays,
    /// Of which files.
    #[serde(default, skip_serializing_if = "TierFilter::is_all")]
    pub filter: TierFilter,
}

/// An object store that cold segments are kept in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolTier {
    pub id: TierId,
    pub name: TierName,
    /// Its address, without any secret.
    pub url: String,
    /// A file with the credentials, readable for its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<String>,
    pub created: Timestamp,
    /// Deleted volumes whose objects are not all deleted yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleting: Vec<VolumeId>,
}

impl PoolState {
    pub fn tier(&self, name: &TierName) -> Result<&PoolTier, ChangeError> {
        let mut tiers = self.tiers.iter();
        tiers
            .find(|tier| tier.name == *name)
            .ok_or_else(|| ChangeError::NoTier(name.clone()))
    }

    /// The owner of objects in tiers: this pool, or the cluster, of which each node has a pool file of its own.
    pub fn tier_owner(&self) -> PoolId {
        self.cluster.map_or(self.pool, |mark| mark.cluster)
    }

    pub fn tier_of(&self, id: TierId) -> Option<&PoolTier> {
        self.tiers.iter().find(|tier| tier.id == id)
    }

    /// Stores of volumes that name a tier: data of them may be there.
    pub fn stores_in_tier(&self, id: TierId) -> impl Iterator<Item = &PoolVolume> {
        let all = self.volumes.iter();
        all.filter(move |volume| {
            volume
                .tiering
                .as_ref()
                .is_some_and(|tiering| tiering.tier == id)
        })
    }

    /// Adds a tier under a new id, which is returned.
    pub fn add_tier(
        &mut self,
        name: TierName,
        url: String,
        credentials_file: Option<String>,
        created: Timestamp,
    ) -> Result<TierId, ChangeError> {
        if self.tier(&name).is_ok() {
            return Err(ChangeError::TierExists(name));
        }
        if self.tiers.len() >= TIERS_MAX {
            return Err(ChangeError::TooManyTiers);
        }
        let id = TierId(self.tier_last.0.saturating_add(1));
        self.tier_last = id;
        self.tiers.push(PoolTier {
            id,
            name,
            url,
            credentials_file,
            created,
            deleting: Vec::new(),
        });
        Ok(id)
    }
}
