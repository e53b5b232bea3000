//! `bitmap4`: a set of small numbers, such as attributes (RFC 8881, section 3.2).

use std::fmt;
use std::hash::{Hash, Hasher};

use cairn_codec_rpc::{Decode, DecodeError, Encode, Reader, Writer};

/// Most words of a bitmap that are decoded: far more than any version of NFS has attributes, and more is refused.
pub const BITMAP_WORD_COUNT_MAX: u32 = 8;
const WORD_COUNT_MAX: usize = BITMAP_WORD_COUNT_MAX as usize;
const WORD_BITS: u32 = 32;

/// `bitmap4` of at most [`BITMAP_WORD_COUNT_MAX`] words, without an allocation.
///
/// Two bitmaps are equal if they hold the same bits, however many zero words follow them on the wire.
#[derive(Clone, Copy, Default)]
pub struct Bitmap {
    /// Words on the wire; those from here on are 0.
    word_count: u8,
    words: [u32; WORD_COUNT_MAX],
}

impl Bitmap {
    pub const EMPTY: Self = Self {
        word_count: 0,
        words: [0; WORD_COUNT_MAX],
    };

    /// The set of `bits`, all of which must be below 256.
    pub const fn of(bits: &[u32]) -> Self {
        let mut bitmap = Self::EMPTY;
        let mut index = 0;
        while index < bits.len() {
            bitmap = bitmap.with(bits[index]);
            index += 1;
        }
        bitmap
    }

    /// With `bit`, which must be below 256.
    pub const fn with(mut self, bit: u32) -> Self {
        let index = (bit / WORD_BITS) as usize;
        self.words[index] |= 1 << (bit % WORD_BITS);
        if index >= self.word_count as usize {
            self.word_count = index as u8 + 1;
        }
        self
    }

    /// Adds `bit`, which must be below 256.
    pub fn insert(&mut self, bit: u32) {
        *self = self.with(bit);
    }

    pub const fn contains(&self, bit: u32) -> bool {
        let index = (bit / WORD_BITS) as usize;
        index < WORD_COUNT_MAX && self.words[index] >> (bit % WORD_BITS) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// How many bits there are.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The bits that are in both, with as few words as hold them.
    pub fn and(&self, other: &Self) -> Self {
        self.zip(other, |one, other| one & other)
    }

    /// The bits that are in either.
    pub fn or(&self, other: &Self) -> Self {
        self.zip(other, |one, other| one | other)
    }

    /// The bits that `other` lacks.
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |one, other| one & !other)
    }

    fn zip(&self, other: &Self, join: impl Fn(u32, u32) -> u32) -> Self {
        let mut joined = Self::EMPTY;
        for (index, word) in joined.words.iter_mut().enumerate() {
            *word = join(self.words[index], other.words[index]);
            if *word != 0 {
                joined.word_count = index as u8 + 1;
            }
        }
        joined
    }

    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.minus(other).is_empty()
    }

    /// The bits in ascending order: the order of attribute values.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let bitmap = *self;
        let mut next_bit = 0;
        std::iter::from_fn(move || {
            let bit = bitmap.next_from(next_bit)?;
            next_bit = bit + 1;
            Some(bit)
        })
    }

    /// The lowest bit that is `bit` or above.
    pub fn next_from(&self, bit: u32) -> Option<u32> {
        let first = (bit / WORD_BITS) as usize;
        (0u32..)
            .zip(self.words)
            .skip(first)
            .find_map(|(index, word)| {
                let below = if index as usize == first {
                    bit % WORD_BITS
                } else {
                    0
                };
                let word = word >> below << below;
                (word != 0).then(|| index * WORD_BITS + word.trailing_zeros())
            })
    }

    /// Bytes on the wire.
    pub fn len_bytes(&self) -> usize {
        4 + 4 * usize::from(self.word_count)
    }
}

impl PartialEq for Bitmap {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl Eq for Bitmap {}

impl Hash for Bitmap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words.hash(state);
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Encode for Bitmap {
    #[inline]
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(u32::from(self.word_count));
        for word in self.words.iter().take(usize::from(self.word_count)) {
            to.u32(*word);
        }
    }
}

impl Decode<'_> for Bitmap {
    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let word_count = from.u32()?;
        let mut bitmap = Self::EMPTY;
        let words = bitmap.words.get_mut(..word_count as usize);
        for word in words.ok_or(DecodeError::TooMany {
            count_max: BITMAP_WORD_COUNT_MAX,
        })? {
            *word = from.u32()?;
        }
        bitmap.word_count = word_count as u8;
        Ok(bitmap)
    }
}
