//! The seed corpora: some of every message and of every stored form there is. They depend on nothing random.

use std::collections::BTreeMap;

use cairn_codec_nfs::{mount, nlm, v3};
use cairn_codec_rpc::rpc::encode_success;
use cairn_codec_rpc::{
    AuthSys, CallHeader, Encode, Groups, List, OpaqueAuth, Writer, portmap, rpcbind,
};

use cairn_codec_nfs::source::Source;

mod cluster;
mod iscsi;
mod nfs4;
mod storage;
mod text;

/// Seeds by target and name.
pub type Corpus = std::cell::RefCell<BTreeMap<(&'static str, String), Vec<u8>>>;

/// Variants of each message.
const VARIANT_COUNT: u32 = 2;

/// All seeds.
pub fn all() -> BTreeMap<(&'static str, String), Vec<u8>> {
    let corpus = Corpus::default();
    for variant in 0..VARIANT_COUNT {
        for procedure in v3::Procedure::ALL {
            let mut source = source(procedure.number(), variant);
            let name = format!("nfs-{}-{variant}", procedure.name());
            let call = source.call(*procedure);
            write_call(&corpus, &name, [v3::PROGRAM, 3, procedure.number()], &call);
            let reply = source.reply_of(*procedure);
            write_reply(&corpus, &name, [0, procedure.number() as u8], &reply);
        }
        for procedure in mount::Procedure::ALL {
            for (version, selector) in [(mount::VERSION_3, 1), (mount::VERSION_1, 2)] {
                let mut source = source(procedure.number(), variant);
                let name = format!("mount{version}-{}-{variant}", procedure.name());
                let number = procedure.number();
                let call = source.mount_call(*procedure);
                write_call(&corpus, &name, [mount::PROGRAM, version, number], &call);
                let reply = source.mount_reply(version, *procedure);
                write_reply(&corpus, &name, [selector, number as u8], &reply);
            }
        }
        for procedure in nlm::Procedure::ALL {
            for version in [nlm::VERSION_1, nlm::VERSION_4] {
                let number = procedure.number();
                if nlm::Procedure::of_version(version, number).is_none() {
                    continue;
                }
                let mut source = source(number, variant);
                let name = format!("nlm{version}-{}-{variant}", procedure.name());
                let call = source.nlm_call(version, *procedure);
                write_call(&corpus, &name, [nlm::PROGRAM, version, number], &call);
            }
        }
    }
    portmap_seeds(&corpus);
    rpcbind_seeds(&corpus);
    record_seeds(&corpus);
    stream_seeds(&corpus);
    cluster::write_seeds(&corpus);
    iscsi::write_seeds(&corpus);
    nfs4::write_seeds(&corpus);
    storage::write_seeds(&corpus);
    text::write_seeds(&corpus);
    corpus.into_inner()
}

fn portmap_seeds(corpus: &Corpus) {
    let mapping = portmap::Mapping {
        program: v3::PROGRAM,
        version: 3,
        protocol: portmap::PROTOCOL_TCP,
        port: 2049,
    };
    let call = portmap::Call::GetPort(mapping);
    write_call(corpus, "portmap-getport", [portmap::PROGRAM, 2, 3], &call);
    write_reply(
        corpus,
        "portmap-getport",
        [3, 3],
        &portmap::Reply::GetPort(2049),
    );
    let dump = portmap::Reply::Dump(List(vec![mapping, mapping]));
    write_reply(corpus, "portmap-dump", [3, 4], &dump)
}

fn rpcbind_seeds(corpus: &Corpus) {
    let mapping = rpcbind::Mapping {
        program: v3::PROGRAM,
        version: 3,
        netid: rpcbind::NETID_TCP6.into(),
        uaddr: "::1.8.1".into(),
        owner: "root".into(),
    };
    let set = rpcbind::Call::Set(mapping);
    write_call(corpus, "rpcbind-set", [rpcbind::PROGRAM, 3, 1], &set);
    let get = rpcbind::Call::GetVersAddr(mapping);
    write_call(
        corpus,
        "rpcbind-getversaddr",
        [rpcbind::PROGRAM, 4, 9],
        &get,
    );
    let address = rpcbind::Reply::GetAddr("127.0.0.1.8.1".into());
    write_reply(corpus, "rpcbind-getaddr", [4, 3], &address);
    let dump = rpcbind::Reply::Dump(List(vec![mapping]));
    write_reply(corpus, "rpcbind-dump", [4, 4], &dump)
}

fn record_seeds(corpus: &Corpus) {
    let seeds: [(&str, &[u8]); 4] = [
        ("one", b"\x03\x80\0\0\x05stone"),
        ("two", b"\xff\x80\0\0\x01a\x80\0\0\x02bc"),
        (
            "fragments",
            b"\x02\0\0\0\x01a\0\0\0\0\x80\0\0\x02bc\x80\0\0\0",
        ),
        ("too-long", b"\0\x80\x01\0\x01a"),
    ];
    for (name, bytes) in seeds {
        write(corpus, "rpc_record", name, bytes);
    }
}

/// Descriptions of streams (`targets/rpc_stream.rs`), of friends and strangers in turn.
fn stream_seeds(corpus: &Corpus) {
    let call: Vec<u8> = [7, 0, 2, v3::PROGRAM, 3, 1, 0, 0, 0, 0]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect();
    // Whatever is 64 bytes long or less is a piece.
    let raw = |bytes: &[u8]| [&[(bytes.len() as u8 - 1) << 2], bytes].concat();
    let filling = |steps: u16| [&[1][..], &steps.to_be_bytes()].concat();
    let zeros = |steps: u16| [&[5][..], &steps.to_be_bytes()].concat();
    let a_write = |steps: u16, odd: u8| [&[2][..], &steps.to_be_bytes(), &[odd]].concat();
    let header = |last: bool, len_bytes: u32| {
        let what = 3 | u8::from(last) << 2;
        [&[what][..], &len_bytes.to_be_bytes()[1..]].concat()
    };
    let small = || [header(true, call.len() as u32), raw(&call)].concat();
    let seeds: [(&str, Vec<Vec<u8>>); 15] = [
        ("calls", vec![small(), small(), small()]),
        ("write-small", vec![a_write(1000, 0), small()]),
        (
            "write-apart",
            vec![a_write(4000, 1), small(), a_write(3000, 2)],
        ),
        ("write-longest", vec![a_write(61_680, 3), a_write(2000, 0)]),
        ("write-refused", vec![a_write(5000, 4), small()]),
        (
            "write-with-more",
            vec![a_write(5000, 8), raw(b"."), small()],
        ),
        ("write-with-less", vec![a_write(5000, 16), small()]),
        (
            "write-head-long",
            vec![a_write(5000, 32), a_write(5000, 33)],
        ),
        (
            "write-in-fragments",
            vec![a_write(2000, 64), header(true, 4), raw(b"last"), small()],
        ),
        ("commit-long", vec![a_write(5000, 128), small()]),
        ("no-call", vec![header(true, 100_000), raw(&[9; 16])]),
        (
            "fragments",
            vec![
                header(false, 17_000),
                filling(1000),
                header(false, 0),
                header(true, 17),
                filling(1),
                small(),
            ],
        ),
        (
            "fragments-too-long",
            vec![header(false, 34_000), filling(2000), header(true, 31_537)],
        ),
        ("fragments-too-many", vec![zeros(964)]),
        ("too-long", vec![header(true, (1 << 20) + 4097)]),
    ];
    for (name, pieces) in seeds {
        for (who, is_let_in) in [("friend", 1), ("stranger", 0)] {
            // Three cuts: 1, 401 and 40,001 bytes.
            let head = [is_let_in | 2 << 1, 0, 20, 200];
            let bytes = [&head[..], &pieces.concat()].concat();
            write(corpus, "rpc_stream", &format!("{name}-{who}"), &bytes);
        }
    }
}

/// Choices that look random and never change.
fn source(procedure: u32, variant: u32) -> Source {
    let mut state = procedure * 1000 + variant;
    let choices = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    });
    Source::new(choices.take(300).collect())
}

fn write_call(
    corpus: &Corpus,
    name: &str,
    [program, version, procedure]: [u32; 3],
    args: &dyn Encode,
) {
    let body = AuthSys {
        stamp: 1,
        machine_name: "stone".into(),
        uid: 1000,
        gid: 100,
        groups: Groups::new(&[4, 27]).expect("two fit"),
    }
    .to_body();
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    to.put(&CallHeader {
        xid: 7,
        program,
        version,
        procedure,
        credential: OpaqueAuth::sys(&body),
        verifier: OpaqueAuth::NONE,
    });
    to.put(args);
    write(corpus, "rpc_call", name, &bytes)
}

fn write_reply(corpus: &Corpus, name: &str, selector: [u8; 2], results: &dyn Encode) {
    let mut bytes = selector.to_vec();
    let mut to = Writer::new(&mut bytes);
    encode_success(&mut to, 7);
    to.put(results);
    write(corpus, "nfs3_reply", name, &bytes)
}

fn write(corpus: &Corpus, target: &'static str, name: &str, bytes: &[u8]) {
    let key = (target, name.to_owned());
    let twice = corpus.borrow_mut().insert(key, bytes.to_vec());
    assert_eq!(twice, None, "{target}/{name} is there twice");
}
