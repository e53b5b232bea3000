//! iSCSI: the LUNs of volumes as SCSI disks (RFC 7143; SPC-4 and SBC-3).
//!
//! Owns: connections, sessions, logins, tasks, what SCSI commands do to a LUN, reservations, metrics of all that.
//! Must not know: configuration files, how LUNs are kept (`cairn_san`), what is in a volume.

#![forbid(unsafe_code)]

mod connection;
mod execute;
mod lane;
mod link;
mod login;
mod management;
mod medium;
mod metrics;
mod pass;
mod portal;
mod reservation;
mod session;
mod target;
mod tasks;
mod third_party;
mod tokens;
mod unit;

pub use cairn_codec_iscsi::is_iscsi_name;
pub use metrics::IscsiCollector;
pub use pass::{Cluster, NodePortals, PeerServer};
pub use portal::{PortalCore, Running, Settings};
pub use session::WINDOW_COUNT;
pub use target::{Session, Target, Targets};
