//! Ends this node's lease as soon as its process is gone, and first removes its addresses from this machine.
//!
//! Owns: the guardian, a process beside that of the node, and the messages to it. Must not know: the use of a lease.
//!
//! A killed process no longer renews its lease, and no other node takes over its volumes before the lease has
//! expired. The guardian holds the reading end of a pipe whose writing end only the node's process has. The kernel
//! closes that end when the last thread of the process has ended. From then on no thread of it answers a client, so
//! the guardian may revoke the lease, and reads rest on leases as before (design/architecture, section 8, rule 9). A
//! process that stands still keeps its end open: its lease expires. So does that of a lost machine, with its
//! guardian.
//!
//! At that time the addresses that clients use are still on this machine; the kernel removes them after some seconds.
//! The guardian removes them first, so that no two machines have one when the next node takes it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::backoff::Backoff;
use cairn_cluster::{Coordinator, Etcd, EtcdSettings, EtcdTls, LeaseId};
use cairn_floating::{PlacedAddress, Purpose};
use cairn_owner::ClusterMember;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::error::NodeError;

/// The argument that makes the program a guardian.
pub const COMMAND: &str = "guard-lease";
/// Interval of a full message: nothing reports that etcd has another address or needs another certificate.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// A lease has expired after less time.
const REVOKE_MAX: Duration = Duration::from_secs(5);
const REVOKE_AGAIN: Duration = Duration::from_millis(100);
const START_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The guardian's state, one line of JSON for each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuardianState {
    /// `None`: this process has no lease.
    lease: Option<i64>,
    endpoints: Vec<String>,
    tls: Option<ToldTls>,
    /// On interfaces of this machine.
    addresses: Vec<ToldAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToldAddress {
    address: IpAddr,
    prefix_len: u8,
    interface: String,
}

impl From<PlacedAddress> for ToldAddress {
    fn from(placed: PlacedAddress) -> Self {
        Self {
            address: placed.address,
            prefix_len: placed.prefix_len,
            interface: placed.interface,
        }
    }
}

impl ToldAddress {
    /// The kernel removes the rest.
    fn remove(&self) {
        let placed = PlacedAddress {
            address: self.address,
            prefix_len: self.prefix_len,
            interface: self.interface.clone(),
        };
        if let Err(error) = placed.remove() {
            // Standard error is that of the killed process.
            let why = error.to_string();
            let why = cairn_base::printable::one_line(&why);
            eprintln!(
                "the guardian could not remove address {}: {why}",
                self.address
            );
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToldTls {
    ca_pem: String,
    certificate_pem: String,
    key_pem: String,
}

impl GuardianState {
    fn settings(&self) -> EtcdSettings {
        let mut settings = EtcdSettings::new(self.endpoints.clone());
        settings.attempt_timeout = Duration::from_millis(500);
        settings.tls = self.tls.as_ref().map(|tls| EtcdTls {
            ca: tls.ca_pem.clone().into_bytes(),
            client: Some((
                tls.certificate_pem.clone().into_bytes(),
                tls.key_pem.clone().into_bytes(),
            )),
        });
        settings
    }
}

/// Keeps a guardian running until the runtime ends. `program`: this program, which runs [`run`].
pub(super) async fn keep(
    program: &Path,
    member: Arc<ClusterMember>,
    etcd: Etcd,
    mut addresses: watch::Receiver<BTreeMap<Purpose, PlacedAddress>>,
) {
    let mut pauses = START_AGAIN;
    loop {
        match start(program) {
            Ok((mut child, mut stdin)) => {
                tokio::select! {
                    ended = child.wait() => {
                        tracing::warn!(?ended, "the guardian of this node's lease ended: if this process is killed now, other nodes take its volumes over only when the lease expires");
                    }
                    error = tell(&mut stdin, &member, &etcd, &mut addresses) => {
                        tracing::warn!(%error, "the guardian of this node's lease does not respond");
                        // No other task waits for it.
                        let _ = child.kill().await;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start the guardian of this node's lease");
            }
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

fn start(program: &Path) -> std::io::Result<(Child, ChildStdin)> {
    let mut child = Command::new(program)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A signal from a terminal that ends this process should not end the guardian first.
        .process_group(0)
        .spawn()?;
    let stdin = child.stdin.take();
    let stdin = stdin.ok_or_else(|| std::io::Error::other("it has no standard input"))?;
    Ok((child, stdin))
}

/// Sends changes to the guardian, until it stops reading.
async fn tell(
    stdin: &mut ChildStdin,
    member: &ClusterMember,
    etcd: &Etcd,
    addresses: &mut watch::Receiver<BTreeMap<Purpose, PlacedAddress>>,
) -> std::io::Error {
    let mut views = member.views();
    let mut before = None;
    loop {
        views.borrow_and_update();
        let process = member.process();
        let (endpoints, tls) = etcd.access();
        let placed: Vec<PlacedAddress> = addresses.borrow_and_update().values().cloned().collect();
        let now = GuardianState {
            addresses: placed.into_iter().map(ToldAddress::from).collect(),
            lease: process.map(|process| process.lease.0),
            endpoints,
            tls: tls.and_then(|tls| {
                let (certificate, key) = tls.client?;
                Some(ToldTls {
                    ca_pem: String::from_utf8(tls.ca).ok()?,
                    certificate_pem: String::from_utf8(certificate).ok()?,
                    key_pem: String::from_utf8(key).ok()?,
                })
            }),
        };
        if before.as_ref() != Some(&now) {
            let line = match serde_json::to_string(&now) {
                Ok(line) => line + "\n",
                Err(error) => return error.into(),
            };
            if let Err(error) = stdin.write_all(line.as_bytes()).await {
                return error;
            }
            before = Some(now);
        }
        // A lease shows in the map at once. An error: this node ends.
        let changed = tokio::select! {
            changed = views.changed() => changed,
            changed = addresses.changed() => changed,
            () = tokio::time::sleep(TELL_AGAIN) => Ok(()),
        };
        if let Err(error) = changed {
            return std::io::Error::other(error);
        }
    }
}

/// The guardian: reads messages from standard input, and revokes the last lease in them when the input ends.
pub fn run() -> Result<(), NodeError> {
    let runtime = super::offline::runtime()?;
    runtime.block_on(guard()).map_err(NodeError::Runtime)
}

async fn guard() -> std::io::Result<()> {
    // A signal that ends the node may also reach its guardian, and earlier.
    let ignored = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let _ignored = ignored
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<_>, _>>()?;
    let (sender, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            // The other end waits for this one.
            let _ = sender.send(line);
        }
    });
    let mut told = GuardianState::default();
    let mut etcd = None;
    while let Some(line) = lines.recv().await {
        let now: GuardianState = serde_json::from_str(&line)?;
        let is_same = (&now.endpoints, &now.tls) == (&told.endpoints, &told.tls);
        if !is_same || etcd.is_none() {
            // Connects now, so that it takes no time later.
            etcd = Etcd::connect(now.settings()).await.ok();
        }
        told = now;
    }
    told.addresses.iter().for_each(ToldAddress::remove);
    let Some(lease) = told.lease else {
        return Ok(());
    };
    let revoking = async {
        loop {
            if etcd.is_none() {
                etcd = Etcd::connect(told.settings()).await.ok();
            }
            if let Some(etcd) = &etcd
                && etcd.revoke_lease(LeaseId(lease)).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(REVOKE_AGAIN).await;
        }
    };
    // After that time it has expired.
    let _ = timeout(REVOKE_MAX, revoking).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guardian_reads_what_it_is_told() {
        let told = GuardianState {
            lease: Some(7),
            endpoints: vec!["https://10.0.0.1:2379".to_owned()],
            addresses: vec![ToldAddress {
                address: "fd00::9".parse().unwrap(),
                prefix_len: 64,
                interface: "eth0".to_owned(),
            }],
            tls: Some(ToldTls {
                ca_pem: "ca\n".to_owned(),
                certificate_pem: "certificate\n".to_owned(),
                key_pem: "key\n".to_owned(),
            }),
        };
        let line = serde_json::to_string(&told).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<GuardianState>(&line).unwrap(), told);
        let tls = told.settings().tls.unwrap();
        assert_eq!(tls.ca, b"ca\n");
    }
}
