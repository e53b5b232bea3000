//! Processes of the cluster, known for certain.
//!
//! The number of a process that ended is given to another one. So a process is known by its number, the moment when it
//! started and the boot it belongs to, and is signalled through a descriptor that is opened before those are compared.
//!
//! Owns: finding processes and signalling them. Must not know: what they are for.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::Error;

const POLL: Duration = Duration::from_millis(10);

/// One process, also after it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// When it started, in clock ticks since the boot.
    started_ticks: u64,
    boot: String,
}

/// What the kernel says of a process.
struct Stat {
    name: String,
    state: char,
    parent: i32,
    started_ticks: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Source: proc_pid_stat(5). The name may contain anything, spaces and parentheses as well.
fn parse_stat(text: &str) -> Option<Stat> {
    let (head, rest) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // The 22nd of all; the state is the third.
    let started_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        name: name.to_owned(),
        state,
        parent,
        started_ticks,
    })
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        let started_ticks = stat(pid)?.started_ticks;
        Some(Self {
            pid,
            started_ticks,
            boot: boot(),
        })
    }

    pub fn of_this() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    /// What the kernel says of it, unless it has ended: one that only waits for its parent to notice has.
    fn stat(&self) -> Option<Stat> {
        let stat = stat(self.pid)?;
        let ended = matches!(stat.state, 'Z' | 'X');
        let same = stat.started_ticks == self.started_ticks && boot() == self.boot;
        (same && !ended).then_some(stat)
    }

    pub fn is_running(&self) -> bool {
        self.stat().is_some()
    }

    /// Stands still, by SIGSTOP.
    pub fn is_paused(&self) -> bool {
        self.stat().is_some_and(|stat| stat.state == 'T')
    }

    /// As the kernel knows its program.
    pub fn name(&self) -> Option<String> {
        self.stat().map(|stat| stat.name)
    }

    /// A descriptor of exactly this process.
    fn descriptor(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Compared after it was opened: from here on it cannot become that of another.
        self.is_running().then_some(descriptor)
    }

    /// Sends a signal; returns whether the process was there.
    pub fn signal(&self, signal: Signal) -> Result<bool, Error> {
        let Some(descriptor) = self.descriptor() else {
            return Ok(false);
        };
        match pidfd_send_signal(descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(Error::Failed(format!(
                "signalling the process {}: {error}",
                self.pid
            ))),
        }
    }
}

/// Numbers of all processes.
fn all() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Processes that were started with this in their environment, or whose parents were.
pub fn marked(variable: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{variable}={value}");
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ"));
        environment.is_ok_and(|environment| {
            let mut parts = environment.split(|byte| *byte == 0);
            parts.any(|part| part == wanted.as_bytes())
        })
    };
    let found = all().into_iter().filter(is_marked);
    let found = found.filter_map(Process::of);
    found.filter(Process::is_running).collect()
}

/// All processes below one, however deep.
pub fn descendants(of: &Process) -> Vec<Process> {
    if !of.is_running() {
        return Vec::new();
    }
    let all: Vec<(i32, i32)> = all()
        .into_iter()
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect();
    let mut found = vec![of.pid];
    // Children come behind their parents until there are no more.
    let mut index = 0;
    while let Some(parent) = found.get(index).copied() {
        index += 1;
        let children = all.iter().filter(|(_, of)| *of == parent);
        let new: Vec<i32> = children
            .map(|(pid, _)| *pid)
            .filter(|pid| !found.contains(pid))
            .collect();
        found.extend(new);
    }
    let below = found.into_iter().skip(1).filter_map(Process::of);
    below.filter(Process::is_running).collect()
}

/// Waits until something is so; returns whether it was in time.
pub fn wait_until(seconds_max: u64, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(seconds_max);
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn stat_is_read_whatever_the_name_is() {
        let tail = "S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        for name in ["cairn", "a b", ") S 9 (", "(())"] {
            let stat = parse_stat(&format!("12 ({name}) {tail}\n")).unwrap();
            assert_eq!(
                (
                    stat.name.as_str(),
                    stat.state,
                    stat.parent,
                    stat.started_ticks
                ),
                (name, 'S', 7, 4242)
            );
        }
        for text in ["", "12", "12 (cairn)", "12 (cairn) S 7 1", "12 (cairn) S x"] {
            assert!(parse_stat(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn another_process_of_the_same_number_is_not_signalled() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::of(pid).unwrap();
        let earlier = Process {
            started_ticks: process.started_ticks - 1,
            ..process.clone()
        };
        let other_boot = Process {
            boot: "another".to_owned(),
            ..process.clone()
        };
        for other in [&earlier, &other_boot] {
            assert!(!other.is_running());
            assert!(!other.signal(Signal::KILL).unwrap());
        }
        assert!(process.signal(Signal::STOP).unwrap());
        assert!(wait_until(60, || process.is_paused()));
        assert!(process.signal(Signal::KILL).unwrap());
        // It has ended, although nobody has asked for its status yet.
        assert!(wait_until(60, || !process.is_running()));
        child.wait().unwrap();
        assert!(!process.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn processes_are_found_by_what_they_were_started_with() {
        let value = format!("test-{}", std::process::id());
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo started; wait"])
            .env("CAIRN_TEST_MARK", &value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let said = shell.stdout.take().map(std::io::BufReader::new).unwrap();
        std::io::BufRead::read_line(&mut { said }, &mut line).unwrap();
        let parent = Process::of(i32::try_from(shell.id()).unwrap()).unwrap();
        let below = descendants(&parent);
        assert_eq!(below.len(), 1, "{below:?}");
        // A process that is just becoming `sleep` has no environment for a moment.
        let found = || marked("CAIRN_TEST_MARK", &value);
        assert!(wait_until(60, || found().contains(&below[0])));
        let found = found();
        assert!(found.contains(&parent));
        assert!(marked("CAIRN_TEST_MARK", "other").is_empty());
        for process in found {
            process.signal(Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(wait_until(60, || marked("CAIRN_TEST_MARK", &value).is_empty()));
    }
}
