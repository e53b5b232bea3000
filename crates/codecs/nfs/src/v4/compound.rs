//! COMPOUND: many operations in one call (RFC 8881, section 16.2; RFC 7863; RFC 8276).
//!
//! Owns: the operations with their arguments and results as one enum each; reading them one by one; writing the
//! results one by one.
//! Must not know: what an operation does, which results a session keeps.
//!
//! XDR gives operations no length. One that cannot be decoded ends the COMPOUND: [`BadOp`] has its answer, which
//! follows the results of the operations before it.

use std::marker::PhantomData;

use cairn_codec_rpc::xdr::padded_len;
use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer};

use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::file::*;
use super::layout::*;
use super::op::{Need, Op};
use super::open::*;
use super::reply::{Outcome, Reply};
use super::session::*;
use super::status::{ErrorStatus, Status};
use super::types::*;
use super::v42::*;

/// Most operations of a COMPOUND, whatever the session allows; more is answered `TooManyOps`.
pub const OP_COUNT_MAX: u32 = 1024;

/// The name that a client gives to a COMPOUND. The reply repeats it.
pub type Tag<'a> = Text<'a>;

/// Arguments of operations that are read one by one.
pub trait Arguments<'a>: Sized {
    /// Reads the arguments of the operation with this number. `None` if this minor version has no such operation.
    fn decode(
        minor_version: u32,
        number: u32,
        from: &mut Reader<'a>,
    ) -> Option<Result<Self, DecodeError>>;
}

/// One line for each operation gives both enums and their codecs. `Illegal`, which has no arguments, is added.
macro_rules! operations {
    (
        $(#[$args_meta:meta])* args $args:ident,
        $(#[$result_meta:meta])* results $result:ident,
        numbers $op:ident,
        { $($variant:ident $(($args_type:ty))? -> $reply:ty,)* }
    ) => {
        $(#[$args_meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $args<'a> {
            $($variant $(($args_type))?,)*
        }

        impl<'a> $args<'a> {
            pub fn op(&self) -> $op {
                match self {
                    $(Self::$variant { .. } => $op::$variant,)*
                }
            }
        }

        impl<'a> Arguments<'a> for $args<'a> {
            fn decode(
                minor_version: u32,
                number: u32,
                from: &mut Reader<'a>,
            ) -> Option<Result<Self, DecodeError>> {
                let read = |from: &mut Reader<'a>, op| {
                    Ok(match op {
                        $($op::$variant => Self::$variant $((from.get::<$args_type>()?))?,)*
                        // Not reached: `Illegal` is filtered out below.
                        $op::Illegal => return Err(DecodeError::Truncated),
                    })
                };
                let op = $op::of_version(minor_version, number).filter(|op| *op != $op::Illegal)?;
                Some(read(from, op))
            }
        }

        /// With the number of the operation.
        impl<'a> Encode for $args<'a> {
            fn encode(&self, to: &mut Writer<'_>) {
                to.put(&self.op());
                match self {
                    $(Self::$variant $((operations!(@bind body, $args_type)))? => {
                        $(to.put::<$args_type>(body);)?
                    })*
                }
            }
        }

        $(#[$result_meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $result<'a> {
            $($variant($reply),)*
            /// Of a number that is no operation: never `Ok`.
            Illegal(Reply<()>),
        }

        impl<'a> $result<'a> {
            pub fn op(&self) -> $op {
                match self {
                    $(Self::$variant(_) => $op::$variant,)*
                    Self::Illegal(_) => $op::Illegal,
                }
            }

            pub fn status(&self) -> Status {
                match self {
                    $(Self::$variant(reply) => Outcome::status(reply),)*
                    Self::Illegal(reply) => Outcome::status(reply),
                }
            }

            /// The result of an operation that failed and has nothing else to say.
            pub fn failed(op: $op, status: ErrorStatus) -> Self {
                match op {
                    $($op::$variant => Self::$variant(Outcome::failed(status)),)*
                    $op::Illegal => Self::Illegal(Err(status)),
                }
            }
        }

        /// With the number of the operation.
        impl<'a> Encode for $result<'a> {
            fn encode(&self, to: &mut Writer<'_>) {
                to.put(&self.op());
                match self {
                    $(Self::$variant(reply) => to.put::<$reply>(reply),)*
                    Self::Illegal(reply) => to.put(reply),
                }
            }
        }

        impl<'a> Decode<'a> for $result<'a> {
            fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(match from.get::<$op>()? {
                    $($op::$variant => Self::$variant(from.get::<$reply>()?),)*
                    $op::Illegal => Self::Illegal(from.get()?),
                })
            }
        }
    };
    (@bind $body:ident, $type:ty) => { $body };
}
pub(super) use operations;

operations! {
    /// An operation with its arguments.
    args OpArgs,
    /// An operation with its result.
    results OpResult,
    numbers Op,
    {
        Access(u32) -> Reply<AccessOk>,
        Close(CloseArgs) -> Reply<StateId>,
        Commit(CommitArgs) -> Reply<WriteVerifier>,
        Create(CreateArgs<'a>) -> Reply<CreateOk>,
        DelegPurge(ClientId) -> Reply<()>,
        DelegReturn(StateId) -> Reply<()>,
        GetAttr(Bitmap) -> Reply<Fattr<'a>>,
        GetFh -> Reply<Handle<'a>>,
        Link(Name<'a>) -> Reply<ChangeInfo>,
        Lock(LockArgs<'a>) -> LockReply<'a>,
        LockT(LockTestArgs<'a>) -> LockTestReply<'a>,
        LockU(UnlockArgs) -> Reply<StateId>,
        Lookup(Name<'a>) -> Reply<()>,
        LookupP -> Reply<()>,
        NVerify(Fattr<'a>) -> Reply<()>,
        Open(OpenArgs<'a>) -> Reply<OpenOk<'a>>,
        OpenAttr(bool) -> Reply<()>,
        OpenConfirm(v40::OpenConfirmArgs) -> Reply<StateId>,
        OpenDowngrade(OpenDowngradeArgs) -> Reply<StateId>,
        PutFh(Handle<'a>) -> Reply<()>,
        PutPubFh -> Reply<()>,
        PutRootFh -> Reply<()>,
        Read(ReadArgs) -> Reply<ReadOk<'a>>,
        ReadDir(ReadDirArgs) -> Reply<ReadDirOk<'a>>,
        ReadLink -> Reply<LinkText<'a>>,
        Remove(Name<'a>) -> Reply<ChangeInfo>,
        Rename(RenameArgs<'a>) -> Reply<RenameOk>,
        Renew(ClientId) -> Reply<()>,
        RestoreFh -> Reply<()>,
        SaveFh -> Reply<()>,
        SecInfo(Name<'a>) -> Reply<SecInfos<'a>>,
        SetAttr(SetAttrArgs<'a>) -> SetAttrReply,
        SetClientId(v40::SetClientIdArgs<'a>) -> v40::SetClientIdReply<'a>,
        SetClientIdConfirm(v40::SetClientIdConfirmArgs) -> Reply<()>,
        Verify(Fattr<'a>) -> Reply<()>,
        Write(WriteArgs<'a>) -> Reply<WriteOk>,
        ReleaseLockOwner(StateOwner<'a>) -> Reply<()>,
        BackchannelCtl(BackchannelCtlArgs<'a>) -> Reply<()>,
        BindConnToSession(BindConnToSessionArgs) -> Reply<BindConnToSessionOk>,
        ExchangeId(ExchangeIdArgs<'a>) -> Reply<ExchangeIdOk<'a>>,
        CreateSession(CreateSessionArgs<'a>) -> Reply<CreateSessionOk>,
        DestroySession(SessionId) -> Reply<()>,
        FreeStateId(StateId) -> Reply<()>,
        GetDirDelegation(GetDirDelegationArgs) -> Reply<GetDirDelegationOk>,
        GetDeviceInfo(GetDeviceInfoArgs) -> GetDeviceInfoReply<'a>,
        GetDeviceList(GetDeviceListArgs) -> Reply<GetDeviceListOk<'a>>,
        LayoutCommit(LayoutCommitArgs<'a>) -> Reply<NewSize>,
        LayoutGet(LayoutGetArgs) -> LayoutGetReply<'a>,
        LayoutReturn(LayoutReturnArgs<'a>) -> Reply<Option<StateId>>,
        SecInfoNoName(SecInfoStyle) -> Reply<SecInfos<'a>>,
        Sequence(SequenceArgs) -> Reply<SequenceOk>,
        SetSsv(SetSsvArgs<'a>) -> Reply<Text<'a>>,
        TestStateId(StateIds<'a>) -> Reply<StateIdStatuses<'a>>,
        WantDelegation(WantDelegationArgs) -> Reply<Delegation<'a>>,
        DestroyClientId(ClientId) -> Reply<()>,
        // Whether only of the file system of the current filehandle.
        ReclaimComplete(bool) -> Reply<()>,
        Allocate(SpaceArgs) -> Reply<()>,
        Copy(CopyArgs<'a>) -> CopyReply,
        CopyNotify(CopyNotifyArgs<'a>) -> Reply<CopyNotifyOk<'a>>,
        Deallocate(SpaceArgs) -> Reply<()>,
        IoAdvise(IoAdviseArgs) -> Reply<Bitmap>,
        LayoutError(LayoutErrorArgs<'a>) -> Reply<()>,
        LayoutStats(LayoutStatsArgs<'a>) -> Reply<()>,
        OffloadCancel(StateId) -> Reply<()>,
        OffloadStatus(StateId) -> Reply<OffloadStatusOk>,
        ReadPlus(ReadArgs) -> Reply<ReadPlusOk<'a>>,
        Seek(SeekArgs) -> Reply<SeekOk>,
        WriteSame(WriteSameArgs<'a>) -> Reply<WriteResponse>,
        Clone(CloneArgs) -> Reply<()>,
        GetXattr(XattrName<'a>) -> Reply<XattrValue<'a>>,
        SetXattr(SetXattrArgs<'a>) -> Reply<ChangeInfo>,
        ListXattrs(ListXattrsArgs) -> Reply<ListXattrsOk<'a>>,
        RemoveXattr(XattrName<'a>) -> Reply<ChangeInfo>,
    }
}

/// Why the next operation could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOp {
    #[error("{number} is no operation of this version")]
    Illegal { number: u32 },
    #[error("the arguments of operation {number} cannot be decoded: {error}")]
    Malformed { number: u32, error: DecodeError },
    #[error("the call ends before its operations")]
    Missing,
}

impl BadOp {
    /// The number and the status of the result that answers it (RFC 8881, sections 15.1.1.1 and 15.1.3.4).
    fn answer(&self) -> (Option<u32>, ErrorStatus) {
        match self {
            Self::Illegal { .. } => (None, ErrorStatus::OpIllegal),
            Self::Malformed { number, .. } => (Some(*number), ErrorStatus::BadXdr),
            Self::Missing => (None, ErrorStatus::BadXdr),
        }
    }

    /// The last result of a COMPOUND of this minor version that has this.
    pub fn result(&self, minor_version: u32) -> OpResult<'static> {
        let (number, status) = self.answer();
        let op = number.and_then(Op::from_u32).unwrap_or(Op::Illegal);
        // A forbidden operation is answered `NotSupp` even if its arguments are damaged (RFC 8881, section 17).
        match op.need(minor_version) {
            Need::Forbidden => OpResult::failed(op, ErrorStatus::NotSupp),
            _ => OpResult::failed(op, status),
        }
    }

    /// The last result of a CB_COMPOUND that has this.
    pub fn callback_result(&self) -> super::callback::CbResult<'static> {
        let (number, status) = self.answer();
        let op = number.and_then(super::callback::CbOp::from_u32);
        let op = op.unwrap_or(super::callback::CbOp::Illegal);
        super::callback::CbResult::failed(op, status)
    }
}

/// Reads operations one by one. Nothing follows an error.
#[derive(Clone, Debug)]
pub struct Ops<'a, A> {
    minor_version: u32,
    left: u32,
    from: Reader<'a>,
    args: PhantomData<A>,
}

impl<'a, A> Ops<'a, A> {
    /// Reads `count` operations of a minor version. Also for the rest of a COMPOUND, after the payload of a WRITE
    /// that [`decode_write_prefix`] found.
    pub fn new(minor_version: u32, count: u32, from: Reader<'a>) -> Self {
        Self {
            minor_version,
            left: count,
            from,
            args: PhantomData,
        }
    }

    /// Operations that were not read yet.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The bytes that were not read yet; after the last operation, those that should not be there.
    pub fn rest(&self) -> &'a [u8] {
        self.from.rest()
    }
}

impl<'a, A: Arguments<'a>> Iterator for Ops<'a, A> {
    type Item = Result<A, BadOp>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let op = self
            .from
            .u32()
            .map_err(|_| BadOp::Missing)
            .and_then(
                |number| match A::decode(self.minor_version, number, &mut self.from) {
                    Some(args) => args.map_err(|error| BadOp::Malformed { number, error }),
                    None => Err(BadOp::Illegal { number }),
                },
            );
        if op.is_err() {
            self.left = 0;
        }
        Some(op)
    }
}

/// Why a COMPOUND is answered without one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompoundFault<'a> {
    /// Not even the tag can be decoded: a matter of RPC.
    Malformed(DecodeError),
    /// A minor version that we do not speak, or too many operations.
    Refused { tag: Tag<'a>, status: ErrorStatus },
}

impl From<DecodeError> for CompoundFault<'_> {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

/// `COMPOUND4args` up to the operations.
#[derive(Clone, Debug)]
pub struct Compound<'a> {
    pub tag: Tag<'a>,
    pub minor_version: u32,
    /// At most [`OP_COUNT_MAX`].
    pub op_count: u32,
    from: Reader<'a>,
}

/// The minor versions whose operations are decoded.
pub const MINOR_VERSIONS: [u32; 2] = [1, 2];

impl<'a> Compound<'a> {
    /// Reads the arguments of the procedure COMPOUND. A minor version that is not spoken is refused before all
    /// else (RFC 8881, section 16.2.3).
    pub fn decode(args: &'a [u8]) -> Result<Self, CompoundFault<'a>> {
        let mut from = Reader::new(args);
        let tag = from.get()?;
        let minor_version = from.u32()?;
        let refused = |status| Err(CompoundFault::Refused { tag, status });
        if !MINOR_VERSIONS.contains(&minor_version) {
            return refused(ErrorStatus::MinorVersMismatch);
        }
        let op_count = from.u32()?;
        if op_count > OP_COUNT_MAX {
            return refused(ErrorStatus::TooManyOps);
        }
        Ok(Self {
            tag,
            minor_version,
            op_count,
            from,
        })
    }

    /// The operations from the first on.
    pub fn ops(&self) -> Ops<'a, OpArgs<'a>> {
        Ops::new(self.minor_version, self.op_count, self.from.clone())
    }
}

/// Writes `COMPOUND4args` up to the operations, of which the caller writes `op_count` after it.
pub fn encode_compound_head(to: &mut Writer<'_>, tag: &[u8], minor_version: u32, op_count: u32) {
    to.opaque(tag);
    to.u32(minor_version);
    to.u32(op_count);
}

/// Writes `COMPOUND4args`.
pub fn encode_compound(to: &mut Writer<'_>, tag: &[u8], minor_version: u32, ops: &[OpArgs<'_>]) {
    let op_count = u32::try_from(ops.len()).expect("operations fit 32 bits");
    encode_compound_head(to, tag, minor_version, op_count);
    ops.iter().for_each(|op| to.put(op));
}

/// `COMPOUND4res` up to the results, or `CB_COMPOUND4res`.
#[derive(Clone, Debug)]
pub struct CompoundReply<'a, R> {
    pub status: Status,
    pub tag: Tag<'a>,
    pub result_count: u32,
    from: Reader<'a>,
    result: PhantomData<R>,
}

impl<'a, R: Decode<'a>> CompoundReply<'a, R> {
    /// Reads the results of the procedure COMPOUND or CB_COMPOUND.
    pub fn decode(results: &'a [u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(results);
        Ok(Self {
            status: from.get()?,
            tag: from.get()?,
            result_count: from.u32()?,
            from,
            result: PhantomData,
        })
    }

    /// The results, one by one. Nothing follows an error.
    pub fn results(&self) -> impl Iterator<Item = Result<R, DecodeError>> + use<'a, R> {
        let mut from = self.from.clone();
        let mut left = self.result_count;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let result = from.get();
            if result.is_err() {
                left = 0;
            }
            Some(result)
        })
    }
}

/// Writes `COMPOUND4res` or `CB_COMPOUND4res`, result by result.
///
/// The status of the whole is that of the last result, or of [`ReplyWriter::refuse`].
#[derive(Debug)]
pub struct ReplyWriter<'b> {
    buf: &'b mut Vec<u8>,
    /// Where the status is; the results end in what is behind it.
    status_offset: usize,
    count_offset: usize,
    count: u32,
    /// Where the last result begins.
    last_offset: usize,
    /// Bytes of payloads that are not in `buf`.
    payload_len_bytes: usize,
    /// Those of the last result.
    last_payload_len_bytes: usize,
}

/// Where the payload of a READ belongs that is not in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPlace {
    /// In the buffer: the payload and its padding ([`cairn_codec_rpc::xdr::padding`]) go before this byte.
    pub offset: usize,
    pub len_bytes: u32,
}

impl<'b> ReplyWriter<'b> {
    /// Begins a reply after what `buf` holds.
    pub fn new(buf: &'b mut Vec<u8>, tag: &[u8]) -> Self {
        let status_offset = buf.len();
        let mut to = Writer::new(buf);
        to.u32(0);
        to.opaque(tag);
        let count_offset = to.len_bytes();
        to.u32(0);
        let last_offset = to.len_bytes();
        Self {
            buf,
            status_offset,
            count_offset,
            count: 0,
            last_offset,
            payload_len_bytes: 0,
            last_payload_len_bytes: 0,
        }
    }

    /// Bytes of the reply so far, from its status on, with payloads that are not in the buffer.
    pub fn len_bytes(&self) -> usize {
        self.buf.len() - self.status_offset + self.payload_len_bytes
    }

    pub fn result_count(&self) -> u32 {
        self.count
    }

    /// Writes the next result of a COMPOUND.
    pub fn push(&mut self, result: &OpResult<'_>) {
        let _status = self.result(|to| {
            to.put(result);
            result.status()
        });
    }

    /// Writes the next result of a CB_COMPOUND.
    pub fn push_callback(&mut self, result: &super::callback::CbResult<'_>) {
        let _status = self.result(|to| {
            to.put(result);
            result.status()
        });
    }

    /// Writes the result of `op`, whose body `body` writes after the status `NFS4_OK`. If `body` fails, what it wrote
    /// is taken back and the result is that failure.
    pub fn push_with(&mut self, op: Op, body: impl FnOnce(&mut Writer<'_>) -> Status) -> Status {
        self.result(|to| {
            let start = to.len_bytes();
            to.put(&op);
            to.put(&Status::Ok(()));
            let status = body(to);
            if let Err(status) = status {
                to.truncate(start);
                to.put(&OpResult::failed(op, status));
            }
            status
        })
    }

    /// Writes the result of a READ up to its payload, which the caller sends from where it is.
    pub fn push_read_head(&mut self, eof: bool, len_bytes: u32) -> PayloadPlace {
        let _ok = self.result(|to| {
            to.put(&Op::Read);
            to.put(&Status::Ok(()));
            to.bool(eof);
            to.u32(len_bytes);
            Ok(())
        });
        self.last_payload_len_bytes = padded_len(len_bytes as usize);
        self.payload_len_bytes += self.last_payload_len_bytes;
        PayloadPlace {
            offset: self.buf.len(),
            len_bytes,
        }
    }

    /// Puts a failure in place of the last result, such as `RepTooBig`. The payload of a READ goes with its result:
    /// its [`PayloadPlace`] is void.
    pub fn replace_last(&mut self, result: &OpResult<'_>) {
        assert!(self.count > 0, "there is a result");
        self.buf.truncate(self.last_offset);
        self.payload_len_bytes -= self.last_payload_len_bytes;
        self.count -= 1;
        self.push(result);
    }

    /// Ends a reply without results.
    pub fn refuse(self, status: ErrorStatus) {
        assert!(self.count == 0, "no result was written");
        Writer::new(self.buf).patch_u32(self.status_offset, status.number());
    }

    fn result(&mut self, write: impl FnOnce(&mut Writer<'_>) -> Status) -> Status {
        self.last_offset = self.buf.len();
        self.last_payload_len_bytes = 0;
        let mut to = Writer::new(self.buf);
        let status = write(&mut to);
        self.count += 1;
        let number = status.map_or_else(ErrorStatus::number, |()| 0);
        to.patch_u32(self.status_offset, number);
        to.patch_u32(self.count_offset, self.count);
        status
    }
}

/// The outcome of reading the beginning of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefix<T> {
    /// More bytes are needed.
    More,
    /// The message is of another form, or damaged: it must be read as a whole.
    Other,
    Found(T),
}

impl<T> Prefix<T> {
    fn of(read: Result<Option<T>, DecodeError>) -> Self {
        match read {
            Ok(Some(found)) => Self::Found(found),
            Err(DecodeError::Truncated) => Self::More,
            Ok(None) | Err(_) => Self::Other,
        }
    }
}

/// Bytes of a COMPOUND before the payload of its WRITE, at most, if [`decode_write_prefix`] finds one.
pub const WRITE_PREFIX_LEN_BYTES_MAX: usize = (4 + TEXT_LEN_BYTES_MAX as usize + 4 + 4)
    + (4 + 16 + 4 + 4 + 4 + 4)
    + (4 + 4 + HANDLE_LEN_BYTES_MAX as usize)
    + (4 + 16 + 8 + 4 + 4);

/// The beginning of a COMPOUND of SEQUENCE, PUTFH and WRITE, which others may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePrefix<'a> {
    pub tag: Tag<'a>,
    pub minor_version: u32,
    /// With the three.
    pub op_count: u32,
    pub sequence: SequenceArgs,
    pub file: Handle<'a>,
    pub head: WriteHead,
    /// Where the payload begins, from the start of the arguments.
    pub data_offset: usize,
    /// Bytes of payload, at most [`DATA_LEN_BYTES_MAX`]; padding follows them.
    pub data_len_bytes: u32,
}

/// Reads the arguments of COMPOUND up to the payload of a WRITE, from their first bytes, so that a server can
/// receive the payload where it will stay. This is the form that clients send: SEQUENCE, PUTFH, WRITE. Operations
/// after it are read by [`Ops::new`].
///
/// [`WRITE_PREFIX_LEN_BYTES_MAX`] bytes are always enough.
pub fn decode_write_prefix(args: &[u8]) -> Prefix<WritePrefix<'_>> {
    let read = || {
        let mut from = Reader::new(args);
        let tag = from.get()?;
        let minor_version = from.u32()?;
        let op_count = from.u32()?;
        if !MINOR_VERSIONS.contains(&minor_version) || !(3..=OP_COUNT_MAX).contains(&op_count) {
            return Ok(None);
        }
        if from.u32()? != Op::Sequence.number() {
            return Ok(None);
        }
        let sequence = from.get()?;
        if from.u32()? != Op::PutFh.number() {
            return Ok(None);
        }
        let file = from.get()?;
        if from.u32()? != Op::Write.number() {
            return Ok(None);
        }
        let head = from.get()?;
        let data_len_bytes = crate::v3::data_len(&mut from)?;
        Ok(Some(WritePrefix {
            tag,
            minor_version,
            op_count,
            sequence,
            file,
            head,
            data_offset: args.len() - from.rest().len(),
            data_len_bytes,
        }))
    };
    Prefix::of(read())
}

/// The beginning of a reply whose last or only result with a payload is a READ: SEQUENCE, PUTFH, READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPrefix<'a> {
    pub tag: Tag<'a>,
    pub result_count: u32,
    pub sequence: SequenceOk,
    pub eof: bool,
    /// Where the payload begins, from the start of the results.
    pub data_offset: usize,
    /// Bytes of payload, at most [`DATA_LEN_BYTES_MAX`]; padding follows them.
    pub data_len_bytes: u32,
}

/// Bytes of a reply before the payload of its READ, at most, if [`decode_read_prefix`] finds one.
pub const READ_PREFIX_LEN_BYTES_MAX: usize =
    (4 + 4 + TEXT_LEN_BYTES_MAX as usize + 4) + (8 + 16 + 5 * 4) + 8 + (8 + 4 + 4);

/// Reads a reply to SEQUENCE, PUTFH and READ up to the payload, so that a client can receive it where it shall stay.
/// A reply that failed is [`Prefix::Other`].
///
/// [`READ_PREFIX_LEN_BYTES_MAX`] bytes are always enough.
pub fn decode_read_prefix(results: &[u8]) -> Prefix<ReadPrefix<'_>> {
    let read = || {
        let mut from = Reader::new(results);
        let status: Status = from.get()?;
        let tag = from.get()?;
        let result_count = from.u32()?;
        if status.is_err() || result_count < 3 {
            return Ok(None);
        }
        let mut begins = |op: Op| Ok(from.u32()? == op.number() && from.get::<Status>()?.is_ok());
        if !begins(Op::Sequence)? {
            return Ok(None);
        }
        let sequence = from.get()?;
        let mut begins = |op: Op| Ok(from.u32()? == op.number() && from.get::<Status>()?.is_ok());
        if !begins(Op::PutFh)? || !begins(Op::Read)? {
            return Ok(None);
        }
        let eof = from.bool()?;
        let data_len_bytes = crate::v3::data_len(&mut from)?;
        Ok(Some(ReadPrefix {
            tag,
            result_count,
            sequence,
            eof,
            data_offset: results.len() - from.rest().len(),
            data_len_bytes,
        }))
    };
    Prefix::of(read())
}
