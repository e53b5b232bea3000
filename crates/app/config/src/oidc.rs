//! The settings of log-ins by an OpenID provider: as given, and complete.

use std::net::IpAddr;
use std::path::PathBuf;

/// Longest text of one of these settings, in bytes.
const TEXT_LEN_BYTES_MAX: usize = 512;
/// Most values of one list.
const VALUES_MAX: usize = 64;
const NAME_CLAIM_DEFAULT: &str = "preferred_username";
const ROLE_CLAIM_DEFAULT: &str = "groups";
const SCOPE_DEFAULT: &str = "profile";
const TEXT_DEFAULT: &str = "OpenID Connect";

/// The given settings of it. None at all: there is no such log-in.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct OidcSettings {
    /// Address of the console for browsers, without a path: https://cairn.example.org:8049. The provider redirects only to
    /// /console/login below it; repeat the flag for more
    #[arg(long, value_name = "URL")]
    pub oidc_address: Vec<String>,
    /// Value of the role claim that makes a user an admin; repeat the flag for more
    #[arg(long, value_name = "VALUE")]
    pub oidc_admin: Vec<String>,
    /// Client ID of this server at the OpenID provider
    #[arg(long, value_name = "ID")]
    pub oidc_client_id: Option<String>,
    /// File with the client secret from the provider, readable only by its owner; without a secret, log-ins rely on PKCE
    #[arg(long, value_name = "PATH")]
    pub oidc_client_secret_file: Option<PathBuf>,
    /// Issuer URL of the OpenID provider through which users log in to the console, exactly as the provider's configuration has it
    #[arg(long, value_name = "URL")]
    pub oidc_issuer: Option<String>,
    /// Claim with the user's name [default: preferred_username]
    #[arg(long, value_name = "CLAIM")]
    pub oidc_name_claim: Option<String>,
    /// Claim with the user's roles or groups; a.b is b in a [default: groups]
    #[arg(long, value_name = "CLAIM")]
    pub oidc_role_claim: Option<String>,
    /// Scope to request besides openid; repeat the flag for more [default: profile]
    #[arg(long, value_name = "SCOPE")]
    pub oidc_scope: Vec<String>,
    /// Name of the provider on the log-in page [default: OpenID Connect]
    #[arg(long, value_name = "TEXT")]
    pub oidc_text: Option<String>,
    /// Value of the role claim that makes a user a viewer; repeat the flag for more
    #[arg(long, value_name = "VALUE")]
    pub oidc_viewer: Vec<String>,
}

/// How people log in by an OpenID provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oidc {
    pub issuer: String,
    pub client_id: String,
    /// `None`: the client has no secret.
    pub client_secret_file: Option<PathBuf>,
    /// Where the console is opened, without a slash at the end; at least one.
    pub addresses: Vec<String>,
    pub name_claim: String,
    pub role_claim: String,
    /// Values that make admins, and viewers; at least one of both together.
    pub admins: Vec<String>,
    pub viewers: Vec<String>,
    pub scopes: Vec<String>,
    pub text: String,
}

/// Whether nobody between can read or change what is sent to this address: it is HTTPS, or of this machine.
pub fn is_safe_url(url: &str) -> bool {
    if url.starts_with("https://") {
        return true;
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // What comes before an @ is no host.
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

/// Whether it is the address of a server and nothing more.
fn is_origin(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let is_http = url.starts_with("https://") || url.starts_with("http://");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    is_http && !rest.is_empty() && rest.bytes().all(is_plain)
}

fn either<T>(first: Vec<T>, second: Vec<T>) -> Vec<T> {
    if first.is_empty() { second } else { first }
}

impl OidcSettings {
    /// These settings, with `below` for what they do not say.
    pub fn or(self, below: Self) -> Self {
        Self {
            oidc_address: either(self.oidc_address, below.oidc_address),
            oidc_admin: either(self.oidc_admin, below.oidc_admin),
            oidc_client_id: self.oidc_client_id.or(below.oidc_client_id),
            oidc_client_secret_file: self
                .oidc_client_secret_file
                .or(below.oidc_client_secret_file),
            oidc_issuer: self.oidc_issuer.or(below.oidc_issuer),
            oidc_name_claim: self.oidc_name_claim.or(below.oidc_name_claim),
            oidc_role_claim: self.oidc_role_claim.or(below.oidc_role_claim),
            oidc_scope: either(self.oidc_scope, below.oidc_scope),
            oidc_text: self.oidc_text.or(below.oidc_text),
            oidc_viewer: either(self.oidc_viewer, below.oidc_viewer),
        }
    }

    /// Tells `refuse` everything that is wrong.
    pub(crate) fn check(&self, mut refuse: impl FnMut(String)) {
        if *self == Self::default() {
            return;
        }
        let Some(issuer) = &self.oidc_issuer else {
            refuse("oidc_issuer: the other settings of oidc are for an OpenID provider: give its address".to_owned());
            return;
        };
        if !is_safe_url(issuer) || issuer.contains(['?', '#']) {
            refuse(format!(
                "oidc_issuer: \"{issuer}\" is not the address of a provider: it begins with https://, or is of this machine"
            ));
        }
        if self.oidc_client_id.is_none() {
            refuse("oidc_client_id: the provider knows this server by a name: give it".to_owned());
        }
        if self.oidc_address.is_empty() {
            refuse(
                "oidc_address: the provider sends browsers back to the console: give the address where they open it, \
                 such as https://cairn.example.org:8049"
                    .to_owned(),
            );
        }
        for address in &self.oidc_address {
            if !is_origin(address) {
                refuse(format!(
                    "oidc_address: \"{address}\" is not the address of a server: write https://cairn.example.org:8049, \
                     with no path"
                ));
            } else if !is_safe_url(address) {
                refuse(format!(
                    "oidc_address: \"{address}\" is not encrypted, and the provider sends what lets people in there: give \
                     one with https://"
                ));
            }
        }
        if self.oidc_admin.is_empty() && self.oidc_viewer.is_empty() {
            refuse(
                "oidc_admin and oidc_viewer: nobody would be let in: give values of the claim of roles that make admins or \
                 viewers"
                    .to_owned(),
            );
        }
        let lists = [
            ("oidc_address", &self.oidc_address),
            ("oidc_admin", &self.oidc_admin),
            ("oidc_scope", &self.oidc_scope),
            ("oidc_viewer", &self.oidc_viewer),
        ];
        for (name, values) in lists {
            if values.len() > VALUES_MAX {
                let count = values.len();
                refuse(format!(
                    "{name}: {count} are given; {VALUES_MAX} are the most"
                ));
            }
        }
        let one = [
            ("oidc_client_id", &self.oidc_client_id),
            ("oidc_issuer", &self.oidc_issuer),
            ("oidc_name_claim", &self.oidc_name_claim),
            ("oidc_role_claim", &self.oidc_role_claim),
            ("oidc_text", &self.oidc_text),
        ];
        let of_lists = lists
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (*name, value)));
        let of_one = one
            .iter()
            .filter_map(|(name, value)| Some((*name, value.as_ref()?)));
        for (name, value) in of_lists.chain(of_one) {
            let is_long = value.len() > TEXT_LEN_BYTES_MAX;
            if value.is_empty() || is_long || value.chars().any(char::is_control) {
                refuse(format!(
                    "{name}: a value has 1 to {TEXT_LEN_BYTES_MAX} bytes without control characters"
                ));
            }
        }
    }

    /// Complete, if they were given and nothing is wrong with them.
    pub(crate) fn resolve(self) -> Option<Oidc> {
        let or = |given: Option<String>, default: &str| given.unwrap_or_else(|| default.to_owned());
        Some(Oidc {
            issuer: self.oidc_issuer?,
            client_id: self.oidc_client_id?,
            client_secret_file: self.oidc_client_secret_file,
            addresses: self
                .oidc_address
                .iter()
                .map(|address| address.to_ascii_lowercase())
                .collect(),
            name_claim: or(self.oidc_name_claim, NAME_CLAIM_DEFAULT),
            role_claim: or(self.oidc_role_claim, ROLE_CLAIM_DEFAULT),
            admins: self.oidc_admin,
            viewers: self.oidc_viewer,
            scopes: either(self.oidc_scope, vec![SCOPE_DEFAULT.to_owned()]),
            text: or(self.oidc_text, TEXT_DEFAULT),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> OidcSettings {
        OidcSettings {
            oidc_issuer: Some("https://id.example.org".to_owned()),
            oidc_client_id: Some("cairn".to_owned()),
            oidc_address: vec!["https://cairn.example.org:8049".to_owned()],
            oidc_viewer: vec!["staff".to_owned()],
            ..OidcSettings::default()
        }
    }

    #[test]
    fn settings_are_complete_or_refused() {
        type Change = fn(&mut OidcSettings);
        let cases: &[(&str, Change, Option<&str>)] = &[
            ("all", |_| {}, None),
            ("none", |it| *it = OidcSettings::default(), None),
            ("no issuer", |it| it.oidc_issuer = None, Some("oidc_issuer")),
            (
                "an issuer that is not encrypted",
                |it| it.oidc_issuer = Some("http://id.example.org".to_owned()),
                Some("oidc_issuer"),
            ),
            (
                "an issuer on this machine",
                |it| it.oidc_issuer = Some("http://localhost:8080/realm".to_owned()),
                None,
            ),
            (
                "no client",
                |it| it.oidc_client_id = None,
                Some("oidc_client_id"),
            ),
            (
                "no address",
                |it| it.oidc_address.clear(),
                Some("oidc_address"),
            ),
            (
                "an address with a path",
                |it| it.oidc_address.push("https://a/console".to_owned()),
                Some("no path"),
            ),
            (
                "an address that is not encrypted",
                |it| it.oidc_address.push("http://a:8049".to_owned()),
                Some("not encrypted"),
            ),
            ("nobody", |it| it.oidc_viewer.clear(), Some("nobody would")),
            (
                "an empty value",
                |it| it.oidc_admin.push(String::new()),
                Some("oidc_admin: a value"),
            ),
            (
                "too many",
                |it| it.oidc_admin = vec!["a".to_owned(); VALUES_MAX + 1],
                Some("are the most"),
            ),
        ];
        for (name, change, want) in cases {
            let mut settings = given();
            change(&mut settings);
            let mut problems = Vec::new();
            settings.check(|problem| problems.push(problem));
            assert_eq!(
                problems.len(),
                usize::from(want.is_some()),
                "{name}: {problems:?}"
            );
            let part = want.unwrap_or_default();
            assert!(
                problems.iter().all(|it| it.contains(part)),
                "{name}: {problems:?}"
            );
        }
        let complete = given().resolve().unwrap();
        assert_eq!(complete.name_claim, "preferred_username");
        assert_eq!(complete.scopes, ["profile"]);
        assert_eq!(OidcSettings::default().resolve(), None);
    }

    #[test]
    fn addresses_are_safe_or_not() {
        let cases = [
            ("https://example.org", true),
            ("http://localhost:80/a", true),
            ("http://127.0.0.1", true),
            ("http://[::1]:8080", true),
            ("http://example.org", false),
            ("http://localhost.example.org", false),
            ("http://localhost@example.org", false),
            ("http://127.0.0.1:80@example.org/", false),
            ("http://localhost#@example.org", true),
            ("ftp://localhost", false),
            ("", false),
        ];
        for (url, want) in cases {
            assert_eq!(is_safe_url(url), want, "{url}");
        }
    }
}
