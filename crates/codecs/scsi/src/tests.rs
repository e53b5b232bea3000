//! Commands and lists, as a table of inputs that are taken and inputs that are refused.

use proptest::prelude::*;

use super::*;

fn cdb(bytes: &[u8]) -> [u8; CDB_LEN_BYTES] {
    let mut cdb = [0; CDB_LEN_BYTES];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

#[test]
fn commands_are_taken_or_refused() {
    let blocks = |lba, count| Blocks { lba, count };
    let read = |lba, count, fua| {
        Ok(Command::Read {
            blocks: blocks(lba, count),
            fua,
        })
    };
    let cases: &[(&str, &[u8], Result<Command, Sense>)] = &[
        (
            "READ(6)",
            &[0x08, 0x1f, 0xff, 0xff, 7],
            read(0x1f_ffff, 7, false),
        ),
        (
            "READ(6) of 0 is of 256",
            &[0x08, 0, 0, 1, 0],
            read(1, 256, false),
        ),
        (
            "READ(10), DPO and FUA",
            &[0x28, 0x18, 0, 0, 1, 0, 0, 0x10, 0],
            read(0x100, 0x1000, true),
        ),
        (
            "READ(10) with protection",
            &[0x28, 0x20],
            Err(Sense::cdb_field(1, Some(7))),
        ),
        (
            "READ(16), the largest",
            &[
                0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
            ],
            read(u64::MAX, u32::MAX.into(), false),
        ),
        (
            "unknown",
            &[0xff],
            Err(Sense::illegal(code::INVALID_OPCODE)),
        ),
        (
            "INQUIRY of a page without EVPD",
            &[0x12, 0, 0x83, 0, 255],
            Err(Sense::cdb_field(2, None)),
        ),
        (
            "INQUIRY",
            &[0x12, 1, 0x83, 1, 0],
            Ok(Command::Inquiry {
                page: Some(0x83),
                allocation: 256,
            }),
        ),
        (
            "WRITE SAME(10) with NDOB",
            &[0x41, 0x01],
            Err(Sense::cdb_field(1, Some(0))),
        ),
        (
            "WRITE SAME(16), unmap without data",
            &[0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9],
            Ok(Command::WriteSame {
                blocks: blocks(5, 9),
                unmap: true,
                anchor: false,
                no_data: true,
            }),
        ),
        (
            "an unknown service action",
            &[0x9e, 0x1f],
            Err(Sense::cdb_field(1, Some(4))),
        ),
    ];
    for (name, bytes, want) in cases {
        assert_eq!(parse(&cdb(bytes)), *want, "{name}");
    }
}

#[test]
fn every_command_that_is_told_of_is_one_that_is_taken() {
    let all = supported_opcodes(false);
    for one in all[4..].chunks(8) {
        let mut command = [0; CDB_LEN_BYTES];
        command[0] = one[0];
        if one[5] & 1 != 0 {
            command[1] = one[3];
        }
        if matches!(one[0], 0x15 | 0x55) {
            command[1] = 0x10;
        }
        let taken = parse(&command);
        assert!(taken.is_ok(), "{:02x} {:02x}: {taken:?}", one[0], one[3]);
    }
}

/// All commands that are told of, each as the command that has its opcode and service action and nothing else, with its usage map.
fn told_of() -> Vec<([u8; CDB_LEN_BYTES], Vec<u8>)> {
    let all = supported_opcodes(false);
    let one = |told: &[u8]| {
        let asked = OpcodesAsked {
            with_timeouts: false,
            options: 3,
            opcode: told[0],
            service_action: u16_at(told, 2).unwrap(),
        };
        let mut command = [0; CDB_LEN_BYTES];
        command[0] = told[0];
        if told[5] & 1 != 0 {
            command[1] = told[3];
        }
        (command, supported_opcode(&asked).unwrap()[4..].to_vec())
    };
    all[4..].chunks(8).map(one).collect()
}

/// Of each command: a bit of its usage map is one that makes a difference, alone or beside another; a bit that is not in it
/// makes none, or is refused (SPC-4, section 6.35.3).
#[test]
fn usage_maps_tell_which_bits_are_looked_at() {
    // The cache keeps what it thinks best. MODE SENSE says that the bit may be set, and so do the maps (SBC-3, section 5.8).
    const DPO: u8 = 0x10;
    let has_dpo = |opcode: u8| {
        matches!(
            opcode,
            0x28 | 0x2a | 0x2e | 0x2f | 0x88..=0x8b | 0x8e | 0x8f | 0xa8 | 0xaa | 0xae | 0xaf
        )
    };
    let bits = |len: usize| (1..len).flat_map(|at| (0..8).map(move |bit| (at, 1_u8 << bit)));
    for (command, usage) in told_of() {
        let (opcode, has_action) = (command[0], command[1] != 0);
        // Service action 0 has the field as well.
        let has_field = has_action || matches!(opcode, 0x5e | 0x5f | 0x83 | 0x84);
        let is_action = |at: usize, bit: u8| has_field && at == 1 && bit < 0x20;
        let mut bases = vec![command];
        for (at, bit) in bits(usage.len()) {
            if !is_action(at, bit) && usage[at] & bit != 0 {
                let mut base = command;
                base[at] |= bit;
                bases.push(base);
            }
        }
        for (at, bit) in bits(usage.len()) {
            if is_action(at, bit) {
                assert_eq!(usage[at] & bit, command[at] & bit, "{command:02x?}");
                continue;
            }
            let both = bases.iter().map(|base| {
                let mut other = *base;
                other[at] ^= bit;
                (parse(base), parse(&other))
            });
            let both: Vec<_> = both.collect();
            if usage[at] & bit == 0 {
                let is_heeded = both
                    .iter()
                    .any(|(one, other)| one.is_ok() && other.is_ok() && one != other);
                assert!(!is_heeded, "{command:02x?}: byte {at}, bit {bit:02x}");
            } else if !(has_dpo(opcode) && at == 1 && bit == DPO) {
                let is_heeded = both.iter().any(|(one, other)| one != other);
                assert!(is_heeded, "{command:02x?}: byte {at}, bit {bit:02x}");
            }
        }
    }
}

/// As standard INQUIRY says: NORMACA is 0 (SAM-5, section 5.2).
#[test]
fn no_command_may_ask_for_auto_contingent_allegiance() {
    assert_eq!(
        standard_inquiry(b"0001", true, Alua { explicit: false })[3] & 0x20,
        0
    );
    for (mut command, usage) in told_of() {
        if matches!(command[0], 0x15 | 0x55) {
            command[1] = 0x10;
        }
        let at = usage.len() - 1;
        // The bits of linked commands are obsolete, and ignored.
        command[at] = 0x03;
        assert!(parse(&command).is_ok(), "{command:02x?}");
        command[at] = 0x04;
        let refused = Err(Sense::cdb_field(at as u16, Some(2)));
        assert_eq!(parse(&command), refused, "{command:02x?}");
    }
    // It is told first that there is no such command.
    let unknown = [0xff; CDB_LEN_BYTES];
    assert_eq!(parse(&unknown), Err(Sense::illegal(code::INVALID_OPCODE)));
}

/// The designators of a page or a descriptor: code set with protocol, type with association, name.
fn designators(mut bytes: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [set, kind, _, len, rest @ ..] = bytes {
        let (name, rest) = rest.split_at(usize::from(*len));
        found.push((*set, *kind, name.to_vec()));
        bytes = rest;
    }
    found
}

#[test]
fn a_logical_unit_tells_its_names_and_ports() {
    let mut naa = [0; NAA_LEN_BYTES];
    naa[0] = 0x6c;
    let identity = Identity {
        revision: *b"0.1 ",
        naa,
        serial: "3000000000000001".to_owned(),
        target_name: "iqn.a:b".to_owned(),
        port: PortGroup { port: 3, group: 3 },
    };
    let page = device_identification(&identity);
    assert_eq!(u16_at(&page, 2), Some(page.len() as u16 - 4));
    let want = vec![
        (0x01, 0x03, naa.to_vec()),
        (0x02, 0x01, b"CAIRN   3000000000000001".to_vec()),
        (0x51, 0x94, vec![0, 0, 0, 3]),
        (0x51, 0x95, vec![0, 0, 0, 3]),
        (0x53, 0x98, b"iqn.a:b,t,0x0003\0\0\0\0".to_vec()),
        (0x53, 0xa8, b"iqn.a:b\0".to_vec()),
    ];
    assert_eq!(designators(&page[4..]), want);

    let page = scsi_ports("iqn.a:b", &[1, 0x102]);
    assert_eq!(
        (page[1], u16_at(&page, 2)),
        (0x88, Some(page.len() as u16 - 4))
    );
    let mut rest = &page[4..];
    for (port, name) in [(1, "iqn.a:b,t,0x0001"), (0x102, "iqn.a:b,t,0x0102")] {
        assert_eq!((u16_at(rest, 2), u16_at(rest, 6)), (Some(port), Some(0)));
        let len = usize::from(u16_at(rest, 10).unwrap());
        let mut want = name.as_bytes().to_vec();
        want.resize(20, 0);
        assert_eq!(designators(&rest[12..12 + len]), [(0x53, 0x98, want)]);
        rest = &rest[12 + len..];
    }
    assert!(rest.is_empty());

    // All mode pages with their subpages, shared.
    assert_eq!(mode_page_policy(), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
    assert!(VPD_PAGES.is_sorted());
}

#[test]
fn luns_are_written_as_they_are_read() {
    for lun in [0, 1, 255, 256, 16383] {
        assert_eq!(lun_of_bytes(&lun_bytes(lun)), Some(lun));
    }
    assert_eq!(lun_of_bytes(&[0xc1, 1, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(lun_of_bytes(&[0, 1, 0, 0, 0, 0, 0, 1]), None);
}

#[test]
fn unmap_lists_are_taken_or_refused() {
    let list = |descriptors: &[(u64, u32)], cut: usize| {
        let mut bytes = vec![0; 8];
        for (lba, count) in descriptors {
            bytes.extend(lba.to_be_bytes());
            bytes.extend(count.to_be_bytes());
            bytes.extend([0; 4]);
        }
        let len = (bytes.len() - 8) as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes.truncate(bytes.len() - cut);
        bytes
    };
    let two = [(1, 2), (u64::MAX, u32::MAX)];
    let ranges = |count| {
        two[..count]
            .iter()
            .map(|(lba, count)| UnmapRange {
                lba: *lba,
                count: *count,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(parse_unmap(&[]), Ok(Vec::new()));
    assert_eq!(parse_unmap(&list(&two, 0)), Ok(ranges(2)));
    assert_eq!(parse_unmap(&list(&two, 1)), Ok(ranges(1)));
    assert_eq!(
        parse_unmap(&[0; 7]),
        Err(Sense::illegal(code::PARAMETER_LIST_LENGTH))
    );
    let many = vec![(0, 1); UNMAP_DESCRIPTOR_COUNT_MAX];
    assert_eq!(parse_unmap(&list(&many, 0)).unwrap().len(), many.len());
    let more = vec![(0, 1); UNMAP_DESCRIPTOR_COUNT_MAX + 1];
    assert_eq!(parse_unmap(&list(&more, 0)), Err(Sense::list_field(2)));
}

#[test]
fn sense_data_says_what_is_wrong_in_both_formats() {
    let sense = Sense::cdb_field(2, Some(5)).with_information(7);
    let fixed = sense.fixed();
    assert_eq!(fixed[..4], [0xf0, 0, 5, 0]);
    assert_eq!(fixed[6..8], [7, 10]);
    assert_eq!(fixed[12..18], [0x24, 0, 0, 0xcd, 0, 2]);
    let descriptor = sense.descriptor();
    assert_eq!(descriptor[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 20]);
    assert_eq!(descriptor.len(), 28);
    // What the fixed format cannot hold is left out there.
    assert_eq!(
        Sense::illegal(code::LBA_OUT_OF_RANGE)
            .with_information(1 << 40)
            .fixed()[0],
        0x70
    );
}

fn state() -> ModeState {
    ModeState {
        write_cache: false,
        software_protected: false,
        read_only: false,
        descriptor_sense: false,
        tells_thresholds: false,
        threshold: Threshold::default(),
        threshold_default: Threshold {
            is_enabled: true,
            free_sets: 0x0102_0304,
        },
        block_count: 1 << 33,
        block_len_bytes: 512,
    }
}

#[test]
fn mode_pages_are_changed_where_they_can_be() {
    let asked = ModeAsked {
        no_block_descriptor: false,
        long_lba: false,
        control: 0,
        page: 0x0a,
        subpage: 0,
        is_long: false,
    };
    let mut list = mode_sense(&asked, &state()).unwrap();
    assert_eq!(usize::from(list[0]) + 1, list.len());
    list[0] = 0;
    assert_eq!(mode_select(&list, false, &state()), Ok(state()));
    let at = list.len() - 12;
    list[at + 4] |= 0x08;
    assert!(
        mode_select(&list, false, &state())
            .unwrap()
            .software_protected
    );
    list[at + 5] |= 0x01;
    assert_eq!(
        mode_select(&list, false, &state()),
        Err(Sense::list_field(at as u16 + 5))
    );
    let unknown = ModeAsked {
        page: 0x3e,
        ..asked
    };
    assert!(mode_sense(&unknown, &state()).is_err());
}

/// The page of thresholds is a subpage. It is asked for alone, with all subpages of its page, or with all there are.
#[test]
fn thresholds_are_told_and_set() {
    let asked = |page, subpage, control| ModeAsked {
        no_block_descriptor: true,
        long_lba: false,
        control,
        page,
        subpage,
        is_long: true,
    };
    let pages =
        |page, subpage| mode_sense(&asked(page, subpage, 0), &state()).map(|list| list.len() - 8);
    let cases = [
        ("alone", 0x1c, 0x02, Ok(24)),
        ("its page", 0x1c, 0x00, Ok(12)),
        ("both", 0x1c, 0xff, Ok(36)),
        ("all pages", 0x3f, 0x00, Ok(12 + 20 + 12 + 12)),
        ("all subpages", 0x3f, 0xff, Ok(12 + 20 + 12 + 12 + 24)),
        (
            "no such subpage",
            0x1c,
            0x01,
            Err(Sense::cdb_field(3, None)),
        ),
        (
            "no such page",
            0x1d,
            0x00,
            Err(Sense::cdb_field(2, Some(5))),
        ),
    ];
    for (name, page, subpage, want) in cases {
        assert_eq!(pages(page, subpage), want, "{name}");
    }
    let default = mode_sense(&asked(0x1c, 0x02, 2), &state()).unwrap();
    assert_eq!(default[8..12], [0x5c, 0x02, 0, 20]);
    assert_eq!(default[24..], [0x80, 0x01, 0, 0, 1, 2, 3, 4]);
    let recovery = mode_sense(&asked(0x01, 0, 2), &state()).unwrap();
    assert_eq!(recovery[8 + 7], 0x80);

    let mut list = mode_sense(&asked(0x3f, 0xff, 0), &state()).unwrap();
    list[..2].copy_from_slice(&[0, 0]);
    assert_eq!(mode_select(&list, true, &state()), Ok(state()));
    let at = list.len() - 8;
    list[8 + 7] = 0x80;
    list[at] = 0x80;
    list[at + 4..].copy_from_slice(&7_u32.to_be_bytes());
    let want = ModeState {
        tells_thresholds: true,
        threshold: Threshold {
            is_enabled: true,
            free_sets: 7,
        },
        ..state()
    };
    assert_eq!(mode_select(&list, true, &state()), Ok(want));
    // Of used space there is no threshold, nor one of percents, nor one as space grows.
    for (index, value) in [(at + 1, 0x02), (at, 0x88), (at, 0x81)] {
        let mut other = list.clone();
        other[index] = value;
        let refused = mode_select(&other, true, &state());
        assert_eq!(refused, Err(Sense::list_field(index as u16)));
    }
    for cut in 1..24 {
        let short = &list[..list.len() - cut];
        assert!(mode_select(short, true, &state()).is_err(), "{cut}");
    }
}

#[test]
fn log_pages_begin_with_the_parameter_that_is_asked_for() {
    let space = SpaceSeen {
        free_sets: 5,
        used_sets: 6,
    };
    let log = |page, pointer| log_sense(page, 0, pointer, space);
    let used = [0, 2, 0x03, 8, 0, 0, 0, 6, 0x01, 0, 0, 0];
    let all = log(0x0c, 0).unwrap();
    assert_eq!(all[..4], [0x0c, 0, 0, 24]);
    assert_eq!(all[4..16], [0, 1, 0x03, 8, 0, 0, 0, 5, 0x02, 0, 0, 0]);
    assert_eq!(all[16..], used);
    assert_eq!(
        log(0x0c, 2).unwrap(),
        [&[0x0c, 0, 0, 12][..], &used].concat()
    );
    assert_eq!(log(0x0c, 3), Err(Sense::cdb_field(5, None)));
    assert_eq!(log(0x00, 0).unwrap()[4..], [0x00, 0x0c, 0x0d, 0x2f]);
}

proptest! {
    /// Nothing that comes makes a decoder panic.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), command: [u8; 16], is_long: bool) {
        let _ = parse(&command);
        let _ = parse_unmap(&bytes);
        let _ = parse_persistent_out(&bytes);
        let _ = parse_copy_list(&bytes);
        let _ = parse_set_target_port_groups(&bytes);
        let _ = parse_populate_token(&bytes);
        let _ = parse_write_using_token(&bytes);
        let _ = mode_select(&bytes, is_long, &state());
    }
}

#[test]
fn what_an_initiator_says_is_what_is_taken() {
    let blocks = Blocks {
        lba: 1 << 40,
        count: 70_000,
    };
    let (unmap_cdb, list) = unmap(7, 9);
    let cases = [
        (test_unit_ready(), Command::TestUnitReady),
        (read_16(blocks), Command::Read { blocks, fua: false }),
        (write_16(blocks, true), Command::Write { blocks, fua: true }),
        (
            synchronize_cache_16(),
            Command::SynchronizeCache {
                blocks: Blocks { lba: 0, count: 0 },
            },
        ),
        (
            ask_capacity_16(32),
            Command::ReadCapacity16 { allocation: 32 },
        ),
        (
            inquiry_of(0xb0, 64),
            Command::Inquiry {
                page: Some(0xb0),
                allocation: 64,
            },
        ),
        (
            unmap_cdb,
            Command::Unmap {
                anchor: false,
                list_len_bytes: 24,
            },
        ),
    ];
    for (cdb, want) in cases {
        assert_eq!(parse(&cdb), Ok(want));
    }
    let range = UnmapRange { lba: 7, count: 9 };
    assert_eq!(parse_unmap(&list), Ok(vec![range]));

    let sense = Sense::illegal(code::LBA_OUT_OF_RANGE).with_information(3);
    let seen = Some(SenseSeen {
        key: 5,
        code: code::LBA_OUT_OF_RANGE,
    });
    assert_eq!(parse_sense(&sense.fixed()), seen);
    assert_eq!(parse_sense(&sense.descriptor()), seen);
    assert_eq!(parse_sense(&sense.fixed()[..13]), None);
    assert_eq!(parse_sense(&[0x7f; 18]), None);

    let capacity = Capacity {
        block_count: 1000,
        block_len_bytes: 4096,
        is_thin: true,
    };
    assert_eq!(
        parse_capacity_16(&read_capacity_16(1000, 4096, 0)),
        Some(capacity)
    );
    assert_eq!(parse_capacity_16(&[0xff; 32]), None);

    let limits = Limits {
        block_len_bytes: 512,
        transfer_blocks: 1,
        optimal_blocks: 2,
        granularity_blocks: 3,
        compare_and_write_blocks: 4,
        unmap_blocks: 5,
        unmap_descriptors: 6,
        write_same_blocks: 7,
    };
    let seen = LimitsSeen {
        transfer_blocks: 1,
        unmap_blocks: 5,
    };
    let page = block_limits(&limits);
    assert_eq!(parse_block_limits(&page), Some(seen));
    assert_eq!(parse_block_limits(&page[..11]), None);
}

fn ranges_of(ranges: &[(u64, u32)]) -> Vec<u8> {
    let range = |(lba, count): &(u64, u32)| {
        let mut bytes = lba.to_be_bytes().to_vec();
        bytes.extend(count.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    };
    ranges.iter().flat_map(range).collect()
}

/// POPULATE TOKEN's list: `flags` and `kind` as they are in it.
fn populate(flags: u8, kind: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
    let ranges = ranges_of(ranges);
    let mut list = (14 + ranges.len() as u16).to_be_bytes().to_vec();
    list.extend([flags, 0, 0, 0, 0, 60]);
    list.extend(kind.to_be_bytes());
    list.extend([0; 2]);
    list.extend((ranges.len() as u16).to_be_bytes());
    list.extend(ranges);
    list
}

#[test]
fn tokens_are_asked_for_or_refused() {
    let blocks = |lba, count| Blocks { lba, count };
    let many: Vec<(u64, u32)> = (0..65).map(|index| (index * 8, 8)).collect();
    let mut cut = populate(0, 0, &[(0, 8), (8, 8)]);
    cut.truncate(16 + 31);
    let mut short = populate(0, 0, &[(0, 8)]);
    short[1] = 0x1d;
    let wrong = |list: Vec<u8>, sense| (list, Err(sense));
    type Asked = Result<Vec<Blocks>, Sense>;
    let cases: [(Vec<u8>, Asked); 12] = [
        (populate(0, 0, &[(7, 9)]), Ok(vec![blocks(7, 9)])),
        (
            populate(0x03, rod_type::POINT_IN_TIME, &[(8, 8), (0, 8)]),
            Ok(vec![blocks(8, 8), blocks(0, 8)]),
        ),
        (
            populate(0x02, rod_type::ANY_POINT_IN_TIME, &many[..64]),
            Ok(many[..64]
                .iter()
                .map(|(lba, count)| blocks(*lba, (*count).into()))
                .collect()),
        ),
        // A cut-off range is left out.
        (cut, Ok(vec![blocks(0, 8)])),
        // Nothing of a range of no blocks overlaps.
        (
            populate(0, 0, &[(0, 8), (4, 0)]),
            Ok(vec![blocks(0, 8), blocks(4, 0)]),
        ),
        wrong(populate(0x02, 0x0001_0000, &[(0, 8)]), Sense::list_field(8)),
        wrong(
            populate(0, 0, &many),
            Sense::illegal(code::TOO_MANY_SEGMENTS),
        ),
        wrong(populate(0, 0, &[(0, 8), (7, 1)]), Sense::list_field(16)),
        wrong(
            populate(0, 0, &[(u64::MAX, 8), (u64::MAX - 1, 8)]),
            Sense::list_field(16),
        ),
        wrong(populate(0, 0, &[]), Sense::list_field(0)),
        wrong(short, Sense::list_field(0)),
        wrong(vec![0; 15], Sense::illegal(code::PARAMETER_LIST_LENGTH)),
    ];
    for (index, (list, want)) in cases.into_iter().enumerate() {
        let got = parse_populate_token(&list).map(|asked| asked.unwrap().ranges);
        assert_eq!(got, want, "case {index}");
    }
    let asked = parse_populate_token(&populate(0x01, 0, &[(0, 1)]))
        .unwrap()
        .unwrap();
    assert_eq!((asked.immediate, asked.inactivity_seconds), (true, 60));
    assert_eq!(parse_populate_token(&[]), Ok(None));
}

#[test]
fn tokens_come_back_as_they_were_made() {
    let token = RodToken {
        id: 0x0102_0304_0506_0708,
        naa: [0x6c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        block_len_bytes: 4096,
        len_bytes: 1 << 33,
        secret: [0xa5; 32],
    };
    let bytes = token.encode();
    // Type and length; the descriptor of the logical unit, with its block length; 16 bytes of length.
    assert_eq!(bytes[..8], [0, 0x80, 0, 0, 0, 0, 1, 0xf8]);
    assert_eq!(bytes[16..24], [0xe4, 0, 0, 0, 1, 3, 0, 16]);
    assert_eq!(bytes[24..40], token.naa);
    assert_eq!(bytes[44..48], [0, 0, 0x10, 0]);
    assert_eq!(bytes[48..64], (1_u128 << 33).to_be_bytes());
    let write = |flags: u8, token: &[u8], ranges: &[(u64, u32)]| {
        let ranges = ranges_of(ranges);
        let mut list = (534 + ranges.len() as u16).to_be_bytes().to_vec();
        list.extend([flags, 0, 0, 0, 0, 0]);
        list.extend(5_u64.to_be_bytes());
        list.extend(token);
        list.extend([0; 6]);
        list.extend((ranges.len() as u16).to_be_bytes());
        list.extend(ranges);
        list
    };
    let asked = parse_write_using_token(&write(0x03, &bytes, &[(1, 2)]));
    let want = WriteUsingToken {
        immediate: true,
        deletes: true,
        offset_blocks: 5,
        token: TokenAsked::Made(token.id, Box::new(bytes)),
        ranges: vec![Blocks { lba: 1, count: 2 }],
    };
    assert_eq!(asked, Ok(Some(want)));
    assert_eq!(parse_write_using_token(&[]), Ok(None));
    let mut zeros = [0; ROD_TOKEN_LEN_BYTES];
    zeros[..8].copy_from_slice(&[0xff, 0xff, 0, 1, 0, 0, 1, 0xf8]);
    let asked = parse_write_using_token(&write(0, &zeros, &[(1, 2)]))
        .unwrap()
        .unwrap();
    assert_eq!((asked.token, asked.deletes), (TokenAsked::Zeros, false));
    let (mut of_other_type, mut of_other_len) = (bytes, bytes);
    (of_other_type[1], of_other_len[7]) = (0x01, 0xf7);
    let refused = [
        (
            write(0, &of_other_type, &[(1, 2)]),
            Sense::illegal(code::TOKEN_TYPE),
        ),
        (
            write(0, &of_other_len, &[(1, 2)]),
            Sense::illegal(code::TOKEN_LENGTH),
        ),
        (write(0, &bytes, &[]), Sense::list_field(0)),
        (write(0, &bytes, &[(1, 2), (2, 1)]), Sense::list_field(536)),
        (
            write(0, &bytes, &[(1, 2)])[..535].to_vec(),
            Sense::illegal(code::PARAMETER_LIST_LENGTH),
        ),
        (
            write(0, &bytes, &[(1, 2)])[..551].to_vec(),
            Sense::list_field(534),
        ),
    ];
    for (list, want) in refused {
        assert_eq!(parse_write_using_token(&list), Err(want));
    }
}

#[test]
fn results_of_copies_by_token_are_told() {
    let done = TokenResult {
        action: TokenAction::Populate,
        is_done: true,
        moved_blocks: 0x1_0000_0002,
        ranges_done: 3,
        sense: None,
        token: Some(Box::new([7; ROD_TOKEN_LEN_BYTES])),
    };
    let bytes = rod_token_information(&done);
    assert_eq!(bytes.len(), 32 + 4 + 2 + 512);
    assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32 - 4));
    assert_eq!(bytes[4..6], [0x10, 0x01]);
    // Without sense data; units are blocks.
    assert_eq!(bytes[12..16], [0, 0, 0, 0xf1]);
    assert_eq!(u64_at(&bytes, 16), Some(0x1_0000_0002));
    assert_eq!(u32_at(&bytes, 32), Some(514));
    assert_eq!(bytes[38..], [7; 512]);
    let failed = TokenResult {
        action: TokenAction::Write,
        sense: Some(Sense::new(Key::DataProtect, code::SPACE_ALLOCATION_FAILED)),
        token: None,
        ..done.clone()
    };
    let bytes = rod_token_information(&failed);
    assert_eq!(bytes.len(), 32 + 20 + 4);
    assert_eq!(
        (bytes[4], bytes[5], bytes[12..15].to_vec()),
        (0x11, 0x02, vec![2, 20, 18])
    );
    assert_eq!(
        parse_sense(&bytes[32..52]).unwrap().code,
        code::SPACE_ALLOCATION_FAILED
    );
    let running = TokenResult {
        is_done: false,
        ..done
    };
    let bytes = rod_token_information(&running);
    // No token before its time.
    assert_eq!((bytes[5], bytes.len()), (0x11, 36));
}

#[test]
fn the_page_of_third_party_copies_has_what_it_says() {
    let limits = TokenLimits {
        block_len_bytes: 512,
        transfer_len_bytes: 1 << 30,
        optimal_len_bytes: 256 << 20,
        inactivity_seconds: 60,
        inactivity_seconds_max: 600,
        lifetime_seconds_max: 3600,
        granularity_blocks: 8,
        copy_segment_len_bytes: 65_535 * 512,
        token_count_max: 256,
    };
    let page = third_party_copy(&limits);
    assert_eq!(u16_at(&page, 2), Some(page.len() as u16 - 4));
    let mut found = Vec::new();
    let mut rest = &page[4..];
    while !rest.is_empty() {
        let (kind, len) = (
            u16_at(rest, 0).unwrap(),
            usize::from(u16_at(rest, 2).unwrap()),
        );
        found.push((kind, len));
        if kind == 0 {
            assert_eq!(u16_at(rest, 10), Some(64));
            assert_eq!((u32_at(rest, 12), u32_at(rest, 16)), (Some(600), Some(60)));
            assert_eq!(u64_at(rest, 20), Some(1 << 21));
            assert_eq!(u64_at(rest, 28), Some(1 << 19));
        }
        rest = &rest[4 + len..];
    }
    let want = [
        (0x0000, 32),
        (0x0001, 12),
        (0x0004, 28),
        (0x0008, 4),
        (0x000c, 4),
        (0x0106, 92),
        (0x0108, 132),
        (0x8001, 32),
    ];
    assert_eq!(found, want);
    // Each of its commands is taken, and told of.
    for (opcode, action) in [(0x83, 0x10), (0x83, 0x11), (0x84, 0x07)] {
        assert!(parse(&cdb(&[opcode, action])).is_ok());
        let asked = OpcodesAsked {
            with_timeouts: false,
            options: 2,
            opcode,
            service_action: action.into(),
        };
        assert_eq!(supported_opcode(&asked).unwrap()[1] & 7, 3);
    }
}
