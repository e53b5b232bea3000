//! SCSI commands and the parameter lists that come with them: the first 16 bytes are the command.

use cairn_codec_scsi::{
    COPY_SEGMENT_COUNT_MAX, COPY_TARGET_COUNT_MAX, ModeState, UNMAP_DESCRIPTOR_COUNT_MAX,
    mode_select, parse, parse_copy_list, parse_persistent_out, parse_set_target_port_groups,
    parse_unmap,
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
    let _ = parse_persistent_out(list);
    let _ = parse_set_target_port_groups(list);
    let state = ModeState {
        write_cache: false,
        software_protected: false,
        read_only: false,
        descriptor_sense: false,
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
