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
    /// Make a bucket of a directory, which may be there already: nothing is copied
    Create(BucketCreateArgs),
    /// Change what is kept of a bucket's files
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
    /// The volume, with the directory below it that the bucket is: VOLUME or VOLUME/DIR [default: a directory of the bucket's
    /// name in `main`]
    #[arg(long, value_name = "VOLUME[/DIR]")]
    pub path: Option<VolumePath>,
    /// Owner of the directories that are made
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub uid: u32,
    /// Their group
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
    /// Whether files that are changed or removed over NFS are kept as previous versions; the bucket must have versioning enabled
    #[arg(long, value_name = "on|off")]
    pub nfs_versions: Switch,
    /// Changes of a file within so many seconds are one, of which one version is kept; 1 to 86400 [default: as it is, or 60]
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
    /// Delete only the bucket; the directory and what is in it stay as they are
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub server: crate::args::ServerArgs,
}

#[derive(Debug, Subcommand)]
pub enum S3Command {
    /// Access keys: who may use buckets, and as which user of the volume
    #[command(subcommand)]
    Key(KeyCommand),
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List all access keys
    List(ViewArgs),
    /// Make an access key; its secret is shown once
    Create(KeyCreateArgs),
    /// Revoke an access key, at once
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    /// The volume whose buckets it is for
    #[arg(long, value_name = "VOLUME", default_value = "main")]
    pub volume: VolumeName,
    /// The user that it acts as on files
    #[arg(long, value_name = "UID")]
    pub uid: u32,
    /// The group that it acts as
    #[arg(long, value_name = "GID")]
    pub gid: u32,
    /// Further groups
    #[arg(long, value_name = "GID,...", value_delimiter = ',')]
    pub groups: Vec<u32>,
    /// It may read and list only
    #[arg(long)]
    pub read_only: bool,
    /// Only this bucket, or what begins with PREFIX in it; repeat the flag for more [default: all buckets of the volume]
    #[arg(long = "bucket", value_name = "BUCKET[/PREFIX]")]
    pub only: Vec<Only>,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct KeyRevokeArgs {
    /// As `cairn s3 key list` shows it
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

/// A bucket, and what keys in it begin with.
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
