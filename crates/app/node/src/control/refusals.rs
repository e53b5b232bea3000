//! Hints of refusals.

use cairn_admin::ControlError;
use cairn_admin::api::ErrorKind;
use cairn_formats::pool_file::ChangeError;
use cairn_pool::truth::SaveError;

use crate::node::ChangeFailure;

pub(crate) fn refusal(failure: ChangeFailure) -> ControlError {
    let message = failure.to_string();
    match failure {
        ChangeFailure::Refused(ChangeError::NotFound(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn volume list` shows all volumes")
        }
        ChangeFailure::Refused(ChangeError::NoRule { .. }) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn export list` shows all rules")
        }
        ChangeFailure::Refused(ChangeError::Exists(_)) => {
            ControlError::new(ErrorKind::Conflict, message).hint("choose another name")
        }
        ChangeFailure::Refused(ChangeError::SharesKey { .. }) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("delete the clones first: they share the volume's key")
        }
        ChangeFailure::Refused(
            ChangeError::TooManyVolumes | ChangeError::TooManyRules | ChangeError::TooLong { .. },
        ) => ControlError::new(ErrorKind::Conflict, message)
            .hint("delete an unneeded one first"),
        ChangeFailure::Refused(ChangeError::NoClass(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn class list` shows all classes")
        }
        ChangeFailure::Refused(ChangeError::ClassExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("change it with `cairn class set`, or choose another name")
        }
        ChangeFailure::Refused(ChangeError::ClassBuiltIn(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("create a class with another name: `cairn class create`")
        }
        ChangeFailure::Refused(ChangeError::ClassInUse { .. }) => {
            ControlError::new(ErrorKind::Conflict, message).hint(
                "first move these volumes to another class: `cairn volume set VOLUME --class CLASS`, or `--class none`",
            )
        }
        ChangeFailure::Refused(ChangeError::NoTier(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn tier list` shows all tiers")
        }
        ChangeFailure::Refused(ChangeError::TierExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message).hint("choose another name")
        }
        ChangeFailure::Refused(ChangeError::TooManyTiers) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("`cairn tier remove` removes an empty tier")
        }
        ChangeFailure::Refused(ChangeError::NoUser(_)) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn user list` shows all users")
        }
        ChangeFailure::Refused(ChangeError::UserExists(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("change the user with `cairn user set` or `cairn user password`, or choose another name")
        }
        ChangeFailure::Refused(ChangeError::UserChanged(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("check the user's current settings, and try again")
        }
        ChangeFailure::Refused(ChangeError::NoLimit { .. }) => {
            ControlError::new(ErrorKind::NotFound, message)
                .hint("`cairn limit list VOLUME` shows all limits of a volume")
        }
        ChangeFailure::Refused(ChangeError::TooManyClasses | ChangeError::TooManyLimits | ChangeError::TooManyUsers) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("delete an unneeded one first")
        }
        ChangeFailure::Refused(
            ChangeError::ClassProblem { .. }
            | ChangeError::ClassOfVolume { .. }
            | ChangeError::LimitProblem { .. },
        ) => ControlError::new(ErrorKind::Invalid, message),
        ChangeFailure::Exported(name) => ControlError::new(ErrorKind::Conflict, message).hint(
            format!("remove its export first (`cairn export remove {name}`), or use --force"),
        ),
        ChangeFailure::NoMedia(kind) => ControlError::new(ErrorKind::Conflict, message).hint(format!(
            "add a disk with `cairn disk add FOLDER --media {kind}`, or set a disk's device class with `cairn disk set DISK --media {kind}`"
        )),
        ChangeFailure::NoDisk(_) => ControlError::new(ErrorKind::NotFound, message)
            .hint("`cairn disk list` shows all disks"),
        ChangeFailure::Impossible(_) => ControlError::new(ErrorKind::Conflict, message),
        ChangeFailure::Save(SaveError::Conflict(_)) => {
            ControlError::new(ErrorKind::Conflict, message)
                .hint("check the current state, and try again")
        }
        ChangeFailure::Save(_) | ChangeFailure::Engine(_) => {
            tracing::error!(%message, "a change of the pool failed");
            ControlError::new(ErrorKind::Internal, message)
                .hint("`cairn disk list` shows the state of the disks; the server's log has details")
        }
    }
}

pub(super) fn not_found(why: String) -> ControlError {
    ControlError::new(ErrorKind::NotFound, why)
}
