//! Values that become part of a template or a script.
//!
//! Owns: what they may look like. Whatever passes here needs no quoting anywhere: shells, YAML, HCL.

use std::net::IpAddr;

use super::DeployError;

/// Patterns of the parameters of templates: the same as the functions below, as the formats want them.
pub(super) const NAME_PATTERN: &str = "^[a-z][a-z0-9-]{0,30}$";
pub(super) const USER_PATTERN: &str = "^[a-z_][a-z0-9_-]{0,30}$";
/// Where HTTPS may go: anywhere, if need be.
pub(super) const CIDR_PATTERN: &str = "^([0-9]{1,3}\\.){3}[0-9]{1,3}/([0-9]|[12][0-9]|3[0-2])$";
/// Clients: [`CLIENT_PREFIX_LEN_MIN`].
pub(super) const CLIENT_CIDR_PATTERN: &str =
    "^([0-9]{1,3}\\.){3}[0-9]{1,3}/([89]|[12][0-9]|3[0-2])$";
/// Who is root of the volume: [`LOGIN_V4_PREFIX_LEN_MIN`].
pub(super) const LOGIN_CIDR_PATTERN: &str = "^([0-9]{1,3}\\.){3}[0-9]{1,3}/(2[4-9]|3[0-2])$";
/// A subnet has 16 to 65,536 addresses (VPC user guide, subnet sizing).
pub(super) const SUBNET_PATTERN: &str = "^([0-9]{1,3}\\.){3}[0-9]{1,3}/(1[6-9]|2[0-8])$";
pub(super) const URL_PATTERN: &str = "^(https|s3)://[A-Za-z0-9._~:/?&=%+@,-]+$";
pub(super) const SHA256_PATTERN: &str = "^[0-9a-f]{64}$";
pub(super) const IMAGE_PATTERN: &str = "^ami-[0-9a-f]{8,17}$";
pub(super) const KMS_KEY_PATTERN: &str =
    "^$|^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$";
pub(super) const TOPIC_PATTERN: &str =
    "^$|^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+$";
pub(super) const DAYS_PATTERN: &str = "^(0|[1-9][0-9]{0,2})$";
pub(super) const TIME_PATTERN: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]$";
pub(super) const VOLUME_IDS_PATTERN: &str = "^$|^vol-[0-9a-f]+(,vol-[0-9a-f]+)*$";
pub(super) const SPOT_PATTERN: &str = "^None$|^[0-9]+(\\.[0-9]+)?$";

/// A network of clients is no wider than 10.0.0.0/8, the widest private one (RFC 1918, section 3): whatever reaches the
/// server from it may say that it is any user (AUTH_SYS).
const CLIENT_PREFIX_LEN_MIN: u8 = 8;
/// Root there is root of the volume: a network of one login node, or of a few.
const LOGIN_V4_PREFIX_LEN_MIN: u8 = 24;
/// The shortest prefix of a login network in IPv6, where a subnet of a VPC is a /64 (VPC user guide, subnet sizing for IPv6).
const LOGIN_V6_PREFIX_LEN_MIN: u8 = 64;
const NAME_LEN_MAX: usize = 31;
const HOST_LEN_MAX: usize = 253;
const URL_LEN_MAX: usize = 2000;
const PATH_LEN_MAX: usize = 200;

fn expect(
    is_good: bool,
    what: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<(), DeployError> {
    match is_good {
        true => Ok(()),
        false => Err(DeployError::Value {
            what,
            value: value.to_string(),
            expected,
        }),
    }
}

fn consists_of(text: &str, len_max: usize, is_good: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.len() <= len_max && text.chars().all(is_good)
}

fn is_low_or_digit(each: char) -> bool {
    each.is_ascii_lowercase() || each.is_ascii_digit()
}

pub(super) fn check_name(text: &str) -> Result<(), DeployError> {
    let is_good = text.starts_with(|first: char| first.is_ascii_lowercase())
        && consists_of(text, NAME_LEN_MAX, |each| {
            is_low_or_digit(each) || each == '-'
        });
    expect(
        is_good,
        "a cluster name",
        text,
        "up to 31 small letters, digits and '-', a letter first",
    )
}

pub(super) fn check_user(text: &str) -> Result<(), DeployError> {
    let is_good = text.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && consists_of(text, NAME_LEN_MAX, |each| {
            is_low_or_digit(each) || "_-".contains(each)
        });
    expect(
        is_good,
        "a user",
        text,
        "up to 31 small letters, digits, '_' and '-', a letter first",
    )
}

pub(super) fn check_instance(text: &str) -> Result<(), DeployError> {
    let is_good = consists_of(text, NAME_LEN_MAX, |each| {
        is_low_or_digit(each) || ".-".contains(each)
    });
    expect(
        is_good,
        "an instance type",
        text,
        "a name such as m6i.2xlarge",
    )
}

/// An address, or a network in CIDR form, and how many bits of it are fixed.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let len_max = if address.is_ipv4() { 32 } else { 128 };
    let len = prefix.map_or(Some(len_max), |prefix| prefix.parse().ok())?;
    (len <= len_max).then_some((address, len))
}

pub(super) fn check_network(text: &str) -> Result<(), DeployError> {
    expect(
        network(text).is_some_and(|(_, len)| len >= CLIENT_PREFIX_LEN_MIN),
        "a client network",
        text,
        "an address such as 10.0.0.7, or a network such as 10.0.0.0/8 and no wider than that",
    )
}

/// Where root is root of the volume.
pub(super) fn check_login(text: &str) -> Result<(), DeployError> {
    let is_good = network(text).is_some_and(|(address, len)| match address {
        IpAddr::V4(_) => len >= LOGIN_V4_PREFIX_LEN_MIN,
        IpAddr::V6(_) => len >= LOGIN_V6_PREFIX_LEN_MIN,
    });
    expect(
        is_good,
        "the address of a login node",
        text,
        "root there is root of the volume, so it has to be an address such as 10.0.0.7, or a network no wider than \
         10.0.0.0/24 or fd00::/64",
    )
}

/// A host name or an address.
pub(super) fn check_host(text: &str) -> Result<(), DeployError> {
    let is_good = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && consists_of(text, HOST_LEN_MAX, |each| {
            each.is_ascii_alphanumeric() || ".-".contains(each)
        });
    expect(is_good, "a server", text, "an IPv4 address or a host name")
}

pub(super) fn check_package_url(text: &str) -> Result<(), DeployError> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("s3://"));
    let is_good = rest.is_some_and(is_url_rest);
    expect(
        is_good,
        "a package's address",
        text,
        "https://... or s3://BUCKET/KEY",
    )
}

fn is_url_rest(text: &str) -> bool {
    consists_of(text, URL_LEN_MAX, |each| {
        each.is_ascii_alphanumeric() || "._~:/?&=%+@,-".contains(each)
    })
}

pub(super) fn check_sha256(text: &str) -> Result<(), DeployError> {
    let is_good = text.len() == 64
        && text
            .chars()
            .all(|each| each.is_ascii_digit() || ('a'..='f').contains(&each));
    expect(is_good, "a SHA-256", text, "64 hexadecimal digits, small")
}

/// An absolute path without anything that a shell or a file of settings would take otherwise.
pub(super) fn check_path(what: &'static str, text: &str) -> Result<(), DeployError> {
    let is_good = text.starts_with('/')
        && text.len() > 1
        && !text.split('/').any(|part| part == "..")
        && consists_of(text, PATH_LEN_MAX, |each| {
            each.is_ascii_alphanumeric() || "/._-".contains(each)
        });
    expect(
        is_good,
        what,
        text,
        "an absolute path of letters, digits, '.', '_' and '-'",
    )
}

pub(super) fn check_volume(text: &str) -> Result<(), DeployError> {
    let is_good = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && consists_of(text, 63, |each| {
            each.is_ascii_alphanumeric() || "._-".contains(each)
        });
    expect(
        is_good,
        "a volume",
        text,
        "1 to 63 letters, digits, '.', '_' or '-'",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_or_refused() {
        type Check = fn(&str) -> Result<(), DeployError>;
        let path: Check = |text| check_path("a path", text);
        let sha = "0".repeat(64);
        let long = "a".repeat(32);
        let cases: &[(Check, &str, bool)] = &[
            (check_name, "cairn-1", true),
            (check_name, "", false),
            (check_name, "1a", false),
            (check_name, "a'b", false),
            (check_name, &long, false),
            (check_user, "admin", true),
            (check_user, "root; rm", false),
            (check_instance, "m6i.2xlarge", true),
            (check_instance, "u-6tb1.metal", true),
            (check_instance, "m6i\n", false),
            (check_network, "10.0.0.0/8", true),
            (check_network, "10.0.0.7", true),
            (check_network, "fd00::/8", true),
            (check_network, "0.0.0.0/0", false),
            (check_network, "128.0.0.0/7", false),
            (check_network, "::/0", false),
            (check_network, "10.0.0.0/33", false),
            (check_network, "10.0.0.0/", false),
            (check_login, "10.0.0.7", true),
            (check_login, "10.0.0.7/32", true),
            (check_login, "10.0.0.0/24", true),
            (check_login, "10.0.0.0/23", false),
            (check_login, "0.0.0.0/0", false),
            (check_login, "0.0.0.0/1", false),
            (check_login, "fd00::7", true),
            (check_login, "fd00::/64", true),
            (check_login, "fd00::/63", false),
            (check_login, "::/0", false),
            (check_login, "me", false),
            (check_network, "everyone", false),
            (check_network, "10.0.0.0/8 0.0.0.0/0", false),
            (check_host, "10.0.0.7", true),
            (check_host, "files.example.com", true),
            (check_host, "-o", false),
            (check_host, "a b", false),
            (check_package_url, "s3://bucket/cairn.deb", true),
            (check_package_url, "https://example.com/a?b=c", true),
            (check_package_url, "http://example.com/a", false),
            (check_package_url, "https://example.com/$(id)", false),
            (check_package_url, "https://", false),
            (check_sha256, &sha, true),
            (check_sha256, &sha[1..], false),
            (check_sha256, &sha.replace('0', "G"), false),
            (path, "/mnt/cairn", true),
            (path, "mnt", false),
            (path, "/", false),
            (path, "/a/../b", false),
            (path, "/a b", false),
            (check_volume, "main", true),
            (check_volume, "a/b", false),
        ];
        for (check, text, is_good) in cases {
            assert_eq!(check(text).is_ok(), *is_good, "{text:?}");
        }
    }
}
