//! The flags of `cairn plan`.

use std::path::PathBuf;

use cairn_plan::deploy::{Format as TemplateFormat, NCONNECT_DEFAULT};
use cairn_plan::goal::{Goal, SURVIVE_DEFAULT, Workload};
use cairn_plan::reliability::Availability;
use cairn_plan::report::Protocol;
use cairn_plan::units::{Bytes, Rate, Usd, parse_growth, parse_latency_ms, parse_share};
use clap::{Args, Subcommand, ValueEnum};

const REGION_DEFAULT: &str = "us-east-1";

/// `cairn plan --capacity ...` ranks designs.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    #[command(subcommand)]
    pub command: Option<PlanCommand>,
    #[command(flatten)]
    pub goals: GoalArgs,
    #[command(flatten)]
    pub prices: PriceArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Output,
    /// The file to write to [default: standard output]
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// Number of designs that the table shows with all figures
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub details: usize,
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Check a configuration against every rule of its design; show the nearest one that passes
    Check(CheckArgs),
    /// Print the model: each rule in words, as a formula, with its source
    Explain(ExplainArgs),
    /// Compare two designs
    Compare(CompareArgs),
    /// Compare a design with a changed one
    Whatif(WhatifArgs),
    /// Compare the model's predictions with published figures
    Validate(OutputArgs),
    /// Price lists: show them, or make one from an offer file
    #[command(subcommand)]
    Prices(PricesCommand),
    /// Write the template that deploys a design
    Deploy(DeployArgs),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
    Markdown,
    Html,
}

#[derive(Debug, Args)]
pub struct PriceArgs {
    /// Let this price list override the embedded one
    #[arg(long = "prices", value_name = "FILE", global = true)]
    pub prices: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct GoalArgs {
    /// Usable capacity, such as 200TiB or 500TB
    #[arg(long, value_name = "SIZE", value_parser = Bytes::parse, allow_hyphen_values = true)]
    pub capacity: Option<Bytes>,
    /// Sequential reads of all clients together, such as 6GB/s, 48Gb/s or 5000MiB/s
    #[arg(long, value_name = "RATE", value_parser = Rate::parse, allow_hyphen_values = true)]
    pub read: Option<Rate>,
    /// Sequential writes of all clients together
    #[arg(long, value_name = "RATE", value_parser = Rate::parse, allow_hyphen_values = true)]
    pub write: Option<Rate>,
    /// Random reads of 4 KiB per second
    #[arg(long, value_name = "NUMBER")]
    pub iops: Option<u64>,
    /// Random writes of 4 KiB per second
    #[arg(long, value_name = "NUMBER")]
    pub write_iops: Option<u64>,
    /// Maximum time of one random operation, such as 1ms or 500us
    #[arg(long, value_name = "TIME", value_parser = parse_latency_ms, allow_hyphen_values = true)]
    pub latency: Option<f64>,
    /// Number of clients; a SAN array serves one
    #[arg(long, value_name = "NUMBER")]
    pub clients: Option<u32>,
    /// Protocols of the clients, separated by commas [default: any]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub protocols: Vec<ProtocolName>,
    /// Number of failed disks or volumes that must lose no data; with 0 the answer states what a failure loses
    #[arg(long, value_name = "NUMBER", default_value_t = SURVIVE_DEFAULT)]
    pub survive: u32,
    /// Maximum number of separate name spaces for the data
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub namespaces: u32,
    /// Failures that the service survives: none, any one node, or any one zone
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    pub availability: AvailabilityName,
    /// Instance type of the host of a SAN array; it limits throughput, and the price includes it
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Region of prices and templates
    #[arg(long, value_name = "NAME", default_value = REGION_DEFAULT)]
    pub region: String,
    /// Maximum cost, such as 5000USD/month
    #[arg(long, value_name = "USD", value_parser = Usd::parse_per_month, allow_hyphen_values = true)]
    pub budget: Option<Usd>,
    /// Share of the data that is read often, such as 20%; if this share fits into a cache, the cache's rate counts
    #[arg(long, value_name = "PERCENT", value_parser = parse_share, allow_hyphen_values = true)]
    pub hot: Option<f64>,
    /// Growth of the data, such as 30%/year; the design has room for it until the end of --years
    #[arg(long, value_name = "PERCENT/year", value_parser = parse_growth, allow_hyphen_values = true)]
    pub growth: Option<f64>,
    /// Number of years to plan for
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub years: u32,
    /// Purpose of the storage
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub workload: WorkloadName,
    /// Include designs that Cairn cannot run yet
    #[arg(long)]
    pub include_planned: bool,
}

impl GoalArgs {
    /// The goal; `None` without a capacity.
    pub fn goal(&self) -> Option<Goal> {
        Some(Goal {
            capacity_bytes: self.capacity?,
            read_mb_s: self.read,
            write_mb_s: self.write,
            iops: self.iops,
            write_iops: self.write_iops,
            latency_ms: self.latency,
            clients: self.clients,
            protocols: self.protocols.iter().map(|name| name.protocol()).collect(),
            survive: self.survive,
            namespaces: self.namespaces,
            availability: self.availability.level(),
            host: self.host.clone(),
            region: self.region.clone(),
            budget_month_usd: self.budget,
            hot_share: self.hot,
            growth_per_year: self.growth.unwrap_or(0.0),
            years: self.years,
            workload: self.workload.workload(),
            include_planned: self.include_planned,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtocolName {
    Nfs,
    Smb,
    S3,
    Iscsi,
}

impl ProtocolName {
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Nfs => Protocol::Nfs,
            Self::Smb => Protocol::Smb,
            Self::S3 => Protocol::S3,
            Self::Iscsi => Protocol::Iscsi,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AvailabilityName {
    #[default]
    Single,
    Node,
    Zone,
}

impl AvailabilityName {
    fn level(self) -> Availability {
        match self {
            Self::Single => Availability::Single,
            Self::Node => Availability::Node,
            Self::Zone => Availability::Zone,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    #[default]
    Streaming,
    Random,
    Metadata,
    Database,
    Archive,
}

impl WorkloadName {
    fn workload(self) -> Workload {
        match self {
            Self::Streaming => Workload::Streaming,
            Self::Random => Workload::Random,
            Self::Metadata => Workload::Metadata,
            Self::Database => Workload::Database,
            Self::Archive => Workload::Archive,
        }
    }
}

/// Output formats of the other commands, which have no page.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Output format: table, json or markdown
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A configuration in TOML or JSON, or a saved plan
    pub file: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Only rules with these names, or whose names start with them, such as ebs
    pub rules: Vec<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Two configurations or saved plans; of one saved plan with --ranks, two of its designs
    #[arg(num_args = 1..=2, required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Ranks in one saved plan, such as 1,2
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub ranks: Vec<usize>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct WhatifArgs {
    /// A configuration, or a saved plan
    pub file: PathBuf,
    /// The design of a saved plan
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub rank: usize,
    /// Add or take away nodes, servers or systems: +1, -1
    #[arg(long, value_name = "+N", allow_hyphen_values = true)]
    pub nodes: Option<i32>,
    /// Another instance type
    #[arg(long, value_name = "NAME")]
    pub instance: Option<String>,
    /// Another volume type, such as st1
    #[arg(long, value_name = "TYPE")]
    pub volume_type: Option<String>,
    /// Another size of volumes, such as 10TiB
    #[arg(long, value_name = "SIZE", value_parser = Bytes::parse)]
    pub volume_size: Option<Bytes>,
    /// Another number of volumes of each server
    #[arg(long, value_name = "NUMBER")]
    pub volumes: Option<u32>,
    /// Provisioned IOPS of each volume
    #[arg(long, value_name = "NUMBER")]
    pub volume_iops: Option<u64>,
    /// Provisioned MiB/s of each volume
    #[arg(long, value_name = "NUMBER")]
    pub volume_mib_s: Option<u32>,
    /// The host of a SAN array, such as m6in.32xlarge
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Another service level
    #[arg(long, value_name = "NAME")]
    pub level: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub enum PricesCommand {
    /// Show the known regions, with dates and sources of their prices
    List(OutputArgs),
    /// Make a price list from an offer file of the price list API (AmazonEC2, JSON or CSV)
    Update(PricesUpdateArgs),
}

#[derive(Debug, Args)]
pub struct PricesUpdateArgs {
    /// A file, or an http(s) address
    #[arg(long, value_name = "FILE|URL")]
    pub from: String,
    /// Region of the prices
    #[arg(long, value_name = "NAME", default_value = REGION_DEFAULT)]
    pub region: String,
    /// The price list to write, for --prices
    #[arg(long, short, value_name = "PATH")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct DeployArgs {
    /// A configuration, or a saved plan (`cairn plan ... --output json`)
    #[arg(required_unless_present = "client", conflicts_with = "client")]
    pub file: Option<PathBuf>,
    /// Write user data for a client that mounts from this server, instead of a design
    #[arg(long, value_name = "SERVER")]
    pub client: Option<String>,
    /// --client: the volume
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub volume: String,
    /// --client: where to mount it
    #[arg(long, value_name = "PATH", default_value = "/mnt/cairn")]
    pub mount_point: String,
    /// --client: TCP connections
    #[arg(long, value_name = "COUNT", default_value_t = NCONNECT_DEFAULT)]
    pub nconnect: u32,
    /// The design of a saved plan
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub rank: usize,
    /// cloudformation, cloudformation-json, terraform or cloud-init
    #[arg(long, value_name = "FORMAT", default_value = "cloudformation")]
    pub format: TemplateFormat,
    /// Also write templates of designs that this version of Cairn cannot run yet
    #[arg(long)]
    pub planned: bool,
    /// Protocol of the clients
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "nfs"
    )]
    pub protocols: Vec<ProtocolName>,
    /// The file to write to [default: standard output]
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// cloud-init: name of the machine
    #[arg(long, value_name = "TEXT", default_value = "cairn")]
    pub name: String,
    /// cloud-init: the administrator's user name
    #[arg(long, value_name = "TEXT", default_value = "admin")]
    pub user: String,
    /// cloud-init: networks that may mount, separated by commas
    #[arg(long, value_name = "NET", value_delimiter = ',')]
    pub client_networks: Vec<String>,
    /// cloud-init: network from which the administrator logs in and has root access to the volume; at most a /24
    #[arg(long, value_name = "ADDRESS")]
    pub login: Option<String>,
    /// cloud-init: the .deb of `make package`, https://... or s3://BUCKET/KEY
    #[arg(long, value_name = "URL", requires = "package_sha256")]
    pub package_url: Option<String>,
    /// cloud-init: its SHA-256
    #[arg(long, value_name = "HEX", requires = "package_url")]
    pub package_sha256: Option<String>,
}
