//! Settings of buckets, between what they are and how S3 writes them.
//!
//! Owns: what is refused of them because it is not there. Must not know: how they are kept.

use std::collections::BTreeMap;

use cairn_objects::{CORS_RULE_COUNT_MAX, CorsRule, LIFECYCLE_RULE_COUNT_MAX, LifecycleRule};
use s3s::dto::{
    AbortIncompleteMultipartUpload, AccessControlPolicy, CORSConfiguration, CORSRule,
    ExpirationStatus, Grant, Grantee, LifecycleExpiration, LifecycleRule as Rule,
    LifecycleRuleAndOperator, LifecycleRuleFilter, NoncurrentVersionExpiration, Owner, Permission,
    Tag, Type,
};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use crate::values;

const EVERYBODY: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

/// That something is not set, by the code that S3 has for it.
pub fn not_set(code: &'static str, text: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), text);
    error.set_status_code(http::StatusCode::NOT_FOUND);
    error
}

pub fn cors_of(configuration: CORSConfiguration) -> S3Result<Vec<CorsRule>> {
    let rules = configuration.cors_rules;
    if rules.is_empty() || rules.len() > CORS_RULE_COUNT_MAX {
        return Err(s3_error!(MalformedXML, "there are 1 to 100 rules"));
    }
    let rule = |rule: CORSRule| {
        let headers = rule.allowed_headers.unwrap_or_default();
        let stars = |pattern: &String| pattern.matches('*').count() > 1;
        if rule.allowed_origins.iter().chain(&headers).any(stars) {
            return Err(s3_error!(
                InvalidRequest,
                "an origin or header has one star at most"
            ));
        }
        let is_method = |method: &String| METHODS.contains(&method.as_str());
        if !rule.allowed_methods.iter().all(is_method) {
            return Err(s3_error!(
                InvalidRequest,
                "methods are GET, PUT, POST, DELETE and HEAD"
            ));
        }
        if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
            return Err(s3_error!(
                MalformedXML,
                "a rule has an origin and a method at least"
            ));
        }
        Ok(CorsRule {
            id: rule.id,
            origins: rule.allowed_origins,
            methods: rule.allowed_methods,
            headers,
            exposed: rule.expose_headers.unwrap_or_default(),
            max_age_seconds: rule.max_age_seconds,
        })
    };
    rules.into_iter().map(rule).collect()
}

pub fn cors(rules: Vec<CorsRule>) -> Vec<CORSRule> {
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    let rule = |rule: CorsRule| CORSRule {
        allowed_headers: some(rule.headers),
        allowed_methods: rule.methods,
        allowed_origins: rule.origins,
        expose_headers: some(rule.exposed),
        id: rule.id,
        max_age_seconds: rule.max_age_seconds,
    };
    rules.into_iter().map(rule).collect()
}

fn size(bytes: Option<i64>) -> S3Result<Option<u64>> {
    let size = bytes.map(u64::try_from).transpose();
    size.map_err(|_| s3_error!(InvalidArgument, "a size is below zero"))
}

fn days(days: Option<i32>) -> S3Result<Option<u32>> {
    match days {
        None => Ok(None),
        Some(days) => match u32::try_from(days) {
            Ok(days) if days > 0 => Ok(Some(days)),
            _ => Err(s3_error!(InvalidArgument, "a number of days is above zero")),
        },
    }
}

pub fn lifecycle_of(rules: Vec<Rule>) -> S3Result<Vec<LifecycleRule>> {
    if rules.is_empty() || rules.len() > LIFECYCLE_RULE_COUNT_MAX {
        return Err(s3_error!(MalformedXML, "there are 1 to 1000 rules"));
    }
    rules.into_iter().map(lifecycle_rule_of).collect()
}

fn lifecycle_rule_of(rule: Rule) -> S3Result<LifecycleRule> {
    let moves = rule
        .transitions
        .as_ref()
        .is_some_and(|list| !list.is_empty());
    if moves || rule.noncurrent_version_transitions.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "objects and versions expire, and uploads are aborted; there are no transitions"
        ));
    }
    let noncurrent = rule.noncurrent_version_expiration;
    let noncurrent_days = noncurrent.as_ref().and_then(|it| it.noncurrent_days);
    let noncurrent_kept = noncurrent
        .as_ref()
        .and_then(|it| it.newer_noncurrent_versions);
    if noncurrent.is_some() && noncurrent_days.is_none() {
        return Err(s3_error!(
            MalformedXML,
            "versions expire a number of days after they were replaced"
        ));
    }
    let expiration = rule.expiration;
    let abort = rule
        .abort_incomplete_multipart_upload
        .and_then(|abort| abort.days_after_initiation);
    let date = expiration.as_ref().and_then(|it| it.date.clone());
    let after = expiration.as_ref().and_then(|it| it.days);
    let lone_markers = expiration
        .as_ref()
        .is_some_and(|it| it.expired_object_delete_marker == Some(true));
    if lone_markers && (date.is_some() || after.is_some()) {
        return Err(s3_error!(
            MalformedXML,
            "a rule is for expired delete markers, or has days or a date"
        ));
    }
    let says_nothing = noncurrent_days.is_none() && !lone_markers;
    if date.is_none() && after.is_none() && abort.is_none() && says_nothing {
        return Err(s3_error!(
            MalformedXML,
            "a rule says when objects expire or uploads are aborted"
        ));
    }
    let mut made = LifecycleRule {
        id: rule.id,
        is_enabled: rule.status.as_str() == ExpirationStatus::ENABLED,
        days: days(after)?,
        date_seconds: date.map(|date| time::OffsetDateTime::from(date).unix_timestamp()),
        abort_days: days(abort)?,
        noncurrent_days: days(noncurrent_days)?,
        noncurrent_kept: days(noncurrent_kept)?,
        lone_markers,
        prefix: rule.prefix.unwrap_or_default(),
        ..LifecycleRule::default()
    };
    let filter = rule.filter.unwrap_or_default();
    let (mut tags, mut prefix) = (Vec::from_iter(filter.tag), filter.prefix);
    made.larger_than_bytes = size(filter.object_size_greater_than)?;
    made.smaller_than_bytes = size(filter.object_size_less_than)?;
    if let Some(and) = filter.and {
        tags.extend(and.tags.unwrap_or_default());
        prefix = and.prefix.or(prefix);
        if and.object_size_greater_than.is_some() {
            made.larger_than_bytes = size(and.object_size_greater_than)?;
        }
        if and.object_size_less_than.is_some() {
            made.smaller_than_bytes = size(and.object_size_less_than)?;
        }
    }
    if let Some(prefix) = prefix {
        made.prefix = prefix;
    }
    made.tags = values::tags(tags)?;
    if made.abort_days.is_some() && !made.tags.is_empty() {
        return Err(s3_error!(
            InvalidRequest,
            "uploads have no tags that a rule could ask for"
        ));
    }
    Ok(made)
}

pub fn lifecycle(rules: Vec<LifecycleRule>) -> Vec<Rule> {
    let bytes = |size: Option<u64>| size.and_then(|size| i64::try_from(size).ok());
    let count = |days: u32| i32::try_from(days).unwrap_or(i32::MAX);
    let rule = |rule: LifecycleRule| {
        let has_expiration =
            rule.days.is_some() || rule.date_seconds.is_some() || rule.lone_markers;
        let status = match rule.is_enabled {
            true => ExpirationStatus::ENABLED,
            false => ExpirationStatus::DISABLED,
        };
        let is_plain = rule.tags.is_empty()
            && rule.larger_than_bytes.is_none()
            && rule.smaller_than_bytes.is_none();
        let filter = match is_plain {
            true => LifecycleRuleFilter {
                prefix: Some(rule.prefix),
                ..LifecycleRuleFilter::default()
            },
            false => LifecycleRuleFilter {
                and: Some(LifecycleRuleAndOperator {
                    object_size_greater_than: bytes(rule.larger_than_bytes),
                    object_size_less_than: bytes(rule.smaller_than_bytes),
                    prefix: Some(rule.prefix),
                    tags: Some(tag_set(rule.tags)),
                }),
                ..LifecycleRuleFilter::default()
            },
        };
        Rule {
            abort_incomplete_multipart_upload: rule.abort_days.map(|days| {
                AbortIncompleteMultipartUpload {
                    days_after_initiation: Some(count(days)),
                }
            }),
            expiration: has_expiration.then(|| LifecycleExpiration {
                date: rule.date_seconds.map(values::seconds),
                days: rule.days.map(count),
                expired_object_delete_marker: rule.lone_markers.then_some(true),
            }),
            filter: Some(filter),
            id: rule.id,
            noncurrent_version_expiration: rule.noncurrent_days.map(|days| {
                NoncurrentVersionExpiration {
                    newer_noncurrent_versions: rule.noncurrent_kept.map(count),
                    noncurrent_days: Some(count(days)),
                }
            }),
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(status),
            transitions: None,
        }
    };
    rules.into_iter().map(rule).collect()
}

pub fn tag_set(tags: BTreeMap<String, String>) -> Vec<Tag> {
    let tag = |(key, value)| Tag {
        key: Some(key),
        value: Some(value),
    };
    tags.into_iter().map(tag).collect()
}

/// Refuses an ACL that is told twice: by its name, and by its grants.
pub fn require_one_acl(name: Option<&str>, grants: Option<&AccessControlPolicy>) -> S3Result<()> {
    match name.is_some() && grants.is_some() {
        true => Err(s3_error!(
            InvalidRequest,
            "an ACL has a name in the header, or grants in the body; this has both"
        )),
        false => Ok(()),
    }
}

/// Whether everybody may read, by the name of an ACL, or by its grants if it has no name.
pub fn public_read(
    name: Option<&str>,
    grants: Option<AccessControlPolicy>,
    owner: &Owner,
) -> S3Result<bool> {
    match name {
        Some("private") => return Ok(false),
        Some("public-read") => return Ok(true),
        Some(_) => {
            return Err(s3_error!(
                NotImplemented,
                "an ACL is private or public-read; bucket policies say more"
            ));
        }
        None => {}
    }
    let Some(grants) = grants else {
        return Err(s3_error!(MissingSecurityHeader, "no ACL is named"));
    };
    let mut is_public = false;
    for grant in grants.grants.unwrap_or_default() {
        let permission = grant.permission.as_ref().map(Permission::as_str);
        let grantee = grant.grantee.unwrap_or_else(everybody);
        match (grantee.uri.as_deref(), permission) {
            (Some(EVERYBODY), Some(Permission::READ)) => is_public = true,
            (None, Some(Permission::FULL_CONTROL)) if grantee.id == owner.id => {}
            _ => {
                return Err(s3_error!(
                    NotImplemented,
                    "an ACL gives everybody READ and its owner FULL_CONTROL; bucket policies say more"
                ));
            }
        }
    }
    Ok(is_public)
}

fn everybody() -> Grantee {
    Grantee {
        display_name: None,
        email_address: None,
        id: None,
        type_: Type::from_static(Type::GROUP),
        uri: Some(EVERYBODY.to_owned()),
    }
}

pub fn grants(owner: &Owner, public_read: bool) -> Vec<Grant> {
    let grant = |grantee, permission| Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(permission)),
    };
    let own = Grantee {
        display_name: owner.display_name.clone(),
        email_address: None,
        id: owner.id.clone(),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let mut grants = vec![grant(own, Permission::FULL_CONTROL)];
    if public_read {
        grants.push(grant(everybody(), Permission::READ));
    }
    grants
}
