//! `cairn volume ...`.

use std::io::{BufRead, IsTerminal};

use cairn_admin::endpoint::Force;
use cairn_admin::keys::EncryptionState;
use cairn_admin::list_query::ListQuery;
use cairn_admin::volumes::{
    VOLUME_ADDRESS_REMOVE, VOLUME_ADDRESS_SET, VOLUME_CLONE, VOLUME_CREATE, VOLUME_DELETE,
    VOLUME_LIST, VOLUME_MOVE, VOLUME_SET, VOLUME_SHOW, VolumeAddressSet, VolumeChange,
    VolumeCloneCreate, VolumeCreate, VolumeMove, VolumeView,
};
use cairn_base::units::format_size;
use cairn_config::{SizeLimit, VolumeName};
use clap::{Args, Subcommand};

use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::status::volume_table;
use crate::{access, class, key, print, tier};

#[derive(Debug, Args)]
pub struct VolumeMoveArgs {
    pub name: VolumeName,
    /// The node that owns the volume from now on, whenever it can [default: the cluster chooses]
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
    /// Clone a volume or one of its snapshots: `cairn volume clone main@before test`
    ///
    /// A clone of any size is ready at once, and shares its data with the source until either is written. It inherits the source's
    /// settings and otherwise is a volume like any other; nobody may mount it until `cairn export set`. Source and clone can be
    /// deleted in any order.
    Clone(VolumeCloneArgs),
    /// Change settings of a volume
    Set(VolumeSetArgs),
    /// Delete a volume and all its data
    Delete(VolumeDeleteArgs),
    /// Move a volume to another node of the cluster; clients see a short pause
    Move(VolumeMoveArgs),
    /// Erase the key of an encrypted volume, which makes the volume unreadable: `cairn volume erase-key old --yes`
    ///
    /// Erasure cannot be undone. Copies of the wrapped key may remain in freed blocks, on missing disks and in backups of etcd. To
    /// be sure, run `cairn key rotate` to another master key, then destroy the old master key.
    EraseKey(VolumeEraseKeyArgs),
    /// The floating address of a volume, which follows the volume's owner
    #[command(subcommand)]
    Address(VolumeAddressCommand),
}

#[derive(Debug, Subcommand)]
pub enum VolumeAddressCommand {
    /// Give a volume an address that its owner always holds
    ///
    /// The owner puts the address on an interface and announces it to neighbours (ARP, neighbour discovery); `cairn serve` needs
    /// CAP_NET_ADMIN and CAP_NET_RAW for that. Instead, a program can move the address (`--address-hook`). Choose an unused address.
    ///
    /// Example: cairn volume address set main 10.0.0.9/24
    Set(VolumeAddressSetArgs),
    /// Remove the volume's address
    Remove(VolumeAddressRemoveArgs),
}

#[derive(Debug, Args)]
pub struct VolumeAddressSetArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// The address, with the length of its prefix: 10.0.0.9/24
    #[arg(value_name = "ADDR/PREFIX")]
    pub address: String,
    /// The network interface, which has the same name on each node [default: the one with an address in the same network]
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

#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// The name of the volume, which is also the path to mount: 1 to 63 letters, digits, '.', '_'
    /// or '-', starting with a letter or a digit
    pub name: VolumeName,
    /// Encrypt file contents with AES-256-GCM; the server needs a master key (`cairn key generate`). This cannot be changed
    /// later
    #[arg(long)]
    pub encrypt: bool,
    #[command(flatten)]
    pub settings: VolumeChange,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeCloneArgs {
    /// The volume, or one of its snapshots: main, or main@before
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
    pub settings: VolumeChange,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct VolumeDeleteArgs {
    /// The name of the volume
    pub name: VolumeName,
    /// Delete the volume although it is exported
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

/// Does what is asked about volumes.
pub fn volume(command: &VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::List(args) => list(args),
        VolumeCommand::Show(args) => show(args),
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::Clone(args) => clone(args),
        VolumeCommand::Set(args) => set(args),
        VolumeCommand::Delete(args) => delete(args),
        VolumeCommand::Move(args) => move_to(args),
        VolumeCommand::EraseKey(args) => key::erase(args),
        VolumeCommand::Address(VolumeAddressCommand::Set(args)) => address_set(args),
        VolumeCommand::Address(VolumeAddressCommand::Remove(args)) => address_remove(args),
    }
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.all(VOLUME_LIST, &ListQuery::default())?;
    if args.json {
        return print::json(&list);
    }
    print::text(&volume_table(&list.volumes))
}

fn show(args: &VolumeShowArgs) -> Result<(), Failure> {
    let volume = access::client(&args.view.server)?.ask(VOLUME_SHOW, &args.name)?;
    shown(&volume, args.view.json)
}

fn create(args: &VolumeCreateArgs) -> Result<(), Failure> {
    let create = VolumeCreate {
        name: args.name.clone(),
        encrypt: args.encrypt,
        settings: args.settings.clone(),
    };
    let volume = access::client(&args.view.server)?.tell(VOLUME_CREATE, &(), &create)?;
    if args.view.json {
        return print::json(&volume);
    }
    print::text(&format!(
        "volume {} created: {}\nnobody may mount it yet: cairn export set {} --client CIDR",
        volume.name, volume.layout, volume.name
    ))
}

fn clone(args: &VolumeCloneArgs) -> Result<(), Failure> {
    let (source, snapshot) = match args.source.split_once('@') {
        Some((source, snapshot)) => (source, Some(snapshot.to_owned())),
        None => (args.source.as_str(), None),
    };
    let source: VolumeName = source
        .parse()
        .map_err(|error| Failure::usage(format!("{source:?} is not a volume name: {error}")))?;
    let clone = VolumeCloneCreate {
        name: args.name.clone(),
        snapshot,
    };
    let volume = access::client(&args.view.server)?.tell(VOLUME_CLONE, &source, &clone)?;
    if args.view.json {
        return print::json(&volume);
    }
    print::text(&format!(
        "volume {} created as a clone of {}\nnobody may mount it yet: cairn export set {} --client CIDR",
        volume.name, args.source, volume.name
    ))
}

fn set(args: &VolumeSetArgs) -> Result<(), Failure> {
    if args.settings == VolumeChange::default() {
        return Err(Failure::usage("no setting to change is given")
            .hint("`cairn volume set --help` lists the settings"));
    }
    let volume = access::client(&args.view.server)?.tell(VOLUME_SET, &args.name, &args.settings)?;
    shown(&volume, args.view.json)
}

fn delete(args: &VolumeDeleteArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if !args.yes {
        let volume = client.ask(VOLUME_SHOW, &args.name)?;
        ask_for_name(&volume, "This deletes")?;
    }
    client.ask(VOLUME_DELETE, &(args.name.clone(), Force(args.force)))?;
    if args.view.json {
        return print::json(&serde_json::json!({ "deleted": args.name }));
    }
    print::text(&format!("volume {} deleted", args.name))
}

fn move_to(args: &VolumeMoveArgs) -> Result<(), Failure> {
    let to = VolumeMove {
        to: args.to.clone(),
    };
    let volume = access::client(&args.view.server)?.tell(VOLUME_MOVE, &args.name, &to)?;
    if args.view.json {
        return print::json(&volume);
    }
    print::text(&match &args.to {
        Some(node) => format!(
            "volume {} moves to node {node}; see `cairn cluster status`",
            args.name
        ),
        None => format!("any node may own volume {} now", args.name),
    })
}

fn address_set(args: &VolumeAddressSetArgs) -> Result<(), Failure> {
    let set = VolumeAddressSet {
        address: args.address.clone(),
        interface: args.interface.clone(),
    };
    let view = access::client(&args.view.server)?.tell(VOLUME_ADDRESS_SET, &args.name, &set)?;
    if args.view.json {
        return print::json(&view);
    }
    print::text(&format!(
        "{} now follows the owner of volume {}; see `cairn cluster status`",
        args.address, args.name
    ))
}

fn address_remove(args: &VolumeAddressRemoveArgs) -> Result<(), Failure> {
    access::client(&args.view.server)?.ask(VOLUME_ADDRESS_REMOVE, &args.name)?;
    print::text(&format!(
        "volume {} has no address of its own now",
        args.name
    ))
}

/// `what` is done to the volume if its name is typed.
pub fn ask_for_name(volume: &VolumeView, what: &str) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage(
            "this command asks for the volume's name, but there is no terminal",
        )
        .hint("add --yes to skip the question"));
    }
    print::ask(&format!(
        "{what} {} with {} in {} inodes for good.\nType its name to continue: ",
        volume.name,
        format_size(volume.used_bytes),
        volume.inodes
    ));
    let mut answer = String::new();
    stdin
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("reading the answer: {error}")))?;
    if answer.trim() == volume.name.as_str() {
        Ok(())
    } else {
        Err(Failure::refused(
            "that is not the name of the volume; nothing was changed",
        ))
    }
}

fn survives(volume: &VolumeView) -> String {
    let disks = volume.disk_failures_tolerated;
    match volume.node_failures_tolerated {
        None => format!("{disks} lost disks"),
        Some(1) => format!("{disks} lost disks, or 1 lost node"),
        Some(nodes) => format!("{disks} lost disks, or {nodes} lost nodes"),
    }
}

/// Other protections, of directories.
fn directories(volume: &VolumeView) -> Option<String> {
    let others = volume.directory_protections.iter();
    let parts = others.map(|it| {
        let (protection, layout) = (it.protection, &it.layout);
        format!(
            "{protection} ({layout}) survives {} lost disks",
            it.disk_failures_tolerated
        )
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| format!("directories      {}", parts.join("; ")))
}

fn encryption(volume: &VolumeView) -> String {
    let master_key = volume.encryption.master_key.as_deref().unwrap_or_default();
    match volume.encryption.state {
        EncryptionState::None => "none".to_owned(),
        EncryptionState::Encrypted => {
            format!("AES-256-GCM; its key is wrapped with master key {master_key}")
        }
        EncryptionState::Locked => {
            format!(
                "AES-256-GCM; its key is wrapped with master key {master_key}, which is MISSING"
            )
        }
        EncryptionState::Erased => {
            "its key was ERASED: the volume is unreadable for ever".to_owned()
        }
    }
}

fn deduplication(volume: &VolumeView) -> String {
    match volume.deduplicated_bytes {
        0 => volume.settings.dedupe.to_string(),
        bytes => format!(
            "{}; {} deduplicated since the server started",
            volume.settings.dedupe,
            format_size(bytes)
        ),
    }
}

/// The device class that its data is to live on, and how much is there.
fn media(volume: &VolumeView) -> String {
    let bytes = volume.media_bytes.iter();
    let parts = bytes.map(|it| match it.on == it.wanted {
        true => format!("{} on {}", format_size(it.bytes), it.on),
        false if it.on.is_any() => format!(
            "{} for {}, elsewhere until that class has room",
            format_size(it.bytes),
            it.wanted
        ),
        false => format!(
            "{} for {}, on {} until that class has room",
            format_size(it.bytes),
            it.wanted,
            it.on
        ),
    });
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => volume.settings.media.to_string(),
        false => format!("{} ({})", volume.settings.media, parts.join(", ")),
    }
}

fn shown(volume: &VolumeView, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(volume);
    }
    let mut lines = vec![
        format!("name             {}", volume.name),
        format!(
            "protection       {} ({})",
            volume.settings.protection, volume.layout
        ),
        format!("survives         {}", survives(volume)),
    ];
    lines.extend(directories(volume));
    lines.extend([
        format!(
            "size limit       {}{}",
            volume.settings.size_limit,
            match volume.settings.autogrow {
                SizeLimit::None => String::new(),
                bound => format!(", grows automatically up to {bound}"),
            }
        ),
        format!("access pattern   {}", volume.settings.access_pattern),
        format!("compression      {}", volume.settings.compression),
        format!("deduplication    {}", deduplication(volume)),
        format!("media            {}", media(volume)),
        format!("encryption       {}", encryption(volume)),
        format!("class            {}", volume.settings.class),
        format!(
            "used             {} in {} inodes",
            format_size(volume.used_bytes),
            volume.inodes
        ),
        format!(
            "free             {} of {}",
            format_size(volume.free_bytes),
            format_size(volume.total_bytes)
        ),
        format!(
            "snapshots        {}, which alone hold {}",
            volume.snapshots,
            format_size(volume.snapshot_bytes)
        ),
        format!(
            "garbage          {}, of which {} is being freed",
            format_size(volume.garbage_bytes),
            format_size(volume.freeing_bytes)
        ),
        format!(
            "exported         {}",
            if volume.exported { "yes" } else { "no" }
        ),
    ]);
    if let Some(origin) = &volume.clone_of {
        lines.insert(1, format!("clone of         {origin}"));
    }
    if let Some(tiering) = &volume.tiering {
        lines.push(format!(
            "tiering          {} to {} after {} days{}; {} offloaded",
            tiering.policy,
            tiering.tier,
            tiering.cooling_days,
            tier::of_files(&tiering.files, tiering.min_size, tiering.min_age),
            format_size(tiering.remote_bytes)
        ));
    }
    if let Some(rates) = &volume.rates {
        lines.extend(class::lines(rates));
    }
    if let Some(owner) = &volume.owner {
        lines.push(format!("owner            node {owner}"));
    }
    if let Some(problem) = &volume.problem {
        let what = if volume.serving {
            "problem   "
        } else {
            "NOT SERVED"
        };
        lines.push(format!("{what}       {}", print::name(problem)));
    }
    print::text(&lines.join("\n"))
}
