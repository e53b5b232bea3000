//! Users and their log-ins: JSON, routes, and what they ask of a node.

use std::fmt;

use cairn_config::{Logout, PasswordHash, Role, UserName, UserRecord};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, absent, any_text, create, delete, endpoints,
    get, name_in_path, patch, plain_name, text, texts_in_path,
};

/// Shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 10;
/// Longest password, in bytes.
pub const PASSWORD_LEN_BYTES_MAX: usize = 1024;

/// A password from a request. `Debug` hides it, and its memory is wiped.
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

    /// Why this cannot be the user's new password. Takes some milliseconds.
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
            "this password is a common one, or an easily guessed pattern: use several words that have \
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

/// A user, without the password hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    #[schema(value_type = String, example = "alice")]
    pub name: UserName,
    /// `admin` may do everything, `viewer` may see everything and change nothing.
    #[schema(value_type = String, example = "viewer")]
    pub role: Role,
    pub created_seconds: i64,
    /// When the role or password was last changed.
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

/// A user to create.
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

/// Changes of a user; a field that is left out stays unchanged. All sessions of the user end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserSet {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "viewer", pattern = "^(admin|viewer)$")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Password>,
}

/// A new password for the requesting user, with the current password as proof.
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
    /// The user; `token` for the admin token.
    #[schema(example = "alice")]
    pub user: String,
    #[schema(value_type = String, example = "admin")]
    pub role: Role,
    /// Log-in of the session: `token`, `password`, or `oidc` (OpenID provider).
    #[schema(example = "password")]
    pub by: String,
    /// Latest end of the session, in seconds since 1970.
    pub ends_seconds: i64,
    /// End of the session without further use of the page; at most the latest end.
    pub idle_ends_seconds: i64,
}

/// A session as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenSession {
    /// Id with which to end the session: 16 hexadecimal digits. It does not give access.
    #[schema(example = "0f3a5c7e91b2d4f6")]
    pub id: String,
    /// The user; `token` for the admin token.
    #[schema(example = "alice@example.org")]
    pub user: String,
    #[schema(value_type = String, example = "admin")]
    pub role: Role,
    /// Log-in of the session: `token`, `password`, or `oidc` (OpenID provider).
    #[schema(example = "oidc")]
    pub by: String,
    /// Start of the session, in seconds since 1970.
    pub begun_seconds: i64,
    /// Last use in seconds since 1970, and its address.
    pub used_seconds: i64,
    #[schema(example = "10.1.2.3")]
    pub address: String,
    /// Latest end of the session, in seconds since 1970.
    pub ends_seconds: i64,
    /// Whether this is the requesting session.
    pub is_own: bool,
}

/// Valid sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenSessionList {
    /// Sorted by user, then by id.
    pub sessions: Vec<OpenSession>,
}

/// Optional ways to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginWays {
    /// Display name of the OpenID provider, if one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Example")]
    pub oidc: Option<String>,
}

/// The redirect of a browser for a log-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OidcBegun {
    /// An address of the OpenID provider.
    pub address: String,
}

/// The query parameters of the provider's redirect.
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

/// Operations of a node on users. Changes are durable once they are answered.
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

endpoints! {
    /// Lists all users, without their password hashes.
    USER_LIST: Endpoint<(), (), UserList> = get("/api/v1/users").list("users", &["name"]);

    /// Creates a user.
    USER_CREATE: Endpoint<(), UserCreate, UserView> = create("/api/v1/users");

    /// Shows one user.
    USER_SHOW: Endpoint<UserName, (), UserView> = get("/api/v1/users/{user}");

    /// Changes the role or password of a user. All sessions of the user end.
    USER_SET: Endpoint<UserName, UserSet, UserView> = patch("/api/v1/users/{user}");

    /// Deletes a user. All sessions of the user end.
    USER_DELETE: Endpoint<UserName, (), ()> = delete("/api/v1/users/{user}");

}
endpoints! {
    /// Lists valid browser sessions that were used since this node started: of users, of users of the OpenID provider, and of the
    /// admin token. In a cluster each node lists the sessions that were used at that node.
    OPEN_SESSION_LIST: Endpoint<(), (), OpenSessionList> = get("/api/v1/sessions").list("sessions", &["user", "id"]);

    /// Ends one session by its number: at once, on all nodes of a cluster, and for good.
    SESSION_END: Endpoint<SessionNumber, (), ()> = delete("/api/v1/sessions/{id}");

    /// Ends all sessions of a user, even those unknown to this node: at once, on all nodes of a cluster, and for good. With `by` only
    /// sessions with that log-in: `password` or `oidc`. `user=token` ends the sessions of the admin token.
    SESSIONS_END: Endpoint<SessionsOf, (), ()> = delete("/api/v1/sessions");

}

pub(crate) fn no_user() -> ControlError {
    absent("no user has the name in the path").hint("`cairn user list` shows all users")
}

name_in_path!(UserName, plain_name(), no_user());

texts_in_path! {
    /// A session, by its number.
    SessionNumber, text(1, 128), "no session has the number in the path";
}

/// Whose sessions end; with `by` only those that began so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionsOf {
    pub user: String,
    pub by: Option<String>,
}

impl Argument for SessionsOf {
    fn describe(to: &mut Parameters) {
        to.required("user", text(1, 255));
        to.in_query("by", any_text().pattern(Some("^(password|oidc)$")));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(&["user", "by"])?;
        let one = |key: &str| query.values(key).last().map(str::to_owned);
        let user = one("user").filter(|user| !user.is_empty());
        let message = "user is missing: give the user whose sessions end";
        let user = user.ok_or_else(|| ControlError::new(ErrorKind::Invalid, message))?;
        Ok(Self {
            user,
            by: one("by"),
        })
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask("user", &self.user);
        if let Some(by) = &self.by {
            to.ask("by", by);
        }
        Ok(())
    }
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
