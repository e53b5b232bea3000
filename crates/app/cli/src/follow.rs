//! Following a log of the server: what comes after the first page is shown as it comes.
//!
//! Owns: what was shown already, in a cluster whose nodes tell things late. Must not know: what an entry says.

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_admin::entries::Entry;
use cairn_admin::joined::SilentNode;

use crate::exit::Failure;
use crate::print::note;

/// How often the server is asked for new entries.
pub const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);
/// An entry of another node may come so much later than younger ones.
const LATE_SECONDS: u64 = 120;

/// A page of a log, newest first.
pub struct LogPage<E> {
    pub entries: Vec<E>,
    pub silent: Vec<SilentNode>,
}

/// Which nodes are missing. `what` is what they would have told.
pub fn say_silent(silent: &[SilentNode], what: &str) {
    for silent in silent {
        note!(
            "cairn: without {what} node {}, which does not answer: {}",
            silent.node,
            silent.why
        );
    }
}

/// Shows a page, oldest first, and what comes after it. Ends with an error, or with the process.
///
/// `node_of` tells entries with the same id apart; `newer` gives what is above an id.
pub fn follow<E: Entry>(
    first: LogPage<E>,
    what: &str,
    node_of: impl for<'a> Fn(&'a E) -> Option<&'a str>,
    mut newer: impl FnMut(Option<u64>) -> Result<LogPage<E>, Failure>,
    mut show: impl FnMut(&E) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut page = first;
    let mut shown = ShownEntries::default();
    let mut silent = Vec::new();
    loop {
        if page.silent != silent {
            say_silent(&page.silent, what);
            silent.clone_from(&page.silent);
        }
        for entry in page.entries.iter().rev() {
            if shown.is_new(entry.id(), node_of(entry)) {
                show(entry)?;
            }
        }
        shown.forget();
        std::thread::sleep(FOLLOW_INTERVAL);
        page = newer(shown.after())?;
    }
}

/// Which entries were shown. The clocks of nodes differ, and one may be silent for a while: what they tell late is shown late.
#[derive(Default)]
struct ShownEntries {
    last: Option<u64>,
    entries: BTreeSet<(u64, Option<String>)>,
}

impl ShownEntries {
    fn is_new(&mut self, id: u64, node: Option<&str>) -> bool {
        self.last = self.last.max(Some(id));
        let is_late = self.after().is_none_or(|after| id > after);
        is_late && self.entries.insert((id, node.map(str::to_owned)))
    }

    /// Entries above this are asked for again.
    fn after(&self) -> Option<u64> {
        // Ids are a thousand for each second.
        let late = 1000 * LATE_SECONDS;
        self.last.map(|last| last.saturating_sub(late))
    }

    fn forget(&mut self) {
        let after = self.after();
        self.entries.retain(|(id, _)| Some(*id) > after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_shown_once_also_those_that_come_late() {
        let mut shown = ShownEntries::default();
        assert_eq!(shown.after(), None);
        assert!(shown.is_new(1_000_000, Some("a")));
        assert!(!shown.is_new(1_000_000, Some("a")));
        assert!(shown.is_new(1_000_000, Some("b")), "of another node");
        assert!(shown.is_new(999_000, Some("b")), "late");
        assert!(!shown.is_new(880_000, Some("b")), "too late to tell");
        shown.forget();
        assert_eq!((shown.after(), shown.entries.len()), (Some(880_000), 3));
        assert!(shown.is_new(2_000_000, Some("a")));
        shown.forget();
        assert_eq!(shown.entries.len(), 1);
    }
}
