//! Connections that are there: who gets one when there are as many as there may be.
//!
//! Owns: how many connections each network has, where somebody has proven who they are, which connection makes way for which.
//! Must not know: any protocol, how a client proves who it is.
//!
//! A connection is open until its client has proven who it is, and settled from then on. Open connections make way for new ones; settled
//! connections make way for none. An open one is that of an unauthorized client (`stranger` in names),
//! unless somebody has proven before from the same network who they are. Unauthorized clients have half of all connections, so that they
//! keep out no authorized one. When there is no room, the oldest open connection makes way, from the network that has the most of them,
//! of unauthorized clients or of known networks, whichever have more: a client that floods closes its own.
//!
//! One client, from however many networks, settles at most as many connections as are left to others: half of all, if it comes
//! first. Its further ones stay open, and count as unauthorized.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::env::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::door::network_of;

/// Unauthorized clients have at most this part of all connections.
const STRANGERS_PART: usize = 2;

/// The bounds of a crowd.
#[derive(Clone, Copy, Debug)]
pub struct CrowdRules {
    /// Connections at the same time; at least one is let in.
    pub count_max: usize,
    /// Of these, from one network; at least one.
    pub per_network_max: usize,
    /// Networks that are remembered. The one whose last proof is the oldest is forgotten first.
    pub known_count_max: usize,
    /// How long a network is remembered; `None`: as long as there is room.
    pub known_for: Option<Duration>,
}

impl CrowdRules {
    fn strangers_max(&self) -> usize {
        (self.count_max / STRANGERS_PART).max(1)
    }
}

/// All connections.
pub struct Crowd {
    rules: CrowdRules,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The oldest first.
    seats: BTreeMap<u64, Seated>,
    /// How many connections each network has.
    networks: HashMap<IpAddr, usize>,
    stranger_count: usize,
    settled_count: usize,
    /// How many settled connections each client has that has any, by its name.
    clients: HashMap<Arc<str>, usize>,
    /// Where somebody has proven who they are.
    known: HashMap<IpAddr, Proof>,
    next_proof: u64,
}

/// The last proof from a network.
#[derive(Clone, Copy)]
struct Proof {
    order: u64,
    /// By the clock that never steps back.
    at: Duration,
}

struct Seated {
    network: IpAddr,
    /// Somebody had proven there who they are before it came.
    is_known: bool,
    /// It makes way for nobody.
    is_settled: bool,
    /// Whom it counts for, once it is settled, if that was proven.
    client: Option<Arc<str>>,
    leave: Arc<Notify>,
}

impl Seated {
    fn is_stranger(&self) -> bool {
        !self.is_known && !self.is_settled
    }
}

/// What came of a connection that wanted to be let in.
pub struct Entered {
    /// `None`: there is no place for it.
    pub seat: Option<Seat>,
    /// Connections that made way for it.
    pub closed_count: usize,
}

/// One connection, for as long as it is there.
pub struct Seat {
    crowd: Arc<Crowd>,
    id: u64,
    network: IpAddr,
    leave: Arc<Notify>,
    shown: Arc<ClientIdentity>,
}

/// What the client of a connection has shown of itself.
#[derive(Default)]
struct ClientIdentity {
    /// The first name that was proven.
    client: OnceLock<Arc<str>>,
    /// Its network is to be remembered when the connection ends.
    is_remembered: AtomicBool,
}

/// What came of a connection that is to make way for nobody any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Stays,
    /// It made way for another before, and ends.
    MadeWay,
    /// Its client has its share of all connections: this one stays open, as that of an unauthorized client.
    TooMany,
}

/// Tells that the client of a connection has proven who it is: goes with a request.
#[derive(Clone)]
pub struct Mark {
    crowd: Arc<Crowd>,
    id: u64,
    shown: Arc<ClientIdentity>,
}

impl Crowd {
    pub fn new(rules: CrowdRules, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            rules,
            clock,
            state: Mutex::default(),
        })
    }

    /// How many connections are there.
    pub fn count(&self) -> usize {
        self.state.lock().seats.len()
    }

    /// A new connection. Others may have to make way for it, which are told so and count no more.
    pub fn enter(self: &Arc<Self>, client: IpAddr) -> Entered {
        let network = network_of(client);
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let is_known = state.knows(network, self.rules.known_for, now);
        let before = state.seats.len();
        let has_room = state.make_room(&self.rules, network, is_known).is_some();
        let closed_count = before.saturating_sub(state.seats.len());
        let seat = has_room.then(|| {
            let (id, leave) = state.seat(network, is_known);
            Seat {
                crowd: Arc::clone(self),
                id,
                network,
                leave,
                shown: Arc::default(),
            }
        });
        Entered { seat, closed_count }
    }

    /// A connection makes way for nobody from now on. `client`: who has proven in it who they are.
    fn settle(&self, id: u64, client: Option<&str>) -> Settled {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let Some(network) = state.network_of(id) else {
            return Settled::MadeWay;
        };
        if !state.settle(id, client, self.rules.count_max.max(1)) {
            return Settled::TooMany;
        }
        if client.is_some() {
            state.remember(network, now, self.rules.known_count_max);
        }
        Settled::Stays
    }
}

impl State {
    fn knows(&self, network: IpAddr, known_for: Option<Duration>, now: Duration) -> bool {
        let proof = self.known.get(&network);
        proof.is_some_and(|proof| {
            known_for.is_none_or(|known_for| now.saturating_sub(proof.at) < known_for)
        })
    }

    fn remember(&mut self, network: IpAddr, now: Duration, count_max: usize) {
        let is_new = !self.known.contains_key(&network);
        if is_new && self.known.len() >= count_max {
            let oldest = self.known.iter().min_by_key(|(_, proof)| proof.order);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.known.remove(&oldest);
            }
        }
        let proof = Proof {
            order: self.next_proof,
            at: now,
        };
        self.next_proof += 1;
        self.known.insert(network, proof);
    }

    /// Closes what makes way for a new connection; `None`: there is no place for it all the same.
    fn make_room(&mut self, rules: &CrowdRules, network: IpAddr, is_known: bool) -> Option<()> {
        let of_network = self.networks.get(&network).copied().unwrap_or_default();
        if of_network >= rules.per_network_max.max(1) {
            // It makes way for itself, as far as it can.
            let own = self.oldest(|seat| seat.network == network && !seat.is_settled)?;
            self.close(own);
        }
        if !is_known && self.stranger_count >= rules.strangers_max() {
            let stranger = self.oldest_of_most(Seated::is_stranger)?;
            self.close(stranger);
        }
        if self.seats.len() >= rules.count_max.max(1) {
            let one = self.oldest_open()?;
            self.close(one);
        }
        Some(())
    }

    /// Counts a connection: its number, and what tells it that it has to make way.
    fn seat(&mut self, network: IpAddr, is_known: bool) -> (u64, Arc<Notify>) {
        let (id, leave) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        let seated = Seated {
            network,
            is_known,
            is_settled: false,
            client: None,
            leave: Arc::clone(&leave),
        };
        self.stranger_count += usize::from(seated.is_stranger());
        self.seats.insert(id, seated);
        *self.networks.entry(network).or_default() += 1;
        (id, leave)
    }

    /// Where a connection comes from; `None`: it made way before.
    fn network_of(&self, id: u64) -> Option<IpAddr> {
        self.seats.get(&id).map(|seat| seat.network)
    }

    /// Whether a connection, which is there, makes way for nobody any more. Otherwise its client has too many, and it counts as unauthorized.
    fn settle(&mut self, id: u64, client: Option<&str>, count_max: usize) -> bool {
        let left_count = count_max.saturating_sub(self.settled_count);
        let own_count = |client: &str| self.clients.get(client).copied().unwrap_or_default();
        let is_too_many = client.is_some_and(|client| own_count(client) >= left_count);
        let Some(seat) = self.seats.get_mut(&id) else {
            return false;
        };
        if seat.is_settled {
            return true;
        }
        let was_stranger = seat.is_stranger();
        if is_too_many {
            seat.is_known = false;
            self.stranger_count += usize::from(!was_stranger);
            return false;
        }
        seat.is_settled = true;
        seat.client = client.map(Arc::from);
        if let Some(client) = &seat.client {
            *self.clients.entry(Arc::clone(client)).or_default() += 1;
        }
        self.settled_count += 1;
        self.stranger_count -= usize::from(was_stranger);
        true
    }

    fn oldest(&self, holds: impl Fn(&Seated) -> bool) -> Option<u64> {
        let mut seats = self.seats.iter();
        let oldest = seats.find(|(_, seat)| holds(seat));
        oldest.map(|(id, _)| *id)
    }

    /// The connection that makes way where there is no room at all: of unauthorized clients, unless known networks have more open ones.
    fn oldest_open(&self) -> Option<u64> {
        let known_count = self.seats.len() - self.settled_count - self.stranger_count;
        match known_count > self.stranger_count {
            true => self.oldest_of_most(|seat| seat.is_known && !seat.is_settled),
            false => self.oldest_of_most(Seated::is_stranger),
        }
    }

    /// The oldest such connection of the network with the most of them; of several, the one whose oldest has been there for longest.
    fn oldest_of_most(&self, is_such: impl Fn(&Seated) -> bool) -> Option<u64> {
        let mut counts: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (id, seat) in &self.seats {
            if is_such(seat) {
                counts.entry(seat.network).or_insert((0, *id)).0 += 1;
            }
        }
        let most = counts
            .into_values()
            .max_by_key(|(count, oldest)| (*count, Reverse(*oldest)));
        most.map(|(_, oldest)| oldest)
    }

    /// Has a connection end. Its place is free at once.
    fn close(&mut self, id: u64) {
        if let Some(seat) = self.remove(id) {
            seat.leave.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Seated> {
        let seat = self.seats.remove(&id)?;
        self.stranger_count -= usize::from(seat.is_stranger());
        self.settled_count -= usize::from(seat.is_settled);
        if let Some(client) = &seat.client
            && let Some(count) = self.clients.get_mut(client)
        {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(client);
            }
        }
        if let Some(count) = self.networks.get_mut(&seat.network) {
            *count -= 1;
            if *count == 0 {
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

    /// Ready when the connection has to make way.
    pub async fn makes_way(&self) {
        self.leave.notified().await;
    }

    /// For a request on it.
    pub fn mark(&self) -> Mark {
        Mark {
            crowd: Arc::clone(&self.crowd),
            id: self.id,
            shown: Arc::clone(&self.shown),
        }
    }

    /// The connection makes way for nobody from now on. `client` is who has proven here who they are, if somebody has: it counts for
    /// their share, and its network is remembered.
    pub fn settle(&self, client: Option<&str>) -> Settled {
        match client {
            Some(client) => self.mark().prove(client),
            None => self.crowd.settle(self.id, None),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let now = self.crowd.clock.monotonic();
        let mut state = self.crowd.state.lock();
        // It may have gone before.
        let _ = state.remove(self.id);
        if self.shown.is_remembered.load(Ordering::Relaxed) {
            state.remember(self.network, now, self.crowd.rules.known_count_max);
        }
    }
}

impl Mark {
    /// The client has proven who it is, by this name.
    pub fn set(&self, client: &str) {
        // One that has too many is looked at again with its next proof: others may have ended.
        if !self.shown.is_remembered.load(Ordering::Relaxed) {
            self.prove(client);
        }
    }

    fn prove(&self, client: &str) -> Settled {
        self.shown.client.get_or_init(|| Arc::from(client));
        let settled = self.crowd.settle(self.id, Some(client));
        // What made way meanwhile is remembered when it ends.
        if settled != Settled::TooMany {
            self.shown.is_remembered.store(true, Ordering::Relaxed);
        }
        settled
    }

    /// The first name that was proven on the connection.
    pub fn who(&self) -> Option<&str> {
        self.shown.client.get().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::ManualClock;

    use super::*;

    const KNOWN_COUNT_MAX: usize = 1024;
    const KNOWN_FOR: Duration = Duration::from_secs(3600);

    /// As S3 has them: a client may prove who it is with any request.
    fn by_request(count_max: usize) -> CrowdRules {
        CrowdRules {
            count_max,
            per_network_max: count_max / 2,
            known_count_max: KNOWN_COUNT_MAX,
            known_for: Some(KNOWN_FOR),
        }
    }

    /// As iSCSI has them: each connection begins with a login.
    const BY_LOGIN: CrowdRules = CrowdRules {
        count_max: 8,
        per_network_max: 4,
        known_count_max: KNOWN_COUNT_MAX,
        known_for: None,
    };

    fn crowd(rules: CrowdRules) -> Arc<Crowd> {
        Crowd::new(rules, Arc::new(ManualClock::default()))
    }

    fn at(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn enter(crowd: &Arc<Crowd>, client: IpAddr) -> Seat {
        crowd.enter(client).seat.unwrap()
    }

    fn fill(crowd: &Arc<Crowd>, client: IpAddr, count: usize) -> Vec<Seat> {
        let entered = (0..count).map(|_| crowd.enter(client));
        entered.filter_map(|entered| entered.seat).collect()
    }

    fn is_there(crowd: &Crowd, seat: &Seat) -> bool {
        crowd.state.lock().seats.contains_key(&seat.id)
    }

    fn knows(crowd: &Crowd, client: IpAddr) -> bool {
        let now = crowd.clock.monotonic();
        let state = crowd.state.lock();
        state.knows(client, crowd.rules.known_for, now)
    }

    /// The name of the client at an address.
    fn name(last: u8) -> String {
        format!("client {last}")
    }

    /// A connection from an address whose client proves at once who it is.
    fn logged_in(crowd: &Arc<Crowd>, last: u8) -> Seat {
        let seat = enter(crowd, at(last));
        assert_eq!(seat.settle(Some(&name(last))), Settled::Stays);
        seat
    }

    #[tokio::test]
    async fn two_networks_keep_nobody_out() {
        let crowd = crowd(by_request(16));
        let (first, second) = (fill(&crowd, at(2), 20), fill(&crowd, at(3), 20));
        assert!(crowd.count() <= 16);
        // Who comes first is let in, and is known once it has signed.
        let own = enter(&crowd, at(4));
        own.mark().set("own");
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
        oldest.unwrap().makes_way().await;
    }

    #[test]
    fn counts_come_back() {
        let crowd = crowd(by_request(4));
        {
            let seats = fill(&crowd, at(2), 10);
            assert_eq!((seats.len(), crowd.count()), (10, 2));
            seats[9].mark().set("own");
            // Twice is once.
            seats[9].mark().set("own");
            // It has made way, and is no more.
            seats[0].mark().set("own");
            let state = crowd.state.lock();
            assert_eq!((state.stranger_count, state.settled_count), (1, 1));
            assert_eq!((state.clients.len(), state.known.len()), (1, 1));
        }
        let state = crowd.state.lock();
        assert!(state.seats.is_empty() && state.networks.is_empty() && state.clients.is_empty());
        assert_eq!((state.stranger_count, state.settled_count), (0, 0));
    }

    #[test]
    fn who_proved_it_is_remembered_for_a_while() {
        let clock = ManualClock::default();
        let crowd = Crowd::new(by_request(4), Arc::new(clock.clone()));
        enter(&crowd, at(2)).mark().set("own");
        assert_eq!([at(2), at(3)].map(|at| knows(&crowd, at)), [true, false]);
        clock.advance(KNOWN_FOR);
        assert!(!knows(&crowd, at(2)));
    }

    #[test]
    fn few_networks_are_remembered() {
        let crowd = crowd(BY_LOGIN);
        let network = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..=u32::try_from(KNOWN_COUNT_MAX).unwrap() {
            let settled = enter(&crowd, network(number)).settle(Some("own"));
            assert_eq!(settled, Settled::Stays);
        }
        assert_eq!(crowd.state.lock().known.len(), KNOWN_COUNT_MAX);
        assert_eq!([0, 1].map(|it| knows(&crowd, network(it))), [false, true]);
    }

    #[test]
    fn the_oldest_stranger_of_the_most_crowded_network_makes_way() {
        let crowd = crowd(BY_LOGIN);
        let few = enter(&crowd, at(1));
        let many = fill(&crowd, at(2), 3);
        let entered = crowd.enter(at(3));
        assert_eq!(entered.closed_count, 1);
        let new = entered.seat.unwrap();
        assert_eq!(many[0].settle(None), Settled::MadeWay);
        for (index, seat) in [&few, &many[1], &many[2], &new].into_iter().enumerate() {
            assert_eq!(seat.settle(None), Settled::Stays, "{index}");
        }
        assert_eq!(crowd.count(), 4);
    }

    #[test]
    fn strangers_do_not_take_the_places_of_those_who_were_there_before() {
        let crowd = crowd(BY_LOGIN);
        let session = logged_in(&crowd, 1);
        // A flood from many addresses.
        let mut flood: Vec<Seat> = (10..=250).map(|last| enter(&crowd, at(last))).collect();
        assert_eq!(crowd.count(), 1 + BY_LOGIN.strangers_max());
        // The known address has the rest of its own, and no unauthorized client makes one of them end.
        let more = fill(&crowd, at(1), BY_LOGIN.per_network_max - 1);
        assert_eq!(more.len(), BY_LOGIN.per_network_max - 1);
        flood.extend((10..=250).map(|last| enter(&crowd, at(last))));
        for seat in more.iter().chain([&session]) {
            assert_eq!(seat.settle(Some(&name(1))), Settled::Stays);
        }
        // All its places are of sessions now.
        assert!(crowd.enter(at(1)).seat.is_none());
    }

    #[test]
    fn the_known_make_way_until_they_prove_it_again() {
        let crowd = crowd(BY_LOGIN);
        drop(logged_in(&crowd, 1));
        let first = fill(&crowd, at(1), BY_LOGIN.per_network_max);
        assert!(crowd.enter(at(1)).seat.is_some());
        assert!(!is_there(&crowd, &first[0]));
    }

    /// A client that is known at many networks opens connections and proves nothing on them.
    #[test]
    fn known_networks_keep_nobody_out() {
        let crowd = crowd(by_request(16));
        (2..10).for_each(|last| drop(logged_in(&crowd, last)));
        let flood = || -> Vec<Seat> {
            (2..10)
                .flat_map(|last| fill(&crowd, at(last), 20))
                .collect()
        };
        let _open: Vec<Seat> = flood();
        assert_eq!(crowd.count(), 16);
        let own = enter(&crowd, at(99));
        let next: Vec<Seat> = (2..5).map(|last| enter(&crowd, at(last))).collect();
        assert!(
            is_there(&crowd, &own),
            "the one stranger does not make way first"
        );
        own.mark().set("own");
        let _more: Vec<Seat> = flood();
        assert!(is_there(&crowd, &own) && crowd.count() <= 16);
        drop(next);
    }

    /// One client signs on all its connections, from many networks.
    #[test]
    fn one_client_settles_as_many_as_it_leaves_to_others() {
        let crowd = crowd(by_request(16));
        let signed = |last: u8, client: &str| {
            let seat = enter(&crowd, at(last));
            (seat.settle(Some(client)), seat)
        };
        let hog: Vec<(Settled, Seat)> = (0..64).map(|number| signed(number % 8, "hog")).collect();
        let stays = |settled: Settled| hog.iter().filter(|(it, _)| *it == settled).count();
        assert_eq!((stays(Settled::Stays), stays(Settled::TooMany)), (8, 56));
        // Half of what is left for the next one; nobody is kept out, also from an address that nobody knows.
        let other: Vec<(Settled, Seat)> = (0..8).map(|_| signed(99, "other")).collect();
        let stays = other.iter().filter(|(it, _)| *it == Settled::Stays);
        assert_eq!(stays.count(), 4);
        let (third, seat) = signed(100, "third");
        assert_eq!(third, Settled::Stays);
        assert!(
            hog[..8]
                .iter()
                .chain(&other[..4])
                .all(|(_, seat)| is_there(&crowd, seat))
        );
        // Who has too many is settled once others of its connections have ended.
        let waits = enter(&crowd, at(99));
        waits.mark().set("other");
        let open = |crowd: &Crowd| !crowd.state.lock().seats[&waits.id].is_settled;
        assert!(open(&crowd));
        drop((hog, other, seat));
        waits.mark().set("other");
        assert!(!open(&crowd));
    }

    #[test]
    fn who_has_proven_it_makes_way_for_nobody() {
        let crowd = crowd(BY_LOGIN);
        let all: Vec<Seat> = (0..8).map(|last| logged_in(&crowd, last)).collect();
        for client in [at(1), at(99)] {
            let entered = crowd.enter(client);
            assert!(entered.seat.is_none());
            assert_eq!(entered.closed_count, 0);
        }
        drop(all);
        assert_eq!(crowd.count(), 0);
    }
}
