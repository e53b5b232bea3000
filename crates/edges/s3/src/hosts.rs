//! The bucket in the host name of a request (virtual-host style).
//!
//! Owns: the domains below which names are buckets. Must not know: the existing buckets.

use http::HeaderMap;
use http::header::HOST;
use percent_encoding::percent_decode_str;
use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

use crate::operations::At;

/// Always included: names below it lead to this machine, whatever its name.
const LOCAL: &str = "localhost";
/// `photos.s3-website.localhost` shows the bucket `photos` as a website.
const WEBSITE: &str = ".s3-website";

/// `photos.s3.example.org` is the bucket `photos` if `s3.example.org` is among these.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

impl Hosts {
    pub fn new(domains: &[String]) -> Self {
        let domains = domains
            .iter()
            .map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        Self(domains.chain([LOCAL.to_owned()]).collect())
    }

    /// The bucket that a host names.
    fn bucket(&self, host: &str) -> Option<String> {
        let bucket = self.below(host)?;
        Some(bucket.strip_suffix(WEBSITE).unwrap_or(&bucket).to_owned())
    }

    /// The bucket that a host names as a website.
    pub fn website(&self, host: &str) -> Option<String> {
        Some(self.below(host)?.strip_suffix(WEBSITE)?.to_owned())
    }

    fn below(&self, host: &str) -> Option<String> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let below = |domain: &String| name.strip_suffix(domain.as_str())?.strip_suffix('.');
        let bucket = self.0.iter().find_map(below)?;
        (!bucket.is_empty()).then(|| bucket.to_owned())
    }

    /// The bucket of a request, by its host alone.
    pub fn bucket_of_host(&self, headers: &HeaderMap) -> Option<String> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        self.bucket(host?)
    }

    /// What a request's path names, by the rules of `s3s`.
    pub fn at(&self, headers: &HeaderMap, path: &str) -> At {
        let names_bucket = self.bucket_of_host(headers).is_some();
        let path = percent_decode_str(path).decode_utf8_lossy();
        let rest = path.strip_prefix('/').unwrap_or(&path);
        match (names_bucket, rest.split_once('/')) {
            (true, _) if rest.is_empty() => At::Bucket,
            (true, _) => At::Object,
            (false, None) if rest.is_empty() => At::Service,
            (false, None | Some((_, ""))) => At::Bucket,
            (false, Some(_)) => At::Object,
        }
    }

    /// The bucket of a request, by host or path.
    pub fn bucket_of(&self, headers: &HeaderMap, path: &str) -> Option<String> {
        if let Some(bucket) = self.bucket_of_host(headers) {
            return Some(bucket);
        }
        let first = path.trim_start_matches('/').split('/').next()?;
        let bucket = percent_decode_str(first).decode_utf8().ok()?.into_owned();
        (!bucket.is_empty()).then_some(bucket)
    }
}

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let known = VirtualHost::new(host);
        Ok(match self.bucket(host) {
            Some(bucket) => known.with_bucket(bucket),
            None => known,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_a_domain_are_buckets() {
        let hosts = Hosts::new(&["s3.example.org".to_owned(), ".Other.net".to_owned()]);
        for (host, want) in [
            ("photos.s3.example.org", Some("photos")),
            ("photos.s3.example.org:9000", Some("photos")),
            ("Photos.S3.Example.org.", Some("photos")),
            ("my.photos.other.net", Some("my.photos")),
            ("photos.localhost:9000", Some("photos")),
            ("s3.example.org", None),
            ("localhost", None),
            ("photoss3.example.org", None),
            ("127.0.0.1:9000", None),
            ("[::1]:9000", None),
            ("somewhere.else", None),
            ("", None),
        ] {
            assert_eq!(hosts.bucket(host).as_deref(), want, "{host}");
        }
        for (host, want) in [
            ("photos.s3-website.localhost:9000", Some("photos")),
            ("my.photos.S3-Website.other.net", Some("my.photos")),
            ("photos.localhost", None),
            ("s3-website.localhost", None),
        ] {
            assert_eq!(hosts.website(host).as_deref(), want, "{host}");
        }
        assert_eq!(hosts.bucket("a.s3-website.localhost").as_deref(), Some("a"));
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "10.0.0.1:9000".parse().unwrap());
        for (path, want) in [
            ("/photos/a/b", Some("photos")),
            ("/pho%74os", Some("photos")),
            ("/", None),
            ("*", Some("*")),
        ] {
            assert_eq!(hosts.bucket_of(&headers, path).as_deref(), want, "{path}");
        }
        for (path, want, by_name) in [
            ("/", At::Service, At::Bucket),
            ("/photos", At::Bucket, At::Object),
            ("/photos/", At::Bucket, At::Object),
            ("/photos%2Fa", At::Object, At::Object),
            ("/photos//", At::Object, At::Object),
            ("/photos/a/b", At::Object, At::Object),
        ] {
            assert_eq!(hosts.at(&headers, path), want, "{path}");
            let mut named = HeaderMap::new();
            named.insert(HOST, "photos.localhost".parse().unwrap());
            assert_eq!(hosts.at(&named, path), by_name, "{path}");
        }
    }
}
