//! `cairn disk ...`.

use std::io::{BufRead, IsTerminal};
use std::time::{Duration, UNIX_EPOCH};

use cairn_admin::Client;
use cairn_admin::caches::{CACHE_ADD, CACHE_LIST, CACHE_REMOVE, CacheAdd, CacheName, CacheView};
use cairn_admin::cluster::CLUSTER;
use cairn_admin::disks::{
    DISK_ADD, DISK_LIST, DISK_PLACE, DISK_REMOVE, DISK_REPLACE, DISK_RETRY, DISK_SET, DiskAdd,
    DiskChange, DiskName, DiskPlace, DiskReplace, DiskRole, DiskState, DiskView, PlacePath,
};
use cairn_admin::endpoint::Force;
use cairn_admin::rebuild::{REBUILD, RebuildView};
use cairn_admin::spread::{SPREAD, SPREAD_SET, SpreadSet, SpreadStage, SpreadView};
use cairn_base::time::rfc3339_utc;
use cairn_base::units::format_size;
use cairn_config::{MediaChoice, Size};
use clap::{Args, Subcommand, ValueEnum};

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::status::{duration, size_or_none};

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// List the disks, and the data being moved between them
    List(ViewArgs),
    /// Add an empty folder to the pool as a new disk
    Add(DiskAddArgs),
    /// Set a disk's device class
    Set(DiskSetArgs),
    /// Move everything off a disk while clients work
    Drain(DiskDrainArgs),
    /// Remove a disk from the pool
    Remove(DiskRemoveArgs),
    /// Replace a working, failed or lost disk
    Replace(DiskReplaceArgs),
    /// Take back a failed disk that works again
    ///
    ///
    /// The disk must have answered all earlier operations. It gets the writes that it missed, and counts once it has them. A disk
    /// that is UNRESPONSIVE or FAILING, or that failed only because it hung, comes back by itself.
    Retry(DiskRetryArgs),
    /// Show, pause or resume the spread of data to emptier disks
    ///
    ///
    /// After you add disks or nodes, or delete much data, data moves until all disks of a device class are about equally full. The
    /// spread starts when two disks are more than 10 % apart, and ends at 5 %. It is throttled for clients, obeys `rebuild_rate`
    /// and the maintenance window, and waits while other data has to move. In a cluster all nodes take part.
    Spread(DiskSpreadArgs),
}

#[derive(Debug, Args)]
pub struct DiskSpreadArgs {
    /// Pause the spread until it is resumed, on all nodes of a cluster
    #[arg(long, conflicts_with = "resume")]
    pub pause: bool,
    /// Resume the spread
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What an added folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Data; also metadata if the pool has too few log devices
    Data,
    /// Log device: only logs and metadata of volumes, for a disk that is faster than the others
    Journal,
    /// Read cache for the pool's disks, on a faster disk; losing it loses no data
    Cache,
}

#[derive(Debug, Args)]
pub struct DiskAddArgs {
    /// The folder, on the server's machine
    pub folder: String,
    /// Role of the new disk
    #[arg(long, value_enum, default_value_t = RoleArg::Data)]
    pub role: RoleArg,
    /// Device class: hdd, ssd or nvme. Volumes and directories can ask for a class: `cairn volume set main --media ssd`,
    /// `cairn policy set main/scratch --media nvme`
    #[arg(long, default_value_t)]
    pub media: MediaChoice,
    /// Size of a read cache in the folder's file system, at least 256MiB
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Create the folder if it does not exist. Without this flag a missing folder is refused, because of possible typos and
    /// unmounted drives
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    /// Do not ask on a terminal to confirm the folder's device
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskSetArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Device class: hdd, ssd, nvme, or any for none. Data whose policy asks for a class moves to disks of that class
    #[arg(long)]
    pub media: MediaChoice,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskDrainArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Stop draining, and let new data go to the disk again
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRemoveArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// Remove the disk although it has data, which is then rebuilt from the other disks. Refused if the other disks lack
    /// some of the data
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskReplaceArgs {
    /// The disk to replace: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    /// The folder of the new disk, on the server's machine; may be the lost disk's folder
    pub folder: String,
    /// Accept a folder that was a Cairn disk, and delete its content
    #[arg(long)]
    pub wipe: bool,
    /// Create the folder if it does not exist
    #[arg(long, env = "CAIRN_CREATE")]
    pub create: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct DiskRetryArgs {
    /// The disk: its folder, its id, or the first four or more digits of its id
    pub disk: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Does what is asked about disks.
pub fn disk(command: &DiskCommand) -> Result<(), Failure> {
    match command {
        DiskCommand::List(args) => list(args),
        DiskCommand::Add(args) => add(args),
        DiskCommand::Set(args) => set(args),
        DiskCommand::Drain(args) => drain(args),
        DiskCommand::Remove(args) => remove(args),
        DiskCommand::Replace(args) => replace(args),
        DiskCommand::Retry(args) => retry(args),
        DiskCommand::Spread(args) => spread(args),
    }
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let client = access::client(&args.server)?;
    let list = client.ask(DISK_LIST, &())?;
    let rebuild = client.ask(REBUILD, &())?;
    let caches = client.ask(CACHE_LIST, &())?.caches;
    if args.json {
        let list = serde_json::json!({ "disks": list.disks, "caches": caches, "rebuild": rebuild });
        return print::json(&list);
    }
    let mut text = disk_table(&list.disks);
    for disk in &list.disks {
        if let Some(problem) = &disk.problem {
            text.push_str(&format!(
                "\n\n{}: {}",
                print::name(&disk.label),
                print::name(problem)
            ));
        }
    }
    // Every view of the disks says when there is only one to lose.
    let of_data = list.disks.iter().filter(|disk| disk.role == DiskRole::Data);
    if of_data.count() == 1 {
        text.push_str("\n\nNO REDUNDANCY: losing this disk loses everything.");
    }
    if !caches.is_empty() {
        text.push_str(&format!("\n\n{}", cache_table(&caches)));
    }
    for cache in &caches {
        if let Some(problem) = &cache.problem {
            text.push_str(&format!(
                "\n\n{}: {}",
                print::name(&cache.path),
                print::name(problem)
            ));
        }
    }
    if let Some(progress) = rebuild_text(&rebuild) {
        text.push_str(&format!("\n\n{progress}"));
    }
    print::text(&text)
}

fn add(args: &DiskAddArgs) -> Result<(), Failure> {
    let path = absolute(&args.folder);
    let role = match args.role {
        RoleArg::Cache => return add_cache(args, path),
        RoleArg::Data => DiskRole::Data,
        RoleArg::Journal => DiskRole::Journal,
    };
    if args.size.is_some() {
        return Err(Failure::usage("--size is for read caches")
            .hint("a disk uses its whole file system; `--role cache` creates a read cache"));
    }
    let add = DiskAdd {
        path,
        role,
        media: args.media,
        wipe: args.wipe,
        create: args.create,
    };
    let client = access::client(&args.view.server)?;
    let place = look(&client, &add.path, args)?;
    let disk = client.tell(DISK_ADD, &(), &add)?;
    shown(&disk, args.view.json, |disk| {
        let what = match disk.role {
            DiskRole::Data => "disk",
            DiskRole::Journal => "journal disk",
        };
        format!(
            "{} is {what} {} of the pool, {}",
            disk.label,
            short(disk),
            place_text(&place)
        )
    })
}

/// Looks at what a folder is on. Asks on a terminal whether that is right: a name with a typo, or a drive that is not mounted,
/// makes a disk on another device than was meant.
fn look(client: &Client, path: &str, args: &DiskAddArgs) -> Result<DiskPlace, Failure> {
    let place = client.ask(DISK_PLACE, &PlacePath(path.to_owned()))?;
    let stdin = std::io::stdin();
    if args.yes || args.view.json || !stdin.is_terminal() {
        return Ok(place);
    }
    print::ask(&format!(
        "{} is {}.\nAdd it? [y/N] ",
        print::name(&place.path),
        place_text(&place)
    ));
    let mut answer = String::new();
    stdin
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("reading the answer: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(place),
        _ => Err(Failure::refused("nothing was changed")),
    }
}

/// What a folder is on, after "is".
fn place_text(place: &DiskPlace) -> String {
    let mut text = format!(
        "on {} ({} at {}), {} with {} free",
        print::name(&place.device),
        print::name(&place.file_system),
        print::name(&place.mount_point),
        format_size(place.total_bytes),
        format_size(place.free_bytes)
    );
    if place.mount_point == "/" {
        text.push_str(", the root file system of the machine");
    }
    if !place.shares_with.is_empty() {
        let others: Vec<String> = place
            .shares_with
            .iter()
            .map(|label| print::name(label).into_owned())
            .collect();
        text.push_str(&format!(
            "; the drive has {} already, and its loss loses all of these",
            others.join(", ")
        ));
    }
    text
}

fn add_cache(args: &DiskAddArgs, path: String) -> Result<(), Failure> {
    let Some(size) = args.size else {
        return Err(Failure::usage("a read cache needs a size").hint(
            "for example --size 100GiB, of the folder's file system; a fifth of the data that is read often is a good start",
        ));
    };
    if !args.media.is_any() {
        return Err(Failure::usage("--media is for disks")
            .hint("policies put no data on a read cache, so it needs no device class"));
    }
    if args.wipe {
        return Err(Failure::usage("--wipe is for disks")
            .hint("a read cache keeps other files in its folder"));
    }
    let size_bytes = size.0;
    let create = args.create;
    let add = CacheAdd {
        path,
        size_bytes,
        create,
    };
    let client = access::client(&args.view.server)?;
    let place = look(&client, &add.path, args)?;
    let cache = client.tell(CACHE_ADD, &(), &add)?;
    if args.view.json {
        return print::json(&cache);
    }
    print::text(&format!(
        "{} is a read cache of {}, {}",
        cache.path,
        format_size(cache.size_bytes),
        place_text(&place)
    ))
}

fn set(args: &DiskSetArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let id = find(&client, &args.disk)?;
    let change = DiskChange {
        draining: None,
        media: Some(args.media),
    };
    let disk = client.tell(DISK_SET, &DiskName(id.clone()), &change)?;
    shown(&disk, args.view.json, |disk| match disk.media.is_any() {
        true => format!("{} has no device class now", disk.label),
        false => format!(
            "{} has device class {} now; data whose policy asks for this class moves to it, other data stays",
            disk.label, disk.media
        ),
    })
}

fn drain(args: &DiskDrainArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let id = find(&client, &args.disk)?;
    let draining = !args.cancel;
    let change = DiskChange {
        draining: Some(draining),
        media: None,
    };
    let disk = client.tell(DISK_SET, &DiskName(id.clone()), &change)?;
    shown(&disk, args.view.json, |disk| drain_text(disk, draining))
}

/// What becomes of a disk, by what was asked: one that failed or is missing does not say itself that it leaves.
fn drain_text(disk: &DiskView, draining: bool) -> String {
    let label = &disk.label;
    match (draining, disk.state) {
        (true, DiskState::Drained) => {
            format!("{label} is empty; remove it with `cairn disk remove`")
        }
        (true, DiskState::Missing | DiskState::Failed) if disk.shards == 0 => format!(
            "{label}, which is {}, has no shards of the volumes being served; remove it with `cairn disk remove`",
            disk.state
        ),
        (
            true,
            DiskState::Ok
            | DiskState::Draining
            | DiskState::Unresponsive
            | DiskState::Failing
            | DiskState::Returning,
        ) if disk.shards == 0 => format!(
            "{label} counts as drained once its metadata has moved and all volumes are being served; see `cairn disk list`"
        ),
        (true, DiskState::Missing | DiskState::Failed) => format!(
            "{} shards of {label}, which is {}, are being rebuilt on other disks; `cairn disk list` shows the progress",
            disk.shards, disk.state
        ),
        (
            true,
            DiskState::Ok
            | DiskState::Draining
            | DiskState::Unresponsive
            | DiskState::Failing
            | DiskState::Returning,
        ) => format!(
            "{} shards are being moved off {label}; `cairn disk list` shows the progress",
            disk.shards
        ),
        (
            false,
            DiskState::Unresponsive | DiskState::Failing | DiskState::Missing | DiskState::Failed,
        ) => format!(
            "{label} is no longer draining; it is {}, so it takes no data until it works again",
            disk.state
        ),
        (
            false,
            DiskState::Ok | DiskState::Draining | DiskState::Drained | DiskState::Returning,
        ) => {
            format!("{label} takes new data again")
        }
    }
}

fn remove(args: &DiskRemoveArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if let Some(cache) = find_cache(&client, &args.disk)? {
        client.ask(CACHE_REMOVE, &CacheName(cache.id.clone()))?;
        if args.view.json {
            return print::json(&serde_json::json!({ "removed": cache.id }));
        }
        return print::text(&format!("removed read cache {}", cache.path));
    }
    let id = find(&client, &args.disk)?;
    client.ask(DISK_REMOVE, &(DiskName(id.clone()), Force(args.force)))?;
    if args.view.json {
        return print::json(&serde_json::json!({ "removed": id }));
    }
    print::text(&format!("{} has left the pool", args.disk))
}

fn retry(args: &DiskRetryArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let id = find(&client, &args.disk)?;
    let disk = client.ask(DISK_RETRY, &DiskName(id.clone()))?;
    shown(&disk, args.view.json, |disk| {
        format!(
            "{} is in use again; it counts once it has proven that it works and has the writes that it missed; see `cairn disk list`",
            disk.label
        )
    })
}

fn replace(args: &DiskReplaceArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let id = find(&client, &args.disk)?;
    let by = DiskReplace {
        path: absolute(&args.folder),
        wipe: args.wipe,
        create: args.create,
    };
    let disk = client.tell(DISK_REPLACE, &DiskName(id.clone()), &by)?;
    if args.view.json {
        return print::json(&disk);
    }
    let is_in_cluster = client.ask(CLUSTER, &()).is_ok();
    print::text(&replace_text(&disk, &id, args, is_in_cluster))
}

/// What becomes of the disk `id`, which `disk` replaces: on one server it leaves by itself. In a cluster an operator removes it.
fn replace_text(disk: &DiskView, id: &str, args: &DiskReplaceArgs, is_in_cluster: bool) -> String {
    let (old, folder) = (&args.disk, &args.folder);
    if disk.id == id {
        return format!(
            "{old} is lost for good, and its data is being rebuilt; start its node with --data {folder} next, and the folder \
             becomes a new disk; `cairn disk remove {id}` once it is drained"
        );
    }
    let label = &disk.label;
    match is_in_cluster {
        true => format!(
            "{label} replaces {old}, whose data moves to other disks; `cairn disk list` shows the progress: `cairn disk remove {id}` once \
             it is drained"
        ),
        false => format!(
            "{label} replaces {old}, which leaves the pool once it is empty; `cairn disk list` shows the progress"
        ),
    }
}

fn spread(args: &DiskSpreadArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let spread = match (args.pause, args.resume) {
        (false, false) => client.ask(SPREAD, &())?,
        (paused, _) => client.tell(SPREAD_SET, &(), &SpreadSet { paused })?,
    };
    if args.view.json {
        return print::json(&spread);
    }
    print::text(&spread_text(&spread))
}

fn spread_text(spread: &SpreadView) -> String {
    let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
    let stage = match spread.stage {
        SpreadStage::Even => "even: nothing to move".to_owned(),
        SpreadStage::Moving => "moving".to_owned(),
        SpreadStage::Paused => "paused: `cairn disk spread --resume` continues".to_owned(),
        SpreadStage::Resting => {
            let until = spread.rests_until_seconds.unwrap_or_default();
            let until = UNIX_EPOCH + Duration::from_secs(u64::try_from(until).unwrap_or(0));
            let until = rfc3339_utc(until);
            format!("resting until the maintenance window opens: {until}")
        }
        SpreadStage::Waiting => {
            "waiting: disks are missing, or other data has to move first; see `cairn disk list`"
                .to_owned()
        }
        SpreadStage::Settled => {
            "settled: no data of this node would be as safe on an emptier disk".to_owned()
        }
    };
    let mut lines = vec![
        format!("spread    {stage}"),
        format!(
            "disks     the emptiest is {} full, the fullest {}; {} above the mean",
            percent(spread.least_permille),
            percent(spread.most_permille),
            format_size(spread.excess_bytes)
        ),
    ];
    if spread.moved_bytes > 0 {
        lines.push(format!(
            "moved     {} since the start of this server",
            format_size(spread.moved_bytes)
        ));
    }
    lines.join("\n")
}

/// A folder by the name that the server needs: where this command runs says nothing to it.
fn absolute(folder: &str) -> String {
    let path = std::path::absolute(folder);
    path.map_or_else(|_| folder.to_owned(), |path| path.display().to_string())
}

/// The read cache that the words mean, if they mean one.
fn find_cache(client: &Client, words: &str) -> Result<Option<CacheView>, Failure> {
    let path = absolute(words);
    let is_meant = |cache: &CacheView| {
        cache.path == words
            || cache.path == path
            || (words.len() >= 4 && cache.id.starts_with(words))
    };
    let caches = client.ask(CACHE_LIST, &())?.caches.into_iter();
    let mut found: Vec<CacheView> = caches.filter(is_meant).collect();
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(
            Failure::usage(format!("\"{words}\" matches more than one read cache"))
                .hint("give more digits of its id; `cairn disk list --json` shows them all"),
        ),
    }
}

/// The id of the disk that the words mean.
fn find(client: &Client, words: &str) -> Result<String, Failure> {
    let disks = client.ask(DISK_LIST, &())?.disks;
    let absolute = absolute(words);
    let by_label = |disk: &&DiskView| disk.label == words || disk.label == absolute;
    let by_id = |disk: &&DiskView| words.len() >= 4 && disk.id.starts_with(words);
    let mut found = disks.iter().filter(by_label).collect::<Vec<_>>();
    if found.is_empty() {
        found = disks.iter().filter(by_id).collect();
    }
    // A lost disk and the one in its place may have one folder: the lost one is meant.
    if found.len() > 1 {
        found.retain(|disk| disk.state != DiskState::Ok);
    }
    match found.as_slice() {
        [disk] => Ok(disk.id.clone()),
        [] => Err(Failure::failed(format!("there is no disk \"{words}\""))
            .hint("`cairn disk list` shows all disks")),
        _ => Err(
            Failure::usage(format!("\"{words}\" matches more than one disk"))
                .hint("give more digits of its id; `cairn disk list --json` shows them all"),
        ),
    }
}

fn shown(
    disk: &DiskView,
    json: bool,
    text: impl FnOnce(&DiskView) -> String,
) -> Result<(), Failure> {
    if json {
        return print::json(disk);
    }
    print::text(&text(disk))
}

fn short(disk: &DiskView) -> &str {
    disk.id.get(..8).unwrap_or(&disk.id)
}

/// Shards that are being moved; `None` if there is nothing to tell.
fn rebuild_text(rebuild: &RebuildView) -> Option<String> {
    let mut lines = Vec::new();
    if rebuild.shards_left > 0 {
        let left = rebuild.seconds_left.map(duration);
        lines.push(format!(
            "moving    {} shards left, {}{}",
            rebuild.shards_left,
            format_size(rebuild.bytes_left),
            left.map(|left| format!(", about {left}"))
                .unwrap_or_default()
        ));
    }
    if rebuild.shards_moved + rebuild.segments_rewritten > 0 {
        lines.push(format!(
            "moved     {} shards and {} rewritten segments, {}",
            rebuild.shards_moved,
            rebuild.segments_rewritten,
            format_size(rebuild.moved_bytes)
        ));
    }
    if rebuild.lost_bytes > 0 {
        lines.push(format!(
            "LOST      {} could not be recovered; `cairn scrub start` finds the affected files",
            format_size(rebuild.lost_bytes)
        ));
    }
    lines.extend(
        rebuild
            .problems
            .iter()
            .map(|problem| format!("problem   {}", print::name(problem))),
    );
    (!lines.is_empty()).then(|| lines.join("\n"))
}

pub fn disk_table(disks: &[DiskView]) -> String {
    const COLUMNS: &[Column] = &[
        ("DISK", Align::Left),
        ("ROLE", Align::Left),
        ("MEDIA", Align::Left),
        ("STATE", Align::Left),
        ("SIZE", Align::Right),
        ("FREE", Align::Right),
        ("SHARDS", Align::Right),
        ("LOGS", Align::Right),
        ("METADATA", Align::Right),
        ("READ ERRORS", Align::Right),
        ("WRITE ERRORS", Align::Right),
        ("WRONG BYTES", Align::Right),
        ("ID", Align::Left),
    ];
    let rows = disks.iter().map(|disk| {
        vec![
            disk.label.clone(),
            disk.role.to_string(),
            media_or_none(disk.media),
            disk.state.to_string(),
            size_or_none(disk.total_bytes),
            size_or_none(disk.free_bytes),
            disk.shards.to_string(),
            disk.logs.to_string(),
            disk.states.to_string(),
            disk.read_errors.to_string(),
            disk.write_errors.to_string(),
            disk.checksum_errors.to_string(),
            disk.id.get(..8).unwrap_or(&disk.id).to_owned(),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

fn media_or_none(media: MediaChoice) -> String {
    match media.is_any() {
        true => "-".to_owned(),
        false => media.to_string(),
    }
}

fn cache_table(caches: &[CacheView]) -> String {
    const COLUMNS: &[Column] = &[
        ("READ CACHE", Align::Left),
        ("STATE", Align::Left),
        ("SIZE", Align::Right),
        ("ERRORS", Align::Right),
        ("ID", Align::Left),
    ];
    let rows = caches.iter().map(|cache| {
        vec![
            cache.path.clone(),
            cache.state.to_string(),
            format_size(cache.size_bytes),
            cache.errors.to_string(),
            cache.id.get(..8).unwrap_or(&cache.id).to_owned(),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn disk(state: DiskState, shards: u64) -> DiskView {
        DiskView {
            id: "0123".to_owned(),
            label: "/disk".to_owned(),
            role: DiskRole::Data,
            media: MediaChoice::Any,
            logs: 0,
            states: 0,
            state,
            total_bytes: 0,
            free_bytes: 0,
            read_errors: 0,
            write_errors: 0,
            full_errors: 0,
            checksum_errors: 0,
            shards,
            problem: None,
        }
    }

    #[test]
    fn who_removes_a_disk_that_is_replaced_is_said() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: DiskReplaceArgs,
        }
        let args = Line::parse_from(["replace", "/old", "/new"]).args;
        let cases = [
            ("0123", true, "start its node with --data /new"),
            ("4567", true, "`cairn disk remove 4567` once it is drained"),
            ("4567", false, "/old, which leaves the pool once"),
        ];
        for (id, is_in_cluster, want) in cases {
            let text = replace_text(&disk(DiskState::Ok, 0), id, &args, is_in_cluster);
            assert!(text.contains(want), "{id} {is_in_cluster}: {text}");
        }
    }

    #[test]
    fn a_spread_says_where_it_stands() {
        let cases = [
            (SpreadStage::Even, "nothing to move"),
            (SpreadStage::Moving, "spread    moving"),
            (SpreadStage::Paused, "--resume"),
            (SpreadStage::Resting, "opens: 1970-01-01T00:00:09Z"),
            (SpreadStage::Waiting, "cairn disk list"),
            (SpreadStage::Settled, "as safe"),
        ];
        for (stage, want) in cases {
            let text = spread_text(&SpreadView {
                stage,
                rests_until_seconds: Some(9),
                least_permille: 7,
                most_permille: 603,
                ..SpreadView::default()
            });
            assert!(text.contains(want), "{stage:?}: {text}");
            assert!(
                text.contains("the emptiest is 0.7 % full, the fullest 60.3 %"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_said_of_a_drain_is_what_was_asked() {
        let cases = [
            (true, DiskState::Draining, 7, "7 shards are being moved off"),
            (true, DiskState::Draining, 0, "once its metadata has moved"),
            (true, DiskState::Drained, 0, "with `cairn disk remove`"),
            (true, DiskState::Failed, 7, "is FAILED, are being rebuilt"),
            (true, DiskState::Missing, 7, "is MISSING, are being rebuilt"),
            (true, DiskState::Missing, 0, "with `cairn disk remove`"),
            (false, DiskState::Ok, 7, "takes new data again"),
            (false, DiskState::Failed, 7, "no longer draining"),
            (false, DiskState::Missing, 0, "no longer draining"),
        ];
        for (draining, state, shards, want) in cases {
            let disk = disk(state, shards);
            let text = drain_text(&disk, draining);
            assert!(text.contains(want), "{draining} {state} {shards}: {text}");
        }
    }
}
