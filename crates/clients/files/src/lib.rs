//! The file commands: `ls`, `cp`, `cat`, `rm` and `stat` on `nfs://` URLs, without a mount.
//!
//! Owns: their arguments, what they print, their exit codes, and copying trees between here and a
//! server or between servers.
//! Must not know: how the rest of the command line looks, what serves the files.
//!
//! Exit codes: 0 all done, 1 something failed (said on standard error), 2 the command makes no
//! sense as it was written, 3 the server cannot be reached, 4 the server says no to this user.

#![forbid(unsafe_code)]

mod args;
mod cat;
mod console;
mod copy;
mod jobs;
mod ls;
mod rm;
mod show;
mod stat;

#[cfg(test)]
mod tests;

pub use args::{CatArgs, CpArgs, LsArgs, RmArgs, StatArgs};
pub use cat::cat;
pub use console::{Console, Exit};
pub use copy::cp;
pub use ls::ls;
pub use rm::rm;
pub use stat::stat;
