//! Addresses of tiers.
//!
//! Owns: how one is written, what in it is allowed. Must not know: whether there is something at the address.

use std::fmt;
use std::str::FromStr;

use cairn_formats::settings::TIER_URL_LEN_BYTES_MAX;
use object_store::path::Path;
use url::Url;

/// Where a tier is. It never has a secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierAddress {
    /// An absolute path.
    Directory(String),
    S3 {
        bucket: String,
        /// What keys begin with, without slashes at its ends; it may be empty.
        prefix: String,
        /// Of a store that is not AWS: `http://host:port` or `https://host`.
        endpoint: Option<String>,
        region: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "an address of a tier is s3://BUCKET/PREFIX, with ?endpoint=URL&region=NAME if need be, or file:///PATH: {0}"
    )]
    Shape(String),
    #[error(
        "an address has no credentials in it: it is shown to whoever asks; give them in the environment, or in a file (--credentials-file)"
    )]
    Secret,
    #[error("an address has at most {TIER_URL_LEN_BYTES_MAX} bytes")]
    TooLong,
}

fn shape(what: impl Into<String>) -> AddressError {
    AddressError::Shape(what.into())
}

impl TierAddress {
    pub(crate) fn prefix(&self) -> Path {
        match self {
            Self::Directory(_) => Path::default(),
            Self::S3 { prefix, .. } => Path::from(prefix.as_str()),
        }
    }
}

/// As long as it is a name of DNS, as bucket names are.
fn is_bucket(name: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
    };
    (3..=63).contains(&name.len()) && name.bytes().all(is_plain)
}

/// A part of a key that is the same in every store, and cannot be taken for another one.
fn is_key_part(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_plain)
}

fn endpoint_of(text: &str) -> Result<String, AddressError> {
    let url = Url::parse(text).map_err(|error| shape(format!("endpoint {text}: {error}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(AddressError::Secret);
    }
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path() == "/";
    match is_plain {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err(shape(format!(
            "endpoint {text} is not http://HOST:PORT or https://HOST"
        ))),
    }
}

impl FromStr for TierAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.len() > TIER_URL_LEN_BYTES_MAX {
            return Err(AddressError::TooLong);
        }
        let url = Url::parse(text).map_err(|error| shape(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Secret);
        }
        if url.fragment().is_some() || url.port().is_some() {
            return Err(shape("it has a port or a '#'"));
        }
        match url.scheme() {
            "file" => {
                if url.query().is_some() || url.host_str().is_some_and(|host| !host.is_empty()) {
                    return Err(shape("a directory is file:///PATH and nothing else"));
                }
                let path = url
                    .to_file_path()
                    .map_err(|()| shape("the path is not absolute"))?;
                let path = path
                    .to_str()
                    .ok_or_else(|| shape("the path is not UTF-8"))?;
                match path {
                    "/" => Err(shape("the root directory is no place for a tier")),
                    path => Ok(Self::Directory(path.to_owned())),
                }
            }
            "s3" => {
                let bucket = url.host_str().unwrap_or_default();
                if !is_bucket(bucket) {
                    return Err(shape(format!("\"{bucket}\" is no name of a bucket")));
                }
                let prefix = url.path().trim_matches('/');
                if !prefix.is_empty() && !prefix.split('/').all(is_key_part) {
                    return Err(shape(
                        "a prefix has letters, digits, '.', '_' and '-' between slashes",
                    ));
                }
                let (mut endpoint, mut region) = (None, None);
                for (name, value) in url.query_pairs() {
                    match &*name {
                        "endpoint" if endpoint.is_none() => endpoint = Some(endpoint_of(&value)?),
                        "region" if region.is_none() && is_key_part(&value) => {
                            region = Some(value.into_owned());
                        }
                        name if name.contains("key") || name.contains("token") => {
                            return Err(AddressError::Secret);
                        }
                        name => {
                            return Err(shape(format!(
                                "\"{name}\" is unknown, twice, or not well formed"
                            )));
                        }
                    }
                }
                Ok(Self::S3 {
                    bucket: bucket.to_owned(),
                    prefix: prefix.to_owned(),
                    endpoint,
                    region,
                })
            }
            other => Err(shape(format!("\"{other}\" is neither s3 nor file"))),
        }
    }
}

impl fmt::Display for TierAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => match Url::from_file_path(path) {
                Ok(url) => f.write_str(url.as_str()),
                Err(()) => write!(f, "file://{path}"),
            },
            Self::S3 {
                bucket,
                prefix,
                endpoint,
                region,
            } => {
                write!(f, "s3://{bucket}")?;
                if !prefix.is_empty() {
                    write!(f, "/{prefix}")?;
                }
                let endpoint = endpoint.iter().map(|value| ("endpoint", value));
                let region = region.iter().map(|value| ("region", value));
                for (index, (name, value)) in endpoint.chain(region).enumerate() {
                    let mark = if index == 0 { '?' } else { '&' };
                    write!(f, "{mark}{name}={value}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back_or_refused() {
        let s3 = |bucket: &str, prefix: &str, endpoint: Option<&str>, region: Option<&str>| {
            TierAddress::S3 {
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
                endpoint: endpoint.map(str::to_owned),
                region: region.map(str::to_owned),
            }
        };
        let good = [
            ("s3://bucket", s3("bucket", "", None, None)),
            ("s3://bucket/", s3("bucket", "", None, None)),
            (
                "s3://my.bucket/a/b_c/",
                s3("my.bucket", "a/b_c", None, None),
            ),
            (
                "s3://bucket/a?endpoint=http://127.0.0.1:9000&region=eu-west-1",
                s3(
                    "bucket",
                    "a",
                    Some("http://127.0.0.1:9000"),
                    Some("eu-west-1"),
                ),
            ),
            (
                "s3://bucket?endpoint=https%3A%2F%2Fminio.local",
                s3("bucket", "", Some("https://minio.local"), None),
            ),
            (
                "file:///srv/cold",
                TierAddress::Directory("/srv/cold".to_owned()),
            ),
            (
                "file:///srv/with%20space",
                TierAddress::Directory("/srv/with space".to_owned()),
            ),
        ];
        for (text, want) in good {
            let address = text.parse::<TierAddress>();
            assert_eq!(address.as_ref(), Ok(&want), "{text}");
            let shown = want.to_string();
            assert_eq!(shown.parse::<TierAddress>().as_ref(), Ok(&want), "{shown}");
        }
        let long = format!("s3://bucket/{}", "a".repeat(2000));
        let bad = [
            "",
            "bucket",
            "s3://",
            "s3://AB",
            "s3://a_b/c",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3://bucket:80/a",
            "s3://bucket?endpoint=ftp://host",
            "s3://bucket?endpoint=http://host/path",
            "s3://bucket?endpoint=http://a&endpoint=http://b",
            "s3://bucket?region=a/b",
            "s3://bucket?other=1",
            "s3://bucket#a",
            "gs://bucket",
            "file://host/path",
            "file:///",
            "file:///a?b=c",
            "https://bucket.s3.amazonaws.com",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<TierAddress>().is_err(), "{text}");
        }
        for text in [
            "s3://key:secret@bucket",
            "s3://bucket?access_key_id=a",
            "s3://bucket?session_token=a",
            "s3://bucket?endpoint=http://a:b@host",
        ] {
            let refused = text.parse::<TierAddress>();
            assert_eq!(refused, Err(AddressError::Secret), "{text}");
        }
    }
}
