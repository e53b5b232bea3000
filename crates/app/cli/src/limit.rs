//! `cairn limit`: rates of single LUNs, buckets and networks of clients.

use cairn_admin::classes::{LIMIT_CLEAR, LIMIT_LIST, LIMIT_SET, PartList, PartOf, PartView};
use cairn_config::{PartLimit, VolumeName, VolumePart};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::ViewArgs;
use crate::class::{RateFlag, per_second};
use crate::exit::Failure;
use crate::print::{self, Align, Column};

#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    /// Limit the rates of a part of a volume: `cairn limit set main lun/db --throughput 200MiB/s --iops 5000`
    ///
    /// These limits apply in addition to those of the volume's class. Requests above a rate are delayed, never refused. Each call
    /// replaces all limits of the part: a flag that you leave out means no limit.
    Set(LimitSetArgs),
    /// List the parts of a volume that have limits, with their use
    List(LimitListArgs),
    /// Remove the limits of a part
    Clear(LimitClearArgs),
}

#[derive(Debug, Args)]
pub struct LimitSetArgs {
    pub volume: VolumeName,
    /// lun/NAME, bucket/NAME, or clients/NETWORK (all clients in the network together)
    pub part: VolumePart,
    /// Bytes per second, reads and writes together
    #[arg(long, value_name = "RATE")]
    pub throughput: Option<RateFlag>,
    /// Bytes read per second
    #[arg(long, value_name = "RATE")]
    pub read_throughput: Option<RateFlag>,
    /// Bytes written per second
    #[arg(long, value_name = "RATE")]
    pub write_throughput: Option<RateFlag>,
    /// Operations per second, of any kind
    #[arg(long, value_name = "RATE")]
    pub iops: Option<RateFlag>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LimitListArgs {
    pub volume: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct LimitClearArgs {
    pub volume: VolumeName,
    /// The part: lun/NAME, bucket/NAME or clients/NETWORK
    pub part: VolumePart,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn limit(command: &LimitCommand) -> Result<(), Failure> {
    match command {
        LimitCommand::Set(args) => {
            let rate = |flag: Option<RateFlag>| flag.and_then(RateFlag::rate);
            let limit = PartLimit {
                part: args.part.clone(),
                throughput: rate(args.throughput),
                read_throughput: rate(args.read_throughput),
                write_throughput: rate(args.write_throughput),
                iops: rate(args.iops),
            };
            let list = access::client(&args.view.server)?.tell(LIMIT_SET, &args.volume, &limit)?;
            shown(&list, args.view.json)
        }
        LimitCommand::List(args) => {
            let list = access::client(&args.view.server)?.ask(LIMIT_LIST, &args.volume)?;
            shown(&list, args.view.json)
        }
        LimitCommand::Clear(args) => {
            let list = access::client(&args.view.server)?.ask(
                LIMIT_CLEAR,
                &(args.volume.clone(), PartOf(args.part.clone())),
            )?;
            shown(&list, args.view.json)
        }
    }
}

fn shown(list: &PartList, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(list);
    }
    match list.limits.is_empty() {
        true => print::text("no part of the volume has limits"),
        false => print::text(&table(&list.limits)),
    }
}

fn table(limits: &[PartView]) -> String {
    const COLUMNS: &[Column] = &[
        ("PART", Align::Left),
        ("THROUGHPUT", Align::Right),
        ("READS", Align::Right),
        ("WRITES", Align::Right),
        ("IOPS", Align::Right),
        ("NOW", Align::Right),
        ("OPERATIONS", Align::Right),
    ];
    let shown = |rate: Option<u64>, is_bytes| {
        rate.map_or_else(String::new, |rate| per_second(rate, is_bytes))
    };
    let rows = limits.iter().map(|part| {
        let limit = &part.limit;
        vec![
            limit.part.to_string(),
            shown(limit.throughput, true),
            shown(limit.read_throughput, true),
            shown(limit.write_throughput, true),
            shown(limit.iops, false),
            shown(part.bytes_per_second, true),
            shown(part.operations_per_second, false),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

/// Lines for `cairn volume show`.
pub fn lines(parts: &[PartView]) -> Vec<String> {
    let lines = parts.iter().map(|part| {
        let limit = &part.limit;
        let rates = [
            ("", limit.throughput, true),
            (" read", limit.read_throughput, true),
            (" written", limit.write_throughput, true),
            (" operations", limit.iops, false),
        ];
        let rates: Vec<String> = rates
            .into_iter()
            .filter_map(|(what, rate, is_bytes)| Some(per_second(rate?, is_bytes) + what))
            .collect();
        format!("limit            {} {}", limit.part, rates.join(", "))
    });
    lines.collect()
}
