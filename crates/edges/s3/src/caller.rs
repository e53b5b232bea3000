//! Who asks, and what they may do.
//!
//! Owns: access keys, what a request without one may do, and the verdict over each operation, from policies, keys and ACLs.
//! Must not know: what an operation does.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_fs::Credentials;
use cairn_objects::{AccessKey, Bucket, BucketSettings, ObjectError, ObjectInfo, Objects, Verdict};
use cairn_qos::Client;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::Owner;
use s3s::{S3Error, S3Request, S3Result, s3_error};

use crate::account::Account;
use crate::errors::{deleted, told};
use crate::server::Shared;
use crate::service::Service;
use crate::signed::{self, Refused};

/// Looks up secrets for signatures.
pub struct Keys(pub Arc<Shared>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let found = self.0.stores.access_key(access_key);
        let (_, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        Ok(SecretKey::from(key.secret))
    }
}

/// Who shows no signature is let in as far as buckets let everybody in; each operation looks at that.
pub struct Access;

/// What can be done without a signature at all.
const OPEN_TO_ALL: [&str; 13] = [
    "GetObject",
    "HeadObject",
    "GetObjectAttributes",
    "GetObjectTagging",
    "HeadBucket",
    "GetBucketLocation",
    "ListObjects",
    "ListObjectsV2",
    "ListObjectVersions",
    "PutObject",
    "PostObject",
    "DeleteObject",
    "DeleteObjects",
];

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let is_open = OPEN_TO_ALL.contains(&context.s3_op().name());
        match context.credentials().is_some() || is_open {
            true => Ok(()),
            false => Err(s3_error!(AccessDenied, "a signature is needed")),
        }
    }
}

/// Where a request comes from: goes with it.
#[derive(Clone, Copy)]
pub(crate) struct ClientAddress(pub IpAddr);

/// Another node passed it on: goes with the request.
#[derive(Clone, Copy)]
pub(crate) struct PassedOn;

fn client<T>(key: &str, request: &S3Request<T>) -> Client {
    let address = request.extensions.get::<ClientAddress>();
    Client::named(key).from(address.map(|address| address.0))
}

/// Whose request it is.
pub(crate) struct Caller {
    pub objects: Arc<Objects>,
    /// `None`: nobody's.
    key: Option<(String, AccessKey)>,
    pub who: Credentials,
    /// Whose rate its transfers count for: the access key's, and that of where it comes from.
    pub client: Client,
    /// For who looks what clients do.
    pub account: Option<Account>,
    /// By another node, which the client talks to.
    pub is_passed_on: bool,
}

/// Whom requests act as that show no access key.
const NOBODY: u32 = 65_534;

/// What a request wants to do with a key or prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    Get,
    GetVersion,
    GetTags,
    GetRetention,
    GetLegalHold,
    List,
    ListVersions,
    ListUploads,
    ListParts,
    Put,
    PutTags,
    PutAcl,
    GetAcl,
    PutRetention,
    PutLegalHold,
    BypassGovernance,
    Abort,
    Delete,
    DeleteVersion,
}

impl To {
    /// What policies call it.
    fn action(self) -> &'static str {
        match self {
            Self::Get => "s3:GetObject",
            Self::GetVersion => "s3:GetObjectVersion",
            Self::GetTags => "s3:GetObjectTagging",
            Self::GetRetention => "s3:GetObjectRetention",
            Self::GetLegalHold => "s3:GetObjectLegalHold",
            Self::List => "s3:ListBucket",
            Self::ListVersions => "s3:ListBucketVersions",
            Self::ListUploads => "s3:ListBucketMultipartUploads",
            Self::ListParts => "s3:ListMultipartUploadParts",
            Self::Put => "s3:PutObject",
            Self::PutTags => "s3:PutObjectTagging",
            Self::PutAcl => "s3:PutObjectAcl",
            Self::GetAcl => "s3:GetObjectAcl",
            Self::PutRetention => "s3:PutObjectRetention",
            Self::PutLegalHold => "s3:PutObjectLegalHold",
            Self::BypassGovernance => "s3:BypassGovernanceRetention",
            Self::Abort => "s3:AbortMultipartUpload",
            Self::Delete => "s3:DeleteObject",
            Self::DeleteVersion => "s3:DeleteObjectVersion",
        }
    }

    /// Whether it is about the bucket, not one object.
    fn is_of_bucket(self) -> bool {
        matches!(self, Self::List | Self::ListVersions | Self::ListUploads)
    }

    fn changes(self) -> bool {
        matches!(
            self,
            Self::Put
                | Self::PutTags
                | Self::PutAcl
                | Self::PutRetention
                | Self::PutLegalHold
                | Self::BypassGovernance
                | Self::Abort
                | Self::Delete
                | Self::DeleteVersion
        )
    }
}

/// A bucket that may be used, or an object of it if its own ACL lets everybody in.
pub(crate) struct Allowed {
    pub bucket: Bucket,
    pub needs_acl: bool,
}

pub(crate) fn denied() -> S3Error {
    s3_error!(
        AccessDenied,
        "the bucket does not let everybody do this; a signature is needed"
    )
}

impl Caller {
    /// Notes what the request is for, unless that is known.
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

    /// The bucket, if this may be done with a key or prefix of it.
    pub(crate) fn at(&self, name: &str, key: &str, to: To) -> S3Result<Bucket> {
        let allowed = self.look_at(name, key, to)?;
        match allowed.needs_acl {
            true => Err(denied()),
            false => Ok(allowed.bucket),
        }
    }

    pub(crate) fn look_at(&self, name: &str, key: &str, to: To) -> S3Result<Allowed> {
        let is_of_bucket = to.is_of_bucket();
        self.note(name, if is_of_bucket { "" } else { key });
        let bucket = self.bucket(name)?;
        let settings = &bucket.record.settings;
        let resource = match is_of_bucket {
            true => name.to_owned(),
            false => format!("{name}/{key}"),
        };
        let id = self.key.as_ref().map(|(id, _)| id.as_str());
        let verdict = match settings.policy(name).map_err(told)? {
            Some(policy) => policy.verdict(id, to.action(), &resource),
            None => Verdict::Silent,
        };
        if verdict == Verdict::Deny {
            return Err(s3_error!(
                AccessDenied,
                "the policy of the bucket denies this"
            ));
        }
        match &self.key {
            Some((_, key_of)) => {
                if !key_of.may_use(name, key) {
                    return Err(s3_error!(
                        AccessDenied,
                        "the access key is not for this part of the bucket"
                    ));
                }
                self.may(to)?;
            }
            None => {
                let lists = matches!(to, To::List | To::ListVersions);
                let is_listed = lists && settings.public_read;
                if verdict != Verdict::Allow && !is_listed {
                    return match to {
                        To::Get | To::GetVersion => Ok(Allowed {
                            bucket,
                            needs_acl: true,
                        }),
                        _ => Err(denied()),
                    };
                }
            }
        }
        Ok(Allowed {
            bucket,
            needs_acl: false,
        })
    }

    /// An object to be read: the latest version, or the one that is asked for.
    pub(crate) async fn object(
        &self,
        name: &str,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<(Bucket, ObjectInfo)> {
        let to = match version {
            Some(_) => To::GetVersion,
            None => To::Get,
        };
        let Allowed { bucket, needs_acl } = self.look_at(name, key, to)?;
        let found = bucket.object_or_version(&self.who, key, version).await;
        if !needs_acl {
            return match found {
                Err(ObjectError::NoObject) if bucket.versioning().is_some() => {
                    let marker = bucket.latest_marker(&self.who, key).await.map_err(told)?;
                    Err(marker.map_or_else(|| told(ObjectError::NoObject), |id| deleted(&id)))
                }
                found => Ok((bucket, found.map_err(told)?)),
            };
        }
        // Who may not read it does not learn whether it is there.
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

    pub(crate) fn may(&self, to: To) -> S3Result<()> {
        let is_reader = self.key.as_ref().is_some_and(|(_, key)| key.read_only);
        match to.changes() && is_reader {
            true => Err(s3_error!(AccessDenied, "the access key can only read")),
            false => Ok(()),
        }
    }

    /// The bucket, if it may be known that it is there: to keys that may use any of it, and to all who may list it.
    pub(crate) fn at_bucket(&self, name: &str) -> S3Result<Bucket> {
        match &self.key {
            Some(_) => self.bucket(name),
            None => self.at(name, "", To::List),
        }
    }

    pub(crate) fn key(&self) -> S3Result<&AccessKey> {
        let key = self.key.as_ref().map(|(_, key)| key);
        key.ok_or_else(denied)
    }

    /// The bucket, if its settings may be changed: by keys that may use all of the volume.
    pub(crate) fn sets(&self, name: &str) -> S3Result<Bucket> {
        let key = self.key()?;
        self.may(To::Put)?;
        let bucket = self.bucket(name)?;
        match key.only.is_empty() {
            true => Ok(bucket),
            false => Err(s3_error!(
                AccessDenied,
                "the access key is for certain buckets only, and cannot set them"
            )),
        }
    }

    /// Changes the settings of a bucket.
    pub(crate) async fn set(
        &self,
        name: &str,
        change: impl FnOnce(&mut BucketSettings) + Send,
    ) -> S3Result<()> {
        self.objects.set_bucket(name, change).await.map_err(told)
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
    /// What is counted of a request on these objects.
    fn account<T>(&self, request: &S3Request<T>, objects: &Objects) -> Option<Account> {
        let account = request.extensions.get::<Account>()?;
        account.in_volume(|| self.0.stores.activity(objects.fs().volume()));
        Some(account.clone())
    }

    /// Refuses a signature for something else. Of a form this is looked at here only: it is not read before.
    fn require_scope<T>(&self, request: &S3Request<T>) -> S3Result<()> {
        let refused = match (&request.region, request.service.as_deref()) {
            // Version 2 has none.
            (None, _) => Refused::Mechanism,
            (Some(region), _) if region.as_str() != self.0.settings.region => Refused::Region,
            (Some(_), Some(signed::SERVICE)) => return Ok(()),
            (Some(_), _) => Refused::Service,
        };
        Err(refused.error(&self.0.settings.region))
    }

    /// Whose request it is, by its signature.
    pub(crate) fn caller<T>(&self, request: &S3Request<T>) -> S3Result<Caller> {
        let credentials = request.credentials.as_ref().ok_or_else(denied)?;
        self.require_scope(request)?;
        let id = &credentials.access_key;
        let found = self.0.stores.access_key(id);
        let (objects, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        Ok(Caller {
            account: self.account(request, &objects),
            is_passed_on: request.extensions.get::<PassedOn>().is_some(),
            who: key.credentials(),
            client: client(&credentials.access_key, request),
            objects,
            key: Some((id.clone(), key)),
        })
    }

    /// The same; without a signature it is nobody's, which a bucket may let in.
    pub(crate) fn caller_or_nobody<T>(
        &self,
        request: &S3Request<T>,
        bucket: &str,
    ) -> S3Result<Caller> {
        if request.credentials.is_some() {
            return self.caller(request);
        }
        let found = self.0.stores.bucket(bucket);
        let bucket = found.ok_or_else(|| self.0.unknown(denied()))?;
        Ok(Caller {
            account: self.account(request, bucket.objects()),
            is_passed_on: request.extensions.get::<PassedOn>().is_some(),
            objects: Arc::clone(bucket.objects()),
            key: None,
            client: client("", request),
            who: Credentials {
                uid: NOBODY,
                gid: NOBODY,
                groups: Vec::new(),
                request: None,
            },
        })
    }
}
