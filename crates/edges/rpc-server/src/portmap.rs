//! The port mapper: PORTMAP version 2 and rpcbind versions 3 and 4, for our own programs only.
//!
//! Owns: what is registered. Nobody else can register anything.
//! Must not know: what the programs are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use cairn_codec_rpc::{AcceptStatus, CallHeader, List, Reader, portmap, rpcbind};

use crate::program::{Handler, Peer, Program, StartedCall, Transport};
use crate::reply::Reply;

const OWNER: &str = "cairn";
const VERSIONS: &[u32] = &[portmap::VERSION, 3, 4];

struct Registration {
    program: u32,
    version: u32,
    udp: bool,
    port: u16,
}

/// The port mapper of one server.
pub struct PortMapper {
    /// Program and version of all others.
    served: Vec<(u32, u32)>,
    /// Where clients find them. Set before the first call.
    pub programs_port: AtomicU16,
    /// Where clients find the port mapper, if that is another port; else 0.
    pub own_port: AtomicU16,
}

impl PortMapper {
    /// A port mapper for these programs.
    pub fn new(programs: &[Arc<dyn Program>]) -> Self {
        let served = programs.iter().flat_map(|program| {
            let versions = program.versions().iter();
            versions.map(|version| (program.number(), *version))
        });
        Self {
            served: served.collect(),
            programs_port: AtomicU16::new(0),
            own_port: AtomicU16::new(0),
        }
    }

    fn registrations(&self) -> Vec<Registration> {
        let programs_port = self.programs_port.load(Ordering::Relaxed);
        let own_port = self.own_port.load(Ordering::Relaxed);
        let own = |udp| {
            VERSIONS.iter().map(move |version| Registration {
                program: portmap::PROGRAM,
                version: *version,
                udp,
                port: match own_port {
                    0 => programs_port,
                    port => port,
                },
            })
        };
        let served = self.served.iter().map(|(program, version)| Registration {
            program: *program,
            version: *version,
            udp: false,
            port: programs_port,
        });
        // The port mapper answers over UDP only where it has a port of its own.
        let own_udp = own(true).filter(|_| own_port != 0);
        own(false).chain(served).chain(own_udp).collect()
    }

    fn find(&self, program: u32, version: u32, udp: bool) -> Option<u16> {
        let mut all = self.registrations().into_iter();
        all.find(|it| it.program == program && it.version == version && it.udp == udp)
            .map(|it| it.port)
    }
}

/// The port mapper as a program of its server.
pub struct PortMapperProgram(pub Arc<PortMapper>);

impl Program for PortMapperProgram {
    fn number(&self) -> u32 {
        portmap::PROGRAM
    }

    fn versions(&self) -> &[u32] {
        VERSIONS
    }

    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler> {
        Box::new(PortMapperHandler {
            mapper: Arc::clone(&self.0),
            peer: Arc::clone(peer),
        })
    }
}

struct PortMapperHandler {
    mapper: Arc<PortMapper>,
    peer: Arc<Peer>,
}

impl Handler for PortMapperHandler {
    fn begin(&mut self, call: &CallHeader<'_>, args: Reader<'_>) -> StartedCall {
        self.peer.count_other();
        StartedCall::ready(match call.version {
            portmap::VERSION => self.answer_portmap(call, args),
            _ => self.answer_rpcbind(call, args),
        })
    }
}

impl PortMapperHandler {
    /// A long answer to a short question is not given over UDP, where the sender can be forged.
    fn may_dump(&self) -> bool {
        self.peer.transport == Transport::Tcp
    }

    fn answer_portmap(&self, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
        use portmap::{Call, Procedure, Reply as Results};
        let xid = call.xid;
        let procedure = Procedure::from_u32(call.procedure)
            .filter(|procedure| *procedure != Procedure::Dump || self.may_dump());
        let Some(procedure) = procedure else {
            return self.peer.unknown(xid, AcceptStatus::ProcedureUnavailable);
        };
        let Ok(decoded) = Call::decode(procedure, &mut args) else {
            return self.peer.garbage(xid);
        };
        let results = match decoded {
            Call::Null => Results::Null,
            Call::Set(_) => Results::Set(false),
            Call::Unset(_) => Results::Unset(false),
            Call::GetPort(wanted) => {
                let udp = wanted.protocol == portmap::PROTOCOL_UDP;
                let port = self.mapper.find(wanted.program, wanted.version, udp);
                Results::GetPort(port.map_or(0, u32::from))
            }
            Call::Dump => {
                let all = self.mapper.registrations().into_iter();
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

    fn answer_rpcbind(&self, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
        use rpcbind::{Call, Procedure, Reply as Results};
        let xid = call.xid;
        let procedure = Procedure::of_version(call.version, call.procedure)
            .filter(|procedure| *procedure != Procedure::Dump || self.may_dump());
        let Some(procedure) = procedure else {
            return self.peer.unknown(xid, AcceptStatus::ProcedureUnavailable);
        };
        let Ok(decoded) = Call::decode(procedure, &mut args) else {
            return self.peer.garbage(xid);
        };
        let local = self.peer.local.ip();
        let address = |wanted: &rpcbind::Mapping<'_>| {
            let udp = wanted.netid.starts_with(b"udp");
            match self.mapper.find(wanted.program, wanted.version, udp) {
                Some(port) => rpcbind::format_uaddr(SocketAddr::new(local, port)),
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
                let all: Vec<_> = self
                    .mapper
                    .registrations()
                    .into_iter()
                    .map(|it| {
                        let address = SocketAddr::new(local, it.port);
                        (rpcbind::format_uaddr(address), it)
                    })
                    .collect();
                let v6 = matches!(local, IpAddr::V6(_));
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
}
