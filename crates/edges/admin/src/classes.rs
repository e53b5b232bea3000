//! Classes of service, and limits of parts of volumes: JSON, routes, and what they ask of a node.

use cairn_config::{ClassName, ClassSpec, PartLimit, RateSpec, VolumeName, VolumePart, WordError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, absent, create, delete, endpoints, get,
    name_in_path, plain_name, put, remove, text,
};
use crate::server::Table;

/// A rate per second: bytes, or operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RateView {
    /// For each TiB of a volume's size limit.
    #[serde(default)]
    #[schema(maximum = 1125899906842624u64)]
    pub per_tib: u64,
    /// A fixed rate in addition, whatever the size.
    #[serde(default)]
    #[schema(maximum = 1125899906842624u64)]
    pub fixed: u64,
    /// The burst rate, in thousandths of the rate; 1000 means no burst.
    #[serde(default = "no_burst")]
    #[schema(example = 4000, minimum = 1000, maximum = 1000000)]
    pub burst_permille: u32,
    /// How long a full credit lasts at full burst.
    #[serde(default)]
    #[schema(maximum = 2592000)]
    pub credit_seconds: u64,
}

fn no_burst() -> u32 {
    1000
}

/// Limits of a class. A field that is left out means no limit. All limits but `total_throughput` apply to each volume by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassLimits {
    /// Bytes, reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<RateView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_throughput: Option<RateView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_throughput: Option<RateView>,
    /// Operations of any kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<RateView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<RateView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<RateView>,
    /// Bytes per second for each client of a volume; a client is an address or an S3 access key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1024, maximum = 1125899906842624u64)]
    pub client_throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1125899906842624u64)]
    pub client_iops: Option<u64>,
    /// Bytes per second on each node for all volumes of the class together. Volumes can borrow unused parts of this rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1024, maximum = 1125899906842624u64)]
    pub total_throughput: Option<u64>,
    /// Latency objective for 99 of 100 requests, from the end of their delay. While a volume misses it, background work is throttled
    /// more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 2000, minimum = 50, maximum = 60000000)]
    pub latency_goal_microseconds: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassView {
    #[schema(value_type = String, example = "gold")]
    pub name: ClassName,
    /// A built-in class, which cannot be changed or deleted.
    pub built_in: bool,
    pub limits: ClassLimits,
    /// Volumes in the class.
    #[schema(value_type = Vec<String>)]
    pub volumes: Vec<VolumeName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassList {
    pub classes: Vec<ClassView>,
}

/// A class to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassCreate {
    #[schema(value_type = String, example = "gold", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: ClassName,
    pub limits: ClassLimits,
}

/// New limits of a class; they apply to its volumes at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassSet {
    pub limits: ClassLimits,
}

/// The state of a volume's limit, in bytes or operations per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitView {
    /// throughput, read-throughput, write-throughput, iops, read-iops or write-iops.
    #[schema(example = "throughput")]
    pub of: String,
    pub baseline: u64,
    pub burst: u64,
    /// The use over about the last second.
    pub now: u64,
    /// Remaining credit above the baseline, and the maximum credit.
    pub credit: u64,
    pub credit_max: u64,
    /// Seconds until the credit is used up at the current rate; left out while no credit is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_ends_seconds: Option<u64>,
}

/// A part of a volume with limits of its own, and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartView {
    #[serde(flatten)]
    pub limit: PartLimit,
    /// Use over about the last second; left out while the volume is not served or its owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_second: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartList {
    pub limits: Vec<PartView>,
    /// In a cluster: the name of the volume's owner, if it is not the answering node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// A volume's state against the latency objective of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    pub goal_microseconds: u64,
    /// Whether at most one of a hundred requests was late in the last ten seconds (a minute, if there were few requests); left
    /// out while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// Requests answered in that time, and how many of them missed the objective.
    pub requests: u64,
    pub late: u64,
    /// Requests, and late requests, since the objective was set or the server started.
    pub requests_total: u64,
    pub late_total: u64,
}

/// A volume's use of its class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    pub limits: Vec<LimitView>,
    /// Parts of the volume with limits of their own, and their use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyView>,
    /// Use over about the last second.
    pub read_bytes_per_second: u64,
    pub written_bytes_per_second: u64,
    pub operations_per_second: u64,
    /// Requests that are delayed now.
    pub waiting: u64,
    /// Requests delayed since the start, and the sum of their delays.
    pub delayed: u64,
    pub delayed_ms: u64,
}

impl From<RateView> for RateSpec {
    fn from(view: RateView) -> Self {
        Self {
            per_tib: view.per_tib,
            fixed: view.fixed,
            burst_permille: view.burst_permille,
            credit_seconds: view.credit_seconds,
        }
    }
}

impl From<RateSpec> for RateView {
    fn from(spec: RateSpec) -> Self {
        Self {
            per_tib: spec.per_tib,
            fixed: spec.fixed,
            burst_permille: spec.burst_permille,
            credit_seconds: spec.credit_seconds,
        }
    }
}

impl From<ClassLimits> for ClassSpec {
    fn from(limits: ClassLimits) -> Self {
        Self {
            throughput: limits.throughput.map(Into::into),
            read_throughput: limits.read_throughput.map(Into::into),
            write_throughput: limits.write_throughput.map(Into::into),
            iops: limits.iops.map(Into::into),
            read_iops: limits.read_iops.map(Into::into),
            write_iops: limits.write_iops.map(Into::into),
            client_throughput: limits.client_throughput,
            client_iops: limits.client_iops,
            total_throughput: limits.total_throughput,
            latency_goal_us: limits.latency_goal_microseconds,
        }
    }
}

impl From<ClassSpec> for ClassLimits {
    fn from(spec: ClassSpec) -> Self {
        Self {
            throughput: spec.throughput.map(Into::into),
            read_throughput: spec.read_throughput.map(Into::into),
            write_throughput: spec.write_throughput.map(Into::into),
            iops: spec.iops.map(Into::into),
            read_iops: spec.read_iops.map(Into::into),
            write_iops: spec.write_iops.map(Into::into),
            client_throughput: spec.client_throughput,
            client_iops: spec.client_iops,
            total_throughput: spec.total_throughput,
            latency_goal_microseconds: spec.latency_goal_us,
        }
    }
}

/// What a node does with classes.
pub trait ClassControl: Send + Sync {
    fn classes(&self) -> Answer<'_, Vec<ClassView>>;
    fn class(&self, name: ClassName) -> Answer<'_, ClassView>;
    fn class_create(&self, create: ClassCreate) -> Answer<'_, ClassView>;
    fn class_set(&self, name: ClassName, set: ClassSet) -> Answer<'_, ClassView>;
    /// One that volumes are in is refused.
    fn class_delete(&self, name: ClassName) -> Answer<'_, ()>;
    /// The parts of a volume that have limits.
    fn limits(&self, volume: VolumeName) -> Answer<'_, PartList>;
    /// Puts other limits in the place of those of a part.
    fn limit_set(&self, volume: VolumeName, limit: PartLimit) -> Answer<'_, PartList>;
    fn limit_clear(&self, volume: VolumeName, part: VolumePart) -> Answer<'_, PartList>;
}

endpoints! {
    /// Lists all classes, including built-in ones, with their volumes.
    CLASS_LIST: Endpoint<(), (), ClassList> = get("/api/v1/classes").list("classes", &["name"]);

    /// Creates a class. `PATCH /api/v1/volumes/{name}` puts volumes into it.
    CLASS_CREATE: Endpoint<(), ClassCreate, ClassView> = create("/api/v1/classes");

    /// Shows one class.
    CLASS_SHOW: Endpoint<ClassName, (), ClassView> = get("/api/v1/classes/{class}");

    /// Replaces the limits of a class. They apply to its volumes at once.
    CLASS_SET: Endpoint<ClassName, ClassSet, ClassView> = put("/api/v1/classes/{class}");

    /// Deletes a class without volumes.
    CLASS_DELETE: Endpoint<ClassName, (), ()> = delete("/api/v1/classes/{class}");

    /// Lists the parts of a volume that have limits, with their use.
    LIMIT_LIST: Endpoint<VolumeName, (), PartList> = get("/api/v1/volumes/{volume}/limits").list("limits", &["part"]);

    /// Replaces the limits of a part of a volume.
    LIMIT_SET: Endpoint<VolumeName, PartLimit, PartList> = put("/api/v1/volumes/{volume}/limits");

    /// Removes the limits of the part that `part` names.
    LIMIT_CLEAR: Endpoint<(VolumeName, PartOf), (), PartList> = remove("/api/v1/volumes/{volume}/limits");

}

name_in_path!(
    ClassName,
    plain_name(),
    absent("there is no class of the name in the path")
        .hint("`cairn class list` shows all classes")
);

/// The part of a volume whose limits are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOf(pub VolumePart);

impl Argument for PartOf {
    fn describe(to: &mut Parameters) {
        to.required(
            "part",
            text(5, 135).pattern(Some("^(lun|bucket|clients)/.+$")),
        );
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(&["part"])?;
        let invalid = |text: String| ControlError::new(ErrorKind::Invalid, text);
        let part = query.values("part").next();
        let part = part.ok_or_else(|| invalid("say which: ?part=lun/NAME".to_owned()))?;
        let part: Result<VolumePart, WordError> = part.parse();
        part.map(Self).map_err(|error| invalid(error.to_string()))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask("part", &self.0.to_string());
        Ok(())
    }
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn ClassControl>(|node| {
            node.classes()
                .ok_or_else(|| absent("this server has no classes"))
        })
        .on(CLASS_LIST, |node, (), ()| {
            Box::pin(async move {
                Ok(ClassList {
                    classes: node.classes().await?,
                })
            })
        })
        .on(CLASS_CREATE, |node, (), create| node.class_create(create))
        .on(CLASS_SHOW, |node, name, ()| node.class(name))
        .on(CLASS_SET, |node, name, set| node.class_set(name, set))
        .on(CLASS_DELETE, |node, name, ()| node.class_delete(name))
        .on(LIMIT_LIST, |node, volume, ()| node.limits(volume))
        .on(LIMIT_SET, |node, volume, limit| {
            node.limit_set(volume, limit)
        })
        .on(LIMIT_CLEAR, |node, (volume, PartOf(part)), ()| {
            node.limit_clear(volume, part)
        });
}
