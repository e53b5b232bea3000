//! Query strings of requests, read strictly.
//!
//! Owns: their grammar. Must not know: paths, what a value means.
//!
//! A key that is not known is refused: `?clients=10.0.0.0/8` must not be read as "all clients".

use percent_encoding::percent_decode_str;

/// Most pairs of one query.
pub const QUERY_PAIRS_MAX: usize = 256;
/// Longest value, in characters.
pub const QUERY_VALUE_CHARS_MAX: usize = 4096;

/// Why a query string does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("the query has more than {QUERY_PAIRS_MAX} values")]
    TooMany,
    #[error("the query has \"{0}\" without a value: write {0}=VALUE")]
    NoValue(String),
    #[error("the query has \"{key}\"; this path knows {known}")]
    UnknownKey { key: String, known: String },
    #[error("the value of \"{0}\" in the query is not UTF-8")]
    NotText(String),
    #[error("the value of \"{0}\" in the query has more than {QUERY_VALUE_CHARS_MAX} characters")]
    TooLong(String),
}

/// The pairs of a query, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Reads `KEY=VALUE&KEY=VALUE`; values may have percent-encoded bytes. Empty pairs are skipped.
    pub fn parse(query: Option<&str>, known: &[&'static str]) -> Result<Self, QueryError> {
        let mut pairs = Vec::new();
        for pair in query.unwrap_or_default().split('&') {
            if pair.is_empty() {
                continue;
            }
            if pairs.len() >= QUERY_PAIRS_MAX {
                return Err(QueryError::TooMany);
            }
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| QueryError::NoValue(shown(pair)))?;
            let key = known.iter().find(|known| **known == key).ok_or_else(|| {
                QueryError::UnknownKey {
                    key: shown(key),
                    known: known.join(", "),
                }
            })?;
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| QueryError::NotText((*key).to_owned()))?;
            if value.chars().count() > QUERY_VALUE_CHARS_MAX {
                return Err(QueryError::TooLong((*key).to_owned()));
            }
            pairs.push((*key, value.into_owned()));
        }
        Ok(Self(pairs))
    }

    /// All values of a key.
    pub fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(name, _)| *name == key)
            .map(|(_, value)| value.as_str())
    }
}

/// The front of what a client sent, for a message.
fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 80;
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_or_refused() {
        let unknown = |key: &str| QueryError::UnknownKey {
            key: key.to_owned(),
            known: "client, force".to_owned(),
        };
        type Parsed = Result<&'static [(&'static str, &'static str)], QueryError>;
        let cases: &[(&str, Parsed)] = &[
            ("", Ok(&[])),
            ("&&", Ok(&[])),
            ("force=true", Ok(&[("force", "true")])),
            (
                "client=10.0.0.0%2f8&client=%3A%3a1",
                Ok(&[("client", "10.0.0.0/8"), ("client", "::1")]),
            ),
            ("client=", Ok(&[("client", "")])),
            ("client=a=b", Ok(&[("client", "a=b")])),
            ("force", Err(QueryError::NoValue("force".to_owned()))),
            ("clients=::1", Err(unknown("clients"))),
            ("=x", Err(unknown(""))),
            ("client=%ff", Err(QueryError::NotText("client".to_owned()))),
        ];
        for (text, want) in cases {
            let got = Query::parse(Some(text), &["client", "force"]);
            let want = want.clone().map(|pairs| pairs.to_vec());
            let pairs = got
                .as_ref()
                .map(|query| query.0.iter().map(|(k, v)| (*k, v.as_str())).collect())
                .map_err(Clone::clone);
            assert_eq!(pairs, want, "{text:?}");
        }
        assert_eq!(Query::parse(None, &[]), Ok(Query::default()));
        for (chars, fits) in [
            (QUERY_VALUE_CHARS_MAX, true),
            (QUERY_VALUE_CHARS_MAX + 1, false),
        ] {
            let long = format!("client={}", "%C3%A9".repeat(chars));
            let got = Query::parse(Some(&long), &["client"]);
            assert_eq!(got.is_ok(), fits, "{chars}");
        }
        let many = "force=1&".repeat(QUERY_PAIRS_MAX + 1);
        let got = Query::parse(Some(&many), &["force"]);
        assert_eq!(got, Err(QueryError::TooMany));
    }
}
