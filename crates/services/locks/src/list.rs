//! Who holds or waits for what, for operators.
//!
//! Owns: entries, their order, pages of them. Must not know: how they are shown.

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_formats::metadata::{LeaseBits, LeaseStyle, LockMode, RangeStyle, ShareBits};

use crate::model::{ClientId, ClientIdentity, File, Now, Owner};
use crate::range::ByteRange;
use crate::state::Locks;

/// Which entries are wanted; each field that is set leaves fewer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    pub ino: Option<Ino>,
    pub client: Option<ClientId>,
}

/// One thing that somebody has, or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: Ino,
    /// Names it in the file: what [`crate::Release::Item`] takes.
    pub number: u64,
    pub client: ClientId,
    pub identity: ClientIdentity,
    /// Whether the lease of the client is over.
    pub is_silent: bool,
    pub owner: Bytes,
    pub since: Timestamp,
    pub kind: EntryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Range {
        range: ByteRange,
        mode: LockMode,
        style: RangeStyle,
    },
    Open {
        access: ShareBits,
        deny: ShareBits,
    },
    Lease {
        level: LeaseBits,
        style: LeaseStyle,
        /// What it is to go down to.
        recalled_to: Option<LeaseBits>,
    },
    Waiter {
        range: ByteRange,
        mode: LockMode,
    },
}

/// Where a page ended: the next one begins after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    pub ino: Ino,
    pub number: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// By file, then in the order in which they came.
    pub entries: Vec<Entry>,
    /// `None` if there are no more.
    pub next: Option<ListCursor>,
}

impl Locks {
    /// At most `count_max` entries after `after`. What comes or goes between two pages may be in none; nothing is in two.
    pub fn list(
        &self,
        now: Now,
        filter: Filter,
        after: Option<ListCursor>,
        count_max: usize,
    ) -> Page {
        let mut page = Page::default();
        let from = after.map_or(Ino(0), |after| after.ino);
        let from = filter.ino.map_or(from, |ino| ino.max(from));
        let to = filter.ino.unwrap_or(Ino(u64::MAX));
        if from > to {
            return page;
        }
        let of_client = match filter.client {
            Some(id) => match self.clients.get(&id) {
                Some(client) => Some(&client.files),
                None => return page,
            },
            None => None,
        };
        // Of one client only the files in which it has something are looked at.
        let inos: Box<dyn Iterator<Item = Ino>> = match of_client {
            Some(files) => Box::new(files.range(from..=to).map(|(ino, _)| *ino)),
            None => Box::new(self.files.range(from..=to).map(|(ino, _)| *ino)),
        };
        for ino in inos {
            let Some(file) = self.files.get(&ino) else {
                continue;
            };
            let first = after.filter(|after| after.ino == ino);
            let mut found = self.entries_of(now, ino, file);
            found.retain(|entry| {
                first.is_none_or(|after| entry.number > after.number)
                    && filter.client.is_none_or(|client| entry.client == client)
            });
            found.sort_unstable_by_key(|entry| entry.number);
            for entry in found {
                if page.entries.len() >= count_max {
                    page.next = page.entries.last().map(|last| ListCursor {
                        ino: last.ino,
                        number: last.number,
                    });
                    return page;
                }
                page.entries.push(entry);
            }
        }
        page
    }

    fn entries_of(&self, now: Now, ino: Ino, file: &File) -> Vec<Entry> {
        let entry = |owner: &Owner, number: u64, since: Timestamp, kind: EntryKind| {
            let client = self.clients.get(&owner.client)?;
            Some(Entry {
                ino,
                number,
                client: owner.client,
                identity: client.identity.clone(),
                is_silent: self.is_silent(now, owner.client),
                owner: owner.name.clone(),
                since,
                kind,
            })
        };
        let ranges = file.owners.iter().flat_map(|of| {
            of.held.iter().filter_map(|held| {
                let kind = EntryKind::Range {
                    range: held.range,
                    mode: held.mode,
                    style: of.owner.style,
                };
                entry(&of.owner, held.number, held.since, kind)
            })
        });
        let opens = file.opens.iter().filter_map(|open| {
            let kind = EntryKind::Open {
                access: open.access,
                deny: open.deny,
            };
            entry(&open.owner, open.number, open.since, kind)
        });
        let leases = file.leases.iter().filter_map(|lease| {
            let kind = EntryKind::Lease {
                level: lease.level,
                style: lease.style,
                recalled_to: lease.recalled.map(|recalled| recalled.left),
            };
            entry(&lease.owner, lease.number, lease.since, kind)
        });
        let waiters = file.waiters.iter().filter_map(|waiter| {
            let kind = EntryKind::Waiter {
                range: waiter.range,
                mode: waiter.mode,
            };
            entry(&waiter.owner, waiter.number, waiter.since, kind)
        });
        ranges.chain(opens).chain(leases).chain(waiters).collect()
    }
}
