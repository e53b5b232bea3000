//! Bucket policies: who may do what with which objects, as JSON (IAM User Guide, "Grammar of the IAM JSON policy language").
//!
//! Owns: the part of the language that there is, and what a policy says to a request. Must not know: requests.
//!
//! What is not understood is refused when a policy is put: one that was half understood would allow what it was to deny.

use serde::Deserialize;

use crate::records::ObjectError;

/// Of a policy, as AWS has it.
pub const POLICY_LEN_BYTES_MAX: usize = 20 << 10;
const ARN: &str = "arn:aws:s3:::";
const VERSIONS: [&str; 2] = ["2008-10-17", "2012-10-17"];

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

/// Everybody, or an access key: by itself, or at the end of an ARN.
fn is_principal(named: &str, key: Option<&str>) -> bool {
    let last = named.rsplit(['/', ':']).next().unwrap_or_default();
    named == "*" || key.is_some_and(|key| last == key)
}

impl Principal {
    fn is(&self, key: Option<&str>) -> bool {
        match self {
            Self::Any(any) => is_principal(any, None),
            Self::Named(named) => named.aws.iter().any(|named| is_principal(named, key)),
        }
    }
}

impl Policy {
    /// Reads a policy of a bucket, or says what is wrong with it or not there.
    pub fn parse(text: &str, bucket: &str) -> Result<Self, ObjectError> {
        let refused = |why: String| ObjectError::Policy(why);
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
                if action != "*" && !action.starts_with("s3:") {
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

    /// What it says to an action (`s3:GetObject`) on a resource (`bucket` or `bucket/key`) by an access key, or by nobody.
    pub fn verdict(&self, key: Option<&str>, action: &str, resource: &str) -> Verdict {
        let arn = format!("{ARN}{resource}");
        let mut verdict = Verdict::Silent;
        for statement in &self.statements {
            let is_meant = statement.principal.is(key)
                && statement
                    .action
                    .iter()
                    .any(|pattern| is_like(pattern.as_bytes(), action.as_bytes()))
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
            (None, "s3:GetObject", "photos/public/a", Verdict::Allow),
            (
                Some("ANY"),
                "s3:GetObject",
                "photos/public/a",
                Verdict::Allow,
            ),
            (None, "s3:GetObject", "photos/private", Verdict::Silent),
            (None, "s3:PutObject", "photos/public/a", Verdict::Silent),
            (
                Some("KEY"),
                "s3:PutObject",
                "photos/public/a",
                Verdict::Deny,
            ),
            (Some("OTHER"), "s3:DeleteObject", "photos/b", Verdict::Deny),
            (
                Some("THIRD"),
                "s3:DeleteObject",
                "photos/b",
                Verdict::Silent,
            ),
        ] {
            let got = policy.verdict(key, action, resource);
            assert_eq!(got, want, "{key:?} {action} {resource}");
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

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Policy::parse(&text, "photos");
        }
    }
}
