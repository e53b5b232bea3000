//! The settings of log-ins by an OpenID provider: as given, and complete.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::declare::settings;

/// Longest text of one of these settings, in bytes.
const TEXT_LEN_BYTES_MAX: usize = 512;
/// Most values of one list.
const VALUES_MAX: usize = 64;

settings! {
    /// The given settings of log-ins through an OpenID provider. None at all: there is no such log-in.
    pub struct OidcSettings {
        /// Issuer URL of the OpenID provider through which users log in to the console, exactly as the provider's configuration has it
        oidc_issuer: Option<String> {
            value_name: "URL",
            heading: "Log-in to the console through an OpenID provider",
            example: "\"https://id.example.org\"",
        } => issuer: String = Option::unwrap_or_default, check |text| check_text(text);
        /// Client ID of this server at the OpenID provider
        oidc_client_id: Option<String> {
            value_name: "ID",
            example: "\"cairn\"",
        } => client_id: String = Option::unwrap_or_default, check |text| check_text(text);
        /// File with the client secret from the provider, readable only by its owner; without a secret, log-ins rely on PKCE
        oidc_client_secret_file: Option<PathBuf> {
            value_name: "PATH",
            example: "\"/etc/cairn/oidc.secret\"",
        } => client_secret_file: Option<PathBuf>;
        /// Address of the console for browsers, without a path: https://cairn.example.org:8049. The provider redirects only to
        /// /console/login below it
        oidc_address: Vec<String> {
            value_name: "URL",
            example: "[\"https://cairn.example.org:8049\"]",
            count_max: VALUES_MAX,
        } => addresses: Vec<String> = |given| given.iter().map(|address| address.to_ascii_lowercase()).collect(),
            check |text| check_text(text);
        /// Value of the role claim that makes a user an admin
        oidc_admin: Vec<String> {
            value_name: "VALUE",
            example: "[\"storage-admins\"]",
            count_max: VALUES_MAX,
        } => admins: Vec<String>, check |text| check_text(text);
        /// Value of the role claim that makes a user a viewer
        oidc_viewer: Vec<String> {
            value_name: "VALUE",
            example: "[\"staff\"]",
            count_max: VALUES_MAX,
        } => viewers: Vec<String>, check |text| check_text(text);
        /// Claim with the user's name
        oidc_name_claim: Option<String> {
            value_name: "CLAIM",
        } = "preferred_username".to_owned() => name_claim: String, check |text| check_text(text);
        /// Claim with the user's roles or groups; a.b is b in a
        oidc_role_claim: Option<String> {
            value_name: "CLAIM",
        } = "groups".to_owned() => role_claim: String, check |text| check_text(text);
        /// Scope to request besides openid
        oidc_scope: Vec<String> {
            value_name: "SCOPE",
            count_max: VALUES_MAX,
        } = vec!["profile".to_owned()] => scopes: Vec<String>, check |text| check_text(text);
        /// Name of the provider on the log-in page
        oidc_text: Option<String> {
            value_name: "TEXT",
        } = "OpenID Connect".to_owned() => text: String, check |text| check_text(text);
    }

    /// How people log in through an OpenID provider. There is at least one address, and one admin or viewer.
    pub struct Oidc() {}
}

fn check_text(text: &str) -> Result<(), String> {
    let is_long = text.len() > TEXT_LEN_BYTES_MAX;
    match text.is_empty() || is_long || text.chars().any(char::is_control) {
        false => Ok(()),
        true => Err(format!(
            "a value has 1 to {TEXT_LEN_BYTES_MAX} bytes without control characters"
        )),
    }
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

impl OidcSettings {
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
        self.refuse_own_values(&mut refuse);
    }

    /// Complete, if they were given and nothing is wrong with them.
    pub(crate) fn resolve(self) -> Option<Oidc> {
        let is_given = self.oidc_issuer.is_some() && self.oidc_client_id.is_some();
        is_given.then(|| self.complete())
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
