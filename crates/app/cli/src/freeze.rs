//! A program that stands still while a snapshot is taken.
//!
//! Owns: that the command that lets it go on runs, whatever becomes of the snapshot, of the server, or of this program.
//! Must not know: what is taken.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::exit::Failure;

/// How `timeout` (coreutils) says that it ended a command.
const TIMED_OUT: i32 = 124;
/// What a command that is ended may take to end.
const BEFORE_ENDS_SECONDS: u32 = 5;

#[derive(Debug, Args)]
pub struct FreezeArgs {
    /// A command that has the application stand still, run before: "fsfreeze -f /mnt/db"
    #[arg(long, value_name = "COMMAND", requires = "after")]
    pub before: Option<String>,
    /// A command that lets it go on, run afterwards in any case
    #[arg(long, value_name = "COMMAND")]
    pub after: Option<String>,
    /// Seconds after which it goes on at the latest, even if there is no snapshot yet; the command before may take as long
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub freeze_timeout: u32,
}

/// Runs a command when it is told to, when nobody can tell it any more, and when the time is over that is allowed. It is a
/// process of its own, so that it does that also if this one is killed.
struct Guard {
    process: Child,
    held: Option<ChildStdin>,
}

impl Guard {
    fn start(after: &str, seconds: u32) -> Result<Self, Failure> {
        // A byte says that the application stands still from now on.
        let script = r#"
            timeout "$1" head -c 1 | grep -q . && timeout "$2" cat >/dev/null
            exec sh -c "$3""#;
        let started = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(told_max(seconds).as_secs().to_string())
            .arg(seconds.to_string())
            .arg(after)
            .stdin(Stdio::piped())
            // Ctrl-C is for this process.
            .process_group(0)
            .spawn();
        let mut process = started.map_err(|error| cannot("start a shell", &error))?;
        Ok(Self {
            held: process.stdin.take(),
            process,
        })
    }

    /// `waits_until`: the guard runs its command after this time. If the guard hears of the standstill later, the
    /// application may have gone on before.
    fn stands_still(&mut self, waits_until: Instant) -> Result<(), Failure> {
        let told = self
            .held
            .as_mut()
            .map_or(Ok(()), |held| held.write_all(b"."));
        told.map_err(|error| cannot("tell the shell that runs --after", &error))?;
        if Instant::now() < waits_until {
            return Ok(());
        }
        Err(Failure::failed(
            "this program was paused for too long after the --before command, so the application may have resumed: no snapshot is taken",
        )
        .hint("try again under less load, or allow more time with --freeze-timeout"))
    }

    /// Has the command run, unless it did already, and waits for it.
    fn release(mut self) -> Result<(), Failure> {
        drop(self.held.take());
        let ended = self.process.wait();
        let ended = ended.map_err(|error| cannot("wait for the --after command", &error))?;
        match ended.success() {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "the --after command ended with {ended}: the application may still be paused"
            ))
            .hint("run it by hand")),
        }
    }
}

/// How long a guard waits to be told that the application stands still.
fn told_max(freeze_timeout_seconds: u32) -> Duration {
    Duration::from_secs((freeze_timeout_seconds + BEFORE_ENDS_SECONDS).into())
}

fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot {what}: {error}"))
}

impl FreezeArgs {
    /// Does `take` while the application stands still, and `undo` if it went on before that was done.
    pub fn around<T>(
        &self,
        take: impl FnOnce() -> Result<T, Failure>,
        undo: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        // From before it stands still: this program may be killed at any moment.
        let after = self.after.as_deref();
        // The guard waits for so long at least to be told that the application stands still.
        let waits_until = Instant::now() + told_max(self.freeze_timeout);
        let mut guard = after
            .map(|after| Guard::start(after, self.freeze_timeout))
            .transpose()?;
        let before = self.before.as_deref();
        let frozen = before.map_or(Ok(()), |command| run_before(command, self.freeze_timeout));
        // From before the guard counts: this process may stand still between two steps, and the guard goes on meanwhile.
        let stands_until = Instant::now() + Duration::from_secs(self.freeze_timeout.into());
        let frozen = frozen.and_then(|()| match guard.as_mut() {
            Some(guard) => guard.stands_still(waits_until),
            None => Ok(()),
        });
        let taken = frozen.and_then(|()| take());
        let is_in_time = guard.is_none() || Instant::now() < stands_until;
        let released = guard.map_or(Ok(()), Guard::release);
        let taken = taken?;
        if !is_in_time {
            undo()?;
            return Err(Failure::failed(format!(
                "the snapshot took longer than {} s, so the application resumed too early: the snapshot is deleted",
                self.freeze_timeout
            ))
            .hint("try again under less load, or allow more time with --freeze-timeout"));
        }
        released.map(|()| taken)
    }
}

fn run_before(command: &str, seconds: u32) -> Result<(), Failure> {
    let ended = Command::new("timeout")
        .arg(seconds.to_string())
        .args(["sh", "-c", command])
        .stdin(Stdio::null())
        .status();
    let ended = ended.map_err(|error| cannot("run `timeout`", &error))?;
    match ended.code() {
        Some(0) => Ok(()),
        Some(TIMED_OUT) => Err(Failure::failed(format!(
            "the --before command took longer than {seconds} s: no snapshot is taken"
        ))),
        _ => Err(Failure::failed(format!(
            "the --before command ended with {ended}: no snapshot is taken"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(before: Option<String>, after: Option<String>, freeze_timeout: u32) -> FreezeArgs {
        FreezeArgs {
            before,
            after,
            freeze_timeout,
        }
    }

    #[test]
    fn the_application_stands_still_for_the_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frozen");
        let (before, after) = (
            format!("touch {}", path.display()),
            format!("rm {}", path.display()),
        );
        let freeze = args(Some(before), Some(after), 60);
        let taken = freeze.around(|| Ok(path.exists()), || unreachable!());
        assert!(taken.unwrap());
        assert!(!path.exists());
        // Also when there is no snapshot.
        let failed = freeze.around(|| Err::<(), _>(Failure::failed("no")), || unreachable!());
        failed.unwrap_err();
        assert!(!path.exists());
    }

    #[test]
    fn a_guard_that_is_told_too_late_guards_nothing() {
        let now = Instant::now();
        for (waits_until, is_in_time) in [(now, false), (now + Duration::from_secs(3600), true)] {
            let mut guard = Guard::start("true", 60).unwrap();
            assert_eq!(guard.stands_still(waits_until).is_ok(), is_in_time);
            guard.release().unwrap();
        }
    }

    #[test]
    fn it_goes_on_when_it_cannot_stand_still_or_the_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("went-on");
        let after = format!("touch {}", path.display());
        for before in ["exit 3", "sleep 60"] {
            let freeze = args(Some(before.to_owned()), Some(after.clone()), 1);
            let taken = freeze.around(|| -> Result<(), Failure> { unreachable!() }, || Ok(()));
            taken.unwrap_err();
            std::fs::remove_file(&path).expect("it went on");
        }
        let mut was_undone = false;
        let wait = || {
            while !path.exists() {
                std::thread::yield_now();
            }
            Ok(())
        };
        let taken = args(None, Some(after), 1).around(wait, || {
            was_undone = true;
            Ok(())
        });
        taken.unwrap_err();
        assert!(was_undone);
    }
}
