//! A call as a server reads it: the RPC header, the credential, then the arguments of whatever
//! program and procedure it names.

use crate::round_trip;
use cairn_codec_nfs::{mount, nlm, v3};
use cairn_codec_rpc::rpc::decode_call;
use cairn_codec_rpc::{AuthSys, Decode, Incoming, Reader, Writer, portmap, rpcbind};

/// Tries one input.
pub fn run(input: &[u8]) {
    let mut from = Reader::new(input);
    let Ok(Incoming::Call(header)) = decode_call(&mut from) else {
        return;
    };
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).put(&header);
    let again = decode_call(&mut Reader::new(&bytes));
    assert_eq!(again, Ok(Incoming::Call(header)));

    if let Ok(sys) = AuthSys::from_body(header.credential.body) {
        assert_eq!(AuthSys::from_body(&sys.to_body()).as_ref(), Ok(&sys));
    }
    arguments(
        header.program,
        header.version,
        header.procedure,
        from.rest(),
    );
}

fn arguments(program: u32, version: u32, number: u32, args: &[u8]) {
    match (program, version) {
        (v3::PROGRAM, _) => {
            if let Some(procedure) = v3::Procedure::from_u32(number) {
                nfs(procedure, args);
            }
        }
        (mount::PROGRAM, _) => {
            if let Some(procedure) = mount::Procedure::from_u32(number) {
                round_trip!(args, |from| mount::Call::decode(procedure, from));
            }
        }
        (nlm::PROGRAM, nlm::VERSION_1 | nlm::VERSION_3 | nlm::VERSION_4) => {
            if let Some(procedure) = nlm::Procedure::of_version(version, number) {
                round_trip!(args, |from| nlm::Call::decode(version, procedure, from));
            }
        }
        (portmap::PROGRAM, portmap::VERSION) => {
            if let Some(procedure) = portmap::Procedure::from_u32(number) {
                round_trip!(args, |from| portmap::Call::decode(procedure, from));
            }
        }
        (rpcbind::PROGRAM, _) => {
            if let Some(procedure) = rpcbind::Procedure::of_version(version, number) {
                let call = round_trip!(args, |from| rpcbind::Call::decode(procedure, from));
                if let Some(rpcbind::Call::Set(mapping)) = call {
                    universal_address(&mapping.uaddr);
                }
            }
        }
        _ => {}
    }
}

fn nfs(procedure: v3::Procedure, args: &[u8]) {
    let call = round_trip!(args, |from| v3::Call::decode(procedure, from));
    if let Some(v3::Call::ReadDirPlus(limits)) = &call {
        directory(limits, args);
    }
    let Ok(prefix) = v3::decode_write_prefix(args) else {
        return;
    };
    // Whoever reads only the beginning must see the same WRITE as who reads all.
    if let Some(v3::Call::Write(write)) = call {
        let prefix = prefix.expect("the whole has a beginning");
        assert_eq!(prefix.head, write.head);
        let data = &args[prefix.data_offset..][..prefix.data_len_bytes as usize];
        assert_eq!(data, &*write.data);
    }
}

/// A page that names the input itself never is longer than the call allows.
fn directory(limits: &v3::ReadDirPlusArgs, args: &[u8]) {
    let mut bytes = Vec::new();
    let mut to = Writer::new(&mut bytes);
    let (dir_count, max_count) = (limits.dir_count_bytes, limits.max_count_bytes);
    let verifier = limits.cookie_verifier;
    let page = v3::readdir::DirWriter::readdirplus(&mut to, &None, verifier, dir_count, max_count);
    let Some(mut page) = page else {
        return assert!(bytes.is_empty());
    };
    let entries = args.chunks(7).map(|name| v3::EntryPlus {
        fileid: limits.cookie,
        name: name.into(),
        cookie: limits.cookie,
        attributes: None,
        handle: Some(limits.dir),
    });
    let fitting = entries.take_while(|entry| page.push_plus(entry)).count();
    page.finish(true);
    assert!(bytes.len() - 4 <= max_count as usize);
    let reply = v3::ReadDirPlusReply::decode(&mut Reader::new(&bytes));
    assert_eq!(reply.unwrap().unwrap().entries.0.len(), fitting);
}

fn universal_address(text: &[u8]) {
    if let Some(address) = rpcbind::parse_uaddr(text) {
        let again = rpcbind::format_uaddr(address);
        assert_eq!(rpcbind::parse_uaddr(again.as_bytes()), Some(address));
    }
}
