//! How many losses of disks, drives and nodes data survives now.
//!
//! Owns: the counting. Must not know: warnings.

use cairn_base::domain::{Losses, Survives};

use super::observed::Observed;

/// What may be lost next, whichever it is, so that no data of the default protection is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossesSurvived {
    pub disks: usize,
    /// Where several disks are on one drive: drives that there are, and those that may be lost.
    pub devices: Option<(usize, usize)>,
}

impl Observed {
    /// Lost disks that hold something: what was on the others can be had without them.
    fn needed(&self) -> usize {
        self.disks_lost.len().saturating_sub(self.disks_lost_empty)
    }

    /// Whether more is lost than data survives: neither are the lost disks few, nor are they on few nodes.
    pub(super) fn is_beyond(&self) -> bool {
        let survives = Survives {
            disks: self.tolerated,
            nodes: self.nodes_tolerated,
        };
        let lost = Losses {
            disks: self.needed(),
            // With one node it is either there or nothing is.
            nodes: match self.node_count > 1 {
                true => self.nodes_lost,
                false => self.needed(),
            },
        };
        !survives.covers(lost)
    }

    /// Whether data may be lost with the next disk, whichever it is.
    pub(super) fn is_at_the_limit(&self) -> bool {
        let next_node_may_go = self.node_count > 1 && self.nodes_lost < self.nodes_tolerated;
        self.needed() > 0 && self.needed() >= self.tolerated && !next_node_may_go
    }

    /// Of these many that are survived when all is well, what is left with what is lost and short now.
    fn left_of(&self, tolerated: usize, lost: usize) -> usize {
        let left = tolerated.saturating_sub(lost);
        let of_short = self.segments_short.map(|(_, spare)| spare.max(0));
        let of_short = of_short.map_or(left, |spare| usize::try_from(spare).unwrap_or(0));
        // Which protection narrow data has is not counted. That which survives nothing is counted apart.
        let of_narrow = match (self.single_segments, self.narrow_segments) {
            (0, 0) => left,
            (0, _) => 1,
            (_, _) => 0,
        };
        left.min(of_short).min(of_narrow)
    }

    pub(super) fn nodes_left(&self) -> usize {
        self.left_of(self.nodes_tolerated, self.nodes_lost)
    }

    pub(super) fn protection(&self) -> LossesSurvived {
        let disks = self.left_of(self.tolerated, self.needed());
        let disks = match self.node_count > 1 {
            // As many disks are on as many nodes at most.
            true => disks.max(self.nodes_left()),
            false => disks,
        };
        let is_shared = self.disks_by_drive.iter().any(|disks| *disks > 1);
        let devices = is_shared.then(|| {
            let mut by_drive = self.disks_by_drive.clone();
            by_drive.sort_unstable_by_key(|disks| std::cmp::Reverse(*disks));
            // The worst that may go at a time. One disk on several drives counts with each: that is the safe side.
            let lost = by_drive.iter().scan(0, |lost: &mut usize, disks| {
                *lost = lost.saturating_add(*disks);
                Some(*lost)
            });
            let survived = lost.take_while(|lost| *lost <= disks).count();
            (by_drive.len(), survived)
        });
        LossesSurvived { disks, devices }
    }
}
