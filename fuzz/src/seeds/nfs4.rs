//! Seeds of `nfs4_compound`: each operation and each callback behind a SEQUENCE, with its results; and calls that
//! say more than they have.

use cairn_codec_nfs::v4::{
    CbArgs, CbOp, CbResult, Op, OpArgs, OpResult, ReplyWriter, encode_callback, encode_compound,
    encode_compound_head,
};
use cairn_codec_rpc::{Opaque, Writer};

use super::{Corpus, VARIANT_COUNT, source, write};

/// Values of the first byte (`targets/nfs4_compound.rs`).
const ARGUMENTS: u8 = 0;
const RESULTS: u8 = 1;
const CALLBACK_ARGUMENTS: u8 = 2;
const CALLBACK_RESULTS: u8 = 3;

pub fn write_seeds(corpus: &Corpus) {
    for variant in 0..VARIANT_COUNT {
        for op in Op::ALL {
            operation(corpus, *op, variant);
        }
        for op in CbOp::ALL {
            callback(corpus, *op, variant);
        }
    }
    hostile(corpus);
}

fn operation(corpus: &Corpus, op: Op, variant: u32) {
    let mut source = source(op.number(), variant);
    let name = |what: &str| format!("{what}-{}-{variant}", op.name());
    let sequence = source.sequence_args();
    let ops = [
        OpArgs::Sequence(sequence),
        OpArgs::PutFh(Opaque(b"handle")),
        source.op_args(op),
    ];
    let mut bytes = vec![ARGUMENTS];
    let minor_version = op.minor_version_min().max(1);
    encode_compound(&mut Writer::new(&mut bytes), b"tag", minor_version, &ops);
    write(corpus, "nfs4_compound", &name("call"), &bytes);

    let mut bytes = vec![RESULTS];
    let sequence = source.sequence_ok();
    let mut reply = ReplyWriter::new(&mut bytes, b"tag");
    reply.push(&OpResult::Sequence(Ok(sequence)));
    reply.push(&OpResult::PutFh(Ok(())));
    reply.push(&source.op_result(op));
    write(corpus, "nfs4_compound", &name("reply"), &bytes);
}

fn callback(corpus: &Corpus, op: CbOp, variant: u32) {
    let mut source = source(op.number(), variant);
    let name = |what: &str| format!("{what}-{}-{variant}", op.name());
    let ops: [CbArgs<'_>; 2] = [
        source.callback_args(CbOp::Sequence),
        source.callback_args(op),
    ];
    let mut bytes = vec![CALLBACK_ARGUMENTS];
    encode_callback(&mut Writer::new(&mut bytes), b"tag", 2, &ops);
    write(corpus, "nfs4_compound", &name("call"), &bytes);

    let results: [CbResult<'_>; 2] = [
        source.callback_result(CbOp::Sequence),
        source.callback_result(op),
    ];
    let mut bytes = vec![CALLBACK_RESULTS];
    let mut reply = ReplyWriter::new(&mut bytes, b"tag");
    results
        .iter()
        .for_each(|result| reply.push_callback(result));
    write(corpus, "nfs4_compound", &name("reply"), &bytes);
}

fn hostile(corpus: &Corpus) {
    let cases: [(&str, u32, &[u32]); 7] = [
        ("many", 1024, &[24; 1024]),
        ("more-than-there-are", 1024, &[24, 24]),
        ("more-than-allowed", u32::MAX, &[24, 24]),
        ("long-bitmap", 1, &[9, u32::MAX, 0, 0]),
        ("many-state-ids", 1, &[55, 65_536, 1, 0, 0, 0]),
        ("many-values", 1, &[34, 0, 0, 0, 0, 1, 0x10, 65_536]),
        ("unknown", 2, &[24, 76]),
    ];
    for (name, op_count, words) in cases {
        let mut bytes = vec![ARGUMENTS];
        let mut to = Writer::new(&mut bytes);
        encode_compound_head(&mut to, b"", 2, op_count);
        words.iter().for_each(|word| to.u32(*word));
        write(corpus, "nfs4_compound", name, &bytes);
    }
}
