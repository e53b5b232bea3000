//! The audit log: which user changed what, and when.
//!
//! Owns: how many changes are kept. Must not know: the contents of an entry, which clients ask for them
//! (`cairn_admin::audit`), how they are kept ([`crate::entry_log`]).

use cairn_admin::api::ErrorKind;
use cairn_admin::audit::{AuditControl, AuditEntry, AuditPage, AuditQuery};
use cairn_admin::{Answer, ControlError};

use crate::control::Controller;
use crate::entry_log::LogKind;

/// The folder in a data folder.
pub const AUDIT_NAME: &str = "audit";

/// About 40,000 usual changes.
pub const AUDIT: LogKind = LogKind {
    name: AUDIT_NAME,
    shown: "the audit log",
    lines_len_bytes_max: 8 << 20,
};

impl AuditControl for Controller {
    fn note(&self, entry: AuditEntry) -> Answer<'_, ()> {
        Box::pin(async move {
            let noted = self.inner.audit.append(&self.inner, vec![entry]).await;
            noted.map_err(|problem| ControlError::new(ErrorKind::Unavailable, problem))
        })
    }

    fn audit(&self, query: AuditQuery) -> Answer<'_, AuditPage> {
        Box::pin(async move {
            Ok(self.inner.audit.look(|kept| AuditPage {
                first_seconds: kept.first_seconds(),
                problem: kept.problem(),
                ..query.page(kept.newest_first())
            }))
        })
    }
}
