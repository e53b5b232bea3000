//! `cairn dev-cluster`: a whole cluster on this machine, and what may happen to it.

use std::path::Path;

use cairn_dev_cluster::actions::{self, Life, MachineStatus, Status};
use cairn_dev_cluster::faults::{Partition, Slow, Way};
use cairn_dev_cluster::{Error, Isolation, Settings, Store, add, up};

use crate::dev_cluster_args::{DevClusterArgs, DevClusterCommand, OneWay, RunArgs, When};
use crate::exit::Failure;
use crate::print::{self, Align};

pub fn run(args: &DevClusterArgs) -> Result<(), Failure> {
    match &args.command {
        None => foreground(&args.run, &args.dir),
        Some(command) => act(command, &args.dir),
    }
}

fn failed(error: Error) -> Failure {
    let message = error.to_string();
    match error {
        Error::Usage(_) => Failure::usage(message),
        Error::Refused(_) => Failure::refused(message),
        Error::Failed(_) | Error::Io { .. } => Failure::failed(message),
    }
}

fn foreground(args: &RunArgs, dir: &Path) -> Result<(), Failure> {
    let program = match &args.program {
        Some(program) => std::fs::canonicalize(program),
        None => std::env::current_exe(),
    };
    let program = program
        .map_err(|error| Failure::usage(format!("finding the program of the nodes: {error}")))?;
    let settings = Settings {
        folder: dir.to_owned(),
        program,
        nodes: args.nodes,
        disks: args.disks,
        base_port: args.base_port,
        isolation: match args.netns {
            When::Auto => Isolation::Auto,
            When::Yes => Isolation::Yes,
            When::No => Isolation::No,
        },
        network: args.network,
        external_etcd: args.external_etcd,
        serve_flags: args.serve_flags.clone(),
    };
    up(&settings, &mut say).map_err(failed)
}

/// A closed output must not keep the cluster from running, or from ending.
fn say(line: &str) {
    let _ = print::text(line);
}

fn act(command: &DevClusterCommand, dir: &Path) -> Result<(), Failure> {
    let store = Store::open(dir).map_err(failed)?;
    let done = match command {
        DevClusterCommand::Kill(args) => actions::kill(&store, &args.nodes.nodes, args.etcd),
        DevClusterCommand::Pause(args) => actions::pause(&store, &args.nodes),
        DevClusterCommand::Resume(args) => actions::resume(&store, &args.nodes),
        DevClusterCommand::Partition(args) => {
            let partition = Partition {
                way: match args.one_way {
                    None => Way::Both,
                    Some(OneWay::To) => Way::To,
                    Some(OneWay::From) => Way::From,
                },
                peers: args.peer.clone(),
                clients: args.clients,
            };
            actions::partition(&store, &args.nodes.nodes, &partition)
        }
        DevClusterCommand::Slow(args) => {
            let slow = Slow {
                delay: args.delay,
                rate: args.rate,
                loss: args.loss,
            };
            actions::slow(&store, &args.nodes.nodes, &slow)
        }
        DevClusterCommand::Heal(args) => actions::heal(&store, &args.nodes),
        DevClusterCommand::Start(args) => actions::start(&store, &args.nodes),
        DevClusterCommand::Stop(args) => actions::stop(&store, &args.nodes),
        DevClusterCommand::Add(args) => add(&store, args.nodes, &mut say).map(drop),
        DevClusterCommand::Status(args) => {
            let status = actions::status(&store).map_err(failed)?;
            return if args.json {
                print::json(&status)
            } else {
                print::text(&shown(&status))
            };
        }
    };
    done.map_err(failed)
}

fn shown(status: &Status) -> String {
    let columns = [
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("PID", Align::Right),
        ("ETCD", Align::Right),
        ("HOST", Align::Left),
        ("NFS HERE", Align::Left),
        ("NETWORK", Align::Left),
    ];
    let rows = status.machines.iter().map(row).collect();
    let runs = if status.running {
        "runs"
    } else {
        "does not run: `cairn dev-cluster` with this --dir starts it"
    };
    format!(
        "the cluster of {} {runs}\nany node that serves: {}\n\n{}",
        status.folder,
        status.floating,
        print::table(&columns, rows)
    )
}

fn row(machine: &MachineStatus) -> Vec<String> {
    let number = |pid: Option<i32>| pid.map(|pid| pid.to_string()).unwrap_or_default();
    let life = match machine.life {
        Life::Ready => "ready",
        Life::Starting => "starting",
        Life::Paused => "paused",
        Life::Stopped => "stopped",
    };
    let faults = [
        machine.partition.as_ref().map(ToString::to_string),
        machine.slow.as_ref().map(ToString::to_string),
    ];
    let faults: Vec<String> = faults.into_iter().flatten().collect();
    vec![
        machine.name.clone(),
        life.to_owned(),
        number(machine.pid),
        number(machine.etcd_pid),
        machine.host.clone(),
        machine.nfs.clone(),
        faults.join("; "),
    ]
}
