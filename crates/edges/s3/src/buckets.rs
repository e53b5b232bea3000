//! Converts settings of buckets between their own types and those of S3.
//!
//! Owns: the refusal of unsupported settings. Must not know: how settings are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

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
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// Maximum length of a rule's name, in characters.
const ID_LEN_MAX: usize = 255;
const KEY_LEN_BYTES_MAX: usize = 1024;
/// The valid values of `NewerNoncurrentVersions`.
const NEWER_COUNT: RangeInclusive<u32> = 1..=100;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

/// The error for a missing setting, with the code that S3 has for it.
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
    let made: Vec<LifecycleRule> = rules
        .into_iter()
        .map(lifecycle_rule_of)
        .collect::<S3Result<_>>()?;
    require_own_ids(&made)?;
    Ok(made)
}

fn require_own_ids(rules: &[LifecycleRule]) -> S3Result<()> {
    let mut ids = BTreeSet::new();
    for id in rules.iter().filter_map(|rule| rule.id.as_deref()) {
        if !ids.insert(id) {
            return Err(s3_error!(
                InvalidArgument,
                "two rules have the ID {}; an ID is for one rule",
                id
            ));
        }
    }
    Ok(())
}

/// Converts a rule (S3 User Guide, "Lifecycle configuration elements"). A rule with a missing part would apply to all
/// objects, so it is refused.
fn lifecycle_rule_of(rule: Rule) -> S3Result<LifecycleRule> {
    let moves = [
        rule.transitions.is_some_and(|list| !list.is_empty()),
        rule.noncurrent_version_transitions
            .is_some_and(|list| !list.is_empty()),
    ];
    if moves.contains(&true) {
        return Err(s3_error!(
            NotImplemented,
            "objects and versions expire, and uploads are aborted; there are no transitions"
        ));
    }
    let id = rule.id.filter(|id| !id.is_empty());
    if id
        .as_ref()
        .is_some_and(|id| id.chars().count() > ID_LEN_MAX)
    {
        return Err(s3_error!(
            InvalidArgument,
            "the ID of a rule has at most 255 characters"
        ));
    }
    let is_enabled = match rule.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        _ => {
            return Err(s3_error!(
                MalformedXML,
                "the status of a rule is Enabled or Disabled"
            ));
        }
    };
    let mut made = match (rule.filter, rule.prefix) {
        (Some(filter), None) => filter_of(filter)?,
        (None, Some(prefix)) => LifecycleRule {
            prefix,
            ..LifecycleRule::default()
        },
        (None, None) => {
            return Err(s3_error!(
                MalformedXML,
                "a rule has a Filter; an empty one is for all objects"
            ));
        }
        (Some(_), Some(_)) => {
            return Err(s3_error!(
                MalformedXML,
                "a rule has a Filter or, as it was once, a Prefix; not both"
            ));
        }
    };
    if made.prefix.len() > KEY_LEN_BYTES_MAX {
        return Err(s3_error!(
            InvalidRequest,
            "a prefix has at most 1024 bytes, as a key"
        ));
    }
    (made.id, made.is_enabled) = (id, is_enabled);
    if let Some(expiration) = rule.expiration {
        expire(expiration, &mut made)?;
    }
    if let Some(abort) = rule.abort_incomplete_multipart_upload {
        let after = days(abort.days_after_initiation)?;
        made.abort_days = Some(after.ok_or_else(|| {
            s3_error!(
                MalformedXML,
                "uploads are aborted a number of days after they began"
            )
        })?);
    }
    if let Some(noncurrent) = rule.noncurrent_version_expiration {
        let after = days(noncurrent.noncurrent_days)?;
        made.noncurrent_days = Some(after.ok_or_else(|| {
            s3_error!(
                MalformedXML,
                "versions expire a number of days after they were replaced"
            )
        })?);
        made.noncurrent_kept = kept_of(noncurrent.newer_noncurrent_versions)?;
    }
    let is_something = made.days.is_some()
        || made.date_seconds.is_some()
        || made.lone_markers
        || made.abort_days.is_some()
        || made.noncurrent_days.is_some();
    if !is_something {
        return Err(s3_error!(
            MalformedXML,
            "a rule says when objects or versions expire, or uploads are aborted"
        ));
    }
    let is_by_more = !made.tags.is_empty()
        || made.larger_than_bytes.is_some()
        || made.smaller_than_bytes.is_some();
    if is_by_more && (made.abort_days.is_some() || made.lone_markers) {
        return Err(s3_error!(
            InvalidRequest,
            "uploads and delete markers have no tags and no size that a rule could ask for"
        ));
    }
    Ok(made)
}

/// The objects that a rule applies to.
fn filter_of(filter: LifecycleRuleFilter) -> S3Result<LifecycleRule> {
    let count = [
        filter.prefix.is_some(),
        filter.tag.is_some(),
        filter.object_size_greater_than.is_some(),
        filter.object_size_less_than.is_some(),
        filter.and.is_some(),
    ];
    if count.iter().filter(|is_there| **is_there).count() > 1 {
        return Err(s3_error!(
            MalformedXML,
            "a Filter says one thing; And says several"
        ));
    }
    let (tags, prefix, larger, smaller) = match filter.and {
        None => (
            Vec::from_iter(filter.tag),
            filter.prefix,
            filter.object_size_greater_than,
            filter.object_size_less_than,
        ),
        Some(and) => {
            let tags = and.tags.unwrap_or_default();
            let others = [
                and.prefix.is_some(),
                and.object_size_greater_than.is_some(),
                and.object_size_less_than.is_some(),
            ];
            let count = others.iter().filter(|is_there| **is_there).count();
            if tags.len() + count < 2 {
                return Err(s3_error!(MalformedXML, "And says two things at least"));
            }
            (
                tags,
                and.prefix,
                and.object_size_greater_than,
                and.object_size_less_than,
            )
        }
    };
    let (larger, smaller) = (size(larger)?, size(smaller)?);
    let is_none = |smaller: u64| larger.is_some_and(|larger| smaller <= larger);
    if smaller.is_some_and(|smaller| smaller == 0 || is_none(smaller)) {
        return Err(s3_error!(
            InvalidRequest,
            "no object is that small: ObjectSizeLessThan is above zero and above ObjectSizeGreaterThan"
        ));
    }
    Ok(LifecycleRule {
        prefix: prefix.unwrap_or_default(),
        tags: values::tags(tags)?,
        larger_than_bytes: larger,
        smaller_than_bytes: smaller,
        ..LifecycleRule::default()
    })
}

fn expire(expiration: LifecycleExpiration, made: &mut LifecycleRule) -> S3Result<()> {
    match (
        expiration.days,
        expiration.date,
        expiration.expired_object_delete_marker,
    ) {
        (Some(after), None, None) => made.days = days(Some(after))?,
        (None, Some(date), None) => {
            let seconds = time::OffsetDateTime::from(date).unix_timestamp();
            if seconds.rem_euclid(DAY_SECONDS) != 0 {
                return Err(s3_error!(
                    InvalidArgument,
                    "the date from which on objects expire is at midnight, UTC"
                ));
            }
            made.date_seconds = Some(seconds);
        }
        (None, None, Some(true)) => made.lone_markers = true,
        _ => {
            return Err(s3_error!(
                MalformedXML,
                "an Expiration has Days, or a Date, or is for ExpiredObjectDeleteMarker; one of them"
            ));
        }
    }
    Ok(())
}

/// The number of replaced versions that stay, whatever their age.
fn kept_of(count: Option<i32>) -> S3Result<Option<u32>> {
    let Some(count) = count else { return Ok(None) };
    match u32::try_from(count) {
        Ok(count) if NEWER_COUNT.contains(&count) => Ok(Some(count)),
        _ => Err(s3_error!(
            InvalidArgument,
            "NewerNoncurrentVersions is 1 to 100"
        )),
    }
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
        let (larger, smaller) = (
            bytes(rule.larger_than_bytes),
            bytes(rule.smaller_than_bytes),
        );
        let prefix = Some(rule.prefix).filter(|prefix| !prefix.is_empty());
        let mut tags = tag_set(rule.tags);
        let others = [prefix.is_some(), larger.is_some(), smaller.is_some()];
        let other_count = others.iter().filter(|is_there| **is_there).count();
        let filter = match tags.len() + other_count {
            0 => LifecycleRuleFilter {
                prefix: Some(String::new()),
                ..LifecycleRuleFilter::default()
            },
            1 => LifecycleRuleFilter {
                and: None,
                object_size_greater_than: larger,
                object_size_less_than: smaller,
                prefix,
                tag: tags.pop(),
            },
            _ => LifecycleRuleFilter {
                and: Some(LifecycleRuleAndOperator {
                    object_size_greater_than: larger,
                    object_size_less_than: smaller,
                    prefix,
                    tags: Some(tags),
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

/// Refuses an ACL that is given twice: by its name, and by its grants.
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
    let named = grants.owner.and_then(|named| named.id);
    if named.is_some() && named != owner.id {
        return Err(s3_error!(AccessDenied, "an ACL changes no owner"));
    }
    let Some(grants) = grants.grants else {
        return Err(s3_error!(
            MalformedACLError,
            "an ACL has an AccessControlList, which may be empty"
        ));
    };
    let mut is_public = false;
    for grant in grants {
        let permission = grant.permission.as_ref().map(Permission::as_str);
        let Some(grantee) = grant.grantee else {
            return Err(s3_error!(
                MalformedACLError,
                "a grant says whom it is for, and gives nobody anything without"
            ));
        };
        // The name is for people. The other fields that identify the grantee must agree.
        let is_owner = grantee.id == owner.id;
        let kind = grantee.type_.as_str();
        let named = (grantee.id.as_deref(), grantee.uri.as_deref());
        match (kind, named, permission) {
            _ if grantee.email_address.is_some() => {
                return Err(s3_error!(
                    NotImplemented,
                    "users have no addresses: an ACL names its owner by ID"
                ));
            }
            (Type::GROUP, (None, Some(EVERYBODY)), Some(Permission::READ)) => is_public = true,
            (Type::CANONICAL_USER, (Some(_), None), Some(Permission::FULL_CONTROL)) if is_owner => {
            }
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

#[cfg(test)]
mod tests {
    use cairn_codec_s3::document;
    use s3s::dto::BucketLifecycleConfiguration;
    use s3s::xml::{Deserialize as _, Deserializer};

    use super::*;

    /// The rules of a document, as in a request; the code of the error.
    fn read(document: &str) -> Result<Vec<LifecycleRule>, String> {
        document::check(document.as_bytes()).map_err(|error| error.to_string())?;
        let mut reader = Deserializer::new(document.as_bytes());
        let read = BucketLifecycleConfiguration::deserialize(&mut reader);
        let rules = read.map_err(|error| error.to_string())?.rules;
        lifecycle_of(rules).map_err(|error| error.code().as_str().to_owned())
    }

    fn document(rules: &[String]) -> String {
        let rules: String = rules
            .iter()
            .map(|rule| format!("<Rule>{rule}</Rule>"))
            .collect();
        format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>")
    }

    /// One rule that expires the objects of a filter.
    fn filtered(filter: &str) -> String {
        format!("<Status>Enabled</Status>{filter}<Expiration><Days>1</Days></Expiration>")
    }

    /// One rule for all objects, with an action.
    fn acting(action: &str) -> String {
        format!("<Status>Enabled</Status><Filter/>{action}")
    }

    fn tag(key: &str) -> String {
        format!("<Tag><Key>{key}</Key><Value>1</Value></Tag>")
    }

    #[test]
    fn a_rule_says_all_that_it_has_to_or_is_refused() {
        let malformed = Some("MalformedXML");
        let argument = Some("InvalidArgument");
        let request = Some("InvalidRequest");
        let days = "<Expiration><Days>1</Days></Expiration>";
        let marker =
            "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
        let abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
        let noncurrent = |days: &str, kept: &str| {
            format!("<NoncurrentVersionExpiration>{days}{kept}</NoncurrentVersionExpiration>")
        };
        let old = "<NoncurrentDays>1</NoncurrentDays>";
        let newer =
            |count: &str| format!("<NewerNoncurrentVersions>{count}</NewerNoncurrentVersions>");
        let and = |inner: &str| filtered(&format!("<Filter><And>{inner}</And></Filter>"));
        let dated = |date: &str| acting(&format!("<Expiration><Date>{date}</Date></Expiration>"));
        let (one, two) = (tag("a"), tag("a") + &tag("b"));
        let by_tag =
            |action: &str| format!("<Status>Enabled</Status><Filter>{one}</Filter>{action}");
        let by_size = |action: &str| {
            let size = "<ObjectSizeGreaterThan>1</ObjectSizeGreaterThan>";
            format!("<Status>Enabled</Status><Filter>{size}</Filter>{action}")
        };
        let named = |id: &str| format!("<ID>{id}</ID>{}", acting(days));
        let cases: Vec<(&str, String, Option<&str>)> = vec![
            ("neither filter nor prefix", filtered(""), malformed),
            ("a filter for all", filtered("<Filter/>"), None),
            (
                "a prefix in a filter",
                filtered("<Filter><Prefix>a</Prefix></Filter>"),
                None,
            ),
            (
                "a prefix as it was once",
                filtered("<Prefix>a</Prefix>"),
                None,
            ),
            ("an empty one", filtered("<Prefix/>"), None),
            ("both", filtered("<Prefix>a</Prefix><Filter/>"), malformed),
            (
                "a long prefix",
                filtered(&format!("<Prefix>{}</Prefix>", "a".repeat(1025))),
                request,
            ),
            ("an And of nothing", and(""), malformed),
            ("an And of one", and("<Prefix>a</Prefix>"), malformed),
            ("an And of a tag", and(&one), malformed),
            ("an And of two tags", and(&two), None),
            (
                "an And of prefix and tag",
                and(&format!("<Prefix/>{one}")),
                None,
            ),
            (
                "a tag twice",
                and(&format!("{one}{one}")),
                Some("InvalidTag"),
            ),
            (
                "two things without And",
                filtered(&format!("<Filter><Prefix/>{one}</Filter>")),
                malformed,
            ),
            (
                "And and more",
                filtered(&format!("<Filter><Prefix/><And>{two}</And></Filter>")),
                malformed,
            ),
            (
                "sizes that fit",
                and(
                    "<ObjectSizeGreaterThan>1</ObjectSizeGreaterThan><ObjectSizeLessThan>3</ObjectSizeLessThan>",
                ),
                None,
            ),
            (
                "sizes of no object",
                and(
                    "<ObjectSizeGreaterThan>3</ObjectSizeGreaterThan><ObjectSizeLessThan>3</ObjectSizeLessThan>",
                ),
                request,
            ),
            (
                "a size below zero",
                filtered("<Filter><ObjectSizeGreaterThan>-1</ObjectSizeGreaterThan></Filter>"),
                argument,
            ),
            ("no action", acting(""), malformed),
            ("an empty action", acting("<Expiration/>"), malformed),
            ("days", acting(days), None),
            (
                "no days",
                acting("<Expiration><Days>0</Days></Expiration>"),
                argument,
            ),
            (
                "days below zero",
                acting("<Expiration><Days>-1</Days></Expiration>"),
                argument,
            ),
            ("a date at midnight", dated("2030-01-01T00:00:00Z"), None),
            (
                "a date at midnight elsewhere",
                dated("2030-01-01T02:00:00+02:00"),
                None,
            ),
            ("a date at noon", dated("2030-01-01T12:00:00Z"), argument),
            (
                "days and a date",
                acting("<Expiration><Days>1</Days><Date>2030-01-01T00:00:00Z</Date></Expiration>"),
                malformed,
            ),
            ("markers", acting(marker), None),
            (
                "markers and days",
                acting(
                    "<Expiration><Days>1</Days><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
                ),
                malformed,
            ),
            (
                "no markers",
                acting(
                    "<Expiration><ExpiredObjectDeleteMarker>false</ExpiredObjectDeleteMarker></Expiration>",
                ),
                malformed,
            ),
            ("markers with a tag", by_tag(marker), request),
            ("markers of a size", by_size(marker), request),
            ("uploads", acting(abort), None),
            ("uploads with a tag", by_tag(abort), request),
            ("uploads of a size", by_size(abort), request),
            (
                "uploads at no time",
                acting("<AbortIncompleteMultipartUpload/>"),
                malformed,
            ),
            ("objects with a tag", by_tag(days), None),
            ("versions", acting(&noncurrent(old, "")), None),
            (
                "versions at no time",
                acting(&noncurrent("", &newer("1"))),
                malformed,
            ),
            (
                "the most versions",
                acting(&noncurrent(old, &newer("100"))),
                None,
            ),
            (
                "too many versions",
                acting(&noncurrent(old, &newer("101"))),
                argument,
            ),
            (
                "no versions",
                acting(&noncurrent(old, &newer("0"))),
                argument,
            ),
            (
                "another status",
                acting(days).replace("Enabled", "On"),
                malformed,
            ),
            (
                "disabled",
                acting(days).replace("Enabled", "Disabled"),
                None,
            ),
            ("a long ID", named(&"a".repeat(255)), None),
            ("a longer one", named(&"a".repeat(256)), argument),
            (
                "a transition",
                acting(
                    "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>",
                ),
                Some("NotImplemented"),
            ),
            (
                "a transition of versions",
                acting(
                    "<NoncurrentVersionTransition><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionTransition>",
                ),
                Some("NotImplemented"),
            ),
        ];
        for (name, rule, want) in cases {
            let got = read(&document(&[rule])).map(|_| ());
            let want = want.map_or(Ok(()), |code| Err(code.to_owned()));
            assert_eq!(got, want, "{name}");
        }
        let status = filtered("<Filter/>").replace("<Status>Enabled</Status>", "");
        assert!(read(&document(&[status])).is_err(), "a rule has a status");
        let twice = [named("a"), named("a")];
        assert_eq!(read(&document(&twice)), Err("InvalidArgument".to_owned()));
        let rules: Vec<String> = (0..1001).map(|index| named(&index.to_string())).collect();
        assert_eq!(read(&document(&rules)), Err("MalformedXML".to_owned()));
        assert_eq!(read(&document(&rules[..1000])).unwrap().len(), 1000);
        assert!(lifecycle_of(Vec::new()).is_err());
    }

    #[test]
    fn an_acl_says_whom_it_lets_in_or_is_refused() {
        let owner = |id: &str| Owner {
            display_name: None,
            id: Some(id.to_owned()),
        };
        let own = owner("1000");
        let mut unnamed = grants(&own, true);
        for grant in &mut unnamed {
            grant.grantee = None;
        }
        let changed = |change: fn(&mut Grantee)| {
            let mut list = grants(&own, true);
            for grantee in list.iter_mut().filter_map(|grant| grant.grantee.as_mut()) {
                change(grantee);
            }
            Some(list)
        };
        let both = changed(|grantee| grantee.id = Some("1000".to_owned()));
        let by_mail = changed(|grantee| grantee.email_address = Some("a@b.c".to_owned()));
        let other_type = changed(|grantee| grantee.type_ = Type::from_static(Type::GROUP));
        for (owner, list, want) in [
            (None, both, Err("NotImplemented")),
            (None, by_mail, Err("NotImplemented")),
            (None, other_type, Err("NotImplemented")),
            (Some(own.clone()), Some(grants(&own, true)), Ok(true)),
            (None, Some(grants(&own, false)), Ok(false)),
            (None, Some(Vec::new()), Ok(false)),
            (None, None, Err("MalformedACLError")),
            (None, Some(unnamed), Err("MalformedACLError")),
            (
                Some(owner("7")),
                Some(grants(&own, true)),
                Err("AccessDenied"),
            ),
            (None, Some(grants(&owner("7"), true)), Err("NotImplemented")),
        ] {
            let policy = AccessControlPolicy {
                grants: list,
                owner,
            };
            let got = public_read(None, Some(policy), &own);
            let got = got.map_err(|error| error.code().as_str().to_owned());
            assert_eq!(got, want.map_err(str::to_owned));
        }
    }

    /// The output of rules is valid input, with an equal meaning.
    #[test]
    fn rules_are_told_as_they_are() {
        for filter in [
            "<Filter/>".to_owned(),
            "<Filter><Prefix>a</Prefix></Filter>".to_owned(),
            format!("<Filter>{}</Filter>", tag("a")),
            "<Filter><ObjectSizeLessThan>9</ObjectSizeLessThan></Filter>".to_owned(),
            format!("<Filter><And><Prefix>a</Prefix>{}</And></Filter>", tag("a")),
            format!("<Filter><And>{}{}</And></Filter>", tag("a"), tag("b")),
        ] {
            let rules = read(&document(&[filtered(&filter)])).unwrap();
            assert_eq!(
                lifecycle_of(lifecycle(rules.clone())).unwrap(),
                rules,
                "{filter}"
            );
        }
    }
}
