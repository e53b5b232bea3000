//! Who somebody is by the claims of an ID token.
//!
//! Owns: which texts are names, how a claim is found, which role its values give.

use std::fmt;
use std::str::FromStr;

use cairn_config::{Oidc, Role, TOKEN_USER};
use serde_json::{Map, Value};

use crate::id_token::shortened;
use crate::provider::OidcError;

/// Longest name of somebody whom a provider knows, in bytes.
pub const PERSON_NAME_LEN_BYTES_MAX: usize = 128;
/// Most values of a claim that a message tells.
const TOLD_MAX: usize = 10;

/// What a provider calls somebody: `alice`, `alice@example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonName(String);

impl PersonName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PersonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// It is not a name that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoName;

impl FromStr for PersonName {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Self, NoName> {
        let is_first = text.starts_with(|letter: char| letter.is_ascii_alphanumeric());
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte);
        let is_short = text.len() <= PERSON_NAME_LEN_BYTES_MAX;
        let is_name = is_first && is_short && text.bytes().all(is_plain) && text != TOKEN_USER;
        is_name.then(|| Self(text.to_owned())).ok_or(NoName)
    }
}

/// Somebody whom the provider knows and who may come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub name: PersonName,
    pub role: Role,
}

/// A claim by its whole name, or by a path with dots.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        claim(claims.get(first)?.as_object()?, rest)
    })
}

/// The texts that a claim has: one, or a list.
fn texts(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

impl Person {
    /// Who has these claims, if the settings let them in.
    pub fn of(claims: &Map<String, Value>, settings: &Oidc) -> Result<Self, OidcError> {
        let named = claim(claims, &settings.name_claim).and_then(Value::as_str);
        let Some(name) = named else {
            return Err(OidcError::NoName {
                claim: settings.name_claim.clone(),
            });
        };
        let name = name.parse().map_err(|NoName| OidcError::BadName {
            claim: settings.name_claim.clone(),
            name: shortened(name),
        })?;
        let found = texts(claim(claims, &settings.role_claim));
        let has = |wanted: &[String]| wanted.iter().any(|one| found.contains(&one.as_str()));
        let role = match (has(&settings.admins), has(&settings.viewers)) {
            (true, _) => Role::Admin,
            (false, true) => Role::Viewer,
            (false, false) => {
                let told = found.iter().take(TOLD_MAX).copied();
                return Err(OidcError::NoRole {
                    name,
                    claim: settings.role_claim.clone(),
                    values: shortened(&told.collect::<Vec<_>>().join(", ")),
                });
            }
        };
        Ok(Self { name, role })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(role_claim: &str) -> Oidc {
        Oidc {
            issuer: "https://id".to_owned(),
            client_id: "cairn".to_owned(),
            client_secret_file: None,
            addresses: vec!["https://a".to_owned()],
            name_claim: "preferred_username".to_owned(),
            role_claim: role_claim.to_owned(),
            admins: vec!["storage-admins".to_owned()],
            viewers: vec!["staff".to_owned(), "guests".to_owned()],
            scopes: vec![],
            text: "Example".to_owned(),
        }
    }

    #[test]
    fn claims_give_a_role_or_none() {
        let admin = "storage-admins";
        let cases = [
            ("groups", json!({"groups": ["staff"]}), Some(Role::Viewer)),
            ("groups", json!({"groups": "guests"}), Some(Role::Viewer)),
            (
                "groups",
                json!({"groups": ["staff", admin]}),
                Some(Role::Admin),
            ),
            (
                "groups",
                json!({"groups": [7, null, "staff"]}),
                Some(Role::Viewer),
            ),
            ("groups", json!({"groups": ["Staff", "staff "]}), None),
            ("groups", json!({"groups": {"staff": true}}), None),
            ("groups", json!({}), None),
            (
                "realm.roles",
                json!({"realm": {"roles": [admin]}}),
                Some(Role::Admin),
            ),
            (
                "realm.roles",
                json!({"realm.roles": ["staff"]}),
                Some(Role::Viewer),
            ),
            (
                "https://a.b/roles",
                json!({"https://a.b/roles": ["staff"]}),
                Some(Role::Viewer),
            ),
            ("realm.roles", json!({"realm": [admin]}), None),
        ];
        for (role_claim, mut claims, want) in cases {
            claims["preferred_username"] = json!("alice");
            let got = Person::of(claims.as_object().unwrap(), &settings(role_claim));
            assert_eq!(got.as_ref().ok().map(|it| it.role), want, "{claims}");
            let is_told = matches!(got, Ok(_) | Err(OidcError::NoRole { .. }));
            assert!(is_told, "{claims}");
        }
    }

    #[test]
    fn names_are_taken_or_refused() {
        let long = "a".repeat(PERSON_NAME_LEN_BYTES_MAX);
        let longer = format!("{long}a");
        let cases = [
            (json!("alice"), true),
            (json!("Alice.B+c@example.org"), true),
            (json!(long), true),
            (json!(longer), false),
            (json!("token"), false),
            (json!("?"), false),
            (json!("alice b"), false),
            (json!("a\nb"), false),
            (json!("älice"), false),
            (json!(""), false),
            (json!(7), false),
            (json!(["alice"]), false),
        ];
        for (name, want) in cases {
            let claims = json!({"preferred_username": name, "groups": "staff"});
            let got = Person::of(claims.as_object().unwrap(), &settings("groups"));
            assert_eq!(got.is_ok(), want, "{claims}");
        }
    }
}
