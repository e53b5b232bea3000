//! The JSON of users and of their log-ins, and what the API asks of a node for them.

use std::fmt;

use cairn_config::{Logout, PasswordHash, Role, UserName, UserRecord};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::control::Answer;

/// Shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 10;
/// Longest password, in bytes.
pub const PASSWORD_LEN_BYTES_MAX: usize = 1024;

/// A password as somebody gave it. `Debug` hides it, and its memory is wiped.
#[derive(Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = Password, max_length = 1024)]
pub struct Password(Zeroizing<String>);

/// For a client, which sends it.
impl Serialize for Password {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl Password {
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is wrong with it as a new password of this user. Takes some milliseconds.
    pub fn problem(&self, user: &str) -> Option<String> {
        if self.0.len() > PASSWORD_LEN_BYTES_MAX {
            return Some(format!(
                "a password has at most {PASSWORD_LEN_BYTES_MAX} bytes"
            ));
        }
        let is_short = self.0.chars().count() < PASSWORD_CHARS_MIN;
        if is_short {
            return Some(format!(
                "a password has at least {PASSWORD_CHARS_MIN} characters"
            ));
        }
        if self.0.chars().any(char::is_control) {
            return Some("a password has no control characters, such as line ends".to_owned());
        }
        // Common passwords, names, words, years, rows of keys and repetitions, and what is made of a few of them. Less than a
        // million guesses: tries over the network are slowed down, but not for ever.
        let strength = zxcvbn::zxcvbn(&self.0, &[user, "cairn"]);
        (strength.score() < zxcvbn::Score::Two).then(|| {
            "this password is one of the most common ones, or a pattern that is guessed early: take several words that have \
             nothing to do with one another"
                .to_owned()
        })
    }
}

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(Self::new)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// A user. What is kept of the password is not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    #[schema(value_type = String, example = "alice")]
    pub name: UserName,
    /// `admin` may do everything, `viewer` may see everything and change nothing.
    #[schema(value_type = String, example = "viewer")]
    pub role: Role,
    pub created_seconds: i64,
    /// When role or password were changed last.
    pub changed_seconds: i64,
}

impl UserView {
    pub fn new(name: UserName, record: &UserRecord) -> Self {
        Self {
            name,
            role: record.role,
            created_seconds: record.created_seconds,
            changed_seconds: record.changed_seconds,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    /// By name.
    pub users: Vec<UserView>,
}

/// A user to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserCreate {
    #[schema(value_type = String, example = "alice", min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub name: UserName,
    #[schema(value_type = String, example = "viewer", pattern = "^(admin|viewer)$")]
    pub role: Role,
    /// 10 characters to 1024 bytes.
    pub password: Password,
}

/// Changes of a user; what is left out stays. All sessions of the user end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserSet {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "viewer", pattern = "^(admin|viewer)$")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Password>,
}

/// Another password for whoever asks, who shows to know the one of now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    pub password: Password,
    pub new_password: Password,
}

/// A log-in: with the admin token, or with a user's name and password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SessionCreate {
    Token(TokenLogin),
    User(UserLogin),
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenLogin {
    #[schema(min_length = 1, max_length = 1024)]
    pub token: String,
}

/// Shows no secret.
impl fmt::Debug for TokenLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenLogin(..)")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserLogin {
    #[schema(min_length = 1, max_length = 255)]
    pub user: String,
    pub password: Password,
}

/// A session of a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionOpen {
    /// Whose it is; `token` of one that the admin token began.
    #[schema(example = "alice")]
    pub user: String,
    #[schema(value_type = String, example = "admin")]
    pub role: Role,
    /// What began it: `token`, `password`, or `oidc` for the word of an OpenID provider.
    #[schema(example = "password")]
    pub by: String,
    /// When it ends, in seconds since 1970; it is not prolonged beyond that.
    pub ends_seconds: i64,
    /// When it ends unless somebody uses the page before; never after the other.
    pub idle_ends_seconds: i64,
}

/// A session as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenSession {
    /// What it is ended by: 16 hexadecimal digits. Nobody gets in with it.
    #[schema(example = "0f3a5c7e91b2d4f6")]
    pub id: String,
    /// Whose it is; `token` of one that the admin token began.
    #[schema(example = "alice@example.org")]
    pub user: String,
    #[schema(value_type = String, example = "admin")]
    pub role: Role,
    /// What began it: `token`, `password`, or `oidc` for the word of an OpenID provider.
    #[schema(example = "oidc")]
    pub by: String,
    /// When it began, in seconds since 1970.
    pub begun_seconds: i64,
    /// When it was used last, in seconds since 1970, and from where.
    pub used_seconds: i64,
    #[schema(example = "10.1.2.3")]
    pub address: String,
    /// When it ends, in seconds since 1970; it is not prolonged beyond that.
    pub ends_seconds: i64,
    /// That of whoever asks.
    pub is_own: bool,
}

/// Sessions that hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenSessionList {
    /// By whose they are, then by number.
    pub sessions: Vec<OpenSession>,
}

/// The ways to log in that are not always there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginWays {
    /// What to call the OpenID provider, if people can log in by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Example")]
    pub oidc: Option<String>,
}

/// Where a browser goes to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OidcBegun {
    /// An address of the OpenID provider.
    pub address: String,
}

/// What the provider sent a browser back with: of the address that it came back to, what is in the query.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OidcReturn {
    #[schema(max_length = 65536)]
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536)]
    pub code: Option<String>,
    /// Why there is no code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536)]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536)]
    pub error_description: Option<String>,
}

/// Shows no secret.
impl fmt::Debug for OidcReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OidcReturn(..)")
    }
}

/// What a node does about users. Changes are durable when they are answered.
pub trait UserControl: Send + Sync {
    /// By name.
    fn users(&self) -> Vec<(UserName, UserRecord)>;
    /// Asked for each request of a user.
    fn user(&self, name: &UserName) -> Option<UserRecord>;
    fn user_create(&self, name: UserName, role: Role, hash: PasswordHash) -> Answer<'_, UserView>;
    /// Fails if the user is not as `expected` any more, where that is given: by its stamp.
    fn user_set(
        &self,
        name: UserName,
        role: Option<Role>,
        hash: Option<PasswordHash>,
        expected: Option<u64>,
    ) -> Answer<'_, UserView>;
    fn user_delete(&self, name: UserName) -> Answer<'_, ()>;
    /// Whether a session was ended before its time, here or at another node. Asked for each request of a session.
    fn is_logged_out(&self, number: u64, whose: &str, ends_seconds: i64) -> bool;
    /// Ends sessions for good: over restarts, and for all nodes of a cluster.
    fn log_out(&self, logout: Logout) -> Answer<'_, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_taken_or_refused_and_not_shown() {
        let words = "a long sentence that nobody else would take, ";
        let long: String = words.chars().cycle().take(PASSWORD_LEN_BYTES_MAX).collect();
        let cases = [
            ("ten letters", true),
            ("ünïcödé-pä", true),
            ("nine char", false),
            ("with a line\nend", false),
            (&long, true),
            (&format!("{long}x"), false),
            ("", false),
            // Common ones.
            ("password123", false),
            ("1234567890", false),
            ("qwertyuiop", false),
            ("iloveyou123", false),
            ("xxxxxxxxxxxxxxxx", false),
            ("administrator", false),
            ("alice@example.org", false),
            ("Alice@Example.org", false),
            ("correct horse", true),
        ];
        for (text, want) in cases {
            let password = Password::new(text.to_owned());
            let problem = password.problem("alice@example.org");
            assert_eq!(problem.is_none(), want, "{text:?}: {problem:?}");
            assert_eq!(format!("{password:?}"), "Password(..)");
        }
    }

    #[test]
    fn a_log_in_is_by_token_or_by_user() {
        let read = |text| serde_json::from_str::<SessionCreate>(text);
        assert!(matches!(
            read(r#"{"token":"a"}"#),
            Ok(SessionCreate::Token(_))
        ));
        assert!(matches!(
            read(r#"{"user":"a","password":"b"}"#),
            Ok(SessionCreate::User(_))
        ));
        for text in [
            "{}",
            r#"{"user":"a"}"#,
            r#"{"user":"a","password":"b","token":"c"}"#,
            r#"{"user":"a","password":1}"#,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(!error.contains('"'), "{error}");
        }
    }
}
