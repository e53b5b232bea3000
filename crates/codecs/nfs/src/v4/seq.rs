//! Arrays and lists that stay where they are: in the message they came in, or with the caller.
//!
//! Owns: walking the items of an XDR array or linked list without an allocation.
//! Must not know: what the items are.
//!
//! Decoding reads every item once, so that damage is found there and a hostile count costs no more than the
//! bytes that arrived. Iterating reads them again.

use std::fmt;
use std::marker::PhantomData;
use std::slice;

use cairn_codec_rpc::xdr::LIST_COUNT_MAX;
use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer};

/// A variable-length array of at most `COUNT_MAX` items (RFC 4506, section 4.13).
pub type Items<'a, T, const COUNT_MAX: u32> = Seq<'a, T, COUNT_MAX, false>;
/// A linked list (RFC 4506, section 4.19).
pub type Chain<'a, T> = Seq<'a, T, LIST_COUNT_MAX, true>;

/// The type behind [`Items`] and [`Chain`]. `LINKED` puts a boolean before each item in place of one count.
#[derive(Clone, Copy)]
pub struct Seq<'a, T, const COUNT_MAX: u32, const LINKED: bool>(Repr<'a, T>);

#[derive(Clone, Copy)]
enum Repr<'a, T> {
    Values(&'a [T]),
    /// `bytes` holds `count` items that were read once.
    Wire {
        count: u32,
        bytes: &'a [u8],
        item: PhantomData<T>,
    },
}

impl<'a, T, const COUNT_MAX: u32, const LINKED: bool> Seq<'a, T, COUNT_MAX, LINKED> {
    /// For encoding. The reader on the other side may have a limit of its own.
    pub fn new(values: &'a [T]) -> Self {
        Self(Repr::Values(values))
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Values(values) => values.len(),
            Repr::Wire { count, .. } => *count as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> SeqIter<'a, T, LINKED> {
        match self.0 {
            Repr::Values(values) => SeqIter::Values(values.iter()),
            Repr::Wire { count, bytes, .. } => SeqIter::Wire {
                left: count,
                from: Reader::new(bytes),
            },
        }
    }
}

/// The items, in order.
#[derive(Clone, Debug)]
pub enum SeqIter<'a, T, const LINKED: bool> {
    Values(slice::Iter<'a, T>),
    Wire { left: u32, from: Reader<'a> },
}

impl<'a, T: Decode<'a> + Clone, const LINKED: bool> Iterator for SeqIter<'a, T, LINKED> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match self {
            Self::Values(values) => values.next().cloned(),
            Self::Wire { left, from } => {
                *left = left.checked_sub(1)?;
                if LINKED {
                    from.bool().ok()?;
                }
                // Decoding has read the same bytes: this cannot fail.
                from.get().ok()
            }
        }
    }
}

impl<T, const COUNT_MAX: u32, const LINKED: bool> Default for Seq<'_, T, COUNT_MAX, LINKED> {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl<'a, T, const COUNT_MAX: u32, const LINKED: bool> From<&'a [T]>
    for Seq<'a, T, COUNT_MAX, LINKED>
{
    fn from(values: &'a [T]) -> Self {
        Self::new(values)
    }
}

impl<'a, T: Decode<'a> + Clone, const COUNT_MAX: u32, const LINKED: bool> IntoIterator
    for &Seq<'a, T, COUNT_MAX, LINKED>
{
    type Item = T;
    type IntoIter = SeqIter<'a, T, LINKED>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, const COUNT_MAX: u32, const LINKED: bool> PartialEq for Seq<'a, T, COUNT_MAX, LINKED>
where
    T: Decode<'a> + Clone + PartialEq,
{
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T, const COUNT_MAX: u32, const LINKED: bool> Eq for Seq<'a, T, COUNT_MAX, LINKED> where
    T: Decode<'a> + Clone + Eq
{
}

impl<'a, T, const COUNT_MAX: u32, const LINKED: bool> fmt::Debug for Seq<'a, T, COUNT_MAX, LINKED>
where
    T: Decode<'a> + Clone + fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Encode, const COUNT_MAX: u32, const LINKED: bool> Encode for Seq<'_, T, COUNT_MAX, LINKED> {
    fn encode(&self, to: &mut Writer<'_>) {
        if !LINKED {
            let count = u32::try_from(self.len()).expect("an encoded count fits 32 bits");
            to.u32(count);
        }
        match &self.0 {
            Repr::Values(values) => {
                for value in *values {
                    if LINKED {
                        to.bool(true);
                    }
                    to.put(value);
                }
            }
            Repr::Wire { bytes, .. } => to.raw(bytes),
        }
        if LINKED {
            to.bool(false);
        }
    }
}

impl<'a, T: Decode<'a>, const COUNT_MAX: u32, const LINKED: bool> Decode<'a>
    for Seq<'a, T, COUNT_MAX, LINKED>
{
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        const fn too_many(count_max: u32) -> DecodeError {
            DecodeError::TooMany { count_max }
        }
        let (count, bytes) = if LINKED {
            let before = from.clone();
            let mut bytes: &[u8] = &[];
            let mut count = 0;
            while from.bool()? {
                if count >= COUNT_MAX {
                    return Err(too_many(COUNT_MAX));
                }
                from.get::<T>()?;
                bytes = taken(&before, from);
                count += 1;
            }
            (count, bytes)
        } else {
            let count = from.u32()?;
            if count > COUNT_MAX {
                return Err(too_many(COUNT_MAX));
            }
            let before = from.clone();
            for _ in 0..count {
                from.get::<T>()?;
            }
            (count, taken(&before, from))
        };
        Ok(Self(Repr::Wire {
            count,
            bytes,
            item: PhantomData,
        }))
    }
}

/// The bytes read between two states of one reader.
pub(super) fn taken<'a>(before: &Reader<'a>, after: &Reader<'a>) -> &'a [u8] {
    let rest = before.rest();
    let len_bytes = rest.len() - after.rest().len();
    rest.get(..len_bytes).unwrap_or_default()
}
