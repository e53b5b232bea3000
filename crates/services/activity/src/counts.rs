//! Counts of a request, and the counters of one stretch of time.
//!
//! Owns: what makes two requests those of one client, or for one file. Must not know: when stretches of time end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Ino;

use crate::sketch::Sketch;

/// No request weighs less than one of so many bytes: else a client that only asks for names would never be seen beside one
/// that moves data.
const WEIGHT_MIN: u64 = 4096;
/// A longer name is cut, so that what clients choose takes no more memory than this.
const NAME_LEN_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Nfs,
    Iscsi,
    S3,
}

/// Kinds of requests of one protocol.
pub const OPERATION_COUNT_MAX: usize = 32;
const PROTOCOL_COUNT: usize = 3;

/// A kind of request of a protocol, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub protocol: Protocol,
    /// Of its own among those of the protocol, below [`OPERATION_COUNT_MAX`]: higher ones are counted as the last.
    pub number: u8,
    pub name: &'static str,
}

impl Operation {
    #[inline]
    fn index(self) -> usize {
        let number = usize::from(self.number).min(OPERATION_COUNT_MAX - 1);
        self.protocol as usize * OPERATION_COUNT_MAX + number
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    Address(IpAddr),
    Named(Arc<str>),
}

/// Whose requests they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    hash: u64,
    pub protocol: Protocol,
    pub who: Who,
}

impl Client {
    fn new(protocol: Protocol, who: Who) -> Self {
        Self {
            hash: hashed((protocol, &who)),
            protocol,
            who,
        }
    }

    pub fn address(protocol: Protocol, address: IpAddr) -> Self {
        Self::new(protocol, Who::Address(address.to_canonical()))
    }

    pub fn named(protocol: Protocol, name: &str) -> Self {
        Self::new(protocol, Who::Named(cut(name)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// A file, a directory or a LUN: what it is called is found when somebody asks.
    Inode(Ino),
    /// Bucket and key.
    Object(Arc<str>),
}

/// What requests are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    hash: u64,
    pub name: FileName,
}

impl File {
    #[inline]
    pub fn inode(ino: Ino) -> Self {
        Self {
            // Cheaper than the hash of names, and for each request.
            hash: mixed(ino.0),
            name: FileName::Inode(ino),
        }
    }

    /// An object, or the bucket itself when there is no key.
    pub fn object(bucket: &str, key: &str) -> Self {
        let whole = match key.is_empty() {
            true => bucket.to_owned(),
            false => format!("{bucket}/{key}"),
        };
        Self {
            // Of the whole name: what differs behind the cut are two files.
            hash: hashed(&whole),
            name: FileName::Object(cut(&whole)),
        }
    }
}

fn hashed(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// All bits of a number in all bits of another (SplitMix64).
#[inline]
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn cut(name: &str) -> Arc<str> {
    match name.len() <= NAME_LEN_BYTES_MAX {
        true => name.into(),
        false => {
            let end = name.floor_char_boundary(NAME_LEN_BYTES_MAX);
            format!("{}\u{2026}", &name[..end]).into()
        }
    }
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub operations: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Work {
    /// One operation that moved nothing.
    pub const ONE: Self = Self {
        operations: 1,
        read_bytes: 0,
        written_bytes: 0,
    };

    #[inline]
    pub(crate) fn add(&mut self, more: Self) {
        self.operations += more.operations;
        self.read_bytes = self.read_bytes.saturating_add(more.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(more.written_bytes);
    }

    /// What the busiest are found by.
    #[inline]
    pub fn weight(&self) -> u64 {
        let moved = self.read_bytes.saturating_add(self.written_bytes);
        moved.max(self.operations.saturating_mul(WEIGHT_MIN))
    }
}

/// A request that was answered, or a part of what it moves.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    pub operation: Operation,
    pub client: &'a Client,
    pub file: Option<&'a File>,
    pub work: Work,
    /// How long it took; `None` for a part of one.
    pub latency: Option<Duration>,
}

/// The properties of a kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationCounts {
    pub operation: Operation,
    pub work: Work,
    pub timed: u64,
    pub latency_sum_ns: u64,
    pub latency_max_ns: u64,
}

impl OperationCounts {
    fn new(operation: Operation) -> Self {
        Self {
            operation,
            work: Work::default(),
            timed: 0,
            latency_sum_ns: 0,
            latency_max_ns: 0,
        }
    }

    pub fn is_of(&self, operation: Operation) -> bool {
        self.operation.index() == operation.index()
    }

    pub fn join(&mut self, other: &Self) {
        self.work.add(other.work);
        self.timed += other.timed;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(other.latency_sum_ns);
        self.latency_max_ns = self.latency_max_ns.max(other.latency_max_ns);
    }
}

/// All that is counted in one stretch of time, by one thread or a few.
pub(crate) struct Counts {
    /// Of those that were asked for.
    pub operations: Vec<OperationCounts>,
    /// Where each is there, from 1; 0: nowhere.
    places: [u8; PROTOCOL_COUNT * OPERATION_COUNT_MAX],
    pub clients: Sketch<Client, Work>,
    pub files: Sketch<File, Work>,
}

const _: () = assert!(PROTOCOL_COUNT * OPERATION_COUNT_MAX <= u8::MAX as usize);

impl Default for Counts {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            places: [0; PROTOCOL_COUNT * OPERATION_COUNT_MAX],
            clients: Sketch::default(),
            files: Sketch::default(),
        }
    }
}

impl Counts {
    #[inline]
    pub fn note(&mut self, done: &Done<'_>) {
        self.operation(done);
        let weight = done.work.weight();
        let client = done.client;
        self.clients.add(client.hash, client, weight).add(done.work);
        if let Some(file) = done.file {
            self.files.add(file.hash, file, weight).add(done.work);
        }
    }

    #[inline]
    fn operation(&mut self, done: &Done<'_>) {
        let place = &mut self.places[done.operation.index()];
        if *place == 0 {
            self.operations.push(OperationCounts::new(done.operation));
            // No more than there are places.
            *place = self.operations.len() as u8;
        }
        let counts = &mut self.operations[usize::from(*place) - 1];
        counts.work.add(done.work);
        if let Some(latency) = done.latency {
            let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            counts.timed += 1;
            counts.latency_sum_ns = counts.latency_sum_ns.saturating_add(nanos);
            counts.latency_max_ns = counts.latency_max_ns.max(nanos);
        }
    }

    pub fn clear(&mut self) {
        self.operations.clear();
        self.places.fill(0);
        self.clients.clear();
        self.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// What the counters of one stretch take, in bytes, with all procedures of NFS.
    const COUNTS_LEN_BYTES_MAX: usize = 14 << 10;

    #[test]
    fn counters_take_the_same_memory_whatever_clients_do() {
        let mut counts = Counts::default();
        for number in 0..100_000_u32 {
            let client = Client::address(Protocol::Nfs, Ipv4Addr::from_bits(number).into());
            counts.note(&Done {
                operation: Operation {
                    protocol: Protocol::Nfs,
                    number: (number % 22) as u8,
                    name: "x",
                },
                client: &client,
                file: Some(&File::inode(Ino(number.into()))),
                work: Work::ONE,
                latency: None,
            });
        }
        let operations = counts.operations.capacity() * size_of::<OperationCounts>();
        let heap = counts.clients.heap_len_bytes() + counts.files.heap_len_bytes();
        let len_bytes = size_of::<Counts>() + operations + heap;
        assert!(len_bytes <= COUNTS_LEN_BYTES_MAX, "{len_bytes}");
    }

    #[test]
    fn operations_beyond_the_last_are_counted_as_that() {
        let operation = |protocol, number| Operation {
            protocol,
            number,
            name: "x",
        };
        let last = operation(Protocol::S3, OPERATION_COUNT_MAX as u8 - 1);
        assert_eq!(operation(Protocol::S3, u8::MAX).index(), last.index());
        assert_eq!(last.index(), PROTOCOL_COUNT * OPERATION_COUNT_MAX - 1);
        assert_eq!(operation(Protocol::Nfs, 0).index(), 0);
    }
}
