//! The unions over a status that results are.

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer};

use super::status::{ErrorStatus, Status};

/// The result of most operations: what succeeded, or nothing but a status.
pub type Reply<T> = Result<T, ErrorStatus>;

/// A result of any operation.
pub trait Outcome: Sized {
    /// How the operation ended.
    fn status(&self) -> Status;

    /// The result of an operation that failed and has nothing else to say.
    fn failed(status: ErrorStatus) -> Self;
}

impl<T> Outcome for Reply<T> {
    fn status(&self) -> Status {
        match self {
            Ok(_) => Ok(()),
            Err(status) => Err(*status),
        }
    }

    fn failed(status: ErrorStatus) -> Self {
        Err(status)
    }
}

/// The result of an operation that says more with one of its errors: that whose number is `STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyOr<T, E, const STATUS: u32> {
    Ok(T),
    /// The error `STATUS`, and what goes with it.
    With(E),
    /// Any other error. That of `STATUS` is written with a default of what goes with it.
    Failed(ErrorStatus),
}

impl<T, E, const STATUS: u32> ReplyOr<T, E, STATUS> {
    /// A number that is no status does not compile.
    const ERROR: ErrorStatus = match ErrorStatus::from_u32(STATUS) {
        Some(status) => status,
        None => panic!("the number of a status"),
    };
}

impl<T, E, const STATUS: u32> Outcome for ReplyOr<T, E, STATUS> {
    fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Ok(()),
            Self::With(_) => Err(Self::ERROR),
            Self::Failed(status) => Err(*status),
        }
    }

    fn failed(status: ErrorStatus) -> Self {
        Self::Failed(status)
    }
}

impl<T: Encode, E: Encode + Default, const STATUS: u32> Encode for ReplyOr<T, E, STATUS> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.put(&self.status());
        match self {
            Self::Ok(value) => to.put(value),
            Self::With(body) => to.put(body),
            // Without its body the reader would take what follows for it.
            Self::Failed(status) if *status == Self::ERROR => to.put(&E::default()),
            Self::Failed(_) => {}
        }
    }
}

impl<'a, T: Decode<'a>, E: Decode<'a>, const STATUS: u32> Decode<'a> for ReplyOr<T, E, STATUS> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match from.get::<Status>()? {
            Ok(()) => from.get().map(Self::Ok),
            Err(status) if status == Self::ERROR => from.get().map(Self::With),
            Err(status) => Ok(Self::Failed(status)),
        }
    }
}
