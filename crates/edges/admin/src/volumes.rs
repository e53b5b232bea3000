//! Volumes: JSON, routes, and what they ask of a node.

use cairn_config::{
    AccessPattern, ClassChoice, ClassName, Compression, CoolingDays, Dedupe, FilePatterns,
    MediaChoice, MinAge, Protection, SizeLimit, TierName, Tiering, VolumeName, VolumeSettings,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cluster::ClusterView;
use crate::control::Answer;
use crate::endpoint::{Endpoint, Force, create, delete, endpoints, get, patch, post, put};
use crate::list_query::ListQuery;
use crate::server::Table;

/// Bytes of a volume on disks, protection included, whose policy asks for a device class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaBytes {
    /// The device class that the policy asks for.
    #[schema(value_type = String, example = "ssd")]
    pub wanted: MediaChoice,
    /// The device class of the disks that hold the bytes now. Bytes in another class move as soon as the wanted class has room.
    #[schema(value_type = String, example = "ssd")]
    pub on: MediaChoice,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAddressSet {
    /// Address with prefix length: 10.0.0.9/24.
    #[schema(min_length = 9, max_length = 64)]
    pub address: String,
    /// The network interface, which has this name on each node; left out: the one in the address's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 15, pattern = r"^[!-.0-~]+$")]
    pub interface: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMove {
    /// The name of the new owner; left out: the cluster chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub to: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    pub id: u32,
    #[schema(value_type = String, example = "main")]
    pub name: VolumeName,
    #[serde(flatten)]
    pub settings: VolumeSettingsView,
    /// Layout of the protection on the current pool: "4+2", "2 mirrors", "1 copy, NO REDUNDANCY".
    pub layout: String,
    pub disk_failures_tolerated: u32,
    /// How many nodes can be lost, instead of those disks, without loss of its data or metadata. Only if the pool has disks
    /// on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_failures_tolerated: Option<u32>,
    /// Bytes whose policy asks for a device class, by the class that holds them. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media_bytes: Vec<MediaBytes>,
    /// Different protections of directories, or of data written there earlier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directory_protections: Vec<DirectoryProtection>,
    /// The tier to which its cold data is offloaded, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<VolumeTieringView>,
    /// Its use of its class, if it has a class and is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<crate::classes::RatesView>,
    pub created_seconds: i64,
    /// Whether it is served; otherwise `problem` says why.
    pub serving: bool,
    /// In a cluster: the name of the owner, if it is not the answering node. Usage comes from the owner; `problem` says if the
    /// owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Bytes of its files.
    pub used_bytes: u64,
    /// Bytes that its files could hold, as `df` shows.
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub inodes: u64,
    /// Number of visible snapshots, and the bytes (as stored, before parity) that only snapshots hold.
    pub snapshots: u64,
    pub snapshot_bytes: u64,
    /// Garbage: bytes (as stored, before parity) of data that was overwritten or deleted.
    #[serde(default)]
    pub garbage_bytes: u64,
    /// The part of the garbage that is being freed now; larger when no client has written for a minute.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Bytes that deduplication saved from being written, since the owner's server started.
    #[serde(default)]
    pub deduplicated_bytes: u64,
    pub exported: bool,
    /// The encryption of the volume.
    #[serde(default)]
    pub encryption: crate::keys::EncryptionView,
    /// The source of the volume, if it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<VolumeOrigin>,
}

/// Settings of a volume as they are; [`VolumeChange`] has a field of the same name for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSettingsView {
    #[schema(value_type = String, example = "+2n")]
    pub protection: Protection,
    #[schema(value_type = String, example = "500 GiB")]
    pub size_limit: SizeLimit,
    /// Largest size to which the size limit grows automatically as the volume fills.
    #[schema(value_type = String, example = "2 TiB")]
    #[serde(default)]
    pub autogrow: SizeLimit,
    #[schema(value_type = String, example = "concurrent")]
    pub access_pattern: AccessPattern,
    #[schema(value_type = String, example = "lz4")]
    pub compression: Compression,
    #[schema(value_type = String, example = "off")]
    #[serde(default)]
    pub dedupe: Dedupe,
    /// Device class of its data, unless a directory's policy has another.
    #[schema(value_type = String, example = "ssd")]
    #[serde(default)]
    pub media: MediaChoice,
    /// The class of service, or none.
    #[schema(value_type = String, example = "gold")]
    #[serde(default)]
    pub class: ClassChoice,
}

/// A protection of directories of a volume, or of data that was written below them earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryProtection {
    #[schema(value_type = String, example = "3x")]
    pub protection: Protection,
    /// Layout of the protection on the current pool.
    pub layout: String,
    pub disk_failures_tolerated: u32,
}

/// Which data of a volume is offloaded to a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeTieringView {
    /// The name of the tier.
    pub tier: String,
    #[schema(value_type = String, example = "auto")]
    pub policy: Tiering,
    #[schema(value_type = String, example = "31")]
    pub cooling_days: CoolingDays,
    /// Only data of files whose names match,
    #[schema(value_type = String, example = "*.mp4,*.fastq.gz")]
    #[serde(default)]
    pub files: FilePatterns,
    /// that have at least this size,
    #[schema(value_type = String, example = "1 MiB")]
    #[serde(default)]
    pub min_size: SizeLimit,
    /// and were not changed for this long.
    #[schema(value_type = String, example = "30d")]
    #[serde(default)]
    pub min_age: MinAge,
    /// Bytes of the volume in the tier.
    pub remote_bytes: u64,
}

/// The source of a cloned volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeOrigin {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    /// The snapshot of that volume, which is kept while it has clones.
    pub snapshot: String,
    /// The source volume is deleted, except for data that its clones need. Its name may be in use again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

impl std::fmt::Display for VolumeOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = if self.deleted { " (deleted)" } else { "" };
        write!(f, "{}@{}{suffix}", self.volume, self.snapshot)
    }
}

/// A volume clone to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCloneCreate {
    #[schema(value_type = String, example = "projects-test", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// The snapshot to clone; left out: the current state of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$"
    )]
    pub snapshot: Option<String>,
}

/// A volume to create; a field that is left out has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    #[schema(value_type = String, example = "projects", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: VolumeName,
    /// Encrypt the volume's data; this cannot be changed later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypt: bool,
    #[serde(flatten)]
    pub settings: VolumeChange,
}

/// Settings of a volume to change; a field that is left out stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// default, none, +1n to +4n, 2x to 5x. A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "+2n", pattern = r"^(default|none|\+[1-4]n|[2-5]x)$")]
    #[arg(
        long,
        allow_hyphen_values = true,
        help = "default (survives up to two lost disks, as the number of disks allows), none, +1n to +4n (survives that many lost disks), 2x to 5x (that many copies) [a new volume: default]"
    )]
    pub protection: Option<Protection>,
    /// none, or a size such as 500GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "500GiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    #[arg(long, value_name = "SIZE", visible_aliases = ["quota", "size"], help = "none, or a size such as 500GiB; rates per TiB refer to this size [a new volume: none]")]
    pub size_limit: Option<SizeLimit>,
    /// none, or the largest size to which the size limit grows automatically as the volume fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2TiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    #[arg(
        long,
        value_name = "SIZE",
        help = "none, or the largest size to which the size limit grows automatically as the volume fills [a new volume: none]"
    )]
    pub autogrow: Option<SizeLimit>,
    /// concurrent, streaming or random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "streaming", pattern = "^(concurrent|streaming|random)$")]
    #[arg(
        long,
        value_name = "PATTERN",
        help = "concurrent (many clients, all kinds of files), streaming (large files from end to end) or random (small accesses in large files) [a new volume: concurrent]"
    )]
    pub access_pattern: Option<AccessPattern>,
    /// none, lz4, zstd or zstd:LEVEL. A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "lz4", pattern = "^(none|off|lz4|auto|zstd(:(1[0-9]|[1-9]))?)$")]
    #[arg(
        long,
        help = "none (or off), lz4, zstd (level 3), zstd:1 to zstd:19, or auto (lz4, or zstd where it saves clearly more) [a new volume: lz4]"
    )]
    pub compression: Option<Compression>,
    /// off, on (trust a 256-bit hash) or verify (read and compare first). A change applies to data written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "on", pattern = "^(off|on|verify)$")]
    #[arg(
        long,
        help = "off, on or verify: deduplication of data written from now on. on trusts a 256-bit hash, verify reads and compares first: `cairn volume set backups --dedupe on` [a new volume: off]"
    )]
    pub dedupe: Option<Dedupe>,
    /// Device class for data written from then on: any, hdd, ssd or nvme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "ssd", pattern = "^(any|hdd|ssd|nvme)$")]
    #[arg(
        long,
        help = "any, hdd, ssd or nvme: device class for data written from now on; `cairn policy apply` moves existing data [a new volume: any]"
    )]
    pub media: Option<MediaChoice>,
    /// none, or the name of a class of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "gold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    #[arg(
        long,
        help = "none, or a class of service: standard, premium, extreme or another from `cairn class list` [a new volume: none]"
    )]
    pub class: Option<ClassChoice>,
    /// The name of a tier, for cold data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    #[arg(
        long,
        help = "The tier to which cold data of an existing volume is offloaded, from `cairn tier list`"
    )]
    pub tier: Option<TierName>,
    /// none (data in the tier is promoted back), snapshot-only (cold data that only snapshots have is offloaded), auto (all cold
    /// data) or all (all data).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "auto", pattern = "^(none|snapshot-only|auto|all)$")]
    #[arg(
        long,
        help = "Which data is offloaded: none (data in the tier is promoted back), snapshot-only (cold data that only snapshots have), auto (all cold data) or all (all data, as soon as its segments are sealed)"
    )]
    pub tiering: Option<Tiering>,
    /// Days without use after which data is cold, 2 to 183.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "31", pattern = "^([2-9]|[1-9][0-9]|1[0-7][0-9]|18[0-3])$")]
    #[arg(
        long,
        value_name = "DAYS",
        help = "Days without use after which data is cold, 2 to 183 [at first: 31]"
    )]
    pub cooling_days: Option<CoolingDays>,
    /// any, or name patterns separated by commas: with `tiering` auto or all, only data of matching files is offloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "*.mp4,*.fastq.gz", min_length = 1, max_length = 1024)]
    #[arg(
        long,
        value_name = "PATTERNS",
        help = "any, or name patterns separated by commas; with auto and all, only data of matching files is offloaded: `cairn volume set media --tier-files '*.mp4,*.fastq.gz'` [at first: any]"
    )]
    pub tier_files: Option<FilePatterns>,
    /// none, or the minimum size of such files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1MiB", min_length = 1, max_length = 64, pattern = r"^(none|[1-9][0-9]{0,5}(\.[0-9]{1,6})?( ?([KMGTkmgt][Ii]?)?[Bb])?)$")]
    #[arg(
        long,
        value_name = "SIZE",
        help = "none, or the minimum size of offloaded files, such as 1MiB [at first: none]"
    )]
    pub tier_min_size: Option<SizeLimit>,
    /// none, or the minimum time since such files were changed, such as 12h or 30d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30d", pattern = "^(none|([1-9][0-9]{0,4}|[1-7][0-9]{5}|8[0-6][0-9]{4}|87[0-7][0-9]{3}|878[0-3][0-9]{2}|878400)h|([1-9][0-9]{0,3}|[12][0-9]{4}|3[0-5][0-9]{3}|36[0-5][0-9]{2}|36600)d)$")]
    #[arg(
        long,
        value_name = "AGE",
        help = "none, or the minimum time since offloaded files were changed, such as 12h or 30d [at first: none]"
    )]
    pub tier_min_age: Option<MinAge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub volumes: Vec<VolumeView>,
    /// Number of matching volumes on all pages.
    pub total: usize,
    /// The `after` of the next page; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

impl VolumeSettingsView {
    /// `own`: of the volume; `shared`: of its store, whose volumes have some settings in common; `class`: of the volume.
    pub fn of(own: &VolumeSettings, shared: &VolumeSettings, class: Option<&ClassName>) -> Self {
        // All are named, so that a new one is not forgotten.
        let VolumeSettings {
            protection,
            size_limit: _,
            autogrow: _,
            access_pattern,
            compression,
            dedupe,
            media,
            directory_protections: _,
        } = *shared;
        Self {
            protection,
            size_limit: own.size_limit,
            autogrow: own.autogrow,
            access_pattern,
            compression,
            dedupe,
            media,
            class: match class {
                Some(class) => ClassChoice::Class(class.clone()),
                None => ClassChoice::None,
            },
        }
    }
}

impl VolumeChange {
    /// Changes the settings that the pool keeps. The class and the tier are of the pool, too, and are looked up there.
    pub fn apply(&self, settings: &mut VolumeSettings) {
        // All are named, so that a new one is not forgotten.
        let Self {
            protection,
            size_limit,
            autogrow,
            access_pattern,
            compression,
            dedupe,
            media,
            class: _,
            tier: _,
            tiering: _,
            cooling_days: _,
            tier_files: _,
            tier_min_size: _,
            tier_min_age: _,
        } = *self;
        set(&mut settings.protection, protection);
        set(&mut settings.size_limit, size_limit);
        if settings.size_limit.is_none() && size_limit.is_some() {
            settings.autogrow = SizeLimit::None;
        }
        set(&mut settings.autogrow, autogrow);
        set(&mut settings.access_pattern, access_pattern);
        set(&mut settings.compression, compression);
        set(&mut settings.dedupe, dedupe);
        set(&mut settings.media, media);
    }

    /// Whether tier settings change.
    pub fn has_tiering(&self) -> bool {
        self.tier.is_some()
            || self.tiering.is_some()
            || self.cooling_days.is_some()
            || self.tier_files.is_some()
            || self.tier_min_size.is_some()
            || self.tier_min_age.is_some()
    }
}

fn set<T>(setting: &mut T, wanted: Option<T>) {
    if let Some(wanted) = wanted {
        *setting = wanted;
    }
}

endpoints! {
    /// Moves a volume to another node, which owns it whenever it can.
    VOLUME_MOVE: Endpoint<VolumeName, VolumeMove, VolumeView> = post("/api/v1/volumes/{name}/move");

    /// Gives a volume an address that its owner always holds.
    VOLUME_ADDRESS_SET: Endpoint<VolumeName, VolumeAddressSet, ClusterView> = put("/api/v1/volumes/{name}/address");

    /// Removes the address of a volume.
    VOLUME_ADDRESS_REMOVE: Endpoint<VolumeName, (), ()> = delete("/api/v1/volumes/{name}/address");

    /// Lists volumes by name: all, or a page of at most `limit`, 1 to 1000. `next_after` is the `after` of the next page. `name` is a
    /// part of the name; case is ignored.
    VOLUME_LIST: Endpoint<ListQuery, (), VolumeList> = get("/api/v1/volumes").list("volumes", &[]);

    /// Creates a volume. No client can mount it until an export is set.
    VOLUME_CREATE: Endpoint<(), VolumeCreate, VolumeView> = create("/api/v1/volumes");

    /// Clones a volume or one of its snapshots. A clone of any size is ready at once and shares its data with the source. No client
    /// can mount it until an export is set.
    VOLUME_CLONE: Endpoint<VolumeName, VolumeCloneCreate, VolumeView> = create("/api/v1/volumes/{name}/volume-clones");

    /// Shows one volume.
    VOLUME_SHOW: Endpoint<VolumeName, (), VolumeView> = get("/api/v1/volumes/{name}");

    /// Changes settings of a volume.
    VOLUME_SET: Endpoint<VolumeName, VolumeChange, VolumeView> = patch("/api/v1/volumes/{name}");

    /// Deletes a volume and all its data. An exported volume is deleted only with `force=true`.
    VOLUME_DELETE: Endpoint<(VolumeName, Force), (), ()> = delete("/api/v1/volumes/{name}");

}

/// What a node does with volumes. Changes are durable when they are answered; each runs to its end even when the client that asked for it
/// has gone.
pub trait VolumeControl: Send + Sync {
    fn volume_list(&self, query: ListQuery) -> Answer<'_, VolumeList>;
    fn volume_show(&self, name: VolumeName) -> Answer<'_, VolumeView>;
    fn volume_create(&self, create: VolumeCreate) -> Answer<'_, VolumeView>;
    /// Makes a volume that begins as another one, or one of its snapshots, and shares its bytes.
    fn volume_clone(&self, source: VolumeName, clone: VolumeCloneCreate) -> Answer<'_, VolumeView>;
    fn volume_set(&self, name: VolumeName, change: VolumeChange) -> Answer<'_, VolumeView>;
    /// Removes a volume with all its data; an exported one only with `force`.
    fn volume_delete(&self, name: VolumeName, force: bool) -> Answer<'_, ()>;
    /// Has another node own a volume, as long as that one can.
    fn volume_move(&self, name: VolumeName, to: Option<String>) -> Answer<'_, VolumeView>;
    /// Has an address follow a volume's owner; `None`: none any more.
    fn volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Answer<'_, ClusterView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn VolumeControl>(|node| Ok(node.volumes()))
        .on(VOLUME_LIST, |node, query, ()| node.volume_list(query))
        .on(VOLUME_CREATE, |node, (), create| node.volume_create(create))
        .on(VOLUME_CLONE, |node, source, clone| {
            node.volume_clone(source, clone)
        })
        .on(VOLUME_SHOW, |node, name, ()| node.volume_show(name))
        .on(VOLUME_SET, |node, name, change| {
            node.volume_set(name, change)
        })
        .on(VOLUME_DELETE, |node, (name, Force(force)), ()| {
            node.volume_delete(name, force)
        })
        .on(VOLUME_MOVE, |node, name, to| node.volume_move(name, to.to))
        .on(VOLUME_ADDRESS_SET, |node, name, address| {
            node.volume_address(name, Some(address))
        })
        .on(VOLUME_ADDRESS_REMOVE, |node, name, ()| {
            Box::pin(async move { node.volume_address(name, None).await.map(drop) })
        });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(settings: &VolumeSettings) -> Value {
        serde_json::to_value(VolumeSettingsView::of(settings, settings, None)).unwrap()
    }

    /// Each setting by itself: what is asked for is what is shown then, and nothing else changes.
    #[test]
    fn a_change_of_a_setting_is_shown_and_changes_no_other() {
        let asked = json!({
            "protection": "3x",
            "size_limit": "1 GiB",
            "autogrow": "2 GiB",
            "access_pattern": "random",
            "compression": "zstd:7",
            "dedupe": "verify",
            "media": "ssd",
        });
        let before = shown(&VolumeSettings::default());
        for (setting, value) in asked.as_object().unwrap() {
            let change: VolumeChange =
                serde_json::from_value(json!({ (setting.as_str()): value })).unwrap();
            let mut settings = VolumeSettings::default();
            change.apply(&mut settings);
            let mut want = before.clone();
            want[setting] = value.clone();
            assert_eq!(shown(&settings), want, "{setting}");
        }
        // The class is no part of what the pool keeps as settings.
        for setting in before.as_object().unwrap().keys() {
            assert!(
                asked.get(setting).is_some() || setting == "class",
                "{setting}"
            );
        }
    }

    #[test]
    fn without_a_size_limit_nothing_grows() {
        let mut settings = VolumeSettings {
            size_limit: SizeLimit::Bytes(1 << 30),
            autogrow: SizeLimit::Bytes(2 << 30),
            ..VolumeSettings::default()
        };
        let change = |json| serde_json::from_value::<VolumeChange>(json).unwrap();
        change(json!({"compression": "none"})).apply(&mut settings);
        assert_eq!(settings.autogrow, SizeLimit::Bytes(2 << 30));
        change(json!({"size_limit": "none"})).apply(&mut settings);
        assert_eq!(settings.autogrow, SizeLimit::None);
    }
}
