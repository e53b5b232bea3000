//! Whose a place in an object store is.
//!
//! Owns: the object that says so. Two pools that used one place would not take one another's objects for their own, since
//! keys begin with the pool; but deleting a bucket for one would lose the other's data, and nobody would expect it there.

use cairn_base::PoolId;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::guarded::told;
use crate::{JoinAll, ObjectTier};

const NAME: &str = "cairn-tier.json";
/// It is not longer.
const LEN_BYTES_MAX: u64 = 4096;
const FORMAT: &str = "cairn-tier 1";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    format: String,
    /// As it is shown: 32 digits.
    pool: String,
    /// The tier's number in that pool.
    tier: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("{place} belongs to another pool ({pool}); choose another prefix or bucket")]
    Other { place: String, pool: String },
    #[error("{place} is already tier number {tier} of this pool; choose another prefix or bucket")]
    OtherTier { place: String, tier: u32 },
    #[error("{place} has no {NAME}, so it is not this pool's tier; is it mounted?")]
    Nobody { place: String },
    #[error("{place} has a {NAME} that no pool wrote; choose another prefix or bucket")]
    Strange { place: String },
    #[error("{place} does not exist: create the bucket or container first, or correct the address")]
    Missing { place: String },
    #[error(
        "{place} refuses the credentials, or they lack rights; give others in the environment of the server, or with --credentials-file: {why}"
    )]
    Refused { place: String, why: String },
    #[error("{place}: {why}")]
    Store { place: String, why: String },
}

impl ObjectTier {
    #[cfg(test)]
    pub(crate) fn owner_path_for_tests(&self) -> Path {
        self.owner_path()
    }

    fn owner_path(&self) -> Path {
        self.prefix.clone().join_all(NAME)
    }

    fn place(&self) -> String {
        match self.prefix.as_ref() {
            "" => format!("{}", self.store),
            prefix => format!("{}, prefix {prefix}", self.store),
        }
    }

    fn store_error(&self, error: &object_store::Error) -> ClaimError {
        use object_store::Error::{PermissionDenied, Unauthenticated};
        let (place, why) = (self.place(), told(error));
        match error {
            PermissionDenied { .. } | Unauthenticated { .. } => ClaimError::Refused { place, why },
            _ => ClaimError::Store { place, why },
        }
    }

    /// Whose it is; `None`: nobody's.
    async fn owner(&self) -> Result<Option<Owner>, ClaimError> {
        let got = match self.store.get(&self.owner_path()).await {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.store_error(&error)),
        };
        let strange = || ClaimError::Strange {
            place: self.place(),
        };
        if got.meta.size > LEN_BYTES_MAX {
            return Err(strange());
        }
        let bytes = got.bytes().await;
        let bytes = bytes.map_err(|error| self.store_error(&error))?;
        let owner: Owner = serde_json::from_slice(&bytes).map_err(|_| strange())?;
        match owner.format == FORMAT {
            true => Ok(Some(owner)),
            false => Err(strange()),
        }
    }

    /// Fails unless the place is this pool's.
    pub(crate) async fn check_owner(&self) -> Result<(), ClaimError> {
        match self.owner().await? {
            Some(owner) if owner.pool != self.pool_text() => Err(ClaimError::Other {
                place: self.place(),
                pool: owner.pool,
            }),
            Some(owner) if owner.tier != self.tier.0 => Err(ClaimError::OtherTier {
                place: self.place(),
                tier: owner.tier,
            }),
            Some(_) => Ok(()),
            None => Err(ClaimError::Nobody {
                place: self.place(),
            }),
        }
    }

    fn pool_text(&self) -> String {
        let pool: PoolId = self.pool;
        pool.to_string()
    }

    /// Makes the place this pool's, if it is nobody's or this pool's already.
    pub async fn claim(&self) -> Result<(), ClaimError> {
        // First a look: a store that knows no conditions would write over what is there.
        if self.owner().await?.is_none() {
            let owner = Owner {
                format: FORMAT.to_owned(),
                pool: self.pool_text(),
                tier: self.tier.0,
            };
            let bytes = serde_json::to_vec(&owner).unwrap_or_default();
            let options = PutOptions::from(PutMode::Create);
            let path = self.owner_path();
            match self.store.put_opts(&path, bytes.into(), options).await {
                // Somebody was faster: the look below says who.
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                // That no object is there is no reason not to write one.
                Err(object_store::Error::NotFound { .. }) if self.directory.is_none() => {
                    return Err(ClaimError::Missing {
                        place: self.place(),
                    });
                }
                Err(error) => return Err(self.store_error(&error)),
            }
        }
        self.check_owner().await
    }

    /// Gives the place back; all objects in it are deleted before.
    pub async fn release(&self) -> Result<(), ClaimError> {
        match self.check_owner().await {
            Ok(()) => {}
            Err(ClaimError::Nobody { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        match self.store.delete(&self.owner_path()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.store_error(&error)),
        }
    }
}
