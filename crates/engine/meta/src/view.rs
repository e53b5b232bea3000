//! Reading a volume in one of its views.
//!
//! Owns: point reads and scans through the overlay, consistent while batches arrive. Must not know: the meaning of
//! keys, the owner of snapshots, how the state keeps older versions ([`crate::state::versions`]).

use std::ops::ControlFlow;

use bytes::Bytes;
use cairn_base::{Generation, View};
use cairn_formats::metadata::Key;

use crate::batch::Ticket;
use crate::error::MetaError;
use crate::shared::StoreCore;
use crate::state::StateStore;
use crate::state::versions::{self, Entry, Version, VersionCursor};

/// Overlay entries that a scan takes at once; batches may arrive between two takes.
const SCAN_OVERLAY_COUNT_MAX: usize = 512;

/// Overlay entries, in order, with the generations of their births; `None` is a deletion.
type OverlayPart = Vec<(Key, Option<Bytes>, Generation)>;

/// Makes a cursor over a range of the state.
type MakeCursor<'a> = fn(&'a dyn StateStore, &[u8], &[u8], View) -> VersionCursor<'a>;

/// The keys of a volume as one view has them.
#[derive(Clone, Copy)]
pub struct MetaView<'a> {
    shared: &'a StoreCore,
    view: View,
}

impl<'a> MetaView<'a> {
    pub(crate) fn new(shared: &'a StoreCore, view: View) -> Self {
        Self { shared, view }
    }

    /// The visible version; in the live view the newest one, including submitted batches that are not durable yet. May
    /// read from disk. Segments and counters have their own methods.
    pub fn get(self, key: &Key) -> Result<Option<Bytes>, MetaError> {
        self.get_with_ticket(key).map(|(value, _)| value)
    }

    /// As [`Self::get`], with the ticket of the change or deletion that the result rests on; [`Ticket::NONE`] if that
    /// is known to be durable.
    pub fn get_with_ticket(self, key: &Key) -> Result<(Option<Bytes>, Ticket), MetaError> {
        self.shared.check()?;
        if self.view.is_live()
            && let Some(submitted) = self.shared.overlay.read().get(key)
        {
            return Ok((submitted.value.clone(), Ticket(submitted.position)));
        }
        // The state holds durable changes only, and everything that a snapshot shows was applied before the snapshot
        // was visible.
        let found = versions::get(&*self.shared.state, key, self.view);
        let found = found.map_err(|error| self.shared.told(error))?;
        self.require_shown()?;
        Ok((found.map(|Version { value, .. }| value), Ticket::NONE))
    }

    /// Up to `limit` entries with `from <= key < to` in order, as [`Self::get`] sees them.
    pub fn scan(self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>, MetaError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let mut error = None;
        self.scan_with(from, to, |key, value, _| {
            match Key::parse(key) {
                Ok(key) => found.push((key, Bytes::copy_from_slice(value))),
                Err(damage) => error = Some(damage),
            }
            if found.len() >= limit || error.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        match error {
            Some(damage) => Err(damage.into()),
            None => Ok(found),
        }
    }

    /// Calls `visit` with each key (its bytes, see [`crate::KeyKind::parse`]) and value that
    /// [`Self::scan`] would return, and the generation in which the value was born, without collecting them. No lock is
    /// held meanwhile.
    ///
    /// A key that does not change during a long scan is seen exactly once; the scan may or may not see changes.
    pub fn scan_with(
        self,
        from: &Key,
        to: &Key,
        visit: impl FnMut(&[u8], &[u8], Generation) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.scan_by(VersionCursor::new, from, to, visit)
    }

    /// As [`Self::scan_with`], for a pass over much of the volume: its reads do not evict cached data of clients.
    pub fn pass_over(
        self,
        from: &Key,
        to: &Key,
        visit: impl FnMut(&[u8], &[u8], Generation) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.scan_by(VersionCursor::passing, from, to, visit)
    }

    fn scan_by(
        self,
        cursor: MakeCursor<'a>,
        from: &Key,
        to: &Key,
        mut visit: impl FnMut(&[u8], &[u8], Generation) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.shared.check()?;
        let mut from = from.clone();
        while from < *to {
            let (overlay, cursor, end) = self.part(cursor, &from, to);
            let flow = merge(&overlay, cursor, &mut visit);
            let flow = flow.map_err(|error| self.shared.told(error))?;
            match end {
                Some(next) if flow.is_continue() => from = next,
                _ => break,
            }
        }
        self.require_shown()
    }

    /// Checked after reading: if the snapshot was deleted meanwhile, the read may be incomplete.
    fn require_shown(self) -> Result<(), MetaError> {
        match self.view {
            View::Snapshot(generation) if !self.shared.shows(generation) => {
                Err(self.shared.no_such_view(self.view))
            }
            _ => Ok(()),
        }
    }

    /// The next consistent part of a range: some overlay entries, a cursor over the state with the same end, and the
    /// next start unless the range ends there.
    fn part(
        self,
        cursor: MakeCursor<'a>,
        from: &Key,
        to: &Key,
    ) -> (OverlayPart, VersionCursor<'a>, Option<Key>) {
        // The cursor is made under the lock: a change that leaves the overlay later is in both, and never in neither.
        let overlay = self.shared.overlay.read();
        let count_max = match self.view {
            View::Live => SCAN_OVERLAY_COUNT_MAX,
            View::Snapshot(_) => 0,
        };
        let taken: OverlayPart = overlay
            .range(from..to)
            .take(count_max)
            .map(|(key, submitted)| (key.clone(), submitted.value.clone(), submitted.birth))
            .collect();
        let next = match taken.last() {
            Some((last, ..)) if taken.len() == SCAN_OVERLAY_COUNT_MAX => Some(last.successor()),
            _ => None,
        };
        let cursor = cursor(
            &*self.shared.state,
            from.as_bytes(),
            next.as_ref().unwrap_or(to).as_bytes(),
            self.view,
        );
        (taken, cursor, next)
    }
}

/// Merges two ordered sequences; the overlay's entry for a key is the newer.
fn merge(
    overlay: &[(Key, Option<Bytes>, Generation)],
    mut cursor: VersionCursor<'_>,
    visit: &mut impl FnMut(&[u8], &[u8], Generation) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, MetaError> {
    let mut overlay = overlay.iter().peekable();
    let mut entry = Entry::default();
    let mut has_entry = cursor.next(&mut entry)?;
    loop {
        let newer = overlay.peek();
        let newer = newer.map(|(key, value, birth)| (key.as_bytes(), value, *birth));
        let flow = match newer {
            None if !has_entry => return Ok(ControlFlow::Continue(())),
            Some((key, value, birth)) if !has_entry || key <= entry.key.as_slice() => {
                let replaces = has_entry && key == entry.key;
                let flow = match value {
                    Some(value) => visit(key, value, birth),
                    None => ControlFlow::Continue(()),
                };
                overlay.next();
                if replaces {
                    has_entry = cursor.next(&mut entry)?;
                }
                flow
            }
            _ => {
                let flow = visit(&entry.key, &entry.value, entry.birth);
                has_entry = cursor.next(&mut entry)?;
                flow
            }
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
}
