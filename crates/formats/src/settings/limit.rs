//! Limits of parts of a volume: one LUN, one bucket, the clients of a network.
//!
//! Owns: what a part is called, what of a limit makes no sense. Must not know: how a rate is kept.

use std::fmt;
use std::str::FromStr;

use cairn_base::serde_as_word;
use cairn_base::words::WordError;
use serde::{Deserialize, Serialize};

use super::class::{BYTES_PER_SECOND_MIN, OPERATIONS_PER_SECOND_MIN, RATE_MAX};
use super::export::ClientNet;

/// Most parts of a volume that have limits.
pub const PART_LIMITS_MAX: usize = 256;
/// Longest name of a LUN or a bucket in a limit, in bytes.
const NAME_LEN_BYTES_MAX: usize = 128;

/// What has a limit of its own: `lun/NAME`, `bucket/NAME` or `clients/NETWORK`. It need not be there yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumePart {
    Lun(String),
    Bucket(String),
    /// All clients with an address in this network together.
    Clients(ClientNet),
}

impl fmt::Display for VolumePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lun(name) => f.pad(&format!("lun/{name}")),
            Self::Bucket(name) => f.pad(&format!("bucket/{name}")),
            Self::Clients(net) => f.pad(&format!("clients/{net}")),
        }
    }
}

impl FromStr for VolumePart {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wrong = || {
            let forms = "lun/NAME, bucket/NAME or clients/NETWORK, such as clients/10.1.0.0/16";
            WordError::new(text, "a part of a volume", forms)
        };
        let (kind, name) = text.split_once('/').ok_or_else(wrong)?;
        let is_name = super::is_plain_name(name, NAME_LEN_BYTES_MAX);
        match kind {
            "lun" if is_name => Ok(Self::Lun(name.to_owned())),
            "bucket" if is_name => Ok(Self::Bucket(name.to_owned())),
            "clients" => name.parse().map(Self::Clients).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

serde_as_word!(VolumePart);

/// The rates that a part of a volume has at most, beside those of the volume. Per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PartLimit {
    /// lun/NAME, bucket/NAME or clients/NETWORK.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "lun/db", min_length = 5, max_length = 135, pattern = "^(lun|bucket|clients)/.+$"))]
    pub part: VolumePart,
    /// Bytes, read and written together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(minimum = 1024, maximum = 1125899906842624u64)
    )]
    pub throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(minimum = 1024, maximum = 1125899906842624u64)
    )]
    pub read_throughput: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(minimum = 1024, maximum = 1125899906842624u64)
    )]
    pub write_throughput: Option<u64>,
    /// Operations of any kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1125899906842624u64))]
    pub iops: Option<u64>,
}

impl PartLimit {
    /// What makes no sense about it.
    pub fn problem(&self) -> Option<String> {
        let rates = [
            ("throughput", self.throughput, BYTES_PER_SECOND_MIN),
            (
                "read-throughput",
                self.read_throughput,
                BYTES_PER_SECOND_MIN,
            ),
            (
                "write-throughput",
                self.write_throughput,
                BYTES_PER_SECOND_MIN,
            ),
            ("iops", self.iops, OPERATIONS_PER_SECOND_MIN),
        ];
        if rates.iter().all(|(_, rate, _)| rate.is_none()) {
            return Some("it limits nothing: give it a rate".to_owned());
        }
        rates
            .into_iter()
            .find_map(|(what, rate, least)| match rate? {
                rate if rate < least => Some(format!(
                    "{what} is below {least} per second: no client would get on"
                )),
                rate if rate > RATE_MAX => {
                    Some(format!("{what} is above the most there can be, {RATE_MAX}"))
                }
                _ => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_as_they_are_read() {
        for text in [
            "lun/db-1",
            "bucket/photos.2024",
            "clients/10.1.0.0/16",
            "clients/10.0.0.7",
            "clients/fd00::/8",
        ] {
            let part: VolumePart = text.parse().expect(text);
            assert_eq!(part.to_string(), text);
        }
        for text in [
            "",
            "lun",
            "lun/",
            "lun/a/b",
            "lun/..",
            "bucket/a b",
            "clients/x",
            "export/10.0.0.0/8",
        ] {
            assert!(text.parse::<VolumePart>().is_err(), "{text}");
        }
    }

    #[test]
    fn limits_without_sense_are_found() {
        let limit = |throughput, iops| PartLimit {
            part: VolumePart::Lun("db".to_owned()),
            throughput,
            read_throughput: None,
            write_throughput: None,
            iops,
        };
        assert_eq!(limit(Some(1 << 20), Some(100)).problem(), None);
        for (throughput, iops) in [
            (None, None),
            (Some(0), None),
            (Some(RATE_MAX + 1), None),
            (None, Some(0)),
        ] {
            assert!(limit(throughput, iops).problem().is_some());
        }
    }
}
