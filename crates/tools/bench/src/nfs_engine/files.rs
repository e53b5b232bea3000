//! The files of a run on the server: their names, making the folders, removing them again.
//!
//! Owns: what is taken for ours, so that nothing else is ever removed.
//! Must not know: workloads.
//!
//! ```text
//! TARGET/cairn-bench/FILESET/data.00007           the file of worker 7
//!                           /data.shared          the file of all workers
//!                           /names.00007/         the directory of worker 7
//!                           /names.all/00007-00000123.0
//! ```

use cairn_nfs_client::v3::{ErrorStatus, FileHandle, SetAttributes};
use cairn_nfs_client::{Client, DirEntry, Error, Node};
use futures_util::stream::{self, TryStreamExt};

use crate::data::is_fileset;

pub const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// REMOVEs in flight.
const REMOVE_DEPTH: usize = 64;
/// Names that are listed before they are removed.
const REMOVE_BATCH: usize = 4096;

/// The directory of a worker's names, or of those of all.
pub fn names_dir(worker: Option<u64>) -> String {
    match worker {
        Some(worker) => format!("names.{worker:05}"),
        None => "names.all".to_owned(),
    }
}

/// A name made by a worker. `generation`: how often it was renamed.
pub fn entry_name(worker: u64, index: u64, generation: u64) -> String {
    format!("{worker:05}-{index:08}.{generation}")
}

/// Which worker made a name, if it is one of [`entry_name`].
pub fn worker_of(name: &[u8]) -> Option<u64> {
    let name = str::from_utf8(name).ok()?;
    let (worker, rest) = name.split_once('-')?;
    let (index, generation) = rest.split_once('.')?;
    let number = |text: &str, digits_min: usize| {
        let is_number = text.len() >= digits_min && text.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    number(index, 8)?;
    number(generation, 1)?;
    number(worker, 5)
}

/// Whether a name in the folder of a file set is ours.
fn is_ours(name: &[u8]) -> bool {
    let number = name
        .strip_prefix(b"data.")
        .or_else(|| name.strip_prefix(b"names."));
    number.is_some_and(|number| {
        matches!(number, b"shared" | b"all")
            || (number.len() >= 5 && number.iter().all(u8::is_ascii_digit))
    })
}

/// A directory, made if it is not there.
pub async fn directory(client: &Client, dir: FileHandle, name: &str) -> Result<FileHandle, Error> {
    let name = name.as_bytes();
    if let Some(found) = client.child_if_there(dir, name).await? {
        return Ok(found.handle);
    }
    match client.mkdir(dir, name, with_mode(DIRECTORY_MODE)).await {
        // Another client was faster.
        Err(error) if error.status() == Some(ErrorStatus::Exist) => {
            Ok(client.child(dir, name).await?.handle)
        }
        made => client.made_handle(dir, name, made?).await,
    }
}

pub fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// The first name in a directory that `is_ignored` does not know.
pub async fn first_name(
    client: &Client,
    dir: FileHandle,
    is_ignored: impl Fn(&[u8]) -> bool,
) -> Result<Option<String>, Error> {
    let mut pages = client.dir_pages(dir, false);
    while let Some(page) = pages.next_page().await? {
        let mut names = page.into_iter().map(|entry| entry.name);
        if let Some(name) = names.find(|name| !is_ignored(name)) {
            return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
        }
    }
    Ok(None)
}

/// Removes the files of a directory whose names are `wanted`, however many there are.
pub async fn remove_names(
    client: &Client,
    dir: FileHandle,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<(), Error> {
    loop {
        let names = list(client, dir, &wanted, false).await?;
        if names.is_empty() {
            return Ok(());
        }
        stream::iter(names.iter().map(|entry| Ok::<_, Error>(&entry.name)))
            .try_for_each_concurrent(REMOVE_DEPTH, |name| async move {
                match client.remove(dir, name).await {
                    Err(error) if !is_gone(&error) => Err(error),
                    _ => Ok(()),
                }
            })
            .await?;
        if names.len() < REMOVE_BATCH {
            return Ok(());
        }
    }
}

/// Removes all that runs made in `target`, and the folder if nothing else is in it.
pub async fn remove_run(client: &Client, target: FileHandle, folder: &str) -> Result<(), Error> {
    let Some(run) = client.child_if_there(target, folder.as_bytes()).await? else {
        return Ok(());
    };
    for set in list(client, run.handle, is_fileset, true).await? {
        let Some(dir) = directory_of(&set) else {
            continue;
        };
        remove_set(client, dir).await?;
        remove_dir(client, run.handle, &set.name).await?;
    }
    remove_dir(client, target, folder.as_bytes()).await
}

async fn remove_set(client: &Client, set: FileHandle) -> Result<(), Error> {
    // At most a few for each worker.
    for entry in list(client, set, is_ours, true).await? {
        if let Some(dir) = directory_of(&entry) {
            remove_names(client, dir, |name| worker_of(name).is_some()).await?;
            remove_dir(client, set, &entry.name).await?;
        }
    }
    remove_names(client, set, |name| {
        name.starts_with(b"data.") && is_ours(name)
    })
    .await
}

fn directory_of(entry: &DirEntry) -> Option<FileHandle> {
    let (handle, attributes) = entry.known()?;
    let node = Node { handle, attributes };
    node.is_directory().then_some(handle)
}

/// Removes a directory; somebody else's files in it keep it.
async fn remove_dir(client: &Client, dir: FileHandle, name: &[u8]) -> Result<(), Error> {
    match client.rmdir(dir, name).await {
        Err(error) if !is_gone(&error) && error.status() != Some(ErrorStatus::NotEmpty) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(
        error.status(),
        Some(ErrorStatus::NoEnt | ErrorStatus::Stale)
    )
}

/// At most about [`REMOVE_BATCH`] wanted entries; a directory that is gone has none.
async fn list(
    client: &Client,
    dir: FileHandle,
    wanted: impl Fn(&[u8]) -> bool,
    with_nodes: bool,
) -> Result<Vec<DirEntry>, Error> {
    let mut found = Vec::new();
    let mut pages = client.dir_pages(dir, with_nodes);
    while found.len() < REMOVE_BATCH {
        match pages.next_page().await {
            Ok(Some(page)) => found.extend(page.into_iter().filter(|it| wanted(&it.name))),
            Ok(None) => break,
            Err(error) if is_gone(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::FILESET_LEN_BYTES_MAX;

    #[test]
    fn only_our_names_are_ours() {
        for (name, want) in [
            ("data.00001", true),
            ("data.shared", true),
            ("names.all", true),
            ("names.12345", true),
            ("data.", false),
            ("data.1", false),
            ("data.0000x", false),
            ("holiday.jpg", false),
        ] {
            assert_eq!(is_ours(name.as_bytes()), want, "{name}");
        }
        for (name, want) in [
            (entry_name(7, 123, 0), Some(7)),
            (entry_name(100_000, 1 << 40, 12), Some(100_000)),
            ("00007-123.0".to_owned(), None),
            ("00007-00000123".to_owned(), None),
            ("00007-00000123.x".to_owned(), None),
            ("2024-12345678.9".to_owned(), None),
        ] {
            assert_eq!(worker_of(name.as_bytes()), want, "{name}");
        }
        for (name, want) in [("seq-1", true), ("", false), ("Seq", false), ("a/b", false)] {
            assert_eq!(is_fileset(name.as_bytes()), want, "{name}");
        }
        assert!(!is_fileset(&[b'a'; FILESET_LEN_BYTES_MAX + 1]));
    }
}
