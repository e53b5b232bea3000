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
        ChangeFailure::NoRoom(_) | ChangeFailure::Save(SaveError::Disks { is_full: true, .. }) => {
            disks_full(message)
        }
        ChangeFailure::Save(_) | ChangeFailure::Engine(_) => {
            tracing::error!(%message, "a change of the pool failed");
            ControlError::new(ErrorKind::Internal, message)
                .hint("`cairn disk list` shows the state of the disks; the server's log has details")
        }
    }
}

/// The disks had no room for a change of the pool.
fn disks_full(message: String) -> ControlError {
    ControlError::new(ErrorKind::Conflict, message).hint(
        "free space on the file systems of these disks, or add a disk (`cairn disk add FOLDER`), then try again; `cairn status` shows which disks are full",
    )
}

/// A volume had no room for a change of it: a limit is reached, or it is read-only until its disks have room.
pub(crate) fn no_room(message: impl Into<String>) -> ControlError {
    ControlError::new(ErrorKind::Conflict, message).hint(
        "`cairn status` shows whether disks are full or the volume is read-only, `cairn quota list VOLUME` and `cairn volume list` which limit is reached",
    )
}

pub(super) fn not_found(why: String) -> ControlError {
    ControlError::new(ErrorKind::NotFound, why)
}

#[cfg(test)]
mod tests {
    use cairn_config::VolumeName;
    use cairn_fs::FsError;
    use cairn_objects::ObjectError;
    use cairn_san::SanError;

    use super::*;
    use crate::{policies, quotas, s3, san, snapshots};

    /// A lack of room is no fault of the server: each reply is 409, and suggests a remedy.
    #[test]
    fn want_of_room_is_no_internal_error() {
        let volume: VolumeName = "main".parse().unwrap();
        let text = || "disk0: no space left".to_owned();
        let of_pool_file = |is_full| {
            refusal(ChangeFailure::Save(SaveError::Disks {
                needed: 2,
                saved: 1,
                detail: text(),
                is_full,
            }))
        };
        let of_volume = |error: FsError| {
            [
                ("buckets", s3::refused(error.clone().into())),
                ("LUNs", san::refused(SanError::Fs(error.clone()))),
                ("quotas", quotas::refused("/", error.clone())),
                ("policies", policies::failed(&volume, "/", &error)),
                ("snapshots", snapshots::refused("s", error.clone().into())),
                ("schedules", snapshots::schedules_refused(error.into())),
            ]
        };
        let of_key = |error| {
            s3::refused(ObjectError::RevokedHere {
                id: "KEY".to_owned(),
                error,
            })
        };
        let mut cases = vec![
            ("a volume", refusal(ChangeFailure::NoRoom(text()))),
            ("the pool file", of_pool_file(true)),
            ("an access key", of_key(FsError::NoSpace)),
        ];
        cases.extend(of_volume(FsError::NoSpace));
        cases.extend(of_volume(FsError::QuotaExceeded));
        for (name, refused) in cases {
            assert_eq!(refused.kind, ErrorKind::Conflict, "{name}");
            assert!(refused.hint.is_some_and(|hint| !hint.is_empty()), "{name}");
        }
        // Other faults of the disks stay internal errors.
        assert_eq!(of_pool_file(false).kind, ErrorKind::Internal);
        assert_eq!(
            refusal(ChangeFailure::Engine(text())).kind,
            ErrorKind::Internal
        );
        assert!(of_key(FsError::NoSpace).message.contains("not stored"));
    }
}
