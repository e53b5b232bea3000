//! Requests to addresses that somebody gave: which of them are sent.
//!
//! Owns: which URLs, names, and addresses of a name at the time of a connection are refused.
//! Must not know: who gave the URL, the requests that go there, which credentials go along.
//! Invariant: no request of a [`Client`] goes to a link-local address or to the metadata service of a cloud. A name is
//! checked by the addresses that the connection is made to: one that had another address a moment ago gains nothing.
//!
//! A proxy in the environment of the process (`HTTPS_PROXY`) resolves names itself; then it decides which of them it
//! connects to, and only the text of a URL is checked here.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Names of metadata services. Their addresses are refused as well; a proxy would resolve the names.
const METADATA_NAMES: [&str; 5] = [
    // Google Compute Engine, "About VM metadata".
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    // Amazon EC2.
    "instance-data",
    "instance-data.ec2.internal",
];

/// Metadata services that are outside of the link-local ranges.
const METADATA_IPV4: [Ipv4Addr; 3] = [
    // Azure's platform (Azure documentation, "IP address 168.63.129.16").
    Ipv4Addr::new(168, 63, 129, 16),
    // Alibaba Cloud.
    Ipv4Addr::new(100, 100, 100, 200),
    // Oracle Cloud.
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Google Compute Engine.
const METADATA_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// Why a URL is not contacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{url} is not contacted: an address begins with http:// or https:// and has a host")]
    Shape { url: String },
    #[error("{host} is not contacted: it is {what}; give the address of another host")]
    Host { host: String, what: &'static str },
    #[error(
        "{host} is not contacted: it has the address {address}, which is {what}; give the address of another host"
    )]
    Resolved {
        host: String,
        address: IpAddr,
        what: &'static str,
    },
}

/// The IPv4 address that packets to this address reach in the end.
///
/// Sources: RFC 4291, section 2.5.5 (mapped and compatible), RFC 2765 (translated), RFC 6052 and RFC 8215 (NAT64), RFC 3056
/// (6to4).
fn ipv4_in(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let joined = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => Some(joined(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(joined(high, low)),
        _ => None,
    }
}

/// Why an address is refused; `None`: it is not.
fn wrong_with(address: IpAddr) -> Option<&'static str> {
    const LINK_LOCAL: &str = "link-local, where clouds have their metadata services";
    const METADATA: &str = "the metadata service of a cloud";
    const NO_HOST: &str = "the address of no host";
    match address {
        IpAddr::V4(address) if address.is_link_local() => Some(LINK_LOCAL),
        IpAddr::V4(address) if METADATA_IPV4.contains(&address) => Some(METADATA),
        IpAddr::V4(address) => {
            let is_nobody =
                address.octets()[0] == 0 || address.is_multicast() || address.is_broadcast();
            is_nobody.then_some(NO_HOST)
        }
        IpAddr::V6(address) => {
            if let Some(address) = ipv4_in(address) {
                return wrong_with(IpAddr::V4(address));
            }
            let segments = address.segments();
            if address.is_unicast_link_local() {
                Some(LINK_LOCAL)
            } else if segments[0] == 0xfd00 && segments[1] == 0xec2 || address == METADATA_IPV6 {
                // fd00:ec2::/32 has the services of EC2's hosts: metadata at ::254, credentials of pods at ::23.
                Some(METADATA)
            } else if address.is_unspecified() || address.is_multicast() {
                Some(NO_HOST)
            } else {
                None
            }
        }
    }
}

/// Fails unless the URL is HTTP or HTTPS and, as far as its text tells, of a host that may be contacted.
///
/// [`Url`] has read the host as browsers do: decimal, octal and hexadecimal forms of IPv4 addresses are addresses.
/// Source: WHATWG URL, section 3.5.
pub fn check_url(url: &Url) -> Result<(), Refused> {
    let host = match url.host() {
        Some(host) if matches!(url.scheme(), "http" | "https") => host,
        _ => {
            return Err(Refused::Shape {
                url: format!("{}:", url.scheme()),
            });
        }
    };
    let wrong = match &host {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            let is_metadata = METADATA_NAMES.contains(&name.as_str());
            is_metadata.then_some("the metadata service of a cloud")
        }
        Host::Ipv4(address) => wrong_with(IpAddr::V4(*address)),
        Host::Ipv6(address) => wrong_with(IpAddr::V6(*address)),
    };
    match wrong {
        None => Ok(()),
        Some(what) => Err(Refused::Host {
            host: host.to_string(),
            what,
        }),
    }
}

/// As [`check_url`], of a text.
pub fn check_text(text: &str) -> Result<(), Refused> {
    match Url::parse(text) {
        Ok(url) => check_url(&url),
        Err(_) => Err(Refused::Shape {
            url: text.to_owned(),
        }),
    }
}

/// Fails if one of the addresses that a host has now may not be contacted.
pub fn check_addresses(
    host: &str,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Result<(), Refused> {
    for address in addresses {
        if let Some(what) = wrong_with(address) {
            return Err(Refused::Resolved {
                host: host.to_owned(),
                address,
                what,
            });
        }
    }
    Ok(())
}

/// Names as the system resolves them.
struct System;

impl Resolve for System {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// What another one finds, if it may be contacted. The connection is made to the very addresses that were checked.
struct CheckedResolver(Arc<dyn Resolve>);

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let finding = self.0.resolve(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = finding.await?.collect();
            check_addresses(&host, found.iter().map(SocketAddr::ip))?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// An HTTP client for URLs that somebody gave. It follows no redirects.
#[derive(Clone, Debug)]
pub struct Client(reqwest::Client);

impl Client {
    /// With the limits of time that `builder` has. Fails if no TLS can be set up.
    pub fn new(builder: reqwest::ClientBuilder) -> Result<Self, reqwest::Error> {
        Self::with(builder, Arc::new(System))
    }

    fn with(
        builder: reqwest::ClientBuilder,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, reqwest::Error> {
        // Where nobody chose one before: the one that everything else here has.
        let _ = rustls::crypto::ring::default_provider().install_default();
        builder
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Arc::new(CheckedResolver(resolver)))
            .build()
            .map(Self)
    }

    /// The client for a request to this URL, if that may be sent. The addresses of its host are looked at when the
    /// connection is made.
    pub fn to(&self, url: &Url) -> Result<&reqwest::Client, Refused> {
        check_url(url).map(|()| &self.0)
    }
}

#[cfg(test)]
mod tests;
