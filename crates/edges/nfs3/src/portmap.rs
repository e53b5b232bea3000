//! PORTMAP version 2 and rpcbind versions 3 and 4, for our own programs only.
//!
//! Owns: what is registered. Nobody else can register anything.
//! Must not know: NFS, volumes.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use cairn_codec_nfs::{mount, nlm, v3};
use cairn_codec_rpc::{AcceptStatus, CallHeader, List, Reader, portmap, rpcbind};

use crate::reply::Reply;
use crate::service::{Session, Transport};

const OWNER: &str = "cairn";

struct Registration {
    program: u32,
    version: u32,
    udp: bool,
    port: u16,
}

fn registrations(session: &Session) -> Vec<Registration> {
    let service = &session.service;
    let nfs = service.nfs_port.load(Ordering::Relaxed);
    let own = service.portmap_port();
    let tcp = [
        (portmap::PROGRAM, 2, own),
        (portmap::PROGRAM, 3, own),
        (portmap::PROGRAM, 4, own),
        (mount::PROGRAM, mount::VERSION_1, nfs),
        (mount::PROGRAM, mount::VERSION_3, nfs),
        (v3::PROGRAM, v3::VERSION, nfs),
        (nlm::PROGRAM, nlm::VERSION_1, nfs),
        (nlm::PROGRAM, nlm::VERSION_3, nfs),
        (nlm::PROGRAM, nlm::VERSION_4, nfs),
    ];
    let udp = [
        (portmap::PROGRAM, 2, own),
        (portmap::PROGRAM, 3, own),
        (portmap::PROGRAM, 4, own),
    ];
    let registration = |udp| {
        move |(program, version, port)| Registration {
            program,
            version,
            udp,
            port,
        }
    };
    let tcp = tcp.into_iter().map(registration(false));
    let udp = udp.into_iter().map(registration(true));
    // PORTMAP answers over UDP only where it has a port of its own.
    let with_udp = service.rpcbind_port.load(Ordering::Relaxed) != 0;
    tcp.chain(udp.filter(|_| with_udp)).collect()
}

/// Serves one call.
pub fn answer(session: &Session, call: &CallHeader<'_>, args: Reader<'_>) -> Reply {
    match call.version {
        portmap::VERSION => answer_portmap(session, call, args),
        _ => answer_rpcbind(session, call, args),
    }
}

fn answer_portmap(session: &Session, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
    use portmap::{Call, Procedure, Reply as Results};
    let xid = call.xid;
    let procedure = Procedure::from_u32(call.procedure).filter(|procedure| {
        // A long answer to a short question: not over UDP, where the sender can be forged.
        *procedure != Procedure::Dump || session.transport == Transport::Tcp
    });
    let Some(procedure) = procedure else {
        return session.unknown(xid, AcceptStatus::ProcedureUnavailable);
    };
    let Ok(decoded) = Call::decode(procedure, &mut args) else {
        return session.garbage(xid);
    };
    let results = match decoded {
        Call::Null => Results::Null,
        Call::Set(_) => Results::Set(false),
        Call::Unset(_) => Results::Unset(false),
        Call::GetPort(wanted) => {
            let udp = wanted.protocol == portmap::PROTOCOL_UDP;
            let port = find(session, wanted.program, wanted.version, udp);
            Results::GetPort(port.map_or(0, u32::from))
        }
        Call::Dump => {
            let all = registrations(session).into_iter();
            Results::Dump(List(
                all.map(|it| portmap::Mapping {
                    program: it.program,
                    version: it.version,
                    protocol: match it.udp {
                        true => portmap::PROTOCOL_UDP,
                        false => portmap::PROTOCOL_TCP,
                    },
                    port: u32::from(it.port),
                })
                .collect(),
            ))
        }
    };
    Reply::success(xid, &results)
}

fn answer_rpcbind(session: &Session, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
    use rpcbind::{Call, Procedure, Reply as Results};
    let xid = call.xid;
    let procedure = Procedure::of_version(call.version, call.procedure)
        .filter(|procedure| *procedure != Procedure::Dump || session.transport == Transport::Tcp);
    let Some(procedure) = procedure else {
        return session.unknown(xid, AcceptStatus::ProcedureUnavailable);
    };
    let Ok(decoded) = Call::decode(procedure, &mut args) else {
        return session.garbage(xid);
    };
    let address = |wanted: &rpcbind::Mapping<'_>| {
        let udp = wanted.netid.starts_with(b"udp");
        match find(session, wanted.program, wanted.version, udp) {
            Some(port) => rpcbind::format_uaddr(SocketAddr::new(session.local.ip(), port)),
            None => String::new(),
        }
    };
    match decoded {
        Call::Null => Reply::success(xid, &Results::Null),
        Call::Set(_) => Reply::success(xid, &Results::Set(false)),
        Call::Unset(_) => Reply::success(xid, &Results::Unset(false)),
        Call::GetAddr(wanted) => {
            let uaddr = address(&wanted);
            Reply::success(xid, &Results::GetAddr(uaddr.as_str().into()))
        }
        Call::GetVersAddr(wanted) => {
            let uaddr = address(&wanted);
            Reply::success(xid, &Results::GetVersAddr(uaddr.as_str().into()))
        }
        Call::GetTime => {
            let now = cairn_base::Timestamp::from(std::time::SystemTime::now());
            let seconds = u32::try_from(now.seconds).unwrap_or(u32::MAX);
            Reply::success(xid, &Results::GetTime(seconds))
        }
        Call::Dump => {
            let all: Vec<_> = registrations(session)
                .into_iter()
                .map(|it| {
                    let address = SocketAddr::new(session.local.ip(), it.port);
                    (rpcbind::format_uaddr(address), it)
                })
                .collect();
            let v6 = matches!(session.local.ip(), IpAddr::V6(_));
            let mappings = all.iter().map(|(uaddr, it)| rpcbind::Mapping {
                program: it.program,
                version: it.version,
                netid: match (it.udp, v6) {
                    (false, false) => rpcbind::NETID_TCP,
                    (false, true) => rpcbind::NETID_TCP6,
                    (true, false) => "udp",
                    (true, true) => "udp6",
                }
                .into(),
                uaddr: uaddr.as_str().into(),
                owner: OWNER.into(),
            });
            Reply::success(xid, &Results::Dump(List(mappings.collect())))
        }
    }
}

fn find(session: &Session, program: u32, version: u32, udp: bool) -> Option<u16> {
    let mut all = registrations(session).into_iter();
    all.find(|it| it.program == program && it.version == version && it.udp == udp)
        .map(|it| it.port)
}
