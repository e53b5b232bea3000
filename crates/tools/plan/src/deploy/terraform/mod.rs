//! Terraform and OpenTofu.
//!
//! Owns: which file a design gets, what all of them call things. Must not know: how HCL is written, what the boot scripts do.

mod cluster;
mod parts;
mod protection;
mod server;
mod variables;

use self::cluster::cluster;
use self::server::server;
use super::hcl::{Body, Value, expression};
use super::spec::Spec;
use super::{DeployError, DeployOptions};

const ROOT_GIB: u32 = 100;
/// How long a boot may take.
const BOOT_SECONDS: u32 = 30 * 60;
/// The stack that waits for boots.
const BOOT_STACK: &str = "${var.cluster_name}-boot";
/// An instance that was just put in service is not judged before.
const HEALTH_GRACE_SECONDS: u32 = 300;
/// The oldest version of the provider whose schema these files were compared with.
const PROVIDER_VERSION: &str = ">= 5.8";
const TAG: &str = "cairn:server";

pub(super) fn template(
    spec: &Spec,
    options: &DeployOptions,
    region: &str,
) -> Result<String, DeployError> {
    let mut file = Body::default();
    match spec {
        Spec::Server(machine) => server(&mut file, machine, options, region)?,
        Spec::Cluster { nodes, node } => cluster(&mut file, *nodes, node, options, region)?,
    }
    Ok(file.text())
}

/// A quoted string with templates in it, of which nothing has to be escaped.
fn interpolated(text: &str) -> Value {
    expression(format!("\"{text}\""))
}

fn tags(suffix: &str) -> Value {
    Value::Object(vec![
        (
            "Name".to_string(),
            interpolated(&format!("${{var.cluster_name}}-{suffix}")),
        ),
        (TAG.to_string(), expression("var.cluster_name")),
    ])
}
