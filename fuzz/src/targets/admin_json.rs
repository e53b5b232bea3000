//! What the admin API reads: JSON bodies, query strings, the token; and what its client reads.
//!
//! The first byte says which of them the rest is.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use cairn_admin::query::{QUERY_PAIRS_MAX, Query};
use cairn_admin::token::Token;
use cairn_admin::{api, classes, live, policies, quotas, s3, san, snapshots};

const KEYS: &[&str] = &["client", "force"];
const TOKEN: &str = "0123456789abcdef";

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => requests(rest),
        1 => answers(rest),
        2 => query(rest),
        _ => token(rest),
    }
}

fn requests(body: &[u8]) {
    json::<api::DiskAdd>(body);
    json::<api::DiskChange>(body);
    json::<api::RebuildRate>(body);
    json::<api::ScrubStart>(body);
    json::<api::VolumeCreate>(body);
    json::<api::VolumeChange>(body);
    json::<api::ExportSet>(body);
    json::<api::VolumeAddressSet>(body);
    json::<api::NodeChange>(body);
    json::<api::NodeReplace>(body);
    json::<api::VolumeMove>(body);
    json::<api::TicketCreate>(body);
    json::<api::VolumeCloneCreate>(body);
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
    json::<live::SessionCreate>(body);
    json::<quotas::QuotaSet>(body);
}

fn answers(body: &[u8]) {
    json::<api::ErrorBody>(body);
    json::<api::Status>(body);
    json::<api::DiskList>(body);
    json::<api::DiskView>(body);
    json::<api::RebuildView>(body);
    json::<api::ScrubReport>(body);
    json::<api::ScrubView>(body);
    json::<api::VolumeView>(body);
    json::<api::VolumeList>(body);
    json::<api::ExportView>(body);
    json::<api::ExportList>(body);
    json::<api::ReadyFile>(body);
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
