//! `cairn class`: flags and commands, and how a volume's rates are shown.

use std::str::FromStr;
use std::time::Duration;

use cairn_admin::classes::{
    CLASS_CREATE, CLASS_DELETE, CLASS_LIST, CLASS_SET, CLASS_SHOW, ClassCreate, ClassLimits,
    ClassSet, ClassView, LatencyView, LimitView, RateView, RatesView,
};
use cairn_base::units::{format_size, parse_size};
use cairn_config::{CREDIT_SECONDS_DEFAULT, ClassName, LATENCY_GOAL_US_MAX, LATENCY_GOAL_US_MIN};
use clap::{Args, Subcommand};

use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::status::duration;
use crate::{access, limit};

#[derive(Debug, Subcommand)]
pub enum ClassCommand {
    /// Create a class: `cairn class create gold --throughput-per-tib 128MiB/s --burst 4x --burst-credit 2h`
    ///
    /// `cairn volume set VOLUME --class gold --quota 10TiB` puts a volume into the class. Rates per TiB count for each TiB of the
    /// volume's size limit. Requests above a rate are delayed, never refused.
    Create(ClassCreateArgs),
    /// List all classes, including the built-in ones
    List(ViewArgs),
    /// Show one class and its volumes
    Show(ClassShowArgs),
    /// Change limits of a class: `cairn class set gold --burst 8x`. Its volumes follow at once
    Set(ClassCreateArgs),
    /// Delete a class without volumes
    Delete(ClassDeleteArgs),
}

#[derive(Debug, Args)]
pub struct ClassShowArgs {
    pub name: ClassName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ClassDeleteArgs {
    pub name: ClassName,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct ClassCreateArgs {
    pub name: ClassName,
    #[command(flatten)]
    pub flags: ClassFlags,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// A rate on the command line: `128MiB/s`, `500` (operations), or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateFlag(Option<u64>);

impl RateFlag {
    pub fn rate(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for RateFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let number = text.trim().strip_suffix("/s").unwrap_or(text);
        match parse_size(number) {
            Ok(0) => Err("a rate of zero would stop every client; none means no limit".to_owned()),
            Ok(rate) => Ok(Self(Some(rate))),
            Err(_) => Err("write none, or a rate such as 128MiB/s, or 500 operations".to_owned()),
        }
    }
}

/// How many times the baseline a burst is, in thousandths: `4x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimesFlag(u32);

impl FromStr for TimesFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a factor of the baseline, such as 4x or 2.5x".to_owned();
        let number = text.trim().trim_end_matches('x');
        let times: f64 = number.parse().map_err(|_| wrong())?;
        match times {
            times if times.is_nan() => Err(wrong()),
            times if times < 1.0 => {
                Err("a burst is at least the baseline: write 1x or more".to_owned())
            }
            times if times > 1000.0 => Err("a burst is 1000x at most".to_owned()),
            times => Ok(Self((times * 1000.0).round() as u32)),
        }
    }
}

/// A latency objective in microseconds, or none: `2ms`, `500us`, `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoalFlag(Option<u64>);

impl FromStr for GoalFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "none" {
            return Ok(Self(None));
        }
        let wrong = || "write none, or a time such as 500us, 2ms or 1s".to_owned();
        let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
        let split = |(unit, microseconds)| Some((text.strip_suffix(unit)?, microseconds));
        let (number, unit_us) = units.into_iter().find_map(split).ok_or_else(wrong)?;
        let microseconds = number.parse::<f64>().map_err(|_| wrong())? * unit_us;
        if microseconds.is_nan() {
            return Err(wrong());
        }
        let allowed = LATENCY_GOAL_US_MIN..=LATENCY_GOAL_US_MAX;
        // Saturates: what is too large or below zero is not allowed.
        match microseconds.round() as u64 {
            goal if allowed.contains(&goal) => Ok(Self(Some(goal))),
            _ => Err("a latency objective is from 50us to 60s".to_owned()),
        }
    }
}

/// Limits of a class.
#[derive(Clone, Debug, Default, Args)]
pub struct ClassFlags {
    /// Bytes per second, reads and writes together, for each TiB of a volume's size limit; here and below, none removes a limit
    #[arg(long, value_name = "RATE")]
    pub throughput_per_tib: Option<RateFlag>,
    /// Bytes per second, reads and writes together, for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub throughput: Option<RateFlag>,
    /// Bytes read per second for each TiB of a volume's size limit
    #[arg(long, value_name = "RATE")]
    pub read_throughput_per_tib: Option<RateFlag>,
    /// Bytes read per second for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub read_throughput: Option<RateFlag>,
    /// Bytes written per second for each TiB of a volume's size limit
    #[arg(long, value_name = "RATE")]
    pub write_throughput_per_tib: Option<RateFlag>,
    /// Bytes written per second for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub write_throughput: Option<RateFlag>,
    /// Operations of any kind per second for each TiB of a volume's size limit
    #[arg(long, value_name = "RATE")]
    pub iops_per_tib: Option<RateFlag>,
    /// Operations of any kind per second for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub iops: Option<RateFlag>,
    /// Reads per second for each TiB of a volume's size limit
    #[arg(long, value_name = "RATE")]
    pub read_iops_per_tib: Option<RateFlag>,
    /// Reads per second for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub read_iops: Option<RateFlag>,
    /// Writes per second for each TiB of a volume's size limit
    #[arg(long, value_name = "RATE")]
    pub write_iops_per_tib: Option<RateFlag>,
    /// Writes per second for each volume, whatever its size
    #[arg(long, value_name = "RATE")]
    pub write_iops: Option<RateFlag>,
    /// Factor by which all rates above may be exceeded while there is credit: 4x
    #[arg(long, value_name = "TIMES")]
    pub burst: Option<TimesFlag>,
    /// Burst factor for reads, if different
    #[arg(long, value_name = "TIMES")]
    pub read_burst: Option<TimesFlag>,
    /// Burst factor for writes, if different
    #[arg(long, value_name = "TIMES")]
    pub write_burst: Option<TimesFlag>,
    /// How long a full credit lasts at full burst: 2h. A volume earns credit while it uses less than its baseline [a new
    /// burst: 30m]
    #[arg(long, value_name = "TIME", value_parser = crate::cluster::parse_time)]
    pub burst_credit: Option<Duration>,
    /// Bytes per second for each client of a volume; a client is an address or an S3 access key
    #[arg(long, value_name = "RATE")]
    pub client_throughput: Option<RateFlag>,
    /// Operations per second for each client of a volume
    #[arg(long, value_name = "RATE")]
    pub client_iops: Option<RateFlag>,
    /// Bytes per second on each node for all volumes of the class together. Volumes can borrow unused parts of this rate, even above
    /// their own rates
    #[arg(long, value_name = "RATE")]
    pub total_throughput: Option<RateFlag>,
    /// Latency objective for 99 of 100 NFS and iSCSI requests, counted from the end of their delay: 2ms. While a volume misses it,
    /// rebuilds, scrubs and other background work are throttled more; `cairn volume show` and an event report it
    #[arg(long, value_name = "TIME")]
    pub latency_goal: Option<GoalFlag>,
}

impl ClassFlags {
    fn is_empty(&self) -> bool {
        let rates = [
            self.throughput_per_tib,
            self.throughput,
            self.read_throughput_per_tib,
            self.read_throughput,
            self.write_throughput_per_tib,
            self.write_throughput,
            self.iops_per_tib,
            self.iops,
            self.read_iops_per_tib,
            self.read_iops,
            self.write_iops_per_tib,
            self.write_iops,
            self.client_throughput,
            self.client_iops,
            self.total_throughput,
        ];
        let bursts = [self.burst, self.read_burst, self.write_burst];
        rates.iter().all(Option::is_none)
            && bursts.iter().all(Option::is_none)
            && self.burst_credit.is_none()
            && self.latency_goal.is_none()
    }

    /// The earlier limits with the changes of the flags.
    fn apply(&self, limits: &mut ClassLimits) {
        let all = self.burst;
        let read = self.read_burst.or(all);
        let write = self.write_burst.or(all);
        let credit = self.burst_credit;
        let bytes = (self.throughput_per_tib, self.throughput);
        change(&mut limits.throughput, bytes, all, credit);
        let bytes = (self.read_throughput_per_tib, self.read_throughput);
        change(&mut limits.read_throughput, bytes, read, credit);
        let bytes = (self.write_throughput_per_tib, self.write_throughput);
        change(&mut limits.write_throughput, bytes, write, credit);
        change(
            &mut limits.iops,
            (self.iops_per_tib, self.iops),
            all,
            credit,
        );
        let operations = (self.read_iops_per_tib, self.read_iops);
        change(&mut limits.read_iops, operations, read, credit);
        let operations = (self.write_iops_per_tib, self.write_iops);
        change(&mut limits.write_iops, operations, write, credit);
        for (limit, flag) in [
            (&mut limits.client_throughput, self.client_throughput),
            (&mut limits.client_iops, self.client_iops),
            (&mut limits.total_throughput, self.total_throughput),
        ] {
            if let Some(RateFlag(rate)) = flag {
                *limit = rate;
            }
        }
        if let Some(GoalFlag(goal)) = self.latency_goal {
            limits.latency_goal_microseconds = goal;
        }
    }
}

/// Changes one rate: per TiB and fixed, burst and credit.
fn change(
    limit: &mut Option<RateView>,
    (per_tib, fixed): (Option<RateFlag>, Option<RateFlag>),
    burst: Option<TimesFlag>,
    credit: Option<Duration>,
) {
    let mut rate = limit.unwrap_or(RateView {
        per_tib: 0,
        fixed: 0,
        burst_permille: 1000,
        credit_seconds: 0,
    });
    if let Some(RateFlag(flag)) = per_tib {
        rate.per_tib = flag.unwrap_or(0);
    }
    if let Some(RateFlag(flag)) = fixed {
        rate.fixed = flag.unwrap_or(0);
    }
    if let Some(TimesFlag(times)) = burst {
        rate.burst_permille = times;
    }
    if let Some(time) = credit {
        rate.credit_seconds = time.as_secs();
    }
    match rate.burst_permille {
        1000 => rate.credit_seconds = 0,
        _ if rate.credit_seconds == 0 && credit.is_none() => {
            rate.credit_seconds = CREDIT_SECONDS_DEFAULT;
        }
        _ => {}
    }
    *limit = (rate.per_tib > 0 || rate.fixed > 0).then_some(rate);
}

pub fn class(command: &ClassCommand) -> Result<(), Failure> {
    match command {
        ClassCommand::Create(args) => {
            let mut limits = ClassLimits::default();
            args.flags.apply(&mut limits);
            let create = ClassCreate {
                name: args.name.clone(),
                limits,
            };
            let class = access::client(&args.view.server)?.tell(CLASS_CREATE, &(), &create)?;
            if args.view.json {
                return print::json(&class);
            }
            let quota = match needs_size(&class) {
                true => " --quota SIZE",
                false => "",
            };
            print::text(&format!(
                "class {} is created; put a volume into it with: cairn volume set VOLUME --class {}{quota}",
                class.name, class.name
            ))
        }
        ClassCommand::List(view) => {
            let list = access::client(&view.server)?.ask(CLASS_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            print::text(&table(&list.classes))
        }
        ClassCommand::Show(args) => {
            let class = access::client(&args.view.server)?.ask(CLASS_SHOW, &args.name)?;
            shown(&class, args.view.json)
        }
        ClassCommand::Set(args) => {
            if args.flags.is_empty() {
                return Err(Failure::usage("no limit to change is given")
                    .hint("`cairn class set --help` lists the limits"));
            }
            let client = access::client(&args.view.server)?;
            let mut limits = client.ask(CLASS_SHOW, &args.name)?.limits;
            args.flags.apply(&mut limits);
            let class = client.tell(CLASS_SET, &args.name, &ClassSet { limits })?;
            shown(&class, args.view.json)
        }
        ClassCommand::Delete(args) => {
            access::client(&args.server)?.ask(CLASS_DELETE, &args.name)?;
            print::text(&format!("class {} is deleted", args.name))
        }
    }
}

fn shown(class: &ClassView, json: bool) -> Result<(), Failure> {
    match json {
        true => print::json(class),
        false => print::text(&table(std::slice::from_ref(class))),
    }
}

fn rates(limits: &ClassLimits) -> [(&'static str, bool, Option<RateView>); 6] {
    [
        ("throughput", true, limits.throughput),
        ("reads", true, limits.read_throughput),
        ("writes", true, limits.write_throughput),
        ("iops", false, limits.iops),
        ("read iops", false, limits.read_iops),
        ("write iops", false, limits.write_iops),
    ]
}

fn needs_size(class: &ClassView) -> bool {
    let mut rates = rates(&class.limits).into_iter();
    rates.any(|(_, _, rate)| rate.is_some_and(|rate| rate.per_tib > 0))
}

/// A rate as people read it.
pub fn per_second(rate: u64, is_bytes: bool) -> String {
    match is_bytes {
        true => format!("{}/s", format_size(rate)),
        false => format!("{rate}/s"),
    }
}

fn times(permille: u32) -> String {
    let number = format!("{:.3}", f64::from(permille) / 1000.0);
    format!("{}x", number.trim_end_matches('0').trim_end_matches('.'))
}

/// Lines that describe a class, one for each limit.
fn words(limits: &ClassLimits) -> Vec<String> {
    let mut words = Vec::new();
    for (what, is_bytes, rate) in rates(limits) {
        let Some(rate) = rate else { continue };
        let mut parts = Vec::new();
        if rate.per_tib > 0 {
            parts.push(format!("{} per TiB", per_second(rate.per_tib, is_bytes)));
        }
        if rate.fixed > 0 {
            parts.push(per_second(rate.fixed, is_bytes));
        }
        let burst = match rate.burst_permille {
            1000 => String::new(),
            burst => format!(
                ", burst {} for {}",
                times(burst),
                duration(rate.credit_seconds)
            ),
        };
        words.push(format!("{what} {}{burst}", parts.join(" and ")));
    }
    let each = [
        ("each client", limits.client_throughput, true),
        ("each client", limits.client_iops, false),
        ("all volumes", limits.total_throughput, true),
    ];
    for (who, rate, is_bytes) in each {
        if let Some(rate) = rate {
            words.push(format!("{who} {}", per_second(rate, is_bytes)));
        }
    }
    if let Some(goal) = limits.latency_goal_microseconds {
        words.push(format!("latency objective {}", latency(goal)));
    }
    words
}

fn table(classes: &[ClassView]) -> String {
    const COLUMNS: &[Column] = &[
        ("CLASS", Align::Left),
        ("LIMITS", Align::Left),
        ("VOLUMES", Align::Left),
    ];
    let rows = classes.iter().map(|class| {
        let volumes: Vec<&str> = class.volumes.iter().map(|name| name.as_str()).collect();
        vec![
            class.name.to_string(),
            match words(&class.limits) {
                none if none.is_empty() => {
                    "none: for rebuilds, scrubs, garbage collection, tiers".to_owned()
                }
                limits => limits.join("; "),
            },
            volumes.join(" "),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

/// Lines for `cairn volume show` about the volume's use of its class.
pub fn lines(rates: &RatesView) -> Vec<String> {
    let mut lines = vec![format!(
        "rate now         {} read, {} written, {} operations/s",
        per_second(rates.read_bytes_per_second, true),
        per_second(rates.written_bytes_per_second, true),
        rates.operations_per_second
    )];
    lines.extend(rates.limits.iter().map(line));
    lines.extend(limit::lines(&rates.parts));
    let each = [
        ("each client", rates.client_throughput, true),
        ("each client", rates.client_iops, false),
        ("class together", rates.total_throughput, true),
    ];
    for (who, rate, is_bytes) in each {
        if let Some(rate) = rate {
            lines.push(format!("{who:<16} {}", per_second(rate, is_bytes)));
        }
    }
    lines.extend(rates.latency.as_ref().map(goal_line));
    lines.push(format!(
        "waiting          {} requests now, {} since the start",
        rates.waiting, rates.delayed
    ));
    lines
}

fn latency(microseconds: u64) -> String {
    format!("{:?}", Duration::from_micros(microseconds))
}

fn goal_line(view: &LatencyView) -> String {
    let stands = match view.met {
        None => "unknown yet".to_owned(),
        Some(met) => {
            let word = if met { "met" } else { "MISSED" };
            format!(
                "{word}: {} of the last {} were late",
                view.late, view.requests
            )
        }
    };
    format!(
        "99% within       {}, {stands}",
        latency(view.goal_microseconds)
    )
}

fn line(limit: &LimitView) -> String {
    let is_bytes = !limit.of.ends_with("iops");
    let mut line = format!("{:<16} {}", limit.of, per_second(limit.baseline, is_bytes));
    if limit.credit_max == 0 {
        return line;
    }
    let amount = |count: u64| match is_bytes {
        true => format_size(count),
        false => count.to_string(),
    };
    line.push_str(&format!(
        ", burst {}, credit {} of {}",
        per_second(limit.burst, is_bytes),
        amount(limit.credit),
        amount(limit.credit_max)
    ));
    if let Some(seconds) = limit.credit_ends_seconds {
        line.push_str(&format!(", ends in {} at this rate", duration(seconds)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_bursts_and_times_are_read_or_refused() {
        for (text, want) in [
            ("128MiB/s", Some(Some(128 << 20))),
            ("500", Some(Some(500))),
            ("none", Some(None)),
            ("0", None),
            ("0MiB/s", None),
            ("-1", None),
            ("fast", None),
        ] {
            let got = text.parse::<RateFlag>().ok().map(|RateFlag(rate)| rate);
            assert_eq!(got, want, "{text}");
        }
        for (text, want) in [
            ("4x", Some(4000)),
            ("2.5", Some(2500)),
            ("1x", Some(1000)),
            ("0.5x", None),
            ("x", None),
            ("nan", None),
            ("1001x", None),
        ] {
            let got = text.parse::<TimesFlag>().ok().map(|TimesFlag(times)| times);
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn goals_of_latency_are_read_or_refused() {
        for (text, want) in [
            ("2ms", Some(Some(2000))),
            ("0.5ms", Some(Some(500))),
            ("50us", Some(Some(50))),
            ("60s", Some(Some(60_000_000))),
            ("none", Some(None)),
            ("49us", None),
            ("61s", None),
            ("2", None),
            ("-1s", None),
            ("nans", None),
            ("infs", None),
            ("", None),
        ] {
            let got = text.parse::<GoalFlag>().ok().map(|GoalFlag(goal)| goal);
            assert_eq!(got, want, "{text}");
        }
        let view = |met| LatencyView {
            goal_microseconds: 2500,
            met,
            requests: 1000,
            late: 12,
            requests_total: 5000,
            late_total: 13,
        };
        assert_eq!(
            goal_line(&view(None)),
            "99% within       2.5ms, unknown yet"
        );
        let missed = "99% within       2.5ms, MISSED: 12 of the last 1000 were late";
        assert_eq!(goal_line(&view(Some(false))), missed);
    }

    #[test]
    fn flags_change_what_they_name_and_nothing_else() {
        let rate = |text: &str| Some(text.parse::<RateFlag>().unwrap());
        let mut limits = ClassLimits::default();
        let made = ClassFlags {
            throughput_per_tib: rate("128MiB/s"),
            burst: Some(TimesFlag(4000)),
            client_iops: rate("100"),
            ..ClassFlags::default()
        };
        made.apply(&mut limits);
        let throughput = limits.throughput.unwrap();
        assert_eq!(
            (throughput.burst_permille, throughput.credit_seconds),
            (4000, CREDIT_SECONDS_DEFAULT)
        );
        assert_eq!((limits.iops, limits.client_iops), (None, Some(100)));
        let changed = ClassFlags {
            burst_credit: Some(Duration::from_secs(7200)),
            client_iops: rate("none"),
            ..ClassFlags::default()
        };
        changed.apply(&mut limits);
        assert_eq!(limits.throughput.unwrap().credit_seconds, 7200);
        assert_eq!(limits.client_iops, None);
        let gone = ClassFlags {
            throughput_per_tib: rate("none"),
            ..ClassFlags::default()
        };
        gone.apply(&mut limits);
        assert_eq!(limits, ClassLimits::default());
        assert!(ClassFlags::default().is_empty() && !gone.is_empty());
    }
}
