//! What the admin API reads: JSON bodies, query strings, the token, cookies of sessions, name and password of the scheme Basic; what its
//! client reads; and the lines of the log of changes.
//!
//! The first byte says which of them the rest is.

use std::fmt::Debug;

use cairn_admin::audit::{AuditEntry, AuditQuery};
use cairn_admin::entries::{ENTRY_LIMIT_MAX, Entry, LogRange};
use cairn_admin::events::{EventEntry, EventQuery};
use cairn_admin::query::{QUERY_PAIRS_MAX, Query};
use cairn_admin::session::Sessions;
use cairn_admin::token::Token;
use cairn_admin::{
    api, audit, classes, cluster, disks, exports, policies, quotas, rebuild, s3, san, scrub,
    snapshots, tiers, users, volumes,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const KEYS: &[&str] = &["client", "force"];
const TOKEN: &str = "0123456789abcdef";

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 8 {
        0 => requests(rest),
        1 => answers(rest),
        2 => query(rest),
        3 => token(rest),
        4 => {
            entry_lines::<AuditEntry>(rest);
            entry_lines::<EventEntry>(rest);
        }
        5 => {
            audit_query(rest);
            event_query(rest);
        }
        6 => session(rest),
        _ => basic(rest),
    }
}

fn requests(body: &[u8]) {
    json::<disks::DiskAdd>(body);
    json::<disks::DiskChange>(body);
    json::<rebuild::RebuildRate>(body);
    json::<scrub::ScrubStart>(body);
    json::<volumes::VolumeCreate>(body);
    json::<volumes::VolumeChange>(body);
    json::<exports::ExportSet>(body);
    json::<volumes::VolumeAddressSet>(body);
    json::<cluster::NodeChange>(body);
    json::<cluster::NodeReplace>(body);
    json::<volumes::VolumeMove>(body);
    json::<cluster::TicketCreate>(body);
    json::<volumes::VolumeCloneCreate>(body);
    json::<snapshots::SnapshotCreate>(body);
    json::<snapshots::GroupSnapshotCreate>(body);
    json::<snapshots::SnapshotSet>(body);
    json::<snapshots::SnapshotRestore>(body);
    json::<snapshots::VolumeRestore>(body);
    json::<snapshots::SnapshotDiffAsk>(body);
    json::<snapshots::CloneCreate>(body);
    json::<snapshots::SchedulesSet>(body);
    json::<policies::PolicySet>(body);
    json::<policies::ApplyStart>(body);
    json::<san::LunCreate>(body);
    json::<san::LunSet>(body);
    json::<san::LunClone>(body);
    json::<san::LunRestore>(body);
    json::<san::LunMapSet>(body);
    json::<san::IgroupSet>(body);
    // It has a secret, which is never shown.
    let _ = serde_json::from_slice::<san::InitiatorSet>(body);
    json::<classes::ClassCreate>(body);
    json::<classes::ClassSet>(body);
    json::<classes::PartList>(body);
    json::<s3::BucketCreate>(body);
    json::<s3::BucketSet>(body);
    json::<s3::AccessKeyCreate>(body);
    // Two ways, of which a body is one.
    json::<users::SessionCreate>(body);
    json::<users::UserCreate>(body);
    json::<users::UserSet>(body);
    json::<users::PasswordChange>(body);
    json::<quotas::QuotaSet>(body);
    json::<tiers::TierAdd>(body);
    json::<tiers::TierCheck>(body);
}

fn answers(body: &[u8]) {
    json::<api::ErrorBody>(body);
    json::<api::Status>(body);
    json::<disks::DiskList>(body);
    json::<disks::DiskView>(body);
    json::<rebuild::RebuildView>(body);
    json::<scrub::ScrubReport>(body);
    json::<scrub::ScrubView>(body);
    json::<volumes::VolumeView>(body);
    json::<volumes::VolumeList>(body);
    json::<exports::ExportView>(body);
    json::<exports::ExportList>(body);
    json::<api::ReadyFile>(body);
    json::<tiers::TierList>(body);
    json::<tiers::TierChecked>(body);
    json::<users::UserList>(body);
    json::<users::SessionOpen>(body);
    json::<audit::AuditPage>(body);
}

/// What is read, written and read again is the same.
fn json<T: Serialize + DeserializeOwned + Debug + PartialEq>(body: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(body) {
        let again = serde_json::to_vec(&value).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<T>(&again).ok(), Some(value));
    }
}

fn query(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Ok(query) = Query::parse(Some(text), KEYS) {
        let count: usize = KEYS.iter().map(|key| query.values(key).count()).sum();
        assert!(count <= QUERY_PAIRS_MAX);
        assert_eq!(
            count,
            text.split('&').filter(|pair| !pair.is_empty()).count()
        );
    }
}

/// What is read is written as lines that are read again.
fn entry_lines<E: Entry + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let (entries, wrong) = E::of_lines(bytes);
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty()).count() as u64;
    assert_eq!(entries.len() as u64 + wrong, lines);
    let is_short = |entry: &&E| entry.to_line().len() <= E::LINE_LEN_BYTES_MAX;
    let short: Vec<E> = entries.iter().filter(is_short).cloned().collect();
    let written: String = short.iter().map(E::to_line).collect();
    assert_eq!(E::of_lines(written.as_bytes()), (short, 0));
}

const NOW_SECONDS: i64 = 1_800_000_000;

/// What was asked is asked again as it was meant, and pages are as long as they may be.
fn audit_query(text: &[u8]) {
    let of = |text: &str| {
        let query = Query::parse(Some(text), AuditQuery::KEYS).ok()?;
        AuditQuery::of(&query, NOW_SECONDS).ok()
    };
    let Some(asked) = std::str::from_utf8(text).ok().and_then(of) else {
        return;
    };
    let again = of(&asked.to_query()).expect("what was read can be asked");
    check_again(&asked, &again, &asked.part);
}

/// The same of events.
fn event_query(text: &[u8]) {
    let of = |text: &str| {
        let query = Query::parse(Some(text), EventQuery::KEYS).ok()?;
        EventQuery::of(&query, NOW_SECONDS).ok()
    };
    let Some(asked) = std::str::from_utf8(text).ok().and_then(of) else {
        return;
    };
    let again = of(&asked.to_query()).expect("what was read can be asked");
    check_again(&asked, &again, &asked.part);
}

fn check_again<Q: PartialEq + std::fmt::Debug>(asked: &Q, again: &Q, part: &LogRange) {
    assert!((1..=ENTRY_LIMIT_MAX).contains(&part.limit));
    // Times before 1970 are relative ones.
    let is_absolute = |seconds: Option<i64>| seconds.is_none_or(|seconds| seconds > 0);
    if is_absolute(part.from_seconds) && is_absolute(part.to_seconds) {
        assert_eq!(again, asked);
    }
}

/// No text is a session that was not signed.
fn session(text: &[u8]) {
    let sessions = Sessions::new(&Token::parse(TOKEN).expect("it is a token"));
    if let Ok(text) = std::str::from_utf8(text) {
        assert_eq!(sessions.find(text, 1_800_000_000), None);
    }
}

fn basic(header: &[u8]) {
    if let Some((user, password)) = cairn_admin::basic(header) {
        assert!(!user.contains(':'));
        assert!(user.len() + password.as_str().len() < header.len());
    }
}

fn token(text: &[u8]) {
    let ours = Token::parse(TOKEN).expect("it is a token");
    if ours.is_in(text) {
        assert!(text.ends_with(TOKEN.as_bytes()));
    }
    let Some(given) = std::str::from_utf8(text)
        .ok()
        .and_then(|text| Token::parse(text).ok())
    else {
        return;
    };
    assert!(given.is_in(format!("Bearer {}", given.as_str()).as_bytes()));
    assert_eq!(
        given.is_in(b"Bearer 0123456789abcdef"),
        given.as_str() == TOKEN
    );
}
