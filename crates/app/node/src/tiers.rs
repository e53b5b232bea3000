//! Opens tiers for the pool, and answers the admin API about them.
//!
//! Owns: how a tier's settings become an open tier, its view. Must not know: which data goes to a tier, and when.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_admin::api::ErrorKind;
use cairn_admin::plans::{StoragePrice, StoragePrices};
use cairn_admin::tiers::{TierAdd, TierCheck, TierChecked, TierControl, TierView, TierVolumeView};
use cairn_admin::{Answer, ControlError};
use cairn_base::env::{BoxFuture, Env};
use cairn_base::{PoolId, SegmentId, VolumeId};
use cairn_config::{Config, TierName, VolumeName};
use cairn_formats::pool_file::{ChangeError, PoolTier};
use cairn_pool::{HostTier, TierStatus, VolumeService};
use cairn_segment::{Pace, TierStore};
use cairn_tier::{Credentials, ObjectTier, TierAddress};
use futures_util::FutureExt;

use crate::control::{Controller, refusal};
use crate::disk_folders::allowed_place;
use crate::node::NodeCore;

/// Retries tiers that could not be opened, and looks for objects of deleted volumes, until the node ends: less often
/// than volumes check their tiers.
pub fn tend(inner: &Arc<NodeCore>) {
    let interval = inner.config.tier_interval.saturating_mul(3) / 2;
    inner.every("tiers", interval, |inner| async move {
        inner.pool.tend_tiers().await;
    });
}

/// The names of all tiers, each with its own fault or that of a volume of this server there, if there is one.
pub fn troubles(inner: &NodeCore) -> Vec<(String, Option<String>)> {
    let tiers = inner.pool.tier_statuses().into_iter();
    let tiers = tiers.map(|tier| {
        let mut of_volumes = tier.volumes.iter();
        let of_volume = of_volumes.find_map(|volume| volume.status.as_ref()?.trouble.clone());
        (tier.tier.name.to_string(), tier.trouble.or(of_volume))
    });
    tiers.collect()
}

struct OpenTier(Arc<ObjectTier>);

impl HostTier for OpenTier {
    fn store(&self) -> Arc<dyn TierStore> {
        Arc::clone(&self.0) as _
    }

    fn claim(&self) -> BoxFuture<Result<(), String>> {
        let tier = Arc::clone(&self.0);
        async move { tier.claim().await.map_err(|error| error.to_string()) }.boxed()
    }

    fn release(&self) -> BoxFuture<Result<(), String>> {
        let tier = Arc::clone(&self.0);
        async move { tier.release().await.map_err(|error| error.to_string()) }.boxed()
    }
}

/// Prepares the use of a tier. Reads files, and makes no network call.
pub fn open(
    env: &Env,
    pool: PoolId,
    tier: &PoolTier,
    config: &Config,
) -> Result<Arc<dyn HostTier>, String> {
    let address: Result<TierAddress, _> = tier.url.parse();
    let mut address = address.map_err(|error| error.to_string())?;
    let mut directory = None;
    // The server writes to it and empties it, as a disk.
    if let TierAddress::Directory(path) = &address {
        let place = allowed_place(Path::new(path), &config.disk_roots, &[])?;
        directory = Some(place.clone());
        let place = place.into_os_string().into_string();
        // The checked real path: a link may lead elsewhere a moment later.
        let place = place.map_err(|_| format!("{path} leads to a path that is not UTF-8"))?;
        address = TierAddress::Directory(place);
    }
    let credentials = Credentials {
        file: tier.credentials_file.as_deref(),
        machine_hosts: &config.credential_hosts,
    };
    let opened = ObjectTier::open(env.clone(), (pool, tier.id), &address, credentials);
    let opened = opened.map_err(|error| error.to_string())?;
    // Nor was a link put there while it was opened.
    let is_elsewhere = |place: &PathBuf| place.canonicalize().is_ok_and(|now| now != *place);
    if let Some(place) = directory.filter(is_elsewhere) {
        return Err(format!(
            "{} was another folder a moment ago: try again",
            place.display()
        ));
    }
    Ok(Arc::new(OpenTier(Arc::new(opened))))
}

/// The price of bytes at an address for a month. Of other vendors' S3 and other stores none is known.
fn price(prices: &dyn StoragePrices, url: &str, bytes: u64) -> Option<StoragePrice> {
    match url.parse().ok()? {
        TierAddress::S3 {
            endpoint: None,
            region: Some(region),
            ..
        } => prices.s3(&region, bytes),
        _ => None,
    }
}

fn view(controller: &Controller, status: TierStatus) -> TierView {
    let inner = &controller.inner;
    let TierStatus {
        tier,
        stats,
        trouble,
        volumes,
    } = status;
    let bytes: u64 = volumes
        .iter()
        .filter_map(|volume| volume.status.as_ref())
        .map(|status| status.remote_bytes)
        .sum();
    let prices = controller.extras.prices;
    let price = prices.and_then(|prices| price(prices, &tier.url, bytes));
    let price = price.map(|price| (price.month_usd_cents, price.date));
    let (month_cents, price_date) = price.unzip();
    let known = || volumes.iter().filter_map(|volume| volume.status.as_ref());
    let sum = |of: fn(&cairn_fs::TieringStatus) -> u64| known().map(of).sum();
    TierView {
        name: tier.name,
        url: tier.url,
        credentials_file: tier.credentials_file,
        created_seconds: tier.created.seconds,
        working: trouble.is_none() && !stats.is_away,
        problem: trouble,
        objects: sum(|status| status.objects),
        bytes,
        month_cents,
        price_date,
        live_bytes: sum(|status| status.remote_live_bytes),
        saved_bytes: sum(|status| status.saved_bytes),
        unused_objects: sum(|status| status.unused_objects),
        deleted_volumes: tier.deleting.len() as u64,
        reads: stats.reads,
        writes: stats.writes,
        deletes: stats.deletes,
        errors: stats.errors,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        wrong: stats.wrong,
        volumes: volumes
            .into_iter()
            .map(|volume| {
                let serving = volume.status.is_some();
                let status = volume.status.unwrap_or_default();
                let filter = volume.tiering.filter;
                TierVolumeView {
                    name: volume.name,
                    tiering: volume.tiering.policy,
                    cooling_days: volume.tiering.cooling_days,
                    files: filter.files,
                    min_size: filter.min_size,
                    min_age: filter.min_age,
                    serving,
                    owner: match serving {
                        true => None,
                        false => inner.owner_name(volume.store).and_then(Result::ok),
                    },
                    objects: status.objects,
                    bytes: status.remote_bytes,
                    live_bytes: status.remote_live_bytes,
                    sent_segments: status.sent_segments,
                    promoted_parts: status.promoted_parts,
                    gathered_bytes: status.gathered_bytes,
                    resting_segments: status.resting_segments,
                    problem: status.trouble,
                }
            })
            .collect(),
    }
}

impl Controller {
    fn tier_now(&self, name: &TierName) -> Result<TierView, ControlError> {
        let statuses = self.inner.pool.tier_statuses().into_iter();
        let mut found = statuses.filter(|status| status.tier.name == *name);
        let found = found.next();
        let absent = || refusal(ChangeError::NoTier(name.clone()).into());
        found.map(|status| view(self, status)).ok_or_else(absent)
    }

    async fn check_step(
        &self,
        name: &TierName,
        from: TierCheck,
    ) -> Result<TierChecked, ControlError> {
        let pool = &self.inner.pool;
        let state = pool.state();
        let tier = state.tier(name).map_err(|error| refusal(error.into()))?;
        // By the names of the volumes that represent them.
        let stores = state.stores_in_tier(tier.id);
        let stores: BTreeMap<VolumeName, VolumeId> = stores
            .map(|store| (state.head_of(store).name.clone(), store.id))
            .collect();
        let at = match &from.volume {
            None => stores.first_key_value(),
            // It may be gone meanwhile.
            Some(name) => stores.range(name.clone()..).next(),
        };
        let Some((name, store)) = at else {
            return Ok(TierChecked::default());
        };
        let is_same = from.volume.as_ref() == Some(name);
        let segment = SegmentId(if is_same { from.segment } else { 0 });
        let mut checked = TierChecked::default();
        let mut next = None;
        match pool.service(*store) {
            Some(VolumeService::Serving(fs)) => {
                let pace = Pace::new(Arc::clone(&self.inner.env.clock), 0);
                let step = fs.verify_tier(segment, &pace).await;
                let (bytes, wrong, after) = step.map_err(|error| {
                    let message = format!("volume \"{name}\": {error}");
                    ControlError::new(ErrorKind::Unavailable, message)
                })?;
                checked.bytes = bytes;
                checked.problems = wrong.iter().map(ToString::to_string).collect();
                next = after;
            }
            _ => {
                let why = match self.inner.owner_name(*store) {
                    Some(Ok(node)) => {
                        format!("node {node} owns volume \"{name}\": ask that node, with --server")
                    }
                    Some(Err(why)) => format!("volume \"{name}\" is not served: {why}"),
                    None => format!("volume \"{name}\" is not served"),
                };
                checked.problems = vec![why];
            }
        }
        let next_volume = || {
            let after = (Bound::Excluded(name.clone()), Bound::Unbounded);
            stores.range(after).next()
        };
        checked.next = match next {
            Some(segment) => Some(TierCheck {
                volume: Some(name.clone()),
                segment: segment.0,
            }),
            None => next_volume().map(|(other, _)| TierCheck {
                volume: Some(other.clone()),
                segment: 0,
            }),
        };
        Ok(checked)
    }
}

impl TierControl for Controller {
    fn tiers(&self) -> Answer<'_, Vec<TierView>> {
        Box::pin(async {
            let statuses = self.inner.pool.tier_statuses().into_iter();
            Ok(statuses.map(|status| view(self, status)).collect())
        })
    }

    fn tier(&self, name: TierName) -> Answer<'_, TierView> {
        Box::pin(async move { self.tier_now(&name) })
    }

    fn tier_add(&self, add: TierAdd) -> Answer<'_, TierView> {
        Box::pin(async move {
            let invalid = |error: &dyn std::fmt::Display| {
                ControlError::new(ErrorKind::Invalid, error.to_string())
            };
            let address: Result<TierAddress, _> = add.url.parse();
            let address = address.map_err(|error| invalid(&error))?;
            if let Some(file) = &add.credentials_file
                && (!file.starts_with('/') || file.len() > cairn_config::TIER_URL_LEN_BYTES_MAX)
            {
                return Err(invalid(
                    &"the path of the credentials file must be absolute, on the server",
                ));
            }
            // In the stored form: each address has one spelling.
            let url = address.to_string();
            let added = self
                .inner
                .pool
                .tier_add(add.name.clone(), url, add.credentials_file)
                .await;
            added.map_err(refusal)?;
            self.tier_now(&add.name)
        })
    }

    fn tier_remove(&self, name: TierName) -> Answer<'_, ()> {
        Box::pin(async move { self.inner.pool.tier_remove(&name).await.map_err(refusal) })
    }

    fn tier_check(&self, name: TierName, from: TierCheck) -> Answer<'_, TierChecked> {
        Box::pin(async move { self.check_step(&name, from).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A price of one cent for each byte.
    struct PerByte;

    impl StoragePrices for PerByte {
        fn s3(&self, region: &str, bytes: u64) -> Option<StoragePrice> {
            Some(StoragePrice {
                month_usd_cents: bytes,
                date: region.to_owned(),
            })
        }
    }

    #[test]
    fn only_s3_of_aws_has_a_price() {
        let cases = [
            ("s3://archive/one?region=us-east-1", Some("us-east-1")),
            ("s3://archive", None),
            (
                "s3://archive?region=us-east-1&endpoint=https://other.example",
                None,
            ),
            ("file:///srv/cold", None),
            ("no address", None),
        ];
        for (url, region) in cases {
            let want = region.and_then(|region| PerByte.s3(region, 7));
            assert_eq!(price(&PerByte, url, 7), want, "{url}");
        }
    }
}
