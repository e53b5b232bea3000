//! The flags of `cairn bench`.

use std::path::PathBuf;
use std::time::Duration;

use cairn_base::units::parse_size;
use cairn_bench::suite::{Target, four_corners, ior, iozone, metadata, objects, parse_duration};
use clap::{Args, Subcommand};

use crate::bench_server::ServerBenchCommand;
use crate::bench_watch::{BurstArgs, ReadCacheArgs};
use crate::exit::Failure;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Sequential and random reads and writes at several queue depths; the best result counts (as with fio)
    FourCorners(FourCornersArgs),
    /// Write, rewrite, read, reread, random read and random write with several threads (as with IOzone)
    Iozone(IozoneArgs),
    /// Blocks and segments of many tasks, in one file per task or one shared file (as with IOR)
    Ior(IorArgs),
    /// Create, stat, list, rename and remove files (as with mdtest)
    Metadata(MetadataArgs),
    /// Put, get, list and delete objects of a bucket, and a mix of these (over S3)
    Objects(ObjectsArgs),
    /// Full load on a volume whose class has bursts, with the remaining credit and the planner's prediction
    ///
    /// Example: cairn bench burst nfs://127.0.0.1/main -o burst.json && cairn bench report burst.json -o page.html
    Burst(BurstArgs),
    /// Repeat the same reads, first cold, and measure the hit rate of a read cache
    ///
    /// Example: cairn bench read-cache nfs://127.0.0.1/main --working-set 8GiB
    ReadCache(ReadCacheArgs),
    /// Run the first four benchmarks with usual settings; each writes a result file
    All(AllArgs),
    /// Generate load for a coordinator on another machine
    Agent(AgentArgs),
    /// Run a one-minute benchmark inside a server, on a temporary volume; list earlier runs
    #[command(subcommand)]
    Server(ServerBenchCommand),
    /// Create a page with charts of one or more results
    Report(ReportArgs),
    /// Convert the output of fio, IOR or IOzone into a result
    Import(ImportArgs),
    /// Print a result as text
    Show(ShowArgs),
}

/// Flags of all runs.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// A directory of a mounted file system (measured by fio), or a target without a mount:
    /// nfs://HOST[:PORT]/EXPORT, iscsi://HOST[:PORT]/TARGET/LUN or s3://[KEY:SECRET@]HOST[:PORT]/BUCKET (KEY and SECRET default to
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)
    pub target: Target,
    /// Agents that generate the load together: HOST[:PORT], separated by commas
    #[arg(
        long,
        alias = "agents",
        value_delimiter = ',',
        value_name = "HOST[:PORT]"
    )]
    pub clients: Vec<String>,
    /// File with the agents' token
    #[arg(
        long,
        value_name = "PATH",
        env = "CAIRN_BENCH_TOKEN_FILE",
        requires = "clients"
    )]
    pub token_file: Option<PathBuf>,
    /// The result file or its folder [default: bench-SUITE-TIME.json in the current folder]
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// A name for the target in charts [default: the target]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Keep the files of the run (TARGET/cairn-bench)
    #[arg(long)]
    pub keep: bool,
    /// Run in a directory that is not empty
    #[arg(long)]
    pub allow_files: bool,
    /// Do not drop caches before reads
    #[arg(long)]
    pub keep_caches: bool,
    /// Percentage of the data that compression removes
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub compressible: u8,
    /// Percentage of the data that is a copy of other data
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub dedupe: u8,
    /// Seed of the data and the random offsets [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct FourCornersArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Workers on each client, each with a file
    #[arg(long, value_name = "COUNT", default_value_t = four_corners::JOBS_DEFAULT)]
    pub jobs: u32,
    /// Total size of all files of all clients
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub working_set: u64,
    /// Measured time of each queue depth of each corner
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub runtime: Duration,
    /// Warm-up time of each queue depth
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub ramp: Duration,
    /// Requests in flight of each worker
    #[arg(long, value_name = "DEPTH,...", value_delimiter = ',', default_values_t = four_corners::DEPTHS_DEFAULT)]
    pub depths: Vec<u32>,
    /// Size of a sequential request
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_size)]
    pub sequential_request: u64,
    /// Size of a random request
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_size)]
    pub random_request: u64,
    /// Use the client's cache (only on a path; nfs:// and iscsi:// have none)
    #[arg(long)]
    pub buffered: bool,
    /// Stable writes: O_SYNC, FILE_SYNC or FUA
    #[arg(long)]
    pub sync: bool,
}

impl FourCornersArgs {
    pub fn settings(&self) -> four_corners::Settings {
        four_corners::Settings {
            jobs: self.jobs,
            working_set_bytes: self.working_set,
            runtime: self.runtime,
            ramp: self.ramp,
            depths: self.depths.clone(),
            sequential_bytes: self.sequential_request,
            random_bytes: self.random_request,
            direct: !self.buffered,
            sync: self.sync,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct IozoneArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// 0: write and rewrite, 1: read and reread, 2: random read and write
    #[arg(long, short = 'i', value_name = "NUMBER,...", value_delimiter = ',', default_values_t = iozone::TESTS_DEFAULT)]
    pub test: Vec<u8>,
    /// Size of a request
    #[arg(long, short = 'r', value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub record: u64,
    /// Size of each thread's file
    #[arg(long, short = 's', value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Threads on each client
    #[arg(long, short = 't', value_name = "COUNT", default_value_t = 8)]
    pub threads: u32,
    /// Include fsync in the time of writes
    #[arg(long, short = 'e')]
    pub fsync: bool,
    /// Bypass the client's cache (O_DIRECT on a path)
    #[arg(long, short = 'I')]
    pub direct: bool,
    /// Requests in flight of each thread
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub depth: u32,
}

impl IozoneArgs {
    pub fn settings(&self) -> iozone::Settings {
        iozone::Settings {
            tests: self.test.clone(),
            record_bytes: self.record,
            file_bytes: self.size,
            threads: self.threads,
            fsync: self.fsync,
            direct: self.direct,
            depth: self.depth,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct IorArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Size of a request
    #[arg(long, short = 't', value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub transfer: u64,
    /// Size of each task's block in a segment
    #[arg(long, short = 'b', value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub block: u64,
    /// Number of segments
    #[arg(long, short = 's', value_name = "COUNT", default_value_t = 1024)]
    pub segments: u64,
    /// Tasks on each client
    #[arg(long, short = 'N', value_name = "COUNT", default_value_t = 4)]
    pub tasks: u32,
    /// One file per task instead of a shared file
    #[arg(long, short = 'F')]
    pub file_per_process: bool,
    /// Only write
    #[arg(long, short = 'w', conflicts_with = "read_only")]
    pub write_only: bool,
    /// Only read (the files are written first, untimed)
    #[arg(long, short = 'r')]
    pub read_only: bool,
    /// Send requests to random offsets
    #[arg(long, short = 'z')]
    pub random: bool,
    /// Let tasks read their own data instead of that of the next client (or task)
    #[arg(long)]
    pub no_reorder: bool,
    /// Include fsync in the time of writes
    #[arg(long, short = 'e')]
    pub fsync: bool,
    /// Repetitions, with new files each time
    #[arg(long, short = 'i', value_name = "COUNT", default_value_t = 1)]
    pub iterations: u32,
    /// Bypass the client's cache (O_DIRECT on a path)
    #[arg(long)]
    pub direct: bool,
    /// Requests in flight of each task
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub depth: u32,
}

impl IorArgs {
    pub fn settings(&self) -> ior::Settings {
        ior::Settings {
            transfer_bytes: self.transfer,
            block_bytes: self.block,
            segments: self.segments,
            tasks: self.tasks,
            file_per_process: self.file_per_process,
            write: !self.read_only,
            read: !self.write_only,
            random: self.random,
            reorder: !self.no_reorder,
            fsync: self.fsync,
            iterations: self.iterations,
            direct: self.direct,
            depth: self.depth,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct ObjectsArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Size of an object
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4KiB,8MiB", value_parser = parse_size)]
    pub size: Vec<u64>,
    /// Objects of each worker
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = objects::OBJECTS_DEFAULT)]
    pub objects: u64,
    /// Workers on each client, each with one request in flight
    #[arg(long, short = 'c', value_name = "COUNT", default_value_t = objects::JOBS_DEFAULT)]
    pub concurrency: u32,
    /// Time for puts, reads and the mix, repeated over the objects; without this flag each object is put and read once
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub runtime: Option<Duration>,
    /// Operations to measure, in this order: put, get, list, mixed, delete, delete-many
    #[arg(
        long,
        value_name = "OPERATION,...",
        value_delimiter = ',',
        default_value = "put,get,list,mixed,delete-many"
    )]
    pub operations: Vec<objects::Operation>,
}

impl ObjectsArgs {
    pub fn settings(&self) -> objects::Settings {
        objects::Settings {
            sizes: self.size.clone(),
            objects: self.objects,
            jobs: self.concurrency,
            runtime: self.runtime,
            operations: self.operations.iter().map(|it| it.0).collect(),
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct MetadataArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Files of each worker
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 10_000)]
    pub files: u64,
    /// Workers on each client
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub jobs: u32,
    /// One directory for all workers instead of one each
    #[arg(long)]
    pub one_directory: bool,
    /// Repetitions
    #[arg(long, short = 'i', value_name = "COUNT", default_value_t = 1)]
    pub iterations: u32,
    /// Calls in flight of each worker
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub depth: u32,
}

impl MetadataArgs {
    pub fn settings(&self) -> metadata::Settings {
        metadata::Settings {
            files: self.files,
            jobs: self.jobs,
            one_directory: self.one_directory,
            iterations: self.iterations,
            depth: self.depth,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct AllArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Workers on each client
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub jobs: u32,
    /// Total size of all files of all clients
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub working_set: u64,
    /// Measured time of each queue depth of the four corners
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub runtime: Duration,
    /// Warm-up time of each queue depth
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub ramp: Duration,
    /// Requests in flight of each worker in the four corners
    #[arg(long, value_name = "DEPTH,...", value_delimiter = ',', default_values_t = four_corners::DEPTHS_DEFAULT)]
    pub depths: Vec<u32>,
    /// Files of each worker of the metadata suite
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub files: u64,
}

impl AllArgs {
    pub fn four_corners(&self) -> four_corners::Settings {
        four_corners::Settings {
            jobs: self.jobs,
            working_set_bytes: self.working_set,
            runtime: self.runtime,
            ramp: self.ramp,
            depths: self.depths.clone(),
            sequential_bytes: four_corners::SEQUENTIAL_BYTES_DEFAULT,
            random_bytes: four_corners::RANDOM_BYTES_DEFAULT,
            direct: true,
            sync: false,
        }
    }

    pub fn iozone(&self, client_count: u32) -> iozone::Settings {
        let record_bytes = iozone::RECORD_BYTES_DEFAULT;
        iozone::Settings {
            tests: iozone::TESTS_DEFAULT.to_vec(),
            record_bytes,
            file_bytes: self.share(client_count) / record_bytes * record_bytes,
            threads: self.jobs,
            fsync: true,
            direct: false,
            depth: 1,
        }
    }

    /// IOR settings of the parallel file system paper, limited to the working set.
    pub fn ior(&self, client_count: u32) -> ior::Settings {
        let block_bytes = 1 << 20;
        ior::Settings {
            transfer_bytes: block_bytes,
            block_bytes,
            segments: self.share(client_count) / block_bytes,
            tasks: self.jobs,
            file_per_process: true,
            write: true,
            read: true,
            random: false,
            reorder: true,
            fsync: false,
            iterations: 1,
            direct: true,
            depth: 1,
        }
    }

    pub fn metadata(&self) -> metadata::Settings {
        metadata::Settings {
            files: self.files,
            jobs: self.jobs,
            one_directory: false,
            iterations: 1,
            depth: 1,
        }
    }

    /// Size of each worker's file, in bytes.
    fn share(&self, client_count: u32) -> u64 {
        self.working_set / (u64::from(self.jobs.max(1)) * u64::from(client_count.max(1)))
    }
}

#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Address to listen on. An agent obeys every holder of the token, over plain text: use a trusted network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7117")]
    pub listen: std::net::SocketAddr,
    /// File with a token of 16 to 256 characters, identical on all machines
    #[arg(long, value_name = "PATH", env = "CAIRN_BENCH_TOKEN_FILE")]
    pub token_file: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Result files
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The page; Markdown if its name ends in .md
    #[arg(long, short, value_name = "PATH", default_value = "bench-report.html")]
    pub out: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// Output of fio (--output-format=json or json+), IOR or IOzone
    pub file: PathBuf,
    /// The result file [default: FILE with .cairn.json]
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// A name for the result in charts [default: FILE]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// A result file
    pub result: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// Refuses contradictory flags.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.clients.is_empty() && self.token_file.is_none() {
            return Err(Failure::usage("--clients needs --token-file")
                .hint("give the file that `cairn bench agent --token-file` was started with"));
        }
        Ok(())
    }
}
