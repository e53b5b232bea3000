//! The pool file: which disks and volumes there are. Layout: docs/reference/formats/pool.md.
//!
//! Owns: the state as plain data, its limits, its encoding.
//! Must not know: I/O, and when the state changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cairn_base::{
    DiskId, DiskRole, DomainPath, Media, NodeId, PoolId, TierId, Timestamp, VolumeId,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::copies::Picked;
use crate::encryption::{KeptSecret, VolumeEncryption, WrappedKey};
use crate::settings::{
    CLASSES_MAX, CLIENTS_PER_EXPORT_MAX, ClassName, ClassSpec, ClientNet, CoolingDays, ExportRule,
    Logouts, Maintenance, PART_LIMITS_MAX, PartLimit, SizeLimit, TIER_URL_LEN_BYTES_MAX, TIERS_MAX,
    TierFilter, TierName, Tiering, USERS_MAX, UserName, UserRecord, VolumeName, VolumePart,
    VolumeSettings, built_in,
};
use crate::text_file::{TextFileError, decode_copy, decode_file, encode_file, json_of};

/// A pool file, which is two copies of the state, is not longer than this, in bytes.
pub const POOL_FILE_LEN_BYTES_MAX: u64 = 16 << 20;
/// Most disks of a pool.
pub const DISKS_MAX: usize = 64;
/// Most read caches of a server.
pub const CACHES_MAX: usize = 8;
/// Most volumes of a pool.
pub const VOLUMES_MAX: usize = 128;
/// Of the format.
const FORMAT_VERSION: u32 = 1;
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

impl HandleKey {
    /// As it is kept as a secret.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// What [`Self::to_text`] made.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_whole = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_whole.then(|| u128::from_str_radix(text, 16));
        number?.ok().map(Self)
    }

    /// As the pool file has it where there is no master key.
    pub fn readable(self) -> KeptSecret {
        KeptSecret::Readable(self.to_text())
    }
}

impl Serialize for HandleKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for HandleKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let key = Self::from_text(&text);
        key.ok_or_else(|| serde::de::Error::custom("a handle key has 32 hexadecimal digits"))
    }
}

/// A member of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDisk {
    pub id: DiskId,
    /// The node that has it: what fails with it.
    pub node: NodeId,
    /// The folder it was last seen at; only a hint, the identity file in it decides.
    pub label: String,
    pub added: Timestamp,
    /// What it is for. It stays as it was when the disk was added.
    #[serde(default, skip_serializing_if = "DiskRole::is_data")]
    pub role: DiskRole,
    /// What kind of device it is, as far as somebody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<Media>,
    /// Nothing new is put on it, and its data goes to others.
    pub draining: bool,
    /// Another one took its place: it is removed when nothing is on it any more.
    pub replaced: bool,
    /// It is lost, and nothing that was on it is needed: all of it is on others. Such a disk is not missed. Forgotten
    /// before it is used again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_nothing: bool,
    /// It was added to a running server: looked for at its label when it is not among the data folders.
    pub by_label: bool,
    /// The highest version of this file that the disk is known to have had; one that comes with an older
    /// version is an old copy of itself.
    pub seen: u64,
}

impl PoolDisk {
    /// Where it is, from the outside in.
    pub fn domain(&self) -> DomainPath {
        DomainPath {
            node: self.node,
            disk: self.id,
        }
    }

    pub fn new(id: DiskId, label: impl Into<String>, added: Timestamp) -> Self {
        Self {
            id,
            node: NodeId::ONLY,
            label: label.into(),
            added,
            role: DiskRole::Data,
            media: None,
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
    /// The class whose rates it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassName>,
    /// Parts of it that have rates of their own, by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<PartLimit>,
    /// `None`: it is not encrypted. That is for ever as it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<VolumeEncryption>,
    /// `None`: its data was never in a tier, or is in none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<VolumeTiering>,
    /// It is deleted, and its store is there for the clones that live in it. Never so of a clone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
}

/// A folder on a faster disk that keeps records of the pool's disks. Nothing is lost with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCache {
    pub id: DiskId,
    pub folder: String,
    /// What it takes of its disk at most.
    pub size_bytes: u64,
    pub added: Timestamp,
}

/// What of a volume goes where. It names its tier as long as data of it may be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeTiering {
    pub tier: TierId,
    pub policy: Tiering,
    pub cooling_days: CoolingDays,
    /// Of which files.
    #[serde(default, skip_serializing_if = "TierFilter::is_all")]
    pub filter: TierFilter,
}

/// An object store that cold segments are kept in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolTier {
    pub id: TierId,
    pub name: TierName,
    /// Its address, without any secret.
    pub url: String,
    /// A file with the credentials, readable for its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<String>,
    pub created: Timestamp,
    /// Deleted volumes whose objects are not all deleted yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleting: Vec<VolumeId>,
}

/// A volume that began as a clone of another, and lives in the store of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolClone {
    /// The volume that the store was made for, which is no clone itself.
    pub store: VolumeId,
    /// Its settings and its encryption are those of the store.
    pub volume: PoolVolume,
}

impl PoolVolume {
    /// The entry that remembers it after its deletion.
    pub fn deleted(&self) -> DeletedVolume {
        DeletedVolume {
            id: self.id,
            created: self.created,
            name: Some(self.name.clone()),
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
    /// What it was called; `None` where that was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VolumeName>,
}

/// What a deletion took out of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A volume with its store.
    Store(VolumeId),
    /// A clone; others are in its store.
    Clone { store: VolumeId },
    /// The volume that a store was made for; clones are in the store.
    OwnVolume { store: VolumeId },
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
    pub left: Vec<PoolDisk>,
    pub volumes: Vec<PoolVolume>,
    /// Volumes that were deleted: one that another copy of this file still lists is known for it.
    pub deleted: Vec<DeletedVolume>,
    /// The next volume's id; ids are never reused.
    pub volume_next: VolumeId,
    /// Signs file handles: with another one no client could use what it has open.
    /// `None` on the disks of a cluster's node, whose folder has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_key: Option<KeptSecret>,
    /// What secrets are wrapped with, itself wrapped with a master key; `None`: there never was one. It stays the same for
    /// ever, and is wrapped anew with other master keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_key: Option<WrappedKey>,
    /// The cluster that the disks belong to. Then the file lists the disks of one node, and the cluster's map has the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterMark>,
    /// Classes of service, beside those that are built in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<ClassName, ClassSpec>,
    /// Who may use the admin API, beside holders of the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub users: BTreeMap<UserName, UserRecord>,
    /// Sessions of the admin API that were ended before their time.
    #[serde(default, skip_serializing_if = "Logouts::is_none")]
    pub logouts: Logouts,
    /// Volumes without a store of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<PoolClone>,
    /// Read caches; in a cluster those of one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<PoolCache>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PoolTier>,
    /// The id of the last tier that was added; ids are never reused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier_last: TierId,
    /// When work is done that can wait, and how often a scrub begins; changed by operators.
    #[serde(default, skip_serializing_if = "Maintenance::is_none")]
    pub maintenance: Maintenance,
}

fn is_zero(id: &TierId) -> bool {
    id.0 == 0
}

/// A place in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterMark {
    pub cluster: PoolId,
    pub node: NodeId,
}

/// Why a change of the pool's volumes was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("there is no volume \"{0}\"")]
    NotFound(VolumeName),
    #[error("there is a volume \"{0}\" already")]
    Exists(VolumeName),
    #[error("the key of volume \"{volume}\" is that of others, too: {}", volumes_in(.others))]
    SharesKey {
        volume: VolumeName,
        others: Vec<VolumeName>,
    },
    #[error("a pool has at most {VOLUMES_MAX} volumes")]
    TooManyVolumes,
    #[error("an export has at most {CLIENTS_PER_EXPORT_MAX} rules")]
    TooManyRules,
    #[error("volume \"{volume}\" has no limit of {part}")]
    NoLimit {
        volume: VolumeName,
        part: VolumePart,
    },
    #[error("the limit of {part} makes no sense: {problem}")]
    LimitProblem { part: VolumePart, problem: String },
    #[error("a volume has limits of at most {PART_LIMITS_MAX} parts")]
    TooManyLimits,
    #[error("there is no class \"{0}\"")]
    NoClass(ClassName),
    #[error("there is a class \"{0}\" already")]
    ClassExists(ClassName),
    #[error("class \"{0}\" is built in, and stays as it is")]
    ClassBuiltIn(ClassName),
    #[error("class \"{class}\" is in use: by {}", volumes_in(.volumes))]
    ClassInUse {
        class: ClassName,
        volumes: Vec<VolumeName>,
    },
    #[error("a pool has at most {CLASSES_MAX} classes")]
    TooManyClasses,
    #[error("there is no tier \"{0}\"")]
    NoTier(TierName),
    #[error("there is a tier \"{0}\" already")]
    TierExists(TierName),
    #[error("a pool has at most {TIERS_MAX} tiers")]
    TooManyTiers,
    #[error("class \"{class}\": {problem}")]
    ClassProblem { class: ClassName, problem: String },
    #[error("volume \"{volume}\" in class \"{class}\": {problem}")]
    ClassOfVolume {
        volume: VolumeName,
        class: ClassName,
        problem: String,
    },
    #[error("there is no user \"{0}\"")]
    NoUser(UserName),
    #[error("there is a user \"{0}\" already")]
    UserExists(UserName),
    #[error("user \"{0}\" was changed by somebody else meanwhile")]
    UserChanged(UserName),
    #[error("a pool has at most {USERS_MAX} users")]
    TooManyUsers,
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

fn volumes_in(volumes: &[VolumeName]) -> String {
    let names: Vec<&str> = volumes.iter().map(VolumeName::as_str).collect();
    names.join(", ")
}

impl PoolState {
    /// What a class says, also a built-in one.
    pub fn class(&self, name: &ClassName) -> Option<&ClassSpec> {
        static UNLIMITED: std::sync::LazyLock<ClassSpec> =
            std::sync::LazyLock::new(ClassSpec::default);
        let found = built_in().get(name).or_else(|| self.classes.get(name));
        found.or_else(|| name.is_internal().then(|| &*UNLIMITED))
    }

    /// What the server's own work keeps to, in bytes per second on each node; 0: no limit.
    pub fn internal_rate(&self) -> u64 {
        let class = self.classes.get(&ClassName::internal());
        class.and_then(|class| class.total_throughput).unwrap_or(0)
    }

    /// What a volume's class says; nothing of one that is not known here.
    pub fn class_of(&self, volume: &PoolVolume) -> Option<&ClassSpec> {
        self.class(volume.class.as_ref()?)
    }

    /// Whether all that is asked of volumes' classes can be had.
    pub fn check_class_of(&self, volume: &PoolVolume) -> Result<(), ChangeError> {
        let Some(class) = &volume.class else {
            return Ok(());
        };
        if class.is_internal() {
            return Err(ChangeError::ClassProblem {
                class: class.clone(),
                problem: "it is for the work of the server itself; no volume can be in it"
                    .to_owned(),
            });
        }
        let spec = self
            .class(class)
            .ok_or_else(|| ChangeError::NoClass(class.clone()))?;
        match spec.problem_of_size(volume.settings.size_limit.bytes()) {
            None => Ok(()),
            Some(problem) => Err(ChangeError::ClassOfVolume {
                volume: volume.name.clone(),
                class: class.clone(),
                problem,
            }),
        }
    }

    /// Makes a class, or has one say something else; its volumes must be able to follow.
    pub fn set_class(
        &mut self,
        name: &ClassName,
        spec: ClassSpec,
        is_new: bool,
    ) -> Result<(), ChangeError> {
        if built_in().contains_key(name) {
            return Err(ChangeError::ClassBuiltIn(name.clone()));
        }
        if name.is_internal() {
            return self.set_internal_class(spec, is_new);
        }
        match (is_new, self.classes.contains_key(name)) {
            (true, true) => return Err(ChangeError::ClassExists(name.clone())),
            (false, false) => return Err(ChangeError::NoClass(name.clone())),
            (true, false) if self.classes.len() >= CLASSES_MAX => {
                return Err(ChangeError::TooManyClasses);
            }
            _ => {}
        }
        if let Some(problem) = spec.problem() {
            let class = name.clone();
            return Err(ChangeError::ClassProblem { class, problem });
        }
        self.classes.insert(name.clone(), spec);
        let mut in_it = self
            .all_volumes()
            .filter(|volume| volume.class.as_ref() == Some(name));
        in_it.try_for_each(|volume| self.check_class_of(volume))
    }

    /// The class of the server's own work is always there; it is kept if it limits something.
    fn set_internal_class(&mut self, spec: ClassSpec, is_new: bool) -> Result<(), ChangeError> {
        let class = ClassName::internal();
        if is_new {
            return Err(ChangeError::ClassExists(class));
        }
        if let Some(problem) = spec.problem_of_internal() {
            return Err(ChangeError::ClassProblem { class, problem });
        }
        match spec.total_throughput {
            Some(_) => drop(self.classes.insert(class, spec)),
            None => drop(self.classes.remove(&class)),
        }
        Ok(())
    }

    pub fn delete_class(&mut self, name: &ClassName) -> Result<(), ChangeError> {
        if built_in().contains_key(name) || name.is_internal() {
            return Err(ChangeError::ClassBuiltIn(name.clone()));
        }
        let in_it = self
            .all_volumes()
            .filter(|volume| volume.class.as_ref() == Some(name));
        let volumes: Vec<VolumeName> = in_it.map(|volume| volume.name.clone()).collect();
        if !volumes.is_empty() {
            let class = name.clone();
            return Err(ChangeError::ClassInUse { class, volumes });
        }
        match self.classes.remove(name) {
            Some(_) => Ok(()),
            None => Err(ChangeError::NoClass(name.clone())),
        }
    }

    pub fn tier(&self, name: &TierName) -> Result<&PoolTier, ChangeError> {
        let mut tiers = self.tiers.iter();
        tiers
            .find(|tier| tier.name == *name)
            .ok_or_else(|| ChangeError::NoTier(name.clone()))
    }

    /// The owner of objects in tiers: this pool, or the cluster, of which each node has a pool file of its own.
    pub fn tier_owner(&self) -> PoolId {
        self.cluster.map_or(self.pool, |mark| mark.cluster)
    }

    pub fn tier_of(&self, id: TierId) -> Option<&PoolTier> {
        self.tiers.iter().find(|tier| tier.id == id)
    }

    /// Stores of volumes that name a tier: data of them may be there.
    pub fn stores_in_tier(&self, id: TierId) -> impl Iterator<Item = &PoolVolume> {
        let all = self.volumes.iter();
        all.filter(move |volume| {
            volume
                .tiering
                .as_ref()
                .is_some_and(|tiering| tiering.tier == id)
        })
    }

    /// Adds a tier under a new id, which is returned.
    pub fn add_tier(
        &mut self,
        name: TierName,
        url: String,
        credentials_file: Option<String>,
        created: Timestamp,
    ) -> Result<TierId, ChangeError> {
        if self.tier(&name).is_ok() {
            return Err(ChangeError::TierExists(name));
        }
        if self.tiers.len() >= TIERS_MAX {
            return Err(ChangeError::TooManyTiers);
        }
        let id = TierId(self.tier_last.0.saturating_add(1));
        self.tier_last = id;
        self.tiers.push(PoolTier {
            id,
            name,
            url,
            credentials_file,
            created,
            deleting: Vec::new(),
        });
        Ok(id)
    }

    /// Makes a user.
    pub fn add_user(&mut self, name: &UserName, user: UserRecord) -> Result<(), ChangeError> {
        if self.users.contains_key(name) {
            return Err(ChangeError::UserExists(name.clone()));
        }
        if self.users.len() >= USERS_MAX {
            return Err(ChangeError::TooManyUsers);
        }
        self.users.insert(name.clone(), user);
        Ok(())
    }

    pub fn user_mut(&mut self, name: &UserName) -> Result<&mut UserRecord, ChangeError> {
        let user = self.users.get_mut(name);
        user.ok_or_else(|| ChangeError::NoUser(name.clone()))
    }

    pub fn delete_user(&mut self, name: &UserName) -> Result<(), ChangeError> {
        match self.users.remove(name) {
            Some(_) => Ok(()),
            None => Err(ChangeError::NoUser(name.clone())),
        }
    }

    /// Gives a part of a volume rates of its own, in the place of those that it had.
    pub fn set_limit(&mut self, name: &VolumeName, limit: PartLimit) -> Result<(), ChangeError> {
        if let Some(problem) = limit.problem() {
            let part = limit.part;
            return Err(ChangeError::LimitProblem { part, problem });
        }
        let volume = self.volume_mut(name)?;
        volume.limits.retain(|there| there.part != limit.part);
        if volume.limits.len() >= PART_LIMITS_MAX {
            return Err(ChangeError::TooManyLimits);
        }
        volume.limits.push(limit);
        volume
            .limits
            .sort_by(|one, other| one.part.cmp(&other.part));
        Ok(())
    }

    /// Takes the rates of a part of a volume away.
    pub fn clear_limit(&mut self, name: &VolumeName, part: &VolumePart) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        let before = volume.limits.len();
        volume.limits.retain(|there| there.part != *part);
        if volume.limits.len() < before {
            return Ok(());
        }
        let (volume, part) = (name.clone(), part.clone());
        Err(ChangeError::NoLimit { volume, part })
    }

    /// Those that have a store of their own, then clones. [`Self::volumes`] are the stores: some for their clones alone.
    pub fn all_volumes(&self) -> impl Iterator<Item = &PoolVolume> {
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let own = self.volumes.iter().filter(|volume| !volume.is_deleted);
        own.chain(clones)
    }

    /// All volumes that are in a store.
    pub fn volumes_in_store(&self, store: VolumeId) -> impl Iterator<Item = &PoolVolume> {
        self.all_volumes().filter(move |volume| {
            let clone = self.clone_of(volume.id);
            clone.map_or(volume.id, |clone| clone.store) == store
        })
    }

    /// The volume that speaks for a store: the one that it was made for, or once that is deleted the earliest of its clones.
    pub fn head_of<'a>(&'a self, store: &'a PoolVolume) -> &'a PoolVolume {
        if !store.is_deleted {
            return store;
        }
        let head = self.volumes_in_store(store.id).min_by_key(|it| it.id);
        head.unwrap_or(store)
    }

    /// The store that a volume speaks for, if it does.
    pub fn headed_by(&self, volume: VolumeId) -> Option<&PoolVolume> {
        let mut stores = self.volumes.iter();
        stores.find(|store| self.head_of(store).id == volume)
    }

    /// The clone with this id, if it is one.
    pub fn clone_of(&self, id: VolumeId) -> Option<&PoolClone> {
        self.clones.iter().find(|clone| clone.volume.id == id)
    }

    /// The volume in whose store one is: itself, but for a clone.
    pub fn store_of<'a>(&'a self, volume: &'a PoolVolume) -> &'a PoolVolume {
        let clone = self.clone_of(volume.id);
        let store = clone.and_then(|clone| self.volumes.iter().find(|it| it.id == clone.store));
        store.unwrap_or(volume)
    }

    pub fn volume(&self, name: &VolumeName) -> Result<&PoolVolume, ChangeError> {
        self.all_volumes()
            .find(|volume| volume.name == *name)
            .ok_or_else(|| ChangeError::NotFound(name.clone()))
    }

    pub fn volume_mut(&mut self, name: &VolumeName) -> Result<&mut PoolVolume, ChangeError> {
        let clones = self.clones.iter_mut().map(|clone| &mut clone.volume);
        let own = self.volumes.iter_mut();
        own.filter(|volume| !volume.is_deleted)
            .chain(clones)
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

    /// The store with this id, whether its own volume is deleted or not.
    pub fn store_mut(&mut self, id: VolumeId) -> Option<&mut PoolVolume> {
        self.volumes.iter_mut().find(|volume| volume.id == id)
    }

    /// Takes a volume out; it is remembered as deleted. Its store goes with the last volume in it.
    pub fn delete_volume(&mut self, id: VolumeId) -> Deletion {
        let mut clones = self.clones.extract_if(.., |clone| clone.volume.id == id);
        let clone = clones.next();
        drop(clones);
        if let Some(clone) = clone {
            self.deleted.push(clone.volume.deleted());
            let store = clone.store;
            let mut own = self.volumes.iter();
            let is_left = own.any(|volume| volume.id == store && volume.is_deleted)
                && self.volumes_in_store(store).next().is_none();
            if !is_left {
                self.forget_oldest_deleted();
                return Deletion::Clone { store };
            }
            self.delete_store(store);
            return Deletion::Store(store);
        }
        let has_clones = self.clones.iter().any(|clone| clone.store == id);
        match self.store_mut(id) {
            Some(volume) if has_clones => {
                volume.is_deleted = true;
                volume.exports.clear();
                volume.limits.clear();
                volume.class = None;
                // It was for the files of this volume alone.
                volume.settings.size_limit = SizeLimit::None;
                Deletion::OwnVolume { store: id }
            }
            _ => {
                self.delete_store(id);
                Deletion::Store(id)
            }
        }
    }

    fn delete_store(&mut self, id: VolumeId) {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.volumes)
            .into_iter()
            .partition(|volume| volume.id == id);
        self.volumes = kept;
        for volume in &gone {
            let id = volume.tiering.as_ref().map(|tiering| tiering.tier);
            let tier = self.tiers.iter_mut().find(|tier| Some(tier.id) == id);
            if let Some(tier) = tier
                && !tier.deleting.contains(&volume.id)
            {
                tier.deleting.push(volume.id);
            }
        }
        self.deleted.extend(gone.iter().map(PoolVolume::deleted));
        self.forget_oldest_deleted();
    }

    fn forget_oldest_deleted(&mut self) {
        let surplus = self.deleted.len().saturating_sub(DELETED_MAX);
        self.deleted.drain(..surplus);
    }

    /// Whether a volume is known to be deleted.
    pub fn was_deleted(&self, volume: &PoolVolume) -> bool {
        let mut deleted = self.deleted.iter();
        deleted.any(|gone| (gone.id, gone.created) == (volume.id, volume.created))
    }

    /// What a volume is called, or was when it was deleted; not known of all that are deleted.
    pub fn name_of(&self, id: VolumeId) -> Option<&VolumeName> {
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let mut all = self.volumes.iter().chain(clones);
        let listed = all.find(|volume| volume.id == id);
        let deleted = || self.deleted.iter().find(|gone| gone.id == id);
        match listed {
            Some(volume) => Some(&volume.name),
            None => deleted()?.name.as_ref(),
        }
    }

    /// Takes in a volume that another copy lists and this one does not, under another name if there is one of its
    /// name by now. Says under which.
    pub fn bring_back(&mut self, volume: &PoolVolume) -> Option<VolumeName> {
        if self.volumes.len() >= VOLUMES_READ_MAX {
            return None;
        }
        let name = self.free_name(volume)?;
        self.deleted.retain(|deleted| deleted.id != volume.id);
        for tier in &mut self.tiers {
            tier.deleting.retain(|deleting| *deleting != volume.id);
        }
        let after = VolumeId(volume.id.0.saturating_add(1));
        self.volume_next = self.volume_next.max(after);
        self.stage = Stage::InUse;
        // It may be there for its clones alone.
        self.volumes.retain(|there| there.id != volume.id);
        self.volumes.push(PoolVolume {
            name: name.clone(),
            ..volume.clone()
        });
        Some(name)
    }

    /// Brings a deleted clone back, under a free name. Returns the name.
    pub fn bring_back_clone(&mut self, clone: &PoolClone) -> Option<VolumeName> {
        let volume = &clone.volume;
        if self.volumes.len() + self.clones.len() >= VOLUMES_READ_MAX {
            return None;
        }
        let name = self.free_name(volume)?;
        self.deleted.retain(|deleted| deleted.id != volume.id);
        let after = VolumeId(volume.id.0.saturating_add(1));
        self.volume_next = self.volume_next.max(after);
        let volume = PoolVolume {
            name: name.clone(),
            ..volume.clone()
        };
        let store = clone.store;
        self.clones.push(PoolClone { store, volume });
        Some(name)
    }

    /// What to call a volume that comes back.
    fn free_name(&self, volume: &PoolVolume) -> Option<VolumeName> {
        let (name, id) = (&volume.name, volume.id.0);
        let short: String = name.as_str().chars().take(40).collect();
        let others = (1..=VOLUMES_READ_MAX).map(|count| format!("{short}-{id}-{count}"));
        let mut names = [name.to_string(), format!("{short}-{id}")]
            .into_iter()
            .chain(others)
            .filter_map(|name| name.parse::<VolumeName>().ok());
        names.find(|name| self.volume(name).is_err())
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
        if self.all_volumes().count() >= VOLUMES_MAX {
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

    fn check(&self) -> Result<(), TextFileError> {
        let refuse = |what: &str| Err(TextFileError::Content(what.to_owned()));
        if self.version > VERSION_MAX {
            return refuse("its version");
        }
        if self.disks.is_empty() || self.disks.len() > DISKS_MAX {
            return refuse("the number of disks");
        }
        if !distinct(self.disks.iter().map(|disk| disk.id)) {
            return refuse("two disks have one id");
        }
        if self.left.len() > LEFT_MAX {
            return refuse("the number of disks that left");
        }
        if let Some(KeptSecret::Readable(text)) = &self.handle_key
            && HandleKey::from_text(text).is_none()
        {
            return refuse("the key of file handles");
        }
        if self.caches.len() > CACHES_MAX {
            return refuse("the number of read caches");
        }
        if !distinct(self.caches.iter().map(|cache| cache.folder.as_str()))
            || !distinct(self.caches.iter().map(|cache| cache.id))
        {
            return refuse("two read caches have one folder or id");
        }
        if self.classes.len() > CLASSES_MAX {
            return refuse("the number of classes");
        }
        let tiers = &self.tiers;
        let is_long = |text: &String| text.len() > TIER_URL_LEN_BYTES_MAX;
        let are_long =
            |tier: &PoolTier| is_long(&tier.url) || tier.credentials_file.iter().any(is_long);
        if tiers.len() > TIERS_MAX || tiers.iter().any(are_long) {
            return refuse("the number of tiers, or the length of an address");
        }
        if !distinct(tiers.iter().map(|tier| tier.id))
            || !distinct(tiers.iter().map(|tier| tier.name.as_str()))
            || tiers.iter().any(|tier| tier.id > self.tier_last)
        {
            return refuse("two tiers have one id or name, or an id that was not given yet");
        }
        if self.users.len() > USERS_MAX {
            return refuse("the number of users");
        }
        if !self.logouts.fits() {
            return refuse("the number of sessions that were ended");
        }
        if self.deleted.len() > DELETED_MAX {
            return refuse("the number of deleted volumes");
        }
        let clones = self.clones.iter().map(|clone| &clone.volume);
        let listed = self.volumes.iter().chain(clones);
        if self.volumes.len() + self.clones.len() > VOLUMES_READ_MAX {
            return refuse("the number of volumes");
        }
        if self.clones.iter().any(|clone| clone.volume.is_deleted) {
            return refuse("a clone that is deleted is listed");
        }
        if !distinct(listed.clone().map(|volume| volume.id))
            || !distinct(self.all_volumes().map(|volume| volume.name.as_str()))
        {
            return refuse("two volumes have one id or name");
        }
        if listed.clone().any(|volume| volume.id >= self.volume_next) {
            return refuse("a volume has an id that was not given yet");
        }
        let rules_max = self.all_volumes().map(|volume| volume.exports.len()).max();
        if rules_max.unwrap_or(0) > CLIENTS_PER_EXPORT_MAX {
            return refuse("the number of rules of an export");
        }
        let mut exports = self.all_volumes().map(|volume| &volume.exports);
        if !exports.all(|rules| distinct(rules.iter().map(|rule| rule.client))) {
            return refuse("two rules of an export are for the same clients");
        }
        let mut limits = self.all_volumes().map(|volume| &volume.limits);
        if limits.any(|limits| limits.len() > PART_LIMITS_MAX) {
            return refuse("the number of limits of parts of a volume");
        }
        let mut limits = self.all_volumes().map(|volume| &volume.limits);
        if !limits.all(|limits| distinct(limits.iter().map(|limit| &limit.part))) {
            return refuse("two limits are of the same part of a volume");
        }
        Ok(())
    }
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    let mut items = items;
    items.all(|item| seen.insert(item))
}

/// The bytes of a pool file: two copies of the state.
pub fn encode_pool(state: &PoolState) -> Vec<u8> {
    encode_file(MAGIC, FORMAT_VERSION, &json_of(state, true))
}

/// Reads one of the two copies in a pool file.
pub fn decode_pool_copy(copy: &[u8]) -> Result<PoolState, TextFileError> {
    let state: PoolState = decode_copy(copy, MAGIC, FORMAT_VERSION)?;
    state.check()?;
    Ok(state)
}

/// Reads a whole pool file.
pub fn decode_pool(file: &[u8]) -> Result<Picked<PoolState, TextFileError>, TextFileError> {
    decode_file(file, decode_pool_copy, |state| state.version)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::example_pool as example;

    /// Both copies are as they were written.
    fn good(read: Result<Picked<PoolState, TextFileError>, TextFileError>) -> PoolState {
        let picked = read.unwrap();
        assert_eq!(picked.bad, None);
        picked.value
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let state = example(6);
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    }

    #[test]
    fn the_handle_key_is_readable_or_wrapped_or_elsewhere() {
        use crate::encryption::{MasterKeyId, WRAPPED_LEN_BYTES, WrappedSecret};
        let wrapped = KeptSecret::Wrapped(WrappedSecret::new(vec![7; 64]));
        let key = WrappedKey {
            master_key: MasterKeyId([1; 8]),
            wrapped: [2; WRAPPED_LEN_BYTES],
        };
        for (handle_key, secrets_key) in [
            (Some(HandleKey(5).readable()), None),
            (Some(wrapped), Some(key)),
            (None, Some(key)),
        ] {
            let state = PoolState {
                handle_key,
                secrets_key,
                ..example(2)
            };
            assert_eq!(good(decode_pool(&encode_pool(&state))), state);
        }
        for (text, want) in [
            (HandleKey(5).to_text(), Some(HandleKey(5))),
            (HandleKey(u128::MAX).to_text(), Some(HandleKey(u128::MAX))),
            ("5".to_owned(), None),
            ("+".repeat(32), None),
            ("0".repeat(33), None),
            (String::new(), None),
        ] {
            assert_eq!(HandleKey::from_text(&text), want, "{text:?}");
        }
    }

    #[test]
    fn every_field_is_required() {
        let without = |remove: fn(&mut serde_json::Value)| {
            let mut json = serde_json::to_value(example(2)).unwrap();
            remove(&mut json);
            decode_pool(&encode_file(MAGIC, FORMAT_VERSION, &json.to_string()))
        };
        assert_eq!(good(without(|_| {})), example(2));
        for missing in [
            without(|json| drop(json.as_object_mut().unwrap().remove("left"))),
            without(|json| drop(json["disks"][1].as_object_mut().unwrap().remove("seen"))),
        ] {
            assert!(matches!(missing, Err(TextFileError::Content(_))));
        }
    }

    #[test]
    fn disks_that_left_are_remembered() {
        let mut state = example(3);
        state.remove_disk(DiskId(2));
        assert_eq!((state.disks.len(), state.left.len()), (2, 1));
        assert_eq!(state.left[0].id, DiskId(2));
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    }

    #[test]
    fn deleted_volumes_are_remembered() {
        let mut state = example(1);
        let main = state.volumes[0].clone();
        state.delete_volume(main.id);
        assert_eq!(state.deleted, [main.deleted()]);
        assert_eq!(good(decode_pool(&encode_pool(&state))), state.clone());
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
    fn a_store_goes_with_the_last_volume_in_it() {
        let mut state = example(1);
        let main = state.volumes[0].clone();
        let add_clone = |state: &mut PoolState, name: &str| {
            let id = state.take_volume_id();
            let volume = PoolVolume {
                id,
                name: name.parse().unwrap(),
                exports: Vec::new(),
                ..main.clone()
            };
            let store = main.id;
            state.clones.push(PoolClone { store, volume });
            id
        };
        let first = add_clone(&mut state, "first");
        let second = add_clone(&mut state, "second");
        let store = main.id;
        let again = |state: &PoolState| assert_eq!(good(decode_pool(&encode_pool(state))), *state);
        // While the store's own volume is there it speaks for the store, and stays with it.
        assert_eq!(state.headed_by(main.id).map(|it| it.id), Some(store));
        let mut other = state.clone();
        for id in [second, first] {
            assert_eq!(other.delete_volume(id), Deletion::Clone { store });
        }
        assert_eq!(other.delete_volume(main.id), Deletion::Store(store));
        assert!(other.volumes.is_empty());

        assert_eq!(state.delete_volume(main.id), Deletion::OwnVolume { store });
        again(&state);
        let names: Vec<&str> = state.all_volumes().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
        assert!(state.volume(&main.name).is_err() && state.volume_mut(&main.name).is_err());
        assert_eq!(state.check_new(&main.name), Ok(()), "its name is free");
        assert_eq!(state.name_of(main.id), Some(&main.name));
        assert!(!state.was_deleted(&main), "its store is there");
        assert_eq!(state.headed_by(first).map(|it| it.id), Some(store));
        assert_eq!(state.headed_by(second), None);
        let id = state.take_volume_id();
        state.volumes.push(PoolVolume { id, ..main.clone() });
        again(&state);
        assert_eq!(state.delete_volume(first), Deletion::Clone { store });
        assert_eq!(state.headed_by(second).map(|it| it.id), Some(store));
        assert_eq!(state.delete_volume(second), Deletion::Store(store));
        assert_eq!(state.volumes.len(), 1);
        assert!(state.was_deleted(&main) && state.clones.is_empty());
        assert_eq!(
            state.name_of(second).map(VolumeName::as_str),
            Some("second")
        );
        again(&state);
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
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    }

    #[test]
    fn a_flipped_bit_costs_one_copy_and_is_noticed() {
        let file = encode_pool(&example(2));
        let half = file.len() / 2;
        for bit in 0..half * 8 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let is_damage = matches!(
                decode_pool_copy(&bad[..half]),
                Err(TextFileError::Magic | TextFileError::Checksum)
            );
            assert!(is_damage, "bit {bit}");
        }
        for byte in 0..file.len() {
            let mut bad = file.clone();
            bad[byte] ^= 1 << (byte % 8);
            let picked = decode_pool(&bad).unwrap();
            assert_eq!(picked.value, example(2), "byte {byte}");
            let number = if byte < half { 1 } else { 2 };
            assert_eq!(
                picked.bad.map(|bad| bad.number),
                Some(number),
                "byte {byte}"
            );
        }
    }

    #[test]
    fn two_damaged_copies_are_no_pool_file() {
        let file = encode_pool(&example(2));
        for offset in 0..file.len() / 2 {
            let mut bad = file.clone();
            bad[offset] ^= 0x01;
            bad[file.len() - 1 - offset] ^= 0x01;
            assert!(decode_pool(&bad).is_err(), "byte {offset}");
        }
        for len in 0..file.len() {
            assert!(decode_pool(&file[..len]).is_err(), "cut at {len}");
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
            ("two rules for the same clients", |state| {
                let rules = &mut state.volumes[0].exports;
                rules.push(rules[0].clone())
            }),
            ("no handle key", |state| {
                state.handle_key = Some(KeptSecret::Readable("5".to_owned()))
            }),
            // The next change would count on, and end the server.
            ("no version after it", |state| state.version = u64::MAX),
        ];
        for (name, spoil) in cases {
            let mut state = example(2);
            spoil(&mut state);
            let result = decode_pool(&encode_pool(&state));
            assert!(matches!(result, Err(TextFileError::Content(_))), "{name}");
        }
    }

    /// A program that knows a newer version changed the file last, so what can be read elsewhere is older.
    #[test]
    fn a_newer_version_is_named() {
        let newer = TextFileError::Version { found: 2, known: 1 };
        let whole = encode_file(MAGIC, 2, "{}");
        assert_eq!(decode_pool(&whole), Err(newer.clone()));
        let mut one_damaged = whole.clone();
        one_damaged[0] ^= 1;
        assert_eq!(decode_pool(&one_damaged), Err(newer));
    }

    #[test]
    fn limits_are_set_and_cleared() {
        let mut state = example(1);
        let main: VolumeName = "main".parse().unwrap();
        let limit = |part: &str, iops| PartLimit {
            part: part.parse().unwrap(),
            throughput: None,
            read_throughput: None,
            write_throughput: None,
            iops,
        };
        for (part, iops) in [("lun/b", 5), ("bucket/a", 6), ("lun/b", 7)] {
            state.set_limit(&main, limit(part, Some(iops))).unwrap();
        }
        let wanted = [limit("lun/b", Some(7)), limit("bucket/a", Some(6))];
        assert_eq!(state.volumes[0].limits, wanted);
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
        let nothing = state.set_limit(&main, limit("lun/b", None));
        assert!(matches!(nothing, Err(ChangeError::LimitProblem { .. })));
        let part: VolumePart = "lun/c".parse().unwrap();
        let absent = state.clear_limit(&main, &part);
        assert!(matches!(absent, Err(ChangeError::NoLimit { .. })));
        state.clear_limit(&main, &wanted[0].part).unwrap();
        assert_eq!(state.volumes[0].limits, wanted[1..]);
        for number in 1..PART_LIMITS_MAX {
            let limit = limit(&format!("lun/{number}"), Some(1));
            state.set_limit(&main, limit).unwrap();
        }
        let more = state.set_limit(&main, limit("lun/more", Some(1)));
        assert_eq!(more, Err(ChangeError::TooManyLimits));
        state.set_limit(&main, limit("bucket/a", Some(9))).unwrap();
        let twice = state.volumes[0].limits[0].clone();
        state.volumes[0].limits[1] = twice;
        let read = decode_pool(&encode_pool(&state));
        assert!(matches!(read, Err(TextFileError::Content(_))));
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
    fn users_are_made_changed_and_deleted() {
        let mut state = example(1);
        let [alice, bob]: [UserName; 2] = ["alice", "bob"].map(|name| name.parse().unwrap());
        let record = crate::testing::example_user();
        assert_eq!(state.add_user(&alice, record.clone()), Ok(()));
        assert_eq!(
            state.add_user(&alice, record.clone()),
            Err(ChangeError::UserExists(alice.clone()))
        );
        state.user_mut(&alice).unwrap().stamp = 8;
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
        let absent = ChangeError::NoUser(bob.clone());
        assert_eq!(state.user_mut(&bob), Err(absent.clone()));
        assert_eq!(state.delete_user(&bob), Err(absent));
        assert_eq!(state.delete_user(&alice), Ok(()));
        for number in 0..USERS_MAX {
            let name = format!("user{number}").parse().unwrap();
            assert_eq!(state.add_user(&name, record.clone()), Ok(()));
        }
        let full = Err(ChangeError::TooManyUsers);
        assert_eq!(state.add_user(&alice, record.clone()), full);
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
        state.users.insert(alice, record);
        assert!(decode_pool(&encode_pool(&state)).is_err());
    }

    #[test]
    fn classes_are_made_changed_and_deleted() {
        let mut state = example(1);
        let [gold, premium, none]: [ClassName; 3] =
            ["gold", "premium", "nobody"].map(|name| name.parse().unwrap());
        let spec = ClassSpec {
            throughput: Some(crate::settings::RateSpec::per_tib(128 << 20)),
            ..ClassSpec::default()
        };
        assert_eq!(state.set_class(&gold, spec, true), Ok(()));
        assert!(matches!(
            state.set_class(&gold, spec, true),
            Err(ChangeError::ClassExists(_))
        ));
        assert!(matches!(
            state.set_class(&premium, spec, false),
            Err(ChangeError::ClassBuiltIn(_))
        ));
        assert!(matches!(
            state.set_class(&none, spec, false),
            Err(ChangeError::NoClass(_))
        ));
        assert!(matches!(
            state.set_class(&none, ClassSpec::default(), true),
            Err(ChangeError::ClassProblem { .. })
        ));
        state.volumes[0].class = Some(gold.clone());
        state.volumes[0].settings.size_limit = crate::settings::SizeLimit::None;
        assert!(state.check_class_of(&state.volumes[0]).is_err());
        state.volumes[0].settings.size_limit = crate::settings::SizeLimit::Bytes(1 << 40);
        assert_eq!(state.check_class_of(&state.volumes[0]), Ok(()));
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
        let refused = state.delete_class(&gold).unwrap_err();
        assert!(refused.to_string().contains("by main"), "{refused}");
        state.volumes[0].class = None;
        assert_eq!(state.delete_class(&gold), Ok(()));
        assert_eq!(state.delete_class(&gold), Err(ChangeError::NoClass(gold)));
        assert!(state.delete_class(&premium).is_err());
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
