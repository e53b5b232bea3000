//! Who may use which volume, and as whom.
//!
//! Owns: the table of exported volumes, the choice of the rule that fits a client, squashing.
//! Must not know: RPC, connections, what is in a volume.
//!
//! A table never changes. A new one is put in its place, and each connection sees that with its
//! next request, so a right taken away is gone at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use cairn_base::VolumeId;
use cairn_fs::{Credentials, Fs};
use ipnet::IpNet;

/// Whose requests are turned into the anonymous user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Those of uid 0, and gid 0 anywhere.
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
    /// Only clients whose port is below 1024, which takes root there.
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
                }
            }
        }
    }

    /// Who a caller is, of whom the client says that it is `sent`; `None` if it says nothing (AUTH_NONE).
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
        }
    }
}

/// A volume, served or not.
#[derive(Clone)]
pub enum Volume {
    Serving(Fs),
    /// It could not be opened. It may be later, so its clients are to wait instead of giving up.
    Failed(FailedVolume),
}

/// What is known of a volume that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedVolume {
    pub volume: VolumeId,
    pub name: String,
}

impl Volume {
    pub fn id(&self) -> VolumeId {
        match self {
            Self::Serving(fs) => fs.volume(),
            Self::Failed(failed) => failed.volume,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Serving(fs) => fs.name(),
            Self::Failed(failed) => &failed.name,
        }
    }
}

/// One volume that can be mounted as `/NAME`.
#[derive(Clone)]
pub struct Export {
    pub volume: Volume,
    pub rules: Vec<ClientRule>,
}

/// All exports at one moment, sorted by name.
pub struct ExportTable {
    version: u64,
    exports: Vec<Export>,
}

impl ExportTable {
    /// Grows with every table.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// What a client at this address and port may use.
    pub fn view(self: &Arc<Self>, peer: IpAddr, port: u16) -> PeerView {
        let mut view = PeerView {
            table: Arc::clone(self),
            grants: Vec::new(),
            failed: Vec::new(),
        };
        for export in &self.exports {
            let Some(rule) = rule_for(&export.rules, peer, port) else {
                continue;
            };
            match &export.volume {
                Volume::Serving(fs) => view.grants.push(Grant {
                    volume: fs.volume(),
                    fs: fs.clone(),
                    rule: rule.clone(),
                }),
                Volume::Failed(failed) => view.failed.push(failed.clone()),
            }
        }
        view
    }
}

/// The rule with the longest prefix that holds `peer`; of equals, the first. It alone decides: a
/// narrow rule can take away what a wide one gives.
fn rule_for(rules: &[ClientRule], peer: IpAddr, port: u16) -> Option<&ClientRule> {
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

/// A volume that a client may use, and how.
#[derive(Clone)]
pub struct Grant {
    pub volume: VolumeId,
    pub fs: Fs,
    pub rule: ClientRule,
}

/// What one client may use, as of one table.
pub struct PeerView {
    table: Arc<ExportTable>,
    grants: Vec<Grant>,
    failed: Vec<FailedVolume>,
}

impl PeerView {
    pub fn is_of(&self, table: &ExportTable) -> bool {
        self.table.version == table.version
    }

    /// What the client may use now, sorted by name.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// What it may use once that can be opened, sorted by name.
    pub fn failed(&self) -> &[FailedVolume] {
        &self.failed
    }

    /// Whether there is a volume that the client may use, be it now or once it can be opened.
    pub fn is_let_in(&self) -> bool {
        !(self.grants.is_empty() && self.failed.is_empty())
    }

    /// The place of a volume in [`Self::grants`].
    pub fn index_of(&self, volume: VolumeId) -> Option<usize> {
        self.grants.iter().position(|grant| grant.volume == volume)
    }

    pub fn by_name(&self, name: &[u8]) -> Option<&Grant> {
        self.grants
            .iter()
            .find(|grant| grant.fs.name().as_bytes() == name)
    }

    pub fn failed_by_name(&self, name: &[u8]) -> Option<&FailedVolume> {
        self.failed
            .iter()
            .find(|failed| failed.name.as_bytes() == name)
    }

    /// Whether this is a volume that the client may use once it can be opened.
    pub fn is_failed(&self, volume: VolumeId) -> bool {
        self.failed.iter().any(|failed| failed.volume == volume)
    }

    /// Whether the volume is exported, to whomever.
    pub fn is_exported(&self, volume: VolumeId) -> bool {
        let mut exports = self.table.exports.iter();
        exports.any(|export| export.volume.id() == volume)
    }

    pub fn table(&self) -> &ExportTable {
        &self.table
    }
}

/// The table that is in force.
pub struct Exports {
    current: ArcSwap<ExportTable>,
    version_next: AtomicU64,
}

impl Exports {
    pub fn new(exports: Vec<Export>) -> Self {
        Self {
            current: ArcSwap::from_pointee(sorted(0, exports)),
            version_next: AtomicU64::new(1),
        }
    }

    /// Puts a new table in force, for connections that are open too.
    pub fn replace(&self, exports: Vec<Export>) {
        let version = self.version_next.fetch_add(1, Ordering::Relaxed);
        self.current.store(Arc::new(sorted(version, exports)));
    }

    pub fn current(&self) -> Arc<ExportTable> {
        self.current.load_full()
    }

    /// Whether `view` still shows what is in force.
    pub fn is_current(&self, view: &PeerView) -> bool {
        view.is_of(&self.current.load())
    }
}

fn sorted(version: u64, mut exports: Vec<Export>) -> ExportTable {
    exports.sort_by(|a, b| a.volume.name().cmp(b.volume.name()));
    ExportTable { version, exports }
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
