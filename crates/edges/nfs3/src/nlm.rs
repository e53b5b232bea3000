//! NLM: what a client hears when a program locks a file over a mount without `nolock`.
//!
//! Owns: the answer that there are no locks here. Without one the client would ask for ever, and the
//! program would hang; with it the program sees ENOLCK at once.
//! Must not know: files. The answer is the same for each, so that it tells nothing.

use std::sync::atomic::Ordering;

use cairn_codec_nfs::nlm::{Call, Object, Outcome, Procedure, ShareOutcome, Status};
use cairn_codec_rpc::{AcceptStatus, CallHeader, Reader};

use crate::reply::Reply;
use crate::service::{Session, Transport};

/// Serves one call.
pub fn answer(session: &Session, call: &CallHeader<'_>, mut args: Reader<'_>) -> Reply {
    let xid = call.xid;
    // Nobody is told of NLM over UDP, so nobody asks there.
    if session.transport == Transport::Udp {
        return session.unknown(xid, AcceptStatus::ProgramUnavailable);
    }
    let Some(procedure) = Procedure::of_version(call.version, call.procedure) else {
        return session.unknown(xid, AcceptStatus::ProcedureUnavailable);
    };
    let Ok(decoded) = Call::decode(call.version, procedure, &mut args) else {
        return session.garbage(xid);
    };
    let outcome = |cookie, status| Reply::success(xid, &Outcome { cookie, status });
    match decoded {
        Call::Null | Call::FreeAll(_) => Reply::success(xid, &()),
        Call::Test { cookie, .. } => outcome(cookie, refuse(session)),
        Call::Lock(args) | Call::UnmonitoredLock(args) => outcome(args.cookie, refuse(session)),
        // No lock is waited for. Linux sends a CANCEL that is answered `DeniedNoLocks` three times
        // more, half a minute apart, and its program waits for that.
        Call::Cancel { cookie, .. } => outcome(cookie, Status::Denied),
        // Whatever it was, it is free.
        Call::Unlock { cookie, .. } => outcome(cookie, Status::Granted),
        Call::Share(args) => share_outcome(xid, args.cookie, refuse(session)),
        Call::Unshare(args) => share_outcome(xid, args.cookie, Status::Granted),
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

/// Counts a lock that is not given, and says so in the log, once: it may happen many times a second.
fn refuse(session: &Session) -> Status {
    let refused = &session.service.metrics.events.locks_refused;
    if refused.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::warn!(
            client = %session.peer,
            "a program asked for a lock and got ENOLCK: locks across clients are not supported; \
             mount with `nolock` for locks within one client (not logged again)"
        );
    }
    Status::DeniedNoLocks
}
