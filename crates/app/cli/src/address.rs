//! `cairn address`: addresses that the nodes of a cluster share.

use cairn_admin::address_pools::{AddressPoolChange, AddressPoolCreate, AddressPoolView};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

#[derive(Debug, Subcommand)]
pub enum AddressCommand {
    /// Pools of addresses: each node has its share, and others have it while the node is away
    #[command(subcommand)]
    Pool(AddressPoolCommand),
}

#[derive(Debug, Subcommand)]
pub enum AddressPoolCommand {
    /// Have the nodes share addresses that nobody has: `cairn address pool create lan 10.0.0.20-10.0.0.25/24`
    ///
    /// Each address has a home among the nodes, evenly. While that node is lost, drains or is in maintenance other nodes have its
    /// addresses, and it gets them back when it has been there for 30 s again. Clients that mount any of them go on. Addresses are
    /// put on an interface and announced to neighbours (ARP, neighbour discovery), for which `cairn serve` needs CAP_NET_ADMIN
    /// and CAP_NET_RAW; or a program moves them (`--address-hook`).
    Create(AddressPoolCreateArgs),
    /// List all pools: each address, its home, the node that has it now, and what is in the way
    List(ViewArgs),
    /// Show one pool
    Show(AddressPoolArgs),
    /// Add addresses to a pool: `cairn address pool add lan 10.0.0.30/24`
    Add(AddressPoolChangeArgs),
    /// Take addresses out of a pool: `cairn address pool remove lan 10.0.0.30`
    Remove(AddressPoolChangeArgs),
    /// Delete a pool: no node has its addresses any more
    Delete(AddressPoolArgs),
}

#[derive(Debug, Args)]
pub struct AddressPoolCreateArgs {
    /// The name of the pool
    pub name: String,
    /// Addresses of one network, each with the length of its prefix, or ranges of them: 10.0.0.20-10.0.0.25/24
    #[arg(value_name = "ADDR/PREFIX", required = true)]
    pub addresses: Vec<String>,
    /// The network interface, of the same name on each node [default: that with an address in the same network]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// The name by which the nodes' DNS responders (`--listen-dns`) tell of the addresses that nodes have now
    #[arg(long, value_name = "NAME")]
    pub dns: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct AddressPoolArgs {
    /// The name of the pool
    pub name: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct AddressPoolChangeArgs {
    /// The name of the pool
    pub name: String,
    /// Addresses or ranges; those that go also without the length of their prefix
    #[arg(value_name = "ADDR/PREFIX", required = true)]
    pub addresses: Vec<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn address(command: &AddressCommand) -> Result<(), Failure> {
    let AddressCommand::Pool(command) = command;
    match command {
        AddressPoolCommand::Create(args) => create(args),
        AddressPoolCommand::List(args) => list(args),
        AddressPoolCommand::Show(args) => {
            let pool = access::client(&args.view.server)?.address_pool(&args.name)?;
            show(&args.view, &pool)
        }
        AddressPoolCommand::Add(args) => {
            let change = AddressPoolChange {
                add: args.addresses.clone(),
                remove: Vec::new(),
            };
            changed(args, &change)
        }
        AddressPoolCommand::Remove(args) => {
            let change = AddressPoolChange {
                add: Vec::new(),
                remove: args.addresses.clone(),
            };
            changed(args, &change)
        }
        AddressPoolCommand::Delete(args) => {
            access::client(&args.view.server)?.address_pool_delete(&args.name)?;
            print::text(&format!("there is no address pool {} any more", args.name))
        }
    }
}

fn create(args: &AddressPoolCreateArgs) -> Result<(), Failure> {
    let create = AddressPoolCreate {
        name: args.name.clone(),
        addresses: args.addresses.clone(),
        interface: args.interface.clone(),
        dns_name: args.dns.clone(),
    };
    let pool = access::client(&args.view.server)?.address_pool_create(&create)?;
    show(&args.view, &pool)
}

fn changed(args: &AddressPoolChangeArgs, change: &AddressPoolChange) -> Result<(), Failure> {
    let pool = access::client(&args.view.server)?.address_pool_change(&args.name, change)?;
    show(&args.view, &pool)
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.address_pools()?;
    if args.json {
        return print::json(&list);
    }
    if list.pools.is_empty() {
        return print::text(
            "there is no address pool; `cairn address pool create NAME ADDR/PREFIX...` makes one",
        );
    }
    print::text(&table(&list.pools))
}

fn show(args: &ViewArgs, pool: &AddressPoolView) -> Result<(), Failure> {
    if args.json {
        return print::json(pool);
    }
    print::text(&table(std::slice::from_ref(pool)))
}

fn table(pools: &[AddressPoolView]) -> String {
    let columns: [Column; 6] = [
        ("POOL", Align::Left),
        ("ADDRESS", Align::Left),
        ("HOME", Align::Left),
        ("NODE", Align::Left),
        ("DNS", Align::Left),
        ("PROBLEM", Align::Left),
    ];
    let rows = pools.iter().flat_map(|pool| {
        pool.addresses.iter().map(|address| {
            vec![
                pool.name.clone(),
                address.address.clone(),
                address.home.clone().unwrap_or_default(),
                address.node.clone().unwrap_or_else(|| "nobody".to_owned()),
                pool.dns_name.clone().unwrap_or_default(),
                address.problem.clone().unwrap_or_default(),
            ]
        })
    });
    print::table(&columns, rows.collect())
}
