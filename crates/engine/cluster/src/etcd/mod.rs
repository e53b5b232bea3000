//! The consensus store over the network: etcd 3.4 or newer.
//!
//! Owns: connections to several members, deadlines, which member is asked next, and what etcd's errors mean.
//! Must not know: what the keys mean.
//!
//! Each member has a connection of its own. One is asked for as long as it answers, then the next one. Only what cannot
//! have been done is sent to another member by itself.

mod errors;
mod rights;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use cairn_base::env::BoxFuture;
use etcd_client::{
    Certificate, Client, CompareOp, ConnectOptions, DeleteOptions, GetOptions, Identity, KeyValue,
    TlsOptions, TxnOp, TxnOpResponse,
};
use tokio::time::{Instant, sleep, timeout};

use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, Key, KeyRange, LeaseGrant, LeaseId, Op, Outcome,
    RangeReply, Revision, Txn, TxnReply, Watcher,
};
use errors::Failure;
pub use rights::UserRights;

/// The oldest etcd that Cairn works with.
pub const VERSION_MIN: &str = "3.4";
/// etcd closes connections that ask for a sign of life more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait after all members were asked in vain.
const ROUND_WAIT: Duration = Duration::from_millis(100);
/// A member has so long to renew a lease before the next one is asked, and so much longer in every second round. A member that
/// follows a leader that is gone says nothing until it gives up, and a lease does not last that long.
const RENEWAL_TIMEOUT_STEP: Duration = Duration::from_millis(400);

/// Where etcd is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// The client addresses of the members: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    pub tls: Option<EtcdTls>,
    /// Name and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// How long one member may take to answer before another one is asked.
    pub attempt_timeout: Duration,
    /// How long a request may take in all.
    pub request_timeout: Duration,
}

/// Certificates and keys as PEM.
#[derive(Clone)]
pub struct EtcdTls {
    pub ca: Vec<u8>,
    /// The certificate and key of this client, if etcd asks for one.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}

impl EtcdSettings {
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            tls: None,
            user: None,
            attempt_timeout: Duration::from_millis(1500),
            request_timeout: Duration::from_secs(5),
        }
    }
}

/// A connection to etcd; cheap to clone.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<EtcdCore>,
}

struct EtcdCore {
    settings: EtcdSettings,
    tls: ArcSwapOption<EtcdTls>,
    members: ArcSwap<Vec<Arc<Member>>>,
    /// Counts the turns: modulo the number of members it is the one that is asked.
    current: AtomicUsize,
}

struct Member {
    endpoint: String,
    /// Made at its first use: with a user, that already asks the member.
    client: tokio::sync::OnceCell<Client>,
}

/// A member of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMemberInfo {
    pub id: u64,
    /// Empty until it was started.
    pub name: String,
    pub peer_urls: Vec<String>,
    /// Empty until it was started.
    pub client_urls: Vec<String>,
}

impl EtcdMemberInfo {
    fn of(member: &etcd_client::Member) -> Self {
        Self {
            id: member.id(),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
        }
    }
}

impl Member {
    fn new(endpoint: &str) -> Arc<Self> {
        Arc::new(Self {
            endpoint: endpoint.to_owned(),
            client: tokio::sync::OnceCell::new(),
        })
    }
}

impl EtcdCore {
    /// Whose turn it is, how many there are, and the member that is asked.
    fn current_member(&self) -> (usize, usize, Arc<Member>) {
        let members = self.members.load_full();
        let turn = self.current.load(Ordering::Relaxed);
        let member = Arc::clone(&members[turn % members.len()]);
        (turn, members.len(), member)
    }
}

/// Whether a request may be sent again although it may have been done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Harmless,
    OnlyIfNotDone,
}

impl Etcd {
    /// Checks that at least one member answers, that those which do are of one cluster and new enough, and that no
    /// alarm is raised.
    pub async fn connect(settings: EtcdSettings) -> Result<Self, CoordinatorError> {
        if settings.endpoints.is_empty() {
            let message = "no address of etcd is given".to_owned();
            return Err(CoordinatorError::BadSettings(message));
        }
        if settings.tls.is_none() && settings.endpoints.iter().any(|e| e.starts_with("https://")) {
            let message =
                "an address begins with https://, but no CA certificate is given".to_owned();
            return Err(CoordinatorError::BadSettings(message));
        }
        let members = settings.endpoints.iter().map(|it| Member::new(it));
        let etcd = Self {
            shared: Arc::new(EtcdCore {
                members: ArcSwap::from_pointee(members.collect()),
                tls: ArcSwapOption::from_pointee(settings.tls.clone()),
                settings,
                current: AtomicUsize::new(0),
            }),
        };
        etcd.check().await?;
        Ok(etcd)
    }

    /// Asks these members from now on; watches move to them with their next connection. None: as before.
    pub fn set_endpoints(&self, endpoints: &[String]) {
        let before = self.shared.members.load_full();
        let member = |endpoint: &String| {
            let known = before.iter().find(|member| member.endpoint == *endpoint);
            known.cloned().unwrap_or_else(|| Member::new(endpoint))
        };
        let members: Vec<Arc<Member>> = endpoints.iter().map(member).collect();
        let is_same = members.len() == before.len()
            && members
                .iter()
                .zip(before.iter())
                .all(|(one, other)| Arc::ptr_eq(one, other));
        if !members.is_empty() && !is_same {
            self.shared.members.store(Arc::new(members));
        }
    }

    /// The members that are asked now, and what they are shown.
    pub fn access(&self) -> (Vec<String>, Option<EtcdTls>) {
        let members = self.shared.members.load();
        let endpoints = members.iter().map(|member| member.endpoint.clone());
        let tls = self.shared.tls.load();
        (endpoints.collect(), tls.as_deref().cloned())
    }

    /// Shows another certificate from now on; connections that there are go on.
    pub fn set_tls(&self, tls: EtcdTls) {
        self.shared.tls.store(Some(Arc::new(tls)));
        let before = self.shared.members.load_full();
        let anew = before.iter().map(|member| Member::new(&member.endpoint));
        self.shared.members.store(Arc::new(anew.collect()));
    }

    /// The members of the etcd cluster, as most of them see it.
    pub async fn members(&self) -> Result<Vec<EtcdMemberInfo>, CoordinatorError> {
        let asked = self.call(
            "asking for its members",
            Repeat::Harmless,
            |mut client| async move { client.member_list().await },
        );
        let reply = asked.await.map_err(|failure| failure.error)?;
        Ok(reply.members().iter().map(EtcdMemberInfo::of).collect())
    }

    /// The members, and of each why it does not count, if so: it does not answer in time, has no leader, or raised an alarm.
    pub async fn member_states(
        &self,
    ) -> Result<Vec<(EtcdMemberInfo, Option<CoordinatorError>)>, CoordinatorError> {
        let members = self.members().await?;
        let states = members.into_iter().map(|info| async move {
            let problem = match info.client_urls.first() {
                // Connections are those by which it is asked for everything else.
                Some(url) => self.check_at(url).await.err(),
                None => Some(CoordinatorError::Unreachable(
                    "it was added and did not start yet".to_owned(),
                )),
            };
            (info, problem)
        });
        Ok(futures_util::future::join_all(states).await)
    }

    /// Asks the member at an address how it is.
    pub async fn check_at(&self, endpoint: &str) -> Result<(), CoordinatorError> {
        let known = self.shared.members.load_full();
        let known = known.iter().find(|member| member.endpoint == endpoint);
        let member = known.cloned().unwrap_or_else(|| Member::new(endpoint));
        self.check_member(&member).await.map(drop)
    }

    /// Adds a member that is to be started next; the members with it. etcd refuses it while one of the others is not well.
    pub async fn add_member(
        &self,
        peer_url: &str,
    ) -> Result<Vec<EtcdMemberInfo>, CoordinatorError> {
        let asked = self.call("adding a member", Repeat::OnlyIfNotDone, |mut client| {
            let peer_url = peer_url.to_owned();
            async move { client.member_add([peer_url], None).await }
        });
        let reply = asked.await.map_err(|failure| failure.error)?;
        Ok(reply.member_list().iter().map(EtcdMemberInfo::of).collect())
    }

    /// Removes a member; its process ends by itself.
    pub async fn remove_member(&self, id: u64) -> Result<(), CoordinatorError> {
        let asked = self.call(
            "removing a member",
            Repeat::OnlyIfNotDone,
            |mut client| async move { client.member_remove(id).await },
        );
        asked.await.map(drop).map_err(|failure| failure.error)
    }

    /// Asks all members how they are. Fine if at least one answers and none says that something is wrong.
    pub async fn check(&self) -> Result<(), CoordinatorError> {
        let members = self.shared.members.load_full();
        let statuses = members.iter().map(|member| self.check_member(member));
        let statuses = futures_util::future::join_all(statuses).await;
        let mut clusters: Vec<(u64, &str)> = Vec::new();
        let mut unreachable: Vec<String> = Vec::new();
        let mut worst = None;
        for (member, status) in members.iter().zip(statuses) {
            match status {
                Ok(cluster) => clusters.push((cluster, &member.endpoint)),
                Err(error) if error.kind() == crate::ErrorKind::Retry => {
                    unreachable.push(format!("{}: {error}", member.endpoint));
                    worst.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(&(first, _)) = clusters.first() else {
            return Err(match worst {
                // One member's words are clearer than a list with one entry.
                Some(error) if unreachable.len() == 1 => error,
                Some(error @ CoordinatorError::NoLeader(_)) => error,
                _ => CoordinatorError::Unreachable(unreachable.join("; ")),
            });
        };
        if clusters.iter().any(|(cluster, _)| *cluster != first) {
            let list: Vec<String> = clusters
                .iter()
                .map(|(cluster, endpoint)| format!("{endpoint} is of {cluster:016x}"))
                .collect();
            return Err(CoordinatorError::DifferentClusters(list.join(", ")));
        }
        Ok(())
    }

    /// The id of the etcd cluster that a member belongs to.
    async fn check_member(&self, member: &Member) -> Result<u64, CoordinatorError> {
        let endpoint = member.endpoint.clone();
        let status = self
            .attempt(member, "asking for its state", |mut client| async move {
                client.status().await
            })
            .await
            .map_err(|failure| failure.error)?;
        if !is_at_least(status.version(), VERSION_MIN) {
            return Err(CoordinatorError::WrongVersion {
                endpoint,
                version: status.version().to_owned(),
                wanted: VERSION_MIN,
            });
        }
        if let Some(error) = errors::of_alarms(&endpoint, status.errors()) {
            return Err(error);
        }
        if status.leader() == 0 {
            return Err(CoordinatorError::NoLeader(endpoint));
        }
        status
            .header()
            .map(|header| header.cluster_id())
            .ok_or_else(|| {
                CoordinatorError::Other(format!("{endpoint} sent a reply without a header"))
            })
    }

    async fn client(&self, member: &Member) -> Result<Client, Failure> {
        let connect = || async {
            let options = self.options()?;
            Client::connect([member.endpoint.as_str()], Some(options))
                .await
                .map_err(|error| errors::of(&member.endpoint, error).before_sending())
        };
        member.client.get_or_try_init(connect).await.cloned()
    }

    fn options(&self) -> Result<ConnectOptions, Failure> {
        let settings = &self.shared.settings;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(settings.attempt_timeout)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_auto_token_refresh(true)
            // A member that the others do not reach must say so instead of keeping quiet.
            .with_require_leader(true);
        if let Some((user, password)) = &settings.user {
            options = options.with_user(user, password);
        }
        if let Some(tls) = self.shared.tls.load_full() {
            let mut with = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.client {
                with = with.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(with);
        }
        Ok(options)
    }

    /// Asks one member once.
    async fn attempt<T, F>(
        &self,
        member: &Member,
        what: &str,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let after = self.shared.settings.attempt_timeout;
        self.attempt_within(member, what, after, request).await
    }

    async fn attempt_within<T, F>(
        &self,
        member: &Member,
        what: &str,
        after: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let endpoint = &member.endpoint;
        let timed_out = || CoordinatorError::TimedOut {
            what: format!("{what}, {endpoint}"),
            after,
        };
        let client = timeout(after, self.client(member))
            .await
            .map_err(|_| Failure::new(timed_out(), false))??;
        match timeout(after, request(client)).await {
            Ok(result) => result.map_err(|error| errors::of(endpoint, error)),
            Err(_) => Err(Failure::new(timed_out(), true)),
        }
    }

    /// Asks members until one answers or the time is over.
    async fn call<T, F>(
        &self,
        what: &str,
        repeat: Repeat,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let step = self.shared.settings.attempt_timeout;
        self.call_in_steps(what, repeat, step, request).await
    }

    /// Asks members until one answers or the time is over. Each member may take one step, and one step more in
    /// every second round, up to the limit for one member.
    async fn call_in_steps<T, F>(
        &self,
        what: &str,
        repeat: Repeat,
        step: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + self.shared.settings.request_timeout;
        for attempt in 1.. {
            let (turn, count, member) = self.shared.current_member();
            let round = u32::try_from((attempt - 1) / count + 1).unwrap_or(u32::MAX);
            // Not sooner: the member that hangs has its turn in each round, and a lease does not outlive long ones.
            let after = step.saturating_mul(round.div_ceil(2));
            let after = after.min(self.shared.settings.attempt_timeout);
            let asked = self.attempt_within(&member, what, after, &request);
            let failure = match asked.await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if !failure.another_member_may_help {
                return Err(failure);
            }
            // If somebody else moved on meanwhile, that will do.
            let _ = self.shared.current.compare_exchange(
                turn,
                turn.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            let unsafe_to_repeat = failure.maybe_done && repeat == Repeat::OnlyIfNotDone;
            if unsafe_to_repeat || Instant::now() >= deadline {
                return Err(failure);
            }
            if attempt % count == 0 {
                sleep(ROUND_WAIT).await;
            }
        }
        unreachable!("the loop only ends by returning")
    }
}

/// Whether a version as `3.4.23` is not older than one as `3.4`.
pub(crate) fn is_at_least(version: &str, wanted: &str) -> bool {
    let parse = |text: &str| {
        let mut parts = text
            .split(['.', '-', '+'])
            .map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    };
    match (parse(version), parse(wanted)) {
        (Some(version), Some(wanted)) => version >= wanted,
        _ => false,
    }
}

/// etcd's numbers are signed, but never negative.
fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

fn header_revision(header: Option<&etcd_client::ResponseHeader>) -> Revision {
    header.map_or(Revision::ABSENT, |header| revision(header.revision()))
}

fn entry(from: &KeyValue) -> Entry {
    Entry {
        // Somebody else's key, if anything: ours are text. It is shown, and found nowhere.
        key: Key::new(String::from_utf8_lossy(from.key())),
        value: from.value().to_vec(),
        created: revision(from.create_revision()),
        modified: revision(from.mod_revision()),
        version: u64::try_from(from.version()).unwrap_or(0),
        lease: (from.lease() != 0).then(|| LeaseId(from.lease())),
    }
}

fn entries(from: &[KeyValue]) -> Vec<Entry> {
    from.iter().map(entry).collect()
}

fn key_and_options(range: &KeyRange) -> (&str, Option<GetOptions>) {
    match range {
        KeyRange::One(key) => (key.as_str(), None),
        KeyRange::Prefix(prefix) => (prefix, Some(GetOptions::new().with_prefix())),
    }
}

fn compare_of(compare: &Compare) -> etcd_client::Compare {
    use etcd_client::Compare as Etcd;
    match compare {
        Compare::Value(key, value) => Etcd::value(key.as_str(), CompareOp::Equal, value.as_slice()),
        Compare::Modified(key, revision) => {
            Etcd::mod_revision(key.as_str(), CompareOp::Equal, number(*revision))
        }
        Compare::Created(key, revision) => {
            Etcd::create_revision(key.as_str(), CompareOp::Equal, number(*revision))
        }
        Compare::Version(key, version) => Etcd::version(
            key.as_str(),
            CompareOp::Equal,
            i64::try_from(*version).unwrap_or(i64::MAX),
        ),
        Compare::Lease(key, lease) => Etcd::lease(
            key.as_str(),
            CompareOp::Equal,
            lease.map_or(0, |lease| lease.0),
        ),
    }
}

fn get_of(range: &KeyRange) -> TxnOp {
    let (key, options) = key_and_options(range);
    TxnOp::get(key, options)
}

fn op_of(op: &Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = lease.map(|lease| etcd_client::PutOptions::new().with_lease(lease.0));
            TxnOp::put(key.as_str(), value.as_slice(), options)
        }
        Op::Delete(KeyRange::One(key)) => TxnOp::delete(key.as_str(), None),
        Op::Delete(KeyRange::Prefix(prefix)) => {
            TxnOp::delete(prefix.as_str(), Some(DeleteOptions::new().with_prefix()))
        }
        Op::Get(range) => get_of(range),
    }
}

fn txn_of(txn: &Txn) -> etcd_client::Txn {
    etcd_client::Txn::new()
        .when(txn.when.iter().map(compare_of).collect::<Vec<_>>())
        .and_then(txn.then.iter().map(op_of).collect::<Vec<_>>())
        .or_else(txn.otherwise.iter().map(get_of).collect::<Vec<_>>())
}

/// The lease that a transaction puts its keys on; they are all on one.
fn lease_of(txn: &Txn) -> Option<LeaseId> {
    txn.then.iter().find_map(|op| match op {
        Op::Put { lease, .. } => *lease,
        _ => None,
    })
}

impl Coordinator for Etcd {
    fn range(&self, range: KeyRange) -> BoxFuture<Result<RangeReply, CoordinatorError>> {
        let etcd = self.clone();
        Box::pin(async move {
            let what = format!("reading {range}");
            let reply = etcd
                .call(&what, Repeat::Harmless, |mut client| {
                    let (key, options) = key_and_options(&range);
                    let key = key.to_owned();
                    async move { client.get(key, options).await }
                })
                .await
                .map_err(|failure| failure.error)?;
            Ok(RangeReply {
                revision: header_revision(reply.header()),
                entries: entries(reply.kvs()),
            })
        })
    }

    fn transact(&self, txn: Txn) -> BoxFuture<Outcome> {
        let etcd = self.clone();
        Box::pin(async move {
            if let Err(error) = txn.check() {
                return Outcome::Failed(error);
            }
            let reply = etcd
                .call("a transaction", Repeat::OnlyIfNotDone, |mut client| {
                    let txn = txn_of(&txn);
                    async move { client.txn(txn).await }
                })
                .await;
            let reply = match reply {
                Ok(reply) => reply,
                Err(failure) if failure.maybe_done => return Outcome::Unknown(failure.error),
                Err(failure) => return Outcome::Failed(failure.naming_lease(lease_of(&txn))),
            };
            let reads = reply.op_responses().into_iter().filter_map(|op| match op {
                TxnOpResponse::Get(get) => Some(entries(get.kvs())),
                _ => None,
            });
            let txn_reply = TxnReply {
                revision: header_revision(reply.header()),
                reads: reads.collect(),
            };
            if reply.succeeded() {
                Outcome::Done(txn_reply)
            } else {
                Outcome::Refused(txn_reply)
            }
        })
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
        let etcd = self.clone();
        Box::pin(async move {
            let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
            // A lease that was granted twice ends by itself.
            let reply = etcd
                .call(
                    "granting a lease",
                    Repeat::Harmless,
                    |mut client| async move { client.lease_grant(seconds, None).await },
                )
                .await
                .map_err(|failure| failure.error)?;
            Ok(LeaseGrant {
                id: LeaseId(reply.id()),
                ttl: Duration::from_secs(u64::try_from(reply.ttl()).unwrap_or(0)),
            })
        })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<Result<LeaseGrant, CoordinatorError>> {
        let etcd = self.clone();
        Box::pin(async move {
            let ttl = etcd
                .call_in_steps(
                    "renewing a lease",
                    Repeat::Harmless,
                    RENEWAL_TIMEOUT_STEP,
                    |mut client| async move {
                        // The first reply is read here, and only it says how long the lease lasts now.
                        let (mut keeper, mut replies) = client.lease_keep_alive(lease.0).await?;
                        keeper.keep_alive().await?;
                        Ok(replies.message().await?.map_or(0, |reply| reply.ttl()))
                    },
                )
                .await
                .map_err(|failure| failure.naming_lease(Some(lease)))?;
            match u64::try_from(ttl) {
                Ok(seconds) if seconds > 0 => Ok(LeaseGrant {
                    id: lease,
                    ttl: Duration::from_secs(seconds),
                }),
                _ => Err(CoordinatorError::LeaseNotFound(lease)),
            }
        })
    }

    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<Result<(), CoordinatorError>> {
        let etcd = self.clone();
        Box::pin(async move {
            let result = etcd
                .call(
                    "ending a lease",
                    Repeat::Harmless,
                    |mut client| async move { client.lease_revoke(lease.0).await },
                )
                .await;
            match result.map_err(|failure| failure.naming_lease(Some(lease))) {
                Ok(_) | Err(CoordinatorError::LeaseNotFound(_)) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn watch(&self, range: KeyRange, from: Revision) -> Box<dyn Watcher> {
        Box::new(watch::EtcdWatcher::new(self.clone(), range, from))
    }
}

#[cfg(test)]
mod tests {
    use super::is_at_least;

    #[test]
    fn versions_are_compared_by_number() {
        for (version, wanted, want) in [
            ("3.4.23", "3.4", true),
            ("3.4.0-rc.1", "3.4", true),
            ("3.10.1", "3.4", true),
            ("4.0.0", "3.4", true),
            ("3.3.27", "3.4", false),
            ("2.3.8", "3.4", false),
            ("", "3.4", false),
            ("new", "3.4", false),
        ] {
            assert_eq!(is_at_least(version, wanted), want, "{version}");
        }
    }
}
