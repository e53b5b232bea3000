//! Entries of a log that is kept as lines of JSON, and is asked for page by page.
//!
//! Owns: the lines, the grammar of a question, what a page is. Must not know: what an entry says, where entries are kept.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::endpoint::{Parameters, number};
use crate::query::Query;

/// Entries of a page.
pub const ENTRY_LIMIT_MAX: usize = 1000;
const ENTRY_LIMIT_DEFAULT: usize = 100;

/// An entry of a log. Its fields are known: a line that has others is none.
pub trait Entry: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// Longest line as it is kept, in bytes; above it the line is none.
    const LINE_LEN_BYTES_MAX: usize;

    /// Grows with each entry.
    fn id(&self) -> u64;
    fn set_id(&mut self, id: u64);
    /// Seconds since 1970 UTC.
    fn at_seconds(&self) -> i64;

    /// As it is kept: JSON in a line.
    fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// The entries in lines, oldest first as they lie there, and how many lines are none: a crash may tear the last one.
    fn of_lines(bytes: &[u8]) -> (Vec<Self>, u64) {
        let mut wrong = 0;
        let mut entries = Vec::new();
        for line in bytes.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let entry = (line.len() <= Self::LINE_LEN_BYTES_MAX)
                .then(|| serde_json::from_slice::<Self>(line).ok())
                .flatten();
            match entry {
                Some(entry) => entries.push(entry),
                None => wrong += 1,
            }
        }
        (entries, wrong)
    }
}

/// Which part of a log is asked for, whatever it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRange {
    pub from_seconds: Option<i64>,
    pub to_seconds: Option<i64>,
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub limit: usize,
    /// Only what this node of a cluster has; all nodes without it.
    pub node: Option<String>,
}

impl LogRange {
    /// Reads what was asked. Fails with what is wrong with it.
    pub fn of(query: &Query, now_seconds: i64) -> Result<Self, String> {
        let text = |key: &str| query.values(key).last();
        let time = |key: &'static str| {
            let time = text(key).map(str::parse::<i64>);
            let time = time
                .transpose()
                .map_err(|_| format!("{key} is a whole number of seconds"))?;
            Ok::<_, String>(time.map(|seconds| match seconds {
                ..=0 => now_seconds.saturating_add(seconds),
                _ => seconds,
            }))
        };
        let number = |key: &'static str| {
            let number = text(key).map(str::parse::<u64>);
            number
                .transpose()
                .map_err(|_| format!("{key} is a whole number"))
        };
        let limit = match number("limit")? {
            None => ENTRY_LIMIT_DEFAULT,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|limit| (1..=ENTRY_LIMIT_MAX).contains(limit))
                .ok_or_else(|| format!("limit is 1 to {ENTRY_LIMIT_MAX}"))?,
        };
        Ok(Self {
            from_seconds: time("from")?,
            to_seconds: time("to")?,
            before: number("before")?,
            after: number("after")?,
            limit,
            node: text("node").map(str::to_owned),
        })
    }

    /// As a query of a path, behind the values that are about what is in an entry.
    pub fn to_query(&self, own: &[(&str, Option<&str>)]) -> String {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let own = own
            .iter()
            .map(|(key, value)| (*key, value.map(encoded)))
            .collect::<Vec<_>>();
        let values = [
            ("from", self.from_seconds.map(|from| from.to_string())),
            ("to", self.to_seconds.map(|to| to.to_string())),
            ("before", self.before.map(|before| before.to_string())),
            ("after", self.after.map(|after| after.to_string())),
            ("limit", Some(self.limit.to_string())),
            ("node", self.node.as_deref().map(encoded)),
        ];
        let given = own
            .into_iter()
            .chain(values)
            .filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        given.collect::<Vec<_>>().join("&")
    }

    /// The parameters that say which entries of those that fit.
    pub(crate) fn describe_ids(to: &mut Parameters) {
        to.in_query("before", number::<u64>());
        to.in_query("after", number::<u64>());
        let limit = number::<u64>()
            .minimum(Some(1))
            .maximum(Some(ENTRY_LIMIT_MAX));
        to.in_query("limit", limit);
    }

    pub fn has<E: Entry>(&self, entry: &E) -> bool {
        let (id, at_seconds) = (entry.id(), entry.at_seconds());
        self.from_seconds.is_none_or(|from| at_seconds >= from)
            && self.to_seconds.is_none_or(|to| at_seconds <= to)
            && self.before.is_none_or(|before| id < before)
            && self.after.is_none_or(|after| id > after)
    }

    /// The first of these entries, which come newest first, and the `before` of the next page, if there is one.
    pub fn cut<'a, E: Entry>(
        &self,
        mut found: impl Iterator<Item = &'a E>,
    ) -> (Vec<E>, Option<u64>) {
        let entries: Vec<E> = found.by_ref().take(self.limit.max(1)).cloned().collect();
        let has_more = found.next().is_some();
        let next_before = entries.last().filter(|_| has_more).map(Entry::id);
        (entries, next_before)
    }
}
