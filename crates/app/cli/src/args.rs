//! The flags of all commands.

use std::path::PathBuf;

use cairn_admin::api::VolumeChange;
use cairn_config::{
    ANONYMOUS_ID_DEFAULT, AccessPattern, ClassChoice, ClientNet, Compression, CoolingDays, Dedupe,
    FilePatterns, MaintenanceWindow, MediaChoice, MinAge, Protection, ScrubEvery, Settings, Size,
    SizeLimit, Squash, TierName, Tiering, UserName, VolumeName,
};
use cairn_files::{CatArgs, CpArgs, LsArgs, RmArgs, StatArgs};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::address::AddressCommand;
use crate::audit::AuditCommand;
use crate::bench_args::BenchCommand;
use crate::class::ClassCommand;
use crate::clone::CloneArgs;
use crate::dev_cluster_args::DevClusterArgs;
use crate::events::EventsArgs;
use crate::key::KeyCommand;
use crate::limit::LimitCommand;
use crate::plan_args::PlanArgs;
use crate::policy::PolicyCommand;
use crate::quota::QuotaCommand;
use crate::s3_args::{BucketCommand, S3Command};
use crate::san_args::{IgroupCommand, InitiatorCommand, IscsiCommand, LunCommand, SanCommand};
use crate::snapshot::SnapshotCommand;
use crate::tier::TierCommand;
use crate::top::TopArgs;
use crate::user::UserCommand;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed; of a benchmark also: the result is partial
  2    wrong usage or configuration
  3    the server cannot be reached
  4    refused: no permission, or not possible as things are
  130  a second interrupt ended `cairn serve` before all was on disk, or a benchmark before its files
       were removed";

/// Software-defined file storage: erasure-coded, checksummed, served over NFS.
///
/// `cairn serve --data DIR` starts a server; status, disk, volume and export talk to it, and ls, cp,
/// cat, rm and stat to any NFS server.
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
    /// What clients do now with a volume, or with each: the busiest clients and files, operations, latency
    ///
    /// On a terminal it is shown anew every two seconds, until Ctrl-C. A rate after >= may be higher: what was done before a
    /// client or file was among the busiest is not in it.
    ///
    /// Example: cairn top main
    Top(TopArgs),
    /// Disks of the pool
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Scrub: read everything, repair what is damaged, list what cannot be repaired
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Volumes: create, show, change, delete
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Classes of service: which rates volumes get
    #[command(subcommand)]
    Class(ClassCommand),
    /// Tiers: object stores that cold data goes to
    #[command(subcommand)]
    Tier(TierCommand),
    /// Rates of single LUNs, buckets and networks of clients
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
    /// Groups of initiators that see the same LUNs
    #[command(subcommand)]
    Igroup(IgroupCommand),
    /// Initiators and how they prove who they are
    #[command(subcommand)]
    Initiator(InitiatorCommand),
    /// iSCSI sessions
    #[command(subcommand)]
    Iscsi(IscsiCommand),
    /// What hosts type to use LUNs
    #[command(subcommand)]
    San(SanCommand),
    /// Buckets: directories whose files S3 clients use as objects
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Access keys of S3 clients
    #[command(subcommand)]
    S3(S3Command),
    /// Snapshots of volumes
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make a file or directory that begins as another is now: `cairn clone main /images/base /images/vm7`
    ///
    /// It takes no space until one of both changes, and is there at once, whatever its size.
    Clone(CloneArgs),
    /// How data below directories is stored, and the conversion of data that is there
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Quotas of directories, users, groups and volumes
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Several nodes as one cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Nodes of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Addresses that the nodes of the cluster share
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
    /// Benchmarks: four corners, IOzone, IOR, metadata, objects, on a mounted path or a server
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
    /// Plan storage: which design, how big, its cost, its performance, a template that deploys it
    Plan(Box<PlanArgs>),
    /// Run a whole cluster on this machine, to try it and to break it
    DevCluster(Box<DevClusterArgs>),
    /// End the lease of a node when the process that writes to standard input is gone; `cairn serve` runs it in a cluster
    #[command(name = cairn_node::cluster::guardian::COMMAND, hide = true)]
    GuardLease,
    /// The config file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Users of the admin API and the console, their roles and passwords
    #[command(subcommand)]
    User(UserCommand),
    /// Who changed what and when
    #[command(subcommand)]
    Audit(AuditCommand),
    /// What happened in the system: disks that were lost and came back, damage, starts after a crash; newest first
    ///
    /// Example: cairn events --severity warning --since 1d
    Events(EventsArgs),
    /// Print the OpenAPI document of the admin API
    Openapi,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands to a folder
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: Settings,
    /// A TOML file with any of these settings (listen_nfs for --listen-nfs); flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// The admin API: https://NAME:PORT, or NAME:PORT for the same; http:// for this machine [default: that of the server
    /// running on this machine]
    #[arg(long, value_name = "URL", env = "CAIRN_SERVER")]
    pub server: Option<String>,
    /// Of several servers on this machine, the one with this state folder
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Take an http:// address of another machine: whoever listens in between reads the token, passwords and answers
    #[arg(long)]
    pub insecure: bool,
    /// File with the admin token (or put the token itself into CAIRN_TOKEN) [default: that of the
    /// server running on this machine]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Be this user (see `cairn user`), with a password, instead of with the token
    #[arg(long, value_name = "USER", conflicts_with = "token_file")]
    pub login: Option<UserName>,
    /// File with that user's password in its only line (or put the password itself into CAIRN_PASSWORD) [default: it is asked
    /// for]
    #[arg(long, value_name = "PATH", requires = "login")]
    pub login_password_file: Option<PathBuf>,
    /// File with the certificates (PEM) that vouch for a server at https://, or its own [default: that of the server running
    /// on this machine]
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

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Prepare the first node of a cluster; its next `cairn serve` makes the cluster
    ///
    /// Example: cairn cluster init --name lab --internal 10.0.0.1:7400 && cairn serve --data /disk1
    Init(ClusterInitArgs),
    /// Print a ticket with which one more node can join
    Token(ClusterTokenArgs),
    /// Join a cluster with a ticket; the next `cairn serve` of this node serves in it
    Join(ClusterJoinArgs),
    /// Show nodes, disks, owners, and what may fail next
    Status(ViewArgs),
    /// Move volumes so that all nodes have their share of the load, one after the other
    ///
    /// An open volume is load, and so is what clients do with it, measured over some minutes. Nodes do the same by themselves, more
    /// slowly and not in the first minutes after a change; this does it now and as evenly as it gets. Clients of a volume that
    /// moves feel a short pause. Volumes that `cairn volume move --to` placed stay.
    ///
    /// Example: cairn cluster balance --dry-run
    Balance(ClusterBalanceArgs),
    /// Write a copy of the cluster's map to a file: nodes, disks, volumes with their settings; no data of clients
    ///
    /// Each node keeps the newest copy by itself, in its cluster folder and on its disks, and one of each day. This is for one more
    /// elsewhere. It has hashes of passwords: keep it where nobody else can read it.
    ///
    /// Example: cairn cluster backup /backup/lab.json
    Backup(ClusterBackupArgs),
    /// Make etcd anew of a copy of the map, after most of its members were lost for good
    ///
    /// Offline, on one node, while no server of the cluster runs. Without --yes it only says what it would do. It takes the newest
    /// copy that it finds in the cluster folder and on the disks (--data), or the one that is named (--copy).
    ///
    /// Example: cairn cluster recover --data /disk1 --data /disk2
    Recover(ClusterRecoverArgs),
    /// Replace the authority that the certificates of all nodes are of, while clients work
    ///
    /// For when somebody may have its key, such as a node that was removed. All nodes come to trust a new authority beside the old one,
    /// then get certificates of it, then drop the old one; certificates and tickets of before are worth nothing from then on. The
    /// nodes do this by themselves once it is begun: this command shows it until it is done, and may be ended or run again. A node
    /// that is away is waited for, until it is back or removed.
    ///
    /// Example: cairn cluster rotate-ca
    RotateCa(ClusterRotateArgs),
    /// Have this node follow a map that was recovered on another node, or restored in an etcd of your own
    ///
    /// Offline. `cairn cluster recover` prints this command for the other nodes.
    ///
    /// Example: cairn cluster accept-restored --member one,https://10.0.0.1:2379,https://10.0.0.1:2380 --data /disk1
    AcceptRestored(ClusterAcceptArgs),
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes
    List(ViewArgs),
    /// Move everything that a node has to others, while clients work: data, logs, volumes, its member of etcd
    ///
    /// Refused if too little redundancy or space would be left. `cairn node list` shows how far it is.
    ///
    /// Example: cairn node drain three && cairn node list
    Drain(NodeDrainArgs),
    /// Take a drained node out of the cluster: the others refuse it from then on, and its server ends
    ///
    /// Example: cairn node remove three
    Remove(NodeArgs),
    /// Have a node that joined take the place of another, which is lost or still there
    ///
    /// What the old node has, or had, gets to others at once; a lost node is not waited for any longer. The old
    /// node is removed by itself then. `cairn node drain OLD --cancel` stops it.
    ///
    /// Example: cairn node replace three seven
    Replace(NodeReplaceArgs),
    /// Say that a node is meant to be away for a while, and move its volumes first
    ///
    /// For a restart, an upgrade or work on the machine. Its volumes move to other nodes, whose clients feel a short pause; it takes
    /// none, and nothing on its disks is rebuilt until the time is over or it is said to be back. It stays in the cluster with all
    /// that is on its disks. A node that is to leave for good is drained instead (`cairn node drain`).
    ///
    /// Example: cairn node maintenance on three --for 2h
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Say which part of the load a node has beside others
    ///
    /// 100 is usual: one with 200 gets twice as much. With 0 it gives its volumes away at once and takes none; its disks are used as
    /// before.
    ///
    /// Example: cairn node weight three 50
    Weight(NodeWeightArgs),
    /// Say whether a node may stop now, and in which order nodes are upgraded
    ///
    /// Nodes of neighbouring versions work together: upgrade one after the other, while clients work. With --wait
    /// it waits until the cluster has all it had before; then the next one may stop.
    ///
    /// Example: cairn node upgrade --wait
    Upgrade(NodeUpgradeArgs),
}

#[derive(Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Move a node's volumes to others, and do not rebuild what is on its disks for a while
    ///
    /// Refused while another node, a disk, a member of etcd or a copy of a log is missed: `cairn node upgrade` says what.
    ///
    /// Example: cairn node maintenance on three --for 2h
    On(MaintenanceOnArgs),
    /// Say that a node is back: it takes volumes again
    ///
    /// Example: cairn node maintenance off three
    Off(NodeArgs),
}

#[derive(Debug, Args)]
pub struct ClusterBalanceArgs {
    /// Only say which volumes would move, and why
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

#[derive(Debug, Args)]
pub struct MaintenanceOnArgs {
    /// The node's name
    pub node: String,
    /// For how long nothing on it is rebuilt; at most 7d
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub time: std::time::Duration,
    /// Also while something else is missed
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeUpgradeArgs {
    /// Wait until a node may stop
    #[arg(long)]
    pub wait: bool,
    /// The longest to wait
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub wait_max: std::time::Duration,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The node's name
    pub node: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeReplaceArgs {
    /// The name of the node that goes
    pub old: String,
    /// The name of the node that takes its place: it has joined, and has disks
    pub new: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct NodeDrainArgs {
    /// The node's name
    pub node: String,
    /// Stop draining, and let new data go to the node again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// How a node is to be known.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The node's name in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address and port on which other nodes reach this one; encrypted, and for nodes of the cluster only
    #[arg(long, value_name = "ADDR:PORT")]
    pub internal: String,
    /// Where clients reach this node: an address or name, with a port where several nodes share it [default: the host
    /// of --internal]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub external: Option<String>,
    /// Where the node keeps what it knows of its cluster
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: PathBuf,
    /// The port of this node's etcd for clients, should it run one
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_CLIENT_PORT)]
    pub etcd_client_port: u16,
    /// The port of this node's etcd for other members
    #[arg(long, value_name = "PORT", default_value_t = cairn_node::cluster::ETCD_PEER_PORT)]
    pub etcd_peer_port: u16,
}

#[derive(Debug, Args)]
pub struct ClusterInitArgs {
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// An etcd that others run: its addresses, separated by commas [default: nodes of the cluster run one]
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Take addresses of etcd with http:// that are not of this machine: whoever is on the way reads and changes what the cluster
    /// knows
    #[arg(long, requires = "etcd")]
    pub insecure_etcd: bool,
}

#[derive(Debug, Args)]
pub struct ClusterRotateArgs {
    /// Only show how far it is, or when it was done last
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

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
    /// A disk of this node: copies are looked for on it, and what it knows that they do not; may be given several times
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Take this copy, and look for no other; of several the newest
    #[arg(long = "copy", value_name = "FILE")]
    pub copies: Vec<std::path::PathBuf>,
    /// Do it
    #[arg(long)]
    pub yes: bool,
    /// Also if disks have logs that are newer than the copy: what was acknowledged since is given up
    #[arg(long)]
    pub give_up_newer: bool,
}

#[derive(Debug, Args)]
pub struct ClusterAcceptArgs {
    /// The node's cluster folder
    #[arg(long, value_name = "DIR", default_value = cairn_node::cluster::FOLDER_DEFAULT)]
    pub cluster_dir: std::path::PathBuf,
    /// The member of etcd that has the recovered map [default: the etcd that this node knows]
    #[arg(long, value_name = "NODE,CLIENT_URL,PEER_URL", value_parser = crate::recover::parse_member, requires = "data")]
    pub member: Option<crate::recover::MemberAt>,
    /// A disk of this node: it does not follow a map that does not know its logs; to be given for each of them
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<std::path::PathBuf>,
    /// Also if disks have logs that are newer than the map: what was acknowledged since is given up
    #[arg(long)]
    pub give_up_newer: bool,
}

#[derive(Debug, Args)]
pub struct ClusterTokenArgs {
    /// How long the ticket can be used, such as 30m, 1h, 12h; 24h at most
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::cluster::parse_time)]
    pub valid: std::time::Duration,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ClusterJoinArgs {
    /// What `cairn cluster token` printed; `-` reads it from standard input
    pub ticket: String,
    /// Be the node of this name, which is away and whose disks this machine has
    #[arg(long, value_name = "NODE", conflicts_with = "node")]
    pub takes_over: Option<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// List the disks, and what is being moved between them
    List(ViewArgs),
    /// Take an empty folder into the pool as a new disk
    Add(DiskAddArgs),
    /// Say what kind of device a disk is
    Set(DiskSetArgs),
    /// Move everything off a disk while clients work
    Drain(DiskDrainArgs),
    /// Take a disk out of the pool
    Remove(DiskRemoveArgs),
    /// Replace a disk, whether it works, has failed or is lost
    Replace(DiskReplaceArgs),
    /// Take a disk back that is not used any more, if it works again
    ///
    ///
    /// It must have answered all that it was asked before. It is given what it missed, and counts when it has that. A disk that is
    /// UNRESPONSIVE or FAILING comes back by itself, and so does one that was put out only because it hung.
    Retry(DiskRetryArgs),
    /// Show how data moves to emptier disks, pause that, or let it go on
    ///
    ///
    /// After disks or nodes were added, or much was deleted, data moves until all disks of a kind are about equally full. It
    /// begins when two of them are more than 10 % apart, and ends at 5 %. It makes way for clients, keeps to `rebuild_rate`
    /// and to the maintenance window, and waits while anything else has to move. In a cluster all nodes do so.
    Spread(DiskSpreadArgs),
}

#[derive(Debug, Args)]
pub struct DiskSpreadArgs {
    /// Move no more of it, until it is resumed: in a cluster on all nodes
    #[arg(long, conflicts_with = "resume")]
    pub pause: bool,
    /// Go on
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What an added folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Data, and metadata where there are too few journal disks
    Data,
    /// Logs and metadata of volumes alone: for disks that are faster than the others
    Journal,
    /// A read cache of what the pool's disks have, on a disk that is faster; nothing is lost with it
    Cache,
}

#[derive(Debug, Args)]
pub struct DiskAddArgs {
    /// The folder, on the server's machine
    pub folder: String,
    /// What it is for
    #[arg(long, value_enum, default_value_t = RoleArg::Data)]
    pub role: RoleArg,
    /// What kind of device it is: hdd, ssd or nvme. Data that is to live on one kind is put there: `cairn volume set main
    /// --media ssd`, `cairn policy set main/scratch --media nvme`
    #[arg(long, default_value_t)]
    pub media: MediaChoice,
    /// What a read cache may take of the folder's file system, at least 256MiB
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Make the folder if it does not exist. Without it such a folder is refused: its name may have a typo, or its drive may not
    /// be mounted
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    /// Do not ask on a terminal whether the device that the folder is on is the right one
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskSetArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// hdd, ssd or nvme; any says nothing. Data that is to live on one kind of disks moves there, and off the others
    #[arg(long)]
    pub media: MediaChoice,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskDrainArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Stop draining, and let new data go to the disk again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRemoveArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Remove it although it has data, which is then rebuilt from the other disks. Refused if they do
    /// not have all of it
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskReplaceArgs {
    /// The disk to replace: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// The folder of the new disk, on the server's machine; may be the folder of the lost disk
    pub folder: String,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Make the folder if it does not exist
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRetryArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    /// Start a scrub, or continue a paused one; change its rate
    Start(ScrubStartArgs),
    /// Pause the scrub, also across restarts
    Pause(ViewArgs),
    /// Show the scrub's progress and what it found
    Status(ViewArgs),
    /// List the files with data that can no longer be read
    Report(ViewArgs),
    /// Have scrubs begin by themselves, and set a maintenance window: `cairn scrub schedule --every 30d --window
    /// sat:22:00-06:00`
    ///
    /// Shows what is set, and when the next scrub begins, without any of --every, --window and --clear. With --every or
    /// --window the other one is taken away if it is not given. In a cluster the schedule is that of all nodes.
    ///
    /// Outside of the window no scrub begins by itself, one that began by itself rests, and no volume moves to another node
    /// for the sake of the load. What an operator starts goes on at any time, and so does what makes data safe again.
    Schedule(ScrubScheduleArgs),
}

#[derive(Debug, Args)]
pub struct ScrubScheduleArgs {
    /// Begin a scrub so long after the last one began: hours or days, such as 12h or 30d
    #[arg(long, value_name = "TIME")]
    pub every: Option<ScrubEvery>,
    /// The maintenance window: days and times of the week in UTC, such as sat:22:00-06:00, daily:01:00-05:00 or
    /// mon-fri:02:00-04:00,sat,sun:00:00-24:00 [default: none, always open]
    #[arg(long, value_name = "WINDOW")]
    pub window: Option<MaintenanceWindow>,
    /// Take both away
    #[arg(long, conflicts_with_all = ["every", "window"])]
    pub clear: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ScrubStartArgs {
    /// Read at most this much per second in this scrub, such as 50MiB; 0 for no limit [default:
    /// `scrub_rate` of the config]
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// Start from the beginning, even if a scrub is in progress
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeMoveArgs {
    pub name: VolumeName,
    /// The node that is to own it as long as it can [default: whichever]
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// List all volumes
    List(ViewArgs),
    /// Show one volume
    Show(VolumeShowArgs),
    /// Create a volume; nobody may mount it until `cairn export set`
    Create(VolumeCreateArgs),
    /// Make a volume that begins as another one is now, or as a snapshot of it: `cairn volume clone main@before test`
    ///
    /// It is there at once, whatever the size, and shares all data until one of the two is written to. It is exported, written,
    /// snapshotted, cloned and deleted as any volume; nobody may mount it until `cairn export set`. Its settings are those of its
    /// source. Both can be deleted in any order.
    Clone(VolumeCloneArgs),
    /// Change settings of a volume
    Set(VolumeSetArgs),
    /// Delete a volume and all its data
    Delete(VolumeDeleteArgs),
    /// Have another node of the cluster own a volume; clients wait for a moment
    Move(VolumeMoveArgs),
    /// Erase the key of an encrypted volume, so that nobody can read it any more: `cairn volume erase-key old --yes`
    ///
    /// It cannot be undone. Copies of the wrapped key may be left in freed blocks of the disks, on disks that are away and in
    /// backups of etcd; whoever must be sure destroys the master key too, after `cairn key rotate` to another one.
    EraseKey(VolumeEraseKeyArgs),
    /// The address that follows a volume's owner, for clients to mount
    #[command(subcommand)]
    Address(VolumeAddressCommand),
}

#[derive(Debug, Subcommand)]
pub enum VolumeAddressCommand {
    /// Have an address follow a volume: the node that owns the volume has it
    ///
    /// It is put on an interface and announced to neighbours (ARP, neighbour discovery), for which `cairn serve` needs
    /// CAP_NET_ADMIN and CAP_NET_RAW; or a program moves it (`--address-hook`). It is an address that nobody has.
    ///
    /// Example: cairn volume address set main 10.0.0.9/24
    Set(VolumeAddressSetArgs),
    /// Take the address away
    Remove(VolumeAddressRemoveArgs),
}

#[derive(Debug, Args)]
pub struct VolumeAddressSetArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// The address, with the length of its prefix: 10.0.0.9/24
    #[arg(value_name = "ADDR/PREFIX")]
    pub address: String,
    /// The network interface, of the same name on each node [default: that with an address in the same network]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeAddressRemoveArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeShowArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Settings of a volume.
#[derive(Clone, Debug, Args)]
pub struct VolumeFlags {
    /// default (what the number of disks allows, up to two lost disks), none, +1n to +4n (survives that many
    /// lost disks), 2x to 5x (that many copies) [a new volume: default]
    #[arg(long, allow_hyphen_values = true)]
    pub protection: Option<Protection>,
    /// none, or a size such as 500GiB; rates by the TiB are for this size [a new volume: none]
    #[arg(long, value_name = "SIZE", visible_aliases = ["quota", "size"])]
    pub size_limit: Option<SizeLimit>,
    /// none, or the size up to which the size limit grows by itself as the volume fills [a new volume: none]
    #[arg(long, value_name = "SIZE")]
    pub autogrow: Option<SizeLimit>,
    /// concurrent (many clients, all kinds of files), streaming (large files from end to end) or
    /// random (small accesses in large files) [a new volume: concurrent]
    #[arg(long, value_name = "PATTERN")]
    pub access_pattern: Option<AccessPattern>,
    /// none (or off), lz4, zstd (level 3), zstd:1 to zstd:19, or auto (lz4, or zstd where it saves clearly more) [a new
    /// volume: lz4]
    #[arg(long)]
    pub compression: Option<Compression>,
    /// off, on or verify: whether bytes that the volume has already are written again. on trusts a hash of 256 bits, verify
    /// reads and compares first; for data written from then on: `cairn volume set backups --dedupe on` [a new volume: off]
    #[arg(long)]
    pub dedupe: Option<Dedupe>,
    /// any, or hdd, ssd, nvme: the kind of disks that data lives on which is written from then on; `cairn policy apply` moves
    /// what is there [a new volume: any]
    #[arg(long)]
    pub media: Option<MediaChoice>,
    /// none, or a class of service: standard, premium, extreme, another of `cairn class list` [a new volume: none]
    #[arg(long)]
    pub class: Option<ClassChoice>,
    /// The tier that cold data goes to, one of `cairn tier list`; for a volume that is there
    #[arg(long)]
    pub tier: Option<TierName>,
    /// none (what is in the tier comes back), snapshot-only (what only snapshots have, and nobody used for the cooling time,
    /// goes to the tier), auto (what nobody used for the cooling time goes) or all (everything goes, as soon as it takes no
    /// more writes)
    #[arg(long)]
    pub tiering: Option<Tiering>,
    /// 2 to 183 days without use, after which data is cold [first: 31]
    #[arg(long, value_name = "DAYS")]
    pub cooling_days: Option<CoolingDays>,
    /// any, or patterns of names, with commas between them: with auto and all, what goes to the tier is of files one of them
    /// matches: `cairn volume set media --tier-files '*.mp4,*.fastq.gz'` [first: any]
    #[arg(long, value_name = "PATTERNS")]
    pub tier_files: Option<FilePatterns>,
    /// none, or the least size of these files, such as 1MiB [first: none]
    #[arg(long, value_name = "SIZE")]
    pub tier_min_size: Option<SizeLimit>,
    /// none, or for how long these files must not have been changed, such as 12h or 30d [first: none]
    #[arg(long, value_name = "AGE")]
    pub tier_min_age: Option<MinAge>,
}

impl VolumeFlags {
    pub fn change(&self) -> VolumeChange {
        VolumeChange {
            protection: self.protection,
            size_limit: self.size_limit,
            autogrow: self.autogrow,
            access_pattern: self.access_pattern,
            compression: self.compression,
            dedupe: self.dedupe,
            media: self.media,
            class: self.class.clone(),
            tier: self.tier.clone(),
            tiering: self.tiering,
            cooling_days: self.cooling_days,
            tier_files: self.tier_files.clone(),
            tier_min_size: self.tier_min_size,
            tier_min_age: self.tier_min_age,
        }
    }
}

#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// The name of the volume, which is also the path to mount: 1 to 63 letters, digits, '.', '_'
    /// or '-', starting with a letter or a digit
    pub name: VolumeName,
    /// Encrypt what files hold, with AES-256-GCM; the server needs a master key (`cairn key generate`). It can never be
    /// changed
    #[arg(long)]
    pub encrypt: bool,
    #[command(flatten)]
    pub flags: VolumeFlags,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeCloneArgs {
    /// The volume, and a snapshot of it to begin with: main, or main@before
    #[arg(value_name = "SOURCE[@SNAPSHOT]")]
    pub source: String,
    /// The name of the new volume
    pub name: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeSetArgs {
    /// The name of the volume
    pub name: VolumeName,
    #[command(flatten)]
    pub flags: VolumeFlags,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeDeleteArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// Delete it although it is exported
    #[arg(long)]
    pub force: bool,
    /// Do not ask for the name again
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeEraseKeyArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// Do not ask for the name again
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// List who may mount which volume
    List(ViewArgs),
    /// Let clients mount a volume, or change their rights
    Set(ExportSetArgs),
    /// Stop clients from mounting a volume
    Remove(ExportRemoveArgs),
}

#[derive(Debug, Args)]
pub struct ExportSetArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// An address or a network such as 10.0.0.0/8; repeat the flag for more. If several
    /// match a client, the narrowest counts
    #[arg(long, required = true, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    /// Allow reading only
    #[arg(long, conflicts_with = "rw")]
    pub ro: bool,
    /// Allow reading and writing (the default)
    #[arg(long)]
    pub rw: bool,
    /// Which users become the anonymous user: root, all or none
    #[arg(long, default_value = "root")]
    pub squash: Squash,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anonuid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anongid: u32,
    /// Refuse clients whose port is above 1023
    #[arg(long)]
    pub require_reserved_port: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ExportRemoveArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// The client or network whose rule to remove; repeat the flag for more [default: all rules of the volume]
    #[arg(long, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    #[command(flatten)]
    pub view: ViewArgs,
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
    /// Write the pages of all commands to this folder, which is created if it does not exist
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
            assert_eq!(
                got.is_ok(),
                *want,
                "{line}: {:?}",
                got.err().map(|e| e.to_string())
            );
        }
    }
}
