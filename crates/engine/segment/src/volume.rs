//! One open volume: its segments, and the segment that each stream writes to.
//!
//! Owns: the map of segments, the streams. Must not know: the life of one segment (`life`), disk errors.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::{Epoch, SegmentId, VolumeId};
use cairn_erasure::Code;
use cairn_keys::VolumeKey;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::{Result, SegmentError};
use crate::life::Segment;
use crate::segment_map::SegmentMap;
use crate::types::{Placing, SegmentInfo, Stream};

/// Returns a new segment id; the metadata ensures that each is returned once.
pub(crate) type Allocate = Arc<dyn Fn() -> SegmentId + Send + Sync>;

/// A volume that is served here.
pub(crate) struct Volume {
    pub id: VolumeId,
    /// The ownership term in which it was opened.
    pub epoch: Epoch,
    /// Whether nothing of it may change on any disk, so that no repair is made.
    pub is_read_only: bool,
    /// Key of its records, if it is encrypted.
    pub key: Option<Arc<VolumeKey>>,
    /// Set once a disk has promised this epoch to another owner: this owner has ended.
    pub fenced: OnceLock<Epoch>,
    pub allocate: Allocate,
    pub segments: RwLock<SegmentMap>,
    /// Segments that the metadata is not yet known to have.
    pub uncommitted: Mutex<BTreeSet<SegmentId>>,
    pub streams: Mutex<Streams>,
    /// Held while a segment is created, so that waiting streams do not each create one.
    pub creating: tokio::sync::Mutex<()>,
    /// Held during an examination of the placement of segments.
    pub looks: Mutex<()>,
}

impl Volume {
    pub fn new(
        id: VolumeId,
        epoch: Epoch,
        key: Option<Arc<VolumeKey>>,
        allocate: Allocate,
        segments: Vec<SegmentInfo>,
    ) -> Self {
        let known = segments
            .into_iter()
            .map(|info| Segment::known(id, epoch, info))
            .collect();
        Self {
            id,
            epoch,
            is_read_only: false,
            key,
            fenced: OnceLock::new(),
            allocate,
            segments: RwLock::new(known),
            uncommitted: Mutex::default(),
            streams: Mutex::default(),
            creating: tokio::sync::Mutex::new(()),
            looks: Mutex::default(),
        }
    }

    /// Makes the volume read-only.
    pub fn read_only(self) -> Self {
        Self {
            is_read_only: true,
            ..self
        }
    }

    /// Fails once another node owns the volume.
    pub fn require_owned(&self) -> Result<()> {
        match self.fenced.get() {
            None => Ok(()),
            Some(promised) => Err(SegmentError::Fenced {
                volume: self.id,
                epoch: self.epoch,
                promised: *promised,
            }),
        }
    }

    pub fn segment(&self, id: SegmentId) -> Result<Arc<Segment>> {
        let found = self.segments.read().get(&id).cloned();
        found.ok_or(SegmentError::Gone {
            volume: self.id,
            segment: id,
        })
    }
}

/// Whether free room in a stream's segment may serve other streams, or garbage collection.
fn has_room_for_others(stream: Stream, with_rewritten: bool) -> bool {
    match stream {
        Stream::Mixed | Stream::File(_) => true,
        Stream::Rewrite => with_rewritten,
        Stream::Cold => false,
    }
}

/// The open segment of each stream.
#[derive(Default)]
pub(crate) struct Streams {
    current: FxHashMap<(Placing, Stream), Arc<Segment>>,
    /// Segments with room and without a stream; the next stream takes one before it creates a new one.
    idle: Vec<(Placing, Arc<Segment>)>,
}

impl Streams {
    pub fn get(&self, placing: Placing, stream: Stream) -> Option<&Arc<Segment>> {
        self.current.get(&(placing, stream))
    }

    /// Gives a stream its segment. Its previous segment becomes idle. A previous segment of a cold stream is returned
    /// instead, to be sealed: it must not get other records.
    pub fn set(
        &mut self,
        placing: Placing,
        stream: Stream,
        segment: Arc<Segment>,
    ) -> Option<Arc<Segment>> {
        let before = self.current.insert((placing, stream), segment)?;
        if stream == Stream::Cold {
            return Some(before);
        }
        self.idle.push((placing, before));
        None
    }

    /// An idle segment that was made for `placing` and is `wanted`.
    pub fn take_idle(
        &mut self,
        placing: Placing,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Option<Arc<Segment>> {
        self.idle.retain(|(_, segment)| segment.takes_stripes());
        let index = self
            .idle
            .iter()
            .position(|(made_for, segment)| *made_for == placing && wanted(segment))?;
        Some(self.idle.swap_remove(index).1)
    }

    /// Any open segment that was made for `code`, on any disks, for when there is no space for a new one. Garbage
    /// collection's only if it `may_rewrite`.
    pub fn borrow_any(
        &self,
        code: Code,
        may_rewrite: bool,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Option<Arc<Segment>> {
        self.made_for(code, may_rewrite)
            .find(|segment| segment.takes_stripes() && wanted(segment))
            .cloned()
    }

    /// The open segments made for `code`, with or without those of garbage collection, and without cold ones.
    fn made_for(&self, code: Code, with_rewritten: bool) -> impl Iterator<Item = &Arc<Segment>> {
        let is_wanted = move |stream: &Stream| has_room_for_others(*stream, with_rewritten);
        let current = self
            .current
            .iter()
            .filter(move |((made_for, stream), _)| made_for.code == code && is_wanted(stream))
            .map(|(_, segment)| segment);
        let idle = self
            .idle
            .iter()
            .filter(move |(made_for, _)| made_for.code == code)
            .map(|(_, segment)| segment);
        current.chain(idle)
    }

    /// Room in the open segments of garbage collection made for `code`, in bytes of data.
    pub fn rewrite_room_bytes(&self, code: Code) -> u64 {
        let current = self.current.iter();
        let its = current
            .filter(|((made_for, stream), _)| made_for.code == code && *stream == Stream::Rewrite);
        its.map(|(_, segment)| segment.room_bytes()).sum()
    }

    pub fn forget(&mut self, segment: &Arc<Segment>) {
        self.current.retain(|_, held| !Arc::ptr_eq(held, segment));
        self.idle.retain(|(_, held)| !Arc::ptr_eq(held, segment));
    }

    /// Takes the segments of file streams above `streams_max` away (least recently used first; they become idle).
    /// Returns the open segments above `open_max`, to be sealed.
    pub fn trim(&mut self, streams_max: usize, open_max: usize) -> Vec<Arc<Segment>> {
        let mut files: Vec<((Placing, Stream), Duration)> = self
            .current
            .iter()
            .filter(|((_, stream), _)| matches!(stream, Stream::File(_)))
            .map(|(key, segment)| (*key, segment.last_used()))
            .collect();
        files.sort_unstable_by_key(|(_, last_used)| *last_used);
        let surplus = files.len().saturating_sub(streams_max);
        for (key, _) in &files[..surplus] {
            if let Some(segment) = self.current.remove(key) {
                self.idle.push((key.0, segment));
            }
        }
        self.idle.sort_by_key(|(_, segment)| segment.last_used());
        let surplus = (self.current.len() + self.idle.len()).saturating_sub(open_max);
        let surplus = surplus.min(self.idle.len());
        self.idle
            .drain(..surplus)
            .map(|(_, segment)| segment)
            .collect()
    }

    /// Removes and returns all open segments unused since `since`.
    pub fn take_unused_since(&mut self, since: Duration) -> Vec<Arc<Segment>> {
        let mut taken = Vec::new();
        self.current.retain(|_, segment| {
            let keep = segment.last_used() > since;
            if !keep {
                taken.push(segment.clone());
            }
            keep
        });
        self.idle.retain(|(_, segment)| {
            let keep = segment.last_used() > since;
            if !keep {
                taken.push(segment.clone());
            }
            keep
        });
        taken
    }

    pub fn count(&self) -> usize {
        self.current.len() + self.idle.len()
    }

    /// Room in all open segments, in bytes of data; `with_rewritten` as in [`Self::room_bytes`].
    pub fn all_room_bytes(&self, with_rewritten: bool) -> u64 {
        let is_wanted = |stream: &Stream| has_room_for_others(*stream, with_rewritten);
        let current = self.current.iter();
        let current = current.filter(|((_, stream), _)| is_wanted(stream));
        let idle = self.idle.iter().map(|(_, segment)| segment);
        let all = current.map(|(_, segment)| segment).chain(idle);
        all.map(|segment| segment.room_bytes()).sum()
    }

    /// Room in open segments made for `code`, in bytes of data; `with_rewritten` includes those of garbage collection.
    pub fn room_bytes(&self, code: Code, with_rewritten: bool) -> u64 {
        let rooms = self
            .made_for(code, with_rewritten)
            .map(|segment| segment.room_bytes());
        rooms.sum()
    }
}
