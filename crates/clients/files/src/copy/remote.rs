//! Files on a server.

use anyhow::bail;
use cairn_nfs_client::v3::{CreateHow, ErrorStatus, FileType, MkNodWhat, SetAttributes};
use cairn_nfs_client::{Client, DirPages, Error};

use super::Remote;
use super::meta::{Attributes, Meta};
use super::tree::{Created, FileLocation, FoundFile, Listed, Lookup, Sink};

/// What the client's URL names.
pub(super) async fn find(client: &Client, follow: bool) -> anyhow::Result<Lookup> {
    match client.resolve_url(follow).await {
        Ok(node) => Ok(Lookup::Found(FoundFile {
            place: FileLocation::Remote((client.clone(), node.handle)),
            meta: node.attributes.into(),
        })),
        Err(error) if error.status() == Some(ErrorStatus::NoEnt) => Ok(Lookup::Missing),
        Err(error) => Err(error.into()),
    }
}

/// The directory of what the client's URL names, and its name there.
pub(super) async fn find_parent(client: &Client) -> anyhow::Result<(FileLocation, Vec<u8>)> {
    let mut path = client.components();
    let Some(name) = path.pop() else {
        bail!("the root of an export has none");
    };
    let parent = client.resolve(&path.join(&b'/'), true).await?;
    if !parent.is_directory() {
        bail!("not a directory");
    }
    Ok((FileLocation::Remote((client.clone(), parent.handle)), name))
}

pub(super) async fn found(place: &Remote) -> anyhow::Result<FoundFile> {
    let (client, handle) = place;
    Ok(FoundFile {
        place: FileLocation::Remote(place.clone()),
        meta: client.get_attr(*handle).await?.into(),
    })
}

pub(super) async fn next_page(
    client: &Client,
    pages: &mut DirPages,
) -> anyhow::Result<Option<Vec<Listed>>> {
    let Some(page) = pages.next_page().await? else {
        return Ok(None);
    };
    let found = page.into_iter().filter_map(|entry| {
        let found = entry.node?.map(|(handle, attributes)| FoundFile {
            place: FileLocation::Remote((client.clone(), handle)),
            meta: attributes.into(),
        });
        Some((entry.name, found.map_err(anyhow::Error::new)))
    });
    Ok(Some(found.collect()))
}

pub(super) async fn make_dir(
    (client, dir): &Remote,
    name: &[u8],
    mode: u32,
) -> anyhow::Result<FileLocation> {
    let attributes = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let handle = match client.mkdir(*dir, name, attributes).await {
        Ok(made) => client.made_handle(*dir, name, made).await?,
        Err(error) if exists(&error) => {
            let node = client.child(*dir, name).await?;
            if !node.is_directory() {
                bail!("at the destination there is something else of that name");
            }
            node.handle
        }
        Err(error) => return Err(error.into()),
    };
    Ok(FileLocation::Remote((client.clone(), handle)))
}

pub(super) async fn create(
    place: &Remote,
    name: &[u8],
    mode: u32,
    attributes: &Attributes,
    source: &FoundFile,
) -> anyhow::Result<Created> {
    let (client, dir) = place;
    let set = SetAttributes {
        mode: Some(mode),
        ..attributes.to_nfs()
    };
    let (handle, existed) = match client.create(*dir, name, CreateHow::Guarded(set)).await {
        Ok(made) => (client.made_handle(*dir, name, made).await?, false),
        Err(error) if exists(&error) => (take_over(place, name, source).await?, true),
        Err(error) => return Err(error.into()),
    };
    let remote = (client.clone(), handle);
    Ok(Created {
        sink: Sink::Remote(remote.clone()),
        place: FileLocation::Remote(remote),
        existed,
    })
}

/// Empties the file that is there.
async fn take_over(
    (client, dir): &Remote,
    name: &[u8],
    source: &FoundFile,
) -> anyhow::Result<cairn_nfs_client::v3::FileHandle> {
    let node = client.child(*dir, name).await?;
    if node.attributes.file_type != FileType::Regular {
        bail!("at the destination there is something else of that name");
    }
    let found = FoundFile {
        place: FileLocation::Remote((client.clone(), node.handle)),
        meta: node.attributes.into(),
    };
    if found.is_same(source).await? {
        bail!("it and the destination are the same file");
    }
    let empty = SetAttributes {
        size_bytes: Some(0),
        ..SetAttributes::default()
    };
    client.set_attr(node.handle, empty, None).await?;
    Ok(node.handle)
}

pub(super) async fn symlink(
    (client, dir): &Remote,
    name: &[u8],
    target: &[u8],
    attributes: &Attributes,
) -> anyhow::Result<FileLocation> {
    // The mode of a link means nothing, and some servers refuse to set it.
    let attributes = Attributes {
        mode: None,
        ..*attributes
    };
    let make = || client.symlink(*dir, name, target, SetAttributes::default());
    let made = match make().await {
        Err(error) if exists(&error) => {
            client.remove(*dir, name).await?;
            make().await?
        }
        made => made?,
    };
    let handle = client.made_handle(*dir, name, made).await?;
    let place = (client.clone(), handle);
    if !attributes.is_empty() {
        set_attributes(&place, attributes).await?;
    }
    Ok(FileLocation::Remote(place))
}

pub(super) async fn make_special(
    (client, dir): &Remote,
    name: &[u8],
    like: &Meta,
    mode: u32,
    attributes: &Attributes,
) -> anyhow::Result<FileLocation> {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let device = like.device;
    let what = match like.file_type {
        FileType::CharDevice => MkNodWhat::CharDevice {
            attributes: set,
            device,
        },
        FileType::BlockDevice => MkNodWhat::BlockDevice {
            attributes: set,
            device,
        },
        FileType::Socket => MkNodWhat::Socket(set),
        _ => MkNodWhat::Fifo(set),
    };
    let made = match client.mknod(*dir, name, what).await {
        Err(error) if exists(&error) => {
            client.remove(*dir, name).await?;
            client.mknod(*dir, name, what).await?
        }
        made => made?,
    };
    let handle = client.made_handle(*dir, name, made).await?;
    let place = (client.clone(), handle);
    if !attributes.is_empty() {
        set_attributes(&place, *attributes).await?;
    }
    Ok(FileLocation::Remote(place))
}

pub(super) async fn link(
    (client, file): &Remote,
    (_, dir): &Remote,
    name: &[u8],
) -> anyhow::Result<()> {
    match client.link(*file, *dir, name).await {
        Err(error) if exists(&error) => {
            if client.child(*dir, name).await?.handle == *file {
                return Ok(());
            }
            client.remove(*dir, name).await?;
            client.link(*file, *dir, name).await?;
        }
        linked => {
            linked?;
        }
    }
    Ok(())
}

pub(super) async fn set_attributes(
    (client, handle): &Remote,
    attributes: Attributes,
) -> anyhow::Result<()> {
    match client.set_attr(*handle, attributes.to_nfs(), None).await {
        Err(error) if error.status() == Some(ErrorStatus::Perm) && attributes.owner.is_some() => {
            let rest = attributes.without_owner().to_nfs();
            client.set_attr(*handle, rest, None).await?;
        }
        set => {
            set?;
        }
    }
    Ok(())
}

fn exists(error: &Error) -> bool {
    error.status() == Some(ErrorStatus::Exist)
}
