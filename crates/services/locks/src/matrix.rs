//! The matrix of conflicts: what excludes what, and what makes a lease give way, as tables of data.
//!
//! Owns: these tables, which `docs/design/locks.md` shows, and the questions that are answered by them alone.
//! Must not know: files, clients, time.

use cairn_formats::metadata::{LeaseBits, LeaseStyle, LockMode, RangeStyle, ShareBits};

/// Something that a client, or the server for it, does with a file: a row of [`USES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// An open that reads, and may deny nothing.
    OpenRead,
    /// An open that writes.
    OpenWrite,
    /// An open that denies something to others, whatever else it does.
    OpenDeny,
    /// An open that meets a denial, or denies what another open does.
    ShareConflict,
    LockShared,
    LockExclusive,
    /// Reads data without an open that the machine knows: NFSv3, S3.
    ReadData,
    /// Writes, truncates or allocates without such an open.
    WriteData,
    /// Changes mode, owner, times or access control list.
    ChangeAttributes,
    /// Removes or renames the file, replaces it by a rename, or links it.
    ChangeName,
}

/// What a use asks of others.
#[derive(Clone, Copy, Debug)]
pub struct UseRow {
    pub what: Use,
    /// The accesses that no open of somebody else may deny. Of opens these are in the request.
    pub needs: ShareBits,
    /// What a lease of another client that gives way by levels (SMB) loses.
    pub breaks: LeaseBits,
    /// Whether a delegation of another client for reading is recalled.
    pub recalls_read: bool,
    /// Whether it recalls a lease for writing.
    pub recalls_write: bool,
}

const RW: LeaseBits = LeaseBits::READ.with(LeaseBits::WRITE);
const R: ShareBits = ShareBits::READ;
const W: ShareBits = ShareBits::WRITE;
const D: ShareBits = ShareBits::DELETE;
const NO: ShareBits = ShareBits::NONE;

const fn row(
    what: Use,
    needs: ShareBits,
    breaks: LeaseBits,
    recalls_read: bool,
    recalls_write: bool,
) -> UseRow {
    UseRow {
        what,
        needs,
        breaks,
        recalls_read,
        recalls_write,
    }
}

/// The matrix of uses. Sources: RFC 8881, sections 10.4 and 18.16; MS-FSA, section 2.1.4.12.
#[rustfmt::skip]
pub const USES: [UseRow; 10] = [
    //  use                    needs  SMB leases lose    recalls delegations: read  write
    row(Use::OpenRead,         NO,    LeaseBits::WRITE,  false, true),
    row(Use::OpenWrite,        NO,    LeaseBits::WRITE,  true,  true),
    row(Use::OpenDeny,         NO,    LeaseBits::WRITE,  true,  true),
    row(Use::ShareConflict,    NO,    LeaseBits::HANDLE, true,  true),
    row(Use::LockShared,       NO,    RW,                false, true),
    row(Use::LockExclusive,    NO,    RW,                true,  true),
    row(Use::ReadData,         R,     LeaseBits::WRITE,  false, true),
    row(Use::WriteData,        W,     RW,                true,  true),
    row(Use::ChangeAttributes, NO,    LeaseBits::NONE,   true,  true),
    row(Use::ChangeName,       D,     LeaseBits::HANDLE, true,  true),
];

impl Use {
    pub fn row(self) -> &'static UseRow {
        let found = USES.iter().find(|row| row.what == self);
        // The table has each use once, which its test shows.
        found.unwrap_or(&USES[0])
    }

    pub(crate) const fn of_lock(mode: LockMode) -> Self {
        match mode {
            LockMode::Shared => Self::LockShared,
            LockMode::Exclusive => Self::LockExclusive,
        }
    }

    /// What may remain of a lease of another client. The lease gives way if that is less than `level`.
    pub fn leaves(self, level: LeaseBits, style: LeaseStyle) -> LeaseBits {
        let row = self.row();
        match style {
            LeaseStyle::Levels => {
                let left = level.without(row.breaks);
                // A lease keeps data that was read; without that there is nothing to keep handles or writes for.
                if left.has(LeaseBits::READ) {
                    left
                } else {
                    LeaseBits::NONE
                }
            }
            LeaseStyle::Whole => {
                let is_recalled = if level.has(LeaseBits::WRITE) {
                    row.recalls_write
                } else {
                    row.recalls_read
                };
                if is_recalled { LeaseBits::NONE } else { level }
            }
        }
    }
}

/// Which modes of ranges of two owners exclude each other: by the one that is held and the one that is asked for.
///
/// The owners' styles do not matter here. A shared lock is a read lock of POSIX and a lock without
/// `SMB2_LOCKFLAG_EXCLUSIVE_LOCK`.
#[rustfmt::skip]
pub const RANGE_CONFLICTS: [(LockMode, LockMode, bool); 4] = [
    // held               asked for            conflict
    (LockMode::Shared,    LockMode::Shared,    false),
    (LockMode::Shared,    LockMode::Exclusive, true),
    (LockMode::Exclusive, LockMode::Shared,    true),
    (LockMode::Exclusive, LockMode::Exclusive, true),
];

pub(crate) fn modes_conflict(held: LockMode, asked: LockMode) -> bool {
    // Anything that the table lacked would conflict: when in doubt, refuse.
    let row = RANGE_CONFLICTS
        .iter()
        .find(|(of_held, of_asked, _)| (*of_held, *of_asked) == (held, asked));
    row.is_none_or(|(_, _, conflict)| *conflict)
}

/// Whether a held range keeps data from being read or written by others, or in SMB's case by its own holder.
///
/// Ranges of the style `Replace` are advisory. One of the style `Exact` is mandatory (MS-FSA, section 2.1.4.10): exclusive, for
/// everybody else; shared, for all writes.
pub(crate) fn range_stops_data(
    held: LockMode,
    style: RangeStyle,
    is_own: bool,
    is_write: bool,
) -> bool {
    match (style, held) {
        (RangeStyle::Replace, _) => false,
        (RangeStyle::Exact, LockMode::Exclusive) => !is_own,
        (RangeStyle::Exact, LockMode::Shared) => is_write,
    }
}

/// Whether two opens of different owners exclude each other.
pub(crate) fn shares_conflict(
    (access, deny): (ShareBits, ShareBits),
    (other_access, other_deny): (ShareBits, ShareBits),
) -> bool {
    access.meets(other_deny) || deny.meets(other_access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use LeaseBits as L;

    const ALL: [Use; 10] = [
        Use::OpenRead,
        Use::OpenWrite,
        Use::OpenDeny,
        Use::ShareConflict,
        Use::LockShared,
        Use::LockExclusive,
        Use::ReadData,
        Use::WriteData,
        Use::ChangeAttributes,
        Use::ChangeName,
    ];

    #[test]
    fn each_use_has_one_row() {
        for what in ALL {
            assert_eq!(USES.iter().filter(|row| row.what == what).count(), 1);
            assert_eq!(what.row().what, what);
        }
    }

    #[test]
    fn leases_give_way_as_the_page_says() {
        let rh = L::READ.with(L::HANDLE);
        let rw = L::READ.with(L::WRITE);
        let rwh = rw.with(L::HANDLE);
        // The use, then what is left of RWH, RW, RH and R by levels, and of a delegation for writing and for reading.
        let cases = [
            (Use::OpenRead, [rh, L::READ, rh, L::READ], [L::NONE, rh]),
            (
                Use::OpenWrite,
                [rh, L::READ, rh, L::READ],
                [L::NONE, L::NONE],
            ),
            (
                Use::OpenDeny,
                [rh, L::READ, rh, L::READ],
                [L::NONE, L::NONE],
            ),
            (
                Use::ShareConflict,
                [rw, rw, L::READ, L::READ],
                [L::NONE, L::NONE],
            ),
            (Use::LockShared, [L::NONE; 4], [L::NONE, rh]),
            (Use::LockExclusive, [L::NONE; 4], [L::NONE, L::NONE]),
            (Use::ReadData, [rh, L::READ, rh, L::READ], [L::NONE, rh]),
            (Use::WriteData, [L::NONE; 4], [L::NONE, L::NONE]),
            (
                Use::ChangeAttributes,
                [rwh, rw, rh, L::READ],
                [L::NONE, L::NONE],
            ),
            (
                Use::ChangeName,
                [rw, rw, L::READ, L::READ],
                [L::NONE, L::NONE],
            ),
        ];
        for (what, levels, wholes) in cases {
            let found = [rwh, rw, rh, L::READ].map(|level| what.leaves(level, LeaseStyle::Levels));
            assert_eq!(found, levels, "{what:?}");
            let found = [rwh, rh].map(|level| what.leaves(level, LeaseStyle::Whole));
            assert_eq!(found, wholes, "{what:?}");
        }
    }

    #[test]
    fn exact_ranges_stop_data() {
        let cases = [
            // mode, style, own, write, stops
            (LockMode::Exclusive, RangeStyle::Replace, false, true, false),
            (LockMode::Exclusive, RangeStyle::Exact, false, false, true),
            (LockMode::Exclusive, RangeStyle::Exact, true, true, false),
            (LockMode::Shared, RangeStyle::Exact, false, false, false),
            (LockMode::Shared, RangeStyle::Exact, true, true, true),
        ];
        for (mode, style, is_own, is_write, want) in cases {
            assert_eq!(range_stops_data(mode, style, is_own, is_write), want);
        }
    }
}
