//! How often somebody may try to log in.
//!
//! Owns: the limits, by user and by address, and that they take bounded memory. Must not know: HTTP, whether a try was
//! right, the time of day.
//!
//! Each key has so many tries at once, and gets one back every so often. The server remembers when a key would have
//! all of them again (the generic cell rate algorithm), so a key that has them all need not be remembered.
//!
//! There are three kinds of keys: a user from one address, an address, and a user from anywhere. The last one is for addresses
//! from which the user never logged in: somebody who guesses from many addresses gets no more tries by that, and does not keep the
//! user out at the places where the user works.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use cairn_forward::network_of;
use parking_lot::Mutex;

/// Tries in a row, and the time after which one more is given back.
#[derive(Clone, Copy, Debug)]
struct Limit {
    at_once: u32,
    every: Duration,
}

/// Of one user, from one address.
const BY_PAIR: Limit = Limit {
    at_once: 10,
    every: Duration::from_secs(30),
};
/// Of one user, from all addresses where the user never logged in.
const BY_USER: Limit = Limit {
    at_once: 10,
    every: Duration::from_secs(30),
};
/// Of one address, for any user.
const BY_ADDRESS: Limit = Limit {
    at_once: 10,
    every: Duration::from_secs(10),
};
/// Keys of each kind that are remembered; of more, the one that has its tries back first is forgotten.
const KEYS_MAX: usize = 1024;
/// Addresses where users logged in that are remembered; of more, the one where it is longest ago is forgotten.
const KNOWN_MAX: usize = 4096;

/// One kind of keys.
struct Tries<K> {
    limit: Limit,
    /// When each key has all of its tries again.
    full_at: HashMap<K, Duration>,
}

impl<K: Clone + Eq + Hash> Tries<K> {
    fn new(limit: Limit) -> Self {
        Self {
            limit,
            full_at: HashMap::new(),
        }
    }

    /// How long a key has to wait for its next try; `None` if it need not.
    fn wait(&self, key: &K, now: Duration) -> Option<Duration> {
        let full_at = self.full_at.get(key).copied().unwrap_or(now).max(now);
        let all = self.limit.every.saturating_mul(self.limit.at_once);
        let after = full_at.saturating_add(self.limit.every).saturating_sub(now);
        let wait = after.saturating_sub(all);
        (!wait.is_zero()).then_some(wait)
    }

    fn take(&mut self, key: &K, now: Duration) {
        if !self.full_at.contains_key(key) && self.full_at.len() >= KEYS_MAX {
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= KEYS_MAX {
                let first = self.full_at.iter().min_by_key(|(_, full_at)| **full_at);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.full_at.remove(&first);
                }
            }
        }
        let full_at = self.full_at.entry(key.clone()).or_insert(now);
        *full_at = (*full_at).max(now).saturating_add(self.limit.every);
    }

    fn give_back(&mut self, key: &K) {
        if let Some(full_at) = self.full_at.get_mut(key) {
            *full_at = full_at.saturating_sub(self.limit.every);
        }
    }
}

/// A user at an address.
type Pair = (String, IpAddr);

struct Tried {
    pairs: Tries<Pair>,
    users: Tries<String>,
    addresses: Tries<IpAddr>,
    /// Where users logged in, and the number of the log-in among all.
    known: HashMap<Pair, u64>,
    known_last: u64,
}

impl Tried {
    fn know(&mut self, pair: Pair) {
        if !self.known.contains_key(&pair) && self.known.len() >= KNOWN_MAX {
            let first = self.known.iter().min_by_key(|(_, number)| **number);
            if let Some(first) = first.map(|(pair, _)| pair.clone()) {
                self.known.remove(&first);
            }
        }
        self.known_last += 1;
        self.known.insert(pair, self.known_last);
    }
}

/// Counts tries to log in.
pub struct Attempts {
    tried: Mutex<Tried>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            tried: Mutex::new(Tried {
                pairs: Tries::new(BY_PAIR),
                users: Tries::new(BY_USER),
                addresses: Tries::new(BY_ADDRESS),
                known: HashMap::new(),
                known_last: 0,
            }),
        }
    }
}

impl Attempts {
    /// Takes a try, before anybody looks whether it is right: tries side by side are counted, too. `user` is `None` for
    /// the token. `now` is of a clock that only goes forward.
    ///
    /// Fails with the time to wait; such a try is not counted.
    pub fn take(&self, user: Option<&str>, address: IpAddr, now: Duration) -> Result<(), Duration> {
        let address = network_of(address);
        let mut tried = self.tried.lock();
        let mut wait = tried.addresses.wait(&address, now);
        let pair = user.map(|user| (user.to_owned(), address));
        if let Some(pair) = &pair {
            wait = wait.max(tried.pairs.wait(pair, now));
            // The machine itself is where its administrators are.
            let is_known = address.is_loopback() || tried.known.contains_key(pair);
            if !is_known {
                wait = wait.max(tried.users.wait(&pair.0, now));
            }
        }
        if let Some(wait) = wait {
            return Err(wait);
        }
        tried.addresses.take(&address, now);
        if let Some(pair) = pair {
            tried.users.take(&pair.0, now);
            tried.pairs.take(&pair, now);
        }
        Ok(())
    }

    /// Gives a try back that was right, and remembers where the user logged in.
    pub fn was_right(&self, user: &str, address: IpAddr) {
        let address = network_of(address);
        let mut tried = self.tried.lock();
        tried.addresses.give_back(&address);
        let pair = (user.to_owned(), address);
        tried.users.give_back(&pair.0);
        tried.pairs.give_back(&pair);
        tried.know(pair);
    }

    /// Gives a try back in which nobody was guessed: somebody else vouches for who it is.
    pub fn was_no_guess(&self, address: IpAddr) {
        self.tried.lock().addresses.give_back(&network_of(address));
    }

    /// What happened before this process began: that a user logged in somewhere.
    pub fn recall_right(&self, user: &str, address: IpAddr) {
        let pair = (user.to_owned(), network_of(address));
        self.tried.lock().know(pair);
    }

    /// What happened before this process began: that so many tries failed just now.
    pub fn recall_wrong(&self, user: Option<&str>, address: IpAddr, count: u64, now: Duration) {
        let address = network_of(address);
        let mut tried = self.tried.lock();
        let times = count.min(u64::from(BY_PAIR.at_once));
        for _ in 0..times {
            tried.addresses.take(&address, now);
            if let Some(user) = user {
                tried.users.take(&user.to_owned(), now);
                tried.pairs.take(&(user.to_owned(), address), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u32) -> IpAddr {
        // Not in 0.0.0.0/8 nor in 127.0.0.0/8.
        IpAddr::from((0x0a00_0000 | last).to_be_bytes())
    }

    /// Ten wrong passwords from each of many addresses.
    fn attack(attempts: &Attempts, user: &str, now: Duration) -> u32 {
        let tries = (0..100).flat_map(|number| std::iter::repeat_n(number, 10));
        let taken = tries.filter(|number| attempts.take(Some(user), address(*number), now).is_ok());
        taken.count() as u32
    }

    #[test]
    fn ten_wrong_passwords_delay_an_address_and_an_account() {
        let attempts = Attempts::default();
        let (alice, here, now) = (Some("alice"), address(77), 1000 * SECOND);
        for _ in 0..10 {
            assert_eq!(attempts.take(alice, here, now), Ok(()));
        }
        assert_eq!(attempts.take(alice, here, now), Err(BY_PAIR.every));
        // Waiting is not counted. The address waits for any account that it tries, the account wherever it is tried.
        let later = now + SECOND;
        let waits = [
            (alice, here, BY_PAIR.every - SECOND),
            (Some("bob"), here, BY_ADDRESS.every - SECOND),
            (None, here, BY_ADDRESS.every - SECOND),
            (alice, address(78), BY_USER.every - SECOND),
        ];
        for (user, address, wait) in waits {
            assert_eq!(attempts.take(user, address, later), Err(wait), "{user:?}");
        }
        assert_eq!(attempts.take(Some("bob"), address(78), later), Ok(()));
        let later = now + BY_PAIR.every;
        assert_eq!(attempts.take(alice, here, later), Ok(()));
        assert!(attempts.take(alice, here, later).is_err());
        // A right one is not counted.
        attempts.was_right("alice", here);
        assert_eq!(attempts.take(alice, here, later), Ok(()));
        let much_later = later + BY_PAIR.every * (BY_PAIR.at_once + 1);
        for _ in 0..10 {
            assert_eq!(attempts.take(alice, here, much_later), Ok(()));
        }
        assert!(attempts.take(alice, here, much_later).is_err());
    }

    /// A guesser, from however many addresses, does not keep out a user who comes from where they logged in before.
    #[test]
    fn nobody_is_locked_out_by_others() {
        let attempts = Attempts::default();
        let (office, now) = (address(5000), 1000 * SECOND);
        assert_eq!(attempts.take(Some("admin"), office, now), Ok(()));
        attempts.was_right("admin", office);
        for round in 0..100 {
            let now = now + round * SECOND;
            let guessed = attack(&attempts, "admin", now);
            assert!(guessed <= BY_USER.at_once, "{guessed} in a second");
            assert_eq!(attempts.take(Some("admin"), office, now), Ok(()));
            attempts.was_right("admin", office);
            let own = IpAddr::from([127, 0, 0, 1]);
            assert_eq!(attempts.take(Some("admin"), own, now), Ok(()));
            attempts.was_right("admin", own);
        }
        // Elsewhere the user waits for a turn.
        assert!(
            attempts
                .take(Some("admin"), address(5001), now + 99 * SECOND)
                .is_err()
        );
        // A guesser at the same address is slowed down as anywhere.
        let mut count = 0;
        while attempts
            .take(Some("admin"), office, now + 99 * SECOND)
            .is_ok()
        {
            count += 1;
        }
        assert_eq!(count, BY_PAIR.at_once);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let attempts = Attempts::default();
        let network = |low: u64| IpAddr::from((1_u128 << 80 | u128::from(low)).to_be_bytes());
        for number in 0..BY_ADDRESS.at_once {
            let user = format!("user{number}");
            let from = network(u64::from(number));
            assert_eq!(attempts.take(Some(&user), from, SECOND), Ok(()));
        }
        let refused = attempts.take(None, network(u64::MAX), SECOND);
        assert_eq!(refused, Err(BY_ADDRESS.every));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(network_of(mapped), address(1));
    }

    #[test]
    fn what_happened_before_the_start_counts() {
        let attempts = Attempts::default();
        attempts.recall_right("admin", address(1));
        attempts.recall_wrong(Some("admin"), address(2), 1_000_000, SECOND);
        assert!(attempts.take(Some("admin"), address(2), SECOND).is_err());
        assert!(attempts.take(None, address(2), SECOND).is_err());
        assert!(attempts.take(Some("admin"), address(3), SECOND).is_err());
        assert_eq!(attempts.take(Some("admin"), address(1), SECOND), Ok(()));
    }

    /// A client that tries many names must not get more tries of one of them.
    #[test]
    fn what_is_remembered_is_bounded() {
        let attempts = Attempts::default();
        for number in 0..BY_USER.at_once {
            assert_eq!(
                attempts.take(Some("alice"), address(number), SECOND),
                Ok(())
            );
        }
        for number in 0..4 * KEYS_MAX as u32 {
            let user = format!("user{number}");
            assert_eq!(attempts.take(Some(&user), address(number), SECOND), Ok(()));
        }
        for number in 0..2 * KNOWN_MAX as u32 {
            attempts.recall_right("bob", address(number));
        }
        let tried = attempts.tried.lock();
        assert!(tried.users.full_at.len() <= KEYS_MAX);
        assert!(tried.addresses.full_at.len() <= KEYS_MAX);
        assert!(tried.pairs.full_at.len() <= KEYS_MAX);
        assert_eq!(tried.known.len(), KNOWN_MAX);
        drop(tried);
        assert!(
            attempts
                .take(Some("alice"), address(1 << 20), SECOND)
                .is_err()
        );
    }
}
