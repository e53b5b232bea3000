//! Addresses of volumes, which follow their owners, and of pools, which nodes share.
//!
//! Owns: which addresses this node should have now: those of volumes that it serves while its lease is valid, and
//! those of pools that it holds. Must not know: how an address is put on an interface (`cairn_floating`), which node
//! should own a volume or hold an address (`cairn_owner`).
//!
//! A node removes a volume's address before it releases the volume: a node with the address answers for the volume,
//! or soon will. It removes a pool's address before others may hold it, and adds one after the map says that this
//! node holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_cluster::Revision;
use cairn_cluster::map::{AddressPoolRecord, AddressRecord, MapView, Process, Versioned};
use cairn_floating::{
    KEPT_SECONDS, Keeper, Listening, Listens, PlacedAddress, Purpose, RENEWED_EVERY, WantedAddress,
};
use cairn_owner::{AddressDesk, AddressStep, ClusterMember, Farewell};
use cairn_pool::{Pool, VolumeService};
use cairn_rpc_server::{MoreAddresses, OpenAddress};
use futures_util::future::join_all;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The longest name of an interface on Linux.
const INTERFACE_LEN_BYTES_MAX: usize = 15;

/// Calls through an address that is being removed are answered for so long; most take milliseconds.
const ANSWERED_MAX: Duration = Duration::from_secs(1);

/// Parses an address with its prefix, `10.0.0.9/24`; the error says what is wrong with it.
pub fn parse(text: &str, interface: Option<&str>) -> Result<AddressRecord, String> {
    let net: IpNet = text.parse().map_err(|_| {
        format!("\"{text}\" is not an address with a prefix length, such as 10.0.0.9/24")
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
        return Err(format!(
            "{address} is not an address that a client could mount"
        ));
    }
    let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if let Some(name) = interface {
        let fits = (1..=INTERFACE_LEN_BYTES_MAX).contains(&name.len());
        if !fits || !name.bytes().all(is_fine) || name == "." || name == ".." {
            return Err(format!("\"{name}\" is not the name of a network interface"));
        }
    }
    Ok(AddressRecord {
        address,
        prefix_len: net.prefix_len(),
        interface: interface.map(str::to_owned),
    })
}

/// Lets NFS accept clients at more addresses.
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

/// A failed change of the map for an address is given up after so long: meanwhile this node's other addresses have to
/// be renewed.
const MAP_CHANGE_MAX: Duration = Duration::from_millis(1500);
/// A change of the map, the end of connections and the pause between two checks together leave time to renew an address.
const _: () = assert!(
    MAP_CHANGE_MAX.as_millis() + ANSWERED_MAX.as_millis() + RENEWED_EVERY.as_millis()
        < KEPT_SECONDS as u128 * 1000
);
/// After so many failed attempts to put a pool's address on an interface, this node leaves it to others.
const TRIES_MAX: u32 = 2;

pub struct Addresses {
    env: Env,
    keeper: Keeper,
    /// Volumes that this node is about to release: it does not add their addresses again.
    leaving: Mutex<BTreeSet<VolumeId>>,
    /// The addresses of pools that this node holds. Locked during the steps that follow from it.
    desk: tokio::sync::Mutex<AddressDesk>,
    /// The node is stopping, and takes no address of a pool any more.
    is_stopping: AtomicBool,
}

/// The result of the steps of one address.
enum Done {
    Nothing,
    /// The address is still here, or may be: later steps have to wait.
    Stays,
    /// It has left this machine.
    Gone(IpAddr),
    /// This node holds it since this revision of the map.
    Taken(IpAddr, Revision),
    Left(IpAddr),
}

struct Following {
    addresses: Arc<Addresses>,
    pool: Weak<Pool>,
    member: Arc<ClusterMember>,
    views: watch::Receiver<Arc<MapView>>,
    /// The map is followed no more.
    is_over: bool,
}

impl Step for Following {
    async fn step(&mut self) -> StepResult {
        let Some(pool) = self.pool.upgrade().filter(|_| !self.is_over) else {
            return Ok(Next::End);
        };
        let (addresses, member) = (&self.addresses, &self.member);
        let is_stopping = pool.is_stopping();
        tokio::join!(
            addresses.look(&pool, member),
            addresses.look_at_pools(member)
        );
        Ok(
            match is_stopping && addresses.keeper.purposes().is_empty() {
                true => Next::End,
                false => Next::Period,
            },
        )
    }

    async fn woken(&mut self) {
        self.is_over = self.views.changed().await.is_err();
    }
}

impl Addresses {
    pub fn new(env: Env, hook: Option<std::path::PathBuf>, nfs: MoreAddresses) -> Arc<Self> {
        Arc::new(Self {
            env,
            keeper: Keeper::new(hook, Arc::new(NfsListens(nfs))),
            leaving: Mutex::default(),
            desk: tokio::sync::Mutex::default(),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// The reason why the address of a volume of this node is not here.
    pub fn problem(&self, volume: VolumeId) -> Option<String> {
        self.keeper.problem(Purpose::Volume(volume))
    }

    /// The reason why a pool's address that this node holds is not here.
    pub fn pool_problem(&self, address: IpAddr) -> Option<String> {
        self.keeper.problem(Purpose::Pool(address))
    }

    /// The number of pools' addresses that are here, or may be.
    pub fn of_pools_count(&self) -> usize {
        let purposes = self.keeper.purposes().into_iter();
        purposes.filter(|it| matches!(it, Purpose::Pool(_))).count()
    }

    /// The addresses that are on interfaces of this machine, or may be.
    pub fn placed(&self) -> watch::Receiver<BTreeMap<Purpose, PlacedAddress>> {
        self.keeper.placed()
    }

    /// Starts the job that follows owners, holders and addresses until the pool ends.
    pub fn tend(self: &Arc<Self>, pool: &Arc<Pool>, member: &Arc<ClusterMember>) {
        let following = Following {
            addresses: Arc::clone(self),
            pool: Arc::downgrade(pool),
            member: Arc::clone(member),
            views: member.views(),
            is_over: false,
        };
        let job = Job::every("addresses", RENEWED_EVERY).from_now();
        job.start(&self.env, following);
    }

    async fn look(&self, pool: &Pool, member: &ClusterMember) {
        let view = member.view();
        let has_lease = member.lease_is_valid();
        let services = pool.services();
        let is_served = |id: &VolumeId| matches!(services.get(id), Some(VolumeService::Serving(_)));
        self.leaving.lock().retain(is_served);
        let wanted: BTreeMap<Purpose, (VolumeId, WantedAddress)> = view
            .volumes
            .iter()
            .filter(|(id, _)| has_lease && is_served(id) && !self.leaving.lock().contains(id))
            .filter_map(|(id, state)| {
                let record = &state.address.as_ref()?.value;
                let wanted = WantedAddress {
                    name: state.record.value.head().to_owned(),
                    address: record.address,
                    prefix_len: record.prefix_len,
                    interface: record.interface.clone(),
                };
                Some((Purpose::Volume(*id), (*id, wanted)))
            })
            .collect();
        let here = self.keeper.purposes().into_iter();
        let gone = here.filter(|it| matches!(it, Purpose::Volume(_)) && !wanted.contains_key(it));
        join_all(gone.map(|it| self.keeper.drop_of(it))).await;
        let kept = wanted.iter().map(|(purpose, (id, wanted))| async move {
            // Another task may have decided to remove it meanwhile.
            let stays = || !self.leaving.lock().contains(id);
            self.keeper.keep(*purpose, wanted, stays).await;
        });
        join_all(kept).await;
    }

    /// Removes all addresses of pools from here, so that other nodes can take them: this node is stopping. Others
    /// have to be told first ([`ClusterMember::leave_addresses`]).
    pub async fn leave_pools(&self, member: &ClusterMember) {
        self.is_stopping.store(true, Ordering::Release);
        self.look_at_pools(member).await;
    }

    async fn look_at_pools(&self, member: &ClusterMember) {
        let mut desk = self.desk.lock().await;
        let own = member.process().filter(|_| member.lease_is_valid());
        let view = member.view();
        let clock = &self.env.clock;
        let steps = match (own, self.is_stopping.load(Ordering::Acquire)) {
            (Some(_), true) => desk.leave_all(),
            (own, _) => desk.steps((clock.boottime(), clock.now()), &view, own),
        };
        let mut of_address: BTreeMap<IpAddr, Vec<AddressStep>> = BTreeMap::new();
        for step in steps {
            of_address.entry(step.address()).or_default().push(step);
        }
        // After this node lost an address and failed to remove it, it tries again until the address is gone.
        for purpose in self.keeper.purposes() {
            if let Purpose::Pool(address) = purpose {
                let dropped = || vec![AddressStep::Drop(address)];
                of_address.entry(address).or_insert_with(dropped);
            }
        }
        let taken = of_address.into_iter().map(|(address, steps)| async move {
            let mut done = Done::Nothing;
            for step in steps {
                match self.take_step(member, own, address, step).await {
                    Done::Nothing => {}
                    Done::Stays => break,
                    other => done = other,
                }
            }
            done
        });
        for done in join_all(taken).await {
            match done {
                Done::Nothing | Done::Stays => {}
                Done::Gone(address) => desk.note_gone(address),
                Done::Taken(address, at) => desk.note_taken(address, at),
                Done::Left(address) => desk.note_left(address),
            }
        }
    }

    async fn take_step(
        &self,
        member: &ClusterMember,
        own: Option<Process>,
        address: IpAddr,
        step: AddressStep,
    ) -> Done {
        let purpose = Purpose::Pool(address);
        let map = member.map();
        match (step, own) {
            (AddressStep::Drop(_), _) => {
                let is_gone = self.keeper.drop_of(purpose).await;
                let why = self.keeper.problem(purpose).filter(|_| !is_gone);
                member.note_staying(address, why);
                return match is_gone {
                    true => Done::Gone(address),
                    false => Done::Stays,
                };
            }
            (AddressStep::Leave(_), Some(own)) => {
                let leaving = tokio::time::timeout(MAP_CHANGE_MAX, map.leave_address(own, address));
                match leaving.await {
                    Ok(Ok(())) => return Done::Left(address),
                    Ok(Err(error)) => {
                        tracing::debug!(%address, %error, "giving the address up is retried")
                    }
                    Err(_) => {
                        tracing::debug!(%address, "giving the address up is retried: etcd is slow")
                    }
                }
            }
            (AddressStep::Take(_), Some(own)) => {
                let view = member.view();
                let Some((pool, wanted)) = wanted_of(&view, address) else {
                    return Done::Nothing;
                };
                let taking = map.take_address(own, pool, address);
                match tokio::time::timeout(MAP_CHANGE_MAX, taking).await {
                    Ok(Ok(())) => {
                        let at = map.written();
                        // The lease may have ended during the wait for the store.
                        if member.lease_is_valid() {
                            self.keep(member, purpose, &wanted).await;
                        }
                        return Done::Taken(address, at);
                    }
                    // Another node was quicker, or the pool has changed: the next view says so.
                    Ok(Err(error)) => tracing::debug!(%address, %error, "cannot take an address"),
                    Err(_) => tracing::debug!(%address, "cannot take an address: etcd is slow"),
                }
            }
            (AddressStep::Keep(_), Some(_)) => {
                if let Some((_, wanted)) = wanted_of(&member.view(), address) {
                    self.keep(member, purpose, &wanted).await;
                }
            }
            (_, None) => {}
        }
        Done::Nothing
    }

    async fn keep(&self, member: &ClusterMember, purpose: Purpose, wanted: &WantedAddress) {
        self.keeper.keep(purpose, wanted, || true).await;
        member.note_staying(wanted.address, None);
        match self.keeper.problem(purpose) {
            None => member.note_fit(wanted.address),
            Some(why) if self.keeper.failed_tries(purpose) >= TRIES_MAX => {
                member.note_unfit(wanted.address, why);
            }
            Some(_) => {}
        }
    }
}

/// The pool of an address, and the desired state of that address.
fn wanted_of(
    view: &MapView,
    address: IpAddr,
) -> Option<(&Versioned<AddressPoolRecord>, WantedAddress)> {
    let mut pools = view.address_pools.values();
    let pool = pools.find(|pool| pool.value.addresses.contains(&address))?;
    let wanted = WantedAddress {
        name: pool.value.name.clone(),
        address,
        prefix_len: pool.value.prefix_len,
        interface: pool.value.interface.clone(),
    };
    Some((pool, wanted))
}

impl Farewell for Addresses {
    fn leaving(self: Arc<Self>, volume: VolumeId) -> BoxFuture<()> {
        self.leaving.lock().insert(volume);
        Box::pin(async move {
            // A connection that stays is dropped again later.
            self.keeper.drop_of(Purpose::Volume(volume)).await;
        })
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
