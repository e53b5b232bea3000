//! `cairn quota`: flags and commands.

use std::process::Command;

use cairn_admin::quotas::{
    QUOTA_LIST, QUOTA_REMOVE, QUOTA_SET, QUOTA_SHOW, QUOTA_USAGES, QuotaAt, QuotaLimitView,
    QuotaOf, QuotaSet, QuotaView, UsagesAt,
};
use cairn_base::units::{format_size, parse_size};
use cairn_config::VolumeName;
use clap::{Args, Subcommand};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::status::duration;

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Set limits: `cairn quota set main/home/anna --hard 100GiB --soft 80GiB --grace 7d --files 1000000`
    ///
    /// A quota limits a directory with everything below it, a volume, a user or group (--user, --group), or each user or group without
    /// own limits (--default-user, --default-group). Users and groups are limited in a volume or in one directory. Limits that you
    /// leave out stay unchanged; "none" removes a limit. Limits apply at once. The existing usage of a directory is counted in the
    /// background; while usage is above a limit, writes that need more space are refused.
    Set(QuotaSetArgs),
    /// List the quotas of a volume, or what each user uses: `cairn quota list main`, `cairn quota list main --users`
    List(QuotaListArgs),
    /// Show one quota, or the usage if there is no quota: `cairn quota show main --user anna`
    Show(QuotaShowArgs),
    /// Remove a quota: `cairn quota remove main/home/anna`
    Remove(QuotaRemoveArgs),
}

/// A volume, or a directory in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaTarget {
    pub volume: VolumeName,
    pub path: String,
}

impl std::str::FromStr for QuotaTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, path) = text.split_once('/').unwrap_or((text, ""));
        let volume = volume
            .parse::<VolumeName>()
            .map_err(|error| error.to_string())?;
        let path = format!("/{}", path.trim_matches('/'));
        Ok(Self { volume, path })
    }
}

#[derive(Clone, Debug, Args)]
pub struct OfArgs {
    /// A user, by name or number
    #[arg(long, value_name = "USER", group = "of")]
    pub user: Option<String>,
    /// A group, by name or number
    #[arg(long, value_name = "GROUP", group = "of")]
    pub group: Option<String>,
    /// Each user without own limits, except root
    #[arg(long, group = "of")]
    pub default_user: bool,
    /// Each group without own limits, except root's
    #[arg(long, group = "of")]
    pub default_group: bool,
}

#[derive(Debug, Args)]
pub struct QuotaSetArgs {
    /// VOLUME, or VOLUME/DIRECTORY
    pub place: QuotaTarget,
    #[command(flatten)]
    pub of: OfArgs,
    /// Hard limit on bytes: a size such as 10TiB, or none
    #[arg(long, value_name = "SIZE")]
    pub hard: Option<String>,
    /// Soft limit on bytes: may be exceeded for the grace time
    #[arg(long, value_name = "SIZE")]
    pub soft: Option<String>,
    /// Advisory limit on bytes: only reported when exceeded
    #[arg(long, value_name = "SIZE")]
    pub advisory: Option<String>,
    /// Hard limit on inodes (files, directories, links): a number, or none
    #[arg(long, value_name = "NUMBER", visible_alias = "hard-files")]
    pub files: Option<String>,
    /// Soft limit on inodes: may be exceeded for the grace time
    #[arg(long, value_name = "NUMBER")]
    pub soft_files: Option<String>,
    /// Advisory limit on inodes: only reported when exceeded
    #[arg(long, value_name = "NUMBER")]
    pub advisory_files: Option<String>,
    /// Grace time: how long soft limits may be exceeded, such as 7d, 12h, 30m [a new quota: 7d]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<String>,
    /// Count stored bytes: after compression and before parity
    #[arg(long, conflicts_with = "logical")]
    pub physical: bool,
    /// Count bytes of files: before compression
    #[arg(long)]
    pub logical: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct QuotaListArgs {
    /// VOLUME; with --users or --groups also VOLUME/DIRECTORY, if that has a quota
    pub place: QuotaTarget,
    /// Show the usage of each user, limited or not
    #[arg(long, conflicts_with = "groups")]
    pub users: bool,
    /// Show the usage of each group
    #[arg(long)]
    pub groups: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct QuotaShowArgs {
    /// VOLUME, or VOLUME/DIRECTORY
    pub place: QuotaTarget,
    #[command(flatten)]
    pub of: OfArgs,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct QuotaRemoveArgs {
    /// VOLUME, or VOLUME/DIRECTORY
    pub place: QuotaTarget,
    #[command(flatten)]
    pub of: OfArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn quota(command: &QuotaCommand) -> Result<(), Failure> {
    match command {
        QuotaCommand::Set(args) => set(args),
        QuotaCommand::List(args) => list(args),
        QuotaCommand::Show(args) => {
            let at = at(&args.place, &args.of)?;
            let client = access::client(&args.view.server)?;
            let view = client.ask(QUOTA_SHOW, &(args.place.volume.clone(), at.clone()))?;
            shown(&[view], args.view.json)
        }
        QuotaCommand::Remove(args) => {
            let at = at(&args.place, &args.of)?;
            let client = access::client(&args.server)?;
            client.ask(QUOTA_REMOVE, &(args.place.volume.clone(), at.clone()))?;
            print::text(&format!(
                "the quota of {} in {}{} is removed; the data stays",
                of_text(at.of, at.id),
                args.place.volume,
                at.path
            ))
        }
    }
}

fn at(place: &QuotaTarget, of: &OfArgs) -> Result<QuotaAt, Failure> {
    let (of, id) = match of {
        OfArgs {
            user: Some(user), ..
        } => (QuotaOf::User, Some(id_of("passwd", user)?)),
        OfArgs {
            group: Some(group), ..
        } => (QuotaOf::Group, Some(id_of("group", group)?)),
        OfArgs {
            default_user: true, ..
        } => (QuotaOf::DefaultUser, None),
        OfArgs {
            default_group: true,
            ..
        } => (QuotaOf::DefaultGroup, None),
        OfArgs { .. } => (QuotaOf::All, None),
    };
    let path = place.path.clone();
    Ok(QuotaAt { path, of, id })
}

fn set(args: &QuotaSetArgs) -> Result<(), Failure> {
    let at = at(&args.place, &args.of)?;
    let client = access::client(&args.view.server)?;
    let volume = &args.place.volume;
    // Limits without a flag stay.
    let before = client.ask(QUOTA_SHOW, &(volume.clone(), at.clone())).ok();
    let before = before.filter(|quota| !quota.inherited);
    let mut bytes = before.as_ref().map(|quota| quota.bytes).unwrap_or_default();
    let mut files = before.as_ref().map(|quota| quota.files).unwrap_or_default();
    let mut is_given = args.grace.is_some() || args.physical || args.logical;
    let size = |text: &str| parse_size(text).map_err(|error| error.to_string());
    let number = |text: &str| {
        let number = text.replace('_', "").parse::<u64>();
        number.map_err(|_| format!("{text:?} is not a number"))
    };
    for (flag, given, limit) in [
        ("--hard", &args.hard, &mut bytes.hard),
        ("--soft", &args.soft, &mut bytes.soft),
        ("--advisory", &args.advisory, &mut bytes.advisory),
    ] {
        is_given |= change(flag, given.as_deref(), limit, size)?;
    }
    for (flag, given, limit) in [
        ("--files", &args.files, &mut files.hard),
        ("--soft-files", &args.soft_files, &mut files.soft),
        (
            "--advisory-files",
            &args.advisory_files,
            &mut files.advisory,
        ),
    ] {
        is_given |= change(flag, given.as_deref(), limit, number)?;
    }
    if !is_given {
        return Err(Failure::usage("no limit is given")
            .hint("for example: cairn quota set main/home --hard 10TiB --soft 8TiB --grace 7d"));
    }
    let is_unlimited = |limit: &QuotaLimitView| *limit == QuotaLimitView::default();
    if is_unlimited(&bytes) && is_unlimited(&files) {
        return Err(Failure::usage("this would remove all limits").hint(format!(
            "`cairn quota remove {}{}` removes the quota",
            volume, at.path
        )));
    }
    let grace = args.grace.as_deref().map(grace_seconds).transpose()?;
    let physical = match (args.physical, args.logical) {
        (true, _) => true,
        (_, true) => false,
        _ => before.as_ref().is_some_and(|quota| quota.physical),
    };
    let set = QuotaSet {
        path: at.path,
        of: at.of,
        id: at.id,
        bytes,
        files,
        physical,
        grace_seconds: grace.or(before.map(|quota| quota.grace_seconds)),
    };
    let view = client.tell(QUOTA_SET, volume, &set)?;
    shown(&[view], args.view.json)
}

fn change(
    flag: &str,
    given: Option<&str>,
    limit: &mut Option<u64>,
    parse: impl Fn(&str) -> Result<u64, String>,
) -> Result<bool, Failure> {
    let Some(text) = given else {
        return Ok(false);
    };
    *limit = match text {
        "none" => None,
        text => Some(parse(text).map_err(|why| Failure::usage(format!("{flag}: {why}")))?),
    };
    Ok(true)
}

/// Reads `7d`, `12h`, `30m`, `45s`; a number without a letter is in seconds.
fn grace_seconds(text: &str) -> Result<u64, Failure> {
    let bad = || {
        Failure::usage(format!("--grace: {text:?} is not a time"))
            .hint("write 7d, 12h, 30m or a number of seconds")
    };
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'd')) => (&text[..at], 24 * 60 * 60),
        Some((at, 'h')) => (&text[..at], 60 * 60),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 's')) => (&text[..at], 1),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(factor).ok_or_else(bad)
}

fn list(args: &QuotaListArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let volume = &args.place.volume;
    let of = match (args.users, args.groups) {
        (true, _) => Some(QuotaOf::User),
        (_, true) => Some(QuotaOf::Group),
        _ => None,
    };
    let list = match of {
        Some(of) => {
            let path = args.place.path.clone();
            client.ask(
                QUOTA_USAGES,
                &(volume.clone(), UsagesAt(QuotaAt { path, of, id: None })),
            )?
        }
        None if args.place.path != "/" => {
            return Err(Failure::usage(
                "quotas are listed for a volume; for a directory, only the usage of users or groups",
            )
            .hint("add --users or --groups, or use `cairn quota show`"));
        }
        None => client.ask(QUOTA_LIST, volume)?,
    };
    if args.view.json {
        return print::json(&list);
    }
    if list.quotas.is_empty() {
        return print::text(&format!(
            "volume {volume} has no quotas; `cairn quota set {volume}/DIRECTORY --hard SIZE` sets one"
        ));
    }
    shown(&list.quotas, false)
}

fn shown(quotas: &[QuotaView], json: bool) -> Result<(), Failure> {
    const COLUMNS: &[Column] = &[
        ("PATH", Align::Left),
        ("OF", Align::Left),
        ("USED", Align::Right),
        ("HARD", Align::Right),
        ("SOFT", Align::Right),
        ("ADVISORY", Align::Right),
        ("FILES", Align::Right),
        ("HARD", Align::Right),
        ("SOFT", Align::Right),
        ("", Align::Left),
    ];
    if json {
        return match quotas {
            [one] => print::json(one),
            quotas => print::json(&quotas),
        };
    }
    let size = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), format_size);
    let count =
        |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    let rows = quotas.iter().map(|quota| {
        vec![
            quota.path.clone(),
            of_text(quota.of, quota.id),
            format_size(quota.used_bytes),
            size(quota.bytes.hard),
            size(quota.bytes.soft),
            size(quota.bytes.advisory),
            quota.used_files.to_string(),
            count(quota.files.hard),
            count(quota.files.soft),
            notes(quota),
        ]
    });
    print::text(&print::table(COLUMNS, rows.collect()))
}

/// Remarks on a quota, beside its numbers.
fn notes(quota: &QuotaView) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_seconds = now.map_or(0, |now| now.as_secs());
    let mut notes = Vec::new();
    if quota.counting {
        notes.push("being counted".to_owned());
    }
    if quota.physical {
        notes.push("as stored".to_owned());
    }
    if quota.inherited && quota.bytes != QuotaLimitView::default() {
        notes.push("by default".to_owned());
    }
    let is_default = matches!(quota.of, QuotaOf::DefaultUser | QuotaOf::DefaultGroup);
    let passes = |limit: Option<u64>, used: u64| limit.is_some_and(|limit| used > limit);
    for (what, limit, used, ends) in [
        (
            "bytes",
            quota.bytes,
            quota.used_bytes,
            quota.bytes_grace_ends_seconds,
        ),
        (
            "files",
            quota.files,
            quota.used_files,
            quota.files_grace_ends_seconds,
        ),
    ] {
        if is_default {
            continue;
        }
        if passes(limit.hard, used) {
            notes.push(format!(
                "{what} above the hard limit: writes that need more are refused"
            ));
        } else if limit.hard == Some(used) {
            notes.push(format!("full: {what}"));
        } else if passes(limit.soft, used) {
            notes.push(match ends.map(|ends| ends.saturating_sub(now_seconds)) {
                Some(0) => format!("soft limit on {what} exceeded, and the grace time is over"),
                Some(left) => format!(
                    "soft limit on {what} exceeded, {} of grace left",
                    duration(left)
                ),
                None => format!("soft limit on {what} exceeded"),
            });
        } else if passes(limit.advisory, used) {
            notes.push(format!("advisory limit on {what} exceeded"));
        }
    }
    notes.join("; ")
}

fn of_text(of: QuotaOf, id: Option<u32>) -> String {
    let named = |database: &str, id: u32| {
        let found = entry_of(database, &id.to_string());
        let name = found.as_deref().and_then(|line| line.split(':').next());
        name.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
    };
    match (of, id) {
        (QuotaOf::User, Some(id)) => format!("user {}", named("passwd", id)),
        (QuotaOf::Group, Some(id)) => format!("group {}", named("group", id)),
        (QuotaOf::DefaultUser, _) => "each user".to_owned(),
        (QuotaOf::DefaultGroup, _) => "each group".to_owned(),
        (QuotaOf::All | QuotaOf::User | QuotaOf::Group, _) => "all".to_owned(),
    }
}

/// The number of a user or group; this machine resolves names.
fn id_of(database: &str, text: &str) -> Result<u32, Failure> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let what = if database == "passwd" {
        "user"
    } else {
        "group"
    };
    let line = entry_of(database, text);
    let id = line
        .as_deref()
        .and_then(|line| line.split(':').nth(2))
        .and_then(|id| id.parse().ok());
    id.ok_or_else(|| {
        Failure::usage(format!("this machine has no {what} {text}"))
            .hint("give the number: the file system stores only numbers")
    })
}

/// A line of this machine's user or group database.
fn entry_of(database: &str, key: &str) -> Option<String> {
    if key.starts_with('-') {
        return None;
    }
    let found = Command::new("getent")
        .arg(database)
        .arg(key)
        .output()
        .ok()?;
    let is_found = found.status.success();
    is_found.then(|| String::from_utf8_lossy(&found.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_times_are_read_or_refused() {
        let place = |text: &str| {
            text.parse::<QuotaTarget>()
                .map(|place| (place.volume.to_string(), place.path))
        };
        let ok = |volume: &str, path: &str| Ok((volume.to_owned(), path.to_owned()));
        assert_eq!(place("main"), ok("main", "/"));
        assert_eq!(place("main/"), ok("main", "/"));
        assert_eq!(place("main/a/b/"), ok("main", "/a/b"));
        assert!(place("/a").is_err());
        let times = [
            ("7d", Some(604_800)),
            ("12h", Some(43_200)),
            ("30m", Some(1800)),
            ("5", Some(5)),
            ("", None),
            ("d", None),
            ("7w", None),
            ("99999999999999999d", None),
        ];
        for (text, want) in times {
            assert_eq!(grace_seconds(text).ok(), want, "{text}");
        }
    }
}
