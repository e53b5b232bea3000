//! The pool's disks as the judge sees them.
//!
//! Owns: the numbers of disks, the disks that may be taken away without a loss. Must not know: the pool's decisions; it
//! asks the pool for its members.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::DiskId;
use cairn_pool::PoolState;
use cairn_testkit::{MemDisk, Rng};

use crate::scenario::{Shape, Trouble, Work, WorkKind};

/// A disk of the pool. Its number is that of its label, and is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub index: usize,
    pub id: DiskId,
    /// The disk is draining.
    pub is_draining: bool,
    /// The disk takes no data.
    pub is_journal: bool,
}

pub fn label_of(index: usize) -> String {
    format!("disk{index}")
}

/// The members of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFile {
    pub members: Vec<Member>,
}

impl PoolFile {
    /// The members as the pool has saved them.
    pub fn of(state: &PoolState) -> Self {
        let members = state.disks.iter().filter_map(|disk| {
            Some(Member {
                index: disk.label.strip_prefix("disk")?.parse().ok()?,
                id: disk.id,
                is_draining: disk.draining,
                is_journal: !disk.role.is_data(),
            })
        });
        Self {
            members: members.collect(),
        }
    }

    pub fn id(&self, index: usize) -> Option<DiskId> {
        let member = self.members.iter().find(|member| member.index == index);
        member.map(|member| member.id)
    }

    pub fn has(&self, index: usize) -> bool {
        self.id(index).is_some()
    }

    pub fn draining(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_draining)
    }

    pub fn staying_count(&self) -> usize {
        self.members.len() - self.draining().count()
    }

    /// Number of disks that stay and take data.
    pub fn data_count(&self) -> usize {
        let takes_data = |member: &&Member| !member.is_draining && !member.is_journal;
        self.members.iter().filter(takes_data).count()
    }
}

/// The disks that a start finds.
#[derive(Clone)]
pub struct Disks {
    pub there: Vec<Arc<MemDisk>>,
}

impl Disks {
    /// `disks` by number; those in `gone` are missing.
    pub fn new(disks: &[Arc<MemDisk>], gone: &BTreeSet<usize>) -> Self {
        let there = disks.iter().enumerate();
        let there = there.filter(|(index, _)| !gone.contains(index));
        Self {
            there: there.map(|(_, disk)| disk.clone()).collect(),
        }
    }
}

/// Work with its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub kind: WorkKind,
    /// The disk that is drained, or gone.
    pub disk: Option<usize>,
}

/// The work as it applies to this pool: its disk, and whether it needs a spare. `None` if it is impossible in this
/// pool.
pub fn job_of(
    work: &Work,
    shape: &Shape,
    file: &PoolFile,
    lost: &BTreeSet<usize>,
    burdened: &BTreeSet<usize>,
) -> Option<Job> {
    let staying: Vec<usize> = file
        .members
        .iter()
        .filter(|member| !member.is_draining && !lost.contains(&member.index))
        .map(|member| member.index)
        .collect();
    let pick = |from: &[usize]| {
        let place = (work.pick % from.len().max(1) as u64) as usize;
        from.get(place).copied()
    };
    // With fewer disks the promised protection would be lower.
    let fewer = file.data_count().saturating_sub(1);
    let is_enough = shape.tolerated_of(fewer) >= shape.tolerated() && fewer > shape.tolerated();
    match work.kind {
        WorkKind::Drain { has_spare } => Some(Job {
            // Often the first, which usually has the metadata's state: the volume is then reopened.
            disk: Some(match (work.pick >> 61) & 1 {
                1 => *staying.first()?,
                _ => pick(&staying)?,
            }),
            kind: WorkKind::Drain {
                has_spare: has_spare || !is_enough,
            },
        }),
        WorkKind::Rebuild {
            has_spare,
            comes_back,
        } => {
            let may_go = |index: &usize| {
                let mut gone = held(shape, file, lost, burdened);
                gone.insert(*index);
                gone.len() <= shape.tolerated()
            };
            let mut may_go: Vec<usize> = staying.into_iter().filter(may_go).collect();
            // Usually one without trouble, so that the disks with trouble are the sources of its rebuild.
            let is_sound = |it: &usize| !shape.bad_disks.contains(it);
            if (work.pick >> 62) != 0 && may_go.iter().any(is_sound) {
                may_go.retain(is_sound);
            }
            Some(Job {
                disk: Some(pick(&may_go)?),
                kind: WorkKind::Rebuild {
                    has_spare: has_spare || !(is_enough || comes_back),
                    comes_back,
                },
            })
        }
        WorkKind::Scrub | WorkKind::Journal => Some(Job {
            disk: None,
            kind: work.kind,
        }),
    }
}

/// Disks that count as lost, members or not, until everything is known to have its full protection again: `lost` ones
/// are missing, `burdened` ones were missing, or had the trouble, since that was known last.
fn held(
    shape: &Shape,
    file: &PoolFile,
    lost: &BTreeSet<usize>,
    burdened: &BTreeSet<usize>,
) -> BTreeSet<usize> {
    let is_bad = |index: &usize| match shape.trouble {
        // Nothing is promised for them, except that the metadata exists.
        Trouble::Beyond => false,
        _ => shape.bad_disks.contains(index),
    };
    let members = file.members.iter().map(|member| member.index);
    let bad = members.filter(is_bad);
    bad.chain(lost.iter().copied())
        .chain(burdened.iter().copied())
        .collect()
}

/// All sets of M disks that may be taken away, in order, at most `sets_max`.
pub fn all_gone_sets(
    shape: &Shape,
    file: &PoolFile,
    lost: &BTreeSet<usize>,
    burdened: &BTreeSet<usize>,
    sets_max: usize,
) -> Vec<BTreeSet<usize>> {
    let held = held(shape, file, lost, burdened);
    let (must, left): (BTreeSet<usize>, BTreeSet<usize>) =
        held.into_iter().partition(|index| file.has(*index));
    let count = shape.tolerated().saturating_sub(left.len());
    if count == 0 || must.len() > count || file.members.len() <= count {
        return Vec::new();
    }
    let mut sets = BTreeSet::from([must]);
    for member in &file.members {
        let is_small = |set: &&BTreeSet<usize>| set.len() < count;
        let with_it = |set: &BTreeSet<usize>| set.iter().copied().chain([member.index]).collect();
        let more: Vec<BTreeSet<usize>> = sets.iter().filter(is_small).map(with_it).collect();
        sets.extend(more);
    }
    let whole = sets.into_iter().filter(|set| set.len() == count);
    whole.take(sets_max).collect()
}

/// M disks that may be taken away: the mandatory ones, then those of `wanted`, then any. `None` if none may.
pub fn gone_set(
    shape: &Shape,
    file: &PoolFile,
    lost: &BTreeSet<usize>,
    burdened: &BTreeSet<usize>,
    wanted: &[usize],
    rng: &mut Rng,
) -> Option<BTreeSet<usize>> {
    let held = held(shape, file, lost, burdened);
    let (mut gone, left): (BTreeSet<usize>, BTreeSet<usize>) =
        held.into_iter().partition(|index| file.has(*index));
    let count = shape.tolerated().checked_sub(left.len())?;
    if gone.len() > count || file.members.len() <= count {
        return None;
    }
    let wanted = wanted.iter().copied().filter(|index| file.has(*index));
    for index in wanted {
        if gone.len() < count {
            gone.insert(index);
        }
    }
    while gone.len() < count {
        let place = rng.below(file.members.len() as u64) as usize;
        gone.insert(file.members[place].index);
    }
    Some(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Protection, Scenario};

    fn set(indexes: &[usize]) -> BTreeSet<usize> {
        indexes.iter().copied().collect()
    }

    fn file(indexes: &[usize]) -> PoolFile {
        let member = |index: &usize| Member {
            index: *index,
            id: DiskId(*index as u128),
            is_draining: false,
            is_journal: false,
        };
        PoolFile {
            members: indexes.iter().map(member).collect(),
        }
    }

    /// Four disks that may lose two.
    fn shape(trouble: Trouble, bad_disks: &[usize]) -> Shape {
        Shape {
            trouble,
            disk_count: 4,
            protection: Protection::Plus(2),
            bad_disks: bad_disks.to_vec(),
            ..Scenario::from_seed(1).shape
        }
    }

    #[test]
    fn as_many_are_taken_away_as_may_be_lost() {
        let left = file(&[0, 2, 3, 4]);
        let none = file(&[0, 1, 2, 3]);
        type Row<'a> = (
            &'a str,
            &'a PoolFile,
            &'a [usize],
            &'a [usize],
            usize,
            &'a [usize],
        );
        let rows: [Row; 6] = [
            ("any", &none, &[], &[], 6, &[]),
            ("one is gone", &none, &[2], &[2], 3, &[2]),
            (
                "one came back, and the others may lack what it missed",
                &none,
                &[],
                &[3],
                3,
                &[3],
            ),
            (
                "one left, and it is not known to be whole",
                &left,
                &[],
                &[1],
                4,
                &[],
            ),
            ("one left, all is whole", &left, &[], &[], 6, &[]),
            ("two are gone", &none, &[0, 1], &[0, 1], 1, &[0, 1]),
        ];
        for (name, file, lost, burdened, sets_count, must) in rows {
            let shape = shape(Trouble::Crashes, &[]);
            let sets = all_gone_sets(&shape, file, &set(lost), &set(burdened), 15);
            assert_eq!(sets.len(), sets_count, "{name}");
            assert!(sets.iter().all(|one| set(must).is_subset(one)), "{name}");
            let mut rng = Rng::new(7);
            let one = gone_set(&shape, file, &set(lost), &set(burdened), &[0], &mut rng);
            assert!(one.is_some_and(|one| sets.contains(&one)), "{name}");
        }
    }

    #[test]
    fn a_disk_is_lost_only_where_the_promise_allows_it() {
        let file = file(&[0, 1, 2, 3]);
        let work = |kind| Work {
            kind,
            pick: 5,
            power_off_after: None,
            after_ops: 0,
        };
        let rebuild = WorkKind::Rebuild {
            has_spare: false,
            comes_back: false,
        };
        let disk_of = |shape: &Shape, kind| {
            let none = BTreeSet::new();
            job_of(&work(kind), shape, &file, &none, &none).and_then(|job| job.disk)
        };
        assert_eq!(disk_of(&shape(Trouble::Crashes, &[]), rebuild), Some(1));
        let bad = shape(Trouble::BadDisks, &[2, 3]);
        assert_eq!(disk_of(&bad, rebuild), Some(3));
        let drain = WorkKind::Drain { has_spare: true };
        assert_eq!(disk_of(&bad, drain), Some(1));
        let beyond = shape(Trouble::Beyond, &[0, 1, 2]);
        assert_eq!(disk_of(&beyond, rebuild), Some(1));
    }

    /// With three disks of `+2n` none can leave without a replacement.
    #[test]
    fn a_spare_is_drawn_where_the_others_are_too_few() {
        let mut shape = shape(Trouble::Crashes, &[]);
        let none = BTreeSet::new();
        for (disk_count, want) in [(4, false), (3, true)] {
            shape.disk_count = disk_count;
            let work = Work {
                kind: WorkKind::Drain { has_spare: false },
                pick: 0,
                power_off_after: None,
                after_ops: 0,
            };
            let indexes: Vec<usize> = (0..disk_count).collect();
            let job = job_of(&work, &shape, &file(&indexes), &none, &none).unwrap();
            assert_eq!(job.kind, WorkKind::Drain { has_spare: want });
        }
    }
}
