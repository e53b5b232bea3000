//! Permission checks: POSIX.1-2017, section 4.5 (file access permissions), with the additions that
//! Linux and NFS servers make.

use crate::types::{Credentials, FileKind, FsError};

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const EXECUTE: u32 = 1;

pub const MODE_SET_UID: u32 = 0o4000;
pub const MODE_SET_GID: u32 = 0o2000;
pub const MODE_STICKY: u32 = 0o1000;
pub const MODE_MASK: u32 = 0o7777;

/// The attributes that a permission check needs.
#[derive(Clone, Copy, Debug)]
pub struct Guarded {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The bits of READ, WRITE and EXECUTE that `who` has.
///
/// Root has all, but may execute a file only if some user may.
pub fn granted(who: &Credentials, file: Guarded) -> u32 {
    if who.is_root() {
        let executable = file.kind == FileKind::Directory || file.mode & 0o111 != 0;
        return READ | WRITE | if executable { EXECUTE } else { 0 };
    }
    let shift = if who.uid == file.uid {
        6
    } else if who.in_group(file.gid) {
        3
    } else {
        0
    };
    file.mode >> shift & 7
}

/// Fails with `AccessDenied` unless `who` has all of `wanted`.
pub fn require(who: &Credentials, file: Guarded, wanted: u32) -> Result<(), FsError> {
    if granted(who, file) & wanted == wanted {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Checks READ or WRITE of data over a protocol without open. The owner always may, because it may have opened the
/// file before it took its own permission away (RFC 1813, section 4.4). A user that may only execute a file may also
/// read it, because its client has to fetch the pages to run them.
pub fn require_data(who: &Credentials, file: Guarded, wanted: u32) -> Result<(), FsError> {
    let mut has = granted(who, file);
    if who.uid == file.uid {
        has |= READ | WRITE;
    }
    if has & EXECUTE != 0 {
        has |= READ;
    }
    if has & wanted == wanted {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Whether `who` may remove or replace `child` in `dir`, beyond writing to the directory: in a sticky directory only
/// the owner of either may.
pub fn require_unsticky(who: &Credentials, dir: Guarded, child: Guarded) -> Result<(), FsError> {
    if dir.mode & MODE_STICKY == 0 || who.is_root() || who.uid == child.uid || who.uid == dir.uid {
        Ok(())
    } else {
        Err(FsError::NotOwner)
    }
}

/// The mode of a file after an unprivileged user wrote to it or its owner was changed: clears set-uid, and set-gid
/// unless it marks mandatory locking (no group execute).
pub fn without_privilege_bits(mode: u32) -> u32 {
    let mode = mode & !MODE_SET_UID;
    if mode & 0o010 != 0 {
        mode & !MODE_SET_GID
    } else {
        mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: groups.to_vec(),
            request: None,
        }
    }

    fn file(kind: FileKind, mode: u32) -> Guarded {
        Guarded {
            kind,
            mode,
            uid: 10,
            gid: 20,
        }
    }

    #[test]
    fn bits_come_from_the_first_class_that_matches() {
        let regular = FileKind::Regular;
        let cases: &[(&str, Credentials, u32, u32)] = &[
            ("owner", who(10, 1, &[]), 0o640, READ | WRITE),
            (
                "owner without bits, group has them",
                who(10, 20, &[]),
                0o070,
                0,
            ),
            ("group", who(1, 20, &[]), 0o640, READ),
            ("supplementary group", who(1, 1, &[5, 20]), 0o640, READ),
            (
                "group without bits, others have them",
                who(1, 20, &[]),
                0o607,
                0,
            ),
            ("others", who(1, 1, &[]), 0o641, EXECUTE),
            ("root", who(0, 0, &[]), 0o000, READ | WRITE),
            (
                "root, executable by others",
                who(0, 0, &[]),
                0o001,
                READ | WRITE | EXECUTE,
            ),
        ];
        for (name, who, mode, want) in cases {
            assert_eq!(granted(who, file(regular, *mode)), *want, "{name}");
        }
        assert_eq!(
            granted(&who(0, 0, &[]), file(FileKind::Directory, 0)),
            READ | WRITE | EXECUTE
        );
    }

    #[test]
    fn owner_reads_and_writes_data_whatever_the_mode() {
        let locked = file(FileKind::Regular, 0o000);
        assert!(require_data(&who(10, 1, &[]), locked, READ | WRITE).is_ok());
        assert!(require_data(&who(11, 1, &[]), locked, READ).is_err());
        let executable = file(FileKind::Regular, 0o711);
        assert!(require_data(&who(11, 1, &[]), executable, READ).is_ok());
        assert!(require_data(&who(11, 1, &[]), executable, WRITE).is_err());
    }

    #[test]
    fn privilege_bits_are_dropped() {
        let cases: &[(u32, u32)] = &[
            (0o4755, 0o755),
            (0o2755, 0o755),
            (0o2745, 0o2745),
            (0o6777, 0o777),
        ];
        for (mode, want) in cases {
            assert_eq!(without_privilege_bits(*mode), *want, "{mode:o}");
        }
    }
}
