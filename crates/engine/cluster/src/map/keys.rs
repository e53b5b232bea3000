//! The keys of the cluster's map: docs/reference/cluster-map.md.
//!
//! Owns: how a key is made. Nobody else writes one.
//! Must not know: the values.

use std::net::IpAddr;

use cairn_base::{DiskId, NodeId, VolumeId};

use crate::coordinator::{Key, KeyRange};

/// All clusters in one etcd are below this.
const ROOT: &str = "/cairn/";

/// The most bytes that the name of a cluster, node or volume may have.
pub const NAME_LEN_BYTES_MAX: usize = 63;

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// Things whose names are unique in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Node,
    Volume,
    /// The address of a node, internal or external.
    Address,
    /// The number of a node's target port group.
    IscsiGroup,
}

impl Keys {
    /// `cluster` is a valid name: see [`is_name`].
    pub fn new(cluster: &str) -> Self {
        Self {
            prefix: format!("{ROOT}{cluster}/"),
        }
    }

    /// What all keys of the cluster begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn all(&self) -> KeyRange {
        KeyRange::Prefix(self.prefix.clone())
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> Key {
        Key::new(format!("{}{rest}", self.prefix))
    }

    fn below(&self, folder: &str) -> KeyRange {
        KeyRange::Prefix(format!("{}{folder}/", self.prefix))
    }

    pub fn cluster(&self) -> Key {
        self.key(format_args!("cluster"))
    }

    pub fn node(&self, node: NodeId) -> Key {
        self.key(format_args!("nodes/{node}"))
    }

    pub fn nodes(&self) -> KeyRange {
        self.below("nodes")
    }

    /// That a node was removed: its certificates are not to be taken until they have expired.
    pub fn removed(&self, node: NodeId) -> Key {
        self.key(format_args!("removed/{node}"))
    }

    pub fn all_removed(&self) -> KeyRange {
        self.below("removed")
    }

    /// How far one CA has taken the place of another.
    pub fn rotation(&self) -> Key {
        self.key(format_args!("authority-rotation"))
    }

    /// The node whose member of etcd starts again now, so that no two do.
    pub fn member_restart(&self) -> Key {
        self.key(format_args!("etcd-restart"))
    }

    /// There while the node's lease lives.
    pub fn alive(&self, node: NodeId) -> Key {
        self.key(format_args!("alive/{node}"))
    }

    pub fn all_alive(&self) -> KeyRange {
        self.below("alive")
    }

    pub fn disk(&self, disk: DiskId) -> Key {
        self.key(format_args!("disks/{disk}"))
    }

    pub fn disks(&self) -> KeyRange {
        self.below("disks")
    }

    pub fn volume(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/record", volume.0))
    }

    pub fn owner(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/owner", volume.0))
    }

    pub fn epoch(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/epoch", volume.0))
    }

    pub fn log(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/log", volume.0))
    }

    /// Disks that drain and have nothing of the volume any more; there as long as its owner stays the same.
    pub fn left(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/left", volume.0))
    }

    /// What each node has of the volume, as its owner told last.
    pub fn usage(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/usage", volume.0))
    }

    /// The address that follows the volume's owner.
    pub fn volume_address(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/address", volume.0))
    }

    /// Addresses that nodes share.
    pub fn address_pool(&self, name: &str) -> Key {
        self.key(format_args!("address-pools/{name}"))
    }

    pub fn address_pools(&self) -> KeyRange {
        self.below("address-pools")
    }

    /// The node that has an address of a pool now; there while its lease lives.
    pub fn address_holder(&self, address: IpAddr) -> Key {
        self.key(format_args!("address-holders/{address}"))
    }

    pub fn address_holders(&self) -> KeyRange {
        self.below("address-holders")
    }

    /// The node that should own the volume, if an operator wants one.
    pub fn preferred(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/preferred", volume.0))
    }

    pub fn volumes(&self) -> KeyRange {
        self.below("volumes")
    }

    /// The volume that a key is of, and what it holds of it.
    pub fn parse_volume<'k>(&self, key: &'k Key) -> Option<(VolumeId, &'k str)> {
        let rest = key.as_str().strip_prefix(&self.prefix)?;
        let (number, field) = rest.strip_prefix("volumes/")?.split_once('/')?;
        Some((VolumeId(number.parse().ok()?), field))
    }

    /// All classes of service, in one value: there are few, and they change seldom.
    pub fn classes(&self) -> Key {
        self.key(format_args!("classes"))
    }

    /// What the map was made anew of, if it was.
    pub fn recovered(&self) -> Key {
        self.key(format_args!("recovered"))
    }

    /// All users of the admin API, in one value.
    pub fn users(&self) -> Key {
        self.key(format_args!("users"))
    }

    /// All sessions of the admin API that were ended before their time, in one value.
    pub fn logouts(&self) -> Key {
        self.key(format_args!("logouts"))
    }

    /// All tiers, in one value.
    pub fn tiers(&self) -> Key {
        self.key(format_args!("tiers"))
    }

    /// When the cluster's own work is done.
    pub fn maintenance(&self) -> Key {
        self.key(format_args!("maintenance"))
    }

    /// The key of the cluster's secrets, wrapped.
    pub fn secrets_key(&self) -> Key {
        self.key(format_args!("secrets-key"))
    }

    /// Volumes of which snapshots of one instant are being taken.
    pub fn group(&self, group: u64) -> Key {
        self.key(format_args!("snapshot-groups/{group:016x}"))
    }

    pub fn next_volume(&self) -> Key {
        self.key(format_args!("next-volume"))
    }

    pub fn name(&self, of: Named, name: &str) -> Key {
        let folder = match of {
            Named::Node => "node",
            Named::Volume => "volume",
            Named::Address => "address",
            Named::IscsiGroup => "iscsi-group",
        };
        self.key(format_args!("names/{folder}/{name}"))
    }

    pub fn token(&self, id: &str) -> Key {
        self.key(format_args!("tokens/{id}"))
    }

    pub fn tokens(&self) -> KeyRange {
        self.below("tokens")
    }

    pub fn certificate(&self, name: &str) -> Key {
        self.key(format_args!("certificates/{name}"))
    }

    pub fn certificates(&self) -> KeyRange {
        self.below("certificates")
    }
}

/// Whether this may name a cluster, node, volume or certificate: letters, digits, `-`, `_` and `.`, beginning with a
/// letter or digit. Nothing that would end a part of a key.
pub fn is_name(text: &str) -> bool {
    let begins_well = text
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    begins_well && text.len() <= NAME_LEN_BYTES_MAX && text.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_or_refused() {
        for (name, want) in [
            ("home", true),
            ("node-1.rack_2", true),
            ("7", true),
            ("", false),
            ("-a", false),
            ("a/b", false),
            ("a b", false),
            ("ä", false),
            (&"a".repeat(63), true),
            (&"a".repeat(64), false),
        ] {
            assert_eq!(is_name(name), want, "{name:?}");
        }
    }

    #[test]
    fn a_volumes_keys_are_parsed_back_and_others_are_not() {
        let keys = Keys::new("home");
        assert_eq!(
            keys.parse_volume(&keys.log(VolumeId(7))),
            Some((VolumeId(7), "log"))
        );
        assert_eq!(
            keys.log(VolumeId(7)).as_str(),
            "/cairn/home/volumes/0000000007/log"
        );
        for other in [
            "/cairn/home/cluster",
            "/cairn/other/volumes/0000000007/log",
            "/cairn/home/volumes/x/log",
        ] {
            assert_eq!(keys.parse_volume(&Key::new(other)), None, "{other}");
        }
    }
}
