//! The arguments of the commands, as `clap` reads them.

use clap::Args;

/// List files on a server.
#[derive(Args, Clone, Debug)]
pub struct LsArgs {
    /// One line per file: type and mode, links, owner, group, bytes, time of change (UTC), name
    #[arg(short = 'l', long)]
    pub long: bool,
    /// One JSON array, with all attributes
    #[arg(long)]
    pub json: bool,
    /// In the server's order, as the names arrive: for directories with millions of them
    #[arg(short = 'U', long, conflicts_with = "json")]
    pub unsorted: bool,
    /// A directory itself and not what is in it
    #[arg(short = 'd', long)]
    pub directory: bool,
    /// nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
}

/// Copy files to, from or between servers.
///
/// One side at least is an nfs:// URL. If DST is a directory, or ends in a slash, SRC is copied into
/// it under its own name; else DST becomes the copy. With several SRC, DST must be a directory.
/// Symbolic links in a tree are copied as links; those named on the command line are followed
/// unless -r is given.
#[derive(Args, Clone, Debug)]
pub struct CpArgs {
    /// Copy directories with all that is in them; implies --preserve
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// Keep mode, times, hard links and (as root) owners; set-uid bits only with their owners
    #[arg(short = 'p', long)]
    pub preserve: bool,
    /// Files that are copied at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// No progress bar
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// What to copy, and last where to
    #[arg(value_names = ["SRC", "DST"], required = true, num_args = 2..)]
    pub paths: Vec<String>,
}

/// Write files to standard output.
#[derive(Args, Clone, Debug)]
pub struct CatArgs {
    /// nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
}

/// Remove files on a server.
#[derive(Args, Clone, Debug)]
pub struct RmArgs {
    /// Remove directories with all that is in them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// Do not mind what is not there
    #[arg(short = 'f', long)]
    pub force: bool,
    /// nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
}

/// Show everything about files on a server.
#[derive(Args, Clone, Debug)]
pub struct StatArgs {
    /// One JSON object per file, or an array of several
    #[arg(long)]
    pub json: bool,
    /// nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
}
