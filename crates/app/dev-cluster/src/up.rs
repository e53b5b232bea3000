//! Runs a cluster in the foreground, until it is told to end.
//!
//! Owns: what is made for a run and removed after it: namespaces, ports for clients, processes.
//! Must not know: how nodes form a cluster.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ipnet::Ipv4Net;
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::Error;
use crate::actions::{self, OnExit, STOP_SECONDS_MAX};
use crate::commands;
use crate::form::{Watcher, add_machines, form, make_namespace};
use crate::forward::{Unreached, follow, forward};
use crate::layout::{
    self, BASE_PORT_DEFAULT, DISKS_MAX, ETCD_MEMBERS_MAX, Layout, NODES_MAX, Network, Role,
    free_network,
};
use crate::netns;
use crate::process::{Process, wait_until};
use crate::state::{Machine, State, Store};

/// Nodes that were added by another command get ports for clients that much later.
const LOOK_EVERY: Duration = Duration::from_millis(300);
const NODES_DEFAULT: u16 = 6;
const DISKS_DEFAULT: u16 = 1;

/// Whether each node has a network namespace of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// If that is possible.
    #[default]
    Auto,
    Yes,
    No,
}

/// The wishes of the user; settings without one stay as they were, or get their default.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub folder: PathBuf,
    pub program: PathBuf,
    pub nodes: Option<u16>,
    pub disks: Option<u16>,
    pub base_port: Option<u16>,
    pub isolation: Isolation,
    pub network: Option<Ipv4Net>,
    pub external_etcd: bool,
    pub serve_flags: Vec<String>,
}

/// What happens while a cluster runs.
enum Event {
    Signal,
    Ended(String, ExitStatus),
}

/// Runs a cluster until a signal; returns when all of it has ended.
pub fn up(settings: &Settings, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    if settings.folder.to_str().is_none() {
        return Err(Error::Usage(format!(
            "--dir {}: is not UTF-8",
            settings.folder.display()
        )));
    }
    let store = Store::create(&settings.folder)?;
    let _running = store.run()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::Io {
            what: "starting threads".to_owned(),
            source,
        })?;
    let (events, happens) = channel();
    let signals = watch_signals(&events)?;
    let earlier = store.read()?;
    let tag = layout::tag(store.folder());
    if let Some(earlier) = &earlier {
        end_leftovers(earlier, say)?;
    }
    actions::kill_until_gone(|| actions::all_processes(store.folder()))?;
    remove_namespaces(&tag)?;
    let state = match earlier {
        Some(state) => continued(state, settings)?,
        None => begun(settings, &store, &tag, say)?,
    };
    store.write(&state)?;
    let mut watch = Foreground {
        events,
        signals,
        say,
    };
    let done = run(&store, &state, &runtime, &mut watch, &happens);
    // Tasks end, so that nothing connects to nodes that are to stop.
    runtime.shutdown_background();
    let ended = end(&store, &mut watch);
    done.and(ended)
}

fn run(
    store: &Store,
    state: &State,
    runtime: &Runtime,
    watch: &mut Foreground<'_>,
    happens: &Receiver<Event>,
) -> Result<(), Error> {
    make_namespaces(state)?;
    let mut ports = Ports::new(runtime, store, state)?;
    ports.complete(state)?;
    form(store, watch)?;
    if watch.is_ended() {
        return Ok(());
    }
    (watch.say)(&banner(&store.known()?));
    loop {
        match happens.recv_timeout(LOOK_EVERY) {
            Ok(Event::Signal) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Event::Ended(name, status)) => (watch.say)(&ended_line(&name, status)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if watch.is_ended() {
            return Ok(());
        }
        ports.complete(&store.known()?)?;
    }
}

fn ended_line(name: &str, status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => format!("{name} has stopped"),
        (Some(code), _) => format!("{name} ended by itself, with status {code}: its log says why"),
        (None, Some(9)) => format!("{name} was killed"),
        (None, signal) => format!("{name} ended by signal {}", signal.unwrap_or_default()),
    }
}

/// The process that runs a cluster, as it is seen by those who form it.
struct Foreground<'a> {
    events: Sender<Event>,
    signals: Arc<AtomicUsize>,
    say: &'a mut dyn FnMut(&str),
}

impl Watcher for Foreground<'_> {
    fn say(&mut self, line: &str) {
        (self.say)(line);
    }

    fn is_ended(&self) -> bool {
        self.signals.load(Ordering::Acquire) > 0
    }

    fn on_exit(&self, machine: &Machine) -> Option<OnExit> {
        let (events, name) = (self.events.clone(), machine.name());
        // Nobody listens any more at the end.
        Some(Box::new(move |status| {
            drop(events.send(Event::Ended(name, status)))
        }))
    }
}

/// Counts signals that ask for an end, and tells of them.
fn watch_signals(events: &Sender<Event>) -> Result<Arc<AtomicUsize>, Error> {
    let failed = |source: std::io::Error| Error::Io {
        what: "waiting for signals".to_owned(),
        source,
    };
    let signals = Arc::new(AtomicUsize::new(0));
    // Of its own: it is there while all else ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _inside = runtime.enter();
        let of = |kind: SignalKind| signal(kind).map_err(failed);
        (
            of(SignalKind::interrupt())?,
            of(SignalKind::terminate())?,
            of(SignalKind::hangup())?,
        )
    };
    let (counted, events) = (Arc::clone(&signals), events.clone());
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                counted.fetch_add(1, Ordering::AcqRel);
                let _ = events.send(Event::Signal);
            }
        });
    });
    Ok(signals)
}

fn checked(name: &str, count: u16, max: u16) -> Result<u16, Error> {
    if (1..=max).contains(&count) {
        return Ok(count);
    }
    Err(Error::Usage(format!(
        "--{name} {count} is not between 1 and {max}"
    )))
}

/// A new cluster.
fn begun(
    settings: &Settings,
    store: &Store,
    tag: &str,
    say: &mut dyn FnMut(&str),
) -> Result<State, Error> {
    let nodes = checked("nodes", settings.nodes.unwrap_or(NODES_DEFAULT), NODES_MAX)?;
    let disks = checked("disks", settings.disks.unwrap_or(DISKS_DEFAULT), DISKS_MAX)?;
    let layout = Layout {
        network: choose_network(settings, tag, say)?,
        base_port: settings.base_port.unwrap_or(BASE_PORT_DEFAULT),
    };
    layout.check(nodes)?;
    let folder = store.folder().to_owned();
    let mut state = State::new(folder, settings.program.clone(), layout, disks);
    state.serve_flags = settings.serve_flags.clone();
    add_machines(&mut state, Role::Node, nodes);
    if settings.external_etcd {
        add_machines(&mut state, Role::Etcd, ETCD_MEMBERS_MAX);
    }
    Ok(state)
}

/// Namespaces with a free network, or ports of the loopback address.
fn choose_network(
    settings: &Settings,
    tag: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Network, Error> {
    if settings.isolation == Isolation::No {
        return Ok(Network::Loopback);
    }
    match try_namespaces(settings, tag) {
        Ok(net) => Ok(Network::Namespaces {
            tag: tag.to_owned(),
            net,
        }),
        Err(why) if settings.isolation == Isolation::Yes => Err(why),
        Err(why) => {
            say(&format!(
                "nodes share the network of this machine, on ports of 127.0.0.1: {why}"
            ));
            Ok(Network::Loopback)
        }
    }
}

fn try_namespaces(settings: &Settings, tag: &str) -> Result<Ipv4Net, Error> {
    if let Some(why) = netns::missing() {
        return Err(Error::Refused(format!("no network namespaces, for {why}")));
    }
    let used = netns::used_networks()?;
    let net = match settings.network {
        Some(net) => Some(net).filter(|net| !used.iter().any(|other| layout::overlap(net, other))),
        None => free_network(tag, &used),
    };
    let net = net.ok_or_else(|| {
        Error::Refused(
            "this machine uses the network for the nodes already: name a free one with --network"
                .to_owned(),
        )
    })?;
    // Root of a container is often not allowed to.
    let layout = Layout {
        network: Network::Namespaces {
            tag: tag.to_owned(),
            net,
        },
        base_port: BASE_PORT_DEFAULT,
    };
    let made = netns::make_switch(tag, &net, layout.client_address());
    remove_namespaces(tag)?;
    made.map(|()| net)
}

/// The cluster of an earlier run, with what may change.
fn continued(mut state: State, settings: &Settings) -> Result<State, Error> {
    let folder = state.folder.display().to_string();
    let refuse = |what: String| {
        Err(Error::Refused(format!(
            "the cluster of {folder} {what}; take another folder with --dir for another cluster"
        )))
    };
    let before = state.count(Role::Node);
    let nodes = checked("nodes", settings.nodes.unwrap_or(before), NODES_MAX)?;
    if nodes < before {
        return refuse(format!("has {before} nodes, not {nodes}"));
    }
    if settings.disks.is_some_and(|disks| disks != state.disks) {
        return refuse(format!("has {} disks in each node", state.disks));
    }
    if settings.external_etcd && state.count(Role::Etcd) == 0 {
        return refuse("has its own etcd".to_owned());
    }
    if settings
        .base_port
        .is_some_and(|port| port != state.layout.base_port)
    {
        return refuse(format!("has the ports from {} on", state.layout.base_port));
    }
    let has_namespaces = state.tag().is_some();
    match settings.isolation {
        Isolation::Yes if !has_namespaces => return refuse("has no namespaces".to_owned()),
        Isolation::No if has_namespaces => return refuse("has namespaces".to_owned()),
        _ => {}
    }
    if let Network::Namespaces { net, .. } = &state.layout.network {
        let net = *net;
        if let Some(why) = netns::missing() {
            return refuse(format!(
                "has network namespaces, which are not possible now: {why}"
            ));
        }
        if settings.network.is_some_and(|other| other != net) {
            return refuse(format!("has the network {net}"));
        }
        if netns::used_networks()?
            .iter()
            .any(|other| layout::overlap(&net, other))
        {
            return refuse(format!(
                "has the network {net}, which this machine uses otherwise now"
            ));
        }
    }
    state.layout.check(nodes)?;
    state.program.clone_from(&settings.program);
    state.serve_flags.clone_from(&settings.serve_flags);
    for machine in &mut state.machines {
        machine.process = None;
        machine.partition = None;
        machine.slow = None;
    }
    add_machines(&mut state, Role::Node, nodes);
    Ok(state)
}

fn make_namespaces(state: &State) -> Result<(), Error> {
    let Network::Namespaces { tag, net } = &state.layout.network else {
        return Ok(());
    };
    netns::make_switch(tag, net, state.layout.client_address())?;
    state
        .machines
        .iter()
        .try_for_each(|machine| make_namespace(state, machine))
}

fn remove_namespaces(tag: &str) -> Result<(), Error> {
    if netns::there(tag).is_empty() && netns::missing().is_some() {
        return Ok(());
    }
    netns::remove(tag)
}

/// Ports of this machine that lead to nodes.
struct Ports<'a> {
    runtime: &'a Runtime,
    /// NFS addresses of all nodes, for who looks for one that serves.
    nodes: watch::Sender<Vec<SocketAddr>>,
    listening: HashSet<SocketAddr>,
    /// Connections end when these are gone.
    fixed: Vec<watch::Sender<Option<SocketAddr>>>,
}

impl<'a> Ports<'a> {
    fn new(runtime: &'a Runtime, store: &Store, state: &State) -> Result<Self, Error> {
        let (nodes, all) = watch::channel(Vec::new());
        let mut ports = Self {
            runtime,
            nodes,
            listening: HashSet::new(),
            fixed: Vec::new(),
        };
        let (serving, target) = watch::channel(None);
        ports.listen(state.layout.floating(), target, Unreached::Hold, store)?;
        runtime.spawn(follow(move || all.borrow().clone(), serving));
        Ok(ports)
    }

    /// Listens for nodes that are new.
    fn complete(&mut self, state: &State) -> Result<(), Error> {
        let store = Store::open(&state.folder)?;
        for machine in state.of_role(Role::Node) {
            let at = state.addresses(machine);
            for (here, there) in [
                (at.nfs_here, at.nfs),
                (at.admin_here, at.admin),
                (at.iscsi_here, at.iscsi),
                (at.s3_here, at.s3),
            ] {
                if here != there && !self.listening.contains(&here) {
                    let (fixed, target) = watch::channel(Some(there));
                    self.fixed.push(fixed);
                    self.listen(here, target, Unreached::Reset, &store)?;
                }
            }
        }
        let addresses = state
            .of_role(Role::Node)
            .map(|machine| state.addresses(machine).nfs);
        self.nodes.send_replace(addresses.collect());
        Ok(())
    }

    fn listen(
        &mut self,
        here: SocketAddr,
        target: watch::Receiver<Option<SocketAddr>>,
        unreached: Unreached,
        store: &Store,
    ) -> Result<(), Error> {
        let listener = self.runtime.block_on(TcpListener::bind(here)).map_err(|source| Error::Io {
            what: format!(
                "listening on {here} for clients of the cluster of {} (another --base-port gives other ports)",
                store.folder().display()
            ),
            source,
        })?;
        self.listening.insert(here);
        self.runtime.spawn(forward(listener, target, unreached));
        Ok(())
    }
}

/// Ends the processes that a killed run left.
fn end_leftovers(state: &State, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let left = |state: &State| {
        let machines = state.machines.iter();
        machines
            .filter(|machine| !actions::processes(state, machine).is_empty())
            .count()
    };
    let count = left(state);
    if count > 0 {
        say(&format!(
            "ending what an earlier run left: {count} machines"
        ));
        end_processes(state, Role::Node, || false)?;
        end_processes(state, Role::Etcd, || false)?;
    }
    Ok(())
}

/// Ends all processes of machines of a role: asks, waits, and kills what is left.
fn end_processes(state: &State, role: Role, is_enough: impl Fn() -> bool) -> Result<(), Error> {
    let all = || -> Vec<Process> {
        let machines = state.of_role(role);
        machines
            .flat_map(|machine| actions::processes(state, machine))
            .collect()
    };
    for process in all() {
        process.signal(Signal::CONT)?;
    }
    for machine in state.of_role(role) {
        if let Some(first) = actions::processes(state, machine).first() {
            first.signal(Signal::TERM)?;
        }
    }
    wait_until(STOP_SECONDS_MAX, || all().is_empty() || is_enough());
    actions::kill_until_gone(all)
}

/// Ends everything and removes what was made for the run.
fn end(store: &Store, watch: &mut Foreground<'_>) -> Result<(), Error> {
    let before = watch.signals.load(Ordering::Acquire);
    (watch.say)("ending all nodes; a second Ctrl-C kills them");
    let signals = Arc::clone(&watch.signals);
    let is_enough = || signals.load(Ordering::Acquire) > before;
    store.change(|state| {
        // A node that is cut off from the others could not leave in order.
        for machine in &state.machines {
            if let (true, Some(tag)) = (
                machine.partition.is_some() || machine.slow.is_some(),
                state.tag(),
            ) {
                let _ = netns::heal(tag, &machine.name());
            }
        }
        let ended = end_processes(state, Role::Node, is_enough)
            .and_then(|()| end_processes(state, Role::Etcd, is_enough));
        for machine in &mut state.machines {
            machine.process = machine.running().cloned();
            machine.partition = None;
            machine.slow = None;
        }
        ended
    })?;
    remove_namespaces(&layout::tag(store.folder()))?;
    (watch.say)("ended");
    Ok(())
}

/// What somebody needs who has just started a cluster.
fn banner(state: &State) -> String {
    let mut lines = vec![
        String::new(),
        format!(
            "  a cluster of {} nodes in {}",
            state.count(Role::Node),
            state.folder.display()
        ),
        String::new(),
    ];
    for machine in state.of_role(Role::Node) {
        let at = state.addresses(machine);
        lines.push(format!(
            "  {:<8}{}",
            machine.name(),
            commands::mount(at.nfs)
        ));
        if at.nfs != at.nfs_here {
            lines.push(format!(
                "          or {} (also for VMs); admin API http://{}",
                at.nfs_here, at.admin_here
            ));
        }
    }
    let floating = state.layout.floating();
    lines.push(format!("  any     {}", commands::mount(floating)));
    lines.push("          (leads to a node that serves, as a floating address would)".to_owned());
    lines.push(String::new());
    if let Some(first) = state.of_role(Role::Node).next() {
        let files = commands::Files::of(state, first);
        lines.push(format!(
            "  cairn cluster status --server http://{} --token-file {}",
            state.addresses(first).admin_here,
            files.token().display()
        ));
    }
    let dir = state.folder.display();
    lines.push(format!("  cairn dev-cluster status --dir {dir}"));
    lines.push(String::new());
    for (verb, what) in [
        (
            "kill node2",
            "kill -9 of all its processes; --etcd: of its member of etcd only",
        ),
        (
            "pause node2",
            "all its processes stand still, until `resume node2`",
        ),
        (
            "partition node2",
            "cut off from all other nodes; --one-way to|from, --peer NODE, --clients",
        ),
        ("slow node2 --delay 20ms", "also --rate 10mbit, --loss 1%"),
        ("stop node2", "a clean stop; `start node2` starts it again"),
        ("heal", "undoes all of that, and starts what does not run"),
        ("add", "one more node"),
    ] {
        lines.push(format!("  cairn dev-cluster {verb:<24} {what}"));
    }
    if state.tag().is_none() {
        lines.push("  (partition and slow need network namespaces, so root)".to_owned());
    }
    lines.push(String::new());
    lines.push(
        "  Ctrl-C ends all nodes; the next start with this folder goes on with the same cluster"
            .to_owned(),
    );
    lines.join("\n")
}
