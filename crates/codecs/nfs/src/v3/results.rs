//! The results of the procedures (RFC 1813, section 3.3).
//!
//! A reply is `Result<...Ok, Failure<...>>`: the union over the status that each of them is.

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr_struct};

use super::args::{data_len, needs_more};
use super::readdir::{ReadDirOk, ReadDirPlusOk};
use super::types::*;

/// A procedure that failed, with what the reply says all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<F> {
    pub status: ErrorStatus,
    pub body: F,
}

impl<F> Failure<F> {
    pub fn new(status: ErrorStatus, body: F) -> Self {
        Self { status, body }
    }
}

/// With nothing known about the objects.
impl<F: Default> From<ErrorStatus> for Failure<F> {
    fn from(status: ErrorStatus) -> Self {
        Self::new(status, F::default())
    }
}

impl<F: Encode> Encode for Failure<F> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.status);
        to.put(&self.body);
    }
}

impl<'a, F: Decode<'a>> Decode<'a> for Failure<F> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            status: from.get()?,
            body: from.get()?,
        })
    }
}

pub type GetAttrReply = Result<FileAttr, Failure<()>>;
pub type SetAttrReply = Result<WccData, Failure<WccData>>;
pub type LookupReply = Result<LookupOk, Failure<PostOpAttr>>;
pub type AccessReply = Result<AccessOk, Failure<PostOpAttr>>;
pub type ReadLinkReply<'a> = Result<ReadLinkOk<'a>, Failure<PostOpAttr>>;
pub type ReadReply<'a> = Result<ReadOk<'a>, Failure<PostOpAttr>>;
pub type WriteReply = Result<WriteOk, Failure<WccData>>;
/// CREATE, MKDIR, SYMLINK and MKNOD.
pub type MakeReply = Result<MakeOk, Failure<WccData>>;
/// REMOVE and RMDIR: of the directory.
pub type RemoveReply = Result<WccData, Failure<WccData>>;
pub type RenameReply = Result<RenameWcc, Failure<RenameWcc>>;
pub type LinkReply = Result<LinkWcc, Failure<LinkWcc>>;
pub type ReadDirReply<'a> = Result<ReadDirOk<'a>, Failure<PostOpAttr>>;
pub type ReadDirPlusReply<'a> = Result<ReadDirPlusOk<'a>, Failure<PostOpAttr>>;
pub type FsStatReply = Result<FsStatOk, Failure<PostOpAttr>>;
pub type FsInfoReply = Result<FsInfoOk, Failure<PostOpAttr>>;
pub type PathConfReply = Result<PathConfOk, Failure<PostOpAttr>>;
pub type CommitReply = Result<CommitOk, Failure<WccData>>;

xdr_struct! {
    pub struct LookupOk {
        pub object: FileHandle,
        pub attributes: PostOpAttr,
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    pub struct AccessOk {
        pub attributes: PostOpAttr,
        /// Bits of [`access`].
        pub access: u32,
    }
}

xdr_struct! {
    pub struct ReadLinkOk<'a> {
        pub attributes: PostOpAttr,
        pub target: Path<'a>,
    }
}

xdr_struct! {
    /// The results of READ but for the payload.
    #[derive(Copy)]
    pub struct ReadHead {
        pub attributes: PostOpAttr,
        /// The length of the payload.
        pub count_bytes: u32,
        pub eof: bool,
    }
}

xdr_struct! {
    pub struct ReadOk<'a> {
        pub head: ReadHead,
        pub data: Data<'a>,
    }
}

/// Bytes of a READ reply before the payload, at most (status included).
pub const READ_PREFIX_LEN_BYTES_MAX: usize = 4 + 4 + FILE_ATTR_LEN_BYTES + 4 + 4 + 4;

/// Writes a successful READ reply up to the payload, status included. The caller sends
/// `head.count_bytes` bytes and padding ([`cairn_codec_rpc::xdr::padding`]) after it.
#[inline]
pub fn encode_read_head(to: &mut Writer<'_>, head: &ReadHead) {
    to.u32(0);
    to.put(head);
    to.u32(head.count_bytes);
}

/// The beginning of a successful READ reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPrefix {
    pub head: ReadHead,
    /// Where the payload begins, from the status on.
    pub data_offset: usize,
    /// Bytes of payload, at most [`DATA_LEN_BYTES_MAX`]; padding follows them.
    pub data_len_bytes: u32,
}

/// What [`decode_read_prefix`] finds.
pub type ReadReplyPrefix = Result<ReadPrefix, Failure<PostOpAttr>>;

/// Reads a READ reply up to the payload, from its first bytes (after the RPC header), so that a
/// client can receive the payload where it shall stay. `None`: more bytes are needed;
/// [`READ_PREFIX_LEN_BYTES_MAX`] are always enough.
pub fn decode_read_prefix(input: &[u8]) -> Result<Option<ReadReplyPrefix>, DecodeError> {
    let mut from = Reader::new(input);
    let reply = from.get::<Result<ReadHead, Failure<PostOpAttr>>>();
    needs_more(reply.and_then(|reply| {
        let head = match reply {
            Ok(head) => head,
            Err(failure) => return Ok(Err(failure)),
        };
        let data_len_bytes = data_len(&mut from)?;
        Ok(Ok(ReadPrefix {
            head,
            data_offset: input.len() - from.rest().len(),
            data_len_bytes,
        }))
    }))
}

xdr_struct! {
    pub struct WriteOk {
        pub wcc: WccData,
        pub count_bytes: u32,
        pub committed: StableHow,
        pub verifier: WriteVerifier,
    }
}

xdr_struct! {
    pub struct MakeOk {
        pub object: PostOpHandle,
        pub attributes: PostOpAttr,
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    #[derive(Copy, Default)]
    pub struct RenameWcc {
        pub from_dir: WccData,
        pub to_dir: WccData,
    }
}

xdr_struct! {
    #[derive(Copy, Default)]
    pub struct LinkWcc {
        pub attributes: PostOpAttr,
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    pub struct FsStatOk {
        pub attributes: PostOpAttr,
        pub total_bytes: u64,
        pub free_bytes: u64,
        /// Free to this user.
        pub available_bytes: u64,
        pub total_files: u64,
        pub free_files: u64,
        /// Free to this user.
        pub available_files: u64,
        /// For how long the numbers should hold; 0: not at all.
        pub invariant_seconds: u32,
    }
}

xdr_struct! {
    pub struct FsInfoOk {
        pub attributes: PostOpAttr,
        pub read_max_bytes: u32,
        pub read_preferred_bytes: u32,
        pub read_multiple_bytes: u32,
        pub write_max_bytes: u32,
        pub write_preferred_bytes: u32,
        pub write_multiple_bytes: u32,
        pub readdir_preferred_bytes: u32,
        pub file_len_bytes_max: u64,
        /// How exact times are.
        pub time_delta: NfsTime,
        /// Bits of [`property`].
        pub properties: u32,
    }
}

xdr_struct! {
    pub struct PathConfOk {
        pub attributes: PostOpAttr,
        pub link_count_max: u32,
        pub name_len_bytes_max: u32,
        /// Names that are too long are refused, not cut.
        pub no_trunc: bool,
        pub chown_restricted: bool,
        pub case_insensitive: bool,
        pub case_preserving: bool,
    }
}

xdr_struct! {
    pub struct CommitOk {
        pub wcc: WccData,
        pub verifier: WriteVerifier,
    }
}
