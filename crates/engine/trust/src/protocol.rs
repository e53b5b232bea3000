//! The protocol of a connection. Both ends agree on it in the TLS handshake (ALPN).

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Disks of other nodes (`cairn-remote`).
    Shards,
    /// What another node passes on for its clients (`cairn-forward`).
    Forward,
    /// A node that is to become one of the cluster. The only one without a certificate of the client.
    Join,
    /// Certificates and the CA's key, from nodes that have that.
    Issue,
}

impl Protocol {
    pub const ALL: [Self; 4] = [Self::Shards, Self::Forward, Self::Join, Self::Issue];

    /// The name in the handshake. A change that older nodes do not understand gets another number.
    pub const fn alpn(self) -> &'static str {
        match self {
            Self::Shards => "cairn-shards/1",
            Self::Forward => "cairn-forward/1",
            Self::Join => "cairn-join/1",
            Self::Issue => "cairn-issue/1",
        }
    }

    /// The name of the same without encryption, where there may be none.
    pub(crate) const fn clear_alpn(self) -> Option<&'static str> {
        match self {
            Self::Shards => Some("cairn-shards-clear/1"),
            Self::Forward => Some("cairn-forward-clear/1"),
            // It carries the cluster's secrets.
            Self::Join | Self::Issue => None,
        }
    }

    /// What a name of the handshake says, and whether it is without encryption.
    pub(crate) fn agreed(name: &[u8]) -> Option<(Self, bool)> {
        Self::ALL.into_iter().find_map(|protocol| {
            let clear = protocol.clear_alpn().map(str::as_bytes);
            let is_clear = clear == Some(name);
            (is_clear || protocol.alpn().as_bytes() == name).then_some((protocol, is_clear))
        })
    }

    pub const fn needs_certificate(self) -> bool {
        !matches!(self, Self::Join)
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.alpn())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_protocols() {
        for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol.index(), index);
            let named = Protocol::agreed(protocol.alpn().as_bytes());
            assert_eq!(named, Some((protocol, false)));
            if let Some(clear) = protocol.clear_alpn() {
                assert_eq!(Protocol::agreed(clear.as_bytes()), Some((protocol, true)));
            }
        }
        for name in ["", "h2", "cairn-shards/2", "cairn-shards", "cairn-join/10"] {
            assert_eq!(Protocol::agreed(name.as_bytes()), None, "{name}");
        }
    }
}
