//! The pool file: which disks count, and which of them leave.
//!
//! Owns: what a server would read from that file at its start, and which disks may be taken away without a loss.
//! Must not know: how the file is written; a change of it is whole and durable at once here.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::DiskId;
use cairn_testkit::{MemDisk, Rng};
use parking_lot::Mutex;

use crate::scenario::{Shape, Trouble, Work, WorkKind};
use crate::world::disk_id;

/// A disk of the pool. Its number is its identity, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub index: usize,
    /// Everything on it has to go.
    pub is_leaving: bool,
}

impl Member {
    pub fn id(&self) -> DiskId {
        disk_id(self.index)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFile {
    pub members: Vec<Member>,
}

/// The pool file, which work in the background changes.
pub type SharedFile = Arc<Mutex<PoolFile>>;

impl PoolFile {
    pub fn new(disk_count: usize) -> Self {
        let mut file = Self::default();
        (0..disk_count).for_each(|index| file.join(index));
        file
    }

    pub fn join(&mut self, index: usize) {
        self.members.push(Member {
            index,
            is_leaving: false,
        });
    }

    pub fn leave(&mut self, index: usize) {
        let member = self.members.iter_mut().find(|it| it.index == index);
        if let Some(member) = member {
            member.is_leaving = true;
        }
    }

    pub fn forget(&mut self, index: usize) {
        self.members.retain(|member| member.index != index);
    }

    pub fn has(&self, index: usize) -> bool {
        self.members.iter().any(|member| member.index == index)
    }

    pub fn is_leaving(&self, id: DiskId) -> bool {
        self.leaving().any(|member| member.id() == id)
    }

    pub fn leaving(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_leaving)
    }

    pub fn staying_count(&self) -> usize {
        self.members.len() - self.leaving().count()
    }
}

/// The pool as a start finds it.
#[derive(Clone)]
pub struct Disks {
    pub file: PoolFile,
    /// Members that are there, those that stay before those that leave.
    pub there: Vec<(Member, Arc<MemDisk>)>,
}

impl Disks {
    /// `disks` by number; `gone` are not there.
    pub fn new(file: &PoolFile, disks: &[Arc<MemDisk>], gone: &BTreeSet<usize>) -> Self {
        let mut there: Vec<(Member, Arc<MemDisk>)> = file
            .members
            .iter()
            .filter(|member| !gone.contains(&member.index))
            .map(|member| (*member, disks[member.index].clone()))
            .collect();
        there.sort_by_key(|(member, _)| member.is_leaving);
        Self {
            file: file.clone(),
            there,
        }
    }
}

/// Work with the disks that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub kind: WorkKind,
    /// The disk that is drained, or gone.
    pub disk: Option<usize>,
}

/// What work becomes in this pool: the disk that it picks, and whether it needs a spare. `None` if the pool is not one
/// that it can be done in.
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
        .filter(|member| !member.is_leaving && !lost.contains(&member.index))
        .map(|member| member.index)
        .collect();
    let pick = |from: &[usize]| {
        let place = (work.pick % from.len().max(1) as u64) as usize;
        from.get(place).copied()
    };
    // With fewer disks less would be promised.
    let fewer = file.staying_count().saturating_sub(1);
    let is_enough = shape.tolerated_of(fewer) >= shape.tolerated() && fewer > shape.tolerated();
    match work.kind {
        WorkKind::Drain { has_spare } => Some(Job {
            disk: Some(pick(&staying)?),
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
            let may_go: Vec<usize> = staying.into_iter().filter(may_go).collect();
            Some(Job {
                disk: Some(pick(&may_go)?),
                kind: WorkKind::Rebuild {
                    has_spare: has_spare || !(is_enough || comes_back),
                    comes_back,
                },
            })
        }
        WorkKind::Scrub => Some(Job {
            disk: None,
            kind: WorkKind::Scrub,
        }),
    }
}

/// Disks that count among those that may be lost, members or not, as long as it is not known that nothing depends on
/// the others for them: `lost` are not there, `burdened` were lost, or had the trouble, since everything was known to
/// have its full protection.
fn held(
    shape: &Shape,
    file: &PoolFile,
    lost: &BTreeSet<usize>,
    burdened: &BTreeSet<usize>,
) -> BTreeSet<usize> {
    let is_bad = |index: &usize| match shape.trouble {
        // Nothing is promised of them, but that the metadata is there.
        Trouble::Beyond => false,
        _ => shape.bad_disks.contains(index),
    };
    let members = file.members.iter().map(|member| member.index);
    let bad = members.filter(is_bad);
    bad.chain(lost.iter().copied())
        .chain(burdened.iter().copied())
        .collect()
}

/// M disks that may be taken away: those that must be, then those of `wanted`, then any. `None` if none may.
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
