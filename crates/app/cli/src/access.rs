//! Finds the server that a command is for, and its token.

use std::io::Read as _;
use std::path::Path;

use cairn_admin::api::ReadyFile;
use cairn_admin::users::Password;
use cairn_admin::{Client, Identity, Token};
use cairn_config::{LISTEN_ADMIN_DEFAULT, is_safe_url};
use cairn_node::ready;

use crate::args::ServerArgs;
use crate::exit::Failure;
use crate::secret;

/// A client of the server that the flags name, else of the one running on this machine.
pub fn client(args: &ServerArgs) -> Result<Client, Failure> {
    client_and_password(args).map(|(client, _)| client)
}

/// The same, with the password of the user that the client is, if it is one.
pub fn client_and_password(args: &ServerArgs) -> Result<(Client, Option<Password>), Failure> {
    let local = find_local();
    let url = match (&args.server, &local) {
        (Some(url), _) => checked_url(url)?,
        (None, Some(local)) if local.runs => local.ready.admin.url.clone(),
        // Whoever listens there now is somebody else, and must not get the token.
        (None, Some(local)) => return Err(ended(&local.ready)),
        (None, None) => format!("http://{LISTEN_ADMIN_DEFAULT}"),
    };
    let is_it = |local: &Local| local.runs && local.ready.admin.url == url;
    let local = local.filter(is_it);
    let local = local.as_ref().map(|local| &local.ready);
    if local.is_none() && !args.insecure {
        require_private(&url)?;
    }
    let trusted = trusted(args, &url, local)?;
    let Some(name) = args.login.clone() else {
        let identity = token(args, local)?.map(Identity::Token);
        let client = Client::new(&url, identity.as_ref(), trusted.as_deref())?;
        return Ok((client, None));
    };
    let password = match std::env::var("CAIRN_PASSWORD") {
        Ok(password) if args.login_password_file.is_none() => Password::new(password),
        _ => secret::password(args.login_password_file.as_deref(), name.as_str())?,
    };
    let identity = Identity::User {
        name,
        password: password.clone(),
    };
    let client = Client::new(&url, Some(&identity), trusted.as_deref())?;
    Ok((client, Some(password)))
}

/// By what a server at `https://` is known.
fn trusted(
    args: &ServerArgs,
    url: &str,
    local: Option<&ReadyFile>,
) -> Result<Option<String>, Failure> {
    /// Of all certificates that a system trusts, with room to spare, in bytes.
    const LEN_BYTES_MAX: u64 = 4 << 20;
    if !url.starts_with("https://") {
        return Ok(None);
    }
    let Some(path) = &args.ca else {
        let own = local.and_then(|local| local.certificate.clone());
        let unknown = || {
            Failure::usage(format!("it is not known which certificates vouch for {url}"))
                .hint("name a file with them with --ca PATH: the server's own, that of who signed it, or the system's, \
                       such as /etc/ssl/certs/ca-certificates.crt")
        };
        return own.ok_or_else(unknown).map(Some);
    };
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(LEN_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| {
        Failure::failed(format!(
            "reading certificates in {}: {error}",
            path.display()
        ))
    })?;
    Ok(Some(text))
}

fn ended(ready: &ReadyFile) -> Failure {
    Failure::unreachable(format!(
        "the server at {} is no longer running: its user has no process {}",
        ready.admin.url, ready.pid
    ))
    .hint(
        "start it with `cairn serve --data DIR`, or name one in a container or on another machine with --server URL",
    )
}

fn checked_url(url: &str) -> Result<String, Failure> {
    if url.starts_with("http://") || url.starts_with("https://") {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    if url.contains("://") {
        return Err(Failure::usage(format!(
            "the server \"{url}\" is not of the form http://ADDRESS:PORT or https://NAME:PORT"
        )));
    }
    Ok(format!("https://{url}"))
}

/// Fails if others could read what is said with this server.
fn require_private(url: &str) -> Result<(), Failure> {
    match is_safe_url(url) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{url} is another machine's and not encrypted: whoever listens in between would read the token or the password"
        ))
        .hint(
            "write https://, and give the server a certificate (admin_certificate or admin_self_signed); --insecure does without",
        )),
    }
}

fn token(args: &ServerArgs, local: Option<&ReadyFile>) -> Result<Option<Token>, Failure> {
    if let Some(path) = &args.token_file {
        return read(path).map(Some);
    }
    if let Ok(text) = std::env::var("CAIRN_TOKEN") {
        return Token::parse(&text)
            .map(Some)
            .map_err(|error| Failure::usage(format!("CAIRN_TOKEN: {error}")));
    }
    match local {
        Some(local) => read(Path::new(&local.token_file)).map(Some),
        None => Ok(None),
    }
}

fn read(path: &Path) -> Result<Token, Failure> {
    cairn_node::token::read(path).map_err(|error| {
        Failure::refused(error.to_string()).hint(
            "run the command as the server's user, or give a copy of the token with --token-file",
        )
    })
}

/// A server of this machine, by the file that it wrote.
struct Local {
    ready: ReadyFile,
    runs: bool,
}

/// The server of this machine: one that runs is preferred to one that left its file.
fn find_local() -> Option<Local> {
    let folder = ready::runtime_folder()?;
    let found = ready::read_all(&folder).into_iter();
    let found = found.map(|(ready, owner)| Local {
        runs: ready::runs(ready.pid, owner),
        ready,
    });
    // The first of equals.
    found.reduce(|first, other| {
        if first.runs || !other.runs {
            first
        } else {
            other
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ended_is_known_for_it() {
        let user = rustix::process::geteuid().as_raw();
        assert!(ready::runs(std::process::id(), user));
        assert!(!ready::runs(std::process::id(), user + 12_345));
        // Somebody else has its number now.
        let mut other = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let is_named = || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", other.id()));
            name.is_ok_and(|name| name == "sleep\n")
        };
        while !is_named() {
            std::thread::yield_now();
        }
        assert!(!ready::runs(other.id(), user));
        other.kill().unwrap();
        other.wait().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!ready::runs(child.id(), user));
    }

    #[test]
    fn urls_are_completed_or_refused() {
        let cases: &[(&str, Option<&str>)] = &[
            ("http://127.0.0.1:8049", Some("http://127.0.0.1:8049")),
            ("http://host:1/", Some("http://host:1")),
            ("host:1", Some("https://host:1")),
            ("127.0.0.1:8049", Some("https://127.0.0.1:8049")),
            ("https://host:1/", Some("https://host:1")),
            ("ftp://host:1", None),
            ("nfs://host", None),
        ];
        for (url, want) in cases {
            assert_eq!(checked_url(url).ok().as_deref(), *want, "{url}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        let cases = [
            ("http://127.0.0.1:8049", true),
            ("http://localhost:8049", true),
            ("http://[::1]:8049", true),
            ("https://host:8049", true),
            ("http://host:8049", false),
            ("http://10.0.0.1:8049", false),
            ("http://127.0.0.1@host:8049", false),
            ("http://localhost.example.org", false),
        ];
        for (url, want) in cases {
            assert_eq!(require_private(url).is_ok(), want, "{url}");
        }
    }
}
