//! The values of shards as they go over the wire, and back.

use std::collections::HashSet;
use std::ops::Range;

use cairn_base::disk::DiskError;
use cairn_formats::FormatError;
use cairn_shard::{DiskHealth, HiddenId, ShardError, ShardService};
use cairn_wire::{DiskReport, Fault, FormatFault, Hidden, RecycledCount, ShardRange};
use parking_lot::Mutex;

/// Most words of peers that are remembered, and most bytes of each.
const WORDS_MAX: usize = 256;
const WORD_LEN_BYTES_MAX: usize = 64;
const WORD_UNKNOWN: &str = "field";

/// Errors name fields of formats by words of the program. A peer's are remembered, as many as a program may have.
fn word(text: String) -> &'static str {
    static WORDS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut words = WORDS.lock();
    let words = words.get_or_insert_default();
    if let Some(known) = words.get(text.as_str()) {
        return known;
    }
    if text.len() > WORD_LEN_BYTES_MAX || words.len() >= WORDS_MAX {
        return WORD_UNKNOWN;
    }
    let text: &'static str = Box::leak(text.into_boxed_str());
    words.insert(text);
    text
}

fn format_fault(error: FormatError) -> FormatFault {
    match error {
        FormatError::Truncated => FormatFault::Truncated {},
        FormatError::Magic => FormatFault::Magic {},
        FormatError::Version { found, newest } => FormatFault::Version { found, newest },
        FormatError::Checksum => FormatFault::Checksum {},
        FormatError::Field(name) => FormatFault::Field {
            name: name.to_owned(),
        },
    }
}

fn format_error(fault: FormatFault) -> FormatError {
    match fault {
        FormatFault::Truncated {} => FormatError::Truncated,
        FormatFault::Magic {} => FormatError::Magic,
        FormatFault::Version { found, newest } => FormatError::Version { found, newest },
        FormatFault::Checksum {} => FormatError::Checksum,
        FormatFault::Field { name } => FormatError::Field(word(name)),
    }
}

macro_rules! both_ways {
    ($($variant:ident { $($field:ident),* } $($reason:ident)?),* $(,)?) => {
        pub(crate) fn fault(error: ShardError) -> Fault {
            match error {
                ShardError::Disk(error) => Fault::Disk { error },
                ShardError::BadRange { disk, shard, what, offset, len_bytes } => {
                    let what = what.to_owned();
                    Fault::BadRange { disk, shard, what, offset, len_bytes }
                }
                $( ShardError::$variant { $($field,)* $($reason)? } => {
                    $( let $reason = format_fault($reason); )?
                    Fault::$variant { $($field,)* $($reason)? }
                } )*
            }
        }

        /// `node` comes before the disk's name.
        pub(crate) fn error(fault: Fault, node: &str) -> ShardError {
            let mut error = match fault {
                Fault::Disk { error } => ShardError::Disk(error),
                Fault::BadRange { disk, shard, what, offset, len_bytes } => {
                    let what = word(what);
                    ShardError::BadRange { disk, shard, what, offset, len_bytes }
                }
                $( Fault::$variant { $($field,)* $($reason)? } => {
                    $( let $reason = format_error($reason); )?
                    ShardError::$variant { $($field,)* $($reason)? }
                } )*
            };
            let disk = match &mut error {
                ShardError::Disk(error) => label_of(error),
                ShardError::BadRange { disk, .. } => disk,
                $( ShardError::$variant { disk, .. } => disk, )*
            };
            *disk = label(node, disk);
            error
        }
    };
}

both_ways! {
    NotFound { disk, shard },
    Exists { disk, shard },
    WrongPool { disk, found, wanted },
    NotFormatted { disk },
    AlreadyFormatted { disk, id, pool },
    DamagedIdentity { disk } reason,
    DamagedFooter { disk, shard } reason,
    BadRequest { disk, what } reason,
    Fenced { disk, volume, epoch, promised },
    DamagedPromise { disk, volume } reason,
    Late { disk, what },
    SyncLost { disk, shard },
    Unreachable { disk, what, reason },
}

fn label_of(error: &mut DiskError) -> &mut String {
    match error {
        DiskError::NotFound { disk, .. }
        | DiskError::Exists { disk, .. }
        | DiskError::Full { disk, .. }
        | DiskError::NoDescriptor { disk, .. }
        | DiskError::Io { disk, .. }
        | DiskError::Short { disk, .. }
        | DiskError::InUse { disk, .. } => disk,
    }
}

/// The name of a node's disk in messages.
pub(crate) fn label(node: &str, disk: &str) -> String {
    format!("{node}:{disk}")
}

pub(crate) fn hidden(hidden: HiddenId) -> Hidden {
    Hidden {
        name: hidden.name,
        number: hidden.number,
    }
}

pub(crate) fn hidden_id(hidden: Hidden) -> HiddenId {
    HiddenId {
        name: hidden.name,
        number: hidden.number,
    }
}

/// `None`: no place that a shard could have.
pub(crate) fn range(place: ShardRange) -> Option<Range<u64>> {
    let end = place.offset.checked_add(place.len_bytes.into())?;
    Some(place.offset..end)
}

pub(crate) fn report(disk: &dyn ShardService) -> DiskReport {
    let DiskHealth {
        read_errors,
        write_errors,
        full_errors,
        checksum_errors,
        suspect,
        failed,
    } = disk.health();
    let recycled = disk.recycled().into_iter();
    DiskReport {
        disk: disk.id(),
        label: disk.label().to_owned(),
        read_errors,
        write_errors,
        full_errors,
        checksum_errors,
        suspect,
        failed,
        silent: disk.is_silent(),
        failing: disk.state().is_failing(),
        writes_answered: disk.writes_answered(),
        space: disk.space().map_err(fault),
        recycled_bytes: disk.recycled_bytes(),
        recycled: recycled
            .map(|(capacity_bytes, count)| RecycledCount {
                capacity_bytes,
                count: u32::try_from(count).unwrap_or(u32::MAX),
            })
            .collect(),
    }
}

pub(crate) fn health(report: &DiskReport) -> DiskHealth {
    DiskHealth {
        read_errors: report.read_errors,
        write_errors: report.write_errors,
        full_errors: report.full_errors,
        checksum_errors: report.checksum_errors,
        suspect: report.suspect,
        failed: report.failed,
    }
}

#[cfg(test)]
mod tests {
    use cairn_wire::testing::{FAULT_KINDS, Numbers};

    use super::*;

    #[test]
    fn every_error_comes_back_as_it_was() {
        for kind in 0..FAULT_KINDS {
            let sent = Numbers(kind).fault(kind);
            // There and back again: what a node relays keeps its kind, and names both nodes.
            let once = error(sent.clone(), "b");
            let twice = error(fault(once.clone()), "a");
            assert_eq!(once.kind(), twice.kind());
            let (once, twice) = (once.to_string(), twice.to_string());
            assert!(once.starts_with("b:"), "{once}");
            assert_eq!(twice, format!("a:{once}"));
        }
    }

    #[test]
    fn words_of_peers_are_not_remembered_without_end() {
        let long = "x".repeat(WORD_LEN_BYTES_MAX + 1);
        assert_eq!(word(long), WORD_UNKNOWN);
        for number in 0..2 * WORDS_MAX {
            word(format!("word {number}"));
        }
        assert_eq!(word("word 0".to_owned()), "word 0");
        assert_eq!(word("one more".to_owned()), WORD_UNKNOWN);
    }
}
