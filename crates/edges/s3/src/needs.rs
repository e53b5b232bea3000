//! The rights that a request needs.
//!
//! Owns: when an action is needed and on what, the fields of a request that decide that, and the verdict on each need
//! from policy, key and ACL. Must not know: which operation needs which (`operations`), the work of an operation,
//! where buckets and keys are kept.
//!
//! A denied action must not be possible by the name of another one: the version `null` of an object is the object, so
//! a denial of one applies to both.

use cairn_codec_s3::{Action, Policy, Verdict, signed};
use cairn_objects::AccessKey;
use s3s::dto::{CopySource, PutObjectInput};
use s3s::path::S3Path;
use s3s::{S3Error, S3Result, s3_error};

use crate::operations::Row;

/// The subject of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// No existing bucket.
    Volume,
    Bucket,
    /// The bucket; a key with a prefix may do it only below that prefix.
    Prefix,
    Object,
    /// The object that is copied.
    Source,
}

/// The property of a request that makes an action needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// It names a version.
    Version,
    Latest,
    /// The source of a copy names one.
    SourceVersion,
    SourceLatest,
    Acl,
    Tags,
    /// Tags come from the source.
    CopiesTags,
    Retention,
    LegalHold,
    Bypass,
}

/// A needed action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub action: Action,
    pub on: On,
    pub when: When,
    /// No allowance is needed; but a denial applies, so that the action is not possible by another name.
    pub by_another_name: bool,
}

pub fn need(action: Action, on: On) -> Need {
    Need {
        action,
        on,
        when: When::Always,
        by_another_name: false,
    }
}

impl Need {
    pub fn when(self, when: When) -> Self {
        Self { when, ..self }
    }

    pub fn by_another_name(self) -> Self {
        Self {
            by_another_name: true,
            ..self
        }
    }
}

/// An object, or a version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectName {
    pub bucket: String,
    pub key: String,
    pub is_version: bool,
}

/// The facts about a request that the table uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub target: ObjectName,
    /// The prefix of a listing.
    pub prefix: String,
    pub source: Option<ObjectName>,
    pub gives_acl: bool,
    pub gives_tags: bool,
    pub copies_tags: bool,
    pub retains: bool,
    pub holds: bool,
    pub bypasses: bool,
    /// The owner of the bucket that the client expects; and that of the source.
    pub expected_owner: Option<String>,
    pub expected_source_owner: Option<String>,
}

/// The only value of a name; `s3s` refuses a request with two.
fn unique<'a>(given: &'a [(String, String)], wanted: &str) -> Option<&'a str> {
    let mut values = given.iter().filter(|(name, _)| name == wanted);
    let (_, value) = values.next()?;
    values.next().is_none().then_some(value.as_str())
}

impl Facts {
    /// The facts of a received request; `s3s` reads it by equal rules.
    pub fn of_request(path: &S3Path, query: &str, headers: &http::HeaderMap) -> S3Result<Self> {
        let given: Vec<(String, String)> = signed::parameters(query).collect();
        let (bucket, key) = match path {
            S3Path::Root => ("", ""),
            S3Path::Bucket { bucket } => (&**bucket, ""),
            S3Path::Object { bucket, key } => (&**bucket, &**key),
        };
        let version = unique(&given, "versionId").unwrap_or_default();
        let has = |name: &str| headers.contains_key(name);
        let mut values = headers.get_all("x-amz-copy-source").iter();
        let source = match (values.next(), values.next()) {
            (None, _) => None,
            (Some(source), None) => Some(source_of(source)?),
            (Some(_), Some(_)) => {
                return Err(s3_error!(InvalidArgument, "a copy has one source"));
            }
        };
        let mut values = headers.get_all("x-amz-tagging-directive").iter();
        let replaces_tags = values.next().is_some_and(|value| value == "REPLACE");
        let mut values = headers.get_all("x-amz-bypass-governance-retention").iter();
        let is_asked = |value: &http::HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"false");
        let owner = |name: &'static str| match headers.get(name).map(http::HeaderValue::to_str) {
            None => Ok(None),
            Some(Ok(owner)) => Ok(Some(owner.to_owned())),
            Some(Err(_)) => Err(s3_error!(InvalidArgument, "{} is no text", name)),
        };
        let is_grant = |name: &http::HeaderName| name.as_str().starts_with("x-amz-grant-");
        Ok(Self {
            target: ObjectName {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
                is_version: !version.is_empty(),
            },
            prefix: unique(&given, "prefix").unwrap_or_default().to_owned(),
            copies_tags: source.is_some() && !replaces_tags,
            source,
            gives_acl: has("x-amz-acl") || headers.keys().any(is_grant),
            gives_tags: has("x-amz-tagging"),
            retains: has("x-amz-object-lock-mode") || has("x-amz-object-lock-retain-until-date"),
            holds: has("x-amz-object-lock-legal-hold"),
            bypasses: values.any(is_asked),
            expected_owner: owner("x-amz-expected-bucket-owner")?,
            expected_source_owner: owner("x-amz-source-expected-bucket-owner")?,
        })
    }

    /// The facts of an object that comes with a form.
    pub fn of_put(input: &PutObjectInput) -> Self {
        let grants = [
            &input.grant_full_control,
            &input.grant_read,
            &input.grant_read_acp,
            &input.grant_write_acp,
        ];
        Self {
            target: ObjectName {
                bucket: input.bucket.clone(),
                key: input.key.clone(),
                is_version: false,
            },
            gives_acl: input.acl.is_some() || grants.iter().any(|grant| grant.is_some()),
            gives_tags: input.tagging.is_some(),
            retains: input.object_lock_mode.is_some()
                || input.object_lock_retain_until_date.is_some(),
            holds: input.object_lock_legal_hold_status.is_some(),
            ..Self::default()
        }
    }

    fn makes(&self, when: When) -> bool {
        let source = self.source.as_ref().map(|source| source.is_version);
        match when {
            When::Always => true,
            When::Version => self.target.is_version,
            When::Latest => !self.target.is_version,
            When::SourceVersion => source == Some(true),
            When::SourceLatest => source == Some(false),
            When::Acl => self.gives_acl,
            When::Tags => self.gives_tags,
            When::CopiesTags => self.copies_tags,
            When::Retention => self.retains,
            When::LegalHold => self.holds,
            When::Bypass => self.bypasses,
        }
    }

    /// The needs of a row.
    pub fn needs<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Need> {
        row.needs.iter().filter(|need| self.makes(need.when))
    }

    /// The bucket that a need is about, and the key or prefix there.
    pub fn place(&self, on: On) -> Option<(&str, &str)> {
        let target = &self.target;
        let bucket = target.bucket.as_str();
        match on {
            On::Volume => None,
            On::Bucket => Some((bucket, "")),
            On::Prefix => Some((bucket, self.prefix.as_str())),
            On::Object => Some((bucket, target.key.as_str())),
            On::Source => {
                let source = self.source.as_ref()?;
                Some((source.bucket.as_str(), source.key.as_str()))
            }
        }
    }
}

fn source_of(header: &http::HeaderValue) -> S3Result<ObjectName> {
    let wrong = || {
        s3_error!(
            InvalidArgument,
            "the source of a copy is BUCKET/KEY, with ?versionId=ID for a version"
        )
    };
    let text = std::str::from_utf8(header.as_bytes()).map_err(|_| wrong())?;
    match CopySource::parse(text).map_err(|_| wrong())? {
        CopySource::Bucket {
            bucket,
            key,
            version_id,
        } => Ok(ObjectName {
            bucket: bucket.into(),
            key: key.into(),
            is_version: version_id.is_some_and(|id| !id.is_empty()),
        }),
        _ => Err(s3_error!(
            NotImplemented,
            "the source can be a bucket and a key only"
        )),
    }
}

/// The reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    Policy,
    /// The key is for another part of the bucket, or for another bucket.
    Part,
    ReadOnly,
    /// The key is for certain buckets, and the operation needs a key for all.
    Certain,
    NotOwner,
    /// The operation needs a signature.
    Nobody,
}

impl Denial {
    pub fn error(self) -> S3Error {
        match self {
            Self::Policy => s3_error!(AccessDenied, "the policy of the bucket denies this"),
            Self::Part => s3_error!(
                AccessDenied,
                "the access key is not for this part of the bucket"
            ),
            Self::ReadOnly => s3_error!(AccessDenied, "the access key can only read"),
            Self::Certain => s3_error!(
                AccessDenied,
                "the access key is for certain buckets only; it makes none, and changes the settings of none"
            ),
            Self::NotOwner => s3_error!(
                AccessDenied,
                "this is for the owner of the bucket's directory, and for whom the bucket's policy allows it"
            ),
            Self::Nobody => s3_error!(
                AccessDenied,
                "the bucket does not let everybody do this; a signature is needed"
            ),
        }
    }
}

/// The operation is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    Yes,
    /// If the object's own ACL admits everybody.
    ByAcl,
}

/// The caller, and the facts about a bucket for the verdict.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// `None`: anonymous.
    pub key: Option<(&'a str, &'a AccessKey)>,
    /// Owner of the bucket's directory.
    pub is_owner: bool,
    pub policy: Option<&'a Policy>,
    /// The bucket's ACL lets everybody list it.
    pub public_read: bool,
}

impl Judge<'_> {
    pub fn verdict(&self, need: &Need, bucket: &str, name: &str) -> Result<Granted, Denial> {
        let Need { action, on, .. } = *need;
        let resource = match action.is_of_object() {
            true => format!("{bucket}/{name}"),
            false => bucket.to_owned(),
        };
        let id = self.key.map(|(id, _)| id);
        let said = match self.policy {
            Some(policy) => policy.verdict(id, action, &resource),
            None => Verdict::Silent,
        };
        let mends = action.mends() && self.is_owner;
        if said == Verdict::Deny && !mends {
            return Err(Denial::Policy);
        }
        if let Some((_, key)) = self.key {
            let is_for = match on {
                On::Volume => true,
                On::Bucket => key.may_see(bucket),
                On::Prefix | On::Object | On::Source => key.may_use(bucket, name),
            };
            let is_owners = action.governs() || on == On::Volume && action.changes();
            if !is_for {
                return Err(Denial::Part);
            }
            if action.changes() && key.read_only {
                return Err(Denial::ReadOnly);
            }
            if is_owners && !key.only.is_empty() {
                return Err(Denial::Certain);
            }
            if action.governs() && !self.is_owner && said != Verdict::Allow {
                return Err(Denial::NotOwner);
            }
            return Ok(Granted::Yes);
        }
        let lists = [
            Action::ListBucket,
            Action::ListBucketVersions,
            Action::GetBucketLocation,
        ];
        let reads = [Action::GetObject, Action::GetObjectVersion];
        let is_listed = self.public_read && lists.contains(&action);
        if said == Verdict::Allow || need.by_another_name || is_listed {
            return Ok(Granted::Yes);
        }
        match reads.contains(&action) {
            true => Ok(Granted::ByAcl),
            false => Err(Denial::Nobody),
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_objects::Permission;

    use super::*;
    use crate::operations::TABLE;

    const BUCKET: &str = "photos";

    fn key(only: &[(&str, &str)], read_only: bool) -> AccessKey {
        let text = format!(
            r#"{{"version": 1, "secret": "", "uid": 1, "gid": 1, "read_only": {read_only}, "created_seconds": 0}}"#
        );
        let only = only.iter().map(|(bucket, prefix)| Permission {
            bucket: (*bucket).to_owned(),
            prefix: (*prefix).to_owned(),
        });
        AccessKey {
            only: only.collect(),
            ..serde_json::from_str(&text).unwrap()
        }
    }

    /// A policy with one effect for everybody on one action.
    fn policy(effect: &str, action: Action) -> Policy {
        let text = format!(
            r#"{{"Statement": {{"Effect": "{effect}", "Principal": "*", "Action": "{}",
                "Resource": ["arn:aws:s3:::photos", "arn:aws:s3:::photos/*"]}}}}"#,
            action.name()
        );
        Policy::parse(&text, BUCKET).unwrap()
    }

    /// A request with the properties that make a need apply.
    fn facts(when: When) -> Facts {
        let named = |is_version| ObjectName {
            bucket: BUCKET.to_owned(),
            key: "a".to_owned(),
            is_version,
        };
        let source = [When::SourceVersion, When::SourceLatest, When::CopiesTags];
        Facts {
            target: named(when == When::Version),
            source: source
                .contains(&when)
                .then(|| named(when == When::SourceVersion)),
            gives_acl: when == When::Acl,
            gives_tags: when == When::Tags,
            copies_tags: when == When::CopiesTags,
            retains: when == When::Retention,
            holds: when == When::LegalHold,
            bypasses: when == When::Bypass,
            ..Facts::default()
        }
    }

    fn judged(row: &Row, facts: &Facts, judge: &Judge<'_>) -> Result<Granted, Denial> {
        let mut granted = Granted::Yes;
        for need in facts.needs(row) {
            let (bucket, name) = facts.place(need.on).unwrap_or_default();
            if judge.verdict(need, bucket, name)? == Granted::ByAcl {
                granted = Granted::ByAcl;
            }
        }
        Ok(granted)
    }

    /// A denial of any one action of a row denies the operation of the row; a denial of another action does not.
    #[test]
    fn each_need_of_each_row_can_be_denied() {
        let whole = key(&[], false);
        for row in TABLE.iter() {
            for need in row.needs.iter().filter(|need| need.on != On::Volume) {
                let facts = facts(need.when);
                assert!(facts.needs(row).any(|it| it == need), "{}", row.operation);
                for action in Action::ALL {
                    let policy = policy("Deny", *action);
                    let judge = Judge {
                        key: Some(("KEY", &whole)),
                        is_owner: true,
                        policy: Some(&policy),
                        public_read: false,
                    };
                    let is_needed = facts.needs(row).any(|it| it.action == *action);
                    let want = match is_needed && !action.mends() {
                        true => Err(Denial::Policy),
                        false => Ok(Granted::Yes),
                    };
                    let what = format!("{} {need:?} {action:?}", row.operation);
                    assert_eq!(judged(row, &facts, &judge), want, "{what}");
                    // Only the owner may change policies.
                    let other = Judge {
                        is_owner: false,
                        ..judge
                    };
                    if is_needed {
                        assert_eq!(judged(row, &facts, &other), Err(Denial::Policy), "{what}");
                    }
                }
            }
        }
    }

    /// Fewer actions than a row needs are not enough.
    #[test]
    fn nobody_is_let_in_by_a_part_of_what_is_needed() {
        for row in TABLE.iter().filter(|row| row.is_open) {
            for need in row.needs.iter().filter(|need| !need.by_another_name) {
                let facts = facts(need.when);
                let needed: Vec<Action> = facts
                    .needs(row)
                    .filter(|need| !need.by_another_name)
                    .map(|need| need.action)
                    .collect();
                for action in Action::ALL {
                    let policy = policy("Allow", *action);
                    let judge = Judge {
                        key: None,
                        is_owner: false,
                        policy: Some(&policy),
                        public_read: false,
                    };
                    let judged = judged(row, &facts, &judge);
                    let is_enough = needed.iter().all(|needed| needed == action);
                    let what = format!("{} {need:?} {action:?}", row.operation);
                    assert_eq!(judged == Ok(Granted::Yes), is_enough, "{what} {judged:?}");
                }
            }
        }
    }

    #[test]
    fn keys_do_what_they_were_made_for() {
        let (whole, reader) = (key(&[], false), key(&[], true));
        let (part, other) = (key(&[(BUCKET, "a")], false), key(&[("other", "")], false));
        for row in TABLE.iter() {
            for need in &row.needs {
                let judge = |key, is_owner| Judge {
                    key: Some(("KEY", key)),
                    is_owner,
                    policy: None,
                    public_read: true,
                };
                let is_volume = need.on == On::Volume;
                let (bucket, name) = match is_volume {
                    true => ("", ""),
                    false => (BUCKET, "a"),
                };
                let verdict = |key, is_owner| judge(key, is_owner).verdict(need, bucket, name);
                let what = format!("{} {need:?}", row.operation);
                let (changes, governs) = (need.action.changes(), need.action.governs());
                assert_eq!(verdict(&whole, true), Ok(Granted::Yes), "{what}");
                assert_eq!(verdict(&whole, false).is_err(), governs, "{what}");
                assert_eq!(verdict(&reader, true).is_err(), changes, "{what}");
                let is_whole = governs || is_volume && changes;
                assert_eq!(verdict(&part, true).is_err(), is_whole, "{what}");
                assert_eq!(
                    verdict(&other, true).is_ok(),
                    is_volume && !changes,
                    "{what}"
                );
                if matches!(need.on, On::Prefix | On::Object | On::Source) {
                    let elsewhere = judge(&part, true).verdict(need, BUCKET, "b");
                    assert_eq!(elsewhere, Err(Denial::Part), "{what}");
                }
                if governs {
                    let policy = policy("Allow", need.action);
                    let allowed = Judge {
                        policy: Some(&policy),
                        ..judge(&whole, false)
                    };
                    let allowed = allowed.verdict(need, bucket, name);
                    assert_eq!(allowed, Ok(Granted::Yes), "{what}");
                }
            }
        }
    }

    #[test]
    fn what_a_request_says_is_read() {
        let path = S3Path::Object {
            bucket: BUCKET.into(),
            key: "a".into(),
        };
        let of = |query: &str, headers: &[(&'static str, &str)]| {
            let headers: http::HeaderMap = headers
                .iter()
                .map(|(name, value)| {
                    let name: http::HeaderName = name.parse().unwrap();
                    (name, value.parse().unwrap())
                })
                .collect();
            Facts::of_request(&path, query, &headers)
        };
        let plain = of("", &[]).unwrap();
        assert_eq!(plain.target.key, "a");
        assert_eq!(of("versionId=", &[]).unwrap(), plain);
        assert!(of("version%49d=null", &[]).unwrap().target.is_version);
        let bypass = "x-amz-bypass-governance-retention";
        assert!(of("", &[(bypass, "true")]).unwrap().bypasses);
        assert!(of("", &[(bypass, "True")]).unwrap().bypasses);
        assert!(!of("", &[(bypass, "False")]).unwrap().bypasses);
        let copy = ("x-amz-copy-source", "/other/b%20c?versionId=null");
        let copied = of("", &[copy, ("x-amz-tagging-directive", "REPLACE")]).unwrap();
        let source = copied.source.clone().unwrap();
        assert_eq!((&*source.bucket, &*source.key), ("other", "b c"));
        assert!(source.is_version && !copied.copies_tags);
        assert!(of("", &[copy]).unwrap().copies_tags);
        assert!(of("", &[("x-amz-copy-source", "nowhere")]).is_err());
        assert!(of("", &[("x-amz-grant-read", "id=1")]).unwrap().gives_acl);
        let owned = of("", &[("x-amz-expected-bucket-owner", "1000")]).unwrap();
        assert_eq!(owned.expected_owner.as_deref(), Some("1000"));
        assert_eq!(owned.expected_source_owner, None);
    }
}
