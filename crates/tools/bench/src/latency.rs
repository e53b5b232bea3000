//! Latencies of single requests: the histogram they are counted in, its text, its percentiles.
//!
//! Owns: the precision of latencies, HDR's V2 format with deflate and base64, adding up histograms.
//! Must not know: what a request is.
//!
//! Text of a histogram may come from another machine or a file that somebody edited: nothing in it
//! makes the decoder panic, or allocate more than [`ENCODED_LEN_BYTES_MAX`] and a histogram of ours.
//! Source: the V2 encoding of <https://github.com/HdrHistogram/HdrHistogram>,
//! `AbstractHistogram.encodeIntoCompressedByteBuffer`.

use std::io::{Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;

use crate::result::Latency;

/// Longer latencies count as this.
pub const LATENCY_NS_MAX: u64 = 3600 * 1_000_000_000;
/// Latencies are kept to one part in a thousand.
pub const SIGNIFICANT_DIGITS: u8 = 3;
/// Longest text of a histogram, and most bytes it may unpack to. One of ours has 35,000 counters.
pub const ENCODED_LEN_BYTES_MAX: usize = 1 << 20;
/// More requests than any run makes; sums of so many clients' counts stay far from overflow.
const COUNT_MAX: u64 = 1 << 53;

const COOKIE: u32 = 0x1c84_9303 | 0x10;
const COOKIE_DEFLATED: u32 = 0x1c84_9304 | 0x10;
const DIGITS_MAX: u32 = 5;

/// What a result says of a histogram.
const PERCENTILES: [f64; 23] = [
    0.0, 1.0, 5.0, 10.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0,
    98.0, 99.0, 99.5, 99.9, 99.99, 99.999, 100.0,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    #[error("the histogram of latencies is longer than {ENCODED_LEN_BYTES_MAX} bytes")]
    TooLong,
    #[error("the histogram of latencies is not base64")]
    NotBase64,
    #[error("the histogram of latencies is damaged or not in HDR's V2 format with deflate")]
    NotV2,
}

/// An empty histogram of nanoseconds; all of them have the same limits, so that they add up.
pub fn histogram() -> Histogram<u64> {
    let made = Histogram::new_with_max(LATENCY_NS_MAX, SIGNIFICANT_DIGITS);
    made.expect("the limits of the histogram are in order")
}

/// What a result says of `histogram`, of nanoseconds; `None` of an empty one.
pub fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    if histogram.is_empty() {
        return None;
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |percent| match percent {
        0.0 => us(histogram.min()),
        percent => us(histogram.value_at_percentile(percent)),
    };
    Some(Latency {
        count: histogram.len(),
        min_us: us(histogram.min()),
        mean_us: histogram.mean() / 1e3,
        max_us: us(histogram.max()),
        percentiles_us: PERCENTILES.map(|percent| (percent, at(percent))).to_vec(),
        histogram: Some(encode(histogram)),
    })
}

/// The latencies of all of `parts` together. Exact to the precision of the histogram when each part
/// has one; otherwise only count, extremes and mean are known, and no percentiles between.
pub fn merge<'a>(parts: impl IntoIterator<Item = &'a Latency>) -> Option<Latency> {
    let parts: Vec<&Latency> = parts.into_iter().collect();
    if let [only] = parts.as_slice() {
        return Some((*only).clone());
    }
    let decoded: Option<Vec<Histogram<u64>>> = parts
        .iter()
        .map(|part| decode(part.histogram.as_deref()?).ok())
        .collect();
    if let Some(decoded) = decoded {
        let mut sum = histogram();
        for part in &decoded {
            add(&mut sum, part);
        }
        return latency(&sum);
    }
    let count = parts
        .iter()
        .map(|part| part.count)
        .fold(0, u64::saturating_add);
    let weighted = |part: &&Latency| part.mean_us * part.count as f64;
    let min_us = parts
        .iter()
        .map(|part| part.min_us)
        .fold(f64::INFINITY, f64::min);
    let max_us = parts.iter().map(|part| part.max_us).fold(0.0, f64::max);
    (count > 0).then(|| Latency {
        count,
        min_us,
        mean_us: parts.iter().map(weighted).sum::<f64>() / count as f64,
        max_us,
        percentiles_us: vec![(0.0, min_us), (100.0, max_us)],
        histogram: None,
    })
}

/// Adds `part` to `sum`, both made by [`histogram`].
pub fn add(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    let added = sum.add(part);
    added.expect("both histograms have the same limits");
}

/// The text of a histogram made by [`histogram`].
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut counts = Vec::new();
    let scale = Scale::OURS;
    let mut next = 0;
    for step in histogram.iter_recorded() {
        let index = scale.index_of(step.value_iterated_to());
        if index > next {
            put_varint(&mut counts, zig_zag(-((index - next) as i64)));
        }
        let count = step.count_at_value().min(COUNT_MAX);
        put_varint(&mut counts, zig_zag(count as i64));
        next = index + 1;
    }
    let mut body = Vec::with_capacity(40 + counts.len());
    body.extend(COOKIE.to_be_bytes());
    body.extend((counts.len() as u32).to_be_bytes());
    // The offset for normalizing, which nobody uses.
    body.extend(0u32.to_be_bytes());
    body.extend(u32::from(SIGNIFICANT_DIGITS).to_be_bytes());
    body.extend(1u64.to_be_bytes());
    body.extend(LATENCY_NS_MAX.to_be_bytes());
    body.extend(1f64.to_be_bytes());
    body.extend(counts);
    let deflated = || -> std::io::Result<Vec<u8>> {
        let mut deflater = ZlibEncoder::new(Vec::new(), Compression::default());
        deflater.write_all(&body)?;
        deflater.finish()
    };
    let deflated: Vec<u8> = deflated().expect("a vector takes all bytes");
    let mut output = Vec::with_capacity(8 + deflated.len());
    output.extend(COOKIE_DEFLATED.to_be_bytes());
    output.extend((deflated.len() as u32).to_be_bytes());
    output.extend(deflated);
    BASE64.encode(output)
}

/// Reads the text of a histogram of any HDR implementation into one with our limits.
pub fn decode(text: &str) -> Result<Histogram<u64>, HistogramError> {
    if text.len() > ENCODED_LEN_BYTES_MAX {
        return Err(HistogramError::TooLong);
    }
    let bytes = BASE64
        .decode(text.trim())
        .map_err(|_| HistogramError::NotBase64)?;
    let mut outer = Fields(&bytes);
    if outer.u32()? != COOKIE_DEFLATED {
        return Err(HistogramError::NotV2);
    }
    let deflated_len_bytes = outer.u32()? as usize;
    let deflated = outer.take(deflated_len_bytes)?;
    let mut body = Vec::new();
    ZlibDecoder::new(deflated)
        .take(ENCODED_LEN_BYTES_MAX as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|_| HistogramError::NotV2)?;
    if body.len() > ENCODED_LEN_BYTES_MAX {
        return Err(HistogramError::TooLong);
    }
    decode_body(&body)
}

fn decode_body(body: &[u8]) -> Result<Histogram<u64>, HistogramError> {
    let mut from = Fields(body);
    if from.u32()? != COOKIE {
        return Err(HistogramError::NotV2);
    }
    let counts_len_bytes = from.u32()? as usize;
    let normalizing_offset = from.u32()?;
    let digits = from.u32()?;
    let low = from.u64()?;
    from.u64()?;
    let ratio = f64::from_bits(from.u64()?);
    if normalizing_offset != 0 || ratio != 1.0 {
        return Err(HistogramError::NotV2);
    }
    let scale = Scale::new(low, digits).ok_or(HistogramError::NotV2)?;
    let mut counts = Fields(from.take(counts_len_bytes)?);
    let mut sum = histogram();
    let mut index = 0u64;
    while !counts.0.is_empty() {
        let number = un_zig_zag(counts.varint()?);
        if number <= 0 {
            let zeros = number.unsigned_abs().max(1);
            index = index.checked_add(zeros).ok_or(HistogramError::NotV2)?;
            continue;
        }
        let count = number.unsigned_abs();
        if count.saturating_add(sum.len()) > COUNT_MAX {
            return Err(HistogramError::NotV2);
        }
        let value = scale.value_at(index).ok_or(HistogramError::NotV2)?;
        // By itself a histogram takes what its last counters reach, which is more.
        sum.saturating_record_n(value.min(LATENCY_NS_MAX), count);
        index += 1;
    }
    Ok(sum)
}

/// How values are put into counters: linear up to `2^(half_bits + 1)` units, then so that each
/// doubling has `2^half_bits` counters.
#[derive(Clone, Copy)]
struct Scale {
    unit_bits: u32,
    half_bits: u32,
}

impl Scale {
    const OURS: Self = Self {
        unit_bits: 0,
        half_bits: 10,
    };

    fn new(low: u64, digits: u32) -> Option<Self> {
        if low == 0 || digits > DIGITS_MAX {
            return None;
        }
        let steps = 2 * 10u64.pow(digits);
        let half_bits = (steps.next_power_of_two().ilog2()).max(1) - 1;
        let unit_bits = low.ilog2();
        (unit_bits + half_bits < 62).then_some(Self {
            unit_bits,
            half_bits,
        })
    }

    fn index_of(self, value: u64) -> u64 {
        let units = value >> self.unit_bits;
        let doubling = (units >> (self.half_bits + 1))
            .checked_ilog2()
            .map_or(0, |it| it + 1);
        (u64::from(doubling) << self.half_bits) + (units >> doubling)
    }

    /// The lowest value of a counter; `None` if it is beyond 2^63.
    fn value_at(self, index: u64) -> Option<u64> {
        let linear = 2u64 << self.half_bits;
        if index < linear {
            return Some(index << self.unit_bits);
        }
        let doubling = (index >> self.half_bits) - 1;
        let units = index - (doubling << self.half_bits);
        let shift = u32::try_from(doubling).ok()?.checked_add(self.unit_bits)?;
        let bits = units.ilog2() + 1;
        (shift.checked_add(bits)? < 64).then(|| units << shift)
    }
}

/// Takes big-endian fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len_bytes: usize) -> Result<&'a [u8], HistogramError> {
        let (taken, rest) = self
            .0
            .split_at_checked(len_bytes)
            .ok_or(HistogramError::NotV2)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, HistogramError> {
        let bytes = self.take(4)?.try_into();
        Ok(u32::from_be_bytes(
            bytes.map_err(|_| HistogramError::NotV2)?,
        ))
    }

    fn u64(&mut self) -> Result<u64, HistogramError> {
        let bytes = self.take(8)?.try_into();
        Ok(u64::from_be_bytes(
            bytes.map_err(|_| HistogramError::NotV2)?,
        ))
    }

    /// LEB128, of which a ninth byte is taken whole.
    fn varint(&mut self) -> Result<u64, HistogramError> {
        let mut value = 0;
        for place in 0..9u32 {
            let byte = u64::from(self.take(1)?.first().copied().unwrap_or_default());
            if place == 8 {
                return Ok(value | byte << 56);
            }
            value |= (byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                break;
            }
        }
        Ok(value)
    }
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    for _ in 0..8 {
        if value < 0x80 {
            break;
        }
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn zig_zag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn un_zig_zag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram<u64> {
        let mut made = histogram();
        values.iter().for_each(|it| made.saturating_record(*it));
        made
    }

    /// Written by the crate `hdrhistogram` 7.6 with its `serialization` feature.
    #[test]
    fn reads_what_others_wrote() {
        let golden = "HISTFAAAAEN4nAE4AMf/HISTEwAAABAAAAAAAAAAAwAAAAAAAAABAAADRjC4oAA/8AAAAAAAAAAC\
                      +R8CBLFYBNFaAo23AgK76gj9";
        let want = of(&[
            1,
            2047,
            2048,
            2049,
            100_000,
            100_000,
            5_000_000,
            LATENCY_NS_MAX,
        ]);
        assert_eq!(decode(golden).expect("it is V2"), want);
        assert_eq!(decode(&encode(&want)).expect("it is V2"), want);
    }

    #[test]
    fn other_scales_are_read() {
        for (low, digits, value) in [(1, 2, 12_345), (1000, 3, 5_000_000), (1, 5, 77_777_777)] {
            let scale = Scale::new(low, digits).expect("a scale");
            let at = scale.value_at(scale.index_of(value)).expect("a value");
            assert!(
                at <= value && value - at <= value / 100 + low,
                "{low} {digits}"
            );
        }
        for (low, digits) in [(0, 3), (1, 6), (u64::MAX, 3)] {
            assert!(Scale::new(low, digits).is_none());
        }
    }

    #[test]
    fn longer_ones_count_as_the_longest() {
        let longest = histogram().highest_equivalent(LATENCY_NS_MAX);
        let own = encode(&of(&[LATENCY_NS_MAX + LATENCY_NS_MAX / 6]));
        let found = "HISTFAAAAD14AQEyAM3/HISTEwAAAAoAAAAAAAAAAwAAABAAAAAAAAADRjC4oAA/8AAAAAAAAM8PAs0P3KBTAgKTFwfz";
        for text in [own.as_str(), found] {
            let read = decode(text).expect("it is V2");
            assert_eq!(read.max(), longest, "{text}");
            assert_eq!(decode(&encode(&read)), Ok(read));
        }
    }

    #[test]
    fn damage_is_refused() {
        let good = BASE64.decode(encode(&of(&[1, 2, 3]))).expect("base64");
        let check = |bytes: &[u8], want| {
            assert_eq!(decode(&BASE64.encode(bytes)).expect_err("refused"), want);
        };
        check(&[], HistogramError::NotV2);
        check(&good[..good.len() - 5], HistogramError::NotV2);
        check(&[&[0], &good[1..]].concat(), HistogramError::NotV2);
        assert_eq!(decode("?"), Err(HistogramError::NotBase64));
        let long = "A".repeat(ENCODED_LEN_BYTES_MAX + 4);
        assert_eq!(decode(&long), Err(HistogramError::TooLong));
        // Small as it is, it would unpack to far more.
        let mut bomb = ZlibEncoder::new(Vec::new(), Compression::best());
        bomb.write_all(&vec![0; 2 * ENCODED_LEN_BYTES_MAX])
            .expect("a vector");
        let bomb = bomb.finish().expect("a vector");
        let head = [
            COOKIE_DEFLATED.to_be_bytes(),
            (bomb.len() as u32).to_be_bytes(),
        ];
        check(
            &[&head.concat(), bomb.as_slice()].concat(),
            HistogramError::TooLong,
        );
    }

    #[test]
    fn without_a_histogram_only_what_is_known_is_said() {
        let exact = latency(&of(&[1000, 3000])).expect("two");
        let rough = Latency {
            count: 2,
            min_us: 0.5,
            mean_us: 6.0,
            max_us: 9.0,
            percentiles_us: vec![(50.0, 6.0)],
            histogram: None,
        };
        let both = merge([&exact, &rough]).expect("four");
        assert_eq!((both.count, both.min_us, both.max_us), (4, 0.5, 9.0));
        assert!((both.mean_us - 4.0).abs() < 0.01);
        assert_eq!(both.percentiles_us, [(0.0, 0.5), (100.0, 9.0)]);
        assert_eq!(merge([]), None);
    }

    proptest! {
        #[test]
        fn text_brings_back_the_histogram(values in prop::collection::vec(0..LATENCY_NS_MAX, 0..200)) {
            let made = of(&values);
            prop_assert_eq!(decode(&encode(&made)).expect("ours"), made);
        }

        #[test]
        fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..200), keep_head: bool) {
            let mut bytes = Vec::new();
            if keep_head {
                let counts_len = body.len() as u32;
                for word in [COOKIE, counts_len, 0, 3] {
                    bytes.extend(word.to_be_bytes());
                }
                bytes.extend([1u64, LATENCY_NS_MAX, 1f64.to_bits()].map(u64::to_be_bytes).concat());
            }
            bytes.extend(body);
            let _ = decode_body(&bytes);
        }
    }
}
