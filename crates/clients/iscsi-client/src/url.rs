//! `iscsi://HOST[:PORT]/TARGET/LUN[?OPTIONS]`: where a LUN is and how to get there.
//!
//! Owns: the text form, its options and their limits.
//! Must not know: sockets.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cairn_codec_iscsi::is_iscsi_name;
use http::uri::Authority;

/// Most sessions with one LUN.
pub const SESSIONS_COUNT_MAX: u16 = 64;
/// Flat space addressing holds so many (SAM-5, section 4.7.7.3).
const LUN_MAX: u16 = 0x3fff;
const PORT: u16 = 3260;
const SCHEME: &str = "iscsi://";

/// A LUN of a target.
///
/// `Display` gives the text form again. A secret is in a file, since others see the arguments of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiUrl {
    /// A name or an address; IPv6 in its brackets.
    pub host: String,
    pub port: u16,
    pub target: String,
    pub lun: u16,
    /// The name of this side; without it, one for this host.
    pub initiator: Option<String>,
    /// 1 to [`SESSIONS_COUNT_MAX`].
    pub sessions: Option<u16>,
    /// Who we are for CHAP, with the file that has the secret.
    pub user: Option<String>,
    pub secret_file: Option<PathBuf>,
}

/// Why a text is not the URL of a LUN, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("it does not begin with iscsi://")]
    Scheme,
    #[error("it names no host; write iscsi://HOST[:PORT]/TARGET/LUN")]
    NoHost,
    #[error(
        "`{0}` is not a host with a port; IPv6 addresses go in brackets: iscsi://[::1]:3260/..."
    )]
    BadHost(String),
    #[error(
        "a secret does not belong into a URL, where others see it; write ?user=NAME&secret-file=FILE"
    )]
    Secret,
    #[error("it names no LUN; write iscsi://HOST[:PORT]/TARGET/LUN, as `cairn lun show` prints it")]
    NoLun,
    #[error(
        "`{0}` is not the name of a target; it begins with iqn., eui. or naa., in small letters"
    )]
    BadTarget(String),
    #[error("`{0}` is not the number of a LUN, from 0 to {LUN_MAX}")]
    BadLun(String),
    #[error("`{value}` is not a value for the option {option}; {wanted}")]
    BadOption {
        option: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("there is no option `{0}`; there are initiator, sessions, user and secret-file")]
    UnknownOption(String),
    #[error("user and secret-file belong together; one of them is missing")]
    HalfSecret,
}

impl IscsiUrl {
    /// Whether `text` is meant as the URL of a LUN, well-formed or not.
    pub fn looks_like(text: &str) -> bool {
        text.get(..SCHEME.len())
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }

    fn set_option(&mut self, option: &str, value: &str) -> Result<(), UrlError> {
        let bad = |option, wanted| UrlError::BadOption {
            option,
            value: value.to_owned(),
            wanted,
        };
        match option {
            "initiator" if is_iscsi_name(value) => self.initiator = Some(value.to_owned()),
            "initiator" => {
                return Err(bad(
                    "initiator",
                    "it begins with iqn., eui. or naa., in small letters",
                ));
            }
            "sessions" => {
                let count = value.parse().ok();
                let count = count.filter(|count| (1..=SESSIONS_COUNT_MAX).contains(count));
                self.sessions =
                    Some(count.ok_or_else(|| bad("sessions", "give a number from 1 to 64"))?);
            }
            "user" if !value.is_empty() => self.user = Some(value.to_owned()),
            "user" => return Err(bad("user", "give the name that the target knows")),
            "secret-file" if !value.is_empty() => self.secret_file = Some(value.into()),
            "secret-file" => return Err(bad("secret-file", "give the path of a file")),
            _ => return Err(UrlError::UnknownOption(option.to_owned())),
        }
        Ok(())
    }
}

impl FromStr for IscsiUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if !Self::looks_like(text) {
            return Err(UrlError::Scheme);
        }
        let rest = text.get(SCHEME.len()..).unwrap_or_default();
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(UrlError::Secret);
        }
        if authority.is_empty() || authority.starts_with(':') {
            return Err(UrlError::NoHost);
        }
        let bad = || UrlError::BadHost(authority.to_owned());
        let parsed: Authority = authority.parse().map_err(|_| bad())?;
        let port = match parsed.port_u16() {
            Some(0) => return Err(bad()),
            Some(port) => port,
            None if parsed.host().len() == authority.len() => PORT,
            None => return Err(bad()),
        };
        let (target, lun) = path.split_once('/').ok_or(UrlError::NoLun)?;
        if !is_iscsi_name(target) {
            return Err(UrlError::BadTarget(target.to_owned()));
        }
        let number = lun.parse().ok().filter(|lun| *lun <= LUN_MAX);
        let mut url = Self {
            host: parsed.host().to_owned(),
            port,
            target: target.to_owned(),
            lun: number.ok_or_else(|| UrlError::BadLun(lun.to_owned()))?,
            initiator: None,
            sessions: None,
            user: None,
            secret_file: None,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (option, value) = option.split_once('=').unwrap_or((option, ""));
            url.set_option(option, value)?;
        }
        if url.user.is_some() != url.secret_file.is_some() {
            return Err(UrlError::HalfSecret);
        }
        Ok(url)
    }
}

impl fmt::Display for IscsiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            target,
            lun,
            ..
        } = self;
        write!(f, "{SCHEME}{host}:{port}/{target}/{lun}")?;
        let mut separator = '?';
        let sessions = self.sessions.map(|count| count.to_string());
        let secret_file = self
            .secret_file
            .as_ref()
            .map(|path| path.display().to_string());
        let options = [
            ("initiator", &self.initiator),
            ("sessions", &sessions),
            ("user", &self.user),
            ("secret-file", &secret_file),
        ];
        for (option, value) in options {
            if let Some(value) = value {
                write!(f, "{separator}{option}={value}")?;
                separator = '&';
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_are_read_and_written_back() {
        let plain = IscsiUrl {
            host: "host".to_owned(),
            port: 3260,
            target: "iqn.2025-11.a:b".to_owned(),
            lun: 0,
            initiator: None,
            sessions: None,
            user: None,
            secret_file: None,
        };
        let cases = [
            (
                "iscsi://host/iqn.2025-11.a:b/0",
                plain.clone(),
                "iscsi://host:3260/iqn.2025-11.a:b/0",
            ),
            (
                "ISCSI://[::1]:7/iqn.2025-11.a:b/16383?sessions=4&user=me&secret-file=/a/b&initiator=iqn.x",
                IscsiUrl {
                    host: "[::1]".to_owned(),
                    port: 7,
                    lun: LUN_MAX,
                    initiator: Some("iqn.x".to_owned()),
                    sessions: Some(4),
                    user: Some("me".to_owned()),
                    secret_file: Some("/a/b".into()),
                    ..plain.clone()
                },
                "iscsi://[::1]:7/iqn.2025-11.a:b/16383?initiator=iqn.x&sessions=4&user=me&secret-file=/a/b",
            ),
        ];
        for (text, want, written) in cases {
            let got: IscsiUrl = text.parse().expect(text);
            assert_eq!(got, want, "{text}");
            assert_eq!(got.to_string(), written);
            assert_eq!(written.parse(), Ok(want));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, want) in [
            ("nfs://host/main", "does not begin with"),
            ("iscsi:///iqn.a/0", "names no host"),
            ("iscsi://:3260/iqn.a/0", "names no host"),
            ("iscsi://a b/iqn.a/0", "is not a host"),
            ("iscsi://host:0/iqn.a/0", "is not a host"),
            ("iscsi://host:70000/iqn.a/0", "is not a host"),
            ("iscsi://host:/iqn.a/0", "is not a host"),
            ("iscsi://me%pw@host/iqn.a/0", "secret-file="),
            ("iscsi://host", "names no LUN"),
            ("iscsi://host/iqn.a", "names no LUN"),
            ("iscsi://host/disk/0", "name of a target"),
            ("iscsi://host/iqn.a/x", "number of a LUN"),
            ("iscsi://host/iqn.a/16384", "number of a LUN"),
            ("iscsi://host/iqn.a/0?sessions=65", "from 1 to 64"),
            ("iscsi://host/iqn.a/0?initiator=x", "begins with"),
            ("iscsi://host/iqn.a/0?user=me", "belong together"),
            ("iscsi://host/iqn.a/0?depth=4", "no option `depth`"),
        ] {
            let error = text.parse::<IscsiUrl>().expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(iscsi://)?.{0,60}") {
            if let Ok(url) = text.parse::<IscsiUrl>() {
                prop_assert_eq!(url.to_string().parse::<IscsiUrl>(), Ok(url));
            }
        }
    }
}
