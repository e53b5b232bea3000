//! Which disk of a node has the state of a volume's metadata: one choice for servers and for nodes of a cluster.
//!
//! Owns: which device classes are better for state and logs, and which of them a state should move to.
//! Must not know: how a state moves (`metadata`), I/O.

use std::cmp::Reverse;

use cairn_base::disk::DiskSpace;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Media};
use cairn_formats::pool_file::PoolDisk;

/// A disk takes states for its speed only while so large a part of it is free: a tenth.
const ROOM_PART: u64 = 10;

/// How good a disk is for metadata; the best is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing but logs and metadata is on it.
    Journal,
    /// A data disk that somebody called `ssd` or `nvme`.
    Flash,
    /// Any other: also one of which nobody said what it is.
    Other,
}

impl Kind {
    pub fn of(member: &PoolDisk) -> Self {
        match (member.role.is_data(), member.media) {
            (false, _) => Self::Journal,
            (true, Some(Media::Ssd | Media::Nvme)) => Self::Flash,
            (true, Some(Media::Hdd) | None) => Self::Other,
        }
    }

    /// As a disk with so much room counts: a data disk that is nearly full is no better than others. Log devices have
    /// nothing else to do. `space` asks the host.
    pub fn with_room(self, space: impl FnOnce() -> Option<DiskSpace>) -> Self {
        match self {
            Self::Flash if !has_room(space()) => Self::Other,
            kind => kind,
        }
    }
}

fn has_room(space: Option<DiskSpace>) -> bool {
    space.is_some_and(|space| space.free_bytes >= space.total_bytes / ROOM_PART)
}

/// A disk that works and takes metadata of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataDisk {
    pub disk: DiskId,
    pub kind: Kind,
    /// `None`: it does not say.
    pub space: Option<DiskSpace>,
}

/// The disks of a better kind than the one that a state is on, `at`, and with room for it: the best kind first, of equals the one
/// with the most space. Nothing if it is well where it is.
pub(crate) fn better(places: &[MetadataDisk], at: Kind) -> Vec<DiskId> {
    let is_better = |place: &&MetadataDisk| {
        let takes_it = has_room(place.space) || planted::is(Bug::StateGoesToFullDisk);
        place.kind < at && takes_it
    };
    let mut better: Vec<&MetadataDisk> = places.iter().filter(is_better).collect();
    better.sort_by_key(|place| {
        let free_bytes = place.space.map_or(0, |space| space.free_bytes);
        (place.kind, Reverse(free_bytes), place.disk)
    });
    better.into_iter().map(|place| place.disk).collect()
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskRole, Timestamp};

    use super::*;

    #[test]
    fn a_state_goes_to_the_best_kind_with_room() {
        use Kind::{Flash, Journal, Other};
        let place = |disk: u128, kind, free_bytes| MetadataDisk {
            disk: DiskId(disk),
            kind,
            space: Some(DiskSpace {
                total_bytes: 1000,
                free_bytes,
            }),
        };
        let silent = MetadataDisk {
            space: None,
            ..place(9, Journal, 0)
        };
        let cases: [(&str, Vec<MetadataDisk>, Kind, &[u128]); 9] = [
            (
                "the same kind",
                vec![place(1, Other, 900), place(2, Other, 950)],
                Other,
                &[],
            ),
            (
                "a journal disk",
                vec![place(1, Other, 900), place(2, Journal, 500)],
                Other,
                &[2],
            ),
            (
                "flash",
                vec![place(1, Other, 900), place(2, Flash, 500)],
                Other,
                &[2],
            ),
            (
                "journal disks before flash",
                vec![place(1, Flash, 900), place(2, Journal, 500)],
                Other,
                &[2, 1],
            ),
            (
                "from flash",
                vec![place(1, Flash, 900), place(2, Journal, 500)],
                Flash,
                &[2],
            ),
            (
                "it has the best",
                vec![place(1, Flash, 900), place(2, Journal, 500)],
                Journal,
                &[],
            ),
            (
                "the most space",
                vec![place(1, Journal, 400), place(2, Journal, 500)],
                Other,
                &[2, 1],
            ),
            (
                "no room",
                vec![place(1, Journal, 99), place(2, Flash, 100)],
                Other,
                &[2],
            ),
            ("what does not say has none", vec![silent], Other, &[]),
        ];
        for (name, places, at, want) in cases {
            let want: Vec<DiskId> = want.iter().copied().map(DiskId).collect();
            assert_eq!(better(&places, at), want, "{name}");
        }
    }

    #[test]
    fn a_state_on_a_full_disk_is_noticed() {
        let test: fn() = a_state_goes_to_the_best_kind_with_room;
        assert!(planted::is_noticed_by(Bug::StateGoesToFullDisk, test));
    }

    #[test]
    fn what_somebody_said_of_a_disk_is_its_kind() {
        let disk = |role, media| {
            let mut disk = PoolDisk::new(DiskId(1), "/data", Timestamp::default());
            (disk.role, disk.media) = (role, media);
            Kind::of(&disk)
        };
        assert_eq!(disk(DiskRole::Journal, Some(Media::Hdd)), Kind::Journal);
        assert_eq!(disk(DiskRole::Data, Some(Media::Ssd)), Kind::Flash);
        assert_eq!(disk(DiskRole::Data, Some(Media::Nvme)), Kind::Flash);
        assert_eq!(disk(DiskRole::Data, Some(Media::Hdd)), Kind::Other);
        assert_eq!(disk(DiskRole::Data, None), Kind::Other);
        let full = Some(DiskSpace {
            total_bytes: 1000,
            free_bytes: 99,
        });
        assert_eq!(Kind::Flash.with_room(|| full), Kind::Other);
        assert_eq!(Kind::Journal.with_room(|| full), Kind::Journal);
    }
}
