//! Templates that deploy a design: CloudFormation, Terraform (and OpenTofu), cloud-init.
//!
//! Owns: what is deployed and how it boots; docs/guide/deploy.md tells it. Templates are data until they are
//! written, and scripts are files of `templates/` that stand in them unchanged.
//! Must not know: what a design costs or delivers, files, networks.

mod alarms;
mod cloudformation;
mod hcl;
mod spec;
mod terraform;
mod tree;
mod user_data;
mod values;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use spec::{DISK_COUNT_MAX, NODE_COUNT_MAX, STORAGE_TYPE_DEFAULT, STORAGE_TYPES};
pub use spec::{StorageType, published_server};

use crate::design::{Design, Shape};
use crate::report::Protocol;
use spec::{Disks, Machine, Spec};

/// Where clients find NFS and its mount protocol.
pub const NFS_PORT: u16 = 2049;
/// TCP connections of a client to its server (`nconnect` of Linux).
pub const NCONNECT_DEFAULT: u32 = 8;
const NCONNECT_MAX: u32 = 16;
/// EC2 takes no longer user data, before base64 (EC2 user guide, instance user data).
pub const USER_DATA_LEN_BYTES_MAX: usize = 16 * 1024;
/// The longest template in a request; longer ones come from a bucket (CloudFormation user guide, quotas).
const TEMPLATE_BODY_LEN_BYTES_MAX: usize = 51_200;
/// Networks that a volume is exported to.
const CLIENT_NETWORK_COUNT_MAX: usize = 64;

/// The kind of template that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CloudFormation in YAML.
    CloudFormation,
    CloudFormationJson,
    /// HCL for Terraform and OpenTofu.
    Terraform,
    /// User data of one machine, with all values in it.
    CloudInit,
}

impl Format {
    pub const ALL: [(&'static str, Self); 4] = [
        ("cloudformation", Self::CloudFormation),
        ("cloudformation-json", Self::CloudFormationJson),
        ("terraform", Self::Terraform),
        ("cloud-init", Self::CloudInit),
    ];
}

impl FromStr for Format {
    type Err = DeployError;

    fn from_str(text: &str) -> Result<Self, DeployError> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, format)| *format)
            .ok_or_else(|| DeployError::Value {
                what: "a format",
                value: text.to_string(),
                expected: "cloudformation, cloudformation-json, terraform or cloud-init",
            })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.iter().find(|(_, format)| format == self);
        out.pad(known.map_or("", |(name, _)| name))
    }
}

/// How a design is deployed.
#[derive(Clone, Debug)]
pub struct DeployOptions {
    /// Also what this version of Cairn cannot run yet; the template then says so.
    pub planned: bool,
    /// What clients use: only these are let in.
    pub protocols: Vec<Protocol>,
    /// The values of user data without a template around it; needed by [`Format::CloudInit`] alone.
    pub machine: Option<MachineValues>,
}

impl Default for DeployOptions {
    fn default() -> Self {
        Self {
            planned: false,
            protocols: vec![Protocol::Nfs],
            machine: None,
        }
    }
}

/// What a template asks for when it is deployed, for a machine that is set up without one.
#[derive(Clone, Debug)]
pub struct MachineValues {
    pub name: String,
    /// Who administrates the machine: gets the key that the machine is started with.
    pub user: String,
    /// Addresses and networks that may mount.
    pub client_networks: Vec<String>,
    /// Where the administrator mounts: root there is root of the volume, and makes folders for others.
    pub login: Option<String>,
    pub package: Package,
    /// Devices of the data disks, such as `/dev/nvme1n1`: as many as the design has. Empty: the disks of
    /// an EC2 instance, by their names there.
    pub devices: Vec<String>,
}

/// The .deb that `make package` builds, and what it has to be.
#[derive(Clone, Debug)]
pub struct Package {
    /// `https://...` or `s3://BUCKET/KEY`.
    pub url: String,
    pub sha256: String,
}

/// How a client mounts.
#[derive(Clone, Debug)]
pub struct ClientValues {
    /// Address or name of the server.
    pub server: String,
    /// The volume, such as `main`.
    pub volume: String,
    pub mount_point: String,
    pub nconnect: u32,
}

/// The template that was made.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub file_name: &'static str,
    pub content: String,
    /// Notices for the person who deploys it.
    pub notices: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    #[error(
        "{name} is a vendor's product, and templates are of Cairn: choose a design of Cairn, or ask the vendor"
    )]
    VendorProduct { name: String },
    #[error(
        "this version of Cairn does not have {what} yet; with --planned you get the template all the same, marked as such"
    )]
    Planned { what: String },
    #[error(
        "there is no template of {what}: it needs {needs}, which this version of Cairn does not have"
    )]
    NoTemplate { what: String, needs: String },
    #[error("{value} {what} are not possible: {min} to {max} are")]
    OutOfRange {
        what: String,
        value: u32,
        min: u32,
        max: u32,
    },
    #[error("{value:?} is not {what}: {expected}")]
    Value {
        what: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("{format} needs {what}")]
    Missing { format: Format, what: &'static str },
    #[error(
        "the user data would have {len_bytes} bytes, and EC2 takes {USER_DATA_LEN_BYTES_MAX} at most"
    )]
    UserDataTooLong { len_bytes: usize },
}

/// The template of a design, with parameters for what is only known where it is deployed.
pub fn render(
    design: &Design,
    options: &DeployOptions,
    format: Format,
) -> Result<Rendered, DeployError> {
    let (spec, mut notices) = spec::spec(design)?;
    let mut options = options.clone();
    if matches!(design.shape, Shape::SanArray(_)) && !options.protocols.contains(&Protocol::Iscsi) {
        options.protocols.push(Protocol::Iscsi);
    }
    let options = &options;
    check_protocols(options, &mut notices)?;
    let (file_name, content) = match format {
        Format::CloudFormation => (
            "cairn.yaml",
            cloudformation::template(&spec, options)?.yaml(),
        ),
        Format::CloudFormationJson => (
            "cairn.json",
            cloudformation::template(&spec, options)?.json(),
        ),
        Format::Terraform => (
            "cairn.tf",
            terraform::template(&spec, options, &design.region)?,
        ),
        Format::CloudInit => {
            let Spec::Server(machine) = &spec else {
                return Err(DeployError::NoTemplate {
                    what: "one machine of a cluster".to_string(),
                    needs: "a cluster without a template around it".to_string(),
                });
            };
            (
                "server.cloud-init.yaml",
                machine_user_data(machine, options, &design.region)?,
            )
        }
    };
    if is_for_a_bucket(format, &content) {
        notices.push(format!(
            "The template has {} bytes, and CloudFormation takes {TEMPLATE_BODY_LEN_BYTES_MAX} in a request: \
             deploy it from a bucket (aws cloudformation deploy --s3-bucket BUCKET).",
            content.len()
        ));
    }
    Ok(Rendered {
        file_name,
        content,
        notices,
    })
}

fn is_for_a_bucket(format: Format, content: &str) -> bool {
    matches!(format, Format::CloudFormation | Format::CloudFormationJson)
        && content.len() > TEMPLATE_BODY_LEN_BYTES_MAX
}

/// Refuses a login node that could be anybody: root there is root of the volume.
pub fn check_login(address: &str) -> Result<(), DeployError> {
    values::check_login(address)
}

/// User data of a client: waits for the server, makes the directory, writes fstab, mounts.
pub fn client(values: &ClientValues) -> Result<Rendered, DeployError> {
    values::check_host(&values.server)?;
    values::check_volume(&values.volume)?;
    values::check_path("a mount point", &values.mount_point)?;
    if !(1..=NCONNECT_MAX).contains(&values.nconnect) {
        return Err(DeployError::OutOfRange {
            what: "connections".to_string(),
            value: values.nconnect,
            min: 1,
            max: NCONNECT_MAX,
        });
    }
    Ok(Rendered {
        file_name: "client.cloud-init.yaml",
        content: user_data::client(values),
        notices: vec![
            "Linux only, over NFSv3: docs/reference/nfs.md has the commands for other clients."
                .to_string(),
        ],
    })
}

fn protocol_words(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Nfs => "NFS",
        Protocol::Smb => "SMB",
        Protocol::S3 => "S3",
        Protocol::Iscsi => "iSCSI",
        Protocol::Lustre => "Lustre",
    }
}

/// TCP ports that clients of a protocol connect to.
fn protocol_ports(protocol: Protocol) -> &'static [u16] {
    match protocol {
        // Port 111 is for clients that are not told the port.
        Protocol::Nfs => &[111, NFS_PORT],
        Protocol::Smb => &[445],
        Protocol::S3 => &[9000],
        Protocol::Iscsi => &[3260],
        Protocol::Lustre => &[988],
    }
}

fn check_protocols(options: &DeployOptions, notices: &mut Vec<String>) -> Result<(), DeployError> {
    for protocol in &options.protocols {
        let what = protocol_words(*protocol).to_string();
        match protocol {
            Protocol::Nfs | Protocol::S3 | Protocol::Iscsi => {}
            Protocol::Lustre => {
                return Err(DeployError::NoTemplate {
                    what: what.clone(),
                    needs: format!("the {what} protocol"),
                });
            }
            _ if options.planned => {
                notices.push(format!(
                    "{what} is not in this version of Cairn: only its port is open."
                ));
            }
            _ => return Err(DeployError::Planned { what }),
        }
    }
    Ok(())
}

/// Ports and what they are for, each once.
fn ports(options: &DeployOptions) -> Vec<(u16, &'static str)> {
    let mut ports = Vec::new();
    for protocol in &options.protocols {
        for port in protocol_ports(*protocol) {
            if !ports.iter().any(|(known, _)| known == port) {
                ports.push((*port, protocol_words(*protocol)));
            }
        }
    }
    ports
}

fn machine_user_data(
    machine: &Machine,
    options: &DeployOptions,
    region: &str,
) -> Result<String, DeployError> {
    let missing = |what| DeployError::Missing {
        format: Format::CloudInit,
        what,
    };
    let values = options
        .machine
        .as_ref()
        .ok_or_else(|| missing("a name, a client network and where to get Cairn from"))?;
    values::check_name(&values.name)?;
    values::check_user(&values.user)?;
    if values.client_networks.is_empty() {
        return Err(missing("a client network"));
    }
    if values.client_networks.len() > CLIENT_NETWORK_COUNT_MAX {
        return Err(DeployError::OutOfRange {
            what: "client networks".to_string(),
            value: u32::try_from(values.client_networks.len()).unwrap_or(u32::MAX),
            min: 1,
            max: CLIENT_NETWORK_COUNT_MAX as u32,
        });
    }
    for network in &values.client_networks {
        values::check_network(network)?;
    }
    if let Some(login) = &values.login {
        values::check_login(login)?;
    }
    values::check_package_url(&values.package.url)?;
    values::check_sha256(&values.package.sha256)?;
    for device in &values.devices {
        values::check_path("a device", device)?;
    }
    let count = u32::try_from(values.devices.len()).unwrap_or(u32::MAX);
    if count > 0 && count != machine.disks.count() {
        return Err(DeployError::OutOfRange {
            what: "devices".to_string(),
            value: count,
            min: machine.disks.count(),
            max: machine.disks.count(),
        });
    }
    if !region
        .chars()
        .all(|each| each.is_ascii_lowercase() || each.is_ascii_digit() || each == '-')
    {
        return Err(DeployError::Value {
            what: "a region",
            value: region.to_string(),
            expected: "a name such as us-east-1",
        });
    }
    let mode = match (&machine.disks, count) {
        (_, 1..) => user_data::DiskMode::Devices,
        (Disks::Ebs { .. }, 0) => user_data::DiskMode::OwnVolumes,
        (Disks::InstanceStore { .. }, 0) => user_data::DiskMode::InstanceStore,
    };
    let text = user_data::server(machine, mode, false, options);
    let filled = user_data::fill(
        &text,
        |slot| slot.literal(values, region),
        |fixed| fixed.to_string(),
    );
    check_user_data(&filled)?;
    Ok(filled)
}

fn check_user_data(text: &str) -> Result<(), DeployError> {
    let len_bytes = text.len();
    match len_bytes <= USER_DATA_LEN_BYTES_MAX {
        true => Ok(()),
        false => Err(DeployError::UserDataTooLong { len_bytes }),
    }
}
