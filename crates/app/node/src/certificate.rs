//! Certificates of HTTPS: read from files, and read again when others are in their place; or made by the server itself.
//!
//! Owns: where they are, when it is looked for others. Must not know: what is served with them.
//!
//! One that the server made is in `admin-tls.pem` of each disk, with its key, for each disk may be the next one to go.

use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::Certificate;
use cairn_base::env::Env;
use cairn_config::{AdminTls, Config};

use crate::ready::folder_of;

/// Of a disk's folder: the certificate that the server made, and its key.
pub const SELF_SIGNED_NAME: &str = "admin-tls.pem";
pub const SELF_SIGNED_NAME_NEW: &str = "admin-tls.pem.new";
/// How often it is looked whether there is another certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Of a file of certificates or a key.
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

/// The certificate in files (its own and that of its key); what is put in their place is served soon after. `of` says what
/// it is for. Gives back the certificates as PEM as well.
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
    let (watched, clock) = (Arc::clone(&certificate), Arc::clone(&env.clock));
    let mut told = String::new();
    let task = async move {
        loop {
            clock.sleep(LOOK_INTERVAL).await;
            let replaced = match read_pems(&paths) {
                Ok(now) if now == pems => continue,
                Ok(now) => {
                    let replaced = watched.replace(&now.0, &now.1);
                    replaced
                        .map(|()| pems = now)
                        .map_err(|error| error.to_string())
                }
                Err(error) => Err(error),
            };
            match replaced {
                Ok(()) => {
                    told.clear();
                    tracing::info!("{shown} is another one now, and served");
                }
                // Both files are not replaced in one step, so the next look may be better; it is said once.
                Err(error) if error != told => {
                    tracing::warn!(%error, "{shown} changed and cannot be served; the one before is");
                    told = error;
                }
                Err(_) => {}
            }
        }
    };
    env.spawner.spawn("certificate", Box::pin(task));
    Ok((certificate, chain))
}

/// What the admin API speaks HTTPS with.
pub struct AdminCertificate {
    pub certificate: Arc<Certificate>,
    /// By which clients of this machine know it, as PEM, without the key.
    pub shown_pem: String,
    /// The first name that the operator gave.
    pub name: Option<String>,
}

/// The certificate of the admin API, if it is to speak HTTPS. `folders` are those of this server's disks.
pub fn of_admin(
    env: &Env,
    config: &Config,
    folders: &[PathBuf],
) -> Result<Option<AdminCertificate>, String> {
    let (certificate, shown) = match &config.admin_tls {
        None => return Ok(None),
        Some(AdminTls::Files { certificate, key }) => {
            of_files(env, "the admin API", (certificate.clone(), key.clone()))?
        }
        Some(AdminTls::SelfSigned) => self_signed(env, config, folders)?,
    };
    let shown_pem = String::from_utf8(shown);
    let shown_pem =
        shown_pem.map_err(|_| "the certificate of the admin API is no text".to_owned())?;
    Ok(Some(AdminCertificate {
        certificate,
        // Operators may have both in one file.
        shown_pem: certificates_in(&shown_pem),
        name: config.admin_names.first().cloned(),
    }))
}

/// The certificates of a PEM file, without whatever else is in it.
fn certificates_in(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let parts = pem.split(BEGIN).skip(1);
    let bodies = parts.filter_map(|part| Some(part.split_once(END)?.0));
    bodies.map(|body| format!("{BEGIN}{body}{END}\n")).collect()
}

/// The names that are in a certificate that the server makes.
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

/// Takes the certificate that a start before made, or makes one; all disks have the same one then. If they have several,
/// the one counts that was changed last.
fn self_signed(
    env: &Env,
    config: &Config,
    folders: &[PathBuf],
) -> Result<(Arc<Certificate>, Vec<u8>), String> {
    let paths: Vec<PathBuf> = folders
        .iter()
        .map(|folder| folder.join(SELF_SIGNED_NAME))
        .collect();
    let mut found: Option<(std::time::SystemTime, Vec<u8>, Arc<Certificate>)> = None;
    for path in &paths {
        let modified = match path.metadata().and_then(|metadata| metadata.modified()) {
            Ok(modified) => modified,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a certificate cannot be read");
                continue;
            }
        };
        let read = read_pem(path).and_then(|pem| {
            let certificate = Certificate::new(&pem, &pem).map_err(|error| error.to_string())?;
            Ok((pem, certificate))
        });
        match read {
            Ok((pem, certificate)) => {
                if found.as_ref().is_none_or(|(at, ..)| modified > *at) {
                    found = Some((modified, pem, certificate));
                }
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a certificate cannot be used")
            }
        }
    }
    let (pem, certificate) = match found {
        Some((_, pem, certificate)) => (pem, certificate),
        None => {
            let names = names_of(config);
            let made = cairn_admin::self_signed(&names, env.clock.now().seconds);
            let made = made.map_err(|error| error.to_string())?;
            let pem = format!("{}{}", made.certificate_pem, made.key_pem).into_bytes();
            let certificate = Certificate::new(&pem, &pem).map_err(|error| error.to_string())?;
            tracing::info!(
                names = names.join(", "),
                "a certificate for the admin API is made"
            );
            (pem, certificate)
        }
    };
    let mut is_kept = paths.is_empty();
    for path in &paths {
        let is_there = read_pem(path).is_ok_and(|there| there == pem);
        let written = if is_there { Ok(()) } else { write(path, &pem) };
        match written {
            Ok(()) => is_kept = true,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "this disk does not have the certificate");
            }
        }
    }
    match is_kept {
        true => Ok((certificate, pem)),
        // Whoever was told to trust it would see another one after the next start.
        false => Err("no disk takes the certificate of the admin API".to_owned()),
    }
}

/// Puts the whole file there at once, for nobody else to read.
fn write(path: &Path, pem: &[u8]) -> std::io::Result<()> {
    let new = folder_of(path).join(SELF_SIGNED_NAME_NEW);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(pem)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    std::fs::File::open(folder_of(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cairn_config::Settings;
    use cairn_testkit::test_env;

    use super::*;

    #[test]
    fn a_certificate_that_was_made_stays_and_all_disks_have_it() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| root.path().join(name));
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        let settings = Settings {
            data: folders.to_vec(),
            admin_self_signed: Some(true),
            admin_name: vec!["cairn.example.org".to_owned()],
            ..Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        let env = test_env();
        let first = of_admin(&env, &config, &folders).unwrap().unwrap();
        assert_eq!(first.name.as_deref(), Some("cairn.example.org"));
        assert!(first.shown_pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!first.shown_pem.contains("PRIVATE KEY"));
        let on = |folder: &Path| std::fs::read(folder.join(SELF_SIGNED_NAME)).unwrap();
        assert_eq!(on(&folders[0]), on(&folders[1]));
        let mode = folders[0]
            .join(SELF_SIGNED_NAME)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        // Also with a disk that is new, and one whose file is damaged.
        std::fs::remove_file(folders[0].join(SELF_SIGNED_NAME)).unwrap();
        let again = of_admin(&env, &config, &folders).unwrap().unwrap();
        assert_eq!(again.shown_pem, first.shown_pem);
        std::fs::write(folders[1].join(SELF_SIGNED_NAME), "nonsense").unwrap();
        let again = of_admin(&env, &config, &folders).unwrap().unwrap();
        assert_eq!(again.shown_pem, first.shown_pem);
        assert_eq!(on(&folders[0]), on(&folders[1]));
    }

    #[test]
    fn without_https_there_is_no_certificate() {
        let settings = Settings {
            data: vec!["/a".into()],
            ..Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        assert!(of_admin(&test_env(), &config, &[]).unwrap().is_none());
    }
}
