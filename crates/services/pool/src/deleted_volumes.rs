//! Files left on disks of volumes that are no more, or never were whole.
//!
//! Owns: which volumes' files may be deleted, when, and that clients come first.
//! Must not know: how shards (`segment`) or the files of metadata (the host) are deleted.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_formats::pool_file::PoolState;
use futures_util::future::select;

use crate::pool::Pool;

/// How often work that may take very long looks whether the pool stops.
const STOP_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The verdict on the files of a volume that were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// The volume is there, or may be for all we know.
    Kept,
    /// Nobody here lists it, and a pool file that was not read may.
    Unsure,
    /// It was deleted, or not even made.
    Deleted,
}

/// `is_whole`: the start found all disks, each with a pool file that could be read.
fn finding(id: VolumeId, state: &PoolState, is_whole: bool) -> Finding {
    let is_listed = state.volumes.iter().any(|volume| volume.id == id);
    // An id that this pool file never gave is of a volume that it does not know yet: it may be an old copy.
    if is_listed || id >= state.volume_next {
        return Finding::Kept;
    }
    let was_deleted = state.deleted.iter().any(|deleted| deleted.id == id);
    match was_deleted || is_whole {
        true => Finding::Deleted,
        false => Finding::Unsure,
    }
}

impl Pool {
    /// Starts to delete what deleted or half-made volumes left; ends with the pool. It may take very long, and no volume
    /// waits for it: their ids are never given again.
    pub fn remove_deleted_volumes_later(self: &Arc<Self>) {
        let pool = Arc::clone(self);
        // That of the start, so that volumes which come and go meanwhile are none of these.
        let state = self.state();
        let task = async move {
            let stopping = async {
                while !pool.is_stopping() {
                    pool.env.clock.sleep(STOP_LOOK_INTERVAL).await;
                }
            };
            // The next start removes the rest.
            select(pin!(pool.remove_deleted_volumes(&state)), pin!(stopping)).await;
        };
        self.env.spawner.spawn("deleted volumes", Box::pin(task));
    }

    async fn remove_deleted_volumes(&self, state: &PoolState) {
        let mut found = BTreeSet::new();
        for disk in self.disks() {
            match disk.volumes().await {
                Ok(volumes) => found.extend(volumes),
                Err(error) => tracing::warn!(%error, "the search for deleted volumes failed"),
            }
            match self.host.volumes_with_metadata(disk.disk()).await {
                Some(volumes) => found.extend(volumes),
                None => {
                    tracing::warn!(
                        disk = disk.label(),
                        "the search for deleted volumes got no answer"
                    );
                }
            }
        }
        for id in found {
            match finding(id, state, self.is_whole) {
                Finding::Kept => {}
                Finding::Unsure => {
                    tracing::warn!(%id, "no pool file on this server lists a volume with this id; its files stay until a start with all disks and their pool files");
                }
                Finding::Deleted => {
                    if let Some(seats) = &self.seats
                        && !seats.is_deleted(id).await
                    {
                        continue;
                    }
                    tracing::info!(%id, "removing the remains of a deleted volume");
                    self.remove_files(id).await;
                }
            }
        }
    }

    /// Deletes what there is of a volume on the disks that answer. Clients come first: deleting files by the thousand
    /// keeps disks busy for long, and nobody waits for the end of it.
    pub async fn remove_files(&self, id: VolumeId) {
        let swept = self.store.remove_volume(id, &self.deletion_pace).await;
        if swept.errors > 0 {
            tracing::warn!(%id, errors = swept.errors, "some shards remain until the next start");
        }
        // One that failed may hang, and one that does not answer does; the next start looks at it.
        let mut disks = self.disks();
        disks.retain(|disk| !disk.is_avoided() && !disk.is_silent());
        for disk in &disks {
            // Where nothing is left of it no start has to look for it. A disk that is away keeps its marker until then.
            if let Err(error) = disk.forget_volume(id).await {
                tracing::warn!(%id, disk = disk.label(), %error, "the next start looks for the volume's shards again");
            }
        }
        let disks = disks.iter().map(|disk| Arc::clone(disk.disk())).collect();
        self.host.remove_metadata(disks, id).await;
    }
}

#[cfg(test)]
mod tests {
    use cairn_formats::testing::example_pool;

    use super::*;

    #[test]
    fn only_what_was_surely_deleted_is_removed() {
        let mut state = example_pool(3);
        let listed = state.volumes[0].id;
        let deleted = state.take_volume_id();
        let half_made = state.take_volume_id();
        let unknown = state.volume_next;
        state.volumes.push({
            let mut volume = state.volumes[0].clone();
            volume.id = deleted;
            volume
        });
        state.delete_volume(deleted);
        let cases = [
            ("it is there", listed, [Finding::Kept; 2]),
            ("it was deleted", deleted, [Finding::Deleted; 2]),
            (
                "nobody lists it",
                half_made,
                [Finding::Deleted, Finding::Unsure],
            ),
            ("of a newer pool file", unknown, [Finding::Kept; 2]),
        ];
        for (name, id, want) in cases {
            let got = [true, false].map(|is_whole| finding(id, &state, is_whole));
            assert_eq!(got, want, "{name}");
        }
    }
}
