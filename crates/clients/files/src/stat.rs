//! `cairn stat`.

use std::io::Write;

use anyhow::Context as _;
use cairn_nfs_client::NfsUrl;
use cairn_nfs_client::v3::FileType;

use crate::args::StatArgs;
use crate::console::{Console, Exit, connect, parse_url};
use crate::ls::write_json;
use crate::show::FileJson;

/// Shows the attributes of what the URLs name; links are not followed.
pub async fn stat(args: &StatArgs, console: &mut Console) -> Exit {
    let mut exit = Exit::Ok;
    let mut files = Vec::new();
    for url in &args.urls {
        match look(url).await {
            Ok(file) => files.push((url, file)),
            Err(error) => exit = exit.max(console.fail(&error)),
        }
    }
    if let Err(error) = print(args, &files, console) {
        exit = exit.max(console.fail(&error));
    }
    console.finish(exit)
}

async fn look(url: &str) -> anyhow::Result<FileJson> {
    let url: NfsUrl = parse_url(url)?;
    let client = connect(&url, 1).await?;
    let node = client.resolve_url(false).await;
    let node = node.with_context(|| url.to_string())?;
    let target = match node.attributes.file_type {
        FileType::Symlink => Some(client.read_link(node.handle).await?),
        _ => None,
    };
    let name = url.file_name().unwrap_or(b"/");
    Ok(FileJson::new(name, &node.attributes, target.as_deref()))
}

fn print(
    args: &StatArgs,
    files: &[(&String, FileJson)],
    console: &mut Console,
) -> anyhow::Result<()> {
    if args.json {
        return match files {
            [] => Ok(()),
            [(_, file)] => write_json(console, file),
            files => {
                let files: Vec<&FileJson> = files.iter().map(|(_, file)| file).collect();
                write_json(console, &files)
            }
        };
    }
    for (url, file) in files {
        console.line(&format!("    File: {url}"))?;
        if let Some(target) = &file.link_target {
            console.line(&format!("      To: {target}"))?;
        }
        let out = &mut console.out;
        write!(out, "    Type: {}", file.file_type)?;
        match &file.device {
            Some(device) => writeln!(out, " {device}")?,
            None => writeln!(out)?,
        }
        writeln!(
            out,
            "    Size: {} bytes, {} used",
            file.size_bytes, file.used_bytes
        )?;
        writeln!(out, "    Mode: {}   Links: {}", file.mode, file.nlink)?;
        writeln!(out, "   Owner: {}   Group: {}", file.uid, file.gid)?;
        writeln!(
            out,
            "      Id: {}   File system: {}",
            file.fileid, file.fsid
        )?;
        writeln!(out, "Accessed: {}", file.accessed)?;
        writeln!(out, "Modified: {}", file.modified)?;
        writeln!(out, " Changed: {}", file.changed)?;
    }
    Ok(())
}
