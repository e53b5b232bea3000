//! NLM: what a client hears when a program locks a file over a mount without `nolock`.
//!
//! Owns: the answer that there are no locks here. Without one the client would ask for ever, and the
//! program would hang; with it the program sees ENOLCK at once.
//! Must not know: files. The answer is the same for each, so that it tells nothing.

use std::sync::Arc;

use cairn_codec_nfs::nlm::{
    Call, Object, Outcome, PROGRAM, Procedure, ShareOutcome, Status, VERSION_1, VERSION_3,
    VERSION_4,
};
use cairn_codec_rpc::{AcceptStatus, CallHeader, Reader};
use cairn_rpc_server::{Handler, Peer, Program, Reply, StartedCall, Transport};

use crate::service::Service;

/// NLM as a program of the server.
pub struct NlmProgram(pub Arc<Service>);

impl Program for NlmProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> &[u32] {
        &[VERSION_1, VERSION_3, VERSION_4]
    }

    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler> {
        Box::new(NlmHandler {
            service: Arc::clone(&self.0),
            peer: Arc::clone(peer),
        })
    }
}

struct NlmHandler {
    service: Arc<Service>,
    peer: Arc<Peer>,
}

impl Handler for NlmHandler {
    fn begin(&mut self, call: &CallHeader<'_>, args: Reader<'_>) -> StartedCall {
        self.peer.count_other();
        StartedCall::ready(self.answer(call, args))
    }
}

impl NlmHandler {
    fn answer(&self, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
        let xid = call.xid;
        // No client is told of NLM over UDP, so none asks there.
        if self.peer.transport == Transport::Udp {
            return self.peer.unknown(xid, AcceptStatus::ProgramUnavailable);
        }
        let Some(procedure) = Procedure::of_version(call.version, call.procedure) else {
            return self.peer.unknown(xid, AcceptStatus::ProcedureUnavailable);
        };
        let Ok(decoded) = Call::decode(call.version, procedure, &mut args) else {
            return self.peer.garbage(xid);
        };
        let outcome = |cookie, status| Reply::success(xid, &Outcome { cookie, status });
        match decoded {
            Call::Null | Call::FreeAll(_) => Reply::success(xid, &()),
            Call::Test { cookie, .. } => outcome(cookie, self.refuse()),
            Call::Lock(args) | Call::UnmonitoredLock(args) => outcome(args.cookie, self.refuse()),
            // No lock is waited for. Linux sends a CANCEL that is answered `DeniedNoLocks` three times
            // more, half a minute apart, and its program waits for that.
            Call::Cancel { cookie, .. } => outcome(cookie, Status::Denied),
            // Whatever it was, it is free.
            Call::Unlock { cookie, .. } => outcome(cookie, Status::Granted),
            Call::Share(args) => share_outcome(xid, args.cookie, self.refuse()),
            Call::Unshare(args) => share_outcome(xid, args.cookie, Status::Granted),
        }
    }

    /// Counts a lock that is not given, and says so in the log once: it may happen many times a second.
    fn refuse(&self) -> Status {
        if self.service.metrics.count_lock_refused() == 1 {
            tracing::warn!(
                client = %self.peer.address,
                "a program asked for a lock and got ENOLCK: locks across clients are not supported; \
                 mount with `nolock` for locks within one client (not logged again)"
            );
        }
        Status::DeniedNoLocks
    }
}

fn share_outcome(xid: u32, cookie: Object<'_>, status: Status) -> Reply {
    let sequence = 0;
    Reply::success(
        xid,
        &ShareOutcome {
            cookie,
            status,
            sequence,
        },
    )
}
