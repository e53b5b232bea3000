//! The flags of all commands.

use std::path::PathBuf;

use cairn_config::{Settings, UserName};
use cairn_files::{CatArgs, CpArgs, LsArgs, RmArgs, StatArgs};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::address::AddressCommand;
use crate::audit::AuditCommand;
#[cfg(feature = "bench")]
use crate::bench_args::BenchCommand;
use crate::class::ClassCommand;
use crate::clone::CloneArgs;
use crate::cluster::{ClusterCommand, NodeCommand};
use crate::dev_cluster_args::DevClusterArgs;
use crate::disk::DiskCommand;
use crate::events::EventsArgs;
use crate::export::ExportCommand;
use crate::job::JobCommand;
use crate::key::KeyCommand;
use crate::limit::LimitCommand;
#[cfg(feature = "plan")]
use crate::plan_args::PlanArgs;
use crate::policy::PolicyCommand;
use crate::quota::QuotaCommand;
use crate::s3_args::{BucketCommand, S3Command};
use crate::san_args::{IgroupCommand, InitiatorCommand, IscsiCommand, LunCommand, SanCommand};
use crate::scrub::ScrubCommand;
use crate::snapshot::SnapshotCommand;
use crate::tier::TierCommand;
use crate::top::TopArgs;
use crate::user::UserCommand;
use crate::volume::VolumeCommand;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed; of a benchmark also: the result is partial
  2    wrong usage or configuration
  3    the server cannot be reached
  4    refused: no permission, or not possible in the current state
  130  a second interrupt ended `cairn serve` before its data was on disk, or a benchmark before its files
       were removed";

/// Software-defined file, block and object storage: erasure-coded, checksummed, served over NFS, iSCSI and S3.
///
/// `cairn serve --data DIR` starts a server. Commands such as status, disk, volume and export talk to its admin API; ls, cp,
/// cat, rm and stat talk to any NFS server.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES, max_term_width = 100, subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server
    Serve(Box<ServeArgs>),
    /// Show the state of the server, its disks and its volumes
    Status(ViewArgs),
    /// Show live metrics of one volume or all volumes: the busiest clients and files, operations, latency
    ///
    /// A terminal shows new figures every two seconds until Ctrl-C. A rate after >= is a lower bound: it lacks operations from
    /// before the client or file was among the busiest.
    ///
    /// Example: cairn top main
    Top(TopArgs),
    /// Disks of the pool: list, add, drain, replace, remove
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Scrub: read all data, repair damage, list files that cannot be repaired
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Volumes: create, show, change, delete
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Classes of service: rates and latency objectives of volumes
    #[command(subcommand)]
    Class(ClassCommand),
    /// Tiers: object stores to which cold data is offloaded
    #[command(subcommand)]
    Tier(TierCommand),
    /// Rate limits of single LUNs, buckets and client networks
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Master keys of encrypted volumes
    #[command(subcommand)]
    Key(KeyCommand),
    /// Exports: who may mount which volume
    #[command(subcommand)]
    Export(ExportCommand),
    /// LUNs: block devices that hosts attach over iSCSI
    #[command(subcommand)]
    Lun(LunCommand),
    /// Initiator groups: initiators that see the same LUNs
    #[command(subcommand)]
    Igroup(IgroupCommand),
    /// CHAP secrets of initiators
    #[command(subcommand)]
    Initiator(InitiatorCommand),
    /// iSCSI sessions
    #[command(subcommand)]
    Iscsi(IscsiCommand),
    /// Scripts with which hosts attach LUNs
    #[command(subcommand)]
    San(SanCommand),
    /// Buckets: directories whose files are objects for S3 clients
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Access keys of S3 clients
    #[command(subcommand)]
    S3(S3Command),
    /// Snapshots of volumes
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Clone a file or directory: `cairn clone main /images/base /images/vm7`
    ///
    /// A clone of any size is ready at once. It takes no space until the source or the clone changes.
    Clone(CloneArgs),
    /// Storage policies of directories, and the conversion of existing data
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Quotas of directories, users, groups and volumes
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Clusters: form, join, show, balance, back up, recover
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Nodes of the cluster: list, drain, replace, remove, maintenance, upgrade
    #[command(subcommand)]
    Node(NodeCommand),
    /// Address pools: addresses that the nodes of the cluster share
    #[command(subcommand)]
    Address(AddressCommand),
    /// List files on an NFS server, without a mount
    Ls(LsArgs),
    /// Copy files to, from or between NFS servers, without a mount
    Cp(CpArgs),
    /// Write files of an NFS server to standard output
    Cat(CatArgs),
    /// Remove files on an NFS server
    Rm(RmArgs),
    /// Show everything about files on an NFS server
    Stat(StatArgs),
    /// Benchmarks of a mounted path or a server: four corners, IOzone, IOR, metadata, objects
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
    /// Plan storage: design, size, cost, performance, and a template that deploys it
    #[cfg(feature = "plan")]
    Plan(Box<PlanArgs>),
    /// Run a whole cluster on this machine, for trials and fault tests
    DevCluster(Box<DevClusterArgs>),
    /// End a node's lease when the process that writes to standard input has ended; `cairn serve` runs this in a cluster
    #[command(name = cairn_node::cluster::guardian::COMMAND, hide = true)]
    GuardLease,
    /// Check the config file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Users of the admin API and the console, their roles and passwords
    #[command(subcommand)]
    User(UserCommand),
    /// The audit log: who changed what and when
    #[command(subcommand)]
    Audit(AuditCommand),
    /// List events, newest first: lost and returned disks, damage, starts after a crash
    ///
    /// Example: cairn events --severity warning --since 1d
    Events(EventsArgs),
    /// Background jobs of a server: state, next step, errors
    #[command(subcommand)]
    Job(JobCommand),
    /// Print the OpenAPI document of the admin API
    Openapi,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a folder
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: Settings,
    /// A TOML file with any of these settings (listen_nfs for --listen-nfs); flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Address of the admin API: https://NAME:PORT (https:// may be left out), or http:// for this machine [default: the
    /// server running on this machine]
    #[arg(long, value_name = "URL", env = "CAIRN_SERVER")]
    pub server: Option<String>,
    /// State folder of the server to use, if several run on this machine
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Allow an http:// address of another machine: anyone on the network path can read the token, passwords and answers
    #[arg(long)]
    pub insecure: bool,
    /// File with the admin token; CAIRN_TOKEN can hold the token itself [default: the token file of the server running on
    /// this machine]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Log in as this user (see `cairn user`) with a password, instead of using the admin token
    #[arg(long, value_name = "USER", conflicts_with = "token_file")]
    pub login: Option<UserName>,
    /// File with that user's password as its only line; CAIRN_PASSWORD can hold the password itself [default: the command asks
    /// for it]
    #[arg(long, value_name = "PATH", requires = "login")]
    pub login_password_file: Option<PathBuf>,
    /// PEM file with the CA certificates to trust for https://, or the server's own certificate [default: the certificate of
    /// the server running on this machine]
    #[arg(long, value_name = "PATH", env = "CAIRN_CA")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ViewArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Name, addresses and folder of a node.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The node's name in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address and port at which other nodes reach this node; traffic is encrypted, and only cluster nodes may connect
    #[arg(long, value_name = "ADDR:PORT")]
    pub internal: String,
    /// Address or name at which clients reach this node, with a port if several nodes share the address [default: the host
    /// of --internal]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub external: Option<String>,
    /// Folder in which the node keeps its cluster state and certificates
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: PathBuf,
    /// Client port of this node's etcd member, if it runs one
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_CLIENT_PORT)]
    pub etcd_client_port: u16,
    /// Peer port of this node's etcd member
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_PEER_PORT)]
    pub etcd_peer_port: u16,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a config file, and report every mistake with its line
    Check(ConfigCheckArgs),
}

#[derive(Debug, Args)]
pub struct ConfigCheckArgs {
    /// The TOML file
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell; for example `cairn completions bash > /etc/bash_completion.d/cairn`
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the pages of all commands to this folder; it is created if necessary
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lines_are_taken_or_refused() {
        let cases: &[(&str, bool)] = &[
            (
                "serve --data a --data b --listen-nfs 127.0.0.1:0 --rpcbind",
                true,
            ),
            (
                "serve --data a --rpcbind=false --memory-limit 1GiB --config c.toml",
                true,
            ),
            ("serve --data a --memory-limit lots", false),
            ("serve --data a --listen-nfs 2049", false),
            ("serve --dta a", false),
            ("status --json --server http://127.0.0.1:1", true),
            ("disk list --json", true),
            ("disk add /srv/new --json", true),
            ("disk add /srv/new --create --yes", true),
            ("disk replace /srv/old /srv/new --create", true),
            ("disk add /srv/fast --role journal", true),
            ("disk add /srv/fast --role cache --size 100GiB", true),
            ("disk add /srv/fast --role archive", false),
            ("disk add", false),
            ("disk drain 1234 --cancel", true),
            ("disk remove /srv/old --force", true),
            ("disk replace /srv/old /srv/new --wipe", true),
            ("disk replace /srv/old", false),
            ("disk retry /srv/old", true),
            ("disk retry", false),
            ("scrub start --rate 50MiB --restart", true),
            ("scrub start --rate fast", false),
            ("scrub pause", true),
            ("scrub schedule", true),
            (
                "scrub schedule --every 30d --window sat:22:00-06:00 --json",
                true,
            ),
            ("scrub schedule --every often", false),
            ("scrub schedule --window sat", false),
            ("scrub schedule --clear", true),
            ("scrub schedule --clear --every 30d", false),
            ("scrub status --json", true),
            ("scrub report --json", true),
            (
                "serve --data a --scrub-rate 10MiB --rebuild-rate 0 --rebuild-delay 5",
                true,
            ),
            (
                "volume create v --protection +2n --size-limit 1TiB --compression zstd:5",
                true,
            ),
            (
                "volume create v --protection 3x --access-pattern streaming",
                true,
            ),
            ("volume create v --protection +9n", false),
            ("volume create a/b", false),
            ("volume create", false),
            ("volume set v --size-limit none", true),
            ("volume set v --dedupe on", true),
            ("volume create v --dedupe verify", true),
            ("volume set v --dedupe maybe", false),
            ("volume show v --json", true),
            ("volume delete v --yes --force", true),
            ("export list", true),
            (
                "export set v --client 10.0.0.0/8 --client ::1 --ro --squash all --anonuid 5",
                true,
            ),
            ("export set v", false),
            ("export set v --client 10.0.0.0/8 --ro --rw", false),
            ("export set v --client everyone", false),
            ("export remove v", true),
            ("export remove v --client 10.0.0.0/8", true),
            (
                "lun create main/db --size 5.5TiB --block-size 4096 --json",
                true,
            ),
            ("lun create main/db", false),
            ("lun create db --size 1GiB", false),
            ("lun create main/db --size 1GiB --block-size 520", false),
            ("lun list --json", true),
            ("lun show main/db", true),
            ("lun resize main/db --size 2GiB --shrink", true),
            ("lun set main/db --write-cache on --read-only off", true),
            ("lun set main/db --write-cache maybe", false),
            ("lun online main/db", true),
            ("lun offline main/db", true),
            ("lun delete main/db --yes --force", true),
            ("lun map main/db --igroup hosts --lun-id 3", true),
            ("lun map main/db", false),
            ("lun unmap main/db --igroup hosts", true),
            (
                "igroup create main/hosts --initiator iqn.a:1 --initiator iqn.b:2",
                true,
            ),
            ("igroup create main/hosts", false),
            ("igroup list", true),
            ("igroup remove main/hosts", true),
            ("initiator list", true),
            (
                "initiator set main iqn.a:1 --chap-user u --secret-file f --mutual-user t --mutual-secret-file g",
                true,
            ),
            (
                "initiator set main iqn.a:1 --chap-user u --mutual-secret-file g",
                false,
            ),
            ("initiator set main iqn.a:1 --chap-user u --secret s", false),
            ("initiator remove main iqn.a:1", true),
            ("iscsi sessions --json", true),
            ("lun snapshot main/db before", true),
            ("lun restore main/db --snapshot before", true),
            ("lun restore main/db", false),
            (
                "igroup create main/hosts --initiator iqn.a --os linux",
                true,
            ),
            (
                "igroup create main/hosts --initiator iqn.a --os beos",
                false,
            ),
            ("san plan-host v1/data v2/data --initiator iqn.a", true),
            (
                "san plan-host v1/data --system http://a:8049,/etc/token --system http://b:8049 --initiator iqn.a --fs ext4",
                true,
            ),
            ("san plan-host --initiator iqn.a", false),
            ("snapshot create main before-upgrade", true),
            ("snapshot create main", false),
            ("snapshot create --group data,log before-upgrade", true),
            (
                "snapshot create main before-upgrade --group data,log",
                false,
            ),
            ("snapshot list main --space --json", true),
            ("snapshot show main a", true),
            ("snapshot rename main a b", true),
            ("snapshot rename main a", false),
            ("snapshot lock main a", true),
            ("snapshot unlock main a", true),
            ("snapshot delete main a", true),
            ("clone main /a /b --json", true),
            ("clone main /a", false),
            (
                "quota set main/home --hard 10TiB --soft 8TiB --grace 7d --files 1000",
                true,
            ),
            (
                "quota set main --default-user --advisory 1GiB --physical",
                true,
            ),
            ("quota set main --user 1 --group 2 --hard 1GiB", false),
            ("quota set main --physical --logical", false),
            ("quota set --hard 1GiB", false),
            ("quota list main --users --json", true),
            ("quota show main/a --group staff", true),
            ("quota remove main/a", true),
            (
                "policy set main/a --compression zstd:3 --dedupe on --access-pattern inherit",
                true,
            ),
            ("policy set main/a --compression zip", false),
            ("policy set --dedupe on", false),
            ("policy show main --json", true),
            ("policy list main", true),
            ("policy list main/a", false),
            ("policy clear main/a", true),
            ("policy apply main/a --wait", true),
            ("policy status main", true),
            ("policy cancel main", true),
            ("bucket create photos --path main/pictures --uid 1000", true),
            ("bucket create photos", true),
            ("bucket create", false),
            ("bucket delete photos --keep", true),
            ("bucket list --json", true),
            ("bucket show photos", true),
            (
                "s3 key create --uid 1000 --gid 100 --groups 4,5 --bucket photos/2025/ --read-only --note web",
                true,
            ),
            ("s3 key create --uid 1000", false),
            ("s3 key create --uid 1 --gid 1 --bucket /x", false),
            ("s3 key revoke ABC", true),
            ("s3 key list", true),
            ("config check file.toml", true),
            ("config check --json file.toml", true),
            ("volume delete v --yes --json", true),
            ("completions bash", true),
            ("completions tcsh9", false),
            ("man --out x", true),
            ("openapi", true),
            ("user list --json", true),
            ("user show alice", true),
            ("user create alice --role viewer", true),
            ("user create alice --role viewer --password-file -", true),
            ("user create alice", false),
            ("user create alice --role root", false),
            ("user create token --role admin", false),
            ("user create alice --role admin --password secret", false),
            ("user set alice --role admin", true),
            ("user set alice", false),
            ("user password alice --login alice", true),
            (
                "user delete alice --login root --login-password-file p",
                true,
            ),
            ("user delete alice --login-password-file p", false),
            ("user list --login alice --token-file t", false),
            ("status --server https://h:8049 --ca ca.pem", true),
            ("cluster rotate-ca", true),
            ("cluster rotate-ca --status --json", true),
            ("cluster rotate-ca now", false),
            (
                "audit list --by alice --since 1d --refused --limit 5 --json",
                true,
            ),
            ("audit list --path volumes --method DELETE --follow", true),
            ("audit list --limit 0", false),
            ("audit list --since yesterday", false),
            ("audit export --format csv", true),
            ("audit export --format xml", false),
            ("audit export", false),
            ("ls -l nfs://127.0.0.1:2049/main", true),
            ("cp -r here nfs://127.0.0.1:2049/main/", true),
            ("cat nfs://127.0.0.1/main/file", true),
            ("rm -r nfs://127.0.0.1/main/folder", true),
            ("stat --json nfs://127.0.0.1/main/file", true),
            (
                "bench four-corners nfs://h/main --jobs 2 --working-set 1GiB --runtime 2s --ramp 0s --depths 8,1",
                true,
            ),
            ("bench four-corners", false),
            ("bench four-corners /mnt --runtime soon", false),
            (
                "bench four-corners iscsi://h:3260/iqn.a/0?sessions=4 --sync",
                true,
            ),
            ("bench four-corners iscsi://h/iqn.a", false),
            ("bench four-corners s3://bucket", false),
            (
                "bench objects s3://AK:se/cret@h:9000/bucket --size 4KiB,1MiB -n 100 -c 8 --runtime 5s --operations put,get",
                true,
            ),
            ("bench objects s3://AK@h/bucket", false),
            ("bench objects s3://h/bucket --operations copy", false),
            ("bench four-corners smb://host/share", false),
            (
                "bench iozone /mnt -e -s 120GiB -i 0,1 -r 1MiB -t 8 --clients a,b:7118 --token-file t",
                true,
            ),
            ("bench iozone /mnt -i 0 -i 1 -I", true),
            ("bench iozone /mnt --token-file t", false),
            (
                "bench ior /mnt -t 1MiB -b 1MiB -s 16384 -F -w --direct -i 3",
                true,
            ),
            ("bench ior /mnt -w -r", false),
            (
                "bench metadata nfs://h/m -n 100 --one-directory --keep --allow-files",
                true,
            ),
            (
                "bench all . -o results --compressible 50 --dedupe 20 --seed 7 --json",
                true,
            ),
            ("bench all . --compressible 101", false),
            ("bench all . --agents a,b --token-file t", true),
            ("bench agent --listen 0.0.0.0:7117 --token-file t", true),
            ("bench report a.json b.json -o out.html", true),
            ("bench report", false),
            ("bench import fio.json -o x.json --label old", true),
            ("bench show x.json", true),
            ("dev-cluster", true),
            (
                "dev-cluster --nodes 6 --disks 2 --dir d --base-port 20000 --netns no --external-etcd -- --threads 2",
                true,
            ),
            ("dev-cluster --netns maybe", false),
            ("dev-cluster --threads 2", false),
            ("dev-cluster kill 2 --etcd --dir d", true),
            ("dev-cluster kill node2 node3 --dir d", true),
            ("dev-cluster kill", false),
            ("dev-cluster --nodes 3 kill node2", false),
            ("dev-cluster pause node2 --etcd", false),
            (
                "dev-cluster partition 1 --one-way from --peer 2 --peer 3 --clients",
                true,
            ),
            ("dev-cluster partition 1 --one-way up", false),
            (
                "dev-cluster slow 1 --delay 20ms --rate 10mbit --loss 1%",
                true,
            ),
            ("dev-cluster slow 1 --delay 20", false),
            ("dev-cluster slow 1", false),
            ("dev-cluster heal", true),
            ("dev-cluster start", true),
            ("dev-cluster stop", false),
            ("dev-cluster add --nodes 2", true),
            ("dev-cluster status --json", true),
            ("cp onlyone", false),
            ("", false),
            ("frobnicate", false),
        ];
        for (line, want) in cases {
            let words = std::iter::once("cairn").chain(line.split_whitespace());
            let got = Cli::try_parse_from(words);
            // A program that was built without a part has none of its commands.
            let is_built = match line.split_whitespace().next() {
                Some("bench") => cfg!(feature = "bench"),
                Some("plan") => cfg!(feature = "plan"),
                _ => true,
            };
            assert_eq!(
                got.is_ok(),
                *want && is_built,
                "{line}: {:?}",
                got.err().map(|e| e.to_string())
            );
        }
    }
}
