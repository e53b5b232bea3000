//! Object lock: versions stay until a time.
//!
//! Owns: its form in S3, and the rights for it. Must not know: how it is kept.

use cairn_objects::{
    Bucket, BucketSettings, DefaultRetention, Facet, LockMode, ObjectInfo, ObjectLock,
    ObjectRecord, Retention, Versioning,
};
use s3s::dto::DefaultRetention as DefaultRetentionOfS3;
use s3s::dto::{
    GetObjectLegalHoldInput, GetObjectLegalHoldOutput, GetObjectLockConfigurationInput,
    GetObjectLockConfigurationOutput, GetObjectRetentionInput, GetObjectRetentionOutput,
    ObjectLockConfiguration, ObjectLockEnabled, ObjectLockLegalHold, ObjectLockLegalHoldStatus,
    ObjectLockMode, ObjectLockRetention, ObjectLockRetentionMode, ObjectLockRule,
    PutObjectLegalHoldInput, PutObjectLegalHoldOutput, PutObjectLockConfigurationInput,
    PutObjectLockConfigurationOutput, PutObjectRetentionInput, PutObjectRetentionOutput, Timestamp,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use crate::buckets::not_set;
use crate::errors::told;
use crate::service::Service;
use crate::values;

const DAYS_OF_YEAR: u32 = 365;
/// Maximum retention, as in AWS: a hundred years.
const DAYS_MAX: u32 = 36_500;

fn mode_of(name: Option<&str>) -> S3Result<LockMode> {
    match name {
        Some(ObjectLockMode::COMPLIANCE) => Ok(LockMode::Compliance),
        Some(ObjectLockMode::GOVERNANCE) => Ok(LockMode::Governance),
        _ => Err(s3_error!(
            MalformedXML,
            "a lock is in the mode GOVERNANCE or COMPLIANCE"
        )),
    }
}

fn name_of(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Compliance => ObjectLockMode::COMPLIANCE,
        LockMode::Governance => ObjectLockMode::GOVERNANCE,
    }
}

fn is_held(status: &ObjectLockLegalHoldStatus) -> S3Result<bool> {
    match status.as_str() {
        ObjectLockLegalHoldStatus::ON => Ok(true),
        ObjectLockLegalHoldStatus::OFF => Ok(false),
        _ => Err(s3_error!(MalformedXML, "a legal hold is ON or OFF")),
    }
}

fn until(date: &Timestamp, now_seconds: i64) -> S3Result<i64> {
    let until = time::OffsetDateTime::from(date.clone()).unix_timestamp();
    match until > now_seconds {
        true => Ok(until),
        false => Err(s3_error!(
            InvalidArgument,
            "the date until which a version is retained is in the future"
        )),
    }
}

/// The requested lock of a new object, from headers.
pub struct LockRequest<'a> {
    pub mode: Option<&'a ObjectLockMode>,
    pub until: Option<&'a Timestamp>,
    pub hold: Option<&'a ObjectLockLegalHoldStatus>,
}

impl LockRequest<'_> {
    /// Adds the lock to the record of the object.
    pub fn note(&self, bucket: &Bucket, key: &str, record: &mut ObjectRecord) -> S3Result<()> {
        if self.mode.is_none() && self.until.is_none() && self.hold.is_none() {
            return Ok(());
        }
        if bucket.record.settings.lock.is_none() {
            return Err(s3_error!(
                InvalidRequest,
                "the bucket has no object lock configuration"
            ));
        }
        if key.ends_with('/') {
            return Err(s3_error!(InvalidRequest, "a directory cannot be locked"));
        }
        if let Some(hold) = self.hold {
            record.legal_hold = is_held(hold)?;
        }
        record.retention = match (self.mode, self.until) {
            (Some(mode), Some(date)) => Some(Retention {
                mode: mode_of(Some(mode.as_str()))?,
                until_seconds: until(date, bucket.now_seconds())?,
            }),
            (None, None) => None,
            _ => {
                return Err(s3_error!(
                    InvalidArgument,
                    "a lock has both a mode and a date until which it holds"
                ));
            }
        };
        Ok(())
    }
}

/// The headers that show an object's lock.
pub struct LockHeaders {
    pub mode: Option<ObjectLockMode>,
    pub until: Option<Timestamp>,
    pub hold: Option<ObjectLockLegalHoldStatus>,
}

impl LockHeaders {
    pub fn of(info: &ObjectInfo) -> Self {
        let record = info.record.as_ref();
        let retention = record.and_then(|record| record.retention);
        let hold = record.is_some_and(|record| record.legal_hold);
        Self {
            mode: retention.map(|it| ObjectLockMode::from_static(name_of(it.mode))),
            until: retention.map(|it| values::seconds(it.until_seconds)),
            hold: hold
                .then(|| ObjectLockLegalHoldStatus::from_static(ObjectLockLegalHoldStatus::ON)),
        }
    }
}

fn default_of(rule: ObjectLockRule) -> S3Result<Option<DefaultRetention>> {
    let Some(default) = rule.default_retention else {
        return Err(s3_error!(
            MalformedXML,
            "a rule has a DefaultRetention; without a default there is no rule"
        ));
    };
    let count = |number: Option<i32>| number.map(u32::try_from).transpose();
    let wrong = || {
        s3_error!(
            InvalidArgument,
            "a default is 1 to 36500 days, or 1 to 100 years"
        )
    };
    let days = count(default.days).map_err(|_| wrong())?;
    let years = count(default.years).map_err(|_| wrong())?;
    let (days, in_years) = match (days, years) {
        (Some(days), None) => (days, false),
        (None, Some(years)) => (years.saturating_mul(DAYS_OF_YEAR), true),
        _ => {
            return Err(s3_error!(
                MalformedXML,
                "a default is told in days or in years"
            ));
        }
    };
    match (1..=DAYS_MAX).contains(&days) {
        true => Ok(Some(DefaultRetention {
            mode: mode_of(default.mode.as_ref().map(ObjectLockRetentionMode::as_str))?,
            days,
            in_years,
        })),
        false => Err(wrong()),
    }
}

impl Service {
    pub(crate) async fn object_lock(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        let bucket = self.caller(&request)?.bucket(&request.input.bucket)?;
        let Some(lock) = bucket.record.settings.lock else {
            return Err(not_set(
                "ObjectLockConfigurationNotFoundError",
                "the bucket has no object lock",
            ));
        };
        let rule = lock.default.map(|default| {
            let number = |days: u32| i32::try_from(days).ok();
            ObjectLockRule {
                default_retention: Some(DefaultRetentionOfS3 {
                    days: (!default.in_years).then_some(default.days).and_then(number),
                    mode: Some(ObjectLockRetentionMode::from_static(name_of(default.mode))),
                    years: default
                        .in_years
                        .then_some(default.days / DAYS_OF_YEAR)
                        .and_then(number),
                }),
            }
        });
        Ok(S3Response::new(GetObjectLockConfigurationOutput {
            object_lock_configuration: Some(ObjectLockConfiguration {
                object_lock_enabled: Some(ObjectLockEnabled::from_static(
                    ObjectLockEnabled::ENABLED,
                )),
                rule,
            }),
        }))
    }

    pub(crate) async fn set_object_lock(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let wanted = input.object_lock_configuration.unwrap_or_default();
        let is_enabled = wanted
            .object_lock_enabled
            .is_some_and(|it| it.as_str() == ObjectLockEnabled::ENABLED);
        if !is_enabled {
            return Err(s3_error!(
                MalformedXML,
                "object lock can be enabled, and never taken away"
            ));
        }
        if bucket.versioning() != Some(Versioning::Enabled) {
            return Err(s3_error!(
                InvalidBucketState,
                "versioning is enabled before object lock is"
            ));
        }
        let default = match wanted.rule {
            Some(rule) => default_of(rule)?,
            None => None,
        };
        let set = |settings: &mut BucketSettings| settings.lock = Some(ObjectLock { default });
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutObjectLockConfigurationOutput::default()))
    }

    pub(crate) async fn retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let version = values::version(input.version_id.as_ref());
        let info = bucket.readable(&caller.who, &input.key, version);
        let told_of = LockHeaders::of(&info.await.map_err(told)?);
        let Some(mode) = told_of.mode else {
            return Err(not_set(
                "NoSuchObjectLockConfiguration",
                "the version is not retained",
            ));
        };
        Ok(S3Response::new(GetObjectRetentionOutput {
            retention: Some(ObjectLockRetention {
                mode: Some(ObjectLockRetentionMode::from(mode.as_str().to_owned())),
                retain_until_date: told_of.until,
            }),
        }))
    }

    pub(crate) async fn set_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> S3Result<S3Response<PutObjectRetentionOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let bypass = input.bypass_governance_retention == Some(true);
        let wanted = match input.retention {
            None => None,
            Some(ObjectLockRetention {
                mode: None,
                retain_until_date: None,
            }) => None,
            Some(ObjectLockRetention {
                mode,
                retain_until_date: Some(date),
            }) => Some(Retention {
                mode: mode_of(mode.as_ref().map(ObjectLockRetentionMode::as_str))?,
                until_seconds: until(&date, bucket.now_seconds())?,
            }),
            Some(_) => return Err(s3_error!(MalformedXML, "a retention has a mode and a date")),
        };
        let version = values::version(input.version_id.as_ref());
        let begun = caller.begun(&bucket, &input.key, Facet::Retention)?;
        let who = &caller.who;
        let set = bucket.set_retention(who, &input.key, version, wanted, bypass, &begun);
        set.await.map_err(told)?;
        Ok(S3Response::new(PutObjectRetentionOutput::default()))
    }

    pub(crate) async fn legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        if bucket.record.settings.lock.is_none() {
            return Err(not_set(
                "NoSuchObjectLockConfiguration",
                "the bucket has no object lock",
            ));
        }
        let version = values::version(input.version_id.as_ref());
        let info = bucket.readable(&caller.who, &input.key, version);
        let off = || ObjectLockLegalHoldStatus::from_static(ObjectLockLegalHoldStatus::OFF);
        let status = LockHeaders::of(&info.await.map_err(told)?).hold;
        Ok(S3Response::new(GetObjectLegalHoldOutput {
            legal_hold: Some(ObjectLockLegalHold {
                status: Some(status.unwrap_or_else(off)),
            }),
        }))
    }

    pub(crate) async fn set_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let status = input.legal_hold.and_then(|hold| hold.status);
        let status = status.ok_or_else(|| s3_error!(MalformedXML, "a legal hold is ON or OFF"))?;
        let hold = is_held(&status)?;
        let version = values::version(input.version_id.as_ref());
        let begun = caller.begun(&bucket, &input.key, Facet::LegalHold)?;
        let set = bucket.set_legal_hold(&caller.who, &input.key, version, hold, &begun);
        set.await.map_err(told)?;
        Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
    }
}
