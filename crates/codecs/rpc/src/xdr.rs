//! XDR (RFC 4506): big-endian words, and everything else padded to a multiple of four bytes.
//!
//! Owns: the primitives, the two traits that every message implements, and the macros that spell
//! a struct or an enum of an RFC.
//! Must not know: any protocol.
//!
//! Reading borrows: an opaque is a slice of the input. Enumerations and booleans are strict.

use std::fmt;
use std::ops::Deref;

use crate::DecodeError;

/// Most items of one linked list, whatever the message is; more is refused.
pub const LIST_COUNT_MAX: u32 = 1 << 16;

const PADDING: [u8; 3] = [0; 3];

/// The zero bytes that follow an opaque of `len_bytes` on the wire: none to three.
#[inline]
pub fn padding(len_bytes: usize) -> &'static [u8] {
    match len_bytes % 4 {
        0 => &[],
        odd => &PADDING[..4 - odd],
    }
}

/// `len_bytes` rounded up to a multiple of four.
#[inline]
pub const fn padded_len(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(4)
}

/// A value that can be written as XDR.
pub trait Encode {
    /// Appends the value. Never fails: a value that exists can be written.
    fn encode(&self, to: &mut Writer<'_>);
}

/// A value that can be read from XDR, borrowing from the input.
pub trait Decode<'a>: Sized {
    /// Takes the value from the front of `from`. After an error `from` is somewhere inside it.
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// Reads values from the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// The bytes not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads one value of the type that the caller expects.
    #[inline]
    pub fn get<T: Decode<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    /// Fails with `Trailing` unless everything was read.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            len_bytes => Err(DecodeError::Trailing { len_bytes }),
        }
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// RFC 4506, section 4.2.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// RFC 4506, section 4.5.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// 0 or 1; anything else is refused. RFC 4506, section 4.4.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadValue {
                what: "bool",
                value,
            }),
        }
    }

    /// A fixed-length opaque: `len_bytes` bytes and their padding. RFC 4506, section 4.9.
    #[inline]
    pub fn fixed(&mut self, len_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (body, rest) = self
            .rest
            .split_at_checked(len_bytes)
            .ok_or(DecodeError::Truncated)?;
        // Padding is skipped unread: the RFC asks for zeros, but refusing others protects nobody.
        self.rest = rest
            .get(padding(len_bytes).len()..)
            .ok_or(DecodeError::Truncated)?;
        Ok(body)
    }

    /// A variable-length opaque: a length of at most `len_bytes_max`, the bytes, padding.
    ///
    /// Fails with `TooLong` before looking at the body, so a hostile length costs nothing.
    /// RFC 4506, section 4.10.
    #[inline]
    pub fn opaque(&mut self, len_bytes_max: u32) -> Result<&'a [u8], DecodeError> {
        let len_bytes = self.u32()?;
        if len_bytes > len_bytes_max {
            return Err(DecodeError::TooLong {
                len_bytes,
                len_bytes_max,
            });
        }
        self.fixed(len_bytes as usize)
    }
}

/// Appends values to a buffer; what the buffer held before is left alone.
#[derive(Debug)]
pub struct Writer<'b> {
    buf: &'b mut Vec<u8>,
}

impl<'b> Writer<'b> {
    #[inline]
    pub fn new(buf: &'b mut Vec<u8>) -> Self {
        Self { buf }
    }

    /// Bytes in the buffer, those from before this writer included.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.buf.len()
    }

    /// Takes back what was written after the first `len_bytes` of the buffer.
    pub fn truncate(&mut self, len_bytes: usize) {
        self.buf.truncate(len_bytes);
    }

    /// Writes one value.
    #[inline]
    pub fn put<T: Encode + ?Sized>(&mut self, value: &T) {
        value.encode(self);
    }

    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.buf.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.buf.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Bytes as they are, without length or padding: something already encoded.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// A fixed-length opaque: the bytes and their padding.
    #[inline]
    pub fn fixed(&mut self, body: &[u8]) {
        self.buf.extend_from_slice(body);
        self.buf.extend_from_slice(padding(body.len()));
    }

    /// A variable-length opaque: length, bytes, padding.
    #[inline]
    pub fn opaque(&mut self, body: &[u8]) {
        self.u32(count_u32(body.len()));
        self.fixed(body);
    }

    /// Puts `value` over the four bytes at `offset` of the buffer, which must be there.
    #[inline]
    pub fn patch_u32(&mut self, offset: usize, value: u32) {
        self.buf[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }
}

/// What we encode comes from bounded values, so more than 2^32 of anything is our own bug.
fn count_u32(count: usize) -> u32 {
    u32::try_from(count).expect("an encoded length fits 32 bits")
}

impl Encode for () {
    #[inline]
    fn encode(&self, _to: &mut Writer<'_>) {}
}

impl Decode<'_> for () {
    #[inline]
    fn decode(_from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

macro_rules! primitive {
    ($($name:ident)*) => {$(
        impl Encode for $name {
            #[inline]
            fn encode(&self, to: &mut Writer<'_>) {
                to.$name(*self);
            }
        }

        impl Decode<'_> for $name {
            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                from.$name()
            }
        }
    )*};
}

primitive!(u32 u64 bool);

/// A fixed-length opaque, such as a verifier.
impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.fixed(self);
    }
}

impl<const N: usize> Decode<'_> for [u8; N] {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let body = *from.chunk::<N>()?;
        from.rest = from
            .rest
            .get(padding(N).len()..)
            .ok_or(DecodeError::Truncated)?;
        Ok(body)
    }
}

/// Optional data: a boolean, then the value if true. RFC 4506, section 4.19.
impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.bool(self.is_some());
        if let Some(value) = self {
            to.put(value);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        from.bool()?.then(|| from.get()).transpose()
    }
}

/// The union that answers most calls: a status of 0 and the result, or another status and what
/// goes with it. `E` writes and reads its own status, which is never 0.
impl<T: Encode, E: Encode> Encode for Result<T, E> {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Ok(value) => {
                to.u32(0);
                to.put(value);
            }
            Err(error) => to.put(error),
        }
    }
}

impl<'a, T: Decode<'a>, E: Decode<'a>> Decode<'a> for Result<T, E> {
    #[inline]
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut after_status = from.clone();
        if after_status.u32()? != 0 {
            return from.get().map(Err);
        }
        *from = after_status;
        from.get().map(Ok)
    }
}

/// A borrowed variable-length opaque or string of at most `LEN_BYTES_MAX` bytes when decoded.
///
/// Strings of these protocols are bytes too: nothing promises UTF-8.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opaque<'a, const LEN_BYTES_MAX: u32>(pub &'a [u8]);

impl<const LEN_BYTES_MAX: u32> Deref for Opaque<'_, LEN_BYTES_MAX> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl<'a, const LEN_BYTES_MAX: u32> From<&'a [u8]> for Opaque<'a, LEN_BYTES_MAX> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a, const LEN_BYTES_MAX: u32> From<&'a str> for Opaque<'a, LEN_BYTES_MAX> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl<const LEN_BYTES_MAX: u32> fmt::Debug for Opaque<'_, LEN_BYTES_MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const LEN_BYTES_MAX: u32> Encode for Opaque<'_, LEN_BYTES_MAX> {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.opaque(self.0);
    }
}

impl<'a, const LEN_BYTES_MAX: u32> Decode<'a> for Opaque<'a, LEN_BYTES_MAX> {
    #[inline]
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        from.opaque(LEN_BYTES_MAX).map(Self)
    }
}

/// A linked list: each item after a true, a false at the end. RFC 4506, section 4.19.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Encode> Encode for List<T> {
    fn encode(&self, to: &mut Writer<'_>) {
        for item in &self.0 {
            to.bool(true);
            to.put(item);
        }
        to.bool(false);
    }
}

/// The list grows as its items are read, so its memory is bounded by the input and by
/// [`LIST_COUNT_MAX`].
impl<'a, T: Decode<'a>> Decode<'a> for List<T> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        while from.bool()? {
            if items.len() >= LIST_COUNT_MAX as usize {
                return Err(DecodeError::TooMany {
                    count_max: LIST_COUNT_MAX,
                });
            }
            items.push(from.get()?);
        }
        Ok(Self(items))
    }
}

/// A variable-length array of at most `COUNT_MAX` items: count, items. RFC 4506, section 4.13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array<T, const COUNT_MAX: u32>(pub Vec<T>);

impl<T, const COUNT_MAX: u32> Default for Array<T, COUNT_MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Encode, const COUNT_MAX: u32> Encode for Array<T, COUNT_MAX> {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(count_u32(self.0.len()));
        for item in &self.0 {
            to.put(item);
        }
    }
}

impl<'a, T: Decode<'a>, const COUNT_MAX: u32> Decode<'a> for Array<T, COUNT_MAX> {
    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = from.u32()?;
        if count > COUNT_MAX {
            return Err(DecodeError::TooMany {
                count_max: COUNT_MAX,
            });
        }
        // Without a capacity from `count`: memory follows what really arrived.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(from.get()?);
        }
        Ok(Self(items))
    }
}

/// A struct whose XDR is its fields, in order.
#[macro_export]
macro_rules! xdr_struct {
    ($(#[$meta:meta])* pub struct $name:ident<$life:lifetime> {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name<$life> {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::Encode for $name<'_> {
            #[inline]
            fn encode(&self, to: &mut $crate::Writer<'_>) {
                $(to.put(&self.$field);)*
            }
        }

        impl<$life> $crate::Decode<$life> for $name<$life> {
            #[inline]
            fn decode(from: &mut $crate::Reader<$life>) -> Result<Self, $crate::DecodeError> {
                Ok(Self { $($field: from.get()?,)* })
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, to: &mut $crate::Writer<'_>) {
                $(to.put(&self.$field);)*
            }
        }

        impl $crate::Decode<'_> for $name {
            #[inline]
            fn decode(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                Ok(Self { $($field: from.get()?,)* })
            }
        }
    };
}

/// An enumeration with the RFC's numbers and a name for each; other numbers are refused.
#[macro_export]
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident: $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $number:literal => $text:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value with this number on the wire.
            #[inline]
            pub const fn from_u32(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[inline]
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// The name, as in the RFC or in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, to: &mut $crate::Writer<'_>) {
                to.u32(self.number());
            }
        }

        impl $crate::Decode<'_> for $name {
            #[inline]
            fn decode(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                let value = from.u32()?;
                Self::from_u32(value).ok_or($crate::DecodeError::BadValue { what: $what, value })
            }
        }
    };
}

#[cfg(test)]
mod tests;
