//! What the errors of etcd and of its client mean.
//!
//! Owns: which of them say that nothing was done, and whether another member may know better.
//! Must not know: requests.
//!
//! etcd's own words are in `api/v3rpc/rpctypes/error.go` of its sources.

use std::error::Error as _;

use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::coordinator::{CoordinatorError, LeaseId};

/// Why a request to one member failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: CoordinatorError,
    /// Whether the request may have been done, or may yet be.
    pub maybe_done: bool,
    pub another_member_may_help: bool,
    lease_not_found: bool,
}

impl Failure {
    pub fn new(error: CoordinatorError, maybe_done: bool) -> Self {
        Self {
            error,
            maybe_done,
            another_member_may_help: true,
            lease_not_found: false,
        }
    }

    /// An error that any member would answer with.
    fn certain(error: CoordinatorError) -> Self {
        Self {
            another_member_may_help: false,
            ..Self::new(error, false)
        }
    }

    /// Nothing but the connection was made when this happened.
    pub fn before_sending(mut self) -> Self {
        self.maybe_done = false;
        self
    }

    /// etcd does not say which lease it does not know.
    pub fn naming_lease(self, lease: Option<LeaseId>) -> CoordinatorError {
        match lease {
            Some(lease) if self.lease_not_found => CoordinatorError::LeaseNotFound(lease),
            _ => self.error,
        }
    }
}

pub(super) fn of(endpoint: &str, error: Error) -> Failure {
    match error {
        Error::GRpcStatus(status) => of_status(endpoint, &status),
        Error::LeaseKeepAliveError(message) if message.contains("lease not found") => {
            lease_not_found(endpoint, &message)
        }
        Error::InvalidArgs(message) | Error::EndpointError(message) => Failure::certain(
            CoordinatorError::BadSettings(format!("{endpoint}: {message}")),
        ),
        Error::InvalidUri(error) => Failure::certain(CoordinatorError::BadSettings(format!(
            "{endpoint} is not an address: {error}"
        ))),
        // Certificates that cannot be read, among others.
        Error::TransportError(error) => Failure::certain(CoordinatorError::BadSettings(format!(
            "{endpoint}: {}",
            with_sources(&error)
        ))),
        other => Failure::new(
            CoordinatorError::Unreachable(format!("{endpoint}: {other}")),
            true,
        ),
    }
}

fn of_status(endpoint: &str, status: &Status) -> Failure {
    let message = status.message();
    let text = format!("{endpoint}: {message}");
    let says = |words: &str| message.contains(words);
    if not_connected(status) {
        let error = CoordinatorError::Unreachable(format!("{endpoint}: {}", with_sources(status)));
        return Failure::new(error, false);
    }
    if says("requested lease not found") {
        return lease_not_found(endpoint, message);
    }
    if says("database space exceeded") || says("no space") {
        return Failure::certain(CoordinatorError::NoSpace(text));
    }
    if says("corrupt") {
        return Failure::certain(CoordinatorError::Corrupt(text));
    }
    if says("request is too large") || says("too many operations in txn request") {
        return Failure::certain(CoordinatorError::TooLarge(text));
    }
    // Said by a member that refuses to take the request, not by one that lost its leader while it worked on it.
    if message == "etcdserver: no leader" {
        return Failure::new(CoordinatorError::NoLeader(text), false);
    }
    if says("not capable") || says("etcdserver: too many requests") {
        return Failure::new(CoordinatorError::Other(text), false);
    }
    // Users changed between the request and its turn. etcd looks at that before it does anything; 3.4 says it in other words.
    if says("revision in header is old") || says("revision of auth store is old") {
        return Failure::new(CoordinatorError::Other(text), false);
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            Failure::certain(CoordinatorError::Refused(text))
        }
        Code::InvalidArgument if says("auth") || says("user name") || says("password") => {
            Failure::certain(CoordinatorError::Refused(text))
        }
        Code::FailedPrecondition if says("auth") => {
            Failure::certain(CoordinatorError::Refused(text))
        }
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::NotFound
        | Code::FailedPrecondition
        | Code::Unimplemented => Failure::certain(CoordinatorError::Other(text)),
        // Everything else may have happened on the way back.
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Failure::new(
            CoordinatorError::Unreachable(format!("{endpoint}: {}", with_sources(status))),
            true,
        ),
        _ => Failure::new(CoordinatorError::Other(text), true),
    }
}

fn lease_not_found(endpoint: &str, message: &str) -> Failure {
    Failure {
        lease_not_found: true,
        ..Failure::certain(CoordinatorError::Other(format!("{endpoint}: {message}")))
    }
}

/// Whether etcd says that a user or role that was to be added is there.
pub(super) fn is_there_already(error: &CoordinatorError) -> bool {
    says_of(
        error,
        &["user name already exists", "role name already exists"],
    )
}

/// Whether etcd says that what was to be removed or read is not there: a user, a role, a role of a user, a right of a role.
pub(super) fn is_not_there(error: &CoordinatorError) -> bool {
    says_of(
        error,
        &[
            "user name not found",
            "role name not found",
            "role is not granted to the user",
            "permission is not granted to the role",
        ],
    )
}

fn says_of(error: &CoordinatorError, words: &[&str]) -> bool {
    let text = match error {
        CoordinatorError::Other(text) | CoordinatorError::Refused(text) => text,
        _ => return false,
    };
    words.iter().any(|words| text.contains(words))
}

/// Whether no connection was there to send the request on.
fn not_connected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// An error with what caused it; without, tonic only says "transport error".
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}

/// What a member's list of errors means; it has the alarms in it.
pub(super) fn of_alarms(endpoint: &str, errors: &[String]) -> Option<CoordinatorError> {
    errors.iter().find_map(|error| {
        let text = format!("{endpoint}: {error}");
        if error.contains("NOSPACE") {
            Some(CoordinatorError::NoSpace(text))
        } else if error.contains("CORRUPT") {
            Some(CoordinatorError::Corrupt(text))
        } else if error.contains("no leader") {
            Some(CoordinatorError::NoLeader(text))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::ErrorKind;

    #[test]
    fn errors_of_etcd_say_what_was_done_and_who_may_help() {
        // (code, message, maybe done, another member may help, kind)
        let cases = [
            (
                Code::Unavailable,
                "etcdserver: no leader",
                false,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::Unavailable,
                "etcdserver: leader changed",
                true,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out",
                true,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                true,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                false,
                false,
                ErrorKind::NeedsOperator,
            ),
            (
                Code::DataLoss,
                "etcdserver: corrupt cluster",
                false,
                false,
                ErrorKind::NeedsOperator,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                false,
                false,
                ErrorKind::BadRequest,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                false,
                false,
                ErrorKind::NeedsOperator,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                false,
                false,
                ErrorKind::NeedsOperator,
            ),
            (
                Code::Unknown,
                "auth: revision in header is old",
                false,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                false,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: re-configuration failed due to not enough started members",
                false,
                false,
                ErrorKind::Retry,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                false,
                true,
                ErrorKind::Retry,
            ),
            (
                Code::Unknown,
                "transport error",
                true,
                true,
                ErrorKind::Retry,
            ),
        ];
        for (code, message, maybe_done, another, kind) in cases {
            let failure = of("http://a:1", Error::GRpcStatus(Status::new(code, message)));
            assert_eq!(failure.maybe_done, maybe_done, "{message}");
            assert_eq!(failure.another_member_may_help, another, "{message}");
            assert_eq!(failure.error.kind(), kind, "{message}");
            assert!(
                failure.error.to_string().contains("http://a:1"),
                "{message}"
            );
        }
    }

    #[test]
    fn what_is_done_already_is_told_from_what_fails() {
        for (message, there, gone) in [
            ("etcdserver: user name already exists", true, false),
            ("etcdserver: role name already exists", true, false),
            ("etcdserver: user name not found", false, true),
            ("etcdserver: role is not granted to the user", false, true),
            ("etcdserver: role name not found", false, true),
            (
                "etcdserver: permission is not granted to the role",
                false,
                true,
            ),
            ("etcdserver: permission denied", false, false),
        ] {
            let status = Status::new(Code::FailedPrecondition, message);
            let error = of("http://a:1", Error::GRpcStatus(status)).error;
            let found = (is_there_already(&error), is_not_there(&error));
            assert_eq!(found, (there, gone), "{message}");
        }
    }

    #[test]
    fn a_lease_that_ended_is_named() {
        let status = Status::new(Code::NotFound, "etcdserver: requested lease not found");
        let failure = of("http://a:1", Error::GRpcStatus(status));
        let lease = LeaseId(7);
        assert_eq!(
            failure.naming_lease(Some(lease)),
            CoordinatorError::LeaseNotFound(lease)
        );
    }
}
