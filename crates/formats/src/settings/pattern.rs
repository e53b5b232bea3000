//! Patterns of file names.
//!
//! Owns: how they are written, which names they match. Must not know: whose names these are, what follows from a match.
//!
//! `*` stands for any characters, none too, `?` for one, `[a-z0]` for one of these, `[!a-z]` for one that is none of these,
//! and `\` before a character for that character. Case matters. Names are bytes: each byte that is no UTF-8 counts as a
//! character of its own.

use std::fmt;
use std::str::FromStr;

use cairn_base::words::{WordError, serde_as_word};

/// Most patterns of a list, and longest list, in bytes.
pub const FILE_PATTERNS_MAX: usize = 32;
pub const FILE_PATTERNS_LEN_BYTES_MAX: usize = 1024;

/// The list that matches all names.
const ANY: &str = "any";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Any characters, or none.
    Many,
    One,
    Is(u32),
    /// One that is in a range, or in none if it is `negated`.
    In {
        negated: bool,
        ranges: Vec<(u32, u32)>,
    },
}

impl Token {
    fn takes(&self, character: u32) -> bool {
        match self {
            Self::Many | Self::One => true,
            Self::Is(wanted) => *wanted == character,
            Self::In { negated, ranges } => {
                let mut all = ranges.iter();
                let is_in = all.any(|(from, to)| (*from..=*to).contains(&character));
                is_in != *negated
            }
        }
    }
}

/// A list of patterns of file names, one of which is to match; without any all names do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePatterns {
    /// As it was written.
    text: String,
    patterns: Vec<Vec<Token>>,
}

impl FilePatterns {
    pub fn is_any(&self) -> bool {
        self.patterns.is_empty()
    }

    pub fn matches(&self, name: &[u8]) -> bool {
        if self.is_any() {
            return true;
        }
        let name = characters(name);
        let mut all = self.patterns.iter();
        all.any(|pattern| is_match(pattern, &name))
    }
}

/// A byte that is no UTF-8 gets a number beyond all characters.
fn characters(name: &[u8]) -> Vec<u32> {
    let chunks = name.utf8_chunks();
    chunks
        .flat_map(|chunk| {
            let invalid = chunk.invalid().iter();
            let strange = invalid.map(|byte| 0x11_0000 + u32::from(*byte));
            chunk.valid().chars().map(u32::from).chain(strange)
        })
        .collect()
}

/// Goes back to the last `*` alone, so it takes at most the product of both lengths.
fn is_match(pattern: &[Token], name: &[u32]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Behind the last `*`, and where what that stands for ends.
    let mut back: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(at), name.get(seen)) {
            (Some(Token::Many), _) => {
                at += 1;
                back = Some((at, seen));
            }
            (Some(token), Some(character)) if token.takes(*character) => {
                at += 1;
                seen += 1;
            }
            (None, None) => return true,
            _ => match back {
                Some((behind, end)) if end < name.len() => {
                    back = Some((behind, end + 1));
                    (at, seen) = (behind, end + 1);
                }
                _ => return false,
            },
        }
    }
}

impl fmt::Display for FilePatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if self.is_any() { ANY } else { &self.text })
    }
}

impl FromStr for FilePatterns {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if text == ANY {
            return Ok(Self::default());
        }
        let what = "a list of patterns of file names";
        let refuse = |wanted| WordError::new(text, what, wanted);
        if text.len() > FILE_PATTERNS_LEN_BYTES_MAX {
            return Err(refuse("one of at most 1024 bytes"));
        }
        let patterns = parse(text).map_err(refuse)?;
        if patterns.len() > FILE_PATTERNS_MAX {
            return Err(refuse("at most 32 patterns"));
        }
        Ok(Self {
            text: text.to_owned(),
            patterns,
        })
    }
}

/// The patterns of a list, or what to write instead.
fn parse(text: &str) -> Result<Vec<Vec<Token>>, &'static str> {
    let mut patterns = Vec::new();
    let mut pattern = Vec::new();
    let mut characters = text.chars();
    loop {
        let token = match characters.next() {
            ended @ (None | Some(',')) => {
                let edges = [pattern.first(), pattern.last()];
                if edges.contains(&Some(&Token::Is(u32::from(' ')))) {
                    return Err("patterns without spaces at their ends; [ ] stands for one");
                }
                if pattern.is_empty() {
                    return Err(
                        "any, or patterns with a comma between each two, such as *.mp4,*.fastq.gz",
                    );
                }
                patterns.push(std::mem::take(&mut pattern));
                match ended {
                    Some(_) => continue,
                    None => return Ok(patterns),
                }
            }
            Some('/') => {
                return Err("patterns of the names of files alone, without '/' and directories");
            }
            Some('*') => Token::Many,
            Some('?') => Token::One,
            Some('[') => one_of(&mut characters)?,
            Some('\\') => match characters.next() {
                Some('/') | None => return Err("a character behind each '\\', other than '/'"),
                // At an end, too, since somebody meant it.
                Some(character) => Token::In {
                    negated: false,
                    ranges: vec![(character.into(), character.into())],
                },
            },
            Some(character) if character.is_control() => {
                return Err("patterns without control characters");
            }
            Some(character) => Token::Is(character.into()),
        };
        pattern.push(token);
    }
}

/// The set behind a `[`, up to its `]`. A `]` that comes first stands for itself, as does a `-` at an end.
fn one_of(characters: &mut std::str::Chars<'_>) -> Result<Token, &'static str> {
    let unended = "a ']' behind each '[', or [[] for the character itself";
    let mut all = Vec::new();
    let mut negated = false;
    loop {
        match characters.next() {
            None => return Err(unended),
            Some('!' | '^') if all.is_empty() && !negated => negated = true,
            Some(']') if !all.is_empty() => break,
            Some('/') => return Err("patterns without '/', also between '[' and ']'"),
            Some(character) => all.push(u32::from(character)),
        }
    }
    let mut ranges = Vec::new();
    let mut rest = all.as_slice();
    loop {
        rest = match rest {
            [] => return Ok(Token::In { negated, ranges }),
            [from, dash, to, rest @ ..] if *dash == u32::from('-') => {
                if from > to {
                    return Err("ranges that go up, such as [0-9]");
                }
                ranges.push((*from, *to));
                rest
            }
            [one, rest @ ..] => {
                ranges.push((*one, *one));
                rest
            }
        }
    }
}

serde_as_word!(FilePatterns);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_match_or_do_not() {
        let cases: &[(&str, &str, bool)] = &[
            ("any", "whatever", true),
            ("any", "", true),
            ("*", "whatever", true),
            ("*", "", true),
            ("*.mp4", "a.mp4", true),
            ("*.mp4", ".mp4", true),
            ("*.mp4", "a.MP4", false),
            ("*.[mM][pP]4", "a.MP4", true),
            ("*.mp4", "a.mp4.txt", false),
            ("*.mp4,*.fastq.gz", "reads.fastq.gz", true),
            ("*.mp4,*.fastq.gz", "reads.fastq", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a?c", "aéc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[!a-c]x", "dx", true),
            ("[^a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[-a]", "-", true),
            ("[a-]", "-", true),
            ("[,]", ",", true),
            ("[*]", "*", true),
            ("[*]", "a", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\,b", "a,b", true),
            ("a b", "a b", true),
            ("\\ a", " a", true),
            ("log-[0-9][0-9]", "log-07", true),
            ("ünï*", "ünïx", true),
        ];
        for (patterns, name, want) in cases {
            let list: FilePatterns = patterns.parse().unwrap();
            assert_eq!(list.matches(name.as_bytes()), *want, "{patterns} {name}");
            assert_eq!(list.to_string(), *patterns);
        }
        let one: FilePatterns = "a?c".parse().unwrap();
        assert!(one.matches(b"a\xffc") && !one.matches(b"a\xff\xfec"));
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_what_to_write() {
        let many = vec!["*"; FILE_PATTERNS_MAX + 1].join(",");
        let long = "a".repeat(FILE_PATTERNS_LEN_BYTES_MAX + 1);
        for (text, wanted) in [
            ("", "a comma between"),
            (",", "a comma between"),
            ("*.mp4,", "a comma between"),
            ("*.mp4,,*.mov", "a comma between"),
            ("*.mp4, *.mov", "without spaces"),
            ("videos/*.mp4", "without '/'"),
            ("[a/b]", "without '/'"),
            ("[a-z", "a ']' behind"),
            ("[]", "a ']' behind"),
            ("[z-a]", "that go up"),
            ("a\\", "behind each"),
            ("a\nb", "control"),
            (&many, "at most 32"),
            (&long, "1024 bytes"),
        ] {
            let refused = text.parse::<FilePatterns>().unwrap_err().to_string();
            assert!(refused.contains(wanted), "{text:?}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_or_refused(text in "[a*?,!^\\[\\]\\\\ é/-]{0,12}", name in any::<Vec<u8>>()) {
            if let Ok(list) = text.parse::<FilePatterns>() {
                list.matches(&name);
                prop_assert_eq!(list.to_string().parse::<FilePatterns>().unwrap(), list);
            }
        }

        #[test]
        fn a_name_matches_itself(name in "[a-c.]{1,20}") {
            let list: FilePatterns = name.parse().unwrap();
            prop_assert!(list.matches(name.as_bytes()));
            let starred: FilePatterns = format!("{}*", &name[..name.len() / 2]).parse().unwrap();
            prop_assert!(starred.matches(name.as_bytes()));
        }
    }
}
