//! Places in memory for objects in transfer: which client gets one when there are too few.
//!
//! Owns: no client keeps all others waiting. Must not know: the use of a place.
//!
//! A client is in several groups, from the widest to the narrowest: for a signed request the volume, the user and the
//! access key; for an anonymous request the group of all anonymous clients and the client's network. Each group takes
//! another place only while enough are free for others, so a wider group leaves places that a narrower one did not.
//! Any number of keys of one user leave some to other users, and any number of users of one volume leave some to
//! other volumes. Among waiting clients, the one whose groups hold the fewest places comes first, and then the one
//! that came first. All anonymous clients together hold fewer places than are free: addresses cost nothing.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cairn_base::VolumeId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The holder of a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An access key with a right signature, and the user of the volume that it acts for.
    Key {
        id: String,
        uid: u32,
        volume: VolumeId,
    },
    /// The address of an anonymous request; `None`: the server itself.
    Address(Option<IpAddr>),
}

/// Maximum number of groups of a holder.
const GROUP_COUNT_MAX: usize = 3;

impl Holder {
    /// The widest first; at most [`GROUP_COUNT_MAX`].
    fn groups(self) -> Arc<[Group]> {
        match self {
            Self::Key { id, uid, volume } => Arc::new([
                Group::Volume(volume),
                Group::User(volume, uid),
                Group::Key(id),
            ]),
            Self::Address(address) => Arc::new([Group::Strangers, Group::Address(address)]),
        }
    }
}

/// Holders with a common share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Volume(VolumeId),
    User(VolumeId, u32),
    Key(String),
    Strangers,
    Address(Option<IpAddr>),
}

/// The places that a group leaves to others. A group without a place is bound by neither number.
struct Share {
    /// It takes another place only while it has less than so many times the free ones.
    part: usize,
    /// At least so many are free after it took another place.
    left_count: usize,
}

impl Group {
    /// A key leaves one place more than its user, so that another key of the user gets one. The user leaves one for
    /// another user and one for an anonymous client; the volume leaves one for another volume.
    fn share(&self) -> Share {
        let (part, left_count) = match self {
            Self::Key(_) => (3, 4),
            Self::User(..) => (7, 3),
            Self::Volume(_) => (15, 1),
            Self::Strangers => (1, 2),
            Self::Address(_) => (1, 0),
        };
        Share { part, left_count }
    }
}

/// All places.
pub struct Places {
    count: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of places of each group that has any.
    held: HashMap<Group, usize>,
    held_count: usize,
    /// In the order of arrival.
    waiting: BTreeMap<u64, (Arc<[Group]>, oneshot::Sender<BufferSlot>)>,
    turn: u64,
}

/// One place, until it is dropped.
pub struct BufferSlot {
    places: Arc<Places>,
    groups: Arc<[Group]>,
}

impl Places {
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            count: count.max(1),
            state: Mutex::default(),
        })
    }

    /// The number of held places.
    pub fn held_count(&self) -> usize {
        self.state.lock().held_count
    }

    /// Waits for a place.
    pub async fn take(self: &Arc<Self>, holder: Holder) -> Option<BufferSlot> {
        let place = self.begin(holder);
        // The sender is never dropped without sending.
        place.await.ok()
    }

    fn begin(self: &Arc<Self>, holder: Holder) -> oneshot::Receiver<BufferSlot> {
        let (to, place) = oneshot::channel();
        let mut state = self.state.lock();
        let turn = state.turn;
        state.turn += 1;
        state.waiting.insert(turn, (holder.groups(), to));
        let given_up = self.give(&mut state);
        drop(state);
        // Each takes the lock when it is dropped.
        drop(given_up);
        place
    }

    /// Gives out free places. Returns places whose receivers are gone.
    fn give(self: &Arc<Self>, state: &mut State) -> Vec<BufferSlot> {
        let mut given_up = Vec::new();
        state.waiting.retain(|_, (_, to)| !to.is_closed());
        while let Some(turn) = state.next(self.count) {
            let Some((groups, to)) = state.waiting.remove(&turn) else {
                break;
            };
            state.add(&groups);
            let place = BufferSlot {
                places: Arc::clone(self),
                groups,
            };
            if let Err(place) = to.send(place) {
                given_up.push(place);
            }
        }
        given_up
    }
}

impl State {
    fn held_by(&self, group: &Group) -> usize {
        self.held.get(group).copied().unwrap_or(0)
    }

    fn may_take(&self, groups: &[Group], count: usize) -> bool {
        let free_count = count.saturating_sub(self.held_count);
        let has_room = |group: &Group| {
            let (held, share) = (self.held_by(group), group.share());
            let is_within = held < free_count.saturating_mul(share.part);
            held == 0 || is_within && free_count > share.left_count
        };
        let is_last = free_count == 1 && self.held_count > 0;
        let is_kept = is_last && groups.contains(&Group::Strangers);
        free_count > 0 && !is_kept && groups.iter().all(has_room)
    }

    /// The number of places of each group of a holder, the widest first: the least comes first.
    fn rank(&self, groups: &[Group]) -> [usize; GROUP_COUNT_MAX] {
        let mut rank = [0; GROUP_COUNT_MAX];
        for (held, group) in rank.iter_mut().zip(groups) {
            *held = self.held_by(group);
        }
        rank
    }

    /// The next waiting client.
    fn next(&self, count: usize) -> Option<u64> {
        let may = self
            .waiting
            .iter()
            .filter(|(_, (groups, _))| self.may_take(groups, count));
        let first = may.min_by_key(|(turn, (groups, _))| (self.rank(groups), **turn));
        first.map(|(turn, _)| *turn)
    }

    fn add(&mut self, groups: &[Group]) {
        for group in groups {
            *self.held.entry(group.clone()).or_default() += 1;
        }
        self.held_count += 1;
    }

    fn remove(&mut self, groups: &[Group]) {
        for group in groups {
            if let Some(count) = self.held.get_mut(group) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(group);
                }
            }
        }
        self.held_count -= 1;
    }
}

impl Drop for BufferSlot {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        state.remove(&self.groups);
        let given_up = self.places.give(&mut state);
        drop(state);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of a user of a volume.
    fn key(volume: u32, uid: u32, id: &str) -> Holder {
        Holder::Key {
            id: id.to_owned(),
            uid,
            volume: VolumeId(volume),
        }
    }

    fn address(last: u8) -> Holder {
        Holder::Address(Some(IpAddr::from([127, 0, 0, last])))
    }

    /// Asks for many places at once; returns the granted ones and the waiting requests.
    fn ask(
        places: &Arc<Places>,
        holder: &Holder,
        count: usize,
    ) -> (Vec<BufferSlot>, Vec<oneshot::Receiver<BufferSlot>>) {
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

    /// The number of places of each of several holders, of `count`, who come one after the other: each asks until it
    /// has to wait.
    fn given(count: usize, holders: &[Holder]) -> Vec<usize> {
        let places = Places::new(count);
        let mut held = Vec::new();
        let mut got = Vec::new();
        for holder in holders {
            let before = held.len();
            while let Some(place) = ask(&places, holder, 1).0.pop() {
                held.push(place);
            }
            got.push(held.len() - before);
        }
        drop(held);
        drop(ask(&places, &key(9, 9, "last"), 1));
        let state = places.state.lock();
        assert_eq!(state.held_count, 0);
        assert!(state.held.is_empty() && state.waiting.is_empty());
        got
    }

    #[test]
    fn nobody_keeps_all_others_out() {
        let cases: &[(&str, &[Holder], &[usize])] = &[
            ("one key", &[key(1, 1, "a"), key(2, 1, "b")], &[12, 1]),
            ("two keys", &[key(1, 1, "a"), key(1, 1, "b")], &[12, 1]),
            ("strangers", &[address(2), address(3)], &[8, 0]),
            ("before a key", &[address(2), key(1, 1, "a")], &[8, 4]),
            ("a stranger last", &[key(1, 1, "a"), address(2)], &[12, 2]),
        ];
        for (name, holders, want) in cases {
            assert_eq!(given(16, holders), *want, "{name}");
        }
        // Any client gets the only place.
        for holder in [key(1, 1, "a"), address(2)] {
            assert_eq!(given(1, &[holder]), [1]);
        }
    }

    /// For any number of keys of a user, of users of a volume, and of anonymous clients.
    #[test]
    fn each_kind_of_group_leaves_a_place_to_others() {
        for count in [8, 16, 64, 1000] {
            let keys = |uid: u32| (0..50).map(move |id| key(1, uid, &format!("{uid}-{id}")));
            let strangers = || (1..50).map(address);
            let by_one: Vec<Holder> = keys(1).collect();
            let with_strangers: Vec<Holder> = keys(1).chain(strangers()).collect();
            let by_all: Vec<Holder> = (1..50).flat_map(keys).collect();
            let all_with_strangers: Vec<Holder> =
                by_all.iter().cloned().chain(strangers()).collect();
            for (name, hogs, other) in [
                ("another key", &by_one[..1], key(1, 1, "other")),
                ("another user", &by_one[..], key(1, 99, "other")),
                ("a stranger", &by_one[..], address(99)),
                ("beside strangers", &with_strangers[..], key(1, 99, "other")),
                ("another volume", &by_all[..], key(2, 1, "other")),
                ("with both", &all_with_strangers[..], key(2, 1, "other")),
            ] {
                let holders: Vec<Holder> = hogs.iter().cloned().chain([other]).collect();
                let got = given(count, &holders);
                assert!(got.last().is_some_and(|got| *got > 0), "{name}, of {count}");
            }
        }
    }

    #[test]
    fn who_has_the_fewest_comes_first() {
        let places = Places::new(64);
        let (mut hog, mut hog_waits) = ask(&places, &key(1, 1, "hog"), 100);
        let (many, mut many_wait) = ask(&places, &key(2, 1, "many"), 100);
        let (one, mut one_waits) = ask(&places, &key(3, 1, "one"), 10);
        assert_eq!((hog.len(), many.len(), one.len()), (48, 12, 1));
        hog.truncate(46);
        assert!(one_waits[0].try_recv().is_ok());
        for waits in [&mut hog_waits, &mut many_wait] {
            assert!(waits.iter_mut().all(|place| place.try_recv().is_err()));
        }
        // A client that no longer waits is skipped, and a place that it got is free again.
        drop((hog_waits, many_wait, one_waits));
        drop((hog, many, one));
        let (given, _) = ask(&places, &key(4, 1, "new"), 100);
        assert_eq!(given.len(), 48);
    }

    #[tokio::test]
    async fn a_place_is_waited_for() {
        let places = Places::new(1);
        let first = places.take(key(1, 1, "a")).await;
        assert!(first.is_some());
        let second = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(key(1, 1, "b")).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        assert!(second.await.unwrap());
    }
}
