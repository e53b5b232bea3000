//! `cairn volume ...`.

use std::io::{BufRead, IsTerminal};

use cairn_admin::api::{VolumeChange, VolumeCloneCreate, VolumeCreate, VolumeView};
use cairn_admin::keys::EncryptionState;
use cairn_base::units::format_size;
use cairn_config::{SizeLimit, VolumeName};

use crate::access;
use crate::args::{
    ViewArgs, VolumeCloneArgs, VolumeCreateArgs, VolumeDeleteArgs, VolumeSetArgs, VolumeShowArgs,
};
use crate::class;
use crate::exit::Failure;
use crate::print;
use crate::status::volume_table;
use crate::tier;

pub fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.volumes()?;
    if args.json {
        return print::json(&list);
    }
    print::text(&volume_table(&list.volumes))
}

pub fn show(args: &VolumeShowArgs) -> Result<(), Failure> {
    let volume = access::client(&args.view.server)?.volume(&args.name)?;
    shown(&volume, args.view.json)
}

pub fn create(args: &VolumeCreateArgs) -> Result<(), Failure> {
    let create = VolumeCreate {
        name: args.name.clone(),
        encrypt: args.encrypt,
        settings: args.flags.change(),
    };
    let volume = access::client(&args.view.server)?.volume_create(&create)?;
    if args.view.json {
        return print::json(&volume);
    }
    print::text(&format!(
        "volume {} created: {}\nnobody may mount it yet: cairn export set {} --client CIDR",
        volume.name, volume.layout, volume.name
    ))
}

pub fn clone(args: &VolumeCloneArgs) -> Result<(), Failure> {
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
    let volume = access::client(&args.view.server)?.volume_clone(&source, &clone)?;
    if args.view.json {
        return print::json(&volume);
    }
    print::text(&format!(
        "volume {} created as a clone of {}\nnobody may mount it yet: cairn export set {} --client CIDR",
        volume.name, args.source, volume.name
    ))
}

pub fn set(args: &VolumeSetArgs) -> Result<(), Failure> {
    let change = args.flags.change();
    if change == VolumeChange::default() {
        return Err(Failure::usage("no setting to change is given")
            .hint("`cairn volume set --help` lists the settings"));
    }
    let volume = access::client(&args.view.server)?.volume_set(&args.name, &change)?;
    shown(&volume, args.view.json)
}

pub fn delete(args: &VolumeDeleteArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if !args.yes {
        let volume = client.volume(&args.name)?;
        ask_for_name(&volume, "This deletes")?;
    }
    client.volume_delete(&args.name, args.force)?;
    if args.view.json {
        return print::json(&serde_json::json!({ "deleted": args.name }));
    }
    print::text(&format!("volume {} deleted", args.name))
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
        0 => volume.dedupe.to_string(),
        bytes => format!(
            "{}; {} deduplicated since the server started",
            volume.dedupe,
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
        true => volume.media.to_string(),
        false => format!("{} ({})", volume.media, parts.join(", ")),
    }
}

fn shown(volume: &VolumeView, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(volume);
    }
    let mut lines = vec![
        format!("name             {}", volume.name),
        format!("protection       {} ({})", volume.protection, volume.layout),
        format!("survives         {}", survives(volume)),
    ];
    lines.extend(directories(volume));
    lines.extend([
        format!(
            "size limit       {}{}",
            volume.size_limit,
            match volume.autogrow {
                SizeLimit::None => String::new(),
                bound => format!(", grows automatically up to {bound}"),
            }
        ),
        format!("access pattern   {}", volume.access_pattern),
        format!("compression      {}", volume.compression),
        format!("deduplication    {}", deduplication(volume)),
        format!("media            {}", media(volume)),
        format!("encryption       {}", encryption(volume)),
        format!("class            {}", volume.class),
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
