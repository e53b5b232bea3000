//! Translates between the values of `fs` and `exports` and those of RFC 1813: one `match` per direction.
//!
//! Owns: status codes, attributes, times.
//! Must not know: procedures.

use cairn_base::{Timestamp, VolumeId};
use cairn_codec_nfs::v3::{self, ErrorStatus, FileType, NfsTime, WccAttr, WccData};
use cairn_exports::Refusal;
use cairn_fs::{Attr, CreateMode, FileKind, FsError, PreAttr, SetAttr, SetTime, Wcc};

/// The status of a call on a volume that was lost while the call was under way. No client is told it: another owner
/// answers, or the client is to come later.
pub const FENCED: ErrorStatus = ErrorStatus::ServerFault;

/// The status that tells a client about an error.
pub fn status(error: &FsError) -> ErrorStatus {
    match error {
        FsError::NotFound => ErrorStatus::NoEnt,
        FsError::Exists => ErrorStatus::Exist,
        FsError::NotDirectory => ErrorStatus::NotDir,
        FsError::IsDirectory => ErrorStatus::IsDir,
        FsError::NotOwner => ErrorStatus::Perm,
        FsError::AccessDenied => ErrorStatus::Access,
        FsError::NameTooLong => ErrorStatus::NameTooLong,
        FsError::Invalid => ErrorStatus::Inval,
        FsError::NoSpace => ErrorStatus::NoSpc,
        FsError::QuotaExceeded => ErrorStatus::DQuot,
        FsError::CrossTree => ErrorStatus::XDev,
        FsError::ReadOnly => ErrorStatus::RoFs,
        FsError::Stale => ErrorStatus::Stale,
        FsError::NotEmpty => ErrorStatus::NotEmpty,
        FsError::TooManyLinks => ErrorStatus::MLink,
        FsError::FileTooLarge => ErrorStatus::FBig,
        FsError::BadCookie => ErrorStatus::BadCookie,
        FsError::NotSync => ErrorStatus::NotSync,
        // NFSv3 has no extended attributes, so the last two do not come this way.
        FsError::NotSupported | FsError::NoAttribute | FsError::AttributeTooLarge => {
            ErrorStatus::NotSupp
        }
        FsError::Io(_) => ErrorStatus::Io,
        // Clients try again after a while when told so, and say nothing to their users.
        FsError::TryLater | FsError::NotOwn(_) | FsError::Unreachable(_) => ErrorStatus::JukeBox,
        FsError::Fenced => FENCED,
    }
}

/// The status that tells a client why it may not use what a handle names.
pub fn refusal(refusal: Refusal) -> ErrorStatus {
    match refusal {
        Refusal::NotAllowed => ErrorStatus::Access,
        Refusal::NotOpen => ErrorStatus::JukeBox,
        Refusal::NotExported | Refusal::NoSuchView => ErrorStatus::Stale,
    }
}

pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
    }
}

/// `nfstime3` counts unsigned seconds: a time before 1970 or after 2106 becomes the nearest that it has.
pub fn time(time: Timestamp) -> NfsTime {
    match u32::try_from(time.seconds) {
        Ok(seconds) => NfsTime {
            seconds,
            nanos: time.nanos,
        },
        Err(_) if time.seconds < 0 => NfsTime::default(),
        Err(_) => NfsTime {
            seconds: u32::MAX,
            nanos: 999_999_999,
        },
    }
}

/// Refuses what is not a time.
pub fn timestamp(time: NfsTime) -> Result<Timestamp, ErrorStatus> {
    if time.nanos >= 1_000_000_000 {
        return Err(ErrorStatus::Inval);
    }
    Ok(Timestamp::new(i64::from(time.seconds), time.nanos))
}

pub fn attr(volume: VolumeId, attr: &Attr) -> v3::FileAttr {
    v3::FileAttr {
        file_type: file_type(attr.kind),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size_bytes: attr.size_bytes,
        used_bytes: attr.used_bytes,
        device: v3::DeviceNumber {
            major: attr.device_major,
            minor: attr.device_minor,
        },
        fsid: u64::from(volume.0),
        fileid: attr.ino.0,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

fn pre_attr(attr: &PreAttr) -> WccAttr {
    WccAttr {
        size_bytes: attr.size_bytes,
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

pub fn wcc(volume: VolumeId, wcc: &Wcc) -> WccData {
    WccData {
        before: Some(pre_attr(&wcc.before)),
        after: Some(attr(volume, &wcc.after)),
    }
}

fn set_time(time: v3::SetTime) -> Result<SetTime, ErrorStatus> {
    Ok(match time {
        v3::SetTime::Keep => SetTime::Keep,
        v3::SetTime::ServerTime => SetTime::Now,
        v3::SetTime::ClientTime(time) => SetTime::To(timestamp(time)?),
    })
}

pub fn set_attr(set: &v3::SetAttributes) -> Result<SetAttr, ErrorStatus> {
    Ok(SetAttr {
        // Clients may send the type bits along, as `stat` has them.
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size_bytes: set.size_bytes,
        atime: set_time(set.atime)?,
        mtime: set_time(set.mtime)?,
    })
}

pub fn create_mode(how: &v3::CreateHow) -> Result<CreateMode, ErrorStatus> {
    Ok(match how {
        v3::CreateHow::Unchecked(set) => CreateMode::Unchecked(set_attr(set)?),
        v3::CreateHow::Guarded(set) => CreateMode::Guarded(set_attr(set)?),
        v3::CreateHow::Exclusive(verifier) => CreateMode::Exclusive(*verifier),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_clamped_or_refused() {
        let nfs = |seconds, nanos| NfsTime { seconds, nanos };
        let out: &[(Timestamp, NfsTime)] = &[
            (Timestamp::new(5, 7), nfs(5, 7)),
            (Timestamp::new(-1, 7), nfs(0, 0)),
            (Timestamp::new(1 << 32, 7), nfs(u32::MAX, 999_999_999)),
        ];
        for (from, want) in out {
            assert_eq!(time(*from), *want, "{from:?}");
        }
        let last = Timestamp::new(i64::from(u32::MAX), 999_999_999);
        assert_eq!(timestamp(nfs(u32::MAX, 999_999_999)), Ok(last));
        assert_eq!(timestamp(nfs(0, 1_000_000_000)), Err(ErrorStatus::Inval));
    }
}
