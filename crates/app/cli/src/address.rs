//! `cairn address`: addresses that the nodes of a cluster share.

use cairn_admin::address_pools::{
    ADDRESS_POOL_CHANGE, ADDRESS_POOL_CREATE, ADDRESS_POOL_DELETE, ADDRESS_POOL_LIST,
    ADDRESS_POOL_SHOW, AddressPoolChange, AddressPoolCreate, AddressPoolName, AddressPoolView,
};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

#[derive(Debug, Subcommand)]
pub enum AddressCommand {
    /// Address pools: each node holds its share of the addresses, and other nodes hold it while the node is away
    #[command(subcommand)]
    Pool(AddressPoolCommand),
}

#[derive(Debug, Subcommand)]
pub enum AddressPoolCommand {
    /// Create an address pool of unused addresses: `cairn address pool create lan 10.0.0.20-10.0.0.25/24`
    ///
    /// Each node is the home of an equal share of the addresses. While a node is lost, drains or is in maintenance, other nodes hold
    /// its addresses; it gets them back once it has been up for 30 s. Clients keep their mounts meanwhile. Nodes put addresses on an
    /// interface and announce them to neighbours (ARP, neighbour discovery); `cairn serve` needs CAP_NET_ADMIN and CAP_NET_RAW for
    /// that. Instead, a program can move the addresses (`--address-hook`).
    Create(AddressPoolCreateArgs),
    /// List all address pools: each address with its home, its holder and its problem
    List(ViewArgs),
    /// Show one address pool
    Show(AddressPoolArgs),
    /// Add addresses to an address pool: `cairn address pool add lan 10.0.0.30/24`
    Add(AddressPoolChangeArgs),
    /// Remove addresses from an address pool: `cairn address pool remove lan 10.0.0.30`
    Remove(AddressPoolChangeArgs),
    /// Delete an address pool: its nodes drop the addresses
    Delete(AddressPoolArgs),
}

#[derive(Debug, Args)]
pub struct AddressPoolCreateArgs {
    /// The name of the address pool
    pub name: String,
    /// Addresses of one network, each with the length of its prefix, or ranges of them: 10.0.0.20-10.0.0.25/24
    #[arg(value_name = "ADDR/PREFIX", required = true)]
    pub addresses: Vec<String>,
    /// The network interface, which has the same name on each node [default: the one with an address in the same network]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// DNS name that the nodes' DNS responders (`--listen-dns`) resolve to the addresses that nodes hold now
    #[arg(long, value_name = "NAME")]
    pub dns: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct AddressPoolArgs {
    /// The name of the address pool
    pub name: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct AddressPoolChangeArgs {
    /// The name of the address pool
    pub name: String,
    /// Addresses or ranges; for `remove` also without a prefix length
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
            let pool = access::client(&args.view.server)?
                .ask(ADDRESS_POOL_SHOW, &AddressPoolName(args.name.clone()))?;
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
            access::client(&args.view.server)?
                .ask(ADDRESS_POOL_DELETE, &AddressPoolName(args.name.clone()))?;
            print::text(&format!("address pool {} is deleted", args.name))
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
    let pool = access::client(&args.view.server)?.tell(ADDRESS_POOL_CREATE, &(), &create)?;
    show(&args.view, &pool)
}

fn changed(args: &AddressPoolChangeArgs, change: &AddressPoolChange) -> Result<(), Failure> {
    let pool = access::client(&args.view.server)?.tell(
        ADDRESS_POOL_CHANGE,
        &AddressPoolName(args.name.clone()),
        change,
    )?;
    show(&args.view, &pool)
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.ask(ADDRESS_POOL_LIST, &())?;
    if args.json {
        return print::json(&list);
    }
    if list.pools.is_empty() {
        return print::text(
            "there is no address pool; create one with `cairn address pool create NAME ADDR/PREFIX...`",
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
