//! User data: what a machine does at its first boot, as cloud-init reads it.
//!
//! Owns: the settings that scripts read, the places where values go. Must not know: how a format
//! names those values.

use super::spec::Machine;
use super::tree::{list, map};
use super::{ClientValues, DeployOptions, MachineValues, NFS_PORT};
use crate::report::Protocol;

const BOOT: &str = include_str!("../../templates/boot.sh");
const SERVER: &str = include_str!("../../templates/server.sh");
const HEALTH: &str = include_str!("../../templates/health.sh");
const CLUSTER: &str = include_str!("../../templates/cluster.sh");
const CLIENT: &str = include_str!("../../templates/client.sh");
const SETTINGS_PATH: &str = "/etc/cairn/deploy.env";
const BOOT_PATH: &str = "/usr/local/sbin/cairn-boot";
/// Name of the hook that keeps an instance out of service until its boot has told how it went.
pub(super) const BOOT_HOOK: &str = "boot";
/// Namespace of the metrics that a server tells of itself.
pub(super) const METRICS: &str = "Cairn";

/// A value that is known only where the template is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Name,
    User,
    Region,
    /// The stack that waits for a signal; empty where there is none.
    Stack,
    /// Ids of volumes, with commas; or devices.
    Volumes,
    /// Networks, with commas.
    Clients,
    /// Address of the login node, whose root is root; empty: none.
    Login,
    PackageUrl,
    PackageSha256,
    /// The auto scaling group that replaces the instance; empty: none.
    Group,
    /// Internal addresses of all nodes, with commas.
    Nodes,
}

impl Slot {
    const ALL: [(&'static str, Self); 11] = [
        ("Name", Self::Name),
        ("User", Self::User),
        ("Region", Self::Region),
        ("Stack", Self::Stack),
        ("Volumes", Self::Volumes),
        ("Clients", Self::Clients),
        ("Login", Self::Login),
        ("PackageUrl", Self::PackageUrl),
        ("PackageSha256", Self::PackageSha256),
        ("Group", Self::Group),
        ("Nodes", Self::Nodes),
    ];

    pub fn name(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, slot)| *slot == self);
        known.map_or("", |(name, _)| name)
    }

    /// The value where there is no template around the user data.
    pub fn literal(self, values: &MachineValues, region: &str) -> String {
        match self {
            Self::Name => values.name.clone(),
            Self::User => values.user.clone(),
            Self::Region => region.to_string(),
            Self::Stack | Self::Group | Self::Nodes => String::new(),
            Self::Volumes => values.devices.join(","),
            Self::Clients => values.client_networks.join(","),
            Self::Login => values.login.clone().unwrap_or_default(),
            Self::PackageUrl => values.package.url.clone(),
            Self::PackageSha256 => values.package.sha256.clone(),
        }
    }
}

/// How the boot script finds the data disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskMode {
    /// Attaches the volumes in [`Slot::Volumes`].
    Volumes,
    /// EBS volumes that came with the instance.
    OwnVolumes,
    InstanceStore,
    /// The devices in [`Slot::Volumes`].
    Devices,
}

// Around the name of a slot, in text that is not filled in yet. Neither is in any script or setting.
const OPEN: char = '\u{e000}';
const CLOSE: char = '\u{e001}';

fn slot(slot: Slot) -> String {
    format!("{OPEN}{}{CLOSE}", slot.name())
}

/// Puts values where slots are; `fixed` escapes what is between them.
pub(super) fn fill(
    text: &str,
    mut value: impl FnMut(Slot) -> String,
    fixed: impl Fn(&str) -> String,
) -> String {
    let mut out = String::new();
    for part in text.split(OPEN) {
        let (name, rest) = part.split_once(CLOSE).unwrap_or(("", part));
        let known = Slot::ALL.iter().find(|(known, _)| *known == name);
        if let Some((_, slot)) = known {
            out.push_str(&value(*slot));
        }
        out.push_str(&fixed(rest));
    }
    out
}

/// What has slots, in whole lines, and the rest.
pub(super) fn split_after_slots(text: &str) -> (&str, &str) {
    let last = text.rfind(CLOSE).unwrap_or(0);
    let end_of_line = text.get(last..).and_then(|rest| rest.find('\n'));
    text.split_at(end_of_line.map_or(text.len(), |len| last + len + 1))
}

/// Lines of a file that a shell reads. Values need no escaping: `values` lets no quote pass.
fn settings(entries: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (name, value) in entries {
        out.push_str(&format!("CAIRN_{name}='{value}'\n"));
    }
    out
}

/// Runs the first of the scripts, given with their paths.
fn cloud_config(user: Option<String>, settings: String, scripts: &[(&str, String)]) -> String {
    let mut config = map! {};
    if let Some(user) = user {
        // Gets the key that the machine is started with, and sudo.
        config = config.with("user", user);
    }
    let mut files =
        vec![map! { "path" => SETTINGS_PATH, "permissions" => "0600", "content" => settings }];
    files.extend(scripts.iter().map(
        |(path, script)| map! { "path" => *path, "permissions" => "0755", "content" => script },
    ));
    let first = scripts.first().map_or("", |(path, _)| *path);
    let config = config
        .with("write_files", files)
        .with("runcmd", list![list![first]]);
    format!("#cloud-config\n{}", config.yaml())
}

fn common(machine: &Machine, mode: DiskMode, protocols: &str) -> Vec<(&'static str, String)> {
    let mode = match mode {
        DiskMode::Volumes => "volumes",
        DiskMode::OwnVolumes => "own-volumes",
        DiskMode::InstanceStore => "instance-store",
        DiskMode::Devices => "devices",
    };
    vec![
        ("NAME", slot(Slot::Name)),
        ("REGION", slot(Slot::Region)),
        ("STACK", slot(Slot::Stack)),
        ("DISKS", mode.to_string()),
        ("DISK_COUNT", machine.disks.count().to_string()),
        ("VOLUMES", slot(Slot::Volumes)),
        ("PACKAGE_URL", slot(Slot::PackageUrl)),
        ("PACKAGE_SHA256", slot(Slot::PackageSha256)),
        ("GROUP", slot(Slot::Group)),
        ("HOOK", BOOT_HOOK.to_string()),
        ("METRICS", METRICS.to_string()),
        ("PORT", NFS_PORT.to_string()),
        ("PROTOCOLS", protocols.to_string()),
        ("CLIENTS", slot(Slot::Clients)),
        ("LOGIN", slot(Slot::Login)),
    ]
}

/// What clients are served beside NFS.
fn served(options: &DeployOptions) -> String {
    let words = options
        .protocols
        .iter()
        .filter_map(|protocol| match protocol {
            Protocol::S3 => Some("s3"),
            Protocol::Iscsi => Some("iscsi"),
            Protocol::Nfs | Protocol::Smb | Protocol::Lustre => None,
        });
    words.collect::<Vec<_>>().join(",")
}

/// Name of the resource whose creation the server's signal ends.
pub(super) const SERVER_SIGNAL: &str = "ServerGroup";

/// User data of a single server, with slots. `has_group`: an auto scaling group replaces the instance, which therefore
/// watches its own health.
pub(super) fn server(
    machine: &Machine,
    mode: DiskMode,
    has_group: bool,
    options: &DeployOptions,
) -> String {
    let (volume, protection) = machine.export();
    let mut entries = common(machine, mode, &served(options));
    entries.extend([
        ("SIGNAL", SERVER_SIGNAL.to_string()),
        ("VOLUME", volume.to_string()),
        ("PROTECTION", protection),
    ]);
    let mut scripts = vec![(BOOT_PATH, format!("{BOOT}{SERVER}"))];
    if has_group {
        scripts.push(("/usr/local/sbin/cairn-health", HEALTH.to_string()));
    }
    cloud_config(Some(slot(Slot::User)), settings(&entries), &scripts)
}

/// User data of every node of a cluster, with slots.
pub(super) fn node(
    nodes: u32,
    machine: &Machine,
    mode: DiskMode,
    options: &DeployOptions,
) -> String {
    let (volume, protection) = machine.export_of(nodes);
    let mut entries = common(machine, mode, &served(options));
    entries.extend([
        ("SIGNAL", "tag".to_string()),
        ("VOLUME", volume.to_string()),
        ("PROTECTION", protection),
        ("NODES", slot(Slot::Nodes)),
    ]);
    cloud_config(
        Some(slot(Slot::User)),
        settings(&entries),
        &[(BOOT_PATH, format!("{BOOT}{CLUSTER}"))],
    )
}

/// User data of a client.
pub(super) fn client(values: &ClientValues) -> String {
    let entries = [
        ("SERVER", values.server.clone()),
        ("PORT", NFS_PORT.to_string()),
        ("VOLUME", values.volume.clone()),
        ("MOUNT_POINT", values.mount_point.clone()),
        ("NCONNECT", values.nconnect.to_string()),
    ];
    cloud_config(
        None,
        settings(&entries),
        &[("/usr/local/sbin/cairn-mount", CLIENT.to_string())],
    )
}
