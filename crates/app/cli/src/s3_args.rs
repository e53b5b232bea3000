//! The flags of `cairn bucket` and `cairn s3`.

use std::str::FromStr;

use cairn_config::VolumeName;
use clap::{Args, Subcommand};

use crate::args::ViewArgs;

#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// List all buckets
    List(ViewArgs),
    /// Show one bucket
    Show(BucketShowArgs),
    /// Create a bucket on a new or existing directory, without copying data
    Create(BucketCreateArgs),
    /// Change how a bucket keeps previous versions of its files
    Set(BucketSetArgs),
    /// Delete an empty bucket and its directory
    Delete(BucketDeleteArgs),
}

#[derive(Debug, Args)]
pub struct BucketShowArgs {
    pub bucket: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct BucketCreateArgs {
    /// 3 to 63 of a-z, 0-9, '-' and '.'
    pub bucket: String,
    /// The bucket's directory: VOLUME or VOLUME/DIR [default: a directory in `main` with the bucket's name]
    #[arg(long, value_name = "VOLUME[/DIR]")]
    pub path: Option<VolumePath>,
    /// User who owns new directories
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub uid: u32,
    /// Group that owns new directories
    #[arg(long, value_name = "GID", default_value_t = 0)]
    pub gid: u32,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: an overwritten or removed file is there as a version; of a file that is written on and on, one each 5 \
                  minutes:\n  cairn bucket set photos --nfs-versions on --nfs-versions-seconds 300"
)]
pub struct BucketSetArgs {
    pub bucket: String,
    /// Whether changes and removals over NFS keep the previous version of a file; the bucket must have versioning enabled
    #[arg(long, value_name = "on|off")]
    pub nfs_versions: Switch,
    /// Seconds within which several changes of a file keep only one version; 1 to 86400 [default: unchanged, or 60]
    #[arg(long, value_name = "SECONDS")]
    pub nfs_versions_seconds: Option<u32>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct BucketDeleteArgs {
    pub bucket: String,
    /// Delete only the bucket, and keep its directory and files
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub server: crate::args::ServerArgs,
}

#[derive(Debug, Subcommand)]
pub enum S3Command {
    /// Access keys: permissions on buckets, and the user whose rights they have
    #[command(subcommand)]
    Key(KeyCommand),
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List all access keys
    List(ViewArgs),
    /// Create an access key; its secret is shown only once
    Create(KeyCreateArgs),
    /// Revoke an access key, at once
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    /// The volume whose buckets the key may use
    #[arg(long, value_name = "VOLUME", default_value = "main")]
    pub volume: VolumeName,
    /// UID with which the key accesses files
    #[arg(long, value_name = "UID")]
    pub uid: u32,
    /// GID with which the key accesses files
    #[arg(long, value_name = "GID")]
    pub gid: u32,
    /// Supplementary groups
    #[arg(long, value_name = "GID,...", value_delimiter = ',')]
    pub groups: Vec<u32>,
    /// Allow only reading and listing
    #[arg(long)]
    pub read_only: bool,
    /// Allow only this bucket, or keys in it that begin with PREFIX; repeat the flag for more [default: all buckets of the volume]
    #[arg(long = "bucket", value_name = "BUCKET[/PREFIX]")]
    pub only: Vec<Only>,
    /// Note on the purpose of the key
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct KeyRevokeArgs {
    /// The access key, from `cairn s3 key list`
    pub key: String,
    #[command(flatten)]
    pub server: crate::args::ServerArgs,
}

/// A volume, and a directory below its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    pub volume: VolumeName,
    pub dir: Option<String>,
}

impl FromStr for VolumePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, dir) = match text.split_once('/') {
            Some((volume, dir)) => (volume, Some(dir.trim_matches('/').to_owned())),
            None => (text, None),
        };
        Ok(Self {
            volume: volume.parse().map_err(|error| format!("{error}"))?,
            dir,
        })
    }
}

/// A bucket, and a prefix of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Only {
    pub bucket: String,
    pub prefix: String,
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        match bucket {
            "" => Err("names no bucket".to_owned()),
            bucket => Ok(Self {
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            }),
        }
    }
}
