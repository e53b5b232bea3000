//! Network namespaces: one for each machine, and one with the switch between them.
//!
//! The switch is a bridge in a namespace of its own, where no firewall of this machine has rules; this machine has a
//! port there as well, with the address of clients. Namespaces hold all links, which go with them.
//!
//! Owns: the commands that make, find and remove them, and running those. Must not know: what runs in them.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ipnet::Ipv4Net;

use crate::Error;
use crate::faults::{self, HOST_PORT, Partition, Slow};

/// Where iproute2 keeps namespaces that have names.
const NAMESPACES: &str = "/run/netns";
/// Namespaces of a cluster that end at once when it does.
const SWITCH: &str = "switch";
const BRIDGE: &str = "switch";
/// The link in the namespace of a machine.
const LINK: &str = "eth0";

/// Words of one command.
type Argv = Vec<String>;

fn words(text: &str) -> Argv {
    text.split_whitespace().map(str::to_owned).collect()
}

pub fn name(tag: &str, machine: &str) -> String {
    format!("{tag}-{machine}")
}

/// What comes before a command so that it runs in the namespace of a machine; it becomes that command.
pub fn prefix(tag: &str, machine: &str) -> Argv {
    words(&format!(
        "nsenter --net={NAMESPACES}/{}",
        name(tag, machine)
    ))
}

/// The switch, with the port of this machine.
fn switch_commands(tag: &str, net: &Ipv4Net, host: Ipv4Addr) -> Vec<Argv> {
    let switch = name(tag, SWITCH);
    let length = net.prefix_len();
    [
        format!("ip netns add {switch}"),
        format!("ip -n {switch} link set lo up"),
        format!("ip -n {switch} link add {BRIDGE} type bridge"),
        format!("ip -n {switch} link set {BRIDGE} up"),
        format!("ip link add {tag} type veth peer name {HOST_PORT} netns {switch}"),
        format!("ip -n {switch} link set {HOST_PORT} master {BRIDGE} up"),
        format!("ip addr add {host}/{length} dev {tag}"),
        format!("ip link set {tag} up"),
    ]
    .map(|text| words(&text))
    .to_vec()
}

fn machine_commands(tag: &str, net: &Ipv4Net, machine: &str, address: Ipv4Addr) -> Vec<Argv> {
    let (own, switch) = (name(tag, machine), name(tag, SWITCH));
    let length = net.prefix_len();
    [
        format!("ip netns add {own}"),
        format!("ip -n {own} link set lo up"),
        format!("ip -n {own} link add {LINK} type veth peer name {machine} netns {switch}"),
        format!("ip -n {switch} link set {machine} master {BRIDGE} up"),
        format!("ip -n {own} addr add {address}/{length} dev {LINK}"),
        format!("ip -n {own} link set {LINK} up"),
    ]
    .map(|text| words(&text))
    .to_vec()
}

fn output(argv: &[String], input: &str) -> Result<Output, Error> {
    let failed = |source: std::io::Error| Error::Io {
        what: format!("running `{}`", argv.join(" ")),
        source,
    };
    let (program, arguments) = argv.split_first().expect("commands have a first word");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read all says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output().map_err(failed)
}

fn run_with(argv: &[String], input: &str) -> Result<Vec<u8>, Error> {
    let output = output(argv, input)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Failed(format!(
        "`{}` failed ({}): {}",
        argv.join(" "),
        output.status,
        said.trim()
    )))
}

fn run(argv: &[String]) -> Result<Vec<u8>, Error> {
    run_with(argv, "")
}

fn run_all(commands: &[Argv]) -> Result<(), Error> {
    commands.iter().try_for_each(|argv| run(argv).map(drop))
}

/// Why there can be no namespaces here; none if there can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("this is not root".to_owned());
    }
    for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
        if output(&[program.to_owned(), "--version".to_owned()], "").is_err() {
            return Some(format!(
                "there is no `{program}`: install the package {package}"
            ));
        }
    }
    None
}

/// Networks that this machine has ways to.
pub fn used_networks() -> Result<Vec<Ipv4Net>, Error> {
    let text = run(&words("ip -4 -o route show table all"))?;
    Ok(networks_of(&String::from_utf8_lossy(&text)))
}

/// The destinations in a list of routes, without the one for all that has no other.
fn networks_of(routes: &str) -> Vec<Ipv4Net> {
    /// Kinds of routes that come before the destination.
    const KINDS: [&str; 8] = [
        "unicast",
        "local",
        "broadcast",
        "multicast",
        "unreachable",
        "prohibit",
        "blackhole",
        "throw",
    ];
    let destinations = routes
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| !KINDS.contains(word)));
    let networks = destinations.filter_map(|word| {
        let single = || word.parse::<Ipv4Addr>().ok().map(Ipv4Net::from);
        word.parse::<Ipv4Net>().ok().or_else(single)
    });
    networks.filter(|net| net.prefix_len() > 0).collect()
}

/// Makes the switch, which has the port of this machine.
pub fn make_switch(tag: &str, net: &Ipv4Net, host: Ipv4Addr) -> Result<(), Error> {
    run_all(&switch_commands(tag, net, host))
}

/// Makes the namespace of one machine, with its link to the switch.
pub fn make_machine(
    tag: &str,
    net: &Ipv4Net,
    machine: &str,
    address: Ipv4Addr,
) -> Result<(), Error> {
    run_all(&machine_commands(tag, net, machine, address))
}

/// The namespaces of a cluster that are there.
pub fn there(tag: &str) -> Vec<String> {
    let entries = std::fs::read_dir(NAMESPACES)
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let of_cluster = format!("{tag}-");
    names.filter(|name| name.starts_with(&of_cluster)).collect()
}

/// Removes whatever a cluster has. Its processes have ended.
pub fn remove(tag: &str) -> Result<(), Error> {
    let mut failed = Ok(());
    for name in there(tag) {
        failed = failed.and(run(&words(&format!("ip netns del {name}"))).map(drop));
    }
    // It goes with the switch, a moment later; what is left without a switch is removed here.
    if Path::new("/sys/class/net").join(tag).exists() {
        let removed = run(&words(&format!("ip link del {tag}")));
        if removed.is_err() && Path::new("/sys/class/net").join(tag).exists() {
            failed = failed.and(removed.map(drop));
        }
    }
    failed
}

fn at_switch(tag: &str, command: &str) -> Argv {
    words(&format!("ip netns exec {} {command}", name(tag, SWITCH)))
}

fn nft(tag: &str, rules: &str) -> Result<(), Error> {
    run_with(&at_switch(tag, "nft -f -"), rules)
        .map(drop)
        .map_err(|error| Error::Failed(format!("{error} (is the package nftables installed?)")))
}

/// Cuts a machine off from these ports of the switch.
pub fn cut(tag: &str, machine: &str, partition: &Partition, peers: &[String]) -> Result<(), Error> {
    nft(tag, &faults::cut_rules(machine, partition, peers))
}

/// Both ends of a machine's link, for tc.
fn ends(tag: &str, machine: &str) -> [(String, String); 2] {
    [
        (name(tag, machine), LINK.to_owned()),
        (name(tag, SWITCH), machine.to_owned()),
    ]
}

/// Makes the network of a machine slow, both ways.
pub fn slow(tag: &str, machine: &str, slow: &Slow) -> Result<(), Error> {
    fast(tag, machine);
    let netem = faults::netem(slow);
    let Err(error) = queue(tag, machine, &netem) else {
        return Ok(());
    };
    // Kernels of small virtual machines are often built without it.
    let (None, true) = (slow.delay, error.to_string().contains("unknown")) else {
        fast(tag, machine);
        return Err(Error::Failed(format!(
            "{error} (a delay needs a kernel with sch_netem, on Debian in linux-image-amd64; --rate and --loss work without)"
        )));
    };
    if let Some(rate) = slow.rate {
        queue(tag, machine, &faults::token_bucket(rate))?;
    }
    if let Some(loss) = slow.loss {
        nft(tag, &faults::loss_rules(machine, loss))?;
    }
    Ok(())
}

fn queue(tag: &str, machine: &str, discipline: &[String]) -> Result<(), Error> {
    for (namespace, link) in ends(tag, machine) {
        let mut argv = words(&format!("tc -n {namespace} qdisc replace dev {link} root"));
        argv.extend_from_slice(discipline);
        run(&argv)?;
    }
    Ok(())
}

/// Ends `slow`. It is no error if there was nothing to end.
fn fast(tag: &str, machine: &str) {
    for (namespace, link) in ends(tag, machine) {
        let _ = output(
            &words(&format!("tc -n {namespace} qdisc del dev {link} root")),
            "",
        );
    }
    let _ = output(&at_switch(tag, "nft -f -"), &faults::no_loss_rules(machine));
}

/// Ends whatever was done to the network of a machine.
pub fn heal(tag: &str, machine: &str) -> Result<(), Error> {
    fast(tag, machine);
    nft(tag, &faults::no_rules(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_name_networks() {
        let routes = "\
default via 10.1.0.1 dev eth0 proto static \n\
10.1.0.0/16 dev eth0 proto kernel scope link src 10.1.2.3 \n\
local 10.1.2.3 dev eth0 table local proto kernel scope host src 10.1.2.3 \n\
broadcast 127.255.255.255 dev lo table local proto kernel scope link src 127.0.0.1 \n\
blackhole 192.0.2.0/24 \n\
0.0.0.0/0 dev tun0 \n\
garbage\n";
        let got: Vec<String> = networks_of(routes)
            .iter()
            .map(ToString::to_string)
            .collect();
        let want = [
            "10.1.0.0/16",
            "10.1.2.3/32",
            "127.255.255.255/32",
            "192.0.2.0/24",
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn names_fit_and_commands_stay_within_the_clusters_own() {
        let net: Ipv4Net = "10.213.7.0/24".parse().unwrap();
        let tag = "cairn-0123ab";
        let mut all = switch_commands(tag, &net, "10.213.7.254".parse().unwrap());
        all.extend(machine_commands(
            tag,
            &net,
            "node12",
            "10.213.7.12".parse().unwrap(),
        ));
        for argv in all {
            let text = argv.join(" ");
            assert!(text.contains(tag), "{text}");
            let links = argv
                .iter()
                .filter(|word| word.starts_with(tag) && !word.contains("-node"));
            for link in links {
                assert!(link.len() <= 19, "{link}");
            }
        }
        assert!(tag.len() <= 15, "the name of a link");
        assert_eq!(
            prefix(tag, "node1").join(" "),
            "nsenter --net=/run/netns/cairn-0123ab-node1"
        );
    }
}
