//! Plain tables without lines, so that they can be cut and searched.

/// Rows under headings; the first column is text, the others are numbers. Two spaces between columns.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column: usize| {
        let longest = rows
            .iter()
            .map(|row| cell(row, column).chars().count())
            .max();
        let heading = headings.get(column).map_or(0, |text| text.chars().count());
        heading.max(longest.unwrap_or(0))
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| match (column, cell(cells, column)) {
                (0, text) => format!("{text:<width$}"),
                (_, text) => format!("{text:>width$}"),
            })
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let heading: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    let mut text = line(&heading);
    for row in rows {
        text.push_str(&line(row));
    }
    text
}

/// A figure with as many decimals as it deserves.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Smallest, largest, mean and standard deviation (of a sample) of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    pub deviation: f64,
}

impl Spread {
    /// `None` without figures.
    pub fn of(values: &[f64]) -> Option<Self> {
        let first = *values.first()?;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            min: values.iter().copied().fold(first, f64::min),
            max: values.iter().copied().fold(first, f64::max),
            mean,
            deviation: if values.len() < 2 {
                0.0
            } else {
                (squares / (count - 1.0)).sqrt()
            },
        })
    }
}

/// `amount` in each second; 0 when no time has passed.
pub(super) fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["a".to_owned(), "1".to_owned(), "22".to_owned()],
            vec!["long name".to_owned(), "333".to_owned()],
        ];
        let want = "NAME         X   Y\na            1  22\nlong name  333\n";
        assert_eq!(table(&["NAME", "X", "Y"], &rows), want);
    }

    #[test]
    fn spreads_are_computed() {
        let spread = Spread::of(&[2.0, 4.0, 6.0]).unwrap();
        let want = Spread {
            min: 2.0,
            max: 6.0,
            mean: 4.0,
            deviation: 2.0,
        };
        assert_eq!(spread, want);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[5.0]).unwrap().deviation, 0.0);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (12345.6, "12346"),
            (f64::NAN, "-"),
        ];
        for (value, want) in cases {
            assert_eq!(number(value), want);
        }
    }
}
