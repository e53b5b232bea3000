//! Addresses that nodes share: the lists that operators write, their views, and the addresses that DNS returns.
//!
//! Owns: parsing lists and ranges of addresses, finding the present user of an address, the views. Must not know:
//! which node should have which address (`cairn_owner`), how one is put on an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_admin::address_pools::{
    AddressPoolChange, AddressPoolControl, AddressPoolCreate, AddressPoolView, PoolAddressView,
};
use cairn_admin::api::ErrorKind;
use cairn_admin::{Answer, ControlError};
use cairn_base::NodeId;
use cairn_cluster::MapError;
use cairn_cluster::map::{
    ADDRESS_POOLS_MAX, AddressPoolRecord, MapErrorKind, MapView, POOL_ADDRESSES_MAX, Versioned,
};
use cairn_dns::{Lookup, Name, Names};
use cairn_owner::{address_holder, address_homes};
use ipnet::IpNet;

use crate::cluster::ClusterNode;
use crate::control::{Controller, map_seen, no_cluster};
use crate::node::NodeCore;
use crate::{addresses, cluster_view};

/// Attempts of a change that a concurrent change overtook.
const TRIES_MAX: usize = 5;

/// Addresses as operators write them: of one network, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    addresses: Vec<IpAddr>,
    /// In bits.
    prefix_len: u8,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The addresses from the first to the last.
fn range(first: IpAddr, last: IpAddr) -> Result<Vec<IpAddr>, String> {
    let count = number(last).checked_sub(number(first));
    let count = count.filter(|_| first.is_ipv4() == last.is_ipv4());
    let count = count.ok_or_else(|| format!("{last} does not come after {first}"))?;
    if count >= POOL_ADDRESSES_MAX as u128 {
        return Err(format!(
            "{first}-{last} are more than {POOL_ADDRESSES_MAX} addresses, the limit of one address pool"
        ));
    }
    let next = |step: u128| match first {
        IpAddr::V4(v4) => {
            let step = u32::try_from(step).unwrap_or(u32::MAX);
            IpAddr::V4(v4.to_bits().saturating_add(step).into())
        }
        IpAddr::V6(v6) => IpAddr::V6(v6.to_bits().saturating_add(step).into()),
    };
    Ok((0..=count).map(next).collect())
}

/// Reads `10.0.0.20` or `10.0.0.20-10.0.0.25`.
fn parse_ends(text: &str) -> Result<Vec<IpAddr>, String> {
    let parse = |text: &str| {
        let bad = |_| format!("\"{text}\" is not an address");
        text.trim().parse::<IpAddr>().map_err(bad)
    };
    match text.split_once('-') {
        None => Ok(vec![parse(text)?]),
        Some((first, last)) => range(parse(first)?, parse(last)?),
    }
}

/// Parses addresses and ranges with the lengths of their prefixes; the error says what is wrong.
fn parse_listed(texts: &[String], interface: Option<&str>) -> Result<Listed, String> {
    let mut addresses = Vec::new();
    let mut network: Option<IpNet> = None;
    for text in texts {
        let (ends, prefix_len) = text.split_once('/').ok_or_else(|| {
            format!(
                "\"{text}\" has no prefix length: write 10.0.0.20/24, or 10.0.0.20-10.0.0.25/24"
            )
        })?;
        for address in parse_ends(ends)? {
            let one = format!("{address}/{prefix_len}");
            let record = addresses::parse(&one, interface)?;
            let of = IpNet::new(address, record.prefix_len).map_err(|error| error.to_string())?;
            let known = *network.get_or_insert(of.trunc());
            if known != of.trunc() {
                return Err(format!(
                    "{one} is not in the network {known}: create an address pool for each network"
                ));
            }
            addresses.push(address);
        }
    }
    let network = network.ok_or("no address is given: write 10.0.0.20-10.0.0.25/24")?;
    Ok(Listed {
        addresses,
        prefix_len: network.prefix_len(),
    })
}

/// Parses addresses to remove; their prefixes may be left out.
fn parse_gone(texts: &[String]) -> Result<BTreeSet<IpAddr>, String> {
    let ends = texts.iter().map(|text| {
        let ends = text.split_once('/').map_or(text.as_str(), |(ends, _)| ends);
        parse_ends(ends)
    });
    let all = ends.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// The pool that has an address.
pub fn pool_of(view: &MapView, address: IpAddr) -> Option<&str> {
    let mut pools = view.address_pools.values();
    let pool = pools.find(|pool| pool.value.addresses.contains(&address))?;
    Some(&pool.value.name)
}

/// Maximum wait until a node has released an address that left its pool; most take a second.
const LEFT_MAX: Duration = Duration::from_secs(10);

/// Waits until no node has an address that left its pool.
pub async fn wait_until_left(cluster: &ClusterNode, address: IpAddr) {
    let is_leaving = |view: &MapView| {
        view.address_holders.contains_key(&address) && pool_of(view, address).is_none()
    };
    let mut views = cluster.member.views();
    let left = views.wait_for(|view| !is_leaving(view));
    // After that time the change is refused.
    let _ = tokio::time::timeout(LEFT_MAX, left).await;
}

/// The reason why an address of a pool cannot follow a volume; `None`: no pool has it.
pub fn why_of_no_volume(view: &MapView, address: IpAddr) -> Option<String> {
    if let Some(pool) = pool_of(view, address) {
        return Some(format!(
            "address pool {pool} has this address: choose another address, or remove this one from the pool with \
             `cairn address pool remove`"
        ));
    }
    let holder = view.address_holders.get(&address)?.value.node;
    let name = match view.nodes.get(&holder) {
        Some(node) => node.value.name.clone(),
        None => holder.to_string(),
    };
    Some(format!(
        "node {name} still holds {address}, which was in an address pool: check that node's log and its address hook, \
         and try again"
    ))
}

/// The present user of an address, for messages.
fn taken_by(view: &MapView, address: IpAddr) -> Option<String> {
    let volume = || {
        let mut volumes = view.volumes.values();
        let found = volumes.find(|state| {
            let record = state.address.as_ref();
            record.is_some_and(|record| record.value.address == address)
        })?;
        Some(format!("volume {}", found.record.value.head()))
    };
    let node = cluster_view::node_at(view, address).map(|node| format!("node {node}"));
    let pool = || pool_of(view, address).map(|pool| format!("address pool {pool}"));
    node.or_else(volume).or_else(pool)
}

fn require_free<'a>(
    view: &MapView,
    addresses: impl IntoIterator<Item = &'a IpAddr>,
) -> Result<(), ControlError> {
    for address in addresses {
        if let Some(by) = taken_by(view, *address) {
            let why = format!("{by} has the address {address}: choose an unused address");
            return Err(ControlError::new(ErrorKind::Conflict, why));
        }
    }
    Ok(())
}

fn invalid(why: impl Into<String>) -> ControlError {
    ControlError::new(ErrorKind::Invalid, why.into())
}

fn absent(name: &str) -> ControlError {
    ControlError::new(
        ErrorKind::NotFound,
        format!("there is no address pool \"{name}\""),
    )
    .hint("`cairn address pool list` shows all address pools")
}

fn refused(error: &MapError) -> ControlError {
    let kind = match error.kind() {
        MapErrorKind::BadRequest => match error {
            MapError::Exists { .. } => ErrorKind::Conflict,
            _ => ErrorKind::Invalid,
        },
        MapErrorKind::Changed => ErrorKind::Conflict,
        MapErrorKind::NotFound => ErrorKind::NotFound,
        MapErrorKind::Retry
        | MapErrorKind::Fenced
        | MapErrorKind::Unknown
        | MapErrorKind::NeedsOperator => ErrorKind::Unavailable,
    };
    ControlError::new(kind, error.to_string())
}

fn pool_view(inner: &NodeCore, view: &MapView, record: &AddressPoolRecord) -> AddressPoolView {
    let homes = address_homes(view, &record.name);
    let name = |node: NodeId| match view.nodes.get(&node) {
        Some(node) => node.value.name.clone(),
        None => node.to_string(),
    };
    let own = inner.addresses.get();
    let problem = |address: IpAddr| {
        let here = own.and_then(|own| own.pool_problem(address));
        here.or_else(|| {
            let told = view.alive.values().find_map(|alive| {
                let why = alive.value.unfit_addresses.get(&address)?;
                Some((alive.value.node, why))
            });
            told.map(|(node, why)| format!("node {}: {why}", name(node)))
        })
    };
    let addresses = record.addresses.iter().map(|address| PoolAddressView {
        address: format!("{address}/{}", record.prefix_len),
        home: homes.get(address).copied().map(name),
        node: address_holder(view, *address).map(name),
        problem: problem(*address),
    });
    AddressPoolView {
        name: record.name.clone(),
        interface: record.interface.clone(),
        dns_name: record.dns_name.clone(),
        addresses: addresses.collect(),
    }
}

/// Addresses of pools that are not where they should be: the pool, the address, and the reason.
pub fn troubles(inner: &NodeCore, view: &MapView) -> Vec<(String, String, String)> {
    let pools = view.address_pools.values();
    let views = pools.map(|pool| pool_view(inner, view, &pool.value));
    let troubles = views.flat_map(|pool| {
        let name = pool.name;
        let addresses = pool.addresses.into_iter();
        addresses.filter_map(move |it| Some((name.clone(), it.address, it.problem?)))
    });
    troubles.collect()
}

impl Controller {
    fn pool_cluster(&self) -> Result<&Arc<ClusterNode>, ControlError> {
        self.inner.cluster.as_ref().ok_or_else(no_cluster)
    }

    /// The view of a pool after a change by this node.
    async fn pool_after(
        &self,
        cluster: &ClusterNode,
        record: &AddressPoolRecord,
    ) -> AddressPoolView {
        map_seen(cluster).await;
        pool_view(&self.inner, &cluster.member.view(), record)
    }

    /// Changes a pool. This node's view of the map may be outdated: then the map refuses the change, and this
    /// function repeats it.
    async fn change_pool(
        &self,
        name: &str,
        change: &AddressPoolChange,
    ) -> Result<AddressPoolView, ControlError> {
        let cluster = self.pool_cluster()?;
        for _ in 0..TRIES_MAX {
            let view = cluster.member.view();
            let before = view.address_pools.get(name).ok_or_else(|| absent(name))?;
            let record = changed(&view, before, change)?;
            let set = cluster.member.map().set_address_pool(Some(before), &record);
            match set.await {
                Ok(()) => return Ok(self.pool_after(cluster, &record).await),
                Err(MapError::Changed { .. }) => {
                    let mut views = cluster.member.views();
                    let _ = tokio::time::timeout(crate::control::MAP_SEEN_MAX, async {
                        views
                            .wait_for(|it| it.revision > view.revision)
                            .await
                            .is_ok()
                    })
                    .await;
                }
                Err(error) => return Err(refused(&error)),
            }
        }
        let why = format!("somebody else is changing address pool {name}: try again");
        Err(ControlError::new(ErrorKind::Conflict, why))
    }
}

/// A pool with a change applied.
fn changed(
    view: &MapView,
    before: &Versioned<AddressPoolRecord>,
    change: &AddressPoolChange,
) -> Result<AddressPoolRecord, ControlError> {
    let mut record = before.value.clone();
    let gone = parse_gone(&change.remove).map_err(invalid)?;
    if let Some(other) = gone.iter().find(|it| !record.addresses.contains(it)) {
        let why = format!("address pool {} does not have {other}", record.name);
        return Err(invalid(why));
    }
    record.addresses.retain(|address| !gone.contains(address));
    if !change.add.is_empty() {
        let more = parse_listed(&change.add, record.interface.as_deref()).map_err(invalid)?;
        let network = |address| IpNet::new(address, record.prefix_len).map(|net| net.trunc());
        let is_near = |it: &IpAddr| {
            let mut known = before.value.addresses.iter();
            known.any(|known| network(*known).is_ok_and(|net| network(*it) == Ok(net)))
        };
        if more.prefix_len != record.prefix_len || !more.addresses.iter().all(is_near) {
            let why = format!(
                "address pool {} is in another network: create an address pool for each network",
                record.name
            );
            return Err(invalid(why));
        }
        require_free(view, &more.addresses)?;
        record.addresses.extend(more.addresses);
    }
    if record.addresses.is_empty() {
        let why = format!("address pool {} would be empty", record.name);
        let hint = format!("`cairn address pool delete {}` removes it", record.name);
        return Err(invalid(why).hint(hint));
    }
    Ok(record)
}

impl AddressPoolControl for Controller {
    fn address_pools(&self) -> Answer<'_, Vec<AddressPoolView>> {
        Box::pin(async {
            let view = self.pool_cluster()?.member.view();
            let pools = view.address_pools.values();
            Ok(pools
                .map(|pool| pool_view(&self.inner, &view, &pool.value))
                .collect())
        })
    }

    fn address_pool(&self, name: String) -> Answer<'_, AddressPoolView> {
        Box::pin(async move {
            let view = self.pool_cluster()?.member.view();
            let pool = view.address_pools.get(&name).ok_or_else(|| absent(&name))?;
            Ok(pool_view(&self.inner, &view, &pool.value))
        })
    }

    fn address_pool_create(&self, create: AddressPoolCreate) -> Answer<'_, AddressPoolView> {
        Box::pin(async move {
            let cluster = self.pool_cluster()?;
            let listed = parse_listed(&create.addresses, create.interface.as_deref());
            let listed = listed.map_err(invalid)?;
            let dns_name = create.dns_name.as_ref().map(|name| {
                let parsed: Result<Name, _> = name.parse();
                parsed.map_err(|error| invalid(format!("\"{name}\" is not a DNS name: {error}")))
            });
            let dns_name = dns_name.transpose()?;
            let view = cluster.member.view();
            if view.address_pools.contains_key(&create.name) {
                let why = format!("there is an address pool {} already", create.name);
                let hint = "`cairn address pool add` adds addresses to it";
                return Err(ControlError::new(ErrorKind::Conflict, why).hint(hint));
            }
            if view.address_pools.len() >= ADDRESS_POOLS_MAX {
                let why =
                    format!("there are {ADDRESS_POOLS_MAX} address pools, which is the limit");
                return Err(ControlError::new(ErrorKind::Conflict, why));
            }
            require_free(&view, &listed.addresses)?;
            let record = AddressPoolRecord {
                name: create.name,
                addresses: listed.addresses,
                prefix_len: listed.prefix_len,
                interface: create.interface,
                dns_name: dns_name.map(|name| name.to_string()),
            };
            let set = cluster.member.map().set_address_pool(None, &record).await;
            set.map_err(|error| refused(&error))?;
            Ok(self.pool_after(cluster, &record).await)
        })
    }

    fn address_pool_change(
        &self,
        name: String,
        change: AddressPoolChange,
    ) -> Answer<'_, AddressPoolView> {
        Box::pin(async move { self.change_pool(&name, &change).await })
    }

    fn address_pool_delete(&self, name: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let cluster = self.pool_cluster()?;
            let view = cluster.member.view();
            let pool = view.address_pools.get(&name).ok_or_else(|| absent(&name))?;
            let removed = cluster.member.map().remove_address_pool(pool).await;
            removed.map_err(|error| refused(&error))?;
            map_seen(cluster).await;
            Ok(())
        })
    }
}

/// The names of pools, as this node knows them.
pub struct PoolNames(pub Weak<NodeCore>);

impl Names for PoolNames {
    fn lookup(&self, name: &Name) -> Lookup {
        let Some(inner) = self.0.upgrade() else {
            return Lookup::Unsure;
        };
        let Some(cluster) = &inner.cluster else {
            return Lookup::Elsewhere;
        };
        let view = cluster.member.view();
        lookup(&view, name, cluster.member.lease_is_valid())
    }
}

/// `is_current`: the view is up to date. A node that is cut off from etcd does not know which nodes are alive.
fn lookup(view: &MapView, name: &Name, is_current: bool) -> Lookup {
    let pools = view.address_pools.values().map(|pool| &pool.value);
    let named: Vec<&AddressPoolRecord> = pools
        .filter(|pool| pool.dns_name.as_deref() == Some(name.as_str()))
        .collect();
    if named.is_empty() {
        return Lookup::Elsewhere;
    }
    if !is_current {
        return Lookup::Unsure;
    }
    let addresses = named.iter().flat_map(|pool| &pool.addresses);
    let here = addresses.filter(|address| address_holder(view, **address).is_some());
    Lookup::Here(here.copied().collect())
}

/// For each pool, the number of addresses that nodes have now, and the number of all.
pub fn counts(view: &MapView) -> BTreeMap<String, (usize, usize)> {
    let pools = view.address_pools.values().map(|pool| &pool.value);
    let counts = pools.map(|pool| {
        let held = pool.addresses.iter();
        let held = held
            .filter(|it| address_holder(view, **it).is_some())
            .count();
        (pool.name.clone(), (held, pool.addresses.len()))
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use cairn_base::Timestamp;
    use cairn_cluster::map::{AddressHolder, AliveRecord, ProcessNonce};

    use super::*;

    #[test]
    fn lists_and_ranges_are_read_or_refused() {
        type Read = Result<(&'static [&'static str], u8), &'static str>;
        let cases: &[(&[&str], Read)] = &[
            (&["10.0.0.20/24"], Ok((&["10.0.0.20"], 24))),
            (
                &["10.0.0.20-10.0.0.22/24", "10.0.0.9/24"],
                Ok((&["10.0.0.20", "10.0.0.21", "10.0.0.22", "10.0.0.9"], 24)),
            ),
            (&["10.0.0.20-10.0.0.20/24"], Ok((&["10.0.0.20"], 24))),
            (&["fd00::a-fd00::b/64"], Ok((&["fd00::a", "fd00::b"], 64))),
            (&[], Err("no address is given")),
            (&["10.0.0.20"], Err("no prefix length")),
            (&["10.0.0.22-10.0.0.20/24"], Err("does not come after")),
            (&["10.0.0.20-fd00::1/24"], Err("does not come after")),
            (&["10.0.0.1-10.0.0.65/24"], Err("more than 64 addresses")),
            (
                &["0.0.0.0-255.255.255.255/1"],
                Err("more than 64 addresses"),
            ),
            (
                &["10.0.0.250-10.0.1.2/24"],
                Err("that a client could mount"),
            ),
            (
                &["10.0.0.20/24", "10.0.1.20/24"],
                Err("not in the network 10.0.0.0/24"),
            ),
            (
                &["10.0.0.20/24", "10.0.0.21/25"],
                Err("not in the network 10.0.0.0/24"),
            ),
            (&["10.0.0.20/24", "fd00::1/64"], Err("not in the network")),
            (&["127.0.0.1-127.0.0.2/8"], Err("that a client could mount")),
            (&["node1/24"], Err("\"node1\" is not an address")),
            (
                &["10.0.0.20/33"],
                Err("not an address with a prefix length"),
            ),
        ];
        for (texts, want) in cases {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            match (parse_listed(&texts, None), want) {
                (Ok(got), Ok((addresses, prefix_len))) => {
                    let addresses = addresses.iter().map(|it| it.parse().unwrap());
                    assert_eq!(
                        got.addresses,
                        addresses.collect::<Vec<IpAddr>>(),
                        "{texts:?}"
                    );
                    assert_eq!(got.prefix_len, *prefix_len, "{texts:?}");
                }
                (Err(got), Err(want)) => assert!(got.contains(want), "{texts:?}: {got}"),
                (got, want) => panic!("{texts:?}: {got:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn addresses_come_and_go_in_a_pool() {
        let pool = |addresses: &[&str]| AddressPoolRecord {
            name: "lan".to_owned(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            prefix_len: 24,
            interface: None,
            dns_name: None,
        };
        let before = Versioned {
            revision: cairn_cluster::Revision(1),
            value: pool(&["10.0.0.20", "10.0.0.21"]),
        };
        let mut view = MapView::default();
        view.address_pools.insert("lan".to_owned(), before.clone());
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect();
        type Changed = Result<&'static [&'static str], &'static str>;
        let cases: &[(&[&str], &[&str], Changed)] = &[
            (
                &["10.0.0.22/24"],
                &[],
                Ok(&["10.0.0.20", "10.0.0.21", "10.0.0.22"]),
            ),
            (&[], &["10.0.0.20"], Ok(&["10.0.0.21"])),
            (
                &["10.0.0.30/24"],
                &["10.0.0.20-10.0.0.21/24"],
                Ok(&["10.0.0.30"]),
            ),
            (&[], &["10.0.0.20-10.0.0.21"], Err("would be empty")),
            (&[], &["10.0.0.9"], Err("does not have 10.0.0.9")),
            (
                &["10.0.0.21/24"],
                &[],
                Err("address pool lan has the address 10.0.0.21"),
            ),
            (&["10.0.1.9/24"], &[], Err("another network")),
            (&["10.0.0.9/25"], &[], Err("another network")),
        ];
        for (add, remove, want) in cases {
            let change = AddressPoolChange {
                add: texts(add),
                remove: texts(remove),
            };
            let got = changed(&view, &before, &change);
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got, pool(want)),
                (Err(got), Err(want)) => {
                    assert!(got.message.contains(want), "{change:?}: {got:?}");
                }
                (got, want) => panic!("{change:?}: {got:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn dns_tells_the_addresses_that_nodes_have_now() {
        fn known<T>(value: T) -> Versioned<T> {
            let revision = cairn_cluster::Revision(1);
            Versioned { revision, value }
        }
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let mut view = MapView::default();
        let pool = |name: &str, last: &[u8], dns_name: &str| AddressPoolRecord {
            name: name.to_owned(),
            addresses: last.iter().map(|last| address(*last)).collect(),
            prefix_len: 24,
            interface: None,
            dns_name: Some(dns_name.to_owned()),
        };
        for pool in [
            pool("a", &[1, 2, 3], "files.example"),
            pool("b", &[4], "files.example"),
            pool("c", &[5], "other.example"),
        ] {
            view.address_pools.insert(pool.name.clone(), known(pool));
        }
        let alive = AliveRecord::new(NodeId(1), ProcessNonce(1), Timestamp::new(1, 0));
        view.alive.insert(NodeId(1), known(alive));
        // Of a lost node, and of an earlier process: their leases have not ended yet.
        for (last, node, process) in [(1, 1, 1), (2, 2, 2), (3, 1, 9), (4, 1, 1)] {
            let holder = AddressHolder {
                address: address(last),
                node: NodeId(node),
                process: ProcessNonce(process),
            };
            view.address_holders.insert(address(last), known(holder));
        }
        let cases = [
            (
                "files.example",
                true,
                Lookup::Here(vec![address(1), address(4)]),
            ),
            ("other.example", true, Lookup::Here(Vec::new())),
            ("none.example", true, Lookup::Elsewhere),
            ("files.example", false, Lookup::Unsure),
            ("none.example", false, Lookup::Elsewhere),
        ];
        for (name, is_current, want) in cases {
            assert_eq!(
                lookup(&view, &name.parse().unwrap(), is_current),
                want,
                "{name}"
            );
        }
        // An address that left its pool cannot follow a volume before its node has released it.
        let why = why_of_no_volume(&view, address(1)).unwrap();
        assert!(why.contains("address pool a has this address"), "{why}");
        let mut left = view.clone();
        left.address_pools.clear();
        let why = why_of_no_volume(&left, address(1)).unwrap();
        assert!(why.contains("still holds 10.0.0.1"), "{why}");
        left.address_holders.clear();
        assert_eq!(why_of_no_volume(&left, address(1)), None);
        let want = [("a", (1, 3)), ("b", (1, 1)), ("c", (0, 1))];
        let want = want.map(|(pool, counts)| (pool.to_owned(), counts));
        assert_eq!(counts(&view), BTreeMap::from(want));
    }
}
