//! `s3://[KEY:SECRET@]HOST[:PORT]/BUCKET`.
//!
//! Owns: the text form, and that it never shows the secret again. Must not know: connections.

use std::fmt;
use std::str::FromStr;

use rusty_s3::{Bucket, Credentials, UrlStyle};

const SCHEME: &str = "s3://";
pub const PORT_DEFAULT: u16 = 9000;
/// Signatures name one; the server may have any.
const REGION: &str = "us-east-1";

/// A bucket, and who asks.
#[derive(Clone)]
pub struct S3Url {
    /// Without: the environment's, as other clients of S3 have it.
    credentials: Option<Credentials>,
    host: String,
    port: u16,
    bucket: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum S3UrlError {
    #[error("it names no host: s3://[KEY:SECRET@]HOST[:PORT]/BUCKET")]
    NoHost,
    #[error("it names no bucket: s3://[KEY:SECRET@]HOST[:PORT]/BUCKET")]
    NoBucket,
    #[error("the port is no number from 1 to 65535")]
    Port,
    #[error("there is a key and no secret: KEY:SECRET@")]
    NoSecret,
    #[error("a part of it cannot be in a URL")]
    NoUrl,
}

impl S3Url {
    pub fn looks_like(text: &str) -> bool {
        text.get(..SCHEME.len())
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Of the URL, or of the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`).
    pub fn credentials(&self) -> Option<Credentials> {
        self.credentials.clone().or_else(Credentials::from_env)
    }

    pub fn bucket(&self) -> Result<Bucket, S3UrlError> {
        let endpoint = format!("http://{}", self.address());
        let endpoint = endpoint.parse().map_err(|_| S3UrlError::NoUrl)?;
        Bucket::new(endpoint, UrlStyle::Path, self.bucket.clone(), REGION)
            .map_err(|_| S3UrlError::NoUrl)
    }
}

/// Secrets may have slashes and plus signs, which URLs write with a percent sign; both ways are understood.
fn plain(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl FromStr for S3Url {
    type Err = S3UrlError;

    fn from_str(text: &str) -> Result<Self, S3UrlError> {
        let text = text.get(SCHEME.len()..).unwrap_or_default();
        // A secret may have a slash, a host has no `@`.
        let (who, place) = match text.rsplit_once('@') {
            Some((who, place)) => (Some(who), place),
            None => (None, text),
        };
        let credentials = match who {
            None => None,
            Some(who) => {
                let (key, secret) = who.split_once(':').ok_or(S3UrlError::NoSecret)?;
                Some(Credentials::new(plain(key), plain(secret)))
            }
        };
        let (address, bucket) = place.split_once('/').unwrap_or((place, ""));
        let bucket = bucket.trim_end_matches('/');
        if bucket.is_empty() || bucket.contains('/') {
            return Err(S3UrlError::NoBucket);
        }
        let (host, port) = match address.rsplit_once(':') {
            // The end of an address in brackets has no port.
            Some((host, port)) if !port.contains(']') => {
                let port: u16 = port.parse().map_err(|_| S3UrlError::Port)?;
                (host, port)
            }
            _ => (address, PORT_DEFAULT),
        };
        if host.is_empty() {
            return Err(S3UrlError::NoHost);
        }
        if port == 0 {
            return Err(S3UrlError::Port);
        }
        let url = Self {
            credentials,
            host: host.to_owned(),
            port,
            bucket: bucket.to_owned(),
        };
        url.bucket()?;
        Ok(url)
    }
}

/// Without the secret, and without the key: results are shown to others.
impl fmt::Display for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.address(), self.bucket)
    }
}

impl fmt::Debug for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for S3Url {
    fn eq(&self, other: &Self) -> bool {
        let who = |url: &Self| {
            let credentials = url.credentials.as_ref();
            credentials.map(|who| (who.key().to_owned(), who.secret().to_owned()))
        };
        (&self.host, self.port, &self.bucket, who(self))
            == (&other.host, other.port, &other.bucket, who(other))
    }
}

impl Eq for S3Url {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_or_refused() {
        for (text, want) in [
            (
                "s3://AK:se/c+r@h@host:9001/photos",
                Ok(("s3://host:9001/photos", Some("se/c+r@h"))),
            ),
            (
                "s3://AK:se%2Fc%2Br@host/photos/",
                Ok(("s3://host:9000/photos", Some("se/c+r"))),
            ),
            ("S3://[::1]:9000/abc", Ok(("s3://[::1]:9000/abc", None))),
            ("s3://[::1]/abc", Ok(("s3://[::1]:9000/abc", None))),
            ("s3://host", Err(S3UrlError::NoBucket)),
            ("s3://host/a/b", Err(S3UrlError::NoBucket)),
            ("s3://:9000/abc", Err(S3UrlError::NoHost)),
            ("s3://host:x/abc", Err(S3UrlError::Port)),
            ("s3://host:0/abc", Err(S3UrlError::Port)),
            ("s3://AK@host/abc", Err(S3UrlError::NoSecret)),
            ("s3://a b/abc", Err(S3UrlError::NoUrl)),
        ] {
            let got = text.parse::<S3Url>().map(|url| {
                let secret = url.credentials.as_ref().map(|who| who.secret().to_owned());
                (url.to_string(), secret)
            });
            let want = want.map(|(shown, secret)| (shown.to_owned(), secret.map(str::to_owned)));
            assert_eq!(got, want, "{text}");
        }
        let url: S3Url = "s3://AK:hidden@host/abc".parse().unwrap();
        assert!(!format!("{url} {url:?}").contains("hidden"));
    }
}
