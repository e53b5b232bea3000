//! Operational keys: what both sides make of them (RFC 7143, chapter 13).

use crate::keys::Keys;

/// What a target receives in one data segment.
pub const DATA_SEGMENT_LEN_BYTES_MAX: u32 = 256 << 10;
pub const BURST_LEN_BYTES_MAX: u32 = 1 << 20;
pub const FIRST_BURST_LEN_BYTES_MAX: u32 = 256 << 10;
pub const OUTSTANDING_R2T_MAX: u32 = 4;
/// Connections of one session.
pub const CONNECTION_COUNT_MAX: u32 = 8;
const KEY_NUMBER_MAX: u32 = 0xff_ffff;

/// What a connection and its session have agreed on. It begins with the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub header_digest: bool,
    pub data_digest: bool,
    /// Most that the initiator takes in one data segment, in bytes.
    pub send_segment_len_bytes: u32,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    pub burst_len_bytes: u32,
    pub first_burst_len_bytes: u32,
    pub outstanding_r2t: u32,
    /// Connections that the session may have.
    pub connections: u32,
    pub time_to_wait_seconds: u32,
    pub time_to_retain_seconds: u32,
    /// This side said what it receives.
    declared: bool,
}

impl Default for Negotiated {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            send_segment_len_bytes: 8192,
            initial_r2t: true,
            immediate_data: true,
            burst_len_bytes: 256 << 10,
            first_burst_len_bytes: 64 << 10,
            outstanding_r2t: 1,
            connections: 1,
            time_to_wait_seconds: 2,
            time_to_retain_seconds: 20,
            declared: false,
        }
    }
}

/// What comes of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It needs no answer here.
    Silent,
    Answer(String),
    /// A value that the key cannot have.
    Invalid,
}

fn answer(value: impl ToString) -> Offer {
    Offer::Answer(value.to_string())
}

fn number(value: &str) -> Option<u32> {
    let parsed = match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    parsed.filter(|number| *number <= KEY_NUMBER_MAX)
}

fn yes(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn word(is_yes: bool) -> &'static str {
    if is_yes { "Yes" } else { "No" }
}

impl Negotiated {
    /// Takes one operational key. `is_discovery`: of a discovery session, in which keys about data are irrelevant.
    pub fn take(&mut self, key: &str, value: &str, is_discovery: bool) -> Offer {
        let least = |place: &mut u32, most: u32, floor: u32| match number(value) {
            Some(number) if number >= floor => {
                *place = number.min(most);
                answer(*place)
            }
            _ => Offer::Invalid,
        };
        match key {
            "HeaderDigest" | "DataDigest" => {
                let chosen = value
                    .split(',')
                    .find(|digest| ["None", "CRC32C"].contains(digest));
                let Some(chosen) = chosen else {
                    return Offer::Answer("Reject".to_owned());
                };
                let is_on = chosen == "CRC32C";
                match key {
                    "HeaderDigest" => self.header_digest = is_on,
                    _ => self.data_digest = is_on,
                }
                answer(chosen)
            }
            "MaxRecvDataSegmentLength" => match number(value) {
                Some(number) if number >= 512 => {
                    self.send_segment_len_bytes = number;
                    Offer::Silent
                }
                _ => Offer::Invalid,
            },
            "MaxConnections"
            | "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
                if is_discovery =>
            {
                answer("Irrelevant")
            }
            "MaxConnections" => least(&mut self.connections, CONNECTION_COUNT_MAX, 1),
            "InitialR2T" => match yes(value) {
                Some(wanted) => {
                    self.initial_r2t = wanted;
                    answer(word(wanted))
                }
                None => Offer::Invalid,
            },
            "ImmediateData" => match yes(value) {
                Some(wanted) => {
                    self.immediate_data = wanted;
                    answer(word(wanted))
                }
                None => Offer::Invalid,
            },
            "MaxBurstLength" => least(&mut self.burst_len_bytes, BURST_LEN_BYTES_MAX, 512),
            "FirstBurstLength" => least(
                &mut self.first_burst_len_bytes,
                FIRST_BURST_LEN_BYTES_MAX,
                512,
            ),
            "MaxOutstandingR2T" => least(&mut self.outstanding_r2t, OUTSTANDING_R2T_MAX, 1),
            "DefaultTime2Wait" => match number(value) {
                Some(number) if number <= 3600 => {
                    self.time_to_wait_seconds = number.max(self.time_to_wait_seconds.min(2));
                    answer(self.time_to_wait_seconds)
                }
                _ => Offer::Invalid,
            },
            "DefaultTime2Retain" => match number(value) {
                // Nothing of a session is kept after its connection.
                Some(number) if number <= 3600 => {
                    self.time_to_retain_seconds = 0;
                    answer(0)
                }
                _ => Offer::Invalid,
            },
            "DataPDUInOrder" | "DataSequenceInOrder" => match yes(value) {
                Some(_) => answer("Yes"),
                None => Offer::Invalid,
            },
            "ErrorRecoveryLevel" => match number(value) {
                Some(0..=2) => answer(0),
                _ => Offer::Invalid,
            },
            "TaskReporting" => match value.split(',').find(|word| *word == "RFC3720") {
                Some(word) => answer(word),
                None => answer("Reject"),
            },
            "iSCSIProtocolLevel" => match number(value) {
                Some(number @ 0..=31) => answer(number.min(1)),
                _ => Offer::Invalid,
            },
            // Markers are gone since RFC 7143.
            "IFMarker" | "OFMarker" => answer("No"),
            "IFMarkInt" | "OFMarkInt" => answer("Irrelevant"),
            "RDMAExtensions" => answer("No"),
            "InitiatorAlias" => Offer::Silent,
            _ => answer("NotUnderstood"),
        }
    }

    /// What this side says without being asked, once.
    pub fn declare(&mut self, keys: &mut Keys) {
        if !std::mem::replace(&mut self.declared, true) {
            keys.push(
                "MaxRecvDataSegmentLength",
                DATA_SEGMENT_LEN_BYTES_MAX.to_string(),
            );
        }
    }

    /// What belongs together is made to fit, when all keys are there.
    pub fn settle(&mut self) {
        self.first_burst_len_bytes = self.first_burst_len_bytes.min(self.burst_len_bytes);
    }
}
