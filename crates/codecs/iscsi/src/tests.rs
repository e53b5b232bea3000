//! PDUs, keys and CHAP, as tables.

use proptest::prelude::*;

use super::*;

#[test]
fn serial_numbers_wrap() {
    assert!(serial_before(1, 2));
    assert!(!serial_before(2, 2));
    assert!(!serial_before(3, 2));
    assert!(serial_before(u32::MAX, 0));
    assert!(!serial_before(0, u32::MAX));
}

#[test]
fn headers_are_taken_or_refused() {
    let mut bytes = [0; HEADER_LEN_BYTES];
    bytes[0] = 0x41;
    bytes[1] = 0xa1;
    bytes[4..8].copy_from_slice(&[2, 0, 1, 0]);
    bytes[9] = 3;
    bytes[16..20].copy_from_slice(&7_u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&4096_u32.to_be_bytes());
    bytes[32] = 0x2a;
    let header = Header(bytes);
    assert_eq!((header.opcode(), header.is_immediate()), (1, true));
    assert_eq!(
        (header.additional_len_bytes(), header.data_len_bytes()),
        (8, 256)
    );
    match header.request() {
        Ok(Request::Command(command)) => {
            assert!(command.is_final && command.writes && !command.reads);
            assert_eq!(command.lun, [0, 3, 0, 0, 0, 0, 0, 0]);
            assert_eq!(
                (command.tag, command.expected_len_bytes, command.cdb[0]),
                (7, 4096, 0x2a)
            );
        }
        other => panic!("{other:?}"),
    }
    bytes[1] = 0x07;
    assert_eq!(Header(bytes).request(), Err(PduError::Field(1)));
    bytes[0] = 0x3e;
    assert_eq!(Header(bytes).request(), Err(PduError::Opcode(0x3e)));
}

#[test]
fn a_reply_says_its_numbers() {
    let reply = Reply::Response {
        tag: 9,
        response: 0,
        status: 2,
        data_count: 3,
        residual: Residual::of(100, 60),
    };
    let header = reply.header(20, 5, 6, 7);
    assert_eq!(header[..4], [0x21, 0x82, 0, 2]);
    assert_eq!(header[4..8], [0, 0, 0, 20]);
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!(
        [word(16), word(24), word(28), word(32), word(36), word(44)],
        [9, 5, 6, 7, 3, 40]
    );
    let ask = Reply::NopIn {
        lun: [0; 8],
        tag: UNTAGGED,
        target_tag: 1,
    };
    assert!(reply.has_status() && !ask.has_status());
}

#[test]
fn text_is_taken_or_refused() {
    let cases: &[(&[u8], Result<usize, KeyError>)] = &[
        (b"", Ok(0)),
        (b"a=b\0c=\0", Ok(2)),
        (b"a=b=c", Ok(1)),
        (b"a=b\0\0\0", Ok(1)),
        (b"ab\0", Err(KeyError::NoKey)),
        (b"=b\0", Err(KeyError::NoKey)),
        (b"a=1\0a=2\0", Err(KeyError::Twice("a".to_owned()))),
        (b"a=\xff\0", Err(KeyError::Malformed)),
    ];
    for (text, want) in cases {
        assert_eq!(
            &Keys::parse(text).map(|keys| keys.iter().count()),
            want,
            "{text:?}"
        );
    }
    let text = b"a=b=c\0d=\0";
    assert_eq!(Keys::parse(text).unwrap().encode(), text);
}

#[test]
fn names_are_those_of_the_standard() {
    let long = format!("iqn.{}", "a".repeat(219));
    for (name, want) in [
        ("iqn.1993-08.org.debian:01:abc", true),
        ("eui.02004567a425678d", true),
        ("naa.52004567ba64678d", true),
        (long.as_str(), true),
        (&format!("{long}a"), false),
        ("iqn.", false),
        ("iqn.A", false),
        ("IQN.a", false),
        ("iqn.a b", false),
        ("host", false),
    ] {
        assert_eq!(is_iscsi_name(name), want, "{name}");
    }
}

#[test]
fn keys_are_agreed_on() {
    let cases: &[(&str, &str, Offer)] = &[
        (
            "HeaderDigest",
            "CRC32C,None",
            Offer::Answer("CRC32C".into()),
        ),
        ("HeaderDigest", "X,None", Offer::Answer("None".into())),
        ("DataDigest", "X", Offer::Answer("Reject".into())),
        ("MaxConnections", "4", Offer::Answer("4".into())),
        ("MaxConnections", "65535", Offer::Answer("8".into())),
        ("MaxConnections", "0", Offer::Invalid),
        (
            "MaxBurstLength",
            "16776192",
            Offer::Answer(BURST_LEN_BYTES_MAX.to_string()),
        ),
        ("MaxBurstLength", "511", Offer::Invalid),
        ("FirstBurstLength", "0x1000", Offer::Answer("4096".into())),
        ("MaxRecvDataSegmentLength", "512", Offer::Silent),
        ("MaxRecvDataSegmentLength", "16777216", Offer::Invalid),
        ("InitialR2T", "No", Offer::Answer("No".into())),
        ("InitialR2T", "no", Offer::Invalid),
        ("DefaultTime2Retain", "20", Offer::Answer("0".into())),
        ("ErrorRecoveryLevel", "2", Offer::Answer("0".into())),
        ("X-com.example", "1", Offer::Answer("NotUnderstood".into())),
    ];
    for (key, value, want) in cases {
        assert_eq!(
            &Negotiated::default().take(key, value, false),
            want,
            "{key}={value}"
        );
    }
    let irrelevant = Negotiated::default().take("MaxBurstLength", "512", true);
    assert_eq!(irrelevant, Offer::Answer("Irrelevant".into()));
}

#[test]
fn answers_to_challenges_are_those_of_the_hashes() {
    // printf '\1secretchallenge' | md5sum, sha1sum, sha256sum, openssl dgst -sha3-256
    let cases = [
        (ChapHash::Md5, 16),
        (ChapHash::Sha1, 20),
        (ChapHash::Sha256, 32),
        (ChapHash::Sha3_256, 32),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (hash, len) in cases {
        let answer = chap_response(hash, 1, b"secret", b"challenge");
        assert_eq!((answer.len(), hash.len_bytes()), (len, len));
        assert_eq!(ChapHash::numbered(&hash.number().to_string()), Some(hash));
        assert_ne!(answer, chap_response(hash, 2, b"secret", b"challenge"));
        assert!(seen.insert(answer));
    }
    assert_eq!(ChapHash::first_of("99,7,5"), Some(ChapHash::Sha256));
    assert_eq!(ChapHash::first_of("1"), None);
}

#[test]
fn binary_values_are_taken_or_refused() {
    for (text, want) in [
        ("0x0aF", Some(vec![0x00, 0xaf])),
        ("0x00af", Some(vec![0x00, 0xaf])),
        ("0bAQI=", Some(vec![1, 2])),
        ("0x", Some(vec![])),
        ("0xg1", None),
        ("12", None),
        ("", None),
        ("0x01020304050607", None),
        ("é", None),
    ] {
        assert_eq!(binary_of_text(text, 6), want, "{text}");
    }
    assert_eq!(text_of_binary(&[1, 0xab]), "0x01ab");
}

/// A decoded header encodes to the same bytes.
fn check_both_ways(header: Header) {
    if let Ok(request) = header.request() {
        let again = request.header(header.data_len_bytes(), header.is_immediate(), 7);
        assert_eq!(Header(again).request(), Ok(request));
        assert_eq!(Header(again).data_len_bytes(), header.data_len_bytes());
        assert_eq!(Header(again).is_immediate(), header.is_immediate());
    }
    if let Ok((reply, numbers)) = header.reply() {
        let again = Header(reply.header(0, numbers.status, numbers.expected_command, 9));
        assert_eq!(again.reply().map(|(reply, _)| reply), Ok(reply));
        assert_eq!(again.reply().map(|(_, numbers)| numbers.max_command), Ok(9));
    }
}

#[test]
fn each_opcode_is_said_and_understood() {
    let mut understood = 0;
    for opcode in 0..=0x7f_u8 {
        for flags in [0x80, 0x81, 0xc6, 0x42] {
            let mut bytes: [u8; HEADER_LEN_BYTES] = std::array::from_fn(|index| index as u8);
            bytes[..4].copy_from_slice(&[opcode, flags, 2, 0]);
            check_both_ways(Header(bytes));
            understood += usize::from(Header(bytes).reply().is_ok());
        }
    }
    // Ten opcodes of targets, with and without the bit that says nothing there, with each of the flags.
    assert_eq!(understood, 10 * 2 * 4);
}

proptest! {
    /// Nothing that comes makes a decoder panic.
    #[test]
    fn any_bytes_are_taken_or_refused(header: [u8; 32], rest: [u8; 16], text in prop::collection::vec(any::<u8>(), 0..300), words in ".{0,40}") {
        let mut bytes = [0; HEADER_LEN_BYTES];
        bytes[..32].copy_from_slice(&header);
        bytes[32..].copy_from_slice(&rest);
        check_both_ways(Header(bytes));
        if let Ok(keys) = Keys::parse(&text) {
            let mut negotiated = Negotiated::default();
            for (key, value) in keys.iter() {
                let _ = negotiated.take(key, value, false);
            }
        }
        let _ = binary_of_text(&words, 64);
    }
}
