//! Copies by token, as Windows offloads them (ODX): POPULATE TOKEN gives a name to what blocks have now, WRITE USING TOKEN puts
//! that somewhere else, RECEIVE ROD TOKEN INFORMATION tells how either went. A token is called ROD token: it stands for a
//! "representation of data" (SPC-4, sections 5.17, 6.29 and 7.8.17; SBC-3, sections 5.7, 5.44 and 6.6.5).

use crate::cdb::Blocks;
use crate::inquiry::NAA_LEN_BYTES;
use crate::sense::{Key, Sense, code};
use crate::{u16_at, u32_at, u64_at};

/// Ranges that one of these commands has at most.
pub const TOKEN_RANGE_COUNT_MAX: usize = 64;
pub const ROD_TOKEN_LEN_BYTES: usize = 512;
/// Of the list of WRITE USING TOKEN, without its ranges; that of POPULATE TOKEN is shorter.
pub const TOKEN_LIST_LEN_BYTES_MAX: usize =
    WRITE_HEADER_LEN_BYTES + TOKEN_RANGE_COUNT_MAX * RANGE_LEN_BYTES;
const POPULATE_HEADER_LEN_BYTES: usize = 16;
const WRITE_HEADER_LEN_BYTES: usize = 536;
const RANGE_LEN_BYTES: usize = 16;
/// Least values of the fields that say how long a list is: each has a range.
const POPULATE_LEN_BYTES_MIN: u16 = 0x1e;
const WRITE_LEN_BYTES_MIN: u16 = 0x226;
/// What the length in a token says: bytes behind it.
const TOKEN_REST_LEN_BYTES: u16 = 0x1f8;

/// What a token stands for (SPC-4, table 107).
pub mod rod_type {
    /// The data at one moment, in a way that the copy manager chooses.
    pub const POINT_IN_TIME: u32 = 0x0080_0000;
    /// Any of those, in a command.
    pub const ANY_POINT_IN_TIME: u32 = 0x0080_ffff;
    pub const ZEROS: u32 = 0xffff_0001;
}

/// The bytes of a token.
pub type RodTokenBytes = [u8; ROD_TOKEN_LEN_BYTES];

/// The content of a token that this copy manager makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RodToken {
    /// Its number in the copy manager.
    pub id: u64,
    /// The logical unit that it was made of.
    pub naa: [u8; NAA_LEN_BYTES],
    pub block_len_bytes: u32,
    pub len_bytes: u64,
    /// Without it nobody can guess the rest.
    pub secret: [u8; 32],
}

impl RodToken {
    /// Type, length, number, the logical unit as EXTENDED COPY names it, bytes, capacity, secret.
    pub fn encode(&self) -> RodTokenBytes {
        let mut bytes = [0; ROD_TOKEN_LEN_BYTES];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(0, &rod_type::POINT_IN_TIME.to_be_bytes());
        put(6, &TOKEN_REST_LEN_BYTES.to_be_bytes());
        put(8, &self.id.to_be_bytes());
        let [_, block @ ..] = self.block_len_bytes.to_be_bytes();
        put(16, &[0xe4, 0, 0, 0, 1, 3, 0, NAA_LEN_BYTES as u8]);
        put(24, &self.naa);
        put(45, &block);
        // Of 16 bytes.
        put(56, &self.len_bytes.to_be_bytes());
        put(96, &self.block_len_bytes.to_be_bytes());
        put(128, &self.secret);
        bytes
    }
}

/// Which token a command means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenAsked {
    Zeros,
    /// One that this copy manager may know by this number; all its bytes must be right.
    Made(u64, Box<RodTokenBytes>),
}

/// The list of POPULATE TOKEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopulateToken {
    /// The answer need not wait for the end.
    pub immediate: bool,
    /// 0: what the copy manager thinks best.
    pub inactivity_seconds: u32,
    pub ranges: Vec<Blocks>,
}

/// The list of WRITE USING TOKEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteUsingToken {
    pub immediate: bool,
    /// The token is not needed any more.
    pub deletes: bool,
    /// In blocks of the logical unit that is written.
    pub offset_blocks: u64,
    pub token: TokenAsked,
    pub ranges: Vec<Blocks>,
}

/// Takes POPULATE TOKEN's list; without one there is nothing to do.
pub fn parse_populate_token(list: &[u8]) -> Result<Option<PopulateToken>, Sense> {
    if list.is_empty() {
        return Ok(None);
    }
    if list.len() < POPULATE_HEADER_LEN_BYTES {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH));
    }
    if u16_at(list, 0).unwrap_or(0) < POPULATE_LEN_BYTES_MIN {
        return Err(Sense::list_field(0));
    }
    let flags = list.get(2).copied().unwrap_or(0);
    let wanted = u32_at(list, 8).unwrap_or(0);
    let is_valid = flags & 0x02 != 0;
    if is_valid && ![rod_type::POINT_IN_TIME, rod_type::ANY_POINT_IN_TIME].contains(&wanted) {
        return Err(Sense::list_field(8));
    }
    Ok(Some(PopulateToken {
        immediate: flags & 0x01 != 0,
        inactivity_seconds: u32_at(list, 4).unwrap_or(0),
        ranges: parse_ranges(list, POPULATE_HEADER_LEN_BYTES)?,
    }))
}

/// Takes WRITE USING TOKEN's list; without one there is nothing to do.
pub fn parse_write_using_token(list: &[u8]) -> Result<Option<WriteUsingToken>, Sense> {
    if list.is_empty() {
        return Ok(None);
    }
    let token = list
        .get(16..)
        .and_then(<[u8]>::first_chunk::<ROD_TOKEN_LEN_BYTES>);
    let (Some(token), true) = (token, list.len() >= WRITE_HEADER_LEN_BYTES) else {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH));
    };
    if u16_at(list, 0).unwrap_or(0) < WRITE_LEN_BYTES_MIN {
        return Err(Sense::list_field(0));
    }
    let flags = list.get(2).copied().unwrap_or(0);
    if u16_at(token, 6) != Some(TOKEN_REST_LEN_BYTES) {
        return Err(Sense::illegal(code::TOKEN_LENGTH));
    }
    let token = match u32_at(token, 0).unwrap_or(0) {
        rod_type::ZEROS => TokenAsked::Zeros,
        rod_type::POINT_IN_TIME => {
            TokenAsked::Made(u64_at(token, 8).unwrap_or(0), Box::new(*token))
        }
        _ => return Err(Sense::illegal(code::TOKEN_TYPE)),
    };
    Ok(Some(WriteUsingToken {
        immediate: flags & 0x01 != 0,
        deletes: flags & 0x02 != 0,
        offset_blocks: u64_at(list, 8).unwrap_or(0),
        token,
        ranges: parse_ranges(list, WRITE_HEADER_LEN_BYTES)?,
    }))
}

/// The ranges behind a header, which ends with their length. A cut-off range is left out, as SBC-3 wants.
fn parse_ranges(list: &[u8], header_len_bytes: usize) -> Result<Vec<Blocks>, Sense> {
    let at = header_len_bytes - 2;
    let len_bytes = usize::from(u16_at(list, at).unwrap_or(0));
    let rest = list.get(header_len_bytes..).unwrap_or_default();
    let rest = rest.get(..len_bytes.min(rest.len())).unwrap_or_default();
    if rest.len() < RANGE_LEN_BYTES {
        return Err(Sense::list_field(at as u16));
    }
    if rest.len() / RANGE_LEN_BYTES > TOKEN_RANGE_COUNT_MAX {
        return Err(Sense::illegal(code::TOO_MANY_SEGMENTS));
    }
    let range = |bytes: &[u8]| {
        Some(Blocks {
            lba: u64_at(bytes, 0)?,
            count: u32_at(bytes, 8)?.into(),
        })
    };
    let ranges: Vec<Blocks> = rest
        .chunks_exact(RANGE_LEN_BYTES)
        .filter_map(range)
        .collect();
    let mut sorted: Vec<Blocks> = ranges.iter().filter(|one| one.count > 0).copied().collect();
    sorted.sort_unstable_by_key(|one| one.lba);
    let overlap = |pair: &[Blocks]| match pair {
        [one, next] => one
            .lba
            .checked_add(one.count)
            .is_none_or(|end| end > next.lba),
        _ => false,
    };
    match sorted.windows(2).any(overlap) {
        true => Err(Sense::list_field(header_len_bytes as u16)),
        false => Ok(ranges),
    }
}

/// Whose result is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenAction {
    Populate = 0x10,
    Write = 0x11,
}

/// How a copy by token went, or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenResult {
    pub action: TokenAction,
    pub is_done: bool,
    /// Blocks that were read into a token, or written.
    pub moved_blocks: u64,
    pub ranges_done: u16,
    /// Why it failed.
    pub sense: Option<Sense>,
    /// The token that was made.
    pub token: Option<Box<RodTokenBytes>>,
}

/// RECEIVE ROD TOKEN INFORMATION (SPC-4, table 256).
pub fn rod_token_information(result: &TokenResult) -> Vec<u8> {
    const COMPLETED: u8 = 0x01;
    const FAILED: u8 = 0x02;
    const IN_FOREGROUND: u8 = 0x11;
    const BLOCKS: u8 = 0xf1;
    const SENSE_LEN_BYTES: usize = 18;
    let status = match (result.is_done, result.sense) {
        (false, _) => IN_FOREGROUND,
        (true, None) => COMPLETED,
        (true, Some(_)) => FAILED,
    };
    // Its field is as long as a multiple of four.
    let sense = result.sense.map_or(Vec::new(), |sense| {
        let mut bytes = sense.fixed().to_vec();
        bytes.resize(SENSE_LEN_BYTES.next_multiple_of(4), 0);
        bytes
    });
    let mut bytes = vec![0; 4];
    bytes.extend([result.action as u8, status]);
    bytes.extend(result.ranges_done.to_be_bytes());
    // Nobody knows how long it takes.
    bytes.extend(u32::MAX.to_be_bytes());
    bytes.extend(match result.sense {
        None => [0, 0, 0],
        Some(_) => [0x02, sense.len() as u8, SENSE_LEN_BYTES as u8],
    });
    bytes.push(BLOCKS);
    bytes.extend(result.moved_blocks.to_be_bytes());
    bytes.extend(result.ranges_done.to_be_bytes());
    bytes.extend([0; 6]);
    bytes.extend(sense);
    match result.token.as_ref().filter(|_| status == COMPLETED) {
        None => bytes.extend([0; 4]),
        Some(token) => {
            // One descriptor: a number that says nothing here, and the token.
            bytes.extend((2 + ROD_TOKEN_LEN_BYTES as u32).to_be_bytes());
            bytes.extend([0; 2]);
            bytes.extend(&token[..]);
        }
    }
    let len_bytes = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// What copies by token may do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    pub block_len_bytes: u32,
    pub transfer_len_bytes: u64,
    pub optimal_len_bytes: u64,
    pub inactivity_seconds: u32,
    pub inactivity_seconds_max: u32,
    pub lifetime_seconds_max: u32,
    pub granularity_blocks: u16,
    pub copy_segment_len_bytes: u32,
    pub token_count_max: u32,
}

/// Page 8F, third-party copy (SPC-4, section 7.8.17; SBC-3, section 6.6.5).
pub fn third_party_copy(limits: &TokenLimits) -> Vec<u8> {
    let blocks = |len_bytes: u64| len_bytes / u64::from(limits.block_len_bytes.max(1));
    let mut body = Vec::new();
    let mut descriptor = |kind: u16, parts: &[&[u8]]| {
        let mut bytes = parts.concat();
        // All are as long as a multiple of four.
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        body.extend(kind.to_be_bytes());
        body.extend((bytes.len() as u16).to_be_bytes());
        body.extend(bytes);
    };
    // Limits of tokens of block devices.
    descriptor(
        0x0000,
        &[
            &[0; 6],
            &(TOKEN_RANGE_COUNT_MAX as u16).to_be_bytes(),
            &limits.inactivity_seconds_max.to_be_bytes(),
            &limits.inactivity_seconds.to_be_bytes(),
            &blocks(limits.transfer_len_bytes).to_be_bytes(),
            &blocks(limits.optimal_len_bytes).to_be_bytes(),
        ],
    );
    // Commands, each with its service actions.
    let commands: &[u8] = &[0x83, 3, 0x00, 0x10, 0x11, 0x84, 3, 0x00, 0x03, 0x07];
    descriptor(0x0001, &[&[commands.len() as u8], commands]);
    // Lists of EXTENDED COPY.
    descriptor(
        0x0004,
        &[
            &[0; 4],
            &(crate::COPY_TARGET_COUNT_MAX as u16).to_be_bytes(),
            &(crate::COPY_SEGMENT_COUNT_MAX as u16).to_be_bytes(),
            &crate::copy::descriptors_len_bytes_max().to_be_bytes(),
            &crate::COPY_INLINE_LEN_BYTES_MAX.to_be_bytes(),
            &[0; 12],
        ],
    );
    // Their descriptors: from block to block, targets by their designators.
    descriptor(0x0008, &[&[2, 0x02, 0xe4]]);
    // No identifiers of targets beside their places in the list.
    descriptor(0x000c, &[&[0, 0]]);
    // Tokens: none of other copy managers; how long they live; then those of block devices.
    descriptor(
        0x0106,
        &[
            &[0; 12],
            &limits.inactivity_seconds.to_be_bytes(),
            &limits.lifetime_seconds_max.to_be_bytes(),
            &limits.inactivity_seconds_max.to_be_bytes(),
            &[0; 18],
            &48_u16.to_be_bytes(),
            &[0, 0, 0, 44, 0, 0],
            &limits.granularity_blocks.to_be_bytes(),
            &limits.transfer_len_bytes.to_be_bytes(),
            &limits.optimal_len_bytes.to_be_bytes(),
            &limits.optimal_len_bytes.to_be_bytes(),
            &limits.optimal_len_bytes.to_be_bytes(),
            &[0; 8],
        ],
    );
    // Types of tokens: those that are made and taken, and the zeros, which are taken only.
    let mut types = Vec::new();
    for (kind, flags) in [(rod_type::POINT_IN_TIME, 0x03), (rod_type::ZEROS, 0x02)] {
        let mut one = kind.to_be_bytes().to_vec();
        one.push(flags);
        one.resize(64, 0);
        types.extend(one);
    }
    descriptor(
        0x0108,
        &[&[0, 0], &(types.len() as u16).to_be_bytes(), &types],
    );
    // Copies in general: how many at a time, the longest segment, granularities as powers of two.
    descriptor(
        0x8001,
        &[
            &limits.token_count_max.to_be_bytes(),
            &limits.token_count_max.to_be_bytes(),
            &limits.copy_segment_len_bytes.to_be_bytes(),
            &[9, 0],
            &[0; 18],
        ],
    );
    let mut page = vec![0, 0x8f];
    page.extend((body.len() as u16).to_be_bytes());
    page.extend(body);
    page
}

/// A token that nobody here knows, or not any more.
pub const fn unknown_token() -> Sense {
    Sense::illegal(code::TOKEN_UNKNOWN)
}

/// More tokens than may live at a time.
pub const fn too_many_tokens() -> Sense {
    Sense::new(Key::IllegalRequest, code::NO_ROOM_FOR_TOKEN)
}
