//! The heaviest of any number of keys, in a fixed number of counters: Space-Saving.
//!
//! Owns: which key has a counter, and how far its weight may be wrong. Must not know: what keys and weights are.
//!
//! A key without a counter takes that of the lightest key, and its weight with it as a possible error. So with `n` counters
//! each key of more than an n-th of all weight has one, and no counter says less than its key's true weight. The count
//! since a key has its counter is a lower bound.
//!
//! Source: Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams (2005).

/// Counters of one sketch.
pub const COUNTER_COUNT: usize = 64;
/// Where a key was found the last time, by some bits of its hash: most requests are for what others were just for.
const HINT_COUNT: usize = 256;
const _: () = assert!(COUNTER_COUNT <= 1 << u8::BITS);

/// A key with its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter<K, V> {
    pub key: K,
    /// At least what there was of the key, at most `error` more.
    pub weight: u64,
    /// What others may have had of the weight.
    pub error: u64,
    /// Counts since the key has this counter.
    pub value: V,
}

pub struct Sketch<K, V> {
    /// A part of each hash, beside the counters, so that a search reads few cache lines and compares many at a time.
    tags: [u32; COUNTER_COUNT],
    weights: [u64; COUNTER_COUNT],
    counters: Vec<SketchEntry<K, V>>,
    hints: [u8; HINT_COUNT],
    /// No counter before this one is as light as `lightest`.
    next: usize,
    /// The least weight, as of when it was looked for. Weights only grow.
    lightest: u64,
    is_complete: bool,
}

struct SketchEntry<K, V> {
    key: K,
    error: u64,
    value: V,
}

impl<K, V> Default for Sketch<K, V> {
    fn default() -> Self {
        Self {
            tags: [0; COUNTER_COUNT],
            weights: [0; COUNTER_COUNT],
            counters: Vec::with_capacity(COUNTER_COUNT),
            hints: [0; HINT_COUNT],
            next: COUNTER_COUNT,
            lightest: 0,
            is_complete: true,
        }
    }
}

impl<K: Eq + Clone, V: Default> Sketch<K, V> {
    /// Adds to the weight of a key; the caller changes the returned counts. `hash` is always the same for a key.
    pub fn add(&mut self, hash: u64, key: &K, weight: u64) -> &mut V {
        let at = self.place(hash, key);
        self.weights[at] = self.weights[at].saturating_add(weight);
        &mut self.counters[at].value
    }

    /// The counter of a key; another one loses its own for it if there is no other way.
    fn place(&mut self, hash: u64, key: &K) -> usize {
        let (hint, tag) = (hash as usize % HINT_COUNT, (hash >> 32) as u32);
        let hinted = usize::from(self.hints[hint]);
        if self.is_at(hinted, tag, key) {
            return hinted;
        }
        let at = match self.find(tag, key) {
            Some(at) => at,
            None => self.give(tag, key),
        };
        // `at` is below COUNTER_COUNT, which a byte can say.
        self.hints[hint] = at as u8;
        at
    }

    fn is_at(&self, at: usize, tag: u32, key: &K) -> bool {
        let counter = self.counters.get(at);
        counter.is_some_and(|counter| self.tags[at] == tag && counter.key == *key)
    }

    fn find(&self, tag: u32, key: &K) -> Option<usize> {
        // All of them, and without a branch in between: a search that finds nothing is done many at a time.
        let mut same = 0;
        for at in &self.tags {
            same |= u32::from(*at == tag);
        }
        if same == 0 {
            return None;
        }
        (0..self.counters.len()).find(|at| self.is_at(*at, tag, key))
    }

    fn give(&mut self, tag: u32, key: &K) -> usize {
        let count = self.counters.len();
        if count < COUNTER_COUNT {
            self.counters.push(SketchEntry {
                key: key.clone(),
                error: 0,
                value: V::default(),
            });
            (self.tags[count], self.weights[count]) = (tag, 0);
            return count;
        }
        let at = self.lightest();
        // Field by field: a value that is made elsewhere and copied here makes the processor wait.
        let counter = &mut self.counters[at];
        counter.key.clone_from(key);
        counter.error = self.weights[at];
        counter.value = V::default();
        self.tags[at] = tag;
        self.is_complete = false;
        at
    }

    /// One of the counters of the least weight. Those that come once and go are given one counter after the other, so most
    /// searches end where they begin.
    fn lightest(&mut self) -> usize {
        loop {
            while let Some(weight) = self.weights.get(self.next) {
                if *weight <= self.lightest {
                    return self.next;
                }
                self.next += 1;
            }
            self.lightest = self.weights.iter().copied().min().unwrap_or_default();
            self.next = 0;
        }
    }
}

impl<K, V> Sketch<K, V> {
    /// All counters, in no order.
    pub fn counters(&self) -> impl Iterator<Item = Counter<&K, &V>> {
        let counters = self.counters.iter().zip(&self.weights);
        counters.map(|(counter, weight)| Counter {
            key: &counter.key,
            weight: *weight,
            error: counter.error,
            value: &counter.value,
        })
    }

    /// The most weight that a key without a counter can have.
    pub fn weight_without_counter_max(&self) -> u64 {
        match self.is_complete {
            true => 0,
            false => self.weights.iter().copied().min().unwrap_or_default(),
        }
    }

    /// Whether each key ever added has its counter, with all that there was of it.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// What it takes beside itself, without what keys point to.
    #[cfg(test)]
    pub fn heap_len_bytes(&self) -> usize {
        self.counters.capacity() * size_of::<SketchEntry<K, V>>()
    }

    /// As if nothing had been added, in the memory that it has.
    pub fn clear(&mut self) {
        self.counters.clear();
        (self.next, self.lightest) = (COUNTER_COUNT, 0);
        self.is_complete = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    type Counted = Sketch<u64, u64>;

    fn add(sketch: &mut Counted, key: u64, weight: u64) {
        *sketch.add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), &key, weight) += weight;
    }

    /// What the paper proves, against exact counts.
    fn check(sketch: &Counted, exact: &HashMap<u64, u64>) {
        let total: u64 = exact.values().sum();
        let counters: Vec<_> = sketch.counters().collect();
        assert!(counters.len() <= COUNTER_COUNT);
        assert_eq!(
            counters.iter().map(|counter| counter.weight).sum::<u64>(),
            total,
            "no weight is lost"
        );
        let mut found = HashMap::new();
        for counter in &counters {
            let truth = exact[counter.key];
            assert!(counter.weight >= truth, "{counter:?} of {truth}");
            assert!(*counter.value <= truth, "{counter:?} of {truth}");
            assert_eq!(counter.weight - counter.error, *counter.value);
            assert!(found.insert(*counter.key, counter.weight).is_none());
        }
        for (key, truth) in exact.iter().filter(|(key, _)| !found.contains_key(*key)) {
            assert!(*truth <= sketch.weight_without_counter_max(), "{key}");
            assert!(*truth <= total / COUNTER_COUNT as u64, "{key}");
        }
        assert_eq!(sketch.is_complete(), exact.len() <= COUNTER_COUNT);
    }

    proptest! {
        #[test]
        fn it_is_as_near_to_exact_counts_as_it_says(
            added in prop::collection::vec((0u64..200, 1u64..1000), 0..2000),
            heavy in 0u64..200,
            heavy_weight in 0u64..100_000,
        ) {
            let (mut sketch, mut exact) = (Counted::default(), HashMap::new());
            for (at, (key, weight)) in added.into_iter().enumerate() {
                let (key, weight) = match at % 5 {
                    0 => (heavy, heavy_weight + 1),
                    _ => (key, weight),
                };
                add(&mut sketch, key, weight);
                *exact.entry(key).or_default() += weight;
            }
            check(&sketch, &exact);
        }
    }

    #[test]
    fn one_more_key_than_counters_is_said() {
        let (mut sketch, mut exact) = (Counted::default(), HashMap::new());
        for key in 0..COUNTER_COUNT as u64 {
            add(&mut sketch, key, key + 1);
            exact.insert(key, key + 1);
        }
        check(&sketch, &exact);
        assert!(sketch.is_complete());
        add(&mut sketch, 1000, 10);
        exact.insert(1000, 10);
        check(&sketch, &exact);
        let taken = sketch.counters().find(|counter| *counter.key == 1000);
        let taken = taken.map(|counter| (counter.weight, counter.error, *counter.value));
        assert_eq!(taken, Some((11, 1, 10)));
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut sketch = Counted::default();
        for key in [1, 2, 1, 2, 2] {
            *sketch.add(7, &key, 1) += 1;
        }
        let mut counted: Vec<_> = sketch.counters().map(|it| (*it.key, *it.value)).collect();
        counted.sort_unstable();
        assert_eq!(counted, [(1, 2), (2, 3)]);
    }

    #[test]
    fn what_is_cleared_is_as_new() {
        let mut sketch = Counted::default();
        (0..1000).for_each(|key| add(&mut sketch, key, 5));
        sketch.clear();
        check(&sketch, &HashMap::new());
        add(&mut sketch, 3, 2);
        check(&sketch, &HashMap::from([(3, 2)]));
    }
}
