//! Whose a request is.
//!
//! Owns: what makes two requests those of one client, or of one part of a volume. Must not know: what these may have.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

fn hashed(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A part of a volume: a LUN, a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part(u64);

impl Part {
    pub fn lun(name: &str) -> Self {
        Self(hashed(("lun", name)))
    }

    pub fn bucket(name: &str) -> Self {
        Self(hashed(("bucket", name)))
    }
}

/// Who asks: an address, an initiator, a key; and for which part of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    who: u64,
    pub(crate) address: Option<IpAddr>,
    pub(crate) part: Option<Part>,
}

/// One client, whatever it asks for and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Who(u64);

impl Client {
    pub fn address(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            who: hashed(address),
            address: Some(address),
            part: None,
        }
    }

    pub fn named(name: &str) -> Self {
        Self {
            who: hashed(name),
            address: None,
            part: None,
        }
    }

    /// This client, at the given address.
    pub fn from(self, address: Option<IpAddr>) -> Self {
        let address = address.map(|address| address.to_canonical());
        Self { address, ..self }
    }

    /// This client, using the given part of the volume.
    pub fn of(self, part: Part) -> Self {
        let part = Some(part);
        Self { part, ..self }
    }

    /// This client, without address and part.
    pub(crate) fn without_parts(self) -> Self {
        Self {
            address: None,
            part: None,
            ..self
        }
    }

    pub(crate) fn who(&self) -> Who {
        Who(self.who)
    }
}
