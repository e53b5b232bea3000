//! Tiers: JSON, routes, and what they ask of a node.

use cairn_config::{CoolingDays, FilePatterns, MinAge, SizeLimit, TierName, Tiering, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{
    Endpoint, absent, create, delete, endpoints, get, name_in_path, plain_name, post,
};
use crate::server::Table;

/// A tier to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierAdd {
    #[schema(value_type = String, example = "cold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: TierName,
    /// s3://BUCKET/PREFIX?region=NAME, az://CONTAINER/PREFIX?account=NAME, gs://BUCKET/PREFIX, each with an optional
    /// &endpoint=URL, or file:///PATH. Without credentials.
    #[schema(
        example = "s3://archive/cairn?region=eu-west-1",
        min_length = 1,
        max_length = 1024
    )]
    pub url: String,
    /// Credentials file on the server, readable only by its owner; left out: the server's environment, or the machine's cloud
    /// identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024, pattern = r"^/")]
    pub credentials_file: Option<String>,
}

/// A tier, and its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierView {
    #[schema(value_type = String, example = "cold")]
    pub name: TierName,
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<String>,
    pub created_seconds: i64,
    /// Whether the tier answers; otherwise `problem` says why.
    pub working: bool,
    /// The last failure, until a request succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Objects with data, and the bytes of data in them.
    pub objects: u64,
    pub bytes: u64,
    /// The part of these bytes that is in use.
    pub live_bytes: u64,
    /// Space that the data would need on disks, with parity and copies.
    pub saved_bytes: u64,
    /// Monthly cost of the bytes in US cents, at the list price of S3 Standard in the tier's region, without requests and traffic;
    /// left out if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month_cents: Option<u64>,
    /// Date of that price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "2026-03-03")]
    pub price_date: Option<String>,
    /// Unreferenced objects, which are to be deleted.
    pub unused_objects: u64,
    /// Deleted volumes whose objects are being deleted.
    pub deleted_volumes: u64,
    /// Requests since the server started, and failed ones among them.
    pub reads: u64,
    pub writes: u64,
    pub deletes: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Answers with wrong data.
    pub wrong: u64,
    pub volumes: Vec<TierVolumeView>,
}

/// A volume that has, or had, data in a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierVolumeView {
    #[schema(value_type = String, example = "main")]
    pub name: VolumeName,
    #[schema(value_type = String, example = "auto")]
    pub tiering: Tiering,
    #[schema(value_type = String, example = "31")]
    pub cooling_days: CoolingDays,
    /// Filter of files: names, minimum size, minimum time since the last change.
    #[schema(value_type = String, example = "*.mp4,*.fastq.gz")]
    #[serde(default)]
    pub files: FilePatterns,
    #[schema(value_type = String, example = "1 MiB")]
    #[serde(default)]
    pub min_size: SizeLimit,
    #[schema(value_type = String, example = "30d")]
    #[serde(default)]
    pub min_age: MinAge,
    /// Whether this node serves the volume; otherwise the numbers are unknown.
    pub serving: bool,
    /// In a cluster: the name of the owner, if it is another node. The owner has the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub objects: u64,
    pub bytes: u64,
    pub live_bytes: u64,
    /// Segments offloaded, and parts of files promoted back for repeated reads, since the volume was opened.
    pub sent_segments: u64,
    pub promoted_parts: u64,
    /// Bytes copied into segments of cold data since the volume was opened, to separate offloaded files from others.
    #[serde(default)]
    pub gathered_bytes: u64,
    /// Segments that recently could not be offloaded or promoted.
    pub resting_segments: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierList {
    pub tiers: Vec<TierView>,
}

/// Position of a check of a tier; left out: the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierCheck {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "main", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub volume: Option<VolumeName>,
    /// The number of a segment of that volume.
    #[serde(default)]
    pub segment: u64,
}

/// The result of a step of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierChecked {
    /// Bytes that were read and are intact.
    pub bytes: u64,
    /// Objects that are damaged, missing or unreadable.
    pub problems: Vec<String>,
    /// The position for the next step; left out: the check is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<TierCheck>,
}

/// What a node does with tiers.
pub trait TierControl: Send + Sync {
    fn tiers(&self) -> Answer<'_, Vec<TierView>>;
    fn tier(&self, name: TierName) -> Answer<'_, TierView>;
    fn tier_add(&self, add: TierAdd) -> Answer<'_, TierView>;
    /// Removes one that nothing is in.
    fn tier_remove(&self, name: TierName) -> Answer<'_, ()>;
    /// Reads an object that is in it, and compares it with its checksums.
    fn tier_check(&self, name: TierName, from: TierCheck) -> Answer<'_, TierChecked>;
}

endpoints! {
    /// Lists the tiers, with the data in them.
    TIER_LIST: Endpoint<(), (), TierList> = get("/api/v1/tiers").list("tiers", &["name"]);

    /// Adds a tier. No other pool may use the bucket and prefix, or the directory. `PATCH /api/v1/volumes/{name}` sets which data is
    /// offloaded to it.
    TIER_ADD: Endpoint<(), TierAdd, TierView> = create("/api/v1/tiers");

    /// Shows one tier.
    TIER_SHOW: Endpoint<TierName, (), TierView> = get("/api/v1/tiers/{tier}");

    /// Removes an empty tier.
    TIER_REMOVE: Endpoint<TierName, (), ()> = delete("/api/v1/tiers/{tier}");

    /// Reads an object of a tier and verifies its checksums. To check all objects, repeat the request with `next` until there is
    /// none.
    TIER_CHECK: Endpoint<TierName, TierCheck, TierChecked> = post("/api/v1/tiers/{tier}/check");

}

name_in_path!(
    TierName,
    plain_name(),
    absent("there is no tier of the name in the path").hint("`cairn tier list` shows all tiers")
);

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn TierControl>(|node| {
            node.tiers()
                .ok_or_else(|| absent("this server has no tiers"))
        })
        .on(TIER_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(TierList {
                    tiers: node.tiers().await?,
                })
            })
        })
        .on(TIER_ADD, |node, (), add| node.tier_add(add))
        .on(TIER_SHOW, |node, name, ()| node.tier(name))
        .on(TIER_REMOVE, |node, name, ()| node.tier_remove(name))
        .on(TIER_CHECK, |node, name, from| node.tier_check(name, from));
}
