//! A module for each target. Its `run` takes any bytes, and fails by a panic.

pub mod admin_json;
pub mod bench_agent;
pub mod bench_import;
pub mod bench_result;
pub mod bucket_policy;
pub mod config_file;
pub mod dns_question;
pub mod file_handle;
pub mod forward_stream;
pub mod history_file;
pub mod iscsi_nodes;
pub mod iscsi_pdu;
pub mod join_frame;
pub mod meta_format;
pub mod meta_state;
pub mod nfs3_reply;
pub mod nfs4_compound;
pub mod nfs_url;
pub mod oidc_token;
pub mod plan_files;
pub mod pool_file;
pub mod rpc_call;
pub mod rpc_record;
pub mod rpc_stream;
pub mod s3_document;
pub mod s3_form;
pub mod s3_signed;
pub mod scrub_file;
pub mod scsi_command;
pub mod segment_record;
pub mod shard_footer;
pub mod ticket_text;
pub mod wire_frame;

use cairn_base::{crc32c, crc32c_append};
use cairn_formats::copies::{self, COPY_ALIGN_BYTES};
use serde_json::Value;

/// How far a fraction may be from what was written, of itself: reading rounds its last digit.
const FRACTION_ERROR_MAX: f64 = 1e-12;

/// Whether two texts of JSON say the same.
pub(crate) fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    fn same(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len()
                    && one.iter().zip(other).all(|(one, other)| same(one, other))
            }
            (Value::Object(one), Value::Object(other)) => {
                let in_both = |(key, one): (&String, &Value)| {
                    other.get(key).is_some_and(|other| same(one, other))
                };
                one.len() == other.len() && one.iter().all(in_both)
            }
            (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
                let (one, other) = (one.as_f64().unwrap_or(0.0), other.as_f64().unwrap_or(1.0));
                (one - other).abs() <= FRACTION_ERROR_MAX * one.abs().max(other.abs())
            }
            _ => one == other,
        }
    }
    let read = |text| serde_json::from_slice::<Value>(text).ok();
    match (read(one), read(other)) {
        (Some(one), Some(other)) => same(&one, &other),
        _ => false,
    }
}

/// A copy in a text file (pool, scrub): a head that is right, and `json` with the padding that it may have.
pub(crate) fn copy_of(name: &str, json: &[u8]) -> Vec<u8> {
    const CHECKSUM_LEN_BYTES: usize = 8;
    let len_bytes = name.len() + CHECKSUM_LEN_BYTES + 1 + json.len();
    let mut body = json.to_vec();
    body.resize(
        json.len() + len_bytes.next_multiple_of(COPY_ALIGN_BYTES) - len_bytes,
        b' ',
    );
    let checksum = crc32c_append(crc32c(name.as_bytes()), &body);
    let mut copy = format!("{name}{checksum:08x}\n").into_bytes();
    copy.append(&mut body);
    copy
}

/// A file of two copies, the second of which is damaged.
pub(crate) fn file_of(copy: &[u8]) -> Vec<u8> {
    let mut file = copies::twice(copy.to_vec());
    if let Some(last) = file.last_mut() {
        *last ^= 1;
    }
    file
}

macro_rules! all {
    ($($target:ident),* $(,)?) => {
        /// Every target by its name.
        pub const ALL: &[(&str, fn(&[u8]))] = &[$((stringify!($target), $target::run)),*];
    };
}

all![
    admin_json,
    bench_agent,
    bench_import,
    bench_result,
    bucket_policy,
    config_file,
    dns_question,
    file_handle,
    forward_stream,
    history_file,
    iscsi_nodes,
    iscsi_pdu,
    join_frame,
    meta_format,
    meta_state,
    nfs3_reply,
    nfs4_compound,
    nfs_url,
    oidc_token,
    plan_files,
    pool_file,
    rpc_call,
    rpc_record,
    rpc_stream,
    s3_document,
    s3_form,
    s3_signed,
    scrub_file,
    scsi_command,
    segment_record,
    shard_footer,
    ticket_text,
    wire_frame,
];
