//! Parts of a write in the form that direct I/O takes.

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::buf::{IO_ALIGN_BYTES, is_io_aligned};

/// The bytes of `parts`, in parts that are all aligned (address and length).
///
/// Aligned parts that lie at an aligned place of the whole stay as they are; runs of others are copied
/// together. `None` when the whole length is not a multiple of the alignment: no list of aligned
/// parts can say that.
pub(crate) fn align_parts(parts: Vec<Bytes>) -> Option<Vec<Bytes>> {
    let len_bytes: usize = parts.iter().map(Bytes::len).sum();
    if !len_bytes.is_multiple_of(IO_ALIGN_BYTES) {
        return None;
    }
    if parts.iter().all(|part| is_io_aligned(part)) {
        return Some(parts);
    }
    let mut aligned = Vec::with_capacity(parts.len());
    let mut run: Vec<Bytes> = Vec::new();
    let mut run_len_bytes = 0usize;
    for part in parts {
        if run_len_bytes.is_multiple_of(IO_ALIGN_BYTES) && is_io_aligned(&part) {
            flush_run(&mut run, &mut run_len_bytes, &mut aligned);
            aligned.push(part);
        } else {
            run_len_bytes += part.len();
            run.push(part);
        }
    }
    flush_run(&mut run, &mut run_len_bytes, &mut aligned);
    Some(aligned)
}

fn flush_run(run: &mut Vec<Bytes>, run_len_bytes: &mut usize, aligned: &mut Vec<Bytes>) {
    if *run_len_bytes > 0 {
        let mut copy = AlignedBuf::zeroed(*run_len_bytes);
        let mut rest: &mut [u8] = &mut copy;
        for part in run.iter() {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        aligned.push(copy.freeze());
    }
    run.clear();
    *run_len_bytes = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(len_bytes: usize, aligned: bool, fill: u8) -> Bytes {
        if aligned {
            let mut buf = AlignedBuf::zeroed(len_bytes);
            buf.fill(fill);
            return buf.freeze();
        }
        let mut buf = AlignedBuf::zeroed(len_bytes + 1);
        buf.fill(fill);
        buf.freeze().slice(1..)
    }

    #[test]
    fn parts_are_passed_on_copied_or_refused() {
        // (length, aligned address) of each part, and the lengths that come out.
        type Case<'a> = (&'a str, &'a [(usize, bool)], Option<&'a [usize]>);
        let cases: &[Case] = &[
            ("nothing", &[], Some(&[])),
            (
                "as they are",
                &[(4096, true), (8192, true)],
                Some(&[4096, 8192]),
            ),
            ("one bounced", &[(4096, false)], Some(&[4096])),
            (
                "only the odd one is copied",
                &[(4096, true), (4096, false), (4096, true)],
                Some(&[4096, 4096, 4096]),
            ),
            (
                "a run is joined",
                &[(100, false), (3996, true), (4096, true)],
                Some(&[4096, 4096]),
            ),
            (
                "aligned part at an odd place",
                &[(100, false), (4096, true), (3996, false)],
                Some(&[8192]),
            ),
            ("odd length", &[(4096, true), (1, true)], None),
        ];
        for (name, input, want) in cases {
            let parts: Vec<Bytes> = input
                .iter()
                .enumerate()
                .map(|(index, (len, aligned))| part(*len, *aligned, index as u8 + 1))
                .collect();
            let whole: Vec<u8> = parts.concat();
            let got = align_parts(parts);
            let lens: Option<Vec<usize>> = got
                .as_ref()
                .map(|parts| parts.iter().map(Bytes::len).collect());
            assert_eq!(lens.as_deref(), *want, "{name}");
            if let Some(parts) = got {
                assert!(parts.iter().all(|part| is_io_aligned(part)), "{name}");
                assert_eq!(parts.concat(), whole, "{name}");
            }
        }
    }
}
