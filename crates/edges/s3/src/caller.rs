//! The caller of a request, and its rights.
//!
//! Owns: access keys, the rights of a request without one, and the verdict on each operation, from policies, keys and
//! ACLs. Must not know: the work of an operation.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_codec_s3::Policy;
use cairn_codec_s3::signed::{self, Refused};
use cairn_forward::{Mark, network_of};
use cairn_fs::Credentials;
use cairn_objects::{
    AccessKey, Arrival, Bucket, BucketSettings, Facet, ObjectError, ObjectInfo, Objects, Ticket,
};
use cairn_qos::Client;
use http::Extensions;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::Owner;
use s3s::{S3Error, S3Request, S3Result, s3_error};
use tokio::time::Instant;

use crate::account::Account;
use crate::errors::{deleted, told};
use crate::needs::{Denial, Facts, Granted, Judge, Need, ObjectName, On};
use crate::operations::{self, At, POST_OBJECT, Row};
use crate::places::Holder;
use crate::refused;
use crate::server::ServerCore;
use crate::service::Service;

/// Looks up secrets for signatures.
pub struct Keys(pub Arc<ServerCore>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let found = self.0.stores.access_key(access_key);
        let (objects, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        let secret = objects.secret_of(access_key, &key).map_err(|error| {
            tracing::debug!(%error, "a signature cannot be checked");
            s3_error!(
                ServiceUnavailable,
                "the secret of the access key cannot be read now: an operator has to look at the server's log"
            )
        })?;
        Ok(SecretKey::from(secret))
    }
}

/// Determines the caller and checks its rights, before an operation begins: a [`Caller`] travels with the request.
pub struct Access(pub Arc<ServerCore>);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let query = context.uri().query().unwrap_or_default();
        let (at, headers) = (At::of(context.s3_path()), context.headers());
        let row = operations::of_request(context.method(), at, query, headers)?;
        let taken_as = context.s3_op().name();
        if row.operation != taken_as {
            // A request that two parsers read differently is refused.
            return Err(s3_error!(
                NotImplemented,
                "this could be {} or {}; nothing was done",
                row.operation,
                taken_as
            ));
        }
        if row.operation == POST_OBJECT {
            // Forms are answered before they come here.
            return Err(denied());
        }
        let facts = Facts::of_request(context.s3_path(), query, headers)?;
        let id = context.credentials().map(|it| it.access_key.clone());
        let signed = context.extensions_mut().get::<Signed>();
        let id = id.or_else(|| signed.map(|signed| signed.key.clone()));
        let mut caller = match id {
            Some(id) => self.caller(id, context.extensions_mut())?,
            None if row.is_open => self.nobody(&facts.target.bucket, context.extensions_mut())?,
            None => return Err(denied()),
        };
        // Its signature was checked before.
        caller.show(context.extensions_mut().get::<Mark>());
        caller.begin(row, &facts.target);
        caller.needs_acl = caller.allow(row, &facts).await? == Granted::ByAcl;
        let expected = facts.expected_owner.as_deref();
        caller.require_owner(&facts.target, expected).await?;
        if let Some(source) = &facts.source {
            let expected = facts.expected_source_owner.as_deref();
            caller.require_owner(source, expected).await?;
        }
        if row.operation == DELETE_OBJECTS {
            caller.require_some_delete(&facts.target.bucket)?;
        }
        context.extensions_mut().insert(caller);
        Ok(())
    }
}

impl Access {
    /// The sender of a form: the access key that signed its policy, or an anonymous client.
    pub(crate) fn of_form(
        &self,
        id: Option<String>,
        bucket: &str,
        extensions: &Extensions,
    ) -> S3Result<Caller> {
        match id {
            Some(id) => self.caller(id, extensions),
            None => self.nobody(bucket, extensions),
        }
    }

    fn caller(&self, id: String, extensions: &Extensions) -> S3Result<Caller> {
        let found = self.0.stores.access_key(&id);
        let (objects, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        let who = key.credentials();
        Ok(self.made(objects, Some((id, key)), who, extensions))
    }

    /// A request without a signature is anonymous; a bucket may admit it.
    fn nobody(&self, bucket: &str, extensions: &Extensions) -> S3Result<Caller> {
        let found = self.0.stores.bucket(bucket);
        let bucket = found.ok_or_else(|| self.0.unknown(denied()))?;
        let who = Credentials {
            uid: NOBODY,
            gid: NOBODY,
            groups: Vec::new(),
            request: None,
        };
        Ok(self.made(Arc::clone(bucket.objects()), None, who, extensions))
    }

    fn made(
        &self,
        objects: Arc<Objects>,
        key: Option<(String, AccessKey)>,
        who: Credentials,
        extensions: &Extensions,
    ) -> Caller {
        // The counters for a request on these objects.
        let account = extensions.get::<Account>().cloned();
        if let Some(account) = &account {
            account.in_volume(|| self.0.stores.activity(objects.fs().volume()));
        }
        let name = key.as_ref().map_or("", |(id, _)| id.as_str());
        let address = extensions.get::<ClientAddress>();
        Caller {
            account,
            is_passed_on: extensions.get::<PassedOn>().is_some(),
            client: Client::named(name).from(address.map(|address| address.0)),
            address: address.map(|address| network_of(address.0)),
            objects,
            key,
            who,
            needs_acl: false,
            begun: None,
            ticket: None,
        }
    }
}

/// The access key that signed a request with an ignored range; travels with the request.
#[derive(Clone)]
pub(crate) struct Signed {
    pub key: String,
}

/// The address of the client; travels with the request.
#[derive(Clone, Copy)]
pub(crate) struct ClientAddress(pub IpAddr);

/// Another node forwarded the request; travels with it.
#[derive(Clone, Copy)]
pub(crate) struct PassedOn;

/// The caller of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub objects: Arc<Objects>,
    /// `None`: anonymous.
    key: Option<(String, AccessKey)>,
    pub who: Credentials,
    /// The rate that its transfers count for: that of the access key, and that of its address.
    pub client: Client,
    /// The client's network.
    address: Option<IpAddr>,
    /// For the view of clients' activity.
    pub account: Option<Account>,
    /// Whether another node, which has the client's connection, forwarded the request.
    pub is_passed_on: bool,
    /// Whether only the ACL of the object can admit it.
    needs_acl: bool,
    /// The place of the request's change in the order of changes.
    begun: Option<Arc<Arrival>>,
    /// That place for a request whose body names the objects.
    ticket: Option<Arc<Ticket>>,
}

/// Interval at which a slow request checks whether its access key is still valid.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The check that an access key is unchanged since its request began: revoking it also ends its running requests.
pub(crate) struct Permit {
    objects: Arc<Objects>,
    /// `None`: the request is anonymous.
    key: Option<String>,
    looked: Instant,
}

impl Permit {
    /// The time until the next check.
    pub fn next_look(&self) -> Duration {
        LOOK_EVERY.saturating_sub(self.looked.elapsed())
    }

    /// Refuses when the key was revoked. Checks at intervals, and in between uses the last result.
    pub fn require_still(&mut self) -> S3Result<()> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        require_still(&self.objects, self.key.as_deref())
    }
}

fn require_still(objects: &Objects, key: Option<&str>) -> S3Result<()> {
    match key {
        Some(id) if !objects.has_access_key(id) => Err(s3_error!(
            InvalidAccessKeyId,
            "the access key was revoked while the request was under way; it was not done"
        )),
        _ => Ok(()),
    }
}

/// The user of anonymous requests.
const NOBODY: u32 = 65_534;

const DELETE_OBJECTS: &str = "DeleteObjects";

pub(crate) fn denied() -> S3Error {
    Denial::Nobody.error()
}

/// The facts about a bucket for a verdict.
#[derive(Default)]
struct Judged {
    name: String,
    is_owner: bool,
    policy: Option<Policy>,
    public_read: bool,
}

impl Caller {
    /// Gives the request's change its place in the order of changes: its body may come slowly, and newer changes may
    /// be done meanwhile.
    fn begin(&mut self, row: &Row, target: &ObjectName) {
        if row.operation == DELETE_OBJECTS {
            self.ticket = Some(Arc::new(self.objects.ticket()));
        }
        let Some(facet) = row.facet() else { return };
        self.begun = match row.at {
            At::Object => {
                let bucket = self.objects.bucket(&target.bucket).ok();
                bucket.map(|bucket| bucket.arrive(&target.key, facet))
            }
            At::Bucket => Some(self.objects.arrive_bucket(&target.bucket, facet)),
            At::Service => None,
        };
    }

    /// The change of an object that the request began. It is late if it came for a bucket that was made again
    /// meanwhile. For a form, the object is only known now.
    pub(crate) fn begun(&self, bucket: &Bucket, key: &str, facet: Facet) -> S3Result<Arc<Arrival>> {
        match &self.begun {
            Some(begun) if bucket.is_meant_by(begun, key) => Ok(Arc::clone(begun)),
            Some(_) => Err(told(ObjectError::Late)),
            None => Ok(bucket.arrive(key, facet)),
        }
    }

    /// The change of an object that the body of the request names.
    pub(crate) fn begun_as_named(&self, bucket: &Bucket, key: &str) -> Arc<Arrival> {
        match &self.ticket {
            Some(ticket) => bucket.arrived(ticket, key),
            None => bucket.arrive(key, Facet::Whole),
        }
    }

    /// The change of a bucket that the request began.
    pub(crate) fn begun_of_bucket(&self) -> S3Result<&Arc<Arrival>> {
        self.begun.as_ref().ok_or_else(|| {
            s3_error!(
                InternalError,
                "the request is in no order with other changes of the bucket; nothing was done"
            )
        })
    }

    /// Notes the bucket and key of the request, unless they are known.
    fn note(&self, bucket: &str, key: &str) {
        if let Some(account) = &self.account {
            account.at(bucket, key);
        }
    }

    pub(crate) fn bucket(&self, name: &str) -> S3Result<Bucket> {
        self.note(name, "");
        if let Some((_, key)) = &self.key
            && !key.may_see(name)
        {
            return Err(s3_error!(
                AccessDenied,
                "the access key is not for this bucket"
            ));
        }
        self.objects.bucket(name).map_err(told)
    }

    /// Checks all rights that an operation needs.
    pub(crate) async fn allow(&self, row: &Row, facts: &Facts) -> S3Result<Granted> {
        let mut granted = Granted::Yes;
        let mut judged: Vec<Judged> = Vec::new();
        let target = &facts.target;
        // An operation without needs has them later, once its key is known.
        if !target.bucket.is_empty() && !row.needs.is_empty() {
            self.note(&target.bucket, &target.key);
        }
        let is_owners = |need: &Need| need.action.governs() || need.action.mends();
        let is_owners = facts.needs(row).any(is_owners);
        for need in facts.needs(row) {
            let (name, key) = facts.place(need.on).unwrap_or_default();
            let known = judged.iter().position(|it| it.name == name);
            let index = match known {
                Some(index) => index,
                None => {
                    judged.push(self.judged(name, need.on, is_owners).await?);
                    judged.len() - 1
                }
            };
            let Judged {
                is_owner,
                policy,
                public_read,
                ..
            } = &judged[index];
            let judge = Judge {
                key: self.key.as_ref().map(|(id, key)| (id.as_str(), key)),
                is_owner: *is_owner,
                policy: policy.as_ref(),
                public_read: *public_read,
            };
            match judge.verdict(need, name, key).map_err(Denial::error)? {
                Granted::Yes => {}
                Granted::ByAcl => granted = Granted::ByAcl,
            }
        }
        Ok(granted)
    }

    /// `is_owners`: the verdict depends on the bucket's owner.
    async fn judged(&self, name: &str, on: On, is_owners: bool) -> S3Result<Judged> {
        if on == On::Volume {
            return Ok(Judged::default());
        }
        let bucket = self.bucket(name)?;
        let settings = &bucket.record.settings;
        let policy = settings.policy(name).unwrap_or_else(|error| {
            tracing::warn!(bucket = name, %error, "a bucket is closed: put its policy anew, or delete it");
            Some(Policy::closed())
        });
        Ok(Judged {
            name: name.to_owned(),
            is_owner: is_owners && bucket.is_of(&self.who).await.map_err(told)?,
            policy,
            public_read: settings.public_read,
        })
    }

    /// Refuses a bucket whose owner is not the one that the client expects: owners are numbers of users.
    async fn require_owner(&self, named: &ObjectName, expected: Option<&str>) -> S3Result<()> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let owner = self.bucket(&named.bucket)?.owner().await.map_err(told)?;
        match owner.is_some_and(|owner| owner.uid.to_string() == expected) {
            true => Ok(()),
            false => Err(s3_error!(
                AccessDenied,
                "the bucket {} is not of the owner that the request expects; nothing was done",
                named.bucket
            )),
        }
    }

    /// An object to read: the latest version, or the requested one.
    pub(crate) async fn object(
        &self,
        name: &str,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<(Bucket, ObjectInfo)> {
        let bucket = self.bucket(name)?;
        let found = bucket.readable(&self.who, key, version).await;
        if !self.needs_acl {
            return match found {
                Err(ObjectError::NoObject) if bucket.versioning().is_some() => {
                    let marker = bucket.latest_marker(&self.who, key).await.map_err(told)?;
                    Err(marker.map_or_else(|| told(ObjectError::NoObject), |id| deleted(&id)))
                }
                found => Ok((bucket, found.map_err(told)?)),
            };
        }
        // A caller that may not read it does not learn whether it exists.
        let info = found.map_err(|_| denied())?;
        let is_public = info
            .record
            .as_ref()
            .is_some_and(|record| record.public_read);
        match is_public {
            true => Ok((bucket, info)),
            false => Err(denied()),
        }
    }

    /// The identity of the signer, as connections are counted: the user that the access key acts for. `None`: anonymous.
    fn identity(&self) -> Option<String> {
        let (_, key) = self.key.as_ref()?;
        let volume = self.objects.fs().volume();
        Some(format!("volume {volume} uid {}", key.uid))
    }

    /// Tells the connection of the request who signed it, once the signature is known to be right.
    pub(crate) fn show(&self, mark: Option<&Mark>) {
        if let (Some(mark), Some(who)) = (mark, self.identity()) {
            mark.set(&who);
        }
    }

    /// The holder of a place in memory for the request.
    pub(crate) fn holder(&self) -> Holder {
        match &self.key {
            Some((id, key)) => Holder::Key {
                id: id.clone(),
                uid: key.uid,
                volume: self.objects.fs().volume(),
            },
            None => Holder::Address(self.address),
        }
    }

    /// The permit that a slow request checks.
    pub(crate) fn permit(&self) -> Permit {
        Permit {
            objects: Arc::clone(&self.objects),
            key: self.key.as_ref().map(|(id, _)| id.clone()),
            looked: Instant::now(),
        }
    }

    /// Refuses when the key was revoked since the request began: checked before the request changes anything.
    pub(crate) fn require_still(&self) -> S3Result<()> {
        let id = self.key.as_ref().map(|(id, _)| id.as_str());
        require_still(&self.objects, id)
    }

    /// Refuses a read-only key, whatever it names.
    pub(crate) fn require_change(&self) -> S3Result<()> {
        match &self.key {
            Some((_, key)) if key.read_only => Err(Denial::ReadOnly.error()),
            _ => Ok(()),
        }
    }

    /// Refuses a caller that may delete nothing in a bucket, before the list of keys is read; each key is checked
    /// after that.
    fn require_some_delete(&self, bucket: &str) -> S3Result<()> {
        self.require_change()?;
        let bucket = self.bucket(bucket)?;
        match self.key.is_some() || bucket.record.settings.policy.is_some() {
            true => Ok(()),
            false => Err(denied()),
        }
    }

    /// Whether an access key signed the request.
    pub(crate) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn key(&self) -> S3Result<&AccessKey> {
        let key = self.key.as_ref().map(|(_, key)| key);
        key.ok_or_else(denied)
    }

    /// Changes the setting of a bucket that the request names.
    pub(crate) async fn set(
        &self,
        name: &str,
        change: impl FnOnce(&mut BucketSettings) + Send,
    ) -> S3Result<()> {
        let begun = self.begun_of_bucket()?;
        let set = self.objects.set_bucket(name, begun, change);
        set.await.map_err(told)
    }

    pub(crate) fn owner(&self) -> Owner {
        let id = self.who.uid.to_string();
        Owner {
            display_name: Some(id.clone()),
            id: Some(id),
        }
    }
}

impl Service {
    /// Refuses a signature for another region or service.
    fn require_scope<T>(&self, request: &S3Request<T>) -> S3Result<()> {
        let refused = match (&request.region, request.service.as_deref()) {
            // Version 2 has none.
            (None, _) => Refused::Mechanism,
            (Some(region), _) if region.as_str() != self.0.settings.region => Refused::Region,
            (Some(_), Some(signed::SERVICE)) => return Ok(()),
            (Some(_), _) => Refused::Service,
        };
        Err(refused::error(&refused, &self.0.settings.region))
    }

    /// The caller of a request, which has the rights for it.
    pub(crate) fn caller<T>(&self, request: &S3Request<T>) -> S3Result<Caller> {
        if request.credentials.is_some() {
            self.require_scope(request)?;
        }
        request
            .extensions
            .get::<Caller>()
            .cloned()
            .ok_or_else(denied)
    }
}
