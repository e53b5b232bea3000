//! Addresses of volumes, which follow their owners.
//!
//! Owns: which volumes' addresses this node should have now: of those that it serves while its lease lives.
//! Must not know: how an address is put somewhere (`cairn_floating`), who should own a volume.
//!
//! An address goes before its volume does: what has it answers for the volume, or soon will.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::BoxFuture;
use cairn_cluster::map::AddressRecord;
use cairn_floating::{Keeper, Listening, Listens, RENEWED_EVERY, Wanted};
use cairn_owner::{ClusterMember, Farewell};
use cairn_pool::{Pool, VolumeService};
use cairn_rpc_server::{MoreAddresses, OpenAddress};
use futures_util::future::join_all;
use ipnet::IpNet;
use parking_lot::Mutex;

/// The longest name of an interface that Linux takes.
const INTERFACE_LEN_BYTES_MAX: usize = 15;

/// Calls through an address that goes are answered for so long; most take milliseconds.
const ANSWERED_MAX: Duration = Duration::from_secs(1);

/// Reads an address with its prefix, `10.0.0.9/24`; the error says what is wrong with it.
pub fn parse(text: &str, interface: Option<&str>) -> Result<AddressRecord, String> {
    let net: IpNet = text.parse().map_err(|_| {
        format!("\"{text}\" is no address with the length of its prefix, such as 10.0.0.9/24")
    })?;
    let address = net.addr();
    let is_unfit = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let is_of_network = match net {
        IpNet::V4(net) => {
            net.prefix_len() < 31 && [net.network(), net.broadcast()].contains(&net.addr())
        }
        IpNet::V6(net) => net.prefix_len() < 127 && net.network() == net.addr(),
    };
    if is_unfit || is_of_network {
        return Err(format!("{address} is no address that a client could mount"));
    }
    let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if let Some(name) = interface {
        let fits = (1..=INTERFACE_LEN_BYTES_MAX).contains(&name.len());
        if !fits || !name.bytes().all(is_fine) || name == "." || name == ".." {
            return Err(format!("\"{name}\" is no name of a network interface"));
        }
    }
    Ok(AddressRecord {
        address,
        prefix_len: net.prefix_len(),
        interface: interface.map(str::to_owned),
    })
}

/// Lets NFS clients in at more addresses.
struct NfsListens(MoreAddresses);

impl Listens for NfsListens {
    fn listen(&self, address: IpAddr) -> io::Result<Box<dyn Listening>> {
        Ok(Box::new(NfsAt(self.0.open(address)?)))
    }
}

struct NfsAt(OpenAddress);

impl Listening for NfsAt {
    fn close(self: Box<Self>) -> BoxFuture<()> {
        Box::pin(self.0.close(ANSWERED_MAX))
    }
}

pub struct Addresses {
    keeper: Keeper,
    /// Volumes that are about to be left: their addresses are not taken again.
    leaving: Mutex<BTreeSet<VolumeId>>,
}

impl Addresses {
    pub fn new(hook: Option<std::path::PathBuf>, nfs: MoreAddresses) -> Arc<Self> {
        Arc::new(Self {
            keeper: Keeper::new(hook, Arc::new(NfsListens(nfs))),
            leaving: Mutex::default(),
        })
    }

    /// Why the address of a volume of this node is not here.
    pub fn problem(&self, volume: VolumeId) -> Option<String> {
        self.keeper.problem(volume)
    }

    /// Follows owners and addresses until the pool ends.
    pub async fn tend(self: Arc<Self>, pool: std::sync::Weak<Pool>, member: Arc<ClusterMember>) {
        let mut views = member.views();
        loop {
            let Some(pool) = pool.upgrade() else { return };
            let is_stopping = pool.is_stopping();
            self.look(&pool, &member).await;
            drop(pool);
            if is_stopping && self.keeper.volumes().is_empty() {
                return;
            }
            tokio::select! {
                changed = views.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RENEWED_EVERY) => {}
            }
        }
    }

    async fn look(&self, pool: &Pool, member: &ClusterMember) {
        let view = member.view();
        let has_lease = member.lease_is_valid();
        let services = pool.services();
        let is_served = |id: &VolumeId| matches!(services.get(id), Some(VolumeService::Serving(_)));
        self.leaving.lock().retain(is_served);
        let wanted: BTreeMap<VolumeId, Wanted> = view
            .volumes
            .iter()
            .filter(|(id, _)| has_lease && is_served(id) && !self.leaving.lock().contains(id))
            .filter_map(|(id, state)| {
                let record = &state.address.as_ref()?.value;
                let wanted = Wanted {
                    volume: state.record.value.head().to_owned(),
                    address: record.address,
                    prefix_len: record.prefix_len,
                    interface: record.interface.clone(),
                };
                Some((*id, wanted))
            })
            .collect();
        let here = self.keeper.volumes().into_iter();
        let gone = here.filter(|id| !wanted.contains_key(id));
        join_all(gone.map(|id| self.keeper.drop_of(id))).await;
        let kept = wanted.iter().map(|(id, wanted)| async move {
            self.keeper.keep(*id, wanted).await;
            // It may have been told to go meanwhile.
            if self.leaving.lock().contains(id) {
                self.keeper.drop_of(*id).await;
            }
        });
        join_all(kept).await;
    }
}

impl Farewell for Addresses {
    fn leaving(self: Arc<Self>, volume: VolumeId) -> BoxFuture<()> {
        self.leaving.lock().insert(volume);
        Box::pin(async move { self.keeper.drop_of(volume).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let cases = [
            ("10.0.0.9/24", None, true),
            ("10.0.0.9/32", Some("eth0"), true),
            ("fd00::9/64", Some("bond0.7"), true),
            ("10.0.0.9", None, false),
            ("10.0.0.9/33", None, false),
            ("10.0.0.0/24", None, false),
            ("10.0.0.255/24", None, false),
            ("fd00::/64", None, false),
            ("127.0.0.1/8", None, false),
            ("224.0.0.5/24", None, false),
            ("0.0.0.0/0", None, false),
            ("node1/24", None, false),
            ("10.0.0.9/24", Some(""), false),
            ("10.0.0.9/24", Some("a/b"), false),
            ("10.0.0.9/24", Some("sixteen-letters-"), false),
        ];
        for (text, interface, want) in cases {
            assert_eq!(parse(text, interface).is_ok(), want, "{text} {interface:?}");
        }
    }
}
