//! Addresses of tiers.
//!
//! Owns: how one is written, what in it is allowed. Must not know: whether there is something at the address.

use std::collections::BTreeMap;
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
    Azure {
        container: String,
        /// As of S3.
        prefix: String,
        /// The storage account that the container is in.
        account: String,
        /// Of a store that is not Azure's own: `http://host:port/account` or `https://host`.
        endpoint: Option<String>,
    },
    Gcs {
        bucket: String,
        /// As of S3.
        prefix: String,
        /// Of a store that is not Google's own.
        endpoint: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "a tier's address is s3://BUCKET/PREFIX?region=NAME, az://CONTAINER/PREFIX?account=NAME or gs://BUCKET/PREFIX, each with an optional &endpoint=URL, or file:///PATH: {0}"
    )]
    Shape(String),
    #[error(
        "an address contains no credentials, because every user can see it; give them in the environment, or in a file (--credentials-file)"
    )]
    Secret,
    #[error("an address has at most {TIER_URL_LEN_BYTES_MAX} bytes")]
    TooLong,
    #[error(transparent)]
    Refused(#[from] cairn_outbound::Refused),
}

fn shape(what: impl Into<String>) -> AddressError {
    AddressError::Shape(what.into())
}

impl TierAddress {
    pub(crate) fn prefix(&self) -> Path {
        match self {
            Self::Directory(_) => Path::default(),
            Self::S3 { prefix, .. } | Self::Azure { prefix, .. } | Self::Gcs { prefix, .. } => {
                Path::from(prefix.as_str())
            }
        }
    }
}

/// As long as it is a name of DNS, as bucket names are; those of Google have '_', too.
fn is_bucket(name: &str, with_underscore: bool) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || matches!(byte, b'.' | b'-')
            || (with_underscore && byte == b'_')
    };
    (3..=63).contains(&name.len()) && name.bytes().all(is_plain)
}

/// A storage account of Azure: 3 to 24 lower-case letters and digits. Those that stand for it elsewhere have up to 63.
fn is_account(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (3..=63).contains(&name.len()) && name.bytes().all(is_plain)
}

/// A region of S3, or what another store takes for one. It becomes a part of the provider's name: it has no dots.
fn is_region(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !name.is_empty() && name.bytes().all(is_plain)
}

/// A part of a key that is the same in every store, and cannot be taken for another one.
fn is_key_part(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_plain)
}

/// The URL of an endpoint; it `may_have_path` where that is how an account is named.
fn endpoint_of(text: &str, may_have_path: bool) -> Result<String, AddressError> {
    let url = Url::parse(text).map_err(|error| shape(format!("endpoint {text}: {error}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(AddressError::Secret);
    }
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.query().is_none()
        && url.fragment().is_none()
        && (url.path() == "/" || may_have_path && is_key_part(url.path().trim_matches('/')));
    if let Err(refused) = cairn_outbound::check_url(&url)
        && is_plain
    {
        return Err(AddressError::Refused(refused));
    }
    match (is_plain, may_have_path) {
        (true, _) => Ok(text.trim_end_matches('/').to_owned()),
        (false, false) => Err(shape(format!(
            "endpoint {text} is not http://HOST:PORT or https://HOST"
        ))),
        (false, true) => Err(shape(format!(
            "endpoint {text} is not http://HOST:PORT/ACCOUNT or https://HOST"
        ))),
    }
}

/// The bucket or container, and the prefix in it.
fn place_of(
    url: &Url,
    what: &str,
    with_underscore: bool,
) -> Result<(String, String), AddressError> {
    let bucket = url.host_str().unwrap_or_default();
    if !is_bucket(bucket, with_underscore) {
        return Err(shape(format!("\"{bucket}\" is no name of a {what}")));
    }
    let prefix = url.path().trim_matches('/');
    if !prefix.is_empty() && !prefix.split('/').all(is_key_part) {
        return Err(shape(
            "a prefix has letters, digits, '.', '_' and '-' between slashes",
        ));
    }
    Ok((bucket.to_owned(), prefix.to_owned()))
}

/// What is behind the '?', each name once at most, and only those that are known.
fn query_of(url: &Url, known: &[&str]) -> Result<BTreeMap<String, String>, AddressError> {
    let mut found = BTreeMap::new();
    for (name, value) in url.query_pairs() {
        let is_new = known.contains(&&*name) && !found.contains_key(&*name);
        let is_secret = ["key", "token", "sas", "sig", "secret"];
        if is_new {
            found.insert(name.into_owned(), value.into_owned());
        } else if is_secret.iter().any(|part| name.contains(part)) {
            return Err(AddressError::Secret);
        } else {
            return Err(shape(format!("\"{name}\" is unknown, or there twice")));
        }
    }
    Ok(found)
}

fn endpoint_in(
    found: &mut BTreeMap<String, String>,
    may_have_path: bool,
) -> Result<Option<String>, AddressError> {
    let endpoint = found.remove("endpoint");
    endpoint
        .map(|text| endpoint_of(&text, may_have_path))
        .transpose()
}

/// How an address is written that is no directory.
fn write_url(
    f: &mut fmt::Formatter<'_>,
    (scheme, bucket, prefix): (&str, &str, &str),
    query: &[(&str, Option<&String>)],
) -> fmt::Result {
    write!(f, "{scheme}://{bucket}")?;
    if !prefix.is_empty() {
        write!(f, "/{prefix}")?;
    }
    let there = query
        .iter()
        .filter_map(|(name, value)| Some((name, (*value)?)));
    for (index, (name, value)) in there.enumerate() {
        let mark = if index == 0 { '?' } else { '&' };
        write!(f, "{mark}{name}={value}")?;
    }
    Ok(())
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
                let (bucket, prefix) = place_of(&url, "bucket", false)?;
                let mut found = query_of(&url, &["endpoint", "region"])?;
                let region = found.remove("region");
                if region.as_deref().is_some_and(|region| !is_region(region)) {
                    return Err(shape("\"region\" is not well formed"));
                }
                Ok(Self::S3 {
                    bucket,
                    prefix,
                    endpoint: endpoint_in(&mut found, false)?,
                    region,
                })
            }
            "az" => {
                let (container, prefix) = place_of(&url, "container", false)?;
                let mut found = query_of(&url, &["endpoint", "account"])?;
                let account = found.remove("account").unwrap_or_default();
                if !is_account(&account) {
                    return Err(shape(format!(
                        "\"{account}\" is no storage account: ?account=NAME, of lower-case letters and digits, says whose the container is"
                    )));
                }
                Ok(Self::Azure {
                    container,
                    prefix,
                    account,
                    endpoint: endpoint_in(&mut found, true)?,
                })
            }
            "gs" => {
                let (bucket, prefix) = place_of(&url, "bucket", true)?;
                let mut found = query_of(&url, &["endpoint"])?;
                Ok(Self::Gcs {
                    bucket,
                    prefix,
                    endpoint: endpoint_in(&mut found, false)?,
                })
            }
            other => Err(shape(format!("\"{other}\" is neither s3, az, gs nor file"))),
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
            } => write_url(
                f,
                ("s3", bucket, prefix),
                &[("endpoint", endpoint.as_ref()), ("region", region.as_ref())],
            ),
            Self::Azure {
                container,
                prefix,
                account,
                endpoint,
            } => write_url(
                f,
                ("az", container, prefix),
                &[("account", Some(account)), ("endpoint", endpoint.as_ref())],
            ),
            Self::Gcs {
                bucket,
                prefix,
                endpoint,
            } => write_url(
                f,
                ("gs", bucket, prefix),
                &[("endpoint", endpoint.as_ref())],
            ),
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
        let azure = |container: &str, prefix: &str, account: &str, endpoint: Option<&str>| {
            TierAddress::Azure {
                container: container.to_owned(),
                prefix: prefix.to_owned(),
                account: account.to_owned(),
                endpoint: endpoint.map(str::to_owned),
            }
        };
        let gcs = |bucket: &str, prefix: &str, endpoint: Option<&str>| TierAddress::Gcs {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: endpoint.map(str::to_owned),
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
                "az://cold/a/b?account=store1",
                azure("cold", "a/b", "store1", None),
            ),
            (
                "az://cold?endpoint=http://127.0.0.1:10000/devstoreaccount1/&account=devstoreaccount1",
                azure(
                    "cold",
                    "",
                    "devstoreaccount1",
                    Some("http://127.0.0.1:10000/devstoreaccount1"),
                ),
            ),
            ("gs://my_bucket/a", gcs("my_bucket", "a", None)),
            (
                "gs://bucket?endpoint=http://127.0.0.1:4443",
                gcs("bucket", "", Some("http://127.0.0.1:4443")),
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
            "s3://bucket?region=a.execute-api.eu-west-1",
            "s3://bucket?endpoint=http://169.254.169.254",
            "s3://bucket?endpoint=http://0xa9fea9fe",
            "s3://bucket?endpoint=http://[::ffff:a9fe:a9fe]",
            "gs://bucket?endpoint=http://metadata.google.internal",
            "az://cold?account=store1&endpoint=http://168.63.129.16/store1",
            "s3://bucket?other=1",
            "s3://bucket#a",
            "s3://bucket?account=a",
            "az://cold",
            "az://cold?account=",
            "az://cold?account=A",
            "az://cold?account=store1&region=a",
            "az://c_d?account=store1",
            "az://cold?account=store1&endpoint=http://host/a/b",
            "gs://bucket?endpoint=http://host/path",
            "gs://bucket?region=a",
            "gs://B",
            "gcs://bucket",
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
            "az://cold?account=store1&sas_token=a",
            "az://cold?account=store1&sig=a",
            "az://cold?account=store1&access_key=a",
            "gs://bucket?service_account_key=a",
        ] {
            let refused = text.parse::<TierAddress>();
            assert_eq!(refused, Err(AddressError::Secret), "{text}");
        }
    }
}
