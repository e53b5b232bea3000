//! OPEN, CLOSE, OPEN_DOWNGRADE, the locks and delegations (RFC 8881, sections 18.2, 18.10 to 18.12, 18.16, 18.18,
//! 18.39 and 18.49).

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr_enum, xdr_struct};

use super::attr::Fattr;
use super::attr_types::Ace;
use super::bitmap::Bitmap;
use super::reply::ReplyOr;
use super::status::ErrorStatus;
use super::types::*;

xdr_struct! {
    #[derive(Copy)]
    pub struct CloseArgs {
        /// Ignored since version 4.1.
        pub seqid: u32,
        pub state_id: StateId,
    }
}

/// Bits of [`OpenArgs::share_access`] and values of its field of wants (RFC 8881, section 18.16).
pub mod share_access {
    pub const READ: u32 = 0x1;
    pub const WRITE: u32 = 0x2;
    pub const BOTH: u32 = 0x3;
    /// Which delegation the client wants: one of the `WANT_` values.
    pub const WANT_MASK: u32 = 0xff00;
    pub const WANT_NO_PREFERENCE: u32 = 0x0000;
    pub const WANT_READ_DELEGATION: u32 = 0x0100;
    pub const WANT_WRITE_DELEGATION: u32 = 0x0200;
    pub const WANT_ANY_DELEGATION: u32 = 0x0300;
    pub const WANT_NO_DELEGATION: u32 = 0x0400;
    pub const WANT_CANCEL: u32 = 0x0500;
    pub const SIGNAL_WHEN_RESOURCE_AVAILABLE: u32 = 0x1_0000;
    pub const PUSH_WHEN_UNCONTENDED: u32 = 0x2_0000;
}

/// Bits of [`OpenArgs::share_deny`].
pub mod share_deny {
    pub const NONE: u32 = 0x0;
    pub const READ: u32 = 0x1;
    pub const WRITE: u32 = 0x2;
    pub const BOTH: u32 = 0x3;
}

/// Bits of [`OpenOk::flags`].
pub mod open_result {
    /// Of version 4.0 only.
    pub const CONFIRM: u32 = 0x02;
    pub const LOCKTYPE_POSIX: u32 = 0x04;
    pub const PRESERVE_UNLINKED: u32 = 0x08;
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// `creatverfattr`.
    #[derive(Copy)]
    pub struct ExclusiveCreate<'a> {
        pub verifier: Verifier,
        pub attributes: Fattr<'a>,
    }
}

xdr_union! {
    /// `createhow4`.
    #[derive(Copy)]
    pub enum CreateHow<'a>: "createmode4" {
        Unchecked(Fattr<'a>) = 0,
        Guarded(Fattr<'a>) = 1,
        /// Without attributes: of version 4.0, and still known later.
        Exclusive(Verifier) = 2,
        /// `EXCLUSIVE4_1`.
        ExclusiveWith(ExclusiveCreate<'a>) = 3,
    }
}

xdr_union! {
    /// `openflag4`.
    #[derive(Copy)]
    pub enum OpenHow<'a>: "opentype4" {
        NoCreate = 0,
        Create(CreateHow<'a>) = 1,
    }
}

xdr_enum! {
    /// `open_delegation_type4`.
    pub enum DelegationType: "open_delegation_type4" {
        None = 0 => "OPEN_DELEGATE_NONE",
        Read = 1 => "OPEN_DELEGATE_READ",
        Write = 2 => "OPEN_DELEGATE_WRITE",
        NoneExt = 3 => "OPEN_DELEGATE_NONE_EXT",
    }
}

xdr_struct! {
    /// `open_claim_delegate_cur4`.
    #[derive(Copy)]
    pub struct DelegateCurrent<'a> {
        pub state_id: StateId,
        pub file: Name<'a>,
    }
}

xdr_union! {
    /// The right by which a client opens (`open_claim4`).
    #[derive(Copy)]
    pub enum OpenClaim<'a>: "open_claim_type4" {
        /// A new open of a name in the current directory.
        Null(Name<'a>) = 0,
        /// An open from before the server restarted, of the current file.
        Previous(DelegationType) = 1,
        DelegateCurrent(DelegateCurrent<'a>) = 2,
        DelegatePrevious(Name<'a>) = 3,
        /// A new open of the current file.
        Handle = 4,
        DelegateCurrentHandle(StateId) = 5,
        DelegatePreviousHandle = 6,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct OpenArgs<'a> {
        /// Ignored since version 4.1.
        pub seqid: u32,
        /// Bits of [`share_access`].
        pub share_access: u32,
        /// Bits of [`share_deny`].
        pub share_deny: u32,
        pub owner: StateOwner<'a>,
        pub how: OpenHow<'a>,
        pub claim: OpenClaim<'a>,
    }
}

xdr_struct! {
    /// `open_read_delegation4`.
    #[derive(Copy)]
    pub struct ReadDelegation<'a> {
        pub state_id: StateId,
        /// It is recalled already: the client reclaimed it, and another client wants the file.
        pub recall: bool,
        /// Who may open without asking the server.
        pub permissions: Ace<'a>,
    }
}

xdr_struct! {
    /// `nfs_modified_limit4`.
    #[derive(Copy)]
    pub struct ModifiedLimit {
        pub block_count: u32,
        pub block_len_bytes: u32,
    }
}

xdr_union! {
    /// How much a client may keep to itself at a close (`nfs_space_limit4`).
    #[derive(Copy)]
    pub enum SpaceLimit: "limit_by4" {
        FileSize(u64) = 1,
        Blocks(ModifiedLimit) = 2,
    }
}

xdr_struct! {
    /// `open_write_delegation4`.
    #[derive(Copy)]
    pub struct WriteDelegation<'a> {
        pub state_id: StateId,
        /// As in [`ReadDelegation`].
        pub recall: bool,
        pub space_limit: SpaceLimit,
        /// As in [`ReadDelegation`].
        pub permissions: Ace<'a>,
    }
}

xdr_union! {
    /// Why there is no delegation (`open_none_delegation4`).
    #[derive(Copy)]
    pub enum NoDelegation: "why_no_delegation4" {
        NotWanted = 0,
        /// Whether the server will push one when nobody else uses the file.
        Contention(bool) = 1,
        /// Whether the server will say when it can give one.
        Resource(bool) = 2,
        NotSupportedFileType = 3,
        WriteNotSupportedFileType = 4,
        NotSupportedUpgrade = 5,
        NotSupportedDowngrade = 6,
        Cancelled = 7,
        IsDirectory = 8,
    }
}

xdr_union! {
    /// `open_delegation4`.
    #[derive(Copy)]
    pub enum Delegation<'a>: "open_delegation_type4" {
        None = 0,
        Read(ReadDelegation<'a>) = 1,
        Write(WriteDelegation<'a>) = 2,
        NoneExt(NoDelegation) = 3,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct OpenOk<'a> {
        pub state_id: StateId,
        pub dir_change: ChangeInfo,
        /// Bits of [`open_result`].
        pub flags: u32,
        /// Of the attributes of a creation.
        pub attrs_set: Bitmap,
        pub delegation: Delegation<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct OpenDowngradeArgs {
        pub state_id: StateId,
        /// Ignored since version 4.1.
        pub seqid: u32,
        pub share_access: u32,
        pub share_deny: u32,
    }
}

xdr_struct! {
    /// `open_to_lock_owner4`: the first lock of an owner.
    #[derive(Copy)]
    pub struct NewLockOwner<'a> {
        /// Ignored since version 4.1.
        pub open_seqid: u32,
        pub open_state_id: StateId,
        /// Ignored since version 4.1.
        pub lock_seqid: u32,
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// `exist_lock_owner4`: another lock of an owner that has some.
    #[derive(Copy)]
    pub struct KnownLockOwner {
        pub lock_state_id: StateId,
        /// Ignored since version 4.1.
        pub lock_seqid: u32,
    }
}

/// Who locks (`locker4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locker<'a> {
    New(NewLockOwner<'a>),
    Known(KnownLockOwner),
}

impl Encode for Locker<'_> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.bool(matches!(self, Self::New(_)));
        match self {
            Self::New(owner) => to.put(owner),
            Self::Known(owner) => to.put(owner),
        }
    }
}

impl<'a> Decode<'a> for Locker<'a> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match from.bool()? {
            true => from.get().map(Self::New),
            false => from.get().map(Self::Known),
        }
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct LockArgs<'a> {
        pub lock_type: LockType,
        /// The client had this lock before the server restarted.
        pub reclaim: bool,
        pub offset: u64,
        /// All ones: to the end of the file, wherever that will be. 0 is answered `Inval`.
        pub len_bytes: u64,
        pub locker: Locker<'a>,
    }
}

xdr_struct! {
    /// `LOCK4denied`: a lock that stands in the way.
    #[derive(Copy)]
    pub struct LockDenied<'a> {
        pub offset: u64,
        pub len_bytes: u64,
        pub lock_type: LockType,
        pub owner: StateOwner<'a>,
    }
}

impl Default for LockDenied<'_> {
    /// Nobody's write lock on everything: for a server that does not know whose lock it is.
    fn default() -> Self {
        Self {
            offset: 0,
            len_bytes: u64::MAX,
            lock_type: LockType::Write,
            owner: StateOwner::default(),
        }
    }
}

/// The results of LOCK; with `Denied`, the lock in the way.
pub type LockReply<'a> = ReplyOr<StateId, LockDenied<'a>, { ErrorStatus::Denied as u32 }>;
/// The results of LOCKT; with `Denied`, the lock in the way.
pub type LockTestReply<'a> = ReplyOr<(), LockDenied<'a>, { ErrorStatus::Denied as u32 }>;

xdr_struct! {
    #[derive(Copy)]
    pub struct LockTestArgs<'a> {
        pub lock_type: LockType,
        pub offset: u64,
        /// As in [`LockArgs`].
        pub len_bytes: u64,
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct UnlockArgs {
        pub lock_type: LockType,
        /// Ignored since version 4.1.
        pub seqid: u32,
        pub lock_state_id: StateId,
        pub offset: u64,
        /// As in [`LockArgs`].
        pub len_bytes: u64,
    }
}

xdr_union! {
    /// `deleg_claim4`.
    #[derive(Copy)]
    pub enum DelegationClaim: "open_claim_type4 of a delegation" {
        Previous(DelegationType) = 1,
        Handle = 4,
        DelegatePreviousHandle = 6,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct WantDelegationArgs {
        /// The wants of [`share_access`].
        pub want: u32,
        pub claim: DelegationClaim,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct GetDirDelegationArgs {
        pub signal_available: bool,
        /// Which notifications: bits by `notify_type4`.
        pub notifications: Bitmap,
        pub child_attr_delay: NfsTime,
        pub dir_attr_delay: NfsTime,
        pub child_attributes: Bitmap,
        pub dir_attributes: Bitmap,
    }
}

xdr_struct! {
    #[derive(Copy)]
    pub struct DirDelegation {
        pub cookie_verifier: Verifier,
        pub state_id: StateId,
        pub notifications: Bitmap,
        pub child_attributes: Bitmap,
        pub dir_attributes: Bitmap,
    }
}

xdr_union! {
    /// `GET_DIR_DELEGATION4res_non_fatal`.
    #[derive(Copy)]
    pub enum GetDirDelegationOk: "gddrnf4_status" {
        Given(DirDelegation) = 0,
        /// Whether the server will say when it can give one.
        Unavailable(bool) = 1,
    }
}
