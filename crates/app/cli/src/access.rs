//! Finds the server that a command is for, and its token.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use cairn_admin::api::ReadyFile;
use cairn_admin::users::Password;
use cairn_admin::{Client, Identity, Token};
use cairn_config::{LISTEN_ADMIN_DEFAULT, VolumeName, is_safe_url};
use cairn_node::ready;

use crate::args::ServerArgs;
use crate::exit::Failure;
use crate::secret;

/// A client of the server that the flags name, else of the one running on this machine.
pub fn client(args: &ServerArgs) -> Result<Client, Failure> {
    client_and_password(args).map(|(client, _)| client)
}

/// A client of that server, with the user's password if it logs in as a user.
pub fn client_and_password(args: &ServerArgs) -> Result<(Client, Option<Password>), Failure> {
    let found = find_locals();
    let (url, local) = match &args.server {
        Some(url) => {
            let url = checked_url(url)?;
            let is_it = |local: &Local| local.runs && local.ready.admin.url == url;
            let local = found.into_iter().find(is_it);
            (url, local)
        }
        None => {
            let of_environment = std::env::var_os("CAIRN_STATE_DIR").map(PathBuf::from);
            let wanted = args.state_dir.as_deref();
            match choose(found, wanted, of_environment.as_deref())? {
                Some(local) => (local.ready.admin.url.clone(), Some(local)),
                None => (format!("http://{LISTEN_ADMIN_DEFAULT}"), None),
            }
        }
    };
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
            Failure::usage(format!("no CA certificate for {url} is known"))
                .hint("give a PEM file with --ca PATH: the server's own certificate, its CA, or the system's CAs, \
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
        "start it with `cairn serve --data DIR`, or name a server in a container or on another machine with --server URL",
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
            "{url} is on another machine and not encrypted: anyone on the network path could read the token or the password"
        ))
        .hint(
            "use https://, and give the server a certificate (admin_certificate or admin_self_signed); --insecure allows plain HTTP",
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

/// The servers of this machine that wrote where they are.
fn find_locals() -> Vec<Local> {
    let Some(folder) = ready::runtime_folder() else {
        return Vec::new();
    };
    let found = ready::read_all(&folder).into_iter();
    let found = found.map(|(ready, owner)| Local {
        runs: ready::runs(ready.pid, owner),
        ready,
    });
    found.collect()
}

/// The server of this machine that is meant: the only one that runs, or the one with the state folder that is `wanted`. Of several that
/// run none is taken for the one that is meant, unless the folder that this shell's servers have (`of_environment`) is that of one.
///
/// `None`: no server said where it is.
fn choose(
    found: Vec<Local>,
    wanted: Option<&Path>,
    of_environment: Option<&Path>,
) -> Result<Option<Local>, Failure> {
    let (mut running, ended): (Vec<Local>, Vec<Local>) =
        found.into_iter().partition(|local| local.runs);
    if let Some(wanted) = wanted {
        let place = running.iter().position(|local| local.has(wanted));
        let place = place.ok_or_else(|| {
            Failure::unreachable(format!(
                "no server with the state folder {} runs on this machine",
                wanted.display()
            ))
            .hint("start it, or name it with --server URL")
        })?;
        return Ok(Some(running.swap_remove(place)));
    }
    if running.len() > 1 {
        let of_environment = of_environment.and_then(|folder| {
            let mut places = running.iter();
            places.position(|local| local.has(folder))
        });
        let place = of_environment.ok_or_else(|| several(&running))?;
        return Ok(Some(running.swap_remove(place)));
    }
    match (running.pop(), ended.first()) {
        (Some(only), _) => Ok(Some(only)),
        // Another process listens there now, and must not get the token.
        (None, Some(ended)) => Err(self::ended(&ended.ready)),
        (None, None) => Ok(None),
    }
}

/// Which servers there are, where it is not said which is meant.
fn several(running: &[Local]) -> Failure {
    let mut lines = vec!["several servers run on this machine; choose one:".to_owned()];
    for Local { ready, .. } in running {
        let volumes: Vec<&str> = ready.volumes.iter().map(VolumeName::as_str).collect();
        let state_dir = ready.state_dir.as_deref().unwrap_or("none");
        lines.push(format!(
            "  {}  process {}, pool {}, volumes {}, state folder {state_dir}",
            ready.admin.url,
            ready.pid,
            ready.pool,
            volumes.join(", ")
        ));
    }
    Failure::usage(lines.join("\n"))
        .hint("name one with --server URL (or CAIRN_SERVER), or with --state-dir DIR")
}

impl Local {
    /// Whether a folder is its state folder.
    fn has(&self, folder: &Path) -> bool {
        let real = |path: &Path| {
            let real = path.canonicalize().or_else(|_| std::path::absolute(path));
            real.unwrap_or_else(|_| path.to_owned())
        };
        let own = self.ready.state_dir.as_deref();
        own.is_some_and(|own| real(Path::new(own)) == real(folder))
    }
}

#[cfg(test)]
mod tests {
    use cairn_admin::api::{AdminView, NfsReady};

    use super::*;

    fn local(number: u32, runs: bool) -> Local {
        Local {
            ready: ReadyFile {
                pid: number,
                pool: format!("pool{number}"),
                state_dir: Some(format!("/nonexistent/state{number}")),
                nfs: NfsReady {
                    address: "127.0.0.1".to_owned(),
                    port: 2049,
                },
                admin: AdminView {
                    url: format!("http://127.0.0.1:{number}"),
                },
                token_file: String::new(),
                certificate: None,
                volumes: Vec::new(),
            },
            runs,
        }
    }

    #[test]
    fn of_several_servers_none_is_guessed() {
        let one = Some("/nonexistent/state1");
        let two = Some("/nonexistent/state2");
        let other = Some("/nonexistent/state9");
        // Those that run, those that left their file, which is wanted, which the environment has; which is taken, if one may be.
        type Case<'a> = (
            &'a [u32],
            &'a [u32],
            Option<&'a str>,
            Option<&'a str>,
            Result<Option<u32>, &'a str>,
        );
        let cases: &[Case<'_>] = &[
            (&[], &[], None, None, Ok(None)),
            (&[1], &[], None, None, Ok(Some(1))),
            (&[1], &[2], None, two, Ok(Some(1))),
            (&[], &[1, 2], None, None, Err("no longer running")),
            (&[1, 2], &[], None, None, Err("several servers")),
            (&[1, 2], &[], None, other, Err("several servers")),
            (&[1, 2], &[], None, two, Ok(Some(2))),
            (&[1, 2], &[], one, two, Ok(Some(1))),
            (&[1], &[], other, None, Err("no server with")),
            (&[1], &[2], two, None, Err("no server with")),
        ];
        for (running, ended, wanted, of_environment, want) in cases {
            let running = running.iter().map(|number| local(*number, true));
            let ended = ended.iter().map(|number| local(*number, false));
            let found = running.chain(ended).collect();
            let chosen = choose(found, wanted.map(Path::new), of_environment.map(Path::new));
            match (chosen, want) {
                (Ok(chosen), Ok(want)) => {
                    assert_eq!(chosen.map(|local| local.ready.pid), *want);
                }
                (Err(refused), Err(want)) => {
                    let told = format!("{refused:?}");
                    assert!(told.contains(want), "{told}");
                }
                (Ok(chosen), Err(want)) => {
                    let chosen = chosen.map(|local| local.ready.pid);
                    panic!("{chosen:?} was taken, and {want:?} should be told");
                }
                (Err(refused), Ok(want)) => panic!("{refused:?}, and {want:?} is meant"),
            }
        }
        // Each is told with what names it.
        let told = format!("{:?}", several(&[local(1, true), local(2, true)]));
        for part in [
            "http://127.0.0.1:1",
            "pool2",
            "/nonexistent/state2",
            "process 1",
        ] {
            assert!(told.contains(part), "{told}");
        }
    }

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
