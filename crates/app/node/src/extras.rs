//! Parts of a server that a program may leave out: the planner and benchmarks.
//!
//! Owns: what they get of the node, and what the node has of them. Must not know: their crates, which depend on none of
//! the node's. Without one, its paths of the admin API answer that it is not there.

use std::sync::Arc;

use cairn_admin::api::NfsView;
use cairn_admin::benchmarks::{BenchmarkHost, BenchmarkRunner};
use cairn_admin::plans::{PlanControl, StoragePrices};
use cairn_base::env::Env;

use crate::benchmarks::Measured;
use crate::node::NodeCore;

/// Makes the planner of a node, which gives it the time.
pub type StartPlans = fn(&Env) -> Arc<dyn PlanControl>;
/// Makes the benchmarks of a node.
pub type StartBenchmarks = fn(Arc<dyn BenchmarkHost>) -> Arc<dyn BenchmarkRunner>;

/// The parts that a program has, by how they are made. By default none.
#[derive(Clone, Copy, Default)]
pub struct NodeExtras {
    pub plans: Option<StartPlans>,
    /// Prices of data in tiers; without them no costs are shown.
    pub prices: Option<&'static dyn StoragePrices>,
    pub benchmarks: Option<StartBenchmarks>,
}

/// The parts of a running node.
pub struct Extras {
    pub plans: Option<Arc<dyn PlanControl>>,
    pub prices: Option<&'static dyn StoragePrices>,
    pub benchmarks: Option<Arc<dyn BenchmarkRunner>>,
}

impl NodeExtras {
    pub(crate) fn start(self, node: &Arc<NodeCore>, nfs: &NfsView) -> Extras {
        let benchmarks = self.benchmarks;
        Extras {
            plans: self.plans.map(|start| start(&node.env)),
            prices: self.prices,
            benchmarks: benchmarks.map(|start| start(Arc::new(Measured::new(node, nfs)))),
        }
    }
}

impl Extras {
    /// The names of the parts that this server was built without, as the console names their pages.
    pub fn missing(&self) -> Vec<String> {
        let parts = [
            ("plan", self.plans.is_some()),
            ("benchmarks", self.benchmarks.is_some()),
        ];
        let missing = parts.iter().filter(|(_, is_here)| !is_here);
        missing.map(|(name, _)| (*name).to_owned()).collect()
    }
}
