//! `cairn snapshot`: flags and commands.

use cairn_admin::snapshots::{
    ChangeView, ChangeWhat, GroupSnapshotCreate, SCHEDULES, SCHEDULES_SET, SNAPSHOT_CREATE,
    SNAPSHOT_CREATE_GROUP, SNAPSHOT_DELETE, SNAPSHOT_DIFF, SNAPSHOT_LIST, SNAPSHOT_RESTORE,
    SNAPSHOT_SET, SNAPSHOT_SHOW, SchedulesSet, SchedulesView, SnapshotCreate, SnapshotDiffAsk,
    SnapshotName, SnapshotRestore, SnapshotSet, SnapshotView, Space, VOLUME_RESTORE, VolumeRestore,
};
use cairn_base::units::format_size;
use cairn_config::VolumeName;
use clap::{Args, Subcommand};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::freeze::FreezeArgs;
use crate::print::{self, Align, Column};
use crate::status::duration;

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of a volume: `cairn snapshot create main before-upgrade`
    ///
    /// A snapshot contains all acknowledged stable writes. Users find it in .snapshot/NAME of each directory.
    /// A consistency group takes snapshots of several volumes at one instant: `cairn snapshot create --group data,log before-upgrade`
    ///
    /// Commands can pause an application meanwhile: --before "fsfreeze -f /mnt/db" --after "fsfreeze -u /mnt/db". The --after command
    /// always runs, even if this command is killed.
    Create(SnapshotCreateArgs),
    /// List the snapshots of a volume, oldest first
    List(SnapshotListArgs),
    /// Show one snapshot, and the space that deleting only this snapshot would free
    Show(SnapshotArgs),
    /// Delete a snapshot; its space is freed in the background
    Delete(SnapshotDeleteArgs),
    /// Rename a snapshot
    Rename(SnapshotRenameArgs),
    /// Protect a snapshot against deletion
    Lock(SnapshotArgs),
    /// Allow a locked snapshot to be deleted
    Unlock(SnapshotArgs),
    /// Restore a file or directory from a snapshot: `cairn snapshot restore main before-upgrade /etc/app.conf`
    ///
    /// A restored file replaces the current file in one step; a restored directory needs an unused path. Both share their data with the
    /// snapshot, so they are ready at once and take no space.
    ///
    /// Roll back the whole volume: `cairn snapshot restore main before-upgrade --volume`. The rollback is atomic, even if the server
    /// stops meanwhile. Clients wait until all changes since the snapshot are undone. A snapshot named before-restore-... keeps the
    /// earlier content of the volume, unless you give --discard.
    Restore(SnapshotRestoreArgs),
    /// List changes between two snapshots: `cairn snapshot diff main monday tuesday`, or up to now: `... diff main monday`
    ///
    /// Each changed name has a line: + created, - deleted, R renamed, M modified; then type, size and path. Content of a renamed
    /// directory is listed only if it changed. The cost grows with the number of changes, not with the size of the volume.
    Diff(SnapshotDiffArgs),
    /// Set or show the snapshot schedules of a volume: `cairn snapshot schedule main "hourly 24, daily 7, weekly 4"`
    ///
    /// A schedule has a name, the number of snapshots to keep, and a cron expression in UTC; hourly, daily, weekly and monthly need no
    /// expression: "hourly 24, work 10 (30 8,12,17 * * MON-FRI)". "none" removes all schedules. The oldest surplus snapshots are
    /// deleted, except locked ones.
    Schedule(SnapshotScheduleArgs),
    /// Set or show when snapshots are deleted for lack of space: `cairn snapshot autodelete main 10`
    ///
    /// Below this percentage of free space in the pool, the volume's oldest snapshots are deleted one by one until the pool has that
    /// much free space again. Locked snapshots and sources of clones are kept. 0 disables this.
    Autodelete(SnapshotAutodeleteArgs),
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    pub volume: VolumeName,
    /// Letters, digits and .-_:+@, not beginning with a dot
    pub name: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotCreateArgs {
    /// The volume; with --group the name of the snapshots
    #[arg(value_name = "VOLUME")]
    pub first: String,
    /// The name: letters, digits and .-_:+@, not beginning with a dot
    #[arg(
        value_name = "NAME",
        required_unless_present = "group",
        conflicts_with = "group"
    )]
    pub second: Option<String>,
    /// Consistency group: the volumes that get a snapshot of this name, all at one instant
    #[arg(long, value_name = "VOLUME,...", value_delimiter = ',')]
    pub group: Vec<VolumeName>,
    #[command(flatten)]
    pub freeze: FreezeArgs,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotListArgs {
    pub volume: VolumeName,
    /// Show the space that deleting each snapshot by itself would free
    #[arg(long)]
    pub space: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotDeleteArgs {
    pub volume: VolumeName,
    pub name: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotRestoreArgs {
    pub volume: VolumeName,
    pub name: String,
    /// The file or directory, as a path from the root of the volume: /projects/report.odt
    #[arg(
        required_unless_present = "volume_whole",
        conflicts_with = "volume_whole"
    )]
    pub path: Option<String>,
    /// The path to restore to [default: the original path]
    #[arg(long, conflicts_with = "volume_whole")]
    pub to: Option<String>,
    /// Roll back the whole volume
    #[arg(id = "volume_whole", long = "volume")]
    pub whole: bool,
    /// Name of the snapshot that keeps the earlier content of the volume [default: before-restore- and the time]
    #[arg(long, value_name = "NAME", requires = "volume_whole")]
    pub keep: Option<String>,
    /// Discard all changes since the volume's newest snapshot
    #[arg(long, requires = "volume_whole", conflicts_with = "keep")]
    pub discard: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotDiffArgs {
    pub volume: VolumeName,
    /// The older snapshot
    #[arg(value_name = "FROM")]
    pub earlier: String,
    /// The newer snapshot; "live" or nothing for the current state
    #[arg(value_name = "TO")]
    pub later: Option<String>,
    /// One JSON object for each change
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotScheduleArgs {
    pub volume: VolumeName,
    /// All schedules of the volume; without this value the command shows the current ones
    pub schedules: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotAutodeleteArgs {
    pub volume: VolumeName,
    /// Percentage of the pool to keep free, 1 to 90, or 0 for never; without this value the command shows the current setting
    #[arg(value_parser = clap::value_parser!(u8).range(0..=90))]
    pub percent: Option<u8>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct SnapshotRenameArgs {
    pub volume: VolumeName,
    pub name: String,
    /// Its new name
    pub to: String,
    #[command(flatten)]
    pub view: ViewArgs,
}

fn create_group(args: &SnapshotCreateArgs) -> Result<(), Failure> {
    let (name, view) = (&args.first, &args.view);
    let create = GroupSnapshotCreate {
        volumes: args.group.clone(),
        name: name.clone(),
    };
    let client = access::client(&view.server)?;
    let taken = args.freeze.around(
        || Ok(client.tell(SNAPSHOT_CREATE_GROUP, &(), &create)?),
        || {
            for volume in &args.group {
                client.ask(
                    SNAPSHOT_DELETE,
                    &(volume.clone(), SnapshotName(name.to_owned())),
                )?;
            }
            Ok(())
        },
    )?;
    if view.json {
        return print::json(&taken);
    }
    print::text(&format!(
        "snapshot {name} of {} volumes is taken, all at one instant",
        taken.snapshots.len()
    ))
}

pub fn snapshot(command: &SnapshotCommand) -> Result<(), Failure> {
    match command {
        SnapshotCommand::Create(args) => {
            let Some(name) = &args.second else {
                return create_group(args);
            };
            let volume = args.first.parse::<VolumeName>();
            let volume = volume.map_err(|error| Failure::usage(error.to_string()))?;
            let create = SnapshotCreate { name: name.clone() };
            let client = access::client(&args.view.server)?;
            let taken = args.freeze.around(
                || Ok(client.tell(SNAPSHOT_CREATE, &volume, &create)?),
                || {
                    Ok(client.ask(
                        SNAPSHOT_DELETE,
                        &(volume.clone(), SnapshotName(name.to_owned())),
                    )?)
                },
            )?;
            if args.view.json {
                return print::json(&taken);
            }
            print::text(&format!(
                "snapshot {} of {} is taken; users find it in .snapshot/{} of each directory",
                taken.name, taken.volume, taken.name
            ))
        }
        SnapshotCommand::List(args) => {
            let client = access::client(&args.view.server)?;
            let list = client.all(SNAPSHOT_LIST, &(args.volume.clone(), Space(args.space)))?;
            if args.view.json {
                return print::json(&list);
            }
            let mut text = table(&list.snapshots);
            text.push_str(&format!(
                "\nsnapshots alone hold {}",
                format_size(list.held_bytes)
            ));
            if list.freeing > 0 {
                text.push_str(&format!("; {} deleted, being freed", list.freeing));
            }
            print::text(&text)
        }
        SnapshotCommand::Show(args) => {
            let client = access::client(&args.view.server)?;
            shown(
                &client.ask(
                    SNAPSHOT_SHOW,
                    &(args.volume.clone(), SnapshotName(args.name.clone())),
                )?,
                args.view.json,
            )
        }
        SnapshotCommand::Delete(args) => {
            let client = access::client(&args.server)?;
            client.ask(
                SNAPSHOT_DELETE,
                &(args.volume.clone(), SnapshotName(args.name.clone())),
            )?;
            print::text(&format!(
                "snapshot {} of {} is deleted; its space is freed in the background",
                args.name, args.volume
            ))
        }
        SnapshotCommand::Rename(args) => {
            let set = SnapshotSet {
                name: Some(args.to.clone()),
                ..SnapshotSet::default()
            };
            let client = access::client(&args.view.server)?;
            let renamed = client.tell(
                SNAPSHOT_SET,
                &(args.volume.clone(), SnapshotName(args.name.clone())),
                &set,
            )?;
            shown(&renamed, args.view.json)
        }
        SnapshotCommand::Diff(args) => diff(args),
        SnapshotCommand::Restore(args) => {
            let Some(path) = &args.path else {
                return restore_whole(args);
            };
            let client = access::client(&args.view.server)?;
            let restore = SnapshotRestore {
                path: path.clone(),
                to: args.to.clone(),
            };
            let restored = client.tell(
                SNAPSHOT_RESTORE,
                &(args.volume.clone(), SnapshotName(args.name.clone())),
                &restore,
            )?;
            match args.view.json {
                true => print::json(&restored),
                false => print::text(&format!(
                    "{} is restored from snapshot {}: {} files and {} directories, {} of data shared with the snapshot",
                    restored.path,
                    args.name,
                    restored.files,
                    restored.directories,
                    format_size(restored.bytes)
                )),
            }
        }
        SnapshotCommand::Schedule(args) => {
            let client = access::client(&args.view.server)?;
            let view = match &args.schedules {
                Some(schedules) => {
                    let set = SchedulesSet {
                        schedules: Some(schedules.clone()),
                        ..SchedulesSet::default()
                    };
                    client.tell(SCHEDULES_SET, &args.volume, &set)?
                }
                None => client.ask(SCHEDULES, &args.volume)?,
            };
            match args.view.json {
                true => print::json(&view),
                false => print::text(&schedules_text(&view)),
            }
        }
        SnapshotCommand::Autodelete(args) => {
            let client = access::client(&args.view.server)?;
            let view = match args.percent {
                Some(percent) => {
                    let set = SchedulesSet {
                        autodelete_percent: Some(percent),
                        ..SchedulesSet::default()
                    };
                    client.tell(SCHEDULES_SET, &args.volume, &set)?
                }
                None => client.ask(SCHEDULES, &args.volume)?,
            };
            match args.view.json {
                true => print::json(&view),
                false => print::text(&autodelete_text(&view)),
            }
        }
        SnapshotCommand::Lock(args) => lock(args, true),
        SnapshotCommand::Unlock(args) => lock(args, false),
    }
}

fn restore_whole(args: &SnapshotRestoreArgs) -> Result<(), Failure> {
    let restore = VolumeRestore {
        keep: args.keep.clone(),
        discard: args.discard,
    };
    let client = access::client(&args.view.server)?;
    let restored = client.tell(
        VOLUME_RESTORE,
        &(args.volume.clone(), SnapshotName(args.name.clone())),
        &restore,
    )?;
    if args.view.json {
        return print::json(&restored);
    }
    let kept = match &restored.kept {
        Some(kept) => format!("snapshot {kept} keeps the earlier content"),
        None => "the earlier content is discarded".to_owned(),
    };
    print::text(&format!(
        "{} is rolled back to snapshot {}: {} files and directories, {}; {kept}; clients waited for {:.1} s",
        restored.volume,
        restored.snapshot,
        restored.inodes,
        format_size(restored.file_bytes),
        restored.seconds
    ))
}

fn diff(args: &SnapshotDiffArgs) -> Result<(), Failure> {
    let client = access::client(&args.server)?;
    let to = args.later.as_ref().filter(|later| *later != "live");
    let mut ask = SnapshotDiffAsk {
        to: to.cloned(),
        ..SnapshotDiffAsk::default()
    };
    loop {
        let page = client.tell(
            SNAPSHOT_DIFF,
            &(args.volume.clone(), SnapshotName(args.earlier.clone())),
            &ask,
        )?;
        let mut text = String::new();
        for change in &page.changes {
            text.push_str(&match args.json {
                true => print::json_line(change)?,
                false => change_line(change),
            });
            text.push('\n');
        }
        if !text.is_empty() {
            print::text(text.trim_end_matches('\n'))?;
        }
        if page.next.is_none() {
            return Ok(());
        }
        ask = SnapshotDiffAsk {
            next: page.next,
            ..SnapshotDiffAsk::default()
        };
    }
}

fn change_line(change: &ChangeView) -> String {
    let sign = match change.change {
        ChangeWhat::Created => '+',
        ChangeWhat::Deleted => '-',
        ChangeWhat::Renamed => 'R',
        ChangeWhat::Modified => 'M',
    };
    let size = format_size(change.size_bytes);
    // A name with a line feed in it is no line of its own.
    let path = match &change.path {
        Some(path) => print::name(path).into_owned(),
        None => format!("(inode {}, with several names)", change.inode),
    };
    let path = match &change.from {
        Some(from) => format!("{} -> {path}", print::name(from)),
        None => path,
    };
    let what = match change.modified.is_empty() {
        true => String::new(),
        false => format!("  ({})", change.modified.join(", ")),
    };
    format!("{sign} {:<9} {size:>10} {path}{what}", change.kind)
}

fn lock(args: &SnapshotArgs, locked: bool) -> Result<(), Failure> {
    let set = SnapshotSet {
        locked: Some(locked),
        ..SnapshotSet::default()
    };
    let client = access::client(&args.view.server)?;
    let set = client.tell(
        SNAPSHOT_SET,
        &(args.volume.clone(), SnapshotName(args.name.clone())),
        &set,
    )?;
    shown(&set, args.view.json)
}

fn shown(snapshot: &SnapshotView, json: bool) -> Result<(), Failure> {
    match json {
        true => print::json(snapshot),
        false => print::text(&table(std::slice::from_ref(snapshot))),
    }
}

fn autodelete_text(view: &SchedulesView) -> String {
    let volume = &view.volume;
    match view.autodelete_percent {
        0 => format!("no snapshot of {volume} is deleted for lack of space"),
        percent => format!(
            "the oldest snapshots of {volume} are deleted when less than {percent}% of the pool is free; `cairn snapshot lock` keeps one"
        ),
    }
}

fn schedules_text(view: &SchedulesView) -> String {
    const COLUMNS: &[Column] = &[
        ("SCHEDULE", Align::Left),
        ("WHEN (UTC)", Align::Left),
        ("KEEP", Align::Right),
        ("SNAPSHOTS", Align::Right),
        ("NEXT", Align::Right),
    ];
    if view.schedules.is_empty() {
        return format!(
            "{} has no snapshot schedule; `cairn snapshot schedule {} \"hourly 24, daily 7\"` sets one",
            view.volume, view.volume
        );
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_seconds = now.map_or(0, |now| now.as_secs() as i64);
    let rows = view.schedules.iter().map(|schedule| {
        let next = schedule.next_seconds.map(|next| {
            let left = u64::try_from(next.saturating_sub(now_seconds)).unwrap_or(0);
            format!("in {}", duration(left))
        });
        vec![
            schedule.name.clone(),
            schedule.cron.clone(),
            schedule.keep.to_string(),
            schedule.snapshots.to_string(),
            next.unwrap_or_else(|| "-".to_owned()),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

fn table(snapshots: &[SnapshotView]) -> String {
    const COLUMNS: &[Column] = &[
        ("SNAPSHOT", Align::Left),
        ("AGE", Align::Right),
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("FREES", Align::Right),
        ("", Align::Left),
    ];
    let rows = snapshots.iter().map(|snapshot| {
        vec![
            snapshot.name.clone(),
            duration(snapshot.age_seconds),
            snapshot.inodes.to_string(),
            format_size(snapshot.file_bytes),
            snapshot
                .frees_bytes
                .map_or_else(|| "-".to_owned(), format_size),
            if snapshot.locked { "locked" } else { "" }.to_owned(),
        ]
    });
    print::table(COLUMNS, rows.collect())
}
