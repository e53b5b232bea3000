//! What coordinator and agent say to each other.
//!
//! Owns: the JSON, its version, its limits. Must not know: how it is sent, what is done.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /bench/v1/hello` | | [`Hello`] |
//! | `POST /bench/v1/sessions` | [`Open`] | [`Opened`] |
//! | `POST /bench/v1/sessions/ID/orders` | [`Order`] | [`State`] |
//! | `GET /bench/v1/sessions/ID` | | [`State`] |
//! | `POST /bench/v1/sessions/ID/go` | [`Go`] | [`State`] |
//! | `POST /bench/v1/sessions/ID/stop` | | [`State`] |
//! | `DELETE /bench/v1/sessions/ID` | | nothing |
//!
//! Each carries `Authorization: Bearer TOKEN`. Orders are numbered, so that one whose answer was lost
//! can be sent again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{DataPattern, Phase};
use crate::result::{Machine, PhaseResult};

/// Both sides must speak the same.
pub const PROTOCOL: &str = "cairn-bench-agent/1";
pub const AGENT_PORT_DEFAULT: u16 = 7117;
/// Longest body of a request.
pub const REQUEST_LEN_BYTES_MAX: usize = 256 << 10;
/// Longest answer that is read: the result of a phase with its samples.
pub const ANSWER_LEN_BYTES_MAX: u64 = 32 << 20;
/// Longest time from `go` to the start.
pub const GO_DELAY_MS_MAX: u64 = 10_000;
/// An agent that hears nothing for so long gives the run up.
pub const COORDINATOR_SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: String,
    pub cairn_version: String,
    pub machine: Machine,
    pub busy: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Open {
    pub protocol: String,
    pub target: String,
    /// Files stay when the coordinator is lost.
    pub keep: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    pub session: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// 1 for the first of a session.
    pub number: u64,
    pub command: Command,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Command {
    Prepare {
        bytes_needed: u64,
        allow_files: bool,
    },
    Run {
        phase: Phase,
        pattern: DataPattern,
        client: u32,
        client_count: u32,
    },
    DropCaches,
    CleanUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Nothing was ordered yet.
    Idle,
    Working,
    /// All files of the phase are there; it waits for `go`.
    Ready,
    /// The clock of the phase runs.
    Begun,
    Done,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Of the last order.
    pub number: u64,
    pub stage: Stage,
    /// Since the session began.
    pub operations: u64,
    pub bytes: u64,
    /// When the stage is [`Stage::Done`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    Prepared {
        engine: String,
        mount: Option<String>,
    },
    Ran {
        result: Box<PhaseResult>,
        notes: Vec<String>,
    },
    Dropped {
        how: String,
    },
    CleanedUp,
    Failed {
        why: String,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Go {
    /// The order that is meant.
    pub number: u64,
    /// Until the clock starts, so that it is the same moment for all.
    pub in_ms: u64,
}

/// The body of every answer that is no success.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub error: String,
}
