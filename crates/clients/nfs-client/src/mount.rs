//! From a URL to a root handle: names, ports, exports.
//!
//! Owns: PORTMAP and MOUNT as a client sees them, and the search for the export in a path.
//! Must not know: what happens with the handle.

use std::net::SocketAddr;

use bytes::Bytes;
use cairn_codec_nfs::mount::{self, MountError, MountOk};
use cairn_codec_nfs::v3;
use cairn_codec_rpc::{DecodeError, Encode, List, Opaque, Reader, portmap};

use crate::connection::{Connection, ConnectionSettings, Target};
use crate::error::Error;
use crate::url::NfsUrl;

/// Addresses of one host name that are tried.
const ADDRESS_COUNT_MAX: usize = 8;
/// Prefixes of a path that are tried as exports when the server lists none that fits.
const PREFIX_COUNT_MAX: usize = 8;
/// Exports that an error message names.
const EXPORTS_SHOWN_MAX: usize = 32;

/// Where one server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub nfs: SocketAddr,
    pub mount: SocketAddr,
}

/// An export that let us in.
pub(crate) struct Mounted {
    pub root: v3::FileHandle,
    /// The path that was mounted.
    pub export: Vec<u8>,
    /// NFS, connected.
    pub connection: Connection,
    pub ports: Ports,
}

/// Finds the server and mounts the export that the URL's path is in.
pub(crate) async fn mount(
    url: &NfsUrl,
    auth_body: &[u8],
    settings: &ConnectionSettings,
) -> Result<Mounted, Error> {
    let mut last_error = Error::Resolve {
        host: url.host.clone(),
        error: std::io::ErrorKind::NotFound.into(),
    };
    for address in resolve(url).await? {
        match mount_at(address, url, auth_body, settings).await {
            // A host name may have addresses on which nobody listens.
            Err(error @ (Error::Unreachable { .. } | Error::NotRegistered { .. })) => {
                last_error = error;
            }
            other => return other,
        }
    }
    Err(last_error)
}

async fn resolve(url: &NfsUrl) -> Result<Vec<SocketAddr>, Error> {
    let port = url.port.unwrap_or(v3::PORT);
    let found = tokio::net::lookup_host((url.host.as_str(), port)).await;
    let found = found.map_err(|error| Error::Resolve {
        host: url.host.clone(),
        error,
    })?;
    Ok(found.take(ADDRESS_COUNT_MAX).collect())
}

async fn mount_at(
    address: SocketAddr,
    url: &NfsUrl,
    auth_body: &[u8],
    settings: &ConnectionSettings,
) -> Result<Mounted, Error> {
    let open = |address| Connection::open(address, auth_body.to_vec(), settings.clone());
    let ports = find_ports(address, url, settings).await?;
    let connection = open(ports.nfs).await?;
    let mount_connection = if ports.mount == ports.nfs {
        connection.clone()
    } else {
        open(ports.mount).await?
    };
    let (root, export) = find_export(&mount_connection, &url.path).await?;
    Ok(Mounted {
        root,
        export,
        connection,
        ports,
    })
}

async fn find_ports(
    address: SocketAddr,
    url: &NfsUrl,
    settings: &ConnectionSettings,
) -> Result<Ports, Error> {
    let at = |port| SocketAddr::new(address.ip(), port);
    let mount = match (url.mount_port, url.port) {
        (Some(mount), _) => mount,
        (None, Some(nfs)) => nfs,
        (None, None) => return ask_portmapper(address, settings).await,
    };
    Ok(Ports {
        nfs: address,
        mount: at(mount),
    })
}

async fn ask_portmapper(
    address: SocketAddr,
    settings: &ConnectionSettings,
) -> Result<Ports, Error> {
    let at = |port| SocketAddr::new(address.ip(), port);
    let portmapper = Connection::open(at(portmap::PORT), Vec::new(), settings.clone()).await;
    let Ok(portmapper) = portmapper else {
        // Servers that answer everything on the NFS port, ours among them, need no portmapper.
        return Ok(Ports {
            nfs: address,
            mount: address,
        });
    };
    let ask = async |program, version, name| match get_port(&portmapper, program, version).await? {
        Some(port) => Ok(at(port)),
        None => Err(Error::NotRegistered { address, name }),
    };
    Ok(Ports {
        nfs: ask(v3::PROGRAM, v3::VERSION, "NFS version 3").await?,
        mount: ask(mount::PROGRAM, mount::VERSION_3, "MOUNT version 3").await?,
    })
}

async fn get_port(
    portmapper: &Connection,
    program: u32,
    version: u32,
) -> Result<Option<u16>, Error> {
    let target = Target {
        program: portmap::PROGRAM,
        version: portmap::VERSION,
        procedure: portmap::Procedure::GetPort.number(),
        name: "GETPORT",
    };
    let question = portmap::Mapping {
        program,
        version,
        protocol: portmap::PROTOCOL_TCP,
        port: 0,
    };
    let port = simple_call(portmapper, target, &question, |from| from.u32()).await?;
    match u16::try_from(port) {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(_) => Err(Error::Inconsistent {
            procedure: target.name,
            reason: "the port is above 65535",
        }),
    }
}

/// Mounts the longest listed export that `path` is in; if the list does not help, tries.
async fn find_export(
    connection: &Connection,
    path: &[u8],
) -> Result<(v3::FileHandle, Vec<u8>), Error> {
    // A server that does not tell its exports may still let us mount them.
    let exports = list_exports(connection).await.unwrap_or_default();
    let mut refused = None;
    for candidate in candidates(path, &exports) {
        if candidate == b"/" && refused.is_some() {
            // The root shows only what we may mount: there it would look as if nothing were there.
            break;
        }
        match mount_path(connection, &candidate).await? {
            Ok(root) => return Ok((root, candidate)),
            Err(MountError::NoEnt | MountError::NotDir) => {}
            // Some servers say "access" of what they do not export.
            Err(_) if !exports.is_empty() && !exports.contains(&candidate) => {}
            Err(reason) => refused = refused.or(Some((candidate, reason))),
        }
    }
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    Err(match refused {
        Some((path, reason)) => Error::MountRefused {
            path: shown(&path),
            reason,
        },
        None => Error::ExportNotFound {
            path: shown(path),
            exports: exports
                .iter()
                .take(EXPORTS_SHOWN_MAX)
                .map(|export| shown(export))
                .collect(),
        },
    })
}

/// What to mount, in order.
fn candidates(path: &[u8], exports: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut listed: Vec<Vec<u8>> = exports
        .iter()
        .filter(|export| is_prefix(export, path))
        .cloned()
        .collect();
    listed.sort_by_key(|export| std::cmp::Reverse(export.len()));
    if !listed.is_empty() {
        return listed;
    }
    let ends = path.iter().enumerate().skip(1);
    let slashes = ends.filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let mut prefixes: Vec<Vec<u8>> = slashes
        .chain([path.len()])
        .take(PREFIX_COUNT_MAX)
        .filter_map(|end| path.get(..end))
        .map(<[u8]>::to_vec)
        .collect();
    if path != b"/" {
        prefixes.push(b"/".to_vec());
    }
    prefixes
}

/// Whether `path` is `export` or inside it.
fn is_prefix(export: &[u8], path: &[u8]) -> bool {
    let export = export.strip_suffix(b"/").unwrap_or(export);
    match path.strip_prefix(export) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

async fn list_exports(connection: &Connection) -> Result<Vec<Vec<u8>>, Error> {
    let target = mount_target(mount::Procedure::Export, "EXPORT");
    simple_call(connection, target, &(), |from| {
        let exports: List<mount::ExportEntry<'_>> = from.get()?;
        Ok(exports
            .0
            .iter()
            .map(|export| export.path.to_vec())
            .collect())
    })
    .await
}

async fn mount_path(
    connection: &Connection,
    path: &[u8],
) -> Result<Result<v3::FileHandle, MountError>, Error> {
    if path.len() > mount::PATH_LEN_BYTES_MAX as usize {
        return Ok(Err(MountError::NameTooLong));
    }
    let target = mount_target(mount::Procedure::Mount, "MNT");
    let path: mount::DirPath<'_> = Opaque(path);
    simple_call(connection, target, &path, |from| {
        let mounted: Result<MountOk, MountError> = from.get()?;
        Ok(mounted.map(|mounted| mounted.handle))
    })
    .await
}

fn mount_target(procedure: mount::Procedure, name: &'static str) -> Target {
    Target {
        program: mount::PROGRAM,
        version: mount::VERSION_3,
        procedure: procedure.number(),
        name,
    }
}

async fn simple_call<T>(
    connection: &Connection,
    target: Target,
    arguments: &impl Encode,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, Error> {
    let reply = connection
        .call(target, arguments, Bytes::new(), None)
        .await?;
    let bad = |error| Error::BadReply {
        procedure: target.name,
        error,
    };
    let mut from = Reader::new(&reply.results);
    let value = decode(&mut from).map_err(bad)?;
    from.finish().map_err(bad)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_listed_export_is_mounted_first_or_prefixes_are_tried() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (
                "/main/a",
                &["/", "/main", "/mainly", "/main/b"],
                &["/main", "/"],
            ),
            ("/main", &["/main/"], &["/main/"]),
            ("/main/a", &[], &["/main", "/main/a", "/"]),
            ("/main", &["/other"], &["/main", "/"]),
            ("/", &["/main"], &["/"]),
            ("/", &["/"], &["/"]),
        ];
        for (path, exports, want) in cases {
            let exports: Vec<Vec<u8>> = exports.iter().map(|it| it.as_bytes().to_vec()).collect();
            let got = candidates(path.as_bytes(), &exports);
            let want: Vec<Vec<u8>> = want.iter().map(|it| it.as_bytes().to_vec()).collect();
            assert_eq!(got, want, "{path} {exports:?}");
        }
    }
}
