//! `nfs://HOST[:PORT]/PATH[?OPTIONS]`: where a file is and how to get there.
//!
//! Owns: the text form, its options and their limits.
//! Must not know: sockets, which part of the path is the export (the server says that).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

/// Longest path that is accepted, in bytes: MOUNT limits a path to 1024, and names come after it.
pub const PATH_LEN_BYTES_MAX: usize = 16 * 1024;
/// Most connections to one server, as in Linux.
pub const NCONNECT_MAX: u16 = 16;

const SCHEME: &str = "nfs://";
/// What would end the path or be taken for an escape when the text is read again.
const PATH_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?');

/// A place on an NFS server.
///
/// `Display` gives the text form again, without a password or the like to hide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// A name or an address; IPv6 without its brackets.
    pub host: String,
    /// Where NFS is answered; unknown: ask the server's portmapper.
    pub port: Option<u16>,
    /// Where MOUNT is answered. Unknown: on `port` if that is given, else ask the portmapper.
    pub mount_port: Option<u16>,
    /// Absolute, any bytes but NUL, without empty or `.` components; `/` for the root.
    pub path: Vec<u8>,
    /// The text ended in a slash: the user means a directory.
    pub is_directory: bool,
    /// Who to be instead of the user who runs the process.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Connections, 1 to [`NCONNECT_MAX`].
    pub nconnect: Option<u16>,
}

/// Why a text is not an NFS URL, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("it does not begin with nfs://")]
    Scheme,
    #[error("it names no host; write nfs://HOST[:PORT]/EXPORT/PATH")]
    NoHost,
    #[error("`{0}` is not a host; IPv6 addresses go in brackets: nfs://[::1]/main")]
    BadHost(String),
    #[error("`{0}` is not a port number from 1 to 65535")]
    BadPort(String),
    #[error("the path holds a NUL byte")]
    NulInPath,
    #[error("the path holds `..`, which depends on links only the server knows; write it out")]
    ParentInPath,
    #[error("the path is longer than {PATH_LEN_BYTES_MAX} bytes")]
    PathTooLong,
    #[error("`{value}` is not a value for the option {option}; {wanted}")]
    BadOption {
        option: String,
        value: String,
        wanted: &'static str,
    },
    #[error(
        "there is no option `{0}`; there are port, mountport, version, uid, gid and nconnect \
         (write %3F for a question mark in a file name)"
    )]
    UnknownOption(String),
}

impl NfsUrl {
    /// Whether `text` is meant as an NFS URL, well-formed or not.
    pub fn looks_like(text: &str) -> bool {
        text.get(..SCHEME.len())
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }

    /// The components of the path, in order; none for the root.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.path
            .split(|byte| *byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// The last component of the path; `None` for the root.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// The place `name` in this directory.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut joined = self.clone();
        if !joined.path.ends_with(b"/") {
            joined.path.push(b'/');
        }
        joined.path.extend_from_slice(name);
        joined.is_directory = false;
        joined
    }

    fn set_option(&mut self, option: &str, value: &str) -> Result<(), UrlError> {
        let bad = |wanted| UrlError::BadOption {
            option: option.to_owned(),
            value: value.to_owned(),
            wanted,
        };
        let id = || value.parse().map_err(|_| bad("give a number below 2^32"));
        match option {
            "port" => self.port = Some(parse_port(value)?),
            "mountport" => self.mount_port = Some(parse_port(value)?),
            "uid" => self.uid = Some(id()?),
            "gid" => self.gid = Some(id()?),
            "nconnect" => {
                let count = value.parse().ok();
                let count = count.filter(|count| (1..=NCONNECT_MAX).contains(count));
                self.nconnect = Some(count.ok_or_else(|| bad("give a number from 1 to 16"))?);
            }
            "version" | "vers" if value == "3" => {}
            "version" | "vers" => return Err(bad("only version 3 is spoken")),
            _ => return Err(UrlError::UnknownOption(option.to_owned())),
        }
        Ok(())
    }
}

impl FromStr for NfsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if !Self::looks_like(text) {
            return Err(UrlError::Scheme);
        }
        let rest = text.get(SCHEME.len()..).unwrap_or_default();
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let (host, port) = parse_authority(authority)?;
        let (path, is_directory) = parse_path(path)?;
        let mut url = Self {
            host,
            port,
            mount_port: None,
            path,
            is_directory,
            uid: None,
            gid: None,
            nconnect: None,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (option, value) = option.split_once('=').unwrap_or((option, ""));
            url.set_option(option, value)?;
        }
        Ok(url)
    }
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        write!(f, "{}", percent_encode(&self.path, PATH_ESCAPES))?;
        if self.is_directory && self.path != b"/" {
            f.write_str("/")?;
        }
        let options = [
            ("mountport", self.mount_port.map(u32::from)),
            ("uid", self.uid),
            ("gid", self.gid),
            ("nconnect", self.nconnect.map(u32::from)),
        ];
        let mut separator = '?';
        for (option, value) in options {
            if let Some(value) = value {
                write!(f, "{separator}{option}={value}")?;
                separator = '&';
            }
        }
        Ok(())
    }
}

fn parse_authority(authority: &str) -> Result<(String, Option<u16>), UrlError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let bad = || UrlError::BadHost(authority.to_owned());
            let (host, port) = rest.split_once(']').ok_or_else(bad)?;
            match port {
                "" => (host, None),
                port => (host, Some(port.strip_prefix(':').ok_or_else(bad)?)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let fits = if authority.starts_with('[') {
        is_ipv6(host)
    } else {
        host.chars().all(is_name_char)
    };
    let port_has_colon = port.is_some_and(|port| port.contains(':'));
    if !fits || port_has_colon {
        return Err(UrlError::BadHost(authority.to_owned()));
    }
    Ok((host.to_owned(), port.map(parse_port).transpose()?))
}

/// Of a host name or an IPv4 address; names of other scripts are the resolver's business.
fn is_name_char(char: char) -> bool {
    matches!(char, '-' | '.' | '_') || char.is_alphanumeric()
}

/// An IPv6 address, with the zone that a link-local one needs: `fe80::1%eth0`.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = match host.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (host, None),
    };
    address.parse::<Ipv6Addr>().is_ok()
        && zone.is_none_or(|zone| !zone.is_empty() && zone.chars().all(is_name_char))
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    match text.parse() {
        Ok(0) | Err(_) => Err(UrlError::BadPort(text.to_owned())),
        Ok(port) => Ok(port),
    }
}

/// The path in its plain form, and whether it ended in a slash.
fn parse_path(text: &str) -> Result<(Vec<u8>, bool), UrlError> {
    let bytes: Vec<u8> = percent_decode(text.as_bytes()).collect();
    if bytes.contains(&0) {
        return Err(UrlError::NulInPath);
    }
    let mut path = Vec::with_capacity(bytes.len());
    for component in bytes.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(UrlError::ParentInPath),
            name => {
                path.push(b'/');
                path.extend_from_slice(name);
            }
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    if path.len() > PATH_LEN_BYTES_MAX {
        return Err(UrlError::PathTooLong);
    }
    Ok((path, bytes.ends_with(b"/") || bytes.ends_with(b"/.")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(host: &str, path: &str) -> NfsUrl {
        NfsUrl {
            host: host.to_owned(),
            port: None,
            mount_port: None,
            path: path.as_bytes().to_vec(),
            is_directory: path == "/",
            uid: None,
            gid: None,
            nconnect: None,
        }
    }

    #[test]
    fn urls_are_read_and_written_back() {
        let cases: Vec<(&str, NfsUrl, &str)> = vec![
            ("nfs://host", url("host", "/"), "nfs://host/"),
            ("NFS://host/main", url("host", "/main"), "nfs://host/main"),
            (
                "nfs://[::1]:2050//a/./b%20c%3F/",
                NfsUrl {
                    port: Some(2050),
                    is_directory: true,
                    ..url("::1", "/a/b c?")
                },
                "nfs://[::1]:2050/a/b%20c%3F/",
            ),
            (
                "nfs://[fe80::1%eth0]/x",
                url("fe80::1%eth0", "/x"),
                "nfs://[fe80::1%eth0]/x",
            ),
            (
                "nfs://10.0.0.1/x?port=7&mountport=8&version=3&uid=0&gid=100&nconnect=16",
                NfsUrl {
                    port: Some(7),
                    mount_port: Some(8),
                    uid: Some(0),
                    gid: Some(100),
                    nconnect: Some(16),
                    ..url("10.0.0.1", "/x")
                },
                "nfs://10.0.0.1:7/x?mountport=8&uid=0&gid=100&nconnect=16",
            ),
        ];
        for (text, want, written) in cases {
            let got: NfsUrl = text.parse().expect(text);
            assert_eq!(got, want, "{text}");
            assert_eq!(got.to_string(), written);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        use UrlError::*;
        let option = |option: &str, value: &str, wanted| BadOption {
            option: option.to_owned(),
            value: value.to_owned(),
            wanted,
        };
        let cases: &[(&str, UrlError)] = &[
            ("http://host/", Scheme),
            ("nfs:/host", Scheme),
            ("nfs:///main", NoHost),
            ("nfs://:2049/main", NoHost),
            ("nfs://::1/main", NoHost),
            ("nfs://fe80::1/main", BadHost("fe80::1".into())),
            ("nfs://[::1/main", BadHost("[::1".into())),
            ("nfs://[host]/main", BadHost("[host]".into())),
            ("nfs://[%25]/main", BadHost("[%25]".into())),
            ("nfs://[fe80::1%]/main", BadHost("[fe80::1%]".into())),
            ("nfs://[::1]2049/main", BadHost("[::1]2049".into())),
            ("nfs://a b/main", BadHost("a b".into())),
            ("nfs://host:0/main", BadPort("0".into())),
            ("nfs://host:65536/main", BadPort("65536".into())),
            ("nfs://host:/main", BadPort("".into())),
            ("nfs://host/a%00", NulInPath),
            ("nfs://host/a/../b", ParentInPath),
            (
                "nfs://host/?version=4",
                option("version", "4", "only version 3 is spoken"),
            ),
            (
                "nfs://host/?nconnect=17",
                option("nconnect", "17", "give a number from 1 to 16"),
            ),
            (
                "nfs://host/?uid=root",
                option("uid", "root", "give a number below 2^32"),
            ),
            ("nfs://host/?soft", UnknownOption("soft".into())),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<NfsUrl>().as_ref(), Err(want), "{text}");
        }
        let long = format!("nfs://host/{}", "a".repeat(PATH_LEN_BYTES_MAX));
        assert_eq!(long.parse::<NfsUrl>(), Err(PathTooLong));
    }

    proptest! {
        #[test]
        fn any_path_survives_its_text_form(path in "(/[^/\0.]{1,20}){0,5}", directory: bool) {
            let mut url = url("host", if path.is_empty() { "/" } else { &path });
            url.is_directory |= directory;
            prop_assert_eq!(url.to_string().parse::<NfsUrl>(), Ok(url));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(nfs://)?.{0,60}") {
            let _ = text.parse::<NfsUrl>();
        }
    }
}
