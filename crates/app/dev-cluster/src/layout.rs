//! Who has which address.
//!
//! Owns: names, ports and addresses of all machines of one cluster. Must not know: whether they are there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;

pub const NODES_MAX: u16 = 64;
pub const DISKS_MAX: u16 = 64;
/// Members of an etcd that is not the nodes' own.
pub const ETCD_MEMBERS_MAX: u16 = 3;

/// Ports of one node: NFS, admin API, between nodes, etcd's two, those of a separate etcd, iSCSI, S3.
const PORTS_PER_NODE: u16 = 10;
pub const BASE_PORT_DEFAULT: u16 = 12_000;

/// Where each node has an address of its own, all have the same ports.
const NFS_PORT: u16 = 2049;
const ADMIN_PORT: u16 = 8049;
const ISCSI_PORT: u16 = 3260;
const S3_PORT: u16 = 9000;
const INTERNAL_PORT: u16 = 7400;
const ETCD_CLIENT_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;

/// The address of this machine in the network of the nodes, and the first of separate etcd members.
const HOST_NUMBER: u8 = 254;
const ETCD_NUMBER: u8 = 200;
const _: () = assert!(NODES_MAX < ETCD_NUMBER as u16);
const _: () = assert!(ETCD_NUMBER as u16 + ETCD_MEMBERS_MAX < HOST_NUMBER as u16);

/// Digits of the folder's digest in names of namespaces and links: those have at most 15 characters.
const TAG_DIGITS: usize = 6;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Node,
    /// A member of an etcd that is not the nodes' own.
    Etcd,
}

/// How the machines of a cluster are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// By ports of the loopback address.
    Loopback,
    /// By network namespaces whose names begin with the tag, with addresses of this network.
    Namespaces { tag: String, net: Ipv4Net },
}

/// Who has which address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub network: Network,
    pub base_port: u16,
}

/// Where one machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Its own address.
    pub host: Ipv4Addr,
    pub nfs: SocketAddr,
    pub admin: SocketAddr,
    pub internal: SocketAddr,
    pub etcd_client: SocketAddr,
    pub etcd_peer: SocketAddr,
    /// Where clients on this machine, and in VMs on it, find NFS and the admin API.
    pub nfs_here: SocketAddr,
    pub admin_here: SocketAddr,
    pub iscsi: SocketAddr,
    pub iscsi_here: SocketAddr,
    pub s3: SocketAddr,
    pub s3_here: SocketAddr,
}

impl Layout {
    pub fn check(&self, nodes: u16) -> Result<(), Error> {
        let needed = u32::from(PORTS_PER_NODE) * (u32::from(nodes) + 1);
        if self.base_port == 0 || u32::from(self.base_port) + needed > u32::from(u16::MAX) {
            return Err(Error::Usage(format!(
                "--base-port {}: the {needed} ports from there on are not all between 1 and {}",
                self.base_port,
                u16::MAX
            )));
        }
        match &self.network {
            Network::Namespaces { net, .. } if net.prefix_len() > 24 => Err(Error::Usage(format!(
                "--network {net}: it needs 256 addresses, such as 10.213.7.0/24"
            ))),
            _ => Ok(()),
        }
    }

    /// Where clients reach whichever node serves at the moment.
    pub fn floating(&self) -> SocketAddr {
        loopback(self.base_port)
    }

    /// The address from which this machine calls the nodes.
    pub fn client_address(&self) -> Ipv4Addr {
        match &self.network {
            Network::Loopback => Ipv4Addr::LOCALHOST,
            Network::Namespaces { net, .. } => numbered(net, HOST_NUMBER),
        }
    }

    /// The addresses of a machine; its index counts from 1 among those of its role.
    pub fn addresses(&self, role: Role, index: u16) -> Addresses {
        let first = self.base_port + PORTS_PER_NODE * index;
        let (nfs_here, admin_here) = (loopback(first), loopback(first + 1));
        let (iscsi_here, s3_here) = (loopback(first + 7), loopback(first + 8));
        match &self.network {
            Network::Loopback => {
                let etcd = match role {
                    Role::Node => first + 3,
                    Role::Etcd => first + 5,
                };
                Addresses {
                    host: Ipv4Addr::LOCALHOST,
                    nfs: nfs_here,
                    admin: admin_here,
                    internal: loopback(first + 2),
                    etcd_client: loopback(etcd),
                    etcd_peer: loopback(etcd + 1),
                    nfs_here,
                    admin_here,
                    iscsi: iscsi_here,
                    iscsi_here,
                    s3: s3_here,
                    s3_here,
                }
            }
            Network::Namespaces { net, .. } => {
                let number = match role {
                    Role::Node => 0,
                    Role::Etcd => ETCD_NUMBER,
                };
                // Both are far below 256.
                let host = numbered(net, number + index as u8);
                let at = |port| SocketAddr::new(IpAddr::V4(host), port);
                Addresses {
                    host,
                    nfs: at(NFS_PORT),
                    admin: at(ADMIN_PORT),
                    internal: at(INTERNAL_PORT),
                    etcd_client: at(ETCD_CLIENT_PORT),
                    etcd_peer: at(ETCD_PEER_PORT),
                    nfs_here,
                    admin_here,
                    iscsi: at(ISCSI_PORT),
                    iscsi_here,
                    s3: at(S3_PORT),
                    s3_here,
                }
            }
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn numbered(net: &Ipv4Net, number: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(net.network()) + u32::from(number))
}

/// What the names of a cluster's namespaces begin with: of two folders, other names.
pub fn tag(folder: &Path) -> String {
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("cairn-{}", &digits[..TAG_DIGITS])
}

/// A network of 10.213.0.0/16 that overlaps none of `used`; which one is tried first depends on the tag, so that
/// clusters that start at the same time take different ones.
pub fn free_network(tag: &str, used: &[Ipv4Net]) -> Option<Ipv4Net> {
    let first = Sha256::digest(tag.as_bytes())[0];
    (0..=u8::MAX).find_map(|step| {
        let third = first.wrapping_add(step);
        let net = Ipv4Net::new(Ipv4Addr::new(10, 213, third, 0), 24).ok()?;
        (!used.iter().any(|other| overlap(&net, other))).then_some(net)
    })
}

pub fn overlap(one: &Ipv4Net, other: &Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// The index of a node that is written as `node3` or `3`, or of an etcd member, `etcd1`.
pub fn parse_machine(text: &str) -> Option<(Role, u16)> {
    let (role, number) = if let Some(number) = text.strip_prefix("etcd") {
        (Role::Etcd, number)
    } else {
        (Role::Node, text.strip_prefix("node").unwrap_or(text))
    };
    let max = match role {
        Role::Node => NODES_MAX,
        Role::Etcd => ETCD_MEMBERS_MAX,
    };
    let index = number.parse().ok()?;
    (1..=max).contains(&index).then_some((role, index))
}

pub fn machine_name(role: Role, index: u16) -> String {
    match role {
        Role::Node => format!("node{index}"),
        Role::Etcd => format!("etcd{index}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn namespaces() -> Layout {
        Layout {
            network: Network::Namespaces {
                tag: "cairn-012345".to_owned(),
                net: "10.213.7.0/24".parse().unwrap(),
            },
            base_port: BASE_PORT_DEFAULT,
        }
    }

    fn on_loopback() -> Layout {
        Layout {
            network: Network::Loopback,
            base_port: BASE_PORT_DEFAULT,
        }
    }

    #[test]
    fn no_two_machines_share_an_address() {
        for layout in [namespaces(), on_loopback()] {
            let nodes = (1..=NODES_MAX).map(|index| (Role::Node, index));
            let etcd = (1..=ETCD_MEMBERS_MAX).map(|index| (Role::Etcd, index));
            let mut seen = HashSet::from([layout.floating()]);
            for (role, index) in nodes.chain(etcd) {
                let all = layout.addresses(role, index);
                let mut own = vec![all.etcd_client, all.etcd_peer];
                if role == Role::Node {
                    own.extend([all.nfs, all.admin, all.internal, all.iscsi, all.s3]);
                    if layout.network != Network::Loopback {
                        own.extend([all.nfs_here, all.admin_here, all.iscsi_here, all.s3_here]);
                    }
                }
                for address in own {
                    assert!(seen.insert(address), "{role:?} {index} {address}");
                }
            }
        }
    }

    #[test]
    fn addresses_are_as_the_guide_says() {
        let third = namespaces().addresses(Role::Node, 3);
        assert_eq!(third.nfs.to_string(), "10.213.7.3:2049");
        assert_eq!(third.nfs_here.to_string(), "127.0.0.1:12030");
        assert_eq!(namespaces().client_address().to_string(), "10.213.7.254");
        let third = on_loopback().addresses(Role::Node, 3);
        assert_eq!(third.nfs.to_string(), "127.0.0.1:12030");
        assert_eq!(third.admin.to_string(), "127.0.0.1:12031");
        assert_eq!(on_loopback().floating().to_string(), "127.0.0.1:12000");
    }

    #[test]
    fn ports_and_networks_are_checked() {
        let with_base = |base_port| Layout {
            base_port,
            ..on_loopback()
        };
        for (base_port, nodes, want) in [
            (1, 6, true),
            (0, 6, false),
            (65_465, 6, true),
            (65_466, 6, false),
        ] {
            let got = with_base(base_port).check(nodes).is_ok();
            assert_eq!(got, want, "{base_port} {nodes}");
        }
        let mut small = namespaces();
        small.network = Network::Namespaces {
            tag: String::new(),
            net: "10.213.7.0/25".parse().unwrap(),
        };
        assert!(small.check(6).is_err());
        assert!(namespaces().check(NODES_MAX).is_ok());
    }

    #[test]
    fn a_free_network_overlaps_no_other() {
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        let tag = tag(Path::new("/srv/cluster"));
        let first = free_network(&tag, &[]).unwrap();
        let second = free_network(&tag, &[first, net("192.168.0.0/16")]).unwrap();
        assert!(!overlap(&first, &second));
        assert_eq!(free_network(&tag, &[net("10.0.0.0/8")]), None);
        assert!(overlap(&net("10.213.7.0/24"), &net("10.213.7.9/32")));
    }

    #[test]
    fn tags_tell_folders_apart_and_fit_into_names_of_links() {
        let one = tag(Path::new("/srv/one"));
        assert_ne!(one, tag(Path::new("/srv/two")));
        assert_eq!(one, tag(Path::new("/srv/one")));
        assert!(one.len() <= 15, "{one}");
    }

    #[test]
    fn machines_are_named_or_refused() {
        for (text, want) in [
            ("node3", Some((Role::Node, 3))),
            ("3", Some((Role::Node, 3))),
            ("etcd1", Some((Role::Etcd, 1))),
            ("etcd4", None),
            ("node0", None),
            ("node65", None),
            ("node-1", None),
            ("", None),
            ("main", None),
        ] {
            assert_eq!(parse_machine(text), want, "{text}");
            if let Some((role, index)) = want {
                let name = machine_name(role, index);
                assert_eq!(parse_machine(&name), want, "{name}");
            }
        }
    }
}
