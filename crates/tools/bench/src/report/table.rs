//! A table, before it is known how it is shown.
//!
//! Owns: the shape that both kinds of pages can show. Must not know: HTML, Markdown, results.

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub title: String,
    pub is_number: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// As many as there are columns; the first says what the row is about.
    pub cells: Vec<String>,
    pub kind: RowKind,
    /// The part of the longest bar of the table, 0 to 1; in tables that are bar charts.
    pub bar: Option<f64>,
    /// The result that it is about, by which it is coloured.
    pub result: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Plain,
    /// The one that counts: the best depth, or a result of one's own among published ones.
    Best,
    /// Not all that was asked for.
    Partial,
}

impl Table {
    pub fn new<const N: usize>(columns: [Column; N]) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    pub fn push<const N: usize>(&mut self, kind: RowKind, cells: [String; N]) {
        self.rows.push(Row {
            cells: cells.into(),
            kind,
            bar: None,
            result: None,
        });
    }

    /// Makes the last row one of a bar chart.
    pub fn draw(&mut self, bar: f64, result: Option<usize>) {
        if let Some(row) = self.rows.last_mut() {
            row.bar = Some(bar);
            row.result = result;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

pub(super) fn words(title: impl Into<String>) -> Column {
    Column {
        title: title.into(),
        is_number: false,
    }
}

pub(super) fn numbers(title: impl Into<String>) -> Column {
    Column {
        title: title.into(),
        is_number: true,
    }
}
