//! Commands and lists, as a table of what is taken and what is refused.

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

proptest! {
    /// Nothing that comes makes a decoder panic.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), command: [u8; 16], is_long: bool) {
        let _ = parse(&command);
        let _ = parse_unmap(&bytes);
        let _ = parse_persistent_out(&bytes);
        let _ = parse_copy_list(&bytes);
        let _ = parse_set_target_port_groups(&bytes);
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
