//! What has to be done for segments whose shards are where they cannot stay, as plain data.
//!
//! Owns: what a disk's standing means for a segment, and which segment comes first.
//! Must not know: how any of it is done, or when.

use cairn_base::{DiskId, Media, SegmentId, VolumeId};
use cairn_erasure::Code;
use cairn_segment::{MoveError, MovingShard, Protection, SegmentInfo, Urgency};

/// A segment with shards on draining disks or are lost, or with too few of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub volume: VolumeId,
    pub segment: SegmentId,
    /// The disk of each of its shards.
    pub disks: Vec<DiskId>,
    /// Shards that have to get to another disk; all of them where the segment has too few.
    pub shards: Vec<u8>,
    /// Bytes of one shard.
    pub shard_len_bytes: u64,
    pub code: Code,
    /// The device class that it is to be on.
    pub media: Option<Media>,
    /// The protection that it asks for, if not that of its volume.
    pub protection: Option<Protection>,
    /// How many more of its shards may be lost.
    pub spare: i16,
    /// How many nodes may be lost.
    pub nodes_spare: usize,
    /// Some of its shards cannot be read where they should be.
    pub is_short: bool,
    /// Some of the disks leave for good, so that it may be rewritten; else a disk may yet be added.
    pub may_rewrite: bool,
    /// One of its disks may come back.
    pub has_away: bool,
    /// It has less protection than is asked for, and can have that: written when disks were missing, before
    /// some were added, or before more was asked for. Only writing it anew helps; and that comes before its shards are
    /// moved off draining disks, for it must not depend on the next ones as it did on those.
    pub is_narrow: bool,
    /// More of its shards are on one node than have to be: it was made, or rebuilt, while nodes were away or had not
    /// joined yet.
    pub is_crowded: bool,
    /// It is on another device class than it asks for, and has all else.
    pub is_misplaced: bool,
    /// It has all that it is to have, and one shard goes to this disk because that is emptier.
    pub to: Option<DiskId>,
}

impl Work {
    /// Bytes that rewriting it writes at most: twice what it takes now.
    pub fn rewrite_bytes_max(&self) -> u64 {
        2 * self.shard_len_bytes * self.disks.len() as u64
    }

    /// One of its shards, which is to get to another disk, when the others are on the disks `held`.
    pub fn moving<'a>(&self, held: &'a [DiskId], index: u8) -> MovingShard<'a> {
        MovingShard {
            held,
            code: self.code,
            index,
            len_bytes: self.shard_len_bytes,
            media: self.media,
        }
    }

    /// A shard of a segment that lacks nothing, which goes to an emptier disk.
    pub fn spreading(volume: VolumeId, info: &SegmentInfo, index: u8, to: DiskId) -> Self {
        Self {
            disks: info.disks.clone(),
            shards: vec![index],
            to: Some(to),
            ..Self::none(volume, info)
        }
    }

    /// Nothing yet that is to be done for a segment.
    fn none(volume: VolumeId, info: &SegmentInfo) -> Self {
        Self {
            volume,
            segment: info.id,
            disks: Vec::new(),
            shards: Vec::new(),
            shard_len_bytes: info.shard_len_bytes,
            code: info.code,
            media: info.media,
            protection: info.protection,
            nodes_spare: 0,
            spare: i16::from(info.code.parity()),
            is_short: false,
            may_rewrite: false,
            has_away: false,
            is_narrow: false,
            is_crowded: false,
            is_misplaced: false,
            to: None,
        }
    }

    /// The risk until it is done: a segment that only moves, or gets more than it ever had, has all that it is to have.
    pub fn urgency(&self) -> Urgency {
        match (self.is_short, self.spare) {
            // It does not survive the nodes that it is to survive.
            (false, _) if self.is_crowded => Urgency::Degraded,
            (false, _) => Urgency::Calm,
            (true, 1..) => Urgency::Degraded,
            (true, _) => Urgency::Bare,
        }
    }

    /// Whether its records are rewritten, because a shard cannot be moved.
    pub fn is_rewritten_after(&self, error: &MoveError) -> bool {
        match error {
            // It may stay where it is.
            _ if self.to.is_some() => false,
            // Nothing vouches for the shards; the records have checksums of their own.
            MoveError::Unsealed => true,
            MoveError::NoTarget => self.may_rewrite,
            // Enough are there, and some have bad pieces: all else in it must not stay unprotected because of them.
            MoveError::TooFew(_) => self.spare >= 0 && !self.has_away,
            MoveError::NotNow | MoveError::Disk(_) => false,
        }
    }
}

/// The planner's view of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there and stays.
    Fine,
    /// It is there, and everything on it has to go.
    Draining,
    /// It cannot be read; it may come back.
    Away,
    /// It cannot be read, and is not waited for any longer.
    GivenUp,
    /// It is no disk of the pool any more, or leaves and cannot be read.
    Gone,
}

/// What has to be done for the segments of a volume, in no order. `parity_now`: the shards that a segment written now
/// could lose, by the protection that it asks for. `nodes_spare`: how many nodes a segment may lose. `crowded`: a shard of a segment whose disks are all fine
/// that should be on another node; `misplaced`: those that should be on another device class.
pub fn work_of(
    volume: VolumeId,
    segments: &[SegmentInfo],
    parity_now: impl Fn(Option<Protection>) -> u8,
    standing: impl Fn(DiskId) -> Standing,
    nodes_spare: impl Fn(&SegmentInfo) -> usize,
    crowded: impl Fn(&SegmentInfo) -> Option<u8>,
    misplaced: impl Fn(&SegmentInfo) -> Vec<u8>,
) -> Vec<Work> {
    let mut all = Vec::new();
    for info in segments {
        let mut work = Work::none(volume, info);
        for (index, disk) in (0..).zip(&info.disks) {
            let standing = standing(*disk);
            match standing {
                Standing::Fine => continue,
                Standing::Draining => {}
                Standing::Away | Standing::GivenUp | Standing::Gone => work.spare -= 1,
            }
            if standing != Standing::Away {
                work.shards.push(index);
            }
            work.has_away |= standing == Standing::Away;
            work.may_rewrite |= matches!(standing, Standing::Draining | Standing::Gone);
        }
        work.is_short = work.spare < i16::from(info.code.parity());
        // What it had comes first: to make a shard anew takes less room than to write all anew. And one that is away
        // may have what is to be written.
        let is_narrow = info.code.parity() < parity_now(info.protection);
        if !work.is_short && info.sealed && is_narrow {
            work.is_narrow = true;
            if work.shards.is_empty() {
                work.shards = (0..info.code.total()).collect();
            }
        }
        if !work.is_short && info.sealed && work.shards.is_empty() {
            work.shards.extend(crowded(info));
            work.is_crowded = !work.shards.is_empty();
        }
        if !work.is_short && info.sealed && work.shards.is_empty() {
            work.shards.extend(misplaced(info));
            work.is_misplaced = !work.shards.is_empty();
        }
        if !work.shards.is_empty() {
            work.disks.clone_from(&info.disks);
            work.nodes_spare = nodes_spare(info);
            all.push(work);
        }
    }
    all
}

/// Least redundancy first: in shards, then in nodes.
pub fn order(work: &mut [Work]) {
    work.sort_by_key(|work| (work.spare, work.nodes_spare, work.volume, work.segment));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(id: u64, disks: &[u128]) -> SegmentInfo {
        SegmentInfo {
            id: SegmentId(id),
            code: Code::new(disks.len() as u8 - 2, 2).unwrap(),
            disks: disks.iter().map(|disk| DiskId(*disk)).collect(),
            shard_len_bytes: 10,
            sealed: true,
            remote: None,
            media: None,
            protection: None,
        }
    }

    /// Of disks on one node, which nothing survives the loss of.
    fn one_node(_: &SegmentInfo) -> usize {
        0
    }

    fn nobody(_: &SegmentInfo) -> Option<u8> {
        None
    }

    fn none(_: &SegmentInfo) -> Vec<u8> {
        Vec::new()
    }

    /// What crowds a node moves, unless its segment has other worries.
    #[test]
    fn what_crowds_a_node_moves() {
        let standing = |disk: DiskId| match disk.0 {
            1 => Standing::Away,
            2 => Standing::Draining,
            _ => Standing::Fine,
        };
        let open = SegmentInfo {
            sealed: false,
            remote: None,
            ..info(4, &[5, 6, 7, 8])
        };
        let segments = [
            info(1, &[1, 5, 6, 7]),
            info(2, &[2, 5, 6, 7]),
            info(3, &[5, 6, 7, 8]),
            open,
        ];
        let work = work_of(
            VolumeId(1),
            &segments,
            |_| 2,
            standing,
            one_node,
            |_| Some(3),
            none,
        );
        let got: Vec<(u64, Vec<u8>, Urgency)> = work
            .into_iter()
            .map(|work| (work.segment.0, work.shards.clone(), work.urgency()))
            .collect();
        let want = [(2, vec![0], Urgency::Calm), (3, vec![3], Urgency::Degraded)];
        assert_eq!(got, want);
    }

    /// Of segments that may lose as many shards, those come first that may lose fewer nodes.
    #[test]
    fn what_may_lose_fewer_nodes_comes_first() {
        let standing = |disk: DiskId| match disk.0 {
            1 => Standing::GivenUp,
            2 => Standing::Draining,
            _ => Standing::Fine,
        };
        let segments = [
            info(1, &[2, 5, 6, 7]),
            info(2, &[1, 5, 6, 7]),
            info(3, &[1, 5, 6, 8]),
        ];
        let nodes_spare = |info: &SegmentInfo| usize::from(info.id != SegmentId(3));
        let mut work = work_of(
            VolumeId(1),
            &segments,
            |_| 2,
            standing,
            nodes_spare,
            nobody,
            none,
        );
        order(&mut work);
        let ids: Vec<u64> = work.iter().map(|work| work.segment.0).collect();
        assert_eq!(ids, [3, 2, 1]);
    }

    #[test]
    fn what_lost_most_comes_first() {
        let standing = |disk: DiskId| match disk.0 {
            1 => Standing::Draining,
            2 => Standing::GivenUp,
            3 => Standing::Away,
            4 => Standing::Gone,
            _ => Standing::Fine,
        };
        let segments = [
            info(1, &[5, 6, 7, 8]),
            info(2, &[1, 5, 6, 7]),
            info(3, &[2, 5, 6, 7]),
            info(4, &[5, 3, 6, 7]),
            info(5, &[5, 3, 2, 7]),
            info(6, &[4, 3, 2, 7]),
        ];
        let mut work = work_of(
            VolumeId(1),
            &segments,
            |_| 2,
            standing,
            one_node,
            nobody,
            none,
        );
        order(&mut work);
        type Row = (u64, Vec<u8>, i16, bool, Urgency);
        let row = |work: Work| {
            let urgency = work.urgency();
            let may_rewrite = work.may_rewrite;
            (
                work.segment.0,
                work.shards,
                work.spare,
                may_rewrite,
                urgency,
            )
        };
        let got: Vec<Row> = work.into_iter().map(row).collect();
        let want: Vec<Row> = vec![
            (6, vec![0, 2], -1, true, Urgency::Bare),
            (5, vec![2], 0, false, Urgency::Bare),
            (3, vec![0], 1, false, Urgency::Degraded),
            (2, vec![0], 2, true, Urgency::Calm),
        ];
        assert_eq!(got, want);
        // One copy that moves is as it was.
        let one = SegmentInfo {
            code: Code::new(1, 0).unwrap(),
            disks: vec![DiskId(1)],
            ..info(7, &[1, 5, 6])
        };
        let [work] = &work_of(VolumeId(1), &[one], |_| 0, standing, one_node, nobody, none)[..]
        else {
            panic!("it has to move")
        };
        assert_eq!((work.spare, work.urgency()), (0, Urgency::Calm));
    }

    /// A bad piece keeps a shard from being computed for ever, unless a disk that may come back has what is missing.
    #[test]
    fn what_cannot_be_computed_is_written_anew() {
        let standing = |disk: DiskId| match disk.0 {
            1 | 2 => Standing::GivenUp,
            3 => Standing::Away,
            _ => Standing::Fine,
        };
        let too_few = MoveError::TooFew(String::new());
        let disks: [(&[u128], bool); 3] = [
            (&[1, 2, 6, 7, 8, 9], true),
            (&[1, 2, 1, 7, 8, 9], false),
            (&[1, 3, 6, 7, 8, 9], false),
        ];
        for (disks, want) in disks {
            let work = work_of(
                VolumeId(1),
                &[info(1, disks)],
                |_| 2,
                standing,
                one_node,
                nobody,
                none,
            );
            assert_eq!(work[0].is_rewritten_after(&too_few), want, "{disks:?}");
        }
    }

    #[test]
    fn what_has_too_few_shards_is_written_anew() {
        let fine = |_| Standing::Fine;
        let open = SegmentInfo {
            sealed: false,
            remote: None,
            ..info(3, &[5, 6, 7])
        };
        let segments = [info(1, &[5, 6, 7]), info(2, &[5, 6, 7, 8]), open];
        assert_eq!(
            work_of(VolumeId(1), &segments, |_| 2, fine, one_node, nobody, none),
            []
        );
        let work = work_of(VolumeId(1), &segments, |_| 3, fine, one_node, nobody, none);
        let got: Vec<(u64, usize)> = work
            .iter()
            .map(|work| (work.segment.0, work.shards.len()))
            .collect();
        assert_eq!(got, [(1, 3), (2, 4)]);
        assert!(work.iter().all(|work| work.is_narrow && work.spare == 2));
        // With draining disks it can yet be moved, too.
        let draining = |disk: DiskId| match disk.0 {
            5 => Standing::Draining,
            _ => Standing::Fine,
        };
        let work = work_of(
            VolumeId(1),
            &segments[..1],
            |_| 3,
            draining,
            one_node,
            nobody,
            none,
        );
        assert!(work[0].is_narrow && work[0].may_rewrite);
        assert_eq!(work[0].shards, [0]);
        // What cannot be read now cannot be written either.
        let away = |disk: DiskId| match disk.0 {
            5 => Standing::Away,
            _ => Standing::Fine,
        };
        assert_eq!(
            work_of(VolumeId(1), &segments, |_| 3, away, one_node, nobody, none),
            []
        );
    }
}
