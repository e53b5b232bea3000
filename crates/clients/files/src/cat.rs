//! `cairn cat`.

use std::io::Write;

use anyhow::{Context as _, bail};
use cairn_nfs_client::NfsUrl;
use cairn_nfs_client::v3::FileType;

use crate::args::CatArgs;
use crate::console::{Console, Exit, connect, parse_url};

/// Writes what the URLs name to standard output, one after the other.
pub async fn cat(args: &CatArgs, console: &mut Console) -> Exit {
    let mut exit = Exit::Ok;
    for url in &args.urls {
        if let Err(error) = write_file(url, console).await {
            exit = exit.max(console.fail(&error));
        }
    }
    console.finish(exit)
}

async fn write_file(url: &str, console: &mut Console) -> anyhow::Result<()> {
    let url: NfsUrl = parse_url(url)?;
    let client = connect(&url, 1).await?;
    let node = client.resolve_url(true).await;
    let node = node.with_context(|| url.to_string())?;
    if node.attributes.file_type != FileType::Regular {
        let file_type = crate::show::type_name(node.attributes.file_type);
        bail!("{url} is a {file_type}, not a file");
    }
    // To wherever the file ends then, not where it ended when it was looked up.
    let mut range = client.read_range(node.handle, 0..u64::MAX);
    while let Some(data) = range.next().await {
        let data = data.with_context(|| format!("reading {url}"))?;
        console.out.write_all(&data)?;
    }
    Ok(())
}
