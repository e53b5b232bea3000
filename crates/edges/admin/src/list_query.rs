//! Which volumes a list shows: thousands are told in pages.
//!
//! Owns: what may be asked of the list, which names are on a page. Must not know: what a volume is like.

use cairn_config::VolumeName;

use crate::query::Query;

/// Most volumes of one page.
pub const VOLUMES_OF_A_PAGE_MAX: usize = 1000;

/// Which volumes are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeQuery {
    /// A part of the name, whatever its case; in lower case.
    pub name: Option<String>,
    /// Only those whose names come after this one.
    pub after: Option<String>,
    /// `None`: all.
    pub limit: Option<usize>,
}

/// Which of some names are on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut<'a, T> {
    pub items: Vec<(&'a VolumeName, T)>,
    /// How many names fit, on all pages.
    pub total: usize,
    /// The `after` of the next page, if there is one.
    pub next_after: Option<String>,
}

impl VolumeQuery {
    pub const KEYS: &'static [&'static str] = &["name", "after", "limit"];

    /// Reads what was asked. Fails with what is wrong with it.
    pub fn of(query: &Query) -> Result<Self, String> {
        let text = |key: &str| query.values(key).last();
        let limit = text("limit").map(|limit| {
            let limit = limit.parse::<usize>().ok();
            limit
                .filter(|limit| (1..=VOLUMES_OF_A_PAGE_MAX).contains(limit))
                .ok_or_else(|| format!("limit is 1 to {VOLUMES_OF_A_PAGE_MAX}"))
        });
        Ok(Self {
            name: text("name").map(str::to_lowercase),
            after: text("after").map(str::to_owned),
            limit: limit.transpose()?,
        })
    }

    /// The page of these volumes, in the order of their names.
    pub fn cut<'a, T>(&self, volumes: impl Iterator<Item = (&'a VolumeName, T)>) -> Cut<'a, T> {
        let has_name = |name: &VolumeName| {
            let part = self.name.as_deref().unwrap_or_default();
            name.as_str().to_lowercase().contains(part)
        };
        let mut found: Vec<_> = volumes.filter(|(name, _)| has_name(name)).collect();
        found.sort_by_key(|(name, _)| *name);
        let total = found.len();
        if let Some(after) = &self.after {
            found.retain(|(name, _)| name.as_str() > after.as_str());
        }
        let limit = self.limit.unwrap_or(usize::MAX);
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next_after = last.map(|(name, _)| name.to_string());
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

    fn asked(
        query: &str,
        names: &[VolumeName],
    ) -> Result<(Vec<String>, usize, Option<String>), String> {
        let query = Query::parse(Some(query), VolumeQuery::KEYS).map_err(|it| it.to_string())?;
        let cut = VolumeQuery::of(&query)?;
        let cut = cut.cut(names.iter().map(|name| (name, ())));
        let names = cut.items.iter().map(|(name, ())| name.to_string());
        Ok((names.collect(), cut.total, cut.next_after))
    }

    #[test]
    fn names_are_on_one_page_each() {
        let names = ["b", "a", "Main", "main2", "c"].map(|name| name.parse().unwrap());
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
