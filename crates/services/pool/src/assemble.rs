//! Decides what to do with the data folders that a server is started with.
//!
//! Owns: the decision, as plain data. Must not know: I/O; `start` looks and acts.
//! Invariant: when in doubt it refuses; it never makes a new pool beside an old one, and never
//! takes a folder into a pool that it was not in.

use std::collections::BTreeSet;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, VolumeId};
use cairn_formats::pool_file::{PoolDisk, PoolState, Stage};
use cairn_formats::settings::Protection;
use cairn_shard::DiskIdentity;

use crate::truth::disks_needed;

/// The findings at one data folder.
#[derive(Clone, Debug)]
pub struct FoundFolder {
    /// The folder, as an absolute path.
    pub label: String,
    pub content: Content,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one for each disk, most of them of that kind"
)]
pub enum Content {
    /// There is no such folder.
    Absent,
    /// Nothing is in the folder.
    Blank,
    /// Files are in it, but not an identity or pool file of Cairn's.
    Foreign { example: String },
    /// The folder is there but cannot be used; the text says why.
    Unusable(String),
    /// A disk with a pool file of a version that only newer programs know.
    Newer {
        identity: Option<DiskIdentity>,
        found: u32,
        known: u32,
    },
    /// A disk of a pool, or one that was becoming it.
    Disk {
        identity: Option<DiskIdentity>,
        /// The pool file; `None` if there is none, or if it is damaged (which is logged).
        state: Option<PoolState>,
    },
}

/// What to do; numbers are places in the list of folders.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one is made at each start")]
pub enum Plan {
    /// Make a pool of all folders.
    Create,
    Open {
        state: PoolState,
        /// The disks that are there.
        present: Vec<(usize, DiskId)>,
        /// Members that still need their identity: an earlier first start broke off.
        unformatted: Vec<(usize, DiskId)>,
        missing: Vec<Missing>,
        /// Names of volumes that only older copies of the pool file list, and that were not deleted.
        brought_back: Vec<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub disk: PoolDisk,
    pub why: String,
}

/// Why a server cannot start on these folders.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    #[error("{label} has files that are not Cairn's ({example}); give an empty folder")]
    Foreign { label: String, example: String },
    #[error("{label} cannot be used: {why}")]
    Unusable { label: String, why: String },
    #[error(
        "{label} has a pool file of version {found}, and this program knows those up to {known}: start a newer \
         program. Nothing was changed"
    )]
    Newer {
        label: String,
        found: u32,
        known: u32,
    },
    #[error(
        "the data folders are of different pools: {first_label} is of pool {first}, {second_label} of \
         pool {second}; give the disks of one pool"
    )]
    TwoPools {
        first: String,
        first_label: String,
        second: String,
        second_label: String,
    },
    #[error(
        "{label} is not a disk of pool {pool}. Its disks are {members}. Start without this folder, then \
         add it with `cairn disk add`"
    )]
    NotAMember {
        label: String,
        pool: String,
        members: String,
    },
    #[error(
        "{first} and {second} say both that they are disk {id}; one is a copy: start with the original only"
    )]
    Twice {
        first: String,
        second: String,
        id: DiskId,
    },
    #[error(
        "the disks are there, but none of them has a readable pool file; bring the other disks of the pool, or \
         restore the file `pool` of one of them from a backup"
    )]
    NoPoolFile,
    #[error(
        "the pool needs {needed} of its {members} disks, and {present} are there; missing: {missing}"
    )]
    TooManyMissing {
        needed: usize,
        members: usize,
        present: usize,
        missing: String,
    },
}

/// Disks that a pool of so many can lose: its metadata and default protection survive that.
pub fn failures_tolerated(disk_count: usize) -> usize {
    match disk_count {
        0 | 1 => 0,
        2 => 1,
        _ => 2,
    }
}

/// Disks that a pool of so many that count can lose and still be started and changed: as many as its safest data can, if the others
/// are more than half. So any disks that a start finds have one among them that has the last change.
pub fn losses_tolerated(state: &PoolState, members: usize) -> usize {
    let asked = state.volumes.iter();
    let asked = asked.flat_map(|volume| volume.settings.protections());
    let lost = asked.map(|protection| match protection {
        Protection::Default | Protection::None => 0,
        Protection::Plus(parity) => usize::from(parity),
        Protection::Mirror(copies) => usize::from(copies).saturating_sub(1),
    });
    let lost = lost.max().unwrap_or(0).min(members.saturating_sub(1) / 2);
    failures_tolerated(members).max(lost)
}

/// Decides. `found` has one entry per data folder.
pub fn plan(found: &[FoundFolder]) -> Result<Plan, AssembleError> {
    require_known(found)?;
    require_one_pool(found)?;
    match (newest(found), newest_of(found, |_, _| true)) {
        (Some(state), _) => open(found, state.clone()),
        // Only folders of disks that left, or that never came in.
        (None, Some(state)) => none_there(state),
        (None, None) => create(found),
    }
}

/// The newest pool file that counts: one on a disk that it lists. A disk that was refused, or that left, has one too,
/// and the pool goes on without telling it: its version says nothing.
pub fn newest(found: &[FoundFolder]) -> Option<&PoolState> {
    newest_of(found, |folder, state| is_listed(state, folder))
}

fn newest_of(
    found: &[FoundFolder],
    counts: impl Fn(&FoundFolder, &PoolState) -> bool,
) -> Option<&PoolState> {
    let states = found.iter().filter_map(|folder| match &folder.content {
        Content::Disk { state, .. } => state.as_ref().filter(|state| counts(folder, state)),
        _ => None,
    });
    states.max_by_key(|state| match planted::is(Bug::OldPoolFileWins) {
        true => u64::MAX - state.version,
        false => state.version,
    })
}

/// Whether a pool file lists the disk in a folder as a member; a folder without an identity is known by its place.
fn is_listed(state: &PoolState, folder: &FoundFolder) -> bool {
    let Content::Disk { identity, .. } = &folder.content else {
        return false;
    };
    state.disks.iter().any(|disk| match identity {
        Some(identity) => disk.id == identity.disk,
        None => disk.label == folder.label,
    })
}

/// What a newer program wrote is newer than any copy that can be read here: a disk that was away then is an old copy,
/// and a pool that went on from it would take the place of what the others have.
fn require_known(found: &[FoundFolder]) -> Result<(), AssembleError> {
    found.iter().try_for_each(|folder| match folder.content {
        Content::Newer { found, known, .. } => Err(newer(folder, found, known)),
        _ => Ok(()),
    })
}

fn newer(folder: &FoundFolder, found: u32, known: u32) -> AssembleError {
    AssembleError::Newer {
        label: folder.label.clone(),
        found,
        known,
    }
}

fn require_one_pool(found: &[FoundFolder]) -> Result<(), AssembleError> {
    let mut first: Option<(&str, String)> = None;
    for folder in found {
        let Content::Disk { identity, state } = &folder.content else {
            continue;
        };
        let by_identity = identity.as_ref().map(|identity| identity.pool);
        let by_state = state.as_ref().map(|state| state.pool);
        for pool in by_identity.into_iter().chain(by_state) {
            let pool = pool.to_string();
            match &first {
                Some((label, other)) if *other != pool => {
                    return Err(AssembleError::TwoPools {
                        first: other.clone(),
                        first_label: (*label).to_owned(),
                        second: pool,
                        second_label: folder.label.clone(),
                    });
                }
                Some(_) => {}
                None => first = Some((&folder.label, pool)),
            }
        }
    }
    Ok(())
}

fn create(found: &[FoundFolder]) -> Result<Plan, AssembleError> {
    for folder in found {
        let label = folder.label.clone();
        match &folder.content {
            Content::Absent | Content::Blank => {}
            Content::Foreign { example } => {
                let example = example.clone();
                return Err(AssembleError::Foreign { label, example });
            }
            Content::Unusable(why) => {
                let why = why.clone();
                return Err(AssembleError::Unusable { label, why });
            }
            Content::Newer { found, known, .. } => return Err(newer(folder, *found, *known)),
            Content::Disk { .. } => return Err(AssembleError::NoPoolFile),
        }
    }
    Ok(Plan::Create)
}

fn open(found: &[FoundFolder], mut state: PoolState) -> Result<Plan, AssembleError> {
    let mut present: Vec<(usize, DiskId)> = Vec::new();
    let mut unformatted = Vec::new();
    let mut missing = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, folder) in found.iter().enumerate() {
        let by_label = state.disks.iter().find(|disk| disk.label == folder.label);
        if by_label.is_none() && has_left(&state, folder) {
            continue;
        }
        let why = match &folder.content {
            Content::Disk {
                identity: Some(identity),
                state: own,
            } => {
                if let Some(stale) = stale(&state, identity.disk, own.as_ref()) {
                    missing.push(stale);
                    continue;
                }
                let lists_it = |state: &PoolState| {
                    let mut disks = state.disks.iter();
                    disks.any(|disk| disk.id == identity.disk)
                };
                if !lists_it(&state) {
                    // It was to replace a member in its place, and that broke off before any pool file named it.
                    let was_never_in = !own.as_ref().is_some_and(lists_it);
                    let Some(member) = by_label.filter(|_| was_never_in) else {
                        return Err(not_a_member(&state, folder));
                    };
                    missing.push(Missing {
                        disk: member.clone(),
                        why: "another disk is in its place, which is none of the pool's yet; replace it with that \
                              (`cairn disk replace --wipe`)"
                            .to_owned(),
                    });
                    continue;
                }
                if !seen.insert(identity.disk) {
                    let first = present.iter().find(|(_, id)| *id == identity.disk);
                    let first = first.and_then(|(place, _)| found.get(*place));
                    return Err(AssembleError::Twice {
                        first: first.map(|first| first.label.clone()).unwrap_or_default(),
                        second: folder.label.clone(),
                        id: identity.disk,
                    });
                }
                present.push((index, identity.disk));
                continue;
            }
            Content::Disk { identity: None, .. } | Content::Blank
                if state.stage == Stage::Forming =>
            {
                let disk = by_label.ok_or_else(|| not_a_member(&state, folder))?;
                unformatted.push((index, disk.id));
                continue;
            }
            Content::Disk { identity: None, .. } => "its identity file is gone".to_owned(),
            Content::Absent => "the folder is not there".to_owned(),
            Content::Blank => "the folder is empty".to_owned(),
            Content::Foreign { .. } => "the folder has other files".to_owned(),
            // It may be a disk that was moved, and works in a moment.
            Content::Unusable(why) if by_label.is_none() => {
                return Err(AssembleError::Unusable {
                    label: folder.label.clone(),
                    why: why.clone(),
                });
            }
            Content::Unusable(why) => why.clone(),
            Content::Newer { found, known, .. } => return Err(newer(folder, *found, *known)),
        };
        // A disk that broke or was emptied is missing at the place where it was; at any other
        // place such a folder is a mistake of who started the server.
        let disk = by_label.ok_or_else(|| not_a_member(&state, folder))?;
        missing.push(Missing {
            disk: disk.clone(),
            why,
        });
    }
    add_unnamed(&state, &present, &unformatted, &mut missing);
    require_enough(&state, present.len() + unformatted.len(), &missing)?;
    let brought_back = bring_back(&mut state, &copies(found, &present));
    Ok(Plan::Open {
        brought_back,
        state,
        present,
        unformatted,
        missing,
    })
}

/// Whether a folder is that of a disk which was removed from the pool: the configuration may still name it.
fn has_left(state: &PoolState, folder: &FoundFolder) -> bool {
    match &folder.content {
        Content::Disk {
            identity: Some(identity),
            ..
        } => {
            let is_member = state.disks.iter().any(|disk| disk.id == identity.disk);
            !is_member && state.left.iter().any(|disk| disk.id == identity.disk)
        }
        Content::Absent
        | Content::Blank
        | Content::Unusable(_)
        | Content::Disk { identity: None, .. } => {
            state.left.iter().any(|disk| disk.label == folder.label)
        }
        Content::Foreign { .. } | Content::Newer { .. } => false,
    }
}

/// A disk that had a newer pool file than it has now is an old copy of itself: restored from a backup or
/// an image, or a mirror's half that was left behind. What it holds is not what it held.
fn stale(state: &PoolState, id: DiskId, own: Option<&PoolState>) -> Option<Missing> {
    let member = state.disks.iter().find(|disk| disk.id == id)?;
    let own = own?;
    (own.version < member.seen).then(|| Missing {
        disk: member.clone(),
        why: format!(
            "it is an old copy of the disk: it was at version {} of the pool and comes back with {}; \
             replace it (`cairn disk replace`)",
            member.seen, own.version
        ),
    })
}

/// The pool files of members.
fn copies<'a>(
    found: &'a [FoundFolder],
    present: &[(usize, DiskId)],
) -> Vec<(DiskId, &'a PoolState)> {
    let own = |(place, id): &(usize, DiskId)| match &found.get(*place)?.content {
        Content::Disk { state, .. } => Some((*id, state.as_ref()?)),
        _ => None,
    };
    present.iter().filter_map(own).collect()
}

/// Takes in volumes that only older copies list, unless they were deleted since: the newest copy may be one that
/// went on without the disks with the last change, or one of a change that was refused. Says which.
fn bring_back(state: &mut PoolState, copies: &[(DiskId, &PoolState)]) -> Vec<String> {
    let mut copies = copies.to_vec();
    copies.sort_by_key(|(_, copy)| std::cmp::Reverse(copy.version));
    let needed = disks_needed(state, state.disks.len());
    let newest = state.clone();
    let mut names = Vec::new();
    for (id, copy) in &copies {
        let newer = copies
            .iter()
            .filter(|(_, other)| other.version > copy.version);
        let is_saved = newer.count() >= needed;
        let seen = newest.disks.iter().find(|disk| disk.id == *id);
        let is_known = seen.is_some_and(|disk| copy.version <= disk.seen);
        for volume in &copy.volumes {
            // A change that too few have does not count: its volume was served on.
            let is_deleted = is_saved && (is_known || newest.was_deleted(volume));
            let listed = state.volumes.iter().find(|there| there.id == volume.id);
            // One that is deleted and has clones is listed for these alone.
            let is_listed = listed.is_some_and(|there| {
                let is_hidden = there.is_deleted && !volume.is_deleted;
                is_saved || !is_hidden
            });
            if !is_deleted && !is_listed {
                let name = state.bring_back(volume);
                names.extend(name.map(|name| name.to_string()));
            }
        }
        for clone in &copy.clones {
            let is_deleted = is_saved && (is_known || newest.was_deleted(&clone.volume));
            let is_listed = state.clone_of(clone.volume.id).is_some();
            if !is_deleted && !is_listed {
                let name = state.bring_back_clone(clone);
                names.extend(name.map(|name| name.to_string()));
            }
        }
    }
    // One that is there for its clones alone is not without them.
    let clones = &state.clones;
    let has_clones = |store: VolumeId| clones.iter().any(|clone| clone.store == store);
    state
        .volumes
        .retain(|store| !store.is_deleted || has_clones(store.id));
    names
}

/// Members that no folder was given for.
fn add_unnamed(
    state: &PoolState,
    present: &[(usize, DiskId)],
    unformatted: &[(usize, DiskId)],
    missing: &mut Vec<Missing>,
) {
    // A disk that moved is present under its id, whatever is at its old place now.
    missing.retain(|entry| !present.iter().any(|(_, id)| *id == entry.disk.id));
    for disk in &state.disks {
        let known = present
            .iter()
            .chain(unformatted)
            .any(|(_, id)| *id == disk.id)
            || missing.iter().any(|entry| entry.disk.id == disk.id);
        if !known {
            missing.push(Missing {
                disk: disk.clone(),
                why: "no data folder with it was given".to_owned(),
            });
        }
    }
}

/// Whether the pool can be served without some of its disks.
///
/// A disk that is lost and holds nothing is not missed: as long as that is so, the pool is one of the others.
pub fn require_enough(
    state: &PoolState,
    present: usize,
    missing: &[Missing],
) -> Result<(), AssembleError> {
    let empty = missing.iter().filter(|entry| entry.disk.holds_nothing);
    let members = state.disks.len().saturating_sub(empty.count());
    // Before a pool is formed nothing can be rebuilt from the others: all have to be there.
    let tolerated = match state.stage {
        Stage::Forming => 0,
        Stage::Empty | Stage::InUse => losses_tolerated(state, members),
    };
    let needed = members.saturating_sub(tolerated).max(1);
    if present >= needed {
        return Ok(());
    }
    let missing = missing
        .iter()
        .map(|entry| format!("{} ({})", entry.disk.label, entry.why))
        .collect::<Vec<_>>()
        .join(", ");
    Err(AssembleError::TooManyMissing {
        needed,
        members,
        present,
        missing,
    })
}

/// Refuses a start without any member.
fn none_there(state: &PoolState) -> Result<Plan, AssembleError> {
    let mut missing = Vec::new();
    add_unnamed(state, &[], &[], &mut missing);
    require_enough(state, 0, &missing)?;
    Err(AssembleError::NoPoolFile)
}

fn not_a_member(state: &PoolState, folder: &FoundFolder) -> AssembleError {
    let labels: Vec<&str> = state.disks.iter().map(|disk| disk.label.as_str()).collect();
    AssembleError::NotAMember {
        label: folder.label.clone(),
        pool: state.pool.to_string(),
        members: labels.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{PoolId, Timestamp};

    use super::*;
    use cairn_formats::pool_file::{PoolClone, PoolVolume};
    use cairn_formats::testing::example_pool as example;

    /// Data with more protection than the pool's own makes it survive more, as long as the others are more than half.
    #[test]
    fn the_pool_survives_what_its_safest_data_does() {
        use Protection::{Default, Mirror, None, Plus};
        let cases: &[(u128, Protection, Option<Protection>, usize)] = &[
            (7, Default, Option::None, 2),
            (7, None, Option::None, 2),
            (7, Plus(1), Option::None, 2),
            (7, Plus(3), Option::None, 3),
            (7, Plus(4), Option::None, 3),
            (7, Default, Some(Mirror(4)), 3),
            (9, Mirror(5), Some(None), 4),
            (6, Plus(4), Option::None, 2),
            (4, Plus(3), Option::None, 2),
            (2, Mirror(2), Option::None, 1),
        ];
        for (disks, of_volume, of_directory, want) in cases {
            let mut state = example(*disks);
            for volume in &mut state.volumes {
                volume.settings.protection = *of_volume;
                volume.settings.directory_protections = of_directory.iter().copied().collect();
            }
            let got = losses_tolerated(&state, state.disks.len());
            assert_eq!(got, *want, "{disks} disks, {of_volume}, {of_directory:?}");
        }
    }

    fn folder(label: &str, content: Content) -> FoundFolder {
        FoundFolder {
            label: label.to_owned(),
            content,
        }
    }

    fn disk(pool: u128, id: u128, state: Option<PoolState>) -> Content {
        Content::Disk {
            identity: Some(DiskIdentity {
                pool: PoolId(pool),
                disk: DiskId(id),
                created: Timestamp::new(0, 0),
            }),
            state,
        }
    }

    fn members(count: u128) -> Vec<FoundFolder> {
        (1..=count)
            .map(|id| folder(&format!("/data/{id}"), disk(77, id, Some(example(count)))))
            .collect()
    }

    #[test]
    fn a_pool_is_made_of_empty_folders_only() {
        let blank = || folder("/a", Content::Blank);
        assert_eq!(
            plan(&[blank(), folder("/b", Content::Absent)]),
            Ok(Plan::Create)
        );
        let foreign = Content::Foreign {
            example: "thesis.tex".to_owned(),
        };
        assert!(matches!(
            plan(&[blank(), folder("/b", foreign)]),
            Err(AssembleError::Foreign { .. })
        ));
        let unusable = Content::Unusable("no permission".to_owned());
        assert!(matches!(
            plan(&[blank(), folder("/b", unusable)]),
            Err(AssembleError::Unusable { .. })
        ));
        let lost = disk(77, 1, None);
        assert_eq!(
            plan(&[blank(), folder("/b", lost)]),
            Err(AssembleError::NoPoolFile)
        );
    }

    /// A crash came after the new disk had its identity, and before a pool file named it; or no pool file could be
    /// written, and the old one was put back, also there.
    #[test]
    fn a_replacement_in_place_that_broke_off_is_a_disk_that_is_missing() {
        for own in [None, Some(example(4))] {
            let mut found = members(4);
            found[2] = folder("/data/3", disk(77, 9, own.clone()));
            let Ok(Plan::Open {
                present, missing, ..
            }) = plan(&found)
            else {
                panic!("{:?}", plan(&found));
            };
            assert_eq!(present.len(), 3);
            let gone: Vec<DiskId> = missing.iter().map(|missing| missing.disk.id).collect();
            assert_eq!(gone, [DiskId(3)]);
            assert!(missing[0].why.contains("--wipe"), "{}", missing[0].why);
            // Anywhere else it is a mistake of who started the server.
            found[2] = folder("/elsewhere", disk(77, 9, own));
            assert!(matches!(
                plan(&found),
                Err(AssembleError::NotAMember { .. })
            ));
        }
    }

    #[test]
    fn order_and_place_of_disks_do_not_matter() {
        let mut found = members(4);
        found.reverse();
        found[0].label = "/moved".to_owned();
        match plan(&found) {
            Ok(Plan::Open {
                present, missing, ..
            }) => {
                assert_eq!(present.len(), 4);
                assert_eq!(present[0], (0, DiskId(4)));
                assert!(missing.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_newest_state_counts() {
        let mut found = members(3);
        let mut newer = example(3);
        newer.version = 9;
        found[1].content = disk(77, 2, Some(newer));
        found[2].content = disk(77, 3, None);
        match plan(&found) {
            Ok(Plan::Open { state, .. }) => assert_eq!(state.version, 9),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_disks_are_named_up_to_the_limit() {
        let gone: &[(usize, Content)] = &[
            (0, Content::Absent),
            (1, Content::Blank),
            (2, Content::Unusable("I/O error".to_owned())),
        ];
        for count in 1..=gone.len() {
            let mut found = members(6);
            for (index, content) in &gone[..count] {
                found[*index].content = content.clone();
            }
            match plan(&found) {
                Ok(Plan::Open {
                    present, missing, ..
                }) if count <= 2 => {
                    assert_eq!((present.len(), missing.len()), (6 - count, count));
                    assert_eq!(missing[0].disk.label, "/data/1");
                }
                Err(error @ AssembleError::TooManyMissing { .. }) if count > 2 => {
                    let text = error.to_string();
                    assert!(text.contains("/data/3 (I/O error)"), "{text}");
                }
                other => panic!("{count}: {other:?}"),
            }
        }
        // Not naming a folder is the same as losing it.
        let found = members(6);
        match plan(&found[..5]) {
            Ok(Plan::Open { missing, .. }) => assert_eq!(missing[0].disk.label, "/data/6"),
            other => panic!("{other:?}"),
        }
        assert!(plan(&found[..3]).is_err());
    }

    /// Three dead disks of 64, of which everything was rebuilt: the next start refused.
    #[test]
    fn lost_disks_that_hold_nothing_are_not_missed() {
        let empty = |count: usize| {
            let mut state = example(64);
            for disk in &mut state.disks[..count] {
                disk.holds_nothing = true;
            }
            state
        };
        let starts = |state: &PoolState, gone: std::ops::Range<usize>| {
            let mut found = members(64);
            for folder in &mut found {
                if let Content::Disk { state: own, .. } = &mut folder.content {
                    *own = Some(state.clone());
                }
            }
            found.drain(gone);
            plan(&found).is_ok()
        };
        assert!(!starts(&empty(0), 0..3));
        assert!(starts(&empty(3), 0..3));
        // Two more may be lost, as ever, and no third.
        assert!(starts(&empty(3), 0..5));
        assert!(!starts(&empty(3), 0..6));
        // Of others as many are missed as ever.
        assert!(!starts(&empty(3), 3..6));
        // One that is there again is not missed, and cannot stand for another one that is.
        assert!(starts(&empty(3), 2..4));
        assert!(!starts(&empty(3), 2..6));
    }

    /// The one that can be read was away when the others were changed last.
    #[test]
    fn disks_of_a_newer_program_are_refused_and_not_passed_over() {
        let newer = |folder: &mut FoundFolder| {
            let identity = match &folder.content {
                Content::Disk { identity, .. } => *identity,
                other => panic!("{other:?}"),
            };
            folder.content = Content::Newer {
                identity,
                found: 9,
                known: 3,
            };
        };
        let mut found = members(3);
        found[..2].iter_mut().for_each(newer);
        let text = match plan(&found) {
            Err(error @ AssembleError::Newer { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(
            text.contains("/data/1") && text.contains("version 9"),
            "{text}"
        );
        // As few as one, and also where no other has anything.
        let mut found = members(6);
        newer(&mut found[5]);
        assert!(matches!(plan(&found), Err(AssembleError::Newer { .. })));
        let alone = plan(&found[5..]);
        assert!(matches!(alone, Err(AssembleError::Newer { .. })));
    }

    #[test]
    fn strangers_are_refused() {
        let mut found = members(2);
        found.push(folder("/new", Content::Blank));
        assert!(matches!(
            plan(&found),
            Err(AssembleError::NotAMember { .. })
        ));
        let mut found = members(2);
        found.push(folder("/new", disk(77, 9, None)));
        assert!(matches!(
            plan(&found),
            Err(AssembleError::NotAMember { .. })
        ));
        let mut found = members(2);
        found.push(folder("/new", disk(78, 1, None)));
        assert!(matches!(plan(&found), Err(AssembleError::TwoPools { .. })));
        let mut found = members(2);
        found.push(folder("/copy", disk(77, 1, None)));
        assert!(matches!(plan(&found), Err(AssembleError::Twice { .. })));
    }

    /// A disk was refused several times, and then the pool went over to others: the old state, put back on the one that
    /// was refused, had the highest version.
    #[test]
    fn the_pool_file_of_a_disk_that_is_no_member_does_not_count() {
        let refused = |version| {
            let mut state = example(1);
            state.version = version;
            folder("/data/9", disk(77, 9, Some(state)))
        };
        let mut now = example(2);
        now.version = 10;
        now.left = vec![now.disks.remove(0)];
        let left = folder("/data/1", disk(77, 1, Some(now.clone())));
        let member = folder("/data/2", disk(77, 2, Some(now)));
        for version in [5, 10, 12] {
            // Somebody names all folders that there ever were: the foreign one is among them, and nothing of the rest is touched.
            let found = [left.clone(), refused(version), member.clone()];
            assert!(matches!(
                plan(&found),
                Err(AssembleError::NotAMember { label, .. }) if label == "/data/9"
            ));
            match plan(&[left.clone(), member.clone()]) {
                Ok(Plan::Open { state, present, .. }) => {
                    assert_eq!((state.version, present), (10, vec![(1, DiskId(2))]));
                }
                other => panic!("{other:?}"),
            }
            // Without the member the one that left is not taken for one again.
            let gone = plan(&[left.clone(), refused(version)]);
            assert!(
                matches!(gone, Err(AssembleError::TooManyMissing { .. })),
                "{gone:?}"
            );
        }
    }

    #[test]
    fn an_old_copy_of_a_disk_is_not_used() {
        let mut state = example(4);
        state.version = 9;
        state.disks[1].seen = 7;
        state.disks[2].seen = 5;
        // One is as of version 6, the others missed nothing, or a change while they were away.
        let versions = [9, 6, 5, 3];
        let mut found = members(4);
        for (folder, version) in found.iter_mut().zip(versions) {
            let Content::Disk { state: own, .. } = &mut folder.content else {
                panic!("disks");
            };
            let mut copy = state.clone();
            copy.version = version;
            *own = Some(copy);
        }
        match plan(&found) {
            Ok(Plan::Open {
                present, missing, ..
            }) => {
                assert_eq!(present.len(), 3);
                assert_eq!(missing.len(), 1);
                assert_eq!(missing[0].disk.id, DiskId(2));
                assert!(missing[0].why.contains("old copy"));
            }
            other => panic!("{other:?}"),
        }
    }

    /// A volume that is deleted before its clones stays listed for them, and is gone if enough disks say so.
    #[test]
    fn a_volume_with_clones_is_gone_if_enough_disks_say_so() {
        for (versions, want) in [
            (&[9, 7][..], false),
            (&[8, 8, 8, 7, 7, 7], true),
            (&[9, 9, 9, 9, 7, 7], false),
        ] {
            let mut found = members(versions.len() as u128);
            for (folder, version) in found.iter_mut().zip(versions) {
                let Content::Disk {
                    state: Some(own), ..
                } = &mut folder.content
                else {
                    panic!("disks");
                };
                let store = own.volumes[0].id;
                let id = own.take_volume_id();
                let volume = PoolVolume {
                    id,
                    name: "clone".parse().unwrap(),
                    ..own.volumes[0].clone()
                };
                own.clones.push(PoolClone { store, volume });
                own.version = *version;
                if *version > 7 {
                    own.delete_volume(store);
                }
            }
            let Ok(Plan::Open { state, .. }) = plan(&found) else {
                panic!("{versions:?}");
            };
            let names: Vec<&str> = state.all_volumes().map(|it| it.name.as_str()).collect();
            assert_eq!(names.contains(&"main"), want, "{versions:?}");
            assert!(names.contains(&"clone") && state.volumes.len() == 1);
        }
    }

    /// A volume is gone when enough disks say so, not when one does that knows nothing of it.
    #[test]
    fn a_volume_that_any_copy_lists_is_there_unless_it_was_deleted() {
        let main = example(1).volumes;
        let x = PoolVolume {
            id: VolumeId(2),
            name: "x".parse().unwrap(),
            ..main[0].clone()
        };
        let both = [main.clone(), vec![x.clone()]].concat();
        // Of each disk the version of its copy, and whether that lists x; then: was x deleted according to the newest,
        // what the newest knows the last disk to have had, is x there.
        type Case = (&'static str, &'static [(u64, bool)], bool, u64, bool);
        let cases: &[Case] = &[
            (
                "the newest knows nothing of it",
                &[(8, false), (7, true)],
                false,
                6,
                true,
            ),
            (
                "nothing of it, and as new",
                &[(8, true), (8, false)],
                false,
                6,
                true,
            ),
            (
                "deleted while it was away",
                &[(9, false), (7, true)],
                true,
                7,
                false,
            ),
            (
                "away, with a change nobody heard of",
                &[(9, false), (7, true)],
                true,
                6,
                false,
            ),
            (
                "deleted by an older program",
                &[(9, false), (7, true)],
                false,
                7,
                false,
            ),
            (
                "enough have the deletion",
                &[
                    (8, false),
                    (8, false),
                    (9, false),
                    (8, false),
                    (7, true),
                    (7, true),
                ],
                true,
                7,
                false,
            ),
            (
                "a deletion that was refused",
                &[
                    (8, false),
                    (8, false),
                    (8, false),
                    (7, true),
                    (7, true),
                    (7, true),
                ],
                true,
                7,
                true,
            ),
        ];
        for (name, copies, is_deleted, seen, want) in cases {
            let mut found = members(copies.len() as u128);
            for (folder, (version, has_x)) in found.iter_mut().zip(*copies) {
                let Content::Disk {
                    state: Some(own), ..
                } = &mut folder.content
                else {
                    panic!("disks");
                };
                own.version = *version;
                own.volume_next = VolumeId(3);
                own.volumes = if *has_x { both.clone() } else { main.clone() };
                if *is_deleted && !*has_x {
                    own.deleted.push(x.deleted());
                }
                for disk in own.disks.iter_mut().skip(1) {
                    disk.seen = *seen;
                }
            }
            match plan(&found) {
                Ok(Plan::Open {
                    state,
                    brought_back,
                    ..
                }) => {
                    let listed: Vec<&str> = state
                        .volumes
                        .iter()
                        .map(|volume| volume.name.as_str())
                        .collect();
                    let all: &[&str] = if *want { &["main", "x"] } else { &["main"] };
                    assert_eq!(listed, all, "{name}");
                    assert_eq!(brought_back, all[1..], "{name}");
                    assert!(!state.deleted.contains(&x.deleted()) || !*want, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn folders_of_disks_that_left_are_passed_over() {
        let mut state = example(4);
        state.remove_disk(DiskId(4));
        let mut found = members(4);
        for folder in &mut found {
            if let Content::Disk { state: own, .. } = &mut folder.content {
                *own = Some(state.clone());
            }
        }
        let broken = Content::Unusable("I/O error".to_owned());
        for content in [disk(77, 4, None), Content::Blank, Content::Absent, broken] {
            found[3].content = content;
            match plan(&found) {
                Ok(Plan::Open {
                    present, missing, ..
                }) => assert_eq!((present.len(), missing.len()), (3, 0)),
                other => panic!("{other:?}"),
            }
        }
        found[3].content = disk(77, 9, None);
        assert!(matches!(
            plan(&found),
            Err(AssembleError::NotAMember { .. })
        ));
    }

    #[test]
    fn a_first_start_that_broke_off_is_finished() {
        let mut state = example(3);
        state.stage = Stage::Forming;
        state.volumes.clear();
        let bare = |state| Content::Disk {
            identity: None,
            state,
        };
        let mut found = vec![
            folder("/data/1", disk(77, 1, Some(state.clone()))),
            folder("/data/2", bare(Some(state.clone()))),
            folder("/data/3", Content::Blank),
        ];
        match plan(&found) {
            Ok(Plan::Open {
                present,
                unformatted,
                ..
            }) => {
                assert_eq!(present, [(0, DiskId(1))]);
                assert_eq!(unformatted, [(1, DiskId(2)), (2, DiskId(3))]);
            }
            other => panic!("{other:?}"),
        }
        found.pop();
        assert!(matches!(
            plan(&found),
            Err(AssembleError::TooManyMissing { .. })
        ));
    }
}
