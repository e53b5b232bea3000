//! What a node knows of the cluster before it has asked anybody: `cluster.json`.
//!
//! Owns: its fields, its format, what is valid in it.
//! Must not know: where it is kept.

use std::net::IpAddr;

use cairn_base::{NodeId, PoolId};
use cairn_formats::pool_file::HandleKey;
use serde::{Deserialize, Serialize};

use crate::address::{ADDRESS_LEN_BYTES_MAX, check_address, host_of};
use crate::error::TrustError;

pub(crate) const FORMAT: u32 = 1;
const NAME_LEN_BYTES_MAX: usize = 63;
/// Of etcd. It has three or five members; others may have an address for each, and some more.
const ENDPOINTS_MAX: usize = 16;

/// How far a node has come on its way into the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The first node: its next start makes the cluster's map.
    Init,
    /// It was admitted, and its next start takes its place in the map and in etcd.
    Joining,
    Member,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdMemberEntry {
    /// The node that runs it.
    pub node_name: String,
    pub client_url: String,
    pub peer_url: String,
}

/// Where the cluster's etcd is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EtcdSource {
    /// Somebody else runs it.
    Given {
        endpoints: Vec<String>,
        /// Whether an operator allowed addresses without TLS beyond this machine: any host on the way reads and changes the map.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        insecure: bool,
    },
    /// Nodes of the cluster run it.
    Own {
        client_port: u16,
        peer_port: u16,
        /// The members, as far as they are known.
        members: Vec<EtcdMemberEntry>,
        /// Whether this node runs one.
        runs_member: bool,
        /// Whether its member joins others that exist; only its first start looks at it.
        joins: bool,
        /// When etcd was restored from a copy of the map, in seconds since 1970, if it was. Members of before must not take those of
        /// now for theirs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made_anew: Option<u64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Written as it is now, whatever this says.
    #[serde(default)]
    pub format: u32,
    pub cluster: PoolId,
    pub cluster_name: String,
    pub node: NodeId,
    pub node_name: String,
    /// `HOST:PORT` for other nodes.
    pub internal_address: String,
    /// `HOST:PORT` or `HOST` for clients.
    pub external_address: String,
    /// Signs file handles: the same on all nodes, so that a client can go on at any. A secret.
    pub handle_key: HandleKey,
    pub etcd: EtcdSource,
    pub stage: Stage,
}

/// Whether this can be the name of a node or of a cluster.
pub fn check_name(what: &'static str, name: &str) -> Result<(), TrustError> {
    let begins_well = name
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match begins_well && name.len() <= NAME_LEN_BYTES_MAX && name.bytes().all(fine) {
        true => Ok(()),
        false => Err(TrustError::Invalid {
            what,
            value: name.chars().take(NAME_LEN_BYTES_MAX + 1).collect(),
            problem: "a name has letters, digits, '-', '_' and '.', 63 at most, and begins with a letter or digit",
        }),
    }
}

/// What can stand in the map as an address for clients.
pub(crate) fn check_external(address: &str) -> Result<(), TrustError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]%".contains(&byte);
    let is_fine =
        !address.is_empty() && address.len() <= ADDRESS_LEN_BYTES_MAX && address.bytes().all(fine);
    match is_fine {
        true => Ok(()),
        false => Err(TrustError::Invalid {
            what: "the external address",
            value: address.chars().take(ADDRESS_LEN_BYTES_MAX).collect(),
            problem: "it is no HOST or HOST:PORT",
        }),
    }
}

impl EtcdSource {
    /// Addresses of an etcd that somebody else runs, to which there is no TLS and which are not of this machine.
    pub fn without_tls(&self) -> impl Iterator<Item = &str> {
        let endpoints: &[String] = match self {
            Self::Given { endpoints, .. } => endpoints,
            // Its members are asked over TLS alone.
            Self::Own { .. } => &[],
        };
        let endpoints = endpoints.iter().map(String::as_str);
        endpoints.filter(|url| {
            url.strip_prefix("http://")
                .is_some_and(|rest| !is_local(rest))
        })
    }

    pub(crate) fn check(&self) -> Result<(), TrustError> {
        match self {
            Self::Given {
                endpoints,
                insecure,
            } => {
                check_count("the addresses of etcd", endpoints.len())?;
                endpoints.iter().try_for_each(|url| check_url(url))?;
                match self.without_tls().next() {
                    Some(url) if !insecure => Err(TrustError::Invalid {
                        what: "the address of etcd",
                        value: url.to_owned(),
                        problem: "it is plain HTTP: a host on the way to it can read and change all that the cluster knows. Give \
                                  etcd a certificate and write https://, or accept that with --insecure-etcd",
                    }),
                    _ => Ok(()),
                }
            }
            Self::Own {
                client_port,
                peer_port,
                members,
                ..
            } => {
                if *client_port == 0 || *peer_port == 0 || client_port == peer_port {
                    return Err(TrustError::Invalid {
                        what: "the ports of etcd",
                        value: format!("{client_port} and {peer_port}"),
                        problem: "they are two numbers from 1 to 65535",
                    });
                }
                check_count("the members of etcd", members.len())?;
                members.iter().try_for_each(|member| {
                    check_name("the node's name", &member.node_name)?;
                    check_url(&member.client_url)?;
                    check_url(&member.peer_url)
                })
            }
        }
    }
}

fn check_count(what: &'static str, count: usize) -> Result<(), TrustError> {
    match (1..=ENDPOINTS_MAX).contains(&count) {
        true => Ok(()),
        false => Err(TrustError::Invalid {
            what,
            value: count.to_string(),
            problem: "there are from 1 to 16",
        }),
    }
}

/// Whether what follows the scheme of a URL is on this machine.
fn is_local(rest: &str) -> bool {
    let host = host_of(rest.strip_suffix('/').unwrap_or(rest));
    host.is_ok_and(|host| match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    })
}

fn check_url(url: &str) -> Result<(), TrustError> {
    let address = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    match address.map(|address| address.strip_suffix('/').unwrap_or(address)) {
        Some(address) => check_address(address),
        None => Err(TrustError::Invalid {
            what: "the address of etcd",
            value: url.chars().take(ADDRESS_LEN_BYTES_MAX).collect(),
            problem: "write http://HOST:PORT or https://HOST:PORT",
        }),
    }
}

/// Why a text is no membership.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MembershipError {
    Format(u64),
    Damaged(String),
}

impl Membership {
    pub fn check(&self) -> Result<(), TrustError> {
        check_name("the cluster's name", &self.cluster_name)?;
        check_name("the node's name", &self.node_name)?;
        check_address(&self.internal_address)?;
        check_external(&self.external_address)?;
        self.etcd.check()
    }

    pub(crate) fn encode(&self) -> String {
        let current = Self {
            format: FORMAT,
            ..self.clone()
        };
        let mut text = serde_json::to_string_pretty(&current).unwrap_or_default();
        text.push('\n');
        text
    }

    pub(crate) fn decode(text: &[u8]) -> Result<Self, MembershipError> {
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let damaged = |error: serde_json::Error| MembershipError::Damaged(error.to_string());
        let head: Head = serde_json::from_slice(text).map_err(damaged)?;
        if head.format != u64::from(FORMAT) {
            return Err(MembershipError::Format(head.format));
        }
        let membership: Self = serde_json::from_slice(text).map_err(damaged)?;
        membership
            .check()
            .map_err(|error| MembershipError::Damaged(error.to_string()))?;
        Ok(membership)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Membership {
        Membership {
            format: FORMAT,
            cluster: PoolId(1),
            cluster_name: "c".to_owned(),
            node: NodeId(2),
            node_name: "n1".to_owned(),
            internal_address: "10.0.0.1:7700".to_owned(),
            external_address: "node1.example".to_owned(),
            handle_key: HandleKey(3),
            etcd: EtcdSource::Own {
                client_port: 2379,
                peer_port: 2380,
                members: vec![EtcdMemberEntry {
                    node_name: "n1".to_owned(),
                    client_url: "https://10.0.0.1:2379".to_owned(),
                    peer_url: "https://10.0.0.1:2380".to_owned(),
                }],
                runs_member: true,
                joins: false,
                made_anew: None,
            },
            stage: Stage::Init,
        }
    }

    #[test]
    fn a_membership_is_what_it_was_after_it_was_stored() {
        let mut membership = example();
        assert_eq!(
            Membership::decode(membership.encode().as_bytes()),
            Ok(membership.clone())
        );
        membership.etcd = EtcdSource::Given {
            endpoints: vec!["http://etcd.example:2379".to_owned()],
            insecure: true,
        };
        membership.stage = Stage::Member;
        assert_eq!(
            Membership::decode(membership.encode().as_bytes()),
            Ok(membership.clone())
        );
        assert!(!format!("{membership:?}").contains("HandleKey(3"));
    }

    #[test]
    fn etcd_without_tls_is_on_this_machine_or_allowed() {
        let check = |urls: &[&str], insecure| {
            let given = EtcdSource::Given {
                endpoints: urls.iter().map(|url| (*url).to_owned()).collect(),
                insecure,
            };
            (given.check().is_ok(), given.without_tls().count())
        };
        let cases: [(&[&str], usize); 9] = [
            (&["https://etcd.example:2379"], 0),
            (&["http://127.0.0.1:2379", "http://127.8.0.1:2379/"], 0),
            (&["http://[::1]:2379", "http://localhost:2379"], 0),
            (&["http://[::ffff:127.0.0.1]:2379"], 0),
            (&["http://10.0.0.1:2379"], 1),
            // One is enough: each of them is asked.
            (&["https://10.0.0.1:2379", "http://10.0.0.2:2379"], 1),
            (&["http://localhost.example:2379"], 1),
            (&["http://127.0.0.1.example:2379"], 1),
            (&["http://[fd00::1]:2379", "http://etcd:2379/"], 2),
        ];
        for (urls, plain) in cases {
            assert_eq!(check(urls, false), (plain == 0, plain), "{urls:?}");
            assert_eq!(check(urls, true), (true, plain), "{urls:?}");
        }
    }

    #[test]
    fn what_is_no_membership_is_refused() {
        let text = example().encode();
        let cases = [
            (text.replace("\"format\": 1", "\"format\": 2"), Some(2)),
            // The format counts before all that this program does not know.
            ("{\"format\": 7, \"planets\": []}".to_owned(), Some(7)),
            (text.replace("\"format\": 1,", ""), None),
            (text[..text.len() / 2].to_owned(), None),
            (text.replace("\"stage\"", "\"step\""), None),
            (text.replace("10.0.0.1:7700", "0.0.0.0:7700"), None),
            (text.replace("2380,", "2379,"), None),
            (text.replace("https://10.0.0.1:2379", "10.0.0.1:2379"), None),
            (text.replace("\"n1\"", "\"-n1\""), None),
            (String::new(), None),
            ("[1]".to_owned(), None),
        ];
        for (text, format) in cases {
            let refused = Membership::decode(text.as_bytes()).expect_err(&text);
            match (refused, format) {
                (MembershipError::Format(found), Some(format)) => assert_eq!(found, format),
                (MembershipError::Damaged(_), None) => {}
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
    }
}
