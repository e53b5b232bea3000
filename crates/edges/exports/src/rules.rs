//! What the clients of a network may do with a volume, and as whom.
//!
//! Owns: rules, the choice of the rule that fits a client, squashing.
//! Must not know: volumes, protocols.

use std::net::IpAddr;

use cairn_fs::Credentials;
use ipnet::IpNet;

/// Which users become the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Uid 0, and gid 0 anywhere.
    #[default]
    Root,
    All,
    None,
}

/// What the clients of one network may do with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRule {
    pub clients: IpNet,
    pub read_only: bool,
    pub squash: Squash,
    pub anonymous_uid: u32,
    pub anonymous_gid: u32,
    /// Only for clients whose port is below 1024, which only root may use there.
    pub require_reserved_port: bool,
}

/// uid and gid of `nobody`.
pub const ANONYMOUS_ID: u32 = 65_534;

impl ClientRule {
    /// Read and write for `clients`, root squashed.
    pub fn read_write(clients: IpNet) -> Self {
        Self {
            clients,
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: ANONYMOUS_ID,
            anonymous_gid: ANONYMOUS_ID,
            require_reserved_port: false,
        }
    }

    /// Who a user of the client is on the volume.
    pub fn credentials(&self, uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        match self.squash {
            Squash::All => self.anonymous(),
            Squash::None => Credentials {
                uid,
                gid,
                groups: groups.to_vec(),
                request: None,
            },
            Squash::Root => {
                let squash_gid = |gid| if gid == 0 { self.anonymous_gid } else { gid };
                if uid == 0 {
                    return self.anonymous();
                }
                Credentials {
                    uid,
                    gid: squash_gid(gid),
                    groups: groups.iter().copied().map(squash_gid).collect(),
                    request: None,
                }
            }
        }
    }

    /// Who a caller is on the volume if the client says it is `sent`, or says nothing (AUTH_NONE).
    pub fn who(&self, sent: Option<&Credentials>) -> Credentials {
        match sent {
            Some(sent) => self.credentials(sent.uid, sent.gid, &sent.groups),
            None => self.anonymous(),
        }
    }

    /// Who a request without a user (AUTH_NONE) is.
    pub fn anonymous(&self) -> Credentials {
        Credentials {
            uid: self.anonymous_uid,
            gid: self.anonymous_gid,
            groups: Vec::new(),
            request: None,
        }
    }
}

/// The rule with the longest prefix that holds `peer`; of equals, the first. It alone decides, so a
/// narrow rule can take away what a wide one gives.
pub(crate) fn rule_for(rules: &[ClientRule], peer: IpAddr, port: u16) -> Option<&ClientRule> {
    // A client that came over IPv4 to an IPv6 socket is an IPv4 client.
    let peer = peer.to_canonical();
    let mut best: Option<&ClientRule> = None;
    for rule in rules.iter().filter(|rule| rule.clients.contains(&peer)) {
        if best.is_none_or(|best| rule.clients.prefix_len() > best.clients.prefix_len()) {
            best = Some(rule);
        }
    }
    best.filter(|rule| !rule.require_reserved_port || port < 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(clients: &str) -> ClientRule {
        ClientRule::read_write(clients.parse().unwrap())
    }

    #[test]
    fn the_most_specific_rule_decides() {
        let mut rules = vec![
            rule("10.0.0.0/8"),
            rule("10.1.0.0/16"),
            rule("::1/128"),
            rule("10.1.2.3/32"),
        ];
        rules[1].read_only = true;
        rules[3].require_reserved_port = true;
        let cases: &[(&str, u16, Option<usize>)] = &[
            ("10.2.0.1", 5000, Some(0)),
            ("10.1.0.1", 5000, Some(1)),
            ("::ffff:10.1.0.1", 5000, Some(1)),
            ("10.1.2.3", 1023, Some(3)),
            ("10.1.2.3", 1024, None),
            ("11.0.0.1", 1, None),
            ("::1", 5000, Some(2)),
            ("::2", 5000, None),
        ];
        for (peer, port, want) in cases {
            let got = rule_for(&rules, peer.parse().unwrap(), *port);
            let want = want.map(|index| &rules[index]);
            assert_eq!(got, want, "{peer} port {port}");
        }
    }

    #[test]
    fn users_are_squashed() {
        let mut rule = rule("0.0.0.0/0");
        let nobody = rule.anonymous();
        let user = |uid, gid, groups: &[u32]| Credentials {
            uid,
            gid,
            groups: groups.to_vec(),
            request: None,
        };
        let cases = [
            (Squash::Root, user(0, 0, &[0, 4]), nobody.clone()),
            (
                Squash::Root,
                user(7, 0, &[0, 4]),
                user(7, ANONYMOUS_ID, &[ANONYMOUS_ID, 4]),
            ),
            (Squash::Root, user(7, 8, &[4]), user(7, 8, &[4])),
            (Squash::None, user(0, 0, &[1]), user(0, 0, &[1])),
            (Squash::All, user(7, 8, &[4]), nobody),
        ];
        for (squash, sent, want) in cases {
            rule.squash = squash;
            let got = rule.credentials(sent.uid, sent.gid, &sent.groups);
            assert_eq!(got, want, "{squash:?} of {sent:?}");
        }
    }
}
