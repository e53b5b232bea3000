//! Forms that browsers send: `multipart/form-data` (RFC 7578; RFC 2046, section 5.1.1), read as it comes.
//!
//! Owns: what separates parts, the fields before the file and how long they may be, where the file ends, however the body is cut
//! into pieces.
//! Must not know: what a field means, where the bytes of the file go.
//!
//! ```text
//! --BOUNDARY CRLF  headers CRLF CRLF  value  CRLF --BOUNDARY CRLF  headers CRLF CRLF  file  CRLF --BOUNDARY-- ...
//! '------------------------- Fields -----------------------------------------------''--------- File ----------'
//! ```
//!
//! The file is the last part that counts ("POST Object", "Form fields"): what comes behind it is not looked at, and bounded.

/// Of all that comes before the bytes of the file (Amazon S3 API Reference, "POST Object": 20 KB of form data).
pub const FIELDS_LEN_BYTES_MAX: usize = 20 << 10;
/// Of all that comes behind them.
pub const AFTER_LEN_BYTES_MAX: usize = 20 << 10;
/// RFC 2046, section 5.1.1.
const BOUNDARY_LEN_BYTES_MAX: usize = 70;
const TYPE: &str = "multipart/form-data";
const LINE_END: &[u8] = b"\r\n";
const HEADERS_END: &[u8] = b"\r\n\r\n";
const FILE: &str = "file";
/// What of a field's value stands for the name of the file that the client sent.
const FILE_NAME: &str = "${filename}";
/// Fields that begin so are for nobody here, and may be there several times.
const IGNORED: &str = "x-ignore-";

/// Why a form is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    #[error(
        "the content type of a form has a boundary of 1 to {BOUNDARY_LEN_BYTES_MAX} characters"
    )]
    Boundary,
    #[error("what comes before the file is longer than {FIELDS_LEN_BYTES_MAX} bytes")]
    FieldsTooLong,
    #[error("the form cannot be read: {0}")]
    Malformed(&'static str),
    #[error("the field {0} is there twice")]
    Twice(String),
    #[error("the form has no field called file")]
    NoFile,
    #[error("what comes behind the file is longer than {AFTER_LEN_BYTES_MAX} bytes")]
    AfterTooLong,
    #[error("the form ended before its last boundary")]
    Incomplete,
}

/// Whether a content type is that of a form.
pub fn is_form(content_type: &[u8]) -> bool {
    let kind = content_type.split(|byte| *byte == b';').next();
    kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(TYPE.as_bytes()))
}

/// The boundary that a content type tells (RFC 2046, section 5.1.1).
pub fn boundary(content_type: &str) -> Result<String, FormError> {
    let found = parameters(content_type)
        .find(|(name, _)| name.eq_ignore_ascii_case("boundary"))
        .ok_or(FormError::Boundary)?;
    let boundary = found.1;
    // Without a CR in it, no beginning of a delimiter begins again within itself: see `File::push`.
    let is_plain = boundary.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let is_boundary = (1..=BOUNDARY_LEN_BYTES_MAX).contains(&boundary.len());
    match is_boundary && is_plain && !boundary.ends_with(' ') {
        true => Ok(boundary),
        false => Err(FormError::Boundary),
    }
}

/// Names and values behind the semicolons of a header. A backslash hides what ends a quoted value, and nothing else: browsers send paths
/// with backslashes as they are.
fn parameters(header: &str) -> impl Iterator<Item = (String, String)> {
    let mut rest = header.split_once(';').map_or("", |(_, rest)| rest);
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start_matches([' ', '\t', ';']);
            if rest.is_empty() {
                return None;
            }
            let end = rest.find(['=', ';']).unwrap_or(rest.len());
            let (name, behind) = rest.split_at(end);
            let Some(value) = behind.strip_prefix('=') else {
                // A word without a value.
                rest = behind;
                continue;
            };
            let (value, behind) = match value.trim_start_matches([' ', '\t']).strip_prefix('"') {
                Some(quoted) => unquoted(quoted),
                None => {
                    let end = value.find(';').unwrap_or(value.len());
                    let (value, behind) = value.split_at(end);
                    (value.trim().to_owned(), behind)
                }
            };
            rest = behind;
            return Some((name.trim().to_owned(), value));
        }
    })
}

/// A value up to the quotation mark that ends it, and what follows.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, text.get(at + 1..).unwrap_or_default()),
            '\\' => match chars.next_if(|(_, next)| ['"', '\\'].contains(next)) {
                Some((_, hidden)) => value.push(hidden),
                None => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    (value, "")
}

/// Where `wanted` begins in `text`, at `from` or behind it.
fn find(text: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let found = rest.windows(wanted.len()).position(|it| it == wanted)?;
    Some(from + found)
}

/// Whether the fields of a form are whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// More has to come.
    Partly,
    /// The bytes of the file begin here in the piece that was given last.
    Whole { file_offset: usize },
}

/// What comes before the bytes of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Names in lower case, in their order.
    pub fields: Vec<(String, String)>,
    /// As the client wrote it; `None`: the file has no name.
    pub file_name: Option<String>,
}

impl Fields {
    /// The value of a field.
    pub fn get(&self, wanted: &str) -> Option<&str> {
        let mut all = self.fields.iter();
        let (_, value) = all.find(|(name, _)| name == wanted)?;
        Some(value.as_str())
    }

    /// A value with the name of the file in it, where it asks for that: of a path only the part after its last slash or backslash
    /// ("POST Object", "Form fields", `key`).
    pub fn named(&self, value: &str) -> String {
        let path = self.file_name.as_deref().unwrap_or_default();
        let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
        value.replace(FILE_NAME, name)
    }
}

/// The next thing to find in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormState {
    /// The delimiter before the first part.
    First,
    /// What follows a delimiter: the end of its line, or of the form.
    Line,
    /// The end of a part's headers.
    Headers,
    /// The delimiter that ends a field.
    Value,
}

/// Reads the fields, piece by piece, in memory that is bounded.
#[derive(Debug)]
pub struct FieldsReader {
    /// Begins with the end of a line, as if one had come before the first delimiter.
    buffer: Vec<u8>,
    delimiter: Vec<u8>,
    wanted: FormState,
    /// Bytes before this offset of `buffer` were read.
    at: usize,
    /// The wanted bytes do not begin before this offset.
    searched: usize,
    /// The name of the field whose value comes.
    name: String,
    fields: Fields,
}

impl FieldsReader {
    /// `boundary` is one that [`boundary`] gave.
    pub fn new(boundary: &str) -> Self {
        Self {
            buffer: LINE_END.to_vec(),
            delimiter: delimiter(boundary),
            wanted: FormState::First,
            at: 0,
            searched: 0,
            name: String::new(),
            fields: Fields::default(),
        }
    }

    /// Takes a piece of the body. After [`Read::Whole`] there is nothing more to give.
    pub fn push(&mut self, piece: &[u8]) -> Result<Read, FormError> {
        let before = self.buffer.len();
        // One byte more than may be tells that it is too long.
        let room = (FIELDS_LEN_BYTES_MAX + LINE_END.len() + 1).saturating_sub(before);
        let taken = piece.get(..room).unwrap_or(piece);
        self.buffer.extend_from_slice(taken);
        while self.step()? {}
        let is_whole = self.is_whole();
        let len = if is_whole { self.at } else { self.buffer.len() };
        if len > FIELDS_LEN_BYTES_MAX + LINE_END.len() {
            return Err(FormError::FieldsTooLong);
        }
        // The headers of the file ended in this piece.
        let file_offset = self.at.saturating_sub(before);
        Ok(match is_whole {
            true => Read::Whole { file_offset },
            false => Read::Partly,
        })
    }

    /// The fields that were read.
    pub fn fields(self) -> Fields {
        self.fields
    }

    fn is_whole(&self) -> bool {
        self.wanted == FormState::Value && self.name == FILE
    }

    /// One step further, if what has come is enough for it.
    fn step(&mut self) -> Result<bool, FormError> {
        if self.is_whole() {
            return Ok(false);
        }
        let mark = match self.wanted {
            FormState::First | FormState::Value => self.delimiter.as_slice(),
            FormState::Line => LINE_END,
            FormState::Headers => HEADERS_END,
        };
        let mark_len = mark.len();
        let found = find(&self.buffer, mark, self.searched.max(self.at));
        let Some(found) = found else {
            // What has come of it may be at the end.
            self.searched = (self.buffer.len() + 1).saturating_sub(mark_len);
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let is_last = self.wanted == FormState::Line && rest.starts_with(b"--");
            return match is_last {
                true => Err(FormError::NoFile),
                false => Ok(false),
            };
        };
        let before = self.buffer.get(self.at..found).unwrap_or_default();
        (self.at, self.wanted) = match self.wanted {
            FormState::First => (found + mark_len, FormState::Line),
            FormState::Value => {
                let value = std::str::from_utf8(before);
                let value = value.map_err(|_| FormError::Malformed("a field is no UTF-8"))?;
                let field = (std::mem::take(&mut self.name), value.to_owned());
                let is_there = self.fields.fields.iter().any(|(name, _)| *name == field.0);
                if is_there && !field.0.starts_with(IGNORED) {
                    return Err(FormError::Twice(field.0));
                }
                self.fields.fields.push(field);
                (found + mark_len, FormState::Line)
            }
            FormState::Line if before.starts_with(b"--") => return Err(FormError::NoFile),
            FormState::Line if !before.iter().all(|byte| b" \t".contains(byte)) => {
                return Err(FormError::Malformed("a boundary goes on"));
            }
            // The end of the line also stands before the empty line of a part without headers.
            FormState::Line => (found, FormState::Headers),
            FormState::Headers => {
                let (name, file_name) = disposition(before)?;
                self.name = name.to_ascii_lowercase();
                if self.name == FILE {
                    self.fields.file_name = file_name;
                }
                (found + mark_len, FormState::Value)
            }
        };
        Ok(true)
    }
}

/// The name of a field, and of its file, in the headers of a part (RFC 7578, section 4.2).
fn disposition(headers: &[u8]) -> Result<(String, Option<String>), FormError> {
    let headers = std::str::from_utf8(headers);
    let headers =
        headers.map_err(|_| FormError::Malformed("the headers of a field are no UTF-8"))?;
    let found = headers.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.trim().eq_ignore_ascii_case("content-disposition");
        is_it.then_some(value)
    });
    let value = found.ok_or(FormError::Malformed("a field has no Content-Disposition"))?;
    let (mut name, mut file_name) = (None, None);
    for (parameter, value) in parameters(value) {
        let known = match parameter.to_ascii_lowercase().as_str() {
            "name" => &mut name,
            "filename" => &mut file_name,
            _ => continue,
        };
        if known.replace(value).is_some() {
            return Err(FormError::Malformed("a field has two names"));
        }
    }
    let name = name.ok_or(FormError::Malformed("a field has no name"))?;
    Ok((name, file_name))
}

fn delimiter(boundary: &str) -> Vec<u8> {
    [LINE_END, b"--", boundary.as_bytes()].concat()
}

/// What of a piece belongs to the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// So many bytes of the delimiter, from its beginning, were held back and turned out to be the file's. They come first.
    pub held_len_bytes: usize,
    /// So many bytes of the piece, from its beginning, follow them.
    pub piece_len_bytes: usize,
}

/// How far what follows the file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// One hyphen of the two that end the form.
    Hyphen,
    /// Blanks at the end of the delimiter's line.
    Padding,
    /// The CR of it.
    Cr,
    /// The delimiter is one: whatever follows does not count.
    Done,
}

/// Finds where the file ends, however the body is cut into pieces.
#[derive(Debug)]
pub struct FileReader {
    delimiter: Vec<u8>,
    /// So many bytes of the delimiter were at the end of the last piece.
    held: usize,
    /// The file has ended.
    after: Option<After>,
    after_len_bytes: usize,
}

impl FileReader {
    /// `boundary` is one that [`boundary`] gave.
    pub fn new(boundary: &str) -> Self {
        Self {
            delimiter: delimiter(boundary),
            held: 0,
            after: None,
            after_len_bytes: 0,
        }
    }

    /// What the bytes are that [`Taken::held_len_bytes`] counts.
    pub fn delimiter(&self) -> &[u8] {
        &self.delimiter
    }

    /// Takes a piece of the body. What follows the file is checked, so that a delimiter that is none cuts no file short.
    pub fn push(&mut self, piece: &[u8]) -> Result<Taken, FormError> {
        if self.after.is_some() {
            self.follow(piece)?;
            return Ok(Taken::default());
        }
        let mut taken = Taken::default();
        let mut from = 0;
        if self.held > 0 {
            let wanted = self.delimiter.get(self.held..).unwrap_or_default();
            let same = common_len(wanted, piece);
            if same == wanted.len() {
                self.held = 0;
                self.after = Some(After::Nothing);
                self.follow(piece.get(same..).unwrap_or_default())?;
                return Ok(taken);
            }
            if same == piece.len() {
                self.held += same;
                return Ok(taken);
            }
            // Only the first byte of the delimiter is a CR: it does not begin again in held-back bytes, nor in equal ones.
            taken.held_len_bytes = std::mem::take(&mut self.held);
            from = same;
        }
        loop {
            let rest = piece.get(from..).unwrap_or_default();
            let Some(found) = rest.iter().position(|byte| *byte == b'\r') else {
                taken.piece_len_bytes = piece.len();
                return Ok(taken);
            };
            let (begin, rest) = (from + found, rest.get(found..).unwrap_or_default());
            let same = common_len(&self.delimiter, rest);
            if same == self.delimiter.len() {
                taken.piece_len_bytes = begin;
                self.after = Some(After::Nothing);
                self.follow(rest.get(same..).unwrap_or_default())?;
                return Ok(taken);
            }
            if same == rest.len() {
                taken.piece_len_bytes = begin;
                self.held = same;
                return Ok(taken);
            }
            from = begin + same;
        }
    }

    /// Looks at what follows the file's delimiter: the end of the form, or another part, which does not count.
    fn follow(&mut self, piece: &[u8]) -> Result<(), FormError> {
        self.after_len_bytes = self.after_len_bytes.saturating_add(piece.len());
        if self.after_len_bytes > AFTER_LEN_BYTES_MAX {
            return Err(FormError::AfterTooLong);
        }
        let mut after = self.after.unwrap_or(After::Nothing);
        for byte in piece {
            after = match (after, byte) {
                (After::Done, _) => break,
                (After::Nothing, b'-') => After::Hyphen,
                (After::Hyphen, b'-') => After::Done,
                (After::Nothing | After::Padding, b' ' | b'\t') => After::Padding,
                (After::Nothing | After::Padding, b'\r') => After::Cr,
                (After::Cr, b'\n') => After::Done,
                _ => {
                    let why = "the boundary is also in the file, where it goes on";
                    return Err(FormError::Malformed(why));
                }
            };
        }
        self.after = Some(after);
        Ok(())
    }

    /// The body has ended; an error if the form has not.
    pub fn end(&self) -> Result<(), FormError> {
        match self.after {
            Some(After::Done) => Ok(()),
            _ => Err(FormError::Incomplete),
        }
    }
}

/// How many bytes two begin with alike.
fn common_len(left: &[u8], right: &[u8]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}

/// Reads a form that comes in these pieces: its fields and the bytes of its file. For tests and fuzzers: a server passes the bytes on as they
/// come.
#[cfg(any(test, feature = "testing"))]
pub fn read_pieces<'a>(
    boundary: &str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Fields, Vec<u8>), FormError> {
    let mut pieces = pieces.into_iter();
    let mut fields = FieldsReader::new(boundary);
    let mut end = FileReader::new(boundary);
    let mut file = Vec::new();
    let mut take = |end: &mut FileReader, piece: &[u8]| {
        let taken = end.push(piece)?;
        file.extend_from_slice(&end.delimiter()[..taken.held_len_bytes]);
        file.extend_from_slice(&piece[..taken.piece_len_bytes]);
        Ok::<_, FormError>(())
    };
    loop {
        let piece = pieces.next().ok_or(FormError::Incomplete)?;
        if let Read::Whole { file_offset } = fields.push(piece)? {
            take(&mut end, &piece[file_offset..])?;
            break;
        }
    }
    for piece in pieces {
        take(&mut end, piece)?;
    }
    end.end()?;
    Ok((fields.fields(), file))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDARY: &str = "----cut";

    /// A form as a browser writes it.
    fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, value) in fields {
            body.extend_from_slice(
                format!(
                    "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
                )
                .as_bytes(),
            );
        }
        body.extend_from_slice(
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a b.bin\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
            .as_bytes(),
        );
        body.extend_from_slice(file);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        body
    }

    fn read<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Fields, Vec<u8>), FormError> {
        read_pieces(BOUNDARY, pieces)
    }

    /// Cut after so many bytes, again and again.
    fn cut<'a>(body: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
        let (mut pieces, mut rest) = (Vec::new(), body);
        let mut lengths = lengths.iter().cycle();
        while !rest.is_empty() {
            let len = lengths.next().map_or(rest.len(), |len| *len);
            let (piece, behind) = rest.split_at(len.clamp(1, rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        pieces
    }

    #[test]
    fn fields_and_file_are_read_or_refused() {
        let whole =
            String::from_utf8(form(&[("Key", "a/${filename}"), ("empty", "")], b"1")).unwrap();
        let (fields, file) = read([whole.as_bytes()]).unwrap();
        assert_eq!(file, b"1");
        assert_eq!(fields.get("key"), Some("a/${filename}"));
        assert_eq!(fields.get("empty"), Some(""));
        assert_eq!(fields.named("a/${filename}"), "a/a b.bin");
        let change = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from}");
            whole.replacen(from, to, 1)
        };
        let last = format!("--{BOUNDARY}--\r\n");
        for (name, body, want) in [
            (
                "lines before the first boundary",
                format!("hello\r\n{whole}"),
                None,
            ),
            (
                "blanks behind a boundary",
                change("----cut\r\n", "----cut \t\r\n"),
                None,
            ),
            (
                "a field behind the file",
                change(&last, &format!("--{BOUNDARY}\r\nany")),
                None,
            ),
            (
                "without quotation marks",
                change("name=\"Key\"", "name=Key"),
                None,
            ),
            (
                "cut in the end",
                whole.trim_end_matches("-\r\n").to_owned(),
                Some(FormError::Incomplete),
            ),
            (
                "cut in the file",
                whole.replace(&last, ""),
                Some(FormError::Incomplete),
            ),
            (
                "no file",
                change("name=\"file\"", "name=\"other\""),
                Some(FormError::NoFile),
            ),
            (
                "a field twice",
                change("name=\"empty\"", "name=\"key\""),
                Some(FormError::Twice("key".to_owned())),
            ),
            (
                "a boundary that goes on",
                change("----cut\r\n", "----cuts\r\n"),
                Some(FormError::Malformed("a boundary goes on")),
            ),
            (
                "a boundary in the file that goes on",
                change(&last, &format!("--{BOUNDARY}s are cuts\r\n{last}")),
                Some(FormError::Malformed(
                    "the boundary is also in the file, where it goes on",
                )),
            ),
            (
                "a field without a name",
                change("name=\"Key\"", "other=\"Key\""),
                Some(FormError::Malformed("a field has no name")),
            ),
            (
                "a field with two names",
                change("name=\"Key\"", "name=\"Key\"; name=\"x\""),
                Some(FormError::Malformed("a field has two names")),
            ),
            (
                "a field without headers",
                change("Content-Disposition: form-data; name=\"Key\"\r\n", ""),
                Some(FormError::Malformed("a field has no Content-Disposition")),
            ),
        ] {
            assert_eq!(read([body.as_bytes()]).err(), want, "{name}");
            let bytes = cut(body.as_bytes(), &[1]);
            assert_eq!(read(bytes).err(), want, "{name}, byte by byte");
        }
    }

    #[test]
    fn what_is_around_the_file_is_bounded() {
        let overhead = form(&[("key", "")], b"").len() - "\r\n------cut--\r\n".len();
        for (len, want) in [
            (FIELDS_LEN_BYTES_MAX - overhead, None),
            (
                FIELDS_LEN_BYTES_MAX - overhead + 1,
                Some(FormError::FieldsTooLong),
            ),
        ] {
            let body = form(&[("key", &"x".repeat(len))], b"1");
            for piece_len in [1, 7, 4096, 1 << 20] {
                let got = read(cut(&body, &[piece_len])).err();
                assert_eq!(got, want, "{len} {piece_len}");
            }
        }
        let endless = vec![b'x'; 4 * FIELDS_LEN_BYTES_MAX];
        assert_eq!(read([&endless[..]]), Err(FormError::FieldsTooLong));
        let mut body = form(&[("key", "a")], b"1");
        body.resize(body.len() + AFTER_LEN_BYTES_MAX, b'x');
        assert_eq!(read([&body[..]]), Err(FormError::AfterTooLong));
    }

    #[test]
    fn boundaries_are_those_of_content_types() {
        let long = "x".repeat(70);
        for (text, want) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            (
                "multipart/form-data; charset=utf-8; BOUNDARY=\"a b\"",
                Some("a b"),
            ),
            (
                "multipart/form-data;boundary=----WebKitFormBoundaryAbC1",
                Some("----WebKitFormBoundaryAbC1"),
            ),
            (
                &format!("multipart/form-data; boundary={long}"),
                Some(long.as_str()),
            ),
            (&format!("multipart/form-data; boundary={long}x"), None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"a\rb\"", None),
            ("multipart/form-data; boundary=\"a \"", None),
            ("multipart/form-data", None),
        ] {
            assert_eq!(boundary(text).ok().as_deref(), want, "{text:?}");
        }
        assert!(is_form(b"Multipart/Form-Data; boundary=x") && is_form(b"multipart/form-data"));
        assert!(
            !is_form(b"multipart/mixed") && !is_form(b"multipart/form-datas") && !is_form(b"\xff")
        );
    }

    #[test]
    fn names_of_files_are_the_last_part_of_their_paths() {
        for (header, want) in [
            ("filename=\"a.txt\"", "a.txt"),
            ("filename=\"C:\\dir\\a.txt\"", "a.txt"),
            ("filename=\"/home/me/a;b.txt\"", "a;b.txt"),
            ("filename=\"a\\\"b\"", "a\"b"),
            ("filename=\"\"", ""),
            ("other=1", ""),
        ] {
            let header = format!("Content-Disposition: form-data; name=\"file\"; {header}");
            let (_, file_name) = disposition(header.as_bytes()).unwrap();
            let fields = Fields {
                file_name,
                ..Fields::default()
            };
            assert_eq!(fields.named("${filename}"), want, "{header}");
        }
    }

    /// Of which forms are made, and what looks like one.
    static PARTS: [&[u8]; 12] = [
        b"\r\n--",
        b"----cut",
        b"------cut",
        b"\r\n------cut\r\n",
        b"\r\n\r\n",
        b"Content-Disposition: form-data; name=\"key\"",
        b"Content-Disposition: form-data; name=file",
        b"-",
        b"\r",
        b"\n",
        b"\xff",
        b"; name=\"a\\",
    ];

    proptest! {
        /// Any bytes in any pieces, those that look like the boundary most of all.
        #[test]
        fn a_file_arrives_however_it_is_cut(
            file in prop::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'c'), Just(b'u'), any::<u8>()], 0..200),
            near in prop::collection::vec((0_usize..10, 0_usize..200), 0..4),
            lengths in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let mut file = file;
            for (len, at) in near {
                // All of a delimiter but its end.
                let at = at.min(file.len());
                let part = delimiter(BOUNDARY);
                drop(file.splice(at..at, part[..len.min(part.len() - 1)].iter().copied()));
            }
            prop_assume!(find(&file, &delimiter(BOUNDARY), 0).is_none());
            let body = form(&[("key", "a"), ("x-amz-meta-a", "ü")], &file);
            let (fields, got) = read(cut(&body, &lengths)).unwrap();
            prop_assert_eq!(got, file);
            prop_assert_eq!(fields.get("key"), Some("a"));
            prop_assert_eq!(fields.get("x-amz-meta-a"), Some("ü"));
        }

        /// Whatever comes is read or refused, and the same in any pieces.
        #[test]
        fn any_bytes_are_read_or_refused(
            parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..20),
            lengths in prop::collection::vec(1_usize..9, 1..9),
        ) {
            let body = parts.concat();
            let whole = read([&body[..]]);
            let cut = read(cut(&body, &lengths));
            prop_assert_eq!(whole.ok(), cut.ok());
        }
    }
}
