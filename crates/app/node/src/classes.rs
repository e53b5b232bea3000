//! Answers the admin API about classes of service, stores the credit of volumes in the volumes, and throttles the
//! server's own work for latency objectives.
//!
//! Owns: when credit is read and written. Must not know: the use of credit.
//!
//! Credit is stored in the volume's hidden folder, so it moves with the volume. It is read when a volume is served
//! whose credit is unknown, and written twice a minute and at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::classes::{ClassControl, ClassCreate, ClassLimits, ClassSet, ClassView, PartList};
use cairn_admin::{Answer, ControlError};
use cairn_base::VolumeId;
use cairn_config::{ClassName, ClassSpec, PartLimit, VolumeName, VolumePart, built_in};
use cairn_formats::pool_file::{ChangeError, PoolState};
use cairn_fs::{Credentials, Fs, FsError, XattrMode};
use cairn_pool::{ChangeFailure, VolumeService};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::control::{Controller, refusal};
use crate::convert;
use crate::node::NodeCore;

/// Interval at which volumes with unknown credit are looked for.
const READ_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of the check of latency objectives.
const GOALS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which changed credit is written.
const WRITE_INTERVAL: Duration = Duration::from_secs(20);
const NAME: &[u8] = b"user.credit";
const VERSION: u32 = 1;

/// Stored credit (docs/reference/formats/hidden-folder.md).
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StoredCredit {
    version: u32,
    /// The time of storing, in seconds since 1970 UTC.
    at_seconds: i64,
    /// By the limited quantity; bytes, or operations.
    credit: BTreeMap<String, f64>,
}

/// The last written credit of each volume.
#[derive(Default)]
pub struct Credits(Mutex<BTreeMap<VolumeId, BTreeMap<&'static str, f64>>>);

/// Reads and writes credit, and checks latency objectives, until the node ends.
pub fn tend(inner: &Arc<NodeCore>) {
    inner.every("latency-goals", GOALS_INTERVAL, |inner| async move {
        if let Some(is_missed) = inner.shaper.look_at_goals() {
            inner.pool.clients.keep_waiting(is_missed);
        }
    });
    inner.every("credit-read", READ_INTERVAL, |inner| async move {
        read_all(&inner).await;
    });
    inner.every("credit-write", WRITE_INTERVAL, |inner| async move {
        write_all(&inner).await;
    });
}

/// Reads the credit of volumes whose credit is unknown.
pub async fn read_all(inner: &NodeCore) {
    for volume in inner.shaper.without_credit() {
        if let Some(VolumeService::Serving(fs)) = inner.pool.service(volume) {
            read(inner, &fs).await;
        }
    }
}

async fn read(inner: &NodeCore, fs: &Fs) {
    let kept = match kept(fs).await {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(volume = fs.name(), %error, "the credit of a volume cannot be read yet");
            return;
        }
    };
    let kept = kept.and_then(
        |bytes| match serde_json::from_slice::<StoredCredit>(&bytes) {
            Ok(kept) if kept.version == VERSION => Some(kept),
            _ => {
                tracing::warn!(
                    volume = fs.name(),
                    "the stored credit of the volume is not readable: it starts again"
                );
                None
            }
        },
    );
    let now = inner.env.clock.now().seconds;
    let (credit, ago) = match kept {
        Some(kept) => {
            let ago = u64::try_from(now.saturating_sub(kept.at_seconds)).unwrap_or(0);
            (kept.credit, Duration::from_secs(ago))
        }
        None => (BTreeMap::new(), Duration::ZERO),
    };
    inner.shaper.restore(fs.volume(), &credit, ago);
}

async fn kept(fs: &Fs) -> Result<Option<Vec<u8>>, FsError> {
    let Some(folder) = fs.hidden_folder().await? else {
        return Ok(None);
    };
    match fs.xattr(&Credentials::ROOT, folder, NAME).await {
        Ok(value) => Ok(Some(value.to_vec())),
        Err(FsError::NoAttribute) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the credit of all volumes where it has changed.
pub async fn write_all(inner: &NodeCore) {
    for (volume, service) in inner.pool.services() {
        let VolumeService::Serving(fs) = service else {
            continue;
        };
        let Some(credit) = inner.shaper.credit(volume) else {
            continue;
        };
        if inner.credits.0.lock().get(&volume) == Some(&credit) {
            continue;
        }
        match write(inner, &fs, &credit).await {
            Ok(()) => drop(inner.credits.0.lock().insert(volume, credit)),
            Err(error) => {
                tracing::warn!(volume = fs.name(), %error, "the credit of a volume cannot be stored");
            }
        }
    }
}

async fn write(
    inner: &NodeCore,
    fs: &Fs,
    credit: &BTreeMap<&'static str, f64>,
) -> Result<(), FsError> {
    let credit = credit.iter();
    let kept = StoredCredit {
        version: VERSION,
        at_seconds: inner.env.clock.now().seconds,
        credit: credit
            .map(|(name, credit)| ((*name).to_owned(), credit.round()))
            .collect(),
    };
    let Ok(bytes) = serde_json::to_vec(&kept) else {
        return Err(FsError::Invalid);
    };
    let folder = fs.make_hidden_folder().await?;
    fs.set_xattr(&Credentials::ROOT, folder, NAME, &bytes, XattrMode::Any)
        .await?;
    Ok(())
}

fn view(state: &PoolState, name: &ClassName, spec: &ClassSpec) -> ClassView {
    let volumes = state.all_volumes();
    let in_it = volumes.filter(|volume| volume.class.as_ref() == Some(name));
    ClassView {
        name: name.clone(),
        built_in: built_in().contains_key(name) || name.is_internal(),
        limits: ClassLimits::from(*spec),
        volumes: in_it.map(|volume| volume.name.clone()).collect(),
    }
}

impl Controller {
    fn limits_now(&self, name: &VolumeName) -> Result<PartList, ControlError> {
        let state = self.inner.pool.state();
        let volume = state.volume(name).map_err(|error| refusal(error.into()))?;
        let report = self.inner.shaper.report(volume.id);
        let is_served = self.inner.pool.service(volume.id).is_some();
        let owner = self.inner.owner_name(volume.id).and_then(Result::ok);
        Ok(PartList {
            limits: convert::parts(volume, report.as_ref()),
            owner: owner.filter(|_| !is_served),
        })
    }

    fn class_now(&self, name: &ClassName) -> Result<ClassView, ControlError> {
        let state = self.inner.pool.state();
        match state.class(name) {
            Some(spec) => Ok(view(&state, name, spec)),
            None => Err(refusal(ChangeError::NoClass(name.clone()).into())),
        }
    }

    async fn class_change(
        &self,
        name: &ClassName,
        limits: ClassLimits,
        is_new: bool,
    ) -> Result<ClassView, ControlError> {
        let spec = ClassSpec::from(limits);
        let change = |state: &mut PoolState| state.set_class(name, spec, is_new);
        let changed: Result<(), ChangeFailure> = self.inner.pool.classes_change(change).await;
        changed.map_err(refusal)?;
        read_all(&self.inner).await;
        self.class_now(name)
    }
}

impl ClassControl for Controller {
    fn classes(&self) -> Answer<'_, Vec<ClassView>> {
        Box::pin(async {
            let state = self.inner.pool.state();
            let internal = ClassName::internal();
            let of_internal = state.class(&internal).map(|spec| (&internal, spec));
            let made = state.classes.iter().filter(|(name, _)| !name.is_internal());
            let all = built_in().iter().chain(of_internal).chain(made);
            Ok(all.map(|(name, spec)| view(&state, name, spec)).collect())
        })
    }

    fn class(&self, name: ClassName) -> Answer<'_, ClassView> {
        Box::pin(async move { self.class_now(&name) })
    }

    fn class_create(&self, create: ClassCreate) -> Answer<'_, ClassView> {
        Box::pin(async move { self.class_change(&create.name, create.limits, true).await })
    }

    fn class_set(&self, name: ClassName, set: ClassSet) -> Answer<'_, ClassView> {
        Box::pin(async move { self.class_change(&name, set.limits, false).await })
    }

    fn limits(&self, volume: VolumeName) -> Answer<'_, PartList> {
        Box::pin(async move { self.limits_now(&volume) })
    }

    fn limit_set(&self, volume: VolumeName, limit: PartLimit) -> Answer<'_, PartList> {
        Box::pin(async move {
            let set = self
                .inner
                .pool
                .classes_change(|state| state.set_limit(&volume, limit));
            set.await.map_err(refusal)?;
            self.limits_now(&volume)
        })
    }

    fn limit_clear(&self, volume: VolumeName, part: VolumePart) -> Answer<'_, PartList> {
        Box::pin(async move {
            let cleared = self
                .inner
                .pool
                .classes_change(|state| state.clear_limit(&volume, &part));
            cleared.await.map_err(refusal)?;
            self.limits_now(&volume)
        })
    }

    fn class_delete(&self, name: ClassName) -> Answer<'_, ()> {
        Box::pin(async move {
            let deleted = self
                .inner
                .pool
                .classes_change(|state| state.delete_class(&name));
            deleted.await.map_err(refusal)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: once there is a release, every later version reads the credit that volumes have today.
    #[test]
    fn kept_credit_is_read() {
        let stored = br#"{"version":1,"at_seconds":7,"credit":{"throughput":5000000000.0}}"#;
        let kept: StoredCredit = serde_json::from_slice(stored).unwrap();
        assert_eq!((kept.at_seconds, kept.credit["throughput"]), (7, 5e9));
        assert_eq!(serde_json::to_vec(&kept).unwrap(), stored);
    }
}
