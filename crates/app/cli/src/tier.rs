//! `cairn tier`: object stores for cold data.

use cairn_admin::tiers::{
    TIER_ADD, TIER_CHECK, TIER_LIST, TIER_REMOVE, TIER_SHOW, TierAdd, TierCheck, TierView,
};
use cairn_base::units::format_size;
use cairn_config::{FilePatterns, MinAge, SizeLimit, TierName};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align};

/// Maximum number of problems of a check that are shown.
const PROBLEMS_SHOWN_MAX: usize = 100;

#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Add an object store for cold data: `cairn tier add cold s3://archive/cairn?region=eu-west-1`
    ///
    /// A volume offloads data to a tier when it is set to: `cairn volume set VOLUME --tier cold --tiering auto --cooling-days 31`. No
    /// other pool may use the bucket and prefix, or the directory.
    Add(TierAddArgs),
    /// List all tiers
    List(ViewArgs),
    /// Show one tier
    #[command(visible_alias = "status")]
    Show(TierShowArgs),
    /// Read all data in a tier, and verify its checksums
    Check(TierShowArgs),
    /// Remove an empty tier; `cairn volume set VOLUME --tiering none` first promotes its data back
    Remove(TierRemoveArgs),
}

#[derive(Debug, Args)]
pub struct TierAddArgs {
    pub name: TierName,
    /// s3://BUCKET/PREFIX?region=NAME, az://CONTAINER/PREFIX?account=NAME, gs://BUCKET/PREFIX, each with an optional &endpoint=URL,
    /// or file:///PATH
    pub url: String,
    /// Credentials file on the server, of mode 0600; the server rereads it when it changes. For s3: lines "aws_access_key_id = ..."
    /// and "aws_secret_access_key = ..."; for az: "azure_storage_account_key = ..." or "azure_storage_sas_token = ..."; for gs: the
    /// JSON key of a service account. A store outside of the cloud's own hosts also needs "credential_host = HOST:PORT" [default: the
    /// server's environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_SERVICE_ACCOUNT and so on), or the machine's
    /// cloud identity]
    #[arg(long, value_name = "PATH")]
    pub credentials_file: Option<String>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct TierShowArgs {
    pub name: TierName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct TierRemoveArgs {
    pub name: TierName,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn tier(command: &TierCommand) -> Result<(), Failure> {
    match command {
        TierCommand::Add(args) => {
            let add = TierAdd {
                name: args.name.clone(),
                url: args.url.clone(),
                credentials_file: args.credentials_file.clone(),
            };
            let tier = access::client(&args.view.server)?.tell(TIER_ADD, &(), &add)?;
            if args.view.json {
                return print::json(&tier);
            }
            print::text(&format!(
                "tier {} is at {}; `cairn volume set VOLUME --tier {} --tiering auto` offloads cold data to it",
                tier.name, tier.url, tier.name
            ))
        }
        TierCommand::List(args) => {
            let list = access::client(&args.server)?.ask(TIER_LIST, &())?;
            if args.json {
                return print::json(&list);
            }
            let columns = [
                ("NAME", Align::Left),
                ("OBJECTS", Align::Right),
                ("DATA", Align::Right),
                ("SAVES", Align::Right),
                ("STATE", Align::Left),
                ("URL", Align::Left),
            ];
            let rows = list.tiers.iter().map(|tier| {
                vec![
                    tier.name.to_string(),
                    tier.objects.to_string(),
                    format_size(tier.bytes),
                    format_size(tier.saved_bytes),
                    state(tier).to_owned(),
                    tier.url.clone(),
                ]
            });
            print::text(&print::table(&columns, rows.collect()))
        }
        TierCommand::Show(args) => {
            let tier = access::client(&args.view.server)?.ask(TIER_SHOW, &args.name)?;
            if args.view.json {
                return print::json(&tier);
            }
            print::text(&lines(&tier).join("\n"))
        }
        TierCommand::Check(args) => check(args),
        TierCommand::Remove(args) => {
            access::client(&args.server)?.ask(TIER_REMOVE, &args.name)?;
            print::text(&format!("tier {} is removed", args.name))
        }
    }
}

fn state(tier: &TierView) -> &'static str {
    match tier.working {
        true => "ok",
        false => "FAILS",
    }
}

fn lines(tier: &TierView) -> Vec<String> {
    let credentials = match &tier.credentials_file {
        Some(file) => format!("from {file}"),
        None => "from the server's environment, or the machine's identity".to_owned(),
    };
    let mut lines = vec![
        format!("name             {}", tier.name),
        format!("url              {}", tier.url),
        format!("credentials      {credentials}"),
        format!("state            {}", state(tier)),
        format!(
            "data             {} in {} objects, of which {} is in use",
            format_size(tier.bytes),
            tier.objects,
            format_size(tier.live_bytes)
        ),
        format!(
            "saves            {} on disks, with parity and copies",
            format_size(tier.saved_bytes)
        ),
        match (tier.month_cents, &tier.price_date) {
            (Some(cents), Some(date)) => format!(
                "costs            {}.{:02} USD a month for the bytes, at the list price of {date}",
                cents / 100,
                cents % 100
            ),
            _ => "costs            unknown".to_owned(),
        },
        format!(
            "to be deleted    {} objects, and those of {} deleted volumes",
            tier.unused_objects, tier.deleted_volumes
        ),
        format!(
            "requests         {} reads ({}), {} writes ({}), {} deletions; {} failed, {} answers were invalid",
            tier.reads,
            format_size(tier.read_bytes),
            tier.writes,
            format_size(tier.written_bytes),
            tier.deletes,
            tier.errors,
            tier.wrong
        ),
    ];
    if let Some(problem) = &tier.problem {
        lines.push(format!("problem          {}", print::name(problem)));
    }
    for volume in &tier.volumes {
        use cairn_config::Tiering;
        let cooling = match volume.tiering {
            Tiering::Auto | Tiering::SnapshotOnly => {
                format!(" after {} days", volume.cooling_days)
            }
            Tiering::None | Tiering::All => String::new(),
        };
        let what = match volume.serving {
            true => format!(
                "{} in {} objects",
                format_size(volume.bytes),
                volume.objects
            ),
            false => match &volume.owner {
                Some(node) => format!("ask its owner, node {node}"),
                None => "not served".to_owned(),
            },
        };
        let back = match volume.tiering == Tiering::None && volume.objects > 0 {
            true => ", being promoted back",
            false => "",
        };
        let files = of_files(&volume.files, volume.min_size, volume.min_age);
        lines.push(format!(
            "volume           {}: {}{cooling}{files}, {what}{back}",
            volume.name, volume.tiering
        ));
        if let Some(problem) = &volume.problem {
            lines.push(format!("                 {}", print::name(problem)));
        }
    }
    lines
}

/// The files whose data is offloaded, unless it is all files.
pub fn of_files(files: &FilePatterns, min_size: SizeLimit, min_age: MinAge) -> String {
    let mut text = String::new();
    if !files.is_any() {
        text.push_str(&format!(", files {files}"));
    }
    if min_size != SizeLimit::None {
        text.push_str(&format!(", of {min_size} or more"));
    }
    if min_age != MinAge::default() {
        text.push_str(&format!(", not changed for {min_age}"));
    }
    text
}

fn check(args: &TierShowArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let (mut bytes, mut problems) = (0_u64, Vec::new());
    let mut next = Some(TierCheck::default());
    while let Some(from) = next.take() {
        let checked = client.tell(TIER_CHECK, &args.name, &from)?;
        bytes = bytes.saturating_add(checked.bytes);
        problems.extend(checked.problems);
        problems.truncate(PROBLEMS_SHOWN_MAX);
        next = checked.next;
    }
    if args.view.json {
        print::json(&serde_json::json!({ "bytes": bytes, "problems": problems }))?;
    } else {
        print::text(&format!("{} are intact", format_size(bytes)))?;
        for problem in &problems {
            print::text(&print::name(problem))?;
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "tier {} does not return all data that was written to it",
            args.name
        ))),
    }
}
