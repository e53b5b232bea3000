//! The language of Terraform and OpenTofu, written as `fmt` of both would.
//!
//! Owns: quoting, alignment. Must not know: what a template says.

/// The body of a file or of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    items: Vec<Item>,
}

#[derive(Clone, Debug)]
enum Item {
    Attribute(String, Value),
    /// Type and labels.
    Block(Vec<String>, Body),
    Comment(String),
    Blank,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// An expression as it is.
    Expression(String),
    /// A string that means itself: nothing in it is a template.
    Text(String),
    Int(i64),
    Bool(bool),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
    /// Lines with templates in them; the caller has escaped the rest with [`escape_template`].
    Heredoc(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// An expression: a reference, a call.
pub(super) fn expression(text: impl Into<String>) -> Value {
    Value::Expression(text.into())
}

impl Body {
    pub fn attribute(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.items
            .push(Item::Attribute(name.to_string(), value.into()));
        self
    }

    /// A block with what `fill` puts into it.
    pub fn block(&mut self, words: &[&str], fill: impl FnOnce(&mut Self)) -> &mut Self {
        let mut body = Self::default();
        fill(&mut body);
        let words = words.iter().map(ToString::to_string).collect();
        self.items.push(Item::Block(words, body));
        self
    }

    pub fn comment(&mut self, text: &str) -> &mut Self {
        self.items.push(Item::Comment(text.to_string()));
        self
    }

    pub fn blank(&mut self) -> &mut Self {
        self.items.push(Item::Blank);
        self
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        self.push(&mut out, 0);
        out
    }

    fn push(&self, out: &mut String, depth: usize) {
        let entries: Vec<Entry<'_>> = self.items.iter().map(Item::entry).collect();
        push_entries(out, &entries, depth);
    }
}

enum Entry<'a> {
    Attribute(&'a str, &'a Value),
    Block(&'a [String], &'a Body),
    Comment(&'a str),
    Blank,
}

impl Item {
    fn entry(&self) -> Entry<'_> {
        match self {
            Self::Attribute(name, value) => Entry::Attribute(name, value),
            Self::Block(words, body) => Entry::Block(words, body),
            Self::Comment(text) => Entry::Comment(text),
            Self::Blank => Entry::Blank,
        }
    }
}

/// Attributes of one line, one after the other, have their `=` below one another.
fn push_entries(out: &mut String, entries: &[Entry<'_>], depth: usize) {
    for (index, entry) in entries.iter().enumerate() {
        if !matches!(entry, Entry::Blank) {
            push_indent(out, depth);
        }
        match entry {
            Entry::Blank => {}
            Entry::Comment(text) => {
                out.push_str("# ");
                out.push_str(text);
            }
            Entry::Attribute(name, value) => {
                let width = match is_one_line(value) {
                    true => run_width(entries, index),
                    false => name.len(),
                };
                out.push_str(&format!("{name:width$} = "));
                push_value(out, value, depth);
            }
            Entry::Block(words, body) => {
                for (at, word) in words.iter().enumerate() {
                    match at {
                        0 => out.push_str(word),
                        _ => out.push_str(&quoted(word)),
                    }
                    out.push(' ');
                }
                if body.items.is_empty() {
                    out.push_str("{}");
                } else {
                    out.push_str("{\n");
                    body.push(out, depth + 1);
                    push_indent(out, depth);
                    out.push('}');
                }
            }
        }
        out.push('\n');
    }
}

/// The longest name among the attributes of one line around `index`.
fn run_width(entries: &[Entry<'_>], index: usize) -> usize {
    let name_len = |entry: &Entry<'_>| match entry {
        Entry::Attribute(name, value) if is_one_line(value) => Some(name.len()),
        _ => None,
    };
    let before = entries
        .iter()
        .take(index)
        .rev()
        .map_while(name_len)
        .max()
        .unwrap_or(0);
    let after = entries.iter().skip(index).map_while(name_len).max();
    before.max(after.unwrap_or(0))
}

fn is_one_line(value: &Value) -> bool {
    match value {
        Value::Expression(text) => !text.contains('\n'),
        Value::Text(_) | Value::Int(_) | Value::Bool(_) => true,
        Value::List(list) => list.iter().all(is_one_line) && list_width(list) <= LIST_WIDTH_MAX,
        Value::Object(entries) => entries.is_empty(),
        // `fmt` looks at its first line only.
        Value::Heredoc(_) => true,
    }
}

/// Longer lists have an item a line.
const LIST_WIDTH_MAX: usize = 80;

fn list_width(list: &[Value]) -> usize {
    let mut text = String::new();
    for value in list {
        push_value(&mut text, value, 0);
    }
    text.len()
}

fn push_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Expression(text) => out.push_str(text),
        Value::Text(text) => out.push_str(&quoted(text)),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Bool(value) => out.push_str(&value.to_string()),
        Value::List(list) if is_one_line(value) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                push_value(out, item, depth);
            }
            out.push(']');
        }
        Value::List(list) => {
            out.push_str("[\n");
            for item in list {
                push_indent(out, depth + 1);
                push_value(out, item, depth + 1);
                out.push_str(",\n");
            }
            push_indent(out, depth);
            out.push(']');
        }
        Value::Object(entries) if entries.is_empty() => out.push_str("{}"),
        Value::Object(entries) => {
            out.push_str("{\n");
            let quoted_names: Vec<String> = entries.iter().map(|(name, _)| key(name)).collect();
            let entries: Vec<Entry<'_>> = quoted_names
                .iter()
                .zip(entries)
                .map(|(name, (_, value))| Entry::Attribute(name, value))
                .collect();
            push_entries(out, &entries, depth + 1);
            push_indent(out, depth);
            out.push('}');
        }
        Value::Heredoc(text) => {
            out.push_str("<<-EOT\n");
            for line in text.trim_end_matches('\n').split('\n') {
                if !line.is_empty() {
                    push_indent(out, depth + 1);
                    out.push_str(line);
                }
                out.push('\n');
            }
            push_indent(out, depth);
            out.push_str("EOT");
        }
    }
}

fn key(name: &str) -> String {
    let is_name = name
        .chars()
        .all(|each| each.is_ascii_alphanumeric() || each == '_')
        && name.starts_with(|first: char| first.is_ascii_alphabetic());
    match is_name {
        true => name.to_string(),
        false => quoted(name),
    }
}

fn push_indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// Makes `${` and `%{` mean themselves.
pub(super) fn escape_template(text: &str) -> String {
    text.replace("${", "$${").replace("%{", "%%{")
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in escape_template(text).chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            _ if character.is_control() => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_as_fmt_makes_it() {
        let mut file = Body::default();
        file.comment("All there is.");
        file.block(&["resource", "aws_ebs_volume", "data"], |body| {
            body.attribute("count", expression("length(var.ids)"))
                .attribute("availability_zone", "eu-west-1a")
                .attribute(
                    "tags",
                    Value::Object(vec![
                        ("Name".into(), "a ${b}".into()),
                        ("cairn:server".into(), expression("var.name")),
                    ]),
                )
                .attribute("size", 5_u32)
                .blank()
                .block(&["lifecycle"], |body| {
                    body.attribute("prevent_destroy", true);
                });
        });
        file.attribute("text", Value::Heredoc("one\n  two\n\nthree\n".into()));
        let want = r#"# All there is.
resource "aws_ebs_volume" "data" {
  count             = length(var.ids)
  availability_zone = "eu-west-1a"
  tags = {
    Name           = "a $${b}"
    "cairn:server" = var.name
  }
  size = 5

  lifecycle {
    prevent_destroy = true
  }
}
text = <<-EOT
  one
    two

  three
EOT
"#;
        assert_eq!(file.text(), want);
    }
}
