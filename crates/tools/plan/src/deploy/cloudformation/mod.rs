//! CloudFormation.
//!
//! Owns: which template a design gets, what all of them call things. Must not know: YAML and JSON, what the boot scripts do.

mod cluster;
mod parts;
mod protection;
mod server;
mod words;

use self::cluster::cluster;
use self::server::server;
use super::spec::Spec;
use super::tree::Node;
use super::{DeployError, DeployOptions};

const ROOT_DEVICE: &str = "/dev/xvda";
const ROOT_GIB: u32 = 100;
/// How long a boot may take: packages, volumes that an instance before this one still has, a start that replays the log.
const BOOT_TIME: &str = "PT30M";
const BOOT_SECONDS: u32 = 30 * 60;
/// An instance that was just put in service is not judged before.
const HEALTH_GRACE_SECONDS: u32 = 300;
/// Whose volumes, interfaces and instances belong together; the roles' permissions go by it.
const TAG: &str = "cairn:server";

pub(super) fn template(spec: &Spec, options: &DeployOptions) -> Result<Node, DeployError> {
    match spec {
        Spec::Server(machine) => server(machine, options),
        Spec::Cluster { nodes, node } => cluster(*nodes, node, options),
    }
}
