//! The pool file: which disks and volumes there are. Layout: docs/reference/formats/pool.md.
//!
//! Owns: the state as plain data, its checks, its encoding.
//! Must not know: I/O; `truth` reads and writes it.

use std::collections::BTreeSet;
use std::fmt;

use cairn_base::{DiskId, PoolId, Timestamp, VolumeId, crc32c};
use cairn_config::{
    CLIENTS_PER_EXPORT_MAX, ClientNet, DATA_FOLDERS_MAX, ExportRule, VolumeName, VolumeSettings,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A pool file is not longer than this, in bytes.
pub const POOL_FILE_LEN_BYTES_MAX: u64 = 8 << 20;
/// Most volumes of a pool.
pub const VOLUMES_MAX: usize = 128;
/// The version that this program writes; it reads all up to it.
const SCHEMA: u32 = 3;
/// Most disks that left which are remembered; above it the oldest are forgotten.
const LEFT_MAX: usize = 256;
/// Most deleted volumes that are remembered; above it the oldest are forgotten.
const DELETED_MAX: usize = 1024;
/// Volumes of two copies that went on without one another may come together.
pub const VOLUMES_READ_MAX: usize = 2 * VOLUMES_MAX;
const MAGIC: &str = "cairn-pool";
/// No version that was counted up to comes near this, and one can be added to any below.
const VERSION_MAX: u64 = 1 << 62;

/// Signs the handles of files. `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey(pub u128);

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

impl Serialize for HandleKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for HandleKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

/// A member of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDisk {
    pub id: DiskId,
    /// The folder it was last seen at; only a hint, the identity file in it decides.
    pub label: String,
    pub added: Timestamp,
    /// Nothing new is put on it, and what is there goes to others.
    #[serde(default)]
    pub draining: bool,
    /// Another one took its place: it is removed when nothing is on it any more.
    #[serde(default)]
    pub replaced: bool,
    /// It is lost, and nothing that was on it is needed: all of it is on others. Such a disk is not missed. Forgotten
    /// before it is used again.
    #[serde(default)]
    pub holds_nothing: bool,
    /// It was added to a running server: looked for at its label when it is not among the data folders.
    #[serde(default)]
    pub by_label: bool,
    /// The highest version of this file that the disk is known to have had; one that comes with an older
    /// version is an old copy of itself.
    #[serde(default)]
    pub seen: u64,
}

impl PoolDisk {
    pub fn new(id: DiskId, label: impl Into<String>, added: Timestamp) -> Self {
        Self {
            id,
            label: label.into(),
            added,
            draining: false,
            replaced: false,
            holds_nothing: false,
            by_label: false,
            seen: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolVolume {
    pub id: VolumeId,
    pub name: VolumeName,
    pub settings: VolumeSettings,
    pub created: Timestamp,
    /// Who may mount it; empty: nobody.
    pub exports: Vec<ExportRule>,
}

impl PoolVolume {
    /// What is remembered of it.
    pub fn deleted(&self) -> DeletedVolume {
        DeletedVolume {
            id: self.id,
            created: self.created,
        }
    }
}

/// A volume that was deleted. Two disks that went on without one another may have given one id to two volumes, so
/// when it was made belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedVolume {
    pub id: VolumeId,
    pub created: Timestamp,
}

/// How far the making of a pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Not every disk has its identity. Such a pool never served anything.
    Forming,
    /// The first volume is not there yet.
    Empty,
    InUse,
}

/// Everything that is kept about a pool outside of its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolState {
    pub pool: PoolId,
    /// Grows by one with every change; of several copies the one with the highest counts.
    pub version: u64,
    pub created: Timestamp,
    pub stage: Stage,
    pub disks: Vec<PoolDisk>,
    /// Disks that were removed: their folders are no mistake, and not used.
    #[serde(default)]
    pub left: Vec<PoolDisk>,
    pub volumes: Vec<PoolVolume>,
    /// Volumes that were deleted: one that another copy of this file still lists is known for it.
    #[serde(default)]
    pub deleted: Vec<DeletedVolume>,
    /// The next volume's id; ids are never reused.
    pub volume_next: VolumeId,
    /// Signs file handles: with another one no client could use what it has open.
    pub handle_key: HandleKey,
}

/// Why bytes are not a pool file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFileError {
    #[error("it does not begin like a pool file")]
    Magic,
    #[error("it has version {found}, this program knows those up to {known}; use a newer program")]
    Version { found: u32, known: u32 },
    #[error("its checksum does not match")]
    Checksum,
    #[error("its content makes no sense: {0}")]
    Content(String),
}

/// Why a change of the pool's volumes was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("there is no volume \"{0}\"")]
    NotFound(VolumeName),
    #[error("there is a volume \"{0}\" already")]
    Exists(VolumeName),
    #[error("a pool has at most {VOLUMES_MAX} volumes")]
    TooManyVolumes,
    #[error("an export has at most {CLIENTS_PER_EXPORT_MAX} rules")]
    TooManyRules,
    #[error(
        "all volumes and rules together take {len_bytes} bytes in the pool file, which has at most \
         {POOL_FILE_LEN_BYTES_MAX}"
    )]
    TooLong { len_bytes: u64 },
    #[error("the export of \"{volume}\" has no rule for {client}")]
    NoRule {
        volume: VolumeName,
        client: ClientNet,
    },
}

impl PoolState {
    pub fn volume(&self, name: &VolumeName) -> Result<&PoolVolume, ChangeError> {
        self.volumes
            .iter()
            .find(|volume| volume.name == *name)
            .ok_or_else(|| ChangeError::NotFound(name.clone()))
    }

    pub fn volume_mut(&mut self, name: &VolumeName) -> Result<&mut PoolVolume, ChangeError> {
        self.volumes
            .iter_mut()
            .find(|volume| volume.name == *name)
            .ok_or_else(|| ChangeError::NotFound(name.clone()))
    }

    pub fn disk_mut(&mut self, id: DiskId) -> Option<&mut PoolDisk> {
        self.disks.iter_mut().find(|disk| disk.id == id)
    }

    /// Takes a disk out of the pool; it is remembered as one that left.
    pub fn remove_disk(&mut self, id: DiskId) {
        let (gone, kept) = std::mem::take(&mut self.disks)
            .into_iter()
            .partition(|disk| disk.id == id);
        self.disks = kept;
        self.left.extend(Vec::<PoolDisk>::into_iter(gone));
        let surplus = self.left.len().saturating_sub(LEFT_MAX);
        self.left.drain(..surplus);
    }

    /// Takes a volume out; it is remembered as deleted.
    pub fn delete_volume(&mut self, id: VolumeId) {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.volumes)
            .into_iter()
            .partition(|volume| volume.id == id);
        self.volumes = kept;
        self.deleted.extend(gone.iter().map(PoolVolume::deleted));
        let surplus = self.deleted.len().saturating_sub(DELETED_MAX);
        self.deleted.drain(..surplus);
    }

    /// Takes in a volume that another copy lists and this one does not, under another name if there is one of its
    /// name by now. Says under which.
    pub fn bring_back(&mut self, volume: &PoolVolume) -> Option<VolumeName> {
        if self.volumes.len() >= VOLUMES_READ_MAX {
            return None;
        }
        let (name, id) = (&volume.name, volume.id.0);
        let short: String = name.as_str().chars().take(40).collect();
        let others = (1..=VOLUMES_READ_MAX).map(|count| format!("{short}-{id}-{count}"));
        let mut names = [name.to_string(), format!("{short}-{id}")]
            .into_iter()
            .chain(others)
            .filter_map(|name| name.parse::<VolumeName>().ok());
        let name = names.find(|name| self.volume(name).is_err())?;
        self.deleted.retain(|deleted| deleted.id != volume.id);
        let after = VolumeId(id.saturating_add(1));
        self.volume_next = self.volume_next.max(after);
        self.stage = Stage::InUse;
        self.volumes.push(PoolVolume {
            name: name.clone(),
            ..volume.clone()
        });
        Some(name)
    }

    /// Takes the next volume id; the state must be saved before the id is used.
    pub fn take_volume_id(&mut self) -> VolumeId {
        let id = self.volume_next;
        self.volume_next = VolumeId(id.0.saturating_add(1));
        id
    }

    /// Whether this can be saved, and read again.
    pub fn check_len(&self) -> Result<(), ChangeError> {
        match encode_pool(self).len() as u64 {
            len_bytes if len_bytes > POOL_FILE_LEN_BYTES_MAX => {
                Err(ChangeError::TooLong { len_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Whether a volume of this name could be added.
    pub fn check_new(&self, name: &VolumeName) -> Result<(), ChangeError> {
        if self.volume(name).is_ok() {
            return Err(ChangeError::Exists(name.clone()));
        }
        if self.volumes.len() >= VOLUMES_MAX {
            return Err(ChangeError::TooManyVolumes);
        }
        Ok(())
    }

    /// Adds rules; each replaces the one that has the same client.
    pub fn set_rules(
        &mut self,
        name: &VolumeName,
        rules: &[ExportRule],
    ) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        for rule in rules {
            match volume
                .exports
                .iter_mut()
                .find(|there| there.client == rule.client)
            {
                Some(there) => *there = rule.clone(),
                None => volume.exports.push(rule.clone()),
            }
        }
        if volume.exports.len() > CLIENTS_PER_EXPORT_MAX {
            return Err(ChangeError::TooManyRules);
        }
        volume.exports.sort_by_key(|rule| rule.client);
        Ok(())
    }

    /// Removes the rules of these clients; all rules when there is none in the list.
    pub fn remove_rules(
        &mut self,
        name: &VolumeName,
        clients: &[ClientNet],
    ) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        if clients.is_empty() {
            volume.exports.clear();
        }
        for client in clients {
            let place = volume
                .exports
                .iter()
                .position(|rule| rule.client == *client);
            let place = place.ok_or_else(|| ChangeError::NoRule {
                volume: name.clone(),
                client: *client,
            })?;
            volume.exports.remove(place);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PoolFileError> {
        let refuse = |what: &str| Err(PoolFileError::Content(what.to_owned()));
        if self.version > VERSION_MAX {
            return refuse("its version");
        }
        if self.disks.is_empty() || self.disks.len() > DATA_FOLDERS_MAX {
            return refuse("the number of disks");
        }
        if !distinct(self.disks.iter().map(|disk| disk.id)) {
            return refuse("two disks have one id");
        }
        if self.left.len() > LEFT_MAX {
            return refuse("the number of disks that left");
        }
        if self.deleted.len() > DELETED_MAX {
            return refuse("the number of deleted volumes");
        }
        if self.volumes.len() > VOLUMES_READ_MAX {
            return refuse("the number of volumes");
        }
        if !distinct(self.volumes.iter().map(|volume| volume.id))
            || !distinct(self.volumes.iter().map(|volume| volume.name.as_str()))
        {
            return refuse("two volumes have one id or name");
        }
        if self
            .volumes
            .iter()
            .any(|volume| volume.id >= self.volume_next)
        {
            return refuse("a volume has an id that was not given yet");
        }
        let rules_max = self.volumes.iter().map(|volume| volume.exports.len()).max();
        if rules_max.unwrap_or(0) > CLIENTS_PER_EXPORT_MAX {
            return refuse("the number of rules of an export");
        }
        Ok(())
    }
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    let mut items = items;
    items.all(|item| seen.insert(item))
}

/// The bytes of a pool file: a line with magic, version and the CRC32C of the rest, then JSON.
pub fn encode_pool(state: &PoolState) -> Vec<u8> {
    // Every field is a string, a number or a list of them, which JSON always can say.
    let json = serde_json::to_string_pretty(state).unwrap_or_default();
    encode_file(MAGIC, SCHEMA, &json)
}

/// Reads a pool file. Magic, version and checksum have the same place in every version.
pub fn decode_pool(bytes: &[u8]) -> Result<PoolState, PoolFileError> {
    let json = decode_file(bytes, MAGIC, SCHEMA)?;
    let mut state: PoolState =
        serde_json::from_slice(json).map_err(|error| PoolFileError::Content(error.to_string()))?;
    for volume in &mut state.volumes {
        // Older programs could keep `::ffff:10.1.2.3` behind `10.1.2.3`, and only the latter let anybody in.
        let mut seen = BTreeSet::new();
        volume.exports.retain(|rule| seen.insert(rule.client));
    }
    state.check()?;
    Ok(state)
}

/// A line with magic, version and the CRC32C of the rest, then the rest.
pub fn encode_file(magic: &str, schema: u32, json: &str) -> Vec<u8> {
    let crc = crc32c(json.as_bytes());
    format!("{magic} {schema} {crc:08x}\n{json}").into_bytes()
}

/// What follows the first line of a file of [`encode_file`], of a version up to `schema_max`.
pub fn decode_file<'a>(
    bytes: &'a [u8],
    magic: &str,
    schema_max: u32,
) -> Result<&'a [u8], PoolFileError> {
    let newline = bytes
        .iter()
        .take(64)
        .position(|byte| *byte == b'\n')
        .ok_or(PoolFileError::Magic)?;
    let (head, json) = bytes
        .split_at_checked(newline)
        .ok_or(PoolFileError::Magic)?;
    let json = json.get(1..).ok_or(PoolFileError::Magic)?;
    let head = std::str::from_utf8(head).map_err(|_| PoolFileError::Magic)?;
    let mut words = head.split(' ');
    let (Some(found), Some(schema), Some(crc), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(PoolFileError::Magic);
    };
    if found != magic {
        return Err(PoolFileError::Magic);
    }
    let schema = schema.parse::<u32>().map_err(|_| PoolFileError::Magic)?;
    if crc != format!("{:08x}", crc32c(json)) {
        return Err(PoolFileError::Checksum);
    }
    if !(1..=schema_max).contains(&schema) {
        return Err(PoolFileError::Version {
            found: schema,
            known: schema_max,
        });
    }
    Ok(json)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn example(disk_count: u128) -> PoolState {
        let created = Timestamp::new(1_700_000_000, 5);
        PoolState {
            pool: PoolId(77),
            version: 3,
            created,
            stage: Stage::InUse,
            disks: (1..=disk_count)
                .map(|id| PoolDisk::new(DiskId(id), format!("/data/{id}"), created))
                .collect(),
            left: Vec::new(),
            volumes: vec![PoolVolume {
                id: VolumeId(1),
                name: "main".parse().unwrap(),
                settings: VolumeSettings::default(),
                created,
                exports: ExportRule::this_machine(),
            }],
            deleted: Vec::new(),
            volume_next: VolumeId(2),
            handle_key: HandleKey(u128::MAX - 1),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let state = example(6);
        assert_eq!(decode_pool(&encode_pool(&state)), Ok(state));
    }

    #[test]
    fn the_first_version_is_read() {
        let mut json = serde_json::to_value(example(2)).unwrap();
        json.as_object_mut().unwrap().remove("left");
        json.as_object_mut().unwrap().remove("deleted");
        for disk in json["disks"].as_array_mut().unwrap() {
            for field in ["draining", "replaced", "holds_nothing", "by_label", "seen"] {
                assert!(disk.as_object_mut().unwrap().remove(field).is_some());
            }
        }
        let first = encode_file(MAGIC, 1, &json.to_string());
        assert_eq!(decode_pool(&first), Ok(example(2)));
    }

    #[test]
    fn rules_for_ipv4_clients_that_older_programs_kept_as_ipv6_are_read() {
        let mut json = serde_json::to_value(example(1)).unwrap();
        let rules = json["volumes"][0]["exports"].as_array_mut().unwrap();
        for (client, access) in [("::ffff:127.0.0.0/104", "ro"), ("::ffff:10.1.2.3", "rw")] {
            let mut rule = rules[0].clone();
            rule["client"] = client.into();
            rule["access"] = access.into();
            rules.push(rule);
        }
        let kept = decode_pool(&encode_file(MAGIC, SCHEMA, &json.to_string())).unwrap();
        let mut want = ExportRule::this_machine();
        want.push(ExportRule {
            client: "10.1.2.3".parse().unwrap(),
            ..want[0].clone()
        });
        assert_eq!(kept.volumes[0].exports, want);
    }

    #[test]
    fn disks_that_left_are_remembered() {
        let mut state = example(3);
        state.remove_disk(DiskId(2));
        assert_eq!((state.disks.len(), state.left.len()), (2, 1));
        assert_eq!(state.left[0].id, DiskId(2));
        assert_eq!(decode_pool(&encode_pool(&state)), Ok(state));
    }

    #[test]
    fn deleted_volumes_are_remembered() {
        let mut state = example(1);
        let main = state.volumes[0].clone();
        state.delete_volume(main.id);
        assert_eq!(state.deleted, [main.deleted()]);
        assert_eq!(decode_pool(&encode_pool(&state)), Ok(state.clone()));
        for id in 2..=DELETED_MAX as u32 + 1 {
            state.volumes.push(PoolVolume {
                id: VolumeId(id),
                ..main.clone()
            });
            state.delete_volume(VolumeId(id));
        }
        assert_eq!(state.deleted.len(), DELETED_MAX);
        assert_eq!(state.deleted[0].id, VolumeId(2), "the oldest is forgotten");
    }

    #[test]
    fn a_volume_that_comes_back_gets_another_name_if_there_is_one_of_its() {
        let mut state = example(1);
        let main = PoolVolume {
            id: VolumeId(7),
            ..state.volumes[0].clone()
        };
        let name = state.bring_back(&main).unwrap();
        assert_eq!(name.as_str(), "main-7");
        assert_eq!(state.volume_next, VolumeId(8));
        assert_eq!(decode_pool(&encode_pool(&state)), Ok(state));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let good = encode_pool(&example(2));
        for offset in 0..good.len() {
            let mut bad = good.clone();
            bad[offset] ^= 0x01;
            // In the place of the version another one may be that is read, too, and that says the same.
            let read = decode_pool(&bad);
            assert!(read.is_err() || read == Ok(example(2)), "byte {offset}");
            assert!(decode_pool(&good[..offset]).is_err(), "cut at {offset}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        type Spoil = fn(&mut PoolState);
        let cases: &[(&str, Spoil)] = &[
            ("no disk", |state| state.disks.clear()),
            ("disk twice", |state| {
                state.disks.push(state.disks[0].clone())
            }),
            ("volume twice", |state| {
                state.volumes.push(state.volumes[0].clone())
            }),
            ("id from the future", |state| {
                state.volume_next = VolumeId(1)
            }),
            // The next change would count on, and end the server.
            ("no version after it", |state| state.version = u64::MAX),
        ];
        for (name, spoil) in cases {
            let mut state = example(2);
            spoil(&mut state);
            let result = decode_pool(&encode_pool(&state));
            assert!(matches!(result, Err(PoolFileError::Content(_))), "{name}");
        }
        let newer = String::from_utf8(encode_pool(&example(1))).unwrap();
        let newer = newer.replacen("cairn-pool 3", "cairn-pool 4", 1);
        assert_eq!(
            decode_pool(newer.as_bytes()),
            Err(PoolFileError::Version { found: 4, known: 3 })
        );
    }

    #[test]
    fn rules_are_set_and_removed() {
        let mut state = example(1);
        let main: VolumeName = "main".parse().unwrap();
        let other: VolumeName = "other".parse().unwrap();
        let net: ClientNet = "10.0.0.0/8".parse().unwrap();
        let rule = ExportRule::new(net);
        state
            .set_rules(&main, &[rule.clone(), rule.clone()])
            .unwrap();
        assert_eq!(state.volumes[0].exports.len(), 3);
        assert_eq!(
            state.set_rules(&other, &[]),
            Err(ChangeError::NotFound(other))
        );
        state.remove_rules(&main, &[net]).unwrap();
        assert_eq!(state.volumes[0].exports.len(), 2);
        assert!(matches!(
            state.remove_rules(&main, &[net]),
            Err(ChangeError::NoRule { .. })
        ));
        state.remove_rules(&main, &[]).unwrap();
        assert!(state.volumes[0].exports.is_empty());
        let many: Vec<ExportRule> = (0..=CLIENTS_PER_EXPORT_MAX)
            .map(|i| format!("10.0.{}.{}", i / 256, i % 256).parse().unwrap())
            .map(ExportRule::new)
            .collect();
        assert_eq!(
            state.set_rules(&main, &many),
            Err(ChangeError::TooManyRules)
        );
    }

    #[test]
    fn what_could_not_be_read_again_is_refused() {
        let mut state = example(1);
        let rules = (0..CLIENTS_PER_EXPORT_MAX).map(|i| {
            let net = format!("2001:db8:aaaa:bbbb:cccc:dddd:eeee:{:x}", 0x1000 + i);
            let mut rule = ExportRule::new(net.parse().unwrap());
            (rule.anonymous_uid, rule.anonymous_gid) = (u32::MAX - 1, u32::MAX - 1);
            rule
        });
        let volume = PoolVolume {
            exports: rules.collect(),
            ..state.volumes[0].clone()
        };
        state.volumes = (0..VOLUMES_MAX as u32)
            .map(|id| PoolVolume {
                id: VolumeId(id),
                name: format!("{id:063}").parse().unwrap(),
                ..volume.clone()
            })
            .collect();
        state.volume_next = VolumeId(VOLUMES_MAX as u32);
        let len_bytes = encode_pool(&state).len() as u64;
        assert!(len_bytes > POOL_FILE_LEN_BYTES_MAX, "{len_bytes}");
        assert_eq!(state.check_len(), Err(ChangeError::TooLong { len_bytes }));
        state.volumes.truncate(VOLUMES_MAX / 2);
        assert_eq!(state.check_len(), Ok(()));
    }

    #[test]
    fn volume_ids_and_names_are_given_once() {
        let mut state = example(1);
        assert_eq!(state.take_volume_id(), VolumeId(2));
        assert_eq!(state.take_volume_id(), VolumeId(3));
        let main: VolumeName = "main".parse().unwrap();
        assert_eq!(state.check_new(&main), Err(ChangeError::Exists(main)));
        assert_eq!(state.check_new(&"new".parse().unwrap()), Ok(()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_pool(&bytes);
        }
    }
}
