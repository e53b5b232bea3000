//! The background jobs of a node: JSON, the route, and what it asks of a node.
//!
//! Owns: what is shown of a job. Must not know: what jobs do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{Endpoint, absent, endpoints, get};
use crate::server::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// A step is being done.
    Busy,
    /// The next step is not due yet.
    Waiting,
    /// As `waiting`; the last step had a reason to do nothing.
    Held,
    /// The last step failed. The next one comes after a pause, which grows with each failure.
    Failed,
}

impl JobState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Failed => "failed",
        }
    }
}

/// A background job of the node that answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    #[schema(example = "pool-file")]
    pub name: String,
    /// What the job is for, where several have one name: a volume, a service.
    pub subject: Option<String>,
    pub state: JobState,
    /// Why the last step did nothing, if the state is `held`.
    pub held_because: Option<String>,
    /// The usual time between the end of a step and the next one.
    pub period_seconds: f64,
    /// Steps that ended since the job began, also those that failed.
    pub steps: u64,
    /// Steps that failed.
    pub errors: u64,
    /// Steps that failed because of a bug in the server.
    pub panics: u64,
    /// The time that all these steps took.
    pub busy_seconds: f64,
    /// The begin of the last step, in seconds since 1970.
    pub last_began_seconds: Option<i64>,
    /// How long the last step took that ended.
    pub last_took_seconds: Option<f64>,
    /// How long the present step takes so far, if the state is `busy`.
    pub busy_for_seconds: Option<f64>,
    /// The time until the next step, unless the state is `busy`.
    pub next_in_seconds: Option<f64>,
    /// Steps that failed since the last one that did not.
    pub failed_in_row: u64,
    /// The last error, also if later steps succeeded.
    pub last_error: Option<String>,
    /// The time of the last error, in seconds since 1970.
    pub last_error_seconds: Option<i64>,
}

/// The background jobs of the node that answers, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    pub jobs: Vec<JobView>,
}

endpoints! {
    /// The background jobs of this node, by name: what each of them does now, when its next step is due, and its last error.
    JOB_LIST: Endpoint<(), (), JobList> = get("/api/v1/jobs");
}

/// What a node knows of its background jobs.
pub trait JobControl: Send + Sync {
    fn jobs(&self) -> Answer<'_, JobList>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn JobControl>(|node| {
            node.jobs()
                .ok_or_else(|| absent("this server has no background jobs"))
        })
        .on(JOB_LIST, |node, (), ()| node.jobs());
}
