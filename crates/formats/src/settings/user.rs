//! Users of the admin API: their names, their roles, and the stored form of a password.
//!
//! Owns: the words, their limits.
//! Must not know: how a password is hashed or compared, what a role is allowed.

use std::fmt;
use std::str::FromStr;

use cairn_base::serde_as_word;
use cairn_base::words::WordError;
use serde::{Deserialize, Serialize};

/// Longest name of a user, in bytes.
pub const USER_NAME_LEN_BYTES_MAX: usize = 63;
/// Most users of a pool.
pub const USERS_MAX: usize = 256;
/// Longest hash of a password with its parameters, in bytes.
pub const PASSWORD_HASH_LEN_BYTES_MAX: usize = 256;
/// The name of holders of the admin token in the audit log, so no user has this name.
pub const TOKEN_USER: &str = "token";

/// The name of a user; `token` is no name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

impl UserName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for UserName {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if super::is_plain_name(text, USER_NAME_LEN_BYTES_MAX) && text != TOKEN_USER {
            return Ok(Self(text.to_owned()));
        }
        Err(WordError::new(
            text,
            "the name of a user",
            "1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit, and not \"token\"",
        ))
    }
}

serde_as_word!(UserName);

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Everything.
    Admin,
    /// See everything, and change nothing.
    Viewer,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            "admin" => Ok(Self::Admin),
            "viewer" => Ok(Self::Viewer),
            _ => Err(WordError::new(text, "a role", "admin or viewer")),
        }
    }
}

serde_as_word!(Role);

/// A password's Argon2id hash with salt and parameters, as a PHC string. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// Whole, as it is kept.
impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for PasswordHash {
    type Err = WordError;

    /// Takes any text in the form of such a hash; the comparison with a password looks closer.
    fn from_str(text: &str) -> Result<Self, WordError> {
        let is_short = text.len() <= PASSWORD_HASH_LEN_BYTES_MAX;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_short && is_plain && text.starts_with("$argon2id$") {
            return Ok(Self(text.to_owned()));
        }
        // Not the text itself: it is a secret.
        Err(WordError::new(
            "a text",
            "a hash of a password",
            "$argon2id$ with parameters, salt and hash, at most 256 characters",
        ))
    }
}

serde_as_word!(PasswordHash);

/// The stored record of a user, without the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRecord {
    pub role: Role,
    pub password: PasswordHash,
    /// Random, and another one after each change: sessions name it, and end with it.
    pub stamp: u64,
    /// In seconds since 1970 UTC.
    pub created_seconds: i64,
    pub changed_seconds: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_roles_are_read_or_refused() {
        for (text, want) in [
            ("alice", true),
            ("ops-2.eu_west", true),
            ("token", false),
            ("Token", true),
            ("", false),
            ("-a", false),
            ("a b", false),
            ("<b>", false),
            ("a\u{202e}b", false),
            (&"x".repeat(63), true),
            (&"x".repeat(64), false),
        ] {
            assert_eq!(text.parse::<UserName>().is_ok(), want, "{text:?}");
        }
        assert_eq!("viewer".parse(), Ok(Role::Viewer));
        assert!("root".parse::<Role>().is_err());
    }

    #[test]
    fn hashes_are_read_or_refused_and_not_shown() {
        let long = format!("$argon2id${}", "x".repeat(PASSWORD_HASH_LEN_BYTES_MAX));
        for (text, want) in [
            ("$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA", true),
            ("$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA", false),
            ("$argon2id$ ", false),
            ("secret", false),
            (&long, false),
        ] {
            let read = text.parse::<PasswordHash>();
            assert_eq!(read.is_ok(), want, "{text:?}");
            match read {
                Ok(hash) => assert_eq!(format!("{hash:?}"), "PasswordHash(..)"),
                Err(error) => assert!(!error.to_string().contains("secret")),
            }
        }
    }
}
