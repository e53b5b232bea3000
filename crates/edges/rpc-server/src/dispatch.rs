//! From a record to the handler of its program.
//!
//! Owns: the table of programs, headers of calls, the answers to unknown programs and versions.
//! Must not know: sockets, what the calls mean.
//! Invariant: the header of a call is decoded once, here for a whole record or in `intake` for one with a large
//! payload.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cairn_codec_rpc::rpc::decode_call;
use cairn_codec_rpc::{AcceptStatus, CallHeader, DecodeError, Incoming, Reader};
use cairn_forward::Admission;
use tokio::sync::watch;

use crate::intake::Verdict;
use crate::program::{
    Account, BeginWithPayload, Delay, Handler, Peer, Program, Started, StartedCall,
};

/// The programs of a server.
pub struct Table {
    programs: Vec<Arc<dyn Program>>,
}

impl Table {
    pub fn new(programs: Vec<Arc<dyn Program>>) -> Self {
        Self { programs }
    }

    pub fn lets_in(&self, client: SocketAddr) -> bool {
        self.programs.iter().any(|program| program.lets_in(client))
    }

    /// Changes with the rights version of any program.
    /// Tells when the rights change.
    pub fn rights_changes(&self) -> Vec<watch::Receiver<u64>> {
        let changes = self.programs.iter().map(|program| program.rights_changes());
        changes.flatten().collect()
    }

    pub fn rights_version(&self) -> u64 {
        let versions = self.programs.iter().map(|program| program.rights_version());
        versions.fold(0, u64::wrapping_add)
    }

    pub fn program(&self, index: usize) -> &dyn Program {
        &*self.programs[index]
    }

    /// The program that serves a call, by its place in the table.
    fn find(&self, call: &CallHeader<'_>) -> Result<usize, AcceptStatus> {
        let mut programs = self.programs.iter();
        let index = programs
            .position(|program| program.number() == call.program)
            .ok_or(AcceptStatus::ProgramUnavailable)?;
        let versions = self.programs[index].versions();
        match versions.contains(&call.version) {
            true => Ok(index),
            false => Err(match (versions.first(), versions.last()) {
                (Some(low), Some(high)) => AcceptStatus::ProgramMismatch {
                    low: *low,
                    high: *high,
                },
                _ => AcceptStatus::ProgramUnavailable,
            }),
        }
    }
}

/// A call that has begun, and who is to hear of its end.
pub struct Dispatched {
    pub started: Started,
    pub measured: Option<Measured>,
    pub held_bytes: usize,
    pub delay: Option<Delay>,
}

/// Which procedure of which program a call is, and who keeps account of it.
pub struct Measured {
    pub program: usize,
    pub procedure: u32,
    pub account: Option<Account>,
}

/// A call whose payload is still being received.
pub struct LargeCall {
    program: usize,
    begin: BeginWithPayload,
}

impl LargeCall {
    pub fn begin(self, payload: Bytes, tail: &[u8]) -> Dispatched {
        dispatched(self.program, (self.begin)(payload, tail))
    }
}

/// The programs as one client meets them over one connection, or in one datagram.
pub struct Dispatcher {
    pub peer: Arc<Peer>,
    table: Arc<Table>,
    /// By place in the table; made by the first call of each program.
    handlers: Vec<Option<Box<dyn Handler>>>,
}

impl Dispatcher {
    pub fn new(table: Arc<Table>, peer: Peer) -> Self {
        let handlers = table.programs.iter().map(|_| None).collect();
        Self {
            peer: Arc::new(peer),
            table,
            handlers,
        }
    }

    /// Sets the admission of a client of a cluster. Call it before the first call. `is_forwarded`: another node passes its calls on.
    pub fn admitted(mut self, admission: &Arc<Admission>, is_forwarded: bool) -> Self {
        if let Some(peer) = Arc::get_mut(&mut self.peer) {
            peer.is_forwarded = is_forwarded;
            peer.admission = Some(Arc::downgrade(admission));
        }
        self
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The rights have changed.
    pub fn renew(&mut self) {
        for handler in self.handlers.iter_mut().flatten() {
            handler.renew();
        }
    }

    /// Begins the call in `record`. An error means that the bytes are not a call that could be answered.
    pub fn begin(&mut self, record: &[u8]) -> Result<Dispatched, DecodeError> {
        let mut from = Reader::new(record);
        let call = match decode_call(&mut from)? {
            Incoming::Call(call) => call,
            Incoming::Refused { xid, rejection } => {
                return Ok(ready(self.peer.rejected(xid, rejection)));
            }
        };
        Ok(match self.table.find(&call) {
            Ok(program) => dispatched(program, self.handler(program).begin(&call, from)),
            Err(status) => ready(self.peer.unknown(call.xid, status)),
        })
    }

    /// Asks the program about the head of a large record.
    pub fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> Verdict<crate::Reply, LargeCall> {
        let Ok(program) = self.table.find(call) else {
            return Verdict::Ordinary;
        };
        let handler = self.handler(program);
        match handler.begin_large(call, args, args_len_bytes) {
            Verdict::NeedsMore => Verdict::NeedsMore,
            Verdict::Ordinary => Verdict::Ordinary,
            Verdict::Refused(reply) => Verdict::Refused(reply),
            Verdict::Payload {
                call: begin,
                payload_start,
                payload_len_bytes,
            } => Verdict::Payload {
                call: LargeCall { program, begin },
                payload_start,
                payload_len_bytes,
            },
        }
    }

    fn handler(&mut self, program: usize) -> &mut dyn Handler {
        let handler = &mut self.handlers[program];
        &mut **handler.get_or_insert_with(|| self.table.programs[program].connect(&self.peer))
    }
}

fn dispatched(program: usize, call: StartedCall) -> Dispatched {
    Dispatched {
        started: call.started,
        measured: call.procedure.map(|procedure| Measured {
            program,
            procedure,
            account: call.account,
        }),
        held_bytes: call.held_bytes,
        delay: call.delay,
    }
}

fn ready(reply: crate::Reply) -> Dispatched {
    Dispatched {
        started: Started::Ready(reply),
        measured: None,
        held_bytes: 0,
        delay: None,
    }
}
