//! The keys of the cluster's map: docs/reference/cluster-map.md.
//!
//! Owns: how a key is made, and which of them a node without a member of etcd may write. Nobody else writes one.
//! Must not know: the values, how rights are given in etcd.
//!
//! A key that is in neither [`Keys::of_all_nodes`] nor [`Keys::of_node`] is guarded: what lets somebody in, or says who has rights
//! and keys, comes from nodes with a member of etcd alone. So a new key is guarded until somebody says why it need not be.

use std::net::IpAddr;

use cairn_base::{DiskId, NodeId, VolumeId};

use crate::coordinator::{Key, KeyRange};

/// All clusters in one etcd are below this.
const ROOT: &str = "/cairn/";

/// The most bytes that the name of a cluster, node or volume may have.
pub const NAME_LEN_BYTES_MAX: usize = 63;

/// Folders in which every node writes.
const OF_ALL_NODES: [&str; 8] = [
    "disks",
    "volumes",
    "address-pools",
    "address-holders",
    "snapshot-groups",
    "names/volume",
    "names/address",
    "names/iscsi-group",
];
/// Folders in which each node writes the key that is called as itself.
const OF_ONE_NODE: [&str; 4] = ["alive", "iscsi", "disk-adds", "authority-notes"];

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// Things whose names are unique in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
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

    /// Keys that every node of the cluster writes: with them volumes are kept and served. They say where data is and who serves it.
    pub fn of_all_nodes(&self) -> Vec<KeyRange> {
        let mut ranges: Vec<KeyRange> = OF_ALL_NODES.iter().map(|it| self.below(it)).collect();
        let single = [
            self.classes(),
            self.logouts(),
            self.tiers(),
            self.maintenance(),
            self.secrets_key(),
            self.next_volume(),
        ];
        ranges.extend(single.map(KeyRange::One));
        ranges
    }

    /// Keys that one node writes, beside those: what it says of itself, and of nobody else.
    pub fn of_node(&self, node: NodeId) -> Vec<KeyRange> {
        let own = [
            self.alive(node),
            self.iscsi(node),
            self.disk_adds(node),
            self.rotation_note(node),
        ];
        own.map(KeyRange::One).to_vec()
    }

    /// Whether nobody but nodes with a member of etcd writes this.
    pub fn is_guarded(&self, key: &Key) -> bool {
        let mut own = OF_ONE_NODE.iter().map(|folder| self.below(folder));
        let is_open = own.any(|range| range.contains(key))
            || self.of_all_nodes().iter().any(|range| range.contains(key));
        self.all().contains(key) && !is_open
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

    /// That a node has done what the phase of the rotation asks; there while its lease lives.
    pub fn rotation_note(&self, node: NodeId) -> Key {
        self.key(format_args!("authority-notes/{node}"))
    }

    pub fn rotation_notes(&self) -> KeyRange {
        self.below("authority-notes")
    }

    /// Where a node serves iSCSI.
    pub fn iscsi(&self, node: NodeId) -> Key {
        self.key(format_args!("iscsi/{node}"))
    }

    pub fn all_iscsi(&self) -> KeyRange {
        self.below("iscsi")
    }

    /// Written with each disk that a node adds: who removes the node, or has it drain, sees by it that none came in between.
    pub fn disk_adds(&self, node: NodeId) -> Key {
        self.key(format_args!("disk-adds/{node}"))
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

    /// The space that is set aside on the disks for files of the volume.
    pub fn reserved(&self, volume: VolumeId) -> Key {
        self.key(format_args!("volumes/{:010}/reserved", volume.0))
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

    /// The copy that the map was restored from, if it was.
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

    pub fn name(&self, of: NameKind, name: &str) -> Key {
        let folder = match of {
            NameKind::Node => "node",
            NameKind::Volume => "volume",
            NameKind::Address => "address",
            NameKind::IscsiGroup => "iscsi-group",
        };
        self.key(format_args!("names/{folder}/{name}"))
    }

    pub fn token(&self, id: &str) -> Key {
        self.key(format_args!("tokens/{id}"))
    }

    pub fn tokens(&self) -> KeyRange {
        self.below("tokens")
    }
}

/// Whether this may name a cluster, node or volume: letters, digits, `-`, `_` and `.`, beginning with a
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

    /// Who writes a key.
    #[derive(Debug, PartialEq)]
    enum By {
        /// Nodes with a member of etcd.
        Members,
        /// The node that it is of.
        Own,
        All,
    }

    /// A key for each function of [`Keys`] that makes one, who may write it, and why not fewer or more.
    fn table(keys: &Keys) -> Vec<(&'static str, Key, By)> {
        let (node, volume) = (NodeId(7), VolumeId(7));
        let address = "10.0.0.1".parse().unwrap();
        vec![
            // Another generation has all nodes begin anew: an operator wants that.
            ("cluster", keys.cluster(), By::Members),
            // Who is a node, the name in its certificate, who is next to get a member of etcd and the key of the CA.
            ("node", keys.node(node), By::Members),
            // Whose certificates are revoked.
            ("removed", keys.removed(node), By::Members),
            // Which CA all nodes trust.
            ("rotation", keys.rotation(), By::Members),
            // A step that a node took: a false one holds up others or cuts that node off, and lets nobody in.
            ("rotation_note", keys.rotation_note(node), By::Own),
            // Members alone start again.
            ("member_restart", keys.member_restart(), By::Members),
            // Who is away is not the next to get a member: nobody says so of another one.
            ("alive", keys.alive(node), By::Own),
            ("iscsi", keys.iscsi(node), By::Own),
            ("disk_adds", keys.disk_adds(node), By::Own),
            // Where data is: owners of volumes, which are any nodes, read and change that.
            ("disk", keys.disk(DiskId(7)), By::All),
            ("volume", keys.volume(volume), By::All),
            ("owner", keys.owner(volume), By::All),
            ("epoch", keys.epoch(volume), By::All),
            ("log", keys.log(volume), By::All),
            ("left", keys.left(volume), By::All),
            ("usage", keys.usage(volume), By::All),
            ("reserved", keys.reserved(volume), By::All),
            ("volume_address", keys.volume_address(volume), By::All),
            ("preferred", keys.preferred(volume), By::All),
            ("next_volume", keys.next_volume(), By::All),
            ("group", keys.group(7), By::All),
            ("address_pool", keys.address_pool("p"), By::All),
            ("address_holder", keys.address_holder(address), By::All),
            // How data is served and kept; nobody is let in by it.
            ("classes", keys.classes(), By::All),
            ("tiers", keys.tiers(), By::All),
            ("maintenance", keys.maintenance(), By::All),
            // Wrapped with a master key that nodes have: a false one makes secrets unreadable, and opens none.
            ("secrets_key", keys.secrets_key(), By::All),
            // Any node logs people out. A session whose entry is removed works until it would have ended: 12 hours at most.
            ("logouts", keys.logouts(), By::All),
            // The copy that the map was restored from: the node that restores it has all rights.
            ("recovered", keys.recovered(), By::Members),
            // Who may change everything over the admin API.
            ("users", keys.users(), By::Members),
            // Which node a name leads to, when another machine takes its place.
            ("name", keys.name(NameKind::Node, "n"), By::Members),
            // Claims: a false one keeps a name or number from others.
            ("name", keys.name(NameKind::Volume, "v"), By::All),
            ("name", keys.name(NameKind::Address, "10.0.0.1"), By::All),
            ("name", keys.name(NameKind::IscsiGroup, "1"), By::All),
            // Who may join.
            ("token", keys.token("0"), By::Members),
        ]
    }

    #[test]
    fn each_key_says_who_may_write_it() {
        let keys = Keys::new("home");
        let all = keys.of_all_nodes();
        let (own, other) = (keys.of_node(NodeId(7)), keys.of_node(NodeId(8)));
        let table = table(&keys);
        for (made_by, key, want) in &table {
            let in_any = |ranges: &[KeyRange]| ranges.iter().any(|range| range.contains(key));
            let by = match (in_any(&all), in_any(&own)) {
                (true, _) => By::All,
                (false, true) => By::Own,
                (false, false) => By::Members,
            };
            assert_eq!(by, *want, "{made_by} {key}");
            assert_eq!(keys.is_guarded(key), *want == By::Members, "{key}");
            assert!(!in_any(&other), "{key} is of one node alone");
        }
        assert!(!keys.is_guarded(&Key::new("/cairn/other/users")));

        // One that is made here and has no row is one that nobody has thought about.
        let source = include_str!("keys.rs");
        let code = source.split("#[cfg(test)]").next().unwrap();
        let functions = code.split("pub fn ").skip(1).filter_map(|text| {
            let head = text.split('{').next()?;
            let is_key = head.trim_end().ends_with("-> Key");
            is_key.then(|| head.split('(').next().unwrap())
        });
        let made: Vec<&str> = functions.collect();
        assert!(
            made.contains(&"token") && made.contains(&"users"),
            "{made:?}"
        );
        for name in made {
            let has_row = table.iter().any(|(made_by, ..)| *made_by == name);
            assert!(
                has_row,
                "Keys::{name} has no row that says who may write it"
            );
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
