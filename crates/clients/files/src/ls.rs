//! `cairn ls`.

use std::io::Write;

use anyhow::{Context as _, anyhow};
use cairn_base::printable;
use cairn_nfs_client::v3::{FileAttr, FileType};
use cairn_nfs_client::{Client, DirEntry, NfsUrl};

use crate::args::LsArgs;
use crate::console::{Console, Exit, connect, parse_url};
use crate::show::{self, FileJson};

/// Lists what the URLs name. All names but `.` and `..` are shown.
pub async fn ls(args: &LsArgs, console: &mut Console) -> Exit {
    let mut exit = Exit::Ok;
    let mut json = Vec::new();
    for (index, url) in args.urls.iter().enumerate() {
        if args.urls.len() > 1 && !args.json {
            let separator: &[u8] = if index > 0 { b"\n" } else { b"" };
            let written = console.out.write_all(separator);
            if let Err(error) = written.and_then(|()| console.line(&format!("{url}:"))) {
                exit = exit.max(console.fail(&error.into()));
                break;
            }
        }
        exit = exit.max(match list(args, url, console, &mut json).await {
            Ok(exit) => exit,
            Err(error) => console.fail(&error),
        });
    }
    if args.json
        && let Err(error) = write_json(console, &json)
    {
        exit = exit.max(console.fail(&error));
    }
    console.finish(exit)
}

pub(crate) fn write_json(
    console: &mut Console,
    value: &impl serde::Serialize,
) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    writeln!(console.out, "{}", printable::in_json(&json))?;
    Ok(())
}

async fn list(
    args: &LsArgs,
    url: &str,
    console: &mut Console,
    json: &mut Vec<FileJson>,
) -> anyhow::Result<Exit> {
    let url: NfsUrl = parse_url(url)?;
    let client = connect(&url, 1).await?;
    let node = client.resolve_url(!args.directory).await;
    let node = node.with_context(|| url.to_string())?;
    let with_attributes = args.long || args.json;
    if args.directory || !node.is_directory() {
        let name = url.file_name().unwrap_or(b"/").to_vec();
        let entry = DirEntry {
            name,
            fileid: node.attributes.fileid,
            node: Some(Ok((node.handle, node.attributes))),
        };
        return show_entries(args, &client, &[entry], console, json).await;
    }
    let mut pages = client.dir_pages(node.handle, with_attributes);
    let mut all = Vec::new();
    let mut exit = Exit::Ok;
    while let Some(page) = pages.next_page().await.with_context(|| url.to_string())? {
        if args.unsorted {
            exit = exit.max(show_entries(args, &client, &page, console, json).await?);
        } else {
            all.extend(page);
        }
    }
    all.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    Ok(exit.max(show_entries(args, &client, &all, console, json).await?))
}

async fn show_entries(
    args: &LsArgs,
    client: &Client,
    entries: &[DirEntry],
    console: &mut Console,
    json: &mut Vec<FileJson>,
) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    for entry in entries {
        let node = entry.node.as_ref().filter(|_| args.long || args.json);
        if let Some(Err(error)) = node {
            let shown = String::from_utf8_lossy(&entry.name);
            exit = exit.max(console.fail(&anyhow!("{shown}: {error}")));
            continue;
        }
        let Some(Ok((handle, attributes))) = node else {
            let name = show::name(&entry.name, console.out_is_terminal);
            console.out.write_all(&name)?;
            console.out.write_all(b"\n")?;
            continue;
        };
        let target = match attributes.file_type {
            FileType::Symlink => client.read_link(*handle).await.ok(),
            _ => None,
        };
        if args.json {
            json.push(FileJson::new(&entry.name, attributes, target.as_deref()));
        } else {
            write_long(console, &entry.name, attributes, target.as_deref())?;
        }
    }
    Ok(exit)
}

fn write_long(
    console: &mut Console,
    name: &[u8],
    attributes: &FileAttr,
    target: Option<&[u8]>,
) -> std::io::Result<()> {
    let device = attributes.device;
    let size = match attributes.file_type {
        FileType::BlockDevice | FileType::CharDevice => {
            format!("{}, {}", device.major, device.minor)
        }
        _ => attributes.size_bytes.to_string(),
    };
    write!(
        console.out,
        "{} {:>3} {:>5} {:>5} {:>12} {} ",
        show::mode(attributes),
        attributes.nlink,
        attributes.uid,
        attributes.gid,
        size,
        show::time_short(attributes.mtime),
    )?;
    let is_terminal = console.out_is_terminal;
    console.out.write_all(&show::name(name, is_terminal))?;
    if let Some(target) = target {
        console.out.write_all(b" -> ")?;
        console.out.write_all(&show::name(target, is_terminal))?;
    }
    console.out.write_all(b"\n")
}
