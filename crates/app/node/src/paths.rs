//! Directories of a volume, as the admin API names them: by paths from its root.

use cairn_admin::ControlError;
use cairn_admin::api::ErrorKind;
use cairn_base::Ino;
use cairn_fs::{Credentials, FileKind, Fs, FsError, ROOT};

/// The names of a path, without empty ones.
pub(crate) fn names_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

/// The directory at a path. `only` is the message for a path that is not a directory.
pub(crate) async fn directory_at(fs: &Fs, path: &str, only: &str) -> Result<Ino, ControlError> {
    let invalid = |message: String| ControlError::new(ErrorKind::Invalid, message);
    let mut at = ROOT;
    for name in names_of(path) {
        let absent = || {
            let message = format!("there is no directory {path} in volume {}", fs.name());
            ControlError::new(ErrorKind::NotFound, message)
        };
        if name == "." || name == ".." {
            return Err(invalid(format!(
                "{path}: a path from the volume's root has no {name:?}"
            )));
        }
        match fs.child(&Credentials::ROOT, at, name.as_bytes()).await {
            Ok(Some((ino, FileKind::Directory))) => at = ino,
            Ok(Some(_)) => return Err(invalid(format!("{path} is not a directory: {only}"))),
            Ok(None)
            | Err(FsError::NotFound | FsError::Stale | FsError::NameTooLong | FsError::Invalid) => {
                return Err(absent());
            }
            Err(error @ (FsError::Fenced | FsError::TryLater | FsError::Unreachable(_))) => {
                return Err(ControlError::new(ErrorKind::Unavailable, error.to_string()));
            }
            Err(error) => {
                tracing::error!(%path, %error, "a directory cannot be looked up");
                return Err(ControlError::new(ErrorKind::Internal, error.to_string())
                    .hint("the server's log has details"));
            }
        }
    }
    Ok(at)
}
