//! The client of the API: small and blocking, for the command line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cairn_config::{ClassName, ClientNet, PartLimit, TierName, UserName, VolumeName, VolumePart};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::Method;

use crate::activity::{ActivityList, ActivityView};
use crate::address_pools::{
    AddressPoolChange, AddressPoolCreate, AddressPoolList, AddressPoolView,
};
use crate::api::{
    AuthorityView, BalanceView, CacheAdd, CacheList, CacheView, ClusterBackup, ClusterView,
    DiskAdd, DiskChange, DiskList, DiskPlace, DiskReplace, DiskView, ErrorBody, ErrorDetail,
    ErrorKind, ExportList, ExportSet, ExportView, NodeChange, NodeMaintenance, NodeReplace,
    NodeWeight, RebuildRate, RebuildView, ScrubReport, ScrubSchedule, ScrubScheduleSet, ScrubStart,
    ScrubView, SpreadSet, SpreadView, Status, TicketCreate, TicketView, VolumeAddressSet,
    VolumeChange, VolumeCloneCreate, VolumeCreate, VolumeList, VolumeMove, VolumeView,
};
use crate::audit::{AuditPage, AuditQuery};
use crate::benchmarks::{BenchmarkList, BenchmarkProgress, BenchmarkStart};
use crate::classes::{ClassCreate, ClassList, ClassSet, ClassView, PartList};
use crate::events::{EventPage, EventQuery};
use crate::jobs::JobList;
use crate::keys::{KeyRotationView, MasterKeysView};
use crate::list_query::ENTRIES_OF_A_PAGE_MAX;
use crate::policies::{ApplyStart, ApplyView, PolicyList, PolicySet, PolicyView};
use crate::quotas::{QuotaAt, QuotaList, QuotaSet, QuotaView};
use crate::s3::{
    AccessKeyCreate, AccessKeyList, AccessKeyView, BucketCreate, BucketList, BucketSet, BucketView,
};
use crate::san::{
    IgroupList, IgroupSet, IgroupView, InitiatorList, InitiatorSet, InitiatorView, LunClone,
    LunCreate, LunList, LunMapSet, LunRestore, LunSet, LunView, SessionList,
};
use crate::snapshots::{
    CloneCreate, GroupSnapshotCreate, GroupSnapshotView, RestoredView, SchedulesSet, SchedulesView,
    SnapshotCreate, SnapshotDiffAsk, SnapshotDiffPage, SnapshotList, SnapshotRestore, SnapshotSet,
    SnapshotView, VolumeRestore, VolumeRestoredView, is_snapshot_name,
};
use crate::tiers::{TierAdd, TierCheck, TierChecked, TierList, TierView};
use crate::token::Token;
use crate::users::{
    OpenSessionList, Password, PasswordChange, UserCreate, UserList, UserSet, UserView,
};
use zeroize::Zeroizing;

/// Addresses that nodes share.
const ADDRESS_POOLS: &str = "/api/v1/cluster/address-pools";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Deleting a large volume takes a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// What the server says is to be sent again is, for so long: as long as it holds requests that only look.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const ANSWER_LEN_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no answer from the server at {url}: {why}")]
    Unreachable { url: String, why: String },
    /// The given certificates to trust are none.
    #[error("the certificates to trust cannot be used: {0}")]
    Certificates(String),
    /// The server said no; the text is its own.
    #[error("{}", .0.message)]
    Refused(ErrorDetail),
    #[error("{url} answered something that is not Cairn's admin API: {why}")]
    NotUnderstood { url: String, why: String },
}

/// A name that none can have is not put into a path.
fn snapshot_path(volume: &VolumeName, name: &str) -> Result<String, ClientError> {
    match is_snapshot_name(name) {
        true => Ok(format!("/api/v1/volumes/{volume}/snapshots/{name}")),
        false => Err(ClientError::Refused(ErrorDetail {
            kind: ErrorKind::NotFound,
            message: format!("there is no snapshot {name:?}"),
            hint: None,
        })),
    }
}

fn address_pool_path(name: &str) -> String {
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    format!("{ADDRESS_POOLS}/{name}")
}

fn policy_path(volume: &VolumeName, path: &str) -> String {
    let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
    format!("/api/v1/volumes/{volume}/policy?path={path}")
}

fn quota_path(volume: &VolumeName, what: &str, at: &QuotaAt) -> String {
    let path = utf8_percent_encode(&at.path, NON_ALPHANUMERIC);
    let id = at.id.map(|id| format!("&id={id}")).unwrap_or_default();
    let of = at.of.name();
    format!("/api/v1/volumes/{volume}/{what}?path={path}&of={of}{id}")
}

/// TLS that trusts these certificates (PEM), and no others. Without any it trusts nobody.
///
/// Each agent of `ureq` needs it that may be asked for something at `https://`: its own default would end the process, for
/// it has neither certificates nor a provider of ciphers here.
pub fn tls_trusting(trusted: Option<&str>) -> Result<ureq::tls::TlsConfig, ClientError> {
    let wrong = |why: &dyn std::fmt::Display| ClientError::Certificates(why.to_string());
    let mut roots = Vec::new();
    for item in ureq::tls::parse_pem(trusted.unwrap_or_default().as_bytes()) {
        if let ureq::tls::PemItem::Certificate(root) = item.map_err(|error| wrong(&error))? {
            roots.push(root);
        }
    }
    if trusted.is_some() && roots.is_empty() {
        return Err(wrong(&"there is no certificate in it"));
    }
    Ok(ureq::tls::TlsConfig::builder()
        .provider(ureq::tls::TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(ureq::tls::RootCerts::new_with_certs(&roots))
        .build())
}

/// Who a client is.
#[derive(Clone, Debug)]
pub enum Identity {
    Token(Token),
    User { name: UserName, password: Password },
}

impl Identity {
    fn authorization(&self) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Token(token) => format!("Bearer {}", token.as_str()),
            Self::User { name, password } => {
                let both = Zeroizing::new(format!("{name}:{}", password.as_str()));
                format!("Basic {}", BASE64_STANDARD.encode(both.as_bytes()))
            }
        })
    }
}

/// What came of a request that was answered.
enum Sent {
    Answered(Result<String, ClientError>),
    /// Nothing was done, and it is to be sent again after so long.
    NotNow {
        again: Duration,
        answer: Result<String, ClientError>,
    },
}

fn is_before(after: Duration, until: Instant) -> bool {
    let then = Instant::now().checked_add(after);
    then.is_some_and(|then| then < until)
}

/// One server.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    authorization: Option<Zeroizing<String>>,
}

impl Client {
    /// `url` is `http://ADDRESS:PORT`, or `https://...`: then `trusted` has the certificates, as PEM, of which one has to
    /// vouch for the server, or be its own.
    pub fn new(
        url: &str,
        identity: Option<&Identity>,
        trusted: Option<&str>,
    ) -> Result<Self, ClientError> {
        let tls = tls_trusting(trusted)?;
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .max_redirects(0)
            .proxy(None)
            .build()
            .new_agent();
        Ok(Self {
            agent,
            url: url.trim_end_matches('/').to_owned(),
            authorization: identity.map(Identity::authorization),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/api/v1/status")
    }

    pub fn users(&self) -> Result<UserList, ClientError> {
        self.get("/api/v1/users")
    }

    pub fn user(&self, name: &UserName) -> Result<UserView, ClientError> {
        self.get(&format!("/api/v1/users/{name}"))
    }

    pub fn user_create(&self, create: &UserCreate) -> Result<UserView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/users")), create)
    }

    pub fn user_set(&self, name: &UserName, set: &UserSet) -> Result<UserView, ClientError> {
        let path = format!("/api/v1/users/{name}");
        self.call(self.agent.patch(self.at(&path)), set)
    }

    pub fn user_delete(&self, name: &UserName) -> Result<(), ClientError> {
        let path = format!("/api/v1/users/{name}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn open_sessions(&self) -> Result<OpenSessionList, ClientError> {
        self.get("/api/v1/sessions")
    }

    /// Ends one session, by its number.
    pub fn session_end(&self, id: &str) -> Result<(), ClientError> {
        let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
        let path = format!("/api/v1/sessions/{id}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    /// Ends all sessions of a name; with `by` only those that began so.
    pub fn sessions_end(&self, user: &str, by: Option<&str>) -> Result<(), ClientError> {
        let by = by.map(|by| format!("&by={by}")).unwrap_or_default();
        let user = utf8_percent_encode(user, NON_ALPHANUMERIC);
        let path = format!("/api/v1/sessions?user={user}{by}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    /// Changes the password of the user that this client is.
    pub fn password_change(&self, change: &PasswordChange) -> Result<UserView, ClientError> {
        self.call(self.agent.put(self.at("/api/v1/session/password")), change)
    }

    pub fn audit(&self, query: &AuditQuery) -> Result<AuditPage, ClientError> {
        self.get(&format!("/api/v1/audit?{}", query.to_query()))
    }

    pub fn benchmarks(&self) -> Result<BenchmarkList, ClientError> {
        self.get("/api/v1/benchmarks")
    }

    pub fn benchmark_start(
        &self,
        start: &BenchmarkStart,
    ) -> Result<BenchmarkProgress, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/benchmarks")), start)
    }

    pub fn benchmark_stop(&self) -> Result<(), ClientError> {
        self.post_nothing("/api/v1/benchmarks/stop").map(drop)
    }

    /// A file of `cairn bench`.
    pub fn benchmark_result(&self, id: u64) -> Result<String, ClientError> {
        let path = self.at(&format!("/api/v1/benchmarks/{id}"));
        self.send(|agent| self.authorized(agent.get(path.as_str())).call())
    }

    pub fn events(&self, query: &EventQuery) -> Result<EventPage, ClientError> {
        self.get(&format!("/api/v1/events?{}", query.to_query()))
    }

    pub fn disks(&self) -> Result<DiskList, ClientError> {
        self.get("/api/v1/disks")
    }

    /// What a folder of the server's machine is on.
    pub fn disk_place(&self, path: &str) -> Result<DiskPlace, ClientError> {
        let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
        self.get(&format!("/api/v1/disk-place?path={path}"))
    }

    pub fn disk_add(&self, add: &DiskAdd) -> Result<DiskView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/disks")), add)
    }

    /// `disk` is an id as the list of disks has it.
    pub fn disk_set(&self, disk: &str, change: &DiskChange) -> Result<DiskView, ClientError> {
        let path = format!("/api/v1/disks/{disk}");
        self.call(self.agent.patch(self.at(&path)), change)
    }

    pub fn disk_remove(&self, disk: &str, force: bool) -> Result<(), ClientError> {
        let path = format!("/api/v1/disks/{disk}?force={force}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn disk_replace(&self, disk: &str, by: &DiskReplace) -> Result<DiskView, ClientError> {
        let path = format!("/api/v1/disks/{disk}/replace");
        self.call(self.agent.post(self.at(&path)), by)
    }

    pub fn disk_retry(&self, disk: &str) -> Result<DiskView, ClientError> {
        let answer = self.post_nothing(&format!("/api/v1/disks/{disk}/retry"))?;
        self.parse(&answer)
    }

    pub fn caches(&self) -> Result<CacheList, ClientError> {
        self.get("/api/v1/caches")
    }

    pub fn cache_add(&self, add: &CacheAdd) -> Result<CacheView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/caches")), add)
    }

    /// `cache` is an id as the list of caches has it.
    pub fn cache_remove(&self, cache: &str) -> Result<(), ClientError> {
        let path = format!("/api/v1/caches/{cache}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn rebuild(&self) -> Result<RebuildView, ClientError> {
        self.get("/api/v1/rebuild")
    }

    pub fn rebuild_rate(&self, rate: &RebuildRate) -> Result<RebuildView, ClientError> {
        self.call(self.agent.patch(self.at("/api/v1/rebuild")), rate)
    }

    pub fn cluster(&self) -> Result<ClusterView, ClientError> {
        self.get("/api/v1/cluster")
    }

    pub fn cluster_backup(&self) -> Result<ClusterBackup, ClientError> {
        let ask = self.agent.post(self.at("/api/v1/cluster/backups"));
        self.call(ask, &serde_json::json!({}))
    }

    pub fn cluster_authority(&self) -> Result<AuthorityView, ClientError> {
        self.get("/api/v1/cluster/authority")
    }

    pub fn cluster_authority_rotate(&self) -> Result<AuthorityView, ClientError> {
        let ask = self
            .agent
            .post(self.at("/api/v1/cluster/authority/rotation"));
        self.call(ask, &serde_json::json!({}))
    }

    pub fn cluster_ticket(&self, create: &TicketCreate) -> Result<TicketView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/cluster/tickets")), create)
    }

    pub fn node_set(&self, node: &str, change: &NodeChange) -> Result<ClusterView, ClientError> {
        let path = format!("/api/v1/cluster/nodes/{node}");
        self.call(self.agent.patch(self.at(&path)), change)
    }

    pub fn node_maintenance(
        &self,
        node: &str,
        set: &NodeMaintenance,
    ) -> Result<ClusterView, ClientError> {
        let path = format!("/api/v1/cluster/nodes/{node}/maintenance");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn node_weight(&self, node: &str, set: &NodeWeight) -> Result<ClusterView, ClientError> {
        let path = format!("/api/v1/cluster/nodes/{node}/weight");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn balance(&self) -> Result<BalanceView, ClientError> {
        self.get("/api/v1/cluster/balance")
    }

    pub fn balance_step(&self) -> Result<BalanceView, ClientError> {
        let answer = self.post_nothing("/api/v1/cluster/balance")?;
        self.parse(&answer)
    }

    pub fn node_replace(
        &self,
        node: &str,
        replace: &NodeReplace,
    ) -> Result<ClusterView, ClientError> {
        let path = format!("/api/v1/cluster/nodes/{node}/replace");
        self.call(self.agent.post(self.at(&path)), replace)
    }

    pub fn node_remove(&self, node: &str) -> Result<(), ClientError> {
        let path = format!("/api/v1/cluster/nodes/{node}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn volume_address_set(
        &self,
        name: &VolumeName,
        address: &VolumeAddressSet,
    ) -> Result<ClusterView, ClientError> {
        let path = format!("/api/v1/volumes/{name}/address");
        self.call(self.agent.put(self.at(&path)), address)
    }

    pub fn volume_address_remove(&self, name: &VolumeName) -> Result<(), ClientError> {
        let path = format!("/api/v1/volumes/{name}/address");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn address_pools(&self) -> Result<AddressPoolList, ClientError> {
        self.get(ADDRESS_POOLS)
    }

    pub fn address_pool(&self, name: &str) -> Result<AddressPoolView, ClientError> {
        self.get(&address_pool_path(name))
    }

    pub fn address_pool_create(
        &self,
        create: &AddressPoolCreate,
    ) -> Result<AddressPoolView, ClientError> {
        self.call(self.agent.post(self.at(ADDRESS_POOLS)), create)
    }

    pub fn address_pool_change(
        &self,
        name: &str,
        change: &AddressPoolChange,
    ) -> Result<AddressPoolView, ClientError> {
        self.call(self.agent.patch(self.at(&address_pool_path(name))), change)
    }

    pub fn address_pool_delete(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&address_pool_path(name)).map(drop)
    }

    pub fn volume_move(
        &self,
        name: &VolumeName,
        to: &VolumeMove,
    ) -> Result<VolumeView, ClientError> {
        let path = format!("/api/v1/volumes/{name}/move");
        self.call(self.agent.post(self.at(&path)), to)
    }

    pub fn scrub(&self) -> Result<ScrubView, ClientError> {
        self.get("/api/v1/scrub")
    }

    pub fn scrub_start(&self, start: &ScrubStart) -> Result<ScrubView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/scrub/start")), start)
    }

    pub fn scrub_pause(&self) -> Result<ScrubView, ClientError> {
        let answer = self.post_nothing("/api/v1/scrub/pause")?;
        self.parse(&answer)
    }

    pub fn scrub_report(&self) -> Result<ScrubReport, ClientError> {
        self.get("/api/v1/scrub/report")
    }

    pub fn spread(&self) -> Result<SpreadView, ClientError> {
        self.get("/api/v1/spread")
    }

    pub fn spread_set(&self, set: &SpreadSet) -> Result<SpreadView, ClientError> {
        self.call(self.agent.put(self.at("/api/v1/spread")), set)
    }

    pub fn scrub_schedule(&self) -> Result<ScrubSchedule, ClientError> {
        self.get("/api/v1/scrub/schedule")
    }

    pub fn scrub_schedule_set(&self, set: &ScrubScheduleSet) -> Result<ScrubSchedule, ClientError> {
        self.call(self.agent.put(self.at("/api/v1/scrub/schedule")), set)
    }

    pub fn scrub_schedule_clear(&self) -> Result<(), ClientError> {
        self.delete("/api/v1/scrub/schedule").map(drop)
    }

    pub fn volumes(&self) -> Result<VolumeList, ClientError> {
        self.all("/api/v1/volumes", "volumes")
    }

    pub fn volume(&self, name: &VolumeName) -> Result<VolumeView, ClientError> {
        self.get(&format!("/api/v1/volumes/{name}"))
    }

    pub fn volume_create(&self, create: &VolumeCreate) -> Result<VolumeView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/volumes")), create)
    }

    pub fn volume_clone(
        &self,
        source: &VolumeName,
        clone: &VolumeCloneCreate,
    ) -> Result<VolumeView, ClientError> {
        let path = format!("/api/v1/volumes/{source}/volume-clones");
        self.call(self.agent.post(self.at(&path)), clone)
    }

    pub fn volume_set(
        &self,
        name: &VolumeName,
        change: &VolumeChange,
    ) -> Result<VolumeView, ClientError> {
        let path = format!("/api/v1/volumes/{name}");
        self.call(self.agent.patch(self.at(&path)), change)
    }

    pub fn volume_delete(&self, name: &VolumeName, force: bool) -> Result<(), ClientError> {
        let path = format!("/api/v1/volumes/{name}?force={force}");
        self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())
            .map(drop)
    }

    pub fn master_keys(&self) -> Result<MasterKeysView, ClientError> {
        self.get("/api/v1/master-keys")
    }

    pub fn rotate_keys(&self) -> Result<KeyRotationView, ClientError> {
        let answer = self.post_nothing("/api/v1/master-keys/rotate")?;
        self.parse(&answer)
    }

    pub fn erase_key(&self, volume: &VolumeName) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/volumes/{volume}/key"))
            .map(drop)
    }

    pub fn classes(&self) -> Result<ClassList, ClientError> {
        self.get("/api/v1/classes")
    }

    pub fn class(&self, name: &ClassName) -> Result<ClassView, ClientError> {
        self.get(&format!("/api/v1/classes/{name}"))
    }

    pub fn class_create(&self, create: &ClassCreate) -> Result<ClassView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/classes")), create)
    }

    pub fn class_set(&self, name: &ClassName, set: &ClassSet) -> Result<ClassView, ClientError> {
        let path = format!("/api/v1/classes/{name}");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn class_delete(&self, name: &ClassName) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/classes/{name}")).map(drop)
    }

    pub fn tiers(&self) -> Result<TierList, ClientError> {
        self.get("/api/v1/tiers")
    }

    pub fn tier(&self, name: &TierName) -> Result<TierView, ClientError> {
        self.get(&format!("/api/v1/tiers/{name}"))
    }

    pub fn tier_add(&self, add: &TierAdd) -> Result<TierView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/tiers")), add)
    }

    pub fn tier_remove(&self, name: &TierName) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/tiers/{name}")).map(drop)
    }

    pub fn tier_check(
        &self,
        name: &TierName,
        from: &TierCheck,
    ) -> Result<TierChecked, ClientError> {
        let path = format!("/api/v1/tiers/{name}/check");
        self.call(self.agent.post(self.at(&path)), from)
    }

    pub fn limits(&self, volume: &VolumeName) -> Result<PartList, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/limits"))
    }

    pub fn limit_set(
        &self,
        volume: &VolumeName,
        limit: &PartLimit,
    ) -> Result<PartList, ClientError> {
        let path = format!("/api/v1/volumes/{volume}/limits");
        self.call(self.agent.put(self.at(&path)), limit)
    }

    pub fn limit_clear(
        &self,
        volume: &VolumeName,
        part: &VolumePart,
    ) -> Result<PartList, ClientError> {
        let part = part.to_string();
        let part = utf8_percent_encode(&part, NON_ALPHANUMERIC);
        let answer = self.delete(&format!("/api/v1/volumes/{volume}/limits?part={part}"))?;
        self.parse(&answer)
    }

    pub fn exports(&self) -> Result<ExportList, ClientError> {
        self.get("/api/v1/exports")
    }

    pub fn export_set(
        &self,
        volume: &VolumeName,
        set: &ExportSet,
    ) -> Result<ExportView, ClientError> {
        let path = format!("/api/v1/exports/{volume}");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn export_remove(
        &self,
        volume: &VolumeName,
        clients: &[ClientNet],
    ) -> Result<ExportView, ClientError> {
        let mut path = format!("/api/v1/exports/{volume}");
        for (index, client) in clients.iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            path.push_str(&format!("{separator}client={client}"));
        }
        let answer = self.send(|agent| self.authorized(agent.delete(self.at(&path))).call())?;
        self.parse(&answer)
    }

    pub fn snapshots(&self, volume: &VolumeName, space: bool) -> Result<SnapshotList, ClientError> {
        let path = format!("/api/v1/volumes/{volume}/snapshots?space={space}");
        self.all(&path, "snapshots")
    }

    pub fn snapshot(&self, volume: &VolumeName, name: &str) -> Result<SnapshotView, ClientError> {
        self.get(&snapshot_path(volume, name)?)
    }

    pub fn snapshot_create(
        &self,
        volume: &VolumeName,
        create: &SnapshotCreate,
    ) -> Result<SnapshotView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/snapshots"));
        self.call(self.agent.post(path), create)
    }

    pub fn snapshot_create_group(
        &self,
        create: &GroupSnapshotCreate,
    ) -> Result<GroupSnapshotView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/snapshots")), create)
    }

    pub fn snapshot_set(
        &self,
        volume: &VolumeName,
        name: &str,
        set: &SnapshotSet,
    ) -> Result<SnapshotView, ClientError> {
        let path = self.at(&snapshot_path(volume, name)?);
        self.call(self.agent.patch(path), set)
    }

    pub fn snapshot_restore(
        &self,
        volume: &VolumeName,
        name: &str,
        restore: &SnapshotRestore,
    ) -> Result<RestoredView, ClientError> {
        let path = self.at(&format!("{}/restore", snapshot_path(volume, name)?));
        self.call(self.agent.post(path), restore)
    }

    pub fn volume_restore(
        &self,
        volume: &VolumeName,
        name: &str,
        restore: &VolumeRestore,
    ) -> Result<VolumeRestoredView, ClientError> {
        let path = self.at(&format!("{}/restore-volume", snapshot_path(volume, name)?));
        self.call(self.agent.post(path), restore)
    }

    pub fn snapshot_diff(
        &self,
        volume: &VolumeName,
        name: &str,
        ask: &SnapshotDiffAsk,
    ) -> Result<SnapshotDiffPage, ClientError> {
        let path = self.at(&format!("{}/diff", snapshot_path(volume, name)?));
        self.call(self.agent.post(path), ask)
    }

    pub fn schedules(&self, volume: &VolumeName) -> Result<SchedulesView, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/schedules"))
    }

    pub fn schedules_set(
        &self,
        volume: &VolumeName,
        set: &SchedulesSet,
    ) -> Result<SchedulesView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/schedules"));
        self.call(self.agent.put(path), set)
    }

    pub fn clone_create(
        &self,
        volume: &VolumeName,
        create: &CloneCreate,
    ) -> Result<RestoredView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/clones"));
        self.call(self.agent.post(path), create)
    }

    pub fn snapshot_delete(&self, volume: &VolumeName, name: &str) -> Result<(), ClientError> {
        self.delete(&snapshot_path(volume, name)?).map(drop)
    }

    pub fn policies(&self, volume: &VolumeName) -> Result<PolicyList, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/policies"))
    }

    pub fn policy(&self, volume: &VolumeName, path: &str) -> Result<PolicyView, ClientError> {
        self.get(&policy_path(volume, path))
    }

    pub fn policy_set(
        &self,
        volume: &VolumeName,
        set: &PolicySet,
    ) -> Result<PolicyView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/policies"));
        self.call(self.agent.put(path), set)
    }

    pub fn policy_clear(&self, volume: &VolumeName, path: &str) -> Result<(), ClientError> {
        self.delete(&policy_path(volume, path)).map(drop)
    }

    /// How the conversion of existing data stands, or how the last one ended.
    pub fn apply(&self, volume: &VolumeName) -> Result<ApplyView, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/policy/apply"))
    }

    pub fn apply_start(
        &self,
        volume: &VolumeName,
        start: &ApplyStart,
    ) -> Result<ApplyView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/policy/apply"));
        self.call(self.agent.post(path), start)
    }

    pub fn apply_cancel(&self, volume: &VolumeName) -> Result<(), ClientError> {
        let path = format!("/api/v1/volumes/{volume}/policy/apply");
        self.delete(&path).map(drop)
    }

    pub fn activity(&self, volume: &VolumeName) -> Result<ActivityView, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/activity"))
    }

    pub fn jobs(&self) -> Result<JobList, ClientError> {
        self.get("/api/v1/jobs")
    }

    pub fn activities(&self) -> Result<ActivityList, ClientError> {
        self.get("/api/v1/activity")
    }

    pub fn quotas(&self, volume: &VolumeName) -> Result<QuotaList, ClientError> {
        self.get(&format!("/api/v1/volumes/{volume}/quotas"))
    }

    pub fn quota_usages(
        &self,
        volume: &VolumeName,
        at: &QuotaAt,
    ) -> Result<QuotaList, ClientError> {
        self.get(&quota_path(volume, "quota/usages", at))
    }

    pub fn quota(&self, volume: &VolumeName, at: &QuotaAt) -> Result<QuotaView, ClientError> {
        self.get(&quota_path(volume, "quota", at))
    }

    pub fn quota_set(&self, volume: &VolumeName, set: &QuotaSet) -> Result<QuotaView, ClientError> {
        let path = self.at(&format!("/api/v1/volumes/{volume}/quotas"));
        self.call(self.agent.put(path), set)
    }

    pub fn quota_remove(&self, volume: &VolumeName, at: &QuotaAt) -> Result<(), ClientError> {
        self.delete(&quota_path(volume, "quota", at)).map(drop)
    }

    pub fn buckets(&self) -> Result<BucketList, ClientError> {
        self.all("/api/v1/buckets", "buckets")
    }

    pub fn bucket_create(&self, create: &BucketCreate) -> Result<BucketView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/buckets")), create)
    }

    pub fn bucket_set(&self, name: &str, set: &BucketSet) -> Result<BucketView, ClientError> {
        let path = format!("/api/v1/buckets/{name}");
        self.call(self.agent.patch(self.at(&path)), set)
    }

    pub fn bucket_delete(&self, name: &str, keep: bool) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/buckets/{name}?keep={keep}"))
            .map(drop)
    }

    pub fn access_keys(&self) -> Result<AccessKeyList, ClientError> {
        self.all("/api/v1/s3/keys", "keys")
    }

    pub fn access_key_create(
        &self,
        create: &AccessKeyCreate,
    ) -> Result<AccessKeyView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/s3/keys")), create)
    }

    pub fn access_key_revoke(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/s3/keys/{id}")).map(drop)
    }

    pub fn luns(&self) -> Result<LunList, ClientError> {
        self.all("/api/v1/luns", "luns")
    }

    /// `lun` is `VOLUME/NAME`.
    pub fn lun(&self, lun: &str) -> Result<LunView, ClientError> {
        self.get(&format!("/api/v1/luns/{lun}"))
    }

    pub fn lun_create(&self, create: &LunCreate) -> Result<LunView, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/luns")), create)
    }

    pub fn lun_clone(&self, lun: &str, clone: &LunClone) -> Result<LunView, ClientError> {
        let path = format!("/api/v1/luns/{lun}/clone");
        self.call(self.agent.post(self.at(&path)), clone)
    }

    pub fn lun_restore(&self, lun: &str, restore: &LunRestore) -> Result<LunView, ClientError> {
        let path = format!("/api/v1/luns/{lun}/restore");
        self.call(self.agent.post(self.at(&path)), restore)
    }

    pub fn lun_set(&self, lun: &str, set: &LunSet) -> Result<LunView, ClientError> {
        let path = format!("/api/v1/luns/{lun}");
        self.call(self.agent.patch(self.at(&path)), set)
    }

    pub fn lun_delete(&self, lun: &str, force: bool) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/luns/{lun}?force={force}"))
            .map(drop)
    }

    pub fn lun_map(
        &self,
        lun: &str,
        igroup: &str,
        map: &LunMapSet,
    ) -> Result<LunView, ClientError> {
        let path = format!("/api/v1/luns/{lun}/maps/{igroup}");
        self.call(self.agent.put(self.at(&path)), map)
    }

    pub fn lun_unmap(&self, lun: &str, igroup: &str) -> Result<LunView, ClientError> {
        let answer = self.delete(&format!("/api/v1/luns/{lun}/maps/{igroup}"))?;
        self.parse(&answer)
    }

    pub fn igroups(&self) -> Result<IgroupList, ClientError> {
        self.get("/api/v1/igroups")
    }

    /// `igroup` is `VOLUME/NAME`.
    pub fn igroup_set(&self, igroup: &str, set: &IgroupSet) -> Result<IgroupView, ClientError> {
        let path = format!("/api/v1/igroups/{igroup}");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn igroup_remove(&self, igroup: &str) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/igroups/{igroup}")).map(drop)
    }

    pub fn initiators(&self) -> Result<InitiatorList, ClientError> {
        self.get("/api/v1/initiators")
    }

    pub fn initiator_set(
        &self,
        volume: &VolumeName,
        initiator: &str,
        set: &InitiatorSet,
    ) -> Result<InitiatorView, ClientError> {
        let path = format!("/api/v1/initiators/{volume}/{initiator}");
        self.call(self.agent.put(self.at(&path)), set)
    }

    pub fn initiator_remove(
        &self,
        volume: &VolumeName,
        initiator: &str,
    ) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/initiators/{volume}/{initiator}"))
            .map(drop)
    }

    pub fn sessions(&self) -> Result<SessionList, ClientError> {
        self.get("/api/v1/iscsi/sessions")
    }

    fn delete(&self, path: &str) -> Result<String, ClientError> {
        self.send(|agent| self.authorized(agent.delete(self.at(path))).call())
    }

    fn post_nothing(&self, path: &str) -> Result<String, ClientError> {
        self.send(|agent| self.authorized(agent.post(self.at(path))).send_empty())
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match self.authorization.as_deref() {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.send(|agent| self.authorized(agent.get(self.at(path))).call())?;
        self.parse(&answer)
    }

    /// All entries of a list that may be long, page after page: no answer is longer than one. `entries` is the field that has
    /// them.
    fn all<T: DeserializeOwned>(&self, path: &str, entries: &str) -> Result<T, ClientError> {
        let mut whole: Option<Value> = None;
        let mut after: Option<String> = None;
        let sign = if path.contains('?') { '&' } else { '?' };
        loop {
            let from = after.as_deref().map_or_else(String::new, |after| {
                format!("&after={}", utf8_percent_encode(after, NON_ALPHANUMERIC))
            });
            let page = format!("{path}{sign}limit={ENTRIES_OF_A_PAGE_MAX}{from}");
            let mut page: Value = self.get(&page)?;
            let next = page
                .get("next_after")
                .and_then(Value::as_str)
                .map(str::to_owned);
            whole = Some(match whole {
                None => page,
                Some(mut whole) => {
                    let more = page.get_mut(entries).and_then(Value::as_array_mut);
                    let all = whole.get_mut(entries).and_then(Value::as_array_mut);
                    if let (Some(all), Some(more)) = (all, more) {
                        all.append(more);
                    }
                    whole
                }
            });
            // One that says the same again would go on for ever.
            if next.is_none() || next == after {
                let mut whole = whole.unwrap_or_default();
                if let Some(whole) = whole.as_object_mut() {
                    // Of the first page.
                    whole.remove("next_after");
                }
                return self.parse(&whole.to_string());
            }
            after = next;
        }
    }

    fn call<T: DeserializeOwned>(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        // It may have to be sent again.
        let method = request.method_ref().cloned();
        let uri = request.uri_ref().map(ToString::to_string);
        let uri = uri.unwrap_or_default();
        let answer = self.send(|agent| {
            let request = match &method {
                Some(method) if *method == Method::PUT => agent.put(uri.as_str()),
                Some(method) if *method == Method::PATCH => agent.patch(uri.as_str()),
                _ => agent.post(uri.as_str()),
            };
            self.authorized(request).send_json(body)
        })?;
        self.parse(&answer)
    }

    /// Sends a request and returns the body of its success. A change that the server did not make, because a volume moves or is
    /// being opened, is sent again for a while: the server does not do so itself, for it cannot know whether it is still wanted.
    fn send(
        &self,
        request: impl Fn(&ureq::Agent) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, ClientError> {
        let until = Instant::now() + AGAIN_MAX;
        loop {
            match self.send_once(&request) {
                Ok(Sent::Answered(answer)) => return answer,
                Ok(Sent::NotNow { again, .. }) if is_before(again, until) => {
                    std::thread::sleep(again);
                }
                Ok(Sent::NotNow { answer, .. }) => return answer,
                Err(error) => return Err(error),
            }
        }
    }

    fn send_once(
        &self,
        request: impl Fn(&ureq::Agent) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Sent, ClientError> {
        let unreachable = |error: ureq::Error| ClientError::Unreachable {
            url: self.url.clone(),
            why: match error {
                ureq::Error::Io(error) => error.to_string(),
                error => error.to_string(),
            },
        };
        let mut response = request(&self.agent).map_err(unreachable)?;
        let status = response.status();
        let again = response.headers().get(ureq::http::header::RETRY_AFTER);
        let again = again.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let again = again.map(Duration::from_secs);
        let is_not_now = status == ureq::http::StatusCode::SERVICE_UNAVAILABLE;
        let body = response
            .body_mut()
            .with_config()
            .limit(ANSWER_LEN_BYTES_MAX)
            .read_to_string()
            .map_err(unreachable)?;
        if status.is_success() {
            return Ok(Sent::Answered(Ok(body)));
        }
        let answer = match serde_json::from_str::<ErrorBody>(&body) {
            Ok(refusal) => Err(ClientError::Refused(refusal.error)),
            Err(_) => Err(ClientError::NotUnderstood {
                url: self.url.clone(),
                why: format!("status {status}"),
            }),
        };
        Ok(match again.filter(|_| is_not_now) {
            Some(again) => Sent::NotNow { again, answer },
            None => Sent::Answered(answer),
        })
    }

    fn parse<T: DeserializeOwned>(&self, body: &str) -> Result<T, ClientError> {
        serde_json::from_str(body).map_err(|error| ClientError::NotUnderstood {
            url: self.url.clone(),
            why: error.to_string(),
        })
    }
}

impl ClientError {
    /// The server's kind, when it was the server that said no.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused(detail) => Some(detail.kind),
            Self::Unreachable { .. } | Self::Certificates(_) | Self::NotUnderstood { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Reads one request to its end, and returns its first line and its body.
    fn request(stream: &mut TcpStream) -> (String, String) {
        let mut text = String::new();
        loop {
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let mut lines = head.lines();
                let first = lines.next().unwrap_or_default().to_owned();
                let length = lines.find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    let is_it = name.eq_ignore_ascii_case("content-length");
                    is_it.then(|| value.trim().parse::<usize>().unwrap())
                });
                if body.len() >= length.unwrap_or(0) {
                    return (first, body.to_owned());
                }
            }
            let mut part = [0; 1024];
            let len = stream.read(&mut part).unwrap();
            assert!(len > 0, "{text}");
            text.push_str(std::str::from_utf8(&part[..len]).unwrap());
        }
    }

    fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &str) {
        let len = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n");
        let text = format!("{head}{headers}\r\n{body}");
        stream.write_all(text.as_bytes()).unwrap();
    }

    /// A change is sent again, as it was, when the server says that it did not make it and when to come again; nothing else is.
    #[test]
    fn what_the_server_could_not_do_yet_is_sent_again() {
        let refusal = r#"{"error": {"kind": "unavailable", "message": "it moves"}}"#;
        for (headers, times) in [
            ("retry-after: 0\r\n", 3),
            ("", 1),
            ("retry-after: 99999999999999999999\r\n", 1),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let serving = std::thread::spawn(move || {
                let mut asked = Vec::new();
                for nth in 1..=times {
                    let (mut stream, _) = listener.accept().unwrap();
                    asked.push(request(&mut stream));
                    match nth == 3 {
                        true => answer(&mut stream, "200 OK", "", "{\"paused\": true}"),
                        false => answer(&mut stream, "503 Service Unavailable", headers, refusal),
                    }
                }
                asked
            });
            let client = Client::new(&url, None, None).unwrap();
            let path = client.agent.put(client.at("/api/v1/spread"));
            let answered: Result<Value, ClientError> =
                client.call(path, &SpreadSet { paused: true });
            assert_eq!(answered.is_ok(), times == 3, "{answered:?}");
            let asked = serving.join().unwrap();
            assert_eq!(asked.len(), times);
            for (first, body) in asked {
                assert!(first.starts_with("PUT /api/v1/spread "), "{first}");
                assert!(serde_json::from_str::<SpreadSet>(&body).unwrap().paused);
            }
        }
    }
}
