//! Volumes whose size limit grows automatically, up to a bound.
//!
//! Owns: when, and by how much. Must not know: the purpose of the limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::settings::SizeLimit;
use cairn_pool::VolumeService;
use parking_lot::Mutex;

use crate::node::NodeCore;

/// Interval at which the usage of such volumes is checked. A client that fills the remaining space within it is
/// refused until the next check.
const INTERVAL: Duration = Duration::from_secs(1);
/// Above this usage the limit of a volume grows.
const FULL_PERCENT: u64 = 85;
/// The limit grows by this share of itself, and by at least so many bytes.
const STEP_PERCENT: u64 = 25;
const STEP_BYTES_MIN: u64 = 64 << 20;

/// Grows the volumes that are served here, until the node ends.
pub(crate) fn tend(inner: &Arc<NodeCore>) {
    let told: Arc<Told> = Arc::default();
    inner.every("autogrow", INTERVAL, move |inner| {
        let told = Arc::clone(&told);
        async move { grow_all(&inner, &told).await }
    });
}

/// The reasons why volumes do not grow that should, so that not each check logs them again.
type Told = Mutex<BTreeMap<VolumeId, String>>;

async fn grow_all(inner: &NodeCore, told: &Told) {
    let state = inner.pool.state();
    let growing = state
        .all_volumes()
        .filter(|volume| volume.settings.autogrow != SizeLimit::None);
    let growing: Vec<_> = growing
        .map(|volume| (volume.id, volume.name.clone(), volume.settings))
        .collect();
    if growing.is_empty() {
        return;
    }
    let services = inner.pool.services();
    for (id, name, settings) in growing {
        let Some(VolumeService::Serving(fs)) = services.get(&id) else {
            continue;
        };
        let before = settings.size_limit;
        let used_bytes = fs.used_bytes();
        let Some(limit_bytes) = grown(before, settings.autogrow, used_bytes) else {
            continue;
        };
        let set = inner.pool.volume_set(&name, |volume| {
            // A user may have set another limit meanwhile.
            if volume.settings.size_limit == before {
                volume.settings.size_limit = SizeLimit::Bytes(limit_bytes);
            }
        });
        match set.await {
            Ok(()) => {
                told.lock().remove(&id);
                tracing::info!(volume = %name, %before, limit_bytes, used_bytes, "the volume is nearly full, and its size limit grows");
            }
            // The volume may be moving to another node, which checks as well; the next check tries again.
            Err(error) => {
                let error = error.to_string();
                if told.lock().insert(id, error.clone()).as_ref() != Some(&error) {
                    tracing::warn!(volume = %name, error, "the size limit of a volume could not grow; the server retries");
                }
            }
        }
    }
}

/// The new limit of a volume with so many bytes, if it differs from the present one.
fn grown(limit: SizeLimit, bound: SizeLimit, used_bytes: u64) -> Option<u64> {
    let (limit, bound) = (limit.bytes()?, bound.bytes()?);
    let is_full = u128::from(used_bytes) * 100 >= u128::from(limit) * u128::from(FULL_PERCENT);
    if limit >= bound || !is_full {
        return None;
    }
    let step = (limit / 100 * STEP_PERCENT).max(STEP_BYTES_MIN);
    // Whole MiB, which people read more easily.
    let wanted = (limit.saturating_add(step) >> 20) << 20;
    (wanted > limit).then_some(wanted.min(bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_grows_when_it_is_nearly_full_up_to_its_bound() {
        const MIB: u64 = 1 << 20;
        let mib = |size: u64| match size {
            0 => SizeLimit::None,
            size => SizeLimit::Bytes(size * MIB),
        };
        // Limit, bound, used: in MiB; the new limit.
        for (limit, bound, used, want) in [
            (1000, 4000, 849, None),
            (1000, 4000, 850, Some(1250)),
            (1000, 4000, 1000, Some(1250)),
            (100, 4000, 90, Some(164)),
            (1000, 1100, 900, Some(1100)),
            (1100, 1100, 1100, None),
            // A user set it above the bound.
            (2000, 1100, 2000, None),
            (0, 1100, 5000, None),
            (1000, 0, 1000, None),
        ] {
            let got = grown(mib(limit), mib(bound), used * MIB).map(|bytes| bytes / MIB);
            assert_eq!(got, want, "{limit} {bound} {used}");
        }
        let most = SizeLimit::Bytes(u64::MAX);
        let near = SizeLimit::Bytes(u64::MAX - 1);
        assert_eq!(grown(near, most, u64::MAX), None);
    }
}
