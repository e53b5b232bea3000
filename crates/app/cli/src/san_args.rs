//! The flags of `cairn lun`, `igroup`, `initiator` and `iscsi`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cairn_admin::san::{IgroupName, LunAt, LunReserve};
use cairn_config::{OsType, Size, VolumeName};
use clap::builder::TypedValueParser as _;
use clap::{Args, Subcommand, ValueEnum};

use crate::args::ViewArgs;
use crate::host_plan::FileSystem;

/// A LUN or group: `VOLUME/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InVolume {
    pub volume: VolumeName,
    pub name: String,
}

impl InVolume {
    pub fn path(&self) -> String {
        format!("{}/{}", self.volume, self.name)
    }

    /// As a LUN.
    pub fn lun(&self) -> LunAt {
        LunAt {
            volume: self.volume.clone(),
            name: self.name.clone(),
        }
    }

    /// As an initiator group.
    pub fn igroup(&self) -> (VolumeName, IgroupName) {
        (self.volume.clone(), IgroupName(self.name.clone()))
    }
}

impl fmt::Display for InVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.name)
    }
}

impl FromStr for InVolume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, name) = text
            .split_once('/')
            .ok_or("is not of the form VOLUME/NAME")?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err("the name has letters, digits, '.', '_' and '-'".to_owned());
        }
        Ok(Self {
            volume: volume.parse().map_err(|error| format!("{error}"))?,
            name: name.to_owned(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reserve {
    /// Thin: the LUN takes space as it is written, while the pool has space
    None,
    /// Thick: the whole size is reserved for the LUN
    Full,
}

impl From<Reserve> for LunReserve {
    fn from(reserve: Reserve) -> Self {
        match reserve {
            Reserve::None => Self::None,
            Reserve::Full => Self::Full,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum LunCommand {
    /// List all LUNs
    List(ViewArgs),
    /// Show one LUN
    Show(LunShowArgs),
    /// Create a LUN; no host sees it until `cairn lun map`
    ///
    /// Example: cairn lun create main/db --size 500GiB
    Create(LunCreateArgs),
    /// Clone a LUN at once, without copying its blocks
    ///
    /// The clone is crash-consistent: it has everything that hosts flushed. No host sees it until `cairn lun map`.
    /// Example: cairn lun clone main/db db-test --snapshot before-upgrade
    Clone(LunCloneArgs),
    /// Take a snapshot of the LUN's volume, with all LUNs of the volume at one instant
    ///
    /// The snapshot is crash-consistent: it has everything that hosts flushed. For LUNs of several volumes use a consistency group:
    /// `cairn snapshot create --group`.
    /// Example: cairn lun snapshot main/db before-upgrade
    Snapshot(LunSnapshotArgs),
    /// Roll a LUN back to a snapshot at once, without copying its blocks
    ///
    /// The LUN must be offline and unused by hosts, because their caches hold its current content.
    /// Example: cairn lun offline main/db && cairn lun restore main/db --snapshot before-upgrade && cairn lun online main/db
    Restore(LunRestoreArgs),
    /// Change the size of a LUN; hosts notice at once
    Resize(LunResizeArgs),
    /// Change settings of a LUN
    Set(LunSetArgs),
    /// Take a LUN online: serve it again
    Online(LunShowArgs),
    /// Take a LUN offline: stop serving it, and keep its data
    Offline(LunShowArgs),
    /// Delete a LUN and all its data
    Delete(LunDeleteArgs),
    /// Let an initiator group see a LUN
    Map(LunMapArgs),
    /// Hide a LUN from an initiator group
    Unmap(LunUnmapArgs),
}

#[derive(Debug, Args)]
pub struct LunShowArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunCreateArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The size, such as 500GiB, a multiple of 4 KiB; a thin LUN takes no space until it is written
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Block size in bytes: 512 or 4096 [default: 512]
    #[arg(long, value_name = "BYTES", value_parser = clap::builder::PossibleValuesParser::new(["512", "4096"])
        .map(|text| text.parse::<u32>().unwrap_or(512)))]
    pub block_size: Option<u32>,
    /// Writeback: acknowledge writes before they are stable. Hosts must flush; a crash of the server loses unflushed writes
    #[arg(long)]
    pub write_cache: bool,
    /// Space reservation: full reserves the whole size, so that writes always find space; refused if the pool has too little
    #[arg(long, value_name = "WHAT", default_value = "none")]
    pub reserve: Reserve,
    /// Refused: points to --reserve
    #[arg(long, hide = true)]
    pub thick: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunCloneArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The name of the clone, in the same volume
    pub name: String,
    /// Clone the LUN's state in this snapshot of the volume
    #[arg(long)]
    pub snapshot: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunSnapshotArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The name of the snapshot
    pub name: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunRestoreArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The snapshot of the LUN's volume
    #[arg(long)]
    pub snapshot: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunResizeArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The new size
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Allow a smaller size; data beyond it is lost
    #[arg(long)]
    pub shrink: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunSetArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// Writeback: acknowledge writes before they are stable
    #[arg(long, value_name = "SWITCH")]
    pub write_cache: Option<Switch>,
    /// Refuse writes
    #[arg(long, value_name = "SWITCH")]
    pub read_only: Option<Switch>,
    /// Warn hosts with a unit attention once at most this percentage of the volume's space is free, 1 to 99; 0 for never
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=99))]
    pub soft_threshold: Option<u8>,
    /// Space reservation: none releases the reserved space
    #[arg(long, value_name = "WHAT")]
    pub reserve: Option<Reserve>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunDeleteArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// Delete the LUN although it is mapped
    #[arg(long)]
    pub force: bool,
    /// Do not ask for the name again
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunMapArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The group, of the same volume
    #[arg(long, value_name = "GROUP")]
    pub igroup: String,
    /// The LUN's number for the group, 0 to 1023 [default: the lowest free number]
    #[arg(long, value_name = "N")]
    pub lun_id: Option<u16>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LunUnmapArgs {
    #[arg(value_name = "VOLUME/NAME")]
    pub lun: InVolume,
    /// The group
    #[arg(long, value_name = "GROUP")]
    pub igroup: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum IgroupCommand {
    /// List all initiator groups
    List(ViewArgs),
    /// Create a group, or replace its initiators
    ///
    /// Example: cairn igroup create main/hosts --initiator iqn.1993-08.org.debian:01:abc
    Create(IgroupCreateArgs),
    /// Remove a group without mapped LUNs
    Remove(IgroupRemoveArgs),
}

#[derive(Debug, Args)]
pub struct IgroupCreateArgs {
    #[arg(value_name = "VOLUME/GROUP")]
    pub igroup: InVolume,
    /// The name of an initiator; repeat the flag for more
    #[arg(long, required = true, value_name = "IQN")]
    pub initiator: Vec<String>,
    /// Operating system of the hosts: linux, windows or vmware. LUNs report physical blocks of 4 KiB to them, so that partitions and
    /// file systems are aligned
    #[arg(long, value_name = "TYPE")]
    pub os: Option<OsType>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct IgroupRemoveArgs {
    #[arg(value_name = "VOLUME/GROUP")]
    pub igroup: InVolume,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum InitiatorCommand {
    /// List the initiators with a CHAP secret
    List(ViewArgs),
    /// Require CHAP of an initiator; the command asks for the secret, or reads it from a file
    Set(InitiatorSetArgs),
    /// Remove an initiator's CHAP secret: its name alone then admits it
    Remove(InitiatorRemoveArgs),
}

#[derive(Debug, Args)]
pub struct InitiatorSetArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// The name of the initiator
    #[arg(value_name = "IQN")]
    pub initiator: String,
    /// CHAP user name of the initiator
    #[arg(long, value_name = "USER")]
    pub chap_user: String,
    /// File with the initiator's CHAP secret, 12 to 255 characters
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Mutual CHAP: user name of the target
    #[arg(long, value_name = "USER")]
    pub mutual_user: Option<String>,
    /// Mutual CHAP: file with the target's secret
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    pub mutual_secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct InitiatorRemoveArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// The name of the initiator
    #[arg(value_name = "IQN")]
    pub initiator: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum SanCommand {
    /// Print a script with which a Linux host uses LUNs as one striped disk
    ///
    /// The script sets up discovery, log-ins over all portals, CHAP, multipath, udev rules, an LVM stripe over all LUNs, and a file
    /// system. The LUNs must be mapped to a group with the host. The script asks for secrets when it runs.
    /// Example: cairn san plan-host san/data --system https://a:8049 --system https://b:8049 --ca PEM --initiator IQN --mount /srv/data
    PlanHost(PlanHostArgs),
}

/// A system with LUNs: its admin API address, and its token file if different from the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemArg {
    pub url: String,
    pub token_file: Option<PathBuf>,
}

impl FromStr for SystemArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (url, token_file) = match text.split_once(',') {
            Some((url, token_file)) => (url, Some(token_file.into())),
            None => (text, None),
        };
        match url.is_empty() {
            true => Err("is not of the form URL or URL,TOKEN-FILE".to_owned()),
            false => Ok(Self {
                url: url.to_owned(),
                token_file,
            }),
        }
    }
}

#[derive(Debug, Args)]
pub struct PlanHostArgs {
    /// The LUNs; with several systems, each system must have them all
    #[arg(value_name = "VOLUME/NAME", required = true)]
    pub luns: Vec<InVolume>,
    /// The initiator name (IQN) of the host
    #[arg(long, value_name = "IQN")]
    pub initiator: String,
    /// A system; repeat the flag for more [default: that of --server]
    #[arg(long, value_name = "URL[,TOKEN-FILE]")]
    pub system: Vec<SystemArg>,
    /// Number of sessions over each portal
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub sessions: u32,
    /// Name of the volume group and the logical volume
    #[arg(long, value_name = "GROUP/VOLUME", default_value = "cairn/data")]
    pub lvm: InVolume,
    /// The file system
    #[arg(long, value_enum, default_value = "xfs")]
    pub fs: FileSystem,
    /// Mount point
    #[arg(long, value_name = "DIR")]
    pub mount: Option<String>,
    /// Stripe unit on each LUN, a power of two [default: by the volumes' access pattern]
    #[arg(long, value_name = "SIZE")]
    pub stripe_size: Option<Size>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Subcommand)]
pub enum IscsiCommand {
    /// List the connected initiators
    Sessions(ViewArgs),
}
