//! The admin token: in the file that the configuration names, else on every disk.
//!
//! Owns: reading and making it, which of several counts, and that all disks have the same one.
//! Must not know: which disks there are, and why one is behind the others.

use std::cmp::Reverse;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cairn_admin::{TOKEN_LEN_BYTES_MAX, Token};
use cairn_base::env::{Entropy, Env};
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;

use crate::error::NodeError;
use crate::ready::folder_of;

/// The token's file in a data folder.
pub const TOKEN_NAME: &str = "admin-token";
/// What it is called until it is whole.
pub const TOKEN_NAME_NEW: &str = "admin-token.new";

/// Reads the token in the file that the configuration names, or makes one that only this user can read.
pub fn load_or_make(path: &Path, entropy: &dyn Entropy) -> Result<Token, NodeError> {
    if let Some(token) = find(path)? {
        return Ok(token);
    }
    let token = Token::from_random(entropy.u128());
    write(path, &token, SystemTime::now())?;
    Ok(token)
}

/// A disk that has the token, or is to have it.
pub struct Place {
    pub folder: PathBuf,
    /// The others went on without it.
    pub is_behind: bool,
}

/// The token where no file is configured: every disk has it, for each may be the next one to go.
pub struct OnDisks {
    pub token: Token,
    /// When it was made, or put there.
    modified: SystemTime,
    /// A disk that does not answer for so long has none.
    hang_after: Duration,
    /// Those with it.
    files: Mutex<Vec<PathBuf>>,
}

/// A file with a token, or what was to be one.
struct TokenFile {
    modified: SystemTime,
    token: Result<Token, NodeError>,
}

impl OnDisks {
    /// Reads the token on disks, or makes one, and gives it to all that have none or another. The file that was
    /// changed last counts, for that is where the operator put another one; those of disks that the others went on
    /// without count only if there are no others.
    ///
    /// Fails if the one that counts is no token, or may not be read: what the operator wants is in it.
    pub async fn load_or_make(
        env: &Env,
        places: &[Place],
        hang_after: Duration,
    ) -> Result<Self, NodeError> {
        let paths: Vec<PathBuf> = places
            .iter()
            .map(|place| place.folder.join(TOKEN_NAME))
            .collect();
        let mut failures = Vec::new();
        let mut found = Vec::with_capacity(paths.len());
        for looked in in_each(env, hang_after, &paths, look).await {
            found.push(looked.unwrap_or_else(|error| {
                failures.push(error);
                None
            }));
        }
        let order = |index: usize, file: &TokenFile| {
            let is_behind = places.get(index).is_some_and(|place| place.is_behind);
            (is_behind, Reverse(file.modified))
        };
        let first = found
            .iter()
            .enumerate()
            .filter_map(|(index, file)| Some((order(index, file.as_ref()?), index)))
            .min()
            .map(|(_, index)| index);
        let (token, modified) = match first.and_then(|index| found.get_mut(index)?.take()) {
            Some(file) => (file.token?, file.modified),
            // A new one would shut out whoever has that which cannot be read.
            None if !failures.is_empty() => return Err(failures.swap_remove(0)),
            None => (Token::from_random(env.entropy.u128()), SystemTime::now()),
        };
        for error in failures {
            tracing::warn!(%error, "the token of another disk is used");
        }
        let (mut there, mut lacking) = (Vec::new(), Vec::new());
        for (index, (path, found)) in paths.iter().zip(found).enumerate() {
            let held = found.map(|file| file.token.ok());
            let is_it = |held: &Token| held.as_str() == token.as_str();
            if first == Some(index)
                || held
                    .as_ref()
                    .is_some_and(|held| held.as_ref().is_some_and(is_it))
            {
                there.push(path.clone());
                continue;
            }
            if held.is_some() {
                tracing::warn!(path = %path.display(), "this admin token is replaced by that of another disk");
            }
            lacking.push(path.clone());
        }
        let all = Self {
            token,
            modified,
            hang_after,
            files: Mutex::new(there),
        };
        let mut failures = all.give(env, &lacking).await;
        if all.files().is_empty() && !failures.is_empty() {
            return Err(failures.swap_remove(0));
        }
        for error in failures {
            tracing::warn!(%error, "this disk does not have the token");
        }
        Ok(all)
    }

    /// Writes these files. Says what went wrong.
    pub async fn give(&self, env: &Env, paths: &[PathBuf]) -> Vec<NodeError> {
        let (token, modified) = (self.token.clone(), self.modified);
        let write = move |path: &Path| write(path, &token, modified);
        let given = in_each(env, self.hang_after, paths, write).await;
        let mut failures = Vec::new();
        let mut files = self.files.lock();
        for (path, given) in paths.iter().zip(given) {
            // Of a disk that was there before.
            files.retain(|file| file != path);
            match given {
                Ok(()) => files.push(path.clone()),
                Err(error) => failures.push(error),
            }
        }
        drop(files);
        failures
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.files.lock().clone()
    }
}

/// Does the same with several files, each on a thread of its own: a disk may hang.
async fn in_each<T: Send + 'static>(
    env: &Env,
    hang_after: Duration,
    paths: &[PathBuf],
    work: impl Fn(&Path) -> Result<T, NodeError> + Clone + Send + 'static,
) -> Vec<Result<T, NodeError>> {
    let each = paths.iter().map(|path| {
        let (at, work) = (path.clone(), work.clone());
        let working = tokio::task::spawn_blocking(move || work(&at));
        async move {
            match select(working, env.clock.sleep(hang_after)).await {
                Either::Left((Ok(done), _)) => done,
                Either::Left((Err(error), _)) => Err(failed(path, &error)),
                Either::Right(_) => {
                    let why = format!("no answer within {} s", hang_after.as_secs());
                    Err(failed(path, &why))
                }
            }
        }
    });
    join_all(each).await
}

/// The disk does not do it; it may when it is tried again.
fn failed(path: &Path, why: &dyn std::fmt::Display) -> NodeError {
    NodeError::TokenDisk {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// What an operator has to put right.
fn wrong(path: &Path, why: &dyn std::fmt::Display) -> NodeError {
    NodeError::Token {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

fn failed_io(path: &Path, error: &std::io::Error) -> NodeError {
    match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::InvalidData => wrong(path, error),
        _ => failed(path, error),
    }
}

/// What is in a file, if there is one. Fails if its disk does not say.
fn look(path: &Path) -> Result<Option<TokenFile>, NodeError> {
    let metadata = match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(|error| failed_io(path, &error))?,
    };
    let modified = metadata
        .modified()
        .map_err(|error| failed_io(path, &error))?;
    // An error of the disk says nothing of what the operator wants.
    let token = match std::fs::File::open(path).and_then(|mut file| file.read(&mut [0])) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::IsADirectory
            ) =>
        {
            return Err(failed_io(path, &error));
        }
        Err(error) => Err(failed_io(path, &error)),
        Ok(_) => read(path),
    };
    warn_if_open(path);
    Ok(Some(TokenFile { modified, token }))
}

/// The token in a file, if there is one.
fn find(path: &Path) -> Result<Option<Token>, NodeError> {
    if !path.try_exists().map_err(|error| failed_io(path, &error))? {
        return Ok(None);
    }
    let token = read(path)?;
    warn_if_open(path);
    Ok(Some(token))
}

/// Reads a token file.
pub fn read(path: &Path) -> Result<Token, NodeError> {
    let len_bytes_max = 2 * TOKEN_LEN_BYTES_MAX;
    let mut text = String::new();
    // Bounded by what is read, not by what the system says: pipes and devices have no length.
    let read = std::fs::File::open(path).and_then(|file| {
        file.take(len_bytes_max as u64 + 1)
            .read_to_string(&mut text)
    });
    let len_bytes = read.map_err(|error| failed_io(path, &error))?;
    if len_bytes > len_bytes_max {
        let why = format!("it has more than {len_bytes_max} bytes, which is no token");
        return Err(wrong(path, &why));
    }
    Token::parse(&text).map_err(|error| wrong(path, &error))
}

/// The permissions of a file that others than its owner can use, if it is one.
fn open_mode(path: &Path) -> Option<u32> {
    let mode = path.metadata().ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// The file may be the operator's, and how a secret gets to a machine is not ours to decide.
fn warn_if_open(path: &Path) {
    if let Some(mode) = open_mode(path) {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine can use the file of the admin token"
        );
    }
}

fn write(path: &Path, token: &Token, modified: SystemTime) -> Result<(), NodeError> {
    write_whole(path, token, modified).map_err(|error| failed_io(path, &error))
}

/// Puts the whole file there at once: half a token would keep the next start from going on.
///
/// `modified`: when the token was made or changed, so that a copy does not count before what was changed since.
fn write_whole(path: &Path, token: &Token, modified: SystemTime) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // Of a start that broke off. What another user put there is not followed.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    writeln!(file, "{}", token.as_str())?;
    file.set_modified(modified)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    std::fs::File::open(folder_of(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use cairn_base::real::OsEntropy;
    use cairn_testkit::TestWorld;

    use super::*;

    const HANG_AFTER: Duration = Duration::from_secs(30);
    const ONE: &str = "one-0123456789abcdef";
    const OTHER: &str = "other-0123456789abcdef";

    fn on(folder: &Path) -> String {
        let token = read(&folder.join(TOKEN_NAME)).unwrap();
        token.as_str().to_owned()
    }

    fn place(folder: &Path) -> Place {
        Place {
            folder: folder.to_owned(),
            is_behind: false,
        }
    }

    /// What is found in folders where these files are, each changed at some time, and in all of them after that.
    async fn check(files: &[Option<(&str, u64)>], behind: &[usize], want: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        let mut places = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let folder = root.path().join(index.to_string());
            std::fs::create_dir(&folder).unwrap();
            if let Some((text, seconds)) = file {
                let path = folder.join(TOKEN_NAME);
                std::fs::write(&path, text).unwrap();
                let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.set_modified(modified).unwrap();
            }
            places.push(Place {
                folder,
                is_behind: behind.contains(&index),
            });
        }
        let world = TestWorld::new(1);
        let found = OnDisks::load_or_make(&world.env, &places, HANG_AFTER).await;
        let found = found.ok().map(|found| found.token.as_str().to_owned());
        assert_eq!(found.as_deref(), want, "{files:?}");
        for place in places.iter().filter(|_| want.is_some()) {
            assert_eq!(Some(on(&place.folder).as_str()), want, "{files:?}");
        }
    }

    #[tokio::test]
    async fn the_token_changed_last_counts_and_all_disks_get_it() {
        check(&[Some((ONE, 5)), None, None], &[], Some(ONE)).await;
        check(&[None, None, Some((ONE, 5))], &[], Some(ONE)).await;
        check(&[Some((ONE, 5)), Some((OTHER, 5))], &[], Some(ONE)).await;
        check(&[Some((ONE, 5)), Some((OTHER, 6)), None], &[], Some(OTHER)).await;
        // A disk that was away brings none back.
        check(&[Some((ONE, 9)), Some((OTHER, 6))], &[0], Some(OTHER)).await;
        check(&[Some((ONE, 9)), None], &[0], Some(ONE)).await;
        // What the operator meant is not guessed; what is older than that which counts is replaced.
        check(&[Some((ONE, 5)), Some(("short", 6))], &[], None).await;
        check(
            &[Some((ONE, 5)), Some(("short", 4)), Some(("", 3))],
            &[],
            Some(ONE),
        )
        .await;
        check(&[Some((ONE, 5)), Some(("short", 6))], &[1], Some(ONE)).await;
        check(&[Some(("short", 5)), None], &[], None).await;
    }

    #[tokio::test]
    async fn a_token_is_made_once_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let world = TestWorld::new(1);
        let folders = ["a", "b"].map(|name| root.path().join(name));
        let (first, second) = (&folders[0], &folders[1]);
        let places = [place(first), place(second)];
        // A disk that takes nothing does not keep the others from having it.
        assert!(
            OnDisks::load_or_make(&world.env, &places, HANG_AFTER)
                .await
                .is_err()
        );
        std::fs::create_dir(second).unwrap();
        let made = OnDisks::load_or_make(&world.env, &places, HANG_AFTER)
            .await
            .unwrap();
        let path = second.join(TOKEN_NAME);
        assert_eq!(made.files(), std::slice::from_ref(&path));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open_mode(&path), None);
        std::fs::create_dir(first).unwrap();
        assert!(
            made.give(&world.env, &[first.join(TOKEN_NAME)])
                .await
                .is_empty()
        );
        assert_eq!(made.files(), [path, first.join(TOKEN_NAME)]);
        let found = OnDisks::load_or_make(&world.env, &places, HANG_AFTER)
            .await
            .unwrap();
        assert_eq!(found.token.as_str(), made.token.as_str());
        assert_eq!(on(first), made.token.as_str());
    }

    #[test]
    fn a_configured_file_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let made = load_or_make(&path, &OsEntropy).unwrap();
        let found = load_or_make(&path, &OsEntropy).unwrap();
        assert_eq!(found.as_str(), made.as_str());
        std::fs::write(&path, "short").unwrap();
        assert!(load_or_make(&path, &OsEntropy).is_err());
        assert!(load_or_make(Path::new("/no/such/folder/t"), &OsEntropy).is_err());
    }

    /// A disk that is added after the operator changed the token, and before the restart, does not bring the old one
    /// back.
    #[tokio::test]
    async fn a_copy_is_not_newer_than_what_it_copies() {
        let root = tempfile::tempdir().unwrap();
        let [first, added] = ["first", "added"].map(|name| root.path().join(name));
        for folder in [&first, &added] {
            std::fs::create_dir(folder).unwrap();
        }
        let world = TestWorld::new(1);
        for old in [None, Some(ONE)] {
            if let Some(old) = old {
                std::fs::write(first.join(TOKEN_NAME), old).unwrap();
            }
            let served = OnDisks::load_or_make(&world.env, &[place(&first)], HANG_AFTER).await;
            let served = served.unwrap_or_else(|error| panic!("{error}"));
            let changed = first.join(TOKEN_NAME);
            std::fs::write(&changed, OTHER).unwrap();
            // The clock of a file system lags by some milliseconds.
            let changed = OpenOptions::new().write(true).open(changed).unwrap();
            let later = served.modified + Duration::from_secs(1);
            changed.set_modified(later).unwrap();
            let failures = served.give(&world.env, &[added.join(TOKEN_NAME)]).await;
            assert!(failures.is_empty());
            let places = [place(&first), place(&added)];
            let next = OnDisks::load_or_make(&world.env, &places, HANG_AFTER).await;
            let next = next.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(next.token.as_str(), OTHER);
            assert_eq!(on(&added), OTHER);
        }
    }

    #[test]
    fn a_start_that_broke_off_leaves_no_half_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        // The next start finds what the last one had begun, or somebody's link to elsewhere.
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(TOKEN_NAME_NEW)).unwrap();
        let made = load_or_make(&path, &OsEntropy).unwrap();
        assert_eq!(on(folder.path()), made.as_str());
        assert!(!elsewhere.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(open_mode(&path), None);
    }

    #[test]
    fn a_token_that_others_can_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKEN_NAME);
        std::fs::write(&path, ONE).unwrap();
        for (mode, want) in [
            (0o600, None),
            (0o400, None),
            (0o640, Some(0o640)),
            (0o604, Some(0o604)),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open_mode(&path), want, "{mode:o}");
            assert!(load_or_make(&path, &OsEntropy).is_ok());
        }
    }

    /// The system says of a pipe that it has no bytes.
    #[test]
    fn no_more_is_read_than_a_token_may_have() {
        let folder = tempfile::tempdir().unwrap();
        let cases: [(&str, String, bool); 3] = [
            ("a token", ONE.to_owned(), true),
            ("spaces around it", format!("{ONE:>512}"), true),
            ("too much", format!("{ONE}{}", " ".repeat(1 << 20)), false),
        ];
        for (name, text, is_token) in cases {
            let path = folder.path().join(name);
            let (cwd, mode) = (rustix::fs::CWD, rustix::fs::Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(cwd, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            let found = std::thread::scope(|scope| {
                // What does not fit into the pipe is written until nobody reads any more.
                scope.spawn(|| std::fs::write(&path, &text));
                read(&path)
            });
            match found {
                Ok(token) => assert_eq!((token.as_str(), is_token), (ONE, true), "{name}"),
                Err(error) => {
                    assert!(!is_token, "{name}: {error}");
                    assert!(error.to_string().contains("more than"), "{name}: {error}");
                }
            }
        }
    }
}
