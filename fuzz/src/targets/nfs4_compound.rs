//! COMPOUND and CB_COMPOUND of NFSv4.1 and 4.2: the first byte says whether arguments or results, then come those.

use cairn_codec_nfs::v4::{
    Attr, AttrValue, BadOp, CbArgs, CbCompound, CbOp, CbResult, Compound, CompoundReply, Fattr, Op,
    OpArgs, OpResult, Ops, Prefix, SetIn, callback_permits, decode_read_prefix,
    decode_write_prefix, encode_fattr, permits,
};
use cairn_codec_rpc::{Reader, Writer};

/// Tries one input.
pub fn run(input: &[u8]) {
    let [selector, body @ ..] = input else {
        return;
    };
    match selector % 4 {
        0 => arguments(body),
        1 => results(body),
        2 => callback_arguments(body),
        _ => callback_results(body),
    }
}

/// Reads every operation of `$call`, each of which must be what it encodes to, and as long. Gives them with the
/// fault that ended them, if one did.
macro_rules! operations {
    ($args:ident, $call:expr) => {{
        let mut ops = $call.ops();
        let mut read = Vec::new();
        let fault: Option<BadOp> = loop {
            let before = ops.rest();
            let op = match ops.next() {
                None => break None,
                Some(Err(fault)) => {
                    assert!(ops.next().is_none(), "nothing follows {fault}");
                    break Some(fault);
                }
                Some(Ok(op)) => op,
            };
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).put(&op);
            assert_eq!(bytes.len(), before.len() - ops.rest().len(), "{op:?}");
            let mut again = Ops::<$args<'_>>::new($call.minor_version, 1, Reader::new(&bytes));
            assert_eq!(again.next(), Some(Ok(op.clone())));
            assert!(again.rest().is_empty());
            read.push(op);
        };
        let whole = read.len() as u32 + u32::from(fault.is_some());
        assert!(fault.is_some() || whole == $call.op_count);
        (read, fault)
    }};
}

fn arguments(body: &[u8]) {
    let Ok(call) = Compound::decode(body) else {
        return;
    };
    let (ops, fault) = operations!(OpArgs, call);
    if let Some(fault) = fault {
        let answer = fault.result(call.minor_version);
        let status = answer.status().expect_err("a fault is no success");
        assert!(permits(answer.op(), call.minor_version, status), "{fault}");
    }
    for op in &ops {
        match op {
            OpArgs::SetAttr(args) => attributes(&args.attributes),
            OpArgs::Create(args) => attributes(&args.attributes),
            OpArgs::Verify(fattr) | OpArgs::NVerify(fattr) => attributes(fattr),
            _ => {}
        }
    }
    // The short reading must see the same WRITE as the long one.
    if let Prefix::Found(prefix) = decode_write_prefix(body) {
        let end = prefix.data_offset + prefix.data_len_bytes as usize;
        if let (Some(OpArgs::Write(write)), Some(data)) =
            (ops.get(2), body.get(prefix.data_offset..end))
        {
            assert_eq!((&write.head, &*write.data), (&prefix.head, data));
        }
        assert_eq!(ops.first(), Some(&OpArgs::Sequence(prefix.sequence)));
        assert_eq!(ops.get(1), Some(&OpArgs::PutFh(prefix.file)));
    }
}

/// Attributes that can be read are those that are written from their values.
fn attributes(fattr: &Fattr<'_>) {
    let all = Attr::GETTABLE.or(&Attr::SETTABLE);
    let values: Result<Vec<AttrValue<'_>>, _> = fattr.values().collect();
    for place in [SetIn::SetAttr, SetIn::Create] {
        if let Ok(taken) = fattr.to_set(&all, place) {
            assert_eq!(
                taken.collect::<Vec<_>>(),
                *values.as_ref().expect("they were read")
            );
        }
    }
    let _ = fattr.to_compare(&all);
    let Ok(values) = values else {
        return;
    };
    assert_eq!(values.len() as u32, fattr.mask.len());
    let mut bytes = Vec::new();
    encode_fattr(&mut Writer::new(&mut bytes), &fattr.mask, |attr| {
        let value = values.iter().find(|value| value.attr() == attr);
        value.expect("the mask has it").clone()
    });
    let mut from = Reader::new(&bytes);
    let again: Fattr<'_> = from.get().expect("it was written");
    assert_eq!(again.mask, fattr.mask);
    assert_eq!(again.encoded.len(), fattr.encoded.len());
    let again: Result<Vec<_>, _> = again.values().collect();
    assert_eq!(again.as_ref(), Ok(&values));
}

/// Reads every result of a reply, each of which must be what it encodes to, and as long.
macro_rules! replies {
    ($result:ident, $body:expr) => {{
        let reply = CompoundReply::<$result<'_>>::decode($body);
        let read: Vec<_> = match &reply {
            Ok(reply) => reply.results().map_while(Result::ok).collect(),
            Err(_) => Vec::new(),
        };
        for result in &read {
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).put(result);
            let mut from = Reader::new(&bytes);
            assert_eq!(from.get::<$result<'_>>().as_ref(), Ok(result));
            assert!(from.rest().is_empty());
        }
        read
    }};
}

fn results(body: &[u8]) {
    let read = replies!(OpResult, body);
    for result in &read {
        if let OpResult::GetAttr(Ok(fattr)) = result {
            attributes(fattr);
        }
        if let Err(status) = result.status() {
            let _ = permits(result.op(), 2, status);
            let failed = OpResult::failed(result.op(), status);
            assert_eq!(failed.status(), Err(status));
        }
    }
    // The short reading must see the same READ as the long one.
    if let Prefix::Found(prefix) = decode_read_prefix(body) {
        let end = prefix.data_offset + prefix.data_len_bytes as usize;
        if let (Some(OpResult::Read(Ok(read))), Some(data)) =
            (read.get(2), body.get(prefix.data_offset..end))
        {
            assert_eq!((read.eof, &*read.data), (prefix.eof, data));
        }
        assert_eq!(read.first(), Some(&OpResult::Sequence(Ok(prefix.sequence))));
        assert_eq!(read.get(1).map(OpResult::op), Some(Op::PutFh));
    }
}

fn callback_arguments(body: &[u8]) {
    let Ok(call) = CbCompound::decode(body) else {
        return;
    };
    let (_, fault) = operations!(CbArgs, call);
    if let Some(fault) = fault {
        let answer = fault.callback_result();
        let status = answer.status().expect_err("a fault is no success");
        assert!(callback_permits(answer.op(), status), "{fault}");
    }
}

fn callback_results(body: &[u8]) {
    let read = replies!(CbResult, body);
    for result in &read {
        if let CbResult::GetAttr(Ok(fattr)) = result {
            attributes(fattr);
        }
        assert!(CbOp::ALL.contains(&result.op()));
    }
}
