//! A whole cluster in one thread: the real engine of several nodes with several volumes on simulated disks, clocks and
//! streams, with etcd in memory, and an object store for cold data.
//!
//! There are two kinds of clients: those of the engine use the owner of their volume (`terms`), others talk to any node
//! (`calls`).
//!
//! Owns: the surroundings of the nodes. Clients, model and judgement are those of one server. Must not know: how the
//! engine keeps its promises. It has the view of an edge, and that of disks, clocks, streams and etcd.

mod aimed;
mod calls;
mod clock;
mod edge;
mod ending;
mod etcd;
mod failure;
mod happen;
mod machines;
mod map_rules;
mod net;
mod node;
mod pace;
mod promises;
mod report;
mod run;
mod scenario;
mod shrink;
mod terms;
mod tiers;
mod volumes;

pub use aimed::has_late_calls;
pub use calls::{CallPlan, Moment, Turning};
pub use promises::Verb;
pub use report::{CallsCounted, Counts, Report};
pub use run::run;
pub use scenario::{ClusterScenario, Ending, Event, VolumePlan, What, Who};
pub use shrink::shrink;
