//! What has how much of the memory, by name.
//!
//! Owns: the names, which are the `part` of `cairn_memory_bytes`. Must not know: how a part is counted.

use parking_lot::RwLock;

/// Tells how many bytes of memory a part has now. It may be called ten times in a second, from any thread, and waits for nobody.
pub type Meter = Box<dyn Fn() -> u64 + Send + Sync>;

/// The name of what no part counts: the program, stacks, tables, and what allocators keep.
pub const OTHER: &str = "other";

/// All parts that are counted.
#[derive(Default)]
pub struct Meters(RwLock<Vec<(&'static str, Meter)>>);

impl Meters {
    /// Counts another part. A name that is there already gets the other meter.
    pub fn add(&self, name: &'static str, meter: impl Fn() -> u64 + Send + Sync + 'static) {
        let mut meters = self.0.write();
        meters.retain(|(known, _)| *known != name);
        meters.push((name, Box::new(meter)));
    }

    /// What each part has, in the order in which they were added.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let meters = self.0.read();
        meters
            .iter()
            .map(|(name, meter)| (*name, meter()))
            .collect()
    }

    /// What all parts have together.
    pub fn sum(&self) -> u64 {
        let meters = self.0.read();
        meters
            .iter()
            .map(|(_, meter)| meter())
            .fold(0, u64::saturating_add)
    }
}

/// Parts, and as [`OTHER`] what else the process has of `resident_bytes`.
pub fn with_other(
    mut parts: Vec<(&'static str, u64)>,
    resident_bytes: u64,
) -> Vec<(&'static str, u64)> {
    let counted = parts.iter().map(|(_, bytes)| *bytes);
    let counted = counted.fold(0, u64::saturating_add);
    parts.push((OTHER, resident_bytes.saturating_sub(counted)));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_counts_is_told() {
        assert_eq!(with_other(Vec::new(), 7), [(OTHER, 7)]);
        let meters = Meters::default();
        meters.add("dirty", || 1);
        meters.add("caches", || 20);
        meters.add("dirty", || 10);
        assert_eq!(meters.read(), [("caches", 20), ("dirty", 10)]);
        assert_eq!(meters.sum(), 30);
        let all = [("caches", 20), ("dirty", 10), (OTHER, 5)];
        assert_eq!(with_other(meters.read(), 35), all);
        // Memory that was never touched is counted, and the process does not have it.
        let all = with_other(meters.read(), 25);
        assert_eq!(all.last(), Some(&(OTHER, 0)));
        // A counter that was taken from before it was added to is far too high for a moment.
        meters.add("requests", || u64::MAX);
        assert_eq!(meters.sum(), u64::MAX);
        assert_eq!(with_other(meters.read(), 25).last(), Some(&(OTHER, 0)));
    }
}
