//! Addresses of nodes: `HOST:PORT`.

use std::net::IpAddr;

use rustls::pki_types::ServerName;

use crate::certificate::DOMAIN;
use crate::error::TrustError;

/// No address is longer.
pub(crate) const ADDRESS_LEN_BYTES_MAX: usize = 255;

/// The host of a `HOST:PORT`, without the brackets of an IPv6 address.
pub fn host_of(address: &str) -> Result<&str, TrustError> {
    let invalid = |problem| TrustError::Invalid {
        what: "the address",
        value: address.chars().take(ADDRESS_LEN_BYTES_MAX).collect(),
        problem,
    };
    if address.len() > ADDRESS_LEN_BYTES_MAX {
        return Err(invalid("it is too long"));
    }
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| invalid("it has no port; write HOST:PORT"))?;
    let is_decimal = port.bytes().all(|byte| byte.is_ascii_digit());
    if !is_decimal || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(invalid("its port is no number from 1 to 65535"));
    }
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .filter(|host| host.contains(':'))
            .ok_or_else(|| invalid("its brackets hold no IPv6 address"))?,
        None if host.contains(':') => {
            return Err(invalid("write an IPv6 address in brackets: [HOST]:PORT"));
        }
        None => host,
    };
    check_host(bare).map_err(invalid)?;
    // A certificate with such a name would be taken for that of another node, or of a member of etcd.
    if is_ours(bare) {
        return Err(invalid(
            "names below cairn.internal are given by clusters themselves",
        ));
    }
    Ok(bare)
}

fn is_ours(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let rest = host.strip_suffix(DOMAIN);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether this is a `HOST:PORT` that others can reach.
pub fn check_address(address: &str) -> Result<(), TrustError> {
    host_of(address).map(|_| ())
}

/// A host that can stand in a certificate.
pub(crate) fn check_host(host: &str) -> Result<(), &'static str> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return match ip.is_unspecified() || ip.is_multicast() {
            true => Err(
                "this address is not that of a single host; give the address that others connect to",
            ),
            false => Ok(()),
        };
    }
    // What looks like numbers is a mistyped address.
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    match ServerName::try_from(host) {
        Ok(ServerName::DnsName(_)) if !is_number && !host.ends_with('.') => Ok(()),
        _ => Err("its host is neither a name nor an IP address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let long = format!("{}:1", "a".repeat(254));
        let cases: &[(&str, Option<&str>)] = &[
            ("10.0.0.1:7700", Some("10.0.0.1")),
            ("node-1.example:1", Some("node-1.example")),
            ("localhost:65535", Some("localhost")),
            ("[fd00::1]:7700", Some("fd00::1")),
            ("fd00::1:7700", None),
            ("[10.0.0.1]:1", None),
            ("[fd00::1:7", None),
            ("[fd00::g]:7", None),
            ("10.0.0.1", None),
            ("10.0.0.1:", None),
            ("10.0.0.1:0", None),
            ("10.0.0.1:+7", None),
            ("10.0.0.1:65536", None),
            ("0.0.0.0:1", None),
            ("[::]:1", None),
            ("224.0.0.1:1", None),
            ("10.0.0.256:1", None),
            (":1", None),
            ("a b:1", None),
            ("*.example:1", None),
            ("a.:1", None),
            ("member.0.cairn.internal:1", None),
            ("A.node.B.Cairn.Internal:1", None),
            ("cairn.internal:1", None),
            ("my-cairn.internal:1", Some("my-cairn.internal")),
            ("cairn.internal.example:1", Some("cairn.internal.example")),
            ("\u{fc}.example:1", None),
            ("", None),
            (&long, None),
        ];
        for (address, want) in cases {
            assert_eq!(host_of(address).ok(), *want, "{address}");
        }
    }
}
