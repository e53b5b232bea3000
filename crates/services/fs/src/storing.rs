//! Records of files on their way into segments, each on the kind of disks that it is to live on.
//!
//! Owns: which records are appended together. Must not know: what is in them, how segments are laid out.

use cairn_base::{Media, SegmentId};
use cairn_segment::{EncodedRecord, Location, Placing, SegmentInfo, SegmentPin, Stream};
use futures_util::future::try_join_all;

use crate::types::FsError;
use crate::volume::{Shared, segment_error};

/// Records to append, each with the kind of disks that it is to live on.
#[derive(Default)]
pub(crate) struct Records {
    pub all: Vec<EncodedRecord>,
    media: Vec<Option<Media>>,
}

impl Records {
    /// Its number among all.
    pub fn add(&mut self, record: EncodedRecord, media: Option<Media>) -> usize {
        self.all.push(record);
        self.media.push(media);
        self.all.len() - 1
    }

    pub fn media(&self, index: usize) -> Option<Media> {
        self.media.get(index).copied().flatten()
    }

    /// The numbers of those that go together.
    fn groups(&self) -> Vec<(Option<Media>, Vec<usize>)> {
        let mut groups: Vec<(Option<Media>, Vec<usize>)> = Vec::new();
        for (index, media) in self.media.iter().enumerate() {
            match groups.iter_mut().find(|(of, _)| of == media) {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((*media, vec![index])),
            }
        }
        groups
    }
}

/// Where records are that are durable now.
#[derive(Default)]
pub(crate) struct Stored {
    /// In the order of the records.
    pub locations: Vec<Location>,
    pub segments: Vec<SegmentInfo>,
    /// Held until the extents are committed.
    pub pins: Vec<SegmentPin>,
}

impl Shared {
    /// Makes records durable. After an error those that were written are garbage.
    pub(crate) async fn store_records(
        &self,
        stream: Stream,
        records: &Records,
    ) -> Result<Stored, FsError> {
        if records.all.is_empty() {
            return Ok(Stored::default());
        }
        let code = self.code()?;
        let append = |media, records| {
            let placing = Placing { code, media };
            self.segments.append(self.volume, placing, stream, records)
        };
        let groups = records.groups();
        let appends = groups.iter().map(|(media, indexes)| {
            let own = indexes.iter().map(|index| records.all[*index].clone());
            append(*media, own.collect())
        });
        let appended = try_join_all(appends).await.map_err(segment_error)?;
        let mut stored = Stored::default();
        let mut placed: Vec<(usize, Location)> = Vec::with_capacity(records.all.len());
        for ((_, indexes), appended) in groups.iter().zip(appended) {
            placed.extend(indexes.iter().copied().zip(appended.locations));
            stored.segments.extend(appended.segments);
            stored.pins.push(appended.pin);
        }
        placed.sort_unstable_by_key(|(index, _)| *index);
        stored.locations = placed.into_iter().map(|(_, location)| location).collect();
        Ok(stored)
    }

    /// Whether what is in a segment is on the kind of disks that it is to live on, or on its way there. What is in a tier
    /// comes there when it is brought back.
    pub(crate) fn is_placed_for(&self, segment: SegmentId, media: Option<Media>) -> bool {
        let info = self.segments.segment(self.volume, segment);
        info.is_none_or(|info| info.remote.is_some() || info.media == media)
    }
}
