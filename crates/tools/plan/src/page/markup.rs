//! HTML that is being written.
//!
//! Owns: escaping. Must not know: what the page says.

/// Text cannot become markup here: only literals of this program are taken as they are.
#[derive(Default)]
pub(super) struct Page {
    out: String,
}

impl Page {
    /// Markup. Only what is compiled in has this lifetime, so no text of a report gets here.
    pub fn raw(&mut self, markup: &'static str) {
        self.out.push_str(markup);
    }

    pub fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' => self.out.push_str("&quot;"),
                '\'' => self.out.push_str("&#39;"),
                _ if is_unprintable(character) => self.out.push('\u{fffd}'),
                _ => self.out.push(character),
            }
        }
    }

    /// Text between two pieces of markup.
    pub fn element(&mut self, open: &'static str, text: &str, close: &'static str) {
        self.raw(open);
        self.text(text);
        self.raw(close);
    }

    /// What [`json_in_script`] made.
    pub fn escaped(&mut self, json: &str) {
        self.out.push_str(json);
    }

    /// A table in a frame that scrolls by itself on narrow screens. `what` is for those who hear it;
    /// columns have a title, and whether they are numbers.
    pub fn table_start(&mut self, what: &str, columns: &[(&str, bool)]) {
        self.element(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"",
            what,
            "\"><table>\n<thead><tr>",
        );
        for (title, is_number) in columns {
            let open = match is_number {
                true => "<th scope=\"col\" class=\"number\">",
                false => "<th scope=\"col\">",
            };
            self.element(open, title, "</th>");
        }
        self.raw("</tr></thead>\n<tbody>\n");
    }

    pub fn table_end(&mut self) {
        self.raw("</tbody>\n</table></div>\n");
    }

    pub fn into_text(self) -> String {
        self.out
    }
}

/// Controls, and what turns the direction of the text after it.
fn is_unprintable(character: char) -> bool {
    (character.is_control() && !"\n\t".contains(character))
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON inside a `<script>` element: nothing in it can end the element or start a comment.
pub(super) fn json_in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            _ if "<>&\u{2028}\u{2029}".contains(character) || is_unprintable(character) => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_is_markup() {
        let cases: &[(&str, &str)] = &[
            ("plain", "plain"),
            ("<script>&\"'", "&lt;script&gt;&amp;&quot;&#39;"),
            ("a\u{1b}[31m\u{202e}b", "a\u{fffd}[31m\u{fffd}b"),
        ];
        for (text, want) in cases {
            let mut page = Page::default();
            page.text(text);
            assert_eq!(page.into_text(), *want, "{text:?}");
        }
        assert_eq!(
            json_in_script("\"</script><!--\u{2028}\""),
            "\"\\u003c/script\\u003e\\u003c!--\\u2028\""
        );
    }
}
