//! `cairn clone`: flags and command.

use cairn_admin::snapshots::{CLONE_CREATE, CloneCreate};
use cairn_base::units::format_size;
use cairn_config::VolumeName;
use clap::Args;

use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::{access, print};

#[derive(Debug, Args)]
pub struct CloneArgs {
    pub volume: VolumeName,
    /// The source, as a path from the root of the volume: /images/base.qcow2
    pub from: String,
    /// The clone's path. A cloned file replaces an existing file; a cloned directory needs an unused path
    pub to: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn clone(args: &CloneArgs) -> Result<(), Failure> {
    let create = CloneCreate {
        from: args.from.clone(),
        to: args.to.clone(),
    };
    let client = access::client(&args.view.server)?;
    let made = client.tell(CLONE_CREATE, &args.volume, &create)?;
    match args.view.json {
        true => print::json(&made),
        false => print::text(&format!(
            "{} is a clone of {}: {} files and {} directories, {} of shared data",
            made.path,
            args.from,
            made.files,
            made.directories,
            format_size(made.bytes)
        )),
    }
}
