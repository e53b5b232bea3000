//! `cairn key`: master keys of encrypted volumes.

use cairn_admin::keys::{
    KeyRotationView, MASTER_KEY_LIST, MASTER_KEY_ROTATE, MasterKeysView, VOLUME_KEY_ERASE,
};
use cairn_admin::volumes::VOLUME_SHOW;
use cairn_base::real::OsEntropy;
use cairn_config::VolumeName;
use cairn_keys::MasterKey;
use clap::Subcommand;

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::volume::VolumeEraseKeyArgs;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Print a new master key: `(umask 077; cairn key generate >/etc/cairn/master.key)`
    ///
    /// A master key is 32 random bytes in base64. Keep a copy away from the disks: without the master key, volumes whose keys it wraps
    /// are unreadable. `cairn serve --master-key-file PATH` uses it.
    Generate,
    /// List the server's master keys, and the volumes whose keys each one wraps
    List(ViewArgs),
    /// Wrap the keys of all volumes with the first master key: put a new one in the first line of the file, then `cairn key rotate`
    ///
    /// Rotation reads and writes no data. Once `cairn key list` shows no volumes for the earlier master key, you can delete that key.
    Rotate(ViewArgs),
}

pub fn key(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::Generate => print::text(&MasterKey::generate(&OsEntropy)),
        KeyCommand::List(args) => list(args),
        KeyCommand::Rotate(args) => rotate(args),
    }
}

/// `cairn volume erase-key`.
pub fn erase(args: &VolumeEraseKeyArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if !args.yes {
        let volume = client.ask(VOLUME_SHOW, &args.name)?;
        let what = "This erases the key of";
        crate::volume::ask_for_name(&volume, what)?;
    }
    client.ask(VOLUME_KEY_ERASE, &args.name)?;
    if args.view.json {
        return print::json(&serde_json::json!({ "erased": args.name }));
    }
    print::text(&format!(
        "the key of volume {0} is erased: the volume is unreadable for ever\nfree its space with cairn volume delete {0}",
        args.name
    ))
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let keys = access::client(&args.server)?.ask(MASTER_KEY_LIST, &())?;
    if args.json {
        return print::json(&keys);
    }
    print::text(&shown(&keys))
}

fn rotate(args: &ViewArgs) -> Result<(), Failure> {
    let rotation = access::client(&args.server)?.ask(MASTER_KEY_ROTATE, &())?;
    match args.json {
        true => print::json(&rotation)?,
        false => print::text(&told(&rotation))?,
    }
    match rotation.failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(
            "the keys of some volumes are still wrapped with the earlier master key",
        )),
    }
}

fn told(rotation: &KeyRotationView) -> String {
    let mut lines = Vec::new();
    if rotation.wrapped.is_empty() && rotation.failed.is_empty() && !rotation.secrets {
        lines.push("all keys are already wrapped with the first master key".to_owned());
    }
    for volume in &rotation.wrapped {
        lines.push(format!("volume {volume}: key rewrapped"));
    }
    if rotation.secrets {
        lines.push("secrets: key rewrapped".to_owned());
    }
    for failure in &rotation.failed {
        lines.push(format!(
            "volume {}: NOT REWRAPPED: {}",
            failure.volume, failure.why
        ));
    }
    lines.push(shown(&rotation.keys));
    lines.join("\n")
}

fn shown(keys: &MasterKeysView) -> String {
    let mut lines = Vec::new();
    match &keys.source {
        None => lines.push(
            "the server has no master key; set --master-key-file or --master-key-command"
                .to_owned(),
        ),
        Some(source) => lines.push(format!("from {source}")),
    }
    if let Some(problem) = &keys.problem {
        lines.push(format!("THE MASTER KEYS CANNOT BE READ NOW: {problem}"));
    }
    if !keys.keys.is_empty() {
        let columns: [Column; 4] = [
            ("MASTER KEY", Align::Left),
            ("STATE", Align::Left),
            ("SECRETS", Align::Left),
            ("VOLUMES", Align::Left),
        ];
        let rows = keys.keys.iter().map(|key| {
            let state = match (key.present, key.current) {
                (false, _) => "MISSING",
                (true, true) => "in use",
                (true, false) => "earlier",
            };
            let volumes: Vec<&str> = key.volumes.iter().map(VolumeName::as_str).collect();
            let secrets = if key.secrets { "yes" } else { "no" };
            vec![
                key.id.clone(),
                state.to_owned(),
                secrets.to_owned(),
                volumes.join(" "),
            ]
        });
        lines.push(print::table(&columns, rows.collect()));
    }
    lines.join("\n")
}
