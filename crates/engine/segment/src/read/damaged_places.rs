//! Places at which reads met corruption, until they are readable or gone.
//!
//! Owns: the list of these places, and their re-checks. Must not know: the readers, how corruption is reported.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::RecordPointer;
use parking_lot::Mutex;

use crate::error::{ErrorKind, SegmentError};
use crate::store::SegmentStore;

/// Limit of the places kept; above it the count stays at this number.
const PLACES_MAX: usize = 1024;
/// Places that are checked again at a time.
const LOOKS_MAX: usize = 16;

/// Volume, segment, block of the stripe, offset in it.
type Place = (VolumeId, SegmentId, u32, u32);

fn place_of(volume: VolumeId, pointer: &RecordPointer) -> Place {
    let location = &pointer.location;
    let at = (location.stripe_block, location.offset_bytes);
    (volume, location.segment, at.0, at.1)
}

/// Corrupt places, each with the pointer that reads it, and the number of corrupt reads by then.
#[derive(Default)]
pub(crate) struct DamagedPlaces(Mutex<Places>);

#[derive(Default)]
struct Places {
    met: BTreeMap<Place, (RecordPointer, u64)>,
    /// The last place that was checked again.
    looked: Option<Place>,
}

impl DamagedPlaces {
    /// Notes that the corrupt read number `nth` was at this place.
    pub(crate) fn note(&self, volume: VolumeId, pointer: &RecordPointer, nth: u64) {
        let mut places = self.0.lock();
        let place = place_of(volume, pointer);
        if places.met.len() < PLACES_MAX || places.met.contains_key(&place) {
            places.met.insert(place, (pointer.clone(), nth));
        }
    }

    fn remove(&self, volume: VolumeId, pointer: &RecordPointer) {
        self.0.lock().met.remove(&place_of(volume, pointer));
    }

    /// The next places in turn.
    fn next(&self) -> Vec<(VolumeId, RecordPointer)> {
        let mut places = self.0.lock();
        let from = match places.looked {
            Some(place) => Bound::Excluded(place),
            None => Bound::Unbounded,
        };
        let behind = places.met.range((from, Bound::Unbounded));
        let behind: Vec<_> = behind.take(LOOKS_MAX).collect();
        // The turn restarts at the end.
        let last = match behind.len() < LOOKS_MAX {
            true => None,
            false => behind.last().map(|(place, _)| **place),
        };
        let next = behind
            .into_iter()
            .map(|(place, (pointer, _))| (place.0, pointer.clone()))
            .collect();
        places.looked = last;
        next
    }
}

impl SegmentStore {
    /// Number of places at which reads met corruption and that are still unreadable, as far as known.
    pub fn damaged_places(&self) -> u64 {
        self.damaged_places.0.lock().met.len() as u64
    }

    /// Checks some of the corrupt places again: a disk or a tier may be repaired, and the data may be deleted. To be
    /// called repeatedly.
    pub async fn check_damaged_places(self: &Arc<Self>) {
        for (volume, pointer) in self.damaged_places.next() {
            let is_over = match self.verify(volume, &pointer).await {
                Ok(()) => true,
                // Another node has the volume, or it is deleted.
                Err(SegmentError::VolumeClosed { .. }) => true,
                Err(error) => error.kind() == ErrorKind::Gone,
            };
            if is_over {
                self.damaged_places.remove(volume, &pointer);
            }
        }
    }

    /// Forgets the places that were met only by the first `reads` of the corrupt reads: a complete scrub has newer
    /// results.
    pub fn forget_damaged_places(&self, reads: u64) {
        let mut places = self.damaged_places.0.lock();
        places.met.retain(|_, (_, nth)| *nth > reads);
    }
}
