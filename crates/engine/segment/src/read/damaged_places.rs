//! Places at which readers met damage, until they can be read or are gone.
//!
//! Owns: which places these are, that they are looked at again. Must not know: who reads, what is said of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::RecordPointer;
use parking_lot::Mutex;

use crate::error::{ErrorKind, SegmentError};
use crate::store::SegmentStore;

/// Places that are kept; of more it is known that there are as many.
const PLACES_MAX: usize = 1024;
/// Places that are looked at again at a time.
const LOOKS_MAX: usize = 16;

/// Volume, segment, block of the stripe, offset in it.
type Place = (VolumeId, SegmentId, u32, u32);

fn place_of(volume: VolumeId, pointer: &RecordPointer) -> Place {
    let location = &pointer.location;
    let at = (location.stripe_block, location.offset_bytes);
    (volume, location.segment, at.0, at.1)
}

/// Where damage was met, with what reads it, and how many reads had met some by then.
#[derive(Default)]
pub(crate) struct DamagedPlaces(Mutex<Places>);

#[derive(Default)]
struct Places {
    met: BTreeMap<Place, (RecordPointer, u64)>,
    /// The last one that was looked at again.
    looked: Option<Place>,
}

impl DamagedPlaces {
    /// Notes that the read number `nth` of those that met damage met it there.
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

    /// The next ones in turn.
    fn next(&self) -> Vec<(VolumeId, RecordPointer)> {
        let mut places = self.0.lock();
        let from = match places.looked {
            Some(place) => Bound::Excluded(place),
            None => Bound::Unbounded,
        };
        let behind = places.met.range((from, Bound::Unbounded));
        let behind: Vec<_> = behind.take(LOOKS_MAX).collect();
        // The turn begins anew at the end.
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
    /// Places at which readers met damage and that still cannot be read, as far as that is known.
    pub fn damaged_places(&self) -> u64 {
        self.damaged_places.0.lock().met.len() as u64
    }

    /// Looks again at some of the places at which readers met damage: what was wrong with a disk or a tier may be mended, and the
    /// data may be deleted. To be called now and then.
    pub async fn check_damaged_places(self: &Arc<Self>) {
        for (volume, pointer) in self.damaged_places.next() {
            let is_over = match self.verify(volume, &pointer).await {
                Ok(()) => true,
                // Another node has it, or it is deleted.
                Err(SegmentError::VolumeClosed { .. }) => true,
                Err(error) => error.kind() == ErrorKind::Gone,
            };
            if is_over {
                self.damaged_places.remove(volume, &pointer);
            }
        }
    }

    /// Forgets the places at which none but the first `reads` of those that met damage met some: a scrub that read all of it knows
    /// better.
    pub fn forget_damaged_places(&self, reads: u64) {
        let mut places = self.damaged_places.0.lock();
        places.met.retain(|_, (_, nth)| *nth > reads);
    }
}
