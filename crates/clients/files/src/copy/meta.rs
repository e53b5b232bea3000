//! The metadata of a file, on either side.

use std::net::SocketAddr;

use cairn_nfs_client::v3::{DeviceNumber, FileAttr, FileType, NfsTime, SetAttributes, SetTime};

/// A point in time; before 1970 on local file systems only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

impl From<NfsTime> for Time {
    fn from(time: NfsTime) -> Self {
        Self {
            seconds: i64::from(time.seconds),
            nanos: time.nanos,
        }
    }
}

impl Time {
    /// The nearest that NFSv3 can say.
    pub fn to_nfs(self) -> NfsTime {
        match u32::try_from(self.seconds) {
            Ok(seconds) => NfsTime {
                seconds,
                nanos: self.nanos,
            },
            Err(_) if self.seconds < 0 => NfsTime::default(),
            Err(_) => NfsTime {
                seconds: u32::MAX,
                nanos: 0,
            },
        }
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub file_type: FileType,
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub device: DeviceNumber,
    /// File system and inode.
    pub id: (u64, u64),
    pub atime: Time,
    pub mtime: Time,
}

impl Meta {
    /// Its permission bits for a copy that belongs to `owner`, user and group: what runs as somebody else does not run
    /// as them. Of a directory the set-gid bit says whose group new files get, which is kept.
    pub fn mode_for(&self, (uid, gid): (u32, u32)) -> u32 {
        let mut mode = self.mode & 0o7777;
        if uid != self.uid {
            mode &= !0o4000;
        }
        if gid != self.gid && self.file_type != FileType::Directory {
            mode &= !0o2000;
        }
        mode
    }

    /// The file holds fewer bytes than it is long.
    pub fn is_sparse(&self) -> bool {
        self.used_bytes < self.size_bytes
    }
}

impl From<FileAttr> for Meta {
    fn from(attributes: FileAttr) -> Self {
        Self {
            file_type: attributes.file_type,
            mode: attributes.mode,
            nlink: u64::from(attributes.nlink),
            uid: attributes.uid,
            gid: attributes.gid,
            size_bytes: attributes.size_bytes,
            used_bytes: attributes.used_bytes,
            device: attributes.device,
            id: (attributes.fsid, attributes.fileid),
            atime: attributes.atime.into(),
            mtime: attributes.mtime.into(),
        }
    }
}

/// Tells files apart, on this machine (no server) and on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub server: Option<SocketAddr>,
    pub id: (u64, u64),
}

/// Attributes to set; `None` leaves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub mode: Option<u32>,
    pub owner: Option<(u32, u32)>,
    /// Of access, of change.
    pub times: Option<(Time, Time)>,
    pub size_bytes: Option<u64>,
}

impl Attributes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Without the owner. A set-uid bit for somebody else than it was meant for is dropped, too.
    pub fn without_owner(self) -> Self {
        Self {
            owner: None,
            mode: self.mode.map(|mode| mode & 0o1777),
            ..self
        }
    }

    pub fn to_nfs(self) -> SetAttributes {
        let time = |time: Option<Time>| match time {
            Some(time) => SetTime::ClientTime(time.to_nfs()),
            None => SetTime::Keep,
        };
        SetAttributes {
            mode: self.mode,
            uid: self.owner.map(|(uid, _)| uid),
            gid: self.owner.map(|(_, gid)| gid),
            size_bytes: self.size_bytes,
            atime: time(self.times.map(|(atime, _)| atime)),
            mtime: time(self.times.map(|(_, mtime)| mtime)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_the_set_uid_bit_of_somebody_else() {
        let cases = [
            (FileType::Regular, 0o4755, (5, 6), 0o4755),
            (FileType::Regular, 0o4755, (7, 6), 0o755),
            (FileType::Regular, 0o6711, (7, 6), 0o2711),
            (FileType::Regular, 0o6711, (5, 7), 0o4711),
            (FileType::Regular, 0o7777, (7, 7), 0o1777),
            (FileType::Directory, 0o2775, (7, 7), 0o2775),
        ];
        for (file_type, mode, owner, want) in cases {
            let epoch = Time {
                seconds: 0,
                nanos: 0,
            };
            let meta = Meta {
                file_type,
                mode,
                nlink: 1,
                uid: 5,
                gid: 6,
                size_bytes: 0,
                used_bytes: 0,
                device: DeviceNumber::default(),
                id: (1, 2),
                atime: epoch,
                mtime: epoch,
            };
            assert_eq!(meta.mode_for(owner), want, "{mode:o} {owner:?}");
        }
    }
}
