//! Limits: bytes and operations, of reads, of writes and of all.
//!
//! Owns: which operation counts for what, and which numbers a class is for a volume. Must not know: who waits.

use std::time::Duration;

use cairn_formats::settings::{ClassName, ClassSpec, ClientNet, PartLimit, RateSpec, VolumePart};

use crate::bucket::Rate;
use crate::client::{Client, Part};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Read,
    Write,
    /// Neither: names, attributes. It counts as an operation.
    Other,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Other];

/// What wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub kind: Kind,
    pub len_bytes: u64,
    /// More bytes of one that was counted before.
    pub is_more: bool,
}

impl Operation {
    fn new(kind: Kind, len_bytes: u64) -> Self {
        Self {
            kind,
            len_bytes,
            is_more: false,
        }
    }

    pub fn read(len_bytes: u64) -> Self {
        Self::new(Kind::Read, len_bytes)
    }

    pub fn write(len_bytes: u64) -> Self {
        Self::new(Kind::Write, len_bytes)
    }

    pub fn other() -> Self {
        Self::new(Kind::Other, 0)
    }

    /// This operation as a further part of one that was already counted, or not.
    pub fn more(self, is_more: bool) -> Self {
        Self { is_more, ..self }
    }

    /// What it counts as an operation.
    pub fn count(&self) -> u64 {
        u64::from(!self.is_more)
    }
}

/// Something that has a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    pub name: &'static str,
    /// Of which operations; `None`: of all.
    kind: Option<Kind>,
    pub is_bytes: bool,
}

const fn dimension(name: &'static str, kind: Option<Kind>, is_bytes: bool) -> Dimension {
    Dimension {
        name,
        kind,
        is_bytes,
    }
}

/// All that can have a rate, in the order and with the names of [`ClassSpec::rates`].
pub const DIMENSIONS: [Dimension; 6] = [
    dimension("throughput", None, true),
    dimension("read-throughput", Some(Kind::Read), true),
    dimension("write-throughput", Some(Kind::Write), true),
    dimension("iops", None, false),
    dimension("read-iops", Some(Kind::Read), false),
    dimension("write-iops", Some(Kind::Write), false),
];

impl Dimension {
    /// What an operation counts; 0: it is none of its.
    pub fn cost(&self, operation: Operation) -> f64 {
        if self.kind.is_some_and(|kind| kind != operation.kind) {
            return 0.0;
        }
        match self.is_bytes {
            true => operation.len_bytes as f64,
            false => operation.count() as f64,
        }
    }
}

/// By place in [`DIMENSIONS`].
pub type Rates = [Option<Rate>; DIMENSIONS.len()];

/// Whose requests count for a limit of a part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOf {
    Named(Part),
    Clients(ClientNet),
}

impl PartOf {
    pub fn holds(&self, client: &Client) -> bool {
        match self {
            Self::Named(part) => client.part == Some(*part),
            Self::Clients(net) => {
                let address = client.address;
                address.is_some_and(|address| net.net().contains(&address))
            }
        }
    }
}

/// What one part of a volume may have, beside what the volume may.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRates {
    pub(crate) of: PartOf,
    pub rates: Rates,
}

impl From<&PartLimit> for PartRates {
    fn from(limit: &PartLimit) -> Self {
        let of = match &limit.part {
            VolumePart::Lun(name) => PartOf::Named(Part::lun(name)),
            VolumePart::Bucket(name) => PartOf::Named(Part::bucket(name)),
            VolumePart::Clients(net) => PartOf::Clients(*net),
        };
        let rates = DIMENSIONS.map(|dimension| match dimension.name {
            "throughput" => limit.throughput,
            "read-throughput" => limit.read_throughput,
            "write-throughput" => limit.write_throughput,
            "iops" => limit.iops,
            _ => None,
        });
        Self {
            of,
            rates: rates.map(|rate| Some(Rate::steady(rate?.max(1) as f64))),
        }
    }
}

/// What one volume may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// That the rates are of; without one only parts have some.
    pub class: Option<ClassName>,
    pub rates: Rates,
    /// What parts of it may have.
    pub parts: Vec<PartRates>,
    /// Of each of its clients.
    pub client_bytes: Option<f64>,
    pub client_operations: Option<f64>,
    /// Bytes of all volumes of the class together.
    pub total_bytes: Option<f64>,
    /// How soon a request is to be answered once it may begin.
    pub latency_goal: Option<Duration>,
}

impl Limits {
    /// What a class is for a volume of a size.
    pub fn of(class: &ClassName, spec: &ClassSpec, size_bytes: Option<u64>) -> Self {
        Self {
            class: Some(class.clone()),
            parts: Vec::new(),
            rates: spec
                .rates()
                .map(|(_, rate)| rate.map(|rate| rate_of(rate, size_bytes))),
            client_bytes: spec.client_throughput.map(|rate| rate.max(1) as f64),
            client_operations: spec.client_iops.map(|rate| rate.max(1) as f64),
            total_bytes: spec.total_throughput.map(|rate| rate.max(1) as f64),
            latency_goal: spec.latency_goal(),
        }
    }

    /// Its part beside other volumes of the class when all want more than there is.
    pub(crate) fn weight(&self) -> f64 {
        let bytes = self.rates.iter().zip(DIMENSIONS);
        let bytes = bytes.filter(|(_, dimension)| dimension.is_bytes);
        let most = bytes.filter_map(|(rate, _)| Some(rate.as_ref()?.baseline));
        most.fold(1.0, f64::max)
    }
}

fn rate_of(spec: &RateSpec, size_bytes: Option<u64>) -> Rate {
    // One that comes to nothing is refused where classes are set.
    let baseline = spec.rate(size_bytes).max(1) as f64;
    let burst = baseline * f64::from(spec.burst_permille.max(1000)) / 1000.0;
    let lasts = Duration::from_secs(spec.credit_seconds);
    Rate {
        baseline,
        burst,
        credit: (burst - baseline) * lasts.as_secs_f64(),
    }
}
