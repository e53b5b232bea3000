//! Records of LUNs, groups and initiators, and how they are written (docs/reference/formats/hidden-folder.md).

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::Ino;
use cairn_formats::settings::OsType;
use cairn_fs::{FsError, KeptSecret, SecretError};
use serde::{Deserialize, Serialize};

use crate::NAME_LEN_BYTES_MAX;

/// Why something about LUNs was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SanError {
    #[error("there is no LUN {0}")]
    NoLun(String),
    #[error("there is no group {0}")]
    NoIgroup(String),
    #[error("initiator {0} has no CHAP secret")]
    NoInitiator(String),
    #[error("LUN {0} exists")]
    LunExists(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error("the CHAP secret of initiator {initiator} cannot be used: {error}")]
    Secret {
        initiator: String,
        error: SecretError,
    },
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the volume's record of {0} cannot be read: {1}")]
    Damaged(String, String),
}

/// A LUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    pub ino: Ino,
    pub name: String,
    pub size_bytes: u64,
    pub record: LunRecord,
}

/// What the file of a LUN carries beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunRecord {
    /// Its identity for hosts, the same for ever: the end of its NAA ([`Self::naa_bytes`]), and its serial number.
    pub naa: u64,
    pub block_len_bytes: u32,
    /// Writes are answered before they are stable.
    pub write_cache: bool,
    pub created_seconds: i64,
    pub read_only: bool,
    pub online: bool,
    /// Hosts are told when no more than this part of the volume's space is free; 0: they are not.
    pub soft_threshold_percent: u8,
    /// Its number for each group.
    pub maps: BTreeMap<String, u16>,
}

/// The part of a LUN's record that goes back with its bytes when the volume is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindRecord {
    version: u32,
    pub naa: u64,
    block_len_bytes: u32,
    #[serde(default)]
    write_cache: bool,
    created_seconds: i64,
}

/// Who may use a LUN, and how: a restore of the volume leaves that as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRecord {
    version: u32,
    #[serde(default)]
    read_only: bool,
    online: bool,
    #[serde(default)]
    soft_threshold_percent: u8,
    #[serde(default)]
    maps: BTreeMap<String, u16>,
}

impl LunRecord {
    /// The record of a LUN. One that a restore brought back has no access: it is offline, and nobody sees it.
    pub fn new(kind: KindRecord, access: Option<AccessRecord>) -> Self {
        let access = access.unwrap_or(AccessRecord {
            version: VERSION,
            read_only: false,
            online: false,
            soft_threshold_percent: 0,
            maps: BTreeMap::new(),
        });
        Self {
            naa: kind.naa,
            block_len_bytes: kind.block_len_bytes,
            write_cache: kind.write_cache,
            created_seconds: kind.created_seconds,
            read_only: access.read_only,
            online: access.online,
            soft_threshold_percent: access.soft_threshold_percent,
            maps: access.maps,
        }
    }

    /// Its NAA designator: of the format IEEE Registered Extended (6), which all hosts prefer to others (SPC-4, section
    /// 7.8.6.6.5). The company has no identifier of IEEE's; [`NAA_COMPANY`] is one that is locally administered, so that
    /// nobody else's can be the same. After 36 bits of zeros comes the number that was drawn when the LUN was made.
    pub fn naa_bytes(&self) -> [u8; 16] {
        let head = 0x6_u64 << 60 | u64::from(NAA_COMPANY) << 36;
        (u128::from(head) << 64 | u128::from(self.naa)).to_be_bytes()
    }

    pub fn kind(&self) -> KindRecord {
        KindRecord {
            version: VERSION,
            naa: self.naa,
            block_len_bytes: self.block_len_bytes,
            write_cache: self.write_cache,
            created_seconds: self.created_seconds,
        }
    }

    pub fn access(&self) -> AccessRecord {
        AccessRecord {
            version: VERSION,
            read_only: self.read_only,
            online: self.online,
            soft_threshold_percent: self.soft_threshold_percent,
            maps: self.maps.clone(),
        }
    }
}

impl std::ops::Deref for Lun {
    type Target = LunRecord;

    fn deref(&self) -> &LunRecord {
        &self.record
    }
}

impl Lun {
    pub fn block_count(&self) -> u64 {
        self.size_bytes / u64::from(self.block_len_bytes.max(1))
    }
}

/// What initiators that are logged in saw since then, by their names: numbers, and the identities of the LUNs that had them.
pub type Seen = BTreeMap<String, BTreeSet<(u16, u64)>>;

/// An initiator group: its members see the same LUNs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Igroup {
    pub version: u32,
    pub initiators: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsType>,
}

/// A user and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Chap {
    pub user: String,
    pub secret: String,
}

/// Secrets get into no log.
impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chap")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How an initiator proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initiator {
    /// What the initiator must know.
    pub chap: Chap,
    /// What the target answers with, if the initiator asks it to prove who it is.
    pub mutual: Option<Chap>,
}

/// A user and its secret, as the volume keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptChap {
    pub user: String,
    pub secret: KeptSecret,
}

/// What the volume keeps of how an initiator proves who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptInitiator {
    pub version: u32,
    pub chap: KeptChap,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<KeptChap>,
}

impl KeptInitiator {
    /// Whether each of its secrets is wrapped.
    pub fn is_wrapped(&self) -> bool {
        let mut chaps = std::iter::once(&self.chap).chain(&self.mutual);
        chaps.all(|chap| chap.secret.is_wrapped())
    }
}

/// The volume's own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    pub version: u32,
    pub name: String,
}

pub const VERSION: u32 = 1;
/// Stands for who made a LUN in its name. Of the first octet, CAh, the second bit from the end says that it is locally
/// administered (IEEE 802, section 8.4).
const NAA_COMPANY: u32 = 0xca_1a_00;

/// Reads a record of a version that is known.
pub fn decode<T: for<'a> Deserialize<'a>>(what: &str, bytes: &[u8]) -> Result<T, SanError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let damaged = |why: String| SanError::Damaged(what.to_owned(), why);
    let Versioned { version } =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version != VERSION {
        return Err(damaged(format!(
            "it has version {version}, this program knows version {VERSION}"
        )));
    }
    serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))
}

pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, SanError> {
    serde_json::to_vec(value).map_err(|error| SanError::Invalid(error.to_string()))
}

/// Checks the name of a LUN or group.
pub fn check_name(name: &str) -> Result<(), SanError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= NAME_LEN_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(SanError::Invalid(format!(
        "\"{name}\" cannot be a name: 1 to {NAME_LEN_BYTES_MAX} letters, digits, '.', '_' or '-', starting with a letter or a digit"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let lun = LunRecord {
            naa: 0x3fff_ffff_ffff_ffff,
            block_len_bytes: 4096,
            write_cache: true,
            created_seconds: 7,
            read_only: true,
            online: true,
            soft_threshold_percent: 20,
            maps: BTreeMap::from([("hosts".to_owned(), 3)]),
        };
        let (kind, access) = (encode(&lun.kind()).unwrap(), encode(&lun.access()).unwrap());
        let kind: KindRecord = decode("a", &kind).unwrap();
        let access: AccessRecord = decode("a", &access).unwrap();
        assert_eq!(LunRecord::new(kind, Some(access)), lun);
        // Pinned: what volumes have today is read for ever, once there is a release.
        let stored =
            br#"{"version":1,"naa":3458764513820540928,"block_len_bytes":512,"created_seconds":1}"#;
        let kind: KindRecord = decode("a", stored).unwrap();
        let stored = br#"{"version":1,"online":true}"#;
        let access: AccessRecord = decode("a", stored).unwrap();
        let read = LunRecord::new(kind.clone(), Some(access));
        assert_eq!((read.naa, read.online), (0x3000_0000_0000_0000, true));
        // What a restore brings back is for nobody.
        let read = LunRecord::new(kind, None);
        assert!(!read.online && read.maps.is_empty());
    }

    #[test]
    fn names_for_hosts_are_of_nobody_else() {
        let stored =
            br#"{"version":1,"naa":3458764513820540929,"block_len_bytes":512,"created_seconds":1}"#;
        let record = LunRecord::new(decode("a", stored).unwrap(), None);
        let naa = record.naa_bytes();
        let text: String = naa.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "6ca1a000000000003000000000000001");
        // Locally administered, and of one: no identifier that IEEE gives out.
        assert_eq!((NAA_COMPANY >> 16) & 0x03, 0x02);
    }

    #[test]
    fn damaged_and_newer_records_are_refused() {
        for bytes in [
            &b""[..],
            b"{",
            b"{}",
            br#"{"version":2}"#,
            br#"{"version":1}"#,
        ] {
            assert!(matches!(
                decode::<KindRecord>("a", bytes),
                Err(SanError::Damaged(..))
            ));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let chap = Chap {
            user: "u".to_owned(),
            secret: "very secret indeed".to_owned(),
        };
        assert!(!format!("{chap:?}").contains("indeed"));
    }

    #[test]
    fn names_are_taken_or_refused() {
        let long = "a".repeat(63);
        for (name, want) in [
            ("a", true),
            ("db-1.x_", true),
            (&*long, true),
            ("", false),
            ("-a", false),
            ("a/b", false),
            ("ä", false),
        ] {
            assert_eq!(check_name(name).is_ok(), want, "{name}");
        }
        assert!(check_name(&format!("{long}a")).is_err());
    }
}
