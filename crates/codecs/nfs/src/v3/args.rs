//! The arguments of the procedures (RFC 1813, section 3.3).
//!
//! GETATTR, READLINK, FSSTAT, FSINFO and PATHCONF take a [`FileHandle`]; LOOKUP, REMOVE and RMDIR a
//! [`DirOp`].

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer, xdr, xdr_struct};

use super::types::*;

xdr_struct! {
    pub struct SetAttrArgs {
        pub object: FileHandle,
        pub attributes: SetAttributes,
        /// Only if the file's change time is this.
        pub guard: Option<NfsTime>,
    }
}

xdr_struct! {
    pub struct AccessArgs {
        pub object: FileHandle,
        /// Bits of [`access`].
        pub access: u32,
    }
}

xdr_struct! {
    pub struct ReadArgs {
        pub file: FileHandle,
        pub offset: u64,
        pub count_bytes: u32,
    }
}

xdr_struct! {
    /// The arguments of WRITE but for the payload.
    #[derive(Copy)]
    pub struct WriteHead {
        pub file: FileHandle,
        pub offset: u64,
        /// Should be the length of the payload; what to do if it is not is the server's choice.
        pub count_bytes: u32,
        pub stable: StableHow,
    }
}

xdr_struct! {
    pub struct WriteArgs<'a> {
        pub head: WriteHead,
        pub data: Data<'a>,
    }
}

/// Bytes of the arguments of WRITE before the payload, at most.
pub const WRITE_PREFIX_LEN_BYTES_MAX: usize = 4 + HANDLE_LEN_BYTES_MAX as usize + 8 + 4 + 4 + 4;

/// The beginning of the arguments of WRITE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePrefix {
    pub head: WriteHead,
    /// Where the payload begins, from the start of the arguments.
    pub data_offset: usize,
    /// Bytes of payload, at most [`DATA_LEN_BYTES_MAX`]; padding follows them.
    pub data_len_bytes: u32,
}

impl WritePrefix {
    /// Whether the payload and its padding end arguments of this length.
    pub fn fills(&self, args_len_bytes: usize) -> bool {
        self.data_offset + xdr::padded_len(self.data_len_bytes as usize) == args_len_bytes
    }
}

/// Reads the arguments of WRITE up to the payload, from their first bytes, so that a server can
/// receive the payload where it will stay. `None`: more bytes are needed;
/// [`WRITE_PREFIX_LEN_BYTES_MAX`] are always enough.
///
/// Whether the payload is as long as the record says is not known here: see [`WritePrefix::fills`].
pub fn decode_write_prefix(input: &[u8]) -> Result<Option<WritePrefix>, DecodeError> {
    let mut from = Reader::new(input);
    let prefix = from.get::<WriteHead>().and_then(|head| {
        let data_len_bytes = data_len(&mut from)?;
        Ok(WritePrefix {
            head,
            data_offset: input.len() - from.rest().len(),
            data_len_bytes,
        })
    });
    needs_more(prefix)
}

/// Writes the arguments of WRITE up to the payload, whose `head.count_bytes` bytes and padding
/// ([`cairn_codec_rpc::xdr::padding`]) the caller sends after it.
pub fn encode_write_head(to: &mut Writer<'_>, head: &WriteHead) {
    to.put(head);
    to.u32(head.count_bytes);
}

/// The length before a payload, checked.
pub(crate) fn data_len(from: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let len_bytes = from.u32()?;
    if len_bytes > DATA_LEN_BYTES_MAX {
        return Err(DecodeError::TooLong {
            len_bytes,
            len_bytes_max: DATA_LEN_BYTES_MAX,
        });
    }
    Ok(len_bytes)
}

/// For decoders of a beginning: too few bytes are no error.
pub(super) fn needs_more<T>(decoded: Result<T, DecodeError>) -> Result<Option<T>, DecodeError> {
    match decoded {
        Err(DecodeError::Truncated) => Ok(None),
        other => other.map(Some),
    }
}

/// `createhow3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// Take the file that is there.
    Unchecked(SetAttributes),
    /// Fail if there is one.
    Guarded(SetAttributes),
    /// Fail if there is one, unless this verifier made it.
    Exclusive(CreateVerifier),
}

impl Encode for CreateHow {
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Unchecked(attributes) => {
                to.u32(0);
                to.put(attributes);
            }
            Self::Guarded(attributes) => {
                to.u32(1);
                to.put(attributes);
            }
            Self::Exclusive(verifier) => {
                to.u32(2);
                to.put(verifier);
            }
        }
    }
}

impl Decode<'_> for CreateHow {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u32()? {
            0 => from.get().map(Self::Unchecked),
            1 => from.get().map(Self::Guarded),
            2 => from.get().map(Self::Exclusive),
            value => Err(DecodeError::BadValue {
                what: "createmode3",
                value,
            }),
        }
    }
}

xdr_struct! {
    pub struct CreateArgs<'a> {
        pub place: DirOp<'a>,
        pub how: CreateHow,
    }
}

xdr_struct! {
    pub struct MkDirArgs<'a> {
        pub place: DirOp<'a>,
        pub attributes: SetAttributes,
    }
}

xdr_struct! {
    pub struct SymLinkArgs<'a> {
        pub place: DirOp<'a>,
        pub attributes: SetAttributes,
        pub target: Path<'a>,
    }
}

/// `mknoddata3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MkNodWhat {
    CharDevice {
        attributes: SetAttributes,
        device: DeviceNumber,
    },
    BlockDevice {
        attributes: SetAttributes,
        device: DeviceNumber,
    },
    Socket(SetAttributes),
    Fifo(SetAttributes),
    /// A type that MKNOD does not make: answered with `BadType`.
    Regular,
    /// See `Regular`.
    Directory,
    /// See `Regular`.
    Symlink,
}

impl MkNodWhat {
    pub fn file_type(&self) -> FileType {
        match self {
            Self::CharDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Socket(_) => FileType::Socket,
            Self::Fifo(_) => FileType::Fifo,
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink => FileType::Symlink,
        }
    }
}

impl Encode for MkNodWhat {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.file_type());
        match self {
            Self::CharDevice { attributes, device } | Self::BlockDevice { attributes, device } => {
                to.put(attributes);
                to.put(device);
            }
            Self::Socket(attributes) | Self::Fifo(attributes) => to.put(attributes),
            Self::Regular | Self::Directory | Self::Symlink => {}
        }
    }
}

impl Decode<'_> for MkNodWhat {
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match from.get()? {
            FileType::CharDevice => Self::CharDevice {
                attributes: from.get()?,
                device: from.get()?,
            },
            FileType::BlockDevice => Self::BlockDevice {
                attributes: from.get()?,
                device: from.get()?,
            },
            FileType::Socket => Self::Socket(from.get()?),
            FileType::Fifo => Self::Fifo(from.get()?),
            FileType::Regular => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
        })
    }
}

xdr_struct! {
    pub struct MkNodArgs<'a> {
        pub place: DirOp<'a>,
        pub what: MkNodWhat,
    }
}

xdr_struct! {
    pub struct RenameArgs<'a> {
        pub from: DirOp<'a>,
        pub to: DirOp<'a>,
    }
}

xdr_struct! {
    pub struct LinkArgs<'a> {
        pub file: FileHandle,
        pub link: DirOp<'a>,
    }
}

xdr_struct! {
    pub struct ReadDirArgs {
        pub dir: FileHandle,
        /// Of the last entry seen; 0 to begin.
        pub cookie: u64,
        pub cookie_verifier: CookieVerifier,
        /// Most bytes of [`super::ReadDirOk`] on the wire.
        pub count_bytes: u32,
    }
}

xdr_struct! {
    pub struct ReadDirPlusArgs {
        pub dir: FileHandle,
        /// Of the last entry seen; 0 to begin.
        pub cookie: u64,
        pub cookie_verifier: CookieVerifier,
        /// Most bytes of names, ids and cookies.
        pub dir_count_bytes: u32,
        /// Most bytes of [`super::ReadDirPlusOk`] on the wire.
        pub max_count_bytes: u32,
    }
}

xdr_struct! {
    pub struct CommitArgs {
        pub file: FileHandle,
        pub offset: u64,
        /// 0: to the end of the file.
        pub count_bytes: u32,
    }
}
