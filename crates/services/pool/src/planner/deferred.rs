//! Segments that something failed for, which are left alone for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_base::{SegmentId, VolumeId};

/// What failed is not tried again for so long.
pub const RETRY_AFTER: Duration = Duration::from_secs(30);
/// The longest, for what is tried less and less often.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(15 * 60);

/// What has to be expected of the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// It may go well any time, and costs little.
    Open,
    /// It fails again, most likely, and costs a pass over all extents of a volume: the time doubles with each.
    Poor,
}

/// Why something is left alone. What holds up many comes before what is told of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Many(String),
    Segment(String),
}

impl Reason {
    pub fn into_text(self) -> String {
        match self {
            Self::Many(why) | Self::Segment(why) => why,
        }
    }
}

struct Deferral {
    until: Duration,
    delay: Duration,
    why: Reason,
}

#[derive(Default)]
pub struct DeferredSegments(BTreeMap<(VolumeId, SegmentId), Deferral>);

impl DeferredSegments {
    /// Leaves a segment alone from `now` on, because of `why`. One that is left alone already failed only once.
    pub fn add(
        &mut self,
        (volume, segment): (VolumeId, SegmentId),
        now: Duration,
        prospect: Prospect,
        why: Reason,
    ) {
        let key = (volume, segment);
        let delay = match self.0.get(&key) {
            Some(old) if old.until > now => return,
            Some(old) if prospect == Prospect::Poor => (2 * old.delay).min(RETRY_AFTER_MAX),
            _ => RETRY_AFTER,
        };
        let until = now + delay;
        self.0.insert(key, Deferral { until, delay, why });
    }

    pub fn has(&self, volume: VolumeId, segment: SegmentId, now: Duration) -> bool {
        let deferral = self.0.get(&(volume, segment));
        deferral.is_some_and(|it| it.until > now)
    }

    /// Whether something failed for it since it was last known to need nothing.
    pub fn has_failed(&self, volume: VolumeId, segment: SegmentId) -> bool {
        self.0.contains_key(&(volume, segment))
    }

    /// Why things are left alone, each reason once, and what holds up many first.
    pub fn reasons(&self, now: Duration) -> BTreeSet<Reason> {
        let waiting = self.0.values().filter(|it| it.until > now);
        waiting.map(|it| it.why.clone()).collect()
    }

    /// Forgets all that nothing has to be done for any more.
    pub fn keep(&mut self, wanted: &BTreeSet<(VolumeId, SegmentId)>) {
        self.0.retain(|key, _| wanted.contains(key));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);
    const SEGMENT: SegmentId = SegmentId(2);

    /// Seconds from each failure to the next try, when every try fails.
    fn delays(
        deferred: &mut DeferredSegments,
        now: &mut Duration,
        prospect: Prospect,
        count: usize,
    ) -> Vec<u64> {
        let once = |_| {
            deferred.add(
                (VOLUME, SEGMENT),
                *now,
                prospect,
                Reason::Many("bad".to_owned()),
            );
            let failed_at = *now;
            while deferred.has(VOLUME, SEGMENT, *now) {
                *now += Duration::from_secs(1);
            }
            (*now - failed_at).as_secs()
        };
        (0..count).map(once).collect()
    }

    #[test]
    fn what_may_go_well_is_tried_as_often_as_at_first() {
        let mut deferred = DeferredSegments::default();
        let mut now = Duration::ZERO;
        let got = delays(&mut deferred, &mut now, Prospect::Open, 4);
        assert_eq!(got, [30; 4]);
    }

    #[test]
    fn why_is_told_while_it_waits() {
        let mut deferred = DeferredSegments::default();
        let of_one: fn(String) -> Reason = Reason::Segment;
        let of_many: fn(String) -> Reason = Reason::Many;
        let cases = [
            (1, of_one, "bad"),
            (2, of_many, "worse"),
            (3, of_one, "bad"),
        ];
        for (segment, reason, why) in cases {
            let key = (VOLUME, SegmentId(segment));
            deferred.add(key, Duration::ZERO, Prospect::Open, reason(why.to_owned()));
        }
        let reasons = deferred.reasons(Duration::ZERO).into_iter();
        let reasons: Vec<String> = reasons.map(Reason::into_text).collect();
        assert_eq!(reasons, ["worse", "bad"]);
        assert!(deferred.reasons(RETRY_AFTER).is_empty());
    }

    #[test]
    fn what_fails_again_and_again_waits_longer_until_a_limit() {
        let mut deferred = DeferredSegments::default();
        let mut now = Duration::ZERO;
        let got = delays(&mut deferred, &mut now, Prospect::Poor, 8);
        assert_eq!(got, [30, 60, 120, 240, 480, 900, 900, 900]);
        assert!(!deferred.has(VOLUME, SegmentId(3), Duration::ZERO));
        deferred.keep(&BTreeSet::from([(VOLUME, SEGMENT)]));
        assert_eq!(delays(&mut deferred, &mut now, Prospect::Poor, 1), [900]);
        deferred.keep(&BTreeSet::from([(VOLUME, SegmentId(3))]));
        assert_eq!(delays(&mut deferred, &mut now, Prospect::Poor, 2), [30, 60]);
        deferred.clear();
        assert_eq!(delays(&mut deferred, &mut now, Prospect::Poor, 1), [30]);
    }

    /// All shards of one segment that fail in one round are one failure.
    #[test]
    fn what_is_deferred_already_stays_so() {
        let mut deferred = DeferredSegments::default();
        for second in 0..RETRY_AFTER.as_secs() {
            let now = Duration::from_secs(second);
            deferred.add(
                (VOLUME, SEGMENT),
                now,
                Prospect::Poor,
                Reason::Many("bad".to_owned()),
            );
        }
        assert!(deferred.has(VOLUME, SEGMENT, RETRY_AFTER - Duration::from_secs(1)));
        assert!(!deferred.has(VOLUME, SEGMENT, RETRY_AFTER));
    }
}
