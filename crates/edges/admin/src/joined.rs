//! Pages of a log that each node of a cluster has its own of, in one.
//!
//! Owns: their order, where a page ends, what of several nodes is one entry. Must not know: how nodes are asked, what an
//! entry says.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::entries::Entry;

/// A node that does not answer: what it has is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilentNode {
    pub node: String,
    pub why: String,
}

/// An entry that says which node it is of.
pub(crate) trait OfNode: Entry {
    fn set_node(&mut self, node: &str);
    /// What entries with the same id are ordered by.
    fn node(&self) -> &str;

    /// Whether another node tells the same with an older entry, which then tells it for both.
    fn joins(&self, _older: &mut Self) -> bool {
        false
    }
}

/// A page of a log, newest first.
pub(crate) trait LogPage: Default + Serialize + DeserializeOwned + Send {
    type Entry: OfNode;
    const LOG: &'static str;

    fn parts(&mut self) -> PageParts<'_, Self::Entry>;
}

pub(crate) struct PageParts<'a, E> {
    pub entries: &'a mut Vec<E>,
    pub next_before: &'a mut Option<u64>,
    pub first_seconds: &'a mut Option<i64>,
    pub problem: &'a mut Option<String>,
    pub silent: &'a mut Vec<SilentNode>,
}

/// The page of a cluster, of the pages of its nodes for one question.
///
/// Ids are of the time, so those of several nodes are in one order, and may be the same: entries with the last id of a page are all on
/// it, also above the limit, so that `before` misses none.
pub(crate) fn joined<P: LogPage>(limit: usize, pages: Vec<(String, P)>) -> P {
    let mut all = P::default();
    let to = all.parts();
    let mut has_more = false;
    for (node, mut page) in pages {
        let from = page.parts();
        has_more |= from.next_before.is_some();
        *to.first_seconds = match (*to.first_seconds, *from.first_seconds) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if let Some(problem) = from.problem.take() {
            let before = to.problem.take().map(|before| format!("{before}; "));
            let before = before.unwrap_or_default();
            *to.problem = Some(format!("{before}node {node}: {problem}"));
        }
        for mut entry in from.entries.drain(..) {
            entry.set_node(&node);
            to.entries.push(entry);
        }
    }
    let newest_first = |one: &P::Entry, other: &P::Entry| {
        let by_id = other.id().cmp(&one.id());
        by_id.then_with(|| one.node().cmp(other.node()))
    };
    to.entries.sort_by(newest_first);
    let last = to.entries.get(limit.saturating_sub(1)).map(Entry::id);
    if let Some(last) = last {
        let end = to.entries.partition_point(|entry| entry.id() >= last);
        has_more |= end < to.entries.len();
        to.entries.truncate(end);
    }
    *to.next_before = to.entries.last().filter(|_| has_more).map(Entry::id);
    let mut kept: Vec<P::Entry> = Vec::with_capacity(to.entries.len());
    for entry in to.entries.drain(..).rev() {
        let mut older = kept.iter_mut().rev();
        if !older.any(|older| entry.joins(older)) {
            kept.push(entry);
        }
    }
    kept.reverse();
    *to.entries = kept;
    all
}
