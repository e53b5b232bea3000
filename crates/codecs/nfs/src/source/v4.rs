//! Values of version 4: every operation, result and attribute.
//!
//! Arrays borrow from memory that is never freed, as [`Items`] borrow and a value must not: a test takes some
//! kilobytes, once.

use cairn_codec_rpc::{Groups, Opaque};

use super::Source;
use crate::v4::*;

impl Source {
    fn leak<T>(&mut self, make: impl Fn(&mut Self) -> T) -> &'static [T] {
        Vec::leak(self.list(make))
    }

    fn items<T, const MAX: u32>(
        &mut self,
        make: impl Fn(&mut Self) -> T,
    ) -> Items<'static, T, MAX> {
        Items::new(self.leak(make))
    }

    fn reply4<T>(&mut self, ok: impl FnOnce(&mut Self) -> T) -> Reply<T> {
        match self.bool() {
            true => Ok(ok(self)),
            false => Err(self.of(ErrorStatus::ALL)),
        }
    }

    fn reply_or<T, E, const STATUS: u32>(
        &mut self,
        ok: impl FnOnce(&mut Self) -> T,
        with: impl FnOnce(&mut Self) -> E,
    ) -> ReplyOr<T, E, STATUS> {
        match self.below(3) {
            0 => ReplyOr::Ok(ok(self)),
            1 => ReplyOr::With(with(self)),
            _ => match self.of(ErrorStatus::ALL) {
                status if status.number() == STATUS => ReplyOr::Failed(ErrorStatus::Io),
                status => ReplyOr::Failed(status),
            },
        }
    }

    fn status4(&mut self) -> Status {
        self.reply4(|_| ())
    }

    /// Bits of any words that are decoded.
    fn bits(&mut self) -> Bitmap {
        let mut bits = Bitmap::EMPTY;
        for _ in 0..self.below(5) {
            let bit = self.below(32 * BITMAP_WORD_COUNT_MAX as usize) as u32;
            bits.insert(bit);
        }
        bits
    }

    pub fn state_id(&mut self) -> StateId {
        let id = StateId {
            seqid: self.u32(),
            other: self.words(),
        };
        let special = [StateId::ANONYMOUS, StateId::READ_BYPASS, StateId::CURRENT];
        match self.below(4) {
            0 => self.of(&special),
            _ => id,
        }
    }

    fn words<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for word in bytes.chunks_mut(4) {
            word.copy_from_slice(&self.u32().to_be_bytes()[..word.len()]);
        }
        bytes
    }

    fn session_id(&mut self) -> SessionId {
        SessionId(self.words())
    }

    fn time4(&mut self) -> NfsTime {
        NfsTime {
            seconds: self.u64() as i64,
            nanos: self.u32(),
        }
    }

    fn set_time4(&mut self) -> SetTime {
        match self.bool() {
            true => SetTime::ServerTime,
            false => SetTime::ClientTime(self.time4()),
        }
    }

    fn ace(&mut self) -> Ace<'static> {
        Ace {
            ace_type: self.u32(),
            flags: self.u32(),
            access_mask: self.u32(),
            who: self.opaque(),
        }
    }

    fn acl41(&mut self) -> Acl41<'static> {
        Acl41 {
            flags: self.u32(),
            aces: self.items(Self::ace),
        }
    }

    fn retention_get(&mut self) -> RetentionGet {
        RetentionGet {
            duration_seconds: self.u64(),
            begin_time: self.option(Self::time4),
        }
    }

    fn retention_set(&mut self) -> RetentionSet {
        RetentionSet {
            enable: self.bool(),
            duration_seconds: self.option(Self::u64),
        }
    }

    pub fn attr_value(&mut self, attr: Attr) -> AttrValue<'static> {
        use AttrValue as V;
        match attr {
            Attr::SupportedAttrs => V::SupportedAttrs(self.bits()),
            Attr::Type => V::Type(self.of(FileType::ALL)),
            Attr::FhExpireType => V::FhExpireType(self.u32()),
            Attr::Change => V::Change(self.u64()),
            Attr::Size => V::Size(self.u64()),
            Attr::LinkSupport => V::LinkSupport(self.bool()),
            Attr::SymlinkSupport => V::SymlinkSupport(self.bool()),
            Attr::NamedAttr => V::NamedAttr(self.bool()),
            Attr::Fsid => V::Fsid(self.fsid()),
            Attr::UniqueHandles => V::UniqueHandles(self.bool()),
            Attr::LeaseTime => V::LeaseTime(self.u32()),
            Attr::RdattrError => V::RdattrError(self.status4()),
            Attr::Acl => V::Acl(self.items(Self::ace)),
            Attr::AclSupport => V::AclSupport(self.u32()),
            Attr::Archive => V::Archive(self.bool()),
            Attr::CanSetTime => V::CanSetTime(self.bool()),
            Attr::CaseInsensitive => V::CaseInsensitive(self.bool()),
            Attr::CasePreserving => V::CasePreserving(self.bool()),
            Attr::ChownRestricted => V::ChownRestricted(self.bool()),
            Attr::FileHandle => V::FileHandle(self.opaque()),
            Attr::FileId => V::FileId(self.u64()),
            Attr::FilesAvail => V::FilesAvail(self.u64()),
            Attr::FilesFree => V::FilesFree(self.u64()),
            Attr::FilesTotal => V::FilesTotal(self.u64()),
            Attr::FsLocations => V::FsLocations(FsLocations {
                fs_root: self.items(Self::opaque),
                locations: self.items(|it| FsLocation {
                    servers: it.items(Self::opaque),
                    root_path: it.items(Self::opaque),
                }),
            }),
            Attr::Hidden => V::Hidden(self.bool()),
            Attr::Homogeneous => V::Homogeneous(self.bool()),
            Attr::MaxFileSize => V::MaxFileSize(self.u64()),
            Attr::MaxLink => V::MaxLink(self.u32()),
            Attr::MaxName => V::MaxName(self.u32()),
            Attr::MaxRead => V::MaxRead(self.u64()),
            Attr::MaxWrite => V::MaxWrite(self.u64()),
            Attr::MimeType => V::MimeType(self.opaque()),
            Attr::Mode => V::Mode(self.u32()),
            Attr::NoTrunc => V::NoTrunc(self.bool()),
            Attr::NumLinks => V::NumLinks(self.u32()),
            Attr::Owner => V::Owner(self.opaque()),
            Attr::OwnerGroup => V::OwnerGroup(self.opaque()),
            Attr::QuotaAvailHard => V::QuotaAvailHard(self.u64()),
            Attr::QuotaAvailSoft => V::QuotaAvailSoft(self.u64()),
            Attr::QuotaUsed => V::QuotaUsed(self.u64()),
            Attr::RawDev => V::RawDev(self.device()),
            Attr::SpaceAvail => V::SpaceAvail(self.u64()),
            Attr::SpaceFree => V::SpaceFree(self.u64()),
            Attr::SpaceTotal => V::SpaceTotal(self.u64()),
            Attr::SpaceUsed => V::SpaceUsed(self.u64()),
            Attr::System => V::System(self.bool()),
            Attr::TimeAccess => V::TimeAccess(self.time4()),
            Attr::TimeAccessSet => V::TimeAccessSet(self.set_time4()),
            Attr::TimeBackup => V::TimeBackup(self.time4()),
            Attr::TimeCreate => V::TimeCreate(self.time4()),
            Attr::TimeDelta => V::TimeDelta(self.time4()),
            Attr::TimeMetadata => V::TimeMetadata(self.time4()),
            Attr::TimeModify => V::TimeModify(self.time4()),
            Attr::TimeModifySet => V::TimeModifySet(self.set_time4()),
            Attr::MountedOnFileId => V::MountedOnFileId(self.u64()),
            Attr::DirNotifDelay => V::DirNotifDelay(self.time4()),
            Attr::DirentNotifDelay => V::DirentNotifDelay(self.time4()),
            Attr::Dacl => V::Dacl(self.acl41()),
            Attr::Sacl => V::Sacl(self.acl41()),
            Attr::ChangePolicy => V::ChangePolicy(ChangePolicy {
                major: self.u64(),
                minor: self.u64(),
            }),
            Attr::FsStatus => V::FsStatus(FsStatus {
                absent: self.bool(),
                status_type: self.of(FsStatusType::ALL),
                source: self.opaque(),
                current: self.opaque(),
                age_seconds: Int32(self.u32() as i32),
                version: self.time4(),
            }),
            Attr::FsLayoutTypes => V::FsLayoutTypes(self.items(Self::u32)),
            Attr::LayoutHint => V::LayoutHint(LayoutHint {
                layout_type: self.u32(),
                body: self.opaque(),
            }),
            Attr::LayoutTypes => V::LayoutTypes(self.items(Self::u32)),
            Attr::LayoutBlkSize => V::LayoutBlkSize(self.u32()),
            Attr::LayoutAlignment => V::LayoutAlignment(self.u32()),
            Attr::FsLocationsInfo => V::FsLocationsInfo(FsLocationsInfo {
                flags: self.u32(),
                valid_for_seconds: Int32(self.u32() as i32),
                fs_root: self.items(Self::opaque),
                items: self.items(|it| FsLocationsItem {
                    entries: it.items(|it| FsLocationsServer {
                        currency: Int32(it.u32() as i32),
                        info: it.opaque(),
                        server: it.opaque(),
                    }),
                    root_path: it.items(Self::opaque),
                }),
            }),
            Attr::MdsThreshold => V::MdsThreshold(self.items(|it| ThresholdItem {
                layout_type: it.u32(),
                hint_set: it.bits(),
                hints: it.opaque(),
            })),
            Attr::RetentionGet => V::RetentionGet(self.retention_get()),
            Attr::RetentionSet => V::RetentionSet(self.retention_set()),
            Attr::RetentionEventGet => V::RetentionEventGet(self.retention_get()),
            Attr::RetentionEventSet => V::RetentionEventSet(self.retention_set()),
            Attr::RetentionHold => V::RetentionHold(self.u64()),
            Attr::ModeSetMasked => V::ModeSetMasked(ModeMasked {
                value: self.u32(),
                mask: self.u32(),
            }),
            Attr::SuppAttrExclCreat => V::SuppAttrExclCreat(self.bits()),
            Attr::FsCharsetCap => V::FsCharsetCap(self.u32()),
            Attr::CloneBlkSize => V::CloneBlkSize(self.u32()),
            Attr::SpaceFreed => V::SpaceFreed(self.u64()),
            Attr::ChangeAttrType => V::ChangeAttrType(self.of(ChangeAttrType::ALL)),
            Attr::SecLabel => V::SecLabel(SecLabel {
                format: self.u32(),
                policy: self.u32(),
                data: self.opaque(),
            }),
            Attr::XattrSupport => V::XattrSupport(self.bool()),
        }
    }

    /// Some attributes, in the order of their bits.
    pub fn attr_values(&mut self, among: &Bitmap) -> Vec<AttrValue<'static>> {
        let all: Vec<Attr> = among.iter().filter_map(Attr::from_bit).collect();
        let mut mask = Bitmap::EMPTY;
        for _ in 0..self.below(5) {
            mask.insert(self.of(&all).bit());
        }
        let attrs = mask.iter().filter_map(Attr::from_bit);
        attrs.map(|attr| self.attr_value(attr)).collect()
    }

    fn fattr(&mut self, among: &Bitmap) -> Fattr<'static> {
        let values = FattrBuf::new(&self.attr_values(among));
        Box::leak(Box::new(values)).as_fattr()
    }

    fn fattr_to_get(&mut self) -> Fattr<'static> {
        self.fattr(&Attr::GETTABLE)
    }

    fn fattr_to_set(&mut self) -> Fattr<'static> {
        self.fattr(&Attr::SETTABLE)
    }

    fn fsid(&mut self) -> Fsid {
        Fsid {
            major: self.u64(),
            minor: self.u64(),
        }
    }

    fn change(&mut self) -> ChangeInfo {
        ChangeInfo {
            atomic: self.bool(),
            before: self.u64(),
            after: self.u64(),
        }
    }

    fn owner(&mut self) -> StateOwner<'static> {
        StateOwner {
            client_id: self.client_id(),
            owner: self.opaque(),
        }
    }

    fn client_id(&mut self) -> ClientId {
        ClientId(self.u64())
    }

    fn net_addr(&mut self) -> NetAddr<'static> {
        NetAddr {
            netid: self.opaque(),
            address: self.opaque(),
        }
    }

    fn net_loc(&mut self) -> NetLoc<'static> {
        match self.below(3) {
            0 => NetLoc::Name(self.opaque()),
            1 => NetLoc::Url(self.opaque()),
            _ => NetLoc::Address(self.net_addr()),
        }
    }

    fn impl_id(&mut self) -> ImplId<'static> {
        ImplId {
            domain: self.opaque(),
            name: self.opaque(),
            date: self.time4(),
        }
    }

    fn create_type(&mut self) -> CreateType<'static> {
        match self.of(FileType::ALL) {
            FileType::Regular => CreateType::Regular,
            FileType::Directory => CreateType::Directory,
            FileType::BlockDevice => CreateType::BlockDevice(self.device()),
            FileType::CharDevice => CreateType::CharDevice(self.device()),
            FileType::Symlink => CreateType::Symlink(self.opaque()),
            FileType::Socket => CreateType::Socket,
            FileType::Fifo => CreateType::Fifo,
            FileType::AttrDir => CreateType::AttrDir,
            FileType::NamedAttr => CreateType::NamedAttr,
        }
    }

    fn open_how(&mut self) -> OpenHow<'static> {
        match self.below(5) {
            0 => OpenHow::NoCreate,
            1 => OpenHow::Create(CreateHow::Unchecked(self.fattr_to_set())),
            2 => OpenHow::Create(CreateHow::Guarded(self.fattr_to_set())),
            3 => OpenHow::Create(CreateHow::Exclusive(self.verifier())),
            _ => OpenHow::Create(CreateHow::ExclusiveWith(ExclusiveCreate {
                verifier: self.verifier(),
                attributes: self.fattr_to_set(),
            })),
        }
    }

    fn open_claim(&mut self) -> OpenClaim<'static> {
        match self.below(7) {
            0 => OpenClaim::Null(self.opaque()),
            1 => OpenClaim::Previous(self.of(DelegationType::ALL)),
            2 => OpenClaim::DelegateCurrent(DelegateCurrent {
                state_id: self.state_id(),
                file: self.opaque(),
            }),
            3 => OpenClaim::DelegatePrevious(self.opaque()),
            4 => OpenClaim::Handle,
            5 => OpenClaim::DelegateCurrentHandle(self.state_id()),
            _ => OpenClaim::DelegatePreviousHandle,
        }
    }

    fn locker(&mut self) -> Locker<'static> {
        match self.bool() {
            true => Locker::New(NewLockOwner {
                open_seqid: self.u32(),
                open_state_id: self.state_id(),
                lock_seqid: self.u32(),
                owner: self.owner(),
            }),
            false => Locker::Known(KnownLockOwner {
                lock_state_id: self.state_id(),
                lock_seqid: self.u32(),
            }),
        }
    }

    fn callback_security(&mut self) -> CallbackSecurity<'static> {
        match self.below(3) {
            0 => CallbackSecurity::None,
            1 => CallbackSecurity::Sys(CallbackSys {
                stamp: self.u32(),
                machine_name: Opaque(self.bytes(255)),
                uid: self.u32(),
                gid: self.u32(),
                groups: Groups::new(&self.list(Self::u32)).expect("a few groups fit"),
            }),
            _ => CallbackSecurity::Gss(CallbackGss {
                service: self.of(GssService::ALL),
                handle_from_server: self.opaque(),
                handle_from_client: self.opaque(),
            }),
        }
    }

    fn protect_ops(&mut self) -> StateProtectOps {
        StateProtectOps {
            must_enforce: self.bits(),
            must_allow: self.bits(),
        }
    }

    fn state_protect(&mut self) -> StateProtect<'static> {
        match self.below(3) {
            0 => StateProtect::None,
            1 => StateProtect::MachineCredential(self.protect_ops()),
            _ => StateProtect::Ssv(SsvParams {
                ops: self.protect_ops(),
                hash_algorithms: self.items(Self::opaque),
                encryption_algorithms: self.items(Self::opaque),
                window: self.u32(),
                gss_handle_count: self.u32(),
            }),
        }
    }

    fn state_protected(&mut self) -> StateProtected<'static> {
        match self.below(3) {
            0 => StateProtected::None,
            1 => StateProtected::MachineCredential(self.protect_ops()),
            _ => StateProtected::Ssv(SsvInfo {
                ops: self.protect_ops(),
                hash_algorithm_index: self.u32(),
                encryption_algorithm_index: self.u32(),
                ssv_len_bytes: self.u32(),
                window: self.u32(),
                gss_handles: self.items(Self::opaque),
            }),
        }
    }

    fn channel(&mut self) -> ChannelAttrs {
        ChannelAttrs {
            header_pad_len_bytes: self.u32(),
            request_len_bytes_max: self.u32(),
            response_len_bytes_max: self.u32(),
            cached_response_len_bytes_max: self.u32(),
            op_count_max: self.u32(),
            request_count_max: self.u32(),
            rdma_ird: self.option(Self::u32),
        }
    }

    fn space_args(&mut self) -> SpaceArgs {
        SpaceArgs {
            state_id: self.state_id(),
            offset: self.u64(),
            len_bytes: self.u64(),
        }
    }

    fn read_args4(&mut self) -> ReadArgs {
        ReadArgs {
            state_id: self.state_id(),
            offset: self.u64(),
            count_bytes: self.u32(),
        }
    }

    pub fn write_head4(&mut self) -> WriteHead {
        WriteHead {
            state_id: self.state_id(),
            offset: self.u64(),
            stable: self.of(StableHow::ALL),
        }
    }

    pub fn sequence_args(&mut self) -> SequenceArgs {
        SequenceArgs {
            session_id: self.session_id(),
            sequence_id: self.u32(),
            slot_id: self.u32(),
            highest_slot_id: self.u32(),
            cache_this: self.bool(),
        }
    }

    pub fn sequence_ok(&mut self) -> SequenceOk {
        SequenceOk {
            session_id: self.session_id(),
            sequence_id: self.u32(),
            slot_id: self.u32(),
            highest_slot_id: self.u32(),
            target_highest_slot_id: self.u32(),
            status_flags: self.u32(),
        }
    }

    fn layout_update(&mut self) -> LayoutUpdate<'static> {
        LayoutUpdate {
            layout_type: self.u32(),
            body: self.opaque(),
        }
    }

    fn io_info(&mut self) -> IoInfo {
        IoInfo {
            count: self.u64(),
            len_bytes: self.u64(),
        }
    }

    fn requirements(&mut self) -> CopyRequirements {
        CopyRequirements {
            consecutive: self.bool(),
            synchronous: self.bool(),
        }
    }

    fn write_response(&mut self) -> WriteResponse {
        WriteResponse {
            callback_id: self.option(Self::state_id),
            count_bytes: self.u64(),
            committed: self.of(StableHow::ALL),
            verifier: self.verifier(),
        }
    }

    fn delegation_claim(&mut self) -> DelegationClaim {
        match self.below(3) {
            0 => DelegationClaim::Previous(self.of(DelegationType::ALL)),
            1 => DelegationClaim::Handle,
            _ => DelegationClaim::DelegatePreviousHandle,
        }
    }

    /// The arguments of `op`; of `Illegal`, which has none, those of PUTROOTFH.
    pub fn op_args(&mut self, op: Op) -> OpArgs<'static> {
        use OpArgs as A;
        match op {
            Op::Access => A::Access(self.u32()),
            Op::Close => A::Close(CloseArgs {
                seqid: self.u32(),
                state_id: self.state_id(),
            }),
            Op::Commit => A::Commit(CommitArgs {
                offset: self.u64(),
                count_bytes: self.u32(),
            }),
            Op::Create => A::Create(CreateArgs {
                kind: self.create_type(),
                name: self.opaque(),
                attributes: self.fattr_to_set(),
            }),
            Op::DelegPurge => A::DelegPurge(self.client_id()),
            Op::DelegReturn => A::DelegReturn(self.state_id()),
            Op::GetAttr => A::GetAttr(self.bits()),
            Op::GetFh => A::GetFh,
            Op::Link => A::Link(self.opaque()),
            Op::Lock => A::Lock(LockArgs {
                lock_type: self.of(LockType::ALL),
                reclaim: self.bool(),
                offset: self.u64(),
                len_bytes: self.u64(),
                locker: self.locker(),
            }),
            Op::LockT => A::LockT(LockTestArgs {
                lock_type: self.of(LockType::ALL),
                offset: self.u64(),
                len_bytes: self.u64(),
                owner: self.owner(),
            }),
            Op::LockU => A::LockU(UnlockArgs {
                lock_type: self.of(LockType::ALL),
                seqid: self.u32(),
                lock_state_id: self.state_id(),
                offset: self.u64(),
                len_bytes: self.u64(),
            }),
            Op::Lookup => A::Lookup(self.opaque()),
            Op::LookupP => A::LookupP,
            Op::NVerify => A::NVerify(self.fattr_to_get()),
            Op::Open => A::Open(OpenArgs {
                seqid: self.u32(),
                share_access: self.u32(),
                share_deny: self.u32(),
                owner: self.owner(),
                how: self.open_how(),
                claim: self.open_claim(),
            }),
            Op::OpenAttr => A::OpenAttr(self.bool()),
            Op::OpenConfirm => A::OpenConfirm(v40::OpenConfirmArgs {
                state_id: self.state_id(),
                seqid: self.u32(),
            }),
            Op::OpenDowngrade => A::OpenDowngrade(OpenDowngradeArgs {
                state_id: self.state_id(),
                seqid: self.u32(),
                share_access: self.u32(),
                share_deny: self.u32(),
            }),
            Op::PutFh => A::PutFh(self.opaque()),
            Op::PutPubFh => A::PutPubFh,
            Op::PutRootFh | Op::Illegal => A::PutRootFh,
            Op::Read => A::Read(self.read_args4()),
            Op::ReadDir => A::ReadDir(ReadDirArgs {
                cookie: self.u64(),
                cookie_verifier: self.verifier(),
                dir_count_bytes: self.u32(),
                max_count_bytes: self.u32(),
                attr_request: self.bits(),
            }),
            Op::ReadLink => A::ReadLink,
            Op::Remove => A::Remove(self.opaque()),
            Op::Rename => A::Rename(RenameArgs {
                from: self.opaque(),
                to: self.opaque(),
            }),
            Op::Renew => A::Renew(self.client_id()),
            Op::RestoreFh => A::RestoreFh,
            Op::SaveFh => A::SaveFh,
            Op::SecInfo => A::SecInfo(self.opaque()),
            Op::SetAttr => A::SetAttr(SetAttrArgs {
                state_id: self.state_id(),
                attributes: self.fattr_to_set(),
            }),
            Op::SetClientId => A::SetClientId(v40::SetClientIdArgs {
                verifier: self.verifier(),
                owner: self.opaque(),
                callback_program: self.u32(),
                callback_address: self.net_addr(),
                callback_ident: self.u32(),
            }),
            Op::SetClientIdConfirm => A::SetClientIdConfirm(v40::SetClientIdConfirmArgs {
                client_id: self.client_id(),
                confirm: self.verifier(),
            }),
            Op::Verify => A::Verify(self.fattr_to_get()),
            Op::Write => A::Write(WriteArgs {
                head: self.write_head4(),
                data: self.opaque(),
            }),
            Op::ReleaseLockOwner => A::ReleaseLockOwner(self.owner()),
            Op::BackchannelCtl => A::BackchannelCtl(BackchannelCtlArgs {
                callback_program: self.u32(),
                security: self.items(Self::callback_security),
            }),
            Op::BindConnToSession => A::BindConnToSession(BindConnToSessionArgs {
                session_id: self.session_id(),
                direction: self.of(ChannelFromClient::ALL),
                use_rdma: self.bool(),
            }),
            Op::ExchangeId => A::ExchangeId(ExchangeIdArgs {
                owner: ClientOwner {
                    verifier: self.verifier(),
                    owner: self.opaque(),
                },
                flags: self.u32(),
                state_protect: self.state_protect(),
                implementation: self.option(Self::impl_id),
            }),
            Op::CreateSession => A::CreateSession(CreateSessionArgs {
                client_id: self.client_id(),
                sequence_id: self.u32(),
                flags: self.u32(),
                fore_channel: self.channel(),
                back_channel: self.channel(),
                callback_program: self.u32(),
                security: self.items(Self::callback_security),
            }),
            Op::DestroySession => A::DestroySession(self.session_id()),
            Op::FreeStateId => A::FreeStateId(self.state_id()),
            Op::GetDirDelegation => A::GetDirDelegation(GetDirDelegationArgs {
                signal_available: self.bool(),
                notifications: self.bits(),
                child_attr_delay: self.time4(),
                dir_attr_delay: self.time4(),
                child_attributes: self.bits(),
                dir_attributes: self.bits(),
            }),
            Op::GetDeviceInfo => A::GetDeviceInfo(GetDeviceInfoArgs {
                device_id: self.words(),
                layout_type: self.u32(),
                max_count_bytes: self.u32(),
                notify_types: self.bits(),
            }),
            Op::GetDeviceList => A::GetDeviceList(GetDeviceListArgs {
                layout_type: self.u32(),
                device_count_max: self.u32(),
                cookie: self.u64(),
                cookie_verifier: self.verifier(),
            }),
            Op::LayoutCommit => A::LayoutCommit(LayoutCommitArgs {
                offset: self.u64(),
                len_bytes: self.u64(),
                reclaim: self.bool(),
                state_id: self.state_id(),
                last_write_offset: self.option(Self::u64),
                time_modify: self.option(Self::time4),
                update: self.layout_update(),
            }),
            Op::LayoutGet => A::LayoutGet(LayoutGetArgs {
                signal_available: self.bool(),
                layout_type: self.u32(),
                io_mode: self.of(LayoutIoMode::ALL),
                offset: self.u64(),
                len_bytes: self.u64(),
                len_bytes_min: self.u64(),
                state_id: self.state_id(),
                max_count_bytes: self.u32(),
            }),
            Op::LayoutReturn => A::LayoutReturn(LayoutReturnArgs {
                reclaim: self.bool(),
                layout_type: self.u32(),
                io_mode: self.of(LayoutIoMode::ALL),
                what: match self.below(3) {
                    0 => LayoutReturn::File(LayoutReturnFile {
                        offset: self.u64(),
                        len_bytes: self.u64(),
                        state_id: self.state_id(),
                        body: self.opaque(),
                    }),
                    1 => LayoutReturn::Fsid,
                    _ => LayoutReturn::All,
                },
            }),
            Op::SecInfoNoName => A::SecInfoNoName(self.of(SecInfoStyle::ALL)),
            Op::Sequence => A::Sequence(self.sequence_args()),
            Op::SetSsv => A::SetSsv(SetSsvArgs {
                ssv: self.opaque(),
                digest: self.opaque(),
            }),
            Op::TestStateId => A::TestStateId(self.items(Self::state_id)),
            Op::WantDelegation => A::WantDelegation(WantDelegationArgs {
                want: self.u32(),
                claim: self.delegation_claim(),
            }),
            Op::DestroyClientId => A::DestroyClientId(self.client_id()),
            Op::ReclaimComplete => A::ReclaimComplete(self.bool()),
            Op::Allocate => A::Allocate(self.space_args()),
            Op::Copy => A::Copy(CopyArgs {
                from_state_id: self.state_id(),
                to_state_id: self.state_id(),
                from_offset: self.u64(),
                to_offset: self.u64(),
                len_bytes: self.u64(),
                requirements: self.requirements(),
                source_servers: self.items(Self::net_loc),
            }),
            Op::CopyNotify => A::CopyNotify(CopyNotifyArgs {
                state_id: self.state_id(),
                destination_server: self.net_loc(),
            }),
            Op::Deallocate => A::Deallocate(self.space_args()),
            Op::IoAdvise => A::IoAdvise(IoAdviseArgs {
                state_id: self.state_id(),
                offset: self.u64(),
                len_bytes: self.u64(),
                hints: self.bits(),
            }),
            Op::LayoutError => A::LayoutError(LayoutErrorArgs {
                offset: self.u64(),
                len_bytes: self.u64(),
                state_id: self.state_id(),
                errors: self.items(|it| DeviceError {
                    device_id: it.words(),
                    status: it.status4(),
                    op: it.of(Op::ALL),
                }),
            }),
            Op::LayoutStats => A::LayoutStats(LayoutStatsArgs {
                offset: self.u64(),
                len_bytes: self.u64(),
                state_id: self.state_id(),
                read: self.io_info(),
                write: self.io_info(),
                device_id: self.words(),
                update: self.layout_update(),
            }),
            Op::OffloadCancel => A::OffloadCancel(self.state_id()),
            Op::OffloadStatus => A::OffloadStatus(self.state_id()),
            Op::ReadPlus => A::ReadPlus(self.read_args4()),
            Op::Seek => A::Seek(SeekArgs {
                state_id: self.state_id(),
                offset: self.u64(),
                what: self.of(SeekWhat::ALL),
            }),
            Op::WriteSame => A::WriteSame(WriteSameArgs {
                state_id: self.state_id(),
                stable: self.of(StableHow::ALL),
                block: AppDataBlock {
                    offset: self.u64(),
                    block_len_bytes: self.u64(),
                    block_count: self.u64(),
                    block_number_offset: self.u64(),
                    first_block_number: self.u32(),
                    pattern_offset: self.u64(),
                    pattern: self.opaque(),
                },
            }),
            Op::Clone => A::Clone(CloneArgs {
                from_state_id: self.state_id(),
                to_state_id: self.state_id(),
                from_offset: self.u64(),
                to_offset: self.u64(),
                len_bytes: self.u64(),
            }),
            Op::GetXattr => A::GetXattr(self.opaque()),
            Op::SetXattr => A::SetXattr(SetXattrArgs {
                option: self.of(SetXattrOption::ALL),
                name: self.opaque(),
                value: self.opaque(),
            }),
            Op::ListXattrs => A::ListXattrs(ListXattrsArgs {
                cookie: self.u64(),
                max_count_bytes: self.u32(),
            }),
            Op::RemoveXattr => A::RemoveXattr(self.opaque()),
        }
    }

    fn lock_denied(&mut self) -> LockDenied<'static> {
        LockDenied {
            offset: self.u64(),
            len_bytes: self.u64(),
            lock_type: self.of(LockType::ALL),
            owner: self.owner(),
        }
    }

    fn no_delegation(&mut self) -> NoDelegation {
        match self.below(9) {
            0 => NoDelegation::NotWanted,
            1 => NoDelegation::Contention(self.bool()),
            2 => NoDelegation::Resource(self.bool()),
            3 => NoDelegation::NotSupportedFileType,
            4 => NoDelegation::WriteNotSupportedFileType,
            5 => NoDelegation::NotSupportedUpgrade,
            6 => NoDelegation::NotSupportedDowngrade,
            7 => NoDelegation::Cancelled,
            _ => NoDelegation::IsDirectory,
        }
    }

    fn delegation(&mut self) -> Delegation<'static> {
        match self.below(4) {
            0 => Delegation::None,
            1 => Delegation::Read(ReadDelegation {
                state_id: self.state_id(),
                recall: self.bool(),
                permissions: self.ace(),
            }),
            2 => Delegation::Write(WriteDelegation {
                state_id: self.state_id(),
                recall: self.bool(),
                space_limit: match self.bool() {
                    true => SpaceLimit::FileSize(self.u64()),
                    false => SpaceLimit::Blocks(ModifiedLimit {
                        block_count: self.u32(),
                        block_len_bytes: self.u32(),
                    }),
                },
                permissions: self.ace(),
            }),
            _ => Delegation::NoneExt(self.no_delegation()),
        }
    }

    fn sec_info(&mut self) -> SecInfo<'static> {
        match self.below(8) {
            flavor if flavor as u32 == FLAVOR_GSS => SecInfo::Gss(GssInfo {
                oid: self.opaque(),
                quality: self.u32(),
                service: self.of(GssService::ALL),
            }),
            flavor => SecInfo::Flavor(flavor as u32),
        }
    }

    fn entry4(&mut self) -> Entry<'static> {
        Entry {
            cookie: self.u64(),
            name: self.opaque(),
            attributes: self.fattr_to_get(),
        }
    }

    /// The result of `op`.
    pub fn op_result(&mut self, op: Op) -> OpResult<'static> {
        use OpResult as R;
        match op {
            Op::Access => R::Access(self.reply4(|it| AccessOk {
                supported: it.u32(),
                access: it.u32(),
            })),
            Op::Close => R::Close(self.reply4(Self::state_id)),
            Op::Commit => R::Commit(self.reply4(Self::verifier)),
            Op::Create => R::Create(self.reply4(|it| CreateOk {
                dir_change: it.change(),
                attrs_set: it.bits(),
            })),
            Op::DelegPurge => R::DelegPurge(self.status4()),
            Op::DelegReturn => R::DelegReturn(self.status4()),
            Op::GetAttr => R::GetAttr(self.reply4(Self::fattr_to_get)),
            Op::GetFh => R::GetFh(self.reply4(Self::opaque)),
            Op::Link => R::Link(self.reply4(Self::change)),
            Op::Lock => R::Lock(self.reply_or(Self::state_id, Self::lock_denied)),
            Op::LockT => R::LockT(self.reply_or(|_| (), Self::lock_denied)),
            Op::LockU => R::LockU(self.reply4(Self::state_id)),
            Op::Lookup => R::Lookup(self.status4()),
            Op::LookupP => R::LookupP(self.status4()),
            Op::NVerify => R::NVerify(self.status4()),
            Op::Open => R::Open(self.reply4(|it| OpenOk {
                state_id: it.state_id(),
                dir_change: it.change(),
                flags: it.u32(),
                attrs_set: it.bits(),
                delegation: it.delegation(),
            })),
            Op::OpenAttr => R::OpenAttr(self.status4()),
            Op::OpenConfirm => R::OpenConfirm(self.reply4(Self::state_id)),
            Op::OpenDowngrade => R::OpenDowngrade(self.reply4(Self::state_id)),
            Op::PutFh => R::PutFh(self.status4()),
            Op::PutPubFh => R::PutPubFh(self.status4()),
            Op::PutRootFh => R::PutRootFh(self.status4()),
            Op::Read => R::Read(self.reply4(|it| ReadOk {
                eof: it.bool(),
                data: it.opaque(),
            })),
            Op::ReadDir => R::ReadDir(self.reply4(|it| ReadDirOk {
                cookie_verifier: it.verifier(),
                entries: Chain::new(it.leak(Self::entry4)),
                eof: it.bool(),
            })),
            Op::ReadLink => R::ReadLink(self.reply4(Self::opaque)),
            Op::Remove => R::Remove(self.reply4(Self::change)),
            Op::Rename => R::Rename(self.reply4(|it| RenameOk {
                from_dir_change: it.change(),
                to_dir_change: it.change(),
            })),
            Op::Renew => R::Renew(self.status4()),
            Op::RestoreFh => R::RestoreFh(self.status4()),
            Op::SaveFh => R::SaveFh(self.status4()),
            Op::SecInfo => R::SecInfo(self.reply4(|it| it.items(Self::sec_info))),
            Op::SetAttr => R::SetAttr(SetAttrReply {
                status: self.status4(),
                attrs_set: self.bits(),
            }),
            Op::SetClientId => R::SetClientId(self.reply_or(
                |it| v40::SetClientIdOk {
                    client_id: it.client_id(),
                    confirm: it.verifier(),
                },
                Self::net_addr,
            )),
            Op::SetClientIdConfirm => R::SetClientIdConfirm(self.status4()),
            Op::Verify => R::Verify(self.status4()),
            Op::Write => R::Write(self.reply4(|it| WriteOk {
                count_bytes: it.u32(),
                committed: it.of(StableHow::ALL),
                verifier: it.verifier(),
            })),
            Op::ReleaseLockOwner => R::ReleaseLockOwner(self.status4()),
            Op::BackchannelCtl => R::BackchannelCtl(self.status4()),
            Op::BindConnToSession => R::BindConnToSession(self.reply4(|it| BindConnToSessionOk {
                session_id: it.session_id(),
                direction: it.of(ChannelFromServer::ALL),
                use_rdma: it.bool(),
            })),
            Op::ExchangeId => R::ExchangeId(self.reply4(|it| ExchangeIdOk {
                client_id: it.client_id(),
                sequence_id: it.u32(),
                flags: it.u32(),
                state_protect: it.state_protected(),
                server_owner: ServerOwner {
                    minor_id: it.u64(),
                    major_id: it.opaque(),
                },
                server_scope: it.opaque(),
                implementation: it.option(Self::impl_id),
            })),
            Op::CreateSession => R::CreateSession(self.reply4(|it| CreateSessionOk {
                session_id: it.session_id(),
                sequence_id: it.u32(),
                flags: it.u32(),
                fore_channel: it.channel(),
                back_channel: it.channel(),
            })),
            Op::DestroySession => R::DestroySession(self.status4()),
            Op::FreeStateId => R::FreeStateId(self.status4()),
            Op::GetDirDelegation => R::GetDirDelegation(self.reply4(|it| match it.bool() {
                true => GetDirDelegationOk::Given(DirDelegation {
                    cookie_verifier: it.verifier(),
                    state_id: it.state_id(),
                    notifications: it.bits(),
                    child_attributes: it.bits(),
                    dir_attributes: it.bits(),
                }),
                false => GetDirDelegationOk::Unavailable(it.bool()),
            })),
            Op::GetDeviceInfo => R::GetDeviceInfo(self.reply_or(
                |it| GetDeviceInfoOk {
                    layout_type: it.u32(),
                    address: it.opaque(),
                    notifications: it.bits(),
                },
                Self::u32,
            )),
            Op::GetDeviceList => R::GetDeviceList(self.reply4(|it| GetDeviceListOk {
                cookie: it.u64(),
                cookie_verifier: it.verifier(),
                device_ids: it.items(Self::words),
                eof: it.bool(),
            })),
            Op::LayoutCommit => R::LayoutCommit(self.reply4(|it| it.option(Self::u64))),
            Op::LayoutGet => R::LayoutGet(self.reply_or(
                |it| LayoutGetOk {
                    return_on_close: it.bool(),
                    state_id: it.state_id(),
                    layouts: it.items(|it| Layout {
                        offset: it.u64(),
                        len_bytes: it.u64(),
                        io_mode: it.of(LayoutIoMode::ALL),
                        layout_type: it.u32(),
                        body: it.opaque(),
                    }),
                },
                Self::bool,
            )),
            Op::LayoutReturn => R::LayoutReturn(self.reply4(|it| it.option(Self::state_id))),
            Op::SecInfoNoName => R::SecInfoNoName(self.reply4(|it| it.items(Self::sec_info))),
            Op::Sequence => R::Sequence(self.reply4(Self::sequence_ok)),
            Op::SetSsv => R::SetSsv(self.reply4(Self::opaque)),
            Op::TestStateId => R::TestStateId(self.reply4(|it| it.items(Self::status4))),
            Op::WantDelegation => R::WantDelegation(self.reply4(Self::delegation)),
            Op::DestroyClientId => R::DestroyClientId(self.status4()),
            Op::ReclaimComplete => R::ReclaimComplete(self.status4()),
            Op::Allocate => R::Allocate(self.status4()),
            Op::Copy => R::Copy(self.reply_or(
                |it| CopyOk {
                    response: it.write_response(),
                    requirements: it.requirements(),
                },
                Self::requirements,
            )),
            Op::CopyNotify => R::CopyNotify(self.reply4(|it| CopyNotifyOk {
                lease_time: it.time4(),
                state_id: it.state_id(),
                source_servers: it.items(Self::net_loc),
            })),
            Op::Deallocate => R::Deallocate(self.status4()),
            Op::IoAdvise => R::IoAdvise(self.reply4(Self::bits)),
            Op::LayoutError => R::LayoutError(self.status4()),
            Op::LayoutStats => R::LayoutStats(self.status4()),
            Op::OffloadCancel => R::OffloadCancel(self.status4()),
            Op::OffloadStatus => R::OffloadStatus(self.reply4(|it| OffloadStatusOk {
                count_bytes: it.u64(),
                complete: it.option(Self::status4),
            })),
            Op::ReadPlus => R::ReadPlus(self.reply4(|it| ReadPlusOk {
                eof: it.bool(),
                contents: it.items(|it| match it.bool() {
                    true => ReadPlusContent::Data(PlacedData {
                        offset: it.u64(),
                        data: it.opaque(),
                    }),
                    false => ReadPlusContent::Hole(Hole {
                        offset: it.u64(),
                        len_bytes: it.u64(),
                    }),
                }),
            })),
            Op::Seek => R::Seek(self.reply4(|it| SeekOk {
                eof: it.bool(),
                offset: it.u64(),
            })),
            Op::WriteSame => R::WriteSame(self.reply4(Self::write_response)),
            Op::Clone => R::Clone(self.status4()),
            Op::GetXattr => R::GetXattr(self.reply4(Self::opaque)),
            Op::SetXattr => R::SetXattr(self.reply4(Self::change)),
            Op::ListXattrs => R::ListXattrs(self.reply4(|it| ListXattrsOk {
                cookie: it.u64(),
                names: it.items(Self::opaque),
                eof: it.bool(),
            })),
            Op::RemoveXattr => R::RemoveXattr(self.reply4(Self::change)),
            Op::Illegal => R::Illegal(Err(ErrorStatus::OpIllegal)),
        }
    }

    fn notification(&mut self) -> Notification<'static> {
        Notification {
            mask: self.bits(),
            values: self.opaque(),
        }
    }

    fn recall_any(&mut self) -> RecallAnyArgs {
        RecallAnyArgs {
            objects_to_keep: self.u32(),
            type_mask: self.bits(),
        }
    }

    /// The arguments of a callback; of `Illegal`, which has none, those of CB_RECALL_SLOT.
    pub fn callback_args(&mut self, op: CbOp) -> CbArgs<'static> {
        use CbArgs as A;
        match op {
            CbOp::GetAttr => A::GetAttr(CbGetAttrArgs {
                file: self.opaque(),
                attr_request: self.bits(),
            }),
            CbOp::Recall => A::Recall(CbRecallArgs {
                state_id: self.state_id(),
                truncate: self.bool(),
                file: self.opaque(),
            }),
            CbOp::LayoutRecall => A::LayoutRecall(CbLayoutRecallArgs {
                layout_type: self.u32(),
                io_mode: self.of(LayoutIoMode::ALL),
                changed: self.bool(),
                recall: match self.below(3) {
                    0 => LayoutRecall::File(LayoutRecallFile {
                        file: self.opaque(),
                        offset: self.u64(),
                        len_bytes: self.u64(),
                        state_id: self.state_id(),
                    }),
                    1 => LayoutRecall::Fsid(self.fsid()),
                    _ => LayoutRecall::All,
                },
            }),
            CbOp::Notify => A::Notify(CbNotifyArgs {
                state_id: self.state_id(),
                file: self.opaque(),
                changes: self.items(Self::notification),
            }),
            CbOp::PushDeleg => A::PushDeleg(CbPushDelegArgs {
                file: self.opaque(),
                delegation: self.delegation(),
            }),
            CbOp::RecallAny => A::RecallAny(self.recall_any()),
            CbOp::RecallableObjAvail => A::RecallableObjAvail(self.recall_any()),
            CbOp::RecallSlot | CbOp::Illegal => A::RecallSlot(self.u32()),
            CbOp::Sequence => A::Sequence(CbSequenceArgs {
                session_id: self.session_id(),
                sequence_id: self.u32(),
                slot_id: self.u32(),
                highest_slot_id: self.u32(),
                cache_this: self.bool(),
                referring_calls: self.items(|it| ReferringCalls {
                    session_id: it.session_id(),
                    calls: it.items(|it| ReferringCall {
                        sequence_id: it.u32(),
                        slot_id: it.u32(),
                    }),
                }),
            }),
            CbOp::WantsCancelled => A::WantsCancelled(CbWantsCancelledArgs {
                contended: self.bool(),
                resourced: self.bool(),
            }),
            CbOp::NotifyLock => A::NotifyLock(CbNotifyLockArgs {
                file: self.opaque(),
                owner: self.owner(),
            }),
            CbOp::NotifyDeviceId => A::NotifyDeviceId(self.items(Self::notification)),
            CbOp::Offload => A::Offload(CbOffloadArgs {
                file: self.opaque(),
                state_id: self.state_id(),
                info: match self.bool() {
                    true => OffloadInfo::Done(self.write_response()),
                    false => OffloadInfo::Failed {
                        status: self.of(ErrorStatus::ALL),
                        copied_bytes: self.u64(),
                    },
                },
            }),
        }
    }

    /// The result of a callback.
    pub fn callback_result(&mut self, op: CbOp) -> CbResult<'static> {
        use CbResult as R;
        match op {
            CbOp::GetAttr => R::GetAttr(self.reply4(Self::fattr_to_get)),
            CbOp::Recall => R::Recall(self.status4()),
            CbOp::LayoutRecall => R::LayoutRecall(self.status4()),
            CbOp::Notify => R::Notify(self.status4()),
            CbOp::PushDeleg => R::PushDeleg(self.status4()),
            CbOp::RecallAny => R::RecallAny(self.status4()),
            CbOp::RecallableObjAvail => R::RecallableObjAvail(self.status4()),
            CbOp::RecallSlot => R::RecallSlot(self.status4()),
            CbOp::Sequence => R::Sequence(self.reply4(|it| CbSequenceOk {
                session_id: it.session_id(),
                sequence_id: it.u32(),
                slot_id: it.u32(),
                highest_slot_id: it.u32(),
                target_highest_slot_id: it.u32(),
            })),
            CbOp::WantsCancelled => R::WantsCancelled(self.status4()),
            CbOp::NotifyLock => R::NotifyLock(self.status4()),
            CbOp::NotifyDeviceId => R::NotifyDeviceId(self.status4()),
            CbOp::Offload => R::Offload(self.status4()),
            CbOp::Illegal => R::Illegal(Err(ErrorStatus::OpIllegal)),
        }
    }
}
