//! `cairn node maintenance ...`.
//!
//! Owns: what must be so before a node is away, and the wait until its volumes and addresses have moved.

use std::time::{Duration, Instant};

use cairn_admin::address_pools::ADDRESS_POOL_LIST;
use cairn_admin::api::ErrorKind;
use cairn_admin::cluster::{CLUSTER, ClusterView, NODE_MAINTENANCE, NodeMaintenance, NodeName};
use cairn_admin::{Client, ClientError};
use clap::{Args, Subcommand};

use crate::args::ViewArgs;
use crate::cluster::NodeArgs;
use crate::exit::Failure;
use crate::upgrade::in_the_way;
use crate::{access, print};

#[derive(Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Move a node's volumes to other nodes, and rebuild none of its disks for a while
    ///
    /// This is refused while another node, a disk, an etcd member or a copy of a log is missing; `cairn node upgrade` shows which.
    ///
    /// Example: cairn node maintenance on three --for 2h
    On(MaintenanceOnArgs),
    /// End a node's maintenance: the node takes volumes again
    ///
    /// Example: cairn node maintenance off three
    Off(NodeArgs),
}

#[derive(Debug, Args)]
pub struct MaintenanceOnArgs {
    /// The node's name
    pub node: String,
    /// How long the node's disks are not rebuilt; at most 7d
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub time: std::time::Duration,
    /// Start maintenance even while something else is missing
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Volumes that move for other reasons have so long to arrive before they are in the way.
const SETTLED_MAX: Duration = Duration::from_secs(10);
/// Volumes of a node have so long to move.
const MOVED_MAX: Duration = Duration::from_secs(120);
/// Then its addresses: they move within seconds, if another node can have them.
const ADDRESSES_MOVED_MAX: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Volumes that a node owns.
fn owned<'a>(view: &'a ClusterView, node: &str) -> Vec<&'a str> {
    let volumes = view.volumes.iter();
    let owned = volumes.filter(|volume| volume.owner.as_deref() == Some(node));
    owned.map(|volume| volume.name.as_str()).collect()
}

pub fn on(args: &MaintenanceOnArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let (node, seconds) = (args.node.as_str(), args.time.as_secs());
    let view = settled(&client)?;
    let is_in = |name: &str| {
        let mut nodes = view.nodes.iter();
        nodes.any(|known| known.name == name && known.maintenance_seconds.is_some())
    };
    // To say it once more gives the node more time.
    if !args.force && !is_in(node) {
        let left = in_the_way(&view);
        if !left.is_empty() {
            let why = format!("node {node} should not stop now: {}", left.join("; "));
            return Err(Failure::refused(why).hint(
                "`cairn node upgrade --wait` waits until it may stop; --force overrides this",
            ));
        }
    }
    client.tell(
        NODE_MAINTENANCE,
        &NodeName(node.to_owned()),
        &NodeMaintenance { seconds },
    )?;
    let view = moved(&client, node)?;
    let addresses = addresses_left(&client, node)?;
    if args.view.json {
        return print::json(&view.nodes);
    }
    let left = match addresses.is_empty() {
        true => String::new(),
        false => format!(
            "\nno other node can take {}, which no node holds while this one is away; `cairn address pool list` shows why",
            addresses.join(", ")
        ),
    };
    print::text(&format!(
        "node {node} owns no volume and may stop; its disks are not rebuilt for {}{left}\nwhen it is back: cairn node maintenance \
         off {node}",
        crate::status::duration(seconds)
    ))
}

/// The cluster, once no volume is on its way from one node to another, or after a while.
fn settled(client: &Client) -> Result<ClusterView, Failure> {
    let until = Instant::now() + SETTLED_MAX;
    loop {
        let view = client.ask(CLUSTER, &())?;
        let is_moving = view.volumes.iter().any(|volume| volume.owner.is_none());
        if !is_moving || Instant::now() >= until {
            return Ok(view);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Addresses of pools that a node still has when others had the time to take them.
fn addresses_left(client: &Client, node: &str) -> Result<Vec<String>, Failure> {
    let until = Instant::now() + ADDRESSES_MOVED_MAX;
    loop {
        let pools = match client.ask(ADDRESS_POOL_LIST, &()) {
            Ok(list) => list.pools,
            // A server of an earlier version has none.
            Err(ClientError::Refused(why)) if why.kind == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let addresses = pools.into_iter().flat_map(|pool| pool.addresses);
        let left = addresses.filter(|address| address.node.as_deref() == Some(node));
        let left: Vec<String> = left.map(|address| address.address).collect();
        if left.is_empty() || Instant::now() >= until {
            return Ok(left);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The cluster, once a node owns nothing.
fn moved(client: &Client, node: &str) -> Result<ClusterView, Failure> {
    let until = Instant::now() + MOVED_MAX;
    loop {
        let view = client.ask(CLUSTER, &())?;
        let left = owned(&view, node);
        if left.is_empty() && view.volumes.iter().all(|volume| volume.owner.is_some()) {
            return Ok(view);
        }
        if Instant::now() >= until {
            let why = format!("node {node} still owns {}", left.join(", "));
            return Err(Failure::refused(why).hint(
                "`cairn cluster status` shows why other nodes do not take them; `cairn node maintenance off` takes it \
                 back",
            ));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

pub fn off(args: &NodeArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let view = client.tell(
        NODE_MAINTENANCE,
        &NodeName(args.node.clone()),
        &NodeMaintenance { seconds: 0 },
    )?;
    if args.view.json {
        return print::json(&view.nodes);
    }
    print::text(&format!("node {} takes volumes again", args.node))
}
