//! Keeps the ready files true: the admin token that they name is on a disk that works.
//!
//! Must not know: what else the files say, and how they are written (`ready`); which disks have the token (`token`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::ReadyFile;
use futures_util::future::{Either, select};

use crate::node::Inner;
use crate::ready;
use crate::token::OnDisks;

/// How often it is looked whether the disk with the token still works.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// What could not be written is tried again after so long: each failure is a line in the log.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The files that say where the server is, and what they say.
#[derive(Default)]
pub struct Announced {
    ready: Option<ReadyFile>,
    files: Vec<PathBuf>,
}

impl Announced {
    pub fn new(ready: ReadyFile, files: Vec<PathBuf>) -> Self {
        Self {
            ready: Some(ready),
            files,
        }
    }

    pub fn into_files(self) -> Vec<PathBuf> {
        self.files
    }

    /// What is to be written, and where, if the token that was named is none of those that are `there`.
    fn renewed(&self, there: &[PathBuf]) -> Option<(ReadyFile, Vec<PathBuf>)> {
        let ready = self.ready.as_ref()?;
        let mut there = there.iter().map(|path| path.display().to_string());
        let first = there.next()?;
        if first == ready.token_file || there.any(|path| path == ready.token_file) {
            return None;
        }
        // What is beside it is gone with its disk.
        let lost = Path::new(&ready.token_file);
        let files = self
            .files
            .iter()
            .filter(|file| file.parent() != lost.parent());
        let ready = ReadyFile {
            token_file: first,
            certificate: ready.certificate.clone(),
            ..ready.clone()
        };
        Some((ready, files.cloned().collect()))
    }
}

/// Starts the task; it ends with the node.
pub fn tend(inner: &Arc<Inner>) {
    if inner.token.is_none() {
        return;
    }
    inner.every("ready files", LOOK_INTERVAL, |inner| async move {
        if !inner.announce_token().await {
            let clock = Arc::clone(&inner.env.clock);
            drop(inner);
            clock.sleep(RETRY_AFTER).await;
        }
    });
}

impl Inner {
    /// The file with the admin token that others are told of.
    pub fn token_path(&self) -> PathBuf {
        let configured = self.config.token_file.clone();
        let path = configured.or_else(|| self.token_paths().into_iter().next());
        path.unwrap_or_default()
    }

    /// Files with the token, on the disks that work.
    fn token_paths(&self) -> Vec<PathBuf> {
        let mut disks = self.pool.disks();
        disks.retain(|disk| !disk.health().failed);
        let mut paths = self.token.as_ref().map(OnDisks::files).unwrap_or_default();
        paths.retain(|path| {
            let mut folders = disks.iter().map(|disk| disk.disk().folder());
            folders.any(|folder| folder == path.parent())
        });
        // Always the same one, as long as it is there.
        paths.sort_by_key(|path| {
            let mut named = self.named.iter();
            named
                .position(|folder| Some(folder.as_path()) == path.parent())
                .unwrap_or(usize::MAX)
        });
        paths
    }

    /// Names another file with the token if the disk with the one that is named does not work any more, or left. False
    /// if that is to be tried again.
    pub async fn announce_token(&self) -> bool {
        let there = self.token_paths();
        let renewed = self.announced.lock().renewed(&there);
        let Some((ready, files)) = renewed else {
            return true;
        };
        let (told, at) = (ready.clone(), files.clone());
        let announced = Arc::clone(&self.announced);
        let writing = tokio::task::spawn_blocking(move || {
            let mut all = true;
            for file in at {
                if let Err(error) = ready::write(&file, &told) {
                    tracing::warn!(path = %file.display(), %error, "this file names an admin token that is gone");
                    all = false;
                }
                if announced.lock().ready.is_none() {
                    // The server ended meanwhile, and has removed them.
                    ready::remove(&file);
                }
            }
            all
        });
        // One of the folders may hang: it would take one thread after the other.
        let written = select(writing, self.env.clock.sleep(self.config.hang_after)).await;
        let is_over = matches!(written, Either::Left((Ok(true), _)) | Either::Right(_));
        if is_over {
            let mut announced = self.announced.lock();
            // Else the server ends, and the files with it.
            if announced.ready.is_some() {
                *announced = Announced::new(ready, files);
            }
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::api::{AdminView, NfsReady};

    use super::*;

    #[test]
    fn another_token_is_named_when_the_one_that_was_is_gone() {
        let ready = ReadyFile {
            pid: 7,
            nfs: NfsReady {
                address: "127.0.0.1".to_owned(),
                port: 2049,
            },
            admin: AdminView {
                url: "http://127.0.0.1:8049".to_owned(),
            },
            token_file: "/a/admin-token".to_owned(),
            certificate: None,
            volumes: Vec::new(),
        };
        let files = ["/run/server.json", "/a/server.json"].map(PathBuf::from);
        let announced = Announced::new(ready.clone(), files.to_vec());
        let paths = ["/a/admin-token", "/b/admin-token", "/c/admin-token"].map(PathBuf::from);
        assert_eq!(announced.renewed(&paths), None);
        assert_eq!(announced.renewed(&[]), None, "better that than nothing");
        let want = ReadyFile {
            token_file: "/b/admin-token".to_owned(),
            certificate: None,
            ..ready
        };
        let renewed = announced.renewed(&paths[1..]);
        assert_eq!(renewed, Some((want.clone(), files[..1].to_vec())));
        let announced = Announced::new(want, files[..1].to_vec());
        assert_eq!(announced.renewed(&paths[1..]), None);
        assert_eq!(Announced::default().renewed(&paths), None);
    }
}
