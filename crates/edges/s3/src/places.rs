//! Places in memory for what is on its way: who gets one when there are fewer than are wanted.
//!
//! Owns: that no client keeps all others waiting. Must not know: what is done in a place.
//!
//! Who has some takes another only while enough are free for others, so that a place is left for who has none; of those who wait, who
//! has the fewest comes first, and then who came first. Requests without a signature have less of each, and half of all together at
//! the most: addresses cost nothing.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Who has a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An access key, whose signature is right.
    Key(String),
    /// Where a request without one comes from; `None`: the server itself.
    Address(Option<IpAddr>),
}

impl Holder {
    /// So many times as many as are free it may have, and take another.
    fn part(&self) -> usize {
        match self {
            Self::Key(_) => 3,
            Self::Address(_) => 1,
        }
    }

    fn is_stranger(&self) -> bool {
        matches!(self, Self::Address(_))
    }
}

/// All places that there are.
pub struct Places {
    count: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: HashMap<Holder, usize>,
    held_count: usize,
    /// How many of them strangers have.
    stranger_count: usize,
    /// In the order in which they came.
    waiting: BTreeMap<u64, (Holder, oneshot::Sender<Place>)>,
    turn: u64,
}

/// One place, for as long as it is held.
pub struct Place {
    places: Arc<Places>,
    holder: Holder,
}

impl Places {
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            count: count.max(1),
            state: Mutex::default(),
        })
    }

    /// How many are held now.
    pub fn held_count(&self) -> usize {
        self.state.lock().held_count
    }

    /// Waits for a place.
    pub async fn take(self: &Arc<Self>, holder: Holder) -> Option<Place> {
        let place = self.begin(holder);
        // Nobody drops what tells it without telling.
        place.await.ok()
    }

    fn begin(self: &Arc<Self>, holder: Holder) -> oneshot::Receiver<Place> {
        let (to, place) = oneshot::channel();
        let mut state = self.state.lock();
        let turn = state.turn;
        state.turn += 1;
        state.waiting.insert(turn, (holder, to));
        let given_up = self.give(&mut state);
        drop(state);
        // Each takes the lock when it goes.
        drop(given_up);
        place
    }

    /// Gives what is free. Returned are places of those who wait no more.
    fn give(self: &Arc<Self>, state: &mut State) -> Vec<Place> {
        let mut given_up = Vec::new();
        state.waiting.retain(|_, (_, to)| !to.is_closed());
        while let Some(turn) = state.next(self.count) {
            let Some((holder, to)) = state.waiting.remove(&turn) else {
                break;
            };
            state.add(&holder);
            let place = Place {
                places: Arc::clone(self),
                holder,
            };
            if let Err(place) = to.send(place) {
                given_up.push(place);
            }
        }
        given_up
    }
}

impl State {
    fn held_by(&self, holder: &Holder) -> usize {
        self.held.get(holder).copied().unwrap_or(0)
    }

    fn may_take(&self, holder: &Holder, count: usize) -> bool {
        let free = count.saturating_sub(self.held_count);
        let has_room = self.held_by(holder) < free.saturating_mul(holder.part());
        let strangers_max = (count / 2).max(1);
        has_room && (!holder.is_stranger() || self.stranger_count < strangers_max)
    }

    /// Whose turn it is.
    fn next(&self, count: usize) -> Option<u64> {
        let may = self
            .waiting
            .iter()
            .filter(|(_, (holder, _))| self.may_take(holder, count));
        let first = may.min_by_key(|(turn, (holder, _))| (self.held_by(holder), **turn));
        first.map(|(turn, _)| *turn)
    }

    fn add(&mut self, holder: &Holder) {
        *self.held.entry(holder.clone()).or_default() += 1;
        self.held_count += 1;
        self.stranger_count += usize::from(holder.is_stranger());
    }

    fn remove(&mut self, holder: &Holder) {
        if let Some(count) = self.held.get_mut(holder) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(holder);
            }
            self.held_count -= 1;
            self.stranger_count -= usize::from(holder.is_stranger());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        state.remove(&self.holder);
        let given_up = self.places.give(&mut state);
        drop(state);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Holder {
        Holder::Key(name.to_owned())
    }

    fn address(last: u8) -> Holder {
        Holder::Address(Some(IpAddr::from([127, 0, 0, last])))
    }

    /// Asks for many places at once, and returns those that are given and who waits.
    fn ask(
        places: &Arc<Places>,
        holder: &Holder,
        count: usize,
    ) -> (Vec<Place>, Vec<oneshot::Receiver<Place>>) {
        let (mut given, mut waiting) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut place = places.begin(holder.clone());
            match place.try_recv() {
                Ok(place) => given.push(place),
                Err(_) => waiting.push(place),
            }
        }
        (given, waiting)
    }

    #[test]
    fn nobody_keeps_all_others_out() {
        // Who comes one after the other, and how many places each is given of sixteen.
        let cases: &[(&str, &[Holder], &[usize])] = &[
            ("one key", &[key("a"), key("b")], &[12, 3]),
            ("two keys", &[key("a"), key("b"), key("c")], &[12, 3, 1]),
            ("strangers", &[address(2), address(3), key("a")], &[8, 0, 6]),
            ("a stranger last", &[key("a"), address(2)], &[12, 2]),
        ];
        for (name, holders, want) in cases {
            let places = Places::new(16);
            let mut held = Vec::new();
            for holder in *holders {
                held.push(ask(&places, holder, 100));
            }
            let got: Vec<usize> = held.iter().map(|(given, _)| given.len()).collect();
            assert_eq!(got, *want, "{name}");
            drop(held);
            drop(ask(&places, &key("last"), 1));
            let state = places.state.lock();
            assert_eq!((state.held_count, state.stranger_count), (0, 0), "{name}");
            assert!(state.held.is_empty() && state.waiting.is_empty(), "{name}");
        }
        // One place is given to anybody.
        for holder in [key("a"), address(2)] {
            let places = Places::new(1);
            let (given, waiting) = ask(&places, &holder, 2);
            assert_eq!((given.len(), waiting.len()), (1, 1));
        }
    }

    #[test]
    fn who_has_the_fewest_comes_first() {
        let places = Places::new(4);
        let (mut hog, mut hog_waits) = ask(&places, &key("hog"), 10);
        assert_eq!(hog.len(), 3);
        let (last, _) = ask(&places, &key("last"), 1);
        let (_, mut other_waits) = ask(&places, &key("other"), 1);
        assert_eq!((last.len(), other_waits.len()), (1, 1));
        hog.pop();
        let other = other_waits[0].try_recv();
        assert!(other.is_ok() && hog_waits.iter_mut().all(|place| place.try_recv().is_err()));
        // Who waits no more is passed over, and what it was given is free again.
        hog_waits.clear();
        drop((hog, last, other));
        let (given, _) = ask(&places, &key("new"), 10);
        assert_eq!(given.len(), 3);
    }

    #[tokio::test]
    async fn a_place_is_waited_for() {
        let places = Places::new(1);
        let first = places.take(key("a")).await;
        assert!(first.is_some());
        let second = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(key("b")).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        assert!(second.await.unwrap());
    }
}
