//! What an OpenID provider, or whoever says so, sends to a log-in: ID tokens, their claims, the provider's keys.
//!
//! The first byte says which of them the rest is.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cairn_config::{Oidc, Role};
use cairn_oidc::id_token::{CLOCK_SECONDS_MAX, Expected, TokenError, check};
use cairn_oidc::keys::{Key, read};
use cairn_oidc::{OidcError, PERSON_NAME_LEN_BYTES_MAX, Person};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Map, Value};

const ISSUER: &str = "https://id.example.org";
const CLIENT: &str = "cairn";
const NONCE: &str = "n";
const NOW_SECONDS: i64 = 1_800_000_000;
/// What nobody but the provider can sign. The signature is that of the seed with which the corpus begins.
const CLAIMS: &str = r#"{"iss":"https://id.example.org","aud":"cairn","exp":1800000300,"iat":1800000000,"nonce":"n","preferred_username":"alice","groups":["storage"]}"#;
const HEAD: &str = r#"{"alg":"EdDSA","kid":"one"}"#;

static PAIR: LazyLock<Ed25519KeyPair> = LazyLock::new(|| {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("any 32 bytes are a seed")
});

/// The provider's keys as it publishes them.
pub fn key_set() -> String {
    let public = BASE64_URL_SAFE_NO_PAD.encode(PAIR.public_key().as_ref());
    format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"one","x":"{public}"}}]}}"#)
}

/// A token as the provider makes it.
pub fn token(head: &[u8], claims: &[u8]) -> String {
    let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let signed = format!("{}.{}", part(head), part(claims));
    let signature = PAIR.sign(signed.as_bytes());
    format!("{signed}.{}", part(signature.as_ref()))
}

/// The token that is right.
pub fn right_token() -> String {
    token(HEAD.as_bytes(), CLAIMS.as_bytes())
}

pub fn right_claims() -> &'static str {
    CLAIMS
}

fn checked(token: &str, keys: &[Key]) -> Result<Map<String, Value>, TokenError> {
    let expected = Expected {
        issuer: ISSUER,
        client_id: CLIENT,
        nonce: NONCE,
        now_seconds: NOW_SECONDS,
    };
    check(token, keys, &expected)
}

fn keys() -> Vec<Key> {
    read(key_set().as_bytes()).expect("it is a set of keys")
}

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => unsigned(rest),
        1 => claims(HEAD.as_bytes(), rest),
        2 => key_sets(rest),
        // A head of any kind, signed as well.
        _ => claims(rest, CLAIMS.as_bytes()),
    }
}

/// No text is a token but one that the provider made.
fn unsigned(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if checked(text, &keys()).is_ok() {
        assert_eq!(text, right_token());
    }
}

/// Whatever is signed: who gets in is meant by it, now, and has a role.
fn claims(head: &[u8], claims: &[u8]) {
    let Ok(found) = checked(&token(head, claims), &keys()) else {
        return;
    };
    let text = |name: &str| found.get(name).and_then(Value::as_str);
    assert_eq!((text("iss"), text("nonce")), (Some(ISSUER), Some(NONCE)));
    let audience = found.get("aud").expect("it has an audience");
    let is_us = |value: &Value| value.as_str() == Some(CLIENT);
    let others = match audience {
        Value::Array(all) => {
            assert!(all.iter().any(is_us), "{audience}");
            !all.iter().all(is_us)
        }
        one => {
            assert!(is_us(one), "{audience}");
            false
        }
    };
    match found.get("azp") {
        Some(Value::String(azp)) => assert_eq!(azp, CLIENT),
        _ => assert!(!others, "{audience}"),
    }
    let time = |name: &str| found.get(name).and_then(Value::as_f64);
    let (now, apart) = (NOW_SECONDS as f64, CLOCK_SECONDS_MAX as f64 + 1.0);
    assert!(time("exp").is_some_and(|exp| exp > now - apart));
    assert!(time("iat").is_some_and(|iat| iat < now + apart));
    assert!(time("nbf").is_none_or(|nbf| nbf < now + apart));

    let settings = settings();
    match Person::of(&found, &settings) {
        Ok(person) => {
            assert!((1..=PERSON_NAME_LEN_BYTES_MAX).contains(&person.name.as_str().len()));
            assert!(person.name.as_str().is_ascii() && person.name.as_str() != "token");
            let groups = found.get("groups").cloned().unwrap_or_default().to_string();
            let wanted = match person.role {
                Role::Admin => "storage",
                Role::Viewer => "staff",
            };
            // Text of JSON may say it in other letters.
            assert!(groups.contains(wanted), "{groups}");
        }
        Err(OidcError::NoName { .. } | OidcError::BadName { .. } | OidcError::NoRole { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Keys of others vouch for nothing.
fn key_sets(set: &[u8]) {
    let Ok(keys) = read(set) else {
        return;
    };
    if checked(&right_token(), &keys).is_ok() {
        let public = BASE64_URL_SAFE_NO_PAD.encode(PAIR.public_key().as_ref());
        // It may be written with escapes; then it is in the set as it was read.
        let set: Value = serde_json::from_slice(set).expect("it was read");
        assert!(set.to_string().contains(&public), "{set}");
    }
}

fn settings() -> Oidc {
    let texts = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
    Oidc {
        issuer: ISSUER.to_owned(),
        client_id: CLIENT.to_owned(),
        client_secret_file: None,
        addresses: texts(&["https://cairn.example.org:8049"]),
        name_claim: "preferred_username".to_owned(),
        role_claim: "groups".to_owned(),
        admins: texts(&["storage"]),
        viewers: texts(&["staff"]),
        scopes: texts(&["profile"]),
        text: "OpenID".to_owned(),
    }
}
