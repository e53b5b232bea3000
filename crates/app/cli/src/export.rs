//! `cairn export ...`.

use cairn_admin::exports::{
    Clients, EXPORT_LIST, EXPORT_REMOVE, EXPORT_SET, ExportSet, ExportView,
};
use cairn_config::{ANONYMOUS_ID_DEFAULT, Access, ClientNet, ExportRule, Squash, VolumeName};
use clap::{Args, Subcommand};

use crate::access;
use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::print::{self, Align, Column};

#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// List who may mount which volume
    List(ViewArgs),
    /// Let clients mount a volume, or change their rights
    Set(ExportSetArgs),
    /// Stop clients from mounting a volume
    Remove(ExportRemoveArgs),
}

#[derive(Debug, Args)]
pub struct ExportSetArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// An address or a network such as 10.0.0.0/8; repeat the flag for more. If several rules match a client, the narrowest
    /// one applies
    #[arg(long, required = true, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    /// Allow reading only
    #[arg(long, conflicts_with = "rw")]
    pub ro: bool,
    /// Allow reading and writing (the default)
    #[arg(long)]
    pub rw: bool,
    /// Which users become the anonymous user: root, all or none
    #[arg(long, default_value = "root")]
    pub squash: Squash,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anonuid: u32,
    /// The anonymous group
    #[arg(long, value_name = "GID", default_value_t = ANONYMOUS_ID_DEFAULT)]
    pub anongid: u32,
    /// Refuse clients whose port is above 1023
    #[arg(long)]
    pub require_reserved_port: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ExportRemoveArgs {
    /// The name of the volume
    pub volume: VolumeName,
    /// The client or network whose rule is removed; repeat the flag for more [default: all rules of the volume]
    #[arg(long, value_name = "CIDR")]
    pub client: Vec<ClientNet>,
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Does what is asked about exports.
pub fn export(command: &ExportCommand) -> Result<(), Failure> {
    match command {
        ExportCommand::List(args) => list(args),
        ExportCommand::Set(args) => set(args),
        ExportCommand::Remove(args) => remove(args),
    }
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.ask(EXPORT_LIST, &())?;
    if args.json {
        return print::json(&list);
    }
    print::text(&export_table(&list.exports))
}

fn set(args: &ExportSetArgs) -> Result<(), Failure> {
    let rules = args.client.iter().map(|client| ExportRule {
        client: *client,
        access: if args.ro {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
        squash: args.squash,
        anonymous_uid: args.anonuid,
        anonymous_gid: args.anongid,
        require_reserved_port: args.require_reserved_port,
    });
    let set = ExportSet {
        rules: rules.collect(),
    };
    let export = access::client(&args.view.server)?.tell(EXPORT_SET, &args.volume, &set)?;
    shown(export, &args.view)
}

fn remove(args: &ExportRemoveArgs) -> Result<(), Failure> {
    let export = access::client(&args.view.server)?.ask(
        EXPORT_REMOVE,
        &(args.volume.clone(), Clients(args.client.clone())),
    )?;
    shown(export, &args.view)
}

fn shown(export: ExportView, view: &ViewArgs) -> Result<(), Failure> {
    if view.json {
        return print::json(&export);
    }
    print::text(&export_table(&[export]))
}

fn export_table(exports: &[ExportView]) -> String {
    const COLUMNS: &[Column] = &[
        ("EXPORT", Align::Left),
        ("CLIENT", Align::Left),
        ("ACCESS", Align::Left),
        ("SQUASH", Align::Left),
        ("ANONYMOUS", Align::Left),
        ("PORT", Align::Left),
    ];
    let mut rows = Vec::new();
    for export in exports {
        let path = format!("/{}", export.volume);
        if export.rules.is_empty() {
            rows.push(vec![
                path.clone(),
                "nobody".to_owned(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        for rule in &export.rules {
            rows.push(vec![
                path.clone(),
                rule.client.to_string(),
                rule.access.to_string(),
                rule.squash.to_string(),
                format!("{}:{}", rule.anonymous_uid, rule.anonymous_gid),
                if rule.require_reserved_port {
                    "reserved"
                } else {
                    "any"
                }
                .to_owned(),
            ]);
        }
    }
    print::table(COLUMNS, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_without_rules_are_listed_too() {
        let export = |name: &str, rules| ExportView {
            volume: name.parse().unwrap(),
            rules,
        };
        let text = export_table(&[
            export("main", ExportRule::this_machine()),
            export("hidden", Vec::new()),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("/main    127.0.0.0/8  rw"), "{text}");
        assert!(lines[3].starts_with("/hidden  nobody"), "{text}");
    }
}
