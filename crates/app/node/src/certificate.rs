//! Certificates of HTTPS: read from files, and again when the files change; or made by the server itself.
//!
//! Owns: where they are, when changes of them are looked for. Must not know: the service that uses them.
//!
//! A certificate that the server made is in `admin-tls.pem` of the state folder, with its key.

use std::future::ready;
use std::io::{ErrorKind, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::Certificate;
use cairn_base::Backoff;
use cairn_base::env::Env;
use cairn_base::jobs::Job;
use cairn_config::{AdminTls, Config};

use crate::error::NodeError;
use crate::state_folder;
use crate::token::write_first;

/// In the state folder: the certificate that the server made, and its key.
const SELF_SIGNED_NAME: &str = "admin-tls.pem";
/// Interval at which the files are checked for another certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The longest pause until files that cannot be used are read again.
const RETRY_LONGEST: Duration = Duration::from_secs(20);
/// Maximum size of a file of certificates or a key.
const PEM_LEN_BYTES_MAX: u64 = 1 << 20;

fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(PEM_LEN_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(format!("reading {}: {error}", path.display())),
    }
}

type Pems = (Vec<u8>, Vec<u8>);

fn read_pems(paths: &(PathBuf, PathBuf)) -> Result<Pems, String> {
    Ok((read_pem(&paths.0)?, read_pem(&paths.1)?))
}

/// The certificate in files (one for the chain and one for its key). The server uses replaced files soon after. `of`
/// names its purpose in messages. Also returns the certificates as PEM.
pub fn of_files(
    env: &Env,
    of: &'static str,
    paths: (PathBuf, PathBuf),
) -> Result<(Arc<Certificate>, Vec<u8>), String> {
    let shown = format!("the certificate of {of}, {}", paths.0.display());
    let mut pems = read_pems(&paths)?;
    let chain = pems.0.clone();
    let certificate = Certificate::new(&pems.0, &pems.1);
    let certificate = certificate.map_err(|error| format!("{shown}: {error}"))?;
    let watched = Arc::clone(&certificate);
    let look = move || {
        let looked = replace_if_changed(&watched, &paths, &mut pems);
        let looked = looked.map_err(|error| {
            format!("{shown} changed and cannot be used; the server keeps the earlier one: {error}")
        });
        if let Ok(true) = looked {
            tracing::info!("{shown} was replaced, and is in use");
        }
        ready(looked.map(|_| ()))
    };
    Job::every("certificate", LOOK_INTERVAL)
        .of(of)
        .retry(Backoff::new(LOOK_INTERVAL, RETRY_LONGEST))
        .start(env, look);
    Ok((certificate, chain))
}

/// Uses the certificate in files from now on if it is not `pems`; returns whether it is another one. The two files are not
/// replaced in one step, so after an error the next look may succeed.
fn replace_if_changed(
    certificate: &Certificate,
    paths: &(PathBuf, PathBuf),
    pems: &mut Pems,
) -> Result<bool, String> {
    let now = read_pems(paths)?;
    if now == *pems {
        return Ok(false);
    }
    let replaced = certificate.replace(&now.0, &now.1);
    replaced.map_err(|error| error.to_string())?;
    *pems = now;
    Ok(true)
}

/// The certificate with which the admin API serves HTTPS.
pub struct AdminCertificate {
    pub certificate: Arc<Certificate>,
    /// The certificates as PEM, without the key, by which clients of this machine know it.
    pub shown_pem: String,
    /// The first name that the operator gave.
    pub name: Option<String>,
}

/// The certificate of the admin API, if HTTPS is configured.
pub fn of_admin(env: &Env, config: &Config) -> Result<Option<AdminCertificate>, String> {
    let (certificate, shown) = match &config.admin_tls {
        None => return Ok(None),
        Some(AdminTls::Files { certificate, key }) => {
            of_files(env, "the admin API", (certificate.clone(), key.clone()))?
        }
        Some(AdminTls::SelfSigned) => self_signed(env, config)?,
    };
    let shown_pem = String::from_utf8(shown);
    let shown_pem =
        shown_pem.map_err(|_| "the certificate of the admin API is not text".to_owned())?;
    Ok(Some(AdminCertificate {
        certificate,
        // Operators may have both in one file.
        shown_pem: certificates_in(&shown_pem),
        name: config.admin_names.first().cloned(),
    }))
}

/// The certificates of a PEM file, without its other contents.
fn certificates_in(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let parts = pem.split(BEGIN).skip(1);
    let bodies = parts.filter_map(|part| Some(part.split_once(END)?.0));
    bodies.map(|body| format!("{BEGIN}{body}{END}\n")).collect()
}

/// The names in a certificate that the server makes.
fn names_of(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = config.admin_names.clone();
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    let own = rustix::system::uname();
    if let Ok(own) = own.nodename().to_str()
        && !own.is_empty()
        && own
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    {
        names.push(own.to_owned());
    }
    let ip: IpAddr = config.listen_admin.ip();
    if !ip.is_unspecified() {
        names.push(ip.to_string());
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Loads the certificate that an earlier start made, or makes one.
fn self_signed(env: &Env, config: &Config) -> Result<(Arc<Certificate>, Vec<u8>), String> {
    let told = |error: NodeError| error.to_string();
    let path = state_folder::make(config).map_err(told)?;
    let path = path.join(SELF_SIGNED_NAME);
    if !path.try_exists().map_err(|error| shown(&path, &error))? {
        let names = names_of(config);
        let made = cairn_admin::self_signed(&names, env.clock.now().seconds);
        let made = made.map_err(|error| error.to_string())?;
        let pem = format!("{}{}", made.certificate_pem, made.key_pem).into_bytes();
        match write_first(&path, &pem, &*env.entropy) {
            Ok(()) => {
                tracing::info!(
                    names = names.join(", "),
                    "created a certificate for the admin API"
                );
            }
            // Another server of this user made it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(shown(&path, &error)),
        }
    }
    // A corrupt one is not replaced: clients that were told to trust it would see another one.
    let pem = read_pem(&path)?;
    let certificate = Certificate::new(&pem, &pem);
    let certificate = certificate.map_err(|error| shown(&path, &error))?;
    Ok((certificate, pem))
}

fn shown(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cairn_config::Settings;
    use cairn_testkit::test_env;

    use super::*;

    #[test]
    fn a_certificate_that_was_made_stays_and_is_on_no_disk() {
        let root = tempfile::tempdir().unwrap();
        let (disk, state) = (root.path().join("disk"), root.path().join("state"));
        let config = |state: &Path| {
            let settings = Settings {
                data: vec![disk.clone()],
                state_dir: Some(state.to_owned()),
                admin_self_signed: Some(true),
                admin_name: vec!["cairn.example.org".to_owned()],
                ..Settings::default()
            };
            settings.resolve(1).unwrap()
        };
        let env = test_env();
        let first = of_admin(&env, &config(&state)).unwrap().unwrap();
        assert_eq!(first.name.as_deref(), Some("cairn.example.org"));
        assert!(first.shown_pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!first.shown_pem.contains("PRIVATE KEY"));
        assert!(!disk.exists());
        let path = state.join(SELF_SIGNED_NAME);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&state)), (0o600, 0o700));
        let again = of_admin(&env, &config(&state)).unwrap().unwrap();
        assert_eq!(again.shown_pem, first.shown_pem);
        std::fs::write(&path, "nonsense").unwrap();
        assert!(of_admin(&env, &config(&state)).is_err());
        let refused = of_admin(&env, &config(&disk.join("state"))).err().unwrap();
        assert!(refused.contains("data disk"), "{refused}");
    }

    #[test]
    fn without_https_there_is_no_certificate() {
        let settings = Settings {
            data: vec!["/a".into()],
            ..Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        assert!(of_admin(&test_env(), &config).unwrap().is_none());
    }
}
