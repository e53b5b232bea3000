//! Passwords and other secrets as people give them to a command: from a file, from standard input, or typed without being shown.
//!
//! Owns: where one comes from, that the terminal shows nothing of it. Must not know: what it is for.
//!
//! Never from the command line, which every user of the machine can see.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;

use cairn_admin::users::{PASSWORD_LEN_BYTES_MAX, Password};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::exit::Failure;

/// Of a file or line, in bytes: a password and its line end.
const LEN_BYTES_MAX: u64 = PASSWORD_LEN_BYTES_MAX as u64 + 2;

/// A new password: from the file (`-` is standard input), else typed twice at a terminal, else the first line of standard
/// input.
pub fn new_password(file: Option<&Path>, of: &str) -> Result<Password, Failure> {
    if let Some(password) = without_terminal(file)? {
        return Ok(password);
    }
    let mut terminal = Terminal::open()?;
    let first = terminal.ask(&format!("New password of {of}: "))?;
    if let Some(problem) = first.problem(of) {
        return Err(Failure::usage(problem));
    }
    let second = terminal.ask("Repeat it: ")?;
    match first == second {
        true => Ok(first),
        false => Err(Failure::usage(
            "the two passwords differ: nothing was changed",
        )),
    }
}

/// A password that is there already: from the file, else typed once, else the first line of standard input.
pub fn password(file: Option<&Path>, of: &str) -> Result<Password, Failure> {
    match without_terminal(file)? {
        Some(password) => Ok(password),
        None => Terminal::open()?.ask(&format!("Password of {of}: ")),
    }
}

fn without_terminal(file: Option<&Path>) -> Result<Option<Password>, Failure> {
    let stdin = std::io::stdin();
    match file {
        Some(path) if path != Path::new("-") => {
            let shown = || format!("reading the password in {}", path.display());
            let file = File::open(path)
                .map_err(|error| Failure::failed(format!("{}: {error}", shown())))?;
            first_line(file, &shown()).map(Some)
        }
        Some(_) => first_line(stdin.lock(), "reading the password from standard input").map(Some),
        None if stdin.is_terminal() => Ok(None),
        None => first_line(stdin.lock(), "reading the password from standard input").map(Some),
    }
}

/// The first line, without its end. What follows it is refused: a file with more lines is none with a password.
fn first_line(from: impl Read, shown: &str) -> Result<Password, Failure> {
    let mut text = String::new();
    let read = from.take(LEN_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::failed(format!("{shown}: {error}")))?;
    if text.len() as u64 > LEN_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{shown}: a password has at most {PASSWORD_LEN_BYTES_MAX} bytes"
        )));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line {
        "" => Err(Failure::usage(format!("{shown}: there is none"))
            .hint("give it with --password-file PATH, or in the first line of standard input")),
        line if line.contains('\n') => Err(Failure::usage(format!(
            "{shown}: there is more than one line"
        ))),
        line => Ok(Password::new(line.to_owned())),
    }
}

/// The terminal that the user types at, whatever standard input is.
pub struct Terminal(File);

/// Shows again what is typed when it goes.
struct Hidden<'a>(&'a File, Termios);

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // There is nobody to tell if it fails.
        let _ = tcsetattr(self.0, OptionalActions::Now, &self.1);
    }
}

impl Terminal {
    pub fn open() -> Result<Self, Failure> {
        let opened = File::options().read(true).write(true).open("/dev/tty");
        opened.map(Self).map_err(|error| {
            Failure::failed(format!(
                "there is no terminal to ask for the password: {error}"
            ))
            .hint("give it with --password-file PATH, or in the first line of standard input")
        })
    }

    /// Asks, and reads a line.
    pub fn ask(&mut self, what: &str) -> Result<Password, Failure> {
        let failed =
            |error: std::io::Error| Failure::failed(format!("asking for the password: {error}"));
        let before = tcgetattr(&self.0).map_err(|error| failed(error.into()))?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        write!(&self.0, "{what}").map_err(failed)?;
        let mut line = String::new();
        {
            let hidden = Hidden(&self.0, before);
            let set = tcsetattr(hidden.0, OptionalActions::Flush, &silent);
            set.map_err(|error| failed(error.into()))?;
            let mut from = BufReader::new(hidden.0.take(LEN_BYTES_MAX));
            from.read_line(&mut line).map_err(failed)?;
        }
        writeln!(&self.0).map_err(failed)?;
        Ok(Password::new(
            line.trim_end_matches(['\n', '\r']).to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_a_password() {
        let long = "x".repeat(PASSWORD_LEN_BYTES_MAX + 3);
        let cases = [
            ("correct horse\n", Some("correct horse")),
            ("correct horse", Some("correct horse")),
            (" spaces stay \r\n", Some(" spaces stay ")),
            ("", None),
            ("\n", None),
            ("two\nlines\n", None),
            (&long, None),
        ];
        for (text, want) in cases {
            let read = first_line(text.as_bytes(), "test");
            assert_eq!(read.ok().as_ref().map(Password::as_str), want, "{text:?}");
        }
        assert!(first_line(&[0xff, 0xfe][..], "test").is_err());
    }
}
