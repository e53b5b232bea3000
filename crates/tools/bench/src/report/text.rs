//! Numbers as people read them, and text that is safe where it is put.
//!
//! Owns: rounding, units, escaping. Must not know: results.

/// Where a number is not known.
pub(super) const UNKNOWN: &str = "–";

/// Three digits that count, or all that are before the point; thousands are separated.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return UNKNOWN.to_string();
    }
    if size >= 99.95 {
        return group(&format!("{value:.0}"));
    }
    match size {
        0.0 => "0".to_string(),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

pub(super) fn count(value: u64) -> String {
    group(&value.to_string())
}

/// Commas between the thousands of a whole number.
fn group(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits),
    };
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `64 KiB`; exact where the number of bytes is a multiple of the unit, else with one digit.
pub(super) fn bytes(value: u64) -> String {
    let units = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        None => format!("{value} B"),
        Some((unit, name)) if value.is_multiple_of(unit) => format!("{} {name}", value / unit),
        Some((unit, name)) => format!("{:.1} {name}", value as f64 / unit as f64),
    }
}

/// `85.0 µs`, `1.20 ms`, `3.00 s`.
pub(super) fn microseconds(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{} s", number(value / 1e6)),
        _ if value >= 999.5 => format!("{} ms", number(value / 1e3)),
        _ => format!("{} µs", number(value)),
    }
}

pub(super) fn seconds(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{} s", group(&format!("{value:.0}"))),
        false => format!("{} s", number(value)),
    }
}

/// Text between tags or in a quoted attribute. Characters that steer terminals, or turn the direction
/// of what follows, are made visible.
pub(super) fn push_html(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ if is_unprintable(character) => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
}

/// Text in one cell or line of Markdown: no markup, no end of line, no HTML.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(character);
            }
            '\n' | '\r' | '\t' => out.push(' '),
            _ if is_unprintable(character) => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

/// JSON inside a `<script>` element: nothing in it can end the element or start a comment.
pub(super) fn json_in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out
}

/// At most so many characters, with a mark where the rest is missing.
pub(super) fn shorten(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        None => text.to_string(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

fn is_unprintable(character: char) -> bool {
    let steers_direction = matches!(
        character,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    steers_direction || (character.is_control() && !matches!(character, '\n' | '\t' | '\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_for_people() {
        let cases = [
            (0.0, "0"),
            (0.000_01, "1.0e-5"),
            (0.1234, "0.123"),
            (0.9999, "1.00"),
            (9.999, "10.0"),
            (12.345, "12.3"),
            (99.97, "100"),
            (1234.5, "1,234"),
            (-1_234_567.0, "-1,234,567"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, want) in cases {
            assert_eq!(number(value), want, "{value}");
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(count(999), "999");
        for (value, want) in [
            (0, "0 B"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
            (1_500_000, "1.4 MiB"),
        ] {
            assert_eq!(bytes(value), want);
        }
        for (value, want) in [
            (0.5, "0.500 µs"),
            (85.0, "85.0 µs"),
            (999.9, "1.00 ms"),
            (2.5e6, "2.50 s"),
        ] {
            assert_eq!(microseconds(value), want);
        }
    }

    #[test]
    fn no_text_breaks_out() {
        let hostile = "</script><img src=x onerror='a(\"b\")'>&\u{202e}\u{1b}[1m|`*\n<!--\u{2028}";
        let mut page = String::new();
        push_html(&mut page, hostile);
        assert!(
            !page.contains(['<', '>', '"', '\'', '\u{202e}', '\u{1b}']),
            "{page}"
        );
        let cell = markdown(hostile);
        assert!(!cell.contains(['<', '>', '\n', '\u{1b}']), "{cell}");
        assert!(!cell.replace("\\|", "").contains('|'), "{cell}");
        let json = serde_json::to_string(hostile).unwrap();
        let script = json_in_script(&json);
        assert!(!script.contains(['<', '>', '&', '\u{2028}']), "{script}");
        assert_eq!(serde_json::from_str::<String>(&script).unwrap(), hostile);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(shorten("äöü", 2), "äö…");
    }
}
