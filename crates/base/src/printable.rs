//! Text that others chose, as terminals, logs and spreadsheets may get it.
//!
//! Owns: which characters command a terminal or change the order and the lines of a text, and how they are escaped.
//! Must not know: where the text goes.
//!
//! Names of files, objects, clients and people have any characters. On a terminal an escape sequence in one moves the cursor, sets
//! the window's title or types into the shell; a line feed makes a line that nobody wrote, also in a log; a bidirectional control
//! shows a name as another one (CVE-2021-42574).

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character is shown as itself: it is no control character (C0, DEL, C1), separates no lines and changes no
/// direction.
///
/// Sources: ECMA-48, section 5.3; Unicode Standard Annex 9, section 2 (explicit and implicit directional formatting); Unicode,
/// section 23.2 (U+2028 and U+2029).
pub fn is_plain(letter: char) -> bool {
    let changes_order = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let separates_lines = matches!(letter, '\u{2028}' | '\u{2029}');
    !letter.is_control() && !changes_order && !separates_lines
}

fn written_out(
    text: &str,
    stays: impl Fn(char) -> bool,
    mut write: impl FnMut(&mut String, char),
) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match stays(letter) {
            true => out.push(letter),
            false => write(&mut out, letter),
        }
    }
    Cow::Owned(out)
}

/// A text as a part of one line, with other than plain characters escaped as in Rust, `\n` or `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    written_out(text, is_plain, |out, letter| {
        out.extend(letter.escape_default());
    })
}

/// A text of lines: line feeds and tabs stay, which the caller put there.
pub fn lines(text: &str) -> Cow<'_, str> {
    let stays = |letter| is_plain(letter) || matches!(letter, '\n' | '\t');
    written_out(text, stays, |out, letter| {
        out.extend(letter.escape_default());
    })
}

/// A line of a log: line feeds stay at its end alone. Where `has_colours`, escape sequences stay, which the values in it do not
/// have any more.
pub fn log_line(line: &str, has_colours: bool) -> Cow<'_, str> {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    let stays = |letter| is_plain(letter) || (has_colours && letter == '\u{1b}');
    let shown = written_out(text, stays, |out, letter| {
        out.extend(letter.escape_default());
    });
    match shown {
        Cow::Borrowed(_) => Cow::Borrowed(line),
        Cow::Owned(shown) => Cow::Owned(shown + end),
    }
}

/// JSON of the same meaning: other than plain characters are in strings alone, escaped as `\u001b` (RFC 8259, section 7). All such
/// characters have four hexadecimal digits.
pub fn in_json(json: &str) -> Cow<'_, str> {
    let stays = |letter| is_plain(letter) || matches!(letter, '\n' | '\t' | '\r');
    written_out(json, stays, |out, letter| {
        let _ = write!(out, "\\u{:04x}", u32::from(letter));
    })
}

/// A text of somebody's as a field of CSV (RFC 4180): in quotes, without control characters. One that a spreadsheet would take for
/// a formula begins with an apostrophe.
///
/// Source: OWASP, "CSV Injection"; the wide forms of the signs count in some languages' spreadsheets.
pub fn csv_field(text: &str) -> String {
    let first = text.trim_start_matches(|letter: char| letter.is_whitespace() || !is_plain(letter));
    let signs = [
        '=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}',
    ];
    let mark = if first.starts_with(signs) { "'" } else { "" };
    format!("\"{mark}{}\"", one_line(text).replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_written_out() {
        let cases: &[(&str, &str, &str, &str)] = &[
            // A text, on one line, in lines, in JSON.
            (
                "plain \u{e4}\u{4e2d}\u{1f600}",
                "plain \u{e4}\u{4e2d}\u{1f600}",
                "plain \u{e4}\u{4e2d}\u{1f600}",
                "plain \u{e4}\u{4e2d}\u{1f600}",
            ),
            (
                "a\u{1b}[2Jb",
                "a\\u{1b}[2Jb",
                "a\\u{1b}[2Jb",
                "a\\u001b[2Jb",
            ),
            ("a\nb\tc", "a\\nb\\tc", "a\nb\tc", "a\nb\tc"),
            ("a\rb", "a\\rb", "a\\rb", "a\rb"),
            (
                "\0\u{7f}",
                "\\u{0}\\u{7f}",
                "\\u{0}\\u{7f}",
                "\\u0000\\u007f",
            ),
            ("\u{9b}31m", "\\u{9b}31m", "\\u{9b}31m", "\\u009b31m"),
            (
                "\u{202e}gpj.exe",
                "\\u{202e}gpj.exe",
                "\\u{202e}gpj.exe",
                "\\u202egpj.exe",
            ),
            (
                "\u{2066}\u{2069}\u{61c}\u{200f}",
                "\\u{2066}\\u{2069}\\u{61c}\\u{200f}",
                "\\u{2066}\\u{2069}\\u{61c}\\u{200f}",
                "\\u2066\\u2069\\u061c\\u200f",
            ),
            (
                "a\u{2028}b\u{2029}",
                "a\\u{2028}b\\u{2029}",
                "a\\u{2028}b\\u{2029}",
                "a\\u2028b\\u2029",
            ),
        ];
        for (text, line, in_lines, json) in cases {
            assert_eq!(one_line(text), *line, "{text:?}");
            assert_eq!(lines(text), *in_lines, "{text:?}");
            assert_eq!(in_json(text), *json, "{text:?}");
        }
        assert!(matches!(one_line("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn a_line_of_a_log_is_one_line() {
        let cases = [
            ("a\n", false, "a\n"),
            ("a\nb\n", false, "a\\nb\n"),
            ("a\r\n", false, "a\\r\n"),
            ("\u{1b}[2m\u{202e}\n", false, "\\u{1b}[2m\\u{202e}\n"),
            ("\u{1b}[2m\u{202e}\n", true, "\u{1b}[2m\\u{202e}\n"),
            ("\u{9b}", true, "\\u{9b}"),
        ];
        for (line, has_colours, want) in cases {
            assert_eq!(log_line(line, has_colours), want, "{line:?}");
        }
    }

    #[test]
    fn fields_of_csv_are_no_formulas() {
        let cases = [
            ("plain", "\"plain\""),
            ("", "\"\""),
            ("a\"b", "\"a\"\"b\""),
            ("=1+1", "\"'=1+1\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\\t=1\""),
            (" \r\n=1", "\"' \\r\\n=1\""),
            ("\u{ff1d}1", "\"'\u{ff1d}1\""),
            ("\u{202e}=1", "\"'\\u{202e}=1\""),
            ("a=1", "\"a=1\""),
            ("a\r\nb,c", "\"a\\r\\nb,c\""),
        ];
        for (text, want) in cases {
            assert_eq!(csv_field(text), want, "{text:?}");
        }
    }
}
