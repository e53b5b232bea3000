//! Little-endian fields, and values made of them: lists, texts, ranges, structs and enums.

use std::ops::Range;

use cairn_base::disk::{DiskError, DiskSpace};
use cairn_base::{DiskId, Epoch, NodeId, PoolId, SegmentId, VolumeId};
use cairn_formats::shard::footer::{FooterStripe, ShardFooter};
use cairn_formats::shard::name::ShardName;

use crate::WireError;

/// Most bytes of a text. Longer ones are cut when they are written.
pub const TEXT_LEN_BYTES_MAX: usize = 1024;

/// Takes fields one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN], WireError> {
        let (head, rest) = self
            .0
            .split_first_chunk::<LEN>()
            .ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn bytes(&mut self, len_bytes: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self
            .0
            .split_at_checked(len_bytes)
            .ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// Fails unless everything was taken.
    pub(crate) fn finish(&self) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            len_bytes => Err(WireError::Trailing {
                len_bytes: len_bytes as u64,
            }),
        }
    }
}

/// A part of a body.
pub(crate) trait Part: Sized {
    /// Fewest bytes that it takes: a list claims no memory for more than can follow.
    const LEN_BYTES_MIN: usize;
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut Fields<'_>) -> Result<Self, WireError>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Part for $number {
            const LEN_BYTES_MIN: usize = size_of::<$number>();

            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
                from.take().map(<$number>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128);

macro_rules! ids {
    ($($id:ident),*) => {$(
        impl Part for $id {
            const LEN_BYTES_MIN: usize = size_of::<$id>();

            fn put(&self, to: &mut Vec<u8>) {
                self.0.put(to);
            }

            fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
                Part::take(from).map($id)
            }
        }
    )*};
}

ids!(DiskId, Epoch, NodeId, PoolId, SegmentId, VolumeId);

/// The fields of a struct, in their order.
macro_rules! parts {
    ($name:ty { $($field:ident),* $(,)? } at least $len:expr) => {
        impl $crate::fields::Part for $name {
            const LEN_BYTES_MIN: usize = $len;

            fn put(&self, to: &mut Vec<u8>) {
                $( $crate::fields::Part::put(&self.$field, to); )*
            }

            fn take(from: &mut $crate::fields::Fields<'_>) -> Result<Self, $crate::WireError> {
                Ok(Self { $( $field: $crate::fields::Part::take(from)? ),* })
            }
        }
    };
}
pub(crate) use parts;

/// One byte that says which variant follows, and its fields in their order.
macro_rules! variants {
    ($name:ty, $what:literal { $($code:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::fields::Part for $name {
            const LEN_BYTES_MIN: usize = 1;

            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $( Self::$variant { $($field),* } => {
                        to.push($code);
                        $( $crate::fields::Part::put($field, to); )*
                    } )*
                }
            }

            fn take(from: &mut $crate::fields::Fields<'_>) -> Result<Self, $crate::WireError> {
                match <u8 as $crate::fields::Part>::take(from)? {
                    $( $code => Ok(Self::$variant { $($field: $crate::fields::Part::take(from)?),* }), )*
                    code => Err($crate::WireError::Unknown { what: $what, code }),
                }
            }
        }
    };
}
pub(crate) use variants;

impl Part for bool {
    const LEN_BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(WireError::Unknown { what: "flag", code }),
        }
    }
}

impl Part for String {
    const LEN_BYTES_MIN: usize = 2;

    fn put(&self, to: &mut Vec<u8>) {
        let mut ends = (0..=TEXT_LEN_BYTES_MAX.min(self.len())).rev();
        let end = ends.find(|end| self.is_char_boundary(*end));
        let text = self.get(..end.unwrap_or(0)).unwrap_or_default();
        (text.len() as u16).put(to);
        to.extend_from_slice(text.as_bytes());
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        let len_bytes = usize::from(u16::take(from)?);
        if len_bytes > TEXT_LEN_BYTES_MAX {
            return Err(WireError::TooLong {
                what: "text",
                len_bytes: len_bytes as u64,
                len_bytes_max: TEXT_LEN_BYTES_MAX as u64,
            });
        }
        let text = std::str::from_utf8(from.bytes(len_bytes)?);
        text.map(str::to_owned)
            .map_err(|_| WireError::Field("text"))
    }
}

impl<T: Part> Part for Vec<T> {
    const LEN_BYTES_MIN: usize = 4;

    fn put(&self, to: &mut Vec<u8>) {
        // What has more items than that is longer than any body may be.
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        for item in self {
            item.put(to);
        }
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        let count = u32::take(from)? as usize;
        if count > from.0.len() / T::LEN_BYTES_MIN {
            return Err(WireError::Truncated);
        }
        let mut items = Self::with_capacity(count);
        for _ in 0..count {
            items.push(T::take(from)?);
        }
        Ok(items)
    }
}

impl<T: Part> Part for Option<T> {
    const LEN_BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match bool::take(from)? {
            true => Some(T::take(from)?),
            false => None,
        })
    }
}

impl<T: Part, E: Part> Part for Result<T, E> {
    const LEN_BYTES_MIN: usize = 1;

    fn put(&self, to: &mut Vec<u8>) {
        self.is_ok().put(to);
        match self {
            Ok(value) => value.put(to),
            Err(error) => error.put(to),
        }
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match bool::take(from)? {
            true => Ok(T::take(from)?),
            false => Err(E::take(from)?),
        })
    }
}

impl Part for Range<u64> {
    const LEN_BYTES_MIN: usize = 16;

    fn put(&self, to: &mut Vec<u8>) {
        self.start.put(to);
        self.end.put(to);
    }

    fn take(from: &mut Fields<'_>) -> Result<Self, WireError> {
        let range = u64::take(from)?..u64::take(from)?;
        match range.start <= range.end {
            true => Ok(range),
            false => Err(WireError::Field("range")),
        }
    }
}

parts!(ShardName { volume, segment, index } at least 13);
parts!(DiskSpace { total_bytes, free_bytes } at least 16);
parts!(FooterStripe { start_block, unit_blocks } at least 6);
// As it is: whether it contradicts itself is for the disk to say, wherever that is.
parts!(ShardFooter {
    name, data_shards, parity_shards, epoch, data_len_bytes, stripes, checksums, summary,
} at least 43);

variants!(DiskError, "disk error" {
    1 => NotFound { disk, name },
    2 => Exists { disk, name },
    3 => Full { disk, what },
    4 => NoDescriptor { disk, what },
    5 => Io { disk, what, detail },
    6 => Short { disk, name, len_bytes, wanted_bytes },
    7 => InUse { disk, pid },
});
