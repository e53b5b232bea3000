//! For tests: values made from a list of numbers, which proptest makes and shrinks.

use cairn_codec_rpc::{Array, List, Opaque};

use crate::v3::*;
use crate::{mount, nlm};

mod v4;

/// What opaques are cut from, so that values borrow without an owner.
static BYTES: [u8; 4096] = {
    let mut bytes = [0; 4096];
    let mut index = 0;
    while index < bytes.len() {
        bytes[index] = (index * 7 % 251) as u8;
        index += 1;
    }
    bytes
};

/// Takes its choices from the front of a list; 0 when that has ended.
pub struct Source {
    choices: std::vec::IntoIter<u32>,
}

impl Source {
    pub fn new(choices: Vec<u32>) -> Self {
        Self {
            choices: choices.into_iter(),
        }
    }

    pub fn u32(&mut self) -> u32 {
        self.choices.next().unwrap_or(0)
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    fn below(&mut self, limit: usize) -> usize {
        self.u32() as usize % limit
    }

    fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn bytes(&mut self, len_max: usize) -> &'static [u8] {
        let len = self.below(len_max + 1);
        let start = self.below(BYTES.len() - len + 1);
        &BYTES[start..start + len]
    }

    fn opaque<const MAX: u32>(&mut self) -> Opaque<'static, MAX> {
        Opaque(self.bytes((MAX as usize).min(300)))
    }

    fn verifier(&mut self) -> [u8; 8] {
        self.u64().to_be_bytes()
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| make(self))
    }

    fn list<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(5)).map(|_| make(self)).collect()
    }

    fn reply<T, F>(
        &mut self,
        ok: impl FnOnce(&mut Self) -> T,
        fail: impl FnOnce(&mut Self) -> F,
    ) -> Result<T, Failure<F>> {
        if self.bool() {
            return Ok(ok(self));
        }
        Err(Failure::new(self.of(ErrorStatus::ALL), fail(self)))
    }

    fn handle(&mut self) -> FileHandle {
        FileHandle::new(self.bytes(64)).expect("64 bytes fit")
    }

    fn time(&mut self) -> NfsTime {
        NfsTime {
            seconds: self.u32(),
            nanos: self.u32(),
        }
    }

    fn device(&mut self) -> DeviceNumber {
        DeviceNumber {
            major: self.u32(),
            minor: self.u32(),
        }
    }

    fn attr(&mut self) -> FileAttr {
        FileAttr {
            file_type: self.of(FileType::ALL),
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size_bytes: self.u64(),
            used_bytes: self.u64(),
            device: self.device(),
            fsid: self.u64(),
            fileid: self.u64(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
        }
    }

    pub fn post_attr(&mut self) -> PostOpAttr {
        self.option(Self::attr)
    }

    fn wcc(&mut self) -> WccData {
        WccData {
            before: self.option(|it| WccAttr {
                size_bytes: it.u64(),
                mtime: it.time(),
                ctime: it.time(),
            }),
            after: self.post_attr(),
        }
    }

    fn set_time(&mut self) -> SetTime {
        match self.below(3) {
            0 => SetTime::Keep,
            1 => SetTime::ServerTime,
            _ => SetTime::ClientTime(self.time()),
        }
    }

    fn set_attributes(&mut self) -> SetAttributes {
        SetAttributes {
            mode: self.option(Self::u32),
            uid: self.option(Self::u32),
            gid: self.option(Self::u32),
            size_bytes: self.option(Self::u64),
            atime: self.set_time(),
            mtime: self.set_time(),
        }
    }

    fn dir_op(&mut self) -> DirOp<'static> {
        DirOp {
            dir: self.handle(),
            name: self.opaque(),
        }
    }

    pub fn write_head(&mut self) -> WriteHead {
        WriteHead {
            file: self.handle(),
            offset: self.u64(),
            count_bytes: self.u32(),
            stable: self.of(StableHow::ALL),
        }
    }

    pub fn read_head(&mut self) -> ReadHead {
        ReadHead {
            attributes: self.post_attr(),
            count_bytes: self.u32(),
            eof: self.bool(),
        }
    }

    fn create_how(&mut self) -> CreateHow {
        match self.below(3) {
            0 => CreateHow::Unchecked(self.set_attributes()),
            1 => CreateHow::Guarded(self.set_attributes()),
            _ => CreateHow::Exclusive(self.verifier()),
        }
    }

    fn mknod_what(&mut self) -> MkNodWhat {
        match self.of(FileType::ALL) {
            FileType::CharDevice => MkNodWhat::CharDevice {
                attributes: self.set_attributes(),
                device: self.device(),
            },
            FileType::BlockDevice => MkNodWhat::BlockDevice {
                attributes: self.set_attributes(),
                device: self.device(),
            },
            FileType::Socket => MkNodWhat::Socket(self.set_attributes()),
            FileType::Fifo => MkNodWhat::Fifo(self.set_attributes()),
            FileType::Regular => MkNodWhat::Regular,
            FileType::Directory => MkNodWhat::Directory,
            FileType::Symlink => MkNodWhat::Symlink,
        }
    }

    pub fn call(&mut self, procedure: Procedure) -> Call<'static> {
        match procedure {
            Procedure::Null => Call::Null,
            Procedure::GetAttr => Call::GetAttr(self.handle()),
            Procedure::SetAttr => Call::SetAttr(SetAttrArgs {
                object: self.handle(),
                attributes: self.set_attributes(),
                guard: self.option(Self::time),
            }),
            Procedure::Lookup => Call::Lookup(self.dir_op()),
            Procedure::Access => Call::Access(AccessArgs {
                object: self.handle(),
                access: self.u32(),
            }),
            Procedure::ReadLink => Call::ReadLink(self.handle()),
            Procedure::Read => Call::Read(ReadArgs {
                file: self.handle(),
                offset: self.u64(),
                count_bytes: self.u32(),
            }),
            Procedure::Write => Call::Write(WriteArgs {
                head: self.write_head(),
                data: self.opaque(),
            }),
            Procedure::Create => Call::Create(CreateArgs {
                place: self.dir_op(),
                how: self.create_how(),
            }),
            Procedure::MkDir => Call::MkDir(MkDirArgs {
                place: self.dir_op(),
                attributes: self.set_attributes(),
            }),
            Procedure::SymLink => Call::SymLink(SymLinkArgs {
                place: self.dir_op(),
                attributes: self.set_attributes(),
                target: self.opaque(),
            }),
            Procedure::MkNod => Call::MkNod(MkNodArgs {
                place: self.dir_op(),
                what: self.mknod_what(),
            }),
            Procedure::Remove => Call::Remove(self.dir_op()),
            Procedure::RmDir => Call::RmDir(self.dir_op()),
            Procedure::Rename => Call::Rename(RenameArgs {
                from: self.dir_op(),
                to: self.dir_op(),
            }),
            Procedure::Link => Call::Link(LinkArgs {
                file: self.handle(),
                link: self.dir_op(),
            }),
            Procedure::ReadDir => Call::ReadDir(ReadDirArgs {
                dir: self.handle(),
                cookie: self.u64(),
                cookie_verifier: self.verifier(),
                count_bytes: self.u32(),
            }),
            Procedure::ReadDirPlus => Call::ReadDirPlus(ReadDirPlusArgs {
                dir: self.handle(),
                cookie: self.u64(),
                cookie_verifier: self.verifier(),
                dir_count_bytes: self.u32(),
                max_count_bytes: self.u32(),
            }),
            Procedure::FsStat => Call::FsStat(self.handle()),
            Procedure::FsInfo => Call::FsInfo(self.handle()),
            Procedure::PathConf => Call::PathConf(self.handle()),
            Procedure::Commit => Call::Commit(CommitArgs {
                file: self.handle(),
                offset: self.u64(),
                count_bytes: self.u32(),
            }),
        }
    }

    #[allow(
        clippy::result_large_err,
        reason = "a failure carries attributes, as the RFC has it"
    )]
    fn make_reply(&mut self) -> MakeReply {
        self.reply(
            |it| MakeOk {
                object: it.option(Self::handle),
                attributes: it.post_attr(),
                dir_wcc: it.wcc(),
            },
            Self::wcc,
        )
    }

    fn rename_wcc(&mut self) -> RenameWcc {
        RenameWcc {
            from_dir: self.wcc(),
            to_dir: self.wcc(),
        }
    }

    fn link_wcc(&mut self) -> LinkWcc {
        LinkWcc {
            attributes: self.post_attr(),
            dir_wcc: self.wcc(),
        }
    }

    pub fn entry(&mut self) -> Entry<'static> {
        Entry {
            fileid: self.u64(),
            name: self.opaque(),
            cookie: self.u64(),
        }
    }

    pub fn entry_plus(&mut self) -> EntryPlus<'static> {
        EntryPlus {
            fileid: self.u64(),
            name: self.opaque(),
            cookie: self.u64(),
            attributes: self.post_attr(),
            handle: self.option(Self::handle),
        }
    }

    pub fn reply_of(&mut self, procedure: Procedure) -> Reply<'static> {
        match procedure {
            Procedure::Null => Reply::Null,
            Procedure::GetAttr => Reply::GetAttr(self.reply(Self::attr, |_| ())),
            Procedure::SetAttr => Reply::SetAttr(self.reply(Self::wcc, Self::wcc)),
            Procedure::Lookup => Reply::Lookup(self.reply(
                |it| LookupOk {
                    object: it.handle(),
                    attributes: it.post_attr(),
                    dir_attributes: it.post_attr(),
                },
                Self::post_attr,
            )),
            Procedure::Access => Reply::Access(self.reply(
                |it| AccessOk {
                    attributes: it.post_attr(),
                    access: it.u32(),
                },
                Self::post_attr,
            )),
            Procedure::ReadLink => Reply::ReadLink(self.reply(
                |it| ReadLinkOk {
                    attributes: it.post_attr(),
                    target: it.opaque(),
                },
                Self::post_attr,
            )),
            Procedure::Read => Reply::Read(self.reply(
                |it| ReadOk {
                    head: it.read_head(),
                    data: it.opaque(),
                },
                Self::post_attr,
            )),
            Procedure::Write => Reply::Write(self.reply(
                |it| WriteOk {
                    wcc: it.wcc(),
                    count_bytes: it.u32(),
                    committed: it.of(StableHow::ALL),
                    verifier: it.verifier(),
                },
                Self::wcc,
            )),
            Procedure::Create => Reply::Create(self.make_reply()),
            Procedure::MkDir => Reply::MkDir(self.make_reply()),
            Procedure::SymLink => Reply::SymLink(self.make_reply()),
            Procedure::MkNod => Reply::MkNod(self.make_reply()),
            Procedure::Remove => Reply::Remove(self.reply(Self::wcc, Self::wcc)),
            Procedure::RmDir => Reply::RmDir(self.reply(Self::wcc, Self::wcc)),
            Procedure::Rename => Reply::Rename(self.reply(Self::rename_wcc, Self::rename_wcc)),
            Procedure::Link => Reply::Link(self.reply(Self::link_wcc, Self::link_wcc)),
            Procedure::ReadDir => Reply::ReadDir(self.reply(
                |it| ReadDirOk {
                    attributes: it.post_attr(),
                    cookie_verifier: it.verifier(),
                    entries: List(it.list(Self::entry)),
                    eof: it.bool(),
                },
                Self::post_attr,
            )),
            Procedure::ReadDirPlus => Reply::ReadDirPlus(self.reply(
                |it| ReadDirPlusOk {
                    attributes: it.post_attr(),
                    cookie_verifier: it.verifier(),
                    entries: List(it.list(Self::entry_plus)),
                    eof: it.bool(),
                },
                Self::post_attr,
            )),
            Procedure::FsStat => Reply::FsStat(self.reply(
                |it| FsStatOk {
                    attributes: it.post_attr(),
                    total_bytes: it.u64(),
                    free_bytes: it.u64(),
                    available_bytes: it.u64(),
                    total_files: it.u64(),
                    free_files: it.u64(),
                    available_files: it.u64(),
                    invariant_seconds: it.u32(),
                },
                Self::post_attr,
            )),
            Procedure::FsInfo => Reply::FsInfo(self.reply(
                |it| FsInfoOk {
                    attributes: it.post_attr(),
                    read_max_bytes: it.u32(),
                    read_preferred_bytes: it.u32(),
                    read_multiple_bytes: it.u32(),
                    write_max_bytes: it.u32(),
                    write_preferred_bytes: it.u32(),
                    write_multiple_bytes: it.u32(),
                    readdir_preferred_bytes: it.u32(),
                    file_len_bytes_max: it.u64(),
                    time_delta: it.time(),
                    properties: it.u32(),
                },
                Self::post_attr,
            )),
            Procedure::PathConf => Reply::PathConf(self.reply(
                |it| PathConfOk {
                    attributes: it.post_attr(),
                    link_count_max: it.u32(),
                    name_len_bytes_max: it.u32(),
                    no_trunc: it.bool(),
                    chown_restricted: it.bool(),
                    case_insensitive: it.bool(),
                    case_preserving: it.bool(),
                },
                Self::post_attr,
            )),
            Procedure::Commit => Reply::Commit(self.reply(
                |it| CommitOk {
                    wcc: it.wcc(),
                    verifier: it.verifier(),
                },
                Self::wcc,
            )),
        }
    }

    pub fn mount_call(&mut self, procedure: mount::Procedure) -> mount::Call<'static> {
        match procedure {
            mount::Procedure::Null => mount::Call::Null,
            mount::Procedure::Mount => mount::Call::Mount(self.opaque()),
            mount::Procedure::Dump => mount::Call::Dump,
            mount::Procedure::Unmount => mount::Call::Unmount(self.opaque()),
            mount::Procedure::UnmountAll => mount::Call::UnmountAll,
            mount::Procedure::Export => mount::Call::Export,
        }
    }

    pub fn mount_reply(
        &mut self,
        version: u32,
        procedure: mount::Procedure,
    ) -> mount::Reply<'static> {
        match procedure {
            mount::Procedure::Null => mount::Reply::Null,
            mount::Procedure::Mount => self.mount_result(version),
            mount::Procedure::Dump => mount::Reply::Dump(List(self.list(|it| mount::MountEntry {
                host: it.opaque::<{ mount::NAME_LEN_BYTES_MAX }>(),
                path: it.opaque(),
            }))),
            mount::Procedure::Unmount => mount::Reply::Unmount,
            mount::Procedure::UnmountAll => mount::Reply::UnmountAll,
            mount::Procedure::Export => {
                mount::Reply::Export(List(self.list(|it| mount::ExportEntry {
                    path: it.opaque(),
                    groups: List(it.list(Self::opaque)),
                })))
            }
        }
    }

    fn mount_result(&mut self, version: u32) -> mount::Reply<'static> {
        let error = self.option(|it| it.of(mount::MountError::ALL));
        match (version, error) {
            (mount::VERSION_3, Some(error)) => mount::Reply::Mount(Err(error)),
            (mount::VERSION_3, None) => mount::Reply::Mount(Ok(mount::MountOk {
                handle: self.handle(),
                auth_flavors: Array(self.list(Self::u32)),
            })),
            (_, Some(error)) => mount::Reply::MountV1(Err(error.into())),
            (_, None) => mount::Reply::MountV1(Ok([self.u32() as u8; 32])),
        }
    }

    fn nlm_lock(&mut self, version: u32) -> nlm::Lock<'static> {
        nlm::Lock {
            client: self.opaque(),
            file: self.opaque(),
            owner: self.opaque(),
            process: self.u32(),
            range: match version {
                nlm::VERSION_4 => nlm::Range::Wide {
                    offset: self.u64(),
                    len_bytes: self.u64(),
                },
                _ => nlm::Range::Narrow {
                    offset: self.u32(),
                    len_bytes: self.u32(),
                },
            },
        }
    }

    fn nlm_lock_args(&mut self, version: u32) -> nlm::LockArgs<'static> {
        nlm::LockArgs {
            cookie: self.opaque(),
            block: self.bool(),
            exclusive: self.bool(),
            lock: self.nlm_lock(version),
            reclaim: self.bool(),
            state: self.u32(),
        }
    }

    fn nlm_share_args(&mut self) -> nlm::ShareArgs<'static> {
        nlm::ShareArgs {
            cookie: self.opaque(),
            client: self.opaque(),
            file: self.opaque(),
            owner: self.opaque(),
            denied: self.of(nlm::ShareRight::ALL),
            wanted: self.of(nlm::ShareRight::ALL),
            reclaim: self.bool(),
        }
    }

    pub fn nlm_call(&mut self, version: u32, procedure: nlm::Procedure) -> nlm::Call<'static> {
        match procedure {
            nlm::Procedure::Null => nlm::Call::Null,
            nlm::Procedure::Test => nlm::Call::Test {
                cookie: self.opaque(),
                exclusive: self.bool(),
                lock: self.nlm_lock(version),
            },
            nlm::Procedure::Lock => nlm::Call::Lock(self.nlm_lock_args(version)),
            nlm::Procedure::Cancel => nlm::Call::Cancel {
                cookie: self.opaque(),
                block: self.bool(),
                exclusive: self.bool(),
                lock: self.nlm_lock(version),
            },
            nlm::Procedure::Unlock => nlm::Call::Unlock {
                cookie: self.opaque(),
                lock: self.nlm_lock(version),
            },
            nlm::Procedure::Share => nlm::Call::Share(self.nlm_share_args()),
            nlm::Procedure::Unshare => nlm::Call::Unshare(self.nlm_share_args()),
            nlm::Procedure::UnmonitoredLock => {
                nlm::Call::UnmonitoredLock(self.nlm_lock_args(version))
            }
            nlm::Procedure::FreeAll => nlm::Call::FreeAll(nlm::Notice {
                client: self.opaque(),
                state: self.u32(),
            }),
        }
    }
}
