//! A program of the operator's that moves an address: where the network is a cloud's, which hears no ARP.
//!
//! Owns: how it is called, and what its end means. Must not know: which addresses there are.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

/// It may take so long.
pub const HOOK_MAX: Duration = Duration::from_secs(15);
/// Of what it says when it fails.
const SAID_LEN_BYTES_MAX: u64 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Take,
    Drop,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Drop => "drop",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("starting the address hook {path}: {source}")]
    Start { path: String, source: io::Error },
    #[error("the address hook {path} {verb} ended with {status}: {said}")]
    Failed {
        path: String,
        verb: &'static str,
        status: String,
        said: String,
    },
    #[error("the address hook {path} {verb} took longer than {} s and was killed", HOOK_MAX.as_secs())]
    Late { path: String, verb: &'static str },
}

/// An address, as the program gets it.
#[derive(Clone, Debug)]
pub struct HookAddress<'w> {
    /// `volume` or `pool`: what the name is of.
    pub of: &'static str,
    pub name: &'w str,
    /// With the length of its prefix.
    pub address: String,
    pub interface: Option<&'w str>,
}

/// The program. Called as `HOOK take|drop NAME ADDRESS/PREFIX`, with the name of a volume or a pool, as `CAIRN_ADDRESS_OF` says,
/// and with `CAIRN_INTERFACE` if an interface is named.
#[derive(Clone, Debug)]
pub struct Hook(pub PathBuf);

impl Hook {
    pub async fn call(&self, verb: Verb, told: &HookAddress<'_>) -> Result<(), HookError> {
        let path = self.0.display().to_string();
        let word = verb.word();
        let start = |source| HookError::Start {
            path: path.clone(),
            source,
        };
        let mut command = Command::new(&self.0);
        command
            .args([word, told.name, &told.address])
            .env("CAIRN_ADDRESS_OF", told.of)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        match told.interface {
            Some(interface) => command.env("CAIRN_INTERFACE", interface),
            None => command.env_remove("CAIRN_INTERFACE"),
        };
        let mut child = command.spawn().map_err(start)?;
        let mut errors = child.stderr.take();
        let work = async {
            let mut said = Vec::new();
            if let Some(errors) = &mut errors {
                // What cannot be read was not said.
                let _ = errors.take(SAID_LEN_BYTES_MAX).read_to_end(&mut said).await;
                // A hook that writes more must not wait for a reader.
                let _ = tokio::io::copy(errors, &mut tokio::io::sink()).await;
            }
            child.wait().await.map(|status| (status, said))
        };
        match timeout(HOOK_MAX, work).await {
            Err(_) => Err(HookError::Late { path, verb: word }),
            Ok(Err(source)) => Err(start(source)),
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((status, said))) => Err(HookError::Failed {
                path,
                verb: word,
                status: status.to_string(),
                said: String::from_utf8_lossy(&said).trim().to_owned(),
            }),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use super::*;

    /// Makes the script `hook` in a folder. Another process writes it: a child that a test beside this one starts would inherit
    /// the descriptor, and a file that somebody has open to write cannot be executed (ETXTBSY).
    pub(crate) fn write_script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("hook");
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "#!/bin/sh\n{text}").unwrap();
        drop(input);
        assert!(shell.wait().unwrap().success());
        path
    }

    fn told(interface: Option<&str>) -> HookAddress<'_> {
        HookAddress {
            of: "volume",
            name: "home",
            address: "10.0.0.9/24".to_owned(),
            interface,
        }
    }

    fn script(folder: &Path, text: &str) -> Hook {
        Hook(write_script(folder, text))
    }

    #[tokio::test]
    async fn a_hook_is_told_what_to_do_and_its_errors_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let hook = script(
            folder.path(),
            &format!(
                "echo \"$@ $CAIRN_ADDRESS_OF $CAIRN_INTERFACE\" >> {}",
                out.display()
            ),
        );
        hook.call(Verb::Take, &told(Some("eth1"))).await.unwrap();
        hook.call(Verb::Drop, &told(None)).await.unwrap();
        let seen = std::fs::read_to_string(&out).unwrap();
        assert_eq!(
            seen,
            "take home 10.0.0.9/24 volume eth1\ndrop home 10.0.0.9/24 volume \n"
        );

        let none_told = told(None);
        let hook = script(folder.path(), "echo no quota >&2; exit 3");
        let failed = hook.call(Verb::Take, &none_told);
        let text = failed.await.unwrap_err().to_string();
        assert!(text.contains("no quota") && text.contains('3'), "{text}");

        let none = Hook(folder.path().join("none"));
        let failed = none.call(Verb::Take, &none_told);
        assert!(matches!(failed.await, Err(HookError::Start { .. })));
    }

    /// Real time is not waited for: the clock of the runtime is moved on while the script sleeps.
    #[tokio::test(start_paused = true)]
    async fn a_hook_that_hangs_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), "exec sleep 1000");
        let late = hook.call(Verb::Take, &told(None)).await;
        assert!(matches!(late, Err(HookError::Late { .. })), "{late:?}");
    }
}
