//! `cairn`: the server and its command line.
//!
//! Owns: flags, tables, messages and exit codes.
//! Must not know: how anything is done; the server is crate `node`, other commands talk to its
//! admin API or to any NFS server.
//!
//! The features `bench` and `plan` are for users; a server is complete without them.

#![forbid(unsafe_code)]

mod access;
mod address;
mod args;
mod audit;
mod balance;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_args;
#[cfg(feature = "bench")]
mod bench_progress;
#[cfg(feature = "bench")]
mod bench_server;
#[cfg(feature = "bench")]
mod bench_watch;
mod class;
mod clone;
mod cluster;
mod dev_cluster;
mod dev_cluster_args;
mod disk;
mod events;
mod exit;
mod export;
mod follow;
mod freeze;
mod host_plan;
mod job;
mod key;
mod limit;
mod maintenance;
#[cfg(feature = "plan")]
mod plan;
#[cfg(feature = "plan")]
mod plan_args;
mod policy;
mod print;
mod quota;
mod recover;
mod rotate;
mod s3;
mod s3_args;
mod san;
mod san_args;
mod scrub;
mod secret;
mod serve;
mod snapshot;
mod status;
mod tier;
mod top;
mod upgrade;
mod user;
mod volume;

use std::process::ExitCode;

use cairn_files::{Console, Exit};
use cairn_memory::allocator;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command, ConfigCommand};
use crate::exit::Failure;

/// Many threads allocate and free buffers of each other; the system's allocator grows from that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    allocator::prepare();
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Ls(args) => {
            return files(async |console| cairn_files::ls(&args, console).await);
        }
        Command::Cp(args) => {
            return files(async |console| cairn_files::cp(&args, console).await);
        }
        Command::Cat(args) => {
            return files(async |console| cairn_files::cat(&args, console).await);
        }
        Command::Rm(args) => {
            return files(async |console| cairn_files::rm(&args, console).await);
        }
        Command::Stat(args) => {
            return files(async |console| cairn_files::stat(&args, console).await);
        }
        #[cfg(feature = "bench")]
        Command::Bench(command) => return bench::bench(&command),
        #[cfg(feature = "plan")]
        Command::Plan(args) => plan::plan(&args),
        Command::DevCluster(args) => dev_cluster::run(&args),
        Command::Serve(args) => serve::run(*args),
        Command::GuardLease => serve::guard_lease(),
        Command::Status(args) => status::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Disk(command) => disk::disk(&command),
        Command::Scrub(command) => scrub::scrub(&command),
        Command::Cluster(command) => cluster::cluster(&command),
        Command::Node(command) => cluster::node(&command),
        Command::Address(command) => address::address(&command),
        Command::Volume(command) => volume::volume(&command),
        Command::Key(command) => key::key(&command),
        Command::Class(command) => class::class(&command),
        Command::Tier(command) => tier::tier(&command),
        Command::Limit(command) => limit::limit(&command),
        Command::Export(command) => export::export(&command),
        Command::Lun(command) => san::lun(&command),
        Command::Igroup(command) => san::igroup(&command),
        Command::Initiator(command) => san::initiator(&command),
        Command::Iscsi(command) => san::iscsi(&command),
        Command::San(command) => san::san(&command),
        Command::Bucket(command) => s3::bucket(&command),
        Command::S3(command) => s3::s3(&command),
        Command::Snapshot(command) => snapshot::snapshot(&command),
        Command::Clone(args) => clone::clone(&args),
        Command::Policy(command) => policy::policy(&command),
        Command::Quota(command) => quota::quota(&command),
        Command::Config(ConfigCommand::Check(args)) => serve::config_check(&args),
        Command::User(command) => user::user(&command),
        Command::Audit(command) => audit::audit(&command),
        Command::Events(args) => events::events(&args),
        Command::Job(command) => job::job(&command),
        Command::Openapi => print::text(&cairn_admin::openapi_json()),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "cairn", &mut script);
            print::bytes(&script)
        }
        Command::Man(args) => man(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs a file command; it prints its errors itself.
fn files(command: impl AsyncFnOnce(&mut Console) -> Exit) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("starting threads: {error}")))?;
    let mut console = Console::of_process();
    Ok(runtime.block_on(command(&mut console)).into())
}

fn man(args: &args::ManArgs) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("writing manual pages: {error}"));
    match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), folder).map_err(failed)
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(failed)?;
            print::bytes(&page)
        }
    }
}
