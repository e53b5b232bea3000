//! Answers the admin API about policies of directories.

use cairn_admin::api::ErrorKind;
use cairn_admin::policies::{
    ApplyStart, ApplyState, ApplyView, PolicyControl, PolicyInForce, PolicyList, PolicySet,
    PolicySettings, PolicyView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::Ino;
use cairn_config::VolumeName;
use cairn_formats::settings::{Protection, VolumeSettings};
use cairn_fs::{ApplyFailure, Fs, FsError, PolicyFailure, PolicyRecord};

use crate::control::{Controller, no_room};
use crate::paths::{directory_at, names_of};

fn refuse(kind: ErrorKind, message: impl Into<String>) -> ControlError {
    ControlError::new(kind, message.into())
}

pub(crate) fn failed(volume: &VolumeName, path: &str, error: &FsError) -> ControlError {
    match error {
        FsError::NotFound | FsError::Stale | FsError::NotDirectory => refuse(
            ErrorKind::NotFound,
            format!("directory {path} no longer exists in volume {volume}"),
        ),
        FsError::Fenced | FsError::TryLater | FsError::Unreachable(_) => {
            refuse(ErrorKind::Unavailable, error.to_string())
        }
        FsError::NoSpace | FsError::QuotaExceeded => no_room(error.to_string()),
        error => {
            tracing::error!(%volume, %path, %error, "a change of policies failed");
            refuse(ErrorKind::Internal, error.to_string()).hint("the server's log has details")
        }
    }
}

fn policy_refused(volume: &VolumeName, path: &str, error: PolicyFailure) -> ControlError {
    let message = error.to_string();
    match error {
        PolicyFailure::Root => refuse(ErrorKind::Invalid, message).hint(format!(
            "`cairn volume set {volume}` changes the volume's settings, and `cairn policy apply {volume}` converts existing data"
        )),
        PolicyFailure::Empty => refuse(ErrorKind::Invalid, message).hint(format!(
            "`cairn policy clear {volume}{path}` removes the policy"
        )),
        PolicyFailure::Clone => refuse(ErrorKind::Conflict, message),
        PolicyFailure::TooMany => refuse(ErrorKind::Conflict, message),
        PolicyFailure::None => refuse(
            ErrorKind::NotFound,
            format!("directory {path} has no policy of its own"),
        )
        .hint(format!("`cairn policy list {volume}` shows the directories that have a policy")),
        PolicyFailure::Fs(error) => failed(volume, path, &error),
    }
}

fn apply_refused(volume: &VolumeName, path: &str, error: ApplyFailure) -> ControlError {
    let message = error.to_string();
    match error {
        ApplyFailure::Running => refuse(ErrorKind::Conflict, message).hint(format!(
            "`cairn policy status {volume}` shows the progress, `cairn policy cancel {volume}` cancels the conversion"
        )),
        ApplyFailure::Clone => refuse(ErrorKind::Conflict, message),
        ApplyFailure::NotRunning => refuse(ErrorKind::Conflict, message),
        ApplyFailure::Fs(error) => failed(volume, path, &error),
    }
}

fn settings_of(policy: &PolicyRecord) -> PolicySettings {
    PolicySettings {
        compression: policy.compression,
        dedupe: policy.dedupe,
        access_pattern: policy.access_pattern,
        media: policy.media,
        protection: policy.protection,
    }
}

fn shown(path: Vec<u8>) -> String {
    match path.is_empty() {
        true => "/".to_owned(),
        false => String::from_utf8_lossy(&path).into_owned(),
    }
}

async fn view_of(
    fs: &Fs,
    volume: &VolumeName,
    settings: &VolumeSettings,
    view: &cairn_fs::PolicyView,
) -> Result<PolicyView, ControlError> {
    let path = fs.dir_path(view.dir).await;
    let path = path.map_err(|error| failed(volume, "", &error))?;
    Ok(PolicyView {
        volume: volume.to_string(),
        path: shown(path.unwrap_or_default()),
        policy: settings_of(&view.own),
        in_force: PolicyInForce {
            compression: view.said.compression.unwrap_or(settings.compression),
            dedupe: view.said.dedupe.unwrap_or(settings.dedupe),
            access_pattern: view.said.access_pattern.unwrap_or(settings.access_pattern),
            media: view.said.media.unwrap_or(settings.media),
            protection: view.said.protection.unwrap_or(settings.protection),
        },
    })
}

async fn apply_view(
    fs: &Fs,
    volume: &VolumeName,
    view: cairn_fs::ApplyView,
) -> Result<ApplyView, ControlError> {
    let record = view.record;
    let path = fs.dir_path(record.dir).await;
    let path = path.map_err(|error| failed(volume, "", &error))?;
    Ok(ApplyView {
        volume: volume.to_string(),
        path: path.map(shown),
        state: match record.state {
            cairn_fs::ApplyState::Running => ApplyState::Running,
            cairn_fs::ApplyState::Done => ApplyState::Done,
            cairn_fs::ApplyState::Cancelled => ApplyState::Cancelled,
        },
        began_seconds: record.began_seconds,
        ended_seconds: Some(record.ended_seconds).filter(|ended| *ended > 0),
        inodes: record.inodes,
        inodes_all: record.inodes_all,
        files: record.files,
        seen_bytes: record.seen_bytes,
        rewritten_bytes: record.rewritten_bytes,
        shared_bytes: record.shared_bytes,
        stored_bytes_before: record.stored_bytes_before,
        stored_bytes_after: record.stored_bytes_after,
        left: record.left,
        waits_for: view.waits_for.map(|error| error.to_string()),
    })
}

impl Controller {
    fn settings_of(&self, volume: &VolumeName) -> Result<VolumeSettings, ControlError> {
        let state = self.inner.pool.state();
        let known = state.volume(volume);
        let known = known.map_err(|error| refuse(ErrorKind::NotFound, error.to_string()))?;
        Ok(known.settings)
    }

    async fn allow_protection(
        &self,
        volume: &VolumeName,
        protection: Option<Protection>,
    ) -> Result<(), ControlError> {
        let Some(protection) = protection else {
            return Ok(());
        };
        let pool = &self.inner.pool;
        let allowed = pool.allow_directory_protection(volume, protection).await;
        allowed.map_err(crate::control::refusal)
    }

    async fn directory_for_policy(&self, fs: &Fs, path: &str) -> Result<Ino, ControlError> {
        directory_at(fs, path, "policies are for directories").await
    }
}

impl PolicyControl for Controller {
    fn policies(&self, volume: VolumeName) -> Answer<'_, PolicyList> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let settings = self.settings_of(&volume)?;
            let views = fs.dir_policies().await;
            let views = views.map_err(|error| failed(&volume, "/", &error))?;
            let mut policies = Vec::with_capacity(views.len());
            for view in &views {
                policies.push(view_of(&fs, &volume, &settings, view).await?);
            }
            policies.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(PolicyList { policies })
        })
    }

    fn policy(&self, volume: VolumeName, path: String) -> Answer<'_, PolicyView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let settings = self.settings_of(&volume)?;
            let dir = self.directory_for_policy(&fs, &path).await?;
            let view = fs.dir_policy(dir).await;
            let view = view.map_err(|error| failed(&volume, &path, &error))?;
            view_of(&fs, &volume, &settings, &view).await
        })
    }

    fn policy_set(&self, volume: VolumeName, set: PolicySet) -> Answer<'_, PolicyView> {
        Box::pin(async move {
            self.require_media(set.policy.media)?;
            let fs = self.fs_of(&volume)?;
            let settings = self.settings_of(&volume)?;
            let dir = self.directory_for_policy(&fs, &set.path).await?;
            let policy = PolicyRecord {
                compression: set.policy.compression,
                dedupe: set.policy.dedupe,
                access_pattern: set.policy.access_pattern,
                media: set.policy.media,
                protection: set.policy.protection,
            };
            let path: String = names_of(&set.path).map(|name| format!("/{name}")).collect();
            self.allow_protection(&volume, policy.protection).await?;
            let done = fs.set_dir_policy(dir, policy).await;
            let view = done.map_err(|error| policy_refused(&volume, &path, error))?;
            // The permission may have been withdrawn before the directory had the policy.
            self.allow_protection(&volume, policy.protection).await?;
            tracing::info!(%volume, %path, ?policy, "policy of a directory set");
            view_of(&fs, &volume, &settings, &view).await
        })
    }

    fn policy_clear(&self, volume: VolumeName, path: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let dir = self.directory_for_policy(&fs, &path).await?;
            let done = fs.clear_dir_policy(dir).await;
            done.map_err(|error| policy_refused(&volume, &path, error))?;
            tracing::info!(%volume, %path, "policy of a directory removed");
            Ok(())
        })
    }

    fn apply(&self, volume: VolumeName) -> Answer<'_, ApplyView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let Some(view) = fs.applied_policies() else {
                let message = format!("volume {volume} has had no conversion");
                return Err(refuse(ErrorKind::NotFound, message)
                    .hint(format!("`cairn policy apply {volume}` starts one")));
            };
            apply_view(&fs, &volume, view).await
        })
    }

    fn apply_start(&self, volume: VolumeName, start: ApplyStart) -> Answer<'_, ApplyView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let dir = self.directory_for_policy(&fs, &start.path).await?;
            let begun = fs.apply_policies(dir).await;
            let begun = begun.map_err(|error| apply_refused(&volume, &start.path, error))?;
            apply_view(&fs, &volume, begun).await
        })
    }

    fn apply_cancel(&self, volume: VolumeName) -> Answer<'_, ()> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let ended = fs.cancel_apply().await;
            ended
                .map(drop)
                .map_err(|error| apply_refused(&volume, "/", error))
        })
    }
}
