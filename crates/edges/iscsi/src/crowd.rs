//! Who may connect, of many who do.
//!
//! Owns: how many connections there are of each address, how many of them have not logged in, who makes way for whom.
//! Must not know: what comes over a connection.
//!
//! Of connections that have not logged in the oldest makes way for one that comes: a login takes milliseconds, so whoever
//! holds many half ones loses them first. Addresses from which somebody has logged in before have places that no stranger
//! takes: strangers have half of all. As many initiators come at once when a server starts again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Notify;

/// Addresses that are remembered from which somebody has logged in.
const KNOWN_MAX: usize = 1024;

/// A connection that is counted.
struct Member {
    network: IpAddr,
    /// Somebody had logged in from there before it came.
    is_known: bool,
    /// `None`: it has logged in, and makes way for nobody.
    entering: Option<Arc<Notify>>,
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub count_max: usize,
    pub per_network_max: usize,
}

impl Limits {
    /// Connections without a login from addresses that nobody has logged in from.
    fn strangers_max(&self) -> usize {
        (self.count_max / 2).max(1)
    }
}

#[derive(Default)]
pub(crate) struct Crowd {
    next: u64,
    /// In the order in which they came.
    members: BTreeMap<u64, Member>,
    of_network: HashMap<IpAddr, usize>,
    /// By network, with when it was added: the oldest is forgotten first.
    known: HashMap<IpAddr, u64>,
    known_next: u64,
}

impl Crowd {
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Lets a connection in: its number, and what tells it that it has to make way. `None`: there is no place for it.
    pub fn enter(&mut self, network: IpAddr, limits: Limits) -> Option<(u64, Arc<Notify>)> {
        let is_known = self.known.contains_key(&network);
        let of_network = self.of_network.get(&network).copied().unwrap_or(0);
        if of_network >= limits.per_network_max {
            let own = self.oldest(|member| member.network == network)?;
            self.dismiss(own);
        }
        if !is_known && self.strangers().count() >= limits.strangers_max() {
            let crowded = self.crowded_network()?;
            let one = self.oldest(|member| !member.is_known && member.network == crowded)?;
            self.dismiss(one);
        }
        if self.members.len() >= limits.count_max {
            let stranger = self.oldest(|member| !member.is_known);
            let known = || self.oldest(|_| is_known);
            let one = stranger.or_else(known)?;
            self.dismiss(one);
        }
        let (id, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        *self.of_network.entry(network).or_default() += 1;
        let member = Member {
            network,
            is_known,
            entering: Some(Arc::clone(&end)),
        };
        self.members.insert(id, member);
        Some((id, end))
    }

    /// Whether a connection is counted still; from now on it makes way for nobody. Its address is remembered if it has
    /// proven here who it is.
    pub fn settle(&mut self, id: u64, has_logged_in: bool) -> bool {
        let Some(member) = self.members.get_mut(&id) else {
            return false;
        };
        member.entering = None;
        let network = member.network;
        if has_logged_in {
            self.known.insert(network, self.known_next);
            self.known_next += 1;
            if self.known.len() > KNOWN_MAX {
                let oldest = self.known.iter().min_by_key(|(_, added)| **added);
                if let Some(oldest) = oldest.map(|(network, _)| *network) {
                    self.known.remove(&oldest);
                }
            }
        }
        true
    }

    /// A connection has ended; one that made way was taken out before.
    pub fn leave(&mut self, id: u64) {
        let Some(member) = self.members.remove(&id) else {
            return;
        };
        if let Some(count) = self.of_network.get_mut(&member.network) {
            *count -= 1;
            if *count == 0 {
                self.of_network.remove(&member.network);
            }
        }
    }

    fn strangers(&self) -> impl Iterator<Item = (u64, IpAddr)> {
        let all = self.members.iter();
        all.filter(|(_, member)| member.entering.is_some() && !member.is_known)
            .map(|(id, member)| (*id, member.network))
    }

    /// The network with most strangers; of several, the one that has been there for longest.
    fn crowded_network(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (id, network) in self.strangers() {
            counts.entry(network).or_insert((0, id)).0 += 1;
        }
        let most = counts
            .into_iter()
            .max_by_key(|(_, (count, first))| (*count, Reverse(*first)));
        most.map(|(network, _)| network)
    }

    /// The oldest one without a login of which this holds.
    fn oldest(&self, holds: impl Fn(&Member) -> bool) -> Option<u64> {
        let mut all = self.members.iter();
        let found = all.find(|(_, member)| member.entering.is_some() && holds(member));
        found.map(|(id, _)| *id)
    }

    /// Has a connection end. Its place is free at once.
    fn dismiss(&mut self, id: u64) {
        let member = self.members.get(&id);
        if let Some(end) = member.and_then(|member| member.entering.as_ref()) {
            end.notify_one();
        }
        self.leave(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        count_max: 8,
        per_network_max: 4,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// A connection from an address that logs in.
    fn logged_in(crowd: &mut Crowd, last: u8) -> u64 {
        let (id, _) = crowd.enter(address(last), LIMITS).unwrap();
        assert!(crowd.settle(id, true));
        id
    }

    #[test]
    fn the_oldest_half_login_of_the_most_crowded_address_makes_way() {
        let mut crowd = Crowd::default();
        let (few, _) = crowd.enter(address(1), LIMITS).unwrap();
        let many: Vec<u64> = (0..3)
            .map(|_| crowd.enter(address(2), LIMITS).unwrap().0)
            .collect();
        let (new, _) = crowd.enter(address(3), LIMITS).unwrap();
        assert!(!crowd.settle(many[0], false));
        for id in [few, many[1], many[2], new] {
            assert!(crowd.settle(id, false), "{id}");
        }
        assert_eq!(crowd.count(), 4);
    }

    #[tokio::test]
    async fn who_makes_way_is_told_so() {
        let mut crowd = Crowd::default();
        let (_, end) = crowd.enter(address(1), LIMITS).unwrap();
        for last in 2..=5 {
            crowd.enter(address(last), LIMITS).unwrap();
        }
        end.notified().await;
    }

    #[test]
    fn strangers_do_not_take_the_places_of_those_who_logged_in_before() {
        let mut crowd = Crowd::default();
        let session = logged_in(&mut crowd, 1);
        // A flood from many addresses.
        for last in 10..=250 {
            assert!(crowd.enter(address(last), LIMITS).is_some());
        }
        assert_eq!(crowd.count(), 1 + LIMITS.strangers_max());
        // The known address has what is left of its own, and no stranger makes one of them end.
        let more: Vec<u64> = (1..LIMITS.per_network_max)
            .map(|_| crowd.enter(address(1), LIMITS).unwrap().0)
            .collect();
        for last in 10..=250 {
            assert!(crowd.enter(address(last), LIMITS).is_some());
        }
        for id in more.into_iter().chain([session]) {
            assert!(crowd.settle(id, true));
        }
        // All its places are of sessions now.
        assert!(crowd.enter(address(1), LIMITS).is_none());
    }

    #[test]
    fn sessions_make_way_for_nobody() {
        let mut crowd = Crowd::default();
        let all: Vec<u64> = (0..8).map(|last| logged_in(&mut crowd, last)).collect();
        assert!(crowd.enter(address(1), LIMITS).is_none());
        assert!(crowd.enter(address(99), LIMITS).is_none());
        for id in all {
            crowd.leave(id);
            // Once more is nothing.
            crowd.leave(id);
        }
        assert_eq!(crowd.count(), 0);
        assert!(crowd.of_network.is_empty());
    }

    #[test]
    fn few_addresses_are_remembered() {
        let mut crowd = Crowd::default();
        for number in 0..=u32::try_from(KNOWN_MAX).unwrap() {
            let network = IpAddr::from(number.to_be_bytes());
            let (id, _) = crowd.enter(network, LIMITS).unwrap();
            crowd.settle(id, true);
            crowd.leave(id);
        }
        assert_eq!(crowd.known.len(), KNOWN_MAX);
        assert!(!crowd.known.contains_key(&IpAddr::from([0; 4])));
    }
}
