//! `cairn cluster rotate-ca`.
//!
//! Owns: following a rotation, how it looks. Must not know: what nodes do for it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cairn_admin::cluster::{
    AuthorityPhase, AuthorityRotation, AuthorityView, CLUSTER_AUTHORITY, CLUSTER_AUTHORITY_ROTATE,
};
use clap::Args;

use crate::args::ViewArgs;
use crate::exit::Failure;
use crate::{access, audit, print};

#[derive(Debug, Args)]
pub struct ClusterRotateArgs {
    /// Only show the progress, or the time of the last rotation
    #[arg(long)]
    pub status: bool,
    #[command(flatten)]
    pub view: ViewArgs,
}

const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The node that is asked may be one that starts again.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Of a fingerprint, for people.
const PRINT_LEN_CHARS: usize = 16;

pub fn rotate(args: &ClusterRotateArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let is_json = args.view.json;
    if args.status {
        let view = client.ask(CLUSTER_AUTHORITY, &())?;
        return match is_json {
            true => print::json(&view),
            false => print::text(&status(&view).join("\n")),
        };
    }
    let mut view = client.ask(CLUSTER_AUTHORITY_ROTATE, &())?;
    let mut shown = BTreeSet::new();
    let mut heard = Instant::now();
    loop {
        let rotation = view.rotation.as_ref();
        for line in rotation.map_or_else(Vec::new, lines) {
            if !is_json && !shown.contains(&line) {
                print::text(&line)?;
            }
            shown.insert(line);
        }
        if rotation.is_none_or(|rotation| rotation.phase == AuthorityPhase::Done) {
            return match is_json {
                true => print::json(&view),
                false => Ok(()),
            };
        }
        std::thread::sleep(LOOK_AGAIN);
        match client.ask(CLUSTER_AUTHORITY, &()) {
            Ok(next) => {
                view = next;
                heard = Instant::now();
            }
            Err(error) if heard.elapsed() >= SILENT_MAX => {
                return Err(Failure::from(error).hint(
                    "the nodes continue by themselves: ask another node (--server) with `cairn cluster rotate-ca --status`",
                ));
            }
            Err(_) => {}
        }
    }
}

fn short(fingerprint: &str) -> &str {
    fingerprint.get(..PRINT_LEN_CHARS).unwrap_or(fingerprint)
}

/// What all nodes do now, and what keeps them.
fn lines(rotation: &AuthorityRotation) -> Vec<String> {
    let new = rotation.new.as_deref().map_or("", short);
    let old = short(&rotation.old);
    let mut lines = vec![match rotation.phase {
        AuthorityPhase::Make => "make      a node makes the new authority".to_owned(),
        AuthorityPhase::Trust => {
            format!("trust     all nodes begin to trust {new} beside {old}")
        }
        AuthorityPhase::Renew => format!("renew     all nodes get certificates from {new}"),
        AuthorityPhase::Drop => format!("drop      all nodes drop {old}, with its key"),
        AuthorityPhase::Done => {
            format!("done      all certificates are from {new}; older tickets are invalid")
        }
    }];
    for wait in rotation.waits_for.iter().filter(|wait| wait.away) {
        let node = print::name(&wait.node);
        lines.push(format!(
            "waits     for {node}, which {} and is away: start it, or remove it (`cairn node drain {node}`, then `cairn node remove \
             {node}`)",
            print::name(&wait.what)
        ));
    }
    if let Some(problem) = &rotation.problem {
        lines.push(format!("problem   {}", print::name(problem)));
    }
    lines
}

fn status(view: &AuthorityView) -> Vec<String> {
    let mut all = vec![format!("authority {}", view.authority)];
    let Some(rotation) = &view.rotation else {
        all.push("rotation  never".to_owned());
        return all;
    };
    all.push(match rotation.ended_seconds {
        Some(ended) => format!("rotation  done at {}", audit::time(ended)),
        None => format!("rotation  begun at {}", audit::time(rotation.begun_seconds)),
    });
    all.extend(lines(rotation));
    let waits = rotation.waits_for.iter().filter(|wait| !wait.away);
    all.extend(waits.map(|wait| {
        let (node, what) = (print::name(&wait.node), print::name(&wait.what));
        format!("waits     for {node}, which {what}")
    }));
    all
}

#[cfg(test)]
mod tests {
    use cairn_admin::cluster::AuthorityWait;

    use super::*;

    fn view(phase: AuthorityPhase) -> AuthorityView {
        let wait = |node: &str, away: bool| AuthorityWait {
            node: node.to_owned(),
            away,
            what: "has to trust the new authority".to_owned(),
        };
        AuthorityView {
            authority: "a".repeat(64),
            rotation: Some(AuthorityRotation {
                phase,
                begun_seconds: 0,
                ended_seconds: None,
                old: "a".repeat(64),
                new: Some("b".repeat(64)),
                waits_for: vec![wait("two", false), wait("three", true)],
                problem: Some("no\u{1b}[2J".to_owned()),
            }),
        }
    }

    #[test]
    fn a_node_that_is_away_is_named_with_what_to_do() {
        let shown = status(&view(AuthorityPhase::Trust)).join("\n");
        for part in [
            "trust     all nodes begin to trust bbbbbbbbbbbbbbbb beside aaaaaaaaaaaaaaaa\n",
            "for three, which has to trust the new authority and is away: start it, or remove it (`cairn node drain three`",
            "for two, which has to trust the new authority",
            "begun at 1970-01-01",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
        let never = AuthorityView {
            authority: "é".to_owned(),
            rotation: None,
        };
        assert_eq!(status(&never).len(), 2);
    }

    #[test]
    fn each_phase_has_a_line_of_its_own() {
        let phases = [
            AuthorityPhase::Make,
            AuthorityPhase::Trust,
            AuthorityPhase::Renew,
            AuthorityPhase::Drop,
            AuthorityPhase::Done,
        ];
        let first = |phase| view(phase).rotation.map(|it| lines(&it)[0].clone());
        let all: BTreeSet<_> = phases.map(first).into();
        assert_eq!(all.len(), phases.len());
    }
}
