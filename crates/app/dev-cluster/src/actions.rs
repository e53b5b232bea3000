//! What happens to machines: started, stopped, killed, paused, cut off, slowed down, healed.
//!
//! Each step is taken while `cluster.json` is locked and is in it afterwards, so that several commands at once, and
//! the process that runs the cluster, agree on what is so.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde::Serialize;

use crate::Error;
use crate::commands::{self, Files};
use crate::faults::{HOST_PORT, Partition, Slow};
use crate::layout::Role;
use crate::netns;
use crate::process::{Process, descendants, marked, wait_until};
use crate::state::{Machine, State, Store};

/// Everything that belongs to a cluster has its folder in this variable, and the machine's in the other.
const MARK_CLUSTER: &str = "CAIRN_DEV_CLUSTER";
const MARK_MACHINE: &str = "CAIRN_DEV_CLUSTER_MACHINE";
/// As the kernel knows the program.
const ETCD: &str = "etcd";

/// Until a machine that starts serves, and until one that is asked to has stopped.
pub const READY_SECONDS_MAX: u64 = 120;
pub const STOP_SECONDS_MAX: u64 = 60;
/// Until what is killed is gone.
const DEATH_SECONDS_MAX: u64 = 30;
const LOG_TAIL_LINES: usize = 20;
const LOG_TAIL_BYTES: usize = 1 << 16;

/// Told when a process that this one started ends.
pub type OnExit = Box<dyn FnOnce(ExitStatus) + Send>;

/// All processes of a machine: first the one that started the others.
pub fn processes(state: &State, machine: &Machine) -> Vec<Process> {
    let mut found: Vec<Process> = machine.running().into_iter().cloned().collect();
    let below: Vec<Process> = found.iter().flat_map(descendants).collect();
    let home = state.home(machine);
    let by_mark = marked(MARK_MACHINE, &home.to_string_lossy());
    for process in below.into_iter().chain(by_mark) {
        if !found.contains(&process) {
            found.push(process);
        }
    }
    found
}

/// All processes of all machines of a folder, whether its file knows them or not.
pub fn all_processes(folder: &Path) -> Vec<Process> {
    marked(MARK_CLUSTER, &folder.to_string_lossy())
}

fn signal_all(processes: &[Process], signal: Signal) -> Result<usize, Error> {
    let mut count = 0;
    for process in processes {
        count += usize::from(process.signal(signal)?);
    }
    Ok(count)
}

/// Kills processes until there are none: some may just be starting others.
pub fn kill_until_gone(find: impl Fn() -> Vec<Process>) -> Result<(), Error> {
    let mut failed = Ok(());
    let gone = wait_until(DEATH_SECONDS_MAX, || {
        let found = find();
        if let Err(error) = signal_all(&found, Signal::KILL) {
            failed = Err(error);
        }
        found.is_empty() || failed.is_err()
    });
    failed?;
    if gone {
        return Ok(());
    }
    let left: Vec<String> = find()
        .iter()
        .map(|process| process.pid.to_string())
        .collect();
    Err(Error::Failed(format!(
        "processes {} do not end although they were killed: a disk may hang (see /proc/PID/stack)",
        left.join(", ")
    )))
}

/// What a command line names: these machines, or those of a role.
fn named(state: &State, names: &[String]) -> Result<Vec<usize>, Error> {
    names.iter().map(|name| state.find(name)).collect()
}

/// The machines that are named, or all.
fn named_or_all(state: &State, names: &[String]) -> Result<Vec<usize>, Error> {
    match names {
        [] => Ok((0..state.machines.len()).collect()),
        _ => named(state, names),
    }
}

/// Starts what a machine runs, unless it runs; does not wait until it serves.
pub fn spawn(state: &mut State, index: usize, on_exit: Option<OnExit>) -> Result<bool, Error> {
    let machine = &state.machines[index];
    if machine.running().is_some() {
        return Ok(false);
    }
    // An etcd that outlived its node would be in the way of the next.
    kill_until_gone(|| processes(state, machine))?;
    let files = Files::of(state, machine);
    for folder in [files.home(), &files.runtime()] {
        std::fs::create_dir_all(folder).map_err(Error::io("making the folder", folder))?;
    }
    let ready = files.ready();
    match std::fs::remove_file(&ready) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("removing", &ready)(error));
        }
        _ => {}
    }
    let log = files.log();
    let to_log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&log)
        .map_err(Error::io("opening the log", &log))?;
    let again = to_log
        .try_clone()
        .map_err(Error::io("opening the log", &log))?;
    let (program, arguments) = machine
        .argv
        .split_first()
        .ok_or_else(|| Error::Failed(format!("{} has no command", machine.name())))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove("CAIRN_SERVER")
        .env("CAIRN_RUNTIME_DIR", files.runtime())
        .env(MARK_CLUSTER, &state.folder)
        .env(MARK_MACHINE, files.home())
        // An interrupt at the terminal is for the process that runs the cluster, which ends the others in order.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(to_log)
        .stderr(again);
    let mut child = command.spawn().map_err(|source| Error::Io {
        what: format!("starting {} (`{program}`)", machine.name()),
        source,
    })?;
    let process = i32::try_from(child.id()).ok().and_then(Process::of);
    std::thread::spawn(move || {
        if let (Ok(status), Some(on_exit)) = (child.wait(), on_exit) {
            on_exit(status);
        }
    });
    let name = machine.name();
    state.machines[index].process = process;
    match state.machines[index].process {
        Some(_) => Ok(true),
        None => Err(Error::Failed(format!(
            "{name} ended at once; its log is {}",
            log.display()
        ))),
    }
}

/// The end of a machine's log.
pub fn log_tail(state: &State, machine: &Machine) -> String {
    let content = std::fs::read(Files::of(state, machine).log()).unwrap_or_default();
    let from = content.len().saturating_sub(LOG_TAIL_BYTES);
    let text = String::from_utf8_lossy(&content[from..]);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

/// Whether a machine serves.
pub fn is_ready(state: &State, machine: &Machine) -> bool {
    match machine.role {
        Role::Node => Files::of(state, machine).ready().exists(),
        Role::Etcd => std::net::TcpStream::connect(state.addresses(machine).etcd_client).is_ok(),
    }
}

/// Waits until machines serve, or `is_enough`; fails if one ends.
pub fn await_ready(
    state: &State,
    indices: &[usize],
    mut is_enough: impl FnMut() -> bool,
) -> Result<(), Error> {
    for index in indices {
        let machine = &state.machines[*index];
        let mut ended = false;
        let in_time = wait_until(READY_SECONDS_MAX, || {
            ended = machine.running().is_none();
            is_ready(state, machine) || ended || is_enough()
        });
        if is_enough() {
            return Ok(());
        }
        if ended || !in_time {
            let what = if ended {
                "ended before it served"
            } else {
                "does not serve yet"
            };
            return Err(Error::Failed(format!(
                "{} {what}; the end of its log, {}:\n{}",
                machine.name(),
                Files::of(state, machine).log().display(),
                log_tail(state, machine)
            )));
        }
    }
    Ok(())
}

fn must_run(store: &Store) -> Result<(), Error> {
    if store.is_run()? {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the cluster of {} is not running: start it with `cairn dev-cluster --dir {}`",
        store.folder().display(),
        store.folder().display()
    )))
}

/// Starts machines that do not run, and waits until they serve.
pub fn start(store: &Store, names: &[String]) -> Result<(), Error> {
    must_run(store)?;
    // A user who names one wants it, and learns from its log that it was removed.
    let gone = match names {
        [] => removed_nodes(&store.known()?),
        _ => BTreeSet::new(),
    };
    let (state, started) = store.change(|state| {
        let mut started = Vec::new();
        for index in named_or_all(state, names)? {
            let machine = &state.machines[index];
            if gone.contains(&machine.name()) {
                continue;
            }
            if machine.role == Role::Node && !machine.joined {
                if names.is_empty() {
                    continue;
                }
                return Err(Error::Refused(format!(
                    "{} has not joined the cluster yet",
                    machine.name()
                )));
            }
            if spawn(state, index, None)? {
                started.push(index);
            }
        }
        Ok((state.clone(), started))
    })?;
    await_ready(&state, &started, || false)
}

/// Nodes that joined and were removed from the cluster since, as any of those says that run; none, if nobody says so.
fn removed_nodes(state: &State) -> BTreeSet<String> {
    let joined = || state.of_role(Role::Node).filter(|machine| machine.joined);
    let is_down = |machine: &&Machine| machine.running().is_none();
    if joined().find(is_down).is_none() {
        return BTreeSet::new();
    }
    let answers = joined().filter(|machine| !is_down(machine)).map(|machine| {
        let argv = commands::nodes(state, machine);
        let (program, arguments) = argv.split_first()?;
        let asked = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output();
        let said = asked.ok().filter(|asked| asked.status.success())?;
        listed(&said.stdout)
    });
    let Some(listed) = answers.flatten().next() else {
        return BTreeSet::new();
    };
    let names = joined().map(Machine::name);
    names.filter(|name| !listed.contains(name)).collect()
}

/// The names in what `cairn node list --json` prints.
fn listed(text: &[u8]) -> Option<BTreeSet<String>> {
    let nodes: Vec<serde_json::Value> = serde_json::from_slice(text).ok()?;
    let names = nodes
        .iter()
        .map(|node| Some(node.get("name")?.as_str()?.to_owned()));
    names.collect()
}

/// Lets machines end by themselves: SIGTERM.
pub fn stop(store: &Store, names: &[String]) -> Result<(), Error> {
    store.change(|state| {
        for index in named(state, names)? {
            let machine = &state.machines[index];
            let all = processes(state, machine);
            signal_all(&all, Signal::CONT)?;
            let first = all.first().cloned();
            signal_all(first.as_slice(), Signal::TERM)?;
            if !wait_until(STOP_SECONDS_MAX, || processes(state, machine).is_empty()) {
                return Err(Error::Failed(format!(
                    "{} still runs {STOP_SECONDS_MAX} s after it was asked to stop; its log is {}",
                    machine.name(),
                    Files::of(state, machine).log().display()
                )));
            }
            state.machines[index].process = None;
        }
        Ok(())
    })
}

/// kill -9 of all processes of machines, or only of the etcd that a node runs.
pub fn kill(store: &Store, names: &[String], etcd_only: bool) -> Result<(), Error> {
    store.change(|state| {
        for index in named(state, names)? {
            let machine = &state.machines[index];
            if !etcd_only {
                kill_until_gone(|| processes(state, machine))?;
                state.machines[index].process = None;
                continue;
            }
            let mut members = processes(state, machine);
            members.retain(|process| process.name().is_some_and(|name| name == ETCD));
            if signal_all(&members, Signal::KILL)? == 0 {
                return Err(Error::Refused(format!(
                    "{} runs no member of etcd: `cairn dev-cluster status` shows which nodes do",
                    machine.name()
                )));
            }
        }
        Ok(())
    })
}

/// Stops all processes of machines where they are: SIGSTOP.
pub fn pause(store: &Store, names: &[String]) -> Result<(), Error> {
    store.change(|state| {
        for index in named(state, names)? {
            let machine = &state.machines[index];
            if machine.running().is_none() {
                return Err(Error::Refused(format!("{} does not run", machine.name())));
            }
            let all = || processes(state, machine);
            // One may have started another before it stood still.
            let mut failed = Ok(0);
            let stand = wait_until(DEATH_SECONDS_MAX, || {
                let moving: Vec<Process> =
                    all().into_iter().filter(|one| !one.is_paused()).collect();
                failed = signal_all(&moving, Signal::STOP);
                moving.is_empty() || failed.is_err()
            });
            failed?;
            if !stand {
                return Err(Error::Failed(format!(
                    "{} does not stand still",
                    machine.name()
                )));
            }
        }
        Ok(())
    })
}

/// Lets paused machines go on.
pub fn resume(store: &Store, names: &[String]) -> Result<(), Error> {
    store.change(|state| {
        for index in named(state, names)? {
            signal_all(&processes(state, &state.machines[index]), Signal::CONT)?;
        }
        Ok(())
    })
}

/// The tag of the namespaces; refused if there are none.
fn namespaces(state: &State) -> Result<String, Error> {
    match state.tag() {
        Some(tag) if !netns::there(tag).is_empty() => Ok(tag.to_owned()),
        Some(_) => Err(Error::Refused(format!(
            "the cluster of {} is not running",
            state.folder.display()
        ))),
        None => Err(Error::Refused(
            "the nodes of this cluster share the network of this machine, which cannot be cut or slowed down: start \
             it as root, with iproute2 and nftables installed, so that each node has a network namespace of its own"
                .to_owned(),
        )),
    }
}

/// Cuts machines off from others.
pub fn partition(store: &Store, names: &[String], partition: &Partition) -> Result<(), Error> {
    store.change(|state| {
        let tag = namespaces(state)?;
        let peers = named_or_all(state, &partition.peers)?;
        let of_peers = peers.iter().map(|index| state.machines[*index].name());
        let of_peers: Vec<String> = of_peers.collect();
        for index in named(state, names)? {
            let machine = &mut state.machines[index];
            let name = machine.name();
            let mut ports: Vec<String> = of_peers
                .iter()
                .filter(|peer| **peer != name)
                .cloned()
                .collect();
            if partition.clients {
                ports.push(HOST_PORT.to_owned());
            }
            if ports.is_empty() {
                return Err(Error::Usage(format!(
                    "{name} cannot be cut off from itself"
                )));
            }
            netns::cut(&tag, &name, partition, &ports)?;
            machine.partition = Some(Partition {
                peers: if partition.peers.is_empty() {
                    Vec::new()
                } else {
                    of_peers.clone()
                },
                ..partition.clone()
            });
        }
        Ok(())
    })
}

/// Slows the network of machines down.
pub fn slow(store: &Store, names: &[String], slow: &Slow) -> Result<(), Error> {
    if *slow == Slow::default() {
        return Err(Error::Usage(
            "say how the network is to be slow: --delay 20ms, --rate 10mbit, --loss 1%".to_owned(),
        ));
    }
    store.change(|state| {
        let tag = namespaces(state)?;
        for index in named(state, names)? {
            let machine = &mut state.machines[index];
            netns::slow(&tag, &machine.name(), slow)?;
            machine.slow = Some(*slow);
        }
        Ok(())
    })
}

/// Undoes all that was done to machines, and starts those that do not run.
pub fn heal(store: &Store, names: &[String]) -> Result<(), Error> {
    must_run(store)?;
    store.change(|state| {
        for index in named_or_all(state, names)? {
            let tag = state.tag().map(str::to_owned);
            signal_all(&processes(state, &state.machines[index]), Signal::CONT)?;
            let machine = &mut state.machines[index];
            if let (true, Some(tag)) = (machine.partition.is_some() || machine.slow.is_some(), tag)
            {
                netns::heal(&tag, &machine.name())?;
            }
            machine.partition = None;
            machine.slow = None;
        }
        Ok(())
    })?;
    start(store, names)
}

/// How a machine's processes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    Ready,
    Starting,
    Paused,
    Stopped,
}

/// What `cairn dev-cluster status` tells of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineStatus {
    pub name: String,
    pub role: Role,
    pub life: Life,
    pub pid: Option<i32>,
    /// The process of its member of etcd, if it runs one.
    pub etcd_pid: Option<i32>,
    pub host: String,
    /// Where clients on this machine find it.
    pub nfs: String,
    pub iscsi: String,
    pub s3: String,
    pub admin: String,
    pub token_file: String,
    pub log: String,
    pub cluster_dir: String,
    pub disks: Vec<String>,
    pub argv: Vec<String>,
    pub partition: Option<Partition>,
    pub slow: Option<Slow>,
}

/// What `cairn dev-cluster status` tells.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub folder: String,
    /// Some `cairn dev-cluster` runs it.
    pub running: bool,
    pub namespaces: bool,
    /// Where clients reach whichever node serves.
    pub floating: String,
    pub machines: Vec<MachineStatus>,
}

pub fn status(store: &Store) -> Result<Status, Error> {
    let state = store.known()?;
    let machines = state
        .machines
        .iter()
        .map(|machine| machine_status(&state, machine));
    Ok(Status {
        folder: state.folder.display().to_string(),
        running: store.is_run()?,
        namespaces: state.tag().is_some(),
        floating: state.layout.floating().to_string(),
        machines: machines.collect(),
    })
}

fn machine_status(state: &State, machine: &Machine) -> MachineStatus {
    let (at, files) = (state.addresses(machine), Files::of(state, machine));
    let process = machine.running();
    let life = match process {
        None => Life::Stopped,
        Some(process) if process.is_paused() => Life::Paused,
        Some(_) if is_ready(state, machine) => Life::Ready,
        Some(_) => Life::Starting,
    };
    let mut all = processes(state, machine).into_iter();
    let etcd = all.find(|process| process.name().is_some_and(|name| name == ETCD));
    let shown = |path: &Path| path.display().to_string();
    MachineStatus {
        name: machine.name(),
        role: machine.role,
        life,
        pid: process.map(|process| process.pid),
        etcd_pid: etcd.map(|process| process.pid),
        host: at.host.to_string(),
        nfs: at.nfs_here.to_string(),
        iscsi: at.iscsi_here.to_string(),
        s3: at.s3_here.to_string(),
        admin: format!("http://{}", at.admin_here),
        token_file: shown(&files.token()),
        log: shown(&files.log()),
        cluster_dir: shown(&files.cluster()),
        disks: (1..=state.disks)
            .map(|disk| shown(&files.disk(disk)))
            .collect(),
        argv: commands::run(state, machine),
        partition: machine.partition.clone(),
        slow: machine.slow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_what_the_cluster_says_or_nothing_is_known() {
        let names = |text: &str| listed(text.as_bytes());
        let want = ["node1", "node3"].map(str::to_owned).into();
        assert_eq!(
            names(r#"[{"name": "node1", "alive": true}, {"name": "node3"}]"#),
            Some(want)
        );
        assert_eq!(names("[]"), Some(BTreeSet::new()));
        for text in ["", "{}", r#"[{"alive": true}]"#, r#"[{"name": 1}]"#] {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
