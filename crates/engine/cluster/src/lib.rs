//! The cluster's map, and the consensus store that keeps it.
//!
//! Owns: the seam to a consensus store ([`Coordinator`]) with its two forms, [`Etcd`] and [`MemoryCoordinator`]; the
//! clock of a lease ([`OwnedLease`]); keys and values of the map and the transactions that change them ([`ClusterMap`]);
//! the etcd members that Cairn starts itself ([`EtcdMember`]).
//! Must not know: what a log or a segment holds, the pool, files, other nodes. It says who owns a volume and which disks
//! have its log; what follows from that is for its users.

#![forbid(unsafe_code)]

pub mod coordinator;
mod etcd;
mod lease;
pub mod map;
mod member;
pub mod memory;
mod settle;

pub use coordinator::{
    Change, Compare, Coordinator, CoordinatorError, Entry, ErrorKind, Key, KeyRange, LeaseGrant,
    LeaseId, Op, Outcome, RangeReply, Revision, Txn, TxnReply, WatchEvent, Watcher,
};
pub use etcd::{Etcd, EtcdMemberInfo, EtcdSettings, EtcdTls, UserRights};
pub use lease::{LeaseSettings, LeaseState, LeaseView, OwnedLease};
pub use map::{ClusterMap, MapError};
pub use member::{
    ELECTION_MAX, EtcdMember, EtcdMemberSettings, EtcdMemberTls, MEMBER_STOP_MAX, MemberError,
    MemberState, check_program, end_left_behind,
};
pub use memory::MemoryCoordinator;
pub use settle::{Mark, Settled, Unsettled, transact_settled};
