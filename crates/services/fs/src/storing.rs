//! Writes records of files into segments with the requested protection and device class.
//!
//! Owns: which records are appended together. Must not know: the contents of records, how segments are laid out.

use cairn_base::{Media, SegmentId};
use cairn_segment::{
    EncodedRecord, Location, Placing, Protection, SegmentInfo, SegmentPin, Stream,
};
use futures_util::future::try_join_all;

use crate::kernel::segment_error;
use crate::types::FsError;
use crate::volume::VolumeCore;

/// The request of a file for the segments of its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StorageRequirement {
    /// The device class.
    pub media: Option<Media>,
    /// If it differs from that of the volume.
    pub protection: Option<Protection>,
}

/// Records to append, each with its file's request.
#[derive(Default)]
pub(crate) struct Records {
    pub all: Vec<EncodedRecord>,
    asked: Vec<StorageRequirement>,
}

impl Records {
    /// Adds a record; returns its index among all.
    pub fn add(&mut self, record: EncodedRecord, asked: StorageRequirement) -> usize {
        self.all.push(record);
        self.asked.push(asked);
        self.all.len() - 1
    }

    pub fn asked(&self, index: usize) -> StorageRequirement {
        self.asked.get(index).copied().unwrap_or_default()
    }

    /// The indexes of records with equal requests.
    fn groups(&self) -> Vec<(StorageRequirement, Vec<usize>)> {
        let mut groups: Vec<(StorageRequirement, Vec<usize>)> = Vec::new();
        for (index, asked) in self.asked.iter().enumerate() {
            match groups.iter_mut().find(|(of, _)| of == asked) {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((*asked, vec![index])),
            }
        }
        groups
    }
}

/// The places of records that are durable now.
#[derive(Default)]
pub(crate) struct Stored {
    /// In the order of the records.
    pub locations: Vec<Location>,
    pub segments: Vec<SegmentInfo>,
    /// Held until the extents are committed.
    pub pins: Vec<SegmentPin>,
}

impl VolumeCore {
    /// Makes records durable. After an error, those that were written are garbage.
    pub(crate) async fn store_records(
        &self,
        stream: Stream,
        records: &Records,
    ) -> Result<Stored, FsError> {
        if records.all.is_empty() {
            return Ok(Stored::default());
        }
        let groups = records.groups();
        let mut appends = Vec::with_capacity(groups.len());
        for (asked, indexes) in &groups {
            let StorageRequirement { media, protection } = *asked;
            let placing = Placing {
                code: self.code_of(protection)?,
                media,
                protection,
            };
            let own = indexes.iter().map(|index| records.all[*index].clone());
            let append = self
                .segments
                .append(self.volume, placing, stream, own.collect());
            appends.push(append);
        }
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

    /// The request that a segment was made for. Its records keep that request if no file has one: their files were
    /// removed, and snapshots have them.
    pub(crate) fn asked_of(&self, segment: SegmentId) -> StorageRequirement {
        let info = self.segments.segment(self.volume, segment);
        info.map_or_else(StorageRequirement::default, |info| StorageRequirement {
            media: info.media,
            protection: info.protection,
        })
    }

    /// Whether a segment has, or will have, the requested protection and device class. A segment in a tier gets them
    /// when it is promoted.
    pub(crate) fn is_placed_for(&self, segment: SegmentId, asked: StorageRequirement) -> bool {
        let info = self.segments.segment(self.volume, segment);
        info.is_none_or(|info| {
            let StorageRequirement { media, protection } = asked;
            info.remote.is_some() || (info.media == media && info.protection == protection)
        })
    }
}
