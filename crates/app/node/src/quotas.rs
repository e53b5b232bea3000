//! Answers the admin API about quotas.

use cairn_admin::api::ErrorKind;
use cairn_admin::quotas::{
    QUOTA_USAGES_MAX, QuotaAt, QuotaControl, QuotaLimitView, QuotaList, QuotaOf, QuotaSet,
    QuotaView,
};
use cairn_admin::{Answer, ControlError};
use cairn_base::Ino;
use cairn_config::VolumeName;
use cairn_formats::settings::SizeLimit;
use cairn_fs::{
    Fs, FsError, QUOTA_COUNT_MAX, QUOTA_DEPTH_MAX, QuotaKind, QuotaLimit, QuotaLimits, ROOT,
};

use crate::control::{Controller, no_room, refusal};
use crate::paths::names_of;

const GRACE_SECONDS: u64 = 7 * 24 * 60 * 60;

fn invalid(message: impl Into<String>) -> ControlError {
    ControlError::new(ErrorKind::Invalid, message.into())
}

pub(crate) fn refused(path: &str, error: FsError) -> ControlError {
    let refuse = |kind, message: String| ControlError::new(kind, message);
    match error {
        FsError::NotFound | FsError::Stale => {
            refuse(ErrorKind::NotFound, format!("there is no quota at {path}"))
                .hint("`cairn quota list VOLUME` shows all quotas")
        }
        FsError::TooManyLinks => refuse(
            ErrorKind::Conflict,
            format!(
                "a volume has at most {QUOTA_COUNT_MAX} quotas, and at most {QUOTA_DEPTH_MAX} nested directories with quotas"
            ),
        ),
        FsError::Fenced | FsError::TryLater | FsError::Unreachable(_) => {
            refuse(ErrorKind::Unavailable, error.to_string())
        }
        FsError::Invalid => {
            invalid("a quota needs a limit: on bytes or files; hard, soft or advisory")
        }
        FsError::NoSpace | FsError::QuotaExceeded => no_room(error.to_string()),
        error => {
            tracing::error!(%path, %error, "a change of quotas failed");
            refuse(ErrorKind::Internal, error.to_string()).hint("the server's log has details")
        }
    }
}

fn kind_of(of: QuotaOf) -> QuotaKind {
    match of {
        QuotaOf::All => QuotaKind::Tree,
        QuotaOf::User => QuotaKind::User,
        QuotaOf::Group => QuotaKind::Group,
        QuotaOf::DefaultUser => QuotaKind::DefaultUser,
        QuotaOf::DefaultGroup => QuotaKind::DefaultGroup,
    }
}

fn of_kind(kind: QuotaKind) -> QuotaOf {
    match kind {
        QuotaKind::Tree => QuotaOf::All,
        QuotaKind::User => QuotaOf::User,
        QuotaKind::Group => QuotaOf::Group,
        QuotaKind::DefaultUser => QuotaOf::DefaultUser,
        QuotaKind::DefaultGroup => QuotaOf::DefaultGroup,
    }
}

fn limit_of(view: &QuotaLimitView) -> QuotaLimit {
    QuotaLimit {
        hard: view.hard,
        soft: view.soft,
        advisory: view.advisory,
    }
}

fn view_of_limit(limit: &QuotaLimit) -> QuotaLimitView {
    QuotaLimitView {
        hard: limit.hard,
        soft: limit.soft,
        advisory: limit.advisory,
    }
}

fn check_limit(what: &str, limit: &QuotaLimitView) -> Result<(), ControlError> {
    match (limit.soft, limit.hard) {
        (Some(soft), Some(hard)) if soft > hard => Err(invalid(format!(
            "the soft limit on {what} is above the hard limit, and would never be reached"
        ))),
        _ => Ok(()),
    }
}

/// The id of the user or group, if the quota has one.
fn id_of(of: QuotaOf, id: Option<u32>) -> Result<u32, ControlError> {
    match (of.has_id(), id) {
        (true, Some(id)) => Ok(id),
        (false, None) => Ok(0),
        (true, None) => Err(invalid(format!("{} needs an id", of.name()))),
        (false, Some(_)) => Err(invalid(format!("{} has no id", of.name()))),
    }
}

async fn directory_at(fs: &Fs, path: &str) -> Result<Ino, ControlError> {
    let only = "quotas are for directories, users and groups";
    crate::paths::directory_at(fs, path, only).await
}

async fn view_of(fs: &Fs, quota: cairn_fs::QuotaView) -> Result<QuotaView, ControlError> {
    let path = fs.quota_path(quota.key.tree).await;
    let path = path.map_err(|error| refused("", error))?;
    let path = match path.is_empty() {
        true => "/".to_owned(),
        false => String::from_utf8_lossy(&path).into_owned(),
    };
    let of = of_kind(quota.key.kind);
    let ends = |since: Option<u64>| Some(since?.saturating_add(quota.limits.grace_seconds));
    Ok(QuotaView {
        volume: fs.name().to_owned(),
        path,
        of,
        id: of.has_id().then_some(quota.key.id),
        bytes: view_of_limit(&quota.limits.bytes),
        files: view_of_limit(&quota.limits.files),
        physical: quota.limits.is_physical,
        grace_seconds: quota.limits.grace_seconds,
        inherited: quota.is_default,
        used_bytes: quota.used_bytes(),
        logical_bytes: quota.used.file_bytes,
        physical_bytes: quota.used.stored_bytes,
        used_files: quota.used.inodes,
        bytes_grace_ends_seconds: ends(quota.since.bytes_since),
        files_grace_ends_seconds: ends(quota.since.files_since),
        counting: quota.is_counting,
        refusals: quota.refusals,
    })
}

impl Controller {
    /// The volume's hard limit on bytes is one of its settings, which its class of service uses, too.
    async fn set_volume_limit(
        &self,
        name: &VolumeName,
        limit: SizeLimit,
    ) -> Result<(), ControlError> {
        let set = self.inner.pool.volume_set(name, |volume| {
            volume.settings.size_limit = limit;
            if limit.is_none() {
                volume.settings.autogrow = limit;
            }
        });
        set.await.map_err(refusal)
    }

    fn volume_limit(&self, name: &VolumeName) -> Option<u64> {
        let state = self.inner.pool.state();
        let volume = state.volume(name).ok()?;
        volume.settings.size_limit.bytes()
    }
}

impl QuotaControl for Controller {
    fn quotas(&self, volume: VolumeName) -> Answer<'_, QuotaList> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            self.require_own_store(&fs, "it has no quotas yet")?;
            let mut quotas = Vec::new();
            for quota in fs.quotas() {
                quotas.push(view_of(&fs, quota).await?);
            }
            quotas.sort_by(|a, b| (&a.path, a.of, a.id).cmp(&(&b.path, b.of, b.id)));
            Ok(QuotaList { quotas })
        })
    }

    fn quota_usages(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, QuotaList> {
        Box::pin(async move {
            let kind = match at.of {
                QuotaOf::User | QuotaOf::Group if at.id.is_none() => kind_of(at.of),
                _ => {
                    return Err(invalid(
                        "usage is listed for users (of=user) or groups (of=group)",
                    ));
                }
            };
            let fs = self.fs_of(&volume)?;
            self.require_own_store(&fs, "it has no quotas yet")?;
            let dir = directory_at(&fs, &at.path).await?;
            if fs.quota(dir, QuotaKind::Tree, 0).is_none() {
                return Err(refused(&at.path, FsError::NotFound));
            }
            let mut quotas = Vec::new();
            for quota in fs.usages_in(dir, kind, QUOTA_USAGES_MAX) {
                quotas.push(view_of(&fs, quota).await?);
            }
            quotas.sort_by_key(|quota| quota.id);
            Ok(QuotaList { quotas })
        })
    }

    fn quota(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, QuotaView> {
        Box::pin(async move {
            let id = id_of(at.of, at.id)?;
            let fs = self.fs_of(&volume)?;
            self.require_own_store(&fs, "it has no quotas yet")?;
            let dir = directory_at(&fs, &at.path).await?;
            let quota = fs.quota(dir, kind_of(at.of), id);
            view_of(
                &fs,
                quota.ok_or_else(|| refused(&at.path, FsError::NotFound))?,
            )
            .await
        })
    }

    fn quota_set(&self, volume: VolumeName, set: QuotaSet) -> Answer<'_, QuotaView> {
        Box::pin(async move {
            check_limit("bytes", &set.bytes)?;
            check_limit("files", &set.files)?;
            let id = id_of(set.of, set.id)?;
            let fs = self.fs_of(&volume)?;
            self.require_own_store(&fs, "it has no quotas yet")?;
            let dir = directory_at(&fs, &set.path).await?;
            let mut limits = QuotaLimits {
                bytes: limit_of(&set.bytes),
                files: limit_of(&set.files),
                is_physical: set.physical,
                grace_seconds: set.grace_seconds.unwrap_or(GRACE_SECONDS),
            };
            if limits.bytes.is_none() && limits.files.is_none() {
                return Err(refused(&set.path, FsError::Invalid));
            }
            let kind = kind_of(set.of);
            let is_volume = dir == ROOT && kind == QuotaKind::Tree;
            if is_volume {
                if set.physical {
                    return Err(invalid(
                        "a volume's own quota counts bytes of files, because its class of service uses them as well",
                    )
                    .hint("leave out --physical; only quotas of directories, users and groups can count stored bytes"));
                }
                let limit = limits.bytes.hard.take();
                let limit = limit.map_or(SizeLimit::None, SizeLimit::Bytes);
                if limit.bytes() != self.volume_limit(&volume) {
                    self.set_volume_limit(&volume, limit).await?;
                }
            }
            if limits.bytes.is_none() && limits.files.is_none() {
                // This quota is only in the volume's settings.
                match fs.remove_quota(dir, kind, id).await {
                    Ok(()) | Err(FsError::NotFound) => {}
                    Err(error) => return Err(refused(&set.path, error)),
                }
            } else {
                let path: String = names_of(&set.path).map(|name| format!("/{name}")).collect();
                let set_now = fs.set_quota(dir, kind, id, limits, path.as_bytes());
                set_now.await.map_err(|error| refused(&set.path, error))?;
            }
            tracing::info!(%volume, path = %set.path, of = set.of.name(), id, ?limits, "quota set");
            let quota = fs.quota(dir, kind, id);
            view_of(
                &fs,
                quota.ok_or_else(|| refused(&set.path, FsError::NotFound))?,
            )
            .await
        })
    }

    fn quota_remove(&self, volume: VolumeName, at: QuotaAt) -> Answer<'_, ()> {
        Box::pin(async move {
            let id = id_of(at.of, at.id)?;
            let fs = self.fs_of(&volume)?;
            self.require_own_store(&fs, "it has no quotas yet")?;
            let dir = directory_at(&fs, &at.path).await?;
            let kind = kind_of(at.of);
            let is_volume = dir == ROOT && kind == QuotaKind::Tree;
            let had_limit = is_volume && self.volume_limit(&volume).is_some();
            if had_limit {
                self.set_volume_limit(&volume, SizeLimit::None).await?;
            }
            match fs.remove_quota(dir, kind, id).await {
                Ok(()) => {}
                Err(FsError::NotFound) if had_limit => {}
                Err(error) => return Err(refused(&at.path, error)),
            }
            tracing::info!(%volume, path = %at.path, of = at.of.name(), id, "quota removed");
            Ok(())
        })
    }
}
