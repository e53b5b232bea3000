use std::collections::BTreeSet;

use cairn_codec_rpc::xdr::padding;
use proptest::prelude::*;

use super::*;
use crate::source::Source;
use crate::{Decode, DecodeError, Encode, Opaque, Reader, Writer};
use DecodeError::{BadValue, TooLong, TooMany, Truncated};

mod attributes;
mod golden;
mod streams;
mod tables;

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(value);
    bytes
}

/// Big-endian words, and bytes with their padding.
enum Part {
    Words(&'static [u32]),
    Text(&'static [u8]),
}
use Part::{Text as Bytes, Words};

fn wire(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    for part in parts {
        match part {
            Words(words) => words.iter().for_each(|word| to.u32(*word)),
            Bytes(text) => to.fixed(text),
        }
    }
    bytes
}

fn choices() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..200)
}

/// The only operation of these bytes, in version 4.2.
fn only<'a, A: Arguments<'a>>(bytes: &'a [u8]) -> (Result<A, BadOp>, usize) {
    let mut ops = Ops::<A>::new(2, 1, Reader::new(bytes));
    let op = ops.next().expect("one is promised");
    assert!(ops.next().is_none(), "one is promised");
    (op, ops.rest().len())
}

/// Each operation takes its choices from another place.
fn source(choices: &[u32], number: u32) -> Source {
    let mut choices = choices.to_vec();
    if !choices.is_empty() {
        let middle = number as usize % choices.len();
        choices.rotate_left(middle);
    }
    Source::new(choices)
}

/// A cut operation is refused, wherever the cut is.
fn cut_is_refused<'a, A>(bytes: &'a [u8]) -> Result<(), TestCaseError>
where
    A: Arguments<'a> + PartialEq + std::fmt::Debug,
{
    let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
    for len in 0..bytes.len() {
        let want = match len {
            0..4 => BadOp::Missing,
            _ => BadOp::Malformed {
                number,
                error: Truncated,
            },
        };
        prop_assert_eq!(only::<A>(&bytes[..len]).0, Err(want));
    }
    Ok(())
}

/// A cut result is refused, wherever the cut is.
fn cut_result_is_refused<'a, R>(bytes: &'a [u8]) -> Result<(), TestCaseError>
where
    R: Decode<'a> + PartialEq + std::fmt::Debug,
{
    for len in 0..bytes.len() {
        prop_assert_eq!(Reader::new(&bytes[..len]).get::<R>(), Err(Truncated));
    }
    Ok(())
}

proptest! {
    // Each case goes through all operations, byte by byte.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn operations_round_trip(choices in choices()) {
        for op in Op::ALL.iter().filter(|op| **op != Op::Illegal) {
            let args = source(&choices, op.number()).op_args(*op);
            prop_assert_eq!(args.op(), *op);
            let bytes = encode(&args);
            prop_assert_eq!(only(&bytes), (Ok(args), 0));
            cut_is_refused::<OpArgs<'_>>(&bytes)?;
        }
    }

    #[test]
    fn results_round_trip(choices in choices()) {
        for op in Op::ALL {
            let result = source(&choices, op.number()).op_result(*op);
            prop_assert_eq!(result.op(), *op);
            let bytes = encode(&result);
            let mut from = Reader::new(&bytes);
            prop_assert_eq!(from.get(), Ok(result));
            prop_assert_eq!(from.finish(), Ok(()));
            cut_result_is_refused::<OpResult<'_>>(&bytes)?;
        }
    }

    #[test]
    fn callbacks_round_trip(choices in choices()) {
        for op in CbOp::ALL {
            let mut source = source(&choices, op.number());
            let result = source.callback_result(*op);
            prop_assert_eq!(result.op(), *op);
            let bytes = encode(&result);
            prop_assert_eq!(Reader::new(&bytes).get(), Ok(result));
            cut_result_is_refused::<CbResult<'_>>(&bytes)?;
            if *op == CbOp::Illegal {
                continue;
            }
            let args = source.callback_args(*op);
            prop_assert_eq!(args.op(), *op);
            let bytes = encode(&args);
            prop_assert_eq!(only(&bytes), (Ok(args), 0));
            cut_is_refused::<CbArgs<'_>>(&bytes)?;
        }
    }

    /// Encoding a decoded value gives the bytes that arrived.
    #[test]
    fn what_was_read_is_written_again(choices in choices()) {
        for op in Op::ALL.iter().filter(|op| **op != Op::Illegal) {
            let mut source = source(&choices, op.number());
            let bytes = encode(&source.op_args(*op));
            let args = only::<OpArgs<'_>>(&bytes).0.unwrap();
            prop_assert_eq!(encode(&args), bytes);
            let bytes = encode(&source.op_result(*op));
            let result: OpResult<'_> = Reader::new(&bytes).get().unwrap();
            prop_assert_eq!(encode(&result), bytes);
        }
    }

    #[test]
    fn failures_have_their_status(index: prop::sample::Index) {
        let status = ErrorStatus::ALL[index.index(ErrorStatus::ALL.len())];
        for op in Op::ALL {
            let result = OpResult::failed(*op, status);
            prop_assert_eq!(result.status(), Err(status));
            // A failure with a body has a body then, too.
            let bytes = encode(&result);
            let mut from = Reader::new(&bytes);
            let read = from.get::<OpResult<'_>>().unwrap();
            prop_assert_eq!((read.op(), read.status()), (*op, Err(status)));
            prop_assert_eq!(from.finish(), Ok(()));
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(input: Vec<u8>, minor_version in 1u32..3) {
        for number in (0..80).chain([10_044, u32::MAX]) {
            let mut bytes = number.to_be_bytes().to_vec();
            bytes.extend_from_slice(&input);
            let _ = Ops::<OpArgs<'_>>::new(minor_version, 1, Reader::new(&bytes)).next();
            let _ = Ops::<CbArgs<'_>>::new(minor_version, 1, Reader::new(&bytes)).next();
            let _ = Reader::new(&bytes).get::<OpResult<'_>>();
            let _ = Reader::new(&bytes).get::<CbResult<'_>>();
        }
        let _ = Compound::decode(&input);
        let _ = CbCompound::decode(&input);
        let _ = decode_write_prefix(&input);
        let _ = decode_read_prefix(&input);
    }

    /// A message that was good until a byte changed.
    #[test]
    fn damaged_operations_decode_or_fail(
        choices in choices(), number: prop::sample::Index, at: prop::sample::Index, byte: u8,
    ) {
        let op = Op::ALL[number.index(Op::ALL.len())];
        let mut source = Source::new(choices);
        let mut args = encode(&source.op_args(op));
        let mut result = encode(&source.op_result(op));
        for bytes in [&mut args, &mut result] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(args) = only::<OpArgs<'_>>(&args).0 {
            let _ = format!("{args:?}");
        }
        if let Ok(result) = Reader::new(&result).get::<OpResult<'_>>() {
            let _ = format!("{result:?}");
        }
    }

    #[test]
    fn bitmaps_are_sets(
        one in prop::collection::btree_set(0u32..256, 0..20),
        other in prop::collection::btree_set(0u32..256, 0..20),
    ) {
        let of = |set: &BTreeSet<u32>| set.iter().fold(Bitmap::EMPTY, |map, bit| map.with(*bit));
        let (a, b) = (of(&one), of(&other));
        prop_assert_eq!(a.iter().collect::<BTreeSet<_>>(), one.clone());
        prop_assert_eq!(a.len() as usize, one.len());
        prop_assert_eq!(a.is_empty(), one.is_empty());
        prop_assert_eq!(a.and(&b), of(&(&one & &other)));
        prop_assert_eq!(a.or(&b), of(&(&one | &other)));
        prop_assert_eq!(a.minus(&b), of(&(&one - &other)));
        prop_assert_eq!(a.is_subset_of(&b), one.is_subset(&other));
        for bit in 0..300 {
            prop_assert_eq!(a.contains(bit), one.contains(&bit));
            prop_assert_eq!(a.next_from(bit), one.range(bit..).next().copied());
        }
        let bytes = encode(&a);
        prop_assert_eq!(bytes.len(), a.len_bytes());
        prop_assert_eq!(bytes.len(), 4 + 4 * one.last().map_or(0, |bit| *bit as usize / 32 + 1));
        prop_assert_eq!(Reader::new(&bytes).get(), Ok(a));
    }
}
