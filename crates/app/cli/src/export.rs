//! `cairn export ...`.

use cairn_admin::api::{ExportSet, ExportView};
use cairn_config::{Access, ExportRule};

use crate::access;
use crate::args::{ExportRemoveArgs, ExportSetArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align, Column};

pub fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.exports()?;
    if args.json {
        return print::json(&list);
    }
    print::text(&export_table(&list.exports))
}

pub fn set(args: &ExportSetArgs) -> Result<(), Failure> {
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
    let export = access::client(&args.view.server)?.export_set(&args.volume, &set)?;
    shown(export, &args.view)
}

pub fn remove(args: &ExportRemoveArgs) -> Result<(), Failure> {
    let export = access::client(&args.view.server)?.export_remove(&args.volume, &args.client)?;
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
