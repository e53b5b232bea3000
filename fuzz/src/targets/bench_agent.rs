//! What a benchmark's coordinator and its agents say to each other, in JSON.
//!
//! The first byte says which message the rest is.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::targets::is_same_json;

use cairn_bench::agent::protocol::{Go, Hello, Open, Opened, Order, Refusal, State};

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else {
        return;
    };
    match kind % 7 {
        0 => json::<Hello>(body),
        1 => json::<Open>(body),
        2 => json::<Opened>(body),
        3 => json::<Order>(body),
        4 => json::<State>(body),
        5 => json::<Go>(body),
        _ => json::<Refusal>(body),
    }
}

/// What is read and written can be read again, and is then written the same.
fn json<T: Serialize + DeserializeOwned + Debug>(body: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(body) else {
        return;
    };
    let first = serde_json::to_string(&message).expect("what was read can be written");
    let again: T = serde_json::from_str(&first).expect("what was written can be read");
    let second = serde_json::to_string(&again).expect("what was read can be written");
    assert!(is_same_json(first.as_bytes(), second.as_bytes()));
}
