//! Who may mount a volume, and as whom.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use cairn_base::words::{WordError, serde_as_word, word_enum};

/// Most rules one export can have.
pub const CLIENTS_PER_EXPORT_MAX: usize = 256;
/// The user and group that squashed users become: `nobody` on most systems.
pub const ANONYMOUS_ID_DEFAULT: u32 = 65534;

word_enum!(
    /// What the clients of a rule may do.
    Access, "an access", "rw or ro" {
        ReadWrite = "rw",
        ReadOnly = "ro",
    }
);

word_enum!(
    /// Which users become the anonymous user.
    Squash, "a squash", "root, all or none" {
        Root = "root",
        All = "all",
        None = "none",
    }
);

/// IPv4 addresses that are written as IPv6 ones begin with so many bits, `::ffff:0:0`. Source: RFC 4291, section 2.5.5.2.
const MAPPED_PREFIX_LEN_BITS: u8 = 96;

/// The clients of a rule: an IP network, or one address (a network of one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNet(IpNet);

impl ClientNet {
    /// One of IPv4 addresses, however it is written, is an IPv4 network: so is the client that is compared with it.
    /// A network that holds more than these stays IPv6, and IPv4 clients are not in it, as they are not in `::/0`.
    pub fn new(net: IpNet) -> Self {
        let net = net.trunc();
        Self(unmapped(net).unwrap_or(net))
    }

    pub fn net(self) -> IpNet {
        self.0
    }
}

fn unmapped(net: IpNet) -> Option<IpNet> {
    let IpNet::V6(net) = net else { return None };
    let len_bits = net.prefix_len().checked_sub(MAPPED_PREFIX_LEN_BITS)?;
    let net = Ipv4Net::new(net.addr().to_ipv4_mapped()?, len_bits);
    net.ok().map(IpNet::V4)
}

impl fmt::Display for ClientNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            f.pad(&self.0.addr().to_string())
        } else {
            f.pad(&self.0.to_string())
        }
    }
}

impl FromStr for ClientNet {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::new(net));
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(Self::new(address.into())),
            Err(_) => Err(WordError::new(
                text,
                "a client network",
                "an address such as 10.0.0.7, or a network such as 10.0.0.0/8 or fd00::/8",
            )),
        }
    }
}

serde_as_word!(ClientNet);

/// One line of an export. Of the rules that hold a client, the one with the longest prefix counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExportRule {
    /// The clients: an address or a network in CIDR form.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "10.0.0.0/8", min_length = 2, max_length = 49, pattern = r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}(/(3[0-2]|[12]?[0-9]))?|(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}(:[0-9A-Fa-f]{1,4}){1,1}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|([0-9A-Fa-f]{1,4}:){1,1}(:[0-9A-Fa-f]{1,4}){1,6}|:(:[0-9A-Fa-f]{1,4}){1,7}|::)(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)$"))]
    pub client: ClientNet,
    /// rw or ro.
    #[serde(default = "access_default")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "rw", pattern = "^(rw|ro)$"))]
    pub access: Access,
    /// root, all or none.
    #[serde(default = "squash_default")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "root", pattern = "^(root|all|none)$"))]
    pub squash: Squash,
    /// The user that squashed users become.
    #[serde(default = "anonymous_default")]
    #[cfg_attr(feature = "schema", schema(example = 65534))]
    pub anonymous_uid: u32,
    #[serde(default = "anonymous_default")]
    #[cfg_attr(feature = "schema", schema(example = 65534))]
    pub anonymous_gid: u32,
    /// Refuse clients whose port is above 1023, which any user of the client's machine can use.
    #[serde(default)]
    pub require_reserved_port: bool,
}

fn access_default() -> Access {
    Access::ReadWrite
}

fn squash_default() -> Squash {
    Squash::Root
}

fn anonymous_default() -> u32 {
    ANONYMOUS_ID_DEFAULT
}

impl ExportRule {
    /// Read and write, root squashed, as every other server does it.
    pub fn new(client: ClientNet) -> Self {
        Self {
            client,
            access: access_default(),
            squash: squash_default(),
            anonymous_uid: ANONYMOUS_ID_DEFAULT,
            anonymous_gid: ANONYMOUS_ID_DEFAULT,
            require_reserved_port: false,
        }
    }

    /// The rules of a volume's first export: this machine only.
    ///
    /// Root is not squashed, and any port will do: a first `sudo mount` followed by `sudo cp` has to work, and so has
    /// the client that needs no mount. On a machine with other users that is too much; SECURITY.md says what to do there.
    pub fn this_machine() -> Vec<Self> {
        ["127.0.0.0/8", "::1"]
            .into_iter()
            .filter_map(|net| net.parse().ok())
            .map(|client| Self {
                squash: Squash::None,
                ..Self::new(client)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_read_or_refused() {
        let cases: &[(&str, Option<&str>)] = &[
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("::1", Some("::1")),
            ("fd00::/8", Some("fd00::/8")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::/0", Some("::/0")),
            ("::ffff:10.1.2.3", Some("10.1.2.3")),
            ("::ffff:10.1.2.3/128", Some("10.1.2.3")),
            ("::ffff:10.1.2.3/112", Some("10.1.0.0/16")),
            ("::ffff:0:0/96", Some("0.0.0.0/0")),
            ("::ffff:0:0/95", Some("::fffe:0:0/95")),
            ("10.0.0.0/33", None),
            ("example.com", None),
            ("*", None),
            ("", None),
        ];
        for (text, want) in cases {
            let got = text.parse::<ClientNet>().ok().map(|net| net.to_string());
            assert_eq!(got.as_deref(), *want, "{text:?}");
        }
    }

    #[test]
    fn a_rule_needs_only_its_client() {
        let rule: ExportRule = serde_json::from_str(r#"{"client":"10.0.0.0/8"}"#).unwrap();
        assert_eq!(rule, ExportRule::new("10.0.0.0/8".parse().unwrap()));
        assert!(serde_json::from_str::<ExportRule>(r#"{"client":"x"}"#).is_err());
        assert!(serde_json::from_str::<ExportRule>(r#"{"client":"::1","rw":true}"#).is_err());
        assert_eq!(ExportRule::this_machine().len(), 2);
    }
}
