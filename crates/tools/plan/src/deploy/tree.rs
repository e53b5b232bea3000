//! A template as data: maps that keep their order, written as YAML or JSON.
//!
//! Owns: quoting. Must not know: what a template says.

use std::fmt::Write;

/// A value of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Text(String),
    Int(i64),
    Bool(bool),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// `map! { "key" => value, ... }`: a [`Node::Map`].
macro_rules! map {
    ($($key:expr => $value:expr),* $(,)?) => {
        $crate::deploy::tree::Node::Map(vec![
            $((($key).to_string(), $crate::deploy::tree::Node::from($value))),*
        ])
    };
}

/// `list![value, ...]`: a [`Node::List`].
macro_rules! list {
    ($($value:expr),* $(,)?) => {
        $crate::deploy::tree::Node::List(vec![$($crate::deploy::tree::Node::from($value)),*])
    };
}

pub(super) use {list, map};

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Node {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<i64> for Node {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Node {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<Vec<Node>> for Node {
    fn from(list: Vec<Node>) -> Self {
        Self::List(list)
    }
}

impl From<Vec<(String, Node)>> for Node {
    fn from(map: Vec<(String, Node)>) -> Self {
        Self::Map(map)
    }
}

impl Node {
    /// Adds an entry to a map.
    pub fn with(mut self, key: &str, value: impl Into<Self>) -> Self {
        if let Self::Map(entries) = &mut self {
            entries.push((key.to_string(), value.into()));
        }
        self
    }

    /// Adds an entry to a map, if there is one to add.
    pub fn with_some(self, key: &str, value: Option<Self>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::List(list) => list.is_empty(),
            Self::Map(map) => map.is_empty(),
            Self::Text(_) | Self::Int(_) | Self::Bool(_) => false,
        }
    }

    /// JSON with two spaces of indentation.
    pub fn json(&self) -> String {
        let mut out = String::new();
        self.push_json(&mut out, 0);
        out.push('\n');
        out
    }

    fn push_json(&self, out: &mut String, depth: usize) {
        match self {
            Self::Text(text) => out.push_str(&quoted(text)),
            Self::Int(_) | Self::Bool(_) => out.push_str(&self.word()),
            Self::List(list) if list.is_empty() => out.push_str("[]"),
            Self::Map(map) if map.is_empty() => out.push_str("{}"),
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.iter().enumerate() {
                    next_json(out, index, depth + 1);
                    item.push_json(out, depth + 1);
                }
                next_json(out, 0, depth);
                out.push(']');
            }
            Self::Map(map) => {
                out.push('{');
                for (index, (key, value)) in map.iter().enumerate() {
                    next_json(out, index, depth + 1);
                    out.push_str(&quoted(key));
                    out.push_str(": ");
                    value.push_json(out, depth + 1);
                }
                next_json(out, 0, depth);
                out.push('}');
            }
        }
    }

    /// YAML 1.1 and 1.2 alike: whatever one of them would not take as a string is quoted.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        self.push_yaml(&mut out, 0);
        out
    }

    /// Writes a map or a list in lines of its own.
    fn push_yaml(&self, out: &mut String, depth: usize) {
        match self {
            Self::Map(map) => {
                for (key, value) in map {
                    push_indent(out, depth);
                    out.push_str(&yaml_word(key));
                    out.push(':');
                    value.push_yaml_value(out, depth + 1);
                }
            }
            Self::List(list) => {
                for item in list {
                    push_indent(out, depth);
                    out.push('-');
                    item.push_yaml_item(out, depth + 1);
                }
            }
            Self::Text(_) | Self::Int(_) | Self::Bool(_) => self.push_yaml_value(out, depth),
        }
    }

    /// After `key:`.
    fn push_yaml_value(&self, out: &mut String, depth: usize) {
        match self {
            Self::List(_) | Self::Map(_) if !self.is_empty() => {
                out.push('\n');
                self.push_yaml(out, depth);
            }
            _ => self.push_yaml_scalar(out, depth),
        }
    }

    /// After `-`: the first entry of a map is on the same line.
    fn push_yaml_item(&self, out: &mut String, depth: usize) {
        match self {
            Self::Map(_) | Self::List(_) if !self.is_empty() => {
                let mut inner = String::new();
                self.push_yaml(&mut inner, depth);
                out.push(' ');
                out.push_str(inner.trim_start_matches(' '));
            }
            _ => self.push_yaml_scalar(out, depth),
        }
    }

    fn push_yaml_scalar(&self, out: &mut String, depth: usize) {
        out.push(' ');
        match self {
            Self::List(_) => out.push_str("[]"),
            Self::Map(_) => out.push_str("{}"),
            Self::Int(_) | Self::Bool(_) => out.push_str(&self.word()),
            Self::Text(text) if is_block(text) => {
                out.push_str(if text.ends_with('\n') { "|" } else { "|-" });
                for line in text.trim_end_matches('\n').split('\n') {
                    out.push('\n');
                    if !line.is_empty() {
                        push_indent(out, depth);
                        out.push_str(line);
                    }
                }
            }
            Self::Text(text) => out.push_str(&yaml_word(text)),
        }
        out.push('\n');
    }

    fn word(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(_) | Self::List(_) | Self::Map(_) => String::new(),
        }
    }
}

fn push_indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// The text between two entries, or before the closing bracket.
fn next_json(out: &mut String, index: usize, depth: usize) {
    if index > 0 {
        out.push(',');
    }
    out.push('\n');
    push_indent(out, depth);
}

/// A JSON string, which is a YAML string too.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            _ if character.is_control() => {
                // Writing into a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

/// Plain where no YAML reader can see anything but a string.
fn yaml_word(text: &str) -> String {
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let is_plain = starts
        && !text.ends_with([':', ' '])
        && !text.contains(": ")
        && text
            .chars()
            .all(|each| each.is_ascii_alphanumeric() || " _./:,-()<>=+;".contains(each));
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    if is_plain && !WORDS.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_string();
    }
    quoted(text)
}

/// Whether a text can be a literal block: several lines, and nothing that such a block would change.
fn is_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    body.contains('\n')
        && !body.starts_with([' ', '\n'])
        && !body.ends_with('\n')
        && !text.chars().any(|each| each.is_control() && each != '\n')
        && !text.lines().any(|line| line.ends_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_quotes_what_is_not_plainly_a_string() {
        let cases: &[(&str, &str)] = &[
            ("plain words", "plain words"),
            ("AWS::EC2::Volume", "AWS::EC2::Volume"),
            ("2010-09-09", "\"2010-09-09\""),
            ("0700", "\"0700\""),
            ("", "\"\""),
            ("no", "\"no\""),
            ("On", "\"On\""),
            ("a: b", "\"a: b\""),
            ("ends:", "\"ends:\""),
            ("# comment", "\"# comment\""),
            ("a #b", "\"a #b\""),
            ("*", "\"*\""),
            ("say \"x\"\\", "\"say \\\"x\\\"\\\\\""),
            ("a\tb\u{1}", "\"a\\tb\\u0001\""),
            ("${Name}", "\"${Name}\""),
        ];
        for (text, want) in cases {
            assert_eq!(yaml_word(text), *want, "{text:?}");
        }
    }

    #[test]
    fn a_tree_is_written_both_ways() {
        let tree = map! {
            "Text" => "one\n  two\n\nthree\n",
            "List" => list![map! { "a" => 1_u32, "b" => list!["x", "y"] }, "z", list![]],
            "Empty" => Node::Map(Vec::new()),
            "Yes" => true,
        };
        assert_eq!(
            tree.yaml(),
            "Text: |\n  one\n    two\n\n  three\nList:\n  - a: 1\n    b:\n      - x\n      - \"y\"\n  - z\n  - []\n\
             Empty: {}\n\"Yes\": true\n"
        );
        let json: serde_json::Value = serde_json::from_str(&tree.json()).unwrap();
        let want = serde_json::json!({
            "Text": "one\n  two\n\nthree\n",
            "List": [{"a": 1, "b": ["x", "y"]}, "z", []],
            "Empty": {},
            "Yes": true,
        });
        assert_eq!(json, want);
    }
}
