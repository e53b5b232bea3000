//! What a node that joins asks, and what it is answered; and the certificates in the answer.
//!
//! The input is read as frames, and as the JSON of one.

use cairn_trust::frame::{Answer, Ask, FRAME_LEN_BYTES_MAX, Message, decode, encode};
use cairn_trust::{
    Authority, CertificateRequest, IssueAnswer, IssueAsk, Membership, NodeCertificate,
};

const LEN_LEN_BYTES: usize = 4;
const KEY_PEM: &str = include_str!("../seeds/cluster-ca.key");

/// Tries one input.
pub fn run(input: &[u8]) {
    both(input);
    if let Ok(len) = u32::try_from(input.len()) {
        let mut frame = len.to_be_bytes().to_vec();
        frame.extend_from_slice(input);
        both(&frame);
    }
    // What a node keeps is written by the node alone, but a disk may change it.
    if let Ok(membership) = serde_json::from_slice::<Membership>(input) {
        let _ = membership.check();
    }
}

fn both(input: &[u8]) {
    if let Some(ask) = frame::<Ask>(input) {
        let _ = ask.certificate_request.parse::<CertificateRequest>();
    }
    if let Some(Answer::Admitted {
        authority_pem,
        second_authority_pem,
        certificate_pem,
        ..
    }) = frame::<Answer>(input)
    {
        let _ = Authority::load_certificate(&authority_pem);
        let _ = second_authority_pem.map(|pem| Authority::load_certificate(&pem));
        let _ = NodeCertificate::load(&certificate_pem, KEY_PEM);
    }
    frame::<IssueAsk>(input);
    frame::<IssueAnswer>(input);
}

fn frame<T: Message + PartialEq + std::fmt::Debug>(input: &[u8]) -> Option<T> {
    let (message, rest) = decode::<T>(input).ok()?;
    let used = input.len() - rest.len();
    assert!((LEN_LEN_BYTES..=LEN_LEN_BYTES + FRAME_LEN_BYTES_MAX).contains(&used));
    // Written again it may be longer: numbers, escapes.
    if let Ok(again) = encode(&message) {
        let (decoded, rest) = decode::<T>(&again).expect("our own");
        assert!(rest.is_empty());
        assert!(same(&decoded, &message), "{decoded:?} {message:?}");
    }
    Some(message)
}

/// Fractions in what both ends may add lose their last digit.
fn same<T: Message + PartialEq>(one: &T, other: &T) -> bool {
    let text = |message: &T| serde_json::to_vec(message).unwrap_or_default();
    one == other || super::is_same_json(&text(one), &text(other))
}
