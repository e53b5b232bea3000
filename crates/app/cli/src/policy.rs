//! `cairn policy`: flags and commands.

use std::str::FromStr;
use std::time::Duration;

use cairn_admin::Client;
use cairn_admin::policies::{
    APPLY_CANCEL, APPLY_SHOW, APPLY_START, ApplyStart, ApplyState, ApplyView, DirectoryPath,
    POLICY_CLEAR, POLICY_LIST, POLICY_SET, POLICY_SHOW, PolicySet, PolicySettings, PolicyView,
};
use cairn_base::units::format_size;
use cairn_config::{AccessPattern, Compression, Dedupe, MediaChoice, Protection, VolumeName};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::quota::QuotaTarget;

/// How often `--wait` asks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Set how data below a directory is stored: `cairn policy set main/backups --compression zstd:3 --dedupe on`
    ///
    /// A policy applies to data written from now on, in existing and new files; `cairn policy apply` converts existing data. For each
    /// setting a file follows its nearest parent directory that has one, else the volume. Flags that you leave out stay unchanged;
    /// "inherit" clears a setting.
    Set(PolicySetArgs),
    /// Show a directory's own settings and the effective ones: `cairn policy show main/backups/old`
    Show(PolicyShowArgs),
    /// List the directories of a volume that have a policy: `cairn policy list main`
    List(PolicyVolumeArgs),
    /// Remove the policy of a directory: `cairn policy clear main/backups`
    Clear(PolicyClearArgs),
    /// Convert existing data to its policy: `cairn policy apply main/backups`, or `cairn policy apply main` for the whole volume
    ///
    /// The conversion runs in the background while clients work, and continues after restarts. It rewrites only data that is stored
    /// differently. With deduplication on, it reads all data and removes duplicates. `cairn policy status` shows its progress.
    Apply(PolicyApplyArgs),
    /// Show the progress of a conversion, or the result of the last one: `cairn policy status main`
    Status(PolicyVolumeArgs),
    /// Cancel a conversion; converted data stays converted: `cairn policy cancel main`
    Cancel(PolicyCancelArgs),
}

/// A value of a setting, or `inherit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    Inherit,
    Say(T),
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Choice<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inherit" => Ok(Self::Inherit),
            text => match text.parse() {
                Ok(word) => Ok(Self::Say(word)),
                Err(error) => Err(format!("{error}, or inherit")),
            },
        }
    }
}

impl<T> Choice<T> {
    fn into_option(self) -> Option<T> {
        match self {
            Self::Inherit => None,
            Self::Say(word) => Some(word),
        }
    }
}

#[derive(Debug, Args)]
pub struct PolicySetArgs {
    /// VOLUME/DIRECTORY
    pub place: QuotaTarget,
    /// off, lz4, zstd (level 3), zstd:1 to zstd:19, auto (lz4, or zstd where it saves clearly more) or inherit
    #[arg(long, value_name = "COMPRESSION")]
    pub compression: Option<Choice<Compression>>,
    /// off, on, verify or inherit: deduplication
    #[arg(long, value_name = "DEDUPE")]
    pub dedupe: Option<Choice<Dedupe>>,
    /// concurrent, streaming, random or inherit: decides the size of records
    #[arg(long, value_name = "PATTERN")]
    pub access_pattern: Option<Choice<AccessPattern>>,
    /// any, hdd, ssd, nvme, or inherit: device class
    #[arg(long, value_name = "MEDIA")]
    pub media: Option<Choice<MediaChoice>>,
    /// none, +1n to +4n, 2x to 5x, default, or inherit: how many lost disks the data survives
    #[arg(long, value_name = "PROTECTION", allow_hyphen_values = true)]
    pub protection: Option<Choice<Protection>>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct PolicyShowArgs {
    /// VOLUME, or VOLUME/DIRECTORY
    pub place: QuotaTarget,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct PolicyVolumeArgs {
    pub volume: VolumeName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct PolicyClearArgs {
    /// VOLUME/DIRECTORY
    pub place: QuotaTarget,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct PolicyApplyArgs {
    /// VOLUME, or VOLUME/DIRECTORY
    pub place: QuotaTarget,
    /// Wait until it is done
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct PolicyCancelArgs {
    pub volume: VolumeName,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn policy(command: &PolicyCommand) -> Result<(), Failure> {
    match command {
        PolicyCommand::Set(args) => set(args),
        PolicyCommand::Show(args) => {
            let client = access::client(&args.view.server)?;
            let view = client.ask(
                POLICY_SHOW,
                &(
                    args.place.volume.clone(),
                    DirectoryPath(args.place.path.clone()),
                ),
            )?;
            shown(&view, args.view.json)
        }
        PolicyCommand::List(args) => list(args),
        PolicyCommand::Clear(args) => {
            let QuotaTarget { volume, path } = &args.place;
            access::client(&args.server)?.ask(
                POLICY_CLEAR,
                &(volume.clone(), DirectoryPath(path.to_owned())),
            )?;
            print::text(&format!(
                "{volume}{path} has no policy of its own now; existing data stays as it is stored"
            ))
        }
        PolicyCommand::Apply(args) => apply(args),
        PolicyCommand::Status(args) => {
            let client = access::client(&args.view.server)?;
            shown_apply(&client.ask(APPLY_SHOW, &args.volume)?, args.view.json)
        }
        PolicyCommand::Cancel(args) => {
            let client = access::client(&args.server)?;
            client.ask(APPLY_CANCEL, &args.volume)?;
            shown_apply(&client.ask(APPLY_SHOW, &args.volume)?, false)
        }
    }
}

fn set(args: &PolicySetArgs) -> Result<(), Failure> {
    let QuotaTarget { volume, path } = &args.place;
    let is_given = args.compression.is_some()
        || args.dedupe.is_some()
        || args.access_pattern.is_some()
        || args.media.is_some()
        || args.protection.is_some();
    if !is_given {
        return Err(Failure::usage("no setting is given")
            .hint("for example: cairn policy set main/backups --compression zstd:3 --dedupe on"));
    }
    let client = access::client(&args.view.server)?;
    // Settings without a flag stay.
    let before = client
        .ask(
            POLICY_SHOW,
            &(volume.clone(), DirectoryPath(path.to_owned())),
        )?
        .policy;
    let policy = PolicySettings {
        compression: args
            .compression
            .map_or(before.compression, Choice::into_option),
        dedupe: args.dedupe.map_or(before.dedupe, Choice::into_option),
        access_pattern: args
            .access_pattern
            .map_or(before.access_pattern, Choice::into_option),
        media: args.media.map_or(before.media, Choice::into_option),
        protection: args
            .protection
            .map_or(before.protection, Choice::into_option),
    };
    let set = PolicySet {
        path: path.clone(),
        policy,
    };
    let view = client.tell(POLICY_SET, volume, &set)?;
    shown(&view, args.view.json)
}

/// A directory's own setting, or a dash.
fn said<T: std::fmt::Display>(word: Option<T>) -> String {
    word.map_or_else(|| "-".to_owned(), |word| word.to_string())
}

fn shown(view: &PolicyView, json: bool) -> Result<(), Failure> {
    const COLUMNS: &[Column] = &[
        ("", Align::Left),
        ("SAID HERE", Align::Left),
        ("IN FORCE", Align::Left),
    ];
    if json {
        return print::json(view);
    }
    let row = |name: &str, said: String, in_force: String| vec![name.to_owned(), said, in_force];
    let (policy, in_force) = (&view.policy, &view.in_force);
    let rows = vec![
        row(
            "compression",
            said(policy.compression),
            in_force.compression.to_string(),
        ),
        row("dedupe", said(policy.dedupe), in_force.dedupe.to_string()),
        row(
            "access pattern",
            said(policy.access_pattern),
            in_force.access_pattern.to_string(),
        ),
        row("media", said(policy.media), in_force.media.to_string()),
        row(
            "protection",
            said(policy.protection),
            in_force.protection.to_string(),
        ),
    ];
    let table = print::table(COLUMNS, rows);
    print::text(&format!(
        "{}{}\n{table}",
        view.volume,
        print::name(&view.path)
    ))
}

fn list(args: &PolicyVolumeArgs) -> Result<(), Failure> {
    const COLUMNS: &[Column] = &[
        ("PATH", Align::Left),
        ("COMPRESSION", Align::Left),
        ("DEDUPE", Align::Left),
        ("ACCESS PATTERN", Align::Left),
        ("MEDIA", Align::Left),
        ("PROTECTION", Align::Left),
    ];
    let volume = &args.volume;
    let list = access::client(&args.view.server)?.ask(POLICY_LIST, volume)?;
    if args.view.json {
        return print::json(&list);
    }
    if list.policies.is_empty() {
        return print::text(&format!(
            "no directory of volume {volume} has a policy; `cairn policy set {volume}/DIRECTORY --compression zstd` sets one"
        ));
    }
    let rows = list.policies.iter().map(|view| {
        vec![
            view.path.clone(),
            said(view.policy.compression),
            said(view.policy.dedupe),
            said(view.policy.access_pattern),
            said(view.policy.media),
            said(view.policy.protection),
        ]
    });
    print::text(&print::table(COLUMNS, rows.collect()))
}

fn apply(args: &PolicyApplyArgs) -> Result<(), Failure> {
    let QuotaTarget { volume, path } = &args.place;
    let client = access::client(&args.view.server)?;
    let start = ApplyStart { path: path.clone() };
    let begun = client.tell(APPLY_START, volume, &start)?;
    if args.wait {
        let ended = wait(&client, volume, &begun)?;
        return shown_apply(&ended, args.view.json);
    }
    if args.view.json {
        return print::json(&begun);
    }
    print::text(&format!(
        "data of {volume}{path} is being converted; `cairn policy status {volume}` shows the progress"
    ))
}

/// Waits until the conversion has ended.
fn wait(client: &Client, volume: &VolumeName, begun: &ApplyView) -> Result<ApplyView, Failure> {
    loop {
        let view = client.ask(APPLY_SHOW, volume)?;
        let is_it = view.began_seconds == begun.began_seconds;
        if !is_it || view.state != ApplyState::Running {
            return Ok(view);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn shown_apply(view: &ApplyView, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(view);
    }
    print::text(&apply_text(view))
}

fn apply_text(view: &ApplyView) -> String {
    let path = view.path.as_deref().unwrap_or(" (a deleted directory)");
    let state = match view.state {
        ApplyState::Running => {
            // Inodes that are made meanwhile are not looked at.
            let percent = (view.inodes * 100)
                .checked_div(view.inodes_all)
                .unwrap_or(0)
                .min(99);
            format!("{} of the volume's files, {percent}%", view.state.name())
        }
        state => state.name().to_owned(),
    };
    let mut lines = vec![
        format!("data of      {}{}", view.volume, print::name(path)),
        format!("conversion   {state}"),
        format!(
            "checked      {} files, {}",
            view.files,
            format_size(view.seen_bytes)
        ),
        format!(
            "rewritten    {}, stored in {} instead of {}",
            format_size(view.rewritten_bytes),
            format_size(view.stored_bytes_after),
            format_size(view.stored_bytes_before)
        ),
        format!("shared now   {}", format_size(view.shared_bytes)),
    ];
    if view.left > 0 {
        lines.push(format!(
            "left         {} parts of files, which clients changed meanwhile or which cannot be read",
            view.left
        ));
    }
    if let Some(why) = &view.waits_for {
        lines.push(format!("waits        {why}; the server retries"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_or_refused() {
        let cases = [
            ("inherit", Some(Choice::Inherit)),
            ("off", Some(Choice::Say(Compression::None))),
            ("zstd:9", Some(Choice::Say(Compression::Zstd(9)))),
            ("auto", Some(Choice::Say(Compression::Auto))),
            ("zstd:20", None),
            ("", None),
        ];
        for (text, want) in cases {
            let got = text.parse::<Choice<Compression>>();
            assert_eq!(got.ok(), want, "{text}");
        }
    }

    #[test]
    fn a_conversion_is_told() {
        let mut view = ApplyView {
            volume: "main".to_owned(),
            path: Some("/a".to_owned()),
            state: ApplyState::Running,
            began_seconds: 1,
            ended_seconds: None,
            inodes: 30,
            inodes_all: 40,
            files: 20,
            seen_bytes: 4 << 20,
            rewritten_bytes: 2 << 20,
            shared_bytes: 0,
            stored_bytes_before: 1 << 20,
            stored_bytes_after: 512 << 10,
            left: 0,
            waits_for: None,
        };
        let text = apply_text(&view);
        assert!(text.contains("main/a") && text.contains("75%"), "{text}");
        assert!(!text.contains("left"), "{text}");
        (view.inodes_all, view.left) = (0, 3);
        view.waits_for = Some("no space".to_owned());
        let text = apply_text(&view);
        assert!(text.contains("0%") && text.contains("3 parts"), "{text}");
        assert!(text.contains("no space"), "{text}");
    }
}
