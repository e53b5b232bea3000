//! Holes in files: making them, and reporting where they are.
//!
//! Owns: a hole is made in steps of bounded size, each of them complete after a crash. Must not know: the caller.
//!
//! A hole takes no space and reads as zeros, so a write of zeros makes one, too.

use std::ops::Range;
use std::sync::Arc;

use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, View};
use cairn_meta::{InodeKind, Key, Ticket};
use tokio::sync::watch;

use crate::kernel::{
    Edit, ExtentChange, FlightResult, Inode, State, Why, fold_journal, has_bytes_in,
};
use crate::perm::{READ, WRITE, require_data};
use crate::types::{Credentials, FsError};
use crate::volume::{Fs, FsView, VolumeCore};

/// Approximate number of extents that one step removes.
pub(crate) const PUNCH_EXTENTS_MAX: usize = 4096;
/// Extents, and pieces in memory, that one query of the allocation of a file visits.
const LOOK_COUNT_MAX: usize = 1024;

/// The result of a step of making a hole.
enum Step {
    /// There is a hole up to here.
    Done(u64, Ticket),
    /// Bytes of the range are being written into segments.
    Wait(Vec<watch::Receiver<FlightResult>>),
}

/// A part of a file that is completely allocated, or completely a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub range: Range<u64>,
    pub is_allocated: bool,
}

impl Fs {
    /// Makes a hole of `range`; leaves out the part beyond the end of the file. Durable on return.
    ///
    /// A large hole is made in steps: after a crash, only its first part may be there. Readers and writers go on
    /// meanwhile. A write that was acknowledged before this call is gone, a later one stays.
    pub async fn punch(
        &self,
        who: &Credentials,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<(), FsError> {
        self.keep_before_change(who, ino).await?;
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode(ino)).await?;
        let mut at = range.start;
        let mut last = Ticket::NONE;
        while at < range.end {
            shared.meta.admit().await;
            let step = || shared.punch_some(who, &inode, at..range.end);
            match shared.reading(step).await? {
                Step::Done(end, ticket) => {
                    // The number of batches that wait in memory must stay bounded.
                    if last != Ticket::NONE && end < range.end {
                        shared.outcome(last).await?;
                    }
                    last = last.max(ticket);
                    at = end;
                }
                Step::Wait(flights) => {
                    for mut done in flights {
                        // The result does not matter: the flight has ended. A failed one left its bytes dirty.
                        let _ = done.wait_for(Option::is_some).await;
                    }
                }
            }
        }
        if planted::is(Bug::HoleNotAwaited) {
            return Ok(());
        }
        shared.settle(Ok(((), last))).await
    }
}

impl FsView {
    /// The allocation of `range`: contiguous parts from the start of the range on, each unlike its neighbours, not
    /// necessarily up to the end. Empty only for an empty range.
    pub async fn allocation(
        &self,
        who: &Credentials,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<Vec<Allocation>, FsError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let shared = &self.shared;
        let found = shared
            .reading(|| shared.allocation_of(who, self.view(), ino, &range))
            .await;
        shared.settle(found).await
    }
}

impl VolumeCore {
    fn punch_some(
        &self,
        who: &Credentials,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<Step, FsError> {
        let ino = inode.ino;
        let state = inode.lock();
        require_regular(&state)?;
        require_data(who, state.guarded(), WRITE)?;
        state.require_changeable(self.now())?;
        self.require_serving()?;
        let file_end = state.record.size_bytes;
        if range.start >= file_end {
            return Ok(Step::Done(range.end, Ticket::NONE));
        }
        let mut range = range.start..range.end.min(file_end);
        let is_whole = range.end == file_end;
        let stored = self.extents_in(ino, &state, &mut range)?;
        let touching = state.flights_in(&range);
        if !touching.is_empty() {
            return Ok(Step::Wait(touching));
        }
        let is_dirty = has_bytes_in(state.dirty.runs(), &range);
        let end = if is_whole && range.end == file_end {
            u64::MAX
        } else {
            range.end
        };
        if stored.is_empty() && !is_dirty && state.journal_last().0 == 0 {
            return Ok(Step::Done(end, state.shown()));
        }
        let mut change = ExtentChange::default();
        let mut map = self.extent_map();
        map.load(0..u64::MAX, stored);
        map.clear(range.clone(), &mut change);
        drop(map);
        for record in change.records_gone() {
            self.segments.cache_forget(self.volume, record);
        }
        let extents = change;
        let mut change = self.begin_change(state);
        change.edit(ino);
        change.put_extents(Why::Changed, ino, extents);
        let mut edit = change.edit(ino);
        edit.touch_mtime(self.now());
        let Edit { state, batch, .. } = edit;
        state.extents.forget(&range);
        if !planted::is(Bug::HoleForgetsDirty) {
            let cleared = state.dirty.clear(range.clone());
            state.fresh.remove(range.clone());
            self.sync_pending(state);
            self.dirty.add(cleared);
        }
        if !planted::is(Bug::HoleForgetsJournal) {
            fold_journal(ino, state, &range, batch);
        }
        // Unstable bytes may have set the end of the file.
        state.stable_size_bytes = state.stable_size_bytes.max(range.end);
        state.sequence += 1;
        Ok(Step::Done(end, change.commit().ticket))
    }

    fn allocation_of(
        &self,
        who: &Credentials,
        view: View,
        ino: Ino,
        range: &Range<u64>,
    ) -> Result<(Vec<Allocation>, Ticket), FsError> {
        let inode = self.inode_in(view, ino)?;
        let state = inode.lock();
        require_regular(&state)?;
        require_data(who, state.guarded(), READ)?;
        let mut parts: Vec<Range<u64>> = Vec::new();
        // The checked range ends here.
        let mut end = range.end;
        if state.record.used_bytes > 0 {
            let (from, _) = Key::extents_past(inode.ino, range.start);
            let to = Key::extent(inode.ino, u64::MAX);
            self.scan_extents(inode.view, &from, &to, |extent| {
                if extent.start >= end {
                    return false;
                }
                if parts.len() == LOOK_COUNT_MAX {
                    end = extent.start;
                    return false;
                }
                parts.push(extent.start..extent.end);
                true
            })?;
        }
        let flying = state.flights.iter().map(|flight| &*flight.runs);
        for runs in flying.chain([state.dirty.runs()]) {
            let before = runs.range(..range.start).next_back();
            let touching = before.into_iter().chain(runs.range(range.start..end));
            for (index, (start, run)) in touching.enumerate() {
                if index == LOOK_COUNT_MAX {
                    end = end.min((*start).max(range.start + 1));
                    break;
                }
                parts.push(*start..start + run.data.len() as u64);
            }
        }
        Ok((joined(parts, &(range.start..end)), state.shown()))
    }
}

/// Cuts allocated parts, in any order, to `range`, joins them, and adds the holes between them.
fn joined(mut parts: Vec<Range<u64>>, range: &Range<u64>) -> Vec<Allocation> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut found: Vec<Allocation> = Vec::new();
    let mut at = range.start;
    let mut push = |range: Range<u64>, is_allocated| match found.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.is_allocated == is_allocated => last.range.end = range.end,
        _ => found.push(Allocation {
            range,
            is_allocated,
        }),
    };
    for part in parts {
        let (start, end) = (part.start.max(at), part.end.min(range.end));
        if start < end {
            push(at..start, false);
            push(start..end, true);
            at = end;
        }
    }
    push(at..range.end, false);
    found
}

pub(crate) fn require_regular(state: &State) -> Result<(), FsError> {
    state.require_live()?;
    match state.record.kind {
        InodeKind::Regular => Ok(()),
        InodeKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        name: &'static str,
        /// Starts and ends of allocated parts.
        parts: &'static [(u64, u64)],
        /// Ends of the reported parts, and whether each is allocated.
        want: &'static [(u64, bool)],
    }

    #[test]
    fn parts_are_joined_with_holes_between_them() {
        let cases = [
            Case {
                name: "nothing",
                parts: &[],
                want: &[(100, false)],
            },
            Case {
                name: "all",
                parts: &[(0, 200)],
                want: &[(100, true)],
            },
            Case {
                name: "unsorted, touching",
                parts: &[(40, 60), (20, 40)],
                want: &[(20, false), (60, true), (100, false)],
            },
            Case {
                name: "overlapping",
                parts: &[(10, 50), (20, 30), (45, 90)],
                want: &[(90, true), (100, false)],
            },
            Case {
                name: "outside",
                parts: &[(0, 5), (100, 120)],
                want: &[(100, false)],
            },
        ];
        for Case { name, parts, want } in cases {
            let parts = parts.iter().map(|(start, end)| *start..*end);
            let found = joined(parts.collect(), &(10..100));
            let got: Vec<_> = found
                .iter()
                .map(|part| (part.range.end, part.is_allocated))
                .collect();
            assert_eq!(got, want, "{name}");
            assert_eq!(found[0].range.start, 10, "{name}");
        }
    }
}
