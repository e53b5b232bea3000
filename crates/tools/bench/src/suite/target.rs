//! `TARGET`: a mounted path or directory, `nfs://`, `iscsi://` or `s3://`.
//!
//! Owns: the text form. Must not know: engines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cairn_iscsi_client::IscsiUrl;
use cairn_nfs_client::{NfsUrl, UrlError};

use crate::result::TargetInfo;
use crate::s3_engine::{S3Url, S3UrlError};

/// The thing that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A server, by our own client, without a mount.
    Nfs(Box<NfsUrl>),
    /// A LUN, by our own initiator.
    Iscsi(Box<IscsiUrl>),
    /// A bucket, over S3.
    S3(Box<S3Url>),
    /// A directory, by fio.
    Path(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("the target is empty; give a directory or nfs://HOST[:PORT]/EXPORT")]
    Empty,
    #[error("{text} is not an NFS URL: {error}")]
    Nfs { text: String, error: UrlError },
    #[error("{text} is not the URL of a LUN: {error}")]
    Iscsi {
        text: String,
        error: cairn_iscsi_client::UrlError,
    },
    /// Without its text, which may hold a secret.
    #[error("this is not the URL of a bucket: {0}")]
    S3(#[from] S3UrlError),
    #[error(
        "the scheme {0}:// is not known; give a directory (a mounted file system), nfs://HOST[:PORT]/EXPORT, \
         iscsi://HOST[:PORT]/TARGET/LUN or s3://KEY:SECRET@HOST[:PORT]/BUCKET"
    )]
    Scheme(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        if NfsUrl::looks_like(text) {
            return match text.parse() {
                Ok(url) => Ok(Self::Nfs(Box::new(url))),
                Err(error) => Err(TargetError::Nfs {
                    text: text.to_owned(),
                    error,
                }),
            };
        }
        if IscsiUrl::looks_like(text) {
            return match text.parse() {
                Ok(url) => Ok(Self::Iscsi(Box::new(url))),
                Err(error) => Err(TargetError::Iscsi {
                    text: text.to_owned(),
                    error,
                }),
            };
        }
        if S3Url::looks_like(text) {
            return Ok(Self::S3(Box::new(text.parse()?)));
        }
        match text.split_once("://") {
            Some((scheme, _)) if is_scheme(scheme) => {
                Err(TargetError::Scheme(scheme.to_ascii_lowercase()))
            }
            _ => Ok(Self::Path(PathBuf::from(text))),
        }
    }
}

/// Source: RFC 3986, section 3.1.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || matches!(char, '+' | '-' | '.'))
}

impl Target {
    pub fn info(&self) -> TargetInfo {
        TargetInfo {
            kind: match self {
                Self::Nfs(_) => "nfs",
                Self::Iscsi(_) => "iscsi",
                Self::S3(_) => "s3",
                Self::Path(_) => "path",
            }
            .to_owned(),
            text: self.to_string(),
            mount: None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nfs(url) => url.fmt(f),
            Self::Iscsi(url) => url.fmt(f),
            Self::S3(url) => url.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_or_refused() {
        let cases = [
            ("/mnt/x", Ok("path")),
            (".", Ok("path")),
            ("with space", Ok("path")),
            ("a/b://c", Ok("path")),
            ("nfs://host/main", Ok("nfs")),
            ("NFS://host:2050/main?nconnect=4", Ok("nfs")),
            ("nfs://", Err("names no host")),
            ("nfs://host/main?depth=4", Err("no option `depth`")),
            ("s3://AK:secret@host:9000/bucket", Ok("s3")),
            ("s3://host", Err("names no bucket")),
            ("iscsi://host/iqn.a/0", Ok("iscsi")),
            ("ISCSI://host/iqn", Err("names no LUN")),
            ("smb://host/share", Err("scheme smb:// is not known")),
            ("", Err("empty")),
        ];
        for (text, want) in cases {
            match (text.parse::<Target>(), want) {
                (Ok(target), Ok(kind)) => assert_eq!(target.info().kind, kind, "{text}"),
                (Err(error), Err(part)) => {
                    let error = error.to_string();
                    assert!(error.contains(part), "{text}: {error}");
                }
                (got, want) => panic!("{text}: {got:?}, not {want:?}"),
            }
        }
    }
}
