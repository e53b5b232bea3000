//! Attributes in the order of their bits, and those that are refused.

use super::*;

const ALL: Bitmap = {
    let mut all = Bitmap::EMPTY;
    let mut index = 0;
    while index < Attr::ALL.len() {
        all = all.with(Attr::ALL[index].bit());
        index += 1;
    }
    all
};

#[test]
fn attributes_have_the_numbers_of_the_rfc() {
    assert_eq!(ALL.iter().collect::<Vec<_>>(), {
        let mut all: Vec<u32> = (0..=80).collect();
        all.push(82);
        all
    });
    for attr in Attr::ALL {
        assert_eq!(Attr::from_bit(attr.bit()), Some(*attr));
    }
    for bit in [81, 83, 255, u32::MAX] {
        assert_eq!(Attr::from_bit(bit), None);
    }
    // RFC 8881, section 5.6; the column "Acc" of tables 4 and 5.
    let set_only = Attr::SETTABLE.minus(&Attr::GETTABLE);
    assert_eq!(set_only, Bitmap::of(&[48, 54, 63, 70, 72, 74]));
    let both = Attr::SETTABLE.and(&Attr::GETTABLE);
    let want = [4, 12, 14, 25, 32, 33, 36, 37, 46, 49, 50, 58, 59, 73, 80];
    assert_eq!(both, Bitmap::of(&want));
    assert_eq!(Attr::SETTABLE.or(&Attr::GETTABLE), ALL);
}

#[test]
fn what_linux_asks_for_is_golden() {
    let values = [
        AttrValue::SupportedAttrs(Bitmap::of(&[0, 33, 82])),
        AttrValue::Type(FileType::Regular),
        AttrValue::Change(0x1_0000_0002),
        AttrValue::Size(5),
        AttrValue::Fsid(Fsid { major: 7, minor: 0 }),
        AttrValue::RdattrError(Err(ErrorStatus::Stale)),
        AttrValue::FileHandle(Opaque(b"fh")),
        AttrValue::FileId(9),
        AttrValue::Mode(0o644),
        AttrValue::NumLinks(1),
        AttrValue::Owner("1000".into()),
        AttrValue::OwnerGroup("100".into()),
        AttrValue::RawDev(DeviceNumber { major: 0, minor: 0 }),
        AttrValue::SpaceUsed(4096),
        AttrValue::TimeAccess(NfsTime {
            seconds: -1,
            nanos: 2,
        }),
        AttrValue::MountedOnFileId(9),
        AttrValue::XattrSupport(true),
    ];
    let bytes = wire(&[
        Words(&[3, 0x0018_091b, 0x0080_a23a, 0x0004_0000, 136]),
        Words(&[3, 1, 2, 0x0004_0000]),
        Words(&[1, 1, 2, 0, 5, 0, 7, 0, 0, 70, 2]),
        Bytes(b"fh"),
        Words(&[0, 9, 0o644, 1, 4]),
        Bytes(b"1000"),
        Words(&[3]),
        Bytes(b"100"),
        Words(&[0, 0, 0, 4096, 0xffff_ffff, 0xffff_ffff, 2, 0, 9, 1]),
    ]);
    let mut written = Vec::new();
    let mask = FattrBuf::new(&values).as_fattr().mask;
    encode_fattr(&mut Writer::new(&mut written), &mask, |attr| {
        let mut values = values.iter();
        values.find(|value| value.attr() == attr).unwrap().clone()
    });
    assert_eq!(written, bytes);
    assert_eq!(written, encode(&FattrBuf::new(&values).as_fattr()));
    let fattr: Fattr<'_> = Reader::new(&bytes).get().unwrap();
    let read: Result<Vec<_>, _> = fattr.values().collect();
    assert_eq!(read.unwrap(), values);
}

/// An `fattr4` with this mask and these words.
fn fattr<'a>(bits: &[u32], words: &[u32], buf: &'a mut Vec<u8>) -> Fattr<'a> {
    let mut to = Writer::new(buf);
    words.iter().for_each(|word| to.u32(*word));
    Fattr {
        mask: Bitmap::of(bits),
        encoded: Opaque(buf),
    }
}

/// A name, the bits of a mask, the words of its values, and how many there are or why they are refused.
type Row = (
    &'static str,
    &'static [u32],
    &'static [u32],
    Result<usize, ErrorStatus>,
);

#[test]
fn attributes_to_set_are_taken_or_refused() {
    use ErrorStatus::{AttrNotSupp, BadXdr, Inval};
    let supported = ALL.minus(&Attr::mask(&[Attr::SecLabel, Attr::Acl]));
    let exclusive = Attr::mask(&[Attr::Mode, Attr::Size]);
    let exclusive = SetIn::ExclusiveCreate {
        allowed: &exclusive,
    };
    let cases: &[(SetIn<'_>, Row)] = &[
        (SetIn::SetAttr, ("none", &[], &[], Ok(0))),
        (
            SetIn::SetAttr,
            ("size and mode", &[4, 33], &[0, 1, 7], Ok(2)),
        ),
        (SetIn::SetAttr, ("server time", &[48, 54], &[0, 0], Ok(2))),
        (SetIn::SetAttr, ("client time", &[54], &[1, 0, 1, 2], Ok(1))),
        (
            SetIn::SetAttr,
            ("unknown bit", &[4, 81], &[0, 1, 7], Err(AttrNotSupp)),
        ),
        (SetIn::SetAttr, ("far bit", &[255], &[], Err(AttrNotSupp))),
        (
            SetIn::SetAttr,
            ("not supported", &[12], &[0], Err(AttrNotSupp)),
        ),
        (
            SetIn::Create,
            ("label", &[80], &[0, 0, 0], Err(AttrNotSupp)),
        ),
        (SetIn::SetAttr, ("read-only", &[20], &[0, 1], Err(Inval))),
        (
            SetIn::SetAttr,
            ("read-only time", &[53], &[0, 1, 2], Err(Inval)),
        ),
        // A missing attribute is reported before a read-only one.
        (
            SetIn::SetAttr,
            ("both", &[20, 81], &[0, 1], Err(AttrNotSupp)),
        ),
        (SetIn::SetAttr, ("masked mode", &[74], &[1, 1], Ok(1))),
        (
            SetIn::SetAttr,
            ("two modes", &[33, 74], &[1, 1, 1], Err(Inval)),
        ),
        (
            SetIn::Create,
            ("masked in create", &[74], &[1, 1], Err(Inval)),
        ),
        (exclusive, ("exclusive", &[33], &[1], Ok(1))),
        (exclusive, ("exclusive owner", &[36], &[1, 0], Err(Inval))),
        (SetIn::SetAttr, ("missing", &[4, 33], &[0, 1], Err(BadXdr))),
        (SetIn::SetAttr, ("too much", &[33], &[1, 2], Err(BadXdr))),
        (SetIn::SetAttr, ("no mask", &[], &[1], Err(BadXdr))),
        (SetIn::SetAttr, ("bad boolean", &[14], &[2], Err(BadXdr))),
        (SetIn::SetAttr, ("bad how", &[48], &[2], Err(BadXdr))),
        (
            SetIn::SetAttr,
            ("long owner", &[36], &[1 << 20], Err(BadXdr)),
        ),
    ];
    for (place, (name, bits, words, want)) in cases {
        let mut buf = Vec::new();
        let fattr = fattr(bits, words, &mut buf);
        let got = fattr.to_set(&supported, *place);
        let got = got.map(Iterator::count).map_err(|fault| fault.status());
        assert_eq!(got, *want, "{name}");
    }
}

#[test]
fn attributes_to_compare_are_taken_or_refused() {
    use ErrorStatus::{AttrNotSupp, BadXdr, Inval};
    let supported = ALL.minus(&Attr::mask(&[Attr::Hidden]));
    let cases: &[Row] = &[
        ("change", &[3], &[0, 1], Ok(1)),
        ("handle and fsid", &[8, 19], &[0, 1, 0, 2, 0], Ok(2)),
        ("unknown bit", &[81], &[], Err(AttrNotSupp)),
        ("not supported", &[25], &[0], Err(AttrNotSupp)),
        ("error", &[11], &[0], Err(Inval)),
        ("set-only", &[54], &[0], Err(Inval)),
        ("missing", &[3], &[0], Err(BadXdr)),
    ];
    for (name, bits, words, want) in cases {
        let mut buf = Vec::new();
        let fattr = fattr(bits, words, &mut buf);
        let got = fattr.to_compare(&supported);
        let got = got.map(Iterator::count).map_err(|fault| fault.status());
        assert_eq!(got, *want, "{name}");
    }
}

#[test]
fn asking_for_what_can_only_be_set_is_refused() {
    assert_eq!(check_requested(&Attr::GETTABLE), Ok(()));
    assert_eq!(check_requested(&Bitmap::of(&[81, 255])), Ok(()));
    for bit in [48, 54, 63, 70, 72, 74] {
        let fault = check_requested(&Bitmap::of(&[0, bit])).unwrap_err();
        assert_eq!(fault.status(), ErrorStatus::Inval);
    }
}

proptest! {
    #[test]
    fn every_attribute_round_trips(choices in choices()) {
        for attr in Attr::ALL {
            let value = source(&choices, attr.bit()).attr_value(*attr);
            prop_assert_eq!(value.attr(), *attr);
            let bytes = encode(&value);
            let mut from = Reader::new(&bytes);
            prop_assert_eq!(AttrValue::decode(*attr, &mut from), Ok(value));
            prop_assert_eq!(from.finish(), Ok(()));
            for len in 0..bytes.len() {
                let cut = AttrValue::decode(*attr, &mut Reader::new(&bytes[..len]));
                prop_assert_eq!(cut, Err(Truncated));
            }
        }
    }

    /// A list that is cut or longer than its mask is refused, and reading it ends.
    #[test]
    fn attribute_lists_round_trip(choices in choices(), more in 1usize..9) {
        let values = Source::new(choices).attr_values(&ALL);
        let buf = FattrBuf::new(&values);
        let fattr = buf.as_fattr();
        let read: Result<Vec<_>, _> = fattr.values().collect();
        prop_assert_eq!(read, Ok(values));
        for len in 0..fattr.encoded.len() {
            let cut = Fattr { mask: fattr.mask, encoded: Opaque(&fattr.encoded[..len]) };
            let read: Result<Vec<_>, _> = cut.values().collect();
            prop_assert_eq!(read, Err(AttrFault::Malformed(Truncated)));
        }
        let long = [&*fattr.encoded, &vec![0; more]].concat();
        let long = Fattr { mask: fattr.mask, encoded: Opaque(&long) };
        let read: Result<Vec<_>, _> = long.values().collect();
        let trailing = DecodeError::Trailing { len_bytes: more };
        prop_assert_eq!(read, Err(AttrFault::Malformed(trailing)));
    }
}
