//! What a start or an operator may make of folders beside the pool's own: which are looked at, which may become disks.
//!
//! Owns: these decisions, as plain data. Must not know: I/O; the host looks into folders, opens and empties them.

use cairn_base::DiskId;
use cairn_formats::pool_file::PoolDisk;
use cairn_shard::DiskIdentity;

use crate::assemble::{Content, FoundFolder};

/// The next step with a folder that is to become a disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is empty.
    Ready,
    /// It was a disk, and may be emptied.
    Wipe(Option<DiskIdentity>),
}

/// What an operator allows to be done with the place of a new disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Empty a folder that was a disk.
    pub wipe: bool,
    /// Make a folder that does not exist.
    pub create: bool,
}

/// Whether a folder may become a disk, judged by what is in it.
pub fn readiness(
    label: &str,
    content: Content,
    is_half_wiped: bool,
    allowed: Allowed,
) -> Result<Readiness, String> {
    let content = match content {
        // An operator who says that it may be wiped need not know its content.
        Content::Newer { identity, .. } => Content::Disk {
            identity,
            state: None,
        },
        content => content,
    };
    match content {
        Content::Blank => Ok(Readiness::Ready),
        Content::Absent if allowed.create => Ok(Readiness::Ready),
        // A drive that is not mounted, or a typo: the disk would be on whatever file system is there.
        Content::Absent => Err(format!(
            "{label} does not exist: see whether the name is right and its drive is mounted, or use --create to have it made"
        )),
        Content::Newer { .. } => Err(format!("{label} is a disk of a newer program")),
        Content::Disk {
            identity: None,
            state: None,
        } if !is_half_wiped => Err(format!(
            "{label} is not empty, and nothing in it says that it was a disk of Cairn's; give an empty folder"
        )),
        Content::Disk { identity, .. } if allowed.wipe => Ok(Readiness::Wipe(identity)),
        Content::Disk { .. } => Err(format!(
            "{label} was a disk of Cairn's; if nobody needs what is on it any more, use --wipe"
        )),
        Content::Foreign { example } => Err(format!(
            "{label} has files that are not Cairn's ({example}); give an empty folder"
        )),
        Content::Unusable(why) => Err(format!("{label} cannot be used: {why}")),
    }
}

/// Whether a folder is a disk, by its identity.
fn identity(content: &Content) -> Option<DiskId> {
    match content {
        Content::Disk { identity, .. } | Content::Newer { identity, .. } => {
            identity.as_ref().map(|identity| identity.disk)
        }
        _ => None,
    }
}

/// Disks that were added to a running server, by the newest pool file that was found so far, and are not among the
/// findings: they are looked for where they were. Folders found there may name more.
pub fn look_next(found: &[FoundFolder]) -> Vec<PoolDisk> {
    let states = found.iter().filter_map(|folder| match &folder.content {
        Content::Disk { state, .. } => state.as_ref(),
        _ => None,
    });
    let Some(newest) = states.max_by_key(|state| state.version) else {
        return Vec::new();
    };
    let is_there = |member: &PoolDisk| {
        found.iter().any(|folder| {
            let by_id = identity(&folder.content) == Some(member.id);
            by_id || folder.label == member.label
        })
    };
    let added = newest.disks.iter().filter(|member| member.by_label);
    added.filter(|member| !is_there(member)).cloned().collect()
}

/// Whether what is in a folder is the disk that was looked for there. Anything else is none of the operator's words: the
/// disk is missing then.
pub fn is_disk(content: &Content, id: DiskId) -> bool {
    identity(content) == Some(id)
}

#[cfg(test)]
mod tests {
    use cairn_base::{PoolId, Timestamp};
    use cairn_formats::testing::example_pool;

    use super::*;

    #[test]
    fn a_folder_is_emptied_only_if_it_was_a_disk_and_that_is_wanted() {
        let identity = DiskIdentity {
            pool: PoolId(1),
            disk: DiskId(2),
            created: Timestamp::new(0, 0),
        };
        let disk = |identity| Content::Disk {
            identity,
            state: None,
        };
        let newer = || Content::Newer {
            identity: Some(identity),
            found: 9,
            known: 1,
        };
        let foreign = || Content::Foreign {
            example: "thesis.tex".to_owned(),
        };
        // Its content, whether it is half wiped, then: not to be wiped, to be wiped.
        type Case = (Content, bool, Option<Readiness>, Option<Readiness>);
        let ready = || Some(Readiness::Ready);
        let cases: Vec<Case> = vec![
            (Content::Absent, false, None, None),
            (Content::Blank, false, ready(), ready()),
            (disk(None), false, None, None),
            (disk(None), true, None, Some(Readiness::Wipe(None))),
            (
                disk(Some(identity)),
                false,
                None,
                Some(Readiness::Wipe(Some(identity))),
            ),
            (newer(), false, None, Some(Readiness::Wipe(Some(identity)))),
            (foreign(), false, None, None),
            (Content::Unusable("I/O error".to_owned()), false, None, None),
        ];
        for (content, is_half_wiped, kept, wiped) in cases {
            let got = |wipe| {
                let create = false;
                let allowed = Allowed { wipe, create };
                readiness("/a", content.clone(), is_half_wiped, allowed).ok()
            };
            assert_eq!((got(false), got(true)), (kept, wiped), "{content:?}");
        }
    }

    #[test]
    fn disks_that_were_added_are_looked_for_where_they_were() {
        let content = |id: u128, members: Option<(usize, u64)>| Content::Disk {
            identity: Some(DiskIdentity {
                pool: PoolId(1),
                disk: DiskId(id),
                created: Timestamp::new(0, 0),
            }),
            state: members.map(|(count, version)| {
                let mut state = example_pool(4);
                state.version = version;
                state.disks.truncate(count);
                for disk in &mut state.disks {
                    disk.label = format!("/d{}", disk.id.0);
                    disk.by_label = disk.id.0 > 1;
                }
                state
            }),
        };
        let found = |label: &str, content| FoundFolder {
            label: label.to_owned(),
            content,
        };
        let wanted = |found: &[FoundFolder]| -> Vec<u128> {
            let disks = look_next(found).into_iter();
            disks.map(|disk| disk.id.0).collect()
        };
        let named = || found("/d1", content(1, Some((2, 5))));
        let second = || found("/d2", content(2, Some((4, 9))));
        assert_eq!(wanted(&[named()]), [2], "which the named one knows of");
        assert_eq!(wanted(&[named(), second()]), [3, 4], "the newest counts");
        let elsewhere = found("/mnt/d3", content(3, None));
        assert_eq!(wanted(&[named(), second(), elsewhere]), [4], "by id");
        let taken = found("/d4", Content::Blank);
        assert_eq!(wanted(&[named(), second(), taken]), [3], "by place");
        assert_eq!(wanted(&[found("/d1", Content::Blank)]), [0; 0]);
        assert!(is_disk(&content(3, None), DiskId(3)));
        assert!(!is_disk(&content(3, None), DiskId(4)));
        assert!(!is_disk(&Content::Blank, DiskId(3)));
    }
}
