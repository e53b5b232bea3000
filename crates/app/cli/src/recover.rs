//! `cairn cluster backup`, `recover` and `accept-restored`.
//!
//! Owns: the report of what would be done, and what is told afterwards. Must not know: how a map is made of a copy.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use cairn_admin::cluster::CLUSTER_BACKUP;
use cairn_node::cluster::recover::{
    self, Accepted, EtcdMemberEntry, Newer, RecoveryPlan, accept_restored as accept,
};
use clap::Args;

use crate::args::ServerArgs;
use crate::audit::time;
use crate::exit::Failure;
use crate::{access, print};

#[derive(Debug, Args)]
pub struct ClusterBackupArgs {
    /// The file to write; `-`: standard output
    pub file: std::path::PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct ClusterRecoverArgs {
    /// The node's cluster folder
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: std::path::PathBuf,
    /// A disk of this node, on which to look for copies and for logs newer than them; repeat the flag for more
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Use only this copy, or the newest of several; repeat the flag for more
    #[arg(long = "copy", value_name = "FILE")]
    pub copies: Vec<std::path::PathBuf>,
    /// Carry the plan out
    #[arg(long)]
    pub yes: bool,
    /// Proceed even if disks have logs newer than the copy: writes acknowledged since the copy are lost
    #[arg(long)]
    pub give_up_newer: bool,
}

#[derive(Debug, Args)]
pub struct ClusterAcceptArgs {
    /// The node's cluster folder
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: std::path::PathBuf,
    /// The etcd member that has the recovered map [default: the etcd that this node knows]
    #[arg(long, value_name = "NODE,CLIENT_URL,PEER_URL", value_parser = crate::recover::parse_member, requires = "data")]
    pub member: Option<crate::recover::MemberAt>,
    /// A disk of this node, given once for each disk: the node refuses a map that does not know the disk's logs
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Proceed even if disks have logs newer than the map: writes acknowledged since the map are lost
    #[arg(long)]
    pub give_up_newer: bool,
}

/// A member of etcd, as `recover` prints it.
#[derive(Clone, Debug)]
pub struct MemberAt(EtcdMemberEntry);

pub fn parse_member(text: &str) -> Result<MemberAt, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let is_url = |url: &str| url.starts_with("https://");
    match parts.as_slice() {
        [node, client, peer] if !node.is_empty() && is_url(client) && is_url(peer) => {
            Ok(MemberAt(EtcdMemberEntry {
                node_name: (*node).to_owned(),
                client_url: (*client).to_owned(),
                peer_url: (*peer).to_owned(),
            }))
        }
        _ => Err(format!(
            "\"{text}\" is not NODE,CLIENT_URL,PEER_URL as `cairn cluster recover` prints it"
        )),
    }
}

pub fn backup(args: &ClusterBackupArgs) -> Result<(), Failure> {
    let made = access::client(&args.server)?.ask(CLUSTER_BACKUP, &())?;
    if args.file.as_os_str() == "-" {
        return print::text(made.copy.trim_end());
    }
    let failed = |error: std::io::Error| {
        Failure::refused(format!("writing {}: {error}", args.file.display()))
    };
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&args.file)
        .map_err(failed)?;
    file.write_all(made.copy.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    print::text(&format!(
        "the cluster map is in {}; the file contains password hashes and no client data",
        args.file.display()
    ))
}

pub fn recover(args: &ClusterRecoverArgs) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let refused = |error: cairn_node::NodeError| Failure::refused(error.to_string());
    let plan = recover::plan(&args.cluster_dir, &args.data, &args.copies).map_err(refused)?;
    print::text(&report(&plan))?;
    if !plan.newer.is_empty() && !args.give_up_newer {
        return Err(Failure::refused(
            "disks of this node have logs newer than the copy: writes acknowledged since the copy would be lost",
        )
        .hint("look for a newer copy on the other nodes (--copy); --give-up-newer uses this copy anyway"));
    }
    if !args.yes {
        return print::text(
            "nothing was changed. Stop the servers of all nodes, then run this command again with --yes",
        );
    }
    let done = recover::apply(&args.cluster_dir, &plan).map_err(refused)?;
    let mut lines = vec![format!(
        "etcd has the map again, as generation {}",
        done.generation
    )];
    if let Some(aside) = &done.moved_to {
        lines.push(format!(
            "the data of this node's earlier etcd member is in {}; delete it once the cluster is healthy",
            aside.display()
        ));
    }
    lines.push("next, start the server of this node; then run this on each other node before you start its server:".to_owned());
    lines.push(match &done.member {
        Some(member) => format!(
            "  cairn cluster accept-restored --member {},{},{} --data DISK ...   (each disk of that node)",
            member.node_name, member.client_url, member.peer_url
        ),
        None => "  cairn cluster accept-restored".to_owned(),
    });
    lines.push("for nodes that are lost for good: `cairn node replace`, or `cairn node drain` and `cairn node remove`".to_owned());
    print::text(&lines.join("\n"))
}

/// The report of a plan: what there is, and the steps of the recovery.
fn report(plan: &RecoveryPlan) -> String {
    let copy = &plan.chosen.copy;
    let nodes: Vec<String> = copy.nodes().into_iter().map(|node| node.name).collect();
    let mut lines = vec![
        format!(
            "this node   {} of cluster {}",
            plan.membership.node_name, plan.membership.cluster_name
        ),
        format!(
            "copy        {}: {copy}, made {} by version {}",
            plan.chosen.place.display(),
            time(copy.taken.seconds),
            copy.version
        ),
        format!("nodes       {}", nodes.join(", ")),
        format!("volumes     {}", copy.volumes().len()),
    ];
    for other in plan.found.iter().skip(1) {
        lines.push(format!(
            "older copy  {}: generation {}, revision {}, made {}",
            other.place.display(),
            other.copy.generation,
            other.copy.revision,
            time(other.copy.taken.seconds)
        ));
    }
    lines.extend(plan.unusable.iter().map(|why| format!("not usable  {why}")));
    lines.extend(plan.newer.iter().map(newer_line));
    lines.push(
        "would do    move this node's etcd data aside, create a new etcd with this node as its only member, and write the map of the \
         copy there, in a generation above all that nodes have seen; each volume goes on with a higher epoch. Data of clients is not \
         touched"
            .to_owned(),
    );
    lines.join("\n")
}

fn newer_line(newer: &Newer) -> String {
    let file = |number: u64| format!("{}.{}", number >> 32, number & u64::from(u32::MAX));
    match newer.in_copy {
        Some(known) => format!(
            "NEWER LOG   volume {}: this node has log file {}, the copy ends with {}",
            newer.volume,
            file(newer.on_disk),
            file(known)
        ),
        None => format!(
            "NEWER LOG   volume {}: this node has log file {}, the copy lacks the volume",
            newer.volume,
            file(newer.on_disk)
        ),
    }
}

pub fn accept_restored(args: &ClusterAcceptArgs) -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let member = args.member.as_ref().map(|member| member.0.clone());
    let accepted = accept(&args.cluster_dir, member, &args.data, args.give_up_newer);
    let accepted = accepted.map_err(|error| Failure::refused(error.to_string()))?;
    let (raised_to, moved_to) = match accepted {
        Accepted::Follows {
            raised_to,
            moved_to,
        } => (raised_to, moved_to),
        Accepted::Newer(newer) => {
            let lines: Vec<String> = newer.iter().map(newer_line).collect();
            print::text(&lines.join("\n"))?;
            return Err(Failure::refused(
                "the recovered map is older than this node's logs: writes acknowledged since would be lost. Nothing was changed",
            )
            .hint(
                "stop all servers, and recover again with the copy of this node (`cairn cluster recover`); --give-up-newer follows \
                 all the same",
            ));
        }
    };
    let mut lines = vec![match raised_to {
        Some(generation) => format!(
            "the restored map is accepted as generation {generation}; all nodes follow it from now on"
        ),
        None => "this node follows the map that etcd has now".to_owned(),
    }];
    if let Some(aside) = &moved_to {
        lines.push(format!(
            "the data of its earlier etcd member is in {}; delete it once the cluster is healthy",
            aside.display()
        ));
    }
    lines.push("next: start its server".to_owned());
    print::text(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_are_printed() {
        let cases = [
            ("one,https://a:1,https://a:2", true),
            ("one,https://a:1", false),
            (",https://a:1,https://a:2", false),
            ("one,http://a:1,https://a:2", false),
            ("one,https://a:1,https://a:2,more", false),
        ];
        for (text, want) in cases {
            assert_eq!(parse_member(text).is_ok(), want, "{text}");
        }
    }
}
