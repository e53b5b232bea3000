//! From machines to a cluster: the first node makes it, the others join, each serves.
//!
//! Owns: the order of steps. Must not know: the words of the commands.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Error;
use crate::actions::{self, OnExit};
use crate::commands::{self, Files};
use crate::forward::serves;
use crate::layout::{NODES_MAX, Network, Role, machine_name};
use crate::netns;
use crate::state::{Machine, State, Store};

/// Most seconds for making or joining a cluster.
const STEP_SECONDS_MAX: u64 = 120;
/// Most seconds until a new node has heard of all volumes.
const VOLUME_SECONDS_MAX: u64 = 60;
/// Between looks: each is a mount.
const VOLUME_PAUSE: Duration = Duration::from_millis(200);

/// The user who forms a cluster: told what happens, asked whether to go on.
pub trait Watcher {
    fn say(&mut self, line: &str);
    fn is_ended(&self) -> bool;
    /// What to do when a process of this machine ends.
    fn on_exit(&self, machine: &Machine) -> Option<OnExit>;
}

/// Adds machines of a role until there are so many.
pub fn add_machines(state: &mut State, role: Role, count: u16) {
    for index in state.count(role) + 1..=count {
        state.machines.push(Machine::new(role, index));
    }
    // Members of etcd know one another from their first start.
    let argv: Vec<Vec<String>> = state
        .machines
        .iter()
        .map(|machine| commands::run(state, machine))
        .collect();
    for (machine, argv) in state.machines.iter_mut().zip(argv) {
        machine.argv = argv;
    }
}

/// Makes the namespace of a machine, where there are namespaces.
pub fn make_namespace(state: &State, machine: &Machine) -> Result<(), Error> {
    match &state.layout.network {
        Network::Namespaces { tag, net } => {
            netns::make_machine(tag, net, &machine.name(), state.addresses(machine).host)
        }
        Network::Loopback => Ok(()),
    }
}

/// Starts all that is there, and lets the nodes join that have not.
pub fn form(store: &Store, watcher: &mut dyn Watcher) -> Result<(), Error> {
    let state = store.known()?;
    let of = |wanted: &dyn Fn(&Machine) -> bool| -> Vec<usize> {
        let machines = state.machines.iter().enumerate();
        machines
            .filter(|(_, machine)| wanted(machine))
            .map(|(index, _)| index)
            .collect()
    };
    let etcd = of(&|machine| machine.role == Role::Etcd);
    let joined = of(&|machine| machine.role == Role::Node && machine.joined);
    let new = of(&|machine| machine.role == Role::Node && !machine.joined);
    // All at once: a cluster whose nodes were all down comes back when enough of them are there.
    for together in [etcd, joined] {
        if watcher.is_ended() {
            return Ok(());
        }
        start(store, &together, watcher)?;
    }
    for index in new {
        if watcher.is_ended() {
            return Ok(());
        }
        let state = store.known()?;
        let first = state.of_role(Role::Node).all(|machine| !machine.joined);
        join(store, index, watcher)?;
        start(store, &[index], watcher)?;
        if first && !watcher.is_ended() {
            let_clients_in(&store.known()?, index, watcher)?;
        }
    }
    await_volume(&store.known()?, watcher)
}

/// Waits until the first volume can be mounted through each node. A node is there before it has heard of all volumes; and
/// somebody may have deleted this one, so that it is no failure if nobody has it.
fn await_volume(state: &State, watcher: &mut dyn Watcher) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io {
            what: "starting threads".to_owned(),
            source,
        })?;
    let mut left: Vec<&Machine> = state.of_role(Role::Node).collect();
    crate::process::wait_until(VOLUME_SECONDS_MAX, || {
        left.retain(|machine| !runtime.block_on(serves(state.addresses(machine).nfs)));
        let enough = left.is_empty() || watcher.is_ended();
        if !enough {
            std::thread::sleep(VOLUME_PAUSE);
        }
        enough
    });
    if !watcher.is_ended() {
        for machine in left {
            let name = machine.name();
            watcher.say(&format!(
                "{name} does not serve the volume {} yet",
                commands::FIRST_VOLUME
            ));
        }
    }
    Ok(())
}

fn start(store: &Store, indices: &[usize], watcher: &mut dyn Watcher) -> Result<(), Error> {
    let state = store.change(|state| {
        for index in indices {
            let on_exit = watcher.on_exit(&state.machines[*index]);
            actions::spawn(state, *index, on_exit)?;
        }
        Ok(state.clone())
    })?;
    actions::await_ready(&state, indices, || watcher.is_ended())?;
    if !watcher.is_ended() {
        for index in indices {
            let machine = &state.machines[*index];
            watcher.say(&format!("{} is there", machine.name()));
        }
    }
    Ok(())
}

/// Makes the cluster with a node, or lets it join the others.
fn join(store: &Store, index: usize, watcher: &mut dyn Watcher) -> Result<(), Error> {
    let state = store.known()?;
    let machine = &state.machines[index];
    let files = Files::of(&state, machine);
    std::fs::create_dir_all(files.home()).map_err(Error::io("making the folder", files.home()))?;
    // Of an attempt that was not finished.
    let cluster = files.cluster();
    match std::fs::remove_dir_all(&cluster) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("removing", &cluster)(error));
        }
        _ => {}
    }
    let member = state
        .of_role(Role::Node)
        .find(|machine| machine.joined && machine.running().is_some());
    match member {
        None => {
            watcher.say(&format!("{} makes the cluster", machine.name()));
            step(&commands::init(&state, machine), &files)?;
        }
        Some(member) => {
            watcher.say(&format!("{} joins", machine.name()));
            share_token(&Files::of(&state, member), &files)?;
            let ticket = step(&commands::token(&state, member), &files)?;
            let ticket = ticket.trim();
            if ticket.is_empty() || ticket.contains(char::is_whitespace) {
                return Err(Error::Failed(format!(
                    "`cairn cluster token` printed no ticket but \"{ticket}\""
                )));
            }
            step(&commands::join(&state, machine, ticket), &files)?;
        }
    }
    store.change(|state| {
        state.machines[index].joined = true;
        Ok(())
    })
}

/// Has a node take the admin token of another one, so that either does what it is asked for by way of the other.
fn share_token(from: &Files, to: &Files) -> Result<(), Error> {
    let (from, to) = (from.token(), to.token());
    if from.exists() && !to.exists() {
        // With its mode.
        std::fs::copy(&from, &to).map_err(Error::io("copying the admin token to", &to))?;
    }
    Ok(())
}

/// The volume that a new cluster has is for its own machine only, which has another address in a network of namespaces.
fn let_clients_in(state: &State, index: usize, watcher: &dyn Watcher) -> Result<(), Error> {
    let Network::Namespaces { net, .. } = &state.layout.network else {
        return Ok(());
    };
    let machine = &state.machines[index];
    let files = Files::of(state, machine);
    // The node that made the cluster makes the volume a moment after it serves.
    let show = commands::show(state, machine);
    let mut there = Ok(String::new());
    crate::process::wait_until(STEP_SECONDS_MAX, || {
        there = step(&show, &files);
        there.is_ok() || watcher.is_ended()
    });
    if watcher.is_ended() {
        return Ok(());
    }
    there?;
    step(&commands::export(state, machine, &net.to_string()), &files).map(drop)
}

/// Runs a command to its end; returns what it printed.
fn step(argv: &[String], files: &Files) -> Result<String, Error> {
    let (program, arguments) = argv.split_first().expect("commands have a first word");
    let shown = || {
        // A ticket lets others in.
        let words = argv
            .iter()
            .map(|word| if word.len() > 120 { "..." } else { word });
        words.collect::<Vec<&str>>().join(" ")
    };
    let failed = |source: std::io::Error| Error::Io {
        what: format!("running `{}`", shown()),
        source,
    };
    std::fs::create_dir_all(files.runtime()).map_err(failed)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("CAIRN_SERVER")
        .env_remove("CAIRN_TOKEN")
        .env("CAIRN_RUNTIME_DIR", files.runtime())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Each prints a few lines, which the pipe holds.
    let in_time =
        crate::process::wait_until(STEP_SECONDS_MAX, || !matches!(child.try_wait(), Ok(None)));
    if !in_time {
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    // It is of interest to who looks for what went wrong later.
    if let Ok(mut log) = OpenOptions::new()
        .append(true)
        .create(true)
        .open(files.log())
    {
        let _ = std::io::Write::write_all(&mut log, said.as_bytes());
    }
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = if in_time {
        output.status.to_string()
    } else {
        format!("it did not end within {STEP_SECONDS_MAX} s")
    };
    Err(Error::Failed(format!(
        "`{}` failed ({why}): {}",
        shown(),
        said.trim()
    )))
}

/// Adds nodes to a cluster that runs.
pub fn add(store: &Store, count: u16, say: &mut dyn FnMut(&str)) -> Result<Vec<String>, Error> {
    struct Plain<'a>(&'a mut dyn FnMut(&str));
    impl Watcher for Plain<'_> {
        fn say(&mut self, line: &str) {
            (self.0)(line);
        }
        fn is_ended(&self) -> bool {
            false
        }
        fn on_exit(&self, _: &Machine) -> Option<OnExit> {
            None
        }
    }
    if !store.is_run()? {
        return Err(Error::Refused(format!(
            "the cluster of {} is not running",
            store.folder().display()
        )));
    }
    let new = store.change(|state| {
        let before = state.count(Role::Node);
        let after = before
            .checked_add(count)
            .filter(|after| *after <= NODES_MAX);
        let Some(after) = after.filter(|_| count > 0) else {
            return Err(Error::Usage(format!(
                "the cluster has {before} nodes; 1 to {} more are possible",
                NODES_MAX - before
            )));
        };
        state.layout.check(after)?;
        add_machines(state, Role::Node, after);
        let mut new = Vec::new();
        for index in before + 1..=after {
            let position = state.find(&machine_name(Role::Node, index))?;
            make_namespace(state, &state.machines[position])?;
            new.push(position);
        }
        Ok(new)
    })?;
    let mut watcher = Plain(say);
    for index in &new {
        join(store, *index, &mut watcher)?;
        start(store, &[*index], &mut watcher)?;
    }
    let state = store.known()?;
    Ok(new
        .into_iter()
        .map(|index| state.machines[index].name())
        .collect())
}
