//! The ID token (OpenID Connect Core 1.0, sections 2 and 3.1.3.7; JWS as in RFC 7515).
//!
//! Owns: what must be right of one before a claim of it is looked at. Does no I/O and reads no clock.
//! Must not know: which claims are a name or a role.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::keys::{Algorithm, Key};

/// How far the provider's clock and ours may be apart, in seconds.
pub const CLOCK_SECONDS_MAX: i64 = 60;
/// Longest token, in bytes: one with hundreds of groups is shorter.
pub const TOKEN_LEN_BYTES_MAX: usize = 64 << 10;

/// Why an ID token proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it cannot be read: {0}")]
    Malformed(&'static str),
    #[error("it is signed by {0}, which is not taken")]
    Algorithm(String),
    #[error("it is signed with a key that the provider does not publish")]
    UnknownKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("it is of {0}, which is not the provider")]
    Issuer(String),
    #[error("it is for another audience, {0}, and not for this client")]
    Audience(String),
    #[error("its nonce is not that of this log-in")]
    Nonce,
    #[error(
        "it expired {0} s ago: if it was just made, the provider's clock and that of this server are apart"
    )]
    Expired(i64),
    #[error(
        "it is from {0} s in the future: the provider's clock and that of this server are apart"
    )]
    Future(i64),
}

/// What a token must be.
pub struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: &'a str,
    pub now_seconds: i64,
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions without which the token must not be understood. We know none.
    #[serde(default)]
    crit: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Some(Vec<String>),
}

/// The fields that are checked here; the rest is for others.
#[derive(Deserialize)]
struct CheckedClaims {
    iss: String,
    aud: Audience,
    #[serde(default)]
    azp: Option<String>,
    exp: Value,
    iat: Value,
    #[serde(default)]
    nbf: Option<Value>,
    #[serde(default)]
    nonce: Option<String>,
}

fn decoded(part: &str) -> Result<Vec<u8>, TokenError> {
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(part);
    decoded.map_err(|_| TokenError::Malformed("a part is not base64url"))
}

/// A time in seconds: providers may send fractions.
fn seconds(value: &Value) -> Result<i64, TokenError> {
    let whole = value.as_i64();
    // Saturates; what is beyond all times is in the future or the past just the same.
    let any = whole.or_else(|| value.as_f64().map(|it| it as i64));
    any.ok_or(TokenError::Malformed("a time is not a number"))
}

/// The claims of a token that `keys` vouch for, if it is what is expected.
pub fn check(
    token: &str,
    keys: &[Key],
    expected: &Expected<'_>,
) -> Result<Map<String, Value>, TokenError> {
    if token.len() > TOKEN_LEN_BYTES_MAX {
        return Err(TokenError::Malformed("it is too long"));
    }
    let parts = TokenError::Malformed("it has not three parts");
    let (signed, signature) = token.rsplit_once('.').ok_or(parts.clone())?;
    let (head, body) = signed.split_once('.').ok_or(parts)?;
    let head: Head = serde_json::from_slice(&decoded(head)?)
        .map_err(|_| TokenError::Malformed("its head is not that of a signed token"))?;
    if head.crit.is_some() {
        return Err(TokenError::Malformed("it asks for extensions"));
    }
    let algorithm = Algorithm::named(&head.alg);
    let algorithm = algorithm.ok_or_else(|| TokenError::Algorithm(shortened(&head.alg)))?;
    let signature = decoded(signature)?;
    let mut candidates = keys
        .iter()
        .filter(|key| key.may_be(&head.alg, head.kid.as_deref()))
        .peekable();
    if candidates.peek().is_none() {
        return Err(TokenError::UnknownKey);
    }
    if !candidates.any(|key| key.vouches(algorithm, signed.as_bytes(), &signature)) {
        return Err(TokenError::Signature);
    }
    let body = decoded(body)?;
    let unread = |_| TokenError::Malformed("its claims are not those of an ID token");
    let claims: CheckedClaims = serde_json::from_slice(&body).map_err(unread)?;
    is_expected(&claims, expected)?;
    serde_json::from_slice(&body).map_err(unread)
}

fn is_expected(claims: &CheckedClaims, expected: &Expected<'_>) -> Result<(), TokenError> {
    if claims.iss != expected.issuer {
        return Err(TokenError::Issuer(shortened(&claims.iss)));
    }
    let (is_for_us, are_others, named) = match &claims.aud {
        Audience::One(one) => (one == expected.client_id, false, one.clone()),
        Audience::Some(all) => {
            let is_us = |one: &String| one == expected.client_id;
            let is_for_us = all.iter().any(is_us);
            (is_for_us, !all.iter().all(is_us), all.join(", "))
        }
    };
    if !is_for_us {
        return Err(TokenError::Audience(shortened(&named)));
    }
    // One for several must say who asked for it.
    let azp = claims.azp.as_deref();
    if azp.is_some_and(|it| it != expected.client_id) || (are_others && azp.is_none()) {
        return Err(TokenError::Audience(shortened(azp.unwrap_or(&named))));
    }
    let ago = expected.now_seconds.saturating_sub(seconds(&claims.exp)?);
    if ago > CLOCK_SECONDS_MAX {
        return Err(TokenError::Expired(ago));
    }
    let begins = claims.nbf.as_ref().map(seconds).transpose()?;
    let begins = begins.unwrap_or(i64::MIN).max(seconds(&claims.iat)?);
    let ahead = begins.saturating_sub(expected.now_seconds);
    if ahead > CLOCK_SECONDS_MAX {
        return Err(TokenError::Future(ahead));
    }
    if claims.nonce.as_deref() != Some(expected.nonce) {
        return Err(TokenError::Nonce);
    }
    Ok(())
}

/// A text of the provider for a message: of bounded length, without control characters.
pub fn shortened(text: &str) -> String {
    let plain = text.chars().filter(|letter| !letter.is_control());
    plain.take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn pair(seed: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
    }

    fn key(kid: &str, seed: u8) -> Key {
        Key::of_test(kid, pair(seed).public_key().as_ref())
    }

    fn signed(head: &Value, claims: &Value, seed: u8) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = pair(seed).sign(signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    fn head() -> Value {
        json!({"alg": "EdDSA", "kid": "one"})
    }

    fn claims() -> Value {
        json!({
            "iss": "https://id", "sub": "7", "aud": "cairn", "exp": NOW + 300, "iat": NOW, "nonce": "n", "groups": ["staff"],
        })
    }

    fn checked(token: &str, keys: &[Key]) -> Result<Map<String, Value>, TokenError> {
        let expected = Expected {
            issuer: "https://id",
            client_id: "cairn",
            nonce: "n",
            now_seconds: NOW,
        };
        check(token, keys, &expected)
    }

    #[test]
    fn a_token_is_what_is_expected_or_refused() {
        let other = |name: &str| name.to_owned();
        let cases: &[(&str, Value, Result<(), TokenError>)] = &[
            ("as it should be", json!({}), Ok(())),
            (
                "several, asked by us",
                json!({"aud": ["cairn", "b"], "azp": "cairn"}),
                Ok(()),
            ),
            ("one in a list", json!({"aud": ["cairn"]}), Ok(())),
            (
                "several, nobody asked",
                json!({"aud": ["cairn", "b"]}),
                Err(TokenError::Audience(other("cairn, b"))),
            ),
            (
                "asked by another",
                json!({"azp": "b"}),
                Err(TokenError::Audience(other("b"))),
            ),
            (
                "for another",
                json!({"aud": "b"}),
                Err(TokenError::Audience(other("b"))),
            ),
            (
                "for nobody",
                json!({"aud": []}),
                Err(TokenError::Audience(String::new())),
            ),
            (
                "of another",
                json!({"iss": "https://id/"}),
                Err(TokenError::Issuer(other("https://id/"))),
            ),
            (
                "another nonce",
                json!({"nonce": "m"}),
                Err(TokenError::Nonce),
            ),
            ("no nonce", json!({"nonce": null}), Err(TokenError::Nonce)),
            (
                "just expired",
                json!({"exp": NOW - CLOCK_SECONDS_MAX}),
                Ok(()),
            ),
            (
                "expired",
                json!({"exp": NOW - 61}),
                Err(TokenError::Expired(61)),
            ),
            ("fractions", json!({"exp": 1_700_000_000.5}), Ok(())),
            (
                "a little ahead",
                json!({"iat": NOW + CLOCK_SECONDS_MAX}),
                Ok(()),
            ),
            (
                "ahead",
                json!({"iat": NOW + 61}),
                Err(TokenError::Future(61)),
            ),
            (
                "not yet",
                json!({"nbf": NOW + 90}),
                Err(TokenError::Future(90)),
            ),
            (
                "no end",
                json!({"exp": null}),
                Err(TokenError::Malformed("a time is not a number")),
            ),
            (
                "a text for a time",
                json!({"exp": "9"}),
                Err(TokenError::Malformed("a time is not a number")),
            ),
        ];
        for (name, change, want) in cases {
            let mut claims = claims();
            for (key, value) in change.as_object().unwrap() {
                claims[key] = value.clone();
            }
            let got = checked(&signed(&head(), &claims, 1), &[key("one", 1)]);
            assert_eq!(got.map(drop), *want, "{name}");
        }
    }

    #[test]
    fn a_signature_is_of_a_published_key_or_refused() {
        let token = |head: Value| signed(&head, &claims(), 1);
        type Case<'a> = (&'a str, String, Vec<Key>, Result<(), TokenError>);
        let cases: &[Case] = &[
            (
                "the key",
                token(head()),
                vec![key("zero", 2), key("one", 1)],
                Ok(()),
            ),
            (
                "no name, any key",
                token(json!({"alg": "EdDSA"})),
                vec![key("zero", 2), key("one", 1)],
                Ok(()),
            ),
            (
                "another key of that name",
                token(head()),
                vec![key("one", 2)],
                Err(TokenError::Signature),
            ),
            (
                "the key by another name",
                token(head()),
                vec![key("zero", 1)],
                Err(TokenError::UnknownKey),
            ),
            (
                "no keys",
                token(head()),
                vec![],
                Err(TokenError::UnknownKey),
            ),
            (
                "a key that encrypts",
                token(head()),
                vec![key("one", 1).with(Some("enc"), None)],
                Err(TokenError::UnknownKey),
            ),
            (
                "a key of another algorithm",
                token(head()),
                vec![key("one", 1).with(None, Some("RS256"))],
                Err(TokenError::UnknownKey),
            ),
            (
                "another kind of key",
                token(json!({"alg": "RS256", "kid": "one"})),
                vec![key("one", 1)],
                Err(TokenError::Signature),
            ),
            (
                "none",
                token(json!({"alg": "none", "kid": "one"})),
                vec![key("one", 1)],
                Err(TokenError::Algorithm("none".to_owned())),
            ),
            (
                "a shared secret",
                token(json!({"alg": "HS256"})),
                vec![key("one", 1)],
                Err(TokenError::Algorithm("HS256".to_owned())),
            ),
            (
                "extensions",
                token(json!({"alg": "EdDSA", "kid": "one", "crit": ["b64"]})),
                vec![key("one", 1)],
                Err(TokenError::Malformed("it asks for extensions")),
            ),
        ];
        for (name, token, keys, want) in cases {
            assert_eq!(checked(token, keys).map(drop), *want, "{name}");
        }
        assert_eq!(
            checked(&signed(&head(), &claims(), 1), &[key("one", 1)]).unwrap()["groups"],
            json!(["staff"])
        );
    }

    #[test]
    fn a_token_with_any_letter_changed_is_refused() {
        let token = signed(&head(), &claims(), 1);
        let keys = [key("one", 1)];
        for index in 0..token.len() {
            for letter in ["A", "_", ".", "=", "é"] {
                let mut changed = token.clone();
                changed.replace_range(index..=index, letter);
                assert!(
                    changed == token || checked(&changed, &keys).is_err(),
                    "{changed}"
                );
            }
            assert!(checked(&token[..index], &keys).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(head in "\\PC{0,40}", claims in "\\PC{0,40}", rest in "\\PC{0,20}", set in "\\PC{0,60}") {
            let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
            let token = format!("{}.{}.{rest}", part(&head), part(&claims));
            prop_assert!(checked(&token, &[key("one", 1)]).is_err());
            let _ = crate::keys::read(set.as_bytes());
        }
    }
}
