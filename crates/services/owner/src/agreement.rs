//! The list of a volume's log and state, kept in the cluster's map.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::{BoxFuture, Clock};
use cairn_base::planted::{self, Bug};
use cairn_base::{Backoff, LogPosition};
use cairn_cluster::map::{self, EnsembleId, MapErrorKind, Owned, StateAt};
use cairn_cluster::{ClusterMap, Revision};
use cairn_meta::{Agreement, AgreementError, Ensemble, StateCopy, VolumeList};
use tokio::sync::Mutex;

/// A change whose outcome is not known is sent again after so long, at first and at most.
const RETRY_AFTER: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// And given up after so long: the owner ends then, and acknowledges nothing that rests on it.
const PATIENCE: Duration = Duration::from_secs(120);

/// As one owner of a volume changes the list.
pub struct MapAgreement {
    map: ClusterMap,
    clock: Arc<dyn Clock>,
    owned: Arc<Mutex<Owned>>,
}

impl MapAgreement {
    /// `owned` is what the takeover gave.
    pub fn new(map: ClusterMap, clock: Arc<dyn Clock>, owned: Owned) -> Self {
        Self {
            map,
            clock,
            owned: Arc::new(Mutex::new(owned)),
        }
    }
}

impl Agreement for MapAgreement {
    fn change(&self, replaced: u64, list: VolumeList) -> BoxFuture<Result<u64, AgreementError>> {
        let (map, clock, owned) = (self.map.clone(), self.clock.clone(), self.owned.clone());
        Box::pin(async move {
            let mut owned = owned.lock().await;
            if owned.log.revision != Revision(replaced) {
                return Err(AgreementError::Refused);
            }
            let log = to_map(&list).map_err(AgreementError::Unknown)?;
            let ends_at = clock.monotonic().saturating_add(PATIENCE);
            let mut pauses = RETRY_AFTER;
            loop {
                let error = match map.change_log(&mut owned, log.clone()).await {
                    Ok(()) => return Ok(owned.log.revision.0),
                    Err(error) => error,
                };
                let is_open = match error.kind() {
                    // Sent again, the same change settles what became of it.
                    MapErrorKind::Unknown | MapErrorKind::Retry => true,
                    MapErrorKind::Fenced | MapErrorKind::Changed | MapErrorKind::NotFound => {
                        return Err(AgreementError::Refused);
                    }
                    MapErrorKind::BadRequest | MapErrorKind::NeedsOperator => false,
                };
                if !is_open || clock.monotonic() >= ends_at {
                    return Err(AgreementError::Unknown(error.to_string()));
                }
                tracing::warn!(volume = %owned.volume, "{error}; trying again");
                clock.sleep(pauses.pause()).await;
            }
        })
    }
}

/// Bits of a number below the epoch, as in the names of the files.
const COUNTER_BITS: u32 = 32;

fn id_of(number: u64) -> EnsembleId {
    EnsembleId {
        epoch: cairn_base::Epoch(number >> COUNTER_BITS),
        counter: (number & u64::from(u32::MAX)) as u32,
    }
}

fn number_of(id: EnsembleId) -> Result<u64, String> {
    let first = id.epoch.0.checked_mul(1 << COUNTER_BITS);
    let first = first.ok_or_else(|| format!("{id} has an epoch that is too high"))?;
    Ok(first | u64::from(id.counter))
}

/// In the map a range ends with the first position that is not in it.
fn to_map(list: &VolumeList) -> Result<map::VolumeLog, String> {
    let ensemble = |part: &Ensemble| {
        let more = u64::from(!planted::is(Bug::AgreedRangeEndsOneEarlier));
        let end = part.to.map(|to| to.0.checked_add(more));
        let end = match end {
            Some(None) => return Err(format!("ensemble {} has no end", part.number)),
            Some(Some(end)) => Some(LogPosition(end)),
            None => None,
        };
        Ok(map::Ensemble {
            id: id_of(part.number),
            from: part.from,
            to: end,
            disks: part.disks.clone(),
        })
    };
    Ok(map::VolumeLog {
        ensembles: list
            .ensembles
            .iter()
            .map(ensemble)
            .collect::<Result<_, _>>()?,
        state: list.state.as_ref().map(|copy| StateAt {
            id: id_of(copy.number),
            len_bytes: copy.len_bytes,
            applied: copy.applied,
            disks: copy.disks.clone(),
        }),
    })
}

/// The list that the map has.
pub(crate) fn from_map(log: &map::VolumeLog) -> Result<VolumeList, String> {
    let ensemble = |part: &map::Ensemble| {
        Ok::<_, String>(Ensemble {
            number: number_of(part.id)?,
            from: part.from,
            to: part.to.map(|end| LogPosition(end.0.saturating_sub(1))),
            disks: part.disks.clone(),
        })
    };
    let state = |at: &StateAt| {
        Ok::<_, String>(StateCopy {
            number: number_of(at.id)?,
            len_bytes: at.len_bytes,
            applied: at.applied,
            disks: at.disks.clone(),
        })
    };
    Ok(VolumeList {
        ensembles: log
            .ensembles
            .iter()
            .map(ensemble)
            .collect::<Result<_, _>>()?,
        state: log.state.as_ref().map(state).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, Epoch};

    use super::*;

    #[test]
    fn lists_come_back_from_the_map() {
        let disks = vec![DiskId(1), DiskId(2)];
        let ensemble = |number, from, to: Option<u64>| Ensemble {
            number,
            from: LogPosition(from),
            to: to.map(LogPosition),
            disks: disks.clone(),
        };
        let state = StateCopy {
            number: (7 << COUNTER_BITS) | 9,
            len_bytes: 100,
            applied: LogPosition(3),
            disks: disks.clone(),
        };
        let lists = [
            VolumeList::default(),
            VolumeList {
                ensembles: vec![
                    ensemble((1 << COUNTER_BITS) | 5, 1, Some(1)),
                    ensemble((7 << COUNTER_BITS) | u64::from(u32::MAX), 2, None),
                ],
                state: Some(state),
            },
        ];
        for list in lists {
            let log = to_map(&list).expect("goes into the map");
            assert_eq!(from_map(&log), Ok(list));
        }
        let id = EnsembleId {
            epoch: Epoch(u64::MAX),
            counter: 1,
        };
        assert!(number_of(id).is_err());
        let endless = VolumeList {
            ensembles: vec![ensemble(1, 1, Some(u64::MAX))],
            state: None,
        };
        assert!(to_map(&endless).is_err());
    }
    #[test]
    fn a_range_that_ends_too_early_is_noticed() {
        let test: fn() = lists_come_back_from_the_map;
        assert!(planted::is_noticed_by(Bug::AgreedRangeEndsOneEarlier, test));
    }
}
