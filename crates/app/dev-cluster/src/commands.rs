//! The commands that make and run a cluster, as words.
//!
//! Owns: which flags each command gets. Must not know: how commands are run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::layout::Role;
use crate::netns;
use crate::state::{Machine, State};

/// The name of every cluster that is made here.
pub const CLUSTER_NAME: &str = "dev";
/// The volume that a new cluster has.
pub const FIRST_VOLUME: &str = "main";
/// Six servers with the usual 2 GiB would take all of a laptop.
const MEMORY_LIMIT: &str = "512MiB";

/// Files of one machine.
pub struct Files {
    home: PathBuf,
}

impl Files {
    pub fn of(state: &State, machine: &Machine) -> Self {
        Self {
            home: state.home(machine),
        }
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What `cluster init` or `cluster join` writes.
    pub fn cluster(&self) -> PathBuf {
        self.home.join("cluster")
    }

    pub fn disk(&self, index: u16) -> PathBuf {
        self.home.join(format!("disk{index}"))
    }

    pub fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    pub fn ready(&self) -> PathBuf {
        self.home.join("ready.json")
    }

    pub fn token(&self) -> PathBuf {
        self.home.join("admin-token")
    }

    /// Where the server says where it is, to commands of nobody.
    pub fn runtime(&self) -> PathBuf {
        self.home.join("run")
    }

    fn etcd(&self) -> PathBuf {
        self.home.join("etcd")
    }
}

fn text(path: &Path) -> String {
    // All are below the folder of the cluster, whose name is text: `up` refuses others.
    path.to_string_lossy().into_owned()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn cairn(state: &State) -> Vec<String> {
    vec![text(&state.program)]
}

/// How the cluster and its nodes are named, and where nodes are.
fn identity(state: &State, machine: &Machine) -> Vec<String> {
    let at = state.addresses(machine);
    // Where nodes share an address, clients tell them apart by the port.
    let external = match state.tag() {
        Some(_) => at.host.to_string(),
        None => at.nfs.to_string(),
    };
    words([
        "--node",
        &machine.name(),
        "--internal",
        &at.internal.to_string(),
        "--external",
        &external,
        "--cluster-dir",
        &text(&Files::of(state, machine).cluster()),
        "--etcd-client-port",
        &at.etcd_client.port().to_string(),
        "--etcd-peer-port",
        &at.etcd_peer.port().to_string(),
    ])
}

/// Makes the cluster, on its first node.
pub fn init(state: &State, machine: &Machine) -> Vec<String> {
    let mut argv = cairn(state);
    argv.extend(words(["cluster", "init", "--name", CLUSTER_NAME]));
    argv.extend(identity(state, machine));
    let etcd: Vec<String> = state
        .of_role(Role::Etcd)
        .map(|member| format!("http://{}", state.addresses(member).etcd_client))
        .collect();
    if !etcd.is_empty() {
        argv.extend(["--etcd".to_owned(), etcd.join(",")]);
        // In namespaces its members are not on the loopback address, and on no network but this machine's.
        argv.push("--insecure-etcd".to_owned());
    }
    argv
}

/// Asks a node for what the next one needs to join.
pub fn token(state: &State, asked: &Machine) -> Vec<String> {
    let mut argv = cairn(state);
    argv.extend(words(["cluster", "token"]));
    argv.extend(server(state, asked));
    argv
}

/// Lets a node join.
pub fn join(state: &State, machine: &Machine, ticket: &str) -> Vec<String> {
    let mut argv = within(state, machine);
    argv.extend(cairn(state));
    argv.extend(words(["cluster", "join", ticket]));
    argv.extend(identity(state, machine));
    argv
}

/// Asks which nodes the cluster has.
pub fn nodes(state: &State, asked: &Machine) -> Vec<String> {
    let mut argv = cairn(state);
    argv.extend(words(["node", "list", "--json"]));
    argv.extend(server(state, asked));
    argv
}

/// Asks for the first volume.
pub fn show(state: &State, asked: &Machine) -> Vec<String> {
    let mut argv = cairn(state);
    argv.extend(words(["volume", "show", FIRST_VOLUME]));
    argv.extend(server(state, asked));
    argv
}

/// Lets the network of the nodes mount the first volume: this machine has an address there.
pub fn export(state: &State, asked: &Machine, net: &str) -> Vec<String> {
    let mut argv = cairn(state);
    argv.extend(words([
        "export",
        "set",
        FIRST_VOLUME,
        "--client",
        net,
        "--client",
        "127.0.0.0/8",
        "--squash",
        "none",
    ]));
    argv.extend(server(state, asked));
    argv
}

/// Which server a command is for.
fn server(state: &State, machine: &Machine) -> Vec<String> {
    let admin = state.addresses(machine).admin;
    let mut argv = words([
        "--server",
        &format!("http://{admin}"),
        "--token-file",
        &text(&Files::of(state, machine).token()),
    ]);
    argv.extend(insecure(admin));
    argv
}

/// An address in a namespace is of this machine, but not its loopback address.
fn insecure(admin: SocketAddr) -> Option<String> {
    (!admin.ip().is_loopback()).then(|| "--insecure".to_owned())
}

/// What a machine runs.
pub fn run(state: &State, machine: &Machine) -> Vec<String> {
    let mut argv = within(state, machine);
    argv.extend(match machine.role {
        Role::Node => serve(state, machine),
        Role::Etcd => etcd(state, machine),
    });
    argv
}

/// What comes before a command that runs on a machine.
fn within(state: &State, machine: &Machine) -> Vec<String> {
    match state.tag() {
        Some(tag) => netns::prefix(tag, &machine.name()),
        None => Vec::new(),
    }
}

fn serve(state: &State, machine: &Machine) -> Vec<String> {
    let (at, files) = (state.addresses(machine), Files::of(state, machine));
    let mut argv = cairn(state);
    argv.extend(words([
        "serve",
        "--cluster-dir",
        &text(&files.cluster()),
        "--listen-nfs",
        &at.nfs.to_string(),
        "--listen-admin",
        &at.admin.to_string(),
        "--listen-iscsi",
        &at.iscsi.to_string(),
        "--listen-s3",
        &at.s3.to_string(),
        "--ready-file",
        &text(&files.ready()),
        "--token-file",
        &text(&files.token()),
        "--disk-root",
        &text(&files.home),
        "--create",
    ]));
    argv.extend(insecure(at.admin));
    for disk in 1..=state.disks {
        argv.extend(["--data".to_owned(), text(&files.disk(disk))]);
    }
    // Port 111 is free in a namespace; without one it belongs to the machine.
    let rpcbind = format!("--rpcbind={}", state.tag().is_some());
    let of_user = |flag: &str| {
        let mut given = state.serve_flags.iter();
        given.any(|word| word == flag || word.starts_with(&format!("{flag}=")))
    };
    if !of_user("--rpcbind") {
        argv.push(rpcbind);
    }
    if !of_user("--memory-limit") {
        argv.extend(words(["--memory-limit", MEMORY_LIMIT]));
    }
    argv.extend(state.serve_flags.iter().cloned());
    argv
}

/// A member of a separate etcd. Source: etcd 3.4, "Clustering Guide", "Static".
fn etcd(state: &State, machine: &Machine) -> Vec<String> {
    let url = |address: SocketAddr| format!("http://{address}");
    let at = state.addresses(machine);
    let (client, peer) = (url(at.etcd_client), url(at.etcd_peer));
    let all: Vec<String> = state
        .of_role(Role::Etcd)
        .map(|member| {
            format!(
                "{}={}",
                member.name(),
                url(state.addresses(member).etcd_peer)
            )
        })
        .collect();
    words([
        "etcd",
        "--name",
        &machine.name(),
        "--data-dir",
        &text(&Files::of(state, machine).etcd()),
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &all.join(","),
        "--initial-cluster-token",
        CLUSTER_NAME,
        "--initial-cluster-state",
        "new",
        // What the guide asks of any etcd.
        "--pre-vote",
        "--heartbeat-interval",
        "100",
        "--election-timeout",
        "800",
    ])
}

/// How Linux mounts the first volume from an address.
pub fn mount(address: SocketAddr) -> String {
    let port = address.port();
    let ports = if port == 2049 {
        String::new()
    } else {
        format!(",port={port},mountport={port}")
    };
    format!(
        "sudo mount -t nfs -o vers=3,proto=tcp,nolock{ports} {}:/{FIRST_VOLUME} /mnt",
        address.ip()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, Network};

    fn state(network: Network) -> State {
        let layout = Layout {
            network,
            base_port: 12_000,
        };
        let mut state = State::new("/srv/c".into(), "/usr/bin/cairn".into(), layout, 2);
        state.machines = (1..=3)
            .map(|index| Machine::new(Role::Node, index))
            .collect();
        state
    }

    fn namespaces() -> State {
        state(Network::Namespaces {
            tag: "cairn-012345".to_owned(),
            net: "10.213.7.0/24".parse().unwrap(),
        })
    }

    #[test]
    fn commands_are_what_the_guide_says() {
        let state = namespaces();
        let [first, second, _] = &state.machines[..] else {
            unreachable!()
        };
        for (argv, want) in [
            (
                init(&state, first),
                "/usr/bin/cairn cluster init --name dev --node node1 --internal 10.213.7.1:7400 --external 10.213.7.1 \
                 --cluster-dir /srv/c/node1/cluster --etcd-client-port 2379 --etcd-peer-port 2380",
            ),
            (
                token(&state, first),
                "/usr/bin/cairn cluster token --server http://10.213.7.1:8049 --token-file /srv/c/node1/admin-token \
                 --insecure",
            ),
            (
                join(&state, second, "TICKET"),
                "nsenter --net=/run/netns/cairn-012345-node2 /usr/bin/cairn cluster join TICKET --node node2 \
                 --internal 10.213.7.2:7400 --external 10.213.7.2 --cluster-dir /srv/c/node2/cluster \
                 --etcd-client-port 2379 --etcd-peer-port 2380",
            ),
            (
                run(&state, second),
                "nsenter --net=/run/netns/cairn-012345-node2 /usr/bin/cairn serve --cluster-dir /srv/c/node2/cluster \
                 --listen-nfs 10.213.7.2:2049 --listen-admin 10.213.7.2:8049 --listen-iscsi 10.213.7.2:3260 \
                 --listen-s3 10.213.7.2:9000 --ready-file /srv/c/node2/ready.json \
                 --token-file /srv/c/node2/admin-token --disk-root /srv/c/node2 --create --insecure --data /srv/c/node2/disk1 --data /srv/c/node2/disk2 \
                 --rpcbind=true --memory-limit 512MiB",
            ),
        ] {
            assert_eq!(argv.join(" "), want);
        }
    }

    #[test]
    fn flags_of_the_user_replace_ours() {
        let mut state = state(Network::Loopback);
        let plain = run(&state, &state.machines[0]).join(" ");
        assert!(plain.starts_with("/usr/bin/cairn serve "), "{plain}");
        assert!(
            plain.ends_with("--rpcbind=false --memory-limit 512MiB"),
            "{plain}"
        );
        state.serve_flags = words(["--memory-limit=1GiB", "--rpcbind", "--threads", "2"]);
        let with = run(&state, &state.machines[0]).join(" ");
        assert!(
            with.ends_with("/disk2 --memory-limit=1GiB --rpcbind --threads 2"),
            "{with}"
        );
    }

    #[test]
    fn members_of_a_separate_etcd_know_one_another() {
        let mut state = namespaces();
        state
            .machines
            .extend((1..=3).map(|index| Machine::new(Role::Etcd, index)));
        let member = run(&state, &state.machines[4]).join(" ");
        assert!(
            member.contains("cairn-012345-etcd2 etcd --name etcd2 "),
            "{member}"
        );
        assert!(
            member.contains(
                "--initial-cluster etcd1=http://10.213.7.201:2380,etcd2=http://10.213.7.202:2380,etcd3=http://10.213.7.203:2380 "
            ),
            "{member}"
        );
        let init = init(&state, &state.machines[0]).join(" ");
        assert!(
            init.ends_with(
                "--etcd http://10.213.7.201:2379,http://10.213.7.202:2379,http://10.213.7.203:2379 --insecure-etcd"
            ),
            "{init}"
        );
    }

    #[test]
    fn mounts_name_ports_that_are_not_usual() {
        for (address, want) in [
            (
                "10.213.7.1:2049",
                "sudo mount -t nfs -o vers=3,proto=tcp,nolock 10.213.7.1:/main /mnt",
            ),
            (
                "127.0.0.1:12010",
                "sudo mount -t nfs -o vers=3,proto=tcp,nolock,port=12010,mountport=12010 127.0.0.1:/main /mnt",
            ),
        ] {
            assert_eq!(mount(address.parse().unwrap()), want);
        }
    }
}
