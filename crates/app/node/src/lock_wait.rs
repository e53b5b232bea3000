//! Waits for the disks of a process that is ending.
//!
//! Owns: the distinction between an ending process and a working one, and the limit of the wait. Must not know: how
//! locks are taken (`disk`).
//!
//! A killed server keeps its locks until the kernel has ended all its operations, which takes as long as its disks
//! need. A start meanwhile, for example by systemd, is no mistake of an operator.

use std::time::Duration;

use cairn_base::env::Env;
use cairn_config::Config;

use crate::disks::{DiskHints, PoolDisks, open_pool};
use crate::error::NodeError;
use crate::folder::Looks;

/// Maximum time that a process may take to end, or to write its number.
const ENDING_MAX: Duration = Duration::from_secs(60);
/// Interval of attempts to take the locks meanwhile.
const PAUSE: Duration = Duration::from_millis(500);
/// SIGKILL, in the masks of pending signals.
const KILL_MASK: u64 = 1 << (9 - 1);
/// PF_EXITING, in the flags of a process.
const EXITING_FLAG: u64 = 0x4;

/// Opens the pool; waits for disks of a process that is ending.
pub async fn open_pool_in_time(
    env: &Env,
    config: &Config,
    known: DiskHints<'_>,
) -> Result<PoolDisks, NodeError> {
    let clock = &env.clock;
    let since = clock.monotonic();
    let looks = Looks::default();
    let mut is_told = false;
    loop {
        let error = match open_pool(env, config, &looks, known).await {
            Err(error @ NodeError::InUse { .. }) => error,
            opened => return opened,
        };
        let NodeError::InUse { pid, .. } = &error else {
            return Err(error);
        };
        let waited = clock.monotonic().saturating_sub(since);
        if pid.is_some_and(is_at_work) || waited >= ENDING_MAX {
            return Err(error);
        }
        if !is_told {
            tracing::warn!(
                "{error}; waiting up to {} s, because it seems to be stopping",
                ENDING_MAX.as_secs()
            );
            is_told = true;
        }
        clock.sleep(PAUSE).await;
    }
}

/// Whether a process exists and is not about to end. False for this process: the locks of an earlier attempt are
/// being released.
fn is_at_work(pid: u32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else {
        return false;
    };
    pid != std::process::id() && !is_ending(&stat, &status)
}

/// From the files `stat` and `status` of a process. Source: proc_pid_stat(5), proc_pid_status(5).
fn is_ending(stat: &str, status: &str) -> bool {
    // The name before it may have any characters.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X" | "x") | None);
    // After the state: parent, group, session, terminal, its group.
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    let is_exiting = flags.unwrap_or(0) & EXITING_FLAG != 0;
    let pending = status.lines().filter_map(|line| {
        let (name, mask) = line.split_once(':')?;
        let is_mask = matches!(name, "SigPnd" | "ShdPnd");
        let mask = u64::from_str_radix(mask.trim(), 16);
        is_mask.then_some(mask.ok()?)
    });
    let mut pending = pending;
    is_dead || is_exiting || pending.any(|mask| mask & KILL_MASK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_is_told_from_one_that_works() {
        let status =
            |mask: &str| format!("Name:\tcairn\nSigPnd:\t{mask}\nShdPnd:\t0000000000000000\n");
        let (none, kill) = (status("0000000000000000"), status("0000000000000100"));
        let term = status("0000000000004000");
        let cases: &[(&str, &str, &str, bool)] = &[
            ("at work", "7 (a) b) S 1 7 7 0 -1 4194560 9 9", &none, false),
            (
                "told to stop",
                "7 (cairn) D 1 7 7 0 -1 4194560 9 9",
                &term,
                false,
            ),
            ("dead", "7 (cairn) Z 1 7 7 0 -1 4227084 9 9", &none, true),
            ("exiting", "7 (cairn) D 1 7 7 0 -1 4194564 9 9", &none, true),
            (
                "killed, in a disk",
                "7 (cairn) D 1 7 7 0 -1 4194560 9 9",
                &kill,
                true,
            ),
            ("gone meanwhile", "", "", true),
        ];
        for (name, stat, status, want) in cases {
            assert_eq!(is_ending(stat, status), *want, "{name}");
        }
    }

    #[test]
    fn a_killed_child_is_not_at_work() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        assert!(is_at_work(child.id()));
        assert!(!is_at_work(std::process::id()));
        child.kill().unwrap();
        while is_at_work(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_at_work(child.id()));
    }
}
