//! Writes results to standard output.

use std::io::{ErrorKind, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::exit::Failure;

/// Writes text; a reader that has seen enough (`cairn ... | head`) is no error.
pub fn text(text: &str) -> Result<(), Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    bytes(format!("{text}{end}").as_bytes())
}

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
    text(&json)
}

/// One object on a line of its own.
pub fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::failed(format!("writing JSON: {error}")))
}

/// Least and most that text is made for; in wider terminals lines are no longer easy to read.
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 160;
/// Where nobody says how wide the output is: files and pipes.
const WIDTH_DEFAULT: usize = 120;

/// How many characters a line may have: of `COLUMNS`, else of the terminal.
pub fn width() -> usize {
    let of_terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then(|| usize::from(size.ws_col))
    };
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .or_else(of_terminal)
        .unwrap_or(WIDTH_DEFAULT)
        .clamp(WIDTH_MIN, WIDTH_MAX)
}

/// Writes a line to standard error. Unlike `eprintln!` it does not panic when nobody reads that.
macro_rules! note {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($part)*);
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
            _ => cell,
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
}
