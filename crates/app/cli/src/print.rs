//! Writes results to standard output, and notes to standard error.
//!
//! Invariant: nothing that somebody chose (a name, a path, a server's words) commands the terminal. All output is escaped
//! here, and nowhere else; a name within a text goes through [`name`], so that a line feed in it makes no line.

use std::io::{ErrorKind, Write};

use cairn_base::printable;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::exit::Failure;

/// Writes text of several lines; a reader that has seen enough (`cairn ... | head`) is no error.
pub fn text(text: &str) -> Result<(), Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    bytes(format!("{}{end}", printable::lines(text)).as_bytes())
}

/// A name, or words of a server, within a text.
pub fn name(name: &str) -> std::borrow::Cow<'_, str> {
    printable::one_line(name)
}

/// Moves to the first line, and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Writes text in place of what the terminal shows.
pub fn screen(text: &str) -> Result<(), Failure> {
    bytes(format!("{CLEAR}{}\n", printable::lines(text)).as_bytes())
}

/// Writes lines of CSV, each with its end; the texts in them are of [`printable::csv_field`].
pub fn csv(lines: &str) -> Result<(), Failure> {
    bytes(lines.as_bytes())
}

/// Writes what is as it is to be: a program's own files, no text of anybody else.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("writing the output: {error}")))
        }
        _ => Ok(()),
    }
}

pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::failed(format!("writing JSON: {error}")))?;
    bytes(format!("{}\n", printable::in_json(&json)).as_bytes())
}

/// One object on a line of its own.
pub fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("writing JSON: {error}")))?;
    Ok(printable::in_json(&json).into_owned())
}

/// Writes a question to standard error. One that does not show up changes nothing: the answer decides.
pub fn ask(question: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(printable::lines(question).as_bytes());
    let _ = err.flush();
}

/// Writes a line to standard error. Unlike `eprintln!` it does not panic when nobody reads that.
macro_rules! note {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let note = format!($($part)*);
        let _ = writeln!(std::io::stderr(), "{}", cairn_base::printable::lines(&note));
    }};
}
pub(crate) use note;

/// A column: its heading, and whether it holds numbers.
pub type Column = (&'static str, Align);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A plain table without lines, so that it can be cut and searched; empty cells become `-`.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    for row in rows {
        let cells = row.into_iter().map(|cell| match cell.as_str() {
            "" => "-".to_owned(),
            _ => name(&cell).into_owned(),
        });
        table.add_row(cells);
    }
    for (index, (_, align)) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_plain_text() {
        let columns = [("NAME", Align::Left), ("SIZE", Align::Right)];
        let rows = vec![
            vec!["main".to_owned(), "1 GiB".to_owned()],
            vec!["a".to_owned(), String::new()],
        ];
        let want = "NAME   SIZE\nmain  1 GiB\na         -";
        assert_eq!(table(&columns, rows), want);
    }

    /// A line feed in a name would be a row that nobody has, or split one.
    #[test]
    fn a_cell_is_of_one_line_and_commands_nothing() {
        let rows = vec![vec!["a\n\u{1b}[2Jb\u{202e}".to_owned(), "1".to_owned()]];
        let text = table(&[("NAME", Align::Left), ("SIZE", Align::Right)], rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[1].starts_with("a\\n\\u{1b}[2Jb\\u{202e}"), "{text}");
    }

    #[test]
    fn json_means_the_same_and_commands_nothing() {
        let value = serde_json::json!({ "name": "a\u{9b}\u{202e}\u{7f}\n\u{1b}" });
        let line = json_line(&value).unwrap();
        assert!(line.chars().all(printable::is_plain), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read, value);
    }
}
