//! Bucket policies: who may do what with which objects, as JSON (IAM User Guide, "Grammar of the IAM JSON policy language").
//!
//! Owns: the part of the language that there is, and what a policy says to a request. Must not know: requests.
//!
//! A policy with an element that is not supported is refused when it is put: one that was half understood would allow what it was
//! to deny. So is a policy with an element that can never match: a misspelt name would deny nothing, and nobody would notice.

use serde::Deserialize;
use thiserror::Error;

use crate::actions::Action;

/// Of a policy, as AWS has it.
pub const POLICY_LEN_BYTES_MAX: usize = 20 << 10;
const ARN: &str = "arn:aws:s3:::";
const VERSIONS: [&str; 2] = ["2008-10-17", "2012-10-17"];

/// Why a policy is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the policy cannot be used: {0}")]
pub struct PolicyError(String);

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Deny,
    Allow,
    /// Nothing about this.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    statements: Vec<Statement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Many<Statement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Statement {
    #[serde(rename = "Sid", default)]
    _sid: Option<String>,
    effect: Effect,
    principal: Principal,
    action: Many<String>,
    resource: Many<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Effect {
    Allow,
    Deny,
}

/// One, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Many<T> {
    One(T),
    List(Vec<T>),
}

impl<T> Many<T> {
    fn iter(&self) -> std::slice::Iter<'_, T> {
        match self {
            Self::One(one) => std::slice::from_ref(one).iter(),
            Self::List(list) => list.iter(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Principal {
    Any(String),
    Named(Named),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(rename = "AWS")]
    aws: Many<String>,
}

/// The access key that is named: by itself, or at the end of an ARN.
fn last_of(named: &str) -> &str {
    named.rsplit(['/', ':']).next().unwrap_or_default()
}

/// Everybody, or an access key.
fn is_principal(named: &str, key: Option<&str>) -> bool {
    named == "*" || key.is_some_and(|key| last_of(named) == key)
}

/// Whether a pattern means an action: capitals are no matter.
fn is_action(pattern: &str, action: Action) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    is_like(
        pattern.as_bytes(),
        action.name().to_ascii_lowercase().as_bytes(),
    )
}

impl Principal {
    fn is_somebody(&self) -> bool {
        match self {
            Self::Any(_) => true,
            Self::Named(named) => named.aws.iter().len() > 0,
        }
    }

    fn is(&self, key: Option<&str>) -> bool {
        match self {
            Self::Any(any) => is_principal(any, None),
            Self::Named(named) => named.aws.iter().any(|named| is_principal(named, key)),
        }
    }
}

impl Statement {
    fn check(
        &self,
        is_key: impl Fn(&str) -> bool,
        check_pattern: impl Fn(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        if let Principal::Named(named) = &self.principal {
            let mut names = named.aws.iter();
            if let Some(name) = names.find(|name| *name != "*" && !is_key(last_of(name))) {
                return Err(format!(
                    "\"{name}\" is no access key of the volume; a principal is \"*\", a key, or an ARN that ends with one"
                ));
            }
        }
        let is_empty = self.action.iter().len() == 0 || self.resource.iter().len() == 0;
        if is_empty || !self.principal.is_somebody() {
            return Err("a statement has a principal, an action and a resource".to_owned());
        }
        for resource in self.resource.iter() {
            if resource.contains("${") {
                return Err(format!(
                    "\"{resource}\" has a variable, which there are none of"
                ));
            }
            if let Some((_, key)) = resource.split_once('/')
                && let Err(why) = check_pattern(key)
            {
                return Err(format!("\"{resource}\" is like no object here: {why}"));
            }
        }
        for pattern in self.action.iter() {
            let meant = Action::ALL
                .iter()
                .filter(|action| !action.is_of_volume() && is_action(pattern, **action));
            let meant: Vec<&Action> = meant.collect();
            if meant.is_empty() {
                return Err(format!(
                    "\"{pattern}\" is no action that there is here for a bucket or its objects"
                ));
            }
            let applies = |resource: &String| {
                // All of a star; else with a slash it is of objects.
                let is_any = resource.strip_prefix(ARN) == Some("*");
                let of_object = resource.contains('/');
                is_any
                    || meant
                        .iter()
                        .any(|action| action.is_of_object() == of_object)
            };
            if !self.resource.iter().any(applies) {
                return Err(format!(
                    "\"{pattern}\" applies to none of the resources: actions on a bucket are for {ARN}BUCKET, those on objects for \
                     {ARN}BUCKET/KEY"
                ));
            }
        }
        Ok(())
    }
}

impl Policy {
    /// Reads the policy of `bucket`. Fails with the first element that is wrong or missing.
    pub fn parse(text: &str, bucket: &str) -> Result<Self, PolicyError> {
        let refused = PolicyError;
        if text.len() > POLICY_LEN_BYTES_MAX {
            return Err(refused(format!(
                "a policy has at most {POLICY_LEN_BYTES_MAX} bytes"
            )));
        }
        let document: Document = serde_json::from_str(text).map_err(|error| {
            refused(format!(
                "{error}; there are Effect, Principal, Action and Resource, and no conditions"
            ))
        })?;
        let version = document.version.as_deref();
        if version.is_some_and(|version| !VERSIONS.contains(&version)) {
            return Err(refused("the version is 2012-10-17".to_owned()));
        }
        let statements: Vec<Statement> = document.statement.iter().cloned().collect();
        if statements.is_empty() {
            return Err(refused("there is no statement".to_owned()));
        }
        for statement in &statements {
            if let Principal::Any(any) = &statement.principal
                && any != "*"
            {
                return Err(refused(format!("there is no principal \"{any}\"")));
            }
            for action in statement.action.iter() {
                let is_of_s3 = action
                    .get(..3)
                    .is_some_and(|service| service.eq_ignore_ascii_case("s3:"));
                if action != "*" && !is_of_s3 {
                    return Err(refused(format!("\"{action}\" is no action of S3")));
                }
            }
            for resource in statement.resource.iter() {
                let path = resource.strip_prefix(ARN);
                let of = path.map(|path| path.split('/').next().unwrap_or_default());
                if of != Some(bucket) && path != Some("*") {
                    return Err(refused(format!(
                        "\"{resource}\" is not in this bucket, {ARN}{bucket}"
                    )));
                }
            }
        }
        Ok(Self { statements })
    }

    /// What holds in the place of one that cannot be read: everything is denied.
    pub fn closed() -> Self {
        let any = || Many::One("*".to_owned());
        let statement = Statement {
            _sid: None,
            effect: Effect::Deny,
            principal: Principal::Any("*".to_owned()),
            action: any(),
            resource: any(),
        };
        Self {
            statements: vec![statement],
        }
    }

    /// Refuses what would never be meant, of a policy that is put. `is_key`: whether there is an access key of that name;
    /// `check_pattern`: why no key of an object is like a pattern with stars and question marks, if none can be.
    pub fn check(
        &self,
        is_key: impl Fn(&str) -> bool,
        check_pattern: impl Fn(&str) -> Result<(), String>,
    ) -> Result<(), PolicyError> {
        for statement in &self.statements {
            let checked = statement.check(&is_key, &check_pattern);
            checked.map_err(PolicyError)?;
        }
        Ok(())
    }

    /// What it says to an action on a resource (`bucket` or `bucket/key`) by an access key, or by nobody.
    pub fn verdict(&self, key: Option<&str>, action: Action, resource: &str) -> Verdict {
        let arn = format!("{ARN}{resource}");
        let mut verdict = Verdict::Silent;
        for statement in &self.statements {
            let is_meant = statement.principal.is(key)
                && statement
                    .action
                    .iter()
                    .any(|pattern| is_action(pattern, action))
                && statement
                    .resource
                    .iter()
                    .any(|pattern| is_like(pattern.as_bytes(), arn.as_bytes()));
            match (is_meant, statement.effect) {
                (true, Effect::Deny) => return Verdict::Deny,
                (true, Effect::Allow) => verdict = Verdict::Allow,
                (false, _) => {}
            }
        }
        verdict
    }

    /// Whether it lets those in who show no access key.
    pub fn is_public(&self) -> bool {
        let lets_in = |statement: &Statement| {
            statement.effect == Effect::Allow && statement.principal.is(None)
        };
        self.statements.iter().any(lets_in)
    }
}

/// `*` is any bytes, `?` is one. Takes time in proportion to both lengths at worst.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last star is, and what it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[from] => {
                at += 1;
                from += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    from = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("*b*", "abc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a**b", "ab", true),
            ("*a*b*c", "xaxbxbxc", true),
            ("", "", true),
            ("", "a", false),
        ] {
            let got = is_like(pattern.as_bytes(), text.as_bytes());
            assert_eq!(got, want, "{pattern} {text}");
        }
    }

    #[test]
    fn a_policy_says_who_may_what() {
        let text = r#"{"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/public/*"},
            {"Sid": "no", "Effect": "Deny", "Principal": {"AWS": ["arn:aws:iam::1:user/KEY", "OTHER"]},
             "Action": ["s3:Delete*", "s3:PutObject"], "Resource": ["arn:aws:s3:::photos/*", "arn:aws:s3:::photos"]}]}"#;
        let policy = Policy::parse(text, "photos").unwrap();
        assert!(policy.is_public());
        for (key, action, resource, want) in [
            (None, Action::GetObject, "photos/public/a", Verdict::Allow),
            (
                Some("ANY"),
                Action::GetObject,
                "photos/public/a",
                Verdict::Allow,
            ),
            (None, Action::GetObject, "photos/private", Verdict::Silent),
            (None, Action::PutObject, "photos/public/a", Verdict::Silent),
            (
                Some("KEY"),
                Action::PutObject,
                "photos/public/a",
                Verdict::Deny,
            ),
            (
                Some("OTHER"),
                Action::DeleteObject,
                "photos/b",
                Verdict::Deny,
            ),
            (
                Some("THIRD"),
                Action::DeleteObject,
                "photos/b",
                Verdict::Silent,
            ),
        ] {
            let got = policy.verdict(key, action, resource);
            assert_eq!(got, want, "{key:?} {action:?} {resource}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let statement = |more: &str| {
            format!(
                r#"{{"Statement": {{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::photos/*"{more}}}}}"#
            )
        };
        assert!(Policy::parse(&statement(""), "photos").is_ok());
        for wrong in [
            statement(r#", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}"#),
            statement(r#", "NotAction": "s3:GetObject""#),
            statement("").replace("Allow", "allow"),
            statement("").replace("s3:*", "iam:*"),
            statement("").replace(":photos", ":other"),
            statement("").replace("\"*\"", "\"everybody\""),
            r#"{"Version": "2020-01-01", "Statement": []}"#.to_owned(),
            r#"{"Statement": []}"#.to_owned(),
            "[]".to_owned(),
            String::new(),
            "x".repeat(POLICY_LEN_BYTES_MAX + 1),
        ] {
            assert!(Policy::parse(&wrong, "photos").is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_actions_are_matched_as_aws_does() {
        for (pattern, action, want) in [
            ("s3:getobject", Action::GetObject, true),
            ("S3:GETOBJECT", Action::GetObject, true),
            ("s3:get*", Action::GetBucketPolicy, true),
            ("s3:*Object", Action::DeleteObject, true),
            ("s3:G?tObject", Action::GetObject, true),
            ("s3:GetObjct", Action::GetObject, false),
            ("s3:GetObject", Action::GetObjectVersion, false),
            ("*", Action::PutBucketAcl, true),
        ] {
            assert_eq!(is_action(pattern, action), want, "{pattern}");
            let text = format!(
                r#"{{"Statement": {{"Effect": "Deny", "Principal": "*", "Action": "{pattern}", "Resource": ["arn:aws:s3:::photos/*", "arn:aws:s3:::photos"]}}}}"#
            );
            let policy = Policy::parse(&text, "photos").unwrap();
            let resource = match action.is_of_object() {
                true => "photos/a",
                false => "photos",
            };
            let denies = policy.verdict(Some("KEY"), action, resource) == Verdict::Deny;
            assert_eq!(denies, want, "{pattern}");
        }
    }

    /// A policy that means nobody or nothing was taken, and denied nothing.
    #[test]
    fn what_would_never_be_meant_is_refused() {
        let made = |principal: &str, action: &str, resource: &str| {
            let text = format!(
                r#"{{"Statement": {{"Effect": "Deny", "Principal": {principal}, "Action": {action}, "Resource": {resource}}}}}"#
            );
            let check_pattern = |pattern: &str| match pattern.starts_with('/') {
                true => Err("a slash".to_owned()),
                false => Ok(()),
            };
            Policy::parse(&text, "photos")
                .and_then(|policy| policy.check(|key| key == "KEY", check_pattern))
        };
        let (bucket, objects) = (r#""arn:aws:s3:::photos""#, r#""arn:aws:s3:::photos/*""#);
        for (principal, action, resource) in [
            (r#""*""#, r#""s3:getobject""#, objects),
            (
                r#"{"AWS": "KEY"}"#,
                r#"["s3:Get*", "s3:PutObject"]"#,
                objects,
            ),
            (
                r#"{"AWS": ["arn:aws:iam::1:user/KEY", "*"]}"#,
                r#""*""#,
                bucket,
            ),
            (r#""*""#, r#""s3:*""#, bucket),
            (r#""*""#, r#""s3:ListBucket""#, r#""arn:aws:s3:::*""#),
        ] {
            let taken = made(principal, action, resource);
            assert!(taken.is_ok(), "{principal} {action} {resource}: {taken:?}");
        }
        for (principal, action, resource) in [
            (r#""*""#, r#""s3:GetObjct""#, objects),
            (r#""*""#, r#"["s3:GetObject", "s3:Nothing*"]"#, objects),
            (r#""*""#, r#""s3:CreateBucket""#, bucket),
            (r#""*""#, r#""s3:*""#, r#""arn:aws:s3:::photos//x""#),
            (
                r#""*""#,
                r#""s3:*""#,
                r#"["arn:aws:s3:::photos/*", "arn:aws:s3:::photos//x"]"#,
            ),
            (r#""*""#, r#""s3:GetObject""#, bucket),
            (r#""*""#, r#""s3:PutBucketPolicy""#, objects),
            (r#"{"AWS": "KEI"}"#, r#""s3:*""#, objects),
            (
                r#"{"AWS": ["KEY", "arn:aws:iam::1:user/OTHER"]}"#,
                r#""s3:*""#,
                objects,
            ),
            (r#"{"AWS": []}"#, r#""s3:*""#, objects),
            (r#""*""#, "[]", objects),
            (r#""*""#, r#""s3:*""#, "[]"),
            (
                r#""*""#,
                r#""s3:*""#,
                r#""arn:aws:s3:::photos/${aws:username}/*""#,
            ),
        ] {
            let taken = made(principal, action, resource);
            assert!(taken.is_err(), "{principal} {action} {resource}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Policy::parse(&text, "photos");
        }
    }
}
