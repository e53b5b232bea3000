//! Which errors the RFCs permit for which operation.
//!
//! Owns: the tables of RFC 8881, sections 15.2 and 15.3 (15.4 is the same table the other way round), of RFC 7862,
//! sections 11.2 and 11.3, and of RFC 8276, section 8.4.5, as data; what their text permits beside them.
//! Must not know: when an operation fails.
//!
//! A table that a test compares replies with: [`permits`] and [`callback_permits`].

use super::callback::CbOp;
use super::op::{Need, Op};
use super::status::ErrorStatus::{self, *};

/// An operation and its errors, in the order of their numbers. `NFS4_OK` is not among them.
pub type ErrorRow<O> = (O, &'static [ErrorStatus]);

macro_rules! rows {
    ($op:ident { $($variant:ident: $($status:ident)*;)* }) => {
        &[$(($op::$variant, &[$($status,)*]),)*]
    };
}

/// RFC 8881, section 15.2, table 12. Table 14 of section 15.4 says the same.
pub const ERRORS_41: &[ErrorRow<Op>] = rows! {
    Op {
        Access: Io Access Inval Stale ServerFault Delay FhExpired Moved NoFileHandle BadXdr
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession;
        BackchannelCtl: NoEnt Inval Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        BindConnToSession: Inval ServerFault Delay BadXdr BadSessionDigest BadSession ReqTooBig
            RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps DeadSession NotOnlyOp;
        Close: Stale ServerFault Delay Expired FhExpired Moved NoFileHandle OldStateId BadStateId
            BadXdr LocksHeld AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession WrongCred;
        Commit: Io Access IsDir Stale ServerFault Delay FhExpired Moved NoFileHandle Symlink
            BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongType;
        Create: Perm Io Access Exist NotDir Inval NoSpc RoFs MLink NameTooLong DQuot Stale
            ServerFault BadType Delay FhExpired Moved NoFileHandle AttrNotSupp BadXdr BadOwner
            BadChar BadName ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep UnsafeCompound
            TooManyOps OpNotInSession DeadSession;
        CreateSession: NoEnt Inval NoSpc TooSmall ServerFault Delay ClIdInUse StaleClientId BadXdr
            SeqMisordered ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            DeadSession NotOnlyOp WrongCred;
        DelegPurge: NotSupp ServerFault Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred;
        DelegReturn: Inval Stale NotSupp ServerFault Delay Expired FhExpired Moved NoFileHandle
            OldStateId BadStateId BadXdr AdminRevoked ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred DelegRevoked;
        DestroyClientId: ServerFault Delay StaleClientId BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps ClientIdBusy DeadSession NotOnlyOp
            WrongCred;
        DestroySession: ServerFault Delay StaleClientId BadXdr CbPathDown BadSession
            ConnNotBoundToSession BackChanBusy ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps DeadSession NotOnlyOp WrongCred;
        ExchangeId: NoEnt Inval ServerFault Delay ClIdInUse NotSame BadXdr BadChar ReqTooBig
            RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps HashAlgUnsupp DeadSession
            EncrAlgUnsupp NotOnlyOp;
        FreeStateId: ServerFault Delay OldStateId BadStateId BadXdr LocksHeld ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred;
        GetAttr: Io Access Inval Stale ServerFault Delay Grace FhExpired Moved NoFileHandle BadXdr
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongType;
        GetDeviceInfo: NoEnt Inval NotSupp TooSmall ServerFault Delay BadXdr UnknownLayoutType
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession;
        GetDeviceList: Io Inval BadCookie NotSupp ServerFault Delay FhExpired NoFileHandle NotSame
            BadXdr UnknownLayoutType ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession;
        GetFh: Stale FhExpired Moved NoFileHandle OpNotInSession;
        GetDirDelegation: Io Access NotDir Inval Stale NotSupp ServerFault Delay Grace FhExpired
            Moved NoFileHandle BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession DirDelegUnavail;
        Illegal: BadXdr OpIllegal;
        LayoutCommit: Io Access IsDir Inval FBig Stale NotSupp ServerFault Delay Expired Grace
            FhExpired Moved NoFileHandle Symlink AttrNotSupp NoGrace ReclaimBad ReclaimConflict
            BadXdr AdminRevoked BadIoMode BadLayout UnknownLayoutType ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred
            DelegRevoked;
        LayoutGet: Io Access Inval NoSpc DQuot Stale NotSupp TooSmall ServerFault Delay Locked
            Grace FhExpired Moved NoFileHandle OldStateId BadStateId BadXdr OpenMode AdminRevoked
            BadIoMode BadLayout LayoutTryLater LayoutUnavailable RecallConflict UnknownLayoutType
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongType DelegRevoked;
        LayoutReturn: IsDir Inval Stale NotSupp ServerFault Delay Expired Grace FhExpired Moved
            NoFileHandle OldStateId BadStateId NoGrace BadXdr AdminRevoked UnknownLayoutType
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongCred WrongType DelegRevoked;
        Link: Io Access Exist XDev NotDir IsDir Inval NoSpc RoFs MLink NameTooLong DQuot Stale
            NotSupp ServerFault Delay Grace FhExpired WrongSec Moved NoFileHandle Symlink BadXdr
            BadChar BadName FileOpen ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession WrongType;
        Lock: Access IsDir Inval RoFs Stale ServerFault Delay Denied Expired Grace FhExpired Moved
            NoFileHandle OldStateId BadStateId LockRange Symlink NoGrace ReclaimBad
            ReclaimConflict BadXdr OpenMode BadRange LockNotSupp Deadlock AdminRevoked ReqTooBig
            RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession
            WrongCred WrongType;
        LockT: Access IsDir Inval RoFs Stale Delay Denied Grace FhExpired Moved NoFileHandle
            LockRange Symlink BadXdr BadRange ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred WrongType;
        LockU: Access Inval Stale ServerFault Delay Expired FhExpired Moved NoFileHandle
            OldStateId BadStateId LockRange BadXdr BadRange AdminRevoked ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred;
        Lookup: NoEnt Io Access NotDir Inval NameTooLong Stale ServerFault Delay FhExpired
            WrongSec Moved NoFileHandle Symlink BadXdr BadChar BadName ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        LookupP: NoEnt Io Access NotDir Stale ServerFault Delay FhExpired WrongSec Moved
            NoFileHandle Symlink ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession;
        NVerify: Io Access Inval Stale ServerFault Delay Same Grace FhExpired Moved NoFileHandle
            AttrNotSupp BadXdr BadChar UnknownLayoutType ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongType;
        Open: Perm NoEnt Io Access Exist NotDir IsDir Inval FBig NoSpc RoFs NameTooLong DQuot
            Stale ServerFault Delay Expired Grace FhExpired ShareDenied WrongSec Moved
            NoFileHandle OldStateId BadStateId Symlink AttrNotSupp NoGrace ReclaimBad
            ReclaimConflict BadXdr BadOwner BadChar BadName AdminRevoked DelegAlreadyWanted
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep UnsafeCompound TooManyOps
            OpNotInSession DeadSession WrongType DelegRevoked;
        OpenAttr: NoEnt Io Access NoSpc RoFs DQuot Stale NotSupp ServerFault Delay FhExpired Moved
            NoFileHandle BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            UnsafeCompound TooManyOps OpNotInSession DeadSession WrongType;
        OpenConfirm: NotSupp;
        OpenDowngrade: Inval RoFs Stale ServerFault Delay Expired FhExpired Moved NoFileHandle
            OldStateId BadStateId BadXdr AdminRevoked ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongCred;
        PutFh: Stale BadHandle ServerFault Delay WrongSec Moved BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        PutPubFh: ServerFault Delay WrongSec ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession;
        PutRootFh: ServerFault Delay WrongSec ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        Read: Io Access IsDir Inval Stale ServerFault Delay Expired Locked Grace FhExpired Moved
            NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode AdminRevoked ReqTooBig
            RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession PnfsIoHole
            DeadSession PnfsNoLayout WrongType DelegRevoked;
        ReadDir: Io Access NotDir Inval Stale BadCookie TooSmall ServerFault Delay FhExpired Moved
            NoFileHandle NotSame BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession;
        ReadLink: Io Access Inval Stale ServerFault Delay FhExpired Moved NoFileHandle ReqTooBig
            RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession
            WrongType;
        ReclaimComplete: Inval Stale ServerFault Delay FhExpired Moved NoFileHandle BadXdr
            CompleteAlready ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongCred WrongType;
        ReleaseLockOwner: NotSupp;
        Remove: NoEnt Io Access NotDir Inval RoFs NameTooLong NotEmpty Stale ServerFault Delay
            Grace FhExpired Moved NoFileHandle BadXdr BadChar BadName FileOpen ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        Rename: NoEnt Io Access Exist XDev NotDir Inval NoSpc RoFs MLink NameTooLong NotEmpty
            DQuot Stale ServerFault Delay Grace FhExpired WrongSec Moved NoFileHandle BadXdr
            BadChar BadName FileOpen ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession DeadSession;
        Renew: NotSupp;
        RestoreFh: Stale ServerFault FhExpired WrongSec Moved NoFileHandle ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        SaveFh: Stale ServerFault FhExpired Moved NoFileHandle ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        SecInfo: NoEnt Access NotDir Inval NameTooLong Stale ServerFault Delay FhExpired Moved
            NoFileHandle BadXdr BadChar BadName ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        SecInfoNoName: NoEnt Access NotDir Inval Stale NotSupp ServerFault Delay FhExpired Moved
            NoFileHandle BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession;
        Sequence: Delay BadXdr BadSession BadSlot ConnNotBoundToSession SeqMisordered SequencePos
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps SeqFalseRetry
            BadHighSlot DeadSession;
        SetAttr: Perm Io Access Inval FBig NoSpc RoFs DQuot Stale ServerFault Delay Expired Locked
            Grace FhExpired Moved NoFileHandle OldStateId BadStateId AttrNotSupp BadXdr OpenMode
            BadOwner BadChar AdminRevoked UnknownLayoutType ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongType DelegRevoked;
        SetClientId: NotSupp;
        SetClientIdConfirm: NotSupp;
        SetSsv: Inval Delay BadXdr BadSessionDigest ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        TestStateId: ServerFault Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession;
        Verify: Io Access Inval Stale ServerFault Delay Grace FhExpired Moved NoFileHandle NotSame
            AttrNotSupp BadXdr BadChar UnknownLayoutType ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongType;
        WantDelegation: Io Inval Stale NotSupp ServerFault Delay Grace FhExpired Moved
            NoFileHandle NoGrace ReclaimBad ReclaimConflict BadXdr DelegAlreadyWanted
            RecallConflict ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType;
        Write: Io Access IsDir Inval FBig NoSpc RoFs DQuot Stale ServerFault Delay Expired Locked
            Grace FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode
            AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked;
    }
};

/// RFC 7862, section 11.2, but for GETDEVICELIST, which it forbids.
pub const ERRORS_42: &[ErrorRow<Op>] = rows! {
    Op {
        Allocate: Io Access IsDir Inval FBig NoSpc RoFs DQuot Stale NotSupp ServerFault Delay
            Expired Grace FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr
            OpenMode AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType DelegRevoked;
        Clone: Io Access XDev IsDir Inval FBig NoSpc RoFs DQuot Stale NotSupp ServerFault Delay
            Expired Grace FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr
            OpenMode AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType DelegRevoked;
        Copy: Io Access IsDir Inval FBig NoSpc RoFs DQuot Stale ServerFault Delay Expired Locked
            Grace FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode
            AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked
            PartnerNotSupp PartnerNoAuth OffloadDenied;
        CopyNotify: Io Access IsDir Inval Stale ServerFault Delay Expired Locked Grace FhExpired
            Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode AdminRevoked
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked;
        Deallocate: Io Access IsDir Inval FBig RoFs Stale NotSupp ServerFault Delay Expired Grace
            FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode
            AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType DelegRevoked;
        IoAdvise: Io Access IsDir Inval FBig Stale NotSupp ServerFault Delay Expired Grace
            FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr AdminRevoked
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongType DelegRevoked;
        LayoutError: IsDir Inval Stale NotSupp ServerFault Delay Expired Grace FhExpired Moved
            NoFileHandle OldStateId BadStateId NoGrace BadXdr AdminRevoked UnknownLayoutType
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongCred WrongType DelegRevoked;
        LayoutStats: IsDir Inval Stale NotSupp ServerFault Delay Expired Grace FhExpired Moved
            NoFileHandle OldStateId BadStateId NoGrace BadXdr AdminRevoked UnknownLayoutType
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            DeadSession WrongCred WrongType DelegRevoked;
        OffloadCancel: NotSupp ServerFault Delay Expired Grace OldStateId BadStateId BadXdr
            AdminRevoked CompleteAlready TooManyOps OpNotInSession DeadSession;
        OffloadStatus: NotSupp ServerFault Delay Expired Grace OldStateId BadStateId BadXdr
            AdminRevoked CompleteAlready TooManyOps OpNotInSession DeadSession;
        ReadPlus: Io Access IsDir Inval Stale NotSupp ServerFault Delay Expired Locked Grace
            FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode
            AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked
            PartnerNoAuth;
        Seek: Io Access IsDir Inval Stale NotSupp ServerFault Delay Expired Locked Grace FhExpired
            Moved NoFileHandle OldStateId BadStateId Symlink BadXdr OpenMode AdminRevoked
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession
            PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked UnionNotSupp;
        WriteSame: Io Access IsDir Inval FBig NoSpc RoFs DQuot Stale NotSupp ServerFault Delay
            Expired Locked Grace FhExpired Moved NoFileHandle OldStateId BadStateId Symlink BadXdr
            OpenMode AdminRevoked ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession PnfsIoHole DeadSession PnfsNoLayout WrongType DelegRevoked;
    }
};

/// RFC 8276, section 8.4.5.
pub const ERRORS_XATTR: &[ErrorRow<Op>] = rows! {
    Op {
        GetXattr: Perm Io Access Inval NameTooLong Stale NotSupp ServerFault Delay FhExpired Moved
            NoFileHandle BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType NoXattr;
        ListXattrs: Perm Io Access Inval NameTooLong Stale NotSupp ServerFault Delay Moved
            NoFileHandle ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession DeadSession WrongType NoXattr;
        RemoveXattr: Perm Io Access Exist Inval NoSpc RoFs NameTooLong DQuot Stale ServerFault
            Delay Locked Moved NoFileHandle OldStateId BadXdr OpenMode BadChar RetryUncachedRep
            TooManyOps OpNotInSession DeadSession WrongType NoXattr;
        SetXattr: Perm Io Access Exist Inval NoSpc RoFs NameTooLong DQuot Stale ServerFault Delay
            FhExpired Moved NoFileHandle BadXdr BadChar ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession DeadSession WrongType NoXattr Xattr2Big;
    }
};

/// RFC 8881, section 15.3, table 13.
pub const CALLBACK_ERRORS_41: &[ErrorRow<CbOp>] = rows! {
    CbOp {
        GetAttr: Inval BadHandle ServerFault Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession;
        Illegal: BadXdr OpIllegal;
        LayoutRecall: Inval BadHandle NotSupp Delay BadStateId BadXdr BadIoMode NoMatchingLayout
            UnknownLayoutType ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession WrongType;
        Notify: Inval BadHandle NotSupp ServerFault Delay BadStateId BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession;
        NotifyDeviceId: Inval NotSupp ServerFault Delay BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession;
        NotifyLock: BadHandle NotSupp ServerFault Delay BadStateId BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession;
        PushDeleg: Inval BadHandle NotSupp ServerFault Delay BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession WrongType RejectDeleg;
        Recall: BadHandle ServerFault Delay BadStateId BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession;
        RecallableObjAvail: Inval NotSupp ServerFault Delay BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession;
        RecallAny: Inval Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep
            TooManyOps OpNotInSession;
        RecallSlot: Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps
            OpNotInSession BadHighSlot;
        Sequence: Delay BadXdr BadSession BadSlot ConnNotBoundToSession SeqMisordered SequencePos
            ReqTooBig RepTooBig RepTooBigToCache RetryUncachedRep TooManyOps SeqFalseRetry
            BadHighSlot;
        WantsCancelled: NotSupp ServerFault Delay BadXdr ReqTooBig RepTooBig RepTooBigToCache
            RetryUncachedRep TooManyOps OpNotInSession;
    }
};

/// RFC 7862, section 11.3.
pub const CALLBACK_ERRORS_42: &[ErrorRow<CbOp>] = rows! {
    CbOp {
        Offload: BadHandle ServerFault Delay BadStateId BadXdr ReqTooBig RepTooBig
            RepTooBigToCache RetryUncachedRep TooManyOps OpNotInSession;
    }
};

/// Errors that the text asks for and the tables lack, and where it does. Beside them, `NotSupp` is permitted for
/// every operation that is not required (RFC 8881, section 17; RFC 7862, section 13).
pub const ERRORS_OF_TEXT: &[(Op, ErrorStatus, &str)] = &[
    (Op::Copy, OffloadNoReqs, "RFC 7862, section 15.2.2"),
    (Op::ListXattrs, TooSmall, "RFC 8276, section 8.4.3.3"),
    (Op::ListXattrs, BadXdr, "RFC 8881, section 15.1.1.1"),
    (
        Op::OffloadCancel,
        NoFileHandle,
        "RFC 8881, section 15.1.2.5",
    ),
    (
        Op::OffloadStatus,
        NoFileHandle,
        "RFC 8881, section 15.1.2.5",
    ),
    (Op::ListXattrs, FhExpired, "RFC 8881, section 15.1.2.2"),
    (Op::RemoveXattr, FhExpired, "RFC 8881, section 15.1.2.2"),
    (Op::RemoveXattr, ReqTooBig, "RFC 8881, section 2.10.6.4"),
    (Op::RemoveXattr, RepTooBig, "RFC 8881, section 2.10.6.4"),
    (
        Op::RemoveXattr,
        RepTooBigToCache,
        "RFC 8881, section 2.10.6.4",
    ),
];

/// The errors of a COMPOUND without results (RFC 8881, section 16.2.4, table 15).
pub const COMPOUND_ERRORS: &[ErrorStatus] = &[
    Inval,
    ServerFault,
    Delay,
    MinorVersMismatch,
    BadXdr,
    BadChar,
    ReqTooBig,
    RepTooBig,
    RepTooBigToCache,
    TooManyOps,
];

/// The errors that the tables have for an operation of minor version 1 or 2.
pub fn table_errors(op: Op, minor_version: u32) -> &'static [ErrorStatus] {
    if op.need(minor_version) == Need::Forbidden {
        return &[NotSupp];
    }
    let tables = [ERRORS_41, ERRORS_42, ERRORS_XATTR];
    let mut rows = tables.into_iter().flatten();
    rows.find(|(row, _)| *row == op)
        .map_or(&[], |(_, errors)| *errors)
}

/// Whether an operation of minor version 1 or 2 may end with this error.
pub fn permits(op: Op, minor_version: u32, error: ErrorStatus) -> bool {
    table_errors(op, minor_version).contains(&error)
        || error == NotSupp && op.need(minor_version) != Need::Required
        || ERRORS_OF_TEXT
            .iter()
            .any(|(row, status, _)| (*row, *status) == (op, error))
}

/// Whether a callback may end with this error.
pub fn callback_permits(op: CbOp, error: ErrorStatus) -> bool {
    let tables = [CALLBACK_ERRORS_41, CALLBACK_ERRORS_42];
    let mut rows = tables.into_iter().flatten();
    rows.any(|(row, errors)| *row == op && errors.contains(&error))
}
