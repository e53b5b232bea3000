//! Connections that are there: who gets one when there are as many as there may be.
//!
//! Owns: that nobody keeps all others out by connecting, and who was seen to have an access key. Must not know: requests.
//!
//! A connection is a stranger's until a signature on it was right, or one was lately where it comes from. Strangers have half of all
//! connections, so that whoever holds those keeps out nobody who signs. When there is no room, the oldest stranger of the network that
//! has the most of them makes way for the new connection: who floods closes its own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_forward::network_of;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// One network has at most this part of all connections, and so have strangers together.
const PART: usize = 2;
/// Networks that are remembered, and for how long after the last right signature.
const KNOWN_COUNT_MAX: usize = 4096;
const KNOWN_MAX: Duration = Duration::from_secs(60 * 60);

/// All connections.
pub(crate) struct Crowd {
    count_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The oldest first.
    seats: BTreeMap<u64, Seated>,
    networks: HashMap<IpAddr, Count>,
    stranger_count: usize,
    /// Where a signature was right, and when.
    known: HashMap<IpAddr, Instant>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    all: usize,
    strangers: usize,
}

struct Seated {
    network: IpAddr,
    is_stranger: bool,
    leave: Arc<Notify>,
}

/// One connection, for as long as it is there.
pub(crate) struct Seat {
    crowd: Arc<Crowd>,
    id: u64,
    network: IpAddr,
    leave: Arc<Notify>,
    is_signed: Arc<AtomicBool>,
}

/// Tells that a signature was right: goes with a request.
#[derive(Clone)]
pub(crate) struct Mark {
    crowd: Arc<Crowd>,
    id: u64,
    /// One of the connection: the first right signature is noted, and the end of the connection.
    is_set: Arc<AtomicBool>,
}

impl Crowd {
    pub fn new(count_max: usize) -> Arc<Self> {
        Arc::new(Self {
            count_max: count_max.max(1),
            state: Mutex::default(),
        })
    }

    pub fn count(&self) -> usize {
        self.state.lock().seats.len()
    }

    /// A new connection; `None`: it has to be closed.
    pub fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Seat> {
        let network = network_of(client);
        let part = (self.count_max / PART).max(1);
        let mut state = self.state.lock();
        let is_stranger = !state.knows(network);
        let is_full =
            state.seats.len() >= self.count_max || is_stranger && state.stranger_count >= part;
        let of_network = state.networks.get(&network).copied().unwrap_or_default();
        if of_network.all >= part {
            // It makes way for itself, as far as it can.
            let own = state.oldest_stranger(network)?;
            state.close(own);
        } else if is_full {
            let other = state.most_strangers()?;
            let oldest = state.oldest_stranger(other)?;
            state.close(oldest);
        }
        let id = state.next;
        state.next += 1;
        let leave = Arc::new(Notify::new());
        let seated = Seated {
            network,
            is_stranger,
            leave: Arc::clone(&leave),
        };
        state.seats.insert(id, seated);
        let count = state.networks.entry(network).or_default();
        count.all += 1;
        count.strangers += usize::from(is_stranger);
        state.stranger_count += usize::from(is_stranger);
        Some(Seat {
            crowd: Arc::clone(self),
            id,
            network,
            leave,
            is_signed: Arc::default(),
        })
    }

    fn sign(&self, id: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        // It may have made way.
        let Some(seat) = state.seats.get_mut(&id) else {
            return;
        };
        let network = seat.network;
        if std::mem::take(&mut seat.is_stranger) {
            state.stranger_count -= 1;
            if let Some(count) = state.networks.get_mut(&network) {
                count.strangers -= 1;
            }
        }
        state.remember(network);
    }
}

impl State {
    fn knows(&self, network: IpAddr) -> bool {
        let seen = self.known.get(&network);
        seen.is_some_and(|seen| seen.elapsed() < KNOWN_MAX)
    }

    fn remember(&mut self, network: IpAddr) {
        let is_new = !self.known.contains_key(&network);
        if is_new && self.known.len() >= KNOWN_COUNT_MAX {
            let oldest = self.known.iter().min_by_key(|(_, seen)| **seen);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(network, Instant::now());
    }

    fn most_strangers(&self) -> Option<IpAddr> {
        let most = self.networks.iter().max_by_key(|(_, it)| it.strangers);
        most.map(|(network, _)| *network)
    }

    fn oldest_stranger(&self, network: IpAddr) -> Option<u64> {
        let mut seats = self.seats.iter();
        let oldest = seats.find(|(_, seat)| seat.network == network && seat.is_stranger);
        oldest.map(|(id, _)| *id)
    }

    fn close(&mut self, id: u64) {
        if let Some(seat) = self.remove(id) {
            seat.leave.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Seated> {
        let seat = self.seats.remove(&id)?;
        let strangers = usize::from(seat.is_stranger);
        self.stranger_count -= strangers;
        if let Some(count) = self.networks.get_mut(&seat.network) {
            count.all -= 1;
            count.strangers -= strangers;
            if count.all == 0 {
                self.networks.remove(&seat.network);
            }
        }
        Some(seat)
    }
}

impl Seat {
    /// Told when the connection has to make way.
    pub fn leave(&self) -> Arc<Notify> {
        Arc::clone(&self.leave)
    }

    /// For a request on it.
    pub fn mark(&self) -> Mark {
        Mark {
            crowd: Arc::clone(&self.crowd),
            id: self.id,
            is_set: Arc::clone(&self.is_signed),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.crowd.state.lock();
        // It may have gone before.
        let _ = state.remove(self.id);
        if self.is_signed.load(Ordering::Relaxed) {
            state.remember(self.network);
        }
    }
}

impl Mark {
    /// The signature of the request is right.
    pub fn set(&self) {
        if !self.is_set.swap(true, Ordering::Relaxed) {
            self.crowd.sign(self.id);
        }
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn fill(crowd: &Arc<Crowd>, client: IpAddr, count: usize) -> Vec<Seat> {
        (0..count).filter_map(|_| crowd.enter(client)).collect()
    }

    fn is_there(crowd: &Crowd, seat: &Seat) -> bool {
        crowd.state.lock().seats.contains_key(&seat.id)
    }

    #[tokio::test]
    async fn two_networks_keep_nobody_out() {
        let crowd = Crowd::new(16);
        let (first, second) = (fill(&crowd, at(2), 20), fill(&crowd, at(3), 20));
        assert!(crowd.count() <= 16);
        // Who comes first is let in, and is known once it has signed.
        let own = crowd.enter(at(4)).unwrap();
        own.mark().set();
        let _third = fill(&crowd, at(2), 100);
        let _fourth = fill(&crowd, at(3), 100);
        assert!(is_there(&crowd, &own));
        let more = fill(&crowd, at(4), 7);
        assert_eq!(more.len(), 7);
        assert!(more.iter().all(|seat| is_there(&crowd, seat)));
        assert!(crowd.count() <= 16);
        // Those that made way are told.
        let oldest = first
            .iter()
            .chain(&second)
            .find(|seat| !is_there(&crowd, seat));
        oldest.unwrap().leave().notified().await;
    }

    #[test]
    fn counts_come_back() {
        let crowd = Crowd::new(4);
        {
            let seats = fill(&crowd, at(2), 10);
            assert_eq!((seats.len(), crowd.count()), (10, 2));
            seats[9].mark().set();
            // Twice is once.
            seats[9].mark().set();
            // It has made way, and is no more.
            seats[0].mark().set();
            let state = crowd.state.lock();
            assert_eq!((state.stranger_count, state.known.len()), (1, 1));
        }
        let state = crowd.state.lock();
        assert!(state.seats.is_empty() && state.networks.is_empty());
        assert_eq!(state.stranger_count, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_signed_is_remembered_for_a_while() {
        let crowd = Crowd::new(4);
        crowd.enter(at(2)).unwrap().mark().set();
        let known = [at(2), at(3)].map(|network| crowd.state.lock().knows(network));
        assert_eq!(known, [true, false]);
        // Those who are known and stay make way for nobody.
        let seats = fill(&crowd, at(2), 3);
        assert_eq!(seats.len(), 2);
        tokio::time::advance(KNOWN_MAX).await;
        assert!(!crowd.state.lock().knows(at(2)));
        let mut state = State::default();
        for number in 0..KNOWN_COUNT_MAX as u32 + 10 {
            state.remember(IpAddr::from(number.to_be_bytes()));
        }
        assert_eq!(state.known.len(), KNOWN_COUNT_MAX);
    }
}
