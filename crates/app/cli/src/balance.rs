//! `cairn cluster balance` and `cairn node weight`.
//!
//! Owns: the loop over moves, how a balance looks. Must not know: which volume should move.

use cairn_admin::balance::{
    BALANCE, BALANCE_STEP, BalanceMove, BalanceNode, BalanceReason, BalanceShare, BalanceView,
};
use cairn_admin::cluster::{NODE_WEIGHT, NodeName, NodeWeight};
use cairn_base::units::format_size;
use clap::Args;

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

#[derive(Debug, Args)]
pub struct ClusterBalanceArgs {
    /// Only show which volumes would move, and why
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeWeightArgs {
    /// The node's name
    pub node: String,
    /// 0 to 1000
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub weight: u32,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn balance(args: &ClusterBalanceArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let before = client.ask(BALANCE, &())?;
    if args.dry_run {
        return match args.view.json {
            true => print::json(&before),
            false => print::text(&text(&before)),
        };
    }
    let mut made = Vec::new();
    let mut view = before;
    // Clients may change what should move while volumes do: each moves once, that is enough.
    let volumes: usize = view.nodes.iter().map(|node| node.volumes).sum();
    while !view.moves.is_empty() && made.len() < volumes {
        view = client.ask(BALANCE_STEP, &())?;
        let Some(moved) = view.moved.take() else {
            break;
        };
        if !args.view.json {
            print::text(&format!("moved     {}", move_line(&moved)))?;
        }
        made.push(moved);
    }
    if args.view.json {
        return print::json(&serde_json::json!({"moved": made, "nodes": view.nodes}));
    }
    print::text(&match (made.is_empty(), view.moves.is_empty()) {
        (true, _) => format!(
            "{}\nthe load is balanced: nothing to move",
            node_table(&view)
        ),
        (false, true) => node_table(&view),
        (false, false) => format!(
            "{}\nthe load changed meanwhile, and more volumes could move: run `cairn cluster balance` again",
            node_table(&view)
        ),
    })
}

pub fn weight(args: &NodeWeightArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let (node, weight) = (args.node.as_str(), args.weight);
    let view = client.tell(
        NODE_WEIGHT,
        &NodeName(node.to_owned()),
        &NodeWeight { weight },
    )?;
    if args.view.json {
        return print::json(&view.nodes);
    }
    print::text(&match weight {
        0 => format!("node {node} gives its volumes to other nodes and takes none"),
        _ => format!(
            "node {node} has weight {weight}; volumes move after some minutes, or at once with `cairn cluster balance`"
        ),
    })
}

fn text(view: &BalanceView) -> String {
    let mut lines = vec![node_table(view)];
    if view.moves.is_empty() {
        lines.push("the load is balanced: nothing to move".to_owned());
    }
    for made in &view.moves {
        lines.push(format!("would move {}", move_line(made)));
    }
    lines.join("\n")
}

fn node_table(view: &BalanceView) -> String {
    let columns: [Column; 6] = [
        ("NODE", Align::Left),
        ("WEIGHT", Align::Right),
        ("VOLUMES", Align::Right),
        ("LOAD", Align::Right),
        ("OPS/S", Align::Right),
        ("BYTES/S", Align::Right),
    ];
    let row = |node: &BalanceNode| {
        let load = match node.takes {
            true => format!("{}%", node.load_percent),
            false => "takes none".to_owned(),
        };
        let volumes = match node.volumes_max {
            Some(most) => format!("{} of {most}", node.volumes),
            None => node.volumes.to_string(),
        };
        vec![
            node.name.clone(),
            node.weight.to_string(),
            volumes,
            load,
            node.operations_per_second.to_string(),
            format_size(node.bytes_per_second),
        ]
    };
    print::table(&columns, view.nodes.iter().map(row).collect())
}

/// A move with its reason, and what both nodes have before and after.
fn move_line(made: &BalanceMove) -> String {
    let BalanceMove {
        volume, from, to, ..
    } = made;
    let shares = |before: BalanceShare, after: BalanceShare| match made.reason {
        BalanceReason::Work => format!("{}% -> {}%", before.load_percent, after.load_percent),
        BalanceReason::Memory | BalanceReason::Count => {
            format!("{} -> {} volumes", before.volumes, after.volumes)
        }
    };
    let why = match made.reason {
        BalanceReason::Memory => format!("{from} has more volumes than its memory limit holds"),
        BalanceReason::Count => format!("{from} has more volumes"),
        BalanceReason::Work => format!("{from} does more work"),
    };
    format!(
        "{volume} from {from} to {to}: {why} ({from} {}, {to} {})",
        shares(made.from_before, made.from_after),
        shares(made.to_before, made.to_after)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_says_why_and_what_it_changes() {
        let share = |volumes, load_percent| BalanceShare {
            volumes,
            load_percent,
        };
        let made = |reason| BalanceMove {
            volume: "home".to_owned(),
            from: "one".to_owned(),
            to: "three".to_owned(),
            reason,
            operations_per_second: 512,
            bytes_per_second: 0,
            from_before: share(6, 180),
            from_after: share(5, 140),
            to_before: share(0, 0),
            to_after: share(1, 40),
        };
        for (reason, want) in [
            (
                BalanceReason::Count,
                "home from one to three: one has more volumes (one 6 -> 5 volumes, three 0 -> 1 volumes)",
            ),
            (
                BalanceReason::Work,
                "home from one to three: one does more work (one 180% -> 140%, three 0% -> 40%)",
            ),
            (
                BalanceReason::Memory,
                "home from one to three: one has more volumes than its memory limit holds (one 6 -> 5 volumes, three 0 -> 1 volumes)",
            ),
        ] {
            assert_eq!(move_line(&made(reason)), want);
        }
    }
}
