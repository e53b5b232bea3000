//! Two processes with one identity: of a copied cluster folder, or a cloned machine.
//!
//! Owns: a start beside a running process of the same node is refused, and the refusal names both. Must not know: the
//! work of a node.
//!
//! A sign of life outlives its process by the duration of its lease. So a start waits until the sign is gone or its
//! process is known to be gone. A process that renews its sign for longer is running. A running process notices by
//! itself when another one takes its place in the map (`cairn_owner::Ended`).

use std::path::Path;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_cluster::ClusterMap;
use cairn_cluster::map::{AliveRecord, HostRecord, ProcessNonce};
use cairn_trust::Membership;

use super::in_time;
use crate::error::NodeError;

/// A sign of life that exists for longer than this is being renewed. Three times the lease, which etcd prolongs after
/// a change of its leader.
const SIGN_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The host of this process.
pub fn host_record(env: &Env, folder: &Path) -> HostRecord {
    let name = rustix::system::uname();
    let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    HostRecord {
        instance: ProcessNonce(env.entropy.u128()),
        name: name.nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        boot: boot.trim().to_owned(),
        folder: folder.display().to_string(),
    }
}

/// The known state of the process that made a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// It does not run any more.
    Gone,
    /// It may run.
    Unknown,
}

/// Its process locks the folder, so on one machine another process with the same folder has ended. A process from
/// before the last boot of a host with this name is gone as well.
fn other(own: &HostRecord, host: Option<&HostRecord>) -> Other {
    match host {
        Some(host)
            if host.name == own.name && host.folder == own.folder && host.boot == own.boot =>
        {
            Other::Gone
        }
        _ => Other::Unknown,
    }
}

/// Waits until no other process is this node, and refuses to start if one stays.
pub async fn require_alone(
    env: &Env,
    map: &ClusterMap,
    membership: &Membership,
    own: &HostRecord,
) -> Result<(), NodeError> {
    let begun = env.clock.monotonic();
    let mut is_told = false;
    loop {
        let (alive, _) = in_time(env, || map.alive()).await?;
        let mut alive = alive.into_iter().map(|record| record.value);
        let Some(sign) = alive.find(|record| record.node == membership.node) else {
            return Ok(());
        };
        if other(own, sign.host.as_ref()) == Other::Gone {
            return Ok(());
        }
        if env.clock.monotonic().saturating_sub(begun) >= SIGN_MAX {
            return Err(refusal(membership, own, &sign));
        }
        if !is_told {
            tracing::info!(
                "an earlier process of this node still has a lease: waiting until the lease ends"
            );
            is_told = true;
        }
        env.clock.sleep(LOOK).await;
    }
}

fn refusal(membership: &Membership, own: &HostRecord, sign: &AliveRecord) -> NodeError {
    NodeError::Twin {
        node: membership.node_name.clone(),
        own: own.to_string(),
        other: match &sign.host {
            Some(host) => host.to_string(),
            None => format!("a process that began at {}", sign.since.seconds),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_this_folder_and_kernel_is_gone_and_of_others_nothing_is_known() {
        let host = |name: &str, boot: &str, folder: &str| HostRecord {
            instance: ProcessNonce(1),
            name: name.to_owned(),
            pid: 7,
            boot: boot.to_owned(),
            folder: folder.to_owned(),
        };
        let own = host("a", "boot", "/var/lib/cairn/cluster");
        let cases = [
            ("the same", Some(own.clone()), Other::Gone),
            (
                "a copy of the folder",
                Some(host("a", "boot", "/copy")),
                Other::Unknown,
            ),
            (
                "a clone of the machine",
                Some(host("a", "other", "/var/lib/cairn/cluster")),
                Other::Unknown,
            ),
            (
                "another machine",
                Some(host("b", "boot", "/var/lib/cairn/cluster")),
                Other::Unknown,
            ),
            ("one that does not say", None, Other::Unknown),
        ];
        for (name, found, want) in cases {
            assert_eq!(other(&own, found.as_ref()), want, "{name}");
        }
    }
}
