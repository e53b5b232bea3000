//! Which part of a list is shown: thousands are told in pages, in one shape everywhere.
//!
//! Owns: what may be asked of a list, which names are on a page. Must not know: what is listed.

use crate::query::Query;

/// Most entries of one page.
pub const ENTRIES_OF_A_PAGE_MAX: usize = 1000;

/// Which entries are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// A part of the name, whatever its case; in lower case.
    pub name: Option<String>,
    /// Only those whose names come after this one.
    pub after: Option<String>,
    /// `None`: all.
    pub limit: Option<usize>,
}

/// Which of some names are on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut<K, T> {
    pub items: Vec<(K, T)>,
    /// How many names fit, on all pages.
    pub total: usize,
    /// The `after` of the next page, if there is one.
    pub next_after: Option<String>,
}

impl ListQuery {
    pub const KEYS: &'static [&'static str] = &["name", "after", "limit"];

    /// Reads what was asked. Fails with what is wrong with it.
    pub fn of(query: &Query) -> Result<Self, String> {
        let text = |key: &str| query.values(key).last();
        let limit = text("limit").map(|limit| {
            let limit = limit.parse::<usize>().ok();
            limit
                .filter(|limit| (1..=ENTRIES_OF_A_PAGE_MAX).contains(limit))
                .ok_or_else(|| format!("limit is 1 to {ENTRIES_OF_A_PAGE_MAX}"))
        });
        Ok(Self {
            name: text("name").map(str::to_lowercase),
            after: text("after").map(str::to_owned),
            limit: limit.transpose()?,
        })
    }

    /// Whether something that is called so is asked for.
    pub fn has_name(&self, name: &str) -> bool {
        let part = self.name.as_deref().unwrap_or_default();
        part.is_empty() || name.to_lowercase().contains(part)
    }

    /// The page of these entries, in the order of their names.
    pub fn cut<K: AsRef<str> + Ord, T>(&self, entries: impl Iterator<Item = (K, T)>) -> Cut<K, T> {
        let mut found: Vec<_> = entries
            .filter(|(name, _)| self.has_name(name.as_ref()))
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let total = found.len();
        if let Some(after) = &self.after {
            found.retain(|(name, _)| name.as_ref() > after.as_str());
        }
        let limit = self.limit.unwrap_or(usize::MAX);
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next_after = last.map(|(name, _)| name.as_ref().to_owned());
        Cut {
            items: found,
            total,
            next_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str, names: &[&str]) -> Result<(Vec<String>, usize, Option<String>), String> {
        let query = Query::parse(Some(query), ListQuery::KEYS).map_err(|it| it.to_string())?;
        let cut = ListQuery::of(&query)?;
        let cut = cut.cut(names.iter().map(|name| (*name, ())));
        let names = cut.items.iter().map(|(name, ())| name.to_string());
        Ok((names.collect(), cut.total, cut.next_after))
    }

    #[test]
    fn names_are_on_one_page_each() {
        let names = ["b", "a", "Main", "main2", "c"];
        let page = |query: &str| asked(query, &names).unwrap();
        let all = ["Main", "a", "b", "c", "main2"].map(str::to_owned).to_vec();
        assert_eq!(page(""), (all.clone(), 5, None));
        assert_eq!(page("limit=5"), (all.clone(), 5, None));
        assert_eq!(
            page("limit=2"),
            (all[..2].to_vec(), 5, Some("a".to_owned()))
        );
        assert_eq!(
            page("limit=2&after=a"),
            (all[2..4].to_vec(), 5, Some("c".to_owned()))
        );
        assert_eq!(page("limit=2&after=c"), (all[4..].to_vec(), 5, None));
        // One that is gone meanwhile is a place in the list all the same.
        assert_eq!(page("after=bb&limit=1").0, ["c"]);
        assert_eq!(
            page("name=MAIN"),
            (vec!["Main".to_owned(), "main2".to_owned()], 2, None)
        );
        assert_eq!(page("name=none"), (vec![], 0, None));
        for wrong in ["limit=0", "limit=1001", "limit=x", "limit=-1", "from=a"] {
            assert!(asked(wrong, &names).is_err(), "{wrong}");
        }
    }
}
