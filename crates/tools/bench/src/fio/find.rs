//! Finding fio, and what it can do on a file system.
//!
//! Owns: its version, which of its engines work. Must not know: phases, job files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::engine::EngineError;

/// The oldest version whose JSON has the histogram of the whole latency (`lat_percentiles`, `json+`).
const VERSION_MIN: (u32, u32) = (3, 19);
const PROGRAM: &str = "fio";
const HOW_TO_INSTALL: &str = "install it (Debian, Ubuntu: apt-get install fio; Fedora, RHEL: dnf install fio; \
    SUSE: zypper install fio), or measure over nfs:// without a mount, which needs no fio";
/// What a request of a probe is long.
const PROBE_BYTES: u64 = 4096;

/// A fio that is new enough.
#[derive(Clone, Debug)]
pub struct Fio {
    program: PathBuf,
    version: String,
}

/// How fio makes its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub engine: IoEngine,
    /// O_DIRECT.
    pub direct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoEngine {
    IoUring,
    Libaio,
    Psync,
}

impl IoEngine {
    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
        }
    }
}

impl Fio {
    /// Finds the fio in PATH and checks its version.
    pub fn find() -> Result<Self, EngineError> {
        Self::at(Path::new(PROGRAM))
    }

    /// The fio at a path, or of a name in PATH.
    pub fn at(program: &Path) -> Result<Self, EngineError> {
        let output = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|error| {
            EngineError::Engine(match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("a path is measured with fio, and there is none here: {HOW_TO_INSTALL}")
                }
                _ => format!("{} cannot be started: {error}", program.display()),
            })
        })?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match parse_version(&version) {
            Some(found) if found >= VERSION_MIN => Ok(Self {
                program: program.to_owned(),
                version,
            }),
            Some(_) => Err(EngineError::Engine(format!(
                "{version} is too old: a path is measured with fio {}.{} or newer; {HOW_TO_INSTALL}",
                VERSION_MIN.0, VERSION_MIN.1
            ))),
            None => Err(EngineError::Engine(format!(
                "{} --version says {version:?}, which is no version of fio; {HOW_TO_INSTALL}",
                program.display()
            ))),
        }
    }

    /// Something that stands for fio and is not asked for its version.
    #[cfg(test)]
    pub(super) fn stand_in(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            version: String::new(),
        }
    }

    /// `fio-3.33`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A command with no arguments yet.
    pub fn command(&self) -> Command {
        Command::new(&self.program)
    }

    /// The best way of making requests in a folder: asynchronously, past the cache if that is wanted
    /// and the file system takes it. Writes and removes a small file there.
    pub fn probe(&self, folder: &Path, direct: bool) -> Result<Mode, EngineError> {
        let candidates = [
            (IoEngine::IoUring, direct),
            (IoEngine::Libaio, direct),
            (IoEngine::Psync, direct),
            (IoEngine::IoUring, false),
            (IoEngine::Psync, false),
        ];
        let mut reason = String::new();
        for (engine, direct) in candidates {
            // libaio without O_DIRECT makes one request after the other, as psync does with less.
            if engine == IoEngine::Libaio && !direct {
                continue;
            }
            match self.try_mode(folder, engine, direct) {
                Ok(()) => return Ok(Mode { engine, direct }),
                Err(error) => reason = error,
            }
        }
        Err(EngineError::Target(format!(
            "fio cannot write in {}: {reason}",
            folder.display()
        )))
    }

    fn try_mode(&self, folder: &Path, engine: IoEngine, direct: bool) -> Result<(), String> {
        let file = folder.join(format!("probe-{}", std::process::id()));
        let output = self
            .command()
            .current_dir(folder)
            .args(["--name=probe", "--rw=write", "--thread", "--fallocate=none"])
            .arg(format!("--filename=probe-{}", std::process::id()))
            .arg(format!("--ioengine={}", engine.name()))
            .arg(format!("--direct={}", u8::from(direct)))
            .arg(format!("--bs={PROBE_BYTES}"))
            .arg(format!("--size={PROBE_BYTES}"))
            .stdin(Stdio::null())
            .output();
        let removed = std::fs::remove_file(&file);
        let output = output.map_err(|error| error.to_string())?;
        // A request that failed shows in the exit status; one that was not made leaves no file.
        match (output.status.success(), removed) {
            (true, Ok(())) => Ok(()),
            (true, Err(error)) => Err(error.to_string()),
            (false, _) => Err(first_error_line(&String::from_utf8_lossy(&output.stderr))
                .unwrap_or_else(|| output.status.to_string())),
        }
    }
}

/// The line of fio's error output that says most.
pub fn first_error_line(stderr: &str) -> Option<String> {
    let lines = || {
        stderr
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let telling = lines().find(|line| line.contains("error") || line.contains("failed"));
    telling.or_else(|| lines().next()).map(str::to_owned)
}

/// `fio-3.33`, `fio-3.36-28-gc9bd`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let numbers = text.strip_prefix("fio-")?;
    let (major, rest) = numbers.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_or_refused() {
        let cases: &[(&str, Option<(u32, u32)>)] = &[
            ("fio-3.33", Some((3, 33))),
            ("fio-3.36-28-gc9bd-dirty", Some((3, 36))),
            ("fio-2.2.10", Some((2, 2))),
            ("fio-3", None),
            ("3.33", None),
            ("fio-3.x", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_version(text), *want, "{text}");
        }
    }

    #[test]
    fn an_absent_fio_says_how_to_install_it() {
        let error = Fio::at(Path::new("/nowhere/fio")).expect_err("there is no such program");
        assert!(error.to_string().contains("apt-get install fio"), "{error}");
    }

    #[test]
    fn an_old_fio_is_refused() {
        let old = format!(
            "{}/testdata/fio-old",
            std::env::var("CARGO_MANIFEST_DIR").unwrap()
        );
        let error = Fio::at(Path::new(&old))
            .expect_err("it is too old")
            .to_string();
        assert!(
            error.contains("fio-3.16 is too old") && error.contains("3.19"),
            "{error}"
        );
    }

    #[test]
    fn the_line_that_tells_most_is_chosen() {
        let stderr = "note: something\nfio: io_u error on file /m/x: No space left on device: write\nfio: pid=1\n";
        assert_eq!(
            first_error_line(stderr).as_deref(),
            Some("fio: io_u error on file /m/x: No space left on device: write")
        );
        assert_eq!(first_error_line("\n"), None);
    }
}
