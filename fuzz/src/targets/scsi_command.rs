//! SCSI commands and the parameter lists that come with them: the first 16 bytes are the command.

use cairn_codec_scsi::{
    Blocks, COPY_SEGMENT_COUNT_MAX, COPY_TARGET_COUNT_MAX, ModeState, TOKEN_RANGE_COUNT_MAX,
    Threshold, UNMAP_DESCRIPTOR_COUNT_MAX, mode_select, parse, parse_copy_list,
    parse_persistent_out, parse_populate_token, parse_set_target_port_groups, parse_unmap,
    parse_write_using_token,
};

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((cdb, list)) = input.split_first_chunk::<16>() else {
        return;
    };
    let sense = match parse(cdb) {
        Ok(_) => None,
        Err(sense) => Some(sense),
    };
    if let Some(sense) = sense {
        assert_eq!(sense.fixed()[12], sense.code.0);
        assert_eq!(
            usize::from(sense.descriptor()[7]) + 8,
            sense.descriptor().len()
        );
    }
    if let Ok(ranges) = parse_unmap(list) {
        assert!(ranges.len() <= UNMAP_DESCRIPTOR_COUNT_MAX);
    }
    if let Ok(copy) = parse_copy_list(list) {
        assert!(
            copy.targets.len() <= COPY_TARGET_COUNT_MAX
                && copy.segments.len() <= COPY_SEGMENT_COUNT_MAX
        );
        let is_there = |index: usize| index < copy.targets.len();
        assert!(
            copy.segments
                .iter()
                .all(|one| is_there(one.source) && is_there(one.destination))
        );
    }
    if let Ok(Some(asked)) = parse_populate_token(list) {
        check_ranges(&asked.ranges);
    }
    if let Ok(Some(asked)) = parse_write_using_token(list) {
        check_ranges(&asked.ranges);
    }
    let _ = parse_persistent_out(list);
    let _ = parse_set_target_port_groups(list);
    let state = ModeState {
        write_cache: false,
        software_protected: false,
        read_only: false,
        descriptor_sense: false,
        tells_thresholds: false,
        threshold: Threshold::default(),
        threshold_default: Threshold::default(),
        block_count: 1 << 20,
        block_len_bytes: 512,
    };
    for is_long in [false, true] {
        if let Ok(changed) = mode_select(list, is_long, &state) {
            // What an initiator cannot change stays.
            assert_eq!(
                (changed.write_cache, changed.read_only, changed.block_count),
                (false, false, 1 << 20)
            );
        }
    }
}

/// There is one, there are not too many, and no block is in two of them.
fn check_ranges(ranges: &[Blocks]) {
    assert!((1..=TOKEN_RANGE_COUNT_MAX).contains(&ranges.len()));
    for (index, one) in ranges.iter().enumerate() {
        for other in &ranges[index + 1..] {
            let end = |range: &Blocks| range.lba.saturating_add(range.count);
            let meet = one.lba < end(other) && other.lba < end(one);
            assert!(!meet || one.count == 0 || other.count == 0);
        }
    }
}
