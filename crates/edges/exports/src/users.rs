//! The user behind the credential of an RPC call.
//!
//! Owns: reading AUTH_NONE and AUTH_SYS, squashing by the rule of the volume, remembering recent users.
//! Must not know: programs and procedures, connections.

use std::sync::Arc;

use cairn_codec_rpc::{AuthStatus, Credential, OpaqueAuth};
use cairn_fs::Credentials;

use crate::table::PeerExports;

/// Most users of one connection that are remembered.
const USER_COUNT_MAX: usize = 8;

/// The users of recent calls of one connection, so that most calls need not decode and
/// copy their groups again.
#[derive(Default)]
pub struct Users {
    known: Vec<KnownUser>,
    replace_next: usize,
}

struct KnownUser {
    flavor: u32,
    body: Box<[u8]>,
    grant: usize,
    who: Arc<Credentials>,
}

impl Users {
    /// Call this when the exports of the connection are replaced: rights and squashing may have changed.
    pub fn forget(&mut self) {
        self.known.clear();
        self.replace_next = 0;
    }

    /// Who the sender of `sent` is on the volume of a grant of `exports`.
    pub fn user(
        &mut self,
        exports: &PeerExports,
        grant: usize,
        sent: &OpaqueAuth<'_>,
    ) -> Result<Arc<Credentials>, AuthStatus> {
        let known = self.known.iter().find(|user| {
            user.grant == grant && user.flavor == sent.flavor && *user.body == *sent.body
        });
        if let Some(user) = known {
            return Ok(Arc::clone(&user.who));
        }
        let who = Arc::new(user(exports, grant, sent)?);
        let user = KnownUser {
            flavor: sent.flavor,
            body: sent.body.into(),
            grant,
            who: Arc::clone(&who),
        };
        if self.known.len() < USER_COUNT_MAX {
            self.known.push(user);
        } else {
            self.known[self.replace_next] = user;
            self.replace_next = (self.replace_next + 1) % USER_COUNT_MAX;
        }
        Ok(who)
    }
}

/// Who the sender of `sent` is on the volume of a grant of `exports`, remembered by nobody.
pub fn user(
    exports: &PeerExports,
    grant: usize,
    sent: &OpaqueAuth<'_>,
) -> Result<Credentials, AuthStatus> {
    Ok(exports.grants()[grant].rule.who(caller(sent)?.as_ref()))
}

/// Who calls, as the client says it: not squashed. `None` if it does not say (AUTH_NONE).
pub fn caller(sent: &OpaqueAuth<'_>) -> Result<Option<Credentials>, AuthStatus> {
    match sent.credential()? {
        Credential::None => Ok(None),
        Credential::Sys(sys) => Ok(Some(Credentials {
            uid: sys.uid,
            gid: sys.gid,
            groups: sys.groups.to_vec(),
            request: None,
        })),
        Credential::Other(_) => Err(AuthStatus::BadCredential),
    }
}
